/*
 * quantize.cu - 16-bit rows back to back to codes, at the rate of memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * 16 bits in and 8 out leave 23 instructions for an element on Hopper. A value and its quotient are
 * never made: the code of a sum v is rne(v r) with r = factor / s. The rounding errors of that,
 * three of 2^-24, are no more than those of t and t / s.
 */
#include "gpu/hadamard/quantize.h"
#include "gpu/hadamard/contiguous_16bit.cuh"
#include "gpu/quantize/quantize.cuh"

/* ---- Scales ---------------------------------------------------------------------------------- */

/* A group's scale, its code, and what its sums are multiplied with; rare: by rare_values() */
struct coder {
	float s, r;
	uint32_t code;
	bool rare;
};

/* For the largest magnitude of a group's sums */
HZ_DEVICE coder coder_of(float sum, float factor, const hzi_hadamard_quantize &p)
{
	const float amax = __fmul_rn(sum, fabsf(factor));
	/* amax / qmax and 1 / s by a correction of what is almost the quotient */
	const float near = __fmul_rn(amax, p.inverse);
	float s = __fmaf_rn(__fmaf_rn(-near, p.most, amax), p.inverse, near), r;
	coder c;

	if (p.scale_dtype == HZ_E8M0)
		s = __uint_as_float((__float_as_uint(s) + 0x7fffff) & 0x7f800000);
	asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(s));
	r = __fmul_rn(__fmaf_rn(__fmaf_rn(-s, r, 1.0f), r, r), factor);
	c = {s, r, __float_as_uint(s) >> 23, false};
	/*
	 * Zeros, NaN, Inf, and where a product might leave the range of f32: s beyond
	 * 2^-51 .. 2^51, by its bits. And rounded numbers, whose quotients are often halves, to be
	 * decided as they are.
	 */
	if (__float_as_uint(s) - 0x26000000 > 0x33000000 || p.round_to) {
		c.s = group_scale(amax, p.q_dtype, p.scale_dtype, &c.code);
		c.r = 1;
		c.rare = true;
	}
	return c;
}

/* N sums of a group of scale s become t / s. */
template <int N>
HZ_DEVICE void rare_values(float *v, float s, float factor, int q_dtype)
{
	const quantizer z = quantizer_of(s, q_dtype);

#pragma unroll
	for (int i = 0; i < N; i++) {
		float t = __fmul_rn(v[i], factor);

		if (z.shift != 1)
			t = shifted(t, z, q_dtype);
		v[i] = sign_of(quotient(t, z), t);
	}
}

/* The largest of a warp's magnitudes: as bits they have the same order, and NaN is above all. */
HZ_DEVICE float warp_largest(float m)
{
	return __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(m)));
}

HZ_DEVICE float lanes_largest(float m, int other)
{
	return max_nan(m, __shfl_xor_sync(0xffffffff, m, other));
}

/*
 * Of N values the largest among N lanes whose low bits differ: with every step a lane gives away
 * half and takes over the other half, until lane l has that of number l mod N.
 */
