/*
 * mhc_pre.cu - coefficients of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/common.cuh"
#include "gpu/mhc_pre.h"

extern "C" __global__ void mhc_pre_any(const __grid_constant__ hzi_mhc_pre_args a)
{
	(void)a;
}
