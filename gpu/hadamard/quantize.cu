/*
 * quantize.cu - contiguous rows to codes and codes to contiguous rows, at memory bandwidth
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * One kernel is for rows of up to 2^10 elements and one for longer rows. Their template parameter
 * is a policy: dynamic_scale, microscaling, static_scale or dequantization. A policy loads 16-bit
 * operands of the transform, may multiply the results of its first stages by scales, and stores the
 * final results.
 *
 * 16 bits in and 8 bits out leave time for 23 instructions per element on Hopper. Quantizing, a
 * value t = v factor and its quotient t / s are therefore not computed: the code of v, a result of
 * the transform without its factor, is rne(v r) with r = factor / s. That has three rounding errors
 * of 2^-24, no more than t and t / s have. Rows of f32 are quantized bit for bit as hurwitz.h
 * defines. All codes are exact in f16, so the first stages of dequantization run on tensor cores
 * too.
 *
 * A warp has 1024 elements, a thread 32 of them, as in contiguous.cuh. But the stages after H_32
 * are between values of one thread wherever possible, at the price of narrower memory accesses:
 * instruction issue is the limit.
 */
#include "gpu/hadamard/quantize.h"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/quantize_epilogue.cuh"
#include "gpu/quantize/microscaling.cuh"
#include "gpu/quantize/quantize.cuh"

/* ---- Prefetches ------------------------------------------------------------------------------ */

/*
 * Prefetches a warp's 2^LOG2 bytes into the L2 cache, for a block that starts when this one ends:
 * blocks would otherwise wait for memory so long that too few loads are in flight.
 */
template <int LOG2>
HZ_DEVICE void prefetch_warp(const void *src)
{
	prefetch_l2((const char *)src + (threadIdx.x % 32 << (LOG2 - 5)));
}

/* Prefetches a block's BYTES, a multiple of 16; on Hopper by one bulk copy instruction. */
template <int BYTES>
HZ_DEVICE void prefetch_block(const void *src)
{
#if __CUDA_ARCH__ >= 900
	if (threadIdx.x == 0)
		bulk_prefetch_l2(src, BYTES);
#else
	prefetch_warp<11>((const char *)src + threadIdx.x / 32 * 2048);
#endif
}

/* ---- Transforms ------------------------------------------------------------------------------ */

/* Applies packed signs to the operands: 8 elements in each of 4 chunks, STEP apart from e on. */
template <int STEP>
HZ_DEVICE void flip_operands(uint4 *w, const hzi_hadamard_contiguous &p, uint32_t e)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t at = (e + STEP * i) & (uint32_t)p.mask;

		flip_octet(w[i], ((const uint8_t *)p.pre)[at >> 3]);
	}
}

/*
 * Strides 1 to 16 of rows to 2^10. The data are the left operand, the right one is H_16 of all bits
 * of an index but bit 1, which tells row g + 8 from row g. The 16 bytes of a load are an operand as
 * loaded, and columns 2 q and 2 q + 1 of product t are results 8 q + 4 t and the next: a thread's
 * results replace its operands, 8 successive ones in each of 4 chunks. v[8 c] ..: chunk c | g << 2.
 * The sign of entry (8 q + 4 f + e, 8 (g >> 1) + 4 t + (g & 1)) is
 * g0 e + t f + g1 q0 + g2 q1 mod 2.
 */
template <int DTYPE>
HZ_DEVICE void first_stages_in_place(float *v, const uint4 *w, uint32_t lane)
{
	const uint32_t odd = ((lane >> 3 & lane) ^ (lane >> 4 & lane >> 1)) & 1;
	const uint32_t h = ((DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00) ^ (odd ? 0x80008000 : 0)) ^
			   (lane << 29 & 0x80000000);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const uint4 a = w[i / 2];
		float c[4] = {};

		mma_m16n8k16<DTYPE>(c, a.x, a.y, a.z, a.w, h, h ^ (i & 1 ? 0x80008000 : 0));
#pragma unroll
		for (int j = 0; j < 4; j++)
			v[4 * i + j] = c[j];
	}
	stage<32, 1>(v);
}

/* A thread's first operand in rows from 2^11: it loads 8 elements in each of 4 chunks, 64 apart. */
HZ_DEVICE uint32_t operand_index(uint32_t t)
{
	return t / 32 * 1024 + (t >> 2 & 1) * 32 + (t % 32 >> 3) * 256 + t % 4 * 8;
}

/* A thread's part of a short row's tile of 1024 elements, which is a warp's */
struct short_tile {
	int64_t e0;			/* its first element */
	int e1;				/* the thread's first element in it */
	int left;			/* how many elements there are */
};

/*
 * Rows to 2^10: a warp has whole rows, and chunk c of a thread's 4 chunks of 8 elements begins at
 * element e1 + 32 c of the tile.
 */
