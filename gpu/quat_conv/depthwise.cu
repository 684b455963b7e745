/*
 * depthwise.cu - convolutions of quaternions of few channels in a group
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of few channels on both sides, as in depthwise convolutions, a thread has one output channel of a
 * few pixels, and threads side by side have channels side by side; where each channel is a group
 * and taps are 3 x 3, 5 x 5 or 7 x 7 these are several rows of them. Where there are but one to
 * three outputs of many channels a warp has these of a few pixels, and its lanes share the
 * channels. Gradients of weights: a thread has one pair of channels and a few taps, and sums over
 * the pixels of a part; parts are added up in their order.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_gemm/epilogue.cuh"

#define OTHERS (-1)
#define PIXELS HZI_QF_PIXELS

/* A quaternion as it lies in memory, or 0; those of any memory by a call. */
template <int DTYPE>
struct element {
	quat_raw<DTYPE> raw;

	__device__ __forceinline__ void load(const hzi_quat_matrix &m, int64_t at, bool there)
	{
		raw = {};
		if (there)
			raw.load(m.data, at);
	}

	__device__ __forceinline__ quat get(uint32_t turn) const
	{
		return raw.get(turn);
	}
};

static __device__ __noinline__ quat load_other(const hzi_quat_matrix &m, int64_t at)
{
	return quat_load(m, at);
}

template <>
struct element<OTHERS> {
	quat q;

	__device__ __forceinline__ void load(const hzi_quat_matrix &m, int64_t at, bool there)
	{
		q = {};
		if (there)
			q = load_other(m, at);
	}

	__device__ __forceinline__ quat get(uint32_t turn) const
	{
		return quat_turn_signs(q, turn);
	}
};

HZ_DEVICE uint32_t turn_of(const hzi_quat_matrix &m)
{
	return m.conj ? 0x80000000 : 0;
}

/* Pixels of an output, from at[2] on in the last dimension */
struct pixels {
	int image, at[3];

	__device__ __forceinline__ pixels(int image, int slab, int row, int column)
		: image(image), at{slab, row, column}
	{
	}

	__device__ __forceinline__ pixels(const hzi_quat_few_sight &s, int64_t i)
	{
		at[2] = (int)(i % s.strips) * PIXELS, i /= s.strips;
		at[1] = (int)(i % s.count[1]), i /= s.count[1];
		at[0] = (int)(i % s.count[0]);
		image = (int)(i / s.count[0]);
	}
};

HZ_DEVICE void put(const hzi_quat_few &p, const pixels &o, int pixel, int row, quat q)
{
	int64_t to = o.image * p.c_stride[0], pre = o.image * p.pre_stride[0];

	if (o.at[2] + pixel >= p.s.count[2])
		return;
#pragma unroll
	for (int d = 0; d < 3; d++) {
		const int at = d < 2 ? o.at[d] : o.at[2] + pixel;

		to += at * p.c_stride[1 + d];
		pre += at * p.pre_stride[1 + d];
	}
	if (p.plain)
		quat_store(p.out.c, to + row * p.out.c.row,
			   quat_turn_signs(q, turn_of(p.out.c)));
	else
		quat_finish_row(p.out, to, pre, row, q);
}

/*
 * Adds to sums of outputs of a group from row on what all taps see, of every LANES-th channel from
 * first on; of OUTS outputs so many are there.
 */
template <int DTYPE, int OUTS, int LANES>
HZ_DEVICE void add_taps(const hzi_quat_few &p, const pixels &o, int group, int row, int there,
			int first, quat (&sum)[OUTS][PIXELS])
{
	const hzi_quat_few_sight &s = p.s;
	const uint32_t turn_x = turn_of(s.x), turn_w = turn_of(p.w);
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
							  m < there);
#pragma unroll
					for (int m = 0; m < OUTS; m++) {
						if (m >= there)
							break;
#pragma unroll
						for (int j = 0; j < PIXELS; j++)
							sum[m][j] = quat_fma(w[m].get(turn_w),
									     x[j].get(turn_x),
									     sum[m][j]);
					}
				}
				w1 += s.channels * p.w.col;
			}
		}
	}
}

/* ---- Few channels ---------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void few(const hzi_quat_few &p)
{
	const hzi_quat_few_sight &s = p.s;
	const int outs = s.groups * s.outs;
	const int64_t step = (int64_t)gridDim.x * HZI_QF_THREADS;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * HZI_QF_THREADS + threadIdx.x; i < p.total;
	     i += step) {
		const pixels o(s, i / outs);
		const int row = (int)(i % outs), group = row / s.outs;
		quat sum[1][PIXELS] = {};

		add_taps<DTYPE, 1, 1>(p, o, group, row - group * s.outs, 1, 0, sum);
#pragma unroll
		for (int j = 0; j < PIXELS; j++)
			put(p, o, j, row, sum[0][j]);
	}
}

/* ---- A channel for each group ---------------------------------------------------------------- */

