/*
 * quantize.h - what the launcher of fast quantized rows hands to their kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_QUANTIZE_H
#define HZI_GPU_HADAMARD_QUANTIZE_H

#include "gpu/hadamard/contiguous.h"

/* Rows of 2^k, codes and scales back to back; y is codes, group i all of 2^group_log2 elements. */
struct hzi_hadamard_quantize {
	struct hzi_hadamard_fast f;
	void *scale;
	int32_t q_dtype, scale_dtype, round_to, group_log2;
	float most, inverse;		/* qmax, fl(1 / qmax) */
	int32_t signs, finish;		/* whether there is pre; whether post or round_to */
	uint32_t ahead, pad_;		/* blocks to one that starts when this one ends */
};

/* The way back: x is the codes. */
struct hzi_hadamard_values {
	struct hzi_hadamard_fast f;
	const void *scale;
	int32_t q_dtype, scale_dtype, y_dtype, group_log2;
	int32_t signs;			/* whether there is pre */
	uint32_t ahead;			/* as above */
	/*
	 * HZ_S8: codes of 8 bits exclusive or flip, plus 1024, plus base, twice as f16, are less
	 * their zero; scale may be NULL, where factor has it.
	 */
	uint32_t flip, base;
};

#ifdef __cplusplus
static_assert(sizeof(struct hzi_hadamard_quantize) == 104 &&
		      sizeof(struct hzi_hadamard_values) == 96,
	      "the same layout for C and CUDA");
#else
_Static_assert(sizeof(struct hzi_hadamard_quantize) == 104 &&
		       sizeof(struct hzi_hadamard_values) == 96,
	       "the same layout for C and CUDA");
#endif

#endif
