/*
 * routes.c - the code paths of products with lattice codes on the GPU, and their order
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Costs are ranks: a route with cost r goes before row r of its table. Equal ranks keep the order
 * of rows.
 */
#include <config.h>

#include "gpu/vlut/d4_bitfield.h"
#include "gpu/vlut/launch.h"
#include "lib/core/route.h"

#define ROUTE(op, path) \
	.unsupported = hzi_cuda_##op##_##path##_unsupported, .run = hzi_cuda_##op##_##path
#define ROUTE_WITH_WORKSPACE(op, path) \
	ROUTE(op, path), .workspace = hzi_cuda_##op##_##path##_workspace

/* ---- vlut_gemm ------------------------------------------------------------------------------- */

enum {
	TABLE, LABEL_SKINNY, DECODED_WGMMA, E8_BITPLANE, D4_F16_SKINNY, D4_F16_WGMMA, VIA_QGEMM,
	D4_BITFIELD, TABLE_F16_SKINNY, TABLE_WGMMA, TABLE_S8_SKINNY, VIA_F16, GENERIC,
	IF_FORCED		/* after all others */
};

#define E8_BITPLANE_COLUMNS 6	/* above this, decoding to s8 or f16 is faster */
#define VIA_QGEMM_COLUMNS 16	/* above this, via_qgemm is the fastest route for s8 */

/* Above this, two of them for one of f32, decoded_wgmma is faster. */
#define LABEL_SKINNY_COLUMNS 8

HZI_RANK(label_skinny, struct hzi_vlut_gemm_args,
	 a->batch * (a->x_dtype == HZ_F32 ? 2 : 1) <= LABEL_SKINNY_COLUMNS, LABEL_SKINNY, GENERIC)
HZI_RANK(e8_bitplane, struct hzi_vlut_gemm_args, a->batch <= E8_BITPLANE_COLUMNS, E8_BITPLANE,
	 GENERIC)

/*
 * Not for one or two columns, where d4_bitfield uses 8-bit digits of them as the 8 columns of an
 * mma, nor for few rows, where k has to be split.
 */
static int64_t d4_f16_skinny_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const int64_t tiles = ceil_div(a->w.rows, HZI_VLUT_D4_ROWS);

	return a->batch > 2 && tiles * 2 > hzi_cuda_device(ctx)->sms ? D4_F16_SKINNY :
	       IF_FORCED;
}

/*
 * With a copy of x it is faster than decoded_wgmma for large W and up to D4_COPY_COLUMNS vectors:
 * us on an H200 of 11008 x 4096 by 16, 64, 128: 19, 26, 32 instead of 25, 36, 39; 8192 x 8192 by
 * 128, 256: 37, 62 instead of 39, 59; 4096 x 4096 by 64: 16 instead of 12.
 */
#define D4_COPY_VALUES (1 << 25)
#define D4_COPY_COLUMNS 128

HZI_RANK(d4_f16_wgmma, struct hzi_vlut_gemm_args,
	 a->batch > HZI_VLUT_D4_COLUMNS &&
		 (hzi_cuda_vlut_d4_f16_in_place(a) ||
		  (a->batch <= D4_COPY_COLUMNS && a->w.rows * a->w.k >= D4_COPY_VALUES)),
	 D4_F16_WGMMA, IF_FORCED)

/* For D4 the routes of f16 with up to 8 vectors or with adjacent vectors go before this one. */
static int64_t decoded_wgmma_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;

	(void)ctx;
	if (hzi_cuda_vlut_not_d4_bitfield(a->vlut->w, &a->w))
		return a->batch > 2 ? DECODED_WGMMA : IF_FORCED;
	return a->batch > (a->x_dtype == HZ_F16 ? HZI_VLUT_D4_COLUMNS : 2) ? VIA_QGEMM : IF_FORCED;
}

HZI_RANK(via_qgemm, struct hzi_vlut_gemm_args,
	 a->batch > VIA_QGEMM_COLUMNS || !hzi_cuda_vlut_e8_bitplane_unsupported(ctx, a),
	 VIA_QGEMM, GENERIC)
HZI_RANK(d4_bitfield, struct hzi_vlut_gemm_args, a->batch <= HZI_VLUT_D4_COLUMNS, D4_BITFIELD,
	 TABLE_S8_SKINNY)
