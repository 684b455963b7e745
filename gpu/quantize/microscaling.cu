/*
 * microscaling.cu - kernels of MXFP4, MXFP8 and NVFP4: contiguous data, scales chosen for groups
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A warp has a tile of 32 rows of 32 elements. Lane 4 g + t has elements 8 t to 8 t + 7 of the rows
 * 4 g to 4 g + 3, which are its units 0 to 3. So the 16 bytes that a lane loads of a 16-bit row are
 * half of two operands of mma.sync, whose other operand is H_32 or, for transforms of 16, two H_16;
 * its columns are ordered so that results are again those 8 elements of the lane. Entries are +-1
 * and sums f32. Transforms of 64 and 128 add and subtract units, longer ones, up to 1024, lanes.
 * Scales are those of lib/quantize/format.h, one lane for each; shuffles bring maxima to it and
 * factors back.
 *
 * To e2m1 or with a transform, where the arithmetic takes as long as the memory, a warp loops over
 * tiles and loads the next one before it encodes one. Dequantization without a transform needs no
 * rows; there, all stores of a warp are of 512 successive bytes.
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/quantize/microscaling.cuh"
#include "gpu/quantize/microscaling.h"

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

/* The 16 bytes of each unit; of f32 those of its first half, or with HIGH of its second half */
template <int DTYPE, bool HIGH = false>
HZ_DEVICE void load_words(uint4 (&w)[UNITS], const params &p, int64_t tile, int lane)
{
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t e = element_of(tile, lane, u);
		const uint4 *const at = (const uint4 *)((const char *)p.x +
							e * (DTYPE == HZ_F32 ? 4 : 2));

		w[u] = e < p.total ? at[HIGH] : make_uint4(0, 0, 0, 0);
	}
}

/* The bits of the largest magnitude of a lane's elements in each unit; w: those of 16 bits */
template <int DTYPE>
HZ_DEVICE void find_largest(uint32_t (&m)[UNITS], const float (&v)[UNITS][EACH],
			    const uint4 (&w)[UNITS])
{
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		if constexpr (DTYPE == HZ_F32) {
			float largest = 0;

#pragma unroll
			for (int e = 0; e < EACH; e++)
				largest = max_nan(largest, fabsf(v[u][e]));
			m[u] = __float_as_uint(largest);
		} else {
			const uint32_t pair = 0x7fff7fff &
				max_abs_x2<DTYPE>(max_abs_x2<DTYPE>(w[u].x, w[u].y),
						  max_abs_x2<DTYPE>(w[u].z, w[u].w));

			m[u] = DTYPE == HZ_BF16 ? max(pair << 16, pair & 0xffff0000)
						: max(__float_as_uint(f16_low(pair)),
						      __float_as_uint(f16_high(pair)));
		}
	}
}

template <int DTYPE>
HZ_DEVICE void convert_words(float (&v)[UNITS][EACH], const uint4 (&w)[UNITS], const params &p,
			     int64_t tile, int lane)
{
	uint4 high[UNITS];

	if constexpr (DTYPE == HZ_F32)
		load_words<DTYPE, true>(high, p, tile, lane);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};

		if constexpr (DTYPE == HZ_F32) {
			const uint32_t upper[4] = {high[u].x, high[u].y, high[u].z, high[u].w};

#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[u][j] = __uint_as_float(words[j]);
				v[u][4 + j] = __uint_as_float(upper[j]);
			}
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

