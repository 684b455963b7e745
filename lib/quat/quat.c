/*
 * quat.c - elementwise quaternion operations: argument checks and plans
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/quat/quat.h"

#define PARTS_MAX 5

/*
 * An operand of the call. comps: size of its last dimension, 4, 3 or 1; 0: real numbers without
 * such a dimension. cut: trailing dimensions that are not part of the quaternion shape, including
 * that of the components.
 */
struct part {
	const char *name;
	const hz_tensor *t;
	struct hzi_quat_at *at;
	int comps, cut;
	bool empty;			/* strides have no meaning then */
};

/* ---- Checks ---------------------------------------------------------------------------------- */

static int check_flags(struct hz_context *ctx, const char *op, uint32_t flags, uint32_t allowed)
{
	static const struct hzi_flag list[] = {
		HZI_FLAG(HZ_QUAT_XYZW), HZI_FLAG(HZ_QUAT_CONJ_A), HZI_FLAG(HZ_QUAT_CONJ_B),
		HZI_FLAG(HZ_QUAT_REVERSED), HZI_FLAG(HZ_QUAT_ACCUMULATE),
		HZI_FLAG(HZ_QUAT_SQUARED), HZI_FLAG(HZ_QUAT_NORMALIZE), HZI_FLAG(HZ_QUAT_INVERSE),
		HZI_FLAG(HZ_QUAT_KEEP_SIGN),
		{0, NULL},
	};

	HZI_ENTER(ctx, op);
	return hzi_check_flags(ctx, op, "flags", flags, allowed, list);
}

/*
 * Checks one operand. dtype: an operand whose dtype it must have; NULL: any that the device
 * supports. comps: required size of the last dimension, 34 for 3 or 4, 41 for 4 or 1, 0 for no such
 * dimension.
 */
static int check_part(struct hz_context *ctx, const char *op, struct part *p, const char *name,
		      const hz_tensor *t, const hz_tensor *like, int comps, bool output)
{
	const int types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_F64, 0};
	const int same[] = {like ? like->dtype : 0, 0};
	int64_t size;

	HZ_CHECK(hzi_check(ctx, op, name, t, like ? same : types, output));
	if (t->dtype == HZ_F64 && ctx->device != HZ_CPU)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %s.dtype is f64, which only the CPU takes",
				op, name);
	*p = (struct part){.name = name, .t = t, .cut = comps != 0,
			   .empty = hz_tensor_count(t) == 0};
	if (comps == 0)
		return HZ_OK;
	if (t->ndim < 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is 0, must be 1 to %d", op, name,
				HZ_MAXDIM);
	size = t->shape[t->ndim - 1];
	if (size != 4 && !(comps == 34 && size == 3) && !(comps == 41 && size == 1))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be 4%s", op, name,
				t->ndim - 1, (long long)size,
				comps == 34   ? " or 3"
				: comps == 41 ? " or 1"
					      : "");
	p->comps = (int)size;
	return HZ_OK;
}

static int quat_dims(const struct part *p)
{
	return p->t->ndim - p->cut;
}

/* Size of p in dimension d of a shape of ndim dimensions; 1 where p has fewer */
static int64_t size_in(const struct part *p, int ndim, int d)
{
	const int own = d - (ndim - quat_dims(p));

	return own < 0 ? 1 : p->t->shape[own];
}

static int64_t stride_in(const struct part *p, int ndim, int d)
{
	const int own = d - (ndim - quat_dims(p));

	return size_in(p, ndim, d) == 1 || p->empty ? 0 : p->t->stride[own];
}

/* Checks that p has the quaternion shape of whole or, with repeated, that it broadcasts to it. */
static int check_shape(struct hz_context *ctx, const char *op, const struct part *whole,
		       const struct part *p, bool repeated)
{
	const int n = quat_dims(whole), own = quat_dims(p);

	if ((repeated ? own > n : own != n) && p->cut != whole->cut)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %s%d: %s has %d before "
				"its components", op, p->name, p->t->ndim,
				repeated ? "at most " : "", n + p->cut, whole->name, n);
	if (repeated ? own > n : own != n)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %s%d, as %s", op,
				p->name, p->t->ndim, repeated ? "at most " : "", n + p->cut,
				whole->name);
	for (int d = 0; d < n; d++) {
		const int64_t size = size_in(p, n, d), wanted = whole->t->shape[d];

		if (size != wanted && !(repeated && size == 1))
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, as %s%s", op,
					p->name, d - (n - own), (long long)size, (long long)wanted,
					whole->name, repeated ? ", or 1" : "");
	}
	return HZ_OK;
}

static int check_apart(struct hz_context *ctx, const char *op, const struct part *in,
		       const struct part *out)
{
	return hzi_check_apart(ctx, op, in->name, in->t, out->name, out->t);
}

static int check_apart_or_same(struct hz_context *ctx, const char *op, const struct part *in,
			       const struct part *out)
{
	return hzi_check_apart_or_same(ctx, op, in->name, in->t, out->name, out->t);
}

/* ---- Dimensions ------------------------------------------------------------------------------ */

