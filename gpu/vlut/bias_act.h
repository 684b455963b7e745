/*
 * bias_act.h - parameters of the kernels for bias and activation
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_BIAS_ACT_H
#define HZI_GPU_VLUT_BIAS_ACT_H

#include "gpu/vlut/vlut.h"

/* Bias and activation: see struct hzi_vlut_bias_act */
struct hzi_vlut_bias_act_rows {
	const void *from;
	void *y;
	const float *bias;
	int64_t rows, n, from_step, y_step;
	int64_t shape[HZ_MAXDIM], from_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	int32_t ndim, from_dtype, y_dtype, activation, gated, pad_;
};
static_assert(sizeof(struct hzi_vlut_bias_act_rows) == 224, "the same layout for C and CUDA");

#endif
