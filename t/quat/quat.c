/*
 * quat.c - elementwise quaternion operations against their definitions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/quat/quat.h"

static uint64_t rnd;
static int quick;

static int cases(int n)
{
	return quick ? n / 10 + 1 : n;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* Size of the only dimension, or 0: random shapes; -1: 1 or 2 for each operand. fixed_kind: a
 * layout of side_layout(). */
static int64_t fixed_size;
static int fixed_kind;
/* Unless 0: all gradients are requested, and factor fixed_one (1 or 2) is broadcast. */
static int fixed_one, fixed_one_calls;

/* A random shape of quaternions, and one that broadcasts to it */
static int random_shape(int64_t *shape, int most_dims, int64_t elements)
{
	const int n = (int)rnd_below(&rnd, most_dims + 1);

	if (fixed_size) {
		shape[0] = fixed_size;
		return 1;
	}
	for (int d = n - 1; d >= 0; d--) {
		shape[d] = random_size(&rnd, elements < 200 ? elements : 200);
		elements /= shape[d];
		elements = elements > 0 ? elements : 1;
	}
	if (n && rnd_below(&rnd, 40) == 0)
		shape[rnd_below(&rnd, n)] = 0;
	return n;
}

static int broadcast_shape(int n, const int64_t *full, int64_t *shape)
{
	const int drop = rnd_below(&rnd, 3) || fixed_size ? 0 : (int)rnd_below(&rnd, n + 1);

	if (fixed_one) {
		shape[0] = fixed_one_calls++ % 2 + 1 == fixed_one ? 1 : full[0];
		return n;
	}
	for (int d = drop; d < n; d++)
		shape[d - drop] = rnd_below(&rnd, 3) || fixed_size ? full[d] : 1;
	return n - drop;
}

static int64_t product(int n, const int64_t *shape)
{
	int64_t count = 1;

	for (int d = 0; d < n; d++)
		count *= shape[d];
	return count;
}

static struct side new_side(int dtype, int n, const int64_t *shape, int comps)
{
	int64_t all[HZ_MAXDIM];
	struct side s;

	memcpy(all, shape, (size_t)n * sizeof(*all));
	if (comps)
		all[n++] = comps;
	s = side_new(&rnd, dtype, n, all,
		     fixed_kind < 0 ? 1 + (int)rnd_below(&rnd, 2) : fixed_kind);
	side_random(&s, &rnd, 1);
	return s;
}

static const char *describe(const char *op, int dtype, uint32_t flags, const struct side *a,
			    const struct side *b)
{
	static char text[300];
	size_t used = (size_t)snprintf(text, sizeof(text), "%s %s flags %u", op,
				       hz_dtype_name(dtype), flags);

	for (int i = 0; i < 2; i++) {
		const struct side *s = i ? b : a;

		for (int d = 0; s && d < s->ndim; d++)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%lld/%lld",
						 d ? "," : " [", (long long)s->shape[d],
						 (long long)s->stride[d]);
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s", s ? "]" : "");
	}
	return text;
}

