/*
 * coef_generic_bwd.cu - gradients of coefficients for any strides and number of streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/mhc/coef_rows.cuh"
#include "gpu/mhc/coef_bwd_fused.h"
#include "gpu/mhc/coef_bwd_wgmma.h"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"

/* ---- Gradients of sums, alpha and bias ------------------------------------------------------- */

#define TILE HZI_MHC_BWD_FUSED_TILE	/* tokens of a record */

/* A given gradient plus the one that this call computed */
HZ_DEVICE float incoming(const hzi_mhc_coef &x, const float *own, int64_t s, int i, int j)
{
	return (x.data ? *coef_at(x, s, i, j) : 0) + (own ? *own : 0);
}

/* Writes the coefficients of a token to its record. */
HZ_DEVICE void record_coefs(uint32_t *records, int64_t s, const float *pre, const float *mix)
{
	float4 *const dst = (float4 *)(records +
				       s / TILE * HZI_MHC_BWD_FUSED_RECORD +
				       HZI_MHC_BWD_FUSED_WORDS +
				       s % TILE * HZI_MHC_BWD_FUSED_COEFS);

#pragma unroll
	for (int i = 0; i < 4; i++)
		dst[i] = {mix[i * 4], mix[i * 4 + 1], mix[i * 4 + 2], mix[i * 4 + 3]};
	dst[4] = {pre[0], pre[1], pre[2], pre[3]};
}

/* Writes own, and draw as two terms of bf16. */
HZ_DEVICE void record_draw(uint32_t *records, int64_t s, const float *draw, float own, float power)
{
	uint32_t *const record = records + s / TILE * HZI_MHC_BWD_FUSED_RECORD;
	const int token = s % TILE;
	uint4 *const dst = (uint4 *)record + token;

#pragma unroll
	for (int part = 0; part < HZI_MHC_FOUR_ROWS / 8; part++) {
		uint32_t high[4], remainder[4];

#pragma unroll
		for (int e = 0; e < 4; e++)
			high[e] = split_pair(draw[part * 8 + e * 2], draw[part * 8 + e * 2 + 1],
					     remainder[e]);
		dst[part * TILE] = {high[0], high[1], high[2], high[3]};
		dst[(part < 2 ? part + 4 : 3) * TILE] = {remainder[0], remainder[1], remainder[2],
							 remainder[3]};
	}
	((float4 *)(record + HZI_MHC_BWD_FUSED_WORDS + token * HZI_MHC_BWD_FUSED_COEFS))[5] = {own,
		power, 0, 0};
}

/* The power of two of a slope whose square may leave the range of f32; else 1 */
HZ_DEVICE float far_power(float slope)
{
	const bool far = slope != 0 && (slope < 0x1p-40f || slope > 0x1p40f);

	return far ? __uint_as_float(__float_as_uint(slope) & 0x7f800000) : 1;
}

/*
 * history: of this thread, elements `stride` floats apart. FULL_SINKHORN: Sinkhorn's iteration with
 * all rows of phi and a common rule, as compile-time constants.
 */
