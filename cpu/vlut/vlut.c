/*
 * vlut.c - products with lattice codes on the CPU: panels, tables, points, threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "cpu/core/sizes.h"
#include "cpu/lattice/lattice.h"
#include "cpu/vlut/vlut.h"

/* ---- Panels of codes ------------------------------------------------------------------------- */

/*
 * A packed matrix: panels of 64 rows, each with [blocks][M][64] codes and then [blocks or
 * groups][64] of T. The bytes of a row are at its hzi_vlut_row_at(), codes of 16 and 32 bits in the
 * order of rows. Levels that were not given when it was packed are codes 0, whose leader is 0. With
 * bit-fields a panel is two halves of 32 rows, see struct hzi_vlut_bitfield, with labels units of
 * four blocks, see struct hzi_vlut_label.
 */
void hzi_vlut_side(struct hzi_vlut_side *s, const struct hz_vlut *vlut,
		   const struct hz_lattice *lattice, const struct hzi_coded *w)
{
	const struct hzi_lattice_rule *r = &lattice->rule;
	int64_t reach = 0, weight = 1;
	int32_t far;

	*s = (struct hzi_vlut_side){
		.lattice = lattice,
		.rule = r,
		.w = w,
		.matrices = hzi_lattice_matrices_of(lattice),
		.bytes = w->code_dtype == HZ_U8	 ? 1 :
			 w->code_dtype == HZ_U16 ? 2 :
						   4,
		.words = lattice == vlut->w ? vlut->words[0] : vlut->words[1],
		.embed = r->embed,
		.first = w->first,
		.levels = r->levels - w->first,
		.blocks = w->blocks,
		.has_t = hzi_lattice_has_t(lattice),
		.bitfield = vlut->bitfield && lattice == vlut->w,
		.bitfield_code_table = vlut->bitfield_code_table,
		.label = vlut->label.bits && lattice == vlut->w ? &vlut->label : NULL,
	};
	s->group = s->has_t ? r->group : 1;
	s->groups = s->has_t ? (s->blocks + s->group - 1) / s->group : 0;
	s->panels = (w->rows + HZI_VLUT_ROWS - 1) / HZI_VLUT_ROWS;
	s->panel_bytes =
		s->blocks * r->levels * HZI_VLUT_ROWS * s->bytes + s->groups * HZI_VLUT_ROWS;
	s->half_bytes = (s->blocks + 15) / 16 * 1024;
	if (s->bitfield)
		s->panel_bytes = 2 * s->half_bytes;
	if (s->label) {
		s->unit_bytes = (4 * s->label->bits + s->label->t_bits / 2) * HZI_VLUT_ROWS;
		s->unit_blocks = 32 / r->d;
		s->units = (s->blocks + s->unit_blocks - 1) / s->unit_blocks;
		s->panel_bytes = s->units * s->unit_bytes;
	}
	s->has_simd = hzi_lattice_simd_of(lattice, &s->lanes, &far);
	s->small = lattice->leaders && r->level_size <= HZI_VLUT_TABLE_ENTRIES;
	s->size = !s->small ? 0 : r->level_size <= 16 ? 16 : r->level_size <= 64 ? 64 :
		  r->level_size <= 128 ? 128 : 256;
	for (int m = 0; m < r->levels; m++) {
		if (m >= s->first)
			reach += weight * lattice->leader_max;
		weight = weight > INT32_MAX ? weight : weight * r->q;
		reach = reach > INT32_MAX ? INT32_MAX : reach;
	}
	for (int e = 0; e < r->embed; e++) {
		const int64_t o = r->offset[e] < 0 ? -(int64_t)r->offset[e] : r->offset[e];

		s->offset_max = o > s->offset_max ? o : s->offset_max;
		s->sub = s->sub || (e < r->d && w->sub[e] != 0);
	}
	s->reach = reach + s->offset_max;
}

/* Invalid codes count modulo q^d, which is not 0: products take codes of at most 32 bits. */
static uint32_t reduce_code(uint32_t code, uint64_t size)
{
	return code >= size ? (uint32_t)(code % size) : code;
}

static void reduce_codes(void *codes, int bytes, int64_t count, uint64_t size)
{
	uint8_t *const u8 = codes;
	uint16_t *const u16 = codes;

	for (int64_t i = 0; bytes == 1 && size < 256 && i < count; i++)
		u8[i] = (uint8_t)reduce_code(u8[i], size);
	for (int64_t i = 0; bytes == 2 && size < 65536 && i < count; i++)
		u16[i] = (uint16_t)reduce_code(u16[i], size);
}

static uint32_t get_code(const void *codes, int bytes, int64_t at)
{
	return bytes == 1 ? ((const uint8_t *)codes)[at] :
	       bytes == 2 ? ((const uint16_t *)codes)[at] :
			    ((const uint32_t *)codes)[at];
}

static void store_code(void *codes, int bytes, int64_t at, uint32_t code)
{
	if (bytes == 1)
		((uint8_t *)codes)[at] = (uint8_t)code;
	else if (bytes == 2)
		((uint16_t *)codes)[at] = (uint16_t)code;
	else
		((uint32_t *)codes)[at] = code;
}

/* 16-bit codes of a row, blocks and levels apart; each goes to a row of 64. */
static void pack_codes16(const uint16_t *from, int64_t block, int64_t level, int64_t blocks,
			 int levels, int below_levels, uint64_t size, uint16_t *to)
{
	for (int64_t b = 0; b < blocks; b++, from += block) {
		to += below_levels * HZI_VLUT_ROWS;
		for (int l = 0; l < levels; l++, to += HZI_VLUT_ROWS)
			*to = (uint16_t)reduce_code(from[l * level], size);
	}
}

/* A row of the packed matrix as a row of w */
static int64_t row_of(const struct hzi_vlut_side *s, int64_t row)
{
	return row - s->row0;
}

