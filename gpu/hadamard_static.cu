/*
 * hadamard_static.cu - rows back to back to codes, with scales and zeros that are given
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of 16 bits, as in hadamard_quantize.cu, a value and its quotient are never made: the code of a sum
 * v comes of v r with r = factor / s, whose roundings are no more than those of t and t / s. Of f32
 * all is as hurwitz.h says, to the bit.
 */
#include "gpu/hadamard_rows.cuh"
#include "gpu/hadamard_static.h"

/* ---- Codes ----------------------------------------------------------------------------------- */

#define TO_INTEGER 12582912.0f	/* 1.5 2^23: the sum with it has no bits behind the point */

/* What sums with one parameter become codes by; those beyond limit, and NaN, one by one */
struct coder {
	float s, r, inverse, limit;	/* r: factor / s, inverse: 1 / s */
	int32_t zero, base;		/* base: zero less the bits of TO_INTEGER */
};

HZ_DEVICE coder coder_of(const hzi_hadamard_static &p, int64_t i)
{
	coder c;

	c.s = p.scales ? p.scales[i] : p.scale;
	c.zero = !p.scales ? p.zero : !p.zeros ? 0 : p.is_signed ? (int8_t)p.zeros[i] : p.zeros[i];
	c.base = c.zero - __float_as_int(TO_INTEGER);
	c.r = __fdiv_rn(p.f.factor, c.s);
	c.inverse = __frcp_rn(c.s);
	/* Where nothing over- or underflows on the way, products to 2^20; else none */
	c.limit = fabsf(c.s) >= 0x1p-60f && fabsf(c.s) <= 0x1p60f ? __fdividef(0x1p20f, fabsf(c.r))
								  : -1;
	return c;
}

/* Of the piece with element e */
HZ_DEVICE int64_t parameter_of(const hzi_hadamard_static &p, int64_t e)
{
	const uint32_t piece = (uint32_t)(e >> 3);

	return p.group.divisor ? (__umulhi(piece, p.group.magic) + piece) >> p.group.shift : 0;
}

/* The integers that codes become by saturation, as bits; by divisions */
template <int N>
HZ_DEVICE void codes_by_division(float *v, const coder &c, float factor)
{
#pragma unroll
	for (int i = 0; i < N; i++) {
		const float t = __fdiv_rn(__fmul_rn(v[i], factor), c.s);
		const float cut = fminf(fmaxf(isnan(t) ? 0.0f : t, -512.0f), 512.0f);

		v[i] = __int_as_float(__float2int_rn(cut) + c.zero);
	}
}

/* The same of any t within the bounds of 16 bits */
template <int N>
HZ_DEVICE void codes_of(float *v, const coder &c, float factor)
{
	float most = fabsf(v[0]);

#pragma unroll
	for (int i = 1; i < N; i++)
		most = max_nan(most, fabsf(v[i]));
	if (most <= c.limit) {
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = __int_as_float(
				__float_as_int(__fmaf_rn(v[i], c.r, TO_INTEGER)) + c.base);
		return;
	}
	codes_by_division<N>(v, c, factor);
}

/*
 * The same as by divisions: q + (t - q s) / s with q = t (1 / s) is the quotient as long as nothing
 * under- or overflows on the way, and then q is finite; a tiny one may be off, and is 0 all the same.
 */
template <int N>
HZ_DEVICE void codes_exact(float *v, const coder &c, float factor)
{
	float finite = c.limit > 0 ? 0.0f : __uint_as_float(0x7fc00000);
	int code[N];

#pragma unroll
	for (int i = 0; i < N; i++) {
		const float t = __fmul_rn(v[i], factor), q = __fmul_rn(t, c.inverse);
		const float right = __fmaf_rn(__fmaf_rn(-q, c.s, t), c.inverse, q);

		finite = __fmaf_rn(q, 0.0f, finite);
		code[i] = __float_as_int(__fadd_rn(fminf(fmaxf(right, -512.0f), 512.0f),
						   TO_INTEGER)) + c.base;
	}
	if (isnan(finite)) {
		codes_by_division<N>(v, c, factor);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = __int_as_float(code[i]);
}

/* Four of them to bytes */
HZ_DEVICE uint32_t pack_codes(const float *v, int is_signed)
{
	const int a = __float_as_int(v[0]), b = __float_as_int(v[1]), c = __float_as_int(v[2]),
		  d = __float_as_int(v[3]);
	uint32_t high, all;

	if (is_signed) {
		asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
		    : "=r"(high) : "r"(d), "r"(c), "r"(0));
		asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
		    : "=r"(all) : "r"(b), "r"(a), "r"(high));
	} else {
		asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
		    : "=r"(high) : "r"(d), "r"(c), "r"(0));
		asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
		    : "=r"(all) : "r"(b), "r"(a), "r"(high));
	}
	return all;
}

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
	if (p.signs)
		sign_chunks<32>(w, p.f, e1);
	first_in_place<DTYPE>(v, w, lane);
	later_in_place<K>(v, lane);
	if (p.f.post)
		sign_pieces<8>(v, p.f, [&](int c) { return e1 + 32 * c; });
	uint8_t *y = (uint8_t *)p.f.y + e0 + e1;

	/* A thread's chunks, of 128 elements, have one parameter or all their own. */
	if (p.group.divisor % 16 == 0) {
		codes_of<32>(v, coder_of(p, parameter_of(p, e1 < left ? e0 + e1 : e0)), p.f.factor);
	} else {
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const int64_t e = e0 + (e1 + 32 * c < left ? e1 + 32 * c : 0);

			codes_of<8>(&v[8 * c], coder_of(p, parameter_of(p, e)), p.f.factor);
		}
	}
