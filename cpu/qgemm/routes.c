/*
 * routes.c - routes of quantized matrix multiplication on the CPU; each gives the same bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/qgemm/qgemm.h"
#include "lib/core/route.h"

/* Costs are ranks. */
enum {SMALL, SKINNY, PACK_INLINE, PACK_FIRST, SUM64, LAST};

HZI_RANK(small, struct hzi_cpu_qgemm_call, hzi_cpu_qgemm_small_wins(ctx, a), SMALL, LAST)
HZI_RANK(skinny, struct hzi_cpu_qgemm_call, hzi_cpu_qgemm_skinny_wins(ctx, a), SKINNY, LAST)
HZI_RANK(pack_inline, void, hzi_cpu_qgemm_pack_inline_wins(ctx, a), PACK_INLINE, LAST)

static const struct hzi_route routes[] = {
	[SMALL] = {.name = "small", .what = "k up to 256; A in place, B also packed",
		   .unsupported = hzi_cpu_qgemm_small_unsupported, .cost = small_cost,
		   .workspace = hzi_cpu_qgemm_small_workspace, .run = hzi_cpu_qgemm_small},
	[SKINNY] = {.name = "skinny", .what = "up to 8 rows or 32 columns; the other matrix in place",
		    .unsupported = hzi_cpu_qgemm_skinny_unsupported, .cost = skinny_cost,
		    .workspace = hzi_cpu_qgemm_skinny_workspace, .run = hzi_cpu_qgemm_skinny},
	[PACK_INLINE] = {.name = "pack_inline", .what = "who multiplies rows of A packs them",
			 .unsupported = hzi_cpu_qgemm_pack_inline_unsupported,
			 .cost = pack_inline_cost,
			 .workspace = hzi_cpu_qgemm_pack_inline_workspace,
			 .run = hzi_cpu_qgemm_pack_inline},
	[PACK_FIRST] = {.name = "pack_first", .what = "A is packed, then multiplied",
			.unsupported = hzi_cpu_qgemm_pack_first_unsupported,
			.workspace = hzi_cpu_qgemm_pack_first_workspace,
			.run = hzi_cpu_qgemm_pack_first},
	[SUM64] = {.name = "sum64", .what = "sums of 64 bits, of chunks of k",
		   .workspace = hzi_cpu_qgemm_sum64_workspace, .run = hzi_cpu_qgemm_sum64},
};

const struct hzi_op_routes hzi_cpu_qgemm_routes[] = {HZI_RANKED_ROUTES(qgemm, routes), {0}};

size_t hzi_cpu_qgemm_workspace(const struct hz_context *ctx, const struct hzi_qgemm_args *a)
{
	const struct hzi_cpu_qgemm_call c = {.a = a};

	return hzi_route_workspace(ctx, hzi_cpu_qgemm_routes, &c);
}

int hzi_cpu_qgemm_run(struct hz_context *ctx, const struct hzi_qgemm_args *a, char *workspace)
{
	const struct hzi_cpu_qgemm_call c = {.a = a, .workspace = workspace};

	return hzi_route_run(ctx, hzi_cpu_qgemm_routes, &c);
}

int hzi_cpu_qgemm(struct hz_context *ctx, const struct hzi_qgemm_args *a)
{
	return hzi_cpu_qgemm_run(ctx, a, ctx->workspace);
}
