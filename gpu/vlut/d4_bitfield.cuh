/*
 * d4_bitfield.cuh - codes of D4 with q = 4 and two levels as fields of two bits, decoded by logic
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A coordinate of a leader is a number of three bits, s h l, -4 s + 2 h + l: the remainder r modulo
 * 4 in -2 .. 1 has s = h, and where the nearest point of 4 D4 is not that of 4 Z^4, s of one
 * coordinate is turned, the first of those with the largest |r|. Whether it is, and h and l of four
 * coordinates, whose l have an even sum, are the 256 leaders.
 *
 * A word has 16 such fields of one coordinate: l, or of the last coordinate whether a sign is
 * turned, at the even bits and h above it. Nibble n is a lattice block's, its level 0 below.
 */
#ifndef HZI_VLUT_FIELDS_CUH
#define HZI_VLUT_FIELDS_CUH

#include "gpu/device/dtype.cuh"

#define FIELDS_ODD 0xaaaaaaaa

/*
 * w: the words of the four coordinates, become h l throughout. s: the signs at the odd bits, the
 * others are anything. The point is the nibble of w less twice that of s. Words are moved up, not
 * down, as multiplications do that beside the logic.
 */
HZ_DEVICE void fields_signs(uint32_t (&w)[4], uint32_t (&s)[4])
{
	const uint32_t h0 = w[0], h1 = w[1], h2 = w[2], h3 = w[3], turned = w[3] * 2;
	const uint32_t low3 = w[0] ^ w[1] ^ w[2];
	const uint32_t l0 = w[0] * 2, l1 = w[1] * 2, l2 = w[2] * 2, l3 = low3 * 2;
	/* whether a coordinate up to the i-th is -2 */
	const uint32_t two0 = h0 & ~l0, two1 = two0 | (h1 & ~l1), two2 = two1 | (h2 & ~l2),
		       two3 = two2 | (h3 & ~l3);
	/* which is the first of the largest: -2, else odd, else all are 0 */
	const uint32_t later = ~l0 & (l1 | l2), at0 = two0 | ~(two3 | later),
		       second = ~two3 & ~l0 & l1, at1 = second | (two1 & ~two0),
		       at3 = two3 & ~two2, at2 = ~(at0 | at1 | at3);

	s[0] = h0 ^ (turned & at0);
	s[1] = h1 ^ (turned & at1);
	s[2] = h2 ^ (turned & at2);
	s[3] = h3 ^ (turned & at3);
	w[3] = (h3 & FIELDS_ODD) | (low3 & ~FIELDS_ODD);
}

/*
 * A word and its signs as four registers of f16, rows of an eight 0 1 0 1, j and j + 2 of a row
 * together: points times 2^-24, of the second eight 16 times that. The bits of f16 below 2^-14 are
 * integers in units of 2^-24.
 */
HZ_DEVICE void fields_f16(uint32_t *to, uint32_t w, uint32_t s)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t at = (i % 2 ? 0x00f000f0 : 0x000f000f), sign = at & FIELDS_ODD;

		to[i] = fma_f16x2((i < 2 ? s : s >> 8) & sign, 0xc000c000,
				  (i < 2 ? w : w >> 8) & at);
	}
}

/*
 * The same with fewer instructions: rows of the first eight are those, and 16 times those of the
 * second eight besides, as words have them; the second eight's sums are to be subtracted.
 */
HZ_DEVICE void fields_f16_both(uint32_t *to, uint32_t w, uint32_t s)
{
#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		const uint32_t v = i ? __byte_perm(w, 0, 0x4341) : w & 0x00ff00ff,
			       z = i ? __byte_perm(s, 0, 0x4341) : s;

		to[i] = fma_f16x2(z & 0x00aa00aa, 0xc000c000, v);
		to[i + 1] = fma_f16x2(z & 0x00a000a0, 0xc000c000, v & 0x00f000f0);
	}
}

/*
 * The leader of level m of a lattice block of a packed matrix with that many chunks a row: where it
 * lies says gpu/vlut/d4_bitfield.h.
 */
HZ_DEVICE void fields_leader(const void *packed, int64_t chunks, int64_t row, int64_t block, int m,
			     int32_t *leader)
{
	const int64_t chunk = row / 16 * chunks + block / 16;
	const int lane = (int)(row % 8 * 4 + block % 16 / 4);
	const int field = (int)(block % 4 * 8 + row % 16 / 8 * 4 + 2 * m);
	const uint4 v = ((const uint4 *)packed)[chunk * 32 + lane];
	uint32_t w[4] = {v.x, v.y, v.z, v.w}, s[4];

	fields_signs(w, s);
	for (int i = 0; i < 4; i++)
		leader[i] = (int32_t)(w[i] >> field & 3) - (int32_t)(s[i] >> field & 2) * 2;
}

#endif
