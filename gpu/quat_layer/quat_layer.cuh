/*
 * quat_layer.cuh - what kernels of quaternion layers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_LAYER_CUH
#define HZI_GPU_QUAT_LAYER_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/quat_layer/quat_layer.h"
#include "lib/quat_layer/sums_math.h"

#define THREADS HZI_QUAT_STEP_THREADS

#define KERNEL(name, type) \
	extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ type p)

/* This thread's elements: i = first; i < total; i += step */
HZ_DEVICE int64_t first_element(void)
{
	return (int64_t)blockIdx.x * THREADS + threadIdx.x;
}

HZ_DEVICE int64_t step_elements(void)
{
	return (int64_t)gridDim.x * THREADS;
}

HZ_DEVICE int64_t divide(int64_t i, int64_t n, int64_t *rest)
{
	const int64_t q = hzi_quat_divide(i, n);

	*rest = i - q * n;
	return q;
}

/*
 * An element as it lies in memory, so that several are under way, of arrays of whole quaternions;
 * DTYPE 0: of any.
 */
template <int DTYPE>
struct qraw {
	uint2 bits;

	__device__ __forceinline__ void load(const hzi_quat_array &a, int64_t at)
	{
		bits = *(const uint2 *)((const uint16_t *)a.data + at);
	}

	__device__ __forceinline__ hzi_quat get(void) const
	{
		if (DTYPE == HZ_F16)
			return {f16_low(bits.x), f16_high(bits.x), f16_low(bits.y),
				f16_high(bits.y)};
		return {bf16_low(bits.x), bf16_high(bits.x), bf16_low(bits.y), bf16_high(bits.y)};
	}

	static __device__ __forceinline__ void store(const hzi_quat_array &a, int64_t at,
						     hzi_quat q)
	{
		uint2 *const to = (uint2 *)((uint16_t *)a.data + at);

		*to = DTYPE == HZ_F16 ?
		      make_uint2(to_f16x2(q.c[0], q.c[1]), to_f16x2(q.c[2], q.c[3])) :
		      make_uint2(to_bf16x2(q.c[0], q.c[1]), to_bf16x2(q.c[2], q.c[3]));
	}
};

template <>
struct qraw<HZ_F32> {
	float4 f;

	__device__ __forceinline__ void load(const hzi_quat_array &a, int64_t at)
	{
		f = *(const float4 *)((const float *)a.data + at);
	}

	__device__ __forceinline__ hzi_quat get(void) const { return {f.x, f.y, f.z, f.w}; }

	static __device__ __forceinline__ void store(const hzi_quat_array &a, int64_t at,
						     hzi_quat q)
	{
		*(float4 *)((float *)a.data + at) = make_float4(q.c[0], q.c[1], q.c[2], q.c[3]);
	}
};

template <>
struct qraw<0> {
	hzi_quat q;

	__device__ __forceinline__ void load(const hzi_quat_array &a, int64_t at)
	{
		q = hzi_quat_load(&a, at);
	}

	__device__ __forceinline__ hzi_quat get(void) const { return q; }
};

/* ---- Sums ------------------------------------------------------------------------------------ */

HZ_DEVICE int64_t row_offset(const hzi_quat_sum_step &p, const int64_t *stride, int64_t row,
			     int64_t c)
{
	int64_t at = c * stride[p.ndim], index;

	for (int d = p.ndim - 1; d > 0; d--) {
		row = divide(row, p.shape[d], &index);
		at += index * stride[d];
	}
	return at + row * stride[0];
}

/* Rows r, r + lines, ... of channel c, those before last */
template <int ROWS, int DTYPE>
HZ_DEVICE void load_rows(qraw<DTYPE> (&to)[ROWS], const hzi_quat_sum_step &p,
			 const hzi_quat_array &a, int64_t r, int lines, int64_t last, int64_t c)
{
	/* Mostly there is one step from row to row. */
	if (p.ndim == 1) {
		int64_t at = r * a.stride[0] + c * a.stride[1];

#pragma unroll
		for (int k = 0; k < ROWS; k++, at += lines * a.stride[0])
			if (r + k * lines < last)
				to[k].load(a, at);
		return;
	}
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		if (r + k * lines < last)
			to[k].load(a, row_offset(p, a.stride, r + k * lines, c));
}

