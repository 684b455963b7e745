/*
 * batchnorm_contiguous.cu - batch normalization and dropout of contiguous quaternions, by dtype
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * With the dtype as a constant several loads are in flight: a branch on the dtype would wait for
 * each load. The arithmetic is that of lib/quat_layer/step_math.h and lib/quat_layer/sums_math.h.
 */
#include "gpu/quat_layer/quat_layer.cuh"

/* ---- Maps ------------------------------------------------------------------------------------ */

#define IN_FLIGHT 4

template <int DTYPE>
HZ_DEVICE void dropout(const hzi_quat_map_step &p)
{
	const int64_t all = (int64_t)gridDim.x * THREADS * IN_FLIGHT;
	int64_t first = (int64_t)blockIdx.x * THREADS * IN_FLIGHT + threadIdx.x;

	for (; first < p.total; first += all) {
		element<DTYPE> raw[IN_FLIGHT];

#pragma unroll
		for (int k = 0; k < IN_FLIGHT; k++)
			if (first + k * THREADS < p.total)
				raw[k].load(p.a, (first + k * THREADS) * p.a.stride[0]);
#pragma unroll
		for (int k = 0; k < IN_FLIGHT; k++) {
			const int64_t i = first + k * THREADS;
			hzi_quat q = raw[k].get();

			if (i >= p.total)
				continue;

			const bool drops = hzi_quat_uniform(p.seed, p.offset +
							    (uint64_t)i) < p.drop;

#pragma unroll
			for (int c = 0; c < 4; c++)
				q.c[c] = drops ? 0 : q.c[c] * (hzi_quat_real)p.scale;
			element<DTYPE>::store(p.out, i * p.out.stride[0], q);
		}
	}
}

/* A thread goes through rows of one channel, whose coefficients stay in registers. */
struct channel_rows {
	int64_t c, row, rows, step;

	__device__ __forceinline__ explicit channel_rows(const hzi_quat_map_step &p)
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

	/* The offset of (row r, channel c) of an array of one or two dimensions */
	static __device__ __forceinline__ int64_t offset(const hzi_quat_array &a, int ndim,
							int64_t r, int64_t c)
	{
		return (ndim > 1 ? r * a.stride[0] : 0) + c * a.stride[ndim - 1];
	}
};

template <int KIND, int DTYPE>
HZ_DEVICE void affine(const hzi_quat_map_step &p)
{
	typedef typename coefficients<KIND>::type type;
	constexpr bool BACKWARD = KIND == HZI_QUAT_MAP_AFFINE_BWD;
	constexpr int ROWS = DTYPE == HZ_F32 || BACKWARD ? 4 : 8;	/* in flight */
	channel_rows t(p);

	pdl_launch_dependents();
	pdl_wait();

	if (t.c >= p.shape[p.ndim - 1])
		return;

	const type own = ((const type *)p.coef)[t.c];

	for (; t.row < t.rows; t.row += ROWS * t.step) {
		element<DTYPE> x[ROWS], dy[BACKWARD ? ROWS : 1];

#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			const int64_t row = t.row + k * t.step;

			if (row >= t.rows)
				continue;
			x[k].load(p.a, t.offset(p.a, p.ndim, row, t.c));
			if (BACKWARD)
				dy[BACKWARD ? k : 0].load(p.b, t.offset(p.b, p.ndim, row, t.c));
		}
#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			hzi_quat q = x[k].get(), d;
			const hzi_quat b = dy[BACKWARD ? k : 0].get();

			if (t.row + k * t.step >= t.rows)
				continue;
#pragma unroll
			for (int c = 0; c < 4; c++) {
				q.c[c] -= own.mean[c];
				d.c[c] = own.shift[c];
			}
			if constexpr (BACKWARD)
				hzi_quat_add_product(d.c, own.n, q.c);
			hzi_quat_add_product(d.c, own.m, BACKWARD ? b.c : q.c);
			element<DTYPE>::store(
				p.out, t.offset(p.out, p.ndim, t.row + k * t.step, t.c), d);
		}
	}
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define KERNELS(name, type, body, ...) \
	KERNEL(name##_f32, type) { body<__VA_ARGS__ HZ_F32>(p); } \
	KERNEL(name##_f16, type) { body<__VA_ARGS__ HZ_F16>(p); } \
	KERNEL(name##_bf16, type) { body<__VA_ARGS__ HZ_BF16>(p); }
#define KIND(kind) kind,		/* the first argument of a template with two */

KERNELS(quat_layer_dropout, hzi_quat_map_step, dropout)
KERNELS(quat_layer_affine, hzi_quat_map_step, affine, KIND(HZI_QUAT_MAP_AFFINE))
KERNELS(quat_layer_affine_bwd, hzi_quat_map_step, affine, KIND(HZI_QUAT_MAP_AFFINE_BWD))
KERNELS(quat_layer_sum, hzi_quat_sum_step, sum, KIND(HZI_QUAT_SUM_PLAIN))
#undef KERNEL
/* Three blocks per SM: the chunks that lib/quat_layer/plan.c makes of a call run in one wave. */
#define KERNEL(name, type) \
	extern "C" __global__ void __launch_bounds__(THREADS, 3) \
	name(const __grid_constant__ type p)
KERNELS(quat_layer_cross, hzi_quat_sum_step, sum, KIND(HZI_QUAT_SUM_CROSS))
KERNELS(quat_layer_moments, hzi_quat_sum_step, moments)