template <int N, bool FULL_SINKHORN>
HZ_DEVICE void gradients(const hzi_mhc_gradients &p, float *memory, float *history, int stride)
{
	const int64_t s = (int64_t)blockIdx.x * HZI_MHC_COEF_GROUPS + threadIdx.x;
	const int n = N ? N : p.rule.n, m = FULL_SINKHORN ? n * (n + 2) : p.rule.m;
	const bool all = m > n;
	hzi_mhc_rule rule = p.rule;
	float y[ROWS<N>], dz[ROWS<N>], dalpha[3] = {};

	if (FULL_SINKHORN) {
		rule.residual = HZ_MHC_SINKHORN;
		rule.eps_rule = HZ_MHC_EPS_ADD;
		rule.rms = HZ_MHC_RMS_ALL;
		rule.rms_eps_rule = HZ_MHC_RMS_EPS_INSIDE;
		rule.q_eps = 0;
		rule.z_min = -INFINITY;
		rule.z_max = INFINITY;
	}
	load_sums(p.sums, m, memory);
#pragma unroll UNROLL<N>
	for (int k = 0; k < ROWS<N>; k++)
		dz[k] = 0;
	if (s < p.sums.groups) {
		float slope, power;
		const float rho = normalise<N>(rule, memory + threadIdx.x * (m + 1), m, y, slope);
		float pre[STREAMS<N>], post[STREAMS<N>], mix[STREAMS<N> * STREAMS<N>];
		float dy[ROWS<N>] = {}, sum = 0, own;

		if (p.p || p.a || p.coefs) {
			hzi_mhc_coefs(n, &rule, all, y, p.alpha, p.bias, pre, post, mix);
#pragma unroll UNROLL<N>
			for (int i = 0; i < n; i++) {
				if (p.p_in.data)
					pre[i] = *coef_at(p.p_in, s, i, 0);
				if (p.p)
					p.p[s * n + i] = pre[i];
			}
#pragma unroll UNROLL<N>
			for (int e = 0; e < n * n; e++) {
				if (p.a)
					p.a[s * n * n + e] = mix[e];
			}
			if (N == 4 && p.records)
				record_coefs(p.records, s, pre, mix);
		}
#pragma unroll UNROLL<N>
		for (int i = 0; i < n; i++) {
			pre[i] = incoming(p.dp, p.dp_own ? p.dp_own + s * n + i : NULL, s, i, 0);
			post[i] = incoming(p.dq, NULL, s, i, 0);
#pragma unroll UNROLL<N>
			for (int j = 0; j < n; j++) {
				const int e = i * n + j;

				mix[e] = incoming(p.da, p.da_own ? p.da_own + s * n * n + e : NULL,
						  s, i, j);
			}
		}
		hzi_mhc_coefs_bwd(n, &rule, all, y, p.alpha, p.bias, pre, post, mix, dz, dy,
				  dalpha, history, stride);
#pragma unroll UNROLL<N>
		for (int k = 0; k < ROWS<N>; k++) {
			sum = k < m ? fmaf(dy[k], y[k], sum) : sum;
			dy[k] = k < m ? rho * dy[k] : 0;
			if (p.draw && k < m)
				p.draw[s * m + k] = dy[k];
		}
		power = far_power(slope);
		slope *= 1 / power;
		own = p.sums.columns > 0 ? -rho * slope * sum / p.sums.columns : 0;
		if (p.own) {
			p.own[s * 2] = own;
			p.own[s * 2 + 1] = power;
		}
		if (N == 4 && p.records)
			record_draw(p.records, s, dy, own, power);
	} else if (N == 4 && p.records &&
		   s < (p.sums.groups + TILE - 1) / TILE * TILE) {
		const float none[HZI_MHC_FOUR_ROWS] = {};

		record_coefs(p.records, s, none, none);
		record_draw(p.records, s, none, 0, 1);
	}
	if (!p.scalars)
		return;
	__syncthreads();

	/* Sums of two warps, 32 values at a time */
	constexpr int numbers = ROWS<N> + 3;

#pragma unroll
	for (int first = 0; first < numbers; first += 32) {
		const int k = first + threadIdx.x % 32;
		float v[32];

		if (first >= m + 3)
			break;
#pragma unroll
		for (int e = 0; e < 32; e++) {
			const int src = first + e;

			v[e] = src < 3 ? dalpha[src] :
			       src < numbers ? dz[src < numbers ? src - 3 : 0] : 0;
		}
		reduce_scatter_lanes<16>(v);
		if (k < m + 3)
			memory[threadIdx.x / 32 * (m + 3) + k] = v[0];
	}
	__syncthreads();
	for (int k = threadIdx.x; k < m + 3; k += HZI_MHC_COEF_GROUPS)
		p.scalars[blockIdx.x * (m + 3) + k] = memory[k] + memory[m + 3 + k];
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_GROUPS)
	mhc_coef_gradients_4(const __grid_constant__ hzi_mhc_gradients p)
{
	extern __shared__ float memory[];
	constexpr int sums = HZI_MHC_COEF_GROUPS * (ROWS<4> + 1);

	static_assert(sizeof(float) * sums == HZI_MHC_COEF_GRADIENTS_BYTES(0), "shared memory");
	pdl_launch_dependents();
	pdl_wait();
	if (p.rule.residual == HZ_MHC_SINKHORN && p.rule.m == 24 && p.common)
		gradients<4, true>(p, memory, memory + sums + threadIdx.x, HZI_MHC_COEF_GROUPS);
	else
		gradients<4, false>(p, memory, memory + sums + threadIdx.x, HZI_MHC_COEF_GROUPS);
}

template <int N>
HZ_DEVICE void gradients_other(const hzi_mhc_gradients &p, float *memory)
{
	float history[HZI_MHC_HISTORY * 2 * STREAMS<N>];

	gradients<N, false>(p, memory, history, 1);
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_GROUPS)
	mhc_coef_gradients_3(const __grid_constant__ hzi_mhc_gradients p)
{
	__shared__ float memory[HZI_MHC_COEF_GROUPS * (ROWS<3> + 1)];

	pdl_launch_dependents();
	pdl_wait();
	switch (p.rule.n) { CASES_1_TO_3(gradients_other<N>(p, memory)) }
}

/* Element k of draw of a token as two terms of bf16 */
HZ_DEVICE void store_terms(uint16_t *terms, int64_t s, int k, float v)
{
	uint16_t *const dst = terms + s * HZI_MHC_BWD_WGMMA_TERMS + k;
	uint32_t remainder;

	dst[0] = (uint16_t)split_pair(v, 0, remainder);
	dst[HZI_MHC_BWD_WGMMA_TERMS / 2] = (uint16_t)remainder;
}

/* The same of more streams, a warp a group; p.kept iterations in the history of a group */
#define ROW_GROUPS HZI_MHC_COEF_ROW_GROUPS

/* A thread has 8 columns of a row, of a strip and a stream. */
HZ_DEVICE void split_strips(const hzi_mhc_phi_strips &p, int64_t block)
{
	const int64_t at = block * (ROW_GROUPS * 32) + threadIdx.x, rest = at / 4;
	const int64_t strip = rest % p.strips;
	const int g = at % 4, row = (int)(rest / p.strips), i = row % HZI_MHC_STREAMS;
	const int k = row / HZI_MHC_STREAMS;
	uint16_t *const to = p.to + ((strip * 4 + i / 2) * HZI_MHC_BWD_WGMMA_TERMS + k) * 64 +
			     i % 2 * HZI_MHC_BWD_WGMMA_STRIP + g * 8;
	uint32_t high[4], low[4];

	if (k >= HZI_MHC_BWD_WGMMA_TERMS / 2)
		return;
#pragma unroll
	for (int q = 0; q < 4; q++) {
		const int64_t c = strip * HZI_MHC_BWD_WGMMA_STRIP + q * 8 + g * 2;
		const int64_t column = i * p.channels + c;
		float2 v = {};

		if (k < p.m && i < p.n && c < p.channels) {
			v = *(const float2 *)(p.phi + k * p.n * p.channels + column);
			if (p.gain) {
				v.x *= p.gain[column];
				v.y *= p.gain[column + 1];
			}
		}
		high[q] = split_weights(v.x, v.y, low[q]);
	}
	*(uint4 *)to = {high[0], high[1], high[2], high[3]};
	*(uint4 *)(to + HZI_MHC_BWD_WGMMA_TERMS / 2 * 64) = {low[0], low[1], low[2], low[3]};
}

