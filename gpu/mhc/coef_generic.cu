/*
 * coef_generic.cu - coefficients of hyper-connections for any strides and number of streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The projection by mma.sync comes first, summed over splits of the columns. x and phi are split
 * into two terms of bf16, exactly if x has 16 bits. Then one thread makes the coefficients of a
 * group, of more than 4 streams a warp.
 */
#include "gpu/mhc/coef_rows.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"

/* ---- Projection ------------------------------------------------------------------------------ */

#define PITCH 36			/* words of a row of 64 values, without bank conflicts */

/* TILES: tiles of 8 rows of phi */
template <int TILES>
HZ_DEVICE void project(const hzi_mhc_project &p)
{
	__shared__ __align__(16) uint32_t xs[2][HZI_MHC_COEF_TOKENS][PITCH],
		phis[2][TILES * 8][PITCH];
	const int64_t first = (int64_t)blockIdx.x * HZI_MHC_COEF_TOKENS;
	const int64_t chunks = (p.channels + HZI_MHC_COEF_CHUNK - 1) / HZI_MHC_COEF_CHUNK,
		all = p.n * chunks;
	const int64_t begin = all * blockIdx.y / p.splits, end = all * (blockIdx.y + 1) / p.splits;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int parts = p.dtype == HZ_BF16 ? 1 : 2;
	const uint32_t row = shared_address(&xs[0][warp * 16 + lane % 16][lane / 16 * 4]);
	float sum[TILES][4] = {}, squares[HZI_MHC_COEF_TOKENS / 16] = {};

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t chunk = begin; chunk < end; chunk++) {
		const int stream = (int)(chunk / chunks);
		const int64_t c0 = chunk % chunks * HZI_MHC_COEF_CHUNK;

		__syncthreads();
#pragma unroll
		for (int pass = 0; pass < HZI_MHC_COEF_TOKENS / 16; pass++) {
			const int r = pass * 16 + threadIdx.x / 8, e = threadIdx.x % 8;
			uint4 high, low;
			float v[8] = {};

			if (first + r < p.groups)
				load_eight(v, p.x, p.dtype, p.vectorized, first + r, stream, c0 +
					   e * 8, p.channels);
#pragma unroll
			for (int i = 0; i < 8; i++)
				squares[pass] = fmaf(v[i], v[i], squares[pass]);
			high.x = split_pair(v[0], v[1], low.x);
			high.y = split_pair(v[2], v[3], low.y);
			high.z = split_pair(v[4], v[5], low.z);
			high.w = split_pair(v[6], v[7], low.w);
			*(uint4 *)&xs[0][r][e * 4] = high;
			if (parts == 2)
				*(uint4 *)&xs[1][r][e * 4] = low;
		}
#pragma unroll 4
		for (int i = threadIdx.x; i < TILES * 8 * 32; i += HZI_MHC_COEF_THREADS) {
			const int k = i / 32, pair = i % 32;
			const int64_t c = c0 + pair * 2, at = stream * p.channels + c;
			const float *phi = p.phi + k * p.n * p.channels + at;
			float low = 0, high = 0;

			if (k < p.m && c < p.channels)
				low = p.gain ? phi[0] * p.gain[at] : phi[0];
			if (k < p.m && c + 1 < p.channels)
				high = p.gain ? phi[1] * p.gain[at + 1] : phi[1];
			phis[0][k][pair] = split_weights(low, high, phis[1][k][pair]);
		}
		__syncthreads();
#pragma unroll
		for (int step = 0; step < HZI_MHC_COEF_CHUNK / 16; step++) {
			uint32_t high[4], low[4];

			ldmatrix_x4(high, row + step * 32);
			if (parts == 2)
				ldmatrix_x4(low, row + step * 32 + sizeof(xs[0]));
#pragma unroll
			for (int tile = 0; tile < TILES; tile++) {
				const int k = tile * 8 + lane / 4;
				const uint32_t *b = &phis[0][k][step * 8 + lane % 4];
				const uint32_t *remainder = b + TILES * 8 * PITCH;

				mma_m16n8k16<HZ_BF16>(sum[tile], high, b[0], b[4]);
				mma_m16n8k16<HZ_BF16>(sum[tile], high, remainder[0], remainder[4]);
				if (parts == 2)
					mma_m16n8k16<HZ_BF16>(sum[tile], low, b[0], b[4]);
			}
		}
	}

	float *out = p.sums + (blockIdx.y * p.groups + first) * (p.m + 1);

