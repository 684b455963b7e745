/*
 * hadamard.h - parameters of the kernels that are launched for each segment of a plan
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_H
#define HZI_GPU_HADAMARD_H

#include <assert.h>
#include <stdint.h>

/* Parameters of all kernels. A vector is one transform of n = m 2^k elements. */
struct hzi_hadamard_job {
	const void *x;			/* vector 0; dequantization: its codes */
	void *y;			/* quantization: codes */
	void *scale;			/* scales of groups; NULL: no quantization */
	const void *pre, *post;
	int64_t vectors;
	int64_t offset;			/* index of element 0 of a vector in its row */
	int64_t x_step, y_step;		/* strides of the elements of a vector */
	int32_t x_dtype, y_dtype, scale_dtype, pre_kind, post_kind, round_to;
	int32_t m, k;
	int32_t group_log2;		/* log2 of the elements of a group, or HZI_GROUP_IS_ROW */
	float factor;
};

#define HZI_GROUP_IS_ROW 63

/* A dimension of the vectors, and its strides in each operand, in elements */
struct hzi_hadamard_dim {
	int64_t size, x, y, pre, post;
	int64_t scale;			/* of scales, if a row is one group */
	int64_t row_offset;		/* of element 0's index in the row of groups */
};

/*
 * Rows and columns. Vector v = hi * dim[1].size + lo is at hi * dim[0].x + lo * dim[1].x in x, and
 * likewise in other operands. v / dim[1].size = (mulhi(v, magic) + v) >> shift for v < 2^31.
 * one_dim: all vectors are in dim[1], there is no division. contiguous: besides, vectors are
 * contiguous in x and in y.
 */
struct hzi_hadamard_rows {
	struct hzi_hadamard_job job;
	struct hzi_hadamard_dim dim[2];
	uint32_t magic;
	int32_t shift;
	int32_t one_dim, contiguous;
	int32_t piece_log2;		/* log2 of the elements of x in 16 bytes */
	int32_t column_tiles;		/* columns: dim[] is of the first column */
	int64_t columns;
};
static_assert(sizeof(struct hzi_hadamard_rows) == 256, "the same layout for C and CUDA");

/*
 * 16-bit columns of 2^k elements: slices of 8 columns per block, threads of a block, bytes of a
 * slice
 */
#define HZI_COLUMNS_SLICES(k) ((k) < 7 ? 1024 >> (k) : (k) == 7 ? 16 : 8)
#define HZI_COLUMNS_THREADS(k) ((k) == 7 ? 256 : 128)
#define HZI_COLUMNS_SLICE_BYTES(k) (16 << (k))

/* Rows of m 2^k elements. bits: the base matrix or its transpose, 2 words a row */
struct hzi_hadamard_base_rows {
	struct hzi_hadamard_job job;
	struct hzi_hadamard_dim dim[2];
	int32_t stride;		/* words of shared memory per index of the base matrix */
	int32_t pad_;
	uint32_t bits[128];
};
static_assert(sizeof(struct hzi_hadamard_base_rows) == 744, "the same layout for C and CUDA");

/*
 * Rows of m 2^k elements, of which a block computes some rows of the base matrix. signs: those of
 * rows 4 q to 4 q + 3 in column j, of the base matrix or its transpose, are the bits from
 * 4 (j % 8) on of word q * words + j / 8.
 */
#define HZI_BASE_SPLIT_ORDER 64		/* of the base matrices whose signs fit the first size */
#define HZI_BASE_SPLIT_WORDS(m) ((m) / 4 * (((m) + 7) / 8))

struct hzi_hadamard_base_split {
	struct hzi_hadamard_job job;
	struct hzi_hadamard_dim dim[2];
	int32_t words, quads;	/* quads: of rows of the base matrix that a block computes */
	uint32_t signs[HZI_BASE_SPLIT_WORDS(HZI_BASE_SPLIT_ORDER)];
};

struct hzi_hadamard_base_split_big {
	struct hzi_hadamard_base_split a;
	uint32_t more[HZI_BASE_SPLIT_WORDS(256) - HZI_BASE_SPLIT_WORDS(HZI_BASE_SPLIT_ORDER)];
};
static_assert(sizeof(struct hzi_hadamard_base_split) == 744, "the same layout for C and CUDA");

/* Any strides, plans and base matrices */
#define HZI_STRIDED_DIMS 8		/* outer dimensions, blocks, transforms of a segment */
#define HZI_STRIDED_SEGMENTS 17		/* at most one segment per power of two up to 2^16 */
#define HZI_STRIDED_WORDS 512		/* sign bits of base matrices of orders up to 128 */
#define HZI_STRIDED_WORDS_BIG 2048	/* up to 256 */

struct hzi_hadamard_segment {
	int64_t offset, count;
	int32_t m, k;
	float factor;
	int32_t pad_;
};

/*
 * Rows whose segments, of several lengths, share a launch; job.m, k and factor are not used.
 * Blocks: rows, then segments; or, to codes, of a cluster, then rows
 */
struct hzi_hadamard_row_segments {
	struct hzi_hadamard_job job;
	struct hzi_hadamard_dim dim[2];
	int32_t nseg, pad_;
	struct hzi_hadamard_segment seg[HZI_STRIDED_SEGMENTS];
};
static_assert(sizeof(struct hzi_hadamard_row_segments) == 776, "the same layout for C and CUDA");

struct hzi_hadamard_strided {
	struct hzi_hadamard_job job;
	int32_t ndim, nseg;
	struct hzi_hadamard_dim dim[HZI_STRIDED_DIMS];
	struct hzi_hadamard_segment seg[HZI_STRIDED_SEGMENTS];
	int64_t n, blocks, x_block, pre_block, post_block;	/* quantization: of a row */
	int32_t tile;			/* vectors in shared memory at a time */
	int32_t across_vectors;		/* successive threads access successive vectors */
	int32_t cluster_log2;
	int32_t words;			/* words of sign bits in a row of the base matrix */
	int32_t transpose, pad_;
};
static_assert(sizeof(struct hzi_hadamard_strided) == 1176, "the same layout for C and CUDA");

struct hzi_hadamard_strided_small {
	struct hzi_hadamard_strided a;
	uint32_t bits[HZI_STRIDED_WORDS];
};

struct hzi_hadamard_strided_big {
	struct hzi_hadamard_strided a;
	uint32_t bits[HZI_STRIDED_WORDS_BIG];
};

#endif
