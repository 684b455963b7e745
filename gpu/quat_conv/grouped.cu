/*
 * grouped.cu - convolutions of quaternions of some channels in a group, by matrix units
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A weight is a matrix of 4 x 4 that multiplies what lies in memory as w, x, y and z. Eight
 * channels of a pixel are two products' worth of k: of the four threads that have a column each has
 * two channels, one for either product, so that one load of 16 bytes (two of f32) is all they take.
 * Rows are in an order in which a thread has all four components of its sums.
 *
 * Weights, as the matrix units want them, are made before: a block has those of 8 or 16 outputs of
 * a group in shared memory, and goes through pixels. f32 is three parts of bf16, whose products but
 * the least three are summed; sums begin anew with every eight channels of a tap, since the matrix
 * units cut them off.
 */
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_gemm/epilogue.cuh"

#define THREADS HZI_QG_THREADS

template <int DTYPE>
constexpr int parts_of = DTYPE == HZ_F32 ? HZI_QG_PARTS : 1;
/* Pixels of a warp, in eights */
template <int DTYPE>
constexpr int eights_of = DTYPE == HZ_F32 ? HZI_QG_EIGHTS_F32 : HZI_QG_EIGHTS;

HZ_DEVICE float upper(float v)
{
	return __uint_as_float(__float_as_uint(v) & 0xffff0000);
}

/* The upper halves of both, which are bf16 */
HZ_DEVICE uint32_t uppers(float low, float high)
{
	return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

/* Two numbers in parts: cut off, so that what is left is exact. */
template <int DTYPE>
HZ_DEVICE void split(uint32_t (&to)[parts_of<DTYPE>], float low, float high)
{
	if (DTYPE == HZ_F32) {
#pragma unroll
		for (int i = 0; i < parts_of<DTYPE>; i++) {
			to[i] = uppers(low, high);
			low -= upper(low);
			high -= upper(high);
		}
	} else {
		to[0] = DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
	}
}

/* ---- Weights --------------------------------------------------------------------------------- */

/*
 * A thread makes what one thread has of 16 x 16 elements: [group][block of outputs][tap][eight
 * channels][product][eight outputs][half][part][lane].
 */
template <int DTYPE>
HZ_DEVICE void weights(const hzi_quat_groups &p)
{
	constexpr int PARTS = parts_of<DTYPE>;
	const hzi_quat_few_sight &s = p.s;
	const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int lane = n % 32;
	int64_t i = n / 32;
	const int half = i % 2;
	i /= 2;
	const int eight = i % p.eights;
	i /= p.eights;
	const int product = i % 2;
	i /= 2;
	const int step = i % (s.channels / 8);
	i /= s.channels / 8;
	const int tap = i % p.taps;
	i /= p.taps;
	const int block = i % p.blocks, group = (int)(i / p.blocks);
	const int out = 8 * (block * p.eights + eight) + lane / 4;
	const int channel = 8 * step + 2 * (lane % 4) + product;
	quat w = {0, 0, 0, 0};

	pdl_launch_dependents();
	pdl_wait();
	if (group >= s.groups)
		return;
	if (out < s.outs) {
		w = quat_load(p.w, group * p.w.batch[0] + out * p.w.row +
					   ((int64_t)tap * s.channels + channel) * p.w.col);
		if (p.w.conj)
			w = quat_conj(w);
	}

	const float sign = s.x.conj ? -1 : 1;
	uint32_t v[4][PARTS];

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const float4 f = quat_row(w, 2 * half + r);

		split<DTYPE>(v[r], f.x, sign * f.y);
		split<DTYPE>(v[2 + r], sign * f.z, sign * f.w);
	}
#pragma unroll
	for (int j = 0; j < PARTS; j++)
		p.weights[(n / 32 * PARTS + j) * 32 + lane] = {v[0][j], v[1][j], v[2][j], v[3][j]};
}

/* ---- Products -------------------------------------------------------------------------------- */

/* c += a b, a 16 x 16, b 16 x 8 */
template <int DTYPE>
HZ_DEVICE void multiply(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1)
{
	mma_m16n8k16<DTYPE == HZ_F16 ? HZ_F16 : HZ_BF16>(c, a.x, a.y, a.z, a.w, b0, b1);
}

/* Two channels of a pixel */
template <int DTYPE>
struct two {
	uint4 bits;

	__device__ __forceinline__ void load(const void *data, int64_t at, bool there)
	{
		bits = {};
		if (there)
			bits = __ldg((const uint4 *)((const uint16_t *)data + at));
	}

	__device__ __forceinline__ void get(int i, uint32_t (&low)[1], uint32_t (&high)[1]) const
	{
		low[0] = i ? bits.z : bits.x;
		high[0] = i ? bits.w : bits.y;
	}
};

