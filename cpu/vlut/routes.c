/*
 * routes.c - the code paths of products with lattice codes on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Costs are ranks: the index of the row before which a route goes; equal ranks in the order of
 * rows. The routes get a job, which describes both operands of the product.
 */
#include <config.h>

#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/core/route.h"

/*
 * Most columns for which regtable is the fastest: compared with s8, with f32, with all for u8
 * tables
 */
#define REGTABLE_COLUMNS_S8 2
#define REGTABLE_COLUMNS_F32 4
#define REGTABLE_COLUMNS_TABLE 8

/* Most digits of x, of all columns, for which labels are faster than f32 */
#define LABEL_DIGITS 24

static void clear(void *y, int dtype, int64_t rows, int64_t columns, int64_t y_i, int64_t y_j)
{
	const size_t size = hz_dtype_size(dtype);

	for (int64_t i = 0; i < rows; i++) {
		for (int64_t c = 0; c < columns; c++)
			memset((char *)y + (size_t)(i * y_i + c * y_j) * size, 0, size);
	}
}

/* ---- vlut_gemm ------------------------------------------------------------------------------- */

enum { D4_BITFIELD, LABEL, REGTABLE, TABLE, S8, EXACT_S32, F32, IF_FORCED };

static bool is_s32(const struct hzi_vlut_gemm_job *j)
{
	return j->a->y_dtype == HZ_S32;
}

/* opts->table_dtype: u8 and u16 permit tables, other dtypes request them, as HZ_VLUT_TABLE does. */
static bool has_byte_table(const struct hz_vlut *v)
{
	return v->table_dtype == HZ_U8 || v->table_dtype == HZ_U16;
}

static bool asks_for_table(const struct hz_vlut *v)
{
	return v->route == HZ_VLUT_TABLE || (v->table_dtype && !has_byte_table(v));
}

static bool fits_s8(const struct hzi_vlut_gemm_job *j)
{
	return j->w.reach <= HZI_VLUT_BYTE_REACH && (is_s32(j) || !j->w.has_t);
}

static const char *d4_bitfield_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;

	(void)ctx;
	if (!j->w.bitfield || !j->a->w.packed)
		return "the codes are not packed D4 with q = 4";
	return j->w.first != 0 ? "only coarser levels are asked for" :
	       j->a->vlut->sum == HZ_F32 && !is_s32(j) ? "f32 sums are asked for" : NULL;
}

static int64_t d4_bitfield_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;

	return j->a->batch * j->parts <= hzi_vlut_kern[ctx->level].bitfield_rows_max ? D4_BITFIELD :
	       IF_FORCED;
}

static const char *label_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;

	(void)ctx;
	if (!j->w.label || !j->a->w.packed)
		return "the codes are not packed labels of E8, or D4, with a bank of integers";
	return j->w.first != 0 ? "only coarser levels are asked for" : is_s32(j) ? "y is s32" :
	       asks_for_table(j->a->vlut) ? "tables are asked for" :
	       j->a->vlut->sum == HZ_F32 ? "f32 sums are asked for" : NULL;
}

static int64_t label_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;

	(void)ctx;
	return hzi_vlut_label_by_32(j) || j->a->batch * j->parts <= LABEL_DIGITS ? LABEL :
	       IF_FORCED;
}

static const char *regtable_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;
	const struct hz_vlut *v = j->a->vlut;

	(void)ctx;
	if (is_s32(j))
		return "y is s32";
	if (!j->w.small)
		return "a level has more than 256 codes";
	if (j->w.label && j->a->w.packed)
		return "the codes are packed as bit-planes";
	if (has_byte_table(v))
		return NULL;
	return asks_for_table(v) ? "tables of floats are asked for" :
	       v->route == HZ_VLUT_DECODE ? "HZ_VLUT_DECODE asks for no tables" :
	       v->sum == HZ_F32 ? "f32 sums are asked for" : NULL;
}

static int64_t regtable_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;
	const struct hz_vlut *v = j->a->vlut;
	const int most = fits_s8(j) ? REGTABLE_COLUMNS_S8 : REGTABLE_COLUMNS_F32;

	(void)ctx;
	if (has_byte_table(v) && (v->route == HZ_VLUT_TABLE ||
				  j->a->batch <= REGTABLE_COLUMNS_TABLE))
		return REGTABLE;
	return v->route == HZ_VLUT_AUTO && j->a->batch <= most &&
	       !(j->integer_x && fits_s8(j)) ? S8 : IF_FORCED;
}

