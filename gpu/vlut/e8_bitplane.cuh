/*
 * e8_bitplane.cuh - E8 with q = 4 and two levels as bit-planes, decoded by bitwise logic
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Twice a coordinate of a leader is b + 2 l + 4 v - 8 s, with the same b for all eight. Modulo 8 it
 * equals b + 2 l + 4 h of any point of its coset, except that h of all eight may be inverted: so h
 * of the last coordinate is defined as 0. l of the last coordinate makes the sum of the l even.
 * With the parity of the sum of quotients these are 16 bits: b, seven l, the parity, seven h. See
 * cpu/lattice/e8.inc, which has the bits of a leader in one byte.
 */
#ifndef HZI_GPU_VLUT_E8_BITPLANE_CUH
#define HZI_GPU_VLUT_E8_BITPLANE_CUH

#include "gpu/device/base.cuh"
#include "gpu/vlut/e8_bitplane.h"

/* Indices of bit-planes, one word of 32 leaders each: b, seven l, the parity, seven h */
enum { E8_B = 0, E8_L = 1, E8_ODD = 8, E8_H = 9 };

HZ_DEVICE uint32_t majority(uint32_t a, uint32_t b, uint32_t c)
{
	return (a & b) | (c & (a ^ b));
}

HZ_DEVICE uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
	return (a & mask) | (b & ~mask);
}

/*
 * Computes l, v and s of 32 leaders; b is w[E8_B]. The leader is the nearer of the nearest integer
 * point and the nearest half-integer point. Half of the difference of their distances is 4 minus
 * the number of large coordinates, minus half that of middle ones, plus and minus the costs of the
 * parity corrections. The half-integer point is nearer where it is negative, or 0 and the tie goes
 * that way: where at least 6 of 15 bits of weight 1 are set. Bit 3 of their sum plus 2 says so.
 */
HZ_DEVICE void e8_leaders(const uint32_t (&w)[16], uint32_t (&l)[8], uint32_t (&v)[8],
			  uint32_t (&s)[8])
{
	const uint32_t b = w[E8_B], odd = w[E8_ODD];
	uint32_t h[8], n[15], any_large = 0, any_middle = 0, no_small = ~0u, odd_half = odd;
	uint32_t sum, carry[7], fours[4], half;

#pragma unroll
	for (int i = 0; i < 7; i++) {
		l[i] = w[E8_L + i];
		h[i] = w[E8_H + i];
		odd_half ^= h[i];
	}
	h[7] = 0;
	/*
	 * The sum of the l is even. Half of it is the number of carries of all but the last l, plus
	 * the last l.
	 */
	sum = l[0];
#pragma unroll
	for (int i = 0; i < 3; i++) {
		n[8 + i] = majority(sum, l[2 * i + 1], l[2 * i + 2]) & ~b;
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
		carry[i] = majority(sum, n[2 * i + 1], n[2 * i + 2]);
		sum ^= n[2 * i + 1] ^ n[2 * i + 2];
	}
	sum = carry[0];
#pragma unroll
	for (int i = 0; i < 3; i++) {
		fours[i] = majority(sum, carry[2 * i + 1], carry[2 * i + 2]);
		sum ^= carry[2 * i + 1] ^ carry[2 * i + 2];
	}
	fours[3] = sum;
	/*
	 * The sum is below 16. With 2 added, fours[3] weighs 4, too: bit 3 is set if at least two
	 * of these four are.
	 */
	half = majority(fours[0], fours[1], fours[2]) |
	       ((fours[0] ^ fours[1] ^ fours[2]) & fours[3]);

	/*
	 * The parity correction of the chosen point goes to the first coordinate that allows it, by
	 * h and l.
	 */
	const uint32_t middle = select_bits(half, down_middle, up_middle);
	const uint32_t at01 = middle | (b & ~half), at11 = middle | (b & half);
	uint32_t done = ~select_bits(half, odd_half, odd);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t at = select_bits(h[i], select_bits(l[i], at11, ~half),
					  select_bits(l[i], at01, half));

		if (i == 0)
			at |= select_bits(half, down_all, up_all);
		v[i] = h[i] ^ half;
		s[i] = v[i] ^ (at & ~done);
		done |= at;
	}
}

/* Index, within a level of a unit, of word i of a lane's 16 words of row 8 r + g */
HZ_DEVICE int e8_word(int lane, int r, int i)
{
	return (4 * r + i / 4) * 128 + lane * 4 + i % 4;
}

/*
 * The leader of level m of a lattice block of a packed matrix with `units` units per row: see
 * gpu/vlut/e8_bitplane.h for its layout.
 */
HZ_DEVICE void e8_leader(const void *packed, int64_t units, int64_t row, int64_t block, int m,
			 int32_t *leader)
{
	const uint32_t *src = (const uint32_t *)packed +
			      ((row / 16 * units + block / 128) * 2 + m) *
				       (HZI_VLUT_E8_UNIT_BYTES / 4);
	const int lane = (int)(row % 8 * 4 + block % 4), bit = (int)(block % 128 / 4);
	uint32_t w[16], l[8], v[8], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = src[e8_word(lane, (int)(row % 16 / 8), i)];
	e8_leaders(w, l, v, s);
	for (int i = 0; i < 8; i++)
		leader[i] = (int32_t)((w[E8_B] >> bit & 1) + (l[i] >> bit & 1) * 2 +
				      (v[i] >> bit & 1) * 4) - (int32_t)(s[i] >> bit & 1) * 8;
}

#endif
