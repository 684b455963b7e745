/*
 * vec_i16.h - the vector vocabulary: masks, and 16-bit and 8-bit lanes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Included after vec.h. Every function gives the same bits at every level.
 */
#ifndef HZI_VEC_LANES_H
#define HZI_VEC_LANES_H

#include <stdbool.h>

#include "cpu/core/vec.h"

#if HZ_VEC == HZ_VEC_C
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE_LANES(type, a, b, ...) __builtin_shufflevector((type)(a), (type)(b), __VA_ARGS__)
#else
#define SHUFFLE_LANES(type, a, b, ...) __builtin_shuffle((type)(a), (type)(b), (type){__VA_ARGS__})
#endif
#endif

/*
 * Whole vectors of 16-bit and 8-bit lanes: 2 LANES of vs, 4 LANES of vc. Lane masks, which & | ~
 * work on, are bits where the level has mask registers, else vectors of -1 and 0.
 */
typedef int16_t vs __attribute__((vector_size(4 * LANES)));
typedef int8_t vc __attribute__((vector_size(4 * LANES)));
typedef vs vs_any __attribute__((aligned(1), may_alias));
typedef vc vc_any __attribute__((aligned(1), may_alias));

#if HZ_VEC == HZ_VEC_AVX512
typedef __mmask16 vm;
typedef __mmask32 vms;
typedef __mmask64 vmc;
#else
typedef vi vm;
typedef vs vms;
typedef vc vmc;
#endif

INLINE vs set_s(int a)
{
	return (int16_t)a - (vs){0};
}

INLINE vc set_c(int a)
{
	return (int8_t)a - (vc){0};
}

INLINE vm less_f(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
#else
	return a < b;
#endif
}

/* Where a <= limit; false for a NaN */
INLINE vm within_f(vf a, vf limit)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm512_cmp_ps_mask((__m512)a, (__m512)limit, _CMP_LE_OQ);
#else
	return a <= limit;
#endif
}

INLINE vm equal_f(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ);
#else
	return a == b;
#endif
}

INLINE vm odd_i(vi a)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm512_test_epi32_mask((__m512i)a, _mm512_set1_epi32(1));
#else
	return -(a & 1);
#endif
}

INLINE vm negative_i(vi a)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm512_movepi32_mask((__m512i)a);
#else
	return a >> 31;
#endif
}

/* v where the mask is set, else 0 */
INLINE vf keep_f(vm mask, vf v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_maskz_mov_ps(mask, (__m512)v);
#else
	return (vf)(mask & (vi)v);
#endif
}

INLINE vi keep_i(vm mask, vi v)
{
	return (vi)keep_f(mask, (vf)v);
}

/* a where the mask is set, else b */
INLINE vf blend_f(vm mask, vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_mask_mov_ps((__m512)b, mask, (__m512)a);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
	return select_mask(mask, a, b);
#endif
}

INLINE vi blend_i(vm mask, vi a, vi b)
{
	return (vi)blend_f(mask, (vf)a, (vf)b);
}

/* A lane mask of two vectors a and b: by the intrinsic with AVX-512, else by the expression */
#if HZ_VEC == HZ_VEC_AVX512
#define COMPARE(x86, generic) _mm512_##x86((__m512i)a, (__m512i)b)
#else
#define COMPARE(x86, generic) (generic)
#endif

INLINE vms equal_s(vs a, vs b)
{
	return COMPARE(cmpeq_epi16_mask, a == b);
}

INLINE vmc equal_c(vc a, vc b)
{
	return COMPARE(cmpeq_epi8_mask, a == b);
}

INLINE vms less_s(vs a, vs b)
{
	return COMPARE(cmplt_epi16_mask, a < b);
}

INLINE vmc less_c(vc a, vc b)
{
	return COMPARE(cmplt_epi8_mask, a < b);
}

/* Where any bit of b is set in a */
INLINE vms bits_s(vs a, vs b)
{
	return COMPARE(test_epi16_mask, (a & b) != 0);
}

INLINE vmc bits_c(vc a, vc b)
{
	return COMPARE(test_epi8_mask, (a & b) != 0);
}

INLINE vs keep_s(vms mask, vs v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_maskz_mov_epi16(mask, (__m512i)v);
#else
	return mask & v;
#endif
}

INLINE vc keep_c(vmc mask, vc v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vc)_mm512_maskz_mov_epi8(mask, (__m512i)v);
#else
	return mask & v;
#endif
}

