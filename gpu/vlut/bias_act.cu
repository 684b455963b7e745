/*
 * bias_act.cu - bias and activation of products, as a pass of its own
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/vlut/bias_act.h"

#define THREADS HZI_VLUT_THREADS

HZ_DEVICE float bias_act_value(int activation, float v)
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
HZ_DEVICE float bias_act_finish(const hzi_vlut_bias_act_rows &p, int64_t j, float v, float up)
{
	if (p.bias)
		v = __fadd_rn(v, p.bias[j]);
	v = bias_act_value(p.activation, v);
	if (!p.gated)
		return v;
	if (p.bias)
		up = __fadd_rn(up, p.bias[p.n + j]);
	return __fmul_rn(v, up);
}

/* One element a thread; a block has THREADS columns of a row, rows are the grid's y and repeat. */
extern "C" __global__ void __launch_bounds__(THREADS) vlut_bias_act(hzi_vlut_bias_act_rows p)
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

		store_any(p.y_dtype, p.y, y + j * p.y_step, bias_act_finish(p, j, v, up));
	}
}

/* The same for aligned rows at one distance, from f32: four columns a thread */
extern "C" __global__ void __launch_bounds__(THREADS)
vlut_bias_act_rows_f32(hzi_vlut_bias_act_rows p)
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
		const float f[4] = {bias_act_finish(p, j, v.x, up.x),
				    bias_act_finish(p, j + 1, v.y, up.y),
				    bias_act_finish(p, j + 2, v.z, up.z),
				    bias_act_finish(p, j + 3, v.w, up.w)};

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
