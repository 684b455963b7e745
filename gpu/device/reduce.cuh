/*
 * reduce.cuh - reductions over the lanes of a warp
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_REDUCE_CUH
#define HZI_DEVICE_REDUCE_CUH

#include "gpu/device/base.cuh"

/*
 * The sum over each group of LANES lanes, a power of two, in all of its lanes; adds at the largest
 * stride first
 */
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

/* The sum over each group of four lanes, in all of them; adds at stride 1 first */
template <class T>
HZ_DEVICE T quad_sum(T v)
{
	v += __shfl_xor_sync(~0u, v, 1);
	v += __shfl_xor_sync(~0u, v, 2);
	return v;
}

/* The maximum over the warp, in all lanes; NaN is ignored. */
HZ_DEVICE float warp_max(float v)
{
#pragma unroll
	for (int stride = 16; stride; stride /= 2)
		v = fmaxf(v, __shfl_xor_sync(~0u, v, stride));
	return v;
}

/*
 * Reduce-scatter over groups of 2 HALF lanes: v[0] of lane l becomes the sum of v[l] over the
 * group. Each step halves the values that a lane holds, so HALF = 16 takes 31 shuffles rather than
 * 160.
 */
template <int HALF>
HZ_DEVICE void reduce_scatter_lanes(float *v)
{
	const bool upper = threadIdx.x & HALF;

#pragma unroll
	for (int i = 0; i < HALF; i++) {
		const float keep = upper ? v[i + HALF] : v[i], send = upper ? v[i] : v[i + HALF];

		v[i] = keep + __shfl_xor_sync(0xffffffff, send, HALF);
	}
	if constexpr (HALF > 1)
		reduce_scatter_lanes<HALF / 2>(v);
}

#endif
