/*
 * ref.h - hyper-connections and their gradients by definition, in f64
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Arrays are contiguous: streams [T][n][C], branch values [T][C], coefficients [S][n] and
 * [S][n][n]. Token t has the coefficients of group t / (T / S). Gradients are added to what is
 * there. NULL: an input that is not given or an output that is not wanted.
 */
#ifndef MHC_REF_H
#define MHC_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hurwitz.h"

#define REF_STREAMS 8
#define REF_ROWS (2 * REF_STREAMS + REF_STREAMS * REF_STREAMS)

/* ---- Conventions ----------------------------------------------------------------------------- */

/* Options with their defaults filled in */
struct ref_rule {
	int n, m, residual, map, order, iterations;
	unsigned flags;
	double eps, p_eps, q_scale, rms_eps, norm_eps;
	int eps_rule, rms, rms_eps_rule;
	double q_eps, z_min, z_max;
	int cn;
};

static inline int ref_factorial(int n)
{
	return n <= 1 ? 1 : n * ref_factorial(n - 1);
}

/* Options whose numbers hold as they are, q_scale only of REF_EXACT_Q; else as in the paper */
#define REF_NUMBERS (HZ_MHC_GIVEN_EPS | HZ_MHC_GIVEN_P_EPS | HZ_MHC_GIVEN_RMS_EPS | \
		     HZ_MHC_GIVEN_NORM_EPS)
#define REF_EXACT .preset = HZ_MHC_PRESET_PAPER, .given = REF_NUMBERS
#define REF_EXACT_Q .preset = HZ_MHC_PRESET_PAPER, .given = REF_NUMBERS | HZ_MHC_GIVEN_Q_SCALE

