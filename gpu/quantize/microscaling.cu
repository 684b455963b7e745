/*
 * microscaling.cu - kernels of MXFP4, MXFP8 and NVFP4: contiguous data, scales chosen for groups
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A warp has a tile of 32 rows of 32 elements. Lane 4 g + t has elements 8 t to 8 t + 7 of the rows
 * 4 g to 4 g + 3, which are its units 0 to 3. So the 16 bytes that a lane loads of a 16-bit row are
 * half of two operands of mma.sync, whose other operand is H_32 or, for transforms of 16, two H_16;
 * its columns are ordered so that results are again those 8 elements of the lane. Entries are +-1
 * and sums f32. Transforms of 64 and 128 add and subtract units. Scales are those of
 * lib/quantize/format.h, one lane for each; shuffles bring maxima to it and factors back.
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/quantize/microscaling.h"
#include "lib/quantize/format.h"

#define UNITS 4
#define EACH 8			/* successive elements of a lane and unit */
#define ROW 32

typedef hzi_quantize_microscaling params;

HZ_DEVICE int64_t element_of(int64_t tile, int lane, int unit)
{
	return tile + (4 * (lane >> 2) + unit) * ROW + (lane & 3) * EACH;
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Packed signs of elements 2 j and 2 j + 1 of 8, as bits 15 and 31 */
HZ_DEVICE uint32_t sign_pair(uint32_t bits, int j)
{
	return (bits << (15 - 2 * j) & 0x8000) | (bits << (30 - 2 * j) & 0x80000000);
}

template <int DTYPE>
HZ_DEVICE void load_values(float (&v)[UNITS][EACH], uint4 (&w)[UNITS], const params &p,
			   int64_t tile, int lane)
{
	float4 high[UNITS];

#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t e = element_of(tile, lane, u);
		const uint4 *const at = (const uint4 *)((const char *)p.x +
							e * (DTYPE == HZ_F32 ? 4 : 2));

		w[u] = e < p.total ? at[0] : make_uint4(0, 0, 0, 0);
		if constexpr (DTYPE == HZ_F32)
			high[u] = e < p.total ? ((const float4 *)at)[1] : make_float4(0, 0, 0, 0);
	}
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};

		if constexpr (DTYPE == HZ_F32) {
#pragma unroll
			for (int j = 0; j < 4; j++)
				v[u][j] = __uint_as_float(words[j]);
			v[u][4] = high[u].x, v[u][5] = high[u].y;
			v[u][6] = high[u].z, v[u][7] = high[u].w;
		} else {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[u][2 * j] = DTYPE == HZ_F16 ? f16_low(words[j])
							      : bf16_low(words[j]);
				v[u][2 * j + 1] = DTYPE == HZ_F16 ? f16_high(words[j])
								  : bf16_high(words[j]);
			}
		}
	}
}

/*
 * This lane's entries of H for step 0 of the product, tile 0, k from 0 on: of element 8 t + i of a
 * row, the column being element 8 (g / 2) + g % 2 of the result. Entry (a, b) is -1 to the power
 * of the number of bits that a and b share.
 */
template <int DTYPE>
HZ_DEVICE uint32_t first_entries(int lane, int log2)
{
	const int g = lane >> 2, t = lane & 3;
	const uint32_t one = DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00;
	const int shared = g >> 1 & t & (log2 == 4 ? 1 : 3), odd = (shared ^ shared >> 1) & 1;

	if (log2 == 4 && t >> 1 != g >> 2)
		return 0;		/* another transform */
	return one ^ (odd ? 0x80008000 : 0) ^ (g & 1 ? 0x80000000 : 0);
}

/* Sums and differences of units that are 2^DISTANCE rows apart */
HZ_DEVICE void add_units(float (&v)[UNITS][EACH], int distance)
{
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		if (u & distance)
			continue;
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			const float a = v[u][e], b = v[u + distance][e];

			v[u][e] = __fadd_rn(a, b);
			v[u + distance][e] = __fadd_rn(a, -b);
		}
	}
}

/* Turns the signs of pairs of 16-bit floats that p.signs has set. */
HZ_DEVICE void flip_signs(uint4 (&w)[UNITS], const params &p, int64_t tile, int lane)
{
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t e = element_of(tile, lane, u);
		const uint32_t bits = p.signs[(int)(e / EACH) & p.sign_mask];

		w[u].x ^= sign_pair(bits, 0), w[u].y ^= sign_pair(bits, 1);
		w[u].z ^= sign_pair(bits, 2), w[u].w ^= sign_pair(bits, 3);
	}
}

