/*
 * base_f32.cuh - what the kernels for rows of m 2^k share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks that come and go in order meet memory in its order; those that stay and stride through all
 * rows reach 5 to 10 % less of the rate of a copy. But a block has to have its next row under way.
 * So it takes two successive rows, and the last blocks one, so that all multiprocessors end
 * together.
 */
#ifndef HZI_GPU_HADAMARD_BASE_F32_CUH
#define HZI_GPU_HADAMARD_BASE_F32_CUH

#include "gpu/hadamard/contiguous.cuh"

template <int I>
struct number {
	static constexpr int value = I;
};

/* How many successive rows this block takes, from *first on */
HZ_DEVICE int turns_of_block(const hzi_hadamard_stretch &s, int64_t *first)
{
	const bool stretched = blockIdx.x < (unsigned)s.stretched;

	*first = blockIdx.x +
		 (int64_t)(s.stretch - 1) * (stretched ? (int)blockIdx.x : s.stretched);
	return stretched ? s.stretch : 1;
}

#endif
