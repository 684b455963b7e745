/*
 * d4_f16_skinny.h - parameters of packed D4 by up to 8 vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_F16_SKINNY_H
#define HZI_GPU_VLUT_D4_F16_SKINNY_H

#include "gpu/vlut/d4_bitfield.h"

#define HZI_STREAM_THREADS 512
#define HZI_STREAM_COLUMNS 8
#define HZI_STREAM_X_BYTES (HZI_FIELDS_CHUNK * HZI_STREAM_COLUMNS * 2)	/* of a chunk */

/*
 * Grid: shares of the tiles of rows; a block takes `group` tiles at a time. x: rows of 8 columns,
 * x_step apart, or `batch` contiguous vectors; 16-byte aligned.
 */
struct hzi_vlut_stream {
	const uint8_t *packed;		/* see gpu/vlut/d4_bitfield.h */
	const float *row_scale;
	const uint16_t *x;
	void *y;
	int64_t row_scale_step, x_step, y_i, y_b;
	int32_t rows, k, chunks, batch;
	int32_t tiles_each, tiles_more;	/* of a share, and how many have one more */
	int32_t group, y_dtype;
	int32_t ahead;			/* bytes of a warp's part of a tile fetched early */
	int32_t centred;		/* o is not 0 */
	uint32_t offset[4];		/* o, each as two of f16 */
	float scale;
	int32_t pad_;
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_stream) == 128, "the same layout for C and CUDA");

#endif
