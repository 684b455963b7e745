/*
 * label_pack.cu - packing of labelled E8 codes, and their values as f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/label.cuh"

#define THREADS HZI_VLUT_THREADS

/* One thread for the blocks of a lane: see gpu/vlut/label.h */
extern "C" __global__ void __launch_bounds__(THREADS)
vlut_label_pack(const __grid_constant__ hzi_vlut_label_pack p)
{
	const int bytes = HZI_VLUT_LABEL_BYTES(p.t_bits);
	const int64_t lanes = p.tiles * p.chunks * 32;

	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < lanes;
	     i += (int64_t)gridDim.x * THREADS) {
		const int lane = (int)(i % 32);
		const int64_t at = i / 32, tile = at / p.chunks, chunk = at % p.chunks;
		uint8_t *const dst = p.packed + at * bytes;
		uint32_t scales = 0;

		for (int half = 0; half < 2; half++) {
			const int64_t row = tile * HZI_VLUT_LABEL_ROWS + half * 8 + lane / 4;
			uint32_t words[4] = {};

			for (int b = 0; b < 4; b++) {
				const int64_t block = chunk * 16 + lane % 4 * 4 + b;
				const bool in = row < p.rows && block < p.blocks;
				uint32_t code = in ? p.codes[row * p.row + block * p.block] : 0;
				uint32_t t = in ? p.t[row * p.t_row + block * p.t_step] : 0;

				t = min(t, (uint32_t)p.scales - 1);
				if (p.free_bit) {
					code = (code & ~8u) | (t >> 2) << 3;
					t &= 3;
				}
				scales |= t << label_t_shift(p.t_bits, half, b);
				for (int j = 0; j < 4; j++)
					words[j] |= label_place(code >> 8 * j & 0xff, b);
			}
			((uint4 *)dst)[half * 32 + lane] =
				make_uint4(words[0], words[1], words[2], words[3]);
		}
		if (p.t_bits == 4)
			((uint32_t *)(dst + 1024))[lane] = scales;
		else
			((uint16_t *)(dst + 1024))[lane] = (uint16_t)scales;
	}
}

/*
 * One thread for a block of a row. Values r v times scale, a power of two, are rounded to f16;
 * blocks from p.blocks on are 0.
 */
extern "C" __global__ void __launch_bounds__(THREADS)
vlut_label_values_f16(const __grid_constant__ hzi_vlut_label_values p)
{
	const int64_t columns = p.pitch / 8, items = p.rows * columns;

	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < items;
	     i += (int64_t)gridDim.x * THREADS) {
		const int64_t row = i / columns, block = i % columns;
		uint32_t pairs[4] = {};

		if (block < p.blocks) {
			const struct label_code c =
				label_at(p.packed, p.t_bits, p.shaping, p.chunks, row, block);
			const float r = (float)(p.r[c.t / 4] >> c.t % 4 * 8 & 0xff) * p.scale;
			int32_t v[8];

			hzi_label_point(p.shaping, 4, c.code, v);
#pragma unroll
			for (int j = 0; j < 4; j++)
				pairs[j] = to_f16x2((float)v[2 * j] * r, (float)v[2 * j + 1] * r);
		}
		((uint4 *)p.dst)[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
	}
}
