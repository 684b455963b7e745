/*
 * contiguous_d4_e8.h - parameters for D4 and E8 with q = 2 and 4, contiguous blocks
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_CONTIGUOUS_D4_E8_H
#define HZI_GPU_LATTICE_CONTIGUOUS_D4_E8_H

#include "lib/lattice/lattice_math.h"

/* Code m of block k is at k * code_block + m * code_level, in elements; t has one a block. */
struct hzi_lattice_fast {
	struct hzi_lattice_rule rule;
	const void *x;
	void *codes;
	uint8_t *t;
	uint64_t *overload;		/* added to; or NULL */
	int64_t code_level;
	uint32_t blocks, code_block;
	uint32_t offset[2];		/* o, of words as of gpu/lattice/points_s8.cuh */
	int32_t dtype;
	int32_t plain;			/* f16, no dither, two levels in one number */
};

struct hzi_lattice_clear {
	uint64_t *overload;		/* two */
};

/*
 * Values are (n unit - base_i - sub_i) scale_t, n being 32768 plus the sum of the leaders' bytes at
 * weights 1, q, q^2 ...
 */
struct hzi_lattice_values {
	const void *codes;
	const uint8_t *t;
	void *y;
	int64_t code_level;
	uint32_t blocks, code_block;
	int32_t levels, q, group_shift;	/* t of block k: k >> group_shift */
	uint32_t minus[2];		/* to s8: what bytes of the sums are less; 8: even, odd */
	float unit, base[8], sub[8], scale[HZI_LATTICE_SCALES];
	uint32_t table[256];		/* by index: dimension 4: bytes; 8: nibbles; from 0 on */
};

#endif
