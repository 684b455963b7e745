/*
 * dequantize.cu - codes back to back to 16-bit rows, at the rate of memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All codes are exact as f16, so the first stages are products on the matrix units, as for 16-bit
 * rows; scales of groups are of whole chunks of 32 and come behind those.
 */
#include "gpu/hadamard/quantize.h"
#include "gpu/hadamard/contiguous_16bit.cuh"
#include "gpu/quantize/quantize.cuh"

/* ---- Operands -------------------------------------------------------------------------------- */

/* The 8 codes of an aligned place as f16, integers of 8 bits less their zero */
template <int CODE>
HZ_DEVICE uint4 operands_of(uint2 codes, const hzi_hadamard_dequantize &p)
{
	uint32_t f[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t word = i < 2 ? codes.x : codes.y;

		if constexpr (CODE == HZ_S8) {
			f[i] = integer_pair(word, i & 1, p.flip, p.base);
		} else if constexpr (CODE == HZ_S4X2) {
			/*
			 * 1024 + 8 + the lower and 1024 + 16 (8 + the upper): times 1 and 1/16,
			 * less 1032 and 72
			 */
			const uint32_t byte =
				__byte_perm(codes.x ^ 0x88888888, 0, 0x4040 | i | i << 8);
			const uint32_t pair = (byte & 0x00f0000f) | 0x64006400;

			f[i] = fma_f16x2(pair, 0x2c003c00, 0xd480e408);
		} else if constexpr (CODE == HZ_E4M3) {
#if __CUDA_ARCH__ >= 890
			asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
			    : "=r"(f[i]) : "h"((uint16_t)(word >> 16 * (i & 1))));
#else
			f[i] = to_f16x2(from_e4m3(word >> 16 * (i & 1) & 0xff),
					from_e4m3(word >> (16 * (i & 1) + 8) & 0xff));
#endif
		} else {
			f[i] = __byte_perm(word, 0, i & 1 ? 0x3424 : 0x1404);
		}
	}
	return make_uint4(f[0], f[1], f[2], f[3]);
}

/*
 * 4 times 8 codes, STEP elements apart, the first at element e of a warp's that begin at e0; from
 * count on zeros. What lies ahead elements behind comes to the L2 cache, unless that is 0.
 */
template <int STEP>
HZ_DEVICE void load_codes(uint4 *w, const hzi_hadamard_dequantize &p, int64_t e0, int e, int count,
			  uint32_t ahead)
{
	with_code_dtype(p.q_dtype, [&](auto dtype) {
		constexpr int CODE = decltype(dtype)::value;
		const uint8_t *x = (const uint8_t *)p.f.x + code_bytes<CODE>(e0);
		uint2 codes[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			codes[i] = make_uint2(0, 0);
			if (e + STEP * i < count) {
				if constexpr (CODE == HZ_S4X2)
					codes[i].x = *(const uint32_t *)(x + e / 2 + STEP / 2 * i);
				else
					codes[i] = *(const uint2 *)(x + e + STEP * i);
			}
		}
		if (ahead)
			fetch_ahead<CODE == HZ_S4X2 ? 9 : 10>(x + code_bytes<CODE>(ahead));
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = operands_of<CODE>(codes[i], p);
	});
}

/* Factors for N chunks from element e on, a scale for each 2^L; zeros for those not there */
template <int N, int L>
HZ_DEVICE void fill_factors(float *r, const hzi_hadamard_dequantize &p, int64_t e)
{
	const int64_t first = e >> p.group_log2;

#pragma unroll
	for (int c = 0; c < N; c++) {
		const int64_t i = first + (c >> L);

		if (c % (1 << L)) {
			r[c] = r[c - 1];
			continue;
		}
		r[c] = p.scale ? 0 : p.f.factor;
		if (p.scale && e + 32 * c < p.f.total)
			r[c] = __fmul_rn(p.scale_dtype == HZ_F32
						 ? ((const float *)p.scale)[i]
						 : from_e8m0(((const uint8_t *)p.scale)[i]),
					 p.f.factor);
	}
}

/*
 * What the sums of a thread's N chunks are multiplied with, of which the first begins at element e,
 * a multiple of 32 N: one factor, or with GROUPS those of smaller groups
 */
template <int N, bool GROUPS>
HZ_DEVICE void chunk_factors(float *r, const hzi_hadamard_dequantize &p, int64_t e)
{
	if constexpr (!GROUPS)
		fill_factors<N, 3>(r, p, e);
	else if (p.group_log2 == 5)
		fill_factors<N, 0>(r, p, e);
	else if (p.group_log2 == 6)
		fill_factors<N, 1>(r, p, e);
	else
		fill_factors<N, 2>(r, p, e);
}

