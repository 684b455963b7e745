/*
 * mhc.c - hurwitz demo of hyper-connections: deep residual networks of four streams, trained
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * From the heights of 64 points around a place, a network learns those of four points 70 m away.
 * LAYERS branches of CHANNELS, each w2 silu(w1 u), work on four residual streams, which are mixed
 * by matrices that are either made doubly stochastic or left to the training. Adam trains both
 * networks from the same branches, with matrices near the identity. The branches are plain loops on
 * the CPU; the library does everything else.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/demo.h"

#define INPUTS 64		/* 8 x 8, 10 m apart */
#define OUTPUTS 4
#define FAR 7			/* grid points from the middle to each target */
#define STREAMS 4
#define CHANNELS 32
#define HIDDEN 16
#define LAYERS 16
#define BATCH 64
#define EPOCHS 6
#define SHOWN 1			/* epochs per line of output */
#define RATE 0.006
#define ROWS_MAX 24

/* Heights of 8 x 8 points relative to the middle, and of the four targets */
static void describe(const struct ground *g, int64_t i, int64_t j, float *x, float *t)
{
	static const int outside[OUTPUTS][2] = {{FAR, 0}, {-FAR, 0}, {0, FAR}, {0, -FAR}};
	const float middle = height(g, i, j);

	for (int k = 0; k < INPUTS; k++)
		x[k] = (height(g, i + k / 8 - 4, j + k % 8 - 4) - middle) / METRES;
	for (int k = 0; k < OUTPUTS; k++)
		t[k] = (height(g, i + outside[k][0], j + outside[k][1]) - middle) / METRES;
}

/* ---- Matrices on the host -------------------------------------------------------------------- */

/* y [rows][m] = x [rows][k] w [k][m] */
static void multiply(const float *x, const float *w, int64_t rows, int k, int m, float *y)
{
	for (int64_t i = 0; i < rows; i++) {
		memset(y + i * m, 0, (size_t)m * sizeof(*y));
		for (int j = 0; j < k; j++) {
			for (int l = 0; l < m; l++)
				y[i * m + l] += x[i * k + j] * w[j * m + l];
		}
	}
}

/* dw += x^T dy, and dx = dy w^T if it is not NULL */
static void multiply_bwd(const float *x, const float *w, const float *dy, int64_t rows, int k,
			 int m, float *dx, float *dw)
{
	for (int64_t i = 0; i < rows; i++) {
		for (int j = 0; j < k; j++) {
			float sum = 0;

			for (int l = 0; l < m; l++) {
				dw[j * m + l] += x[i * k + j] * dy[i * m + l];
				sum += dy[i * m + l] * w[j * m + l];
			}
			if (dx)
				dx[i * k + j] = sum;
		}
	}
}

static float silu(float v)
{
	return v / (1 + expf(-v));
}

