/*
 * factors.cuh - factors and packed signs before and after a transform
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_FACTORS_CUH
#define HZI_GPU_HADAMARD_FACTORS_CUH

#include "gpu/device/dtype.cuh"

/* Factor i of a diagonal */
HZ_DEVICE float factor(int kind, const void *factors, int64_t i)
{
	if (kind == HZ_U8)
		return __uint_as_float(0x3f800000 | (uint32_t)((const uint8_t *)factors)[i >> 3] >>
							    (i & 7) << 31);
	if (kind == HZ_F32)
		return ((const float *)factors)[i];
	return kind == HZ_F16 ? f16_low(((const uint16_t *)factors)[i])
			      : bf16_low(((const uint16_t *)factors)[i]);
}

/* f[j] = factor i + at(j). Tests the kind once. */
template <int N, typename F>
HZ_DEVICE void load_factors(float *f, int kind, const void *factors, int64_t i, F at)
{
	const uint16_t *half = (const uint16_t *)factors + i;

	if (kind == HZ_U8) {
#pragma unroll
		for (int j = 0; j < N; j++)
			f[j] = factor(HZ_U8, factors, i + at(j));
	} else if (kind == HZ_F32) {
#pragma unroll
		for (int j = 0; j < N; j++)
			f[j] = ((const float *)factors)[i + at(j)];
	} else if (kind == HZ_F16) {
#pragma unroll
		for (int j = 0; j < N; j++)
			f[j] = f16_low(half[at(j)]);
	} else {
#pragma unroll
		for (int j = 0; j < N; j++)
			f[j] = bf16_low(half[at(j)]);
	}
}

/* Multiplies N values by factors i .. i + N - 1; N and i are multiples of 8, or N < 8. */
template <int N>
HZ_DEVICE void multiply_factors(float *v, int kind, const void *factors, int64_t i)
{
	constexpr int EACH = N < 8 ? N : 8;

#pragma unroll
	for (int j = 0; j < N; j += EACH) {
		if (kind == HZ_U8) {
			const uint32_t bits = ((const uint8_t *)factors)[(i + j) >> 3] >> (i & 7);

#pragma unroll
			for (int l = 0; l < EACH; l++)
				v[j + l] = __uint_as_float(__float_as_uint(v[j + l]) ^
							   (bits << (31 - l) & 0x80000000));
		} else {
			float f[EACH];

			load_factors<EACH>(f, kind, factors, i + j, [](int l) { return l; });
#pragma unroll
			for (int l = 0; l < EACH; l++)
				v[j + l] = __fmul_rn(v[j + l], f[l]);
		}
	}
}

#endif