static void set_data(struct hz_context *ctx, const struct part *p, uint32_t flags)
{
	const int last = p->t->ndim - 1;
	const int64_t step = p->comps && !p->empty ? p->t->stride[last] : 0;

	p->at->data = hzi_data(ctx, p->t);
	for (int c = 0; c < 4; c++)
		p->at->comp[c] = p->comps < 3 ? 0
			       : p->comps == 3 ? step * (c ? c - 1 : 0)
			       : flags & HZ_QUAT_XYZW ? step * ((c + 3) % 4)
						      : step * c;
}

/* Moves dimension `from` to position `to` <= from. */
static void move_dim(struct hzi_quat_dims *dims, const struct part *parts, int count, int from,
		     int to)
{
	const int64_t size = dims->shape[from];

	for (int d = from; d > to; d--)
		dims->shape[d] = dims->shape[d - 1];
	dims->shape[to] = size;
	for (int i = 0; i < count; i++) {
		int64_t *const s = parts[i].at->stride;
		const int64_t stride = s[from];

		for (int d = from; d > to; d--)
			s[d] = s[d - 1];
		s[to] = stride;
	}
}

/* Sort key of a dimension: |stride| of the first operand that has one other than 0 */
static uint64_t key(const struct part *parts, int count, int d)
{
	for (int i = 0; i < count; i++) {
		if (parts[i].at->stride[d])
			return hzi_quat_step(parts[i].at->stride[d]);
	}
	return 0;
}

/* Whether dimensions d and d + 1 are contiguous with each other in every operand */
static bool joins(const struct hzi_quat_dims *dims, const struct part *parts, int count, int d)
{
	for (int i = 0; i < count; i++) {
		const int64_t *const s = parts[i].at->stride;

		if (!hzi_continues(s[d], s[d + 1], dims->shape[d + 1]))
			return false;
	}
	return true;
}

/* Sorts dimensions begin .. *end - 1 by decreasing stride and merges contiguous ones. */
static void merge_dims(struct hzi_quat_dims *dims, const struct part *parts, int count, int begin,
		       int *end)
{
	for (int d = begin + 1; d < *end; d++) {
		int to = d;

		while (to > begin && key(parts, count, to - 1) < key(parts, count, d))
			to--;
		move_dim(dims, parts, count, d, to);
	}
	for (int d = *end - 2; d >= begin; d--) {
		if (!joins(dims, parts, count, d))
			continue;
		dims->shape[d + 1] *= dims->shape[d];
		for (int e = d; e < HZ_MAXDIM - 1; e++) {
			dims->shape[e] = dims->shape[e + 1];
			for (int i = 0; i < count; i++)
				parts[i].at->stride[e] = parts[i].at->stride[e + 1];
		}
		(*end)--;
	}
}

/*
 * Fills dims and the operands' strides for a call over the dimensions of whole; parts[0] is the
 * output. Dimensions in which the output is broadcast are summed over; so are `extra` elements,
 * with a stride for each operand, unless extra is 1. HZ_ESHAPE if the number of terms overflows.
 */
static int make_dims(struct hz_context *ctx, const char *op, struct hzi_quat_dims *dims,
		     const struct part *whole, const struct part *parts, int count, int64_t extra,
		     const int64_t *extra_step, uint32_t flags)
{
	const int n = quat_dims(whole);
	int64_t terms = 1, sums = 1;
	int all = 0, reduced;

	memset(dims, 0, sizeof(*dims));
	for (int i = 0; i < count; i++)
		set_data(ctx, &parts[i], flags);
	for (int pass = 0; pass < 2; pass++) {
		for (int d = 0; d < n; d++) {
			const int64_t size = whole->t->shape[d];
			const bool sum = size_in(&parts[0], n, d) == 1;

			if (size == 1 || sum != (pass == 1))
				continue;
			dims->shape[all] = size;
			for (int i = 0; i < count; i++)
				parts[i].at->stride[all] = stride_in(&parts[i], n, d);
			all++;
			if (!hzi_mul(terms, size, &terms))
				return hzi_fail(ctx, HZ_ESHAPE,
						"%s: the number of terms overflows", op);
			if (sum)
				sums *= size;
		}
		if (pass == 0)
			dims->kept = all;
	}
	if (extra != 1) {
		dims->shape[all] = extra;
		for (int i = 0; i < count; i++)
			parts[i].at->stride[all] = extra_step[i];
		all++;
		sums *= extra;
		if (!hzi_mul(terms, extra, &terms))
			return hzi_fail(ctx, HZ_ESHAPE, "%s: the number of terms overflows", op);
	}
	if (sums == 0) {
		all = dims->kept + 1;
		dims->shape[dims->kept] = 0;
	}
	reduced = all;
	merge_dims(dims, parts, count, dims->kept, &reduced);
	all = dims->kept;
	merge_dims(dims, parts, count, 0, &all);
	dims->ndim = reduced - (dims->kept - all);
	dims->kept = all;
	return HZ_OK;
}

/* ---- Products -------------------------------------------------------------------------------- */

#define MUL_FLAGS \
	(HZ_QUAT_XYZW | HZ_QUAT_CONJ_A | HZ_QUAT_CONJ_B | HZ_QUAT_REVERSED | HZ_QUAT_ACCUMULATE)

