/*
 * pack_planar.cuh - quaternions as f16 planes: scales, and the sums of the fast method
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The largest component is scaled into [2^12, 2^13): sums of four components fit f16, and
 * components smaller by 2^-37 are not yet 0.
 */
#ifndef HZI_GPU_QUAT_GEMM_PACK_PLANAR_CUH
#define HZI_GPU_QUAT_GEMM_PACK_PLANAR_CUH

#include "gpu/quat_gemm/epilogue.cuh"

HZ_DEVICE float magnitude(quat q)
{
	return fmaxf(fmaxf(fabsf(q.w), fabsf(q.x)), fmaxf(fabsf(q.y), fabsf(q.z)));
}

/* The exponent of the scale, -115 .. 126, for numbers of this largest magnitude */
HZ_DEVICE int scale_exponent(float most)
{
	const int e = (int)(__float_as_uint(most) >> 23) - 127;

	return most == 0 || e == 128 ? 0 : min(12 - e, 126);
}

HZ_DEVICE float power_of_two(int e)
{
	return __uint_as_float((uint32_t)(e + 127) << 23);
}

#define EXPONENT_MAX 126	/* of scale_exponent() */

/* An exponent no larger than e; most = 0 allows any. */
HZ_DEVICE int next_exponent(int e, float most)
{
	return most == 0 ? e : min(e, scale_exponent(most));
}

/* The factor from the scale of one exponent to that of another, which is no larger; or almost 0 */
HZ_DEVICE float rescale(int from, int to)
{
	return power_of_two(max(to - from, -126));
}

/* Magnitudes as ordered bits, shifted so that Inf and NaN alone are below zeros */
#define MAGNITUDE_LEAST (1u << 24)

HZ_DEVICE uint32_t magnitude_of(uint32_t bits)
{
	return 2 * bits + MAGNITUDE_LEAST;
}

/* For the largest such magnitude: 2^12 or more, and no larger than e; also for zeros */
HZ_DEVICE int next_exponent(int e, uint32_t most)
{
	return min(e, 12 + 127 - (int)((most - MAGNITUDE_LEAST) >> 24));
}

HZ_DEVICE float from_magnitude(uint32_t m)
{
	return __uint_as_float((m - MAGNITUDE_LEAST) >> 1);
}

/* Row i of the Hadamard matrix of order 4 times q */
HZ_DEVICE float hadamard_of(quat q, int i)
{
	const float s = q.w + q.x, d = q.w - q.x, t = q.y + q.z, u = q.y - q.z;

	return i == 0 ? s + t : i == 1 ? s - t : i == 2 ? d + u : d - u;
}

#endif
