/*
 * label_wgmma.cuh - packed labels of E8 for decoded_gemm.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_LABEL_WGMMA_CUH
#define HZI_GPU_VLUT_LABEL_WGMMA_CUH

#include "gpu/device/decoded_gemm.cuh"
#include "gpu/vlut/label.cuh"
#include "gpu/vlut/decoded_wgmma.h"

#if HAVE_WGMMA

/* Factors of rows, and how sums are stored */
struct label_results {
	using params = hzi_vlut_decoded_wgmma;

	const params &p;

	__device__ __forceinline__ explicit label_results(const params &p_) : p(p_) {}

	__device__ __forceinline__ float4 scales(int row) const
	{
		float s[4] = {p.scale, p.scale, p.scale, p.scale};

#pragma unroll
		for (int e = 0; e < 4; e++) {
			if (p.row_scale && row + e < p.rows)
				s[e] *= p.row_scale[(row + e) * p.row_scale_step];
		}
		return make_float4(s[0], s[1], s[2], s[3]);
	}

	__device__ __forceinline__ void put(int row, int vector, float4 sums, float4 scales) const
	{
		const float unscale = p.unscale ? p.unscale[vector] : 1;
		const float scale = p.column_scale ? p.column_scale[vector * p.column_scale_step] :
						     1;
		const float v[4] = {
			sums.x * unscale * (scales.x * scale),
			sums.y * unscale * (scales.y * scale),
			sums.z * unscale * (scales.z * scale),
			sums.w * unscale * (scales.w * scale),
		};

		if (p.y_vectorized && row + 4 <= p.rows) {
			uint16_t *const y = (uint16_t *)p.y + row + vector * p.y_b;

			*(uint2 *)y = p.y_dtype == HZ_F16 ?
				make_uint2(to_f16x2(v[0], v[1]), to_f16x2(v[2], v[3])) :
				make_uint2(to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]));
			return;
		}
#pragma unroll
		for (int e = 0; e < 4; e++) {
			if (row + e < p.rows)
				store_any(p.y_dtype, p.y, (row + e) * p.y_i + vector * p.y_b, v[e]);
		}
	}
};

template <int TYPE, int SHAPING, int T_BITS>
struct label_codes : label_results {
	static constexpr int DTYPE = TYPE, SLOT = HZI_VLUT_LABEL_BYTES(T_BITS);

	const int lane;
	const uint32_t store_at;	/* of block 0 of row g */

	__device__ __forceinline__ label_codes(const params &p_, int lane_)
		: label_results(p_), lane(lane_),
		  store_at(lane / 4 * 128 + (lane % 4 * 2 ^ lane / 4) * 16)
	{
	}

	/* Blocks 4 t + b of rows g and g + 8, as struct hzi_vlut_label_pack says */
	template <class Step>
	__device__ __forceinline__ void decode(uint32_t from, uint32_t to, Step step) const
	{
		uint32_t low[4], high[4], t;

		step(std_int<0>());
		shared_load(low, from + lane * 16);
		shared_load(high, from + 512 + lane * 16);
		if constexpr (T_BITS == 4)
			asm volatile("ld.shared.u32 %0, [%1];"
				     : "=r"(t) : "r"(from + 1024 + lane * 4) : "memory");
		else
			asm volatile("{.reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h;}"
				     : "=r"(t) : "r"(from + 1024 + lane * 2) : "memory");

		const label_row<SHAPING> g(low, label_t<T_BITS>(t, 0), p.r);

		store(g, 0, to + store_at);
		step(std_int<1>());
		store(g, 1, to + store_at);
		step(std_int<2>());

		const label_row<SHAPING> g8(high, label_t<T_BITS>(t, 1), p.r);

		to += DECODED_8_ROWS;
		store(g8, 0, to + store_at);
		step(std_int<3>());
		store(g8, 1, to + store_at);
	}

	/* Blocks b and b + 2, which are in different halves of a chunk */
	__device__ __forceinline__ void store(const label_row<SHAPING> &row, int b,
					      uint32_t to) const
	{
		uint32_t v[8], first[4], second[4];

		row.template points<DTYPE>(b, v);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			first[i] = __byte_perm(v[2 * i], v[2 * i + 1], 0x5410);
			second[i] = __byte_perm(v[2 * i], v[2 * i + 1], 0x7632);
		}
		shared_store(to ^ b * 16, first);
		shared_store((to ^ b * 16) + DECODED_HALF, second);
	}
};

#endif
#endif
