/*
 * pool.cu - pooling of quaternions over windows of 2 x 2 and 3 x 3, and its gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Neighbouring threads have neighbouring channels and columns and go through rows, so that a thread
 * divides for its channel and column once. All loads of a window are in flight together. Sums and
 * their order are those of lib/quat_layer/step_math.h, but for averages over 3 x 3, stride 1.
 */
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_layer/pool.h"

#define THREADS HZI_QUAT_POOL_THREADS

enum { NONE = -1, ALL = -2 };		/* instead of an index */

template <int DTYPE>
HZ_DEVICE void store(void *data, int64_t at, quat q)
{
	if (DTYPE == HZ_F32)
		*(float4 *)((float *)data + at) = make_float4(q.w, q.x, q.y, q.z);
	else
		*(uint2 *)((uint16_t *)data + at) = quat_pack(DTYPE, q);
}

/* A thread's channel, column, and first row of those of all images */
struct walk {
	int32_t column, c, row;
	bool in;

	__device__ __forceinline__ walk(const hzi_quat_pool_job &p, int columns)
	{
		const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

		in = i < (uint32_t)columns * (uint32_t)p.channels;
		column = (int32_t)(i / (uint32_t)p.channels);
		c = (int32_t)(i - (uint32_t)column * (uint32_t)p.channels);
		row = (int32_t)(blockIdx.y * blockDim.y + threadIdx.y);
	}

	static __device__ __forceinline__ int32_t step(void)
	{
		return (int32_t)(gridDim.y * blockDim.y);
	}
};

template <int W, int DTYPE>
HZ_DEVICE void pool(const hzi_quat_pool_job &p)
{
	const walk t(p, p.count[1]);
	const int32_t left = t.column * p.step[1] - p.pad[1];

	if (!t.in)
		return;
	for (int32_t row = t.row; row < p.images * p.count[0]; row += walk::step()) {
		const int32_t image = row / p.count[0], image_row = row - image * p.count[0];
		const int32_t top = image_row * p.step[0] - p.pad[0];
		const int64_t src = image * p.x_stride[0] + top * p.x_stride[1] +
				    left * p.x_stride[2] + t.c * p.x_stride[3];
		quat_raw<DTYPE> raw[W][W];
		quat sum = {0, 0, 0, 0};
		int32_t best = -1, count = 0;
		double most = 0;

#pragma unroll
		for (int a = 0; a < W; a++)
#pragma unroll
			for (int b = 0; b < W; b++)
				if ((uint32_t)(top + a) < (uint32_t)p.size[0] &&
				    (uint32_t)(left + b) < (uint32_t)p.size[1])
					raw[a][b].load(p.x, src + a * p.x_stride[1] +
								    b * p.x_stride[2]);
#pragma unroll
		for (int a = 0; a < W; a++)
#pragma unroll
			for (int b = 0; b < W; b++) {
				if ((uint32_t)(top + a) >= (uint32_t)p.size[0] ||
				    (uint32_t)(left + b) >= (uint32_t)p.size[1])
					continue;

				const quat q = raw[a][b].get(0);

				count++;
				if (!p.max) {
					sum = {sum.w + q.w, sum.x + q.x, sum.y + q.y, sum.z + q.z};
					continue;
				}
				double norm = (double)q.w * q.w;

				norm += (double)q.x * q.x;
				norm += (double)q.y * q.y;
				norm += (double)q.z * q.z;
				if (best < 0 || norm > most || (norm != norm && most == most)) {
					best = (top + a) * p.size[1] + left + b;
					most = norm;
					sum = q;
				}
			}
		if (!p.max)
			sum = {sum.w / count, sum.x / count, sum.y / count, sum.z / count};
		store<DTYPE>(p.y, image * p.y_stride[0] + image_row * p.y_stride[1] +
				  t.column * p.y_stride[2] + t.c * p.y_stride[3], sum);
		if (p.index)
			p.index[image * p.index_stride[0] + image_row * p.index_stride[1] +
				t.column * p.index_stride[2] + t.c * p.index_stride[3]] = best;
	}
}

