/*
 * via_f16.c - products with lattice codes: decode to f16 in memory, then GEMM
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * For codes that no kernel decodes while it multiplies: other lattices, unaligned rows, other group
 * sizes of scales, and both sides coded. Scales are chosen so that the largest value is 2^13 to
 * 2^14. Without T scales are powers of two, and f16 holds points up to 2048 exactly; with T values
 * are rounded once.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/table_wgmma.h"

#define TILE HZI_VLUT_WGMMA_ROWS
#define SLAB_BYTES ((int64_t)128 << 20)	/* of values per slab */
/* Largest to smallest scale, at most, so that half of the smallest is a normal f16 */
#define SCALES_RATIO 0x1p18f

/* f16 elements per row, and bytes of all rows */
static int64_t padded_k(const struct hzi_coded *w)
{
	return round_up(w->k, HZI_VLUT_WGMMA_CHUNK);
}

static size_t bytes_of(const struct hzi_coded *w)
{
	return (size_t)(w->rows * padded_k(w) * 2);
}

/* The infinity norm of T^-1 */
static double growth_of(const hz_lattice *l)
{
	const int d = l->rule.d;
	double highest = 0;

	if (!(l->rule.flags & HZI_LATTICE_MAPPED))
		return 1;
	for (int i = 0; i < d; i++) {
		double sum = 0;

		for (int j = 0; j < d; j++)
			sum += fabs((double)l->matrices.from[i * d + j]);
		highest = fmax(highest, sum);
	}
	return highest;
}

/*
 * Chooses scales so that f16 holds all values: those of l times 2^*shift, or 2^*shift if there is
 * only one. A decoded value times *factor is the value of l. Returns NULL, or why there are none.
 */
static const char *rescale(const hz_lattice *l, const struct hzi_coded *w, int *shift,
			   float *factor)
{
	const int scales = hzi_lattice_has_t(l) ? l->rule.scales : 1;
	float least = l->rule.scale[0], highest = least;
	double reach = l->point_max, value;
	int exponent;

	for (int i = 1; i < scales; i++) {
		least = fminf(least, l->rule.scale[i]);
		highest = fmaxf(highest, l->rule.scale[i]);
	}
	for (int i = 0; i < l->rule.embed; i++)
		reach = fmax(reach, l->point_max + abs(l->rule.offset[i]) +
				    2 * fabs((double)w->sub[i < l->rule.d ? i : 0]));
	if (!(highest / least <= SCALES_RATIO))
		return "the scales are too far apart for f16";
	*factor = 1;
	if (scales == 1) {
		*factor = highest;
		highest = 1;
	}
	value = reach * highest * growth_of(l);
	if (!(value > 0x1p-100) || !(value < 0x1p100))
		return "the values are too large or too small for f16";
	frexp(value, &exponent);
	*shift = 14 - exponent;
	*factor = ldexpf(*factor, -*shift);
	return isnormal(*factor) ? NULL : "the values are too large or too small for f16";
}

/* Returns NULL, or why the codes cannot be decoded to f16. */
static const char *decode_unsupported(const hz_lattice *l, const struct hzi_coded *w)
{
	float factor;
	int shift;

	return w->rows <= 0 || w->k <= 0 ? "a size is 0" :
	       w->packed && hzi_cuda_vlut_packs_as_d4_bitfield(l) ?
		       "the codes are packed D4 with q = 4" : rescale(l, w, &shift, &factor);
}

/*
 * Decodes w, which is not packed as rows of codes, to dst. Multiplies *factor by what the values
 * have to be multiplied by.
 */
static int decode(struct hz_context *ctx, const hz_lattice *l, const struct hzi_coded *w, void *dst,
		  float *factor)
{
	hz_lattice scaled = *l;
	float f = 1;
	int shift = 0;

	if (hzi_cuda_vlut_packs_as_label(l) && w->packed)
		return hzi_cuda_vlut_label_values(ctx, l, w, dst, padded_k(w), factor);
	rescale(l, w, &shift, &f);
	*factor *= f;
	if (!hzi_lattice_has_t(l) || l->rule.scales == 1)
		scaled.rule.scale[0] = 1;
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		scaled.rule.scale[i] = ldexpf(scaled.rule.scale[i], shift);
	if (hzi_cuda_vlut_is_bit_packed(l, w))
		return hzi_cuda_vlut_e8_bitplane_points(ctx, &scaled, w, dst, padded_k(w), HZ_F16);

	struct hzi_lattice_decode_args d = {
		.lattice = &scaled, .matrices = hzi_lattice_matrices_of(&scaled), .codes = w->codes,
		.t = hzi_lattice_has_t(l) ? w->t : NULL, .y = dst, .y_dtype = HZ_F16,
		.code_dtype = w->code_dtype, .pack = HZ_LATTICE_LEVEL, .to = HZ_LATTICE_VALUES,
		.first = w->first,
		.map = {.n = w->k, .blocks = w->blocks, .ndim = 1, .shape = {w->rows},
			.v_stride = {padded_k(w)}, .code_stride = {w->row}, .t_stride = {w->t_row},
			.v_step = 1, .code_block = w->block, .code_level = w->level,
			.t_step = w->t_step},
	};

	for (int i = 0; i < HZI_LATTICE_DIMS; i++)
		d.sub[i] = w->sub[i];
	/* Values behind k are multiplied by zeros of x; they must be finite. */
	if (w->k != padded_k(w))
		HZ_CHECK(hzi_cuda_fill(ctx, dst, 0, bytes_of(w)));
	return hzi_cuda_lattice_decode(ctx, &d);
}

