/*
 * mhc_pre.c - launchers of coefficients of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cuda.h"
#include "gpu/mhc_pre.h"
#include "lib/mhc.h"

size_t hzi_cuda_mhc_pre_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_pre(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_pre: not done yet");
}

size_t hzi_cuda_mhc_pre_bwd_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_pre_bwd(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_pre_bwd: not done yet");
}