/*
 * A block has a chunk of rows and 32 channels, or fewer, as a power of two, if there are fewer:
 * then more threads share the rows.
 */
struct sum_place {
	int lanes = HZI_QUAT_SUM_LANES, lines, lane, line;
	int64_t first, last;

	__device__ __forceinline__ explicit sum_place(const hzi_quat_sum_step &p)
	{
		while (lanes / 2 >= p.channels)
			lanes /= 2;
		lines = THREADS / lanes;
		lane = (int)threadIdx.x % lanes;
		line = (int)threadIdx.x / lanes;
		first = (int64_t)blockIdx.y * p.chunk;
		last = first + p.chunk < p.rows ? first + p.chunk : p.rows;
	}
};

/* What threads have of a block's channels is added in their order, to p.part. */
template <typename T, int WIDTH>
HZ_DEVICE void sum_store(const hzi_quat_sum_step &p, const sum_place &place, int64_t block,
			 const T (&part)[THREADS][WIDTH])
{
	constexpr int VALUES = WIDTH - 1;	/* a column to spare keeps banks apart */

	__syncthreads();
	for (int i = (int)threadIdx.x; i < place.lanes * VALUES; i += THREADS) {
		const int l = i / VALUES, v = i % VALUES;
		const int64_t to = block * HZI_QUAT_SUM_LANES + l;
		double all = 0;

		for (int k = 0; k < place.lines; k++)
			all += part[k * place.lanes + l][v];
		if (to < p.channels)
			p.part[(blockIdx.y * p.channels + to) * VALUES + v] = all;
	}
	__syncthreads();
}