template <typename POLICY, int K>
HZ_DEVICE void short_rows(const hzi_hadamard_quantize &p)
{
	const uint32_t lane = threadIdx.x % 32;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	const short_tile tile = {e0, (int)((lane >> 2) * 128 + (lane & 3) * 8),
				 p.f.total - e0 < 1024 ? (int)(p.f.total - e0) : 1024};
	POLICY policy;
	float v[32];
	uint4 w[4];

	if (tile.left <= 0)
		return;
	policy.template load_short<K>(w, p, tile);
	if (p.has_pre)
		flip_operands<32>(w, p.f, tile.e1);
	first_stages_in_place<POLICY::DTYPE>(v, w, lane);
	policy.template scale<8>(v);
	/* Strides from 32 on */
	stages<32, 3, 5>(v, K - 5);
#pragma unroll
	for (int k = 7; k < K; k++)
		lane_stage(v, lane, 4 << (k - 7));
	policy.store_short(v, p, tile);
}

/*
 * Rows of 1024 WARPS elements: a block has one, and warps exchange values through shared memory.
 * The first 3 + LANES stages beyond H_32 come before the exchange. The others are between the
 * pieces of C = 2 or 4 values that a thread reads after it; piece i begins at element (i * 32 WARPS
 * + t) C.
 */
template <typename POLICY, int WARPS, int C, int LANES>
HZ_DEVICE void long_rows(const hzi_hadamard_quantize &p)
{
	constexpr int SPAN = 32 * WARPS * C, DTYPE = POLICY::DTYPE;
	const uint32_t t = threadIdx.x, lane = t % 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared;
	POLICY policy;
	float v[32];
	uint4 w[4];

	policy.template load_long<WARPS>(w, p, e0);
	if (p.has_pre)
		flip_operands<64>(w, p.f, operand_index(t));
	first_stages<DTYPE, false>(v, w, p.f, 0, lane);
	policy.template scale<4>(v);
	stages<32, 2, 5>(v, 3);
	if (LANES > 0)
		lane_stage(v, lane, 1);
	if (LANES > 1)
		lane_stage(v, lane, 2);
	store_tile<DTYPE>(v, memory + t / 32 * HZI_WARP_BYTES, lane);
	__syncthreads();

	/* swizzled(i SPAN + t C), as a base plus offsets that are known at compile time */
	const uint32_t e = t * C, piece = (e >> 2 & 7) ^ swizzle<DTYPE>(e / 32);
	const char *row = memory + e / 32 * 128 + (e & 3) * 4;

#pragma unroll
	for (int i = 0; i < 32 / C; i++)
		load_piece<C>(&v[C * i],
			      row + ((piece ^ swizzle<DTYPE>(i * SPAN / 32)) << 4) + i * SPAN * 4);
	stages<32, C / 2, 5>(v, 5);
	policy.template store_long<WARPS, C>(v, p, e0);
}

/* What a policy need not define: scaling after the first stages, packed signs of the results */
struct policy {
	template <int N>
	HZ_MEMBER void scale(float *)
	{
	}
	template <int C, typename F>
	HZ_MEMBER void flip_results(float *v, const hzi_hadamard_quantize &p, F element)
	{
		if (p.f.post)
			flip_values<C, 32>(v, p.f.post, [&](int i) {
				return element(i) & (uint32_t)p.f.mask;
			});
	}
};

/* Operands that are 16-bit rows; rows of less than 2^8 elements gain nothing by prefetching. */
template <int X_DTYPE>
struct quantization : policy {
	static constexpr int DTYPE = X_DTYPE;

	template <int K>
	HZ_MEMBER void load_short(uint4 *w, const hzi_hadamard_quantize &p, const short_tile &tile)
	{
		const uint16_t *x = (const uint16_t *)p.f.x + tile.e0 + tile.e1;

#pragma unroll
		for (int c = 0; c < 4; c++)
			w[c] = tile.e1 + 32 * c < tile.left ? *(const uint4 *)(x + 32 * c)
							    : make_uint4(0, 0, 0, 0);
		if (K > 7 && blockIdx.x + p.prefetch_distance + 1 < gridDim.x)
			prefetch_warp<11>((const uint16_t *)p.f.x + tile.e0 +
					  p.prefetch_distance * 32 * blockDim.x);
	}
	template <int WARPS>
	HZ_MEMBER void load_long(uint4 *w, const hzi_hadamard_quantize &p, int64_t e0)
	{
		const uint16_t *x = (const uint16_t *)p.f.x + e0 + operand_index(threadIdx.x);

#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = *(const uint4 *)(x + 64 * i);
		if (blockIdx.x + p.prefetch_distance < gridDim.x)
			prefetch_block<2048 * WARPS>((const uint16_t *)p.f.x + e0 +
						     (int64_t)p.prefetch_distance * WARPS * 1024);
	}
};

/* ---- Dynamic scales -------------------------------------------------------------------------- */

/* A group's scale, its code as e8m0, and the factor of its values; rare: see rare_values() */
struct group_encoder {
	float s, r;
	uint32_t code;
	bool rare;
};

