/*
 * linear.c - linear layers with quantized weights on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/cpu.h"
#include "cpu/linear/kern.h"

/* ---- Epilogue -------------------------------------------------------------------------------- */

int hzi_cpu_linear_forward(struct hz_context *ctx, const struct hzi_linear_forward_args *a)
{
	return hzi_cpu_vlut_bias_act(ctx, &a->e);
}

HZI_NO_WORKSPACE(cpu, linear_forward)

/* ---- dx = dy W' ------------------------------------------------------------------------------ */

struct product_job {
	const struct hzi_linear_bwd_args *a;
	const struct hzi_linear_kern *kern;
};

static void product_strips(void *job, int thread, int64_t begin, int64_t end)
{
	const struct product_job *j = job;

	(void)thread;
	for (int64_t k = begin * HZI_LINEAR_STRIP; k < end * HZI_LINEAR_STRIP && k < j->a->in;
	     k += HZI_LINEAR_STRIP) {
		const int64_t left = j->a->in - k;

		j->kern->strip(j->a, k, left < HZI_LINEAR_STRIP ? left : HZI_LINEAR_STRIP);
	}
}

int hzi_cpu_linear_bwd(struct hz_context *ctx, const struct hzi_linear_bwd_args *a)
{
	struct product_job job = {a, hzi_linear_kern + ctx->level};

	hzi_parallel(ctx, hzi_threads(ctx, a->in * (a->out + a->rows) * 4), product_strips, &job,
		     (a->in + HZI_LINEAR_STRIP - 1) / HZI_LINEAR_STRIP);
	return HZ_OK;
}

HZI_NO_WORKSPACE(cpu, linear_bwd)

/* ---- Decoded weights ------------------------------------------------------------------------- */

static void decode_row(const struct hzi_linear_dequantize_args *a, int64_t row, int64_t k,
		       int64_t n)
{
	const struct hzi_linear_layout *l = a->layout;
	const uint8_t *codes = a->codes;
	const float scale = a->scales[a->first + row];
	float *const w = a->w + row * a->ld;
	float v[8];

	if (!l->bits) {
		/* Four columns are successive bytes, the next four 64 further on. */
		codes += hzi_linear_s8_at(l->in, a->first + row, k);
		for (int64_t i = 0; i < n; i++)
			w[k + i] = scale * (float)(int8_t)codes[i / 4 * 64 + i % 4];
		return;
	}
	for (int64_t i = k; i < k + n; i += 8) {
		const int64_t count = k + n - i < 8 ? k + n - i : 8;

		hzi_linear_values(l, codes, a->first + row, i / 8, v);
		for (int64_t e = 0; e < count; e++)
			w[i + e] = scale * v[e];
	}
}

/* Panels of rows, and in them units of 32 columns, so that codes stay in L1 */
static void decode_panels(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_linear_dequantize_args *a = job;

	(void)thread;
	for (int64_t row = begin * HZI_LINEAR_PANEL; row < end * HZI_LINEAR_PANEL && row < a->rows;
	     row += HZI_LINEAR_PANEL) {
		const int64_t left = a->rows - row;
		const int64_t rows = left < HZI_LINEAR_PANEL ? left : HZI_LINEAR_PANEL;

		for (int64_t k = 0; k < a->layout->in; k += 32) {
			const int64_t n = a->layout->in - k;

			for (int64_t i = row; i < row + rows; i++)
				decode_row(a, i, k, n < 32 ? n : 32);
		}
	}
}

int hzi_cpu_linear_dequantize(struct hz_context *ctx, const struct hzi_linear_dequantize_args *a)
{
	hzi_parallel(ctx, hzi_threads(ctx, a->rows * a->layout->in * 16), decode_panels,
		     (void *)(uintptr_t)a, (a->rows + HZI_LINEAR_PANEL - 1) / HZI_LINEAR_PANEL);
	return HZ_OK;
}

HZI_NO_WORKSPACE(cpu, linear_dequantize)
