/*
 * gated_fused.cu - gated branch inputs in three launches, without streams over their roots in memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The root of a stream of a token is one factor of its channels, so mhc_gated_down multiplies x
 * itself, slice by slice of channels; mhc_gated_hidden adds slices up, times the roots, and makes
 * hidden numbers of them; mhc_gated_up makes gates and adds streams up. The gain is multiplied into
 * the weights: bf16 streams then are operands of tensor cores as they are.
 */
#include "gpu/mhc/gated_tile.cuh"
#include "gpu/mhc/gated_fused.h"
#include "gpu/device/cp_async.cuh"

/* ---- W_down and W_q times x ------------------------------------------------------------------ */

/*
 * Adds 16 steps of k of MT x 16 rows of a and NT x 8 of b, whose second terms, if any, are `plane`
 * words after the first. Products of the same sums are far apart: each waits for the one before.
 */
template <int DT, int XP, int WP, int MT, int NT, int PITCH>
HZ_DEVICE void multiply_add(float (*sum)[4], int sum_tiles, const uint32_t (*high)[4],
			    const uint32_t (*low)[4], const uint32_t *b, int b_plane)
{
	const int lane = threadIdx.x % 32;
	/* Matrices of 8 rows and 8 steps: both halves of a tile's steps, of both terms or two tiles */
	const uint32_t w = shared_address(b + lane % 8 * PITCH + lane / 8 % 2 * 4 +
					  lane / 16 * (WP == 2 ? b_plane : 8 * PITCH));
	uint32_t r[NT][4];

#pragma unroll
	for (int tile = 0; tile < NT; tile++) {
		if (WP == 2 || (tile % 2 == 0 && tile + 1 < NT)) {
			ldmatrix_x4(r[tile], w + tile * 8 * PITCH * 4);
		} else if (tile % 2 == 0) {
			const uint32_t *const last = b + (tile * 8 + lane / 4) * PITCH + lane % 4;

			r[tile][0] = last[0];
			r[tile][1] = last[4];
		} else {
			r[tile][0] = r[tile - 1][2];
			r[tile][1] = r[tile - 1][3];
		}
	}
#pragma unroll
	for (int e = 0; e < MT * NT; e++)
		mma_m16n8k16<DT>(sum[e % MT * sum_tiles + e / MT], high[e % MT], r[e / MT][0],
				 r[e / MT][1]);
#pragma unroll
	for (int e = 0; WP == 2 && e < MT * NT; e++)
		mma_m16n8k16<DT>(sum[e % MT * sum_tiles + e / MT], high[e % MT], r[e / MT][2],
				 r[e / MT][3]);
#pragma unroll
	for (int e = 0; XP == 2 && e < MT * NT; e++)
		mma_m16n8k16<DT>(sum[e % MT * sum_tiles + e / MT], low[e % MT], r[e / MT][0],
				 r[e / MT][1]);
}

/* Fragments of MT x 16 rows and 16 steps of a tile */
template <int MT, int PITCH>
HZ_DEVICE void load_rows(uint32_t (*r)[4], const uint32_t *a)
{
	const int lane = threadIdx.x % 32;
	const uint32_t at = shared_address(a + lane % 16 * PITCH + lane / 16 * 4);

#pragma unroll
	for (int m = 0; m < MT; m++)
		ldmatrix_x4(r[m], at + m * 16 * PITCH * 4);
}

