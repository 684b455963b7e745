/*
 * requant.h - requantization of accumulators, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_REQUANT_H
#define HZI_REQUANT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "hurwitz.h"

#ifdef __CUDACC__
#define HZI_BOTH static __host__ __device__ inline
#else
#define HZI_BOTH static inline
#endif

/* sigma = u / 2^shift. Kernels get 1 <= shift <= 62, for C of s32 also 0, -1, -2. */
struct hzi_multiplier {
	int32_t u, shift;
};

/*
 * Limits a pair to what kernels support. With sigma >= 2^9 every acc but 0 saturates 8 bits; with
 * sigma >= 2^32 it saturates s32 (is_s32) whatever c_zero is. So sigma is lowered to 2^29, or 2^32.
 * The other integer roundings saturate acc before the multiplication, so u is kept then.
 */
HZI_BOTH struct hzi_multiplier hzi_limit(struct hzi_multiplier m, int is_s32, int exact)
{
	const int least = is_s32 ? -2 : 1;

	if (m.shift < least || (is_s32 && m.shift == least)) {
		m.u = is_s32 && !exact ? m.u : 1 << 30;
		m.shift = least;
	}
	return m;
}

/*
 * The pair for a sigma > 0 in f32, for 8-bit C or (is_s32) for s32. u holds its 24 bits exactly.
 * Below 2^-32 every acc gives y = 0. u is 0 for a sigma that is not positive and finite.
 */
HZI_BOTH struct hzi_multiplier hzi_multiplier_f32(float sigma, int is_s32, int exact)
{
	struct hzi_multiplier m = {0, 1};
	uint32_t bits, fraction;
	int exponent;		/* sigma = fraction 2^(exponent - 23), 2^23 <= fraction < 2^24 */

	memcpy(&bits, &sigma, sizeof(bits));
	if (bits == 0 || bits >= 0x7f800000)
		return m;
	/* Subnormals, whose exponent field is 0, are far below 2^-32. */
	exponent = (int)(bits >> 23) - 127;
	fraction = (bits & 0x7fffff) | 0x800000;
	m.u = (int32_t)(fraction << 7);
	m.shift = 30 - exponent;
	if (m.shift > 62) {
		m.u = 0;
		m.shift = 1;
	}
	return hzi_limit(m, is_s32, exact);
}

/* sigma of a column, in the order of operations that hurwitz.h defines */
HZI_BOTH float hzi_sigma(float a_scale, float b_scale, float c_scale)
{
#ifdef __CUDA_ARCH__
	return __fdiv_rn(__fmul_rn(a_scale, b_scale), c_scale);
#else
	const float product = a_scale * b_scale;

	return product / c_scale;
#endif
}

/* y of HZ_REQUANT_EXACT: |acc u| <= 2^62, and 2^63 at most with a shift below 0 */
HZI_BOTH int64_t hzi_requant_exact(int32_t acc, int32_t u, int32_t shift)
{
	const int64_t product = (int64_t)acc * u;

	if (shift <= 0)
		return product * ((int64_t)1 << -shift);
	return (product + ((int64_t)1 << (shift - 1))) >> shift;
}

/* clamp_s32(acc 2^max(31 - shift, 0)) u */
HZI_BOTH int64_t hzi_requant_product(int32_t acc, int32_t u, int32_t shift)
{
	/* From 31 on every acc but 0 saturates; 2^31 |acc| <= 2^62 fits. */
	const int left = shift < 0 ? 31 : shift < 31 ? 31 - shift : 0;
	const int64_t x = (int64_t)acc * ((int64_t)1 << left);

	return (x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x) * u;
}

/*
 * y of HZ_REQUANT_GEMMLOWP: RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(..)), in which u
 * < 2^31 excludes the one case that saturates.
 */
HZI_BOTH int64_t hzi_requant_gemmlowp(int32_t acc, int32_t u, int32_t shift)
{
	const int right = shift > 31 ? shift - 31 : 0;
	const int64_t x = hzi_requant_product(acc, u, shift), mask = ((int64_t)1 << right) - 1;
	const int64_t high = (x + (x >= 0 ? 1 << 30 : 1 - (1 << 30))) / ((int64_t)1 << 31);

	return (high >> right) + ((high & mask) > (mask >> 1) + (high < 0));
}

