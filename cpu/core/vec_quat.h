/*
 * vec_quat.h - the vector vocabulary: quaternions in f32, 16 bits and f64
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VEC_QUADS_H
#define HZI_VEC_QUADS_H

/* ---- f32 ------------------------------------------------------------------------------------- */

/*
 * Transposes the 4 x 4 matrix of each group of four lanes, so that v[c] holds component c of the
 * quaternions in four vectors. Lane 4 g + e is of quaternion LANES / 4 * e + g. Its own inverse.
 */
INLINE void transpose_quads(vf *v)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m512 a = _mm512_unpacklo_ps((__m512)v[0], (__m512)v[1]);
	const __m512 b = _mm512_unpackhi_ps((__m512)v[0], (__m512)v[1]);
	const __m512 c = _mm512_unpacklo_ps((__m512)v[2], (__m512)v[3]);
	const __m512 d = _mm512_unpackhi_ps((__m512)v[2], (__m512)v[3]);

	v[0] = (vf)_mm512_unpacklo_pd((__m512d)a, (__m512d)c);
	v[1] = (vf)_mm512_unpackhi_pd((__m512d)a, (__m512d)c);
	v[2] = (vf)_mm512_unpacklo_pd((__m512d)b, (__m512d)d);
	v[3] = (vf)_mm512_unpackhi_pd((__m512d)b, (__m512d)d);
#elif HZ_VEC == HZ_VEC_AVX2
	const __m256 a = _mm256_unpacklo_ps((__m256)v[0], (__m256)v[1]);
	const __m256 b = _mm256_unpackhi_ps((__m256)v[0], (__m256)v[1]);
	const __m256 c = _mm256_unpacklo_ps((__m256)v[2], (__m256)v[3]);
	const __m256 d = _mm256_unpackhi_ps((__m256)v[2], (__m256)v[3]);

	v[0] = (vf)_mm256_unpacklo_pd((__m256d)a, (__m256d)c);
	v[1] = (vf)_mm256_unpackhi_pd((__m256d)a, (__m256d)c);
	v[2] = (vf)_mm256_unpacklo_pd((__m256d)b, (__m256d)d);
	v[3] = (vf)_mm256_unpackhi_pd((__m256d)b, (__m256d)d);
#else
	/* LANES is 4. */
	const vf a = zip_low(v[0], v[2]), b = zip_high(v[0], v[2]);
	const vf c = zip_low(v[1], v[3]), d = zip_high(v[1], v[3]);

	v[0] = zip_low(a, c);
	v[1] = zip_high(a, c);
	v[2] = zip_low(b, d);
	v[3] = zip_high(b, d);
#endif
}

/*
 * transpose_quads() of 4 LANES contiguous floats. On x86 loads do half of it, since there is only
 * one shuffle unit: 4 shuffles and 4 blends, which any unit can do, instead of 8 shuffles.
 */
