/*
 * convert.c - rotation matrices, axis-angle, exp, log, slerp against their definitions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/quat/quat.h"

static uint64_t rnd;

/* ---- Definitions ----------------------------------------------------------------------------- */

enum { MATRIX, FROM_MATRIX, ANGLE, FROM_ANGLE, EXP, LOG, SLERP, MATRIX_BWD, FROM_MATRIX_BWD,
	CONVERTS };

static quat unit_quat(const real *v)
{
	const quat q = {{v[0], v[1], v[2], v[3]}};

	return q_scale(q, 1 / q_norm(q));
}

static void ref_matrix(const real *v, real *m)
{
	const quat u = unit_quat(v);

	for (int j = 0; j < 3; j++) {
		quat e = {{0}};

		e.c[1 + j] = 1;
		e = q_mul(q_mul(u, e), q_conj(u));
		for (int i = 0; i < 3; i++)
			m[3 * i + j] = e.c[1 + i];
	}
}

/* The inverse of the transposed matrix: cofactors divided by the determinant */
static void inverse_transposed(const real *m, real *y)
{
	real det;

	for (int i = 0; i < 3; i++) {
		for (int j = 0; j < 3; j++) {
			const int a = (i + 1) % 3, b = (i + 2) % 3, c = (j + 1) % 3, d = (j + 2) % 3;

			y[3 * i + j] = m[3 * a + c] * m[3 * b + d] - m[3 * a + d] * m[3 * b + c];
		}
	}
	det = m[0] * y[0] + m[1] * y[1] + m[2] * y[2];
	for (int i = 0; i < 9; i++)
		y[i] /= det;
}

/* Newton's iteration for the polar decomposition, then the formula of the largest component */
static void ref_from_matrix(const real *from, real *q)
{
	real m[9], y[9], norm = 0, square[4], most = -1;
	static const int order[4] = {1, 2, 3, 0};
	int best = 0;

	for (int i = 0; i < 9; i++)
		norm += from[i] * from[i];
	for (int i = 0; i < 9; i++)
		m[i] = from[i] * sqrtl(3 / norm);
	for (int n = 0; n < 40; n++) {
		inverse_transposed(m, y);
		for (int i = 0; i < 9; i++)
			m[i] = (m[i] + y[i]) / 2;
	}
	square[0] = 1 + m[0] + m[4] + m[8];
	square[1] = 1 + m[0] - m[4] - m[8];
	square[2] = 1 - m[0] + m[4] - m[8];
	square[3] = 1 - m[0] - m[4] + m[8];
	for (int i = 0; i < 4; i++) {
		if (square[order[i]] > most) {
			best = order[i];
			most = square[best];
		}
	}
	q[0] = best == 1 ? m[7] - m[5] : best == 2 ? m[2] - m[6] : m[3] - m[1];
	q[1] = best == 0 ? m[7] - m[5] : best == 2 ? m[1] + m[3] : m[2] + m[6];
	q[2] = best == 0 ? m[2] - m[6] : best == 1 ? m[1] + m[3] : m[5] + m[7];
	q[3] = best == 0 ? m[3] - m[1] : best == 1 ? m[2] + m[6] : m[5] + m[7];
	q[best] = most;
	for (int i = 0; i < 4; i++)
		q[i] /= 2 * sqrtl(most);
}

static real norm3(const real *v)
{
	const real most = fmaxl(fabsl(v[0]), fmaxl(fabsl(v[1]), fabsl(v[2])));
	real sum = 0;

	for (int c = 0; c < 3; c++)
		sum += most == 0 ? 0 : v[c] / most * (v[c] / most);
	return most * sqrtl(sum);
}

/* cos n + sin n v / |v|, times f */
static void cos_sin(real f, real n, const real *v, real *y)
{
	const real s = norm3(v);

	y[0] = f * cosl(n);
	for (int c = 0; c < 3; c++)
		y[1 + c] = s == 0 ? 0 : f * sinl(n) * (v[c] / s);
}

