/*
 * vlut_half.h - parameters of the products of lattice codes and few vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_HALF_H
#define HZI_GPU_VLUT_HALF_H

#include "gpu/vlut_mma.h"

#define HZI_VHALF_ROWS 32		/* of a tile */
#define HZI_VHALF_CHUNK 128		/* of k: 64 bytes of a row's codes, of 4 bits a value */

/* A grid of shares of the tiles. scale_of: f16, twice, times 2^-something that scale has. */
struct hzi_vlut_half {
	const uint8_t *codes, *t;
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row, t_row, row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, row_bytes, k, chunks, batch;
	int32_t y_dtype, q, group_shift;	/* 32 2^shift values share T */
	int32_t round, scales;			/* round: tiles whose sums a block keeps */
	int32_t rows_of_x;			/* 8 columns of x are 16 aligned bytes */
	float scale;
	uint32_t first[2];
	uint32_t scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VMMA_ENTRIES * 2];
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_half) == 2456, "the same layout for C and CUDA");

/* The kernels by index. */
enum hzi_vlut_half_kernel {
#define HZ_KERNEL(name) HZI_KERNEL_##name,
#include "vlut_half.kernels.def"
#undef HZ_KERNEL
	HZI_VLUT_HALF_KERNELS
};

#endif
