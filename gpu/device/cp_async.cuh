/*
 * cp_async.cuh - copies from global to shared memory by single threads (cp.async), prefetches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_CP_ASYNC_CUH
#define HZI_DEVICE_CP_ASYNC_CUH

#include "gpu/device/base.cuh"

/* Copies 16 bytes and bypasses L1; both addresses are 16-byte aligned. */
HZ_DEVICE void cp_async(uint32_t dst, const void *src)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(src) : "memory");
}

/* Copies the first `bytes` of 16, 0 to 16, and fills the others with zeros. */
HZ_DEVICE void cp_async_zfill(uint32_t dst, const void *src, int bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :: "r"(dst), "l"(src), "r"(bytes) : "memory");
}

/* Commits the copies that this thread issued since the last commit as one group. */
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

/* Waits for all copies of this thread. */
HZ_DEVICE void cp_async_wait_all(void)
{
	asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}

/* Prefetches the cache line of p into L2. */
HZ_DEVICE void prefetch_l2(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}

#endif
