/*
 * mbarrier.cuh - barriers in shared memory, and bulk copies that complete on them: from compute
 * capability 9.0 on
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_MBARRIER_CUH
#define HZI_DEVICE_MBARRIER_CUH

#include "gpu/device/base.cuh"

HZ_DEVICE void mbarrier_init(uint32_t mbarrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(count)
		     : "memory");
}

/* After all mbarrier_init(), before others know of them. */
HZ_DEVICE void mbarrier_init_fence(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One arrival, and bytes that copies will bring. */
HZ_DEVICE void mbarrier_expect_tx(uint32_t mbarrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
		     :: "r"(mbarrier), "r"(bytes) : "memory");
}

HZ_DEVICE void mbarrier_arrive(uint32_t mbarrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(mbarrier) : "memory");
}

/*
 * At an address of cluster_map(): this thread has what it loaded from its own block's memory, or
 * the matrix units have, and copies may fill that again. Nothing else is ordered for other blocks.
 */
HZ_DEVICE void mbarrier_arrive_cluster(uint32_t mbarrier)
{
	asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(mbarrier) : "memory");
}

/*
 * The same where loads and stores of one block meet those of another, which waits by
 * mbarrier_wait_acquire_cluster(): what this thread wrote is visible, and what it loads from other
 * blocks has arrived. It waits for all that the warp has pending.
 */
HZ_DEVICE void mbarrier_arrive_release_cluster(uint32_t mbarrier)
{
	asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
		     :: "r"(mbarrier) : "memory");
}

/* Until the phase of that parity is over. */
HZ_DEVICE void mbarrier_wait(uint32_t mbarrier, uint32_t parity)
{
	asm volatile("{\n\t"
		     ".reg .pred p;\n"
		     "again:\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
		     "@!p bra again;\n\t"
		     "}" :: "r"(mbarrier), "r"(parity) : "memory");
}

HZ_DEVICE void mbarrier_wait_acquire_cluster(uint32_t mbarrier, uint32_t parity)
{
	asm volatile("{\n\t"
		     ".reg .pred p;\n"
		     "again:\n\t"
		     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n\t"
		     "@!p bra again;\n\t"
		     "}" :: "r"(mbarrier), "r"(parity) : "memory");
}

/* Whether the phase of that parity is over: one try */
HZ_DEVICE uint32_t mbarrier_test(uint32_t mbarrier, uint32_t parity)
{
	uint32_t over;

	asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; "
		     "selp.u32 %0, 1, 0, p;}"
		     : "=r"(over) : "r"(mbarrier), "r"(parity) : "memory");
	return over;
}

/* ---- Bulk copies ---------------------------------------------------------------------------- */

/* Bytes, a multiple of 16; with a mask to the same place in each of those blocks of the cluster */
HZ_DEVICE void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];"
		     :: "r"(to), "l"(from), "r"(bytes), "r"(mbarrier) : "memory");
}

HZ_DEVICE void bulk_copy_multicast(uint16_t mask, uint32_t to, const void *from, uint32_t bytes,
			     uint32_t mbarrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1], %2, [%3], %4;"
		     :: "r"(to), "l"(from), "r"(bytes), "r"(mbarrier), "h"(mask) : "memory");
}

HZ_DEVICE void bulk_prefetch_l2(const void *from, uint32_t bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes)
		     : "memory");
}

/* A ring of STAGES mbarriers: which one is next, and the parity of its phase */
template <int STAGES>
struct ring_position {
	int at = 0;
	uint32_t parity = 0;

	__device__ __forceinline__ void next(void)
	{
		if (++at == STAGES) {
			at = 0;
			parity ^= 1;
		}
	}
};

#endif
