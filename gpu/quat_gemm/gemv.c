/*
 * gemv.c - launchers of GEMV and skinny GEMM of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_gemm/gemv.h"
#include "gpu/quat_gemm/launch.h"

HZI_LINK_IMAGES(quat_gemm);

#define ITEMS_MAX 65535			/* of a grid, along z */
#define SHARES_MAX 1024
#define ROWS_BLOCKS 512			/* blocks that read at full bandwidth */
#define MMA_BLOCKS 96
#define WIDE_BLOCKS 128			/* one per SM */
#define MMA_TERMS 32 /* least k of f32: errors of 2^-17 per term do not show in the sum */
#define TRANSPOSED_BLOCKS 1024

#define ROWS_SMALL ((int64_t)1 << 20)	/* m k up to which they are faster than tensor cores */
#define ROWS_COLUMNS_16BIT 2
#define PLANAR_COLUMNS_MOST 16
#define PLANAR_BLOCKS 256		/* two per SM */
#define PLANAR_WARPS (HZI_GEMV_THREADS / 32)

enum path { ROWS, MMA, TRANSPOSED, PLANAR };

/* A launch: rows of C and threads of a block; shares of k in whole steps; parts: of PLANAR */
struct plan {
	int kernel, rows, threads, stages, stage_bytes, parts;
	int64_t items, slices, shares, share;
	struct hzi_quat_matrix a;
};

/* ---- Which calls are supported --------------------------------------------------------------- */

static const char *b_unsupported(const struct hzi_quat_gemm_args *a)
{
	if (a->k == 0)
		return "k is 0";
	return hzi_quat_matrix_of(&a->b, a->dtype, 0, a->b_stride, a->ndim).whole
		       ? NULL : "quaternions of b are not contiguous and aligned";
}

static const char *operands_unsupported(const struct hzi_quat_gemm_args *a)
{
	if (a->packed)
		return "a is packed";
	if (!hzi_quat_matrix_of(&a->a, a->dtype, 0, a->a_stride, a->ndim).whole)
		return "quaternions of a are not contiguous and aligned";
	return b_unsupported(a);
}

/* Whether a row of 16-bit quaternions is pairs of them, aligned to 16 bytes. */
static bool has_pairs(const struct hzi_quat_gemm_args *a)
{
	int64_t steps = a->a.row;

	for (int d = 0; d < a->ndim; d++)
		steps |= a->a_stride[d];
	return steps % 8 == 0 && a->k % 2 == 0 && (uintptr_t)a->a.data % 16 == 0;
}

const char *hzi_cuda_quat_gemm_gemv_rows_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	(void)ctx;
	if (a->a.col != 4)
		return "rows of a are not contiguous";
	if (a->dtype != HZ_F32 && !has_pairs(a))
		return "rows of a are not pairs of quaternions aligned to 16 bytes";
	if (a->n > (a->dtype == HZ_F32 ? HZI_GEMV_COLUMNS : ROWS_COLUMNS_16BIT))
		return "more than 8 columns, or 2 of 16 bits";
	return operands_unsupported(a);
}

const char *hzi_cuda_quat_gemm_gemv_mma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	if (a->a.col != 4)
		return "rows of a are not contiguous";
	if (a->dtype == HZ_F32 && a->precision == HZ_PRECISION_F32)
		return "the precision is f32";
	if (a->dtype == HZ_F32 && a->k < MMA_TERMS)
		return "fewer than 32 terms of f32";
	if (a->dtype != HZ_F32 && !has_pairs(a))
		return "rows of a are not pairs of quaternions aligned to 16 bytes";
	if (a->n > HZI_GEMV_WIDE_COLUMNS_MOST)
		return "more than 64 columns";
	if (hzi_cuda_device(ctx)->shared_block_bytes < 2 * HZI_GEMV_MMA_BYTES)
		return "too little shared memory per block";
	return operands_unsupported(a);
}

/*
 * Than ROWS, which has shorter code and more blocks. Up to 2 columns of f32: splitting into 16-bit
 * terms takes longer than f32 multiply-adds.
 */
bool hzi_cuda_quat_gemm_gemv_mma_is_slower(const struct hzi_quat_gemm_args *a)
{
	const bool small = a->m * a->k <= ROWS_SMALL;

	if (a->dtype != HZ_F32)
		return a->n <= ROWS_COLUMNS_16BIT && small;
	return a->n <= 2 || (a->n <= 4 && small);
}

/* Whether packed A is planes of high and low parts; *planes becomes them, without data */
static bool is_split_planar(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
			    struct hzi_quat_planar *planes)
{
	int split;

	if (!hzi_cuda_quat_gemm_packs_f16(ctx, a->dtype, a->precision, a->m, a->k) ||
	    !hzi_quat_uses_planar_f16(ctx, a->dtype, a->precision, &split))
		return false;
	*planes = hzi_quat_packed_planes(a->m, a->k, a->method, split);
	return split;
}

