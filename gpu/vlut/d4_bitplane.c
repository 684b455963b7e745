/*
 * d4_bitplane.c - the launcher of products of packed D4 and one vector of f16, by bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/d4_bitplane.h"

/* How a call is done */
struct plan {
	int64_t tiles, shares, units, shared;
};

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const int64_t multiprocessors = hzi_cuda_device(ctx)->multiprocessors;
	struct plan p = {
		.tiles = ceil_div(a->w.rows, HZI_FIELDS_ROWS),
		.units = ceil_div(hzi_cuda_vlut_d4_bitfield_chunks(&a->w), HZI_PLANES_UNIT),
	};

	p.shares = p.tiles < multiprocessors ? p.tiles : multiprocessors;
	p.shared = HZI_PLANES_REST_BYTES + p.units * HZI_PLANES_X_BYTES +
		   ceil_div(p.tiles, p.shares) * HZI_PLANES_SUMS_BYTES;
	return p;
}

const char *hzi_cuda_vlut_d4_bitplane_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const char *const why = hzi_cuda_vlut_not_d4_bitfield(a->vlut->w, &a->w);
	struct plan p;

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (g->sm != 90 || a->batch != 1 || a->x_dtype != HZ_F16 || a->y_dtype == HZ_S32 ||
	    a->x_k != 1 || (uintptr_t)a->x % 16 || a->w.k % 16)
		return "not one contiguous vector of f16 on compute capability 9.0";
	if (why)
		return why;
	p = plan_of(ctx, a);
	/*
	 * Of few rows k is to be split. Where codes do not fit a block's stages other kernels are
	 * as fast.
	 */
	return p.tiles * 2 > g->multiprocessors && p.shared <= g->shared_block_bytes &&
	       ceil_div(p.tiles, p.shares) * p.units <=
		       HZI_PLANES_STAGES * (HZI_PLANES_THREADS / 32) ? NULL :
	       "few rows, or codes do not fit a block's stages";
}

int hzi_cuda_vlut_d4_bitplane(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const struct plan plan = plan_of(ctx, a);
	struct hzi_vlut_planes p = {
		.packed = a->w.packed, .row_scale = a->w.row_scale, .x = a->x, .y = a->y,
		.row_scale_step = a->w.row_scale_step, .y_i = a->y_i, .y_b = a->y_b,
		.rows = (int32_t)a->w.rows, .k = (int32_t)a->w.k,
		.chunks = (int32_t)hzi_cuda_vlut_d4_bitfield_chunks(&a->w),
		.units = (int32_t)plan.units,
		.tiles_each = (int32_t)(plan.tiles / plan.shares),
		.tiles_more = (int32_t)(plan.tiles % plan.shares),
		.y_dtype = a->y_dtype, .scale = l->rule.scale[0],
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)plan.shares}, .block = {HZI_PLANES_THREADS},
		.shared_bytes = (unsigned)plan.shared, .early = true,
	};

	for (int i = 0; i < 4; i++) {
		p.offset[i] = l->rule.offset[i];
		p.centred |= p.offset[i] != 0;
	}
	return hzi_cuda_launch(ctx, "vlut_gemm", HZI_KERNEL_vlut_planes, &launch, &p, sizeof(p));
}
