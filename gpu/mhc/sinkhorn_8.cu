/*
 * sinkhorn_8.cu - Sinkhorn's iteration on matrices of eight streams with common rules
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_MHC_COMMON_RULES
#include "gpu/mhc/sinkhorn.cuh"

KERNEL(mhc_sinkhorn_8, hzi_mhc_sinkhorn_args)
{
	__shared__ float shared[THREADS * PITCH<8>];

	sinkhorn<8>(p, shared);
}

KERNEL(mhc_sinkhorn_bwd_8, hzi_mhc_sinkhorn_bwd_args) { sinkhorn_bwd<8>(p, true); }
