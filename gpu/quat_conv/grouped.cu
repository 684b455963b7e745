/*
 * grouped.cu - quaternion convolutions with 8 to 24 channels in a group, by mma.sync
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A weight is the 4 x 4 matrix that multiplies the components (w, x, y, z) of a quaternion of x. A
 * block keeps the packed weights of 8 or 16 outputs of a group in shared memory and goes through
 * pixels: A of m16n8k16 are weights, columns of B are pixels, k are components of channels. Eight
 * channels of a pixel are k of two products; each of the four threads of a column loads two
 * channels, 16 bytes (f32: 32 bytes), one for either product. The order of rows gives a thread all
 * four components of its results.
 *
 * f32 is three bf16 terms, x = t0 + t1 + t2, of whose nine products six are computed. Tensor cores
 * truncate accumulators to 24 bits, so that f32 accumulates each eight channels of a tap by
 * themselves and adds them up in registers.
 */
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_gemm/epilogue.cuh"

#define THREADS HZI_GROUPED_THREADS

template <int DTYPE>
constexpr int terms_of = DTYPE == HZ_F32 ? HZI_GROUPED_TERMS : 1;
/* Tiles of 8 pixels of a warp */
template <int DTYPE>
constexpr int pixel_tiles_of =
	DTYPE == HZ_F32 ? HZI_GROUPED_PIXEL_TILES_F32 : HZI_GROUPED_PIXEL_TILES;

HZ_DEVICE float upper(float v)
{
	return __uint_as_float(__float_as_uint(v) & 0xffff0000);
}

