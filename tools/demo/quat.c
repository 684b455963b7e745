/*
 * quat.c - hurwitz demo of quaternion layers: a network trained, compared with one of real numbers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each of sixteen points around a place has a height and the normal of the ground: four numbers
 * that belong together, w and x y z of a quaternion. From these, two networks learn the same four
 * numbers of a point outside, 70 m from the middle: one with 16 quaternions, HIDDEN, 1, and one
 * with 64 real numbers, 4 HIDDEN, 4, which has four times as many weights, or HIDDEN in the middle,
 * which has as many. Adam trains both in batches on three quarters of the places; the rest are the
 * test.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/demo.h"

#define HIDDEN 16
#define FAR 7			/* grid points from the middle to the target */
#define BATCH 128
#define EPOCHS 32
#define SHOWN 4			/* epochs per line of the curve */
#define RATE 0.003

static void describe(const struct ground *g, int64_t i, int64_t j, float *x, float *t)
{
	describe_around(g, i, j, 4, 1, x);
	describe_point(g, i + FAR, j, height(g, i, j), 1, t);
}

/* ---- The networks ---------------------------------------------------------------------------- */

/* y = w2 silu(w1 x + b1) + b2, of quaternions or of real numbers */
struct network {
	struct model m;			/* parameters: w1 b1 w2 b2 */
	int64_t w1, b1, w2, b2;		/* sizes, in numbers */
	/* quaternions */
	hz_context *ctx;
	hz_tensor on[4], to[4];		/* parameters and gradients on the device */
	hz_tensor x, pre, h, dh, y;
	hz_quat_linear_opts hidden;
	/* real numbers */
	int units;			/* in the hidden layer, at most UNITS */
	float *buffer;			/* [2][BATCH][units] */
};

static float *part(struct network *n, float *of, int which)
{
	const int64_t at[4] = {0, n->w1, n->w1 + n->b1, n->w1 + n->b1 + n->w2};

	return of + at[which];
}

static void make_model(struct network *n, const char *name)
{
	n->m.name = name;
	n->m.inputs = 4 * POINTS;
	n->m.outputs = 4;
	n->m.batch = BATCH;
	n->m.loss = squared_error;
	n->m.rate = RATE;
	n->m.epochs = EPOCHS;
	n->m.shown = SHOWN;
}

/* ---- Of quaternions -------------------------------------------------------------------------- */

/* A host array as a view with the shape of a device array */
static hz_tensor host_of(const hz_tensor *on, const float *data)
{
	hz_tensor host = *on;

	host.data = (void *)(uintptr_t)data;
	host.device = HZ_CPU;
	return host;
}

static hz_tensor rows_of(const hz_tensor *t, int64_t count)
{
	hz_tensor v = *t;

	v.shape[0] = count;
	return v;
}

/* Copies between host and device; on the CPU, too, both kinds of arrays exist. */
static int copy_in(struct network *n, const float *data, hz_tensor *on)
{
	const hz_tensor host = host_of(on, data);

	return hz_copy(n->ctx, &host, on);
}

static int copy_out(struct network *n, const hz_tensor *on, float *data)
{
	hz_tensor host = host_of(on, data);
	const int status = hz_copy(n->ctx, on, &host);

	return status ? status : hz_sync(n->ctx);
}

static int quaternion_forward(struct model *m, const float *x, int64_t count, float *y)
{
	struct network *n = (struct network *)m;
	hz_tensor vx = rows_of(&n->x, count), h = rows_of(&n->h, count);
	hz_tensor vy = rows_of(&n->y, count), pre = rows_of(&n->pre, count);
	hz_quat_linear_opts o = n->hidden;
	int status = copy_in(n, x, &vx);

	o.pre = &pre;
	for (int k = 0; k < 4 && !status; k++)
		status = copy_in(n, part(n, n->m.value, k), &n->on[k]);
	if (!status)
		status = hz_quat_linear(n->ctx, &vx, &n->on[0], &n->on[1], &h, &o);
	if (!status)
		status = hz_quat_linear(n->ctx, &h, &n->on[2], &n->on[3], &vy, NULL);
	return status ? status : copy_out(n, &vy, y);
}

