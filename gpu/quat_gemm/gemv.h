/*
 * gemv.h - parameters of the products of a quaternion matrix by few columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_GEMV_H
#define HZI_GPU_QUAT_GEMV_H

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_GEMV_COLUMNS 8	/* of B, at most */
#define HZI_GEMV_THREADS 256	/* multiply-adds: of a block */
#define HZI_GEMV_ROWS 4		/* rows of A that lie along k: of a block */
#define HZI_GEMV_LINE 64	/* rows of A that lie side by side: of a block */
#define HZI_GEMV_MMA_ROWS 32	/* matrix units: rows and threads of a block */
#define HZI_GEMV_MMA_THREADS 512
#define HZI_GEMV_STAGES 3	/* tiles of a warp under way, or fewer for want of shared memory */
/* Of the tiles of a stage, of all warps; the sums of 8 columns are as many. */
#define HZI_GEMV_MMA_BYTES (HZI_GEMV_MMA_THREADS / 32 * HZI_GEMV_MMA_ROWS * HZI_GEMV_COLUMNS * 16)

/* A grid of shares of m, shares of k, and items of the batch. */
struct hzi_quat_gemv {
	struct hzi_quat_out out;
	struct hzi_quat_matrix a, b;
	float *partial;		/* sums of shares: [item][share][n][m] quaternions; NULL: one */
	int64_t first;		/* item of the batch */
	int32_t k, share;	/* of k in a share */
	int32_t shares, stages;
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_gemv) == 544, "the same layout for C and CUDA");

#endif
