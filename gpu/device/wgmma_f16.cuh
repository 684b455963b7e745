/*
 * wgmma_f16.cuh - wgmma on f16 and bf16 with f32 accumulators: D (64 x N) += A (64 x 16) B (16 x N)
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Operands in shared memory have rows of 128 bytes and the 128-byte swizzle. K-major operands have
 * a row of k for each row of A or column of B, as in wgmma_s8.cuh. MN-major operands have a row of
 * 64 rows of A (A_MN) or columns of B (B_MN) for each k. Accumulator 4 j + 2 h + e of thread t of
 * 128 is row 16 (t / 32) + t % 32 / 4 + 8 h, column 8 j + 2 (t % 4) + e.
 */
#ifndef HZI_DEVICE_WGMMA_F16_CUH
#define HZI_DEVICE_WGMMA_F16_CUH

#include "gpu/device/wgmma_s8.cuh"

/*
 * The descriptor of an MN-major operand: 64 columns by k; the next 64 columns are `bytes` further
 * on.
 */
HZ_DEVICE uint64_t wgmma_desc_mn(uint32_t address, uint32_t bytes)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(bytes >> 4) << 16 | 64ull << 32 |
	       1ull << 62;
}

template <int N>
HZ_DEVICE void wgmma_keep(float (&acc)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(acc[i]) :: "memory");
}

/*
 * Copies accumulators, before wgmma_fence() of the next products into them. The compiler moves
 * other copies behind it, and ptxas then waits for each product.
 */
template <int N>
HZ_DEVICE void wgmma_copy(float (&to)[N], const float (&from)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("mov.b32 %0, %1;" : "=f"(to[i]) : "f"(from[i]));
}

#define HZ_FLOATS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HZ_FLOATS_8(i) HZ_FLOATS_4(i), HZ_FLOATS_4(i + 4)
#define HZ_FLOATS_16(i) HZ_FLOATS_8(i), HZ_FLOATS_8(i + 8)
#define HZ_FLOATS_32(i) HZ_FLOATS_16(i), HZ_FLOATS_16(i + 16)
#define HZ_FLOATS_40(i) HZ_FLOATS_32(i), HZ_FLOATS_8(i + 32)
#define HZ_FLOATS_48(i) HZ_FLOATS_32(i), HZ_FLOATS_16(i + 32)
#define HZ_FLOATS_64(i) HZ_FLOATS_32(i), HZ_FLOATS_32(i + 32)
#define HZ_FLOATS_68(i) HZ_FLOATS_64(i), HZ_FLOATS_4(i + 64)
#define HZ_FLOATS_80(i) HZ_FLOATS_64(i), HZ_FLOATS_16(i + 64)
#define HZ_FLOATS_96(i) HZ_FLOATS_64(i), HZ_FLOATS_32(i + 64)
#define HZ_FLOATS_128(i) HZ_FLOATS_64(i), HZ_FLOATS_64(i + 64)

#define HZ_WGMMA_F16(columns, count, type, major, o0, o1, o2) \
	HZ_WGMMA_ASM("m64n" columns "k16.f32." type "." type, count, HZ_FLOATS_##count, o0, o1, \
		     o2, ", 1, 1, " major, "l"(a), "l"(b), "r"(add))
#define HZ_WGMMA_F16_IF(columns, count, o0, o1, o2, ...) \
	if constexpr (N == count && DTYPE == HZ_BF16 && A_MN) \
		HZ_WGMMA_F16(columns, count, "bf16", "1, 1", o0, o1, o2); \
	else if constexpr (N == count && DTYPE == HZ_BF16 && B_MN) \
		HZ_WGMMA_F16(columns, count, "bf16", "0, 1", o0, o1, o2); \
	else if constexpr (N == count && DTYPE == HZ_BF16) \
		HZ_WGMMA_F16(columns, count, "bf16", "0, 0", o0, o1, o2); \
	else if constexpr (N == count && A_MN) \
		HZ_WGMMA_F16(columns, count, "f16", "1, 1", o0, o1, o2); \
	else if constexpr (N == count && B_MN) \
		HZ_WGMMA_F16(columns, count, "f16", "0, 1", o0, o1, o2); \
	else if constexpr (N == count) \
		HZ_WGMMA_F16(columns, count, "f16", "0, 0", o0, o1, o2);

