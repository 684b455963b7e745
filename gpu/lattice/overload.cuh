/*
 * overload.cuh - the counts of overloaded and of nonfinite blocks
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_OVERLOAD_CUH
#define HZI_GPU_LATTICE_OVERLOAD_CUH

#include "gpu/device/base.cuh"

/* Adds the counts of a warp: one atomic per count that is not 0. */
HZ_DEVICE void count_overload(uint64_t *counts, uint32_t overloaded, uint32_t nonfinite)
{
	const uint32_t lane = threadIdx.x & 31;

	overloaded = __reduce_add_sync(~0u, overloaded);
	nonfinite = __reduce_add_sync(~0u, nonfinite);
	if (lane == 0 && overloaded)
		atomicAdd((unsigned long long *)counts, overloaded);
	if (lane == 0 && nonfinite)
		atomicAdd((unsigned long long *)counts + 1, nonfinite);
}

#endif
