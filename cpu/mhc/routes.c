/*
 * routes.c - the routes of operations of hyper-connections on CPUs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/mhc/coef.h"
#include "lib/core/route.h"

#define AMX_LEAST 128		/* tokens from which packing phi for tiles pays */

HZI_RANK(amx, struct hzi_mhc_pre_args, a->s.tokens >= AMX_LEAST, 0, 2)
HZI_RANK(amx_bwd, struct hzi_mhc_pre_bwd_args, a->s.tokens >= AMX_LEAST, 0, 2)

/* Costs are ranks: the vectors route has the rank of its index, 1. */
static const struct hzi_route pre[] = {
	{
		.name = "amx_tiles", .what = "projection by AMX tiles, f32 as two terms of bf16",
		.arch = HZ_ISA_AMX, .unsupported = hzi_cpu_mhc_coef_amx_unsupported,
		.cost = amx_cost, .workspace = hzi_cpu_mhc_coef_amx_workspace,
		.run = hzi_cpu_mhc_coef_amx,
	},
	{
		.name = "vectors", .what = "f32 vectors",
		.workspace = hzi_cpu_mhc_coef_vectors_workspace, .run = hzi_cpu_mhc_coef_vectors,
	},
};

static const struct hzi_route pre_bwd[] = {
	{
		.name = "amx_tiles",
		.what = "projection by AMX tiles; dx and dphi too, of at most 32 rows of phi",
		.arch = HZ_ISA_AMX, .unsupported = hzi_cpu_mhc_coef_bwd_amx_unsupported,
		.cost = amx_bwd_cost, .workspace = hzi_cpu_mhc_coef_bwd_amx_workspace,
		.run = hzi_cpu_mhc_coef_bwd_amx,
	},
	{
		.name = "vectors", .what = "f32 vectors",
		.workspace = hzi_cpu_mhc_coef_bwd_vectors_workspace,
		.run = hzi_cpu_mhc_coef_bwd_vectors,
	},
};

enum { PRE, PRE_BWD, END };

const struct hzi_op_routes hzi_cpu_mhc_routes[] = {
	[PRE] = HZI_RANKED_ROUTES(mhc_pre, pre),
	[PRE_BWD] = HZI_RANKED_ROUTES(mhc_pre_bwd, pre_bwd),
	[END] = {0},
};

int hzi_cpu_mhc_pre(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_mhc_routes[PRE], a);
}

size_t hzi_cpu_mhc_pre_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	return hzi_route_workspace(ctx, &hzi_cpu_mhc_routes[PRE], a);
}

int hzi_cpu_mhc_pre_bwd(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_mhc_routes[PRE_BWD], a);
}

size_t hzi_cpu_mhc_pre_bwd_workspace(const struct hz_context *ctx,
				     const struct hzi_mhc_pre_bwd_args *a)
{
	return hzi_route_workspace(ctx, &hzi_cpu_mhc_routes[PRE_BWD], a);
}
