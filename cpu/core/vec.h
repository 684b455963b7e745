/*
 * vec.h - the vector vocabulary: GCC vector types and the operations that C lacks
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A unit is compiled with HZ_LEVEL, the name of its ISA level, and HZ_VEC, one of the vector sets
 * below; without them for plain C. Arithmetic is written with C operators; this file has loads,
 * stores, conversions, shuffles and selections. Every function gives the same bits at every level.
 */
#ifndef HZI_VEC_H
#define HZI_VEC_H

#include <stdint.h>
#include <string.h>

#include "cpu/core/inline.h"

#define HZ_VEC_C 1
#define HZ_VEC_AVX2 2
#define HZ_VEC_AVX512 3
#define HZ_VEC_NEON 4

#ifndef HZ_LEVEL
#define HZ_LEVEL c
#define HZ_VEC HZ_VEC_C
#endif

#if HZ_VEC == HZ_VEC_AVX2 || HZ_VEC == HZ_VEC_AVX512
#include <immintrin.h>
#elif HZ_VEC == HZ_VEC_NEON
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>		/* a part of x86-64: see madd_s16() */
#endif

/*
 * LANES: f32 elements of a vector. REG_BITS: log2 of the registers that a kernel may fill with
 * data; the others are for its constants and temporaries.
 */
#if HZ_VEC == HZ_VEC_AVX512
#define LANES 16
#define LANE_BITS 4
#define REG_BITS 4
#elif HZ_VEC == HZ_VEC_AVX2
#define LANES 8
#define LANE_BITS 3
#define REG_BITS 3
#elif HZ_VEC == HZ_VEC_NEON
#define LANES 4
#define LANE_BITS 2
#define REG_BITS 4
#else
#define LANES 4
#define LANE_BITS 2
#define REG_BITS 3
#endif

/*
 * GCC warns that the calling convention of vectors depends on the ISA; they are passed to inline
 * functions alone.
 */
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef int8_t vb __attribute__((vector_size(LANES)));
typedef double vd __attribute__((vector_size(4 * LANES)));
typedef int64_t vl __attribute__((vector_size(4 * LANES)));
typedef uint64_t vul __attribute__((vector_size(4 * LANES)));
typedef uint8_t vu8 __attribute__((vector_size(4 * LANES)));
typedef uint16_t vu16 __attribute__((vector_size(4 * LANES)));

