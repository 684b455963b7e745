/*
 * kern.h - the micro-kernels of lattice quantizers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LATTICE_KERN_H
#define HZI_LATTICE_KERN_H

#include "cpu/core/kern.h"

#define HZI_LATTICE_RUN 1024	/* most blocks of a call of lattice_points() */

/* x / n is (x + bias) * mul >> 16, bias being a multiple of 2 n; not used if n is 2^k */
struct hzi_lattice_divisor {
	int32_t n, bias, mul;
};

/*
 * A quantizer, prepared for SIMD kernels. q is 2^shift times an odd number, whose inverse mod 2^16
 * is inverse. q2 divides by 2 q; digit divides coordinates in the basis. byte_points: points that
 * are encoded fit 8-bit lanes, else 16-bit lanes; bytes: decoded p - o fit 8-bit lanes, and no
 * coordinate exceeds largest. The index of a level is stored in `arrays` 16-bit numbers of `digits`
 * digits each, the lowest first; it is 1 with bytes or byte_points.
 */
struct hzi_lattice_simd {
	struct hzi_lattice_divisor q, q2, digit;
	int32_t shift, inverse;
	bool pow2, bytes, byte_points;
	int32_t largest;
	int32_t digits, arrays;
};

#define HZI_LATTICE_ARRAYS 24	/* of all levels, at most */

/*
 * Encodes count contiguous blocks x to indices, structure of arrays: array n of level m of block i
 * is index[(m * arrays + n) * HZI_LATTICE_RUN + i]. The scale is inverse, or inverses[i], times
 * factors[i] if not NULL. miss[i]: 0, or HZI_LATTICE_MISS if the block does not fit, with
 * HZI_LATTICE_FAR where the indices are invalid: y is NaN, or rounds to more than round_max.
 * error[i], if not NULL, is that of hzi_lattice_error(). Arrays have HZI_LATTICE_RUN elements.
 * matrices: NULL, or those of a named lattice with a transform.
 */
#define HZI_LATTICE_MISS 1
#define HZI_LATTICE_FAR 2

struct hzi_lattice_rule;
struct hzi_lattice_matrices;

struct hzi_lattice_points {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	const struct hzi_lattice_simd *lanes;
	const void *x;
	int64_t count;
	int32_t x_dtype, round_max;
	float inverse;
	const float *inverses, *factors;
	uint16_t *index, *miss;
	float *error;
};

/* Packs indices, stored as above, of count blocks to contiguous LEVEL codes of `bytes` bytes. */
struct hzi_lattice_codes {
	const uint16_t *index;
	void *codes;
	int64_t count;
	int32_t levels, bytes;
};

/*
 * A limb of count blocks: the sum of index arrays, `step` apart, array n times power[0] ...
 * power[n - 1]. Limbs are `block` apart; the arrays are padded by LANES.
 */
struct hzi_lattice_limb {
	const uint16_t *index;
	uint32_t *to;
	int64_t count, step, block;
	int32_t arrays;
	uint32_t power[HZI_LATTICE_ARRAYS];
};

/*
 * Decodes count contiguous blocks of LEVEL codes, whose levels have `bytes` bytes each and begin at
 * weight q^first: ((p - o) unit - sub[j]) times scale, or scales[i] for block i. D_4 and E8 in
 * 8-bit lanes. scales is padded by LANES; sub is NULL if all 0. stream: non-temporal stores, see
 * stream_f32(); a call with count 0 ends them. y of HZ_S8 gets p - o itself, count being a multiple
 * of 64.
 */
struct hzi_lattice_values {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_simd *lanes;
	const void *codes;
	void *y;
	int64_t count;
	int32_t levels, bytes, first, y_dtype;
	float scale;
	const float *scales, *sub;
	bool stream;
};

/*
 * Unpacks LEVEL codes of count blocks to index arrays that are `step` apart; blocks and levels are
 * code_block and code_level apart. size: q^d, weight: q^digits.
 */