/* y of HZ_REQUANT_RUY */
HZI_BOTH int64_t hzi_requant_ruy(int32_t acc, int32_t u, int32_t shift)
{
	const int right = shift > 31 ? shift - 31 : 0;
	const int64_t high = (hzi_requant_product(acc, u, shift) + (1 << 30)) >> 31;

	return (high + ((int64_t)1 << right >> 1)) >> right;
}

/*
 * Operands of a column in the two words that otherwise hold u and shift. HZ_REQUANT_FLOAT: sigma
 * and the bias over the scales of A and B, in f32. HZ_REQUANT_LITERT_REF: sigma in f64. A sigma that
 * is not positive and finite becomes 0, and so does the bias then.
 */
HZI_BOTH struct hzi_multiplier hzi_requant_float_column(float sigma, float product, float bias)
{
	struct hzi_multiplier m = {0, 0};

	if (sigma > 0 && sigma - sigma == 0) {
#ifdef __CUDA_ARCH__
		bias = __fdiv_rn(bias, product);
#else
		bias = bias / product;
#endif
		memcpy(&m.u, &sigma, 4);
		memcpy(&m.shift, &bias, 4);
	}
	return m;
}

HZI_BOTH struct hzi_multiplier hzi_requant_double_column(double sigma)
{
	struct hzi_multiplier m;
	uint64_t bits;

	memcpy(&bits, &sigma, 8);
	if (!(sigma > 0 && sigma - sigma == 0))
		bits = 0;
	m.u = (int32_t)(uint32_t)bits;
	m.shift = (int32_t)(bits >> 32);
	return m;
}

/*
 * The words of a column: those of all columns, with a bias, unless its scale of B `varies`. The
 * bias is that of f32, or 0.
 */
HZI_BOTH struct hzi_multiplier hzi_requant_words(int requant, struct hzi_multiplier all, int varies,
						 float a_scale, float b_scale, float c_scale,
						 float bias)
{
	float sigma;

	if (requant == HZ_REQUANT_LITERT_REF)
		return varies ? hzi_requant_double_column((double)a_scale * b_scale / c_scale) :
				all;
	memcpy(&sigma, &all.u, 4);
	if (varies)
		sigma = hzi_sigma(a_scale, b_scale, c_scale);
	return hzi_requant_float_column(sigma, hzi_sigma(a_scale, b_scale, 1), bias);
}

#define HZI_REQUANT_MOST 0x1p33		/* beyond it every y saturates; NaN becomes 0 */

/* y of HZ_REQUANT_FLOAT, from the words of hzi_requant_float_column(). */
HZI_BOTH int64_t hzi_requant_float(int32_t acc, int32_t u, int32_t shift)
{
	const float most = (float)HZI_REQUANT_MOST;
	float sigma, bias, t;

	memcpy(&sigma, &u, 4);
	memcpy(&bias, &shift, 4);
#ifdef __CUDA_ARCH__
	t = __fmul_rn(__fadd_rn(__int2float_rn(acc), bias), sigma);
#else
	t = (float)acc + bias;
	t = t * sigma;
#endif
	t = t >= most ? most : t > -most ? t : t <= -most ? -most : 0;
	return (int64_t)rintf(t);
}

/* y of HZ_REQUANT_LITERT_REF, likewise: ties go away from zero. */
HZI_BOTH int64_t hzi_requant_litert_ref(int32_t acc, int32_t u, int32_t shift)
{
	const uint64_t bits = (uint32_t)u | (uint64_t)(uint32_t)shift << 32;
	double sigma, t;

	memcpy(&sigma, &bits, 8);
	t = acc * sigma;
	t = t > HZI_REQUANT_MOST ? HZI_REQUANT_MOST : t < -HZI_REQUANT_MOST ? -HZI_REQUANT_MOST : t;
	return (int64_t)round(t);
}

/* y of an acc by enum hz_requant */
HZI_BOTH int64_t hzi_requant(int requant, int32_t acc, int32_t u, int32_t shift)
{
	switch (requant) {
	case HZ_REQUANT_EXACT:
		return hzi_requant_exact(acc, u, shift);
	case HZ_REQUANT_FLOAT:
		return hzi_requant_float(acc, u, shift);
	case HZ_REQUANT_RUY:
		return hzi_requant_ruy(acc, u, shift);
	case HZ_REQUANT_GEMMLOWP:
		return hzi_requant_gemmlowp(acc, u, shift);
	default:
		return hzi_requant_litert_ref(acc, u, shift);
	}
}

#endif
