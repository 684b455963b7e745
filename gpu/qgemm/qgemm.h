/*
 * qgemm.h - parameters of the kernels of quantized matrix multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Packed B, HZI_QLAYOUT_CUDA: blocks of 128 bytes of k, each of all columns. A column is a line of
 * 128 bytes; 8 lines are 1024 bytes in the 128-byte swizzle of wgmma and TMA: chunk c of 16 bytes
 * of line r is at c xor r % 8. Of 64 columns, number 16 q + 2 j + e is line 8 j + 2 q + e: a
 * thread's accumulators are columns 2 q + e of each group of 8 lines, so it gets 16 successive
 * columns. Codes of s8 are stored with the sign bit flipped: as u8, with a zero point larger by
 * 128; the column sums are those of the stored codes.
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
#define HZI_QN_GROUP 64		/* columns that are permuted within */
#define HZI_WGMMA_ROWS 128	/* of A in a tile */
#define HZI_WGMMA_ONES 16		/* columns besides 64: see wgmma.cu */
#define HZI_WGMMA_THREADS 384	/* two consumer warpgroups, and one with other tasks */
#define HZI_SKINNY_COLUMNS 64	/* of a cluster of skinny_splitk */
#define HZI_SKINNY_ROWS 64		/* most of a block */
#define HZI_SKINNY_THREADS 384	/* a consumer warpgroup, and eight warps with other tasks */
#define HZI_SKINNY_STAGES_8 8
#define HZI_SKINNY_STAGES_16 8
#define HZI_SKINNY_STAGES_32 6
#define HZI_SKINNY_STAGES_64 6
#define HZI_LINEAR_ROWS 4	/* most of a linear layer in one launch, if the scale is given */
#define HZI_LINEAR_RANGES 2	/* if it is that of their ranges */
#define HZI_LINEAR_COLUMNS 32	/* of a block */
#define HZI_LINEAR_THREADS 512
#define HZI_LINEAR_BLOCKS 32	/* most blocks of k: the registers of a block hold these */
#define HZI_LINEAR_PITCH (HZI_LINEAR_BLOCKS * HZI_QK_BLOCK + 64) /* no bank conflicts */
#define HZI_SKINNY_PITCH 68	/* words of a row of sums of 64 columns */
#define HZI_MMA_SYNC_ROWS 128	/* of a block of mma_sync; half of it with sums of 64 bits */
#define HZI_MMA_SYNC_COLUMNS 128
#define HZI_MMA_SYNC_STAGES 3
#define HZI_QSTAGE_WORDS 68	/* a row of 64 sums, and values of A's row */
#define HZI_EPILOGUE_CODES 1
#define HZI_EPILOGUE_VALUES 2

/* Bytes of shared memory, or a little more */
#define HZI_WGMMA_BYTES(columns, stages) \
	((stages) * HZI_QK_BLOCK * \
		 (HZI_WGMMA_ROWS + (columns) + ((columns) == 64 ? HZI_WGMMA_ONES : 0)) + \
	 2 * (20 * (columns) + 4 * HZI_WGMMA_ROWS) + 4 * 64 * HZI_QSTAGE_WORDS + 16 * (stages) + 64)
#define HZI_SKINNY_BYTES(rows, stages) \
	((stages) * (HZI_SKINNY_COLUMNS + (rows)) * HZI_QK_BLOCK + 20 * HZI_SKINNY_COLUMNS + \
	 4 * (rows) * HZI_SKINNY_PITCH + 16 * (stages) + 16)

