/*
 * wgmma_in_place.h - parameters of quaternion matrix products by wgmma with A as it is stored
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_GEMM_WGMMA_IN_PLACE_H
#define HZI_GPU_QUAT_GEMM_WGMMA_IN_PLACE_H

#include <stdint.h>

#include "gpu/quat_gemm/quat_gemm.h"
#include "gpu/runtime/tensor_map.h"

/* Warpgroups that multiply, and a warp that loads, a warpgroup where registers are moved */
#define HZI_IN_PLACE_GROUPS(columns) ((columns) == 96 ? 3 : 2)
#define HZI_IN_PLACE_THREADS(rows, columns) \
	(128 * HZI_IN_PLACE_GROUPS(columns) + ((rows) > 64 ? 128 : 32))
#define HZI_IN_PLACE_STEP 16		/* k of a stage: rows of 128 bytes */

/* Stages and bytes of shared memory of a block, by rows of A and columns of B */
#define HZI_IN_PLACE_STAGE_BYTES(rows, columns) (((rows) + (columns)) * 128)
#define HZI_IN_PLACE_STAGES 8
#define HZI_IN_PLACE_SHARED_BYTES(rows, columns) \
	(HZI_IN_PLACE_STAGES * HZI_IN_PLACE_STAGE_BYTES(rows, columns) + 2048)

/*
 * Grid: x: blocks of a cluster, which share k, times tiles of rows; y: tiles of columns. Column j
 * of B, with contiguous quaternions, is row j of `columns`.
 */
struct hzi_quat_in_place {
	struct hzi_tensor_map rows, columns;
	struct hzi_quat_out out;
	/* [component of C][word of a quaternion of A]: signs of the factors from B */
	uint32_t sign[4][2];
	int32_t steps;			/* of k */
	int32_t share;			/* steps of a block of the cluster */
	int32_t no_epilogue;		/* C is the product, contiguous quaternions of its dtype */
	int32_t quads;			/* four rows of it are contiguous and aligned to 16 bytes */
	int32_t halves;			/* both, an even number of rows, and k is not shared */
	int32_t pad_[3];
};

static_assert(sizeof(struct hzi_quat_in_place) == 640, "the same layout for C and CUDA");

#endif
