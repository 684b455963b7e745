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

/* Routes with a transform have the workspace of hadamard_chunked, whichever runs. */
#define ROTATED(name_, what_, function) \
	{.name = name_, .what = what_, .unsupported = hzi_cuda_##function##_unsupported, \
	 .workspace = hzi_cuda_codes_hadamard_workspace, .run = hzi_cuda_##function}

#define CONTIGUOUS ROW("contiguous", "contiguous floats and codes", codes_contiguous)
#define CHUNKED \
	ROTATED("hadamard_chunked", "with a transform: chunks of rows in two launches", \
		codes_hadamard)
#define STRIDED ROW("strided", "any strides, in tiles", codes_strided)

/* hadamard_chunked supports every call with a transform, strided every call without. */
static const struct hzi_route quantize[] = {
	CONTIGUOUS,
	ROTATED("hadamard_contiguous", "with a transform of contiguous rows of 2^k elements",
		quantize_hadamard_contiguous),
	ROTATED("hadamard_base_mma", "with one of contiguous 16-bit rows of m 2^k, tensor cores",
		quantize_hadamard_base_mma),
	CHUNKED,
	STRIDED,
};

static const struct hzi_route dequantize[] = {
	CONTIGUOUS,
	ROTATED("hadamard_contiguous", "with a transform of contiguous 16-bit rows of 2^k elements",
		dequantize_hadamard_scaled),
	ROTATED("hadamard_base_mma", "with one of contiguous 16-bit rows of m 2^k, tensor cores",
		dequantize_hadamard_base_mma),
	CHUNKED,
	STRIDED,
};

/* Costs are places in the order of preference. */
enum {GROUPS, CLUSTER, RANGE_ROWS, TWO_PASS, LAST};

static int64_t cluster_cost(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return ((const struct hzi_range_call *)args)->cluster->wins ? CLUSTER : LAST;
}

static int64_t rows_cost(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return hzi_cuda_range_rows_wins(args) ? RANGE_ROWS : LAST;
}

static const struct hzi_route choose_qparams[] = {
	[GROUPS] = ROW("groups", "contiguous groups of 2^n elements", range_groups),
	[CLUSTER] = {.name = "cluster", .what = "columns, shared by the blocks of a cluster",
		     .arch = HZI_SM_90, .unsupported = hzi_cuda_range_cluster_unsupported,
		     .cost = cluster_cost, .run = hzi_cuda_range_cluster},
	[RANGE_ROWS] = {.name = "rows", .what = "one row of floats for each parameter",
			.unsupported = hzi_cuda_range_rows_unsupported, .cost = rows_cost,
			.run = hzi_cuda_range_rows},
	[TWO_PASS] = {.name = "two_pass", .what = "anything: ranges, then parameters",
		      .run = hzi_cuda_range_two_pass},
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

/* Two words of a range for each parameter, whichever route runs */
size_t hzi_cuda_choose_qparams_workspace(const struct hz_context *ctx,
					 const struct hzi_choose_qparams_args *a)
{
	(void)ctx;
	return (size_t)a->map.params * 8;
}

int hzi_cuda_choose_qparams(struct hz_context *ctx, const struct hzi_choose_qparams_args *a)
{
	struct hzi_range_cluster cluster;
	struct hzi_range_call c = {.a = a, .dims = hzi_quantize_dims_of(&a->map),
				   .cluster = &cluster};

	if (c.dims.d[c.dims.n - 1].group > 1)
		hzi_quantize_split_group(&c.dims, c.dims.n - 1);
	return hzi_route_run(ctx, &hzi_cuda_quantize_routes[CHOOSE], &c);
}
