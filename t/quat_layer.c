/*
 * quat_layer.c - layers of quaternions against definitions in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The reference of a forward call is its definition by loops. That of a backward call is the
 * central difference of the reference, for each number that the loss depends on.
 */
#include "dev.h"

static uint64_t rnd;

#define INIT_SUM -2266522686175271010	/* of test_init(), on every device */

/* ---- Operands -------------------------------------------------------------------------------- */

enum { AOS, PADDED, PLANES, BLOCKS, BACKWARDS, LAYOUTS };

/* An operand: on the device as its view says, and its numbers in double, w x y z, by index. */
struct tensor {
	hz_tensor view;
	struct area area;
	unsigned char *image;
	void *data;			/* in the image */
	double *v;
	int64_t n;			/* numbers */
	int quaternions, xyzw;
};

static double get(int dtype, const void *p, int64_t i)
{
	return dtype == HZ_F64 ? ((const double *)p)[i] :
	       dtype == HZ_S32 ? (double)((const int32_t *)p)[i] : ref_get(dtype, p, i);
}

static void put(int dtype, void *p, int64_t i, double v)
{
	if (dtype == HZ_F64)
		((double *)p)[i] = v;
	else if (dtype == HZ_S32)
		((int32_t *)p)[i] = (int32_t)v;
	else
		ref_put(dtype, p, i, v);
}

/* Where number i of a tensor is, in elements */
static int64_t place(const struct tensor *t, int64_t i)
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

static void set_strides(hz_tensor *t, int layout)
{
	int last = t->ndim - 1, d;
	int64_t step = 1;

	if (layout == PLANES) {
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

/* An operand of random numbers, or (fill 0) of guard bytes, which an output is. */
static struct tensor make(struct dev *dev, int dtype, int ndim, const int64_t *shape, int layout,
			  int quaternions, int xyzw, double fill)
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
		put(dtype, t.data, place(&t, i), fill * rnd_normal(&rnd));
		t.v[i] = get(dtype, t.data, place(&t, i));
	}
	if (fill != 0)
		area_write(&t.area, t.image);
	return t;
}

static struct tensor quats(struct dev *dev, int dtype, int ndim, const int64_t *shape, int layout,
			   int xyzw, double fill)
{
	int64_t all[HZ_MAXDIM];

	memcpy(all, shape, (size_t)ndim * sizeof(*all));
	all[ndim] = 4;
	return make(dev, dtype, ndim + 1, all, layout, 1, xyzw, fill);
}

static void drop(struct tensor *t)
{
	if (!t->v)
		return;
	area_free(&t->area);
	free(t->image);
	free(t->v);
	memset(t, 0, sizeof(*t));
}

/* Reads an output into v; 0 if anything but its elements was written. */
static int fetch(struct tensor *t)
{
	size_t size = hz_dtype_size(t->view.dtype), i;
	int64_t k;

	area_read(&t->area, t->image);
	for (k = 0; k < t->n; k++) {
		t->v[k] = get(t->view.dtype, t->data, place(t, k));
		memset((char *)t->data + place(t, k) * (int64_t)size, GUARD_BYTE, size);
	}
	for (i = 0; i < t->area.total; i++) {
		if (t->image[i] != GUARD_BYTE) {
			diag("a byte beside the elements was written");
			return 0;
		}
	}
	return 1;
}

static double tolerance(int dtype)
{
	return dtype == HZ_F64 ? 1e-7 : dtype == HZ_F32 ? 4e-6 : dtype == HZ_F16 ? 4e-3 : 3e-2;
}

static int near_within(double bound, struct tensor *t, const double *want, const char *what)
{
	int good = fetch(t);

	if (!good || !within_norm(t->v, want, (size_t)t->n, bound)) {
		diag("in %s, dtype %s", what, hz_dtype_name(t->view.dtype));
		return 0;
	}
	return 1;
}

static int near(struct tensor *t, const double *want, const char *what)
{
	return near_within(tolerance(t->view.dtype), t, want, what);
}

static int status_ok(struct dev *dev, int status)
{
	if (status == HZ_OK)
		return 1;
	diag("%s: %s", hz_strerror(status), hz_errmsg(dev->ctx));
	return 0;
}

/* ---- Definitions ----------------------------------------------------------------------------- */

static void mul(double *z, const double *p, const double *q)
{
	z[0] += p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3];
	z[1] += p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2];
	z[2] += p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1];
	z[3] += p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0];
}

static void conj_of(double *z, const double *q)
{
	z[0] = q[0];
	z[1] = -q[1];
	z[2] = -q[2];
	z[3] = -q[3];
}

static double norm_of(const double *q)
{
	return sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
}

static void activate(int act, double slope, double *q)
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

/* A layer in double: y from inputs; reference numbers are those of the operands. */
struct model {
	void (*forward)(struct model *m);
	double *x, *w, *b, *s, *y, *pre;	/* b, s: maybe NULL */
	int64_t ny;
	int64_t batch, n, m;
	int act, right, rotate;
	double slope;
	/* convolutions and pooling */
	int64_t big[3], small[3], taps[3], step[3], dil[3], pad[3], ci, co, groups;
	int transposed, noconj;
	double *dw;	/* to be made, not y */
	/* normalization */
	double *gamma, *beta, eps, *mean, *var;
	int whiten, eval, average;
	double *index;
};

static double loss(struct model *m, const double *dy)
{
	double sum = 0;
	int64_t i;

	m->forward(m);
	for (i = 0; i < m->ny; i++)
		sum += dy[i] * m->y[i];
	return sum;
}

/* The gradient for n numbers at p by central differences */
static double *gradient(struct model *m, const double *dy, double *p, int64_t n)
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

/* Adds old values where a call accumulates: want += old */
static void add(double *want, const double *old, int64_t n)
{
	int64_t i;

	for (i = 0; i < n; i++)
		want[i] += old[i];
}

/* Whether t holds that gradient for the numbers of `of`, added to old ones if there are any */
static int is_gradient(struct model *m, const struct tensor *dy, const struct tensor *of,
		       const double *old, double bound, struct tensor *t, const char *what)
{
	double *want = gradient(m, dy->v, of->v, of->n);
	int good;

	if (old)
		add(want, old, of->n);
	good = near_within(bound, t, want, what);
	free(want);
	return good;
}

/*
 * Whether an input of the activation is so near to a kink of it that the difference, or for norms a
 * rounding of 16 bits, may reach across: then there is no gradient to compare with.
 */
static int at_kink(const struct model *m, int dtype)
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

static void linear_ref(struct model *m)
{
	int64_t i, n, k;
	int c;

	for (i = 0; i < m->batch; i++) {
		for (n = 0; n < m->n; n++) {
			double *y = m->y + 4 * (i * m->n + n), z[4] = { 0 };

			for (k = 0; k < m->m; k++) {
				const double *x = m->x + 4 * (i * m->m + k);
				const double *w = m->w + 4 * (n * m->m + k);

				if (m->rotate) {
					double v[4] = { 0, x[1], x[2], x[3] }, t[4] = { 0 },
					       u[4] = { 0 }, wc[4], norm = norm_of(w);

					conj_of(wc, w);
					mul(t, m->right ? wc : w, v);
					mul(u, t, m->right ? w : wc);
					for (c = 1; c < 4; c++)
						z[c] += (m->s ? m->s[n * m->m + k] : 1) * u[c] /
							(norm * norm);
				} else if (m->right) {
					mul(z, x, w);
				} else {
					mul(z, w, x);
				}
			}
			for (c = 0; c < 4; c++)
				y[c] = z[c] + (m->b ? m->b[4 * n + c] : 0);
			if (m->pre)
				memcpy(m->pre + 4 * (i * m->n + n), y, 4 * sizeof(*y));
			activate(m->act, m->slope, y);
		}
	}
}

/*
 * Image of big, image of small: every pair of places that a tap joins. With dw that is what comes of
 * x and the gradient y.
 */
static void conv_ref(struct model *m)
{
	int64_t cig = m->ci / m->groups, cog = m->co / m->groups;
	int64_t bigs = m->big[0] * m->big[1] * m->big[2];
	int64_t smalls = m->small[0] * m->small[1] * m->small[2];
	int64_t taps = m->taps[0] * m->taps[1] * m->taps[2], i, s, t, o, c, k;
	int64_t channels = m->transposed ? m->ci : m->co;

	if (m->dw)
		memset(m->dw, 0, (size_t)(4 * m->co * taps * cig) * sizeof(double));
	else
		memset(m->y, 0, (size_t)m->ny * sizeof(double));
	for (i = 0; i < m->batch; i++) {
		for (s = 0; s < smalls; s++) {
			for (t = 0; t < taps; t++) {
				int64_t at[3], rs = s, rt = t;
				int d, inside = 1;

				for (d = 2; d >= 0; d--) {
					at[d] = rs % m->small[d] * m->step[d] +
						rt % m->taps[d] * m->dil[d] - m->pad[d];
					rs /= m->small[d];
					rt /= m->taps[d];
					inside &= at[d] >= 0 && at[d] < m->big[d];
				}
				if (!inside)
					continue;
				k = (at[0] * m->big[1] + at[1]) * m->big[2] + at[2];
				for (o = 0; o < m->co; o++) {
					for (c = 0; c < cig; c++) {
						const double *w =
							m->w + 4 * ((o * taps + t) * cig + c);
						int64_t b = (i * bigs + k) * m->ci +
							    o / cog * cig + c;
						int64_t u = (i * smalls + s) * m->co + o;
						double wc[4], one[4];
						double *y = m->y + 4 * (m->transposed ? b : u);
						double *x = m->x + 4 * (m->transposed ? u : b);
						int conj = m->transposed && !m->noconj;

						/* Of conj(w) x it is x conj(dy), of w x dy conj(x). */
						if (m->dw) {
							double *p = conj ? x : y;

							conj_of(one, conj ? y : x);
							mul(m->dw + (w - m->w), m->right ? one : p,
							    m->right ? p : one);
							continue;
						}
						conj_of(wc, w);
						if (conj)
							w = wc;
						mul(y, m->right ? x : w, m->right ? w : x);
					}
				}
			}
		}
	}
	for (i = 0; i < m->ny / 4 && !m->dw; i++) {
		for (c = 0; c < 4 && m->b; c++)
			m->y[4 * i + c] += m->b[4 * (i % channels) + c];
		if (m->pre)
			memcpy(m->pre + 4 * i, m->y + 4 * i, 4 * sizeof(double));
		activate(m->act, m->slope, m->y + 4 * i);
	}
}

static int upper(int r, int c)
{
	return r > c ? upper(c, r) : 4 * r - r * (r - 1) / 2 + c - r;
}

