/*
 * gemm16.cuh - what kernels of quaternion convolutions by sixteen products share, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Pixels are operands of the matrix units as they lie in memory: no planes, no scales. These are
 * twice as many products as there need be, but of few channels planes take longer than products.
 */
#ifndef HZI_QUAT_DIRECT_CUH
#define HZI_QUAT_DIRECT_CUH

#include "gpu/quat_conv/gemm16.h"
#include "gpu/quat_gemm/epilogue.cuh"

#define UNIT_BYTES HZI_QD_UNIT_BYTES

/* Where box i begins; those behind the last are behind the last image. */
HZ_DEVICE void place_of_box(const hzi_quat_boxes &b, int i, int (&at)[4])
{
#pragma unroll
	for (int d = 0; d < 3; d++) {
		at[d] = i % b.boxes[d] * b.box[d];
		i /= b.boxes[d];
	}
	at[3] = i * b.box[3];
}

#endif
