/*
 * d4_f16_skinny.h - parameters of packed D4 by up to 8 vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_F16_SKINNY_H
#define HZI_GPU_VLUT_D4_F16_SKINNY_H

#include "gpu/vlut/d4_bitfield.h"

#define HZI_VLUT_D4_SKINNY_THREADS 512
#define HZI_VLUT_D4_SKINNY_COLUMNS 8
#define HZI_VLUT_D4_SKINNY_X_BYTES \
	(HZI_VLUT_D4_CHUNK * HZI_VLUT_D4_SKINNY_COLUMNS * 2)	/* of a chunk */

/*
 * Grid: shares of the row tiles; a block processes `group` tiles at a time. x: rows of 8 columns,
 * x_step apart, or `batch` contiguous columns; 16-byte aligned.
 */
struct hzi_vlut_d4_f16_skinny {
	const uint8_t *packed;		/* see gpu/vlut/d4_bitfield.h */
	const float *row_scale;
	const uint16_t *x;
	void *y;
	int64_t row_scale_step, x_step, y_i, y_b;
	int32_t rows, k, chunks, batch;
	int32_t tiles_each, tiles_more;	/* tiles per share; this many shares have one more */
	int32_t group, y_dtype;
	int32_t ahead;			/* bytes of a warp's part of a tile to prefetch */
	int32_t has_offset;		/* o is not 0 */
	uint32_t offset[4];		/* o_i as f16, twice */
	float scale;
	int32_t pad_;
};

static_assert(sizeof(struct hzi_vlut_d4_f16_skinny) == 128, "the same layout for C and CUDA");

#endif
