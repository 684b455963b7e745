/*
 * butterflies.cuh - butterflies in registers, vectors of a call, loads and stores of 1 to 4 values
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_BUTTERFLIES_CUH
#define HZI_GPU_HADAMARD_BUTTERFLIES_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/hadamard/hadamard.h"

/* One butterfly stage, between values of v whose indices differ in bit BIT */
template <int N, int BIT>
HZ_DEVICE void stage(float *v)
{
#pragma unroll
	for (int i = 0; i < N; i++) {
		if (i & 1 << BIT)
			continue;
		const float a = v[i], b = v[i | 1 << BIT];

		v[i] = a + b;
		v[i | 1 << BIT] = a - b;
	}
}

/* Stages of bits LOW .. HIGH - 1, the first count of them */
template <int N, int LOW, int HIGH>
HZ_DEVICE void stages(float *v, int count)
{
	if constexpr (LOW < HIGH) {
		if (count > 0)
			stage<N, LOW>(v);
		stages<N, LOW + 1, HIGH>(v, count - 1);
	}
}

/* C = 1, 2 or 4 successive floats from memory, and to it */
template <int C>
HZ_DEVICE void load_piece(float *v, const void *src)
{
	if constexpr (C == 4) {
		const float4 f = *(const float4 *)src;

		v[0] = f.x;
		v[1] = f.y;
		v[2] = f.z;
		v[3] = f.w;
	} else if constexpr (C == 2) {
		const float2 f = *(const float2 *)src;

		v[0] = f.x;
		v[1] = f.y;
	} else {
		v[0] = *(const float *)src;
	}
}

template <int C>
HZ_DEVICE void store_piece(void *dst, const float *v)
{
	if constexpr (C == 4)
		*(float4 *)dst = make_float4(v[0], v[1], v[2], v[3]);
	else if constexpr (C == 2)
		*(float2 *)dst = make_float2(v[0], v[1]);
	else
		*(float *)dst = v[0];
}

template <int DTYPE>
HZ_DEVICE uint32_t to_16x2(float low, float high)
{
	return DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
}

/* C = 1, 2 or 4 successive results */
template <int DTYPE, int C>
HZ_DEVICE void store_results(void *dst, const float *v)
{
	if constexpr (DTYPE == HZ_F32)
		store_piece<C>(dst, v);
	else if constexpr (C == 4)
		*(uint2 *)dst = make_uint2(to_16x2<DTYPE>(v[0], v[1]), to_16x2<DTYPE>(v[2], v[3]));
	else if constexpr (C == 2)
		*(uint32_t *)dst = to_16x2<DTYPE>(v[0], v[1]);
	else
		*(uint16_t *)dst = (uint16_t)to_16x2<DTYPE>(v[0], 0);
}

/* The indices of a vector in the two dimensions of struct hzi_hadamard_rows */
struct split {
	int64_t hi, lo;
};

HZ_DEVICE split split_vector(const hzi_hadamard_rows &p, int64_t vector)
{
	if (p.one_dim)
		return {0, vector};
	const uint32_t v = (uint32_t)vector, hi = (__umulhi(v, p.magic) + v) >> p.shift;

	return {hi, v - hi * (uint32_t)p.dim[1].size};
}

#endif
