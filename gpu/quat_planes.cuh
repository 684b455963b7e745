/*
 * quat_planes.cuh - quaternions as planes of f16: scales, and the sums of eight products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The largest component is scaled to 2^12 or more and below 2^13: four of them, added up, are f16,
 * and what is smaller by 2^-37 is not 0 yet.
 */
#ifndef HZI_QUAT_PLANES_CUH
#define HZI_QUAT_PLANES_CUH

#include "gpu/quat_gemm.cuh"

HZ_DEVICE float magnitude(quat q)
{
	return fmaxf(fmaxf(fabsf(q.w), fabsf(q.x)), fmaxf(fabsf(q.y), fabsf(q.z)));
}

/* The power of two for numbers whose largest magnitude is that; its exponent is in -115 .. 126. */
HZ_DEVICE int scale_exponent(float most)
{
	const int e = (int)(__float_as_uint(most) >> 23) - 127;

	return most == 0 || e == 128 ? 0 : min(12 - e, 126);
}

HZ_DEVICE float power_of_two(int e)
{
	return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* Row i of the Hadamard matrix of order 4 times q. */
HZ_DEVICE float hadamard_of(quat q, int i)
{
	const float s = q.w + q.x, d = q.w - q.x, t = q.y + q.z, u = q.y - q.z;

	return i == 0 ? s + t : i == 1 ? s - t : i == 2 ? d + u : d - u;
}

#endif
