/*
 * vlut.c - products with lattice codes on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/cpu.h"
#include "lib/vlut.h"

int hzi_cpu_vlut_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "vlut_pack: not there yet");
}

size_t hzi_cpu_vlut_pack_workspace(const struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_vlut_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "vlut_gemm: not there yet");
}

size_t hzi_cpu_vlut_gemm_workspace(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cpu_vlut_gemm2(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "vlut_gemm2: not there yet");
}

size_t hzi_cpu_vlut_gemm2_workspace(const struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