/* For the largest magnitude of a group's values */
HZ_DEVICE group_encoder encoder_of(float most, float factor, const hzi_hadamard_quantize &p)
{
	const float amax = __fmul_rn(most, fabsf(factor));
	/* amax / q_max and 1 / s: almost the quotient, then one Newton step */
	const float estimate = __fmul_rn(amax, p.inverse_q_max);
	float s = __fmaf_rn(__fmaf_rn(-estimate, p.q_max, amax), p.inverse_q_max, estimate), r;
	group_encoder c;

	if (p.scale_dtype == HZ_E8M0)
		s = __uint_as_float((__float_as_uint(s) + 0x7fffff) & 0x7f800000);
	asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(s));
	r = __fmul_rn(__fmaf_rn(__fmaf_rn(-s, r, 1.0f), r, r), factor);
	c = {s, r, __float_as_uint(s) >> 23, false};
	/*
	 * Amax 0, NaN or Inf, and where a product might leave the range of f32: s outside of 2^-51
	 * .. 2^51, by its bits. Rounded values too: their quotients are often halfway between
	 * integers, and must be exact then.
	 */
	if (__float_as_uint(s) - 0x26000000 > 0x33000000 || p.round_to) {
		c.s = group_scale(amax, p.q_dtype, p.scale_dtype, &c.code);
		c.r = 1;
		c.rare = true;
	}
	return c;
}

/* N values of a group of scale s become their quotients t / s. */
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

/* The largest of a warp's magnitudes: their bits have the same order, and NaN is above all. */
HZ_DEVICE float warp_max(float m)
{
	return __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(m)));
}

HZ_DEVICE float lane_max(float m, int other)
{
	return max_nan(m, __shfl_xor_sync(0xffffffff, m, other));
}

/*
 * Maxima of N values over N lanes that differ in their low bits; lane l gets that of value l mod N.
 * In each step a lane sends half of its values and receives those that it keeps.
 */
template <int N>
HZ_DEVICE float transpose_max(float *m, int lane)
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

/* C = 2 or 4 codes of a group, packed from the low end */
template <int DTYPE, int C>
HZ_DEVICE uint32_t pack_products(const float *v, float r)
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
 * The factors r of N pieces of C values; owner(i) is the lane that has the scale of piece i,
 * single: this lane has that of all. Values in rare groups become their quotients.
 */
template <int N, int C, typename F>
HZ_DEVICE void share_encoders(float *r, float *v, const group_encoder &z, float factor, int q_dtype,
			      bool single, F owner)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		r[i] = z.r;
	if (!single) {
#pragma unroll
		for (int i = 0; i < N; i++)
			r[i] = __shfl_sync(0xffffffff, z.r, owner(i));
	}
	if (__any_sync(0xffffffff, z.rare)) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float s = __shfl_sync(0xffffffff, z.s, owner(i));

			if (__shfl_sync(0xffffffff, z.rare, owner(i)))
				rare_values<C>(&v[C * i], s, factor, q_dtype);
		}
	}
}

