/*
 * e8_bitplane.c - packed E8 with q = 4: packing, decoding to s8 or f16, GEMV of up to two columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/e8_bitplane.h"

int64_t hzi_cuda_vlut_e8_bitplane_units(const struct hzi_coded *w)
{
	return ceil_div(w->k, HZI_VLUT_E8_UNIT);
}

static int64_t tiles_of(const struct hzi_coded *w)
{
	return ceil_div(w->rows, HZI_VLUT_E8_ROWS);
}

bool hzi_cuda_vlut_packs_as_e8_bitplane(const hz_lattice *l, const struct hzi_coded *w)
{
	const struct hzi_lattice_rule *r = &l->rule;

	if (r->kind != HZI_LATTICE_E8 || r->q != 4 || r->levels != 2 ||
	    (r->flags & HZI_LATTICE_MAPPED) || hzi_lattice_has_t(l))
		return false;
	/* p - o has to fit s8. */
	for (int i = 0; i < 8; i++) {
		if (abs(r->offset[i]) > 64)
			return false;
	}
	return w->k > 0 && w->k <= HZI_VLUT_E8_UNITS * HZI_VLUT_E8_UNIT &&
	       w->capacity < INT32_MAX / 64;
}

size_t hzi_cuda_vlut_e8_bitplane_bytes(const struct hzi_coded *w)
{
	return (size_t)(tiles_of(w) * hzi_cuda_vlut_e8_bitplane_units(w) * 2 *
			HZI_VLUT_E8_UNIT_BYTES);
}

static struct hzi_launch launch_of(int64_t threads)
{
	return (struct hzi_launch){
		.grid = {(unsigned)min_of(ceil_div(threads, HZI_VLUT_THREADS), 4096)},
		.block = {HZI_VLUT_THREADS},
	};
}

int hzi_cuda_vlut_e8_bitplane_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	const struct hzi_vlut_bit_pack p =
		hzi_cuda_vlut_bit_pack(a, tiles_of(&a->w), hzi_cuda_vlut_e8_bitplane_units(&a->w));
	const struct hzi_launch launch = launch_of(p.tiles * p.chunks * 128);

	return hzi_cuda_launch(ctx, "vlut_pack", HZI_KERNEL_vlut_e8_bitplane_pack, &launch, &p,
			       sizeof(p));
}

int hzi_cuda_vlut_e8_bitplane_points(struct hz_context *ctx, const hz_lattice *l,
				     const struct hzi_coded *w, void *dst, int64_t pitch, int dtype)
{
	struct hzi_vlut_e8_points p = {
		.packed = w->packed, .dst = dst, .rows = w->rows,
		.blocks = dtype == HZ_F16 ? pitch / 8 : w->blocks, .tiles = tiles_of(w),
		.units = hzi_cuda_vlut_e8_bitplane_units(w), .pitch = pitch, .first = w->first,
		.factor = 0.5f * l->rule.scale[0],
	};
	const struct hzi_launch launch = launch_of(p.tiles * p.units * 64);

	for (int i = 0; i < 8; i++) {
		p.offset[i] = l->rule.offset[i];
		p.sub[i] = w->sub[i] * l->rule.scale[0];
	}
	return hzi_cuda_launch(ctx, "vlut_gemm",
			       dtype == HZ_F16 ? HZI_KERNEL_vlut_e8_bitplane_values_f16 :
						 HZI_KERNEL_vlut_e8_bitplane_points_s8,
			       &launch, &p, sizeof(p));
}

struct plan {
	int step;			/* columns per launch */
	int64_t tiles, shares, units, shared;
};

/* Plans a call. Returns NULL, or why it is not supported. */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (!a->w.packed || !hzi_cuda_vlut_packs_as_e8_bitplane(a->vlut->w, &a->w))
		return "the codes are not packed E8 with q = 4";
	if (a->w.first != 0)
		return "only coarser levels are asked for";
	for (int i = 0; i < 8; i++) {
		if (a->w.sub[i] != 0)
			return "the values are not points times scales";
	}
	*p = (struct plan){.tiles = tiles_of(&a->w),
			   .units = hzi_cuda_vlut_e8_bitplane_units(&a->w)};
	p->shares = min_of(p->tiles, g->sms);
	if (p->tiles > p->shares * HZI_VLUT_E8_TILES)
		p->shares = ceil_div(p->tiles, HZI_VLUT_E8_TILES);
	for (p->step = a->batch < 2 ? 1 : HZI_VLUT_E8_COLUMNS; p->step > 0; p->step--) {
		p->shared = HZI_VLUT_E8_FIXED_BYTES + p->step *
			    (p->units * HZI_VLUT_E8_X_BYTES +
			     ceil_div(p->tiles, p->shares) * HZI_VLUT_E8_ACC_BYTES);
		if (p->shared <= g->shared_block_bytes)
			return NULL;
	}
	return "x does not fit shared memory";
}

HZI_VLUT_PLANNED(vlut_e8_bitplane)

int hzi_cuda_vlut_e8_bitplane(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	struct plan plan;

	plan_of(ctx, a, &plan);

	struct hzi_vlut_e8_bitplane p = {
		HZI_VLUT_PRODUCT_OF(a), .units = (int32_t)plan.units,
		.tiles_each = (int32_t)(plan.tiles / plan.shares),
		.tiles_more = (int32_t)(plan.tiles % plan.shares),
		.x_dtype = a->x_dtype, .y_dtype = a->y_dtype, .scale = 0.5f * l->rule.scale[0],
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)plan.shares}, .block = {HZI_VLUT_E8_THREADS},
		.shared_bytes = (unsigned)plan.shared, .early = true,
	};

	for (int i = 0; i < 8; i++)
		p.offset[i] = l->rule.offset[i] + 40;
	for (int64_t b = 0; b < a->batch; b += plan.step) {
		const bool two = plan.step == 2 && a->batch - b >= 2;

		p.x = (const char *)a->x + b * a->x_b * (int64_t)hz_dtype_size(a->x_dtype);
		p.y = (char *)a->y + b * a->y_b * (int64_t)hz_dtype_size(a->y_dtype);
		HZ_CHECK(hzi_cuda_launch(ctx, "vlut_gemm",
					 two ? HZI_KERNEL_vlut_e8_bitplane_2 :
					       HZI_KERNEL_vlut_e8_bitplane_1,
					 &launch, &p, sizeof(p)));
	}
	return HZ_OK;
}