/* v = the transform of 32, or of 16 with log2 = 4, of each part of a row */
template <int DTYPE>
HZ_DEVICE void multiply(float (&v)[UNITS][EACH], const uint4 (&w)[UNITS], int log2, int lane)
{
	const uint32_t h = first_entries<DTYPE>(lane, log2);
	const uint32_t minus = h ? h ^ 0x80008000 : 0;

#pragma unroll
	for (int u = 0; u < UNITS; u += 2) {
#pragma unroll
		for (int j = 0; j < 4; j++) {
			/* Bits 1 and 2 of the column are j, of k the half and the step. */
			const uint32_t a = j & 1 ? minus : h, b = j & 2 ? minus : h;
			const uint32_t c = (j & 1) ^ (j >> 1) ? minus : h;
			float s[4] = {0, 0, 0, 0};

			mma_m16n8k16<DTYPE>(s, w[u].x, w[u + 1].x, w[u].y, w[u + 1].y, h, a);
			mma_m16n8k16<DTYPE>(s, w[u].z, w[u + 1].z, w[u].w, w[u + 1].w, b, c);
			v[u][2 * j] = s[0], v[u][2 * j + 1] = s[1];
			v[u + 1][2 * j] = s[2], v[u + 1][2 * j + 1] = s[3];
		}
	}
}

/* Completes transforms of more than a row, and multiplies them by their factor. */
HZ_DEVICE void add_and_scale(float (&v)[UNITS][EACH], const params &p)
{
	if (p.log2 > 5)
		add_units(v, 1);
	if (p.log2 > 6)
		add_units(v, 2);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
#pragma unroll
		for (int e = 0; e < EACH; e++)
			v[u][e] = __fmul_rn(v[u][e], p.factor);
	}
}

template <int DTYPE>
HZ_DEVICE void transform(float (&v)[UNITS][EACH], uint4 (&w)[UNITS], const params &p, int64_t tile,
			 int lane)
{
	if (p.signs)
		flip_signs(w, p, tile, lane);
	multiply<DTYPE>(v, w, p.log2, lane);
	add_and_scale(v, p);
	if (p.round_to) {
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
#pragma unroll
			for (int e = 0; e < EACH; e++)
				v[u][e] = round_to(p.round_to, v[u][e]);
		}
	}
}

/* ---- Scales ---------------------------------------------------------------------------------- */

HZ_DEVICE void exchange_max(uint32_t &keep, uint32_t give, int distance)
{
	keep = max(keep, __shfl_xor_sync(~0u, give, distance));
}

/*
 * hzi_scale_of() in fewer instructions. Of e8m0: exponents and, for amax from 2^-100 on, a carry of
 * the mantissa, for amax / F > 2^k exactly where fl(amax / F) is; F is 1.5 or 1.75 times a power.
 */
HZ_DEVICE hzi_scale scale_of(uint32_t amax, const params &p, const hzi_tensor_factor &tensor)
{
	hzi_scale s = {0, 0, false};

	if (p.scale_dtype == HZ_E8M0) {
		const bool four_bits = p.q_dtype == HZ_E2M1X2;
		const int top = four_bits ? 2 : p.q_dtype == HZ_E4M3 ? 8 : 15;
		const uint32_t carry = p.rule == HZ_SCALE_FLOOR ? 0 :
				       p.rule == HZ_SCALE_CEIL	? 0x7fffff :
				       p.rule == HZ_SCALE_EVEN ?
				       1u << (four_bits ? 21 : p.q_dtype == HZ_E4M3 ? 19 : 20) :
				       four_bits ? 0x3fffff : 0x1fffff;

		if (amax - (27u << 23) < (228u << 23)) {	/* 2^-100 to Inf */
			s.bits = ((amax + carry) >> 23) - top;
			s.factor = __uint_as_float((254 - s.bits) << 23);
			return s;
		}
	} else if (p.rule == HZ_SCALE_NV_TE) {
		const float base = __fmul_rn(__uint_as_float(amax),
					     __fmul_rn(tensor.s, 1.0f / 6.0f));

		s.bits = to_e4m3x2(base, 0) & 0xff;
		s.factor = hzi_f32_inverse(__fmul_rn(from_e4m3(s.bits), tensor.p));
		return s;
	}
	return hzi_scale_of(amax, p.q_dtype, p.rule, tensor);
}

