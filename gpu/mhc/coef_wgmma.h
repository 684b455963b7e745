/*
 * coef_wgmma.h - parameters of coef_wgmma.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_WGMMA_H
#define HZI_GPU_MHC_COEF_WGMMA_H

#include <stdint.h>

#include "gpu/runtime/tensor_map.h"

#define HZI_MHC_WGMMA_TOKENS 256	/* of a block */
#define HZI_MHC_WGMMA_CHUNK 64		/* channels at a time */
#define HZI_MHC_WGMMA_THREADS 384
#define HZI_MHC_WGMMA_BLOCKS 2		/* of a cluster, at most: phi is multicast to them */
#define HZI_MHC_WGMMA_ROWS 80		/* of phi, and as many remainders */
#define HZI_MHC_WGMMA_BYTES (227 * 1024)

/*
 * to [2 ROWS][columns]: phi times gain in two terms of bf16. Rows from m on are 0, as are those of
 * the second terms.
 */
struct hzi_mhc_split_phi {
	const float *phi, *gain;
	uint16_t *to;
	int64_t columns;		/* n C, a multiple of 8 */
	int32_t m, pad_;
};

/* sums [splits][tokens][m + 1], as those of struct hzi_mhc_project */
struct hzi_mhc_project_wgmma {
	struct hzi_tensor_map x;	/* boxes of 64 channels, TOKENS tokens, one stream */
	struct hzi_tensor_map phi;	/* boxes of 64 channels, 2 ROWS / blocks rows, one stream */
	float *sums;
	int64_t tokens;
	int32_t n, m, splits;
	int32_t chunks;			/* of a stream */
	int32_t blocks, pad_;		/* of a cluster */
};

#endif
