/*
 * contiguous.cuh - transforms of a warp's 1024 contiguous elements
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread has 32 of them. For 16-bit rows the first five stages are products with H_32 on tensor
 * cores: entries are +-1, products are exact, accumulators are f32. The 16 bytes that a thread
 * loads are an operand as loaded, so that no data pass through shared memory before stride 1024.
 */
#ifndef HZI_GPU_HADAMARD_CONTIGUOUS_CUH
#define HZI_GPU_HADAMARD_CONTIGUOUS_CUH

#include "gpu/device/cp_async.cuh"
#include "gpu/device/dtype.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/hadamard/butterflies.cuh"
#include "gpu/hadamard/contiguous.h"

#define HZ_MEMBER __device__ __forceinline__

extern __shared__ float4 shared[];

/* The largest magnitude; NaN if there is one */
template <int N>
HZ_DEVICE float max_abs(const float *v)
{
	float most = fabsf(v[0]);

#pragma unroll
	for (int i = 1; i < N; i++)
		most = max_nan(most, fabsf(v[i]));
	return most;
}

/* ---- 16 bits: strides 1 to 16 on tensor cores ------------------------------------------------ */

/*
 * The chunk of 32 elements that is column n of product i. Bits 0 to 2 of its index select registers
 * after the product, so that strides up to 128 need no other thread's values.
 */
HZ_DEVICE int chunk_of(int i, int n)
{
	return (n & 1) | i << 1 | n >> 1 << 3;
}

/* The signs of elements 2 j and 2 j + 1 of 8, as bits 15 and 31 */
HZ_DEVICE uint32_t sign_pair(uint32_t bits, int j)
{
	return (bits << (15 - 2 * j) & 0x8000) | (bits << (30 - 2 * j) & 0x80000000);
}

/* Applies packed signs to 8 successive elements. */
HZ_DEVICE void flip_octet(uint4 &w, uint32_t bits)
{
	w.x ^= sign_pair(bits, 0);
	w.y ^= sign_pair(bits, 1);
	w.z ^= sign_pair(bits, 2);
	w.w ^= sign_pair(bits, 3);
}

/*
 * Codes 2 j and 2 j + 1 of four as f16: (code xor flip) + 1024 + base. With the flip that makes
 * codes unsigned and base = -1024 minus the zero point of unsigned codes, that is the code minus
 * its zero point.
 */
HZ_DEVICE uint32_t codes_to_f16x2(uint32_t codes, int j, uint32_t flip, uint32_t base)
{
	return add_f16x2(__byte_perm(codes ^ flip, 0x64646464, j ? 0x4342 : 0x4140), base);
}

/* Loads this thread's part of a warp's 1024 elements from e0 on; elements from total on are 0. */
HZ_DEVICE void load_tile(uint4 *w, const hzi_hadamard_contiguous &p, int64_t e0, int lane)
{
	const int g = lane >> 2, q = lane & 3;
	const uint16_t *x = (const uint16_t *)p.x + (e0 + chunk_of(0, g) * 32 + 8 * q);

	if (e0 + 1024 <= p.total) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = *(const uint4 *)(x + 64 * i);
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = e0 + chunk_of(i, g) * 32 < p.total ? *(const uint4 *)(x + 64 * i)
								  : make_uint4(0, 0, 0, 0);
	}
}

/* The same if all elements exist: the test would cost the kernels for long rows 2 %. */
HZ_DEVICE void load_full_tile(uint4 *w, const hzi_hadamard_contiguous &p, int64_t e0, int lane)
{
	const int g = lane >> 2, q = lane & 3;
	const uint16_t *x = (const uint16_t *)p.x + (e0 + chunk_of(0, g) * 32 + 8 * q);

#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = *(const uint4 *)(x + 64 * i);
}

/*
 * Applies the packed signs p.pre to part i of a warp's operands, which begin at element e0 of their
 * rows.
 */
