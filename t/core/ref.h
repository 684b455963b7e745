/*
 * ref.h - the definitions that tests compare the library with: simple, not fast
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * From the library it uses only hz_hadamard_plan(), hz_hadamard_base() and hz_dtype_size(), which
 * have tests of their own.
 */
#ifndef REF_H
#define REF_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hurwitz.h"

/* ---- Number formats -------------------------------------------------------------------------- */

/* Sign, exponent and mantissa bits of the small float formats; the sign is one bit. */
struct ref_format {
	int ebits, mbits;
	int has_inf;			/* the top exponent is Inf and NaN; otherwise NaN is a
					 * single code */
	int saturates;			/* finite values beyond the largest become the largest */
};

static inline struct ref_format ref_format(int dtype)
{
	switch (dtype) {
	case HZ_F16:
		return (struct ref_format){ 5, 10, 1, 0 };
	case HZ_BF16:
		return (struct ref_format){ 8, 7, 1, 0 };
	case HZ_E4M3:
		return (struct ref_format){ 4, 3, 0, 1 };
	default:
		return (struct ref_format){ 5, 2, 1, 1 };	/* HZ_E5M2 */
	}
}

static inline double ref_small_decode(int dtype, unsigned code)
{
	struct ref_format f = ref_format(dtype);
	int bias = (1 << (f.ebits - 1)) - 1;
	unsigned m = code & ((1u << f.mbits) - 1);
	int e = (int)(code >> f.mbits & ((1u << f.ebits) - 1));
	int top = e == (1 << f.ebits) - 1;
	double v;

	if (top && f.has_inf)
		v = m ? NAN : INFINITY;
	else if (top && m == (1u << f.mbits) - 1)
		v = NAN;
	else if (e == 0)
		v = ldexp(m, 1 - bias - f.mbits);
	else
		v = ldexp(1 + ldexp(m, -f.mbits), e - bias);
	return code >> (f.ebits + f.mbits) & 1 ? -v : v;
}

/* Rounds to nearest, ties to even. Any NaN becomes the quiet NaN without payload. */
static inline unsigned ref_small_encode(int dtype, double v)
{
	struct ref_format f = ref_format(dtype);
	int bias = (1 << (f.ebits - 1)) - 1, e;
	unsigned sign = signbit(v) ? 1u << (f.ebits + f.mbits) : 0;
	unsigned inf = ((1u << f.ebits) - 1) << f.mbits, code;
	unsigned largest = f.has_inf ? inf - 1 : inf + (1u << f.mbits) - 2;

	if (isnan(v))
		return f.has_inf ? inf | 1u << (f.mbits - 1) : inf + (1u << f.mbits) - 1;
	if (isinf(v))
		return sign | (f.has_inf ? inf : inf + (1u << f.mbits) - 1);
	v = fabs(v);
	if (v == 0)
		return sign;
	e = ilogb(v) < 1 - bias ? 1 - bias : ilogb(v);
	/* code counts steps of 2^(e - mbits), as the codes do: a carry increments the exponent */
	code = (unsigned)nearbyint(ldexp(v, f.mbits - e)) + ((unsigned)(e + bias - 1) << f.mbits);
	if (code > largest)
		code = f.saturates || !f.has_inf ? largest : inf;
	return sign | code;
}

/* Element i of an array, as a double. */
static inline double ref_get(int dtype, const void *p, int64_t i)
{
	switch (dtype) {
	case HZ_F32:
		return (double)((const float *)p)[i];
	case HZ_F16:
	case HZ_BF16:
		return ref_small_decode(dtype, ((const uint16_t *)p)[i]);
	case HZ_E4M3:
	case HZ_E5M2:
		return ref_small_decode(dtype, ((const uint8_t *)p)[i]);
	case HZ_S8:
		return ((const int8_t *)p)[i];
	case HZ_E8M0:
		return ((const uint8_t *)p)[i] == 255 ? NAN
						      : ldexp(1, ((const uint8_t *)p)[i] - 127);
	default:					/* HZ_S4X2, i counts nibbles */
		return (int)((((const uint8_t *)p)[i / 2] >> i % 2 * 4 & 15) ^ 8) - 8;
	}
}

