/*
 * depthwise.h - parameters of the kernels of depthwise and grouped quaternion convolutions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_CONV_DEPTHWISE_H
#define HZI_GPU_QUAT_CONV_DEPTHWISE_H

#include <stdint.h>

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_DEPTHWISE_THREADS 256
/* direct, warp kernels: output pixels of a thread or warp, along the last dimension */
#define HZI_DEPTHWISE_PIXELS 4
/* 3x3, 5x5, 7x7 kernels: output pixels of a thread */
#define HZI_DEPTHWISE_COLUMNS 2
#define HZI_DEPTHWISE_ROWS 8
#define HZI_DEPTHWISE_OUTPUTS 3		/* warp kernel: most output channels of a warp */
#define HZI_DEPTHWISE_TAPS 9		/* wgrad_direct kernel: taps of a thread */
#define HZI_WGRAD_SUM_THREADS 8		/* threads that share the partial sums of a weight */

/* The window of output pixel u and tap t: struct hzi_quat_patch_step */
struct hzi_quat_conv_window {
	struct hzi_quat_matrix x;	/* col: the stride of channels */
	int64_t x_stride[4];		/* of images and the dimensions */
	int32_t size[3], count[3], taps[3], step[3], each[3], base[3];
	int32_t images, groups, channels, outs;	/* channels, outs: of a group */
	int32_t strips, pad_;	/* strips of HZI_DEPTHWISE_PIXELS along the last dimension */
};

struct hzi_quat_conv_direct {
	struct hzi_quat_conv_window s;
	struct hzi_quat_out out;	/* rows are channels of all groups */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel; batch[0]: group */
	int64_t c_stride[4], pre_stride[4];
	int64_t total;			/* threads, or warps, with work */
	int32_t no_epilogue, pad_;	/* no bias, activation or pre */
};

struct hzi_quat_wgrad_direct {
	struct hzi_quat_conv_window s;
	struct hzi_quat_matrix small;	/* col: the stride of channels */
	int64_t small_stride[4];
	float *parts;			/* [part][out of all groups][tap][channel][4] */
	int64_t pixels, each;		/* of all images; pixels or rows of pixels of a part */
	int32_t parts_count, pairs;	/* pairs of output and input channel, of all groups */
};

/* sum[i] = the sum of parts[0][i], parts[1][i], ..., in this order */
struct hzi_quat_wgrad_sum {
	const float *parts;
	float *sum;
	int64_t count;			/* quaternions */
	int32_t parts_count, conj;
};

/* Grouped convolutions by mma.sync */
#define HZI_GROUPED_THREADS 256
#define HZI_GROUPED_TERMS 3		/* bf16 terms of an f32 number */
#define HZI_GROUPED_PIXEL_TILES 4	/* tiles of 8 pixels of a warp, 16-bit x */
#define HZI_GROUPED_PIXEL_TILES_F32 2
#define HZI_GROUPED_TAPS_MAX 32		/* a pixel's taps inside x are the bits of a word */

struct hzi_quat_conv_grouped {
	struct hzi_quat_conv_window s;
	struct hzi_quat_out out;	/* rows are channels of all groups */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel; batch[0]: group */
	int64_t c_stride[4], pre_stride[4];
	struct uint4 *weights;		/* packed as mma.sync fragments */
	int64_t pixels;
	int32_t taps;
	int32_t out_tiles, blocks;	/* tiles of 8 outputs of a block; blocks of a group */
	int32_t no_epilogue;		/* no bias, activation or pre */
};

static_assert(sizeof(struct hzi_quat_conv_grouped) == 736, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_conv_window) == 224, "the same layout for C and CUDA");

#endif