/* Rows from 2^11: one scale for a row, or with GROUPS one for 32, 64 or 128 elements */
template <int X_DTYPE, bool GROUPS = false>
struct dynamic_scale : quantization<X_DTYPE> {
	/*
	 * Packed signs, and rounding to 16 bits, which multiplies by the factor. Returns the factor
	 * that results have still to be multiplied by.
	 */
	template <int C, typename F>
	HZ_MEMBER float finish(float *v, const hzi_hadamard_quantize &p, F element)
	{
		if (!p.post_or_round)
			return p.f.factor;
		policy::flip_results<C>(v, p, element);
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
	/* Groups of 2^5 to 2^10 */
	HZ_MEMBER void store_short(float *v, const hzi_hadamard_quantize &p, const short_tile &tile)
	{
		const uint32_t lane = threadIdx.x % 32, q = lane & 3;
		const int group = p.group_log2, e1 = tile.e1, left = tile.left;
		const float factor = finish<8>(v, p, [&](int c) { return e1 + 32 * c; });
		/* Lanes that differ in bits of `same` have the scale of one chunk: `own`. */
		int own = 0, same = 0;
		float m[4], r[4];

#pragma unroll
		for (int c = 0; c < 4; c++)
			m[c] = max_abs<8>(&v[8 * c]);
		if (group == 5) {
			own = q;
			m[0] = transpose_max<4>(m, lane);
		} else if (group == 6) {
			m[0] = max_nan(m[0], m[1]);
			m[1] = max_nan(m[2], m[3]);
			own = 2 * (q & 1);
			same = 2;
			m[0] = lane_max(transpose_max<2>(m, lane), 2);
		} else {
			m[0] = max_nan(max_nan(m[0], m[1]), max_nan(m[2], m[3]));
			same = (4 << (group - 7)) - 1;
#pragma unroll
			for (int b = 0; b < 5; b++) {
				if (b < group - 5)
					m[0] = lane_max(m[0], 1 << b);
			}
		}

		const group_encoder z = encoder_of(m[0], factor, p);

		share_encoders<4, 8>(r, v, z, factor, p.q_dtype, group >= 7, [&](int c) {
			return (lane & ~3) | (group == 5 ? c : group == 6 ? c >> 1 : q);
		});
		const int first = (e1 & ~127) + 32 * own;

		if ((lane & same) == 0 && first < left)
			store_scale(p.scale_dtype, p.scales, (tile.e0 + first) >> group, z.s,
				    z.code);
		with_code_dtype(p.q_dtype, [&](auto dtype) {
			constexpr int CODE = decltype(dtype)::value;
			uint8_t *y = (uint8_t *)p.f.y + code_bytes<CODE>(tile.e0 + e1);

#pragma unroll
			for (int c = 0; c < 4; c++) {
				const uint32_t low = pack_products<CODE, 4>(&v[8 * c], r[c]);
				const uint32_t high = pack_products<CODE, 4>(&v[8 * c + 4], r[c]);

				if (e1 + 32 * c >= left)
					continue;
				if constexpr (CODE == HZ_S4X2)
					*(uint32_t *)(y + 16 * c) = low | high << 16;
				else
					*(uint2 *)(y + 32 * c) = make_uint2(low, high);
			}
		});
	}
	/* GROUPS: of every 8 lanes, lane i computes the scale of the group of piece i. */
	template <int WARPS, int C>
	HZ_MEMBER void store_long(float *v, const hzi_hadamard_quantize &p, int64_t e0)
	{
		constexpr int SPAN = 32 * WARPS * C, PIECES = 32 / C;
		const uint32_t t = threadIdx.x, lane = t % 32;
		const float factor = finish<C>(v, p, [&](int i) { return i * SPAN + t * C; });
		float r[PIECES];

		if constexpr (GROUPS) {
			float m[8];

#pragma unroll
			for (int i = 0; i < 8; i++)
				m[i] = max_abs<4>(&v[4 * i]);
			m[0] = transpose_max<8>(m, lane);
			if (p.group_log2 > 5)
				m[0] = lane_max(m[0], 8);
			if (p.group_log2 > 6)
				m[0] = lane_max(m[0], 16);
			const group_encoder z = encoder_of(m[0], factor, p);

			if ((lane & ((1 << (p.group_log2 - 2)) - 1)) < 8)
				store_scale(p.scale_dtype, p.scales,
					    (e0 + (lane & 7) * SPAN + t * 4) >> p.group_log2, z.s,
					    z.code);
			share_encoders<8, 4>(r, v, z, factor, p.q_dtype, false,
					     [&](int i) { return (lane & ~7) | i; });
		} else {
			float *warp_maxima = (float *)((char *)shared + WARPS * HZI_WARP_BYTES);
			const float m = warp_max(max_abs<32>(v));

			if (lane == 0)
				warp_maxima[t / 32] = m;
			__syncthreads();
			const group_encoder z =
				encoder_of(warp_max(warp_maxima[t % WARPS]), factor, p);

			if (t == 0)
				store_scale(p.scale_dtype, p.scales, blockIdx.x, z.s, z.code);
			if (z.rare)
				rare_values<32>(v, z.s, factor, p.q_dtype);
#pragma unroll
			for (int i = 0; i < PIECES; i++)
				r[i] = z.r;
		}
		with_code_dtype(p.q_dtype, [&](auto dtype) {
			constexpr int CODE = decltype(dtype)::value;
			uint8_t *y = (uint8_t *)p.f.y + code_bytes<CODE>(e0 + t * C);

#pragma unroll
			for (int i = 0; i < PIECES; i++)
				store_codes<C, CODE>(y + code_bytes<CODE>(i * SPAN),
						     pack_products<CODE, C>(&v[C * i], r[i]));
		});
	}
};

/* ---- Scales of MXFP4, MXFP8 and NVFP4 -------------------------------------------------------- */

/* Rows from 2^11, groups of 16 or 32; scales are those of lib/quantize/format.h. */
template <int X_DTYPE>
struct microscaling : quantization<X_DTYPE> {
	template <int WARPS, int C>
	HZ_MEMBER void store_long(float *v, const hzi_hadamard_quantize &p, int64_t e0)
	{
		constexpr int SPAN = 32 * WARPS * C, PIECES = 32 / C;
		const uint32_t t = threadIdx.x, lane = t % 32;
		float m[PIECES], r[PIECES];

#pragma unroll
		for (int i = 0; i < 32; i++)
			v[i] = __fmul_rn(v[i], p.f.factor);
		if (p.round_to) {
#pragma unroll
			for (int i = 0; i < 32; i++)
				v[i] = round_to(p.round_to, v[i]);
		}
#pragma unroll
		for (int i = 0; i < PIECES; i++)
			m[i] = max_abs<C>(&v[C * i]);
		if (p.measure) {
			const uint32_t most = __float_as_uint(warp_max(max_abs<PIECES>(m)));

			if (lane == 0 && most > *(volatile uint32_t *)p.most)
				atomicMax(p.most, most);
			return;
		}

		const hzi_tensor_factor tensor = hzi_format_tensor(
			p.tensor_scale, p.new_tensor_scale != NULL, p.rule,
			p.new_tensor_scale ? *p.most : 0);
		uint8_t *const scales = (uint8_t *)p.scales;

		if (p.new_tensor_scale && e0 == 0 && t == 0)
			*p.new_tensor_scale = tensor.p;
		/* Of a group's lanes, lane i computes the scale of piece i, and of piece i + 4. */
		if (p.group_log2 == 5) {
			const hzi_scale s = scale_of(
				__float_as_uint(transpose_max<8>(m, lane)), p, tensor);

			scales[(e0 + (lane & 7) * SPAN + t * C) >> 5] = (uint8_t)s.bits;
#pragma unroll
			for (int i = 0; i < PIECES; i++)
				r[i] = __shfl_sync(~0u, s.factor, i, 8);
		} else {
			float own[2];

#pragma unroll
			for (int j = 0; j < 2; j++) {
				const hzi_scale s = scale_of(
					__float_as_uint(transpose_max<4>(m + 4 * j, lane)), p,
					tensor);

				scales[(e0 + ((lane & 3) + 4 * j) * SPAN + t * C) >> 4] =
					(uint8_t)s.bits;
				own[j] = s.factor;
			}
#pragma unroll
			for (int i = 0; i < PIECES; i++)
				r[i] = __shfl_sync(~0u, own[i / 4], i % 4, 4);
		}
		with_one_of<HZ_E2M1X2, HZ_E4M3, HZ_E5M2>(p.q_dtype, [&](auto dtype) {
			constexpr int CODE = decltype(dtype)::value;
			uint8_t *y = (uint8_t *)p.f.y + code_bytes<CODE>(e0 + t * C);

#pragma unroll
			for (int i = 0; i < PIECES; i++) {
				float *const q = &v[C * i];

#pragma unroll
				for (int c = 0; c < C; c++)
					q[c] = __fmul_rn(q[c], r[i]);
				if constexpr (CODE == HZ_E2M1X2)
					*(uint16_t *)(y + i * SPAN / 2) =
						(uint16_t)encode_e2m1<C>(q);
				else
					*(uint32_t *)(y + i * SPAN) = encode_fp8x4<CODE>(q);
			}
		});
	}
};

/* ---- Static scales --------------------------------------------------------------------------- */

/*
 * The codes of 32 values. Piece i of C values has its own group, and element(i) is in that group.
 */
template <int C, bool EXACT = false, typename F>
HZ_DEVICE void encode_pieces(uint32_t *w, float *v, const hzi_hadamard_quantize &p, float factor,
			     F element)
{
#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		const int64_t e = element(i);
		const encoder c = encoder_of(p, param_of(p, e), factor);
		uint32_t pair;

		if constexpr (C >= 4) {
			encode_static<C, EXACT>(&w[i * C / 4], &v[C * i], c, p, e, factor);
		} else {
			encode_static<C, EXACT>(&pair, &v[C * i], c, p, e, factor);
			w[i / 2] = i % 2 ? w[i / 2] | pair << 16 : pair;
		}
	}
}

