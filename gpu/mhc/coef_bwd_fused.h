/*
 * coef_bwd_fused.h - parameters of coef_bwd_fused.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_BWD_FUSED_H
#define HZI_GPU_MHC_COEF_BWD_FUSED_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_MHC_BWD_FUSED_TILE 16	/* tokens */
#define HZI_MHC_BWD_FUSED_CHANNELS 128	/* per block, of all four streams */
#define HZI_MHC_BWD_FUSED_THREADS 384
#define HZI_MHC_BWD_FUSED_STAGES 5	/* at most */
#define HZI_MHC_BWD_FUSED_COEFS 28	/* per token: a [4][4], p [4], own [2], padding */
#define HZI_MHC_BWD_FUSED_WORDS (6 * 64)	/* draw of a tile, in 32-bit words */
#define HZI_MHC_BWD_FUSED_RECORD \
	(HZI_MHC_BWD_FUSED_WORDS + HZI_MHC_BWD_FUSED_TILE * HZI_MHC_BWD_FUSED_COEFS)
#define HZI_MHC_BWD_FUSED_BYTES (202 * 1024)

/*
 * A record for each tile of tokens, written by mhc_coef_gradients. First draw, split into two terms
 * of bf16, as pieces [HZI_MHC_BWD_FUSED_TILE][8 rows of phi]: pieces 0, 1, 2 of the first term,
 * then 2, 0, 1 of the second. Then the coefficients of each token. Missing rows and tokens are 0.
 */

/*
 * dx as in struct hzi_mhc_dx, partial as in struct hzi_mhc_dphi; tile t belongs to split t %
 * splits. A TMA box has 64 channels, HZI_MHC_BWD_FUSED_TILE tokens, one stream. du, dy and dx may
 * have no data, partial may be NULL.
 */
struct hzi_mhc_bwd_fused {
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
