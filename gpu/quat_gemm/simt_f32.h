/*
 * simt_f32.h - parameters of quaternion matrix products by f32 multiply-adds
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both operands are f32 planes, padded with 0: [strip of 64 rows of A or columns of B][half][chunk
 * of 16 k][4 planes][16 k][64]. A chunk of a strip is 16 KiB of contiguous memory.
 */
#ifndef HZI_GPU_QUAT_GEMM_SIMT_F32_H
#define HZI_GPU_QUAT_GEMM_SIMT_F32_H

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_SIMT_STRIP 64
#define HZI_SIMT_CHUNK 16
#define HZI_SIMT_THREADS 256
#define HZI_SIMT_STAGES 2
#define HZI_SIMT_BYTES(halves) \
	(HZI_SIMT_STAGES * (((halves) == 2 ? 16384 : 4096) + 16384 + 8) + 32768)

/* Floats of the planes of a matrix of rows of A, or columns of B */
#define HZI_SIMT_FLOATS(rows, k, halves) \
	((int64_t)(halves) * 4 * HZI_SIMT_STRIP * HZI_SIMT_CHUNK * \
	 (((rows) + HZI_SIMT_STRIP - 1) / HZI_SIMT_STRIP) * \
	 (((k) + HZI_SIMT_CHUNK - 1) / HZI_SIMT_CHUNK))

/* A matrix to pack as planes; from: f32 planes of A to read instead of x */
struct hzi_quat_planar_f32 {
	struct hzi_quat_matrix x;	/* element (i, l) at i * row + l * col, i < rows, l < k */
	float *planes;
	int64_t item;			/* floats of the planes of an item */
	int64_t first;			/* item of the batch */
	int64_t shape[HZI_QUAT_BATCH];
	int32_t rows, k;
	int32_t chunks;
	int32_t halves; /* 1: components; 2: both operands of the fast method, see simt_f32.cu */
	int32_t left;			/* planes of A, not of B */
	int32_t transposed;			/* `from` holds the transpose */
	const float *from;		/* then x gives conj and batch strides, in floats */
	int32_t from_chunks;
	int32_t blocks, items;		/* of a grid: strips * chunks, and items */
	int32_t pad_;
};

/* One launch for A and B: all blocks by the larger number of items */
struct hzi_quat_planar_f32_pair {
	struct hzi_quat_planar_f32 x[2];
};

struct hzi_quat_simt {
	struct hzi_quat_out out;
	const float *a, *b;		/* planes */
	int64_t a_item, b_item;		/* floats between items of a launch */
	int64_t a_batch[HZI_QUAT_BATCH];	/* of a packed batch */
	int64_t first;			/* item of the batch */
	int32_t chunks;			/* of k */
	int32_t tiles_m, tiles_n;
	int32_t band;			/* tiles along m that are traversed column by column */
};

static_assert(sizeof(struct hzi_quat_planar_f32) == 192, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_simt) == 400, "the same layout for C and CUDA");

#endif