/* The encoder of a row from 2^11, in shared memory after the values of all warps */
template <int WARPS>
HZ_DEVICE encoder *row_encoder()
{
	return (encoder *)((char *)shared + WARPS * HZI_WARP_BYTES);
}

/* Whether a row of 1024 WARPS elements has one scale */
template <int WARPS>
HZ_DEVICE bool is_row_in_group(const hzi_hadamard_quantize &p)
{
	return p.group.divisor == 0 || p.group.divisor % (128 * WARPS) == 0;
}

/* One warp computes it; all threads read it after the barrier of the transform. */
template <int WARPS>
HZ_DEVICE void prepare_row_encoder(const hzi_hadamard_quantize &p, int64_t e0, float factor)
{
	if (threadIdx.x >= 32)
		return;
	const encoder c = encoder_of(p, param_of(p, e0), factor);

	if (threadIdx.x == 0)
		*row_encoder<WARPS>() = c;
}

template <int X_DTYPE>
struct static_scale : quantization<X_DTYPE> {
	quant_param first;		/* short rows: of the thread's first chunk */

	template <int K>
	HZ_MEMBER void load_short(uint4 *w, const hzi_hadamard_quantize &p, const short_tile &tile)
	{
		quantization<X_DTYPE>::template load_short<K>(w, p, tile);
		first = param_of(p, tile.e1 < tile.left ? tile.e0 + tile.e1 : tile.e0);
	}
	template <int WARPS>
	HZ_MEMBER void load_long(uint4 *w, const hzi_hadamard_quantize &p, int64_t e0)
	{
		quantization<X_DTYPE>::template load_long<WARPS>(w, p, e0);
		if (is_row_in_group<WARPS>(p))
			prepare_row_encoder<WARPS>(p, e0, p.f.factor);
	}
	HZ_MEMBER void store_short(float *v, const hzi_hadamard_quantize &p, const short_tile &tile)
	{
		const int e1 = tile.e1, left = tile.left;
		uint8_t *y = (uint8_t *)p.f.y + tile.e0 + e1;
		uint32_t w[8];

		policy::flip_results<8>(v, p, [&](int c) { return e1 + 32 * c; });
		/* A thread's chunks are in 128 successive elements: of one group, or of several. */
		if (p.group.divisor % 16 == 0)
			encode_static<32>(w, v, encoder_of(p, first, p.f.factor), p,
					  e1 < left ? tile.e0 + e1 : tile.e0, p.f.factor);
		else
			encode_pieces<8>(w, v, p, p.f.factor, [&](int c) {
				return tile.e0 + (e1 + 32 * c < left ? e1 + 32 * c : 0);
			});
#pragma unroll
		for (int c = 0; c < 4; c++) {
			if (e1 + 32 * c < left)
				*(uint2 *)(y + 32 * c) = make_uint2(w[2 * c], w[2 * c + 1]);
		}
	}
	template <int WARPS, int C>
	HZ_MEMBER void store_long(float *v, const hzi_hadamard_quantize &p, int64_t e0)
	{
		constexpr int SPAN = 32 * WARPS * C;
		const uint32_t t = threadIdx.x;
		uint8_t *y = (uint8_t *)p.f.y + e0 + t * C;
		uint32_t w[8];

		policy::flip_results<C>(v, p, [&](int i) { return i * SPAN + t * C; });
		if (is_row_in_group<WARPS>(p)) {
			const encoder c = *row_encoder<WARPS>();

			encode_static<32>(w, v, c, p, e0, p.f.factor);
		}
		else
			encode_pieces<C>(w, v, p, p.f.factor,
					 [&](int i) { return e0 + t * C + i * SPAN; });
#pragma unroll
		for (int i = 0; i < 32 / C; i++)
			store_codes<C, HZ_S8>(y + i * SPAN, w[i * C / 4] >> i * C % 4 * 8);
	}
};