extern "C" __global__ void __launch_bounds__(ROW_GROUPS * 32, 4)
	mhc_coef_gradients_8(const __grid_constant__ hzi_mhc_gradients p)
{
	extern __shared__ float memory[];
	__shared__ float sums[ROW_GROUPS][ROWS<HZI_MHC_STREAMS> + 3];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = p.rule.n, m = p.rule.m;
	const int64_t group_blocks = (p.sums.groups + ROW_GROUPS - 1) / ROW_GROUPS;
	const int64_t own = (int64_t)blockIdx.x * ROW_GROUPS + warp;
	const int64_t s = own < p.sums.groups ? own : p.sums.groups - 1;
	const bool stores = own < p.sums.groups, is_tanh = p.rule.residual == HZ_MHC_TANH;
	const place at;
	const rows_of_lane rows(p.rule, at);
	float y[ENTRIES], input[ENTRIES], slopes[ENTRIES], z[ENTRIES], dz[ENTRIES] = {};
	float a[PAIR] = {}, da[PAIR], dalpha[3], sum = 0, rho, slope, of_rho, sigma, gate;

	pdl_launch_dependents();
	pdl_wait();
	if (blockIdx.x >= group_blocks) {
		split_strips(p.strips, blockIdx.x - group_blocks);
		return;
	}
	rho = roots_of(p.rule, rows.load(p.sums, p.rule, s, y), of_rho);
#pragma unroll
	for (int e = 0; e < ENTRIES; e++)
		y[e] *= rho;
	rows.affine(p.rule, y, p.alpha, p.bias, input, slopes, z);
	gate = gate_of_lane(p.rule, at, z[0]);
	if (p.p_in.data && rows.k[0] >= 0 && at.q == 0)
		gate = *coef_at(p.p_in, s, at.i, 0);
	if (p.p && stores && rows.k[0] >= 0 && at.q == 0)
		p.p[s * n + at.i] = gate;
	if (p.tokens && stores && at.q == 0)
		p.tokens[s * HZI_MHC_BWD_WGMMA_RECORD + HZI_MHC_BWD_WGMMA_P + at.i] =
			rows.k[0] >= 0 ? gate : 0;
	/* Incoming gradients; those of a in the order of k */
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		const int i = rows.swapped ? at.j(e) : at.i, j = rows.swapped ? at.i : at.j(e);
		const float *ours = p.da_own ? p.da_own + (s * n + i) * n + j : NULL;

		da[e] = at.in(n, e) ? incoming(p.da, ours, s, i, j) : 0;
	}
	if (rows.k[0] >= 0)
		dz[0] = at.q ? incoming(p.dq, NULL, s, at.i, 0) :
			       incoming(p.dp, p.dp_own ? p.dp_own + s * n + at.i : NULL, s, at.i,
					0);
	/* As hzi_mhc_coefs_bwd() */
	sigma = hzi_mhc_sigma(z[0], &slope);
	if (!is_tanh) {
		const float all = p.rule.p_eps + sum_column(at.i < n ? sigma : 0);
		const float mean = hzi_m_div(sum_column(dz[0] * sigma), all);

		if (at.q)
			dz[0] *= p.rule.q_scale * slope;
		else if (p.rule.flags & HZ_MHC_NORMALIZE)
			dz[0] = hzi_m_div(dz[0] - mean, all) * slope;
		else
			dz[0] *= slope;
	}
	if (at.q == 0 && p.rule.flags & HZI_MHC_HEAD)
		dz[0] = 0;
	if (p.rule.residual == HZ_MHC_SINKHORN && m > n) {
		sinkhorn_bwd_of_lane(p.rule, at, z + 1, da, memory + warp * (p.kept * KEPT),
				     p.kept, a, dz + 1);
	} else {
		residual_of_lane(p.rule, at, z + 1, a);
#pragma unroll
		for (int e = 0; e < PAIR; e++)
			dz[1 + e] = is_tanh ? da[e] : 0;
	}
#pragma unroll
	for (int e = 0; e < PAIR; e++) {
		const int i = rows.swapped ? at.j(e) : at.i, j = rows.swapped ? at.i : at.j(e);

		if (p.a && stores && at.in(n, e))
			p.a[(s * n + i) * n + j] = a[e];
		if (p.tokens && stores)
			p.tokens[s * HZI_MHC_BWD_WGMMA_RECORD + i * HZI_MHC_STREAMS + j] =
				at.in(n, e) ? a[e] : 0;
	}
	dalpha[0] = dalpha[1] = dalpha[2] = 0;
