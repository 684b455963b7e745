/*
 * linear.h - parameters of the kernels of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_LINEAR_H
#define HZI_GPU_LINEAR_H

#include <assert.h>
#include <stdint.h>

#include "hurwitz.h"
#include "lib/linear/decode.h"

#define HZI_LINEAR_THREADS 256
#define HZI_LINEAR_TILE 64	/* rows and columns of a block of the product */
#define HZI_LINEAR_STEP 16	/* of the sum, in shared memory at a time */

/* dx = dy w, or dx += dy w: see struct hzi_linear_bwd_args */
struct hzi_linear_product {
	const float *dy, *w;
	float *dx;
	int64_t rows, out, in, dy_ld, dx_ld;
	int32_t add, pad_;
};
static_assert(sizeof(struct hzi_linear_product) == 72, "the same layout for C and CUDA");

/* Decoded weights: see struct hzi_linear_dequantize_args */
struct hzi_linear_decode {
	const uint8_t *codes;
	const float *scales;
	float *w;
	int64_t first, rows, ld;
	struct hzi_linear_layout layout;
};
static_assert(sizeof(struct hzi_linear_decode) == 1176, "the same layout for C and CUDA");

#endif
