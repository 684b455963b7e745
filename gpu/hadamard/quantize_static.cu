/*
 * quantize_static.cu - rows back to back to codes, with scales and zeros that are given
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of 16 bits, as in quantize.cu, a value and its quotient are never made: the code of a
 * sum v comes of v r with r = factor / s, whose roundings are no more than those of t and t / s. Of
 * f32 all is as hurwitz.h says, to the bit.
 */
#include "gpu/hadamard/quantize_epilogue.cuh"
#include "gpu/hadamard/contiguous_16bit.cuh"
#include "gpu/hadamard/quantize_static.h"

/* ---- Rows ------------------------------------------------------------------------------------ */

/* To 1024: a warp has whole rows. */
template <int DTYPE, int K>
HZ_DEVICE void static_short(const hzi_hadamard_static &p)
{
	const uint32_t lane = threadIdx.x % 32;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	/* Of this warp's elements: the thread's first one, and how many there are */
	const int e1 = (lane >> 2) * 128 + (lane & 3) * 8;
	const int left = p.f.total - e0 < 1024 ? (int)(p.f.total - e0) : 1024;
	const uint16_t *x = (const uint16_t *)p.f.x + e0 + e1;
	float v[32];
	uint4 w[4];

	if (left <= 0)
		return;
#pragma unroll
	for (int c = 0; c < 4; c++)
		w[c] = e1 + 32 * c < left ? *(const uint4 *)(x + 32 * c) : make_uint4(0, 0, 0, 0);
	/* Shorter rows have no need of it. */
	if (K > 7 && blockIdx.x + p.ahead + 1 < gridDim.x)
		fetch_ahead<11>((const uint16_t *)p.f.x + e0 + p.ahead * 32 * blockDim.x);

	const parameter all = parameter_of(p, e1 < left ? e0 + e1 : e0);

	if (p.signs)
		sign_chunks<32>(w, p.f, e1);
	first_in_place<DTYPE>(v, w, lane);
	later_in_place<K>(v, lane);
	if (p.f.post)
		sign_pieces<8>(v, p.f, [&](int c) { return e1 + 32 * c; });
	uint8_t *y = (uint8_t *)p.f.y + e0 + e1;

	uint32_t w8[8];

	/* A thread's chunks, of 128 elements, have one parameter or all their own. */
	if (p.group.divisor % 16 == 0) {
		codes_near<32>(w8, v, coder_of(p, all, p.f.factor), p, e1 < left ? e0 + e1 : e0);
	} else {
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const int64_t e = e0 + (e1 + 32 * c < left ? e1 + 32 * c : 0);

			codes_near<8>(&w8[2 * c], &v[8 * c],
				      coder_of(p, parameter_of(p, e), p.f.factor), p, e);
		}
	}
#pragma unroll
	for (int c = 0; c < 4; c++) {
		if (e1 + 32 * c < left)
			*(uint2 *)(y + 32 * c) = make_uint2(w8[2 * c], w8[2 * c + 1]);
	}
}

/* From 2048 on: a row is a block, its first element e0. */
template <int DTYPE, int WARPS, int C, int LANES>
HZ_DEVICE void static_long(const hzi_hadamard_static &p)
{
	constexpr int SPAN = 32 * WARPS * C;
	const uint32_t t = threadIdx.x;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	const uint16_t *x = (const uint16_t *)p.f.x + e0 + loads_at(t);
	const bool whole = p.group.divisor == 0 || p.group.divisor % (128 * WARPS) == 0;
	coder *all = (coder *)((char *)shared + WARPS * HZI_WARP_BYTES);
	float v[32];
	uint4 w[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = *(const uint4 *)(x + 64 * i);
	if (blockIdx.x + p.ahead < gridDim.x)
		fetch_block_ahead<2048 * WARPS>((const uint16_t *)p.f.x + e0 +
						(int64_t)p.ahead * WARPS * 1024);
	/* One warp makes ready what all threads need behind the barrier of the sums. */
	if (whole && t < 32) {
		const coder c = coder_of(p, parameter_of(p, e0), p.f.factor);

		if (t == 0)
			*all = c;
	}
	if (p.signs)
		sign_chunks<64>(w, p.f, loads_at(t));
	sums_long<DTYPE, WARPS, C, LANES>(v, w, p.f, (char *)shared, [](float *) {});
	if (p.f.post)
		sign_pieces<C>(v, p.f, [&](int i) { return i * SPAN + t * C; });
	uint8_t *y = (uint8_t *)p.f.y + e0 + t * C;

	uint32_t w8[8];

	if (whole) {
		codes_near<32>(w8, v, *all, p, e0);
	} else {
#pragma unroll
		for (int i = 0; i < 32 / C; i++) {
			const int64_t e = e0 + t * C + i * SPAN;
			uint32_t one;

			codes_near<C>(&one, &v[C * i],
				      coder_of(p, parameter_of(p, e), p.f.factor), p, e);
			w8[i * C / 4] = i * C % 4 ? w8[i * C / 4] | one << 16 : one;
		}
	}
#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		if constexpr (C == 4)
			*(uint32_t *)(y + i * SPAN) = w8[i];
		else
			*(uint16_t *)(y + i * SPAN) = (uint16_t)(w8[i / 2] >> i % 2 * 16);
	}
}

