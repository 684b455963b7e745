/*
 * recurrent.c - launchers of recurrent layers: cells, and whole steps of few sequences
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_gemm/launch.h"
#include "gpu/quat_layer/launch.h"
#include "gpu/quat_layer/recurrent.h"

HZI_LINK_IMAGES(quat_layer);

#define COLUMNS_MOST 32		/* of a block */
#define SUMS_BYTES 16896	/* the sums of 32 columns, in static shared memory */
#define STEPS_LEAST 4		/* from which a copy of u pays */

int hzi_cuda_quat_cell(struct hz_context *ctx, const char *op, const struct hzi_quat_cell_step *a,
		       bool backward)
{
	const int64_t count = a->directions * a->batch * 4 * a->hidden;
	const int64_t blocks = ceil_div(count, HZI_QUAT_STEP_THREADS);
	const struct hzi_launch l = {
		.grid = {(unsigned)(blocks < 1 << 30 ? blocks : 1 << 30)},
		.block = {HZI_QUAT_STEP_THREADS}, .early = true,
	};

	return hzi_cuda_launch(ctx, op, (backward ? HZI_KERNEL_quat_layer_rnn_bwd :
					 HZI_KERNEL_quat_layer_rnn) + a->cell, &l, a, sizeof(*a));
}

bool hzi_cuda_quat_cell_fuses(const struct hz_context *ctx, const struct hzi_quat_cell_step *a)
{
	const int gates = HZI_QUAT_CELL_GATES(a->cell);

	return a->y.dtype != HZ_F32 && a->steps >= STEPS_LEAST && a->hidden > 0 && a->batch > 0 &&
	       a->hidden % (HZI_QUAT_CELL_ROWS / gates) == 0 && a->hidden <= INT32_MAX / gates &&
	       a->batch <= HZI_GEMV_WIDE_COLUMNS_MOST &&
	       hzi_cuda_device(ctx)->shared_block_bytes >= HZI_GEMV_MMA_BYTES + SUMS_BYTES;
}

int hzi_cuda_quat_cell_fused(struct hz_context *ctx, const char *op,
			     const struct hzi_quat_gemm_args *g, const struct hzi_quat_cell_step *a)
{
	const bool wide = g->n > HZI_GEMV_COLUMNS;
	const int kernel = (!wide ? HZI_KERNEL_quat_layer_recurrent_8_f16 :
			    g->n <= HZI_GEMV_WIDE_COLUMNS ? HZI_KERNEL_quat_layer_recurrent_16_f16 :
			    HZI_KERNEL_quat_layer_recurrent_32_f16) + (g->dtype == HZ_BF16);
	const int threads = wide ? HZI_GEMV_WIDE_THREADS : HZI_GEMV_MMA_THREADS;
	const int bytes = HZI_GEMV_MMA_BYTES / HZI_GEMV_MMA_THREADS * threads;
	const int64_t slices = ceil_div(g->n, COLUMNS_MOST);
	struct hzi_quat_fused_step p = {
		.product = {
			.out = hzi_quat_out_of(g),
			.a = hzi_quat_matrix_of(&g->a, g->dtype, 0, g->a_stride, g->ndim),
			.b = hzi_quat_matrix_of(&g->b, g->dtype, 0, g->b_stride, g->ndim),
			.k = (int32_t)g->k, .share = (int32_t)g->k, .shares = 1,
			.stages = HZI_GEMV_STAGES,
		},
		.cell = *a,
	};
	struct hzi_launch l = {
		.grid = {(unsigned)(g->m / HZI_QUAT_CELL_ROWS * slices), 1, (unsigned)a->directions},
		.block = {(unsigned)threads}, .early = true,
	};

	while (p.product.stages * bytes + SUMS_BYTES > hzi_cuda_device(ctx)->shared_block_bytes)
		p.product.stages--;
	l.shared_bytes = (unsigned)(p.product.stages * bytes);
	return hzi_cuda_launch(ctx, op, kernel, &l, &p, sizeof(p));
}
