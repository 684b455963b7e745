/*
 * e8_bitplane.cuh - codes of E8 with q = 4 and two levels as planes of bits, decoded by logic
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Twice a coordinate of a leader is b + 2 l + 4 v - 8 s, b being the same for all eight. Modulo 8
 * it is b + 2 l + 4 h of any point of its coset, but that h of all eight may be turned; so h of the
 * last one is made 0, and l of the last one makes the sum of l even. With the parity of the sum of
 * quotients these are 16 bits. See cpu/lattice/e8.inc, which has bits of a leader in a byte.
 */
#ifndef HZI_VLUT_OCTETS_CUH
#define HZI_VLUT_OCTETS_CUH

#include "gpu/device/base.cuh"
#include "gpu/vlut/e8_bitplane.h"

/* The words of 32 leaders, a bit of each: b, seven l, the parity, seven h */
enum { OCTETS_B = 0, OCTETS_L = 1, OCTETS_ODD = 8, OCTETS_H = 9 };

HZ_DEVICE uint32_t octets_most(uint32_t a, uint32_t b, uint32_t c)
{
	return (a & b) | (c & (a ^ b));
}

HZ_DEVICE uint32_t octets_choose(uint32_t mask, uint32_t a, uint32_t b)
{
	return (a & mask) | (b & ~mask);
}

/*
 * l, v and s of 32 leaders; b is w[OCTETS_B]. Half of the margin between the two nearest points is
 * 4 less the large ones and half the middle ones, less and more what corrections cost; half-integer
 * points are nearer where it is negative, or 0 and a tie goes that way: 15 bits of weight 1, of
 * which at least 6 have to be 1. With 2 more that is bit 3 of the sum.
 */
HZ_DEVICE void octets_leaders(const uint32_t (&w)[16], uint32_t (&l)[8], uint32_t (&v)[8],
			      uint32_t (&s)[8])
{
	const uint32_t b = w[OCTETS_B], odd = w[OCTETS_ODD];
	uint32_t h[8], n[15], any_large = 0, any_middle = 0, no_small = ~0u, odd_half = odd;
	uint32_t sum, carry[7], fours[4], half;

#pragma unroll
	for (int i = 0; i < 7; i++) {
		l[i] = w[OCTETS_L + i];
		h[i] = w[OCTETS_H + i];
		odd_half ^= h[i];
	}
	h[7] = 0;
	/* The sum of l is even; half of it are the carries of all but the last, and the last. */
	sum = l[0];
#pragma unroll
	for (int i = 0; i < 3; i++) {
		n[8 + i] = octets_most(sum, l[2 * i + 1], l[2 * i + 2]) & ~b;
		sum ^= l[2 * i + 1] ^ l[2 * i + 2];
	}
	l[7] = sum;
	n[11] = sum & ~b;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		n[i] = (h[i] & ~l[i]) | (l[i] & ~h[i] & b);
		any_large |= n[i];
		any_middle |= l[i];
		no_small &= (h[i] ^ l[i]) | (l[i] & ~b);
	}
	any_middle &= ~b;

	const uint32_t up_all = ~(any_large | any_middle), up_middle = ~any_large & ~b;
	const uint32_t down_middle = no_small & ~b, down_all = no_small & ~any_middle;
	const uint32_t up0 = n[0] | (l[0] & up_middle) | up_all;
	const uint32_t some0 = (h[0] ^ l[0]) | (l[0] & ~b);
	const uint32_t down0 = ~some0 | (l[0] & down_middle) | down_all;

	n[12] = odd & (b | ~any_large);
	n[13] = ~(odd_half & (b | no_small));
	n[14] = ((odd & up0) | (odd_half & down0)) ^ h[0];
	sum = n[0];
#pragma unroll
	for (int i = 0; i < 7; i++) {
		carry[i] = octets_most(sum, n[2 * i + 1], n[2 * i + 2]);
		sum ^= n[2 * i + 1] ^ n[2 * i + 2];
	}
	sum = carry[0];
#pragma unroll
	for (int i = 0; i < 3; i++) {
		fours[i] = octets_most(sum, carry[2 * i + 1], carry[2 * i + 2]);
		sum ^= carry[2 * i + 1] ^ carry[2 * i + 2];
	}
	fours[3] = sum;
	/* The sum is below 16: at least two of four */
	half = octets_most(fours[0], fours[1], fours[2]) |
	       ((fours[0] ^ fours[1] ^ fours[2]) & fours[3]);

	/* Where a correction may be, by h and l, in the point that it is: the first such place */
	const uint32_t middle = octets_choose(half, down_middle, up_middle);
	const uint32_t at01 = middle | (b & ~half), at11 = middle | (b & half);
	uint32_t done = ~octets_choose(half, odd_half, odd);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t at = octets_choose(h[i], octets_choose(l[i], at11, ~half),
					    octets_choose(l[i], at01, half));

		if (i == 0)
			at |= octets_choose(half, down_all, up_all);
		v[i] = h[i] ^ half;
		s[i] = v[i] ^ (at & ~done);
		done |= at;
	}
}

/* Where word i of a lane's 16 of rows 8 r + g lies in a level of a unit, in words */
HZ_DEVICE int octets_word(int lane, int r, int i)
{
	return (4 * r + i / 4) * 128 + lane * 4 + i % 4;
}

/*
 * The leader of level m of a lattice block of a packed matrix with that many units a row: where it
 * lies says gpu/vlut/e8_bitplane.h.
 */
HZ_DEVICE void octets_leader(const void *packed, int64_t units, int64_t row, int64_t block, int m,
			     int32_t *leader)
{
	const uint32_t *from = (const uint32_t *)packed +
			       ((row / 16 * units + block / 128) * 2 + m) *
				       (HZI_OCTETS_UNIT_BYTES / 4);
	const int lane = (int)(row % 8 * 4 + block % 4), bit = (int)(block % 128 / 4);
	uint32_t w[16], l[8], v[8], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = from[octets_word(lane, (int)(row % 16 / 8), i)];
	octets_leaders(w, l, v, s);
	for (int i = 0; i < 8; i++)
		leader[i] = (int32_t)((w[OCTETS_B] >> bit & 1) + (l[i] >> bit & 1) * 2 +
				      (v[i] >> bit & 1) * 4) - (int32_t)(s[i] >> bit & 1) * 8;
}

#endif