static inline struct ref_rule ref_rule(int n, const hz_mhc_opts *o)
{
#define REF_SINKHORN(map_, order_, iterations_, flags_) \
	.residual = HZ_MHC_SINKHORN, .map = map_, .order = order_, .iterations = iterations_, \
	.flags = flags_
#define REF_DEEPSEEK(iterations, flags) \
	REF_SINKHORN(HZ_MHC_SOFTMAX, HZ_MHC_ROWS, iterations, flags), .eps = 1e-6, .norm_eps = 1e-6
#define REF_OTHER(residual_) \
	.residual = residual_, .map = HZ_MHC_EXP, .order = HZ_MHC_COLS, .iterations = 20, \
	.q_scale = 2
	static const struct ref_rule presets[] = {
		{REF_DEEPSEEK(20, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-6},
		{REF_SINKHORN(HZ_MHC_EXP, HZ_MHC_COLS, 20, 0), .q_scale = 2},
		{REF_SINKHORN(HZ_MHC_ABS, HZ_MHC_ROWS, 20, HZ_MHC_NORMALIZE), .eps = 1e-6,
		 .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-6},
		{REF_SINKHORN(HZ_MHC_ABS, HZ_MHC_ROWS, 20, HZ_MHC_NORMALIZE), .eps = 1e-8,
		 .p_eps = 1e-6, .q_scale = 1, .rms_eps = 1e-6},
		{REF_OTHER(HZ_MHC_TANH), .rms_eps = 1e-6},
		{REF_OTHER(HZ_MHC_LITE), .rms_eps = 1e-6},
		{REF_DEEPSEEK(20, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-20},
		{REF_SINKHORN(HZ_MHC_SOFTMAX, HZ_MHC_ROWS, 20, HZ_MHC_OLD_NEW), .eps = 1e-6,
		 .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-5, .norm_eps = 1e-5},
		{REF_SINKHORN(HZ_MHC_EXP, HZ_MHC_ROWS, 20, 0), .eps = 1e-6, .q_scale = 2,
		 .rms_eps = 1e-6, .z_min = -30, .z_max = 30},
		{REF_OTHER(HZ_MHC_IDENTITY), .p_eps = 1e-6, .q_eps = 1e-6, .rms_eps = 1e-5,
		 .norm_eps = 1e-5},
		{REF_SINKHORN(HZ_MHC_EXP, HZ_MHC_ROWS, 20, 0), .eps = 1e-6, .q_scale = 2,
		 .rms_eps = 1e-6, .eps_rule = HZ_MHC_EPS_FLOOR,
		 .rms_eps_rule = HZ_MHC_RMS_EPS_ROOT},
		{REF_DEEPSEEK(10, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 1, .rms_eps = 1e-6},
		{REF_DEEPSEEK(20, 0), .q_scale = 2, .rms_eps = 1e-6},
		{REF_SINKHORN(HZ_MHC_EXP, HZ_MHC_ROWS, 20, HZ_MHC_OLD_NEW), .q_scale = 2,
		 .rms_eps = 0x1p-23, .cn = 1},
		{REF_SINKHORN(HZ_MHC_EXP, HZ_MHC_COLS, 20, HZ_MHC_OLD_NEW), .eps = 1e-12,
		 .q_scale = 2, .rms_eps = 1e-12, .eps_rule = HZ_MHC_EPS_FLOOR,
		 .rms = HZ_MHC_RMS_STREAM, .rms_eps_rule = HZ_MHC_RMS_EPS_FLOOR},
		{REF_OTHER(HZ_MHC_IDENTITY), .rms_eps = 1e-6, .norm_eps = 1e-6,
		 .rms = HZ_MHC_RMS_STREAM},
	};
	struct ref_rule r = presets[o && o->preset ? o->preset - 1 : 0];

	r.n = n;
	if (r.z_min == r.z_max) {
		r.z_min = -INFINITY;
		r.z_max = INFINITY;
	}
	if (o) {
		r.eps_rule = o->eps_rule ? o->eps_rule : r.eps_rule;
		r.rms = o->rms ? o->rms : r.rms;
		r.cn = o->streams ? o->streams == HZ_MHC_STREAMS_CN : r.cn;
		r.rms_eps_rule = o->rms_eps_rule ? o->rms_eps_rule : r.rms_eps_rule;
		r.q_eps = o->given & HZ_MHC_GIVEN_Q_EPS ? o->q_eps : r.q_eps;
		r.z_min = o->given & HZ_MHC_GIVEN_Z_MIN ? o->z_min : r.z_min;
		r.z_max = o->given & HZ_MHC_GIVEN_Z_MAX ? o->z_max : r.z_max;
		r.residual = o->residual ? o->residual : r.residual;
		r.map = o->map ? o->map : r.map;
		r.order = o->order ? o->order : r.order;
		r.iterations = o->iterations ? o->iterations : r.iterations;
		if (o->given & HZ_MHC_GIVEN_OLD_NEW)
			r.flags &= ~HZ_MHC_OLD_NEW;
		if (o->given & HZ_MHC_GIVEN_NORMALIZE)
			r.flags &= ~HZ_MHC_NORMALIZE;
		r.flags |= o->flags & (HZ_MHC_OLD_NEW | HZ_MHC_NORMALIZE);
		r.eps = o->given & HZ_MHC_GIVEN_EPS ? o->eps : r.eps;
		r.p_eps = o->given & HZ_MHC_GIVEN_P_EPS ? o->p_eps : r.p_eps;
		r.q_scale = o->given & HZ_MHC_GIVEN_Q_SCALE ? o->q_scale : r.q_scale;
		r.rms_eps = o->given & HZ_MHC_GIVEN_RMS_EPS ? o->rms_eps : r.rms_eps;
		r.norm_eps = o->given & HZ_MHC_GIVEN_NORM_EPS ? o->norm_eps : r.norm_eps;
	}
	r.m = 2 * n + (r.residual == HZ_MHC_LITE ? ref_factorial(n) :
		       r.residual == HZ_MHC_IDENTITY ? 0 : n * n);
	return r;
}

/* ---- Sinkhorn and Knopp ---------------------------------------------------------------------- */

#define REF_MATRIX (REF_STREAMS * REF_STREAMS)

/* Index of element e of line l along the axis that half iteration h normalizes */
static inline int ref_line(const struct ref_rule *r, int h, int l, int e)
{
	const int columns = (h % 2 == 0) == (r->order == HZ_MHC_COLS);

	return columns ? e * r->n + l : l * r->n + e;
}

/* Makes the first matrix; returns the first half iteration. soft: gets the softmax */
static inline int ref_first(const struct ref_rule *r, const double *given, double *y, double *soft)
{
	double most, sum, m[REF_MATRIX];
	int l, e, n = r->n;

	for (e = 0; e < n * n; e++)
		m[e] = given[e] < r->z_min ? r->z_min : given[e] > r->z_max ? r->z_max : given[e];
	for (l = 0; l < n; l++) {
		most = -INFINITY;
		sum = 0;
		for (e = 0; e < n; e++)
			most = fmax(most, m[ref_line(r, 0, l, e)]);
		for (e = 0; e < n; e++) {
			const int i = ref_line(r, 0, l, e);

			soft[i] = exp(m[i] - most);
			sum += soft[i];
		}
		for (e = 0; e < n; e++) {
			const int i = ref_line(r, 0, l, e);

			if (r->map == HZ_MHC_SOFTMAX)
				soft[i] /= sum;
			y[i] = r->map == HZ_MHC_ABS ? fabs(m[i]) + r->eps :
			       r->map == HZ_MHC_SOFTMAX ? soft[i] + r->eps : soft[i];
		}
	}
	return r->map == HZ_MHC_SOFTMAX;
}

/* All half iterations: y [2 iterations + 1][n n], unused before `first`; sums [2 iterations][n] */
static inline int ref_steps(const struct ref_rule *r, const double *m, double *y, double *sums,
			    double *soft)
{
	const int size = r->n * r->n, first = ref_first(r, m, y, soft);
	int h, l, e;

	for (h = 0; h < first; h++)
		memcpy(y + (h + 1) * size, y + h * size, (size_t)size * sizeof(*y));
	for (h = first; h < 2 * r->iterations; h++) {
		for (l = 0; l < r->n; l++) {
			double s = 0;

			for (e = 0; e < r->n; e++)
				s += y[h * size + ref_line(r, h, l, e)];
			s = r->eps_rule == HZ_MHC_EPS_FLOOR ? fmax(s, r->eps) : s + r->eps;
			sums[h * r->n + l] = s;
			for (e = 0; e < r->n; e++) {
				const int i = ref_line(r, h, l, e);

				y[(h + 1) * size + i] = y[h * size + i] / s;
			}
		}
	}
	return first;
}

static inline double *ref_history(const struct ref_rule *r)
{
	return calloc((size_t)(2 * r->iterations + 1) * (REF_MATRIX + REF_STREAMS), 8);
}

static inline void ref_sinkhorn(const struct ref_rule *r, const double *m, double *p)
{
	double *y = ref_history(r), *sums = y + (2 * r->iterations + 1) * REF_MATRIX;
	double soft[REF_MATRIX];
	const int size = r->n * r->n;

	ref_steps(r, m, y, sums, soft);
	memcpy(p, y + 2 * r->iterations * size, (size_t)size * sizeof(*p));
	free(y);
}

/* Sets dm; nothing is added. */
static inline void ref_sinkhorn_bwd(const struct ref_rule *r, const double *m, const double *dp,
				    double *dm)
{
	double *y = ref_history(r), *sums = y + (2 * r->iterations + 1) * REF_MATRIX;
	double soft[REF_MATRIX], d[REF_MATRIX];
	const int n = r->n, size = n * n, first = ref_steps(r, m, y, sums, soft);
	int h, l, e;

	memcpy(d, dp, (size_t)size * sizeof(*d));
	for (h = 2 * r->iterations - 1; h >= first; h--) {
		for (l = 0; l < n; l++) {
			double dot = 0;

			double sum = 0;

			for (e = 0; e < n; e++) {
				dot += d[ref_line(r, h, l, e)] *
				       y[(h + 1) * size + ref_line(r, h, l, e)];
				sum += y[h * size + ref_line(r, h, l, e)];
			}
			/* Divided by the constant eps */
			if (r->eps_rule == HZ_MHC_EPS_FLOOR && sum < r->eps)
				dot = 0;
			for (e = 0; e < n; e++) {
				const int i = ref_line(r, h, l, e);

				d[i] = (d[i] - dot) / sums[h * n + l];
			}
		}
	}
	for (l = 0; l < n; l++) {
		double dot = 0, high = -INFINITY;
		int most = ref_line(r, 0, l, 0);

		for (e = 0; e < n; e++) {
			const int i = ref_line(r, 0, l, e);

			const double v = fmin(fmax(m[i], r->z_min), r->z_max);

			dot += d[i] * soft[i];
			most = v > high ? i : most;
			high = fmax(v, high);
		}
		for (e = 0; e < n; e++) {
			const int i = ref_line(r, 0, l, e);

			if (r->map == HZ_MHC_ABS)
				dm[i] = m[i] > 0 ? d[i] : m[i] < 0 ? -d[i] : 0;
			else if (r->map == HZ_MHC_SOFTMAX)
				dm[i] = soft[i] * (d[i] - dot);
			else
				dm[i] = d[i] * soft[i] - (i == most ? dot : 0);
			if (m[i] < r->z_min || m[i] > r->z_max)
				dm[i] = 0;
		}
	}
	free(y);
}

/* ---- Coefficients of y ----------------------------------------------------------------------- */

static inline double ref_sigma(double z)
{
	return 1 / (1 + exp(-z));
}

/* Permutation k of 0 .. n - 1 in lexicographic order */
static inline void ref_permutation(int n, int k, int *perm)
{
	int left[REF_STREAMS] = {0}, i, j, size = n;

	for (i = 0; i < n; i++)
		left[i] = i;
	for (i = 0; i < n; i++, size--) {
		const int f = ref_factorial(size - 1), pick = k / f;

		k %= f;
		perm[i] = left[pick];
		for (j = pick; j + 1 < size; j++)
			left[j] = left[j + 1];
	}
}

/* a[new][old] from z of the residual matrix; or with da sets the gradient dz */
static inline void ref_residual(const struct ref_rule *r, const double *z, double *a,
				const double *da, double *dz)
{
	const int n = r->n, size = n * n, transposed = (r->flags & HZ_MHC_OLD_NEW) != 0;
	const int count = r->residual == HZ_MHC_LITE ? ref_factorial(n) : 0;
	double soft[24] = {0}, out[REF_MATRIX], in[REF_MATRIX], most = -INFINITY, sum = 0, dot = 0;
	int i, k, perm[REF_STREAMS];

	for (i = 0; i < size && r->residual == HZ_MHC_IDENTITY && a; i++)
		a[i] = i % (n + 1) == 0;
	if (r->residual == HZ_MHC_SINKHORN) {
		for (i = 0; i < size && da; i++)
			in[i] = da[transposed ? i % n * n + i / n : i];
		if (da)
			ref_sinkhorn_bwd(r, z, in, dz);
		else
			ref_sinkhorn(r, z, out);
		for (i = 0; i < size && a; i++)
			a[i] = out[transposed ? i % n * n + i / n : i];
	}
	for (k = 0; k < count; k++)
		most = fmax(most, z[k]);
	for (k = 0; k < count; k++)
		sum += soft[k] = exp(z[k] - most);
	if (count && a)
		memset(a, 0, (size_t)size * sizeof(*a));
	for (k = 0; k < count; k++) {
		soft[k] /= sum;
		ref_permutation(n, k, perm);
		if (dz)
			dz[k] = 0;
		for (i = 0; i < n; i++) {
			const int at = transposed ? perm[i] * n + i : i * n + perm[i];

			if (a)
				a[at] += soft[k];
			if (da)
				dz[k] += da[at];
		}
		dot += da ? dz[k] * soft[k] : 0;
	}
	for (k = 0; k < count && da; k++)
		dz[k] = soft[k] * (dz[k] - dot);
}

static inline double ref_alpha(const struct ref_rule *r, const double *alpha, int k)
{
	return alpha[k < r->n ? 0 : k < 2 * r->n ? 1 : 2];
}

/* Index of row k of phi if its matrix is transposed */
static inline int ref_transposed_row(const struct ref_rule *r, int k)
{
	return r->flags & HZ_MHC_OLD_NEW ? k % r->n * r->n + k / r->n : k;
}

/* q and a NULL: p alone, as in a head */
static inline void ref_coefs(const struct ref_rule *r, const double *y, const double *alpha,
			     const double *bias, double *p, double *q, double *a)
{
	const int n = r->n;
	double z[REF_ROWS], sum = 0;
	int k;

	for (k = 0; k < (q ? r->m : n); k++)
		z[k] = ref_alpha(r, alpha, k) *
		       (r->residual == HZ_MHC_TANH ? tanh(y[k]) : y[k]) + bias[k];
	if (r->residual == HZ_MHC_TANH) {
		memcpy(p, z, (size_t)n * sizeof(*p));
		if (!q)
			return;
		memcpy(q, z + n, (size_t)n * sizeof(*q));
		for (k = 0; k < n * n; k++)
			a[k] = z[2 * n + ref_transposed_row(r, k)];
		return;
	}
	for (k = 0; k < n; k++) {
		p[k] = ref_sigma(z[k]);
		sum += p[k];
		if (q)
			q[k] = r->q_scale * ref_sigma(z[n + k]) + r->q_eps;
	}
	for (k = 0; k < n; k++)
		p[k] = r->flags & HZ_MHC_NORMALIZE ? p[k] / (sum + r->p_eps) : p[k] + r->p_eps;
	if (q)
		ref_residual(r, z + 2 * n, a, NULL, NULL);
}

/* Sets dy; adds to dalpha and dbias. */
static inline void ref_coefs_bwd(const struct ref_rule *r, const double *y, const double *alpha,
				 const double *bias, const double *dp, const double *dq,
				 const double *da, double *dy, double *dalpha, double *dbias)
{
	const int n = r->n, m = dq ? r->m : n, plain = r->residual == HZ_MHC_TANH;
	double z[REF_ROWS], dz[REF_ROWS] = {0}, sum = 0, dot = 0;
	int k;

	for (k = 0; k < m; k++)
		z[k] = ref_alpha(r, alpha, k) * y[k] + bias[k];
	for (k = 0; k < n; k++) {
		sum += ref_sigma(z[k]);
		dot += dp[k] * ref_sigma(z[k]);
	}
	dot /= sum + r->p_eps;
	for (k = 0; k < n; k++) {
		const double s = ref_sigma(z[k]);
		double ds = r->flags & HZ_MHC_NORMALIZE ? (dp[k] - dot) / (sum + r->p_eps) : dp[k];

		dz[k] = plain ? dp[k] : ds * s * (1 - s);
		if (dq) {
			const double t = ref_sigma(z[n + k]);

			dz[n + k] = plain ? dq[k] : dq[k] * r->q_scale * t * (1 - t);
		}
	}
	if (dq && !plain)
		ref_residual(r, z + 2 * n, NULL, da, dz + 2 * n);
	for (k = 0; dq && plain && k < n * n; k++)
		dz[2 * n + ref_transposed_row(r, k)] = da[k];
	for (k = 0; k < m; k++) {
		const double inner = plain ? tanh(y[k]) : y[k];

		dy[k] = ref_alpha(r, alpha, k) * dz[k] * (plain ? 1 - inner * inner : 1);
		dalpha[k < n ? 0 : k < 2 * n ? 1 : 2] += dz[k] * inner;
		dbias[k] += dz[k];
	}
}

/* ---- Memory-bound operations ----------------------------------------------------------------- */

/* x NULL: 0; a NULL: the identity; f NULL: no branch term; q NULL: 1 */
struct ref_streams {
	int64_t T, S, C;
	int n;
	const double *x, *f, *bias, *p, *q, *a;
};

static inline void ref_streams(const struct ref_streams *s, double *u, double *y)
{
	const int n = s->n;
	int64_t t, c;
	int i, j;

	for (t = 0; t < s->T; t++) {
		const int64_t g = t / (s->T / s->S);
		const double *x = s->x ? s->x + t * n * s->C : NULL;

		for (c = 0; c < s->C; c++) {
			double f = 0;

			if (s->f)
				f = s->f[t * s->C + c] + (s->bias ? s->bias[c] : 0);
			if (u)
				u[t * s->C + c] = 0;
			for (i = 0; i < n && u; i++)
				u[t * s->C + c] += s->p[g * n + i] * x[i * s->C + c];
			for (i = 0; i < n && y; i++) {
				double sum = f * (s->q ? s->q[g * n + i] : 1);

				for (j = 0; j < n && s->x && s->a; j++)
					sum += s->a[(g * n + i) * n + j] * x[j * s->C + c];
				if (s->x && !s->a)
					sum += x[i * s->C + c];
				y[(t * n + i) * s->C + c] = sum;
			}
		}
	}
}

static inline void ref_add(double *p, int64_t i, double v)
{
	if (p)
		p[i] += v;
}

static inline void ref_streams_bwd(const struct ref_streams *s, const double *du, const double *dy,
				   double *dx, double *df, double *dp, double *dq, double *da,
				   double *dbias)
{
	const int n = s->n;
	int64_t t, c;
	int i, j;

	for (t = 0; t < s->T; t++) {
		const int64_t g = t / (s->T / s->S);

		for (c = 0; c < s->C; c++) {
			const int64_t b = t * s->C + c;
			const double f = s->f ? s->f[b] + (s->bias ? s->bias[c] : 0) : 0;

			for (i = 0; i < n; i++) {
				const int64_t e = (t * n + i) * s->C + c;
				const double q = s->q ? s->q[g * n + i] : 1;

				if (du) {
					ref_add(dx, e, s->p[g * n + i] * du[b]);
					if (dp)
						dp[g * n + i] += du[b] * s->x[e];
				}
				if (!dy)
					continue;
				ref_add(df, b, q * dy[e]);
				ref_add(dbias, c, q * dy[e]);
				ref_add(dq, g * n + i, dy[e] * f);
				if (!s->a)
					ref_add(dx, e, dy[e]);
				for (j = 0; j < n; j++) {
					const int64_t old = (t * n + j) * s->C + c;

					if (s->a)
						ref_add(dx, old, s->a[(g * n + i) * n + j] * dy[e]);
					if (da)
						da[(g * n + i) * n + j] += dy[e] * s->x[old];
				}
			}
		}
	}
}

/* ---- Coefficients of streams ----------------------------------------------------------------- */

/* head: p alone, of n rows of phi. phi NULL: y = 0 */
struct ref_pre {
	struct ref_rule r;
	int64_t T, S, C;
	int head;
	const double *x, *phi, *alpha, *bias, *gain, *norm;
	const double *p_in;		/* u is mixed by it; NULL: by p */
};

static inline int ref_pre_rows(const struct ref_pre *s)
{
	return s->head ? s->r.n : s->r.m;
}

/* Mean of x over the tokens of group g: K values, which the caller frees */
static inline double *ref_mean(const struct ref_pre *s, int64_t g)
{
	const int64_t K = s->r.n * s->C, each = s->T / s->S;
	double *mean = calloc((size_t)K + 1, sizeof(*mean));
	int64_t t, j;

	for (t = g * each; t < (g + 1) * each && s->phi; t++)
		for (j = 0; j < K; j++)
			mean[j] += s->x[t * K + j] / (double)each;
	return mean;
}

/*
 * The factor of sums, from a mean square of `count` numbers; slope: its derivative by x_j is -rho
 * slope x_j / count
 */
static inline double ref_rho(const struct ref_rule *r, double square, int64_t count, double *slope)
{
	const double least = r->rms_eps / sqrt((double)count);
	const double inside = square + r->rms_eps, root = sqrt(square) + r->rms_eps;

	*slope = r->rms == HZ_MHC_RMS_NONE ? 0 : 1 / sqrt(square);
	if (r->rms == HZ_MHC_RMS_NONE)
		return 1;
	if (r->rms_eps_rule == HZ_MHC_RMS_EPS_ROOT)
		return root == 0 ? 0 : 1 / root;
	if (r->rms_eps_rule == HZ_MHC_RMS_EPS_FLOOR && count > 0) {
		*slope = sqrt(square) < least ? 0 : *slope;
		return 1 / (sqrt(square) < least ? least : sqrt(square));
	}
	return *slope = inside == 0 ? 0 : 1 / sqrt(inside);
}

/* Divides the streams of a mean by their roots, with HZ_MHC_RMS_STREAM; rho and slope [n] */
static inline void ref_divide(const struct ref_pre *s, double *mean, double *rho, double *slope)
{
	int64_t c;
	int i;

	for (i = 0; i < s->r.n && s->r.rms == HZ_MHC_RMS_STREAM; i++) {
		double *x = mean + i * s->C, square = 0;

		for (c = 0; c < s->C; c++)
			square += x[c] * x[c] / (double)s->C;
		rho[i] = ref_rho(&s->r, square, s->C, &slope[i]);
		for (c = 0; c < s->C; c++)
			x[c] *= rho[i];
	}
}

/* d = rho d - slope x <d, x> / C, x being divided */
static inline void ref_divide_bwd(const struct ref_pre *s, const double *mean, const double *rho,
				  const double *slope, double *d)
{
	int64_t c;
	int i;

	for (i = 0; i < s->r.n && s->r.rms == HZ_MHC_RMS_STREAM; i++) {
		const double *x = mean + i * s->C;
		double dot = 0;

		for (c = 0; c < s->C; c++)
			dot += d[i * s->C + c] * x[c] / (double)s->C;
		for (c = 0; c < s->C; c++)
			d[i * s->C + c] = rho[i] * d[i * s->C + c] - slope[i] * x[c] * dot;
	}
}

/*
 * y from a mean, divided already with HZ_MHC_RMS_STREAM; raw [m + 1]: sums, then the mean square.
 * Returns 1 / root mean square.
 */
static inline double ref_project(const struct ref_pre *s, const double *mean, double *raw,
				 double *y)
{
	const int64_t K = s->r.n * s->C;
	const int m = ref_pre_rows(s);
	double square = 0, rho, slope;
	int64_t j;
	int k;

	for (j = 0; j < K; j++)
		square += mean[j] * mean[j];
	square = K ? square / (double)K : 0;
	rho = s->r.rms == HZ_MHC_RMS_STREAM ? 1 : ref_rho(&s->r, square, K, &slope);
	for (k = 0; k < m; k++) {
		raw[k] = 0;
		for (j = 0; j < K && s->phi; j++)
			raw[k] += s->phi[k * K + j] * (s->gain ? s->gain[j] : 1) * mean[j];
		y[k] = rho * raw[k];
	}
	raw[m] = square;
	return rho;
}

/* 1 / root mean square of a branch input */
static inline double ref_branch_norm(const struct ref_pre *s, const double *u)
{
	double square = 0;
	int64_t c;

	for (c = 0; c < s->C; c++)
		square += u[c] * u[c];
	square = square / (double)s->C + s->r.norm_eps;
	return square == 0 ? 0 : 1 / sqrt(square);
}

static inline void ref_pre(const struct ref_pre *s, double *p, double *q, double *a, double *u,
			   double *saved)
{
	const int n = s->r.n, m = ref_pre_rows(s);
	struct ref_streams mix = {s->T, s->S, s->C, n, s->x, NULL, NULL, s->p_in ? s->p_in : p,
				  NULL, NULL};
	int64_t g, t, c;

	for (g = 0; g < s->S; g++) {
		double raw[REF_ROWS + 1], y[REF_ROWS], rho[REF_STREAMS], slope[REF_STREAMS];
		double *mean = ref_mean(s, g);

		ref_divide(s, mean, rho, slope);

		ref_project(s, mean, raw, y);
		ref_coefs(&s->r, y, s->alpha, s->bias, p + g * n, s->head ? NULL : q + g * n,
			  s->head ? NULL : a + g * n * n);
		/* A mean square that f32 does not hold: minus its root */
		if (saved)
			memcpy(saved + g * (m + 1), raw, (size_t)(m + 1) * sizeof(*raw));
		if (saved && (raw[m] > 3.4e38 || (raw[m] < 0x1p-100 && s->r.rms_eps < 0x1p-70)))
			saved[g * (m + 1) + m] = -sqrt(raw[m]);
		free(mean);
	}
	if (!u)
		return;
	ref_streams(&mix, u, NULL);
	for (t = 0; t < s->T && s->norm; t++) {
		const double rho = ref_branch_norm(s, u + t * s->C);

		for (c = 0; c < s->C; c++)
			u[t * s->C + c] *= rho * s->norm[c];
	}
}

/* Given and wanted gradients, named as in hz_mhc_grads and hz_mhc_opts */
struct ref_grads {
	const double *du, *dp, *dq, *da, *dy;
	double *dx, *dphi, *dalpha, *dbias, *dgain, *dnorm;
	double *dalpha_size, *dbias_size; /* sums of magnitudes, of which bounds are a part */
	double *dp_in;
};

/* Gradient of the input of norm from that of its output */
static inline double *ref_norm_bwd(const struct ref_pre *s, const struct ref_grads *o,
				   const double *u)
{
	double *du = calloc((size_t)(s->T * s->C) + 1, sizeof(*du));
	int64_t t, c;

	for (t = 0; t < s->T; t++) {
		const double *v = u + t * s->C, *d = o->du + t * s->C;
		const double rho = ref_branch_norm(s, v);
		double dot = 0;

		for (c = 0; c < s->C; c++) {
			dot += d[c] * s->norm[c] * v[c];
			ref_add(o->dnorm, c, d[c] * v[c] * rho);
		}
		for (c = 0; c < s->C; c++)
			du[t * s->C + c] = rho * s->norm[c] * d[c] -
					   rho * rho * rho / (double)s->C * dot * v[c];
	}
	return du;
}

static inline void ref_pre_bwd(const struct ref_pre *s, const struct ref_grads *o)
{
	const int n = s->r.n, size = n * n, m = ref_pre_rows(s);
	const int64_t K = n * s->C, each = s->S ? s->T / s->S : 0, S = s->S;
	double *p = calloc((size_t)(S * (2 * n + size) * 2) + 1, 8), *q = p + S * n, *a = q + S * n;
	double *dp = a + S * size, *dq = dp + S * n, *da = dq + S * n, *u = NULL, *du = NULL;
	struct ref_streams mix = {s->T, S, s->C, n, s->x, NULL, NULL, p, NULL, a};
	int64_t g, t, j;
	int k;

	if (o->du)
		u = calloc((size_t)(s->T * s->C) + 1, 8);
	if (s->p_in)
		mix.p = s->p_in;
	ref_pre(s, p, q, a, NULL, NULL);
	for (j = 0; j < S * n; j++) {
		dp[j] = o->dp ? o->dp[j] : 0;
		dq[j] = o->dq ? o->dq[j] : 0;
	}
	for (j = 0; j < S * size; j++)
		da[j] = o->da ? o->da[j] : 0;
	if (o->du) {
		ref_streams(&mix, u, NULL);
		du = s->norm ? ref_norm_bwd(s, o, u) : NULL;
	}
	ref_streams_bwd(&mix, du ? du : o->du, o->dy, o->dx, NULL, s->p_in ? o->dp_in : dp, NULL,
			da, NULL);
	for (g = 0; g < S; g++) {
		double raw[REF_ROWS + 1], y[REF_ROWS], dy[REF_ROWS], unused[REF_ROWS] = {0},
								     dot = 0;
		double *mean = ref_mean(s, g), *dmean = calloc((size_t)K + 1, 8);
		double rhos[REF_STREAMS], slopes[REF_STREAMS], rho, slope = 0;

		ref_divide(s, mean, rhos, slopes);
		rho = ref_project(s, mean, raw, y);
		if (s->r.rms != HZ_MHC_RMS_STREAM)
			ref_rho(&s->r, raw[m], K, &slope);
		ref_coefs_bwd(&s->r, y, s->alpha, s->bias, dp + g * n, s->head ? NULL : dq + g * n,
			      da + g * size, dy, o->dalpha ? o->dalpha : unused,
			      o->dbias ? o->dbias : unused);
		for (k = 0; k < m; k++) {
			const double alpha = ref_alpha(&s->r, s->alpha, k);
			const double dz = alpha != 0 ? fabs(dy[k] / alpha) : 0;

			dot += dy[k] * y[k];
			if (o->dalpha_size)
				o->dalpha_size[s->head || k < n ? 0 : k < 2 * n ? 1 : 2] +=
					dz * (fabs(y[k]) + 1);
			if (o->dbias_size)
				o->dbias_size[k] += dz;
		}
		for (j = 0; j < K && s->phi; j++) {
			const double gain = s->gain ? s->gain[j] : 1;
			double d = -rho * slope / (double)K * dot * mean[j];

			for (k = 0; k < m; k++) {
				const double draw = rho * dy[k];

				d += draw * s->phi[k * K + j] * gain;
				ref_add(o->dphi, k * K + j, draw * gain * mean[j]);
				ref_add(o->dgain, j, draw * s->phi[k * K + j] * mean[j]);
			}
			dmean[j] = d;
		}
		ref_divide_bwd(s, mean, rhos, slopes, dmean);
		for (j = 0; j < K && s->phi; j++) {
			for (t = g * each; t < (g + 1) * each; t++)
				ref_add(o->dx, t * K + j, dmean[j] / (double)each);
		}
		free(dmean);
		free(mean);
	}
	free(du);
	free(u);
	free(p);
}

#endif
