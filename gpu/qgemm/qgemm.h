/*
 * qgemm.h - parameters of the kernels of quantized matrix multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Packed B, HZI_QLAYOUT_CUDA: blocks of 128 bytes of k, each of all columns. A column is a line of
 * 128 bytes; 8 lines make 1024 bytes, with the 16-byte chunks of line r exchanged by r % 8, what
 * the matrix units call a 128-byte swizzle. Of 64 columns number 16 q + 2 j + e is line 8 j + 2 q +
 * e: a matrix product leaves a thread with columns 2 q + e of each group of 8 lines, which so are
 * 16 successive ones. Codes of s8 are stored with the sign bit turned, which makes them u8 and
 * their zero 128 more; the sums of the columns are of what is stored.
 */
#ifndef HZI_GPU_QGEMM_H
#define HZI_GPU_QGEMM_H

#include <stdint.h>

#include "gpu/runtime/tensor_map.h"
#include "hurwitz.h"

#ifdef __cplusplus
#define HZI_QGEMM_ASSERT static_assert
#else
#define HZI_QGEMM_ASSERT _Static_assert
#endif

#define HZI_QK_BLOCK 128	/* bytes of k in a block, and of a line */
#define HZI_QN_GROUP 64		/* columns that are put in another order */
#define HZI_TMA_ROWS 128	/* of A in a tile */
#define HZI_TMA_ONES 16		/* columns beside 64, see qgemm_tma.cu */
#define HZI_TMA_THREADS 384	/* two warpgroups that multiply, and one with other tasks */
#define HZI_FEW_COLUMNS 64	/* of a cluster of the kernels for few rows */
#define HZI_FEW_ROWS 64		/* at most */
#define HZI_FEW_THREADS 384	/* a warpgroup that multiplies, and eight warps with other tasks */
#define HZI_FEW_STAGES_8 8
#define HZI_FEW_STAGES_16 8
#define HZI_FEW_STAGES_32 6
#define HZI_FEW_STAGES_64 6
#define HZI_LINEAR_ROWS 4	/* of a linear layer in one launch, if the scale is given */
#define HZI_LINEAR_RANGES 2	/* if it comes from their ranges */
#define HZI_LINEAR_COLUMNS 32	/* of a block */
#define HZI_LINEAR_THREADS 512
#define HZI_LINEAR_BLOCKS 32	/* of k: what the threads of a block have in registers */
#define HZI_LINEAR_PITCH (HZI_LINEAR_BLOCKS * HZI_QK_BLOCK + 64) /* of codes: no banks meet */
#define HZI_FEW_PITCH 68	/* words of a row of sums of 64 columns */
#define HZI_ANY_ROWS 128	/* of a block of the kernels for any GPU; half of it if wide */
#define HZI_ANY_COLUMNS 128
#define HZI_ANY_STAGES 3
#define HZI_QSTAGE_WORDS 68	/* a row of 64 sums, and what belongs to A's row */
#define HZI_QUICK_CODES 1
#define HZI_QUICK_ROWS 2

/* Bytes of shared memory, or a little more. */
#define HZI_TMA_BYTES(columns, stages) \
	((stages) * HZI_QK_BLOCK * \
		 (HZI_TMA_ROWS + (columns) + ((columns) == 64 ? HZI_TMA_ONES : 0)) + \
	 2 * (20 * (columns) + 4 * HZI_TMA_ROWS) + 4 * 64 * HZI_QSTAGE_WORDS + 16 * (stages) + 64)
#define HZI_FEW_BYTES(rows, stages) \
	((stages) * (HZI_FEW_COLUMNS + (rows)) * HZI_QK_BLOCK + 20 * HZI_FEW_COLUMNS + \
	 4 * (rows) * HZI_FEW_PITCH + 16 * (stages) + 16)

