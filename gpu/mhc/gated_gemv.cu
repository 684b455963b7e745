/*
 * gated_gemv.cu - gated branch inputs of up to 8 tokens in two launches, bf16, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Time goes to reading the weights once, so each lane requests all that it multiplies at the start:
 * 16 contiguous bytes are the operands of two mma.sync with the steps of k in another order, for
 * weights, streams and hidden numbers alike. Weights are the A operand, tokens the columns.
 */
#include "gpu/mhc/gated_gemv.h"
#include "gpu/mhc/gated_tile.cuh"
#include "gpu/device/wgmma_s8.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/cluster.cuh"

#define CLUSTER HZI_MHC_GEMV_CLUSTER
#define ROWS HZI_MHC_GEMV_ROWS
#define STREAMS HZI_MHC_GEMV_STREAMS
#define TOKENS HZI_MHC_GEMV_TOKENS	/* columns of mma.sync */

HZ_DEVICE void load_words(uint32_t *to, const void *src, bool valid)
{
	const uint4 v = valid ? *(const uint4 *)src : uint4{};

	to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* Adds 32 steps: rows[h] is that of row lane / 4 + 8 h, b that of column lane / 4. */
HZ_DEVICE void multiply_add(float *sum, const uint32_t (*rows)[4], const uint32_t *b)
{
#pragma unroll
	for (int s = 0; s < 4; s += 2)
		mma_m16n8k16<HZ_BF16>(sum, rows[0][s], rows[1][s], rows[0][s + 1], rows[1][s + 1],
				      b[s], b[s + 1]);
}

/* ---- W_down and W_q times x ------------------------------------------------------------------ */

/*
 * A block: 16 rows and a slice of the channels of a stream, of which each warp has 32 at a time. A
 * cluster has all channels; its blocks add up four rows each.
 */
HZ_DEVICE void gemv_down(const hzi_mhc_gated_gemv &p)
{
	constexpr int THREADS = HZI_MHC_GEMV_DOWN_THREADS, WARPS = THREADS / 32;
	constexpr int SUMS = ROWS * TOKENS, PART = SUMS / CLUSTER;
	__shared__ float sums[WARPS][SUMS + TOKENS];	/* squares behind the products */
	__shared__ float gathered[CLUSTER][PART], squares_gathered[CLUSTER][TOKENS];
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % CLUSTER;
	const int tile = blockIdx.x / CLUSTER % p.row_tiles, i = blockIdx.x / CLUSTER / p.row_tiles;
	const int T = (int)a.s.tokens, C = (int)a.s.channels;
	const int first = rank * p.slice + warp * 32, end = min((rank + 1) * p.slice, C);
	const int64_t K = a.s.n * (int64_t)C;
	const int row = tile * ROWS + lane / 4;		/* rows of W_q follow those of W_down */
	const uint16_t *const w_row = (tile * ROWS < a.rank ?
				       (const uint16_t *)a.w_down + row * K :
				       (const uint16_t *)a.w_q + (row - a.rank) * K) +
				      i * (int64_t)C;
	const uint16_t *const x = (const uint16_t *)a.x.data + i * a.x.stream +
				  lane / 4 * a.x.token;
	const float *const gains = a.gain + i * (int64_t)C;
	float sum[4] = {}, square = 0;

	cluster_arrive_relaxed();
	/* mhc_gated_gemv_up reads weights and streams before it waits: see gated_fused.cu. */
	pdl_wait();
	pdl_launch_dependents();
#pragma unroll 1
	for (int c0 = first; c0 < end; c0 += THREADS) {
		const int c = c0 + lane % 4 * 8;
		const bool in = c < end;
		uint32_t w[2][4], v[4], rest[4] = {};
		float gain[8];

#pragma unroll
		for (int h = 0; h < 2; h++)
			load_words(w[h], w_row + h * 8 * K + c, in && row + h * 8 < p.rows);
		load_words(v, x + c, in && lane / 4 < T);
		if (a.gain) {
			load_words((uint32_t *)gain, gains + c, in);
			load_words((uint32_t *)gain + 4, gains + c + 4, in);
		}
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float f = bf16_low(v[e]), g = bf16_high(v[e]);

			square = fmaf(f, f, fmaf(g, g, square));
			if (a.gain)
				v[e] = split_weights(f * gain[2 * e], g * gain[2 * e + 1], rest[e]);
		}
		multiply_add(sum, w, v);
		if (a.gain)
			multiply_add(sum, w, rest);
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		sums[warp][(lane / 4 + e / 2 * 8) * TOKENS + lane % 4 * 2 + e % 2] = sum[e];
	square = warp_sum<4>(square);
	if (lane % 4 == 0)
		sums[warp][SUMS + lane / 4] = square;
	__syncthreads();
	cluster_wait();
	if (threadIdx.x < SUMS + TOKENS) {
		const int e = threadIdx.x;
		const bool product = e < SUMS;
		float v = 0;

#pragma unroll 8
		for (int from = 0; from < WARPS; from++)
			v += sums[from][e];
		cluster_store(cluster_map(product ? shared_address(&gathered[rank][e % PART]) :
					  shared_address(&squares_gathered[rank][e - SUMS]),
					  product ? e / PART : 0), v);
	}
	cluster_arrive();
	cluster_wait();

	const int t = threadIdx.x % TOKENS;
	const int to = tile * ROWS + rank * (ROWS / CLUSTER) + threadIdx.x / TOKENS;

	if (threadIdx.x >= PART || t >= T)
		return;
	p.partial[(i * T + t) * p.pitch + to] =
		gathered[0][threadIdx.x] + gathered[1][threadIdx.x] + gathered[2][threadIdx.x] +
		gathered[3][threadIdx.x];
	if (tile == 0 && rank == 0 && threadIdx.x < TOKENS)
		p.squares[i * T + t] = squares_gathered[0][t] + squares_gathered[1][t] +
				       squares_gathered[2][t] + squares_gathered[3][t];
}

/* ---- Hidden numbers, gates and their sums ---------------------------------------------------- */

#define HIDDEN_PITCH (HZI_MHC_GEMV_RANK / 2 + 4)	/* words, without bank conflicts */

/*
 * Hidden numbers and roots of all tokens, from the products of each stream; block 0 also stores q.
 * kept: squares, then roots. Loops are short code: instructions are fetched cold.
 */
HZ_DEVICE void make_hidden(const hzi_mhc_gated_gemv &p, uint32_t (*hidden)[TOKENS][HIDDEN_PITCH],
			   float *kept)
{
	constexpr int THREADS = HZI_MHC_GEMV_UP_THREADS;
	__shared__ float memory[32];
	const hzi_mhc_gated_args &a = p.a;
	const int n = a.s.n, rank = (int)a.rank, T = (int)a.s.tokens, step = T * p.pitch;
	const float share = 1.0f / (float)n;
	float ahead[STREAMS], square = 0, slope;
	int t = threadIdx.x / p.rows, row = threadIdx.x % p.rows;

	const auto load = [&]() {
#pragma unroll
		for (int s = 0; s < STREAMS; s++)
			ahead[s] = t < T && s < n ? p.partial[s * step + t * p.pitch + row] : 0;
	};

	load();
	if (threadIdx.x < T * n) {
		square = p.squares[threadIdx.x] / (float)a.s.channels;
		kept[threadIdx.x] = square;
	}
	if (__syncthreads_or(threadIdx.x < T * n &&
			     hzi_mhc_leaves_f32(square, hzi_mhc_least_square(&a.rule)))) {
#pragma unroll 1
		for (int e = 0; e < T * n; e++) {
			const float old = kept[e];

			if (!hzi_mhc_leaves_f32(old, hzi_mhc_least_square(&a.rule)))
				continue;

			const float v = wide_square(a, e % T, e / T, old, memory);

			if (threadIdx.x == 0)
				kept[e] = v;
		}
		__syncthreads();
		square = threadIdx.x < T * n ? kept[threadIdx.x] : 0;
	}
	if (threadIdx.x < T * n)
		kept[threadIdx.x] = roots_of(a.rule, square, slope);
	__syncthreads();
#pragma unroll 1
	while (t < T) {
		float z = 0, s;

#pragma unroll
		for (int e = 0; e < STREAMS; e++)
			z = fmaf(e < n ? kept[e * T + t] : 0, ahead[e], z);
		z *= share;
		s = gate_of(z);
		if (row < rank) {
			uint32_t low;
			const uint32_t high = split_weights(z * s, 0, low);

			((uint16_t *)hidden[0][t])[row] = (uint16_t)high;
			((uint16_t *)hidden[1][t])[row] = (uint16_t)low;
		} else if (blockIdx.x == 0 && a.q.data) {
			*coef_at(a.q, t, row - rank, 0) = fmaf(a.rule.q_scale, s, a.rule.q_eps);
		}
		row += THREADS % p.rows;
		t += THREADS / p.rows;
		if (row >= p.rows) {
			row -= p.rows;
			t++;
		}
		load();
	}
	__syncthreads();
}

/* A block: 32 channels of each stream, a warp 16 of one. Each block makes all hidden numbers. */
HZ_DEVICE void gemv_up(const hzi_mhc_gated_gemv &p)
{
	constexpr int THREADS = HZI_MHC_GEMV_UP_THREADS, WARPS = THREADS / 32;
	constexpr int PIECES = HZI_MHC_GEMV_RANK / 32;
	__shared__ __align__(16) uint32_t hidden[2][TOKENS][HIDDEN_PITCH];
	__shared__ float gated[WARPS][16][TOKENS + 1], kept[TOKENS * STREAMS];
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = warp / 2, n = a.s.n;
	const int rank = (int)a.rank, T = (int)a.s.tokens, C = (int)a.s.channels;
	const int c0 = blockIdx.x * HZI_MHC_GEMV_CHANNELS, c = c0 + warp % 2 * 16 + lane / 4;
	const float share = 1.0f / (float)n;
	uint32_t w[PIECES][2][4], finite[PIECES][2][4];
	float x[4], gain[2], sum[4] = {};

#pragma unroll
	for (int u = 0; u < PIECES; u++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int column = u * 32 + lane % 4 * 8;

			load_words(w[u][h], (const uint16_t *)a.w_up +
					    (int64_t)(i * C + c + h * 8) * rank + column,
				   i < n && c + h * 8 < C && column < rank);
		}
	}
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int h = e / 2, t = lane % 4 * 2 + e % 2;

		x[e] = i < n && t < T && c + h * 8 < C ?
			load_value(HZ_BF16, a.x.data, offset(a.x, t, i, c + h * 8)) : 0;
	}
