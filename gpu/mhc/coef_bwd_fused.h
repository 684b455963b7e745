/*
 * coef_bwd_fused.h - parameters of the gradients of four streams and of phi in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_JOINT_H
#define HZI_GPU_MHC_PRE_JOINT_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_JOINT_TILE 16		/* tokens */
#define HZI_JOINT_CHANNELS 128		/* of a block, in all four streams */
#define HZI_JOINT_ROWS 24		/* of phi, at most */
#define HZI_JOINT_THREADS 384
#define HZI_JOINT_STAGES 5		/* at most */
#define HZI_JOINT_COEFS 28		/* of a token: a [4, 4], p [4], own, padding */
#define HZI_JOINT_WORDS (6 * 64)	/* draw of a tile: 8 x 16 bytes of bf16 each */
#define HZI_JOINT_RECORD (HZI_JOINT_WORDS + HZI_JOINT_TILE * HZI_JOINT_COEFS)
#define HZI_JOINT_BYTES (202 * 1024)

/*
 * A record of each tile, made of what struct hzi_mhc_gradients says: of draw as two parts of bf16
 * pieces [HZI_JOINT_TILE][8 rows of phi], of the first part 0, 1, 2, of the rest 2, 0, 1; then
 * coefficients of the tokens. Those that there are not are 0.
 */

/*
 * dx as of struct hzi_mhc_dx, partial as of struct hzi_mhc_dphi, splits of the tiles in turns.
 * The maps are of boxes of 128 bytes of channels by HZI_JOINT_TILE tokens of a stream. du, dy and
 * dx may have no data, partial may be NULL.
 */
struct hzi_mhc_joint {
	struct hzi_tensor_map x_map, du_map, dy_map, dx_map;
	struct hzi_mhc_array du, dy, dx;
	const float *phi, *gain;
	const uint32_t *records;
	float *partial;
	int64_t tokens, channels;
	int32_t m, splits, accumulate;
	int32_t pad;
};

#endif
