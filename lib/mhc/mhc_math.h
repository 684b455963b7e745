/*
 * mhc_math.h - equations of the coefficients of hyper-connections and their gradients: C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All functions are inlined with a constant n and unrolled loops, so that indices are constants and
 * arrays are registers. hzi_mreal is float. A file that defines HZI_MHC_VECTORS defines hzi_mreal
 * and the operations hzi_m_* itself: as vectors with a token in each lane. Matrices are [n][n],
 * row-major.
 */
#ifndef HZI_MHC_MATH_H
#define HZI_MHC_MATH_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/mhc/mhc.h"

#ifdef __CUDACC__
#define HZI_MHC_FN static __device__ __forceinline__
#define HZI_MHC_RARE static __device__ __noinline__
#else
#define HZI_MHC_FN static inline __attribute__((always_inline))
#define HZI_MHC_RARE static __attribute__((noinline, unused))
#endif

/* A file that passes a variable n defines this as nothing. */
#ifndef HZI_MHC_UNROLL
#if defined(__CUDACC__)
#define HZI_MHC_UNROLL _Pragma("unroll")
#elif defined(__clang__)
#define HZI_MHC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HZI_MHC_UNROLL _Pragma("GCC unroll 64")
#endif
#endif

/* A file whose kernels take no rule but hzi_mhc_is_common() ones has no code for others. */
#ifdef HZI_MHC_COMMON_RULES
#define HZI_MHC_RARELY(condition) false
#else
#define HZI_MHC_RARELY(condition) (condition)
#endif

/* ---- Mean squares ---------------------------------------------------------------------------- */

/*
 * A mean square from HZI_MHC_LEAST_SQUARE to FLT_MAX is kept as it is. Others, of x beyond about
 * 1e-15 or 1e19, would underflow or overflow, and minus their root is kept. With a larger eps no
 * small one matters.
 */
#define HZI_MHC_LEAST_SQUARE 0x1p-100f

/* The least mean square that need not be computed again */
HZI_MHC_FN float hzi_mhc_least_square(const struct hzi_mhc_rule *rule)
{
	const bool root = HZI_MHC_RARELY(rule->rms_eps_rule != HZ_MHC_RMS_EPS_INSIDE);

	return rule->rms_eps >= (root ? 0x1p-22f : 0x1p-70f) ? 0 : HZI_MHC_LEAST_SQUARE;
}

/* Whether a mean square has to be computed again, without underflow and overflow */
HZI_MHC_FN bool hzi_mhc_leaves_f32(float square, float least)
{
	return !(square >= least && square <= FLT_MAX);
}

/* ---- Operations ------------------------------------------------------------------------------ */

#ifndef HZI_MHC_VECTORS
typedef float hzi_mreal;

HZI_MHC_FN float hzi_m_exp(float a)
{
	return expf(a);
}

HZI_MHC_FN float hzi_m_tanh(float a)
{
	return tanhf(a);
}

HZI_MHC_FN float hzi_m_abs(float a)
{
	return fabsf(a);
}

/* The larger one; either if one is NaN */
HZI_MHC_FN float hzi_m_max(float a, float b)
{
	return fmaxf(a, b);
}

/* Whether |a| > b or a is NaN, in any lane */
HZI_MHC_FN bool hzi_m_any_beyond(float a, float b)
{
	return !(fabsf(a) <= b);
}

/* x where a is Inf or NaN, else y */
HZI_MHC_FN float hzi_m_if_infinite(float a, float x, float y)
{
	return hzi_m_any_beyond(a, FLT_MAX) ? x : y;
}

/* x where a > b, else y */
HZI_MHC_FN float hzi_m_where(float a, float b, float x, float y)
{
	return a > b ? x : y;
}

HZI_MHC_FN float hzi_m_fma(float a, float b, float c)
{
#ifdef __CUDACC__
	return fmaf(a, b, c);
#else
	return a * b + c;
#endif
}

/* a / b within 2 ulp for |b| from 2^-126 to 2^126 */
HZI_MHC_FN float hzi_m_div(float a, float b)
{
#ifdef __CUDACC__
	float r, q, better;

	/* One Newton step: errors of the approximation would accumulate over iterations. */
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
	q = a * r;
	better = fmaf(fmaf(-b, q, a), r, q);
	return better == better ? better : q;	/* q if b is 0 or infinite */
#else
	return a / b;
#endif
}

/* 1 / a within 2 ulp for |a| from 2^-126 to 2^126 */
HZI_MHC_FN float hzi_m_inverse(float a)
{
#ifdef __CUDACC__
	float r;

	/*
	 * No Newton step: each half iteration corrects the previous one, and its latency matters.
	 */
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
	return r;
#else
	return 1.0f / a;
#endif
}

/* Broadcasts a to all lanes. */
HZI_MHC_FN float hzi_m_set(float a)
{
	return a;
}
#endif

/* sigma(z) = 1 / (1 + exp(-z)) and its derivative, both without cancellation */
HZI_MHC_FN hzi_mreal hzi_mhc_sigma(hzi_mreal z, hzi_mreal *slope)
{
	const hzi_mreal one = hzi_m_set(1), t = hzi_m_exp(-hzi_m_abs(z));
	const hzi_mreal low = hzi_m_div(one, one + t), high = t * low;

	*slope = low * high;
	return hzi_m_where(z, hzi_m_set(0), low, high);
}

HZI_MHC_FN hzi_mreal hzi_mhc_tanh(hzi_mreal z, hzi_mreal *slope)
{
	const hzi_mreal one = hzi_m_set(1), t = hzi_m_exp(hzi_m_set(-2) * hzi_m_abs(z));
	const hzi_mreal low = hzi_m_div(one, one + t);

	*slope = hzi_m_set(4) * t * low * low;
	return hzi_m_tanh(z);
}

/* ---- Sinkhorn-Knopp iteration ---------------------------------------------------------------- */

/*
 * k [n][n] is z mapped to positive numbers, with HZ_MHC_ROWS transposed, so that the first half
 * iteration always divides by column sums. The result is r_i k_ij c_j; one iteration is
 *
 *     c_j = c_j / (c_j sum_i k_ij r_i + eps), then r_i = r_i / (r_i sum_j k_ij c_j + eps)
 *
 * In terms of inverses, 1 / c_j = sum_i k_ij r_i + eps / c_j. The inverses are kept between
 * iterations, so that a half iteration has the latency of a sum and one reciprocal.
 *
 * HZ_MHC_SOFTMAX is itself the first half of the first iteration: k = softmax + eps, c = 1.
 */