static void norm_ref(struct model *m)
{
	int64_t c, i, k;
	int r, s;

	for (c = 0; c < m->n; c++) {
		double mean[4] = { 0 }, v[16] = { 0 }, l[16] = { 0 }, var = 0;

		for (i = 0; i < m->batch; i++) {
			for (r = 0; r < 4; r++)
				mean[r] += m->x[4 * (i * m->n + c) + r] / (double)m->batch;
		}
		for (i = 0; i < m->batch; i++) {
			const double *x = m->x + 4 * (i * m->n + c);

			for (k = 0; k < 16; k++)
				v[k] += (x[k / 4] - mean[k / 4]) * (x[k % 4] - mean[k % 4]) /
					(double)m->batch;
		}
		var = v[0] + v[5] + v[10] + v[15];
		if (m->eval) {
			memcpy(mean, m->mean + 4 * c, sizeof(mean));
			for (k = 0; k < 16; k++)
				v[k] = m->whiten ? m->var[10 * c + upper((int)k / 4, (int)k % 4)]
						 : 0;
			var = m->whiten ? 0 : m->var[c];
		}
		for (r = 0; r < 4; r++) {
			for (s = 0; s <= r; s++) {
				double t = v[4 * r + s] + (r == s ? m->eps : 0);

				for (k = 0; k < s; k++)
					t -= l[4 * r + k] * l[4 * s + k];
				l[4 * r + s] = r == s ? sqrt(t) : t / l[5 * s];
			}
		}
		for (i = 0; i < m->batch; i++) {
			const double *x = m->x + 4 * (i * m->n + c);
			double *y = m->y + 4 * (i * m->n + c), z[4];

			for (r = 0; r < 4; r++) {
				z[r] = x[r] - mean[r];
				if (!m->whiten) {
					z[r] /= sqrt(var + m->eps);
					continue;
				}
				for (k = 0; k < r; k++)
					z[r] -= l[4 * r + k] * z[k];
				z[r] /= l[5 * r];
			}
			for (r = 0; r < 4; r++) {
				y[r] = m->beta ? m->beta[4 * c + r] : 0;
				if (!m->gamma || !m->whiten)
					y[r] += (m->gamma ? m->gamma[c] : 1) * z[r];
				for (s = 0; s < 4 && m->gamma && m->whiten; s++)
					y[r] += m->gamma[10 * c + upper(r, s)] * z[s];
			}
		}
	}
}

static void pool_ref(struct model *m)
{
	int64_t smalls = m->small[0] * m->small[1] * m->small[2], i, s, t, c, k;
	int64_t taps = m->taps[0] * m->taps[1] * m->taps[2];
	int64_t bigs = m->big[0] * m->big[1] * m->big[2];
	int e;

	for (i = 0; i < m->batch; i++) {
		for (s = 0; s < smalls; s++) {
			for (c = 0; c < m->ci; c++) {
				double *y = m->y + 4 * ((i * smalls + s) * m->ci + c), sum[4] = { 0 };
				double best = -1;
				int64_t count = 0;

				for (t = 0; t < taps; t++) {
					int64_t at[3], rs = s, rt = t;
					int d, inside = 1;

					for (d = 2; d >= 0; d--) {
						at[d] = rs % m->small[d] * m->step[d] +
							rt % m->taps[d] - m->pad[d];
						rs /= m->small[d];
						rt /= m->taps[d];
						inside &= at[d] >= 0 && at[d] < m->big[d];
					}
					if (!inside)
						continue;
					k = (at[0] * m->big[1] + at[1]) * m->big[2] + at[2];
					const double *x = m->x + 4 * ((i * bigs + k) * m->ci + c);
					count++;
					for (e = 0; e < 4; e++)
						sum[e] += x[e];
					if (norm_of(x) > best) {
						best = norm_of(x);
						if (!m->average)
							memcpy(y, x, 4 * sizeof(*y));
						m->index[(i * smalls + s) * m->ci + c] = (double)k;
					}
				}
				for (e = 0; e < 4 && m->average; e++)
					y[e] = sum[e] / (double)count;
			}
		}
	}
}

/* ---- Linear layers --------------------------------------------------------------------------- */

static const int types[] = { HZ_F32, HZ_F16, HZ_BF16, HZ_F64 };

static int types_of(const struct dev *dev)
{
	return dev->device == HZ_CPU ? 4 : 3;
}

static int layout(void)
{
	return (int)rnd_below(&rnd, LAYOUTS);
}

/* The pre-activation as an operand that a backward call reads */
static void upload(struct tensor *t, const double *v)
{
	int64_t i;

	for (i = 0; i < t->n; i++) {
		put(t->view.dtype, t->data, place(t, i), v[i]);
		t->v[i] = get(t->view.dtype, t->data, place(t, i));
	}
	area_write(&t->area, t->image);
}

static double *copy_of(const double *v, int64_t n)
{
	double *c = calloc((size_t)n + 1, sizeof(*c));

	memcpy(c, v, (size_t)n * sizeof(*c));
	return c;
}

static int output_layout(void)
{
	int l = layout();

	return l == BACKWARDS ? PADDED : l;
}

static int reserve(struct dev *dev, int status, const size_t *bytes)
{
	return status_ok(dev, status) && status_ok(dev, hz_reserve(dev->ctx, *bytes));
}

static int linear_case(struct dev *dev, int dtype, int ndim, const int64_t *lead, int64_t n,
		       int64_t m, hz_quat_linear_opts o, int with_bias, int with_pre, int packed)
{
	int64_t xs[5], ys[5], batch = 1, ws[2] = { n, m };
	int xyzw = (o.flags & HZ_QUAT_XYZW) != 0, good = 1, d;
	int rotate = (o.flags & HZ_QUAT_ROTATION) != 0, with_s = rotate && rnd_below(&rnd, 2);
	int sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	int b_type = dtype == HZ_F64 || rnd_below(&rnd, 2) ? dtype : HZ_F32;
	struct tensor x, w, b = { 0 }, s = { 0 }, y, dy, dx, dw, db = { 0 }, ds = { 0 }, pre = { 0 };
	struct model ref = { .forward = linear_ref, .n = n, .m = m, .act = o.activation,
			     .slope = o.slope, .right = o.side, .rotate = rotate };
	const double bound = tolerance(dtype);	/* of what errors come from */
	double *old_w, *old_b = NULL, *old_s = NULL;
	hz_quat_linear_opts back;
	hz_packed blob;
	struct area blob_area = { 0 };
	size_t bytes;

	for (d = 0; d < ndim; d++) {
		xs[d] = ys[d] = lead[d];
		batch *= lead[d];
	}
	xs[ndim] = m;
	ys[ndim] = n;
	x = quats(dev, dtype, ndim + 1, xs, layout(), xyzw, 1);
	w = quats(dev, dtype, 2, ws, layout(), xyzw, 0.5);
	y = quats(dev, dtype, ndim + 1, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, ndim + 1, ys, layout(), xyzw, 1);
	dx = quats(dev, dtype, ndim + 1, xs, output_layout(), xyzw, 0);
	dw = quats(dev, dtype, 2, ws, output_layout(), xyzw, 1);
	if (with_bias) {
		b = quats(dev, b_type, 1, &n, layout(), xyzw, 1);
		db = quats(dev, b_type, 1, &n, output_layout(), xyzw, 1);
	}
	if (with_s) {
		s = make(dev, dtype, 2, ws, AOS, 0, 0, 1);
		ds = make(dev, dtype, 2, ws, AOS, 0, 0, 1);
		o.scale = &s.view;
	}
	if (with_pre) {
		pre = quats(dev, dtype, ndim + 1, ys, output_layout(), xyzw, 0);
		o.pre = &pre.view;
	}
	ref.batch = batch;
	ref.ny = y.n;
	ref.x = x.v;
	ref.w = w.v;
	ref.b = b.v;
	ref.s = s.v;
	ref.y = calloc((size_t)y.n + 1, sizeof(double));
	ref.pre = calloc((size_t)y.n + 1, sizeof(double));
	if (packed) {
		hz_quat_gemm_opts g = { .method = o.method, .precision = o.precision,
					.flags = o.flags & HZ_QUAT_XYZW };

		good = status_ok(dev, hz_quat_gemm_pack_bytes(dev->ctx, &w.view, &g, &bytes));
		blob_area = area_new(dev, bytes + 64, 0);
		good = good && status_ok(dev, hz_quat_gemm_pack(dev->ctx, &w.view,
				(void *)(((uintptr_t)blob_area.data + 63) & ~(uintptr_t)63), bytes,
				&blob, &g));
		o.packed = &blob;
	}
	good = good && reserve(dev, hz_quat_linear_workspace(dev->ctx, &x.view, packed ? NULL : &w.view,
				    with_bias ? &b.view : NULL, &y.view, &o, &bytes), &bytes);
	good = good && status_ok(dev, hz_quat_linear(dev->ctx, &x.view, packed ? NULL : &w.view,
						     with_bias ? &b.view : NULL, &y.view, &o));
	ref.forward(&ref);
	good = good && near(&y, ref.y, "y");
	if (with_pre) {
		good = good && near(&pre, ref.pre, "pre");
		upload(&pre, ref.pre);
	}
	back = o;
	back.flags |= (uint32_t)sum;
	back.dscale = with_s ? &ds.view : NULL;
	if (!sum) {
		area_fill(&dw.area);
		memset(dw.image, GUARD_BYTE, dw.area.total);
		if (with_bias) {
			area_fill(&db.area);
			memset(db.image, GUARD_BYTE, db.area.total);
		}
	}
	old_w = copy_of(dw.v, dw.n);
	if (with_bias)
		old_b = copy_of(db.v, db.n);
	if (with_s)
		old_s = copy_of(ds.v, ds.n);
	good = good && reserve(dev, hz_quat_linear_bwd_workspace(dev->ctx, &x.view,
				    packed ? NULL : &w.view, with_bias ? &b.view : NULL, &dy.view,
				    &dx.view, &dw.view, with_bias ? &db.view : NULL, &back, &bytes),
			       &bytes);
	good = good && status_ok(dev, hz_quat_linear_bwd(dev->ctx, &x.view, packed ? NULL : &w.view,
				      with_bias ? &b.view : NULL, &dy.view, &dx.view, &dw.view,
				      with_bias ? &db.view : NULL, &back));
	if (at_kink(&ref, dtype))
		goto out;
	good = good && is_gradient(&ref, &dy, &x, NULL, bound, &dx, "dx") &&
	       is_gradient(&ref, &dy, &w, sum ? old_w : NULL, bound, &dw, "dw");
	if (with_bias)
		good = good && is_gradient(&ref, &dy, &b, sum ? old_b : NULL, bound, &db, "db");
	if (with_s)
		good = good && is_gradient(&ref, &dy, &s, sum ? old_s : NULL,
					   tolerance(ds.view.dtype), &ds, "dscale");
out:
	if (!good)
		diag("%s: %s, %d leading dimensions, batch %lld, n %lld, m %lld, side %d, method %d, "
		     "activation %d, flags %#x, bias %d, pre %d, packed %d", dev->name,
		     hz_dtype_name(dtype), ndim, (long long)batch, (long long)n, (long long)m,
		     o.side, o.method, o.activation, o.flags, with_bias, with_pre, packed);
	drop(&x), drop(&w), drop(&b), drop(&s), drop(&y), drop(&dy), drop(&dx), drop(&dw);
	drop(&db), drop(&ds), drop(&pre);
	if (packed)
		area_free(&blob_area);
	free(ref.y), free(ref.pre), free(old_w), free(old_b), free(old_s);
	return good;
}

