/*
 * d4_wgmma.cuh - packed D4 for decoded_gemm.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_WGMMA_CUH
#define HZI_GPU_VLUT_D4_WGMMA_CUH

#include "gpu/device/decoded_gemm.cuh"
#include "gpu/vlut/d4_bitfield.cuh"
#include "gpu/vlut/d4_bitfield.h"
#include "gpu/vlut/label_wgmma.cuh"

#if HAVE_WGMMA

/*
 * A tile is two chunks of 64 values of k, see gpu/vlut/d4_bitfield.h. In f16 rows are points times
 * 2^-24, the last eight of a tile times 2^-20: see d4_points_f16().
 */
template <int TYPE>
struct d4_codes : label_results {
	static constexpr int DTYPE = TYPE, SLOT = 2 * HZI_VLUT_D4_BYTES;

	const int lane;

	__device__ __forceinline__ d4_codes(const params &p_, int lane_)
		: label_results(p_), lane(lane_)
	{
	}

	/*
	 * A lane has 16 successive values of rows g and g + 8 of each chunk, which are 32 bytes of
	 * a half of A. Lanes of odd rows begin with the second chunk, and odd lanes with the second
	 * 16 bytes, so that those of a quarter of a warp store without bank conflicts.
	 */
	template <class Step>
	__device__ __forceinline__ void decode(uint32_t from, uint32_t to, Step step) const
	{
		decode_chunk(from, to, 0, step, std_int<0>(), std_int<1>());
		decode_chunk(from, to, 1, step, std_int<2>(), std_int<3>());
	}

	template <class Step, class First, class Second>
	__device__ __forceinline__ void decode_chunk(uint32_t from, uint32_t to, int i, Step step,
						     First first, Second second) const
	{
		const int g = lane / 4, odd = lane % 2;

		const int chunk = i ^ (g & 1);
		uint32_t w[4], s[4], v[4][4];

		to += odd * DECODED_HALF + g * 128;
		step(first);
		shared_load(w, from + chunk * HZI_VLUT_D4_BYTES + lane * 16);
		d4_signs(w, s);
#pragma unroll
		for (int j = 0; j < 4; j++)
			points(v[j], w[j], s[j], p.r[j]);
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int piece = e ^ odd;
			const uint32_t blocks = piece ? 0x7632 : 0x5410;
			const uint32_t at = to + ((chunk * 4 + lane % 4 / 2 * 2 + piece) ^ g) * 16;

			if (e > 0)
				step(second);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const uint32_t pairs[4] = {
					__byte_perm(v[0][h], v[1][h], blocks),
					__byte_perm(v[2][h], v[3][h], blocks),
					__byte_perm(v[0][2 + h], v[1][2 + h], blocks),
					__byte_perm(v[2][2 + h], v[3][2 + h], blocks),
				};

				shared_store(at + h * DECODED_8_ROWS, pairs);
			}
		}
	}

	/*
	 * A coordinate of blocks 0 and 2 of rows g (v[0]) and g + 8 (v[1]), and of blocks 1 and 3.
	 * offset: as struct hzi_vlut_decoded_wgmma has it.
	 */
	__device__ __forceinline__ static void points(uint32_t (&v)[4], uint32_t w, uint32_t s,
						      uint32_t offset)
	{
		if constexpr (DTYPE == HZ_F16) {
			d4_points_f16(v, w, s);
#pragma unroll
			for (int i = 0; i < 4; i++)
				v[i] = add_f16x2(v[i], __byte_perm(offset, 0,
								   i % 2 ? 0x3232 : 0x1010));
		} else {
			/* 128 plus the nibbles of w and s; 128 + w - 2 (128 + s) + 128 - o */
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int shift = i % 2 * 4 + i / 2 * 8;
				const uint32_t a = (w >> shift & 0x000f000f) | 0x43004300,
					       b = (s >> shift & 0x000a000a) | 0x43004300;

				v[i] = fma_bf16x2(fma_bf16x2(b, 0xc000c000, a), 0x3f803f80, offset);
			}
		}
	}

	__device__ __forceinline__ void put(int row, int vector, float4 sums, float4 scales) const
	{
		const float unit = DTYPE == HZ_BF16 ? 1 : row & 8 ? 0x1p20f : 0x1p24f;

		label_results::put(row, vector,
				   make_float4(sums.x * unit, sums.y * unit, sums.z * unit,
					       sums.w * unit), scales);
	}
};

#endif
#endif
