/*
 * story.c - hurwitz demo as one story: a network is trained, quantized and tested
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/story.h"
#include "tools/core/output.h"

#define BATCH 64
#define SEED 11

/* ---- The network ----------------------------------------------------------------------------- */

struct shape shape_of(int matrix)
{
	if (matrix == 0)
		return (struct shape){UNITS, POINTS, false};
	if (matrix == MATRICES - 1)
		return (struct shape){CLASSES / 4, UNITS, false};
	return matrix % 2 ? (struct shape){HIDDEN, UNITS, true} :
			    (struct shape){UNITS, HIDDEN, false};
}

float *matrix_of(struct weights *w, int matrix)
{
	if (matrix == 0)
		return w->in;
	if (matrix == MATRICES - 1)
		return w->out;
	return matrix % 2 ? w->layer[matrix / 2].up : w->layer[matrix / 2 - 1].down;
}

double matrix_bytes(void)
{
	double sum = 0;

	for (int k = 0; k < MATRICES; k++)
		sum += 4.0 * sizeof(float) * shape_of(k).rows * shape_of(k).columns;
	return sum;
}

/* [rows, units, 4] */
static hz_tensor in_blocks(const struct net *n, float *at, int64_t rows, int64_t units)
{
	hz_tensor t = hz_tensor_3d(at, HZ_F32, hz_device(n->ctx), rows, units, 4);

	t.stride[1] = 1;
	t.stride[2] = units;
	return t;
}

hz_tensor blocks(const struct net *n, float *at, int64_t units)
{
	return in_blocks(n, at, n->tokens, units);
}

static hz_tensor view(const struct net *n, float *at, int64_t rows, int64_t columns)
{
	return hz_tensor_2d(at, HZ_F32, hz_device(n->ctx), rows, columns);
}

static hz_tensor vector(const struct net *n, float *at, int64_t count)
{
	return hz_tensor_1d(at, HZ_F32, hz_device(n->ctx), count);
}

static hz_tensor branch(const struct net *n, float *at)
{
	return view(n, at, n->tokens, CHANNELS);
}

static hz_tensor streams(const struct net *n, float *at)
{
	return hz_tensor_3d(at, HZ_F32, hz_device(n->ctx), n->tokens, STREAMS, CHANNELS);
}

static hz_tensor matrix(const struct net *n, struct weights *w, int which)
{
	const struct shape s = shape_of(which);

	return in_blocks(n, matrix_of(w, which), s.rows, s.columns);
}

static hz_quat_linear_opts linear_opts(int which, hz_tensor *pre)
{
	return (hz_quat_linear_opts){
		.activation = shape_of(which).active ? HZ_ACT_SILU : HZ_ACT_NONE,
		.pre = pre,
	};
}

/* Products in f32 */
static int product_f32(struct net *n, int which, const hz_tensor *x, hz_tensor *y, hz_tensor *pre)
{
	const hz_tensor w = matrix(n, n->value, which);
	const hz_quat_linear_opts o = linear_opts(which, pre);

	return hz_quat_linear(n->ctx, x, &w, NULL, y, &o);
}

