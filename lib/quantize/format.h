/*
 * format.h - quantization formats and the scales of groups: arithmetic that C and CUDA share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each function rounds every step to f32, so that both compilers give the same bits.
 */
#ifndef HZI_QUANTIZE_FORMAT_H
#define HZI_QUANTIZE_FORMAT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "hurwitz.h"
#include "lib/qgemm/requant.h"

#define HZI_FORMAT_F32_MAX 3.40282347e+38f

HZI_BOTH float hzi_bits_float(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, 4);
	return f;
}

HZI_BOTH uint32_t hzi_float_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, 4);
	return bits;
}

/* Products and sums that nvcc does not contract */
HZI_BOTH float hzi_f32_mul(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fmul_rn(a, b);
#else
	return a * b;
#endif
}

HZI_BOTH float hzi_f32_add(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fadd_rn(a, b);
#else
	return a + b;
#endif
}

/* ---- Formats --------------------------------------------------------------------------------- */

HZI_BOTH bool hzi_format_is_float(int dtype)
{
	return dtype == HZ_E2M1X2 || dtype == HZ_E4M3 || dtype == HZ_E5M2;
}

/* Bits of a code */
HZI_BOTH int hzi_format_bits(int dtype)
{
	switch (dtype) {
	case HZ_S2X4:
	case HZ_U2X4:
		return 2;
	case HZ_S4X2:
	case HZ_U4X2:
	case HZ_E2M1X2:
		return 4;
	case HZ_S16:
	case HZ_U16:
		return 16;
	default:
		return 8;
	}
}

/* Codes of a byte, or 1 */
HZI_BOTH int hzi_format_pack(int dtype)
{
	return hzi_format_bits(dtype) < 8 ? 8 / hzi_format_bits(dtype) : 1;
}

HZI_BOTH bool hzi_format_is_signed(int dtype)
{
	return dtype != HZ_U8 && dtype != HZ_U16 && dtype != HZ_U4X2 && dtype != HZ_U2X4;
}

/* The smallest and the largest integer code */
HZI_BOTH int32_t hzi_format_low(int dtype)
{
	return hzi_format_is_signed(dtype) ? -(1 << (hzi_format_bits(dtype) - 1)) : 0;
}

HZI_BOTH int32_t hzi_format_high(int dtype)
{
	return hzi_format_low(dtype) + (1 << hzi_format_bits(dtype)) - 1;
}

/* The largest magnitude of a symmetric format */
HZI_BOTH float hzi_format_most(int dtype)
{
	return dtype == HZ_E2M1X2 ? 6.0f : dtype == HZ_E4M3 ? 448.0f :
	       dtype == HZ_E5M2 ? 57344.0f : (float)hzi_format_high(dtype);
}

/* Bits of mantissa of a float format, and the exponent of its smallest normal number */
HZI_BOTH int hzi_format_mantissa(int dtype)
{
	return dtype == HZ_E2M1X2 ? 1 : dtype == HZ_E4M3 ? 3 : 2;
}

HZI_BOTH int hzi_format_exponent(int dtype)
{
	return dtype == HZ_E2M1X2 ? 0 : dtype == HZ_E4M3 ? -6 : -14;
}

/*
 * Element i of the stream of random numbers in [0, 1): the upper 24 bits of the first output of
 * splitmix64 (Steele, Lea, Flood 2014) started at seed + i, times 2^-24.
 */
HZI_BOTH float hzi_uniform(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + i + 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return (float)(uint32_t)(z >> 40) * 0x1p-24f;
}

/* v rounded to an integer: to nearest, ties to even, if u < 0; else up with the probability of v's
 * fraction, that is, if u is less than it */
HZI_BOTH float hzi_round_by(float v, float u)
{
	const float down = floorf(v);

	return u < 0 ? rintf(v) : u < v - down ? down + 1 : down;
}

/* The code of t in a float format: saturates; NaN becomes 0x7f, or 0 in e2m1, which has no NaN. */
HZI_BOTH uint32_t hzi_encode_float(float t, int dtype, float u)
{
	const int mantissa = hzi_format_mantissa(dtype), least = hzi_format_exponent(dtype);
	const uint32_t sign = hzi_float_bits(t) >> 31 << (hzi_format_bits(dtype) - 1);
	const float most = hzi_format_most(dtype);
	float a = fabsf(t);
	int e;

	if (a != a)
		return dtype == HZ_E2M1X2 ? 0 : 0x7f;
	a = a > most ? most : a;
	e = (int)(hzi_float_bits(a) >> 23) - 127;
	e = e < least ? least : e;
	/* The code counts steps of 2^(e - mantissa): a carry increments the exponent. */
	a *= hzi_bits_float((uint32_t)(127 + mantissa - e) << 23);
	return sign | ((uint32_t)hzi_round_by(a, u) + ((uint32_t)(e - least) << mantissa));
}