/* ---- Shuffles -------------------------------------------------------------------------------- */

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define SHUFFLE_PAIRS(a, ...) __builtin_shufflevector(a, a, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#define SHUFFLE_PAIRS(a, ...) __builtin_shuffle(a, (vl){__VA_ARGS__})	/* of 64 bits */
#endif

#if LANES == 16
#define EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), \
	f(13), f(14), f(15)
#elif LANES == 8
#define EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#else
#define EACH(f) f(0), f(1), f(2), f(3)
#endif

/* Lane i of the result is lane i ^ 1, 2, 4, 8. */
#define XOR1(i) ((i) ^ 1)
#define XOR2(i) ((i) ^ 2)
#define XOR4(i) (((i) ^ 4) % LANES)
#define XOR8(i) (((i) ^ 8) % LANES)
/*
 * Interleaves the lower halves of a and b, the upper halves; takes the even lanes of a then b, the
 * odd.
 */
#define ZIP_LOW(i) ((i) / 2 + (i) % 2 * LANES)
#define ZIP_HIGH(i) ((i) / 2 + (i) % 2 * LANES + LANES / 2)
#define EVEN(i) (2 * (i))
#define ODD(i) (2 * (i) + 1)

INLINE vf swap_lanes(vf v, int bit)
{
	switch (bit) {
	case 0:
		return SHUFFLE(v, v, EACH(XOR1));
	case 1:
		return SHUFFLE(v, v, EACH(XOR2));
	case 2:
		return SHUFFLE(v, v, EACH(XOR4));
	default:
		return SHUFFLE(v, v, EACH(XOR8));
	}
}

INLINE vf zip_low(vf a, vf b)
{
	return SHUFFLE(a, b, EACH(ZIP_LOW));
}

INLINE vf zip_high(vf a, vf b)
{
	return SHUFFLE(a, b, EACH(ZIP_HIGH));
}

INLINE vi even_lanes(vi a, vi b)
{
	return SHUFFLE(a, b, EACH(EVEN));
}

INLINE vi odd_lanes(vi a, vi b)
{
	return SHUFFLE(a, b, EACH(ODD));
}

/* ---- Constants, selection, arithmetic -------------------------------------------------------- */

INLINE vf set_f(float a)
{
	return a - (vf){0};
}

INLINE vi set_i(int32_t a)
{
	return a - (vi){0};
}

/* -1.0 where lane & 2^bit, else 1.0 */
INLINE vf lane_sign(int bit)
{
#define BIT0(i) ((i) & 1 ? -1.0f : 1.0f)
#define BIT1(i) ((i) & 2 ? -1.0f : 1.0f)
#define BIT2(i) ((i) & 4 ? -1.0f : 1.0f)
#define BIT3(i) ((i) & 8 ? -1.0f : 1.0f)
	switch (bit) {
	case 0:
		return (vf){EACH(BIT0)};
	case 1:
		return (vf){EACH(BIT1)};
	case 2:
		return (vf){EACH(BIT2)};
	default:
		return (vf){EACH(BIT3)};
	}
}

/* a * b + c for a factor of +-1: the product is exact, so fused or not gives the same bits. */
INLINE vf fma_sign(vf a, vf b, vf c)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif HZ_VEC == HZ_VEC_NEON
	return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
	return a * b + c;
#endif
}

/* a * b + c with one rounding; with two at levels without a multiply-add, which do not use it */
INLINE vf fma_f(vf a, vf b, vf c)
{
	return fma_sign(a, b, c);
}

INLINE vd set_d(double a)
{
	return a - (vd){0};
}

INLINE vd fma_d(vd a, vd b, vd c)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif HZ_VEC == HZ_VEC_NEON
	return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
	return a * b + c;
#endif
}

/* Converts the lower and the upper half of the lanes to f64; the inverse rounds to nearest even. */
INLINE void f32_to_f64(vf v, vd *to)
{
#if HZ_VEC == HZ_VEC_AVX512
	to[0] = (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
	to[1] = (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
#elif HZ_VEC == HZ_VEC_AVX2
	to[0] = (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v));
	to[1] = (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1));
#else
	to[0] = (vd){(double)v[0], (double)v[1]};
	to[1] = (vd){(double)v[2], (double)v[3]};
#endif
}

INLINE vf f64_to_f32(vd low, vd high)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)low)),
				      _mm512_cvtpd_ps((__m512d)high), 1);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)high), _mm256_cvtpd_ps((__m256d)low));
#else
	return (vf){(float)low[0], (float)low[1], (float)high[0], (float)high[1]};
#endif
}

/* c - a * b, rounded as fma_f() */
INLINE vf fnma_f(vf a, vf b, vf c)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif HZ_VEC == HZ_VEC_NEON
	return (vf)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
	return c - a * b;
#endif
}

/*
 * 1 / a within a relative error of 2^-22, for normal a of at most 2^+-60. The only function of this
 * file whose bits differ between levels: its users verify results or compute them again.
 */
INLINE vf about_inverse(vf a)
{
#if HZ_VEC == HZ_VEC_C
	return 1 / a;
#else
	vf r;

#if HZ_VEC == HZ_VEC_AVX512
	r = (vf)_mm512_rcp14_ps((__m512)a);
#elif HZ_VEC == HZ_VEC_AVX2
	r = (vf)_mm256_rcp_ps((__m256)a);
#else
	r = (vf)vrecpeq_f32((float32x4_t)a);
	r = fma_f(r, fnma_f(r, a, set_f(1)), r);
#endif
	return fma_f(r, fnma_f(r, a, set_f(1)), r);
#endif
}