int net_forward(struct net *n)
{
	const hz_tensor input = blocks(n, n->input, POINTS), last = streams(n, n->at[LAYERS].x);
	hz_tensor ends = branch(n, n->ends), first = streams(n, n->at[0].x);
	const hz_tensor phi = view(n, n->value->phi, STREAMS, STREAMS * CHANNELS);
	const hz_tensor alpha = vector(n, n->value->alpha, 1);
	const hz_tensor bias = vector(n, n->value->bias, STREAMS);
	hz_tensor e = blocks(n, n->ends, UNITS), y = blocks(n, n->answer, CLASSES / 4);
	int status = n->product(n, 0, &input, &e, NULL);

	if (!status)
		status = hz_mhc_expand(n->ctx, &ends, &first);
	for (int l = 0; l < LAYERS && !status; l++) {
		const hz_tensor x = streams(n, n->at[l].x), f = branch(n, n->at[l].f);
		hz_tensor after = streams(n, n->at[l + 1].x), u = branch(n, n->at[l].u);
		const hz_tensor uq = blocks(n, n->at[l].u, UNITS);
		hz_tensor fq = blocks(n, n->at[l].f, UNITS);
		hz_tensor hidden = blocks(n, n->at[l].hidden, HIDDEN);
		hz_tensor pre = blocks(n, n->at[l].pre, HIDDEN);

		status = hz_mhc_layer_begin(n->ctx, &n->layer[l], &x, &u);
		if (!status)
			status = n->product(n, 1 + 2 * l, &uq, &hidden, &pre);
		if (!status)
			status = n->product(n, 2 + 2 * l, &hidden, &fq, NULL);
		if (!status)
			status = hz_mhc_layer_end(n->ctx, &n->layer[l], &x, &f, &after);
	}
	if (!status)
		status = hz_mhc_head(n->ctx, &last, &phi, &alpha, &bias, NULL, &ends, NULL);
	return status ? status : n->product(n, MATRICES - 1, &e, &y, NULL);
}

/* The gradients of a matrix and, unless dx is NULL, of its input */
static int product_bwd(struct net *n, int which, const hz_tensor *x, const hz_tensor *dy,
		       hz_tensor *dx, hz_tensor *pre)
{
	const hz_tensor w = matrix(n, n->value, which);
	const hz_quat_linear_opts o = linear_opts(which, pre);
	hz_tensor dw = matrix(n, n->gradient, which);

	return hz_quat_linear_bwd(n->ctx, x, &w, NULL, dy, dx, &dw, NULL, &o);
}

/* Computes all gradients from that of the answers, which it overwrites. */
static int net_backward(struct net *n)
{
	const hz_tensor input = blocks(n, n->input, POINTS);
	const hz_tensor last = streams(n, n->at[LAYERS].x), e = blocks(n, n->ends, UNITS);
	hz_tensor de = blocks(n, n->df, UNITS), answer = blocks(n, n->answer, CLASSES / 4);
	const hz_tensor phi = view(n, n->value->phi, STREAMS, STREAMS * CHANNELS);
	const hz_tensor alpha = vector(n, n->value->alpha, 1);
	const hz_tensor bias = vector(n, n->value->bias, STREAMS);
	hz_tensor dphi = view(n, n->gradient->phi, STREAMS, STREAMS * CHANNELS);
	hz_tensor dalpha = vector(n, n->gradient->alpha, 1);
	hz_tensor dbias = vector(n, n->gradient->bias, STREAMS);
	const hz_tensor du = branch(n, n->du);
	hz_tensor ends = branch(n, n->ends), df = branch(n, n->df);
	hz_tensor dhidden = blocks(n, n->dhidden, HIDDEN), duq = blocks(n, n->du, UNITS);
	hz_tensor dy = streams(n, n->dx[0]), dx = streams(n, n->dx[1]);
	const hz_mhc_grads grads = {.du = &df, .dx = &dy, .dphi = &dphi, .dalpha = &dalpha,
				    .dbias = &dbias};
	int status = product_bwd(n, MATRICES - 1, &e, &answer, &de, NULL);

	if (!status)
		status = hz_mhc_head_bwd(n->ctx, &last, &phi, &alpha, &bias, &grads, NULL);
	for (int l = LAYERS - 1; l >= 0 && !status; l--) {
		const hz_tensor x = streams(n, n->at[l].x), f = branch(n, n->at[l].f), swap = dy;
		const hz_tensor u = blocks(n, n->at[l].u, UNITS);
		const hz_tensor hidden = blocks(n, n->at[l].hidden, HIDDEN);
		hz_tensor pre = blocks(n, n->at[l].pre, HIDDEN);

		status = hz_mhc_layer_end_bwd(n->ctx, &n->layer[l], &f, &dy, &df);
		if (!status)
			status = product_bwd(n, 2 + 2 * l, &hidden, &de, &dhidden, NULL);
		if (!status)
			status = product_bwd(n, 1 + 2 * l, &u, &dhidden, &duq, &pre);
		if (!status)
			status = hz_mhc_layer_begin_bwd(n->ctx, &n->layer[l], &x, &dy, &du, &dx);
		dy = dx;
		dx = swap;
	}
	if (!status)
		status = hz_mhc_expand_bwd(n->ctx, &dy, &ends);
	return status ? status : product_bwd(n, 0, &input, &e, NULL, NULL);
}

