/*
 * gated_fused.h - parameters and tiles of gated_fused.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_MHC_GATED_FUSED_H
#define HZI_GPU_MHC_GATED_FUSED_H

#include <assert.h>

#include "lib/mhc/mhc.h"

#define HZI_MHC_GATED_RANK 256		/* most hidden numbers, a multiple of 16 */
#define HZI_MHC_GATED_SLICES 256	/* most slices of all channels */
#define HZI_MHC_GATED_AHEAD 32		/* slices that a thread loads before it adds */

/*
 * Tiles of mhc_gated_down: tokens by rows of the weights, `piece` channels at a time. _few: up to
 * 16 tokens, _some: 64.
 */
#define HZI_MHC_DOWN_TILES(X) \
	X(few, 1, 5, 1, 1, 16, 512) \
	X(some, 1, 5, 4, 1, 4, 256)

/*
 * Of mhc_gated_down_many: 128 tokens of streams of 16 bits by 16 NT rows of the weights times gain,
 * as two terms that mhc_gated_weights made. _narrow: up to 80 rows
 */
#define HZI_MHC_MANY_TOKENS 128
#define HZI_MHC_MANY_PIECE 64		/* channels at a time */
#define HZI_MHC_MANY_STAGES 3
#define HZI_MHC_MANY_ROWS 144
#define HZI_MHC_NARROW_ROWS 80
#define HZI_MHC_MANY_THREADS 256
#define HZI_MHC_WEIGHTS_THREADS 512

/*
 * Tiles of mhc_gated_up: a warp has 16 MT tokens by 8 NT channels, a block WM by WN warps, with
 * STAGES tiles of the weights of a stream in shared memory.
 */
#define HZI_MHC_UP_TILES(X) \
	X(few, 1, 1, 1, 4, 4, 4) \
	X(some, 4, 1, 1, 4, 4, 2) \
	X(many, 2, 4, 4, 2, 2, 2)

/* Words of shared memory from one row of a tile to the next, without bank conflicts */
#define HZI_MHC_PITCH(values) ((values) / 2 + 4)	/* 16 bits */
#define HZI_MHC_PITCH_F32(values) ((values) + 8)

/*
 * `partial` [slices][T][pitch] has the products of W_down's and W_q's rows and of a slice of the
 * channels of a stream, `squares` [slices][T] the sums of its squares. A stream has stream_slices
 * slices of `slice` channels. Blocks have tile_rows of the rows. hidden: two terms of bf16 [T][r].
 */
struct hzi_mhc_gated_job {
	struct hzi_mhc_gated_args a;
	float *partial, *squares, *roots;
	uint16_t *hidden;
	uint16_t *terms;		/* of weights times gain [2][rows][n C]; NULL: none */
	float *scales;			/* [rows], of sums of these */
	int64_t slice;			/* channels */
	int32_t slices, stream_slices, pitch, rows, row_tiles, tile_rows;
	int32_t x_terms, w_terms;	/* of bf16, of the operands of the first product */
	int32_t gain_on_x, pad;		/* 0: weights are multiplied by gain */
	int32_t splits, chunks;		/* of channels in mhc_gated_up: blocks, tiles of a block */
};

static_assert(sizeof(struct hzi_mhc_gated_job) == 376, "the same layout for C and CUDA");

#endif
