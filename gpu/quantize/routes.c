/*
 * routes.c - routes of quantization on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/hadamard/launch.h"
#include "gpu/quantize/launch.h"
#include "lib/core/route.h"

#define ROW(name_, what_, function) \
	{.name = name_, .what = what_, .unsupported = hzi_cuda_##function##_unsupported, \
	 .run = hzi_cuda_##function}

/* Routes with a transform all report the workspace of hadamard_chunked. */
#define WITH_TRANSFORM(name_, what_, function) \
	{.name = name_, .what = what_, .unsupported = hzi_cuda_##function##_unsupported, \
	 .workspace = hzi_cuda_quantize_hadamard_chunked_workspace, .run = hzi_cuda_##function}

#define CONTIGUOUS ROW("contiguous", "contiguous floats and codes", quantize_contiguous)
#define CHUNKED \
	WITH_TRANSFORM("hadamard_chunked", "with a transform: chunks of rows in two launches", \
		       quantize_hadamard_chunked)
#define STRIDED ROW("strided", "any strides, in tiles", quantize_strided)
#define MICROSCALING \
	{.name = "microscaling", .what = "MXFP4, MXFP8 and NVFP4 of contiguous floats, also with a " \
					 "transform of 2^k or m 2^k; dequantization of 4 bits in " \
					 "groups", \
	 .unsupported = hzi_cuda_quantize_microscaling_unsupported, \
	 .workspace = hzi_cuda_quantize_microscaling_workspace, \
	 .run = hzi_cuda_quantize_microscaling}
#define FORMATS \
	{.name = "formats", .what = "any format, given or chosen scales, any strides", \
	 .unsupported = hzi_cuda_quantize_formats_unsupported, \
	 .workspace = hzi_cuda_quantize_formats_workspace, .run = hzi_cuda_quantize_formats}

/* hadamard_chunked supports every call with a transform, strided or formats every call without. */
static const struct hzi_route quantize[] = {
	CONTIGUOUS,
	WITH_TRANSFORM("hadamard_contiguous", "with a transform of contiguous rows of 2^k elements",
		       quantize_hadamard_contiguous),
	WITH_TRANSFORM("hadamard_base_mma",
		       "with one of contiguous 16-bit rows of m 2^k, tensor cores",
		       quantize_hadamard_base_mma),
	MICROSCALING,
	CHUNKED,
	STRIDED,
	FORMATS,
};

static const struct hzi_route dequantize[] = {
	CONTIGUOUS,
	WITH_TRANSFORM("hadamard_contiguous",
		       "with a transform of contiguous 16-bit rows of 2^k elements",
		       dequantize_hadamard_scaled),
	WITH_TRANSFORM("hadamard_base_mma",
		       "with one of contiguous 16-bit rows of m 2^k, tensor cores",
		       dequantize_hadamard_base_mma),
	MICROSCALING,
	CHUNKED,
	STRIDED,
	FORMATS,
};

/* The cost of a route is its rank. */
enum {GROUPS, CLUSTER, ROWS, TWO_PASS, LAST};

HZI_RANK(cluster, struct hzi_minmax_call, a->cluster->wins, CLUSTER, LAST)
HZI_RANK(rows, void, hzi_cuda_choose_qparams_rows_wins(a), ROWS, LAST)

static const struct hzi_route choose_qparams[] = {
	[GROUPS] = ROW("groups", "contiguous groups of 2^n elements", choose_qparams_groups),
	[CLUSTER] = {.name = "cluster", .what = "columns, shared by the blocks of a cluster",
		     .arch = HZI_SM_90, .unsupported = hzi_cuda_choose_qparams_cluster_unsupported,
		     .cost = cluster_cost, .run = hzi_cuda_choose_qparams_cluster},
	[ROWS] = {.name = "rows", .what = "one row of floats for each parameter",
		  .unsupported = hzi_cuda_choose_qparams_rows_unsupported, .cost = rows_cost,
		  .run = hzi_cuda_choose_qparams_rows},
	[TWO_PASS] = {.name = "two_pass", .what = "anything: ranges, then parameters",
		      .run = hzi_cuda_choose_qparams_two_pass},
};

enum {QUANTIZE, DEQUANTIZE, CHOOSE};

const struct hzi_op_routes hzi_cuda_quantize_routes[] = {
	[QUANTIZE] = HZI_ROUTES(quantize, quantize),
	[DEQUANTIZE] = HZI_ROUTES(dequantize, dequantize),
	[CHOOSE] = HZI_RANKED_ROUTES(choose_qparams, choose_qparams),
	{0},
};

size_t hzi_cuda_quantize_workspace(const struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return hzi_route_workspace(ctx, &hzi_cuda_quantize_routes[QUANTIZE], &a->codes);
}

int hzi_cuda_quantize(struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_quantize_routes[QUANTIZE], &a->codes);
}

size_t hzi_cuda_dequantize_workspace(const struct hz_context *ctx,
				     const struct hzi_dequantize_args *a)
{
	return hzi_route_workspace(ctx, &hzi_cuda_quantize_routes[DEQUANTIZE], &a->codes);
}

int hzi_cuda_dequantize(struct hz_context *ctx, const struct hzi_dequantize_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_quantize_routes[DEQUANTIZE], &a->codes);
}

/* Two 32-bit words of a range per parameter, whichever route runs */
size_t hzi_cuda_choose_qparams_workspace(const struct hz_context *ctx,
					 const struct hzi_choose_qparams_args *a)
{
	(void)ctx;
	return (size_t)a->map.params * 8;
}

int hzi_cuda_choose_qparams(struct hz_context *ctx, const struct hzi_choose_qparams_args *a)
{
	struct hzi_minmax_cluster cluster;
	struct hzi_minmax_call c = {.a = a, .dims = hzi_quantize_make_dims(&a->map),
				    .cluster = &cluster};

	if (c.dims.d[c.dims.n - 1].group > 1)
		hzi_quantize_split_group(&c.dims, c.dims.n - 1);
	return hzi_route_run(ctx, &hzi_cuda_quantize_routes[CHOOSE], &c);
}
