/*
 * tma.cuh - TMA: copies of tiles of tensors that a tensor map describes; for compute capability 9.0
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A load completes on an mbarrier, which expects its bytes. A multicast goes to the same place in
 * each block of the cluster that the mask names.
 */
#ifndef HZI_DEVICE_TMA_CUH
#define HZI_DEVICE_TMA_CUH

#include "gpu/device/cluster.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"

/* As cuTensorMapEncodeTiled() makes it */
struct hzi_tensor_map;

#define HZ_TMA_LOAD(rank) \
	"cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes"

HZ_DEVICE void tma_load_2d(uint32_t to, const hzi_tensor_map &map, int x, int y, uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("2d") " [%0], [%1, {%3, %4}], [%2];"
		     :: "r"(to), "l"(&map), "r"(mbarrier), "r"(x), "r"(y) : "memory");
}

HZ_DEVICE void tma_load_2d_multicast(uint16_t mask, uint32_t to, const hzi_tensor_map &map, int x,
				     int y, uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("2d") ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
		     :: "r"(to), "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "h"(mask) : "memory");
}

HZ_DEVICE void tma_load_3d(uint32_t to, const hzi_tensor_map &map, int x, int y, int z,
			   uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("3d") " [%0], [%1, {%3, %4, %5}], [%2];"
		     :: "r"(to), "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "r"(z) : "memory");
}

HZ_DEVICE void tma_load_3d_multicast(uint16_t mask, uint32_t to, const hzi_tensor_map &map, int x,
				     int y, int z, uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("3d") ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
		     :: "r"(to), "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "r"(z), "h"(mask)
		     : "memory");
}

HZ_DEVICE void tma_load_5d(uint32_t to, const hzi_tensor_map &map, int x, const int (&at)[4],
			   uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("5d") " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
		     :: "r"(to), "l"(&map), "r"(mbarrier), "r"(x), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]) : "memory");
}

HZ_DEVICE void tma_load_5d_multicast(uint16_t mask, uint32_t to, const hzi_tensor_map &map, int x,
				     const int (&at)[4], uint32_t mbarrier)
{
	asm volatile(HZ_TMA_LOAD("5d") ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], "
		     "[%2], %8;"
		     :: "r"(to), "l"(&map), "r"(mbarrier), "r"(x), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]), "h"(mask) : "memory");
}

/* From shared memory to a tile of the map, as part of this thread's next group */
HZ_DEVICE void tma_store_3d(const hzi_tensor_map &map, int x, int y, int z, uint32_t from)
{
	asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
		     "[%0, {%2, %3, %4}], [%1];"
		     :: "l"(&map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
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

/* Fetches a tensor map ahead of its use. */
HZ_DEVICE void tma_prefetch_map(const hzi_tensor_map &map)
{
	asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

/* Makes this thread's writes to shared memory visible to TMA and to wgmma. */
HZ_DEVICE void fence_proxy_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- What kernels around them use ----------------------------------------------------------- */

/* Sets the registers of this warpgroup's threads to N: some give back what others take. */
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

/* After it all blocks of the cluster have initialized their mbarriers, and the kernel ahead has
 * ended. */
HZ_DEVICE void cluster_begin(void)
{
	pdl_launch_dependents();
	__syncthreads();
	cluster_arrive();
	cluster_wait();
	pdl_wait();
}

/* Before it other blocks may still arrive at this block's mbarriers. */
HZ_DEVICE void cluster_end(void)
{
	__syncwarp();
	cluster_arrive();
	cluster_wait();
}

/* The first multiple of 1024 in dynamic shared memory, as the 128-byte swizzle wants it */
HZ_DEVICE uint8_t *shared_start(void)
{
	extern __shared__ uint8_t memory[];

	return memory + (-shared_address(memory) & 1023);
}

#endif