/* A block: 16 MT WM tokens, 8 NT WN rows, one slice, in pieces of KT channels that WK warps share */
template <int MT, int NT, int WM, int WN, int WK, int KT>
HZ_DEVICE void gated_down(const hzi_mhc_gated_job &p)
{
	constexpr int TOKENS = 16 * MT * WM, ROWS = 8 * NT * WN, PITCH = HZI_MHC_PITCH(KT);
	constexpr int THREADS = 32 * WM * WN * WK, LANES = KT / 8, STEP = THREADS / LANES;
	constexpr int X = TOKENS / STEP, W = (ROWS + STEP - 1) / STEP;
	constexpr int X_PLANE = TOKENS * PITCH, W_PLANE = ROWS * PITCH;
	extern __shared__ __align__(16) uint32_t memory[];
	__shared__ float halves[TOKENS][2];
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int wm = warp % WM, wn = warp / WM % WN, wk = warp / (WM * WN);
	const int row0 = blockIdx.x % p.row_tiles * p.tile_rows;
	const int limit = min(row0 + p.tile_rows, p.pitch);
	const int slice = blockIdx.x / p.row_tiles % p.slices, i = slice / p.stream_slices;
	const int64_t t0 = (int64_t)(blockIdx.x / p.row_tiles / p.slices) * TOKENS;
	const int64_t T = a.s.tokens, C = a.s.channels, K = a.s.n * C;
	const int64_t c0 = slice % p.stream_slices * p.slice;
	const int64_t end = c0 + p.slice < C ? c0 + p.slice : C;
	const int column = threadIdx.x % LANES * 8, first = threadIdx.x / LANES;
	const int buffer = p.x_terms * X_PLANE + p.w_terms * W_PLANE;
	float sum[MT][NT][4] = {}, squares[X] = {}, gain[8];
	raw8 x[X], w[W];

	/* Elements from c0 and from a thread's first rows on */
	const int64_t xs0 = offset(a.x, t0 + first, i, c0 + column);
	const int64_t ws0 = (row0 + first) * K + i * C + c0 + column;
	const int64_t qs0 = (row0 + first - a.rank) * K + i * C + c0 + column;
	const int x_bytes = a.s.dtype == HZ_F32 ? 4 : 2, w_bytes = a.down_dtype == HZ_F32 ? 4 : 2;
	const int q_bytes = a.q_dtype == HZ_F32 ? 4 : 2;

	const auto load_x = [&](int64_t c, auto wide) {
#pragma unroll
		for (int j = 0; j < X; j++) {
			clear_raw(x[j]);
			if (t0 + first + j * STEP < T && c0 + c + column < end)
				load_raw<wide.value>(x[j], (const char *)a.x.data +
						     (xs0 + j * STEP * a.x.token + c) * x_bytes);
		}
	};
	const auto load_w = [&](int64_t c, auto wide) {
#pragma unroll
		for (int j = 0; j < W; j++) {
			const int row = row0 + first + j * STEP;

			clear_raw(w[j]);
			if (c0 + c + column >= end || row >= limit || row >= p.rows)
				continue;
			if (row < a.rank)
				load_raw<wide.value>(w[j], (const char *)a.w_down +
						     (ws0 + j * STEP * K + c) * w_bytes);
			else if (wide.value || q_bytes == 2)
				load_raw<wide.value>(w[j], (const char *)a.w_q +
						     (qs0 + j * STEP * K + c) * q_bytes);
			else
				load_raw<true>(w[j], (const char *)a.w_q +
					       (qs0 + j * STEP * K + c) * q_bytes);
		}
	};
	const auto load = [&](int64_t c) {
		if (x_bytes == 4)
			load_x(c, std_int<1>());
		else
			load_x(c, std_int<0>());
		if (w_bytes == 4)
			load_w(c, std_int<1>());
		else
			load_w(c, std_int<0>());
		if (a.gain && c0 + c + column < end) {
			const float4 *const g = (const float4 *)(a.gain + i * C + c0 + c + column);
			const float4 low = g[0], high = g[1];

			gain[0] = low.x, gain[1] = low.y, gain[2] = low.z, gain[3] = low.w;
			gain[4] = high.x, gain[5] = high.y, gain[6] = high.z, gain[7] = high.w;
		}
	};
	const auto store_x = [&](uint32_t *to, auto dtype) {
#pragma unroll
		for (int j = 0; j < X; j++) {
			uint32_t *const dst = to + (first + j * STEP) * PITCH + column / 2;
			float v[8];

			widen_raw<dtype.value>(v, x[j]);
#pragma unroll
			for (int e = 0; e < 8; e++)
				squares[j] = fmaf(v[e], v[e], squares[j]);
			if (p.x_terms == 1) {
				shared_store(shared_address(dst), x[j].w);
				continue;
			}
#pragma unroll
			for (int e = 0; p.gain_on_x && e < 8; e++)
				v[e] *= gain[e];
			store_terms(dst, X_PLANE, v);
		}
	};
	const auto store_w = [&](uint32_t *to, auto dtype, auto terms) {
#pragma unroll
		for (int j = 0; j < W; j++) {
			const int row = first + j * STEP;
			uint32_t *const dst = to + row * PITCH + column / 2;
			float v[8];

			if (ROWS % STEP != 0 && row >= ROWS)
				continue;
			if constexpr (terms.value == 1) {
				shared_store(shared_address(dst), w[j].w);
			} else {
				if (dtype.value == HZ_F32 || row0 + row < a.rank || q_bytes == 2)
					widen_raw<dtype.value>(v, w[j]);
				else
					widen_raw<HZ_F32>(v, w[j]);
#pragma unroll
				for (int e = 0; !p.gain_on_x && e < 8; e++)
					v[e] *= gain[e];
				store_terms(dst, W_PLANE, v);
			}
		}
	};
	const auto store = [&](uint32_t *to) {
		with_dtype(a.s.dtype, [&](auto dtype) { store_x(to, dtype); });
		to += p.x_terms * X_PLANE;
		if (p.w_terms == 1)
			store_w(to, std_int<HZ_BF16>(), std_int<1>());
		else
			with_dtype(a.down_dtype,
				 [&](auto dtype) { store_w(to, dtype, std_int<2>()); });
	};

#pragma unroll
	for (int e = 0; e < 8; e++)
		gain[e] = 1;
	/*
	 * mhc_gated_up reads weights and streams before it waits, so it must not start before what
	 * came before this call has ended.
	 */
	pdl_wait();
	pdl_launch_dependents();
	load(0);
	for (int64_t c = c0, at = 0; c < end; c += KT, at ^= 1) {
		uint32_t *const tile = memory + at * buffer;
		const uint32_t *const xs = tile + wm * 16 * MT * PITCH;
		const uint32_t *const ws = tile + p.x_terms * X_PLANE + wn * 8 * NT * PITCH;

		store(tile);
		__syncthreads();
		if (c + KT < end)
			load(c - c0 + KT);
		const auto multiply = [&](auto x_terms, auto w_terms) {
#pragma unroll
			for (int k = 0; k < KT / 16 / WK; k++) {
				const int word = (k * WK + wk) * 8;
				uint32_t high[MT][4], low[MT][4];

				load_rows<MT, PITCH>(high, xs + word);
				if constexpr (x_terms.value == 2)
					load_rows<MT, PITCH>(low, xs + word + X_PLANE);
				multiply_add<HZ_BF16, x_terms.value, w_terms.value, MT, NT, PITCH>(
					sum[0], NT, high, low, ws + word, W_PLANE);
			}
		};
		if (p.x_terms == 1 && p.w_terms == 1)
			multiply(std_int<1>(), std_int<1>());
		else if (p.x_terms == 1)
			multiply(std_int<1>(), std_int<2>());
		else if (p.w_terms == 1)
			multiply(std_int<2>(), std_int<1>());
		else
			multiply(std_int<2>(), std_int<2>());
	}

	/* Squares: LANES threads of a token, of one or two warps */
#pragma unroll
	for (int j = 0; j < X; j++) {
		const float square = warp_sum<LANES < 32 ? LANES : 32>(squares[j]);

		if (threadIdx.x % (LANES < 32 ? LANES : 32) == 0)
			halves[first + j * STEP][LANES > 32 ? warp % 2 : 0] = square;
	}
	__syncthreads();
	if (row0 == 0 && threadIdx.x < TOKENS && t0 + threadIdx.x < T)
		p.squares[slice * T + t0 + threadIdx.x] =
			halves[threadIdx.x][0] + (LANES > 32 ? halves[threadIdx.x][1] : 0);

	float *const sums = (float *)memory;

#pragma unroll
	for (int e = 0; e < MT * NT * 2; e++) {
		const int m = e / (NT * 2), tile = e / 2 % NT, h = e % 2;
		const int t = (wm * MT + m) * 16 + h * 8 + lane / 4;
		const int row = (wn * NT + tile) * 8 + lane % 4 * 2;

		*(float2 *)(sums + (wk * TOKENS + t) * ROWS + row) =
			{sum[m][tile][h * 2], sum[m][tile][h * 2 + 1]};
	}
	__syncthreads();
	for (int e = threadIdx.x; e < TOKENS * ROWS; e += THREADS) {
		const int64_t t = t0 + e / ROWS;
		const int row = row0 + e % ROWS;
		float v = 0;

#pragma unroll
		for (int k = 0; k < WK; k++)
			v += sums[k * TOKENS * ROWS + e];
		if (t < T && row < limit)
			p.partial[(slice * T + t) * p.pitch + row] = v;
	}
}

