/*
 * hadamard.h - what the launchers of the Hadamard calls hand to their kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_H
#define HZI_GPU_HADAMARD_H

#include <stdint.h>

#ifdef __cplusplus
#define HZI_STATIC_ASSERT static_assert
#else
#define HZI_STATIC_ASSERT _Static_assert
#endif

/* What all kernels want to know. A vector is one transform of n = m 2^k elements. */
struct hzi_hadamard_job {
	const void *x;			/* where vector 0 begins; dequantizing: its codes */
	void *y;			/* quantizing: its codes */
	void *scale;			/* of the groups; NULL: no quantization */
	const void *pre, *post;
	int64_t vectors;
	int64_t offset; /* of element 0 of the vectors in their rows: x, y, factors, scales */
	int64_t x_step, y_step;		/* from one element of a vector to the next */
	int32_t x_dtype, y_dtype, scale_dtype, pre_kind, post_kind, round_to;
	int32_t m, k;
	int32_t group_log2; /* quantized groups of 2^group_log2; HZI_ROW: the whole row */
	float factor;
};

#define HZI_ROW 63

/* What one step in a dimension of the vectors means to each operand, in elements. */
struct hzi_hadamard_dim {
	int64_t size, x, y, pre, post;
	int64_t scale; /* a vector's first scale, where groups do not straddle vectors */
	int64_t place;			/* position in the row that the scales count from */
};

/*
 * Rows and columns on the fast paths. Vector v = hi * dim[1].size + lo lies at hi * dim[0].x +
 * lo * dim[1].x and so on. The quotient by dim[1].size is (mulhi(v, magic) + v) >> shift for
 * v < 2^31; with single there is no division, dim[1] holds all vectors; with flat they moreover lie
 * back to back in x and in y.
 */
struct hzi_hadamard_rows {
	struct hzi_hadamard_job job;
	struct hzi_hadamard_dim dim[2];
	uint32_t magic;
	int32_t shift;
	int32_t single, flat;
	int32_t piece_log2;		/* elements of x in 16 bytes */
	int32_t column_tiles; /* columns: dim[] says where a vector of the first column begins */
	int64_t columns;
};
HZI_STATIC_ASSERT(sizeof(struct hzi_hadamard_rows) == 256, "the same layout for C and CUDA");

/* Columns of 16 bits, 2^k rows: slices of 8 columns and threads of a block, bytes of a slice */
#define HZI_COLUMNS_SLICES(k) ((k) < 7 ? 1024 >> (k) : (k) == 7 ? 16 : 8)
#define HZI_COLUMNS_THREADS(k) ((k) == 7 ? 256 : 128)
#define HZI_COLUMNS_SLICE_BYTES(k) (16 << (k))

/* Rows of true orders: bits of the (transposed) base matrix, 2 words a row; no division for dim. */
struct hzi_hadamard_true {
	struct hzi_hadamard_job job;
	struct hzi_hadamard_dim dim[2];
	int32_t stride;			/* of the base matrix's index in shared memory, in words */
	int32_t pad_;
	uint32_t bits[128];
};
HZI_STATIC_ASSERT(sizeof(struct hzi_hadamard_true) == 744, "the same layout for C and CUDA");

/* Everything else: any strides, plans, base matrices. */
#define HZI_ANY_DIMS 8			/* the outer dimensions, blocks, repetitions in a block */
#define HZI_ANY_SEGMENTS 17 /* a plan has at most one segment per power of two to 65536 */
#define HZI_ANY_WORDS 512		/* sign bits of orders to 128 */
#define HZI_ANY_WORDS_BIG 2048		/* and to 256 */

struct hzi_hadamard_segment {
	int64_t offset, count;
	int32_t m, k;
	float factor;
	int32_t pad_;
};

struct hzi_hadamard_any {
	struct hzi_hadamard_job job;
	int32_t ndim, nseg;
	struct hzi_hadamard_dim dim[HZI_ANY_DIMS];
	struct hzi_hadamard_segment seg[HZI_ANY_SEGMENTS];
	int64_t n, blocks, x_block, pre_block, post_block;	/* quantizing: of a row */
	int32_t tile;			/* vectors at a time */
	int32_t across; /* vectors side by side in memory: neighbours read neighbours */
	int32_t cluster_log2;
	int32_t words;			/* of a row of the base matrix */
	int32_t transpose, pad_;
};
HZI_STATIC_ASSERT(sizeof(struct hzi_hadamard_any) == 1176, "the same layout for C and CUDA");

struct hzi_hadamard_any_small {
	struct hzi_hadamard_any a;
	uint32_t bits[HZI_ANY_WORDS];
};

struct hzi_hadamard_any_big {
	struct hzi_hadamard_any a;
	uint32_t bits[HZI_ANY_WORDS_BIG];
};

#endif
