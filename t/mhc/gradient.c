/*
 * gradient.c - the reference gradients of t/mhc/ref.h against central differences
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The library is not called.
 */
#include <config.h>

#include "t/mhc/ref.h"
#include "t/core/tap.h"

static uint64_t rnd;

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;
	int64_t i;

	for (i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

static double *some(int64_t n, double mean, double sd)
{
	double *v = calloc((size_t)n + 1, sizeof(*v));
	int64_t i;

	for (i = 0; i < n; i++)
		v[i] = mean + sd * rnd_normal(&rnd);
	return v;
}

/* ---- A layer --------------------------------------------------------------------------------- */

/* Coefficients, branch input, the branch u -> 0.5 u, mixed streams; the value is a weighted sum */
struct layer {
	struct ref_pre s;
	double *x, *phi, *alpha, *bias, *gain, *norm, *wu, *wy, *wp, *wq, *wa, *p_in;
};

static double layer_value(const struct layer *l)
{
	const int n = l->s.r.n;
	const int64_t T = l->s.T, S = l->s.S, C = l->s.C;
	double *p = some(S * n, 0, 0), *q = some(S * n, 0, 0), *a = some(S * n * n, 0, 0);
	double *u = some(T * C, 0, 0), *y = some(T * n * C, 0, 0), sum;
	struct ref_streams post = {T, S, C, n, l->x, NULL, NULL, NULL, NULL, a};

	ref_pre(&l->s, p, q, a, u, NULL);
	ref_streams(&post, NULL, y);
	sum = dot(u, l->wu, T * C) + dot(p, l->wp, S * n);
	if (!l->s.head)
		sum += dot(q, l->wq, S * n) + dot(a, l->wa, S * n * n) + dot(y, l->wy, T * n * C);
	free(p);
	free(q);
	free(a);
	free(u);
	free(y);
	return sum;
}

/* Whether gradient is that of the value by v[count]: central differences of some elements */
static int agrees(const struct layer *l, const char *name, double *v, const double *gradient,
		  int64_t count, double size)
{
	int64_t k, i;
	int good = 1;

	for (k = 0; k < (count < 12 ? count : 12); k++) {
		const double step = 1e-5;
		double old, up, down, want;

		i = count < 12 ? k : rnd_below(&rnd, count);
		old = v[i];
		v[i] = old + step;
		up = layer_value(l);
		v[i] = old - step;
		down = layer_value(l);
		v[i] = old;
		want = (up - down) / (2 * step);
		if (fabs(gradient[i] - want) <= 1e-6 * size)
			continue;
		if (tap_describe())
			diag("%s[%lld] is %.12g, by differences %.12g", name, (long long)i,
			     gradient[i], want);
		good = 0;
	}
	return good;
}

static int check_layer(int n, int64_t T, int64_t S, int64_t C, const hz_mhc_opts *o, int head,
		       int extras)
{
	const struct ref_rule r = ref_rule(n, o);
	const int m = head ? n : r.m;
	struct layer l = {
		.s = {.r = r, .T = T, .S = S, .C = C, .head = head},
		.x = some(T * n * C, 0, 1), .phi = some(m * n * C, 0, 0.5), .alpha = some(3, 0.7,
		0.3),
		.bias = some(m, 0, 1), .gain = some(n * C, 1, 0.2), .norm = some(C, 1, 0.2),
		.wu = some(T * C, 0, 1), .wy = some(T * n * C, 0, 1), .wp = some(S * n, 0, 1),
		.wq = some(S * n, 0, 1), .wa = some(S * n * n, 0, 1), .p_in = some(S * n, 0, 1),
	};
	struct ref_grads g = {
		.du = l.wu, .dp = l.wp, .dq = head ? NULL : l.wq, .da = head ? NULL : l.wa,
		.dy = head ? NULL : l.wy, .dx = some(T * n * C, 0, 0), .dphi = some(m * n * C, 0,
		0),
		.dalpha = some(3, 0, 0), .dbias = some(m, 0, 0), .dgain = some(n * C, 0, 0),
		.dnorm = some(C, 0, 0), .dp_in = some(S * n, 0, 0),
	};
	double *parts[] = {l.x,  l.phi, l.alpha, l.bias, l.gain,   l.norm,  l.wu,    l.wy,   l.wp,
			   l.wq, l.wa,  g.dx,    g.dphi, g.dalpha, g.dbias, g.dgain, g.dnorm,
			   l.p_in, g.dp_in};
	double size = 1;
	size_t i;
	int good;

	l.s.x = l.x;
	l.s.phi = l.phi;
	l.s.alpha = l.alpha;
	l.s.bias = l.bias;
	l.s.gain = extras ? l.gain : NULL;
	l.s.norm = extras ? l.norm : NULL;
	l.s.p_in = n % 2 ? l.p_in : NULL;
	ref_pre_bwd(&l.s, &g);
	for (i = 0; i < (size_t)(T * n * C); i++)
		size = fmax(size, fabs(g.dx[i]));
	for (i = 0; i < 3; i++)
		size = fmax(size, fabs(g.dalpha[i]));
	good = agrees(&l, "dx", l.x, g.dx, T * n * C, size);
	good &= agrees(&l, "dphi", l.phi, g.dphi, m * n * C, size);
	good &= agrees(&l, "dalpha", l.alpha, g.dalpha, head ? 1 : 3, size);
	good &= agrees(&l, "dbias", l.bias, g.dbias, m, size);
	if (l.s.p_in)
		good &= agrees(&l, "dp_in", l.p_in, g.dp_in, S * n, size);
	if (extras) {
		good &= agrees(&l, "dgain", l.gain, g.dgain, n * C, size);
		good &= agrees(&l, "dnorm", l.norm, g.dnorm, C, size);
	}
	for (i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		free(parts[i]);
	return good;
}

static void test_layers(void)
{
	static const char *const residuals[] = {"sinkhorn", "lite", "identity", "tanh"};
	const uint32_t bounds = HZ_MHC_GIVEN_Z_MIN | HZ_MHC_GIVEN_Z_MAX;
	int residual, map, order, k, good;

	for (residual = HZ_MHC_SINKHORN; residual <= HZ_MHC_TANH; residual++) {
		for (map = HZ_MHC_EXP; map <= HZ_MHC_ABS; map++) {
			if (residual != HZ_MHC_SINKHORN && map != HZ_MHC_EXP)
				continue;
			good = 1;
			for (order = HZ_MHC_COLS; order <= HZ_MHC_ROWS; order++) {
				for (k = 0; k < 16; k++) {
					const hz_mhc_opts o = {
						.preset = HZ_MHC_PRESET_PAPER,
						.given = REF_NUMBERS | HZ_MHC_GIVEN_Q_SCALE |
							 (k & 4 ? bounds : 0),
						.residual = residual, .map = map, .order = order,
						.iterations = 1 + k, .flags = (unsigned)k & 3,
						.eps = k & 4 ? 0.1 : 1e-6, .p_eps = k & 8 ? 0.1 : 0,
						.q_scale = k & 1 ? 1.5 : 2,
						.rms_eps = k & 2 ? 0.1 : 0,
						.norm_eps = 1e-3,
						.eps_rule = k & 8 && map == HZ_MHC_EXP ? 2 : 1,
						.rms = k == 11 ? 2 : 1,
						.rms_eps_rule = k % 3 == 1 ? 2 : 1,
						.z_min = -1.25, .z_max = 1,
					};
					const int64_t S = 1 + rnd_below(&rnd, 3);

					good &= check_layer(residual == HZ_MHC_LITE ? 1 + k % 4
										    : 1 + k % 6,
							    S * (1 + k % 2), S, 1 + k % 5, &o,
							    k % 7 == 6, k % 3 == 0);
				}
			}
			ok(good, "layers: %s, map %d", residuals[residual - 1], map);
		}
	}
	ok(check_layer(4, 6, 6, 5, NULL, 0, 1), "layers: as DeepSeek's");
}

/* ---- Memory-bound operations ----------------------------------------------------------------- */

static void test_streams(void)
{
	const int64_t T = 6, S = 3, C = 3;
	const int n = 3;
	double *x = some(T * n * C, 0, 1), *f = some(T * C, 0, 1), *b = some(C, 0, 1);
	double *q = some(S * n, 0, 1), *a = some(S * n * n, 0, 1), *w = some(T * n * C, 0, 1);
	double *y = some(T * n * C, 0, 0);
	double *d[5] = {some(T * n * C, 0, 0), some(T * C, 0, 0), some(C, 0, 0), some(S * n, 0, 0),
			some(S * n * n, 0, 0)};
	double *v[5] = {x, f, b, q, a};
	const int64_t count[5] = {T * n * C, T * C, C, S * n, S * n * n};
	const struct ref_streams s = {T, S, C, n, x, f, b, NULL, q, a};
	int good = 1, k;
	int64_t i;

	ref_streams_bwd(&s, NULL, w, d[0], d[1], NULL, d[3], d[4], d[2]);
	for (k = 0; k < 5; k++) {
		for (i = 0; i < count[k]; i++) {
			const double old = v[k][i];
			double up, down;

			v[k][i] = old + 1e-4;
			ref_streams(&s, NULL, y);
			up = dot(w, y, T * n * C);
			v[k][i] = old - 1e-4;
			ref_streams(&s, NULL, y);
			down = dot(w, y, T * n * C);
			v[k][i] = old;
			good &= fabs((up - down) / 2e-4 - d[k][i]) < 1e-8;
		}
	}
	for (k = 0; k < 5; k++) {
		free(v[k]);
		free(d[k]);
	}
	ok(good, "residual mix and branch: every gradient");
	free(w);
	free(y);
}

/* DeepSeek's z[old, new] with eps 0 is the paper's z[new, old]. */
static void test_conventions(void)
{
	const hz_mhc_opts deepseek = {
		REF_EXACT, .map = HZ_MHC_SOFTMAX, .order = HZ_MHC_ROWS, .flags = HZ_MHC_OLD_NEW};
	const hz_mhc_opts paper = {.preset = HZ_MHC_PRESET_PAPER};
	int good = 1, n, i;

	for (n = 1; n <= 8; n++) {
		const struct ref_rule rd = ref_rule(n, &deepseek), rp = ref_rule(n, &paper);
		double z[REF_MATRIX], transposed[REF_MATRIX], a[REF_MATRIX], b[REF_MATRIX];

		for (i = 0; i < n * n; i++)
			z[i] = 4 * rnd_normal(&rnd);
		for (i = 0; i < n * n; i++)
			transposed[i] = z[i % n * n + i / n];
		ref_residual(&rp, z, a, NULL, NULL);
		ref_residual(&rd, transposed, b, NULL, NULL);
		for (i = 0; i < n * n; i++)
			good &= fabs(a[i] - b[i]) < 1e-13;
	}
	ok(good, "DeepSeek's matrix with eps 0 is the paper's");
}

int main(void)
{
	rnd = tap_seed();
	test_streams();
	test_layers();
	test_conventions();
	return done_testing();
}
