/*
 * base.cuh - definitions that every kernel uses
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_BASE_CUH
#define HZI_DEVICE_BASE_CUH

#include <stdint.h>

#include "hurwitz.h"

#define HZ_DEVICE static __device__ __forceinline__

/*
 * Minimum blocks per SM for __launch_bounds__, capped by what the SM holds: GPUs of compute
 * capability 8.6 to 8.9 and 12.x have 1536 threads per SM, others 2048.
 */
#if defined(__CUDA_ARCH__) && \
	(__CUDA_ARCH__ >= 1200 || (__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900))
#define HZ_BLOCKS(threads, blocks) \
	((threads) * (blocks) > 1536 ? 1536 / (threads) : (blocks) > 16 ? 16 : (blocks))
#else
#define HZ_BLOCKS(threads, blocks) (blocks)
#endif

/* An asm statement for compute capability 9.0 or later; nothing on others */
#if __CUDA_ARCH__ >= 900
#define HZ_ASM_SM90(...) asm volatile(__VA_ARGS__)
#else
#define HZ_ASM_SM90(...)
#endif

/* The result of PTX code: its output is operand %0, the other arguments are its inputs. */
#define HZ_ASM_RESULT(type, constraint, text, ...) \
	({ type result_; asm(text : constraint(result_) : __VA_ARGS__); result_; })
#define HZ_ASM_U16(text, ...) HZ_ASM_RESULT(uint16_t, "=h", text, __VA_ARGS__)
#define HZ_ASM_U32(text, ...) HZ_ASM_RESULT(uint32_t, "=r", text, __VA_ARGS__)
#define HZ_ASM_F32(text, ...) HZ_ASM_RESULT(float, "=f", text, __VA_ARGS__)

/* Loads four registers r[] of constraint "r" or "f" from the shared memory at src. */
#define HZ_LOAD_SHARED_4(instruction, type, r, src) \
	asm volatile(instruction " {%0, %1, %2, %3}, [%4];" \
		     : "=" type((r)[0]), "=" type((r)[1]), "=" type((r)[2]), "=" type((r)[3]) \
		     : "r"(src) : "memory")

/* A kernel whose parameters are the struct p; bounds: of its launches, in parentheses */
#define HZ_KERNEL(name, params, bounds, ...) \
	extern "C" __global__ void __launch_bounds__ bounds \
	name(const __grid_constant__ params p) \
	{ \
		__VA_ARGS__; \
	}

/* KERNEL(..., suffix, dtype) for each dtype of floats */
#define HZ_FLOAT_DTYPES(KERNEL, ...) \
	KERNEL(__VA_ARGS__, f32, HZ_F32) \
	KERNEL(__VA_ARGS__, f16, HZ_F16) \
	KERNEL(__VA_ARGS__, bf16, HZ_BF16)

/* A compile-time constant as a type, like std::integral_constant<int, I> */
template <int I>
struct std_int {
	static constexpr int value = I;
};

HZ_DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

#endif
