/*
 * coef_rows.cuh - coefficients of a group of up to eight streams, and their gradients, by a warp
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Lane 4 i + q has columns 2 q and 2 q + 1 of row i of k, the matrix of Sinkhorn's iteration, and
 * the lanes with q = 0 and 1 have p_i and q_i. Code for a whole matrix in one thread would be so
 * long that fetching it takes most of the time. Rows and columns from n on are 0. All lanes of a
 * warp call these functions together.
 */
#ifndef HZI_GPU_MHC_COEF_ROWS_CUH
#define HZI_GPU_MHC_COEF_ROWS_CUH

#include "gpu/mhc/coef.cuh"

#define PAIR 2				/* columns of a lane */
#define ENTRIES (1 + PAIR)		/* rows of phi of a lane: of p_i or q_i, then of k */
#define KEPT (2 * HZI_MHC_STREAMS)	/* floats of a history per iteration: r and c */

/* Row and columns of a lane */
struct place {
	int i, q;

	__device__ __forceinline__ place(void)
		: i(threadIdx.x % 32 / 4), q(threadIdx.x % 4)
	{
	}
	__device__ __forceinline__ int j(int e) const
	{
		return PAIR * q + e;
	}
	__device__ __forceinline__ bool in(int n, int e) const
	{
		return i < n && j(e) < n;
	}
};

/* Sums of a column, and of a row from the lanes' own */
HZ_DEVICE float sum_column(float v)
{
#pragma unroll
	for (int step = 4; step < 32; step *= 2)
		v += __shfl_xor_sync(0xffffffff, v, step);
	return v;
}

HZ_DEVICE float sum_row(float v)
{
	v += __shfl_xor_sync(0xffffffff, v, 1);
	return v + __shfl_xor_sync(0xffffffff, v, 2);
}

/* The rows of phi of a lane; -1: none */
struct rows_of_lane {
	int k[ENTRIES];
	int part;			/* of p and q: the index of the first entry's alpha */
	bool swapped;			/* k_ij becomes a_ji */

	__device__ __forceinline__ rows_of_lane(const hzi_mhc_rule &rule, const place &at)
	{
		const bool transposed = rule.residual == HZ_MHC_SINKHORN &&
					rule.order == HZ_MHC_ROWS;
		const int n = rule.n;

		swapped = transposed != ((rule.flags & HZ_MHC_OLD_NEW) != 0);
		part = at.q == 1;
		k[0] = at.q * n + at.i;
		if (at.i >= n || at.q > 1 || k[0] >= rule.m)
			k[0] = -1;
#pragma unroll
		for (int e = 0; e < PAIR; e++) {
			k[1 + e] = 2 * n + (transposed ? at.j(e) * n + at.i : at.i * n + at.j(e));
			if (!at.in(n, e) || k[1 + e] >= rule.m)
				k[1 + e] = -1;
		}
	}

	/* Adds up the sums of group s; returns the mean square, or minus its root. */
	__device__ __forceinline__ float load(const hzi_mhc_sums &sums, const hzi_mhc_rule &rule,
					      int64_t s, float *v) const
	{
		const float *src = sums.data + s * (rule.m + 1);
		float square = 0;

		v[0] = v[1] = v[2] = 0;
		if (!sums.data)
			return 0;
#pragma unroll 4
		for (int i = 0; i < sums.splits; i++, src += sums.groups * (rule.m + 1)) {
#pragma unroll
			for (int e = 0; e < ENTRIES; e++)
				v[e] += k[e] >= 0 ? src[k[e]] : 0;
			square += src[rule.m];
		}
		if (sums.saved)
			return square;
		square = sums.columns > 0 ? square / sums.columns : 0;
		if (hzi_mhc_leaves_f32(square, sums.least) && sums.columns > 0)
			square = wide_root(sums.x, sums.dtype, s, rule.n, sums.channels, square);
		return square;
	}

	/* z from y; input and slope: those of hzi_mhc_input() */
	__device__ __forceinline__ void affine(const hzi_mhc_rule &rule, const float *y,
					       const float *const *alpha, const float *bias,
					       float *input, float *slope, float *z) const
	{
#pragma unroll
		for (int e = 0; e < ENTRIES; e++) {
			input[e] = hzi_mhc_input(&rule, y[e], &slope[e]);
			z[e] = k[e] < 0 ? 0 : fmaf(hzi_mhc_alpha(alpha, e ? 2 : part), input[e],
						   bias ? bias[k[e]] : 0);
		}
	}
};

