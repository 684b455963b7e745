/*
 * reduce.cuh - reductions over the lanes of a warp
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_REDUCE_CUH
#define HZI_DEVICE_REDUCE_CUH

#include "gpu/device/base.cuh"

/* Sums over groups of LANES lanes, a power of two, in all of them: the greatest stride first */
template <int LANES = 32>
HZ_DEVICE float warp_sum(float v)
{
#pragma unroll
	for (int stride = LANES / 2; stride; stride /= 2)
		v += __shfl_xor_sync(~0u, v, stride);
	return v;
}

HZ_DEVICE int32_t warp_sum(int32_t v)
{
	return __reduce_add_sync(~0u, v);
}

/* Sums over four lanes, in all of them: stride 1 first */
template <class T>
HZ_DEVICE T quad_sum(T v)
{
	v += __shfl_xor_sync(~0u, v, 1);
	v += __shfl_xor_sync(~0u, v, 2);
	return v;
}

/* The largest of a warp, in all lanes; NaN is ignored. */
HZ_DEVICE float warp_max(float v)
{
#pragma unroll
	for (int stride = 16; stride; stride /= 2)
		v = fmaxf(v, __shfl_xor_sync(~0u, v, stride));
	return v;
}

/*
 * Sums each of 2 HALF values over the lanes of a group of 2 HALF: the sum of value l ends in lane
 * l, at v[0]. Each step halves what a lane has: with HALF 16 that takes 31 shuffles, not 160.
 */
template <int HALF>
HZ_DEVICE void fold_lanes(float *v)
{
	const bool upper = threadIdx.x & HALF;

#pragma unroll
	for (int i = 0; i < HALF; i++) {
		const float keep = upper ? v[i + HALF] : v[i], send = upper ? v[i] : v[i + HALF];

		v[i] = keep + __shfl_xor_sync(0xffffffff, send, HALF);
	}
	if constexpr (HALF > 1)
		fold_lanes<HALF / 2>(v);
}

#endif
