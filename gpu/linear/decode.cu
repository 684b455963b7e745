/*
 * decode.cu - linear layers with quantized weights: decoded weights, gradient of x
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/dtype.cuh"
#include "gpu/linear/linear.h"

#define THREADS HZI_LINEAR_THREADS
#define TILE HZI_LINEAR_TILE
#define STEP HZI_LINEAR_STEP
#define EACH 4			/* rows and columns of the product that a thread has */

/* Eight successive weights of a row a thread; neighbouring threads have neighbouring rows */
extern "C" __global__ void __launch_bounds__(THREADS) linear_decode(hzi_linear_decode p)
{
	const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int64_t eights = (p.layout.in + 7) / 8;
	float v[8];

	if (i >= p.rows)
		return;

	const int64_t row = p.first + i;
	const float scale = p.scales[row];

	for (int64_t e = blockIdx.y; e < eights; e += gridDim.y) {
		const int64_t k = 8 * e;

		if (p.layout.bits)
			hzi_linear_values(&p.layout, p.codes, row, e, v);
		for (int j = 0; j < 8 && k + j < p.layout.in; j++) {
			if (!p.layout.bits)
				v[j] = from_s8(p.codes[hzi_linear_s8_at(p.layout.in, row, k + j)]);
			p.w[i * p.ld + k + j] = __fmul_rn(scale, v[j]);
		}
	}
}

/*
 * A block has TILE x TILE elements of dx, a thread EACH x EACH of them, rows and columns 16 apart.
 * All threads load a step of dy and w into shared memory; sums are fused and in ascending order.
 */
extern "C" __global__ void __launch_bounds__(THREADS) linear_product(hzi_linear_product p)
{
	__shared__ float dy[STEP][TILE + 1], w[STEP][TILE];
	const int64_t row0 = (int64_t)blockIdx.y * TILE, col0 = (int64_t)blockIdx.x * TILE;
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	float sum[EACH][EACH];

	for (int i = 0; i < EACH; i++) {
		for (int j = 0; j < EACH; j++) {
			const int64_t row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;

			sum[i][j] = p.add && row < p.rows && col < p.in ?
				    p.dx[row * p.dx_ld + col] : 0;
		}
	}
	for (int64_t o0 = 0; o0 < p.out; o0 += STEP) {
		for (int i = threadIdx.x; i < STEP * TILE; i += THREADS) {
			const int64_t row = row0 + i / STEP, o = o0 + i % STEP;

			dy[i % STEP][i / STEP] = row < p.rows && o < p.out ?
						 p.dy[row * p.dy_ld + o] : 0;
		}
		for (int i = threadIdx.x; i < STEP * TILE; i += THREADS) {
			const int64_t o = o0 + i / TILE, col = col0 + i % TILE;

			w[i / TILE][i % TILE] = o < p.out && col < p.in ? p.w[o * p.in + col] : 0;
		}
		__syncthreads();

		/* Past the end no zeros are added: a NaN or Inf would become NaN. */
		const int steps = p.out - o0 < STEP ? (int)(p.out - o0) : STEP;

		for (int s = 0; s < steps; s++) {
			float a[EACH], b[EACH];

#pragma unroll
			for (int i = 0; i < EACH; i++) {
				a[i] = dy[s][ty + 16 * i];
				b[i] = w[s][tx + 16 * i];
			}
#pragma unroll
			for (int i = 0; i < EACH; i++) {
#pragma unroll
				for (int j = 0; j < EACH; j++)
					sum[i][j] = __fmaf_rn(a[i], b[j], sum[i][j]);
			}
		}
		__syncthreads();
	}
	for (int i = 0; i < EACH; i++) {
		for (int j = 0; j < EACH; j++) {
			const int64_t row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;

			if (row < p.rows && col < p.in)
				p.dx[row * p.dx_ld + col] = sum[i][j];
		}
	}
}
