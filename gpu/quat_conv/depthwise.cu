/*
 * depthwise.cu - quaternion convolutions with few channels in a group or few outputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * direct: few channels on both sides. A thread computes one output channel of 4 pixels of a row;
 * neighbouring threads have neighbouring channels.
 * 3x3, 5x5, 7x7: depthwise (one channel in a group), taps that are neighbours, stride 1. A thread
 * computes 8 rows by 2 columns of a channel.
 * warp: one to three outputs of many channels. A warp computes the outputs of 4 pixels; its lanes
 * share the channels.
 * wgrad: gradients of weights. A thread has one pair of channels and a few taps, and sums over a
 * part of the pixels. quat_conv_wgrad_reduce adds up the parts in their order.
 *
 * _strided kernels support any strides and dtype, the others contiguous quaternions of a dtype.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_gemm/epilogue.cuh"

#define ANY_LAYOUT (-1)
#define PIXELS HZI_DEPTHWISE_PIXELS

/*
 * A quaternion as loaded, or 0. ANY_LAYOUT: of any strides and dtype; that load is not inlined,
 * since there would be many copies of it.
 */
template <int DTYPE>
struct element {
	quat_raw<DTYPE> raw;

	__device__ __forceinline__ void load(const hzi_quat_matrix &m, int64_t at, bool inside)
	{
		raw = {};
		if (inside)
			raw.load(m.data, at);
	}

	__device__ __forceinline__ quat get(uint32_t mask) const
	{
		return raw.get(mask);
	}
};

static __device__ __noinline__ quat load_strided(const hzi_quat_matrix &m, int64_t at)
{
	return quat_load<true>(m, at);
}

template <>
struct element<ANY_LAYOUT> {
	quat q;

	__device__ __forceinline__ void load(const hzi_quat_matrix &m, int64_t at, bool inside)
	{
		q = {};
		if (inside)
			q = load_strided(m, at);
	}

	__device__ __forceinline__ quat get(uint32_t mask) const
	{
		return quat_flip_signs(q, mask);
	}
};

HZ_DEVICE uint32_t conj_mask(const hzi_quat_matrix &m)
{
	return m.conj ? 0x80000000 : 0;
}

/* PIXELS output pixels of a row, from column at[2] on */
struct pixels {
	int image, at[3];

	__device__ __forceinline__ pixels(int image, int slab, int row, int column)
		: image(image), at{slab, row, column}
	{
	}

	__device__ __forceinline__ pixels(const hzi_quat_conv_window &s, int64_t i)
	{
		at[2] = (int)(i % s.strips) * PIXELS, i /= s.strips;
		at[1] = (int)(i % s.count[1]), i /= s.count[1];
		at[0] = (int)(i % s.count[0]);
		image = (int)(i / s.count[0]);
	}
};

HZ_DEVICE void put(const hzi_quat_conv_direct &p, const pixels &o, int pixel, int row, quat q)
{
	int64_t dst = o.image * p.c_stride[0], pre = o.image * p.pre_stride[0];

	if (o.at[2] + pixel >= p.s.count[2])
		return;
#pragma unroll
	for (int d = 0; d < 3; d++) {
		const int at = d < 2 ? o.at[d] : o.at[2] + pixel;

		dst += at * p.c_stride[1 + d];
		pre += at * p.pre_stride[1 + d];
	}
	if (p.no_epilogue)
		quat_store<true>(p.out.c, dst + row * p.out.c.row,
			   quat_flip_signs(q, conj_mask(p.out.c)));
	else
		quat_finish_compact(p.out, dst, pre, row, 0, q);
}

/* The same, not inlined: for kernels that store many pixels at once */
static __device__ __noinline__ void put_call(const hzi_quat_conv_direct &p, pixels o, int pixel,
					     int row, quat q)
{
	put(p, o, pixel, row, q);
}

/*
 * Adds to the accumulators of `there` of OUTS output channels of a group, from channel `row` on,
 * what all taps read of input channels first, first + LANES, ...
 */
