/*
 * quat_layer.h - operands of quaternion layers in any layout, and gradients of their definitions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The reference of a forward call is its definition as loops. That of a backward call is the
 * central difference of the reference, for each number that the loss depends on.
 */
#ifndef QUAT_LAYER_H
#define QUAT_LAYER_H

#include "t/core/dev.h"
#include "t/core/record.h"

static uint64_t rnd;

/* ---- Operands -------------------------------------------------------------------------------- */

enum { AOS, PADDED, PLANAR, BLOCKS, BACKWARDS, LAYOUTS };

/* An operand: the view on the device, and its values in double: w x y z, contiguous */
struct tensor {
	hz_tensor view;
	struct area area;
	unsigned char *image;
	void *data;			/* in the image */
	double *v;
	int64_t n;			/* numbers in v */
	int quaternions, xyzw;
};

static inline double get(int dtype, const void *p, int64_t i)
{
	return dtype == HZ_F64 ? ((const double *)p)[i] :
	       dtype == HZ_S32 ? (double)((const int32_t *)p)[i] : ref_get(dtype, p, i);
}

static inline void put(int dtype, void *p, int64_t i, double v)
{
	if (dtype == HZ_F64)
		((double *)p)[i] = v;
	else if (dtype == HZ_S32)
		((int32_t *)p)[i] = (int32_t)v;
	else
		ref_put(dtype, p, i, v);
}

/* The offset of value i, in elements */
static inline int64_t offset_of(const struct tensor *t, int64_t i)
{
	int64_t at = 0;
	int d = t->view.ndim - 1;

	if (t->quaternions) {
		int64_t c = i % 4;

		at = (t->xyzw ? (c + 3) % 4 : c) * t->view.stride[d--];
		i /= 4;
	}
	for (; d >= 0; d--) {
		at += i % t->view.shape[d] * t->view.stride[d];
		i /= t->view.shape[d];
	}
	return at;
}

static inline void set_strides(hz_tensor *t, int layout)
{
	int last = t->ndim - 1, d;
	int64_t step = 1;

	if (layout == PLANAR) {
		for (d = last - 1; d >= 0; d--) {
			t->stride[d] = step;
			step *= t->shape[d];
		}
		t->stride[last] = step + 3;
		return;
	}
	for (d = last; d >= 0; d--) {
		t->stride[d] = step;
		step *= t->shape[d];
		if (layout == PADDED)
			step += d == last ? 1 + rnd_below(&rnd, 3) : 2;
	}
	if (layout == BLOCKS && last > 0) {
		t->stride[last] = t->shape[last - 1];
		t->stride[last - 1] = 1;
	}
}

/* An operand with random values. fill 0: an output, filled with guard bytes */
static inline struct tensor make(struct dev *dev, int dtype, int ndim, const int64_t *shape,
				 int layout, int quaternions, int xyzw, double fill)
{
	struct tensor t = { .quaternions = quaternions, .xyzw = xyzw };
	size_t size = hz_dtype_size(dtype), bytes;
	int64_t low, high, i;

	t.view = (hz_tensor){ .dtype = (int16_t)dtype, .ndim = (int16_t)ndim,
			      .device = dev->device };
	t.n = 1;
	for (i = 0; i < ndim; i++) {
		t.view.shape[i] = shape[i];
		t.n *= shape[i];
	}
	set_strides(&t.view, layout);
	if (layout == BACKWARDS && ndim > 1)
		t.view.stride[0] = -t.view.stride[0];
	reach(ndim, t.view.shape, t.view.stride, &low, &high);
	if (t.n == 0)
		low = high = 0;
	bytes = (size_t)(high - low) * size;
	t.area = area_new(dev, bytes, 0);
	t.image = image_new(bytes, 0, &t.data);
	t.data = (char *)t.data - low * (int64_t)size;
	t.view.data = (char *)t.area.data - low * (int64_t)size;
	t.v = calloc((size_t)t.n + 1, sizeof(double));
	for (i = 0; fill != 0 && i < t.n; i++) {
		put(dtype, t.data, offset_of(&t, i), fill * rnd_normal(&rnd));
		t.v[i] = get(dtype, t.data, offset_of(&t, i));
	}
	if (fill != 0)
		area_write(&t.area, t.image);
	return t;
}

static inline struct tensor quats(struct dev *dev, int dtype, int ndim, const int64_t *shape,
				  int layout, int xyzw, double fill)
{
	int64_t all[HZ_MAXDIM];

	memcpy(all, shape, (size_t)ndim * sizeof(*all));
	all[ndim] = 4;
	return make(dev, dtype, ndim + 1, all, layout, 1, xyzw, fill);
}

static inline void drop(struct tensor *t)
{
	if (!t->v)
		return;
	area_free(&t->area);
	free(t->image);
	free(t->v);
	memset(t, 0, sizeof(*t));
}

