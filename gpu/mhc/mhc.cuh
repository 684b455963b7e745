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

struct vector16 {
	uint32_t w[4];
};

/* volatile keeps program order: all loads before the first use, and before stores over them */
HZ_DEVICE vector16 load_vector16(const void *p)
{
	vector16 v;

	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
	return v;
}

HZ_DEVICE void store_vector16(void *p, const vector16 &v)
{
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
		     :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

/*
 * Moves the next word to the front and makes room at the end: a loop over the words of vectors in
 * registers that takes word 0 and writes word 3 need not be unrolled.
 */
HZ_DEVICE void next_word(vector16 &v)
{
	v.w[0] = v.w[1];
	v.w[1] = v.w[2];
	v.w[2] = v.w[3];
}

/* Converts a 32-bit word of a vector to floats, and floats to it. */
template <int DT>
struct word_format {
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

/* Address of vector v of stream i of token t */
template <int DT>
HZ_DEVICE char *vector_at(const void *data, const hzi_mhc_array &a, int64_t t, int i, int64_t v)
{
	return (char *)data + (t * a.token + i * a.stream) * word_format<DT>::bytes + v * 16;
}

template <int DT>
HZ_DEVICE vector16 load_stream(const hzi_mhc_array &a, int64_t t, int i, int64_t v)
{
	return load_vector16(vector_at<DT>(a.data, a, t, i, v));
}

template <int DT>
HZ_DEVICE void store_stream(const hzi_mhc_array &a, int64_t t, int i, int64_t v, const vector16 &x)
{
	store_vector16(vector_at<DT>(a.data, a, t, i, v), x);
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

HZ_DEVICE int64_t mhc_divide(int64_t i, int64_t n)
{
	if (n == 1)
		return i;
	return ((uint64_t)i | (uint64_t)n) >> 32 ? i / n : (uint32_t)i / (uint32_t)n;
}

/* Loads p or q of group s, of n <= N streams; `missing` if c has no data. */
template <int N>
HZ_DEVICE void load_row(const hzi_mhc_coef &c, int64_t s, bool float4s, float missing, float *dst,
			int n = N)
{
	const float *src = c.data + s * c.group;

	if (N == 4 && float4s) {
		const float4 v = *(const float4 *)src;

		dst[0] = v.x, dst[1] = v.y, dst[N == 4 ? 2 : 0] = v.z, dst[N == 4 ? 3 : 0] = v.w;
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		dst[i] = i >= n ? 0 : c.data ? src[i * c.row] : missing;
}

template <int N>
HZ_DEVICE void load_matrix(const hzi_mhc_coef &c, int64_t s, bool float4s, float (*dst)[N],
			   int n = N)
{
	const float *src = c.data + s * c.group;

#pragma unroll
	for (int i = 0; i < N; i++) {
		if (N == 4 && float4s) {
			const float4 v = ((const float4 *)src)[i];

			dst[i][0] = v.x, dst[i][1] = v.y;
			dst[i][N == 4 ? 2 : 0] = v.z, dst[i][N == 4 ? 3 : 0] = v.w;
			continue;
		}
#pragma unroll
		for (int j = 0; j < N; j++)
			dst[i][j] = i < n && j < n ? src[i * c.row + j * c.column] : 0;
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
	uint16_t bits;

	if (s.dtype == HZ_F32)
		return ((const float *)a.data)[at];
	bits = ((const uint16_t *)a.data)[at];
	return s.dtype == HZ_F16 ? f16_low(bits) : bf16_low(bits);
}

HZ_DEVICE void store_at(const hzi_mhc_shape &s, const hzi_mhc_array &a, int64_t t, int i, int64_t c,
			float f)
{
	store_any(s.dtype, a.data, t * a.token + i * a.stream + c * a.channel, f);
}

/* ---- Any strides ----------------------------------------------------------------------------- */

/* A number of f32, or of 16 bits, then f16 or bf16 by the dtype of a call */
template <bool F32>
struct element {
	typedef uint16_t type;
};

template <>
struct element<true> {
	typedef float type;
};

template <bool F32>
HZ_DEVICE float float_of(int dtype, typename element<F32>::type v)
{
	if constexpr (F32)
		return v;
	else
		return dtype == HZ_F16 ? f16_low(v) : bf16_low(v);
}

template <bool F32>
HZ_DEVICE typename element<F32>::type element_of(int dtype, float v)
{
	if constexpr (F32)
		return v;
	else
		return (uint16_t)(dtype == HZ_F16 ? to_f16x2(v, v) : to_bf16x2(v, v));
}

/* A token of streams or of branch values: address and strides */
template <bool F32>
struct token_row {
	typename element<F32>::type *data;
	int64_t stream, channel;
	int dtype;

	__device__ token_row(const hzi_mhc_array &a, int64_t t, int dtype) :
		data((typename element<F32>::type *)a.data + t * a.token), stream(a.stream),
		channel(a.channel), dtype(dtype)
	{
	}

	__device__ float load(int64_t c) const
	{
		return float_of<F32>(dtype, data[c * channel]);
	}

	__device__ void store(int64_t c, float v) const
	{
		data[c * channel] = element_of<F32>(dtype, v);
	}
};

/*
 * All n <= N streams of a channel; innermost: n is 2, 4 or 8, and they are contiguous, one or two
 * aligned vectors.
 */
template <bool F32, int N>
struct channel_of {
	typedef typename element<F32>::type type;
	static constexpr bool vectors = N == 2 || N == 4 || N == 8;

	struct __align__(N * sizeof(type) > 16 ? 16 : vectors ? N * sizeof(type) : sizeof(type))
		pack {
		type v[N];
	};

	/* Unconverted, so that several loads are in flight */
	static __device__ __forceinline__ pack load(const token_row<F32> &src, int64_t c, int n,
						    bool innermost)
	{
		const type *const at = src.data + c * src.channel;
		pack all = {};

		if (vectors && innermost) {
			all = *(const pack *)at;
		} else {
#pragma unroll
			for (int i = 0; i < N; i++)
				if (i < n)
					all.v[i] = at[i * src.stream];
		}
		return all;
	}

	static __device__ __forceinline__ void convert(int dtype, const pack &all, float *dst)
	{
#pragma unroll
		for (int i = 0; i < N; i++)
			dst[i] = float_of<F32>(dtype, all.v[i]);
	}

	static __device__ __forceinline__ void store(const token_row<F32> &dst, int64_t c, int n,
						     bool innermost, const float *src)
	{
		type *const at = dst.data + c * dst.channel;
		pack all;

#pragma unroll
		for (int i = 0; i < N; i++)
			all.v[i] = element_of<F32>(dst.dtype, src[i]);
		if (vectors && innermost) {
			*(pack *)at = all;
		} else {
#pragma unroll
			for (int i = 0; i < N; i++)
				if (i < n)
					at[i * dst.stream] = all.v[i];
		}
	}
};

/* ---- Dispatch -------------------------------------------------------------------------------- */

/* A statement with DT = dtype as a constant */
#define SWITCH_DTYPE(dtype, ...) \
	if ((dtype) == HZ_F32) { \
		constexpr int DT = HZ_F32; \
		__VA_ARGS__; \
	} else if ((dtype) == HZ_F16) { \
		constexpr int DT = HZ_F16; \
		__VA_ARGS__; \
	} else { \
		constexpr int DT = HZ_BF16; \
		__VA_ARGS__; \
	}

/* Cases of a switch over the number of streams: a statement with N as a constant, then a return */
#define STREAMS_CASE(label, n, ...) label: { constexpr int N = n; __VA_ARGS__; return; }
#define CASES_1_TO_3(...) \
	STREAMS_CASE(case 1, 1, __VA_ARGS__) STREAMS_CASE(case 2, 2, __VA_ARGS__) \
	STREAMS_CASE(case 3, 3, __VA_ARGS__)
#define CASES_5_TO_8(...) \
	STREAMS_CASE(case 5, 5, __VA_ARGS__) STREAMS_CASE(case 6, 6, __VA_ARGS__) \
	STREAMS_CASE(case 7, 7, __VA_ARGS__) STREAMS_CASE(default, 8, __VA_ARGS__)
/* Where 5 to 7 streams would double the code of a kernel that is seldom used with them */
#define SWITCH_COMMON_STREAMS(n, ...) /* 1, 2, 3, 4 or 8 */ \
	switch (n) { \
	CASES_1_TO_3(__VA_ARGS__) STREAMS_CASE(case 4, 4, __VA_ARGS__) \
	STREAMS_CASE(default, 8, __VA_ARGS__) \
	}

/* body<whether f32, n or 8>(...) */
#define STRIDED_STREAMS(body, s, ...) \
	if ((s).dtype == HZ_F32) { \
		SWITCH_COMMON_STREAMS((s).n, body<true, N>(__VA_ARGS__)) \
	} else { \
		SWITCH_COMMON_STREAMS((s).n, body<false, N>(__VA_ARGS__)) \
	}

#endif
