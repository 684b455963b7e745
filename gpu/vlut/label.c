/*
 * label.c - labelled E8 codes with q = 16: packing, values as f16, skinny GEMM of up to 8 columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/label.h"
#include "gpu/vlut/launch.h"

#define MAX_R 127			/* a selector of prmt replicates the sign of a byte */

/*
 * r of each T, as bytes, with scale = r beta. False if scales are not such, or if f16 does not hold
 * what kernels compute: 528 r, for all shapings but E8.
 */
static bool fill_r(const hz_lattice *l, uint32_t *r)
{
	const int scales = l->rule.scales;

	for (int i = 0; i < 4; i++)
		r[i] = 0;
	for (int i = 0; i < 16; i++) {
		const double scale = (double)l->rule.scale[i < scales ? i : scales - 1];
		const double ratio = scale / l->beta, n = rint(ratio);
		int odd = 33 * (int)n;

		if (!(n >= 1 && n <= MAX_R) || fabs(ratio - n) > 1e-6 * n)
			return false;
		while (odd % 2 == 0)
			odd /= 2;
		if (l->rule.shaping != HZI_SHAPING_E8 && (odd > 2048 || n * 528 > 65504))
			return false;
		r[i / 4] |= (uint32_t)n << i % 4 * 8;
	}
	return true;
}

static int t_bits_of(const hz_lattice *l)
{
	return HZI_VLUT_LABEL_T_BITS(l->rule.shaping, l->rule.scales);
}

bool hzi_cuda_vlut_packs_as_label(const hz_lattice *l)
{
	uint32_t r[4];

	return l->rule.shaping != HZI_SHAPING_NESTED && l->rule.q == 16 && l->rule.group == 1 &&
	       l->rule.scales <= (l->rule.shaping == HZI_SHAPING_D8STAR ? 8 : 16) && fill_r(l, r);
}

float hzi_cuda_vlut_label_r(const hz_lattice *l, uint32_t r[4])
{
	fill_r(l, r);
	return 0.5f * (float)l->beta;
}

int64_t hzi_cuda_vlut_label_chunks(const struct hzi_coded *w)
{
	return ceil_div(w->k, HZI_VLUT_LABEL_CHUNK);
}

static int64_t tiles_of(const struct hzi_coded *w)
{
	return ceil_div(w->rows, HZI_VLUT_LABEL_ROWS);
}

size_t hzi_cuda_vlut_label_bytes(const hz_lattice *l, const struct hzi_coded *w)
{
	return (size_t)(tiles_of(w) * hzi_cuda_vlut_label_chunks(w) *
			HZI_VLUT_LABEL_BYTES(t_bits_of(l)));
}

static struct hzi_launch launch_of(int64_t threads)
{
	return (struct hzi_launch){
		.grid = {(unsigned)min_of(ceil_div(threads, HZI_VLUT_THREADS), 16384)},
		.block = {HZI_VLUT_THREADS},
	};
}

int hzi_cuda_vlut_label_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_vlut_label_pack p = {
		.codes = a->w.codes, .t = a->w.t, .packed = a->packed, .rows = a->w.rows,
		.blocks = a->w.blocks, .row = a->w.row, .block = a->w.block, .t_row = a->w.t_row,
		.t_step = a->w.t_step, .tiles = tiles_of(&a->w),
		.chunks = hzi_cuda_vlut_label_chunks(&a->w), .t_bits = t_bits_of(l),
		.scales = l->rule.scales, .free_bit = l->rule.shaping == HZI_SHAPING_D8STAR,
	};
	const struct hzi_launch launch = launch_of(p.tiles * p.chunks * 32);

	return hzi_cuda_launch(ctx, "vlut_pack", HZI_KERNEL_vlut_label_pack, &launch, &p,
			       sizeof(p));
}

