/*
 * routes.c - the code paths of quaternion matrix products on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/sizes.h"
#include "cpu/quat_gemm/kern.h"
#include "cpu/quat_gemm/quat_gemm.h"
#include "lib/core/route.h"

/* Costs are ranks; rows without a cost have the rank of their index. */
enum { SMALL, BF16_TILES, GEMV, GEMV_PACKED, PANELS, LAST };

HZI_RANK(small, struct hzi_quat_gemm_args, hzi_cpu_quat_gemm_small_wins(ctx, a), SMALL, LAST)

/* Tiles are faster than GEMV from five columns on. */
HZI_RANK(bf16_tiles, struct hzi_quat_gemm_args, min_i64(a->m, a->n) > 4, BF16_TILES, PANELS)

/*
 * Each element of C has a cost of its own in a GEMV, which panels spread where there are enough of
 * them. Time of panels by that of a GEMV, f32, AVX-512 and AVX2: 8 x 8 with k = 8, 16, 32 and 48:
 * 0.70, 0.80, 1.11, 1.36 and 0.66, 0.80, 0.96, 1.12; 64 x 4 with k = 8, 32, 48: 0.39, 0.64, 0.76 and
 * 0.60, 0.98, 1.15; 64 x 3 with k = 8, 24, 32: 0.55, 0.72, 0.82 and 0.63, 0.91, 1.00; 64 x 2 with k
 * = 8, 16, 24: 0.60, 0.69, 0.89 and 0.78, 1.03, 1.19. More than 8 columns are several GEMVs: 1568 x
 * 32 with k = 288 take 6.9 ms, in panels by 8 real products 4.4 (AVX-512: 4.2 and 2.3); 256 x 16
 * with k = 1024 take 1.0 ms with AVX-512, in panels by 16 products 1.2, but with k = 72 0.13 and
 * 0.08.
 */
static bool gemv_wins(const struct hzi_quat_gemm_args *a)
{
	const int64_t few = min_i64(a->m, a->n), many = max_i64(a->m, a->n);

	if (few <= HZI_QUAT_GEMV_COLS)
		return few == 1 || a->k > min_i64(8 * few, 32) || few * many <= 32;
	return a->k > 128 && (few < 12 || many < 32 || (few <= 16 && a->method != HZ_QUAT_FAST));
}

HZI_RANK(gemv, struct hzi_quat_gemm_args, gemv_wins(a), GEMV, LAST)

HZI_RANK(gemv_packed, struct hzi_quat_gemm_args, hzi_cpu_quat_gemm_gemv_packed_wins(ctx, a),
	 GEMV_PACKED, LAST)

static const struct hzi_route routes[] = {
	[SMALL] = {
		"small", "small k; quads of both operands in place", HZI_ANY_ARCH,
		.unsupported = hzi_cpu_quat_gemm_small_unsupported, .cost = small_cost,
		.workspace = hzi_cpu_quat_gemm_small_workspace, .run = hzi_cpu_quat_gemm_small,
	},
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
