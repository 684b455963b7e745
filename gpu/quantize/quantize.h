/*
 * quantize.h - parameters of the quantization kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Codes are quantized values, u8 or s8. A quantization parameter, for short parameter, is a scale
 * with its zero point.
 */
#ifndef HZI_GPU_QUANTIZE_H
#define HZI_GPU_QUANTIZE_H

#include <assert.h>
#include <stdint.h>

#include "hurwitz.h"

#define HZI_QUANT_THREADS 256
/* 16-byte vectors of floats in flight per thread, at most: twice as many of 16-bit floats */
#define HZI_QUANTIZE_VECTORS(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_DEQUANTIZE_VECTORS 2	/* the same for dequantization, for all types */
#define HZI_MINMAX_VECTORS 8
#define HZI_QUANT_ROWS_THREADS 128
#define HZI_MINMAX_CLUSTER_THREADS 256	/* or twice as many */

/* Division by a constant, for x < 2^31: x / divisor = (mulhi(x, magic) + x) >> shift */
struct hzi_fastdiv {
	uint32_t divisor, magic, shift;
};

#ifndef __cplusplus
static inline struct hzi_fastdiv hzi_make_fastdiv(int64_t divisor)
{
	const uint32_t shift =
		divisor > 1 ? 64 - (uint32_t)__builtin_clzll((uint64_t)divisor - 1) : 0;

	return (struct hzi_fastdiv){
		.divisor = (uint32_t)divisor,
		.magic = (uint32_t)((((1ull << shift) - (uint64_t)divisor) << 32) /
					    (uint64_t)divisor +
				    1),
		.shift = shift,
	};
}
#endif

/*
 * Contiguous arrays: 16-byte vectors of floats, then the remaining elements. Vector i is in row i /
 * row.divisor. A group is group.divisor vectors of a row; its parameters have index row * row_step
 * + group. row.divisor = 0: one parameter for all.
 */
struct hzi_quantize_contiguous {
	const void *x;			/* the source: floats, or codes to dequantize */
	void *y;
	const float *scales;
	const uint8_t *zeros;		/* NULL: zero, or 0 with scales */
	int64_t vectors;
	int64_t row_step;
	int64_t elements;
	struct hzi_fastdiv row, group;
	int32_t is_signed;		/* codes are s8 */
	float scale;
	int32_t zero;
	int32_t each;			/* vectors a thread, to quantize */
};
static_assert(sizeof(struct hzi_quantize_contiguous) == 96, "the same layout for C and CUDA");

/* How the threads of a block access their tile */
enum hzi_quantize_tile_kind {
	HZI_TILE_VECTORS,		/* 16-byte vectors of floats along i, one parameter each */
	HZI_TILE_VECTORS_PER_ELEMENT,
	/* the same, but each element has its own parameter */
	HZI_TILE_ROWS,			/* single elements; parameters change along j */
	HZI_TILE_COLUMNS,		/* single elements; parameters change along i */
	HZI_TILE_TRANSPOSED		/* floats contiguous along i, codes along j */
};

#define HZI_TILE_I 64		/* extent along i of a tile of HZI_TILE_TRANSPOSED */
#define HZI_TILE_J 128		/* along j */

/* Per thread: elements of a vector, then vectors or single elements along i and along j */
#define HZI_QUANTIZE_VECTOR(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_TILE_ACROSS 4		/* single elements; 1 vector */
#define HZI_TILE_DOWN 4		/* single elements or f32 vectors; twice as many 16-bit vectors */

/*
 * Any strides. Element (i, j, outer indices) is at the sum of index * stride. Its parameter index
 * is the sum of index * p_stride, where i and j count as index / group. A block has one tile, with
 * 2^log_i threads along i and the others along j. The last row along j has last_i elements.
 */