/* p_i or q_i from its z */
HZ_DEVICE float gate_of_lane(const hzi_mhc_rule &rule, const place &at, float z)
{
	float slope, gate;
	const float sigma = hzi_mhc_sigma(z, &slope);
	const float sum = rule.p_eps + sum_column(at.i < rule.n ? sigma : 0);

	if (at.q == 0 && rule.flags & HZI_MHC_HEAD)
		return rule.p_eps;
	if (rule.residual == HZ_MHC_TANH)
		return z;
	gate = at.q ? rule.q_scale * sigma :
	       rule.flags & HZ_MHC_NORMALIZE ? hzi_m_div(sigma, sum) : sigma + rule.p_eps;
	return at.q && rule.q_eps != 0 ? gate + rule.q_eps : gate;
}

/* ---- Sinkhorn-Knopp iteration, as in lib/mhc/mhc_math.h -------------------------------------- */

/* r_i, and c of a lane's columns */
struct lane_state {
	float r, of_r, least, c[PAIR], of_c[PAIR];
};

/* hzi_mhc_map() */
HZ_DEVICE void map_of_lane(const hzi_mhc_rule &rule, const place &at, const float *z, float *k)
{
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		const bool in = at.in(rule.n, e);
		float most = in ? z[e] : -HUGE_VALF, sum;

#pragma unroll
		for (int step = 4; step < 32; step *= 2)
			most = hzi_m_max(most, __shfl_xor_sync(0xffffffff, most, step));
		k[e] = rule.map == HZ_MHC_ABS ? hzi_m_abs(z[e]) + rule.eps : hzi_m_exp(z[e] - most);
		k[e] = in ? k[e] : 0;
		sum = sum_column(k[e]);
		if (rule.map == HZ_MHC_SOFTMAX)
			k[e] = in ? k[e] * hzi_m_div(1, sum) : 0;
	}
}

/* hzi_mhc_kernel_of() */
HZ_DEVICE void kernel_of_lane(const hzi_mhc_rule &rule, const place &at, const float *s, float *k)
{
#pragma unroll
	for (int e = 0; e < PAIR; e++)
		k[e] = s[e] + (rule.map == HZ_MHC_SOFTMAX && at.in(rule.n, e) ? rule.eps : 0);
}

HZ_DEVICE void begin_of_lane(const hzi_mhc_rule &rule, const float *z, const float *k,
			     lane_state &s)
{
	const bool is_abs = rule.map == HZ_MHC_ABS;
	const float one = 1 + sum_column(sum_row(is_abs ? z[0] * 0 + z[1] * 0 : 0));
	const float sum = sum_row(k[0] + k[1]);

	s.least = rule.map == HZ_MHC_EXP && rule.eps != 0 && !hzi_mhc_is_floor(&rule) ?
			  hzi_m_where(1e-37f, sum, one, 0) : 0;
	s.r = s.of_r = s.c[0] = s.c[1] = s.of_c[0] = s.of_c[1] = one;
}

/* One half iteration: of = 1 / to from a sum, by the rule of eps */
HZ_DEVICE void divide(const hzi_mhc_rule &rule, float sum, float least, float &of, float &to)
{
	of = hzi_mhc_is_floor(&rule) ? hzi_mhc_floored(sum, rule.eps * of) :
				       sum + fmaf(rule.eps, of, least);
	to = hzi_m_inverse(of);
}

/* Iterations; history, unless it is NULL: r and c of the group before each */
HZ_DEVICE void iterate_lanes(const hzi_mhc_rule &rule, const place &at, int first, int last,
			     const float *k, lane_state &s, float *history)
{
#pragma unroll 1
	for (int t = first; t < last; t++) {
		float sum = 0;

		if (history) {
			float *const to = history + (t - first) * KEPT;

			if (at.q == 0)
				to[at.i] = s.r;
			if (at.i == 0)
				*(float2 *)(to + HZI_MHC_STREAMS + at.j(0)) = {s.c[0], s.c[1]};
		}
#pragma unroll
		for (int e = 0; e < PAIR; e++) {
			if (t > 0 || rule.map != HZ_MHC_SOFTMAX)
				divide(rule, sum_column(k[e] * s.r), 0, s.of_c[e], s.c[e]);
			s.c[e] = at.j(e) < rule.n ? s.c[e] : 0;
			sum = fmaf(k[e], s.c[e], sum);
		}
		divide(rule, sum_row(sum), s.least, s.of_r, s.r);
		s.r = at.i < rule.n ? s.r : 0;
	}
}

