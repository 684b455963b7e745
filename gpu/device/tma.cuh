/*
 * tma.cuh - copies of boxes of matrices, and what else the kernels around them use: for compute
 * capability 9.0
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_TMA_CUH
#define HZI_TMA_CUH

#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"

/* cuTensorMapEncodeTiled()'s; the driver wants it aligned so. */
struct hzi_tensor_map;

/* What this thread wrote to shared memory is there for copies. */
HZ_DEVICE void copy_fence(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

HZ_DEVICE uint4 shared_load(uint32_t from)
{
	uint4 v;

	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
	return v;
}

/* A box of the map, from column x and row y on. */
HZ_DEVICE void copy_box(uint32_t to, const hzi_tensor_map &map, int x, int y, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4}], [%2];"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

/* The same to that place in each of those blocks of the cluster. */
HZ_DEVICE void copy_box_to(uint16_t mask, uint32_t to, const hzi_tensor_map &map, int x, int y,
			   uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(mask) : "memory");
}

/* The same of planes of the map, from one on. */
HZ_DEVICE void copy_planes(uint32_t to, const hzi_tensor_map &map, int x, int y, int plane,
			   uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5}], [%2];"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(plane) : "memory");
}

/* The same to that place in each of those blocks of the cluster. */
HZ_DEVICE void copy_planes_to(uint16_t mask, uint32_t to, const hzi_tensor_map &map, int x, int y,
			      int plane, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(plane), "h"(mask)
		     : "memory");
}

/* 16 bytes to another block's memory; addresses of cluster_map(). */
HZ_DEVICE void store_async(uint32_t to, float a, float b, float c, float d, uint32_t barrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
		     "[%0], {%1, %2, %3, %4}, [%5];"
		     :: "r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}

/* Registers of the threads of a warpgroup: what some give back, others take. */
template <int N>
HZ_DEVICE void registers_less(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}

template <int N>
HZ_DEVICE void registers_more(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}

/* The description of a tensor is on its way when it is wanted. */
HZ_DEVICE void prefetch_map(const hzi_tensor_map &map)
{
	asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

/* Where in the ring, and which time round. */
template <int STAGES>
struct turn {
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

/* The number of the block in its cluster */
HZ_DEVICE uint32_t cluster_rank(void)
{
	uint32_t rank;

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	return rank;
}

/* All blocks of the cluster have their barriers, and the kernel ahead has ended. */
HZ_DEVICE void cluster_begin(void)
{
	grid_next();
	__syncthreads();
	cluster_arrive();
	cluster_wait();
	grid_wait();
}

/* Until then other blocks may still say here what they have done. */
HZ_DEVICE void cluster_end(void)
{
	__syncwarp();
	cluster_arrive();
	cluster_wait();
}

/* The first multiple of 1024 in dynamic shared memory, as the swizzle wants it. */
HZ_DEVICE uint8_t *shared_start(void)
{
	extern __shared__ uint8_t memory[];

	return memory + (-shared_address(memory) & 1023);
}

#endif
