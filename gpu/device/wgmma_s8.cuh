/*
 * wgmma_s8.cuh - wgmma on u8 and s8 with s32 accumulators: D (64 x N) += A (64 x 32) B (32 x N)
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both operands are K-major in shared memory: rows of 128 bytes of k with the 128-byte swizzle. At
 * least one of them is u8. Accumulator 4 j + 2 h + e of thread t of 128 is row 16 (t / 32) + t % 32
 * / 4 + 8 h, column 8 j + 2 (t % 4) + e. The asm statement names each accumulator register.
 */
#ifndef HZI_DEVICE_WGMMA_S8_CUH
#define HZI_DEVICE_WGMMA_S8_CUH

#include "gpu/device/mma.cuh"

/*
 * Kernels for sm_90a have empty bodies on other architectures. The host pass of nvcc has no
 * __CUDA_ARCH__ and must see the bodies.
 */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_WGMMA 1
#define HZ_HOPPER_BODY(call) { call; }
#else
#define HAVE_WGMMA 0
#define HZ_HOPPER_BODY(call) { }
#endif

/*
 * The descriptor of a K-major operand of 64 or N rows from `address` on; groups of 8 rows are 1024
 * bytes apart.
 */
HZ_DEVICE uint64_t wgmma_desc_k(uint32_t address)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

HZ_DEVICE void wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

HZ_DEVICE void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N groups are pending. */
template <int N>
HZ_DEVICE void wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

/* Keeps the compiler from moving accesses to the accumulators past this point. */
template <int N>
HZ_DEVICE void wgmma_keep(int32_t (&acc)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(acc[i]) :: "memory");
}

/* The accumulator operands of an instruction with 2 N columns: N registers */
#define HZ_ACC_4 "%0, %1, %2, %3"
#define HZ_ACC_8 HZ_ACC_4 ", %4, %5, %6, %7"
#define HZ_ACC_16 HZ_ACC_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HZ_ACC_32 HZ_ACC_16 \
	", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
	"%30, %31"
#define HZ_ACC_40 HZ_ACC_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define HZ_ACC_48 HZ_ACC_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define HZ_ACC_56 HZ_ACC_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HZ_ACC_64 HZ_ACC_48 \
	", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HZ_ACC_68 HZ_ACC_64 ", %64, %65, %66, %67"
#define HZ_ACC_80 HZ_ACC_64 \
	", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HZ_ACC_96 HZ_ACC_80 \
	", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HZ_ACC_128 HZ_ACC_96 \
	", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
	"%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, " \
	"%121, %122, %123, %124, %125, %126, %127"

/* The constraints of N accumulators from d[i] on */
#define HZ_REGS_4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define HZ_REGS_8(i) HZ_REGS_4(i), HZ_REGS_4(i + 4)
#define HZ_REGS_16(i) HZ_REGS_8(i), HZ_REGS_8(i + 8)
#define HZ_REGS_32(i) HZ_REGS_16(i), HZ_REGS_16(i + 16)
#define HZ_REGS_40(i) HZ_REGS_32(i), HZ_REGS_8(i + 32)
#define HZ_REGS_48(i) HZ_REGS_32(i), HZ_REGS_16(i + 32)
#define HZ_REGS_56(i) HZ_REGS_48(i), HZ_REGS_8(i + 48)
#define HZ_REGS_64(i) HZ_REGS_32(i), HZ_REGS_32(i + 32)
#define HZ_REGS_68(i) HZ_REGS_64(i), HZ_REGS_4(i + 64)
#define HZ_REGS_80(i) HZ_REGS_64(i), HZ_REGS_16(i + 64)
#define HZ_REGS_96(i) HZ_REGS_64(i), HZ_REGS_32(i + 64)
#define HZ_REGS_128(i) HZ_REGS_64(i), HZ_REGS_64(i + 64)

/*
 * wgmma by text: `shape` to the types, the accumulators and their constraints, A and B, the operand
 * that is 0 for D = A B, and what follows its predicate; then the constraints of all inputs.
 */
#define HZ_WGMMA_ASM(shape, count, regs, a_text, b_operand, add_operand, tail, ...) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, " add_operand ", 0; " \
		     "wgmma.mma_async.sync.aligned." shape " {" HZ_ACC_##count "}, " a_text ", " \
		     b_operand ", p" tail ";}" : regs(0) : __VA_ARGS__)

