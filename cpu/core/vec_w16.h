/*
 * vec_w16.h - vectors of 16 numbers of 16 bits and of 32 bytes, rows of 8 numbers, for AVX2 and
 * AVX-512
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VEC_W16_H
#define HZI_VEC_W16_H

#include "cpu/core/vec_i16.h"

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

/* Bit p: the number at place p is less than limit, which is the same in all lanes. */
INLINE uint32_t below_w16(const w16 *v, w16 limit)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m128i one = _mm256_castsi256_si128((__m256i)limit);

	return _mm512_cmplt_epi16_mask(_mm512_loadu_si512(v), _mm512_broadcastw_epi16(one));
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
	const __m128i least = _mm_minpos_epu16(half);
#if HZ_VEC == HZ_VEC_AVX512
	const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)v[0]),
						(__m256i)v[1], 1);

	return __builtin_ctz(_mm512_cmpeq_epi16_mask(both, _mm512_broadcastw_epi16(least)));
#else
	return __builtin_ctz(below_w16(v, (w16)_mm256_broadcastw_epi16(least) + 1));
#endif
}

/* Interleave elements, pairs of elements, of the lower and the upper halves of 128-bit parts. */
#define PART_LOW(i) ((i) / 4 * 4 + (i) % 4 / 2 + (i) % 2 * LANES)
#define PART_HIGH(i) (PART_LOW(i) + 2)
#define PAIR_LOW(i) ((i) / 4 * 4 + (i) % 2 + (i) % 4 / 2 * LANES)
#define PAIR_HIGH(i) (PAIR_LOW(i) + 2)

/* Element j of LANES rows of 8 to v[j] */
INLINE void load_rows(const float *const *row, vf *v)
{
	vf part[4], low[2], high[2];

	UNROLL
	for (int h = 0; h < 2; h++) {
		/* 128-bit part n of part[i]: half h of row i + 4 n. */
		UNROLL
		for (int i = 0; i < 4; i++) {
			__m256 b = _mm256_castps128_ps256(_mm_loadu_ps(row[i] + 4 * h));

			b = _mm256_insertf128_ps(b, _mm_loadu_ps(row[i + 4] + 4 * h), 1);
#if HZ_VEC == HZ_VEC_AVX512
			__m512 c = _mm512_castps256_ps512(b);

			c = _mm512_insertf32x4(c, _mm_loadu_ps(row[i + 8] + 4 * h), 2);
			c = _mm512_insertf32x4(c, _mm_loadu_ps(row[i + 12] + 4 * h), 3);
			part[i] = (vf)c;
#else
			part[i] = (vf)b;
#endif
		}
		UNROLL
		for (int i = 0; i < 2; i++) {
			low[i] = SHUFFLE(part[2 * i], part[2 * i + 1], EACH(PART_LOW));
			high[i] = SHUFFLE(part[2 * i], part[2 * i + 1], EACH(PART_HIGH));
		}
		v[4 * h] = SHUFFLE(low[0], low[1], EACH(PAIR_LOW));
		v[4 * h + 1] = SHUFFLE(low[0], low[1], EACH(PAIR_HIGH));
		v[4 * h + 2] = SHUFFLE(high[0], high[1], EACH(PAIR_LOW));
		v[4 * h + 3] = SHUFFLE(high[0], high[1], EACH(PAIR_HIGH));
	}
}

#endif