/* The factors in the order of multiplication, with their conjugations */
struct factors {
	struct part *left, *right;
	bool conj_left, conj_right;
};

static struct factors in_order(struct part *a, struct part *b, uint32_t flags)
{
	const bool conj_a = flags & HZ_QUAT_CONJ_A, conj_b = flags & HZ_QUAT_CONJ_B;

	return flags & HZ_QUAT_REVERSED ? (struct factors){b, a, conj_b, conj_a}
					: (struct factors){a, b, conj_a, conj_b};
}

int hz_quat_mul(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *y,
		uint32_t flags)
{
	static const char op[] = "quat_mul";
	struct hzi_quat_mul_args g = {0};
	struct part pa, pb, py;
	struct factors f;

	HZ_CHECK(check_flags(ctx, op, flags, MUL_FLAGS));
	HZ_CHECK(check_part(ctx, op, &pa, "a", a, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &pb, "b", b, a, 4, false));
	HZ_CHECK(check_part(ctx, op, &py, "y", y, a, 4, true));
	HZ_CHECK(check_shape(ctx, op, &py, &pa, true));
	HZ_CHECK(check_shape(ctx, op, &py, &pb, true));
	HZ_CHECK(check_apart_or_same(ctx, op, &pa, &py));
	HZ_CHECK(check_apart_or_same(ctx, op, &pb, &py));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	f = in_order(&pa, &pb, flags);
	py.at = &g.y;
	f.left->at = &g.a;
	f.right->at = &g.b;
	HZ_CHECK(make_dims(ctx, op, &g.dims, &py, (const struct part[]){py, *f.left, *f.right}, 3,
			   1, NULL, flags));
	g.dtype = y->dtype;
	g.conj_a = f.conj_left;
	g.conj_b = f.conj_right;
	g.accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
	return HZI_RUN(ctx, op, quat, quat_mul, &g);
}

/*
 * The calls of hz_quat_mul_bwd(): elementwise gradients in one, each gradient that is a sum fused
 * with it or in a call of its own
 */
struct mul_bwd {
	struct hzi_quat_mul_bwd_args both;
	struct hzi_quat_dot_args sum[2];	/* of the left factor, of the right one */
	bool any_both, any_sum[2];
};

static bool is_repeated(const struct part *whole, const struct part *p)
{
	const int n = quat_dims(whole);

	for (int d = 0; d < n; d++) {
		if (size_in(p, n, d) != whole->t->shape[d])
			return true;
	}
	return false;
}

