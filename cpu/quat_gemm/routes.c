/*
 * routes.c - the code paths of quaternion matrix products on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/sizes.h"
#include "cpu/quat_gemm/quat_gemm.h"
#include "lib/core/route.h"

/* Costs are ranks; rows without a cost have the rank of their index. */
enum { BF16_TILES, GEMV, GEMV_PACKED, PANELS, LAST };

/* Tiles are faster than GEMV from five columns on. */
HZI_RANK(bf16_tiles, struct hzi_quat_gemm_args, min_i64(a->m, a->n) > 4, BF16_TILES, PANELS)

/*
 * Each element of C has a cost of its own in a GEMV, which panels spread where there are enough of
 * them: 4096 x 4 columns with k = 4 take 654 us, and 374 in panels (AVX2; AVX-512: 513 and 178);
 * with k = 32 64 x 8 columns take 25 us, and 30 in panels.
 */
HZI_RANK(gemv, struct hzi_quat_gemm_args,
	 a->k > 16 || min_i64(a->m, a->n) < 4 || max_i64(a->m, a->n) < 64, GEMV, LAST)

HZI_RANK(gemv_packed, struct hzi_quat_gemm_args, hzi_cpu_quat_gemm_gemv_packed_wins(ctx, a),
	 GEMV_PACKED, LAST)

static const struct hzi_route routes[] = {
	[BF16_TILES] = {
		"bf16_tiles", "bf16 in AMX tiles", HZ_ISA_AMX,
		.unsupported = hzi_cpu_quat_gemm_bf16_tiles_unsupported, .cost = bf16_tiles_cost,
		.workspace = hzi_cpu_quat_gemm_bf16_tiles_workspace,
		.run = hzi_cpu_quat_gemm_bf16_tiles,
	},
	[GEMV] = {
		"gemv", "up to 32 rows or columns, 8 at a time; the other operand in place",
		HZI_ANY_ARCH,
		.unsupported = hzi_cpu_quat_gemm_gemv_unsupported, .cost = gemv_cost,
		.workspace = hzi_cpu_quat_gemm_gemv_workspace, .run = hzi_cpu_quat_gemm_gemv,
	},
	[GEMV_PACKED] = {
		"gemv_packed", "packed A by up to 8 columns", HZI_ANY_ARCH,
		.unsupported = hzi_cpu_quat_gemm_gemv_packed_unsupported, .cost = gemv_packed_cost,
		.workspace = hzi_cpu_quat_gemm_gemv_packed_workspace,
		.run = hzi_cpu_quat_gemm_gemv_packed,
	},
	[PANELS] = {
		"panels", "any operands, packed as planar panels of f32 or f64", HZI_ANY_ARCH,
		.workspace = hzi_cpu_quat_gemm_panels_workspace, .run = hzi_cpu_quat_gemm_panels,
	},
};

const struct hzi_op_routes hzi_cpu_quat_gemm_routes[] = {HZI_RANKED_ROUTES(quat_gemm, routes), {0}};

size_t hzi_cpu_quat_gemm_workspace(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	return hzi_route_workspace(ctx, hzi_cpu_quat_gemm_routes, a);
}

int hzi_cpu_quat_gemm(struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	return hzi_route_run(ctx, hzi_cpu_quat_gemm_routes, a);
}