/* f32 rows: up to 2^10 a warp has whole rows, 1024 elements in all; a longer row is a block's. */
template <int WARPS>
HZ_DEVICE void f32_rows(const hzi_hadamard_quantize &p)
{
	constexpr int V = 32 / WARPS, C = V < 4 ? V : 4, THREADS = 32 * WARPS;
	constexpr int STAGES =
		WARPS == 1 ? 0 : WARPS == 2 ? 1 : WARPS == 4 ? 2 : WARPS == 8 ? 3 : 4;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int t = WARPS > 1 ? threadIdx.x : lane;
	/* The first element of the threads that share rows */
	const int64_t e0 = WARPS > 1 ? (int64_t)blockIdx.x * (1024 * WARPS)
				     : ((int64_t)blockIdx.x * (blockDim.x / 32) + warp) * 1024;
	char *own = (char *)shared + warp * HZI_WARP_BYTES;
	const char *memory = WARPS > 1 ? (char *)shared : own;
	const bool row_in_group = WARPS > 1 && is_row_in_group<WARPS>(p);
	float v[32];

	if (e0 >= p.f.total)
		return;

	/* A factor that is no power of two is multiplied into the values first. */
	const bool power = !(__float_as_uint(p.f.factor) & 0x7fffff);
	const float factor = power ? p.f.factor : 1;
	encoder c;

	if (WARPS == 1)
		c = encoder_of(p, param_of(p, e0), factor);
	else if (row_in_group)
		prepare_row_encoder<WARPS>(p, e0, factor);
	stages_f32<true>(v, p.f, e0 + (WARPS > 1 ? warp * 1024 : 0), own, lane,
			 WARPS > 1 ? 10 : p.f.k);
	store_columns(v, own, lane);
	if (WARPS > 1)
		__syncthreads();
	else
		__syncwarp();
#pragma unroll
	for (int g = 0; g < V / C; g++) {
		const char *src = memory + swizzled<HZ_F32>((g * THREADS + t) * C);

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			load_piece<C>(&v[w * V + g * C], src + w * HZI_WARP_BYTES);
	}
	stages<32, 5 - STAGES, 5>(v, STAGES);
	auto element = [&](int i) {
		return i / (V / C) * 1024 + (i % (V / C) * THREADS + t) * C;
	};

	policy().flip_results<C>(v, p, element);
	uint32_t w[8];

	if (!power) {
#pragma unroll
		for (int i = 0; i < 32; i++)
			v[i] = __fmul_rn(v[i], p.f.factor);
	}
	if (row_in_group || p.group.divisor == 0) {
		if (WARPS > 1)
			c = *row_encoder<WARPS>();
		encode_static<32, true>(w, v, c, p, e0, factor);
	} else {
		encode_pieces<C, true>(w, v, p, factor, [&](int i) {
			const int64_t e = e0 + element(i);

			return WARPS == 1 && e >= p.f.total ? e0 : e;
		});
	}
#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		const int64_t e = e0 + element(i);

		if (WARPS > 1 || e < p.f.total)
			store_codes<C, HZ_S8>((uint8_t *)p.f.y + e, w[i * C / 4] >> i * C % 4 * 8);
	}
}

/* ---- Dequantization -------------------------------------------------------------------------- */