/* Reads an output into v; returns 0 if bytes outside its elements were written. */
static inline int fetch(struct tensor *t)
{
	size_t size = hz_dtype_size(t->view.dtype), i;
	int64_t k;

	area_read(&t->area, t->image);
	for (k = 0; k < t->n; k++) {
		t->v[k] = get(t->view.dtype, t->data, offset_of(t, k));
		memset((char *)t->data + offset_of(t, k) * (int64_t)size, GUARD_BYTE, size);
	}
	for (i = 0; i < t->area.total; i++) {
		if (t->image[i] != GUARD_BYTE) {
			diag("a byte beside the elements was written");
			return 0;
		}
	}
	return 1;
}

static inline double tolerance(int dtype)
{
	return dtype == HZ_F64 ? 2e-7 : dtype == HZ_F32 ? 4e-6 : dtype == HZ_F16 ? 4e-3 : 3e-2;
}

static inline int near_within(double bound, struct tensor *t, const double *want, const char *what)
{
	int good = fetch(t);

	if (!good || !within_norm(t->v, want, (size_t)t->n, bound)) {
		diag("in %s, dtype %s", what, hz_dtype_name(t->view.dtype));
		return 0;
	}
	return 1;
}

static inline int near(struct tensor *t, const double *want, const char *what)
{
	return near_within(tolerance(t->view.dtype), t, want, what);
}

static inline int status_ok(struct dev *dev, int status)
{
	if (status == HZ_OK)
		return 1;
	diag("%s: %s", hz_strerror(status), hz_errmsg(dev->ctx));
	return 0;
}

/* ---- Definitions ----------------------------------------------------------------------------- */

static inline void mul(double *z, const double *p, const double *q)
{
	z[0] += p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3];
	z[1] += p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2];
	z[2] += p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1];
	z[3] += p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0];
}

static inline void conj_of(double *z, const double *q)
{
	z[0] = q[0];
	z[1] = -q[1];
	z[2] = -q[2];
	z[3] = -q[3];
}

static inline double norm_of(const double *q)
{
	return sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
}

/* z += f times the vector of x rotated by q / d: R = 1 + 2 ([u]^2 + w [u]), [u] v = u x v */
static inline void add_rotated(double *z, double f, const double *q, const double *x, double eps,
			       int eps_norm, int inverse)
{
	const double n = norm_of(q), d = eps_norm ? n + eps : sqrt(n * n + eps);
	const double w = q[0] / d, sign = inverse ? -1 : 1;
	const double u[3] = { sign * q[1] / d, sign * q[2] / d, sign * q[3] / d };
	double t[3], s[3];
	int c;

	for (c = 0; c < 3; c++)
		t[c] = u[(c + 1) % 3] * x[1 + (c + 2) % 3] - u[(c + 2) % 3] * x[1 + (c + 1) % 3];
	for (c = 0; c < 3; c++)
		s[c] = u[(c + 1) % 3] * t[(c + 2) % 3] - u[(c + 2) % 3] * t[(c + 1) % 3];
	for (c = 0; c < 3; c++)
		z[1 + c] += f * (x[1 + c] + 2 * (w * t[c] + s[c]));
}

static inline void activate(int act, double slope, double *q)
{
	double norm = norm_of(q), f = 1;
	int c;

	for (c = 0; c < 4; c++) {
		double x = q[c];

		q[c] = act == HZ_ACT_RELU ? (x > 0 ? x : 0) : act == HZ_ACT_LEAKY ?
		       (x > 0 ? x : slope * x) : act == HZ_ACT_TANH ? tanh(x) :
		       act == HZ_ACT_SIGMOID ? 1 / (1 + exp(-x)) :
		       act == HZ_ACT_GELU ? x * 0.5 * (1 + erf(x / sqrt(2))) :
		       act == HZ_ACT_SILU ? x / (1 + exp(-x)) : x;
	}
	if (act == HZ_ACT_MODRELU)
		f = norm > 0 && norm + slope > 0 ? (norm + slope) / norm : 0;
	if (act == HZ_ACT_NORMCLIP)
		f = norm > slope ? slope / norm : 1;
	for (c = 0; c < 4; c++)
		q[c] *= f;
}

/* A layer in double, on the operands' values */
struct model {
	void (*forward)(struct model *m);
	double *x, *w, *b, *s, *y, *pre;	/* b, s: may be NULL */
	int64_t ny;
	int64_t batch, n, m;
	int act, right, rotate;
	double slope, w_eps;		/* w_eps: of the normalisation of weights that rotate */
	int eps_norm, reflect;
	/* convolutions and pooling: big is x, small is y (swapped if transposed) */
	int64_t big[3], small[3], taps[3], step[3], dil[3], pad[3], ci, co, groups;
	int transposed, noconj;
	double *dw;	/* if not NULL, computed instead of y */
	/* normalization */
	double *gamma, *beta, eps, *mean, *var;
	int whiten, eval, average;
	double *index;
};

