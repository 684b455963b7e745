/*
 * routes.c - the code paths of quaternion matrix products on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_gemm/launch.h"
#include "lib/core/route.h"

/* ---- Packing --------------------------------------------------------------------------------- */

HZI_NO_WORKSPACE(cuda, quat_gemm_pack)

/* The layout follows from device, dtype, precision and size; there is no choice of route. */
int hzi_cuda_quat_gemm_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a)
{
	if (a->m > INT32_MAX || a->k > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"quat_gemm_pack: a is %lld x %lld, must be below 2^31 on a GPU",
				(long long)a->m, (long long)a->k);
	if (hzi_cuda_quat_gemm_packs_f16(ctx, a->dtype, a->precision, a->m, a->k))
		return hzi_cuda_quat_gemm_wgmma_pack(ctx, a);
	return hzi_cuda_quat_gemm_simt_f32_pack(ctx, a);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Costs are ranks; rows without a cost have their index. */
enum { WGMMA_IN_PLACE, GEMV_MMA, GEMV_ROWS, GEMV_TRANSPOSED, GEMV_PLANAR, WGMMA, SIMT_F32,
       LAST };

HZI_RANK(gemv_mma, void, hzi_cuda_quat_gemm_gemv_mma_is_slower(a), GEMV_TRANSPOSED, GEMV_MMA)
HZI_RANK(wgmma_in_place, void, hzi_cuda_quat_gemm_wgmma_in_place_is_slower(a, false), LAST,
	 WGMMA_IN_PLACE)
HZI_RANK(wgmma, void, hzi_cuda_quat_gemm_wgmma_is_slower(a), LAST, WGMMA)

#define FUNCTIONS(name) \
	.unsupported = hzi_cuda_quat_gemm_##name##_unsupported, \
	.workspace = hzi_cuda_quat_gemm_##name##_workspace, .run = hzi_cuda_quat_gemm_##name

static const struct hzi_route gemm_routes[] = {
	[WGMMA_IN_PLACE] = {"wgmma_in_place", "16 bits, rows of A and columns of B contiguous, TMA "
			    "and wgmma", HZI_SM_90A, FUNCTIONS(wgmma_in_place),
			    .cost = wgmma_in_place_cost},
	[GEMV_MMA] = {"gemv_mma", "up to 64 columns, rows of A contiguous, mma.sync",
		      FUNCTIONS(gemv_mma), .cost = gemv_mma_cost},
	[GEMV_ROWS] = {"gemv_rows", "up to 8 columns, of 16 bits 2, rows of A contiguous",
		       FUNCTIONS(gemv_rows)},
	[GEMV_TRANSPOSED] = {"gemv_transposed", "up to 8 columns, columns of A contiguous",
			     FUNCTIONS(gemv_transposed)},
	[GEMV_PLANAR] = {"gemv_planar", "up to 16 columns, A packed as high and low planes of f16",
			 FUNCTIONS(gemv_planar)},
	[WGMMA] = {"wgmma", "operands as planes of f16, TMA and wgmma", HZI_SM_90A,
		   FUNCTIONS(wgmma), .cost = wgmma_cost},
	[SIMT_F32] = {"simt_f32", "any operands, as planes of f32, multiply-adds",
		      FUNCTIONS(simt_f32)},
};

const struct hzi_op_routes hzi_cuda_quat_gemm_routes[] = {
	HZI_RANKED_ROUTES(quat_gemm, gemm_routes), {0},
};

size_t hzi_cuda_quat_gemm_workspace(const struct hz_context *ctx,
				    const struct hzi_quat_gemm_args *a)
{
	struct hzi_quat_gemm_args copy;

	return hzi_route_workspace(ctx, hzi_cuda_quat_gemm_routes,
				   hzi_cuda_quat_gemm_uses_copy(ctx, a, &copy) ? &copy : a);
}

int hzi_cuda_quat_gemm(struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	struct hzi_quat_gemm_args copy;

	if (a->m > INT32_MAX || a->n > INT32_MAX || a->k > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"quat_gemm: m, n, k are %lld, %lld, %lld, must be below 2^31 on a "
				"GPU", (long long)a->m, (long long)a->n, (long long)a->k);
	return hzi_route_run(ctx, hzi_cuda_quat_gemm_routes,
			     hzi_cuda_quat_gemm_uses_copy(ctx, a, &copy) ? &copy : a);
}
