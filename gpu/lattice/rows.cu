/*
 * rows.cu - scales of rows: one warp per row
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/dtype.cuh"
#include "gpu/lattice/lattice.h"

#define LANES 32
#define SUMS (HZI_LATTICE_ROW_SUMS / LANES)	/* of a lane: sum 32 j + lane */

/* Offsets of a row in v and in the scales */
HZ_DEVICE void find_row(const hzi_lattice_rows &r, int64_t row, int64_t &v, int64_t &scale)
{
	v = scale = 0;
	for (int d = r.ndim - 1; d >= 0; d--) {
		const int64_t i = row % r.shape[d];

		row /= r.shape[d];
		v += i * r.v_stride[d];
		scale += i * r.scale_stride[d];
	}
}

HZ_DEVICE int64_t first_row(void)
{
	return (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_divide_rows(const __grid_constant__ hzi_lattice_rows r)
{
	const int64_t step = (int64_t)gridDim.x * (blockDim.x / LANES);
	const uint32_t lane = threadIdx.x % LANES;

	for (int64_t row = first_row(); row < r.rows; row += step) {
		float *const f = r.f + row * r.n;
		double sum[SUMS] = {0};
		int64_t v, at;
		float s;

		find_row(r, row, v, at);
		for (int64_t i = lane; i < r.n; i += SUMS * LANES) {
#pragma unroll
			for (int j = 0; j < SUMS; j++) {
				const int64_t e = i + j * LANES;
				const float x = e < r.n ? load_any(r.v_dtype, r.v, v + e * r.v_step) : 0;

				/* The square is exact. */
				if (fabsf(x) <= FLT_MAX)
					sum[j] = __fma_rn((double)x, (double)x, sum[j]);
			}
		}
#pragma unroll
		for (int half = SUMS / 2; half > 0; half /= 2) {
#pragma unroll
			for (int j = 0; j < half; j++)
				sum[j] = __dadd_rn(sum[j], sum[j + half]);
		}
		for (int half = LANES / 2; half > 0; half /= 2)
			sum[0] = __dadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], half));
		s = hzi_lattice_row_scale(sum[0], r.n);
		if (lane == 0)
			r.scale[at] = s;
		for (int64_t i = lane; i < r.n; i += LANES)
			f[i] = __fdiv_rn(load_any(r.v_dtype, r.v, v + i * r.v_step), s);
	}
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_multiply_rows(const __grid_constant__ hzi_lattice_rows r)
{
	const int64_t step = (int64_t)gridDim.x * (blockDim.x / LANES);

	for (int64_t row = first_row(); row < r.rows; row += step) {
		const float *const f = r.f + row * r.n;
		int64_t v, at;

		find_row(r, row, v, at);
		for (int64_t i = threadIdx.x % LANES; i < r.n; i += LANES)
			store_any(r.v_dtype, r.v, v + i * r.v_step, __fmul_rn(f[i], r.scale[at]));
	}
}
