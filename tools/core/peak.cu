/*
 * peak.cu - multiply-adds without loads and stores: the ceiling of products in hurwitz bench
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Operands are in registers, or for wgmma in shared memory; nothing is loaded from or stored to
 * global memory. They are random: the power that tensor cores draw, and with it the clock
 * frequency, depends on the data.
 */
#include "tools/core/peak.h"
#include "gpu/device/mma.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#define KERNEL(name, blocks) \
	extern "C" __global__ void __launch_bounds__(HZI_PEAK_THREADS, blocks) \
	name(const __grid_constant__ hzi_peak p)

HZ_DEVICE uint32_t random_bits(uint32_t i)
{
	i = (i ^ i >> 16) * 0x7feb352d;
	i = (i ^ i >> 15) * 0x846ca68b;
	return i ^ i >> 16;
}

/* Two f16 numbers with random signs and magnitudes from 2^-3 to 2 */
HZ_DEVICE uint32_t random_pair(uint32_t i)
{
	return (random_bits(i) & 0x8fff8fff) | 0x30003000;
}

/* A store that never happens, which keeps the compiler from removing the accumulators */
template <int N, class NUMBER>
HZ_DEVICE void keep(const hzi_peak &p, const NUMBER (&acc)[N])
{
	NUMBER all = 0;

#pragma unroll
	for (int i = 0; i < N; i++)
		all += acc[i];
	if (p.steps < 0)
		*p.never = (float)all;
}

/* ---- f32 multiply-adds ----------------------------------------------------------------------- */

KERNEL(peak_f32, 4)
{
	const float a = __uint_as_float((random_bits(threadIdx.x) & 0x7fffff) | 0x3f000000);
	float acc[HZI_PEAK_CHAINS];

	pdl_launch_dependents();
#pragma unroll
	for (int i = 0; i < HZI_PEAK_CHAINS; i++)
		acc[i] = (float)i;
#pragma unroll 8
	for (int64_t s = 0; s < p.steps; s++) {
#pragma unroll
		for (int i = 0; i < HZI_PEAK_CHAINS; i++)
			acc[i] = __fmaf_rn(acc[i], a, a);
	}
	keep(p, acc);
	pdl_wait();
}

/* ---- mma.sync -------------------------------------------------------------------------------- */

HZ_DEVICE void tile(float *d, const uint32_t *a, const uint32_t *b)
{
	mma_m16n8k16<HZ_F16>(d, a, b[0], b[1]);
}

HZ_DEVICE void tile(int32_t *d, const uint32_t *a, const uint32_t *b)
{
	mma_m16n8k32<false, true>(d, a, b[0], b[1]);
}

template <class NUMBER>
HZ_DEVICE void mma_tiles(const hzi_peak &p)
{
	NUMBER acc[4 * HZI_PEAK_TILES];
	uint32_t a[4], b[2];

	pdl_launch_dependents();
	/* Different values: the compiler would merge equal accumulators. */
#pragma unroll
	for (int i = 0; i < 4 * HZI_PEAK_TILES; i++)
		acc[i] = (NUMBER)i;
#pragma unroll
	for (int i = 0; i < 4; i++)
		a[i] = random_pair(8 * threadIdx.x + i);
#pragma unroll
	for (int i = 0; i < 2; i++)
		b[i] = random_pair(8 * threadIdx.x + 4 + i);
	for (int64_t s = 0; s < p.steps; s++) {
#pragma unroll
		for (int i = 0; i < HZI_PEAK_TILES; i++)
			tile(acc + 4 * i, a, b);
	}
	keep(p, acc);
	pdl_wait();
}

KERNEL(peak_f16_mma_sync, 2)
{
	mma_tiles<float>(p);
}

KERNEL(peak_s8_mma_sync, 2)
{
	mma_tiles<int32_t>(p);
}

/* ---- wgmma ----------------------------------------------------------------------------------- */

#if HAVE_WGMMA
HZ_DEVICE void wgmma_step(float (&acc)[128], uint64_t a, uint64_t b)
{
	wgmma<false>(acc, a, b, 1);
}

HZ_DEVICE void wgmma_step(int32_t (&acc)[128], uint64_t a, uint64_t b)
{
	wgmma<false, true>(acc, a, b, 1);
}

/* 64 rows of A for each of two warp groups, 256 columns of B for both, 128 bytes each */
template <class NUMBER>
HZ_DEVICE void wgmma_tiles(const hzi_peak &p)
{
	__shared__ __align__(1024) uint32_t operands[(2 * 64 + 256) * 32];
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(operands);
	const uint64_t a = wgmma_desc_k(at + threadIdx.x / 128 * 64 * 128);
	const uint64_t b = wgmma_desc_k(at + 2 * 64 * 128);
	NUMBER acc[128] = {};

	pdl_launch_dependents();
	for (uint32_t i = threadIdx.x; i < (2 * 64 + 256) * 32; i += HZI_PEAK_THREADS)
		operands[i] = random_pair(i);
	fence_proxy_async();
	__syncthreads();
	wgmma_keep(acc);
	for (int64_t s = 0; s < p.steps; s++) {
		wgmma_fence();
		wgmma_step(acc, a + 2 * (s & 3), b + 2 * (s & 3));
		wgmma_commit();
		wgmma_wait<1>();
	}
	wgmma_wait<0>();
	wgmma_keep(acc);
	keep(p, acc);
	pdl_wait();
}
#endif

KERNEL(peak_f16_wgmma, 1)
HZ_HOPPER_BODY(wgmma_tiles<float>(p))

KERNEL(peak_s8_wgmma, 1)
HZ_HOPPER_BODY(wgmma_tiles<int32_t>(p))