#define HZI_MHC_SQUARE (HZI_MHC_STREAMS * HZI_MHC_STREAMS)

/* of_r, of_c: 1 / r and 1 / c; least: a constant term of of_r */
struct hzi_mhc_state {
	hzi_mreal r[HZI_MHC_STREAMS], c[HZI_MHC_STREAMS];
	hzi_mreal of_r[HZI_MHC_STREAMS], of_c[HZI_MHC_STREAMS], least[HZI_MHC_STREAMS];
};

/* Whether sums of rows and columns are at least eps, instead of eps being added */
HZI_MHC_FN bool hzi_mhc_is_floor(const struct hzi_mhc_rule *rule)
{
	return HZI_MHC_RARELY(rule->eps_rule == HZ_MHC_EPS_FLOOR);
}

/* The larger one; NaN if a sum is */
HZI_MHC_FN hzi_mreal hzi_mhc_floored(hzi_mreal sum, hzi_mreal least)
{
	return hzi_m_where(least, sum, least, sum);
}

HZI_MHC_FN bool hzi_mhc_is_clamped(const struct hzi_mhc_rule *rule)
{
	return HZI_MHC_RARELY(rule->z_min >= -FLT_MAX || rule->z_max <= FLT_MAX);
}

/* to = z within z_min .. z_max; NaN stays. */
HZI_MHC_FN void hzi_mhc_clamp(const int count, const struct hzi_mhc_rule *rule, const hzi_mreal *z,
			      hzi_mreal *to)
{
	const hzi_mreal low = hzi_m_set(rule->z_min), high = hzi_m_set(rule->z_max);

	HZI_MHC_UNROLL
	for (int i = 0; i < count; i++)
		to[i] = z[i];
	if (!hzi_mhc_is_clamped(rule))
		return;
	HZI_MHC_UNROLL
	for (int i = 0; i < count; i++) {
		to[i] = hzi_m_where(to[i], high, high, to[i]);
		to[i] = hzi_m_where(low, to[i], low, to[i]);
	}
}

/* Element (i, j) of z or of its transpose: a choice between two constant indices */
HZI_MHC_FN hzi_mreal hzi_mhc_element(const int n, const bool transposed, const hzi_mreal *z,
				     const int i, const int j)
{
	return transposed ? z[j * n + i] : z[i * n + j];
}

/* k of z, without the eps that HZ_MHC_SOFTMAX adds */
HZI_MHC_FN void hzi_mhc_map(const int n, const struct hzi_mhc_rule *rule, const hzi_mreal *z,
			    hzi_mreal *k)
{
	const bool transposed = rule->order == HZ_MHC_ROWS;

	HZI_MHC_UNROLL
	for (int j = 0; j < n; j++) {
		hzi_mreal most = hzi_mhc_element(n, transposed, z, 0, j), sum = hzi_m_set(0);

		HZI_MHC_UNROLL
		for (int i = 1; i < n; i++)
			most = hzi_m_max(most, hzi_mhc_element(n, transposed, z, i, j));
		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++) {
			const hzi_mreal v = hzi_mhc_element(n, transposed, z, i, j);

			if (rule->map == HZ_MHC_ABS)
				k[i * n + j] = hzi_m_abs(v) + hzi_m_set(rule->eps);
			else
				k[i * n + j] = hzi_m_exp(v - most);
			sum += k[i * n + j];
		}
		if (rule->map != HZ_MHC_SOFTMAX)
			continue;
		sum = hzi_m_div(hzi_m_set(1), sum);
		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++)
			k[i * n + j] *= sum;
	}
}

/*
 * Sets r, c and their inverses to 1, or to NaN if a |z| is infinite: otherwise inf / inf might be
 * lost. A row of zeros gets a constant term of 1 / r, which keeps r at 1; without it r would grow
 * by 1 / eps in each iteration.
 */
HZI_MHC_FN void hzi_mhc_sinkhorn_begin(const int n, const struct hzi_mhc_rule *rule,
				       const hzi_mreal *z, const hzi_mreal *k,
				       struct hzi_mhc_state *s)
{
	hzi_mreal one = hzi_m_set(1);

	if (rule->map == HZ_MHC_ABS) {
		HZI_MHC_UNROLL
		for (int i = 0; i < n * n; i++)
			one += z[i] * hzi_m_set(0);
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		s->r[i] = s->c[i] = s->of_r[i] = s->of_c[i] = one;
		s->least[i] = hzi_m_set(0);
	}
	if (rule->map != HZ_MHC_EXP || rule->eps == 0 || hzi_mhc_is_floor(rule))
		return;
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		hzi_mreal sum = k[i * n];

		HZI_MHC_UNROLL
		for (int j = 1; j < n; j++)
			sum += k[i * n + j];
		s->least[i] = hzi_m_where(hzi_m_set(1e-37f), sum, one, hzi_m_set(0));
	}
}

/* One iteration, or if columns is false its second half */
HZI_MHC_FN void hzi_mhc_sinkhorn_step(const int n, const hzi_mreal eps, const bool columns,
				      const hzi_mreal *k, struct hzi_mhc_state *s)
{
	if (columns) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++) {
			s->of_c[j] *= eps;
			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++)
				s->of_c[j] = hzi_m_fma(k[i * n + j], s->r[i], s->of_c[j]);
			s->c[j] = hzi_m_inverse(s->of_c[j]);
		}
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		s->of_r[i] = hzi_m_fma(eps, s->of_r[i], s->least[i]);
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++)
			s->of_r[i] = hzi_m_fma(k[i * n + j], s->c[j], s->of_r[i]);
		s->r[i] = hzi_m_inverse(s->of_r[i]);
	}
}