/* Rows of a panel that w has: *begin to *end of the packed matrix */
static void panel_rows(const struct hzi_vlut_side *s, int64_t panel, int64_t *begin, int64_t *end)
{
	*begin = panel * HZI_VLUT_ROWS;
	*end = hzi_vlut_min(*begin + HZI_VLUT_ROWS, s->row0 + s->w->rows);
	*begin = *begin > s->row0 ? *begin : s->row0;
}

/*
 * Packs row i, blocks from number b of a panel's on, after below_levels levels, which are not
 * written.
 */
static void pack_row(const struct hzi_vlut_side *s, int64_t i, int64_t first, int64_t b,
		     int64_t blocks, int below_levels, uint8_t *codes)
{
	const struct hzi_coded *w = s->w;
	const int64_t from = row_of(s, i) * w->row + first * w->block;
	const int row = (int)(i % HZI_VLUT_ROWS);
	int64_t to = b * (below_levels + s->levels) * HZI_VLUT_ROWS +
		     (s->bytes == 1 ? hzi_vlut_row_at(row) : row);

	if (s->bytes == 2) {
		pack_codes16((const uint16_t *)w->codes + from + b * w->block, w->block, w->level,
			     blocks, s->levels, below_levels, s->rule->level_size,
			     (uint16_t *)(void *)codes + to);
		return;
	}
	for (const int64_t end = b + blocks; b < end; b++) {
		to += below_levels * HZI_VLUT_ROWS;
		for (int level = 0; level < s->levels; level++, to += HZI_VLUT_ROWS) {
			const uint32_t code = get_code(w->codes, s->bytes,
						       from + b * w->block + level * w->level);

			store_code(codes, s->bytes, to, reduce_code(code, s->rule->level_size));
		}
	}
}

/* T of groups from number g on of the rows of a panel that w has */
static void pack_t(const struct hz_context *ctx, const struct hzi_vlut_side *s, int64_t panel,
		   int64_t g, int64_t groups, uint8_t *t)
{
	const struct hzi_coded *w = s->w;
	const uint8_t last = (uint8_t)(s->rule->scales - 1);
	int64_t begin, end;

	panel_rows(s, panel, &begin, &end);
	if (end - begin == HZI_VLUT_ROWS && w->t_step == 1) {
		hzi_vlut_kern[ctx->level].transpose64(w->t + row_of(s, begin) * w->t_row + g,
						      w->t_row, groups, t);
		for (int64_t i = 0; i < groups * HZI_VLUT_ROWS; i++)
			t[i] = t[i] < last ? t[i] : last;
		return;
	}
	for (int64_t i = begin; i < end; i++) {
		const uint8_t *from = w->t + row_of(s, i) * w->t_row + g * w->t_step;
		uint8_t *to = t + hzi_vlut_row_at((int)(i % HZI_VLUT_ROWS));

		for (int64_t l = 0; l < groups; l++, from += w->t_step, to += HZI_VLUT_ROWS)
			*to = *from < last ? *from : last;
	}
}

/*
 * Packs blocks first .. first + blocks - 1 of the rows of a panel that w has, after `below_levels`
 * levels of code 0, to codes; and their T to t. Other rows get codes 0, or with `keep` what they
 * have.
 */
static void pack_panel(const struct hz_context *ctx, const struct hzi_vlut_side *s, int64_t panel,
		       int64_t first, int64_t blocks, int below_levels, bool keep, uint8_t *codes,
		       uint8_t *t)
{
	enum {
		BLOCKS_AT_ONCE = 16
	}; /* blocks of all rows at a time, so that the output stays in L1 */
	const struct hzi_coded *w = s->w;
	const int64_t count = blocks * (below_levels + s->levels);
	const int64_t groups = (blocks + s->group - 1) / s->group;
	const uint64_t size = s->rule->level_size;
	int64_t begin, end;
	bool whole;

	panel_rows(s, panel, &begin, &end);
	whole = end - begin == HZI_VLUT_ROWS;
	if (s->bytes <= 2 && below_levels == 0 && whole && w->level == 1 &&
	    w->block == s->levels) {
		const int64_t from = row_of(s, begin) * w->row + first * w->block;

		if (s->bytes == 1)
			hzi_vlut_kern[ctx->level].transpose64((const uint8_t *)w->codes + from,
							      w->row, count, codes);
		else
			hzi_cpu_transpose(codes, HZI_VLUT_ROWS, (const uint16_t *)w->codes + from,
					  w->row, HZI_VLUT_ROWS, count, 2);
		reduce_codes(codes, s->bytes, count * HZI_VLUT_ROWS, size);
	} else {
		if (below_levels || (!whole && !keep))
			memset(codes, 0, (size_t)(count * HZI_VLUT_ROWS * s->bytes));
		for (int64_t b = 0; b < blocks; b += BLOCKS_AT_ONCE) {
			for (int64_t i = begin; i < end; i++)
				pack_row(s, i, first, b, hzi_vlut_min(BLOCKS_AT_ONCE, blocks - b),
					 below_levels, codes);
		}
	}
	if (s->has_t && !whole && !keep)
		memset(t, 0, (size_t)(groups * HZI_VLUT_ROWS));
	if (s->has_t)
		pack_t(ctx, s, panel, first / s->group, groups, t);
}

/* Codes to bit-fields, a byte for each coordinate */
static void make_bitfield(const struct hzi_vlut_side *s, uint32_t *bitfield)
{
	for (uint32_t f = 0; f < 256; f++)
		bitfield[s->bitfield_code_table[f]] =
			(f & 3) | (f >> 2 & 3) << 8 | (f >> 4 & 3) << 16 | (f >> 6) << 24;
}