/* X(columns, accumulators, the operands behind these) for each width */
#define HZ_WGMMA_WIDTHS(X) \
	X("8", 4, "%4", "%5", "%6", "%7", "%8", "%9") \
	X("16", 8, "%8", "%9", "%10", "%11", "%12", "%13") \
	X("32", 16, "%16", "%17", "%18", "%19", "%20", "%21") \
	X("64", 32, "%32", "%33", "%34", "%35", "%36", "%37") \
	X("80", 40, "%40", "%41", "%42", "%43", "%44", "%45") \
	X("96", 48, "%48", "%49", "%50", "%51", "%52", "%53") \
	X("128", 64, "%64", "%65", "%66", "%67", "%68", "%69") \
	X("136", 68, "%68", "%69", "%70", "%71", "%72", "%73") \
	X("160", 80, "%80", "%81", "%82", "%83", "%84", "%85") \
	X("192", 96, "%96", "%97", "%98", "%99", "%100", "%101") \
	X("256", 128, "%128", "%129", "%130", "%131", "%132", "%133")
#define HZ_WGMMA_A_REGS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

#define HZ_WGMMA(columns, count, types, o0, o1, o2) \
	HZ_WGMMA_ASM("m64n" columns "k32.s32." types, count, HZ_REGS_##count, o0, o1, o2, "", \
		     "l"(a), "l"(b), "r"(add))
#define HZ_WGMMA_IF(columns, count, o0, o1, o2, ...) \
	if constexpr (N == count && A_SIGNED) \
		HZ_WGMMA(columns, count, "s8.u8", o0, o1, o2); \
	else if constexpr (N == count && B_SIGNED) \
		HZ_WGMMA(columns, count, "u8.s8", o0, o1, o2); \
	else if constexpr (N == count) \
		HZ_WGMMA(columns, count, "u8.u8", o0, o1, o2);

/*
 * N accumulators of a thread: 2 N columns. add = 0: D = A B. a, b: descriptors of wgmma_desc_k(),
 * plus 2 for each 32 bytes of k.
 */
template <bool A_SIGNED, bool B_SIGNED, int N>
HZ_DEVICE void wgmma(int32_t (&d)[N], uint64_t a, uint64_t b, int add)
{
	static_assert(!(A_SIGNED && B_SIGNED), "one of them is packed B");
	HZ_WGMMA_WIDTHS(HZ_WGMMA_IF)
}

#define HZ_WGMMA_RS(columns, count, types, o0, o1, o2, o3, o4, o5) \
	HZ_WGMMA_ASM("m64n" columns "k32.s32." types, count, HZ_REGS_##count, \
		     "{" o0 ", " o1 ", " o2 ", " o3 "}", o4, o5, "", HZ_WGMMA_A_REGS, "l"(b), \
		     "r"(add))
#define HZ_WGMMA_RS_IF(columns, count, ...) \
	if constexpr (N == count && A_SIGNED) \
		HZ_WGMMA_RS(columns, count, "s8.u8", __VA_ARGS__); \
	else if constexpr (N == count) \
		HZ_WGMMA_RS(columns, count, "u8.u8", __VA_ARGS__);

/*
 * The same with A in registers, as wgmma_load_a() loads them; it takes 64 cycles at least, as with
 * 128 columns. They must not change until the
 * product is complete. ptxas does not ensure that if there are branches between the products and
 * the wait for them: it may reuse the registers of A, and an empty asm statement that names them
 * does not prevent it. Either have no branches there or check the machine code: on no path may an
 * instruction write these registers between HGMMA or IGMMA and the WARPGROUP.DEPBAR that waits for
 * it.
 */
template <bool A_SIGNED, int N>
HZ_DEVICE void wgmma_rs(int32_t (&d)[N], const uint32_t *a, uint64_t b, int add)
{
	HZ_WGMMA_WIDTHS(HZ_WGMMA_RS_IF)
}

/* D += A B, A of u8 in registers, B of s8 */
template <int N>
HZ_DEVICE void wgmma_rs_u8_s8(int32_t (&d)[N], const uint32_t *a, uint64_t b)
{
	const int add = 1;

	static_assert(N == 32, "not made");
	HZ_WGMMA_RS("64", 32, "u8.s8", "%32", "%33", "%34", "%35", "%36", "%37");
}

/* D = A B, or D += A B with add, A of s8 in registers, B of s8 */
template <int N>
HZ_DEVICE void wgmma_rs_s8(int32_t (&d)[N], const uint32_t *a, uint64_t b, int add)
{
	static_assert(N == 56, "not made");
	HZ_WGMMA_RS("112", 56, "s8.s8", "%56", "%57", "%58", "%59", "%60", "%61");
}

/*
 * Loads 16 rows of 128 bytes of k, with the swizzle, for one warp: register 4 c + 2 e + h of a
 * thread is bytes 32 c + 16 e + 4 (t % 4) of row t % 32 / 4 + 8 h.
 */
HZ_DEVICE void wgmma_load_a(uint32_t (&a)[16], uint32_t rows)
{
	const int lane = threadIdx.x % 32, r = lane % 16;
	const uint32_t row = rows + r * 128;

#pragma unroll
	for (int c = 0; c < 4; c++)
		ldmatrix_x4(a + 4 * c, row + 16 * (2 * c + lane / 16 ^ r % 8));
}

#endif