INLINE vs blend_s(vms mask, vs a, vs b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_mask_mov_epi16((__m512i)b, mask, (__m512i)a);
#else
	return (mask & a) | (~mask & b);
#endif
}

INLINE vc blend_c(vmc mask, vc a, vc b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vc)_mm512_mask_mov_epi8((__m512i)b, mask, (__m512i)a);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vc)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)mask);
#else
	return (mask & a) | (~mask & b);
#endif
}

/* The intrinsic of two vectors a and b that the level has, or else the expression `generic` */
#if HZ_VEC == HZ_VEC_AVX512
#define BINARY(type, x86, neon, neon_type, generic) \
	((type)_mm512_##x86((__m512i)a, (__m512i)b))
#elif HZ_VEC == HZ_VEC_AVX2
#define BINARY(type, x86, neon, neon_type, generic) \
	((type)_mm256_##x86((__m256i)a, (__m256i)b))
#elif HZ_VEC == HZ_VEC_NEON
#define BINARY(type, x86, neon, neon_type, generic) ((type)neon((neon_type)a, (neon_type)b))
#else
#define BINARY(type, x86, neon, neon_type, generic) ((type)(generic))
#endif

INLINE vs max_s(vs a, vs b)
{
	return BINARY(vs, max_epi16, vmaxq_s16, int16x8_t, blend_s(a > b, a, b));
}

INLINE vs min_s(vs a, vs b)
{
	return BINARY(vs, min_epi16, vminq_s16, int16x8_t, blend_s(a < b, a, b));
}

INLINE vc max_c(vc a, vc b)
{
	return BINARY(vc, max_epi8, vmaxq_s8, int8x16_t, blend_c(a > b, a, b));
}

INLINE vc min_c(vc a, vc b)
{
	return BINARY(vc, min_epi8, vminq_s8, int8x16_t, blend_c(a < b, a, b));
}

/* Unsigned bytes: the larger, the smaller, and (a + b + 1) / 2 */
INLINE vu8 max_b(vu8 a, vu8 b)
{
	return BINARY(vu8, max_epu8, vmaxq_u8, uint8x16_t, a + ((b - a) & (vu8)(a < b)));
}

INLINE vu8 min_b(vu8 a, vu8 b)
{
	return BINARY(vu8, min_epu8, vminq_u8, uint8x16_t, a + ((b - a) & (vu8)(a > b)));
}

INLINE vu8 average_b(vu8 a, vu8 b)
{
	return BINARY(vu8, avg_epu8, vrhaddq_u8, uint8x16_t, (a | b) - ((a ^ b) >> 1));
}

INLINE vs abs_s(vs a)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_abs_epi16((__m512i)a);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_abs_epi16((__m256i)a);
#else
	return max_s(a, -a);
#endif
}

INLINE vc abs_c(vc a)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vc)_mm512_abs_epi8((__m512i)a);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vc)_mm256_abs_epi8((__m256i)a);
#else
	return max_c(a, -a);
#endif
}

/* Shift all lanes by n < 16; right shifts keep the sign. */
INLINE vs shift_left_s(vs a, int n)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_sllv_epi16((__m512i)a, _mm512_set1_epi16((int16_t)n));
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_sll_epi16((__m256i)a, _mm_cvtsi32_si128(n));
#else
	return a << n;
#endif
}

INLINE vs shift_right_s(vs a, int n)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_srav_epi16((__m512i)a, _mm512_set1_epi16((int16_t)n));
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_sra_epi16((__m256i)a, _mm_cvtsi32_si128(n));
#else
	return a >> n;
#endif
}

/* Products modulo 2^16 */
INLINE vs mul_low_s(vs a, vs b)
{
	return (vs)((vu16)a * (vu16)b);
}

