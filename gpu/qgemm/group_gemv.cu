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
/* One row of s4 without zero points is that of group_one_row, of u4 that of eight. */
#define KERNELS(name, dtype) \
	KERNEL(name##_zeros, 1, 8, dtype, true) \
	KERNEL(name##_zeros, 1, 16, dtype, true) \
	KERNEL(name##_zeros, 8, 16, dtype, true) \
	KERNEL(name, 8, 16, dtype, false)

KERNELS(qgemm_group_gemv_f16, HZ_F16)
KERNELS(qgemm_group_gemv_bf16, HZ_BF16)
