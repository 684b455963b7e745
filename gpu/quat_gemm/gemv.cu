/*
 * gemv.cu - GEMV and skinny GEMM of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A is read once, in place, by 16-byte loads, several in flight per thread. Where blocks share k,
 * their sums go to memory, and quat_gemv_finish adds them in order.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_gemm/gemv.h"

#define THREADS HZI_GEMV_THREADS

HZ_DEVICE quat quat_zero(void)
{
	return {0, 0, 0, 0};
}

HZ_DEVICE quat quat_add(quat a, quat b)
{
	return {a.w + b.w, a.x + b.x, a.y + b.y, a.z + b.z};
}

/* Offsets of an item of the batch */
struct gemv_item {
	int64_t a, b, c, pre, number;

	__device__ __forceinline__ explicit gemv_item(const hzi_quat_gemv &p)
	{
		const int64_t i = p.first + blockIdx.z;

		number = blockIdx.z;
		a = quat_item(p.out.shape, p.a.batch, i);
		b = quat_item(p.out.shape, p.b.batch, i);
		c = quat_item(p.out.shape, p.out.c.batch, i);
		pre = quat_item(p.out.shape, p.out.pre.batch, i);
	}
};

/* Stores a share's sum of C[i, j]: as the result, or for quat_gemv_finish. */
HZ_DEVICE void gemv_store(const hzi_quat_gemv &p, const gemv_item &item, int i, int j, quat q)
{
	if (p.partial) {
		const int64_t row = (item.number * p.shares + blockIdx.y) * p.out.n + j;

		((float4 *)p.partial)[row * p.out.m + i] = make_float4(q.w, q.x, q.y, q.z);
	} else {
		quat_finish(p.out, item.c, item.pre, i, j, q);
	}
}

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

/* ---- Row-major A, tensor cores --------------------------------------------------------------- */

/*
 * A quaternion of A is four consecutive k of a real product; a quaternion of B is 4 x 4 real
 * numbers: with (a, b, c, d) of A and (e, f, g, h) of B
 *
 *   w = a e - b f - c g - d h     x = a f + b e + c h - d g
 *   y = a g - b h + c e + d f     z = a h + b g - c f + d e
 *
 * A warp has two tiles of 16 rows by GROUPS times 8 columns, each with four sets of sums, one per
 * component. Lane 4 g + t reads position t of rows g, g + 8, ... of A and of column g of B; for
 * mma.sync k may have other numbers as long as A and B agree. The warps of a block share k. 16
 * bits: k and the strides of A, in quaternions, are even.
 */
HZ_DEVICE void mma_16(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	if (bf16)
		mma_m16n8k16<HZ_BF16>(c, a, b0, b1);
	else
		mma_m16n8k16<HZ_F16>(c, a, b0, b1);
}

/*
 * x = high + low: high has 11 bits, |low| < 2^-11 |x|. Inf, and what rounds to it, become NaN:
 * gemv_mma::exact().
 */
HZ_DEVICE void split_tf32(uint32_t x, uint32_t &high, float &low)
{
	high = (x + 0x1000) & 0xffffe000;
	low = __uint_as_float(x) - __uint_as_float(high);
}

/* x minus the 11 bits that mma.sync reads */
HZ_DEVICE float rest_tf32(uint32_t x)
{
	return __uint_as_float(x) - __uint_as_float(x & 0xffffe000);
}

/* Sums of 32 rows by 8 columns in a lane: [tile][component][4 accumulators] */
typedef float mma_sums[2][4][4];

/* The first or second of the two quaternions in 16 bytes of A */
HZ_DEVICE void mma_step_16(bool bf16, mma_sums &sum, const uint4 (&a)[2][2], int which,
			   const uint2 &x, uint32_t sign)
{
	const uint32_t high = 0x80000000, both = 0x80008000;
	const uint32_t swap01 = __byte_perm(x.x, 0, 0x1032), swap23 = __byte_perm(x.y, 0, 0x1032);
	/* Signs of w, x and of y, z of A: conjugation negates x, y, z. */
	const uint32_t s0 = sign & high, s1 = sign & both;
	const uint32_t b[4][2] = {{x.x ^ high ^ s0, x.y ^ both ^ s1},
				  {swap01 ^ s0, swap23 ^ high ^ s1},
				  {x.y ^ high ^ s0, x.x ^ s1},
				  {swap23 ^ s0, swap01 ^ 0x8000 ^ s1}};

#pragma unroll
	for (int tile = 0; tile < 2; tile++) {
		const uint4 u = a[tile][0], v = a[tile][1];
		const uint32_t in[4] = {which ? u.z : u.x, which ? v.z : v.x, which ? u.w : u.y,
					which ? v.w : v.y};

#pragma unroll
		for (int o = 0; o < 4; o++)
			mma_16(bf16, sum[tile][o], in, b[o][0], b[o][1]);
	}
}

