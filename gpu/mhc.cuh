/*
 * mhc.cuh - 16-byte vectors of streams, their coefficients, and the sums of a channel
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * u and y of a channel are made by one sequence of operations wherever that happens: what
 * recomputes streams, or makes them on the way to something else, has the same bits.
 */
#ifndef HZI_MHC_CUH
#define HZI_MHC_CUH

#include "gpu/common.cuh"
#include "gpu/mhc.h"

/* body<n>(p) for n = 1 .. 8 streams */
#define BY_STREAMS(body, n) \
	switch (n) { \
	case 1: return body<1>(p); \
	case 2: return body<2>(p); \
	case 3: return body<3>(p); \
	case 4: return body<4>(p); \
	case 5: return body<5>(p); \
	case 6: return body<6>(p); \
	case 7: return body<7>(p); \
	default: return body<8>(p); \
	}

/* ---- Vectors of 16 bytes --------------------------------------------------------------------- */

struct words {
	uint32_t w[4];
};

/* In the order of the program: loads before the first use, and before stores to the same place */
HZ_DEVICE words load_words(const void *p)
{
	words v;

	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
	return v;
}

HZ_DEVICE void store_words(void *p, const words &v)
{
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
		     :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

/* A word of such a vector as floats, and back */
template <int DT>
struct word_of {
	static constexpr int count = DT == HZ_F32 ? 1 : 2, bytes = 4 / count;

	static __device__ __forceinline__ float get(uint32_t w, int i)
	{
		if (DT == HZ_F32)
			return __uint_as_float(w);
		if (DT == HZ_F16)
			return i ? f16_high(w) : f16_low(w);
		return i ? bf16_high(w) : bf16_low(w);
	}

	static __device__ __forceinline__ uint32_t put(const float *f)
	{
		if (DT == HZ_F32)
			return __float_as_uint(f[0]);
		return DT == HZ_F16 ? to_f16x2(f[0], f[count - 1]) : to_bf16x2(f[0], f[count - 1]);
	}
};

/* ---- Coefficients ---------------------------------------------------------------------------- */

HZ_DEVICE int64_t mhc_divide(int64_t i, int64_t n)
{
	if (n == 1)
		return i;
	return ((uint64_t)i | (uint64_t)n) >> 32 ? i / n : (uint32_t)i / (uint32_t)n;
}

/* p or q of group s; missing: what stands for those that are not there */
template <int N>
HZ_DEVICE void load_row(const hzi_mhc_coef &c, int64_t s, bool whole, float missing, float *to)
{
	const float *from = c.data + s * c.group;

	if (N == 4 && whole) {
		const float4 v = *(const float4 *)from;

		to[0] = v.x, to[1] = v.y, to[N == 4 ? 2 : 0] = v.z, to[N == 4 ? 3 : 0] = v.w;
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		to[i] = c.data ? from[i * c.row] : missing;
}

template <int N>
HZ_DEVICE void load_matrix(const hzi_mhc_coef &c, int64_t s, bool whole, float (*to)[N])
{
	const float *from = c.data + s * c.group;

#pragma unroll
	for (int i = 0; i < N; i++) {
		if (N == 4 && whole) {
			const float4 v = ((const float4 *)from)[i];

			to[i][0] = v.x, to[i][1] = v.y;
			to[i][N == 4 ? 2 : 0] = v.z, to[i][N == 4 ? 3 : 0] = v.w;
			continue;
		}
#pragma unroll
		for (int j = 0; j < N; j++)
			to[i][j] = from[i * c.row + j * c.column];
	}
}

/* ---- A channel ------------------------------------------------------------------------------- */

/* sum_j c_j x_j, of n <= N streams */
template <int N>
HZ_DEVICE float mix_row(const float *c, const float *x, int n = N)
{
	float y = c[0] * x[0];

#pragma unroll
	for (int j = 1; j < N; j++)
		if (j < n)
			y = fmaf(c[j], x[j], y);
	return y;
}

HZ_DEVICE float load_at(const hzi_mhc_shape &s, const hzi_mhc_array &a, int64_t t, int i, int64_t c)
{
	const int64_t at = t * a.token + i * a.stream + c * a.channel;
	uint16_t half;

	if (s.dtype == HZ_F32)
		return ((const float *)a.data)[at];
	half = ((const uint16_t *)a.data)[at];
	return s.dtype == HZ_F16 ? f16_low(half) : bf16_low(half);
}

HZ_DEVICE void store_at(const hzi_mhc_shape &s, const hzi_mhc_array &a, int64_t t, int i, int64_t c,
			float f)
{
	store_any(s.dtype, a.data, t * a.token + i * a.stream + c * a.channel, f);
}

/* Channels that a thread of kernels for any streams loads before it computes */
#define TOGETHER(n) ((n) > 4 ? 1 : 2)

#endif
