/*
 * closest_point.cuh - nearest points of Z^d, A2, D_d and E8 with any q, in registers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The rules of lib/lattice/lattice_math.h, specialized at compile time. Integers are floats here,
 * up to 2^22, since FMA issues at twice the rate of comparisons, logic and shifts: an FMA that
 * multiplies by 1/q, adds 1.5 2^23 and rounds down leaves the floor of a quotient in the low bits.
 */
#ifndef HZI_GPU_LATTICE_CLOSEST_POINT_CUH
#define HZI_GPU_LATTICE_CLOSEST_POINT_CUH

#include "gpu/device/dtype.cuh"
#include "lib/lattice/lattice_math.h"

/* 1.5 2^23: adding it to y leaves rint(y) in the low bits. */
#define ROUND_BIAS 12582912.0f
/* Above this, digits are computed from the coordinate modulo 4 q. */
#define LARGE_COORDINATE 65536.0f

/* q and constants that depend on it */
struct radix_constants {
	float q, inverse;		/* 1 / q */
	float unit, unit_inverse;	/* divisor u of coordinates: q, or 2 q for E8; 1 / u */
};

/*
 * round_quotient(): floor((2 g + u) / 2 u). digit_of(): z mod q, by floor(z / q). Both as described
 * above; the quarter that is added to an integer keeps the floor exact.
 */
HZ_DEVICE float round_quotient(float g, const radix_constants &n, float half)
{
	return __fmaf_rd(__fadd_rn(g, half), n.unit_inverse, ROUND_BIAS);
}

HZ_DEVICE float digit_of(float z, const radix_constants &n)
{
	const float t = __fmaf_rd(__fadd_rn(z, 0.25f), n.inverse, ROUND_BIAS);

	return __fmaf_rn(-n.q, __fsub_rn(t, ROUND_BIAS), z);
}

/* The integers f nearest to E numbers, the remainders r, and the parity of the sum of f */
template <int E>
struct rounded_point {
	float f[E], r[E];
	uint32_t odd;
};

/* Rounds y, ties to even. */
template <int E>
HZ_DEVICE void round_to_even(rounded_point<E> &p, const float *y)
{
	p.odd = 0;
#pragma unroll
	for (int i = 0; i < E; i++) {
		const float t = __fadd_rn(y[i], ROUND_BIAS);

		p.f[i] = __fsub_rn(t, ROUND_BIAS);
		p.r[i] = __fsub_rn(y[i], p.f[i]);
		p.odd ^= __float_as_uint(t);
	}
	p.odd &= 1;
}

/* Rounds g / u, ties up; remainders are in units of 1 / u. */
template <int E>
HZ_DEVICE void round_quotients(rounded_point<E> &p, const float *g, const radix_constants &n)
{
	const float half = __fmaf_rn(n.unit, 0.5f, 0.25f);

	p.odd = 0;
#pragma unroll
	for (int i = 0; i < E; i++) {
		const float t = round_quotient(g[i], n, half);

		p.f[i] = __fsub_rn(t, ROUND_BIAS);
		p.r[i] = __fmaf_rn(-n.unit, p.f[i], g[i]);
		p.odd ^= __float_as_uint(t);
	}
	p.odd &= 1;
}

/* The signs of E numbers as bits, the first lowest */
template <int E>
HZ_DEVICE uint32_t sign_mask(const float *v)
{
	uint32_t s = 0;

#pragma unroll
	for (int i = E - 1; i >= 0; i--)
		s = __funnelshift_l(__float_as_uint(v[i]), s, 1);
	return s;
}

/* Adds `by` to number i, where i is the lowest 1 bit of mask. */
template <int E>
HZ_DEVICE void add_at_lowest(float *g, uint32_t mask, float by)
{
	const uint32_t first = mask & (0 - mask);

#pragma unroll
	for (int i = 0; i < E; i++)
		g[i] = first & 1u << i ? __fadd_rn(g[i], by) : g[i];
}

/* NAN_WINS: NaN if any of the numbers is NaN; otherwise NaN is ignored. */
template <int E, bool NAN_WINS = false>
HZ_DEVICE float max_abs(const float *v)
{
	float most = fabsf(v[0]);

#pragma unroll
	for (int i = 1; i < E; i++)
		most = NAN_WINS ? max_nan(most, fabsf(v[i])) : fmaxf(most, fabsf(v[i]));
	return most;
}