#pragma unroll
	for (int e = 0; e < ENTRIES; e++) {
		float dy;

		dz[e] = stores && rows.k[e] >= 0 ? dz[e] : 0;
		dy = hzi_mhc_alpha(p.alpha, e ? 2 : rows.part) * dz[e] * slopes[e];
		sum = rows.k[e] >= 0 ? fmaf(dy, y[e], sum) : sum;
		if (e)
			dalpha[2] = fmaf(dz[e], input[e], dalpha[2]);
		else
			dalpha[at.q == 1] = dz[e] * input[e];
		if (p.draw && stores && rows.k[e] >= 0)
			p.draw[s * m + rows.k[e]] = rho * dy;
		if (p.terms && stores && rows.k[e] >= 0)
			store_terms(p.terms, s, rows.k[e], rho * dy);
	}
	for (int k = m + lane; p.terms && stores && k < HZI_MHC_BWD_WGMMA_TERMS / 2; k += 32)
		store_terms(p.terms, s, k, 0);
	sum = sum_column(sum_row(sum));
	if ((p.own || p.tokens) && stores && lane == 0) {
		const float power = far_power(of_rho);
		float *const dst = p.own ? p.own + s * 2 :
				   p.tokens + s * HZI_MHC_BWD_WGMMA_RECORD +
				   HZI_MHC_BWD_WGMMA_OWN;

		dst[0] = p.sums.columns > 0 ? -rho * (of_rho * (1 / power)) * sum /
					      p.sums.columns : 0;
		dst[1] = power;
	}
	if (!p.scalars)
		return;
#pragma unroll
	for (int e = 0; e < 3; e++) {
		dalpha[e] = sum_column(sum_row(dalpha[e]));
		if (lane == 0)
			sums[warp][e] = dalpha[e];
		if (rows.k[e] >= 0)
			sums[warp][rows.k[e] + 3] = dz[e];
	}
	__syncthreads();
	for (int k = threadIdx.x; k < m + 3; k += ROW_GROUPS * 32) {
		float all = 0;

#pragma unroll
		for (int w = 0; w < ROW_GROUPS; w++)
			all += sums[w][k];
		p.scalars[blockIdx.x * (m + 3) + k] = all;
	}
}

/* ---- Products of streams and their gradients ------------------------------------------------- */

#define PRODUCT_WARPS (HZI_MHC_COEF_THREADS / 32)

/*
 * A block has a token. A warp multiplies 32 channels at a time: A has dy[i] as row i and du as row
 * 8, B has x[j] as column j; a lane has 8 contiguous channels of row and column lane / 4.
 */
template <int DTYPE>
HZ_DEVICE void token_products(const hzi_mhc_token_products &p)
{
	__shared__ float part[PRODUCT_WARPS][4][32];
	constexpr int STEPS = 4;	/* of 32 channels, in flight */
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = lane / 4;
	const int64_t t = blockIdx.x;
	float sum[4] = {};

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t first = warp * (STEPS * 32); first < p.channels;
	     first += PRODUCT_WARPS * STEPS * 32) {
		uint4 x[STEPS] = {}, dy[STEPS] = {}, du[STEPS] = {};

#pragma unroll
		for (int k = 0; k < STEPS; k++) {
			const int64_t c = first + k * 32 + lane % 4 * 8;

			if (c >= p.channels)
				break;
			if (i < p.n) {
				x[k] = *(const uint4 *)((const uint16_t *)p.x.data +
							offset(p.x, t, i, c));
				dy[k] = *(const uint4 *)((const uint16_t *)p.dy.data +
							 offset(p.dy, t, i, c));
			}
			if (i == 0 && p.du.data)
				du[k] = *(const uint4 *)((const uint16_t *)p.du.data +
							 offset(p.du, t, 0, c));
		}
#pragma unroll
		for (int k = 0; k < STEPS; k++) {
			mma_m16n8k16<DTYPE>(sum, dy[k].x, du[k].x, dy[k].y, du[k].y, x[k].x,
					    x[k].y);
			mma_m16n8k16<DTYPE>(sum, dy[k].z, du[k].z, dy[k].w, du[k].w, x[k].z,
					    x[k].w);
		}
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		part[warp][e][lane] = sum[e];
	__syncthreads();
	if (warp != 0)
		return;
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int j = lane % 4 * 2 + e % 2;
		float all = sum[e];

#pragma unroll
		for (int w = 1; w < PRODUCT_WARPS; w++)
			all += part[w][e][lane];
		if (j >= p.n)
			continue;
		if (e < 2 && i < p.n)
			*coef_at(p.da, t, i, j) = all;
		if (e >= 2 && i == 0 && p.dp.data)
			*coef_at(p.dp, t, j, 0) = all;
	}
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS, 6)
	mhc_token_products_f16(const __grid_constant__ hzi_mhc_token_products p)
{
	token_products<HZ_F16>(p);
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS, 6)
	mhc_token_products_bf16(const __grid_constant__ hzi_mhc_token_products p)
{
	token_products<HZ_BF16>(p);
}

/* ---- Normalized branch inputs ---------------------------------------------------------------- */

/*
 * Blocks stride over tokens. With v = sum_i p_i X[i], rho = 1 / sqrt(mean(v^2) + eps) and
 * g = du norm: dv = rho (g - v rho^2 mean(g v)), dnorm = sum over tokens of du v rho.
 */
