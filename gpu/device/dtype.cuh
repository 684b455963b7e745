/*
 * dtype.cuh - conversions between number formats, arithmetic on packed pairs of 16-bit floats
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_DTYPE_CUH
#define HZI_DEVICE_DTYPE_CUH

#include "gpu/device/base.cuh"

HZ_DEVICE float f16_low(uint32_t pair)
{
	return HZ_ASM_F32("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}", "r"(pair));
}

HZ_DEVICE float f16_high(uint32_t pair)
{
	return HZ_ASM_F32("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}", "r"(pair));
}

HZ_DEVICE float bf16_low(uint32_t pair)
{
	return __uint_as_float(pair << 16);
}

HZ_DEVICE float bf16_high(uint32_t pair)
{
	return __uint_as_float(pair & 0xffff0000);
}

HZ_DEVICE uint32_t to_f16x2(float low, float high)
{
	return HZ_ASM_U32("cvt.rn.f16x2.f32 %0, %1, %2;", "f"(high), "f"(low));
}

HZ_DEVICE uint32_t to_bf16x2(float low, float high)
{
	return HZ_ASM_U32("cvt.rn.bf16x2.f32 %0, %1, %2;", "f"(high), "f"(low));
}

/*
 * The sign of x and the 8-bit float nearest to |x|: mbits of mantissa, least exponent emin,
 * saturated to the code `largest`. NaN becomes 0x7f.
 */
HZ_DEVICE uint32_t fp8_encode(float x, int mbits, int emin, uint32_t largest)
{
	const uint32_t u = __float_as_uint(x) & 0x7fffffff, shift = 23 - mbits;
	uint32_t code;

	if (u > 0x7f800000)
		return 0x7f;
	if (u < (uint32_t)(emin + 127) << 23)
		code = (uint32_t)__float2int_rn(
			__uint_as_float(u) * __uint_as_float((uint32_t)(127 - emin + mbits) << 23));
	else
		code = ((u + (1u << (shift - 1)) - 1 + (u >> shift & 1)) >> shift) -
		       ((uint32_t)(emin + 126) << mbits);
	return (code > largest ? largest : code) | (__float_as_uint(x) >> 24 & 0x80);
}

#if __CUDA_ARCH__ >= 890
HZ_DEVICE uint32_t to_e4m3x2(float low, float high)
{
	return HZ_ASM_U16("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", "f"(high), "f"(low));
}

HZ_DEVICE uint32_t to_e5m2x2(float low, float high)
{
	return HZ_ASM_U16("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", "f"(high), "f"(low));
}
#else
HZ_DEVICE uint32_t to_e4m3x2(float low, float high)
{
	return fp8_encode(low, 3, -6, 0x7e) | fp8_encode(high, 3, -6, 0x7e) << 8;
}

HZ_DEVICE uint32_t to_e5m2x2(float low, float high)
{
	return fp8_encode(low, 2, -14, 0x7b) | fp8_encode(high, 2, -14, 0x7b) << 8;
}
#endif

/* e5m2 has the layout of the upper byte of f16. */
HZ_DEVICE float from_e5m2(uint32_t code)
{
	return f16_low((code & 0xff) << 8);
}

/*
 * The exponent and mantissa of e4m3, shifted to those of f16, give the value times 2^-8. NaN is the
 * one code 0x7f and needs a test.
 */
