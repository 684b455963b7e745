/*
 * quat_layer.cu - the steps of quaternion layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread does one quaternion at a time, neighbours in the last dimension being with neighbouring
 * threads, so that what lies back to back is moved in whole lines.
 */
#include "gpu/quat_layer.cuh"

/* ---- Maps ------------------------------------------------------------------------------------ */

template <int KIND>
HZ_DEVICE void map(const hzi_qmap_args &p)
{
	for (int64_t i = first_element(); i < p.total; i += step_elements()) {
		int64_t at[4] = {0, 0, 0, 0}, rest = i, index;

		for (int d = p.ndim - 1; d >= 0; d--) {
			if (d > 0)
				rest = divide(rest, p.shape[d], &index);
			else
				index = rest;
			at[0] += index * p.a.stride[d];
			at[1] += index * p.b.stride[d];
			at[2] += index * p.out.stride[d];
			at[3] += index * p.pre.stride[d];
		}
		hzi_qmap_one(&p, KIND, i, 0, at);
	}
}

KERNEL(quat_map_copy, hzi_qmap_args) { map<HZI_QMAP_COPY>(p); }
KERNEL(quat_map_act, hzi_qmap_args) { map<HZI_QMAP_ACT>(p); }
KERNEL(quat_map_act_bwd, hzi_qmap_args) { map<HZI_QMAP_ACT_BWD>(p); }
KERNEL(quat_map_dropout, hzi_qmap_args) { map<HZI_QMAP_DROPOUT>(p); }
KERNEL(quat_map_init, hzi_qmap_args) { map<HZI_QMAP_INIT>(p); }

template <int KIND>
struct coefficients {
	typedef hzi_qaffine type;
};

template <>
struct coefficients<HZI_QMAP_AFFINE_BWD> {
	typedef hzi_qaffine_bwd type;
};

/*
 * The affine maps: a thread keeps its channel, whose coefficients stay in registers, and goes
 * through rows. The grid's y counts blocks of channels.
 */
template <int KIND>
HZ_DEVICE void affine(const hzi_qmap_args &p)
{
	typedef typename coefficients<KIND>::type type;
	const int64_t channels = p.shape[p.ndim - 1], rows = p.total / channels;
	int lanes = HZI_QUAT_SUM_LANES;

	while (lanes / 2 >= channels)
		lanes /= 2;
	const int64_t lines = THREADS / lanes;
	const int64_t first = (int64_t)blockIdx.x * lines + (int)threadIdx.x / lanes;

	for (int64_t c = (int64_t)blockIdx.y * lanes + (int)threadIdx.x % lanes; c < channels;
	     c += (int64_t)gridDim.y * lanes) {
		const type own = ((const type *)p.coef)[c];

		for (int64_t r = first; r < rows; r += gridDim.x * lines) {
			int64_t at[4], rest = r, index;
			const int last = p.ndim - 1;

			at[0] = c * p.a.stride[last];
			at[1] = c * p.b.stride[last];
			at[2] = c * p.out.stride[last];
			for (int d = last - 1; d >= 0; d--) {
				if (d > 0)
					rest = divide(rest, p.shape[d], &index);
				else
					index = rest;
				at[0] += index * p.a.stride[d];
				at[1] += index * p.b.stride[d];
				at[2] += index * p.out.stride[d];
			}
			hzi_qmap_one(&p, KIND, r, &own, at);
		}
	}
}

KERNEL(quat_map_affine, hzi_qmap_args) { affine<HZI_QMAP_AFFINE>(p); }
KERNEL(quat_map_affine_bwd, hzi_qmap_args) { affine<HZI_QMAP_AFFINE_BWD>(p); }

/* ---- Patches --------------------------------------------------------------------------------- */

