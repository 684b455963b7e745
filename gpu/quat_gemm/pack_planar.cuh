/*
 * pack_planar.cuh - quaternions as planes of f16: scales, and the sums of eight products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The largest component is scaled to 2^12 or more and below 2^13: four of them, added up, are f16,
 * and what is smaller by 2^-37 is not 0 yet.
 */
#ifndef HZI_QUAT_PLANES_CUH
#define HZI_QUAT_PLANES_CUH

#include "gpu/quat_gemm/epilogue.cuh"

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

#define EXPONENT_MAX 126	/* of scale_exponent() */

/* No larger than the one ahead; most = 0 is for any. */
HZ_DEVICE int next_exponent(int e, float most)
{
	return most == 0 ? e : min(e, scale_exponent(most));
}

/* What takes numbers with the one scale to the other, which is no larger; or to next to nothing. */
HZ_DEVICE float rescale(int from, int to)
{
	return power_of_two(max(to - from, -126));
}

/*
 * Magnitudes as bits, which are ordered as they are, and moved so that Inf and NaN, and these
 * alone, are below zeros.
 */
#define MAGNITUDE_LEAST (1u << 24)

HZ_DEVICE uint32_t magnitude_of(uint32_t bits)
{
	return 2 * bits + MAGNITUDE_LEAST;
}

/* By the largest of such: 2^12 or more, and no larger than the one ahead; also of zeros */
HZ_DEVICE int next_exponent(int e, uint32_t most)
{
	return min(e, 12 + 127 - (int)((most - MAGNITUDE_LEAST) >> 24));
}

HZ_DEVICE float from_magnitude(uint32_t m)
{
	return __uint_as_float((m - MAGNITUDE_LEAST) >> 1);
}

/* Row i of the Hadamard matrix of order 4 times q. */
HZ_DEVICE float hadamard_of(quat q, int i)
{
	const float s = q.w + q.x, d = q.w - q.x, t = q.y + q.z, u = q.y - q.z;

	return i == 0 ? s + t : i == 1 ? s - t : i == 2 ? d + u : d - u;
}

#endif
