/*
 * closest_point.cuh - nearest points of Z^d, A2, D_d and E8 with any q, in registers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The rules of lib/lattice/lattice_math.h with all that is known when a kernel is compiled.
 * Integers are floats here, up to 2^22, as multiply-adds start at twice the rate of comparisons,
 * logic and shifts: a product with 1/q that is added to 1.5 2^23, rounded down, has the floor of a
 * quotient in its low bits.
 */
#ifndef HZI_LATTICE_NEAR_CUH
#define HZI_LATTICE_NEAR_CUH

#include "gpu/device/base.cuh"
#include "lib/lattice/lattice_math.h"

/* 1.5 2^23: the sum with y has rint(y) in its low bits. */
#define NEAR_ROUNDER 12582912.0f
/* A larger coordinate's digits are taken of what it is modulo 4 q. */
#define NEAR_LARGE 65536.0f

/* q and what depends on it */
struct near_radix {
	float q, inverse;		/* 1 / q */
	float unit, unit_inverse;	/* what coordinates are divided by: q, E8 2 q */
};

/* The floor of (2 g + u) / 2 u, and of z / q: see above; integers, whose quarters are exact. */
HZ_DEVICE float near_rounded(float g, const near_radix &n, float half)
{
	return __fmaf_rd(__fadd_rn(g, half), n.unit_inverse, NEAR_ROUNDER);
}

HZ_DEVICE float near_digit(float z, const near_radix &n)
{
	const float t = __fmaf_rd(__fadd_rn(z, 0.25f), n.inverse, NEAR_ROUNDER);

	return __fmaf_rn(-n.q, __fsub_rn(t, NEAR_ROUNDER), z);
}

/* The integers nearest to E numbers, what is left of these, and the exclusive or of the integers */
template <int E>
struct near_parts {
	float f[E], r[E];
	uint32_t odd;
};

/* Of y, halves to even */
template <int E>
HZ_DEVICE void near_round(near_parts<E> &p, const float *y)
{
	p.odd = 0;
#pragma unroll
	for (int i = 0; i < E; i++) {
		const float t = __fadd_rn(y[i], NEAR_ROUNDER);

		p.f[i] = __fsub_rn(t, NEAR_ROUNDER);
		p.r[i] = __fsub_rn(y[i], p.f[i]);
		p.odd ^= __float_as_uint(t);
	}
	p.odd &= 1;
}

/* Of g / u, halves up; what is left is in units of 1 / u. */
template <int E>
HZ_DEVICE void near_divide(near_parts<E> &p, const float *g, const near_radix &n)
{
	const float half = __fmaf_rn(n.unit, 0.5f, 0.25f);

	p.odd = 0;
#pragma unroll
	for (int i = 0; i < E; i++) {
		const float t = near_rounded(g[i], n, half);

		p.f[i] = __fsub_rn(t, NEAR_ROUNDER);
		p.r[i] = __fmaf_rn(-n.unit, p.f[i], g[i]);
		p.odd ^= __float_as_uint(t);
	}
	p.odd &= 1;
}

/* The signs of E numbers, the first lowest */
template <int E>
HZ_DEVICE uint32_t near_signs(const float *v)
{
	uint32_t s = 0;

#pragma unroll
	for (int i = E - 1; i >= 0; i--)
		s = __funnelshift_l(__float_as_uint(v[i]), s, 1);
	return s;
}

/* Adds `by` to the i-th number where bit i is the lowest 1 of mask. */
template <int E>
HZ_DEVICE void near_turn(float *g, uint32_t mask, float by)
{
	const uint32_t first = mask & (0 - mask);

#pragma unroll
	for (int i = 0; i < E; i++)
		g[i] = first & 1u << i ? __fadd_rn(g[i], by) : g[i];
}

template <int E>
HZ_DEVICE float near_most(const float *r)
{
	float most = fabsf(r[0]);

#pragma unroll
	for (int i = 1; i < E; i++)
		most = fmaxf(most, fabsf(r[i]));
	return most;
}

/*
 * A lattice: dim values of a block, embed integers of a point. choose(): of the parts of numbers in
 * units of u, or of reals with u = 1, the nearest point; coordinates(): z = G^-1 p; combine():
 * back. gauge(): no more than the largest <v, w>, w being the least vectors of the lattice; of a
 * point that a code holds it is bounded, see gauge_of() in gpu/lattice/closest_point.c.
 */
