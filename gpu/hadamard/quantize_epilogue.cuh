/*
 * quantize_epilogue.cuh - results of transforms to 8-bit codes, with static scales
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * v is a result of a transform before the multiplication by factor: t = v factor. Its code is
 * rne(t / s) + zero point, saturated.
 */
#ifndef HZI_GPU_HADAMARD_QUANTIZE_EPILOGUE_CUH
#define HZI_GPU_HADAMARD_QUANTIZE_EPILOGUE_CUH

#include "gpu/hadamard/contiguous.cuh"
#include "gpu/hadamard/quantize.h"

/*
 * 1.5 2^23 + 2^14: adding it rounds a float to an integer. The lower half of the sum's bits is the
 * integer plus 2^14, so that adding a zero point there neither carries nor borrows.
 */
#define TO_INTEGER 12599296.0f

struct quant_param {
	float scale;
	int32_t zero_point;
};

/* Of the group of element e */
HZ_DEVICE quant_param param_of(const hzi_hadamard_quantize &p, int64_t e)
{
	const uint32_t piece = (uint32_t)(e >> 3);
	const int64_t i =
		p.group.divisor ? (__umulhi(piece, p.group.magic) + piece) >> p.group.shift : 0;

	if (!p.scales)
		return {p.scale, p.zero_point};
	return {((const float *)p.scales)[i],
		!p.zero_points ? 0 : p.is_signed ? (int8_t)p.zero_points[i] : p.zero_points[i]};
}

/*
 * r is factor / s and d is s / factor. Values of a magnitude up to `in_range` need no saturation.
 * Up to `limit` no intermediate result over- or underflows and products stay below 2^20; values
 * beyond that, and NaN, are divided one by one.
 */
struct encoder {
	float r, d, in_range, limit;
	int32_t zero_point;
};

static_assert(sizeof(encoder) <= 2 * HZI_STATIC_WARP_BYTES, "such rows have two warps or more");

HZ_DEVICE encoder encoder_of(const hzi_hadamard_quantize &p, const quant_param &q, float factor)
{
	const int32_t least = p.is_signed ? -128 : 0;
	const float codes =
		(float)min(least + 255 - q.zero_point, q.zero_point - least) + 0.25f;
	encoder c = {__fmul_rn(__frcp_rn(q.scale), factor), __fmul_rn(q.scale, __frcp_rn(factor)),
		     -1, -1, q.zero_point};

	if (fabsf(q.scale) >= 0x1p-60f && fabsf(q.scale) <= 0x1p60f) {
		const float one = __fdividef(1, fabsf(c.r));

		c.in_range = one * codes;
		c.limit = one * 0x1p20f;
	}
	return c;
}

/* The codes of N = 2 or 4 J values plus TO_INTEGER, none of which saturates */
template <int N>
HZ_DEVICE void pack_in_range(uint32_t *w, const float *v, int32_t zero_point)
{
	const uint32_t both = (uint32_t)zero_point * 0x10001;

	auto pair = [&](int i) {
		return __byte_perm(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), 0x5410) + both;
	};

#pragma unroll
	for (int i = 0; i < N; i += 4)
		w[i / 4] = __byte_perm(pair(i), N > 2 ? pair((i + 2) % N) : 0, 0x6420);
}

/* The codes of N integers, saturated */
template <int N>
HZ_DEVICE void pack_saturated(uint32_t *w, const int32_t *v, int is_signed)
{
#pragma unroll
	for (int i = 0; i < N; i += 4) {
		const int32_t a = v[i], b = v[i + 1];
		const int32_t c = N > 2 ? v[(i + 2) % N] : 0, d = N > 2 ? v[(i + 3) % N] : 0;
		uint32_t high;

		if (is_signed) {
			asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
			    : "=r"(high) : "r"(d), "r"(c), "r"(0));
			asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
			    : "=r"(w[i / 4]) : "r"(b), "r"(a), "r"(high));
		} else {
			asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
			    : "=r"(high) : "r"(d), "r"(c), "r"(0));
			asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
			    : "=r"(w[i / 4]) : "r"(b), "r"(a), "r"(high));
		}
	}
}

/* The codes of any N values, by division. e: an element of their group */
template <int N>
HZ_DEVICE void encode_by_division(uint32_t *w, const float *v, const hzi_hadamard_quantize &p,
				  int64_t e, float factor)
{
	const quant_param q = param_of(p, e);
	int32_t code[N];

#pragma unroll
	for (int i = 0; i < N; i++) {
		const float t = __fdiv_rn(__fmul_rn(v[i], factor), q.scale);
		const float clamped = fminf(fmaxf(isnan(t) ? 0.0f : t, -512.0f), 512.0f);

		code[i] = __float2int_rn(clamped) + q.zero_point;
	}
	pack_saturated<N>(w, code, p.is_signed);
}

/* The codes of N values plus TO_INTEGER; most: the largest of the values */
template <int N>
HZ_DEVICE void pack_static(uint32_t *w, const float *v, const encoder &c, float most, int is_signed)
{
	const int32_t base = c.zero_point - __float_as_int(TO_INTEGER);
	int32_t code[N];

	if (most <= c.in_range) {
		pack_in_range<N>(w, v, c.zero_point);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		code[i] = __float_as_int(v[i]) + base;
	pack_saturated<N>(w, code, is_signed);
}

/*
 * The codes of N values of one group; e: an element of it. Without EXACT, for 16-bit x, the
 * quotient is v r, whose rounding errors are no larger than those of t and t / s. With EXACT, for
 * f32 and a factor that is a power of two, it equals the quotient of a division: q + (v - q d) / d
 * with q = v (1 / d). A tiny quotient may differ, and its code is 0 all the same.
 */
template <int N, bool EXACT = false>
HZ_DEVICE void encode_static(uint32_t *w, float *v, const encoder &c,
			     const hzi_hadamard_quantize &p, int64_t e, float factor)
{
	const float most = max_abs<N>(v);

	if (!(most <= c.limit)) {
		encode_by_division<N>(w, v, p, e, factor);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++) {
		if (EXACT) {
			const float q = __fmul_rn(v[i], c.r);

			v[i] = __fadd_rn(__fmaf_rn(__fmaf_rn(-q, c.d, v[i]), c.r, q), TO_INTEGER);
		} else {
			v[i] = __fmaf_rn(v[i], c.r, TO_INTEGER);
		}
	}
	pack_static<N>(w, v, c, most, p.is_signed);
}

#endif
