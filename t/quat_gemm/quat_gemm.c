/*
 * quat_gemm.c - hz_quat_gemm() and its packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <float.h>

#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/quat/quat.h"

static uint64_t rnd;
static int quick;

/* ---- A product ------------------------------------------------------------------------------- */

struct gemm {
	hz_quat_gemm_opts o;
	int pack, pack_t;		/* packs A, or its transpose */
	int bias, pre;			/* with bias, with pre */
	int dtype, c_dtype;
	int64_t m, n, k;
	int ndim;
	int64_t batch[3], a_batch[3], b_batch[3];
	int a_ndim, b_ndim;
	int wild;			/* C contains NaN, and beta is 0 */
	char text[300];
};

static int transposes(int op)
{
	return op == HZ_QUAT_T || op == HZ_QUAT_H;
}

static int conjugates(int op)
{
	return op == HZ_QUAT_C || op == HZ_QUAT_H;
}

static int run_gemm(hz_context *ctx, const hz_tensor *in, hz_tensor *out, const void *arg)
{
	const struct gemm *g = arg;
	hz_quat_gemm_opts o = g->o, pack = {.method = o.method, .precision = o.precision,
					    .flags = o.flags & HZ_QUAT_XYZW};
	hz_packed packed;
	void *data = NULL;
	size_t bytes;
	int st;

	o.bias = g->bias ? &in[2] : NULL;
	o.pre = g->pre ? &out[1] : NULL;
	if (!g->pack)
		return hz_quat_gemm(ctx, &in[0], &in[1], &out[0], &o);
	/* in[0] is op(A), or its transpose without conjugation: see run() */
	pack.op_a = g->pack_t ? HZ_QUAT_T : HZ_QUAT_N;
	st = hz_quat_gemm_pack_bytes(ctx, &in[0], &pack, &bytes);
	if (!st)
		st = hz_alloc(ctx, &data, bytes, hz_device(ctx));
	if (!st)
		st = hz_quat_gemm_pack(ctx, &in[0], data, bytes, &packed, &pack);
	o.packed = &packed;
	if (!st)
		st = hz_quat_gemm(ctx, NULL, &in[1], &out[0], &o);
	if (!st)
		st = hz_sync(ctx);
	if (data)
		hz_free(ctx, data, hz_device(ctx));
	return st;
}

/* ---- The definition -------------------------------------------------------------------------- */

/* The real activations by definition */
static real activation(int kind, real x, real slope)
{
	switch (kind) {
	case HZ_ACT_RELU:
		return x > 0 || isnan(x) ? x : 0;
	case HZ_ACT_LEAKY:
		return x < 0 ? slope * x : x;
	case HZ_ACT_TANH:
		return tanhl(x);
	case HZ_ACT_SIGMOID:
		return 1 / (1 + expl(-x));
	case HZ_ACT_GELU:
		return x * (1 + erfl(x / sqrtl(2))) / 2;
	case HZ_ACT_SILU:
		return x / (1 + expl(-x));
	default:
		return x;
	}
}

/* The activation of a quaternion; *grow: the factor by which it may enlarge errors */
static quat activate(int kind, quat t, real slope, double *grow)
{
	const real n = q_norm(t);
	real f;

	*grow = 1.2;
	if (kind == HZ_ACT_LEAKY && fabsl(slope) > 1)
		*grow = (double)fabsl(slope);
	if (kind == HZ_ACT_MODRELU) {
		f = n == 0 ? 0 : (n + slope > 0 ? n + slope : 0) / n;
		*grow = n == 0 ? 1 : 2 + 2 * (double)fabsl(slope / n);
		return q_scale(t, f);
	}
	if (kind == HZ_ACT_NORMCLIP)
		return n <= slope ? t : q_scale(t, slope / n);
	for (int c = 0; c < 4; c++)
		t.c[c] = activation(kind, t.c[c], slope);
	return t;
}

/* The error of an accumulator relative to sum |a| |b|, by method and precision */
static double unit_of_sum(const struct gemm *g)
{
	const int fast = g->o.method == HZ_QUAT_FAST, p = g->o.precision;
	const double growth = 12 + 3 * sqrt((double)g->k);

	if (g->dtype == HZ_F64)
		return growth * 0x1p-53;
	if (g->dtype != HZ_F32 && (p == HZ_PRECISION_AUTO || p == HZ_PRECISION_HALF))
		return (fast ? 0x1p-9 : 0) + growth * 0x1p-24;
	if (p == HZ_PRECISION_HALF || p == HZ_PRECISION_TF32)
		return 0x1p-9 + growth * 0x1p-24;
	return growth * 0x1p-24 * (p == HZ_PRECISION_F32 ? 1 : 3);
}

static void put_quat(const struct side *s, real *want, double *tol, int64_t i, quat v, double error,
		     int xyzw)
{
	for (int c = 0; c < 4; c++) {
		const int64_t at = 4 * i + (xyzw ? (c + 3) % 4 : c);

		want[at] = v.c[c];
		tol[at] = error + rounding(s->dtype, v.c[c], error);
	}
}