/* The expected value of element i of an output: components, order and tolerance */
static void expect(struct quat_call *c, int o, int64_t i, int first, int last, quat v, double error,
		   int xyzw, int accumulate)
{
	const struct side *s = c->outs[o];
	const int64_t parts = last == 0 ? 1 : last - first + 1;

	for (int k = first; k <= last; k++) {
		const int64_t at = i * parts + (parts == 4 ? (xyzw ? (k + 3) % 4 : k) : k - first);
		const real old = accumulate ? s->value[at] : 0;
		const double e = error + (accumulate ? 2 * unit_of(s->dtype) *
							       fabs((double)(old + v.c[k])) : 0);

		c->want[o][at] = old + v.c[k];
		c->tol[o][at] = e + rounding(s->dtype, c->want[o][at], e);
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

static int run_mul(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	return hz_quat_mul(ctx, &in[0], &in[1], out, *(const uint32_t *)arg);
}

#define MUL_FLAGS \
	(HZ_QUAT_XYZW | HZ_QUAT_CONJ_A | HZ_QUAT_CONJ_B | HZ_QUAT_REVERSED | HZ_QUAT_ACCUMULATE)

static quat product_of(quat a, quat b, uint32_t flags)
{
	a = q_conj_if(flags & HZ_QUAT_CONJ_A, a);
	b = q_conj_if(flags & HZ_QUAT_CONJ_B, b);
	return flags & HZ_QUAT_REVERSED ? q_mul(b, a) : q_mul(a, b);
}

static int one_mul(int most_dims, int64_t elements)
{
	const int dtype = random_dtype(&rnd), same = (int)rnd_below(&rnd, 6) - 3;
	const uint32_t flags = (uint32_t)rnd_u64(&rnd) & MUL_FLAGS;
	int64_t shape[HZ_MAXDIM], sa[HZ_MAXDIM], sb[HZ_MAXDIM];
	const int n = random_shape(shape, most_dims, elements);
	const int na = same == 0 ? n : broadcast_shape(n, shape, sa);
	const int nb = same == 1 ? n : broadcast_shape(n, shape, sb);
	struct side a = new_side(dtype, na, same == 0 ? shape : sa, 4);
	struct side b = new_side(dtype, nb, same == 1 ? shape : sb, 4);
	struct side y = new_side(dtype, n, shape, 4);
	struct quat_call c = {.ins = {&a, &b}, .nins = 2, .outs = {&y}, .nouts = 1, .run = run_mul,
			      .arg = &flags};
	const int64_t count = product(n, shape);
	int good, xyzw = flags & HZ_QUAT_XYZW;

	c.same[0] = same == 0 || same == 1 ? same : -1;
	if (c.same[0] >= 0)
		c.outs[0] = c.ins[same];
	c.what = describe("mul", dtype, flags, &a, &b);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const quat p = side_quat(&a, side_broadcast(&a, 1, n, shape, i), xyzw);
		const quat q = side_quat(&b, side_broadcast(&b, 1, n, shape, i), xyzw);

		expect(&c, 0, i, 0, 3, product_of(p, q, flags),
		       4 * unit_of(dtype) * (double)(q_norm(p) * q_norm(q)), xyzw,
		       flags & HZ_QUAT_ACCUMULATE);
	}
	good = end_call(&c);
	side_free(&a);
	side_free(&b);
	side_free(&y);
	return good;
}

/* Flags, and which gradients are requested */
struct mul_bwd_arg {
	uint32_t flags;
	int wanted;
};

static int run_mul_bwd(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	const struct mul_bwd_arg *m = arg;

	return hz_quat_mul_bwd(ctx, &in[0], &in[1], &in[2], m->wanted & 1 ? &out[0] : NULL,
			       m->wanted & 2 ? &out[1] : NULL, m->flags);
}

/* Sums and their magnitudes, for outputs that are broadcast */
struct sums {
	quat *sum;
	double *size;
};

static struct sums sums_new(int64_t count)
{
	return (struct sums){calloc((size_t)count + 1, sizeof(quat)),
			     calloc((size_t)count + 1, sizeof(double))};
}

static void sums_add(struct sums *s, int64_t i, quat v, double size)
{
	s->sum[i] = q_add(s->sum[i], v);
	s->size[i] += size;
}

static void sums_expect(struct quat_call *c, int o, struct sums *s, int64_t count, int first,
			int last, double factor, int xyzw, int accumulate)
{
	const double u = unit_of(c->outs[o]->dtype);

	for (int64_t i = 0; i < count; i++)
		expect(c, o, i, first, last, s->sum[i], factor * u * s->size[i], xyzw, accumulate);
}

static void sums_free(struct sums *s)
{
	free(s->sum);
	free(s->size);
}

static int one_mul_bwd(int most_dims, int64_t elements)
{
	const int dtype = random_dtype(&rnd);
	struct mul_bwd_arg m = {(uint32_t)rnd_u64(&rnd) & MUL_FLAGS,
				fixed_one ? 3 : 1 + (int)rnd_below(&rnd, 3)};
	int64_t shape[HZ_MAXDIM], sa[HZ_MAXDIM], sb[HZ_MAXDIM];
	const int n = random_shape(shape, most_dims, elements);
	const int na = broadcast_shape(n, shape, sa), nb = broadcast_shape(n, shape, sb);
	struct side dy = new_side(dtype, n, shape, 4);
	struct side a = new_side(dtype, na, sa, 4), b = new_side(dtype, nb, sb, 4);
	struct side da = new_side(dtype, na, sa, 4), db = new_side(dtype, nb, sb, 4);
	struct quat_call c = {.ins = {&a, &b, &dy}, .nins = 3,
			      .outs = {m.wanted & 1 ? &da : NULL, m.wanted & 2 ? &db : NULL},
			      .nouts = 2, .same = {-1, -1}, .run = run_mul_bwd,
			      .arg = &m};
	const int64_t count = product(n, shape), ca = product(na, sa), cb = product(nb, sb);
	const int xyzw = m.flags & HZ_QUAT_XYZW, accumulate = m.flags & HZ_QUAT_ACCUMULATE;
	struct sums suma = sums_new(ca), sumb = sums_new(cb);
	int good;

	c.what = describe("mul_bwd", dtype, m.flags, &a, &b);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const int64_t ia = side_broadcast(&a, 1, n, shape, i);
		const int64_t ib = side_broadcast(&b, 1, n, shape, i);
		const quat g = side_quat(&dy, i, xyzw);
		const quat p = q_conj_if(m.flags & HZ_QUAT_CONJ_A, side_quat(&a, ia, xyzw));
		const quat q = q_conj_if(m.flags & HZ_QUAT_CONJ_B, side_quat(&b, ib, xyzw));
		const int reversed = m.flags & HZ_QUAT_REVERSED;
		const quat dp = reversed ? q_mul(q_conj(q), g) : q_mul(g, q_conj(q));
		const quat dq = reversed ? q_mul(g, q_conj(p)) : q_mul(q_conj(p), g);

		sums_add(&suma, ia, q_conj_if(m.flags & HZ_QUAT_CONJ_A, dp),
			 (double)(q_norm(g) * q_norm(q)));
		sums_add(&sumb, ib, q_conj_if(m.flags & HZ_QUAT_CONJ_B, dq),
			 (double)(q_norm(g) * q_norm(p)));
	}
	if (c.outs[0])
		sums_expect(&c, 0, &suma, ca, 0, 3, 40, xyzw, accumulate);
	if (c.outs[1])
		sums_expect(&c, 1, &sumb, cb, 0, 3, 40, xyzw, accumulate);
	sums_free(&suma);
	sums_free(&sumb);
	good = end_call(&c);
	side_free(&dy);
	side_free(&a);
	side_free(&b);
	side_free(&da);
	side_free(&db);
	return good;
}

