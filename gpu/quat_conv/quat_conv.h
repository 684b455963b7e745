/*
 * quat_conv.h - parameters of the kernels of implicit_gemm8: quaternion convolutions by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 *
 * The three dimensions of an array are slabs, rows and columns. Along rows and columns, inputs with
 * equal coordinates modulo the stride are a phase, in which the inputs of neighbouring outputs are
 * neighbours. The taps that read one phase are a tap group, or several groups where they are too
 * far apart for shared memory to hold the inputs of all of them.
 */
#ifndef HZI_GPU_QUAT_CONV_H
#define HZI_GPU_QUAT_CONV_H

#include <stdint.h>

#include "gpu/qgemm/qgemm.h"
#include "gpu/quat_gemm/quat_gemm.h"

/* The tile of a block, a product of TILE_M output channels by TILE_N pixels */
#define HZI_CONV8_TILE_M 64
#define HZI_CONV8_TILE_N 160
#define HZI_CONV8_TILE_ROWS 20		/* rows of 8 pixels: TILE_N pixels */
#define HZI_CONV8_TILE_K 32		/* input channels of a step */
/* Most input pixels of a step: 22 rows of 12, without bank conflicts */
#define HZI_CONV8_INPUTS 268
#define HZI_CONV8_STAGES 5		/* of the ring of weights */
#define HZI_CONV8_CLUSTER 2		/* tiles that share weights */
#define HZI_CONV8_THREADS 512
#define HZI_CONV8_CONVERTERS 7	/* warps that make f16 planes; the eighth loads weights */
#define HZI_CONV8_TAP_GROUPS 64
#define HZI_CONV_TAPS_MAX 128
/* Bytes of dynamic shared memory, alignment included */
#define HZI_CONV8_SHARED_BYTES (224 * 1024)

/* f32 in split precision: implicit_gemm8_f32x3.cu */
#define HZI_CONV8_SPLIT_TILE_K 16
#define HZI_CONV8_SPLIT_INPUTS 244
#define HZI_CONV8_SPLIT_STAGES 9
#define HZI_CONV8_SPLIT_THREADS 384
#define HZI_CONV8_SPLIT_CONVERTERS 3
#define HZI_CONV8_SPLIT_SHARED_BYTES (227 * 1024)

/* Epilogues. The kernels of a dtype are in this order. */
enum hzi_quat_conv_epilogue {
	HZI_CONV_EPILOGUE_NONE,		/* y: contiguous quaternions of the dtype of x */
	HZI_CONV_EPILOGUE_BIAS_ACT,	/* the same with bias, and ReLU or leaky ReLU */
	HZI_CONV_EPILOGUE_FULL		/* any layout, dtype and activation; pre */
};

struct hzi_quat_conv8_group {
	int16_t tap, taps;		/* the first, the number of them */
	int16_t slab;			/* output slab u reads input slab slab_step * u + slab */
	int16_t row_phase, col_phase;
	int16_t pad_;
	int32_t row, col;		/* first of the phase that output row and column 0 read */
	int32_t pitch, inputs;		/* input pixels of a row; of all rows */
};

struct hzi_quat_conv8_tap {
	int16_t number;			/* index among the weights */
	int16_t input;			/* index of the input that the tile's first pixel reads */
};

/* Pixels of an array */
struct hzi_quat_conv_array {
	struct hzi_quat_matrix q;	/* col: the stride of channels */
	int64_t stride[4];		/* of images and the dimensions */
	int32_t channels;
	int32_t pad_;
};

struct hzi_quat_conv8 {
	struct hzi_tensor_map weights;	/* all planes */
	struct hzi_quat_out out;	/* rows are channels; c.data: pixel 0 of image 0 */
	struct hzi_quat_conv_array x;
	const float *weight_scales;	/* inverse scales of rows */
	int64_t c_stride[4], pre_stride[4];	/* of images and the dimensions */
	int32_t images, size[3], count[3];	/* size of x; of C */
	int32_t slab_step, row_step, col_step;
	int32_t plane_lines;		/* lines of a plane of weights */
	int32_t groups;
	/* Rows of a slab, padded so that no window reaches into the next slab; of all slabs */
	int32_t virtual_rows, all_rows;
	int32_t flat;			/* there is one column: the pixels of a tile are rows */
	/* Strips of 8 columns; pairs of tiles of a strip; pairs times tiles of channels */
	int32_t strips, pairs, tiles;
	uint32_t flip;			/* 0x80000000: negate x, y and z of results */
	int32_t tap_step;		/* stride of taps along k of the weights */
	struct hzi_quat_conv8_group group[HZI_CONV8_TAP_GROUPS];
	struct hzi_quat_conv8_tap at[HZI_CONV_TAPS_MAX];
};

static_assert(sizeof(struct hzi_quat_conv8) == 3072, "the same layout for C and CUDA");

#endif
