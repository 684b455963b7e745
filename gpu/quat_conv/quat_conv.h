/*
 * quat_conv.h - parameters of the kernels of implicit_gemm8: quaternion convolutions by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * The three dimensions of an array are slabs, rows and columns. Along rows and columns, inputs with
 * equal coordinates modulo the step are a phase ("grid" in the kernels), in which the inputs of
 * neighbouring outputs are neighbours. The taps that read one phase are a group, or several groups
 * where they are too far apart for one block of the phase in shared memory.
 */
#ifndef HZI_GPU_QUAT_CONV_H
#define HZI_GPU_QUAT_CONV_H

#include <stdint.h>

#include "gpu/qgemm/qgemm.h"
#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QC_OUT 64		/* output channels of a tile */
#define HZI_QC_PIXELS 160	/* pixels of a tile: columns of the products */
#define HZI_QC_ROWS 20		/* rows of 8 pixels of a tile */
#define HZI_QC_IN 32		/* input channels of a step */
/* Most input pixels of a step: 22 rows of 12, without bank conflicts */
#define HZI_QC_LINES 268
#define HZI_QC_STAGES 5		/* of the ring of weights */
#define HZI_QC_CLUSTER 2	/* tiles that share weights */
#define HZI_QC_THREADS 512
#define HZI_QC_CONVERTERS 7	/* warps that convert pixels to planes; an eighth loads weights */
#define HZI_QC_GROUPS 64
#define HZI_QC_TAPS 128

/* Bytes of shared memory, with alignment */
#define HZI_QC_BYTES (224 * 1024)

/* Split precision: gpu/quat_conv/implicit_gemm8_f32x3.cu */
#define HZI_QS_IN 16
#define HZI_QS_LINES 244
#define HZI_QS_STAGES 9
#define HZI_QS_THREADS 384
#define HZI_QS_CONVERTERS 3
#define HZI_QS_BYTES (227 * 1024)

/* Epilogues; the kernels of a dtype are in this order. */
enum hzi_quat_conv_kind {
	HZI_QC_PLAIN,			/* contiguous quaternions of the dtype of x */
	HZI_QC_USUAL,			/* the same with bias, and ReLU or leaky ReLU */
	HZI_QC_ANY
};

struct hzi_quat_conv_group {
	int16_t tap, taps;		/* the first, the number of them */
	int16_t slab;			/* output slab u reads input slab slab_step * u + slab */
	int16_t row_rest, col_rest;
	int16_t pad_;
	int32_t row, col;		/* first of the phase that output row and column 0 read */
	int32_t pitch, lines;		/* pixels of a row; of all rows */
};

struct hzi_quat_conv_tap {
	int16_t number;			/* index among the weights */
	int16_t line;			/* of the pixel that the tile's first pixel reads */
};

/* Pixels of an array */
struct hzi_quat_conv_side {
	struct hzi_quat_matrix q;	/* col: the stride of channels */
	int64_t stride[4];		/* of images and the dimensions */
	int32_t channels;
	int32_t pad_;
};

struct hzi_quat_conv {
	struct hzi_tensor_map weights;	/* planes, one after the other */
	struct hzi_quat_out out;	/* rows are channels; c.data that of image 0, place 0 */
	struct hzi_quat_conv_side x;
	const float *weight_scales;	/* inverse scales of rows */
	int64_t c_stride[4], pre_stride[4];	/* of images and the dimensions */
	int32_t images, size[3], count[3];	/* size of x; of C */
	int32_t slab_step, row_step, col_step;
	int32_t plane_lines;		/* lines of a plane of weights */
	int32_t groups;
	/*
	 * Rows of all slabs, each padded so that no window reaches into the next slab
	 */
	int32_t virtual_rows, all_rows;
	int32_t flat;			/* one column: the pixels of a tile are rows */
	/* Strips of 8 columns; pairs of tiles of a strip; pairs times tiles of channels */
	int32_t strips, pairs, tiles;
	uint32_t flip;			/* 0x80000000: negate x, y and z of sums */
	int32_t tap_step;		/* stride of taps along k of the weights */
	struct hzi_quat_conv_group group[HZI_QC_GROUPS];
	struct hzi_quat_conv_tap at[HZI_QC_TAPS];
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_conv) == 3072, "the same layout for C and CUDA");

#endif
