/*
 * kern.h - the micro-kernels of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VLUT_KERN_H
#define HZI_VLUT_KERN_H

#include "cpu/core/kern.h"
#include "lib/lattice/label.h"

#define HZI_VLUT_ROWS 64	/* of a panel of codes */
#define HZI_VLUT_TABLE_ENTRIES 256	/* most entries of a table in registers */

/*
 * A panel of 64 rows has 64 bytes for each block and level: the code of row i is at
 * hzi_vlut_row_at(i). With that order, interleaving 4 bytes of each within vectors of 16 bytes
 * yields the rows in order.
 */
static inline int hzi_vlut_row_at(int row)
{
	return row / 4 % 4 * 16 + row / 16 * 4 + row % 4;
}

/*
 * y[i] += sum over groups g of scale[T of row i and g] * (weight[g] * sum_l q^l s_l + base[g]),
 * where s_l sums over `group` blocks (the last group may have less) the entries of the codes of
 * level l, each less 32768 if entry_bytes is 2. Table j belongs to block order[j], or j; its
 * entries are bytes, or with entry_bytes 2 the low bytes of 16-bit entries and then, size on, the
 * high ones. Level l of block b is at codes + b * step + l * 64; T of group g at t + g * 64 in the
 * order of codes. t NULL: scale is not used.
 */
struct hzi_vlut_sum {
	const uint8_t *codes, *table, *t;
	const int32_t *order;
	const float *weight, *base, *scale;
	float *y;			/* 64 */
	int64_t blocks, step;
	int32_t group, levels, entry_bytes, size;
	float q;
};

/*
 * Computes tables of <leader, x> from leaders, [embed][size, but at least 64] of f32, and embed
 * numbers x of each block, for blocks order[i], or i: entry e is round((<c_e, x> - low[i]) *
 * inverse[i]), with entry_bytes 2 plus 32768, which 16 bits hold. range: computes the smallest and
 * the largest product.
 */
struct hzi_vlut_table {
	const float *x, *leaders;
	const int32_t *order;
	uint8_t *table;
	float *low, *high;		/* high: for range */
	const float *inverse;
	int64_t blocks;
	int32_t embed, entry_bytes, size;
};

/*
 * D4 with q = 4 and two levels, packed as bit-fields: a coordinate of a leader has three bits, s h
 * l, with the value -4 s + 2 h + l. Its remainder modulo 4 in -2 .. 1 has s = h; where the nearest
 * point of 4 D4 is not that of 4 Z^4, s of one coordinate is inverted: the first of the largest.
 * That bit and h and l of all coordinates, where the l have an even sum, identify the 256 leaders.
 * So a coordinate is a field of two bits: l, or in the last coordinate whether a sign is inverted;
 * and h above.
 *
 * codes: of 32 rows, steps of 16 lattice blocks, 1 KiB: [4][4 coordinates][16 rows][4 blocks] of
 * bytes, whose lower nibbles are rows 0 .. 15, level 0 below level 1, the upper ones 16 .. 31.
 *
 * sums[i][32] = the sums of points times row i of x, mod 2^32; rows are x_ld apart, in the order of
 * vlut_bitfield_order(), and have `steps` times 64 numbers. Up to 2^15 of these: 16 times a sum
 * fits.
 */
struct hzi_vlut_bitfield {
	const uint8_t *codes;
	const int8_t *x;
	int32_t *sums;
	int64_t x_ld, steps;
	int32_t count;
};

/* Decodes masked codes less offset to rows of packed B, with k in the order of bitfield_order(). */
struct hzi_vlut_bitfield_points {
	const uint8_t *codes;
	uint8_t *b;
	int64_t chunks;			/* of four blocks */
	uint32_t mask;
	int8_t offset[4];
};

/*
 * Converts bit-fields to the codes of a panel of 64 rows, whose second 32 rows are `half` bytes
 * behind the first. table: the code of the fields of all coordinates, the first one lowest.
 */