/* Writes the scales for the largest magnitudes m[u] of this lane's units; factor[u]: of unit u */
template <int GROUP>
HZ_DEVICE void choose_scales(float (&factor)[UNITS], uint32_t (&m)[UNITS], const params &p,
			     const hzi_tensor_factor &tensor, int64_t tile, int lane)
{
	const int t = lane & 3;
	const int64_t groups = p.total / GROUP;
	const bool odd = t & 1, upper = t & 2;

	if constexpr (GROUP == 32) {
		/* Lane t of four gets the maximum of unit t. */
		uint32_t a = upper ? m[2] : m[0], b = upper ? m[3] : m[1];

		exchange_max(a, upper ? m[0] : m[2], 2);
		exchange_max(b, upper ? m[1] : m[3], 2);

		uint32_t own = odd ? b : a;

		exchange_max(own, odd ? a : b, 1);

		const hzi_scale s = scale_of(own, p, tensor);
		const int64_t at = tile / GROUP + lane;

		if (at < groups)
			p.scales[at] = (uint8_t)s.bits;
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			factor[u] = __shfl_sync(~0u, s.factor, u, 4);
	} else {
		/* Lane t of two has units 2 (t % 2) and the next one, of half t / 2 of the row. */
		uint32_t own[2] = {odd ? m[2] : m[0], odd ? m[3] : m[1]};
		float mine[2];

		exchange_max(own[0], odd ? m[0] : m[2], 1);
		exchange_max(own[1], odd ? m[1] : m[3], 1);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const hzi_scale s = scale_of(own[i], p, tensor);
			const int row = 4 * (lane >> 2) + 2 * (t & 1) + i;
			const int64_t at = tile / GROUP + 2 * row + (t >> 1);

			if (at < groups)
				p.scales[at] = (uint8_t)s.bits;
			mine[i] = s.factor;
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			factor[u] = __shfl_sync(~0u, mine[u & 1], u >> 1, 2);
	}
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* The upper bytes of four numbers */
HZ_DEVICE uint32_t top_bytes(float a, float b, float c, float d)
{
	return __byte_perm(__byte_perm(__float_as_uint(a), __float_as_uint(b), 0x73),
			   __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x73), 0x5410);
}

/* Bits 0 to 15 are four numbers of 4 bits. The multiplier does what shifts would. */
HZ_DEVICE uint32_t pack_nibbles(const uint32_t *c)
{
	uint32_t w;

	asm("mad.lo.u32 %0, %1, 16, %2;" : "=r"(w) : "r"(c[1]), "r"(c[0]));
	asm("mad.lo.u32 %0, %1, 256, %0;" : "+r"(w) : "r"(c[2]));
	asm("mad.lo.u32 %0, %1, 4096, %0;" : "+r"(w) : "r"(c[3]));
	return w;
}

/*
 * Eight codes of e2m1. |t| plus 2^22 times its power of two, at least 1, is rounded to half of that
 * power: bits 0 to 2 of the sum are |t| in halves of it, bits 22 and up 298 + 2 e. t is not NaN, and
 * below 7 unless CLAMP.
 */
template <bool CLAMP>
HZ_DEVICE uint32_t encode_e2m1x8(const float (&t)[EACH])
{
	uint32_t c[EACH];

#pragma unroll
	for (int e = 0; e < EACH; e++) {
		const float a = CLAMP ? fminf(fabsf(t[e]), 6.0f) : fabsf(t[e]);
		const uint32_t power = __float_as_uint(fmaxf(a, 1.0f)) & 0x7f800000;
		const uint32_t sum = __float_as_uint(__fmaf_rn(__uint_as_float(power), 0x1p22f, a));

		c[e] = sum + (sum >> 22);
	}

	/* The number 298 of each code is taken away from all four of a word. */
	const uint32_t codes = __byte_perm(pack_nibbles(c) - 298 * 0x1111,
					   pack_nibbles(c + 4) - 298 * 0x1111, 0x5410);

	return codes | (top_bytes(t[0], t[2], t[4], t[6]) >> 4 & 0x08080808) |
	       (top_bytes(t[1], t[3], t[5], t[7]) & 0x80808080);
}

template <int FORMAT>
HZ_DEVICE uint32_t encode_fp8x4(const float *t)
{
	const uint32_t low = FORMAT == HZ_E4M3 ? to_e4m3x2(t[0], t[1]) : to_e5m2x2(t[0], t[1]);
	const uint32_t high = FORMAT == HZ_E4M3 ? to_e4m3x2(t[2], t[3]) : to_e5m2x2(t[2], t[3]);

	return __byte_perm(low, high, 0x5410);
}

