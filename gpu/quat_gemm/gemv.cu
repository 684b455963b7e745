/*
 * gemv.cu - GEMV and skinny GEMM of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A is read once, in place, by 16-byte loads, several in flight per thread. Where blocks share k,
 * their sums go to memory, and quat_gemv_finish adds them in order.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/quat_gemm/gemv_mma.cuh"

#define THREADS HZI_GEMV_THREADS

extern "C" __global__ void __launch_bounds__(THREADS)
quat_gemv_finish(const __grid_constant__ hzi_quat_gemv p)
{
	const gemv_item item(p);
	const int i = blockIdx.x * THREADS + threadIdx.x, j = blockIdx.y;
	quat sum = quat_zero();

	pdl_launch_dependents();
	pdl_wait();
	if (i >= p.out.m)
		return;
	for (int s = 0; s < p.shares; s++) {
		const int64_t row = (item.number * p.shares + s) * p.out.n + j;
		const float4 f = ((const float4 *)p.partial)[row * p.out.m + i];

		sum = quat_add(sum, {f.x, f.y, f.z, f.w});
	}
	quat_finish_compact(p.out, item.c, item.pre, i, j, sum);
}

/* ---- Row-major A, f32 ------------------------------------------------------------------------ */

/* A block: 4 rows of A. Thread t has elements t, t + THREADS, ... of k. */
template <int N>
struct gemv_rows {
	static constexpr int R = HZI_GEMV_ROWS, U = N == 1 ? 4 : N == 2 ? 2 : 1;

	const hzi_quat_gemv &p;
	const gemv_item item;
	const uint32_t mask_a, mask_b;	/* of signs, by conjugation */
	int64_t row[R];
	quat sum[R][N];

	/* Elements l, l + THREADS, ... of k, U of them, before end */
	__device__ __forceinline__ void add(int l, int end)
	{
		quat_raw<HZ_F32> a[U][R] = {}, x[U][N] = {};

#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int r = 0; r < R; r++)
				if (l + u * THREADS < end)
					a[u][r].stream(p.a.data, row[r] + 4 * (l + u * THREADS));
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int j = 0; j < N; j++)
				if (l + u * THREADS < end)
					x[u][j].load(p.b.data,
						     item.b + (l + u * THREADS) * p.b.row +
							     min(j, p.out.n - 1) * p.b.col);
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int j = 0; j < N; j++)
					sum[r][j] = quat_fma(a[u][r].get(mask_a),
							     x[u][j].get(mask_b), sum[r][j]);
	}

	__device__ __forceinline__ explicit gemv_rows(const hzi_quat_gemv &p_)
		: p(p_), item(p_), mask_a(p_.a.conj ? 0x80000000 : 0),
		  mask_b(p_.b.conj ? 0x80000000 : 0) {}

	__device__ __forceinline__ void run(void)
	{
		__shared__ float4 scratch[THREADS / 32][R * N];
		const int i0 = blockIdx.x * R, tid = threadIdx.x;
		const int begin = blockIdx.y * p.share, end = begin + min(p.share, p.k - begin);
		int l = begin + tid;

#pragma unroll
		for (int r = 0; r < R; r++) {
			row[r] = item.a + min(i0 + r, p.out.m - 1) * p.a.row;
#pragma unroll
			for (int j = 0; j < N; j++)
				sum[r][j] = quat_zero();
		}
		for (; l < end; l += U * THREADS)
			add(l, end);
#pragma unroll
		for (int r = 0; r < R; r++)
#pragma unroll
			for (int j = 0; j < N; j++) {
				quat q = sum[r][j];

				for (int lane = 16; lane; lane /= 2)
					q = quat_add(q, {__shfl_xor_sync(~0u, q.w, lane),
							 __shfl_xor_sync(~0u, q.x, lane),
							 __shfl_xor_sync(~0u, q.y, lane),
							 __shfl_xor_sync(~0u, q.z, lane)});
				if (tid % 32 == 0)
					scratch[tid / 32][r * N + j] = make_float4(q.w, q.x, q.y,
										   q.z);
			}
		__syncthreads();
		if (tid < R * N && i0 + tid / N < p.out.m && tid % N < p.out.n) {
			quat q = quat_zero();

			for (int w = 0; w < THREADS / 32; w++) {
				const float4 f = scratch[w][tid];

				q = quat_add(q, {f.x, f.y, f.z, f.w});
			}
			gemv_store(p, item, i0 + tid / N, tid % N, q);
		}
	}
};

/* ---- Column-major A -------------------------------------------------------------------------- */

/* A block: 64 rows of a column-major A. Each quarter of the threads has every fourth k. */
template <int N, int DTYPE>
struct gemv_transposed {
	static constexpr int LINE = HZI_GEMV_TRANSPOSED_ROWS, PARTS = THREADS / LINE;
	static constexpr int U = N == 8 ? 4 : 8;

