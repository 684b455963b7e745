/*
 * base_mma.cu - 16-bit rows of m 2^k elements back to back, m = 12, 20, 28, any base B
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/hadamard/base_mma.cuh"

#define BASE_MMA(name, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_mma_f16_##name(const __grid_constant__ hzi_hadamard_base_mma p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p, from_values(p), to_values<HZ_F16>(p)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_mma_bf16_##name(const __grid_constant__ hzi_hadamard_base_mma p) \
	{ \
		function<HZ_BF16, __VA_ARGS__>(p, from_values(p), to_values<HZ_BF16>(p)); \
	}

BASE_MMA(m12_6, 96, 10, base_rows, 12 * 4, 64, -1)
BASE_MMA(m12_7, 64, 14, base_wide, 12, 0, 2)
BASE_MMA(m12_8, 96, 10, base_rows, 12 * 4, 64, 3)
BASE_MMA(m12_9, 96, 6, base_rows, 12 * 4, 128, 4)
BASE_MMA(m12_10, 192, 3, base_long, 12 * 4, 2, 3)
BASE_MMA(m12_11, 384, 1, base_held, 12 * 4)
BASE_MMA(m12_12, 512, 1, base_long, 12 * 4, 8, 2)
BASE_MMA(m20_6, 160, 6, base_rows, 20 * 4, 64, -1)
BASE_MMA(m20_7, 64, 8, base_wide, 20, 0, 2)
BASE_MMA(m20_8, 128, 5, base_wide, 20, 0, 4)
BASE_MMA(m20_9, 160, 3, base_rows, 20 * 4, 128, 4)
BASE_MMA(m20_10, 320, 2, base_long, 20 * 4, 2, 5)
BASE_MMA(m20_11, 384, 1, base_held, 20 * 4)
BASE_MMA(m28_6, 224, 4, base_rows, 28 * 4, 64, -1)
BASE_MMA(m28_7, 64, 7, base_wide, 28, 0, 2)
BASE_MMA(m28_8, 128, 4, base_wide, 28, 0, 4)
BASE_MMA(m28_9, 256, 2, base_wide, 28, 0, 8)
BASE_MMA(m28_10, 448, 1, base_long, 28 * 4, 2, 7)
BASE_MMA(m28_11, 384, 1, base_held, 28 * 4)