HZI_RANK(table_f16_skinny, void, hzi_cuda_vlut_split_k_pays(ctx, a), IF_FORCED, TABLE_F16_SKINNY)
HZI_RANK(table_wgmma, struct hzi_vlut_gemm_args, a->batch > 2, TABLE_WGMMA, IF_FORCED)

/*
 * Decoding to f16 is faster than more than four launches of this route, and for E8 with q = 4,
 * whose tables are large, than more than one. Measured on an H200, 8192 x 8192: 67 us per launch of
 * two columns; 120 us decoded, for up to 32 columns.
 */
static int64_t table_s8_skinny_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const int columns = hzi_cuda_vlut_table_s8_skinny_columns(a);

	(void)ctx;
	return a->batch <= (columns == 2 ? 2 : 4 * columns) ? TABLE_S8_SKINNY : GENERIC;
}

static const struct hzi_route gemm_routes[] = {
	[TABLE] = {"table", "inner products from tables: HZ_VLUT_TABLE",
		   ROUTE_WITH_WORKSPACE(vlut, table)},
	[LABEL_SKINNY] = {"label_skinny", "packed labels of E8, up to 8 vectors a launch",
			  ROUTE(vlut, label_skinny), .cost = label_skinny_cost},
	[DECODED_WGMMA] = {"decoded_wgmma", "packed labels of E8 or packed D4, 3 and more vectors",
			   .arch = HZI_SM_90A, ROUTE_WITH_WORKSPACE(vlut, decoded_wgmma),
			   .cost = decoded_wgmma_cost},
	[E8_BITPLANE] = {"e8_bitplane", "packed E8, up to 6 vectors", ROUTE(vlut, e8_bitplane),
			 .cost = e8_bitplane_cost},
	[D4_F16_SKINNY] = {"d4_f16_skinny", "packed D4, 3 to 8 vectors of f16",
			   ROUTE(vlut, d4_f16_skinny), .cost = d4_f16_skinny_cost},
	[D4_F16_WGMMA] = {"d4_f16_wgmma", "packed D4, 9 and more vectors of f16",
			  .arch = HZI_SM_90A, ROUTE_WITH_WORKSPACE(vlut, d4_f16_wgmma),
			  .cost = d4_f16_wgmma_cost},
	[VIA_QGEMM] = {"via_qgemm", "x of s8: decoded to s8, then a quantized GEMM",
		       ROUTE_WITH_WORKSPACE(vlut, via_qgemm), .cost = via_qgemm_cost},
	[D4_BITFIELD] = {"d4_bitfield", "packed D4, up to 8 vectors of any dtype",
			 ROUTE(vlut, d4_bitfield), .cost = d4_bitfield_cost},
	[TABLE_F16_SKINNY] = {"table_f16_skinny", "rows of codes, up to 8 vectors of f16",
			      ROUTE(vlut, table_f16_skinny), .cost = table_f16_skinny_cost},
	[TABLE_WGMMA] = {"table_wgmma", "codes of 4 bits a value, 3 and more vectors",
			 .arch = HZI_SM_90A, ROUTE_WITH_WORKSPACE(vlut, table_wgmma),
			 .cost = table_wgmma_cost},
	[TABLE_S8_SKINNY] = {"table_s8_skinny", "rows of codes, few vectors of any dtype",
			     ROUTE(vlut, table_s8_skinny), .cost = table_s8_skinny_cost},
	[VIA_F16] = {"via_f16", "decoded to f16, then a GEMM", .arch = HZI_SM_90A,
		     ROUTE_WITH_WORKSPACE(vlut, via_f16)},
	[GENERIC] = {"generic", "any call: decoded tile by tile", .run = hzi_cuda_vlut_generic},
};

/* ---- vlut_gemm2 ------------------------------------------------------------------------------ */

enum { TABLE2, VIA_QGEMM2, VIA_F16_2, GENERIC2 };

/*
 * From this many rows of x on, s8 is faster than f16 for packed D4, which the f16 GEMM decodes
 * itself. Microseconds of s8 and f16 on an H200: W 4096 x 4096 by 16 rows: 28, 13; by 256: 38, 27;
 * by 512: 45, 42; by 1024: 56, 67; W 2048 x 4096 by 512 rows: 30, 27; by 1024: 34, 42. For all
 * other codes s8 is at least as fast with any number of rows.
 */