/*
 * A lattice with blocks of dim values and points of embed integers. choose(): the nearest point,
 * from rounded numbers in units of u, or reals with u = 1. coordinates(): z = G^-1 p;
 * from_coordinates(): p = G z. gauge(): a lower bound of max <v, w> over the minimal vectors w of
 * the lattice; for points that a code can represent it is bounded, see gauge_of() in
 * gpu/lattice/closest_point.c.
 */
/* Lattices whose points need no embedding */
template <int D>
struct own_coordinates {
	static __device__ __forceinline__ void to_embedding(const float *y, float *e)
	{
#pragma unroll
		for (int i = 0; i < D; i++)
			e[i] = y[i];
	}
};

template <int D>
struct z_lattice : own_coordinates<D> {
	static constexpr int kind = HZI_LATTICE_Z, dim = D, embed = D;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		return max_abs<D>(v);
	}

	template <bool REAL>
	static __device__ __forceinline__ void choose(rounded_point<D> &p, float, float *g)
	{
#pragma unroll
		for (int i = 0; i < D; i++)
			g[i] = p.f[i];
	}

	static __device__ __forceinline__ void coordinates(const float *p, float *z)
	{
#pragma unroll
		for (int i = 0; i < D; i++)
			z[i] = p[i];
	}

	static __device__ __forceinline__ void from_coordinates(const float *z, float *p)
	{
		coordinates(z, p);
	}
};

template <int D>
struct d_lattice : own_coordinates<D> {
	static constexpr int kind = HZI_LATTICE_D, dim = D, embed = D;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		float most[2] = {fabsf(v[0]), fabsf(v[1])};

#pragma unroll
		for (int i = 2; i < D; i++)
			most[i % 2] = fmaxf(most[i % 2], fabsf(v[i]));
		return most[0] + most[1];
	}

	template <bool REAL>
	static __device__ __forceinline__ void choose(rounded_point<D> &p, float, float *g)
	{
		const float most = max_abs<D>(p.r);
		float gap[D];

		/* Negative except where |r| is largest */
#pragma unroll
		for (int i = 0; i < D; i++) {
			gap[i] = __fsub_rn(fabsf(p.r[i]), most);
			g[i] = p.f[i];
		}
		const uint32_t where = ~sign_mask<D>(gap) & ((1u << D) - 1);
		const uint32_t below = sign_mask<D>(p.r) & where & (0 - where);

		/* A remainder of 0 may be -0. */
		add_at_lowest<D>(g, p.odd ? where : 0, below && most > 0 ? -1.0f : 1.0f);
	}

	static __device__ __forceinline__ void coordinates(const float *p, float *z)
	{
		z[D - 1] = -p[D - 1];
#pragma unroll
		for (int i = D - 2; i >= 2; i--)
			z[i] = __fsub_rn(z[i + 1], p[i]);
		z[0] = __fmul_rn(-0.5f, __fsub_rn(__fadd_rn(p[0], p[1]), z[2]));
		z[1] = __fadd_rn(p[0], z[0]);
	}

	static __device__ __forceinline__ void from_coordinates(const float *z, float *p)
	{
		p[0] = __fsub_rn(z[1], z[0]);
		p[1] = __fsub_rn(__fsub_rn(z[2], z[0]), z[1]);
#pragma unroll
		for (int i = 2; i < D - 1; i++)
			p[i] = __fsub_rn(z[i + 1], z[i]);
		p[D - 1] = -z[D - 1];
	}
};

struct a2_lattice {
	static constexpr int kind = HZI_LATTICE_A2, dim = 2, embed = 3;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		return fmaxf(fabsf(v[0]),
			     0.5f * fabsf(v[0]) + 0.86602540378443864676f * fabsf(v[1]));
	}

	static __device__ __forceinline__ void to_embedding(const float *y, float *e)
	{
		const float a = __fmul_rn(y[1], 0.57735026918962576451f);

		e[0] = __fadd_rn(y[0], a);
		e[1] = __fmul_rn(-2.0f, a);
		e[2] = __fsub_rn(a, y[0]);
	}

	template <bool REAL>
	static __device__ __forceinline__ void choose(rounded_point<3> &p, float, float *g)
	{
		const float sum = __fadd_rn(__fadd_rn(p.f[0], p.f[1]), p.f[2]);
		const float sign = sum > 0 ? 1.0f : -1.0f;
		float least = __fmul_rn(p.r[0], sign);
		int k = 0;

#pragma unroll
		for (int i = 1; i < 3; i++) {
			const float r = __fmul_rn(p.r[i], sign);

			k = r < least ? i : k;
			least = fminf(least, r);
		}
#pragma unroll
		for (int i = 0; i < 3; i++)
			g[i] = i == k ? __fsub_rn(p.f[i], sum) : p.f[i];
	}

	static __device__ __forceinline__ void coordinates(const float *p, float *z)
	{
		z[0] = -p[2];
		z[1] = -p[1];
	}

	static __device__ __forceinline__ void from_coordinates(const float *z, float *p)
	{
		p[0] = __fadd_rn(z[0], z[1]);
		p[1] = -z[1];
		p[2] = -z[0];
	}
};