/* 8 successive codes as f16; integers of 8 bits minus their zero point */
template <int CODE>
HZ_DEVICE uint4 operands_of(uint2 codes, const hzi_hadamard_quantize &p)
{
	uint32_t f[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t word = i < 2 ? codes.x : codes.y;

		if constexpr (CODE == HZ_S8) {
			f[i] = codes_to_f16x2(word, i & 1, p.flip, p.base);
		} else if constexpr (CODE == HZ_S4X2) {
			/*
			 * 1024 + 8 + the lower and 1024 + 16 (8 + the upper): times 1 and 1/16,
			 * minus 1032 and 72
			 */
			const uint32_t byte =
				__byte_perm(codes.x ^ 0x88888888, 0, 0x4040 | i | i << 8);
			const uint32_t pair = (byte & 0x00f0000f) | 0x64006400;

			f[i] = fma_f16x2(pair, 0x2c003c00, 0xd480e408);
		} else if constexpr (CODE == HZ_E2M1X2) {
			const uint32_t upper = upper_bytes(codes.x >> (i < 2 ? 0 : 16));

			f[i] = __byte_perm(upper, 0, i & 1 ? 0x3424 : 0x1404);
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

/* Multiplies the operands of 8 codes by a scale of e4m3. */
HZ_DEVICE uint4 multiply_scale(uint4 w, uint32_t scale)
{
	const uint32_t both = fp8_to_f16x2<HZ_E4M3>(scale * 0x101);

	return make_uint4(mul_f16x2(w.x, both), mul_f16x2(w.y, both), mul_f16x2(w.z, both),
			  mul_f16x2(w.w, both));
}

/*
 * Loads 4 times 8 codes, STEP elements apart, from element e on of a warp's that begin at e0, and
 * zeros from element count on. Prefetches the codes `ahead` elements further, unless that is 0.
 * With SCALED also NVFP4's, whose products with scales of e4m3 are exact in f16: at most 6 bits.
 */
template <int STEP, bool SCALED>
HZ_DEVICE void load_codes(uint4 *w, const hzi_hadamard_quantize &p, int64_t e0, int e, int count,
			  uint32_t ahead)
{
	with_one_of<HZ_S8, HZ_S4X2, HZ_E4M3, HZ_E5M2, HZ_E2M1X2>(p.q_dtype, [&](auto dtype) {
		constexpr int CODE = decltype(dtype)::value;
		constexpr bool NIBBLES = CODE == HZ_S4X2 || CODE == HZ_E2M1X2;
		const bool scaled = SCALED && CODE == HZ_E2M1X2 && p.scale_dtype == HZ_E4M3;
		const uint8_t *x = (const uint8_t *)p.f.x + code_bytes<CODE>(e0);
		const uint8_t *scales = (const uint8_t *)p.scales + (e0 >> 4);
		uint32_t s[4] = {};
		uint2 codes[4];

		/*
		 * Scales come from memory, codes from L2. With a branch here the compiler would
		 * load scales behind all that needs codes alone; so without scales, codes are
		 * loaded instead of them.
		 */
		if constexpr (SCALED && CODE == HZ_E2M1X2) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int at = e + STEP * i;

				if (at < count)
					s[i] = *(scaled ? scales + (at >> 4) : x + at / 2);
			}
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			codes[i] = make_uint2(0, 0);
			if (e + STEP * i < count) {
				if constexpr (NIBBLES)
					codes[i].x = *(const uint32_t *)(x + e / 2 + STEP / 2 * i);
				else
					codes[i] = *(const uint2 *)(x + e + STEP * i);
			}
		}
		if (ahead)
			prefetch_warp<NIBBLES ? 9 : 10>(x + code_bytes<CODE>(ahead));
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = operands_of<CODE>(codes[i], p);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (scaled)
				w[i] = multiply_scale(w[i], s[i]);
		}
	});
}

/* The factors of N chunks from element e on, a scale for each 2^L chunks; 0 beyond the last one */
template <int N, int L>
HZ_DEVICE void load_factors(float *r, const hzi_hadamard_quantize &p, int64_t e)
{
	const int64_t first = e >> p.group_log2;

#pragma unroll
	for (int c = 0; c < N; c++) {
		const int64_t i = first + (c >> L);

		if (c % (1 << L)) {
			r[c] = r[c - 1];
			continue;
		}
		r[c] = p.scales ? 0 : p.f.factor;
		if (p.scales && e + 32 * c < p.f.total)
			r[c] = __fmul_rn(p.scale_dtype == HZ_F32
						 ? ((const float *)p.scales)[i]
						 : from_e8m0(((const uint8_t *)p.scales)[i]),
					 p.f.factor);
	}
}

/* C successive results as 16 bits */
template <int C>
HZ_DEVICE void store_16bit(void *y, const float *v, int dtype)
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

/*
 * GROUPS: a scale for 32, 64 or 128 elements, which are whole chunks of 32, so that scales can be
 * multiplied in after the first stages. Else the chunks of a thread have one scale, or are NVFP4,
 * whose scales are multiplied into the operands.
 */
template <bool GROUPS>
struct dequantization : policy {
	static constexpr int DTYPE = HZ_F16;
	float r[8];			/* the factor of each chunk */

