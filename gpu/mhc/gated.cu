/*
 * gated.cu - streams over their roots, and gated branch inputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/mhc/gated.h"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"

#define THREADS HZI_MHC_GATED_THREADS

/* ---- Streams over their roots ---------------------------------------------------------------- */

/* A block has a stream of a token. `to` may be x, of f32 and the same strides. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_divide(const __grid_constant__ hzi_mhc_divide_args p)
{
	__shared__ float memory[32];
	const int64_t t = blockIdx.x / p.s.n, at = blockIdx.x % p.s.n * p.order.stream;
	const int i = (int)(blockIdx.x % p.s.n);
	const float channels = (float)p.s.channels;
	float *const to = p.to + t * p.s.n * p.s.channels + at, squares = 0, rho, slope;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const float v = load_value(p.s.dtype, p.x.data, offset(p.x, t, i, c));

		squares = fmaf(v, v, squares);
	}
	squares = sum_block(squares, memory) / channels;
	if (hzi_mhc_leaves_f32(squares, hzi_mhc_least_square(&p.rule))) {
		const float scale = square_scale(squares);

		squares = 0;
		for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
			const float v = load_value(p.s.dtype, p.x.data, offset(p.x, t, i, c)) *
					scale;

			squares = fmaf(v, v, squares);
		}
		squares = -sqrtf(sum_block(squares, memory) / channels) / scale;
	}
	rho = roots_of(p.rule, squares, slope);
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const float v = load_value(p.s.dtype, p.x.data, offset(p.x, t, i, c)) * rho;

		to[c * p.order.channel] = p.gain ? v * p.gain[at + c * p.order.channel] : v;
	}
	if (p.roots && threadIdx.x == 0) {
		p.roots[blockIdx.x * 2] = rho;
		p.roots[blockIdx.x * 2 + 1] = slope;
	}
}

/* A block has 32 columns, 8 tokens at a time. */
extern "C" __global__ void __launch_bounds__(256)
	mhc_dgain(const __grid_constant__ hzi_mhc_divide_bwd_args p)
{
	__shared__ float sums[8][HZI_MHC_GATED_COLUMNS];
	const int column = threadIdx.x % HZI_MHC_GATED_COLUMNS;
	const int part = threadIdx.x / HZI_MHC_GATED_COLUMNS;
	const int64_t columns = p.s.n * p.s.channels;
	const int64_t j = (int64_t)blockIdx.x * HZI_MHC_GATED_COLUMNS + column;
	float sum = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (j < columns) {
#pragma unroll 4
		for (int64_t t = part; t < p.s.tokens; t += 8)
			sum = fmaf(p.d[t * columns + j], p.x[t * columns + j], sum);
	}
	sums[part][column] = sum;
	__syncthreads();
	if (part != 0 || j >= columns)
		return;
	for (int r = 1; r < 8; r++)
		sum += sums[r][column];
	p.dgain[j] = p.accumulate ? p.dgain[j] + sum : sum;
}

/* A block has a stream of a token. dx may be d, of f32 and the same strides, if gain is NULL. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_divide_bwd(const __grid_constant__ hzi_mhc_divide_bwd_args p)
{
	__shared__ float memory[32];
	const int64_t t = blockIdx.x / p.s.n, at = blockIdx.x % p.s.n * p.order.stream;
	const int64_t token = t * p.s.n * p.s.channels;
	const int i = (int)(blockIdx.x % p.s.n);
	const float *const x = p.x + token + at, *const d = p.d + token + at;
	const float *const gain = p.gain ? p.gain + at : NULL;
	float dot = 0, rho;

	pdl_launch_dependents();
	pdl_wait();
	rho = p.roots[blockIdx.x * 2];
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const int64_t k = c * p.order.channel;

		dot = fmaf(gain ? d[k] * gain[k] : d[k], x[k], dot);
	}
	dot = sum_block(dot, memory) / (float)p.s.channels * p.roots[blockIdx.x * 2 + 1];
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const int64_t k = c * p.order.channel, dst = offset(p.dx, t, i, c);
		float sum = rho * (gain ? d[k] * gain[k] : d[k]) - dot * x[k];

		if (p.dy.data)
			sum += load_value(p.s.dtype, p.dy.data, offset(p.dy, t, i, c));
		if (p.accumulate)
			sum += load_value(p.s.dtype, p.dx.data, dst);
		store_any(p.s.dtype, p.dx.data, dst, sum);
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * A block of 8 warps makes 128 x 64 elements of c, each warp 32 x 32, from 32 steps of k at a time
 * in shared memory: as two terms of bf16 each, of which the product of both second terms is left
 * out.
 */
#define STEPS 32
#define PITCH 20			/* words of a row of STEPS values, without bank conflicts */

/* Loads two values of adjacent steps of a row; 0 beyond the matrix */
HZ_DEVICE void load_pair(float *v, const void *p, int dtype, int64_t row, int64_t rows,
			 int64_t row_stride, int64_t k, int64_t steps, int64_t step)
{
#pragma unroll
	for (int e = 0; e < 2; e++)
		v[e] = row < rows && k + e < steps ?
			       load_value(dtype, p, row * row_stride + (k + e) * step) : 0;
}

