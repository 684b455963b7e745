/*
 * microscaling.cuh - scales of groups and codes of float formats, in fewer instructions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_MICROSCALING_CUH
#define HZI_GPU_QUANTIZE_MICROSCALING_CUH

#include "gpu/device/dtype.cuh"
#include "lib/quantize/format.h"

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

/*
 * hzi_scale_of() by q_dtype, scale_dtype and rule of p. Of e8m0: exponents and, for amax from 2^-100
 * on, a carry of the mantissa, for amax / F > 2^k exactly where fl(amax / F) is; F is 1.5 or 1.75
 * times a power.
 */
template <typename PARAMS>
HZ_DEVICE hzi_scale scale_of(uint32_t amax, const PARAMS &p, const hzi_tensor_factor &tensor)
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
		s.factor = hzi_f32_inverse(
			__fmul_rn(f16_low(fp8_to_f16x2<HZ_E4M3>(s.bits)), tensor.p));
		return s;
	}
	return hzi_scale_of(amax, p.q_dtype, p.rule, tensor);
}

/*
 * N = 4 or 8 codes of e2m1, the first in the low bits; NaN becomes 0. The code is the rounded sum of
 * three ramps: 4 (|t| / 2) + 2 (|t| / 2 - 1) + (|t| / 2 - 2), each limited to 0 .. 1 before it is
 * multiplied. All but one of them are 0 or 1, so that one addition rounds, at 2^23 to an integer.
 */
template <int N>
HZ_DEVICE uint32_t encode_e2m1(const float *t)
{
	uint32_t word[2] = {}, signs = 0;

#pragma unroll
	for (int i = 0; i < N; i += 4) {
		uint32_t c[4];

#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float a = fabsf(t[i + e]);
			float sum = __fmaf_rn(__saturatef(__fmul_rn(a, 0.5f)), 4.0f, 0x1p23f);

			sum = __fmaf_rn(__saturatef(__fmaf_rn(a, 0.5f, -1.0f)), 2.0f, sum);
			sum = __fadd_rn(sum, __saturatef(__fmaf_rn(a, 0.5f, -2.0f)));
			c[e] = __float_as_uint(sum);
		}
		/* Bits 0 to 15; the multiplier does what shifts would. */
		asm("mad.lo.u32 %0, %1, 16, %2;" : "=r"(word[i / 4]) : "r"(c[1]), "r"(c[0]));
		asm("mad.lo.u32 %0, %1, 256, %0;" : "+r"(word[i / 4]) : "r"(c[2]));
		asm("mad.lo.u32 %0, %1, 4096, %0;" : "+r"(word[i / 4]) : "r"(c[3]));
	}
	/* The signs of even elements are bits 7 of bytes, to be bits 3; of odd ones as they are. */
	auto top_bytes = [&](int first) {
		const uint32_t low = __byte_perm(__float_as_uint(t[first]),
						 __float_as_uint(t[first + 2]), 0x73);

		return N == 4 ? low :
		       __byte_perm(low, __byte_perm(__float_as_uint(t[(first + 4) % N]),
						    __float_as_uint(t[(first + 6) % N]), 0x73),
				   0x5410);
	};

	signs = (top_bytes(0) >> 4 & 0x08080808) | (top_bytes(1) & 0x80808080);
	return N == 4 ? (word[0] & 0xffff) | (signs & 0xffff)
		      : __byte_perm(word[0], word[1], 0x5410) | signs;
}

template <int FORMAT>
HZ_DEVICE uint32_t encode_fp8x4(const float *t)
{
	const uint32_t low = FORMAT == HZ_E4M3 ? to_e4m3x2(t[0], t[1]) : to_e5m2x2(t[0], t[1]);
	const uint32_t high = FORMAT == HZ_E4M3 ? to_e4m3x2(t[2], t[3]) : to_e5m2x2(t[2], t[3]);

	return __byte_perm(low, high, 0x5410);
}

/* Four codes of e2m1 as the upper bytes of f16, whose lower bytes are 0 */
HZ_DEVICE uint32_t upper_bytes(uint32_t codes)
{
	const uint32_t magnitude = __byte_perm(0x3e3c3800, 0x46444240, codes & 0x7777);
	/* A selector with bit 3 set gives copies of the top bit, 0xff, else the byte, 0x80. */
	const uint32_t minus = HZ_ASM_U32("prmt.b32 %0, %1, %1, %2;", "r"(0x80808080), "r"(codes));

	return magnitude | (minus << 7 & 0x80808080);
}

#endif