#pragma unroll
	for (int pass = 0; pass < HZI_MHC_COEF_TOKENS / 16; pass++) {
		const int r = pass * 16 + threadIdx.x / 8;
		const float s = warp_sum<8>(squares[pass]);

		if (first + r < p.groups && threadIdx.x % 8 == 0)
			out[r * (p.m + 1) + p.m] = s;
	}
#pragma unroll
	for (int e = 0; e < TILES * 4; e++) {
		const int r = warp * 16 + lane / 4 + e % 4 / 2 * 8;
		const int k = e / 4 * 8 + lane % 4 * 2 + e % 2;

		if (first + r < p.groups && k < p.m)
			out[r * (p.m + 1) + k] = sum[e / 4][e % 4];
	}
}

#define PROJECT(name, tiles) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS) \
		name(const __grid_constant__ hzi_mhc_project p) \
	{ \
		project<tiles>(p); \
	}

PROJECT(mhc_coef_generic_project_8, 1)
PROJECT(mhc_coef_generic_project_24, 3)
PROJECT(mhc_coef_generic_project_80, 10)

/* ---- Means over the tokens of a group -------------------------------------------------------- */

/*
 * Grid: groups times the channels of all streams by eights, then splits of tokens. DT 0: any
 * strides
 */
template <int DT>
HZ_DEVICE void means(const hzi_mhc_means &p)
{
	const int64_t eights = (p.channels + 7) / 8, tokens = p.tokens / p.groups;
	const int64_t strips = (p.n * eights + HZI_MHC_COEF_THREADS - 1) / HZI_MHC_COEF_THREADS;
	const int64_t unit = blockIdx.x % strips * HZI_MHC_COEF_THREADS + threadIdx.x;
	const int64_t s = blockIdx.x / strips, split = blockIdx.y;
	const int64_t begin = tokens * split / p.splits, end = tokens * (split + 1) / p.splits;
	const int64_t c = unit % eights * 8;
	const int i = (int)(unit / eights);
	float sum[8] = {};

	if (i >= p.n)
		return;
#pragma unroll (DT == 0 ? 1 : DT == HZ_F32 ? 4 : 8)
	for (int64_t t = begin; t < end; t++) {
		float v[8];

		if constexpr (DT)
			load_vector<DT, 8>(v, p.x, offset(p.x, s * tokens + t, i, c));
		else
			load_eight(v, p.x, p.dtype, p.vectorized, s * tokens + t, i, c, p.channels);
#pragma unroll
		for (int e = 0; e < 8; e++)
			sum[e] += v[e];
	}

	float *out = p.sums + ((split * p.groups + s) * p.n + i) * p.channels + c;

#pragma unroll
	for (int e = 0; e < 8; e++) {
		if (c + e < p.channels)
			out[e] = sum[e];
	}
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS, 6)
	mhc_coef_means(const __grid_constant__ hzi_mhc_means p)
{
	const bool aligned = p.vectorized && p.channels % 8 == 0;

	pdl_launch_dependents();
	pdl_wait();
	if (aligned && p.dtype == HZ_F32)
		means<HZ_F32>(p);
	else if (aligned && p.dtype == HZ_F16)
		means<HZ_F16>(p);
	else if (aligned)
		means<HZ_BF16>(p);
	else
		means<0>(p);
}