/*
 * A quaternion of each of four rows of A by one of B. sign: negates x, y, z of A. Products of high
 * parts are exact. Those of one low part are bf16, two per instruction, with an error of 2^-18 of a
 * product; those of two low parts are omitted, 2^-21.
 */
HZ_DEVICE void mma_step_f32(mma_sums &sum, const uint4 (&a)[2][2], const uint4 &x, uint32_t sign)
{
	const uint32_t mask = 0x80000000;
	/*
	 * Component c of A times c ^ o of B adds to component o; negative: w by x, y, z of A; x by
	 * z; y by x; z by y.
	 */
	const int minus = 0xe << 0 | 0x8 << 4 | 0x2 << 8 | 0x4 << 12;
	const uint32_t in[4] = {x.x, x.y, x.z, x.w};
	uint32_t high[4];
	uint4 large[2][2], small[2][2];
	float low[4];

#pragma unroll
	for (int c = 0; c < 4; c++)
		split_tf32(in[c], high[c], low[c]);
#pragma unroll
	for (int tile = 0; tile < 2; tile++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint4 u = a[tile][h];
			const uint32_t p = u.y ^ sign, q = u.z ^ sign, r = u.w ^ sign;

			large[tile][h] = make_uint4(
				to_bf16x2(__uint_as_float(u.x), __uint_as_float(p)),
				to_bf16x2(__uint_as_float(q), __uint_as_float(r)), 0, 0);
			small[tile][h] = make_uint4(to_bf16x2(rest_tf32(u.x), rest_tf32(p)),
						    to_bf16x2(rest_tf32(q), rest_tf32(r)), 0, 0);
		}
	mma_step_16(true, sum, small, 0, make_uint2(
			    to_bf16x2(__uint_as_float(high[0]), __uint_as_float(high[1])),
			    to_bf16x2(__uint_as_float(high[2]), __uint_as_float(high[3]))), 0);
	mma_step_16(true, sum, large, 0,
		    make_uint2(to_bf16x2(low[0], low[1]), to_bf16x2(low[2], low[3])), 0);
#pragma unroll
	for (int half = 0; half < 2; half++)
#pragma unroll
		for (int tile = 0; tile < 2; tile++) {
			/* w, x, or y, z, of rows g and g + 8 */
			const uint4 u = a[tile][0], v = a[tile][1];
			const uint32_t of_a[4] = {half ? u.z ^ sign : u.x, half ? v.z ^ sign : v.x,
						  (half ? u.w : u.y) ^ sign,
						  (half ? v.w : v.y) ^ sign};

#pragma unroll
			for (int o = 0; o < 4; o++) {
				const int c0 = 2 * half ^ o, c1 = (2 * half + 1) ^ o;
				const uint32_t s0 = minus >> (4 * o + 2 * half) & 1 ? mask : 0;
				const uint32_t s1 = minus >> (4 * o + 2 * half + 1) & 1 ? mask : 0;

				mma_m16n8k8_tf32(sum[tile][o], of_a, high[c0] ^ s0, high[c1] ^ s1);
			}
		}
}

/*
 * Adds up the sums of all warps of a block, whose first row and column are i0 and j0, in order:
 * put(i, j, sum) of each element of C.
 */