template <>
struct two<HZ_F32> {
	float4 q[2];

	__device__ __forceinline__ void load(const void *data, int64_t at, bool there)
	{
		q[0] = q[1] = {};
		if (there) {
			q[0] = __ldg((const float4 *)((const float *)data + at));
			q[1] = __ldg((const float4 *)((const float *)data + at + 4));
		}
	}

	__device__ __forceinline__ void get(int i, uint32_t (&low)[HZI_QG_PARTS],
					    uint32_t (&high)[HZI_QG_PARTS]) const
	{
		split<HZ_F32>(low, q[i].x, q[i].y);
		split<HZ_F32>(high, q[i].z, q[i].w);
	}
};

/* What is to be known of a pixel: where its taps begin, which are there, where its sum goes */
struct pixel {
	int64_t from, to, pre;
	uint32_t taps;
	bool there;

	__device__ __forceinline__ pixel(const hzi_quat_groups &p, int64_t i)
	{
		const hzi_quat_few_sight &s = p.s;
		uint32_t rest = (uint32_t)i;
		int at[3], image;

		there = i < p.pixels;
		taps = 0;
		from = to = pre = 0;
		if (!there)
			return;
#pragma unroll
		for (int d = 2; d >= 0; d--) {
			const uint32_t q = rest / (uint32_t)s.count[d];

			at[d] = (int)(rest - q * (uint32_t)s.count[d]);
			rest = q;
		}
		image = (int)rest;
		from = image * s.x_stride[0];
		to = image * p.c_stride[0];
		pre = image * p.pre_stride[0];
#pragma unroll
		for (int d = 0; d < 3; d++) {
			from += (int64_t)at[d] * s.step[d] * s.x_stride[1 + d];
			to += at[d] * p.c_stride[1 + d];
			pre += at[d] * p.pre_stride[1 + d];
		}

		int bit = 0;

		for (int t0 = 0; t0 < s.taps[0]; t0++) {
			const int a0 = s.step[0] * at[0] + s.each[0] * t0 + s.base[0];

			for (int t1 = 0; t1 < s.taps[1]; t1++) {
				const int a1 = s.step[1] * at[1] + s.each[1] * t1 + s.base[1];
				const bool line = (uint32_t)a0 < (uint32_t)s.size[0] &&
						  (uint32_t)a1 < (uint32_t)s.size[1];

				for (int t2 = 0; t2 < s.taps[2]; t2++, bit++) {
					const int a2 = s.step[2] * at[2] + s.each[2] * t2 +
						       s.base[2];

					if (line && (uint32_t)a2 < (uint32_t)s.size[2])
						taps |= 1u << bit;
				}
			}
		}
	}
};

