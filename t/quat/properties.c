/*
 * properties.c - products of units, gradients by finite differences, special values, invalid
 * arguments
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/quat/quat.h"

static uint64_t rnd;

/* ---- Algebra --------------------------------------------------------------------------------- */

/* i j = k and so on: the 16 products of units, in both orders of components */
static void test_units(void)
{
	static const float table[4][4][4] = {
		{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}},
		{{0, 1, 0, 0}, {-1, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, -1, 0}},
		{{0, 0, 1, 0}, {0, 0, 0, -1}, {-1, 0, 0, 0}, {0, 1, 0, 0}},
		{{0, 0, 0, 1}, {0, 0, 1, 0}, {0, -1, 0, 0}, {-1, 0, 0, 0}},
	};

	for (int d = 0; d < ndevs; d++) {
		int good = 1;

		for (int xyzw = 0; xyzw < 2; xyzw++) {
			struct area a = area_new(&devs[d], 256, 0);
			struct area b = area_new(&devs[d], 256, 0);
			struct area y = area_new(&devs[d], 256, 0);
			float image[(2 * GUARD + 256) / 4];
			float *const v = image + GUARD / 4;
			hz_tensor ta = hz_tensor_2d(a.data, HZ_F32, devs[d].device, 16, 4);
			hz_tensor tb = ta, ty = ta;

			tb.data = b.data;
			ty.data = y.data;
			memset(image, 0, sizeof(image));
			for (int i = 0; i < 16; i++)
				v[4 * i + (xyzw ? (i / 4 + 3) % 4 : i / 4)] = 1;
			area_write(&a, image);
			memset(image, 0, sizeof(image));
			for (int i = 0; i < 16; i++)
				v[4 * i + (xyzw ? (i + 3) % 4 : i % 4)] = 1;
			area_write(&b, image);
			good &= hz_quat_mul(devs[d].ctx, &ta, &tb, &ty,
					    xyzw ? HZ_QUAT_XYZW : 0) == HZ_OK;
			area_read(&y, image);
			for (int i = 0; i < 16; i++) {
				for (int c = 0; c < 4; c++)
					good &= v[4 * i + (xyzw ? (c + 3) % 4 : c)] ==
						table[i / 4][i % 4][c];
			}
			area_free(&a);
			area_free(&b);
			area_free(&y);
		}
		ok(good, "products of units, %s", devs[d].name);
	}
}

/* ---- Gradients by finite differences --------------------------------------------------------- */

/* A loss for the gradients: the f64 result of a call on host operands, times g, summed */
typedef double (*loss)(hz_context *ctx, double *const *in, const double *g, const void *arg);

static double weighted(const double *y, const double *g, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += y[i] * g[i];
	return sum;
}

#define FD 6			/* quaternions */

static hz_tensor fd_tensor(const double *p, int n, int comps)
{
	return hz_tensor_2d((void *)(uintptr_t)p, HZ_F64, HZ_CPU, n, comps);
}

static double mul_loss(hz_context *ctx, double *const *in, const double *g, const void *arg)
{
	double y[4 * FD];
	hz_tensor a = fd_tensor(in[0], FD, 4), b = fd_tensor(in[1], 1, 4), t = fd_tensor(y, FD, 4);

	hz_quat_mul(ctx, &a, &b, &t, *(const uint32_t *)arg);
	return weighted(y, g, 4 * FD);
}

static double map_loss(hz_context *ctx, double *const *in, const double *g, const void *arg)
{
	const struct map_arg *m = arg;
	const int number = m->kind == NORM || m->kind == NORM2;
	double y[4 * FD];
	hz_tensor x = fd_tensor(in[0], FD, 4);
	hz_tensor t = number ? hz_tensor_1d(y, HZ_F64, HZ_CPU, FD) : fd_tensor(y, FD, 4);

	run_map(ctx, &x, &t, m);
	return weighted(y, g, number ? FD : 4 * FD);
}

static double rotate_loss(hz_context *ctx, double *const *in, const double *g, const void *arg)
{
	double y[3 * FD];
	hz_tensor q = fd_tensor(in[0], 1, 4), v = fd_tensor(in[1], FD, 3), t = fd_tensor(y, FD, 3);

	hz_quat_rotate(ctx, &q, &v, &t, *(const uint32_t *)arg);
	return weighted(y, g, 3 * FD);
}

