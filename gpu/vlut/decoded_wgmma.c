/*
 * decoded_wgmma.c - launcher of GEMM with packed labels of E8, or packed D4, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * TMA reads x in place where it is of 16 bits, with rows that begin at multiples of 16 bytes. Else
 * a launch copies it to the workspace, f32 as two f16 terms. x of bf16 is multiplied by values of
 * labels rounded to bf16, everything else by exact ones.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/d4_bitfield.h"
#include "gpu/vlut/decoded_wgmma.h"
#include "gpu/vlut/label.h"
#include "gpu/vlut/launch.h"

static const char name[] = "vlut_gemm";

static const struct kernel {
	int columns, rows, threads;
	int bytes[3];		/* of shared memory: D4; labels with 2 and 4 bits of T */
	int chunk_ns, wave_ns;	/* of CUBE: a chunk of a block; the rest of a block */
} kernels[] = {
#define BYTES(bits, ...) HZI_DECODED_BYTES(HZI_VLUT_LABEL_BYTES(bits), __VA_ARGS__)
#define ROW(chunk_ns, wave_ns, columns, row_groups, ...) \
	{columns, 64 * (row_groups), HZI_DECODED_THREADS(columns, row_groups, __VA_ARGS__), \
	 {HZI_DECODED_BYTES(2 * HZI_VLUT_D4_BYTES, columns, row_groups, __VA_ARGS__), \
	  BYTES(2, columns, row_groups, __VA_ARGS__), \
	  BYTES(4, columns, row_groups, __VA_ARGS__)}, chunk_ns, wave_ns}
#define KERNEL(shape, chunk_ns, wave_ns) ROW(chunk_ns, wave_ns, shape)
	/* In the order of gpu/kernels.def; times fitted on an H200 */
	KERNEL(HZI_VLUT_DECODED_64X16, 165, 6000),
	KERNEL(HZI_VLUT_DECODED_64X32, 170, 6300),
	KERNEL(HZI_VLUT_DECODED_64X64, 316, 6100),
	KERNEL(HZI_VLUT_DECODED_64X128, 426, 6400),
	KERNEL(HZI_VLUT_DECODED_128X32, 320, 6800),
	KERNEL(HZI_VLUT_DECODED_128X64, 520, 7300),
	KERNEL(HZI_VLUT_DECODED_128X128, 830, 8200),
	KERNEL(HZI_VLUT_DECODED_128X256, 1300, 9400),
};

#define KERNELS ((int)(sizeof(kernels) / sizeof(kernels[0])))

struct plan {
	int kernel, split, terms;
	bool d4, in_place;
	int64_t tile_bytes, chunks, row_tiles, column_tiles, pitch;	/* pitch: of copied x */
};

static int t_bits_of(const hz_lattice *l)
{
	return HZI_VLUT_LABEL_T_BITS(l->rule.shaping, l->rule.scales);
}

static bool x_in_place(const struct hzi_vlut_gemm_args *a)
{
	return a->x_dtype != HZ_F32 && a->x_k == 1 && (uintptr_t)a->x % 16 == 0 &&
	       (a->batch == 1 || (a->x_b > 0 && a->x_b % 8 == 0 && a->x_b < INT32_MAX));
}

/* Chooses the kernel and the split with the least time. Returns NULL, or why there is none. */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const bool d4 = !hzi_cuda_vlut_not_d4_bitfield(a->vlut->w, &a->w);
	int64_t least = INT64_MAX;

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (!d4 && (!a->w.packed || !hzi_cuda_vlut_packs_as_label(a->vlut->w)))
		return "the codes are neither packed labels of E8 with q = 16 nor packed D4";
	if (a->x_dtype == HZ_S8 || a->y_dtype == HZ_S32)
		return "x is s8";
	if (a->w.rows <= 0 || a->w.k <= 0 || a->batch <= 0)
		return "a size is 0";
	if (a->w.rows > INT32_MAX / 16 || a->w.k > INT32_MAX / 16 || a->batch > 1 << 20)
		return "the sizes do not fit 32 bits";
	*p = (struct plan){
		.terms = a->x_dtype == HZ_F32 ? 2 : 1, .in_place = x_in_place(a),
		.d4 = d4, .chunks = ceil_div(a->w.k, HZI_DECODED_CHUNK),
		.pitch = round_up(a->w.k, 8),
	};
	p->tile_bytes = d4 ? hzi_cuda_vlut_d4_bitfield_chunks(&a->w) * HZI_VLUT_D4_BYTES :
			     p->chunks * HZI_VLUT_LABEL_BYTES(t_bits_of(a->vlut->w));
	for (int i = 0; i < KERNELS; i++) {
		const struct kernel *const k = &kernels[i];
		const int64_t rows = ceil_div(a->w.rows, k->rows);
		const int64_t columns = ceil_div(a->batch * p->terms, k->columns);

		for (int split = 1; split <= HZI_DECODED_SPLIT && split <= p->chunks; split++) {
			const int64_t waves =
				ceil_div(rows * columns, hzi_cuda_vlut_clusters(g, split));
			const int64_t ns = waves * (ceil_div(p->chunks, split) * k->chunk_ns +
						    k->wave_ns + 100 * split);

			if (columns > 65535 || ns >= least)
				continue;
			least = ns;
			p->kernel = i;
			p->split = split;
			p->row_tiles = rows;
			p->column_tiles = columns;
		}
	}
	return least == INT64_MAX ? "too many tiles for a grid" : NULL;
}