const char *hzi_cuda_quat_gemm_gemv_planar_unsupported(const struct hz_context *ctx,
							const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	struct hzi_quat_planar planes;

	if (!a->packed || a->packed_t)
		return "a is not packed, or its transpose is";
	if (a->n > PLANAR_COLUMNS_MOST)
		return "more than 16 columns";
	if (a->dtype != HZ_F32 || !is_split_planar(ctx, a, &planes))
		return "a is not packed as high and low planes of f16";
	return b_unsupported(a);
}

const char *hzi_cuda_quat_gemm_gemv_transposed_unsupported(const struct hz_context *ctx,
							    const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	(void)ctx;
	if (a->n > HZI_GEMV_COLUMNS)
		return "more than 8 columns";
	return a->a.row == 4 ? operands_unsupported(a) : "columns of a are not contiguous";
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Packed A in the form of planar kernels */
static struct hzi_quat_gemv_planar planar_of(const struct hz_context *ctx,
					     const struct hzi_quat_gemm_args *a)
{
	const int64_t item = hzi_quat_pack_bytes(a->layout, a->dtype, a->m, a->k) / 2;
	struct hzi_quat_planar planes;
	struct hzi_quat_gemv_planar p;
	uint16_t *first;
	int64_t plane;

	is_split_planar(ctx, a, &planes);
	hzi_quat_planar_set(&planes, (void *)(uintptr_t)a->packed);
	plane = planes.all_lines * planes.all_k;
	first = planes.data + (planes.count - 4) * plane;
	p = (struct hzi_quat_gemv_planar){
		.g = {.a = {.data = first, .row = planes.all_k, .conj = a->conj_a}},
		.plane = plane / 2, .low = planes.count * plane / 2,
		.scales = (const uint16_t *)(const void *)planes.scales - first,
		/* Components of the fast method are twice those of A. */
		.factor = a->method == HZ_QUAT_FAST ? 0.5f : 1,
	};
	for (int d = 0; d < a->ndim; d++)
		p.g.a.batch[HZI_QUAT_BATCH - a->ndim + d] = a->packed_stride[d] * item;
	return p;
}

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
			   enum path path)
{
	static const int rows_kernels[] = {HZI_KERNEL_quat_gemv_rows_f32_1,
					   HZI_KERNEL_quat_gemv_rows_f16_1,
					   HZI_KERNEL_quat_gemv_rows_bf16_1};
	static const int transposed_kernels[] = {HZI_KERNEL_quat_gemv_transposed_f32_1,
						 HZI_KERNEL_quat_gemv_transposed_f16_1,
						 HZI_KERNEL_quat_gemv_transposed_bf16_1};
	const bool wide = a->n > HZI_GEMV_COLUMNS;
	const int size = a->n > 4 ? 3 : a->n > 2 ? 2 : (int)a->n - 1;
	const int type = a->dtype == HZ_F32 ? 0 : a->dtype == HZ_F16 ? 1 : 2;
	struct plan p = {
		.a = hzi_quat_matrix_of(&a->a, a->dtype, a->conj_a, a->a_stride, a->ndim),
		.threads = HZI_GEMV_THREADS, .stage_bytes = HZI_GEMV_MMA_BYTES, .slices = 1,
		.parts = 1,
	};
	int64_t shape[HZI_QUAT_BATCH], blocks, want, least;

