/*
 * small.c - quaternion matrix products of small k, with quads of both operands in place
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Packing, plans and transposed results take longer than such products. Here a vector holds quads
 * of V, A or B, and of C; components of the other operand, S, are broadcast. A packed A is made
 * quads again first.
 */
#include <config.h>

#include "cpu/core/cpu.h"
#include "cpu/core/sizes.h"
#include "cpu/quat_gemm/kern.h"
#include "cpu/quat_gemm/quat_gemm.h"

#define MOST_PACKED 1024	/* quads of a packed A */
#define ROWS 32			/* of a unit of work for a thread */

/* ---- Packed A -------------------------------------------------------------------------------- */

/* As quads of f32 or f64: element (i, l) of what was packed, of `rows` rows, at 4 (l rows + i) */
static struct hzi_quat_view unpack(const struct hzi_quat_gemm_typed *kern,
				   const struct hzi_quat_gemm_args *a, char *to)
{
	const int64_t rows = a->packed_t ? a->k : a->m, cols = a->packed_t ? a->m : a->k;
	const int64_t size = dtype_bytes(a->dtype), real = a->dtype == HZ_F64 ? 8 : 4;
	const char *from = a->packed;
	const struct hzi_quat_view v = {
		.data = to, .comp = {0, 1, 2, 3},
		.row = a->packed_t ? 4 * rows : 4, .col = a->packed_t ? 4 : 4 * rows,
	};
	float planes[4 * HZI_QUAT_PANEL * 8];

	for (int64_t i = 0; i < rows; i += HZI_QUAT_PANEL) {
		for (int64_t l = 0; l < cols; l += HZI_QUAT_K_BLOCK) {
			const int64_t width = min_i64(HZI_QUAT_K_BLOCK, cols - l);
			const int64_t step = size == 2 ? 8 : width;

			for (int64_t l0 = 0; l0 < width; l0 += step) {
				struct hzi_quat_block b = {
					.x = (char *)(uintptr_t)from + l0 * HZI_QUAT_PANEL * size,
					.y = planes, .rows = min_i64(HZI_QUAT_PANEL, rows - i),
					.count = min_i64(step, width - l0), .x_i = 1,
					.x_l = HZI_QUAT_PANEL, .y_l = HZI_QUAT_PANEL,
					.y_plane = 8 * HZI_QUAT_PANEL, .dtype = a->dtype,
				};

				for (int c = 0; c < 4; c++)
					b.comp[c] = c * HZI_QUAT_PANEL * width;
				if (size == 2) {
					kern->load(&b);
				} else {
					b.y = b.x;
					b.y_plane = HZI_QUAT_PANEL * width;
				}
				b.x = to + 4 * ((l + l0) * rows + i) * real;
				b.x_i = 4;
				b.x_l = 4 * rows;
				b.dtype = real == 8 ? HZ_F64 : HZ_F32;
				for (int c = 0; c < 4; c++)
					b.comp[c] = c;
				kern->store(&b);
			}
			from += 4 * HZI_QUAT_PANEL * width * size;
		}
	}
	return v;
}

/* ---- The call -------------------------------------------------------------------------------- */

/* The order of components: 0 w x y z, 1 x y z w, -1 another one, or they are not contiguous */
static int order_of(const int64_t *comp)
{
	const int last = comp[0] == 3;

	for (int c = 0; c < 4; c++) {
		if (comp[c] != (c + 3 * last) % 4)
			return -1;
	}
	return last;
}

struct job {
	const struct hzi_quat_gemm_args *a;
	const struct hzi_quat_gemm_typed *kern;
	struct hzi_quat_small small;	/* of item 0 */
	int64_t units;			/* of an item */
	bool swap;			/* V is A */
};

static void run_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *j = data;
	const struct hzi_quat_gemm_args *a = j->a;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t item = u / j->units, i = u % j->units * ROWS;
		const int64_t at_a = item_offset(a->ndim, a->shape, a->a_stride, item);
		const int64_t at_b = item_offset(a->ndim, a->shape, a->b_stride, item);
		const int64_t at_c = item_offset(a->ndim, a->shape, a->c_stride, item);
		struct hzi_quat_small s = j->small;

		s.rows = min_i64(ROWS, s.rows - i);
		s.s = (const char *)s.s + ((j->swap ? at_b : at_a) + i * s.s_row) *
					  dtype_bytes(s.s_dtype);
		s.v = (const char *)s.v + (j->swap ? at_a : at_b) * dtype_bytes(s.v_dtype);
		s.c = (char *)s.c + (at_c + i * s.c_row) * dtype_bytes(s.c_dtype);
		if (s.bias)
			s.bias = (const char *)s.bias + i * s.bias_row * dtype_bytes(s.bias_dtype);
		j->kern->small(&s);
	}
}

/*
 * Whether rows of C are vectors, which then are fewer, or as many and contiguous in C. lanes: quads
 * of a vector
 */
static bool should_swap(const struct hzi_quat_gemm_args *a, int64_t lanes)
{
	const int64_t by_rows = ceil_div(a->m, lanes) * a->n;
	const int64_t by_cols = ceil_div(a->n, lanes) * a->m;

	return by_rows < by_cols || (by_rows == by_cols && a->c.row == 4 && a->c.col != 4);
}