#define COLUMNS HZI_QF_COLUMNS

/* A row of a channel's taps, from the one that is seen first on */
template <int DTYPE, int TAPS>
HZ_DEVICE void load_weights(const hzi_quat_few &p, int channel, int a, quat (&w)[TAPS])
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
		w[b] = e[b].get(turn_of(p.w));
}

/*
 * TAPS x TAPS taps that are neighbours, of each pixel: a thread goes down some rows of a few
 * columns, so that of each output only one row of taps is new. What it reads next is on its way.
 */
template <int DTYPE, int TAPS>
HZ_DEVICE void depth(const hzi_quat_few &p)
{
	constexpr int SEEN = COLUMNS + TAPS - 1;
	/* More weights than these are read again and again. */
	constexpr bool KEPT = TAPS == 3;
	const hzi_quat_few_sight &s = p.s;
	const int64_t step = (int64_t)gridDim.x * HZI_QF_THREADS;
	const uint32_t turn_x = turn_of(s.x);
	const int strips = (s.count[1] + HZI_QF_ROWS - 1) / HZI_QF_ROWS;
	const int columns = (s.count[2] + COLUMNS - 1) / COLUMNS;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * HZI_QF_THREADS + threadIdx.x; i < p.total;
	     i += step) {
		const int channel = (int)(i % s.groups);
		int64_t rest = i / s.groups;
		const int left = (int)(rest % columns) * COLUMNS;
		rest /= columns;
		const int begin = (int)(rest % strips) * HZI_QF_ROWS;
		rest /= strips;
		pixels o((int)(rest / s.count[0]), (int)(rest % s.count[0]), begin, left);
		const int lines = min(HZI_QF_ROWS, s.count[1] - begin);
		const int a0 = s.step[0] * o.at[0] + s.base[0];
		/* Where taps go back the first that is seen is the last. */
		const int top = begin + s.base[1] + min(0, (TAPS - 1) * s.each[1]);
		const int first = left + s.base[2] + min(0, (TAPS - 1) * s.each[2]);
		const int64_t from = o.image * s.x_stride[0] + a0 * s.x_stride[1] +
				     first * s.x_stride[3] + channel * s.x.col;
		element<DTYPE> next[SEEN];
		quat w[KEPT ? TAPS : 1][TAPS], sum[TAPS][COLUMNS] = {};

#pragma unroll
		for (int a = 0; KEPT && a < TAPS; a++)
			load_weights<DTYPE, TAPS>(p, channel, a, w[a]);
#pragma unroll 1
		for (int row = -1; row < lines + TAPS - 1; row++) {
			element<DTYPE> x[SEEN];

#pragma unroll
			for (int b = 0; b < SEEN; b++) {
				x[b] = next[b];
				next[b].load(s.x, from + (top + row + 1) * s.x_stride[2] +
						  b * s.x_stride[3],
					     (uint32_t)a0 < (uint32_t)s.size[0] &&
					     (uint32_t)(top + row + 1) < (uint32_t)s.size[1] &&
					     (uint32_t)(first + b) < (uint32_t)s.size[2] &&
					     row + 1 < lines + TAPS - 1);
			}
			if (row < 0)
				continue;
#pragma unroll
			for (int a = 0; a < TAPS; a++) {
				if ((uint32_t)(row - a) >= (uint32_t)lines)
					continue;
				if (!KEPT)
					load_weights<DTYPE, TAPS>(p, channel, a, w[0]);
#pragma unroll
				for (int b = 0; b < TAPS; b++)
#pragma unroll
					for (int c = 0; c < COLUMNS; c++) {
						quat &to = sum[TAPS - 1 - a][c];

						to = quat_fma(w[KEPT ? a : 0][b],
							      x[b + c].get(turn_x), to);
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

/* ---- Few outputs of many channels ------------------------------------------------------------ */

/* The sum over lanes, in all of them */
HZ_DEVICE quat over_lanes(quat q)
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
HZ_DEVICE void narrow(const hzi_quat_few &p)
{
	const hzi_quat_few_sight &s = p.s;
	const int64_t step = (int64_t)gridDim.x * (HZI_QF_THREADS / 32);
	const int lane = threadIdx.x % 32;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * (HZI_QF_THREADS / 32) + threadIdx.x / 32;
	     i < p.total; i += step) {
		const pixels o(s, i / s.groups);
		const int group = (int)(i % s.groups);
		quat sum[HZI_QF_OUT][PIXELS] = {};

		add_taps<DTYPE, HZI_QF_OUT, 32>(p, o, group, 0, s.outs, lane, sum);
#pragma unroll
		for (int m = 0; m < HZI_QF_OUT; m++) {
			if (m >= s.outs)
				break;
#pragma unroll
			for (int j = 0; j < PIXELS; j++) {
				const quat q = over_lanes(sum[m][j]);

				if (lane == PIXELS * m + j)
					put(p, o, j, group * s.outs + m, q);
			}
		}
	}
}

/* ---- Gradients of weights -------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void few_weights(const hzi_quat_few_weights &p)
{
	const hzi_quat_few_sight &s = p.s;
	const int64_t i = (int64_t)blockIdx.x * HZI_QF_THREADS + threadIdx.x;
	const int pair = (int)(i % p.pairs), part = (int)(i / p.pairs);
	const int row = pair / s.channels, group = row / s.outs, channel = pair % s.channels;
	const int first_tap = blockIdx.y * HZI_QF_TAPS;
	const int taps = min(HZI_QF_TAPS, s.taps[0] * s.taps[1] * s.taps[2] - first_tap);
	const int64_t x_channel = ((int64_t)group * s.channels + channel) * s.x.col;
	const uint32_t turn_x = turn_of(s.x), turn_y = turn_of(p.small);
	quat sum[HZI_QF_TAPS] = {};
	int place[HZI_QF_TAPS][3];
	int64_t pixel = part * p.each, rest = pixel;
	const int64_t end = min(p.pixels, pixel + p.each);
	int image, at[3];

	pdl_launch_dependents();
	pdl_wait();
	if (part >= p.parts_count)
		return;
#pragma unroll
	for (int t = 0; t < HZI_QF_TAPS; t++) {
		const int tap = first_tap + t, outer = tap / s.taps[2];

		place[t][2] = s.each[2] * (tap % s.taps[2]) + s.base[2];
		place[t][1] = s.each[1] * (outer % s.taps[1]) + s.base[1];
		place[t][0] = s.each[0] * (outer / s.taps[1]) + s.base[0];
	}
	at[2] = (int)(rest % s.count[2]), rest /= s.count[2];
	at[1] = (int)(rest % s.count[1]), rest /= s.count[1];
	at[0] = (int)(rest % s.count[0]);
	image = (int)(rest / s.count[0]);
	for (; pixel < end; pixel++) {
		element<DTYPE> y, x[HZI_QF_TAPS];

		y.load(p.small, image * p.small_stride[0] + at[0] * p.small_stride[1] +
					at[1] * p.small_stride[2] + at[2] * p.small_stride[3] +
					row * p.small.col, true);
#pragma unroll
		for (int t = 0; t < HZI_QF_TAPS; t++) {
			const int a0 = s.step[0] * at[0] + place[t][0];
			const int a1 = s.step[1] * at[1] + place[t][1];
			const int a2 = s.step[2] * at[2] + place[t][2];
			const bool there = t < taps && (uint32_t)a0 < (uint32_t)s.size[0] &&
					   (uint32_t)a1 < (uint32_t)s.size[1] &&
					   (uint32_t)a2 < (uint32_t)s.size[2];

			x[t].load(s.x, image * s.x_stride[0] + a0 * s.x_stride[1] +
					       a1 * s.x_stride[2] + a2 * s.x_stride[3] + x_channel,
				  there);
		}
#pragma unroll
		for (int t = 0; t < HZI_QF_TAPS; t++)
			sum[t] = quat_fma(y.get(turn_y), x[t].get(turn_x), sum[t]);
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
	for (int t = 0; t < HZI_QF_TAPS; t++) {
		const int64_t outs = (int64_t)s.groups * s.outs;
		const int all = s.taps[0] * s.taps[1] * s.taps[2];

		if (t < taps)
			((float4 *)p.parts)[((part * outs + row) * all + first_tap + t) *
						    s.channels + channel] =
				make_float4(sum[t].w, sum[t].x, sum[t].y, sum[t].z);
	}
}

/*
 * The same of ROWS of the rows of TAPS x TAPS taps that are neighbours, of each pixel: a part is
 * some lines, along which of a row's pixels of x one is new, which is on its way.
 */
template <int DTYPE, int ROWS, int TAPS>
HZ_DEVICE void line_weights(const hzi_quat_few_weights &p)
{
	const int top = blockIdx.y * ROWS;
	const hzi_quat_few_sight &s = p.s;
	const int64_t i = (int64_t)blockIdx.x * HZI_QF_THREADS + threadIdx.x;
	const int pair = (int)(i % p.pairs), part = (int)(i / p.pairs);
	const int row = pair / s.channels, group = row / s.outs, channel = pair % s.channels;
	const int64_t x_channel = ((int64_t)group * s.channels + channel) * s.x.col;
	const uint32_t turn_x = turn_of(s.x), turn_y = turn_of(p.small);
	const int64_t lines = p.pixels / s.count[2], outs = (int64_t)s.groups * s.outs;
	const int64_t end = min(lines, (part + 1) * p.each);
	quat sum[ROWS][TAPS] = {};

	pdl_launch_dependents();
	pdl_wait();
	if (part >= p.parts_count)
		return;
	for (int64_t line = part * p.each; line < end; line++) {
		const int64_t slab = line / s.count[1], image = slab / s.count[0];
		const int at0 = (int)(slab - image * s.count[0]);
		const int at1 = (int)(line - slab * s.count[1]);
		const int a0 = s.step[0] * at0 + s.base[0], a1 = at1 + s.base[1] + top;
		const int64_t from = image * s.x_stride[0] + a0 * s.x_stride[1] +
				     a1 * s.x_stride[2] + x_channel;
		const int64_t small = image * p.small_stride[0] + at0 * p.small_stride[1] +
				      at1 * p.small_stride[2] + row * p.small.col;
		element<DTYPE> x[ROWS][TAPS], next[ROWS], y, next_y = {};
		bool there[ROWS];

#pragma unroll
		for (int a = 0; a < ROWS; a++) {
			there[a] = (uint32_t)a0 < (uint32_t)s.size[0] &&
				   (uint32_t)(a1 + a) < (uint32_t)s.size[1];
#pragma unroll
			for (int b = 0; b < TAPS; b++) {
				element<DTYPE> &to = b < TAPS - 1 ? x[a][1 + b] : next[a];

				to.load(s.x, from + a * s.x_stride[2] +
						     (s.base[2] + b) * s.x_stride[3],
					there[a] && (uint32_t)(s.base[2] + b) <
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
				next[a].load(s.x, from + a * s.x_stride[2] +
						  column * s.x_stride[3],
					     there[a] && (uint32_t)column < (uint32_t)s.size[2]);
			}
#pragma unroll
			for (int a = 0; a < ROWS; a++)
#pragma unroll
				for (int b = 0; b < TAPS; b++)
					sum[a][b] = quat_fma(y.get(turn_y), x[a][b].get(turn_x),
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

/* As many parts by each of eight threads, whose sums are added up then */
extern "C" __global__ __launch_bounds__(32 * HZI_QF_PARTS) void
quat_conv_few_sum(const __grid_constant__ hzi_quat_few_sum p)
{
	__shared__ float4 sums[HZI_QF_PARTS][32];
	const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
	const int each = (p.parts_count + HZI_QF_PARTS - 1) / HZI_QF_PARTS;
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
	for (int j = 1; j < HZI_QF_PARTS; j++) {
		const float4 f = sums[j][threadIdx.x];

		sum.x += f.x, sum.y += f.y, sum.z += f.z, sum.w += f.w;
	}
	if (p.conj)
		sum.y = -sum.y, sum.z = -sum.z, sum.w = -sum.w;
	((float4 *)p.sum)[i] = sum;
}

#define KERNEL(name, params, ...) \
	extern "C" __global__ __launch_bounds__(HZI_QF_THREADS) void \
	name(const __grid_constant__ params p) \
	{ \
		__VA_ARGS__(p); \
	}
#define KERNELS(name, params, call, ...) \
	KERNEL(name##_f32, params, call<HZ_F32 __VA_ARGS__>) \
	KERNEL(name##_f16, params, call<HZ_F16 __VA_ARGS__>) \
	KERNEL(name##_bf16, params, call<HZ_BF16 __VA_ARGS__>) \
	KERNEL(name##_any, params, call<OTHERS __VA_ARGS__>)
KERNELS(quat_conv_few, hzi_quat_few, few)
KERNELS(quat_conv_narrow, hzi_quat_few, narrow)
KERNELS(quat_conv_depth, hzi_quat_few, depth, , 3)
KERNELS(quat_conv_depth_5, hzi_quat_few, depth, , 5)
KERNELS(quat_conv_depth_7, hzi_quat_few, depth, , 7)
KERNELS(quat_conv_few_weights, hzi_quat_few_weights, few_weights)
KERNELS(quat_conv_line_weights, hzi_quat_few_weights, line_weights, , 3, 3)
KERNELS(quat_conv_line_weights_5, hzi_quat_few_weights, line_weights, , 1, 5)
KERNELS(quat_conv_line_weights_7, hzi_quat_few_weights, line_weights, , 1, 7)