HZI_BOTH float hzi_decode_float(uint32_t code, int dtype)
{
	const int mantissa = hzi_format_mantissa(dtype), least = hzi_format_exponent(dtype);
	const int bits = hzi_format_bits(dtype);
	const uint32_t m = code & ((1u << (bits - 1)) - 1), e = m >> mantissa;
	const uint32_t sign = (code >> (bits - 1) & 1) << 31;
	const uint32_t ulp = (uint32_t)(127 + least - mantissa) << 23;

	if ((dtype == HZ_E4M3 && m == 0x7f) || (dtype == HZ_E5M2 && m > 0x7c))
		return hzi_bits_float(0x7fc00000);
	if (dtype == HZ_E5M2 && m == 0x7c)
		return hzi_bits_float(0x7f800000 | sign);
	if (e == 0)
		return hzi_bits_float(hzi_float_bits((float)m * hzi_bits_float(ulp)) | sign);
	return hzi_bits_float((m << (23 - mantissa)) + ((uint32_t)(126 + least) << 23) + sign);
}

/* Integers: t clamped to low .. high, which are the bounds less the zero point, and rounded */
HZI_BOTH int32_t hzi_encode_integer(float t, float low, float high, float u)
{
	if (t != t)
		t = 0;
	t = t < low ? low : t > high ? high : t;
	return (int32_t)hzi_round_by(t, u);
}

/* The integer that the low bits of a code hold */
HZI_BOTH int32_t hzi_decode_integer(uint32_t code, int dtype)
{
	const int shift = 32 - hzi_format_bits(dtype);

	return hzi_format_is_signed(dtype) ? (int32_t)(code << shift) >> shift
					   : (int32_t)(code << shift >> shift);
}

/* ---- Scales ---------------------------------------------------------------------------------- */

HZI_BOTH float hzi_decode_e8m0(uint32_t code)
{
	return hzi_bits_float(code == 255 ? 0x7fc00000 : code ? code << 23 : 1u << 22);
}

/* The factor of a tensor: p decodes, s = 1 / p, and most is the largest magnitude of the tensor. */
struct hzi_tensor_factor {
	float s, p, most;
};

/* From the largest magnitude of the tensor; torchao: by HZ_SCALE_NV_TORCHAO */
HZI_BOTH struct hzi_tensor_factor hzi_tensor_factor_of(float most, bool torchao)
{
	struct hzi_tensor_factor f;

	f.most = most;
	if (torchao) {
		f.p = most / 2688.0f;
		f.p = f.p > 0 && f.p <= HZI_FORMAT_F32_MAX ? f.p : 1;
		f.s = 1.0f / f.p;
		return f;
	}
	/* TransformerEngine: min(FLT_MAX, 2688 / most), 1 if that is 0 or most is */
	f.s = most > 0 ? 2688.0f / most : 1;
	f.s = f.s > HZI_FORMAT_F32_MAX ? HZI_FORMAT_F32_MAX : f.s > 0 ? f.s : 1;
	f.p = 1.0f / f.s;
	return f;
}

/* From a given factor of decoding */
HZI_BOTH struct hzi_tensor_factor hzi_tensor_factor_given(float p)
{
	struct hzi_tensor_factor f;

	f.p = p;
	f.s = 1.0f / p;
	f.most = hzi_f32_mul(p, 2688.0f);
	return f;
}

/* A scale as stored, and how values become quotients: x * factor, or with divide x / factor */
struct hzi_scale {
	uint32_t bits;
	float factor;
	bool divide;
};

/*
 * The scale of e8m0 for a largest magnitude given as bits; the factor is 2^-e, and a product of it
 * is the quotient.
 */
HZI_BOTH uint32_t hzi_scale_e8m0(uint32_t amax, int q_dtype, int rule)
{
	const int top = q_dtype == HZ_E2M1X2 ? 2 : q_dtype == HZ_E4M3 ? 8 : 15;
	const uint32_t nan = amax > 0x7f800000;
	int e;

	if (rule == HZ_SCALE_RCEIL) {
		const uint32_t d = hzi_float_bits(hzi_bits_float(amax) / hzi_format_most(q_dtype));

		/* Up to a power of two; 2^-127 is subnormal */
		e = d <= 1u << 22 ? 0 : (int)((d + 0x7fffff) >> 23);
		e = e > 254 ? 254 : e;
	} else {
		if (rule == HZ_SCALE_EVEN)
			amax += 1u << (22 - hzi_format_mantissa(q_dtype));
		e = (int)(amax >> 23) - top +
		    (rule == HZ_SCALE_CEIL && (amax & 0x7fffff) != 0);
		e = e < 0 ? 0 : e;
	}
	return nan ? 255 : (uint32_t)e;
}

HZI_BOTH float hzi_inverse_e8m0(uint32_t code)
{
	return hzi_bits_float(code == 255 ? 0x7fc00000 :
			      code == 254 ? 1u << 22 : (254 - code) << 23);
}

