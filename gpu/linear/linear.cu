/*
 * linear.cu - linear layers with quantized weights: epilogue, decoded weights, gradient of x
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/linear/linear.h"

#define THREADS HZI_LINEAR_THREADS
#define TILE HZI_LINEAR_TILE
#define STEP HZI_LINEAR_STEP
#define EACH 4			/* rows and columns of the product that a thread has */

HZ_DEVICE float linear_activate(int activation, float v)
{
	switch (activation) {
	case HZ_ACT_NONE:
		return v;
	case HZ_ACT_RELU:
		return v < 0 ? 0 : v;
	case HZ_ACT_TANH:
		return tanhf(v);
	case HZ_ACT_SIGMOID:
		return 1 / (1 + expf(-v));
	case HZ_ACT_GELU:
		return v * normcdff(v);
	case HZ_ACT_SILU:
		return v / (1 + expf(-v));
	default:
		return v / (1 + expf(-1.5957691216f * (v + 0.044715f * v * v * v)));
	}
}

/* act(v + bias), times up + its bias if gated. Sums are rounded one by one, as on the CPU. */
HZ_DEVICE float linear_finish(const hzi_linear_epilogue &p, int64_t j, float v, float up)
{
	if (p.bias)
		v = __fadd_rn(v, p.bias[j]);
	v = linear_activate(p.activation, v);
	if (!p.gated)
		return v;
	if (p.bias)
		up = __fadd_rn(up, p.bias[p.n + j]);
	return __fmul_rn(v, up);
}

/* One element a thread; a block has THREADS columns of a row, rows are the grid's y and repeat. */
extern "C" __global__ void __launch_bounds__(THREADS) linear_epilogue(hzi_linear_epilogue p)
{
	const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;

	pdl_launch_dependents();
	pdl_wait();
	if (j >= p.n)
		return;
	for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
		int64_t from = 0, y = 0, left = row;

		for (int d = p.ndim - 1; d >= 0; d--) {
			const int64_t i = left % p.shape[d];

			left /= p.shape[d];
			from += i * p.from_stride[d];
			y += i * p.y_stride[d];
		}

		const float v = load_any(p.from_dtype, p.from, from + j * p.from_step);
		const float up = p.gated ? load_any(p.from_dtype, p.from,
						    from + (p.n + j) * p.from_step) : 0;

		store_any(p.y_dtype, p.y, y + j * p.y_step, linear_finish(p, j, v, up));
	}
}

/* The same for aligned rows at one distance, from f32: four columns a thread */
extern "C" __global__ void __launch_bounds__(THREADS) linear_epilogue_rows(hzi_linear_epilogue p)
{
	const int64_t j = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);

	pdl_launch_dependents();
	pdl_wait();
	if (j >= p.n)
		return;
	for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
		const float *const from = (const float *)p.from + row * p.from_stride[0] + j;
		const float4 v = *(const float4 *)from;
		const float4 up = p.gated ? *(const float4 *)(from + p.n) : float4();
		const int64_t y = row * p.y_stride[0] + j;
		const float f[4] = {linear_finish(p, j, v.x, up.x),
				    linear_finish(p, j + 1, v.y, up.y),
				    linear_finish(p, j + 2, v.z, up.z),
				    linear_finish(p, j + 3, v.w, up.w)};

		if (p.y_dtype == HZ_F32)
			*(float4 *)((float *)p.y + y) = make_float4(f[0], f[1], f[2], f[3]);
		else if (p.y_dtype == HZ_F16)
			*(uint2 *)((uint16_t *)p.y + y) =
				make_uint2(to_f16x2(f[0], f[1]), to_f16x2(f[2], f[3]));
		else
			*(uint2 *)((uint16_t *)p.y + y) =
				make_uint2(to_bf16x2(f[0], f[1]), to_bf16x2(f[2], f[3]));
	}
}

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
