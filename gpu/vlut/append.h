/*
 * append.h - parameters of the kernel that puts rows into a tile of packed bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_APPEND_H
#define HZI_GPU_VLUT_APPEND_H

#include "gpu/vlut/vlut.h"

/* Which rows of a tile have which bits: d4_bitfield.h, e8_bitplane.h, label.h */
enum { HZI_VLUT_TILE_D4, HZI_VLUT_TILE_E8, HZI_VLUT_TILE_LABEL };

/* Rows first .. end - 1 of the tile of 16 rows at src, 32-bit words, to that at dst */
struct hzi_vlut_append_merge {
	const uint32_t *src;
	uint32_t *dst;
	int64_t words;
	int32_t first, end, layout, t_bits;
};

static_assert(sizeof(struct hzi_vlut_append_merge) == 40, "the same layout for C and CUDA");

#endif