static const char *table_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;
	const struct hz_vlut *v = j->a->vlut;

	(void)ctx;
	return is_s32(j) ? "y is s32" :
	       !j->w.lattice->leaders ? "a level has more than 65536 codes" :
	       has_byte_table(v) ? "tables of bytes are asked for" :
	       v->route == HZ_VLUT_DECODE && !v->table_dtype ? "HZ_VLUT_DECODE asks for no tables" :
	       NULL;
}

static int64_t table_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;

	(void)ctx;
	return asks_for_table(j->a->vlut) ? TABLE : IF_FORCED;
}

static const char *s8_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_job *const j = args;

	(void)ctx;
	if (j->w.reach > HZI_VLUT_BYTE_REACH)
		return "the points do not fit s8";
	if (is_s32(j))
		return NULL;
	return j->w.has_t ? "blocks have scales of their own" :
	       asks_for_table(j->a->vlut) ? "tables are asked for" :
	       j->a->vlut->sum == HZ_F32 ? "f32 sums are asked for" : NULL;
}

static const char *exact_s32_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return is_s32(args) ? NULL : "y is not s32";
}

static const char *f32_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return is_s32(args) ? "y is s32" : NULL;
}

static struct hzi_vlut_gemm_job *job_of(const void *args)
{
	return (struct hzi_vlut_gemm_job *)(uintptr_t)args;
}

#define PATH(name, path) \
	static size_t name##_workspace(const struct hz_context *ctx, const void *args) \
	{ \
		(void)ctx; \
		return hzi_vlut_gemm(job_of(args), path, NULL); \
	} \
	static int name##_run(struct hz_context *ctx, const void *args) \
	{ \
		hzi_vlut_gemm(job_of(args), path, ctx->workspace); \
		return HZ_OK; \
	}

PATH(d4_bitfield, HZI_VLUT_D4_BITFIELD)
PATH(label, HZI_VLUT_LABEL)
PATH(regtable, HZI_VLUT_REGTABLE)
PATH(table, HZI_VLUT_TABLE_F32)
PATH(s8, HZI_VLUT_S8)
PATH(f32, HZI_VLUT_F32)

static size_t exact_s32_workspace(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return hzi_vlut_gemm_exact(job_of(args), NULL);
}

static int exact_s32_run(struct hz_context *ctx, const void *args)
{
	hzi_vlut_gemm_exact(job_of(args), ctx->workspace);
	return HZ_OK;
}

#define ROUTE(path) \
	.unsupported = path##_unsupported, .workspace = path##_workspace, .run = path##_run

static const struct hzi_route gemm_routes[] = {
	[D4_BITFIELD] = {"d4_bitfield", "packed D4, few columns: decoded by logic, s8 sums",
			 ROUTE(d4_bitfield), .cost = d4_bitfield_cost},
	[LABEL] = {"label", "packed E8 with a shaping, D4 with a bank: decoded by bytes, s8 sums",
		   ROUTE(label), .cost = label_cost},
	[REGTABLE] = {"regtable", "few columns: tables of u8 or u16 in vector registers",
		      ROUTE(regtable), .cost = regtable_cost},
	[TABLE] = {"table", "tables of floats in memory: HZ_VLUT_TABLE", ROUTE(table),
		   .cost = table_cost},
	[S8] = {"s8", "points and columns as s8, exact sums", ROUTE(s8)},
	[EXACT_S32] = {"exact_s32", "y of s32, points beyond s8", ROUTE(exact_s32)},
	[F32] = {"f32", "any y of floats: points as f32", ROUTE(f32)},
};

/* ---- vlut_gemm2 ------------------------------------------------------------------------------ */

/* Tables, and the integers of A2, include values beyond k, where points need not be 0. */
static bool has_whole_blocks(const struct hzi_vlut_gemm2_job *j)
{
	return j->a->w.k % j->w.rule->d == 0;
}

static const char *table2_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_job *const j = args;

	(void)ctx;
	return j->a->vlut->route != HZ_VLUT_TABLE ? "HZ_VLUT_TABLE is not asked for" :
	       !has_whole_blocks(j) ? "k is not a multiple of the dimension" : NULL;
}

static const char *exact2_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_job *const j = args;

	(void)ctx;
	if (j->a->y_dtype == HZ_S32)
		return NULL;
	if (j->w.matrices || j->x.matrices || j->w.embed != j->x.embed)
		return "products of points are no sums of integers";
	return j->w.has_t || j->x.has_t || j->w.sub || j->x.sub ?
		       "the values are not points times one scale" :
	       !has_whole_blocks(j) && j->w.embed != j->w.rule->d ?
		       "k is not a multiple of the dimension" : NULL;
}