/* The upper halves of unsigned products */
INLINE vs mul_high_s(vs a, vs b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_mulhi_epu16((__m512i)a, (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_mulhi_epu16((__m256i)a, (__m256i)b);
#elif HZ_VEC == HZ_VEC_NEON
	const uint16x8_t u = (uint16x8_t)a, v = (uint16x8_t)b;

	return (vs)vuzp2q_u16((uint16x8_t)vmull_u16(vget_low_u16(u), vget_low_u16(v)),
			      (uint16x8_t)vmull_high_u16(u, v));
#else
	vs r;

	for (int i = 0; i < 2 * LANES; i++)
		r[i] = (int16_t)((uint32_t)(uint16_t)a[i] * (uint16_t)b[i] >> 16);
	return r;
#endif
}

/* Unsigned 16-bit lanes: the larger, the smaller, (a + b + 1) / 2, and a - b or 0 */
INLINE vs max_u(vs a, vs b)
{
	return BINARY(vs, max_epu16, vmaxq_u16, uint16x8_t, blend_s((vu16)a > (vu16)b, a, b));
}

INLINE vs min_u(vs a, vs b)
{
	return BINARY(vs, min_epu16, vminq_u16, uint16x8_t, blend_s((vu16)a < (vu16)b, a, b));
}

INLINE vs average_u(vs a, vs b)
{
	return BINARY(vs, avg_epu16, vrhaddq_u16, uint16x8_t,
		      (vu16)(a | b) - ((vu16)(a ^ b) >> 1));
}

INLINE vs subtract_u(vs a, vs b)
{
	return BINARY(vs, subs_epu16, vqsubq_u16, uint16x8_t, a - min_u(a, b));
}

/* a b / 2^15, to nearest, halves up; not for both -2^15 */
INLINE vs mul_round_s(vs a, vs b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_mulhrs_epi16((__m512i)a, (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_mulhrs_epi16((__m256i)a, (__m256i)b);
#elif HZ_VEC == HZ_VEC_NEON
	return (vs)vqrdmulhq_s16((int16x8_t)a, (int16x8_t)b);
#elif defined(__SSE2__)
	const vs high = (vs)_mm_mulhi_epi16((__m128i)a, (__m128i)b), low = mul_low_s(a, b);

	return high + high + (vs)((((vu16)low >> 14) + 1) >> 1);
#else
	vs r;

	for (int i = 0; i < 2 * LANES; i++)
		r[i] = (int16_t)((a[i] * b[i] + 0x4000) >> 15);
	return r;
#endif
}

/* table[i] of 16 numbers */
INLINE vf lookup_16(const float *table, vi i)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_permutexvar_ps((__m512i)i, (__m512)load_f32(table));
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256 low = _mm256_permutevar8x32_ps((__m256)load_f32(table), (__m256i)i);
	const __m256 high = _mm256_permutevar8x32_ps((__m256)load_f32(table + 8), (__m256i)i);

	return (vf)_mm256_blendv_ps(low, high, (__m256)(i << 28));
#else
	vf r;

	for (int j = 0; j < LANES; j++)
		r[j] = table[i[j]];
	return r;
#endif
}

/* Whether any lane of a mask is set */
INLINE int any_m(vm mask)
{
#if HZ_VEC == HZ_VEC_AVX512
	return mask != 0;
#else
	return any_gt(set_i(0), mask);
#endif
}

/* Bit i is lane i of a mask. */
INLINE uint32_t bits_m(vm mask)
{
#if HZ_VEC == HZ_VEC_AVX512
	return mask;
#elif HZ_VEC == HZ_VEC_AVX2
	return (uint32_t)_mm256_movemask_ps((__m256)mask);
#else
	return (uint32_t)((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
#endif
}

/* The largest magnitude of n bfloat16 numbers, as bits; n is a multiple of 16 */
INLINE uint32_t most_bf16(const uint16_t *p, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	/* The smallest 0x7fff - magnitude, for which there is an instruction */
	const __m256i all = _mm256_set1_epi16(0x7fff);
	__m256i least = all;
	__m128i half;

	for (int64_t i = 0; i < n; i += 16)
		least = _mm256_min_epu16(least, _mm256_andnot_si256(
			_mm256_loadu_si256((const void *)(p + i)), all));
	half = _mm_min_epu16(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
	return 0x7fff - ((uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(half)) & 0xffff);
#else
	vs most = {0};
	int16_t largest = 0;

	for (int64_t i = 0; i < n; i += 2 * LANES)
		most = max_s(most, *(const vs_any *)(p + i) & 0x7fff);
	for (int i = 0; i < 2 * LANES; i++)
		largest = most[i] > largest ? most[i] : largest;
	return (uint32_t)largest;
#endif
}

/*
 * Packs the lanes of two vectors, saturated to 16 bits, in an order that depends on the level:
 * in_order_s() puts those of v[0] first, and part_s() restores v[h].
 */
INLINE vs pack_s(const vi *v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_packs_epi32((__m512i)v[0], (__m512i)v[1]);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
#elif HZ_VEC == HZ_VEC_NEON
	return (vs)vcombine_s16(vqmovn_s32((int32x4_t)v[0]), vqmovn_s32((int32x4_t)v[1]));
#else
	vs r = {0};

	for (int h = 0; h < 2; h++) {
		const vi low = max_i(v[h], set_i(-32768));
		const vi t = select_gt(low, set_i(32767), set_i(32767), low);

		for (int i = 0; i < LANES; i++)
			r[h * LANES + i] = (int16_t)t[i];
	}
	return r;
#endif
}

INLINE vs in_order_s(vs v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), (__m512i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_permute4x64_epi64((__m256i)v, 0xd8);
#else
	return v;
#endif
}

/* The same for four vectors, to 8 bits */
INLINE vc pack_c(const vi *v)
{
	const vs a = pack_s(v), b = pack_s(v + 2);

#if HZ_VEC == HZ_VEC_AVX512
	return (vc)_mm512_packs_epi16((__m512i)a, (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vc)_mm256_packs_epi16((__m256i)a, (__m256i)b);
#elif HZ_VEC == HZ_VEC_NEON
	return (vc)vcombine_s8(vqmovn_s16((int16x8_t)a), vqmovn_s16((int16x8_t)b));
#else
	const vs half[2] = {a, b};
	vc r = {0};

	for (int h = 0; h < 2; h++) {
		const vs low = max_s(half[h], set_s(-128)), t = min_s(low, set_s(127));

		for (int i = 0; i < 2 * LANES; i++)
			r[h * 2 * LANES + i] = (int8_t)t[i];
	}
	return r;
#endif
}

/*
 * Interleave elements of 8, 16 and 32 bits of a and b, from the lower or the upper half of each
 * 128-bit part.
 */
INLINE vc unpack8_low(vc a, vc b)
{
	return BINARY(vc, unpacklo_epi8, vzip1q_s8, int8x16_t,
		      SHUFFLE_LANES(vc, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
				    23));
}

INLINE vc unpack8_high(vc a, vc b)
{
	return BINARY(vc, unpackhi_epi8, vzip2q_s8, int8x16_t,
		      SHUFFLE_LANES(vc, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
				    15, 31));
}

INLINE vc unpack16_low(vc a, vc b)
{
	return BINARY(vc, unpacklo_epi16, vzip1q_s16, int16x8_t,
		      SHUFFLE_LANES(vs, a, b, 0, 8, 1, 9, 2, 10, 3, 11));
}

INLINE vc unpack16_high(vc a, vc b)
{
	return BINARY(vc, unpackhi_epi16, vzip2q_s16, int16x8_t,
		      SHUFFLE_LANES(vs, a, b, 4, 12, 5, 13, 6, 14, 7, 15));
}

INLINE vc unpack32_low(vc a, vc b)
{
	return BINARY(vc, unpacklo_epi32, vzip1q_s32, int32x4_t,
		      SHUFFLE_LANES(vi, a, b, 0, 4, 1, 5));
}

INLINE vc unpack32_high(vc a, vc b)
{
	return BINARY(vc, unpackhi_epi32, vzip2q_s32, int32x4_t,
		      SHUFFLE_LANES(vi, a, b, 2, 6, 3, 7));
}

/* Stores bytes 16 l .. 16 l + 15. */
INLINE void store_sixteen(void *p, vc v, const int l)
{
#if HZ_VEC == HZ_VEC_AVX512
	switch (l) {
	case 0:
		_mm_storeu_si128(p, _mm512_castsi512_si128((__m512i)v));
		break;
	case 1:
		_mm_storeu_si128(p, _mm512_extracti32x4_epi32((__m512i)v, 1));
		break;
	case 2:
		_mm_storeu_si128(p, _mm512_extracti32x4_epi32((__m512i)v, 2));
		break;
	default:
		_mm_storeu_si128(p, _mm512_extracti32x4_epi32((__m512i)v, 3));
	}
#elif HZ_VEC == HZ_VEC_AVX2
	if (l)
		_mm_storeu_si128(p, _mm256_extracti128_si256((__m256i)v, 1));
	else
		_mm_storeu_si128(p, _mm256_castsi256_si128((__m256i)v));
#else
	(void)l;
	memcpy(p, &v, 16);
#endif
}

INLINE vc unpack64_low(vc a, vc b)
{
	return BINARY(vc, unpacklo_epi64, vzip1q_s64, int64x2_t, SHUFFLE_LANES(vl, a, b, 0, 2));
}

INLINE vc unpack64_high(vc a, vc b)
{
	return BINARY(vc, unpackhi_epi64, vzip2q_s64, int64x2_t, SHUFFLE_LANES(vl, a, b, 1, 3));
}

/*
 * The largest lanes of 2 LANES vectors of numbers that are not negative, in their order, from
 * LANES / 4 times those of eight by part: see most_of_parts()
 */
INLINE vs most_of_all(const vs *p)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512i *const v = (const __m512i *)p;
	const __m512i low = _mm512_max_epi16(_mm512_shuffle_i64x2(v[0], v[1], 0x88),
					     _mm512_shuffle_i64x2(v[0], v[1], 0xdd));
	const __m512i high = _mm512_max_epi16(_mm512_shuffle_i64x2(v[2], v[3], 0x88),
					      _mm512_shuffle_i64x2(v[2], v[3], 0xdd));

	return (vs)_mm512_max_epi16(_mm512_shuffle_i64x2(low, high, 0x88),
				    _mm512_shuffle_i64x2(low, high, 0xdd));
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256i *const v = (const __m256i *)p;

	return (vs)_mm256_max_epi16(_mm256_permute2x128_si256(v[0], v[1], 0x20),
				    _mm256_permute2x128_si256(v[0], v[1], 0x31));
#else
	return p[0];
#endif
}

#if HZ_VEC == HZ_VEC_AVX512
/* 16-bit lanes 0, 8, 1, 9, ... of each half */
INLINE vs in_pairs(vs v)
{
	const __m512i order = _mm512_setr_epi32(
		0x00080000, 0x00090001, 0x000a0002, 0x000b0003, 0x000c0004, 0x000d0005, 0x000e0006,
		0x000f0007, 0x00180010, 0x00190011, 0x001a0012, 0x001b0013, 0x001c0014, 0x001d0015,
		0x001e0016, 0x001f0017);

	return (vs)_mm512_permutexvar_epi16(order, (__m512i)v);
}
#endif

/* Of each 128-bit part, lane i is the largest of that part of v[i]. */
INLINE vs most_of_parts(const vs *v)
{
	vs two[4], four[2];

	UNROLL
	for (int i = 0; i < 4; i++) {
		const vc a = (vc)v[2 * i], b = (vc)v[2 * i + 1];

		two[i] = max_s((vs)unpack16_low(a, b), (vs)unpack16_high(a, b));
	}
	UNROLL
	for (int i = 0; i < 2; i++) {
		const vc a = (vc)two[2 * i], b = (vc)two[2 * i + 1];

		four[i] = max_s((vs)unpack32_low(a, b), (vs)unpack32_high(a, b));
	}
	return max_s((vs)unpack64_low((vc)four[0], (vc)four[1]),
		     (vs)unpack64_high((vc)four[0], (vc)four[1]));
}

INLINE vi part_s(vs v, int h)
{
	return (vi)(h ? unpack16_high((vc)v, (vc)v) : unpack16_low((vc)v, (vc)v)) >> 16;
}

INLINE vi part_c(vc v, int h)
{
	return part_s((vs)(h / 2 ? unpack8_high(v, v) : unpack8_low(v, v)) >> 8, h % 2);
}

/*
 * Stores lanes in the order of pack_s() or pack_c() as consecutive 16-bit numbers; for bytes, v[0]
 * has the low bytes and v[1] the high bytes.
 */
INLINE void store_index_s(uint16_t *p, const vs *v)
{
	*(vs_any *)p = in_order_s(v[0]);
}

INLINE void store_index_c(uint16_t *p, const vc *v)
{
	vc t[2];

	/* Unpacking works in 128-bit parts: each has to give half of them. */
	for (int i = 0; i < 2; i++) {
#if HZ_VEC == HZ_VEC_AVX512
		const __m512i order = _mm512_setr_epi32(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9,
							13, 11, 15);

		t[i] = (vc)_mm512_permutexvar_epi32(order, (__m512i)v[i]);
#elif HZ_VEC == HZ_VEC_AVX2
		t[i] = (vc)_mm256_permutevar8x32_epi32((__m256i)v[i],
						       _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
#else
		t[i] = v[i];
#endif
	}
	*(vs_any *)p = (vs)unpack8_low(t[0], t[1]);
	*(vs_any *)(p + 2 * LANES) = (vs)unpack8_high(t[0], t[1]);
}

/* The even bytes of a, then those of b; likewise the odd bytes */
INLINE vc even_bytes(vc a, vc b)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512i low = _mm512_set1_epi16(255);
	const __m512i v = _mm512_packus_epi16(_mm512_and_si512((__m512i)a, low),
					      _mm512_and_si512((__m512i)b, low));

	return (vc)in_order_s((vs)v);
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256i low = _mm256_set1_epi16(255);
	const __m256i v = _mm256_packus_epi16(_mm256_and_si256((__m256i)a, low),
					      _mm256_and_si256((__m256i)b, low));

	return (vc)in_order_s((vs)v);
#elif HZ_VEC == HZ_VEC_NEON
	return (vc)vuzp1q_s8((int8x16_t)a, (int8x16_t)b);
#else
	return SHUFFLE_LANES(vc, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#endif
}

INLINE vc odd_bytes(vc a, vc b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vc)in_order_s((vs)_mm512_packus_epi16(_mm512_srli_epi16((__m512i)a, 8),
						      _mm512_srli_epi16((__m512i)b, 8)));
#elif HZ_VEC == HZ_VEC_AVX2
	return (vc)in_order_s((vs)_mm256_packus_epi16(_mm256_srli_epi16((__m256i)a, 8),
						      _mm256_srli_epi16((__m256i)b, 8)));
#elif HZ_VEC == HZ_VEC_NEON
	return (vc)vuzp2q_s8((int8x16_t)a, (int8x16_t)b);
#else
	return SHUFFLE_LANES(vc, a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#endif
}

/*
 * Bytes of two vectors of 0 .. 255, and bytes with the signs of two vectors, in an order that
 * depends on the level: in_order_s() puts those of a first
 */
INLINE vc pack_bytes(vs a, vs b)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	return BINARY(vc, packus_epi16, , , 0);
#else
	return even_bytes((vc)a, (vc)b);
#endif
}

INLINE vc pack_signs(vs a, vs b)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	return BINARY(vc, packs_epi16, , , 0);
#else
	return odd_bytes((vc)a, (vc)b);
#endif
}

/* 16-bit lanes with the low nibbles of two bytes each, of which the upper ones are 0 */
INLINE vs join_nibbles(vc v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_maddubs_epi16((__m512i)v, _mm512_set1_epi16(0x1001));
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_maddubs_epi16((__m256i)v, _mm256_set1_epi16(0x1001));
#else
	return ((vs)v | (vs)((vu16)v >> 4)) & 255;
#endif
}

/* The bytes of four vectors that pack_bytes() packed twice, in order */
INLINE vc in_order_c(vc v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vc)_mm512_permutexvar_epi32(
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
		(__m512i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vc)_mm256_permutevar8x32_epi32((__m256i)v,
					       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#else
	return v;
#endif
}

/* Stores v, stream: as stream_f32() does */
INLINE void store_c(int8_t *p, vc v, bool stream)
{
#if HZ_VEC == HZ_VEC_AVX512
	if (stream)
		_mm512_stream_si512((void *)p, (__m512i)v);
	else
		_mm512_storeu_si512(p, (__m512i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	if (stream)
		_mm256_stream_si256((__m256i *)(void *)p, (__m256i)v);
	else
		_mm256_storeu_si256((__m256i *)(void *)p, (__m256i)v);
#else
	(void)stream;
	*(vc_any *)p = v;
#endif
}

/* Adds 1 to lanes in which that bit is set. */
INLINE vs add_bit(vs v, const int bit)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_mask_add_epi16((__m512i)v,
					 _mm512_test_epi16_mask((__m512i)v,
								_mm512_set1_epi16(1 << bit)),
					 (__m512i)v, _mm512_set1_epi16(1));
#else
	return v + ((vs)((vu16)v >> bit) & 1);
#endif
}

/* Whether any lane of a mask is set */
INLINE int any_ms(vms mask)
{
#if HZ_VEC == HZ_VEC_AVX512
	return mask != 0;
#else
	return any_gt(set_i(0), (vi)mask) || any_gt(set_i(0), (vi)mask << 16);
#endif
}

/* The upper halves of 32-bit lanes: of a, then of b; of lanes of a and b in turn */
INLINE vs upper_halves(vi a, vi b)
{
#if HZ_VEC == HZ_VEC_AVX512
#define UPPER(i) (2 * (i) + 1)
	static const int16_t order[32] = {EACH(UPPER), 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53,
					  55, 57, 59, 61, 63};
#undef UPPER

	return (vs)_mm512_permutex2var_epi16((__m512i)a, _mm512_loadu_si512(order), (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return in_order_s((vs)_mm256_packus_epi32((__m256i)((vu)a >> 16), (__m256i)((vu)b >> 16)));
#elif HZ_VEC == HZ_VEC_NEON
	return (vs)vuzp2q_s16((int16x8_t)a, (int16x8_t)b);
#else
	return (vs)SHUFFLE_LANES(vs, a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

INLINE vs upper_in_turn(vi a, vi b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_mask_mov_epi16((__m512i)((vu)a >> 16), 0xaaaaaaaa, (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_blend_epi16((__m256i)((vu)a >> 16), (__m256i)b, 0xaa);
#else
	return (vs)((vi)((vu)a >> 16) | (b & -65536));
#endif
}

/* The lower halves of lanes of a and b in turn */
INLINE vs lower_in_turn(vi a, vi b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vs)_mm512_mask_mov_epi16((__m512i)a, 0xaaaaaaaa, (__m512i)(b << 16));
#elif HZ_VEC == HZ_VEC_AVX2
	return (vs)_mm256_blend_epi16((__m256i)a, (__m256i)(b << 16), 0xaa);
#else
	return (vs)((a & 0xffff) | b << 16);
#endif
}

/*
 * table[i] of a table of 32 codes, i < 32; AVX-512 ignores higher bits. LOOKUP_32: whether there is
 * such an instruction, or two
 */
#if HZ_VEC == HZ_VEC_AVX512
#define LOOKUP_32 1

INLINE vc lookup_32(const uint8_t *table, vc i)
{
#ifdef __AVX512VBMI__
	return (vc)_mm512_permutexvar_epi8((__m512i)i, _mm512_broadcast_i64x4(
		_mm256_loadu_si256((const void *)table)));
#else
	const __m512i index = _mm512_and_si512((__m512i)i, _mm512_set1_epi8(31));
	const __m512i low = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
	const __m512i high = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(table + 16)));

	return (vc)_mm512_mask_shuffle_epi8(
		_mm512_shuffle_epi8(low, index),
		_mm512_test_epi8_mask(index, _mm512_set1_epi8(16)), high, index);
#endif
}
#elif HZ_VEC == HZ_VEC_AVX2
#define LOOKUP_32 1

INLINE vc lookup_32(const uint8_t *table, vc i)
{
	/* A byte of which bit 7 is set selects 0. */
	const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
	const __m256i high =
		_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(table + 16)));

	return (vc)_mm256_or_si256(
		_mm256_shuffle_epi8(low, _mm256_adds_epu8((__m256i)i, _mm256_set1_epi8(0x70))),
		_mm256_shuffle_epi8(high, _mm256_sub_epi8((__m256i)i, _mm256_set1_epi8(16))));
}
#else
#define LOOKUP_32 0
#endif

#if LANES > 4
/* Within each 128-bit part, 32-bit lane i of v[j] becomes lane j of v[i]. */
INLINE void transpose_parts(vc *v)
{
	const vc a = unpack32_low(v[0], v[1]), b = unpack32_high(v[0], v[1]);
	const vc c = unpack32_low(v[2], v[3]), d = unpack32_high(v[2], v[3]);

	v[0] = unpack64_low(a, c);
	v[1] = unpack64_high(a, c);
	v[2] = unpack64_low(b, d);
	v[3] = unpack64_high(b, d);
}

/* Byte 4 i + j of each 128-bit part becomes byte 4 j + i. */
INLINE vc transpose_bytes(vc v)
{
	const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

#if HZ_VEC == HZ_VEC_AVX512
	return (vc)_mm512_shuffle_epi8((__m512i)v, _mm512_broadcast_i32x4(order));
#else
	return (vc)_mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(order));
#endif
}

/* A vector of 128-bit parts, of which part i is at p + i * step bytes */
INLINE vc load_parts(const void *p, int64_t step)
{
	const char *const c = p;
	const __m128i first = _mm_loadu_si128((const void *)c);
	const __m128i second = _mm_loadu_si128((const void *)(c + step));
#if HZ_VEC == HZ_VEC_AVX512
	const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
	const __m512i v = _mm512_inserti32x4(_mm512_castsi256_si512(low),
					     _mm_loadu_si128((const void *)(c + 2 * step)), 2);

	return (vc)_mm512_inserti32x4(v, _mm_loadu_si128((const void *)(c + 3 * step)), 3);
#else
	return (vc)_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
#endif
}

/* 128-bit parts of a and b in turn: v[0] has those of their lower halves. */
INLINE void parts_in_turn(vc a, vc b, vc *v)
{
#if HZ_VEC == HZ_VEC_AVX512
	v[0] = (vc)_mm512_permutex2var_epi64(
		(__m512i)a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), (__m512i)b);
	v[1] = (vc)_mm512_permutex2var_epi64(
		(__m512i)a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), (__m512i)b);
#else
	v[0] = (vc)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x20);
	v[1] = (vc)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x31);
#endif
}

/* What most_magnitude() starts with */
INLINE vf no_magnitude(void)
{
	return (vf)set_i(HZ_VEC == HZ_VEC_AVX512 ? 0x7fc00000 : 0);
}

/* The larger magnitude; NaN if both are NaN, or with AVX2 if one is */
INLINE vf most_magnitude(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_range_ps((__m512)a, (__m512)b, 0xb);
#else
	return (vf)max_i((vi)a & INT32_MAX, (vi)b & INT32_MAX);
#endif
}
#endif

#undef BINARY
#undef COMPARE
#undef SHUFFLE_LANES

#if HZ_VEC != HZ_VEC_AVX512
/* The 128-bit part at p or, with AVX2, those at p and at q */
INLINE vc both_parts(const void *p, const void *q)
{
#if HZ_VEC == HZ_VEC_AVX2
	return (vc)_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p)),
					   _mm_loadu_si128(q), 1);
#else
	(void)q;
	return *(const vc_any *)p;
#endif
}

