/*
 * table_f16_skinny.h - parameters of rows of codes by up to 8 vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_TABLE_F16_SKINNY_H
#define HZI_GPU_VLUT_TABLE_F16_SKINNY_H

#include "gpu/vlut/table_s8_skinny.h"

#define HZI_VHALF_ROWS 32		/* of a tile */

/*
 * A grid of shares of the tiles. A lane takes pieces of 16 bytes of a row's codes; 2^t_shift bytes
 * of T are for one of them, or one byte for 2^-t_shift. scale_of: f16, twice, times 2^-something
 * that scale has.
 */
struct hzi_vlut_half {
	const uint8_t *codes, *t;
	const void *words;		/* of codes of 16 bits, struct hz_vlut's; or NULL */
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row, t_row, row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, row_bytes, k, chunks, batch;
	int32_t y_dtype, q, t_shift, entries;	/* entries: leaders at words */
	int32_t round, scales;			/* round: tiles whose sums a block keeps */
	int32_t rows_of_x;			/* 8 columns of x are 16 aligned bytes */
	uint32_t per_entry;			/* 2^32 / entries, rounded up */
	uint32_t per_q;				/* 2^32 / q, rounded down */
	int32_t log2q;				/* -1: q is no power of two */
	float radix[4];				/* struct near_radix */
	uint32_t q16;				/* q as f16, twice */
	uint32_t minus, unit;			/* of codes of two levels, see fill_pairs() */
	float scale;
	uint32_t first[2];
	float offset[8];
	uint32_t scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VMMA_ENTRIES * 2];
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_half) == 2544, "the same layout for C and CUDA");

#endif
