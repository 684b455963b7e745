/*
 * check.c - hurwitz check of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The forward call is compared with the definition in f64. A gradient is checked as a whole: if the
 * value is linear in an operand, <operand, gradient> is the value; otherwise by central
 * differences.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/check.h"

#define T 24
#define N 4
#define C 40
#define K (N * C)
#define M (N * N + 2 * N)

enum { X, PHI, ALPHA, BIAS, F, WP, WQ, WA, WU, WY, INPUTS, P = INPUTS, Q, A, U, Y, DX, DPHI, DALPHA,
       DBIAS, DF, DQ, DA, ARRAYS };

/* Sizes, and the standard deviation of random arrays */
static const struct {
	int ndim;
	int64_t shape[3];
	float size;
} shapes[ARRAYS] = {
	[X] = {3, {T, N, C}, 1},  [PHI] = {2, {M, K}, 0.1f}, [ALPHA] = {1, {3}, 0.5f},
	[BIAS] = {1, {M}, 1},     [F] = {2, {T, C}, 1},      [WP] = {2, {T, N}, 1},
	[WQ] = {2, {T, N}, 1},    [WA] = {3, {T, N, N}, 1},  [WU] = {2, {T, C}, 1},
	[WY] = {3, {T, N, C}, 1}, [P] = {2, {T, N}, 0},      [Q] = {2, {T, N}, 0},
	[A] = {3, {T, N, N}, 0},  [U] = {2, {T, C}, 0},      [Y] = {3, {T, N, C}, 0},
	[DX] = {3, {T, N, C}, 0}, [DPHI] = {2, {M, K}, 0},   [DALPHA] = {1, {3}, 0},
	[DBIAS] = {1, {M}, 0},    [DF] = {2, {T, C}, 0},     [DQ] = {2, {T, N}, 0},
	[DA] = {3, {T, N, N}, 0},
};

struct arrays {
	float *v[ARRAYS];
	hz_tensor host[ARRAYS], on[ARRAYS];
};

static void arrays_free(hz_context *ctx, struct arrays *a)
{
	for (int i = 0; i < ARRAYS; i++) {
		free_device(ctx, &a->on[i]);
		free(a->v[i]);
	}
}

static int arrays_make(hz_context *ctx, struct arrays *a)
{
	uint64_t seed = 5;
	int status = HZ_OK;

	for (int i = 0; i < ARRAYS && !status; i++) {
		hz_tensor *t = &a->host[i];

		*t = hz_tensor_nd(NULL, HZ_F32, HZ_CPU, shapes[i].ndim, shapes[i].shape);
		a->v[i] = t->data = allocate((size_t)hz_tensor_bytes(t));
		if (!t->data)
			return HZ_ENOMEM;
		for (int64_t k = 0; k < hz_tensor_count(t); k++)
			a->v[i][k] = shapes[i].size * random_normal(&seed);
		status = to_device(ctx, t, i < INPUTS, &a->on[i]);
	}
	return status;
}

/* hz_mhc_pre() and hz_mhc_post() of the arrays on the device */
static int forward(hz_context *ctx, struct arrays *a)
{
	hz_tensor *t = a->on;
	int status = WITH_WORKSPACE(ctx, hz_mhc_pre(ctx, &t[X], &t[PHI], &t[ALPHA], &t[BIAS],
						    &t[P], &t[Q], &t[A], &t[U], NULL));

	if (!status)
		status = hz_mhc_post(ctx, &t[X], &t[F], &t[Q], &t[A], NULL, &t[Y]);
	for (int i = P; i <= Y && !status; i++)
		status = from_device(ctx, &t[i], &a->host[i]);
	return status;
}

static double sum(const struct arrays *a, int w, int v)
{
	double s = 0;

	for (int64_t i = 0; i < hz_tensor_count(&a->host[v]); i++)
		s += (double)a->v[w][i] * (double)a->v[v][i];
	return s;
}

/* The scalar whose gradients are checked */
static double value(const struct arrays *a)
{
	return sum(a, WP, P) + sum(a, WQ, Q) + sum(a, WA, A) + sum(a, WU, U);
}

/*
 * Softmax of rows + eps, columns, then rows and columns 19 times; z and the result are [old][new].
 */
static void sinkhorn(double *z)
{
	const double eps = 1e-6;

	for (int half = 0; half < 40; half++) {
		for (int l = 0; l < N; l++) {
			const int along = half % 2 ? N : 1, at = half % 2 ? l : l * N;
			double s = half ? eps : 0;

			for (int i = 0; i < N; i++) {
				double *e = &z[at + i * along];

				*e = half ? *e : exp(*e);
				s += *e;
			}
			for (int i = 0; i < N; i++)
				z[at + i * along] = z[at + i * along] / s + (half ? 0 : eps);
		}
	}
}