static int mul_bwd_args(struct hz_context *ctx, const hz_tensor *a, const hz_tensor *b,
			const hz_tensor *dy, const hz_tensor *da, const hz_tensor *db,
			uint32_t flags, struct mul_bwd *m)
{
	static const char op[] = "quat_mul_bwd";
	struct part pdy, pa, pb, pda = {0}, pdb = {0}, list[PARTS_MAX];
	struct part *grad[2];
	struct factors f;
	int n = 0;

	memset(m, 0, sizeof(*m));
	HZ_CHECK(check_flags(ctx, op, flags, MUL_FLAGS));
	HZ_CHECK(check_part(ctx, op, &pa, "a", a, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &pb, "b", b, a, 4, false));
	HZ_CHECK(check_part(ctx, op, &pdy, "dy", dy, a, 4, false));
	HZ_CHECK(check_shape(ctx, op, &pdy, &pa, true));
	HZ_CHECK(check_shape(ctx, op, &pdy, &pb, true));
	if (da) {
		HZ_CHECK(check_part(ctx, op, &pda, "da", da, dy, 4, true));
		HZ_CHECK(hzi_check_same_shape(ctx, op, "a", a, "da", da));
		HZ_CHECK(check_apart(ctx, op, &pdy, &pda));
		HZ_CHECK(check_apart(ctx, op, &pa, &pda));
		HZ_CHECK(check_apart(ctx, op, &pb, &pda));
	}
	if (db) {
		HZ_CHECK(check_part(ctx, op, &pdb, "db", db, dy, 4, true));
		HZ_CHECK(hzi_check_same_shape(ctx, op, "b", b, "db", db));
		HZ_CHECK(check_apart(ctx, op, &pdy, &pdb));
		HZ_CHECK(check_apart(ctx, op, &pa, &pdb));
		HZ_CHECK(check_apart(ctx, op, &pb, &pdb));
		if (da)
			HZ_CHECK(check_apart(ctx, op, &pda, &pdb));
	}
	f = in_order(&pa, &pb, flags);
	grad[0] = f.left == &pa ? &pda : &pdb;
	grad[1] = f.left == &pa ? &pdb : &pda;
	for (int i = 0; i < 2; i++) {
		const struct part *of = i ? f.right : f.left;
		struct hzi_quat_dot_args *const s = &m->sum[i];

		if (!grad[i]->t || hz_tensor_count(grad[i]->t) == 0)
			continue;
		if (!is_repeated(&pdy, of)) {
			grad[i]->at = i ? &m->both.db : &m->both.da;
			list[n++] = *grad[i];
			m->any_both = true;
			continue;
		}
		/* left: cl(dy conj(cr(right))); right: cr(conj(cl(left)) dy) */
		grad[i]->at = &s->y;
		f.left->at = f.right->at = i ? &s->a : &s->b;
		pdy.at = i ? &s->b : &s->a;
		HZ_CHECK(make_dims(ctx, op, &s->dims, &pdy,
				   (const struct part[]){*grad[i], pdy, i ? *f.left : *f.right}, 3,
				   1, NULL, flags));
		s->dtype = dy->dtype;
		s->conj_a = i ? !f.conj_left : 0;
		s->conj_b = i ? 0 : !f.conj_right;
		s->conj_y = i ? f.conj_right : f.conj_left;
		s->accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
		m->any_sum[i] = true;
	}
	if (!m->any_both)
		return HZ_OK;
	pdy.at = &m->both.dy;
	f.left->at = &m->both.a;
	f.right->at = &m->both.b;
	list[n++] = pdy;
	list[n++] = *f.left;
	list[n++] = *f.right;
	HZ_CHECK(make_dims(ctx, op, &m->both.dims, &pdy, list, n, 1, NULL, flags));
	m->both.dtype = dy->dtype;
	m->both.conj_a = f.conj_left;
	m->both.conj_b = f.conj_right;
	m->both.accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
	/* Fuse a gradient that is a sum with the elementwise one. */
	for (int i = 0; i < 2; i++) {
		if (m->any_sum[i])
			m->both.sum = &m->sum[i];
		m->any_sum[i] = false;
	}
	return HZ_OK;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

int hz_quat_mul_bwd(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, const hz_tensor *dy,
		    hz_tensor *da, hz_tensor *db, uint32_t flags)
{
	struct mul_bwd m;
	size_t bytes = 0;

	HZ_CHECK(mul_bwd_args(ctx, a, b, dy, da, db, flags, &m));
	if (m.any_both)
		bytes = HZI_WORKSPACE(ctx, quat, quat_mul_bwd, &m.both);
	for (int i = 0; i < 2; i++) {
		if (m.any_sum[i])
			bytes = larger(bytes, HZI_WORKSPACE(ctx, quat, quat_dot, &m.sum[i]));
	}
	HZ_CHECK(hzi_workspace(ctx, "quat_mul_bwd", bytes));
	if (m.any_both)
		HZ_CHECK(HZI_CALL(ctx, quat, quat_mul_bwd, &m.both));
	for (int i = 0; i < 2; i++) {
		if (m.any_sum[i])
			HZ_CHECK(HZI_CALL(ctx, quat, quat_dot, &m.sum[i]));
	}
	return HZ_OK;
}

static int dot_args(struct hz_context *ctx, const hz_tensor *a, const hz_tensor *b,
		    const hz_tensor *y, uint32_t flags, struct hzi_quat_dot_args *g)
{
	static const char op[] = "quat_dot";
	struct part pa, pb, py;
	struct factors f;
	int64_t la, lb, step[3] = {0};

	memset(g, 0, sizeof(*g));
	HZ_CHECK(check_flags(ctx, op, flags, MUL_FLAGS));
	HZ_CHECK(check_part(ctx, op, &pa, "a", a, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &pb, "b", b, a, 4, false));
	HZ_CHECK(check_part(ctx, op, &py, "y", y, a, 41, true));
	if (a->ndim < 2 || b->ndim < 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is 1, must be 2 to %d", op,
				a->ndim < 2 ? "a" : "b", HZ_MAXDIM);
	la = a->shape[a->ndim - 2];
	lb = b->shape[b->ndim - 2];
	if (la != lb && la != 1 && lb != 1)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: b.shape[%d] is %lld, must be %lld, as a, or 1", op,
				b->ndim - 2, (long long)lb, (long long)la);
	pa.cut = pb.cut = 2;
	HZ_CHECK(check_shape(ctx, op, &py, &pa, true));
	HZ_CHECK(check_shape(ctx, op, &py, &pb, true));
	HZ_CHECK(check_apart(ctx, op, &pa, &py));
	HZ_CHECK(check_apart(ctx, op, &pb, &py));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	/* A dot product conjugates a; the flag cancels that. */
	f = in_order(&pa, &pb, flags ^ HZ_QUAT_CONJ_A);
	py.at = &g->y;
	f.left->at = &g->a;
	f.right->at = &g->b;
	step[f.left == &pa ? 1 : 2] = la == 1 ? 0 : a->stride[a->ndim - 2];
	step[f.left == &pa ? 2 : 1] = lb == 1 ? 0 : b->stride[b->ndim - 2];
	HZ_CHECK(make_dims(ctx, op, &g->dims, &py, (const struct part[]){py, *f.left, *f.right}, 3,
			   la == 1 ? lb : la, step, flags));
	g->dtype = y->dtype;
	g->conj_a = f.conj_left;
	g->conj_b = f.conj_right;
	g->accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
	g->real = py.comps == 1;
	return HZ_OK;
}

int hz_quat_dot(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *y,
		uint32_t flags)
{
	struct hzi_quat_dot_args g;

	HZ_CHECK(dot_args(ctx, a, b, y, flags, &g));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	return HZI_RUN(ctx, "quat_dot", quat, quat_dot, &g);
}