template <int D>
struct near_z {
	static constexpr int kind = HZI_LATTICE_Z, dim = D, embed = D;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		return near_most<D>(v);
	}

	static __device__ __forceinline__ void spread(const float *y, float *e)
	{
#pragma unroll
		for (int i = 0; i < D; i++)
			e[i] = y[i];
	}

	template <bool REAL>
	static __device__ __forceinline__ void choose(near_parts<D> &p, float, float *g)
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

	static __device__ __forceinline__ void combine(const float *z, float *p)
	{
		coordinates(z, p);
	}
};

template <int D>
struct near_d {
	static constexpr int kind = HZI_LATTICE_D, dim = D, embed = D;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		float most[2] = {fabsf(v[0]), fabsf(v[1])};

#pragma unroll
		for (int i = 2; i < D; i++)
			most[i % 2] = fmaxf(most[i % 2], fabsf(v[i]));
		return most[0] + most[1];
	}

	static __device__ __forceinline__ void spread(const float *y, float *e)
	{
#pragma unroll
		for (int i = 0; i < D; i++)
			e[i] = y[i];
	}

	template <bool REAL>
	static __device__ __forceinline__ void choose(near_parts<D> &p, float, float *g)
	{
		const float most = near_most<D>(p.r);
		float apart[D];

		/* Negative but where |r| is the largest */
#pragma unroll
		for (int i = 0; i < D; i++) {
			apart[i] = __fsub_rn(fabsf(p.r[i]), most);
			g[i] = p.f[i];
		}
		const uint32_t where = ~near_signs<D>(apart) & ((1u << D) - 1);
		const uint32_t below = near_signs<D>(p.r) & where & (0 - where);

		/* 0 may have a sign */
		near_turn<D>(g, p.odd ? where : 0, below && most > 0 ? -1.0f : 1.0f);
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

	static __device__ __forceinline__ void combine(const float *z, float *p)
	{
		p[0] = __fsub_rn(z[1], z[0]);
		p[1] = __fsub_rn(__fsub_rn(z[2], z[0]), z[1]);
#pragma unroll
		for (int i = 2; i < D - 1; i++)
			p[i] = __fsub_rn(z[i + 1], z[i]);
		p[D - 1] = -z[D - 1];
	}
};

struct near_a2 {
	static constexpr int kind = HZI_LATTICE_A2, dim = 2, embed = 3;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		return fmaxf(fabsf(v[0]),
			     0.5f * fabsf(v[0]) + 0.86602540378443864676f * fabsf(v[1]));
	}

	static __device__ __forceinline__ void spread(const float *y, float *e)
	{
		const float a = __fmul_rn(y[1], 0.57735026918962576451f);

		e[0] = __fadd_rn(y[0], a);
		e[1] = __fmul_rn(-2.0f, a);
		e[2] = __fsub_rn(a, y[0]);
	}

	template <bool REAL>
	static __device__ __forceinline__ void choose(near_parts<3> &p, float, float *g)
	{
		const float sum = __fadd_rn(__fadd_rn(p.f[0], p.f[1]), p.f[2]);
		const float way = sum > 0 ? 1.0f : -1.0f;
		float least = __fmul_rn(p.r[0], way);
		int k = 0;

#pragma unroll
		for (int i = 1; i < 3; i++) {
			const float r = __fmul_rn(p.r[i], way);

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

	static __device__ __forceinline__ void combine(const float *z, float *p)
	{
		p[0] = __fadd_rn(z[0], z[1]);
		p[1] = -z[1];
		p[2] = -z[0];
	}
};

struct near_e8 {
	static constexpr int kind = HZI_LATTICE_E8, dim = 8, embed = 8;

	static __device__ __forceinline__ float gauge(const float *v)
	{
		float least = fabsf(v[0]), sum = fabsf(v[0]);

#pragma unroll
		for (int i = 1; i < 8; i++) {
			least = fminf(least, fabsf(v[i]));
			sum += fabsf(v[i]);
		}
		const float most = near_d<8>::gauge(v);

		/* A sum beyond f32 may have a half that is not: it says nothing then. */
		return sum <= FLT_MAX ? fmaxf(0.5f * sum - least, most) : most;
	}

	static __device__ __forceinline__ void spread(const float *y, float *e)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			e[i] = y[i];
	}

	/*
	 * The integers a = f, or the halves b = f + 1/2 or f - 1/2, where the sign of r is; each
	 * corrected where its sum is odd, a where |r| is largest, b where it is least.
	 */
	template <bool REAL>
	static __device__ __forceinline__ void choose(near_parts<8> &p, float unit, float *g)
	{
		float *const r = p.r, apart[8];
		const float most = near_most<8>(r);
		float least = fabsf(r[0]);

#pragma unroll
		for (int i = 1; i < 8; i++)
			least = fminf(least, fabsf(r[i]));
		/* Of reals b is below a also where r is 0 and f odd, as of rint(y - 1/2). */
		if (REAL && least == 0) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float t = __fadd_rn(p.f[i], NEAR_ROUNDER);

				if (r[i] == 0 && __float_as_uint(t) & 1)
					r[i] = -0.0f;
			}
		}
		const uint32_t below = near_signs<8>(r);
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
			/* The first coordinates, less f_0 */
			const int first_below = below & 1;
			const int up = fabsf(r[0]) != most || !pa ? 0 :
				       first_below && most > 0 ? -1 : 1;
			const int half = fabsf(r[0]) != least || !pb ? 0 :
					 first_below || 2 * least == unit ? 1 : -1;

			b = half - first_below < up;
		}
		/* Negative but where |r| is what is turned */
		const float which = b ? least : -most, way = b ? -1.0f : 1.0f;
		const float halves = b ? 1.0f : 0.0f;

