/*
 * hadamard_fast.c - launcher of the kernels for rows of one dtype back to back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cuda.h"
#include "gpu/hadamard_fast.h"
#include "gpu/hadamard_launch.h"

#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_MAX 15
#define STAGE_BYTES 65536	/* of shared memory for the next row of 2^15 elements of 16 bits */

/* Whether the kernels can take these signs: none, or the same whole words for every row */
static bool takes_signs(const struct hzi_diag *diag, bool one_row)
{
	return !diag->kind || (diag->kind == HZ_U8 && diag->block_step == 0 && one_row &&
			       (uintptr_t)diag->data % 4 == 0);
}

/* Threads of a block that goes through so many warps' worth in equal turns */
static unsigned threads_for(int64_t warps, int m)
{
	const int64_t most = HZI_FAST_BASE_WARPS(m), turns = (warps + most - 1) / most;

	return 32u * (unsigned)((warps + turns - 1) / turns);
}

/* Rows of m 2^k, m = 12, 20, 28 with the symmetric matrix, which its transpose equals. */
static int launch_base(struct hz_context *ctx, const struct hzi_hadamard_args *a,
		       const struct hzi_hadamard_fast *f, int first, bool *done)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	struct hzi_hadamard_fast_base p = {.f = *f, .tile = (int32_t)seg->length};
	struct hzi_launch launch = {0};
	int64_t blocks;

	if (f->pre || f->post || seg->k < LOG2_MIN || seg->base->id != HZ_BASE_PALEY2)
		return HZ_OK;
	while (p.tile % 1024)
		p.tile *= 2;
	launch.shared_bytes = (unsigned)p.tile * sizeof(float);
	blocks = f->total / p.tile + (f->total % p.tile != 0);
	if ((int64_t)launch.shared_bytes > hzi_cuda_device(ctx)->shared_block_bytes || blocks > GRID_MAX)
		return HZ_OK;
	launch.grid[0] = (unsigned)blocks;
	launch.block[0] = threads_for(p.tile / 1024, seg->m);
	*done = true;
	return hzi_cuda_launch(ctx, "hadamard", HZI_FAMILY_HADAMARD_FAST, first + (seg->m - 12) / 8, &launch,
			       &p, sizeof(p));
}

/* Rows of 2^k. */
static int launch_rows(struct hz_context *ctx, const struct hzi_hadamard_fast *p, int first, bool half,
		       bool *done)
{
	const struct hzi_cuda_device *device = hzi_cuda_device(ctx);
	const int above = p->k > 10 ? p->k - 10 : 0;
	const int64_t tile = (int64_t)1024 << above;
	struct hzi_launch launch = {.block = {32u << above}};
	int64_t blocks = p->total / tile + (p->total % tile != 0);

	if (p->k < LOG2_MIN || p->k > LOG2_MAX || blocks > GRID_MAX)
		return HZ_OK;
	if (above || !half)
		launch.shared_bytes = HZI_FAST_WARP_BYTES << above;
	if (p->k == LOG2_MAX && half) {
		launch.shared_bytes += STAGE_BYTES;
		if (blocks > device->multiprocessors)
			blocks = device->multiprocessors;
	}
	if ((int64_t)launch.shared_bytes > device->shared_block_bytes)
		return HZ_OK;
	launch.grid[0] = (unsigned)blocks;
	*done = true;
	return hzi_cuda_launch(ctx, "hadamard", HZI_FAMILY_HADAMARD_FAST,
			       first + 2 * above + (p->pre || p->post), &launch, p, sizeof(*p));
}

int hzi_hadamard_fast(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const struct hzi_hadamard_fast p = {
		.x = a->x, .y = a->y, .pre = a->pre.data, .post = a->post.data,
		.total = a->blocks * a->plan.n, .mask = seg->length - 1, .k = seg->k, .factor = seg->scale};
	const int dtype = a->x_dtype;

	*done = false;
	if (a->plan.nseg > 1 || a->ndim > 0 || a->x_dtype != a->y_dtype || a->x_step != 1 || a->y_step != 1 ||
	    a->x_block != a->plan.n || a->y_block != a->plan.n || ((uintptr_t)a->x | (uintptr_t)a->y) % 16 ||
	    !takes_signs(&a->pre, seg->count == 1) || !takes_signs(&a->post, seg->count == 1))
		return HZ_OK;
	if (seg->m == 1)
		return launch_rows(ctx, &p, dtype == HZ_F16 ? HZI_KERNEL_hadamard_fast_f16_10
					    : dtype == HZ_BF16 ? HZI_KERNEL_hadamard_fast_bf16_10
							       : HZI_KERNEL_hadamard_fast_f32_10,
				   dtype != HZ_F32, done);
	if (seg->m == 12 || seg->m == 20 || seg->m == 28)
		return launch_base(ctx, a, &p, dtype == HZ_F16 ? HZI_KERNEL_hadamard_fast_f16_m12
					       : dtype == HZ_BF16 ? HZI_KERNEL_hadamard_fast_bf16_m12
								  : HZI_KERNEL_hadamard_fast_f32_m12, done);
	return HZ_OK;
}