static const char *s8_2_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_job *const j = args;

	return j->w.reach > HZI_VLUT_BYTE_REACH || j->x.reach > HZI_VLUT_BYTE_REACH ?
		       "the points do not fit s8" : exact2_unsupported(ctx, args);
}

static const char *via_f32_2_unsupported(const struct hz_context *ctx, const void *args)
{
	return exact2_unsupported(ctx, args) ? NULL : "the sums are of integers, hence exact";
}

static struct hzi_vlut_gemm2_job *job2_of(const void *args)
{
	return (struct hzi_vlut_gemm2_job *)(uintptr_t)args;
}

#define PATH2(name, path) \
	static size_t name##_workspace(const struct hz_context *ctx, const void *args) \
	{ \
		(void)ctx; \
		return hzi_vlut_gemm2(job2_of(args), path, NULL); \
	} \
	static int name##_run(struct hz_context *ctx, const void *args) \
	{ \
		hzi_vlut_gemm2(job2_of(args), path, ctx->workspace); \
		return HZ_OK; \
	}

PATH2(table2, HZI_VLUT2_TABLE)
PATH2(s8_2, HZI_VLUT2_S8)
PATH2(exact2, HZI_VLUT2_EXACT)
PATH2(via_f32_2, HZI_VLUT2_VIA_F32)

static const struct hzi_route gemm2_routes[] = {
	{"table", "inner products from a table: HZ_VLUT_TABLE", ROUTE(table2)},
	{"s8", "the points of both as s8, exact sums", ROUTE(s8_2)},
	{"exact_s64", "points beyond s8, 64-bit sums", ROUTE(exact2)},
	{"via_f32", "scales of blocks, bases: x decoded to f32, then vlut_gemm's f32",
	 ROUTE(via_f32_2)},
};

/* ---- The tables ------------------------------------------------------------------------------ */

const struct hzi_op_routes hzi_cpu_vlut_routes[] = {
	HZI_RANKED_ROUTES(vlut_gemm, gemm_routes),
	HZI_ROUTES(vlut_gemm2, gemm2_routes),
	{0},
};

static int bias_act_of_zeros(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	static const float zero;
	const struct hzi_vlut_bias_act e = {
		.from = &zero, .y = a->y, .bias = a->bias, .rows = a->batch, .n = a->w.rows,
		.y_step = a->y_i, .shape = {a->batch}, .y_stride = {a->y_b}, .ndim = 1,
		.from_dtype = HZ_F32, .y_dtype = a->y_dtype, .activation = a->activation,
	};

	return hzi_cpu_vlut_bias_act(ctx, &e);
}

int hzi_cpu_vlut_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	struct hzi_vlut_gemm_job j;

	if (a->w.blocks == 0 && hzi_vlut_has_epilogue(a))
		return bias_act_of_zeros(ctx, a);
	if (a->w.blocks == 0) {
		clear(a->y, a->y_dtype, a->w.rows, a->batch, a->y_i, a->y_b);
		return HZ_OK;
	}
	hzi_vlut_gemm_begin(&j, ctx, a);
	return hzi_route_run(ctx, &hzi_cpu_vlut_routes[0], &j);
}

/* Counting does not modify the context. */
size_t hzi_cpu_vlut_gemm_workspace(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	struct hzi_vlut_gemm_job j;

	if (a->w.blocks == 0)
		return 0;
	hzi_vlut_gemm_begin(&j, (struct hz_context *)(uintptr_t)ctx, a);
	return hzi_route_workspace(ctx, &hzi_cpu_vlut_routes[0], &j);
}

int hzi_cpu_vlut_gemm2(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a)
{
	struct hzi_vlut_gemm2_job j;

	if (a->w.blocks == 0) {
		clear(a->y, a->y_dtype, a->w.rows, a->x.rows, a->y_i, a->y_j);
		return HZ_OK;
	}
	hzi_vlut_gemm2_begin(&j, ctx, a);
	return hzi_route_run(ctx, &hzi_cpu_vlut_routes[1], &j);
}

size_t hzi_cpu_vlut_gemm2_workspace(const struct hz_context *ctx,
				    const struct hzi_vlut_gemm2_args *a)
{
	struct hzi_vlut_gemm2_job j;

	if (a->w.blocks == 0)
		return 0;
	hzi_vlut_gemm2_begin(&j, (struct hz_context *)(uintptr_t)ctx, a);
	return hzi_route_workspace(ctx, &hzi_cpu_vlut_routes[1], &j);
}