/* Parts of 32-bit lanes a and, with AVX2, b */
INLINE vc both_words(uint32_t a, uint32_t b)
{
#if HZ_VEC == HZ_VEC_AVX2
	return (vc)_mm256_blend_epi32(_mm256_set1_epi32((int32_t)a), _mm256_set1_epi32((int32_t)b),
				      0xf0);
#else
	(void)b;
	return (vc)set_i((int32_t)a);
#endif
}
#endif

/* LOOKUP_64: whether there is a 64-entry byte table lookup, table[i & 63] */
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512VBMI__)
#define LOOKUP_64 1

INLINE vc lookup_64(vc table, vc i)
{
	return (vc)_mm512_permutexvar_epi8((__m512i)i, (__m512i)table);
}

/* 0, 1, 2, ... */
INLINE vc bytes_upward(void)
{
	vc v;

	for (int i = 0; i < 4 * LANES; i++)
		v[i] = (int8_t)i;
	return v;
}
#else
#define LOOKUP_64 0
#endif

/* f32_to_bf16() of numbers that are not subnormal, by the instruction where there is one */
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512BF16__)
#define BF16_NORMAL 1

INLINE vh f32_to_bf16_normal(vf v)
{
	return (vh)_mm512_cvtneps_pbh((__m512)v);
}
#else
#define BF16_NORMAL 0

