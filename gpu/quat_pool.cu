/*
 * quat_pool.cu - pooling of quaternions over windows of 2 x 2 and 3 x 3, and its gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Neighbouring threads have neighbouring channels and columns, and go through rows, so that places
 * are divided once. All that a thread reads is under way together. The sums, and their order, are
 * those of lib/quat_step.h.
 */
#include "gpu/quat_gemm.cuh"
#include "gpu/quat_pool.h"

#define THREADS HZI_QUAT_POOL_THREADS

template <int DTYPE>
HZ_DEVICE void store(void *data, int64_t at, quat q)
{
	if (DTYPE == HZ_F32)
		*(float4 *)((float *)data + at) = make_float4(q.w, q.x, q.y, q.z);
	else
		*(uint2 *)((uint16_t *)data + at) = quat_pack(DTYPE, q);
}

/* What a thread has: a channel of a column, and rows of images from row on. */
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
		const int32_t image = row / p.count[0], line = row - image * p.count[0];
		const int32_t top = line * p.step[0] - p.pad[0];
		const int64_t from = image * p.x_stride[0] + top * p.x_stride[1] +
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
					raw[a][b].load(p.x, from + a * p.x_stride[1] +
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
		store<DTYPE>(p.y, image * p.y_stride[0] + line * p.y_stride[1] +
				  t.column * p.y_stride[2] + t.c * p.y_stride[3], sum);
		if (p.index)
			p.index[image * p.index_stride[0] + line * p.index_stride[1] +
				t.column * p.index_stride[2] + t.c * p.index_stride[3]] = best;
	}
}

/* How many of a window's places lie inside, in one dimension. */
HZ_DEVICE int32_t inside(int32_t begin, int32_t window, int32_t size)
{
	return min(begin + window, size) - max(begin, 0);
}

/*
 * A thread has a cell of S by S elements of x. Windows that hold any of these begin with this cell
 * or with one of the K - 1 ahead of it.
 */
template <int W, int S, int DTYPE>
HZ_DEVICE void pool_bwd(const hzi_quat_pool_job &p)
{
	constexpr int K = (W + S - 1) / S;
	constexpr int32_t NONE = -1, ALL = -2;	/* instead of an index */
	const walk t(p, p.cells[1]);
	const int32_t left = t.column * S - p.pad[1], first = t.column - (K - 1);

	if (!t.in)
		return;
	for (int32_t row = t.row; row < p.images * p.cells[0]; row += walk::step()) {
		const int32_t image = row / p.cells[0], line = row - image * p.cells[0];
		const int32_t top = line * S - p.pad[0], above = line - (K - 1);
		const int64_t from = image * p.y_stride[0] + above * p.y_stride[1] +
				     first * p.y_stride[2] + t.c * p.y_stride[3];
		const int64_t index = image * p.index_stride[0] + above * p.index_stride[1] +
				      first * p.index_stride[2] + t.c * p.index_stride[3];
		const int64_t to = image * p.x_stride[0] + top * p.x_stride[1] +
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
				raw[a][b].load(p.y, from + a * p.y_stride[1] +
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
				const int64_t at = to + i * p.x_stride[1] + j * p.x_stride[2];
				quat sum = {0, 0, 0, 0};

				if ((uint32_t)(top + i) >= (uint32_t)p.size[0] ||
				    (uint32_t)(left + j) >= (uint32_t)p.size[1])
					continue;
				if (p.accumulate) {
					quat_raw<DTYPE> old;

					old.load(p.x, at);
					sum = old.get(0);
				}
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

#define KERNEL(name, body, ...) \
	extern "C" __global__ void __launch_bounds__(THREADS) \
	name(const __grid_constant__ hzi_quat_pool_job p) \
	{ \
		body<__VA_ARGS__>(p); \
	}
#define KERNELS(name, body, ...) \
	KERNEL(name##_f32, body, __VA_ARGS__, HZ_F32) \
	KERNEL(name##_f16, body, __VA_ARGS__, HZ_F16) \
	KERNEL(name##_bf16, body, __VA_ARGS__, HZ_BF16)

KERNELS(quat_pool_2, pool, 2)
KERNELS(quat_pool_3, pool, 3)
KERNELS(quat_pool_bwd_2_by_2, pool_bwd, 2, 2)
KERNELS(quat_pool_bwd_3_by_2, pool_bwd, 3, 2)
KERNELS(quat_pool_bwd_3_by_1, pool_bwd, 3, 1)