/* Lane t of four gives word u of its four to lane u, and gets that one's word t. */
HZ_DEVICE void transpose_words(uint32_t (&w)[4], int t)
{
#pragma unroll
	for (int d = 1; d < 4; d *= 2) {
#pragma unroll
		for (int u = 0; u < 4; u++) {
			if (u & d)
				continue;

			const uint32_t got = __shfl_xor_sync(~0u, t & d ? w[u] : w[u + d], d);

			if (t & d)
				w[u] = got;
			else
				w[u + d] = got;
		}
	}
}

template <int FORMAT>
HZ_DEVICE void store_codes(const float (&v)[UNITS][EACH], const float (&factor)[UNITS],
			   const uint32_t (&m)[UNITS], const params &p, int64_t tile, int lane)
{
	uint32_t word[UNITS];
	bool in_range = true;		/* all |t| are below 7 */

	if constexpr (FORMAT == HZ_E2M1X2) {
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			in_range &= __fmul_rn(__uint_as_float(m[u]), factor[u]) < 7.0f;
		in_range = __all_sync(~0u, in_range);
	}
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t at = element_of(tile, lane, u);
		float t[EACH];

#pragma unroll
		for (int e = 0; e < EACH; e++)
			t[e] = __fmul_rn(v[u][e], factor[u]);
		if constexpr (FORMAT == HZ_E2M1X2) {
			if (in_range) {
				word[u] = encode_e2m1x8<false>(t);
				continue;
			}
			/* NaN, which Inf times 0 gives too, becomes 0. */
			if (m[u] >= 0x7f800000 || !(factor[u] <= HZI_FORMAT_F32_MAX)) {
#pragma unroll
				for (int e = 0; e < EACH; e++)
					t[e] = t[e] == t[e] ? t[e] : 0;
			}
			word[u] = encode_e2m1x8<true>(t);
		} else if (at < p.total) {
			*(uint2 *)((char *)p.q + at) =
				make_uint2(encode_fp8x4<FORMAT>(t), encode_fp8x4<FORMAT>(t + 4));
		}
	}
	if constexpr (FORMAT == HZ_E2M1X2) {
		if (tile + HZI_MICROSCALING_TILE <= p.total) {
			transpose_words(word, lane & 3);
			((uint4 *)((char *)p.q + tile / 2))[lane] =
				make_uint4(word[0], word[1], word[2], word[3]);
			return;
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const int64_t at = element_of(tile, lane, u);

			if (at < p.total)
				*(uint32_t *)((char *)p.q + at / 2) = word[u];
		}
	}
}

/* ---- Dequantization -------------------------------------------------------------------------- */

/* Four codes of e2m1 as the upper bytes of f16, whose lower bytes are 0 */
HZ_DEVICE uint32_t upper_bytes(uint32_t codes)
{
	const uint32_t magnitude = __byte_perm(0x3e3c3800, 0x46444240, codes & 0x7777);
	/* A selector with bit 3 set gives copies of the top bit, 0xff, else the byte, 0x80. */
	const uint32_t minus = HZ_ASM_U32("prmt.b32 %0, %1, %1, %2;", "r"(0x80808080), "r"(codes));

	return magnitude | (minus << 7 & 0x80808080);
}

/* Two codes of 8 bits as f16 */
template <int FORMAT>
HZ_DEVICE uint32_t fp8_to_f16x2(uint32_t codes)
{
	if constexpr (FORMAT == HZ_E5M2)
		return (codes & 0xff) << 8 | (codes & 0xff00) << 16;
#if __CUDA_ARCH__ >= 890
	return HZ_ASM_U32("cvt.rn.f16x2.e4m3x2 %0, %1;", "h"((uint16_t)codes));
#else
	return to_f16x2(from_e4m3(codes), from_e4m3(codes >> 8));
#endif
}