HZ_DEVICE void norm_bwd_strided(const hzi_mhc_norm_bwd &p, float *memory)
{
	const hzi_mhc_norm &of = p.of;
	const float inverse = 1.0f / (float)of.channels;
	const int64_t each = of.tokens / of.groups;

	for (int64_t t = blockIdx.x; t < of.tokens; t += gridDim.x) {
		float weight[HZI_MHC_STREAMS], dp[HZI_MHC_STREAMS] = {}, squares = 0, dot = 0, rho;

#pragma unroll
		for (int i = 0; i < HZI_MHC_STREAMS; i++)
			weight[i] = i < of.n ? *coef_at(of.p, t / each, i, 0) : 0;
		for (int64_t c = threadIdx.x; c < of.channels; c += HZI_MHC_NORM_THREADS) {
			const float v = mixed(of, weight, t, c);
			const float du = load_value(of.dtype, of.u.data, offset(of.u, t, 0, c));

			squares = fmaf(v, v, squares);
			dot = fmaf(du * of.norm[c], v, dot);
		}
		squares = sum_block(squares, memory) * inverse;
		rho = inverse_root(squares + of.eps);
		if (norm_leaves_f32(squares, of.eps)) {
			const float scale = square_scale(squares);

			squares = 0;
			for (int64_t c = threadIdx.x; c < of.channels; c += HZI_MHC_NORM_THREADS) {
				const float v = mixed(of, weight, t, c) * scale;

				squares = fmaf(v, v, squares);
			}
			rho = norm_rho(sum_block(squares, memory) * inverse, of.eps, scale);
		}
		dot = sum_block(dot, memory) * inverse * rho * rho;
		for (int64_t c = threadIdx.x; c < of.channels; c += HZI_MHC_NORM_THREADS) {
			const float v = mixed(of, weight, t, c);
			const float du = load_value(of.dtype, of.u.data, offset(of.u, t, 0, c));
			const float dv = rho * (du * of.norm[c] - v * dot);

			p.du[t * of.channels + c] = dv;
			if (p.dnorm) {
				float *sum = p.dnorm + blockIdx.x * of.channels + c;

				*sum = (t == blockIdx.x ? 0 : *sum) + du * v * rho;
			}
#pragma unroll
			for (int i = 0; i < HZI_MHC_STREAMS; i++) {
				if (i < of.n)
					dp[i] = fmaf(dv,
						     load_value(of.dtype, of.x.data,
								offset(of.x, t, i, c)), dp[i]);
			}
		}
#pragma unroll
		for (int i = 0; i < HZI_MHC_STREAMS; i++) {
			if (i < of.n) {
				const float sum = sum_block(dp[i], memory);

				if (p.dp && threadIdx.x == 0)
					p.dp[t * of.n + i] = sum;
			}
		}
	}
}

#define NUMBERS 32			/* sums of a token, at most */

/* Sums of 2N + 2 values over a block, in memory for every thread */
template <int N>
HZ_DEVICE void sum_numbers(const float *mine, float (*memory)[NUMBERS])
{
	float v[NUMBERS];

#pragma unroll
	for (int e = 0; e < NUMBERS; e++)
		v[e] = e < 2 * N + 2 ? mine[e < 2 * N + 2 ? e : 0] : 0;
	reduce_scatter_lanes<16>(v);
	memory[threadIdx.x / 32][threadIdx.x % 32] = v[0];
	__syncthreads();
}

/* Eight contiguous values, 16-byte aligned, of f32 or of 16 bits by the dtype of a call */
template <bool F32>
HZ_DEVICE void load_eight(float *v, int dtype, const hzi_mhc_array &x, int64_t at)
{
	if constexpr (F32) {
		load_vector<HZ_F32, 8>(v, x, at);
	} else {
		const uint4 a = *(const uint4 *)((const uint16_t *)x.data + at);
		const uint32_t w[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = dtype == HZ_F16 ? f16_low(w[i]) : bf16_low(w[i]);
			v[2 * i + 1] = dtype == HZ_F16 ? f16_high(w[i]) : bf16_high(w[i]);
		}
	}
}

/* dp of token t from dv, which this block has stored: where sums of v X[i] may have overflowed */
static __device__ __noinline__ void norm_bwd_far(const hzi_mhc_norm_bwd &p, int64_t t,
						 float *memory)
{
	const hzi_mhc_norm &of = p.of;

	__syncthreads();
	for (int i = 0; i < of.n; i++) {
		float sum = 0;

		for (int64_t c = threadIdx.x; c < of.channels; c += HZI_MHC_NORM_THREADS)
			sum = fmaf(p.du[t * of.channels + c],
				   load_value(of.dtype, of.x.data, offset(of.x, t, i, c)), sum);
		sum = sum_block(sum, memory);
		if (p.dp && threadIdx.x == 0)
			p.dp[t * of.n + i] = sum;
	}
}

/*
 * The same for aligned rows; v and g stay in registers, x is read once:
 * dp_i = rho (sum(g X[i]) - rho^2 mean(g v) sum(v X[i])).
 */
