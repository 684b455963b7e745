/*
 * prologue.cuh - floats to codes, and their ranges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_PROLOGUE_CUH
#define HZI_GPU_QUANTIZE_PROLOGUE_CUH

#include "gpu/device/dtype.cuh"

/* ---- One element ----------------------------------------------------------------------------- */

/*
 * rne(x / scale) with the quotient of IEEE division: q + (x - q scale) / scale with q = x (1 /
 * scale) is that quotient as long as nothing under- or overflows on the way. quick: the scale makes
 * nothing do so, but x may, and then q is not finite. A tiny quotient may be off: it is 0 then all
 * the same.
 */
struct divisor {
	float scale, inverse, low, high;	/* bounds of the result, before the zero is added */
	int32_t zero;
	bool quick;
};

#define TO_INTEGER 12582912.0f	/* 1.5 2^23: the sum with it has no bits behind the point */

HZ_DEVICE divisor make_divisor(float scale, int32_t zero, bool is_signed)
{
	const float size = fabsf(scale);
	divisor d;

	d.scale = scale;
	d.inverse = __frcp_rn(scale);
	d.low = (float)((is_signed ? -128 : 0) - zero);
	d.high = d.low + 255;
	d.zero = zero;
	d.quick = size >= 0x1p-60f && size <= 0x1p60f;
	return d;
}

/* The code of a quotient is in the lowest byte. */
HZ_DEVICE uint32_t code_of(const divisor &d, float t)
{
	return __float_as_uint(__fadd_rn(fminf(fmaxf(t, d.low), d.high), TO_INTEGER)) + d.zero;
}

HZ_DEVICE uint32_t encode(const divisor &d, float x)
{
	const float t = __fdiv_rn(x, d.scale);

	return code_of(d, isnan(t) ? 0.0f : t);
}

/* The same in fewer steps for usual numbers. */
HZ_DEVICE uint32_t encode_quick(const divisor &d, float x)
{
	const float q = __fmul_rn(x, d.inverse);

	if (!d.quick || isnan(__fmul_rn(q, 0.0f)))
		return encode(d, x);
	return code_of(d, __fmaf_rn(__fmaf_rn(-q, d.scale, x), d.inverse, q));
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

template <int DTYPE>
struct piece {
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

/* The codes of a piece, in bytes; of f32 there are only the first four. */
template <int DTYPE>
HZ_DEVICE uint2 encode_piece(const uint4 &v, const divisor &d)
{
	constexpr int count = piece<DTYPE>::count;
	float f[8], finite = d.quick ? 0.0f : NAN;
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

/* fmaxf() passes by NaN. */
struct range {
	float below, above;
};

HZ_DEVICE void widen(range &r, float x)
{
	r.below = fmaxf(r.below, -x);
	r.above = fmaxf(r.above, x);
}

/* That of so many lanes next to each other, 32 at most, in all of them */
HZ_DEVICE range join_lanes(range r, int lanes)
{
#pragma unroll
	for (int i = 16; i; i /= 2) {
		if (i >= lanes)
			continue;
		r.below = fmaxf(r.below, __shfl_xor_sync(~0u, r.below, i));
		r.above = fmaxf(r.above, __shfl_xor_sync(~0u, r.above, i));
	}
	return r;
}

HZ_DEVICE range join_warp(range r)
{
	return join_lanes(r, 32);
}

#endif
