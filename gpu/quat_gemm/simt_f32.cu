/*
 * simt_f32.cu - quaternion matrix products by f32 multiply-adds
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Supports any view, dtype and conjugation: quat_planar_f32 packs an operand as planes, and the
 * product reads only these. A quaternion product of (a, b, c, d) and (e, f, g, h) by 8 real
 * products:
 *
 *   H = [1 1 1 1; 1 1 -1 -1; 1 -1 1 -1; 1 -1 -1 1]
 *   P = (H (a, b, c, d) / 4) . (H (e, f, g, h)),  G = H P
 *   w = -G0 + 2a e,  x = G1 - 2d g,  y = G2 - 2b h,  z = G3 - 2c f
 *
 * It holds for matrices a .. h as well. So planes have two halves: the factors of P, and (2a, -2d,
 * -2b, -2c) of A, (e, g, h, f) of B. In a 64 x 64 tile four groups of two warps each sum one
 * product over all k of the first half, exchange sums once to get G, and continue with the second
 * half. The method of 16 products has one half, (a, b, c, d) and (e, f, g, h): group t sums +-A_s
 * B_(s ^ t) for s = 0 .. 3, negating its sums where the sign changes.
 *
 * A thread has 8 x 8 sums: for 64 multiply-adds it loads 16 numbers by 4 instructions. Registers
 * are in two banks that each deliver one operand per cycle, so the operands of a multiply-add must
 * be in both: see four() and multiply(). Two blocks share an SM. Measured on an H200 at n = m =
 * 4096 and 8192 columns, ms: 42.4; tiles of 128 x 64 with fragments loaded one k ahead 42.8; sums
 * in the same bank as the numbers of B 45.4.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_gemm/simt_f32.h"

#define STRIP HZI_SIMT_STRIP
#define CHUNK HZI_SIMT_CHUNK
#define PLANE (STRIP * CHUNK)		/* floats of a plane of a chunk */

/* ---- Planes ---------------------------------------------------------------------------------- */

/* From planes of A: element (i, l), or (l, i) */
HZ_DEVICE quat planes_load(const hzi_quat_planar_f32 &p, int64_t base, int i, int l)
{
	const int row = p.transposed ? l : i, column = p.transposed ? i : l;
	const int64_t chunk = (row / STRIP * p.halves + p.halves - 1) * (int64_t)p.from_chunks;
	const float *f = p.from + base + 4 * PLANE * (chunk + column / CHUNK) +
			 column % CHUNK * STRIP + row % STRIP;

	if (p.halves == 1)
		return {f[0], f[PLANE], f[2 * PLANE], f[3 * PLANE]};
	return {0.5f * f[0], -0.5f * f[2 * PLANE], -0.5f * f[3 * PLANE], -0.5f * f[PLANE]};
}

extern "C" __global__ void __launch_bounds__(256)
quat_planar_f32(const __grid_constant__ hzi_quat_planar_f32_pair both)
{
	__shared__ float t[4][CHUNK][STRIP + 1];
	const bool second = blockIdx.x >= both.x[0].blocks;
	const hzi_quat_planar_f32 &p = both.x[second];
	const int block = blockIdx.x - (second ? both.x[0].blocks : 0);
	const int chunk = block % p.chunks, strip = block / p.chunks;
	const int tid = threadIdx.x, l0 = chunk * CHUNK, i0 = strip * STRIP;
	const int64_t base = quat_item(p.shape, p.x.batch, p.first + blockIdx.y);
	/* Adjacent threads read adjacent elements. */
	const bool along_rows = llabs(p.x.row) < llabs(p.x.col);
	float *to = p.planes + p.item * blockIdx.y +
		    4 * PLANE * (strip * p.halves * (int64_t)p.chunks + chunk);
	quat q[4];

	if (blockIdx.y >= p.items)
		return;
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const int n = tid + 256 * r;
		const int i = i0 + (along_rows ? n % STRIP : n / CHUNK);
		const int l = l0 + (along_rows ? n / STRIP : n % CHUNK);

		q[r] = {0, 0, 0, 0};
		if (i < p.rows && l < p.k)
			q[r] = p.from ? planes_load(p, base, i, l)
				      : quat_load(p.x, base + i * p.x.row + l * p.x.col);
		if (p.x.conj)
			q[r] = quat_conj(q[r]);
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const int n = tid + 256 * r;
		const int i = along_rows ? n % STRIP : n / CHUNK;
		const int l = along_rows ? n / STRIP : n % CHUNK;

		t[0][l][i] = q[r].w;
		t[1][l][i] = q[r].x;
		t[2][l][i] = q[r].y;
		t[3][l][i] = q[r].z;
	}
	__syncthreads();
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const int n = tid + 256 * r, i = n % STRIP, l = n / STRIP;
		const float a = t[0][l][i], b = t[1][l][i], c = t[2][l][i], d = t[3][l][i];
		const float s = p.left ? 0.25f : 1.0f;

		if (p.halves == 1) {
			to[n] = a;
			to[n + PLANE] = b;
			to[n + 2 * PLANE] = c;
			to[n + 3 * PLANE] = d;
			continue;
		}
		to[n] = s * ((a + b) + (c + d));
		to[n + PLANE] = s * ((a + b) - (c + d));
		to[n + 2 * PLANE] = s * ((a - b) + (c - d));
		to[n + 3 * PLANE] = s * ((a - b) - (c - d));

		float *half = to + 4 * PLANE * (int64_t)p.chunks;

		half[n] = p.left ? 2 * a : a;
		half[n + PLANE] = p.left ? -2 * d : c;
		half[n + 2 * PLANE] = p.left ? -2 * b : d;
		half[n + 3 * PLANE] = p.left ? -2 * c : b;
	}
}

