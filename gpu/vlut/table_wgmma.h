/*
 * table_wgmma.h - parameters of GEMM of codes, or of decoded f16 values, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_TABLE_WGMMA_H
#define HZI_GPU_VLUT_TABLE_WGMMA_H

#include "gpu/vlut/table_s8_skinny.h"

#define HZI_VLUT_WGMMA_THREADS 512
#define HZI_VLUT_WGMMA_ROWS 256		/* rows of a tile */
#define HZI_VLUT_WGMMA_CHUNK 128	/* values of k: 64 bytes of 4-bit codes of a row */
#define HZI_VLUT_WGMMA_ABSMAX_BLOCKS 64	/* blocks that find the largest |x| */
#define HZI_VLUT_WGMMA_STAGES(columns) ((columns) <= 32 ? 8 : (columns) == 64 ? 6 : 4)
#define HZI_VLUT_WGMMA_ACC_PITCH(columns) ((columns) + 8)	/* in shared memory */
/*
 * Offset of the barriers: they follow the larger of table_bytes + stages of x, and the
 * accumulators.
 */
#define HZI_VLUT_WGMMA_X_BYTES(columns) \
	(HZI_VLUT_WGMMA_STAGES(columns) * (columns) * HZI_VLUT_WGMMA_CHUNK * 2)
#define HZI_VLUT_WGMMA_ACC_BYTES(columns) \
	(HZI_VLUT_WGMMA_ROWS * HZI_VLUT_WGMMA_ACC_PITCH(columns) * 4)
#define HZI_VLUT_WGMMA_BARRIERS(table_bytes, columns) \
	((table_bytes) + HZI_VLUT_WGMMA_X_BYTES(columns) > HZI_VLUT_WGMMA_ACC_BYTES(columns) ? \
	 (table_bytes) + HZI_VLUT_WGMMA_X_BYTES(columns) : HZI_VLUT_WGMMA_ACC_BYTES(columns))

/* vlut_table_wgmma_x_absmax, vlut_table_wgmma_x_pack: x as one or two f16 terms, by columns */
struct hzi_vlut_x_pack {
	const void *x;
	uint8_t *tiles;		/* [tile of columns][chunk][columns * 128] of f16 */
	/* Of each block; then 2^-shift as a product of two numbers */
	float *absmax;
	int64_t x_k, x_b;
	int32_t k, batch, chunks, columns;	/* columns: of a tile */
	int32_t terms, x_dtype;		/* terms: f16 per x; the second is 2^11 times the rest */
};

/*
 * Grid: row tiles times splits of k, which form a cluster; column tiles. scale_of: f16, twice,
 * divided by a power of two that `scale` contains.
 */
struct hzi_vlut_table_wgmma {
	const uint8_t *codes, *t, *tiles;
	const float *row_scale;
	const float *power;	/* of hzi_vlut_x_pack, or NULL */
	const float *column_scale;	/* or NULL */
	void *y;
	int64_t row, t_row, row_scale_step, column_scale_step, y_i, y_b;
	int32_t rows, row_bytes, chunks, batch;
	int32_t terms, y_dtype, q, group_shift;	/* 32 2^group_shift values share T */
	int32_t split, scales;
	float scale;
	uint32_t first[2];
	uint32_t scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VLUT_S8_ENTRIES * 2];
};

static_assert(sizeof(struct hzi_vlut_x_pack) == 64, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_table_wgmma) == 2464, "the same layout for C and CUDA");

#endif
