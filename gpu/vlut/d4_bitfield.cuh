/*
 * d4_bitfield.cuh - D4 with q = 4 and two levels as 2-bit fields, decoded by bitwise logic
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A coordinate of a leader is a 3-bit number s h l with the value -4 s + 2 h + l. The remainder r
 * modulo 4 in -2 .. 1 has s = h. Where the nearest point of 4 D4 differs from that of 4 Z^4, s of
 * one coordinate is flipped: of the first one with the largest |r|. One bit says whether a sign is
 * flipped. With it and h and l of four coordinates, whose l have an even sum, there are 2^8 = 256
 * leaders.
 *
 * A word has 16 fields of one coordinate, with h at the odd bit of a field and l at the even bit.
 * In the word of the last coordinate the even bit is the flip bit instead: its l follows from the
 * others. A nibble is one lattice block, with level 0 in its lower half.
 */
#ifndef HZI_GPU_VLUT_D4_BITFIELD_CUH
#define HZI_GPU_VLUT_D4_BITFIELD_CUH

#include "gpu/device/dtype.cuh"

#define D4_ODD_BITS 0xaaaaaaaa

/*
 * In: w, the words of the four coordinates. Out: w with h and l everywhere; s with the sign bits at
 * odd bits, even bits undefined. A coordinate of a block, level 0 plus 4 times level 1, is the
 * nibble of w minus twice the nibble of s. Words are shifted left, not right: the compiler makes
 * that a multiplication, which runs on another pipe than logic.
 */
HZ_DEVICE void d4_signs(uint32_t (&w)[4], uint32_t (&s)[4])
{
	const uint32_t h0 = w[0], h1 = w[1], h2 = w[2], h3 = w[3], flip = w[3] * 2;
	const uint32_t low3 = w[0] ^ w[1] ^ w[2];
	const uint32_t l0 = w[0] * 2, l1 = w[1] * 2, l2 = w[2] * 2, l3 = low3 * 2;
	/* Bit set if one of the coordinates 0 to i is -2 */
	const uint32_t two0 = h0 & ~l0, two1 = two0 | (h1 & ~l1), two2 = two1 | (h2 & ~l2),
		       two3 = two2 | (h3 & ~l3);
	/*
	 * Bit set if i is the first with the largest |r|: the first -2, else the first odd one,
	 * else coordinate 0
	 */
	const uint32_t later = ~l0 & (l1 | l2), at0 = two0 | ~(two3 | later),
		       second = ~two3 & ~l0 & l1, at1 = second | (two1 & ~two0),
		       at3 = two3 & ~two2, at2 = ~(at0 | at1 | at3);

	s[0] = h0 ^ (flip & at0);
	s[1] = h1 ^ (flip & at1);
	s[2] = h2 ^ (flip & at2);
	s[3] = h3 ^ (flip & at3);
	w[3] = (h3 & D4_ODD_BITS) | (low3 & ~D4_ODD_BITS);
}

/*
 * Converts a word and its signs to four registers of f16, the fragments of rows g (registers 0, 2)
 * and g + 8 (1, 3); a register has blocks j and j + 2 of a row. The results are points times 2^-24,
 * and 16 times that for rows g + 8: f16 bits below 2^-14 are integers in units of 2^-24.
 */
HZ_DEVICE void d4_points_f16(uint32_t *dst, uint32_t w, uint32_t s)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t at = (i % 2 ? 0x00f000f0 : 0x000f000f), sign = at & D4_ODD_BITS;

		dst[i] = fma_f16x2((i < 2 ? s : s >> 8) & sign, 0xc000c000,
				   (i < 2 ? w : w >> 8) & at);
	}
}

/*
 * The same with fewer instructions. Registers of rows g hold row g plus 16 times row g + 8, both
 * nibbles of the word; the caller subtracts the accumulator of row g + 8 from that of row g.
 */
HZ_DEVICE void d4_points_f16_both(uint32_t *dst, uint32_t w, uint32_t s)
{
#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		const uint32_t v = i ? __byte_perm(w, 0, 0x4341) : w & 0x00ff00ff,
			       z = i ? __byte_perm(s, 0, 0x4341) : s;

		dst[i] = fma_f16x2(z & 0x00aa00aa, 0xc000c000, v);
		dst[i + 1] = fma_f16x2(z & 0x00a000a0, 0xc000c000, v & 0x00f000f0);
	}
}

/*
 * The leader of level m of a lattice block of a packed matrix with `chunks` chunks per row: see
 * gpu/vlut/d4_bitfield.h for its layout.
 */
HZ_DEVICE void d4_leader(const void *packed, int64_t chunks, int64_t row, int64_t block, int m,
			 int32_t *leader)
{
	const int64_t chunk = row / 16 * chunks + block / 16;
	const int lane = (int)(row % 8 * 4 + block % 16 / 4);
	const int field = (int)(block % 4 * 8 + row % 16 / 8 * 4 + 2 * m);
	const uint4 v = ((const uint4 *)packed)[chunk * 32 + lane];
	uint32_t w[4] = {v.x, v.y, v.z, v.w}, s[4];

	d4_signs(w, s);
	for (int i = 0; i < 4; i++)
		leader[i] = (int32_t)(w[i] >> field & 3) - (int32_t)(s[i] >> field & 2) * 2;
}

#endif
