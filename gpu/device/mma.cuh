/*
 * mma.cuh - matrix products of a warp on tensor cores (mma.sync), their operands
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each adds A B to c. With g = lane / 4 and t = lane % 4 a lane holds c of rows g, g + 8 and
 * columns 2 t, 2 t + 1: c[0], c[1] of the first row, c[2], c[3] of the other.
 */
#ifndef HZI_DEVICE_MMA_CUH
#define HZI_DEVICE_MMA_CUH

#include "gpu/device/base.cuh"

#define HZ_MMA(instruction, kind) \
	asm("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
	    "{%0, %1, %2, %3};" \
	    : "+" kind(c[0]), "+" kind(c[1]), "+" kind(c[2]), "+" kind(c[3]) \
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))

/* 16 x 16 by 16 x 8 of HZ_F16 or HZ_BF16 */
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

/* 16 x 8 by 8 x 8 of HZ_F16 or HZ_BF16 */
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

/* 16 x 8 by 8 x 8 of tf32: the 11 leading bits of f32 */
HZ_DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	const uint32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];

	HZ_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "f");
}

/* 16 x 32 by 32 x 8 of u8 or s8 */
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

/* 16 x 256 by 256 x 8 bits: how many pairs are both 1 */
HZ_DEVICE void mma_m16n8k256_and(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
				 uint32_t b0, uint32_t b1)
{
	HZ_MMA("m16n8k256.row.col.s32.b1.b1.s32.and.popc", "r");
}

/* ---- 8 x 8 matrices of 16 bits, from and to shared memory ----------------------------------- */

/* Four of them; lane 8 i + r has the address of row r of matrix i. */
HZ_DEVICE void ldmatrix_x4(uint32_t *r, uint32_t from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

/* The same transposed; and of two */
HZ_DEVICE void ldmatrix_x4_trans(uint32_t *r, uint32_t from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

HZ_DEVICE void ldmatrix_x2_trans(uint32_t *r, uint32_t from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
		     : "=r"(r[0]), "=r"(r[1]) : "r"(from) : "memory");
}

#if __CUDA_ARCH__ >= 900
HZ_DEVICE void stmatrix_x4(uint32_t to, const uint32_t *r)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
		     :: "r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
#endif

#endif