struct hzi_quantize_strided {
	void *x, *q;			/* floats, codes */
	const float *scales;
	const uint8_t *zeros;		/* NULL: zero, or 0 with scales */
	int64_t x_i, x_j, q_i, q_j, p_i, p_j;
	int32_t size_i, size_j, last_i, log_i;
	struct hzi_fastdiv group_i, group_j;
	struct hzi_fastdiv tiles_i, tiles_j;
	struct hzi_fastdiv shape[HZ_MAXDIM];
	int64_t x_stride[HZ_MAXDIM], q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM];
	int32_t ndim, kind;
	int32_t is_signed, word_rows;	/* word_rows: rows of codes along j are 32-bit words */
	float scale;
	int32_t zero;
};
static_assert(sizeof(struct hzi_quantize_strided) == 384, "the same layout for C and CUDA");

/*
 * Minima and maxima. range[2 p] becomes the bits of max(0, -x) and range[2 p + 1] those of max(0,
 * x) over the elements x of parameter p. Here: one parameter, contiguous; each block reduces
 * `share` vectors.
 */
struct hzi_minmax_contiguous {
	const void *x;
	uint32_t *range;
	int64_t vectors, share;
};
static_assert(sizeof(struct hzi_minmax_contiguous) == 32, "the same layout for C and CUDA");

/*
 * The same with any strides. p_i = 0: each row along i has one parameter; the outer dimensions
 * count rows, and the last row of the innermost of them has last_i elements. Otherwise elements
 * along i have parameters p_i apart, and a block reduces a share of the size_j rows. scale != NULL:
 * no other block contributes to a parameter, so the kernel stores scale and zero point rather than
 * the range.
 */
struct hzi_minmax_strided {
	const void *x;
	uint32_t *range;
	float *scale;
	void *zero;
	int64_t x_i, x_j, p_i, tiles;
	int32_t size_i, size_j, last_i, log_i;
	int32_t share, vectors;		/* vectors: rows consist of aligned 16-byte vectors */
	struct hzi_fastdiv tiles_i, shares;
	int32_t ndim, q_dtype, flags;
	struct hzi_fastdiv shape[HZ_MAXDIM + 2];
	int32_t log_loads;	/* log2 of the loads of a lane per row if at most 8, else -1 */
	int64_t x_stride[HZ_MAXDIM + 2], p_stride[HZ_MAXDIM + 2];
};
static_assert(sizeof(struct hzi_minmax_strided) == 352, "the same layout for C and CUDA");

/* Contiguous groups of 2^log_group vectors, one parameter each */
struct hzi_minmax_groups {
	const void *x;
	float *scale;
	void *zero;
	int64_t vectors;
	int32_t log_group, q_dtype, flags, pad_;
};
static_assert(sizeof(struct hzi_minmax_groups) == 48, "the same layout for C and CUDA");

#define HZI_MINMAX_GROUP_LOG2_MIN 2
#define HZI_MINMAX_GROUP_LOG2_MAX 8	/* a warp holds 2^8 vectors at a time */

struct hzi_minmax_qparams {
	const uint32_t *range;
	float *scale;
	void *zero;
	int64_t count;
	int32_t q_dtype, flags;
};
static_assert(sizeof(struct hzi_minmax_qparams) == 40, "the same layout for C and CUDA");

/* Vectors of 8 elements from 16-bit floats to f32, or from f32 to 16 bits */
struct hzi_quantize_convert {
	const void *x;
	void *y;
	int64_t vectors;
};

/*
 * Quantizes rows of k floats, each with the scale and zero point of its range, or all with the
 * given scale and zero.
 */
struct hzi_quantize_rows {
	const void *x;
	uint8_t *y;
	float *scales;			/* written, one per row; NULL: use scale and zero */
	uint8_t *zeros;
	int32_t *sums;			/* written, sums of the codes of rows; NULL: none */
	int64_t rows, k, y_row;	/* y_row: bytes, a multiple of 16; those from k on become 0 */
	int64_t x_k;
	int32_t ndim, q_dtype;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];	/* of the batch and m */
	int32_t symmetric;
	float scale;
	int32_t zero;
	int32_t warp_per_row;		/* a row per warp; 0: a row per block */
};
static_assert(sizeof(struct hzi_quantize_rows) == 192, "the same layout for C and CUDA");

#endif