INLINE void load_quads(const float *p, vf *v)
{
#if HZ_VEC == HZ_VEC_AVX512
	__m512 even[2], odd[2];

	UNROLL
	for (int i = 0; i < 2; i++, p += 2 * LANES) {
		even[i] = _mm512_mask_moveldup_ps(_mm512_moveldup_ps(_mm512_loadu_ps(p)), 0xaaaa,
						  _mm512_loadu_ps(p + LANES));
		odd[i] = _mm512_mask_movehdup_ps(_mm512_loadu_ps(p + LANES), 0x5555,
						 _mm512_loadu_ps(p));
	}
	v[0] = (vf)_mm512_unpacklo_pd((__m512d)even[0], (__m512d)even[1]);
	v[1] = (vf)_mm512_unpacklo_pd((__m512d)odd[0], (__m512d)odd[1]);
	v[2] = (vf)_mm512_unpackhi_pd((__m512d)even[0], (__m512d)even[1]);
	v[3] = (vf)_mm512_unpackhi_pd((__m512d)odd[0], (__m512d)odd[1]);
#elif HZ_VEC == HZ_VEC_AVX2
	__m256 even[2], odd[2];

	UNROLL
	for (int i = 0; i < 2; i++, p += 2 * LANES) {
		even[i] = _mm256_blend_ps(_mm256_moveldup_ps(_mm256_loadu_ps(p)),
					  _mm256_moveldup_ps(_mm256_loadu_ps(p + LANES)), 0xaa);
		odd[i] = _mm256_blend_ps(_mm256_movehdup_ps(_mm256_loadu_ps(p)),
					 _mm256_loadu_ps(p + LANES), 0xaa);
	}
	v[0] = (vf)_mm256_unpacklo_pd((__m256d)even[0], (__m256d)even[1]);
	v[1] = (vf)_mm256_unpacklo_pd((__m256d)odd[0], (__m256d)odd[1]);
	v[2] = (vf)_mm256_unpackhi_pd((__m256d)even[0], (__m256d)even[1]);
	v[3] = (vf)_mm256_unpackhi_pd((__m256d)odd[0], (__m256d)odd[1]);
#else
	UNROLL
	for (int i = 0; i < 4; i++)
		v[i] = load_f32(p + i * LANES);
	transpose_quads(v);
#endif
}

/* From the lane order of transpose_quads() to the order of quaternions, and the inverse */
INLINE vf quads_in_order(vf v)
{
#define QUAD_PLACE(i) ((i) % (LANES / 4) * 4 + (i) / (LANES / 4))
	return SHUFFLE(v, v, EACH(QUAD_PLACE));
}

INLINE vf quads_by_group(vf v)
{
#define GROUP_PLACE(i) ((i) % 4 * (LANES / 4) + (i) / 4)
	return SHUFFLE(v, v, EACH(GROUP_PLACE));
}

/*
 * Loads LANES / 4 quads, step elements apart, as one vector, and stores them likewise. 16-bit quads
 * are moved as 64-bit elements.
 */
INLINE vf load_quad_steps(const float *p, int64_t step)
{
#if HZ_VEC == HZ_VEC_AVX512
	const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
						_mm_loadu_ps(p + step), 1);
	const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 2 * step)),
						 _mm_loadu_ps(p + 3 * step), 1);

	return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
					_mm_loadu_ps(p + step), 1);
#else
	(void)step;
	return load_f32(p);
#endif
}

/* n quads; behind them the first one again */
INLINE vf load_quad_steps_part(const float *p, int64_t step, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	const float *q[4];

	UNROLL
	for (int i = 0; i < 4; i++)
		q[i] = i < n ? p + i * step : p;

	const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[0])),
						_mm_loadu_ps(q[1]), 1);
	const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[2])),
						 _mm_loadu_ps(q[3]), 1);

	return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#else
	return load_quad_steps(p, n > 1 ? step : 0);
#endif
}

INLINE void store_quad_steps(float *p, int64_t step, vf v)
{
#if HZ_VEC == HZ_VEC_AVX512
	_mm_storeu_ps(p, _mm512_castps512_ps128((__m512)v));
	_mm_storeu_ps(p + step, _mm512_extractf32x4_ps((__m512)v, 1));
	_mm_storeu_ps(p + 2 * step, _mm512_extractf32x4_ps((__m512)v, 2));
	_mm_storeu_ps(p + 3 * step, _mm512_extractf32x4_ps((__m512)v, 3));
#elif HZ_VEC == HZ_VEC_AVX2
	_mm_storeu_ps(p, _mm256_castps256_ps128((__m256)v));
	_mm_storeu_ps(p + step, _mm256_extractf128_ps((__m256)v, 1));
#else
	(void)step;
	store_f32(p, v);
#endif
}

INLINE vh load_quad_steps_u16(const uint16_t *p, int64_t step)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	typedef uint64_t quads __attribute__((vector_size(2 * LANES)));
	quads q = {0};

	UNROLL
	for (int i = 0; i < LANES / 4; i++) {
		uint64_t quad;

		memcpy(&quad, p + i * step, 8);
		q[i] = quad;
	}
	return (vh)q;
