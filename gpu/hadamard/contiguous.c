/*
 * contiguous.c - launcher of the kernels for rows of one dtype back to back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/hadamard/contiguous.h"
#include "gpu/hadamard/launch.h"

#define SM_CLUSTERS 90		/* the first with clusters */
#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_MAX 16

/* A kernel's geometry: elements and shared memory of a block; cluster: blocks for a row. */
struct shape {
	int threads, elements, shared_bytes, cluster;
	int turns;		/* of a block where multiprocessors have more than two each */
	bool stays;		/* a block for each multiprocessor */
};

#define WARPS(n) \
	.threads = 32 * (n), .elements = 1024 * (n), .shared_bytes = HZI_FAST_WARP_BYTES * (n)

/* Rows of 2^10 and less, then of 2^11 to 2^16; of f32 of 2^7 and less, then of 2^8 to 2^16 */
static const struct shape halves[] = {
	{.threads = 32, .elements = 1024},
	{WARPS(2)},
	{WARPS(4)},
	{WARPS(8)},
	{.threads = 256, .elements = 1 << 14, .shared_bytes = 4 << 14, .turns = HZI_FAST_TURNS},
	{.threads = 512, .elements = 1 << 15, .shared_bytes = 4 << 15, .stays = true},
	/* raw data, and values of a quarter of the row */
	{.threads = 512, .elements = 1 << 16, .shared_bytes = (2 << 16) + (4 << 14), .stays = true},
}, singles[] = {
	{.threads = 128, .elements = 512},
	{.threads = 64, .elements = 512},
	{.threads = 32, .elements = 512},
	{WARPS(1)},
	{WARPS(2)},
	{WARPS(4)},
	{WARPS(8)},
	{WARPS(16)},
	{WARPS(32)},
	{WARPS(8), .cluster = 8},
};

/* Whether the kernels can take these signs: none, or the same whole words for every row */
static bool takes_signs(const struct hzi_diag *diag, bool one_row)
{
	return !diag->kind || (diag->kind == HZ_U8 && diag->block_step == 0 && one_row &&
			       (uintptr_t)diag->data % 4 == 0);
}

/* Rows of 2^k. */
static int launch_rows(struct hz_context *ctx, const struct hzi_hadamard_fast *p, int first,
		       bool half, bool *done)
{
	const struct hzi_cuda_device *device = hzi_cuda_device(ctx);
	const int least = half ? 10 : 7;
	const int above = p->k > LOG2_MAX ? 0 : p->k > least ? p->k - least : 0;
	const struct shape *s = half ? &halves[above] : &singles[above];
	struct hzi_launch launch = {.block = {(unsigned)s->threads},
				    .shared_bytes = (unsigned)s->shared_bytes,
				    .cluster = (unsigned)s->cluster};
	int64_t blocks;

	if (p->k < LOG2_MIN || p->k > LOG2_MAX)
		return HZ_OK;
	blocks = p->total / s->elements + (p->total % s->elements != 0);
	if (s->turns && blocks > 2 * device->multiprocessors)
		blocks = (blocks + s->turns - 1) / s->turns;
	if (s->stays && blocks > device->multiprocessors)
		blocks = device->multiprocessors;
	if (blocks > GRID_MAX || s->shared_bytes > device->shared_block_bytes ||
	    (s->cluster && device->sm < SM_CLUSTERS))
		return HZ_OK;
	launch.grid[0] = (unsigned)blocks;
	*done = true;
	return hzi_cuda_launch(ctx, "hadamard", first + 2 * above + (p->pre || p->post), &launch, p,
			       sizeof(*p));
}

int hzi_hadamard_fast(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const struct hzi_hadamard_fast p = {
		.x = a->x, .y = a->y, .pre = a->pre.data, .post = a->post.data,
		.total = a->blocks * a->plan.n, .mask = seg->length - 1, .k = seg->k,
		.factor = seg->scale};
	const int dtype = a->x_dtype;

	*done = false;
	if (!hzi_hadamard_back_to_back(a) || seg->m > 1 || !takes_signs(&a->pre, seg->count == 1) ||
	    !takes_signs(&a->post, seg->count == 1))
		return HZ_OK;
	return launch_rows(ctx, &p, dtype == HZ_F16 ? HZI_KERNEL_hadamard_fast_f16_10
				    : dtype == HZ_BF16 ? HZI_KERNEL_hadamard_fast_bf16_10
						       : HZI_KERNEL_hadamard_fast_f32_7,
			   dtype != HZ_F32, done);
}