/* ---- Its memory ------------------------------------------------------------------------------ */

/* The next `count` floats of a region that begins at base; NULL while only the size is computed */
static float *take(float *base, int64_t *at, int64_t count)
{
	float *p = base ? base + *at : NULL;

	*at += (count + 15) / 16 * 16;
	return p;
}

/* Assigns all arrays to memory at base; returns the number of floats. */
static int64_t place_arrays(struct net *n, float *base)
{
	const int64_t c = n->tokens * CHANNELS, h = n->tokens * 4 * HIDDEN;
	int64_t at = 0;

	n->input = take(base, &at, n->tokens * INPUTS);
	n->answer = take(base, &at, n->tokens * CLASSES);
	n->ends = take(base, &at, c);
	for (int l = 0; l <= LAYERS; l++)
		n->at[l].x = take(base, &at, STREAMS * c);
	for (int l = 0; l < LAYERS; l++) {
		n->at[l].u = take(base, &at, c);
		n->at[l].f = take(base, &at, c);
		n->at[l].pre = take(base, &at, h);
		n->at[l].hidden = take(base, &at, h);
	}
	if (n->gradient) {
		n->dx[0] = take(base, &at, STREAMS * c);
		n->dx[1] = take(base, &at, STREAMS * c);
		n->du = take(base, &at, c);
		n->df = take(base, &at, c);
		n->dhidden = take(base, &at, h);
	}
	return at;
}

static void place_layer(struct net *n, int l)
{
	hz_mhc_layer *to = &n->layer[l];

	to->phi = view(n, n->value->layer[l].phi, ROWS, STREAMS * CHANNELS);
	to->alpha = vector(n, n->value->layer[l].alpha, 3);
	to->bias = vector(n, n->value->layer[l].bias, ROWS);
	to->norm = vector(n, n->value->layer[l].norm, CHANNELS);
	if (!n->gradient)
		return;
	to->dphi = view(n, n->gradient->layer[l].phi, ROWS, STREAMS * CHANNELS);
	to->dalpha = vector(n, n->gradient->layer[l].alpha, 3);
	to->dbias = vector(n, n->gradient->layer[l].bias, ROWS);
	to->dnorm = vector(n, n->gradient->layer[l].norm, CHANNELS);
}

/* Reserves the workspace, since calls on a GPU do not allocate; on the CPU it grows by itself. */
static int reserve(struct net *n)
{
	size_t bytes = 0;
	int status = hz_record_begin(n->ctx);

	if (status)
		return status;
	status = net_forward(n);
	if (!status && n->gradient)
		status = net_backward(n);
	hz_record_end(n->ctx, &bytes);
	return status ? status : hz_reserve(n->ctx, bytes);
}

int make_net(struct net *n, hz_context *ctx, int64_t tokens, struct weights *value,
	     struct weights *gradient)
{
	size_t bytes = 0;
	int64_t floats;
	int status = HZ_OK;

	*n = (struct net){.ctx = ctx, .tokens = tokens, .value = value, .gradient = gradient,
			  .product = product_f32};
	floats = place_arrays(n, NULL);
	status = hz_alloc(ctx, &n->memory, (size_t)floats * sizeof(float), hz_device(ctx));
	if (status)
		return status;
	place_arrays(n, n->memory);
	for (int l = 0; l < LAYERS; l++)
		place_layer(n, l);
	status = hz_mhc_layer_bind(ctx, &n->layer[0], STREAMS, tokens, NULL, &bytes);
	if (!status)
		status = hz_alloc(ctx, &n->kept, LAYERS * bytes, hz_device(ctx));
	for (int l = 0; l < LAYERS && !status; l++)
		status = hz_mhc_layer_bind(ctx, &n->layer[l], STREAMS, tokens,
					   (char *)n->kept + (size_t)l * bytes, NULL);
	return status ? status : reserve(n);
}

