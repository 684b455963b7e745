/*
 * group_gemv.cu - the kernels of group_gemv.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/qgemm/group_gemv.cuh"

/* Two blocks an SM; four pieces ahead (two: a third slower) */
#define KERNEL(name, rows, ...) \
	extern "C" __global__ void __launch_bounds__(HZI_GROUP_THREADS, 2) \
	name##_##rows(const __grid_constant__ hzi_group_gemm p) \
	{ \
		group_gemv_block<__VA_ARGS__, rows, HZI_GROUP_WARPS, 4>(p).run(); \
	}
#define KERNELS(name, ...) \
	KERNEL(name, 1, __VA_ARGS__) \
	KERNEL(name, 8, __VA_ARGS__)
#define ZEROS(name, dtype) \
	KERNELS(name, dtype, false) \
	KERNELS(name##_zeros, dtype, true)

ZEROS(qgemm_group_gemv_f16, HZ_F16)
ZEROS(qgemm_group_gemv_bf16, HZ_BF16)
