/*
 * quat.h - operands of quaternion calls in any layout, their algebra, and a runner of calls
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * References are in long double, so that f64 results can be checked too.
 */
#ifndef QUAT_H
#define QUAT_H

#include "hurwitz.h"
#include "t/core/dev.h"
#include "t/core/record.h"

typedef long double real;

/* ---- The algebra ----------------------------------------------------------------------------- */

typedef struct {
	real c[4];			/* w, x, y, z */
} quat;

static inline quat q_mul(quat a, quat b)
{
	const real *p = a.c, *q = b.c;

	return (quat){{p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3],
		       p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2],
		       p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1],
		       p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0]}};
}

static inline quat q_conj(quat a)
{
	return (quat){{a.c[0], -a.c[1], -a.c[2], -a.c[3]}};
}

static inline quat q_conj_if(int wanted, quat a)
{
	return wanted ? q_conj(a) : a;
}

static inline quat q_add(quat a, quat b)
{
	return (quat){{a.c[0] + b.c[0], a.c[1] + b.c[1], a.c[2] + b.c[2], a.c[3] + b.c[3]}};
}

static inline quat q_scale(quat a, real s)
{
	return (quat){{a.c[0] * s, a.c[1] * s, a.c[2] * s, a.c[3] * s}};
}

static inline real q_inner(quat a, quat b)
{
	return a.c[0] * b.c[0] + a.c[1] * b.c[1] + a.c[2] * b.c[2] + a.c[3] * b.c[3];
}

static inline real q_norm(quat a)
{
	return sqrtl(q_inner(a, a));
}

/* ---- Operands -------------------------------------------------------------------------------- */

struct side {
	int dtype, ndim;
	int64_t shape[HZ_MAXDIM], stride[HZ_MAXDIM], count, low;
	size_t bytes, total, skew;
	unsigned char *image;		/* guards, padding and elements */
	real *value;			/* elements in C order */
};

static inline real side_get(int dtype, const void *p, int64_t i)
{
	return dtype == HZ_F64 ? (real)((const double *)p)[i] : (real)ref_get(dtype, p, i);
}

static inline void side_put(int dtype, void *p, int64_t i, real v)
{
	if (dtype == HZ_F64)
		((double *)p)[i] = (double)v;
	else
		ref_put(dtype, p, i, (double)v);
}

static inline void *side_origin(const struct side *s, unsigned char *image)
{
	return image + GUARD + s->skew - s->low * (int64_t)hz_dtype_size(s->dtype);
}

static inline int64_t side_offset(const struct side *s, int64_t i)
{
	int64_t at = 0;

	for (int d = s->ndim - 1; d >= 0; d--) {
		at += i % s->shape[d] * s->stride[d];
		i /= s->shape[d];
	}
	return at;
}

/* Random strides. kind 1: contiguous, 2: planar, 3: planar in blocks, 0: random */
static inline void side_layout(struct side *s, uint64_t *rnd, int kind)
{
	int64_t order[HZ_MAXDIM], permuted[HZ_MAXDIM], strides[HZ_MAXDIM], pad = 0;
	const int n = s->ndim;

	for (int d = 0; d < n; d++)
		order[d] = d;
	if (kind == 0 && n) {
		kind = 1 + (int)rnd_below(rnd, 5);
		pad = rnd_below(rnd, 3) ? 0 : rnd_below(rnd, 6);
	}
	if (kind == 2 && n) {
		/* components first: planar */
		for (int d = 1; d < n; d++)
			order[d] = d - 1;
		order[0] = n - 1;
	} else if (kind == 3 && n > 1) {
		/* components before the last dimension */
		order[n - 2] = n - 1;
		order[n - 1] = n - 2;
	} else if (kind == 4) {
		for (int d = n - 1; d > 0; d--) {
			const int e = (int)rnd_below(rnd, d + 1);
			const int64_t t = order[d];

			order[d] = order[e];
			order[e] = t;
		}
	}
	for (int d = 0; d < n; d++)
		permuted[d] = s->shape[order[d]];
	lay_out(n, permuted, pad, strides);
	for (int d = 0; d < n; d++)
		s->stride[order[d]] = strides[d];
	if (kind >= 4 && n && rnd_below(rnd, 3) == 0)
		s->stride[rnd_below(rnd, n)] *= -1;
}