void free_net(struct net *n)
{
	if (n->memory)
		hz_free(n->ctx, n->memory, hz_device(n->ctx));
	if (n->kept)
		hz_free(n->ctx, n->kept, hz_device(n->ctx));
	n->memory = n->kept = NULL;
}

/* ---- Its training ---------------------------------------------------------------------------- */

struct student {
	struct model m;
	struct net net;
};

static int answer(struct model *m, const float *x, int64_t count, float *y)
{
	struct net *n = &((struct student *)m)->net;
	const size_t known = (size_t)(count * INPUTS);
	int status;

	memcpy(n->input, x, known * sizeof(float));
	memset(n->input + known, 0, ((size_t)(BATCH * INPUTS) - known) * sizeof(float));
	status = net_forward(n);
	memcpy(y, n->answer, (size_t)(count * CLASSES) * sizeof(float));
	return status;
}

static int learn(struct model *m, const float *x, const float *dy)
{
	struct net *n = &((struct student *)m)->net;

	(void)x;
	memcpy(n->answer, dy, BATCH * CLASSES * sizeof(float));
	return net_backward(n);
}

int largest_of(const float *y, int n)
{
	int best = 0;

	for (int i = 1; i < n; i++) {
		if (y[i] > y[best])
			best = i;
	}
	return best;
}

static bool is_right(const float *y, const float *t, int outputs)
{
	return largest_of(y, outputs) == largest_of(t, outputs);
}

/* Cross entropy in nats, and its gradient softmax(y) - t */
static double cross_entropy(const float *y, const float *t, int outputs, float *dy)
{
	const double top = (double)y[largest_of(y, outputs)];
	const double want = (double)y[largest_of(t, outputs)];
	double sum = 0;

	for (int i = 0; i < outputs; i++)
		sum += exp((double)y[i] - top);
	for (int i = 0; i < outputs && dy; i++)
		dy[i] = (float)(exp((double)y[i] - top) / sum - (double)t[i]);
	return log(sum) + top - want;
}

/* The one of eight directions in which the ground is lowest */
static void describe(const struct ground *g, int64_t i, int64_t j, float *x, float *t)
{
	describe_around(g, i, j, 1, POINTS, x);
	memset(t, 0, CLASSES * sizeof(*t));
	t[lowest_direction(g, i, j)] = 1;
}

static int make_student(struct student *s, hz_context *ctx)
{
	struct weights *w;
	uint64_t seed = SEED;
	int status;

	s->m = (struct model){
		.name = "the network", .inputs = INPUTS, .outputs = CLASSES, .batch = BATCH,
		.forward = answer, .backward = learn, .loss = cross_entropy, .right = is_right,
		.rate = 0.004, .decay = true, .epochs = 40, .shown = 8,
	};
	if (!make_parameters(&s->m, WEIGHTS))
		return HZ_ENOMEM;
	w = (struct weights *)s->m.value;
	status = make_net(&s->net, ctx, BATCH, w, (struct weights *)s->m.gradient);
	for (int k = 0; k < MATRICES && !status; k++) {
		const struct shape shape = shape_of(k);
		hz_tensor q = matrix(&s->net, w, k);
		/* Branches begin small, so that depth does not impede training. */
		const double scale = hz_quat_init_scale(shape.columns, shape.rows) *
				     (k > 0 && k % 2 == 0 ? 0.5 : 1);

		status = hz_quat_init(ctx, &q, HZ_QUAT_POLAR, scale, seed++, 0, 0);
	}
	for (int l = 0; l < LAYERS && !status; l++) {
		hz_mhc_layer *layer = &s->net.layer[l];

		status = hz_mhc_init(ctx, HZ_MHC_INIT_IDENTITY, l, seed++, &layer->phi,
				     &layer->alpha, &layer->bias, &layer->opts);
		for (int c = 0; c < CHANNELS; c++)
			w->layer[l].norm[c] = 1;
	}
	if (!status) {
		hz_tensor phi = view(&s->net, w->phi, STREAMS, STREAMS * CHANNELS);
		hz_tensor alpha = vector(&s->net, w->alpha, 1);
		hz_tensor bias = vector(&s->net, w->bias, STREAMS);

		status = hz_mhc_init(ctx, HZ_MHC_INIT_IDENTITY, 0, seed, &phi, &alpha, &bias,
				     NULL);
	}
	return status;
}