	const hzi_quat_gemv &p;
	const gemv_item item;
	const uint32_t mask_a, mask_b;	/* of signs, by conjugation */
	int64_t row;
	quat sum[N];

	/* Elements l, l + PARTS, ... of k, U of them, before end */
	__device__ __forceinline__ void add(int l, int end)
	{
		quat_raw<DTYPE> a[U] = {};

#pragma unroll
		for (int u = 0; u < U; u++)
			if (l + u * PARTS < end)
				a[u].stream(p.a.data, row + (l + u * PARTS) * p.a.col);
#pragma unroll
		for (int u = 0; u < U; u++) {
			quat_raw<DTYPE> x[N];

			if (l + u * PARTS >= end)
				break;
#pragma unroll
			for (int j = 0; j < N; j++)
				x[j].load(p.b.data, item.b + (l + u * PARTS) * p.b.row +
							    min(j, p.out.n - 1) * p.b.col);
#pragma unroll
			for (int j = 0; j < N; j++)
				sum[j] = quat_fma(a[u].get(mask_a), x[j].get(mask_b), sum[j]);
		}
	}

	__device__ __forceinline__ explicit gemv_transposed(const hzi_quat_gemv &p_)
		: p(p_), item(p_), mask_a(p_.a.conj ? 0x80000000 : 0),
		  mask_b(p_.b.conj ? 0x80000000 : 0) {}

	__device__ __forceinline__ void run(void)
	{
		__shared__ float4 scratch[PARTS][LINE];
		const int lane = threadIdx.x % LINE, part = threadIdx.x / LINE;
		const int i = blockIdx.x * LINE + lane;
		const int begin = blockIdx.y * p.share, end = begin + min(p.share, p.k - begin);
		int l = begin + part;

		row = item.a + min(i, p.out.m - 1) * p.a.row;
#pragma unroll
		for (int j = 0; j < N; j++)
			sum[j] = quat_zero();
		for (; l < end; l += U * PARTS)
			add(l, end);
#pragma unroll
		for (int j = 0; j < N; j++) {
			if (j >= p.out.n)
				break;
			__syncthreads();
			scratch[part][lane] = make_float4(sum[j].w, sum[j].x, sum[j].y, sum[j].z);
			__syncthreads();
			if (part == 0 && i < p.out.m) {
				quat q = quat_zero();

				for (int s = 0; s < PARTS; s++) {
					const float4 f = scratch[s][lane];

					q = quat_add(q, {f.x, f.y, f.z, f.w});
				}
				gemv_store(p, item, i, j, q);
			}
		}
	}
};

/* ---- The kernels ----------------------------------------------------------------------------- */

#define KERNEL(name, threads, ...) \
	extern "C" __global__ void __launch_bounds__(threads) \
	name(const __grid_constant__ hzi_quat_gemv p) \
	{ \
		__VA_ARGS__ product(p); \
\
		pdl_launch_dependents(); \
		pdl_wait(); \
		product.run(); \
	}
#define TRANSPOSED(n) \
	KERNEL(quat_gemv_transposed_f32_##n, THREADS, gemv_transposed<n, HZ_F32>) \
	KERNEL(quat_gemv_transposed_f16_##n, THREADS, gemv_transposed<n, HZ_F16>) \
	KERNEL(quat_gemv_transposed_bf16_##n, THREADS, gemv_transposed<n, HZ_BF16>)

KERNEL(quat_gemv_rows_1, THREADS, gemv_rows<1>)
KERNEL(quat_gemv_rows_2, THREADS, gemv_rows<2>)
KERNEL(quat_gemv_rows_4, THREADS, gemv_rows<4>)
KERNEL(quat_gemv_rows_8, THREADS, gemv_rows<8>)
TRANSPOSED(1)
TRANSPOSED(2)
TRANSPOSED(4)
TRANSPOSED(8)
KERNEL(quat_gemv_mma_f32, HZI_GEMV_MMA_THREADS, gemv_mma<HZ_F32, 1>)
KERNEL(quat_gemv_mma_f16, HZI_GEMV_MMA_THREADS, gemv_mma<HZ_F16, 1>)
KERNEL(quat_gemv_mma_bf16, HZI_GEMV_MMA_THREADS, gemv_mma<HZ_BF16, 1>)
KERNEL(quat_gemv_mma16_f32, HZI_GEMV_WIDE_THREADS, gemv_mma<HZ_F32, 2>)
KERNEL(quat_gemv_mma16_f16, HZI_GEMV_WIDE_THREADS, gemv_mma<HZ_F16, 2>)
KERNEL(quat_gemv_mma16_bf16, HZI_GEMV_WIDE_THREADS, gemv_mma<HZ_BF16, 2>)
