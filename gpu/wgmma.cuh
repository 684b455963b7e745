/*
 * wgmma.cuh - the matrix units of Hopper: 64 x N += 64 x 32 times 32 x N in integers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both operands are lines of 128 bytes of k in shared memory, with the 128-byte swizzle; B is u8.
 * Thread t of 128 holds sums of rows 16 (t / 32) + t % 32 / 4 + 8 h and columns 8 j + 2 (t % 4) +
 * e: number 4 j + 2 h + e. The instruction wants its registers one by one.
 */
#ifndef HZI_WGMMA_CUH
#define HZI_WGMMA_CUH

#include "gpu/common.cuh"

/* The place of 64 or N lines from an address on: the groups of 8 lines are 1024 bytes apart. */
HZ_DEVICE uint64_t wgmma_lines(uint32_t address)
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

/* Until no more than that many groups are under way. */
template <int N>
HZ_DEVICE void wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

/* Keeps the compiler from moving sums past this place. */
template <int N>
HZ_DEVICE void wgmma_keep(int32_t (&sums)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(sums[i]) :: "memory");
}

/* add: 0 to start from 0. a, b: of wgmma_lines(), plus 2 for each 32 bytes of k further on. */
template <bool SIGNED, int N>
__device__ __forceinline__ void wgmma(int32_t (&sums)[N], uint64_t a, uint64_t b, int add);

#define WGMMA_32(type) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned." \
		     "m64n32k32.s32." type ".u8 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
		     "}, %16, %17, p;}" \
		     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), \
		       "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), \
		       "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 16>(int32_t (&d)[16], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_32("u8");
}

template <>
__device__ __forceinline__ void wgmma<true, 16>(int32_t (&d)[16], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_32("s8");
}

#define WGMMA_80(type) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned." \
		     "m64n80k32.s32." type ".u8 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
		     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
		     "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39" \
		     "}, %40, %41, p;}" \
		     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), \
		       "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), \
		       "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), \
		       "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), \
		       "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), \
		       "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), \
		       "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), \
		       "+r"(d[37]), "+r"(d[38]), "+r"(d[39]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 40>(int32_t (&d)[40], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_80("u8");
}

template <>
__device__ __forceinline__ void wgmma<true, 40>(int32_t (&d)[40], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_80("s8");
}

#define WGMMA_128(type) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned." \
		     "m64n128k32.s32." type ".u8 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
		     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
		     "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
		     "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
		     "%58, %59, %60, %61, %62, %63" \
		     "}, %64, %65, p;}" \
		     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), \
		       "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), \
		       "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), \
		       "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), \
		       "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), \
		       "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), \
		       "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), \
		       "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]), \
		       "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), \
		       "+r"(d[47]), "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), \
		       "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]), "+r"(d[56]), \
		       "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), \
		       "+r"(d[62]), "+r"(d[63]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 64>(int32_t (&d)[64], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_128("u8");
}

template <>
__device__ __forceinline__ void wgmma<true, 64>(int32_t (&d)[64], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_128("s8");
}

#define WGMMA_192(type) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned." \
		     "m64n192k32.s32." type ".u8 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
		     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
		     "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
		     "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
		     "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, " \
		     "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
		     "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
		     "}, %96, %97, p;}" \
		     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), \
		       "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), \
		       "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), \
		       "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), \
		       "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), \
		       "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), \
		       "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), \
		       "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]), \
		       "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), \
		       "+r"(d[47]), "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), \
		       "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]), "+r"(d[56]), \
		       "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), \
		       "+r"(d[62]), "+r"(d[63]), "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), \
		       "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), "+r"(d[71]), \
		       "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), \
		       "+r"(d[77]), "+r"(d[78]), "+r"(d[79]), "+r"(d[80]), "+r"(d[81]), \
		       "+r"(d[82]), "+r"(d[83]), "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), \
		       "+r"(d[87]), "+r"(d[88]), "+r"(d[89]), "+r"(d[90]), "+r"(d[91]), \
		       "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), "+r"(d[95]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 96>(int32_t (&d)[96], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_192("u8");
}

template <>
__device__ __forceinline__ void wgmma<true, 96>(int32_t (&d)[96], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_192("s8");
}

#define WGMMA_256(type) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned." \
		     "m64n256k32.s32." type ".u8 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
		     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
		     "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
		     "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
		     "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, " \
		     "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
		     "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, " \
		     "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
		     "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
		     "%124, %125, %126, %127" \
		     "}, %128, %129, p;}" \
		     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), \
		       "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), \
		       "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), \
		       "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), \
		       "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), \
		       "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), \
		       "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), \
		       "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]), \
		       "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), \
		       "+r"(d[47]), "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), \
		       "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]), "+r"(d[56]), \
		       "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), \
		       "+r"(d[62]), "+r"(d[63]), "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), \
		       "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), "+r"(d[71]), \
		       "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), \
		       "+r"(d[77]), "+r"(d[78]), "+r"(d[79]), "+r"(d[80]), "+r"(d[81]), \
		       "+r"(d[82]), "+r"(d[83]), "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), \
		       "+r"(d[87]), "+r"(d[88]), "+r"(d[89]), "+r"(d[90]), "+r"(d[91]), \
		       "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), "+r"(d[95]), "+r"(d[96]), \
		       "+r"(d[97]), "+r"(d[98]), "+r"(d[99]), "+r"(d[100]), "+r"(d[101]), \
		       "+r"(d[102]), "+r"(d[103]), "+r"(d[104]), "+r"(d[105]), "+r"(d[106]), \
		       "+r"(d[107]), "+r"(d[108]), "+r"(d[109]), "+r"(d[110]), "+r"(d[111]), \
		       "+r"(d[112]), "+r"(d[113]), "+r"(d[114]), "+r"(d[115]), "+r"(d[116]), \
		       "+r"(d[117]), "+r"(d[118]), "+r"(d[119]), "+r"(d[120]), "+r"(d[121]), \
		       "+r"(d[122]), "+r"(d[123]), "+r"(d[124]), "+r"(d[125]), "+r"(d[126]), \
		       "+r"(d[127]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 128>(int32_t (&d)[128], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_256("u8");
}

template <>
__device__ __forceinline__ void wgmma<true, 128>(int32_t (&d)[128], uint64_t a, uint64_t b,
						 int add)
{
	WGMMA_256("s8");
}

#endif
