/*
 * wgrad8.h - parameters of the kernels of quaternion convolutions' weights' gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Pixels of all images are lines behind each other, as many for small (what the other's patches are
 * multiplied by) as for big: a line for each place of a box of an image that has room between what
 * is seen from neighbours, so that a tap sees what is so many lines further on. Of big, pixels
 * whose places leave the same rest by the step are a grid, which has planes of its own.
 *
 * Of several groups of channels as many are a tile of either as there is room for in both. What
 * channels of one group and of another give is done with them and not looked at.
 */
#ifndef HZI_GPU_QUAT_CONV_WEIGHTS_H
#define HZI_GPU_QUAT_CONV_WEIGHTS_H

#include <stdint.h>

#include "gpu/quat_conv/quat_conv.h"

#define HZI_QW_TILE 64		/* channels of a tile of either */
#define HZI_QW_BLOCK 64		/* lines of a step */
/* Taps that are equally far apart, at most: 192 columns of a product */
#define HZI_QW_RUN 3
#define HZI_QW_RUN_SPLIT 2		/* of f32 in parts */
#define HZI_QW_RUNS 3		/* of a set: a warpgroup for each */
#define HZI_QW_SETS 43		/* for HZI_QC_TAPS taps, if they are in sets as they should be */
#define HZI_QW_GRIDS 8
#define HZI_QW_SMALL_RING 7	/* steps of small */
#define HZI_QW_BIG_RING 16	/* and of big; the first once more behind the last */
#define HZI_QW_SPACING ((HZI_QW_BLOCK - 16) / (HZI_QW_RUN - 1))	/* so that slices end there */
/* Blocks of big, of a set's reach */
#define HZI_QW_AHEAD (HZI_QW_BIG_RING - HZI_QW_SMALL_RING)
#define HZI_QW_THREADS (128 * HZI_QW_RUNS + 32)
/* That look at lines of either: six of a large GPU's multiprocessors */
#define HZI_QW_BLOCKS 396
#define HZI_QW_LINES_THREADS 256
#define HZI_QW_FINISH 32	/* results of a block, by eight threads each */

/* Bytes of shared memory, with what aligns them */
#define HZI_QW_BYTES ((HZI_QW_SMALL_RING + HZI_QW_BIG_RING + 1) * HZI_QW_BLOCK * 128 + 2048)

/* Pixels and what becomes of them */
struct hzi_quat_lines_side {
	struct hzi_quat_conv_side x;
	uint16_t *planes;		/* [grid][parts][8][lines][columns] */
	int32_t size[3], step[3];
	int32_t rest[HZI_QW_GRIDS][3];
	int32_t grids, columns;		/* columns: of channels, padded */
	int32_t each;			/* channels of a tile of columns */
	int32_t lines, lead;		/* of a plane; zeros ahead of image 0 */
	int32_t left;			/* the factor that 1/4 and 2 are in */
	int32_t parts;			/* 2: eight planes of what f16 leaves follow */
	int32_t pad_;
};

struct hzi_quat_lines {
	struct hzi_quat_lines_side side[2];	/* small, big */
	float *most;			/* [2][HZI_QW_BLOCKS]: largest magnitudes */
	float *scales;			/* [2]: what undoes them */
	int32_t box[3], images;
};

struct hzi_quat_weights_run {
	int32_t line;			/* of big for line 0 of small, from the set's first on */
	int16_t taps, spacing;		/* lines */
	int16_t number[HZI_QW_RUN];
	int16_t pad_;
};

struct hzi_quat_weights_set {
	/* Of all planes of big, for product 0 and line 0 of small */
	int32_t line;
	int16_t ahead, runs;		/* blocks that are wanted ahead of a step's own */
	struct hzi_quat_weights_run run[HZI_QW_RUNS];
};

struct hzi_quat_weights {
	struct hzi_tensor_map small, big;
	float *parts;			/* [split][8][rows][taps][columns] */
	const float *scales;
	int32_t small_lines, big_lines;	/* of a plane */
	int32_t lines, each;		/* small's, but for padding; of a split */
	int32_t splits, sets, tiles_m, tiles_n;
	int32_t rows, columns, taps;	/* of parts */
	int32_t pairs;			/* 3: of parts, whose products are splits of their own */
	int32_t diagonal;		/* tiles of small are multiplied by their own of big */
	int32_t pad_;
	struct hzi_quat_weights_set set[HZI_QW_SETS];
};

struct hzi_quat_weights_finish {
	const float *parts;
	float *sum;			/* [m][taps][channels][4] */
	int32_t parts_count, rows, columns, taps;
	int32_t m, channels, conj;	/* m: of all groups */
	int32_t outs, together;		/* of a group; groups of a tile */
	int32_t pad_;
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_weights) == 256 + 16 + 56 + 56 * HZI_QW_SETS + 16,
		"the same layout for C and CUDA");

#endif