/* ---- The story ------------------------------------------------------------------------------- */

/* HNLQ: E8; each nesting level is a digit of log2 q bits per weight */
static struct form forms[] = {
	{.name = "f32"},
	{.name = "8 bits", .levels = 1},
	{.name = "8 bits, rotated", .levels = 1, .rotate = true},
	{.name = "HNLQ 4", .q = 4, .levels = 2},
	{.name = "HNLQ 4, rotated", .q = 4, .levels = 2, .rotate = true},
	{.name = "HNLQ 3", .q = 8, .levels = 1},
	{.name = "HNLQ 3, rotated", .q = 8, .levels = 1, .rotate = true},
	{.name = "HNLQ 2", .q = 4, .levels = 1},
	{.name = "HNLQ 2, rotated", .q = 4, .levels = 1, .rotate = true},
};

#define FORMS ((int)(sizeof(forms) / sizeof(*forms)))

static void show_point(const struct model *m)
{
	const int at = m->points - 1;

	if (at == 0)
		printf("  %-10s%14s%14s%14s%12s\n", "epochs", "training", "test", "right in test",
		       "seconds");
	printf("  %-10d%14.4f%14.4f%13.1f%%%12.1f\n", at * m->shown, m->train[at], m->test[at],
	       100 * m->correct[at], m->seconds);
}

/* Trains on the CPU with the plain C kernels, so that every machine gets the same network. */
static int train_story(struct student *s, const struct places *train, const struct places *test,
		       bool quick)
{
	hz_context *ctx;
	int status = open_context(&ctx, HZ_CPU, 0, HZ_ISA_C);

	if (status)
		return status;
	printf("Of 16 places around a middle a network knows the height above it and the normal\n"
	       "of the ground, 16 quaternions, and learns in which of eight directions the\n"
	       "ground is lowest 80 m away, outside of what it sees. %d layers, each a perceptron\n"
	       "of quaternions (%s) in four residual streams (%s), are trained on\n"
	       "the CPU, by kernels that are the same everywhere: with %lld places, %d at a time;\n"
	       "every fourth place, %lld in all, is kept for the test. Losses are cross "
	       "entropies.\n\n",
	       LAYERS, name_of("quat_linear"), name_of("mhc_layer"), (long long)train->count,
	       BATCH, (long long)test->count);
	status = make_student(s, ctx);
	if (quick) {
		s->m.epochs = 3;
		s->m.shown = 1;
	}
	s->m.show = show_point;
	if (!status)
		status = train_model(&s->m, train, test);
	status = demo_status(ctx, status);
	free_net(&s->net);
	hz_close(ctx);
	return status;
}

static int ask(hz_context *ctx, struct weights *trained, const struct places *test, float *f32,
	       bool first, bool gpu)
{
	int status = HZ_OK;

	for (int i = 0; i < FORMS && !status; i++) {
		progress("demo: asking %s on the %s", forms[i].name, gpu ? "GPU" : "CPU");
		status = measure_form(&forms[i], ctx, trained, test, f32, first && i == 0,
				      gpu ? &forms[i].gpu : &forms[i].cpu);
	}
	progress_clear();
	return demo_status(ctx, status);
}

static void print_outcome(const struct outcome *o, int64_t places)
{
	printf("%8.1f%%%7.1f%%%8.2f", 100 * o->right, 100 * o->same,
	       o->seconds * 1e6 / (double)places);
}