/* The epilogue, from sums to C, of one matrix: see struct hzi_qgemm_args */
struct hzi_qgemm_out {
	void *c;
	const int32_t *b_sums;		/* of the columns, as stored */
	const void *bias;
	const uint8_t *a_zeros, *b_zeros;	/* NULL: a_zero, b_zero */
	const int32_t *multipliers, *shifts;
	const float *a_scales, *b_scales;
	int64_t c_m, c_n;
	int64_t zero_row, scale_row;	/* the index of row 0 in a_zeros, in a_scales */
	int32_t zero_step, scale_step, b_scale_step;
	int32_t m, n, k;
	int32_t c_dtype, bias_dtype;
	int32_t a_signed, b_signed;	/* whether zero points are s8, not u8 */
	int32_t a_zero, b_zero, c_zero;	/* b_zero: of the stored codes */
	int32_t u, shift, tflite, identity;
	int32_t min, max;
	float fmin, fmax;
	float a_scale, b_scale, c_scale;
	int32_t a_sums;			/* sums of A's rows are needed */
	/*
	 * quick: C has contiguous, 16-byte aligned rows. HZI_EPILOGUE_CODES: it is u8 or s8,
	 * rounded once, with one a_zero; HZI_EPILOGUE_VALUES: it is floats, or s32 sums. A tile is
	 * done in 32 bits if the bias of each of its columns is at most bias_max, so that sums with
	 * it fit, and for codes 33 <= shift <= 53. bounded: min or max, fmin or fmax, is inside the
	 * range of the dtype.
	 */
	int32_t quick, bounded, bias_max;
};

/* wgmma: each block of a cluster has a tile of 128 rows by a kernel's columns. */
struct hzi_qgemm_wgmma {
	struct hzi_tensor_map a;	/* k x m */
	const uint8_t *b;
	struct hzi_qgemm_out out;
	int32_t width;			/* columns of packed B */
	int32_t blocks;			/* of k */
	int32_t tiles_m, tiles_n;	/* of clusters */
	int32_t band;			/* tiles along m, in which tiles go column by column */
};

/* skinny_splitk: a cluster has 64 columns, each of its blocks a share of k. */
struct hzi_qgemm_skinny {
	struct hzi_tensor_map a;	/* k x m */
	const uint8_t *b;
	struct hzi_qgemm_out out;
	int32_t width, blocks;
	int32_t loose;			/* out.quick holds with any strides, n, and a_zeros */
	int32_t wide;			/* sums over the cluster may exceed 32 bits */
};

/* A linear layer of up to 4 rows of floats, which are whole pieces of 16 bytes */
struct hzi_qlinear_gemv {
	const void *x;
	const uint8_t *b;
	struct hzi_qgemm_out out;	/* without zero points and scales of rows */
	int64_t x_m;			/* bytes from row to row */
	int32_t width, blocks;
	int32_t lanes;			/* a row has 2^lanes threads */
	int32_t x_dtype, q_dtype, symmetric;
	int32_t fixed;			/* scale and zero are given; else those of ranges */
	float scale;
	int32_t zero, pad_;
};

#define HZI_BATCH_DIMS 4

/*
 * mma_sync, and a batch in one launch: items from number first on; a_stride, b_stride and c_stride
 * in bytes. Rows of A are 16-byte aligned.
 */
struct hzi_qgemm_mma_sync {
	const uint8_t *a, *b;
	struct hzi_qgemm_out out;
	int64_t a_m;
	int32_t width, blocks;
	int64_t first;
	int64_t shape[HZI_BATCH_DIMS], a_stride[HZI_BATCH_DIMS], b_stride[HZI_BATCH_DIMS],
		c_stride[HZI_BATCH_DIMS], row_stride[HZI_BATCH_DIMS];
	int32_t ndim, pad_;
};

/* Packs columns of B, or aligns rows of A: lines of k codes. */
struct hzi_qgemm_lines {
	const uint8_t *x;
	uint8_t *y;
	int32_t *sums;			/* of columns, which blocks of k add to; NULL: rows of A */
	int64_t x_line, x_k;		/* strides */
	int64_t y_line;			/* rows: bytes from one to the next, a multiple of 16 */
	int64_t lines, k;
	int64_t width;			/* padded columns */
	int32_t blocks;			/* of k */
	int32_t flip;			/* 0x80: flips sign bits */
	int64_t first, y_item;		/* the first item, and bytes from item to item */
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];
	int32_t ndim, pad_;
};

HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_out) == 216, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_wgmma) == 384, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_skinny) == 384, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qlinear_gemv) == 280, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_mma_sync) == 424, "the same layout for C and CUDA");
HZI_QGEMM_ASSERT(sizeof(struct hzi_qgemm_lines) == 200, "the same layout for C and CUDA");

#endif
