/*
 * lattice_bytes.cuh - points of D4 and E8 as bytes: levels of q = 2 and 4, and level 0
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The rules of lattice_rule.h, for all coordinates of a block at a time. Points are integers as
 * there. A D4 point is one word of four bytes, each the coordinate plus a bias that is a multiple
 * of 8; an E8 point is two, w[0] with coordinates 0 2 4 6 and w[1] with 1 3 5 7, so that the low
 * halves of the bytes of w[0] and w[1] make eight nibbles in order.
 */
#ifndef HZI_LATTICE_BYTES_CUH
#define HZI_LATTICE_BYTES_CUH

#include "gpu/common.cuh"
#include "lib/lattice_rule.h"

HZ_DEVICE uint32_t lowest_bit(uint32_t x)
{
	return x & (0 - x);
}

/* a where the bits of mask are 1, else b */
HZ_DEVICE uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b)
{
	return (a & mask) | (b & ~mask);
}

/* ---- E8: coset leaders of q = 4 ---------------------------------------------------------------
 *
 * g / 8 of doubled coordinates is rounded to the integers a, or to b = halves. In eighths, the
 * errors of a are r = g mod 8 in -4 .. 3, those of b r - 4 or r + 4. Only the sizes of r matter to
 * which is nearer, and all are even or all odd: 4 2 0 or 3 1. "top" are those of the largest size,
 * 4 or 3, "bottom" of the least, 0 or 1; of how many there are follows everything but ties.
 */

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

static __device__ const e8_choices e8_choices_q4 = make_e8_choices();

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

/* What e8_leader() takes of a sum of digits z_j << 2j: G z mod 16 */
HZ_DEVICE uint32_t e8_combine(uint32_t index)
{
	uint32_t z = index, shifted, v, e;

	z = (z | z << 8) & 0x00ff00ff;
	z = (z | z << 4) & 0x0f0f0f0f;
	z = (z | z << 2) & 0x33333333;
	shifted = (z >> 4 & 0x00ffffff) | (z & 0xf0000000);
	/* z_j - z_(j+1) + 4, 1 .. 10; what is cut off of it is even but for bit 2 */
	v = z + (0x44444444 | (z & 3)) - shifted;
	e = 2 * (v & 0x33333333) + (index >> 14) * 0x11111111;
	return e ^ (v << 1 & 0x88888888);
}

/*
 * The same as a sum of the entries of two tables for the bytes of the index: nibbles mod 8, whose
 * sums cannot pass 15, and the parity of what that leaves out as the highest bit.
 */
HZ_DEVICE uint32_t e8_combine_part(uint32_t index)
{
	const uint32_t e = e8_combine(index);

	return (e & 0x77777777) | (uint32_t)__popc(e & 0x88888888) << 31;
}

/* ---- E8 points ---------------------------------------------------------------------------- */

HZ_DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
	uint32_t r;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
	return r;
}

/* The lowest bytes of four floats' bits */
HZ_DEVICE uint32_t low_bytes(float a, float b, float c, float d)
{
	return permute(permute(__float_as_uint(a), __float_as_uint(b), 0x0040),
		       permute(__float_as_uint(c), __float_as_uint(d), 0x0040), 0x5410);
}

/* The signs of four numbers, as 0 or 255 */
HZ_DEVICE uint32_t sign_bytes(float a, float b, float c, float d)
{
	return permute(permute(__float_as_uint(a), __float_as_uint(b), 0x00fb),
		       permute(__float_as_uint(c), __float_as_uint(d), 0x00fb), 0x5410);
}

constexpr float rounder = 12582912.0f;	/* 1.5 2^23: the sum with y has rint(y) in its low bits */
constexpr uint32_t ones = 0x01010101;

template <int Q>
struct e8_point {
	static constexpr int dim = 8, words = 2, q = Q;
	/*
	 * Of coordinates at level 0. A level's leader is subtracted as c + 8 / (4 / Q), then all is
	 * divided by Q: biases are multiples of 2 Q at each level but the last result.
	 */
	static constexpr int bias = Q == 4 ? 136 : 124, most_levels = Q == 4 ? 2 : 4;
	static constexpr int reach = 50;	/* of |y|, so that bytes hold the coordinates */

