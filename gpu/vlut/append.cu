/*
 * append.cu - rows of one tile of packed bits into another
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A tile has 16 rows, and each of its bits belongs to one of them. In 32-bit words, rows g and
 * g + 8 of lane 4 g + t have bits or whole words as the headers of the layouts say.
 */
#include "gpu/device/base.cuh"
#include "gpu/vlut/append.h"
#include "gpu/vlut/label.h"

#define THREADS HZI_VLUT_THREADS

/* Bits of word w that rows of p have: `low` those of row g, `high` those of row g + 8 */
HZ_DEVICE uint32_t bits_of(const hzi_vlut_append_merge &p, int lane, uint32_t low, uint32_t high)
{
	const int g = lane / 4;

	return (g >= p.first && g < p.end ? low : 0) |
	       (g + 8 >= p.first && g + 8 < p.end ? high : 0);
}

HZ_DEVICE uint32_t mask_of(const hzi_vlut_append_merge &p, int64_t w)
{
	const int lane = (int)(w / 4 % 32);
	int i;

	switch (p.layout) {
	case HZI_VLUT_TILE_D4:
		return bits_of(p, lane, 0x0f0f0f0f, 0xf0f0f0f0);
	case HZI_VLUT_TILE_E8:
		return w / 512 % 2 ? bits_of(p, lane, 0, ~0u) : bits_of(p, lane, ~0u, 0);
	}
	i = (int)(w % (HZI_VLUT_LABEL_BYTES(p.t_bits) / 4));
	if (i < 256)
		return i / 128 ? bits_of(p, i / 4 % 32, 0, ~0u) : bits_of(p, i / 4 % 32, ~0u, 0);
	if (p.t_bits == 4)
		return bits_of(p, i - 256, 0xffff, 0xffff0000);
	return bits_of(p, 2 * (i - 256), 0x3333, 0xcccc) |
	       bits_of(p, 2 * (i - 256) + 1, 0x33330000, 0xcccc0000);
}

/* A word a thread */
extern "C" __global__ void __launch_bounds__(THREADS) vlut_append_merge(hzi_vlut_append_merge p)
{
	for (int64_t w = (int64_t)blockIdx.x * THREADS + threadIdx.x; w < p.words;
	     w += (int64_t)gridDim.x * THREADS) {
		const uint32_t mask = mask_of(p, w);

		if (mask)
			p.dst[w] = (p.dst[w] & ~mask) | (p.src[w] & mask);
	}
}