#else
	vh v;

	(void)step;
	memcpy(&v, p, sizeof(v));
	return v;
#endif
}

/* n quads; behind them the first one again */
INLINE vh load_quad_steps_u16_part(const uint16_t *p, int64_t step, int64_t n)
{
#if HZ_VEC == HZ_VEC_AVX512
	typedef uint64_t quads __attribute__((vector_size(2 * LANES)));
	quads q = {0};

	UNROLL
	for (int i = 0; i < LANES / 4; i++) {
		uint64_t quad;

		memcpy(&quad, p + (i < n ? i * step : 0), 8);
		q[i] = quad;
	}
	return (vh)q;
#else
	return load_quad_steps_u16(p, n > 1 ? step : 0);
#endif
}

INLINE void store_quad_steps_u16(uint16_t *p, int64_t step, vh v)
{
#if HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2
	typedef uint64_t quads __attribute__((vector_size(2 * LANES)));
	const quads q = (quads)v;

	UNROLL
	for (int i = 0; i < LANES / 4; i++) {
		const uint64_t quad = q[i];

		memcpy(p + i * step, &quad, 8);
	}
#else
	(void)step;
	memcpy(p, &v, sizeof(v));
#endif
}

/*
 * transpose_quads() of 4 LANES contiguous bf16 numbers, and its inverse. Two bf16 numbers form one
 * 32-bit element, which halves the shuffles.
 */
#define PAIR_FIRST(i) (2 * GROUP_PLACE(i))
#define PAIR_LAST(i) (2 * GROUP_PLACE(i) + 1)

INLINE void load_bf16_quads(const uint16_t *p, vf *v)
{
	const vi upper = set_i(-65536);
	vi first, last;

#if HZ_VEC == HZ_VEC_AVX2
	const __m256i *const from = (const __m256i *)(const void *)p;
	const __m256 a = (__m256)_mm256_permute4x64_epi64(_mm256_loadu_si256(from), 0xd8);
	const __m256 b = (__m256)_mm256_permute4x64_epi64(_mm256_loadu_si256(from + 1), 0xd8);

	first = (vi)_mm256_shuffle_ps(a, b, 0x88);
	last = (vi)_mm256_shuffle_ps(a, b, 0xdd);
#else
	vf a, b;

	/* p is aligned to 2 bytes only. */
	memcpy(&a, p, sizeof(a));
	memcpy(&b, p + 2 * LANES, sizeof(b));
	first = (vi)SHUFFLE(a, b, EACH(PAIR_FIRST));
	last = (vi)SHUFFLE(a, b, EACH(PAIR_LAST));
#endif
	v[0] = (vf)(first << 16);
	v[1] = (vf)(first & upper);
	v[2] = (vf)(last << 16);
	v[3] = (vf)(last & upper);
}

/* a and b in bf16 as 32-bit elements, a in the lower halves */
INLINE vf bf16_pairs(vf a, vf b)
{
	return (vf)(bf16_bits(a) | bf16_bits(b) << 16);
}

