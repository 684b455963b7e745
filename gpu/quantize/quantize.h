/*
 * quantize.h - parameters of the kernels of quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QGEMM_QUANTIZE_H
#define HZI_GPU_QGEMM_QUANTIZE_H

#include <stdint.h>

#include "hurwitz.h"

#ifdef __cplusplus
#define HZI_QUANTIZE_ASSERT static_assert
#else
#define HZI_QUANTIZE_ASSERT _Static_assert
#endif

#define HZI_FLAT_THREADS 256
/* Pieces of 16 bytes of floats that a thread has under way; of 16-bit floats twice as many. */
#define HZI_FLAT_PIECES(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_BACK_PIECES 2	/* the same on the way back to floats */
#define HZI_RANGE_PIECES 8
#define HZI_ROWS_THREADS 256
#define HZI_JOINT_THREADS 256	/* or twice as many */

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
 * Back to back: pieces of 16 bytes of floats, then the elements that are left. Piece i is of row i
 * / row.divisor, and of the row's pieces each group.divisor are a group; its scale has number row *
 * row_step + group. row.divisor 0: one for all.
 */
struct hzi_quantize_flat {
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

/* How a kernel of tiles goes about them. */
enum hzi_tile_kind {
	HZI_TILE_PIECES,		/* pieces of 16 bytes of floats along i, of one parameter */
	HZI_TILE_PIECES_EACH,		/* the same, each element with a parameter of its own */
	HZI_TILE_ROWS,			/* element by element, parameters change along j */
	HZI_TILE_COLUMNS,		/* element by element, they change along i */
	HZI_TILE_TURNED			/* floats are close along i, codes along j */
};

#define HZI_TURN 64		/* along i, of a tile of HZI_TILE_TURNED */
#define HZI_TURN_ROWS 128	/* along j */

/* Elements that a thread has next to each other, columns of these apart, rows */
#define HZI_TILE_PIECE(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_TILE_ACROSS 4	/* of single elements; of pieces one */
#define HZI_TILE_DOWN 4		/* rows of single elements, of pieces of f32; else twice as many */

/*
 * Anything. Element (i, j) and outer indices are at the sum of index * stride, with parameter
 * number the sum of index * p_stride, of i and j (index / group) * p_stride. A block has a tile,
 * of which 2^log_i threads are along i and the others along j. The last of the rows along j has
 * last_i elements.
 */
struct hzi_quantize_tiles {
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
	int32_t is_signed, words;	/* words: turned, lines along j are words of 4 bytes */
	float scale;
	int32_t zero;
};

/*
 * Ranges: range[2 p] becomes the bits of max(0, -x) and range[2 p + 1] those of max(0, x) over
 * the elements of parameter p. Flat: of parameter 0, a block does a share of the pieces.
 */
struct hzi_range_flat {
	const void *x;
	uint32_t *range;
	int64_t pieces, share;
};

/*
 * Anything. With p_i 0 a row along i has one parameter, and there are as many rows as the outer
 * dimensions say, of which the last of the innermost has last_i elements; else elements along i
 * have parameters p_i apart, and a block has a share of size_j rows. With scale parameters are put
 * where they belong, each being of one row.
 */
struct hzi_range_tiles {
	const void *x;
	uint32_t *range;
	float *scale;
	void *zero;
	int64_t x_i, x_j, p_i, tiles;
	int32_t size_i, size_j, last_i, log_i;
	int32_t share, pieces;		/* pieces: whole ones of 16 bytes along i */
	struct hzi_quotient tiles_i, shares;
	int32_t ndim, q_dtype, symmetric;
	struct hzi_quotient shape[HZ_MAXDIM + 2];
	int32_t log_turns;		/* values of a row for a lane, if they are few; or -1 */
	int64_t x_stride[HZ_MAXDIM + 2], p_stride[HZ_MAXDIM + 2];
};

/* Pieces back to back, each 2^log_group of one parameter */
struct hzi_range_groups {
	const void *x;
	float *scale;
	void *zero;
	int64_t pieces;
	int32_t log_group, q_dtype, symmetric, pad_;
};

#define HZI_GROUP_LOG2_MIN 2
#define HZI_GROUP_LOG2_MAX 8	/* what a warp has at once */

struct hzi_range_params {
	const uint32_t *range;
	float *scale;
	void *zero;
	int64_t count;
	int32_t q_dtype, symmetric;
};

/* Pieces of 8 elements of 16 bits to f32, or back */
struct hzi_convert_flat {
	const void *x;
	void *y;
	int64_t pieces;
};

/* Rows of k floats to codes, each with the parameters of its range, or with scale and zero. */
struct hzi_quantize_rows {
	const void *x;
	uint8_t *y;
	float *scales;			/* of rows; NULL: fixed */
	uint8_t *zeros;
	int64_t rows, k, y_row;		/* y_row: bytes, a multiple of 16, beyond k cleared */
	int64_t x_k;
	int32_t ndim, q_dtype;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];	/* of the batch and m */
	int32_t symmetric;
	float scale;
	int32_t zero;
	int32_t narrow;			/* a row is one warp's, not a block's */
};

HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_flat) == 96, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_tiles) == 384, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_flat) == 32, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_tiles) == 352, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_groups) == 48, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_params) == 40, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_rows) == 184, "the same layout for C and CUDA");

#endif
