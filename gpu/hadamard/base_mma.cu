/*
 * base_mma.cu - contiguous 16-bit rows of m 2^k elements, m = 12, 20, 28, any base matrix B
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/base_mma.cuh"

#define BASE_MMA(name, threads, blocks, blocks_quantize, blocks_dequantize, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_mma_f16_##name(const __grid_constant__ hzi_hadamard_base_mma p) \
	{ \
		pdl_wait(); \
		pdl_launch_dependents(); \
		function<HZ_F16, __VA_ARGS__>(p, copy_operands(p), store_16bit<HZ_F16>(p)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_mma_bf16_##name(const __grid_constant__ hzi_hadamard_base_mma p) \
	{ \
		pdl_wait(); \
		pdl_launch_dependents(); \
		function<HZ_BF16, __VA_ARGS__>(p, copy_operands(p), store_16bit<HZ_BF16>(p)); \
	}

BASE_MMA_KERNELS(BASE_MMA)