#pragma unroll
		for (int i = 0; i < 8; i++)
			apart[i] = __fmaf_rn(fabsf(r[i]), way, which);
		const uint32_t where = ~near_signs<8>(apart) & 255;
		const uint32_t first = where & (0 - where);
		const bool up = b ? (below & first) || 2 * least == unit :
				!(below & first) || most == 0;

#pragma unroll
		for (int i = 0; i < 8; i++)
			g[i] = __fmaf_rn(2.0f, p.f[i], copysignf(halves, r[i]));
		near_turn<8>(g, (b ? pb : pa) ? where : 0, up ? 2.0f : -2.0f);
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

	static __device__ __forceinline__ void combine(const float *z, float *p)
	{
		p[0] = __fmaf_rn(4.0f, z[0], __fmaf_rn(-2.0f, z[1], z[7]));
#pragma unroll
		for (int i = 1; i < 6; i++)
			p[i] = __fmaf_rn(2.0f, __fsub_rn(z[i], z[i + 1]), z[7]);
		p[6] = __fmaf_rn(2.0f, z[6], z[7]);
		p[7] = z[7];
	}
};

/* ---- Of any of these ------------------------------------------------------------------------- */

/* Q(y), of which no |y_i| is above HZI_LATTICE_RANGE and none is -0 */
template <class L>
HZ_DEVICE void near_level0(const float *y, float *g)
{
	near_parts<L::embed> p;
	float e[L::embed];

	L::spread(y, e);
	near_round<L::embed>(p, e);
	L::template choose<true>(p, 1.0f, g);
}

/* g becomes Q(g / q). */
template <class L>
HZ_DEVICE void near_parent(float *g, const near_radix &n)
{
	near_parts<L::embed> p;

	near_divide<L::embed>(p, g, n);
	L::template choose<false>(p, n.unit, g);
}

/* sum_j b_j q^j of the digits b = (G^-1 g) mod q; large: some |g_i| is above NEAR_LARGE. */
template <class L>
HZ_DEVICE uint32_t near_index(const float *g, const near_radix &n, uint32_t q, bool large)
{
	constexpr int D = L::dim, FEW = D < 4 ? D : 4;	/* q^4 up to 2^24 */
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
	for (int i = D - FEW; i >= 0; i -= FEW) {
		float s = near_digit(z[i + FEW - 1], n);

#pragma unroll
		for (int j = FEW - 2; j >= 0; j--)
			s = __fmaf_rn(s, n.q, near_digit(z[i + j], n));
		if (D > FEW)
			index *= q * q * q * q;
		index += (uint32_t)s;
	}
	return index;
}

/* An integer below 2^23 */
HZ_DEVICE float near_float(uint32_t i)
{
	return __fsub_rn(__uint_as_float(0x4b000000 | i), 8388608.0f);
}

/* The leader of digits: c(b) = G b - q Q(G b / q) */
template <class L>
HZ_DEVICE void near_leader(const float *z, const near_radix &n, float *c)
{
	float f[L::embed];

	L::combine(z, c);
#pragma unroll
	for (int i = 0; i < L::embed; i++)
		f[i] = c[i];
	near_parent<L>(f, n);
#pragma unroll
	for (int i = 0; i < L::embed; i++)
		c[i] = __fmaf_rn(-n.q, f[i], c[i]);
}

/* hzi_lattice_error(): y less the point g, which has o */
template <class L>
HZ_DEVICE float near_error(const float *y, const float *g, const float *offset)
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