template <int DTYPE, int OUTS, int LANES>
HZ_DEVICE void add_taps(const hzi_quat_conv_direct &p, const pixels &o, int group, int row,
			int inside, int first, quat (&sum)[OUTS][PIXELS])
{
	const hzi_quat_conv_window &s = p.s;
	const uint32_t mask_x = conj_mask(s.x), mask_w = conj_mask(p.w);
	const int64_t w0 = group * p.w.batch[0] + row * p.w.row;
	const int64_t x0 = o.image * s.x_stride[0] + (int64_t)group * s.channels * s.x.col;
	const int left = s.step[2] * o.at[2] + s.base[2];

	for (int t0 = 0; t0 < s.taps[0]; t0++) {
		const int a0 = s.step[0] * o.at[0] + s.each[0] * t0 + s.base[0];

		for (int t1 = 0; t1 < s.taps[1]; t1++) {
			const int a1 = s.step[1] * o.at[1] + s.each[1] * t1 + s.base[1];
			const int64_t x1 = x0 + a0 * s.x_stride[1] + a1 * s.x_stride[2];
			int64_t w1 = w0 + (int64_t)(t0 * s.taps[1] + t1) * s.taps[2] * s.channels *
						  p.w.col;

			if ((uint32_t)a0 >= (uint32_t)s.size[0] ||
			    (uint32_t)a1 >= (uint32_t)s.size[1])
				continue;
			for (int t2 = 0; t2 < s.taps[2]; t2++) {
				const int a2 = left + s.each[2] * t2;

#pragma unroll 1
				for (int c = first; c < s.channels; c += LANES) {
					element<DTYPE> w[OUTS], x[PIXELS];

#pragma unroll
					for (int j = 0; j < PIXELS; j++) {
						const int a = a2 + s.step[2] * j;

						x[j].load(s.x,
							  x1 + a * s.x_stride[3] + c * s.x.col,
							  (uint32_t)a < (uint32_t)s.size[2]);
					}
#pragma unroll
					for (int m = 0; m < OUTS; m++)
						w[m].load(p.w, w1 + m * p.w.row + c * p.w.col,
							  m < inside);
#pragma unroll
					for (int m = 0; m < OUTS; m++) {
						if (m >= inside)
							break;
#pragma unroll
						for (int j = 0; j < PIXELS; j++)
							sum[m][j] = quat_fma(w[m].get(mask_w),
									     x[j].get(mask_x),
									     sum[m][j]);
					}
				}
				w1 += s.channels * p.w.col;
			}
		}
	}
}

/* ---- direct: few channels -------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void depthwise_direct(const hzi_quat_conv_direct &p)
{
	const hzi_quat_conv_window &s = p.s;
	const int outs = s.groups * s.outs;
	const int64_t step = (int64_t)gridDim.x * HZI_DEPTHWISE_THREADS;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * HZI_DEPTHWISE_THREADS + threadIdx.x; i < p.total;
	     i += step) {
		const pixels o(s, i / outs);
		const int row = (int)(i % outs), group = row / s.outs;
		quat sum[1][PIXELS] = {};

		add_taps<DTYPE, 1, 1>(p, o, group, row - group * s.outs, 1, 0, sum);
#pragma unroll
		for (int j = 0; j < PIXELS; j++)
			put_call(p, o, j, row, sum[0][j]);
	}
}

/* ---- 3x3, 5x5, 7x7: depthwise ---------------------------------------------------------------- */

#define COLUMNS HZI_DEPTHWISE_COLUMNS

/* Row `a` of a channel's taps, in the order in which they read x */
template <int DTYPE, int TAPS>
HZ_DEVICE void load_weights(const hzi_quat_conv_direct &p, int channel, int a, quat (&w)[TAPS])
{
	const int t1 = p.s.each[1] > 0 ? a : TAPS - 1 - a;
	element<DTYPE> e[TAPS];

#pragma unroll
	for (int b = 0; b < TAPS; b++) {
		const int t2 = p.s.each[2] > 0 ? b : TAPS - 1 - b;

		e[b].load(p.w, channel * p.w.batch[0] + (TAPS * t1 + t2) * p.w.col, true);
	}
#pragma unroll
	for (int b = 0; b < TAPS; b++)
		w[b] = e[b].get(conj_mask(p.w));
}

/*
 * A thread goes down the rows of its columns: for each row of x it reads, it updates the
 * accumulators of the TAPS output rows that the row contributes to. The next row of x is in flight.
 */
