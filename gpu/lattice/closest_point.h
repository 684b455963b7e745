/*
 * closest_point.h - parameters for Z^d, A2, D_d and E8 with any q, policy, packing and strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_CLOSEST_POINT_H
#define HZI_GPU_LATTICE_CLOSEST_POINT_H

#include "gpu/lattice/lattice.h"

#define HZI_NEAR_DIMS 8			/* the most that these kernels have */

/*
 * Units are groups of blocks that share T, to decode blocks. Codes of a block lie in one number of
 * `whole` bytes; 0: each by itself. The codes of all levels make a number of 64 bits, each `weight`
 * times the one before.
 */
struct hzi_lattice_near {
	struct hzi_lattice_rule rule;
	struct hzi_lattice_codes codes;
	void *v;
	uint8_t *t;
	uint64_t *overload;		/* added to; or NULL */
	uint64_t weight;
	int64_t v_step, t_step, n;
	int64_t v_stride[HZ_MAXDIM], t_stride[HZ_MAXDIM];
	uint32_t shape[HZ_MAXDIM];
	uint32_t units, row_units, blocks;	/* of all, of a row; blocks of a row */
	uint32_t magic;			/* the floor of 2^32 / q */
	int32_t ndim, v_dtype, whole, first;
	int32_t vectors;		/* values of a block are a vector in memory */
	int32_t level_bits;		/* of an index in 64 bits, but for FULL64 */
	float q, inverse, unit, unit_inverse;	/* see gpu/lattice/closest_point.cuh */
	float gauge;			/* of v / s: beyond, no block fits */
	float offset[HZI_NEAR_DIMS], sub[HZI_NEAR_DIMS];
	uint32_t offset_bytes[2];	/* o, of words as of gpu/lattice/points_s8.cuh */
};

HZI_LATTICE_ASSERT(sizeof(struct hzi_lattice_near) <= 4088, "what any driver takes");

/* Repacking, a thread a block, of lattices whose levels are numbers below 2^32 */
struct hzi_lattice_turn {
	struct hzi_lattice_codes from, to;
	uint64_t level_size;		/* q^d */
	uint32_t shape[HZ_MAXDIM];
	uint32_t units, row_units, magic;	/* as above */
	int32_t ndim, q, log2q, d, levels, limb_digits, pad_;
};

#endif