/* The same with HZ_MHC_EPS_FLOOR: 1 / c_j = the larger one of sum_i k_ij r_i and eps / c_j */
HZI_MHC_FN void hzi_mhc_sinkhorn_floor_step(const int n, const hzi_mreal eps, const bool columns,
					    const hzi_mreal *k, struct hzi_mhc_state *s)
{
	if (columns) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++) {
			hzi_mreal sum = k[j] * s->r[0];

			HZI_MHC_UNROLL
			for (int i = 1; i < n; i++)
				sum = hzi_m_fma(k[i * n + j], s->r[i], sum);
			s->of_c[j] = hzi_mhc_floored(sum, eps * s->of_c[j]);
			s->c[j] = hzi_m_inverse(s->of_c[j]);
		}
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		hzi_mreal sum = k[i * n] * s->c[0];

		HZI_MHC_UNROLL
		for (int j = 1; j < n; j++)
			sum = hzi_m_fma(k[i * n + j], s->c[j], sum);
		s->of_r[i] = hzi_mhc_floored(sum, eps * s->of_r[i]);
		s->r[i] = hzi_m_inverse(s->of_r[i]);
	}
}

HZI_MHC_FN void hzi_mhc_iterate_by(const int n, const struct hzi_mhc_rule *rule, const bool floor,
				   int first, int last, const hzi_mreal *k,
				   struct hzi_mhc_state *s, hzi_mreal *history, int stride)
{
	const hzi_mreal eps = hzi_m_set(rule->eps);

	for (int t = first; t < last; t++) {
		if (history) {
			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++) {
				history[((t - first) * 2 * n + i) * stride] = s->r[i];
				history[((t - first) * 2 * n + n + i) * stride] = s->c[i];
			}
		}
		if (floor)
			hzi_mhc_sinkhorn_floor_step(n, eps, t > 0 || rule->map != HZ_MHC_SOFTMAX,
						    k, s);
		else
			hzi_mhc_sinkhorn_step(n, eps, t > 0 || rule->map != HZ_MHC_SOFTMAX, k, s);
	}
}

/*
 * Iterations first .. last - 1. history (NULL: none) gets r and c before each iteration: element e
 * of the 2n of iteration first + t is at (t * 2 * n + e) * stride.
 */
HZI_MHC_FN void hzi_mhc_iterate(const int n, const struct hzi_mhc_rule *rule, int first, int last,
				const hzi_mreal *k, struct hzi_mhc_state *s, hzi_mreal *history,
				int stride)
{
	if (hzi_mhc_is_floor(rule))
		hzi_mhc_iterate_by(n, rule, true, first, last, k, s, history, stride);
	else
		hzi_mhc_iterate_by(n, rule, false, first, last, k, s, history, stride);
}

/* k from the result of hzi_mhc_map() */
HZI_MHC_FN void hzi_mhc_kernel_of(const int n, const struct hzi_mhc_rule *rule, const hzi_mreal *s,
				  hzi_mreal *k)
{
	const hzi_mreal eps = hzi_m_set(rule->map == HZ_MHC_SOFTMAX ? rule->eps : 0.0f);

	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++)
		k[i] = s[i] + eps;
}

/* ---- Sinkhorn-Knopp iteration of matrices that leave the range of f32 -------------------------- */

/*
 * Where a row of k underflows, r is infinite and the result NaN, although the factors of rows and
 * columns cancel. The functions of this section are called for such results alone. They divide k by
 * the largest element of each row, too: every row and every column then has an element of 1. The
 * first half iteration begins with r that undoes this, so that the equations are those above. Sums
 * below HZI_MHC_LEAST_SUM count as that much: factors stay finite where the zeros of k admit no
 * doubly stochastic limit. n is a variable, and loops are not unrolled.
 */
#define HZI_MHC_LEAST_SUM 1e-18f

/* k and r of z, both as above. Returns 0, or NaN if an element of z is infinite or NaN. */
HZI_MHC_FN hzi_mreal hzi_mhc_balance(const int n, const struct hzi_mhc_rule *rule,
				     const hzi_mreal *z, hzi_mreal *k, hzi_mreal *r)
{
	const bool transposed = rule->order == HZ_MHC_ROWS, is_abs = rule->map == HZ_MHC_ABS;
	const hzi_mreal eps = hzi_m_set(rule->eps), tiny = hzi_m_set(1e-30f);
	const hzi_mreal share = hzi_m_set(0.0625f);	/* keeps divisors in hzi_m_div()'s range */
	hzi_mreal bad = hzi_m_set(0), most;

	for (int j = 0; j < n; j++) {
		for (int i = 0; i < n; i++) {
			const hzi_mreal v = hzi_mhc_element(n, transposed, z, i, j);

			bad += v * hzi_m_set(0);
			k[i * n + j] = is_abs ? hzi_m_abs(v) + eps : v;
			most = i == 0 ? k[j] : hzi_m_max(most, k[i * n + j]);
		}
		for (int i = 0; i < n; i++)
			k[i * n + j] = is_abs ? hzi_m_div(k[i * n + j] * share,
							  hzi_m_max(most, tiny) * share) :
						hzi_m_max(k[i * n + j] - most, hzi_m_set(-1e38f));
	}
	for (int i = 0; i < n; i++) {
		most = k[i * n];
		for (int j = 1; j < n; j++)
			most = hzi_m_max(most, k[i * n + j]);
		r[i] = is_abs ? hzi_m_max(most, tiny) : hzi_m_exp(hzi_m_max(most, hzi_m_set(-60)));
		for (int j = 0; j < n; j++)
			k[i * n + j] = is_abs ? hzi_m_div(k[i * n + j], r[i]) :
						hzi_m_exp(k[i * n + j] - most);
	}
	return bad;
}

/* r, c and their inverses before the first iteration */
HZI_MHC_FN void hzi_mhc_balanced_begin(const int n, const hzi_mreal *r, struct hzi_mhc_state *s)
{
	for (int i = 0; i < n; i++) {
		s->r[i] = r[i];
		s->of_r[i] = hzi_m_inverse(r[i]);
		s->c[i] = s->of_c[i] = hzi_m_set(1);
	}
}