template <int DTYPE, int TAPS>
HZ_DEVICE void depthwise_square(const hzi_quat_conv_direct &p)
{
	constexpr int READS = COLUMNS + TAPS - 1;
	/* 3 x 3 weights stay in registers; more are read again for each row. */
	constexpr bool KEPT = TAPS == 3;
	const hzi_quat_conv_window &s = p.s;
	const int64_t step = (int64_t)gridDim.x * HZI_DEPTHWISE_THREADS;
	const uint32_t mask_x = conj_mask(s.x);
	const int strips = (s.count[1] + HZI_DEPTHWISE_ROWS - 1) / HZI_DEPTHWISE_ROWS;
	const int columns = (s.count[2] + COLUMNS - 1) / COLUMNS;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * HZI_DEPTHWISE_THREADS + threadIdx.x; i < p.total;
	     i += step) {
		const int channel = (int)(i % s.groups);
		int64_t index = i / s.groups;
		const int left = (int)(index % columns) * COLUMNS;
		index /= columns;
		const int begin = (int)(index % strips) * HZI_DEPTHWISE_ROWS;
		index /= strips;
		pixels o((int)(index / s.count[0]), (int)(index % s.count[0]), begin, left);
		const int rows = min(HZI_DEPTHWISE_ROWS, s.count[1] - begin);
		const int a0 = s.step[0] * o.at[0] + s.base[0];
		/* Where taps step backwards, the last tap is the first to read. */
		const int top = begin + s.base[1] + min(0, (TAPS - 1) * s.each[1]);
		const int first = left + s.base[2] + min(0, (TAPS - 1) * s.each[2]);
		const int64_t src = o.image * s.x_stride[0] + a0 * s.x_stride[1] +
				    first * s.x_stride[3] + channel * s.x.col;
		element<DTYPE> next[READS];
		quat w[KEPT ? TAPS : 1][TAPS], sum[TAPS][COLUMNS] = {};

#pragma unroll
		for (int a = 0; KEPT && a < TAPS; a++)
			load_weights<DTYPE, TAPS>(p, channel, a, w[a]);
#pragma unroll 1
		for (int row = -1; row < rows + TAPS - 1; row++) {
			element<DTYPE> x[READS];

#pragma unroll
			for (int b = 0; b < READS; b++) {
				x[b] = next[b];
				next[b].load(s.x, src + (top + row + 1) * s.x_stride[2] +
						  b * s.x_stride[3],
					     (uint32_t)a0 < (uint32_t)s.size[0] &&
					     (uint32_t)(top + row + 1) < (uint32_t)s.size[1] &&
					     (uint32_t)(first + b) < (uint32_t)s.size[2] &&
					     row + 1 < rows + TAPS - 1);
			}
			if (row < 0)
				continue;
#pragma unroll
			for (int a = 0; a < TAPS; a++) {
				if ((uint32_t)(row - a) >= (uint32_t)rows)
					continue;
				if (!KEPT)
					load_weights<DTYPE, TAPS>(p, channel, a, w[0]);
#pragma unroll
				for (int b = 0; b < TAPS; b++)
#pragma unroll
					for (int c = 0; c < COLUMNS; c++) {
						quat &dst = sum[TAPS - 1 - a][c];

						dst = quat_fma(w[KEPT ? a : 0][b],
							       x[b + c].get(mask_x), dst);
					}
			}
#pragma unroll
			for (int c = 0; c < COLUMNS; c++) {
				o.at[1] = begin + row - (TAPS - 1);
				if (row >= TAPS - 1)
					put(p, o, c, channel, sum[0][c]);
#pragma unroll
				for (int a = 0; a < TAPS - 1; a++)
					sum[a][c] = sum[a + 1][c];
				sum[TAPS - 1][c] = {0, 0, 0, 0};
			}
		}
	}
}

/* ---- warp: few outputs of many channels ------------------------------------------------------ */

/* The sum over the lanes of a warp, in all of them */
HZ_DEVICE quat warp_quat_sum(quat q)
{
#pragma unroll
	for (int i = 16; i; i /= 2) {
		q.w += __shfl_xor_sync(~0u, q.w, i);
		q.x += __shfl_xor_sync(~0u, q.x, i);
		q.y += __shfl_xor_sync(~0u, q.y, i);
		q.z += __shfl_xor_sync(~0u, q.z, i);
	}
	return q;
}

