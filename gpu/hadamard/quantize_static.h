/*
 * quantize_static.h - parameters of the kernels from contiguous rows to codes with given scales
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_QUANTIZE_STATIC_H
#define HZI_GPU_HADAMARD_QUANTIZE_STATIC_H

#include "gpu/hadamard/contiguous.h"
#include "gpu/quantize/quantize.h"

#define HZI_STATIC_WARP_BYTES 16	/* of shared memory besides values, for rows from 2048 on */

/*
 * Rows of 2^k to codes y, both contiguous. group.divisor successive pieces of 8 elements have one
 * parameter; divisor 0: all have parameter 0, or without scales scale and zero.
 */
struct hzi_hadamard_static {
	struct hzi_hadamard_contiguous f;
	const float *scales;
	const uint8_t *zeros;		/* NULL: zero, or 0 with scales */
	struct hzi_fastdiv group;
	int32_t is_signed;
	float scale;
	int32_t zero;
	int32_t signs;			/* whether there is pre */
	uint32_t ahead;			/* blocks from one to that which starts when it ends */
};

/*
 * 16-bit rows of m 2^k elements to codes, or codes to such rows: m describes the transforms, c the
 * side of codes.
 */
struct hzi_hadamard_mma_codes {
	struct hzi_hadamard_base_mma m;
	struct hzi_hadamard_static c;
};

HZI_QUANTIZE_ASSERT(sizeof(struct hzi_hadamard_static) == 104, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_hadamard_mma_codes) == 272,
		    "the same layout for C and CUDA");

#endif