static void expect(const struct gemm *g, const struct side *a, const struct side *b,
		   const struct side *bias, const struct quat_call *call)
{
	const hz_quat_gemm_opts *const o = &g->o;
	const struct side *const c = call->outs[0];
	const int xyzw = o->flags & HZ_QUAT_XYZW, reversed = o->flags & HZ_QUAT_REVERSED;
	const int stored_t = g->pack ? g->pack_t != transposes(o->op_a) : transposes(o->op_a);
	const double u = unit_of(g->dtype);
	quat alpha = {{1, 0, 0, 0}};
	int64_t count = 1;

	if (o->given & HZ_QUAT_GEMM_GIVEN_ALPHA)
		alpha = (quat){{(real)o->alpha[0], (real)o->alpha[1], (real)o->alpha[2],
				(real)o->alpha[3]}};
	for (int d = 0; d < g->ndim; d++)
		count *= g->batch[d];
	for (int64_t item = 0; item < count; item++) {
		const int64_t ia = side_broadcast(a, 3, g->ndim, g->batch, item) * g->m * g->k;
		const int64_t ib = side_broadcast(b, 3, g->ndim, g->batch, item) * g->k * g->n;

		for (int64_t i = 0; i < g->m; i++) {
			for (int64_t j = 0; j < g->n; j++) {
				const int64_t at = (item * g->m + i) * g->n + j;
				quat t = {{0}}, old = {{0}}, y;
				real size = 0, plus = 0;
				double error, grow;

				for (int64_t l = 0; l < g->k; l++) {
					quat p = side_quat(a, ia + (stored_t ? l * g->m + i
									     : i * g->k + l), xyzw);
					quat q = side_quat(b, ib + (transposes(o->op_b)
									    ? j * g->k + l
									    : l * g->n + j), xyzw);

					p = q_conj_if(conjugates(o->op_a), p);
					q = q_conj_if(conjugates(o->op_b), q);
					t = q_add(t, reversed ? q_mul(q, p) : q_mul(p, q));
					size += q_norm(p) * q_norm(q);
				}
				t = q_mul(alpha, t);
				if (o->beta != 0) {
					old = q_scale(side_quat(c, at, xyzw), (real)o->beta);
					plus += q_norm(old);
				}
				t = q_add(t, old);
				if (bias) {
					const quat v = side_quat(
						bias, o->flags & HZ_QUAT_BIAS_COLUMNS ? j : i,
							xyzw);

					t = q_add(t, v);
					plus += q_norm(v);
				}
				size *= q_norm(alpha);
				error = (double)size * (unit_of_sum(g) + 6 * u) +
					6 * u * (double)plus;
				if (g->pre)
					put_quat(call->outs[1], call->want[1], call->tol[1], at, t,
						 error, xyzw);
				y = activate(o->activation, t, (real)o->slope, &grow);
				error = error * grow;
				if (o->activation)
					error += 16 * u * (1 + (double)q_norm(y));
				put_quat(c, call->want[0], call->tol[0], at, y, error, xyzw);
			}
		}
	}
}

static struct side matrix(int dtype, int ndim, const int64_t *batch, int64_t rows, int64_t cols)
{
	int64_t shape[HZ_MAXDIM];
	struct side s;

	memcpy(shape, batch, (size_t)ndim * sizeof(*shape));
	shape[ndim] = rows;
	shape[ndim + 1] = cols;
	shape[ndim + 2] = 4;
	s = side_new(&rnd, dtype, ndim + 3, shape, 0);
	side_random(&s, &rnd, 1);
	return s;
}

