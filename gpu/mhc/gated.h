/*
 * gated.h - blocks of the kernels of gated.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_H
#define HZI_GPU_MHC_GATED_H

#include <assert.h>

#include "lib/mhc/mhc.h"

#define HZI_MHC_GATED_THREADS 128	/* a stream of a token, a token, or a channel each */
#define HZI_MHC_GATED_COLUMNS 32	/* of a block of mhc_dgain */
#define HZI_MHC_PRODUCT_THREADS 256	/* per block of mhc_product, */
#define HZI_MHC_PRODUCT_TILE 128	/* rows and columns of C that a block makes */
#define HZI_MHC_PRODUCT_BYTES (2 * 4 * HZI_MHC_PRODUCT_TILE * 20 * 4)	/* of shared memory */

/* partial NULL: one split. steps: of k, of a split, a multiple of 32 */
struct hzi_mhc_product_job {
	struct hzi_mhc_product_args g;
	float *partial;
	int64_t steps;
	int32_t splits, a_aligned, b_aligned, pad;
};

static_assert(sizeof(struct hzi_mhc_divide_args) == 176, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_divide_bwd_args) == 160, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_product_job) == 120, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_hidden_args) == 184, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_gate_args) == 112, "the same layout for C and CUDA");

#endif