#pragma unroll
	for (int c = 0; c < 4; c++) {
		if (e1 + 32 * c < left)
			*(uint2 *)(y + 32 * c) = make_uint2(pack_codes(&v[8 * c], p.is_signed),
							    pack_codes(&v[8 * c + 4], p.is_signed));
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
	float v[32];
	uint4 w[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = *(const uint4 *)(x + 64 * i);
	if (blockIdx.x + p.ahead < gridDim.x)
		fetch_ahead<11>((const uint16_t *)p.f.x + e0 + (p.ahead * WARPS + t / 32) * 1024);
	if (p.signs)
		sign_chunks<64>(w, p.f, loads_at(t));
	sums_long<DTYPE, WARPS, C, LANES>(v, w, p.f, (char *)shared, [](float *) {});
	if (p.f.post)
		sign_pieces<C>(v, p.f, [&](int i) { return i * SPAN + t * C; });
	uint8_t *y = (uint8_t *)p.f.y + e0 + t * C;

	if (whole) {
		codes_of<32>(v, coder_of(p, parameter_of(p, e0)), p.f.factor);
	} else {
#pragma unroll
		for (int i = 0; i < 32 / C; i++)
			codes_of<C>(&v[C * i], coder_of(p, parameter_of(p, e0 + t * C + i * SPAN)),
				    p.f.factor);
	}
#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		if constexpr (C == 4)
			*(uint32_t *)(y + i * SPAN) = pack_codes(&v[4 * i], p.is_signed);
		else if (i % 2 == 0) {
			const uint32_t two = pack_codes(&v[2 * i], p.is_signed);

			*(uint16_t *)(y + i * SPAN) = (uint16_t)two;
			*(uint16_t *)(y + (i + 1) * SPAN) = (uint16_t)(two >> 16);
		}
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
	char *own = (char *)shared + warp * HZI_FAST_WARP_BYTES;
	const char *memory = WARPS > 1 ? (char *)shared : own;
	const bool whole = WARPS > 1 &&
			   (p.group.divisor == 0 || p.group.divisor % (128 * WARPS) == 0);
	float v[32];

	if (e0 >= p.f.total)
		return;
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
			get_piece<C>(&v[w * V + g * C], from + w * HZI_FAST_WARP_BYTES);
	}
	stages<32, 5 - STAGES, 5>(v, STAGES);
	auto element = [&](int i) {
		return i / (V / C) * 1024 + (i % (V / C) * THREADS + t) * C;
	};

	if (p.f.post)
		sign_pieces<C>(v, p.f, element);
	const coder all = coder_of(p, parameter_of(p, e0));

#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		const int64_t e = e0 + element(i);
		float codes[4] = {};

		if (WARPS == 1 && e >= p.f.total)
			continue;
		if (whole || p.group.divisor == 0)
			codes_exact<C>(&v[C * i], all, p.f.factor);
		else
			codes_exact<C>(&v[C * i], coder_of(p, parameter_of(p, e)), p.f.factor);
#pragma unroll
		for (int c = 0; c < C; c++)
			codes[c] = v[C * i + c];
		if constexpr (C == 4)
			*(uint32_t *)((uint8_t *)p.f.y + e) = pack_codes(codes, p.is_signed);
		else
			*(uint16_t *)((uint8_t *)p.f.y + e) =
				(uint16_t)pack_codes(codes, p.is_signed);
	}
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define STATIC(k, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_static_f16_##k(const __grid_constant__ hzi_hadamard_static p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_static_bf16_##k(const __grid_constant__ hzi_hadamard_static p) \
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
	hadamard_static_f32_##k(const __grid_constant__ hzi_hadamard_static p) \
	{ \
		static_f32<warps>(p); \
	}

STATIC_F32(10, 128, 5, 1)
STATIC_F32(11, 64, 12, 2)
STATIC_F32(12, 128, 6, 4)
STATIC_F32(13, 256, 4, 8)
STATIC_F32(14, 512, 2, 16)
