/*
 * gemv.c - launchers of products of a quaternion matrix by few columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_gemm/gemv.h"
#include "gpu/quat_gemm/launch.h"

HZI_LINK_IMAGES(quat_gemm);

#define ITEMS_MAX 65535			/* of a grid along z */
#define SHARES_MAX 1024
#define ROWS_BLOCKS 512			/* enough to read at full speed */
#define MMA_BLOCKS 96
#define MMA_TERMS 32			/* of f32: where errors of 2^-17 count for little */
#define LINES_BLOCKS 1024

enum way { NONE, ROWS, MMA, LINES };

/* How a call is done: rows of C and threads of a block, shares of k in whole steps. */
struct plan {
	enum way way;
	int kernel, rows, threads, stages;
	int64_t items, shares, share;
	struct hzi_quat_matrix a;
};

/* 16-byte pieces of 16 bits: pairs of quaternions everywhere */
static bool has_pairs(const struct hzi_quat_gemm_args *a)
{
	int64_t steps = a->a.row;

	for (int d = 0; d < a->ndim; d++)
		steps |= a->a_stride[d];
	return steps % 8 == 0 && a->k % 2 == 0 && (uintptr_t)a->a.data % 16 == 0;
}

static enum way way_of(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	const bool f32 = a->dtype == HZ_F32;
	const bool mma = hzi_cuda_device(ctx)->shared_block_bytes >= 2 * HZI_GEMV_MMA_BYTES;

	if (a->n > HZI_GEMV_COLUMNS || a->packed || a->k == 0 ||
	    !hzi_quat_matrix_of(&a->a, a->dtype, 0, a->a_stride, a->ndim).whole ||
	    !hzi_quat_matrix_of(&a->b, a->dtype, 0, a->b_stride, a->ndim).whole)
		return NONE;
	if (a->a.col == 4) {
		if (f32)
			return !mma || a->n <= 2 || a->k < MMA_TERMS ||
			       a->precision == HZ_PRECISION_F32 ? ROWS : MMA;
		if (mma && has_pairs(a))
			return MMA;
	}
	return a->a.row == 4 ? LINES : NONE;
}

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	static const int lines_kernels[] = {HZI_KERNEL_quat_gemv_lines_f32_1,
					    HZI_KERNEL_quat_gemv_lines_f16_1,
					    HZI_KERNEL_quat_gemv_lines_bf16_1};
	const int size = a->n > 4 ? 3 : a->n > 2 ? 2 : (int)a->n - 1;
	const int type = a->dtype == HZ_F32 ? 0 : a->dtype == HZ_F16 ? 1 : 2;
	struct plan p = {
		.a = hzi_quat_matrix_of(&a->a, a->dtype, a->conj_a, a->a_stride, a->ndim),
		.threads = HZI_GEMV_THREADS,
	};
	int64_t shape[HZI_QUAT_BATCH], blocks, want, least;

	p.way = way_of(ctx, a);
	p.items = hzi_quat_batch_of(shape, a->shape, a->ndim);
	switch (p.way) {
	case ROWS:
		p.kernel = HZI_KERNEL_quat_gemv_rows_1 + size;
		p.rows = HZI_GEMV_ROWS;
		want = ROWS_BLOCKS;
		least = 4 * HZI_GEMV_THREADS;
		break;
	case MMA:
		p.kernel = HZI_KERNEL_quat_gemv_mma_f32 + type;
		p.rows = HZI_GEMV_MMA_ROWS;
		p.threads = HZI_GEMV_MMA_THREADS;
		p.stages = HZI_GEMV_STAGES;
		while (p.stages * HZI_GEMV_MMA_BYTES > hzi_cuda_device(ctx)->shared_block_bytes)
			p.stages--;
		want = MMA_BLOCKS;
		least = 512;
		break;
	default:
		p.kernel = lines_kernels[type] + size;
		p.rows = HZI_GEMV_LINE;
		want = LINES_BLOCKS;
		least = 64;
	}
	/* Shares of k as shapes say, so that the order of sums is the same on every GPU */
	blocks = ceil_div(a->m, p.rows) * p.items;
	p.shares = blocks < want ? ceil_div(want, blocks) : 1;
	if (p.shares > SHARES_MAX)
		p.shares = SHARES_MAX;
	p.share = ceil_div(ceil_div(a->k, p.shares), least) * least;
	p.shares = ceil_div(a->k, p.share);
	return p;
}

bool hzi_cuda_quat_gemv_takes(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	return way_of(ctx, a) != NONE;
}

static int64_t group_of(const struct plan *p)
{
	return p->items < ITEMS_MAX ? p->items : ITEMS_MAX;
}

size_t hzi_cuda_quat_gemv_workspace(const struct hz_context *ctx,
				    const struct hzi_quat_gemm_args *a)
{
	const struct plan p = plan_of(ctx, a);

	return p.shares == 1 ? 0 : (size_t)(group_of(&p) * p.shares * a->n * a->m * 16);
}

int hzi_cuda_quat_gemv(struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	const struct plan plan = plan_of(ctx, a);
	const int64_t group = group_of(&plan);
	struct hzi_quat_gemv p = {
		.out = hzi_quat_out_of(a), .a = plan.a,
		.b = hzi_quat_matrix_of(&a->b, a->dtype, a->conj_b, a->b_stride, a->ndim),
		.partial = plan.shares > 1 ? ctx->workspace : NULL,
		.k = (int32_t)a->k, .share = (int32_t)plan.share, .shares = (int32_t)plan.shares,
		.stages = plan.stages,
	};

	for (p.first = 0; p.first < plan.items; p.first += group) {
		const int64_t rest = plan.items - p.first;
		struct hzi_launch l = {
			.grid = {(unsigned)ceil_div(a->m, plan.rows), (unsigned)plan.shares,
				 (unsigned)(rest < group ? rest : group)},
			.block = {(unsigned)plan.threads},
			.shared_bytes = (unsigned)(plan.stages * HZI_GEMV_MMA_BYTES),
			.early = true,
		};

		HZ_CHECK(hzi_cuda_launch(ctx, "quat_gemm", plan.kernel, &l, &p, sizeof(p)));
		if (plan.shares == 1)
			continue;
		l.grid[0] = (unsigned)ceil_div(a->m, HZI_GEMV_THREADS);
		l.grid[1] = (unsigned)a->n;
		l.block[0] = HZI_GEMV_THREADS;
		l.shared_bytes = 0;
		HZ_CHECK(hzi_cuda_launch(ctx, "quat_gemm", HZI_KERNEL_quat_gemv_finish, &l, &p,
					 sizeof(p)));
	}
	return HZ_OK;
}
