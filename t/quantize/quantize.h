/*
 * quantize.h - definitions of quantization, cases, and operands in any layout
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZ_T_QUANTIZE_H
#define HZ_T_QUANTIZE_H

#include <float.h>

#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/core/dev.h"

static uint64_t rnd;
static int quick;

static const int code_dtypes[] = { HZ_U8, HZ_S8 };

/* ---- The definitions ------------------------------------------------------------------------- */

static inline int qmin_of(int dtype)
{
	return dtype == HZ_U8 ? 0 : -128;
}

static inline int ref_quantize_one(float x, float s, int z, int dtype)
{
	const volatile float quotient = x / s;
	const int qmin = qmin_of(dtype);
	double r;

	if (isnan(quotient))
		return z;
	r = nearbyint((double)quotient) + z;
	return r < qmin ? qmin : r > qmin + 255 ? qmin + 255 : (int)r;
}

static inline float ref_dequantize_one(int q, float s, int z)
{
	return s * (float)(q - z);
}

/* Returns 0 if the range contains Inf. */
static inline int ref_params(const double *x, int64_t n, int dtype, uint32_t flags, float *s,
			     int *z)
{
	const int reduced = (flags & HZ_QPARAMS_REDUCE_RANGE) != 0, codes = reduced ? 127 : 255;
	const int qmin = dtype == HZ_U8 ? 0 : reduced ? -64 : -128;
	const int symmetric = flags & (HZ_QPARAMS_SYMMETRIC | HZ_QPARAMS_SYMMETRIC_127_5);
	const double parts = flags & HZ_QPARAMS_SYMMETRIC_127_5 ? codes / 2.0 :
			     symmetric ? codes / 2 : codes;
	double lo = 0, hi = 0, zero;
	int64_t i;
	int steps;

	for (i = 0; i < n; i++) {
		if (isnan(x[i]))
			continue;
		lo = x[i] < lo ? x[i] : lo;
		hi = x[i] > hi ? x[i] : hi;
	}
	if (isinf(lo) || isinf(hi))
		return 0;
	zero = symmetric ? fmax(-lo, hi) : hi - lo;
	*s = (float)(zero / parts);
	if (flags & HZ_QPARAMS_F32)
		*s = (float)fmin((float)zero, FLT_MAX) / (float)parts;
	if (*s < FLT_MIN)
		*s = hi == lo ? 1 : FLT_MIN;
	*z = dtype == HZ_S8 ? 0 : reduced ? 64 : 128;
	if (!symmetric) {
		zero = qmin - lo / (double)*s;
		if (flags & HZ_QPARAMS_F32)
			zero = (float)qmin - (float)lo / *s;
		*z = (int)fmin(fmax(nearbyint(zero), qmin), qmin + codes);
	}
	steps = *z - qmin > qmin + codes - *z ? *z - qmin : qmin + codes - *z;
	if ((double)*s * steps > FLT_MAX)
		*s = (float)(((double)FLT_MAX - 0x1p104) / steps);
	return 1;
}

