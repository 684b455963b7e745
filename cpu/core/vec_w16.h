/*
 * vec_w16.h - vectors of 16 numbers of 16 bits and of 32 bytes, for AVX2 and AVX-512
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VEC_W16_H
#define HZI_VEC_W16_H

#include "cpu/core/vec.h"

typedef int16_t w16 __attribute__((vector_size(32)));
typedef uint8_t c32 __attribute__((vector_size(32)));
typedef w16 w16_any __attribute__((aligned(2), may_alias));
typedef c32 c32_any __attribute__((aligned(1), may_alias));

INLINE w16 load_w16(const void *p)
{
	return *(const w16_any *)p;
}

INLINE c32 load_c32(const void *p)
{
	return *(const c32_any *)p;
}

INLINE w16 set_w16(int a)
{
	return (int16_t)a - (w16){0};
}

INLINE w16 min_w16(w16 a, w16 b)
{
	return (w16)_mm256_min_epi16((__m256i)a, (__m256i)b);
}

/* Unsigned */
INLINE c32 min_c32(c32 a, c32 b)
{
	return (c32)_mm256_min_epu8((__m256i)a, (__m256i)b);
}

/* The upper 16 bits of products of unsigned numbers */
INLINE w16 mul_high_w16(w16 a, w16 b)
{
	return (w16)_mm256_mulhi_epu16((__m256i)a, (__m256i)b);
}

/*
 * Numbers of two vectors have places 0 .. 31: number k of v[h] has the place p with
 * number_w16(p) = k and vector_w16(p) = h.
 */
#if HZ_VEC == HZ_VEC_AVX512
#define number_w16(place) ((place) & 15)
#define vector_w16(place) ((place) >> 4 & 1)
#else
#define number_w16(place) (((place) & 7) | ((place) >> 1 & 8))
#define vector_w16(place) ((place) >> 3 & 1)
#endif

/* Bytes as upper halves of 16-bit numbers: byte k % 8 + 8 h + k / 8 * 16 of number k of to[h] */
INLINE void widen_c32(c32 v, w16 *to)
{
	to[0] = (w16)_mm256_unpacklo_epi8(_mm256_setzero_si256(), (__m256i)v);
	to[1] = (w16)_mm256_unpackhi_epi8(_mm256_setzero_si256(), (__m256i)v);
}

/* Bit p: the number at place p is less than limit. */
INLINE uint32_t below_w16(const w16 *v, w16 limit)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm256_cmplt_epi16_mask((__m256i)v[0], (__m256i)limit) |
	       (uint32_t)_mm256_cmplt_epi16_mask((__m256i)v[1], (__m256i)limit) << 16;
#else
	return (uint32_t)_mm256_movemask_epi8(_mm256_packs_epi16((__m256i)(v[0] < limit),
								 (__m256i)(v[1] < limit)));
#endif
}

/* The first place of the least number; no number is negative. */
INLINE int least_w16(const w16 *v)
{
	const __m256i all = (__m256i)min_w16(v[0], v[1]);
	const __m128i half = _mm_min_epi16(_mm256_castsi256_si128(all),
					   _mm256_extracti128_si256(all, 1));
	const w16 least = (w16)_mm256_broadcastw_epi16(_mm_minpos_epu16(half));

	return __builtin_ctz(below_w16(v, least + 1));
}

#endif
