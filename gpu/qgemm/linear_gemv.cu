/*
 * linear_gemv.cu - linear layers of up to 4 rows in one launch
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The time is that of reading B once. A block has 32 columns and all of k. Its threads load all of
 * its B, up to 128 KiB, to registers before the previous kernel has ended (PDL). Then each block
 * quantizes the rows to shared memory. Within chunks of 16 bytes k may be in any order that both
 * operands share, so a thread multiplies the bytes as it loads them.
 */
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/qgemm/epilogue.cuh"
#include "gpu/quantize/prologue.cuh"
#include "lib/qgemm/qgemm.h"

#define SLICES (HZI_LINEAR_THREADS / 64)	/* slices of k, each for two warps of 16 columns */
#define SLICE_BLOCKS (HZI_LINEAR_BLOCKS / SLICES)	/* blocks of k per slice */
#define PITCH 36			/* words per row of 32 accumulators */
#define LOADS 4				/* most vectors of a row whose range a thread finds */

static_assert(HZI_LINEAR_BLOCKS * HZI_QGEMM_K_BLOCK / 4 <=
	      LOADS * (HZI_LINEAR_THREADS / HZI_LINEAR_DYNAMIC_ROWS), "");

struct shared_memory {
	alignas(16) uint8_t codes[HZI_LINEAR_ROWS][HZI_LINEAR_PITCH];
	int32_t part[SLICES][HZI_LINEAR_ROWS][PITCH];
	int32_t sum[SLICES][HZI_LINEAR_ROWS];
	uint32_t range[HZI_LINEAR_ROWS][2];	/* bits of max(0, -x) and max(0, x) */
	float scale[HZI_LINEAR_ROWS];
	int32_t zero[HZI_LINEAR_ROWS];
};

