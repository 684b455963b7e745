/*
 * e8_tables.cuh - coset leaders of E8 with q = 4
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A point g / 8, given in doubled coordinates, is rounded to the integers a or to the half-integers
 * b. In eighths, the errors of a are r = g mod 8 in -4 .. 3, those of b are r - 4 or r + 4. Which
 * of a and b is nearer depends only on the magnitudes of r, and these are all even (4, 2, 0) or all
 * odd (3, 1). "top" marks coordinates of the largest magnitude, 4 or 3, "bottom" those of the
 * smallest, 0 or 1. Apart from ties, the numbers of both decide.
 */
#ifndef HZI_GPU_LATTICE_E8_TABLES_CUH
#define HZI_GPU_LATTICE_E8_TABLES_CUH

#include "gpu/device/base.cuh"

HZ_DEVICE uint32_t lowest_bit(uint32_t x)
{
	return x & (0 - x);
}

HZ_DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
	uint32_t r;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
	return r;
}

/* ---- By counting ----------------------------------------------------------------------------- */

struct e8_choices {
	uint8_t b[2048];
};

/*
 * The choice between a and b: bit e of entry top | bottom << 4 | pa << 8 | pb << 9 | odd << 10 is 1
 * for b, where g_0 mod 8 = e. pa, pb: the sum of a, or b (as the integers below), is odd, so one
 * coordinate must be corrected. See hzi_lattice_nearest_e8().
 */
constexpr e8_choices make_e8_choices()
{
	e8_choices t = {};

	for (int i = 0; i < 2048; i++) {
		const int top = i & 15, bottom = i >> 4 & 15, pa = i >> 8 & 1, pb = i >> 9 & 1;
		const int odd = i >> 10;
		const int most = odd ? (top ? 3 : 1) : top ? 4 : bottom < 8 ? 2 : 0;
		const int least = odd ? (bottom ? 1 : 3) : bottom ? 0 : top < 8 ? 2 : 4;
		const int total = odd ? 3 * top + bottom : 16 + 2 * top - 2 * bottom;
		const int a = pa ? 8 - 2 * most : 0, b = 16 - total + (pb ? 2 * least : 0);

		if (top + bottom > 8 || (odd && top + bottom < 8))
			continue;
		for (int e = odd; e < 8; e += 2) {
			const int size = e < 4 ? e : 8 - e;
			/*
			 * Ties go to the smaller first coordinate, which a correction of that
			 * coordinate reverses.
			 */
			const int corrected = (pa && size == most) || (pb && size == least);

			t.b[i] |= (b < a || (a == b && (e >= 4) != corrected)) << e;
		}
	}
	return t;
}

static __device__ const __align__(16) e8_choices e8_choices_q4 = make_e8_choices();

/* The leader of g, as nibbles c + 8; g as nibbles mod 16 */
HZ_DEVICE uint32_t e8_leader(uint32_t g, const uint8_t *choices)
{
	const uint32_t fours = 0x44444444, eights = 0x88888888, odd = 0 - (g & 1), twice = g << 1;
	const uint32_t top = ((g & ~twice) | (odd & ~g & twice)) & fours;
	const uint32_t bottom = (~(g | twice) | (odd & g & twice)) & fours;
	const uint32_t pa = __popc((g ^ twice) & eights), pb = __popc(g & eights);
	const uint32_t n = __popc(top) + (__popc(bottom) << 4);
	const uint32_t entry = choices[n + ((pa & 1) << 8) + ((pb & 1) << 9) + ((g & 1) << 10)];
	const bool b = entry >> (g & 7) & 1;
	const uint32_t first = b ? bottom : top, other = (b ? top : bottom) ^ fours;
	const uint32_t where = first ? first : other ? other : 4;
	const uint32_t flip = (b ? pb : pa) & 1 ? lowest_bit(where) << 1 : 0;

	return (((g & 0x77777777) ^ (b ? 0 : fours)) + fours) ^ flip;
}

/* ---- By tables of the code ------------------------------------------------------------------- */

/*
 * A table for each half of the coordinates holds the counts: the first four coordinates depend on
 * six digits of a code, the others on four. All eight are even or all odd, so two bits of each
 * suffice, which leaves bits to mark the coordinate whose correction makes the sum even. The counts
 * of both halves index a third table, which says whether the result is a or b, and which half is
 * corrected.
 */

/* Fields of the nibbles of `low` and `high`: bits 2 and 1 of the coordinate, marks for a and b */
#define E8_VALUE 0x66666666
#define E8_MARK_A 0x88888888
#define E8_MARK_B 0x11111111
#define E8_INDEX 0x3ffe			/* index of `choices` times 2: the exclusive or of both */
#define E8_IS_B 0x20			/* flag in `choices`; below are 4, or 5 if all are odd */

struct e8_tables {
	uint32_t low[4096];		/* by digits 7, 0 .. 4 */
	uint32_t high[256];		/* by digits 4 .. 7 */
	uint16_t choices[8192];		/* bit 7 of a byte: correct this half */
};

/* The index, 0 to 14, of t coordinates of the largest and b of the smallest magnitude among four */
constexpr int e8_count(int t, int b)
{
	return t * (11 - t) / 2 + b;
}