const char *hzi_cuda_vlut_decoded_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	struct plan plan;

	return plan_of(ctx, args, &plan);
}

/* Copied rows of x, and the power of two of each */
static size_t rows_bytes(const struct hzi_vlut_gemm_args *a, const struct plan *p)
{
	return (size_t)round_up(a->batch * p->terms * p->pitch * 2, 16);
}

size_t hzi_cuda_vlut_decoded_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	struct plan plan;

	plan_of(ctx, a, &plan);
	return plan.in_place ? 0 :
	       rows_bytes(a, &plan) + (a->x_dtype == HZ_F32 ? (size_t)a->batch * 4 : 0);
}

static int copy_x(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		  const struct plan *plan, void *rows, float *unscale)
{
	const struct hzi_vlut_label_x p = {
		.x = a->x, .rows = rows, .unscale = unscale, .x_k = a->x_k, .x_b = a->x_b,
		.k = (int32_t)a->w.k, .pitch = (int32_t)plan->pitch, .x_dtype = a->x_dtype,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)a->batch}, .block = {HZI_VLUT_LABEL_X_THREADS}, .early = true,
	};

	return hzi_cuda_launch(ctx, name, HZI_KERNEL_vlut_label_x, &launch, &p, sizeof(p));
}

/* Fills r as struct hzi_vlut_decoded_wgmma has it. Returns the value of 1. */
static float d4_scale(const hz_lattice *l, int x_dtype, uint32_t r[4])
{
	for (int i = 0; i < 4; i++) {
		const int32_t o = l->rule.offset[i];
		const uint32_t size = (uint32_t)abs(o), sign = o > 0 ? 0x80008000 : 0;
		const float rest = (float)(128 - o);
		uint32_t bits;

		memcpy(&bits, &rest, sizeof(bits));
		r[i] = x_dtype == HZ_BF16 ? (bits >> 16) * 0x10001u :
					    size | size << 20 | sign;
	}
	return l->rule.scale[0];
}

int hzi_cuda_vlut_decoded_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			     const struct hzi_vlut_wgmma_opts *o)
{
	const hz_lattice *l = a->vlut->w;
	struct plan plan;

	plan_of(ctx, a, &plan);

	const struct kernel *const k = &kernels[plan.kernel];
	float *const unscale = a->x_dtype == HZ_F32 ?
			       (float *)(void *)(o->workspace + rows_bytes(a, &plan)) : NULL;
	struct hzi_vlut_decoded_wgmma p = {
		.gemm = {
			.packed = a->w.packed, .tile_bytes = plan.tile_bytes,
			.tiles = (int32_t)ceil_div(a->w.rows, HZI_VLUT_LABEL_ROWS),
			.chunks = (int32_t)plan.chunks, .split = plan.split, .terms = plan.terms,
			.rows_first = a->y_b != 1,
		},
		.row_scale = a->w.row_scale, .row_scale_step = a->w.row_scale_step,
		.unscale = unscale, .column_scale = o->column_scale,
		.column_scale_step = o->column_scale_step, .y = a->y, .y_i = a->y_i, .y_b = a->y_b,
		.rows = (int32_t)a->w.rows, .batch = (int32_t)a->batch, .y_dtype = a->y_dtype,
		.y_vectorized = a->y_dtype != HZ_F32 && a->y_i == 1 && a->y_b % 4 == 0 &&
				(uintptr_t)a->y % 8 == 0,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.row_tiles * plan.split), (unsigned)plan.column_tiles},
		.block = {(unsigned)k->threads}, .cluster = (unsigned)plan.split, .early = true,
		.aligned = true,
		.shared_bytes =
			(unsigned)k->bytes[plan.d4 ? 0 : t_bits_of(l) / 2],
	};

	p.scale = o->factor * (plan.d4 ? d4_scale(l, a->x_dtype, p.r) :
			       hzi_cuda_vlut_label_r(l, p.r));
	if (!plan.in_place)
		HZ_CHECK(copy_x(ctx, a, &plan, o->workspace, unscale));
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, name, &p.gemm.x, plan.in_place ? a->x : o->workspace,
					2 * a->w.k, a->batch * plan.terms,
					2 * (!plan.in_place || a->batch == 1 ? plan.pitch : a->x_b),
					128, k->columns));
	return hzi_cuda_launch(ctx, name,
			       (plan.d4 ? HZI_KERNEL_vlut_d4_wgmma_f16_64x16 :
				hzi_cuda_vlut_label_wgmma_kernel(l)) +
			       (a->x_dtype == HZ_BF16 ? KERNELS : 0) + plan.kernel,
			       &launch, &p, sizeof(p));
}

int hzi_cuda_vlut_decoded_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_wgmma_opts o = {.factor = 1, .workspace = ctx->workspace};

	return hzi_cuda_vlut_decoded_gemm(ctx, args, &o);
}