/* Fields of both levels of a block of a row, a byte for each coordinate; 0 where w has none */
static uint32_t fields_of(const struct hzi_vlut_side *s, const uint32_t *bitfield, int64_t row,
			  int64_t block)
{
	const struct hzi_coded *w = s->w;
	const int64_t i = row_of(s, row);
	const uint8_t *codes = (const uint8_t *)w->codes + i * w->row + block * w->block;
	uint32_t all = 0;

	if (i < 0 || i >= w->rows || block >= s->blocks)
		return 0;
	for (int l = 0; l < s->levels; l++)
		all |= bitfield[codes[l * w->level]] << 2 * (s->first + l);
	return all;
}

/*
 * Adds the rows of a panel that w has; their bits are 0. Four blocks of rows i and i + 16 are a
 * word for each coordinate. BLOCKS_AT_ONCE blocks of all rows keep the output in L1.
 */
static void pack_bitfield(const struct hzi_vlut_side *s, const uint32_t *bitfield, int64_t panel,
			  uint8_t *to)
{
	enum {
		BLOCKS_AT_ONCE = 64
	};
	const uint32_t even = 0x00ff00ff, low = 0xffff;

	for (int64_t first = 0; first < s->blocks; first += BLOCKS_AT_ONCE) {
		const int64_t end = hzi_vlut_min(first + BLOCKS_AT_ONCE, s->blocks);

		for (int i = 0; i < HZI_VLUT_ROWS / 2; i++) {
			const int64_t row = panel * HZI_VLUT_ROWS + i / 16 * 32 + i % 16;
			uint8_t *lane = to + i / 16 * s->half_bytes + i % 16 * 4;

			for (int64_t b = first; b < end; b += 4) {
				uint8_t *at = lane + b / 4 * 256;
				uint32_t v[4], word[4], old;

				for (int j = 0; j < 4; j++)
					v[j] = fields_of(s, bitfield, row, b + j) |
					       fields_of(s, bitfield, row + 16, b + j) << 4;
				/* Byte e of v[j] becomes byte j of word[e]. */
				for (int j = 0; j < 4; j += 2) {
					const uint32_t p = v[j], q = v[j + 1];

					v[j] = (p & even) | (q & even) << 8;
					v[j + 1] = (p >> 8 & even) | (q & ~even);
				}
				for (int j = 0; j < 2; j++) {
					word[j] = (v[j] & low) | v[j + 2] << 16;
					word[j + 2] = v[j] >> 16 | (v[j + 2] & ~low);
				}
				for (int e = 0; e < 4; e++) {
					memcpy(&old, at + e * 64, 4);
					old |= word[e];
					memcpy(at + e * 64, &old, 4);
				}
			}
		}
	}
}

/*
 * Where a row's block of a panel of labels is: its first plane; its T, of which it has the bits
 * from t_shift on; of D4 its nibble's first bit in the planes
 */
struct label_at {
	int64_t planes, t;
	int t_shift, nibble;
};

static struct label_at label_at(const struct hzi_vlut_side *s, int64_t block, int row)
{
	const struct hzi_vlut_label_layout *l = s->label;
	const int64_t unit = block / s->unit_blocks * s->unit_bytes;
	const int b = (int)(block % s->unit_blocks), eight = b * 4 / s->unit_blocks;
	const int64_t at = unit + hzi_vlut_row_at(row);

	if (s->label->paired) {
		const bool d4 = s->unit_blocks == 8, four = l->t_bits == 4;

		return (struct label_at){
			.planes = unit + row * 4 + eight % 2 * 2 +
				  (d4 ? b % 2 : eight / 2 * 8 * HZI_VLUT_ROWS),
			.t = unit + 16 * HZI_VLUT_ROWS + row % 16 * 4 + eight % 2 * 2 +
			     row / 16 % 2 + (four ? row / 32 * 64 : 0),
			.t_shift = four ? eight / 2 * 4 : row / 32 * 4 + eight / 2 * 2,
			.nibble = d4 ? eight / 2 * 4 : 0,
		};
	}
	return (struct label_at){
		.planes = at + eight * l->bits * HZI_VLUT_ROWS,
		.t = at + (4 * l->bits + eight * l->t_bits / 8) * HZI_VLUT_ROWS,
		.t_shift = eight * l->t_bits % 8,
		.nibble = s->unit_blocks == 8 ? b % 2 * 4 : 0,
	};
}

/* The byte of coordinate e of D4 behind a block's first */
static int64_t coordinate_at(const struct hzi_vlut_side *s, int e)
{
	return e * (s->label->paired ? 4 : 1) * HZI_VLUT_ROWS;
}

/* The byte of field i of E8 behind a block's first; of 3 bits the lowest two. *shift: its bit */
static int64_t field_at(const struct hzi_vlut_side *s, int i, int *shift)
{
	const int bits = s->label->bits;

	if (s->label->paired) {
		*shift = i / 2 % 2 * 4;
		return i / 4 * 4 * HZI_VLUT_ROWS + i % 2;
	}
	*shift = bits == 4 ? i % 2 * 4 : i % 4 * 2;
	return (bits == 4 ? i / 2 : i / 4) * HZI_VLUT_ROWS;
}

static void clear_label(const struct hzi_vlut_side *s, int64_t block, int row, uint8_t *to)
{
	const struct label_at a = label_at(s, block, row);

	to[a.t] &= (uint8_t)~(((1 << s->label->t_bits) - 1) << a.t_shift);
	for (int e = 0; e < 4 && !s->rule->shaping; e++)
		to[a.planes + coordinate_at(s, e)] = 0;
	for (int e = 0; e < 8 && s->rule->shaping; e++) {
		int shift;

		to[a.planes + field_at(s, e, &shift)] = 0;
	}
	if (s->label->bits == 3)
		to[a.planes + 2 * HZI_VLUT_ROWS] = 0;
}

/* The code of a paired label; the same function is its inverse. */
static uint32_t paired_label(uint32_t code)
{
	const uint32_t low = code & 0x11111111;

	return (code & 0xefffffff) | (uint32_t)__builtin_parity(low) << 28;
}

