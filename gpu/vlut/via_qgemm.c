/*
 * via_qgemm.c - products with lattice codes: decode to s8 in memory, then quantized GEMM
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * W is decoded to p - o as s8, slab by slab, and so is a coded x. The s32 accumulators are exact; a
 * kernel converts them to floats, in place if y is f32.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/lattice/launch.h"
#include "gpu/vlut/vlut.h"
#include "gpu/vlut/launch.h"
#include "lib/qgemm/qgemm.h"

#define SLAB_BYTES ((int64_t)128 << 20)	/* of points per slab */
#define LAUNCH_BYTES 12000000		/* moved in the time of a launch: fitted on an H200 */
#define MAX_K (INT32_MAX / (128 * 128))	/* accumulators fit s32 */

/* Integers of a row; bytes from row to row, for whole lattice blocks */
static int64_t integers_of(const hz_lattice *l, const struct hzi_coded *w)
{
	return l->rule.embed == l->rule.d ? w->k : w->blocks * l->rule.embed;
}

static int64_t pitch_of(const hz_lattice *l, const struct hzi_coded *w)
{
	return round_up(w->blocks * l->rule.embed, 16);
}

/* The largest |p - o| */
static int64_t reach_of(const hz_lattice *l)
{
	int32_t offset = 0;

	for (int i = 0; i < l->rule.embed; i++)
		offset = (int32_t)max_of(offset, abs(l->rule.offset[i]));
	return l->point_max + offset;
}

/* What a product of p - o of both sides is multiplied by */
static double factor_of(const struct hz_vlut *v)
{
	return (double)v->w->rule.scale[0] * v->x->rule.scale[0] / v->unit;
}

/*
 * Whether x by W is one GEMM, to y whose rows are those of x: its epilogue rounds once, as
 * vlut_epilogue_s32 does, if f32 holds all sums and there is one factor. It packs W, and not x: it
 * moves more bytes of points, and none of sums.
 */
static bool is_direct(const struct hzi_vlut_gemm_args *g, const struct hzi_coded *x)
{
	const struct hz_vlut *v = g->vlut;

	if (!x || g->y_dtype == HZ_S32 || g->y_i != 1 || g->w.row_scale || x->row_scale)
		return false;
	return factor_of(v) > 0 && (float)factor_of(v) == factor_of(v) &&
	       integers_of(v->w, &g->w) * reach_of(v->w) * reach_of(v->x) <= 1 << 24 &&
	       2 * integers_of(v->w, &g->w) * (g->w.rows - g->batch) <=
		       8 * g->w.rows * g->batch + LAUNCH_BYTES;
}

/*
 * True if vlut_epilogue_s32 converts the accumulators; with a dense x the epilogue of qgemm does.
 * x: the coded x, or NULL
 */
static bool converts_sums(const struct hzi_vlut_gemm_args *g, const struct hzi_coded *x)
{
	return x && g->y_dtype != HZ_S32 && !is_direct(g, x);
}

/*
 * Bytes of a row of accumulators in the workspace; 0: y itself holds them. The GEMM is slow for sums
 * that are not contiguous along its columns.
 */
static int64_t acc_pitch(const struct hzi_vlut_gemm_args *g, const struct hzi_coded *x)
{
	return converts_sums(g, x) && (g->y_dtype != HZ_F32 || g->y_b != 1) ?
		       round_up(4 * g->batch, 16) : 0;
}

/* Rows of W per slab */
static int64_t slab_of(const struct hzi_vlut_gemm_args *g, const struct hzi_coded *x)
{
	const hz_lattice *l = g->vlut->w;
	const int64_t pitch = max_of(pitch_of(l, &g->w), acc_pitch(g, x));
	const int64_t rows = SLAB_BYTES / pitch / 256 * 256;

	/* Packed bits are tiles of rows, decoded in one slab. */
	return hzi_cuda_vlut_is_bit_packed(l, &g->w) ? g->w.rows :
	       rows < 256 ? 256 : min_of(rows, g->w.rows);
}

/* Returns NULL, or why the points of w cannot be decoded to s8. */
static const char *decode_unsupported(const hz_lattice *l, const struct hzi_coded *w)
{
	if (w->rows <= 0 || w->k <= 0)
		return "a size is 0";
	if (integers_of(l, w) > MAX_K || w->rows * w->blocks > INT32_MAX)
		return "the accumulators or indices do not fit 32 bits";
	if (l->rule.shaping)
		return "the codes are labels";
	if (!hzi_cuda_vlut_is_bit_packed(l, w))
		return hzi_cuda_lattice_points_s8_unsupported(l);
	return w->first == 0 || l->rule.d == 8 ? NULL : "only coarser levels are asked for";
}

