/*
 * linear.c - linear layers with quantized weights on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/linear/kern.h"

/* ---- Epilogue -------------------------------------------------------------------------------- */

#define PIECE 128		/* elements at a time where a row is not contiguous */

struct epilogue_job {
	const struct hzi_linear_forward_args *a;
	const struct hzi_linear_kern *kern;
};

static int64_t size_of(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

/* Copies n elements of `size` bytes; steps count elements. */
static void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step,
			  int64_t size, int64_t n)
{
	for (int64_t i = 0; i < n; i++, to += to_step * size, from += from_step * size)
		memcpy(to, from, (size_t)size);
}

/* A row whose elements are not contiguous, in pieces */
static void run_strided(const struct epilogue_job *j, const char *from, char *y)
{
	const struct hzi_linear_forward_args *a = j->a;
	const int64_t from_size = size_of(a->from_dtype), y_size = size_of(a->y_dtype);
	float gate[PIECE], up[PIECE], to[PIECE];

	for (int64_t i = 0; i < a->n; i += PIECE) {
		const int64_t n = a->n - i < PIECE ? a->n - i : PIECE;
		const struct hzi_linear_run r = {
			.from = gate, .up = a->gated ? up : NULL, .y = to, .count = n,
			.bias = a->bias ? a->bias + i : NULL,
			.up_bias = a->bias ? a->bias + a->n + i : NULL,
			.from_dtype = a->from_dtype, .y_dtype = a->y_dtype,
			.activation = a->activation,
		};

		copy_elements((char *)gate, 1, from + i * a->from_step * from_size, a->from_step,
			      from_size, n);
		if (a->gated)
			copy_elements((char *)up, 1, from + (a->n + i) * a->from_step * from_size,
				      a->from_step, from_size, n);
		j->kern->run(&r);
		copy_elements(y + i * a->y_step * y_size, a->y_step, (char *)to, 1, y_size, n);
	}
}

static void epilogue_rows(void *job, int thread, int64_t begin, int64_t end)
{
	const struct epilogue_job *j = job;
	const struct hzi_linear_forward_args *a = j->a;

	(void)thread;
	for (int64_t row = begin; row < end; row++) {
		int64_t from = 0, y = 0, left = row;
		struct hzi_linear_run r = {
			.bias = a->bias, .up_bias = a->bias ? a->bias + a->n : NULL, .count = a->n,
			.from_dtype = a->from_dtype, .y_dtype = a->y_dtype,
			.activation = a->activation,
		};

		for (int d = a->ndim - 1; d >= 0; d--) {
			from += left % a->shape[d] * a->from_stride[d];
			y += left % a->shape[d] * a->y_stride[d];
			left /= a->shape[d];
		}
		r.from = (const char *)a->from + from * size_of(a->from_dtype);
		r.y = (char *)a->y + y * size_of(a->y_dtype);
		if (a->n > 1 && (a->from_step != 1 || a->y_step != 1)) {
			run_strided(j, r.from, r.y);
			continue;
		}
		if (a->gated)
			r.up = (const char *)r.from + a->n * a->from_step * size_of(a->from_dtype);
		j->kern->run(&r);
	}
}

int hzi_cpu_linear_forward(struct hz_context *ctx, const struct hzi_linear_forward_args *a)
{
	struct epilogue_job job = {a, hzi_linear_kern + ctx->level};

	hzi_parallel(ctx, hzi_threads(ctx, a->rows * a->n * (a->activation > HZ_ACT_RELU ? 32 : 8)),
		     epilogue_rows, &job, a->rows);
	return HZ_OK;
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
