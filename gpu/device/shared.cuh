/*
 * shared.cuh - 16-byte accesses to shared memory, named barriers of some warps of a block
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_SHARED_CUH
#define HZI_DEVICE_SHARED_CUH

#include "gpu/device/base.cuh"

HZ_DEVICE uint4 shared_load(uint32_t src)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(src) : "memory");
	return v;
}

HZ_DEVICE void shared_load(uint32_t *v, uint32_t src)
{
	HZ_LOAD_SHARED_4("ld.shared.v4.u32", "r", v, src);
}

HZ_DEVICE void shared_load(float *v, uint32_t src)
{
	HZ_LOAD_SHARED_4("ld.shared.v4.f32", "f", v, src);
}

HZ_DEVICE void shared_store(uint32_t dst, const uint32_t *v)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
		     :: "r"(dst), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

HZ_DEVICE void shared_store(uint32_t dst, const float *v)
{
	asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
		     :: "r"(dst), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

/*
 * Named barriers 1 to 15 for `threads` threads, a multiple of 32. bar_*() must be executed by all
 * lanes of a warp together, barrier_*() need not.
 */
HZ_DEVICE void bar_sync(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

HZ_DEVICE void bar_arrive(int id, int threads)
{
	asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

HZ_DEVICE void barrier_sync(int id, int threads)
{
	asm volatile("barrier.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

HZ_DEVICE void barrier_arrive(int id, int threads)
{
	asm volatile("barrier.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

#endif