/* a + scale b */
HZ_DEVICE quat add(quat a, quat b, float scale = 1)
{
	return {fmaf(scale, b.w, a.w), fmaf(scale, b.x, a.x), fmaf(scale, b.y, a.y),
		fmaf(scale, b.z, a.z)};
}

/* What the gradient is added to: the old value, or 0 */
template <int DTYPE>
HZ_DEVICE quat old_of(const hzi_quat_pool_job &p, int64_t at)
{
	quat_raw<DTYPE> old;

	if (!p.accumulate)
		return {0, 0, 0, 0};
	old.load(p.x, at);
	return old.get(0);
}

/* The extent of a window's part inside x, in one dimension */
HZ_DEVICE int32_t inside(int32_t begin, int32_t window, int32_t size)
{
	return min(begin + window, size) - max(begin, 0);
}

/*
 * A thread has a cell of S x S elements of x, S the stride. The windows that contain any of them
 * begin in this cell or in one of the K - 1 cells before it, in each dimension.
 */
template <int W, int S, int DTYPE>
HZ_DEVICE void pool_bwd(const hzi_quat_pool_job &p)
{
	constexpr int K = (W + S - 1) / S;
	const walk t(p, p.cells[1]);
	const int32_t left = t.column * S - p.pad[1], first = t.column - (K - 1);

	if (!t.in)
		return;
	for (int32_t row = t.row; row < p.images * p.cells[0]; row += walk::step()) {
		const int32_t image = row / p.cells[0], image_row = row - image * p.cells[0];
		const int32_t top = image_row * S - p.pad[0], above = image_row - (K - 1);
		const int64_t src = image * p.y_stride[0] + above * p.y_stride[1] +
				    first * p.y_stride[2] + t.c * p.y_stride[3];
		const int64_t index = image * p.index_stride[0] + above * p.index_stride[1] +
				      first * p.index_stride[2] + t.c * p.index_stride[3];
		const int64_t dst = image * p.x_stride[0] + top * p.x_stride[1] +
				    left * p.x_stride[2] + t.c * p.x_stride[3];
		quat_raw<DTYPE> raw[K][K];
		int32_t best[K][K];
		quat d[K][K];

#pragma unroll
		for (int a = 0; a < K; a++)
#pragma unroll
			for (int b = 0; b < K; b++) {
				best[a][b] = NONE;
				if ((uint32_t)(above + a) >= (uint32_t)p.count[0] ||
				    (uint32_t)(first + b) >= (uint32_t)p.count[1])
					continue;
				best[a][b] = !p.max ? ALL :
					     p.index[index + a * p.index_stride[1] +
						     b * p.index_stride[2]];
				raw[a][b].load(p.y, src + a * p.y_stride[1] +
							    b * p.y_stride[2]);
			}
#pragma unroll
		for (int a = 0; a < K; a++)
#pragma unroll
			for (int b = 0; b < K; b++) {
				d[a][b] = raw[a][b].get(0);
				if (p.max)
					continue;

				const float count =
					(float)(inside((above + a) * S - p.pad[0], W, p.size[0]) *
						inside((first + b) * S - p.pad[1], W, p.size[1]));

				d[a][b] = {d[a][b].w / count, d[a][b].x / count,
					   d[a][b].y / count, d[a][b].z / count};
			}
#pragma unroll
		for (int i = 0; i < S; i++)
#pragma unroll
			for (int j = 0; j < S; j++) {
				const int32_t own = (top + i) * p.size[1] + left + j;
				const int64_t at = dst + i * p.x_stride[1] + j * p.x_stride[2];

				if ((uint32_t)(top + i) >= (uint32_t)p.size[0] ||
				    (uint32_t)(left + j) >= (uint32_t)p.size[1])
					continue;

				quat sum = old_of<DTYPE>(p, at);

#pragma unroll
				for (int a = 0; a < K; a++)
#pragma unroll
					for (int b = 0; b < K; b++) {
						const quat q = d[a][b];

						if ((K - 1 - a) * S + i >= W ||
						    (K - 1 - b) * S + j >= W)
							continue;
						if (best[a][b] == own || best[a][b] == ALL)
							sum = {sum.w + q.w, sum.x + q.x,
							       sum.y + q.y, sum.z + q.z};
					}
				store<DTYPE>(p.x, at, sum);
			}
	}
}