static float silu_slope(float v)
{
	const float s = 1 / (1 + expf(-v));

	return s + v * s * (1 - s);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

/* Parameters that the library uses, on its device; each begins at a multiple of 64 bytes. */
struct connections {
	struct {
		float phi[ROWS_MAX * STREAMS * CHANNELS], bias[32], alpha[16];
	} layer[LAYERS];
	float phi[STREAMS * STREAMS * CHANNELS], bias[16], alpha[16];	/* of the head */
};

struct parameters {
	struct connections mhc;
	struct {
		float w1[CHANNELS * HIDDEN], w2[HIDDEN * CHANNELS];
	} branch[LAYERS];
	float in[INPUTS * CHANNELS], out[CHANNELS * OUTPUTS];
};

#define FLOATS(type) ((int64_t)(sizeof(type) / sizeof(float)))

static void fill_normal(float *w, int count, double scale, uint64_t *random)
{
	for (int i = 0; i < count; i++)
		w[i] = (float)scale * random_normal(random);
}

/* ---- The network ----------------------------------------------------------------------------- */

#define BRANCH_SIZE ((int64_t)BATCH * CHANNELS)
#define STREAM_SIZE (STREAMS * BRANCH_SIZE)
#define HIDDEN_SIZE ((int64_t)BATCH * HIDDEN)

/* Arrays of a batch on the device */
struct arrays {
	float x[LAYERS + 1][STREAM_SIZE], dx[2][STREAM_SIZE];
	float f[LAYERS][BRANCH_SIZE], u[BRANCH_SIZE], du[BRANCH_SIZE], df[BRANCH_SIZE];
	float ends[BRANCH_SIZE];	/* embeddings, output of the head; gradients */
	float gains[BATCH][4];
	struct connections value, gradient;
};

/* Arrays on the host, where the branches and both ends of the network are computed */
struct host {
	float u[LAYERS][BRANCH_SIZE], pre[LAYERS][HIDDEN_SIZE], hidden[HIDDEN_SIZE];
	float input[BATCH * INPUTS], h[BRANCH_SIZE], work[BRANCH_SIZE];
	float answer[BATCH * OUTPUTS];
};

struct network {
	struct model m;
	const char *name;
	hz_mhc_opts opts;
	hz_context *ctx;
	struct host *host;
	struct arrays *on;
	float *kept;			/* per layer, kept_floats each */
	int64_t kept_floats;
	hz_mhc_layer layer[LAYERS];
	struct parameters *value, *gradient;	/* those of m */
	double gain;
};

static hz_tensor streams(struct network *n, float *at)
{
	return hz_tensor_3d(at, HZ_F32, hz_device(n->ctx), BATCH, STREAMS, CHANNELS);
}

static hz_tensor branch(struct network *n, float *at)
{
	return hz_tensor_2d(at, HZ_F32, hz_device(n->ctx), BATCH, CHANNELS);
}

static hz_tensor vector(struct network *n, float *at, int64_t count)
{
	return hz_tensor_1d(at, HZ_F32, hz_device(n->ctx), count);
}

static hz_tensor phi_rows(struct network *n, float *at, int64_t count)
{
	return hz_tensor_2d(at, HZ_F32, hz_device(n->ctx), count, STREAMS * CHANNELS);
}

/* Copies between host and device; on the CPU, too, both kinds of arrays exist. */
static int copy_in(struct network *n, const float *from, float *to, int64_t count)
{
	const hz_tensor host = hz_tensor_1d((void *)(uintptr_t)from, HZ_F32, HZ_CPU, count);
	hz_tensor there = vector(n, to, count);

	return hz_copy(n->ctx, &host, &there);
}

static int copy_out(struct network *n, float *from, float *to, int64_t count)
{
	hz_tensor host = hz_tensor_1d(to, HZ_F32, HZ_CPU, count);
	const hz_tensor there = vector(n, from, count);
	const int status = hz_copy(n->ctx, &there, &host);

	return status ? status : hz_sync(n->ctx);
}

/* f = w2 silu(w1 u) of layer l; keeps the argument of silu. */
static int branch_forward(struct network *n, int l)
{
	struct host *h = n->host;
	const int status = copy_out(n, n->on->u, h->u[l], BRANCH_SIZE);

	if (status)
		return status;
	multiply(h->u[l], n->value->branch[l].w1, BATCH, CHANNELS, HIDDEN, h->pre[l]);
	for (int i = 0; i < HIDDEN_SIZE; i++)
		h->hidden[i] = silu(h->pre[l][i]);
	multiply(h->hidden, n->value->branch[l].w2, BATCH, HIDDEN, CHANNELS, h->work);
	return copy_in(n, h->work, n->on->f[l], BRANCH_SIZE);
}

static int branch_backward(struct network *n, int l)
{
	struct host *h = n->host;
	float dhidden[HIDDEN_SIZE];
	const int status = copy_out(n, n->on->df, h->work, BRANCH_SIZE);

	if (status)
		return status;
	for (int i = 0; i < HIDDEN_SIZE; i++)
		h->hidden[i] = silu(h->pre[l][i]);
	multiply_bwd(h->hidden, n->value->branch[l].w2, h->work, BATCH, HIDDEN, CHANNELS, dhidden,
		     n->gradient->branch[l].w2);
	for (int i = 0; i < HIDDEN_SIZE; i++)
		dhidden[i] *= silu_slope(h->pre[l][i]);
	multiply_bwd(h->u[l], n->value->branch[l].w1, dhidden, BATCH, CHANNELS, HIDDEN, h->work,
		     n->gradient->branch[l].w1);
	return copy_in(n, h->work, n->on->du, BRANCH_SIZE);
}

/* Computes the answers for the inputs of a batch. */
static int forward(struct network *n)
{
	struct host *h = n->host;
	struct arrays *on = n->on;
	hz_tensor ends = branch(n, on->ends), first = streams(n, on->x[0]), u = branch(n, on->u);
	const hz_tensor last = streams(n, on->x[LAYERS]);
	const hz_tensor phi = phi_rows(n, on->value.phi, STREAMS);
	const hz_tensor alpha = vector(n, on->value.alpha, 1);
	const hz_tensor bias = vector(n, on->value.bias, STREAMS);
	int status = copy_in(n, (float *)&n->value->mhc, (float *)&on->value,
			     FLOATS(struct connections));

	multiply(h->input, n->value->in, BATCH, INPUTS, CHANNELS, h->work);
	if (!status)
		status = copy_in(n, h->work, on->ends, BRANCH_SIZE);
	if (!status)
		status = hz_mhc_expand(n->ctx, &ends, &first);
	for (int l = 0; l < LAYERS && !status; l++) {
		const hz_tensor x = streams(n, on->x[l]), f = branch(n, on->f[l]);
		hz_tensor y = streams(n, on->x[l + 1]);

		status = hz_mhc_layer_begin(n->ctx, &n->layer[l], &x, &u);
		if (!status)
			status = branch_forward(n, l);
		if (!status)
			status = hz_mhc_layer_end(n->ctx, &n->layer[l], &x, &f, &y);
	}
	if (!status)
		status = hz_mhc_head(n->ctx, &last, &phi, &alpha, &bias, NULL, &ends, NULL);
	if (!status)
		status = copy_out(n, on->ends, h->h, BRANCH_SIZE);
	multiply(h->h, n->value->out, BATCH, CHANNELS, OUTPUTS, h->answer);
	return status;
}

/* Computes all gradients from that of the answers, which it overwrites. */
static int backward(struct network *n)
{
	struct host *h = n->host;
	struct arrays *on = n->on;
	hz_tensor ends = branch(n, on->ends), df = branch(n, on->df);
	const hz_tensor last = streams(n, on->x[LAYERS]), du = branch(n, on->du);
	const hz_tensor phi = phi_rows(n, on->value.phi, STREAMS);
	const hz_tensor alpha = vector(n, on->value.alpha, 1);
	const hz_tensor bias = vector(n, on->value.bias, STREAMS);
	hz_tensor dphi = phi_rows(n, on->gradient.phi, STREAMS);
	hz_tensor dalpha = vector(n, on->gradient.alpha, 1);
	hz_tensor dbias = vector(n, on->gradient.bias, STREAMS);
	hz_tensor dy = streams(n, on->dx[0]), dx = streams(n, on->dx[1]);
	const hz_mhc_grads grads = {.du = &ends, .dx = &dy, .dphi = &dphi, .dalpha = &dalpha,
				    .dbias = &dbias};
	int status;

	memset(n->gradient, 0, sizeof(*n->gradient));
	multiply_bwd(h->h, n->value->out, h->answer, BATCH, CHANNELS, OUTPUTS, h->work,
		     n->gradient->out);
	status = copy_in(n, h->work, on->ends, BRANCH_SIZE);
	if (!status)
		status = hz_mhc_head_bwd(n->ctx, &last, &phi, &alpha, &bias, &grads, NULL);
	for (int l = LAYERS - 1; l >= 0 && !status; l--) {
		const hz_tensor x = streams(n, on->x[l]), f = branch(n, on->f[l]), swap = dy;

		status = hz_mhc_layer_end_bwd(n->ctx, &n->layer[l], &f, &dy, &df);
		if (!status)
			status = branch_backward(n, l);
		if (!status)
			status = hz_mhc_layer_begin_bwd(n->ctx, &n->layer[l], &x, &dy, &du, &dx);
		dy = dx;
		dx = swap;
	}
	if (!status)
		status = hz_mhc_expand_bwd(n->ctx, &dy, &ends);
	if (!status)
		status = copy_out(n, on->ends, h->work, BRANCH_SIZE);
	if (!status)
		status = copy_out(n, (float *)&on->gradient, (float *)&n->gradient->mhc,
				  FLOATS(struct connections));
	multiply_bwd(h->input, n->value->in, h->work, BATCH, INPUTS, CHANNELS, NULL,
		     n->gradient->in);
	return status;
}

static int answer(struct model *m, const float *x, int64_t count, float *y)
{
	struct network *n = (struct network *)m;
	struct host *h = n->host;
	int status;

	memset(h->input, 0, sizeof(h->input));
	memcpy(h->input, x, (size_t)(count * INPUTS) * sizeof(float));
	status = forward(n);
	memcpy(y, h->answer, (size_t)(count * OUTPUTS) * sizeof(float));
	return status;
}

static int learn(struct model *m, const float *x, const float *dy)
{
	struct network *n = (struct network *)m;

	(void)x;
	memcpy(n->host->answer, dy, sizeof(n->host->answer));
	return backward(n);
}

/* ---- Making the network ---------------------------------------------------------------------- */

/* Reserves the workspace of the calls of forward() and backward(). */
static int reserve(struct network *n)
{
	struct arrays *on = n->on;
	const hz_tensor x = streams(n, on->x[0]), f = branch(n, on->f[0]), dy = x;
	const hz_tensor phi = phi_rows(n, on->value.phi, STREAMS);
	const hz_tensor alpha = vector(n, on->value.alpha, 1);
	const hz_tensor bias = vector(n, on->value.bias, STREAMS);
	hz_tensor u = branch(n, on->u), df = branch(n, on->df), dx = streams(n, on->dx[0]);
	hz_tensor dphi = phi_rows(n, on->gradient.phi, STREAMS);
	hz_tensor dalpha = vector(n, on->gradient.alpha, 1);
	hz_tensor dbias = vector(n, on->gradient.bias, STREAMS);
	const hz_mhc_grads grads = {.du = &f, .dx = &dx, .dphi = &dphi, .dalpha = &dalpha,
				    .dbias = &dbias};
	size_t bytes = 0;
	int status = hz_record_begin(n->ctx);

	if (status)
		return status;
	status = hz_mhc_layer_begin(n->ctx, &n->layer[0], &x, &u);
	if (!status)
		status = hz_mhc_head(n->ctx, &x, &phi, &alpha, &bias, NULL, &u, NULL);
	if (!status)
		status = hz_mhc_head_bwd(n->ctx, &x, &phi, &alpha, &bias, &grads, NULL);
	if (!status)
		status = hz_mhc_layer_end_bwd(n->ctx, &n->layer[0], &f, &dy, &df);
	if (!status)
		status = hz_mhc_layer_begin_bwd(n->ctx, &n->layer[0], &x, &dy, &f, &dx);
	hz_record_end(n->ctx, &bytes);
	return status ? status : hz_reserve(n->ctx, bytes);
}

static int make_layers(struct network *n)
{
	struct arrays *on = n->on;
	const int m = hz_mhc_rows(STREAMS, &n->opts);
	hz_tensor phi = phi_rows(n, on->value.phi, STREAMS);
	hz_tensor alpha = vector(n, on->value.alpha, 1), bias = vector(n, on->value.bias, STREAMS);
	size_t bytes = 0;
	int status = hz_mhc_init(n->ctx, HZ_MHC_INIT_IDENTITY, 0, LAYERS, &phi, &alpha, &bias,
				 NULL);

	for (int l = 0; l < LAYERS && !status; l++) {
		hz_mhc_layer *to = &n->layer[l];

		to->opts = n->opts;
		to->phi = phi_rows(n, on->value.layer[l].phi, m);
		to->alpha = vector(n, on->value.layer[l].alpha, 3);
		to->bias = vector(n, on->value.layer[l].bias, m);
		to->dphi = phi_rows(n, on->gradient.layer[l].phi, m);
		to->dalpha = vector(n, on->gradient.layer[l].alpha, 3);
		to->dbias = vector(n, on->gradient.layer[l].bias, m);
		status = hz_mhc_init(n->ctx, HZ_MHC_INIT_IDENTITY, l, (uint64_t)l, &to->phi,
				     &to->alpha, &to->bias, &n->opts);
		if (!status && l == 0) {
			status = hz_mhc_layer_bind(n->ctx, to, STREAMS, BATCH, NULL, &bytes);
			n->kept_floats = (int64_t)(bytes / sizeof(float));
			if (!status)
				status = hz_alloc(n->ctx, (void **)&n->kept, LAYERS * bytes,
						  hz_device(n->ctx));
		}
		if (!status)
			status = hz_mhc_layer_bind(n->ctx, to, STREAMS, BATCH,
						   n->kept + l * n->kept_floats, NULL);
	}
	return status ? status : reserve(n);
}

static int make_network(struct network *n, hz_context *ctx)
{
	uint64_t random = 7;
	int status;

	n->ctx = ctx;
	n->m = (struct model){
		.name = n->name, .inputs = INPUTS, .outputs = OUTPUTS, .batch = BATCH,
		.forward = answer, .backward = learn, .loss = squared_error, .rate = RATE,
		.epochs = EPOCHS, .shown = SHOWN,
	};
	n->host = allocate(sizeof(*n->host));
	if (!n->host || !make_parameters(&n->m, FLOATS(struct parameters)))
		return HZ_ENOMEM;
	n->value = (struct parameters *)n->m.value;
	n->gradient = (struct parameters *)n->m.gradient;
	status = hz_alloc(ctx, (void **)&n->on, sizeof(*n->on), hz_device(ctx));
	/* Elements without an initial value stay 0. */
	if (!status)
		status = copy_in(n, (float *)&n->value->mhc, (float *)&n->on->value,
				 FLOATS(struct connections));
	if (!status)
		status = copy_in(n, (float *)&n->value->mhc, (float *)&n->on->gradient,
				 FLOATS(struct connections));
	if (!status)
		status = make_layers(n);
	if (!status)
		status = copy_out(n, (float *)&n->on->value, (float *)&n->value->mhc,
				  FLOATS(struct connections));
	for (int l = 0; l < LAYERS; l++) {
		fill_normal(n->value->branch[l].w1, CHANNELS * HIDDEN, sqrt(2.0 / CHANNELS),
			    &random);
		fill_normal(n->value->branch[l].w2, HIDDEN * CHANNELS, sqrt(0.1 / HIDDEN), &random);
	}
	fill_normal(n->value->in, INPUTS * CHANNELS, sqrt(1.0 / INPUTS), &random);
	fill_normal(n->value->out, CHANNELS * OUTPUTS, sqrt(0.1 / CHANNELS), &random);
	return status;
}

static void free_network(struct network *n)
{
	if (n->on)
		hz_free(n->ctx, n->on, hz_device(n->ctx));
	if (n->kept)
		hz_free(n->ctx, n->kept, hz_device(n->ctx));
	free(n->host);
	free(n->m.value);
	n->m.value = n->m.gradient = NULL;
}

/* ---- The chapter ----------------------------------------------------------------------------- */

/* The mean over a batch of the gain of the product of all matrices */
static int measure_gain(struct network *n, const struct places *p)
{
	hz_tensor all = hz_tensor_4d(n->layer[0].a.data, HZ_F32, hz_device(n->ctx), LAYERS, BATCH,
				     STREAMS, STREAMS);
	hz_tensor out = hz_tensor_2d(n->on->gains, HZ_F32, hz_device(n->ctx), BATCH, 4);
	float gains[BATCH][4], y[BATCH * OUTPUTS];
	int status = answer(&n->m, p->x, BATCH, y);

	all.stride[0] = n->kept_floats;
	if (!status)
		status = hz_mhc_diagnose(n->ctx, &all, &out);
	if (!status)
		status = copy_out(n, n->on->gains[0], gains[0], BATCH * 4);
	n->gain = 0;
	for (int i = 0; i < BATCH && !status; i++)
		n->gain += fmax((double)gains[i][2], (double)gains[i][3]) / BATCH;
	return status;
}

#define NETWORKS 2

static void show_curves(const struct network *n)
{
	printf("  %-12s", "");
	for (int k = 0; k < NETWORKS; k++)
		printf("%22s", n[k].name);
	printf("\n  %-12s", "epochs");
	for (int k = 0; k < NETWORKS; k++)
		printf("%11s%11s", "training", "test");
	for (int i = 0; i <= EPOCHS / SHOWN; i++) {
		printf("\n  %-12d", i * SHOWN);
		for (int k = 0; k < NETWORKS; k++)
			printf("%11.4f%11.4f", n[k].m.train[i], n[k].m.test[i]);
	}
	printf("\n  %-12s", "gain");
	for (int k = 0; k < NETWORKS; k++)
		printf("%22.4g", n[k].gain);
	printf("\n  %-12s", "seconds");
	for (int k = 0; k < NETWORKS; k++)
		printf("%22.2f", n[k].m.seconds);
	printf("\n");
}

int demo_mhc(hz_context *ctx, const struct ground *g)
{
	struct places training, test;
	struct network n[NETWORKS] = {
		{.name = "doubly stochastic", .opts = {.preset = HZ_MHC_PRESET_DEEPSEEK_V4}},
		{.name = "unconstrained", .opts = {.preset = HZ_MHC_PRESET_HC}},
	};
	int status = HZ_OK;

	if (!make_places(&training, &test, g, FAR, INPUTS, OUTPUTS, describe, 5))
		status = HZ_ENOMEM;
	printf("%s in training: from 64 heights around a middle two networks of\n"
	       "%d layers in %d residual streams learn the heights of four places 70 m away. The\n"
	       "matrices that mix the streams are made doubly stochastic, or are as the training\n"
	       "wants them. The mean of the squared error over %lld places for training and %lld\n"
	       "for the test; gain: how much the product of all matrices enlarges a signal, 1 if\n"
	       "they are doubly stochastic.\n\n",
	       name_of("mhc_layer"), LAYERS, STREAMS, (long long)training.count,
	       (long long)test.count);
	for (int k = 0; k < NETWORKS && !status; k++) {
		status = make_network(&n[k], ctx);
		if (!status)
			status = train_model(&n[k].m, &training, &test);
		if (!status)
			status = measure_gain(&n[k], &training);
		free_network(&n[k]);
	}
	if (!status)
		show_curves(n);
	free_places(&training);
	free_places(&test);
	return demo_status(ctx, status);
}

/* ---- The part of the story ------------------------------------------------------------------- */

#define DEPTH 64
#define CHAINS 64		/* the mean of so many is shown */
#define NOISE 0.25		/* standard deviation of the matrices around the identity */

/* The mean gain of the product of the first `depth` of the matrices of each chain */
static int gain_of(hz_context *ctx, const hz_tensor *matrices, int64_t depth, hz_tensor *on_gain,
		   double *gain)
{
	const hz_tensor some = hz_view_slice(matrices, 0, 0, depth);
	float of[CHAINS][4];
	hz_tensor host = hz_tensor_2d(of, HZ_F32, HZ_CPU, CHAINS, 4);
	int status = WITH_WORKSPACE(ctx, hz_mhc_diagnose(ctx, &some, on_gain));

	if (!status)
		status = hz_copy(ctx, on_gain, &host);
	if (!status)
		status = hz_sync(ctx);
	*gain = 0;
	for (int i = 0; i < CHAINS && !status; i++)
		*gain += fmax((double)of[i][2], (double)of[i][3]) / CHAINS;
	return status;
}

/* Random matrices near the identity, as they are and made doubly stochastic */
int demo_depth(hz_context *ctx)
{
	static float values[DEPTH * CHAINS * STREAMS * STREAMS], made[sizeof(values) / 4];
	static float gains[CHAINS * 4];
	const hz_tensor host = hz_tensor_4d(values, HZ_F32, HZ_CPU, DEPTH, CHAINS, STREAMS,
					    STREAMS);
	hz_tensor host_made = host;
	const hz_tensor host_gain = hz_tensor_2d(gains, HZ_F32, HZ_CPU, CHAINS, 4);
	hz_tensor free_ones = {.data = NULL}, even = {.data = NULL}, gain = {.data = NULL};
	uint64_t random = 9;
	int status;

	host_made.data = made;
	for (int64_t i = 0; i < DEPTH * CHAINS * STREAMS * STREAMS; i++)
		values[i] = (i % (STREAMS * STREAMS) % (STREAMS + 1) ? 0 : 1) +
			    (float)NOISE * random_normal(&random);
	status = to_device(ctx, &host, true, &free_ones);
	if (!status)
		status = to_device(ctx, &host_made, false, &even);
	if (!status)
		status = to_device(ctx, &host_gain, false, &gain);
	if (!status)
		status = WITH_WORKSPACE(ctx, hz_mhc_sinkhorn(ctx, &free_ones, &even, NULL));
	printf("Hyper-connections: matrices mix %d residual streams after each layer. Here they\n"
	       "are random, near the identity. As they are, a deep network enlarges its signals\n"
	       "without bound; made doubly stochastic (%s) they never do. Gain: how\n"
	       "much the product of all matrices enlarges a signal at most.\n\n"
	       "  %-10s%16s%20s\n", STREAMS, name_of("mhc_sinkhorn"), "layers", "unconstrained",
	       "doubly stochastic");
	for (int64_t depth = 1; depth <= DEPTH && !status; depth *= 4) {
		double as_is, bounded;

		status = gain_of(ctx, &free_ones, depth, &gain, &as_is);
		if (!status)
			status = gain_of(ctx, &even, depth, &gain, &bounded);
		if (!status)
			printf("  %-10lld%16.1f%20.3f\n", (long long)depth, as_is, bounded);
	}
	free_device(ctx, &free_ones);
	free_device(ctx, &even);
	free_device(ctx, &gain);
	return demo_status(ctx, status);
}