template <int DTYPE>
HZ_DEVICE void few_outputs(const hzi_quat_conv_direct &p)
{
	const hzi_quat_conv_window &s = p.s;
	const int64_t step = (int64_t)gridDim.x * (HZI_DEPTHWISE_THREADS / 32);
	const int lane = threadIdx.x % 32;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * (HZI_DEPTHWISE_THREADS / 32) + threadIdx.x / 32;
	     i < p.total; i += step) {
		const pixels o(s, i / s.groups);
		const int group = (int)(i % s.groups);
		quat sum[HZI_DEPTHWISE_OUTPUTS][PIXELS] = {};

		add_taps<DTYPE, HZI_DEPTHWISE_OUTPUTS, 32>(p, o, group, 0, s.outs, lane, sum);
#pragma unroll
		for (int m = 0; m < HZI_DEPTHWISE_OUTPUTS; m++) {
			if (m >= s.outs)
				break;
#pragma unroll
			for (int j = 0; j < PIXELS; j++) {
				const quat q = warp_quat_sum(sum[m][j]);

				if (lane == PIXELS * m + j)
					put_call(p, o, j, group * s.outs + m, q);
			}
		}
	}
}

/* ---- Gradients of weights -------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void wgrad_direct(const hzi_quat_wgrad_direct &p)
{
	const hzi_quat_conv_window &s = p.s;
	const int64_t i = (int64_t)blockIdx.x * HZI_DEPTHWISE_THREADS + threadIdx.x;
	const int pair = (int)(i % p.pairs), part = (int)(i / p.pairs);
	const int row = pair / s.channels, group = row / s.outs, channel = pair % s.channels;
	const int first_tap = blockIdx.y * HZI_DEPTHWISE_TAPS;
	const int taps = min(HZI_DEPTHWISE_TAPS, s.taps[0] * s.taps[1] * s.taps[2] - first_tap);
	const int64_t x_channel = ((int64_t)group * s.channels + channel) * s.x.col;
	const uint32_t mask_x = conj_mask(s.x), mask_y = conj_mask(p.small);
	quat sum[HZI_DEPTHWISE_TAPS] = {};
	int tap_offset[HZI_DEPTHWISE_TAPS][3];
	int64_t pixel = part * p.each, index = pixel;
	const int64_t end = min(p.pixels, pixel + p.each);
	int image, at[3];

	pdl_launch_dependents();
	pdl_wait();
	if (part >= p.parts_count)
		return;
#pragma unroll
	for (int t = 0; t < HZI_DEPTHWISE_TAPS; t++) {
		const int tap = first_tap + t, outer = tap / s.taps[2];

		tap_offset[t][2] = s.each[2] * (tap % s.taps[2]) + s.base[2];
		tap_offset[t][1] = s.each[1] * (outer % s.taps[1]) + s.base[1];
		tap_offset[t][0] = s.each[0] * (outer / s.taps[1]) + s.base[0];
	}
	at[2] = (int)(index % s.count[2]), index /= s.count[2];
	at[1] = (int)(index % s.count[1]), index /= s.count[1];
	at[0] = (int)(index % s.count[0]);
	image = (int)(index / s.count[0]);
	for (; pixel < end; pixel++) {
		element<DTYPE> y, x[HZI_DEPTHWISE_TAPS];

		y.load(p.small, image * p.small_stride[0] + at[0] * p.small_stride[1] +
					at[1] * p.small_stride[2] + at[2] * p.small_stride[3] +
					row * p.small.col, true);
#pragma unroll
		for (int t = 0; t < HZI_DEPTHWISE_TAPS; t++) {
			const int a0 = s.step[0] * at[0] + tap_offset[t][0];
			const int a1 = s.step[1] * at[1] + tap_offset[t][1];
			const int a2 = s.step[2] * at[2] + tap_offset[t][2];
			const bool inside = t < taps && (uint32_t)a0 < (uint32_t)s.size[0] &&
					    (uint32_t)a1 < (uint32_t)s.size[1] &&
					    (uint32_t)a2 < (uint32_t)s.size[2];

			x[t].load(s.x, image * s.x_stride[0] + a0 * s.x_stride[1] +
					       a1 * s.x_stride[2] + a2 * s.x_stride[3] + x_channel,
				  inside);
		}
#pragma unroll
		for (int t = 0; t < HZI_DEPTHWISE_TAPS; t++)
			sum[t] = quat_fma(y.get(mask_y), x[t].get(mask_x), sum[t]);
		if (++at[2] == s.count[2]) {
			at[2] = 0;
			if (++at[1] == s.count[1]) {
				at[1] = 0;
				if (++at[0] == s.count[0]) {
					at[0] = 0;
					image++;
				}
			}
		}
	}
#pragma unroll
	for (int t = 0; t < HZI_DEPTHWISE_TAPS; t++) {
		const int64_t outs = (int64_t)s.groups * s.outs;
		const int all = s.taps[0] * s.taps[1] * s.taps[2];

		if (t < taps)
			((float4 *)p.parts)[((part * outs + row) * all + first_tap + t) *
						    s.channels + channel] =
				make_float4(sum[t].w, sum[t].x, sum[t].y, sum[t].z);
	}
}

/*
 * TAPS x TAPS taps that are neighbours: a thread has ROWS rows of the taps, and a part is whole
 * rows of pixels. Along a row each row of taps needs one new pixel of x, loaded one step ahead.
 */