/* Clears a row of a panel of bit-fields, the nibbles that pack_bitfield() fills, or labels. */
static void clear_row(const struct hzi_vlut_side *s, int64_t row, uint8_t *to)
{
	const int64_t i = row % HZI_VLUT_ROWS;

	for (int64_t b = 0; s->label && b < s->units * s->unit_blocks; b++)
		clear_label(s, b, (int)i, to);
	if (!s->bitfield)
		return;
	to += i / 32 * s->half_bytes + i % 16 * 4;
	for (int64_t at = 0; at < s->half_bytes; at += 64) {
		for (int b = 0; b < 4; b++)
			to[at + b] &= (uint8_t)(i / 16 % 2 ? 0x0f : 0xf0);
	}
}

static void pack_fields(const struct hzi_vlut_side *s, uint32_t code, uint8_t *planes)
{
	const int bits = s->label->bits;

	if (s->label->paired) {
		/* Fields 1 and 2 change places, and 5 and 6. */
		code = paired_label(code);
		code = (code & 0xf00ff00f) | (code & 0x0f000f00) >> 4 | (code & 0x00f000f0) << 4;
		for (int h = 0; h < 4; h++)
			planes[h / 2 * 4 * HZI_VLUT_ROWS + h % 2] = (uint8_t)(code >> 8 * h);
		return;
	}
	for (int e = 0; e < 8; e++) {
		const uint32_t n = code >> e * bits;
		int shift;
		const int64_t at = field_at(s, e, &shift);

		planes[at] |= (uint8_t)((n & (bits == 4 ? 15 : 3)) << shift);
		if (bits == 3)
			planes[2 * HZI_VLUT_ROWS] |= (uint8_t)((n >> 2 & 1) << e);
	}
}

/* Adds the rows of a panel that w has; their bits are 0. */
static void pack_label(const struct hzi_vlut_side *s, const uint32_t *bitfield, int64_t panel,
		       uint8_t *to)
{
	const struct hzi_coded *w = s->w;
	const struct hzi_vlut_label_layout *l = s->label;
	const uint32_t last = (uint32_t)s->rule->scales - 1, top = 1u << (l->bits - 1);
	int64_t begin, end;

	panel_rows(s, panel, &begin, &end);
	for (int64_t b = 0; b < s->blocks; b++) {
		for (int64_t row = begin; row < end; row++) {
			const struct label_at a = label_at(s, b, (int)(row % HZI_VLUT_ROWS));
			const int64_t i = row_of(s, row), from = i * w->row + b * w->block;
			uint32_t t = w->t[i * w->t_row + b / s->group * w->t_step];
			uint32_t code = 0;

			t = t < last ? t : last;
			for (int m = 0; m < s->levels; m++) {
				code = get_code(w->codes, s->bytes, from + m * w->level);
				for (int e = 0; e < 4 && !s->rule->shaping; e++)
					to[a.planes + coordinate_at(s, e)] |= (uint8_t)
						((bitfield[code] >> 8 * e & 3)
						 << (a.nibble + 2 * (s->first + m)));
			}
			if (s->rule->shaping == HZI_SHAPING_D8STAR)
				code = (code & ~top) | (t >> l->t_bits ? top : 0);
			if (s->rule->shaping)
				pack_fields(s, code, to + a.planes);
			to[a.t] |= (uint8_t)((t & ((1u << l->t_bits) - 1)) << a.t_shift);
		}
	}
}

/* The code of a level, as it was before it was packed */
static uint32_t label_of(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int row,
			 int64_t block, int level)
{
	const int bits = s->label->bits;
	const struct label_at a = label_at(s, v->first + block, row);
	const uint8_t *planes = v->units + a.planes;
	uint32_t code = 0;

	if (!s->rule->shaping) {
		for (int e = 0; e < 4; e++)
			code |= (uint32_t)(planes[coordinate_at(s, e)] >> (a.nibble + 2 * level) &
					   3) << 2 * e;
		return s->bitfield_code_table[code];
	}
	for (int e = 0; e < 8; e++) {
		int shift;
		uint32_t n = planes[field_at(s, e, &shift)];

		n = n >> shift & (bits == 4 ? 15 : 3);
		if (bits == 3)
			n |= (uint32_t)(planes[2 * HZI_VLUT_ROWS] >> e & 1) << 2;
		code |= n << e * bits;
	}
	code = s->label->paired ? paired_label(code) : code;
	return s->rule->shaping == HZI_SHAPING_D8STAR ? code & ~(1u << (bits - 1)) : code;
}

/* Labels are read in place; T are copied. */
static struct hzi_vlut_view view_label(const struct hzi_vlut_side *s, int64_t panel, int64_t first,
				       int64_t blocks, uint8_t *scratch)
{
	const struct hzi_vlut_label_layout *l = s->label;
	const uint8_t *units = (const uint8_t *)s->w->packed + panel * s->panel_bytes;
	const bool free_bit = s->rule->shaping == HZI_SHAPING_D8STAR && l->t_bits == 2;
	const int mask = (1 << l->t_bits) - 1;
	/* Field 0 of 3 bits has its top bit in the third plane, at bit 0. */
	const int top = l->bits == 3 ? 0 : l->bits - 1;
	uint8_t *t = scratch;

	for (int64_t b = first; b < first + blocks; b += s->group, t += HZI_VLUT_ROWS) {
		for (int i = 0; i < HZI_VLUT_ROWS; i++) {
			const struct label_at a = label_at(s, b, i);
			const uint8_t upper = units[a.planes +
						    (l->bits == 3 ? 2 * HZI_VLUT_ROWS : 0)];

			t[hzi_vlut_row_at(i)] = (uint8_t)
				((units[a.t] >> a.t_shift & mask) |
				 (free_bit ? (upper >> top & 1) << 2 : 0));
		}
	}
	return (struct hzi_vlut_view){.units = units, .first = first, .t = scratch};
}

