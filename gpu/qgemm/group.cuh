/*
 * group.cuh - codes of group-wise quantized weights as operands of tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * 16 columns of W, a panel, are rows of the A operand of mma.m16n8k16 and m16n8k32, or of a warp's
 * share of wgmma. With g = lane / 4 and q = lane % 4 a lane has columns g and g + 8, and of each 16
 * successive k those of floats in their natural order: 2 q, 2 q + 1, 2 q + 8 and 2 q + 9. Integers
 * take the same k, in the order 2 q, 2 q + 8, 2 q + 1, 2 q + 9, in which the copy of x has its
 * codes of each 16. A lane's words of a step of 32 of k:
 *
 *   4 bits  [column]: byte i has number i of the first 16 in its low half, of the others in its
 *           high half. Two steps are 16 bytes.
 *   8 bits  [first or last 16][column]: four bytes. A step is 16 bytes.
 *
 * Scales and zero points of a group are those of columns 0 8 1 9 2 10 and so on, zero points of 16
 * bits.
 */
#ifndef HZI_GPU_QGEMM_GROUP_CUH
#define HZI_GPU_QGEMM_GROUP_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/qgemm/group.h"

template <int KIND>
constexpr bool group_4_bit = KIND == HZI_GROUP_U4 || KIND == HZI_GROUP_E2M1;

/* Words of a lane: of a step, and of HZI_GROUP_UNIT of k */
template <int KIND>
constexpr int group_step_words = group_4_bit<KIND> ? 2 : 4;

/* (a & MASK) | BITS */
template <uint32_t MASK, uint32_t BITS>
HZ_DEVICE uint32_t group_field(uint32_t a)
{
	uint32_t r;

	asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "n"(MASK), "n"(BITS));
	return r;
}

/* v twice, as 16-bit floats */
template <int DTYPE>
HZ_DEVICE uint32_t group_pair(float v)
{
	return DTYPE == HZ_F16 ? to_f16x2(v, v) : to_bf16x2(v, v);
}

/* a + b, exact in what follows */
template <int DTYPE>
HZ_DEVICE uint32_t group_add(uint32_t a, uint32_t b)
{
	return DTYPE == HZ_F16 ? add_f16x2(a, b) : fma_bf16x2(a, 0x3f803f80, b);
}

/*
 * Codes as pairs of 16-bit floats, exact. An integer u is or-ed into the mantissa of a power of
 * two, which is then subtracted together with `zero`: 2^10 + u or 2^10 + 16 u in f16, 2^7 + u in
 * bf16, 2^23 + u in f32.
 */
template <int DTYPE, int KIND>
struct group_floats {
	uint32_t less[2];
	float less_f32;

	__device__ __forceinline__ explicit group_floats(int zero)
	{
		const float z = (float)zero;

		less[0] = group_pair<DTYPE>(DTYPE == HZ_F16 ? -1024 - z : -128 - z);
		less[1] = group_pair<DTYPE>(-64 - z);
		less_f32 = -0x1p23f - z;
	}

	/*
	 * v[i] = k 2 q + 8 i and the next one of column g + 8 `half`; words: those of a step
	 */
	__device__ __forceinline__ void decode(uint32_t (&v)[4], const uint32_t *words,
					       int half) const
	{
		const uint32_t w = words[half];

		if constexpr (KIND == HZI_GROUP_E2M1) {
			v[0] = e2m1(w << 12);
			v[1] = e2m1(w << 4);
			v[2] = e2m1(w << 8);
			v[3] = e2m1(w);
		} else if constexpr (KIND == HZI_GROUP_U4 && DTYPE == HZ_F16) {
			const uint32_t above = w >> 8;

			v[0] = add_f16x2(group_field<0x000f000f, 0x64006400>(w), less[0]);
			v[1] = add_f16x2(group_field<0x000f000f, 0x64006400>(above), less[0]);
			v[2] = fma_f16x2(group_field<0x00f000f0, 0x64006400>(w), 0x2c002c00,
					 less[1]);
			v[3] = fma_f16x2(group_field<0x00f000f0, 0x64006400>(above), 0x2c002c00,
					 less[1]);
		} else if constexpr (KIND == HZI_GROUP_U4) {
			const uint32_t shifted[] = {w, w >> 8, w >> 4, w >> 12};

#pragma unroll
			for (int i = 0; i < 4; i++)
				v[i] = group_add<DTYPE>(
					group_field<0x000f000f, 0x43004300>(shifted[i]), less[0]);
		} else {
			eight_bits(v[0], v[1], w);
			eight_bits(v[2], v[3], words[2 + half]);
		}
	}

private:
	/* Nibbles in bits 12 to 15 of both halves */
	__device__ __forceinline__ static uint32_t e2m1(uint32_t t)
	{
		const uint32_t sign = t & 0x80008000;

		/* The lowest bits of an exponent make the value times 2^-14 or 2^-126. */
		if constexpr (DTYPE == HZ_F16)
			return mul_f16x2(sign | (t >> 3 & 0x0e000e00), 0x74007400);
		return fma_bf16x2(sign | (t >> 6 & 0x01c001c0), 0x7e807e80, 0x80008000);
	}

