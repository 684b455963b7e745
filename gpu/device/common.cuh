/*
 * common.cuh - what kernels share: number formats, asynchronous copies, clusters
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_COMMON_CUH
#define HZI_COMMON_CUH

#include <stdint.h>

#include "hurwitz.h"

#define HZ_DEVICE static __device__ __forceinline__

/*
 * For __launch_bounds__: so many blocks on a multiprocessor, or as many as it holds. Those of GPUs
 * for graphics have room for 1536 threads, not 2048.
 */
#if defined(__CUDA_ARCH__) && \
	(__CUDA_ARCH__ >= 1200 || (__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900))
#define HZ_BLOCKS(threads, blocks) \
	((threads) * (blocks) > 1536 ? 1536 / (threads) : (blocks) > 16 ? 16 : (blocks))
#else
#define HZ_BLOCKS(threads, blocks) (blocks)
#endif

/* A constant as a type. */
template <int I>
struct std_int {
	static constexpr int value = I;
};

/* ---- Number formats ------------------------------------------------------------------------ */

HZ_DEVICE float f16_low(uint32_t pair)
{
	float f;

	asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(pair));
	return f;
}

HZ_DEVICE float f16_high(uint32_t pair)
{
	float f;

	asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(pair));
	return f;
}

HZ_DEVICE float bf16_low(uint32_t pair)
{
	return __uint_as_float(pair << 16);
}

HZ_DEVICE float bf16_high(uint32_t pair)
{
	return __uint_as_float(pair & 0xffff0000);
}

HZ_DEVICE uint32_t to_f16x2(float low, float high)
{
	uint32_t pair;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	return pair;
}

HZ_DEVICE uint32_t to_bf16x2(float low, float high)
{
	uint32_t pair;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	return pair;
}

/* An 8-bit float from an absolute value in f32: mbits of mantissa, least exponent emin, largest
 * code. */
HZ_DEVICE uint32_t fp8_encode(float x, int mbits, int emin, uint32_t largest)
{
	const uint32_t u = __float_as_uint(x) & 0x7fffffff, shift = 23 - mbits;
	uint32_t code;

	if (u > 0x7f800000)
		return 0x7f;
	if (u < (uint32_t)(emin + 127) << 23)
		code = (uint32_t)__float2int_rn(
			__uint_as_float(u) * __uint_as_float((uint32_t)(127 - emin + mbits) << 23));
	else
		code = ((u + (1u << (shift - 1)) - 1 + (u >> shift & 1)) >> shift) -
		       ((uint32_t)(emin + 126) << mbits);
	return (code > largest ? largest : code) | (__float_as_uint(x) >> 24 & 0x80);
}

HZ_DEVICE uint32_t to_e4m3x2(float low, float high)
{
#if __CUDA_ARCH__ >= 890
	uint16_t pair;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
	return pair;
#else
	return fp8_encode(low, 3, -6, 0x7e) | fp8_encode(high, 3, -6, 0x7e) << 8;
#endif
}

HZ_DEVICE uint32_t to_e5m2x2(float low, float high)
{
#if __CUDA_ARCH__ >= 890
	uint16_t pair;

	asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
	return pair;
#else
	return fp8_encode(low, 2, -14, 0x7b) | fp8_encode(high, 2, -14, 0x7b) << 8;
#endif
}

/* e5m2 is the upper half of f16. */
HZ_DEVICE float from_e5m2(uint32_t code)
{
	return f16_low((code & 0xff) << 8);
}

/* The bits of e4m3, put where those of f16 lie, are the value times 2^-8; but NaN is one code. */
HZ_DEVICE float from_e4m3(uint32_t code)
{
	const float f = f16_low((code & 0x7f) << 7 | (code & 0x80) << 8) * 256.0f;

	return (code & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : f;
}

/* A byte or nibble that is an integer: its bits with the sign turned are a number above 2^23. */
HZ_DEVICE float from_s8(uint32_t code)
{
	return __uint_as_float(0x4b000000 | ((code & 0xff) ^ 0x80)) - 8388736.0f;
}

HZ_DEVICE float from_s4(uint32_t code)
{
	return __uint_as_float(0x4b000000 | ((code & 0xf) ^ 8)) - 8388616.0f;
}

HZ_DEVICE float from_e8m0(uint32_t code)
{
	return __uint_as_float(code == 255 ? 0x7fffffff : code ? code << 23 : 1 << 22);
}

/* Element i of memory of any dtype; of s4x2, nibble i. */
HZ_DEVICE float load_any(int dtype, const void *p, int64_t i)
{
	switch (dtype) {
	case HZ_F32:
		return ((const float *)p)[i];
	case HZ_F16:
		return f16_low(((const uint16_t *)p)[i]);
	case HZ_BF16:
		return bf16_low(((const uint16_t *)p)[i]);
	case HZ_S8:
		return from_s8(((const uint8_t *)p)[i]);
	case HZ_S4X2:
		return from_s4(((const uint8_t *)p)[i >> 1] >> ((i & 1) << 2));
	case HZ_E4M3:
		return from_e4m3(((const uint8_t *)p)[i]);
	case HZ_E5M2:
		return from_e5m2(((const uint8_t *)p)[i]);
	default:
		return from_e8m0(((const uint8_t *)p)[i]);
	}
}

HZ_DEVICE void store_any(int dtype, void *p, int64_t i, float f)
{
	if (dtype == HZ_F32)
		((float *)p)[i] = f;
	else
		((uint16_t *)p)[i] = (uint16_t)(dtype == HZ_F16 ? to_f16x2(f, 0) : to_bf16x2(f, 0));
}

HZ_DEVICE float round_to(int dtype, float f)
{
	if (dtype == HZ_F16)
		return f16_low(to_f16x2(f, 0));
	return dtype == HZ_BF16 ? bf16_low(to_bf16x2(f, 0)) : f;
}

/* The larger of two, NaN if one is. */
HZ_DEVICE float max_nan(float a, float b)
{
	float r;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
	return r;
}

/* ---- Memory --------------------------------------------------------------------------------- */

HZ_DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from memory to shared memory, both sides aligned to 16; they pass by the L1 cache. */
HZ_DEVICE void copy_async(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

/* What this thread has begun since the last time is a group. */
HZ_DEVICE void copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until no more than N groups are under way */
template <int N>
HZ_DEVICE void copy_wait_but(void)
{
	asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* Waits for all that this thread has begun. */
HZ_DEVICE void copy_wait(void)
{
	asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}

/* ---- Clusters: blocks that read each other's shared memory ---------------------------------- */

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

/* The address in block rank's shared memory of what lies at address in this block's. */
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

/*
 * Of 2 HALF values of each lane the sums over lanes that differ below 2 HALF: value l ends in lane
 * l, at v[0]. Each step halves what a lane has: with HALF 16 it takes 31 exchanges, not 160.
 */
template <int HALF>
HZ_DEVICE void fold_lanes(float *v)
{
	const bool upper = threadIdx.x & HALF;

#pragma unroll
	for (int i = 0; i < HALF; i++) {
		const float keep = upper ? v[i + HALF] : v[i], send = upper ? v[i] : v[i + HALF];

		v[i] = keep + __shfl_xor_sync(0xffffffff, send, HALF);
	}
	if constexpr (HALF > 1)
		fold_lanes<HALF / 2>(v);
}

#endif
