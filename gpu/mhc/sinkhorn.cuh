/*
 * sinkhorn.cuh - Sinkhorn's iteration on small matrices, a thread for each
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * One thread iterates on a matrix in registers. The latency of its chain of divisions is hidden by
 * other threads.
 */
#ifndef HZI_GPU_MHC_SINKHORN_CUH
#define HZI_GPU_MHC_SINKHORN_CUH

#include "gpu/device/pdl.cuh"
#include "gpu/mhc/coef_rows.cuh"

#define THREADS HZI_MHC_SINKHORN_THREADS

#define KERNEL(name, type) \
	extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ type p)

/* True if matrices have N = 4 and are four aligned float4s. */
template <int N>
HZ_DEVICE bool is_float4s(const hzi_mhc_coef &c)
{
	return N == 4 && c.column == 1 && c.row == 4 && c.group % 4 == 0 &&
	       (uintptr_t)c.data % 16 == 0;
}

template <int N>
HZ_DEVICE void store_matrix(const hzi_mhc_coef &c, int64_t k, const float *src)
{
	float *dst = c.data + k * c.group;
	const bool float4s = is_float4s<N>(c);

#pragma unroll
	for (int i = 0; i < N; i++) {
		if (N == 4 && float4s) {
			((float4 *)dst)[i] = make_float4(src[i * N], src[i * N + 1 % N],
							 src[i * N + 2 % N], src[i * N + 3 % N]);
			continue;
		}
#pragma unroll
		for (int j = 0; j < N; j++)
			dst[i * c.row + j * c.column] = src[i * N + j];
	}
}

/* Distance of matrices in shared memory in floats, without bank conflicts */
template <int N>
constexpr int PITCH = HZI_MHC_SINKHORN_PITCH(N);

/* True if matrices are contiguous: a block then copies its matrices as one piece. */
template <int N>
HZ_DEVICE bool is_packed(const hzi_mhc_coef &c)
{
	return c.column == 1 && c.row == N && c.group == N * N;
}

/* Number of matrices of this block, at most one per thread */
HZ_DEVICE int matrices_of(int64_t count, int threads)
{
	const int64_t left = count - (int64_t)blockIdx.x * threads;

	return left < threads ? (int)left : threads;
}

/*
 * Loads the matrix of a thread, through shared memory unless that is NULL. All threads have to call
 * it.
 */
template <int N>
HZ_DEVICE void load_own(const hzi_mhc_coef &c, int64_t count, int threads, float *shared,
			float (*dst)[N])
{
	const int64_t k = (int64_t)blockIdx.x * threads + threadIdx.x;
	const int all = matrices_of(count, threads) * (N * N);

	if (!shared || !is_packed<N>(c)) {
		if (k < count)
			load_matrix<N>(c, k, is_float4s<N>(c), dst);
		return;
	}
	__syncthreads();
	for (int e = threadIdx.x; e < all; e += threads)
		shared[e / (N * N) * PITCH<N> + e % (N * N)] =
			c.data[(int64_t)blockIdx.x * threads * (N * N) + e];
	__syncthreads();
#pragma unroll
	for (int e = 0; e < N * N; e++)
		dst[e / N][e % N] = shared[threadIdx.x * PITCH<N> + e];
}

template <int N>
HZ_DEVICE void store_own(const hzi_mhc_coef &c, int64_t count, int threads, float *shared,
			 const float *src)
{
	const int64_t k = (int64_t)blockIdx.x * threads + threadIdx.x;
	const int all = matrices_of(count, threads) * (N * N);

	if (!shared || !is_packed<N>(c)) {
		if (k < count)
			store_matrix<N>(c, k, src);
		return;
	}
	/* A thread overwrites its own matrix only. */
#pragma unroll
	for (int e = 0; e < N * N; e++)
		shared[threadIdx.x * PITCH<N> + e] = src[e];
	__syncthreads();
	for (int e = threadIdx.x; e < all; e += threads)
		c.data[(int64_t)blockIdx.x * threads * (N * N) + e] =
			shared[e / (N * N) * PITCH<N> + e % (N * N)];
}

template <int N>
HZ_DEVICE void sinkhorn(const hzi_mhc_sinkhorn_args &p, float *shared)
{
	float m[N][N] = {}, out[N * N];

	pdl_wait();
	load_own<N>(p.m, p.count, THREADS, shared, m);
	hzi_mhc_sinkhorn(N, &p.rule, &m[0][0], out);
	store_own<N>(p.p, p.count, THREADS, shared, out);
}

/* staged: matrices of the block are staged in shared memory behind the history. */
template <int N>
HZ_DEVICE void sinkhorn_bwd(const hzi_mhc_sinkhorn_bwd_args &p, bool staged)
{
	extern __shared__ float history[];	/* [2n min(iterations, 32)][threads] */
	constexpr int threads = HZI_MHC_SINKHORN_BWD_THREADS(N);
	const int kept = min(p.rule.iterations, HZI_MHC_HISTORY);
	float *const shared = staged ? history + 2 * N * kept * threads : NULL;
	float m[N][N] = {}, dp[N][N] = {}, dm[N * N];

	pdl_wait();
	load_own<N>(p.m, p.count, threads, shared, m);
	load_own<N>(p.dp, p.count, threads, shared, dp);
	hzi_mhc_sinkhorn_bwd(N, &p.rule, &m[0][0], &dp[0][0], dm, history + threadIdx.x,
			     threads);
	store_own<N>(p.dm, p.count, threads, shared, dm);
}

#endif
