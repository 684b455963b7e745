/*
 * coef_splitk.cu - coefficients and branch inputs of four 16-bit streams in two launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Latency bounds these kernels. In the first a block has 64 tokens and a split of the columns, of
 * which a warp has 64 at a time: it requests their phi and x before it uses the first. In the
 * second a block has up to 8 tokens and adds up their splits; then some warps make coefficients, a
 * token at a time, while the others make u.
 *
 * The order of summation is fixed: columns of a warp, warps, splits.
 */
#define HZI_MHC_COMMON_RULES
#include "gpu/mhc/coef_lanes.cuh"
#include "gpu/mhc/coef_splitk.h"
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"

#define THREADS HZI_MHC_SPLITK_THREADS
#define WARPS (THREADS / 32)
#define TOKENS HZI_MHC_SPLITK_TOKENS
#define CHUNK HZI_MHC_SPLITK_CHUNK
#define ROW HZI_MHC_SPLITK_ROW
#define VECTORS (ROW / 4)
#define TILES (HZI_MHC_FOUR_ROWS / 8)	/* of 8 rows of phi */

HZ_DEVICE void add4(float4 &to, const float4 &v)
{
	to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w;
}

/* ---- Projection ------------------------------------------------------------------------------ */

/*
 * phi of a chunk: rows lane / 4 of each tile, twice 8 contiguous channels, of which a step of mma
 * uses 4. The columns of x are assigned alike.
 */
struct phi_of_chunk {
	float4 v[TILES][4];

	__device__ __forceinline__ void load(const hzi_mhc_splitk &p, int stream, int64_t c0)
	{
		const int lane = threadIdx.x % 32;

#pragma unroll
		for (int i = 0; i < TILES; i++) {
#pragma unroll
			for (int step = 0; step < 4; step++) {
				const int row = i * 8 + lane / 4;
				const int64_t c = c0 + step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;

				v[i][step] = {};
				if (row < p.rule.m && c < p.channels)
					v[i][step] = *(const float4 *)
						(p.phi + (row * 4 + stream) * p.channels + c);
			}
		}
	}

	__device__ __forceinline__ void scale(const hzi_mhc_splitk &p, int stream, int64_t c0)
	{
		for (int step = 0; p.gain && step < 4; step++) {
			const int64_t c = c0 + step / 2 * 32 + threadIdx.x % 4 * 8 + step % 2 * 4;
			float4 gain = {};

			if (c < p.channels)
				gain = *(const float4 *)(p.gain + stream * p.channels + c);
#pragma unroll
			for (int i = 0; i < TILES; i++) {
#pragma unroll
				for (int at = 0; at < 4; at++) {
					if (at != step)
						continue;
					v[i][at].x *= gain.x, v[i][at].y *= gain.y;
					v[i][at].z *= gain.z, v[i][at].w *= gain.w;
				}
			}
		}
	}
};

/* Pairs of channels of a piece as bf16, and remainders if x is f16 */
template <int DT>
HZ_DEVICE void split_piece(const uint4 &raw, uint32_t *high, uint32_t *low)
{
	const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
	for (int e = 0; e < 4; e++)
		high[e] = DT == HZ_F16 ? split_pair(f16_low(w[e]), f16_high(w[e]), low[e]) : w[e];
}

/*
 * Prefetches x and phi of a chunk to L2, 128 bytes of each row a lane: the previous kernel may still
 * write them.
 */
HZ_DEVICE void prefetch_chunk(const hzi_mhc_splitk &p, int64_t first, int stream, int64_t c0)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < TOKENS; i += 32) {
		if (first + i + lane < p.tokens)
			prefetch_l2((const uint16_t *)p.x.data +
				    offset(p.x, first + i + lane, stream, c0));
	}
#pragma unroll
	for (int i = 0; i < 2 * HZI_MHC_FOUR_ROWS; i += 32) {
		const int row = (i + lane) / 2;
		const int64_t c = c0 + lane % 2 * 32;

		if (row < p.rule.m && c < p.channels)
			prefetch_l2(p.phi + (row * 4 + stream) * p.channels + c);
	}
}

