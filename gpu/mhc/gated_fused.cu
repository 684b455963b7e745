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
 * words after the first.
 */
template <int XP, int WP, int MT, int NT, int PITCH>
HZ_DEVICE void multiply_add(float (*sum)[NT][4], const uint32_t *a, int a_plane, const uint32_t *b,
			    int b_plane)
{
	const int lane = threadIdx.x % 32;
	const uint32_t at = shared_address(a + lane % 16 * PITCH + lane / 16 * 4);
	const uint32_t *const w = b + lane / 4 * PITCH + lane % 4;
	uint32_t high[MT][4], low[XP == 2 ? MT : 1][4];

#pragma unroll
	for (int m = 0; m < MT; m++) {
		ldmatrix_x4(high[m], at + m * 16 * PITCH * 4);
		if constexpr (XP == 2)
			ldmatrix_x4(low[m], at + (m * 16 * PITCH + a_plane) * 4);
	}
#pragma unroll
	for (int tile = 0; tile < NT; tile++) {
		const uint32_t *const v = w + tile * 8 * PITCH;
		const uint32_t b0 = v[0], b1 = v[4];

#pragma unroll
		for (int m = 0; m < MT; m++)
			mma_m16n8k16<HZ_BF16>(sum[m][tile], high[m], b0, b1);
		if constexpr (WP == 2) {
			const uint32_t c0 = v[b_plane], c1 = v[b_plane + 4];

#pragma unroll
			for (int m = 0; m < MT; m++)
				mma_m16n8k16<HZ_BF16>(sum[m][tile], high[m], c0, c1);
		}
		if constexpr (XP == 2) {
#pragma unroll
			for (int m = 0; m < MT; m++)
				mma_m16n8k16<HZ_BF16>(sum[m][tile], low[m], b0, b1);
		}
	}
}

