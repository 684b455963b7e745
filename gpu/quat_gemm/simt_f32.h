/*
 * simt_f32.h - parameters of the products of quaternion matrices in f32 multiply-adds
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both operands are put in planes first: strips of 64 rows of A, or columns of B, and of these the
 * two halves, the chunks of 16 k, the four planes of a half, 16 k of 64 floats. A chunk of a strip
 * is 16 KiB in one piece. Strips and chunks that are not full are filled with zeros.
 */
#ifndef HZI_GPU_QUAT_SIMT_H
#define HZI_GPU_QUAT_SIMT_H

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_SIMT_STRIP 64
#define HZI_SIMT_CHUNK 16
#define HZI_SIMT_THREADS 256
#define HZI_SIMT_STAGES 2
#define HZI_SIMT_BYTES(halves) \
	(HZI_SIMT_STAGES * (((halves) == 2 ? 16384 : 4096) + 16384 + 8) + 32768)

/* Floats of the planes of a matrix of that many rows (of A; columns of B) and k. */
#define HZI_SIMT_FLOATS(rows, k, halves) \
	((int64_t)(halves) * 4 * HZI_SIMT_STRIP * HZI_SIMT_CHUNK * \
	 (((rows) + HZI_SIMT_STRIP - 1) / HZI_SIMT_STRIP) * \
	 (((k) + HZI_SIMT_CHUNK - 1) / HZI_SIMT_CHUNK))

/* A matrix to be put in planes. from: planes, as of A, to be read instead of x. */
struct hzi_quat_planes {
	struct hzi_quat_matrix x;	/* element (i, l) at i * row + l * col: i < rows, l < k */
	float *planes;
	int64_t item;			/* floats of the planes of one item of the batch */
	int64_t first;			/* item of the batch */
	int64_t shape[HZI_QUAT_BATCH];
	int32_t rows, k;
	int32_t chunks;
	int32_t halves;			/* 1: the components; 2: see quat_simt.cu */
	int32_t left;			/* A's planes, or B's */
	int32_t turned;			/* from holds the transpose */
	const float *from;		/* x has conj and batch alone, in floats */
	int32_t from_chunks;
	int32_t blocks, items;		/* strips * chunks, and items of the batch: of a grid */
	int32_t pad_;
};

/* What one launch does, of A and B: a grid of all blocks by the larger number of items. */
struct hzi_quat_planes_both {
	struct hzi_quat_planes x[2];
};

struct hzi_quat_simt {
	struct hzi_quat_out out;
	const float *a, *b;		/* planes */
	int64_t a_item, b_item;		/* floats from one item of the launch to the next */
	int64_t a_batch[HZI_QUAT_BATCH];	/* and of a packed batch */
	int64_t first;			/* item of the batch */
	int32_t chunks;			/* of k */
	int32_t tiles_m, tiles_n;
	int32_t band;			/* tiles along m that are done column by column */
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_planes) == 192, "the same layout for C and CUDA");
HZI_QUAT_ASSERT(sizeof(struct hzi_quat_simt) == 400, "the same layout for C and CUDA");

#endif
