/*
 * d4_bitfield.c - packed D4 with q = 4: packing, decoding to s8, skinny GEMM of up to 8 columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/d4_bitfield.h"
#include "gpu/vlut/launch.h"

#define WARPS (HZI_VLUT_D4_THREADS / 32)
#define MAX_K 65536		/* a warp's accumulators fit s32 */
#define MAX_SHARED (160 << 10)	/* per block; above it k is split if possible */
#define CLUSTER 8		/* splits of k, at most */
/*
 * The largest |o_i| of this format; the policy HZ_LATTICE_NONE does not bound o. Then |p - o| <= 84
 * fits s8, and 17 (p - o) is exact in f16.
 */
#define MAX_OFFSET 64

bool hzi_cuda_vlut_packs_as_d4_bitfield(const hz_lattice *l)
{
	const struct hzi_lattice_rule *r = &l->rule;

	for (int i = 0; i < r->embed; i++) {
		if (abs(r->offset[i]) > MAX_OFFSET)
			return false;
	}
	return r->kind == HZI_LATTICE_D && r->d == 4 && r->q == 4 && r->levels == 2 && l->leaders &&
	       !(r->flags & HZI_LATTICE_MAPPED) && !hzi_lattice_has_t(l);
}

const char *hzi_cuda_vlut_not_d4_bitfield(const hz_lattice *l, const struct hzi_coded *w)
{
	if (!w->packed || !hzi_cuda_vlut_packs_as_d4_bitfield(l))
		return "the codes are not packed D4 with q = 4";
	for (int i = 0; i < l->rule.d; i++) {
		if (w->sub[i] != 0)
			return "the values are not points times scales";
	}
	return w->first != 0 ? "only coarser levels are asked for" :
	       w->k > 0 && w->k < INT32_MAX / 64 && w->rows < INT32_MAX / 64 ? NULL :
	       "the sizes do not fit 32 bits";
}

const char *hzi_cuda_vlut_d4_f16_unsupported(const struct hzi_vlut_gemm_args *a)
{
	const char *const why = hzi_cuda_vlut_not_d4_bitfield(a->vlut->w, &a->w);

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	return why ? why : a->x_dtype != HZ_F16 || a->y_dtype == HZ_S32 ? "x is not f16" : NULL;
}

int64_t hzi_cuda_vlut_d4_bitfield_chunks(const struct hzi_coded *w)
{
	return ceil_div(w->k, HZI_VLUT_D4_CHUNK);
}

static int64_t tiles_of(const struct hzi_coded *w)
{
	return ceil_div(w->rows, HZI_VLUT_D4_ROWS);
}

size_t hzi_cuda_vlut_d4_bitfield_bytes(const struct hzi_coded *w)
{
	return (size_t)(tiles_of(w) * hzi_cuda_vlut_d4_bitfield_chunks(w) * HZI_VLUT_D4_BYTES);
}

int hzi_cuda_vlut_d4_bitfield_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	struct hzi_vlut_d4_pack p = {
		.of = hzi_cuda_vlut_bit_pack(a, tiles_of(&a->w),
					     hzi_cuda_vlut_d4_bitfield_chunks(&a->w)),
	};
	const int64_t blocks = ceil_div(p.of.tiles * p.of.chunks * 32, HZI_VLUT_THREADS);
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(blocks, 4096)}, .block = {HZI_VLUT_THREADS},
	};

	for (int i = 0; i < 256; i++) {
		for (int j = 0; j < 4; j++)
			p.leaders[i] |= (uint32_t)(a->vlut->w->leaders[4 * i + j] & 0xff) << 8 * j;
	}
	return hzi_cuda_launch(ctx, "vlut_pack", HZI_KERNEL_vlut_d4_bitfield_pack, &launch, &p,
			       sizeof(p));
}

int hzi_cuda_vlut_d4_bitfield_points(struct hz_context *ctx, const hz_lattice *l,
				     const struct hzi_coded *w, void *dst, int64_t pitch)
{
	struct hzi_vlut_d4_points p = {
		.packed = w->packed, .dst = dst, .rows = w->rows, .blocks = w->blocks,
		.tiles = tiles_of(w), .chunks = hzi_cuda_vlut_d4_bitfield_chunks(w), .pitch = pitch,
	};
	const int64_t blocks = ceil_div(p.tiles * p.chunks * 32, HZI_VLUT_THREADS);
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(blocks, 4096)}, .block = {HZI_VLUT_THREADS},
	};

	for (int i = 0; i < 4; i++)
		p.minus |= (uint32_t)(l->rule.offset[i] & 0xff) << 8 * i;
	return hzi_cuda_launch(ctx, "vlut_gemm", HZI_KERNEL_vlut_d4_bitfield_points_s8, &launch, &p,
			       sizeof(p));
}