static double dot_loss(hz_context *ctx, double *const *in, const double *g, const void *arg)
{
	double y[4];
	hz_tensor a = fd_tensor(in[0], FD, 4), b = fd_tensor(in[1], FD, 4);
	hz_tensor t = hz_tensor_1d(y, HZ_F64, HZ_CPU, 4);

	hz_quat_dot(ctx, &a, &b, &t, *(const uint32_t *)arg);
	return weighted(y, g, 4);
}

/* Compares the gradient for the n numbers at in[which] with finite differences of the loss. */
static int by_differences(hz_context *ctx, loss f, double *const *in, int which, int n,
			  const double *g, const void *arg, const double *grad, const char *what)
{
	const double h = 1e-5;

	for (int i = 0; i < n; i++) {
		const double x = in[which][i];
		double up, down, slope;

		in[which][i] = x + h;
		up = f(ctx, in, g, arg);
		in[which][i] = x - h;
		down = f(ctx, in, g, arg);
		in[which][i] = x;
		slope = (up - down) / (2 * h);
		if (fabs(slope - grad[i]) > 1e-7 * (1 + fabs(slope))) {
			diag("%s: operand %d [%d]: gradient %.12g, differences %.12g", what, which,
			     i, grad[i], slope);
			return 0;
		}
	}
	return 1;
}

static void test_differences(void)
{
	hz_context *ctx = devs[0].ctx;
	double a[4 * FD], b[4 * FD], g[4 * FD], da[4 * FD], db[4 * FD];
	double *in[] = {a, b};
	int good = 1;

	if (tap_cuda()) {
		skip(4, "f64 is of the CPU");
		return;
	}
	for (int i = 0; i < 4 * FD; i++) {
		a[i] = rnd_normal(&rnd);
		b[i] = rnd_normal(&rnd);
		g[i] = rnd_normal(&rnd);
	}
	for (uint32_t f = 0; f < 16 && good; f++) {
		hz_tensor ta = fd_tensor(a, FD, 4), tb = fd_tensor(b, 1, 4);
		hz_tensor tg = fd_tensor(g, FD, 4);
		hz_tensor tda = fd_tensor(da, FD, 4), tdb = fd_tensor(db, 1, 4);

		good = hz_quat_mul_bwd(ctx, &ta, &tb, &tg, &tda, &tdb, f) == HZ_OK &&
		       by_differences(ctx, mul_loss, in, 0, 4 * FD, g, &f, da, "mul") &&
		       by_differences(ctx, mul_loss, in, 1, 4, g, &f, db, "mul");
	}
	ok(good, "quat_mul_bwd by finite differences");
	good = 1;
	for (int kind = NORM; kind < KINDS && good; kind++) {
		for (int e = 0; e < 2 && good; e++) {
			const struct map_arg m = {kind, kind == NORMALIZE && e ? 3.0 : 0, 0};
			const int number = kind == NORM || kind == NORM2;
			hz_tensor t[2] = {fd_tensor(a, FD, 4),
					  number ? hz_tensor_1d(g, HZ_F64, HZ_CPU, FD)
						 : fd_tensor(g, FD, 4)};
			hz_tensor tda = fd_tensor(da, FD, 4);

			good = run_map_bwd(ctx, t, &tda, &m) == HZ_OK &&
			       by_differences(ctx, map_loss, in, 0, 4 * FD, g, &m, da,
					      kind_names[kind]);
		}
	}
	ok(good, "gradients of norm, normalize and inverse by finite differences");
	good = 1;
	for (uint32_t f = 0; f < 8 && good; f++) {
		const uint32_t flags = (f & 1 ? HZ_QUAT_XYZW : 0) |
				       (f & 2 ? HZ_QUAT_NORMALIZE : 0) |
				       (f & 4 ? HZ_QUAT_INVERSE : 0);
		hz_tensor tq = fd_tensor(a, 1, 4), tv = fd_tensor(b, FD, 3);
		hz_tensor tg = fd_tensor(g, FD, 3);
		hz_tensor tdq = fd_tensor(da, 1, 4), tdv = fd_tensor(db, FD, 3);

		good = hz_quat_rotate_bwd(ctx, &tq, &tv, &tg, &tdq, &tdv, flags) == HZ_OK &&
		       by_differences(ctx, rotate_loss, in, 0, 4, g, &flags, da, "rotate") &&
		       by_differences(ctx, rotate_loss, in, 1, 3 * FD, g, &flags, db, "rotate");
	}
	ok(good, "quat_rotate_bwd by finite differences");
	{
		const uint32_t none = 0;
		hz_tensor ta = fd_tensor(a, FD, 4), tb = fd_tensor(b, FD, 4);
		hz_tensor tg = hz_tensor_1d(g, HZ_F64, HZ_CPU, 4);
		hz_tensor tda = fd_tensor(da, FD, 4), tdb = fd_tensor(db, FD, 4);

		/* db = a dy, da = b conj(dy), as the header says */
		good = hz_quat_mul(ctx, &ta, &tg, &tdb, 0) == HZ_OK &&
		       hz_quat_mul(ctx, &tb, &tg, &tda, HZ_QUAT_CONJ_B) == HZ_OK &&
		       by_differences(ctx, dot_loss, in, 0, 4 * FD, g, &none, da, "dot") &&
		       by_differences(ctx, dot_loss, in, 1, 4 * FD, g, &none, db, "dot");
		ok(good, "the gradients of quat_dot by quat_mul");
	}
}

