/*
 * microscaling.h - parameters of the kernels of MXFP4, MXFP8 and NVFP4
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QUANTIZE_MICROSCALING_H
#define HZI_GPU_QUANTIZE_MICROSCALING_H

#include <assert.h>
#include <stdint.h>

#include "hurwitz.h"

#define HZI_MICROSCALING_THREADS 256
#define HZI_MICROSCALING_TILE 1024	/* elements of a warp */
#define HZI_MICROSCALING_BLOCKS 4	/* of an SM, where they loop over tiles */
#define HZI_MICROSCALING_ROTATED_BLOCKS 3	/* the same with a transform */

/*
 * Contiguous floats and codes, e2m1x2, e4m3 or e5m2; scales e8m0 or e4m3 of groups of 16 or 32
 * elements. total is a multiple of the group and of the transform's length 2^log2, which is 16 to
 * 1024; log2 = 0: no transform. signs: packed signs before it, of 8 (sign_mask + 1) elements, or
 * NULL; factor: of the transform. measure: only *most is written, the bits of the largest
 * magnitude.
 *
 * Dequantization without a transform: groups of 2^log2 elements from 8 on, scales also f32, codes
 * also u4x2 and s4x2, with zero points or NULL
 */
struct hzi_quantize_microscaling {
	void *x, *q;
	void *scales;
	const uint8_t *zeros;
	const float *tensor_scale;
	float *new_tensor_scale;
	uint32_t *most;
	const uint8_t *signs;
	int64_t total;
	int32_t q_dtype, scale_dtype, rule, round_to;
	int32_t log2, sign_mask, group, measure;
	float factor;
	int32_t pad_;
};
static_assert(sizeof(struct hzi_quantize_microscaling) == 112, "the same layout for C and CUDA");

#endif