/*
 * a - b, by a multiply-add where there is one: Zen 4 adds in two of its four pipes and multiplies
 * in the other two, so butterflies (a + b, a - b) keep all of them busy.
 */
INLINE vf sub_fma(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	return fma_sign(b, set_f(-1), a);
#else
	return a - b;
#endif
}

/* x where mask is -1, y where it is 0 */
INLINE vf select_mask(vi mask, vf x, vf y)
{
	return (vf)((mask & (vi)x) | (~mask & (vi)y));
}

INLINE vf sqrt_f(vf a)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_sqrt_ps((__m512)a);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_sqrt_ps((__m256)a);
#elif HZ_VEC == HZ_VEC_NEON
	return (vf)vsqrtq_f32((float32x4_t)a);
#else
	return (vf){__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
		    __builtin_sqrtf(a[3])};
#endif
}

/* x where a > b, else y; signed comparison */
INLINE vi select_gt(vi a, vi b, vi x, vi y)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b),
					   (__m512i)y, (__m512i)x);
#else
	vi mask = a > b;

	return (mask & x) | (~mask & y);
#endif
}

INLINE vi max_i(vi a, vi b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
	return select_gt(a, b, a, b);
#endif
}

/* The larger one of `most` and the bits of |v|; a NaN may be left out. */
INLINE vi max_magnitude(vi most, vf v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_range_ps((__m512)most, (__m512)v, 0xb);
#else
	return max_i(most, (vi)v & INT32_MAX);
#endif
}

/* Whether a > b in any lane; signed comparison */
INLINE int any_gt(vi a, vi b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b) != 0;
#elif HZ_VEC == HZ_VEC_AVX2
	return !_mm256_testz_si256((__m256i)(a > b), (__m256i)(a > b));
#elif HZ_VEC == HZ_VEC_NEON
	return vmaxvq_u32((uint32x4_t)(a > b)) != 0;
#else
	const vi greater = a > b;

	return (greater[0] | greater[1] | greater[2] | greater[3]) != 0;
#endif
}

INLINE int32_t max_lanes(vi v)
{
	UNROLL
	for (int bit = LANE_BITS - 1; bit >= 0; bit--)
		v = max_i(v, (vi)swap_lanes((vf)v, bit));
	return v[0];
}

/* The smaller and the larger of two numbers; of a NaN and a number, either */
INLINE vf min_f(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif HZ_VEC == HZ_VEC_NEON
	return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b);
#else
	vi mask = a < b;

	return (vf)((mask & (vi)a) | (~mask & (vi)b));
#endif
}

INLINE vf max_f(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif HZ_VEC == HZ_VEC_NEON
	return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
	return -min_f(-a, -b);
#endif
}

/* The same, but b where a is NaN */
INLINE vf min_number(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_NEON
	return (vf)vminnmq_f32((float32x4_t)a, (float32x4_t)b);
#else
	return min_f(a, b);
#endif
}

INLINE vf max_number(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_NEON
	return (vf)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b);
#elif HZ_VEC == HZ_VEC_C
	vi mask = a > b;

	return (vf)((mask & (vi)a) | (~mask & (vi)b));
#else
	return max_f(a, b);
#endif
}

/* Per lane, the sum of the products of signed 16-bit halves */
INLINE vi madd_s16(vi a, vi b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif HZ_VEC == HZ_VEC_NEON
	return (vi)vpaddq_s32(vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b)),
			      vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#elif defined(__SSE2__)
	return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
	return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* ---- Memory ---------------------------------------------------------------------------------- */

typedef vf vf_any __attribute__((aligned(4), may_alias));
typedef vd vd_any __attribute__((aligned(8), may_alias));
typedef vh vh_any __attribute__((aligned(1), may_alias));
typedef vb vb_any __attribute__((aligned(1), may_alias));