int hzi_cuda_vlut_label_values(struct hz_context *ctx, const hz_lattice *l,
			       const struct hzi_coded *w, void *dst, int64_t pitch, float *factor)
{
	struct hzi_vlut_label_values p = {
		.packed = w->packed, .dst = dst, .rows = w->rows, .blocks = w->blocks,
		.chunks = hzi_cuda_vlut_label_chunks(w), .pitch = pitch, .t_bits = t_bits_of(l),
		.shaping = l->rule.shaping, .scale = 1,
	};
	const struct hzi_launch launch = launch_of(p.rows * (pitch / 8));

	*factor *= hzi_cuda_vlut_label_r(l, p.r);
	return hzi_cuda_launch(ctx, "vlut_gemm", HZI_KERNEL_vlut_label_values_f16, &launch, &p,
			       sizeof(p));
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Kinds of codes, in the order of kernels */
static int kind_of(const hz_lattice *l)
{
	return l->rule.shaping == HZI_SHAPING_CUBE ? 0 :
	       l->rule.shaping == HZI_SHAPING_D8STAR ? 1 : t_bits_of(l) == 2 ? 2 : 3;
}

/* Of a kind: aligned vectors of 16 bits, then any x, with 1, 2 and 8 columns each */
static int first_kernel(const hz_lattice *l)
{
	return HZI_KERNEL_vlut_label_skinny_cube_16bit_1 + 6 * kind_of(l);
}

int hzi_cuda_vlut_label_wgmma_kernel(const hz_lattice *l)
{
	return HZI_KERNEL_vlut_label_wgmma_cube_f16_64x16 +
	       (HZI_KERNEL_vlut_label_wgmma_d8star_f16_64x16 -
		HZI_KERNEL_vlut_label_wgmma_cube_f16_64x16) * kind_of(l);
}

struct plan {
	int parts, columns;		/* columns of the kernel for one of x; of the kernel */
	int kernel;			/* 0 1 2: with 1, 2, 8 columns */
	size_t shared;
};

static size_t shared_of(int64_t chunks, int columns)
{
	const size_t warps = HZI_VLUT_LABEL_GROUPS * HZI_VLUT_LABEL_WARPS;

	return warps * 32 * 4 + (size_t)columns * (2 * warps * HZI_VLUT_LABEL_ROWS * 4 +
						   (size_t)chunks * HZI_VLUT_LABEL_CHUNK * 2);
}

static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   struct plan *p)
{
	static const int columns[] = {1, 2, HZI_VLUT_LABEL_COLUMNS};
	const int64_t chunks = hzi_cuda_vlut_label_chunks(&a->w);

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (!a->w.packed || !hzi_cuda_vlut_packs_as_label(a->vlut->w))
		return "the codes are not packed labels of E8 with q = 16";
	if (a->y_dtype == HZ_S32 || a->x_dtype == HZ_S8)
		return "x is s8";
	if (a->w.k <= 0 || a->w.k >= INT32_MAX / 64 || a->w.rows >= INT32_MAX / 64)
		return "the sizes do not fit 32 bits";
	p->parts = a->x_dtype == HZ_F32 ? 2 : 1;
	for (p->kernel = 0; p->kernel < 2 && columns[p->kernel] < a->batch * p->parts; p->kernel++)
		;
	for (; p->kernel >= 0 && columns[p->kernel] >= p->parts; p->kernel--) {
		p->columns = columns[p->kernel];
		p->shared = shared_of(chunks, p->columns);
		if (p->shared <= (size_t)hzi_cuda_device(ctx)->shared_block_bytes)
			return NULL;
	}
	return "x does not fit shared memory";
}

const char *hzi_cuda_vlut_label_skinny_unsupported(const struct hz_context *ctx, const void *args)
{
	struct plan plan;

	return plan_of(ctx, args, &plan);
}

int hzi_cuda_vlut_label_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const int64_t sms = hzi_cuda_device(ctx)->sms, tiles = tiles_of(&a->w);
	struct hzi_vlut_label_skinny p = {
		.packed = a->w.packed, .row_scale = a->w.row_scale,
		.row_scale_step = a->w.row_scale_step, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i,
		.y_b = a->y_b, .rows = (int32_t)a->w.rows, .k = (int32_t)a->w.k,
		.chunks = (int32_t)hzi_cuda_vlut_label_chunks(&a->w), .tiles = (int32_t)tiles,
		.x_dtype = a->x_dtype, .y_dtype = a->y_dtype,
	};
	struct plan plan;

	plan_of(ctx, a, &plan);
	p.scale = hzi_cuda_vlut_label_r(l, p.scales);
	p.parts = plan.parts;
	p.x_vectorized = hzi_cuda_vlut_x_vectorized(a);

	const bool is_16bit = a->x_dtype != HZ_F32 && p.x_vectorized;
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(tiles, sms)},
		.block = {HZI_VLUT_LABEL_GROUPS * HZI_VLUT_LABEL_WARPS * 32},
		.shared_bytes = (unsigned)plan.shared, .early = true,
	};
	const int64_t step = plan.columns / plan.parts;

	for (int64_t b = 0; b < a->batch; b += step) {
		p.batch = (int32_t)min_of(a->batch - b, step);
		p.x = (const char *)a->x + b * a->x_b * (int64_t)hz_dtype_size(a->x_dtype);
		p.y = (char *)a->y + b * a->y_b * (int64_t)hz_dtype_size(a->y_dtype);
		HZ_CHECK(hzi_cuda_launch(ctx, "vlut_gemm",
					 first_kernel(l) + (is_16bit ? 0 : 3) + plan.kernel,
					 &launch, &p, sizeof(p)));
	}
	return HZ_OK;
}
