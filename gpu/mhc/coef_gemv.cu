/*
 * coef_gemv.cu - the projection of few tokens: phi is read once for four of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Products and sums are of f32. A warp has every eighth row of phi, a lane eight contiguous
 * channels; all loads of a warp are requested before the first is used.
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/device/pdl.cuh"

#define CHANNELS HZI_MHC_COEF_GEMV_CHANNELS
#define WARPS (HZI_MHC_COEF_GEMV_THREADS / 32)
#define ROW_COUNT (HZI_MHC_COEF_GEMV_ROWS / WARPS)	/* of a warp */

/* Sums over the warp of one value, or of four, of which every eight lanes get one */
HZ_DEVICE float sum_over_warp(const float (&v)[1])
{
	return warp_sum<32>(v[0]);
}

HZ_DEVICE float sum_over_warp(const float (&v)[4])
{
	const bool high = threadIdx.x & 16, odd = threadIdx.x & 8;
	float pair[2], one;

#pragma unroll
	for (int e = 0; e < 2; e++)
		pair[e] = (high ? v[2 + e] : v[e]) +
			  __shfl_xor_sync(~0u, high ? v[e] : v[2 + e], 16);
	one = (odd ? pair[1] : pair[0]) + __shfl_xor_sync(~0u, odd ? pair[0] : pair[1], 8);
	return warp_sum<8>(one);
}

/* Grid: splits of the columns, then tokens by T. */
template <int T>
HZ_DEVICE void gemv_project(const hzi_mhc_project &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t first = (int64_t)blockIdx.y * T;
	const int chunks = (int)((p.channels + CHANNELS - 1) / CHANNELS);
	const int64_t all = (int64_t)p.n * chunks;
	const int begin = (int)(all * blockIdx.x / p.splits);
	const int end = (int)(all * (blockIdx.x + 1) / p.splits);
	/* The token whose sums this lane writes */
	const int64_t t = first + (T == 1 ? 0 : lane / 8);
	float *const out = p.sums + (blockIdx.x * p.groups + t) * (p.m + 1);
	const bool writes = t < p.groups && lane % (32 / T) == 0;
	float sum[ROW_COUNT][T] = {}, squares[T] = {};

	pdl_launch_dependents();
	pdl_wait();
	for (int chunk = begin; chunk < end; chunk++) {
		const int stream = chunk / chunks;
		const int64_t c = (int64_t)(chunk % chunks) * CHANNELS + lane * 8;
		const int64_t at = stream * p.channels + c;
		float4 w[ROW_COUNT][2] = {};
		float x[T][8] = {}, gain[8];

		if (c < p.channels) {
#pragma unroll
			for (int r = 0; r < ROW_COUNT; r++) {
				const int k = r * WARPS + warp;
				const float4 *const phi =
					(const float4 *)(p.phi + k * p.n * p.channels + at);

				if (k < p.m) {
					w[r][0] = __ldg(phi);
					w[r][1] = __ldg(phi + 1);
				}
			}
#pragma unroll
			for (int i = 0; i < T; i++) {
				const int64_t token = offset(p.x, first + i, stream, c);

				if (first + i >= p.groups)
					break;
				if (p.dtype == HZ_F32)
					load_vector<HZ_F32, 8>(x[i], p.x, token);
				else if (p.dtype == HZ_F16)
					load_vector<HZ_F16, 8>(x[i], p.x, token);
				else
					load_vector<HZ_BF16, 8>(x[i], p.x, token);
			}
#pragma unroll
			for (int e = 0; e < 8; e++)
				gain[e] = p.gain ? p.gain[at + e] : 1;
		}
#pragma unroll
		for (int i = 0; i < T; i++) {
#pragma unroll
			for (int e = 0; c < p.channels && e < 8; e++) {
				squares[i] = fmaf(x[i][e], x[i][e], squares[i]);
				x[i][e] *= gain[e];
			}
		}
#pragma unroll
		for (int r = 0; r < ROW_COUNT; r++) {
			const float v[8] = {w[r][0].x, w[r][0].y, w[r][0].z, w[r][0].w,
					    w[r][1].x, w[r][1].y, w[r][1].z, w[r][1].w};

#pragma unroll
			for (int i = 0; i < T; i++) {
#pragma unroll
				for (int e = 0; e < 8; e++)
					sum[r][i] = fmaf(v[e], x[i][e], sum[r][i]);
			}
		}
	}
#pragma unroll
	for (int r = 0; r < ROW_COUNT; r++) {
		const int k = r * WARPS + warp;

		if (k >= p.m)
			break;
		const float s = sum_over_warp(sum[r]);

		if (writes)
			out[k] = s;
	}
	if (warp != p.m % WARPS)
		return;
	const float square = sum_over_warp(squares);

	if (writes)
		out[p.m] = square;
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_GEMV_THREADS, 1)
	mhc_coef_gemv_project_1(const __grid_constant__ hzi_mhc_project p)
{
	gemv_project<1>(p);
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_GEMV_THREADS, 1)
	mhc_coef_gemv_project_4(const __grid_constant__ hzi_mhc_project p)
{
	gemv_project<HZI_MHC_COEF_GEMV_TOKENS>(p);
}
