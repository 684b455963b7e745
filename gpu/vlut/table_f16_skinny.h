/*
 * table_f16_skinny.h - parameters of skinny GEMM of rows of codes and up to 8 columns of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_TABLE_F16_SKINNY_H
#define HZI_GPU_VLUT_TABLE_F16_SKINNY_H

#include "gpu/vlut/table_s8_skinny.h"

#define HZI_VLUT_TABLE_F16_ROWS 32		/* rows of a tile */

/*
 * Grid: shares of the row tiles. A lane loads 16-byte pieces of a row's codes. A piece has
 * 2^t_shift bytes of T; if t_shift < 0, 2^-t_shift pieces share one. scale_of: f16, twice, divided
 * by a power of two that `scale` contains.
 */
struct hzi_vlut_table_f16_skinny {
	const uint8_t *codes, *t;
	const void *words;		/* leaders of 16-bit codes, from struct hz_vlut; or NULL */
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row, t_row, row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, row_bytes, k, chunks, batch;
	int32_t y_dtype, q, t_shift, entries;	/* entries: leaders in `words` */
	int32_t pass_tiles, scales;			/* pass_tiles: tiles whose sums fit */
	int32_t x_row_major;			/* 8 columns of x are 16 aligned bytes */
	uint32_t per_entry;			/* 2^32 / entries, rounded up */
	uint32_t per_q;				/* 2^32 / q, rounded down */
	int32_t log2q;				/* -1: q is no power of two */
	float radix[4];				/* struct radix_constants */
	uint32_t q16;				/* q as f16, twice */
	uint32_t minus_offset, unit;		/* of codes with two levels, see fill_pairs() */
	float scale;
	uint32_t first[2];
	float offset[8];
	uint32_t scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VLUT_S8_ENTRIES * 2];
};

static_assert(sizeof(struct hzi_vlut_table_f16_skinny) == 2544, "the same layout for C and CUDA");

#endif