/* ---- Special values -------------------------------------------------------------------------- */

/* A call on contiguous f32 input and output */
static void apply(struct dev *dev, const struct map_arg *m, const float *x, float *y, int n)
{
	const int number = m->kind == NORM || m->kind == NORM2;
	const size_t out = (size_t)n * (number ? 4 : 16), in = (size_t)n * 16;
	struct area a = area_new(dev, in, 0), b = area_new(dev, out, 0);
	unsigned char *image = malloc(GUARD + in + GUARD);
	hz_tensor tx = hz_tensor_2d(a.data, HZ_F32, dev->device, n, 4);
	hz_tensor ty = number ? hz_tensor_1d(b.data, HZ_F32, dev->device, n)
			      : hz_tensor_2d(b.data, HZ_F32, dev->device, n, 4);

	memcpy(image + GUARD, x, in);
	area_write(&a, image);
	if (run_map(dev->ctx, &tx, &ty, m) != HZ_OK)
		bail("%s", hz_errmsg(dev->ctx));
	area_read(&b, image);
	memcpy(y, image + GUARD, out);
	free(image);
	area_free(&a);
	area_free(&b);
}

static void test_special(void)
{
	static const float x[][4] = {
		{0, 0, 0, 0}, {0x1p-149f, 0, 0, 0}, {3e38f, 0, 0, 0}, {1e-30f, 0, -1e-30f, 0},
		{NAN, 1, 1, 1}, {INFINITY, 1, 2, 3}, {1, 1, 1, -INFINITY}, {-0.0f, 0, 0, 0},
	};
	enum { N = sizeof(x) / sizeof(*x) };

	for (int d = 0; d < ndevs; d++) {
		struct map_arg m = {NORM, 0, 0};
		float y[N][4], n[N];

		apply(&devs[d], &m, x[0], n, N);
		ok(n[0] == 0 && n[1] == 0x1p-149f && n[2] == 3e38f &&
			   fabsf(n[3] / 1.41421356e-30f - 1) < 1e-6f && isnan(n[4]) &&
			   isinf(n[5]) && isinf(n[6]) && n[7] == 0,
		   "norms of special values, %s", devs[d].name);
		m.kind = NORMALIZE;
		apply(&devs[d], &m, x[0], y[0], N);
		ok(y[0][0] == 0 && y[0][3] == 0 && y[1][0] == 1 && y[2][0] == 1 &&
			   fabsf(y[3][0] - 0.70710678f) < 1e-6f && isnan(y[4][0]) &&
			   isnan(y[4][1]) && y[7][0] == 0,
		   "normalization");
		m.eps = 1;
		apply(&devs[d], &m, x[0], y[0], N);
		ok(y[0][0] == 0 && y[1][0] == 0x1p-149f && y[2][0] == 1 && isnan(y[4][3]),
		   "with eps");
		m.kind = INVERSE;
		m.eps = 0;
		apply(&devs[d], &m, x[0], y[0], N);
		ok(isnan(y[0][0]) && isnan(y[0][1]) && fabsf(y[3][0] / 5e29f - 1) < 1e-6f &&
			   isinf(y[1][0]) && isnan(y[4][2]),
		   "inverses");
	}
}

