/*
 * vec_u8.h - the vector vocabulary: vectors of bytes, and tables of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Included after vec.h. Every function gives the same bits at every level.
 */
#ifndef HZI_VEC_BYTES_H
#define HZI_VEC_BYTES_H

#include "cpu/core/vec.h"

typedef vu8 vu8_any __attribute__((aligned(1), may_alias));

INLINE vu8 load_bytes(const uint8_t *p)
{
	return *(const vu8_any *)p;
}

INLINE void store_bytes(uint8_t *p, vu8 v)
{
	*(vu8_any *)p = v;
}

/* Non-temporal store: see stream_f32(). */
INLINE void stream_bytes(uint8_t *p, vu8 v)
{
	stream_f32((float *)(void *)p, (vf)v);
}

/*
 * v[j] = table[v[j]] for n vectors of indices below size, which is 16, 64, 128 or 256. Where
 * shuffles look up 16 entries, all 16-entry parts of the table are tried: for an index outside a
 * part, the sum with 0x70 has its upper bit set, which makes the shuffle give 0.
 */
INLINE void lookup(const uint8_t *table, const int size, vu8 *v, const int n)
{
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512VBMI__)
	const __m512i t0 = size == 16 ? _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table))
				      : _mm512_loadu_si512(table);

	UNROLL
	for (int j = 0; j < n; j++) {
		const __m512i i = (__m512i)v[j];

		if (size == 16)
			v[j] = (vu8)_mm512_shuffle_epi8(t0, i);
		else if (size == 64)
			v[j] = (vu8)_mm512_permutexvar_epi8(i, t0);
		else
			v[j] = (vu8)_mm512_permutex2var_epi8(t0, i, _mm512_loadu_si512(table + 64));
		if (size == 256)
			v[j] = (vu8)_mm512_mask_blend_epi8(
				_mm512_movepi8_mask(i), (__m512i)v[j],
				_mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), i,
							 _mm512_loadu_si512(table + 192)));
	}
#elif HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	const __m128i first = _mm_loadu_si128((const void *)table);
	vu8 r[4] = {{0}};

	if (size == 16) {
		UNROLL
		for (int j = 0; j < n; j++) {
#if HZ_VEC == HZ_VEC_AVX512
			v[j] = (vu8)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(first),
							(__m512i)v[j]);
#else
			v[j] = (vu8)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(first),
							(__m256i)v[j]);
#endif
		}
		return;
	}
	for (int part = 0; part < size; part += 16) {
		const __m128i t = _mm_loadu_si128((const void *)(table + part));

		UNROLL
		for (int j = 0; j < n; j++) {
#if HZ_VEC == HZ_VEC_AVX512
			const __m512i i = _mm512_xor_si512((__m512i)v[j],
							   _mm512_set1_epi8((char)part));

			r[j] |= (vu8)_mm512_shuffle_epi8(
				_mm512_broadcast_i32x4(t),
				_mm512_adds_epu8(i, _mm512_set1_epi8(0x70)));
#else
			const __m256i i = _mm256_xor_si256((__m256i)v[j],
							   _mm256_set1_epi8((char)part));

			r[j] |= (vu8)_mm256_shuffle_epi8(
				_mm256_broadcastsi128_si256(t),
				_mm256_adds_epu8(i, _mm256_set1_epi8(0x70)));
#endif
		}
	}
	UNROLL
	for (int j = 0; j < n; j++)
		v[j] = r[j];
#elif HZ_VEC == HZ_VEC_NEON
	UNROLL
	for (int j = 0; j < n; j++) {
		const uint8x16_t i = (uint8x16_t)v[j];
		uint8x16_t r;

		if (size == 16) {
			v[j] = (vu8)vqtbl1q_u8(vld1q_u8(table), i);
			continue;
		}
		/* 0 for indices above 63; each further part inserts its own entries. */
		r = vqtbl4q_u8(vld1q_u8_x4(table), i);
		UNROLL
		for (int part = 64; part < size; part += 64)
			r = vqtbx4q_u8(r, vld1q_u8_x4(table + part), i - (uint8_t)part);
		v[j] = (vu8)r;
	}
#else
	(void)size;
	for (int j = 0; j < n; j++) {
		uint8_t bytes[4 * LANES];

		store_bytes(bytes, v[j]);
		for (int l = 0; l < 4 * LANES; l++)
			bytes[l] = table[bytes[l]];
		v[j] = load_bytes(bytes);
	}
#endif
}

/* table[index] in each 16 bytes, for an index below 16 */
INLINE vu8 shuffle_bytes(vu8 table, vu8 index)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vu8)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vu8)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#elif HZ_VEC == HZ_VEC_NEON
	return (vu8)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#else
	vu8 r;

	for (int i = 0; i < 16; i++)
		r[i] = table[index[i]];
	return r;
