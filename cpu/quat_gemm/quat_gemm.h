/*
 * quat_gemm.h - the code paths of quaternion matrix products on the CPU, for routes.c
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QUAT_GEMM_H
#define HZI_CPU_QUAT_GEMM_H

#include "lib/quat_gemm/quat_gemm.h"

/*
 * The Hamilton product: left[l] * right[r] * sign[l][r] is added to component l ^ r.
 *
 *   r = ae - bf - cg - dh,  i = af + be + ch - dg,  j = ag - bh + ce + df,  k = ah + bg - cf + de
 */
static const int product_sign[4][4] = {
	{1, 1, 1, 1},
	{1, -1, 1, -1},
	{1, -1, -1, 1},
	{1, 1, -1, -1},
};

#define PATH(name) \
	const char *hzi_cpu_quat_gemm_##name##_unsupported(const struct hz_context *ctx, \
							   const void *args); \
	size_t hzi_cpu_quat_gemm_##name##_workspace(const struct hz_context *ctx, \
						    const void *args); \
	int hzi_cpu_quat_gemm_##name(struct hz_context *ctx, const void *args);

PATH(small)
PATH(gemv)
PATH(gemv_packed)
PATH(bf16_tiles)
#undef PATH
bool hzi_cpu_quat_gemm_small_wins(const struct hz_context *ctx,
				  const struct hzi_quat_gemm_args *a);
bool hzi_cpu_quat_gemm_gemv_packed_wins(const struct hz_context *ctx,
					const struct hzi_quat_gemm_args *a);
size_t hzi_cpu_quat_gemm_panels_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_quat_gemm_panels(struct hz_context *ctx, const void *args);

#endif
