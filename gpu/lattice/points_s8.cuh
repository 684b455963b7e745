/*
 * points_s8.cuh - points of D4 and E8 as bytes: encoding levels with q = 2 and 4, and level 0
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The rules of lib/lattice/lattice_math.h, applied to all coordinates of a block at a time. Points
 * are integers as in that file. A D4 point is one word of four bytes, each a coordinate plus a bias
 * that is a multiple of 8. An E8 point is two words: w[0] with coordinates 6 4 2 0, w[1] with 7 5 3
 * 1, from the lowest byte on. Digits are sums of coordinates from one to the last, and a product
 * with 0x01010101 adds up bytes from the lowest.
 */
#ifndef HZI_GPU_LATTICE_POINTS_S8_CUH
#define HZI_GPU_LATTICE_POINTS_S8_CUH

#include <type_traits>

#include "gpu/lattice/e8_tables.cuh"
#include "lib/lattice/lattice_math.h"

/* a where the bits of mask are 1, else b */
HZ_DEVICE uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b)
{
	return (a & mask) | (b & ~mask);
}

/* ---- E8 points ---------------------------------------------------------------------------- */

/* The highest 1 bit of x; x is not 0. */
HZ_DEVICE uint32_t highest_bit(uint32_t x)
{
	uint32_t at;

	asm("bfind.u32 %0, %1;" : "=r"(at) : "r"(x));
	return 1u << at;
}

/* The lowest bytes of the bits of four floats */
HZ_DEVICE uint32_t low_bytes(float a, float b, float c, float d)
{
	return permute(permute(__float_as_uint(a), __float_as_uint(b), 0x0040),
		       permute(__float_as_uint(c), __float_as_uint(d), 0x0040), 0x5410);
}

/* The signs of four numbers, as bytes 0 or 255 */
HZ_DEVICE uint32_t sign_bytes(float a, float b, float c, float d)
{
	return permute(permute(__float_as_uint(a), __float_as_uint(b), 0x00fb),
		       permute(__float_as_uint(c), __float_as_uint(d), 0x00fb), 0x5410);
}

constexpr float rounder = 12582912.0f;	/* 1.5 2^23: y plus it has rint(y) in its low bits */
constexpr uint32_t ones = 0x01010101;

template <int Q>
struct e8_point {
	static constexpr int dim = 8, words = 2, q = Q;
	using tables = std::conditional_t<Q == 4, e8_tables, e8_choices>;
	/*
	 * The bias of coordinates at level 0. A leader is subtracted as c + 8 / (4 / Q), then the
	 * result is divided by Q. So the bias is a multiple of 2 Q at each level except the last
	 * result.
	 */
	static constexpr int bias = Q == 4 ? 136 : 124, most_levels = Q == 4 ? 2 : 4;
	static constexpr int reach = 50;	/* bound on |y| for bytes */

	static __device__ __forceinline__ constexpr uint32_t next_bias(uint32_t b)
	{
		return Q == 4 ? (b - 8) / 4 : (b - 4) / 2;
	}

