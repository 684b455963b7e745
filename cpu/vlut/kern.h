/*
 * kern.h - the micro-kernels of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VLUT_KERN_H
#define HZI_VLUT_KERN_H

#include "cpu/core/kern.h"

#define HZI_VLUT_ROWS 64	/* of a panel of codes */
#define HZI_VLUT_ROOM 256	/* the most entries of a table that kernels look into */

/*
 * A panel of 64 rows has, for each block and level, 64 bytes: the code of row i is at
 * hzi_vlut_row_at(i). That order makes rows come out in order when 4 bytes of each are interleaved
 * within vectors of 16 bytes.
 */
static inline int hzi_vlut_row_at(int row)
{
	return row / 4 % 4 * 16 + row / 16 * 4 + row % 4;
}

/*
 * y[i] += sum over groups g of scale[T of row i and g] * (weight[g] * sum_l q^l s_l + base[g]),
 * where s_l sums over group blocks (the last group may have less) the entries of the codes of level
 * l, each less 32768 if planes is 2. Table j is of block order[j], or j; its entries are bytes, or
 * with planes 2 the low bytes of 16 bits and then, size on, the high ones. Level l of block b is at
 * codes + b * step + l * 64; T of group g at t + g * 64 in the order of codes. t NULL: scale is not
 * used.
 */
struct hzi_vlut_sum {
	const uint8_t *codes, *table, *t;
	const int32_t *order;
	const float *weight, *base, *scale;
	float *y;			/* 64 */
	int64_t blocks, step;
	int32_t group, levels, planes, size;
	float q;
};

/*
 * Tables of the products of leaders, [embed][size, but at least 64] of f32, with embed numbers x of
 * each block, for blocks order[i], or i: entry e is round((<c_e, x> - low[i]) * inverse[i]), with
 * planes 2 plus 32768, which 16 bits hold. range: the least and the largest of them.
 */
struct hzi_vlut_table {
	const float *x, *leaders;
	const int32_t *order;
	uint8_t *table;
	float *low, *high;		/* high: of range */
	const float *inverse;
	int64_t blocks;
	int32_t embed, planes, size;
};

/*
 * D4 with q = 4 and two levels, packed: a coordinate of a leader is three bits, s h l, -4 s + 2 h +
 * l, whose remainder modulo 4 in -2 .. 1 has s = h; where the nearest point of 4 D4 is not that of
 * 4 Z^4, s of one coordinate is turned, the first of the largest. That, h and l of all, the l
 * having an even sum, are the 256 leaders. So a coordinate is a field of two bits: l, or of the
 * last one whether a sign is turned, and h above.
 *
 * codes: of 32 rows, steps of 16 lattice blocks, 1 KiB: [4][4 coordinates][16 rows][4 blocks] of
 * bytes, whose lower nibbles are rows 0 .. 15, level 0 below level 1, the upper ones 16 .. 31.
 *
 * sums[i][32] = the sums of points times row i of x, mod 2^32; rows are x_ld apart, in the order of
 * vlut_fields_order(), and have `steps` times 64 numbers. Up to 2^15 of these: 16 times a sum fits.
 */
struct hzi_vlut_fields {
	const uint8_t *codes;
	const int8_t *x;
	int32_t *sums;
	int64_t x_ld, steps;
	int32_t count;
};

/* Decodes masked codes less offset to rows of packed B, with k in the order of fields_order() */
struct hzi_vlut_fields_points {
	const uint8_t *codes;
	uint8_t *b;
	int64_t chunks;			/* of four blocks */
	uint32_t mask;
	int8_t offset[4];
};

/*
 * Converts fields to the codes of a panel of 64 rows, whose second 32 rows are `half` bytes behind
 * the first. table: the code of the fields of all coordinates, the first one lowest.
 */
struct hzi_vlut_fields_codes {
	const uint8_t *codes, *table;
	uint8_t *to;
	int64_t half, chunks;
};

/*
 * Decodes the points of a panel less offset, as s8, to two panels of packed B (lib/qgemm/qgemm.h),
 * b_panel bytes apart: number e of block b is k = b * embed + e. table: [levels][embed][size] of
 * bytes, the leaders times q^l, summed modulo 256. Pads k with 0 to a multiple of 4.
 */
struct hzi_vlut_points {
	const uint8_t *codes, *table;
	uint8_t *b;
	int64_t blocks, step, b_panel;
	int32_t embed, levels, size;
	int8_t offset[24];
};

/*
 * Points of a panel less offset to such bytes, count of k from k on, multiples of 4: of 64 rows, as
 * p [count][64]; or bytes [count / embed][64][embed], embed 4 or 8.
 */
struct hzi_vlut_quads {
	const int16_t *p;
	const int8_t *bytes;
	uint8_t *b;
	int64_t k, count, b_panel;
	int32_t embed;
};

/*
 * Such bytes of k .. k + count - 1, count a multiple of embed and k of 4, to floats: number e of
 * row i times scale[i], scale being 64 floats for each group blocks, in panels of `rows` rows,
 * panel elements apart, [count][rows]; extra: after each block a row of the scales themselves.
 */
struct hzi_vlut_widen {
	const uint8_t *b;
	const float *scale;
	float *to;
	int64_t k, blocks, b_panel, panel;
	int32_t embed, group, rows;
	bool extra;
};

struct hzi_vlut_kern {
	void (*sum)(const struct hzi_vlut_sum *a);
	void (*range)(const struct hzi_vlut_table *a);
	void (*table)(const struct hzi_vlut_table *a);
	void (*points)(const struct hzi_vlut_points *a);
	void (*quads)(const struct hzi_vlut_quads *a);
	bool computes;			/* leaders in lanes are faster than tables of words */
	void (*widen)(const struct hzi_vlut_widen *a);
	/* Transposes 64 rows of count bytes, row i at rows + i * step, to the order of panels. */
	void (*transpose64)(const uint8_t *rows, int64_t step, int64_t count, uint8_t *to);
	/*
	 * Splits round(x factor), below 2^22 in magnitude, into signed base-256 digits, digit p at
	 * to + p * step, the least first; the last digit takes what is left.
	 */
	void (*split_digits)(const float *x, int64_t count, float factor, int parts, int8_t *to,
			     int64_t step);
	/* The bits of the largest |x|; at least 0x7f800000 with a NaN or Inf */
	int32_t (*abs_max)(const float *x, int64_t count);
	/* Rows of x a call, up to 16; and up to how many in all it beats fields_points() */
	int32_t fields_rows, fields_most;
	void (*fields)(const struct hzi_vlut_fields *a);
	void (*fields_points)(const struct hzi_vlut_fields_points *a);
	void (*fields_codes)(const struct hzi_vlut_fields_codes *a);
	/* Transposes each 4 x 4 of count numbers, a multiple of 16: 4 j + i to 4 i + j. */
	void (*fields_order)(int8_t *x, int64_t count);
	hzi_transpose transpose;
	void (*convert)(const struct hzi_convert *a);
};

HZI_KERN(vlut)

#endif