/* Sums and differences between lanes, `distance` apart */
HZ_DEVICE void add_lanes(float (&v)[UNITS][EACH], int distance, int lane)
{
	const float sign = lane & distance ? -1 : 1;

#pragma unroll
	for (int u = 0; u < UNITS; u++) {
#pragma unroll
		for (int e = 0; e < EACH; e++)
			v[u][e] = __fmaf_rn(v[u][e], sign,
					    __shfl_xor_sync(~0u, v[u][e], distance));
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
HZ_DEVICE void add_and_scale(float (&v)[UNITS][EACH], const params &p, int lane)
{
	if (p.log2 > 5)
		add_units(v, 1);
	if (p.log2 > 6)
		add_units(v, 2);
#pragma unroll 1
	for (int k = 7; k < p.log2; k++)
		add_lanes(v, 4 << (k - 7), lane);
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
	add_and_scale(v, p, lane);
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
			((uint8_t *)p.scales)[at] = (uint8_t)s.bits;
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
				((uint8_t *)p.scales)[at] = (uint8_t)s.bits;
			mine[i] = s.factor;
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			factor[u] = __shfl_sync(~0u, mine[u & 1], u >> 1, 2);
	}
}

/* ---- Codes ----------------------------------------------------------------------------------- */

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
			   const params &p, int64_t tile, int lane)
{
	uint32_t word[UNITS];

#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t at = element_of(tile, lane, u);
		float t[EACH];

#pragma unroll
		for (int e = 0; e < EACH; e++)
			t[e] = __fmul_rn(v[u][e], factor[u]);
		if constexpr (FORMAT == HZ_E2M1X2) {
			word[u] = encode_e2m1<EACH>(t);
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
	const uint32_t code = at < p.total / p.group ? ((const uint8_t *)p.scales)[at] : 0;

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
		uint32_t word[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			word[j] = DTYPE == HZ_F16 ? to_f16x2(v[u][2 * j], v[u][2 * j + 1])
						  : to_bf16x2(v[u][2 * j], v[u][2 * j + 1]);
		w[u] = make_uint4(word[0], word[1], word[2], word[3]);
	}
	if (p.signs)
		flip_signs(w, p, tile, lane);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const int64_t e = element_of(tile, lane, u);

		if (e < p.total)
			((uint4 *)p.x)[e / 8] = w[u];
	}
}

/* Transforms back. The product is of bare codes, which are exact in f16, where they share a scale. */
template <int DTYPE>
HZ_DEVICE void dequantize_rotated(const params &p)
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
	multiply<HZ_F16>(v, w, halves ? 4 : p.log2, lane);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
#pragma unroll
		for (int e = 0; e < EACH; e++)
			v[u][e] = __fmul_rn(__fmul_rn(v[u][e], scale[u]), tensor);
		if (halves) {
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				const float other = __shfl_xor_sync(~0u, v[u][e], 2);

				v[u][e] = __fadd_rn(other, lane & 2 ? -v[u][e] : v[u][e]);
			}
		}
	}
	add_and_scale(v, p, lane);
	store_values<DTYPE>(v, p, tile, lane);
}

/* ---- Dequantization without a transform ------------------------------------------------------ */

/* N = 4 or 8 successive codes of BITS bits */
template <int BITS, int N>
HZ_DEVICE uint2 load_code_words(const params &p, int64_t e)
{
	const void *const at = (const char *)p.q + e * BITS / 8;

	if constexpr (BITS * N == 64)
		return *(const uint2 *)at;
	else if constexpr (BITS * N == 32)
		return make_uint2(*(const uint32_t *)at, 0);
	else
		return make_uint2(*(const uint16_t *)at, 0);
}

/* What four codes stand for; of integers less the zero point. The first is in the low bits. */
template <int FORMAT>
HZ_DEVICE void decode4(float *v, uint32_t codes, int32_t zero)
{
	if constexpr (FORMAT == HZ_U4X2 || FORMAT == HZ_S4X2) {
		const uint32_t c = FORMAT == HZ_S4X2 ? codes ^ 0x8888 : codes;
		const float base = (float)((1 << 23) + zero + (FORMAT == HZ_S4X2 ? 8 : 0));

#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = __fadd_rn(__uint_as_float(0x4b000000 | (c >> 4 * i & 15)), -base);
	} else {
		uint32_t pair[2];

		if constexpr (FORMAT == HZ_E2M1X2) {
			const uint32_t upper = upper_bytes(codes);

			pair[0] = __byte_perm(upper, 0, 0x1404);
			pair[1] = __byte_perm(upper, 0, 0x3424);
		} else {
			pair[0] = fp8_to_f16x2<FORMAT>(codes);
			pair[1] = fp8_to_f16x2<FORMAT>(codes >> 16);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = i % 2 ? f16_high(pair[i / 2]) : f16_low(pair[i / 2]);
	}
}

/* Stores N = 4 or 8 successive values, 16 bytes. */
template <int DTYPE, int N>
HZ_DEVICE void store_floats(const params &p, int64_t e, const float *v)
{
	uint4 w;

	if constexpr (DTYPE == HZ_F32)
		w = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
			       __float_as_uint(v[2]), __float_as_uint(v[3]));
	else if constexpr (DTYPE == HZ_F16)
		w = make_uint4(to_f16x2(v[0], v[1]), to_f16x2(v[2], v[3]),
			       to_f16x2(v[4 % N], v[5 % N]), to_f16x2(v[6 % N], v[7 % N]));
	else
		w = make_uint4(to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]),
			       to_bf16x2(v[4 % N], v[5 % N]), to_bf16x2(v[6 % N], v[7 % N]));
	__stcs((uint4 *)p.x + e / N, w);
}