/* ---- Windows of 3 x 3, stride 1 -------------------------------------------------------------- */

/* A quaternion, its squared norm, and its index in the image; NONE: there is none. */
struct largest {
	quat q;
	double norm;
	int32_t index;

	/* Takes b, which is later in the window, if its norm is larger, or NaN before any NaN. */
	__device__ __forceinline__ void see(const largest &b)
	{
		if (b.index < 0 || !(index < 0 || b.norm > norm ||
				     (b.norm != b.norm && norm == norm)))
			return;
		*this = b;
	}
};

/* Which of three neighbouring columns are inside the array */
HZ_DEVICE void find_columns(bool (&column)[3], int32_t left, int32_t size)
{
#pragma unroll
	for (int b = 0; b < 3; b++)
		column[b] = (uint32_t)(left + b) < (uint32_t)size;
}

/* Loads three neighbours of a row: those inside the array. */
template <int DTYPE>
HZ_DEVICE void load_row(quat_raw<DTYPE> (&dst)[3], const void *data, int64_t src,
			const int64_t *stride, int32_t image_row, int32_t rows,
			const bool (&column)[3])
{
#pragma unroll
	for (int b = 0; b < 3; b++)
		if ((uint32_t)image_row < (uint32_t)rows && column[b])
			dst[b].load(data, src + image_row * stride[1] + b * stride[2]);
}

/* Loads the indices of three windows; NONE where there is no window. */
HZ_DEVICE void load_index(const hzi_quat_pool_job &p, int32_t (&dst)[3], int64_t src,
			  int32_t image_row, const bool (&column)[3])
{
#pragma unroll
	for (int b = 0; b < 3; b++) {
		dst[b] = NONE;
		if ((uint32_t)image_row < (uint32_t)p.count[0] && column[b])
			dst[b] = p.index[src + image_row * p.index_stride[1] +
					 b * p.index_stride[2]];
	}
}

/*
 * Maximum. A thread goes down a strip of rows; it keeps the largest of each of the last three rows,
 * so that each window needs one new row.
 */
template <int DTYPE>
HZ_DEVICE void largest_strip(const hzi_quat_pool_job &p)
{
	constexpr int STRIP = HZI_QUAT_POOL_STRIP;
	const walk t(p, p.count[1]);
	const int32_t left = t.column - p.pad[1];
	bool column[3];

	if (!t.in)
		return;
	find_columns(column, left, p.size[1]);
	for (int32_t row = t.row; row < p.images * p.strips; row += walk::step()) {
		const int32_t image = row / p.strips, begin = (row - image * p.strips) * STRIP;
		const int32_t lines = min(STRIP, p.count[0] - begin), top = begin - p.pad[0];
		const int64_t src = image * p.x_stride[0] + left * p.x_stride[2] +
				    t.c * p.x_stride[3];
		quat_raw<DTYPE> raw[3], next[3];
		largest most[3] = {{{}, 0, NONE}, {{}, 0, NONE}, {{}, 0, NONE}};

		load_row(next, p.x, src, p.x_stride, top, p.size[0], column);
		/* Not unrolled: more registers would lower occupancy. */
#pragma unroll 1
		for (int i = 0; i < lines + 2; i++) {
			const int32_t image_row = top + i;
			const bool inside_x = (uint32_t)image_row < (uint32_t)p.size[0];

#pragma unroll
			for (int b = 0; b < 3; b++)
				raw[b] = next[b];
			load_row(next, p.x, src, p.x_stride, image_row + 1, p.size[0], column);
			most[0] = most[1];
			most[1] = most[2];
			most[2].index = NONE;
#pragma unroll
			for (int b = 0; b < 3; b++) {
				largest one;

				if (!inside_x || !column[b])
					continue;
				one.q = raw[b].get(0);
				one.norm = (double)one.q.w * one.q.w;
				one.norm += (double)one.q.x * one.q.x;
				one.norm += (double)one.q.y * one.q.y;
				one.norm += (double)one.q.z * one.q.z;
				one.index = image_row * p.size[1] + left + b;
				most[2].see(one);
			}
			if (i < 2)
				continue;

			const int32_t y = begin + i - 2;
			largest all = {{0, 0, 0, 0}, 0, NONE};

#pragma unroll
			for (int a = 0; a < 3; a++)
				all.see(most[a]);
			store<DTYPE>(p.y, image * p.y_stride[0] + y * p.y_stride[1] +
					  t.column * p.y_stride[2] + t.c * p.y_stride[3], all.q);
			if (p.index)
				p.index[image * p.index_stride[0] + y * p.index_stride[1] +
					t.column * p.index_stride[2] + t.c * p.index_stride[3]] =
					all.index;
		}
	}
}