INLINE vf load_f32(const float *p)
{
	return *(const vf_any *)p;
}

INLINE void store_f32(float *p, vf v)
{
	*(vf_any *)p = v;
}

INLINE vd load_f64(const double *p)
{
	return *(const vd_any *)p;
}

INLINE void store_f64(double *p, vd v)
{
	*(vd_any *)p = v;
}

/*
 * binary16 to binary32 without hardware: the exponent is rebased. A subnormal gets an implicit bit,
 * which a subtraction of normal numbers removes again.
 */
INLINE vf f16_to_f32(vh h)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_cvtph_ps((__m256i)h);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_cvtph_ps((__m128i)h);
#elif HZ_VEC == HZ_VEC_NEON
	return (vf)vcvt_f32_f16((float16x4_t)h);
#else
	vi w = __builtin_convertvector(h, vi);
	vi sign = (w & 0x8000) << 16;
	vi u = (w & 0x7fff) << 13;
	vi exponent = u & 0x0f800000;
	vi normal = u + (112 << 23);
	vi special = u + (224 << 23);
	vf small = (vf)(u + (113 << 23)) - (vf)set_i(113 << 23);

	normal = select_gt(exponent, set_i(0x0f000000), special, normal);
	return (vf)(sign | select_gt(set_i(1), exponent, (vi)small, normal));
#endif
}

/*
 * binary32 to binary16, to nearest even. A NaN keeps its sign and the upper bits of its payload,
 * and becomes quiet.
 */
INLINE vh f32_to_f16(vf v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif HZ_VEC == HZ_VEC_NEON
	return (vh)vcvt_f16_f32((float32x4_t)v);
#else
	vi u = (vi)v & 0x7fffffff;
	vi sign = (vi)((vu)v >> 16) & 0x8000;
	/* 0.5 has the unit 2^-24 of a binary16 subnormal: the addition rounds. */
	vi small = (vi)((vf)u + set_f(0.5f)) - 0x3f000000;
	vi normal = (u - (112 << 23) + 0xfff + ((u >> 13) & 1)) >> 13;
	vi nan = 0x7e00 | ((u >> 13) & 0x3ff);
	vi r = select_gt(set_i(113 << 23), u, small, normal);

	r = select_gt(u, set_i(0x477fefff), set_i(0x7c00), r);
	r = select_gt(u, set_i(0x7f800000), nan, r);
	return __builtin_convertvector((vu)(r | sign), vh);
#endif
}

INLINE vf bf16_to_f32(vh h)
{
#if HZ_VEC == HZ_VEC_AVX512
	/* One instruction: 16-bit element i moves to 2i + 1, the others become 0. */
#define WORD(i) (i) << 16
	return (vf)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, (__m512i)(vi){EACH(WORD)},
						  _mm512_castsi256_si512((__m256i)h));
#elif HZ_VEC == HZ_VEC_AVX2
	/* Loads go to both halves, which leaves one instruction. */
	const __m256i to_high = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,
						 -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13,
						 -1, -1, 14, 15);

	return (vf)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)h), to_high);
#else
	return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

/* binary32 to bfloat16, to nearest even, subnormals kept; NaN as in f32_to_f16() */
INLINE vi bf16_bits(vf v)
{
	vi u = (vi)v;
	vi rounded = (vi)((vu)(u + 0x7fff + ((u >> 16) & 1)) >> 16);
	vi nan = (vi)((vu)u >> 16) | 0x40;

	return select_gt(u & 0x7fffffff, set_i(0x7f800000), nan, rounded);
}

INLINE vh f32_to_bf16(vf v)
{
	return __builtin_convertvector((vu)bf16_bits(v), vh);
}

