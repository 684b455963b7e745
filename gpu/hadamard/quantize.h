/*
 * quantize.h - parameters of the kernels between contiguous 16-bit rows and codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_QUANTIZE_H
#define HZI_GPU_HADAMARD_QUANTIZE_H

#include "gpu/hadamard/contiguous.h"

/* Rows of 2^k to codes y: all contiguous, in groups of 2^group_log2 elements with a scale each */
struct hzi_hadamard_quantize {
	struct hzi_hadamard_contiguous f;
	void *scale;
	int32_t q_dtype, scale_dtype, round_to, group_log2;
	float most, inverse;		/* qmax, fl(1 / qmax) */
	int32_t signs, finish;		/* whether there is pre; whether post or round_to */
	uint32_t ahead, pad_;		/* blocks from one to that which starts when it ends */
};

/* Codes x to rows of 2^k */
struct hzi_hadamard_dequantize {
	struct hzi_hadamard_contiguous f;
	const void *scale;
	int32_t q_dtype, scale_dtype, y_dtype, group_log2;
	int32_t signs;			/* whether there is pre */
	uint32_t ahead;			/* as above */
	/*
	 * HZ_S8: two codes in f16, (code xor flip) + 1024 + base, are codes minus their zero
	 * point. scale may be NULL; then factor includes it.
	 */
	uint32_t flip, base;
};

#ifdef __cplusplus
static_assert(sizeof(struct hzi_hadamard_quantize) == 104 &&
		      sizeof(struct hzi_hadamard_dequantize) == 96,
	      "the same layout for C and CUDA");
#else
_Static_assert(sizeof(struct hzi_hadamard_quantize) == 104 &&
		       sizeof(struct hzi_hadamard_dequantize) == 96,
	       "the same layout for C and CUDA");
#endif

#endif