template <int WARPS, int GROUPS, typename F>
HZ_DEVICE void reduce_sums(const hzi_quat_gemv &p, const mma_sums (&sum)[GROUPS], int i0, int j0,
			   F put)
{
	constexpr int ROWS = HZI_GEMV_MMA_ROWS;
	extern __shared__ float4 scratch[];	/* [WARPS][ROWS][8] */
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
	for (int group = 0; group < GROUPS; group++) {
		const int j8 = j0 + 8 * group;

		__syncthreads();
#pragma unroll
		for (int tile = 0; tile < 2; tile++)
#pragma unroll
			for (int h = 0; h < 2; h++)
#pragma unroll
				for (int e = 0; e < 2; e++) {
					const int r = 16 * tile + 8 * h + g, n = 2 * h + e;

					if (j8 + 2 * t + e >= p.out.n)
						continue;
					scratch[(warp * ROWS + r) * 8 + 2 * t + e] = make_float4(
						sum[group][tile][0][n], sum[group][tile][1][n],
						sum[group][tile][2][n], sum[group][tile][3][n]);
				}
		__syncthreads();

		const int r = threadIdx.x / 8, c = threadIdx.x % 8;

		if (r < ROWS && i0 + r < p.out.m && j8 + c < p.out.n) {
			quat q = quat_zero();

			for (int w = 0; w < WARPS; w++) {
				const float4 f = scratch[(w * ROWS + r) * 8 + c];

				q = quat_add(q, {f.x, f.y, f.z, f.w});
			}
			put(i0 + r, j8 + c, q);
		}
	}
}

/*
 * Tiles of 32 rows by 128 bytes of A go through shared memory, by whole cache lines: four lanes
 * that read 64 bytes of 8 rows each would not reach the full bandwidth of L2. Odd rows of a tile
 * have their halves swapped, against bank conflicts.
 */
template <int DTYPE, int GROUPS>
struct gemv_mma {
	static constexpr int ROWS = HZI_GEMV_MMA_ROWS;
	static constexpr int WARPS =
		(GROUPS == 1 ? HZI_GEMV_MMA_THREADS : HZI_GEMV_WIDE_THREADS) / 32;
	static constexpr int SIZE = DTYPE == HZ_F32 ? 4 : 2;
	static constexpr int EACH = DTYPE == HZ_F32 ? 1 : 2;	/* quaternions in 16 bytes */
	static constexpr int U = 2;				/* steps of four lanes per tile */
	static constexpr int STEP = 4 * EACH * U;		/* k of a tile */
	static constexpr int TILE = ROWS * 128;			/* bytes */

	const hzi_quat_gemv &p;
	const gemv_item item;
	const char *a, *column[GROUPS];	/* of A, of B */
	int64_t a_row, b_row;		/* bytes */
	int t;
	mma_sums sum[GROUPS];

	__device__ __forceinline__ explicit gemv_mma(const hzi_quat_gemv &p_)
		: p(p_), item(p_), sum{} {}

	/* Starts the copy of a tile from element l0 of k on; elements from `end` on are 0. */
	__device__ __forceinline__ void fetch(uint32_t dst, int i0, int l0, int end) const
	{
		const int lane = threadIdx.x % 32, piece = lane % 8, row = lane / 8;
		const int l = l0 + piece * EACH, bytes = l < end ? 16 : 0;
		const char *const src = a + (bytes ? (int64_t)l * (4 * SIZE) : 0);

		dst += row * 128 + (piece ^ row % 2 * 4) * 16;
#pragma unroll
		for (int i = 0; i < ROWS / 4; i++)
			cp_async_zfill(dst + i * 512,
				       src + min(i0 + 4 * i + row, p.out.m - 1) * a_row, bytes);
	}

	/* The elements of B of a lane for a tile */
	__device__ __forceinline__ void load_b(uint4 (&x)[U], int group, int l0, int end) const
	{
#pragma unroll
		for (int u = 0; u < U; u++) {
			const int l = l0 + (4 * u + t) * EACH;
			const char *const src = column[group] + l * b_row;

			if (l >= end) {
				x[u] = make_uint4(0, 0, 0, 0);
			} else if (DTYPE == HZ_F32) {
				x[u] = *(const uint4 *)src;
			} else {
				const uint2 v = *(const uint2 *)src;
				const uint2 w = *(const uint2 *)(src + b_row);

				x[u] = make_uint4(v.x, v.y, w.x, w.y);
			}
		}
	}

	/*
	 * Row i by column j by multiply-adds, for sums that are not finite: high and low parts of
	 * Inf, or of numbers near it, give NaN where the product is Inf.
	 */
	__device__ __noinline__ quat exact(int i, int j, int begin, int end) const
	{
		quat q = quat_zero();

		for (int l = begin; l < end; l++) {
			quat_raw<DTYPE> a, x;

			a.load(p.a.data, item.a + i * p.a.row + 4 * (int64_t)l);
			x.load(p.b.data, item.b + l * p.b.row + j * p.b.col);
			q = quat_fma(a.get(p.a.conj ? 0x80000000 : 0),
				     x.get(p.b.conj ? 0x80000000 : 0), q);
		}
		return q;
	}