/* A block has 32 columns, 8 rows at a time. */
extern "C" __global__ void __launch_bounds__(256)
	mhc_coef_sum_rows(const __grid_constant__ hzi_mhc_sum_rows p)
{
	__shared__ float sums[8][HZI_MHC_COEF_SUM_COLUMNS];
	const int column = threadIdx.x % HZI_MHC_COEF_SUM_COLUMNS;
	const int part = threadIdx.x / HZI_MHC_COEF_SUM_COLUMNS;
	const int64_t strips = (p.width + HZI_MHC_COEF_SUM_COLUMNS - 1) / HZI_MHC_COEF_SUM_COLUMNS;
	const int64_t j = blockIdx.x % strips * HZI_MHC_COEF_SUM_COLUMNS + column;
	const int64_t s = blockIdx.x / strips;
	const float *in = p.in + s * p.rows * p.stride;
	float *out = p.out + s * p.width;
	float sum = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (j < p.width) {
#pragma unroll 4
		for (int64_t r = part; r < p.rows; r += 8)
			sum += in[r * p.stride + j];
	}
	sums[part][column] = sum;
	__syncthreads();
	if (part != 0 || j >= p.width)
		return;
	for (int r = 1; r < 8; r++)
		sum += sums[r][column];
	sum *= p.scale;
	out[j] = p.accumulate ? out[j] + sum : sum;
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

template <int N>
HZ_DEVICE void coefs(const hzi_mhc_finish &p, const float *memory)
{
	const int64_t s = (int64_t)blockIdx.x * HZI_MHC_COEF_GROUPS + threadIdx.x;
	const int m = p.rule.m, n = N ? N : p.rule.n;
	float y[ROWS<N>], pre[STREAMS<N>], post[STREAMS<N>], mix[STREAMS<N> * STREAMS<N>], slope;

	if (s >= p.sums.groups)
		return;
	normalise<N>(p.rule, memory + threadIdx.x * (m + 1), m, y, slope);
	hzi_mhc_coefs(n, &p.rule, m > n, y, p.alpha, p.bias, pre, post, mix);
#pragma unroll UNROLL<N>
	for (int i = 0; i < n; i++) {
		if (p.p.data)
			*coef_at(p.p, s, i, 0) = pre[i];
		if (p.q.data)
			*coef_at(p.q, s, i, 0) = post[i];
#pragma unroll UNROLL<N>
		for (int j = 0; j < n; j++) {
			if (p.a.data)
				*coef_at(p.a, s, i, j) = mix[i * n + j];
		}
	}
}

HZ_DEVICE void begin_coefs(const hzi_mhc_finish &p, float *memory)
{
	const int m = p.rule.m;

	pdl_launch_dependents();
	pdl_wait();
	load_sums(p.sums, m, memory);
	if (!p.saved)
		return;

	const int64_t first = (int64_t)blockIdx.x * HZI_MHC_COEF_GROUPS,
		left = p.sums.groups - first;
	const int count = (int)(left < HZI_MHC_COEF_GROUPS ? left : HZI_MHC_COEF_GROUPS) * (m + 1);

	for (int e = threadIdx.x; e < count; e += HZI_MHC_COEF_GROUPS)
		p.saved[first * (m + 1) + e] = memory[e];
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_GROUPS)
	mhc_coef_finish_4(const __grid_constant__ hzi_mhc_finish p)
{
	__shared__ float memory[HZI_MHC_COEF_GROUPS * (ROWS<4> + 1)];

	begin_coefs(p, memory);
	coefs<4>(p, memory);
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_GROUPS)
	mhc_coef_finish_3(const __grid_constant__ hzi_mhc_finish p)
{
	__shared__ float memory[HZI_MHC_COEF_GROUPS * (ROWS<3> + 1)];

	begin_coefs(p, memory);
	switch (p.rule.n) { CASES_1_TO_3(coefs<N>(p, memory)) }
}

/* ---- Coefficients of more streams, a warp a group -------------------------------------------- */

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_ROW_GROUPS * 32)
	mhc_coef_finish_8(const __grid_constant__ hzi_mhc_finish p)
{
	const int64_t s = (int64_t)blockIdx.x * HZI_MHC_COEF_ROW_GROUPS + threadIdx.x / 32;
	const int m = p.rule.m;
	const place at;
	const rows_of_lane rows(p.rule, at);
	const hzi_mhc_coef &to = at.q ? p.q : p.p;
	float v[ENTRIES], input[ENTRIES], slopes[ENTRIES], square, rho, gate, slope;

	pdl_launch_dependents();
	pdl_wait();
	if (s >= p.sums.groups)
		return;
	square = rows.load(p.sums, p.rule, s, v);
	rho = roots_of(p.rule, square, slope);
	if (p.saved && threadIdx.x % 32 == 0)
		p.saved[s * (m + 1) + m] = square;
#pragma unroll
	for (int e = 0; e < ENTRIES; e++) {
		if (p.saved && rows.k[e] >= 0)
			p.saved[s * (m + 1) + rows.k[e]] = v[e];
		v[e] *= rho;
	}
	rows.affine(p.rule, v, p.alpha, p.bias, input, slopes, v);
	gate = gate_of_lane(p.rule, at, v[0]);
	if (rows.k[0] >= 0 && to.data)
		*coef_at(to, s, at.i, 0) = gate;
	if (!p.a.data || m <= p.rule.n)
		return;
	residual_of_lane(p.rule, at, v + 1, v + 1);
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		const int i = rows.swapped ? at.j(e) : at.i, j = rows.swapped ? at.i : at.j(e);

		if (at.in(p.rule.n, e))
			*coef_at(p.a, s, i, j) = v[1 + e];
	}
}

