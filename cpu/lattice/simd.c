/*
 * simd.c - which quantizers fit 16-bit and 8-bit lanes, and their constants; merges contiguous rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice/lattice.h"

/* Prepares x mod n for |x| <= range; false if 16 bits do not suffice. */
static bool make_divisor(struct hzi_lattice_divisor *l, int64_t n, int64_t range)
{
	const int64_t bias = (range / (2 * n) + 1) * 2 * n, mul = 65536 / n + 1;

	*l = (struct hzi_lattice_divisor){(int32_t)n, (int32_t)bias, (int32_t)mul};
	/*
	 * x mul / 65536 exceeds x / n by x (mul n - 65536) / (65536 n), which must be below 1 / n.
	 */
	return (bias + range) * (mul * n - 65536) < 65536;
}

/*
 * Largest coordinate, when rounded at level 0, for lanes that hold up to limit; margins are for
 * what is added to it: the offset, a correction, and in remainder() q or q^M.
 */
static int64_t farthest(const struct hzi_lattice_rule *r, int64_t limit, int64_t weight,
			int64_t offset)
{
	return r->kind == HZI_LATTICE_E8 ? (limit - offset - weight - 3) / 2 :
					   limit - offset - weight / 2 - 2;
}

bool hzi_lattice_digits_of(const struct hzi_lattice_rule *r, struct hzi_lattice_simd *l)
{
	l->digits = 0;
	for (int64_t n = r->q; n <= 65536; n *= r->q)
		l->digits++;
	if (l->digits == 0)
		return false;
	l->arrays = (r->d + l->digits - 1) / l->digits;
	l->pow2 = r->log2q >= 0;
	l->shift = __builtin_ctz((unsigned)r->q);
	return l->arrays * r->levels <= HZI_LATTICE_ARRAYS;
}

bool hzi_lattice_simd_of(const struct hz_lattice *lattice, struct hzi_lattice_simd *l,
			 int32_t *round_max)
{
	const struct hzi_lattice_rule *r = &lattice->rule;
	const bool tabular = r->kind == HZI_LATTICE_E8 || (r->kind == HZI_LATTICE_D && r->d == 4);
	/* The three coordinates of A2 are at most 2 |y|. */
	const double beyond = (r->kind == HZI_LATTICE_A2 ? 2 : 1) * (double)r->reach + 2;
	int64_t point = 0, offset = 0, weight = 1, largest;

	memset(l, 0, sizeof(*l));
	if (r->kind == HZI_LATTICE_BASIS || r->q > 256 || r->shaping)
		return false;
	if (!hzi_lattice_digits_of(r, l))
		return false;
	for (int m = 0; m < r->levels; m++) {
		point = point * r->q + lattice->leader_max;
		weight *= r->q;
		if (point > 16384 || weight > 4096)
			return false;
	}
	for (int i = 0; i < r->embed; i++)
		offset = abs(r->offset[i]) > offset ? abs(r->offset[i]) : offset;
	l->inverse = 1;
	/* Newton's iteration, modulo 2^16, doubles the number of correct bits. */
	for (int i = 0; i < 4; i++) {
		const unsigned odd = (unsigned)(r->q >> l->shift), u = (uint16_t)l->inverse;

		l->inverse = (int16_t)(uint16_t)(u * (2 - odd * u));
	}
	if (l->pow2) {
		l->q.n = r->q;
		largest = farthest(r, 127, weight, offset);
		/*
		 * Each digit lies within one byte, and so do coordinates in the basis up to their
		 * digit.
		 */
		l->bytes = tabular && l->arrays == 1 && point + offset <= 127 && r->q <= 16 &&
			   weight <= 64 && (r->kind == HZI_LATTICE_D || weight <= 16) &&
			   (r->level_size <= 256 || 8 % l->shift == 0);
		l->largest = (int32_t)(point + offset);
		l->byte_points = l->bytes && (double)largest >= beyond;
		if (!l->byte_points)
			largest = farthest(r, 16383, weight, offset);
		*round_max = (int32_t)largest;
		return (double)largest >= beyond;
	}
	if (!(beyond < 16384))
		return false;
	*round_max = 2 * (int32_t)beyond;
	largest = (r->kind == HZI_LATTICE_E8 ? 2 : 1) * ((int64_t)*round_max + 2) + offset;
	/* Combined digits, when decoding: from -3 q to 5 q */
	largest = largest > 4 * r->q ? largest : 4 * r->q;
	/* Coordinates of leaders are within 2 q; E8 adds 8 of them, D_d adds d. */
	return make_divisor(&l->q, r->q, largest + r->q) &&
	       make_divisor(&l->q2, 2 * r->q, largest + 2 * r->q) &&
	       make_divisor(&l->digit, r->q, (int64_t)(r->d > 8 ? 2 * r->d : 16) * r->q);
}

struct hzi_lattice_map hzi_lattice_merge_rows(const struct hzi_lattice_map *from,
					      const struct hzi_lattice_rule *r, bool values)
{
	struct hzi_lattice_map m = *from;
	const int64_t row = values ? m.n * m.v_step : m.blocks * m.v_block;
	const int64_t groups = ceil_div(m.blocks, r->group);

	if (m.ndim == 0 || m.n != m.blocks * (values ? r->d : 1) || m.blocks % r->group)
		return m;
	if (m.v_stride[m.ndim - 1] != row ||
	    m.code_stride[m.ndim - 1] != m.blocks * m.code_block ||
	    m.t_stride[m.ndim - 1] != groups * m.t_step)
		return m;
	m.ndim--;
	m.n *= m.shape[m.ndim];
	m.blocks *= m.shape[m.ndim];
	return m;
}

void hzi_lattice_index_layout(const struct hzi_lattice_rule *r,
			      const struct hzi_lattice_simd *lanes,
			      struct hzi_lattice_index_layout *p)
{
	p->arrays = r->levels * lanes->arrays;
	p->per_level = lanes->arrays;
	p->digits = lanes->digits;
	p->last = r->d - (lanes->arrays - 1) * lanes->digits;
	p->power[0] = 1;
	for (int i = 0; i < p->digits; i++)
		p->power[i + 1] = p->power[i] * (uint32_t)r->q;
}