#define DOWN(name, MT, NT, WM, WN, WK, KT) \
	extern "C" __global__ void __launch_bounds__(32 * WM * WN * WK) \
		mhc_gated_down_##name(const __grid_constant__ hzi_mhc_gated_job p) \
	{ \
		gated_down<MT, NT, WM, WN, WK, KT>(p); \
	}

HZI_MHC_DOWN_TILES(DOWN)

/* ---- The same of many tokens ----------------------------------------------------------------- */

/*
 * Two terms of a row of the weights times gain: of bf16, or for streams of f16 of f16, which the row
 * is scaled for: see row_scale(). A block has a row.
 */
extern "C" __global__ void __launch_bounds__(HZI_MHC_WEIGHTS_THREADS)
	mhc_gated_weights(const __grid_constant__ hzi_mhc_gated_job p)
{
	__shared__ float memory[32];
	const hzi_mhc_gated_args &a = p.a;
	const int64_t K = a.s.n * a.s.channels;
	const int row = blockIdx.x;
	const bool down = row < a.rank;
	const char *const src = down ? (const char *)a.w_down : (const char *)a.w_q;
	const int dtype = down ? a.down_dtype : a.q_dtype;
	const int64_t at = (down ? row : row - a.rank) * K;
	float scale = 1, absmax = 0;

	pdl_wait();
	pdl_launch_dependents();
	with_dtype(dtype, [&](auto of) {
		constexpr int DT = of.value, SIZE = DT == HZ_F32 ? 4 : 2;
		const auto load = [&](float *v, int64_t k) {
			raw8 r;

			load_raw<DT == HZ_F32>(r, src + (at + k) * SIZE);
			widen_raw<DT>(v, r);
#pragma unroll
			for (int e = 0; e < 8; e++)
				v[e] *= a.gain ? a.gain[k + e] : 1;
		};
		float v[8];

		if (a.s.dtype == HZ_F16) {
			for (int64_t k = threadIdx.x * 8; k < K; k += HZI_MHC_WEIGHTS_THREADS * 8) {
				load(v, k);
#pragma unroll
				for (int e = 0; e < 8; e++)
					absmax = fmaxf(absmax, fabsf(v[e]));
			}
			absmax = warp_max(absmax);
			if (threadIdx.x % 32 == 0)
				memory[threadIdx.x / 32] = absmax;
			__syncthreads();
			absmax = warp_max(memory[threadIdx.x % (HZI_MHC_WEIGHTS_THREADS / 32)]);
			scale = row_scale(absmax);
		}
		if (threadIdx.x == 0)
			p.scales[row] = inverse_power(scale);
		for (int64_t k = threadIdx.x * 8; k < K; k += HZI_MHC_WEIGHTS_THREADS * 8) {
			uint16_t *const to = p.terms + row * K + k;
			uint32_t high[4], low[4];

			load(v, k);
#pragma unroll
			for (int e = 0; e < 4; e++) {
				float f[2] = {v[2 * e] * scale, v[2 * e + 1] * scale};

				if (a.s.dtype == HZ_F16) {
					/* The second term of Inf and NaN is Inf and NaN. */
					high[e] = to_f16x2(fmaxf(fminf(f[0], 65504), -65504),
							   fmaxf(fminf(f[1], 65504), -65504));
					low[e] = to_f16x2(f[0] - f16_low(high[e]),
							  f[1] - f16_high(high[e]));
				} else {
					high[e] = split_weights(f[0], f[1], low[e]);
				}
			}
			*(uint4 *)to = {high[0], high[1], high[2], high[3]};
			*(uint4 *)(to + p.rows * K) = {low[0], low[1], low[2], low[3]};
		}
	});
}

