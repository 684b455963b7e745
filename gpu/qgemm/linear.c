/*
 * linear.c - launchers of qlinear: up to 4 rows in one launch, or quantization and then qgemm
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/qgemm/launch.h"
#include "gpu/quantize/quantize.h"
#include "lib/core/route.h"

HZI_LINK_IMAGES(quantize);

/* ---- One launch ------------------------------------------------------------------------------ */

/* Blocks of a launch, HZI_LINEAR_COLUMNS each. B is padded to groups of 64 columns. */
static int64_t gemv_blocks(int64_t n)
{
	return ceil_div(n, HZI_QGEMM_N_GROUP) * (HZI_QGEMM_N_GROUP / HZI_LINEAR_COLUMNS);
}

/* Each block quantizes all rows to shared memory; its part of B is in registers. */
const char *hzi_cuda_qlinear_gemv_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_call *c = args;
	const struct hzi_qlinear_args *a = c->a;
	const struct hzi_qgemm_args *t = &c->t;
	const int64_t size = (int64_t)hz_dtype_size(a->x_dtype);

	(void)ctx;
	if (!t->packed)
		return "the weights are not packed";
	if (t->ndim > 0)
		return "there is a batch";
	if (t->m > (a->fixed ? HZI_LINEAR_ROWS : HZI_LINEAR_DYNAMIC_ROWS))
		return "x has more than 4 rows, or 2 without a scale";
	if (t->sum64 || t->k == 0 || hzi_qgemm_blocks(t) > HZI_LINEAR_BLOCKS)
		return "k is 0 or above 4096, or sums do not fit 32 bits";
	return (t->a_k != 1 && t->k > 1) || t->k * size % 16 || (uintptr_t)a->x % 16 ||
			       (t->m > 1 && t->a_m * size % 16)
		       ? "rows of x are not of whole, aligned pieces of 16 bytes" : NULL;
}

/* If there are more blocks than SMs, quantizing each row once to global memory is faster. */
bool hzi_cuda_qlinear_gemv_wins(const struct hz_context *ctx, const struct hzi_qlinear_call *c)
{
	return gemv_blocks(c->t.n) <= hzi_cuda_device(ctx)->sms;
}

int hzi_cuda_qlinear_gemv(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_call *c = args;
	const struct hzi_qlinear_args *a = c->a;
	const struct hzi_qgemm_args *t = &c->t;
	const struct hzi_qlinear_gemv p = {
		.x = a->x, .b = t->packed, .out = hzi_qgemm_make_out(t, t->packed),
		.x_m = t->a_m * (int64_t)hz_dtype_size(a->x_dtype), .width = hzi_qgemm_width(t),
		.blocks = (int32_t)hzi_qgemm_blocks(t),
		.log_threads = t->m == 1 ? 9 : t->m == 2 ? 8 : 7, .x_dtype = a->x_dtype,
		.q_dtype = t->a_dtype, .symmetric = a->symmetric, .fixed = a->fixed,
		.scale = t->a_scale, .zero = t->a_zero,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)gemv_blocks(t->n)},
		.block = {HZI_LINEAR_THREADS}, .early = ctx->sm >= HZI_SM_90,
	};

	return hzi_cuda_launch(ctx, "qlinear", HZI_KERNEL_qlinear_gemv, &launch, &p, sizeof(p));
}

/* ---- Codes in memory ------------------------------------------------------------------------- */

#define ROWS_SHORT 1024		/* longest row for one warp per row, if there are many rows */
#define ROWS_MANY 8		/* rows per SM */

/*
 * Offsets in the workspace: codes of the rows of x come first, then scales, sums of codes, zero
 * points, and the workspace of qgemm.
 */
struct layout {
	size_t scales, sums, zeros, qgemm_offset;
};

static struct layout layout_of(const struct hzi_qlinear_args *a)
{
	const size_t codes = (size_t)(a->g.rows * hzi_round_up(a->g.k, 16));
	struct layout r;

	r.scales = hzi_qgemm_padded(codes);
	r.sums = r.scales + hzi_qgemm_padded(4 * (size_t)a->g.rows);
	r.zeros = r.sums + hzi_qgemm_padded(4 * (size_t)a->g.rows);
	r.qgemm_offset = r.zeros + hzi_qgemm_padded((size_t)a->g.rows);
	return r;
}

struct hzi_qgemm_args hzi_qlinear_product(const struct hzi_qlinear_args *a, char *workspace,
					  size_t *qgemm_offset)
{
	const struct layout r = layout_of(a);
	struct hzi_qgemm_args g = a->g;
	int64_t rows = g.m;

	g.a = workspace;
	g.a_m = hzi_round_up(g.k, 16);
	g.a_k = 1;
	g.a_sums = (const int32_t *)(const void *)(workspace + r.sums);
	for (int d = g.ndim - 1; d >= 0; d--) {
		g.row_stride[d] = rows;
		g.a_stride[d] = rows * g.a_m;
		rows *= g.shape[d];
	}
	if (!a->fixed) {
		g.a_scales = (const float *)(const void *)(workspace + r.scales);
		g.zero_step = g.scale_step = 1;
	}
	/* Symmetric rows have one zero point. */
	if (!a->fixed && a->symmetric)
		g.a_zero = g.a_dtype == HZ_U8 ? 128 : 0;
	else if (!a->fixed)
		g.a_zeros = workspace + r.zeros;
	*qgemm_offset = r.qgemm_offset;
	return g;
}

int hzi_qlinear_quantize(struct hz_context *ctx, const struct hzi_qlinear_args *a,
			 const struct hzi_qgemm_args *g, char *workspace)
{
	const struct layout r = layout_of(a);
	const int64_t sms = hzi_cuda_device(ctx)->sms;
	struct hzi_quantize_rows p = {
		.x = a->x, .y = (uint8_t *)workspace,
		.scales = a->fixed ? NULL : (float *)(void *)(workspace + r.scales),
		.zeros = (uint8_t *)workspace + r.zeros,
		.sums = (int32_t *)(void *)(workspace + r.sums),
		.rows = g->rows, .k = g->k, .y_row = g->a_m, .x_k = a->g.a_k,
		.ndim = g->ndim + 1, .q_dtype = g->a_dtype, .symmetric = a->symmetric,
		.scale = g->a_scale, .zero = g->a_zero,
		.warp_per_row = g->k <= ROWS_SHORT && g->rows >= ROWS_MANY * sms,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(p.warp_per_row
					    ? ceil_div(g->rows, HZI_QUANT_ROWS_THREADS / 32)
					    : g->rows)},
		.block = {HZI_QUANT_ROWS_THREADS}, .early = ctx->sm >= HZI_SM_90,
	};
	const int kernel = a->x_dtype == HZ_F32 ? HZI_KERNEL_quantize_rows_f32
			   : a->x_dtype == HZ_F16 ? HZI_KERNEL_quantize_rows_f16
						  : HZI_KERNEL_quantize_rows_bf16;

	if (g->rows > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"qlinear: x has %lld rows, must be below 2^31 on a GPU",
				(long long)g->rows);
	for (int d = 0; d < g->ndim; d++) {
		p.shape[d] = g->shape[d];
		p.x_stride[d] = a->g.a_stride[d];
	}
	p.shape[g->ndim] = g->m;
	p.x_stride[g->ndim] = a->g.a_m;
	return hzi_cuda_launch(ctx, "qlinear", kernel, &launch, &p, sizeof(p));
}
