/*
 * contiguous.h - what the launcher of the fast rows hands to their kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_FAST_H
#define HZI_GPU_HADAMARD_FAST_H

#include <stdint.h>

#define HZI_FAST_WARP_BYTES 4096	/* of shared memory for the 1024 values of a warp */
#define HZI_FAST_TURNS 2		/* rows of 2^14 16-bit elements that a block does, or 1 */

/* Rows of 2^k elements of one dtype, back to back. */
struct hzi_hadamard_fast {
	const void *x;
	void *y;
	const void *pre, *post;		/* packed signs or NULL, the same for every row */
	int64_t total;			/* elements */
	int64_t mask;			/* 2^k - 1 */
	int32_t k;
	float factor;
};

/*
 * Rows or tiles of them for blocks that have the next one under way: the first stretched blocks
 * take stretch successive ones each, the others one.
 */
struct hzi_hadamard_stretch {
	int32_t stretch, stretched;
};

/* Rows of m 2^k; tile: elements of the rows that a block takes at a time, a multiple of 1024. */
struct hzi_hadamard_fast_base {
	struct hzi_hadamard_fast f;
	struct hzi_hadamard_stretch s;
	int32_t tile, pad_;
};

/*
 * Rows of m 2^k elements of 16 bits. sign[i]: row i of the base matrix, a bit for each -1; column j
 * is bit j / 2 of the lower half, if j is odd of the upper half.
 */
struct hzi_hadamard_base_mma {
	const void *x;
	void *y;
	int64_t rows;
	int32_t k;
	float factor;
	uint32_t sign[32];
	struct hzi_hadamard_stretch s;
};

#define HZI_FAST_BASE_WARPS(m) ((m) == 20 ? 20 : (m) == 12 ? 12 : 14)	/* of a block, at most */

#ifdef __cplusplus
static_assert(sizeof(struct hzi_hadamard_fast_base) == 72, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_hadamard_base_mma) == 168, "the same layout for C and CUDA");
#else
_Static_assert(sizeof(struct hzi_hadamard_fast_base) == 72, "the same layout for C and CUDA");
_Static_assert(sizeof(struct hzi_hadamard_base_mma) == 168, "the same layout for C and CUDA");
#endif

#endif
