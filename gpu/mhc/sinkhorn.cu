/*
 * sinkhorn.cu - Sinkhorn's iteration on small matrices, diagnostics of matrices, initial weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Matrices of more than four streams have a warp each: rarer, and much less code.
 */
#include "gpu/mhc/sinkhorn.cuh"
#include "lib/quat_layer/step_math.h"

#define SWITCH_THREAD_STREAMS(n, ...) /* 1 to 4 */ \
	switch (n) { \
	CASES_1_TO_3(__VA_ARGS__) STREAMS_CASE(default, 4, __VA_ARGS__) \
	}

KERNEL(mhc_sinkhorn_generic, hzi_mhc_sinkhorn_args)
{
	__shared__ float shared[THREADS * PITCH<4>];

	SWITCH_THREAD_STREAMS(p.rule.n, sinkhorn<N>(p, shared))
}

KERNEL(mhc_sinkhorn_bwd_generic, hzi_mhc_sinkhorn_bwd_args)
{
	SWITCH_THREAD_STREAMS(p.rule.n, sinkhorn_bwd<N>(p, true))
}

/* ---- A warp per matrix ----------------------------------------------------------------------- */

#define WARPS HZI_MHC_COEF_ROW_GROUPS
#define WARP_KERNEL(name, type) \
	extern "C" __global__ void __launch_bounds__(WARPS * 32) \
		name(const __grid_constant__ type p)

/* Element e of this lane of matrix m, which is in the order of k after load_lane() */
HZ_DEVICE float *lane_at(const hzi_mhc_rule &rule, const hzi_mhc_coef &c, const place &at,
			 int64_t m, int e)
{
	const bool transposed = rule.order == HZ_MHC_ROWS;

	return coef_at(c, m, transposed ? at.j(e) : at.i, transposed ? at.i : at.j(e));
}

HZ_DEVICE void load_lane(const hzi_mhc_rule &rule, const hzi_mhc_coef &c, const place &at,
			 int64_t m, float *v)
{
#pragma unroll
	for (int e = 0; e < PAIR; e++)
		v[e] = at.in(rule.n, e) ? *lane_at(rule, c, at, m, e) : 0;
}

HZ_DEVICE void store_lane(const hzi_mhc_rule &rule, const hzi_mhc_coef &c, const place &at,
			  int64_t m, const float *v)
{
#pragma unroll
	for (int e = 0; e < PAIR; e++)
		if (at.in(rule.n, e))
			*lane_at(rule, c, at, m, e) = v[e];
}

WARP_KERNEL(mhc_sinkhorn_warp, hzi_mhc_sinkhorn_args)
{
	const int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
	const place at;
	hzi_mhc_rule rule = p.rule;
	float v[PAIR];

	rule.residual = HZ_MHC_SINKHORN;
	pdl_wait();
	if (m >= p.count)
		return;
	load_lane(rule, p.m, at, m, v);
	residual_of_lane(rule, at, v, v);
	store_lane(rule, p.p, at, m, v);
}

WARP_KERNEL(mhc_sinkhorn_bwd_warp, hzi_mhc_sinkhorn_bwd_args)
{
	extern __shared__ float of_warps[];	/* [WARPS][min(iterations, 32)][KEPT] */
	const int kept = min(p.rule.iterations, HZI_MHC_HISTORY), warp = threadIdx.x / 32;
	const int64_t m = (int64_t)blockIdx.x * WARPS + warp;
	const place at;
	float z[PAIR], dp[PAIR], dz[PAIR], result[PAIR];

	pdl_wait();
	if (m >= p.count)
		return;
	load_lane(p.rule, p.m, at, m, z);
	load_lane(p.rule, p.dp, at, m, dp);
	sinkhorn_bwd_of_lane(p.rule, at, z, dp, of_warps + warp * (kept * KEPT), kept, result, dz);
	store_lane(p.rule, p.dm, at, m, dz);
}

/* ---- Diagnostics ----------------------------------------------------------------------------- */

/* One thread per group, for all layers: the product so far stays in registers. */
KERNEL(mhc_diagnose, hzi_mhc_diagnose_args)
{
	constexpr int N = HZI_MHC_STREAMS;
	const int64_t s = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int n = p.n;
	float product[N][N], most[4] = {};

	pdl_wait();
	if (s >= p.groups)
		return;
#pragma unroll
	for (int i = 0; i < N * N; i++)
		product[i / N][i % N] = i / N == i % N;
	for (int64_t l = 0; l < p.layers; l++) {
		const float *a = p.a.data + l * p.layer + s * p.a.group;

		for (int i = 0; i < n; i++) {
			float row = 0, column = 0;

			for (int j = 0; j < n; j++) {
				row += a[i * p.a.row + j * p.a.column];
				column += a[j * p.a.row + i * p.a.column];
			}
			most[0] = max_nan(most[0], fabsf(row - 1));
			most[1] = max_nan(most[1], fabsf(column - 1));
		}
#pragma unroll
		for (int j = 0; j < N; j++) {
			float next[N];

			if (j >= n)
				break;
#pragma unroll
			for (int i = 0; i < N; i++) {
				next[i] = 0;
#pragma unroll
				for (int k = 0; k < N; k++)
					if (i < n && k < n)
						next[i] = fmaf(a[i * p.a.row + k * p.a.column],
							       product[k][j], next[i]);
			}
#pragma unroll
			for (int i = 0; i < N; i++)
				product[i][j] = next[i];
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++) {
		float row = 0, column = 0;

		if (i >= n)
			break;
#pragma unroll
		for (int j = 0; j < N; j++) {
			row += j < n ? fabsf(product[i][j]) : 0;
			column += j < n ? fabsf(product[j][i]) : 0;
		}
		most[2] = max_nan(most[2], row);
		most[3] = max_nan(most[3], column);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		p.out[s * p.out_row + i * p.out_column] = most[i];
}

/* ---- Initial weights ------------------------------------------------------------------------- */

/* Four values per thread, generated as one quaternion */
KERNEL(mhc_init, hzi_mhc_init_args)
{
	const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;

	pdl_wait();
	for (int64_t i = first; p.phi && i * 4 < p.count; i += (int64_t)gridDim.x * THREADS) {
		double q[4] = {};

		if (p.scale != 0)
			hzi_quat_random(HZ_QUAT_NORMAL, p.scale, p.seed, (uint64_t)i, q);
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (i * 4 + c < p.count)
				p.phi[i * 4 + c] = (float)q[c];
	}
	if (p.bias && first < p.rows)
		p.bias[first] = p.values[first];
	if (p.alpha && first < p.alphas)
		p.alpha[first] = p.alpha_value;
}