template <int N, bool F32>
HZ_DEVICE void norm_bwd_aligned(const hzi_mhc_norm_bwd &p,
				float (*memory)[HZI_MHC_NORM_THREADS / 32][NUMBERS], float *wide)
{
	constexpr int pieces = HZI_MHC_NORM_CHANNELS / (8 * HZI_MHC_NORM_THREADS);
	constexpr int warps = HZI_MHC_NORM_THREADS / 32;
	const hzi_mhc_norm &of = p.of;
	const float inverse = 1.0f / (float)of.channels;
	const int64_t each = of.tokens / of.groups;
	float dnorm[pieces][8] = {};
	int slot = 0;

	for (int64_t t = blockIdx.x; t < of.tokens; t += gridDim.x, slot ^= 1) {
		const int64_t group = each == 1 ? t : t / each;
		float weight[N], v[pieces][8], du[pieces][8], mine[2 * N + 2] = {}, rho, dot;
		float squares;
		bool far;

#pragma unroll
		for (int i = 0; i < N; i++)
			weight[i] = *coef_at(of.p, group, i, 0);
#pragma unroll
		for (int k = 0; k < pieces; k++) {
			const int64_t c = (k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8;
			float x[N][8];

			if (c >= of.channels)
				break;
#pragma unroll
			for (int i = 0; i < N; i++)
				load_eight<F32>(x[i], of.dtype, of.x, offset(of.x, t, i, c));
			load_eight<F32>(du[k], of.dtype, of.u, offset(of.u, t, 0, c));
#pragma unroll
			for (int e = 0; e < 8; e++) {
				const float g = du[k][e] * of.norm[c + e];

				v[k][e] = weight[0] * x[0][e];
#pragma unroll
				for (int i = 1; i < N; i++)
					v[k][e] = fmaf(weight[i], x[i][e], v[k][e]);
#pragma unroll
				for (int i = 0; i < N; i++) {
					mine[i] = fmaf(g, x[i][e], mine[i]);
					mine[N + i] = fmaf(v[k][e], x[i][e], mine[N + i]);
				}
				mine[2 * N] = fmaf(v[k][e], v[k][e], mine[2 * N]);
				mine[2 * N + 1] = fmaf(g, v[k][e], mine[2 * N + 1]);
			}
		}
		sum_numbers<N>(mine, memory[slot]);
		rho = dot = 0;
#pragma unroll
		for (int w = 0; w < warps; w++) {
			rho += memory[slot][w][2 * N];
			dot += memory[slot][w][2 * N + 1];
		}
		squares = rho * inverse;
		rho = inverse_root(squares + of.eps);
		far = norm_leaves_f32(squares, of.eps);
		if (far) {
			const float scale = square_scale(squares);

			squares = 0;
#pragma unroll
			for (int k = 0; k < pieces; k++) {
				if ((k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8 >= of.channels)
					break;
#pragma unroll
				for (int e = 0; e < 8; e++)
					squares = fmaf(v[k][e] * scale, v[k][e] * scale, squares);
			}
			rho = norm_rho(sum_block(squares, wide) * inverse, of.eps, scale);
			dot = dot * inverse * rho * rho;
		} else {
			dot *= inverse * rho * rho;
		}
		if (p.dp && threadIdx.x < N && !far) {
			float of_g = 0, of_v = 0;

			for (int w = 0; w < warps; w++) {
				of_g += memory[slot][w][threadIdx.x];
				of_v += memory[slot][w][N + threadIdx.x];
			}
			p.dp[t * N + threadIdx.x] = rho * (of_g - dot * of_v);
		}
#pragma unroll
		for (int k = 0; k < pieces; k++) {
			const int64_t c = (k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8;
			float4 *const dst = (float4 *)(p.du + t * of.channels + c);
			float dv[8];

			if (c >= of.channels)
				break;
#pragma unroll
			for (int e = 0; e < 8; e++) {
				dv[e] = rho * (du[k][e] * of.norm[c + e] - v[k][e] * dot);
				dnorm[k][e] = fmaf(du[k][e], v[k][e] * rho, dnorm[k][e]);
			}
			dst[0] = {dv[0], dv[1], dv[2], dv[3]};
			dst[1] = {dv[4], dv[5], dv[6], dv[7]};
		}
		if (far && p.dp)
			norm_bwd_far(p, t, wide);
	}
#pragma unroll
	for (int k = 0; k < pieces; k++) {
		const int64_t c = (k * HZI_MHC_NORM_THREADS + threadIdx.x) * 8;

		if (!p.dnorm || c >= of.channels)
			break;
#pragma unroll
		for (int e = 0; e < 8; e++)
			p.dnorm[blockIdx.x * of.channels + c + e] = dnorm[k][e];
	}
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_NORM_THREADS)
	mhc_coef_norm_bwd(const __grid_constant__ hzi_mhc_norm_bwd p)
{
	__shared__ float memory[2][HZI_MHC_NORM_THREADS / 32][NUMBERS], wide[32];

	pdl_launch_dependents();
	pdl_wait();
	if (!p.of.aligned)
		norm_bwd_strided(p, memory[0][0]);
	else if (p.of.dtype == HZ_F32)
		SWITCH_COMMON_STREAMS(p.of.n, norm_bwd_aligned<N, true>(p, memory, wide))
	else
		SWITCH_COMMON_STREAMS(p.of.n, norm_bwd_aligned<N, false>(p, memory, wide))
}

/* ---- Gradients of streams -------------------------------------------------------------------- */

/* A block has 128 channels of all streams of 8 tokens. */
extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS)
	mhc_coef_generic_dx(const __grid_constant__ hzi_mhc_dx p)
{
	__shared__ __align__(16) float draw[HZI_MHC_ROWS][HZI_MHC_COEF_LANES];
	const int64_t strips = (p.channels + HZI_MHC_COEF_THREADS - 1) / HZI_MHC_COEF_THREADS;
	const int64_t c = blockIdx.x % strips * HZI_MHC_COEF_THREADS + threadIdx.x;
	const int64_t first = blockIdx.x / strips * HZI_MHC_COEF_LANES, each = p.tokens / p.groups;
	const int64_t columns = p.n * p.channels;

	pdl_launch_dependents();
	pdl_wait();
	if (p.draw) {
		for (int e = threadIdx.x; e < p.m * HZI_MHC_COEF_LANES; e += HZI_MHC_COEF_THREADS) {
			const int64_t t = first + e / p.m;

			draw[e % p.m][e / p.m] = t < p.tokens ? p.draw[t * p.m + e % p.m] : 0;
		}
	}
	__syncthreads();
	if (c >= p.channels)
		return;
	for (int j = 0; j < p.n; j++) {
		const int64_t at = j * p.channels + c;
		const float gain = p.gain ? p.gain[at] : 1;
		float sum[HZI_MHC_COEF_LANES] = {};

		if (p.draw) {
#pragma unroll 4
			for (int k = 0; k < p.m; k++) {
				const float phi = p.phi[k * columns + at] * gain;

#pragma unroll
				for (int r = 0; r < HZI_MHC_COEF_LANES; r++)
					sum[r] = fmaf(draw[k][r], phi, sum[r]);
			}
		}
#pragma unroll
		for (int r = 0; r < HZI_MHC_COEF_LANES; r++) {
			const int64_t t = first + r, s = t / each;

			if (t >= p.tokens)
				break;
			if (p.own)
				sum[r] = fmaf(p.own[t * 2], p.own[t * 2 + 1] *
					      load_value(p.dtype, p.x.data, offset(p.x, t, j, c)),
					      sum[r]);
			if (p.du.data)
				sum[r] = fmaf(p.p[s * p.n + j],
					      load_value(p.du_dtype, p.du.data,
							 offset(p.du, t, 0, c)),
					      sum[r]);
			if (p.dy.data) {
				for (int i = 0; i < p.n; i++)
					sum[r] = fmaf(p.a[(s * p.n + i) * p.n + j],
						      load_value(p.dtype, p.dy.data,
								 offset(p.dy, t, i, c)), sum[r]);
			}
			if (p.shared)
				sum[r] += p.shared[s * columns + at];

			const int64_t dst = offset(p.dx, t, j, c);

			sum[r] *= p.scale;
			if (p.accumulate)
				sum[r] += load_value(p.dx_dtype, p.dx.data, dst);
			store_any(p.dx_dtype, p.dx.data, dst, sum[r]);
		}
	}
}

/*
 * Four aligned 16-bit streams whose tokens share coefficients: 8 channels per thread. Grid:
 * channels times groups, splits of the tokens of a group.
 */
template <int DTYPE>
HZ_DEVICE void dx_groups(const hzi_mhc_dx &p)
{
	const int64_t eights = p.channels / 8, each = p.tokens / p.groups;
	const int64_t strips = (eights + HZI_MHC_COEF_THREADS - 1) / HZI_MHC_COEF_THREADS;
	const int64_t c = (blockIdx.x % strips * HZI_MHC_COEF_THREADS + threadIdx.x) * 8;
	const int64_t s = blockIdx.x / strips, split = blockIdx.y;
	const int64_t begin = s * each + each * split / gridDim.y;
	const int64_t end = s * each + each * (split + 1) / gridDim.y;
	float shared[4][8] = {}, weight[4] = {}, mix[16] = {};

	pdl_launch_dependents();
	pdl_wait();
	if (c >= p.channels)
		return;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (p.du.data)
			weight[i] = p.p[s * 4 + i];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			if (p.dy.data)
				mix[i * 4 + j] = p.a[s * 16 + i * 4 + j];
		}
#pragma unroll
		for (int e = 0; e < 8; e++) {
			if (p.shared)
				shared[i][e] = p.shared[(s * 4 + i) * p.channels + c + e];
		}
	}

	/* du and dy of a token: those of the next are requested before dx of this one is stored */
	uint4 next[5] = {};
	const auto request = [&](int64_t t) {
		if (p.du.data)
			next[0] = *(const uint4 *)((const uint16_t *)p.du.data +
						   offset(p.du, t, 0, c));
#pragma unroll
		for (int i = 0; p.dy.data && i < 4; i++)
			next[1 + i] = *(const uint4 *)((const uint16_t *)p.dy.data +
						       offset(p.dy, t, i, c));
	};

	if (begin < end)
		request(begin);
	for (int64_t t = begin; t < end; t++) {
		uint4 now[5];

#pragma unroll
		for (int i = 0; i < 5; i++)
			now[i] = next[i];
		if (t + 1 < end)
			request(t + 1);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			uint4 *dst = (uint4 *)((uint16_t *)p.dx.data + offset(p.dx, t, j, c));
			float sum[8], v[8];

#pragma unroll
			for (int e = 0; e < 8; e++)
				sum[e] = shared[j][e];
#pragma unroll
			for (int i = 0; i < 5; i++) {
				unpack_eight<DTYPE>(v, now[i]);
#pragma unroll
				for (int e = 0; e < 8; e++)
					sum[e] = fmaf(i ? mix[(i - 1) * 4 + j] : weight[j], v[e],
						      sum[e]);
			}
			if (p.accumulate) {
				unpack_eight<DTYPE>(v, *dst);
#pragma unroll
				for (int e = 0; e < 8; e++)
					sum[e] += v[e];
			}
			*dst = pack_eight<DTYPE>(sum);
		}
	}
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS, 4)
	mhc_coef_dx_groups_f16(const __grid_constant__ hzi_mhc_dx p)
{
	dx_groups<HZ_F16>(p);
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS, 4)
	mhc_coef_dx_groups_bf16(const __grid_constant__ hzi_mhc_dx p)
{
	dx_groups<HZ_BF16>(p);
}