static struct hzi_vlut_view view_bitfield(const struct hz_context *ctx,
					  const struct hzi_vlut_side *s, int64_t panel,
					  int64_t first, int64_t blocks, uint8_t *scratch)
{
	const struct hzi_vlut_bitfield_codes a = {
		.codes = (const uint8_t *)s->w->packed + panel * s->panel_bytes + first / 4 * 256,
		.table = s->bitfield_code_table, .to = scratch, .half = s->half_bytes,
		.chunks = (first % 4 + blocks + 3) / 4,
	};

	hzi_vlut_kern[ctx->level].bitfield_codes(&a);
	return (struct hzi_vlut_view){
		.codes = scratch + first % 4 * 128 + s->first * HZI_VLUT_ROWS, .step = 128,
	};
}

int64_t hzi_vlut_view_bytes(const struct hzi_vlut_side *s, int64_t blocks)
{
	if (s->w->packed && s->bitfield)
		return (blocks + 8) * 128;
	if (s->w->packed && s->label)
		return blocks * HZI_VLUT_ROWS;
	return s->w->packed ? 0 : blocks * (s->levels * s->bytes + 1) * HZI_VLUT_ROWS;
}

struct hzi_vlut_view hzi_vlut_view(const struct hz_context *ctx, const struct hzi_vlut_side *s,
				   int64_t panel, int64_t first, int64_t blocks, uint8_t *scratch)
{
	struct hzi_vlut_view v;

	if (s->w->packed && s->bitfield)
		return view_bitfield(ctx, s, panel, first, blocks, scratch);
	if (s->w->packed && s->label)
		return view_label(s, panel, first, blocks, scratch);
	v.units = NULL;
	v.first = 0;
	if (s->w->packed) {
		const uint8_t *p = (const uint8_t *)s->w->packed + panel * s->panel_bytes;

		v.step = (int64_t)s->rule->levels * HZI_VLUT_ROWS * s->bytes;
		v.codes = p + first * v.step + s->first * HZI_VLUT_ROWS * s->bytes;
		v.t = s->has_t ? p + s->blocks * v.step + first / s->group * HZI_VLUT_ROWS : NULL;
		return v;
	}
	v.step = (int64_t)s->levels * HZI_VLUT_ROWS * s->bytes;
	v.codes = scratch;
	v.t = s->has_t ? scratch + blocks * v.step : NULL;
	pack_panel(ctx, s, panel, first, blocks, 0, false, scratch, scratch + blocks * v.step);
	return v;
}

struct pack_job {
	const struct hz_context *ctx;
	struct hzi_vlut_side side;
	uint8_t *packed;
	bool keep;			/* rows that w does not have */
	uint32_t bitfield[256];
};

static void pack_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *job = data;
	const struct hzi_vlut_side *s = &job->side;

	(void)thread;
	for (int64_t i = begin; i < end; i++) {
		const int64_t p = s->row0 / HZI_VLUT_ROWS + i;
		uint8_t *to = job->packed + p * s->panel_bytes;
		int64_t row, last;

		if (!s->bitfield && !s->label) {
			pack_panel(job->ctx, s, p, 0, s->blocks, s->first, job->keep, to,
				   to + s->panel_bytes - s->groups * HZI_VLUT_ROWS);
			continue;
		}
		if (!job->keep)
			memset(to, 0, (size_t)s->panel_bytes);
		for (panel_rows(s, p, &row, &last); job->keep && row < last; row++)
			clear_row(s, row, to);
		if (s->bitfield)
			pack_bitfield(s, job->bitfield, p, to);
		else
			pack_label(s, job->bitfield, p, to);
	}
}

/* Packs panels that rows of w are in. */
static void pack(struct hz_context *ctx, struct pack_job *job)
{
	const struct hzi_vlut_side *s = &job->side;
	const int64_t last = s->row0 + s->w->rows - 1;
	const int64_t panels = last / HZI_VLUT_ROWS - s->row0 / HZI_VLUT_ROWS + 1;

	if (s->bitfield || s->label)
		make_bitfield(s, job->bitfield);
	hzi_parallel(ctx, hzi_threads(ctx, 2 * panels * s->panel_bytes), pack_panels, job, panels);
}

int hzi_cpu_vlut_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	struct pack_job job = {.ctx = ctx, .packed = a->packed};

	hzi_vlut_side(&job.side, a->vlut, a->vlut->w, &a->w);
	if (a->w.codes)
		pack(ctx, &job);
	else
		memset(a->packed, 0, (size_t)(job.side.panels * job.side.panel_bytes));
	return HZ_OK;
}

int hzi_cpu_vlut_append(struct hz_context *ctx, const struct hzi_vlut_append_args *a)
{
	struct pack_job job = {.ctx = ctx, .packed = a->packed, .keep = true};

	hzi_vlut_side(&job.side, a->vlut, a->vlut->w, &a->w);
	job.side.row0 = a->row;
	pack(ctx, &job);
	return HZ_OK;
}

HZI_NO_WORKSPACE(cpu, vlut_append)

size_t hzi_cpu_vlut_pack_workspace(const struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	struct hzi_vlut_side s;

	(void)ctx;
	hzi_vlut_side(&s, a->vlut, a->vlut->w, &a->w);
	return (size_t)(s.panels * s.panel_bytes);
}

/* ---- Points ---------------------------------------------------------------------------------- */

static void leader(const struct hzi_vlut_side *s, uint32_t code, int32_t *c)
{
	int32_t b[HZI_LATTICE_DIMS] = {0};

	if (s->lattice->leaders) {
		memcpy(c, s->lattice->leaders + (int64_t)code * s->embed, (size_t)s->embed * 4);
		return;
	}
	hzi_lattice_unindex(s->rule, code, b);
	hzi_lattice_leader(s->rule, s->matrices, b, c);
}