struct hzi_lattice_index {
	const struct hzi_lattice_simd *lanes;
	const void *codes;
	uint16_t *index;
	int64_t count, step, code_block, code_level;
	int32_t levels, bytes;
	uint64_t size;
	uint32_t weight;
};

/*
 * p - o of count blocks: q^first times the sum over the levels, from index arrays `step` apart, to
 * one array per coordinate. Reads and writes whole vectors, of at most 64 elements.
 */
struct hzi_lattice_leaders {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_simd *lanes;
	const uint16_t *index;
	int16_t *p;
	int64_t count, step;
	int32_t levels, first;
};

/*
 * Scales such points to contiguous values, as hzi_lattice_value(); block i has scales[i], or scale
 * if that is NULL. sub and matrices may be NULL. With y of HZ_S8, HZ_S16 or HZ_S32 only interleaves
 * the low bytes of rule->embed arrays; no other member of rule is used.
 */
struct hzi_lattice_scale {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	const int16_t *p;
	void *y;
	int64_t count, step;
	int32_t y_dtype;
	float scale;
	const float *scales, *sub;
};

/*
 * Squared norm and largest magnitude of count contiguous blocks x, after the matrix unless that is
 * NULL; norm and most are padded by LANES.
 */
struct hzi_lattice_norms {
	const struct hzi_lattice_matrices *matrices;
	const void *x;
	float *norm, *most;
	int64_t count;
	int32_t d, x_dtype;
};

/* to[i] = scale[t[i]]; T beyond last count as last. */
struct hzi_lattice_scales {
	const uint8_t *t;
	const float *scale;
	float *to;
	int64_t count;
	int32_t last;
};

#define HZI_LATTICE_SHAPED 256	/* most blocks of a call of lattice_shaped() */

/*
 * What values v of blocks add to bounds of the error at each of 16 scales, see cells.inc: cell i <=
 * HZI_LATTICE_CELLS is for -v and v near i / density, those behind for v above `first` near
 * (i - skip) / density.
 */
#define HZI_LATTICE_CELLS 1024

struct hzi_lattice_cell {
	uint16_t distance[2][16];
	uint8_t change[32];
};

struct hzi_lattice_cells {
	struct hzi_lattice_cell cell[2 * HZI_LATTICE_CELLS + 2];
	uint16_t factor[16];		/* of `change` */
	float density, first;
	int32_t skip;
};

/*
 * Encodes count blocks v to codes with a shaping other than NESTED: labels and t. redo[i]: 1 where
 * hzi_shaped_choose() must do it, 2 where hzi_shaped_fits() tells whether the block was clipped, 3
 * where it was, else 0; *any: any is 1. Arrays are padded to LANES. cells: NULL, or those of a
 * rule whose shaping is CUBE.
 */
struct hzi_lattice_shaped {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_cells *cells;
	const float *v;
	uint32_t *label;
	float *t, *redo;
	uint8_t *t8;			/* t */
	bool *any;
	int64_t count;
};

struct hzi_lattice_kern {
	void (*points)(const struct hzi_lattice_points *a);
	void (*codes)(const struct hzi_lattice_codes *a);
	void (*limb)(const struct hzi_lattice_limb *a);
	void (*values)(const struct hzi_lattice_values *a);
	void (*index)(const struct hzi_lattice_index *a);
	void (*leaders)(const struct hzi_lattice_leaders *a);
	void (*scale)(const struct hzi_lattice_scale *a);
	void (*scales)(const struct hzi_lattice_scales *a);
	void (*norms)(const struct hzi_lattice_norms *a);
	void (*shaped)(const struct hzi_lattice_shaped *a);
	void (*convert)(const struct hzi_convert *a);
	/* NULL: the level does not have it. */
	void (*cells)(const struct hzi_lattice_rule *r, struct hzi_lattice_cells *t);
};

HZI_KERN(lattice)

#endif