/* bf16_pairs() of numbers that are not subnormal */
INLINE vf bf16_pairs_normal(vf a, vf b)
{
#if HZ_VEC == HZ_VEC_AVX512 && defined(__AVX512BF16__)
#define PAIR_PLACE(i) ((i) | ((i) + LANES) << 16)
	return (vf)_mm512_permutexvar_epi16((__m512i)(vi){EACH(PAIR_PLACE)},
					    (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
#else
	return bf16_pairs(a, b);
#endif
}

/* For store_bf16_quads(): 32-bit elements, two for each quaternion */
#define PAIR_LANE(q) ((q) % (LANES / 4) * 4 + (q) / (LANES / 4))
#define PAIRS_LOW(i) (PAIR_LANE((i) / 2) + (i) % 2 * LANES)
#define PAIRS_HIGH(i) (PAIR_LANE((i) / 2 + LANES / 2) + (i) % 2 * LANES)

INLINE void store_bf16_quads(uint16_t *p, const vf *v, const int stream)
{
	vf first, last, y[2];

	if (has_subnormal(v, 4)) {
		first = bf16_pairs(v[0], v[1]);
		last = bf16_pairs(v[2], v[3]);
	} else {
		first = bf16_pairs_normal(v[0], v[1]);
		last = bf16_pairs_normal(v[2], v[3]);
	}
#if HZ_VEC == HZ_VEC_AVX2
	y[0] = (vf)_mm256_permute4x64_epi64((__m256i)_mm256_unpacklo_ps((__m256)first,
									(__m256)last), 0xd8);
	y[1] = (vf)_mm256_permute4x64_epi64((__m256i)_mm256_unpackhi_ps((__m256)first,
									(__m256)last), 0xd8);
#else
	y[0] = SHUFFLE(first, last, EACH(PAIRS_LOW));
	y[1] = SHUFFLE(first, last, EACH(PAIRS_HIGH));
#endif
	UNROLL
	for (int i = 0; i < 2; i++) {
		uint16_t *const to = p + 2 * i * LANES;

		if (stream)
			stream_f32((float *)(void *)to, y[i]);
		else
			memcpy(to, &y[i], sizeof(y[i]));
	}
}

/* ---- f64 ------------------------------------------------------------------------------------- */

#define LANES_D (LANES / 2)

#if LANES_D == 8
#define EACH_D(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#elif LANES_D == 4
#define EACH_D(f) f(0), f(1), f(2), f(3)
#else
#define EACH_D(f) f(0), f(1)
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE_D(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_D(a, b, ...) __builtin_shuffle(a, b, (vl){__VA_ARGS__})
#endif

/* c - a * b, rounded as fma_d() */
INLINE vd fnma_d(vd a, vd b, vd c)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vd)_mm512_fnmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vd)_mm256_fnmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif HZ_VEC == HZ_VEC_NEON
	return (vd)vfmsq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
	return c - a * b;
#endif
}

INLINE vd sqrt_d(vd a)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vd)_mm512_sqrt_pd((__m512d)a);
#elif HZ_VEC == HZ_VEC_AVX2
	return (vd)_mm256_sqrt_pd((__m256d)a);
#elif HZ_VEC == HZ_VEC_NEON
	return (vd)vsqrtq_f64((float64x2_t)a);
#else
	return (vd){__builtin_sqrt(a[0]), __builtin_sqrt(a[1])};
#endif
}

/* a where mask is -1, b where it is 0 */
INLINE vd select_mask_d(vl mask, vd a, vd b)
{
#if HZ_VEC == HZ_VEC_AVX512
	return (vd)_mm512_mask_mov_pd((__m512d)b, _mm512_movepi64_mask((__m512i)mask), (__m512d)a);
#else
	return (vd)((mask & (vl)a) | (~mask & (vl)b));
#endif
}

#define EVEN_D(i) (2 * (i))
#define ODD_D(i) (2 * (i) + 1)
#define ZIP_LOW_D(i) ((i) / 2 + (i) % 2 * LANES_D)
#define ZIP_HIGH_D(i) ((i) / 2 + (i) % 2 * LANES_D + LANES_D / 2)

#if HZ_VEC == HZ_VEC_AVX2
/* 4 x 4 transpose: its own inverse */
INLINE void transpose_quads_d(vd *v)
{
	const __m256d a = _mm256_unpacklo_pd((__m256d)v[0], (__m256d)v[1]);
	const __m256d b = _mm256_unpackhi_pd((__m256d)v[0], (__m256d)v[1]);
	const __m256d c = _mm256_unpacklo_pd((__m256d)v[2], (__m256d)v[3]);
	const __m256d d = _mm256_unpackhi_pd((__m256d)v[2], (__m256d)v[3]);

	v[0] = (vd)_mm256_permute2f128_pd(a, c, 0x20);
	v[1] = (vd)_mm256_permute2f128_pd(b, d, 0x20);
	v[2] = (vd)_mm256_permute2f128_pd(a, c, 0x31);
	v[3] = (vd)_mm256_permute2f128_pd(b, d, 0x31);
}
#endif