	static __device__ __forceinline__ constexpr uint32_t next_bias(uint32_t b)
	{
		return Q == 4 ? (b - 8) / 4 : (b - 4) / 2;
	}

	/* hzi_lattice_level0_e8(); no y is -0. */
	static __device__ __forceinline__ void nearest(const float *y, uint32_t *w)
	{
		constexpr float magic = rounder + bias / 2;
		float t[8], r[8], most, least, total, da, db;
		uint32_t f[2], s[2], k = 7;

#pragma unroll
		for (int i = 0; i < 8; i++) {
			t[i] = __fadd_rn(y[i], magic);
			r[i] = __fsub_rn(y[i], __fsub_rn(t[i], magic));
		}
		f[0] = low_bytes(t[0], t[2], t[4], t[6]);
		f[1] = low_bytes(t[1], t[3], t[5], t[7]);
		s[0] = sign_bytes(r[0], r[2], r[4], r[6]);
		s[1] = sign_bytes(r[1], r[3], r[5], r[7]);
		most = least = fabsf(r[0]);
#pragma unroll
		for (int i = 1; i < 8; i++) {
			most = fmaxf(most, fabsf(r[i]));
			least = fminf(least, fabsf(r[i]));
		}
		/* b is below a where y - f < 0, or is 0 and f odd, as of rint(y - 1/2). */
		if (least == 0) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				if (r[i] == 0 && __float_as_uint(t[i]) & 1)
					s[i & 1] |= 255u << i / 2 * 8;
			}
		}
		total = __fadd_rn(__fadd_rn(__fadd_rn(fabsf(r[0]), fabsf(r[1])),
					    __fadd_rn(fabsf(r[2]), fabsf(r[3]))),
				  __fadd_rn(__fadd_rn(fabsf(r[4]), fabsf(r[5])),
					    __fadd_rn(fabsf(r[6]), fabsf(r[7]))));
		const bool pa = __popc((f[0] ^ f[1]) & ones) & 1;
		const bool pb = __popc((f[0] ^ f[1] ^ s[0] ^ s[1]) & ones) & 1;

		da = pa ? __fsub_rn(1.0f, __fadd_rn(most, most)) : 0.0f;
		db = __fadd_rn(__fsub_rn(2.0f, total), pb ? __fadd_rn(least, least) : 0.0f);
		bool b = db < da;
		if (db == da) {
			/* The first coordinates, less f_0 */
			const int below0 = (int)(s[0] & 1);
			const int up = fabsf(r[0]) != most || !pa ? 0 : r[0] >= 0 ? 1 : -1;
			const int half = fabsf(r[0]) != least || !pb ? 0 :
					 below0 || r[0] == 0.5f ? 1 : -1;

			b = half - below0 < up;
		}
		const float which = b ? least : most;

#pragma unroll
		for (int i = 6; i >= 0; i--)
			k = fabsf(r[i]) == which ? i : k;
		const uint32_t halves = b ? ones : 0, shift = k >> 1 << 3;
		const uint32_t sign = (k & 1 ? s[1] : s[0]) >> shift & 1;
		uint32_t turn = (b ? pb : pa) ? 2u << shift : 0;

		/* Up is where y - f >= 0, or y - h >= 0 */
		const bool up = b ? sign || which == 0.5f : !sign || which == 0;

		turn = up ? turn : 0 - turn;
		w[0] = 2 * (f[0] - (s[0] & halves)) + halves + (k & 1 ? 0 : turn);
		w[1] = 2 * (f[1] - (s[1] & halves)) + halves + (k & 1 ? turn : 0);
	}

	/* The index of the digits */
	static __device__ __forceinline__ uint32_t index(const uint32_t *w)
	{
		const uint32_t h = w[1] >> 24, turned = 0x80808080 - h * ones;
		/* (p_j - p_7) / 2 mod 8, of which z_j are the sums from j to 6 */
		const uint32_t even = (w[0] + turned) >> 1 & 0x07070707;
		const uint32_t odd = (w[1] + turned) >> 1 & 0x07070707;
		const uint32_t pairs = odd + (even >> 8);
		const uint32_t z1 = pairs + (pairs >> 8) + (pairs >> 16) + (w[1] & 0xff000000);
		const uint32_t sums = even + z1;	/* the highest byte is too large by p_7 */
		uint32_t z0 = choose_bits(0xff, sums >> 1, sums);

		z0 -= w[1] & 0xff000000;
		if (Q == 4) {
			const uint32_t n = (z0 & 0x03030303) | (z1 & 0x03030303) << 2;

			return permute(n | n >> 4, 0, 0x4420);
		}
		return ((z0 & ones) + 2 * (z1 & ones)) * 0x01041040 >> 24;
	}

	/* w becomes the point of the next level, whose bias is next_bias(). */
	static __device__ __forceinline__ void parent(uint32_t *w, const uint8_t *choices)
	{
		constexpr uint32_t low = Q == 4 ? 0x0f0f0f0f : 0x07070707;
		constexpr uint32_t kept = Q == 4 ? 0x3f3f3f3f : 0x7f7f7f7f;
		constexpr int shift = Q == 4 ? 0 : 1;
		const uint32_t g = choose_bits(0x0f0f0f0f, w[0] << shift, w[1] << (4 + shift));
		const uint32_t c = e8_leader(Q == 4 ? g : g & 0xeeeeeeee, choices);

		w[0] = (w[0] - (c >> shift & low)) >> Q / 2 & kept;
		w[1] = (w[1] - (c >> (4 + shift) & low)) >> Q / 2 & kept;
	}
};