HZ_DEVICE void flip_part(uint4 &w, const hzi_hadamard_contiguous &p, int e0, int i, int lane)
{
	const int e = e0 + chunk_of(i, lane >> 2) * 32 + 8 * (lane & 3);

	flip_octet(w, ((const uint8_t *)p.pre)[(e & p.mask) >> 3]);
}

/*
 * This thread's first entry of H_32 for strides 1 to 16. Row 4 g + 2 t + h of H_32 is row g + 8 h
 * of product t, so that a thread gets four successive results of each chunk; columns have the order
 * of elements in memory. The sign of entry (4 g + 2 t + h, 8 q + 4 s + 2 f + e), with s the half of
 * the product, f and e the index in its operand, is h e + t f + g0 s + g1 q0 + g2 q1 mod 2.
 */
template <int DTYPE>
HZ_DEVICE uint32_t h32_entry(int lane)
{
	const int g = lane >> 2, q = lane & 3;
	const uint32_t odd = (((g >> 1) & q) ^ ((g >> 2) & (q >> 1))) & 1;

	return (DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00) ^ (odd ? 0x80008000 : 0);
}

/* Adds a product to v[0] .. v[7]: four results of each of two chunks */
template <int DTYPE>
HZ_DEVICE void multiply_h32(float *v, const uint4 &w, uint32_t h0, int lane)
{
	const uint32_t h1 = h0 ^ (lane & 4 ? 0x80008000 : 0);

#pragma unroll
	for (int t = 0; t < 2; t++) {
		const uint32_t f = t ? 0x80008000 : 0;
		float c[4] = {v[2 * t], v[4 + 2 * t], v[2 * t + 1], v[4 + 2 * t + 1]};

		mma_m16n8k16<DTYPE>(c, h0, h0 ^ 0x80000000, h0 ^ f, h0 ^ 0x80000000 ^ f, w.x, w.y);
		mma_m16n8k16<DTYPE>(c, h1, h1 ^ 0x80000000, h1 ^ f, h1 ^ 0x80000000 ^ f, w.z, w.w);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			v[2 * t + h] = c[2 * h];
			v[4 + 2 * t + h] = c[2 * h + 1];
		}
	}
}

/* All four products. v[4 c] ..: chunk c | q << 3 */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void first_stages(float *v, uint4 *w, const hzi_hadamard_contiguous &p, int64_t e0,
			    int lane)
{
	const uint32_t h0 = h32_entry<DTYPE>(lane);

#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (SIGNS && p.pre)
			flip_part(w[i], p, (int)(e0 & p.mask), i, lane);
#pragma unroll
		for (int j = 8 * i; j < 8 * i + 8; j++)
			v[j] = 0;
		multiply_h32<DTYPE>(&v[8 * i], w[i], h0, lane);
	}
}

/* A stage between lanes that differ in bit `other` */
template <int N = 32>
HZ_DEVICE void lane_stage(float *v, int lane, int other)
{
	const float sign = lane & other ? -1.0f : 1.0f;

#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(0xffffffff, v[i], other));
}

/* Strides 32 to 512, the first count of them */
HZ_DEVICE void second_stages(float *v, int count, int lane)
{
	stages<32, 2, 5>(v, count);
	if (count > 3)
		lane_stage(v, lane, 1);
	if (count > 4)
		lane_stage(v, lane, 2);
}

/*
 * Strides 32 to 512 without shuffles, which would occupy the path to shared memory. The result of a
 * first product, rows by 8 chunks, is an operand as it is, and is multiplied by H_8. It is split
 * into two terms of 11 bits (tf32): sums of 32 numbers of 11 bits are exact unless these are more
 * than 2^6 apart; then the error is below 2^-21 of a value, most often far below.
 */
