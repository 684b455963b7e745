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

/*
 * Contiguous floats and codes, e2m1x2, e4m3 or e5m2; scales e8m0 or e4m3 of groups of 16 or 32
 * elements. total is a multiple of the group and of the transform's length 2^log2, which is 16 to
 * 128; log2 = 0: no transform. signs: packed signs before it, of 8 (sign_mask + 1) elements, or
 * NULL; factor: of the transform. measure: only *most is written, the bits of the largest
 * magnitude.
 */
struct hzi_quantize_microscaling {
	void *x, *q;
	uint8_t *scales;
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
static_assert(sizeof(struct hzi_quantize_microscaling) == 104, "the same layout for C and CUDA");

#endif