struct e8_lattice : own_coordinates<8> {
	static constexpr int kind = HZI_LATTICE_E8, dim = 8, embed = 8;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		float least = fabsf(v[0]), sum = fabsf(v[0]);

#pragma unroll
		for (int i = 1; i < 8; i++) {
			least = fminf(least, fabsf(v[i]));
			sum += fabsf(v[i]);
		}
		const float most = d_lattice<8>::gauge(v);

		/* If the sum overflows f32, its half is unknown and not used. */
		return sum <= FLT_MAX ? fmaxf(0.5f * sum - least, most) : most;
	}

	/*
	 * Chooses between the integers a = f and the half-integers b = f + 1/2 or f - 1/2, by the
	 * sign of r. If the sum is odd, a is corrected where |r| is largest, b where it is
	 * smallest.
	 */
	template <bool REAL>
	static __device__ __forceinline__ void choose(rounded_point<8> &p, float unit, float *g)
	{
		float *const r = p.r, gap[8];
		const float most = max_abs<8>(r);
		float least = fabsf(r[0]);

#pragma unroll
		for (int i = 1; i < 8; i++)
			least = fminf(least, fabsf(r[i]));
		/* For reals, b < a also where r = 0 and f is odd, as rint(y - 1/2) has it. */
		if (REAL && least == 0) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float t = __fadd_rn(p.f[i], ROUND_BIAS);

				if (r[i] == 0 && __float_as_uint(t) & 1)
					r[i] = -0.0f;
			}
		}
		const uint32_t below = sign_mask<8>(r);
		const float total = __fadd_rn(__fadd_rn(__fadd_rn(fabsf(r[0]), fabsf(r[1])),
							__fadd_rn(fabsf(r[2]), fabsf(r[3]))),
					      __fadd_rn(__fadd_rn(fabsf(r[4]), fabsf(r[5])),
							__fadd_rn(fabsf(r[6]), fabsf(r[7]))));
		const bool pa = p.odd, pb = (p.odd ^ __popc(below)) & 1;
		const float da = pa ? __fsub_rn(unit, __fadd_rn(most, most)) : 0.0f;
		const float db = __fadd_rn(__fsub_rn(2 * unit, total),
					   pb ? __fadd_rn(least, least) : 0.0f);
		bool b = db < da;

		if (db == da) {
			/* First coordinates relative to f_0 */
			const int first_below = below & 1;
			const int up = fabsf(r[0]) != most || !pa ? 0 :
				       first_below && most > 0 ? -1 : 1;
			const int half = fabsf(r[0]) != least || !pb ? 0 :
					 first_below || 2 * least == unit ? 1 : -1;

			b = half - first_below < up;
		}
		/* Negative except where |r| selects the coordinate to correct */
		const float which = b ? least : -most, sign = b ? -1.0f : 1.0f;
		const float halves = b ? 1.0f : 0.0f;

#pragma unroll
		for (int i = 0; i < 8; i++)
			gap[i] = __fmaf_rn(fabsf(r[i]), sign, which);
		const uint32_t where = ~sign_mask<8>(gap) & 255;
		const uint32_t first = where & (0 - where);
		const bool up = b ? (below & first) || 2 * least == unit :
				!(below & first) || most == 0;

