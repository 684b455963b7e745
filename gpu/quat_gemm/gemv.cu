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
	quat_finish(p.out, item.c, item.pre, i, j, sum);
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

/* ---- Packed A, tensor cores ------------------------------------------------------------------ */

/*
 * A as planes of f16, as wgmma.h describes them. Those of w, x, y and z alone are read: the
 * components times a power of two for each row. A tile of a warp is 32 rows of 32 k in each of the
 * four planes. Lane 4 g + t has k = 8 t .. 8 t + 7 of rows g, g + 8, ... and of columns g and g + 8
 * of B. bf16: the planes' numbers have 8 bits, so they become bf16 without an error once the factor
 * is out.
 */
template <int DTYPE>
struct gemv_planar {
	static constexpr int ROWS = HZI_GEMV_MMA_ROWS, WARPS = HZI_GEMV_WIDE_THREADS / 32;
	static constexpr int GROUPS = HZI_GEMV_WIDE_COLUMNS / 8;
	static constexpr int STEP = 32;					/* k of a tile */
	static constexpr int PLANE = ROWS * STEP * 2, TILE = 4 * PLANE;	/* bytes */

	const hzi_quat_gemv &p;
	const gemv_item item;
	const uint16_t *planes;
	const float *scales;
	const uint16_t *column[GROUPS];	/* of B */
	int t, j0;
	mma_sums sum[GROUPS];

	__device__ __forceinline__ explicit gemv_planar(const hzi_quat_gemv &p_)
		: p(p_), item(p_), sum{} {}

	/* Starts the copy of a tile from k = l0 on. Lines of planes are padded to 64 k and rows. */
	__device__ __forceinline__ void fetch(uint32_t dst, int i0, int l0, int end) const
	{
		const int lane = threadIdx.x % 32;
		const int l = l0 + lane % 4 * 8, bytes = l < end ? 16 : 0;
		const uint16_t *const src = planes + (i0 + lane / 4) * p.a.row + (bytes ? l : 0);

		dst += lane * 16;
#pragma unroll
		for (int c = 0; c < 4; c++)
#pragma unroll
			for (int i = 0; i < ROWS / 8; i++)
				cp_async_zfill(dst + c * PLANE + i * 512,
					       src + p.a.comp[c] + 8 * i * p.a.row, bytes);
	}