/* HZI_QUAT_SUM_CROSS without m: quat_finish() multiplies the sum by it. */
HZ_DEVICE void cross_one(hzi_quat b, hzi_quat a, const float *mean, float *total)
{
#pragma unroll
	for (int c = 0; c < 4; c++) {
		a.c[c] -= mean[c];
		total[c] += b.c[c];
	}
#pragma unroll
	for (int r = 0; r < 4; r++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			total[4 + 4 * r + c] = fmaf(b.c[r], a.c[c], total[4 + 4 * r + c]);
}

template <int KIND, int DTYPE>
HZ_DEVICE void sum(const hzi_quat_sum_step &p)
{
	constexpr int values = HZI_QUAT_SUM_VALUES(KIND);
	/* Under way: of two arrays half as many */
	constexpr int ONE = DTYPE == 0 || DTYPE == HZ_F32 ? 4 : 8;
	constexpr int ROWS = KIND == HZI_QUAT_SUM_CROSS ? ONE / 2 : ONE;
	__shared__ float part[THREADS][values + 1];

	pdl_launch_dependents();
	pdl_wait();
	const sum_place place(p);
	const int line = place.line, lines = place.lines;
	const int64_t first = place.first, last = place.last;

	for (int64_t block = blockIdx.x; block * HZI_QUAT_SUM_LANES < p.channels;
	     block += gridDim.x) {
		const int64_t c = block * HZI_QUAT_SUM_LANES + place.lane;
		float total[values], saved[4];		/* the mean */

#pragma unroll
		for (int i = 0; i < values; i++)
			total[i] = 0;
		if (c < p.channels && KIND != HZI_QUAT_SUM_PLAIN) {
#pragma unroll
			for (int i = 0; i < 4; i++)
				saved[i] = ((const float *)p.mean)[c * HZI_QUAT_SAVED + i];
		}
		for (int64_t r = first + line; c < p.channels && r < last; r += ROWS * lines) {
			qraw<DTYPE> q[ROWS], b[ROWS];

			load_rows(q, p, p.a, r, lines, last, c);
			if (KIND == HZI_QUAT_SUM_CROSS)
				load_rows(b, p, p.b, r, lines, last, c);
#pragma unroll
			for (int k = 0; k < ROWS; k++) {
				if (r + k * lines >= last)
					continue;
				if (KIND == HZI_QUAT_SUM_CROSS)
					cross_one(b[k].get(), q[k].get(), saved, total);
				else
					hzi_quat_sum_one(KIND, q[k].get(), hzi_quat{}, saved,
							 total);
			}
		}
#pragma unroll
		for (int i = 0; i < values; i++)
			part[threadIdx.x][i] = total[i];
		sum_store(p, place, block, part);
	}
}

/*
 * HZI_QUAT_SUM_MOMENTS in one pass. A thread accumulates in f32, about the mean of its first rows,
 * which is few standard deviations from the mean of all its rows. The sums of threads are moved to
 * be about row 0 and are added in f64.
 */
template <int DTYPE>
HZ_DEVICE void moments(const hzi_quat_sum_step &p)
{
	constexpr int VALUES = HZI_QUAT_SUM_VALUES(HZI_QUAT_SUM_MOMENTS);
	constexpr int ROWS = DTYPE == 0 || DTYPE == HZ_F32 ? 4 : 8;	/* under way */
	__shared__ double part[THREADS][VALUES + 1];

	pdl_launch_dependents();
	pdl_wait();
	const sum_place place(p);
	const int line = place.line, lines = place.lines;
	const int64_t first = place.first, last = place.last;

	for (int64_t block = blockIdx.x; block * HZI_QUAT_SUM_LANES < p.channels;
	     block += gridDim.x) {
		const int64_t c = block * HZI_QUAT_SUM_LANES + place.lane;
		const bool in = c < p.channels && first + line < last;
		float center[4] = {}, sum[4] = {}, square[10] = {};
		double u[4] = {}, rows = 0;
		int at = 4;

		for (int64_t r = first + line; in && r < last; r += ROWS * lines) {
			const int64_t left = (last - r + lines - 1) / lines;
			const int count = left < ROWS ? (int)left : ROWS;
			qraw<DTYPE> raw[ROWS];

			load_rows(raw, p, p.a, r, lines, last, c);
			if (r == first + line) {
#pragma unroll
				for (int k = 0; k < ROWS; k++) {
					const hzi_quat q = raw[k].get();

#pragma unroll
					for (int i = 0; k < count && i < 4; i++)
						center[i] += q.c[i];
				}
#pragma unroll
				for (int i = 0; i < 4; i++)
					center[i] /= count;
			}
#pragma unroll
			for (int k = 0; k < ROWS; k++) {
				hzi_quat d = raw[k].get();
				int n = 0;

				if (k >= count)
					continue;
#pragma unroll
				for (int i = 0; i < 4; i++) {
					d.c[i] -= center[i];
					sum[i] += d.c[i];
				}
#pragma unroll
				for (int i = 0; i < 4; i++)
#pragma unroll
					for (int j = i; j < 4; j++, n++)
						square[n] = fmaf(d.c[i], d.c[j], square[n]);
			}
			rows += count;
		}
		if (in) {
			const hzi_quat pivot = hzi_quat_load(&p.a, row_offset(p, p.a.stride, 0, c));

			for (int i = 0; i < 4; i++) {
				u[i] = (double)center[i] - (double)pivot.c[i];
				if (blockIdx.y == 0 && line == 0)
					((float *)p.mean)[c * HZI_QUAT_SAVED + i] = pivot.c[i];
			}
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			part[threadIdx.x][i] = sum[i] + rows * u[i];
#pragma unroll
			for (int j = i; j < 4; j++, at++)
				part[threadIdx.x][at] = square[at - 4] + u[i] * sum[j] +
							sum[i] * u[j] + rows * u[i] * u[j];
		}
		sum_store(p, place, block, part);
	}
}

#endif