static inline struct side side_new(uint64_t *rnd, int dtype, int ndim, const int64_t *shape,
				   int kind)
{
	struct side s = {.dtype = dtype, .ndim = ndim, .count = 1};
	int64_t high;
	void *data;

	for (int d = 0; d < ndim; d++) {
		s.shape[d] = shape[d];
		s.count *= shape[d];
	}
	side_layout(&s, rnd, kind);
	reach(ndim, s.shape, s.stride, &s.low, &high);
	if (s.count == 0)
		s.low = high = 0;
	s.bytes = (size_t)(high - s.low) * hz_dtype_size(dtype);
	s.skew = rnd_below(rnd, 3) ? 0 : (size_t)rnd_below(rnd, 16) * hz_dtype_size(dtype);
	s.total = GUARD + s.skew + s.bytes + GUARD;
	s.image = image_new(s.bytes, s.skew, &data);
	s.value = calloc((size_t)s.count + 1, sizeof(real));
	return s;
}

static inline void side_set(struct side *s, int64_t i, real v)
{
	void *origin = side_origin(s, s->image);

	side_put(s->dtype, origin, side_offset(s, i), v);
	s->value[i] = side_get(s->dtype, origin, side_offset(s, i));
}

static inline void side_random(struct side *s, uint64_t *rnd, double scale)
{
	for (int64_t i = 0; i < s->count; i++)
		side_set(s, i, (real)(rnd_normal(rnd) * scale));
}

static inline void side_free(struct side *s)
{
	free(s->image);
	free(s->value);
}

static inline hz_tensor side_view(const struct side *s, const struct area *a)
{
	hz_tensor t = hz_tensor_nd((char *)a->data - s->low * (int64_t)hz_dtype_size(s->dtype),
				   s->dtype, a->dev->device, s->ndim, s->shape);

	memcpy(t.stride, s->stride, sizeof(t.stride));
	return t;
}

/* Element i in C order: a quaternion, or a vector of three numbers with the real part 0 */
static inline quat side_quat(const struct side *s, int64_t i, int xyzw)
{
	const int64_t parts = s->shape[s->ndim - 1];
	const real *v = s->value + i * parts;

	if (parts == 3)
		return (quat){{0, v[0], v[1], v[2]}};
	return xyzw ? (quat){{v[3], v[0], v[1], v[2]}} : (quat){{v[0], v[1], v[2], v[3]}};
}

/*
 * The index of the element of s that broadcasting pairs with element i of the shape `full`, which
 * has n dimensions without the components. cut: trailing dimensions of s that are not part of its
 * shape.
 */