#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
/* Loads a vector and duplicates its even lanes, or its odd ones. */
INLINE vf load_even(const float *p)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_moveldup_ps(_mm512_loadu_ps(p));
#else
	return (vf)_mm256_moveldup_ps(_mm256_loadu_ps(p));
#endif
}

INLINE vf load_odd(const float *p)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_movehdup_ps(_mm512_loadu_ps(p));
#else
	return (vf)_mm256_movehdup_ps(_mm256_loadu_ps(p));
#endif
}
#endif

INLINE vf load_f16(const uint16_t *p)
{
	return f16_to_f32(*(const vh_any *)p);
}

INLINE void store_f16(uint16_t *p, vf v)
{
	*(vh_any *)p = f32_to_f16(v);
}

INLINE vf load_bf16(const uint16_t *p)
{
	return bf16_to_f32(*(const vh_any *)p);
}

INLINE void store_bf16(uint16_t *p, vf v)
{
	*(vh_any *)p = f32_to_bf16(v);
}

/* Whether v[] holds subnormals, which the instruction of store_bf16_normal() flushes to 0 */
INLINE int has_subnormal(const vf *v, const int n)
{
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512BF16__)
	__mmask16 any = 0;

	UNROLL
	for (int i = 0; i < n; i++)
		any |= _mm512_fpclass_ps_mask((__m512)v[i], 0x20);
	return any != 0;
#else
	(void)v;
	(void)n;
	return 1;
#endif
}

/* Whether v[] holds a NaN; n is even */
INLINE int has_nan(const vf *v, const int n)
{
#if HZ_VEC == HZ_VEC_AVX512
	__mmask16 any = 0;

	UNROLL
	for (int i = 0; i < n; i += 2)
		any |= _mm512_cmp_ps_mask((__m512)v[i], (__m512)v[i + 1], _CMP_UNORD_Q);
	return any != 0;
#elif HZ_VEC == HZ_VEC_AVX2
	__m256 any = _mm256_setzero_ps();

	UNROLL
	for (int i = 0; i < n; i += 2)
		any = _mm256_or_ps(any, _mm256_cmp_ps((__m256)v[i], (__m256)v[i + 1],
						      _CMP_UNORD_Q));
	return _mm256_movemask_ps(any);
#else
	vi most = {0};

	UNROLL
	for (int i = 0; i < n; i++)
		most = max_i(most, (vi)v[i] & INT32_MAX);
	return any_gt(most, set_i(0x7f800000));
#endif
}

/* f32_to_bf16() of numbers that are not subnormal */
INLINE void store_bf16_normal(uint16_t *p, vf v)
{
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512BF16__)
	*(vh_any *)p = (vh)_mm512_cvtneps_pbh((__m512)v);
#else
	store_bf16(p, v);
#endif
}

/* f32_to_bf16(), by the instruction where there is one and v is not subnormal */
INLINE vh f32_to_bf16_any(vf v)
{
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512BF16__)
	if (!has_subnormal(&v, 1))
		return (vh)_mm512_cvtneps_pbh((__m512)v);
#endif
	return f32_to_bf16(v);
}

/* ---- Partial vectors, and lanes as bytes ----------------------------------------------------- */

#if HZ_VEC == HZ_VEC_AVX512
INLINE __mmask16 first_lanes(int64_t n)
{
	return (__mmask16)(0xffffu >> (LANES - n));
}
#endif

/* The first n lanes, 0 < n <= LANES. Other lanes are 0, and memory beyond is not read. */
INLINE vf load_f32_part(const float *p, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_maskz_loadu_ps(first_lanes(n), p);
#else
	vf v = {0};

	memcpy(&v, p, (size_t)n * 4);
	return v;
#endif
}

/* Likewise, but other lanes are 1: divisors */
INLINE vf load_divisors_part(const float *p, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vf)_mm512_mask_loadu_ps((__m512)set_f(1), first_lanes(n), p);
#else
	vf v = set_f(1);

	memcpy(&v, p, (size_t)n * 4);
	return v;
