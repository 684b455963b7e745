/*
 * routes.c - routes of Walsh-Hadamard transforms on the CPU; each gives the same bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/hadamard/hadamard.h"
#include "lib/core/route.h"

/* Costs are ranks. */
enum {DIRECT, COLUMNS, BLOCKS, LAST};

HZI_RANK(direct, void, ctx->threads == 1 || hzi_cpu_hadamard_threads(ctx, a) == 1, DIRECT, LAST)

static const struct hzi_route routes[] = {
	[DIRECT] = {.name = "direct", .what = "contiguous rows of 2^k by one thread, no scratch",
		    .unsupported = hzi_cpu_hadamard_direct_unsupported, .cost = direct_cost,
		    .run = hzi_cpu_hadamard_direct},
	[COLUMNS] = {.name = "columns", .what = "contiguous columns, in tiles",
		     .unsupported = hzi_cpu_hadamard_columns_unsupported,
		     .workspace = hzi_cpu_hadamard_columns_workspace,
		     .run = hzi_cpu_hadamard_columns},
	[BLOCKS] = {.name = "blocks", .what = "any order, length and strides, block by block",
		    .workspace = hzi_cpu_hadamard_blocks_workspace,
		    .run = hzi_cpu_hadamard_blocks},
};

const struct hzi_op_routes hzi_cpu_hadamard_routes[] = {HZI_RANKED_ROUTES(hadamard, routes), {0}};

int hzi_cpu_hadamard(struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	return hzi_route_run(ctx, hzi_cpu_hadamard_routes, a);
}

size_t hzi_cpu_hadamard_workspace(const struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	return hzi_route_workspace(ctx, hzi_cpu_hadamard_routes, a);
}