	/* Of N chunks from element e on, a multiple of 32 N */
	template <int N>
	HZ_MEMBER void load_scales(const hzi_hadamard_quantize &p, int64_t e)
	{
		if (!GROUPS && p.scale_dtype == HZ_E4M3) {
			const float factor =
				__fmul_rn(p.f.factor, p.tensor_scale ? *p.tensor_scale : 1);

#pragma unroll
			for (int c = 0; c < N; c++)
				r[c] = factor;
			return;
		}
		if constexpr (!GROUPS)
			load_factors<N, 3>(r, p, e);
		else if (p.group_log2 == 5)
			load_factors<N, 0>(r, p, e);
		else if (p.group_log2 == 6)
			load_factors<N, 1>(r, p, e);
		else
			load_factors<N, 2>(r, p, e);
	}
	template <int K>
	HZ_MEMBER void load_short(uint4 *w, const hzi_hadamard_quantize &p, const short_tile &tile)
	{
		load_codes<32, !GROUPS>(w, p, tile.e0, tile.e1, tile.left,
			       blockIdx.x + p.prefetch_distance + 1 < gridDim.x
				       ? p.prefetch_distance * 32 * blockDim.x
				       : 0);
		load_scales<4>(p, tile.e0 + (threadIdx.x % 32 >> 2) * 128);
	}
	template <int WARPS>
	HZ_MEMBER void load_long(uint4 *w, const hzi_hadamard_quantize &p, int64_t e0)
	{
		const uint32_t t = threadIdx.x;

		load_codes<64, !GROUPS>(w, p, e0 + t / 32 * 1024, operand_index(t % 32), 1024,
			       blockIdx.x + p.prefetch_distance < gridDim.x
				       ? p.prefetch_distance * 1024 * WARPS
				       : 0);
		/* Of the chunks that this thread has after H_32 */
		load_scales<8>(p, e0 + t / 32 * 1024 + t % 4 * 256);
	}
	template <int N>
	HZ_MEMBER void scale(float *v)
	{
#pragma unroll
		for (int i = 0; i < 32; i++)
			v[i] = __fmul_rn(v[i], r[i / N]);
	}
	HZ_MEMBER void store_short(float *v, const hzi_hadamard_quantize &p, const short_tile &tile)
	{
		uint16_t *y = (uint16_t *)p.f.y + tile.e0 + tile.e1;

		flip_results<8>(v, p, [&](int c) { return tile.e1 + 32 * c; });
#pragma unroll
		for (int c = 0; c < 4; c++) {
			if (tile.e1 + 32 * c < tile.left)
				store_16bit<8>(y + 32 * c, &v[8 * c], p.round_to);
		}
	}
	template <int WARPS, int C>
	HZ_MEMBER void store_long(float *v, const hzi_hadamard_quantize &p, int64_t e0)
	{
		constexpr int SPAN = 32 * WARPS * C;
		const uint32_t t = threadIdx.x;
		uint16_t *y = (uint16_t *)p.f.y + e0 + t * C;

		flip_results<C>(v, p, [&](int i) { return i * SPAN + t * C; });
#pragma unroll
		for (int i = 0; i < 32 / C; i++)
			store_16bit<C>(y + i * SPAN, &v[C * i], p.round_to);
	}
};

/* ---- Kernels --------------------------------------------------------------------------------- */

#define KERNEL(name, threads, blocks, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_##name(const __grid_constant__ hzi_hadamard_quantize p) \
	{ \
		pdl_wait(); \
		pdl_launch_dependents(); \
		__VA_ARGS__(p); \
	}

#define KERNELS(prefix, suffix, blocks_12, ...) \
	KERNEL(prefix##_5##suffix, 128, 8, short_rows<__VA_ARGS__, 5>) \
	KERNEL(prefix##_6##suffix, 128, 8, short_rows<__VA_ARGS__, 6>) \
	KERNEL(prefix##_7##suffix, 128, 8, short_rows<__VA_ARGS__, 7>) \
	KERNEL(prefix##_8##suffix, 128, 8, short_rows<__VA_ARGS__, 8>) \
	KERNEL(prefix##_9##suffix, 128, 8, short_rows<__VA_ARGS__, 9>) \
	KERNEL(prefix##_10##suffix, 128, 8, short_rows<__VA_ARGS__, 10>) \
	KERNEL(prefix##_11##suffix, 64, 16, long_rows<__VA_ARGS__, 2, 4, 0>) \
	KERNEL(prefix##_12##suffix, 128, blocks_12, long_rows<__VA_ARGS__, 4, 2, 0>) \
	KERNEL(prefix##_13##suffix, 256, 4, long_rows<__VA_ARGS__, 8, 2, 1>) \
	KERNEL(prefix##_14##suffix, 512, 2, long_rows<__VA_ARGS__, 16, 2, 2>)

#define QUANTIZE_16BIT(name, DTYPE) \
	KERNELS(quantize_##name, , 9, dynamic_scale<DTYPE>) \
	KERNEL(quantize_##name##_11_groups, 64, 16, \
	       long_rows<dynamic_scale<DTYPE, true>, 2, 4, 0>) \
	KERNEL(quantize_##name##_12_groups, 128, 8, \
	       long_rows<dynamic_scale<DTYPE, true>, 4, 4, 1>) \
	KERNEL(quantize_##name##_13_groups, 256, 4, \
	       long_rows<dynamic_scale<DTYPE, true>, 8, 4, 2>) \
	KERNEL(quantize_microscaling_##name##_11, 64, 16, \
	       long_rows<microscaling<DTYPE>, 2, 4, 0>) \
	KERNEL(quantize_microscaling_##name##_12, 128, 8, \
	       long_rows<microscaling<DTYPE>, 4, 4, 1>) \
	KERNEL(quantize_microscaling_##name##_13, 256, 4, \
	       long_rows<microscaling<DTYPE>, 8, 4, 2>) \
	KERNELS(quantize_static_##name, , 9, static_scale<DTYPE>)

QUANTIZE_16BIT(f16, HZ_F16)
QUANTIZE_16BIT(bf16, HZ_BF16)
KERNEL(quantize_static_f32_10, 128, 5, f32_rows<1>)
KERNEL(quantize_static_f32_11, 64, 12, f32_rows<2>)
KERNEL(quantize_static_f32_12, 128, 6, f32_rows<4>)
KERNEL(quantize_static_f32_13, 256, 4, f32_rows<8>)
KERNEL(quantize_static_f32_14, 512, 2, f32_rows<16>)
KERNELS(dequantize, , 8, dequantization<false>)
KERNELS(dequantize, _groups, 8, dequantization<true>)