#endif
}

/* Broadcasts four bytes to every lane. */
INLINE vu8 four_bytes(const int8_t *p)
{
	int32_t four;

	memcpy(&four, p, 4);
	return (vu8)set_i(four);
}

/*
 * Products of unsigned and signed bytes; neighbouring ones are added to 16 bits, which must suffice.
 */
INLINE vu16 madd_bytes(vu8 u, vu8 v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vu16)_mm512_maddubs_epi16((__m512i)u, (__m512i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vu16)_mm256_maddubs_epi16((__m256i)u, (__m256i)v);
#else
	typedef int16_t vshort __attribute__((vector_size(4 * LANES)));

	return (vu16)((vshort)((vu16)u & 255) * ((vshort)((vu16)v << 8) >> 8) +
		      (vshort)((vu16)u >> 8) * ((vshort)v >> 8));
#endif
}

/* table[i] of up to 64 floats, 0 <= i < 64 */
INLINE vf lookup_f32(const float *table, vi i)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512 low = _mm512_permutex2var_ps(_mm512_loadu_ps(table), (__m512i)i,
						  _mm512_loadu_ps(table + 16));
	const __m512 high = _mm512_permutex2var_ps(_mm512_loadu_ps(table + 32), (__m512i)i,
						   _mm512_loadu_ps(table + 48));

	return (vf)_mm512_mask_blend_ps(_mm512_test_epi32_mask((__m512i)i, _mm512_set1_epi32(32)),
					low, high);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_i32gather_ps(table, (__m256i)i, 4);
#else
	return (vf){table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
#endif
}

/*
 * Interleaves bytes i of four vectors: part l (16 bytes) of v[j] becomes the elements 4 j .. 4 j +
 * 3 of part l, each of four bytes.
 */
INLINE void zip_bytes(vu8 *v)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512i a = _mm512_unpacklo_epi8((__m512i)v[0], (__m512i)v[1]);
	const __m512i b = _mm512_unpackhi_epi8((__m512i)v[0], (__m512i)v[1]);
	const __m512i c = _mm512_unpacklo_epi8((__m512i)v[2], (__m512i)v[3]);
	const __m512i d = _mm512_unpackhi_epi8((__m512i)v[2], (__m512i)v[3]);

	v[0] = (vu8)_mm512_unpacklo_epi16(a, c);
	v[1] = (vu8)_mm512_unpackhi_epi16(a, c);
	v[2] = (vu8)_mm512_unpacklo_epi16(b, d);
	v[3] = (vu8)_mm512_unpackhi_epi16(b, d);
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256i a = _mm256_unpacklo_epi8((__m256i)v[0], (__m256i)v[1]);
	const __m256i b = _mm256_unpackhi_epi8((__m256i)v[0], (__m256i)v[1]);
	const __m256i c = _mm256_unpacklo_epi8((__m256i)v[2], (__m256i)v[3]);
	const __m256i d = _mm256_unpackhi_epi8((__m256i)v[2], (__m256i)v[3]);

	v[0] = (vu8)_mm256_unpacklo_epi16(a, c);
	v[1] = (vu8)_mm256_unpackhi_epi16(a, c);
	v[2] = (vu8)_mm256_unpacklo_epi16(b, d);
	v[3] = (vu8)_mm256_unpackhi_epi16(b, d);
#elif HZ_VEC == HZ_VEC_NEON
	const uint8x16x2_t a = vzipq_u8((uint8x16_t)v[0], (uint8x16_t)v[1]);
	const uint8x16x2_t b = vzipq_u8((uint8x16_t)v[2], (uint8x16_t)v[3]);

	v[0] = (vu8)vzip1q_u16((uint16x8_t)a.val[0], (uint16x8_t)b.val[0]);
	v[1] = (vu8)vzip2q_u16((uint16x8_t)a.val[0], (uint16x8_t)b.val[0]);
	v[2] = (vu8)vzip1q_u16((uint16x8_t)a.val[1], (uint16x8_t)b.val[1]);
	v[3] = (vu8)vzip2q_u16((uint16x8_t)a.val[1], (uint16x8_t)b.val[1]);
#else
	const vu8 a = v[0], b = v[1], c = v[2], d = v[3];

	for (int i = 0; i < 16; i++) {
		v[i / 4][i % 4 * 4] = a[i];
		v[i / 4][i % 4 * 4 + 1] = b[i];
		v[i / 4][i % 4 * 4 + 2] = c[i];
		v[i / 4][i % 4 * 4 + 3] = d[i];
	}
#endif
}

#endif