static int run_dot(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	return hz_quat_dot(ctx, &in[0], &in[1], out, *(const uint32_t *)arg);
}

static int one_dot(int most_dims, int64_t elements, int64_t length)
{
	const int dtype = random_dtype(&rnd), is_real = (int)rnd_below(&rnd, 2);
	const uint32_t flags = (uint32_t)rnd_u64(&rnd) & MUL_FLAGS;
	int64_t shape[HZ_MAXDIM], sa[HZ_MAXDIM], sb[HZ_MAXDIM];
	const int n = random_shape(shape, most_dims, elements);
	const int na = broadcast_shape(n, shape, sa), nb = broadcast_shape(n, shape, sb);
	const int64_t la = rnd_below(&rnd, 8) ? length : 1, lb = rnd_below(&rnd, 8) ? length : 1;
	const int64_t l = la == 1 ? lb : la, count = product(n, shape);
	struct sums sum = sums_new(count);
	struct side a, b, y;
	struct quat_call c;
	int good, xyzw = flags & HZ_QUAT_XYZW;

	sa[na] = la;
	sb[nb] = lb;
	a = new_side(dtype, na + 1, sa, 4);
	b = new_side(dtype, nb + 1, sb, 4);
	y = new_side(dtype, n, shape, is_real ? 1 : 4);
	c = (struct quat_call){.ins = {&a, &b}, .nins = 2, .outs = {&y}, .nouts = 1, .same = {-1},
			       .run = run_dot, .arg = &flags,
			       .what = describe("dot", dtype, flags, &a, &b)};
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const int64_t ia = side_broadcast(&a, 2, n, shape, i);
		const int64_t ib = side_broadcast(&b, 2, n, shape, i);

		for (int64_t k = 0; k < l; k++) {
			const quat p = side_quat(&a, la == 1 ? ia : ia * la + k, xyzw);
			const quat q = side_quat(&b, lb == 1 ? ib : ib * lb + k, xyzw);

			sums_add(&sum, i, product_of(p, q, flags ^ HZ_QUAT_CONJ_A),
				 (double)(q_norm(p) * q_norm(q)));
		}
	}
	sums_expect(&c, 0, &sum, count, 0, is_real ? 0 : 3, 40, xyzw, flags & HZ_QUAT_ACCUMULATE);
	sums_free(&sum);
	good = end_call(&c);
	side_free(&a);
	side_free(&b);
	side_free(&y);
	return good;
}

