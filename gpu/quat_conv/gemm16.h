/*
 * gemm16.h - parameters of the kernels of quaternion convolutions by sixteen products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 *
 * Images come as units: 64 components (of 16 channels) by 64 pixels, a box of their dimensions; of
 * f32 by 32 pixels, which are as many bytes.
 */
#ifndef HZI_GPU_QUAT_DIRECT_H
#define HZI_GPU_QUAT_DIRECT_H

#include <stdint.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/runtime/tensor_map.h"

#define HZI_QD_UNIT 64			/* components of a unit */
#define HZI_QD_PIXELS 64
#define HZI_QD_BOX_BYTES 128		/* of a pixel */
#define HZI_QD_UNIT_BYTES (HZI_QD_UNIT * HZI_QD_PIXELS * 2)

/* Dimensions of boxes: the last of images first, then the other two, then images */
struct hzi_quat_boxes {
	int32_t boxes[4], box[4];	/* how many; pixels */
	int32_t step[4], each[3], base[3], taps[3];
	int32_t all;
};

/*
 * Gradients of weights: components of channels are rows, of small, and columns, of big, of a
 * product of real matrices whose k are pixels. A unit has as many groups as there is room for. A
 * column is that of a tap, which sees big elsewhere. A tile: units of small and of big; wide where
 * there is but one of small.
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

/* Bytes of shared memory, with what aligns them */
#define HZI_QX_BYTES (HZI_QX_STAGES_WIDE * (HZI_QX_ROWS_WIDE + HZI_QX_COLUMNS_WIDE) * \
		      HZI_QD_UNIT_BYTES + 2048)

struct hzi_quat_direct_weights {
	struct hzi_tensor_map small, big;
	float *parts;			/* [split][out of all groups][tap][channel][4] */
	struct hzi_quat_boxes b;
	int32_t splits;
	int32_t wide, cluster;		/* cluster: two tiles of rows share columns */
	int32_t sets, tiles_m, tiles_n;	/* of groups; of a set */
	int32_t units, units_of_tap;	/* of columns */
	int32_t row_step, column_step;	/* components, from a set to the next */
	int32_t groups, together;	/* together: groups of a set */
	int32_t outs, channels;		/* of a group; channels but for zeros behind */
	int32_t seen;			/* channels of a group, with these */
	int32_t conj_small, conj_big;
	int32_t pad_;
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_direct_weights) == 448, "the same layout for C and CUDA");

/* Convolutions: a tile is 128 pixels by 64 outputs, that is 256 of their components */
#define HZI_QY_BOXES 2
#define HZI_QY_OUTS 64
#define HZI_QY_STAGES 4
#define HZI_QY_STAGE_BYTES (HZI_QY_BOXES * HZI_QD_UNIT_BYTES + 4 * HZI_QY_OUTS * 128)
#define HZI_QY_BYTES (HZI_QY_STAGES * HZI_QY_STAGE_BYTES + 2048)
#define HZI_QY_THREADS 384
#define HZI_QY_WEIGHTS 256		/* threads that make matrices of weights */

struct hzi_quat_direct_conv {
	struct hzi_tensor_map x, weights;	/* weights: rows are components of outputs */
	struct hzi_quat_out out;	/* rows are channels */
	struct hzi_quat_matrix w;	/* row: out; col: tap and channel */
	uint16_t *matrix;		/* [outs, padded][4][tap][channels, padded][4] */
	int64_t c_stride[4], pre_stride[4];	/* as boxes have dimensions */
	int32_t count[4];
	struct hzi_quat_boxes b;
	int32_t outs, channels, units;	/* units: of a tap */
	int32_t tiles_n, pairs;		/* of outputs; of tiles of a cluster */
	int32_t taps, plain, conj_x;
	int32_t pad_[2];
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_direct_conv) == 896, "the same layout for C and CUDA");

#endif
