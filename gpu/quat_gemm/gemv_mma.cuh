/*
 * gemv_mma.cuh - products of row-major quaternion matrices by few columns on tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_GEMM_GEMV_MMA_CUH
#define HZI_GPU_QUAT_GEMM_GEMV_MMA_CUH

#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_gemm/gemv.h"

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
		quat_finish_compact(p.out, item.c, item.pre, i, j, q);
	}
}

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

	/* put(i, j, sum) of each element of this block's rows and columns, by one thread each */
	template <typename F>
	__device__ __forceinline__ void run(F put)
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
			put(i, j, q);
		});
	}

	__device__ __forceinline__ void run(void)
	{
		run([&](int i, int j, quat q) { gemv_store(p, item, i, j, q); });
	}
};

#endif
