/*
 * mhc_sinkhorn.cu - Sinkhorn's iteration on small matrices, what such matrices do, first weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread has a matrix in its registers: what these kernels take is the latency of a chain of
 * divisions, which others hide.
 */
#include "gpu/grid.cuh"
#include "gpu/mhc.cuh"
#include "lib/mhc_rule.h"
#include "lib/quat_step.h"

#define THREADS HZI_MHC_SINK_THREADS

#define KERNEL(name, type) \
	extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ type p)

/* Matrix k of N = 4 as four vectors where it is so aligned */
template <int N>
HZ_DEVICE bool is_whole(const hzi_mhc_coef &c)
{
	return N == 4 && c.column == 1 && c.row == 4 && c.group % 4 == 0 &&
	       (uintptr_t)c.data % 16 == 0;
}

template <int N>
HZ_DEVICE void store_matrix(const hzi_mhc_coef &c, int64_t k, const float *from)
{
	float *to = c.data + k * c.group;
	const bool whole = is_whole<N>(c);

#pragma unroll
	for (int i = 0; i < N; i++) {
		if (N == 4 && whole) {
			((float4 *)to)[i] = make_float4(from[i * N], from[i * N + 1 % N],
							from[i * N + 2 % N], from[i * N + 3 % N]);
			continue;
		}
#pragma unroll
		for (int j = 0; j < N; j++)
			to[i * c.row + j * c.column] = from[i * N + j];
	}
}

template <int N>
HZ_DEVICE void sinkhorn(const hzi_mhc_sinkhorn_args &p)
{
	const int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	float m[N][N], out[N * N];

	grid_wait();
	if (k >= p.count)
		return;
	load_matrix<N>(p.m, k, is_whole<N>(p.m), m);
	hzi_mhc_sinkhorn(N, &p.rule, &m[0][0], out);
	store_matrix<N>(p.p, k, out);
}

template <int N>
HZ_DEVICE void sinkhorn_bwd(const hzi_mhc_sinkhorn_bwd_args &p)
{
	extern __shared__ float history[];	/* [2n min(iterations, 32)][threads] */
	constexpr int threads = HZI_MHC_SINK_BWD_THREADS(N);
	const int64_t k = (int64_t)blockIdx.x * threads + threadIdx.x;
	float m[N][N], dp[N][N], dm[N * N];

	grid_wait();
	if (k >= p.count)
		return;
	load_matrix<N>(p.m, k, is_whole<N>(p.m), m);
	load_matrix<N>(p.dp, k, is_whole<N>(p.dp), dp);
	hzi_mhc_sinkhorn_bwd(N, &p.rule, &m[0][0], &dp[0][0], dm, history + threadIdx.x,
			     threads);
	store_matrix<N>(p.dm, k, dm);
}

KERNEL(mhc_sinkhorn_4, hzi_mhc_sinkhorn_args) { sinkhorn<4>(p); }
KERNEL(mhc_sinkhorn_bwd_4, hzi_mhc_sinkhorn_bwd_args) { sinkhorn_bwd<4>(p); }
KERNEL(mhc_sinkhorn_any, hzi_mhc_sinkhorn_args) { BY_STREAMS(sinkhorn, p.rule.n) }
KERNEL(mhc_sinkhorn_bwd_any, hzi_mhc_sinkhorn_bwd_args) { BY_STREAMS(sinkhorn_bwd, p.rule.n) }

/* ---- What matrices do to signals ------------------------------------------------------------- */

/*
 * A thread for all layers of a token: the product so far stays in registers, a column at a time
 * made.
 */
KERNEL(mhc_diagnose, hzi_mhc_diagnose_args)
{
	constexpr int N = HZI_MHC_STREAMS;
	const int64_t s = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int n = p.n;
	float product[N][N], most[4] = {};

	grid_wait();
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

/* ---- First weights --------------------------------------------------------------------------- */

/* Four numbers a thread, which come as one quaternion */
KERNEL(mhc_init, hzi_mhc_init_args)
{
	const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;

	grid_wait();
	for (int64_t i = first; p.phi && i * 4 < p.count; i += (int64_t)gridDim.x * THREADS) {
		double q[4] = {};

		if (p.scale != 0)
			hzi_qinit(HZ_QUAT_NORMAL, p.scale, p.seed, (uint64_t)i, q);
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
