/*
 * gemm16.cuh - what the wgmma kernels by 16 real products share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Pixels are operands of wgmma in place: there are no planes and no scales. That is twice as many
 * products as the fast method needs, but for few channels packing planes takes longer.
 */
#ifndef HZI_GPU_QUAT_CONV_GEMM16_CUH
#define HZI_GPU_QUAT_CONV_GEMM16_CUH

#include "gpu/quat_conv/gemm16.h"
#include "gpu/quat_gemm/epilogue.cuh"

#define UNIT_BYTES HZI_GEMM16_UNIT_BYTES

/* The first pixel of TMA tile i; tiles beyond the last one are beyond the last image. */
HZ_DEVICE void tma_tile_origin(const hzi_quat_tma_tiles &b, int i, int (&at)[4])
{
#pragma unroll
	for (int d = 0; d < 3; d++) {
		at[d] = i % b.tiles[d] * b.tile[d];
		i /= b.tiles[d];
	}
	at[3] = i * b.tile[3];
}

#endif