static inline void ref_put(int dtype, void *p, int64_t i, double v)
{
	uint8_t *byte = (uint8_t *)p + i / 2;

	switch (dtype) {
	case HZ_F32:
		((float *)p)[i] = (float)v;
		break;
	case HZ_F16:
	case HZ_BF16:
		((uint16_t *)p)[i] = (uint16_t)ref_small_encode(dtype, v);
		break;
	case HZ_E4M3:
	case HZ_E5M2:
		((uint8_t *)p)[i] = (uint8_t)ref_small_encode(dtype, v);
		break;
	case HZ_S8:
		((int8_t *)p)[i] = (int8_t)v;
		break;
	case HZ_E8M0:
		((uint8_t *)p)[i] = isnan(v) ? 255 : (uint8_t)(ilogb(v) + 127);
		break;
	default:
		*byte = (uint8_t)((*byte & 0xf0u >> i % 2 * 4) |
				  ((unsigned)(int)v & 15u) << i % 2 * 4);
	}
}

/* Half the distance between adjacent numbers of a dtype near v */
static inline double ref_half_ulp(int dtype, double v)
{
	int mbits = dtype == HZ_F32 ? 23 : ref_format(dtype).mbits;
	int emin = dtype == HZ_F16 ? -14 : -126;
	int e = v == 0 || ilogb(v) < emin ? emin : ilogb(v);

	return ldexp(0.5, e - mbits);
}

/* ---- The transform --------------------------------------------------------------------------- */

/* Options resolved for rows of n elements; ref_op_free() frees it. */
struct ref_op {
	int64_t n, nblocks, *length;	/* lengths of the block transforms, in order */
	int m;				/* PLAN_TRUE: order of the base matrix, else 1 */
	int8_t *base;			/* m x m */
	float *first, *last;		/* diagonal factors in the order they are applied; NULL:
					 * none */
	int transpose, raw;
	double scale;
};

/* A diagonal of a row or a block, expanded to n factors */
static inline float *ref_diag(const hz_tensor *t, int64_t n, int64_t block)
{
	int64_t full, i, at;
	float *f;

	if (!t)
		return NULL;
	full = t->dtype == HZ_U8 ? (n + 7) / 8 : n;
	f = malloc((size_t)n * sizeof(*f));
	for (i = 0; i < n; i++) {
		at = t->shape[0] == full ? i : i % block;
		f[i] = t->dtype != HZ_U8 ? (float)ref_get(t->dtype, t->data, at)
		       : ((const uint8_t *)t->data)[at / 8] >> at % 8 & 1 ? -1 : 1;
	}
	return f;
}

/* Reads pre and post here: they must be in host memory. Returns 0, or -1 if the plan fails. */
static inline int ref_op_init(struct ref_op *r, int64_t n, const hz_hadamard_opts *opts)
{
	static const hz_hadamard_opts none;
	const hz_hadamard_opts *o = opts ? opts : &none;
	int64_t block = o->block ? o->block : n, odd = block;
	float *pre, *post;

	memset(r, 0, sizeof(*r));
	r->n = n;
	r->m = 1;
	r->nblocks = hz_hadamard_plan(n, o, NULL, 0);
	if (r->nblocks <= 0)
		return -1;
	r->length = malloc((size_t)r->nblocks * sizeof(*r->length));
	hz_hadamard_plan(n, o, r->length, r->nblocks);
	while (odd % 2 == 0)
		odd /= 2;
	if (o->plan == HZ_PLAN_TRUE && (o->order > 1 || (!o->order && odd > 1))) {
		r->m = o->order ? o->order : (int)(4 * odd);
		r->base = malloc((size_t)r->m * (size_t)r->m);
		hz_hadamard_base(o->base, r->m, r->base);
	}
	pre = ref_diag(o->pre, n, block);
	post = ref_diag(o->post, n, block);
	r->transpose = (o->flags & HZ_HADAMARD_TRANSPOSE) != 0;
	r->first = r->transpose ? post : pre;
	r->last = r->transpose ? pre : post;
	r->raw = (o->flags & HZ_HADAMARD_RAW) != 0;
	r->scale = o->factor != 0 ? o->factor : 1;
	return 0;
}