static int run(struct gemm *g)
{
	const hz_quat_gemm_opts *const o = &g->o;
	const int a_t = g->pack ? g->pack_t != transposes(o->op_a) : transposes(o->op_a);
	const int b_t = transposes(o->op_b), by_columns = o->flags & HZ_QUAT_BIAS_COLUMNS;
	struct side a = matrix(g->dtype, g->a_ndim, g->a_batch, a_t ? g->k : g->m,
			       a_t ? g->m : g->k);
	struct side b = matrix(g->dtype, g->b_ndim, g->b_batch, b_t ? g->n : g->k,
			       b_t ? g->k : g->n);
	struct side c = matrix(g->c_dtype, g->ndim, g->batch, g->m, g->n);
	struct side pre = matrix(g->c_dtype, g->ndim, g->batch, g->m, g->n);
	const int64_t bias_shape[] = {by_columns ? g->n : g->m, 4};
	struct side bias = side_new(&rnd, rnd_below(&rnd, 2) ? HZ_F32 : g->c_dtype, 2, bias_shape,
				    0);
	struct quat_call call = {.ins = {&a, &b, &bias}, .nins = g->bias ? 3 : 2,
				 .outs = {&c, &pre}, .nouts = g->pre ? 2 : 1, .same = {-1, -1},
				 .run = run_gemm, .arg = g, .what = g->text};
	int good;

	side_random(&bias, &rnd, 1);
	if (o->beta == 0 && g->wild) {
		for (int64_t i = 0; i < c.count; i++)
			side_set(&c, i, NAN);
	}
	snprintf(g->text, sizeof(g->text),
		 "gemm %s to %s m %lld n %lld k %lld ndim %d/%d/%d op %d %d method %d precision %d "
		 "act %d flags %u alpha %g beta %g pack %d%d bias %d pre %d a [%lld %lld %lld] b "
		 "[%lld %lld %lld]",
		 hz_dtype_name(g->dtype), hz_dtype_name(g->c_dtype), (long long)g->m,
		 (long long)g->n, (long long)g->k, g->a_ndim, g->b_ndim, g->ndim, o->op_a, o->op_b,
		 o->method, o->precision, o->activation, o->flags, o->alpha[0], o->beta, g->pack,
		 g->pack_t, g->bias, g->pre, (long long)a.stride[a.ndim - 3],
		 (long long)a.stride[a.ndim - 2], (long long)a.stride[a.ndim - 1],
		 (long long)b.stride[b.ndim - 3], (long long)b.stride[b.ndim - 2],
		 (long long)b.stride[b.ndim - 1]);
	for (int i = 0; i < call.nouts; i++) {
		call.want[i] = calloc((size_t)c.count + 1, sizeof(real));
		call.tol[i] = calloc((size_t)c.count + 1, sizeof(double));
	}
	expect(g, &a, &b, g->bias ? &bias : NULL, &call);
	good = quat_call_check(&call);
	for (int i = 0; i < call.nouts; i++) {
		free(call.want[i]);
		free(call.tol[i]);
	}
	side_free(&a);
	side_free(&b);
	side_free(&c);
	side_free(&pre);
	side_free(&bias);
	return good;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static struct gemm random_gemm(int64_t most)
{
	struct gemm g = {.dtype = random_dtype(&rnd)};
	hz_quat_gemm_opts *const o = &g.o;

	g.c_dtype = g.dtype != HZ_F64 && rnd_below(&rnd, 3) == 0 ? HZ_F32 : g.dtype;
	g.m = random_size(&rnd, most);
	g.n = rnd_below(&rnd, 4) ? random_size(&rnd, most) : 1 + rnd_below(&rnd, 9);
	g.k = rnd_below(&rnd, 20) ? random_size(&rnd, most) : 0;
	if (rnd_below(&rnd, 40) == 0)
		*(rnd_below(&rnd, 2) ? &g.m : &g.n) = 0;
	g.ndim = rnd_below(&rnd, 3) ? 0 : (int)rnd_below(&rnd, 4);
	g.a_ndim = (int)rnd_below(&rnd, g.ndim + 1);
	g.b_ndim = (int)rnd_below(&rnd, g.ndim + 1);
	for (int d = 0; d < g.ndim; d++)
		g.batch[d] = 1 + rnd_below(&rnd, 3);
	for (int d = 0; d < g.a_ndim; d++)
		g.a_batch[d] = rnd_below(&rnd, 3) ? g.batch[g.ndim - g.a_ndim + d] : 1;
	for (int d = 0; d < g.b_ndim; d++)
		g.b_batch[d] = rnd_below(&rnd, 3) ? g.batch[g.ndim - g.b_ndim + d] : 1;
	o->op_a = (int32_t)rnd_below(&rnd, 4);
	o->op_b = (int32_t)rnd_below(&rnd, 4);
	o->method = (int32_t)rnd_below(&rnd, 3);
	o->precision = rnd_below(&rnd, 2) ? 0 : (int32_t)rnd_below(&rnd, 5);
	o->flags = (uint32_t)rnd_u64(&rnd) & (HZ_QUAT_XYZW | HZ_QUAT_REVERSED);
	o->given = (uint32_t)rnd_below(&rnd, 2) * HZ_QUAT_GEMM_GIVEN_ALPHA;
	o->activation = rnd_below(&rnd, 2) ? 0 : (int32_t)rnd_below(&rnd, 9);
	o->slope = ref_slope(o->activation, o->activation == HZ_ACT_NORMCLIP ? 1.5 : rnd_uniform(&rnd));
	o->beta = rnd_below(&rnd, 2) ? 0 : rnd_normal(&rnd);
	for (int c = 0; c < 4 && o->given; c++)
		o->alpha[c] = c == 0 || rnd_below(&rnd, 2) ? (double)(float)rnd_normal(&rnd) : 0;
	o->beta = (double)(float)o->beta;
	o->slope = (double)(float)o->slope;
	g.wild = (int)rnd_below(&rnd, 2);
	g.bias = (int)rnd_below(&rnd, 2);
	if (g.bias && rnd_below(&rnd, 2))
		o->flags |= HZ_QUAT_BIAS_COLUMNS;
	g.pre = rnd_below(&rnd, 4) == 0;
	g.pack = rnd_below(&rnd, 3) == 0;
	g.pack_t = (int)rnd_below(&rnd, 2);
	return g;
}

static void test_random(void)
{
	int good = 1;

	for (int i = 0; i < (quick ? 60 : 600) && good; i++) {
		struct gemm g = random_gemm(40);

		good = run(&g);
	}
	ok(good, "random products");
	good = 1;
	for (int i = 0; i < (quick ? 4 : 25) && good; i++) {
		struct gemm g = random_gemm(150);

		g.ndim = g.a_ndim = g.b_ndim = 0;
		g.m += rnd_below(&rnd, 100);
		good = run(&g);
	}
	ok(good, "larger products");
}

/* All pairs of op_a and op_b, both orders of the factors, both methods, packed or not */
static void test_ops(void)
{
	for (int method = HZ_QUAT_DIRECT; method <= HZ_QUAT_FAST; method++) {
		int good = 1;

		for (int i = 0; i < 64 && good; i++) {
			struct gemm g = {.dtype = HZ_F32, .c_dtype = HZ_F32, .m = 5, .n = 7, .k =
				9};

			g.o.method = method;
			g.o.op_a = i & 3;
			g.o.op_b = i >> 2 & 3;
			g.o.flags = i & 16 ? HZ_QUAT_REVERSED : 0;
			g.pack = i >> 5;
			good = run(&g);
		}
		ok(good, "N T C H on both sides, %s",
		   method == HZ_QUAT_FAST ? "fast" : "direct");
	}
}

/* Sizes at the edges of vectors and tiles, one dimension at a time */
static void test_edges(void)
{
	static const int64_t edge[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49,
				       63, 64, 65, 127, 128, 129};
	int good = 1;

	for (size_t i = 0; i < sizeof(edge) / sizeof(*edge) && good; i++) {
		for (int d = 0; d < 3 && good; d++) {
			for (int method = HZ_QUAT_DIRECT; method <= HZ_QUAT_FAST && good;
			     method++) {
				struct gemm g = {.dtype = random_dtype(&rnd), .m = 3, .n = 5, .k =
					4};

				g.c_dtype = g.dtype;
				*(d == 0 ? &g.m : d == 1 ? &g.n : &g.k) = edge[i];
				g.o.method = method;
				g.pack = (int)rnd_below(&rnd, 2);
				good = run(&g);
			}
		}
	}
	ok(good, "sizes at edges");
}

/* Few columns or rows, for the GEMV routes, with several blocks of k */
static void test_gemv(void)
{
	static const int64_t rows[] = {1, 2, 3, 5, 6, 7, 16, 61, 64, 67, 130};
	static const int64_t ks[] = {1, 3, 4, 5, 16, 63, 64, 65, 127, 129, 200, 2049, 8195};
	int good = 1;

	for (int i = 0; i < (quick ? 40 : 300) && good; i++) {
		const int64_t few = 1 + rnd_below(&rnd, i % 2 ? 9 : 67);
		const int64_t k = ks[rnd_below(&rnd, 13)];
		const int64_t other = rows[rnd_below(&rnd, k > 1000 ? 6 : 11)];
		const int swap = (int)rnd_below(&rnd, 2);
		struct gemm g = {.dtype = random_dtype(&rnd), .m = swap ? few : other,
				 .n = swap ? other : few, .k = k};

		g.c_dtype = g.dtype;
		g.o.method = HZ_QUAT_DIRECT + (int)rnd_below(&rnd, 2);
		g.o.op_a = (int)rnd_below(&rnd, 4);
		g.o.op_b = (int)rnd_below(&rnd, 4);
		g.pack = (int)rnd_below(&rnd, 2);
		good = run(&g);
	}
	ok(good, "few columns or rows");
}

/* Sums alone, with a bias or not, around whole vectors and the largest k of quads in place */
static void test_small(void)
{
	static const int64_t ks[] = {0, 1, 2, 3, 4, 7, 8, 15, 33, 64, 65};
	int good = 1;

	for (int i = 0; i < (quick ? 60 : 400) && good; i++) {
		struct gemm g = random_gemm(i % 4 ? 9 : 36);

		g.k = ks[rnd_below(&rnd, 11)];
		g.o.beta = g.o.activation = g.pre = 0;
		g.o.slope = 0;
		g.o.given = 0;
		memset(g.o.alpha, 0, sizeof(g.o.alpha));
		if (g.pack)
			g.ndim = g.a_ndim = g.b_ndim = 0;
		good = run(&g);
	}
	ok(good, "small products");
}

/* A layer of 16 bits, c^T = a b^T with contiguous rows, at some elements; the others are written */
static int run_layer(struct dev *dev, int dtype, int64_t m, int64_t n, int64_t k)
{
	const size_t size[] = {(size_t)(m * k) * 8, (size_t)(k * n) * 8, (size_t)(m * n) * 8};
	const hz_quat_gemm_opts o = {.method = HZ_QUAT_DIRECT};
	const double unit = (12 + 3 * sqrt((double)k)) * 0x1p-24;
	unsigned char *image[3];
	struct area at[3];
	void *data[3];
	hz_tensor t[3];
	size_t bytes = 0;
	int good = 1;

	for (int i = 0; i < 3; i++) {
		at[i] = area_new(dev, size[i], 0);
		image[i] = image_new(size[i], 0, &data[i]);
		for (int64_t e = 0; i < 2 && e < (int64_t)(size[i] / 2); e++)
			ref_put(dtype, data[i], e, rnd_below(&rnd, 512) * 0x1p-8 - 1);
		area_write(&at[i], image[i]);
	}
	t[0] = hz_tensor_3d(at[0].data, dtype, dev->device, m, k, 4);
	t[1] = hz_tensor_3d(at[1].data, dtype, dev->device, k, n, 4);
	t[2] = hz_tensor_3d(at[2].data, dtype, dev->device, m, n, 4);
	t[1].stride[0] = t[2].stride[0] = 4;
	t[1].stride[1] = 4 * k;
	t[2].stride[1] = 4 * m;
	if (RECORD(dev->ctx, hz_quat_gemm(dev->ctx, &t[0], &t[1], &t[2], &o), &bytes) != HZ_OK ||
	    hz_reserve(dev->ctx, bytes) != HZ_OK ||
	    hz_quat_gemm(dev->ctx, &t[0], &t[1], &t[2], &o) != HZ_OK)
		bail("%s", hz_errmsg(dev->ctx));
	area_read(&at[2], image[2]);
	for (size_t i = 0; i < at[2].total; i++)
		good &= (i >= GUARD && i < GUARD + size[2]) || image[2][i] == GUARD_BYTE;
	for (int64_t q = 0; q < m * n; q++)
		good &= memcmp((char *)data[2] + 8 * q, image[2], 8) != 0;
	for (int i = 0; i < 300 && good; i++) {
		const int64_t row = i % 3 ? rnd_below(&rnd, m) : m - 1;
		const int64_t col = i % 4 ? rnd_below(&rnd, n) : n - 1;
		quat sum = {{0}};
		real most = 0;

		for (int64_t l = 0; l < k; l++) {
			quat p, q;

			for (int c = 0; c < 4; c++) {
				p.c[c] = (real)ref_get(dtype, data[0], 4 * (row * k + l) + c);
				q.c[c] = (real)ref_get(dtype, data[1], 4 * (col * k + l) + c);
			}
			sum = q_add(sum, q_mul(p, q));
			most += q_norm(p) * q_norm(q);
		}
		for (int c = 0; c < 4; c++) {
			const double e = (double)most * unit;
			const real got = (real)ref_get(dtype, data[2], 4 * (col * m + row) + c);

			good &= fabsl(got - sum.c[c]) <=
				(real)(e + rounding(dtype, sum.c[c], e));
		}
	}
	for (int i = 0; i < 3; i++) {
		area_free(&at[i]);
		free(image[i]);
	}
	return good;
}

/* The last ones are for wgmma_in_place: each of its tiles, and k in one share up to eight */
static void test_layers(void)
{
	static const int64_t sizes[][3] = {
		{60, 70, 100}, {60, 20, 200}, {200, 260, 200}, {500, 520, 24}, {130, 130, 800},
		{500, 520, 100}, {300, 520, 700}, {700, 770, 136}, {516, 1000, 24},
		{516, 1000, 136},
	};
	const int count = tap_cuda() ? (int)(sizeof(sizes) / sizeof(*sizes)) : 1;

	for (int i = 0; i < count; i++) {
		const int64_t *const s = sizes[i];

		for (int d = 0; d < ndevs; d++)
			ok(run_layer(&devs[d], i % 2 ? HZ_F16 : HZ_BF16, s[0], s[1], s[2]),
			   "layer of %lld by %lld quaternions by %lld, %s", (long long)s[0],
			   (long long)s[2], (long long)s[1], devs[d].name);
	}
}

/* ---- Accuracy and NaN ------------------------------------------------------------------------ */

/* C = A B of contiguous f32 matrices on one context */
static void multiply(struct dev *dev, const float *a, const float *b, float *c, int64_t m,
		     int64_t n,
		     int64_t k, int method, int precision)
{
	const size_t size[] = {(size_t)(m * k) * 16, (size_t)(k * n) * 16, (size_t)(m * n) * 16};
	struct area at[3];
	const hz_quat_gemm_opts o = {.method = method, .precision = precision};
	unsigned char *image = malloc(2 * GUARD + size[0] + size[1] + size[2]);
	hz_tensor t[3];
	size_t bytes = 0;

	for (int i = 0; i < 3; i++)
		at[i] = area_new(dev, size[i], 0);
	memcpy(image + GUARD, a, size[0]);
	area_write(&at[0], image);
	memcpy(image + GUARD, b, size[1]);
	area_write(&at[1], image);
	t[0] = hz_tensor_3d(at[0].data, HZ_F32, dev->device, m, k, 4);
	t[1] = hz_tensor_3d(at[1].data, HZ_F32, dev->device, k, n, 4);
	t[2] = hz_tensor_3d(at[2].data, HZ_F32, dev->device, m, n, 4);
	if (RECORD(dev->ctx, hz_quat_gemm(dev->ctx, &t[0], &t[1], &t[2], &o), &bytes) != HZ_OK ||
	    hz_reserve(dev->ctx, bytes) != HZ_OK ||
	    hz_quat_gemm(dev->ctx, &t[0], &t[1], &t[2], &o) != HZ_OK)
		bail("%s", hz_errmsg(dev->ctx));
	area_read(&at[2], image);
	memcpy(c, image + GUARD, size[2]);
	free(image);
	for (int i = 0; i < 3; i++)
		area_free(&at[i]);
}

/* The rms error of each component against a product in double, relative to the rms of that
 * component */
static void component_errors(const float *a, const float *b, const float *c, int64_t m, int64_t n,
			     int64_t k, double *error)
{
	double e[4] = {0}, s[4] = {0};

	for (int64_t i = 0; i < m; i++) {
		for (int64_t j = 0; j < n; j++) {
			double t[4] = {0};

			for (int64_t l = 0; l < k; l++) {
				const float *p = a + 4 * (i * k + l), *q = b + 4 * (l * n + j);
				const double pw = (double)p[0], px = (double)p[1];
				const double py = (double)p[2], pz = (double)p[3];
				const double qw = (double)q[0], qx = (double)q[1];
				const double qy = (double)q[2], qz = (double)q[3];

				t[0] += pw * qw - px * qx - py * qy - pz * qz;
				t[1] += pw * qx + px * qw + py * qz - pz * qy;
				t[2] += pw * qy - px * qz + py * qw + pz * qx;
				t[3] += pw * qz + px * qy - py * qx + pz * qw;
			}
			for (int d = 0; d < 4; d++) {
				const double g = (double)c[4 * (i * n + j) + d];

				e[d] += (g - t[d]) * (g - t[d]);
				s[d] += t[d] * t[d];
			}
		}
	}
	for (int d = 0; d < 4; d++)
		error[d] = sqrt(e[d] / s[d]);
}

#define N 128

/*
 * The accuracy that hz_quat_gemm() promises for the fast method: at most twice the error of the
 * direct method if components have similar magnitudes. Its errors scale with a quaternion's largest
 * component, so the others lose digits where real parts are 1000 times larger.
 */
static void test_accuracy(void)
{
	const size_t count = (size_t)N * N * 4;
	float *a = malloc(count * 4), *b = malloc(count * 4), *c = malloc(count * 4);
	double direct[4], fast[4];

	for (int d = 0; d < ndevs; d++) {
		double worst = 0, most = 0;

		for (size_t i = 0; i < count; i++) {
			a[i] = (float)rnd_normal(&rnd);
			b[i] = (float)rnd_normal(&rnd);
		}
		multiply(&devs[d], a, b, c, N, N, N, HZ_QUAT_DIRECT, HZ_PRECISION_F32);
		component_errors(a, b, c, N, N, N, direct);
		multiply(&devs[d], a, b, c, N, N, N, HZ_QUAT_FAST, HZ_PRECISION_F32);
		component_errors(a, b, c, N, N, N, fast);
		for (int i = 0; i < 4; i++)
			worst = fmax(worst, fast[i] / direct[i]);
		ok(direct[0] < 1e-6 && worst <= 2, "fast within twice the direct error: %.3g, %.2f "
		   "times that, %s", direct[0], worst, devs[d].name);
		for (int p = HZ_PRECISION_AUTO; p <= HZ_PRECISION_HALF; p++) {
			multiply(&devs[d], a, b, c, N, N, N, HZ_QUAT_FAST, p);
			component_errors(a, b, c, N, N, N, fast);
			ok(fast[0] < (p < HZ_PRECISION_TF32 ? 1e-6 : 1e-3), "precision %d: %.3g", p,
			   fast[0]);
		}
		for (size_t i = 0; i < count; i += 4) {
			a[i] *= 1000;
			b[i] *= 1000;
		}
		multiply(&devs[d], a, b, c, N, N, N, HZ_QUAT_DIRECT, HZ_PRECISION_F32);
		component_errors(a, b, c, N, N, N, direct);
		multiply(&devs[d], a, b, c, N, N, N, HZ_QUAT_FAST, HZ_PRECISION_F32);
		component_errors(a, b, c, N, N, N, fast);
		for (int i = 1; i < 4; i++)
			most = fmax(most, fast[i] / direct[i]);
		ok(direct[1] < 1e-6 && fast[0] < 2e-6, "large real parts: %.3g, fast %.3g",
		   direct[0],
		   fast[0]);
		ok(most > 20, "the small components of the fast method lose %.0f times as much",
		   most);
	}
	free(a);
	free(b);
	free(c);
}

/* A NaN in a row of A stays in that row of C; the fast method spreads it to all components. */
static void test_nan(void)
{
	enum { M = 20, K = 33, COLS = 18 };
	static float a[M * K * 4], b[K * COLS * 4], c[M * COLS * 4];

	for (int i = 0; i < M * K * 4; i++)
		a[i] = (float)rnd_normal(&rnd);
	for (int i = 0; i < K * COLS * 4; i++)
		b[i] = (float)rnd_normal(&rnd);
	a[4 * (3 * K + 5) + 2] = NAN;
	for (int d = 0; d < ndevs; d++) {
		for (int method = HZ_QUAT_DIRECT; method <= HZ_QUAT_FAST; method++) {
			for (int p = HZ_PRECISION_AUTO; p <= HZ_PRECISION_HALF; p++) {
				int good = 1;

				multiply(&devs[d], a, b, c, M, COLS, K, method, p);
				for (int i = 0; i < M * COLS * 4; i++)
					good &= isnan(c[i]) == (i / (4 * COLS) == 3);
				if (!good || p == HZ_PRECISION_AUTO)
					ok(good,
					   "NaN stays in its row, method %d, precision %d, %s",
					   method, p, devs[d].name);
			}
		}
	}
}

/* Inf times finite numbers is Inf, not NaN, also in split precision. Forced routes are left out:
 * planar f16, which is chosen for more columns only, cannot represent Inf. */
static void test_inf(void)
{
	enum { M = 40, K = 133, COLS = 8 };
	static float a[M * K * 4], b[K * COLS * 4], c[M * COLS * 4];

	for (int i = 0; i < M * K * 4; i++)
		a[i] = (float)rnd_normal(&rnd);
	for (int i = 0; i < K * COLS * 4; i++)
		b[i] = (float)fmax(fmin(rnd_normal(&rnd), 0.9), -0.9);
	a[4 * (3 * K + 5) + 2] = INFINITY;
	a[4 * (35 * K + 132)] = -FLT_MAX;	/* it would round to Inf with 11 bits */
	for (int d = 0; d < ndevs; d++) {
		for (int cols = 1; cols <= COLS && !devs[d].ctx->any_forced; cols++) {
			int good = 1;

			multiply(&devs[d], a, b, c, M, cols, K, HZ_QUAT_DIRECT, HZ_PRECISION_AUTO);
			for (int i = 0; i < M * cols * 4; i++)
				good &= i / (4 * cols) == 3 ? isinf(c[i]) : isfinite(c[i]);
			if (!good || cols == COLS)
				ok(good, "Inf is no NaN, %d columns, %s", cols, devs[d].name);
		}
	}
}

/* ---- Packed matrices and contexts ------------------------------------------------------------ */

/* A context can use what another one packed, and gives the same bits as that one. */
static void test_share(void)
{
	enum { M = 37, K = 29, COLS = 11 };
	static float a[M * K * 4], b[K * COLS * 4], want[M * COLS * 4], got[M * COLS * 4];
	hz_packed packed;
	size_t bytes = 0;
	void *data;

	if (tap_cuda()) {
		skip(1, "one context");
		return;
	}
	for (int i = 0; i < M * K * 4; i++)
		a[i] = (float)rnd_normal(&rnd);
	for (int i = 0; i < K * COLS * 4; i++)
		b[i] = (float)rnd_normal(&rnd);
	for (int method = HZ_QUAT_DIRECT; method <= HZ_QUAT_FAST; method++) {
		hz_tensor ta = hz_tensor_3d(a, HZ_F32, HZ_CPU, M, K, 4);
		hz_tensor tb = hz_tensor_3d(b, HZ_F32, HZ_CPU, K, COLS, 4);
		hz_tensor tw = hz_tensor_3d(want, HZ_F32, HZ_CPU, M, COLS, 4), tg = tw;
		hz_quat_gemm_opts o = {.method = method};
		int good = 1;

		tg.data = got;
		good = hz_quat_gemm_pack_bytes(devs[0].ctx, &ta, &o, &bytes) == HZ_OK;
		hz_alloc(devs[0].ctx, &data, bytes, HZ_CPU);
		good &= hz_quat_gemm_pack(devs[0].ctx, &ta, data, bytes, &packed, &o) == HZ_OK;
		for (int d = 0; d < ndevs; d++) {
			void *own = NULL;
			hz_packed own_packed;

			hz_alloc(devs[d].ctx, &own, bytes, HZ_CPU);
			good &= hz_quat_gemm_pack(devs[d].ctx, &ta, own, bytes, &own_packed,
						  &o) == HZ_OK;
			o.packed = &own_packed;
			good &= hz_quat_gemm(devs[d].ctx, NULL, &tb, &tw, &o) == HZ_OK;
			o.packed = &packed;
			o.method = HZ_QUAT_AUTO;	/* as in the packed matrix */
			good &= hz_quat_gemm(devs[d].ctx, NULL, &tb, &tg, &o) == HZ_OK;
			good &= same_bits(got, want, M * COLS * 4, 4);
			o.packed = NULL;
			o.method = method;
			hz_free(devs[d].ctx, own, HZ_CPU);
		}
		ok(good, "packed in one context, used in all, method %d", method);
		hz_free(devs[0].ctx, data, HZ_CPU);
	}
}

/* HZ_QUAT_AUTO follows the context's preference: the bits show which method ran. */
static void test_prefer(void)
{
	enum { S = 40 };		/* a GEMV is always direct */
	static float a[S * S * 4], b[S * S * 4], c[4][S * S * 4];
	const uint32_t prefer[] = {0, HZ_QUAT_PREFER_DIRECT, HZ_QUAT_PREFER_FAST};

	for (int i = 0; i < S * S * 4; i++) {
		a[i] = (float)rnd_normal(&rnd);
		b[i] = (float)rnd_normal(&rnd);
	}
	for (int i = 0; i < 3; i++) {
		hz_options o = {.device = tap_cuda() ? HZ_CUDA : HZ_CPU, .flags = prefer[i]};
		struct dev dev = {0};

		if (hz_open(&dev.ctx, &o) != HZ_OK)
			bail("%s", hz_open_errmsg());
		dev.device = hz_device(dev.ctx);
		multiply(&dev, a, b, c[i], S, S, S, HZ_QUAT_AUTO, HZ_PRECISION_F32);
		if (i == 0)
			multiply(&dev, a, b, c[3], S, S, S, HZ_QUAT_FAST, HZ_PRECISION_F32);
		hz_close(dev.ctx);
	}
	is_bits(c[0], c[1], S * S * 4, 4, "AUTO is direct");
	is_bits(c[2], c[3], S * S * 4, 4, "or fast where the context prefers it");
	ok(memcmp(c[0], c[2], sizeof(c[0])) != 0, "which are not the same");
}

/* Strides of dimensions of one element, and of empty views, are ignored. */
static void test_strides(void)
{
	static const int64_t far[] = {INT64_MAX, INT64_MIN, (int64_t)1 << 61};
	float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, bias[4] = {1, 1, 1, 1}, c[4] = {0};
	hz_options options = {.device = HZ_CPU};
	hz_context *ctx;

	if (hz_open(&ctx, &options) != HZ_OK)
		bail("%s", hz_open_errmsg());
	for (int i = 0; i < 3; i++) {
		hz_tensor ta = hz_tensor_4d(a, HZ_F32, HZ_CPU, 1, 1, 1, 4);
		hz_tensor tb = hz_tensor_4d(b, HZ_F32, HZ_CPU, 1, 1, 1, 4);
		hz_tensor tc = hz_tensor_4d(c, HZ_F32, HZ_CPU, 1, 1, 1, 4);
		hz_tensor tbias = hz_tensor_2d(bias, HZ_F32, HZ_CPU, 1, 4);
		const hz_quat_gemm_opts o = {.bias = &tbias, .beta = 1};

		for (int d = 0; d < 3; d++)
			ta.stride[d] = tb.stride[d] = tc.stride[d] = far[(i + d) % 3];
		tbias.stride[0] = far[i];
		is_int(hz_quat_gemm(ctx, &ta, &tb, &tc, NULL), HZ_OK, "strides of sizes of 1");
		ok(c[0] == -60 && c[1] == 12 && c[2] == 30 && c[3] == 24, "do not matter");
		ta.shape[2] = tb.shape[1] = 0;
		ta.stride[3] = tb.stride[3] = far[i];
		is_int(hz_quat_gemm(ctx, &ta, &tb, &tc, &o), HZ_OK, "nor those of empty views");
		ok(c[0] == -59 && c[1] == 13 && c[2] == 31 && c[3] == 25, "which add nothing");
	}
	hz_close(ctx);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static hz_tensor A, B, C, V;
static hz_quat_gemm_opts O;
static float memory[4][4 * 64];

static void reset(void)
{
	A = hz_tensor_3d(memory[0], HZ_F32, HZ_CPU, 2, 3, 4);
	B = hz_tensor_3d(memory[1], HZ_F32, HZ_CPU, 3, 5, 4);
	C = hz_tensor_3d(memory[2], HZ_F32, HZ_CPU, 2, 5, 4);
	V = hz_tensor_2d(memory[3], HZ_F32, HZ_CPU, 2, 4);
	memset(&O, 0, sizeof(O));
}

#define WRONG(change, status, message) \
	do { \
		reset(); \
		change; \
		if (is_int(hz_quat_gemm(ctx, O.packed ? NULL : &A, &B, &C, &O), status, \
			   "refused: %s", message)) \
			is_str(hz_errmsg(ctx), message, "its message"); \
	} while (0)

static void test_errors(void)
{
	hz_options options = {.device = HZ_CPU};
	static float blob_memory[1 << 14] __attribute__((aligned(64)));
	hz_packed packed;
	hz_context *ctx;
	size_t bytes = 0;

	if (hz_open(&ctx, &options) != HZ_OK)
		bail("%s", hz_open_errmsg());
	WRONG(O.op_a = 4, HZ_EINVAL, "quat_gemm: opts->op_a is 4, must be 0 to 3");
	WRONG(O.op_b = -1, HZ_EINVAL, "quat_gemm: opts->op_b is -1, must be 0 to 3");
	WRONG(O.method = 3, HZ_EINVAL, "quat_gemm: opts->method is 3, must be 0 to 2");
	WRONG(O.precision = 5, HZ_EINVAL, "quat_gemm: opts->precision is 5, must be 0 to 4");
	WRONG(O.activation = 9, HZ_EINVAL, "quat_gemm: opts->activation is 9, must be 0 to 8");
	WRONG(O.activation = HZ_ACT_NORMCLIP, HZ_EINVAL, "quat_gemm: opts->slope is 0, must be positive "
	      "and finite for HZ_ACT_NORMCLIP");
	WRONG((O.activation = HZ_ACT_LEAKY, O.slope = NAN), HZ_EINVAL,
	      "quat_gemm: opts->slope is nan, must be finite");
	WRONG((O.activation = HZ_ACT_RELU, O.slope = 0.5), HZ_EINVAL, "quat_gemm: opts->slope is 0.5, must "
	      "be 0 unless opts->activation is HZ_ACT_LEAKY, HZ_ACT_MODRELU or HZ_ACT_NORMCLIP");
	WRONG(O.flags = HZ_QUAT_CONJ_A, HZ_EINVAL,
	      "quat_gemm: opts->flags has unknown bits 0x2 (valid: HZ_QUAT_XYZW, HZ_QUAT_REVERSED, "
	      "HZ_QUAT_BIAS_COLUMNS)");
	WRONG(O.given = 2, HZ_EINVAL,
	      "quat_gemm: opts->given has unknown bits 0x2 (valid: HZ_QUAT_GEMM_GIVEN_ALPHA)");
	WRONG(O.reserved32 = 1, HZ_EINVAL, "quat_gemm: opts->reserved32 is 1, must be 0");
	WRONG(O.alpha[1] = 2, HZ_EINVAL,
	      "quat_gemm: opts->alpha[1] is 2, but opts->given lacks HZ_QUAT_GEMM_GIVEN_ALPHA: "
	      "set it, or alpha to 0");
	WRONG(O.reserved[2] = 1, HZ_EINVAL, "quat_gemm: opts->reserved[2] is 1, must be 0");
	WRONG(A.ndim = 2, HZ_ESHAPE, "quat_gemm: a.ndim is 2, must be 3 to 6");
	WRONG(B.shape[2] = 3, HZ_ESHAPE, "quat_gemm: b.shape[2] is 3, must be 4");
	WRONG(B.dtype = HZ_F16, HZ_EDTYPE, "quat_gemm: b.dtype is f16, must be f32");
	WRONG(A.dtype = HZ_S8, HZ_EDTYPE,
	      "quat_gemm: a.dtype is s8, must be f32, f16, bf16 or f64");
	WRONG(C.dtype = HZ_F64, HZ_EDTYPE, "quat_gemm: c.dtype is f64, must be f32");
	WRONG(B.shape[0] = 4, HZ_ESHAPE, "quat_gemm: b.shape[0] is 4, must be 3, as a");
	WRONG((B = hz_tensor_3d(memory[1], HZ_F32, HZ_CPU, 5, 2, 4), O.op_b = HZ_QUAT_H), HZ_ESHAPE,
	      "quat_gemm: b.shape[1] is 2, must be 3, as a");
	WRONG(C.shape[0] = 1, HZ_ESHAPE, "quat_gemm: c.shape[0] is 1, must be 2, as a");
	WRONG(C.shape[1] = 4, HZ_ESHAPE, "quat_gemm: c.shape[1] is 4, must be 5, as b");
	WRONG((A = hz_tensor_4d(memory[0], HZ_F32, HZ_CPU, 3, 2, 3, 4),
	       C = hz_tensor_4d(memory[2], HZ_F32, HZ_CPU, 2, 2, 3, 4), B.shape[1] = 3), HZ_ESHAPE,
	      "quat_gemm: a.shape[0] is 3, must be 2, as c, or 1");
	WRONG((A = hz_tensor_4d(memory[0], HZ_F32, HZ_CPU, 1, 2, 3, 4)), HZ_ESHAPE,
	      "quat_gemm: a.ndim is 4, must be 3 to 3, as c");
	WRONG(C.data = memory[1], HZ_EALIAS, "quat_gemm: c overlaps b, must be apart from it");
	WRONG(C.stride[1] = 2, HZ_ESTRIDE,
	      "quat_gemm: c has strides that put two elements at one address");
	WRONG((O.bias = &V, V.shape[0] = 3), HZ_ESHAPE,
	      "quat_gemm: bias.shape[0] is 3, must be 2, as the rows of c");
	WRONG((O.bias = &V, O.flags = HZ_QUAT_BIAS_COLUMNS), HZ_ESHAPE,
	      "quat_gemm: bias.shape[0] is 2, must be 5, as the columns of c");
	WRONG(O.flags = HZ_QUAT_BIAS_COLUMNS, HZ_EINVAL,
	      "quat_gemm: HZ_QUAT_BIAS_COLUMNS needs opts->bias");
	WRONG((O.bias = &V, V.ndim = 1), HZ_ESHAPE, "quat_gemm: bias.ndim is 1, must be 2");
	WRONG((O.bias = &V, V.data = memory[2]), HZ_EALIAS,
	      "quat_gemm: c overlaps bias, must be apart from it");
	WRONG((O.pre = &V), HZ_ESHAPE, "quat_gemm: opts->pre.ndim is 2, must be 3, as c");
	WRONG((V = C, O.pre = &V), HZ_EALIAS,
	      "quat_gemm: opts->pre overlaps c, must be apart from it");
	WRONG((A.shape[0] = C.shape[0] = INT64_MAX / 64, A.stride[0] = 0, C.stride[0] =
	       INT64_MAX / 8),
	      HZ_ESHAPE, "quat_gemm: c is too large: its size or strides overflow");

	reset();
	is_int(hz_quat_gemm_pack_bytes(ctx, &A, NULL, &bytes), HZ_OK, "pack_bytes");
	is_int(hz_quat_gemm_pack_bytes(ctx, &A, NULL, NULL), HZ_EINVAL, "to nowhere");
	is_int(hz_quat_gemm_pack(ctx, &A, blob_memory, bytes - 1, &packed, NULL), HZ_EINVAL,
	       "a blob that is too small");
	is_int(hz_quat_gemm_pack(ctx, &A, (char *)blob_memory + 4, bytes, &packed, NULL), HZ_EINVAL,
	       "not aligned");
	is_int(hz_quat_gemm_pack(ctx, &A, blob_memory, bytes, NULL, NULL), HZ_EINVAL,
	       "no struct to fill");
	O.op_a = HZ_QUAT_H;
	is_int(hz_quat_gemm_pack(ctx, &A, blob_memory, bytes, &packed, &O), HZ_EINVAL,
	       "what is packed is not conjugated");
	is_int(hz_quat_gemm_pack(ctx, &A, blob_memory, bytes, &packed, NULL), HZ_OK, "packs");
	WRONG((O.packed = &packed, packed.shape[0] = 3), HZ_EINVAL,
	      "quat_gemm: opts->packed is not as hz_quat_gemm_pack() filled it");
	packed.shape[0] = 2;
	WRONG((O.packed = &packed, packed.reserved[3] = 1), HZ_EINVAL,
	      "quat_gemm: opts->packed is not as hz_quat_gemm_pack() filled it");
	packed.reserved[3] = 0;
	WRONG((O.packed = &packed, O.method = HZ_QUAT_FAST), HZ_EINVAL,
	      "quat_gemm: opts->method is 2, must be 1, as of opts->packed, or 0");
	WRONG((O.packed = &packed, O.precision = HZ_PRECISION_HALF), HZ_EINVAL,
	      "quat_gemm: opts->precision is 4, must be 0, as of opts->packed, or 0");
	WRONG((O.packed = &packed, O.op_a = HZ_QUAT_H), HZ_ESHAPE,
	      "quat_gemm: b.shape[0] is 3, must be 2, as a");
	WRONG((O.packed = &packed, packed.device++), HZ_EDEVICE,
	      "quat_gemm: opts->packed is on another device than the context");
	packed.device--;
	reset();
	O.packed = &packed;
	is_int(hz_quat_gemm(ctx, &A, &B, &C, &O), HZ_EINVAL, "a and a packed one");
	is_int(hz_quat_gemm(ctx, NULL, &B, &C, &O), HZ_OK, "the packed one alone");
	O.packed = NULL;
	is_int(hz_quat_gemm(ctx, NULL, &B, &C, &O), HZ_EINVAL, "no a at all");
	is_int(hz_quat_gemm(NULL, &A, &B, &C, &O), HZ_EINVAL, "no context");
	hz_close(ctx);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_quat_gemm);
	test_ops();
	test_edges();
	test_gemv();
	test_small();
	test_layers();
	test_random();
	test_accuracy();
	test_nan();
	test_inf();
	test_share();
	test_prefer();
	test_strides();
	test_errors();
	dev_close_all();
	return done_testing();
}
