/*
 * peak.c - launches multiply-adds without loads and stores; contains their device code
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "tools/core/peak.h"

#define SM_HOPPER 90
#define WARPS (HZI_PEAK_THREADS / 32)

/* Multiply-adds per block and step, and blocks per SM */
static const struct work {
	int kernel;
	unsigned blocks;
	int64_t step;
} f32 = {HZI_KERNEL_peak_f32, 4, HZI_PEAK_CHAINS * HZI_PEAK_THREADS},
mma_16 = {HZI_KERNEL_peak_f16_mma_sync, 2, WARPS * HZI_PEAK_TILES * 16 * 8 * 16},
mma_8 = {HZI_KERNEL_peak_s8_mma_sync, 2, WARPS * HZI_PEAK_TILES * 16 * 8 * 32},
wgmma_16 = {HZI_KERNEL_peak_f16_wgmma, 1, WARPS / 4 * 64 * 256 * 16},
wgmma_8 = {HZI_KERNEL_peak_s8_wgmma, 1, WARPS / 4 * 64 * 256 * 32};

int tool_peak(struct hz_context *ctx, int dtype, int64_t macs)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const bool hopper = HZ_CUDA_90A && g->sm == SM_HOPPER;
	const struct work *w = dtype == HZ_F32 ? &f32 :
			       dtype == HZ_F16 ? (hopper ? &wgmma_16 : &mma_16) :
						 (hopper ? &wgmma_8 : &mma_8);
	const unsigned blocks = (unsigned)g->sms * w->blocks;
	const struct hzi_launch launch = {
		.grid = {blocks}, .block = {HZI_PEAK_THREADS}, .early = true,
	};
	const struct hzi_peak p = {.steps = ceil_div(macs, blocks * w->step)};

	return hzi_cuda_launch(ctx, "peak", w->kernel, &launch, &p, sizeof(p));
}

/* ---- Its device code ------------------------------------------------------------------------- */

#define HZI_ONE_FAMILY 1
#define HZI_TOOLS 1
#define FATBIN(family, file) "tools/core/" #file ".fatbin"
#include "gpu/runtime/images.inc"
