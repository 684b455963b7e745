/*
 * tma.cuh - TMA copies of tiles described by a tensor map; compute capability 9.0 or later
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A load completes on an mbarrier, which expects its bytes. A multicast load writes to the same
 * offset in each block of the cluster whose bit of mask is set.
 */
#ifndef HZI_DEVICE_TMA_CUH
#define HZI_DEVICE_TMA_CUH

#include "gpu/device/cluster.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"

/* A CUtensorMap, see gpu/runtime/tensor_map.h */
struct hzi_tensor_map;

#define HZ_TMA_LOAD(rank) \
	"cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes"

HZ_DEVICE void tma_load_2d(uint32_t dst, const hzi_tensor_map &map, int x, int y, uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("2d") " [%0], [%1, {%3, %4}], [%2];"
		     :: "r"(dst), "l"(&map), "r"(mbarrier), "r"(x), "r"(y) : "memory");
}

HZ_DEVICE void tma_load_2d_multicast(uint16_t mask, uint32_t dst, const hzi_tensor_map &map, int x,
				     int y, uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("2d") ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
		     :: "r"(dst), "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "h"(mask) : "memory");
}

HZ_DEVICE void tma_load_3d(uint32_t dst, const hzi_tensor_map &map, int x, int y, int z,
			   uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("3d") " [%0], [%1, {%3, %4, %5}], [%2];"
		     :: "r"(dst), "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "r"(z) : "memory");
}

HZ_DEVICE void tma_load_3d_multicast(uint16_t mask, uint32_t dst, const hzi_tensor_map &map, int x,
				     int y, int z, uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("3d") ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
		     :: "r"(dst), "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "r"(z), "h"(mask)
		     : "memory");
}

HZ_DEVICE void tma_load_5d(uint32_t dst, const hzi_tensor_map &map, int x, const int (&at)[4],
			   uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("5d") " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
		     :: "r"(dst), "l"(&map), "r"(mbarrier), "r"(x), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]) : "memory");
}

HZ_DEVICE void tma_load_5d_multicast(uint16_t mask, uint32_t dst, const hzi_tensor_map &map, int x,
				     const int (&at)[4], uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("5d") ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], "
		     "[%2], %8;"
		     :: "r"(dst), "l"(&map), "r"(mbarrier), "r"(x), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]), "h"(mask) : "memory");
}

/* Stores a tile from shared memory, as part of the next bulk group of this thread. */
HZ_DEVICE void tma_store_3d(const hzi_tensor_map &map, int x, int y, int z, uint32_t src)
{
	asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
		     "[%0, {%2, %3, %4}], [%1];"
		     :: "l"(&map), "r"(src), "r"(x), "r"(y), "r"(z) : "memory");
}

HZ_DEVICE void tma_store_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most N groups of stores still read shared memory. */
template <int N>
HZ_DEVICE void tma_store_wait_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

/* Prefetches a tensor map. */
HZ_DEVICE void tma_prefetch_map(const hzi_tensor_map &map)
{
	asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

/* Makes this thread's writes to shared memory visible to TMA and wgmma. */
HZ_DEVICE void fence_proxy_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- For warp-specialized kernels ------------------------------------------------------------ */

/*
 * Sets the registers per thread of this warpgroup to N. One warpgroup releases registers (dec) that
 * another acquires (inc).
 */
template <int N>
HZ_DEVICE void setmaxnreg_dec(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}

template <int N>
HZ_DEVICE void setmaxnreg_inc(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}

/*
 * Waits until all blocks of the cluster have initialized their mbarriers and the previous kernel
 * has ended.
 */
HZ_DEVICE void cluster_begin(void)
{
	pdl_launch_dependents();
	__syncthreads();
	cluster_arrive();
	cluster_wait();
	pdl_wait();
}

/* Keeps the block alive until no block of the cluster can arrive at its mbarriers any more. */
HZ_DEVICE void cluster_end(void)
{
	__syncwarp();
	cluster_arrive();
	cluster_wait();
}

/*
 * Dynamic shared memory from the first multiple of 1024 bytes on, the alignment that the 128-byte
 * swizzle needs
 */
HZ_DEVICE uint8_t *shared_start(void)
{
	extern __shared__ uint8_t memory[];

	return memory + (-shared_address(memory) & 1023);
}

#endif
