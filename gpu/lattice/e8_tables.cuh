/*
 * e8_tables.cuh - coset leaders of E8 with q = 4
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * g / 8 of doubled coordinates is rounded to the integers a, or to b = halves. In eighths, the
 * errors of a are r = g mod 8 in -4 .. 3, those of b r - 4 or r + 4. Only the sizes of r matter to
 * which is nearer, and all are even or all odd: 4 2 0 or 3 1. "top" are those of the largest size,
 * 4 or 3, "bottom" of the least, 0 or 1; of how many there are follows everything but ties.
 */
#ifndef HZI_LATTICE_E8_CUH
#define HZI_LATTICE_E8_CUH

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

/* ---- By counting ---- */

struct e8_choices {
	uint8_t b[2048];
};

/*
 * Which of a and b: bit e of entry top | bottom << 4 | pa << 8 | pb << 9 | odd << 10 is 1 if it is
 * b when g_0 mod 8 = e; pa, pb: the sum of a, b (as the integers below) is odd, which one
 * correction makes even. See hzi_lattice_nearest_e8().
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
			/* Of equals the smaller first coordinate; its correction turns them. */
			const int turned = (pa && size == most) || (pb && size == least);

			t.b[i] |= (b < a || (a == b && (e >= 4) != turned)) << e;
		}
	}
	return t;
}

static __device__ const __align__(16) e8_choices e8_choices_q4 = make_e8_choices();

/* Nibbles c + 8 of the leader of nibbles g mod 16; how many have bit 8 counts mod 2 alone. */
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

/*
 * ---- By tables of the code ----
 *
 * What is counted comes from a table of each half of the coordinates: the first four depend on six
 * digits of a code, the others on four. All eight are even or odd together, so two bits of each are
 * enough, and there is room to mark the one whose correction makes the sum even. What the halves
 * counted then says, by a third table, which of a and b it is, and in which half it is corrected.
 */

/* Nibbles of `low` and `high`: bits 2 and 1 of the coordinate, and marks for a and b. */
#define E8_VALUE 0x66666666
#define E8_MARK_A 0x88888888
#define E8_MARK_B 0x11111111
#define E8_INDEX 0x3ffe			/* of both, by exclusive or: twice that of `choices` */
#define E8_IS_B 0x20			/* of `choices`; below it is 4, or 5 if all are odd */

struct e8_tables {
	uint32_t low[4096];		/* by digits 7, 0 .. 4 */
	uint32_t high[256];		/* by digits 4 .. 7 */
	uint16_t choices[8192];		/* the signs of the bytes: the half is corrected */
};

/* What a half has: t of the largest size, b of the least, as one of 15 */
constexpr int e8_count(int t, int b)
{
	return t * (11 - t) / 2 + b;
}

/* Coordinates first .. first + 3 of digits z */
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
	/* Those of the first half go before, but only of the same kind. */
	const int high = first[0] + first[1] ? first[0] == 0 : other[0] == 4 && other[1] < 4;
	const int turned = b ? pb : pa;

	return 4 + odd + b * E8_IS_B + (turned ? high ? 0x8000 : 0x80 : 0);
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

/* a if x has that bit, else b: one instruction finds out, and does not shift the bit first */
HZ_DEVICE uint32_t choose_by_bit(uint32_t x, uint32_t bit, uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("{\n\t.reg .pred p;\n\t.reg .b32 t;\n\tand.b32 t, %1, %2;\n\t"
	    "setp.ne.u32 p, t, 0;\n\tselp.b32 %0, %3, %4, p;\n\t}"
	    : "=r"(r) : "r"(x), "r"(bit), "r"(a), "r"(b));
	return r;
}

/*
 * Nibbles c + 8 of the leader of a code, which stands in both halves of `code`. TURNED: bytes, of
 * two coordinates, in the opposite order.
 */
template <bool TURNED>
HZ_DEVICE uint32_t e8_lookup(const e8_tables &tables, uint32_t code)
{
	const uint32_t low = *(const uint32_t *)((const uint8_t *)tables.low +
						 (code >> 12 & 0x3ffc));
	const uint32_t high = *(const uint32_t *)((const uint8_t *)tables.high +
						  (code >> 6 & 0x3fc));
	const uint32_t choice =
		*(const uint16_t *)((const uint8_t *)tables.choices + ((low ^ high) & E8_INDEX));
	const uint32_t g = permute(low, high, TURNED ? 0x2367 : 0x7632);
	const uint32_t marks = choose_by_bit(choice, E8_IS_B, g << 3, g) & E8_MARK_A &
			       permute(choice, 0, TURNED ? 0x8899 : 0x9988);
	const uint32_t value = (g & E8_VALUE) ^ choose_by_bit(choice, E8_IS_B, 0, 0x44444444);

	return (value + (choice & 7) * E8_MARK_B) ^ marks;
}

#endif