struct axpy_arg {
	double alpha[4];
	uint32_t flags;
};

static int run_axpy(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	const struct axpy_arg *m = arg;

	return hz_quat_axpy(ctx, m->alpha, &in[0], out, m->flags);
}

static int one_axpy(void)
{
	const int dtype = random_dtype(&rnd), same = rnd_below(&rnd, 4) == 0;
	struct axpy_arg m = {.flags = (uint32_t)rnd_u64(&rnd) & (HZ_QUAT_XYZW | HZ_QUAT_REVERSED)};
	int64_t shape[HZ_MAXDIM], sx[HZ_MAXDIM];
	const int n = random_shape(shape, 5, 2000);
	const int nx = same ? n : broadcast_shape(n, shape, sx);
	struct side x = new_side(dtype, nx, same ? shape : sx, 4), y = new_side(dtype, n, shape, 4);
	struct quat_call c = {.ins = {&x}, .nins = 1, .outs = {same ? &x : &y}, .nouts = 1,
			      .same = {same ? 0 : -1}, .run = run_axpy, .arg = &m};
	const int64_t count = product(n, shape);
	const int xyzw = m.flags & HZ_QUAT_XYZW;
	quat alpha;
	int good;

	for (int k = 0; k < 4; k++) {
		m.alpha[k] = rnd_normal(&rnd);
		alpha.c[k] = dtype == HZ_F64 ? (real)m.alpha[k] : (real)(float)m.alpha[k];
	}
	c.what = describe("axpy", dtype, m.flags, &x, c.outs[0]);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const quat q = side_quat(&x, side_broadcast(&x, 1, n, shape, i), xyzw);

		expect(&c, 0, i, 0, 3,
		       m.flags & HZ_QUAT_REVERSED ? q_mul(q, alpha) : q_mul(alpha, q),
		       4 * unit_of(dtype) * (double)(q_norm(q) * q_norm(alpha)), xyzw, 1);
	}
	good = end_call(&c);
	side_free(&x);
	side_free(&y);
	return good;
}

/* ---- Functions of one quaternion ------------------------------------------------------------- */

static quat q_ldexp(quat a, int e)
{
	for (int k = 0; k < 4; k++)
		a.c[k] = ldexpl(a.c[k], e);
	return a;
}

/* x / 2^*e, with its largest component in [1, 2): squares of extreme f64 numbers overflow or
 * underflow where real is no wider than f64, as on some machines and under valgrind. */
static quat to_scale(quat x, int *e)
{
	real most = 0;

	for (int k = 0; k < 4; k++)
		most = fmaxl(most, fabsl(x.c[k]));
	*e = most > 0 ? ilogbl(most) : 0;
	return q_ldexp(x, -*e);
}

/* The definitions. *size: the magnitude that errors are relative to. Real results are in w. */
static quat ref_map(int kind, quat x, real eps, real *size)
{
	int e;
	const quat u = to_scale(x, &e);
	const real m = q_norm(u), n = ldexpl(m, e);
	quat y = {{0}};

	switch (kind) {
	case CONJ:
		y = q_conj(x);
		*size = 0;
		break;
	case NORM:
		y.c[0] = *size = n;
		break;
	case NORM2:
		y.c[0] = *size = n * n;
		break;
	case NORMALIZE:
		y = n == 0 ? y : n < eps ? q_scale(x, 1 / eps) : q_scale(u, 1 / m);
		*size = n == 0 ? 0 : n < eps ? n / eps : 1;
		break;
	default:
		y = n == 0 ? (quat){{NAN, NAN, NAN, NAN}} :
			     q_ldexp(q_scale(q_conj(u), 1 / (m * m)), -e);
		*size = 1 / n;
		break;
	}
	return y;
}

static quat ref_map_bwd(int kind, quat dy, quat x, real eps, real *size)
{
	int e;
	quat dx = {{0}}, u = to_scale(x, &e);
	const real m = q_norm(u), n = ldexpl(m, e);

	switch (kind) {
	case NORM:
		*size = fabsl(dy.c[0]);
		return n == 0 ? dx : q_scale(u, dy.c[0] / m);
	case NORM2:
		*size = 2 * fabsl(dy.c[0]) * n;
		return q_scale(x, 2 * dy.c[0]);
	case NORMALIZE:
		*size = q_norm(dy) / (n < eps ? eps : n);
		if (n < eps)
			return q_scale(dy, 1 / eps);
		if (n == 0) {
			*size = 0;
			return dx;
		}
		u = q_scale(u, 1 / m);
		return q_ldexp(q_scale(q_add(dy, q_scale(u, -q_inner(dy, u))), 1 / m), -e);
	default:
		*size = q_norm(dy) / (n * n);
		u = q_conj(ref_map(INVERSE, x, 0, &eps));
		return q_scale(q_mul(q_mul(u, dy), u), -1);
	}
}

