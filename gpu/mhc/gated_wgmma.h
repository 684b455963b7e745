/*
 * gated_wgmma.h - parameters of gated_wgmma.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_WGMMA_H
#define HZI_GPU_MHC_GATED_WGMMA_H

#include "gpu/mhc/gated_fused.h"
#include "gpu/runtime/tensor_map.h"

#define HZI_MHC_GATED_CHUNK 64		/* channels of a tile */
#define HZI_MHC_GATED_WGMMA_THREADS 384	/* a warpgroup loads, two compute */
#define HZI_MHC_GATED_BYTES (227 * 1024)
#define HZI_MHC_GATED_CLUSTER 2		/* blocks, at most: weights are multicast to them */

/* mhc_gated_hidden_warps: tokens of a block, slices that a lane loads before it adds */
#define HZI_MHC_WARPS_TOKENS 4
#define HZI_MHC_WARPS_AHEAD 8

/* mhc_gated_down_wgmma: tokens of a block, the most rows of W_down and W_q together */
#define HZI_MHC_GATED_DOWN_TOKENS 256
#define HZI_MHC_GATED_DOWN_ROWS 136

/* mhc_gated_up_wgmma: tokens of a block and of a warp, the most hidden numbers */
#define HZI_MHC_GATED_UP_TOKENS 128
#define HZI_MHC_GATED_UP_WARP_TOKENS 16
#define HZI_MHC_GATED_UP_RANK 128
#define HZI_MHC_GATED_UP_STREAMS 2	/* of a step */

/* Boxes have 64 columns. */
struct hzi_mhc_gated_wgmma {
	struct hzi_tensor_map x;	/* tokens of a block, one stream; up: two */
	struct hzi_tensor_map w;	/* down: DOWN_ROWS of a term, one stream; up: 64, two */
	struct hzi_tensor_map u;	/* up: UP_WARP_TOKENS tokens */
	struct hzi_mhc_gated_job job;
	int32_t cluster, pad[15];	/* of mhc_gated_down_wgmma: blocks */
};

static_assert(sizeof(struct hzi_mhc_gated_wgmma) == 832, "the same layout for C and CUDA");

#endif
