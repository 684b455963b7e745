/*
 * wgrad8.h - parameters of the kernels of wgrad8: gradients of weights by 8 real products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * dw is the sum over pixels of small times patches of big. The pixels of all images are lines, the
 * same number for small and big: one for each pixel of a padded box of an image, so that a tap is a
 * constant offset in lines. Pixels of big with equal coordinates modulo the step are a phase
 * ("grid"), with planes of its own.
 *
 * A tile holds as many groups of channels as fit. Products between different groups are computed
 * and ignored.
 */
#ifndef HZI_GPU_QUAT_CONV_WGRAD8_H
#define HZI_GPU_QUAT_CONV_WGRAD8_H

#include <stdint.h>

#include "gpu/quat_conv/quat_conv.h"

#define HZI_QW_TILE 64		/* channels of a tile of either */
#define HZI_QW_BLOCK 64		/* lines of a step */
/* Most equally spaced taps of a run: 192 columns of a product */
#define HZI_QW_RUN 3
#define HZI_QW_RUN_SPLIT 2		/* f32 in split precision */
#define HZI_QW_RUNS 3		/* runs of a set, a warpgroup each */
#define HZI_QW_SETS 43		/* enough for HZI_QC_TAPS taps in full sets */
#define HZI_QW_GRIDS 8
#define HZI_QW_SMALL_RING 7	/* steps of small */
#define HZI_QW_BIG_RING 16	/* steps of big, the first repeated behind the last */
#define HZI_QW_SPACING ((HZI_QW_BLOCK - 16) / (HZI_QW_RUN - 1))	/* so that slices end there */
/* Most blocks of big that a set reaches ahead */
#define HZI_QW_AHEAD (HZI_QW_BIG_RING - HZI_QW_SMALL_RING)
#define HZI_QW_THREADS (128 * HZI_QW_RUNS + 32)
/* Blocks of the kernels that make planes, for each side: three on each of 132 SMs */
#define HZI_QW_BLOCKS 396
#define HZI_QW_LINES_THREADS 256
#define HZI_QW_FINISH 32	/* results of a block, eight threads each */

/* Bytes of shared memory, with alignment */
#define HZI_QW_BYTES ((HZI_QW_SMALL_RING + HZI_QW_BIG_RING + 1) * HZI_QW_BLOCK * 128 + 2048)

/* One side: pixels, and their planes */
struct hzi_quat_lines_side {
	struct hzi_quat_conv_side x;
	uint16_t *planes;		/* [grid][parts][8][lines][columns] */
	int32_t size[3], step[3];
	int32_t rest[HZI_QW_GRIDS][3];
	int32_t grids, columns;		/* columns: channels, padded */
	int32_t each;			/* channels of a tile */
	int32_t lines, lead;		/* lines of a plane; zeros before image 0 */
	int32_t left;			/* the left factor, which carries 1/4 and 2 */
	int32_t parts;			/* 2: eight planes of the remainders follow */
	int32_t pad_;
};

struct hzi_quat_lines {
	struct hzi_quat_lines_side side[2];	/* small, big */
	float *most;			/* [2][HZI_QW_BLOCKS]: largest magnitudes */
	float *scales;			/* [2]: inverse scales */
	int32_t box[3], images;
};

struct hzi_quat_weights_run {
	int32_t line;			/* of big for line 0 of small, from the set's line on */
	int16_t taps, spacing;		/* lines */
	int16_t number[HZI_QW_RUN];
	int16_t pad_;
};

struct hzi_quat_weights_set {
	int32_t line;			/* of all planes of big, for product 0, line 0 of small */
	int16_t ahead, runs;		/* ahead: blocks of big beyond a step's own */
	struct hzi_quat_weights_run run[HZI_QW_RUNS];
};

struct hzi_quat_weights {
	struct hzi_tensor_map small, big;
	float *parts;			/* [split][8][rows][taps][columns] */
	const float *scales;
	int32_t small_lines, big_lines;	/* of a plane */
	int32_t lines, each;		/* of small; of a split */
	int32_t splits, sets, tiles_m, tiles_n;
	int32_t rows, columns, taps;	/* of parts */
	int32_t pairs;			/* 3 in split precision (hi*hi, hi*lo, lo*hi), else 1 */
	int32_t diagonal;		/* a tile of small meets only its own tile of big */
	int32_t pad_;
	struct hzi_quat_weights_set set[HZI_QW_SETS];
};

struct hzi_quat_weights_finish {
	const float *parts;
	float *sum;			/* [m][taps][channels][4] */
	int32_t parts_count, rows, columns, taps;
	int32_t m, channels, conj;	/* m: output channels of all groups */
	int32_t outs, together;		/* outputs of a group; groups of a tile */
	int32_t pad_;
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_weights) == 256 + 16 + 56 + 56 * HZI_QW_SETS + 16,
		"the same layout for C and CUDA");

#endif