struct plan {
	int kernel, step, step_log2, split, slots;	/* step: columns per launch */
	int64_t chunks, tiles, shares, shared;
};

/* Computes slots and shared memory of a block, doubling the shares of rows until a block fits. */
static void fit_shared_memory(struct plan *p, int columns, int limit)
{
	const int64_t count = ceil_div(p->chunks, p->split);
	int64_t tiles, run;

	for (;; p->shares *= 2) {
		tiles = ceil_div(p->tiles, p->shares);
		/* The most tiles that the consecutive chunks of a warp can touch */
		run = ceil_div(tiles * count, WARPS);
		p->slots = (int)((run + count - 2) / count + 1);
		p->shared = 256 + HZI_VLUT_D4_STAGES_BYTES + count * columns * HZI_VLUT_D4_CHUNK +
			    ((WARPS * p->slots + tiles) * HZI_VLUT_D4_ROWS * 4 << p->step_log2);
		if ((p->shared <= limit && tiles * count < INT32_MAX / 32) || tiles == 1)
			return;
	}
}

/* Plans a call. Returns NULL, or why it is not supported. */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const char *const why = hzi_cuda_vlut_not_d4_bitfield(a->vlut->w, &a->w);
	const bool is_s8 = a->x_dtype == HZ_S8;
	int columns;

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (why)
		return why;
	if (a->w.k > MAX_K)
		return "k is above 65536";
	*p = (struct plan){.chunks = hzi_cuda_vlut_d4_bitfield_chunks(&a->w),
			   .tiles = tiles_of(&a->w), .split = 1};
	p->step = (int)min_of(a->batch, HZI_VLUT_D4_COLUMNS);
	while (1 << p->step_log2 < p->step)
		p->step_log2++;
	p->kernel = is_s8 || p->step <= 2 ? HZI_KERNEL_vlut_d4_bitfield_2 :
					    HZI_KERNEL_vlut_d4_bitfield_8;
	columns = p->kernel == HZI_KERNEL_vlut_d4_bitfield_8 ? 16 : p->step == 1 ? 4 : 8;
	/*
	 * Splits k until a block's part of x fits and all SMs have work. Measured on an H200, 8192
	 * x 8192 by 8 columns: 17 us with two splits, 20 with one, 32 with four.
	 */
	for (;; p->split *= 2) {
		const int64_t shares = max_of(g->sms / p->split, 1);
		const bool underfilled = p->tiles * p->split * 2 <= g->sms;

		p->shares = min_of(p->tiles, shares);
		fit_shared_memory(p, columns, g->shared_block_bytes);
		if (g->sm < 90 || p->split == CLUSTER || p->chunks < 16 * p->split ||
		    (!underfilled && p->shared <= MAX_SHARED))
			break;
	}
	return p->shared <= g->shared_block_bytes ? NULL : "x does not fit shared memory";
}

HZI_VLUT_PLANNED(vlut_d4_bitfield)

int hzi_cuda_vlut_d4_bitfield(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	struct hzi_vlut_d4_bitfield p = {
		HZI_VLUT_PRODUCT_OF(a), .x_dtype = a->x_dtype, .y_dtype = a->y_dtype,
		.scale = l->rule.scale[0],
	};
	struct plan plan;

	plan_of(ctx, a, &plan);

	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.shares * plan.split)}, .block = {HZI_VLUT_D4_THREADS},
		.shared_bytes = (unsigned)plan.shared, .cluster = (unsigned)plan.split,
		.early = true,
	};

	p.chunks = (int32_t)plan.chunks;
	p.tiles_each = (int32_t)(plan.tiles / plan.shares);
	p.tiles_more = (int32_t)(plan.tiles % plan.shares);
	p.batch_log2 = plan.step_log2;
	while (1 << p.split_log2 < plan.split)
		p.split_log2++;
	p.slots = plan.slots;
	for (int i = 0; i < 4; i++) {
		p.offset[i] = l->rule.offset[i];
		p.has_offset |= p.offset[i] != 0;
	}
	for (int64_t b = 0; b < a->batch; b += plan.step) {
		p.batch = (int32_t)min_of(a->batch - b, plan.step);
		p.x = (const char *)a->x + b * a->x_b * (int64_t)hz_dtype_size(a->x_dtype);
		p.x_vectorized = a->x_dtype == HZ_F16 && (uintptr_t)p.x % 16 == 0 &&
				 (p.batch == 8 ? a->x_b == 1 && a->x_k % 8 == 0 :
			   p.batch == 1 && plan.step == 1 && a->x_k == 1 && a->w.k % 16 == 0);
		p.y = (char *)a->y + b * a->y_b * (int64_t)hz_dtype_size(a->y_dtype);
		HZ_CHECK(hzi_cuda_launch(ctx, "vlut_gemm", plan.kernel, &launch, &p, sizeof(p)));
	}
	return HZ_OK;
}
