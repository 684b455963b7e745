/*
 * gemm16.h - parameters of the kernels of implicit_gemm16 and wgrad16: 16 real products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Images are loaded by TMA as units: 64 components (16 channels) by 64 pixels, a box of their
 * dimensions; f32 by 32 pixels, which are as many bytes.
 */
#ifndef HZI_GPU_QUAT_CONV_GEMM16_H
#define HZI_GPU_QUAT_CONV_GEMM16_H

#include <stdint.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/runtime/tensor_map.h"

#define HZI_QD_UNIT 64			/* components of a unit */
#define HZI_QD_PIXELS 64
#define HZI_QD_BOX_BYTES 128		/* of a pixel */
#define HZI_QD_UNIT_BYTES (HZI_QD_UNIT * HZI_QD_PIXELS * 2)

/* Boxes. Dimensions: the last of images first, then the other two, then the image */
struct hzi_quat_boxes {
	int32_t boxes[4], box[4];	/* number of boxes; pixels of one */
	int32_t step[4], each[3], base[3], taps[3];
	int32_t all;
};

/*
 * The gradient of weights is a product of real matrices: rows are components of channels of small,
 * columns those of big for each tap, k are pixels. A unit holds as many groups as fit. A tile is
 * units of small by units of big; the wide kernel is for one unit of small.
 */
#define HZI_QX_ROWS 2
#define HZI_QX_COLUMNS 4
#define HZI_QX_ROWS_WIDE 1
#define HZI_QX_COLUMNS_WIDE 8
#define HZI_QX_STAGES 4
#define HZI_QX_STAGES_WIDE 3
#define HZI_QX_THREADS 288
#define HZI_QX_SPLIT_PIXELS 32
#define HZI_QX_SPLIT_THREADS 512

/* Bytes of shared memory, with alignment */
#define HZI_QX_BYTES (HZI_QX_STAGES_WIDE * (HZI_QX_ROWS_WIDE + HZI_QX_COLUMNS_WIDE) * \
		      HZI_QD_UNIT_BYTES + 2048)

struct hzi_quat_direct_weights {
	struct hzi_tensor_map small, big;
	float *parts;			/* [split][out of all groups][tap][channel][4] */
	struct hzi_quat_boxes b;
	int32_t splits;
	int32_t wide, cluster;		/* cluster: two tiles of rows share columns */
	int32_t sets, tiles_m, tiles_n;	/* sets of groups; tiles of a set */
	int32_t units, units_of_tap;	/* of columns */
	int32_t row_step, column_step;	/* stride of sets, components */
	int32_t groups, together;	/* together: groups of a set */
	int32_t outs, channels;		/* of a group; channels without padding */
	int32_t seen;			/* channels of a group with padding */
	int32_t conj_small, conj_big;
	int32_t pad_;
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_direct_weights) == 448, "the same layout for C and CUDA");

/* Convolutions: a tile is 128 pixels by 64 output channels, 256 components */
#define HZI_QY_BOXES 2
#define HZI_QY_OUTS 64
#define HZI_QY_STAGES 4
#define HZI_QY_STAGE_BYTES (HZI_QY_BOXES * HZI_QD_UNIT_BYTES + 4 * HZI_QY_OUTS * 128)
#define HZI_QY_BYTES (HZI_QY_STAGES * HZI_QY_STAGE_BYTES + 2048)
#define HZI_QY_THREADS 384
#define HZI_QY_WEIGHTS 256		/* threads of the kernel that packs weights */

struct hzi_quat_direct_conv {
	struct hzi_tensor_map x, weights;	/* weights: rows are components of outputs */
	struct hzi_quat_out out;	/* rows are channels */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel */
	uint16_t *matrix;		/* [outs, padded][4][tap][channels, padded][4] */
	int64_t c_stride[4], pre_stride[4];	/* dimensions as in boxes */
	int32_t count[4];
	struct hzi_quat_boxes b;
	int32_t outs, channels, units;	/* units of a tap */
	int32_t tiles_n, pairs;		/* tiles of outputs; pairs of tiles, one a cluster */
	int32_t taps, plain, conj_x;
	int32_t pad_[2];
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_direct_conv) == 896, "the same layout for C and CUDA");

#endif
