/*
 * peak.cu - multiplications alone, which hurwitz bench measures products against
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Operands are in registers or, of the wide ones, in shared memory, and nothing is loaded or stored.
 * They are random: what matrix units draw, and so the clock, depends on them.
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

/* Two numbers of f16 with signs, of 2^-3 to 2 */
HZ_DEVICE uint32_t random_pair(uint32_t i)
{
	return (random_bits(i) & 0x8fff8fff) | 0x30003000;
}

/* What is never stored, which keeps the compiler from leaving the sums out */
template <int N, class NUMBER>
HZ_DEVICE void keep(const hzi_peak &p, const NUMBER (&sum)[N])
{
	NUMBER all = 0;

#pragma unroll
	for (int i = 0; i < N; i++)
		all += sum[i];
	if (p.steps < 0)
		*p.never = (float)all;
}

/* ---- Multiply-adds of f32 -------------------------------------------------------------------- */

KERNEL(peak_f32, 4)
{
	const float a = __uint_as_float((random_bits(threadIdx.x) & 0x7fffff) | 0x3f000000);
	float sum[HZI_PEAK_CHAINS];

	pdl_launch_dependents();
#pragma unroll
	for (int i = 0; i < HZI_PEAK_CHAINS; i++)
		sum[i] = (float)i;
#pragma unroll 8
	for (int64_t s = 0; s < p.steps; s++) {
#pragma unroll
		for (int i = 0; i < HZI_PEAK_CHAINS; i++)
			sum[i] = __fmaf_rn(sum[i], a, a);
	}
	keep(p, sum);
	pdl_wait();
}

/* ---- Matrix units of any GPU ----------------------------------------------------------------- */

HZ_DEVICE void tile(float *d, const uint32_t *a, const uint32_t *b)
{
	mma_m16n8k16<HZ_F16>(d, a, b[0], b[1]);
}

HZ_DEVICE void tile(int32_t *d, const uint32_t *a, const uint32_t *b)
{
	mma_m16n8k32<false, true>(d, a, b[0], b[1]);
}

template <class NUMBER>
HZ_DEVICE void tiles(const hzi_peak &p)
{
	NUMBER sum[4 * HZI_PEAK_TILES];
	uint32_t a[4], b[2];

	pdl_launch_dependents();
	/* Equal ones would be one for the compiler. */
#pragma unroll
	for (int i = 0; i < 4 * HZI_PEAK_TILES; i++)
		sum[i] = (NUMBER)i;
#pragma unroll
	for (int i = 0; i < 4; i++)
		a[i] = random_pair(8 * threadIdx.x + i);
#pragma unroll
	for (int i = 0; i < 2; i++)
		b[i] = random_pair(8 * threadIdx.x + 4 + i);
	for (int64_t s = 0; s < p.steps; s++) {
#pragma unroll
		for (int i = 0; i < HZI_PEAK_TILES; i++)
			tile(sum + 4 * i, a, b);
	}
	keep(p, sum);
	pdl_wait();
}

KERNEL(peak_16, 2)
{
	tiles<float>(p);
}

KERNEL(peak_8, 2)
{
	tiles<int32_t>(p);
}

/* ---- Those of Hopper ------------------------------------------------------------------------- */

#if HAVE_WGMMA
HZ_DEVICE void wide_step(float (&sum)[128], uint64_t a, uint64_t b)
{
	wgmma<false>(sum, a, b, 1);
}

HZ_DEVICE void wide_step(int32_t (&sum)[128], uint64_t a, uint64_t b)
{
	wgmma<false, true>(sum, a, b, 1);
}

/* 64 lines of A for each of two groups of four warps, 256 of B for both */
template <class NUMBER>
HZ_DEVICE void wide(const hzi_peak &p)
{
	__shared__ __align__(1024) uint32_t lines[(2 * 64 + 256) * 32];
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(lines);
	const uint64_t a = wgmma_desc_k(at + threadIdx.x / 128 * 64 * 128);
	const uint64_t b = wgmma_desc_k(at + 2 * 64 * 128);
	NUMBER sum[128] = {};

	pdl_launch_dependents();
	for (uint32_t i = threadIdx.x; i < (2 * 64 + 256) * 32; i += HZI_PEAK_THREADS)
		lines[i] = random_pair(i);
	fence_proxy_async();
	__syncthreads();
	wgmma_keep(sum);
	for (int64_t s = 0; s < p.steps; s++) {
		wgmma_fence();
		wide_step(sum, a + 2 * (s & 3), b + 2 * (s & 3));
		wgmma_commit();
		wgmma_wait<1>();
	}
	wgmma_wait<0>();
	wgmma_keep(sum);
	keep(p, sum);
	pdl_wait();
}
#endif

KERNEL(peak_wide_16, 1)
HZ_HOPPER_BODY(wide<float>(p))

KERNEL(peak_wide_8, 1)
HZ_HOPPER_BODY(wide<int32_t>(p))