uint32_t hzi_vlut_code(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int row,
		       int64_t block, int level)
{
	const uint8_t *p = v->codes + block * v->step + level * HZI_VLUT_ROWS * s->bytes;

	if (v->units)
		return label_of(s, v, row, block, level + s->first);
	return s->bytes == 1 ? p[hzi_vlut_row_at(row)] :
	       s->bytes == 2 ? ((const uint16_t *)(const void *)p)[row] :
			       ((const uint32_t *)(const void *)p)[row];
}

void hzi_vlut_point(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int row,
		    int64_t block, int32_t *p)
{
	uint32_t weight = 1;

	HZI_LATTICE_KNOWN(s->rule);
	assert(s->embed == s->rule->embed);
	memset(p, 0, (size_t)s->embed * 4);
	for (int m = 0; m < s->rule->levels; m++, weight *= (uint32_t)s->rule->q) {
		int32_t c[HZI_LATTICE_DIMS];

		if (m < s->first)
			continue;
		leader(s, hzi_vlut_code(s, v, row, block, m - s->first), c);
		for (int e = 0; e < s->embed; e++)
			p[e] += (int32_t)(weight * (uint32_t)c[e]);
	}
}

int64_t hzi_vlut_byte_table_bytes(const struct hzi_vlut_side *s)
{
	return s->small ? (int64_t)s->levels * s->embed * s->size : 0;
}

/* [levels][embed][size]: the leaders times q^m, mod 256; entries beyond q^d like that of code 0 */
void hzi_vlut_byte_table(const struct hzi_vlut_side *s, uint8_t *table)
{
	uint32_t weight = 1;

	for (int m = 0; s->small && m < s->rule->levels; m++, weight *= (uint32_t)s->rule->q) {
		for (int e = 0; m >= s->first && e < s->embed; e++, table += s->size) {
			memset(table, 0, (size_t)s->size);
			for (uint64_t i = 0; i < s->rule->level_size; i++) {
				const uint64_t at = i * (uint64_t)s->embed + (uint64_t)e;

				table[i] = (uint8_t)(weight * (uint32_t)s->lattice->leaders[at]);
			}
		}
	}
}

/* Address of four of k, of a row, in two panels of packed B */
static uint8_t *quad_at(uint8_t *b, int64_t k, int row, int64_t b_panel)
{
	return b + k / 64 * 2048 + k % 64 / 4 * 64 + row / 16 % 2 * 1024 + row / 32 * b_panel +
	       row % 16 * 4;
}

/* 16-bit codes in up to 8 dimensions: for each level a table of 8-byte leaders */
static void points_by_words(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v,
			    const uint64_t *words, int64_t blocks, uint8_t *b, int64_t b_panel)
{
	typedef uint8_t eight __attribute__((vector_size(8)));
	const int64_t size = (int64_t)s->rule->level_size;
	const int embed = s->embed;
	eight offset = {0};

	for (int e = 0; e < embed; e++)
		offset[e] = (uint8_t)s->rule->offset[e];
	words += s->first * size;
	for (int64_t block = 0; block < blocks; block++) {
		const uint16_t *codes =
			(const uint16_t *)(const void *)(v->codes + block * v->step);

		for (int row = 0; row < HZI_VLUT_ROWS; row++) {
			eight sum = -offset;

			for (int m = 0; m < s->levels; m++)
				sum += (eight)words[m * size + codes[m * HZI_VLUT_ROWS + row]];
			if (embed == 8) {
				uint8_t *to = quad_at(b, block * 8, row, b_panel);

				memcpy(to, &sum, 4);
				memcpy(to + 64, (const char *)&sum + 4, 4);
				continue;
			}
			for (int e = 0; e < embed; e++) {
				const int64_t k = block * embed + e;

				quad_at(b, k, row, b_panel)[k % 4] = sum[e];
			}
		}
	}
}

#define BYTE_LEVELS 2	/* of 16-bit codes, in 8-bit lanes */

/* Codes of a block, [levels][64], to row order */
static void codes_in_row_order(const uint8_t *from, int levels, uint16_t *to)
{
	typedef uint16_t eight __attribute__((vector_size(16)));
	typedef uint32_t words __attribute__((vector_size(32)));

	if (levels == 1) {
		memcpy(to, from, HZI_VLUT_ROWS * sizeof(*to));
		return;
	}
	for (int row = 0; row < HZI_VLUT_ROWS; row += 8) {
		eight v[BYTE_LEVELS];
		words both;

		memcpy(&v[0], from + 2 * row, sizeof(v[0]));
		memcpy(&v[1], from + 2 * (HZI_VLUT_ROWS + row), sizeof(v[1]));
		both = __builtin_convertvector(v[0], words) |
		       __builtin_convertvector(v[1], words) << 16;
		memcpy(to + 2 * row, &both, sizeof(both));
	}
}

/* D4 and E8 in 8-bit lanes, which need codes in row order */
static void points_u8(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		      const struct hzi_vlut_view *v, int64_t blocks, uint8_t *b, int64_t b_panel)
{
	enum { BLOCKS_AT_ONCE = 16 };	/* blocks of all rows */
	uint16_t codes[BLOCKS_AT_ONCE * HZI_VLUT_ROWS * BYTE_LEVELS];
	int8_t bytes[BLOCKS_AT_ONCE * HZI_VLUT_ROWS * 8];

	for (int64_t first = 0; first < blocks; first += BLOCKS_AT_ONCE) {
		const int64_t n = hzi_vlut_min(BLOCKS_AT_ONCE, blocks - first);

		for (int64_t i = 0; i < n; i++)
			codes_in_row_order(v->codes + (first + i) * v->step, s->levels,
					   codes + i * HZI_VLUT_ROWS * s->levels);
		hzi_lattice_kern[ctx->level].values(&(struct hzi_lattice_values){
			.rule = s->rule, .lanes = &s->lanes, .codes = codes, .y = bytes,
			.count = n * HZI_VLUT_ROWS, .levels = s->levels, .bytes = 2,
			.first = s->first, .y_dtype = HZ_S8,
		});
		hzi_vlut_kern[ctx->level].quads(&(struct hzi_vlut_quads){
			.bytes = bytes, .b = b, .k = first * s->embed, .count = n * s->embed,
			.b_panel = b_panel, .embed = s->embed,
		});
	}
}

