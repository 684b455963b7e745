/*
 * linear.c - quantized linear layers on the CPU: dynamic quantization of rows, multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/qgemm/qgemm.h"
#include "cpu/quantize/kern.h"

/* Contiguous codes of the rows of x, with their zero points and scales */
struct linear {
	const struct hzi_quantize_kern *kern;
	const struct hzi_qlinear_args *a;
	char *codes, *zeros;
	float *scales;
};

static size_t linear_bytes(const struct hzi_qlinear_args *a)
{
	return round_to_lines(a->g.rows * a->g.k) + round_to_lines(a->g.rows) +
	       round_to_lines(4 * a->g.rows);
}

/* The multiplication of the codes at workspace */
static struct hzi_qgemm_args linear_args(const struct hzi_qlinear_args *a, char *workspace)
{
	struct hzi_qgemm_args g = a->g;

	g.a_m = g.k;
	g.a_k = 1;
	for (int d = 0; d < g.ndim; d++)
		g.a_stride[d] = g.row_stride[d] * g.k;
	if (!workspace)
		workspace = (char *)&g;		/* only the size is wanted */
	g.a = take(&workspace, g.rows * g.k);
	if (!a->fixed) {
		g.a_zeros = take(&workspace, g.rows);
		g.a_scales = take(&workspace, 4 * g.rows);
		g.zero_step = g.scale_step = 1;
	}
	return g;
}

/* Rows at a time: at most LINEAR_ROWS, of LINEAR_FLOATS elements together, which stay in L1 */
#define LINEAR_ROWS 64
#define LINEAR_FLOATS 4096

/* The range of a row of strided elements */
static void strided_range(const struct linear *l, const char *x, float *lo, float *hi)
{
	const struct hzi_qgemm_args *g = &l->a->g;
	const int64_t size = dtype_bytes(l->a->x_dtype);
	float buffer[GATHER];

	for (int64_t k = 0; k < g->k; k += GATHER) {
		const int64_t n = min_i64(GATHER, g->k - k);
		const struct hzi_range range = {
			.x = buffer, .lo = lo, .hi = hi, .count = n, .group = GATHER + 1,
			.x_dtype = l->a->x_dtype,
		};

		copy_strided(buffer, 1, x + k * g->a_k * size, g->a_k, n, size);
		l->kern->range(&range);
	}
}

static void strided_codes(const struct linear *l, const char *x, char *to, const float *scale,
			  const char *zero)
{
	const struct hzi_qgemm_args *g = &l->a->g;
	const int64_t size = dtype_bytes(l->a->x_dtype);
	float buffer[GATHER];

	for (int64_t k = 0; k < g->k; k += GATHER) {
		const int64_t n = min_i64(GATHER, g->k - k);
		const struct hzi_quantize_codes codes = {
			.x = buffer, .q = to + k, .scales = scale, .zeros = zero, .count = n,
			.group = GATHER + 1, .x_dtype = l->a->x_dtype, .q_dtype = g->a_dtype,
		};

		copy_strided(buffer, 1, x + k * g->a_k * size, g->a_k, n, size);
		l->kern->quantize(&codes);
	}
}

/* Elements of each row in a transposed square of rows */
#define LINEAR_SQUARE 128

/* The ranges of n rows whose columns are contiguous, or if `to` is given their codes */
static void transposed(const struct linear *l, const char *x, int64_t n, float *lo, float *hi,
		   char *to, const float *scales, const char *zeros)
{
	const struct hzi_qlinear_args *a = l->a;
	const struct hzi_qgemm_args *g = &a->g;
	const int64_t size = dtype_bytes(a->x_dtype);
	uint32_t square[LINEAR_ROWS * LINEAR_SQUARE];

	for (int64_t k = 0; k < g->k; k += LINEAR_SQUARE) {
		const int64_t count = min_i64(LINEAR_SQUARE, g->k - k);

		hzi_cpu_transpose(square, LINEAR_SQUARE, x + k * g->a_k * size, g->a_k, count, n,
				  size);
		for (int64_t r = 0; r < n; r++) {
			char *row = (char *)square + r * LINEAR_SQUARE * size;
			const int64_t own = a->fixed ? 0 : r;

			if (to)
				l->kern->quantize(&(struct hzi_quantize_codes){
					.x = row, .q = to + r * g->k + k, .scales = scales + own,
					.zeros = zeros + own, .count = count,
					.group = LINEAR_SQUARE + 1, .x_dtype = a->x_dtype,
					.q_dtype = g->a_dtype,
				});
			else
				l->kern->range(&(struct hzi_range){
					.x = row, .lo = lo + r, .hi = hi + r, .count = count,
					.group = LINEAR_SQUARE + 1, .x_dtype = a->x_dtype,
				});
		}
	}
}