static inline uint32_t random_flags(void)
{
	return (uint32_t)rnd_below(&rnd, 3) | (rnd_below(&rnd, 3) ? 0 : HZ_QPARAMS_F32) |
	       (rnd_below(&rnd, 3) ? 0 : HZ_QPARAMS_REDUCE_RANGE);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

struct side {
	int dtype;
	int64_t stride[HZ_MAXDIM], low;
	size_t bytes, total;
	unsigned char *image, *want;
};

static int contiguous_sides;	/* no padding, dimensions in order */

static inline void side_new(struct side *s, int dtype, int ndim, const int64_t *shape)
{
	int64_t high, permuted[HZ_MAXDIM], order[HZ_MAXDIM], strides[HZ_MAXDIM];
	void *data;
	int d;

	/* a random order of dimensions, padding after rows, sometimes a dimension with a negative
	 * stride */
	for (d = 0; d < ndim; d++)
		order[d] = d;
	if (!contiguous_sides && rnd_below(&rnd, 3) == 0) {
		for (d = ndim - 1; d > 0; d--) {
			const int e = (int)rnd_below(&rnd, d + 1);
			const int64_t t = order[d];

			order[d] = order[e];
			order[e] = t;
		}
	}
	for (d = 0; d < ndim; d++)
		permuted[d] = shape[order[d]];
	lay_out(ndim, permuted, contiguous_sides || rnd_below(&rnd, 2) ? 0 : rnd_below(&rnd, 5),
		strides);
	for (d = 0; d < ndim; d++)
		s->stride[order[d]] = strides[d];
	if (!contiguous_sides && ndim && rnd_below(&rnd, 8) == 0)
		s->stride[rnd_below(&rnd, ndim)] *= -1;
	s->dtype = dtype;
	reach(ndim, shape, s->stride, &s->low, &high);
	for (d = 0; d < ndim; d++) {
		if (shape[d] == 0)
			s->low = high = 0;
	}
	s->bytes = (size_t)(high - s->low) * hz_dtype_size(dtype);
	s->total = GUARD + s->bytes + GUARD;
	s->image = image_new(s->bytes, 0, &data);
	s->want = image_new(s->bytes, 0, &data);
}

static inline void *origin(const struct side *s, unsigned char *image)
{
	return image + GUARD - s->low * (int64_t)hz_dtype_size(s->dtype);
}

static inline hz_tensor side_view(const struct side *s, struct area *a, int ndim,
				  const int64_t *shape)
{
	hz_tensor t = hz_tensor_nd((char *)a->data - s->low * (int64_t)hz_dtype_size(s->dtype),
				   s->dtype, a->dev->device, ndim, shape);

	memcpy(t.stride, s->stride, sizeof(t.stride));
	return t;
}

static inline void side_free(struct side *s)
{
	free(s->image);
	free(s->want);
}

struct tcase {
	int ndim, x_dtype, q_dtype;
	uint32_t flags;			/* HZ_QPARAMS_ */
	int scalar;			/* one scale and zero point, in the options */
	int64_t shape[HZ_MAXDIM], own[HZ_MAXDIM];	/* own: of the parameters */
	int p_ndim, no_zeros, wild;
};

/* Offsets of element i in C order, and the index of its parameter */
static inline void element(const struct tcase *c, int64_t i, const int64_t *xs, const int64_t *qs,
		    int64_t *x, int64_t *q, int64_t *p)
{
	int64_t step = 1;
	int d;

	*x = *q = *p = 0;
	for (d = c->ndim - 1; d >= 0; d--) {
		const int64_t at = i % c->shape[d];

		i /= c->shape[d];
		*x += at * xs[d];
		*q += at * qs[d];
		if (c->p_ndim == c->ndim) {
			*p += at / (c->shape[d] / c->own[d]) * step;
			step *= c->own[d];
		}
	}
}

static inline double random_value(const struct tcase *c)
{
	static const double special[] = {NAN,	0.0,  -0.0, 1e-42, -1e-40,
					 65504, -3e4, 0.5,  1.5,   -2.5};
	static const double infinite[] = { INFINITY, -INFINITY };

	if (c->wild == 2 && rnd_below(&rnd, 50) == 0)
		return infinite[rnd_below(&rnd, 2)];
	if (c->wild && rnd_below(&rnd, 10) == 0)
		return special[rnd_below(&rnd, 10)];
	return rnd_normal(&rnd) * (rnd_below(&rnd, 5) ? 1 : 100);
}

static inline float random_scale(int wild)
{
	static const float odd[] = {0, -0.5f, NAN, INFINITY, 1e-45f, 3e38f, 1e-30f, 1e25f, FLT_MIN};

	if (wild && rnd_below(&rnd, 6) == 0)
		return odd[rnd_below(&rnd, 9)];
	switch (rnd_below(&rnd, 3)) {
	case 0:
		return ldexpf(1, (int)rnd_below(&rnd, 12) - 8);
	default:
		return (float)(fabs(rnd_normal(&rnd)) * 0.03 + 1e-3);
	}
}

static inline struct tcase random_case(int d_max)
{
	struct tcase c = { 0 };
	int d;

	c.ndim = (int)rnd_below(&rnd, d_max + 1);
	for (d = 0; d < c.ndim; d++)
		c.shape[d] = 1 + rnd_below(&rnd, d == c.ndim - 1 ? 90 : 7);
	if (c.ndim > 0 && rnd_below(&rnd, 6) == 0)
		c.shape[c.ndim - 1] = 32 * (1 + rnd_below(&rnd, 40));
	if (c.ndim == 2 && rnd_below(&rnd, 6) == 0) {
		c.shape[0] = 1 + rnd_below(&rnd, 700);
		c.shape[1] = 1 + rnd_below(&rnd, 700);
	}
	c.x_dtype = floats[rnd_below(&rnd, 3)];
	c.q_dtype = code_dtypes[rnd_below(&rnd, 2)];
	c.flags = random_flags();
	c.wild = (int)rnd_below(&rnd, 3);
	c.scalar = rnd_below(&rnd, 4) == 0;
	c.no_zeros = rnd_below(&rnd, 5) == 0;
	c.p_ndim = rnd_below(&rnd, 6) ? c.ndim : c.ndim == 1 ? 0 : 1;
	for (d = 0; d < c.ndim; d++)
		c.own[d] = rnd_below(&rnd, 2) ? c.shape[d] : 1;
	if (c.ndim > 0 && rnd_below(&rnd, 3) == 0) {
		const int64_t n = c.shape[c.ndim - 1], group = 1 + rnd_below(&rnd, n);

		c.own[c.ndim - 1] = n % group == 0 ? n / group : n % 2 == 0 ? n / 2 : 1;
	}
	if (c.p_ndim != c.ndim)
		c.own[0] = 1;
	return c;
}

static inline const char *describe(const struct tcase *c)
{
	static char text[300];
	size_t used = 0;
	int d;

	for (d = 0; d < c->ndim; d++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%lld/%lld ",
					 (long long)c->shape[d],
					 (long long)(c->p_ndim == c->ndim ? c->own[d] : 1));
	snprintf(text + used, sizeof(text) - used, "%s %s flags %u scalar %d wild %d",
		 hz_dtype_name(c->x_dtype), hz_dtype_name(c->q_dtype), c->flags, c->scalar,
		 c->wild);
	return text;
}

static inline int same_numbers(int dtype, const void *got, const void *want, int64_t n)
{
	int64_t i, bad = 0;

	for (i = 0; i < n; i++) {
		const double g = ref_get(dtype, got, i), w = ref_get(dtype, want, i);

		if (!(isnan(g) && isnan(w)) && (g != w || signbit(g) != signbit(w)) && bad++ < 3)
			diag("[%lld] got %a, want %a", (long long)i, g, w);
	}
	return !bad;
}

/* ---- The operands of quantization and dequantization ----------------------------------------- */

struct operands {
	struct side x, q, y;
	float *scales, scalar;		/* scalar, scalar_zero: of a case with scalar parameters */
	unsigned char *zeros;
	int scalar_zero;
};

static inline void operands_new(struct operands *m, const struct tcase *c, float least)
{
	int64_t params = 1, i;
	int d;

	for (d = 0; d < c->p_ndim; d++)
		params *= c->own[d];
	m->scalar = fabsf(random_scale(0)) + least;
	side_new(&m->x, c->x_dtype, c->ndim, c->shape);
	side_new(&m->q, c->q_dtype, c->ndim, c->shape);
	side_new(&m->y, c->x_dtype, c->ndim, c->shape);
	m->scales = calloc((size_t)params, sizeof(*m->scales));
	m->zeros = calloc((size_t)params, 1);
	for (i = 0; i < params; i++) {
		m->scales[i] = random_scale(c->wild);
		m->zeros[i] = c->no_zeros ? 0 : (unsigned char)rnd_u64(&rnd);
	}
	m->scalar_zero = qmin_of(c->q_dtype) + (int)rnd_below(&rnd, 256);
}

static inline void operands_free(struct operands *m)
{
	side_free(&m->x);
	side_free(&m->q);
	side_free(&m->y);
	free(m->scales);
	free(m->zeros);
}

/* The scale and the zero point of parameter p */
static inline float params_of(const struct operands *m, const struct tcase *c, int64_t p, int *z)
{
	*z = c->scalar ? m->scalar_zero : c->no_zeros ? 0 :
	     c->q_dtype == HZ_U8 ? m->zeros[p] : (int8_t)m->zeros[p];
	return c->scalar ? m->scalar : m->scales[p];
}

/* The operands on a device, and options that point to them */
struct placed {
	struct area xa, qa, ya, sa, za;
	hz_tensor x, q, y, scales, zeros;
	hz_quantize_opts o;
};

static inline void place(struct placed *t, struct dev *dev, const struct tcase *c,
			 const struct operands *m)
{
	memset(t, 0, sizeof(*t));
	t->xa = area_new(dev, m->x.bytes, 0);
	t->qa = area_new(dev, m->q.bytes, 0);
	t->ya = area_new(dev, m->y.bytes, 0);
	area_write(&t->xa, m->x.image);
	area_write(&t->qa, m->q.image);
	area_write(&t->ya, m->y.image);
	t->scales = hz_tensor_nd(m->scales, HZ_F32, HZ_CPU, c->p_ndim, c->own);
	t->zeros = hz_tensor_nd(m->zeros, c->q_dtype, HZ_CPU, c->p_ndim, c->own);
	t->scales = to_device(dev, &t->scales, &t->sa);
	t->zeros = to_device(dev, &t->zeros, &t->za);
	if (c->scalar) {
		t->o.scale = m->scalar;
		t->o.zero = m->scalar_zero;
	} else {
		t->o.scales = &t->scales;
		t->o.zeros = c->no_zeros ? NULL : &t->zeros;
	}
	t->x = side_view(&m->x, &t->xa, c->ndim, c->shape);
	t->q = side_view(&m->q, &t->qa, c->ndim, c->shape);
	t->y = side_view(&m->y, &t->ya, c->ndim, c->shape);
}

static inline void unplace(struct placed *t)
{
	area_free(&t->xa);
	area_free(&t->qa);
	area_free(&t->ya);
	area_free(&t->sa);
	area_free(&t->za);
}

/* Compares guards by bits and numbers by value: NaN has many bit patterns. */
static inline int same_side(const struct side *y, const unsigned char *got)
{
	return same_bits(got, y->want, GUARD, 1) &&
	       same_bits(got + GUARD + y->bytes, y->want + GUARD + y->bytes, GUARD, 1) &&
	       same_numbers(y->dtype, got + GUARD, y->want + GUARD,
			    (int64_t)(y->bytes / hz_dtype_size(y->dtype)));
}

#endif
