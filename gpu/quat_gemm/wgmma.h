/*
 * wgmma.h - parameters of the kernels of quaternion products on Hopper's matrix units
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Operands come as planes: real matrices of f16, [plane][line][k], where a line is a row of the
 * left or a column of the right quaternion matrix, scaled by a power of two of its own. In order:
 *
 *   fast     f0 H4 q (four planes), then f1 times w, x, y, z
 *   direct   w, x, y, z; for the operand that is not packed then -x, -y, -z
 *
 * With a split, all planes of what f16 holds of the numbers come first, and those of the rest
 * follow.
 */
#ifndef HZI_GPU_QUAT_TMA_H
#define HZI_GPU_QUAT_TMA_H

#include <stdint.h>

#include "gpu/qgemm/qgemm.h"
#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QT_ROWS 128		/* of a block; a cluster has two below each other, each twice */
#define HZI_QT_CLUSTER 4
#define HZI_QT_BLOCK 64		/* of k */
#define HZI_QT_THREADS 384
#define HZI_QT_BAND 4		/* tiles of a cluster along rows, that are done column by column */
#define HZI_QP_LINES 16		/* of blocks that turn lines, by so many of k at a time */
#define HZI_QP_TILE 128
#define HZI_QP_PARTS 8		/* blocks of a cluster that turns lines, at most */
#define HZI_QT_PRODUCTS 24	/* for two components, at most: 2 * 4 * 3 */

/* Bytes of shared memory, with what aligns them: as much as a block may have. */
#define HZI_QT_BYTES (227 * 1024)

struct hzi_quat_tma {
	/* Planes of lines; of cols_across planes below each other */
	struct hzi_tensor_map rows, cols;
	struct hzi_quat_out out;	/* of rows and columns of tiles; c.conj is 0 */
	const float *row_scales, *col_scales;	/* what undoes the scales of lines; NULL: nothing */
	int32_t col_lines, pad_;	/* cols_across: lines of k from a plane to the next */
	int32_t blocks;			/* of k */
	int32_t tiles_m, tiles_n;	/* of clusters */
	int32_t band;			/* tiles along m that are done column by column */
	int32_t phases, per;		/* products for each of two sums and block of k */
	uint32_t flip;			/* 0x80000000: x, y and z of sums are to be negated */
	/* Sums are multiplied by it; out.alpha is for exact kernels */
	float alpha;
	int32_t plain;			/* sums times alpha are what C gets */
	int32_t pairs;			/* two columns of C are 16 aligned bytes */
	/* [blocks of even, odd rank][phase]: planes of rows and of columns */
	uint8_t row_plane[2][2][HZI_QT_PRODUCTS], col_plane[2][2][HZI_QT_PRODUCTS];
};

/* A matrix of quaternions to planes. */
struct hzi_quat_planes {
	struct hzi_quat_matrix x;	/* rows are lines, columns k */
	uint16_t *y;
	float *scales;			/* gets what undoes a line's scale */
	const float *k_scales;		/* NULL: none; quaternions at k are multiplied by it */
	int64_t lines, k;
	int64_t y_lines, y_k;		/* with padding: lines of a plane, and elements of a line */
	int32_t planes;			/* 8: fast; 7 and 4: direct */
	int32_t split;
	float f0, f1;
	int32_t parts, pad_;		/* _across: blocks of a cluster */
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_tma) == 832, "the same layout for C and CUDA");
HZI_QUAT_ASSERT(sizeof(struct hzi_quat_planes) == 176, "the same layout for C and CUDA");

#endif