/* Replaces some quaternions by extremely large or small ones, if the dtype has them. */
static void sprinkle(struct side *x)
{
	const double big = x->dtype == HZ_F16 ? 8e3 : x->dtype == HZ_F64 ? 1e307 : 4e37;
	const double tiny = x->dtype == HZ_F16 ? 6e-8 : x->dtype == HZ_F64 ? 1e-310 : 1e-41;

	for (int64_t i = 0; i < x->count / 4; i++) {
		const int64_t pick = rnd_below(&rnd, 12);

		for (int k = 0; k < 4 && pick < 3; k++) {
			const double v = rnd_normal(&rnd);

			side_set(x, 4 * i + k,
				 (real)(pick == 0 ? 0 : v * (pick == 1 ? big : tiny)));
		}
	}
}

static int one_map(void)
{
	const int dtype = random_dtype(&rnd), same = rnd_below(&rnd, 4) == 0;
	struct map_arg m = {.kind = (int)rnd_below(&rnd, KINDS),
			    .flags = (uint32_t)rnd_u64(&rnd) & HZ_QUAT_XYZW};
	const int number = m.kind == NORM || m.kind == NORM2, in_place = same && !number;
	int64_t shape[HZ_MAXDIM];
	const int n = random_shape(shape, 5, 2000), xyzw = m.flags & HZ_QUAT_XYZW;
	struct side x = new_side(dtype, n, shape, 4);
	struct side y = new_side(dtype, n, shape, number ? 0 : 4);
	struct quat_call c = {.ins = {&x}, .nins = 1, .outs = {in_place ? &x : &y}, .nouts = 1,
			      .same = {in_place ? 0 : -1}, .run = run_map, .arg = &m};
	const int64_t count = product(n, shape);
	int good;

	if (m.kind == NORMALIZE && rnd_below(&rnd, 2))
		m.eps = 0.5;
	if (rnd_below(&rnd, 2) && m.kind != NORM2)
		sprinkle(&x);
	c.what = describe(kind_names[m.kind], dtype, m.flags, &x, c.outs[0]);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		real size;
		const quat v = ref_map(m.kind, side_quat(&x, i, xyzw), (real)m.eps, &size);

		expect(&c, 0, i, 0, number ? 0 : 3, v, 8 * unit_of(dtype) * (double)size, xyzw, 0);
	}
	good = end_call(&c);
	side_free(&x);
	side_free(&y);
	return good;
}

static int one_map_bwd(void)
{
	const int dtype = random_dtype(&rnd);
	struct map_arg m = {.kind = NORM + (int)rnd_below(&rnd, KINDS - NORM),
			    .flags = (uint32_t)rnd_u64(&rnd) & (HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE)};
	const int number = m.kind == NORM || m.kind == NORM2;
	/* In place, in x or dy */
	const int pick = (int)rnd_below(&rnd, 5);
	const int same = pick == 0 ? 0 : pick == 1 && !number ? 1 : -1;
	int64_t shape[HZ_MAXDIM];
	const int n = random_shape(shape, 5, 2000), xyzw = m.flags & HZ_QUAT_XYZW;
	struct side x = new_side(dtype, n, shape, 4), dx = new_side(dtype, n, shape, 4);
	struct side dy = new_side(dtype, n, shape, number ? 0 : 4);
	struct quat_call c = {.ins = {&x, &dy}, .nins = 2, .nouts = 1, .same = {same},
			      .run = run_map_bwd, .arg = &m};
	const int64_t count = product(n, shape);
	int good;

	c.outs[0] = same < 0 ? &dx : c.ins[same];
	if (m.kind == NORMALIZE && rnd_below(&rnd, 2))
		m.eps = 0.5;
	if (rnd_below(&rnd, 2) && (m.kind == NORM || m.kind == NORMALIZE) && dtype != HZ_F16)
		sprinkle(&x);
	c.what = describe(kind_names[m.kind], dtype, m.flags, &x, c.outs[0]);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const quat g = number ? (quat){{dy.value[i]}} : side_quat(&dy, i, xyzw);
		real size;
		const quat v = ref_map_bwd(m.kind, g, side_quat(&x, i, xyzw), (real)m.eps, &size);

		expect(&c, 0, i, 0, 3, v, 16 * unit_of(dtype) * (double)size, xyzw,
		       m.flags & HZ_QUAT_ACCUMULATE);
	}
	good = end_call(&c);
	side_free(&x);
	side_free(&dx);
	side_free(&dy);
	return good;
}

