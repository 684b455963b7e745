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
