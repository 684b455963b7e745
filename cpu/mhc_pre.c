/*
 * mhc_pre.c - coefficients of hyper-connections: loops and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/cpu.h"
#include "lib/mhc.h"

size_t hzi_cpu_mhc_pre_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_pre(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_pre: not done yet");
}

size_t hzi_cpu_mhc_pre_bwd_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_pre_bwd(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_pre_bwd: not done yet");
}