static inline int64_t side_broadcast(const struct side *s, int cut, int n, const int64_t *full,
				  int64_t i)
{
	const int own = s->ndim - cut;
	int64_t at = 0, step = 1;

	for (int d = n - 1; d >= n - own; d--) {
		const int64_t size = s->shape[d - (n - own)];

		at += size == 1 ? 0 : i % full[d] * step;
		step *= size;
		i /= full[d];
	}
	return at;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

#define SIDES 5

/* A call from ins[] to outs[], with expected values and tolerances in C order. same[o]: output o is
 * in place in ins[same[o]]; -1: it has memory of its own. */
struct quat_call {
	struct side *ins[SIDES], *outs[SIDES];
	int nins, nouts, same[SIDES];
	real *want[SIDES];
	double *tol[SIDES];
	int (*run)(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg);
	const void *arg;
	const char *what;
};

/* Compares elements with want, and checks that no other byte changed. */
static inline int side_check(const struct side *s, unsigned char *got, const real *want,
			     const double *tol, const char *what, const char *name)
{
	const size_t size = hz_dtype_size(s->dtype);
	int good = 1;

	for (int64_t i = 0; i < s->count; i++) {
		const int64_t at = side_offset(s, i);
		char *const p = (char *)side_origin(s, got) + at * (int64_t)size;
		const real g = side_get(s->dtype, side_origin(s, got), at), w = want[i];
		const int same = isnan(w) ? isnan(g)
				 : isinf(w) || isinf(g)
					 ? g == w || isinf(tol[i])
					 : fabsl(g - w) <= (real)tol[i];

		if (!same && good && tap_describe())
			diag("%s, %s: [%lld] of %lld: got %.9Lg, want %.9Lg, allowed %.3g", what,
			     name, (long long)i, (long long)s->count, g, w, tol[i]);
		good &= same;
		memcpy(p, (char *)side_origin(s, s->image) + at * (int64_t)size, size);
	}
	if (good && memcmp(got, s->image, s->total) != 0) {
		diag("%s, %s: bytes that are no elements changed", what, name);
		good = 0;
	}
	return good;
}

/* Makes the call once in a context. got: images of the outputs, which the caller frees. */
static inline int quat_call_on(const struct quat_call *c, struct dev *dev,
			       unsigned char *got[SIDES])
{
	struct area in[SIDES], out[SIDES];
	hz_tensor ti[SIDES], to[SIDES];
	size_t bytes = 0;
	int st;

	for (int i = 0; i < c->nins; i++) {
		in[i] = area_new(dev, c->ins[i]->bytes, c->ins[i]->skew);
		area_write(&in[i], c->ins[i]->image);
		ti[i] = side_view(c->ins[i], &in[i]);
	}
	for (int o = 0; o < c->nouts; o++) {
		if (!c->outs[o])
			continue;
		if (c->same[o] >= 0) {
			to[o] = ti[c->same[o]];
			continue;
		}
		out[o] = area_new(dev, c->outs[o]->bytes, c->outs[o]->skew);
		area_write(&out[o], c->outs[o]->image);
		to[o] = side_view(c->outs[o], &out[o]);
	}
	st = RECORD(dev->ctx, c->run(dev->ctx, ti, to, c->arg), &bytes);
	if (!st)
		st = hz_reserve(dev->ctx, bytes);
	if (!st)
		st = c->run(dev->ctx, ti, to, c->arg);
	if (!st)
		st = hz_sync(dev->ctx);
	if (st)
		diag("%s, %s: %s", c->what, dev->name, hz_errmsg(dev->ctx));
	for (int o = 0; o < c->nouts; o++) {
		const struct area *a = c->same[o] >= 0 ? &in[c->same[o]] : &out[o];

		got[o] = NULL;
		if (!c->outs[o])
			continue;
		got[o] = malloc(a->total);
		area_read(a, got[o]);
		if (c->same[o] < 0)
			area_free(&out[o]);
	}
	for (int i = 0; i < c->nins; i++)
		area_free(&in[i]);
	return st;
}

/* Checks a call in every context: results within the tolerances, and the same bits for any number
 * of threads and when repeated. Forced routes may give other bits. */
static inline int quat_call_check(const struct quat_call *c)
{
	unsigned char *first[SIDES] = {NULL};
	int first_isa = 0, good = 1;

	for (int d = 0; d < ndevs && good; d++) {
		struct dev *dev = &devs[d];
		const int again = dev->device != HZ_CPU;
		unsigned char *got[SIDES];
		hz_info info;

		hz_device_info(dev->ctx, &info);
		for (int round = 0; round <= again && good; round++) {
			good = quat_call_on(c, dev, got) == HZ_OK;
			for (int o = 0; o < c->nouts; o++) {
				if (!got[o])
					continue;
				if (good && first[o] &&
				    (round || (first_isa == info.isa && !dev->ctx->any_forced)))
					good = same_bits(got[o], first[o], c->outs[o]->total, 1);
				if (!good)
					diag("%s, %s: out %d", c->what, dev->name, o);
				free(first[o]);
				first[o] = malloc(c->outs[o]->total);
				memcpy(first[o], got[o], c->outs[o]->total);
				if (good)
					good = side_check(c->outs[o], got[o], c->want[o], c->tol[o],
							  c->what, dev->name);
				free(got[o]);
			}
			first_isa = info.isa;
		}
	}
	for (int o = 0; o < SIDES; o++)
		free(first[o]);
	return good;
}

static inline void begin_call(struct quat_call *c)
{
	for (int o = 0; o < c->nouts; o++) {
		if (!c->outs[o])
			continue;
		c->want[o] = calloc((size_t)c->outs[o]->count + 1, sizeof(real));
		c->tol[o] = calloc((size_t)c->outs[o]->count + 1, sizeof(double));
	}
}

static inline int end_call(struct quat_call *c)
{
	const int good = quat_call_check(c);

	for (int o = 0; o < c->nouts; o++) {
		free(c->want[o]);
		free(c->tol[o]);
	}
	return good;
}

/* Opens contexts of which the i-th forces route i of each elementwise operation. */
static inline void dev_open_quat_routes(void)
{
	static const enum hzi_op ops[] = {
		HZI_OP_quat_mul, HZI_OP_quat_dot, HZI_OP_quat_axpy, HZI_OP_quat_map,
		HZI_OP_quat_map_bwd, HZI_OP_quat_rotate, HZI_OP_quat_rotate_bwd,
	};
	const int first = ndevs;

	dev_open_routes(HZI_OP_quat_mul_bwd);	/* the operation with the most routes */
	for (size_t o = 0; first < ndevs && o < sizeof(ops) / sizeof(*ops); o++) {
		const struct hzi_op_routes *const r =
			hzi_routes_of(ops[o], devs[first].ctx->backend);

		for (int i = 0; r && i < r->count && first + i < ndevs; i++)
			devs[first + i].ctx->forced[ops[o]] = &r->route[i];
	}
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

static inline double unit_of(int dtype)
{
	return dtype == HZ_F64 ? 0x1p-53 : 0x1p-24;
}

/* The error after rounding v to dtype, subnormals included, given an earlier error */
static inline double rounding(int dtype, real v, double error)
{
	const double a = fabs((double)v) + error;

	if (!isfinite(a))
		return INFINITY;
	/* Beyond the largest number, or so close that an intermediate result may be */
	if (a > (dtype == HZ_F16 ? 65000 : dtype == HZ_F64 ? 1e308 : 3.3e38))
		return INFINITY;
	return dtype == HZ_F64 ? a * 0x1p-53 + 0x1p-1074 : ref_half_ulp(dtype, a) * 1.001;
}

static const int quat_dtypes[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_F64};

static inline int random_dtype(uint64_t *rnd)
{
	return quat_dtypes[rnd_below(rnd, tap_cuda() ? 3 : 4)];
}

/* Sizes at the edges of vectors and tiles; small ones are more frequent */
static inline int64_t random_size(uint64_t *rnd, int64_t most)
{
	static const int64_t edge[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65};
	const int64_t size = rnd_below(rnd, 4) ? edge[rnd_below(rnd, 17)]
					       : 1 + rnd_below(rnd, most);

	return size < most ? size : most;
}

/* ---- Functions of one quaternion ------------------------------------------------------------- */

enum kind { CONJ, NORM, NORM2, NORMALIZE, INVERSE, KINDS };

static const char *const kind_names[] = {"conj", "norm", "norm2", "normalize", "inverse"};

struct map_arg {
	int kind;
	double eps;
	uint32_t flags;
};

static inline int run_map(hz_context *ctx, const hz_tensor *in, hz_tensor *out,
			  const void *arg)
{
	const struct map_arg *m = arg;

	switch (m->kind) {
	case CONJ:
		return hz_quat_conj(ctx, in, out, m->flags);
	case NORM:
		return hz_quat_norm(ctx, in, out, m->flags);
	case NORM2:
		return hz_quat_norm(ctx, in, out, m->flags | HZ_QUAT_SQUARED);
	case NORMALIZE:
		return hz_quat_normalize(ctx, in, out, m->eps, m->flags);
	default:
		return hz_quat_inverse(ctx, in, out, m->flags);
	}
}

static inline int run_map_bwd(hz_context *ctx, const hz_tensor *in, hz_tensor *out,
			      const void *arg)
{
	const struct map_arg *m = arg;

	switch (m->kind) {
	case NORM:
		return hz_quat_norm_bwd(ctx, &in[0], &in[1], out, m->flags);
	case NORM2:
		return hz_quat_norm_bwd(ctx, &in[0], &in[1], out, m->flags | HZ_QUAT_SQUARED);
	case NORMALIZE:
		return hz_quat_normalize_bwd(ctx, &in[0], &in[1], out, m->eps, m->flags);
	default:
		return hz_quat_inverse_bwd(ctx, &in[0], &in[1], out, m->flags);
	}
}

#endif
