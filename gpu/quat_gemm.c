/*
 * quat_gemm.c - temporary: slots to be filled
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/quat_gemm.h"

int hzi_cuda_quat_gemm_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_gemm_pack: not there yet");
}

size_t hzi_cuda_quat_gemm_pack_workspace(const struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_gemm(struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_gemm: not there yet");
}

size_t hzi_cuda_quat_gemm_workspace(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