/* A NaN or Inf in a component reaches all components of its own product, and no other product. */
static void test_nan(void)
{
	for (int d = 0; d < ndevs; d++) {
		struct area a = area_new(&devs[d], 40 * 16, 0), y = area_new(&devs[d], 40 * 16, 0);
		float image[(2 * GUARD + 640) / 4];
		hz_tensor ta = hz_tensor_2d(a.data, HZ_F32, devs[d].device, 40, 4);
		hz_tensor ty = hz_tensor_2d(y.data, HZ_F32, devs[d].device, 40, 4);
		int good = 1;

		for (int i = 0; i < 160; i++)
			image[GUARD / 4 + i] = (float)rnd_normal(&rnd);
		image[GUARD / 4 + 4 * 7 + 2] = NAN;
		image[GUARD / 4 + 4 * 33] = INFINITY;
		area_write(&a, image);
		good = hz_quat_mul(devs[d].ctx, &ta, &ta, &ty, 0) == HZ_OK;
		area_read(&y, image);
		for (int i = 0; i < 160; i++)
			good &= !isfinite(image[GUARD / 4 + i]) == (i / 4 == 7 || i / 4 == 33);
		ok(good, "NaN and Inf stay in their product, %s", devs[d].name);
		area_free(&a);
		area_free(&y);
	}
}

/* ---- Strides --------------------------------------------------------------------------------- */

