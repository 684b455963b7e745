/*
 * peak.c - launcher of multiplications alone, for hurwitz bench
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/peak/peak.h"

#define SM_HOPPER 90
#define WARPS (HZI_PEAK_THREADS / 32)

/* Multiply-adds of a block's step, and how many blocks a multiprocessor has */
static const struct {
	int64_t step;
	unsigned blocks;
} kernels[HZI_PEAK_KERNELS] = {
	[HZI_KERNEL_peak_f32] = {HZI_PEAK_CHAINS * HZI_PEAK_THREADS, 4},
	[HZI_KERNEL_peak_16] = {WARPS * HZI_PEAK_TILES * 16 * 8 * 16, 2},
	[HZI_KERNEL_peak_8] = {WARPS * HZI_PEAK_TILES * 16 * 8 * 32, 2},
	[HZI_KERNEL_peak_wide_16] = {WARPS / 4 * 64 * 256 * 16, 1},
	[HZI_KERNEL_peak_wide_8] = {WARPS / 4 * 64 * 256 * 32, 1},
};

int hzi_cuda_peak(struct hz_context *ctx, int dtype, int64_t macs)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const bool hopper = HZ_CUDA_90A && g->sm == SM_HOPPER;
	const int kernel = dtype == HZ_F32 ? HZI_KERNEL_peak_f32 :
			   dtype == HZ_F16 ? (hopper ? HZI_KERNEL_peak_wide_16 : HZI_KERNEL_peak_16) :
			   hopper ? HZI_KERNEL_peak_wide_8 : HZI_KERNEL_peak_8;
	const unsigned blocks = (unsigned)g->multiprocessors * kernels[kernel].blocks;
	const struct hzi_launch launch = {
		.grid = {blocks}, .block = {HZI_PEAK_THREADS}, .early = true,
	};
	const struct hzi_peak p = {.steps = ceil_div(macs, blocks * kernels[kernel].step)};

	return hzi_cuda_launch(ctx, "peak", HZI_FAMILY_PEAK, kernel, &launch, &p, sizeof(p));
}
