/*
 * d4_bitplane.h - parameters of products of packed codes of D4 and one vector, by bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_PLANES_H
#define HZI_GPU_VLUT_PLANES_H

#include "gpu/vlut/d4_bitfield.h"

#define HZI_PLANES_THREADS 256
#define HZI_PLANES_UNIT 4		/* chunks: 16 rows by 256 values, a warp's at a time */
#define HZI_PLANES_UNIT_BYTES (HZI_PLANES_UNIT * HZI_FIELDS_BYTES)
#define HZI_PLANES_STAGES 4		/* units of a warp in shared memory, or on their way */
#define HZI_PLANES_COLUMNS 24		/* bits of x, as the matrix units get them */
/* In shared memory: of x of a unit, of sums of a tile, of the rest */
#define HZI_PLANES_X_BYTES (16 * HZI_PLANES_COLUMNS * 4)
#define HZI_PLANES_SUMS_BYTES (HZI_FIELDS_ROWS * 3 * 4)
#define HZI_PLANES_REST_BYTES \
	(16 + HZI_PLANES_THREADS / 32 * HZI_PLANES_STAGES * HZI_PLANES_UNIT_BYTES)

/* A grid of shares of the tiles of rows. x is f16, back to back, 16 bytes aligned. */
struct hzi_vlut_planes {
	const uint8_t *packed;		/* see gpu/vlut/d4_bitfield.h */
	const float *row_scale;
	const uint32_t *x;
	void *y;
	int64_t row_scale_step, y_i, y_b;
	int32_t rows, k, chunks, units;	/* units: of a row */
	int32_t tiles_each, tiles_more;	/* of a share, and how many have one more */
	int32_t y_dtype, pad_;
	int32_t offset[4], centred;	/* o, and whether it is not 0 */
	float scale;
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_planes) == 112, "the same layout for C and CUDA");

#endif