int hz_quat_axpy(hz_context *ctx, const double alpha[4], const hz_tensor *x, hz_tensor *y,
		 uint32_t flags)
{
	static const char op[] = "quat_axpy";
	struct hzi_quat_axpy_args g = {0};
	struct part px, py;

	HZ_CHECK(check_flags(ctx, op, flags, HZ_QUAT_XYZW | HZ_QUAT_REVERSED));
	if (!alpha)
		return hzi_fail(ctx, HZ_EINVAL, "%s: alpha is NULL, must be four numbers", op);
	HZ_CHECK(check_part(ctx, op, &px, "x", x, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &py, "y", y, x, 4, true));
	HZ_CHECK(check_shape(ctx, op, &py, &px, true));
	HZ_CHECK(check_apart_or_same(ctx, op, &px, &py));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	px.at = &g.x;
	py.at = &g.y;
	HZ_CHECK(make_dims(ctx, op, &g.dims, &py, (const struct part[]){py, px}, 2, 1, NULL,
			   flags));
	g.dtype = y->dtype;
	g.reversed = (flags & HZ_QUAT_REVERSED) != 0;
	memcpy(g.alpha, alpha, sizeof(g.alpha));
	return HZI_RUN(ctx, op, quat, quat_axpy, &g);
}

/* ---- Functions of one quaternion ------------------------------------------------------------- */

static int check_eps(struct hz_context *ctx, const char *op, double eps)
{
	if (!(eps >= 0) || !isfinite(eps))
		return hzi_fail(ctx, HZ_EINVAL, "%s: eps is %g, must be finite and not negative",
				op, eps);
	return HZ_OK;
}

static int map(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *y,
	       const char *y_name, int kind, double eps, uint32_t flags, uint32_t allowed)
{
	const bool real = kind == HZI_QUAT_NORM || kind == HZI_QUAT_NORM2;
	struct hzi_quat_map_args g = {.kind = kind, .eps = eps};
	struct part px, py;

	HZ_CHECK(check_flags(ctx, op, flags, allowed));
	HZ_CHECK(check_eps(ctx, op, eps));
	HZ_CHECK(check_part(ctx, op, &px, "x", x, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &py, y_name, y, x, real ? 0 : 4, true));
	HZ_CHECK(check_shape(ctx, op, &px, &py, false));
	HZ_CHECK(real ? check_apart(ctx, op, &px, &py) : check_apart_or_same(ctx, op, &px, &py));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	px.at = &g.x;
	py.at = &g.y;
	HZ_CHECK(make_dims(ctx, op, &g.dims, &px, (const struct part[]){py, px}, 2, 1, NULL,
			   flags));
	g.dtype = x->dtype;
	return HZI_RUN(ctx, op, quat, quat_map, &g);
}

static int map_bwd(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *dy,
		   const char *dy_name, const hz_tensor *dx, int kind, double eps, uint32_t flags,
		   uint32_t allowed)
{
	const bool real = kind == HZI_QUAT_NORM || kind == HZI_QUAT_NORM2;
	struct hzi_quat_map_bwd_args g = {.kind = kind, .eps = eps};
	struct part pdy, px, pdx;

	HZ_CHECK(check_flags(ctx, op, flags, allowed | HZ_QUAT_ACCUMULATE));
	HZ_CHECK(check_eps(ctx, op, eps));
	HZ_CHECK(check_part(ctx, op, &px, "x", x, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &pdy, dy_name, dy, x, real ? 0 : 4, false));
	HZ_CHECK(check_part(ctx, op, &pdx, "dx", dx, x, 4, true));
	HZ_CHECK(check_shape(ctx, op, &px, &pdy, false));
	HZ_CHECK(check_shape(ctx, op, &px, &pdx, false));
	HZ_CHECK(check_apart_or_same(ctx, op, &px, &pdx));
	HZ_CHECK(real ? check_apart(ctx, op, &pdy, &pdx)
		      : check_apart_or_same(ctx, op, &pdy, &pdx));
	if (hz_tensor_count(dx) == 0)
		return HZ_OK;
	pdy.at = &g.dy;
	px.at = &g.x;
	pdx.at = &g.dx;
	HZ_CHECK(make_dims(ctx, op, &g.dims, &px, (const struct part[]){pdx, pdy, px}, 3, 1, NULL,
			   flags));
	g.dtype = x->dtype;
	g.accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
	return HZI_RUN(ctx, op, quat, quat_map_bwd, &g);
}

static int norm_kind(uint32_t flags)
{
	return flags & HZ_QUAT_SQUARED ? HZI_QUAT_NORM2 : HZI_QUAT_NORM;
}

int hz_quat_conj(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags)
{
	return map(ctx, "quat_conj", x, y, "y", HZI_QUAT_CONJ, 0, flags, HZ_QUAT_XYZW);
}

int hz_quat_norm(hz_context *ctx, const hz_tensor *x, hz_tensor *n, uint32_t flags)
{
	return map(ctx, "quat_norm", x, n, "n", norm_kind(flags), 0, flags,
		   HZ_QUAT_XYZW | HZ_QUAT_SQUARED);
}

