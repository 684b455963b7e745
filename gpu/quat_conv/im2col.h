/*
 * im2col.h - parameters of the kernels that copy what taps read of x
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_CONV_IM2COL_H
#define HZI_GPU_QUAT_CONV_IM2COL_H

#include "gpu/quat_gemm/quat_gemm.h"
#include "gpu/quat_layer/quat_layer.h"

/*
 * A copy of x with taps as channels: the pixel of output u has as channels what all taps read of x
 * for it, then zeros up to `pitch`. taps[d] > 1 in the dimensions whose taps become channels; the
 * others are copied as they are. Windows as in struct hzi_quat_patch_step.
 */
struct hzi_quat_conv_copy {
	struct hzi_quat_array x;
	void *out;			/* [images][count][pitch] */
	int64_t total;			/* quaternions of out */
	int64_t images, rows;		/* rows along the last dimension, of all images */
	int32_t size[3], count[3], taps[3], step[3], each[3], base[3];
	int32_t channels, pitch;
};

static_assert(sizeof(struct hzi_quat_patch_step) == 280, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_conv_copy) == 208, "the same layout for C and CUDA");

#endif
