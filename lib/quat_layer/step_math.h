/*
 * step_math.h - what the steps of quaternion layers do to one element, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_STEP_H
#define HZI_QUAT_STEP_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lib/quat_layer/quat_layer.h"

#ifdef __CUDACC__
#define HZI_QUAT_INLINE static __device__ __forceinline__
#define HZI_QUAT_UNROLL _Pragma("unroll")
#else
#define HZI_QUAT_INLINE static inline
#define HZI_QUAT_UNROLL
#endif

/* ---- Loads and stores ------------------------------------------------------------------------ */

#ifdef __CUDACC__

HZI_QUAT_INLINE float hzi_quat_component(int dtype, const void *p, int64_t i)
{
	return load_any(dtype, p, i);
}

HZI_QUAT_INLINE void hzi_quat_set_component(int dtype, void *p, int64_t i, float v)
{
	store_any(dtype, p, i, v);
}

#else

HZI_QUAT_INLINE float hzi_quat_from_f16(uint16_t h)
{
	uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
	float f;

	memcpy(&f, &bits, 4);
	f *= 0x1p112f;		/* the exponent's bias: 127 - 15 */
	memcpy(&bits, &f, 4);
	if ((h & 0x7c00) == 0x7c00)
		bits |= 0x7f800000;
	bits |= (uint32_t)(h & 0x8000) << 16;
	memcpy(&f, &bits, 4);
	return f;
}

HZI_QUAT_INLINE uint16_t hzi_quat_to_f16(float f)
{
	uint32_t bits, sign, code;

	memcpy(&bits, &f, 4);
	sign = bits >> 16 & 0x8000;
	bits &= 0x7fffffff;
	if (bits > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (bits >= 0x477ff000)		/* 65520 and more: Inf */
		return (uint16_t)(sign | 0x7c00);
	if (bits < 0x38800000) {	/* below 2^-14: 0.5 has the unit 2^-24 */
		float t;

		memcpy(&t, &bits, 4);
		t += 0.5f;
		memcpy(&code, &t, 4);
		return (uint16_t)(sign | (code - 0x3f000000));
	}
	code = (bits + 0xfff + (bits >> 13 & 1)) >> 13;
	return (uint16_t)(sign | (code - (112 << 10)));
}

HZI_QUAT_INLINE uint16_t hzi_quat_to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, 4);
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

HZI_QUAT_INLINE double hzi_quat_component(int dtype, const void *p, int64_t i)
{
	uint32_t bits;
	float f;

	switch (dtype) {
	case HZ_F32:
		return (double)((const float *)p)[i];
	case HZ_F16:
		return (double)hzi_quat_from_f16(((const uint16_t *)p)[i]);
	case HZ_BF16:
		bits = (uint32_t)((const uint16_t *)p)[i] << 16;
		memcpy(&f, &bits, 4);
		return (double)f;
	default:
		return ((const double *)p)[i];
	}
}

HZI_QUAT_INLINE void hzi_quat_set_component(int dtype, void *p, int64_t i, double v)
{
	switch (dtype) {
	case HZ_F32:
		((float *)p)[i] = (float)v;
		break;
	case HZ_F16:
		((uint16_t *)p)[i] = hzi_quat_to_f16((float)v);
		break;
	case HZ_BF16:
		((uint16_t *)p)[i] = hzi_quat_to_bf16((float)v);
		break;
	default:
		((double *)p)[i] = v;
	}
}

#endif

struct hzi_quat {
	hzi_quat_real c[4];
};

HZI_QUAT_INLINE struct hzi_quat hzi_quat_load(const struct hzi_quat_array *a, int64_t at)
{
	struct hzi_quat q;

#ifdef __CUDACC__
	if (a->whole && a->dtype == HZ_F32) {
		const float4 v = *(const float4 *)((const float *)a->data + at);

		q.c[0] = v.x, q.c[1] = v.y, q.c[2] = v.z, q.c[3] = v.w;
		return q;
	}
	if (a->whole) {
		const uint2 v = *(const uint2 *)((const uint16_t *)a->data + at);
		const bool half = a->dtype == HZ_F16;

		q.c[0] = half ? f16_low(v.x) : bf16_low(v.x);
		q.c[1] = half ? f16_high(v.x) : bf16_high(v.x);
		q.c[2] = half ? f16_low(v.y) : bf16_low(v.y);
		q.c[3] = half ? f16_high(v.y) : bf16_high(v.y);
		return q;
	}
#else
	if (a->whole && a->dtype == HZ_F32) {
		for (int c = 0; c < 4; c++)
			q.c[c] = (double)((const float *)a->data)[at + c];
		return q;
	}
#endif
	for (int c = 0; c < 4; c++)
		q.c[c] = hzi_quat_component(a->dtype, a->data, at + a->comp[c]);
	return q;
}