int hz_quat_norm_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *dn, hz_tensor *dx,
		     uint32_t flags)
{
	return map_bwd(ctx, "quat_norm_bwd", x, dn, "dn", dx, norm_kind(flags), 0, flags,
		       HZ_QUAT_XYZW | HZ_QUAT_SQUARED);
}

int hz_quat_normalize(hz_context *ctx, const hz_tensor *x, hz_tensor *y, double eps,
		      uint32_t flags)
{
	return map(ctx, "quat_normalize", x, y, "y", HZI_QUAT_NORMALIZE, eps, flags, HZ_QUAT_XYZW);
}

int hz_quat_normalize_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *dy,
			  hz_tensor *dx, double eps, uint32_t flags)
{
	return map_bwd(ctx, "quat_normalize_bwd", x, dy, "dy", dx, HZI_QUAT_NORMALIZE, eps, flags,
		       HZ_QUAT_XYZW);
}

int hz_quat_inverse(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags)
{
	return map(ctx, "quat_inverse", x, y, "y", HZI_QUAT_INVERSE, 0, flags, HZ_QUAT_XYZW);
}

int hz_quat_inverse_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *dy, hz_tensor *dx,
			uint32_t flags)
{
	return map_bwd(ctx, "quat_inverse_bwd", x, dy, "dy", dx, HZI_QUAT_INVERSE, 0, flags,
		       HZ_QUAT_XYZW);
}

/* ---- Rotation -------------------------------------------------------------------------------- */

#define ROTATE_FLAGS (HZ_QUAT_XYZW | HZ_QUAT_NORMALIZE | HZ_QUAT_INVERSE)

int hz_quat_rotate(hz_context *ctx, const hz_tensor *q, const hz_tensor *v, hz_tensor *y,
		   uint32_t flags)
{
	static const char op[] = "quat_rotate";
	struct hzi_quat_rotate_args g = {0};
	struct part pq, pv, py;

	HZ_CHECK(check_flags(ctx, op, flags, ROTATE_FLAGS));
	HZ_CHECK(check_part(ctx, op, &pq, "q", q, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &pv, "v", v, q, 34, false));
	HZ_CHECK(check_part(ctx, op, &py, "y", y, q, 34, true));
	HZ_CHECK(check_shape(ctx, op, &py, &pq, true));
	HZ_CHECK(check_shape(ctx, op, &py, &pv, true));
	HZ_CHECK(check_apart(ctx, op, &pq, &py));
	HZ_CHECK(check_apart_or_same(ctx, op, &pv, &py));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	pq.at = &g.q;
	pv.at = &g.v;
	py.at = &g.y;
	HZ_CHECK(make_dims(ctx, op, &g.dims, &py, (const struct part[]){py, pv, pq}, 3, 1, NULL,
			   flags));
	g.dtype = y->dtype;
	g.inverse = (flags & HZ_QUAT_INVERSE) != 0;
	g.normalize = (flags & HZ_QUAT_NORMALIZE) != 0;
	g.real = py.comps == 4;
	return HZI_RUN(ctx, op, quat, quat_rotate, &g);
}

/* One call for both gradients if neither is a sum, else one call each */
struct rotate_bwd {
	struct hzi_quat_rotate_bwd_args call[2];
	int calls;
};