/* ---- D4 points ---------------------------------------------------------------------------- */

template <int Q>
struct d4_point {
	static constexpr int dim = 4, words = 1, q = Q;
	static constexpr int bias = Q == 4 ? 128 : 64, most_levels = Q == 4 ? 3 : 4;
	static constexpr int reach = Q == 4 ? 100 : 50;

	static __device__ __forceinline__ constexpr uint32_t next_bias(uint32_t b)
	{
		return b / Q;
	}

	static __device__ __forceinline__ void nearest(const float *y, uint32_t *w)
	{
		constexpr float magic = rounder + bias;
		float t[4], r[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			t[i] = __fadd_rn(y[i], magic);
			r[i] = __fsub_rn(y[i], __fsub_rn(t[i], magic));
		}
		const float most = fmaxf(fmaxf(fabsf(r[0]), fabsf(r[1])),
					 fmaxf(fabsf(r[2]), fabsf(r[3])));
		float worst = r[3];
		uint32_t turn = 1u << 24;

#pragma unroll
		for (int i = 2; i >= 0; i--) {
			worst = fabsf(r[i]) == most ? r[i] : worst;
			turn = fabsf(r[i]) == most ? 1u << 8 * i : turn;
		}
		w[0] = low_bytes(t[0], t[1], t[2], t[3]);
		turn = worst >= 0 ? turn : 0 - turn;
		w[0] += __popc(w[0] & ones) & 1 ? turn : 0;
	}

	static __device__ __forceinline__ uint32_t index(const uint32_t *w)
	{
		/* Sums of the first coordinates, mod 8 of each */
		const uint32_t sums = (w[0] & 0x07070707) * ones, all = sums >> 24;
		/* Bytes z1 z2 z3 z0 = p0 - all/2, p0 + p1 - all, p0 + p1 + p2 - all, -all/2 */
		const uint32_t z = (sums & 0x00ffffff) + 0x40404040 - all * 0x00010100 -
				   (all >> 1) * 0x01000001;

		if (Q == 4)
			return (z & 0x03030303) * 0x04104001 >> 24;
		return (z & ones) * 0x02040801 >> 24;
	}

	static __device__ __forceinline__ void parent(uint32_t *w, const uint8_t *)
	{
		/* By q = 4, of doubled coordinates if q = 2 */
		const uint32_t t = (Q == 4 ? w[0] : 2 * w[0]) + 0x02020202;
		const uint32_t halves = ~(t | t >> 1) & ones;
		const uint32_t worst = halves ? halves : Q == 4 && t & ones ? t & ones : 1;
		const uint32_t turn = __popc(t & 0x04040404) & 1 ? lowest_bit(worst) : 0;

		w[0] = (t >> 2 & 0x3f3f3f3f) + 2 * (turn & t >> 1) - turn;
	}
};

#endif