HZI_QUAT_INLINE void hzi_quat_store(const struct hzi_quat_array *a, int64_t at, struct hzi_quat q,
				    int first)
{
#ifdef __CUDACC__
	if (a->whole && first == 0) {
		if (a->dtype == HZ_F32)
			*(float4 *)((float *)a->data + at) =
				make_float4(q.c[0], q.c[1], q.c[2], q.c[3]);
		else if (a->dtype == HZ_F16)
			*(uint2 *)((uint16_t *)a->data + at) = make_uint2(
				to_f16x2(q.c[0], q.c[1]), to_f16x2(q.c[2], q.c[3]));
		else
			*(uint2 *)((uint16_t *)a->data + at) = make_uint2(
				to_bf16x2(q.c[0], q.c[1]), to_bf16x2(q.c[2], q.c[3]));
		return;
	}
#else
	if (a->whole && first == 0 && a->dtype == HZ_F32) {
		for (int c = 0; c < 4; c++)
			((float *)a->data)[at + c] = (float)q.c[c];
		return;
	}
#endif
	for (int c = first; c < 4; c++)
		hzi_quat_set_component(a->dtype, a->data, at + a->comp[c], q.c[c]);
}

/* ---- Activations ----------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define HZI_QUAT_FN(name) name##f
#else
#define HZI_QUAT_FN(name) name
#endif

/* |q| without overflow or underflow of the squares */
HZI_QUAT_INLINE hzi_quat_real hzi_quat_norm(struct hzi_quat q)
{
	hzi_quat_real most = 0, sum = 0;

	for (int c = 0; c < 4; c++) {
		const hzi_quat_real size = HZI_QUAT_FN(fabs)(q.c[c]);

		if (!(size <= most))
			most = size;
		sum += q.c[c] * q.c[c];
	}
	if (most > (hzi_quat_real)1e-15 && most < (hzi_quat_real)1e15)
		return HZI_QUAT_FN(sqrt)(sum);
	if (most == 0 || !(most <= (hzi_quat_real)3e38 || sizeof(hzi_quat_real) == 8) ||
	    most != most)
		return most;
	sum = 0;
	for (int c = 0; c < 4; c++)
		sum += (q.c[c] / most) * (q.c[c] / most);
	return most * HZI_QUAT_FN(sqrt)(sum);
}

/* Activations of one component: enum hz_activation up to HZ_ACT_SILU */
HZI_QUAT_INLINE hzi_quat_real hzi_quat_activation(int act, hzi_quat_real slope, hzi_quat_real x)
{
	switch (act) {
	case HZ_ACT_RELU:
		return x < 0 ? 0 : x;
	case HZ_ACT_LEAKY:
		return x < 0 ? slope * x : x;
	case HZ_ACT_TANH:
		return HZI_QUAT_FN(tanh)(x);
	case HZ_ACT_SIGMOID:
		return 1 / (1 + HZI_QUAT_FN(exp)(-x));
	case HZ_ACT_GELU:
		return x * (hzi_quat_real)0.5 *
		       HZI_QUAT_FN(erfc)(x * (hzi_quat_real)-0.70710678118654752440);
	case HZ_ACT_SILU:
		return x / (1 + HZI_QUAT_FN(exp)(-x));
	default:
		return x;
	}
}

/* Their derivatives */
HZI_QUAT_INLINE hzi_quat_real hzi_quat_activation_slope(int act, hzi_quat_real slope,
							hzi_quat_real x)
{
	hzi_quat_real s;

	switch (act) {
	case HZ_ACT_RELU:
		return x <= 0 ? 0 : 1;
	case HZ_ACT_LEAKY:
		return x < 0 ? slope : 1;
	case HZ_ACT_TANH:
		s = HZI_QUAT_FN(tanh)(x);
		return 1 - s * s;
	case HZ_ACT_SIGMOID:
		s = 1 / (1 + HZI_QUAT_FN(exp)(-x));
		return s * (1 - s);
	case HZ_ACT_GELU:	/* Phi(x) + x phi(x) */
		s = (hzi_quat_real)0.5 * HZI_QUAT_FN(erfc)(x *
							   (hzi_quat_real)-0.70710678118654752440);
		return s + x * (hzi_quat_real)0.39894228040143267794 *
				   HZI_QUAT_FN(exp)(x * x * (hzi_quat_real)-0.5);
	case HZ_ACT_SILU:
		s = 1 / (1 + HZI_QUAT_FN(exp)(-x));
		return s + x * s * (1 - s);
	default:
		return 1;
	}
}

