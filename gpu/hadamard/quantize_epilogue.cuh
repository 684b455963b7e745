/*
 * quantize_epilogue.cuh - sums of rows to codes, with scales and zeros that are given
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_QUANTIZE_EPILOGUE_CUH
#define HZI_GPU_HADAMARD_QUANTIZE_EPILOGUE_CUH

#include "gpu/hadamard/contiguous.cuh"
#include "gpu/hadamard/quantize_static.h"

/* ---- Codes ----------------------------------------------------------------------------------- */

/*
 * 1.5 2^23 + 2^14: the sum with it has no bits behind the point, and the lower half of its bits is
 * the integer and 2^14, which neither carries nor borrows when a zero is added.
 */
#define TO_INTEGER 12599296.0f

struct parameter {
	float s;
	int32_t zero;
};

/* The one of the piece with element e */
HZ_DEVICE parameter parameter_of(const hzi_hadamard_static &p, int64_t e)
{
	const uint32_t piece = (uint32_t)(e >> 3);
	const int64_t i =
		p.group.divisor ? (__umulhi(piece, p.group.magic) + piece) >> p.group.shift : 0;

	if (!p.scales)
		return {p.scale, p.zero};
	return {p.scales[i], !p.zeros ? 0 : p.is_signed ? (int8_t)p.zeros[i] : p.zeros[i]};
}

/*
 * What sums become codes by: r is factor / s and d s / factor. To plain in magnitude all are in the
 * codes' range, to limit nothing over- or underflows on the way and products are below 2^20; those
 * beyond, and NaN, go one by one.
 */
struct coder {
	float r, d, plain, limit;
	int32_t zero;
};

static_assert(sizeof(coder) <= 2 * HZI_STATIC_WARP_BYTES, "what the launcher asks for");

HZ_DEVICE coder coder_of(const hzi_hadamard_static &p, const parameter &q, float factor)
{
	const int32_t least = p.is_signed ? -128 : 0;
	const float inside = (float)min(least + 255 - q.zero, q.zero - least) + 0.25f;
	coder c = {__fmul_rn(__frcp_rn(q.s), factor), __fmul_rn(q.s, __frcp_rn(factor)), -1, -1,
		   q.zero};

	if (fabsf(q.s) >= 0x1p-60f && fabsf(q.s) <= 0x1p60f) {
		const float one = __fdividef(1, fabsf(c.r));

		c.plain = one * inside;
		c.limit = one * 0x1p20f;
	}
	return c;
}

/* The codes of N = 2 or 4 J sums with TO_INTEGER, none of which saturates */
template <int N>
HZ_DEVICE void pack_plain(uint32_t *w, const float *v, int32_t zero)
{
	const uint32_t both = (uint32_t)zero * 0x10001;

	auto pair = [&](int i) {
		return __byte_perm(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), 0x5410) + both;
	};

#pragma unroll
	for (int i = 0; i < N; i += 4)
		w[i / 4] = __byte_perm(pair(i), N > 2 ? pair((i + 2) % N) : 0, 0x6420);
}

/* The same of integers, by saturation */
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

/* Any sums, by divisions; e: an element that has their parameter */
template <int N>
HZ_DEVICE void codes_by_division(uint32_t *w, const float *v, const hzi_hadamard_static &p,
				 int64_t e, float factor)
{
	const parameter q = parameter_of(p, e);
	int32_t code[N];

#pragma unroll
	for (int i = 0; i < N; i++) {
		const float t = __fdiv_rn(__fmul_rn(v[i], factor), q.s);
		const float cut = fminf(fmaxf(isnan(t) ? 0.0f : t, -512.0f), 512.0f);

		code[i] = __float2int_rn(cut) + q.zero;
	}
	pack_saturated<N>(w, code, p.is_signed);
}

/* The codes of sums with TO_INTEGER, the largest of which is most before */
template <int N>
HZ_DEVICE void pack_codes(uint32_t *w, const float *v, const coder &c, float most, int is_signed)
{
	const int32_t base = c.zero - __float_as_int(TO_INTEGER);
	int32_t code[N];

	if (most <= c.plain) {
		pack_plain<N>(w, v, c.zero);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		code[i] = __float_as_int(v[i]) + base;
	pack_saturated<N>(w, code, is_signed);
}

/*
 * N sums of 16-bit rows to codes, any t within the bounds: a value and its quotient are never made,
 * as v r is no less exact.
 */
template <int N>
HZ_DEVICE void codes_near(uint32_t *w, float *v, const coder &c, const hzi_hadamard_static &p,
			  int64_t e)
{
	const float most = largest_of<N>(v);

	if (!(most <= c.limit)) {
		codes_by_division<N>(w, v, p, e, p.f.factor);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = __fmaf_rn(v[i], c.r, TO_INTEGER);
	pack_codes<N>(w, v, c, most, p.is_signed);
}

/*
 * The same codes as by divisions, if factor is a power of two: q + (v - q d) / d with q = v (1 / d)
 * is the quotient as long as nothing under- or overflows on the way; a tiny one may be off, and is
 * 0 all the same.
 */
template <int N>
HZ_DEVICE void codes_exact(uint32_t *w, float *v, const coder &c, const hzi_hadamard_static &p,
			   int64_t e, float factor)
{
	const float most = largest_of<N>(v);

	if (!(most <= c.limit)) {
		codes_by_division<N>(w, v, p, e, factor);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++) {
		const float q = __fmul_rn(v[i], c.r);

		v[i] = __fadd_rn(__fmaf_rn(__fmaf_rn(-q, c.d, v[i]), c.r, q), TO_INTEGER);
	}
	pack_codes<N>(w, v, c, most, p.is_signed);
}

#endif
