/*
 * gemv.h - parameters of GEMV and skinny GEMM of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_GEMM_GEMV_H
#define HZI_GPU_QUAT_GEMM_GEMV_H

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_GEMV_COLUMNS 8	/* of a block; most columns of B of rows and transposed kernels */
#define HZI_GEMV_WIDE_COLUMNS 16	/* of a block of mma16 kernels */
#define HZI_GEMV_WIDE_COLUMNS_MOST 64	/* of B, in slices of 16 */
#define HZI_GEMV_WIDE_THREADS 256
#define HZI_GEMV_THREADS 256	/* of a block of rows and transposed kernels */
#define HZI_GEMV_ROWS 4		/* rows kernels: rows of A per block */
#define HZI_GEMV_PLANAR_ROWS 2	/* planar kernels: rows of A per warp */
#define HZI_GEMV_PLANAR_U(columns) ((columns) > 2 ? 1 : 2)	/* steps of 64 of k at a time */
#define HZI_GEMV_PLANAR_COLUMNS 4	/* most of a block */
#define HZI_GEMV_TRANSPOSED_ROWS 64	/* transposed kernels: rows of A per block */
#define HZI_GEMV_MMA_ROWS 32	/* mma kernels: rows of A per block */
#define HZI_GEMV_MMA_THREADS 512
#define HZI_GEMV_STAGES 3	/* tiles in flight per warp; fewer where shared memory is short */
/* Bytes of a stage's tiles of all warps; the sums of 8 columns take as many. */
#define HZI_GEMV_MMA_BYTES (HZI_GEMV_MMA_THREADS / 32 * HZI_GEMV_MMA_ROWS * HZI_GEMV_COLUMNS * 16)

/*
 * Grid: shares of m (of mma16 kernels: times slices of the columns, which come first), shares of k,
 * items of the batch.
 */
struct hzi_quat_gemv {
	struct hzi_quat_out out;
	struct hzi_quat_matrix a, b;
	float *partial; /* [item][share][n][m] quaternions: sums of shares of k; NULL: one share */
	int64_t first;		/* first item of this launch */
	int32_t k, share;	/* k of a share */
	int32_t shares, stages;
};

/*
 * A is planes of f16, w first, of which g.a.row and g.a.batch are strides. Grid: as above, with
 * slices of the columns.
 */
struct hzi_quat_gemv_planar {
	struct hzi_quat_gemv g;
	int64_t plane, low;	/* pairs from one component to the next, from high to low parts */
	int64_t scales;		/* of lines, behind an item's planes: at this element */
	float factor;		/* of A */
	int32_t parts;		/* warps of a block that share k of the same rows */
	int32_t slices, pad_;
};

static_assert(sizeof(struct hzi_quat_gemv) == 544, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_gemv_planar) == 584, "the same layout for C and CUDA");

#endif