HZI_QUAT_INLINE struct hzi_quat hzi_quat_activate(int act, hzi_quat_real slope, struct hzi_quat q)
{
	hzi_quat_real norm, factor;

	if (act < HZ_ACT_MODRELU) {
		for (int c = 0; c < 4; c++)
			q.c[c] = hzi_quat_activation(act, slope, q.c[c]);
		return q;
	}
	norm = hzi_quat_norm(q);
	if (act == HZ_ACT_MODRELU)
		factor = norm == 0 || norm + slope < 0 ? 0 : (norm + slope) / norm;
	else
		factor = norm > slope ? slope / norm : 1;
	for (int c = 0; c < 4; c++)
		q.c[c] *= factor;
	return q;
}

/*
 * The gradient at q for the gradient d of the result. y = f(|q|) q has f d + f' <q, d> q / |q|,
 * with f = 1 + s / |q| or s / |q|, so f' = -s / |q|^2.
 */
HZI_QUAT_INLINE struct hzi_quat hzi_quat_activate_bwd(int act, hzi_quat_real slope,
						      struct hzi_quat q, struct hzi_quat d)
{
	hzi_quat_real norm, factor, along = 0;

	if (act < HZ_ACT_MODRELU) {
		for (int c = 0; c < 4; c++)
			d.c[c] *= hzi_quat_activation_slope(act, slope, q.c[c]);
		return d;
	}
	norm = hzi_quat_norm(q);
	if (act == HZ_ACT_MODRELU ? norm == 0 || norm + slope <= 0 : !(norm > slope)) {
		for (int c = 0; c < 4; c++)
			d.c[c] = act == HZ_ACT_MODRELU ? 0 : d.c[c];
		return d;
	}
	factor = act == HZ_ACT_MODRELU ? (norm + slope) / norm : slope / norm;
	for (int c = 0; c < 4; c++) {
		q.c[c] /= norm;
		along += q.c[c] * d.c[c];
	}
	for (int c = 0; c < 4; c++)
		d.c[c] = factor * d.c[c] - slope / norm * along * q.c[c];
	return d;
}

/* ---- Random numbers -------------------------------------------------------------------------- */

