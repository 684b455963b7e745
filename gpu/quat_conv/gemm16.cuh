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
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

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

/* Of a box of pixels those components from column on */
HZ_DEVICE void copy_pixels(uint32_t to, const hzi_tensor_map &map, int column, const int (&at)[4],
			   uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]) : "memory");
}

/* The same to that place in both blocks of the cluster */
HZ_DEVICE void copy_pixels_to_both(uint32_t to, const hzi_tensor_map &map, int column,
				   const int (&at)[4], uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]), "h"((uint16_t)3) : "memory");
}

#endif
