/*
 * quat_simt.cu - products of quaternion matrices in f32 multiply-adds
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Serves any view, dtype and conjugation: quat_planes() brings an operand into planes, and the
 * product reads these alone. A quaternion product of (a, b, c, d) and (e, f, g, h) by 8 real ones:
 *
 *	H = [1 1 1 1; 1 1 -1 -1; 1 -1 1 -1; 1 -1 -1 1]
 *	P = (H (a, b, c, d) / 4) . (H (e, f, g, h)),  G = H P
 *	w = -G0 + 2a e,  x = G1 - 2d g,  y = G2 - 2b h,  z = G3 - 2c f
 *
 * holds for matrices in the place of a .. h as well. So planes have two halves: what the first line
 * multiplies, and (2a, -2d, -2b, -2c) of A, (e, g, h, f) of B. Four groups of two warps each sum a
 * product of 128 x 64 over all k of the first half; they exchange their sums once, to get G; and go
 * on with the second half. For 16 products there is one half, (a, b, c, d) and (e, f, g, h), and
 * group t sums +-A_s B_(s ^ t) for s = 0 .. 3, turning the sums about where the sign changes.
 *
 * A thread's tile is 16 x 8: for 128 multiply-adds it reads 24 numbers, by 6 instructions.
 */
#include "gpu/barrier.cuh"
#include "gpu/quat_gemm.cuh"
#include "gpu/quat_simt.h"

#define STRIP HZI_SIMT_STRIP
#define CHUNK HZI_SIMT_CHUNK
#define PLANE (STRIP * CHUNK)		/* floats of a plane of a chunk */

/* ---- Planes ---------------------------------------------------------------------------------- */

/* Of planes that were made of A: element (i, l), or (l, i). */
HZ_DEVICE quat planes_load(const hzi_quat_planes &p, int64_t base, int i, int l)
{
	const int row = p.turned ? l : i, column = p.turned ? i : l;
	const int64_t chunk = (row / STRIP * p.halves + p.halves - 1) * (int64_t)p.from_chunks;
	const float *f = p.from + base + 4 * PLANE * (chunk + column / CHUNK) +
			 column % CHUNK * STRIP + row % STRIP;

	if (p.halves == 1)
		return {f[0], f[PLANE], f[2 * PLANE], f[3 * PLANE]};
	return {0.5f * f[0], -0.5f * f[2 * PLANE], -0.5f * f[3 * PLANE], -0.5f * f[PLANE]};
}

