/*
 * qgemm.h - packed layout and kernel parameters of quantized matrix multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Packed B, HZI_QGEMM_LAYOUT_CUDA, is K-major: blocks of 128 bytes of k, each of all columns. A
 * column is a packed row of 128 bytes; 8 rows are 1024 bytes in the 128-byte swizzle of wgmma and
 * TMA: chunk c of 16 bytes of row r is at c xor r % 8. Columns are permuted within groups of 64:
 * column 16 q + 2 j + e is row 8 j + 2 q + e. The accumulators of a thread are rows 2 q + e of each
 * group of 8 rows, so it gets 16 successive columns. Codes of s8 are stored with the sign bit
 * flipped, as u8 with a zero point larger by 128; the column sums are those of the stored codes.
 */
#ifndef HZI_GPU_QGEMM_H
#define HZI_GPU_QGEMM_H

#include <assert.h>
#include <stdint.h>

#include "gpu/runtime/tensor_map.h"
#include "hurwitz.h"

#define HZI_QGEMM_K_BLOCK 128	/* bytes of k in a block, and of a row in it */
#define HZI_QGEMM_N_GROUP 64	/* columns that are permuted among each other */
#define HZI_WGMMA_ROWS 128	/* rows of A in a tile */
#define HZI_WGMMA_ONES 16		/* columns of ones beside 64: see wgmma.cu */
#define HZI_WGMMA_THREADS 384	/* two consumer warpgroups and one for the other roles */
#define HZI_SKINNY_COLUMNS 64	/* columns of a cluster */
#define HZI_SKINNY_ROWS 64		/* most rows of a block */
#define HZI_SKINNY_THREADS 384	/* a consumer warpgroup and eight warps for the other roles */
#define HZI_SKINNY_BLOCKS 8		/* of a cluster, at most */
#define HZI_SKINNY_STAGES_8 8
#define HZI_SKINNY_STAGES_16 8
#define HZI_SKINNY_STAGES_32 6
#define HZI_SKINNY_STAGES_64 6
#define HZI_LINEAR_ROWS 4	/* most rows in one launch with a given scale */
#define HZI_LINEAR_DYNAMIC_ROWS 2	/* most rows with scales from their ranges */
#define HZI_LINEAR_COLUMNS 32	/* of a block */
#define HZI_LINEAR_THREADS 512
#define HZI_LINEAR_BLOCKS 32	/* most blocks of k: what the registers of a block hold */
#define HZI_LINEAR_PITCH (HZI_LINEAR_BLOCKS * HZI_QGEMM_K_BLOCK + 64) /* against bank conflicts */
#define HZI_SKINNY_PITCH 68	/* words of slots per row of 64 accumulators */
#define HZI_MMA_SYNC_ROWS 128	/* rows of a block; half with 64-bit sums */
#define HZI_MMA_SYNC_COLUMNS 128
#define HZI_MMA_SYNC_STAGES 3
#define HZI_QGEMM_STAGE_PITCH 68	/* words per row: 64 accumulators and terms of the row */
#define HZI_EPILOGUE_CODES 1
#define HZI_EPILOGUE_VALUES 2

/* Upper bounds of the shared memory in bytes */
#define HZI_WGMMA_BYTES(columns, stages) \
	((stages) * HZI_QGEMM_K_BLOCK * \
		 (HZI_WGMMA_ROWS + (columns) + ((columns) == 64 ? HZI_WGMMA_ONES : 0)) + \
	 2 * (20 * (columns) + 4 * HZI_WGMMA_ROWS) + 4 * 64 * HZI_QGEMM_STAGE_PITCH + \
	 16 * (stages) + 64)
#define HZI_SKINNY_BYTES(rows, stages) \
	((stages) * (HZI_SKINNY_COLUMNS + (rows)) * HZI_QGEMM_K_BLOCK + 20 * HZI_SKINNY_COLUMNS + \
	 4 * (rows) * (HZI_SKINNY_PITCH + HZI_SKINNY_BLOCKS) + 16 * (stages) + 16)

