/*
 * gemm16.h - parameters of the kernels of implicit_gemm16 and wgrad16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 *
 * A product of quaternions is 16 real products of their components, so that arrays of quaternions
 * are operands of wgmma in place. TMA loads them as units of 8 KiB: 64 components (16 channels) of
 * 64 pixels of 16 bits, or of 32 pixels of f32. The pixels of a unit are a TMA tile, a box of the
 * images' dimensions.
 */
#ifndef HZI_GPU_QUAT_CONV_GEMM16_H
#define HZI_GPU_QUAT_CONV_GEMM16_H

#include <stdint.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/runtime/tensor_map.h"

#define HZI_GEMM16_UNIT 64		/* components of a unit */
#define HZI_GEMM16_PIXELS 64		/* pixels of a unit of 16 bits */
#define HZI_GEMM16_PIXEL_BYTES 128	/* of a pixel in a unit, f32 in two halves */
#define HZI_GEMM16_UNIT_BYTES (HZI_GEMM16_UNIT * HZI_GEMM16_PIXELS * 2)

/*
 * TMA tiles. Arrays of 4: the last dimension of images first, then the other two, then the image;
 * arrays of 3: in the order of struct hzi_quat_patch_step
 */
struct hzi_quat_tma_tiles {
	int32_t tiles[4], tile[4];	/* number of tiles; pixels of one, powers of two */
	int32_t step[4], each[3], base[3], taps[3];
	int32_t all;
};

/*
 * The gradient of weights is a product of real matrices: rows are components of channels of small,
 * columns are components of channels of big for each tap, and k counts pixels. A unit holds as many
 * groups of channels as fit: a set. A block computes ROWS units of small by COLUMNS units of big:
 * 128 x 256 components, or 64 x 512 (_N512) where small has no more than one unit.
 */
#define HZI_WGRAD16_ROWS 2
#define HZI_WGRAD16_COLUMNS 4
#define HZI_WGRAD16_ROWS_N512 1
#define HZI_WGRAD16_COLUMNS_N512 8
#define HZI_WGRAD16_STAGES 4
#define HZI_WGRAD16_STAGES_N512 3
#define HZI_WGRAD16_THREADS 288
#define HZI_WGRAD16_SPLIT_PIXELS 32
#define HZI_WGRAD16_SPLIT_THREADS 512

/* Bytes of shared memory, with alignment */
#define HZI_WGRAD16_SHARED_BYTES \
	(HZI_WGRAD16_STAGES_N512 * (HZI_WGRAD16_ROWS_N512 + HZI_WGRAD16_COLUMNS_N512) * \
	 HZI_GEMM16_UNIT_BYTES + 2048)

struct hzi_quat_wgrad16 {
	struct hzi_tensor_map small, big;
	float *parts;			/* [split][out of all groups][tap][channel][4] */
	struct hzi_quat_tma_tiles b;
	int32_t splits;			/* of pixels (split-K) */
	int32_t n512, cluster;		/* tile 64 x 512; 2: blocks of two tiles share columns */
	int32_t sets, tiles_m, tiles_n;	/* sets of groups; tiles of a set */
	int32_t units, units_of_tap;	/* of columns */
	int32_t row_step, column_step;	/* strides of sets, components */
	int32_t groups, groups_of_set;
	int32_t outs, channels;		/* of a group; channels without padding */
	int32_t padded_channels;	/* channels of a group with padding */
	int32_t conj_small, conj_big;
	int32_t pad_;
};

static_assert(sizeof(struct hzi_quat_wgrad16) == 448, "the same layout for C and CUDA");

/* Convolutions: a block's tile is 128 pixels (two TMA tiles) by 64 outputs, 256 components. */
#define HZI_CONV16_TMA_TILES 2
#define HZI_CONV16_TILE_OUTS 64
#define HZI_CONV16_STAGES 4
#define HZI_CONV16_STAGE_BYTES \
	(HZI_CONV16_TMA_TILES * HZI_GEMM16_UNIT_BYTES + 4 * HZI_CONV16_TILE_OUTS * 128)
#define HZI_CONV16_SHARED_BYTES (HZI_CONV16_STAGES * HZI_CONV16_STAGE_BYTES + 2048)
#define HZI_CONV16_THREADS 384
#define HZI_CONV16_PACK_THREADS 256

struct hzi_quat_conv16 {
	struct hzi_tensor_map x, weights;	/* weights: rows are components of outputs */
	struct hzi_quat_out out;	/* rows are channels */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel */
	uint16_t *matrix;		/* [outs, padded][4][tap][channels, padded][4] */
	int64_t c_stride[4], pre_stride[4];	/* dimensions as of TMA tiles */
	int32_t count[4];
	struct hzi_quat_tma_tiles b;
	int32_t outs, channels, units;	/* units of a tap */
	int32_t tiles_n, pairs;		/* tiles of outputs; pairs of tiles, one a cluster */
	int32_t taps, no_epilogue, conj_x;
	int32_t pad_[2];
};

static_assert(sizeof(struct hzi_quat_conv16) == 896, "the same layout for C and CUDA");

#endif