/* Its gradient: the windows that contain an element begin at it, or one or two before it. */
template <int DTYPE>
HZ_DEVICE void largest_strip_bwd(const hzi_quat_pool_job &p)
{
	constexpr int STRIP = HZI_QUAT_POOL_STRIP;
	const walk t(p, p.size[1]);
	const int32_t left = t.column + p.pad[1] - 2;
	bool column[3];

	if (!t.in)
		return;
	find_columns(column, left, p.count[1]);
	for (int32_t row = t.row; row < p.images * p.strips; row += walk::step()) {
		const int32_t image = row / p.strips, begin = (row - image * p.strips) * STRIP;
		const int32_t lines = min(STRIP, p.size[0] - begin), top = begin + p.pad[0] - 2;
		const int64_t src = image * p.y_stride[0] + left * p.y_stride[2] +
				    t.c * p.y_stride[3];
		const int64_t index = image * p.index_stride[0] + left * p.index_stride[2] +
				      t.c * p.index_stride[3];
		quat_raw<DTYPE> raw[3][3], next[3];
		int32_t best[3][3], next_best[3];

		load_row(next, p.y, src, p.y_stride, top, p.count[0], column);
		load_index(p, next_best, index, top, column);
#pragma unroll 1
		for (int i = 0; i < lines + 2; i++) {
			const int32_t image_row = top + i;

#pragma unroll
			for (int b = 0; b < 3; b++) {
				raw[0][b] = raw[1][b], best[0][b] = best[1][b];
				raw[1][b] = raw[2][b], best[1][b] = best[2][b];
				raw[2][b] = next[b], best[2][b] = next_best[b];
			}
			load_row(next, p.y, src, p.y_stride, image_row + 1, p.count[0], column);
			load_index(p, next_best, index, image_row + 1, column);
			if (i < 2)
				continue;

			const int32_t x = begin + i - 2, own = x * p.size[1] + t.column;
			const int64_t at = image * p.x_stride[0] + x * p.x_stride[1] +
					   t.column * p.x_stride[2] + t.c * p.x_stride[3];
			quat sum = old_of<DTYPE>(p, at);

#pragma unroll
			for (int a = 0; a < 3; a++)
#pragma unroll
				for (int b = 0; b < 3; b++)
					if (best[a][b] == own)
						sum = add(sum, raw[a][b].get(0));
			store<DTYPE>(p.x, at, sum);
		}
	}
}

/*
 * Average. A thread keeps the sums of three neighbours of the last three rows. FORWARD: y is the
 * sum of x over the window, divided by the number of elements inside x; else dx is the sum of dy,
 * each divided by that number of its window.
 */