static inline void ref_op_free(struct ref_op *r)
{
	free(r->length);
	free(r->base);
	free(r->first);
	free(r->last);
	memset(r, 0, sizeof(*r));
}

/* The inverse up to scale: the transpose, with the diagonals exchanged */
static inline void ref_op_invert(struct ref_op *r)
{
	float *first = r->first;

	r->transpose = !r->transpose;
	r->first = r->last;
	r->last = first;
}

/* Entry (i, j), +1 or -1, of the transform of one length m 2^k, or of its transpose */
static inline int ref_entry(const struct ref_op *r, int64_t length, int64_t i, int64_t j)
{
	int64_t part = length / r->m;
	int sign = __builtin_popcountll((unsigned long long)(i % part & j % part)) % 2 ? -1 : 1;

	if (!r->base)
		return sign;
	return sign * (r->transpose ? r->base[j / part * r->m + i / part]
				    : r->base[i / part * r->m + j / part]);
}

/* y = transform of the row x, in double: dense matrix times vector */
static inline void ref_dense(const struct ref_op *r, const double *x, double *y)
{
	int64_t b, i, j, at = 0, length;
	double sum;

	for (b = 0; b < r->nblocks; b++, at += length) {
		length = r->length[b];
		for (i = 0; i < length; i++) {
			sum = 0;
			for (j = 0; j < length; j++)
				sum += ref_entry(r, length, i, j) * x[at + j] *
				       (r->first ? (double)r->first[at + j] : 1);
			sum *= r->raw ? r->scale : r->scale / sqrt((double)length);
			y[at + i] = sum * (r->last ? (double)r->last[at + i] : 1);
		}
	}
}

/*
 * The same in f32, in the order of operations that the contract fixes: butterflies with ascending
 * strides, the sum over the base matrix in ascending order, one product with the scale, one with
 * the diagonal factor.
 */
static inline void ref_ordered(const struct ref_op *r, const float *x, float *y)
{
	int64_t b, i, j, h, a, at = 0, length, part;
	float *column = malloc((size_t)r->m * sizeof(*column)), u, v, scale;

	for (i = 0; i < r->n; i++)
		y[i] = r->first ? x[i] * r->first[i] : x[i];
	for (b = 0; b < r->nblocks; b++, at += length) {
		length = r->length[b];
		part = length / r->m;
		for (h = 1; h < part; h *= 2) {
			for (i = 0; i < length; i++) {
				if (i & h)
					continue;
				u = y[at + i];
				v = y[at + i + h];
				y[at + i] = u + v;
				y[at + i + h] = u - v;
			}
		}
		for (i = 0; r->base && i < part; i++) {
			for (j = 0; j < r->m; j++)
				column[j] = y[at + j * part + i];
			for (a = 0; a < r->m; a++) {
				v = ref_entry(r, length, a * part, 0) * column[0];
				for (j = 1; j < r->m; j++)
					v += ref_entry(r, length, a * part, j * part) * column[j];
				y[at + a * part + i] = v;
			}
		}
		scale = (float)(r->raw ? r->scale : r->scale / sqrt((double)length));
		for (i = at; i < at + length; i++) {
			y[i] *= scale;
			if (r->last)
				y[i] *= r->last[i];
		}
	}
	free(column);
}

/* The bound of ||y - exact||_2 for a row in the contract: (k + m + 2) 2^-24 ||x||_2 per block, two
 * more roundings with diagonals, and half an ulp of y's dtype per element */