/* Output j, from 0, of splitmix64 started at seed: 53 bits of it as a number below 1 */
HZI_QUAT_INLINE double hzi_quat_uniform(uint64_t seed, uint64_t j)
{
	uint64_t z = seed + (j + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return (double)(z >> 11) * 0x1p-53;
}

/* One rounding each, never fused: numbers computed from these have the same bits everywhere. */
#ifdef __CUDACC__
HZI_QUAT_INLINE double hzi_dmul(double a, double b) { return __dmul_rn(a, b); }
HZI_QUAT_INLINE double hzi_dadd(double a, double b) { return __dadd_rn(a, b); }
#else
HZI_QUAT_INLINE double hzi_dmul(double a, double b) { return a * b; }
HZI_QUAT_INLINE double hzi_dadd(double a, double b) { return a + b; }
#endif

/* -2 ln(x), 2^-106 <= x <= 1: x = m 2^e, ln m = 2 atanh((m - 1) / (m + 1)) by its series */
HZI_QUAT_INLINE double hzi_quat_minus_2ln(double x)
{
	uint64_t bits;
	double m, s, t, sum = 0;
	int e;

	memcpy(&bits, &x, 8);
	e = (int)(bits >> 52) - 1023;
	bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
	memcpy(&m, &bits, 8);
	if (m > 1.4142135623730951) {
		m *= 0.5;
		e++;
	}
	s = hzi_dadd(m, -1) / hzi_dadd(m, 1);
	t = hzi_dmul(s, s);		/* at most 0.0295: 12 terms leave 2^-60 of the first */
	for (int k = 23; k >= 1; k -= 2)
		sum = hzi_dadd(hzi_dmul(sum, t), 1.0 / k);
	sum = hzi_dmul(hzi_dmul(sum, s), 2);
	return hzi_dmul(-2, hzi_dadd(hzi_dmul(e, 0.69314718055994531), sum));
}

/*
 * cos and sin of 2 pi u, 0 <= u < 1: reduced to eighths of a circle, then their series up to x^17
 */
HZI_QUAT_INLINE void hzi_quat_cos_sin(double u, double *cosine, double *sine)
{
	const int eighth = (int)hzi_dmul(u, 8);
	const int quarter = (eighth + 1) / 2;		/* the nearest multiple of a quarter */
	const double x = hzi_dmul(hzi_dadd(u, -0.25 * quarter), 6.2831853071795865);
	const double t = hzi_dmul(x, x);
	double c = 1, s = 1;

	for (int k = 16; k >= 2; k -= 2) {
		c = hzi_dadd(1, -hzi_dmul(c, t) / (k * (k - 1)));
		s = hzi_dadd(1, -hzi_dmul(s, t) / (k * (k + 1)));
	}
	s = hzi_dmul(s, x);
	*cosine = quarter % 4 == 0 ? c : quarter % 4 == 1 ? -s : quarter % 4 == 2 ? -c : s;
	*sine = quarter % 4 == 0 ? s : quarter % 4 == 1 ? c : quarter % 4 == 2 ? -s : -c;
}

HZI_QUAT_INLINE double hzi_quat_sqrt(double x)
{
#ifdef __CUDACC__
	return __dsqrt_rn(x);
#else
	return sqrt(x);
#endif
}

/* Quaternion i of hz_quat_init(), by its formulas */
HZI_QUAT_INLINE void hzi_quat_random(int distribution, double scale, uint64_t seed, uint64_t i,
				     double *q)
{
	double u[5], ca, sa, cb, sb, s, t;

	for (int k = 0; k < 5; k++)
		u[k] = hzi_quat_uniform(seed, 8 * i + (uint64_t)k);
	if (distribution == HZ_QUAT_POLAR) {
		s = hzi_dmul(scale, hzi_quat_sqrt(hzi_quat_minus_2ln(hzi_dmul(1 - u[0], 1 -
									      u[1]))));
		hzi_quat_cos_sin(u[2], &ca, &sa);
		hzi_quat_cos_sin(u[4], &cb, &sb);
		q[3] = hzi_dadd(hzi_dmul(2, u[3]), -1);
		t = hzi_dmul(sa, hzi_quat_sqrt(hzi_dadd(1, -hzi_dmul(q[3], q[3]))));
		q[0] = hzi_dmul(s, ca);
		q[1] = hzi_dmul(s, hzi_dmul(t, cb));
		q[2] = hzi_dmul(s, hzi_dmul(t, sb));
		q[3] = hzi_dmul(s, hzi_dmul(sa, q[3]));
		return;
	}
	hzi_quat_cos_sin(u[1], &ca, &sa);
	hzi_quat_cos_sin(distribution == HZ_QUAT_UNITARY ? u[2] : u[3], &cb, &sb);
	if (distribution == HZ_QUAT_UNITARY) {
		s = hzi_quat_sqrt(1 - u[0]);
		t = hzi_quat_sqrt(u[0]);
	} else {
		s = hzi_quat_sqrt(hzi_quat_minus_2ln(1 - u[0]));
		t = hzi_quat_sqrt(hzi_quat_minus_2ln(1 - u[2]));
	}
	q[0] = hzi_dmul(scale, hzi_dmul(s, ca));
	q[1] = hzi_dmul(scale, hzi_dmul(s, sa));
	q[2] = hzi_dmul(scale, hzi_dmul(t, cb));
	q[3] = hzi_dmul(scale, hzi_dmul(t, sb));
}

/* ---- Maps ------------------------------------------------------------------------------------ */

/* y += m x */
HZI_QUAT_INLINE void hzi_quat_add_product(hzi_quat_real *y, const hzi_quat_real *m,
					  const hzi_quat_real *x)
{
	for (int r = 0; r < 4; r++) {
		for (int c = 0; c < 4; c++)
			y[r] += m[4 * r + c] * x[c];
	}
}

/* Element i of a map of that kind; its channel's coefficients, its offsets in the four arrays */
HZI_QUAT_INLINE void hzi_quat_map_one(const struct hzi_quat_map_step *m, int kind, int64_t i,
				      const void *coef, const int64_t *at)
{
	const int first = (m->pure & 2) != 0;
	struct hzi_quat q = {{0, 0, 0, 0}}, b, d;

	if (kind != HZI_QUAT_MAP_INIT)
		q = hzi_quat_load(&m->a, at[0]);
	if (m->pure & 1)
		q.c[0] = 0;
	switch (kind) {
	case HZI_QUAT_MAP_ACT:
		if (m->b.data) {
			b = hzi_quat_load(&m->b, at[1]);
			for (int c = 0; c < 4; c++)
				q.c[c] += b.c[c];
		}
		if (m->pre.data)
			hzi_quat_store(&m->pre, at[3], q, first);
		q = hzi_quat_activate(m->activation, (hzi_quat_real)m->slope, q);
		break;
	case HZI_QUAT_MAP_ACT_BWD:
		b = hzi_quat_load(&m->b, at[1]);
		q = hzi_quat_activate_bwd(m->activation, (hzi_quat_real)m->slope, q, b);
		break;
	case HZI_QUAT_MAP_DROPOUT:
		for (int c = 0; c < 4; c++)
			q.c[c] = hzi_quat_uniform(m->seed, m->offset + (uint64_t)i) < m->drop ?
					 0 : q.c[c] * (hzi_quat_real)m->scale;
		break;
	case HZI_QUAT_MAP_INIT: {
		double r[4];

		hzi_quat_random(m->init, m->scale, m->seed, m->offset + (uint64_t)i, r);
		for (int c = 0; c < 4; c++)
			q.c[c] = (hzi_quat_real)r[c];
		break;
	}
	case HZI_QUAT_MAP_AFFINE: {
		const struct hzi_quat_affine *f = (const struct hzi_quat_affine *)coef;

		for (int c = 0; c < 4; c++) {
			q.c[c] -= f->mean[c];
			d.c[c] = f->shift[c];
		}
		hzi_quat_add_product(d.c, f->m, q.c);
		q = d;
		break;
	}
	case HZI_QUAT_MAP_AFFINE_BWD: {
		const struct hzi_quat_affine_bwd *f = (const struct hzi_quat_affine_bwd *)coef;

		b = hzi_quat_load(&m->b, at[1]);
		for (int c = 0; c < 4; c++) {
			q.c[c] -= f->mean[c];
			d.c[c] = f->shift[c];
		}
		hzi_quat_add_product(d.c, f->n, q.c);
		hzi_quat_add_product(d.c, f->m, b.c);
		q = d;
		break;
	}
	default:
		break;
	}
	if (m->accumulate) {
		b = hzi_quat_load(&m->out, at[2]);
		for (int c = 0; c < 4; c++)
			q.c[c] += b.c[c];
	}
	hzi_quat_store(&m->out, at[2], q, first);
}

/* ---- Pooling --------------------------------------------------------------------------------- */

/* Index in images, three dimensions and channels */
struct hzi_quat_position {
	int64_t image, p[3], c;
};

/* i / n, both non-negative; in 32 bits, which is several times as fast on a GPU, where they fit */
HZI_QUAT_INLINE int64_t hzi_quat_divide(int64_t i, int64_t n)
{
#ifdef __CUDACC__
	if (((uint64_t)i | (uint64_t)n) >> 32 == 0)
		return (uint32_t)i / (uint32_t)n;
#endif
	return i / n;
}

HZI_QUAT_INLINE struct hzi_quat_position hzi_quat_position(int64_t i, const int64_t *size,
							   int64_t channels)
{
	int64_t next = hzi_quat_divide(i, channels);
	struct hzi_quat_position at;

	at.c = i - next * channels;
	for (int d = 2; d >= 0; d--) {
		i = next;
		next = hzi_quat_divide(i, size[d]);
		at.p[d] = i - next * size[d];
	}
	at.image = next;
	return at;
}

HZI_QUAT_INLINE int64_t hzi_quat_position_offset(const int64_t *stride, struct hzi_quat_position at)
{
	return at.image * stride[0] + at.p[0] * stride[1] + at.p[1] * stride[2] +
	       at.p[2] * stride[3] + at.c * stride[4];
}

/*
 * Iterates over indices from low to below high, in index order. Up to HZI_QUAT_WALK_AHEAD of them
 * are looked at together, so that their loads overlap.
 */
#define HZI_QUAT_WALK_AHEAD 4

struct hzi_quat_walk {
	int64_t low[3], high[3], left;
	struct hzi_quat_position at;
};

HZI_QUAT_INLINE void hzi_quat_walk_begin(struct hzi_quat_walk *w, struct hzi_quat_position at)
{
	w->at = at;
	w->left = 1;
	for (int d = 0; d < 3; d++) {
		w->at.p[d] = w->low[d];
		w->left *= w->high[d] > w->low[d] ? w->high[d] - w->low[d] : 0;
	}
}

HZI_QUAT_INLINE void hzi_quat_walk_next(struct hzi_quat_walk *w)
{
	w->left--;
	if (++w->at.p[2] < w->high[2])
		return;
	w->at.p[2] = w->low[2];
	if (++w->at.p[1] < w->high[1])
		return;
	w->at.p[1] = w->low[1];
	w->at.p[0]++;
}

/* Computes the element of y at an index. */
HZI_QUAT_INLINE void hzi_quat_pool_one(const struct hzi_quat_pool_step *a,
				       struct hzi_quat_position to)
{
	int64_t count, best = -1;
	struct hzi_quat sum = {{0, 0, 0, 0}};
	struct hzi_quat_walk from;
	double most = 0;

	for (int d = 0; d < 3; d++) {
		from.low[d] = to.p[d] * a->step[d] - a->pad[d];
		from.high[d] = from.low[d] + a->window[d];
		if (from.low[d] < 0)
			from.low[d] = 0;
		if (from.high[d] > a->size[d])
			from.high[d] = a->size[d];
	}
	hzi_quat_walk_begin(&from, to);
	count = from.left;
	while (from.left > 0) {
		const int n = from.left < HZI_QUAT_WALK_AHEAD ? (int)from.left
							      : HZI_QUAT_WALK_AHEAD;
		struct hzi_quat q[HZI_QUAT_WALK_AHEAD];
		int64_t own[HZI_QUAT_WALK_AHEAD];

		HZI_QUAT_UNROLL
		for (int i = 0; i < HZI_QUAT_WALK_AHEAD; i++) {
			if (i >= n)
				continue;
			q[i] = hzi_quat_load(&a->x, hzi_quat_position_offset(a->x.stride, from.at));
			own[i] = (from.at.p[0] * a->size[1] + from.at.p[1]) * a->size[2] +
				 from.at.p[2];
			hzi_quat_walk_next(&from);
		}
		HZI_QUAT_UNROLL
		for (int i = 0; i < HZI_QUAT_WALK_AHEAD; i++) {
			double norm = 0;

			if (i >= n)
				continue;
			if (!a->max) {
				for (int c = 0; c < 4; c++)
					sum.c[c] += q[i].c[c];
				continue;
			}
			for (int c = 0; c < 4; c++)
				norm += (double)q[i].c[c] * (double)q[i].c[c];
			if (best < 0 || norm > most || (norm != norm && most == most)) {
				best = own[i];
				most = norm;
				sum = q[i];
			}
		}
	}
	for (int c = 0; c < 4 && !a->max; c++)
		sum.c[c] /= (hzi_quat_real)count;
	hzi_quat_store(&a->y, hzi_quat_position_offset(a->y.stride, to), sum, 0);
	if (a->index)
		a->index[hzi_quat_position_offset(a->index_stride, to)] = (int32_t)best;
}

/* The divisor of a mean over the window of y at an index */
HZI_QUAT_INLINE hzi_quat_real hzi_quat_pool_count(const struct hzi_quat_pool_step *a,
						  const struct hzi_quat_position *from)
{
	hzi_quat_real count = 1;

	for (int d = 0; d < 3; d++) {
		const int64_t begin = from->p[d] * a->step[d] - a->pad[d];
		const int64_t end = begin + a->window[d];

		count *= (hzi_quat_real)((end < a->size[d] ? end : a->size[d]) -
					 (begin > 0 ? begin : 0));
	}
	return count;
}

/*
 * Computes the element of dx at an index: the contributions of the windows that contain it, in
 * order.
 */
HZI_QUAT_INLINE void hzi_quat_pool_bwd_one(const struct hzi_quat_pool_step *a,
					   struct hzi_quat_position to)
{
	const int64_t at = hzi_quat_position_offset(a->x.stride, to);
	const int64_t own = (to.p[0] * a->size[1] + to.p[1]) * a->size[2] + to.p[2];
	struct hzi_quat sum = {{0, 0, 0, 0}};
	struct hzi_quat_walk from;

	for (int d = 0; d < 3; d++) {
		const int64_t p = to.p[d] + a->pad[d];

		from.low[d] = p < a->window[d] ?
				      0 : hzi_quat_divide(p - a->window[d], a->step[d]) + 1;
		from.high[d] = hzi_quat_divide(p, a->step[d]) + 1;
		if (from.high[d] > a->count[d])
			from.high[d] = a->count[d];
	}
	if (a->accumulate)
		sum = hzi_quat_load(&a->x, at);
	hzi_quat_walk_begin(&from, to);
	while (from.left > 0) {
		const int n = from.left < HZI_QUAT_WALK_AHEAD ? (int)from.left
							      : HZI_QUAT_WALK_AHEAD;
		struct hzi_quat_position places[HZI_QUAT_WALK_AHEAD];
		struct hzi_quat q[HZI_QUAT_WALK_AHEAD];
		bool mine[HZI_QUAT_WALK_AHEAD];

		HZI_QUAT_UNROLL
		for (int i = 0; i < HZI_QUAT_WALK_AHEAD; i++) {
			mine[i] = false;
			if (i >= n)
				continue;
			places[i] = from.at;
			mine[i] = !a->max ||
				  a->index[hzi_quat_position_offset(a->index_stride,
								    from.at)] == own;
			hzi_quat_walk_next(&from);
		}
		HZI_QUAT_UNROLL
		for (int i = 0; i < HZI_QUAT_WALK_AHEAD; i++) {
			if (mine[i])
				q[i] = hzi_quat_load(&a->y, hzi_quat_position_offset(a->y.stride,
										     places[i]));
		}
		HZI_QUAT_UNROLL
		for (int i = 0; i < HZI_QUAT_WALK_AHEAD; i++) {
			if (!mine[i])
				continue;
			const hzi_quat_real count = a->max ? 1 : hzi_quat_pool_count(a, &places[i]);

			for (int c = 0; c < 4; c++)
				sum.c[c] += q[i].c[c] / count;
		}
	}
	hzi_quat_store(&a->x, at, sum, 0);
}

/*
 * Computes all elements of dx in the window of y at an index, if windows do not overlap: the index
 * of the maximum is read once.
 */
HZI_QUAT_INLINE void hzi_quat_pool_bwd_window(const struct hzi_quat_pool_step *a,
					      struct hzi_quat_position from)
{
	const int64_t best =
		a->max ? a->index[hzi_quat_position_offset(a->index_stride, from)] : -1;
	const struct hzi_quat d = hzi_quat_load(&a->y, hzi_quat_position_offset(a->y.stride, from));
	const hzi_quat_real count = a->max ? 1 : hzi_quat_pool_count(a, &from);
	struct hzi_quat_walk to;

	for (int i = 0; i < 3; i++) {
		to.low[i] = from.p[i] * a->step[i];
		to.high[i] = to.low[i] + a->window[i];
	}
	for (hzi_quat_walk_begin(&to, from); to.left > 0; hzi_quat_walk_next(&to)) {
		const int64_t at = hzi_quat_position_offset(a->x.stride, to.at);
		const int64_t own =
			(to.at.p[0] * a->size[1] + to.at.p[1]) * a->size[2] + to.at.p[2];
		struct hzi_quat sum = {{0, 0, 0, 0}};

		if (a->accumulate)
			sum = hzi_quat_load(&a->x, at);
		for (int c = 0; c < 4 && (!a->max || own == best); c++)
			sum.c[c] += d.c[c] / count;
		hzi_quat_store(&a->x, at, sum, 0);
	}
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/*
 * A rotation q / d with its matrix, whose diagonal has `rest` besides what is quadratic in q / d; d
 * is 0 where the matrix is
 */
struct hzi_quat_rotation {
	hzi_quat_real u[4];		/* q / d; conjugated if inverse */
	hzi_quat_real along[4];		/* the gradient of d, likewise */
	hzi_quat_real d, rest, scale;
};

/* The matrix of v -> u v u^*, row-major, with the rest */
HZI_QUAT_INLINE void hzi_quat_rotation_matrix(const struct hzi_quat_rotation *q, hzi_quat_real *r)
{
	const hzi_quat_real w = q->u[0], x = q->u[1], y = q->u[2], z = q->u[3];

	r[0] = w * w + x * x - y * y - z * z;
	r[1] = 2 * (x * y - w * z);
	r[2] = 2 * (x * z + w * y);
	r[3] = 2 * (x * y + w * z);
	r[4] = w * w - x * x + y * y - z * z;
	r[5] = 2 * (y * z - w * x);
	r[6] = 2 * (x * z - w * y);
	r[7] = 2 * (y * z + w * x);
	r[8] = w * w - x * x - y * y + z * z;
	for (int i = 0; i < 9; i += 4)
		r[i] += q->rest;
}

HZI_QUAT_INLINE struct hzi_quat_rotation
hzi_quat_rotation_load(const struct hzi_quat_rotation_step *a, int64_t n, int64_t m)
{
	const struct hzi_quat v = hzi_quat_load(&a->q, n * a->q.stride[0] + m * a->q.stride[1]);
	const hzi_quat_real norm = hzi_quat_norm(v), eps = (hzi_quat_real)a->eps;
	struct hzi_quat_rotation q = {.d = norm};

	if (a->eps > 0) {
		/* rest: 1 - |q|^2 / d^2, without cancellation */
		q.d = a->eps_norm ? norm + eps : hypot(norm, sqrt(eps));
		q.rest = a->eps_norm ? eps / q.d * (1 + norm / q.d) : eps / q.d / q.d;
	}
	q.scale = a->scale ? hzi_quat_component(a->scale_dtype, a->scale,
						n * a->scale_row + m * a->scale_col) : 1;
	for (int c = 0; c < 4; c++) {
		q.u[c] = q.d == 0 ? 0 : v.c[c] / q.d;
		q.along[c] = !a->eps_norm ? q.u[c] : norm == 0 ? 0 : v.c[c] / norm;
	}
	if (a->inverse) {
		q.u[0] = -q.u[0];
		q.along[0] = -q.along[0];
	}
	return q;
}

/* Offset of number i of the matrix of q[n][m] */
HZI_QUAT_INLINE int64_t hzi_quat_rotation_at(const struct hzi_quat_rotation_step *a, int64_t n,
					     int64_t m, int i)
{
	return ((3 * n + i / 3) * a->ld + 3 * m + i % 3) * a->r_step;
}

HZI_QUAT_INLINE void hzi_quat_rotation_one(const struct hzi_quat_rotation_step *a, int64_t n,
					   int64_t m)
{
	const struct hzi_quat_rotation q = hzi_quat_rotation_load(a, n, m);
	hzi_quat_real r[9];

	hzi_quat_rotation_matrix(&q, r);
	for (int i = 0; i < 9; i++)
		hzi_quat_set_component(a->r_dtype, a->r, hzi_quat_rotation_at(a, n, m, i),
				       q.scale * r[i]);
}

/*
 * With u = q / d, R(u) quadratic in u but for the rest 1 - |u|^2, and g the gradient of R: the
 * gradient of u is the derivative below, and that of q is (du - <du, u> the gradient of d) / d.
 */
HZI_QUAT_INLINE void hzi_quat_rotation_bwd_one(const struct hzi_quat_rotation_step *a, int64_t n,
					       int64_t m)
{
	const struct hzi_quat_rotation q = hzi_quat_rotation_load(a, n, m);
	const hzi_quat_real w = q.u[0], x = q.u[1], y = q.u[2], z = q.u[3];
	hzi_quat_real r[9], g[9], d[4], sum = 0, along = 0;
	struct hzi_quat dq = {{0, 0, 0, 0}}, old;

	hzi_quat_rotation_matrix(&q, r);
	for (int i = 0; i < 9; i++) {
		g[i] = hzi_quat_component(a->r_dtype, a->r, hzi_quat_rotation_at(a, n, m, i));
		sum += g[i] * r[i];
	}
	if (a->dscale) {
		const int64_t at = n * a->dscale_row + m * a->dscale_col;

		if (a->accumulate)
			sum += hzi_quat_component(a->scale_dtype, a->dscale, at);
		hzi_quat_set_component(a->scale_dtype, a->dscale, at, sum);
	}
	if (!a->dq.data)
		return;
	d[0] = 2 * (w * (g[0] + g[4] + g[8]) + x * (g[7] - g[5]) + y * (g[2] - g[6]) +
		    z * (g[3] - g[1]));
	d[1] = 2 * (x * (g[0] - g[4] - g[8]) + y * (g[1] + g[3]) + z * (g[2] + g[6]) +
		    w * (g[7] - g[5]));
	d[2] = 2 * (y * (g[4] - g[0] - g[8]) + x * (g[1] + g[3]) + z * (g[5] + g[7]) +
		    w * (g[2] - g[6]));
	d[3] = 2 * (z * (g[8] - g[0] - g[4]) + x * (g[2] + g[6]) + y * (g[5] + g[7]) +
		    w * (g[3] - g[1]));
	for (int c = 0; c < 4 && a->eps > 0; c++)
		d[c] -= 2 * (g[0] + g[4] + g[8]) * q.u[c];
	for (int c = 0; c < 4; c++)
		along += d[c] * q.u[c];
	for (int c = 0; c < 4 && q.d != 0; c++)
		dq.c[c] = q.scale * (d[c] - along * q.along[c]) / q.d;
	if (a->inverse)
		dq.c[0] = -dq.c[0];
	if (a->accumulate) {
		old = hzi_quat_load(&a->dq, n * a->dq.stride[0] + m * a->dq.stride[1]);
		for (int c = 0; c < 4; c++)
			dq.c[c] += old.c[c];
	}
	hzi_quat_store(&a->dq, n * a->dq.stride[0] + m * a->dq.stride[1], dq, 0);
}

#endif