template <int N>
HZ_DEVICE float share_largest(float *m, int lane)
{
#pragma unroll
	for (int step = 1; step < N; step *= 2) {
#pragma unroll
		for (int j = 0; j < N / step / 2; j++) {
			const bool high = lane & step;
			const float low = m[2 * j], up = m[2 * j + 1];
			const float other = __shfl_xor_sync(0xffffffff, high ? low : up, step);

			m[j] = max_nan(high ? up : low, other);
		}
	}
	return m[0];
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* C = 2 or 4 codes of a group, packed from the low end. */
template <int DTYPE, int C>
HZ_DEVICE uint32_t codes_of(const float *v, float r)
{
	uint32_t code[4] = {};

#pragma unroll
	for (int i = 0; i < C; i++)
		code[i] = __float_as_uint(DTYPE == HZ_S8 || DTYPE == HZ_S4X2
						  ? __fmaf_rn(v[i], r, 12582912.0f)
						  : __fmul_rn(v[i], r));
	if constexpr (DTYPE == HZ_S4X2) {
#pragma unroll
		for (int i = 0; i < C; i++)
			code[i] = (code[i] & 15) << 4 * i;
		return code[0] | code[1] | code[2] | code[3];
	} else if constexpr (DTYPE == HZ_S8) {
		const uint32_t low = __byte_perm(code[0], code[1], 0x0040);

		return C > 2 ? __byte_perm(low, __byte_perm(code[2], code[3], 0x0040), 0x5410)
			     : low;
	} else {
		auto pair = [&](int i) {
			const float low = __uint_as_float(code[i]);
			const float high = __uint_as_float(code[i + 1]);

			return DTYPE == HZ_E4M3 ? to_e4m3x2(low, high) : to_e5m2x2(low, high);
		};

		return C > 2 ? pair(0) | pair(2) << 16 : pair(0);
	}
}

/*
 * Signs behind, and rounding to 16 bits: piece i of C values begins at element(i). Returns the
 * factor that is left.
 */
template <int C, typename F>
HZ_DEVICE float finish_sums(float *v, const hzi_hadamard_quantize &p, F element)
{
	if (!p.finish)
		return p.f.factor;
	if (p.f.post)
		sign_pieces<C>(v, p.f, element);
	if (!p.round_to)
		return p.f.factor;
#pragma unroll
	for (int i = 0; i < 32; i += 2) {
		const float low = __fmul_rn(v[i], p.f.factor);
		const float high = __fmul_rn(v[i + 1], p.f.factor);
		const uint32_t pair = p.round_to == HZ_F16 ? to_f16x2(low, high)
							   : to_bf16x2(low, high);

		v[i] = p.round_to == HZ_F16 ? f16_low(pair) : bf16_low(pair);
		v[i + 1] = p.round_to == HZ_F16 ? f16_high(pair) : bf16_high(pair);
	}
	return 1;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* To 1024: a warp has whole rows, groups of 32 to 1024. */
template <int DTYPE, int K>
HZ_DEVICE void codes_short(const hzi_hadamard_quantize &p)
{
	const uint32_t lane = threadIdx.x % 32, q = lane & 3;
	const int group = p.group_log2;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	/* Of this warp's elements: the thread's first one, and how many there are */
	const int e1 = (lane >> 2) * 128 + q * 8;
	const int left = p.f.total - e0 < 1024 ? (int)(p.f.total - e0) : 1024;
	const uint16_t *x = (const uint16_t *)p.f.x + e0 + e1;
	float v[32], m[4], r[4];
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

	const float factor = finish_sums<8>(v, p, [&](int c) { return e1 + 32 * c; });

	/* Which of a thread's groups is its own; lanes of the same one differ in bits of same. */
	int own = 0, same = 0;

#pragma unroll
	for (int c = 0; c < 4; c++)
		m[c] = largest_of<8>(&v[8 * c]);
	if (group == 5) {
		own = q;
		m[0] = share_largest<4>(m, lane);
	} else if (group == 6) {
		m[0] = max_nan(m[0], m[1]);
		m[1] = max_nan(m[2], m[3]);
		own = 2 * (q & 1);
		same = 2;
		m[0] = lanes_largest(share_largest<2>(m, lane), 2);
	} else {
		m[0] = max_nan(max_nan(m[0], m[1]), max_nan(m[2], m[3]));
		same = (4 << (group - 7)) - 1;
#pragma unroll
		for (int b = 0; b < 5; b++) {
			if (b < group - 5)
				m[0] = lanes_largest(m[0], 1 << b);
		}
	}

	const coder z = coder_of(m[0], factor, p);
	/* The lane that has chunk c's */
	auto with = [&](int c) {
		return (lane & ~3) | (group == 5 ? c : group == 6 ? c >> 1 : q);
	};

#pragma unroll
	for (int c = 0; c < 4; c++)
		r[c] = z.r;
	if (group < 7) {
#pragma unroll
		for (int c = 0; c < 4; c++)
			r[c] = __shfl_sync(0xffffffff, z.r, with(c));
	}
	if (__any_sync(0xffffffff, z.rare)) {
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const float s = __shfl_sync(0xffffffff, z.s, with(c));

			if (__shfl_sync(0xffffffff, z.rare, with(c)))
				rare_values<8>(&v[8 * c], s, factor, p.q_dtype);
		}
	}
	const int first = (e1 & ~127) + 32 * own;

	if ((lane & same) == 0 && first < left)
		store_scale(p.scale_dtype, p.scale, (e0 + first) >> group, z.s, z.code);

	with_code_dtype(p.q_dtype, [&](auto dtype) {
		constexpr int CODE = decltype(dtype)::value;
		uint8_t *y = (uint8_t *)p.f.y + code_bytes<CODE>(e0 + e1);

#pragma unroll
		for (int c = 0; c < 4; c++) {
			const uint32_t low = codes_of<CODE, 4>(&v[8 * c], r[c]);
			const uint32_t high = codes_of<CODE, 4>(&v[8 * c + 4], r[c]);

			if (e1 + 32 * c >= left)
				continue;
			if constexpr (CODE == HZ_S4X2)
				*(uint32_t *)(y + 16 * c) = low | high << 16;
			else
				*(uint2 *)(y + 32 * c) = make_uint2(low, high);
		}
	});
}

/* From 2048 on: a row is a block, its first element e0. */
template <int DTYPE, int WARPS, int C, int LANES>
HZ_DEVICE void row_sums(float *v, const hzi_hadamard_quantize &p, int64_t e0, char *memory)
{
	const uint16_t *x = (const uint16_t *)p.f.x + e0 + loads_at(threadIdx.x);
	uint4 w[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = *(const uint4 *)(x + 64 * i);
	if (blockIdx.x + p.ahead < gridDim.x)
		fetch_block_ahead<2048 * WARPS>((const uint16_t *)p.f.x + e0 +
						(int64_t)p.ahead * WARPS * 1024);
	if (p.signs)
		sign_chunks<64>(w, p.f, loads_at(threadIdx.x));
	sums_long<DTYPE, WARPS, C, LANES>(v, w, p.f, memory, [](float *) {});
}

/* The codes of all pieces, of piece i with r(i) */
template <int WARPS, int C, typename R>
HZ_DEVICE void codes_long(const float *v, const hzi_hadamard_quantize &p, int64_t e0, R r)
{
	constexpr int SPAN = 32 * WARPS * C;
	const uint32_t t = threadIdx.x;

	with_code_dtype(p.q_dtype, [&](auto dtype) {
		constexpr int CODE = decltype(dtype)::value;

		uint8_t *y = (uint8_t *)p.f.y + code_bytes<CODE>(e0 + t * C);

#pragma unroll
		for (int i = 0; i < 32 / C; i++)
			store_codes<C, CODE>(y + code_bytes<CODE>(i * SPAN),
					     codes_of<CODE, C>(&v[C * i], r(i)));
	});
}

/* One scale a row */
template <int DTYPE, int WARPS, int C, int LANES>
HZ_DEVICE void codes_row(const hzi_hadamard_quantize &p)
{
	constexpr int SPAN = 32 * WARPS * C;
	const uint32_t t = threadIdx.x;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared;
	float *words = (float *)(memory + WARPS * HZI_WARP_BYTES);
	float v[32], m;

	row_sums<DTYPE, WARPS, C, LANES>(v, p, e0, memory);
	const float factor = finish_sums<C>(v, p, [&](int i) { return i * SPAN + t * C; });

	m = warp_largest(largest_of<32>(v));
	if (t % 32 == 0)
		words[t / 32] = m;
	__syncthreads();
	const coder z = coder_of(warp_largest(words[t % WARPS]), factor, p);

	if (t == 0)
		store_scale(p.scale_dtype, p.scale, blockIdx.x, z.s, z.code);
	if (z.rare)
		rare_values<32>(v, z.s, factor, p.q_dtype);
	codes_long<WARPS, C>(v, p, e0, [&](int) { return z.r; });
}

/*
 * Groups of 32, 64 or 128, which are of 8, 16 or 32 lanes: of 8 lanes each has the group of one of
 * the 8 pieces.
 */
template <int DTYPE, int WARPS, int LANES>
HZ_DEVICE void codes_groups(const hzi_hadamard_quantize &p)
{
	constexpr int SPAN = 128 * WARPS;
	const uint32_t t = threadIdx.x, lane = t % 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	float v[32], m[8], r[8];

	row_sums<DTYPE, WARPS, 4, LANES>(v, p, e0, (char *)shared);
	const float factor = finish_sums<4>(v, p, [&](int i) { return i * SPAN + t * 4; });

#pragma unroll
	for (int i = 0; i < 8; i++)
		m[i] = largest_of<4>(&v[4 * i]);
	m[0] = share_largest<8>(m, lane);
	if (p.group_log2 > 5)
		m[0] = lanes_largest(m[0], 8);
	if (p.group_log2 > 6)
		m[0] = lanes_largest(m[0], 16);
	const coder z = coder_of(m[0], factor, p);

	if ((lane & ((1 << (p.group_log2 - 2)) - 1)) < 8)
		store_scale(p.scale_dtype, p.scale,
			    (e0 + (lane & 7) * SPAN + t * 4) >> p.group_log2, z.s, z.code);
#pragma unroll
	for (int i = 0; i < 8; i++)
		r[i] = __shfl_sync(0xffffffff, z.r, (lane & ~7) | i);
	if (__any_sync(0xffffffff, z.rare)) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const float s = __shfl_sync(0xffffffff, z.s, (lane & ~7) | i);

			if (__shfl_sync(0xffffffff, z.rare, (lane & ~7) | i))
				rare_values<4>(&v[4 * i], s, factor, p.q_dtype);
		}
	}
	codes_long<WARPS, 4>(v, p, e0, [&](int i) { return r[i]; });
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define CODES(name, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_quantize_##name(const __grid_constant__ hzi_hadamard_quantize p) \
	{ \
		function<__VA_ARGS__>(p); \
	}

CODES(f16_5, 128, 8, codes_short, HZ_F16, 5)
CODES(f16_6, 128, 8, codes_short, HZ_F16, 6)
CODES(f16_7, 128, 8, codes_short, HZ_F16, 7)
CODES(f16_8, 128, 8, codes_short, HZ_F16, 8)
CODES(f16_9, 128, 8, codes_short, HZ_F16, 9)
CODES(f16_10, 128, 8, codes_short, HZ_F16, 10)
CODES(f16_11, 64, 16, codes_row, HZ_F16, 2, 4, 0)
CODES(f16_12, 128, 9, codes_row, HZ_F16, 4, 2, 0)
CODES(f16_13, 256, 4, codes_row, HZ_F16, 8, 2, 1)
CODES(f16_14, 512, 2, codes_row, HZ_F16, 16, 2, 2)
CODES(f16_11_groups, 64, 16, codes_groups, HZ_F16, 2, 0)
CODES(f16_12_groups, 128, 8, codes_groups, HZ_F16, 4, 1)
CODES(f16_13_groups, 256, 4, codes_groups, HZ_F16, 8, 2)
CODES(bf16_5, 128, 8, codes_short, HZ_BF16, 5)
CODES(bf16_6, 128, 8, codes_short, HZ_BF16, 6)
CODES(bf16_7, 128, 8, codes_short, HZ_BF16, 7)
CODES(bf16_8, 128, 8, codes_short, HZ_BF16, 8)
CODES(bf16_9, 128, 8, codes_short, HZ_BF16, 9)
CODES(bf16_10, 128, 8, codes_short, HZ_BF16, 10)
CODES(bf16_11, 64, 16, codes_row, HZ_BF16, 2, 4, 0)
CODES(bf16_12, 128, 9, codes_row, HZ_BF16, 4, 2, 0)
CODES(bf16_13, 256, 4, codes_row, HZ_BF16, 8, 2, 1)
CODES(bf16_14, 512, 2, codes_row, HZ_BF16, 16, 2, 2)
CODES(bf16_11_groups, 64, 16, codes_groups, HZ_BF16, 2, 0)
CODES(bf16_12_groups, 128, 8, codes_groups, HZ_BF16, 4, 1)
CODES(bf16_13_groups, 256, 4, codes_groups, HZ_BF16, 8, 2)