/* hzi_mhc_iterate() */
HZI_MHC_FN void hzi_mhc_balanced_iterate(const int n, const struct hzi_mhc_rule *rule, int first,
					 int last, const hzi_mreal *k, struct hzi_mhc_state *s,
					 hzi_mreal *history, int stride)
{
	const hzi_mreal least = hzi_m_set(HZI_MHC_LEAST_SUM), eps = hzi_m_set(rule->eps);
	const bool floor = hzi_mhc_is_floor(rule);

	for (int t = first; t < last; t++) {
		for (int i = 0; i < n && history; i++) {
			history[((t - first) * 2 * n + i) * stride] = s->r[i];
			history[((t - first) * 2 * n + n + i) * stride] = s->c[i];
		}
		for (int j = 0; j < n; j++) {
			const hzi_mreal part = eps * s->of_c[j];
			hzi_mreal sum = floor ? hzi_m_set(0) : part;

			for (int i = 0; i < n; i++)
				sum = hzi_m_fma(k[i * n + j], s->r[i], sum);
			s->of_c[j] = hzi_m_max(floor ? hzi_m_max(sum, part) : sum, least);
			s->c[j] = hzi_m_inverse(s->of_c[j]);
		}
		for (int i = 0; i < n; i++) {
			const hzi_mreal part = eps * s->of_r[i];
			hzi_mreal sum = floor ? hzi_m_set(0) : part;

			for (int j = 0; j < n; j++)
				sum = hzi_m_fma(k[i * n + j], s->c[j], sum);
			s->of_r[i] = hzi_m_max(floor ? hzi_m_max(sum, part) : sum, least);
			s->r[i] = hzi_m_inverse(s->of_r[i]);
		}
	}
}

/* p [n][n] from z, in the order of k */
HZI_MHC_RARE void hzi_mhc_sinkhorn_balanced(const int n, const struct hzi_mhc_rule *rule,
					    const hzi_mreal *z, hzi_mreal *p)
{
	hzi_mreal k[HZI_MHC_SQUARE], r[HZI_MHC_STREAMS], bad;
	struct hzi_mhc_state s;

	bad = hzi_mhc_balance(n, rule, z, k, r);
	hzi_mhc_balanced_begin(n, r, &s);
	hzi_mhc_balanced_iterate(n, rule, 0, rule->iterations, k, &s, NULL, 0);
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < n; j++)
			p[i * n + j] = s.r[i] * k[i * n + j] * s.c[j] + bad;
	}
}

/* ---- Sinkhorn-Knopp iteration: result and gradient -------------------------------------------- */

/*
 * p = sinkhorn(z), z as it is given, before z_min and z_max; p may be z. A matrix whose sums
 * underflow is computed again: the first result raises floating-point exceptions although the
 * second is finite. C callers silence them, see hzi_fp_silence_begin().
 */
HZI_MHC_FN void hzi_mhc_sinkhorn(const int n, const struct hzi_mhc_rule *rule,
				 const hzi_mreal *given, hzi_mreal *p)
{
	const bool transposed = rule->order == HZ_MHC_ROWS;
	hzi_mreal k[HZI_MHC_SQUARE], z[HZI_MHC_SQUARE], total = hzi_m_set(0);
	struct hzi_mhc_state s;

	hzi_mhc_clamp(n * n, rule, given, z);
	hzi_mhc_map(n, rule, z, k);
	hzi_mhc_kernel_of(n, rule, k, k);
	hzi_mhc_sinkhorn_begin(n, rule, z, k, &s);
	hzi_mhc_iterate(n, rule, 0, rule->iterations, k, &s, NULL, 0);
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++)
			k[i * n + j] = s.r[i] * k[i * n + j] * s.c[j];
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++)
		total += k[i];
	if (hzi_m_any_beyond(total, FLT_MAX)) {
		hzi_mreal in[HZI_MHC_SQUARE], out[HZI_MHC_SQUARE];

		for (int i = 0; i < n * n; i++)
			in[i] = z[i];
		hzi_mhc_sinkhorn_balanced(n, rule, in, out);
		HZI_MHC_UNROLL
		for (int i = 0; i < n * n; i++)
			k[i] = hzi_m_if_infinite(total, out[i], k[i]);
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++)
			p[i * n + j] = hzi_mhc_element(n, transposed, k, i, j);
	}
}

/* a / b, or 0 if b is 0; a is 0 then, too. */
HZI_MHC_FN hzi_mreal hzi_mhc_ratio(hzi_mreal a, hzi_mreal b)
{
	return hzi_m_where(b, hzi_m_set(0), hzi_m_div(a, b), hzi_m_set(0));
}

/*
 * With HZ_MHC_EPS_FLOOR, of a step from r to r_new, the inverse of a sum or of eps / r, ratio =
 * r_new / r: if that was eps / r, the gradient d of the sum is 0, else that of r.
 */
HZI_MHC_FN void hzi_mhc_floor_bwd(const struct hzi_mhc_rule *rule, hzi_mreal ratio, hzi_mreal *d,
				  hzi_mreal *dr)
{
	const hzi_mreal share = ratio * hzi_m_set(rule->eps), one = hzi_m_set(0.999996f);

	if (!hzi_mhc_is_floor(rule))
		return;
	*d = hzi_m_where(share, one, hzi_m_set(0), *d);
	*dr = hzi_m_where(share, one, *dr, hzi_m_set(0));
}

/*
 * Gradient of one iteration, which made r_new and c_new from r and c. dr and dc are the gradients
 * of r_new and c_new on entry, of r and c on return; dk is added to. r may be large: the order of
 * factors avoids its square.
 */
HZI_MHC_FN void hzi_mhc_sinkhorn_step_bwd(const int n, const struct hzi_mhc_rule *rule,
					  const bool columns, const hzi_mreal *k,
					  const hzi_mreal *r, const hzi_mreal *c,
					  const hzi_mreal *r_new, const hzi_mreal *c_new,
					  hzi_mreal *dk, hzi_mreal *dr, hzi_mreal *dc)
{
	const hzi_mreal eps = hzi_m_set(rule->eps);

	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		/* 1 / (r_i sum + eps) */
		const hzi_mreal inverse = hzi_mhc_ratio(r_new[i], r[i]);
		hzi_mreal d = -(dr[i] * r_new[i]) * r_new[i];	/* gradient of the sum */

		dr[i] = dr[i] * (eps * inverse * inverse);
		hzi_mhc_floor_bwd(rule, inverse, &d, &dr[i]);
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++) {
			dk[i * n + j] = hzi_m_fma(d, c_new[j], dk[i * n + j]);
			dc[j] = hzi_m_fma(d, k[i * n + j], dc[j]);
		}
	}
	if (!columns)
		return;
	HZI_MHC_UNROLL
	for (int j = 0; j < n; j++) {
		const hzi_mreal inverse = hzi_mhc_ratio(c_new[j], c[j]);
		hzi_mreal d = -(dc[j] * c_new[j]) * c_new[j];

		dc[j] = dc[j] * (eps * inverse * inverse);
		hzi_mhc_floor_bwd(rule, inverse, &d, &dc[j]);
		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++) {
			dk[i * n + j] = hzi_m_fma(d, r[i], dk[i * n + j]);
			dr[i] = hzi_m_fma(d, k[i * n + j], dr[i]);
		}
	}
}

