/*
 * sinkhorn_4.cu - Sinkhorn's iteration on matrices of four streams with common rules
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_MHC_COMMON_RULES
#include "gpu/mhc/sinkhorn.cuh"

KERNEL(mhc_sinkhorn_4, hzi_mhc_sinkhorn_args) { sinkhorn<4>(p, NULL); }
KERNEL(mhc_sinkhorn_bwd_4, hzi_mhc_sinkhorn_bwd_args) { sinkhorn_bwd<4>(p, false); }
