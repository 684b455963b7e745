/*
 * cluster.cuh - clusters: blocks that read and write each other's shared memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_CLUSTER_CUH
#define HZI_DEVICE_CLUSTER_CUH

#include "gpu/device/base.cuh"

HZ_DEVICE void cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

/*
 * Makes nothing visible. The release above waits for all that a warp has under way, which takes so
 * long that behind __syncthreads() one warp should do it for its block.
 * A block that has read others' memory may end behind this and cluster_wait() only if each lane has
 * stored what it loaded, and so has it: a load whose value is dropped may be under way still when
 * that memory is another kernel's. So lanes without a result do not load.
 */
HZ_DEVICE void cluster_arrive_relaxed(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

HZ_DEVICE void cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* The address in shared memory of block `rank` that corresponds to `address` in this block's */
HZ_DEVICE uint32_t cluster_map(uint32_t address, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
	uint32_t there;

	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
	return there;
#else
	return address;
#endif
}

HZ_DEVICE float cluster_load(uint32_t address)
{
	float f = 0;

#if __CUDA_ARCH__ >= 900
	asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(f) : "r"(address) : "memory");
#endif
	return f;
}

HZ_DEVICE float4 cluster_load4(uint32_t address)
{
	float4 f = {};

#if __CUDA_ARCH__ >= 900
	asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w) : "r"(address) : "memory");
#endif
	return f;
}

HZ_DEVICE void cluster_store(uint32_t address, float f)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(address), "f"(f) : "memory");
#endif
}

/* This block's number in its cluster, and how many there are: from compute capability 9.0 on */
HZ_DEVICE uint32_t cluster_rank(void)
{
	uint32_t rank;

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	return rank;
}

HZ_DEVICE uint32_t cluster_size(void)
{
	uint32_t blocks;

	asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
	return blocks;
}

/* To an address of cluster_map(); bytes that the mbarrier there expects. From 9.0 on, too */
HZ_DEVICE void store_async(uint32_t to, float a, float b, float c, float d, uint32_t mbarrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
		     "[%0], {%1, %2, %3, %4}, [%5];"
		     :: "r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(mbarrier) : "memory");
}

HZ_DEVICE void store_async(uint32_t to, int32_t a, int32_t b, int32_t c, int32_t d,
			   uint32_t mbarrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
		     "[%0], {%1, %2, %3, %4}, [%5];"
		     :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d), "r"(mbarrier) : "memory");
}

HZ_DEVICE void store_async(uint32_t to, int32_t v, uint32_t mbarrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 "
		     "[%0], %1, [%2];" :: "r"(to), "r"(v), "r"(mbarrier) : "memory");
}

#endif