static void test_linear(struct dev *dev)
{
	static const int64_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 9 };
	int64_t lead[4], n, m;
	int t, i, d, good, cases = dev == devs && !tap_quick() ? 16 : 5;

	for (t = 0; t < types_of(dev); t++) {
		good = 1;
		for (i = 0; i < cases; i++) {
			hz_quat_linear_opts o = {
				.side = (int)rnd_below(&rnd, 2), .method = (int)rnd_below(&rnd, 3),
				.activation = rnd_below(&rnd, 2) ? (int)rnd_below(&rnd, 9) : 0,
				.slope = 0.5,
				.flags = rnd_below(&rnd, 2) ? HZ_QUAT_XYZW : 0,
			};
			int ndim = (int)rnd_below(&rnd, 5), packed = i % 5 == 4;

			for (d = 0; d < ndim; d++)
				lead[d] = 1 + rnd_below(&rnd, 3);
			if (ndim == 1)
				lead[0] = sizes[rnd_below(&rnd, 8)];
			n = sizes[rnd_below(&rnd, 8)];
			m = sizes[rnd_below(&rnd, 8)];
			if (i % 4 == 3) {
				o.flags |= HZ_QUAT_ROTATION;
				packed = 0;
			}
			good &= linear_case(dev, types[t], ndim, lead, n, m, o,
					    (int)rnd_below(&rnd, 2),
					    o.activation && rnd_below(&rnd, 2), packed);
		}
		ok(good, "%s: linear layers, %s", dev->name, hz_dtype_name(types[t]));
	}
	good = 1;
	for (i = 0; i < 8; i++) {
		hz_quat_linear_opts o = { .flags = i & 4 ? HZ_QUAT_ROTATION : 0 };

		lead[0] = i & 1 ? 0 : 3;
		good &= linear_case(dev, HZ_F32, 1, lead, i & 2 ? 0 : 3, i % 3 ? 2 : 0, o, 1, 0, 0);
	}
	ok(good, "%s: linear layers without rows, columns or terms", dev->name);
}

/*
 * Sums over a batch so long that a device may cut it into parts. 20000 products that are added up in
 * turn in f32 are off by about 2^-24 sqrt(20000) / 2 = 4e-6 of what they amount to.
 */
static void test_long(struct dev *dev)
{
	double bound = 4 * tolerance(HZ_F32);
	int64_t xs[] = { 5003, 2 }, ys[] = { 5003, 3 }, ws[] = { 3, 2 }, is[] = { 1, 5003, 2 };
	int64_t os[] = { 1, 5001, 3 }, ks[] = { 3, 3, 2 }, b, n, k, t;
	struct tensor x = quats(dev, HZ_F32, 2, xs, AOS, 0, 1), image, kernel, out, dk;
	struct tensor w = quats(dev, HZ_F32, 2, ws, AOS, 0, 1);
	struct tensor dy = quats(dev, HZ_F32, 2, ys, AOS, 0, 1);
	struct tensor dw = quats(dev, HZ_F32, 2, ws, PLANES, 0, 0);
	double *want = calloc((size_t)dw.n, sizeof(*want)), xc[4];
	size_t bytes;
	int good;

	for (b = 0; b < xs[0]; b++) {
		for (n = 0; n < 3; n++) {
			for (k = 0; k < 2; k++) {
				conj_of(xc, x.v + 4 * (b * 2 + k));
				mul(want + 4 * (n * 2 + k), dy.v + 4 * (b * 3 + n), xc);
			}
		}
	}
	good = reserve(dev, hz_quat_linear_bwd_workspace(dev->ctx, &x.view, &w.view, NULL, &dy.view,
							 NULL, &dw.view, NULL, NULL, &bytes),
		       &bytes) &&
	       status_ok(dev, hz_quat_linear_bwd(dev->ctx, &x.view, &w.view, NULL, &dy.view, NULL,
						 &dw.view, NULL, NULL)) &&
	       near_within(bound, &dw, want, "dw");
	ok(good, "%s: the gradient of a linear layer over a long batch", dev->name);
	free(want);
	drop(&x), drop(&w), drop(&dy), drop(&dw);

	image = quats(dev, HZ_F32, 3, is, AOS, 0, 1);
	kernel = quats(dev, HZ_F32, 3, ks, AOS, 0, 1);
	out = quats(dev, HZ_F32, 3, os, AOS, 0, 1);
	dk = quats(dev, HZ_F32, 3, ks, AOS, 0, 0);
	want = calloc((size_t)dk.n, sizeof(*want));
	for (b = 0; b < os[1]; b++) {
		for (n = 0; n < 3; n++) {
			for (t = 0; t < 3; t++) {
				for (k = 0; k < 2; k++) {
					conj_of(xc, image.v + 4 * ((b + t) * 2 + k));
					mul(want + 4 * ((n * 3 + t) * 2 + k),
					    out.v + 4 * (b * 3 + n), xc);
				}
			}
		}
	}
	good = reserve(dev, hz_quat_conv_bwd_workspace(dev->ctx, &image.view, &kernel.view, NULL,
						       &out.view, NULL, &dk.view, NULL, NULL,
						       &bytes), &bytes) &&
	       status_ok(dev, hz_quat_conv_bwd(dev->ctx, &image.view, &kernel.view, NULL, &out.view,
					       NULL, &dk.view, NULL, NULL)) &&
	       near_within(bound, &dk, want, "dw");
	ok(good, "%s: the gradient of a convolution over many pixels", dev->name);
	free(want);
	drop(&image), drop(&kernel), drop(&out), drop(&dk);
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

static int conv_case(struct dev *dev, int dtype, int nd, struct model *g, hz_quat_conv_opts o,
		     int with_bias, int with_pre)
{
	int64_t xs[5], ys[5], ws[5];
	int first = 3 - nd, xyzw = (o.flags & HZ_QUAT_XYZW) != 0, good = 1, d;
	int sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	struct tensor x, w, b = { 0 }, y, dy, dx, dw, db = { 0 }, pre = { 0 };
	struct model ref = *g;
	int64_t channels = g->transposed ? g->ci : g->co;
	const double bound = tolerance(dtype);	/* of what errors come from */
	double *old_w, *old_b = NULL;
	hz_quat_conv_opts back;
	size_t bytes;

	xs[0] = ys[0] = g->batch;
	ws[0] = g->co;
	for (d = 0; d < nd; d++) {
		xs[1 + d] = g->transposed ? g->small[first + d] : g->big[first + d];
		ys[1 + d] = g->transposed ? g->big[first + d] : g->small[first + d];
		ws[1 + d] = g->taps[first + d];
		o.stride[d] = g->step[first + d];
		o.dilation[d] = g->dil[first + d];
		o.pad[d] = g->pad[first + d];
	}
	xs[1 + nd] = g->transposed ? g->co : g->ci;
	ys[1 + nd] = channels;
	ws[1 + nd] = g->ci / g->groups;
	o.groups = (int32_t)g->groups;
	x = quats(dev, dtype, nd + 2, xs, layout(), xyzw, 1);
	w = quats(dev, dtype, nd + 2, ws, layout(), xyzw, 0.5);
	y = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, nd + 2, ys, layout(), xyzw, 1);
	dx = quats(dev, dtype, nd + 2, xs, output_layout(), xyzw, 0);
	dw = quats(dev, dtype, nd + 2, ws, output_layout(), xyzw, 1);
	if (with_bias) {
		b = quats(dev, dtype, 1, &channels, layout(), xyzw, 1);
		db = quats(dev, dtype, 1, &channels, output_layout(), xyzw, 1);
	}
	if (with_pre) {
		pre = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
		o.pre = &pre.view;
	}
	ref.forward = conv_ref;
	ref.act = o.activation;
	ref.slope = o.slope;
	ref.right = o.side;
	ref.ny = y.n;
	ref.x = x.v;
	ref.w = w.v;
	ref.b = b.v;
	ref.y = calloc((size_t)y.n + 1, sizeof(double));
	ref.pre = calloc((size_t)y.n + 1, sizeof(double));
	good = reserve(dev, hz_quat_conv_workspace(dev->ctx, &x.view, &w.view,
			    with_bias ? &b.view : NULL, &y.view, &o, &bytes), &bytes);
	good = good && status_ok(dev, hz_quat_conv(dev->ctx, &x.view, &w.view,
						   with_bias ? &b.view : NULL, &y.view, &o));
	ref.forward(&ref);
	good = good && near(&y, ref.y, "y");
	if (with_pre) {
		good = good && near(&pre, ref.pre, "pre");
		upload(&pre, ref.pre);
	}
	back = o;
	back.flags |= (uint32_t)sum;
	old_w = copy_of(dw.v, dw.n);
	if (with_bias)
		old_b = copy_of(db.v, db.n);
	good = good && reserve(dev, hz_quat_conv_bwd_workspace(dev->ctx, &x.view, &w.view,
				    with_bias ? &b.view : NULL, &dy.view, &dx.view, &dw.view,
				    with_bias ? &db.view : NULL, &back, &bytes), &bytes);
	good = good && status_ok(dev, hz_quat_conv_bwd(dev->ctx, &x.view, &w.view,
				      with_bias ? &b.view : NULL, &dy.view, &dx.view, &dw.view,
				      with_bias ? &db.view : NULL, &back));
	if (at_kink(&ref, dtype))
		goto out;
	good = good && is_gradient(&ref, &dy, &x, NULL, bound, &dx, "dx") &&
	       is_gradient(&ref, &dy, &w, sum ? old_w : NULL, bound, &dw, "dw");
	if (with_bias)
		good = good && is_gradient(&ref, &dy, &b, sum ? old_b : NULL, bound, &db, "db");
out:
	if (!good)
		diag("%s: %s, %d dimensions, images %lld, big %lld %lld %lld, taps %lld %lld %lld, "
		     "stride %lld %lld %lld, pad %lld %lld %lld, dilation %lld %lld %lld, "
		     "channels %lld to %lld, groups %lld, side %d, activation %d, flags %#x, "
		     "bias %d, pre %d", dev->name, hz_dtype_name(dtype), nd, (long long)g->batch,
		     (long long)g->big[0], (long long)g->big[1], (long long)g->big[2],
		     (long long)g->taps[0], (long long)g->taps[1], (long long)g->taps[2],
		     (long long)g->step[0], (long long)g->step[1], (long long)g->step[2],
		     (long long)g->pad[0], (long long)g->pad[1], (long long)g->pad[2],
		     (long long)g->dil[0], (long long)g->dil[1], (long long)g->dil[2],
		     (long long)g->ci, (long long)g->co, (long long)g->groups, o.side,
		     o.activation, o.flags, with_bias, with_pre);
	drop(&x), drop(&w), drop(&b), drop(&y), drop(&dy), drop(&dx), drop(&dw), drop(&db);
	drop(&pre);
	free(ref.y), free(ref.pre), free(old_w), free(old_b);
	return good;
}