template <int DTYPE, int ROWS, int TAPS>
HZ_DEVICE void wgrad_square(const hzi_quat_wgrad_direct &p)
{
	const int top = blockIdx.y * ROWS;
	const hzi_quat_conv_window &s = p.s;
	const int64_t i = (int64_t)blockIdx.x * HZI_DEPTHWISE_THREADS + threadIdx.x;
	const int pair = (int)(i % p.pairs), part = (int)(i / p.pairs);
	const int row = pair / s.channels, group = row / s.outs, channel = pair % s.channels;
	const int64_t x_channel = ((int64_t)group * s.channels + channel) * s.x.col;
	const uint32_t mask_x = conj_mask(s.x), mask_y = conj_mask(p.small);
	const int64_t rows = p.pixels / s.count[2], outs = (int64_t)s.groups * s.outs;
	const int64_t end = min(rows, (part + 1) * p.each);
	quat sum[ROWS][TAPS] = {};

	pdl_launch_dependents();
	pdl_wait();
	if (part >= p.parts_count)
		return;
	for (int64_t pixel_row = part * p.each; pixel_row < end; pixel_row++) {
		const int64_t slab = pixel_row / s.count[1], image = slab / s.count[0];
		const int at0 = (int)(slab - image * s.count[0]);
		const int at1 = (int)(pixel_row - slab * s.count[1]);
		const int a0 = s.step[0] * at0 + s.base[0], a1 = at1 + s.base[1] + top;
		const int64_t src = image * s.x_stride[0] + a0 * s.x_stride[1] +
				    a1 * s.x_stride[2] + x_channel;
		const int64_t small = image * p.small_stride[0] + at0 * p.small_stride[1] +
				      at1 * p.small_stride[2] + row * p.small.col;
		element<DTYPE> x[ROWS][TAPS], next[ROWS], y, next_y = {};
		bool inside[ROWS];

#pragma unroll
		for (int a = 0; a < ROWS; a++) {
			inside[a] = (uint32_t)a0 < (uint32_t)s.size[0] &&
				    (uint32_t)(a1 + a) < (uint32_t)s.size[1];
#pragma unroll
			for (int b = 0; b < TAPS; b++) {
				element<DTYPE> &dst = b < TAPS - 1 ? x[a][1 + b] : next[a];

				dst.load(s.x, src + a * s.x_stride[2] +
						     (s.base[2] + b) * s.x_stride[3],
					 inside[a] && (uint32_t)(s.base[2] + b) <
							    (uint32_t)s.size[2]);
			}
		}
		next_y.load(p.small, small, true);
#pragma unroll 1
		for (int at2 = 0; at2 < s.count[2]; at2++) {
			const int column = at2 + s.base[2] + TAPS;

			y = next_y;
			next_y.load(p.small, small + (at2 + 1) * p.small_stride[3],
				    at2 + 1 < s.count[2]);
#pragma unroll
			for (int a = 0; a < ROWS; a++) {
#pragma unroll
				for (int b = 0; b < TAPS - 1; b++)
					x[a][b] = x[a][b + 1];
				x[a][TAPS - 1] = next[a];
				next[a].load(s.x, src + a * s.x_stride[2] +
						  column * s.x_stride[3],
					     inside[a] && (uint32_t)column < (uint32_t)s.size[2]);
			}
#pragma unroll
			for (int a = 0; a < ROWS; a++)
#pragma unroll
				for (int b = 0; b < TAPS; b++)
					sum[a][b] = quat_fma(y.get(mask_y), x[a][b].get(mask_x),
							     sum[a][b]);
		}
	}
#pragma unroll
	for (int t = 0; t < ROWS * TAPS; t++) {
		const quat q = sum[t / TAPS][t % TAPS];
		const int64_t tap = (part * outs + row) * TAPS * TAPS + top * TAPS + t;

		((float4 *)p.parts)[tap * s.channels + channel] =
			make_float4(q.w, q.x, q.y, q.z);
	}
}

