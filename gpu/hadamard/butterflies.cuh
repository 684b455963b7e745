/*
 * butterflies.cuh - butterflies in registers, the vectors of a call
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_BUTTERFLIES_CUH
#define HZI_GPU_HADAMARD_BUTTERFLIES_CUH

#include "gpu/device/base.cuh"
#include "gpu/hadamard/hadamard.h"

/* One stage between the values of v whose indices differ in bit BIT. */
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

/* Stages of the bits LOW .. HIGH - 1, the first count of them. */
template <int N, int LOW, int HIGH>
HZ_DEVICE void stages(float *v, int count)
{
	if constexpr (LOW < HIGH) {
		if (count > 0)
			stage<N, LOW>(v);
		stages<N, LOW + 1, HIGH>(v, count - 1);
	}
}

/* Vector v by its indices in the two dimensions, see struct hzi_hadamard_rows */
struct split {
	int64_t hi, lo;
};

HZ_DEVICE split split_vector(const hzi_hadamard_rows &p, int64_t vector)
{
	if (p.single)
		return {0, vector};
	const uint32_t v = (uint32_t)vector, hi = (__umulhi(v, p.magic) + v) >> p.shift;

	return {hi, v - hi * (uint32_t)p.dim[1].size};
}

#endif