extern "C" __global__ void __launch_bounds__(256)
quat_planes(const __grid_constant__ hzi_quat_planes p)
{
	__shared__ float t[4][CHUNK][STRIP + 1];
	const int chunk = blockIdx.x % p.chunks, strip = blockIdx.x / p.chunks;
	const int tid = threadIdx.x, l0 = chunk * CHUNK, i0 = strip * STRIP;
	const int64_t base = quat_item(p.shape, p.x.batch, p.first + blockIdx.y);
	/* Neighbours read neighbours. */
	const bool along_rows = llabs(p.x.row) < llabs(p.x.col);
	float *to = p.planes + p.item * blockIdx.y +
		    4 * PLANE * (strip * p.halves * (int64_t)p.chunks + chunk);
	quat q[4];

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

/* Whether A_s B_(s ^ t) counts negatively in component t: bit 4 s + t. */
#define NEGATIVE ((1 << 4 | 1 << 6) | (1 << 8 | 1 << 11) | (1 << 12 | 1 << 13))

template <int TM, int STAGES, bool FAST>
struct simt_memory {
	static constexpr int a_strip = FAST ? 4 * PLANE : PLANE;	/* floats, in a stage */
	static constexpr int a_floats = TM / 8 * a_strip, b_floats = 4 * PLANE;
	float stage[STAGES][a_floats + b_floats];
	float swap[4][32 * STRIP];
	uint64_t full[STAGES], empty[STAGES];
};

/* Sums of 8 TM rows by 64 columns, by 4 groups of 64 threads. */
template <int TM, int STAGES, bool FAST>
struct simt {
	using memory = simt_memory<TM, STAGES, FAST>;
	static constexpr int phases = FAST ? 2 : 4;

	const hzi_quat_simt &p;
	memory &s;
	const float *a, *b;		/* this tile's strips */
	int64_t a_strip;		/* floats from one strip to the next */
	int tid, group, tm, tn;
	float sum[TM][8];
	float fa[2][TM], fb[2][8];

	__device__ __forceinline__ simt(const hzi_quat_simt &p_, memory &s_) : p(p_), s(s_) {}

	/* Stage number n of phases * chunks: what is to be copied. */
	__device__ __forceinline__ void copy(int n)
	{
		const int phase = n / p.chunks, chunk = n % p.chunks, at = n % STAGES;
		const float *from_a = a + (int64_t)4 * PLANE * (FAST ? n : chunk) +
				      (FAST ? 0 : phase * PLANE);
		const float *from_b = b + (int64_t)4 * PLANE * (FAST ? n : chunk);

#if __CUDA_ARCH__ >= 900
		const uint32_t barrier = shared_address(&s.full[at]);

		barrier_expect(barrier, 4 * (memory::a_floats + memory::b_floats));
#pragma unroll
		for (int i = 0; i < TM / 8; i++)
			copy_bytes(shared_address(&s.stage[at][i * memory::a_strip]),
				   from_a + i * a_strip, 4 * memory::a_strip, barrier);
		copy_bytes(shared_address(&s.stage[at][memory::a_floats]), from_b,
			   4 * memory::b_floats, barrier);
#else
#pragma unroll
		for (int i = 0; i < TM / 8; i++)
#pragma unroll
			for (int j = 4 * tid; j < memory::a_strip; j += 4 * HZI_SIMT_THREADS)
				copy_async(shared_address(&s.stage[at][i * memory::a_strip + j]),
					   from_a + i * a_strip + j);
#pragma unroll
		for (int j = 4 * tid; j < memory::b_floats; j += 4 * HZI_SIMT_THREADS)
			copy_async(shared_address(&s.stage[at][memory::a_floats + j]), from_b + j);
		asm volatile("cp.async.commit_group;" ::: "memory");
#endif
	}

	/* Row k of a stage into fragment f. */
	__device__ __forceinline__ void load(int f, const float *sa, const float *sb, int k)
	{
#pragma unroll
		for (int i = 0; i < TM / 4; i++)
			*(float4 *)&fa[f][4 * i] = *(const float4 *)&sa[i / 2 * memory::a_strip +
									STRIP * k + i % 2 * 32];
#pragma unroll
		for (int j = 0; j < 2; j++)
			*(float4 *)&fb[f][4 * j] = *(const float4 *)&sb[STRIP * k + 32 * j];
	}

	__device__ __forceinline__ void multiply(int f)
	{
#pragma unroll
		for (int i = 0; i < TM; i++)
#pragma unroll
			for (int n = 0; n < 8; n++) {
				const int j = i % 2 ? 7 - n : n;

				sum[i][j] = fmaf(fa[f][i], fb[f][j], sum[i][j]);
			}
	}

	/*
	 * Four sums of a row from column j on, pairs exchanged: where a store wants registers in a
	 * row, sums of even columns so get odd registers, and the other way about. B's fragments
	 * are in a row as well, and a multiply-add that reads a sum and a number of B, or of A
	 * where rows begin, from registers of one parity takes a cycle more.
	 */
	__device__ __forceinline__ float4 four(int i, int j)
	{
		return make_float4(sum[i][j + 1], sum[i][j], sum[i][j + 3], sum[i][j + 2]);
	}

	/* G of the groups' P; of group 0 negative. */
	__device__ __forceinline__ void exchange(void)
	{
		float4 *swap = (float4 *)s.swap;
		const int t64 = tid % 64;

#pragma unroll
		for (int i = 0; i < TM / 4; i++) {
			__syncthreads();
#pragma unroll
			for (int v = 0; v < 8; v++)
				swap[(group * 8 + v) * 64 + t64] = four(4 * i + v / 2, v % 2 * 4);
			__syncthreads();
#pragma unroll
			for (int v = 0; v < 8; v++) {
				float *mine = &sum[4 * i + v / 2][v % 2 * 4];

#pragma unroll
				for (int u = 1; u < 4; u++) {
					const int other = group ^ u;
					const float sign = group == 0 || other == 0 ? 1 : -1;
					const float4 f = swap[(other * 8 + v) * 64 + t64];

					mine[1] = fmaf(sign, f.x, mine[1]);
					mine[0] = fmaf(sign, f.y, mine[0]);
					mine[3] = fmaf(sign, f.z, mine[3]);
					mine[2] = fmaf(sign, f.w, mine[2]);
				}
			}
		}
		if (group == 0)
			negate();
	}

	__device__ __forceinline__ void negate(void)
	{
#pragma unroll
		for (int i = 0; i < TM; i++)
#pragma unroll
			for (int j = 0; j < 8; j++)
				sum[i][j] = -sum[i][j];
	}

	/* 32 rows at a time: whole quaternions from the groups' components, and out. */
	__device__ __forceinline__ void finish(int64_t item, int i0, int j0)
	{
		const int64_t c = quat_item(p.out.shape, p.out.c.batch, item);
		const int64_t pre = quat_item(p.out.shape, p.out.pre.batch, item);
		const int column = tid % 64;

#pragma unroll
		for (int i = 0; i < TM / 4; i++) {
			__syncthreads();
#pragma unroll
			for (int v = 0; v < 8; v++) {
				/* Pieces of 4 columns are exchanged, against bank conflicts. */
				const int piece = (tn + v % 2 * 8) ^ tm;

				*(float4 *)&s.swap[group][STRIP * (4 * tm + v / 2) + 4 * piece] =
					four(4 * i + v / 2, v % 2 * 4);
			}
			__syncthreads();
#pragma unroll 1
			for (int r = tid / 64; r < 32; r += HZI_SIMT_THREADS / 64) {
				const int at = STRIP * r + (column ^ r / 4 * 4 ^ 1);
				const int row = i0 + 32 * i + r;

				if (row < p.out.m && j0 + column < p.out.n)
					quat_finish(p.out, c, pre, row, j0 + column,
						    {s.swap[0][at], s.swap[1][at], s.swap[2][at],
						     s.swap[3][at]});
			}
		}
	}

	__device__ __forceinline__ void run(void)
	{
		const int all = phases * p.chunks;
		const int64_t item = p.first + blockIdx.y;
		int tile_m, tile_n, n = 0;

		tid = threadIdx.x;
		group = tid / 64;
		tm = tid % 8;
		tn = tid % 64 / 8;
		tile(tile_m, tile_n);
		a_strip = (int64_t)4 * PLANE * (FAST ? 2 : 1) * p.chunks;
		a = p.a + blockIdx.y * p.a_item + quat_item(p.out.shape, p.a_batch, item) +
		    tile_m * (TM / 8) * a_strip;
		b = p.b + blockIdx.y * p.b_item + tile_n * a_strip;
#pragma unroll
		for (int i = 0; i < TM; i++)
#pragma unroll
			for (int j = 0; j < 8; j++)
				sum[i][j] = 0;
		begin(all);
		for (int phase = 0; phase < phases; phase++) {
			const int turn = NEGATIVE ^ NEGATIVE << 4;

			if (!FAST && turn >> (4 * phase + group) & 1)
				negate();
			for (int chunk = 0; chunk < p.chunks; chunk++, n++)
				step(n, all, phase, chunk == p.chunks - 1);
			if (FAST && phase == 0)
				exchange();
		}
		if (!FAST && NEGATIVE >> (12 + group) & 1)
			negate();
		finish(item, 8 * TM * tile_m, STRIP * tile_n);
	}

	/* Bands of rows, each done column by column, so that L2 has both operands. */
	__device__ __forceinline__ void tile(int &tile_m, int &tile_n)
	{
		const int whole = p.band * p.tiles_n, first = blockIdx.x / whole * p.band;
		const int rows = min(p.band, p.tiles_m - first), rest = blockIdx.x % whole;

		tile_m = first + rest % rows;
		tile_n = rest / rows;
	}

	/* Where this thread reads of stage n; the last of a phase is followed by the next. */
	__device__ __forceinline__ const float *a_of(int n)
	{
		return &s.stage[n % STAGES][(FAST ? group * PLANE : 0) + 4 * tm];
	}

	__device__ __forceinline__ const float *b_of(int n, int phase)
	{
		return &s.stage[n % STAGES][memory::a_floats + 4 * tn +
					    (FAST ? group : (phase ^ group) & 3) * PLANE];
	}

	/* The ring is filled, and the first fragments are read. */
	__device__ __forceinline__ void begin(int all)
	{
#if __CUDA_ARCH__ >= 900
		if (tid == 0) {
			for (int i = 0; i < STAGES; i++) {
				barrier_init(shared_address(&s.full[i]), 1);
				barrier_init(shared_address(&s.empty[i]), HZI_SIMT_THREADS / 32);
			}
			barrier_init_fence();
		}
		__syncthreads();
		if (tid == 0)
			for (int i = 0; i < min(all, STAGES); i++)
				copy(i);
#else
		for (int i = 0; i < STAGES; i++) {
			if (i < all)
				copy(i);
			else
				asm volatile("cp.async.commit_group;" ::: "memory");
		}
#endif
		if (all) {
			wait(0);
			load(0, a_of(0), b_of(0, 0), 0);
		}
	}

	/* Until stage n is there for all threads. */
	__device__ __forceinline__ void wait(int n)
	{
#if __CUDA_ARCH__ >= 900
		barrier_wait(shared_address(&s.full[n % STAGES]), n / STAGES & 1);
#else
		asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
		__syncthreads();
#endif
	}

	/* One stage. Fragments are read one k ahead, so the next stage is waited for in this one. */
	__device__ __forceinline__ void step(int n, int all, int phase, bool last)
	{
		const float *sa = a_of(n), *sb = b_of(n, phase);

#pragma unroll
		for (int k = 0; k < CHUNK; k++) {
#if __CUDA_ARCH__ >= 900
			/* The stage before has long been read by all warps, or nearly. */
			if (k == 4 && tid == 0 && n > 0 && n - 1 + STAGES < all) {
				barrier_wait(shared_address(&s.empty[(n - 1) % STAGES]),
					     (n - 1) / STAGES & 1);
				copy(n - 1 + STAGES);
			}
#endif
			if (k < CHUNK - 1) {
				load((k + 1) & 1, sa, sb, k + 1);
			} else if (n + 1 < all) {
				wait(n + 1);
				load(0, a_of(n + 1), b_of(n + 1, last ? phase + 1 : phase), 0);
			}
			multiply(k & 1);
		}
#if __CUDA_ARCH__ >= 900
		if (tid % 32 == 0)
			barrier_arrive(shared_address(&s.empty[n % STAGES]));
#else
		/* All threads are past wait(n + 1), and have read this stage. */
		if (n + STAGES < all)
			copy(n + STAGES);
		else
			asm volatile("cp.async.commit_group;" ::: "memory");
#endif
	}
};

template <int ROWS, int STAGES, bool FAST>
HZ_DEVICE void simt_run(const hzi_quat_simt &p)
{
	extern __shared__ __align__(128) uint8_t memory[];
	using kind = simt<ROWS / 8, STAGES, FAST>;

	static_assert(sizeof(typename kind::memory) == HZI_SIMT_BYTES(ROWS, STAGES, FAST ? 2 : 1),
		      "what the launcher asks for");
	kind(p, *(typename kind::memory *)memory).run();
}

extern "C" __global__ void __launch_bounds__(HZI_SIMT_THREADS, 1)
quat_simt_fast(const __grid_constant__ hzi_quat_simt p)
{
	simt_run<HZI_SIMT_ROWS, HZI_SIMT_STAGES, true>(p);
}

extern "C" __global__ void __launch_bounds__(HZI_SIMT_THREADS, 1)
quat_simt_direct(const __grid_constant__ hzi_quat_simt p)
{
	simt_run<HZI_SIMT_ROWS, HZI_SIMT_STAGES, false>(p);
}

/* For small matrices, and where shared memory is short. */
extern "C" __global__ void __launch_bounds__(HZI_SIMT_THREADS, 2)
quat_simt_fast_small(const __grid_constant__ hzi_quat_simt p)
{
	simt_run<HZI_SIMT_ROWS_SMALL, HZI_SIMT_STAGES_SMALL, true>(p);
}

extern "C" __global__ void __launch_bounds__(HZI_SIMT_THREADS, 2)
quat_simt_direct_small(const __grid_constant__ hzi_quat_simt p)
{
	simt_run<HZI_SIMT_ROWS_SMALL, HZI_SIMT_STAGES_SMALL, false>(p);
}
