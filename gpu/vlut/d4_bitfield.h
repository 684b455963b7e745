/*
 * d4_bitfield.h - packed D4 with q = 4: the layout, parameters of packing, decoding and products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_BITFIELD_H
#define HZI_GPU_VLUT_D4_BITFIELD_H

#include "gpu/vlut/vlut.h"

#define HZI_VLUT_D4_THREADS 512
#define HZI_VLUT_D4_ROWS 16		/* rows of a tile */
#define HZI_VLUT_D4_CHUNK 64		/* values of k: 512 bytes of a tile */
#define HZI_VLUT_D4_BYTES 512
#define HZI_VLUT_D4_COLUMNS 8		/* columns of x per launch, at most */
/* Chunks of a warp that are in shared memory or in flight: an even number */
#define HZI_VLUT_D4_STAGES 8
#define HZI_VLUT_D4_STAGES_BYTES (HZI_VLUT_D4_STAGES * HZI_VLUT_D4_BYTES * HZI_VLUT_D4_THREADS / 32)

/*
 * Layout of packed D4: [tile of 16 rows][chunk of k][lane 4 g + t] of 16 bytes, which are words i =
 * 0 .. 3 of d4_bitfield.cuh. Nibble 2 j + h of a word is lattice block 16 chunk + 4 t + j of row 16
 * tile + 8 h + g.
 */
struct hzi_vlut_d4_pack {
	struct hzi_vlut_bit_pack of;
	uint32_t leaders[256];		/* four s8 coordinates each */
};

/* Decodes packed codes to p - o as s8, rows `pitch` bytes apart. */
struct hzi_vlut_d4_points {
	const uint8_t *packed;
	uint8_t *dst;
	int64_t rows, blocks, tiles, chunks, pitch;
	uint32_t minus, pad_;		/* minus: o, four s8 */
};

/*
 * Grid: shares of the row tiles, times the splits of k, which form a cluster. slots: the most tiles
 * that one warp has chunks of.
 */
struct hzi_vlut_d4_bitfield {
	HZI_VLUT_PRODUCT_MEMBERS
	int32_t chunks, batch, batch_log2;	/* log2 of batch, rounded up */
	int32_t tiles_each, tiles_more;	/* tiles per share; this many shares have one more */
	int32_t x_dtype, y_dtype, split_log2, slots;
	int32_t offset[4], has_offset;	/* o; has_offset: o is not 0 */
	int32_t x_vectorized;		/* f16, aligned; 1 contiguous or 8 row-major columns */
	float scale;
};

static_assert(sizeof(struct hzi_vlut_d4_pack) == 1104, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_d4_bitfield) == 144, "the same layout for C and CUDA");

#endif
