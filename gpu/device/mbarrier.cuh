/*
 * mbarrier.cuh - mbarriers, and bulk copies that complete on them; compute capability 9.0 or later
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

/*
 * Makes initialized mbarriers visible to the cluster; to be called after the last mbarrier_init().
 */
HZ_DEVICE void mbarrier_init_fence(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives once and adds to the bytes that copies are expected to bring. */
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
 * Arrives at an mbarrier of another block, by its address from cluster_map(). It tells that this
 * thread, or its wgmma, has finished reading a stage of its own shared memory, which copies may
 * overwrite. It orders no other memory access across blocks.
 */
HZ_DEVICE void mbarrier_arrive_cluster(uint32_t mbarrier)
{
	asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(mbarrier) : "memory");
}

/*
 * As above with release semantics, paired with mbarrier_wait_acquire_cluster() of the other block:
 * the writes of this thread become visible, and its loads from other blocks have completed. It
 * waits for all pending memory operations of the warp.
 */
HZ_DEVICE void mbarrier_arrive_release_cluster(uint32_t mbarrier)
{
	asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
		     :: "r"(mbarrier) : "memory");
}

#define HZ_MBARRIER_WAIT(semantics) \
	"{\n\t" \
	".reg .pred p;\n" \
	"again:\n\t" \
	"mbarrier.try_wait.parity" semantics ".shared::cta.b64 p, [%0], %1;\n\t" \
	"@!p bra again;\n\t" \
	"}"

/* Waits until the phase of the given parity completes. */
HZ_DEVICE void mbarrier_wait(uint32_t mbarrier, uint32_t parity)
{
	asm volatile(HZ_MBARRIER_WAIT("") :: "r"(mbarrier), "r"(parity) : "memory");
}

HZ_DEVICE void mbarrier_wait_acquire_cluster(uint32_t mbarrier, uint32_t parity)
{
	asm volatile(HZ_MBARRIER_WAIT(".acquire.cluster")
		     :: "r"(mbarrier), "r"(parity) : "memory");
}

/* Tests once whether the phase of the given parity is complete. */
HZ_DEVICE uint32_t mbarrier_test(uint32_t mbarrier, uint32_t parity)
{
	uint32_t complete;

	asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; "
		     "selp.u32 %0, 1, 0, p;}"
		     : "=r"(complete) : "r"(mbarrier), "r"(parity) : "memory");
	return complete;
}

/* ---- Bulk copies ---------------------------------------------------------------------------- */

/*
 * Copies `bytes`, a multiple of 16. Multicast writes to the same offset in each block of the
 * cluster whose bit of mask is set.
 */
HZ_DEVICE void bulk_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t mbarrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];"
		     :: "r"(dst), "l"(src), "r"(bytes), "r"(mbarrier) : "memory");
}

HZ_DEVICE void bulk_copy_multicast(uint16_t mask, uint32_t dst, const void *src, uint32_t bytes,
			     uint32_t mbarrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1], %2, [%3], %4;"
		     :: "r"(dst), "l"(src), "r"(bytes), "r"(mbarrier), "h"(mask) : "memory");
}

HZ_DEVICE void bulk_prefetch_l2(const void *src, uint32_t bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(src), "r"(bytes)
		     : "memory");
}

/* A pipeline of STAGES mbarriers: the index of the current stage and the parity of its phase */
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