HZ_DEVICE float from_e4m3(uint32_t code)
{
	const float f = f16_low((code & 0x7f) << 7 | (code & 0x80) << 8) * 256.0f;

	return (code & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : f;
}

/*
 * A signed byte or nibble: its bits with the sign flipped, as mantissa of a float in [2^23, 2^24),
 * minus the offset
 */
HZ_DEVICE float from_s8(uint32_t code)
{
	return __uint_as_float(0x4b000000 | ((code & 0xff) ^ 0x80)) - 8388736.0f;
}

HZ_DEVICE float from_s4(uint32_t code)
{
	return __uint_as_float(0x4b000000 | ((code & 0xf) ^ 8)) - 8388616.0f;
}

HZ_DEVICE float from_e8m0(uint32_t code)
{
	return __uint_as_float(code == 255 ? 0x7fffffff : code ? code << 23 : 1 << 22);
}

/* Element i of an array of the given dtype; of s4x2, nibble i */
HZ_DEVICE float load_any(int dtype, const void *p, int64_t i)
{
	switch (dtype) {
	case HZ_F32:
		return ((const float *)p)[i];
	case HZ_F16:
		return f16_low(((const uint16_t *)p)[i]);
	case HZ_BF16:
		return bf16_low(((const uint16_t *)p)[i]);
	case HZ_S8:
		return from_s8(((const uint8_t *)p)[i]);
	case HZ_S4X2:
		return from_s4(((const uint8_t *)p)[i >> 1] >> ((i & 1) << 2));
	case HZ_E4M3:
		return from_e4m3(((const uint8_t *)p)[i]);
	case HZ_E5M2:
		return from_e5m2(((const uint8_t *)p)[i]);
	default:
		return from_e8m0(((const uint8_t *)p)[i]);
	}
}

/* The same of f32, f16 or bf16: less code, for kernels with many loads */
HZ_DEVICE float load_float(int dtype, const void *p, int64_t i)
{
	if (dtype == HZ_F32)
		return ((const float *)p)[i];

	const uint16_t bits = ((const uint16_t *)p)[i];

	return dtype == HZ_F16 ? f16_low(bits) : bf16_low(bits);
}

HZ_DEVICE void store_any(int dtype, void *p, int64_t i, float f)
{
	if (dtype == HZ_F32)
		((float *)p)[i] = f;
	else
		((uint16_t *)p)[i] = (uint16_t)(dtype == HZ_F16 ? to_f16x2(f, 0) : to_bf16x2(f, 0));
}

/* Calls f with the dtype, one of the list, as a constant: a test for each element costs more. */
template <int FIRST, int... OTHERS, typename F>
HZ_DEVICE void with_one_of(int dtype, F f)
{
	if constexpr (sizeof...(OTHERS) == 0) {
		f(std_int<FIRST>());
	} else {
		if (dtype == FIRST)
			f(std_int<FIRST>());
		else
			with_one_of<OTHERS...>(dtype, f);
	}
}

template <typename F>
HZ_DEVICE void with_dtype(int dtype, F f)
{
	with_one_of<HZ_F32, HZ_F16, HZ_BF16>(dtype, f);
}

template <typename F>
HZ_DEVICE void with_code_dtype(int dtype, F f)
{
	with_one_of<HZ_S8, HZ_S4X2, HZ_E4M3, HZ_E5M2>(dtype, f);
}

HZ_DEVICE float round_to(int dtype, float f)
{
	if (dtype == HZ_F16)
		return f16_low(to_f16x2(f, 0));
	return dtype == HZ_BF16 ? bf16_low(to_bf16x2(f, 0)) : f;
}

/* Maximum; NaN if either operand is NaN */
HZ_DEVICE float max_nan(float a, float b)
{
	return HZ_ASM_F32("max.NaN.f32 %0, %1, %2;", "f"(a), "f"(b));
}

/* ---- Pairs of 16-bit floats ------------------------------------------------------------------ */

HZ_DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b)
{
	return HZ_ASM_U32("add.rn.f16x2 %0, %1, %2;", "r"(a), "r"(b));
}

HZ_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
	return HZ_ASM_U32("mul.rn.f16x2 %0, %1, %2;", "r"(a), "r"(b));
}

/* Compute capability 9.0 or later */
HZ_DEVICE uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
	return HZ_ASM_U32("mul.rn.bf16x2 %0, %1, %2;", "r"(a), "r"(b));
}

/* a b + c; subnormals are kept */
HZ_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
	return HZ_ASM_U32("fma.rn.f16x2 %0, %1, %2, %3;", "r"(a), "r"(b), "r"(c));
}

HZ_DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
	return HZ_ASM_U32("fma.rn.bf16x2 %0, %1, %2, %3;", "r"(a), "r"(b), "r"(c));
}

/* Minimum and maximum of both halves; the other operand if one is NaN. DTYPE: HZ_F16, HZ_BF16 */
template <int DTYPE>
HZ_DEVICE uint32_t min_x2(uint32_t a, uint32_t b)
{
	if (DTYPE == HZ_F16)
		return HZ_ASM_U32("min.f16x2 %0, %1, %2;", "r"(a), "r"(b));
	return HZ_ASM_U32("min.bf16x2 %0, %1, %2;", "r"(a), "r"(b));
}

template <int DTYPE>
HZ_DEVICE uint32_t max_x2(uint32_t a, uint32_t b)
{
	if (DTYPE == HZ_F16)
		return HZ_ASM_U32("max.f16x2 %0, %1, %2;", "r"(a), "r"(b));
	return HZ_ASM_U32("max.bf16x2 %0, %1, %2;", "r"(a), "r"(b));
}

/* Maximum of the magnitudes in both halves, with any sign; NaN if either operand is NaN */
template <int DTYPE>
HZ_DEVICE uint32_t max_abs_x2(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 860
	if (DTYPE == HZ_F16)
		return HZ_ASM_U32("max.NaN.xorsign.abs.f16x2 %0, %1, %2;", "r"(a), "r"(b));
	return HZ_ASM_U32("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;", "r"(a), "r"(b));
#else
	a &= 0x7fff7fff;
	b &= 0x7fff7fff;
	if (DTYPE == HZ_F16)
		return HZ_ASM_U32("max.NaN.f16x2 %0, %1, %2;", "r"(a), "r"(b));
	return HZ_ASM_U32("max.NaN.bf16x2 %0, %1, %2;", "r"(a), "r"(b));
#endif
}

#endif