/* Copies the elements of a group to z, in its order. */
HZ_DEVICE void gather_lanes(const hzi_mhc_rule &rule, const float *own, float *to)
{
	const int n = rule.n;

#pragma unroll 1
	for (int e = 0; e < HZI_MHC_SQUARE; e++) {
		const int i = e / HZI_MHC_STREAMS, j = e % HZI_MHC_STREAMS;
		const float v = __shfl_sync(0xffffffff, own[j % PAIR], 4 * i + j / PAIR);

		if (i < n && j < n)
			to[rule.order == HZ_MHC_ROWS ? j * n + i : i * n + j] = v;
	}
}

/* Takes elements of a group whose total is infinite; in_k: from is in the order of k. */
HZ_DEVICE void scatter_lanes(const hzi_mhc_rule &rule, const place &at, const float *from,
			     bool in_k, float total, float *own)
{
	const bool transposed = !in_k && rule.order == HZ_MHC_ROWS;
	const int n = rule.n;

#pragma unroll 1
	for (int e = 0; e < PAIR; e++) {
		if (at.in(n, e))
			own[e] = hzi_m_if_infinite(total, from[transposed ? at.j(e) * n + at.i :
							       at.i * n + at.j(e)], own[e]);
	}
}

/* Every lane computes all of the group. */
HZI_MHC_RARE void balance_lanes(const hzi_mhc_rule rule, const float *z, float total, float *k)
{
	float in[HZI_MHC_SQUARE] = {}, out[HZI_MHC_SQUARE] = {};

	gather_lanes(rule, z, in);
	hzi_mhc_sinkhorn_balanced(rule.n, &rule, in, out);
	scatter_lanes(rule, place(), out, true, total, k);
}

/* The result r k c, from the state after the last iteration; z: after bounds */
HZ_DEVICE void result_of_lane(const hzi_mhc_rule &rule, const float *z, const float *k,
			      const lane_state &s, float *result)
{
	float total;

#pragma unroll
	for (int e = 0; e < PAIR; e++)
		result[e] = s.r * k[e] * s.c[e];
	total = sum_column(sum_row(result[0] + result[1]));
	if (hzi_m_any_beyond(total, FLT_MAX)) {
		float in[PAIR] = {z[0], z[1]}, out[PAIR] = {result[0], result[1]};

		balance_lanes(rule, in, total, out);
		result[0] = out[0];
		result[1] = out[1];
	}
}

/* The residual matrix from its z */
HZ_DEVICE void residual_of_lane(const hzi_mhc_rule &rule, const place &at, const float *given,
				float *a)
{
	float z[PAIR], k[PAIR];
	lane_state s;

	if (rule.residual != HZ_MHC_SINKHORN) {
#pragma unroll
		for (int e = 0; e < PAIR; e++)
			a[e] = rule.residual == HZ_MHC_IDENTITY ? at.i == at.j(e) : given[e];
		return;
	}
	hzi_mhc_clamp(PAIR, &rule, given, z);
	map_of_lane(rule, at, z, k);
	kernel_of_lane(rule, at, k, k);
	begin_of_lane(rule, z, k, s);
	iterate_lanes(rule, at, 0, rule.iterations, k, s, NULL);
	result_of_lane(rule, z, k, s, a);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* hzi_mhc_sinkhorn_step_bwd() */
HZ_DEVICE void step_bwd_of_lane(const hzi_mhc_rule &rule, bool columns, const float *k, float r,
				const float *c, const lane_state &now, float *dk, float &dr,
				float *dc)
{
	const float inverse = hzi_mhc_ratio(now.r, r);
	float d = -(dr * now.r) * now.r;	/* gradient of the sum */
	float sum = 0;

	dr *= rule.eps * inverse * inverse;
	hzi_mhc_floor_bwd(&rule, inverse, &d, &dr);
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		dk[e] = fmaf(d, now.c[e], dk[e]);
		dc[e] += sum_column(d * k[e]);
	}
	if (!columns)
		return;
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		const float ratio = hzi_mhc_ratio(now.c[e], c[e]);
		float of_sum = -(dc[e] * now.c[e]) * now.c[e];

		dc[e] *= rule.eps * ratio * ratio;
		hzi_mhc_floor_bwd(&rule, ratio, &of_sum, &dc[e]);
		dk[e] = fmaf(of_sum, r, dk[e]);
		sum = fmaf(of_sum, k[e], sum);
	}
	dr += sum_row(sum);
}