/* ---- Rotation -------------------------------------------------------------------------------- */

static int run_rotate(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	return hz_quat_rotate(ctx, &in[0], &in[1], out, *(const uint32_t *)arg);
}

static quat vector_of(quat v)
{
	v.c[0] = 0;
	return v;
}

static quat ref_rotate(quat q, quat v, uint32_t flags, int back)
{
	const quat p = q_conj_if(!(flags & HZ_QUAT_INVERSE) != !back, q);
	const quat y = q_mul(q_mul(p, vector_of(v)), q_conj(p));

	return vector_of(flags & HZ_QUAT_NORMALIZE ? q_scale(y, 1 / q_inner(q, q)) : y);
}

/* dp = dy p conj(v) + conj(dy) p v for y = p v conj(p), and the quotient's derivative */
static quat ref_rotate_dq(quat dy, quat q, quat v, uint32_t flags)
{
	const int inverse = flags & HZ_QUAT_INVERSE;
	const quat p = q_conj_if(inverse, q);
	const real n2 = q_inner(q, q);
	quat d;

	dy = vector_of(dy);
	v = vector_of(v);
	d = q_add(q_mul(q_mul(dy, p), q_conj(v)), q_mul(q_mul(q_conj(dy), p), v));
	if (flags & HZ_QUAT_NORMALIZE) {
		const quat y = q_mul(q_mul(p, v), q_conj(p));

		d = q_add(q_scale(d, 1 / n2), q_scale(p, -2 * q_inner(dy, y) / (n2 * n2)));
	}
	return q_conj_if(inverse, d);
}

#define ROTATE_FLAGS (HZ_QUAT_XYZW | HZ_QUAT_NORMALIZE | HZ_QUAT_INVERSE)

static int one_rotate(void)
{
	const int dtype = random_dtype(&rnd), same = rnd_below(&rnd, 4) == 0;
	const uint32_t flags = (uint32_t)rnd_u64(&rnd) & ROTATE_FLAGS;
	const int vc = 3 + (int)rnd_below(&rnd, 2), yc = same ? vc : 3 + (int)rnd_below(&rnd, 2);
	int64_t shape[HZ_MAXDIM], sq[HZ_MAXDIM], sv[HZ_MAXDIM];
	const int n = random_shape(shape, 5, 2000), xyzw = flags & HZ_QUAT_XYZW;
	const int nq = broadcast_shape(n, shape, sq), nv = same ? n : broadcast_shape(n, shape, sv);
	struct side q = new_side(dtype, nq, sq, 4), v = new_side(dtype, nv, same ? shape : sv, vc);
	struct side y = new_side(dtype, n, shape, yc);
	struct quat_call c = {.ins = {&q, &v}, .nins = 2, .outs = {same ? &v : &y}, .nouts = 1,
			      .same = {same ? 1 : -1}, .run = run_rotate, .arg = &flags};
	const int64_t count = product(n, shape);
	int good;

	c.what = describe("rotate", dtype, flags, &q, &v);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const quat p = side_quat(&q, side_broadcast(&q, 1, n, shape, i), xyzw);
		const quat w = side_quat(&v, side_broadcast(&v, 1, n, shape, i), xyzw);
		const real size = q_norm(vector_of(w)) *
				  (flags & HZ_QUAT_NORMALIZE ? 1 : q_inner(p, p));

		expect(&c, 0, i, yc == 3, 3, ref_rotate(p, w, flags, 0),
		       8 * unit_of(dtype) * (double)size, xyzw, 0);
	}
	good = end_call(&c);
	side_free(&q);
	side_free(&v);
	side_free(&y);
	return good;
}