static int random_conv(struct dev *dev, int dtype, int nd)
{
	hz_quat_conv_opts o = { .side = (int)rnd_below(&rnd, 2), .method = (int)rnd_below(&rnd, 3),
				.activation = rnd_below(&rnd, 3) ? 0 : (int)rnd_below(&rnd, 9),
				.slope = 0.5, .flags = rnd_below(&rnd, 2) ? HZ_QUAT_XYZW : 0 };
	struct model g = { .batch = 1 + rnd_below(&rnd, 3), .groups = 1 + rnd_below(&rnd, 3),
			   .taps = { 1, 1, 1 }, .step = { 1, 1, 1 }, .dil = { 1, 1, 1 },
			   .big = { 1, 1, 1 }, .small = { 1, 1, 1 } };
	int plain = rnd_below(&rnd, 5) == 0, d;

	g.ci = g.groups * (1 + rnd_below(&rnd, 3));
	g.co = g.groups * (1 + rnd_below(&rnd, 3));
	if (rnd_below(&rnd, 2)) {
		g.transposed = 1;
		g.noconj = (int)rnd_below(&rnd, 2);
		o.flags |= HZ_QUAT_TRANSPOSED | (g.noconj ? HZ_QUAT_NOCONJ : 0);
	}
	for (d = 3 - nd; d < 3; d++) {
		int64_t most = nd == 3 ? 4 : nd == 2 ? 6 : 12, span;

		g.big[d] = 1 + rnd_below(&rnd, most);
		if (!plain) {
			g.taps[d] = 1 + rnd_below(&rnd, 3);
			g.step[d] = 1 + rnd_below(&rnd, 3);
			g.dil[d] = 1 + rnd_below(&rnd, 3);
			g.pad[d] = rnd_below(&rnd, 4);
		}
		span = (g.taps[d] - 1) * g.dil[d] + 1;
		while (g.big[d] + 2 * g.pad[d] < span)
			g.big[d]++;
		g.small[d] = (g.big[d] + 2 * g.pad[d] - span) / g.step[d] + 1;
	}
	return conv_case(dev, dtype, nd, &g, o, (int)rnd_below(&rnd, 2),
			 o.activation && rnd_below(&rnd, 2));
}

static void test_conv(struct dev *dev)
{
	int t, nd, i, cases = dev == devs && !tap_quick() ? 5 : 2, good;

	for (nd = 1; nd <= 3; nd++) {
		for (t = 0; t < types_of(dev); t++) {
			good = 1;
			for (i = 0; i < cases; i++)
				good &= random_conv(dev, types[t], nd);
			ok(good, "%s: convolutions in %d dimensions, %s", dev->name, nd,
			   hz_dtype_name(types[t]));
		}
	}
}

/*
 * Channels that fill tiles of matrix units, and sizes around those of tiles: y; dx, which is the
 * other convolution of dy; and dw. Sums of as many terms say what their magnitudes are by
 * themselves. in: the layout of x and dy; channels: multiples of unit.
 */
static int wide_conv(struct dev *dev, int dtype, int nd, int in, int unit)
{
	hz_quat_conv_opts o = { .side = (int)rnd_below(&rnd, 2), .method = HZ_QUAT_FAST,
				.activation = rnd_below(&rnd, 2) ? 0 : (int)rnd_below(&rnd, 9),
				.slope = 0.5, .flags = rnd_below(&rnd, 4) ? 0 : HZ_QUAT_XYZW };
	struct model g = { .batch = 1 + (in == BACKWARDS) + rnd_below(&rnd, 3),
			   .groups = 1 + rnd_below(&rnd, 2), .taps = { 1, 1, 1 },
			   .step = { 1, 1, 1 }, .dil = { 1, 1, 1 }, .big = { 1, 1, 1 },
			   .small = { 1, 1, 1 } }, ref;
	const int with_bias = (int)rnd_below(&rnd, 2), with_pre = (int)rnd_below(&rnd, 2);
	int xyzw = (o.flags & HZ_QUAT_XYZW) != 0, good, d;
	int64_t xs[5], ys[5], ws[5], channels;
	struct tensor x, w, b = { 0 }, y, pre = { 0 }, dy, dx, dw;
	size_t bytes;

	g.ci = g.groups * ((30 + rnd_below(&rnd, 40)) / unit * unit);
	g.co = g.groups * ((32 + rnd_below(&rnd, 40)) / unit * unit);
	g.transposed = (int)rnd_below(&rnd, 2);
	o.flags |= g.transposed ? HZ_QUAT_TRANSPOSED : 0;
	o.groups = (int32_t)g.groups;
	xs[0] = ys[0] = g.batch;
	ws[0] = g.co;
	for (d = 3 - nd; d < 3; d++) {
		int64_t span;

		g.big[d] = nd == 1 ? 20 + rnd_below(&rnd, 160) : nd == 2 ? 8 + rnd_below(&rnd, 10) :
			   3 + rnd_below(&rnd, 3);
		g.taps[d] = 1 + rnd_below(&rnd, nd == 3 ? 3 : 5);
		g.step[d] = rnd_below(&rnd, 2) ? 1 : 1 + rnd_below(&rnd, 3);
		g.dil[d] = rnd_below(&rnd, 2) ? 1 : 1 + rnd_below(&rnd, 3);
		g.pad[d] = rnd_below(&rnd, 4);
		span = (g.taps[d] - 1) * g.dil[d] + 1;
		while (g.big[d] + 2 * g.pad[d] < span)
			g.big[d]++;
		g.small[d] = (g.big[d] + 2 * g.pad[d] - span) / g.step[d] + 1;
		xs[d + nd - 2] = g.transposed ? g.small[d] : g.big[d];
		ys[d + nd - 2] = g.transposed ? g.big[d] : g.small[d];
		ws[d + nd - 2] = g.taps[d];
		o.stride[d + nd - 3] = g.step[d];
		o.dilation[d + nd - 3] = g.dil[d];
		o.pad[d + nd - 3] = g.pad[d];
	}
	channels = g.transposed ? g.ci : g.co;
	xs[1 + nd] = g.transposed ? g.co : g.ci;
	ys[1 + nd] = channels;
	ws[1 + nd] = g.ci / g.groups;
	x = quats(dev, dtype, nd + 2, xs, in, xyzw, 1);
	w = quats(dev, dtype, nd + 2, ws, layout(), xyzw, 0.05);
	y = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, nd + 2, ys, in, xyzw, 1);
	dx = quats(dev, dtype, nd + 2, xs, output_layout(), xyzw, 0);
	dw = quats(dev, dtype, nd + 2, ws, output_layout(), xyzw, 0);
	if (with_bias)
		b = quats(dev, dtype, 1, &channels, layout(), xyzw, 1);
	if (with_pre) {
		pre = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
		o.pre = &pre.view;
	}
	ref = g;
	ref.act = o.activation;
	ref.slope = o.slope;
	ref.right = o.side;
	ref.ny = y.n;
	ref.x = x.v;
	ref.w = w.v;
	ref.b = b.v;
	ref.y = calloc((size_t)y.n + 1, sizeof(double));
	ref.pre = with_pre ? calloc((size_t)y.n + 1, sizeof(double)) : NULL;
	good = reserve(dev, hz_quat_conv_workspace(dev->ctx, &x.view, &w.view,
			    with_bias ? &b.view : NULL, &y.view, &o, &bytes), &bytes) &&
	       status_ok(dev, hz_quat_conv(dev->ctx, &x.view, &w.view,
					   with_bias ? &b.view : NULL, &y.view, &o));
	conv_ref(&ref);
	good = good && near(&y, ref.y, "y") && (!with_pre || near(&pre, ref.pre, "pre"));
	o.activation = HZ_ACT_NONE;
	o.pre = NULL;
	good = good && reserve(dev, hz_quat_conv_bwd_workspace(dev->ctx, &x.view, &w.view, NULL,
				    &dy.view, &dx.view, &dw.view, NULL, &o, &bytes), &bytes) &&
	       status_ok(dev, hz_quat_conv_bwd(dev->ctx, &x.view, &w.view, NULL, &dy.view,
					       &dx.view, &dw.view, NULL, &o));
	free(ref.y), free(ref.pre);
	ref.y = dy.v;
	ref.dw = calloc((size_t)w.n + 1, sizeof(double));
	conv_ref(&ref);
	good = good && near(&dw, ref.dw, "dw");
	free(ref.dw);
	ref.dw = NULL;
	ref.transposed = !g.transposed;
	ref.act = HZ_ACT_NONE;
	ref.ny = dx.n;
	ref.x = dy.v;
	ref.b = ref.pre = NULL;
	ref.y = calloc((size_t)dx.n + 1, sizeof(double));
	conv_ref(&ref);
	good = good && near(&dx, ref.y, "dx");
	if (!good)
		diag("%s: %s, %d dimensions, images %lld, big %lld %lld %lld, taps %lld %lld %lld, "
		     "stride %lld %lld %lld, pad %lld %lld %lld, dilation %lld %lld %lld, "
		     "channels %lld to %lld, groups %lld, side %d, flags %#x, bias %d, pre %d",
		     dev->name, hz_dtype_name(dtype), nd, (long long)g.batch,
		     (long long)g.big[0], (long long)g.big[1], (long long)g.big[2],
		     (long long)g.taps[0], (long long)g.taps[1], (long long)g.taps[2],
		     (long long)g.step[0], (long long)g.step[1], (long long)g.step[2],
		     (long long)g.pad[0], (long long)g.pad[1], (long long)g.pad[2],
		     (long long)g.dil[0], (long long)g.dil[1], (long long)g.dil[2],
		     (long long)g.ci, (long long)g.co, (long long)g.groups, o.side, o.flags,
		     with_bias, with_pre);
	drop(&x), drop(&w), drop(&b), drop(&y), drop(&pre), drop(&dy), drop(&dx), drop(&dw);
	free(ref.y);
	return good;
}