static int quaternion_backward(struct model *m, const float *x, const float *dy)
{
	struct network *n = (struct network *)m;
	hz_quat_linear_opts o = n->hidden;
	int status = copy_in(n, dy, &n->y);

	(void)x;
	o.pre = &n->pre;
	if (!status)
		status = hz_quat_linear_bwd(n->ctx, &n->h, &n->on[2], &n->on[3], &n->y, &n->dh,
					    &n->to[2], &n->to[3], NULL);
	if (!status)
		status = hz_quat_linear_bwd(n->ctx, &n->x, &n->on[0], &n->on[1], &n->dh, NULL,
					    &n->to[0], &n->to[1], &o);
	for (int k = 0; k < 4 && !status; k++)
		status = copy_out(n, &n->to[k], part(n, n->m.gradient, k));
	return status;
}

static int new_array(hz_context *ctx, hz_tensor *t, int64_t n0, int64_t n1)
{
	void *p;
	const int64_t rows = n0 ? n0 : 1;
	const int status = hz_alloc(ctx, &p, (size_t)(rows * n1 * 4) * sizeof(float),
				    hz_device(ctx));

	if (status)
		return status;
	*t = n0 ? hz_tensor_3d(p, HZ_F32, hz_device(ctx), n0, n1, 4) :
		  hz_tensor_2d(p, HZ_F32, hz_device(ctx), n1, 4);
	return HZ_OK;
}

static int make_quaternions(struct network *n, hz_context *ctx)
{
	hz_tensor *const all[] = {&n->on[0], &n->on[1], &n->on[2], &n->on[3], &n->to[0], &n->to[1],
				  &n->to[2], &n->to[3], &n->x, &n->pre, &n->h, &n->dh, &n->y};
	static const int64_t sizes[][2] = {{HIDDEN, POINTS}, {0, HIDDEN}, {1, HIDDEN}, {0, 1}};
	size_t bytes;
	int status = HZ_OK;

	n->ctx = ctx;
	n->hidden.activation = HZ_ACT_SILU;
	make_model(n, "a network of quaternions");
	n->m.forward = quaternion_forward;
	n->m.backward = quaternion_backward;
	n->w1 = HIDDEN * POINTS * 4;
	n->b1 = n->w2 = HIDDEN * 4;
	n->b2 = 4;
	if (!make_parameters(&n->m, n->w1 + n->b1 + n->w2 + n->b2))
		return HZ_ENOMEM;
	for (int i = 0; i < 8 && !status; i++)
		status = new_array(ctx, all[i], sizes[i % 4][0], sizes[i % 4][1]);
	for (int i = 8; i < 13 && !status; i++)
		status = new_array(ctx, all[i], BATCH, i == 8 ? POINTS : i == 12 ? 1 : HIDDEN);
	if (!status)
		status = hz_quat_init(ctx, &n->on[0], HZ_QUAT_POLAR,
				      hz_quat_init_scale(POINTS, HIDDEN), 1, 0, 0);
	if (!status)
		status = hz_quat_init(ctx, &n->on[2], HZ_QUAT_POLAR,
				      hz_quat_init_scale(HIDDEN, 1), 2, 0, 0);
	if (!status)
		status = copy_out(n, &n->on[0], part(n, n->m.value, 0));
	if (!status)
		status = copy_out(n, &n->on[2], part(n, n->m.value, 2));
	if (!status)
		status = hz_record_begin(ctx);
	if (status)
		return status;
	/* Recorded copies read and write nothing. */
	status = quaternion_forward(&n->m, NULL, BATCH, NULL);
	if (!status)
		status = quaternion_backward(&n->m, NULL, NULL);
	hz_record_end(ctx, &bytes);
	return status ? status : hz_reserve(ctx, bytes);
}

static void free_quaternions(struct network *n)
{
	hz_tensor *const all[] = {&n->on[0], &n->on[1], &n->on[2], &n->on[3], &n->to[0], &n->to[1],
				  &n->to[2], &n->to[3], &n->x, &n->pre, &n->h, &n->dh, &n->y};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		hz_free(n->ctx, all[i]->data, hz_device(n->ctx));
	free(n->m.value);
}