/* Rows decoded at a time: whole tiles of the GEMM */
static int64_t slab_of(const struct hzi_coded *w)
{
	const int64_t rows = SLAB_BYTES / (padded_k(w) * 2) / TILE * TILE;

	return max_of(rows, TILE);
}

static size_t slab_bytes(const struct hzi_coded *w)
{
	struct hzi_coded slab = *w;

	slab.rows = min_of(w->rows, slab_of(w));
	return bytes_of(&slab);
}

/*
 * Decodes W slab by slab to the workspace and multiplies it by x. The workspace of the GEMM follows
 * the slab.
 */
static int multiply(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		    struct hzi_vlut_wgmma_opts *o, char *workspace)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(l, &a->w);
	const int64_t step = slab_of(&w), size = (int64_t)hz_dtype_size(w.code_dtype);
	const float factor = o->factor;
	const bool bits = hzi_cuda_vlut_is_bit_packed(l, &w);
	struct hzi_vlut_gemm_args slab = *a;

	o->values = workspace;
	o->workspace = workspace + slab_bytes(&w);
	slab.w = w;
	slab.w.packed = NULL;
	for (int64_t row = 0; row < w.rows; row += step) {
		struct hzi_coded from = w;	/* first as many rows as come before */

		from.rows = row;
		if (bits)
			from.packed = (const char *)w.packed +
				      hzi_cuda_vlut_bit_packed_bytes(l, &from);
		slab.w.rows = min_of(w.rows - row, step);
		slab.w.codes = bits ? NULL : (const char *)w.codes + row * w.row * size;
		slab.w.t = w.t ? w.t + row * w.t_row : NULL;
		slab.w.row_scale = w.row_scale ? w.row_scale + row * w.row_scale_step : NULL;
		slab.y = (char *)a->y + row * a->y_i * (int64_t)hz_dtype_size(a->y_dtype);
		o->factor = factor;
		from.rows = slab.w.rows;
		from.codes = slab.w.codes;
		from.t = slab.w.t;
		HZ_CHECK(decode(ctx, l, &from, workspace, &o->factor));
		HZ_CHECK(hzi_cuda_vlut_wgmma(ctx, &slab, o));
		o->x_is_packed = true;
	}
	return HZ_OK;
}

/* ---- One-sided ------------------------------------------------------------------------------- */

const char *hzi_cuda_vlut_via_f16_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const char *const why = hzi_cuda_vlut_wgmma_unsupported(ctx, a, true);

	return why ? why : decode_unsupported(a->vlut->w, &a->w);
}

size_t hzi_cuda_vlut_via_f16_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;

	return slab_bytes(&a->w) + hzi_cuda_vlut_wgmma_workspace(ctx, a, true);
}

int hzi_cuda_vlut_via_f16(struct hz_context *ctx, const void *args)
{
	struct hzi_vlut_wgmma_opts o = {.factor = 1};

	return multiply(ctx, args, &o, ctx->workspace);
}

/* ---- Two-sided ------------------------------------------------------------------------------- */

/* The one-sided product with x decoded to `x` */
static struct hzi_vlut_gemm_args one_sided(const struct hzi_vlut_gemm2_args *a, const void *x)
{
	return (struct hzi_vlut_gemm_args){
		.vlut = a->vlut, .w = a->w, .x = x, .y = a->y, .x_dtype = HZ_F16,
		.y_dtype = a->y_dtype,
		.batch = a->x.rows, .x_k = 1, .x_b = padded_k(&a->x), .y_i = a->y_i, .y_b = a->y_j,
	};
}

/* What multiplies the codes of W by x of f16, without decoding them to memory */
static const char *codes_unsupported(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *one)
{
	return hzi_cuda_vlut_decoded_wgmma_unsupported(ctx, one) ?
	       hzi_cuda_vlut_wgmma_unsupported(ctx, one, false) : NULL;
}

static size_t codes_workspace(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *one)
{
	return hzi_cuda_vlut_decoded_wgmma_unsupported(ctx, one) ?
	       hzi_cuda_vlut_wgmma_workspace(ctx, one, false) :
	       hzi_cuda_vlut_decoded_wgmma_workspace(ctx, one);
}

const char *hzi_cuda_vlut2_via_f16_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const struct hzi_vlut_gemm_args one = one_sided(a, NULL);
	const char *const why = decode_unsupported(a->vlut->x, &a->x);

	return why ? why : !codes_unsupported(ctx, &one) ? NULL :
	       hzi_cuda_vlut_via_f16_unsupported(ctx, &one);
}

size_t hzi_cuda_vlut2_via_f16_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const struct hzi_vlut_gemm_args one = one_sided(a, NULL);

	return bytes_of(&a->x) + (codes_unsupported(ctx, &one) ?
				  hzi_cuda_vlut_via_f16_workspace(ctx, &one) :
				  codes_workspace(ctx, &one));
}

int hzi_cuda_vlut2_via_f16(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	char *workspace = ctx->workspace;
	const struct hzi_coded x = hzi_cuda_vlut_code_view(a->vlut->x, &a->x);
	const struct hzi_vlut_gemm_args one = one_sided(a, workspace);
	struct hzi_vlut_wgmma_opts o = {
		.factor = 1, .column_scale = a->x.row_scale,
		.column_scale_step = a->x.row_scale_step,
	};

	HZ_CHECK(decode(ctx, a->vlut->x, &x, workspace, &o.factor));
	workspace += bytes_of(&x);
	if (codes_unsupported(ctx, &one))
		return multiply(ctx, &one, &o, workspace);
	o.workspace = workspace;
	return hzi_cuda_vlut_decoded_wgmma_unsupported(ctx, &one) ?
	       hzi_cuda_vlut_wgmma(ctx, &one, &o) : hzi_cuda_vlut_decoded_gemm(ctx, &one, &o);
}
