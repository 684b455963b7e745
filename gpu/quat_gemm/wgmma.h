/*
 * wgmma.h - parameters of the wgmma kernels of quaternion matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 *
 * Operands are planes: real f16 matrices [plane][line][k], where a line is a row of the left or a
 * column of the right factor, scaled by a power of two of its own. Planes, in order:
 *
 *   fast     f0 H4 q (four planes), then f1 times w, x, y, z
 *   direct   w, x, y, z; of the factor that is not packed also -x, -y, -z
 *
 * A split operand has all planes of high parts (the f16 nearest to each number), then those of low
 * parts (the remainder).
 */
#ifndef HZI_GPU_QUAT_GEMM_WGMMA_H
#define HZI_GPU_QUAT_GEMM_WGMMA_H

#include <stdint.h>

#include "gpu/qgemm/qgemm.h"
#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QUAT_WGMMA_ROWS 128	/* of a block; a cluster has 256, two blocks for each half */
#define HZI_QUAT_WGMMA_CLUSTER 4
#define HZI_QUAT_WGMMA_TILE_K 64		/* k of a stage */
#define HZI_QUAT_WGMMA_THREADS 384
#define HZI_QUAT_WGMMA_BAND 4		/* rows of tiles that are traversed column by column */
/* Packing kernels that transpose: a block has LINES lines, TILE of k at a time. */
#define HZI_PACK_PLANAR_LINES 16
#define HZI_PACK_PLANAR_TILE 128
#define HZI_PACK_PLANAR_PARTS 8		/* most blocks of a cluster that transposes lines */
#define HZI_QUAT_WGMMA_PRODUCTS 24	/* most products for two components: 2 * 4 * 3 */

/* Bytes of dynamic shared memory, alignment included: the limit of a block */
#define HZI_QUAT_WGMMA_SHARED_BYTES (227 * 1024)

struct hzi_quat_wgmma {
	/* Lines of planes; for transposed columns, of all planes concatenated */
	struct hzi_tensor_map rows, cols;
	struct hzi_quat_out out;	/* in rows and columns of tiles; c.conj is 0 */
	const float *row_scales, *col_scales;	/* inverse scales of lines; NULL: none */
	int32_t col_lines, pad_;	/* transposed columns: lines (k) of a plane */
	int32_t blocks;			/* of k */
	int32_t tiles_m, tiles_n;	/* tiles of a cluster */
	int32_t band;			/* tiles along m that are traversed column by column */
	int32_t phases, per;	/* phases; products per block of k for each of two accumulators */
	uint32_t flip;			/* 0x80000000: negate x, y, z of results */
	/* Factor of results; exact kernels use out.alpha. */
	float alpha;
	int32_t no_epilogue;		/* C is alpha times the product */
	int32_t pairs;			/* two columns of C are 16 aligned bytes */
	/* [even or odd rank in the cluster][phase]: planes of rows and of columns */
	uint8_t row_plane[2][2][HZI_QUAT_WGMMA_PRODUCTS], col_plane[2][2][HZI_QUAT_WGMMA_PRODUCTS];
};

/* Packs a quaternion matrix as planes. */
struct hzi_quat_planar_f16 {
	struct hzi_quat_matrix x;	/* rows are lines, columns k */
	uint16_t *y;
	float *scales;			/* receives inverse scales of lines */
	const float *k_scales;		/* factors of quaternions at k; NULL: none */
	int64_t lines, k;
	int64_t y_lines, y_k;		/* padded: lines of a plane, elements of a line */
	int32_t planes;			/* 8: fast; 7 or 4: direct */
	int32_t split;
	float f0, f1;
	int32_t parts, pad_;		/* transposed kernels: blocks of a cluster */
	uint16_t *copy;			/* also receives x, w first, as it is; NULL: none */
	int64_t copy_line;		/* elements of its lines */
};

static_assert(sizeof(struct hzi_quat_wgmma) == 832, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_planar_f16) == 192, "the same layout for C and CUDA");

#endif