template <int DTYPE, int FORMAT>
HZ_DEVICE void dequantize_tile(const params &p)
{
	constexpr int N = DTYPE == HZ_F32 ? 4 : 8, STEPS = HZI_MICROSCALING_TILE / 32 / N;
	constexpr int BITS = FORMAT == HZ_E4M3 || FORMAT == HZ_E5M2 ? 8 : 4;
	const int64_t first = ((int64_t)blockIdx.x * HZI_MICROSCALING_THREADS / 32 +
			       threadIdx.x / 32) * HZI_MICROSCALING_TILE + threadIdx.x % 32 * N;
	const float tensor = p.tensor_scale ? *p.tensor_scale : 1;
	uint2 codes[STEPS];
	float scale[STEPS];
	int32_t zero[STEPS];

#pragma unroll
	for (int s = 0; s < STEPS; s++) {
		const int64_t e = first + 32 * N * s, at = e >> p.log2;

		codes[s] = make_uint2(0, 0);
		scale[s] = 0;
		zero[s] = 0;
		if (e >= p.total)
			continue;
		codes[s] = load_code_words<BITS, N>(p, e);
		scale[s] = load_any(p.scale_dtype, p.scales, at);
		if (BITS == 4 && FORMAT != HZ_E2M1X2 && p.zeros)
			zero[s] = FORMAT == HZ_S4X2 ? (int8_t)p.zeros[at] : p.zeros[at];
	}
#pragma unroll
	for (int s = 0; s < STEPS; s++) {
		const int64_t e = first + 32 * N * s;
		float v[N];

		decode4<FORMAT>(v, codes[s].x, zero[s]);
		if constexpr (N == 8)
			decode4<FORMAT>(v + 4, BITS == 4 ? codes[s].x >> 16 : codes[s].y, zero[s]);
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = __fmul_rn(__fmul_rn(v[i], scale[s]), tensor);
		if (e < p.total)
			store_floats<DTYPE, N>(p, e, v);
	}
}

template <int DTYPE>
HZ_DEVICE void dequantize(const params &p)
{
	with_one_of<HZ_E2M1X2, HZ_E4M3, HZ_E5M2, HZ_S4X2, HZ_U4X2>(p.q_dtype, [&](auto format) {
		dequantize_tile<DTYPE, decltype(format)::value>(p);
	});
}

/* ---- Quantization ---------------------------------------------------------------------------- */

/* Scales and codes of a tile; m: the bits of the largest magnitude of each unit of this lane */
HZ_DEVICE void encode_tile(const float (&v)[UNITS][EACH], uint32_t (&m)[UNITS], const params &p,
			   const hzi_tensor_factor &tensor, int64_t tile, int lane)
{
	float factor[UNITS];

	if (p.group == 32)
		choose_scales<32>(factor, m, p, tensor, tile, lane);
	else
		choose_scales<16>(factor, m, p, tensor, tile, lane);
	if (p.q_dtype == HZ_E2M1X2)
		store_codes<HZ_E2M1X2>(v, factor, p, tile, lane);
	else if (p.q_dtype == HZ_E4M3)
		store_codes<HZ_E4M3>(v, factor, p, tile, lane);
	else
		store_codes<HZ_E5M2>(v, factor, p, tile, lane);
}