#endif
}

INLINE void store_f32_part(float *p, vf v, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	_mm512_mask_storeu_ps(p, first_lanes(n), (__m512)v);
#else
	memcpy(p, &v, (size_t)n * 4);
#endif
}

INLINE vh load_u16_part(const uint16_t *p, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vh)_mm256_maskz_loadu_epi16(first_lanes(n), p);
#else
	vh v = {0};

	memcpy(&v, p, (size_t)n * 2);
	return v;
#endif
}

INLINE void store_u16_part(uint16_t *p, vh v, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	_mm256_mask_storeu_epi16(p, first_lanes(n), (__m256i)v);
#else
	memcpy(p, &v, (size_t)n * 2);
#endif
}

/* Sign-extends bytes. */
INLINE vi widen_s8(vb v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_cvtepi8_epi32((__m128i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vi)_mm256_cvtepi8_epi32(_mm_set_epi64x(0, (int64_t)v));
#else
	return __builtin_convertvector(v, vi);
#endif
}

/* The low bytes */
INLINE vb narrow_s8(vi v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vb)_mm512_cvtepi32_epi8((__m512i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256i b = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));

	return (vb)_mm_cvtsi128_si64(_mm_unpacklo_epi32(_mm256_castsi256_si128(b),
							_mm256_extracti128_si256(b, 1)));
#else
	return __builtin_convertvector(v, vb);
#endif
}

/*
 * To the nearest integer, ties to even. For a NaN or beyond 2^31: an arbitrary, distant number, and
 * but for AVX-512 an exception
 */
INLINE vi round_i(vf v)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_cvt_roundps_epi32((__m512)v,
					    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vi)_mm256_cvtps_epi32((__m256)v);
#elif HZ_VEC == HZ_VEC_NEON
	return (vi)vcvtnq_s32_f32((float32x4_t)v);
#else
	/* 1.5 * 2^23: the sum's unit is 1. */
	return (vi)(v + set_f(12582912.0f)) - 0x4b400000;
#endif
}

/*
 * Non-temporal store, for results too large for the caches: an ordinary store would first read the
 * line. Aligned to the bytes stored; call stream_end() before another thread reads.
 */
INLINE void stream_f32(float *p, vf v)
{
#if HZ_VEC == HZ_VEC_AVX512
	_mm512_stream_ps(p, (__m512)v);
#elif HZ_VEC == HZ_VEC_AVX2
	_mm256_stream_ps(p, (__m256)v);
#else
	store_f32(p, v);
#endif
}

INLINE void stream_u16(uint16_t *p, vh v)
{
#if HZ_VEC == HZ_VEC_AVX512
	_mm256_stream_si256((__m256i *)(void *)p, (__m256i)v);
#elif HZ_VEC == HZ_VEC_AVX2
	_mm_stream_si128((__m128i *)(void *)p, (__m128i)v);
#else
	*(vh_any *)p = v;
#endif
}

INLINE void stream_end(void)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	_mm_sfence();
#endif
}

/*
 * Prefetches a cache line for writing: __builtin_prefetch() prefetches for reading unless compiler
 * flags say otherwise.
 */
INLINE void prefetch_write(const void *p)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
	__builtin_prefetch(p, 1, 3);
#endif
}

/*
 * Stores 4 LANES codes at p: v[i] + zero, |zero| <= 255, saturated to signed or unsigned bytes.
 * v[i] first saturates to 16 bits. stream: non-temporal store to p, aligned to 4 LANES bytes; see
 * stream_f32().
 */
