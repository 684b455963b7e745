/*
 * prologue.cuh - quantization of single elements and vectors, ranges of floats
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_PROLOGUE_CUH
#define HZI_GPU_QUANTIZE_PROLOGUE_CUH

#include "gpu/device/dtype.cuh"

/* ---- One element ----------------------------------------------------------------------------- */

/*
 * rne(x / scale), with the correctly rounded quotient of IEEE division: with q = x (1 / scale), q +
 * (x - q scale) / scale is that quotient if no step over- or underflows. fast: the scale is in a
 * range where that holds unless q is not finite. A tiny quotient may be off by one ulp, but its
 * code is still 0.
 */
struct divisor {
	float scale, inverse, low,
	high;	/* bounds of rne(x / scale), before the zero point is added */
	int32_t zero;
	bool fast;
};

#define TO_INTEGER 12582912.0f	/* 1.5 2^23: adding it rounds to an integer in the low bits */

HZ_DEVICE divisor make_divisor(float scale, int32_t zero, bool is_signed)
{
	const float size = fabsf(scale);
	divisor d;

	d.scale = scale;
	d.inverse = __frcp_rn(scale);
	d.low = (float)((is_signed ? -128 : 0) - zero);
	d.high = d.low + 255;
	d.zero = zero;
	d.fast = size >= 0x1p-60f && size <= 0x1p60f;
	return d;
}

/* The code of a quotient, in the low byte */
HZ_DEVICE uint32_t code_of(const divisor &d, float t)
{
	return __float_as_uint(__fadd_rn(fminf(fmaxf(t, d.low), d.high), TO_INTEGER)) + d.zero;
}

HZ_DEVICE uint32_t encode(const divisor &d, float x)
{
	const float t = __fdiv_rn(x, d.scale);

	return code_of(d, isnan(t) ? 0.0f : t);
}

/* x / scale by a call, since most of the code of kernels with many elements would be divisions */
[[maybe_unused]] static __device__ __noinline__ float divide_call(float x, float scale)
{
	return __fdiv_rn(x, scale);
}

/* The same, with a fast path for scales and quotients of moderate size */
HZ_DEVICE uint32_t encode_fast(const divisor &d, float x)
{
	const float q = __fmul_rn(x, d.inverse);

	if (!d.fast || isnan(__fmul_rn(q, 0.0f))) {
		const float t = divide_call(x, d.scale);

		return code_of(d, isnan(t) ? 0.0f : t);
	}
	return code_of(d, __fmaf_rn(__fmaf_rn(-q, d.scale, x), d.inverse, q));
}

/* ---- Vectors of 16 bytes --------------------------------------------------------------------- */

template <int DTYPE>
struct vec16 {
	static constexpr int count = DTYPE == HZ_F32 ? 4 : 8;
};

template <int DTYPE>
HZ_DEVICE void unpack(float (&f)[8], const uint4 &v)
{
	const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (DTYPE == HZ_F32) {
			f[i] = __uint_as_float(w[i]);
		} else {
			f[2 * i] = DTYPE == HZ_F16 ? f16_low(w[i]) : bf16_low(w[i]);
			f[2 * i + 1] = DTYPE == HZ_F16 ? f16_high(w[i]) : bf16_high(w[i]);
		}
	}
}

HZ_DEVICE uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/* The codes of a vector, one byte each; f32 fills only the first word. */
template <int DTYPE>
HZ_DEVICE uint2 encode_vector(const uint4 &v, const divisor &d)
{
	constexpr int count = vec16<DTYPE>::count;
	float f[8], finite = d.fast ? 0.0f : NAN;
	uint32_t code[8] = {};

	unpack<DTYPE>(f, v);
#pragma unroll
	for (int j = 0; j < count; j++) {
		const float q = __fmul_rn(f[j], d.inverse);

		finite = __fmaf_rn(q, 0.0f, finite);
		code[j] = code_of(d, __fmaf_rn(__fmaf_rn(-q, d.scale, f[j]), d.inverse, q));
	}
	if (isnan(finite)) {
#pragma unroll
		for (int j = 0; j < count; j++)
			code[j] = encode(d, f[j]);
	}
	return make_uint2(low_bytes(code[0], code[1], code[2], code[3]),
			  low_bytes(code[4], code[5], code[6], code[7]));
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

/*
 * The range of floats, which includes 0: below = max(0, -x), above = max(0, x). fmaxf() ignores
 * NaN.
 */
struct range {
	float below, above;
};

HZ_DEVICE void range_add(range &r, float x)
{
	r.below = fmaxf(r.below, -x);
	r.above = fmaxf(r.above, x);
}

HZ_DEVICE range range_join(const range &a, const range &b)
{
	return {fmaxf(a.below, b.below), fmaxf(a.above, b.above)};
}

/* Joins the range of this lane and that of lane `lane ^ d`; mask has the lanes that take part. */
HZ_DEVICE range range_join_xor(const range &r, int d, uint32_t mask)
{
	return range_join(r, {__shfl_xor_sync(mask, r.below, d),
			      __shfl_xor_sync(mask, r.above, d)});
}

/* The range over a warp, in all lanes */
HZ_DEVICE range range_join_warp(range r)
{
#pragma unroll
	for (int d = 16; d; d /= 2) {
		r.below = fmaxf(r.below, __shfl_xor_sync(~0u, r.below, d));
		r.above = fmaxf(r.above, __shfl_xor_sync(~0u, r.above, d));
	}
	return r;
}

#endif