/* EIGHTS: of outputs */
template <int EIGHTS, int DTYPE>
HZ_DEVICE void convolve(const hzi_quat_groups &p)
{
	constexpr int PARTS = parts_of<DTYPE>, N = eights_of<DTYPE>;
	/* Of the parts of w and x: least products first */
	constexpr int TERMS = PARTS == 1 ? 1 : 6;
	const int of_w[] = {1, 0, 2, 1, 0, 0}, of_x[] = {1, 2, 0, 0, 1, 0};
	extern __shared__ uint4 shared[];	/* weights, and from where taps see */
	const hzi_quat_few_sight &s = p.s;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = lane / 4;
	const int block = blockIdx.y % p.blocks, group = blockIdx.y / p.blocks;
	const int steps = s.channels / 8, all = p.taps * steps;
	const int pieces = all * 4 * EIGHTS * PARTS * 32;
	int64_t *const offset = (int64_t *)(shared + pieces);
	const int64_t x0 = (int64_t)group * s.channels * 4 + 8 * (lane % 4);
	const int row = group * s.outs + 8 * block * EIGHTS + column;
	const uint32_t turn = p.out.c.conj ? 0x80000000 : 0;

	if (threadIdx.x < p.taps) {
		const int t2 = threadIdx.x % s.taps[2], outer = threadIdx.x / s.taps[2];
		const int t1 = outer % s.taps[1], t0 = outer / s.taps[1];

		offset[threadIdx.x] =
			(int64_t)(s.each[0] * t0 + s.base[0]) * s.x_stride[1] +
			(int64_t)(s.each[1] * t1 + s.base[1]) * s.x_stride[2] +
			(int64_t)(s.each[2] * t2 + s.base[2]) * s.x_stride[3];
	}
	pdl_launch_dependents();
	pdl_wait();
	for (int i = threadIdx.x; i < pieces; i += THREADS)
		shared[i] = p.weights[(int64_t)blockIdx.y * pieces + i];
	__syncthreads();
	for (int64_t first = (int64_t)blockIdx.x * THREADS / 32 + warp; 8 * N * first < p.pixels;
	     first += (int64_t)gridDim.x * THREADS / 32) {
		/* Of the four threads of a column each finds another's pixel. */
		const pixel own(p, lane % 4 < N ? 8 * N * first + 8 * (lane % 4) + column :
						   p.pixels);
		int64_t from[N];
		uint32_t taps[N];
		two<DTYPE> x[N], next[N];
		float acc[EIGHTS][2][N][4] = {};

#pragma unroll
		for (int n = 0; n < N; n++) {
			from[n] = __shfl_sync(~0u, own.from, 4 * column + n) + x0;
			taps[n] = __shfl_sync(~0u, own.taps, 4 * column + n);
			next[n].load(s.x.data, from[n] + offset[0], taps[n] & 1);
		}
#pragma unroll 1
		for (int i = 0, tap = 0, step = 0; i < all; i++) {
			const uint4 *const w = shared + i * 4 * EIGHTS * PARTS * 32 + lane;
			float sums[PARTS == 1 ? 1 : EIGHTS][2][N][4];

#pragma unroll
			for (int n = 0; n < N; n++)
				x[n] = next[n];
			if (++step == steps) {
				step = 0;
				tap++;
			}
			if (i + 1 < all) {
				const int64_t at = offset[tap] + 32 * step;

#pragma unroll
				for (int n = 0; n < N; n++)
					next[n].load(s.x.data, from[n] + at, taps[n] >> tap & 1);
			}
			if constexpr (PARTS == 1) {
#pragma unroll
				for (int h = 0; h < 2; h++)
#pragma unroll
					for (int m = 0; m < 2 * EIGHTS; m++) {
						const uint4 a = w[(h * 2 * EIGHTS + m) * 32];

#pragma unroll
						for (int n = 0; n < N; n++) {
							uint32_t low[1], high[1];

							x[n].get(h, low, high);
							multiply<DTYPE>(acc[m / 2][m % 2][n], a,
									low[0], high[0]);
						}
					}
			} else {
				uint32_t b[2][N][2][PARTS];

#pragma unroll
				for (int n = 0; n < N; n++)
#pragma unroll
					for (int h = 0; h < 2; h++)
						x[n].get(h, b[h][n][0], b[h][n][1]);
#pragma unroll
				for (int m = 0; m < 2 * EIGHTS; m++) {
					uint4 a[2][PARTS];

#pragma unroll
					for (int h = 0; h < 2; h++)
#pragma unroll
						for (int j = 0; j < PARTS; j++)
							a[h][j] = w[((h * 2 * EIGHTS + m) * PARTS +
								     j) * 32];
#pragma unroll
					for (int n = 0; n < N; n++) {
						float (&sum)[4] = sums[m / 2][m % 2][n];

						sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
						for (int t = 0; t < TERMS; t++)
#pragma unroll
							for (int h = 0; h < 2; h++)
								multiply<DTYPE>(
									sum, a[h][of_w[t]],
									b[h][n][0][of_x[t]],
									b[h][n][1][of_x[t]]);
#pragma unroll
						for (int j = 0; j < 4; j++)
							acc[m / 2][m % 2][n][j] += sum[j];
					}
				}
			}
		}
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				const int of = 4 * (2 * (lane % 4) + c) + n;
				const int64_t to = __shfl_sync(~0u, own.to, of);
				const int64_t pre = __shfl_sync(~0u, own.pre, of);
				const bool there = __shfl_sync(~0u, own.there, of);

#pragma unroll
				for (int e = 0; e < EIGHTS; e++) {
					const quat q = {acc[e][0][n][c], acc[e][0][n][2 + c],
							acc[e][1][n][c], acc[e][1][n][2 + c]};

					if (!there ||
					    8 * (block * EIGHTS + e) + column >= s.outs)
						continue;
					if (p.plain)
						quat_store(p.out.c,
							   to + (row + 8 * e) * p.out.c.row,
							   quat_turn_signs(q, turn));
					else
						quat_finish_row(p.out, to, pre, row + 8 * e, q);
				}
			}
	}
}

#define KERNEL(name, blocks, ...) \
	extern "C" __global__ __launch_bounds__(THREADS, blocks) void \
	name(const __grid_constant__ hzi_quat_groups p) \
	{ \
		__VA_ARGS__(p); \
	}
#define KERNELS(name, blocks, ...) \
	KERNEL(name##_f32, blocks, __VA_ARGS__ HZ_F32>) \
	KERNEL(name##_f16, blocks, __VA_ARGS__ HZ_F16>) \
	KERNEL(name##_bf16, blocks, __VA_ARGS__ HZ_BF16>)
KERNELS(quat_groups_weights, 1, weights<)
KERNELS(quat_conv_groups_8, 2, convolve<1,)
KERNELS(quat_conv_groups_16, 2, convolve<2,)