/* ---- Normalized branch inputs ---------------------------------------------------------------- */

/* One block per token, any strides */
HZ_DEVICE void norm_strided(const hzi_mhc_norm &p, float *memory)
{
	const int64_t t = blockIdx.x;
	float weight[HZI_MHC_STREAMS], squares = 0, rho;

#pragma unroll
	for (int i = 0; i < HZI_MHC_STREAMS; i++)
		weight[i] = i < p.n ? *coef_at(p.p, t / (p.tokens / p.groups), i, 0) : 0;
	for (int64_t c = threadIdx.x; c < p.channels; c += HZI_MHC_NORM_THREADS) {
		const float u = mixed(p, weight, t, c);

		squares = fmaf(u, u, squares);
	}
	squares = sum_block(squares, memory) / (float)p.channels;
	rho = inverse_root(squares + p.eps);
	if (norm_leaves_f32(squares, p.eps)) {
		const float scale = square_scale(squares);

		squares = 0;
		for (int64_t c = threadIdx.x; c < p.channels; c += HZI_MHC_NORM_THREADS) {
			const float u = mixed(p, weight, t, c) * scale;

			squares = fmaf(u, u, squares);
		}
		rho = norm_rho(sum_block(squares, memory) / (float)p.channels, p.eps, scale);
	}
	for (int64_t c = threadIdx.x; c < p.channels; c += HZI_MHC_NORM_THREADS)
		store_any(p.dtype, p.u.data, offset(p.u, t, 0, c),
			  mixed(p, weight, t, c) * rho * p.norm[c]);
}

