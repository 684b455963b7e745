/*
 * contiguous_d4_e8.h - parameters of the kernels for contiguous blocks of D4 and E8
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_CONTIGUOUS_D4_E8_H
#define HZI_GPU_LATTICE_CONTIGUOUS_D4_E8_H

#include "lib/lattice/lattice_math.h"

/*
 * Encoding. Code m of block k is element k * code_block + m * code_level; t has one element per
 * block.
 */
struct hzi_lattice_encode_d4_e8 {
	struct hzi_lattice_rule rule;
	const void *x;
	void *codes;
	uint8_t *t;
	uint64_t *overload;		/* counts to add to, or NULL */
	int64_t code_level;
	uint32_t blocks, code_block;
	uint32_t offset[2];		/* o, in the layout of gpu/lattice/points_s8.cuh */
	int32_t dtype;
	int32_t f16_two_levels;		/* f16, no dither, both levels in one number */
};

struct hzi_lattice_clear_counts {
	uint64_t *overload;		/* two */
};

/*
 * Decoding. Value i is (n unit - base_i - sub_i) scale_t, where n is 32768 plus the sum of the
 * bytes of the coset leaders with weights 1, q, q^2, ...
 */
struct hzi_lattice_decode_d4_e8 {
	const void *codes;
	const uint8_t *t;
	void *y;
	int64_t code_level;
	uint32_t blocks, code_block;
	int32_t levels, q, group_shift;	/* index in t of block k is k >> group_shift */
	uint32_t minus[2];		/* s8: subtracted from bytes; 8: even, odd */
	float unit, base[8], sub[8], scale[HZI_LATTICE_SCALES];
	uint32_t table[256];		/* leaders + bias; dimension 4: bytes, 8: nibbles */
};

#endif