static void print_forms(const struct demo *d, const struct places *test)
{
	hz_context *const devices[] = {d->cpu, d->gpu};

	printf("\nThe same network, its %d matrices of quaternions in fewer bits: integers with a\n"
	       "scale for each row (%s), or points of the lattice E8, hierarchically nested,\n"
	       "with a scale for each 32 weights (%s, %s), as they are or\n"
	       "rotated before (%s).\n\n"
	       "bits: of a weight, with scales; kB: in memory, where 3 bits take 4; SNR: the\n"
	       "signal to noise ratio of the weights in dB; right in the test; as f32: the same\n"
	       "answer as in f32; us: the time of a place, all %lld of the test in one batch.\n"
	       "The %.0f kB of weights of the connections are f32 throughout. Matrices this small\n"
	       "are not faster in fewer bits; 'hurwitz bench' has large ones.\n\n",
	       MATRICES, name_of("qlinear"), name_of("lattice_encode"), name_of("vlut_gemm"),
	       name_of("hadamard"), (long long)test->count,
	       ((double)sizeof(struct weights) - matrix_bytes()) / 1000);
	for (int k = 0; k < 2; k++) {
		if (devices[k])
			print_device(devices[k]);
	}
	printf("\n  %-16s%6s%8s%7s", "", "", "", "");
	for (int k = 0; k < 2; k++) {
		if (devices[k])
			printf("%25s", k ? "on the GPU" : "on the CPU");
	}
	printf("\n  %-16s%6s%8s%7s", "matrices", "bits", "kB", "SNR");
	for (int k = 0; k < 2; k++) {
		if (devices[k])
			printf("%9s%8s%8s", "right", "as f32", "us");
	}
	printf("\n");
	for (int i = 0; i < FORMS; i++) {
		const struct form *f = &forms[i];
		char noise[16] = "-";

		if (f->levels)
			snprintf(noise, sizeof(noise), "%.1f", f->noise);
		printf("  %-16s%6.2f%8.1f%7s", f->name, f->bits, f->kilobytes, noise);
		if (d->cpu)
			print_outcome(&f->cpu, test->count);
		if (d->gpu)
			print_outcome(&f->gpu, test->count);
		printf("\n");
	}
}

static int plot_story(const struct demo *d, const struct student *s)
{
	const struct plot p = {
		.training = &s->m, .forms = forms, .count = FORMS, .cpu = d->cpu, .gpu = d->gpu,
	};
	int status;

	if (!d->gnuplot) {
		printf("\nNo picture: gnuplot is not installed\n");
		return 0;
	}
	status = draw_plot(&p, d->plot, output_fd(0));
	if (!status)
		status = output_close(0, d->plot);
	if (!status)
		status = outputs_finish();
	if (!status)
		printf("\nThe picture: %s\n", d->plot);
	return status;
}

int tell_story(const struct demo *d, const struct ground *g)
{
	struct places train = {.count = 0}, test = {.count = 0};
	struct student s = {.m = {.value = NULL}};
	float *f32 = NULL;
	int status = 0;

	if (make_places(&train, &test, g, AWAY, INPUTS, CLASSES, describe, SEED))
		f32 = allocate((size_t)(test.count * CLASSES) * sizeof(float));
	if (!f32)
		status = complain(EXIT_FAILURE, "demo: there is not enough memory");
	if (!status)
		status = train_story(&s, &train, &test, d->quick);
	if (!status && d->cpu)
		status = ask(d->cpu, (struct weights *)s.m.value, &test, f32, true, false);
	if (!status && d->gpu)
		status = ask(d->gpu, (struct weights *)s.m.value, &test, f32, !d->cpu, true);
	if (!status)
		print_forms(d, &test);
	if (!status && d->no_gpu)
		printf("\nNo GPU is shown:\n  %s\n", d->no_gpu);
	if (!status && d->plot)
		status = plot_story(d, &s);
	free(s.m.value);
	free(f32);
	free_places(&train);
	free_places(&test);
	return status;
}