/* Decodes p - o of w, rows of codes or packed bits, to dst. */
static int decode(struct hz_context *ctx, const hz_lattice *l, const struct hzi_coded *w, void *dst)
{
	const struct hzi_lattice_decode_args d = {
		.lattice = l, .codes = w->codes, .y = dst, .y_dtype = HZ_S8,
		.code_dtype = w->code_dtype, .pack = HZ_LATTICE_LEVEL, .first = w->first,
		.map = {.n = w->k, .blocks = w->blocks, .ndim = 1, .shape = {w->rows},
			.v_stride = {pitch_of(l, w)}, .code_stride = {w->row}, .v_step = 1,
			.code_block = w->block, .code_level = w->level},
	};

	if (hzi_cuda_vlut_is_bit_packed(l, w))
		return l->rule.d == 4 ?
			       hzi_cuda_vlut_d4_bitfield_points(ctx, l, w, dst, pitch_of(l, w)) :
			       hzi_cuda_vlut_e8_bitplane_points(ctx, l, w, dst, pitch_of(l, w),
								HZ_S8);
	return hzi_cuda_lattice_points_s8(ctx, &d);
}

/* True if values are (p - o) times the scales of the lattice and of the row. */
static bool is_point(const hz_lattice *l, const struct hzi_coded *w)
{
	for (int i = 0; i < l->rule.d; i++) {
		if (w->sub[i] != 0)
			return false;
	}
	return !hzi_lattice_has_t(l);
}

/* The product of `a`, `rows` decoded rows of w, and x of s8; is_direct(): of x and `a` */
static struct hzi_qgemm_args product(const struct hzi_vlut_gemm_args *g, const struct hzi_coded *x,
				     const void *a, int64_t rows, int64_t k)
{
	const hz_lattice *l = g->vlut->w;
	const bool is_s32 = g->y_dtype == HZ_S32 || converts_sums(g, x);
	struct hzi_qgemm_args t = {
		.a = a, .b = g->x, .c = g->y, .a_dtype = HZ_S8, .b_dtype = HZ_S8,
		.c_dtype = is_s32 ? HZ_S32 : g->y_dtype, .layout = HZI_QGEMM_LAYOUT_CUDA, .m = rows,
		.n = g->batch,
		.k = k, .a_m = pitch_of(l, &g->w), .a_k = 1, .b_k = g->x_k, .b_n = g->x_b,
		.c_m = g->y_i, .c_n = g->y_b, .rows = rows, .reach = k * 128 * 128,
		.identity = is_s32, .mult = {1 << 30, 30}, .a_scale = 1,
		.b_scale = x ? (float)factor_of(g->vlut) :
			   (l->rule.kind == HZ_LATTICE_E8 ? 0.5f : 1.0f) * l->rule.scale[0],
		.c_scale = 1, .a_scales = is_s32 ? NULL : g->w.row_scale,
		.scale_step = 1, .min = INT32_MIN, .max = INT32_MAX, .fmin = -INFINITY,
		.fmax = INFINITY,
	};

	if (!is_direct(g, x))
		return t;
	t.a = g->x;
	t.b = a;
	t.m = t.rows = g->batch;
	t.n = rows;
	t.a_m = g->x_b;
	t.b_k = 1;
	t.b_n = pitch_of(l, &g->w);
	t.c_m = g->y_b;
	t.c_n = 1;
	return t;
}

static size_t product_bytes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			    const struct hzi_coded *x)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_qgemm_args g = product(a, x, NULL, slab_of(a, x), integers_of(l, &a->w));

	return (size_t)round_up((int64_t)hzi_cuda_qgemm_workspace(ctx, &g), 256);
}

static size_t points_bytes(const struct hzi_vlut_gemm_args *a, const struct hzi_coded *x)
{
	return (size_t)round_up(slab_of(a, x) * pitch_of(a->vlut->w, &a->w), 256);
}

static size_t acc_bytes(const struct hzi_vlut_gemm_args *a, const struct hzi_coded *x)
{
	return (size_t)round_up(slab_of(a, x) * acc_pitch(a, x), 256);
}

/* Converts the accumulators of product g to y. */
static int convert_sums(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_coded *x, const struct hzi_qgemm_args *g)
{
	const struct hzi_vlut_epilogue s = {
		.sums = g->c, .y = a->y, .row_scale = a->w.row_scale, .column_scale = x->row_scale,
		.rows = g->m, .columns = g->n, .sums_i = g->c_m, .y_i = a->y_i, .y_j = a->y_b,
		.row_scale_step = a->w.row_scale_step, .column_scale_step = x->row_scale_step,
		.factor = factor_of(a->vlut),
		.y_dtype = a->y_dtype, .columns_fastest = a->y_b < a->y_i,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(s.columns, HZI_VLUT_EPILOGUE_TILE),
			 (unsigned)min_of(ceil_div(s.rows, HZI_VLUT_EPILOGUE_TILE), 65535)},
		.block = {HZI_VLUT_THREADS},
	};

	return hzi_cuda_launch(ctx, "vlut_gemm2", HZI_KERNEL_vlut_epilogue_s32, &launch, &s,
			       sizeof(s));
}