/* ---- Real numbers, as a compiler translates plain loops -------------------------------------- */

#define UNITS (4 * HIDDEN)
#define INPUTS (4 * POINTS)

/* y[i] += w[i][...] . x; rows of w have an element per input */
static int real_forward(struct model *m, const float *x, int64_t count, float *y)
{
	struct network *n = (struct network *)m;
	const float *w1 = part(n, n->m.value, 0), *b1 = part(n, n->m.value, 1);
	const float *w2 = part(n, n->m.value, 2), *b2 = part(n, n->m.value, 3);
	const int units = n->units;
	float *pre = n->buffer, *h = pre + BATCH * units;

	for (int64_t i = 0; i < count; i++, x += INPUTS, pre += units, h += units) {
		memcpy(pre, b1, (size_t)units * sizeof(float));
		for (int k = 0; k < INPUTS; k++) {
			for (int u = 0; u < units; u++)
				pre[u] += x[k] * w1[k * units + u];
		}
		memcpy(y + 4 * i, b2, 4 * sizeof(float));
		for (int u = 0; u < units; u++) {
			h[u] = pre[u] / (1 + expf(-pre[u]));
			for (int c = 0; c < 4; c++)
				y[4 * i + c] += h[u] * w2[4 * u + c];
		}
	}
	return HZ_OK;
}

static int real_backward(struct model *m, const float *x, const float *dy)
{
	struct network *n = (struct network *)m;
	const int units = n->units;
	const float *w2 = part(n, n->m.value, 2), *pre = n->buffer, *h = pre + BATCH * units;
	float *dw1 = part(n, n->m.gradient, 0), *db1 = part(n, n->m.gradient, 1);
	float *dw2 = part(n, n->m.gradient, 2), *db2 = part(n, n->m.gradient, 3);

	memset(n->m.gradient, 0, (size_t)n->m.count * sizeof(float));
	for (int64_t i = 0; i < BATCH; i++, x += INPUTS, pre += units, h += units, dy += 4) {
		float dh[UNITS];

		for (int c = 0; c < 4; c++)
			db2[c] += dy[c];
		for (int u = 0; u < units; u++) {
			const float s = 1 / (1 + expf(-pre[u]));

			dh[u] = 0;
			for (int c = 0; c < 4; c++) {
				dw2[4 * u + c] += h[u] * dy[c];
				dh[u] += w2[4 * u + c] * dy[c];
			}
			dh[u] *= s + pre[u] * s * (1 - s);
			db1[u] += dh[u];
		}
		for (int k = 0; k < INPUTS; k++) {
			for (int u = 0; u < units; u++)
				dw1[k * units + u] += x[k] * dh[u];
		}
	}
	return HZ_OK;
}

static int make_reals(struct network *n, int units)
{
	uint64_t random = 3;

	make_model(n, "a network of real numbers");
	n->units = units;
	n->m.forward = real_forward;
	n->m.backward = real_backward;
	n->w1 = (int64_t)units * INPUTS;
	n->b1 = units;
	n->w2 = 4 * (int64_t)units;
	n->b2 = 4;
	n->buffer = allocate((size_t)(2 * BATCH * units) * sizeof(float));
	if (!n->buffer || !make_parameters(&n->m, n->w1 + n->b1 + n->w2 + n->b2))
		return HZ_ENOMEM;
	for (int64_t i = 0; i < n->w1; i++)
		n->m.value[i] = random_normal(&random) * sqrtf(2.0f / (float)(INPUTS + units));
	for (int64_t i = 0; i < n->w2; i++)
		part(n, n->m.value, 2)[i] =
			random_normal(&random) * sqrtf(2.0f / (float)(units + 4));
	return HZ_OK;
}

/* ---- The chapter ----------------------------------------------------------------------------- */

#define STARS 30	/* from the best loss to the worst */