static void ref_slerp(const real *a, const real *b, real t, int keep, real *y, real *bad)
{
	quat p = unit_quat(a), q = unit_quat(b), sum, less;
	real theta;

	if (q_inner(p, q) < 0 && !keep)
		q = q_scale(q, -1);
	sum = q_add(p, q);
	less = q_add(p, q_scale(q, -1));
	theta = 2 * atan2l(q_norm(less), q_norm(sum));
	*bad = theta > 1.5L ? (1 + fabsl(t)) / sinl(theta) : 1 + fabsl(t);
	sum = theta == 0 ? p : q_add(q_scale(p, sinl((1 - t) * theta) / sinl(theta)),
				     q_scale(q, sinl(t * theta) / sinl(theta)));
	memcpy(y, sum.c, sizeof(sum.c));
}

/* *size: what the error is relative to */
static void ref_convert(int kind, int keep, const real (*in)[9], real *out, real *size)
{
	real n = norm3(in[0] + 1);

	*size = 1;
	switch (kind) {
	case MATRIX:
		ref_matrix(in[0], out);
		*size = sqrtl(3);
		break;
	case FROM_MATRIX:
		ref_from_matrix(in[0], out);
		break;
	case ANGLE:
		for (int c = 0; c < 3; c++)
			out[c] = n == 0 ? 0 : 2 * atan2l(n, fabsl(in[0][0])) *
						      (in[0][1 + c] / n) * (in[0][0] < 0 ? -1 : 1);
		/* An angle may be subnormal, in f64 or f32. */
		*size = norm3(out) + (n < 1e-300L ? 1e-306L : n < 1e-37L ? 1e-37L : 0);
		break;
	case FROM_ANGLE:
		n = norm3(in[0]);
		cos_sin(1, n / 2, in[0], out);
		*size = 1 + n;
		break;
	case EXP:
		cos_sin(expl(in[0][0]), n, in[0] + 1, out);
		*size = expl(in[0][0]) * (1 + n + fabsl(in[0][0]));
		break;
	case LOG:
		out[0] = logl(q_norm((quat){{in[0][0], in[0][1], in[0][2], in[0][3]}}));
		for (int c = 0; c < 3; c++)
			out[1 + c] = n == 0 ? 0 : atan2l(n, in[0][0]) * (in[0][1 + c] / n);
		if (n == 0 && in[0][0] < 0)
			out[1] = acosl(-1);
		*size = 1 + fabsl(out[0]) + norm3(out + 1);
		break;
	case SLERP:
		ref_slerp(in[0], in[1], in[2][0], keep, out, size);
		break;
	default: {
		/* The gradient by central differences */
		const int from = kind == MATRIX_BWD ? 4 : 9, to = kind == MATRIX_BWD ? 9 : 4;
		real scale = 0, most = 0;

		for (int i = 0; i < from; i++)
			scale = fmaxl(scale, fabsl(in[0][i]));
		for (int i = 0; i < to; i++)
			most += fabsl(in[1][i]);
		for (int i = 0; i < from; i++) {
			const real h = scale * 1e-5L;
			real at[2][9], y[2][9], ignored;

			for (int s = 0; s < 2; s++) {
				memcpy(at[s], in[0], sizeof(at[s]));
				at[s][i] += s ? h : -h;
				ref_convert(kind - MATRIX_BWD, 0, (const real (*)[9])at[s], y[s],
					    &ignored);
			}
			out[i] = 0;
			for (int c = 0; c < to; c++)
				out[i] += in[1][c] * (y[1][c] - y[0][c]) / (2 * h);
		}
		*size = most / scale;
		break;
	}
	}
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static const struct convert {
	const char *name;
	int inputs, parts[4];
	uint32_t flags;
	bool same;			/* the output may be the first input */
} converts[] = {
	[MATRIX] = {"to_matrix", 1, {4, 9}, HZ_QUAT_XYZW, false},
	[FROM_MATRIX] = {"from_matrix", 1, {9, 4}, HZ_QUAT_XYZW, false},
	[ANGLE] = {"to_axis_angle", 1, {4, 3}, HZ_QUAT_XYZW, false},
	[FROM_ANGLE] = {"from_axis_angle", 1, {3, 4}, HZ_QUAT_XYZW, false},
	[EXP] = {"exp", 1, {4, 4}, HZ_QUAT_XYZW, true},
	[LOG] = {"log", 1, {4, 4}, HZ_QUAT_XYZW, true},
	[SLERP] = {"slerp", 3, {4, 4, 1, 4}, HZ_QUAT_XYZW | HZ_QUAT_KEEP_SIGN, true},
	[MATRIX_BWD] = {"to_matrix_bwd", 2, {4, 9, 4}, HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE, true},
	[FROM_MATRIX_BWD] = {"from_matrix_bwd", 2, {9, 4, 9}, HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE,
			     true},
};

struct convert_arg {
	int kind;
	uint32_t flags;
};

static int run_convert(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	const struct convert_arg *a = arg;
	typedef int unary(hz_context *, const hz_tensor *, hz_tensor *, uint32_t);
	static unary *const one[] = {
		hz_quat_to_matrix, hz_quat_from_matrix, hz_quat_to_axis_angle,
		hz_quat_from_axis_angle, hz_quat_exp, hz_quat_log,
	};

	if (a->kind < SLERP)
		return one[a->kind](ctx, in, out, a->flags);
	if (a->kind == SLERP)
		return hz_quat_slerp(ctx, &in[0], &in[1], &in[2], out, a->flags);
	return a->kind == MATRIX_BWD ? hz_quat_to_matrix_bwd(ctx, &in[0], &in[1], out, a->flags) :
				       hz_quat_from_matrix_bwd(ctx, &in[0], &in[1], out, a->flags);
}

/* n dimensions of elements, then those of `parts` numbers */
static struct side numbers(int dtype, int n, const int64_t *shape, int parts, int kind)
{
	int64_t all[HZ_MAXDIM];

	memcpy(all, shape, (size_t)n * sizeof(*all));
	if (parts == 4)
		all[n++] = 4;
	for (int k = 1; parts % 3 == 0 && k < parts; k *= 3)
		all[n++] = 3;
	return side_new(&rnd, dtype, n, all, kind);
}

/* Position of number c of an element in C order */
static int place(int parts, int c, uint32_t flags)
{
	return parts == 4 && flags & HZ_QUAT_XYZW ? (c + 3) % 4 : c;
}

static void put_element(struct side *s, int64_t i, int parts, uint32_t flags, const real *v)
{
	for (int c = 0; c < parts; c++)
		side_set(s, i * parts + place(parts, c, flags), v[c]);
}

static void get_element(const struct side *s, int64_t i, int parts, uint32_t flags, real *v)
{
	for (int c = 0; c < parts; c++)
		v[c] = s->value[i * parts + place(parts, c, flags)];
}

/* A random input: norms other than 1, small and subnormal vector parts, negative and no real parts;
 * matrices off a rotation, and multiples of one */
static void random_element(int parts, bool plain, real *v)
{
	const int special = plain ? 9 : (int)rnd_below(&rnd, 10);
	const real scale = plain ? 1 : ldexpl(1, (int)rnd_below(&rnd, 13) - 6);
	const real noise = rnd_below(&rnd, 2) ? 0 : rnd_below(&rnd, 2) ? 1e-3L : 0.1L;
	const real tiny = rnd_below(&rnd, 2) ? 1e-40L : 1e-310L;	/* subnormal in f32, in f64 */
	real q[4];

	for (int c = 0; c < 4; c++)
		q[c] = (real)rnd_normal(&rnd);
	if (parts == 9) {
		/* The component whose sign is fixed is larger than the others. */
		q[rnd_below(&rnd, 4)] = rnd_below(&rnd, 2) ? 3 : -3;
		ref_matrix(q, v);
		for (int c = 0; c < 9; c++)
			v[c] = scale * (v[c] + noise * (real)rnd_normal(&rnd) / 3);
		return;
	}
	for (int c = parts == 4; special == 0 && c < 4; c++)
		q[c] *= 1e-4L;
	for (int c = 1; special == 1 && c < 4; c++)
		q[c] = 0;
	if (special == 2)
		q[0] = 0;
	if (special == 3)
		q[0] = 3 + fabsl(q[0]);
	for (int c = 1; special == 4 && c < 4; c++)
		q[c] *= tiny;
	for (int c = 0; c < parts; c++)
		v[c] = q[c] * (parts == 4 && special > 4 && !plain ? scale : 1);
}

static void broadcast_dims(int n, const int64_t *shape, int64_t *own)
{
	for (int d = 0; d < n; d++)
		own[d] = rnd_below(&rnd, 4) ? shape[d] : 1;
}

static int one_convert(int kind, int64_t most)
{
	const struct convert *k = &converts[kind];
	const int dtype = random_dtype(&rnd), inputs = k->inputs, layout = (int)rnd_below(&rnd, 3);
	const int same = k->same && rnd_below(&rnd, 4) == 0, parts = k->parts[inputs];
	struct convert_arg arg = {.kind = kind, .flags = (uint32_t)rnd_u64(&rnd) & k->flags};
	const int accumulate = !same && arg.flags & HZ_QUAT_ACCUMULATE;
	const int n = (int)rnd_below(&rnd, 4);
	int64_t shape[HZ_MAXDIM], own[HZ_MAXDIM], count = 1;
	struct side in[3], out;
	struct quat_call c = {.nins = inputs, .nouts = 1, .same = {same ? 0 : -1},
			      .run = run_convert, .arg = &arg};
	char what[64];
	int good;

	if (!accumulate)
		arg.flags &= ~HZ_QUAT_ACCUMULATE;
	for (int d = n - 1; d >= 0; d--) {
		shape[d] = random_size(&rnd, most);
		count *= shape[d];
		most = most / shape[d] > 1 ? most / shape[d] : 1;
	}
	if (n && rnd_below(&rnd, 30) == 0)
		count = shape[0] = 0;
	if (n && shape[0] == 0)
		for (int d = 1; d < n; d++)
			shape[d] = 2;
	for (int i = 0; i < inputs; i++) {
		memcpy(own, shape, sizeof(own));
		if (kind == SLERP && !(same && i == 0))
			broadcast_dims(n, shape, own);
		in[i] = numbers(dtype, n, own, k->parts[i], layout < 2 ? layout : 0);
		for (int64_t e = 0; e < in[i].count / k->parts[i]; e++) {
			real v[9];

			if (i == 1 && kind != SLERP) {
				for (int p = 0; p < 9; p++)
					v[p] = (real)rnd_normal(&rnd);
			} else {
				random_element(k->parts[i], kind == EXP || kind == SLERP, v);
			}
			put_element(&in[i], e, k->parts[i], arg.flags, v);
		}
		c.ins[i] = &in[i];
	}
	out = numbers(dtype, n, shape, parts, layout < 2 ? layout : 0);
	side_random(&out, &rnd, 1);
	c.outs[0] = same ? &in[0] : &out;
	snprintf(what, sizeof(what), "%s %s, %d dimensions, flags %u", k->name,
		 hz_dtype_name(dtype), n, arg.flags);
	c.what = what;
	begin_call(&c);
	for (int64_t e = 0; e < count; e++) {
		real v[3][9] = {{0}}, y[9], size;

		for (int i = 0; i < inputs; i++)
			get_element(&in[i], side_broadcast(&in[i], in[i].ndim - n, n, shape, e),
				    k->parts[i], arg.flags, v[i]);
		ref_convert(kind, (arg.flags & HZ_QUAT_KEEP_SIGN) != 0, (const real (*)[9])v, y,
			    &size);
		for (int p = 0; p < parts; p++) {
			const int64_t at = e * parts + place(parts, p, arg.flags);
			const real old = accumulate ? out.value[at] : 0;
			const double error = (double)size * ((kind < MATRIX_BWD ? 8 : 64) *
							     unit_of(dtype) +
							     (kind < MATRIX_BWD ? 0 : 1e-9)) +
					     2 * unit_of(dtype) * fabs((double)old);

			c.want[0][at] = y[p] + old;
			c.tol[0][at] = error + rounding(dtype, y[p] + old, error);
		}
	}
	good = end_call(&c);
	for (int i = 0; i < inputs; i++)
		side_free(&in[i]);
	side_free(&out);
	return good;
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* A call of one element of f32; y gets the output, w, x, y, z or x, y, z, w as in the flags */
static int one_element(struct dev *dev, int kind, uint32_t flags, const float *const *from,
		       float *y)
{
	const struct convert *k = &converts[kind];
	const struct convert_arg arg = {kind, flags};
	struct area a[4];
	hz_tensor t[4];
	float image[(2 * GUARD + 64) / 4];
	int status;

	for (int i = 0; i <= k->inputs; i++) {
		const int parts = k->parts[i];

		a[i] = area_new(dev, 64, 0);
		t[i] = parts == 1   ? hz_tensor_nd(a[i].data, HZ_F32, dev->device, 0, NULL)
		       : parts == 9 ? hz_tensor_2d(a[i].data, HZ_F32, dev->device, 3, 3)
				    : hz_tensor_1d(a[i].data, HZ_F32, dev->device, parts);
		memset(image, 0, sizeof(image));
		if (i < k->inputs)
			memcpy(image + GUARD / 4, from[i], (size_t)parts * 4);
		area_write(&a[i], image);
	}
	status = run_convert(dev->ctx, t, &t[k->inputs], &arg);
	area_read(&a[k->inputs], image);
	memcpy(y, image + GUARD / 4, (size_t)k->parts[k->inputs] * 4);
	for (int i = 0; i <= k->inputs; i++)
		area_free(&a[i]);
	return status;
}

#define V(...) (const float[9]){__VA_ARGS__}
#define PI 3.14159265f
#define HALF 0.70710678f
#define TURN 0, -1, 0, 1, 0, 0, 0, 0, 1		/* a quarter turn about z */

/* Edges, and values of scipy 1.17 and numpy-quaternion 2024.0.13 */
static const struct value {
	int kind;
	uint32_t flags;
	const float *in[3];
	float out[9];
	const char *what;
} values[] = {
	{MATRIX, 0, {V(2, 0, 0, 2)}, {TURN}, "the matrix of a quarter turn, |q| not 1"},
	{MATRIX, HZ_QUAT_XYZW, {V(0, 0, 2, 2)}, {TURN}, "of x, y, z, w"},
	{MATRIX, 0, {V(1e-30f, 0, 0, 1e-30f)}, {TURN}, "of a small q"},
	{MATRIX, 0, {V(1e30f, 0, 0, 1e30f)}, {TURN}, "of a large q"},
	{MATRIX, 0, {V(0, 0, 0, 0)}, {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}, "of 0"},
	{FROM_MATRIX, 0, {V(TURN)}, {HALF, 0, 0, HALF}, "the quarter turn of a matrix"},
	{FROM_MATRIX, 0, {V(1, 0, 0, 0, -1, 0, 0, 0, -1)}, {0, 1, 0, 0}, "half a turn about x"},
	{FROM_MATRIX, 0, {V(-1, 0, 0, 0, -1, 0, 0, 0, 1)}, {0, 0, 0, 1}, "about z"},
	{FROM_MATRIX, 0, {V(5e-20f, 0, 0, 0, 5e-20f, 0, 0, 0, 5e-20f)}, {1, 0, 0, 0},
	 "a small multiple of 1"},
	{FROM_MATRIX, HZ_QUAT_XYZW, {V(1, 0.01f, 0, 0, 0.98f, -0.02f, 0.03f, 0, 1)},
	 {0.00501241f, -0.00747424f, -0.00244921f, 0.99995651f}, "a matrix off a rotation"},
	{FROM_MATRIX, 0, {V(0, 0, 0, 0, 0, 0, 0, 0, 0)}, {NAN, NAN, NAN, NAN}, "0"},
	{ANGLE, 0, {V(-1, 0, 0, 0)}, {0, 0, 0}, "no rotation, by -1"},
	{ANGLE, 0, {V(0, 0, 3, 0)}, {0, PI, 0}, "half a turn"},
	{ANGLE, 0, {V(-1, 1e-25f, 0, 0)}, {-2e-25f, 0, 0}, "a small angle, by -q"},
	{ANGLE, 0, {V(0, 0, 0, 0)}, {NAN, NAN, NAN}, "the angle of 0"},
	{FROM_ANGLE, 0, {V(0, 0, 0)}, {1, 0, 0, 0}, "no angle"},
	{FROM_ANGLE, 0, {V(1e-30f, 0, 0)}, {1, 5e-31f, 0, 0}, "a small angle"},
	{FROM_ANGLE, 0, {V(0, 0, 2 * PI)}, {-1, 0, 0, 0}, "a whole turn"},
	{EXP, 0, {V(0, 0, 0, 0)}, {1, 0, 0, 0}, "exp 0"},
	{EXP, 0, {V(200, 0, 0, 0)}, {INFINITY, 0, 0, 0}, "exp of a large number"},
	{EXP, 0, {V(0, PI, 0, 0)}, {-1, 0, 0, 0}, "exp of pi i"},
	{EXP, 0, {V(-INFINITY, 1, 0, 0)}, {0, 0, 0, 0}, "exp of -Inf"},
	{LOG, 0, {V(-1, 0, 0, 0)}, {0, PI, 0, 0}, "log -1"},
	{LOG, 0, {V(0, 0, 0, 0)}, {-INFINITY, 0, 0, 0}, "log 0"},
	{LOG, 0, {V(-1, 0, 0, 1e-40f)}, {0, 0, 0, PI}, "log near -1"},
	{LOG, 0, {V(1, 0, 1e-30f, 0)}, {0, 0, 1e-30f, 0}, "log near 1"},
	{LOG, 0, {V(3e38f, 0, 3e38f, 0)}, {88.943420f, 0, PI / 4, 0}, "log of a large number"},
	{SLERP, 0, {V(1, 0, 0, 0), V(-1, 0, 0, 0), V(0.3f)}, {1, 0, 0, 0}, "from 1 to -1"},
	{SLERP, HZ_QUAT_KEEP_SIGN, {V(1, 0, 0, 0), V(-1, 0, 0, 0), V(0.5f)}, {0, 1, 0, 0},
	 "the long way"},
	{SLERP, 0, {V(2, 0, 0, 0), V(1, 0, 0, 1), V(0.5f)}, {0.92387953f, 0, 0, 0.38268343f},
	 "an eighth of a turn"},
	{SLERP, 0, {V(1, 0, 0, 0), V(-1, 0, 0, -1), V(2)}, {0, 0, 0, 1}, "beyond b"},
	{SLERP, HZ_QUAT_KEEP_SIGN, {V(1, 0, 0, 0), V(-1, 0, 0, -1), V(0.5f)},
	 {0.38268343f, 0, 0, -0.92387953f}, "the long way to b"},
	{SLERP, HZ_QUAT_KEEP_SIGN, {V(0.1f, 0.7f, -0.5f, 0.3f), V(-0.1f, -0.7f, 0.5f, -0.3f),
	 V(0.5f)}, {-0.76376262f, 0.10910895f, -0.32732684f, -0.54554473f}, "from q to -q"},
	{SLERP, HZ_QUAT_KEEP_SIGN | HZ_QUAT_XYZW,
	 {V(3, -5, 7, 2), V(-9, 15, -21, -6), V(-0.5f)},
	 {-0.21442251f, 0.75047877f, 0.53605627f, 0.32163376f}, "from q to -3 q, backwards"},
	{SLERP, 0, {V(0, 0, 0, 0), V(1, 0, 0, 0), V(0.5f)}, {NAN, NAN, NAN, NAN}, "from 0"},
};

static void test_values(void)
{
	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
		const struct value *v = &values[i];
		const struct convert *k = &converts[v->kind];
		int good = 1;

		for (int d = 0; d < ndevs; d++) {
			float y[9];

			good &= one_element(&devs[d], v->kind, v->flags, v->in, y) == HZ_OK;
			for (int c = 0; c < k->parts[k->inputs]; c++) {
				const float want = v->out[c];

				if (isnan(want) ? isnan(y[c]) : isinf(want) ? y[c] == want :
				    fabsf(y[c] - want) <= (fabsf(want) < 1e-20f && want != 0 ?
							   1e-6f * fabsf(want) : 4e-7f *
							   (1 + fabsf(want))))
					continue;
				diag("%s: [%d] is %.9g, want %.9g", devs[d].name, c, (double)y[c],
				     (double)want);
				good = 0;
			}
		}
		ok(good, "%s: %s", k->name, v->what);
	}
}

static void test_refused(void)
{
	hz_context *const ctx = devs[0].ctx;
	const int device = devs[0].device;
	void *const p = (void *)(uintptr_t)4096;
	hz_tensor q = hz_tensor_2d(p, HZ_F32, device, 5, 4), r = hz_tensor_2d(p, HZ_F32, device, 5, 3);
	hz_tensor m4 = hz_tensor_3d((char *)p + 4096, HZ_F32, device, 5, 3, 4);
	hz_tensor t = hz_tensor_1d((char *)p + 8192, HZ_F32, device, 4);
	hz_tensor y = hz_tensor_2d((char *)p + 12288, HZ_F32, device, 5, 4);

	is_int(hz_quat_to_matrix(ctx, &q, &m4, 0), HZ_ESHAPE, "a matrix of 3 x 4");
	is_str(hz_errmsg(ctx), "quat_to_matrix: m.shape[2] is 4, must be 3", "its message");
	is_int(hz_quat_to_axis_angle(ctx, &q, &y, 0), HZ_ESHAPE, "a vector of 4");
	is_str(hz_errmsg(ctx), "quat_to_axis_angle: r.shape[1] is 4, must be 3", "its message");
	is_int(hz_quat_from_axis_angle(ctx, &r, &y, HZ_QUAT_KEEP_SIGN), HZ_EINVAL, "a flag");
	is_int(hz_quat_slerp(ctx, &q, &q, &t, &y, 0), HZ_ESHAPE, "four numbers t for five");
	is_str(hz_errmsg(ctx), "quat_slerp: t.shape[0] is 4, must be 5, as y, or 1", "its message");
	is_int(hz_quat_to_axis_angle(ctx, &q, &r, 0), HZ_EALIAS, "r overlaps q");
}

int main(void)
{
	rnd = tap_seed();
	dev_open_all();
	test_values();
	for (int kind = 0; kind < CONVERTS; kind++) {
		int good = 1;

		for (int i = 0; i < (tap_quick() ? 12 : 60) && good; i++)
			good = one_convert(kind, i % 20 == 19 ? 20000 : 400);
		ok(good, "%s of random shapes, layouts and flags", converts[kind].name);
	}
	test_refused();
	dev_close_all();
	return done_testing();
}