/* Loads ROWS rows of 32 steps as two terms. Adjacent threads read adjacent elements. */
template <int ROWS>
HZ_DEVICE void load_tile(uint32_t (*high)[PITCH], uint32_t (*low)[PITCH], const void *p, int dtype,
			 int64_t first, int64_t rows, int64_t row_stride, int64_t k, int64_t steps,
			 int64_t step)
{
	for (int e = threadIdx.x; e < ROWS * STEPS / 2; e += HZI_MHC_PRODUCT_THREADS) {
		const int r = step == 1 ? e / (STEPS / 2) : e % ROWS;
		const int pair = step == 1 ? e % (STEPS / 2) : e / ROWS;
		float v[2];

		load_pair(v, p, dtype, first + r, rows, row_stride, k + pair * 2, steps, step);
		high[r][pair] = split_weights(v[0], v[1], low[r][pair]);
	}
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_PRODUCT_THREADS)
	mhc_product(const __grid_constant__ hzi_mhc_product_args p)
{
	__shared__ __align__(16) uint32_t a[2][HZI_MHC_PRODUCT_ROWS][PITCH],
		b[2][HZI_MHC_PRODUCT_COLUMNS][PITCH];
	const int64_t wide = (p.n + HZI_MHC_PRODUCT_COLUMNS - 1) / HZI_MHC_PRODUCT_COLUMNS;
	const int64_t i0 = blockIdx.x / wide * HZI_MHC_PRODUCT_ROWS;
	const int64_t j0 = blockIdx.x % wide * HZI_MHC_PRODUCT_COLUMNS;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int row = warp / 2 * 32, column = warp % 2 * 32;
	float sum[2][4][4] = {};

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t k = 0; k < p.k; k += STEPS) {
		__syncthreads();
		load_tile<HZI_MHC_PRODUCT_ROWS>(a[0], a[1], p.a, HZ_F32, i0, p.m, p.a_row, k, p.k,
						p.a_step);
		load_tile<HZI_MHC_PRODUCT_COLUMNS>(b[0], b[1], p.b, p.b_dtype, j0, p.n, p.b_row, k,
						   p.k, p.b_step);
		__syncthreads();
#pragma unroll
		for (int step = 0; step < STEPS / 16; step++) {
			uint32_t high[2][4], low[2][4];

#pragma unroll
			for (int h = 0; h < 2; h++) {
				const int r = row + h * 16 + lane % 16;
				const int w = step * 8 + lane / 16 * 4;

				ldmatrix_x4(high[h], shared_address(&a[0][r][w]));
				ldmatrix_x4(low[h], shared_address(&a[1][r][w]));
			}
#pragma unroll
			for (int tile = 0; tile < 4; tile++) {
				const int r = column + tile * 8 + lane / 4, w = step * 8 + lane % 4;

#pragma unroll
				for (int h = 0; h < 2; h++) {
					mma_m16n8k16<HZ_BF16>(sum[h][tile], high[h], b[0][r][w],
							      b[0][r][w + 4]);
					mma_m16n8k16<HZ_BF16>(sum[h][tile], high[h], b[1][r][w],
							      b[1][r][w + 4]);
					mma_m16n8k16<HZ_BF16>(sum[h][tile], low[h], b[0][r][w],
							      b[0][r][w + 4]);
				}
			}
		}
	}
#pragma unroll
	for (int e = 0; e < 32; e++) {
		const int h = e / 16, tile = e / 4 % 4;
		const int64_t i = i0 + row + h * 16 + lane / 4 + e % 4 / 2 * 8;
		const int64_t j = j0 + column + tile * 8 + lane % 4 * 2 + e % 2;

		if (i < p.m && j < p.n)
			p.c[i * p.n + j] = (p.accumulate ? p.c[i * p.n + j] : 0) +
					   sum[h][tile][e % 4];
	}
}

/* ---- Between and after the products ---------------------------------------------------------- */

/* A block has a token. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_hidden(const __grid_constant__ hzi_mhc_hidden_args p)
{
	const int64_t t = blockIdx.x;
	const int n = p.rule.n, i = threadIdx.x;
	const float scale = 1.0f / (float)n;
	float slope;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t e = t * p.rank + threadIdx.x; e < (t + 1) * p.rank; e += THREADS) {
		const float z = p.down[e] * scale, s = hzi_mhc_sigma(z, &slope);

		if (p.backward)
			p.down[e] = p.hidden[e] * fmaf(z, slope, s) * scale;
		else
			p.hidden[e] = z * s;
	}
	if (!p.inject || i >= n)
		return;

	float *const z = p.inject + t * n + i;
	const float s = hzi_mhc_sigma(*z * scale, &slope);

	if (p.backward)
		*z = p.dq.data ? *coef_at(p.dq, t, i, 0) * p.rule.q_scale * slope * scale : 0;
	else
		*coef_at(p.q, t, i, 0) = fmaf(p.rule.q_scale, s, p.rule.q_eps);
}

/* A thread has a channel of a token. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_gate(const __grid_constant__ hzi_mhc_gate_args p)
{
	const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int64_t t = e / p.s.channels, c = e % p.s.channels;
	const float share = 1.0f / (float)p.s.n;
	float u = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (t >= p.s.tokens)
		return;
	if (p.backward && p.u.data)
		u = load_value(p.s.dtype, p.u.data, offset(p.u, t, 0, c)) * share;
	for (int i = 0; i < p.s.n; i++) {
		const int64_t at = t * p.s.n * p.s.channels + i * p.order.stream +
				   c * p.order.channel;
		float slope;
		const float s = hzi_mhc_sigma(p.up[at], &slope);

		if (p.backward) {
			p.dx[at] = u * s;
			p.up[at] = u * p.x[at] * slope;
		} else {
			u = fmaf(s, p.x[at], u);
		}
	}
	if (!p.backward)
		store_any(p.s.dtype, p.u.data, offset(p.u, t, 0, c), u * share);
}