/* A block: 128 tokens, 16 NT rows, one slice; a warp 32 tokens and 8 NT rows */
template <int DT, int NT>
HZ_DEVICE void gated_down_many(const hzi_mhc_gated_job &p)
{
	constexpr int MT = 2, WM = 4, KT = HZI_MHC_MANY_PIECE, STAGES = HZI_MHC_MANY_STAGES;
	constexpr int TOKENS = HZI_MHC_MANY_TOKENS, ROWS = 16 * NT, PITCH = HZI_MHC_PITCH(KT);
	constexpr int LANES = KT / 8, STEP = HZI_MHC_MANY_THREADS / LANES;
	constexpr int X = TOKENS / STEP, W = (ROWS + STEP - 1) / STEP, PLANE = ROWS * PITCH;
	constexpr int STAGE = TOKENS * PITCH + 2 * PLANE;
	extern __shared__ __align__(16) uint32_t memory[];
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp % WM, wn = warp / WM;
	const int row0 = blockIdx.x % p.row_tiles * p.tile_rows;
	const int limit = min(row0 + p.tile_rows, p.pitch);
	const int slice = blockIdx.x / p.row_tiles % p.slices, i = slice / p.stream_slices;
	const int64_t t0 = (int64_t)(blockIdx.x / p.row_tiles / p.slices) * TOKENS;
	const int64_t T = a.s.tokens, C = a.s.channels, K = a.s.n * C;
	const int64_t c0 = slice % p.stream_slices * p.slice;
	const int64_t end = c0 + p.slice < C ? c0 + p.slice : C;
	const int column = threadIdx.x % LANES * 8, first = threadIdx.x / LANES;
	const int pieces = (int)((end - c0 + KT - 1) / KT);
	const uint16_t *const x = (const uint16_t *)a.x.data +
				  offset(a.x, t0 + first, i, c0 + column);
	const uint16_t *const w = p.terms + (row0 + first) * K + i * C + c0 + column;
	float sum[MT][NT][4] = {}, squares[X] = {};

	const auto load = [&](int piece) {
		uint32_t *const to = memory + piece % STAGES * STAGE + first * PITCH + column / 2;
		const bool in = c0 + piece * KT + column < end;

#pragma unroll
		for (int j = 0; j < X; j++) {
			const bool some = in && t0 + first + j * STEP < T;

			cp_async_zfill(shared_address(to + j * STEP * PITCH),
				       some ? x + j * STEP * a.x.token + piece * KT :
					      (const uint16_t *)a.x.data,
				       some ? 16 : 0);
		}
#pragma unroll
		for (int j = 0; j < 2 * W; j++) {
			const int term = j / W, row = first + j % W * STEP;
			const bool some = in && row0 + row < limit && row0 + row < p.rows;

			if (ROWS % STEP == 0 || row < ROWS)
				cp_async_zfill(shared_address(to + (TOKENS + term * ROWS +
								    j % W * STEP) * PITCH),
					       some ? w + (term * p.rows + j % W * STEP) * K +
							      piece * KT :
						      p.terms,
					       some ? 16 : 0);
		}
	};

	pdl_launch_dependents();
	pdl_wait();
#pragma unroll
	for (int piece = 0; piece < STAGES - 1; piece++) {
		if (piece < pieces)
			load(piece);
		cp_async_commit();
	}
	for (int piece = 0; piece < pieces; piece++) {
		const uint32_t *const tile = memory + piece % STAGES * STAGE;
		const uint32_t *const xs = tile + wm * 16 * MT * PITCH;
		const uint32_t *const ws = tile + (TOKENS + wn * 8 * NT) * PITCH;

		cp_async_wait<STAGES - 2>();
		__syncthreads();
		if (piece + STAGES - 1 < pieces)
			load(piece + STAGES - 1);
		cp_async_commit();
#pragma unroll
		for (int j = 0; row0 == 0 && j < X; j++) {
			raw8 r;
			float v[8];

			shared_load(r.w, shared_address(tile + (first + j * STEP) * PITCH +
							column / 2));
			widen_raw<DT>(v, r);
#pragma unroll
			for (int e = 0; e < 8; e++)
				squares[j] = fmaf(v[e], v[e], squares[j]);
		}
#pragma unroll
		for (int k = 0; k < KT / 16; k++) {
			uint32_t high[MT][4];

			load_rows<MT, PITCH>(high, xs + k * 8);
#pragma unroll
			for (int tile = 0; tile < NT; tile += NT % 3 == 0 ? 3 : NT)
				multiply_add<DT, 1, 2, MT, NT % 3 == 0 ? 3 : NT, PITCH>(
					sum[0] + tile, NT, high, high, ws + k * 8 + tile * 8 * PITCH,
					PLANE);
		}
	}
	cp_async_wait_all();
#pragma unroll
	for (int j = 0; row0 == 0 && j < X; j++) {
		const int64_t t = t0 + first + j * STEP;
		const float square = warp_sum<LANES>(squares[j]);

		if (column == 0 && t < T)
			p.squares[slice * T + t] = square;
	}
#pragma unroll
	for (int e = 0; e < MT * NT * 2; e++) {
		const int m = e / (NT * 2), tile = e / 2 % NT, h = e % 2;
		const int64_t t = t0 + (wm * MT + m) * 16 + h * 8 + lane / 4;
		const int row = row0 + (wn * NT + tile) * 8 + lane % 4 * 2;

		if (t < T && row < limit)
			*(float2 *)(p.partial + (slice * T + t) * p.pitch + row) =
				{sum[m][tile][h * 2], sum[m][tile][h * 2 + 1]};
	}
}

