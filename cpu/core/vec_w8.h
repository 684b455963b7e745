/*
 * vec_w8.h - vectors of 8 numbers of 16 bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VEC_W8_H
#define HZI_VEC_W8_H

#include "cpu/core/vec.h"

typedef int16_t w8 __attribute__((vector_size(16)));
typedef w8 w8_any __attribute__((aligned(2), may_alias));

INLINE w8 load_w8(const int16_t *p)
{
	return *(const w8_any *)p;
}

INLINE void store_w8(int16_t *p, w8 v)
{
	*(w8_any *)p = v;
}

INLINE w8 set_w8(int a)
{
	return (int16_t)a - (w8){0};
}

/* to[i] = from[i] + v[i] */
INLINE void store_sum_w8(float *to, const float *from, w8 v)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	const __m256 f = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32((__m128i)v));

	_mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(from), f));
#else
	for (int i = 0; i < 8; i++)
		to[i] = from[i] + v[i];
#endif
}

/* The sum of products */
INLINE int dot_w8(w8 a, w8 b)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	__m128i s = _mm_madd_epi16((__m128i)a, (__m128i)b);

	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return _mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 1);
#else
	int sum = 0;

	for (int i = 0; i < 8; i++)
		sum += a[i] * b[i];
	return sum;
#endif
}

#endif
