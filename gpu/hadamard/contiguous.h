/*
 * contiguous.h - parameters of the kernels for contiguous rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_CONTIGUOUS_H
#define HZI_GPU_HADAMARD_CONTIGUOUS_H

#include <assert.h>
#include <stdint.h>

#define HZI_WARP_BYTES 4096	/* of shared memory for the 1024 values of a warp */
#define HZI_BLOCK_ROWS 2		/* most 16-bit rows of 2^14 of a block */

/* Contiguous rows of 2^k elements of one dtype */
struct hzi_hadamard_contiguous {
	const void *x;
	void *y;
	const void *pre, *post;		/* packed signs, the same for every row, or NULL */
	int64_t total;			/* elements */
	int64_t mask;			/* 2^k - 1 */
	int32_t k;
	float factor;
};

/*
 * Tiles of blocks that load the next tile while they transform one: the first long_blocks blocks
 * have tiles_per_block successive tiles each, the others one.
 */
struct hzi_hadamard_schedule {
	int32_t tiles_per_block, long_blocks;
};

/* f32 rows of m 2^k elements. tile: the elements of a block's whole rows, a multiple of 1024 */
struct hzi_hadamard_base_f32 {
	struct hzi_hadamard_contiguous f;
	struct hzi_hadamard_schedule s;
	int32_t tile, pad_;
};

/*
 * The same for a base matrix that the kernel does not know: its entries, 1 and -1, row by row.
 * Kernels of order m have m^2 of them.
 */
struct hzi_hadamard_base_f32_any {
	struct hzi_hadamard_base_f32 b;
	float sign[40 * 40];
};

/*
 * 16-bit rows of m 2^k elements. sign[i] is row i of the base matrix, with a bit set for each -1:
 * for column j, bit j / 2 of the lower half of the word if j is even, of the upper half if odd.
 */
struct hzi_hadamard_base_mma {
	const void *x;
	void *y;
	int64_t rows;
	int32_t k;
	float factor;
	uint32_t sign[32];
	struct hzi_hadamard_schedule s;
};

/*
 * The same with a larger base matrix of order m: of row i, words with the bits of 32 columns each
 * as above; or, where its rows and columns are taken twice, of 16 columns each, in both halves
 */
struct hzi_hadamard_base_mma_any {
	const void *x;
	void *y;
	int32_t m;
	float factor;
	struct hzi_hadamard_schedule s;
	uint32_t sign[60][4];
};

#define HZI_BASE_F32_WARPS(m) ((m) == 20 ? 20 : (m) == 12 ? 12 : 14)	/* most of a block */

static_assert(sizeof(struct hzi_hadamard_base_f32) == 72, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_hadamard_base_mma) == 168, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_hadamard_base_mma_any) == 992, "the same layout for C and CUDA");

#endif