static bool near(const char *name, const char *what, double got, double want, double bound)
{
	return fabs(got - want) <= bound ||
	       wrong("%s: %s is %.7g, must be %.7g", name, what, got, want);
}

static bool check_forward(const char *name, const struct arrays *a)
{
	bool good = true;

	for (int t = 0; t < T && good; t++) {
		double y[M], z[M], square = 0;

		for (int j = 0; j < K; j++)
			square += (double)a->v[X][t * K + j] * (double)a->v[X][t * K + j];
		for (int k = 0; k < M; k++) {
			y[k] = 0;
			for (int j = 0; j < K; j++)
				y[k] += (double)a->v[PHI][k * K + j] * (double)a->v[X][t * K + j];
			z[k] = (double)a->v[ALPHA][k < N ? 0 : k < 2 * N ? 1 : 2] * y[k] /
			       sqrt(square / K + 1e-6) + (double)a->v[BIAS][k];
		}
		sinkhorn(z + 2 * N);
		for (int i = 0; i < N && good; i++) {
			good = near(name, "p", (double)a->v[P][t * N + i], 1 / (1 + exp(-z[i])),
				    1e-4) &&
			       near(name, "q", (double)a->v[Q][t * N + i], 2 / (1 + exp(-z[N + i])),
				    2e-4);
			for (int j = 0; j < N && good; j++)
				good = near(name, "a", (double)a->v[A][(t * N + i) * N + j],
					    z[2 * N + j * N + i], 4e-4);
		}
		for (int c = 0; c < C && good; c++) {
			double u = 0;

			for (int i = 0; i < N && good; i++) {
				double s = (double)a->v[Q][t * N + i] * (double)a->v[F][t * C + c];

				u += (double)a->v[P][t * N + i] *
				     (double)a->v[X][(t * N + i) * C + c];
				for (int j = 0; j < N; j++)
					s += (double)a->v[A][(t * N + i) * N + j] *
					     (double)a->v[X][(t * N + j) * C + c];
				good = near(name, "y", (double)a->v[Y][(t * N + i) * C + c], s,
					    1e-5);
			}
			good = good && near(name, "u", (double)a->v[U][t * C + c], u, 1e-5);
		}
	}
	return good;
}

static bool check_post(hz_context *ctx, const char *name, struct arrays *a)
{
	hz_tensor *t = a->on;
	int status = WITH_WORKSPACE(ctx, hz_mhc_post_bwd(ctx, &t[X], &t[F], &t[Q], &t[A], NULL,
							 &t[WY], &t[DX], &t[DF], &t[DQ], &t[DA],
							 NULL));

	for (int i = 0; i < ARRAYS && !status; i++) {
		if (i == DX || i >= DF)
			status = from_device(ctx, &t[i], &a->host[i]);
	}
	if (status)
		return wrong("%s: mhc_post_bwd: %s", name, hz_errmsg(ctx));
	return near(name, "what dx and df give", sum(a, DX, X) + sum(a, DF, F), sum(a, WY, Y),
		    1e-3) &&
	       near(name, "what da and dq give", sum(a, DA, A) + sum(a, DQ, Q), sum(a, WY, Y),
		    1e-3);
}

/* A step along the gradients of x, phi and bias changes the value by their squared norm. */
static bool check_pre(hz_context *ctx, const char *name, struct arrays *a)
{
	static const int moved[][2] = {{X, DX}, {PHI, DPHI}, {ALPHA, DALPHA}, {BIAS, DBIAS}};
	hz_tensor *t = a->on;
	const hz_mhc_grads g = {.du = &t[WU],
				.dp = &t[WP],
				.dq = &t[WQ],
				.da = &t[WA],
				.dx = &t[DX],
				.dphi = &t[DPHI],
				.dalpha = &t[DALPHA],
				.dbias = &t[DBIAS]};
	int status = WITH_WORKSPACE(ctx, hz_mhc_pre_bwd(ctx, &t[X], &t[PHI], &t[ALPHA], &t[BIAS],
							&g, NULL));
	bool good = true;

	for (int i = DX; i <= DBIAS && !status; i++)
		status = from_device(ctx, &t[i], &a->host[i]);
	for (int k = 0; k < 4 && !status && good; k++) {
		const int v = moved[k][0], d = moved[k][1];
		const int64_t count = hz_tensor_count(&a->host[v]);
		const double square = sum(a, d, d), step = 0.02 / sqrt(square);
		double change = 0;

		/* plus a step, minus a step, and back */
		for (int point = 0; point < 3 && !status; point++) {
			for (int64_t i = 0; i < count; i++)
				a->v[v][i] += (float)(step * (point == 1 ? -2 : 1)) * a->v[d][i];
			if (t[v].data != a->host[v].data)
				status = hz_copy(ctx, &a->host[v], &t[v]);
			if (!status && point < 2)
				status = forward(ctx, a);
			change += point == 0 ? value(a) : point == 1 ? -value(a) : 0;
		}
		good = status || near(name,
				      v == X       ? "a step along dx"
				      : v == PHI   ? "a step along dphi"
				      : v == ALPHA ? "a step along dalpha"
						   : "a step along dbias",
				      change / (2 * step), square, 1e-2 * square);
	}
	if (status)
		return wrong("%s: mhc_pre_bwd: %s", name, hz_errmsg(ctx));
	return good;
}