/* hzi_mhc_map_bwd(), in the order of k; s: of hzi_mhc_map() */
HZ_DEVICE void map_bwd_of_lane(const hzi_mhc_rule &rule, const place &at, const float *z,
			       const float *s, float *dk)
{
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		const float product = dk[e] * s[e], sum = sum_column(product);
		const uint32_t near_one = __ballot_sync(0xffffffff, s[e] > 0.99999994f);
		const uint32_t ones = near_one >> at.q & 0x11111111;	/* bit 4 i: of row i */

		if (rule.map == HZ_MHC_ABS)
			dk[e] = z[e] > 0 ? dk[e] : z[e] < 0 ? -dk[e] : dk[e] * 0;
		else if (rule.map == HZ_MHC_SOFTMAX)
			dk[e] = s[e] * (dk[e] - sum);
		else	/* With eps that of the maximum goes to the first one equal to it. */
			dk[e] = product -
				(rule.eps != 0 && ones && 4 * at.i == __ffs(ones) - 1 ? sum : 0);
		dk[e] = at.in(rule.n, e) ? dk[e] : 0;
	}
}

HZI_MHC_RARE void balance_bwd_lanes(const hzi_mhc_rule rule, const float *z, const float *dp,
				    float total, float *dz)
{
	float in[HZI_MHC_SQUARE] = {}, dout[HZI_MHC_SQUARE] = {}, out[HZI_MHC_SQUARE] = {};
	float history[HZI_MHC_HISTORY * KEPT];

	gather_lanes(rule, z, in);
	gather_lanes(rule, dp, dout);
	hzi_mhc_sinkhorn_balanced_bwd(rule.n, &rule, in, dout, out, history, 1);
	scatter_lanes(rule, place(), out, false, total, dz);
}

/*
 * hzi_mhc_sinkhorn_bwd(): dz from dp, both in the order of k, and the result a. history: of the
 * group, of `kept` iterations
 */
HZ_DEVICE void sinkhorn_bwd_of_lane(const hzi_mhc_rule &rule, const place &at, const float *given,
				    const float *dp, float *history, int kept, float *a, float *dz)
{
	float z[PAIR], k[PAIR], map[PAIR], dc[PAIR] = {}, dr = 0, total;
	lane_state s;

	hzi_mhc_clamp(PAIR, &rule, given, z);
	map_of_lane(rule, at, z, map);
	kernel_of_lane(rule, at, map, k);
	dz[0] = dz[1] = 0;
#pragma unroll 1
	for (int last = rule.iterations, first; last > 0; last = first) {
		first = (last - 1) / kept * kept;
		begin_of_lane(rule, z, k, s);
		iterate_lanes(rule, at, 0, first, k, s, NULL);
		__syncwarp();
		iterate_lanes(rule, at, first, last, k, s, history);
		__syncwarp();
		if (last == rule.iterations) {
			result_of_lane(rule, z, k, s, a);
#pragma unroll
			for (int e = 0; e < PAIR; e++) {
				const float gk = dp[e] * k[e];

				dz[e] = dp[e] * s.r * s.c[e];
				dr = fmaf(gk, s.c[e], dr);
				dc[e] = sum_column(gk * s.r);
			}
			dr = sum_row(dr);
		}
#pragma unroll 1
		for (int t = last - 1; t >= first; t--) {
			const float *const from = history + (t - first) * KEPT;
			const float2 pair = *(const float2 *)(from + HZI_MHC_STREAMS + at.j(0));
			const float r = from[at.i], c[PAIR] = {pair.x, pair.y};

			step_bwd_of_lane(rule, t > 0 || rule.map != HZ_MHC_SOFTMAX, k, r, c, s, dz,
					 dr, dc);
			s.r = r;
			s.c[0] = c[0];
			s.c[1] = c[1];
		}
	}
	map_bwd_of_lane(rule, at, z, map, dz);
	total = sum_column(sum_row(dz[0] + dz[1]));
	if (hzi_m_any_beyond(total, FLT_MAX)) {
		float in[PAIR] = {z[0], z[1]}, dout[PAIR] = {dp[0], dp[1]};
		float out[PAIR] = {dz[0], dz[1]};

		balance_bwd_lanes(rule, in, dout, total, out);
		dz[0] = out[0];
		dz[1] = out[1];
	}
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		if (hzi_mhc_is_clamped(&rule) && (given[e] > rule.z_max || given[e] < rule.z_min))
			dz[e] = 0;
	}
}

#endif