/* The upper halves of both numbers, which are bf16 */
HZ_DEVICE uint32_t upper_halves(float low, float high)
{
	return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

/* Splits two numbers into terms. Truncation leaves exact remainders. */
template <int DTYPE>
HZ_DEVICE void split(uint32_t (&dst)[terms_of<DTYPE>], float low, float high)
{
	if (DTYPE == HZ_F32) {
#pragma unroll
		for (int i = 0; i < terms_of<DTYPE>; i++) {
			dst[i] = upper_halves(low, high);
			low -= upper(low);
			high -= upper(high);
		}
	} else {
		dst[0] = DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
	}
}

/* ---- Weights --------------------------------------------------------------------------------- */

/*
 * Packs weights as A fragments, a lane of a fragment by each thread: [group][block of outputs][tap]
 * [8 channels][product][8 outputs][components 0, 1 or 2, 3][term][lane].
 */
template <int DTYPE>
HZ_DEVICE void pack_weights(const hzi_quat_conv_grouped &p)
{
	constexpr int TERMS = terms_of<DTYPE>;
	const hzi_quat_conv_window &s = p.s;
	const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int lane = n % 32;
	int64_t i = n / 32;
	const int half = i % 2;
	i /= 2;
	const int out_tile = i % p.out_tiles;
	i /= p.out_tiles;
	const int product = i % 2;
	i /= 2;
	const int step = i % (s.channels / 8);
	i /= s.channels / 8;
	const int tap = i % p.taps;
	i /= p.taps;
	const int block = i % p.blocks, group = (int)(i / p.blocks);
	const int out = 8 * (block * p.out_tiles + out_tile) + lane / 4;
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
	uint32_t v[4][TERMS];

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const float4 f = quat_row(w, 2 * half + r);

		split<DTYPE>(v[r], f.x, sign * f.y);
		split<DTYPE>(v[2 + r], sign * f.z, sign * f.w);
	}
#pragma unroll
	for (int j = 0; j < TERMS; j++)
		p.weights[(n / 32 * TERMS + j) * 32 + lane] = {v[0][j], v[1][j], v[2][j], v[3][j]};
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
struct channel_pair {
	uint4 bits;

	__device__ __forceinline__ void load(const void *data, int64_t at, bool inside)
	{
		bits = {};
		if (inside)
			bits = __ldg((const uint4 *)((const uint16_t *)data + at));
	}

	__device__ __forceinline__ void get(int i, uint32_t (&low)[1], uint32_t (&high)[1]) const
	{
		low[0] = i ? bits.z : bits.x;
		high[0] = i ? bits.w : bits.y;
	}
};

template <>
struct channel_pair<HZ_F32> {
	float4 q[2];

	__device__ __forceinline__ void load(const void *data, int64_t at, bool inside)
	{
		q[0] = q[1] = {};
		if (inside) {
			q[0] = __ldg((const float4 *)((const float *)data + at));
			q[1] = __ldg((const float4 *)((const float *)data + at + 4));
		}
	}

	__device__ __forceinline__ void get(int i, uint32_t (&low)[HZI_GROUPED_TERMS],
					    uint32_t (&high)[HZI_GROUPED_TERMS]) const
	{
		split<HZ_F32>(low, q[i].x, q[i].y);
		split<HZ_F32>(high, q[i].z, q[i].w);
	}
};

/* An output pixel: offset of the first input, taps inside x (bits), offsets of its results */
struct pixel {
	int64_t src, dst, pre;
	uint32_t taps;
	bool inside;

	__device__ __forceinline__ pixel(const hzi_quat_conv_grouped &p, int64_t i)
	{
		const hzi_quat_conv_window &s = p.s;
		uint32_t index = (uint32_t)i;
		int at[3], image;

		inside = i < p.pixels;
		taps = 0;
		src = dst = pre = 0;
		if (!inside)
			return;
#pragma unroll
		for (int d = 2; d >= 0; d--) {
			const uint32_t q = index / (uint32_t)s.count[d];

			at[d] = (int)(index - q * (uint32_t)s.count[d]);
			index = q;
		}
		image = (int)index;
		src = image * s.x_stride[0];
		dst = image * p.c_stride[0];
		pre = image * p.pre_stride[0];
#pragma unroll
		for (int d = 0; d < 3; d++) {
			src += (int64_t)at[d] * s.step[d] * s.x_stride[1 + d];
			dst += at[d] * p.c_stride[1 + d];
			pre += at[d] * p.pre_stride[1 + d];
		}

		int bit = 0;

		for (int t0 = 0; t0 < s.taps[0]; t0++) {
			const int a0 = s.step[0] * at[0] + s.each[0] * t0 + s.base[0];

			for (int t1 = 0; t1 < s.taps[1]; t1++) {
				const int a1 = s.step[1] * at[1] + s.each[1] * t1 + s.base[1];
				const bool row_inside = (uint32_t)a0 < (uint32_t)s.size[0] &&
							(uint32_t)a1 < (uint32_t)s.size[1];

				for (int t2 = 0; t2 < s.taps[2]; t2++, bit++) {
					const int a2 = s.step[2] * at[2] + s.each[2] * t2 +
						       s.base[2];

					if (row_inside && (uint32_t)a2 < (uint32_t)s.size[2])
						taps |= 1u << bit;
				}
			}
		}
	}
};

/* OUT_TILES: tiles of 8 output channels of a block */
template <int OUT_TILES, int DTYPE>
HZ_DEVICE void convolve(const hzi_quat_conv_grouped &p)
{
	constexpr int TERMS = terms_of<DTYPE>, N = pixel_tiles_of<DTYPE>;
	/* Terms of w and x of each product, the smallest products first */
	constexpr int PRODUCTS = TERMS == 1 ? 1 : 6;
	const int of_w[] = {1, 0, 2, 1, 0, 0}, of_x[] = {1, 2, 0, 0, 1, 0};
	extern __shared__ uint4 shared[];	/* weights, then the offsets of taps */
	const hzi_quat_conv_window &s = p.s;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = lane / 4;
	const int block = blockIdx.y % p.blocks, group = blockIdx.y / p.blocks;
	const int steps = s.channels / 8, all = p.taps * steps;
	const int pieces = all * 4 * OUT_TILES * TERMS * 32;
	int64_t *const offset = (int64_t *)(shared + pieces);
	const int64_t x0 = (int64_t)group * s.channels * 4 + 8 * (lane % 4);
	const int row = group * s.outs + 8 * block * OUT_TILES + column;
	const uint32_t mask = p.out.c.conj ? 0x80000000 : 0;

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
		/* The four threads of a column find the pixels of the N tiles, one each. */
		const pixel own(p, lane % 4 < N ? 8 * N * first + 8 * (lane % 4) + column :
						   p.pixels);
		int64_t src[N];
		uint32_t taps[N];
		channel_pair<DTYPE> x[N], next[N];
		float acc[OUT_TILES][2][N][4] = {};

#pragma unroll
		for (int n = 0; n < N; n++) {
			src[n] = __shfl_sync(~0u, own.src, 4 * column + n) + x0;
			taps[n] = __shfl_sync(~0u, own.taps, 4 * column + n);
			next[n].load(s.x.data, src[n] + offset[0], taps[n] & 1);
		}
#pragma unroll 1
		for (int i = 0, tap = 0, step = 0; i < all; i++) {
			const uint4 *const w = shared + i * 4 * OUT_TILES * TERMS * 32 + lane;
			float sums[TERMS == 1 ? 1 : OUT_TILES][2][N][4];

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
					next[n].load(s.x.data, src[n] + at, taps[n] >> tap & 1);
			}
			if constexpr (TERMS == 1) {
#pragma unroll
				for (int h = 0; h < 2; h++)
#pragma unroll
					for (int m = 0; m < 2 * OUT_TILES; m++) {
						const uint4 a = w[(h * 2 * OUT_TILES + m) * 32];

#pragma unroll
						for (int n = 0; n < N; n++) {
							uint32_t low[1], high[1];

							x[n].get(h, low, high);
							multiply<DTYPE>(acc[m / 2][m % 2][n], a,
									low[0], high[0]);
						}
					}
			} else {
				uint32_t b[2][N][2][TERMS];

#pragma unroll
				for (int n = 0; n < N; n++)
#pragma unroll
					for (int h = 0; h < 2; h++)
						x[n].get(h, b[h][n][0], b[h][n][1]);
#pragma unroll
				for (int m = 0; m < 2 * OUT_TILES; m++) {
					uint4 a[2][TERMS];

#pragma unroll
					for (int h = 0; h < 2; h++)
#pragma unroll
						for (int j = 0; j < TERMS; j++)
							a[h][j] = w[((h * 2 * OUT_TILES + m) *
								     TERMS +
								     j) * 32];
#pragma unroll
					for (int n = 0; n < N; n++) {
						float (&sum)[4] = sums[m / 2][m % 2][n];

						sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
						for (int t = 0; t < PRODUCTS; t++)
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
				const int64_t dst = __shfl_sync(~0u, own.dst, of);
				const int64_t pre = __shfl_sync(~0u, own.pre, of);
				const bool inside = __shfl_sync(~0u, own.inside, of);

#pragma unroll
				for (int e = 0; e < OUT_TILES; e++) {
					const quat q = {acc[e][0][n][c], acc[e][0][n][2 + c],
							acc[e][1][n][c], acc[e][1][n][2 + c]};

					if (!inside ||
					    8 * (block * OUT_TILES + e) + column >= s.outs)
						continue;
					if (p.no_epilogue)
						quat_store(p.out.c,
							   dst + (row + 8 * e) * p.out.c.row,
							   quat_flip_signs(q, mask));
					else
						quat_finish_row(p.out, dst, pre, row + 8 * e, q);
				}
			}
	}
}

#define KERNEL(name, blocks, ...) \
	extern "C" __global__ __launch_bounds__(THREADS, blocks) void \
	name(const __grid_constant__ hzi_quat_conv_grouped p) \
	{ \
		__VA_ARGS__(p); \
	}
#define KERNELS(name, blocks, ...) \
	KERNEL(name##_f32, blocks, __VA_ARGS__ HZ_F32>) \
	KERNEL(name##_f16, blocks, __VA_ARGS__ HZ_F16>) \
	KERNEL(name##_bf16, blocks, __VA_ARGS__ HZ_BF16>)
KERNELS(quat_conv_grouped_pack, 1, pack_weights<)
KERNELS(quat_conv_grouped_8, 2, convolve<1,)
KERNELS(quat_conv_grouped_16, 2, convolve<2,)
