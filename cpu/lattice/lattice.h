/*
 * lattice.h - shared by encoding and decoding of lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_LATTICE_H
#define HZI_CPU_LATTICE_H

#include <stdlib.h>
#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/core/sizes.h"
#include "cpu/lattice/kern.h"
#include "lib/lattice/lattice.h"
#include "lib/lattice/shaped.h"

#define RUN HZI_LATTICE_RUN		/* most blocks of a row that are processed at a time */
#define DIMS HZI_LATTICE_DIMS
#define GROUP 128			/* most values that share T; no fewer than a block has */
#define PADDING 64			/* elements by which vectors may exceed arrays of RUN */

static inline int64_t min_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t size_of(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

static inline void *offset(const void *p, int64_t elements, int64_t size)
{
	return (char *)(uintptr_t)p + elements * size;
}

/* Gathers count elements that are step apart; those from `valid` on become 0. */
static inline void gather(const void *from, int64_t step, int64_t size, int64_t valid,
			  int64_t count, void *to)
{
	if (size == 4) {
		for (int64_t i = 0; i < valid; i++)
			((uint32_t *)to)[i] = ((const uint32_t *)from)[i * step];
	} else {
		for (int64_t i = 0; i < valid; i++)
			((uint16_t *)to)[i] = ((const uint16_t *)from)[i * step];
	}
	memset((char *)to + valid * size, 0, (size_t)((count - valid) * size));
}

static inline void scatter(const void *from, int64_t step, int64_t size, int64_t count, void *to)
{
	if (size == 4) {
		for (int64_t i = 0; i < count; i++)
			((uint32_t *)to)[i * step] = ((const uint32_t *)from)[i];
	} else {
		for (int64_t i = 0; i < count; i++)
			((uint16_t *)to)[i * step] = ((const uint16_t *)from)[i];
	}
}

/* ---- Rows with scales (cpu/lattice/rows.c) --------------------------------------------------- */

void hzi_lattice_scale_rows(struct hz_context *ctx, const struct hzi_lattice_rows *r, bool decode);

/* ---- 16-bit lanes ---------------------------------------------------------------------------- */

/*
 * Prepares *l, and *round_max for lattice_points(): above it a rounded coordinate may leave 16
 * bits. False if blocks that fit the quantizer reach further, or their points do not fit 16-bit
 * lanes.
 */
bool hzi_lattice_simd_of(const struct hz_lattice *lattice, struct hzi_lattice_simd *l,
			 int32_t *round_max);

/* How the digits of all levels are stored in arrays of 16-bit numbers, level by level */
struct hzi_lattice_index_layout {
	int32_t arrays, per_level;		/* number of arrays: of all levels, of one */
	int32_t digits, last;		/* digits of an array; of the last array of a level */
	uint32_t power[17];		/* q^i, i <= digits */
};

void hzi_lattice_index_layout(const struct hzi_lattice_rule *r,
			      const struct hzi_lattice_simd *lanes,
			      struct hzi_lattice_index_layout *p);

static inline int hzi_lattice_array_digits(const struct hzi_lattice_index_layout *p, int plane)
{
	return (plane + 1) % p->per_level ? p->digits : p->last;
}

/*
 * Packing of the codes of a row, with LEVEL of the levels first .. M - 1: block i, level or limb m
 * is at i * block + m * level. Array n of the indices is stored in limb limb[n], above digits of
 * the total weight weight[n]; aligned: no array's digits are split between two limbs, if there are
 * LIMBS at all.
 */
struct hzi_lattice_codec {
	const struct hzi_lattice_kern *kern;
	const struct hzi_lattice_rule *rule;
	struct hzi_lattice_simd lanes;
	struct hzi_lattice_index_layout layout;
	int64_t block, level;
	int32_t bytes, pack, first;
	bool aligned;
	uint8_t limb[HZI_LATTICE_ARRAYS];
	uint32_t weight[HZI_LATTICE_ARRAYS];
};

/* Sets only the digits and arrays of *l; false if there are too many. */
bool hzi_lattice_digits_of(const struct hzi_lattice_rule *r, struct hzi_lattice_simd *l);

/* Sets all members but block, level and first. */
void hzi_lattice_codec(const struct hzi_lattice_kern *kern, const struct hzi_lattice_rule *r,
		       const struct hzi_lattice_simd *lanes, int32_t dtype, int32_t pack,
		       struct hzi_lattice_codec *c);

/*
 * Unpacks codes of count blocks, at most RUN, to index arrays `step` apart, from level `first` on;
 * packs all levels. Index values of LEVEL codes beyond q^d may remain where a level has one array.
 */
void hzi_lattice_unpack_codes(const struct hzi_lattice_codec *c, const void *codes, int64_t count,
			      int64_t step, uint16_t *index);
void hzi_lattice_pack_codes(const struct hzi_lattice_codec *c, const uint16_t *index, int64_t count,
			    int64_t step, void *codes);

/*
 * Merges the last dimension into the rows where these are contiguous. values: for values; otherwise
 * for points or digits, which use v_block.
 */
struct hzi_lattice_map hzi_lattice_merge_rows(const struct hzi_lattice_map *from,
					      const struct hzi_lattice_rule *r, bool values);

/* Offsets of the first element of a row */
struct row_offsets {
	int64_t v, code, t;
};

static inline struct row_offsets row_offsets_of(const struct hzi_lattice_map *m, int64_t row)
{
	struct row_offsets p = {0, 0, 0};

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

/* ---- Calls: arguments of the routes ---------------------------------------------------------- */

struct hzi_lattice_encode_call {
	const struct hzi_lattice_encode_args *a;
	struct hzi_lattice_simd lanes;
	int32_t round_max;
	bool by_simd;			/* 16-bit lanes hold the points */
};

int hzi_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_call *c,
		       bool by_simd);
int hzi_lattice_encode_shaped(struct hz_context *ctx, const struct hzi_lattice_encode_call *c);
size_t hzi_lattice_encode_shaped_workspace(const struct hz_context *ctx,
					   const struct hzi_lattice_encode_call *c);
size_t hzi_lattice_encode_workspace(const struct hz_context *ctx,	/* with by_simd */
				    const struct hzi_lattice_encode_call *c);

struct hzi_lattice_decode_call {
	const struct hzi_lattice_decode_args *a;
	struct hzi_lattice_map map;	/* rows merged */
	struct hzi_lattice_simd lanes;
	bool by_i16, by_u8;		/* which lanes hold the points: 16 bits, 8 bits */
};

void hzi_lattice_decode_begin(struct hzi_lattice_decode_call *c,
			      const struct hzi_lattice_decode_args *a);
/* by_u8 needs by_i16, for the blocks behind whole vectors. */
int hzi_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_call *c,
		       bool by_i16, bool by_u8);

/* lanes: from hzi_lattice_digits_of(), for 16-bit arrays; NULL: digit by digit */
int hzi_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a,
		       const struct hzi_lattice_simd *lanes);

#endif
