/*
 * routes.c - routes of quantization on the CPU; each gives the same bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/cpu.h"
#include "cpu/quantize/kern.h"
#include "cpu/quantize/quantize.h"
#include "lib/core/route.h"

static const char *hadamard_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return ((const struct hzi_codes_args *)args)->rotated ? NULL : "there is no transform";
}

static size_t hadamard_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	return hzi_cpu_hadamard_codes_workspace(ctx, a);
}

static int hadamard(struct hz_context *ctx, const void *args)
{
	static const struct hzi_format_calls calls = {hzi_cpu_format_part, hzi_cpu_format_tensor};

	return hzi_cpu_hadamard_codes(ctx, hzi_quantize_kern + ctx->level, &calls, args);
}

/* hadamard supports every call with a transform, rows or formats every call without. */
static const struct hzi_route codes[] = {
	{.name = "transposed", .what = "rows strided in one operand alone, in transposed squares",
	 .unsupported = hzi_cpu_codes_transposed_unsupported, .run = hzi_cpu_codes_transposed},
	{.name = "rows", .what = "any strides, row by row",
	 .unsupported = hzi_cpu_codes_rows_unsupported, .run = hzi_cpu_codes_rows},
	{.name = "formats", .what = "any format, given or chosen scales, row by row",
	 .unsupported = hzi_cpu_formats_unsupported, .run = hzi_cpu_formats},
	{.name = "hadamard", .what = "with a transform, some rows at a time",
	 .unsupported = hadamard_unsupported, .workspace = hadamard_workspace, .run = hadamard},
};

enum {QUANTIZE, DEQUANTIZE};

const struct hzi_op_routes hzi_cpu_quantize_routes[] = {
	[QUANTIZE] = HZI_ROUTES(quantize, codes),
	[DEQUANTIZE] = HZI_ROUTES(dequantize, codes),
	{0},
};

int hzi_cpu_quantize(struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_quantize_routes[QUANTIZE], &a->codes);
}

int hzi_cpu_dequantize(struct hz_context *ctx, const struct hzi_dequantize_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_quantize_routes[DEQUANTIZE], &a->codes);
}

/* Routes without a transform have no workspace. */
static size_t workspace(const struct hz_context *ctx, const struct hzi_op_routes *routes,
			const struct hzi_codes_args *a)
{
	return a->rotated ? hzi_route_workspace(ctx, routes, a) : 0;
}

size_t hzi_cpu_quantize_workspace(const struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return workspace(ctx, &hzi_cpu_quantize_routes[QUANTIZE], &a->codes);
}

size_t hzi_cpu_dequantize_workspace(const struct hz_context *ctx,
				    const struct hzi_dequantize_args *a)
{
	return workspace(ctx, &hzi_cpu_quantize_routes[DEQUANTIZE], &a->codes);
}