/* The same for aligned rows of at most HZI_MHC_NORM_CHANNELS channels, kept in registers */
template <int N, int DT>
HZ_DEVICE void norm_aligned(const hzi_mhc_norm &p, float *memory)
{
	constexpr int pieces = HZI_MHC_NORM_CHANNELS / (8 * HZI_MHC_NORM_THREADS);
	const int64_t t = blockIdx.x, group = t / (p.tokens / p.groups);
	float weight[N], u[pieces][8], squares = 0, rho;

#pragma unroll
	for (int i = 0; i < N; i++)
		weight[i] = *coef_at(p.p, group, i, 0);
#pragma unroll
	for (int k = 0; k < pieces; k++) {
		const int64_t c = (k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8;
		float v[N][8];

		if (c >= p.channels)
			break;
#pragma unroll
		for (int i = 0; i < N; i++)
			load_vector<DT, 8>(v[i], p.x, offset(p.x, t, i, c));
#pragma unroll
		for (int e = 0; e < 8; e++) {
			u[k][e] = weight[0] * v[0][e];
#pragma unroll
			for (int i = 1; i < N; i++)
				u[k][e] = fmaf(weight[i], v[i][e], u[k][e]);
			squares = fmaf(u[k][e], u[k][e], squares);
		}
	}
	squares = sum_block(squares, memory) / (float)p.channels;
	rho = inverse_root(squares + p.eps);
	if (norm_leaves_f32(squares, p.eps)) {
		const float scale = square_scale(squares);

		squares = 0;
#pragma unroll
		for (int k = 0; k < pieces; k++) {
			if ((k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8 >= p.channels)
				break;
#pragma unroll
			for (int e = 0; e < 8; e++)
				squares = fmaf(u[k][e] * scale, u[k][e] * scale, squares);
		}
		rho = norm_rho(sum_block(squares, memory) / (float)p.channels, p.eps, scale);
	}
#pragma unroll
	for (int k = 0; k < pieces; k++) {
		const int64_t c = (k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8;
		const int64_t dst = offset(p.u, t, 0, c);

		if (c >= p.channels)
			break;
#pragma unroll
		for (int e = 0; e < 8; e++)
			u[k][e] *= rho * p.norm[c + e];
		store_vector<DT>(p.u, dst, u[k]);
		store_vector<DT>(p.u, dst + 4, u[k] + 4);
	}
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_NORM_THREADS, 2)
	mhc_coef_norm(const __grid_constant__ hzi_mhc_norm p)
{
	__shared__ float memory[32];

	pdl_launch_dependents();
	pdl_wait();
	if (!p.aligned)
		norm_strided(p, memory);
	else
		SWITCH_DTYPE(p.dtype, SWITCH_COMMON_STREAMS(p.n, norm_aligned<N, DT>(p, memory)))
}

/* ---- Weights of 16 bits, or in another order ------------------------------------------------- */

/* 8 weights of a thread, a block's width apart */
extern "C" __global__ void __launch_bounds__(HZI_MHC_THREADS)
	mhc_widen(const __grid_constant__ hzi_mhc_widen_args p)
{
	const int64_t first = (int64_t)blockIdx.x * (HZI_MHC_WIDEN * HZI_MHC_THREADS) + threadIdx.x;

	pdl_launch_dependents();
	pdl_wait();
#pragma unroll
	for (int e = 0; e < HZI_MHC_WIDEN; e++) {
		const int64_t i = first + e * HZI_MHC_THREADS;

		if (i < p.count)
			p.to[i] = load_value(p.dtype, p.from, i);
	}
}

/* The same in another order. Threads write adjacent elements. */
extern "C" __global__ void __launch_bounds__(HZI_MHC_THREADS)
	mhc_reorder(const __grid_constant__ hzi_mhc_widen_args p)
{
	const int64_t first = (int64_t)blockIdx.x * (HZI_MHC_WIDEN * HZI_MHC_THREADS) + threadIdx.x;

	pdl_launch_dependents();
	pdl_wait();
#pragma unroll
	for (int e = 0; e < HZI_MHC_WIDEN; e++) {
		const int64_t at = first + e * HZI_MHC_THREADS, j = at / p.outer;
		const int64_t from = (j / p.inner * p.outer + at % p.outer) * p.inner + j % p.inner;

		if (at < p.count)
			p.to[at] = load_value(p.dtype, p.from, from);
	}
}