/* Quaternions that use one number for all components (stride 0) give the same results as copies. */
static void test_broadcast_components(void)
{
	enum { N = 37 };

	for (int d = 0; d < ndevs; d++) {
		struct area one = area_new(&devs[d], N * 4, 0), all = area_new(&devs[d], N * 16, 0);
		struct area b = area_new(&devs[d], N * 16, 0), y = area_new(&devs[d], N * 16, 0);
		hz_tensor to = hz_tensor_2d(one.data, HZ_F32, devs[d].device, N, 4);
		hz_tensor ta = hz_tensor_2d(all.data, HZ_F32, devs[d].device, N, 4);
		hz_tensor tb = hz_tensor_2d(b.data, HZ_F32, devs[d].device, N, 4);
		hz_tensor ty = hz_tensor_2d(y.data, HZ_F32, devs[d].device, N, 4);
		float image[2 * GUARD / 4 + 4 * N], want[4 * N];
		float *const in = image + GUARD / 4;
		int good = 1;

		to.stride[0] = 1;
		to.stride[1] = 0;
		for (int i = 0; i < N; i++)
			in[i] = (float)(i % 7 - 3);
		area_write(&one, image);
		for (int i = 0; i < 4 * N; i++)
			in[i] = (float)(i / 4 % 7 - 3);
		area_write(&all, image);
		for (int i = 0; i < 4 * N; i++)
			in[i] = (float)(i % 9 - 4);
		area_write(&b, image);
		for (uint32_t f = 0; f < 24; f++) {
			const uint32_t flag = f & 7;	/* conjugations, and the order of the
							 * factors */
			const hz_tensor *const left[] = {&ta, &tb, &ta};
			const hz_tensor *const right[] = {&tb, &ta, &ta};
			const hz_tensor *const l = left[f / 8], *const r = right[f / 8];

			good &= hz_quat_mul(devs[d].ctx, l, r, &ty, flag) == HZ_OK;
			area_read(&y, image);
			memcpy(want, in, sizeof(want));
			good &= hz_quat_mul(devs[d].ctx, l == &ta ? &to : l, r == &ta ? &to : r,
					    &ty, flag) == HZ_OK;
			area_read(&y, image);
			good &= memcmp(want, in, sizeof(want)) == 0;
		}
		ok(good, "quaternions of one number each, %s", devs[d].name);
		area_free(&one);
		area_free(&all);
		area_free(&b);
		area_free(&y);
	}
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static hz_tensor A, B, Y, V;
static uint32_t flags;
static float memory_a[4 * 12], memory_b[4 * 12], memory_y[4 * 12], memory_v[4 * 12];

static void reset(void)
{
	A = hz_tensor_3d(memory_a, HZ_F32, HZ_CPU, 2, 3, 4);
	B = hz_tensor_3d(memory_b, HZ_F32, HZ_CPU, 2, 3, 4);
	Y = hz_tensor_3d(memory_y, HZ_F32, HZ_CPU, 2, 3, 4);
	V = hz_tensor_3d(memory_v, HZ_F32, HZ_CPU, 2, 3, 3);
	flags = 0;
}

#define WRONG(change, call, status, message) \
	do { \
		reset(); \
		change; \
		if (is_int(call, status, "refused: %s", message)) \
			is_str(hz_errmsg(ctx), message, "its message"); \
	} while (0)

static void test_errors(void)
{
	hz_context *ctx;
	hz_options o = {.device = HZ_CPU};
	const double alpha[4] = {1, 0, 0, 0};

	if (hz_open(&ctx, &o) != HZ_OK)
		bail("%s", hz_open_errmsg());
#define MUL hz_quat_mul(ctx, &A, &B, &Y, flags)
	WRONG(A.shape[2] = 3, MUL, HZ_ESHAPE, "quat_mul: a.shape[2] is 3, must be 4");
	WRONG(B.dtype = HZ_F16, MUL, HZ_EDTYPE, "quat_mul: b.dtype is f16, must be f32");
	WRONG(A.dtype = HZ_S8, MUL, HZ_EDTYPE,
	      "quat_mul: a.dtype is s8, must be f32, f16, bf16 or f64");
	WRONG(A.ndim = 0, MUL, HZ_ESHAPE, "quat_mul: a.ndim is 0, must be 1 to 6");
	WRONG(A.shape[1] = 2, MUL, HZ_ESHAPE, "quat_mul: a.shape[1] is 2, must be 3, as y, or 1");
	WRONG((Y = hz_tensor_2d(memory_y, HZ_F32, HZ_CPU, 3, 4)), MUL, HZ_ESHAPE,
	      "quat_mul: a.ndim is 3, must be at most 2, as y");
	WRONG(flags = HZ_QUAT_INVERSE, MUL, HZ_EINVAL,
	      "quat_mul: flags has unknown bits 0x200 (valid: HZ_QUAT_XYZW, HZ_QUAT_CONJ_A, "
	      "HZ_QUAT_CONJ_B, HZ_QUAT_REVERSED, HZ_QUAT_ACCUMULATE)");
	WRONG(Y.data = memory_a + 1, MUL, HZ_EALIAS,
	      "quat_mul: y overlaps a, must be apart from it or the same view");
	WRONG(Y.stride[0] = 4, MUL, HZ_ESTRIDE,
	      "quat_mul: y has strides that put two elements at one address");
	WRONG(A.data = NULL, MUL, HZ_EINVAL, "quat_mul: a.data is NULL, must hold 24 elements");
	WRONG(A.device = HZ_CUDA, MUL, HZ_EDEVICE,
	      "quat_mul: a is on CUDA device 0, the context is on the CPU");
	is_int(hz_quat_mul(ctx, NULL, &B, &Y, 0), HZ_EINVAL, "no a");
	is_int(hz_quat_mul(NULL, &A, &B, &Y, 0), HZ_EINVAL, "no context");
#define BWD hz_quat_mul_bwd(ctx, &A, &B, &Y, &V, NULL, flags)
	WRONG((V.shape[2] = 4, V.stride[1] = 4, V.stride[0] = 12, V.shape[0] = 1), BWD, HZ_ESHAPE,
	      "quat_mul_bwd: da.shape[0] is 1, must be 2, as a");
	WRONG((V = A), BWD, HZ_EALIAS, "quat_mul_bwd: da overlaps a, must be apart from it");
	is_int(hz_quat_mul_bwd(ctx, &A, &B, &Y, NULL, NULL, 0), HZ_OK, "no gradient wanted");
#define DOT hz_quat_dot(ctx, &A, &B, &Y, flags)
	WRONG((void)0, DOT, HZ_ESHAPE, "quat_dot: a.shape[0] is 2, must be 3, as y, or 1");
	WRONG((Y = hz_tensor_2d(memory_y, HZ_F32, HZ_CPU, 2, 3)), DOT, HZ_ESHAPE,
	      "quat_dot: y.shape[1] is 3, must be 4 or 1");
	WRONG((Y = hz_tensor_2d(memory_y, HZ_F32, HZ_CPU, 2, 4), B.shape[1] = 2), DOT, HZ_ESHAPE,
	      "quat_dot: b.shape[1] is 2, must be 3, as a, or 1");
	WRONG((A = hz_tensor_1d(memory_a, HZ_F32, HZ_CPU, 4)), DOT, HZ_ESHAPE,
	      "quat_dot: a.ndim is 1, must be 2 to 6");
	WRONG((void)0, hz_quat_norm(ctx, &A, &Y, 0), HZ_ESHAPE,
	      "quat_norm: n.ndim is 3, must be 2: x has 2 before its components");
	WRONG((void)0, hz_quat_normalize(ctx, &A, &Y, -1, 0), HZ_EINVAL,
	      "quat_normalize: eps is -1, must be finite and not negative");
	WRONG((void)0, hz_quat_axpy(ctx, NULL, &A, &Y, 0), HZ_EINVAL,
	      "quat_axpy: alpha is NULL, must be four numbers");
	WRONG((void)0, hz_quat_axpy(ctx, alpha, &A, &Y, HZ_QUAT_CONJ_A), HZ_EINVAL,
	      "quat_axpy: flags has unknown bits 0x2 (valid: HZ_QUAT_XYZW, HZ_QUAT_REVERSED)");
	WRONG(V.shape[2] = 2, hz_quat_rotate(ctx, &A, &V, &Y, 0), HZ_ESHAPE,
	      "quat_rotate: v.shape[2] is 2, must be 4 or 3");
	WRONG((Y = A), hz_quat_rotate(ctx, &A, &V, &Y, 0), HZ_EALIAS,
	      "quat_rotate: y overlaps q, must be apart from it");
	WRONG((void)0, hz_quat_rotate_bwd(ctx, &A, &V, &Y, &B, &B, 0), HZ_ESHAPE,
	      "quat_rotate_bwd: dv.shape[2] is 4, must be 3, as v");
	WRONG((B = A, B.data = NULL), hz_quat_rotate_bwd(ctx, &A, &V, &Y, &B, NULL, 0), HZ_EINVAL,
	      "quat_rotate_bwd: dq.data is NULL, must hold 24 elements");
	reset();
	A.shape[0] = A.stride[0] = A.stride[1] = 0;
	A.shape[0] = INT64_MAX / 16;
	A.shape[1] = 3;
	B = A;
	Y = hz_tensor_3d(memory_y, HZ_F32, HZ_CPU, 1, 1, 4);
	is_int(hz_quat_mul_bwd(ctx, &A, &A, &A, NULL, NULL, 0), HZ_OK,
	       "a huge view that nothing is done with");
	hz_close(ctx);
}

/* The gradient of a sum over nothing is 0, or stays when accumulated. */
static void test_empty(void)
{
	for (int d = 0; d < ndevs; d++) {
		struct area da = area_new(&devs[d], 16, 0);
		hz_tensor none = hz_tensor_2d(NULL, HZ_F32, devs[d].device, 0, 4);
		hz_tensor t = hz_tensor_2d(da.data, HZ_F32, devs[d].device, 1, 4);
		struct area a = area_new(&devs[d], 16, 0);
		hz_tensor ta = hz_tensor_2d(a.data, HZ_F32, devs[d].device, 1, 4);
		float image[(2 * GUARD + 16) / 4];
		size_t bytes = 0;

		RECORD(devs[d].ctx, hz_quat_mul_bwd(devs[d].ctx, &ta, &none, &none, &t, NULL, 0),
		       &bytes);
		hz_reserve(devs[d].ctx, bytes);
		is_int(hz_quat_mul_bwd(devs[d].ctx, &ta, &none, &none, &t, NULL, 0), HZ_OK,
		       "a gradient of nothing, %s", devs[d].name);
		area_read(&da, image);
		ok(image[GUARD / 4] == 0 && image[GUARD / 4 + 3] == 0, "is 0");
		is_int(hz_quat_rotate_bwd(devs[d].ctx, &ta, &none, &none, &t, NULL,
					  HZ_QUAT_ACCUMULATE), HZ_OK, "accumulated");
		is_int(hz_quat_mul(devs[d].ctx, &none, &none, &none, 0), HZ_OK, "no quaternions");
		area_free(&da);
		area_free(&a);
	}
}

int main(void)
{
	rnd = tap_seed();
	dev_open_all();
	dev_open_quat_routes();
	test_units();
	test_differences();
	test_special();
	test_nan();
	test_broadcast_components();
	test_empty();
	test_errors();
	dev_close_all();
	return done_testing();
}