template <int FORMAT>
HZ_DEVICE void load_codes(uint4 (&w)[UNITS], const params &p, int64_t tile, int lane)
{
	if constexpr (FORMAT == HZ_E2M1X2) {
		uint32_t word[UNITS];

		if (tile + HZI_MICROSCALING_TILE <= p.total) {
			const uint4 row = ((const uint4 *)((const char *)p.q + tile / 2))[lane];

			word[0] = row.x, word[1] = row.y, word[2] = row.z, word[3] = row.w;
			transpose_words(word, lane & 3);
		} else {
#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				const int64_t at = element_of(tile, lane, u);

				word[u] = at < p.total ?
					  *(const uint32_t *)((const char *)p.q + at / 2) : 0;
			}
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const uint32_t a = upper_bytes(word[u]), b = upper_bytes(word[u] >> 16);

			w[u] = make_uint4(__byte_perm(a, 0, 0x1404), __byte_perm(a, 0, 0x3424),
					  __byte_perm(b, 0, 0x1404), __byte_perm(b, 0, 0x3424));
		}
	} else {
		uint2 codes[UNITS];

#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const int64_t at = element_of(tile, lane, u);

			codes[u] = at < p.total ? *(const uint2 *)((const char *)p.q + at)
						: make_uint2(0, 0);
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			w[u] = make_uint4(fp8_to_f16x2<FORMAT>(codes[u].x),
					  fp8_to_f16x2<FORMAT>(codes[u].x >> 16),
					  fp8_to_f16x2<FORMAT>(codes[u].y),
					  fp8_to_f16x2<FORMAT>(codes[u].y >> 16));
	}
}

HZ_DEVICE float load_scale(const params &p, int64_t at)
{
	const uint32_t code = at < p.total / p.group ? p.scales[at] : 0;

	return p.scale_dtype == HZ_E8M0 ? from_e8m0(code) : from_e4m3(code);
}

/* scale[u]: of this lane's values of unit u */
HZ_DEVICE void load_scales(float (&scale)[UNITS], const params &p, int64_t tile, int lane)
{
	const int t = lane & 3;

	if (p.group == 32) {
		const float own = load_scale(p, tile / 32 + lane);

#pragma unroll
		for (int u = 0; u < UNITS; u++)
			scale[u] = __shfl_sync(~0u, own, u, 4);
	} else {
		const int row = 4 * (lane >> 2) + 2 * (t & 1);
		float own[2];

#pragma unroll
		for (int i = 0; i < 2; i++)
			own[i] = load_scale(p, tile / 16 + 2 * (row + i) + (t >> 1));
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			scale[u] = __shfl_sync(~0u, own[u & 1], u >> 1, 2);
	}
}

template <int DTYPE>
HZ_DEVICE void store_values(const float (&v)[UNITS][EACH], const params &p, int64_t tile, int lane)
{
	uint4 w[UNITS];

#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t e = element_of(tile, lane, u);

		if constexpr (DTYPE == HZ_F32) {
			/* Two lanes store the 32 bytes of one, then those of the other. */
			float4 low = make_float4(v[u][0], v[u][1], v[u][2], v[u][3]);
			float4 high = make_float4(v[u][4], v[u][5], v[u][6], v[u][7]);
			const bool odd = lane & 1;
			float4 give = odd ? low : high, *const at = (float4 *)p.x + e / 4;

			give.x = __shfl_xor_sync(~0u, give.x, 1);
			give.y = __shfl_xor_sync(~0u, give.y, 1);
			give.z = __shfl_xor_sync(~0u, give.z, 1);
			give.w = __shfl_xor_sync(~0u, give.w, 1);
			/* Pairs of lanes are in one group of 16. */
			if (e < p.total) {
				at[odd ? -1 : 0] = odd ? give : low;
				at[odd ? 1 : 2] = odd ? high : give;
			}
		} else {
			uint32_t word[4];

#pragma unroll
			for (int j = 0; j < 4; j++)
				word[j] = DTYPE == HZ_F16 ? to_f16x2(v[u][2 * j], v[u][2 * j + 1])
							  : to_bf16x2(v[u][2 * j], v[u][2 * j + 1]);
			w[u] = make_uint4(word[0], word[1], word[2], word[3]);
		}
	}
	if constexpr (DTYPE != HZ_F32) {
		if (p.signs)
			flip_signs(w, p, tile, lane);
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const int64_t e = element_of(tile, lane, u);

			if (e < p.total)
				((uint4 *)p.x)[e / 8] = w[u];
		}
	}
}

