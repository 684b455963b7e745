/*
 * depthwise.h - parameters of the kernels of quaternion convolutions of few channels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QUAT_CONV_FEW_H
#define HZI_GPU_QUAT_CONV_FEW_H

#include <stdint.h>

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QF_THREADS 256
#define HZI_QF_PIXELS 4			/* along the last dimension, that a thread or a warp does */
#define HZI_QF_COLUMNS 2		/* that a thread goes down so many rows of */
#define HZI_QF_ROWS 8
#define HZI_QF_OUT 3			/* output channels of a group that a warp does */
#define HZI_QF_TAPS 9			/* whose gradients a thread sums */
#define HZI_QF_PARTS 8			/* threads that add up a gradient's parts */

/* What is the same forward and of weights: patches of x, as struct hzi_qpatch_args has them */
struct hzi_quat_few_sight {
	struct hzi_quat_matrix x;	/* col: the stride of channels */
	int64_t x_stride[4];		/* of images and the dimensions */
	int32_t size[3], count[3], taps[3], step[3], each[3], base[3];
	int32_t images, groups, channels, outs;	/* channels, outs: of a group */
	int32_t strips, pad_;		/* of HZI_QF_PIXELS along the last dimension */
};

struct hzi_quat_few {
	struct hzi_quat_few_sight s;
	struct hzi_quat_out out;	/* rows are channels of all groups */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel; batch[0]: group */
	int64_t c_stride[4], pre_stride[4];
	int64_t total;			/* threads, or warps, that have something to do */
	int32_t plain, pad_;		/* sums are what C gets */
};

struct hzi_quat_few_weights {
	struct hzi_quat_few_sight s;
	struct hzi_quat_matrix small;	/* col: the stride of channels */
	int64_t small_stride[4];
	float *parts;			/* [part][out of all groups][tap][channel][4] */
	int64_t pixels, each;		/* of all images; of a part, or its lines */
	int32_t parts_count, pairs;	/* pairs: of out and channel, of all groups */
};

struct hzi_quat_few_sum {
	const float *parts;
	float *sum;
	int64_t count;			/* quaternions */
	int32_t parts_count, conj;
};

/* By matrix units: threads of a block, parts of f32, pixels of a warp in eights */
#define HZI_QG_THREADS 256
#define HZI_QG_PARTS 3
#define HZI_QG_EIGHTS 4
#define HZI_QG_EIGHTS_F32 2
#define HZI_QG_TAPS 32			/* bits of a word */

struct hzi_quat_groups {
	struct hzi_quat_few_sight s;
	struct hzi_quat_out out;	/* rows are channels of all groups */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel; batch[0]: group */
	int64_t c_stride[4], pre_stride[4];
	struct uint4 *weights;		/* as the matrix units want them */
	int64_t pixels;
	int32_t taps, eights, blocks;	/* of outputs: eights of a block; blocks of a group */
	int32_t plain;			/* sums are what C gets */
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_groups) == 736, "the same layout for C and CUDA");
HZI_QUAT_ASSERT(sizeof(struct hzi_quat_few_sight) == 224, "the same layout for C and CUDA");

#endif