const char *hzi_cpu_quat_gemm_small_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	const int order = order_of(a->c.comp);

	if (a->k == 0 || a->k > HZI_QUAT_SMALL_K)
		return "k is 0 or above 64";
	if (order < 0 || order != order_of(a->b.comp) ||
	    (a->packed ? order != 0 : order != order_of(a->a.comp)))
		return "components are not contiguous, or a is packed and c has another order";
	if (a->packed && (a->ndim || a->m * a->k > MOST_PACKED))
		return "a is packed, and has more than 1024 quaternions, or there is a batch";
	if (a->beta != 0 || !a->alpha_real || a->alpha[0] != 1 || a->pre.data || a->activation)
		return "alpha is not 1 or beta not 0, or there is an activation";
	if (a->bias && (order != order_of(a->bias_comp) ||
			(a->dtype == HZ_F64 && a->bias_dtype != HZ_F64)))
		return "components of the bias are not as those of C, or it is f32 beside f64";
	return hzi_quat_gemm_kern[ctx->level].type[a->dtype == HZ_F64].small
		       ? NULL : "operands are f64, whose quads are longer than a vector";
}

/*
 * With more rows and columns than 16 panels are read often enough to pay for packing, with 32
 * registers from 16 by 512 on, which takes 1.9 times as long here. To restore the quads of a packed
 * A takes as long as 2 to 4 columns; with 32 registers panels and GEMVs read it in place as fast as
 * quads. Tiles of bf16, which were not measured, keep what is longer than their packing.
 */
bool hzi_cpu_quat_gemm_small_wins(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	const bool wide = hzi_quat_gemm_kern[ctx->level].type[0].lanes == 16;
	const int64_t few = min_i64(a->m, a->n);
	int64_t most = a->n == 1 ? 256 : !wide ? MOST_PACKED : a->n > 8 ? 512 : 256;

	if (a->dtype == HZ_F64)		/* has no GEMV */
		most = MOST_PACKED;
	if (few > 16 || a->m * a->n > (INT64_C(1) << 17) / max_i64(a->k, 1))
		return false;
	if (wide && few * a->m * a->n > INT64_C(1) << 15)
		return false;
	if (a->packed && a->m * a->k > most)
		return false;
	return few <= 4 || a->m * a->n * a->k <= 1024 ||
	       hzi_cpu_quat_gemm_bf16_tiles_unsupported(ctx, a) != NULL;
}

size_t hzi_cpu_quat_gemm_small_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	(void)ctx;
	return a->packed ? (size_t)(a->m * a->k * 4 * (a->dtype == HZ_F64 ? 8 : 4)) : 0;
}

int hzi_cpu_quat_gemm_small(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	const bool is_f64 = a->dtype == HZ_F64;
	const struct hzi_quat_gemm_typed *kern = &hzi_quat_gemm_kern[ctx->level].type[is_f64];
	const int last = a->c.comp[0] == 3;
	const int64_t items = item_count(a->ndim, a->shape);
	const bool swap = should_swap(a, kern->lanes / 4);
	const struct hzi_quat_view left = a->packed ? unpack(kern, a, ctx->workspace) : a->a;
	const struct hzi_quat_view *const s = swap ? &a->b : &left, *const v = swap ? &left : &a->b;
	const int left_dtype = a->packed && !is_f64 ? HZ_F32 : a->dtype;
	const int32_t conj_s = swap ? a->conj_b : a->conj_a, conj_v = swap ? a->conj_a : a->conj_b;
	union {
		float f32[16];
		double f64[16];
	} sign;
	struct job job = {
		.a = a, .kern = kern, .swap = swap,
		.small = {
			.s = s->data, .v = v->data, .c = a->c.data, .bias = a->bias, .sign = &sign,
			.rows = swap ? a->n : a->m, .cols = swap ? a->m : a->n, .k = a->k,
			.s_row = swap ? s->col : s->row, .s_col = swap ? s->row : s->col,
			.v_row = swap ? v->col : v->row, .v_col = swap ? v->row : v->col,
			.c_row = swap ? a->c.col : a->c.row, .c_col = swap ? a->c.row : a->c.col,
			.bias_row = swap ? a->bias_col : a->bias_row,
			.bias_col = swap ? a->bias_row : a->bias_col,
			.s_dtype = swap ? a->dtype : left_dtype,
			.v_dtype = swap ? left_dtype : a->dtype, .c_dtype = a->c_dtype,
			.bias_dtype = a->bias_dtype,
		},
	};

	/* Component of_s of S and of_s ^ c of V are at distance e in a quad: see small.inc. */
	for (int e = 0; e < 4; e++)
		job.small.s_comp[e] = s->comp[last ? -e & 3 : e];
	for (int e = 0; e < 4; e++) {
		const int of_s = last ? -e & 3 : e;

		for (int c = 0; c < 4; c++) {
			const int of_v = of_s ^ c, at = 4 * e + (last ? (c + 3) & 3 : c);
			const int product = swap ? product_sign[of_v][of_s] :
						   product_sign[of_s][of_v];
			const bool negative = (product < 0) ^ (conj_s && of_s) ^
					      (conj_v && of_v) ^ (a->conj_c && c);

			if (is_f64)
				sign.f64[at] = negative ? -1 : 1;
			else
				sign.f32[at] = negative ? -1 : 1;
		}
	}
	job.units = ceil_div(job.small.rows, ROWS);
	hzi_parallel(ctx, hzi_threads(ctx, 2 * a->m * a->n * items * (a->k + 1)), run_units, &job,
		     items * job.units);
	return HZ_OK;
}