/* u mixed by other coefficients, in which it is linear */
static bool check_p_in(hz_context *ctx, const char *name, struct arrays *a)
{
	hz_tensor *t = a->on;
	const hz_mhc_opts o = {.p_in = &t[WP], .dp_in = &t[DQ]};
	const hz_mhc_grads g = {.du = &t[WU], .dx = &t[DX]};
	int status = WITH_WORKSPACE(ctx, hz_mhc_pre(ctx, &t[X], &t[PHI], &t[ALPHA], &t[BIAS], NULL,
						    NULL, NULL, &t[U], &o));

	if (!status)
		status = WITH_WORKSPACE(ctx, hz_mhc_pre_bwd(ctx, &t[X], &t[PHI], &t[ALPHA],
							    &t[BIAS], &g, &o));
	if (!status)
		status = from_device(ctx, &t[U], &a->host[U]);
	if (!status)
		status = from_device(ctx, &t[DX], &a->host[DX]);
	if (!status)
		status = from_device(ctx, &t[DQ], &a->host[DQ]);
	if (status)
		return wrong("%s: mhc_pre with p_in: %s", name, hz_errmsg(ctx));
	return near(name, "what dp_in gives", sum(a, WP, DQ), sum(a, WU, U), 1e-3) &&
	       near(name, "what dx with p_in gives", sum(a, X, DX), sum(a, WU, U), 1e-3);
}

/* Branch inputs with gates, by the definition; the numbers of phi are W_down and W_up */
static bool check_gated(hz_context *ctx, const char *name, struct arrays *a)
{
	hz_tensor *t = a->on;
	const hz_tensor up = hz_tensor_2d(t[PHI].data, HZ_F32, t[PHI].device, K, M);
	int status = WITH_WORKSPACE(ctx, hz_mhc_gated_pre(ctx, &t[X], &t[PHI], &up, NULL, NULL,
							  &t[U], NULL));
	bool good = true;

	if (!status)
		status = from_device(ctx, &t[U], &a->host[U]);
	if (status)
		return wrong("%s: mhc_gated_pre: %s", name, hz_errmsg(ctx));
	for (int s = 0; s < T && good; s++) {
		double x[K], hidden[M], u[C] = {0};

		for (int i = 0; i < N; i++) {
			const float *const from = a->v[X] + (s * N + i) * C;
			double square = 0;

			for (int c = 0; c < C; c++)
				square += (double)from[c] * (double)from[c];
			for (int c = 0; c < C; c++)
				x[i * C + c] = (double)from[c] / sqrt(square / C + 1e-6);
		}
		for (int k = 0; k < M; k++) {
			double z = 0;

			for (int j = 0; j < K; j++)
				z += (double)a->v[PHI][k * K + j] * x[j] / N;
			hidden[k] = z / (1 + exp(-z));
		}
		for (int j = 0; j < K; j++) {
			double z = 0;

			for (int k = 0; k < M; k++)
				z += (double)a->v[PHI][j * M + k] * hidden[k];
			u[j % C] += x[j] / (1 + exp(-z)) / N;
		}
		for (int c = 0; c < C && good; c++)
			good = near(name, "u by gates", (double)a->v[U][s * C + c], u[c], 1e-4);
	}
	return good;
}

bool check_mhc(hz_context *ctx, const char *name)
{
	struct arrays a = {0};
	int status = arrays_make(ctx, &a);
	bool good;

	if (!status)
		status = forward(ctx, &a);
	good = status ? wrong("%s: mhc_pre, mhc_post: %s", name, hz_errmsg(ctx))
		      : check_forward(name, &a) && check_post(ctx, name, &a) &&
				check_pre(ctx, name, &a) && check_p_in(ctx, name, &a) &&
				check_gated(ctx, name, &a);
	arrays_free(ctx, &a);
	return good;
}