/* Eight threads share the parts of a result; thread 0 adds up their sums in order. */
extern "C" __global__ __launch_bounds__(32 * HZI_WGRAD_SUM_THREADS) void
quat_conv_wgrad_reduce(const __grid_constant__ hzi_quat_wgrad_sum p)
{
	__shared__ float4 sums[HZI_WGRAD_SUM_THREADS][32];
	const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
	const int each = (p.parts_count + HZI_WGRAD_SUM_THREADS - 1) / HZI_WGRAD_SUM_THREADS;
	const int first = threadIdx.y * each, end = min(first + each, p.parts_count);
	float4 sum = {};

	pdl_launch_dependents();
	pdl_wait();
	if (i < p.count) {
#pragma unroll 8
		for (int part = first; part < end; part++) {
			const float4 f = ((const float4 *)p.parts)[part * p.count + i];

			sum.x += f.x, sum.y += f.y, sum.z += f.z, sum.w += f.w;
		}
	}
	sums[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.y || i >= p.count)
		return;
	for (int j = 1; j < HZI_WGRAD_SUM_THREADS; j++) {
		const float4 f = sums[j][threadIdx.x];

		sum.x += f.x, sum.y += f.y, sum.z += f.z, sum.w += f.w;
	}
	if (p.conj)
		sum.y = -sum.y, sum.z = -sum.z, sum.w = -sum.w;
	((float4 *)p.sum)[i] = sum;
}

#define KERNEL(name, params, ...) \
	extern "C" __global__ __launch_bounds__(HZI_DEPTHWISE_THREADS) void \
	name(const __grid_constant__ params p) \
	{ \
		__VA_ARGS__(p); \
	}
#define KERNELS(name, params, call, ...) \
	KERNEL(name##_f32, params, call<HZ_F32 __VA_ARGS__>) \
	KERNEL(name##_f16, params, call<HZ_F16 __VA_ARGS__>) \
	KERNEL(name##_bf16, params, call<HZ_BF16 __VA_ARGS__>) \
	KERNEL(name##_strided, params, call<ANY_LAYOUT __VA_ARGS__>)
KERNELS(quat_conv_depthwise_direct, hzi_quat_conv_direct, depthwise_direct)
KERNELS(quat_conv_depthwise_warp, hzi_quat_conv_direct, few_outputs)
KERNELS(quat_conv_depthwise_3x3, hzi_quat_conv_direct, depthwise_square, , 3)
KERNELS(quat_conv_depthwise_5x5, hzi_quat_conv_direct, depthwise_square, , 5)
KERNELS(quat_conv_depthwise_7x7, hzi_quat_conv_direct, depthwise_square, , 7)
KERNELS(quat_conv_depthwise_wgrad_direct, hzi_quat_wgrad_direct, wgrad_direct)
KERNELS(quat_conv_depthwise_wgrad_3x3, hzi_quat_wgrad_direct, wgrad_square, , 3, 3)
KERNELS(quat_conv_depthwise_wgrad_5x5, hzi_quat_wgrad_direct, wgrad_square, , 1, 5)
KERNELS(quat_conv_depthwise_wgrad_7x7, hzi_quat_wgrad_direct, wgrad_square, , 1, 7)