/* How sums become C, as in struct hzi_qgemm_args, for one matrix. */
struct hzi_qgemm_out {
	void *c;
	const int32_t *b_sums;		/* of the columns, as stored */
	const void *bias;
	const uint8_t *a_zeros, *b_zeros;	/* NULL: a_zero, b_zero */
	const int32_t *multipliers, *shifts;
	const float *a_scales, *b_scales;
	int64_t c_m, c_n;
	int64_t zero_row, scale_row;	/* of row 0, in a_zeros and in a_scales */
	int32_t zero_step, scale_step, b_scale_step;
	int32_t m, n, k;
	int32_t c_dtype, bias_dtype;
	int32_t a_signed, b_signed;	/* what the zeros are codes of */
	int32_t a_zero, b_zero, c_zero;	/* b_zero: of the codes as stored */
	int32_t u, shift, tflite, identity;
	int32_t min, max;
	float fmin, fmax;
	float a_scale, b_scale, c_scale;
	int32_t a_sums;			/* the sums of A's rows matter */
	/*
	 * quick: C has columns next to each other and rows that begin at multiples of 16 bytes.
	 * HZI_QUICK_CODES: it is u8 or s8, rounded once, with one a_zero; HZI_QUICK_ROWS: it is
	 * floats, or s32 that is the sums. A tile is done in 32 bits if each of its columns has a
	 * bias of no more than bias_max, so that sums with it fit, and for codes 33 <= shift <= 53.
	 * bounded: min or max, or fmin or fmax, is inside the type's range.
	 */
	int32_t quick, bounded, bias_max;
};

/* Many rows: each block of a cluster has a tile of 128 rows by a kernel's columns. */
struct hzi_qgemm_tma {
	struct hzi_tensor_map a;	/* k x m */
	const uint8_t *b;
	struct hzi_qgemm_out out;
	int32_t width;			/* columns of packed B */
	int32_t blocks;			/* of k */
	int32_t tiles_m, tiles_n;	/* of clusters */
	int32_t band;			/* tiles along m that are done column by column */
};

/* Few rows: the blocks of a cluster have 64 columns together, and a share of k each. */
struct hzi_qgemm_few {
	struct hzi_tensor_map a;	/* k x m */
	const uint8_t *b;
	struct hzi_qgemm_out out;
	int32_t width, blocks;
	int32_t loose;			/* out.quick holds for any strides, n, and zeros of rows */
	int32_t wide;			/* sums of all blocks may not fit in 32 bits */
};

/* A linear layer: up to 4 rows of floats, which are whole pieces of 16 bytes. */
struct hzi_qlinear_few {
	const void *x;
	const uint8_t *b;
	struct hzi_qgemm_out out;	/* without zeros and scales of rows */
	int64_t x_m;			/* bytes from row to row */
	int32_t width, blocks;
	int32_t lanes;			/* 2^lanes threads for a row: enough for all rows */
	int32_t x_dtype, q_dtype, symmetric;
	int32_t fixed;			/* scale and zero are given; else they come from ranges */
	float scale;
	int32_t zero, pad_;
};

#define HZI_BATCH_DIMS 4

/*
 * Any GPU: A with rows of 16-byte aligned codes. Items of a batch from number first on; a_stride,
 * b_stride and c_stride in bytes.
 */
struct hzi_qgemm_any {
	const uint8_t *a, *b;
	struct hzi_qgemm_out out;
	int64_t a_m;
	int32_t width, blocks;
	int64_t first;
	int64_t shape[HZI_BATCH_DIMS], a_stride[HZI_BATCH_DIMS], b_stride[HZI_BATCH_DIMS],
		c_stride[HZI_BATCH_DIMS], row_stride[HZI_BATCH_DIMS];
	int32_t ndim, pad_;
};

/* Lines of k codes: columns of B to be packed, rows of A to be aligned. */
struct hzi_qgemm_lines {
	const uint8_t *x;
	uint8_t *y;
	int32_t *sums;			/* of columns, 0 before if k is shared; NULL: rows of A */
	int64_t x_line, x_k;		/* strides */
	int64_t y_line;			/* rows: bytes from one to the next, a multiple of 16 */
	int64_t lines, k;
	int64_t width;			/* columns: with the padding */
	int32_t blocks;			/* of k */
	int32_t flip;			/* 0x80: turn sign bits */
	int64_t first, y_item;		/* items: the first, bytes from one to the next */
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];
	int32_t ndim, pad_;
};

HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_out) == 216, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_tma) == 384, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_few) == 384, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qlinear_few) == 280, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_any) == 424, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_lines) == 200, "the same layout for C and CUDA");

#endif