static void test_wide_conv(struct dev *dev)
{
	const int gpu = dev->device >= HZ_CUDA;
	int t, nd, i, cases = gpu && !tap_quick() ? 6 : 1;

	/* Levels of the CPU have no code of their own for them. */
	if (!gpu && dev != devs)
		return;
	for (nd = 1; nd <= 3; nd++) {
		for (t = 0; t < types_of(dev); t++) {
			int good = 1;

			/* Of each kind at least one for kernels that want channels by eights */
			for (i = 0; i < cases; i++)
				good &= wide_conv(dev, types[t], nd, i ? layout() : BACKWARDS,
						  i % 2 ? 1 : 8);
			ok(good, "%s: convolutions of many channels in %d dimensions, %s",
			   dev->name, nd, hz_dtype_name(types[t]));
		}
	}
}

/* Two images of which one is far smaller: neither loses more digits than the other by it. */
static void test_conv_of_scales(struct dev *dev)
{
	const int64_t xs[] = { 2, 8, 8, 32 }, ws[] = { 32, 3, 3, 32 };
	const hz_quat_conv_opts o = { .pad = { 1, 1 }, .method = HZ_QUAT_FAST };
	int t;

	for (t = 0; t < types_of(dev); t++) {
		const int dtype = types[t];
		const double small = dtype == HZ_F16 ? 0x1p-8 : 0x1p-20;
		struct model ref = { .batch = 2, .big = { 1, 8, 8 }, .small = { 1, 8, 8 },
				     .taps = { 1, 3, 3 }, .step = { 1, 1, 1 }, .dil = { 1, 1, 1 },
				     .pad = { 0, 1, 1 }, .ci = 32, .co = 32, .groups = 1 };
		struct tensor x = quats(dev, dtype, 4, xs, AOS, 0, 1);
		struct tensor w = quats(dev, dtype, 4, ws, AOS, 0, 0.05);
		struct tensor y = quats(dev, dtype, 4, xs, AOS, 0, 0);
		size_t half = (size_t)x.n / 2, i, bytes;
		int good;

		for (i = half; i < 2 * half; i++)
			x.v[i] *= small;
		upload(&x, x.v);
		ref.x = x.v;
		ref.w = w.v;
		ref.ny = y.n;
		ref.y = calloc((size_t)y.n, sizeof(double));
		conv_ref(&ref);
		good = reserve(dev, hz_quat_conv_workspace(dev->ctx, &x.view, &w.view, NULL,
							   &y.view, &o, &bytes), &bytes) &&
		       status_ok(dev, hz_quat_conv(dev->ctx, &x.view, &w.view, NULL, &y.view,
						   &o)) && fetch(&y);
		ok(good && within_norm(y.v, ref.y, half, tolerance(dtype)) &&
		   within_norm(y.v + half, ref.y + half, half, tolerance(dtype)),
		   "%s: images of different scales, %s", dev->name, hz_dtype_name(dtype));
		free(ref.y);
		drop(&x), drop(&w), drop(&y);
	}
}

/* ---- Normalization --------------------------------------------------------------------------- */

static int norm_case(struct dev *dev, int dtype, int whiten, int eval, int params)
{
	int64_t shape[5], ps[2], channels, batch = 1;
	int ndim = 1 + (int)rnd_below(&rnd, 4), xyzw = (int)rnd_below(&rnd, 2), good = 1, d;
	int p_type = dtype == HZ_F64 ? HZ_F64 : HZ_F32, columns = whiten ? 10 : 1;
	int sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	struct tensor x, y, dy, dx, gamma = { 0 }, beta, dgamma, dbeta, rm, rv, saved;
	struct model ref = { .forward = norm_ref, .whiten = whiten, .eval = eval, .eps = 1e-3 };
	hz_quat_batchnorm_opts o = { .eps = 1e-3, .momentum = 0.25,
				     .flags = (xyzw ? HZ_QUAT_XYZW : 0) |
					      (whiten ? HZ_QUAT_WHITEN : 0) |
					      (eval ? HZ_QUAT_EVAL : 0) };
	double *old_g, *old_b, *old_m, *old_v;
	int64_t i, c;
	size_t bytes;

	for (d = 0; d < ndim; d++) {
		shape[d] = 2 + rnd_below(&rnd, ndim > 2 ? 3 : 9);
		batch *= shape[d];
	}
	if (whiten && batch < 12) {
		batch = batch / shape[0] * 12;
		shape[0] = 12;
	}
	channels = shape[ndim] = 1 + rnd_below(&rnd, 5);
	ps[0] = channels;
	ps[1] = columns;
	x = quats(dev, dtype, ndim + 1, shape, layout(), xyzw, 2);
	y = quats(dev, dtype, ndim + 1, shape, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, ndim + 1, shape, layout(), xyzw, 1);
	dx = quats(dev, dtype, ndim + 1, shape, output_layout(), xyzw, 0);
	gamma = make(dev, p_type, whiten ? 2 : 1, ps, AOS, 0, 0, 1);
	dgamma = make(dev, p_type, whiten ? 2 : 1, ps, AOS, 0, 0, 1);
	rv = make(dev, p_type, whiten ? 2 : 1, ps, AOS, 0, 0, 1);
	for (i = 0; i < rv.n; i++) {
		int place_of = (int)(i % 10), diagonal = place_of == 0 || place_of == 4 ||
							  place_of == 7 || place_of == 9;

		rv.v[i] = !whiten || diagonal ? 2 + fabs(rv.v[i]) : rv.v[i] / 8;
	}
	upload(&rv, rv.v);
	beta = quats(dev, p_type, 1, &channels, AOS, xyzw, 1);
	dbeta = quats(dev, p_type, 1, &channels, AOS, xyzw, 1);
	rm = quats(dev, p_type, 1, &channels, AOS, xyzw, 1);
	ps[1] = 14;
	saved = make(dev, p_type, 2, ps, AOS, 0, 0, 0);
	o.running_mean = &rm.view;
	o.running_var = &rv.view;
	o.saved = &saved.view;
	ref.n = channels;
	ref.batch = batch;
	ref.x = x.v;
	ref.gamma = params ? gamma.v : NULL;
	ref.beta = params ? beta.v : NULL;
	old_m = copy_of(rm.v, rm.n);
	old_v = copy_of(rv.v, rv.n);
	ref.mean = old_m;
	ref.var = old_v;
	ref.ny = y.n;
	ref.y = calloc((size_t)y.n, sizeof(double));
	ref.forward(&ref);
	good = reserve(dev, hz_quat_batchnorm_workspace(dev->ctx, &x.view,
			    params ? &gamma.view : NULL, params ? &beta.view : NULL, &y.view, &o,
			    &bytes), &bytes);
	good = good && status_ok(dev, hz_quat_batchnorm(dev->ctx, &x.view,
				      params ? &gamma.view : NULL, params ? &beta.view : NULL,
				      &y.view, &o));
	good = good && near(&y, ref.y, "y");
	/* Running values */
	{
		double *mean = copy_of(old_m, rm.n), *var = copy_of(old_v, rv.n);

		for (c = 0; c < channels && !eval; c++) {
			double mu[4] = { 0 }, v[16] = { 0 };
			int k;

			for (i = 0; i < batch; i++) {
				for (k = 0; k < 4; k++)
					mu[k] += x.v[4 * (i * channels + c) + k] / (double)batch;
			}
			for (i = 0; i < batch; i++) {
				const double *q = x.v + 4 * (i * channels + c);

				for (k = 0; k < 16; k++)
					v[k] += (q[k / 4] - mu[k / 4]) * (q[k % 4] - mu[k % 4]) /
						(double)batch;
			}
			for (k = 0; k < 4; k++)
				mean[4 * c + k] = 0.75 * old_m[4 * c + k] + 0.25 * mu[k];
			for (k = 0; k < 10 && whiten; k++)
				var[10 * c + k] *= 0.75;
			for (k = 0; k < 16 && whiten; k++) {
				if (k / 4 <= k % 4)
					var[10 * c + upper(k / 4, k % 4)] += 0.25 * v[k];
			}
			if (!whiten)
				var[c] = 0.75 * old_v[c] + 0.25 * (v[0] + v[5] + v[10] + v[15]);
		}
		good = good && near(&rm, mean, "running_mean") && near(&rv, var, "running_var");
		free(mean), free(var);
	}
	old_g = copy_of(dgamma.v, dgamma.n);
	old_b = copy_of(dbeta.v, dbeta.n);
	o.flags |= (uint32_t)sum;
	good = good && reserve(dev, hz_quat_batchnorm_bwd_workspace(dev->ctx, &x.view,
				    params ? &gamma.view : NULL, &dy.view, &dx.view,
				    params ? &dgamma.view : NULL, params ? &dbeta.view : NULL, &o,
				    &bytes), &bytes);
	good = good && status_ok(dev, hz_quat_batchnorm_bwd(dev->ctx, &x.view,
				      params ? &gamma.view : NULL, &dy.view, &dx.view,
				      params ? &dgamma.view : NULL, params ? &dbeta.view : NULL,
				      &o));
	good = good && is_gradient(&ref, &dy, &x, NULL, tolerance(dtype), &dx, "dx");
	/* One number of gamma's may be a small difference of large ones. */
	if (params)
		good = good && is_gradient(&ref, &dy, &gamma, sum ? old_g : NULL,
					   (dgamma.n < 8 ? 50 : 1) * tolerance(p_type), &dgamma,
					   "dgamma") &&
		       is_gradient(&ref, &dy, &beta, sum ? old_b : NULL, tolerance(p_type), &dbeta,
				   "dbeta");
	if (!good)
		diag("%s: %s, whiten %d, eval %d, parameters %d, batch %lld, channels %lld, xyzw %d",
		     dev->name, hz_dtype_name(dtype), whiten, eval, params, (long long)batch,
		     (long long)channels, xyzw);
	drop(&x), drop(&y), drop(&dy), drop(&dx), drop(&gamma), drop(&beta), drop(&dgamma);
	drop(&dbeta), drop(&rm), drop(&rv), drop(&saved);
	free(ref.y), free(old_g), free(old_b), free(old_m), free(old_v);
	return good;
}

