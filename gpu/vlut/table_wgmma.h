/*
 * table_wgmma.h - parameters of codes, or values of f16, by many vectors with wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_TABLE_WGMMA_H
#define HZI_GPU_VLUT_TABLE_WGMMA_H

#include "gpu/vlut/table_s8_skinny.h"

#define HZI_VWG_THREADS 512
#define HZI_VWG_ROWS 256		/* of a tile */
#define HZI_VWG_CHUNK 128		/* of k: 64 bytes of a row's codes, of 4 bits a value */
#define HZI_VWG_MOST 64			/* blocks that find the largest |x| */
#define HZI_VWG_STAGES(columns) ((columns) <= 32 ? 8 : (columns) == 64 ? 6 : 4)
#define HZI_VWG_LINE(columns) ((columns) + 8)	/* of accumulators in shared memory */
/* Where barriers lie: behind the tiles of x, of which `before` bytes come first, and behind sums */
#define HZI_VWG_TILES(columns) (HZI_VWG_STAGES(columns) * (columns) * HZI_VWG_CHUNK * 2)
#define HZI_VWG_SUMS(columns) (HZI_VWG_ROWS * HZI_VWG_LINE(columns) * 4)
#define HZI_VWG_BARRIERS(before, columns) \
	((before) + HZI_VWG_TILES(columns) > HZI_VWG_SUMS(columns) ? \
	 (before) + HZI_VWG_TILES(columns) : HZI_VWG_SUMS(columns))

/* x as f16, or two of them, column by column: vlut_x_most, vlut_x_tiles. */
struct hzi_vlut_x {
	const void *x;
	uint8_t *tiles;		/* [tile of columns][chunk][columns * 128] of f16 */
	/* Of the blocks; behind them 2^i as a product of two, to go back by */
	float *most;
	int64_t x_k, x_b;
	int32_t k, batch, chunks, columns;	/* columns: of a tile */
	int32_t parts, x_dtype;		/* f16 of one x; with 2 the second is 2^11 times */
	int32_t fields, pad_;		/* the order of k that packed fields have */
};

/*
 * A grid of tiles of rows times splits of k, which are a cluster, and of tiles of columns.
 * scale_of: f16, twice, times 2^-something that scale has.
 */
struct hzi_vlut_wgmma {
	const uint8_t *codes, *t, *tiles;
	const float *row_scale, *power;	/* power: of hzi_vlut_x, or NULL */
	const float *column_scale;	/* or NULL */
	void *y;
	int64_t row, t_row, row_scale_step, column_scale_step, y_i, y_b;
	int32_t rows, row_bytes, chunks, batch;
	int32_t parts, y_dtype, q, group_shift;	/* 32 2^shift values share T */
	int32_t split, scales;
	int32_t fields;			/* codes are packed fields: their chunks of a row; else 0 */
	float scale;
	/* -o of coordinate i, of an eight of rows, at 2 i + eight: f16, twice */
	uint32_t minus[8];
	int32_t centred;		/* if that is not 0 */
	uint32_t first[2];
	uint32_t scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VMMA_ENTRIES * 2];
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_x) == 72, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_wgmma) == 2504, "the same layout for C and CUDA");

#endif
