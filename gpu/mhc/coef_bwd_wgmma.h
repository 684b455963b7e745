/*
 * coef_bwd_wgmma.h - parameters of coef_bwd_wgmma.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_BWD_WGMMA_H
#define HZI_GPU_MHC_COEF_BWD_WGMMA_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_MHC_BWD_WGMMA_TOKENS 64	/* at a time */
#define HZI_MHC_BWD_WGMMA_STRIP 32	/* channels of a block of mhc_coef_wgmma_dx */
#define HZI_MHC_BWD_WGMMA_COLUMNS 256	/* channels of a block of mhc_coef_wgmma_dphi */
#define HZI_MHC_BWD_WGMMA_THREADS 384
#define HZI_MHC_BWD_WGMMA_TERMS 160	/* 80 rows of phi or draw, and as many remainders */
#define HZI_MHC_BWD_WGMMA_BYTES (227 * 1024)

/*
 * What dx needs of a token, in floats: a [8][8], p [8], own [2]. The pitch keeps 16-byte loads of
 * 8 tokens free of bank conflicts.
 */
#define HZI_MHC_BWD_WGMMA_P 64
#define HZI_MHC_BWD_WGMMA_OWN 72
#define HZI_MHC_BWD_WGMMA_RECORD 76

/* dx of struct hzi_mhc_dx; a block has a strip and a split of the tiles of tokens. */
struct hzi_mhc_dx_wgmma {
	struct hzi_tensor_map x, dy, du;	/* boxes of STRIP channels, TOKENS tokens */
	struct hzi_tensor_map draw;		/* [tokens][TERMS]; boxes of 64 terms, TOKENS */
	struct hzi_tensor_map phi;		/* boxes of 64 columns, TERMS rows */
	const float *records;
	struct hzi_mhc_array dx;
	int64_t tokens, channels;
	int32_t n, splits;
	int32_t dy_streams, du_streams;		/* n and 1, or 0 */
	int32_t accumulate;
	int32_t blocks;				/* of a cluster: adjacent strips, 1 or 2 */
};

/* partial of struct hzi_mhc_dphi; a block has COLUMNS channels of a stream. */
struct hzi_mhc_dphi_wgmma {
	struct hzi_tensor_map x;		/* boxes of 64 channels, TOKENS tokens */
	struct hzi_tensor_map draw;
	float *partial;
	int64_t channels;
	int32_t tiles;				/* of tokens */
	int32_t n, m, splits;
};

#endif
