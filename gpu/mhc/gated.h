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
#define HZI_MHC_PRODUCT_ROWS 128	/* rows of C that a block makes */
#define HZI_MHC_PRODUCT_COLUMNS 64	/* and columns of C */

static_assert(sizeof(struct hzi_mhc_divide_args) == 176, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_divide_bwd_args) == 160, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_product_args) == 88, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_hidden_args) == 184, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_gate_args) == 112, "the same layout for C and CUDA");

#endif
