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

/* Sums over the lanes of a warp, by its lane 0 to `to` */
template <int R, int N>
HZ_DEVICE void warp_sums(float4 *to, const quat (&sum)[R][N])
{
#pragma unroll
	for (int i = 0; i < R * N; i++) {
		quat q = sum[i / N][i % N];

		for (int lane = 16; lane; lane /= 2)
			q = quat_add(q, {__shfl_xor_sync(~0u, q.w, lane),
					 __shfl_xor_sync(~0u, q.x, lane),
					 __shfl_xor_sync(~0u, q.y, lane),
					 __shfl_xor_sync(~0u, q.z, lane)});
		if (threadIdx.x % 32 == 0)
			to[i] = make_float4(q.w, q.x, q.y, q.z);
	}
}

/* ---- Row-major A ----------------------------------------------------------------------------- */

/* 16 bytes of a row of A: a quaternion of f32, or two of 16 bits */
template <int DTYPE>
struct gemv_piece {
	static constexpr int EACH = DTYPE == HZ_F32 ? 1 : 2;
	uint4 bits;

	__device__ __forceinline__ void stream(const void *data, int64_t at)
	{
		bits = __ldcs((const uint4 *)((const char *)data + at * (DTYPE == HZ_F32 ? 4 : 2)));
	}

	__device__ __forceinline__ quat get(int e, uint32_t mask) const
	{
		if (DTYPE == HZ_F32)
			return quat_flip_signs({__uint_as_float(bits.x), __uint_as_float(bits.y),
						__uint_as_float(bits.z), __uint_as_float(bits.w)},
					       mask);
		return quat_flip_signs(quat_unpack(DTYPE, e ? make_uint2(bits.z, bits.w)
							    : make_uint2(bits.x, bits.y)), mask);
	}
};

/*
 * A block: 4 rows of A. Thread t has pieces t, t + THREADS, ... of k. 16 bits: k and the strides of
 * A, in quaternions, are even.
 */
template <int N, int DTYPE>
struct gemv_rows {
	static constexpr int R = HZI_GEMV_ROWS, U = N == 1 ? 4 : N == 2 ? 2 : 1;
	static constexpr int EACH = gemv_piece<DTYPE>::EACH, STEP = THREADS * EACH;

	const hzi_quat_gemv &p;
	const gemv_item item;
	const uint32_t mask_a, mask_b;	/* of signs, by conjugation */
	int64_t row[R];
	quat sum[R][N];

	/* Pieces at l, l + STEP, ... of k, U of them, before end */
	__device__ __forceinline__ void add(int l, int end)
	{
		gemv_piece<DTYPE> a[U][R] = {};
		quat_raw<DTYPE> x[U][EACH][N] = {};

#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int r = 0; r < R; r++)
				if (l + u * STEP < end)
					a[u][r].stream(p.a.data, row[r] + 4 * (l + u * STEP));
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int e = 0; e < EACH; e++)
#pragma unroll
				for (int j = 0; j < N; j++)
					if (l + u * STEP < end)
						x[u][e][j].load(p.b.data,
								item.b +
								(l + u * STEP + e) * p.b.row +
								min(j, p.out.n - 1) * p.b.col);
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int e = 0; e < EACH; e++)
#pragma unroll
				for (int r = 0; r < R; r++)