static void test_norm(struct dev *dev)
{
	int t, i, good, cases = dev == devs && !tap_quick() ? 8 : 4;

	for (t = 0; t < types_of(dev); t++) {
		good = 1;
		for (i = 0; i < cases; i++)
			good &= norm_case(dev, types[t], i & 1, (i & 2) != 0, i % 5 != 0);
		ok(good, "%s: batch normalization, %s", dev->name, hz_dtype_name(types[t]));
	}
}

/* ---- Pooling --------------------------------------------------------------------------------- */

/*
 * The gradient of the largest: all of dy goes to the element that was taken. Differences would be
 * another element's where two norms are nearly equal, as those of 16 bits often are.
 */
static double *largest_gradient(const struct model *m, const double *dy, int64_t n)
{
	double *g = calloc((size_t)n + 1, sizeof(*g));
	int64_t smalls = m->small[0] * m->small[1] * m->small[2], i, c;
	int64_t bigs = m->big[0] * m->big[1] * m->big[2];
	int e;

	for (i = 0; i < m->batch * smalls; i++) {
		for (c = 0; c < m->ci; c++) {
			int64_t k = i / smalls * bigs + (int64_t)m->index[i * m->ci + c];

			for (e = 0; e < 4; e++)
				g[4 * (k * m->ci + c) + e] += dy[4 * (i * m->ci + c) + e];
		}
	}
	return g;
}

static int pool_case(struct dev *dev, int dtype, int nd, int average)
{
	struct model ref = { .forward = pool_ref, .average = average,
			     .batch = 1 + rnd_below(&rnd, 2), .ci = 1 + rnd_below(&rnd, 4),
			     .taps = { 1, 1, 1 }, .step = { 1, 1, 1 }, .big = { 1, 1, 1 },
			     .small = { 1, 1, 1 } };
	int xyzw = (int)rnd_below(&rnd, 2), good = 1, d, sum;
	hz_quat_pool_opts o = { .kind = average ? HZ_POOL_AVERAGE : HZ_POOL_MAX,
				.flags = xyzw ? HZ_QUAT_XYZW : 0 };
	int64_t xs[5], ys[5];
	struct tensor x, y, dy, dx, index;
	double *want, *old;

	xs[0] = ys[0] = ref.batch;
	for (d = 0; d < nd; d++) {
		int in = 3 - nd + d;

		ref.big[in] = 2 + rnd_below(&rnd, 6);
		o.window[d] = ref.taps[in] = 1 + rnd_below(&rnd, 3);
		o.stride[d] = rnd_below(&rnd, 3);
		ref.step[in] = o.stride[d] ? o.stride[d] : o.window[d];
		o.pad[d] = ref.pad[in] = rnd_below(&rnd, o.window[d] / 2 + 1);
		if (ref.big[in] < ref.taps[in])
			ref.big[in] = ref.taps[in];
		ref.small[in] = (ref.big[in] + 2 * ref.pad[in] - ref.taps[in]) / ref.step[in] + 1;
		xs[1 + d] = ref.big[in];
		ys[1 + d] = ref.small[in];
	}
	xs[1 + nd] = ys[1 + nd] = ref.ci;
	x = quats(dev, dtype, nd + 2, xs, layout(), xyzw, 1);
	y = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, nd + 2, ys, layout(), xyzw, 1);
	dx = quats(dev, dtype, nd + 2, xs, output_layout(), xyzw, 1);
	index = make(dev, HZ_S32, nd + 2, ys, output_layout(), 0, 0, 0);
	ref.x = x.v;
	ref.ny = y.n;
	ref.y = calloc((size_t)y.n, sizeof(double));
	ref.index = calloc((size_t)index.n, sizeof(double));
	ref.forward(&ref);
	good = status_ok(dev, hz_quat_pool(dev->ctx, &x.view, &y.view, average ? NULL : &index.view,
					   &o));
	good = good && near(&y, ref.y, "y");
	if (!average) {
		good = good && fetch(&index) &&
		       memcmp(index.v, ref.index, (size_t)index.n * sizeof(double)) == 0;
		upload(&index, ref.index);
	}
	sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	o.flags |= (uint32_t)sum;
	old = copy_of(dx.v, dx.n);
	good = good && status_ok(dev, hz_quat_pool_bwd(dev->ctx, average ? NULL : &index.view,
						       &dy.view, &dx.view, &o));
	want = average ? gradient(&ref, dy.v, x.v, x.n) : largest_gradient(&ref, dy.v, x.n);
	if (sum)
		add(want, old, dx.n);
	good = good && near(&dx, want, "dx");
	if (!good)
		diag("%s: %s, %d dimensions, average %d", dev->name, hz_dtype_name(dtype), nd,
		     average);
	drop(&x), drop(&y), drop(&dy), drop(&dx), drop(&index);
	free(ref.y), free(ref.index), free(want), free(old);
	return good;
}

static void test_pool(struct dev *dev)
{
	int t, i, good, cases = dev == devs && !tap_quick() ? 12 : 6;

	for (t = 0; t < types_of(dev); t++) {
		good = 1;
		for (i = 0; i < cases; i++)
			good &= pool_case(dev, types[t], 1 + i % 3, i / 3 % 2);
		ok(good, "%s: pooling, %s", dev->name, hz_dtype_name(types[t]));
	}
}

/* ---- Dropout, initial values ----------------------------------------------------------------- */

static double uniform(uint64_t seed, uint64_t j)
{
	uint64_t state = seed + j * 0x9e3779b97f4a7c15u;

	return (double)(rnd_u64(&state) >> 11) * 0x1p-53;
}

static void test_dropout(struct dev *dev)
{
	static const double probabilities[] = { 0, 0.3, 1 };
	int64_t shape[2] = { 37, 11 }, i;
	int t, k, good = 1;

	for (t = 0; t < types_of(dev); t++) {
		for (k = 0; k < 3; k++) {
			struct tensor x = quats(dev, types[t], 2, shape, layout(), 0, 1);
			struct tensor y = quats(dev, types[t], 2, shape, output_layout(), 0, 0);
			double p = probabilities[k], *want = copy_of(x.v, x.n);

			for (i = 0; i < x.n; i++)
				want[i] = uniform(99, 5 + (uint64_t)(i / 4)) < p ?
					  0 : p < 1 ? want[i] / (1 - p) : 0;
			good &= status_ok(dev, hz_quat_dropout(dev->ctx, &x.view, &y.view, p, 99, 5));
			good &= near(&y, want, "dropout");
			free(want);
			drop(&x), drop(&y);
		}
	}
	ok(good, "%s: dropout", dev->name);
}

static void init_ref(int distribution, double scale, uint64_t i, double *q)
{
	double u[5], pi2 = 2 * acos(-1), s, t, c;
	int k;

	for (k = 0; k < 5; k++)
		u[k] = uniform(7, 8 * i + (uint64_t)k);
	if (distribution == HZ_QUAT_POLAR) {
		s = scale * sqrt(-2 * log((1 - u[0]) * (1 - u[1])));
		c = 2 * u[3] - 1;
		t = s * sin(pi2 * u[2]);
		q[0] = s * cos(pi2 * u[2]);
		q[1] = t * sqrt(1 - c * c) * cos(pi2 * u[4]);
		q[2] = t * sqrt(1 - c * c) * sin(pi2 * u[4]);
		q[3] = t * c;
		return;
	}
	s = distribution == HZ_QUAT_UNITARY ? sqrt(1 - u[0]) : sqrt(-2 * log(1 - u[0]));
	t = distribution == HZ_QUAT_UNITARY ? sqrt(u[0]) : sqrt(-2 * log(1 - u[2]));
	c = distribution == HZ_QUAT_UNITARY ? u[2] : u[3];
	q[0] = scale * s * cos(pi2 * u[1]);
	q[1] = scale * s * sin(pi2 * u[1]);
	q[2] = scale * t * cos(pi2 * c);
	q[3] = scale * t * sin(pi2 * c);
}

/* A sum over the bits of f32 values, the same on every device */
static uint64_t checksum(const struct tensor *t)
{
	uint64_t sum = 0;
	int64_t i;

	for (i = 0; i < t->n; i++) {
		float f = (float)t->v[i];
		uint32_t bits;

		memcpy(&bits, &f, 4);
		sum = sum * 0x100000001b3u + bits;
	}
	return sum;
}

static void test_init(struct dev *dev)
{
	int64_t shape[2] = { 51, 40 }, i;
	int t, d, good = 1, c;
	uint64_t sum = 0;

	for (t = 0; t < types_of(dev); t++) {
		for (d = HZ_QUAT_POLAR; d <= HZ_QUAT_NORMAL; d++) {
			int xyzw = d & 1;
			struct tensor y = quats(dev, types[t], 2, shape, output_layout(), xyzw, 0);
			double *want = calloc((size_t)y.n, sizeof(double)), second = 0;

			for (i = 0; i < y.n / 4; i++)
				init_ref(d, 0.25, 3 + (uint64_t)i, want + 4 * i);
			good &= status_ok(dev, hz_quat_init(dev->ctx, &y.view, d, 0.25, 7, 3,
							    xyzw ? HZ_QUAT_XYZW : 0));
			good &= near(&y, want, "init");
			if (types[t] == HZ_F64)
				good &= within_norm(y.v, want, (size_t)y.n, 1e-15);
			for (i = 0; i < y.n / 4; i++) {
				for (c = 0; c < 4; c++)
					second += y.v[4 * i + c] * y.v[4 * i + c] * 4 / (double)y.n;
			}
			/* E |q|^2 is 4 scale^2, of 2040 quaternions; 1 of the unit sphere */
			if (fabs(second / (d == HZ_QUAT_UNITARY ? 0.0625 : 0.25) - 1) > 0.08) {
				diag("distribution %d: mean of |q|^2 is %g", d, second);
				good = 0;
			}
			if (types[t] == HZ_F32)
				sum = sum * 31 + checksum(&y);
			free(want);
			drop(&y);
		}
	}
	ok(good, "%s: initial values", dev->name);
	is_int((long long)sum, (long long)INIT_SUM, "%s: initial values, bit for bit", dev->name);
	ok(hz_quat_init_scale(8, 0) == 0.25 && fabs(hz_quat_init_scale(3, 5) - 0.25) < 1e-15 &&
	   hz_quat_init_scale(0, 1) == 0, "scales of Glorot and He");
}

/* ---- PyTorch's quaternion libraries ---------------------------------------------------------- */

/*
 * Orkis and speechbrain: x [batch, 4 in] of blocks r i j k, weights r i j k [in, out], the real
 * matrix [4 in, 4 out] of columns r: r -i -j -k, i: i r -k j, j: j k r -i, k: k -j i r.
 */