/* f32: a warp has 1024 elements, of which rows to 1024 are whole; a longer row is a block. */
template <int WARPS>
HZ_DEVICE void static_f32(const hzi_hadamard_static &p)
{
	constexpr int V = 32 / WARPS, C = V < 4 ? V : 4, THREADS = 32 * WARPS;
	constexpr int STAGES =
		WARPS == 1 ? 0 : WARPS == 2 ? 1 : WARPS == 4 ? 2 : WARPS == 8 ? 3 : 4;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int t = WARPS > 1 ? threadIdx.x : lane;
	/* What the threads that share rows begin with */
	const int64_t e0 = WARPS > 1 ? (int64_t)blockIdx.x * (1024 * WARPS)
				     : ((int64_t)blockIdx.x * (blockDim.x / 32) + warp) * 1024;
	char *own = (char *)shared + warp * HZI_WARP_BYTES;
	const char *memory = WARPS > 1 ? (char *)shared : own;
	const bool whole = WARPS > 1 &&
			   (p.group.divisor == 0 || p.group.divisor % (128 * WARPS) == 0);
	float v[32];

	if (e0 >= p.f.total)
		return;

	/* What is no power of two is part of the values first. */
	const bool power = !(__float_as_uint(p.f.factor) & 0x7fffff);
	const float factor = power ? p.f.factor : 1;
	coder all;

	if (WARPS == 1) {
		all = coder_of(p, parameter_of(p, e0), factor);
	} else if (whole && t < 32) {
		all = coder_of(p, parameter_of(p, e0), factor);
		if (t == 0)
			*(coder *)((char *)shared + WARPS * HZI_WARP_BYTES) = all;
	}
	fast_f32<true>(v, p.f, e0 + (WARPS > 1 ? warp * 1024 : 0), own, lane,
		       WARPS > 1 ? 10 : p.f.k);
	/* Each thread puts back what it took alone. */
#pragma unroll
	for (int i = 0; i < 32; i++)
		*(float *)(own + place_of<HZ_F32>(i * 32 + lane)) = v[i];
	if (WARPS > 1)
		__syncthreads();
	else
		__syncwarp();
#pragma unroll
	for (int g = 0; g < V / C; g++) {
		const char *from = memory + place_of<HZ_F32>((g * THREADS + t) * C);

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			get_piece<C>(&v[w * V + g * C], from + w * HZI_WARP_BYTES);
	}
	stages<32, 5 - STAGES, 5>(v, STAGES);
	auto element = [&](int i) {
		return i / (V / C) * 1024 + (i % (V / C) * THREADS + t) * C;
	};

	if (p.f.post)
		sign_pieces<C>(v, p.f, element);
	uint32_t w8[8];

	if (!power) {
#pragma unroll
		for (int i = 0; i < 32; i++)
			v[i] = __fmul_rn(v[i], p.f.factor);
	}
	if (whole || p.group.divisor == 0) {
		if (WARPS > 1)
			all = *(const coder *)((char *)shared + WARPS * HZI_WARP_BYTES);
		codes_exact<32>(w8, v, all, p, e0, factor);
	} else {
#pragma unroll
		for (int i = 0; i < 32 / C; i++) {
			const int64_t e = e0 + element(i);
			const int64_t in = WARPS == 1 && e >= p.f.total ? e0 : e;
			uint32_t one;

			codes_exact<C>(&one, &v[C * i], coder_of(p, parameter_of(p, in), factor), p,
				       in, factor);
			w8[i * C / 4] = i * C % 4 ? w8[i * C / 4] | one << 16 : one;
		}
	}
#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		const int64_t e = e0 + element(i);
		uint8_t *y = (uint8_t *)p.f.y + e;

		if (WARPS == 1 && e >= p.f.total)
			continue;
		if constexpr (C == 4)
			*(uint32_t *)y = w8[i];
		else
			*(uint16_t *)y = (uint16_t)(w8[i / 2] >> i % 2 * 16);
	}
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define STATIC(k, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_quantize_static_f16_##k(const __grid_constant__ hzi_hadamard_static p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_quantize_static_bf16_##k(const __grid_constant__ hzi_hadamard_static p) \
	{ \
		function<HZ_BF16, __VA_ARGS__>(p); \
	}

STATIC(5, 128, 8, static_short, 5)
STATIC(6, 128, 8, static_short, 6)
STATIC(7, 128, 8, static_short, 7)
STATIC(8, 128, 8, static_short, 8)
STATIC(9, 128, 8, static_short, 9)
STATIC(10, 128, 8, static_short, 10)
STATIC(11, 64, 16, static_long, 2, 4, 0)
STATIC(12, 128, 9, static_long, 4, 2, 0)
STATIC(13, 256, 4, static_long, 8, 2, 1)
STATIC(14, 512, 2, static_long, 16, 2, 2)

#define STATIC_F32(k, threads, blocks, warps) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_quantize_static_f32_##k(const __grid_constant__ hzi_hadamard_static p) \
	{ \
		static_f32<warps>(p); \
	}

STATIC_F32(10, 128, 5, 1)
STATIC_F32(11, 64, 12, 2)
STATIC_F32(12, 128, 6, 4)
STATIC_F32(13, 256, 4, 8)
STATIC_F32(14, 512, 2, 16)