/* Loads data that no running kernel writes; allocates in L2, not in L1. */
HZ_DEVICE uint4 load_streaming(const void *p)
{
	uint4 v;

	asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

/*
 * Quantizes the rows to u8: s8 codes and zero points are offset by 128. A group of threads has one
 * row; unless the scale is given, it finds the range first, of its vectors of the row.
 */
template <int DTYPE>
HZ_DEVICE void make_codes(const hzi_qlinear_gemv &p, shared_memory &s, const uint4 (&own)[LOADS])
{
	constexpr int count = vec16<DTYPE>::count;
	const int vectors = p.out.k / count, lanes = 1 << p.log_threads;
	const int row = threadIdx.x >> p.log_threads, lane = threadIdx.x & (lanes - 1);
	const uint4 *x = (const uint4 *)((const char *)p.x + row * p.x_m);
	const bool is_signed = p.q_dtype == HZ_S8, is_row = row < p.out.m;
	const uint32_t flip = is_signed ? 0x80808080 : 0;
	float scale = p.scale;
	int32_t zero = p.zero;

	if (!p.fixed) {
		range r = {0, 0};
		float f[8];

#pragma unroll
		for (int j = 0; j < LOADS; j++) {
			if (lane + j * lanes >= vectors)
				break;
			unpack<DTYPE>(f, own[j]);
#pragma unroll
			for (int e = 0; e < count; e++)
				range_add(r, f[e]);
		}
		r = range_join_warp(r);
		if (is_row && lane % 32 == 0) {
			atomicMax(&s.range[row][0], __float_as_uint(r.below));
			atomicMax(&s.range[row][1], __float_as_uint(r.above));
		}
		__syncthreads();
		if (is_row)
			hzi_quant_params(-__uint_as_float(s.range[row][0]),
					 __uint_as_float(s.range[row][1]), p.q_dtype,
					 p.symmetric & HZ_QPARAMS_SYMMETRIC, &scale, &zero);
	}
	if (!is_row)
		return;
	if (lane == 0) {
		s.scale[row] = scale;
		s.zero[row] = zero + (is_signed ? 128 : 0);
	}

	const divisor d = make_divisor(scale, zero, is_signed);
	const int all = p.blocks * (HZI_QGEMM_K_BLOCK / count);
	uint8_t *dst = s.codes[row];

#pragma unroll 1
	for (int i = lane; i < all; i += lanes) {
		uint2 c = {0, 0};

		if (i < vectors) {
			c = encode_vector<DTYPE>(x[i], d);
			c.x ^= flip;
			c.y ^= flip;
		}
		if (DTYPE == HZ_F32)
			((uint32_t *)dst)[i] = c.x;
		else
			((uint2 *)dst)[i] = c;
	}
}

extern "C" __global__ __launch_bounds__(HZI_LINEAR_THREADS, 1) void
qlinear_gemv(const __grid_constant__ hzi_qlinear_gemv p)
{
	__shared__ shared_memory s;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int group = warp % 2, slice = warp / 2;
	const int begin = slice * p.blocks / SLICES, end = (slice + 1) * p.blocks / SLICES;
	const int row = blockIdx.x * HZI_LINEAR_COLUMNS + 16 * group + g;
	/* Two chunks of rows g and g + 8 of each block of k */
	uint4 x[SLICE_BLOCKS][2][2] = {};
	uint4 own[LOADS] = {};
	int32_t acc[4] = {}, sum = 0;

#pragma unroll
	for (int i = 0; i < SLICE_BLOCKS; i++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint8_t *src =
				p.b + ((int64_t)(begin + i) * p.width + row) * HZI_QGEMM_K_BLOCK +
				((q + 4 * h) ^ g) * 16;

			if (begin + i >= end)
				continue;
			x[i][h][0] = load_streaming(src);
			x[i][h][1] = load_streaming(src + 8 * HZI_QGEMM_K_BLOCK);
		}
	}
	if (threadIdx.x < 2 * HZI_LINEAR_ROWS)
		s.range[threadIdx.x / 2][threadIdx.x % 2] = 0;
	__syncthreads();
	pdl_launch_dependents();
	pdl_wait();

	/* Requested before the terms of columns, which are needed last */
	if (!p.fixed) {
		const int vectors = p.out.k >> (p.x_dtype == HZ_F32 ? 2 : 3);
		const int lanes = 1 << p.log_threads, m = threadIdx.x >> p.log_threads;
		const uint4 *src = (const uint4 *)((const char *)p.x + m * p.x_m);

#pragma unroll
		for (int j = 0; j < LOADS; j++) {
			const int at = (threadIdx.x & (lanes - 1)) + j * lanes;

			if (m < p.out.m && at < vectors)
				own[j] = src[at];
		}
	}

	/* The output of this thread: 8 successive columns of each 16 belong to the block. */
	const int r = threadIdx.x / 32, w = lane % 8;
	const int n = blockIdx.x / 2 * HZI_QGEMM_N_GROUP + blockIdx.x % 2 * 8 + lane / 8 * 16 + w;
	out_column column = {};

	if (r < p.out.m)
		column = general_column(p.out, n);
	if (p.x_dtype == HZ_F32)
		make_codes<HZ_F32>(p, s, own);
	else if (p.x_dtype == HZ_F16)
		make_codes<HZ_F16>(p, s, own);
	else
		make_codes<HZ_BF16>(p, s, own);
	__syncthreads();
#pragma unroll
	for (int i = 0; i < SLICE_BLOCKS; i++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint4 u = x[i][h][0], v = x[i][h][1];
			uint4 c = {};

			if (g < p.out.m && begin + i < end)
				c = *(const uint4 *)&s.codes[g][(begin + i) * HZI_QGEMM_K_BLOCK +
								64 * h + 16 * q];
			mma_m16n8k32<false, false>(acc, u.x, v.x, u.y, v.y, c.x, c.y);
			mma_m16n8k32<false, false>(acc, u.z, v.z, u.w, v.w, c.z, c.w);
			sum = add_codes<false>(c.x, sum);
			sum = add_codes<false>(c.y, sum);
			sum = add_codes<false>(c.z, sum);
			sum = add_codes<false>(c.w, sum);
		}
	}
	/* Only 4 of the 8 columns of the product are rows of x. */
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (q < HZI_LINEAR_ROWS / 2)
			s.part[slice][2 * q + i % 2][16 * group + g + i / 2 * 8] = acc[i];
	}
	sum = quad_sum(sum);
	if (group == 0 && q == 0 && g < HZI_LINEAR_ROWS)
		s.sum[slice][g] = sum;
	__syncthreads();
	if (r >= p.out.m)
		return;

	out_row of = {0, s.zero[r], s.scale[r]};
	int32_t raw = 0;

#pragma unroll
	for (int i = 0; i < SLICES; i++) {
		raw += s.part[i][r][8 * (w / 2) + lane / 8 * 2 + w % 2];
		of.sum += s.sum[i][r];
	}
	general_put_row(p.out, column, raw, of, r, n);
}