static const int cat_part[4][4] = { { 0, 1, 2, 3 }, { 1, 0, 3, 2 }, { 2, 3, 0, 1 },
				    { 3, 2, 1, 0 } };
static const int cat_sign[4][4] = { { 1, -1, -1, -1 }, { 1, 1, -1, 1 }, { 1, 1, 1, -1 },
				    { 1, -1, 1, 1 } };

static void test_cat(struct dev *dev)
{
	enum { BATCH = 5, IN = 6, OUT = 3, TAPS = 3, SIDE = 7, GONE = SIDE - TAPS + 1 };
	int64_t xs[] = { BATCH, 4 * IN }, ws[] = { 4, IN, OUT }, ys[] = { BATCH, 4 * OUT };
	struct tensor x = make(dev, HZ_F32, 2, xs, AOS, 0, 0, 1);
	struct tensor w = make(dev, HZ_F32, 3, ws, AOS, 0, 0, 1);
	struct tensor y = make(dev, HZ_F32, 2, ys, AOS, 0, 0, 0);
	hz_tensor qx = { x.view.data, HZ_F32, 3, dev->device, { BATCH, IN, 4 }, { 4 * IN, 1, IN } };
	hz_tensor qw = { w.view.data, HZ_F32, 3, dev->device, { OUT, IN, 4 }, { 1, OUT, IN * OUT } };
	hz_tensor qy = { y.view.data, HZ_F32, 3, dev->device, { BATCH, OUT, 4 },
			 { 4 * OUT, 1, OUT } };
	double *want = calloc(BATCH * 4 * OUT, sizeof(*want)), *conv;
	int64_t b, o, i, p, q, u, v;
	int good, good_conv;
	size_t bytes;

	for (b = 0; b < BATCH; b++) {
		for (p = 0; p < 4; p++) {
			for (o = 0; o < OUT; o++) {
				for (q = 0; q < 4; q++) {
					for (i = 0; i < IN; i++)
						want[b * 4 * OUT + p * OUT + o] +=
							x.v[b * 4 * IN + q * IN + i] *
							cat_sign[p][q] *
							w.v[(cat_part[p][q] * IN + i) * OUT + o];
				}
			}
		}
	}
	good = reserve(dev, hz_quat_linear_workspace(dev->ctx, &qx, &qw, NULL, &qy, NULL, &bytes),
		       &bytes) &&
	       status_ok(dev, hz_quat_linear(dev->ctx, &qx, &qw, NULL, &qy, NULL)) &&
	       near(&y, want, "linear");
	ok(good, "%s: the linear layer of Orkis and speechbrain, in place", dev->name);
	drop(&x), drop(&w), drop(&y);
	free(want);

	/* conv2d: x [n, 4 in, h, w], weights [out, in, kh, kw] each, one behind the other */
	{
		int64_t cx[] = { 2, 4 * IN, SIDE, SIDE }, cw[] = { 4, OUT, IN, TAPS, TAPS };
		int64_t cy[] = { 2, 4 * OUT, GONE, GONE };
		hz_tensor vx = { .dtype = HZ_F32, .ndim = 5, .device = dev->device,
				 .shape = { 2, SIDE, SIDE, IN, 4 },
				 .stride = { 4 * IN * SIDE * SIDE, SIDE, 1, SIDE * SIDE,
					     IN * SIDE * SIDE } };
		hz_tensor vw = { .dtype = HZ_F32, .ndim = 5, .device = dev->device,
				 .shape = { OUT, TAPS, TAPS, IN, 4 },
				 .stride = { IN * TAPS * TAPS, TAPS, 1, TAPS * TAPS,
					     OUT * IN * TAPS * TAPS } };
		hz_tensor vy = { .dtype = HZ_F32, .ndim = 5, .device = dev->device,
				 .shape = { 2, GONE, GONE, OUT, 4 },
				 .stride = { 4 * OUT * GONE * GONE, GONE, 1, GONE * GONE,
					     OUT * GONE * GONE } };

		x = make(dev, HZ_F32, 4, cx, AOS, 0, 0, 1);
		w = make(dev, HZ_F32, 5, cw, AOS, 0, 0, 1);
		y = make(dev, HZ_F32, 4, cy, AOS, 0, 0, 0);
		vx.data = x.view.data;
		vw.data = w.view.data;
		vy.data = y.view.data;
		conv = calloc((size_t)y.n, sizeof(*conv));
		for (int64_t at = 0; at < y.n; at++) {
			int64_t column = at % GONE, row = at / GONE % GONE;
			int64_t channel = at / GONE / GONE % (4 * OUT);

			b = at / GONE / GONE / (4 * OUT);
			p = channel / OUT;
			o = channel % OUT;
			for (q = 0; q < 4; q++) {
				for (i = 0; i < IN; i++) {
					for (u = 0; u < TAPS; u++) {
						for (v = 0; v < TAPS; v++)
							conv[at] += cat_sign[p][q] *
								w.v[(((cat_part[p][q] * OUT + o) * IN +
								      i) * TAPS + u) * TAPS + v] *
								x.v[((b * 4 * IN + q * IN + i) * SIDE +
								     row + u) * SIDE + column + v];
					}
				}
			}
		}
		good_conv = reserve(dev, hz_quat_conv_workspace(dev->ctx, &vx, &vw, NULL, &vy, NULL,
								&bytes), &bytes) &&
			    status_ok(dev, hz_quat_conv(dev->ctx, &vx, &vw, NULL, &vy, NULL)) &&
			    near(&y, conv, "conv");
		ok(good_conv, "%s: the 2-d convolution of Orkis and speechbrain, in place",
		   dev->name);
		drop(&x), drop(&w), drop(&y);
		free(conv);
	}
}