/* N accumulators of a thread: 2 N columns. add = 0: D = A B. DTYPE is that of A and B. */
template <bool B_MN, bool A_MN = false, int DTYPE = HZ_F16, int N>
HZ_DEVICE void wgmma(float (&d)[N], uint64_t a, uint64_t b, int add)
{
	static_assert(B_MN || !A_MN, "not made");
	HZ_WGMMA_WIDTHS(HZ_WGMMA_F16_IF)
}

#define HZ_WGMMA_F16_RS(columns, count, major, o0, o1, o2, o3, o4) \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 " \
		     "{" HZ_ACC_##count "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 \
		     ", 1, 1, 1, " major ";" \
		     : HZ_FLOATS_##count(0) : HZ_WGMMA_A_REGS, "l"(b))
#define HZ_WGMMA_F16_RS_IF(columns, count, o0, o1, o2, o3, o4, o5) \
	if constexpr (N == count && B_MN) \
		HZ_WGMMA_F16_RS(columns, count, "1", o0, o1, o2, o3, o4); \
	else if constexpr (N == count) \
		HZ_WGMMA_F16_RS(columns, count, "0", o0, o1, o2, o3, o4);

/* D += A B of f16 with A in four registers of a thread; see wgmma_rs() of wgmma_s8.cuh. */
template <bool B_MN, int N>
HZ_DEVICE void wgmma_rs(float (&d)[N], const uint32_t *a, uint64_t b)
{
	HZ_WGMMA_WIDTHS(HZ_WGMMA_F16_RS_IF)
}

#define HZ_WGMMA_F16_RS_ADD(columns, count, type, major, o0, o1, o2, o3, o4, o5) \
	HZ_WGMMA_ASM("m64n" columns "k16.f32." type "." type, count, HZ_FLOATS_##count, \
		     "{" o0 ", " o1 ", " o2 ", " o3 "}", o4, o5, ", 1, 1, " major, \
		     HZ_WGMMA_A_REGS, "l"(b), "r"(add))
#define HZ_WGMMA_F16_RS_ADD_IF(columns, count, ...) \
	if constexpr (N == count && DTYPE == HZ_BF16 && B_MN) \
		HZ_WGMMA_F16_RS_ADD(columns, count, "bf16", "1", __VA_ARGS__); \
	else if constexpr (N == count && DTYPE == HZ_BF16) \
		HZ_WGMMA_F16_RS_ADD(columns, count, "bf16", "0", __VA_ARGS__); \
	else if constexpr (N == count) \
		HZ_WGMMA_F16_RS_ADD(columns, count, "f16", "0", __VA_ARGS__);

/* A in registers, B K-major or MN-major; add = 0: D = A B. DTYPE is that of A and B. */
template <int DTYPE, bool B_MN = false, int N>
HZ_DEVICE void wgmma_rs_add(float (&d)[N], const uint32_t *a, uint64_t b, int add)
{
	static_assert(DTYPE == HZ_BF16 || !B_MN, "not made");
	HZ_WGMMA_WIDTHS(HZ_WGMMA_F16_RS_ADD_IF)
}

/* N = 64, A in registers, B MN-major: 16 rows of 64 columns. add = 0: D = A B */
HZ_DEVICE void wgmma_rs_b_mn(float (&d)[32], const uint32_t *a, uint64_t b, int add)
{
	HZ_WGMMA_F16_RS_ADD("64", 32, "f16", "1", "%32", "%33", "%34", "%35", "%36", "%37");
}

#endif