	p.items = hzi_quat_batch_of(shape, a->shape, a->ndim);
	switch (path) {
	case ROWS:
		p.kernel = rows_kernels[type] + size;
		p.rows = HZI_GEMV_ROWS;
		want = ROWS_BLOCKS;
		least = 4 * HZI_GEMV_THREADS;
		break;
	case PLANAR:
		p.kernel = HZI_KERNEL_quat_gemv_planar_1 + (size < 2 ? size : 2);
		p.slices = ceil_div(a->n, HZI_GEMV_PLANAR_COLUMNS);
		least = 64 * HZI_GEMV_PLANAR_U(size < 2 ? size + 1 : HZI_GEMV_PLANAR_COLUMNS);
		/* Warps loop over k, unless blocks are too few. */
		while (p.parts < PLANAR_WARPS && 2 * least <= a->k &&
		       (4 * least <= a->k || a->m * p.slices * p.items * p.parts <
						     PLANAR_BLOCKS * PLANAR_WARPS *
							     HZI_GEMV_PLANAR_ROWS)) {
			p.parts *= 2;
			least *= 2;
		}
		least *= 2;	/* a second launch takes as long as some steps */
		p.rows = PLANAR_WARPS / p.parts * HZI_GEMV_PLANAR_ROWS;
		want = PLANAR_BLOCKS;
		break;
	case MMA:
		p.kernel = (wide ? HZI_KERNEL_quat_gemv_mma16_f32 : HZI_KERNEL_quat_gemv_mma_f32) +
			   type;
		p.rows = HZI_GEMV_MMA_ROWS;
		p.threads = wide ? HZI_GEMV_WIDE_THREADS : HZI_GEMV_MMA_THREADS;
		p.stages = HZI_GEMV_STAGES;
		p.stage_bytes = HZI_GEMV_MMA_BYTES / HZI_GEMV_MMA_THREADS * p.threads;
		want = wide ? WIDE_BLOCKS : MMA_BLOCKS;
		least = 256;
		break;
	default:
		p.kernel = transposed_kernels[type] + size;
		p.rows = HZI_GEMV_TRANSPOSED_ROWS;
		want = TRANSPOSED_BLOCKS;
		least = 64;
	}
	/*
	 * Shares of k depend on shapes alone, so that the order of summation is the same on every
	 * GPU.
	 */
	while (p.stages * p.stage_bytes > hzi_cuda_device(ctx)->shared_block_bytes)
		p.stages--;
	if (wide && path == MMA)
		p.slices = ceil_div(a->n, HZI_GEMV_WIDE_COLUMNS);
	blocks = ceil_div(a->m, p.rows) * p.slices * p.items;
	p.shares = blocks < want ? ceil_div(want, blocks) : 1;
	if (p.shares > SHARES_MAX)
		p.shares = SHARES_MAX;
	p.share = ceil_div(ceil_div(a->k, p.shares), least) * least;
	p.shares = ceil_div(a->k, p.share);
	return p;
}

static int64_t group_of(const struct plan *p)
{
	return p->items < ITEMS_MAX ? p->items : ITEMS_MAX;
}

static size_t workspace(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
			enum path path)
{
	const struct plan p = plan_of(ctx, a, path);

	return p.shares == 1 ? 0 : (size_t)(group_of(&p) * p.shares * a->n * a->m * 16);
}

static int run(struct hz_context *ctx, const struct hzi_quat_gemm_args *a, enum path path)
{
	const struct plan plan = plan_of(ctx, a, path);
	const int64_t group = group_of(&plan);
	struct hzi_quat_gemv_planar p =
		path == PLANAR ? planar_of(ctx, a) : (struct hzi_quat_gemv_planar){.g.a = plan.a};
	struct hzi_quat_gemv *const g = &p.g;
	const size_t bytes = path == PLANAR ? sizeof(p) : sizeof(*g);

	g->out = hzi_quat_out_of(a);
	g->b = hzi_quat_matrix_of(&a->b, a->dtype, a->conj_b, a->b_stride, a->ndim);
	g->partial = plan.shares > 1 ? ctx->workspace : NULL;
	g->k = (int32_t)a->k;
	g->share = (int32_t)plan.share;
	g->shares = (int32_t)plan.shares;
	g->stages = plan.stages;
	p.parts = plan.parts;
	p.slices = (int32_t)plan.slices;
	for (g->first = 0; g->first < plan.items; g->first += group) {
		const int64_t rest = plan.items - g->first;
		struct hzi_launch l = {
			.grid = {(unsigned)(ceil_div(a->m, plan.rows) * plan.slices),
				 (unsigned)plan.shares,
				 (unsigned)(rest < group ? rest : group)},
			.block = {(unsigned)plan.threads},
			.shared_bytes = (unsigned)(plan.stages * plan.stage_bytes),
			.early = true,
		};

		HZ_CHECK(hzi_cuda_launch(ctx, "quat_gemm", plan.kernel, &l, &p, bytes));
		if (plan.shares == 1)
			continue;
		l.grid[0] = (unsigned)ceil_div(a->m, HZI_GEMV_THREADS);
		l.grid[1] = (unsigned)a->n;
		l.block[0] = HZI_GEMV_THREADS;
		l.shared_bytes = 0;
		HZ_CHECK(hzi_cuda_launch(ctx, "quat_gemm", HZI_KERNEL_quat_gemv_finish, &l, g,
					 sizeof(*g)));
	}
	return HZ_OK;
}

size_t hzi_cuda_quat_gemm_gemv_rows_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, ROWS);
}

int hzi_cuda_quat_gemm_gemv_rows(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, ROWS);
}

size_t hzi_cuda_quat_gemm_gemv_mma_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, MMA);
}

int hzi_cuda_quat_gemm_gemv_mma(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, MMA);
}

size_t hzi_cuda_quat_gemm_gemv_transposed_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, TRANSPOSED);
}

int hzi_cuda_quat_gemm_gemv_transposed(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, TRANSPOSED);
}

size_t hzi_cuda_quat_gemm_gemv_planar_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, PLANAR);
}

int hzi_cuda_quat_gemm_gemv_planar(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, PLANAR);
}