static int rotate_bwd_args(struct hz_context *ctx, const hz_tensor *q, const hz_tensor *v,
			   const hz_tensor *dy, const hz_tensor *dq, const hz_tensor *dv,
			   uint32_t flags, struct rotate_bwd *r)
{
	static const char op[] = "quat_rotate_bwd";
	struct part pdy, pq, pv, pd[2] = {{0}}, list[PARTS_MAX];
	const struct part *of[2] = {&pq, &pv};
	bool wanted[2], apart;

	memset(r, 0, sizeof(*r));
	HZ_CHECK(check_flags(ctx, op, flags, ROTATE_FLAGS | HZ_QUAT_ACCUMULATE));
	HZ_CHECK(check_part(ctx, op, &pq, "q", q, NULL, 4, false));
	HZ_CHECK(check_part(ctx, op, &pv, "v", v, q, 34, false));
	HZ_CHECK(check_part(ctx, op, &pdy, "dy", dy, q, 34, false));
	HZ_CHECK(check_shape(ctx, op, &pdy, &pq, true));
	HZ_CHECK(check_shape(ctx, op, &pdy, &pv, true));
	if (dq) {
		HZ_CHECK(check_part(ctx, op, &pd[0], "dq", dq, dy, 4, true));
		HZ_CHECK(hzi_check_same_shape(ctx, op, "q", q, "dq", dq));
	}
	if (dv) {
		HZ_CHECK(check_part(ctx, op, &pd[1], "dv", dv, dy, 34, true));
		HZ_CHECK(hzi_check_same_shape(ctx, op, "v", v, "dv", dv));
	}
	for (int i = 0; i < 2; i++) {
		if (!pd[i].t)
			continue;
		HZ_CHECK(check_apart(ctx, op, &pdy, &pd[i]));
		HZ_CHECK(check_apart(ctx, op, &pq, &pd[i]));
		HZ_CHECK(check_apart(ctx, op, &pv, &pd[i]));
	}
	if (dq && dv)
		HZ_CHECK(check_apart(ctx, op, &pd[0], &pd[1]));
	for (int i = 0; i < 2; i++)
		wanted[i] = pd[i].t && hz_tensor_count(pd[i].t) > 0;
	apart = is_repeated(&pdy, of[0]) || is_repeated(&pdy, of[1]);
	for (int i = 0; i < 2; i++) {
		struct hzi_quat_rotate_bwd_args *const g = &r->call[r->calls];
		int n = 0;

		if (!wanted[i])
			continue;
		for (int j = i; j < (apart ? i + 1 : 2); j++) {
			if (!wanted[j])
				continue;
			pd[j].at = j ? &g->dv : &g->dq;
			list[n++] = pd[j];
			wanted[j] = false;
		}
		pdy.at = &g->dy;
		pq.at = &g->q;
		pv.at = &g->v;
		list[n++] = pdy;
		list[n++] = pq;
		list[n++] = pv;
		HZ_CHECK(make_dims(ctx, op, &g->dims, &pdy, list, n, 1, NULL, flags));
		g->dtype = dy->dtype;
		g->inverse = (flags & HZ_QUAT_INVERSE) != 0;
		g->normalize = (flags & HZ_QUAT_NORMALIZE) != 0;
		g->accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
		g->real = pd[1].comps == 4;
		r->calls++;
	}
	/* Fuse a gradient that is a sum with the other one unless both are sums. */
	for (int i = 0; r->calls == 2 && i < 2; i++) {
		const struct hzi_quat_dims *sum = &r->call[i].dims, *one = &r->call[1 - i].dims;

		if (sum->kept == sum->ndim || one->kept < one->ndim)
			continue;
		if (i == 0) {
			const struct hzi_quat_rotate_bwd_args first = r->call[0];

			r->call[0] = r->call[1];
			r->call[1] = first;
		}
		r->call[0].sum = &r->call[1];
		r->calls = 1;
	}
	return HZ_OK;
}

int hz_quat_rotate_bwd(hz_context *ctx, const hz_tensor *q, const hz_tensor *v,
		       const hz_tensor *dy, hz_tensor *dq, hz_tensor *dv, uint32_t flags)
{
	struct rotate_bwd r;
	size_t bytes = 0;

	HZ_CHECK(rotate_bwd_args(ctx, q, v, dy, dq, dv, flags, &r));
	for (int i = 0; i < r.calls; i++)
		bytes = larger(bytes, HZI_WORKSPACE(ctx, quat, quat_rotate_bwd, &r.call[i]));
	HZ_CHECK(hzi_workspace(ctx, "quat_rotate_bwd", bytes));
	for (int i = 0; i < r.calls; i++)
		HZ_CHECK(HZI_CALL(ctx, quat, quat_rotate_bwd, &r.call[i]));
	return HZ_OK;
}

/* ---- Conversions ----------------------------------------------------------------------------- */

/* An operand of a conversion: quaternions (4), vectors (3), matrices (9) or real numbers (1) */
struct convert_operand {
	const char *name;
	const hz_tensor *t;
	int parts;
};

static int check_numbers(struct hz_context *ctx, const char *op, struct part *p,
			 const struct convert_operand *o, const hz_tensor *like, bool output)
{
	const int cut = o->parts == 9 ? 2 : o->parts == 3;

	HZ_CHECK(check_part(ctx, op, p, o->name, o->t, like, o->parts == 4 ? 4 : 0, output));
	p->cut += cut;
	if (o->t->ndim < p->cut)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d to %d", op, o->name,
				o->t->ndim, p->cut, HZ_MAXDIM);
	for (int d = o->t->ndim - cut; d < o->t->ndim; d++) {
		if (o->t->shape[d] != 3)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be 3", op,
					o->name, d, (long long)o->t->shape[d]);
	}
	return HZ_OK;
}

/* Offsets of the numbers of an operand */
static void place_numbers(const hz_tensor *t, int parts, uint32_t flags, int64_t *comp)
{
	const int64_t *const s = t->stride + t->ndim;

	for (int c = 0; c < parts; c++)
		comp[c] = parts == 1   ? 0
			  : parts == 9 ? c / 3 * s[-2] + c % 3 * s[-1]
			  : parts == 3 ? c * s[-1]
				       : (flags & HZ_QUAT_XYZW ? (c + 3) % 4 : c) * s[-1];
}

/*
 * operand: the inputs of the kind, then the output. broadcast: inputs are repeated to the output,
 * which may be one of them; else shapes are equal. same: inputs that the output may be, as bits.
 */
