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
#define STREAMED_MOST 16		/* units of a warp that a step reads from L2 */
#define LAUNCHES_MOST 4		/* of persistent kernels, one after the other */

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

/* ---- All steps in one kernel ----------------------------------------------------------------- */

/* Launches of all steps, each of some slices of up to 32 sequences and of one or both directions */
struct persistent {
	struct hzi_launch launch;	/* its grid: most slices and directions at a time */
	int64_t slices, launches;	/* 0: unsupported */
	int32_t groups, units, streamed;	/* of 8 sequences; of a warp, or tiles with wgmma */
	int kernel;			/* the one for f16 */
};

/*
 * The tiles of U that stay in shared memory with wgmma, for the 32 sequences of a slice; 0: it does
 * not support the layer. A block has the columns of every other 16 quaternions.
 */
static int64_t wgmma_tiles(const struct hz_context *ctx, int64_t hidden, int64_t blocks)
{
	const int64_t bytes = hzi_cuda_device(ctx)->shared_block_bytes - HZI_QUAT_WGMMA_BYTES(0);
	const int64_t tiles = hidden / 32, most = bytes / HZI_QUAT_WGMMA_U_TILE;

	/* The kernel multiplies by a tile from shared memory after each one from registers. */
	if (!ctx->sm_90a || hidden % 32 || blocks % 2 ||
	    tiles > most + min_of(most, HZI_QUAT_WGMMA_HELD))
		return 0;
	return min_of(tiles, most);
}

static struct persistent persistent_of(const struct hz_context *ctx,
				       const struct hzi_quat_cell_step *a)
{
	const struct hzi_cuda_device *d = hzi_cuda_device(ctx);
	const int64_t warps = HZI_QUAT_PERSISTENT_THREADS / 32;
	const int64_t neurons = HZI_QUAT_CELL_ROWS / HZI_QUAT_CELL_GATES(a->cell);
	const int64_t blocks = a->hidden / neurons;
	struct persistent p = {
		.launch = {.block = {HZI_QUAT_PERSISTENT_THREADS}, .cooperative = true,
			   .aligned = true},
	};
	int64_t shared, most, bytes, at_a_time;

	if (a->y.dtype == HZ_F32 || a->steps < STEPS_LEAST || a->steps > INT32_MAX ||
	    a->batch <= 0 || a->hidden % neurons || blocks == 0 || blocks > d->sms)
		return p;
	p.groups = a->batch <= 8 ? 1 : a->batch <= 16 ? 2 : 4;
	p.units = p.groups == 4 ? (int32_t)wgmma_tiles(ctx, a->hidden, blocks) : 0;
	if (p.units) {
		p.kernel = HZI_KERNEL_quat_layer_wgmma_32_f16;
		p.launch.block[0] = HZI_QUAT_WGMMA_THREADS;
		p.launch.cluster = 2;
		bytes = HZI_QUAT_WGMMA_BYTES(p.units);
	} else {
		p.kernel = p.groups == 1 ? HZI_KERNEL_quat_layer_persistent_8_f16 :
			   p.groups == 2 ? HZI_KERNEL_quat_layer_persistent_16_f16 :
			   HZI_KERNEL_quat_layer_persistent_32_f16;
		p.units = (int32_t)ceil_div(a->hidden, 4 * warps);
		shared = max_of(p.units - HZI_QUAT_PERSISTENT_KEPT(p.groups), 0);
		most = (d->shared_block_bytes / warps - HZI_QUAT_PERSISTENT_RING(p.groups)) /
		       HZI_QUAT_PERSISTENT_UNIT;
		p.streamed = (int32_t)max_of(shared - most, 0);
		if (p.streamed > (p.groups == 4 ? STREAMED_MOST : 0))
			return p;
		bytes = warps * (HZI_QUAT_PERSISTENT_RING(p.groups) +
				 (shared - p.streamed) * HZI_QUAT_PERSISTENT_UNIT);
	}
	p.slices = ceil_div(a->batch, 8 * p.groups);
	at_a_time = d->sms / blocks;
	p.launch.grid[0] = (unsigned)blocks;
	p.launch.grid[2] = (unsigned)min_of(a->directions, at_a_time);
	p.launch.grid[1] = (unsigned)min_of(p.slices, at_a_time / p.launch.grid[2]);
	p.launch.shared_bytes = (unsigned)bytes;
	p.launches = ceil_div(p.slices, p.launch.grid[1]) *
		     ceil_div(a->directions, p.launch.grid[2]);
	return p;
}

int64_t hzi_cuda_quat_cell_persists(const struct hz_context *ctx,
				    const struct hzi_quat_cell_step *a)
{
	const struct persistent p = persistent_of(ctx, a);

	/* Of more sequences products of all of them at once are faster. */
	return p.launches > LAUNCHES_MOST ? 0 : 8 * p.groups * p.slices;
}

int hzi_cuda_quat_cell_all_steps(struct hz_context *ctx, const char *op,
				 const struct hzi_quat_all_steps *a)
{
	const struct persistent s = persistent_of(ctx, &a->cell);
	const int kernel = s.kernel + (a->u.dtype == HZ_BF16);
	struct hzi_quat_persistent p = {
		.u = a->u.data, .u_direction = a->u.stride[0], .u_row = a->u.stride[1],
		.state = {a->cell.operand.data, a->other}, .done = a->done, .units = s.units,
		.streamed = s.streamed,
		.pitch = (int32_t)(8 * a->columns), .slices = (int32_t)s.slices, .cell = a->cell,
	};
	struct hzi_launch l = s.launch;

	for (int64_t d = 0; d < a->cell.directions; d += l.grid[2]) {
		for (int64_t i = 0; i < s.slices; i += s.launch.grid[1]) {
			l.grid[1] = (unsigned)min_of(s.launch.grid[1], s.slices - i);
			p.slice = (int32_t)i;
			p.direction = (int32_t)d;
			HZ_CHECK(hzi_cuda_launch(ctx, op, kernel, &l, &p, sizeof(p)));
		}
	}
	return HZ_OK;
}