#pragma unroll
		for (int i = 0; i < 8; i++)
			g[i] = __fmaf_rn(2.0f, p.f[i], copysignf(halves, r[i]));
		add_at_lowest<8>(g, (b ? pb : pa) ? where : 0, up ? 2.0f : -2.0f);
	}

	static __device__ __forceinline__ void coordinates(const float *p, float *z)
	{
		const float last = __fmul_rn(-0.5f, p[7]);

		z[7] = p[7];
		z[6] = __fmaf_rn(0.5f, p[6], last);
#pragma unroll
		for (int i = 5; i >= 1; i--)
			z[i] = __fadd_rn(__fmaf_rn(0.5f, p[i], last), z[i + 1]);
		z[0] = __fmul_rn(0.5f, __fadd_rn(__fmaf_rn(0.5f, p[0], last), z[1]));
	}

	static __device__ __forceinline__ void from_coordinates(const float *z, float *p)
	{
		p[0] = __fmaf_rn(4.0f, z[0], __fmaf_rn(-2.0f, z[1], z[7]));
#pragma unroll
		for (int i = 1; i < 6; i++)
			p[i] = __fmaf_rn(2.0f, __fsub_rn(z[i], z[i + 1]), z[7]);
		p[6] = __fmaf_rn(2.0f, z[6], z[7]);
		p[7] = z[7];
	}
};

/* ---- For any of these lattices --------------------------------------------------------------- */

/* Q(y); no |y_i| exceeds HZI_LATTICE_RANGE, and none is -0. */
template <class L>
HZ_DEVICE void nearest_point(const float *y, float *g)
{
	rounded_point<L::embed> p;
	float e[L::embed];

	L::to_embedding(y, e);
	round_to_even<L::embed>(p, e);
	L::template choose<true>(p, 1.0f, g);
}

/* g becomes Q(g / q). */
template <class L>
HZ_DEVICE void parent_point(float *g, const radix_constants &n)
{
	rounded_point<L::embed> p;

	round_quotients<L::embed>(p, g, n);
	L::template choose<false>(p, n.unit, g);
}

/* sum_j b_j q^j of the digits b = (G^-1 g) mod q. large: some |g_i| exceeds LARGE_COORDINATE. */
template <class L>
HZ_DEVICE uint32_t code_index(const float *g, const radix_constants &n, uint32_t q, bool large)
{
	constexpr int D = L::dim, DIGITS = D < 4 ? D : 4;	/* q^4 <= 2^24 */
	float p[L::embed], z[D];
	uint32_t index = 0;

#pragma unroll
	for (int i = 0; i < L::embed; i++)
		p[i] = g[i];
	if (large) {
#pragma unroll
		for (int i = 0; i < L::embed; i++)
			p[i] = __fmaf_rn(-4 * n.q, rintf(__fmul_rn(p[i], 0.25f * n.inverse)), p[i]);
	}
	L::coordinates(p, z);
#pragma unroll
	for (int i = D - DIGITS; i >= 0; i -= DIGITS) {
		float s = digit_of(z[i + DIGITS - 1], n);

#pragma unroll
		for (int j = DIGITS - 2; j >= 0; j--)
			s = __fmaf_rn(s, n.q, digit_of(z[i + j], n));
		if (D > DIGITS)
			index *= q * q * q * q;
		index += (uint32_t)s;
	}
	return index;
}

/* An integer below 2^23 as a float */
HZ_DEVICE float float_of(uint32_t i)
{
	return __fsub_rn(__uint_as_float(0x4b000000 | i), 8388608.0f);
}

/* The coset leader of digits: c(b) = G b - q Q(G b / q) */
template <class L>
HZ_DEVICE void coset_leader(const float *z, const radix_constants &n, float *c)
{
	float f[L::embed];

	L::from_coordinates(z, c);
#pragma unroll
	for (int i = 0; i < L::embed; i++)
		f[i] = c[i];
	parent_point<L>(f, n);
#pragma unroll
	for (int i = 0; i < L::embed; i++)
		c[i] = __fmaf_rn(-n.q, f[i], c[i]);
}

/* hzi_lattice_error(): the squared distance of y from the point g, which includes o */
template <class L>
HZ_DEVICE float squared_error(const float *y, const float *g, const float *offset)
{
	float e[L::embed], sum = 0;

#pragma unroll
	for (int i = 0; i < L::embed; i++)
		e[i] = __fsub_rn(g[i], offset[i]);
	if constexpr (L::kind == HZI_LATTICE_A2) {
		const float middle = e[1];

		e[0] = __fmul_rn(0.5f, __fsub_rn(e[0], e[2]));
		e[1] = __fmul_rn(-0.86602540378443864676f, middle);
	}
#pragma unroll
	for (int i = 0; i < L::dim; i++) {
		e[i] = L::kind == HZI_LATTICE_E8 ? __fmaf_rn(-0.5f, e[i], y[i]) :
						   __fsub_rn(y[i], e[i]);
		sum = __fadd_rn(sum, __fmul_rn(e[i], e[i]));
	}
	return sum;
}

#endif
