/*
 * depthwise.h - parameters of the kernels of depthwise and grouped quaternion convolutions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QUAT_CONV_DEPTHWISE_H
#define HZI_GPU_QUAT_CONV_DEPTHWISE_H

#include <stdint.h>

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QF_THREADS 256
#define HZI_QF_PIXELS 4			/* pixels of a thread or warp, along the last dimension */
#define HZI_QF_COLUMNS 2		/* columns of a thread, */
#define HZI_QF_ROWS 8			/* by rows: kernels of square taps */
#define HZI_QF_OUT 3			/* most output channels of a warp */
#define HZI_QF_TAPS 9			/* taps of a thread: gradients */
#define HZI_QF_PARTS 8			/* threads that add up the parts of a gradient */

/* The window: patches of x, as in struct hzi_quat_patch_step */
struct hzi_quat_few_sight {
	struct hzi_quat_matrix x;	/* col: the stride of channels */
	int64_t x_stride[4];		/* of images and the dimensions */
	int32_t size[3], count[3], taps[3], step[3], each[3], base[3];
	int32_t images, groups, channels, outs;	/* channels, outs: of a group */
	int32_t strips, pad_;		/* strips of HZI_QF_PIXELS along the last dimension */
};

struct hzi_quat_few {
	struct hzi_quat_few_sight s;
	struct hzi_quat_out out;	/* rows are channels of all groups */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel; batch[0]: group */
	int64_t c_stride[4], pre_stride[4];
	int64_t total;			/* threads, or warps, with work */
	int32_t plain, pad_;		/* no bias, activation or pre */
};

struct hzi_quat_few_weights {
	struct hzi_quat_few_sight s;
	struct hzi_quat_matrix small;	/* col: the stride of channels */
	int64_t small_stride[4];
	float *parts;			/* [part][out of all groups][tap][channel][4] */
	int64_t pixels, each;		/* of all images; pixels or lines of a part */
	int32_t parts_count, pairs;	/* pairs of output and input channel, of all groups */
};

struct hzi_quat_few_sum {
	const float *parts;
	float *sum;
	int64_t count;			/* quaternions */
	int32_t parts_count, conj;
};

/* Grouped, by mma.sync: threads of a block, bf16 terms of f32, eights of pixels of a warp */
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
	struct uint4 *weights;		/* packed as mma.sync fragments */
	int64_t pixels;
	int32_t taps, eights, blocks;	/* eights of outputs of a block; blocks of a group */
	int32_t plain;			/* no bias, activation or pre */
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_groups) == 736, "the same layout for C and CUDA");
HZI_QUAT_ASSERT(sizeof(struct hzi_quat_few_sight) == 224, "the same layout for C and CUDA");

#endif