static int run_rotate_bwd(hz_context *ctx, const hz_tensor *in, hz_tensor *out,
			  const void *arg)
{
	const struct mul_bwd_arg *m = arg;

	return hz_quat_rotate_bwd(ctx, &in[0], &in[1], &in[2], m->wanted & 1 ? &out[0] : NULL,
				  m->wanted & 2 ? &out[1] : NULL, m->flags);
}

static int one_rotate_bwd(int64_t elements)
{
	const int dtype = random_dtype(&rnd);
	struct mul_bwd_arg m = {(uint32_t)rnd_u64(&rnd) & (ROTATE_FLAGS | HZ_QUAT_ACCUMULATE),
				fixed_one ? 3 : 1 + (int)rnd_below(&rnd, 3)};
	const int vc = 3 + (int)rnd_below(&rnd, 2), yc = 3 + (int)rnd_below(&rnd, 2);
	int64_t shape[HZ_MAXDIM], sq[HZ_MAXDIM], sv[HZ_MAXDIM];
	const int n = random_shape(shape, 5, elements), xyzw = m.flags & HZ_QUAT_XYZW;
	const int nq = broadcast_shape(n, shape, sq), nv = broadcast_shape(n, shape, sv);
	struct side dy = new_side(dtype, n, shape, yc);
	struct side q = new_side(dtype, nq, sq, 4), v = new_side(dtype, nv, sv, vc);
	struct side dq = new_side(dtype, nq, sq, 4), dv = new_side(dtype, nv, sv, vc);
	struct quat_call c = {.ins = {&q, &v, &dy}, .nins = 3,
			      .outs = {m.wanted & 1 ? &dq : NULL, m.wanted & 2 ? &dv : NULL},
			      .nouts = 2, .same = {-1, -1}, .run = run_rotate_bwd,
			      .arg = &m};
	const int64_t count = product(n, shape), cq = product(nq, sq), cv = product(nv, sv);
	const int accumulate = m.flags & HZ_QUAT_ACCUMULATE;
	struct sums sumq = sums_new(cq), sumv = sums_new(cv);
	int good;

	c.what = describe("rotate_bwd", dtype, m.flags, &q, &v);
	begin_call(&c);
	for (int64_t i = 0; i < count; i++) {
		const int64_t iq = side_broadcast(&q, 1, n, shape, i);
		const int64_t iv = side_broadcast(&v, 1, n, shape, i);
		const quat g = vector_of(side_quat(&dy, i, xyzw)), p = side_quat(&q, iq, xyzw);
		const quat w = vector_of(side_quat(&v, iv, xyzw));
		const real n2 = m.flags & HZ_QUAT_NORMALIZE ? 1 : q_inner(p, p);
		const real one = m.flags & HZ_QUAT_NORMALIZE ? 1 / q_norm(p) : q_norm(p);

		sums_add(&sumq, iq, ref_rotate_dq(g, p, w, m.flags),
			 (double)(4 * q_norm(g) * q_norm(w) * one));
		sums_add(&sumv, iv, ref_rotate(p, g, m.flags, 1), (double)(q_norm(g) * n2));
	}
	if (c.outs[0])
		sums_expect(&c, 0, &sumq, cq, 0, 3, 60, xyzw, accumulate);
	if (c.outs[1])
		sums_expect(&c, 1, &sumv, cv, vc == 3, 3, 60, xyzw, accumulate);
	sums_free(&sumq);
	sums_free(&sumv);
	good = end_call(&c);
	side_free(&dy);
	side_free(&q);
	side_free(&v);
	side_free(&dq);
	side_free(&dv);
	return good;
}

/* ---- Random cases ---------------------------------------------------------------------------- */

static void test_random(void)
{
	int good = 1;

	for (int i = 0; i < cases(400) && good; i++)
		good = one_mul(5, 3000);
	ok(good, "quat_mul of random shapes, layouts and flags");
	good = 1;
	for (int i = 0; i < cases(400) && good; i++)
		good = one_mul_bwd(5, 3000);
	ok(good, "quat_mul_bwd");
	good = 1;
	for (int i = 0; i < cases(300) && good; i++)
		good = one_dot(4, 100, rnd_below(&rnd, 30) ? random_size(&rnd, 300) : 0);
	ok(good, "quat_dot");
	good = 1;
	for (int i = 0; i < cases(150) && good; i++)
		good = one_axpy();
	ok(good, "quat_axpy");
	good = 1;
	for (int i = 0; i < cases(400) && good; i++)
		good = one_map();
	ok(good, "conj, norm, normalize, inverse");
	good = 1;
	for (int i = 0; i < cases(400) && good; i++)
		good = one_map_bwd();
	ok(good, "their gradients");
	good = 1;
	for (int i = 0; i < cases(300) && good; i++)
		good = one_rotate();
	ok(good, "quat_rotate");
	good = 1;
	for (int i = 0; i < cases(300) && good; i++)
		good = one_rotate_bwd(2000);
	ok(good, "quat_rotate_bwd");
}

