/*
 * gated_tile.cuh - operands of the products of gated branch inputs: 8 values at a time
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_TILE_CUH
#define HZI_GPU_MHC_GATED_TILE_CUH

#include "gpu/mhc/coef.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"

/* Eight contiguous elements as loaded: f32, or two of 16 bits in each of the first four words */
struct raw8 {
	uint32_t w[8];
};

HZ_DEVICE void clear_raw(raw8 &r)
{
#pragma unroll
	for (int e = 0; e < 8; e++)
		r.w[e] = 0;
}

/* Loads eight values of f32 (WIDE) or 16 bits from an address of 16 bytes. */
template <bool WIDE>
HZ_DEVICE void load_raw(raw8 &r, const char *src)
{
	const uint4 a = *(const uint4 *)src;

	r.w[0] = a.x, r.w[1] = a.y, r.w[2] = a.z, r.w[3] = a.w;
	if constexpr (WIDE) {
		const uint4 b = ((const uint4 *)src)[1];

		r.w[4] = b.x, r.w[5] = b.y, r.w[6] = b.z, r.w[7] = b.w;
	}
}

/* The same of any address; 0 from the element `count` on */
template <bool WIDE>
HZ_DEVICE void load_raw_part(raw8 &r, const char *src, int64_t count)
{
	clear_raw(r);
#pragma unroll
	for (int e = 0; e < 8; e++) {
		if (e >= count)
			break;
		if constexpr (WIDE)
			r.w[e] = ((const uint32_t *)src)[e];
		else
			r.w[e / 2] |= (uint32_t)((const uint16_t *)src)[e] << e % 2 * 16;
	}
}

template <int DT>
HZ_DEVICE void widen_raw(float *v, const raw8 &r)
{
#pragma unroll
	for (int e = 0; e < 8; e++)
		v[e] = DT == HZ_F32 ? __uint_as_float(r.w[e]) :
		       DT == HZ_F16 ? (e % 2 ? f16_high(r.w[e / 2]) : f16_low(r.w[e / 2])) :
				      (e % 2 ? bf16_high(r.w[e / 2]) : bf16_low(r.w[e / 2]));
}

/* 1 / (1 + exp(-z)), to some 2^-22 */
HZ_DEVICE float gate_of(float z)
{
	float e, gate;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * -1.442695041f));
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(gate) : "f"(1 + e));
	return gate;
}

/* Inf would be NaN times the second term of a hidden number: its largest finite value instead */
HZ_DEVICE uint32_t finite_pair(uint32_t pair)
{
	return max_x2<HZ_BF16>(min_x2<HZ_BF16>(pair, 0x7f7f7f7f), 0xff7fff7f);
}

/*
 * A stream's mean square that leaves f32, from x: minus its root, as roots_of() takes it. All
 * threads of a block; memory: 32 floats
 */
HZ_DEVICE float wide_square(const hzi_mhc_gated_args &a, int64_t t, int i, float square,
			    float *memory)
{
	const float scale = square_scale(square);
	float squares = 0;

	for (int64_t c = threadIdx.x; c < a.s.channels; c += blockDim.x) {
		const float v = load_value(a.s.dtype, a.x.data, offset(a.x, t, i, c)) * scale;

		squares = fmaf(v, v, squares);
	}
	return -sqrtf(sum_block(squares, memory) / (float)a.s.channels) / scale;
}

/* Stores eight values as two terms of bf16, `plane` words apart. */
HZ_DEVICE void store_terms(uint32_t *to, int plane, const float *v)
{
	uint32_t high[4], low[4];

#pragma unroll
	for (int e = 0; e < 4; e++)
		high[e] = split_weights(v[2 * e], v[2 * e + 1], low[e]);
	shared_store(shared_address(to), high);
	shared_store(shared_address(to + plane), low);
}

#endif