	/* Bytes 0 and 2, and bytes 1 and 3 */
	__device__ __forceinline__ void eight_bits(uint32_t &low, uint32_t &high, uint32_t w) const
	{
		if constexpr (KIND == HZI_GROUP_E4M3) {
			low = e4m3(w, __byte_perm(w, 0, 0x4420));
			high = e4m3(w >> 8, __byte_perm(w, 0, 0x4431));
		} else if constexpr (DTYPE == HZ_F16) {
			low = add_f16x2(__byte_perm(w, 0x64646464, 0x4240), less[0]);
			high = add_f16x2(__byte_perm(w, 0x64646464, 0x4341), less[0]);
		} else {
			low = to_bf16x2(integer<0>(w), integer<2>(w));
			high = to_bf16x2(integer<1>(w), integer<3>(w));
		}
	}

	template <int BYTE>
	__device__ __forceinline__ float integer(uint32_t w) const
	{
		return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7440 + BYTE)) + less_f32;
	}

	/* Bytes 0 and 2 of w, which are bytes 0 and 1 of `bytes` */
	__device__ __forceinline__ static uint32_t e4m3(uint32_t w, uint32_t bytes)
	{
#if __CUDA_ARCH__ >= 890
		uint32_t pair;

		(void)w;
		asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)bytes));
		return DTYPE == HZ_F16 ? pair : to_bf16x2(f16_low(pair), f16_high(pair));
#else
		const float low = from_e4m3(w), high = from_e4m3(w >> 16);

		(void)bytes;
		return DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
#endif
	}
};

/* The A operand of mma.m16n8k32: codes of a step as bytes, those of E2M1 as 2 w + 12 */
template <int KIND>
HZ_DEVICE void group_bytes(uint32_t (&u)[4], const uint32_t *words)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		u[i] = group_4_bit<KIND> ? words[i % 2] >> i / 2 * 4 & 0x0f0f0f0f : words[i];
	if constexpr (KIND == HZI_GROUP_E2M1) {
		/* A magnitude from a table of 8, whose sign bit is 8 */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t m = u[i] & 0x07070707, t = m | m >> 4;
			const uint32_t a = __byte_perm(0x03020100, 0x0c080604,
						       __byte_perm(t, 0, 0x4420));
			const uint32_t minus = (u[i] >> 3 & 0x01010101) * 255;

			u[i] = 0x0c0c0c0c + (a & ~minus) - (a & minus);
		}
	}
}

/* The zero point of column g + 8 `half` from a pair of them */
HZ_DEVICE int32_t group_zero(uint32_t pair, int half)
{
	return half ? (int32_t)pair >> 16 : (int16_t)pair;
}

/*
 * Integer sums begin at a constant whose bits are those of 1.5 * 2^23, so that a sum of less than
 * 2^22 is the float minus that constant. Those of E2M1 are in units of 1/2, and begin at half of
 * it.
 */
template <int KIND>
HZ_DEVICE int32_t group_first_sum(void)
{
	return KIND == HZI_GROUP_E2M1 ? 0x4ac00000 : 0x4b400000;
}

template <int KIND>
HZ_DEVICE float group_sum(int32_t sum)
{
	return __int_as_float(sum) - (KIND == HZI_GROUP_E2M1 ? 0x1.8p22f : 0x1.8p23f);
}

/* ---- x and y --------------------------------------------------------------------------------- */

HZ_DEVICE int64_t group_offset(const hzi_group_gemm &p, const int64_t *stride, int64_t row)
{
	int64_t offset = 0;

#pragma unroll 1
	for (int d = p.ndim - 1; d > 0; d--) {
		offset += row % p.shape[d] * stride[d];
		row /= p.shape[d];
	}
	return offset + row * stride[0];
}

/* The upper 16 bits of v, which are a bf16 of smaller or equal magnitude, or NaN; v the rest */
HZ_DEVICE uint16_t group_take_term(float &v)
{
	const uint32_t bits = __float_as_uint(v) & 0xffff0000;

	if (v != v || (bits & 0x7f800000) == 0x7f800000) {
		const bool nan = v != v;

		v = 0;
		return nan ? 0x7fff : (uint16_t)(bits >> 16);
	}
	v = __fsub_rn(v, __uint_as_float(bits));
	return (uint16_t)(bits >> 16);
}

HZ_DEVICE float group_result(const hzi_group_gemm &p, int64_t j, float v)
{
	if (p.bias)
		v = __fadd_rn(v, p.bias[j]);
	return v < p.low ? p.low : v > p.high ? p.high : v;
}

HZ_DEVICE void group_put(const hzi_group_gemm &p, int64_t row, int64_t j, float v)
{
	if (row >= p.rows || j >= p.l.n)
		return;
	store_any(p.y_dtype, p.y, group_offset(p, p.y_stride, row) + j * p.y_n,
		  group_result(p, j, v));
}

/* Four successive columns; vectorized: they are 8 aligned bytes of y. */
HZ_DEVICE void group_put4(const hzi_group_gemm &p, int64_t row, int64_t j, float4 sums,
			  bool vectorized)
{
	float v[4] = {sums.x, sums.y, sums.z, sums.w};

	if (!vectorized || j + 4 > p.l.n) {
#pragma unroll
		for (int e = 0; e < 4; e++)
			group_put(p, row, j + e, v[e]);
		return;
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		v[e] = group_result(p, j + e, v[e]);
	*(uint2 *)((uint16_t *)p.y + group_offset(p, p.y_stride, row) + j) =
		p.y_dtype == HZ_F16 ? make_uint2(to_f16x2(v[0], v[1]), to_f16x2(v[2], v[3])) :
				      make_uint2(to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]));
}

#endif
