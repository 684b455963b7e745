/*
 * hadamard_base.c - launcher of the kernels for rows of m 2^k back to back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cuda.h"
#include "gpu/hadamard_fast.h"
#include "gpu/hadamard_launch.h"

#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5

/* Threads of a block that goes through so many warps' worth in equal turns */
static unsigned threads_for(int64_t warps, int m)
{
	const int64_t most = HZI_FAST_BASE_WARPS(m), turns = (warps + most - 1) / most;

	return 32u * (unsigned)((warps + turns - 1) / turns);
}

/* Of Paley's second matrices, which are symmetric, the transpose is the same. */
int hzi_hadamard_base(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	struct hzi_hadamard_fast_base p = {
		.f = {.x = a->x, .y = a->y, .total = a->blocks * a->plan.n, .mask = seg->length - 1,
		      .k = seg->k, .factor = seg->scale},
		.tile = (int32_t)seg->length};
	const int first = a->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_base_f16_m12
			  : a->x_dtype == HZ_BF16 ? HZI_KERNEL_hadamard_base_bf16_m12
						  : HZI_KERNEL_hadamard_base_f32_m12;
	struct hzi_launch launch = {0};
	int64_t blocks;

	*done = false;
	if (!hzi_hadamard_back_to_back(a) || (seg->m != 12 && seg->m != 20 && seg->m != 28) ||
	    a->pre.kind || a->post.kind || seg->k < LOG2_MIN || seg->base->id != HZ_BASE_PALEY2)
		return HZ_OK;
	while (p.tile % 1024)
		p.tile *= 2;
	launch.shared_bytes = (unsigned)p.tile * sizeof(float);
	blocks = p.f.total / p.tile + (p.f.total % p.tile != 0);
	if ((int64_t)launch.shared_bytes > hzi_cuda_device(ctx)->shared_block_bytes || blocks > GRID_MAX)
		return HZ_OK;
	launch.grid[0] = (unsigned)blocks;
	launch.block[0] = threads_for(p.tile / 1024, seg->m);
	*done = true;
	return hzi_cuda_launch(ctx, "hadamard", HZI_FAMILY_HADAMARD_BASE, first + (seg->m - 12) / 8, &launch,
			       &p, sizeof(p));
}
