/*
 * gated_gemv.h - parameters of gated_gemv.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_GEMV_H
#define HZI_GPU_MHC_GATED_GEMV_H

#include <assert.h>

#include "lib/mhc/mhc.h"

#define HZI_MHC_GEMV_DOWN_THREADS 1024
#define HZI_MHC_GEMV_UP_THREADS 256
#define HZI_MHC_GEMV_TOKENS 8		/* at most */
#define HZI_MHC_GEMV_RANK 128
#define HZI_MHC_GEMV_STREAMS 4
#define HZI_MHC_GEMV_ROWS 16		/* of the weights: of a block of mhc_gated_gemv_down */
#define HZI_MHC_GEMV_CLUSTER 4		/* its blocks for the channels of a stream */
#define HZI_MHC_GEMV_SLICE HZI_MHC_GEMV_DOWN_THREADS	/* channels: 32 of a warp at a time */
#define HZI_MHC_GEMV_CHANNELS 32	/* of a block of mhc_gated_gemv_up */

/* partial: [n][T][pitch], products of W_down's and W_q's rows and of a stream; squares: [n][T] */
struct hzi_mhc_gated_gemv {
	struct hzi_mhc_gated_args a;
	float *partial, *squares;
	int32_t slice;			/* channels of a block, a multiple of 1024 */
	int32_t rows, pitch, row_tiles;
};

static_assert(sizeof(struct hzi_mhc_gated_gemv) == 304, "the same layout for C and CUDA");

#endif
