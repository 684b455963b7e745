/*
 * wgrad8.h - parameters of the kernels of wgrad8: gradients of weights by 8 real products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 *
 * dw is the sum over pixels of small times patches of big. All images are padded to one size and
 * are concatenated, small and big in the same way, so that a tap is a constant offset in pixels.
 * Pixels of big with equal coordinates modulo the stride are a phase, which has planes of its own.
 *
 * Equally spaced taps are a run, one wgmma; the runs of the warpgroups of a block are a set.
 *
 * A tile holds as many groups of channels as fit. Products between different groups are computed
 * and ignored.
 */
#ifndef HZI_GPU_QUAT_CONV_WGRAD8_H
#define HZI_GPU_QUAT_CONV_WGRAD8_H

#include <stdint.h>

#include "gpu/quat_conv/quat_conv.h"

#define HZI_WGRAD8_TILE 64		/* channels of a tile of small, and of big */
#define HZI_WGRAD8_TILE_K 64		/* pixels of a step */
/* Most taps of a run: 192 columns of a wgmma */
#define HZI_WGRAD8_RUN 3
#define HZI_WGRAD8_RUN_SPLIT 2		/* f32 in split precision */
#define HZI_WGRAD8_RUNS 3		/* runs of a set, one for each warpgroup */
#define HZI_WGRAD8_SETS 43		/* enough for HZI_CONV_TAPS_MAX taps in full sets */
#define HZI_WGRAD8_PHASES 8
/* Rings of blocks of TILE_K pixels; the first block of big stands again behind the last. */
#define HZI_WGRAD8_SMALL_STAGES 7
#define HZI_WGRAD8_BIG_STAGES 16
/* Most pixels between the taps of a run: its reads end in the block behind the ring's end. */
#define HZI_WGRAD8_SPACING ((HZI_WGRAD8_TILE_K - 16) / (HZI_WGRAD8_RUN - 1))
/* Most blocks of big beyond a step's own that a set reads */
#define HZI_WGRAD8_AHEAD (HZI_WGRAD8_BIG_STAGES - HZI_WGRAD8_SMALL_STAGES)
#define HZI_WGRAD8_THREADS (128 * HZI_WGRAD8_RUNS + 32)
/* Blocks of the pack_planar and absmax kernels, for each operand: three on each of 132 SMs */
#define HZI_WGRAD8_PACK_BLOCKS 396
#define HZI_WGRAD8_PACK_THREADS 256
#define HZI_WGRAD8_REDUCE_LANES 32	/* reduce kernel: results of a block, eight threads each */

/* Bytes of dynamic shared memory, alignment included */
#define HZI_WGRAD8_SHARED_BYTES \
	((HZI_WGRAD8_SMALL_STAGES + HZI_WGRAD8_BIG_STAGES + 1) * HZI_WGRAD8_TILE_K * 128 + 2048)

/* Small or big: pixels, and their f16 planes */
struct hzi_quat_wgrad8_operand {
	struct hzi_quat_conv_array x;
	uint16_t *planes;		/* [phase][parts][8][pixels][columns] */
	int32_t size[3], step[3];
	int32_t phase_offset[HZI_WGRAD8_PHASES][3];
	int32_t phases, columns;	/* columns: channels, padded */
	int32_t each;			/* channels of a tile */
	int32_t pixels, lead;		/* pixels of a plane; of these zeros before image 0 */
	int32_t left;			/* the left factor, whose planes are times 1/4 and 2 */
	int32_t parts;			/* 2: eight planes of low parts follow */
	int32_t pad_;
};

struct hzi_quat_wgrad8_pack {
	struct hzi_quat_wgrad8_operand side[2];	/* small, big */
	float *most;			/* [2][HZI_WGRAD8_PACK_BLOCKS]: largest magnitudes */
	float *scales;			/* [2]: inverse scales */
	int32_t box[3], images;
};

struct hzi_quat_wgrad8_run {
	int32_t pixel;			/* of big for pixel 0 of small, counted from the set's */
	int16_t taps, spacing;		/* spacing: pixels from tap to tap */
	int16_t number[HZI_WGRAD8_RUN];
	int16_t pad_;
};

struct hzi_quat_wgrad8_set {
	int32_t pixel;			/* of all planes of big, for product 0, pixel 0 of small */
	int16_t ahead, runs;		/* ahead: blocks of big beyond a step's own that it reads */
	struct hzi_quat_wgrad8_run run[HZI_WGRAD8_RUNS];
};

struct hzi_quat_wgrad8 {
	struct hzi_tensor_map small, big;
	float *parts;			/* [split][8][rows][taps][columns] */
	const float *scales;
	int32_t small_pixels, big_pixels;	/* of a plane */
	int32_t pixels, each;		/* of small; those of a split */
	int32_t splits, sets, tiles_m, tiles_n;
	int32_t rows, columns, taps;	/* of parts */
	int32_t pairs;			/* 3 in split precision (hi*hi, hi*lo, lo*hi), else 1 */
	int32_t diagonal;		/* several groups: a tile of small has one tile of big */
	int32_t pad_;
	struct hzi_quat_wgrad8_set set[HZI_WGRAD8_SETS];
};

struct hzi_quat_wgrad8_reduce {
	const float *parts;
	float *sum;			/* [m][taps][channels][4] */
	int32_t parts_count, rows, columns, taps;
	int32_t m, channels, conj;	/* m: output channels of all groups */
	int32_t outs, groups_of_tile;		/* outputs of a group; groups of a tile */
	int32_t pad_;
};

static_assert(sizeof(struct hzi_quat_wgrad8) == 256 + 16 + 56 + 56 * HZI_WGRAD8_SETS + 16,
	      "the same layout for C and CUDA");

#endif
