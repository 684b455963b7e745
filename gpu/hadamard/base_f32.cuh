/*
 * base_f32.cuh - tiles of a block in the kernels for rows of m 2^k elements
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks that are started in order access memory in its order; persistent blocks that stride
 * through all rows reach 5 to 10 % less of a copy's throughput. But a block must load its next row
 * while it computes. So most blocks have two or more successive rows, and the last ones have one,
 * so that all SMs finish together.
 */
#ifndef HZI_GPU_HADAMARD_BASE_F32_CUH
#define HZI_GPU_HADAMARD_BASE_F32_CUH

#include "gpu/hadamard/contiguous.cuh"

/* The number of this block's successive tiles, from *first on */
HZ_DEVICE int tiles_of_block(const hzi_hadamard_schedule &s, int64_t *first)
{
	const bool long_blocks = blockIdx.x < (unsigned)s.long_blocks;

	*first = blockIdx.x +
		 (int64_t)(s.tiles_per_block - 1) * (long_blocks ? (int)blockIdx.x : s.long_blocks);
	return long_blocks ? s.tiles_per_block : 1;
}

#endif