	/*
	 * hzi_lattice_level0_e8(); no y may be -0. Comparisons, selections and logic issue at half
	 * the rate of floating point, so this uses floating point where it can.
	 */
	static __device__ __forceinline__ void nearest(const float *y, uint32_t *w)
	{
		constexpr float magic = rounder + bias / 2;
		float t[8], r[8], gap[8], most, least, total, da, db;
		uint32_t f[2], s[2], n[2];

#pragma unroll
		for (int i = 0; i < 8; i++) {
			t[i] = __fadd_rn(y[i], magic);
			r[i] = __fsub_rn(y[i], __fsub_rn(t[i], magic));
		}
		f[0] = low_bytes(t[6], t[4], t[2], t[0]);
		f[1] = low_bytes(t[7], t[5], t[3], t[1]);
		s[0] = sign_bytes(r[6], r[4], r[2], r[0]);
		s[1] = sign_bytes(r[7], r[5], r[3], r[1]);
		most = least = fabsf(r[0]);
#pragma unroll
		for (int i = 1; i < 8; i++) {
			most = fmaxf(most, fabsf(r[i]));
			least = fminf(least, fabsf(r[i]));
		}
		/*
		 * b_i < a_i where y - f < 0, or where y - f = 0 and f is odd, as rint(y - 1/2) has
		 * it.
		 */
		if (least == 0) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				if (r[i] == 0 && __float_as_uint(t[i]) & 1)
					s[i & 1] |= 255u << (24 - i / 2 * 8);
			}
		}
		total = __fadd_rn(__fadd_rn(__fadd_rn(fabsf(r[0]), fabsf(r[1])),
					    __fadd_rn(fabsf(r[2]), fabsf(r[3]))),
				  __fadd_rn(__fadd_rn(fabsf(r[4]), fabsf(r[5])),
					    __fadd_rn(fabsf(r[6]), fabsf(r[7]))));
		const uint32_t pa = __popc((f[0] ^ f[1]) & ones) & 1;
		const uint32_t pb = __popc((f[0] ^ f[1] ^ s[0] ^ s[1]) & ones) & 1;

		da = pa ? __fsub_rn(1.0f, __fadd_rn(most, most)) : 0.0f;
		db = __fadd_rn(__fsub_rn(2.0f, total), pb ? __fadd_rn(least, least) : 0.0f);
		bool b = db < da;
		if (db == da) {
			/* First coordinates relative to f_0 */
			const int below0 = (int)(s[0] >> 31);
			const int up = fabsf(r[0]) != most || !pa ? 0 : r[0] >= 0 ? 1 : -1;
			const int half = fabsf(r[0]) != least || !pb ? 0 :
					 below0 || r[0] == 0.5f ? 1 : -1;

			b = half - below0 < up;
		}
		/*
		 * Negative except where |r| selects the coordinate to correct: the first of these
		 * is the highest bit.
		 */
		const float which = b ? least : -most, sign = b ? -1.0f : 1.0f;