/* Any lattice that fits 16-bit lanes; four blocks have a multiple of four coordinates. */
static void points_i16(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		       const struct hzi_vlut_view *v, int64_t blocks, uint8_t *b, int64_t b_panel)
{
	enum { FOUR = 4 };
	uint16_t index[HZI_LATTICE_ARRAYS * HZI_VLUT_ROWS];
	int16_t p[FOUR * HZI_LATTICE_DIMS * HZI_VLUT_ROWS];
	struct hzi_lattice_index_layout powers;

	hzi_lattice_index_layout(s->rule, &s->lanes, &powers);
	for (int64_t first = 0; first < blocks; first += FOUR) {
		const int64_t n = hzi_vlut_min(FOUR, blocks - first), count = n * s->embed;

		for (int64_t i = 0; i < n; i++) {
			const uint8_t *codes = v->codes + (first + i) * v->step;

			if (s->bytes != 2)
				hzi_lattice_kern[ctx->level].index(&(struct hzi_lattice_index){
					.lanes = &s->lanes, .codes = codes, .index = index,
					.count = HZI_VLUT_ROWS, .step = HZI_VLUT_ROWS,
					.code_block = 1, .code_level = HZI_VLUT_ROWS,
					.levels = s->levels, .bytes = s->bytes,
					.size = s->rule->level_size,
					.weight = powers.power[powers.digits],
				});
			hzi_lattice_kern[ctx->level].leaders(&(struct hzi_lattice_leaders){
				.rule = s->rule, .lanes = &s->lanes,
				.index = s->bytes == 2 ? (const uint16_t *)(const void *)codes :
							 index,
				.p = p + i * s->embed * HZI_VLUT_ROWS, .count = HZI_VLUT_ROWS,
				.step = HZI_VLUT_ROWS, .levels = s->levels, .first = s->first,
			});
		}
		/* Zeros up to a multiple of 4 of k. */
		memset(p + count * HZI_VLUT_ROWS, 0, (size_t)(-count & 3) * sizeof(*p) *
						     HZI_VLUT_ROWS);
		hzi_vlut_kern[ctx->level].quads(&(struct hzi_vlut_quads){
			.p = p, .b = b, .k = first * s->embed, .count = (count + 3) & ~3,
			.b_panel = b_panel,
		});
	}
}

void hzi_vlut_bytes(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		    const struct hzi_vlut_view *v, const uint8_t *table, int64_t blocks, uint8_t *b,
		    int64_t b_panel)
{
	const int64_t count = blocks * s->embed;

	/* Zeros for the k that are multiplied beyond the last. */
	for (int64_t k = count / 64 * 64; k < (count + 63) / 64 * 64; k += 4) {
		for (int row = 0; row < HZI_VLUT_ROWS; row += 16)
			memset(quad_at(b, k, row, b_panel), 0, 64);
	}
	if (v->units && v->first % s->unit_blocks == 0 && !s->first) {
		hzi_vlut_kern[ctx->level].label_points(&(struct hzi_vlut_label_points){
			.codes = v->units + v->first / s->unit_blocks * s->unit_bytes,
			.bias = s->label->bias, .b = b, .blocks = (count + 7) / 8,
			.b_panel = b_panel, .shaping = hzi_vlut_shaping(s), .bits = s->label->bits,
			.t_bits = s->label->t_bits,
		});
		/* Of an odd number of blocks of D4 */
		for (int row = 0; row < HZI_VLUT_ROWS && count % 8; row += 16)
			memset(quad_at(b, count, row, b_panel), 0, 64);
	} else if (s->small && !v->units) {
		struct hzi_vlut_points p = {
			.codes = v->codes, .table = table, .b = b, .blocks = blocks,
			.step = v->step,
			.b_panel = b_panel, .embed = s->embed, .levels = s->levels, .size = s->size,
		};

		for (int e = 0; e < s->embed; e++)
			p.offset[e] = (int8_t)s->rule->offset[e];
		hzi_vlut_kern[ctx->level].points(&p);
	} else if (s->words && !v->units &&
		   !(s->has_simd && s->lanes.pow2 && hzi_vlut_kern[ctx->level].prefers_simd)) {
		points_by_words(s, v, s->words, blocks, b, b_panel);
	} else if (s->has_simd && s->lanes.bytes && s->bytes == 2 && s->levels <= BYTE_LEVELS) {
		points_u8(ctx, s, v, blocks, b, b_panel);
	} else if (s->has_simd && s->bytes > 1) {
		points_i16(ctx, s, v, blocks, b, b_panel);
	} else {
		for (int64_t block = 0; block < blocks; block++) {
			for (int row = 0; row < HZI_VLUT_ROWS; row++) {
				int32_t p[HZI_LATTICE_DIMS];

				hzi_vlut_point(s, v, row, block, p);
				for (int e = 0; e < s->embed; e++) {
					const int64_t k = block * s->embed + e;

					quad_at(b, k, row, b_panel)[k % 4] =
						(uint8_t)(p[e] - s->rule->offset[e]);
				}
			}
		}
	}
}