/* 1 / v, at most FLT_MAX, also of 0 */
HZI_BOTH float hzi_f32_inverse(float v)
{
	const float r = v > 0 ? 1.0f / v : v == 0 ? HZI_FORMAT_F32_MAX : v;

	return r > HZI_FORMAT_F32_MAX ? HZI_FORMAT_F32_MAX : r;
}

/* The e4m3 scale for a base: TransformerEngine's rule; *factor: of values */
HZI_BOTH uint32_t hzi_scale_nv(float base, float p, float *factor)
{
	const uint32_t code = hzi_encode_float(base, HZ_E4M3, -1);

	*factor = hzi_f32_inverse(hzi_f32_mul(hzi_decode_float(code, HZ_E4M3), p));
	return code;
}

/* The scale for a group's largest magnitude, given as bits. HZ_SCALE_NV46 gives that of 6. */
HZI_BOTH struct hzi_scale hzi_scale_of(uint32_t amax, int q_dtype, int rule,
				       struct hzi_tensor_factor t)
{
	const float b = hzi_bits_float(amax);
	struct hzi_scale s = {0, 0, false};
	float base;

	switch (rule) {
	case HZ_SCALE_AMAX:
		s.divide = true;
		s.factor = hzi_bits_float(s.bits = 0x7fc00000);
		if (amax > 0x7f800000)
			return s;
		/* The largest code times the scale stays finite when the scale is rounded up. */
		base = (amax == 0x7f7fffff ? hzi_bits_float(0x7f7ffffe) : b) /
		       hzi_format_most(q_dtype);
		s.factor = amax == 0 ? 1 : base < 0x1p-126f ? 0x1p-126f : base;
		s.bits = hzi_float_bits(s.factor);
		return s;
	case HZ_SCALE_NV_TE:
		s.bits = hzi_scale_nv(hzi_f32_mul(b, hzi_f32_mul(t.s, 1.0f / 6.0f)), t.p, &s.factor);
		return s;
	case HZ_SCALE_NV46:
		s.bits = hzi_scale_nv(hzi_f32_mul(b / 6.0f, t.s), t.p, &s.factor);
		return s;
	case HZ_SCALE_NV_TORCHAO:
		base = b / 6.0f / t.p;
		s.bits = hzi_encode_float(base < 0x1p-6f ? 0x1p-6f : base, HZ_E4M3, -1);
		s.factor = 1.0f / t.p / hzi_decode_float(s.bits, HZ_E4M3);
		return s;
	default:
		s.bits = hzi_scale_e8m0(amax, q_dtype, rule);
		s.factor = hzi_inverse_e8m0(s.bits);
		return s;
	}
}

/* The squared error of a value by HZ_SCALE_NV46: d is the decoded scale of its group. */
HZI_BOTH float hzi_nv46_error(float x, uint32_t code, float d, float most)
{
	const float v = hzi_f32_mul(hzi_decode_float(code, HZ_E2M1X2), d);
	const float e = hzi_f32_add(hzi_f32_mul(v, most) / 2688.0f, -x);

	return hzi_f32_mul(e, e);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/*
 * Between floats x and codes q of any format. Element (outer indices, i) of x is at the sum of
 * index * x_stride plus i * x_step, its code at that of q_stride, which count elements of q, plus i
 * codes of q_step (1 in packed formats); its scale and zero point have number (the sum of index *
 * p_stride) + i / group, and its random number the sum of index * r_stride plus i. Outer dimensions
 * are merged; no size is 0. A code's quotient is that by fl(scale * tensor_scale); low and high are
 * the bounds of an integer code.
 *
 * chosen: scales are chosen by `rule` and written; then group is a multiple of the codes of a byte,
 * or n. new_tensor_scale: tensor_scale is that of the largest magnitude of all of x.
 */
struct hzi_format_args {
	bool dequantize, chosen, stochastic;
	void *x, *q;
	int32_t x_dtype, q_dtype, scale_dtype, rule, round_to;
	int64_t n, group, x_step, q_step;
	int32_t ndim;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM],
		r_stride[HZ_MAXDIM];
	void *scales;			/* NULL: scale and zero */
	const void *zeros;		/* codes, one byte each; two for 16-bit formats */
	const float *tensor_scale;	/* NULL: 1 */
	float *new_tensor_scale;
	float scale;
	int32_t zero, low, high;
	uint64_t seed;
};

#ifndef __CUDACC__
/* Merges outer dimensions into the row, and with each other, where all strides allow it. */
void hzi_format_merge(struct hzi_format_args *a);
#endif

/* The factor of a call; most: the bits of the largest magnitude of x if the factor is new */
HZI_BOTH struct hzi_tensor_factor hzi_format_tensor(const float *given, bool is_new, int rule,
						    uint32_t most)
{
	return is_new ? hzi_tensor_factor_of(hzi_bits_float(most), rule == HZ_SCALE_NV_TORCHAO)
		      : hzi_tensor_factor_given(given ? *given : 1);
}

#endif