/* dz from dk, the gradient of s = hzi_mhc_map(z); dz may be z or dk, but not s. */
HZI_MHC_FN void hzi_mhc_map_bwd(const int n, const struct hzi_mhc_rule *rule, const hzi_mreal *z,
				const hzi_mreal *s, const hzi_mreal *dk, hzi_mreal *dz)
{
	const bool transposed = rule->order == HZ_MHC_ROWS;
	const hzi_mreal zero = hzi_m_set(0);
	hzi_mreal d[HZI_MHC_SQUARE];

	HZI_MHC_UNROLL
	for (int j = 0; j < n; j++) {
		hzi_mreal sum = zero;

		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++) {
			const int at = i * n + j;
			const hzi_mreal v = hzi_mhc_element(n, transposed, z, i, j);

			d[at] = dk[at] * s[at];
			sum += d[at];
			if (rule->map == HZ_MHC_ABS)
				d[at] = hzi_m_where(v, zero, dk[at],
						    hzi_m_where(zero, v, -dk[at], dk[at] * zero));
		}
		if (rule->map == HZ_MHC_SOFTMAX) {
			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++)
				d[i * n + j] = s[i * n + j] * (dk[i * n + j] - sum);
		} else if (rule->map == HZ_MHC_EXP && rule->eps != 0) {
			/*
			 * With eps the subtracted maximum matters: the gradient goes to the first
			 * element equal to it.
			 */
			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++) {
				const hzi_mreal near_one = hzi_m_set(0.99999994f);
				const hzi_mreal next = hzi_m_where(s[i * n + j], near_one, zero,
								   sum);

				d[i * n + j] -= sum - next;
				sum = next;
			}
		}
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++)
			dz[i * n + j] = hzi_mhc_element(n, transposed, d, i, j);
	}
}

/* Iterations that a history holds, 2 n values each */
#ifndef HZI_MHC_HISTORY
#define HZI_MHC_HISTORY 32
#endif

/*
 * hzi_mhc_sinkhorn_bwd() of such matrices; dz is not z or dp. The divisors of rows and columns are
 * constants: p does not depend on them, except that with HZ_MHC_EXP and eps the largest element of
 * a column gets the gradient of its divisor.
 */
HZI_MHC_RARE void hzi_mhc_sinkhorn_balanced_bwd(const int n, const struct hzi_mhc_rule *rule,
						const hzi_mreal *z, const hzi_mreal *dp,
						hzi_mreal *dz, hzi_mreal *history, int stride)
{
	const bool transposed = rule->order == HZ_MHC_ROWS;
	const hzi_mreal zero = hzi_m_set(0), eps = hzi_m_set(rule->eps);
	hzi_mreal k[HZI_MHC_SQUARE], dk[HZI_MHC_SQUARE], r[HZI_MHC_STREAMS];
	hzi_mreal dr[HZI_MHC_STREAMS], dc[HZI_MHC_STREAMS], bad;
	struct hzi_mhc_state s;

	bad = hzi_mhc_balance(n, rule, z, k, r);
	for (int i = 0; i < n; i++)
		dr[i] = dc[i] = zero;
	for (int i = 0; i < n * n; i++)
		dk[i] = zero;
	for (int last = rule->iterations, first; last > 0; last = first) {
		first = (last - 1) / HZI_MHC_HISTORY * HZI_MHC_HISTORY;
		hzi_mhc_balanced_begin(n, r, &s);
		hzi_mhc_balanced_iterate(n, rule, 0, first, k, &s, NULL, 0);
		hzi_mhc_balanced_iterate(n, rule, first, last, k, &s, history, stride);
		for (int i = 0; i < n && last == rule->iterations; i++) {
			for (int j = 0; j < n; j++) {
				const hzi_mreal g = hzi_mhc_element(n, transposed, dp, i, j);
				const hzi_mreal gk = g * k[i * n + j];

				dk[i * n + j] = g * s.r[i] * s.c[j];
				dr[i] = hzi_m_fma(gk, s.c[j], dr[i]);
				dc[j] = hzi_m_fma(gk, s.r[i], dc[j]);
			}
		}
		for (int t = last - 1; t >= first; t--) {
			const hzi_mreal *const old = history + (t - first) * 2 * n * stride;

			for (int i = 0; i < n; i++) {
				const hzi_mreal ratio = hzi_mhc_ratio(s.r[i], old[i * stride]);
				hzi_mreal d = -(dr[i] * s.r[i]) * s.r[i];

				dr[i] = rule->eps == 0 ? zero : dr[i] * (eps * ratio * ratio);
				hzi_mhc_floor_bwd(rule, ratio, &d, &dr[i]);
				for (int j = 0; j < n; j++) {
					dk[i * n + j] = hzi_m_fma(d, s.c[j], dk[i * n + j]);
					dc[j] = hzi_m_fma(d, k[i * n + j], dc[j]);
				}
			}
			for (int j = 0; j < n; j++) {
				const hzi_mreal before = old[(n + j) * stride];
				const hzi_mreal ratio = hzi_mhc_ratio(s.c[j], before);
				hzi_mreal d = -(dc[j] * s.c[j]) * s.c[j];

				dc[j] = rule->eps == 0 ? zero : dc[j] * (eps * ratio * ratio);
				hzi_mhc_floor_bwd(rule, ratio, &d, &dc[j]);
				for (int i = 0; i < n; i++) {
					dk[i * n + j] = hzi_m_fma(d, old[i * stride],
								  dk[i * n + j]);
					dr[i] = hzi_m_fma(d, k[i * n + j], dr[i]);
				}
				s.c[j] = before;
			}
			for (int i = 0; i < n; i++)
				s.r[i] = old[i * stride];
		}
	}
	for (int j = 0; j < n; j++) {
		hzi_mreal sum = zero;

		for (int i = 0; i < n; i++) {
			const hzi_mreal v = hzi_mhc_element(n, transposed, z, i, j);
			const hzi_mreal size = hzi_m_abs(v) + eps;

			dk[i * n + j] *= k[i * n + j];
			sum += dk[i * n + j];
			if (rule->map == HZ_MHC_ABS) {
				const hzi_mreal d = hzi_mhc_ratio(dk[i * n + j], size);

				dk[i * n + j] = hzi_m_where(v, zero, d,
							    hzi_m_where(zero, v, -d, zero));
			}
		}
		for (int i = 0; i < n && rule->map == HZ_MHC_EXP && rule->eps != 0; i++) {
			const hzi_mreal v = hzi_mhc_element(n, transposed, z, i, j);
			hzi_mreal most = v, next;

			for (int l = 0; l < n; l++)
				most = hzi_m_max(most, hzi_mhc_element(n, transposed, z, l, j));
			/* The first largest element gets the sum, once. */
			next = hzi_m_where(most, v, sum, zero);
			dk[i * n + j] -= sum - next;
			sum = next;
		}
	}
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < n; j++)
			dz[i * n + j] = hzi_mhc_element(n, transposed, dk, i, j) + bad;
	}
}