/* ---- Gradients of phi ------------------------------------------------------------------------ */

#define PART 32				/* tokens with draw in shared memory */

/* Grid: 128 columns, splits of tokens. ROW_COUNT: rows of phi, at most */
template <int ROW_COUNT>
HZ_DEVICE void dphi(const hzi_mhc_dphi &p)
{
	__shared__ __align__(16) float draw[PART][ROW_COUNT];
	const int64_t columns = p.n * p.channels;
	const int64_t j = (int64_t)blockIdx.x * HZI_MHC_COEF_THREADS + threadIdx.x;
	const int64_t begin = p.tokens * blockIdx.y / p.splits;
	const int64_t end = p.tokens * (blockIdx.y + 1) / p.splits;
	const int64_t c = j % (p.channels ? p.channels : 1);
	const int i = (int)(j / (p.channels ? p.channels : 1));
	float sum[ROW_COUNT] = {};

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t first = begin; first < end; first += PART) {
		const int count = (int)(end - first < PART ? end - first : PART);

		__syncthreads();
		for (int e = threadIdx.x; e < count * ROW_COUNT; e += HZI_MHC_COEF_THREADS) {
			const int k = e % ROW_COUNT;

			draw[e / ROW_COUNT][k] =
				k < p.m ? p.draw[(first + e / ROW_COUNT) * p.m + k] : 0;
		}
		__syncthreads();
		if (j < columns) {
#pragma unroll 4
			for (int r = 0; r < count; r++) {
				const float x = load_value(p.dtype, p.x.data,
							   offset(p.x, first + r, i, c));

#pragma unroll
				for (int k = 0; k < ROW_COUNT; k++)
					sum[k] = fmaf(draw[r][k], x, sum[k]);
			}
		}
	}
	if (j >= columns)
		return;
