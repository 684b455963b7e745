/*
 * label_skinny.cu - the kernels of label_skinny.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/label_skinny.cuh"

/*
 * Columns, warps, chunks ahead, blocks per SM. With one block per SM x of 8 columns is converted
 * once for all row tiles of a block.
 */
#define KERNEL(name, columns, warps, ahead, blocks, ...) \
	extern "C" __global__ void __launch_bounds__(warps * 32, blocks) \
	name##_##columns(const __grid_constant__ hzi_vlut_label_skinny p) \
	{ \
		label_skinny_block<__VA_ARGS__, columns, warps, ahead>(p).run(); \
	}
#define KERNELS(name, ...) \
	KERNEL(name, 1, HZI_VLUT_LABEL_WARPS(1), 2, 2, __VA_ARGS__) \
	KERNEL(name, 2, HZI_VLUT_LABEL_WARPS(2), 2, 2, __VA_ARGS__) \
	KERNEL(name, 8, HZI_VLUT_LABEL_WARPS(8), 2, 1, __VA_ARGS__)
#define CODES(name, ...) \
	KERNELS(name##_16bit, __VA_ARGS__, true) \
	KERNELS(name##_any, __VA_ARGS__, false)

CODES(vlut_label_skinny_cube, HZI_SHAPING_CUBE, 4)
CODES(vlut_label_skinny_d8star, HZI_SHAPING_D8STAR, 2)
CODES(vlut_label_skinny_e8_4, HZI_SHAPING_E8, 2)
CODES(vlut_label_skinny_e8_16, HZI_SHAPING_E8, 4)
