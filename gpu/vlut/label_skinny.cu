/*
 * label_skinny.cu - the kernels of label_skinny.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/label_skinny.cuh"

/* Columns; two chunks ahead: three are slower */
#define KERNEL(name, columns, ...) \
	extern "C" __global__ void \
	__launch_bounds__(HZI_VLUT_LABEL_GROUPS * HZI_VLUT_LABEL_WARPS * 32, 1) \
	name##_##columns(const __grid_constant__ hzi_vlut_label_skinny p) \
	{ \
		label_skinny_block<__VA_ARGS__, columns, HZI_VLUT_LABEL_WARPS, 2>(p).run(); \
	}
#define KERNELS(name, ...) \
	KERNEL(name, 1, __VA_ARGS__) \
	KERNEL(name, 2, __VA_ARGS__) \
	KERNEL(name, 8, __VA_ARGS__)
#define CODES(name, ...) \
	KERNELS(name##_16bit, __VA_ARGS__, true) \
	KERNELS(name##_any, __VA_ARGS__, false)

CODES(vlut_label_skinny_cube, HZI_SHAPING_CUBE, 4)
CODES(vlut_label_skinny_d8star, HZI_SHAPING_D8STAR, 2)
CODES(vlut_label_skinny_e8_4, HZI_SHAPING_E8, 2)
CODES(vlut_label_skinny_e8_16, HZI_SHAPING_E8, 4)