/* Workspace: that of qgemm, a slab of W, its accumulators. x: the coded x, or NULL */
static int multiply(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		    const struct hzi_coded *x)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(l, &a->w);
	const int64_t step = slab_of(a, x), size = (int64_t)hz_dtype_size(w.code_dtype);
	char *workspace = (char *)ctx->workspace + product_bytes(ctx, a, x);
	struct hzi_vlut_gemm_args part = *a;

	part.w = w;
	for (int64_t row = 0; row < w.rows; row += step) {
		struct hzi_qgemm_args g;

		part.w.rows = min_of(w.rows - row, step);
		part.w.codes = w.codes ? (const char *)w.codes + row * w.row * size : NULL;
		part.w.row_scale = w.row_scale ? w.row_scale + row * w.row_scale_step : NULL;
		part.y = (char *)a->y + row * a->y_i * (int64_t)hz_dtype_size(a->y_dtype);
		HZ_CHECK(decode(ctx, l, &part.w, workspace));
		g = product(a, x, workspace, part.w.rows, integers_of(l, &w));
		g.c = part.y;
		if (g.a_scales)
			g.a_scales = part.w.row_scale;
		if (acc_pitch(a, x)) {
			g.c = workspace + points_bytes(a, x);
			g.c_m = acc_pitch(a, x) / 4;
			g.c_n = 1;
		}
		HZ_CHECK(hzi_cuda_qgemm(ctx, &g));
		if (converts_sums(a, x))
			HZ_CHECK(convert_sums(ctx, &part, x, &g));
	}
	return HZ_OK;
}

/* ---- One-sided ------------------------------------------------------------------------------- */

const char *hzi_cuda_vlut_via_qgemm_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const char *why;

	(void)ctx;
	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (a->x_dtype != HZ_S8)
		return "x is not s8";
	if ((why = decode_unsupported(l, &a->w)))
		return why;
	if (l->rule.embed != l->rule.d)
		return "points have more integers than values";
	if (a->y_dtype == HZ_S32)
		return NULL;
	return !is_point(l, &a->w) ? "the values are not points times one scale" :
	       a->w.row_scale && a->w.row_scale_step != 1 ? "row_scale is not contiguous" : NULL;
}

size_t hzi_cuda_vlut_via_qgemm_workspace(const struct hz_context *ctx, const void *args)
{
	return product_bytes(ctx, args, NULL) + points_bytes(args, NULL);
}

int hzi_cuda_vlut_via_qgemm(struct hz_context *ctx, const void *args)
{
	return multiply(ctx, args, NULL);
}

/* ---- Two-sided ------------------------------------------------------------------------------- */

/* The one-sided product with x decoded to `x` */
static struct hzi_vlut_gemm_args one_sided(const struct hzi_vlut_gemm2_args *a, const void *x)
{
	return (struct hzi_vlut_gemm_args){
		.vlut = a->vlut, .w = a->w, .x = x, .y = a->y, .x_dtype = HZ_S8,
		.y_dtype = a->y_dtype, .batch = a->x.rows, .x_k = 1,
		.x_b = pitch_of(a->vlut->x, &a->x), .y_i = a->y_i, .y_b = a->y_j,
	};
}

/*
 * Floats are computed from exact sums, as on the CPU. For A2 this needs whole blocks, since two
 * values have three integers.
 */
const char *hzi_cuda_vlut2_via_qgemm_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const hz_lattice *w = a->vlut->w, *x = a->vlut->x;
	const char *why;

	(void)ctx;
	if (w->rule.embed != x->rule.embed)
		return "points of both sides have different numbers of integers";
	if ((why = decode_unsupported(w, &a->w)) || (why = decode_unsupported(x, &a->x)))
		return why;
	if (a->y_dtype == HZ_S32)
		return NULL;
	return !is_point(w, &a->w) || !is_point(x, &a->x) ?
		       "the values are not points times one scale" :
	       w->rule.embed != w->rule.d && a->w.k % w->rule.d ?
		       "k is not a multiple of the dimension" : NULL;
}

size_t hzi_cuda_vlut2_via_qgemm_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const struct hzi_vlut_gemm_args one = one_sided(a, NULL);

	return product_bytes(ctx, &one, &a->x) + points_bytes(&one, &a->x) +
	       acc_bytes(&one, &a->x) +
	       (size_t)(a->x.rows * pitch_of(a->vlut->x, &a->x));
}

int hzi_cuda_vlut2_via_qgemm(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const hz_lattice *l = a->vlut->x;
	const struct hzi_coded x = hzi_cuda_vlut_code_view(l, &a->x);
	struct hzi_vlut_gemm_args one = one_sided(a, NULL);
	char *points = (char *)ctx->workspace + product_bytes(ctx, &one, &a->x) +
		       points_bytes(&one, &a->x) + acc_bytes(&one, &a->x);

	one.x = points;
	HZ_CHECK(decode(ctx, l, &x, points));
	return multiply(ctx, &one, &a->x);
}
