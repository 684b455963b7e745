/*
 * batchnorm_contiguous.cu - normalization and dropout of whole quaternions of one dtype
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Where the dtype is known several elements are under way: a conversion behind a branch waits for
 * each load. The arithmetic is that of lib/quat_layer/step_math.h and lib/quat_layer/sums_math.h.
 */
#include "gpu/quat_layer/quat_layer.cuh"

/* ---- Maps ------------------------------------------------------------------------------------ */

#define UNDER_WAY 4

template <int DTYPE>
HZ_DEVICE void dropout(const hzi_quat_map_step &p)
{
	const int64_t all = (int64_t)gridDim.x * THREADS * UNDER_WAY;
	int64_t first = (int64_t)blockIdx.x * THREADS * UNDER_WAY + threadIdx.x;

	for (; first < p.total; first += all) {
		qraw<DTYPE> raw[UNDER_WAY];

#pragma unroll
		for (int k = 0; k < UNDER_WAY; k++)
			if (first + k * THREADS < p.total)
				raw[k].load(p.a, (first + k * THREADS) * p.a.stride[0]);
#pragma unroll
		for (int k = 0; k < UNDER_WAY; k++) {
			const int64_t i = first + k * THREADS;
			hzi_quat q = raw[k].get();

			if (i >= p.total)
				continue;

			const bool drops = hzi_quat_uniform(p.seed, p.offset +
							    (uint64_t)i) < p.drop;

#pragma unroll
			for (int c = 0; c < 4; c++)
				q.c[c] = drops ? 0 : q.c[c] * (hzi_quat_real)p.scale;
			qraw<DTYPE>::store(p.out, i * p.out.stride[0], q);
		}
	}
}

/* A thread keeps its channel, whose coefficients stay in registers, and goes through rows. */
struct channel_walk {
	int64_t c, row, rows, step;

	__device__ __forceinline__ explicit channel_walk(const hzi_quat_map_step &p)
	{
		const int64_t channels = p.shape[p.ndim - 1];
		int lanes = HZI_QUAT_SUM_LANES;

		while (lanes / 2 >= channels)
			lanes /= 2;
		rows = p.total / channels;
		step = (int64_t)gridDim.x * (THREADS / lanes);
		row = (int64_t)blockIdx.x * (THREADS / lanes) + (int)threadIdx.x / lanes;
		c = (int64_t)blockIdx.y * lanes + (int)threadIdx.x % lanes;
	}

	/* Of an array of rows that step alike */
	static __device__ __forceinline__ int64_t place(const hzi_quat_array &a, int ndim,
							int64_t r, int64_t c)
	{
		return (ndim > 1 ? r * a.stride[0] : 0) + c * a.stride[ndim - 1];
	}
};

template <int DTYPE>
HZ_DEVICE void affine(const hzi_quat_map_step &p)
{
	constexpr int ROWS = DTYPE == HZ_F32 ? 4 : 8;	/* under way */
	channel_walk t(p);

	pdl_launch_dependents();
	pdl_wait();

	if (t.c >= p.shape[p.ndim - 1])
		return;

	const hzi_quat_affine own = ((const hzi_quat_affine *)p.coef)[t.c];

	for (; t.row < t.rows; t.row += ROWS * t.step) {
		qraw<DTYPE> raw[ROWS];

#pragma unroll
		for (int k = 0; k < ROWS; k++)
			if (t.row + k * t.step < t.rows)
				raw[k].load(p.a, t.place(p.a, p.ndim, t.row + k * t.step, t.c));
#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			hzi_quat q = raw[k].get(), d;

			if (t.row + k * t.step >= t.rows)
				continue;
#pragma unroll
			for (int c = 0; c < 4; c++) {
				q.c[c] -= own.mean[c];
				d.c[c] = own.shift[c];
			}
			hzi_quat_add_product(d.c, own.m, q.c);
			qraw<DTYPE>::store(p.out,
					   t.place(p.out, p.ndim, t.row + k * t.step, t.c), d);
		}
	}
}

template <int DTYPE>
HZ_DEVICE void affine_bwd(const hzi_quat_map_step &p)
{
	channel_walk t(p);

	pdl_launch_dependents();
	pdl_wait();

	if (t.c >= p.shape[p.ndim - 1])
		return;

	const hzi_quat_affine_bwd own = ((const hzi_quat_affine_bwd *)p.coef)[t.c];

	for (; t.row < t.rows; t.row += UNDER_WAY * t.step) {
		qraw<DTYPE> x[UNDER_WAY], dy[UNDER_WAY];

#pragma unroll
		for (int k = 0; k < UNDER_WAY; k++) {
			const int64_t row = t.row + k * t.step;

			if (row >= t.rows)
				continue;
			x[k].load(p.a, t.place(p.a, p.ndim, row, t.c));
			dy[k].load(p.b, t.place(p.b, p.ndim, row, t.c));
		}
#pragma unroll
		for (int k = 0; k < UNDER_WAY; k++) {
			hzi_quat q = x[k].get(), d;
			const hzi_quat b = dy[k].get();

			if (t.row + k * t.step >= t.rows)
				continue;
#pragma unroll
			for (int c = 0; c < 4; c++) {
				q.c[c] -= own.mean[c];
				d.c[c] = own.shift[c];
			}
			hzi_quat_add_product(d.c, own.n, q.c);
			hzi_quat_add_product(d.c, own.m, b.c);
			qraw<DTYPE>::store(p.out,
					   t.place(p.out, p.ndim, t.row + k * t.step, t.c), d);
		}
	}
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define KERNELS(name, type, body, ...) \
	KERNEL(name##_f32, type) { body<__VA_ARGS__ HZ_F32>(p); } \
	KERNEL(name##_f16, type) { body<__VA_ARGS__ HZ_F16>(p); } \
	KERNEL(name##_bf16, type) { body<__VA_ARGS__ HZ_BF16>(p); }
#define KIND(kind) kind,		/* an argument more of a template */

KERNELS(quat_dropout, hzi_quat_map_step, dropout)
KERNELS(quat_affine, hzi_quat_map_step, affine)
KERNELS(quat_affine_bwd, hzi_quat_map_step, affine_bwd)
KERNELS(quat_plain, hzi_quat_sum_step, sum, KIND(HZI_QUAT_SUM_PLAIN))
#undef KERNEL
/* Three blocks on a multiprocessor: one wave has what lib/quat_layer/plan.c makes of a call. */
#define KERNEL(name, type) \
	extern "C" __global__ void __launch_bounds__(THREADS, 3) \
	name(const __grid_constant__ type p)
KERNELS(quat_cross, hzi_quat_sum_step, sum, KIND(HZI_QUAT_SUM_CROSS))
KERNELS(quat_moments, hzi_quat_sum_step, moments)
