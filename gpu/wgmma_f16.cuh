/*
 * wgmma_f16.cuh - the matrix units of Hopper: 64 x N += 64 x 16 times 16 x N, f16 with sums of f32
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A is lines of 128 bytes of k in shared memory, with the 128-byte swizzle, as in wgmma.cuh; B is
 * that, or with ACROSS lines of 128 bytes of columns, one for each k. Thread t of 128 holds sums of
 * rows 16 (t / 32) + t % 32 / 4 + 8 h and columns 8 j + 2 (t % 4) + e: number 4 j + 2 h + e.
 */
#ifndef HZI_WGMMA_F16_CUH
#define HZI_WGMMA_F16_CUH

#include "gpu/wgmma.cuh"

/* 64 columns by k in lines of columns; the next 64 are bytes further on. */
HZ_DEVICE uint64_t wgmma_across(uint32_t address, uint32_t bytes)
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

/* add: 0 to start from 0. */
template <bool ACROSS, int N>
__device__ __forceinline__ void wgmma(float (&sums)[N], uint64_t a, uint64_t b, int add);

#define WGMMA_F16_192(across) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned." \
		     "m64n192k16.f32.f16.f16 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
		     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
		     "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
		     "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
		     "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, " \
		     "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
		     "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
		     "}, %96, %97, p, 1, 1, 0, " across ";}" \
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
		       "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
		       "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
		       "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
		       "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), \
		       "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
		       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), \
		       "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
		       "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), \
		       "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), \
		       "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
		       "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), \
		       "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), \
		       "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
		       "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), \
		       "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), \
		       "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), \
		       "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), \
		       "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 96>(float (&d)[96], uint64_t a, uint64_t b, int add)
{
	WGMMA_F16_192("0");
}

template <>
__device__ __forceinline__ void wgmma<true, 96>(float (&d)[96], uint64_t a, uint64_t b, int add)
{
	WGMMA_F16_192("1");
}

#define WGMMA_F16_128(across) \
	asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned." \
		     "m64n128k16.f32.f16.f16 {" \
		     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
		     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
		     "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
		     "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
		     "%58, %59, %60, %61, %62, %63" \
		     "}, %64, %65, p, 1, 1, 0, " across ";}" \
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
		       "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
		       "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
		       "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
		       "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), \
		       "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
		       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), \
		       "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
		       "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), \
		       "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), \
		       "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
		       "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), \
		       "+f"(d[62]), "+f"(d[63]) \
		     : "l"(a), "l"(b), "r"(add))

template <>
__device__ __forceinline__ void wgmma<false, 64>(float (&d)[64], uint64_t a, uint64_t b, int add)
{
	WGMMA_F16_128("0");
}

template <>
__device__ __forceinline__ void wgmma<true, 64>(float (&d)[64], uint64_t a, uint64_t b, int add)
{
	WGMMA_F16_128("1");
}

#endif
