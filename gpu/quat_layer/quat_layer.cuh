/*
 * quat_layer.cuh - what kernels of quaternion layers share: elements, sums over rows
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

HZ_DEVICE int64_t divide(int64_t i, int64_t n, int64_t *remainder)
{
	const int64_t q = hzi_quat_divide(i, n);

	*remainder = i - q * n;
	return q;
}

/* The coefficients of an affine map */
template <int KIND>
struct coefficients {
	typedef hzi_quat_affine type;
};

template <>
struct coefficients<HZI_QUAT_MAP_AFFINE_BWD> {
	typedef hzi_quat_affine_bwd type;
};

/*
 * A quaternion as loaded, so that several loads are in flight: of arrays of contiguous quaternions
 * of DTYPE, or with 0 of any array.
 */
template <int DTYPE>
struct element {
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
		uint2 *const dst = (uint2 *)((uint16_t *)a.data + at);

		*dst = DTYPE == HZ_F16 ?
		       make_uint2(to_f16x2(q.c[0], q.c[1]), to_f16x2(q.c[2], q.c[3])) :
		       make_uint2(to_bf16x2(q.c[0], q.c[1]), to_bf16x2(q.c[2], q.c[3]));
	}
};

template <>
struct element<HZ_F32> {
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
struct element<0> {
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

/* Rows r, r + row_threads, ... of channel c that are before `last` */
template <int ROWS, int DTYPE>
HZ_DEVICE void load_rows(element<DTYPE> (&dst)[ROWS], const hzi_quat_sum_step &p,
			 const hzi_quat_array &a, int64_t r, int row_threads, int64_t last,
			 int64_t c)
{
	/* The usual case: one stride from row to row */
	if (p.ndim == 1) {
		int64_t at = r * a.stride[0] + c * a.stride[1];

#pragma unroll
		for (int k = 0; k < ROWS; k++, at += row_threads * a.stride[0])
			if (r + k * row_threads < last)
				dst[k].load(a, at);
		return;
	}
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		if (r + k * row_threads < last)
			dst[k].load(a, row_offset(p, a.stride, r + k * row_threads, c));
}

/*
 * A block sums a chunk of rows, [first, last), of `lanes` channels: 32, or the next power of two if
 * there are fewer channels. row_threads threads share the rows of a channel. Waits for the previous
 * kernel (PDL).
 */
struct block_share {
	int lanes = HZI_QUAT_SUM_LANES, row_threads, lane, row_thread;
	int64_t first, last;

	__device__ __forceinline__ explicit block_share(const hzi_quat_sum_step &p)
	{
		pdl_launch_dependents();
		pdl_wait();
		while (lanes / 2 >= p.channels)
			lanes /= 2;
		row_threads = THREADS / lanes;
		lane = (int)threadIdx.x % lanes;
		row_thread = (int)threadIdx.x / lanes;
		first = (int64_t)blockIdx.y * p.chunk;
		last = first + p.chunk < p.rows ? first + p.chunk : p.rows;
	}
};

/* Stores the sum over a channel's threads, in their order, to p.part. */
template <typename T, int WIDTH>
HZ_DEVICE void sum_store(const hzi_quat_sum_step &p, const block_share &share, int64_t block,
			 const T (&part)[THREADS][WIDTH])
{
	constexpr int VALUES = WIDTH - 1;	/* a spare column avoids bank conflicts */

	__syncthreads();
	for (int i = (int)threadIdx.x; i < share.lanes * VALUES; i += THREADS) {
		const int l = i / VALUES, v = i % VALUES;
		const int64_t dst = block * HZI_QUAT_SUM_LANES + l;
		double all = 0;

		for (int k = 0; k < share.row_threads; k++)
			all += part[k * share.lanes + l][v];
		if (dst < p.channels)
			p.part[(blockIdx.y * p.channels + dst) * VALUES + v] = all;
	}
	__syncthreads();
}

/* HZI_QUAT_SUM_CROSS without m: the finish kernel multiplies the sum by it. */
HZ_DEVICE void add_cross(hzi_quat b, hzi_quat a, const float *mean, float *total)
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
	/* Loads in flight: half as many of each of two arrays */
	constexpr int ONE = DTYPE == 0 || DTYPE == HZ_F32 ? 4 : 8;
	constexpr int ROWS = KIND == HZI_QUAT_SUM_CROSS ? ONE / 2 : ONE;
	__shared__ float part[THREADS][values + 1];

	const block_share share(p);

	for (int64_t block = blockIdx.x; block * HZI_QUAT_SUM_LANES < p.channels;
	     block += gridDim.x) {
		const int64_t c = block * HZI_QUAT_SUM_LANES + share.lane;
		float total[values], saved[4];		/* the mean */

#pragma unroll
		for (int i = 0; i < values; i++)
			total[i] = 0;
		if (c < p.channels && KIND != HZI_QUAT_SUM_PLAIN) {
#pragma unroll
			for (int i = 0; i < 4; i++)
				saved[i] = ((const float *)p.mean)[c * HZI_QUAT_SAVED + i];
		}
		for (int64_t r = share.first + share.row_thread; c < p.channels && r < share.last;
		     r += ROWS * share.row_threads) {
			element<DTYPE> q[ROWS], b[ROWS];

			load_rows(q, p, p.a, r, share.row_threads, share.last, c);
			if (KIND == HZI_QUAT_SUM_CROSS)
				load_rows(b, p, p.b, r, share.row_threads, share.last, c);
#pragma unroll
			for (int k = 0; k < ROWS; k++) {
				if (r + k * share.row_threads >= share.last)
					continue;
				if (KIND == HZI_QUAT_SUM_CROSS)
					add_cross(b[k].get(), q[k].get(), saved, total);
				else
					hzi_quat_sum_one(KIND, q[k].get(), hzi_quat{}, saved,
							 total);
			}
		}
#pragma unroll
		for (int i = 0; i < values; i++)
			part[threadIdx.x][i] = total[i];
		sum_store(p, share, block, part);
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
	constexpr int ROWS = DTYPE == 0 || DTYPE == HZ_F32 ? 4 : 8;	/* in flight */
	__shared__ double part[THREADS][VALUES + 1];

	const block_share share(p);

	for (int64_t block = blockIdx.x; block * HZI_QUAT_SUM_LANES < p.channels;
	     block += gridDim.x) {
		const int64_t c = block * HZI_QUAT_SUM_LANES + share.lane;
		const bool in = c < p.channels && share.first + share.row_thread < share.last;
		float center[4] = {}, sum[4] = {}, square[10] = {};
		double u[4] = {}, rows = 0;
		int at = 4;

		for (int64_t r = share.first + share.row_thread; in && r < share.last;
		     r += ROWS * share.row_threads) {
			const int64_t left = (share.last - r + share.row_threads - 1) /
					     share.row_threads;
			const int count = left < ROWS ? (int)left : ROWS;
			element<DTYPE> raw[ROWS];

			load_rows(raw, p, p.a, r, share.row_threads, share.last, c);
			if (r == share.first + share.row_thread) {
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
				if (blockIdx.y == 0 && share.row_thread == 0)
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
		sum_store(p, share, block, part);
	}
}

#endif
