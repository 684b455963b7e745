/*
 * mbarrier.cuh - barriers in shared memory, and copies that they wait for: from Hopper on
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_BARRIER_CUH
#define HZI_BARRIER_CUH

#include "gpu/device/common.cuh"

HZ_DEVICE void barrier_init(uint32_t barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count)
		     : "memory");
}

/* After all barrier_init(), before others know of them. */
HZ_DEVICE void barrier_init_fence(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One arrival, and bytes that copies will bring. */
HZ_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
		     :: "r"(barrier), "r"(bytes) : "memory");
}

HZ_DEVICE void barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

/*
 * At an address of cluster_map(): this thread has what it loaded from its own block's memory, or
 * the matrix units have, and copies may fill that again. Nothing else is ordered for other blocks.
 */
HZ_DEVICE void barrier_arrive_at(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}

/*
 * The same where loads and stores of one block meet those of another, for barrier_acquire() there:
 * what this thread wrote is seen, and what it loads from other blocks has come. It waits for all
 * that the warp has under way.
 */
HZ_DEVICE void barrier_release_at(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
		     :: "r"(barrier) : "memory");
}

/* Until the phase of that parity is over. */
HZ_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity)
{
	asm volatile("{\n\t"
		     ".reg .pred p;\n"
		     "again:\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
		     "@!p bra again;\n\t"
		     "}" :: "r"(barrier), "r"(parity) : "memory");
}

HZ_DEVICE void barrier_acquire(uint32_t barrier, uint32_t parity)
{
	asm volatile("{\n\t"
		     ".reg .pred p;\n"
		     "again:\n\t"
		     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n\t"
		     "@!p bra again;\n\t"
		     "}" :: "r"(barrier), "r"(parity) : "memory");
}

/* Bytes, a multiple of 16; with a mask to the same place in each of those blocks of the cluster. */
HZ_DEVICE void copy_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];"
		     :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

HZ_DEVICE void copy_bytes_to(uint16_t mask, uint32_t to, const void *from, uint32_t bytes,
			     uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1], %2, [%3], %4;"
		     :: "r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(mask) : "memory");
}

#endif