/* ---- Results --------------------------------------------------------------------------------- */

/* C successive results as 16 bits */
template <int C>
HZ_DEVICE void store_results(void *y, const float *v, int dtype)
{
	uint32_t pair[C / 2];

#pragma unroll
	for (int i = 0; i < C / 2; i++)
		pair[i] = dtype == HZ_F16 ? to_f16x2(v[2 * i], v[2 * i + 1])
					  : to_bf16x2(v[2 * i], v[2 * i + 1]);
	if constexpr (C == 8)
		*(uint4 *)y = make_uint4(pair[0], pair[1], pair[2], pair[3]);
	else if constexpr (C == 4)
		*(uint2 *)y = make_uint2(pair[0], pair[1]);
	else
		*(uint32_t *)y = pair[0];
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* To 1024: a warp has whole rows. */
template <int K, bool GROUPS>
HZ_DEVICE void values_short(const hzi_hadamard_dequantize &p)
{
	const uint32_t lane = threadIdx.x % 32;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	const int e1 = (lane >> 2) * 128 + (lane & 3) * 8;
	const int left = p.f.total - e0 < 1024 ? (int)(p.f.total - e0) : 1024;
	float v[32], r[4];
	uint4 w[4];

	if (left <= 0)
		return;
	load_codes<32>(w, p, e0, e1, left,
		       blockIdx.x + p.ahead + 1 < gridDim.x ? p.ahead * 32 * blockDim.x : 0);
	chunk_factors<4, GROUPS>(r, p, e0 + (lane >> 2) * 128);
	if (p.signs)
		sign_chunks<32>(w, p.f, e1);
	first_in_place<HZ_F16>(v, w, lane);
#pragma unroll
	for (int i = 0; i < 32; i++)
		v[i] = __fmul_rn(v[i], r[i / 8]);
	later_in_place<K>(v, lane);
	if (p.f.post)
		sign_pieces<8>(v, p.f, [&](int c) { return e1 + 32 * c; });
	uint16_t *y = (uint16_t *)p.f.y + e0 + e1;

#pragma unroll
	for (int c = 0; c < 4; c++) {
		if (e1 + 32 * c < left)
			store_results<8>(y + 32 * c, &v[8 * c], p.y_dtype);
	}
}

/* From 2048 on: a row is a block. */
template <int WARPS, int C, int LANES, bool GROUPS>
HZ_DEVICE void values_long(const hzi_hadamard_dequantize &p)
{
	constexpr int SPAN = 32 * WARPS * C;
	const uint32_t t = threadIdx.x;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	float v[32], r[8];
	uint4 w[4];

	load_codes<64>(w, p, e0 + t / 32 * 1024, loads_at(t % 32), 1024,
		       blockIdx.x + p.ahead < gridDim.x ? p.ahead * 1024 * WARPS : 0);
	/* Of the chunks that this thread has behind H_32 */
	chunk_factors<8, GROUPS>(r, p, e0 + t / 32 * 1024 + t % 4 * 256);
	if (p.signs)
		sign_chunks<64>(w, p.f, loads_at(t));
	sums_long<HZ_F16, WARPS, C, LANES>(v, w, p.f, (char *)shared, [&](float *v) {
#pragma unroll
		for (int i = 0; i < 32; i++)
			v[i] = __fmul_rn(v[i], r[i / 4]);
	});
	if (p.f.post)
		sign_pieces<C>(v, p.f, [&](int i) { return i * SPAN + t * C; });
	uint16_t *y = (uint16_t *)p.f.y + e0 + t * C;

#pragma unroll
	for (int i = 0; i < 32 / C; i++)
		store_results<C>(y + i * SPAN, &v[C * i], p.y_dtype);
}

/* ---- The kernels ----------------------------------------------------------------------------- */

/* Each for one scale for all chunks of a thread, and for groups. */
#define VALUES(k, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_dequantize_##k(const __grid_constant__ hzi_hadamard_dequantize p) \
	{ \
		function<__VA_ARGS__, false>(p); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_dequantize_##k##_groups(const __grid_constant__ hzi_hadamard_dequantize p) \
	{ \
		function<__VA_ARGS__, true>(p); \
	}

VALUES(5, 128, 8, values_short, 5)
VALUES(6, 128, 8, values_short, 6)
VALUES(7, 128, 8, values_short, 7)
VALUES(8, 128, 8, values_short, 8)
VALUES(9, 128, 8, values_short, 9)
VALUES(10, 128, 8, values_short, 10)
VALUES(11, 64, 16, values_long, 2, 4, 0)
VALUES(12, 128, 8, values_long, 4, 2, 0)
VALUES(13, 256, 4, values_long, 8, 2, 1)
VALUES(14, 512, 2, values_long, 16, 2, 2)
