/*
 * group_gemv.cu - the kernels of group_gemv.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/qgemm/group_gemv.cuh"

/* 16 warps an SM, as one block or two; four pieces ahead (two: a third slower) */
#define KERNEL(name, rows, warps, ...) \
	extern "C" __global__ void __launch_bounds__(32 * warps, 16 / warps) \
	name##_##rows##x##warps(const __grid_constant__ hzi_group_gemm p) \
	{ \
		group_gemv_block<__VA_ARGS__, rows, warps, 4>(p).run(); \
	}
#define KERNELS(name, ...) \
	KERNEL(name, 1, 8, __VA_ARGS__) \
	KERNEL(name, 1, 16, __VA_ARGS__) \
	KERNEL(name, 8, 16, __VA_ARGS__)
#define ZEROS(name, dtype) \
	KERNELS(name, dtype, false) \
	KERNELS(name##_zeros, dtype, true)

ZEROS(qgemm_group_gemv_f16, HZ_F16)
ZEROS(qgemm_group_gemv_bf16, HZ_BF16)