/* The product is of bare codes, which are exact in f16, where they share a scale. */
template <int DTYPE, bool ROTATED>
HZ_DEVICE void dequantize(const params &p)
{
	const int lane = threadIdx.x % 32;
	const int64_t tile = ((int64_t)blockIdx.x * (HZI_MICROSCALING_THREADS / 32) +
			      threadIdx.x / 32) * HZI_MICROSCALING_TILE;
	const float tensor = p.tensor_scale ? *p.tensor_scale : 1;
	const bool halves = p.group == 16 && p.log2 > 4;
	float v[UNITS][EACH], scale[UNITS];
	uint4 w[UNITS];

	if (p.q_dtype == HZ_E2M1X2)
		load_codes<HZ_E2M1X2>(w, p, tile, lane);
	else if (p.q_dtype == HZ_E4M3)
		load_codes<HZ_E4M3>(w, p, tile, lane);
	else
		load_codes<HZ_E5M2>(w, p, tile, lane);
	load_scales(scale, p, tile, lane);
	if constexpr (ROTATED)
		multiply<HZ_F16>(v, w, halves ? 4 : p.log2, lane);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		if constexpr (!ROTATED) {
			const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};

#pragma unroll
			for (int e = 0; e < EACH; e++)
				v[u][e] = e % 2 ? f16_high(words[e / 2]) : f16_low(words[e / 2]);
		}
#pragma unroll
		for (int e = 0; e < EACH; e++)
			v[u][e] = __fmul_rn(__fmul_rn(v[u][e], scale[u]), tensor);
		if (ROTATED && halves) {
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				const float other = __shfl_xor_sync(~0u, v[u][e], 2);

				v[u][e] = __fadd_rn(other, lane & 2 ? -v[u][e] : v[u][e]);
			}
		}
	}
	if constexpr (ROTATED)
		add_and_scale(v, p);
	store_values<DTYPE>(v, p, tile, lane);
}

/* ---- Quantization ---------------------------------------------------------------------------- */

template <int DTYPE, bool ROTATED>
HZ_DEVICE void quantize(const params &p)
{
	const int lane = threadIdx.x % 32;
	const int64_t tile = ((int64_t)blockIdx.x * (HZI_MICROSCALING_THREADS / 32) +
			      threadIdx.x / 32) * HZI_MICROSCALING_TILE;
	float v[UNITS][EACH], factor[UNITS];
	uint32_t m[UNITS];
	uint4 w[UNITS];

	load_values<DTYPE>(v, w, p, tile, lane);
	if constexpr (ROTATED)
		transform<DTYPE>(v, w, p, tile, lane);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		float most = 0;

#pragma unroll
		for (int e = 0; e < EACH; e++)
			most = max_nan(most, fabsf(v[u][e]));
		m[u] = __float_as_uint(most);
	}
	if (p.measure) {
		const uint32_t most = __reduce_max_sync(~0u, max(max(m[0], m[1]), max(m[2], m[3])));

		if (lane == 0 && most > *(volatile uint32_t *)p.most)
			atomicMax(p.most, most);
		return;
	}

	const hzi_tensor_factor tensor = hzi_format_tensor(
		p.tensor_scale, p.new_tensor_scale != NULL, p.rule,
		p.new_tensor_scale ? *p.most : 0);

	if (p.new_tensor_scale && tile == 0 && lane == 0)
		*p.new_tensor_scale = tensor.p;
	if (p.group == 32)
		choose_scales<32>(factor, m, p, tensor, tile, lane);
	else
		choose_scales<16>(factor, m, p, tensor, tile, lane);
	if (p.q_dtype == HZ_E2M1X2)
		store_codes<HZ_E2M1X2>(v, factor, m, p, tile, lane);
	else if (p.q_dtype == HZ_E4M3)
		store_codes<HZ_E4M3>(v, factor, m, p, tile, lane);
	else
		store_codes<HZ_E5M2>(v, factor, m, p, tile, lane);
}

#define KERNEL(name, function, rotated, dtype, DTYPE) \
	HZ_KERNEL(name##_##dtype, hzi_quantize_microscaling, (HZI_MICROSCALING_THREADS, 3), \
		  function<DTYPE, rotated>(p))
HZ_FLOAT_DTYPES(KERNEL, quantize_microscaling, quantize, false)
KERNEL(quantize_microscaling_rotated, quantize, true, f16, HZ_F16)
KERNEL(quantize_microscaling_rotated, quantize, true, bf16, HZ_BF16)
HZ_FLOAT_DTYPES(KERNEL, dequantize_microscaling, dequantize, false)
KERNEL(dequantize_microscaling_rotated, dequantize, true, f16, HZ_F16)
KERNEL(dequantize_microscaling_rotated, dequantize, true, bf16, HZ_BF16)
