/*
 * kern.h - the micro-kernels of lattice quantizers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LATTICE_KERN_H
#define HZI_LATTICE_KERN_H

#include "cpu/core/kern.h"

#define HZI_LATTICE_RUN 1024	/* blocks at most that lattice_points() takes */

/* Division by n of x, with bias a multiple of 2 n: (x + bias) * mul >> 16, if n is not 2^k */
struct hzi_lane_divisor {
	int32_t n, bias, mul;
};

/*
 * A rule for lanes: q is 2^shift times an odd number, whose inverse mod 2^16 is inverse. q2 is 2 q;
 * digit divides coordinates in the basis. Points are of 16 bits, with byte_points of 8; bytes:
 * those that fit can be of 8 bits when decoded, and then no coordinate less o is beyond largest.
 * The index of a level is in `planes` numbers of 16 bits, of `digits` digits each, the lowest
 * first; bytes, and byte_points, have but one.
 */
struct hzi_lane_rule {
	struct hzi_lane_divisor q, q2, digit;
	int32_t shift, inverse;
	bool pow2, bytes, byte_points;
	int32_t largest;
	int32_t digits, planes;
};

#define HZI_LATTICE_PLANES 24	/* of all levels that lanes hold */

/*
 * Points of count contiguous blocks x, and their indices: plane n of level m of block i at
 * index[(m * planes + n) * HZI_LATTICE_RUN + i]. The scale is inverse, or inverses[i], times
 * factors[i] if not NULL. miss[i]: 0, HZI_LATTICE_MISS if the block does not fit, and
 * HZI_LATTICE_FAR beside it where indices mean nothing: y is not a number, or rounds to more than
 * far. error[i], if wanted, is that of hzi_lattice_error(). Arrays have HZI_LATTICE_RUN elements.
 * matrices: NULL, or of a named lattice with a transform.
 */
#define HZI_LATTICE_MISS 1
#define HZI_LATTICE_FAR 2

struct hzi_lattice_rule;
struct hzi_lattice_matrices;

struct hzi_lattice_points {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	const struct hzi_lane_rule *lanes;
	const void *x;
	int64_t count;
	int32_t x_dtype, far;
	float inverse;
	const float *inverses, *factors;
	uint16_t *index, *miss;
	float *error;
};

/* Indices, as above, of count blocks to contiguous LEVEL codes of `bytes` bytes */
struct hzi_lattice_codes {
	const uint16_t *index;
	void *codes;
	int64_t count;
	int32_t levels, bytes;
};

/*
 * Values of count blocks from LEVEL codes, back to back, levels of each of bytes bytes, the finest
 * of weight q^first: (p - o) unit - sub[j], times scale, or scales[i] for block i. D_4 and E8 with
 * lanes of 8 bits. scales has room for LANES more; sub is NULL for all 0. stream: as of
 * stream_f32(), whose end a count of 0 is. y of HZ_S8 gets p - o itself, count being a multiple of
 * 64.
 */
struct hzi_lattice_values {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lane_rule *lanes;
	const void *codes;
	void *y;
	int64_t count;
	int32_t levels, bytes, first, y_dtype;
	float scale;
	const float *scales, *sub;
	bool stream;
};

/*
 * LEVEL codes of count blocks to indices, in planes `step` apart; blocks and levels are code_block
 * and code_level apart. size: q^d, weight: q^digits.
 */
struct hzi_lattice_index {
	const struct hzi_lane_rule *lanes;
	const void *codes;
	uint16_t *index;
	int64_t count, step, code_block, code_level;
	int32_t levels, bytes;
	uint64_t size;
	uint32_t weight;
};

/*
 * Points less o of count blocks: q^first times the sum of levels, whose indices lie in planes
 * `step` apart, to coordinates that do. Whole vectors, at most of 64, are read and written.
 */
struct hzi_lattice_leaders {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lane_rule *lanes;
	const uint16_t *index;
	int16_t *p;
	int64_t count, step;
	int32_t levels, first;
};

/*
 * Values of such points, as hzi_lattice_value(), back to back; scales[i] is that of block i, or
 * NULL: scale. sub and matrices are NULL where there is nothing to be done. y of HZ_S8, HZ_S16 or
 * HZ_S32: the lower bytes of rule->embed planes, of which nothing else counts.
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
 * Of count blocks x, back to back, times the matrix unless NULL: sums of squares, and the largest
 * of sizes; norm and most have room for LANES more.
 */
struct hzi_lattice_norms {
	const struct hzi_lattice_matrices *matrices;
	const void *x;
	float *norm, *most;
	int64_t count;
	int32_t d, x_dtype;
};

/* scale[t] of count T, those beyond last being last */
struct hzi_lattice_scales {
	const uint8_t *t;
	const float *scale;
	float *to;
	int64_t count;
	int32_t last;
};

struct hzi_lattice_kern {
	void (*points)(const struct hzi_lattice_points *a);
	void (*codes)(const struct hzi_lattice_codes *a);
	void (*values)(const struct hzi_lattice_values *a);
	void (*index)(const struct hzi_lattice_index *a);
	void (*leaders)(const struct hzi_lattice_leaders *a);
	void (*scale)(const struct hzi_lattice_scale *a);
	void (*scales)(const struct hzi_lattice_scales *a);
	void (*norms)(const struct hzi_lattice_norms *a);
	void (*convert)(const struct hzi_convert *a);
};

HZI_KERN(lattice)

#endif