INLINE void store_codes(int8_t *p, const vi *v, int32_t zero, const int is_signed, const int stream)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512i z = _mm512_set1_epi16((int16_t)zero);
	const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)v[0], (__m512i)v[1]), z);
	const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)v[2], (__m512i)v[3]), z);
	const __m512i mixed = is_signed ? _mm512_packs_epi16(low, high)
					: _mm512_packus_epi16(low, high);

	/* Packing works in 128-bit parts: each part gets four bytes of each v[i]. */
	const __m512i codes = _mm512_permutexvar_epi32(
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), mixed);

	if (stream)
		_mm512_stream_si512((void *)p, codes);
	else
		_mm512_storeu_si512(p, codes);
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256i z = _mm256_set1_epi16((int16_t)zero);
	const __m256i low = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]), z);
	const __m256i high = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]), z);
	const __m256i mixed = is_signed ? _mm256_packs_epi16(low, high)
					: _mm256_packus_epi16(low, high);

	const __m256i codes = _mm256_permutevar8x32_epi32(
		mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));

	if (stream)
		_mm256_stream_si256((__m256i *)(void *)p, codes);
	else
		_mm256_storeu_si256((__m256i *)p, codes);
#else
	const int32_t least = is_signed ? -128 : 0;

	(void)stream;
	UNROLL
	for (int i = 0; i < 4; i++) {
		vi t = max_i(v[i], set_i(least - zero));

		t = select_gt(t, set_i(least + 255 - zero), set_i(least + 255 - zero), t);
		*(vb_any *)(p + i * LANES) = narrow_s8(t + zero);
	}
#endif
}

/* Stores the low and the high bytes of 4 LANES numbers in 0 .. 65535. */
INLINE void store_halves(uint8_t *low, uint8_t *high, const vi *v)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512i a = _mm512_packus_epi32((__m512i)v[0], (__m512i)v[1]);
	const __m512i b = _mm512_packus_epi32((__m512i)v[2], (__m512i)v[3]);
	const __m512i mask = _mm512_set1_epi16(255);
	/* As in store_codes() */
	const __m512i order =
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

	_mm512_storeu_si512(low, _mm512_permutexvar_epi32(
		order, _mm512_packus_epi16(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask))));
	_mm512_storeu_si512(high, _mm512_permutexvar_epi32(
		order, _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8))));
#else
	vi l[4], h[4];

	UNROLL
	for (int i = 0; i < 4; i++) {
		l[i] = v[i] & 255;
		h[i] = v[i] >> 8;
	}
	store_codes((int8_t *)low, l, 0, 0, 0);
	store_codes((int8_t *)high, h, 0, 0, 0);
#endif
}

INLINE vi load_s8(const int8_t *p)
{
	return widen_s8(*(const vb_any *)p);
}

/* Loads and sign-extends 16-bit numbers. */
INLINE vi load_s16(const int16_t *p)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)p));
#elif HZ_VEC == HZ_VEC_AVX2
	return (vi)_mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)p));
#elif HZ_VEC == HZ_VEC_NEON
	return (vi)vmovl_s16(vld1_s16(p));
#else
	return (__builtin_convertvector(*(const vh_any *)p, vi) ^ 0x8000) - 0x8000;
#endif
}

INLINE vi load_u8(const int8_t *p)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vi)_mm512_cvtepu8_epi32((__m128i)*(const vb_any *)p);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vi)_mm256_cvtepu8_epi32(_mm_set_epi64x(0, (int64_t)*(const vb_any *)p));
#else
	return load_s8(p) & 255;
#endif
}

INLINE void store_s8(int8_t *p, vi v)
{
	*(vb_any *)p = narrow_s8(v);
}

INLINE vi load_s8_part(const int8_t *p, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	return widen_s8((vb)_mm_maskz_loadu_epi8(first_lanes(n), p));
#else
	vb v = {0};

	memcpy(&v, p, (size_t)n);
	return widen_s8(v);
#endif
}

INLINE void store_s8_part(int8_t *p, vi v, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	_mm_mask_storeu_epi8(p, first_lanes(n), (__m128i)narrow_s8(v));
#else
	vb b = narrow_s8(v);

	memcpy(p, &b, (size_t)n);
#endif
}

#endif