HZ_DEVICE void second_stages_mma(float *v, int lane)
{
	const int g = lane >> 2, q = lane & 3;
	const uint32_t odd = (((g >> 1) & q) ^ ((g >> 2) & (q >> 1))) & 1;
	const uint32_t b0 = 0x3f800000 | odd << 31, b1 = b0 ^ (uint32_t)(g & 1) << 31;

#pragma unroll
	for (int i = 0; i < 4; i++) {
#pragma unroll
		for (int t = 0; t < 2; t++) {
			float *at = &v[8 * i + 2 * t];
			const float src[4] = {at[0], at[1], at[4], at[5]};
			uint32_t high[4], low[4];
			float c[4] = {};

#pragma unroll
			for (int j = 0; j < 4; j++) {
				high[j] = __float_as_uint(src[j]) & 0xffffe000;
				low[j] = __float_as_uint(src[j] - __uint_as_float(high[j]));
			}
			mma_m16n8k8_tf32(c, high, b0, b1);
			mma_m16n8k8_tf32(c, low, b0, b1);
			at[0] = c[0];
			at[4] = c[1];
			at[1] = c[2];
			at[5] = c[3];
		}
	}
	stages<32, 3, 5>(v, 2);
}

/* ---- Exchange through shared memory ---------------------------------------------------------- */

/*
 * A warp's values in shared memory: lines of 32 elements in pieces of 4. The order of pieces in a
 * line is XOR-swizzled by the line's number, so that neither access pattern has bank conflicts.
 */
template <int DTYPE>
HZ_DEVICE int swizzle(int row)
{
	return DTYPE == HZ_F32 ? row & 7 : row >> 2 & 6;
}

/* The byte offset of element e */
template <int DTYPE>
HZ_DEVICE int swizzled(int e)
{
	return e / 32 * 128 + ((e >> 2 & 7) ^ swizzle<DTYPE>(e / 32)) * 16 + (e & 3) * 4;
}

/* The address of element e of y */
template <int DTYPE>
HZ_DEVICE char *y_at(const hzi_hadamard_contiguous &p, int64_t e)
{
	return (char *)p.y + e * (DTYPE == HZ_F32 ? 4 : 2);
}

/* Stores C successive results, e elements from dst on; e is known at compile time. */
template <int DTYPE, int C>
HZ_DEVICE void store_at(char *dst, int e, const float *f)
{
	store_results<DTYPE, C>(dst + e * (DTYPE == HZ_F32 ? 4 : 2), f);
}

/*
 * Applies packed signs to a thread's N values. Those of piece i, C values, begin at bit index(i).
 */
template <int C, int N, typename F>
HZ_DEVICE void flip_values(float *v, const void *signs, F index)
{
#pragma unroll
	for (int i = 0; i < N / C; i++) {
		const auto at = index(i);
		const uint32_t bits = ((const uint8_t *)signs)[at >> 3] >> (at & 7);

#pragma unroll
		for (int c = 0; c < C; c++)
			v[C * i + c] = __uint_as_float(__float_as_uint(v[C * i + c]) ^
						       (bits << (31 - c) & 0x80000000));
	}
}

/* Multiplies a thread's N values by factor and applies the packed signs p.post. */
template <int C, bool SIGNS, int N = 32, typename F>
HZ_DEVICE void scale_and_flip(float *v, const hzi_hadamard_contiguous &p, F element)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = __fmul_rn(v[i], p.factor);
	if (SIGNS && p.post)
		flip_values<C, N>(v, p.post, [&](int i) { return (int)(element(i) & p.mask); });
}

/* A warp's values after strides up to 512 to its shared memory, swizzled as ORDER, a dtype, is */
template <int ORDER>
HZ_DEVICE void store_tile(const float *v, char *memory, int lane)
{
	const int g = lane >> 2, q = lane & 3;
	char *row = memory + q * 1024;

#pragma unroll
	for (int c = 0; c < 8; c++)
		*(float4 *)(row + c * 128 + ((g ^ (ORDER == HZ_F32 ? c : 2 * q)) << 4)) =
			make_float4(v[4 * c], v[4 * c + 1], v[4 * c + 2], v[4 * c + 3]);
}

/*
 * The last stages, between WARPS warps with 32 N values each, contiguous in memory, and the results
 * to y from element e0 on; results of successive warps are APART elements apart. A thread takes
 * pieces of C elements, N values in all, at the same offsets of all warps. Each address is a base
 * plus an offset that is known at compile time: instruction issue limits these kernels.
 */