#if LANES_D >= 4
/* n of LANES_D / 4 quads, step elements apart; behind them the first one again */
INLINE vd load_quad_steps_d(const double *p, int64_t step, int64_t n)
{
#if LANES_D == 8
	return (vd)_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(p)),
				      _mm256_loadu_pd(n > 1 ? p + step : p), 1);
#else
	(void)step, (void)n;
	return load_f64(p);
#endif
}
#endif

/* Components 0 .. 3 of LANES_D quads, step elements apart, in order; loads and stores */
INLINE void load_quads_d(const double *p, int64_t step, vd *v)
{
#if HZ_VEC == HZ_VEC_AVX2
	UNROLL
	for (int i = 0; i < 4; i++)
		v[i] = load_f64(p + i * step);
	transpose_quads_d(v);
#else
	vd m[4], even[2], odd[2];

	UNROLL
	for (int i = 0; i < 4; i++) {
#if LANES_D == 8
		m[i] = step == 4 ? load_f64(p + 8 * i) :
			(vd)_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(p + 2 * i *
										      step)),
					       _mm256_loadu_pd(p + (2 * i + 1) * step), 1);
#else
		m[i] = load_f64(p + i / 2 * step + i % 2 * 2);
#endif
	}
	UNROLL
	for (int i = 0; i < 2; i++) {
		even[i] = SHUFFLE_D(m[2 * i], m[2 * i + 1], EACH_D(EVEN_D));
		odd[i] = SHUFFLE_D(m[2 * i], m[2 * i + 1], EACH_D(ODD_D));
	}
	v[0] = SHUFFLE_D(even[0], even[1], EACH_D(EVEN_D));
	v[1] = SHUFFLE_D(odd[0], odd[1], EACH_D(EVEN_D));
	v[2] = SHUFFLE_D(even[0], even[1], EACH_D(ODD_D));
	v[3] = SHUFFLE_D(odd[0], odd[1], EACH_D(ODD_D));
#endif
}

/* stream: non-temporal, as stream_f32(), with a step of 4 */
INLINE void store_quads_d(double *p, int64_t step, const vd *v, const int stream)
{
	vd m[4];
#if HZ_VEC == HZ_VEC_AVX2

	UNROLL
	for (int i = 0; i < 4; i++)
		m[i] = v[i];
	transpose_quads_d(m);
#else
	const vd low[2] = {SHUFFLE_D(v[0], v[2], EACH_D(ZIP_LOW_D)),
			   SHUFFLE_D(v[1], v[3], EACH_D(ZIP_LOW_D))};
	const vd high[2] = {SHUFFLE_D(v[0], v[2], EACH_D(ZIP_HIGH_D)),
			    SHUFFLE_D(v[1], v[3], EACH_D(ZIP_HIGH_D))};

	m[0] = SHUFFLE_D(low[0], low[1], EACH_D(ZIP_LOW_D));
	m[1] = SHUFFLE_D(low[0], low[1], EACH_D(ZIP_HIGH_D));
	m[2] = SHUFFLE_D(high[0], high[1], EACH_D(ZIP_LOW_D));
	m[3] = SHUFFLE_D(high[0], high[1], EACH_D(ZIP_HIGH_D));
#endif
	UNROLL
	for (int i = 0; i < 4; i++) {
#if LANES_D == 8
		if (step != 4) {
			_mm256_storeu_pd(p + 2 * i * step, _mm512_castpd512_pd256((__m512d)m[i]));
			_mm256_storeu_pd(p + (2 * i + 1) * step,
					 _mm512_extractf64x4_pd((__m512d)m[i], 1));
			continue;
		}
#endif
		if (stream)
			stream_f32((float *)(void *)(p + i * LANES_D), (vf)m[i]);
		else
			store_f64(LANES_D == 2 ? p + i / 2 * step + i % 2 * 2 :
				  LANES_D == 4 ? p + i * step : p + i * LANES_D, m[i]);
	}
}

#endif
