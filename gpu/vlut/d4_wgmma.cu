/*
 * d4_wgmma.cu - GEMM of packed D4 by wgmma, x with rows of k; see decoded_gemm.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/d4_wgmma.cuh"

#if HAVE_WGMMA
#define BODY(dtype, ...) { decoded_gemm_block<d4_codes<dtype>, __VA_ARGS__>(p).run(); }
#else
#define BODY(...) { }
#endif

#define KERNEL(name, shape, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_DECODED_THREADS(shape), 1) \
	name(const __grid_constant__ hzi_vlut_decoded_wgmma p) \
	BODY(dtype, shape)
#define KERNELS(name, dtype) \
	KERNEL(name##_64x16, HZI_VLUT_DECODED_64X16, dtype) \
	KERNEL(name##_64x32, HZI_VLUT_DECODED_64X32, dtype) \
	KERNEL(name##_64x64, HZI_VLUT_DECODED_64X64, dtype) \
	KERNEL(name##_64x128, HZI_VLUT_DECODED_64X128, dtype) \
	KERNEL(name##_128x32, HZI_VLUT_DECODED_128X32, dtype) \
	KERNEL(name##_128x64, HZI_VLUT_DECODED_128X64, dtype) \
	KERNEL(name##_128x128, HZI_VLUT_DECODED_128X128, dtype) \
	KERNEL(name##_128x256, HZI_VLUT_DECODED_128X256, dtype)

KERNELS(vlut_d4_wgmma_f16, HZ_F16)
KERNELS(vlut_d4_wgmma_bf16, HZ_BF16)