template <int DTYPE, int WARPS, bool SIGNS, int N = 32, int APART = 32 * N>
HZ_DEVICE void last_stages(float *v, const hzi_hadamard_contiguous &p, int64_t e0,
			   const char *memory, int t)
{
	constexpr int V = N / WARPS, C = V < 4 ? V : 4, THREADS = 32 * WARPS;
	constexpr int BITS = N == 64 ? 6 : 5;
	constexpr int STAGES =
		WARPS == 2 ? 1 : WARPS == 4 ? 2 : WARPS == 8 ? 3 : WARPS == 16 ? 4 : 5;

#pragma unroll
	for (int g = 0; g < V / C; g++) {
		const char *src = memory + swizzled<DTYPE>((g * THREADS + t) * C);

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			load_piece<C>(&v[w * V + g * C], src + w * (N * 128));
	}
	stages<N, BITS - STAGES, BITS>(v, STAGES);
	scale_and_flip<C, SIGNS, N>(v, p, [&](int i) {
		return e0 + i / (V / C) * APART + (i % (V / C) * THREADS + t) * C;
	});
	char *y = y_at<DTYPE>(p, e0 + t * C);

#pragma unroll
	for (int w = 0; w < WARPS; w++) {
#pragma unroll
		for (int g = 0; g < V / C; g++)
			store_at<DTYPE, C>(y, w * APART + g * THREADS * C, &v[w * V + g * C]);
	}
}

/* ---- f32 ------------------------------------------------------------------------------------- */

/* Loads this thread's line of a warp's shared memory: 32 successive values. */
HZ_DEVICE void load_line(float *v, const char *memory, int lane)
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		load_piece<4>(&v[4 * i], memory + lane * 128 + ((i ^ (lane & 7)) << 4));
}

/*
 * Strides 1 to 512, the first count of them: 1 to 16 between a thread's successive values, the
 * others between v[r] = element 32 r + lane.
 */
HZ_DEVICE void stages_by_lines(float *v, char *memory, int lane, int count)
{
	stages<32, 0, 5>(v, count);
#pragma unroll
	for (int i = 0; i < 8; i++)
		store_piece<4>(memory + lane * 128 + ((i ^ (lane & 7)) << 4), &v[4 * i]);
	__syncwarp();
#pragma unroll
	for (int i = 0; i < 32; i++)
		v[i] = *(const float *)(memory + swizzled<HZ_F32>(i * 32 + lane));
	stages<32, 0, 5>(v, count - 5);
}

/* Stores the values of stages_by_lines(): each thread writes what it alone has read. */
HZ_DEVICE void store_columns(const float *v, char *memory, int lane)
{
#pragma unroll
	for (int i = 0; i < 32; i++)
		*(float *)(memory + swizzled<HZ_F32>(i * 32 + lane)) = v[i];
}

/*
 * Strides 1 to 512, the first count of them, of a warp's 1024 elements from e0 on, through the
 * warp's shared memory
 */
template <bool SIGNS>
HZ_DEVICE void stages_f32(float *v, const hzi_hadamard_contiguous &p, int64_t e0, char *memory,
			  int lane, int count)
{
	const float *x = (const float *)p.x + e0;
	const uint32_t dst = shared_address(memory);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int e = (32 * i + lane) * 4;

		if (e0 + e < p.total)
			cp_async(dst + swizzled<HZ_F32>(e), x + e);
	}
	cp_async_wait_all();
	__syncwarp();
	load_line(v, memory, lane);
	if (SIGNS && p.pre) {
		const uint32_t bits = ((const uint32_t *)p.pre)[((e0 + 32 * lane) & p.mask) >> 5];

#pragma unroll
		for (int i = 0; i < 32; i++)
			v[i] = __uint_as_float(__float_as_uint(v[i]) ^
					       (bits << (31 - i) & 0x80000000));
	}
	stages_by_lines(v, memory, lane, count);
}

#endif