#define VIA_QGEMM_ROWS 640

HZI_RANK(via_qgemm2, struct hzi_vlut_gemm2_args,
	 a->x.rows >= VIA_QGEMM_ROWS || hzi_cuda_vlut_not_d4_bitfield(a->vlut->w, &a->w),
	 VIA_QGEMM2, GENERIC2)

static const struct hzi_route gemm2_routes[] = {
	[TABLE2] = {"table", "inner products from a table: HZ_VLUT_TABLE",
		    ROUTE_WITH_WORKSPACE(vlut2, table)},
	[VIA_QGEMM2] = {"via_qgemm", "both decoded to s8, then a quantized GEMM",
			ROUTE_WITH_WORKSPACE(vlut2, via_qgemm), .cost = via_qgemm2_cost},
	[VIA_F16_2] = {"via_f16", "x decoded to f16, then a route of vlut_gemm by wgmma",
		       .arch = HZI_SM_90A, ROUTE_WITH_WORKSPACE(vlut2, via_f16)},
	[GENERIC2] = {"generic", "any call: decoded tile by tile", .run = hzi_cuda_vlut2_generic},
};

/* ---- The tables ------------------------------------------------------------------------------ */

const struct hzi_op_routes hzi_cuda_vlut_routes[] = {
	HZI_RANKED_ROUTES(vlut_gemm, gemm_routes),
	HZI_RANKED_ROUTES(vlut_gemm2, gemm2_routes),
	{0},
};

/* Bytes of products in f32, before bias and activation, that are not made in y */
static size_t sums_bytes(const struct hzi_vlut_gemm_args *a)
{
	return hzi_vlut_has_epilogue(a) && a->y_dtype != HZ_F32 ?
	       (size_t)round_up(4 * a->w.rows * a->batch, 64) : 0;
}

/* The product alone, to y or to sums [batch][rows] */
static struct hzi_vlut_gemm_args product_of(const struct hzi_vlut_gemm_args *a, void *sums)
{
	struct hzi_vlut_gemm_args p = *a;

	p.bias = NULL;
	p.activation = HZ_ACT_NONE;
	if (sums_bytes(a)) {
		p.y = sums;
		p.y_dtype = HZ_F32;
		p.y_i = 1;
		p.y_b = a->w.rows;
	}
	return p;
}

/* Bias and activation behind the product, whose kernels do without */
static int run_epilogue(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_vlut_gemm_args *product)
{
	const struct hzi_vlut_bias_act e = {
		.from = product->y, .y = a->y, .bias = a->bias, .rows = a->batch, .n = a->w.rows,
		.from_step = product->y_i, .y_step = a->y_i, .shape = {a->batch},
		.from_stride = {product->y_b}, .y_stride = {a->y_b}, .ndim = 1,
		.from_dtype = HZ_F32, .y_dtype = a->y_dtype, .activation = a->activation,
	};

	return hzi_cuda_vlut_bias_act(ctx, "vlut_gemm", &e);
}

int hzi_cuda_vlut_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const size_t sums = sums_bytes(a);
	char *const workspace = ctx->workspace;
	const struct hzi_vlut_gemm_args p = product_of(a, workspace);
	int status;

	ctx->workspace = sums ? workspace + sums : workspace;
	status = hzi_route_run(ctx, &hzi_cuda_vlut_routes[0], &p);
	ctx->workspace = workspace;
	if (status != HZ_OK || !hzi_vlut_has_epilogue(a))
		return status;
	return run_epilogue(ctx, a, &p);
}

size_t hzi_cuda_vlut_gemm_workspace(const struct hz_context *ctx,
				    const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_vlut_gemm_args p = product_of(a, NULL);

	return sums_bytes(a) + hzi_route_workspace(ctx, &hzi_cuda_vlut_routes[0], &p);
}

int hzi_cuda_vlut_gemm2(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_vlut_routes[1], a);
}

size_t hzi_cuda_vlut_gemm2_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm2_args *a)
{
	return hzi_route_workspace(ctx, &hzi_cuda_vlut_routes[1], a);
}
