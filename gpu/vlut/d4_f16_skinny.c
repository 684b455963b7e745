/*
 * d4_f16_skinny.c - launcher of skinny GEMM of packed D4 and up to 8 columns of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/d4_f16_skinny.h"

#define WARPS (HZI_VLUT_D4_SKINNY_THREADS / 32)

/* Kernels, by the most row tiles at a time */
static const struct kernel {
	int tiles, stages;	/* chunks of a warp in shared memory */
	int ahead;		/* bytes to prefetch; 0 where the PDL successor does not fit */
} kernels[] = {{2, 3, 1024}, {4, 2, 1024}, {6, 2, 0}};

#define KERNELS (int)(sizeof(kernels) / sizeof(kernels[0]))

static int shared_of(const struct kernel *k)
{
	return WARPS * k->stages * (HZI_VLUT_D4_SKINNY_X_BYTES + k->tiles * HZI_VLUT_D4_BYTES);
}

static int64_t tiles_of(const struct hzi_vlut_gemm_args *a)
{
	return ceil_div(a->w.rows, HZI_VLUT_D4_ROWS);
}

/* x is rows of 8 columns, else contiguous columns. */
static bool is_row_major(const struct hzi_vlut_gemm_args *a)
{
	return a->batch == HZI_VLUT_D4_SKINNY_COLUMNS && a->x_b == 1 && a->x_k % 8 == 0;
}

const char *hzi_cuda_vlut_d4_f16_skinny_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const char *const why = hzi_cuda_vlut_d4_f16_unsupported(a);

	if (why)
		return why;
	if (a->batch > HZI_VLUT_D4_SKINNY_COLUMNS)
		return "more than 8 columns";
	if ((uintptr_t)a->x % 16 || !(is_row_major(a) || (a->x_k == 1 && a->x_b % 8 == 0)))
		return "x is not 8 contiguous columns or 16-byte aligned vectors";
	return shared_of(&kernels[KERNELS - 1]) <= hzi_cuda_device(ctx)->shared_block_bytes ? NULL :
	       "too little shared memory";
}

int hzi_cuda_vlut_d4_f16_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const int64_t sms = hzi_cuda_device(ctx)->sms, tiles = tiles_of(a);
	const int64_t shares = min_of(tiles, sms);
	const int64_t each = ceil_div(tiles, shares), most = kernels[KERNELS - 1].tiles;
	const int64_t group = ceil_div(each, ceil_div(each, most));
	struct hzi_vlut_d4_f16_skinny p = {
		.packed = a->w.packed, .row_scale = a->w.row_scale, .x = a->x, .y = a->y,
		.row_scale_step = a->w.row_scale_step, .x_step = is_row_major(a) ? a->x_k : a->x_b,
		.y_i = a->y_i, .y_b = a->y_b, .rows = (int32_t)a->w.rows, .k = (int32_t)a->w.k,
		.chunks = (int32_t)hzi_cuda_vlut_d4_bitfield_chunks(&a->w),
		.batch = (int32_t)a->batch,
		.tiles_each = (int32_t)(tiles / shares), .tiles_more = (int32_t)(tiles % shares),
		.group = (int32_t)group, .y_dtype = a->y_dtype, .scale = l->rule.scale[0],
	};
	int kernel = 0;

	while (kernels[kernel].tiles < group)
		kernel++;
	p.ahead = kernels[kernel].ahead;
	for (int i = 0; i < 4; i++) {
		p.offset[i] = hzi_cuda_vlut_f16((float)l->rule.offset[i]) * 0x10001u;
		p.has_offset |= l->rule.offset[i] != 0;
	}

	const struct hzi_launch launch = {
		.grid = {(unsigned)shares}, .block = {HZI_VLUT_D4_SKINNY_THREADS},
		.shared_bytes = (unsigned)shared_of(&kernels[kernel]), .early = true,
	};

	return hzi_cuda_launch(ctx, "vlut_gemm",
			       (is_row_major(a) ? HZI_KERNEL_vlut_d4_f16_skinny_row_major_2 :
						  HZI_KERNEL_vlut_d4_f16_skinny_column_major_2) +
				       kernel,
			       &launch, &p, sizeof(p));
}