static inline double ref_bound(const struct ref_op *r, const double *x, const double *exact,
			       int y_dtype)
{
	double total = 0, norm, factor, half, largest;
	int64_t b, i, at = 0, length;

	for (b = 0; b < r->nblocks; b++, at += length) {
		length = r->length[b];
		norm = 0;
		largest = 1;
		for (i = at; i < at + length; i++) {
			factor = r->first ? (double)r->first[i] : 1;
			norm += x[i] * factor * x[i] * factor;
			if (r->last && fabs((double)r->last[i]) > largest)
				largest = fabs((double)r->last[i]);
			if (y_dtype != HZ_F32) {
				half = ref_half_ulp(y_dtype, exact[i]);
				total += half * half;
			}
		}
		factor = fabs(r->scale) * (r->raw ? sqrt((double)length) : 1) * largest;
		/* errors below the smallest normal number are absolute */
		total += (double)length * ldexp(factor + 1, -149) * ldexp(factor + 1, -149);
		factor *= log2((double)(length / r->m)) + (r->m > 1 ? r->m : 0) + 2 +
			  (r->first ? 1 : 0) + (r->last ? 1 : 0);
		total += ldexp(factor, -24) * ldexp(factor, -24) * norm;
	}
	return sqrt(total);
}

/* ---- Quantization ---------------------------------------------------------------------------- */

static inline double ref_qmax(int q_dtype)
{
	return q_dtype == HZ_S8 ? 127 : q_dtype == HZ_S4X2 ? 7 : q_dtype == HZ_E4M3 ? 448 : 57344;
}

/* The code of t with scale s: an integer, or the value of a float code */
static inline double ref_code(float t, float s, int q_dtype)
{
	float u = t / s, qmax = (float)ref_qmax(q_dtype);

	if (q_dtype != HZ_S8 && q_dtype != HZ_S4X2)
		return ref_small_decode(q_dtype, ref_small_encode(q_dtype, (double)u));
	u = nearbyintf(u);
	u = u > qmax ? qmax : u < -qmax ? -qmax : u;
	return isfinite(s) ? (double)u : 0;
}

/*
 * Codes and scale of one group of f32 numbers, in f32: amax = max |t|, s = amax / qmax (for e8m0
 * rounded up to a power of two, but down where qmax s would be Inf), q = clamp(rne(t / s)). codes
 * has one double per code, as ref_code() returns.
 */
static inline float ref_quantize(const float *t, int64_t group, int q_dtype, int scale_dtype,
				 double *codes)
{
	float amax = 0, s, qmax = (float)ref_qmax(q_dtype);
	int is_nan = 0, e;
	int64_t i;

	for (i = 0; i < group; i++) {
		is_nan |= isnan(t[i]);
		amax = fabsf(t[i]) > amax ? fabsf(t[i]) : amax;
	}
	if (is_nan)
		amax = NAN;
	s = amax == 0 ? 1 : (amax == FLT_MAX ? nextafterf(amax, 0) : amax) / qmax;
	if (scale_dtype == HZ_F32 && s < FLT_MIN)
		s = FLT_MIN;
	if (scale_dtype == HZ_E8M0 && !isfinite(s))
		s = NAN;
	if (scale_dtype == HZ_E8M0 && isfinite(s)) {
		e = s > 0 ? ilogbf(s) : -149;
		e += s > ldexpf(1, e);
		e = e < -127 ? -127 : e;
		s = ldexpf(1, (double)qmax * exp2(e) > FLT_MAX ? e - 1 : e);
	}
	for (i = 0; i < group; i++)
		codes[i] = ref_code(t[i], s, q_dtype);
	return s;
}

/* ---- Activations ----------------------------------------------------------------------------- */

/* Those of linear layers and of products with lattice codes */
static inline double ref_act(int activation, double v)
{
	switch (activation) {
	case HZ_ACT_RELU:
		return v < 0 ? 0 : v;
	case HZ_ACT_TANH:
		return tanh(v);
	case HZ_ACT_SIGMOID:
		return 1 / (1 + exp(-v));
	case HZ_ACT_GELU:
		return 0.5 * v * erfc(-v / sqrt(2));
	case HZ_ACT_SILU:
		return v / (1 + exp(-v));
	case HZ_ACT_GELU_TANH:
		/* (1 + tanh u) / 2 without its cancellation */
		return v / (1 + exp(-2 * sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
	default:
		return v;
	}
}

/* The slope of those activations that have one, else 0 */
static inline double ref_slope(int activation, double slope)
{
	return activation == HZ_ACT_LEAKY || activation == HZ_ACT_MODRELU ||
	       activation == HZ_ACT_NORMCLIP ? slope : 0;
}

#endif