#pragma unroll
	for (int h = 0; h < 2; h++)
		gain[h] = a.gain && i < n && c + h * 8 < C ? a.gain[i * C + c + h * 8] : 1;
#pragma unroll
	for (int e = 0; e < PIECES * 8; e++)
		finite[e / 8][e / 4 % 2][e % 4] = finite_pair(w[e / 8][e / 4 % 2][e % 4]);
	/* Beyond r */
#pragma unroll 1
	for (int e = threadIdx.x; e < 2 * TOKENS * HIDDEN_PITCH; e += THREADS)
		hidden[0][0][e] = 0;
	__syncthreads();
	pdl_launch_dependents();
	pdl_wait();
	make_hidden(p, hidden, kept);
	if (!a.u.data)
		return;
#pragma unroll
	for (int u = 0; u < PIECES; u++) {
		const int at = u * 16 + lane % 4 * 4;
		uint32_t h[4];

		shared_load(h, shared_address(&hidden[0][lane / 4][at]));
		multiply_add(sum, w[u], h);
		shared_load(h, shared_address(&hidden[1][lane / 4][at]));
		multiply_add(sum, finite[u], h);
	}
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int h = e / 2, t = lane % 4 * 2 + e % 2;

		if (t < T && i < n)
			gated[warp][lane / 4 + h * 8][t] =
				gate_of(sum[e]) * (x[e] * (kept[i * T + t] * gain[h]));
	}
	__syncthreads();
	for (int e = threadIdx.x; e < T * 16; e += THREADS) {
		const int pair = e % 16, t = e / 16;
		const int to = c0 + pair * 2;
		float u[2] = {};

		if (to >= C)
			continue;
		for (int s = 0; s < n; s++) {
			u[0] += gated[s * 2 + pair / 8][pair % 8 * 2][t];
			u[1] += gated[s * 2 + pair / 8][pair % 8 * 2 + 1][t];
		}
		*(uint32_t *)((uint16_t *)a.u.data + offset(a.u, t, 0, to)) =
			to_bf16x2(u[0] * share, u[1] * share);
	}
}
#endif

#define KERNEL(name, threads, call) \
	extern "C" __global__ void __launch_bounds__(threads) \
		name(const __grid_constant__ hzi_mhc_gated_gemv p) \
	{ \
		HZ_HOPPER_BODY(call) \
	}

KERNEL(mhc_gated_gemv_down, HZI_MHC_GEMV_DOWN_THREADS, gemv_down(p))
KERNEL(mhc_gated_gemv_up, HZI_MHC_GEMV_UP_THREADS, gemv_up(p))