#define MANY(name, DT, NT) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_MANY_THREADS) \
		mhc_gated_down_##name(const __grid_constant__ hzi_mhc_gated_job p) \
	{ \
		gated_down_many<DT, NT>(p); \
	}

MANY(many_f16, HZ_F16, HZI_MHC_MANY_ROWS / 16)
MANY(many_bf16, HZ_BF16, HZI_MHC_MANY_ROWS / 16)
MANY(narrow_f16, HZ_F16, HZI_MHC_NARROW_ROWS / 16)
MANY(narrow_bf16, HZ_BF16, HZI_MHC_NARROW_ROWS / 16)

/* ---- Hidden numbers -------------------------------------------------------------------------- */

/* A block has a token, a thread a row of the weights or the squares of a stream. */
extern "C" __global__ void __launch_bounds__(HZI_MHC_GATED_RANK + 32)
	mhc_gated_hidden(const __grid_constant__ hzi_mhc_gated_job p)
{
	__shared__ float memory[32], kept[HZI_MHC_STREAMS], rho[HZI_MHC_STREAMS];
	__shared__ float factor[HZI_MHC_GATED_SLICES];
	const hzi_mhc_gated_args &a = p.a;
	const int n = a.s.n, row = threadIdx.x, stream = row - p.rows;
	const int64_t t = blockIdx.x, T = a.s.tokens;
	const float share = 1.0f / (float)n;
	const int64_t step = T * p.pitch;
	const float *const src = p.partial + t * p.pitch + row;
	float ahead[HZI_MHC_GATED_AHEAD], z = 0, slope;

	pdl_launch_dependents();
	pdl_wait();
#pragma unroll
	for (int s = 0; s < HZI_MHC_GATED_AHEAD; s++)
		ahead[s] = row < p.rows && s < p.slices ? src[s * step] : 0;
	if (stream >= 0 && stream < n) {
		const float *const squares = p.squares + (int64_t)stream * p.stream_slices * T + t;
		float sum = 0;

#pragma unroll 8
		for (int s = 0; s < p.stream_slices; s++)
			sum += squares[s * T];
		kept[stream] = sum / (float)a.s.channels;
	}
	__syncthreads();
	for (int i = 0; i < n; i++) {
		const float square = kept[i];

		if (!hzi_mhc_leaves_f32(square, hzi_mhc_least_square(&a.rule)))
			continue;

		const float squares = wide_square(a, t, i, square, memory);

		if (threadIdx.x == 0)
			kept[i] = squares;
		__syncthreads();
	}
	if (threadIdx.x < n) {
		rho[threadIdx.x] = roots_of(a.rule, kept[threadIdx.x], slope);
		p.roots[t * n + threadIdx.x] = rho[threadIdx.x];
	}
	__syncthreads();
	for (int s = threadIdx.x; s < p.slices; s += blockDim.x)
		factor[s] = rho[s / p.stream_slices];
	__syncthreads();
#pragma unroll
	for (int s = 0; s < HZI_MHC_GATED_AHEAD; s++) {
		if (s < p.slices)
			z = fmaf(factor[s], ahead[s], z);
	}
	for (int s = HZI_MHC_GATED_AHEAD; s < p.slices && row < p.rows; s++)
		z = fmaf(factor[s], src[s * step], z);
	z *= p.scales && row < p.rows ? p.scales[row] * share : share;
	if (row < a.rank) {
		uint32_t low;
		const uint32_t high = split_weights(z * hzi_mhc_sigma(z, &slope), 0, low);

		p.hidden[t * a.rank + row] = (uint16_t)high;
		p.hidden[(T + t) * a.rank + row] = (uint16_t)low;
	} else if (row < p.rows && a.q.data) {
		*coef_at(a.q, t, row - (int)a.rank, 0) =
			fmaf(a.rule.q_scale, hzi_mhc_sigma(z, &slope), a.rule.q_eps);
	}
}