INLINE vh f32_to_bf16_normal(vf v)
{
	return f32_to_bf16(v);
}
#endif

/* BIT_MATRICES: whether there are instructions on bit matrices (GFNI) and bit counts of bytes */
#if LOOKUP_64 && defined(__GFNI__) && defined(__AVX512BITALG__)
#define BIT_MATRICES 1

/* In each byte of the result, bit i is the parity of x & r_i. */
INLINE vc bit_rows(vc x, uint64_t r0, uint64_t r1, uint64_t r2, uint64_t r3, uint64_t r4,
		   uint64_t r5, uint64_t r6, uint64_t r7)
{
	const uint64_t m = r7 | r6 << 8 | r5 << 16 | r4 << 24 | r3 << 32 | r2 << 40 | r1 << 48 |
			   r0 << 56;

	return (vc)_mm512_gf2p8affine_epi64_epi8((__m512i)x, _mm512_set1_epi64((int64_t)m), 0);
}

/* Transposes the 8 x 8 bit matrix of each eight bytes: bit j of byte i is bit i of byte 7 - j. */
INLINE vc bit_columns(vc x)
{
	return (vc)_mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64((int64_t)0x8040201008040201),
						 (__m512i)x, 0);
}

INLINE vc count_bits(vc x)
{
	return (vc)_mm512_popcnt_epi8((__m512i)x);
}

/* 32-bit lane i of the result is lane order[i] of x. */
INLINE vc permute_32(vc x, vi order)
{
	return (vc)_mm512_permutexvar_epi32((__m512i)order, (__m512i)x);
}

/* Unsigned right shift of 16-bit lanes */
INLINE vs shift_right_u(vs a, const int n)
{
	return (vs)_mm512_srli_epi16((__m512i)a, n);
}
#else
#define BIT_MATRICES 0
#endif

#endif
