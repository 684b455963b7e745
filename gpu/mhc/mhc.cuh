/*
 * mhc.cuh - 16-byte vectors of streams, coefficients, and mixing of a channel
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All kernels make u and y of a channel by the same sequence of operations, so that recomputed
 * streams have the same bits.
 */
#ifndef HZI_GPU_MHC_CUH
#define HZI_GPU_MHC_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/mhc/mhc.h"

/* ---- Vectors of 16 bytes --------------------------------------------------------------------- */

struct words {
	uint32_t w[4];
};

/* volatile keeps program order: all loads before the first use, and before stores over them */
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

/* A 32-bit word of a vector to floats, and back */
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

/* p or q of group s; missing: the value if c has no data */
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

/* sum_j c_j x_j over n <= N streams */
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

/* ---- Any layout ------------------------------------------------------------------------------ */

template <int DT>
struct element {
	typedef uint16_t type;
};

template <>
struct element<HZ_F32> {
	typedef float type;
};

template <int DT>
HZ_DEVICE float float_of(typename element<DT>::type v)
{
	if constexpr (DT == HZ_F32)
		return v;
	else
		return DT == HZ_F16 ? f16_low(v) : bf16_low(v);
}

template <int DT>
HZ_DEVICE typename element<DT>::type element_of(float v)
{
	if constexpr (DT == HZ_F32)
		return v;
	else
		return (uint16_t)(DT == HZ_F16 ? to_f16x2(v, v) : to_bf16x2(v, v));
}

/* A token of streams or of branch values: address and strides */
template <int DT>
struct token_row {
	typename element<DT>::type *data;
	int64_t stream, channel;

	__device__ token_row(const hzi_mhc_array &a, int64_t t) :
		data((typename element<DT>::type *)a.data + t * a.token), stream(a.stream),
		channel(a.channel)
	{
	}

	__device__ float load(int64_t c) const
	{
		return float_of<DT>(data[c * channel]);
	}

	__device__ void store(int64_t c, float v) const
	{
		data[c * channel] = element_of<DT>(v);
	}
};

/* All streams of a channel; TOGETHER: they are contiguous, one or two aligned vectors */
template <int DT, int N, bool TOGETHER>
struct channel_of {
	typedef typename element<DT>::type type;

	struct __align__(N * sizeof(type) > 16 ? 16 : TOGETHER ? N * sizeof(type) : sizeof(type))
		pack {
		type v[N];
	};

	static __device__ __forceinline__ void load(const token_row<DT> &from, int64_t c, float *to)
	{
		const type *const at = from.data + c * from.channel;
		pack all;

		if constexpr (TOGETHER) {
			all = *(const pack *)at;
		} else {
#pragma unroll
			for (int i = 0; i < N; i++)
				all.v[i] = at[i * from.stream];
		}
#pragma unroll
		for (int i = 0; i < N; i++)
			to[i] = float_of<DT>(all.v[i]);
	}

	static __device__ __forceinline__ void store(const token_row<DT> &to, int64_t c,
						     const float *from)
	{
		type *const at = to.data + c * to.channel;
		pack all;

#pragma unroll
		for (int i = 0; i < N; i++)
			all.v[i] = element_of<DT>(from[i]);
		if constexpr (TOGETHER) {
			*(pack *)at = all;
		} else {
#pragma unroll
			for (int i = 0; i < N; i++)
				at[i * to.stream] = all.v[i];
		}
	}
};

/* body<dtype, n, together>(...); together only for 2, 4 or 8 streams */
#define STRIDED_STREAMS(body, s, together, ...) \
	if ((s).dtype == HZ_F32) { \
		ANY_STREAMS_OF(body, HZ_F32, (s).n, together, __VA_ARGS__) \
	} else if ((s).dtype == HZ_F16) { \
		ANY_STREAMS_OF(body, HZ_F16, (s).n, together, __VA_ARGS__) \
	} else { \
		ANY_STREAMS_OF(body, HZ_BF16, (s).n, together, __VA_ARGS__) \
	}
#define ANY_STREAMS_OF(body, dtype, n, together, ...) \
	switch (n) { \
	case 1: return body<dtype, 1, false>(__VA_ARGS__); \
	case 2: return together ? body<dtype, 2, true>(__VA_ARGS__) : \
				  body<dtype, 2, false>(__VA_ARGS__); \
	case 3: return body<dtype, 3, false>(__VA_ARGS__); \
	case 4: return together ? body<dtype, 4, true>(__VA_ARGS__) : \
				  body<dtype, 4, false>(__VA_ARGS__); \
	case 5: return body<dtype, 5, false>(__VA_ARGS__); \
	case 6: return body<dtype, 6, false>(__VA_ARGS__); \
	case 7: return body<dtype, 7, false>(__VA_ARGS__); \
	default: return together ? body<dtype, 8, true>(__VA_ARGS__) : \
				   body<dtype, 8, false>(__VA_ARGS__); \
	}

#endif
