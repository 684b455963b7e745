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
	if (!hzi_hadamard_back_to_back(a) || seg->m > 1 || !takes_signs(&a->pre, seg->count == 1) ||
	    !takes_signs(&a->post, seg->count == 1))
		return HZ_OK;
	return launch_rows(ctx, &p, dtype == HZ_F16 ? HZI_KERNEL_hadamard_fast_f16_10
				    : dtype == HZ_BF16 ? HZI_KERNEL_hadamard_fast_bf16_10
						       : HZI_KERNEL_hadamard_fast_f32_10,
			   dtype != HZ_F32, done);
}