/*
 * dz from dp, the gradient of p = sinkhorn(given); dz may be given or dp. Iterations that do not
 * fit the history are recomputed for each segment of it, the last segment first.
 */
HZI_MHC_FN void hzi_mhc_sinkhorn_bwd(const int n, const struct hzi_mhc_rule *rule,
				     const hzi_mreal *given, const hzi_mreal *dp, hzi_mreal *dz,
				     hzi_mreal *history, int stride)
{
	const bool transposed = rule->order == HZ_MHC_ROWS;
	hzi_mreal k[HZI_MHC_SQUARE], dk[HZI_MHC_SQUARE], total = hzi_m_set(0);
	hzi_mreal z[HZI_MHC_SQUARE], dr[HZI_MHC_STREAMS], dc[HZI_MHC_STREAMS];
	struct hzi_mhc_state s;

	hzi_mhc_clamp(n * n, rule, given, z);
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++)
		dr[i] = dc[i] = hzi_m_set(0);
	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++)
		dk[i] = hzi_m_set(0);
	hzi_mhc_map(n, rule, z, k);
	hzi_mhc_kernel_of(n, rule, k, k);
	for (int last = rule->iterations, first; last > 0; last = first) {
		first = (last - 1) / HZI_MHC_HISTORY * HZI_MHC_HISTORY;
		hzi_mhc_sinkhorn_begin(n, rule, z, k, &s);
		hzi_mhc_iterate(n, rule, 0, first, k, &s, NULL, 0);
		hzi_mhc_iterate(n, rule, first, last, k, &s, history, stride);
		if (last == rule->iterations) {
			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++) {
				HZI_MHC_UNROLL
				for (int j = 0; j < n; j++) {
					const hzi_mreal g = hzi_mhc_element(n, transposed, dp, i,
									    j);
					const hzi_mreal gk = g * k[i * n + j];

					dk[i * n + j] = g * s.r[i] * s.c[j];
					dr[i] = hzi_m_fma(gk, s.c[j], dr[i]);
					dc[j] = hzi_m_fma(gk, s.r[i], dc[j]);
				}
			}
		}
		for (int t = last - 1; t >= first; t--) {
			hzi_mreal r_old[HZI_MHC_STREAMS], c_old[HZI_MHC_STREAMS];

			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++) {
				r_old[i] = history[((t - first) * 2 * n + i) * stride];
				c_old[i] = history[((t - first) * 2 * n + n + i) * stride];
			}
			hzi_mhc_sinkhorn_step_bwd(n, rule, t > 0 || rule->map != HZ_MHC_SOFTMAX, k,
						  r_old, c_old, s.r, s.c, dk, dr, dc);
			HZI_MHC_UNROLL
			for (int i = 0; i < n; i++) {
				s.r[i] = r_old[i];
				s.c[i] = c_old[i];
			}
		}
	}
	hzi_mhc_map(n, rule, z, k);
	hzi_mhc_map_bwd(n, rule, z, k, dk, dk);
	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++)
		total += dk[i];
	if (hzi_m_any_beyond(total, FLT_MAX)) {
		hzi_mreal in[HZI_MHC_SQUARE], dout[HZI_MHC_SQUARE], out[HZI_MHC_SQUARE];

		for (int i = 0; i < n * n; i++) {
			in[i] = z[i];
			dout[i] = dp[i];
		}
		hzi_mhc_sinkhorn_balanced_bwd(n, rule, in, dout, out, history, stride);
		HZI_MHC_UNROLL
		for (int i = 0; i < n * n; i++)
			dk[i] = hzi_m_if_infinite(total, out[i], dk[i]);
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++) {
		const hzi_mreal low = hzi_m_set(rule->z_min), high = hzi_m_set(rule->z_max);

		if (!hzi_mhc_is_clamped(rule))
			continue;
		dk[i] = hzi_m_where(given[i], high, hzi_m_set(0), dk[i]);
		dk[i] = hzi_m_where(low, given[i], hzi_m_set(0), dk[i]);
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++)
		dz[i] = dk[i];
}

/* ---- Residual matrices without iteration ----------------------------------------------------- */

/* n! */
HZI_MHC_FN int hzi_mhc_permutations(const int n)
{
	return n == 4 ? 24 : n == 3 ? 6 : n;
}

/* Most rows of phi after the first 2n */
HZI_MHC_FN int hzi_mhc_residual_rows_max(const int n)
{
	return n == 4 ? 24 : n * n;
}

/*
 * Image of i under permutation k of n <= 4 elements, in lexicographic order: the table's
 * permutations of 4 that fix the first 4 - n
 */
HZI_MHC_FN int hzi_mhc_permuted(const int n, const int k, const int i)
{
	const uint16_t of_four[24] = {
		0x0123, 0x0132, 0x0213, 0x0231, 0x0312, 0x0321, 0x1023, 0x1032,
		0x1203, 0x1230, 0x1302, 0x1320, 0x2013, 0x2031, 0x2103, 0x2130,
		0x2301, 0x2310, 0x3012, 0x3021, 0x3102, 0x3120, 0x3201, 0x3210,
	};

	return (of_four[k] >> (4 * (n - 1 - i)) & 15) - (4 - n);
}