	/* Eight quaternions of a column from k = l on */
	__device__ __forceinline__ void load_b(uint2 (&x)[8], int group, int l, int end) const
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			x[i] = l + i < end ? *(const uint2 *)(column[group] + (l + i) * p.b.row)
					   : make_uint2(0, 0);
	}

	/* Pairs of k of a component in 16 bytes of A, of which bf16 have the factor of their row */
	__device__ __forceinline__ uint4 load_a(uint32_t src, float scale, uint32_t sign) const
	{
		uint4 v = shared_load(src);

		if (DTYPE == HZ_BF16) {
			v.x = to_bf16x2(scale * f16_low(v.x), scale * f16_high(v.x));
			v.y = to_bf16x2(scale * f16_low(v.y), scale * f16_high(v.y));
			v.z = to_bf16x2(scale * f16_low(v.z), scale * f16_high(v.z));
			v.w = to_bf16x2(scale * f16_low(v.w), scale * f16_high(v.w));
		}
		return make_uint4(v.x ^ sign, v.y ^ sign, v.z ^ sign, v.w ^ sign);
	}

	/* The products of a tile with eight columns. b[d][i]: component d of B at pair i of k */
	__device__ __forceinline__ void multiply(mma_sums &s, const uint4 (&v)[2][2],
						 const uint32_t (&b)[4][4], int c) const
	{
		/* As in mma_step_f32() */
		const int minus = 0xe << 0 | 0x8 << 4 | 0x2 << 8 | 0x4 << 12;

#pragma unroll
		for (int o = 0; o < 4; o++) {
			const uint32_t sign = minus >> (4 * o + c) & 1 ? 0x80008000 : 0;
			const uint32_t(&of_b)[4] = b[c ^ o];

#pragma unroll
			for (int tile = 0; tile < 2; tile++) {
				const uint4 u = v[tile][0], w = v[tile][1];
				const uint32_t low[4] = {u.x, w.x, u.y, w.y};
				const uint32_t high[4] = {u.z, w.z, u.w, w.w};

				mma_16(DTYPE == HZ_BF16, s[tile][o], low, of_b[0] ^ sign,
				       of_b[1] ^ sign);
				mma_16(DTYPE == HZ_BF16, s[tile][o], high, of_b[2] ^ sign,
				       of_b[3] ^ sign);
			}
		}
	}

	/* The sums of this warp's tiles */
	__device__ __forceinline__ void add_tiles(uint32_t ring, int i0, int begin, int end)
	{
		const int g = threadIdx.x % 32 / 4, stages = p.stages;
		const uint32_t mask_a = p.a.conj ? 0x80008000 : 0;
		const uint32_t mask_b = p.b.conj ? 0x80008000 : 0;
		const bool both = j0 + 8 < p.out.n;	/* groups have columns */
		int l = begin, slot = 0, ahead = stages - 1;
		uint2 next[GROUPS][8] = {};
		float scale[2][2];

#pragma unroll
		for (int i = 0; i < 4; i++)
			scale[i / 2][i % 2] =
				p.factor * scales[min(i0 + 8 * i + g, p.out.m - 1)];
		for (int s = 0; s < stages - 1; s++) {
			fetch(ring + s * TILE, i0, begin + s * (WARPS * STEP), end);
			cp_async_commit();
		}
#pragma unroll
		for (int group = 0; group < GROUPS; group++)
			if (group == 0 || both)
				load_b(next[group], group, begin + 8 * t, end);
#pragma unroll 1
		for (; l < end; l += WARPS * STEP) {
			uint32_t b[GROUPS][4][4];

#pragma unroll
			for (int group = 0; group < GROUPS; group++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					const uint2 x = next[group][2 * i];
					const uint2 y = next[group][2 * i + 1];

					b[group][0][i] = __byte_perm(x.x, y.x, 0x5410);
					b[group][1][i] = __byte_perm(x.x, y.x, 0x7632) ^ mask_b;
					b[group][2][i] = __byte_perm(x.y, y.y, 0x5410) ^ mask_b;
					b[group][3][i] = __byte_perm(x.y, y.y, 0x7632) ^ mask_b;
				}
				if (group == 0 || both)
					load_b(next[group], group, l + WARPS * STEP + 8 * t, end);
			}
			if (stages == HZI_GEMV_STAGES)
				cp_async_wait<HZI_GEMV_STAGES - 2>();
			else
				cp_async_wait<0>();
			__syncwarp();
			fetch(ring + ahead * TILE, i0, l + (stages - 1) * (WARPS * STEP), end);
			cp_async_commit();
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const uint32_t src = ring + slot * TILE + c * PLANE + g * 64 +
						     t * 16;
				uint4 v[2][2];

#pragma unroll
				for (int i = 0; i < 4; i++)
					v[i / 2][i % 2] = load_a(src + i * 512, scale[i / 2][i % 2],
								 c ? mask_a : 0);
				multiply(sum[0], v, b[0], c);
				if (both)
					multiply(sum[1], v, b[1], c);
			}
			slot = slot + 1 == stages ? 0 : slot + 1;
			ahead = ahead + 1 == stages ? 0 : ahead + 1;
		}
		cp_async_wait<0>();
	}

	__device__ __forceinline__ void run(void)
	{
		extern __shared__ float4 tiles[];
		const int slices = (p.out.n + 8 * GROUPS - 1) / (8 * GROUPS);
		const int i0 = blockIdx.x / slices * ROWS, warp = threadIdx.x / 32;
		const int begin = blockIdx.y * p.share, end = begin + min(p.share, p.k - begin);

		t = threadIdx.x % 4;
		j0 = blockIdx.x % slices * (8 * GROUPS);
		planes = (const uint16_t *)p.a.data + item.a;
		scales = p.scales + item.a / 2;	/* planes and scales of items alternate */
#pragma unroll
		for (int group = 0; group < GROUPS; group++)
			column[group] = (const uint16_t *)p.b.data + item.b +
					min(j0 + 8 * group + (int)threadIdx.x % 32 / 4,
					    p.out.n - 1) * p.b.col;
		add_tiles(shared_address(tiles) + warp * p.stages * TILE, i0, begin + warp * STEP,
			  end);
		reduce_sums<WARPS>(p, sum, i0, j0, [&](int i, int j, quat q) {
			gemv_store(p, item, i, j, DTYPE == HZ_BF16 ? q :
				   quat_scale(p.factor * scales[i], q));
		});
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
KERNEL(quat_gemv_planar_f16, HZI_GEMV_WIDE_THREADS, gemv_planar<HZ_F16>)
KERNEL(quat_gemv_planar_bf16, HZI_GEMV_WIDE_THREADS, gemv_planar<HZ_BF16>)