void hzi_vlut_bitfield_bytes(const struct hz_context *ctx, const struct hzi_vlut_side *s,
			     int64_t panel, int64_t first, int64_t blocks, uint8_t *b,
			     int64_t b_panel)
{
	const uint8_t *codes = (const uint8_t *)s->w->packed + panel * s->panel_bytes;
	struct hzi_vlut_bitfield_points p = {
		.chunks = (blocks + 15) / 16 * 4, .mask = s->first ? 0xcccccccc : 0xffffffff,
	};

	for (int e = 0; e < 4; e++)
		p.offset[e] = (int8_t)s->rule->offset[e];
	for (int h = 0; h < 2; h++) {
		p.codes = codes + h * s->half_bytes + first / 4 * 256;
		p.b = b + h * b_panel;
		hzi_vlut_kern[ctx->level].bitfield_points(&p);
	}
}

/* ---- Vectors --------------------------------------------------------------------------------- */

/* Converts count contiguous elements between two dtypes, one of which is f32. */
static void convert(const struct hz_context *ctx, const void *x, int x_dtype, void *y, int y_dtype,
		    int64_t count)
{
	const struct hzi_convert h = {
		.x = x, .x_ld = count, .y = y, .y_ld = count, .rows = 1, .count = count,
		.x_dtype = x_dtype, .y_dtype = y_dtype, .scale = 1,
	};

	hzi_vlut_kern[ctx->level].convert(&h);
}

/* Contiguous columns: some rows at a time are converted to f32 and transposed. */
static void load_columns(const struct hz_context *ctx, const void *x, int dtype, int64_t n,
			 int64_t step, int64_t first, int64_t cols, float *to, int64_t to_ld)
{
	enum { ROWS = 128 };
	const struct hzi_vlut_kern *const kern = hzi_vlut_kern + ctx->level;
	float rows[ROWS * HZI_VLUT_COLUMNS];

	for (int64_t i = 0; i < n; i += ROWS, first += ROWS * step) {
		const struct hzi_convert h = {
			.x = (const uint16_t *)x + first, .x_ld = step, .y = rows, .y_ld = cols,
			.rows = hzi_vlut_min(ROWS, n - i), .count = cols, .x_dtype = dtype,
			.y_dtype = HZ_F32, .scale = 1,
		};

		if (dtype == HZ_F32) {
			kern->transpose((const float *)x + first, step, to + i, to_ld, h.rows,
					cols);
			continue;
		}
		kern->convert(&h);
		kern->transpose(rows, cols, to + i, to_ld, h.rows, cols);
	}
}

void hzi_vlut_load(const struct hz_context *ctx, const void *x, int dtype, int64_t n, int64_t step,
		   int64_t first, int64_t cols, int64_t x_ld, uint16_t *some, float *to,
		   int64_t to_ld)
{
	if (x_ld == 1 && cols > 1 && dtype != HZ_S8) {
		load_columns(ctx, x, dtype, n, step, first, cols, to, to_ld);
		return;
	}
	for (int64_t c = 0; c < cols && n > 0; c++, first += x_ld, to += to_ld) {
		if (dtype == HZ_F32 && step == 1) {
			memcpy(to, (const float *)x + first, (size_t)n * 4);
		} else if (dtype == HZ_F32) {
			for (int64_t i = 0; i < n; i++)
				to[i] = ((const float *)x)[first + i * step];
		} else if (dtype == HZ_S8) {
			for (int64_t i = 0; i < n; i++)
				to[i] = ((const int8_t *)x)[first + i * step];
		} else {
			for (int64_t i = 0; i < n; i++)
				some[i] = ((const uint16_t *)x)[first + i * step];
			convert(ctx, some, dtype, to, HZ_F32, n);
		}
	}
}

void hzi_vlut_store(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		  const struct hzi_vlut_result *y, int64_t panel, int64_t col, const float *from)
{
	const int64_t row = panel * HZI_VLUT_ROWS, at = row * y->y_i + col * y->y_j;
	const int64_t rows = hzi_vlut_min(HZI_VLUT_ROWS, s->w->rows - row);
	uint16_t half[HZI_VLUT_ROWS];
	float f[HZI_VLUT_ROWS] = {0};

	if (s->w->row_scale) {
		for (int64_t i = 0; i < rows; i++)
			f[i] = from[i] * s->w->row_scale[(row + i) * s->w->row_scale_step];
	} else {
		memcpy(f, from, sizeof(f));
	}
	if (y->bias || y->activation) {
		const bool in_place = y->y_i == 1;	/* no copy to y */

		hzi_vlut_kern[ctx->level].bias_act(&(struct hzi_vlut_bias_act_run){
			.from = f, .bias = y->bias ? y->bias + row : NULL, .count = rows,
			.y = in_place ? (char *)y->y + at * (int64_t)hz_dtype_size(y->dtype) :
					(char *)f,
			.from_dtype = HZ_F32, .y_dtype = in_place ? y->dtype : HZ_F32,
			.activation = y->activation,
		});
		if (in_place)
			return;
	}
	if (y->dtype == HZ_F32 && y->y_i == 1) {
		memcpy((float *)y->y + at, f, (size_t)rows * 4);
		return;
	}
	if (y->dtype == HZ_F32) {
		for (int64_t i = 0; i < rows; i++)
			((float *)y->y)[at + i * y->y_i] = f[i];
		return;
	}
	convert(ctx, f, HZ_F32, half, y->dtype, rows);
	for (int64_t i = 0; i < rows; i++)
		((uint16_t *)y->y)[at + i * y->y_i] = half[i];
}

void hzi_vlut_store_one(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		      const struct hzi_vlut_result *y, int64_t row, int64_t col, float value)
{
	const int64_t at = row * y->y_i + col * y->y_j;

	if (s->w->row_scale)
		value *= s->w->row_scale[row * s->w->row_scale_step];
	if (y->dtype == HZ_F32)
		((float *)y->y)[at] = value;
	else
		convert(ctx, &value, HZ_F32, (uint16_t *)y->y + at, y->dtype, 1);
}
