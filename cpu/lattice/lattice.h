/*
 * lattice.h - what encoding and decoding of lattice codes share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_LATTICE_H
#define HZI_CPU_LATTICE_H

#include <stdlib.h>
#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/lattice/kern.h"
#include "lib/lattice/lattice.h"

#define RUN HZI_LATTICE_RUN		/* blocks of a row that are done at once */
#define DIMS HZI_LATTICE_DIMS
#define GROUP 128			/* values that may share T, no fewer than a block has */
#define ROOM 64				/* elements that vectors may go beyond arrays of RUN */

static inline int64_t min_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

static inline int64_t size_of(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

static inline void *offset(const void *p, int64_t elements, int64_t size)
{
	return (char *)(uintptr_t)p + elements * size;
}

/*
 * Fills l, and *far for lattice_points(): above it a rounded coordinate may leave 16 bits. False if
 * blocks that fit the quantizer reach further, or their points do not fit 16-bit lanes.
 */
bool hzi_lattice_lanes(const struct hz_lattice *lattice, struct hzi_lane_rule *l, int32_t *far);

/* Layout of the digits of all levels in planes of 16 bits, level by level */
struct hzi_lattice_powers {
	int32_t planes, each;		/* of all levels, of one */
	int32_t digits, last;		/* of a plane; of the last one of a level */
	uint32_t power[17];		/* q^i, i <= digits */
};

void hzi_lattice_powers(const struct hzi_lattice_rule *r, const struct hzi_lane_rule *lanes,
			struct hzi_lattice_powers *p);

static inline int hzi_lattice_digits_in(const struct hzi_lattice_powers *p, int plane)
{
	return (plane + 1) % p->each ? p->digits : p->last;
}

/*
 * Codes of a row, of levels first .. M - 1 with LEVEL: block i, level or limb m at i * block + m *
 * level. Plane n of their indices lies in limb limb[n], whose digits below it have the weight
 * weight[n]; whole: as it is with LIMBS too, no plane's digits lie in two limbs.
 */
struct hzi_lattice_codec {
	const struct hzi_lattice_kern *kern;
	const struct hzi_lattice_rule *rule;
	struct hzi_lane_rule lanes;
	struct hzi_lattice_powers powers;
	int64_t block, level;
	int32_t bytes, pack, first;
	bool whole;
	uint8_t limb[HZI_LATTICE_PLANES];
	uint32_t weight[HZI_LATTICE_PLANES];
};

/* Digits and planes of lanes alone; false if there are too many. */
bool hzi_lattice_digits_of(const struct hzi_lattice_rule *r, struct hzi_lane_rule *l);

/* All but block, level and first */
void hzi_lattice_codec(const struct hzi_lattice_kern *kern, const struct hzi_lattice_rule *r,
		       const struct hzi_lane_rule *lanes, int32_t dtype, int32_t pack,
		       struct hzi_lattice_codec *c);

/*
 * Indices of count blocks, at most RUN, in planes `step` apart, which are from level `first` on;
 * and back, of all levels. What LEVEL codes hold beyond q^d may remain where there is one plane.
 */
void hzi_lattice_take_codes(const struct hzi_lattice_codec *c, const void *codes, int64_t count,
			    int64_t step, uint16_t *index);
void hzi_lattice_put_codes(const struct hzi_lattice_codec *c, const uint16_t *index, int64_t count,
			   int64_t step, void *codes);

/*
 * The map with the last dimension joined to its rows where these are contiguous. values: of values;
 * else of points or digits, for which v_block counts.
 */
struct hzi_lattice_map hzi_lattice_join(const struct hzi_lattice_map *from,
					const struct hzi_lattice_rule *r, bool values);

/* Offsets of the first element of a row */
struct place {
	int64_t v, code, t;
};

static inline struct place row_place(const struct hzi_lattice_map *m, int64_t row)
{
	struct place p = {0, 0, 0};

	for (int i = m->ndim - 1; i >= 0; i--) {
		const int64_t at = row % m->shape[i];

		row /= m->shape[i];
		p.v += at * m->v_stride[i];
		p.code += at * m->code_stride[i];
		p.t += at * m->t_stride[i];
	}
	return p;
}

static inline int64_t rows_of(const struct hzi_lattice_map *m)
{
	int64_t rows = 1;

	for (int i = 0; i < m->ndim; i++)
		rows *= m->shape[i];
	return rows;
}

/* ---- The calls, for the routes --------------------------------------------------------------- */

struct hzi_lattice_encode_call {
	const struct hzi_lattice_encode_args *a;
	struct hzi_lane_rule lanes;
	int32_t far;
	bool in_lanes;			/* whether they hold the points */
};

int hzi_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_call *c,
		       bool in_lanes);
size_t hzi_lattice_encode_room(const struct hz_context *ctx,	/* in lanes */
			       const struct hzi_lattice_encode_call *c);

struct hzi_lattice_decode_call {
	const struct hzi_lattice_decode_args *a;
	struct hzi_lattice_map map;	/* rows joined */
	struct hzi_lane_rule lanes;
	bool in_planes, in_lanes;	/* 16-bit planes, 8-bit lanes hold the points */
};

void hzi_lattice_decode_begin(struct hzi_lattice_decode_call *c,
			      const struct hzi_lattice_decode_args *a);
/* in_lanes: with in_planes, which the blocks behind whole vectors take */
int hzi_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_call *c,
		       bool in_planes, bool in_lanes);

/* lanes: of hzi_lattice_digits_of(), by 16-bit planes; NULL: digit by digit */
int hzi_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a,
		       const struct hzi_lane_rule *lanes);

#endif
