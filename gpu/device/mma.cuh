/*
 * mma.cuh - tensor core products of one warp (mma.sync), and loads of their operands (ldmatrix)
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each function computes c += A B. With g = lane / 4 and t = lane % 4, c[0] and c[1] of a lane are
 * row g, columns 2 t and 2 t + 1; c[2] and c[3] are the same columns of row g + 8.
 */
#ifndef HZI_DEVICE_MMA_CUH
#define HZI_DEVICE_MMA_CUH

#include "gpu/device/base.cuh"

#define HZ_MMA(instruction, kind) \
	asm("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
	    "{%0, %1, %2, %3};" \
	    : "+" kind(c[0]), "+" kind(c[1]), "+" kind(c[2]), "+" kind(c[3]) \
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))

/* A 16 x 16, B 16 x 8; HZ_F16 or HZ_BF16 */
template <int DTYPE>
HZ_DEVICE void mma_m16n8k16(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
			    uint32_t b0, uint32_t b1)
{
	static_assert(DTYPE == HZ_F16 || DTYPE == HZ_BF16, "a type of 16 bits");
	if constexpr (DTYPE == HZ_BF16)
		HZ_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
	else
		HZ_MMA("m16n8k16.row.col.f32.f16.f16.f32", "f");
}

template <int DTYPE>
HZ_DEVICE void mma_m16n8k16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	mma_m16n8k16<DTYPE>(c, a[0], a[1], a[2], a[3], b0, b1);
}

/* A 16 x 8, B 8 x 8; HZ_F16 or HZ_BF16 */
template <int DTYPE>
HZ_DEVICE void mma_m16n8k8(float *c, uint32_t a0, uint32_t a1, uint32_t b)
{
	static_assert(DTYPE == HZ_F16 || DTYPE == HZ_BF16, "a type of 16 bits");
	if constexpr (DTYPE == HZ_BF16)
		asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
		    "{%4, %5}, {%6}, {%0, %1, %2, %3};"
		    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b));
	else
		asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
		    "{%4, %5}, {%6}, {%0, %1, %2, %3};"
		    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b));
}

/* A 16 x 8, B 8 x 8; tf32, which reads the sign, exponent and upper 10 bits of mantissa of f32 */
HZ_DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	const uint32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];

	HZ_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "f");
}

/* A 16 x 32, B 32 x 8; u8 or s8 */
template <bool A_SIGNED, bool B_SIGNED>
HZ_DEVICE void mma_m16n8k32(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
			    uint32_t b0, uint32_t b1)
{
	if constexpr (A_SIGNED && B_SIGNED)
		HZ_MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
	else if constexpr (A_SIGNED)
		HZ_MMA("m16n8k32.row.col.s32.s8.u8.s32", "r");
	else if constexpr (B_SIGNED)
		HZ_MMA("m16n8k32.row.col.s32.u8.s8.s32", "r");
	else
		HZ_MMA("m16n8k32.row.col.s32.u8.u8.s32", "r");
}

template <bool A_SIGNED, bool B_SIGNED>
HZ_DEVICE void mma_m16n8k32(int32_t *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	mma_m16n8k32<A_SIGNED, B_SIGNED>(c, a[0], a[1], a[2], a[3], b0, b1);
}

/* A 16 x 16, B 16 x 8; u8 or s8, and s8 */
template <bool A_SIGNED, bool B_SIGNED>
HZ_DEVICE void mma_m16n8k16(int32_t *c, uint32_t a0, uint32_t a1, uint32_t b)
{
	static_assert(!A_SIGNED && B_SIGNED, "not made");
	asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
	    "{%0, %1, %2, %3};"
	    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
}

/* A 16 x 256, B 256 x 8; single bits. c counts the pairs that are both 1. */
HZ_DEVICE void mma_m16n8k256_and(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
				 uint32_t b0, uint32_t b1)
{
	HZ_MMA("m16n8k256.row.col.s32.b1.b1.s32.and.popc", "r");
}

/* ---- 8 x 8 matrices of 16-bit elements in shared memory -------------------------------------- */

/* Loads four matrices; lane 8 i + r has the address of row r of matrix i. */
HZ_DEVICE void ldmatrix_x4(uint32_t *r, uint32_t src)
{
	HZ_LOAD_SHARED_4("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "r", r, src);
}

/* The same, transposed; four or two matrices */
HZ_DEVICE void ldmatrix_x4_trans(uint32_t *r, uint32_t src)
{
	HZ_LOAD_SHARED_4("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "r", r, src);
}

HZ_DEVICE void ldmatrix_x2_trans(uint32_t *r, uint32_t src)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
		     : "=r"(r[0]), "=r"(r[1]) : "r"(src) : "memory");
}

#if __CUDA_ARCH__ >= 900
HZ_DEVICE void stmatrix_x4(uint32_t dst, const uint32_t *r)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
		     :: "r"(dst), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* The same, transposed */
HZ_DEVICE void stmatrix_x4_trans(uint32_t dst, const uint32_t *r)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
		     :: "r"(dst), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
#endif

#endif