/* The epilogue of one matrix, from accumulators to C: see struct hzi_qgemm_args */
struct hzi_qgemm_out {
	void *c;
	const int32_t *b_sums;		/* column sums of the stored codes */
	const void *bias;
	const uint8_t *a_zeros, *b_zeros;	/* NULL: a_zero, b_zero */
	const int32_t *multipliers, *shifts;
	const float *a_scales, *b_scales;
	int64_t c_m, c_n;
	int64_t zero_row, scale_row;	/* indices of row 0 in a_zeros and a_scales */
	int32_t zero_step, scale_step, b_scale_step;
	int32_t m, n, k;
	int32_t c_dtype, bias_dtype;
	int32_t a_signed, b_signed;	/* zero points are s8, not u8 */
	int32_t a_zero, b_zero, c_zero;	/* b_zero: that of the stored codes */
	int32_t u, shift, requant, identity;
	int32_t min, max;
	float fmin, fmax;
	float a_scale, b_scale, c_scale;
	int32_t a_sums;			/* the row sums of A are needed */
	/*
	 * fast_path: C has contiguous, 16-byte aligned rows. HZI_EPILOGUE_CODES: C is u8 or s8,
	 * rounded once, with one a_zero. HZI_EPILOGUE_VALUES: C is floats, or s32 sums. A tile is
	 * computed in 32 bits if the bias of each of its columns is at most bias_max, so that sums
	 * with bias fit, and for codes if 33 <= shift <= 53. bounded: min or max, or fmin or fmax,
	 * is tighter than the range of the dtype.
	 */
	int32_t fast_path, bounded, bias_max;
};
static_assert(sizeof(struct hzi_qgemm_out) == 216, "the same layout for C and CUDA");

/* wgmma: each block of a cluster computes tiles of 128 rows by the columns of the kernel. */
struct hzi_qgemm_wgmma {
	struct hzi_tensor_map a;	/* k x m */
	const uint8_t *b;
	struct hzi_qgemm_out out;
	const int32_t *row_sums;	/* of A; NULL: the kernel adds them up if out.a_sums */
	int32_t width;			/* columns of packed B */
	int32_t blocks;			/* of k */
	int32_t tiles_m, tiles_n;	/* numbers of cluster tiles */
	int32_t band;			/* tiles along m per band; bands go column by column */
};
static_assert(sizeof(struct hzi_qgemm_wgmma) == 384, "the same layout for C and CUDA");

/* skinny_splitk: a cluster computes 64 columns; each of its blocks has a share of k. */
struct hzi_qgemm_skinny {
	struct hzi_tensor_map a;	/* k x m */
	const uint8_t *b;
	struct hzi_qgemm_out out;
	int32_t width, blocks;
	int32_t any_strides;		/* out.fast_path applies with any strides, n and a_zeros */
	int32_t sum64;			/* sums over the cluster may exceed 32 bits */
};
static_assert(sizeof(struct hzi_qgemm_skinny) == 384, "the same layout for C and CUDA");

/* A linear layer of up to 4 rows of floats, each a whole number of 16-byte vectors */
struct hzi_qlinear_gemv {
	const void *x;
	const uint8_t *b;
	struct hzi_qgemm_out out;	/* without zero points and scales per row */
	int64_t x_m;			/* row stride in bytes */
	int32_t width, blocks;
	int32_t log_threads;		/* log2 of the threads of a row */
	int32_t x_dtype, q_dtype, symmetric;
	int32_t fixed;			/* scale and zero are given, not those of a range */
	float scale;
	int32_t zero, pad_;
};
static_assert(sizeof(struct hzi_qlinear_gemv) == 280, "the same layout for C and CUDA");

#define HZI_QGEMM_BATCH_DIMS 4

/*
 * mma_sync, and a batch in one launch: items from `first` on; a_stride, b_stride and c_stride in
 * bytes. Rows of A are 16-byte aligned.
 */
struct hzi_qgemm_mma_sync {
	const uint8_t *a, *b;
	struct hzi_qgemm_out out;
	int64_t a_m;
	int32_t width, blocks;
	int64_t first;
	int64_t shape[HZI_QGEMM_BATCH_DIMS], a_stride[HZI_QGEMM_BATCH_DIMS],
	b_stride[HZI_QGEMM_BATCH_DIMS],
		c_stride[HZI_QGEMM_BATCH_DIMS], row_stride[HZI_QGEMM_BATCH_DIMS];
	int32_t ndim, pad_;
};
static_assert(sizeof(struct hzi_qgemm_mma_sync) == 424, "the same layout for C and CUDA");

/* Packs columns of B, or aligns rows of A. Both become rows of k codes. */
struct hzi_qgemm_pack_rows {
	const uint8_t *x;
	uint8_t *y;
	int32_t *sums;			/* column sums, added over blocks of k; NULL: rows of A */
	int64_t x_row, x_k;		/* strides */
	int64_t y_row;			/* rows of A: bytes from row to row, a multiple of 16 */
	int64_t rows, k;
	int64_t width;			/* padded columns */
	int32_t blocks;			/* of k */
	int32_t flip;			/* 0x80 to flip sign bits, or 0 */
	int64_t first, y_item;		/* first item; bytes from item to item */
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];
	int32_t ndim, pad_;
};
static_assert(sizeof(struct hzi_qgemm_pack_rows) == 200, "the same layout for C and CUDA");

#endif