template <int DT>
HZ_DEVICE void splitk_project(const hzi_mhc_splitk &p)
{
	extern __shared__ float4 shared[];
	float (*sums)[TOKENS][ROW] = (float (*)[TOKENS][ROW])shared;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int chunks = (int)((p.channels + CHUNK - 1) / CHUNK);
	const int begin = 4 * chunks * blockIdx.y / p.splits;
	const int end = 4 * chunks * (blockIdx.y + 1) / p.splits;
	const int64_t first = (int64_t)blockIdx.x * TOKENS;
	float sum[TOKENS / 16][TILES][4] = {}, squares[TOKENS / 8] = {};

	if (begin + warp < end)
		prefetch_chunk(p, first, (begin + warp) / chunks, (begin + warp) % chunks * CHUNK);
	pdl_wait();
	pdl_launch_dependents();
	for (int chunk = begin + warp; chunk < end; chunk += WARPS) {
		const int stream = chunk / chunks;
		const int64_t c0 = chunk % chunks * CHUNK;
		uint4 x[TOKENS / 8][2];
		phi_of_chunk phi;

#pragma unroll
		for (int r = 0; r < TOKENS / 8; r++) {
			const int64_t t = first + r * 8 + lane / 4;

#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int64_t c = c0 + e * 32 + lane % 4 * 8;

				x[r][e] = {};
				if (t < p.tokens && c < p.channels)
					x[r][e] = *(const uint4 *)((const uint16_t *)p.x.data +
								   offset(p.x, t, stream, c));
			}
		}
		phi.load(p, stream, c0);
		phi.scale(p, stream, c0);
#pragma unroll
		for (int e = 0; e < 2; e++) {
			uint4 b[TILES][2];	/* two terms of 4 channels */

#pragma unroll
			for (int i = 0; i < TILES; i++) {
#pragma unroll
				for (int half = 0; half < 2; half++) {
					const float4 v = phi.v[i][e * 2 + half];
					uint4 &to = b[i][half];

					to.x = split_weights(v.x, v.y, to.z);
					to.y = split_weights(v.z, v.w, to.w);
				}
			}
#pragma unroll
			for (int tile = 0; tile < TOKENS / 16; tile++) {
				uint32_t high[2][4], low[2][4];

#pragma unroll
				for (int r = 0; r < 2; r++) {
					const uint4 &raw = x[tile * 2 + r][e];
					const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
					float &square = squares[tile * 2 + r];

					split_piece<DT>(raw, high[r], low[r]);
#pragma unroll
					for (int i = 0; i < 4; i++) {
						float v, next;

						unpack(DT, w[i], v, next);
						square = fmaf(v, v, square);
						square = fmaf(next, next, square);
					}
				}
#pragma unroll
				for (int half = 0; half < 2; half++) {
					const int h = half * 2;
					const uint32_t a[4] = {high[0][h], high[1][h],
							       high[0][h + 1], high[1][h + 1]};
					const uint32_t remainder[4] = {low[0][h], low[1][h],
								       low[0][h + 1],
								       low[1][h + 1]};

#pragma unroll
					for (int i = 0; i < TILES; i++) {
						float *const to = sum[tile][i];
						const uint4 w = b[i][half];

						mma_m16n8k16<HZ_BF16>(to, a, w.z, w.w);
						if (DT == HZ_F16)
							mma_m16n8k16<HZ_BF16>(to, remainder, w.x,
									      w.y);
						mma_m16n8k16<HZ_BF16>(to, a, w.x, w.y);
					}
				}
			}
		}
	}
#pragma unroll
	for (int r = 0; r < TOKENS / 8; r++) {
		float *const to = sums[warp][r * 8 + lane / 4];
		const float square = warp_sum<4>(squares[r]);

#pragma unroll
		for (int i = 0; i < TILES; i++)
			*(float2 *)(to + i * 8 + lane % 4 * 2) = {sum[r / 2][i][r % 2 * 2],
								  sum[r / 2][i][r % 2 * 2 + 1]};
		if (lane % 4 == 0)
			*(float4 *)(to + HZI_MHC_FOUR_ROWS) = {square, 0, 0, 0};
	}
	__syncthreads();
	for (int i = threadIdx.x; i < TOKENS * VECTORS; i += THREADS) {
		const int64_t t = first + i / VECTORS;
		float4 all = shared[i];

#pragma unroll
		for (int w = 1; w < WARPS; w++)
			add4(all, shared[w * (TOKENS * VECTORS) + i]);
		if (t < p.tokens)
			((float4 *)p.sums)[(blockIdx.y * p.tokens + t) * VECTORS + i % VECTORS] =
				all;
	}
}

/* ---- Coefficients and branch inputs ---------------------------------------------------------- */

#define ADDERS 32			/* per vector of sums; VECTORS ADDERS threads add */
#define MAKERS 2			/* warps that make coefficients, at most */
#define AHEAD 3				/* pieces of x that a thread requests at a time */

