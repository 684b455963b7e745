/*
 * mhc.c - streams of hyper-connections mixed, Sinkhorn: loops and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/cpu.h"
#include "lib/mhc.h"

size_t hzi_cpu_mhc_sinkhorn_workspace(const struct hz_context *ctx, const struct hzi_mhc_sinkhorn_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_sinkhorn(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_sinkhorn: not done yet");
}

size_t hzi_cpu_mhc_sinkhorn_bwd_workspace(const struct hz_context *ctx, const struct hzi_mhc_sinkhorn_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_sinkhorn_bwd(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_sinkhorn_bwd: not done yet");
}

size_t hzi_cpu_mhc_streams_workspace(const struct hz_context *ctx, const struct hzi_mhc_streams_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_streams(struct hz_context *ctx, const struct hzi_mhc_streams_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_streams: not done yet");
}

size_t hzi_cpu_mhc_streams_bwd_workspace(const struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_streams_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_streams_bwd: not done yet");
}

size_t hzi_cpu_mhc_recompute_workspace(const struct hz_context *ctx, const struct hzi_mhc_recompute_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_recompute(struct hz_context *ctx, const struct hzi_mhc_recompute_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_recompute: not done yet");
}

size_t hzi_cpu_mhc_diagnose_workspace(const struct hz_context *ctx, const struct hzi_mhc_diagnose_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_diagnose(struct hz_context *ctx, const struct hzi_mhc_diagnose_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_diagnose: not done yet");
}

size_t hzi_cpu_mhc_init_workspace(const struct hz_context *ctx, const struct hzi_mhc_init_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_mhc_init(struct hz_context *ctx, const struct hzi_mhc_init_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "mhc_init: not done yet");
}
