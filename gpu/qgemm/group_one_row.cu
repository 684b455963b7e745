/*
 * group_one_row.cu - the kernels of group_one_row.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/qgemm/group_one_row.cuh"

/* A block an SM; three pieces ahead */
#define KERNEL(name, ...) \
	extern "C" __global__ void __launch_bounds__(32 * HZI_GROUP_ONE_ROW_WARPS, 1) \
	name(const __grid_constant__ hzi_group_gemm p) \
	{ \
		group_one_row_block<__VA_ARGS__, HZI_GROUP_ONE_ROW_WARPS, 3>(p).run(); \
	}
#define KERNELS(name, dtype) \
	KERNEL(name##_f32, dtype, 0) \
	KERNEL(name##_32, dtype, 32) \
	KERNEL(name##_128, dtype, 128)

KERNELS(qgemm_group_one_row_f16, HZ_F16)
KERNELS(qgemm_group_one_row_bf16, HZ_BF16)