/* Strides, windows and dilation that are far larger than what they are for */
static void test_far(struct dev *dev)
{
	const int64_t xs[] = { 2, 1, 2, 1, 3 }, ws[] = { 5, 1, 1, 1, 3 };
	const int64_t ys[] = { 2, 1, 1, 1, 5 }, ps[] = { 2, 1, 1, 1, 3 };
	const hz_quat_conv_opts o = { .stride = { INT32_MAX, INT32_MAX, INT32_MAX },
				      .dilation = { INT32_MAX, INT32_MAX, INT32_MAX } };
	const hz_quat_pool_opts p = { .kind = HZ_POOL_AVERAGE,
				      .window = { INT32_MAX, INT32_MAX, INT32_MAX },
				      .pad = { INT32_MAX / 2, INT32_MAX / 2, INT32_MAX / 2 } };
	struct tensor x = quats(dev, HZ_F32, 5, xs, AOS, 0, 1);
	struct tensor w = quats(dev, HZ_F32, 5, ws, AOS, 0, 1);
	struct tensor y = quats(dev, HZ_F32, 5, ys, AOS, 0, 1);
	struct tensor dx = quats(dev, HZ_F32, 5, xs, AOS, 0, 0);
	struct tensor pooled = quats(dev, HZ_F32, 5, ps, AOS, 0, 0);
	double *want = calloc(48, sizeof(double)), *mean = calloc(24, sizeof(double));
	size_t bytes = 0;

	/* Of each image only the first pixel is seen: dx is w^H dy there. */
	for (int image = 0; image < 2; image++) {
		for (int i = 0; i < 3; i++) {
			for (int out = 0; out < 5; out++) {
				double q[4];

				conj_of(q, w.v + 4 * (3 * out + i));
				mul(want + 4 * (6 * image + i), q, y.v + 4 * (5 * image + out));
			}
			for (int c = 0; c < 4; c++)
				mean[4 * (3 * image + i) + c] =
					(x.v[4 * (6 * image + i) + c] +
					 x.v[4 * (6 * image + 3 + i) + c]) / 2;
		}
	}
	ok(reserve(dev, hz_quat_conv_bwd_workspace(dev->ctx, &x.view, &w.view, NULL, &y.view,
						   &dx.view, NULL, NULL, &o, &bytes), &bytes) &&
	   status_ok(dev, hz_quat_conv_bwd(dev->ctx, &x.view, &w.view, NULL, &y.view, &dx.view, NULL,
					   NULL, &o)) && near(&dx, want, "dx"),
	   "%s: strides far larger than x", dev->name);
	ok(status_ok(dev, hz_quat_pool(dev->ctx, &x.view, &pooled.view, NULL, &p)) &&
	   near(&pooled, mean, "mean"), "%s: windows far larger than x", dev->name);
	drop(&x), drop(&w), drop(&y), drop(&dx), drop(&pooled);
	free(want);
	free(mean);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

/* The results of one set of calls that are large enough for several threads */
static double *large_results(struct dev *dev, int64_t *count)
{
	int64_t xs[] = { 6, 40, 41, 12 }, ws[] = { 16, 3, 3, 12 }, ys[] = { 6, 40, 41, 16 }, c = 16;
	int64_t channels = 16, ps[] = { 16, 14 };
	uint64_t keep = rnd;
	struct tensor t[8];
	hz_quat_conv_opts o = { .pad = { 1, 1 }, .activation = HZ_ACT_TANH };
	hz_quat_batchnorm_opts n = { .flags = HZ_QUAT_WHITEN };
	double *all;
	size_t bytes;
	int i, good;

	rnd = 4711;
	t[0] = quats(dev, HZ_F32, 4, xs, AOS, 0, 1);
	t[1] = quats(dev, HZ_F32, 4, ws, AOS, 0, 0.1);
	t[2] = quats(dev, HZ_F32, 1, &c, AOS, 0, 1);
	t[3] = quats(dev, HZ_F32, 4, ys, AOS, 0, 0);
	t[4] = quats(dev, HZ_F32, 4, xs, AOS, 0, 0);
	t[5] = quats(dev, HZ_F32, 4, ws, AOS, 0, 0);
	t[6] = quats(dev, HZ_F32, 1, &channels, AOS, 0, 0);
	t[7] = make(dev, HZ_F32, 2, ps, AOS, 0, 0, 0);
	rnd = keep;
	n.saved = &t[7].view;
	good = reserve(dev, hz_quat_conv_workspace(dev->ctx, &t[0].view, &t[1].view, &t[2].view,
						   &t[3].view, &o, &bytes), &bytes) &&
	       status_ok(dev, hz_quat_conv(dev->ctx, &t[0].view, &t[1].view, &t[2].view, &t[3].view,
					   &o)) &&
	       reserve(dev, hz_quat_batchnorm_workspace(dev->ctx, &t[3].view, NULL, NULL,
							&t[3].view, &n, &bytes), &bytes) &&
	       status_ok(dev, hz_quat_batchnorm(dev->ctx, &t[3].view, NULL, NULL, &t[3].view, &n)) &&
	       reserve(dev, hz_quat_conv_bwd_workspace(dev->ctx, &t[0].view, &t[1].view, &t[2].view,
						       &t[3].view, &t[4].view, &t[5].view,
						       &t[6].view, &o, &bytes), &bytes) &&
	       status_ok(dev, hz_quat_conv_bwd(dev->ctx, &t[0].view, &t[1].view, &t[2].view,
					       &t[3].view, &t[4].view, &t[5].view, &t[6].view, &o));
	if (!good)
		bail("the calls failed");
	*count = 0;
	for (i = 3; i < 8; i++)
		*count += t[i].n;
	all = malloc((size_t)*count * sizeof(*all));
	*count = 0;
	for (i = 0; i < 8; i++) {
		if (i >= 3) {
			fetch(&t[i]);
			memcpy(all + *count, t[i].v, (size_t)t[i].n * sizeof(*all));
			*count += t[i].n;
		}
		drop(&t[i]);
	}
	return all;
}

static void test_bits(void)
{
	double *first = NULL, *again;
	int64_t n, k;
	int i, same;

	for (i = 0; i < ndevs; i++) {
		hz_info info, before;

		hz_device_info(devs[i].ctx, &info);
		if (i > 0)
			hz_device_info(devs[i - 1].ctx, &before);
		if (i > 0 && info.isa != before.isa) {
			free(first);
			first = NULL;
		}
		if (!first) {
			first = large_results(&devs[i], &n);
			if (devs[i].device == HZ_CPU)
				continue;
		}
		again = large_results(&devs[i], &k);
		same = memcmp(first, again, (size_t)n * sizeof(*first)) == 0;
		ok(same && k == n, "%s: the same bits as before", devs[i].name);
		free(again);
	}
	free(first);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void refuses(struct dev *dev, int status, int want, const char *sentence)
{
	is_int(status, want, "%s", sentence);
	has_str(hz_errmsg(dev->ctx), sentence, "its sentence");
}

static void test_errors(struct dev *dev)
{
	static float memory[4096];
	hz_context *c = dev->ctx;
	hz_tensor x = hz_tensor_3d(memory, HZ_F32, HZ_CPU, 2, 3, 4);
	hz_tensor w = hz_tensor_3d(memory + 100, HZ_F32, HZ_CPU, 5, 3, 4);
	hz_tensor b = hz_tensor_2d(memory + 200, HZ_F32, HZ_CPU, 5, 4);
	hz_tensor y = hz_tensor_3d(memory + 300, HZ_F32, HZ_CPU, 2, 5, 4), t = y;
	hz_tensor s = hz_tensor_2d(memory + 400, HZ_F32, HZ_CPU, 5, 3);
	hz_tensor g = hz_tensor_1d(memory + 500, HZ_F32, HZ_CPU, 3);
	int64_t is[] = { 1, 6, 6, 2, 4 }, ks[] = { 4, 3, 3, 2, 4 }, os[] = { 1, 4, 4, 4, 4 };
	hz_tensor image = hz_tensor_nd(memory + 600, HZ_F32, HZ_CPU, 5, is);
	hz_tensor kernel = hz_tensor_nd(memory + 1000, HZ_F32, HZ_CPU, 5, ks);
	hz_tensor out = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os), bad;
	hz_quat_linear_opts o = { 0 };
	hz_quat_conv_opts v = { 0 };
	hz_quat_batchnorm_opts n = { 0 };
	hz_quat_pool_opts p = { .window = { 2, 2 } };
	size_t bytes;

	if (dev->device != HZ_CPU)
		return;
	refuses(dev, hz_quat_linear(c, NULL, &w, &b, &y, NULL), HZ_EINVAL,
		"quat_linear: x is NULL, must be a view");
	refuses(dev, hz_quat_linear(c, &x, NULL, &b, &y, NULL), HZ_EINVAL,
		"quat_linear: w is NULL, must be a view");
	t.shape[1] = 4;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_ESHAPE,
		"quat_linear: y.shape[1] is 4, must be 5, as w");
	t = y;
	t.shape[2] = 3;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_ESHAPE,
		"quat_linear: y.shape[2] is 3, must be 4");
	t = y;
	t.dtype = HZ_F16;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_EDTYPE,
		"quat_linear: y.dtype is f16, must be f32");
	t = b;
	t.dtype = HZ_F64;
	refuses(dev, hz_quat_linear(c, &x, &w, &t, &y, NULL), HZ_EDTYPE,
		"quat_linear: b.dtype is f64, must be f32");
	t = y;
	t.data = memory + 2;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_EALIAS,
		"quat_linear: y overlaps x, must be apart from it");
	o.side = 2;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->side is 2, must be 0 to 1");
	o = (hz_quat_linear_opts){ .activation = 9 };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->activation is 9, must be 0 to 8");
	o = (hz_quat_linear_opts){ .flags = HZ_QUAT_ACCUMULATE };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: HZ_QUAT_ACCUMULATE is for the backward call");
	o = (hz_quat_linear_opts){ .flags = 1u << 30 };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->flags is 0x40000000, must be made of");
	o = (hz_quat_linear_opts){ .scale = &s };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->scale needs HZ_QUAT_ROTATION");
	o = (hz_quat_linear_opts){ .reserved = { 0, 1 } };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL, "opts->reserved[1] is 1");
	refuses(dev, hz_quat_linear_workspace(c, &x, &w, &b, &y, NULL, NULL), HZ_EINVAL,
		"quat_linear_workspace: bytes is NULL");
	refuses(dev, hz_quat_linear_bwd(c, NULL, &w, NULL, &y, NULL, &w, NULL, NULL), HZ_EINVAL,
		"quat_linear_bwd: x is NULL");
	refuses(dev, hz_quat_linear_bwd(c, &x, &w, NULL, &y, &x, NULL, NULL, NULL), HZ_EALIAS,
		"quat_linear_bwd: dx overlaps x");

	os[2] = 5;
	bad = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os);
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &bad, NULL), HZ_ESHAPE,
		"quat_conv: y.shape[2] is 5, must be 4, what the convolution makes of x.shape[2] = 6");
	v.groups = 3;
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_ESHAPE,
		"quat_conv: w.shape[0] is 4, must be a multiple of opts->groups");
	v.groups = 2;
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_ESHAPE,
		"quat_conv: x.shape[3] is 2, must be 4, w's last channels times groups");
	v = (hz_quat_conv_opts){ .stride = { 1, -1 } };
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_EINVAL,
		"quat_conv: opts->stride[1] is -1, must be 1 to");
	v = (hz_quat_conv_opts){ .pad = { 0, 0, 1 } };
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_EINVAL,
		"quat_conv: opts->pad[2] is 1, must be 0 to 0");
	v = (hz_quat_conv_opts){ .flags = HZ_QUAT_NOCONJ };
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_EINVAL,
		"quat_conv: HZ_QUAT_NOCONJ needs HZ_QUAT_TRANSPOSED");
	refuses(dev, hz_quat_conv(c, &x, &kernel, NULL, &out, NULL), HZ_ESHAPE,
		"quat_conv: x.ndim is 3, must be 4 to 6");

	/* Sizes that only an empty view or strides of 0 can have */
	t = hz_tensor_3d(memory, HZ_F32, HZ_CPU, 0, (int64_t)1 << 60, 4);
	refuses(dev, hz_quat_batchnorm_workspace(c, &t, NULL, NULL, &t, NULL, &bytes), HZ_ESHAPE,
		"quat_batchnorm: x is too large: its size overflows");
	t = hz_tensor_3d(memory, HZ_F32, HZ_CPU, (int64_t)1 << 60, 0, 4);
	refuses(dev, hz_quat_linear_workspace(c, &t, &w, NULL, &y, NULL, &bytes), HZ_ESHAPE,
		"quat_linear: x is too large: its size overflows");
	t = x;
	t.shape[0] = (int64_t)1 << 50;
	t.stride[0] = 0;
	refuses(dev, hz_quat_linear_workspace(c, &t, &w, NULL, &y, NULL, &bytes), HZ_ESHAPE,
		"quat_linear: x is too large: its size overflows");

	t = x;
	t.data = memory + 3000;
	refuses(dev, hz_quat_batchnorm(c, &x, &b, NULL, &t, NULL), HZ_ESHAPE,
		"quat_batchnorm: gamma.ndim is 2, must be 1");
	n.flags = HZ_QUAT_EVAL;
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: HZ_QUAT_EVAL needs opts->running_mean and running_var");
	n = (hz_quat_batchnorm_opts){ .eps = -1 };
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: opts->eps is -1, must be positive and finite");
	refuses(dev, hz_quat_batchnorm_bwd(c, &x, &g, &t, NULL, NULL, NULL, NULL), HZ_EINVAL,
		"quat_batchnorm_bwd: opts->saved is NULL");
	refuses(dev, hz_quat_pool(c, &image, &out, NULL, NULL), HZ_EINVAL,
		"quat_pool: opts is NULL, must have a window");
	refuses(dev, hz_quat_pool(c, &image, &out, NULL, &p), HZ_ESHAPE,
		"quat_pool: y.shape[3] is 4, must be 2, as x");
	p.pad[0] = 2;
	os[2] = 3;
	os[1] = 4;
	os[3] = 2;
	bad = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os);
	refuses(dev, hz_quat_pool(c, &image, &bad, NULL, &p), HZ_EINVAL,
		"quat_pool: opts->pad is 2, must be 0 to 1");
	t = x;
	t.data = memory + 3000;
	refuses(dev, hz_quat_dropout(c, &x, &t, 1.5, 0, 0), HZ_EINVAL,
		"quat_dropout: p is 1.5, must be 0 to 1");
	refuses(dev, hz_quat_init(c, &x, 3, 1, 0, 0, 0), HZ_EINVAL,
		"quat_init: distribution is 3, must be 0 to 2");
	refuses(dev, hz_quat_init(c, &x, 0, 0, 0, 0, 0), HZ_EINVAL,
		"quat_init: scale is 0, must be positive and finite");
	is_int(hz_quat_linear_workspace(c, &x, &w, &b, &y, NULL, &bytes), HZ_OK, "workspace");
}

int main(void)
{
	int i;

	rnd = tap_seed();
	dev_open_all();
	for (i = 0; i < ndevs; i++) {
		test_linear(&devs[i]);
		test_long(&devs[i]);
		test_conv(&devs[i]);
		test_wide_conv(&devs[i]);
		test_conv_of_scales(&devs[i]);
		test_norm(&devs[i]);
		test_pool(&devs[i]);
		test_dropout(&devs[i]);
		test_init(&devs[i]);
		test_cat(&devs[i]);
		test_far(&devs[i]);
	}
	test_bits();
	test_errors(&devs[0]);
	dev_close_all();
	return done_testing();
}