#pragma unroll
	for (int k = 0; k < ROW_COUNT; k++) {
		if (k < p.m)
			p.partial[(blockIdx.y * p.m + k) * columns + j] = sum[k];
	}
}

#define DPHI(name, rows) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_COEF_THREADS) \
		name(const __grid_constant__ hzi_mhc_dphi p) \
	{ \
		dphi<rows>(p); \
	}

DPHI(mhc_coef_generic_dphi_8, 8)
DPHI(mhc_coef_generic_dphi_24, 24)
DPHI(mhc_coef_generic_dphi_80, 80)

/* ---- Sums of blocks -------------------------------------------------------------------------- */

/* Value k of dalpha and dbias, the blocks in 8 parts */
HZ_DEVICE void sum_scalars(const hzi_mhc_sum_weights &p, int64_t k,
			   float (*memory)[HZI_MHC_COEF_SUM_COLUMNS])
{
	const int column = threadIdx.x % HZI_MHC_COEF_SUM_COLUMNS;
	const int part = threadIdx.x / HZI_MHC_COEF_SUM_COLUMNS;
	float *const dst = k >= 3 ? (p.dbias && k < p.m + 3 ? p.dbias + k - 3 : NULL) : p.dalpha[k];
	float sum = 0;

	if (dst) {
#pragma unroll 16
		for (int64_t r = part; r < p.blocks; r += 8)
			sum += p.scalars[r * (p.m + 3) + k];
	}
	memory[part][column] = sum;
	__syncthreads();
	if (dst && part == 0) {
#pragma unroll
		for (int i = 1; i < 8; i++)
			sum += memory[i][column];
		*dst = p.accumulate ? *dst + sum : sum;
	}
}

/* A block has 32 columns, 8 rows at a time; the last blocks make 32 of dalpha and dbias each. */
extern "C" __global__ void __launch_bounds__(256)
	mhc_coef_sum_weights(const __grid_constant__ hzi_mhc_sum_weights p)
{
	__shared__ float gains[8][HZI_MHC_COEF_SUM_COLUMNS];
	const int column = threadIdx.x % HZI_MHC_COEF_SUM_COLUMNS;
	const int part = threadIdx.x / HZI_MHC_COEF_SUM_COLUMNS;
	const int64_t first = (int64_t)blockIdx.x * HZI_MHC_COEF_SUM_COLUMNS, j = first + column;
	float dgain = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (first >= p.columns) {
		const int64_t of_columns = (p.columns + HZI_MHC_COEF_SUM_COLUMNS - 1) /
					   HZI_MHC_COEF_SUM_COLUMNS;

		sum_scalars(p, j - of_columns * HZI_MHC_COEF_SUM_COLUMNS, gains);
		return;
	}
	if (j < p.columns) {
		for (int k = part; k < p.m; k += 8) {
			const int64_t at = k * p.columns + j;
			float sum = 0;

#pragma unroll 4
			for (int i = 0; i < p.splits; i++)
				sum += p.partial[i * p.m * p.columns + at];
			if (p.dgain)
				dgain = fmaf(sum, p.phi[at], dgain);
			if (p.gain)
				sum *= p.gain[j];
			if (p.dphi)
				p.dphi[at] = p.accumulate ? p.dphi[at] + sum : sum;
		}
	}
	gains[part][column] = dgain;
	__syncthreads();
	if (part != 0 || j >= p.columns || !p.dgain)
		return;
	for (int i = 1; i < 8; i++)
		dgain += gains[i][column];
	p.dgain[j] = p.accumulate ? p.dgain[j] + dgain : dgain;
}
