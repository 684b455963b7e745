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

#include "gpu/lattice_e8.cuh"
#include "lib/lattice_rule.h"

/* a where the bits of mask are 1, else b */
HZ_DEVICE uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b)
{
	return (a & mask) | (b & ~mask);
}

/* ---- E8 points ---------------------------------------------------------------------------- */

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
struct e8_tables_of {
	using type = e8_choices;
};

template <>
struct e8_tables_of<4> {
	using type = e8_tables;
};

template <int Q>
struct e8_point {
	static constexpr int dim = 8, words = 2, q = Q;
	using tables = typename e8_tables_of<Q>::type;
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

	/* w, of index `code`, becomes the point of the next level, whose bias is next_bias(). */
	static __device__ __forceinline__ void parent(uint32_t *w, uint32_t code,
						      const tables &tables)
	{
		constexpr uint32_t low = Q == 4 ? 0x0f0f0f0f : 0x07070707;
		constexpr uint32_t kept = Q == 4 ? 0x3f3f3f3f : 0x7f7f7f7f;
		constexpr int shift = Q == 4 ? 0 : 1;
		uint32_t c;

		if constexpr (Q == 4)
			c = e8_lookup(tables, code);
		else
			c = e8_leader(choose_bits(0x0f0f0f0f, w[0] << 1, w[1] << 5) & 0xeeeeeeee,
				      tables.b);
		w[0] = (w[0] - (c >> shift & low)) >> Q / 2 & kept;
		w[1] = (w[1] - (c >> (4 + shift) & low)) >> Q / 2 & kept;
	}
};

/* ---- D4 points ---------------------------------------------------------------------------- */

template <int Q>
struct d4_point {
	static constexpr int dim = 4, words = 1, q = Q;
	struct tables {};
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

	static __device__ __forceinline__ void parent(uint32_t *w, uint32_t, const tables &)
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
