/*
 * e8_bitplane.h - packed E8 with q = 4: the layout, parameters of packing, decoding and products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_E8_BITPLANE_H
#define HZI_GPU_VLUT_E8_BITPLANE_H

#include "gpu/vlut/vlut.h"

#define HZI_OCTETS_THREADS 256
#define HZI_OCTETS_ROWS 16		/* of a tile */
#define HZI_OCTETS_UNIT 1024		/* of k: a tile's are 4096 bytes a level */
#define HZI_OCTETS_UNIT_BYTES 4096
#define HZI_OCTETS_STAGES 2		/* units of a warp in shared memory, or on their way */
#define HZI_OCTETS_BATCH 2		/* columns a launch */
#define HZI_OCTETS_COLUMNS 24		/* bits of x, columns of the mma */
#define HZI_OCTETS_ZEROS 5		/* columns below, of 0 */
#define HZI_OCTETS_TILES 64		/* of a block, at most */
/* Shared memory: x of a unit and accumulators of a tile, per column; the rest */
#define HZI_OCTETS_X_BYTES (32 * (HZI_OCTETS_COLUMNS + HZI_OCTETS_ZEROS) * 4)
#define HZI_OCTETS_SUMS_BYTES (HZI_OCTETS_ROWS * 3 * 4)
#define HZI_OCTETS_REST_BYTES \
	(32 + HZI_OCTETS_THREADS / 32 * HZI_OCTETS_STAGES * HZI_OCTETS_UNIT_BYTES)
#define HZI_OCTETS_UNITS 40		/* of a row, at most, so that one vector fits */

/*
 * Packed: [tile of rows][unit of k][level][word of a lane / 4][lane 4 g + t] of 16 bytes. The first
 * 16 words of a lane, those of e8_bitplane.cuh, are of row 16 tile + g, the others of row 16 tile +
 * 8 + g; bit j is lattice block 128 unit + 4 j + t.
 */
struct hzi_octets_pack {
	const uint16_t *codes;
	uint32_t *packed;
	int64_t rows, blocks, row, block, level;
	int64_t tiles, units;
	int32_t first, pad_;
};

/*
 * Packed codes of some tiles to rows `line` apart: to values factor (p - o) - sub in f16, `line` of
 * them, or to points less o as bytes
 */
struct hzi_octets_points {
	const uint8_t *packed;
	void *to;
	int64_t rows, blocks, tiles, units, line;
	int32_t first;
	float factor;
	int32_t offset[8];
	float sub[8];
};

/* A grid of shares of the tiles of rows. */
struct hzi_vlut_octets {
	const uint8_t *packed;		/* see gpu/vlut/e8_bitplane.h */
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, k, units;		/* units: of a row */
	int32_t tiles_each, tiles_more;	/* of a share, and how many have one more */
	int32_t x_dtype, y_dtype;
	int32_t pad_;
	int32_t offset[8];		/* o plus 40 */
	float scale;
};

HZI_VLUT_ASSERT(sizeof(struct hzi_octets_pack) == 80, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_octets_points) == 128, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_octets) == 144, "the same layout for C and CUDA");

#endif
