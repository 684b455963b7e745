/*
 * closest_point.h - parameters of the kernels for Z^d, A2, D_d and E8 with any q, packing and
 * strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_CLOSEST_POINT_H
#define HZI_GPU_LATTICE_CLOSEST_POINT_H

#include "gpu/lattice/lattice.h"

#define HZI_CLOSEST_DIMS 8		/* largest dimension of these kernels */

/*
 * A unit is a group of blocks that share T; when decoding, a block. block_bytes: the codes of a
 * block are one number of this size; 0: one number per level or limb. In registers the codes of
 * all levels form a 64-bit number, in which each level has `weight` times the weight of the one
 * before.
 */
struct hzi_lattice_closest {
	struct hzi_lattice_rule rule;
	struct hzi_lattice_codes codes;
	void *v;
	uint8_t *t;
	uint64_t *overload;		/* counts to add to, or NULL */
	uint64_t weight;
	int64_t v_step, t_step, n;
	int64_t v_stride[HZ_MAXDIM], t_stride[HZ_MAXDIM];
	uint32_t shape[HZ_MAXDIM];
	uint32_t units, row_units, blocks;	/* number in all, and per row; blocks per row */
	uint32_t magic;			/* floor(2^32 / q) */
	int32_t ndim, v_dtype, block_bytes, first;
	int32_t vectors;		/* the values of a block can be accessed as vectors */
	int32_t level_bits;		/* bits of the index of a level, except for FULL64 */
	float q, inverse, unit, unit_inverse;	/* see gpu/lattice/closest_point.cuh */
	float gauge;			/* bound on the gauge of v / s: above it no block fits */
	float offset[HZI_CLOSEST_DIMS], sub[HZI_CLOSEST_DIMS];
	uint32_t offset_bytes[2];	/* o, in the layout of gpu/lattice/points_s8.cuh */
};

static_assert(sizeof(struct hzi_lattice_closest) <= 4088, "what any driver takes");

/* Repacking, one thread per block, if the codes of a level fit 32 bits */
struct hzi_lattice_repack {
	struct hzi_lattice_codes src, dst;
	uint64_t level_size;		/* q^d */
	uint32_t shape[HZ_MAXDIM];
	uint32_t units, row_units, magic;	/* as above */
	int32_t ndim, q, log2q, d, levels, limb_digits, pad_;
};

#endif
