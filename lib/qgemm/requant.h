/*
 * requant.h - requantization of accumulators, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_REQUANT_H
#define HZI_REQUANT_H

#include <stdint.h>
#include <string.h>

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
 * HZ_ROUND_TFLITE saturates acc before the multiplication, so u is kept then.
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

/* y of HZ_ROUND_EXACT: |acc u| <= 2^62, and 2^63 at most with a shift below 0 */
HZI_BOTH int64_t hzi_requant(int32_t acc, int32_t u, int32_t shift)
{
	const int64_t product = (int64_t)acc * u;

	if (shift <= 0)
		return product * ((int64_t)1 << -shift);
	return (product + ((int64_t)1 << (shift - 1))) >> shift;
}

/*
 * y of HZ_ROUND_TFLITE: gemmlowp's RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(..)), in
 * which u < 2^31 excludes the one case that saturates.
 */
HZI_BOTH int64_t hzi_requant_tflite(int32_t acc, int32_t u, int32_t shift)
{
	/* From 31 on every acc but 0 saturates; 2^31 |acc| <= 2^62 fits. */
	const int left = shift < 0 ? 31 : shift < 31 ? 31 - shift : 0;
	const int right = shift > 31 ? shift - 31 : 0;
	int64_t x = (int64_t)acc * ((int64_t)1 << left), high, mask, low_bits;

	x = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x;
	x *= u;
	high = (x + (x >= 0 ? 1 << 30 : 1 - (1 << 30))) / ((int64_t)1 << 31);
	mask = ((int64_t)1 << right) - 1;
	low_bits = high & mask;
	return (high >> right) + (low_bits > (mask >> 1) + (high < 0));
}

#endif