/* w = softmax(z), count values; w may be z. */
HZI_MHC_FN void hzi_mhc_softmax(const int count, const hzi_mreal *z, hzi_mreal *w)
{
	hzi_mreal most = z[0], sum = hzi_m_set(0);

	HZI_MHC_UNROLL
	for (int k = 1; k < count; k++)
		most = hzi_m_max(most, z[k]);
	HZI_MHC_UNROLL
	for (int k = 0; k < count; k++) {
		w[k] = hzi_m_exp(z[k] - most);
		sum += w[k];
	}
	sum = hzi_m_div(hzi_m_set(1), sum);
	HZI_MHC_UNROLL
	for (int k = 0; k < count; k++)
		w[k] *= sum;
}

HZI_MHC_FN void hzi_mhc_lite(const int n, const hzi_mreal *z, hzi_mreal *p)
{
	const int count = hzi_mhc_permutations(n);
	hzi_mreal w[24];

	hzi_mhc_softmax(count, z, w);
	HZI_MHC_UNROLL
	for (int i = 0; i < n * n; i++)
		p[i] = hzi_m_set(0);
	HZI_MHC_UNROLL
	for (int k = 0; k < count; k++) {
		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++)
			p[i * n + hzi_mhc_permuted(n, k, i)] += w[k];
	}
}

HZI_MHC_FN void hzi_mhc_lite_bwd(const int n, const hzi_mreal *z, const hzi_mreal *dp,
				 hzi_mreal *dz)
{
	const int count = hzi_mhc_permutations(n);
	hzi_mreal w[24], dw[24], mean = hzi_m_set(0);

	hzi_mhc_softmax(count, z, w);
	HZI_MHC_UNROLL
	for (int k = 0; k < count; k++) {
		dw[k] = hzi_m_set(0);
		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++)
			dw[k] += dp[i * n + hzi_mhc_permuted(n, k, i)];
		mean = hzi_m_fma(w[k], dw[k], mean);
	}
	HZI_MHC_UNROLL
	for (int k = 0; k < hzi_mhc_residual_rows_max(n); k++)
		dz[k] = k < count ? w[k] * (dw[k] - mean) : hzi_m_set(0);
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

/* Number of rows of phi after the first 2n, which make a */
HZI_MHC_FN int hzi_mhc_residual_rows(const int n, const struct hzi_mhc_rule *rule)
{
	return rule->residual == HZ_MHC_LITE ? hzi_mhc_permutations(n) :
	       rule->residual == HZ_MHC_IDENTITY ? 0 : n * n;
}

/* p from its z: sigma + p_eps, or sigma / (sum + p_eps); with HZ_MHC_TANH z itself */
HZI_MHC_FN void hzi_mhc_gates(const int n, const struct hzi_mhc_rule *rule, const hzi_mreal *z,
			      hzi_mreal *p)
{
	const bool is_tanh = rule->residual == HZ_MHC_TANH;
	const hzi_mreal eps = hzi_m_set(rule->p_eps);
	hzi_mreal sum = eps, slope;

	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		p[i] = hzi_mhc_sigma(z[i], &slope);
		sum += p[i];
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		p[i] = rule->flags & HZ_MHC_NORMALIZE ? hzi_m_div(p[i], sum) : p[i] + eps;
		p[i] = is_tanh ? z[i] : p[i];
		if (HZI_MHC_RARELY(rule->flags & HZI_MHC_HEAD))
			p[i] = eps;
	}
}

/* count elements of q from their z */
HZI_MHC_FN void hzi_mhc_post_gates(const int count, const struct hzi_mhc_rule *rule,
				   const hzi_mreal *z, hzi_mreal *q)
{
	const bool is_tanh = rule->residual == HZ_MHC_TANH;
	hzi_mreal slope;

	HZI_MHC_UNROLL
	for (int i = 0; i < count; i++)
		q[i] = is_tanh ? z[i] : hzi_m_set(rule->q_scale) * hzi_mhc_sigma(z[i], &slope);
	HZI_MHC_UNROLL
	for (int i = 0; i < count; i++) {
		if (HZI_MHC_RARELY(rule->q_eps != 0) && !is_tanh)
			q[i] += hzi_m_set(rule->q_eps);
	}
}

HZI_MHC_FN void hzi_mhc_gates_bwd(const int n, const struct hzi_mhc_rule *rule, const hzi_mreal *z,
				  const hzi_mreal *dp, hzi_mreal *dz)
{
	hzi_mreal slope[HZI_MHC_STREAMS], sum = hzi_m_set(rule->p_eps), mean = hzi_m_set(0);

	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		const hzi_mreal s = hzi_mhc_sigma(z[i], &slope[i]);

		sum += s;
		mean = hzi_m_fma(dp[i], s, mean);
	}
	mean = hzi_m_div(mean, sum);
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++)
		dz[i] = rule->flags & HZ_MHC_NORMALIZE ? hzi_m_div(dp[i] - mean, sum) * slope[i] :
							 dp[i] * slope[i];
}

/* a [new][old] from its z */
HZI_MHC_FN void hzi_mhc_residual(const int n, const struct hzi_mhc_rule *rule, const hzi_mreal *z,
				 hzi_mreal *a)
{
	const bool transposed = rule->flags & HZ_MHC_OLD_NEW;
	hzi_mreal p[HZI_MHC_SQUARE];

	if (rule->residual == HZ_MHC_SINKHORN) {
		hzi_mhc_sinkhorn(n, rule, z, p);
	} else if (rule->residual == HZ_MHC_LITE && n <= 4) {
		hzi_mhc_lite(n, z, p);
	} else {
		const bool identity = rule->residual == HZ_MHC_IDENTITY;

		HZI_MHC_UNROLL
		for (int i = 0; i < n * n; i++)
			p[i] = identity ? hzi_m_set(i % (n + 1) == 0 ? 1.0f : 0.0f) : z[i];
	}
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++)
			a[i * n + j] = hzi_mhc_element(n, transposed, p, i, j);
	}
}

