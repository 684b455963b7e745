/*
 * quantize.h - parameters of the kernels of quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QUANTIZE_H
#define HZI_GPU_QUANTIZE_H

#include <stdint.h>

#include "hurwitz.h"

#ifdef __cplusplus
#define HZI_QUANTIZE_ASSERT static_assert
#else
#define HZI_QUANTIZE_ASSERT _Static_assert
#endif

#define HZI_BLOCK_THREADS 256
/* Pieces of 16 bytes of floats that a thread has in flight; of 16-bit floats twice as many */
#define HZI_QUANTIZE_PIECES(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_DEQUANTIZE_PIECES 2	/* the same for dequantization */
#define HZI_RANGE_PIECES 8
#define HZI_ROWS_THREADS 256
#define HZI_CLUSTER_THREADS 256	/* or twice as many */

/* x / divisor of x < 2^31 is (mulhi(x, magic) + x) >> shift. */
struct hzi_quotient {
	uint32_t divisor, magic, shift;
};

#ifndef __cplusplus
static inline struct hzi_quotient hzi_make_quotient(int64_t divisor)
{
	const uint32_t shift =
		divisor > 1 ? 64 - (uint32_t)__builtin_clzll((uint64_t)divisor - 1) : 0;

	return (struct hzi_quotient){
		.divisor = (uint32_t)divisor,
		.magic = (uint32_t)((((1ull << shift) - (uint64_t)divisor) << 32) /
					    (uint64_t)divisor +
				    1),
		.shift = shift,
	};
}
#endif

/*
 * Contiguous: pieces of 16 bytes of floats, then the remaining elements. Piece i is in row i /
 * row.divisor; group.divisor pieces of a row are a group, whose scale has number row * row_step +
 * group. row.divisor 0: one parameter for all.
 */
struct hzi_quantize_contiguous {
	const void *x;			/* floats; dequantizing, codes */
	void *y;
	const float *scales;
	const uint8_t *zeros;		/* NULL: zero, or 0 with scales */
	int64_t pieces;
	int64_t row_step;
	int64_t elements;
	struct hzi_quotient row, group;
	int32_t is_signed;		/* codes are s8 */
	float scale;
	int32_t zero, pad_;
};

/* How threads of a tile access it */
enum hzi_tile_kind {
	HZI_TILE_PIECES,		/* 16-byte pieces of floats along i, one parameter each */
	HZI_TILE_PIECES_EACH,		/* such pieces, one parameter for each element */
	HZI_TILE_ROWS,			/* element by element, parameters change along j */
	HZI_TILE_COLUMNS,		/* element by element, parameters change along i */
	HZI_TILE_TRANSPOSED		/* floats contiguous along i, codes along j */
};

#define HZI_TILE_I 64		/* along i, of a tile of HZI_TILE_TRANSPOSED */
#define HZI_TILE_J 128	/* along j */

/* Contiguous elements of a thread, how many times along i, and along j */
#define HZI_TILE_PIECE(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_TILE_ACROSS 4	/* single elements; 1 with pieces */
#define HZI_TILE_DOWN 4		/* single elements, or pieces of f32; twice with 16-bit pieces */

/*
 * Any strides. Element (i, j, outer indices) is at the sum of index * stride; its parameter has
 * number the sum of index * p_stride, for i and j of (index / group) * p_stride. A block has a
 * tile, with 2^log_i threads along i and the others along j. The last row along j has last_i
 * elements.
 */
struct hzi_quantize_strided {
	void *x, *q;			/* floats, codes */
	const float *scales;
	const uint8_t *zeros;		/* NULL: zero, or 0 with scales */
	int64_t x_i, x_j, q_i, q_j, p_i, p_j;
	int32_t size_i, size_j, last_i, log_i;
	struct hzi_quotient group_i, group_j;
	struct hzi_quotient tiles_i, tiles_j;
	struct hzi_quotient shape[HZ_MAXDIM];
	int64_t x_stride[HZ_MAXDIM], q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM];
	int32_t ndim, kind;
	int32_t is_signed, words;	/* words: transposed lines along j are whole words */
	float scale;
	int32_t zero;
};

/*
 * Ranges: range[2 p] becomes the bits of max(0, -x) and range[2 p + 1] those of max(0, x) over the
 * elements of parameter p. Here of one parameter, contiguous; a block has a share of the pieces.
 */
struct hzi_range_contiguous {
	const void *x;
	uint32_t *range;
	int64_t pieces, share;
};

/*
 * Ranges with any strides. p_i 0: a row along i has one parameter; the outer dimensions count rows,
 * and the last row of the innermost has last_i elements. Else elements along i have parameters p_i
 * apart, and a block has a share of size_j rows. scale: each parameter is of one row, and the
 * kernel makes it instead of a range.
 */
struct hzi_range_strided {
	const void *x;
	uint32_t *range;
	float *scale;
	void *zero;
	int64_t x_i, x_j, p_i, tiles;
	int32_t size_i, size_j, last_i, log_i;
	int32_t share, pieces;		/* pieces: rows are whole pieces of 16 bytes */
	struct hzi_quotient tiles_i, shares;
	int32_t ndim, q_dtype, symmetric;
	struct hzi_quotient shape[HZ_MAXDIM + 2];
	int32_t log_turns;		/* log2 of a lane's values of a row, if few; or -1 */
	int64_t x_stride[HZ_MAXDIM + 2], p_stride[HZ_MAXDIM + 2];
};

/* Contiguous pieces, 2^log_group for each parameter */
struct hzi_range_groups {
	const void *x;
	float *scale;
	void *zero;
	int64_t pieces;
	int32_t log_group, q_dtype, symmetric, pad_;
};

#define HZI_GROUP_LOG2_MIN 2
#define HZI_GROUP_LOG2_MAX 8	/* pieces of a warp at a time */

struct hzi_range_params {
	const uint32_t *range;
	float *scale;
	void *zero;
	int64_t count;
	int32_t q_dtype, symmetric;
};

/* Pieces of 8 elements of 16 bits to f32, or back */
struct hzi_convert_contiguous {
	const void *x;
	void *y;
	int64_t pieces;
};

/* Rows of k floats to codes, with the parameters of each row's range, or with scale and zero */
struct hzi_quantize_rows {
	const void *x;
	uint8_t *y;
	float *scales;			/* of rows; NULL: fixed */
	uint8_t *zeros;
	int64_t rows, k, y_row;		/* y_row: bytes, a multiple of 16; cleared from k on */
	int64_t x_k;
	int32_t ndim, q_dtype;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];	/* of the batch and m */
	int32_t symmetric;
	float scale;
	int32_t zero;
	int32_t narrow;			/* a warp has a row, not a block */
};

HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_contiguous) == 96, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_strided) == 384, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_contiguous) == 32, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_strided) == 352, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_groups) == 48, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_params) == 40, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_rows) == 184, "the same layout for C and CUDA");

#endif