static void show_curve(const struct network *q, const struct network *r)
{
	const double best = log(q->m.test[EPOCHS / SHOWN]), all = log(q->m.test[0]) - best;

	printf("  %-12s%24s%24s\n  %-12s%12s%12s%12s%12s\n", "", "quaternions", "real numbers",
	       "epochs", "training", "test", "training", "test");
	for (int i = 0; i <= EPOCHS / SHOWN; i++) {
		const double above = (log(q->m.test[i]) - best) / all;
		const int bar = above > 0 && above <= 1 ? (int)lrint(above * STARS) : 0;

		printf("  %-12d%12.4f%12.4f%12.4f%12.4f  ", i * SHOWN, q->m.train[i], q->m.test[i],
		       r->m.train[i], r->m.test[i]);
		for (int k = 0; k <= bar; k++)
			putchar('*');
		putchar('\n');
	}
	printf("  %-12s%24lld%24lld\n  %-12s%24.2f%24.2f\n", "weights",
	       (long long)(q->w1 + q->w2), (long long)(r->w1 + r->w2), "seconds", q->m.seconds,
	       r->m.seconds);
}

int demo_quat(hz_context *ctx, const struct ground *g)
{
	struct places training, test;
	struct network q = {.ctx = NULL}, r = {.ctx = NULL};
	int status = HZ_ENOMEM;

	if (make_places(&training, &test, g, FAR + 1, INPUTS, 4, describe, 1))
		status = make_quaternions(&q, ctx);
	if (!status)
		status = make_reals(&r, UNITS);
	printf("%s in training: of 16 places around a middle two networks know the\n"
	       "height above it and the normal of the ground, and learn the same of a place\n"
	       "outside, 70 m from the middle. One is of quaternions, 16, %d and 1, one of real\n"
	       "numbers, 64, %d and 4, with four times the weights, in plain loops on the CPU.\n"
	       "The mean of the squared error over %lld places for training and %lld for the\n"
	       "test; stars: that of quaternions in the test, on a logarithmic scale.\n\n",
	       name_of("quat_linear"), HIDDEN, UNITS, (long long)training.count,
	       (long long)test.count);
	if (!status)
		status = train_model(&q.m, &training, &test);
	if (!status)
		status = train_model(&r.m, &training, &test);
	if (!status)
		show_curve(&q, &r);
	if (q.ctx)
		free_quaternions(&q);
	free(r.m.value);
	free(r.buffer);
	free_places(&training);
	free_places(&test);
	return demo_status(ctx, status);
}

/* The part of the story: both networks with as many weights */
int demo_equal_weights(hz_context *ctx, const struct ground *g, bool quick)
{
	struct places training, test;
	struct network q = {.ctx = NULL}, r = {.ctx = NULL};
	const int epochs = quick ? 2 : EPOCHS;
	int status = HZ_ENOMEM;

	if (make_places(&training, &test, g, FAR + 1, INPUTS, 4, describe, 1))
		status = make_quaternions(&q, ctx);
	if (!status)
		status = make_reals(&r, HIDDEN);
	q.m.epochs = r.m.epochs = epochs;
	q.m.shown = r.m.shown = epochs;
	if (!status)
		status = train_model(&q.m, &training, &test);
	if (!status)
		status = train_model(&r.m, &training, &test);
	if (!status)
		printf("Quaternions against real numbers, with as many weights. From 16 places "
		       "around\n"
		       "a middle two networks of two layers learn the height and the slope of the\n"
		       "ground 70 m away (%s). Error: the mean of squares in the test,\n"
		       "after %d times through %lld places.\n\n"
		       "  %-16s%9s%10s%10s\n"
		       "  %-16s%9lld%10.4f%10.1f\n"
		       "  %-16s%9lld%10.4f%10.1f\n\n"
		       "Of these heights %s are the better model; 'hurwitz demo quat' has more.\n",
		       name_of("quat_linear"), epochs, (long long)training.count,
		       "network", "weights", "error", "seconds",
		       "quaternions", (long long)(q.w1 + q.w2), q.m.test[1], q.m.seconds,
		       "real numbers", (long long)(r.w1 + r.w2), r.m.test[1], r.m.seconds,
		       q.m.test[1] < r.m.test[1] ? "quaternions" : "real numbers");
	if (q.ctx)
		free_quaternions(&q);
	free(r.m.value);
	free(r.buffer);
	free_places(&training);
	free_places(&test);
	return demo_status(ctx, status);
}
