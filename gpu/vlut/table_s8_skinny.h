/*
 * table_s8_skinny.h - parameters of skinny GEMM of rows of codes, as s8 on tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_TABLE_S8_SKINNY_H
#define HZI_GPU_VLUT_TABLE_S8_SKINNY_H

#include "gpu/vlut/vlut.h"

#define HZI_VLUT_S8_THREADS 512
#define HZI_VLUT_S8_ROWS 16		/* rows of a tile */
#define HZI_VLUT_S8_COLUMNS 8		/* columns of x per launch, at most */
#define HZI_VLUT_S8_ENTRIES 256
#define HZI_VLUT_S8_TABLE 1024		/* shared address of the tables */
#define HZI_VLUT_S8_TABLE_BYTES 65536
#define HZI_VLUT_S8_E8Q4_BYTES (3 << 16)
#define HZI_VLUT_S8_SCALES_BYTES 8192
#define HZI_VLUT_S8_CHUNK_BYTES 64		/* of a row's codes, per warp */

/*
 * Rows of codes are 16-byte pieces, the levels of a lattice block contiguous. Grid: splits of k,
 * which form a cluster, times shares of the row tiles.
 *
 * leaders: for each code its coordinates minus the lowest one, one byte each, in `words` words. The
 * point of codes c_0 .. c_{M-1} is ((l(c_{M-1}) q + l(c_{M-2})) q + ...) + l(c_0) + first, byte by
 * byte, which is p - o + 128: no partial sum overflows a byte.
 */
struct hzi_vlut_table_s8_skinny {
	const uint8_t *codes, *t;
	const void *e8q4;		/* leaders of E8 with q = 4, see lib/vlut/vlut.c */
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row, t_row, row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, k, chunks, batch;
	int32_t x_dtype, y_dtype, q, group_log2;	/* log2 of the values that share T, or -1 */
	int32_t split, pass_tiles, scales, row_bytes;	/* pass_tiles: tiles whose sums fit */
	float scale;
	uint32_t first[2];
	float scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VLUT_S8_ENTRIES * 2];
};

static_assert(sizeof(struct hzi_vlut_table_s8_skinny) == 2472, "the same layout for C and CUDA");

#endif
