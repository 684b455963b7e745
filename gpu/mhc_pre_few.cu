/*
 * mhc_pre_few.cu - coefficients and branch inputs of few tokens in one launch
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What this takes is latency: a cluster of 16 blocks has one token, or up to 4, each block a slice of
 * the channels. phi is read once per cluster, as f32, and multiplied as f32. Blocks send their sums
 * to the one that owns a token; it sends p to all, for u, and goes on with the other coefficients.
 */
#include "gpu/mhc_pre.cuh"
#include "gpu/mhc_pre_few.h"

#define ROWS_MOST HZI_FEW_ROWS
#define WARPS (HZI_FEW_THREADS / 32)

/* What is left of a token once its sums are known: lane k has sum k, lane 24 the mean square. */
HZ_DEVICE void finish_few(const hzi_mhc_few &p, int64_t token, float sum, float rho)
{
	const int lane = threadIdx.x % 32, rows = p.rule.m;
	float y[ROWS_MOST], pre[4], post[4], mix[16];

	if (p.saved && (lane < rows || lane == ROWS_MOST))
		p.saved[token * (rows + 1) + (lane < rows ? lane : rows)] = sum;
#pragma unroll
	for (int k = 0; k < ROWS_MOST; k++)
		y[k] = rho * __shfl_sync(0xffffffff, sum, k);
	hzi_mhc_coefs(4, &p.rule, rows > 4, y, p.alpha, p.bias, pre, post, mix);
	if (lane > 0)
		return;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (p.p.data)
			*coef_at(p.p, token, i, 0) = pre[i];
		if (p.q.data)
			*coef_at(p.q, token, i, 0) = post[i];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			if (p.a.data)
				*coef_at(p.a, token, i, j) = mix[i * 4 + j];
		}
	}
}

template <int TOKENS, int DTYPE>
HZ_DEVICE void few(const hzi_mhc_few &p)
{
	__shared__ float part[TOKENS][WARPS][32];
	__shared__ float received[HZI_FEW_BLOCKS][32];	/* of the token that this block owns */
	__shared__ float weight[TOKENS][4];
	const int rank = blockIdx.x % HZI_FEW_BLOCKS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int64_t first = blockIdx.x / HZI_FEW_BLOCKS * TOKENS;
	const int64_t channel = (int64_t)rank * p.width;
	const int64_t end = channel + p.width < p.channels ? channel + p.width : p.channels;
	const int stream = warp % 4, rows = p.rule.m;
	float sum[TOKENS][32] = {};

	cluster_arrive_relaxed();
	grid_wait();
	/* A warp has 128 channels of a stream at a time, a lane four of them. */
	for (int64_t c = channel + warp / 4 * 128 + lane * 4; c < end; c += 256) {
		const float *phi = p.phi + stream * p.channels + c;
		float4 w[ROWS_MOST], gain = {1, 1, 1, 1};
		uint2 x[TOKENS];

#pragma unroll
		for (int t = 0; t < TOKENS; t++)
			x[t] = first + t < p.tokens ?
				       *(const uint2 *)((const uint16_t *)p.x.data +
							place(p.x, first + t, stream, c)) : uint2{};
#pragma unroll
		for (int k = 0; k < ROWS_MOST; k++)
			w[k] = k < rows ? *(const float4 *)(phi + k * 4 * p.channels) : float4{};
		if (p.gain)
			gain = *(const float4 *)(p.gain + stream * p.channels + c);
#pragma unroll
		for (int t = 0; t < TOKENS; t++) {
			float v[4];

			unpack(DTYPE, x[t].x, v[0], v[1]);
			unpack(DTYPE, x[t].y, v[2], v[3]);
#pragma unroll
			for (int e = 0; e < 4; e++)
				sum[t][ROWS_MOST] = fmaf(v[e], v[e], sum[t][ROWS_MOST]);
			v[0] *= gain.x, v[1] *= gain.y, v[2] *= gain.z, v[3] *= gain.w;
#pragma unroll
			for (int k = 0; k < ROWS_MOST; k++) {
				sum[t][k] = fmaf(w[k].x, v[0], sum[t][k]);
				sum[t][k] = fmaf(w[k].y, v[1], sum[t][k]);
				sum[t][k] = fmaf(w[k].z, v[2], sum[t][k]);
				sum[t][k] = fmaf(w[k].w, v[3], sum[t][k]);
			}
		}
	}
#pragma unroll
	for (int t = 0; t < TOKENS; t++) {
		fold_lanes<16>(sum[t]);
		part[t][warp][lane] = sum[t][0];
	}
	__syncthreads();
	cluster_wait();			/* All blocks have begun: their memory is there. */
	if (warp < TOKENS) {
		float all = part[warp][0][lane];

#pragma unroll
		for (int w = 1; w < WARPS; w++)
			all += part[warp][w][lane];
		cluster_store(cluster_map(shared_address(&received[rank][lane]), warp), all);
	}
	cluster_arrive();
	cluster_wait();
	if (warp == 0) {
		const bool owner = rank < TOKENS && first + rank < p.tokens;
		float all = 0, rho = 0;

		if (owner) {
			float y[4], pre[4], mean;

#pragma unroll
			for (int r = 0; r < HZI_FEW_BLOCKS; r++)
				all += received[r][lane];
			if (lane == ROWS_MOST)
				all /= (float)(4 * p.channels);
			mean = __shfl_sync(0xffffffff, all, ROWS_MOST) + p.rule.rms_eps;
			rho = mean == 0 ? 0 : 1 / sqrtf(mean);
#pragma unroll
			for (int i = 0; i < 4; i++)
				y[i] = rho * __shfl_sync(0xffffffff, all, i);
			hzi_mhc_coefs(4, &p.rule, false, y, p.alpha, p.bias, pre, NULL, NULL);
			if (lane < HZI_FEW_BLOCKS) {
				const uint32_t to = cluster_map(shared_address(weight[rank]), lane);

#pragma unroll
				for (int i = 0; i < 4; i++)
					cluster_store(to + i * 4, pre[i]);
			}
			__syncwarp();
		}
		cluster_arrive();
		if (owner)
			finish_few(p, first + rank, all, rho);
		cluster_wait();
		return;
	}
	cluster_arrive();
	cluster_wait();
	if (!p.u.data)
		return;
	for (int e = threadIdx.x - 32; e < TOKENS * (p.width / 8); e += HZI_FEW_THREADS - 32) {
		const int t = e / (p.width / 8);
		const int64_t c = channel + e % (p.width / 8) * 8, token = first + t;
		float u[8], v[8];

		if (c >= end || token >= p.tokens)
			continue;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			load_eight(v, p.x, DTYPE, true, token, i, c, p.channels);
#pragma unroll
			for (int k = 0; k < 8; k++)
				u[k] = i == 0 ? weight[t][0] * v[k] : fmaf(weight[t][i], v[k], u[k]);
		}
		*(uint4 *)((uint16_t *)p.u.data + place(p.u, token, 0, c)) = pack_eight<DTYPE>(u);
	}
}

#define FEW(name, tokens, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_FEW_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_few p) { few<tokens, dtype>(p); }
FEW(mhc_pre_few_1_f16, 1, HZ_F16)
FEW(mhc_pre_few_1_bf16, 1, HZ_BF16)
FEW(mhc_pre_few_2_f16, 2, HZ_F16)
FEW(mhc_pre_few_2_bf16, 2, HZ_BF16)
FEW(mhc_pre_few_4_f16, 4, HZ_F16)
FEW(mhc_pre_few_4_bf16, 4, HZ_BF16)