/* Coordinates first to first + 3 of the digits z */
constexpr uint32_t e8_half(const int *z, int first)
{
	const int odd = z[7] & 1;
	int value = 0, pa = 0, pb = 0, tops = 0, bottoms = 0, n[2] = {}, mark[2] = {};

	for (int j = 0; j < 4; j++) {
		const int i = first + j, next = i == 6 ? 0 : i == 7 ? z[7] : z[i + 1];
		const int v = z[i] - next + 4 + (i == 0 ? z[0] : 0);
		const int g = (2 * (v & 3) + z[7]) ^ (v & 4) << 1;
		const int size = (g & 7) < 4 ? g & 7 : 8 - (g & 7);
		const int top = size == (odd ? 3 : 4), bottom = size == odd;

		value |= (g & 6) << 4 * j;
		pa ^= (g >> 3 ^ g >> 2) & 1;
		pb ^= g >> 3 & 1;
		tops |= top << j;
		bottoms |= bottom << j;
		n[0] += top;
		n[1] += bottom;
	}
	for (int b = 0; b < 2; b++) {
		const int first_of = b ? bottoms : tops, others = (b ? tops : bottoms) ^ 15;
		const int where = first_of ? first_of : others ? others : 1;

		while (!(where >> mark[b] & 1))
			mark[b]++;
	}
	value |= 8 << 4 * mark[0] | 1 << 4 * mark[1];
	return (uint32_t)value << 16 |
	       (uint32_t)(e8_count(n[0], n[1]) << (first ? 5 : 1) | pa << 9 | pb << 10);
}

constexpr int e8_choice(const e8_choices &by_counts, const int *t, const int *u, int pa, int pb,
			int odd, int g0)
{
	const int entry = by_counts.b[t[0] + t[1] + ((u[0] + u[1]) << 4) + (pa << 8) + (pb << 9) +
				      (odd << 10)];
	const int b = entry >> g0 & 1;
	const int *first = b ? u : t, *other = b ? t : u;
	/* The first half has precedence, among coordinates of the same kind. */
	const int high = first[0] + first[1] ? first[0] == 0 : other[0] == 4 && other[1] < 4;
	const int corrected = b ? pb : pa;

	return 4 + odd + b * E8_IS_B + (corrected ? high ? 0x8000 : 0x80 : 0);
}

constexpr e8_tables make_e8_tables()
{
	const e8_choices by_counts = make_e8_choices();
	e8_tables r = {};

	for (int i = 0; i < 4096; i++) {
		const int z[8] = {i >> 2 & 3, i >> 4 & 3, i >> 6 & 3, i >> 8 & 3, i >> 10, 0, 0,
				  i & 3};
		const uint32_t half = e8_half(z, 0);

		r.low[i] = half | (uint32_t)(z[7] & 1) << 11 | (half >> 17 & 3) << 12;
	}
	for (int i = 0; i < 256; i++) {
		const int z[8] = {0, 0, 0, 0, i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6};

		r.high[i] = e8_half(z, 4);
	}
	for (int i = 0; i < 8192; i++) {
		const int odd = i >> 10 & 1;
		int t[2] = {}, u[2] = {}, sane = 1;

		for (int h = 0; h < 2; h++) {
			const int n = i >> 4 * h & 15;

			while (t[h] < 4 && n >= e8_count(t[h] + 1, 0))
				t[h]++;
			u[h] = n - e8_count(t[h], 0);
			sane &= t[h] + u[h] <= 4;
		}
		if (sane)
			r.choices[i] = (uint16_t)e8_choice(by_counts, t, u, i >> 8 & 1, i >> 9 & 1,
							   odd, (i >> 11) * 2 + odd);
	}
	return r;
}

static __device__ const __align__(16) e8_tables e8_tables_q4 = make_e8_tables();

/* a if x & bit, else b; without shifting the bit first */
HZ_DEVICE uint32_t choose_by_bit(uint32_t x, uint32_t bit, uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("{\n\t.reg .pred p;\n\t.reg .b32 t;\n\tand.b32 t, %1, %2;\n\t"
	    "setp.ne.u32 p, t, 0;\n\tselp.b32 %0, %3, %4, p;\n\t}"
	    : "=r"(r) : "r"(x), "r"(bit), "r"(a), "r"(b));
	return r;
}

/*
 * The leader of a code, as nibbles c + 8. `code` has it in both halves. REVERSED: the bytes, of two
 * coordinates each, in opposite order
 */
template <bool REVERSED>
HZ_DEVICE uint32_t e8_lookup(const e8_tables &tables, uint32_t code)
{
	const uint32_t low = *(const uint32_t *)((const uint8_t *)tables.low +
						 (code >> 12 & 0x3ffc));
	const uint32_t high = *(const uint32_t *)((const uint8_t *)tables.high +
						  (code >> 6 & 0x3fc));
	const uint32_t choice =
		*(const uint16_t *)((const uint8_t *)tables.choices + ((low ^ high) & E8_INDEX));
	const uint32_t g = permute(low, high, REVERSED ? 0x2367 : 0x7632);
	const uint32_t marks = choose_by_bit(choice, E8_IS_B, g << 3, g) & E8_MARK_A &
			       permute(choice, 0, REVERSED ? 0x8899 : 0x9988);
	const uint32_t value = (g & E8_VALUE) ^ choose_by_bit(choice, E8_IS_B, 0, 0x44444444);

	return (value + (choice & 7) * E8_MARK_B) ^ marks;
}

#endif