/* ---- The product ----------------------------------------------------------------------------- */

#define THREADS HZI_SIMT_THREADS
#define STAGES HZI_SIMT_STAGES

/* Bit 4 s + t: A_s B_(s ^ t) is negative in component t */
#define NEGATIVE ((1 << 4 | 1 << 6) | (1 << 8 | 1 << 11) | (1 << 12 | 1 << 13))

template <bool FAST>
struct simt {
	static constexpr int phases = FAST ? 2 : 4;
	static constexpr int a_floats = FAST ? 4 * PLANE : PLANE, b_floats = 4 * PLANE;

	struct memory {
		float stage[STAGES][a_floats + b_floats];
		float swap[4][32 * STRIP];
		uint64_t full[STAGES];
	};

	const hzi_quat_simt &p;
	memory &s;
	const float *a, *b;		/* this tile's strips */
	int tid, group, tm, tn;
	float sum[8][8];

	__device__ __forceinline__ simt(const hzi_quat_simt &p_, memory &s_) : p(p_), s(s_) {}

	/* Copies stage n of phases * chunks. */
	__device__ __forceinline__ void copy(int n)
	{
		const int at = n % STAGES, phase = FAST ? 0 : n / p.chunks;
		const int64_t chunk = FAST ? n : n % p.chunks;
		const float *from_a = a + 4 * PLANE * chunk + PLANE * phase;
		const float *from_b = b + 4 * PLANE * chunk;

#if __CUDA_ARCH__ >= 900
		const uint32_t barrier = shared_address(&s.full[at]);

		mbarrier_expect_tx(barrier, 4 * (a_floats + b_floats));
		bulk_copy(shared_address(s.stage[at]), from_a, 4 * a_floats, barrier);
		bulk_copy(shared_address(&s.stage[at][a_floats]), from_b, 4 * b_floats, barrier);
#else
#pragma unroll
		for (int j = 4 * tid; j < a_floats; j += 4 * THREADS)
			cp_async(shared_address(&s.stage[at][j]), from_a + j);
#pragma unroll
		for (int j = 4 * tid; j < b_floats; j += 4 * THREADS)
			cp_async(shared_address(&s.stage[at][a_floats + j]), from_b + j);
		cp_async_commit();
#endif
	}

	/* Fills the ring. */
	__device__ __forceinline__ void begin(int all)
	{
#if __CUDA_ARCH__ >= 900
		if (tid == 0) {
			for (int i = 0; i < STAGES; i++)
				mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init_fence();
		}
		__syncthreads();
		if (tid == 0)
			for (int i = 0; i < min(all, STAGES); i++)
				copy(i);
#else
		for (int i = 0; i < min(all, STAGES); i++)
			copy(i);
#endif
	}

	/* One stage */
	__device__ __forceinline__ void step(int n, int all, int phase)
	{
		const int at = n % STAGES;
		const float *sa = &s.stage[at][(FAST ? group : 0) * PLANE + 4 * tm];
		const float *sb = &s.stage[at][a_floats + (phase ^ group) * PLANE + 4 * tn];

#if __CUDA_ARCH__ >= 900
		mbarrier_wait(shared_address(&s.full[at]), n / STAGES & 1);
#else
		if (n + 1 < all)
			cp_async_wait<STAGES - 1>();
		else
			cp_async_wait<0>();
		__syncthreads();
#endif
#pragma unroll
		for (int k = 0; k < CHUNK; k++)
			multiply(sa + STRIP * k, sb + STRIP * k);
		__syncthreads();
#if __CUDA_ARCH__ >= 900
		if (tid == 0 && n + STAGES < all)
			copy(n + STAGES);
#else
		if (n + STAGES < all)
			copy(n + STAGES);
#endif
	}

	/*
	 * One k. Other warps multiply while this one loads. Each row starts with the number of B
	 * that the row before ends with, which then is not loaded again.
	 */
	__device__ __forceinline__ void multiply(const float *sa, const float *sb)
	{
		float x[8], y[8];

#pragma unroll
		for (int h = 0; h < 2; h++) {
			*(float4 *)&x[4 * h] = *(const float4 *)&sa[32 * h];
			*(float4 *)&y[4 * h] = *(const float4 *)&sb[32 * h];
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int n = 0; n < 8; n++) {
				const int j = i % 2 ? 7 - n : n;

				sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
			}
	}

