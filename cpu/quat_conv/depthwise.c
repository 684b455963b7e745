/*
 * depthwise.c - convolutions with one channel in each group, and the gradients of their weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/quat_conv/depthwise.h"
#include "cpu/quat_conv/kern.h"
#include "cpu/quat_layer/quat_layer.h"
#include "lib/quat_layer/sums_math.h"

static int64_t taps_of(const struct hzi_quat_patch_step *x)
{
	return x->taps[0] * x->taps[1] * x->taps[2];
}

struct job {
	const struct hzi_quat_conv_kern *kern;
	const struct hzi_quat_depthwise *args;
};

static void depthwise_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct job *j = job;

	(void)thread;
	j->kern->depthwise(j->args, begin, end);
}

/*
 * Component c of a product w x is the sum over k of x[c ^ k] times w[k] with the sign of the
 * quaternion product. Coefficients: four rows for each tap, k = 0 .. 3, with a component per lane,
 * then one row for the bias.
 */
static void make_coefficients(const struct hzi_quat_depthwise *a, int64_t taps)
{
	/* sign[l][r]: of component l of the left factor times r of the right one, in l ^ r */
	static const float sign[4][4] = {
		{1, 1, 1, 1}, {1, -1, 1, -1}, {1, -1, -1, 1}, {1, 1, -1, -1},
	};
	const int64_t ld = hzi_quat_depthwise_row(a->x.groups);

	memset(a->coef, 0, (size_t)hzi_quat_depthwise_floats(taps, a->x.groups) * sizeof(*a->coef));
	for (int64_t g = 0; g < a->x.groups; g++) {
		for (int64_t t = 0; t < taps; t++) {
			const struct hzi_quat w =
				hzi_quat_load(&a->w, g * a->w.stride[0] + t * a->w.stride[1]);

			for (int i = 0; i < 16; i++) {
				const int k = i / 4, c = i % 4;
				const float s = a->reversed ? sign[c ^ k][k] : sign[k][c ^ k];

				a->coef[(4 * t + k) * ld + 4 * g + c] =
					(a->conj && k > 0 ? -s : s) * (float)w.c[k];
			}
		}
		if (a->b.data) {
			const struct hzi_quat b = hzi_quat_load(&a->b, g * a->b.stride[0]);

			for (int c = 0; c < 4; c++)
				a->coef[4 * taps * ld + 4 * g + c] = (float)b.c[c];
		}
	}
}

const char *hzi_cpu_quat_conv_depthwise_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_patch_step *x = &a->x;

	(void)ctx;
	if (x->channels != 1 || a->g.m != 1)
		return "more than one channel in a group";
	if (x->x.dtype == HZ_F64 || a->y.dtype == HZ_F64)
		return "f64";
	return x->x.whole && x->x.stride[4] == 4 ? NULL : "channels of x are not contiguous";
}

size_t hzi_cpu_quat_conv_depthwise_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;

	(void)ctx;
	return ((size_t)hzi_quat_depthwise_floats(taps_of(&a->x),
						  a->x.groups) * sizeof(float) + 63) &
	       ~(size_t)63;
}

int hzi_cpu_quat_conv_depthwise(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_gemm_args *g = &a->g;
	const int64_t taps = taps_of(&a->x);
	/* x w = conj(conj(w) conj(x)): the plan conjugates all three for the other order. */
	struct hzi_quat_depthwise d = {
		.x = a->x, .y = a->y, .pre = a->pre, .conj = g->conj_a ^ g->conj_c,
		.reversed = g->conj_c, .activation = g->activation, .slope = g->slope,
		.w = {.data = g->a.data, .stride = {a->a_group, g->a.col}, .dtype = g->dtype},
		.b = {.data = (void *)(uintptr_t)g->bias, .stride = {g->bias_row},
		      .dtype = g->bias_dtype},
		.coef = ctx->workspace,
	};
	struct job job = {hzi_quat_conv_kern + ctx->level, &d};

	d.x.rows = g->n;
	memcpy(d.w.comp, g->a.comp, sizeof(d.w.comp));
	memcpy(d.b.comp, g->bias_comp, sizeof(d.b.comp));
	make_coefficients(&d, taps);
	hzi_parallel(ctx, hzi_threads(ctx, d.x.rows * d.x.groups * (16 + 8 * taps)), depthwise_work,
		     &job, d.x.rows);
	return HZ_OK;
}

/* ---- The gradient of weights ----------------------------------------------------------------- */

#define DEPTHWISE_CHUNKS 32			/* most chunks of the pixels of a tap */

/* The number of u in 0 .. count - 1 with 0 <= step u + base < size; *low: the first */
static int64_t seen(int64_t count, int64_t step, int64_t base, int64_t size, int64_t *low)
{
	int64_t high = size > base ? (size - 1 - base) / step + 1 : 0;

	*low = base < 0 ? (step - 1 - base) / step : 0;
	high = high < count ? high : count;
	return high > *low ? high - *low : 0;
}