/* Uses the values of operands; allocates m->y for the result. */
static inline void bind_model(struct model *m, const struct tensor *x, const struct tensor *w,
			      const struct tensor *b, const struct tensor *y)
{
	m->x = x->v;
	m->w = w->v;
	m->b = b ? b->v : NULL;
	m->ny = y->n;
	m->y = calloc((size_t)y->n + 1, sizeof(double));
}

static inline double loss(struct model *m, const double *dy)
{
	double sum = 0;
	int64_t i;

	m->forward(m);
	for (i = 0; i < m->ny; i++)
		sum += dy[i] * m->y[i];
	return sum;
}

/* The gradient for the n numbers at p by central differences */
static inline double *gradient(struct model *m, const double *dy, double *p, int64_t n)
{
	double *g = calloc((size_t)n + 1, sizeof(*g)), h = 1e-5, up, down, old;
	int64_t i;

	for (i = 0; i < n; i++) {
		old = p[i];
		p[i] = old + h;
		up = loss(m, dy);
		p[i] = old - h;
		down = loss(m, dy);
		p[i] = old;
		g[i] = (up - down) / (2 * h);
	}
	m->forward(m);
	return g;
}

/* want += old, for calls that accumulate */
static inline void add(double *want, const double *old, int64_t n)
{
	int64_t i;

	for (i = 0; i < n; i++)
		want[i] += old[i];
}

static inline double norm(const double *v, int64_t n)
{
	double square = 0;

	for (int64_t i = 0; i < n; i++)
		square += v[i] * v[i];
	return sqrt(square);
}

/*
 * Whether t holds the gradient for the values of `of`, plus the old values if not NULL. Where its
 * norm is smaller than usual, as terms of sums cancel, errors are relative to the usual norm.
 */
static inline int is_gradient_of_sums(struct model *m, const struct tensor *dy,
				      const struct tensor *of, const double *old, double bound,
				      double usual, struct tensor *t, const char *what)
{
	double *want = gradient(m, dy->v, of->v, of->n), size;
	int good;

	if (old)
		add(want, old, of->n);
	size = norm(want, of->n);
	if (size > 0 && usual > size)
		bound *= usual / size;
	good = near_within(bound, t, want, what);
	free(want);
	return good;
}

static inline int is_gradient(struct model *m, const struct tensor *dy, const struct tensor *of,
			      const double *old, double bound, struct tensor *t, const char *what)
{
	return is_gradient_of_sums(m, dy, of, old, bound, 0, t, what);
}

/* Whether an input of the activation is so close to a kink that the finite difference (for norms
 * also a rounding in 16 bits) may cross it: then there is no gradient to compare with. */
static inline int at_kink(const struct model *m, int dtype)
{
	double least = 1e-4;
	int64_t i;

	if (m->act >= HZ_ACT_MODRELU && hz_dtype_size(dtype) == 2)
		least = 0.02;
	for (i = 0; i < m->ny; i++) {
		if ((m->act == HZ_ACT_RELU || m->act == HZ_ACT_LEAKY) && fabs(m->pre[i]) < least)
			return 1;
		if (m->act >= HZ_ACT_MODRELU && i % 4 == 0 &&
		    (fabs(norm_of(m->pre + i) - m->slope) < least || norm_of(m->pre + i) < least))
			return 1;
	}
	return 0;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static const int types[] = { HZ_F32, HZ_F16, HZ_BF16, HZ_F64 };

static inline int types_of(const struct dev *dev)
{
	return dev->device == HZ_CPU ? 4 : 3;
}

static inline int layout(void)
{
	return (int)rnd_below(&rnd, LAYOUTS);
}

/* Overwrites an operand's values. */
static inline void upload(struct tensor *t, const double *v)
{
	int64_t i;

	for (i = 0; i < t->n; i++) {
		put(t->view.dtype, t->data, offset_of(t, i), v[i]);
		t->v[i] = get(t->view.dtype, t->data, offset_of(t, i));
	}
	area_write(&t->area, t->image);
}

static inline double *copy_of(const double *v, int64_t n)
{
	double *c = calloc((size_t)n + 1, sizeof(*c));

	memcpy(c, v, (size_t)n * sizeof(*c));
	return c;
}

static inline int output_layout(void)
{
	int l = layout();

	return l == BACKWARDS ? PADDED : l;
}

/* Makes a call on dev with the workspace that it needs; 0 on an error */
#define RUN(call, ...) \
	__extension__({ \
		size_t bytes_ = 0; \
		status_ok(dev, RECORD(dev->ctx, hz_quat_##call(dev->ctx, __VA_ARGS__), &bytes_)) && \
		status_ok(dev, hz_reserve(dev->ctx, bytes_)) && \
		status_ok(dev, hz_quat_##call(dev->ctx, __VA_ARGS__)); \
	})

#endif
