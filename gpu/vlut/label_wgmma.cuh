/*
 * label_wgmma.cuh - packed labels of E8 for decoded_gemm.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_LABEL_WGMMA_CUH
#define HZI_GPU_VLUT_LABEL_WGMMA_CUH

#include "gpu/device/decoded_gemm.cuh"
#include "gpu/vlut/label.cuh"
#include "gpu/vlut/label_wgmma.h"

#if HAVE_WGMMA

template <int TYPE, int SHAPING, int T_BITS>
struct label_codes {
	using params = hzi_vlut_label_wgmma;
	static constexpr int DTYPE = TYPE, SLOT = HZI_VLUT_LABEL_BYTES(T_BITS);

	const params &p;
	const int lane;
	const uint32_t store_at;	/* of block 0 of row g */

	__device__ __forceinline__ label_codes(const params &p_, int lane_)
		: p(p_), lane(lane_),
		  store_at(lane / 4 * 128 + (lane % 4 * 2 ^ lane / 4) * 16)
	{
	}

	/* Blocks 4 t + b of rows g and g + 8, as struct hzi_vlut_label_pack says */
	__device__ __forceinline__ void decode(uint32_t from, uint32_t to) const
	{
		uint32_t low[4], high[4], t;

		shared_load(low, from + lane * 16);
		shared_load(high, from + 512 + lane * 16);
		if constexpr (T_BITS == 4)
			asm volatile("ld.shared.u32 %0, [%1];"
				     : "=r"(t) : "r"(from + 1024 + lane * 4) : "memory");
		else
			asm volatile("{.reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h;}"
				     : "=r"(t) : "r"(from + 1024 + lane * 2) : "memory");
		store(label_row<SHAPING>(low, label_t<T_BITS>(t, 0), p.r), to + store_at);
		store(label_row<SHAPING>(high, label_t<T_BITS>(t, 1), p.r),
		      to + store_at + DECODED_8_ROWS);
	}

	/* Blocks b and b + 2 are in different halves of a chunk. */
	__device__ __forceinline__ void store(const label_row<SHAPING> &row, uint32_t to) const
	{
#pragma unroll
		for (int b = 0; b < 2; b++) {
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
	}

	__device__ __forceinline__ bool has(int row, int vector) const
	{
		return row < p.rows && vector < p.batch;
	}

	__device__ __forceinline__ void put(int row, int vector, float4 sums) const
	{
		float v[4] = {sums.x, sums.y, sums.z, sums.w}, scale = p.scale;

		if (p.column_scale)
			scale *= p.column_scale[vector * p.column_scale_step];
#pragma unroll
		for (int e = 0; e < 4; e++) {
			if (p.unscale)
				v[e] *= p.unscale[vector];
			v[e] *= p.row_scale && row + e < p.rows ?
				p.row_scale[(row + e) * p.row_scale_step] * scale : scale;
		}
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

#endif
#endif