/*
 * After a launch that measured, the last tiles come first: they are what the L2 cache still has
 * of x.
 */
template <int DTYPE, bool ROTATED>
HZ_DEVICE void quantize(const params &p)
{
	const int lane = threadIdx.x % 32;
	const int64_t step = (int64_t)gridDim.x * (HZI_MICROSCALING_THREADS / 32);
	const int64_t tiles = (p.total + HZI_MICROSCALING_TILE - 1) / HZI_MICROSCALING_TILE;
	const bool backwards = p.new_tensor_scale && !p.measure;
	const hzi_tensor_factor tensor = hzi_format_tensor(p.tensor_scale, backwards, p.rule,
							   backwards ? *p.most : 0);
	auto tile_of = [&](int64_t i) {
		return (backwards ? tiles - 1 - i : i) * HZI_MICROSCALING_TILE;
	};
	/* Others would spill registers. */
	constexpr bool AHEAD = DTYPE == HZ_BF16 || ROTATED;
	int64_t i = (int64_t)blockIdx.x * (HZI_MICROSCALING_THREADS / 32) + threadIdx.x / 32;
	uint32_t most = 0;
	uint4 w[UNITS], next[UNITS];

	if (backwards && i == 0 && lane == 0)
		*p.new_tensor_scale = tensor.p;
	if (AHEAD && i < tiles)
		load_words<DTYPE>(next, p, tile_of(i), lane);
	for (; i < tiles; i += step) {
		const int64_t tile = tile_of(i);
		float v[UNITS][EACH];
		uint32_t m[UNITS];

		if constexpr (!AHEAD) {
			load_words<DTYPE>(w, p, tile, lane);
		} else {
#pragma unroll
			for (int u = 0; u < UNITS; u++)
				w[u] = next[u];
			if (i + step < tiles)
				load_words<DTYPE>(next, p, tile_of(i + step), lane);
		}
		if constexpr (ROTATED)
			transform<DTYPE>(v, w, p, tile, lane);
		else
			convert_words<DTYPE>(v, w, p, tile, lane);
		/* After a transform values are f32. */
		find_largest<ROTATED ? HZ_F32 : DTYPE>(m, v, w);
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			most = max(most, m[u]);
		if (!p.measure)
			encode_tile(v, m, p, tensor, tile, lane);
	}
	if (p.measure) {
		most = __reduce_max_sync(~0u, most);
		if (lane == 0 && most > *(volatile uint32_t *)p.most)
			atomicMax(p.most, most);
	}
}

#define KERNEL(name, blocks, ...) \
	HZ_KERNEL(name, hzi_quantize_microscaling, (HZI_MICROSCALING_THREADS, blocks), \
		  __VA_ARGS__(p))
KERNEL(quantize_microscaling_f32, HZI_MICROSCALING_BLOCKS, quantize<HZ_F32, false>)
KERNEL(quantize_microscaling_f16, HZI_MICROSCALING_BLOCKS, quantize<HZ_F16, false>)
KERNEL(quantize_microscaling_bf16, HZI_MICROSCALING_BLOCKS, quantize<HZ_BF16, false>)
KERNEL(quantize_microscaling_rotated_f16, HZI_MICROSCALING_ROTATED_BLOCKS, quantize<HZ_F16, true>)
KERNEL(quantize_microscaling_rotated_bf16, HZI_MICROSCALING_ROTATED_BLOCKS, quantize<HZ_BF16, true>)
KERNEL(dequantize_groups_f32, 5, dequantize<HZ_F32>)
KERNEL(dequantize_groups_f16, 4, dequantize<HZ_F16>)
KERNEL(dequantize_groups_bf16, 4, dequantize<HZ_BF16>)
KERNEL(dequantize_microscaling_rotated_f16, 3, dequantize_rotated<HZ_F16>)
KERNEL(dequantize_microscaling_rotated_bf16, 3, dequantize_rotated<HZ_BF16>)