static int convert(struct hz_context *ctx, const char *op, int kind, int inputs,
		   const struct convert_operand *operand, bool broadcast, unsigned same,
		   uint32_t flags, uint32_t allowed)
{
	struct hzi_quat_convert_args g = {.kind = kind, .inputs = inputs};
	struct part part[HZI_QUAT_CONVERT_INPUTS + 1], list[HZI_QUAT_CONVERT_INPUTS + 1] = {{0}};
	int whole = inputs;

	HZ_CHECK(check_flags(ctx, op, flags, allowed));
	for (int i = 0; i <= inputs; i++) {
		HZ_CHECK(check_numbers(ctx, op, &part[i], &operand[i], i ? operand[0].t : NULL,
				       i == inputs));
		/* Matrices have the most dimensions. */
		if (operand[i].parts == 9)
			whole = i;
	}
	for (int i = 0; i <= inputs; i++)
		HZ_CHECK(check_shape(ctx, op, &part[whole], &part[i], broadcast));
	for (int i = 0; i < inputs; i++)
		HZ_CHECK(same >> i & 1 ? check_apart_or_same(ctx, op, &part[i], &part[inputs])
				       : check_apart(ctx, op, &part[i], &part[inputs]));
	if (hz_tensor_count(operand[inputs].t) == 0)
		return HZ_OK;
	for (int i = 0; i <= inputs; i++) {
		part[i].at = &g.at[i];
		list[i == inputs ? 0 : i + 1] = part[i];
		g.parts[i] = operand[i].parts;
	}
	HZ_CHECK(make_dims(ctx, op, &g.dims, &part[whole], list, inputs + 1, 1, NULL, flags));
	for (int i = 0; i <= inputs; i++)
		place_numbers(operand[i].t, g.parts[i], flags, g.comp[i]);
	g.dtype = operand[0].t->dtype;
	g.accumulate = (flags & HZ_QUAT_ACCUMULATE) != 0;
	g.keep = (flags & HZ_QUAT_KEEP_SIGN) != 0;
	HZ_CHECK(hzi_workspace(ctx, op, HZI_WORKSPACE(ctx, quat, quat_convert, &g)));
	return HZI_CALL(ctx, quat, quat_convert, &g);
}

#define OPERANDS(...) (const struct convert_operand[]){__VA_ARGS__}

int hz_quat_to_matrix(hz_context *ctx, const hz_tensor *q, hz_tensor *m, uint32_t flags)
{
	return convert(ctx, "quat_to_matrix", HZI_QUAT_TO_MATRIX, 1,
		       OPERANDS({"q", q, 4}, {"m", m, 9}), false, 0, flags, HZ_QUAT_XYZW);
}

int hz_quat_to_matrix_bwd(hz_context *ctx, const hz_tensor *q, const hz_tensor *dm,
			  hz_tensor *dq, uint32_t flags)
{
	return convert(ctx, "quat_to_matrix_bwd", HZI_QUAT_TO_MATRIX_BWD, 2,
		       OPERANDS({"q", q, 4}, {"dm", dm, 9}, {"dq", dq, 4}), false, 1, flags,
		       HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE);
}

int hz_quat_from_matrix(hz_context *ctx, const hz_tensor *m, hz_tensor *q, uint32_t flags)
{
	return convert(ctx, "quat_from_matrix", HZI_QUAT_FROM_MATRIX, 1,
		       OPERANDS({"m", m, 9}, {"q", q, 4}), false, 0, flags, HZ_QUAT_XYZW);
}

int hz_quat_from_matrix_bwd(hz_context *ctx, const hz_tensor *m, const hz_tensor *dq,
			    hz_tensor *dm, uint32_t flags)
{
	return convert(ctx, "quat_from_matrix_bwd", HZI_QUAT_FROM_MATRIX_BWD, 2,
		       OPERANDS({"m", m, 9}, {"dq", dq, 4}, {"dm", dm, 9}), false, 1, flags,
		       HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE);
}

int hz_quat_to_axis_angle(hz_context *ctx, const hz_tensor *q, hz_tensor *r, uint32_t flags)
{
	return convert(ctx, "quat_to_axis_angle", HZI_QUAT_TO_AXIS_ANGLE, 1,
		       OPERANDS({"q", q, 4}, {"r", r, 3}), false, 0, flags, HZ_QUAT_XYZW);
}

int hz_quat_from_axis_angle(hz_context *ctx, const hz_tensor *r, hz_tensor *q, uint32_t flags)
{
	return convert(ctx, "quat_from_axis_angle", HZI_QUAT_FROM_AXIS_ANGLE, 1,
		       OPERANDS({"r", r, 3}, {"q", q, 4}), false, 0, flags, HZ_QUAT_XYZW);
}

int hz_quat_exp(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags)
{
	return convert(ctx, "quat_exp", HZI_QUAT_EXP, 1, OPERANDS({"x", x, 4}, {"y", y, 4}), false,
		       1, flags, HZ_QUAT_XYZW);
}

int hz_quat_log(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags)
{
	return convert(ctx, "quat_log", HZI_QUAT_LOG, 1, OPERANDS({"x", x, 4}, {"y", y, 4}), false,
		       1, flags, HZ_QUAT_XYZW);
}

int hz_quat_slerp(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, const hz_tensor *t,
		  hz_tensor *y, uint32_t flags)
{
	return convert(ctx, "quat_slerp", HZI_QUAT_SLERP, 3,
		       OPERANDS({"a", a, 4}, {"b", b, 4}, {"t", t, 1}, {"y", y, 4}), true, 3,
		       flags, HZ_QUAT_XYZW | HZ_QUAT_KEEP_SIGN);
}
