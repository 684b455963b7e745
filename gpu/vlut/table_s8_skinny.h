/*
 * table_s8_skinny.h - parameters of rows of codes by few vectors, as s8 on tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_TABLE_S8_SKINNY_H
#define HZI_GPU_VLUT_TABLE_S8_SKINNY_H

#include "gpu/vlut/vlut.h"

#define HZI_VMMA_THREADS 512
#define HZI_VMMA_ROWS 16		/* of a tile */
#define HZI_VMMA_BATCH 8		/* vectors, at most */
#define HZI_VMMA_ENTRIES 256
#define HZI_VMMA_TABLE 1024		/* where the tables lie in shared memory */
#define HZI_VMMA_TABLE_BYTES 65536
#define HZI_VMMA_WIDE_BYTES (3 << 16)
#define HZI_VMMA_SCALES_BYTES 8192
#define HZI_VMMA_CHUNK_BYTES 64		/* of a row's codes: what a warp takes at a time */

/*
 * Rows of codes are 16-byte pieces, all levels of a lattice block together. A grid of splits of k
 * (a cluster, if there are several) and of shares of the tiles of rows.
 *
 * leaders: of each code the integers plus `lowest`, a byte each, in `words` words. The point of
 * codes c_0 .. c_{M-1} is ((l(c_{M-1}) q + l(c_{M-2})) q + ...) + l(c_0) + first, byte by byte,
 * which is p - o + 128: no partial sum leaves a byte.
 */
struct hzi_vlut_mma {
	const uint8_t *codes, *t;
	const void *wide;		/* the leaders of E8 with q = 4, see lib/vlut/vlut.c */
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row, t_row, row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, k, chunks, batch;
	int32_t x_dtype, y_dtype, q, group_log2;	/* values that share T, or -1 */
	int32_t split, round, scales, row_bytes;	/* round: tiles whose sums a block keeps */
	float scale;
	uint32_t first[2];
	float scale_of[HZI_LATTICE_SCALES];
	uint32_t leaders[HZI_VMMA_ENTRIES * 2];
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_mma) == 2472, "the same layout for C and CUDA");

#endif