/* A block: 16 MT WM tokens, 8 NT WN rows, one slice, in pieces of KT channels that WK warps share */
template <int MT, int NT, int WM, int WN, int WK, int KT>
HZ_DEVICE void gated_down(const hzi_mhc_gated_job &p)
{
	constexpr int TOKENS = 16 * MT * WM, ROWS = 8 * NT * WN, PITCH = HZI_MHC_PITCH(KT);
	constexpr int LANES = KT / 8, STEP = HZI_MHC_DOWN_THREADS / LANES;
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

	const auto load = [&](int64_t c) {
		c += column;
#pragma unroll
		for (int j = 0; j < X; j++) {
			const int64_t t = t0 + first + j * STEP;

			clear_raw(x[j]);
			if (t < T && c < end)
				load_raw(x[j], a.x.data, a.s.dtype, offset(a.x, t, i, c));
		}
#pragma unroll
		for (int j = 0; j < W; j++) {
			const int row = row0 + first + j * STEP;

			clear_raw(w[j]);
			if (c >= end || row >= limit || row >= p.rows)
				continue;
			if (row < a.rank)
				load_raw(w[j], a.w_down, a.down_dtype, row * K + i * C + c);
			else
				load_raw(w[j], a.w_q, a.q_dtype, (row - a.rank) * K + i * C + c);
		}
		if (a.gain && c < end) {
			const float4 *const g = (const float4 *)(a.gain + i * C + c);
			const float4 low = g[0], high = g[1];

			gain[0] = low.x, gain[1] = low.y, gain[2] = low.z, gain[3] = low.w;
			gain[4] = high.x, gain[5] = high.y, gain[6] = high.z, gain[7] = high.w;
		}
	};
	const auto store = [&](uint32_t *to) {
		float v[8];

#pragma unroll
		for (int j = 0; j < X; j++) {
			uint32_t *const dst = to + (first + j * STEP) * PITCH + column / 2;

			widen_raw(v, x[j], a.s.dtype);
#pragma unroll
			for (int e = 0; e < 8; e++)
				squares[j] = fmaf(v[e], v[e], squares[j]);
			if (p.x_terms == 1)
				shared_store(shared_address(dst), x[j].w);
			else
				store_terms(dst, X_PLANE, v);
		}
		to += p.x_terms * X_PLANE;
#pragma unroll
		for (int j = 0; j < W; j++) {
			const int row = first + j * STEP;
			uint32_t *const dst = to + row * PITCH + column / 2;

			if (ROWS % STEP != 0 && row >= ROWS)
				continue;
			if (p.w_terms == 1) {
				shared_store(shared_address(dst), w[j].w);
				continue;
			}
			widen_raw(v, w[j], row0 + row < a.rank ? a.down_dtype : a.q_dtype);
#pragma unroll
			for (int e = 0; a.gain && e < 8; e++)
				v[e] *= gain[e];
			store_terms(dst, W_PLANE, v);
		}
	};

#pragma unroll
	for (int e = 0; e < 8; e++)
		gain[e] = 0;
	/*
	 * mhc_gated_up reads weights and streams before it waits, so it must not start before what
	 * came before this call has ended.
	 */
	pdl_wait();
	pdl_launch_dependents();
	load(c0);
	for (int64_t c = c0, at = 0; c < end; c += KT, at ^= 1) {
		uint32_t *const tile = memory + at * buffer;
		const uint32_t *const xs = tile + wm * 16 * MT * PITCH;
		const uint32_t *const ws = tile + p.x_terms * X_PLANE + wn * 8 * NT * PITCH;

		store(tile);
		__syncthreads();
		if (c + KT < end)
			load(c + KT);
		const auto multiply = [&](auto x_terms, auto w_terms) {
#pragma unroll
			for (int k = 0; k < KT / 16 / WK; k++) {
				const int word = (k * WK + wk) * 8;

				multiply_add<x_terms.value, w_terms.value, MT, NT, PITCH>(
					sum, xs + word, X_PLANE, ws + word, W_PLANE);
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

	if constexpr (WK == 1) {
#pragma unroll
		for (int e = 0; e < MT * NT * 2; e++) {
			const int m = e / (NT * 2), tile = e / 2 % NT, h = e % 2;
			const int64_t t = t0 + (wm * MT + m) * 16 + h * 8 + lane / 4;
			const int row = row0 + (wn * NT + tile) * 8 + lane % 4 * 2;

			if (t < T && row < limit)
				*(float2 *)(p.partial + (slice * T + t) * p.pitch + row) =
					{sum[m][tile][h * 2], sum[m][tile][h * 2 + 1]};
		}
	} else {
		float *const sums = (float *)memory;

#pragma unroll
		for (int e = 0; e < MT * NT * 2; e++) {
			const int m = e / (NT * 2), tile = e / 2 % NT, h = e % 2;
			const int t = m * 16 + h * 8 + lane / 4, row = tile * 8 + lane % 4 * 2;

			*(float2 *)(sums + (wk * TOKENS + t) * ROWS + row) =
				{sum[m][tile][h * 2], sum[m][tile][h * 2 + 1]};
		}
		__syncthreads();
		for (int e = threadIdx.x; e < TOKENS * ROWS; e += HZI_MHC_DOWN_THREADS) {
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
}

#define DOWN(name, MT, NT, WM, WN, WK, KT) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_DOWN_THREADS) \
		mhc_gated_down_##name(const __grid_constant__ hzi_mhc_gated_job p) \
	{ \
		gated_down<MT, NT, WM, WN, WK, KT>(p); \
	}

HZI_MHC_DOWN_TILES(DOWN)

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
	const float channels = (float)a.s.channels, share = 1.0f / (float)n;
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
		kept[stream] = sum / channels;
	}
	__syncthreads();
	for (int i = 0; i < n; i++) {
		const float square = kept[i];

		if (!hzi_mhc_leaves_f32(square, hzi_mhc_least_square(&a.rule)))
			continue;

		const float scale = square_scale(square);
		float squares = 0;

		for (int64_t c = threadIdx.x; c < a.s.channels; c += blockDim.x) {
			const float v = load_value(a.s.dtype, a.x.data, offset(a.x, t, i, c)) *
					scale;

			squares = fmaf(v, v, squares);
		}
		squares = -sqrtf(sum_block(squares, memory) / channels) / scale;
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
	z *= share;
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

/* 1 / (1 + exp(-z)), to some 2^-22 */
HZ_DEVICE float gate_of(float z)
{
	return __fdividef(1, 1 + __expf(-z));
}

/* Inf would be NaN times the second term of a hidden number: its largest finite value instead */
HZ_DEVICE uint32_t finite_pair(uint32_t pair)
{
	return max_x2<HZ_BF16>(min_x2<HZ_BF16>(pair, 0x7f7f7f7f), 0xff7fff7f);
}

/* COUNT contiguous values, 2 or 8, aligned to as many */
template <int COUNT>
HZ_DEVICE void load_some(float *v, int dtype, const void *p, int64_t at)
{
	if constexpr (COUNT == 8) {
		raw8 r;

		load_raw(r, p, dtype, at);
		widen_raw(v, r, dtype);
	} else if (dtype == HZ_F32) {
		const float2 pair = *(const float2 *)((const float *)p + at);

		v[0] = pair.x, v[1] = pair.y;
	} else {
		unpack(dtype, *(const uint32_t *)((const uint16_t *)p + at), v[0], v[1]);
	}
}

template <int COUNT>
HZ_DEVICE void store_some(int dtype, void *p, int64_t at, const float *v)
{
	if (dtype == HZ_F32) {
		float2 *const to = (float2 *)((float *)p + at);

#pragma unroll
		for (int e = 0; e < COUNT; e += 2)
			to[e / 2] = {v[e], v[e + 1]};
	} else if constexpr (COUNT == 8) {
		*(uint4 *)((uint16_t *)p + at) = dtype == HZ_F16 ? pack_eight<HZ_F16>(v) :
								   pack_eight<HZ_BF16>(v);
	} else {
		*(uint32_t *)((uint16_t *)p + at) = dtype == HZ_F16 ? to_f16x2(v[0], v[1]) :
								      to_bf16x2(v[0], v[1]);
	}
}

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

	const auto load_weights = [&](int step) {
		const int i = step % n, vectors = rank * SIZE / 16;
		const int64_t c0 = first + (int64_t)(step / n) * CHANNELS;
		uint32_t *const to = weights + step % STAGES * CHANNELS * w_pitch;

		for (int e = threadIdx.x; e < CHANNELS * vectors; e += THREADS) {
			const int channel = e / vectors, v = e - channel * vectors;
			const int in = channel % (8 * NT), l = in / COUNT, k = in % COUNT;
			const int row = channel - in + k / 2 * 8 + l * 2 + k % 2;
			const int64_t c = c0 + channel < C ? c0 + channel : 0;

			cp_async_zfill(shared_address(to + row * w_pitch + v * 4),
				       (const char *)a.w_up + (i * C + c) * rank * SIZE + v * 16,
				       c0 + channel < C ? 16 : 0);
		}
		for (int t = threadIdx.x; t < TOKENS; t += THREADS) {
			if (t0 + t < T)
				prefetch_l2((const char *)a.x.data + offset(a.x, t0 + t, i, c0) *
					    (a.s.dtype == HZ_F32 ? 4 : 2));
		}
	};

#pragma unroll
	for (int step = 0; step < STAGES; step++) {
		if (step < steps)
			load_weights(step);
		cp_async_commit();
	}
	pdl_launch_dependents();
	pdl_wait();
	for (int e = threadIdx.x; e < 2 * TOKENS * (rank / 8); e += THREADS) {
		const int row = e / (rank / 8), v = e - row * (rank / 8);
		const int second = row >= TOKENS, token = row - second * TOKENS;
		const int64_t t = t0 + token < T ? t0 + token : 0;

		cp_async_zfill(shared_address(hidden + row * pitch + v * 4),
			       p.hidden + (second * T + t) * rank + v * 8,
			       t0 + token < T ? 16 : 0);
	}
	cp_async_commit();
	for (int e = threadIdx.x; e < TOKENS * n; e += THREADS) {
		if (t0 + e / n < T)
			roots[e / n][e % n] = p.roots[t0 * n + e];
	}
	for (int step = 0; step < steps; step++) {
		const int i = step % n, at = (wn * 8 * NT + lane / 4) * w_pitch;
		const uint32_t *const w = weights + step % STAGES * CHANNELS * w_pitch + at;
		const int64_t c = first + (int64_t)(step / n) * CHANNELS + wn * 8 * NT +
				  lane % 4 * COUNT;
		const uint32_t row = shared_address(hidden + (wm * 16 * MT + lane % 16) * pitch +
						    lane / 16 * 4);

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
			uint32_t high[MT][4], low[MT][4];

#pragma unroll
			for (int m = 0; m < MT; m++) {
				ldmatrix_x4(high[m], row + (m * 16 * pitch + k * 8) * 4);
				ldmatrix_x4(low[m], row + (m * 16 * pitch + k * 8 + plane) * 4);
			}
#pragma unroll
			for (int tile = 0; tile < NT; tile++) {
				const uint32_t *const src = w + tile * 8 * w_pitch;
				uint32_t b[2], rest[2];

				if constexpr (WT == HZ_BF16) {
#pragma unroll
					for (int h = 0; h < 2; h++) {
						b[h] = src[k * 8 + h * 4 + lane % 4];
						rest[h] = finite_pair(b[h]);
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
						b[h] = split_weights(v[0], v[1], rest[h]);
					}
				}
#pragma unroll
				for (int m = 0; m < MT; m++) {
					float *const to = sum[m][tile];

					mma_m16n8k16<HZ_BF16>(to, high[m], b[0], b[1]);
					if constexpr (WT == HZ_BF16) {
						mma_m16n8k16<HZ_BF16>(to, low[m], rest[0], rest[1]);
					} else {
						mma_m16n8k16<HZ_BF16>(to, high[m], rest[0], rest[1]);
						mma_m16n8k16<HZ_BF16>(to, low[m], b[0], b[1]);
					}
				}
			}
		}
		__syncthreads();
		if (step + STAGES < steps)
			load_weights(step + STAGES);
		cp_async_commit();
		if (c >= C)
			continue;

		float gain[COUNT];

		if (a.gain)
			load_some<COUNT>(gain, HZ_F32, a.gain, i * C + c);
#pragma unroll
		for (int e = 0; !a.gain && e < COUNT; e++)
			gain[e] = 1;
#pragma unroll
		for (int e = 0; e < MT * 2; e++) {
			const int m = e / 2, h = e % 2;
			const int token = (wm * MT + m) * 16 + h * 8 + lane / 4;
			const int64_t t = t0 + token;
			float x[COUNT], rho;

			if (t >= T)
				continue;
			rho = roots[token][i];
			load_some<COUNT>(x, a.s.dtype, a.x.data, offset(a.x, t, i, c));
#pragma unroll
			for (int k = 0; k < COUNT; k++) {
				float &to = u[m][k / 2][h * 2 + k % 2];

				to = fmaf(gate_of(sum[m][k / 2][h * 2 + k % 2]),
					  x[k] * rho * gain[k], to);
			}
			if (i < n - 1)
				continue;
#pragma unroll
			for (int k = 0; k < COUNT; k++)
				x[k] = u[m][k / 2][h * 2 + k % 2] * share;
			store_some<COUNT>(a.s.dtype, a.u.data, offset(a.u, t, 0, c), x);
		}
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