/* Sizes with work for all threads, several blocks of a reduction, and non-temporal stores */
static void test_large(void)
{
	int good = 1;

	for (int i = 0; i < cases(6) && good; i++)
		good = one_mul(2, 60000) && one_mul_bwd(2, 60000);
	ok(good, "large products");
	good = 1;
	for (int i = 0; i < cases(6) && good; i++)
		good = one_dot(1, 3, 50000 + rnd_below(&rnd, 3000)) && one_rotate_bwd(50000);
	ok(good, "long sums");
	good = 1;
	fixed_kind = -1;
	for (int i = 0; i < cases(12) && good; i++) {
		fixed_size = 8 * (100 + rnd_below(&rnd, 200));
		good = one_mul(0, 0) && one_mul_bwd(0, 0) && one_map() && one_rotate();
	}
	ok(good, "planar and contiguous quaternions mixed");
	good = 1;
	fixed_kind = 1;
	for (int i = 0; i < cases(24) && good; i++) {
		fixed_size = 32768 + rnd_below(&rnd, 3000);
		fixed_one = 1 + (int)rnd_below(&rnd, 2);
		fixed_one_calls = 0;
		good = one_mul_bwd(0, 0) && one_rotate_bwd(0);
	}
	ok(good, "gradients of which one is a long sum");
	fixed_size = fixed_kind = fixed_one = 0;
}

/* A product with 1 keeps the bits of 16-bit numbers, subnormals included, in every layout. */
static void test_small(void)
{
	enum { N = 50 };
	static uint16_t a[8 * N], y[8 * N];

	if (tap_cuda()) {
		skip(1, "memory of the host");
		return;
	}
	for (int dtype = HZ_F16; dtype <= HZ_BF16; dtype++) {
		const int fraction = dtype == HZ_F16 ? 10 : 7;
		uint16_t one[4] = {dtype == HZ_F16 ? 0x3c00 : 0x3f80, 0, 0, 0};
		const hz_tensor b = hz_tensor_2d(one, dtype, HZ_CPU, 1, 4);

		for (int d = 0; d < ndevs; d++) {
			int good = 1;

			for (int i = 0; i < 3 * 8 && good; i++) {
				/* Contiguous, with gaps, planar */
				const int64_t step = i % 3 == 2 ? 1 : 4 << i % 3;
				hz_tensor x = hz_tensor_2d(a, dtype, HZ_CPU, N, 4), z;

				x.stride[0] = step;
				x.stride[1] = i % 3 == 2 ? N : 1;
				z = x;
				z.data = y;
				for (int k = 0; k < 8 * N; k++) {
					const int most = i / 3 % 2 ? 1 << fraction : 0x7800;

					a[k] = (uint16_t)(1 + rnd_below(&rnd, most - 1));
					a[k] |= (uint16_t)(rnd_below(&rnd, 2) << 15);
					y[k] = 0;
				}
				good = hz_quat_mul(devs[d].ctx, &x, &b, &z, 0) == HZ_OK;
				for (int64_t k = 0; k < 4 * N && good; k++) {
					const int64_t at = k / 4 * x.stride[0] + k % 4 *
							   x.stride[1];

					good = y[at] == a[at];
				}
			}
			ok(good, "%s by 1, %s", hz_dtype_name(dtype), devs[d].name);
		}
	}
}

/* Results that exceed the caches, at any alignment */
static void test_stream(void)
{
	int good;

	if (quick) {
		skip(1, "large");
		return;
	}
	fixed_size = 1100001 + rnd_below(&rnd, 16);
	fixed_kind = 1 + (int)rnd_below(&rnd, 2);
	good = one_mul(0, 0) && one_mul_bwd(0, 0) && one_map() && one_rotate();
	ok(good, "%lld quaternions", (long long)fixed_size);
	fixed_size = fixed_kind = 0;
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_quat_routes();
	test_random();
	test_large();
	test_small();
	test_stream();
	dev_close_all();
	return done_testing();
}