/* A thread has a channel of a pixel, and copies what all taps see of it. */
template <class T>
HZ_DEVICE void patch(const hzi_qpatch_args &p)
{
	typedef typename T::quaternion quaternion;
	typedef typename T::number number;
	const int64_t taps = p.taps[0] * p.taps[1] * p.taps[2];

	for (int64_t i = first_element(); i < p.rows * p.groups * p.channels;
	     i += step_elements()) {
		int64_t c, g, u[3], row, rest, low[3];
		row = divide(divide(i, p.channels, &c), p.groups, &g);
		rest = divide(row + p.first, p.count[2], &u[2]);
		rest = divide(rest, p.count[1], &u[1]);
		rest = divide(rest, p.count[0], &u[0]);
		const number *x = (const number *)p.x.data + rest * p.x.stride[0] +
				  (g * p.channels + c) * p.x.stride[4];
		quaternion *to = (quaternion *)p.out + (row * p.groups + g) * taps * p.channels + c;

		for (int d = 0; d < 3; d++)
			low[d] = u[d] * p.step[d] + p.base[d];
		for (int64_t t0 = 0; t0 < p.taps[0]; t0++) {
			const int64_t a0 = low[0] + t0 * p.each[0];

			for (int64_t t1 = 0; t1 < p.taps[1]; t1++) {
				const int64_t a1 = low[1] + t1 * p.each[1];
				const bool line = a0 >= 0 && a0 < p.size[0] && a1 >= 0 &&
						  a1 < p.size[1];
				const number *from =
					x + a0 * p.x.stride[1] + a1 * p.x.stride[2];

#pragma unroll 3
				for (int64_t t2 = 0; t2 < p.taps[2]; t2++, to += p.channels) {
					const int64_t a2 = low[2] + t2 * p.each[2];
					const number *at = from + a2 * p.x.stride[3];
					quaternion v = {0, 0, 0, 0};

					if (line && a2 >= 0 && a2 < p.size[2])
						v = p.x.whole ? *(const quaternion *)at :
							quaternion{at[p.x.comp[0]],
								   at[p.x.comp[1]],
								   at[p.x.comp[2]],
								   at[p.x.comp[3]]};
					*to = v;
				}
			}
		}
	}
}

struct of_32_bits {
	typedef float4 quaternion;
	typedef float number;
};

struct of_16_bits {
	typedef ushort4 quaternion;
	typedef uint16_t number;
};

KERNEL(quat_patch, hzi_qpatch_args)
{
	if (p.x.dtype == HZ_F32)
		patch<of_32_bits>(p);
	else
		patch<of_16_bits>(p);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

KERNEL(quat_sum_plain, hzi_qsum_args) { sum<HZI_QSUM_PLAIN, 0>(p); }
KERNEL(quat_sum_squares, hzi_qsum_args) { sum<HZI_QSUM_SQUARES, 0>(p); }
KERNEL(quat_sum_cross, hzi_qsum_args) { sum<HZI_QSUM_CROSS, 0>(p); }
KERNEL(quat_sum_moments, hzi_qsum_args) { moments<0>(p); }

/* A block for each channel, a lane for each value: chunks by warps, then warps in order */
KERNEL(quat_finish, hzi_qfinish_args)
{
	constexpr int WARPS = THREADS / 32;
	__shared__ double part[WARPS][32];
	const int values = hzi_qfinish_values(p.kind);
	const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

	grid_next();
	grid_wait();
	for (int64_t channel = blockIdx.x; channel < p.channels; channel += gridDim.x) {
		const double *from = p.part + channel * values + lane;
		double sum = 0;

#pragma unroll 16
		for (int64_t k = warp; k < p.chunks && lane < values; k += WARPS)
			sum += from[k * p.channels * values];
		part[warp][lane] = sum;
		__syncthreads();
		if (threadIdx.x == 0) {
			double total[20];

			for (int v = 0; v < 20; v++) {
				total[v] = 0;
				for (int w = 0; w < WARPS && v < values; w++)
					total[v] += part[w][v];
			}
			hzi_qfinish_one(&p, channel, total);
		}
		__syncthreads();
	}
}

/* ---- Pooling, rotations ---------------------------------------------------------------------- */

KERNEL(quat_pool, hzi_qpool_args)
{
	const int64_t total = p.images * p.count[0] * p.count[1] * p.count[2] * p.channels;

	for (int64_t i = first_element(); i < total; i += step_elements())
		hzi_qpool_one(&p, hzi_qplace(i, p.count, p.channels));
}

KERNEL(quat_pool_bwd, hzi_qpool_args)
{
	const int64_t total = p.images * p.size[0] * p.size[1] * p.size[2] * p.channels;

	for (int64_t i = first_element(); i < total; i += step_elements())
		hzi_qpool_bwd_one(&p, hzi_qplace(i, p.size, p.channels));
}

/* Of windows that do not overlap and leave nothing out */
KERNEL(quat_pool_bwd_windows, hzi_qpool_args)
{
	const int64_t total = p.images * p.count[0] * p.count[1] * p.count[2] * p.channels;

	for (int64_t i = first_element(); i < total; i += step_elements())
		hzi_qpool_bwd_window(&p, hzi_qplace(i, p.count, p.channels));
}

KERNEL(quat_rotation, hzi_qrotation_args)
{
	for (int64_t i = first_element(); i < p.n * p.m; i += step_elements())
		hzi_qrotation_one(&p, i / p.m, i % p.m);
}

KERNEL(quat_rotation_bwd, hzi_qrotation_args)
{
	for (int64_t i = first_element(); i < p.n * p.m; i += step_elements())
		hzi_qrotation_bwd_one(&p, i / p.m, i % p.m);
}