/* ---- Gates and their sums -------------------------------------------------------------------- */

/* COUNT contiguous values, 2 or 8, aligned to as many */
template <int DT, int COUNT>
HZ_DEVICE void load_some(float *v, const void *p, int64_t at)
{
	if constexpr (COUNT == 8) {
		raw8 r;

		load_raw<DT == HZ_F32>(r, (const char *)p + at * (DT == HZ_F32 ? 4 : 2));
		widen_raw<DT>(v, r);
	} else if constexpr (DT == HZ_F32) {
		const float2 pair = *(const float2 *)((const float *)p + at);

		v[0] = pair.x, v[1] = pair.y;
	} else {
		unpack(DT, *(const uint32_t *)((const uint16_t *)p + at), v[0], v[1]);
	}
}

template <int DT, int COUNT>
HZ_DEVICE void store_some(void *p, int64_t at, const float *v)
{
	if constexpr (DT == HZ_F32) {
		float2 *const to = (float2 *)((float *)p + at);

#pragma unroll
		for (int e = 0; e < COUNT; e += 2)
			to[e / 2] = {v[e], v[e + 1]};
	} else if constexpr (COUNT == 8) {
		*(uint4 *)((uint16_t *)p + at) = pack_eight<DT>(v);
	} else {
		*(uint32_t *)((uint16_t *)p + at) = DT == HZ_F16 ? to_f16x2(v[0], v[1]) :
								   to_bf16x2(v[0], v[1]);
	}
}

/*
 * Copies contiguous rows of 16-byte vectors to shared memory, row r to place(r); 0 from `valid` on.
 * The vectors of a thread are THREADS apart.
 */
template <int THREADS>
struct row_copy {
	int vectors, row, vector, rows_apart, vectors_apart;

	__device__ __forceinline__ row_copy(int vectors_)
		: vectors(vectors_), row(threadIdx.x / vectors_), vector(threadIdx.x % vectors_),
		  rows_apart(THREADS / vectors_), vectors_apart(THREADS % vectors_)
	{
	}

	template <class PLACE>
	__device__ __forceinline__ void copy(uint32_t to, const char *src, int rows, int valid,
					     int pitch, PLACE place) const
	{
		int r = row, v = vector;

		src += threadIdx.x * 16;
		for (; r < rows; src += THREADS * 16) {
			const bool in = r < valid;

			cp_async_zfill(to + (place(r) * pitch + v * 4) * 4,
				       in ? src : src - r * vectors * 16, in ? 16 : 0);
			r += rows_apart;
			v += vectors_apart;
			if (v >= vectors) {
				v -= vectors;
				r++;
			}
		}
	}
};

/*
 * A lane's columns of NT tiles of 8 are 2 NT contiguous channels: column 2 l + e of tile j is
 * channel 2 NT l + 2 j + e, and that row of the weights is in row 8 j + 2 l + e of shared memory.
 */
