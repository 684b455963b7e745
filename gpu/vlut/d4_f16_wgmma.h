/*
 * d4_f16_wgmma.h - parameters of packed D4 times f16 with 9 and more columns, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_F16_WGMMA_H
#define HZI_GPU_VLUT_D4_F16_WGMMA_H

#include "gpu/runtime/tensor_map.h"
#include "gpu/vlut/d4_bitfield.h"

#define HZI_VLUT_D4_WGMMA_CHUNK (2 * HZI_VLUT_D4_CHUNK)	/* values of k */
#define HZI_VLUT_D4_WGMMA_SPLIT 8		/* blocks of a cluster, at most */

/*
 * Grid: row tiles times the splits of k, which form a cluster; column tiles. TMA maps are 3-D: x
 * has rows of k at distance 8 as the second dimension, codes have 128-byte lines of a tile of 16
 * rows.
 */
struct hzi_vlut_d4_f16_wgmma {
	struct hzi_tensor_map x, codes;
	const float *row_scale;
	void *y;
	int64_t row_scale_step, y_i, y_b;
	int32_t rows, chunks, batch, y_dtype, split;
	int32_t has_offset;		/* o is not 0 */
	/* f16, twice, of coordinate i: -17 o at 2 i (rows g), -16 o at 2 i + 1 (rows g + 8) */
	uint32_t minus_offset[8];
	float scale;
	int32_t y_vectorized;		/* y is f16, and four columns are 8 aligned bytes */
	int32_t rows_first;		/* of y are contiguous, not columns */
	int32_t pad_[3];
};

static_assert(sizeof(struct hzi_vlut_d4_f16_wgmma) == 384, "the same layout for C and CUDA");

/* vlut_d4_x: x of any strides as rows of k, `pitch` columns each, those beyond `batch` 0 */
#define HZI_VLUT_D4_X_TILE 64		/* k and columns of a block */
#define HZI_VLUT_D4_X_THREADS 256

struct hzi_vlut_d4_x {
	const uint16_t *x;
	uint16_t *rows;
	int64_t x_k, x_b, pitch;
	int32_t k, batch;
};

static_assert(sizeof(struct hzi_vlut_d4_x) == 48, "the same layout for C and CUDA");

/*
 * Tile of a kernel: columns; groups of 64 rows that a warpgroup processes one after another;
 * warpgroups along the rows; warpgroups along k; stages of one chunk in shared memory; registers of
 * a consumer (0: no setmaxnreg).
 */
#define HZI_VLUT_D4_WGMMA_64X16 16, 1, 1, 4, 16, 0
#define HZI_VLUT_D4_WGMMA_128X16 16, 2, 1, 4, 12, 0
#define HZI_VLUT_D4_WGMMA_192X16 16, 3, 1, 4, 12, 0
#define HZI_VLUT_D4_WGMMA_64X32 32, 1, 1, 4, 12, 0
#define HZI_VLUT_D4_WGMMA_128X32 32, 2, 1, 4, 12, 0
#define HZI_VLUT_D4_WGMMA_192X32 32, 3, 1, 4, 9, 112
#define HZI_VLUT_D4_WGMMA_64X64 64, 1, 1, 4, 9, 0
#define HZI_VLUT_D4_WGMMA_128X64 64, 2, 1, 3, 7, 152
#define HZI_VLUT_D4_WGMMA_192X64 64, 3, 1, 2, 7, 216
#define HZI_VLUT_D4_WGMMA_64X128 128, 1, 1, 3, 6, 152
#define HZI_VLUT_D4_WGMMA_128X128 128, 1, 2, 1, 5, 216
#define HZI_VLUT_D4_WGMMA_192X128 128, 1, 3, 1, 4, 152
#define HZI_VLUT_D4_WGMMA_128X256 256, 1, 2, 1, 3, 216

#define HZI_VLUT_D4_WGMMA_ROWS(row_groups, warpgroups) (64 * (row_groups) * (warpgroups))
#define HZI_VLUT_D4_WGMMA_THREADS(warpgroups, k_warpgroups, registers) \
	((warpgroups) * (k_warpgroups) * 128 + ((registers) ? 128 : 32))
#define HZI_VLUT_D4_WGMMA_STAGE(columns, row_groups, warpgroups) \
	(HZI_VLUT_D4_WGMMA_CHUNK * (columns)*2 + \
	 4 * (row_groups) * (warpgroups)*2 * HZI_VLUT_D4_BYTES)
/* Barriers of loads: as many for each warpgroup along k; bytes of stages and their barriers */
#define HZI_VLUT_D4_WGMMA_LOADS(k_warpgroups, stages) \
	(((stages) + (k_warpgroups) - 1) / (k_warpgroups) * (k_warpgroups))
#define HZI_VLUT_D4_WGMMA_RING(columns, row_groups, warpgroups, k_warpgroups, stages) \
	((stages) * (HZI_VLUT_D4_WGMMA_STAGE(columns, row_groups, warpgroups) + 8) + \
	 8 * HZI_VLUT_D4_WGMMA_LOADS(k_warpgroups, stages))
/* Accumulators of one warpgroup along k: rows of columns + 4, against bank conflicts */
#define HZI_VLUT_D4_WGMMA_ACC(columns, row_groups, warpgroups) \
	(HZI_VLUT_D4_WGMMA_ROWS(row_groups, warpgroups) * ((columns) + 4) * 4)

#endif