template <bool FORWARD, int DTYPE>
HZ_DEVICE void average_strip(const hzi_quat_pool_job &p)
{
	constexpr int STRIP = HZI_QUAT_POOL_STRIP;
	const int32_t *const size = FORWARD ? p.size : p.count;
	const int32_t *const out = FORWARD ? p.count : p.size;
	const int64_t *const stride = FORWARD ? p.x_stride : p.y_stride;
	const int64_t *const out_stride = FORWARD ? p.y_stride : p.x_stride;
	const walk t(p, out[1]);
	const int32_t left = t.column + (FORWARD ? -p.pad[1] : p.pad[1] - 2);
	float extent[3];		/* inside x, of this column's window or of three windows */
	bool column[3];

	if (!t.in)
		return;
#pragma unroll
	for (int b = 0; b < 3; b++) {
		column[b] = (uint32_t)(left + b) < (uint32_t)size[1];
		extent[b] = (float)inside(left + (FORWARD ? 0 : b - p.pad[1]), 3, p.size[1]);
	}
	for (int32_t row = t.row; row < p.images * p.strips; row += walk::step()) {
		const int32_t image = row / p.strips, begin = (row - image * p.strips) * STRIP;
		const int32_t lines = min(STRIP, out[0] - begin);
		const int32_t top = begin + (FORWARD ? -p.pad[0] : p.pad[0] - 2);
		const int64_t src = image * stride[0] + left * stride[2] + t.c * stride[3];
		const int64_t dst = image * out_stride[0] + t.column * out_stride[2] +
				    t.c * out_stride[3];
		quat_raw<DTYPE> raw[3], next[3];
		quat sum[3];

		load_row(next, FORWARD ? p.x : p.y, src, stride, top, size[0], column);
#pragma unroll 2
		for (int i = 0; i < lines + 2; i++) {
			const int32_t image_row = top + i;

			sum[0] = sum[1];
			sum[1] = sum[2];
			sum[2] = {0, 0, 0, 0};
#pragma unroll
			for (int b = 0; b < 3; b++)
				raw[b] = next[b];
			load_row(next, FORWARD ? p.x : p.y, src, stride, image_row + 1, size[0],
				 column);
#pragma unroll
			for (int b = 0; b < 3; b++) {
				const float rows = (float)inside(image_row - p.pad[0], 3,
								 p.size[0]);
				const float each = FORWARD ? 1 : __frcp_rn(rows * extent[b]);

				if ((uint32_t)image_row < (uint32_t)size[0] && column[b])
					sum[2] = add(sum[2], raw[b].get(0), each);
			}
			if (i < 2)
				continue;

			const int32_t own = begin + i - 2;
			const int64_t at = dst + own * out_stride[1];
			const float rows = (float)inside(image_row - 2, 3, p.size[0]);
			quat all = {0, 0, 0, 0};

			if (!FORWARD)
				all = old_of<DTYPE>(p, at);
			all = add(all, add(add(sum[0], sum[1]), sum[2]),
				  FORWARD ? __frcp_rn(rows * extent[0]) : 1);
			store<DTYPE>(FORWARD ? p.y : p.x, at, all);
		}
	}
}

template <bool FORWARD, int DTYPE>
HZ_DEVICE void strip(const hzi_quat_pool_job &p)
{
	if (FORWARD)
		largest_strip<DTYPE>(p);
	else
		largest_strip_bwd<DTYPE>(p);
}

/* blocks: least blocks per SM that registers are limited for; 0: no limit */
#define KERNEL(name, blocks, body, ...) \
	extern "C" __global__ void __launch_bounds__(THREADS, blocks) \
	name(const __grid_constant__ hzi_quat_pool_job p) \
	{ \
		body<__VA_ARGS__>(p); \
	}
#define KERNELS(name, body, ...) \
	KERNEL(name##_f32, 0, body, __VA_ARGS__, HZ_F32) \
	KERNEL(name##_f16, 0, body, __VA_ARGS__, HZ_F16) \
	KERNEL(name##_bf16, 0, body, __VA_ARGS__, HZ_BF16)

KERNELS(quat_pool_2x2, pool, 2)
KERNELS(quat_pool_3x3, pool, 3)
KERNELS(quat_pool_bwd_2x2_stride2, pool_bwd, 2, 2)
KERNELS(quat_pool_bwd_3x3_stride2, pool_bwd, 3, 2)
KERNEL(quat_pool_max_3x3_stride1_f32, 4, strip, true, HZ_F32)
KERNEL(quat_pool_max_3x3_stride1_f16, 3, strip, true, HZ_F16)
KERNEL(quat_pool_max_3x3_stride1_bf16, 3, strip, true, HZ_BF16)
KERNEL(quat_pool_max_bwd_3x3_stride1_f32, 3, strip, false, HZ_F32)
KERNEL(quat_pool_max_bwd_3x3_stride1_f16, 3, strip, false, HZ_F16)
KERNEL(quat_pool_max_bwd_3x3_stride1_bf16, 3, strip, false, HZ_BF16)
KERNELS(quat_pool_average_3x3_stride1, average_strip, true)
KERNELS(quat_pool_average_bwd_3x3_stride1, average_strip, false)
