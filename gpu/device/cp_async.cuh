/*
 * cp_async.cuh - copies from global to shared memory by single threads (cp.async), prefetches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_CP_ASYNC_CUH
#define HZI_DEVICE_CP_ASYNC_CUH

#include "gpu/device/base.cuh"

/* 16 bytes, both sides aligned to 16. They bypass the L1 cache. */
HZ_DEVICE void cp_async(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

/* The same of the first `bytes` alone, 0 to 16; the rest is filled with 0. */
HZ_DEVICE void cp_async_zfill(uint32_t to, const void *from, int bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :: "r"(to), "l"(from), "r"(bytes) : "memory");
}

/* Makes one group of what this thread has begun since the last call. */
HZ_DEVICE void cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N groups are pending. */
template <int N>
HZ_DEVICE void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* Waits for all that this thread has begun. */
HZ_DEVICE void cp_async_wait_all(void)
{
	asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}

/* Brings the line of p to the L2 cache. */
HZ_DEVICE void prefetch_l2(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}

#endif
