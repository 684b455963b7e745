/*
 * cluster.cuh - thread block clusters: barriers and distributed shared memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_DEVICE_CLUSTER_CUH
#define HZI_DEVICE_CLUSTER_CUH

#include "gpu/device/base.cuh"

HZ_DEVICE void cluster_arrive(void)
{
	HZ_ASM_SM90("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/*
 * A barrier arrival without release: it makes no writes visible. The release of cluster_arrive()
 * waits for all pending memory operations of the warp, which takes long enough that, behind
 * __syncthreads(), only one warp should do it for its block.
 *
 * A block that has read the shared memory of other blocks may exit after this call and
 * cluster_wait() only if each lane has stored the values that it loaded, so that the loads are
 * complete. A load whose value is dropped may still be pending when that memory belongs to another
 * kernel. Lanes without a result therefore must not load.
 */
HZ_DEVICE void cluster_arrive_relaxed(void)
{
	HZ_ASM_SM90("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

HZ_DEVICE void cluster_wait(void)
{
	HZ_ASM_SM90("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address in the shared memory of block `rank` that corresponds to `address` in this block */
HZ_DEVICE uint32_t cluster_map(uint32_t address, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
	return HZ_ASM_U32("mapa.shared::cluster.u32 %0, %1, %2;", "r"(address), "r"(rank));
#else
	return address;
#endif
}

HZ_DEVICE float cluster_load(uint32_t address)
{
	float f = 0;

	HZ_ASM_SM90("ld.shared::cluster.f32 %0, [%1];" : "=f"(f) : "r"(address) : "memory");
	return f;
}

HZ_DEVICE float4 cluster_load4(uint32_t address)
{
	float4 f = {};

	HZ_ASM_SM90("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
		    : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w) : "r"(address) : "memory");
	return f;
}

HZ_DEVICE void cluster_store(uint32_t address, float f)
{
	HZ_ASM_SM90("st.shared::cluster.f32 [%0], %1;" :: "r"(address), "f"(f) : "memory");
}

/* Rank of this block in its cluster, and blocks per cluster; compute capability 9.0 or later */
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

/*
 * Asynchronous stores to an address of cluster_map(). They complete on the mbarrier of that block,
 * which expects their bytes. Compute capability 9.0 or later.
 */
HZ_DEVICE void store_async(uint32_t dst, float a, float b, float c, float d, uint32_t mbarrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
		     "[%0], {%1, %2, %3, %4}, [%5];"
		     :: "r"(dst), "f"(a), "f"(b), "f"(c), "f"(d), "r"(mbarrier) : "memory");
}

HZ_DEVICE void store_async(uint32_t dst, int32_t a, int32_t b, int32_t c, int32_t d,
			   uint32_t mbarrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
		     "[%0], {%1, %2, %3, %4}, [%5];"
		     :: "r"(dst), "r"(a), "r"(b), "r"(c), "r"(d), "r"(mbarrier) : "memory");
}

HZ_DEVICE void store_async(uint32_t dst, int32_t v, uint32_t mbarrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 "
		     "[%0], %1, [%2];" :: "r"(dst), "r"(v), "r"(mbarrier) : "memory");
}

#endif
