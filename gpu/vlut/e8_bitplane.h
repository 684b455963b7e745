/*
 * e8_bitplane.h - packed E8 with q = 4: the layout, parameters of packing, decoding and products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_E8_BITPLANE_H
#define HZI_GPU_VLUT_E8_BITPLANE_H

#include "gpu/vlut/vlut.h"

#define HZI_VLUT_E8_THREADS 256
#define HZI_VLUT_E8_ROWS 16		/* rows of a tile */
#define HZI_VLUT_E8_UNIT 1024		/* values of k: 4096 bytes of a tile and level */
#define HZI_VLUT_E8_UNIT_BYTES 4096
#define HZI_VLUT_E8_STAGES 2		/* units of a warp in shared memory or in flight */
#define HZI_VLUT_E8_COLUMNS 2		/* columns per launch */
#define HZI_VLUT_E8_X_BITS 24		/* bits of x: columns of the mma */
#define HZI_VLUT_E8_ZERO_BITS 5		/* columns of zeros before them */
#define HZI_VLUT_E8_TILES 64		/* of a block, at most */
/*
 * Shared memory: x of a unit and accumulators of a tile, for one column of x; and what does not
 * depend on these
 */
#define HZI_VLUT_E8_X_BYTES (32 * (HZI_VLUT_E8_X_BITS + HZI_VLUT_E8_ZERO_BITS) * 4)
#define HZI_VLUT_E8_ACC_BYTES (HZI_VLUT_E8_ROWS * 3 * 4)
#define HZI_VLUT_E8_FIXED_BYTES \
	(32 + HZI_VLUT_E8_THREADS / 32 * HZI_VLUT_E8_STAGES * HZI_VLUT_E8_UNIT_BYTES)
#define HZI_VLUT_E8_UNITS 40		/* of a row, at most, so that one column of x fits */

/*
 * Layout of packed E8: [tile of 16 rows][unit of k][level][word of a lane / 4][lane 4 g + t] of 16
 * bytes. The first 16 words of a lane, the bit-planes of e8_bitplane.cuh, are of row 16 tile + g,
 * the others of row 16 tile + 8 + g; bit j is lattice block 128 unit + 4 j + t.
 */

/*
 * Decodes packed codes to rows `pitch` elements apart: to f16 values factor (p - o) - sub, `pitch`
 * of them per row, or to p - o as s8.
 */
struct hzi_vlut_e8_points {
	const uint8_t *packed;
	void *dst;
	int64_t rows, blocks, tiles, units, pitch;
	int32_t first;
	float factor;
	int32_t offset[8];
	float sub[8];
};

/* Grid: shares of the row tiles. */
struct hzi_vlut_e8_bitplane {
	HZI_VLUT_PRODUCT_MEMBERS
	int32_t units;			/* of a row */
	int32_t tiles_each, tiles_more;	/* tiles per share; this many shares have one more */
	int32_t x_dtype, y_dtype;
	int32_t pad_;
	int32_t offset[8];		/* o + 40 */
	float scale;
};

static_assert(sizeof(struct hzi_vlut_bit_pack) == 80, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_e8_points) == 128, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_e8_bitplane) == 144, "the same layout for C and CUDA");

#endif
