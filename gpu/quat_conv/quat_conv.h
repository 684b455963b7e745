/*
 * quat_conv.h - parameters of the kernel of quaternion convolutions on Hopper's matrix units
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Of the three dimensions of an array the first is that of slabs, the second that of rows, the last
 * that of columns. Along rows and columns, inputs whose places leave the same rest by the step make
 * a grid of their own, so that each output sees its neighbours there. Taps that see one grid are a
 * group, or several where they lie too far apart for one piece of the grid to be kept.
 */
#ifndef HZI_GPU_QUAT_CONV_H
#define HZI_GPU_QUAT_CONV_H

#include <stdint.h>

#include "gpu/qgemm/qgemm.h"
#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QC_OUT 64		/* output channels of a tile */
#define HZI_QC_PIXELS 160	/* and its pixels: columns of products */
#define HZI_QC_ROWS 20		/* a tile is so many rows of 8 pixels */
#define HZI_QC_IN 32		/* input channels of a step */
/* Pixels of the input in a step, at most; in banks 4 apart from 8: 22 rows of 12 */
#define HZI_QC_LINES 268
#define HZI_QC_STAGES 5		/* of the ring of weights */
#define HZI_QC_CLUSTER 2	/* tiles that share weights */
#define HZI_QC_THREADS 512
#define HZI_QC_CONVERTERS 7	/* warps that make planes; the eighth beside them loads weights */
#define HZI_QC_GROUPS 64
#define HZI_QC_TAPS 128

/* Bytes of shared memory, with what aligns them */
#define HZI_QC_BYTES (224 * 1024)

/* In parts, gpu/quat_conv/implicit_gemm8_f32x3.cu: channels of a step; of the ring, a sum's of a tap; warps */
#define HZI_QS_IN 16
#define HZI_QS_LINES 244
#define HZI_QS_STAGES 9
#define HZI_QS_THREADS 384
#define HZI_QS_CONVERTERS 3
#define HZI_QS_BYTES (227 * 1024)

/* What is done to sums; kernels of a dtype are in that order. */
enum hzi_quat_conv_kind {
	HZI_QC_PLAIN,			/* they become whole quaternions of the dtype of x */
	HZI_QC_USUAL,			/* after a bias and what is linear on either side of 0 */
	HZI_QC_ANY
};

struct hzi_quat_conv_group {
	int16_t tap, taps;		/* the first, and how many */
	int16_t slab;			/* input slab of output slab u: slab_step u + slab */
	int16_t row_rest, col_rest;
	int16_t pad_;
	int32_t row, col;		/* of the grid, seen by output row and column 0 first */
	int32_t pitch, lines;		/* a row's pixels; all rows' */
};

struct hzi_quat_conv_tap {
	int16_t number;			/* its place among the weights */
	int16_t line;			/* of the pixel that the tile's first sees */
};

/* Pixels of an array */
struct hzi_quat_conv_side {
	struct hzi_quat_matrix q;	/* col: the stride of channels */
	int64_t stride[4];		/* of images and the dimensions */
	int32_t channels;
	int32_t pad_;
};

struct hzi_quat_conv {
	struct hzi_tensor_map weights;	/* planes below each other */
	struct hzi_quat_out out;	/* rows are channels; c.data that of image 0, place 0 */
	struct hzi_quat_conv_side x;
	const float *weight_scales;	/* what undoes those of rows */
	int64_t c_stride[4], pre_stride[4];	/* of images and the dimensions */
	int32_t images, size[3], count[3];	/* of x; of C */
	int32_t slab_step, row_step, col_step;
	int32_t plane_lines;		/* from a plane of weights to the next */
	int32_t groups;
	/*
	 * Rows of all slabs follow each other, with room that keeps those of others out of sight.
	 */
	int32_t virtual_rows, all_rows;
	int32_t flat;			/* one column: a tile's pixels are rows */
	/* Of 8 columns; of tiles of a strip and channels; of clusters */
	int32_t strips, pairs, tiles;
	uint32_t flip;			/* 0x80000000: x, y and z of sums are to be negated */
	int32_t tap_step;		/* of k, from a tap of weights to the next */
	struct hzi_quat_conv_group group[HZI_QC_GROUPS];
	struct hzi_quat_conv_tap at[HZI_QC_TAPS];
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_conv) == 3072, "the same layout for C and CUDA");

#endif
