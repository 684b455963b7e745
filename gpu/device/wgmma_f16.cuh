/*
 * wgmma_f16.cuh - the matrix units of Hopper: 64 x N += 64 x 16 times 16 x N, floats of 16 bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A is lines of 128 bytes of k in shared memory, with the 128-byte swizzle, as in wgmma_s8.cuh; B
 * is that or, with ACROSS, lines of 128 bytes of columns, one for each k; with A_ACROSS so is A, of
 * its rows. Thread t of 128 holds sums, of f32, of rows 16 (t / 32) + t % 32 / 4 + 8 h and columns
 * 8 j + 2 (t % 4) + e: number 4 j + 2 h + e.
 */
#ifndef HZI_WGMMA_F16_CUH
#define HZI_WGMMA_F16_CUH

#include "gpu/device/wgmma_s8.cuh"

/* 64 columns by k in lines of columns; the next 64 are bytes further on. */
HZ_DEVICE uint64_t wgmma_desc_mn(uint32_t address, uint32_t bytes)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(bytes >> 4) << 16 | 64ull << 32 |
	       1ull << 62;
}

template <int N>
HZ_DEVICE void wgmma_keep(float (&sums)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(sums[i]) :: "memory");
}

#define HZ_FLOATS_8(i) \
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
	"+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define HZ_FLOATS_16(i) HZ_FLOATS_8(i), HZ_FLOATS_8(i + 8)
#define HZ_FLOATS_32(i) HZ_FLOATS_16(i), HZ_FLOATS_16(i + 16)
#define HZ_FLOATS_40(i) HZ_FLOATS_32(i), HZ_FLOATS_8(i + 32)
#define HZ_FLOATS_64(i) HZ_FLOATS_32(i), HZ_FLOATS_32(i + 32)
#define HZ_FLOATS_80(i) HZ_FLOATS_64(i), HZ_FLOATS_16(i + 64)
#define HZ_FLOATS_96(i) HZ_FLOATS_64(i), HZ_FLOATS_32(i + 64)
#define HZ_FLOATS_128(i) HZ_FLOATS_64(i), HZ_FLOATS_64(i + 64)

#define HZ_WGMMA_F16(columns, sums, a_place, b_place, add_place, type, across) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, " add_place ", 0; " \
		     "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " \
		     "{" HZ_SUMS_##sums "}, " a_place ", " b_place ", p, 1, 1, " across ";}" \
		     : HZ_FLOATS_##sums(0) : "l"(a), "l"(b), "r"(add))
#define HZ_WGMMA_F16_IF(columns, sums, a_place, b_place, add_place) \
	if constexpr (N == sums && DTYPE == HZ_BF16 && A_ACROSS) \
		HZ_WGMMA_F16(columns, sums, a_place, b_place, add_place, "bf16", "1, 1"); \
	else if constexpr (N == sums && DTYPE == HZ_BF16) \
		HZ_WGMMA_F16(columns, sums, a_place, b_place, add_place, "bf16", "0, 0"); \
	else if constexpr (N == sums && A_ACROSS) \
		HZ_WGMMA_F16(columns, sums, a_place, b_place, add_place, "f16", "1, 1"); \
	else if constexpr (N == sums && ACROSS) \
		HZ_WGMMA_F16(columns, sums, a_place, b_place, add_place, "f16", "0, 1"); \
	else if constexpr (N == sums) \
		HZ_WGMMA_F16(columns, sums, a_place, b_place, add_place, "f16", "0, 0")

/* N sums: of 2 N columns. add: 0 to start from 0. DTYPE: HZ_F16 or HZ_BF16, of both. */
template <bool ACROSS, bool A_ACROSS = false, int DTYPE = HZ_F16, int N>
HZ_DEVICE void wgmma(float (&d)[N], uint64_t a, uint64_t b, int add)
{
	static_assert(DTYPE == HZ_BF16 ? ACROSS == A_ACROSS : ACROSS || !A_ACROSS, "not made");
	HZ_WGMMA_F16_IF("64", 32, "%32", "%33", "%34");
	HZ_WGMMA_F16_IF("80", 40, "%40", "%41", "%42");
	HZ_WGMMA_F16_IF("128", 64, "%64", "%65", "%66");
	HZ_WGMMA_F16_IF("160", 80, "%80", "%81", "%82");
	HZ_WGMMA_F16_IF("192", 96, "%96", "%97", "%98");
	HZ_WGMMA_F16_IF("256", 128, "%128", "%129", "%130");
}

#define HZ_WGMMA_F16_RS(columns, sums, a_places, b_place, across) \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 " \
		     "{" HZ_SUMS_##sums "}, {" a_places "}, " b_place ", 1, 1, 1, " across ";" \
		     : HZ_FLOATS_##sums(0) \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define HZ_WGMMA_F16_RS_IF(columns, sums, a_places, b_place) \
	if constexpr (N == sums && ACROSS) \
		HZ_WGMMA_F16_RS(columns, sums, a_places, b_place, "1"); \
	else if constexpr (N == sums) \
		HZ_WGMMA_F16_RS(columns, sums, a_places, b_place, "0")

/* The same of f16 with A from four registers of a thread, see wgmma_rs() of wgmma_s8.cuh; adds. */
template <bool ACROSS, int N>
HZ_DEVICE void wgmma_rs(float (&d)[N], const uint32_t *a, uint64_t b)
{
	HZ_WGMMA_F16_RS_IF("16", 8, "%8, %9, %10, %11", "%12");
	HZ_WGMMA_F16_RS_IF("32", 16, "%16, %17, %18, %19", "%20");
	HZ_WGMMA_F16_RS_IF("64", 32, "%32, %33, %34, %35", "%36");
	HZ_WGMMA_F16_RS_IF("128", 64, "%64, %65, %66, %67", "%68");
	HZ_WGMMA_F16_RS_IF("256", 128, "%128, %129, %130, %131", "%132");
}

/* By 16 lines of 64 columns; add: 0 to start from 0 */
HZ_DEVICE void wgmma_rs_across(float (&d)[32], const uint32_t *a, uint64_t b, int add)
{
	asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; "
		     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" HZ_SUMS_32 "}, "
		     "{%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
		     : HZ_FLOATS_32(0)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#endif