	/*
	 * Four sums of a row from column j on, swapped in pairs. A vector store needs consecutive
	 * registers, so this puts sums of even columns into odd registers and vice versa, while the
	 * numbers of B, loaded four at a time, have even registers for even columns.
	 */
	__device__ __forceinline__ float4 four(int i, int j)
	{
		return make_float4(sum[i][j + 1], sum[i][j], sum[i][j + 3], sum[i][j + 2]);
	}

	__device__ __forceinline__ void negate(void)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int j = 0; j < 8; j++)
				sum[i][j] = -sum[i][j];
	}

	/* G of the groups' P, half of the rows at a time; negative in group 0 */
	__device__ __forceinline__ void exchange(void)
	{
		const float *from = &s.swap[0][tid % 64];
		float *to = &s.swap[group][tid % 64];

#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (i % 4 == 0)
				__syncthreads();
#pragma unroll
			for (int j = 0; j < 8; j++)
				to[(i % 4 * 8 + j) * 64] = sum[i][j];
			if (i % 4 != 3)
				continue;
			__syncthreads();
#pragma unroll
			for (int u = 1; u < 4; u++) {
				const int other = group ^ u;
				const float sign = group == 0 || other == 0 ? 1 : -1;

#pragma unroll
				for (int v = 0; v < 32; v++) {
					float &mine = sum[i - 3 + v / 8][v % 8];

					mine = fmaf(sign, from[32 * STRIP * other + v * 64], mine);
				}
			}
		}
		if (group == 0)
			negate();
	}

	/* Assembles quaternions of the groups' components in the ring's memory, and stores them. */
	__device__ __forceinline__ void finish(int64_t item, int i0, int j0)
	{
		constexpr int plane = STRIP * STRIP;
		const int64_t c = quat_item(p.out.shape, p.out.c.batch, item);
		const int64_t pre = quat_item(p.out.shape, p.out.pre.batch, item);
		const int column = tid % 64;
		float *all = (float *)&s;

		static_assert(4 * 4 * plane <= sizeof(s.stage) + sizeof(s.swap), "room for a tile");
		__syncthreads();
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				/* Pieces of 4 columns are swizzled against bank conflicts. */
				const int piece = (tn + h * 8) ^ tm;
				const int row = i / 4 * 32 + 4 * tm + i % 4;

				*(float4 *)&all[group * plane + STRIP * row + 4 * piece] =
					four(i, 4 * h);
			}
		__syncthreads();
#pragma unroll 1
		for (int r = tid / 64; r < STRIP; r += THREADS / 64) {
			const float *from = all + STRIP * r + (column ^ (r & 31) / 4 * 4 ^ 1);

			if (i0 + r < p.out.m && j0 + column < p.out.n)
				quat_finish(p.out, c, pre, i0 + r, j0 + column,
					    {from[0], from[plane], from[2 * plane],
					     from[3 * plane]});
		}
	}

	/* Bands of rows, column by column, so that both operands stay in L2 */
	__device__ __forceinline__ void tile(int &tile_m, int &tile_n)
	{
		const int whole = p.band * p.tiles_n, first = blockIdx.x / whole * p.band;
		const int rows = min(p.band, p.tiles_m - first), rest = blockIdx.x % whole;

		tile_m = first + rest % rows;
		tile_n = rest / rows;
	}

	__device__ __forceinline__ void run(void)
	{
		const int all = phases * p.chunks;
		const int64_t strip = (int64_t)4 * PLANE * (FAST ? 2 : 1) * p.chunks;
		const int64_t item = p.first + blockIdx.y;
		int tile_m, tile_n, n = 0;

		tid = threadIdx.x;
		group = tid / 64;
		tm = tid % 8;
		tn = tid % 64 / 8;
		tile(tile_m, tile_n);
		a = p.a + blockIdx.y * p.a_item + quat_item(p.out.shape, p.a_batch, item) +
		    tile_m * strip;
		b = p.b + blockIdx.y * p.b_item + tile_n * strip;
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int j = 0; j < 8; j++)
				sum[i][j] = 0;
		begin(all);
		for (int phase = 0; phase < phases; phase++) {
			const int flips = NEGATIVE ^ NEGATIVE << 4;

			if (!FAST && flips >> (4 * phase + group) & 1)
				negate();
			for (int chunk = 0; chunk < p.chunks; chunk++, n++)
				step(n, all, FAST ? 0 : phase);
			if (FAST && phase == 0)
				exchange();
		}
		if (!FAST && NEGATIVE >> (12 + group) & 1)
			negate();
		finish(item, STRIP * tile_m, STRIP * tile_n);
	}
};

template <bool FAST>
HZ_DEVICE void simt_run(const hzi_quat_simt &p)
{
	extern __shared__ __align__(128) uint8_t memory[];

	static_assert(sizeof(typename simt<FAST>::memory) == HZI_SIMT_BYTES(FAST ? 2 : 1),
		      "what the launcher asks for");
	simt<FAST>(p, *(typename simt<FAST>::memory *)memory).run();
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
quat_gemm_simt_f32_fast_64x64(const __grid_constant__ hzi_quat_simt p)
{
	simt_run<true>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
quat_gemm_simt_f32_direct_64x64(const __grid_constant__ hzi_quat_simt p)
{
	simt_run<false>(p);
}
