/*
 * quat_gemm.h - the code paths of quaternion matrix products on the CPU, for routes.c
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QUAT_GEMM_H
#define HZI_CPU_QUAT_GEMM_H

#include "lib/quat_gemm/quat_gemm.h"

#define PATH(name) \
	const char *hzi_cpu_quat_gemm_##name##_unsupported(const struct hz_context *ctx, \
							   const void *args); \
	size_t hzi_cpu_quat_gemm_##name##_workspace(const struct hz_context *ctx, \
						    const void *args); \
	int hzi_cpu_quat_gemm_##name(struct hz_context *ctx, const void *args);

PATH(gemv)
PATH(gemv_packed)
PATH(bf16_tiles)
#undef PATH
bool hzi_cpu_quat_gemm_gemv_packed_wins(const struct hz_context *ctx,
					const struct hzi_quat_gemm_args *a);
size_t hzi_cpu_quat_gemm_panels_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_quat_gemm_panels(struct hz_context *ctx, const void *args);

#endif