#pragma unroll
					for (int j = 0; j < N; j++)
						sum[r][j] = quat_fma(a[u][r].get(e, mask_a),
								     x[u][e][j].get(mask_b),
								     sum[r][j]);
	}

	__device__ __forceinline__ explicit gemv_rows(const hzi_quat_gemv &p_)
		: p(p_), item(p_), mask_a(p_.a.conj ? 0x80000000 : 0),
		  mask_b(p_.b.conj ? 0x80000000 : 0) {}

	__device__ __forceinline__ void run(void)
	{
		__shared__ float4 scratch[THREADS / 32][R * N];
		const int i0 = blockIdx.x * R, tid = threadIdx.x;
		const int begin = blockIdx.y * p.share, end = begin + min(p.share, p.k - begin);
		int l = begin + EACH * tid;

#pragma unroll
		for (int r = 0; r < R; r++) {
			row[r] = item.a + min(i0 + r, p.out.m - 1) * p.a.row;
#pragma unroll
			for (int j = 0; j < N; j++)
				sum[r][j] = quat_zero();
		}
		for (; l < end; l += U * STEP)
			add(l, end);
		warp_sums(scratch[tid / 32], sum);
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

/* ---- Packed A: planes of f16, high and low parts --------------------------------------------- */

/*
 * A warp: two rows. A lane has two successive k of each 64, as far apart as `parts` warps with the
 * same rows have theirs. Rows are padded to 64 lines, and k to 64 by zeros.
 */
template <int N>
struct gemv_planar {
	static constexpr int R = HZI_GEMV_PLANAR_ROWS, U = HZI_GEMV_PLANAR_U(N), STEP = 64 * U;
	static constexpr int WARPS = THREADS / 32;

	const hzi_quat_gemv_planar &p;
	const hzi_quat_gemv &g;
	const gemv_item item;
	const uint32_t mask_b;		/* of signs, by conjugation */
	const uint32_t *row[R];
	float scale[R][4];		/* of a component; negative: the conjugate */
	quat sum[R][N];

	/* 64 of k from l on, U times, before end */
	__device__ __forceinline__ void add(int l, int end, int j0)
	{
		const int k0 = l + threadIdx.x % 32 * 2;
		uint32_t high[U][R][4] = {}, low[U][R][4] = {};
		quat_raw<HZ_F32> x[U][2][N] = {};

#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int c = 0; c < 4; c++) {
					const uint32_t *const at = row[r] + c * p.plane + k0 / 2;

					if (l + 64 * u >= end)
						continue;
					high[u][r][c] = __ldcs(at + 32 * u);
					low[u][r][c] = __ldcs(at + p.low + 32 * u);
				}
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int e = 0; e < 2; e++)
#pragma unroll
				for (int j = 0; j < N; j++)
					if (k0 + 64 * u + e < end)
						x[u][e][j].load(g.b.data,
								item.b +
								(k0 + 64 * u + e) * g.b.row +
								min(j0 + j, g.out.n - 1) * g.b.col);
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int e = 0; e < 2; e++)
#pragma unroll
				for (int r = 0; r < R; r++) {
					float a[4];

#pragma unroll
					for (int c = 0; c < 4; c++)
						a[c] = element(high[u][r][c], low[u][r][c], e,
							       scale[r][c]);
#pragma unroll
					for (int j = 0; j < N; j++)
						sum[r][j] = quat_fma({a[0], a[1], a[2], a[3]},
								     x[u][e][j].get(mask_b),
								     sum[r][j]);
				}
	}

	/* Exact, since scales are powers of two, but where an element is subnormal */
	static __device__ __forceinline__ float
	element(uint32_t high, uint32_t low, int e, float by)
	{
		return fmaf(e ? f16_high(low) : f16_low(low), by,
			    (e ? f16_high(high) : f16_low(high)) * by);
	}

	__device__ __forceinline__ explicit gemv_planar(const hzi_quat_gemv_planar &p_)
		: p(p_), g(p_.g), item(p_.g), mask_b(p_.g.b.conj ? 0x80000000 : 0) {}

	__device__ __forceinline__ void run(void)
	{
		__shared__ float4 scratch[WARPS][R * N];
		const int warp = threadIdx.x / 32, groups = WARPS / p.parts;
		const int i0 = blockIdx.x / p.slices * (groups * R), j0 = blockIdx.x % p.slices * N;
		const int begin = blockIdx.y * g.share, end = begin + min(g.share, g.k - begin);
		const uint16_t *const a = (const uint16_t *)g.a.data + item.a;
		int line = i0 + warp / p.parts * R;

#pragma unroll
		for (int r = 0; r < R; r++) {
			const float s = p.factor * ((const float *)(a + p.scales))[line + r];

			row[r] = (const uint32_t *)(a + (line + r) * g.a.row);
#pragma unroll
			for (int c = 0; c < 4; c++)
				scale[r][c] = c && g.a.conj ? -s : s;
#pragma unroll
			for (int j = 0; j < N; j++)
				sum[r][j] = quat_zero();
		}
		for (int l = begin + warp % p.parts * STEP; l < end; l += p.parts * STEP)
			add(l, end, j0);
		warp_sums(scratch[warp], sum);
		__syncthreads();

		const int group = threadIdx.x / (R * N), e = threadIdx.x % (R * N), j = j0 + e % N;

		line = i0 + group * R + e / N;
		if (group < groups && line < g.out.m && j < g.out.n) {
			quat q = quat_zero();

			for (int w = 0; w < p.parts; w++) {
				const float4 f = scratch[group * p.parts + w][e];

				q = quat_add(q, {f.x, f.y, f.z, f.w});
			}
			gemv_store(g, item, line, j, q);
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

#define KERNEL_OF(name, params, threads, ...) \
	extern "C" __global__ void __launch_bounds__ threads \
	name(const __grid_constant__ params p) \
	{ \
		__VA_ARGS__ product(p); \
\
		pdl_launch_dependents(); \
		pdl_wait(); \
		product.run(); \
	}
#define KERNEL(name, threads, ...) KERNEL_OF(name, hzi_quat_gemv, (threads), __VA_ARGS__)
#define TRANSPOSED(n) \
	KERNEL(quat_gemv_transposed_f32_##n, THREADS, gemv_transposed<n, HZ_F32>) \
	KERNEL(quat_gemv_transposed_f16_##n, THREADS, gemv_transposed<n, HZ_F16>) \
	KERNEL(quat_gemv_transposed_bf16_##n, THREADS, gemv_transposed<n, HZ_BF16>)

KERNEL(quat_gemv_rows_f32_1, THREADS, gemv_rows<1, HZ_F32>)
KERNEL(quat_gemv_rows_f32_2, THREADS, gemv_rows<2, HZ_F32>)
KERNEL(quat_gemv_rows_f32_4, THREADS, gemv_rows<4, HZ_F32>)
KERNEL(quat_gemv_rows_f32_8, THREADS, gemv_rows<8, HZ_F32>)
KERNEL_OF(quat_gemv_rows_f16_1, hzi_quat_gemv, (THREADS, 2), gemv_rows<1, HZ_F16>)
KERNEL_OF(quat_gemv_rows_f16_2, hzi_quat_gemv, (THREADS, 2), gemv_rows<2, HZ_F16>)
KERNEL_OF(quat_gemv_rows_bf16_1, hzi_quat_gemv, (THREADS, 2), gemv_rows<1, HZ_BF16>)
KERNEL_OF(quat_gemv_rows_bf16_2, hzi_quat_gemv, (THREADS, 2), gemv_rows<2, HZ_BF16>)
KERNEL_OF(quat_gemv_planar_1, hzi_quat_gemv_planar, (THREADS, 2), gemv_planar<1>)
KERNEL_OF(quat_gemv_planar_2, hzi_quat_gemv_planar, (THREADS, 2), gemv_planar<2>)
KERNEL_OF(quat_gemv_planar_4, hzi_quat_gemv_planar, (THREADS, 2), gemv_planar<4>)
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