static void linear_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct linear *l = data;
	const struct hzi_qlinear_args *a = l->a;
	const struct hzi_qgemm_args *g = &a->g;
	const int64_t size = dtype_bytes(a->x_dtype);
	const bool transpose = g->a_k != 1 && g->a_m == 1 && g->m >= 8;
	const int64_t most = g->k > 0 && !transpose ?
			     min_i64(LINEAR_ROWS, max_i64(LINEAR_FLOATS / g->k, 1)) : LINEAR_ROWS;
	const char fixed_zero = (char)g->a_zero;
	const int64_t group = max_i64(g->k, 1);	/* rows may have no elements */

	(void)thread;
	for (int64_t r = begin, n; r < end; r += n) {
		/* Rows are counted in the order of the batch, whose items have m each. */
		const int64_t item = r / g->m, i = r % g->m;
		const int64_t to = item_row(g, item) + i;
		const char *x = bytes_at(a->x, (item_offset(g->ndim, g->shape, g->a_stride, item) +
						i * g->a_m) * size);
		const float *scales = a->fixed ? &g->a_scale : l->scales + to;
		const char *zeros = a->fixed ? &fixed_zero : l->zeros + to;
		bool together;

		n = min_i64(min_i64(end - r, g->m - i), most);
		together = g->a_k == 1 && (n == 1 || g->a_m == g->k);
		if (!a->fixed) {
			float lo[LINEAR_ROWS] = {0}, hi[LINEAR_ROWS] = {0};
			const struct hzi_range range = {
				.x = x, .lo = lo, .hi = hi, .count = n * g->k, .group = group,
				.x_dtype = a->x_dtype,
			};
			const struct hzi_params params = {
				.lo = lo, .hi = hi, .scale = l->scales + to,
				.zero = (uint8_t *)l->zeros + to, .count = n,
				.q_dtype = g->a_dtype, .flags = a->symmetric,
			};

			if (together)
				l->kern->range(&range);
			else if (transpose)
				transposed(l, x, n, lo, hi, NULL, NULL, NULL);
			for (int64_t j = 0; !together && !transpose && j < n; j++)
				strided_range(l, x + j * g->a_m * size, &lo[j], &hi[j]);
			l->kern->params(&params);
		}
		if (together) {
			const struct hzi_quantize_codes codes = {
				.x = (void *)(uintptr_t)x, .q = l->codes + to * g->k,
				.scales = scales, .zeros = zeros, .count = n * g->k,
				.group = a->fixed ? n * g->k + 1 : group, .x_dtype = a->x_dtype,
				.q_dtype = g->a_dtype,
			};

			l->kern->quantize(&codes);
			continue;
		}
		if (transpose)
			transposed(l, x, n, NULL, NULL, l->codes + to * g->k, scales, zeros);
		for (int64_t j = 0; !transpose && j < n; j++)
			strided_codes(l, x + j * g->a_m * size, l->codes + (to + j) * g->k,
				      scales + (a->fixed ? 0 : j), zeros + (a->fixed ? 0 : j));
	}
}

int hzi_cpu_qlinear(struct hz_context *ctx, const struct hzi_qlinear_args *a)
{
	char *workspace = ctx->workspace;
	const struct hzi_qgemm_args g = linear_args(a, workspace);
	struct linear l = {.kern = hzi_quantize_kern + ctx->level, .a = a};

	l.codes = take(&workspace, g.rows * g.k);
	l.zeros = take(&workspace, g.rows);
	l.scales = take(&workspace, 4 * g.rows);
	hzi_parallel(ctx, hzi_threads(ctx, g.rows * g.k * 8), linear_rows, &l, g.rows);
	return hzi_cpu_qgemm_run(ctx, &g, workspace);
}

size_t hzi_cpu_qlinear_workspace(const struct hz_context *ctx, const struct hzi_qlinear_args *a)
{
	const struct hzi_qgemm_args g = linear_args(a, NULL);

	return linear_bytes(a) + hzi_cpu_qgemm_workspace(ctx, &g);
}