struct hzi_vlut_bitfield_codes {
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
 * Stores p - o of a panel in packed B, too, for count of k from k on, multiples of 4: from 64 rows
 * of p [count][64]; or from bytes [count / embed][64][embed], embed 4 or 8.
 */
struct hzi_vlut_quads {
	const int16_t *p;
	const int8_t *bytes;
	uint8_t *b;
	int64_t k, count, b_panel;
	int32_t embed;
};

/*
 * Converts packed B for k .. k + count - 1, count a multiple of embed and k of 4, to floats: number
 * e of row i times scale[i], where scale has 64 floats for each `group` blocks; to panels of `rows`
 * rows, `panel` elements apart, [count][rows]. extra: after each block comes a row of the scales
 * themselves.
 */
struct hzi_vlut_widen {
	const uint8_t *b;
	const float *scale;
	float *to;
	int64_t k, blocks, b_panel, panel;
	int32_t embed, group, rows;
	bool extra;
};

/*
 * Codes of lib/lattice/label.h, packed: a panel of 64 rows has units of four blocks. A unit has for
 * each block `bits` planes of 64 bytes, then for all four t_bits / 2 planes of T. Byte
 * hzi_vlut_row_at(i) of a plane is row i.
 *
 *   NESTED    D4 with q = 4 and two levels, bits = 4; a block here is two of D4: plane j has field
 *             j of struct hzi_vlut_bitfield of both, level 0 below level 1, the first one lowest
 *   bits = 4  plane j has fields 2 j and 2 j + 1, the first one in the lower half
 *   bits = 3  planes 0 and 1 the lower two bits of fields 0 .. 3 and 4 .. 7, plane 2 the upper ones
 *   bits = 2  planes 0 and 1 fields 0 .. 3 and 4 .. 7
 *   T         t_bits = 4: plane j of blocks 2 j and 2 j + 1; 2: of all four, the first one lowest.
 *             Of D8STAR with t_bits = 2 bit 2 of T is the top bit of field 0.
 *
 * With HZI_VLUT_PAIRED numbers that a product adds are neighbours instead. Row i has four
 * bytes at 4 i of each 256: two of a block, then two of the next, in the lower halves fields 0 and
 * 1, in the upper ones 2 and 3; in the next 256 bytes fields 4 to 7. The low bit of field 7 is
 * the parity of the low bits of the code's fields, so that their parity is h. NESTED, each of the
 * four 256 bytes has a field: the four bytes of row i are the two blocks of D4 of block 0 and those
 * of block 1 in the lower halves, blocks 2 and 3 in the upper ones.
 *
 * T of paired blocks 0 and 2 share a byte, T of 1 and 3 are two bytes behind. t_bits = 4: the byte
 * of row i is at 4 (i / 32 16 + i mod 16), plus 1 if i / 16 is odd, and has the first block in the
 * lower half. t_bits = 2: at 4 (i mod 16), plus 1 if i / 16 is odd, from bit 4 (i / 32) on, the
 * first block lowest.
 *
 * x: `rows` rows, 1, 3 or a multiple of LABEL_ROWS up to LABEL_BATCH, x_ld bytes apart, with
 * LABEL_X bytes for a block: each pair of numbers twice, then twice minus the sum of all eight
 * times their bias, mod 2^16. Paired, 2 LABEL_X bytes for two blocks: four times two numbers of
 * each, then for each that term, then for each the sum of its numbers. NESTED, two numbers belong
 * to the same field of both blocks of D4, and the sums of the numbers are not used. With x_pairs, or
 * on level c, as paired codes of D4 but for the order of the numbers, whatever the codes.
 *
 * y[r][64] += x_scale[r][unit] sum_k r_T <p - o, x> over units, each step rounded to f32; with
 * x_scale NULL y are s32, sums without it, of up to 128 units.
 */
#define LABEL_ROWS 2
#define LABEL_BATCH 64		/* y of them is 16 KiB */
#define LABEL_X 20
#define LABEL_LEAST 1e-30f	/* x by 32: smaller ones count as 0 */

#define HZI_VLUT_PAIRED 4	/* added to a shaping other than E8, with bits = 4 */

struct hzi_vlut_label {
	const uint8_t *codes, *scale;	/* scale: r_T, 16 bytes */
	const int8_t *x;
	const float *x_scale;
	float *y;
	int64_t units, x_ld, x_scale_ld;
	int32_t rows, shaping, bits, t_bits;
	bool x_pairs;			/* if rows are not 1 */
};

/*
 * Decodes such codes from a unit on to p - o, in packed B as hzi_vlut_points does; blocks: of 8
 * values
 */
struct hzi_vlut_label_points {
	const uint8_t *codes;
	const int8_t *bias;
	uint8_t *b;
	int64_t blocks, b_panel;
	int32_t shaping, bits, t_bits;
};

/* Contiguous elements of a row; bias and `up` may be NULL: y = act(from + bias) (up + up_bias) */
struct hzi_vlut_bias_act_run {
	const void *from, *up;
	const float *bias, *up_bias;
	void *y;
	int64_t count;
	int32_t from_dtype, y_dtype, activation;
};

struct hzi_vlut_kern {
	void (*sum)(const struct hzi_vlut_sum *a);
	void (*range)(const struct hzi_vlut_table *a);
	void (*table)(const struct hzi_vlut_table *a);
	void (*points)(const struct hzi_vlut_points *a);
	void (*quads)(const struct hzi_vlut_quads *a);
	bool prefers_simd;			/* SIMD decoding is faster than tables of words */
	void (*widen)(const struct hzi_vlut_widen *a);
	/* Transposes 64 rows of count bytes, row i at rows + i * step, to the order of panels. */
	void (*transpose64)(const uint8_t *rows, int64_t step, int64_t count, uint8_t *to);
	/*
	 * Splits round(x factor), below 2^22 in magnitude, into signed base-256 digits, digit p at
	 * to + p * step, the least significant first; the last digit is the remaining quotient.
	 */
	void (*split_digits)(const float *x, int64_t count, float factor, int parts, int8_t *to,
			     int64_t step);
	/* The bits of the largest |x|; at least 0x7f800000 with a NaN or Inf */
	int32_t (*abs_max)(const float *x, int64_t count);
	/*
	 * Rows of x per call, up to 16; and number of rows up to which bitfield() beats
	 * bitfield_points()
	 */
	int32_t bitfield_rows, bitfield_rows_max;
	void (*bitfield)(const struct hzi_vlut_bitfield *a);
	void (*bitfield_points)(const struct hzi_vlut_bitfield_points *a);
	void (*bitfield_codes)(const struct hzi_vlut_bitfield_codes *a);
	/* Transposes each 4 x 4 of count numbers, a multiple of 16: 4 j + i to 4 i + j. */
	void (*bitfield_order)(int8_t *x, int64_t count);
	void (*label)(const struct hzi_vlut_label *a);
	/* Its x: of f32, to s8 with scales of 32; from s8 of blocks that fill units to its order */
	void (*label_quantize)(const float *x, int64_t count, int8_t *to, float *scale);
	void (*label_order)(const int8_t *x, int64_t blocks, const int8_t *bias, int shaping,
			    bool x_pairs, int8_t *to);
	void (*label_points)(const struct hzi_vlut_label_points *a);
	hzi_transpose transpose;
	void (*convert)(const struct hzi_convert *a);
	void (*bias_act)(const struct hzi_vlut_bias_act_run *r);
};

HZI_KERN(vlut)

#endif