#pragma unroll
		for (int i = 0; i < 8; i++)
			gap[i] = __fmaf_rn(fabsf(r[i]), sign, which);
		n[0] = sign_bytes(gap[6], gap[4], gap[2], gap[0]);
		n[1] = sign_bytes(gap[7], gap[5], gap[3], gap[1]);

		const uint32_t first = highest_bit((~n[0] & 2 * ones) | (~n[1] & ones));
		const uint32_t even = first & 2 * ones, odd = first & ones;
		/*
		 * The correction is +1 where y - f >= 0, or y - h >= 0 for b; also where -most is
		 * 0, or least is a half.
		 */
		const bool below = (s[0] & even) | (s[1] & odd);
		const bool up = below == b || __fmaf_rn(sign, 0.25f, __fadd_rn(which, -0.25f)) == 0;
		const uint32_t halves = b ? ones : 0;
		const uint32_t correction = (b ? pb : pa) * (up ? 1 : ~0u);

		w[0] = 2 * f[0] + halves - 2 * (s[0] & halves) + even * correction;
		w[1] = 2 * f[1] + halves - 2 * (s[1] & halves) + odd * (2 * correction);
	}

	/* The index of the digits; with q = 4 in both halves of the word */
	static __device__ __forceinline__ uint32_t index(const uint32_t *w)
	{
		const uint32_t h = w[1] & 0xff, negated = 0x80808080 - h * ones;
		/* (p_j - p_7) / 2 mod 8; z_j are their sums from j to 6 */
		const uint32_t even = (w[0] + negated) >> 1 & 0x07070707;
		const uint32_t odd = (w[1] + negated) >> 1 & 0x07070707;
		const uint32_t pairs = odd + (even << 8);
		const uint32_t z1 = pairs * ones + h, sums = pairs * ones + even;
		const uint32_t z0 = (sums & 0x00030303) | (sums >> 1 & 0x03000000);

		if (Q == 4) {
			const uint32_t n = z0 | (4 * z1 & 0x0c0c0c0c);

			return permute(n * 0x1001, 0, 0x1313);
		}
		return ((z0 & ones) + 2 * (z1 & ones)) * 0x40100401 >> 24;
	}

	/*
	 * Subtracts from w, which has index `code`, its leader: leaves a multiple of q, with q
	 * times the bias of the point of the next level.
	 */
	static __device__ __forceinline__ void subtract(uint32_t *w, uint32_t code,
							const tables &tables)
	{
		constexpr uint32_t low = Q == 4 ? 0x0f0f0f0f : 0x07070707;
		constexpr int shift = Q == 4 ? 0 : 1;
		uint32_t c;

		if constexpr (Q == 4) {
			c = e8_lookup<true>(tables, code);
		} else {
			c = choose_bits(0x0f0f0f0f, w[0] << 1, w[1] << 5) & 0xeeeeeeee;
			c = permute(e8_leader(permute(c, 0, 0x0123), tables.b), 0, 0x0123);
		}
		w[0] -= c >> shift & low;
		w[1] -= c >> (4 + shift) & low;
	}

	/* The point of the next level, from the result of subtract(); its bias is next_bias(). */
	static __device__ __forceinline__ void divide(uint32_t *w)
	{
		constexpr uint32_t kept = Q == 4 ? 0x3f3f3f3f : 0x7f7f7f7f;

		w[0] = w[0] >> Q / 2 & kept;
		w[1] = w[1] >> Q / 2 & kept;
	}

	/* Whether the result of subtract() is not 0; b: bias of the next level */
	static __device__ __forceinline__ bool left(const uint32_t *w, uint32_t b)
	{
		return (w[0] ^ Q * b * ones) | (w[1] ^ Q * b * ones);
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
		uint32_t correction = 1u << 24;

#pragma unroll
		for (int i = 2; i >= 0; i--) {
			worst = fabsf(r[i]) == most ? r[i] : worst;
			correction = fabsf(r[i]) == most ? 1u << 8 * i : correction;
		}
		w[0] = low_bytes(t[0], t[1], t[2], t[3]);
		correction = worst >= 0 ? correction : 0 - correction;
		w[0] += __popc(w[0] & ones) & 1 ? correction : 0;
	}

	static __device__ __forceinline__ uint32_t index(const uint32_t *w)
	{
		/* Prefix sums of the coordinates, each mod 8 */
		const uint32_t sums = (w[0] & 0x07070707) * ones, all = sums >> 24;
		/* Bytes z1 z2 z3 z0 = p0 - all/2, p0 + p1 - all, p0 + p1 + p2 - all, -all/2 */
		const uint32_t z = (sums & 0x00ffffff) + 0x40404040 - all * 0x00010100 -
				   (all >> 1) * 0x01000001;

		if (Q == 4)
			return (z & 0x03030303) * 0x04104001 >> 24;
		return (z & ones) * 0x02040801 >> 24;
	}

	/* The point of the next level, by rounding rather than by a leader; see e8_point. */
	static __device__ __forceinline__ void subtract(uint32_t *w, uint32_t, const tables &)
	{
		/* Divides by q = 4; for q = 2, the doubled coordinates */
		const uint32_t t = (Q == 4 ? w[0] : 2 * w[0]) + 0x02020202;
		const uint32_t halves = ~(t | t >> 1) & ones;
		const uint32_t worst = halves ? halves : Q == 4 && t & ones ? t & ones : 1;
		const uint32_t correction = __popc(t & 0x04040404) & 1 ? lowest_bit(worst) : 0;

		w[0] = (t >> 2 & 0x3f3f3f3f) + 2 * (correction & t >> 1) - correction;
	}

	static __device__ __forceinline__ void divide(uint32_t *) {}

	static __device__ __forceinline__ bool left(const uint32_t *w, uint32_t b)
	{
		return w[0] ^ b * ones;
	}
};

/* ---- Tables in shared memory ---- */

/* Copies tables by all threads of a block; D4 has none. */
template <class TABLES>
HZ_DEVICE void copy_tables(TABLES &to, const TABLES &from)
{
	for (uint32_t i = threadIdx.x; i < sizeof(TABLES) / 16; i += blockDim.x)
		((uint4 *)&to)[i] = __ldg((const uint4 *)&from + i);
}

template <class TABLES>
HZ_DEVICE void fill_tables(TABLES &to)
{
	if constexpr (sizeof(TABLES) == sizeof(e8_tables))
		copy_tables(to, e8_tables_q4);
	else if constexpr (sizeof(TABLES) == sizeof(e8_choices))
		copy_tables(to, e8_choices_q4);
}

#endif