template <int MT, int NT, int WM, int WN, int STAGES, int WT>
HZ_DEVICE void gated_up(const hzi_mhc_gated_job &p)
{
	constexpr int TOKENS = 16 * MT * WM, CHANNELS = 8 * NT * WN, THREADS = 32 * WM * WN;
	constexpr int SIZE = WT == HZ_F32 ? 4 : 2, COUNT = 2 * NT;
	extern __shared__ __align__(16) uint32_t memory[];
	__shared__ float roots[TOKENS][HZI_MHC_STREAMS];
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp % WM, wn = warp / WM;
	const int n = a.s.n, rank = (int)a.rank, pitch = HZI_MHC_PITCH(rank);
	const int w_pitch = WT == HZ_F32 ? HZI_MHC_PITCH_F32(rank) : pitch;
	const int64_t T = a.s.tokens, C = a.s.channels;
	const int64_t t0 = (int64_t)(blockIdx.x / p.splits) * TOKENS;
	const int64_t first = (int64_t)(blockIdx.x % p.splits) * p.chunks * CHANNELS;
	const int left = (int)((C - first + CHANNELS - 1) / CHANNELS);
	const int steps = (left < p.chunks ? left : p.chunks) * n, plane = TOKENS * pitch;
	uint32_t *const hidden = memory, *const weights = memory + 2 * plane;
	const float share = 1.0f / (float)n;
	float sum[MT][NT][4], u[MT][NT][4];

	const row_copy<THREADS> weight_rows(rank * SIZE / 16), hidden_rows(rank / 8);
	int next = 0;			/* stream of the next tile to load, */
	int64_t next_c = first;		/* and its first channel */

	const auto load_weights = [&](int stage) {
		const int64_t at = next * C + next_c, valid = C - next_c;

		weight_rows.copy(
			shared_address(weights + stage * CHANNELS * w_pitch),
			(const char *)a.w_up + at * rank * SIZE, CHANNELS,
			valid < CHANNELS ? (int)valid : CHANNELS, w_pitch, [](int channel) {
				const int in = channel % (8 * NT), k = in % COUNT;

				return channel - in + k / 2 * 8 + in / COUNT * 2 + k % 2;
			});
		for (int t = threadIdx.x; t < TOKENS && t0 + t < T; t += THREADS)
			prefetch_l2((const char *)a.x.data + offset(a.x, t0 + t, next, next_c) *
				    (a.s.dtype == HZ_F32 ? 4 : 2));
		if (++next == n) {
			next = 0;
			next_c += CHANNELS;
		}
	};

	int64_t c = first + wn * 8 * NT + lane % 4 * COUNT;
	/* Few channels of a thread are loaded a step ahead. */
	float ahead[MT * 2][COUNT];
	const auto load_ahead = [&](int i) {
		with_dtype(a.s.dtype, [&](auto dtype) {
#pragma unroll
			for (int e = 0; e < MT * 2; e++) {
				const int64_t t = t0 + (wm * MT + e / 2) * 16 + e % 2 * 8 + lane / 4;

				if (t < T && c < C)
					load_some<dtype.value, COUNT>(ahead[e], a.x.data,
								      offset(a.x, t, i, c));
			}
		});
	};

#pragma unroll 1
	for (int step = 0; step < STAGES; step++) {
		if (step < steps)
			load_weights(step);
		cp_async_commit();
	}
	if (NT == 1)
		load_ahead(0);
	pdl_launch_dependents();
	pdl_wait();
	for (int second = 0; second < 2; second++)
		hidden_rows.copy(shared_address(hidden + second * plane),
				 (const char *)(p.hidden + (second * T + t0) * rank), TOKENS,
				 T - t0 < TOKENS ? (int)(T - t0) : TOKENS, pitch,
				 [](int token) { return token; });
	cp_async_commit();
	for (int t = threadIdx.x; t < TOKENS && t0 + t < T; t += THREADS) {
		for (int i = 0; i < n; i++)
			roots[t][i] = p.roots[(t0 + t) * n + i];
	}

	const uint32_t row = shared_address(hidden + (wm * 16 * MT + lane % 16) * pitch +
					    lane / 16 * 4);

	for (int step = 0, i = 0, stage = 0; step < steps; step++) {
		const uint32_t *const tile0 = weights + (stage * CHANNELS + wn * 8 * NT) * w_pitch;
		const uint32_t *const w = tile0 + lane / 4 * w_pitch;
		/* Of bf16: both halves of the steps of two tiles */
		const uint32_t w_matrices = shared_address(tile0 + (lane % 8 + lane / 16 * 8) *
							   w_pitch + lane / 8 % 2 * 4);

		if (step == 0)
			cp_async_wait<0>();
		else
			cp_async_wait<STAGES - 1>();
		__syncthreads();
#pragma unroll
		for (int e = 0; e < MT * NT * 4; e++) {
			sum[e / 4 / NT][e / 4 % NT][e % 4] = 0;
			if (i == 0)
				u[e / 4 / NT][e / 4 % NT][e % 4] = 0;
		}
#pragma unroll 2
		for (int k = 0; k < rank / 16; k++) {
			uint32_t high[MT][4], low[MT][4], b[NT][2], rest[NT][2], r[4];

#pragma unroll
			for (int m = 0; m < MT; m++) {
				ldmatrix_x4(high[m], row + (m * 16 * pitch + k * 8) * 4);
				ldmatrix_x4(low[m], row + (m * 16 * pitch + k * 8 + plane) * 4);
			}
#pragma unroll
			for (int tile = 0; tile < NT; tile++) {
				const uint32_t *const src = w + tile * 8 * w_pitch;

				if constexpr (WT == HZ_BF16) {
					if (NT == 1) {
						r[0] = src[k * 8 + lane % 4];
						r[1] = src[k * 8 + 4 + lane % 4];
					} else if (tile % 2 == 0) {
						ldmatrix_x4(r, w_matrices +
								(tile * 8 * w_pitch + k * 8) * 4);
					}
#pragma unroll
					for (int h = 0; h < 2; h++) {
						b[tile][h] = r[tile % 2 * 2 + h];
						rest[tile][h] = finite_pair(b[tile][h]);
					}
				} else {
#pragma unroll
					for (int h = 0; h < 2; h++) {
						const int pair = k * 8 + h * 4 + lane % 4;
						float v[2];

						if constexpr (WT == HZ_F32) {
							const float2 f = *(const float2 *)(src + pair * 2);

							v[0] = f.x, v[1] = f.y;
						} else {
							unpack(HZ_F16, src[pair], v[0], v[1]);
						}
						b[tile][h] = split_weights(v[0], v[1],
									   rest[tile][h]);
					}
				}
			}
			/* Products of the same sums are far apart: each waits for the one before. */
#pragma unroll
			for (int e = 0; e < MT * NT; e++)
				mma_m16n8k16<HZ_BF16>(sum[e % MT][e / MT], high[e % MT],
						      b[e / MT][0], b[e / MT][1]);
#pragma unroll
			for (int e = 0; WT != HZ_BF16 && e < MT * NT; e++)
				mma_m16n8k16<HZ_BF16>(sum[e % MT][e / MT], high[e % MT],
						      rest[e / MT][0], rest[e / MT][1]);
#pragma unroll
			for (int e = 0; e < MT * NT; e++) {
				const uint32_t *const v = WT == HZ_BF16 ? rest[e / MT] : b[e / MT];

				mma_m16n8k16<HZ_BF16>(sum[e % MT][e / MT], low[e % MT], v[0], v[1]);
			}
		}
		if (steps > STAGES)
			__syncthreads();
		if (step + STAGES < steps)
			load_weights(stage);
		cp_async_commit();

		const auto add = [&](auto dtype) {
			constexpr int DT = dtype.value;
			float gain[COUNT];

#pragma unroll
			for (int e = 0; e < COUNT; e++)
				gain[e] = 1;
			if (a.gain)
				load_some<HZ_F32, COUNT>(gain, a.gain, i * C + c);
#pragma unroll
			for (int e = 0; e < MT * 2; e++) {
				const int m = e / 2, h = e % 2;
				const int token = (wm * MT + m) * 16 + h * 8 + lane / 4;
				const int64_t t = t0 + token;
				float x[COUNT], rho;

				if (t >= T)
					continue;
				rho = roots[token][i];
				if constexpr (NT > 1)
					load_some<DT, COUNT>(x, a.x.data, offset(a.x, t, i, c));
#pragma unroll
				for (int k = 0; k < COUNT; k++) {
					if (NT == 1)
						x[k] = ahead[e][k];

					float &to = u[m][k / 2][h * 2 + k % 2];

					to = fmaf(gate_of(sum[m][k / 2][h * 2 + k % 2]),
						  x[k] * (rho * gain[k]), to);
				}
				if (i < n - 1)
					continue;
#pragma unroll
				for (int k = 0; k < COUNT; k++)
					x[k] = u[m][k / 2][h * 2 + k % 2] * share;
				store_some<DT, COUNT>(a.u.data, offset(a.u, t, 0, c), x);
			}
		};

		if (c < C)
			with_dtype(a.s.dtype, add);
		__syncwarp();
		stage = stage + 1 == STAGES ? 0 : stage + 1;
		if (++i == n) {
			i = 0;
			c += CHANNELS;
		}
		if (NT == 1 && step + 1 < steps)
			load_ahead(i);
	}
}

#define UP_DTYPE(name, MT, NT, WM, WN, STAGES, BLOCKS, suffix, WT) \
	extern "C" __global__ void __launch_bounds__(32 * WM * WN, BLOCKS) \
		mhc_gated_up_##name##_##suffix(const __grid_constant__ hzi_mhc_gated_job p) \
	{ \
		gated_up<MT, NT, WM, WN, STAGES, WT>(p); \
	}
#define UP(name, MT, NT, WM, WN, STAGES, BLOCKS) \
	UP_DTYPE(name, MT, NT, WM, WN, STAGES, BLOCKS, f32, HZ_F32) \
	UP_DTYPE(name, MT, NT, WM, WN, STAGES, BLOCKS, f16, HZ_F16) \
	UP_DTYPE(name, MT, NT, WM, WN, STAGES, BLOCKS, bf16, HZ_BF16)

HZI_MHC_UP_TILES(UP)