/* Its gradient, 0 where z is unused; dz may be z. history: see hzi_mhc_sinkhorn_bwd() */
HZI_MHC_FN void hzi_mhc_residual_bwd(const int n, const struct hzi_mhc_rule *rule,
				     const hzi_mreal *z, const hzi_mreal *da, hzi_mreal *dz,
				     hzi_mreal *history, int stride)
{
	const bool transposed = rule->flags & HZ_MHC_OLD_NEW;
	hzi_mreal dp[HZI_MHC_SQUARE];

	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		HZI_MHC_UNROLL
		for (int j = 0; j < n; j++)
			dp[i * n + j] = hzi_mhc_element(n, transposed, da, i, j);
	}
	HZI_MHC_UNROLL
	for (int i = n * n; i < hzi_mhc_residual_rows_max(n); i++)
		dz[i] = hzi_m_set(0);
	if (rule->residual == HZ_MHC_SINKHORN) {
		hzi_mhc_sinkhorn_bwd(n, rule, z, dp, dz, history, stride);
	} else if (rule->residual == HZ_MHC_LITE && n <= 4) {
		hzi_mhc_lite_bwd(n, z, dp, dz);
	} else {
		const bool is_tanh = rule->residual == HZ_MHC_TANH;

		HZI_MHC_UNROLL
		for (int i = 0; i < n * n; i++)
			dz[i] = is_tanh ? dp[i] : hzi_m_set(0);
	}
}

/* Index of the alpha of row k of phi: 0 for p, 1 for q, 2 for a */
HZI_MHC_FN int hzi_mhc_part(const int n, const int k)
{
	return k < n ? 0 : k < 2 * n ? 1 : 2;
}

/* alpha[part] may be NULL without phi: y is 0 then. */
HZI_MHC_FN hzi_mreal hzi_mhc_alpha(const float *const *alpha, int part)
{
	return hzi_m_set(alpha[part] ? *alpha[part] : 0.0f);
}

/* The factor of alpha, and its derivative: y, with HZ_MHC_TANH tanh(y) */
HZI_MHC_FN hzi_mreal hzi_mhc_input(const struct hzi_mhc_rule *rule, hzi_mreal y, hzi_mreal *slope)
{
	*slope = hzi_m_set(1);
	return rule->residual == HZ_MHC_TANH ? hzi_mhc_tanh(y, slope) : y;
}

/* z = alpha input(y) + bias for existing rows, 0 for others */
HZI_MHC_FN void hzi_mhc_affine(const int n, const struct hzi_mhc_rule *rule, const bool all,
			       const hzi_mreal *y, const float *const *alpha, const float *bias,
			       hzi_mreal *z)
{
	const bool no_bias = HZI_MHC_RARELY(!bias);
	const int rows = all ? 2 * n + hzi_mhc_residual_rows(n, rule) : n;
	hzi_mreal slope;

	HZI_MHC_UNROLL
	for (int k = 0; k < 2 * n + hzi_mhc_residual_rows_max(n); k++) {
		z[k] = hzi_m_set(0);
		if (k < rows)
			z[k] = hzi_m_fma(hzi_mhc_alpha(alpha, hzi_mhc_part(n, k)),
					 hzi_mhc_input(rule, y[k], &slope),
					 hzi_m_set(no_bias ? 0.0f : bias[k]));
	}
}

/* p, q [n] and a [new][old] from y = phi x / rms(x); all: q and a too, not only p */
HZI_MHC_FN void hzi_mhc_coefs(const int n, const struct hzi_mhc_rule *rule, const bool all,
			      const hzi_mreal *y, const float *const *alpha, const float *bias,
			      hzi_mreal *p, hzi_mreal *q, hzi_mreal *a)
{
	hzi_mreal z[HZI_MHC_ROWS];

	hzi_mhc_affine(n, rule, all, y, alpha, bias, z);
	hzi_mhc_gates(n, rule, z, p);
	if (!all)
		return;
	hzi_mhc_post_gates(n, rule, z + n, q);
	hzi_mhc_residual(n, rule, z + 2 * n, a);
}

/* Their gradients: dz of bias, dy of y, dalpha [3], or without all [1]. history: see above */
HZI_MHC_FN void hzi_mhc_coefs_bwd(const int n, const struct hzi_mhc_rule *rule, const bool all,
				  const hzi_mreal *y, const float *const *alpha, const float *bias,
				  const hzi_mreal *dp, const hzi_mreal *dq, const hzi_mreal *da,
				  hzi_mreal *dz, hzi_mreal *dy, hzi_mreal *dalpha,
				  hzi_mreal *history, int stride)
{
	const bool is_tanh = rule->residual == HZ_MHC_TANH;
	const int rows = all ? 2 * n + hzi_mhc_residual_rows(n, rule) : n;
	hzi_mreal z[HZI_MHC_ROWS], d[HZI_MHC_ROWS], slope;

	hzi_mhc_affine(n, rule, all, y, alpha, bias, z);
	HZI_MHC_UNROLL
	for (int k = 0; k < 2 * n + hzi_mhc_residual_rows_max(n); k++)
		d[k] = hzi_m_set(0);
	hzi_mhc_gates_bwd(n, rule, z, dp, d);
	HZI_MHC_UNROLL
	for (int i = 0; i < n; i++) {
		d[i] = is_tanh ? dp[i] : d[i];
		if (HZI_MHC_RARELY(rule->flags & HZI_MHC_HEAD))
			d[i] = hzi_m_set(0);
	}
	if (all) {
		HZI_MHC_UNROLL
		for (int i = 0; i < n; i++) {
			hzi_mhc_sigma(z[n + i], &slope);
			d[n + i] = is_tanh ? dq[i] : dq[i] * (hzi_m_set(rule->q_scale) * slope);
		}
		hzi_mhc_residual_bwd(n, rule, z + 2 * n, da, d + 2 * n, history, stride);
	}
	HZI_MHC_UNROLL
	for (int g = 0; g < 3; g++) {
		if (g == 0 || all)
			dalpha[g] = hzi_m_set(0);
	}
	HZI_MHC_UNROLL
	for (int k = 0; k < 2 * n + hzi_mhc_residual_rows_max(n); k++) {
		const int g = hzi_mhc_part(n, k);

		if (k < rows) {
			const hzi_mreal v = hzi_mhc_input(rule, y[k], &slope);

			dalpha[g] = hzi_m_fma(d[k], v, dalpha[g]);
			dy[k] = hzi_mhc_alpha(alpha, g) * d[k] * slope;
			dz[k] = d[k];
		}
	}
}

#endif