/* part = [channels][20]: for one tap the sums of products of components */
static int products(struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
		    const int64_t *tap, void *mean, double *part)
{
	const struct hzi_quat_patch_step *p = &a->x;
	struct hzi_quat_tensor x = {.a = p->x, .ndim = 5}, z = {.a = a->small, .ndim = 5};
	struct hzi_quat_sum_step s = {.kind = HZI_QUAT_SUM_CROSS};

	x.shape[0] = z.shape[0] = a->images;
	x.shape[4] = z.shape[4] = p->groups;
	memset(part, 0, (size_t)p->groups * 20 * sizeof(*part));
	for (int d = 0; d < 3; d++) {
		const int64_t step = p->step[d];
		const int64_t base = p->base[d] + tap[d] * p->each[d];
		const int64_t size = (int64_t)hz_dtype_size(p->x.dtype);
		int64_t low;

		z.shape[1 + d] = seen(p->count[d], step, base, p->size[d], &low);
		if (z.shape[1 + d] == 0)
			return HZ_OK;
		x.a.data = (char *)x.a.data + (low * step + base) * x.a.stride[1 + d] * size;
		z.a.data = (char *)z.a.data + low * z.a.stride[1 + d] * size;
		x.a.stride[1 + d] *= z.shape[1 + d] > 1 ? step : 1;
		x.shape[1 + d] = z.shape[1 + d];
	}
	hzi_quat_sum_shape(&s, &x, &z);
	if (s.rows == 0)
		return HZ_OK;
	while (s.chunks > DEPTHWISE_CHUNKS) {
		s.chunk *= 2;
		s.chunks = (s.rows + s.chunk - 1) / s.chunk;
	}
	s.mean = mean;
	s.mean_step = 14;
	s.mean_dtype = HZ_F32;
	s.part = part;
	HZ_CHECK(hzi_cpu_quat_steps.sum(ctx, a->op, &s));
	for (int64_t c = 1; c < s.chunks; c++) {
		for (int64_t i = 0; i < s.channels * 20; i++)
			part[i] += part[c * s.channels * 20 + i];
	}
	return HZ_OK;
}

const char *hzi_cpu_quat_conv_wgrad_depthwise_unsupported(const struct hz_context *ctx,
							  const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;

	(void)ctx;
	if (a->x.channels != 1 || a->g.m != 1)
		return "more than one channel in a group";
	return a->x.x.dtype == HZ_F64 ? "f64" : NULL;
}

static size_t parts_bytes(const struct hzi_quat_wgrad_step *a)
{
	return (size_t)(DEPTHWISE_CHUNKS * a->x.groups * 20) * sizeof(double);
}

size_t hzi_cpu_quat_conv_wgrad_depthwise_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;

	(void)ctx;
	return parts_bytes(a) +
	       (((size_t)a->x.groups * 14 * sizeof(float) + 63) & ~(size_t)63);
}

/* For each tap and channel the sums of all products of components: HZI_QUAT_SUM_CROSS */
int hzi_cpu_quat_conv_wgrad_depthwise(struct hz_context *ctx, const void *args)
{
	/* sign[i][j]: of component i of the left factor times j of the right one, in i ^ j */
	static const double sign[4][4] = {
		{1, 1, 1, 1}, {1, -1, 1, -1}, {1, -1, -1, 1}, {1, 1, -1, -1},
	};
	const struct hzi_quat_wgrad_step *a = args;
	const struct hzi_quat_patch_step *p = &a->x;
	const int64_t channels = p->groups, taps = taps_of(p);
	const bool conj_small = a->g.conj_a ^ a->g.conj_c, reversed = a->g.conj_c;
	double *const part = ctx->workspace;
	float *const mean = (float *)(void *)((char *)ctx->workspace + parts_bytes(a));

	for (int64_t i = 0; i < 14 * channels; i++) {
		const int64_t k = i % 14;	/* mean 0, the unit matrix */

		mean[i] = k == 4 || k == 6 || k == 9 || k == 13;
	}
	for (int64_t t = 0; t < taps; t++) {
		const int64_t tap[3] = {t / p->taps[2] / p->taps[1], t / p->taps[2] % p->taps[1],
					t % p->taps[2]};

		HZ_CHECK(products(ctx, a, tap, mean, part));
		for (int64_t c = 0; c < channels; c++) {
			double q[4] = {0};

			for (int i = 0; i < 16; i++) {
				const int s = i / 4, b = i % 4;	/* components of small, of big */
				const bool negative = conj_small ? s > 0 : b > 0;
				const double v = part[c * 20 + 4 + i] *
						 (reversed ? sign[b][s] : sign[s][b]);

				q[s ^ b] += negative ? -v : v;
			}
			for (int k = 0; k < 4; k++)
				((float *)a->sum)[(c * taps + t) * 4 + k] = (float)q[k];
		}
	}
	return HZ_OK;
}
