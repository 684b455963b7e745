/*
 * quantize.cuh - scales of groups of values, and their codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_CUH
#define HZI_GPU_QUANTIZE_CUH

#include "gpu/device/dtype.cuh"

/*
 * The quantizer of a group: s and, exact to 2^-47, 1 / s = r + low. If shift is not 1, values are
 * multiplied by it before, as s was, and are clamped to the value of the largest code.
 */
struct quantizer {
	float s, r, low, shift;
};

HZ_DEVICE float largest_value(int q_dtype)
{
	return q_dtype == HZ_S8	    ? 127.0f
	       : q_dtype == HZ_S4X2 ? 7.0f
	       : q_dtype == HZ_E4M3 ? 448.0f
				    : 57344.0f;
}

/* The scale for the largest magnitude of a group; *code: the scale as e8m0 */
HZ_DEVICE float group_scale(float amax, int q_dtype, int scale_dtype, uint32_t *code)
{
	const float nan = __uint_as_float(0x7fc00000), inf = __uint_as_float(0x7f800000);
	/* Of f32: the largest amax whose s, rounded up, times the largest code is finite */
	const float f32_cap = 0x1.fffffcp127f;
	/* Of e8m0: the largest code times a power of two; larger values saturate. */
	const float e8m0_cap = q_dtype == HZ_S8 ? 0x1.fcp127f : 0x1.cp127f;
	const float cap = scale_dtype == HZ_E8M0 ? e8m0_cap : f32_cap;
	const float s = __fdiv_rn(fminf(amax, cap), largest_value(q_dtype));
	uint32_t u = __float_as_uint(s);

	*code = 127;
	if (amax == 0)
		return 1;
	*code = 255;
	if (!(amax < inf))
		return amax == inf && scale_dtype == HZ_F32 ? inf : nan;
	if (scale_dtype != HZ_E8M0)
		return fmaxf(s, __uint_as_float(0x00800000));	/* FLT_MIN */
	/* Rounds up to a power of two: 2^-127, which is subnormal, or a float with mantissa 0 */
	u = u <= 1u << 22 ? 1u << 22 : (u + 0x7fffff) & 0x7f800000;
	*code = u >> 23;
	return __uint_as_float(u);
}

HZ_DEVICE quantizer quantizer_of(float s, int q_dtype)
{
	quantizer z = {s, 0, 0, 1};

	if (!(s < __uint_as_float(0x7f800000))) {
		/*
		 * Codes of integer types become 0. Floating-point codes become 0, or NaN if the
		 * value or s is NaN.
		 */
		if (q_dtype == HZ_S8 || q_dtype == HZ_S4X2)
			return {0, 0, 0, 0};
		return {0, s > 0 ? 0 : s, 0, 1};
	}
	/* Outside this range a step of quotient() might underflow. */
	if (!(s > 0x1p-50f && s < 0x1p50f)) {
		z.shift = s < 1 ? 0x1p100f : 0x1p-100f;
		z.s = __fmul_rn(s, z.shift);
	}
	z.r = __frcp_rn(z.s);
	z.low = __fmul_rn(__fmaf_rn(-z.r, z.s, 1.0f), z.r);
	return z;
}

/*
 * The clamp is needed where e8m0's s was rounded down, or is NaN: there |v / s| may exceed the
 * largest code by more than rounding removes.
 */
HZ_DEVICE float shifted(float v, const quantizer &z, int q_dtype)
{
	const float most = __fmul_rn(largest_value(q_dtype), z.s);

	return fminf(fmaxf(__fmul_rn(v, z.shift), -most), most);
}

/*
 * v / s, correctly rounded: the first estimate is within one unit in the last place, so Markstein's
 * correction gives the exact rounding.
 */
HZ_DEVICE float quotient(float v, const quantizer &z)
{
	const float q = __fmaf_rn(v, z.r, __fmul_rn(v, z.low));

	return __fmaf_rn(__fmaf_rn(-q, z.s, v), z.r, q);
}

HZ_DEVICE float sign_of(float magnitude, float sign)
{
	return __uint_as_float((__float_as_uint(magnitude) & 0x7fffffff) |
			       (__float_as_uint(sign) & 0x80000000));
}

/* q rounded to an integer, in the low bits of the float 1.5 2^23 + q */
HZ_DEVICE uint32_t integer_code(float q)
{
	return __float_as_uint(q + 12582912.0f);
}

/* v / s with the sign of v, which the quotient may lose if it is 0 or NaN */
HZ_DEVICE float signed_quotient(float v, const quantizer &z)
{
	return sign_of(quotient(v, z), v);
}

/* The codes of N quotients with signs, packed from the low end */
template <int N, int DTYPE>
HZ_DEVICE uint32_t pack_codes(const float *q)
{
	uint32_t word = 0;

	if constexpr (DTYPE == HZ_E4M3 || DTYPE == HZ_E5M2) {
#pragma unroll
		for (int i = 0; i < N; i += 2) {
			const float high = i + 1 < N ? q[(i + 1) % N] : 0;

			word |= (DTYPE == HZ_E4M3 ? to_e4m3x2(q[i], high) : to_e5m2x2(q[i], high))
				<< (i * 8);
		}
	} else if constexpr (DTYPE == HZ_S8 && N == 4) {
		word = __byte_perm(
			__byte_perm(integer_code(q[0]), integer_code(q[1]), 0x0040),
			__byte_perm(integer_code(q[2]), integer_code(q[3]), 0x0040), 0x5410);
	} else {
#pragma unroll
		for (int i = 0; i < N; i++)
			word |= (integer_code(q[i]) & (DTYPE == HZ_S8 ? 0xff : 0xf))
				<< (i * (DTYPE == HZ_S8 ? 8 : 4));
	}
	return word;
}

/* The codes of N values of a group */
template <int N, int DTYPE>
HZ_DEVICE uint32_t encode(const float *v, const quantizer &z)
{
	float q[N];

#pragma unroll
	for (int i = 0; i < N; i++)
		q[i] = DTYPE == HZ_S8 || DTYPE == HZ_S4X2 ? quotient(v[i], z)
							  : signed_quotient(v[i], z);
	return pack_codes<N, DTYPE>(q);
}

/* Bytes of i codes */
template <int DTYPE>
HZ_DEVICE int64_t code_bytes(int64_t i)
{
	return DTYPE == HZ_S4X2 || DTYPE == HZ_E2M1X2 ? i >> 1 : i;
}

/* Stores N = 1, 2 or 4 codes; s4x2 needs N >= 2. */
template <int N, int DTYPE>
HZ_DEVICE void store_codes(void *p, uint32_t word)
{
	if constexpr (N == 4 && DTYPE != HZ_S4X2)
		*(uint32_t *)p = word;
	else if constexpr (N == 4 || (N == 2 && DTYPE != HZ_S4X2))
		*(uint16_t *)p = (uint16_t)word;
	else
		*(uint8_t *)p = (uint8_t)word;
}

HZ_DEVICE void store_scale(int scale_dtype, void *scale, int64_t i, float s, uint32_t code)
{
	if (scale_dtype == HZ_F32)
		((float *)scale)[i] = s;
	else
		((uint8_t *)scale)[i] = (uint8_t)code;
}

#endif