template <int DT>
HZ_DEVICE void splitk_finish(const hzi_mhc_splitk &p)
{
	__shared__ float4 parts[ADDERS][VECTORS], gates[HZI_MHC_SPLITK_FINISHED];
	__shared__ float sums[HZI_MHC_SPLITK_FINISHED][ROW];
	const int64_t first = (int64_t)blockIdx.x * p.finished, left = p.tokens - first;
	const int tokens = (int)(left < p.finished ? left : p.finished);
	const int makers = p.finished < MAKERS ? p.finished : MAKERS;
	const int eights = (int)(p.channels / 8), all = p.u.data ? tokens * eights : 0;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int i = threadIdx.x - makers * 32, mixers = THREADS - makers * 32;
	float alpha = 0, bias = 0;
	uint4 x[AHEAD][4];

	auto load = [&](uint4 *v, int at) {
		const int64_t from = offset(p.x, first + at / eights, 0, at % eights * 8);

#pragma unroll
		for (int s = 0; s < 4; s++)
			v[s] = *(const uint4 *)((const uint16_t *)p.x.data + from +
						s * p.x.stream);
	};

	pdl_launch_dependents();
	/* Inputs were complete before the first launch let this one start. */
	if (i < 0 && lane < p.rule.m) {
		alpha = hzi_mhc_alpha(p.alpha, hzi_mhc_part(4, lane));
		bias = p.bias[lane];
	}
#pragma unroll
	for (int e = 0; e < AHEAD; e++) {
		if (i >= 0 && i + e * mixers < all)
			load(x[e], i + e * mixers);
	}
	pdl_wait();
	if (threadIdx.x < ADDERS * VECTORS) {
		const int adder = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
		const int t = adder % p.finished, step = ADDERS / p.finished;
		float4 sum = {};

#pragma unroll 4
		for (int s = adder / p.finished; t < tokens && s < p.splits; s += step)
			add4(sum, ((const float4 *)p.sums)[(s * p.tokens + first + t) * VECTORS +
							   vector]);
		parts[adder][vector] = sum;
	}
	__syncthreads();
	if (threadIdx.x < p.finished * ROW) {
		const int t = threadIdx.x / ROW, k = threadIdx.x % ROW;
		float sum = 0;

#pragma unroll 4
		for (int adder = t; adder < ADDERS; adder += p.finished)
			sum += ((const float *)parts[adder])[k];
		if (k == HZI_MHC_FOUR_ROWS && t < tokens)
			sum = square_of(p, sum / (float)(4 * p.channels), first + t);
		sums[t][k] = sum;
		if (p.saved && t < tokens && (k < p.rule.m || k == HZI_MHC_FOUR_ROWS))
			p.saved[(first + t) * (p.rule.m + 1) + min(k, p.rule.m)] = sum;
	}
	__syncthreads();
	if (i < 0) {
#pragma unroll 1
		for (int t = warp; t < tokens; t += MAKERS) {
			const float square = sums[t][HZI_MHC_FOUR_ROWS];
			const float z = z_of_lanes(p, lane < HZI_MHC_FOUR_ROWS ? sums[t][lane] : 0,
						   square, alpha, bias);

			gates_of_lanes<32>(p, first + t, true, z, [&](float a, float b, float c, float d) {
				gates[t] = {a, b, c, d};
			});
			if (lane < HZI_MHC_FOUR_ROWS)
				sums[t][lane] = z;
		}
		bar_arrive(1, THREADS);
#pragma unroll 1
		for (int t = warp; p.a.data && p.rule.m > 4 && t < tokens; t += MAKERS)
			matrix_of_lanes(p, first + t, lane < 16,
					__shfl_sync(0xffffffff,
						    lane < HZI_MHC_FOUR_ROWS ? sums[t][lane] : 0,
						    row_of_lane(p.rule)));
		return;
	}
	bar_sync(1, THREADS);
#pragma unroll 1
	for (int at = i; at < all; at += AHEAD * mixers) {
#pragma unroll
		for (int e = 0; e < AHEAD; e++) {
			const int own = at + e * mixers;
			float weight[4], u[8] = {};

			if (own >= all)
				break;
			*(float4 *)weight = gates[own / eights];
#pragma unroll
			for (int s = 0; s < 4; s++) {
				const uint32_t v[4] = {x[e][s].x, x[e][s].y, x[e][s].z, x[e][s].w};

#pragma unroll
				for (int k = 0; k < 4; k++) {
					float a, b;

					unpack(DT, v[k], a, b);
					u[k * 2] = s ? fmaf(weight[s], a, u[k * 2]) : weight[0] * a;
					u[k * 2 + 1] = s ? fmaf(weight[s], b, u[k * 2 + 1]) :
							   weight[0] * b;
				}
			}
			*(uint4 *)((uint16_t *)p.u.data +
				   offset(p.u, first + own / eights, 0, own % eights * 8)) =
				pack_eight<DT>(u);
			if (own + AHEAD * mixers < all)
				load(x[e], own + AHEAD * mixers);
		}
	}
}

#define KERNELS(type, dtype) \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) \
		mhc_coef_splitk_project_##type(const __grid_constant__ hzi_mhc_splitk p) \
	{ \
		splitk_project<dtype>(p); \
	} \
	extern "C" __global__ void __launch_bounds__(THREADS, 2) \
		mhc_coef_splitk_finish_##type(const __grid_constant__ hzi_mhc_splitk p) \
	{ \
		splitk_finish<dtype>(p); \
	}

KERNELS(f16, HZ_F16)
KERNELS(bf16, HZ_BF16)