	/* The sums of this warp's tiles */
	__device__ __forceinline__ void add_tiles(uint32_t ring, int i0, int begin, int end)
	{
		const int g = threadIdx.x % 32 / 4, stages = p.stages;
		const uint32_t all = DTYPE == HZ_F32 ? 0x80000000 : 0x80008000;
		/* Sign bits that conjugation flips: of A; of w and x of B; of y and z */
		const uint32_t mask_a = p.a.conj ? all : 0;
		const uint32_t turn_w = p.b.conj ? 0x80000000 : 0, mask = p.b.conj ? all : 0;
		int l = begin, slot = 0, ahead = stages - 1;
		uint4 next[GROUPS][U];

		for (int s = 0; s < stages - 1; s++) {
			fetch(ring + s * TILE, i0, begin + s * (WARPS * STEP), end);
			cp_async_commit();
		}
#pragma unroll
		for (int group = 0; group < GROUPS; group++)
			load_b(next[group], group, begin, end);
#pragma unroll 1
		for (; l < end; l += WARPS * STEP) {
			uint4 x[GROUPS][U];

#pragma unroll
			for (int group = 0; group < GROUPS; group++) {
#pragma unroll
				for (int u = 0; u < U; u++)
					x[group][u] = next[group][u];
				load_b(next[group], group, l + WARPS * STEP, end);
			}
			/*
			 * The oldest tile has arrived, and all lanes are done with the one before.
			 */
			if (stages == HZI_GEMV_STAGES)
				cp_async_wait<HZI_GEMV_STAGES - 2>();
			else
				cp_async_wait<0>();
			__syncwarp();
			fetch(ring + ahead * TILE, i0, l + (stages - 1) * (WARPS * STEP), end);
			cp_async_commit();
#pragma unroll
			for (int u = 0; u < U; u++) {
				const uint32_t src = ring + slot * TILE + g * 128 +
						     ((4 * u + t) ^ g % 2 * 4) * 16;
				uint4 v[2][2];

#pragma unroll
				for (int tile = 0; tile < 2; tile++)
#pragma unroll
					for (int h = 0; h < 2; h++)
						v[tile][h] = shared_load(
							src + (16 * tile + 8 * h) * 128);
#pragma unroll
				for (int group = 0; group < GROUPS; group++) {
					const uint4 b = x[group][u];

					if (DTYPE == HZ_F32) {
						mma_step_f32(sum[group], v,
							     make_uint4(b.x, b.y ^ mask, b.z ^ mask,
									b.w ^ mask), mask_a);
						continue;
					}
					mma_step_16(DTYPE == HZ_BF16, sum[group], v, 0,
						    make_uint2(b.x ^ turn_w, b.y ^ mask), mask_a);
					mma_step_16(DTYPE == HZ_BF16, sum[group], v, 1,
						    make_uint2(b.z ^ turn_w, b.w ^ mask), mask_a);
				}
			}
			slot = slot + 1 == stages ? 0 : slot + 1;
			ahead = ahead + 1 == stages ? 0 : ahead + 1;
		}
		cp_async_wait<0>();
	}

	__device__ __forceinline__ void run(void)
	{
		extern __shared__ float4 tiles[];
		const int slices = GROUPS == 1 ? 1 : (p.out.n + 8 * GROUPS - 1) / (8 * GROUPS);
		const int i0 = blockIdx.x / slices * ROWS, j0 = blockIdx.x % slices * (8 * GROUPS);
		const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
		const int begin = blockIdx.y * p.share, end = begin + min(p.share, p.k - begin);

		t = threadIdx.x % 4;
		a = (const char *)p.a.data + SIZE * item.a;
		a_row = SIZE * p.a.row;
		/* Beyond the last column: the last one again */
#pragma unroll
		for (int group = 0; group < GROUPS; group++)
			column[group] = (const char *)p.b.data +
					SIZE * (item.b + min(j0 + 8 * group + g, p.out.n - 1) *
								 p.b.col);
		b_row = SIZE * p.b.row;
		add_tiles(shared_address(tiles) + warp * p.stages * TILE, i0, begin + warp * STEP,
			  end);
		reduce_sums<WARPS>(p, sum, i0, j0, [&](int i, int j, quat q) {
			if (DTYPE == HZ_F32 && !isfinite(q.w + q.x + q.y + q.z))
				q = exact(i, j, begin, end);
			gemv_store(p, item, i, j, q);
		});
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
