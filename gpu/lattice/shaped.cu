/*
 * shaped.cu - encodes to codes with a shaping other than NESTED
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The results are those of hzi_shaped_choose(), bit for bit. Most scales of a block are left out
 * because of a lower bound of their error, and few nearest points are outside of the code, so a
 * warp works in stages. Blocks that need the next stage wait in a queue in shared memory until
 * there are 32 of them, one for each lane:
 *
 *   first    bounds at all scales, two at a time in f16; the nearest point at the scale that has
 *            the least one
 *   tries    nearest points at scales with bounds below the error so far
 *   filter   at scales whose nearest point is outside of the code: whether another point of the
 *            code can be near enough
 *   clip     hzi_shaped_clip() at these
 */
#include "gpu/lattice/generic.cuh"
#include "lib/lattice/shaped.h"

#define WARPS (HZI_LATTICE_THREADS / 32)
#define SLOTS 64		/* 31 blocks that wait, and 32 more */
#define PAIRS (HZ_LATTICE_MAXBANKS / 2)
#define ROUND_BIAS 12582912.0f	/* 1.5 2^23: adding it to y leaves rint(y) in the low bits. */
#define FOUND (1u << 24)	/* of block_state.flags: there is a point and a label, */
#define FITS (1u << 25)		/* which is the nearest one of its scale; */
#define KNOWN (1u << 26)	/* without FITS the block counts as clipped. */

/* What waits for a stage: turn and lane of the block, its least error, label, flags */
struct queue {
	uint32_t place[SLOTS], label[SLOTS], flags[SLOTS];
	float least[SLOTS];
};

enum { TRIES, FILTER, CLIP, QUEUES };

struct warp_memory {
	queue queues[QUEUES];
	uint32_t waiting[PAIRS][SLOTS];	/* bounds of blocks in `tries`: see bounds_of() */
	uint32_t bounds[PAIRS][32];	/* of the blocks in `first` */
};

/* The scales s; of pairs of them, in f16: the largest by these, and their squares by its square */
struct scale_table {
	float scale[HZ_LATTICE_MAXBANKS], inverse[HZ_LATTICE_MAXBANKS];
	uint32_t ratio[PAIRS], square[PAIRS];
	bool usable;
};

/* flags: the scales to be looked at, the scale t of the point << 16, FOUND, FITS */
struct block_state {
	row_offsets at;
	float v[8], least;
	uint32_t label, flags;
};

/* Eight numbers by value, for functions that are not inlined */
struct eight {
	float v[8];
};

HZ_DEVICE eight copy_of(const float (&v)[8])
{
	eight c;

#pragma unroll
	for (int i = 0; i < 8; i++)
		c.v[i] = v[i];
	return c;
}

/* ---- Nearest points -------------------------------------------------------------------------- */

/* p: twice the coordinates */
HZ_DEVICE int32_t integer_of(float p)
{
	return __float_as_int(p + ROUND_BIAS) - 0x4b400000;
}

HZ_DEVICE float sum_of(const float (&s)[8])
{
	return hzi_ladd(hzi_ladd(hzi_ladd(s[0], s[1]), hzi_ladd(s[2], s[3])),
			hzi_ladd(hzi_ladd(s[4], s[5]), hzi_ladd(s[6], s[7])));
}

/* As hzi_shaped_nearest(), of n_i 0 .. q - 1 unless E8, |y_i| < 2^22 */
template <int SHAPING>
HZ_DEVICE float nearest(float q, const float (&y)[8], float (&p)[8])
{
	const float high = q - 1;
	float r[2][8], most[2], error[2];
	uint32_t parity[2] = {0, 0};

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const float offset = (q - h) * 0.5f;
		float s[8];

		most[h] = -FLT_MAX;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const float u = hzi_ladd(y[i], offset);
			const float f = hzi_ladd(SHAPING == HZI_SHAPING_E8 ? u :
						 fminf(fmaxf(u, 0), high), ROUND_BIAS);

			r[h][i] = hzi_ladd(u, -hzi_ladd(f, -ROUND_BIAS));
			parity[h] ^= __float_as_uint(f);
			s[i] = hzi_lmul(r[h][i], r[h][i]);
			/* What moving the coordinate gains: less than 0 where it would leave. */
			most[h] = fmaxf(most[h], SHAPING == HZI_SHAPING_E8 ? fabsf(r[h][i]) :
					fminf(fabsf(r[h][i]), fminf(u, hzi_ladd(high, -u))));
		}
		error[h] = sum_of(s);
		if (parity[h] & 1)
			error[h] = hzi_ladd(error[h],
					    hzi_ladd(1.0f, -hzi_ladd(most[h], most[h])));
	}
	const bool half = error[1] < error[0];
	const float start = (q - half) * 0.5f, gain = half ? most[1] : most[0];
	bool todo = (half ? parity[1] : parity[0]) & 1;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float one = half ? r[1][i] : r[0][i], u = hzi_ladd(y[i], start);
		float n = hzi_ladd(u, -one), own = fabsf(one);
		bool down = one < 0;

		if (SHAPING != HZI_SHAPING_E8) {
			own = fminf(own, fminf(u, hzi_ladd(high, -u)));
			down = u >= 0 && (down || u >= high);
		}
		if (todo && own == gain) {
			todo = false;
			n = hzi_ladd(n, down ? -1.0f : 1.0f);
		}
		p[i] = 2 * hzi_ladd(n, -start);
	}
	return half ? error[1] : error[0];
}

/* The largest <v, w> of minimal vectors w of E8, see hzi_shaped_beyond() */
HZ_DEVICE float reach_of(const float (&v)[8])
{
	float most = 0, second = 0, least = FLT_MAX, sum = 0;
	uint32_t sign = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float a = fabsf(v[i]);

		sum = hzi_ladd(sum, a);
		sign ^= __float_as_uint(v[i]);
		second = fmaxf(fminf(a, most), second);
		most = fmaxf(a, most);
		least = fminf(a, least);
	}
	if (sign >> 31)
		sum = hzi_ladd(sum, hzi_lmul(-2.0f, least));
	return fmaxf(hzi_lmul(0.5f, sum), hzi_ladd(most, second));
}

/* hzi_shaped_beyond() */
HZ_DEVICE float beyond_of(float q, const float (&y)[8])
{
	const float far = hzi_ladd(reach_of(y), -q);

	return far > 0 ? hzi_lmul(0.5f, hzi_lmul(far, far)) : 0;
}

static __device__ __noinline__ bool on_border(int log2q, eight p)
{
	int32_t g[8];

#pragma unroll
	for (int i = 0; i < 8; i++)
		g[i] = integer_of(p.v[i]);
	return hzi_label_has(HZI_SHAPING_E8, log2q, g);
}

/* hzi_shaped_inside() */
template <int SHAPING>
HZ_DEVICE bool inside(const hzi_lattice_rule &r, float q, const float (&p)[8])
{
	const float h = (float)(integer_of(p[0]) & 1);
	float most = 0, sum = 0;

	if constexpr (SHAPING == HZI_SHAPING_E8) {
		sum = reach_of(p);
		return sum < 2 * q || (sum == 2 * q && on_border(r.log2q, copy_of(p)));
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		most = fmaxf(most, fabsf(p[i] + 0.5f));	/* -q <= p_i < q */
		sum += fabsf(p[i] - h);
	}
	return most < q && (SHAPING == HZI_SHAPING_CUBE || sum < 4 * q ||
			    (sum == 4 * q && p[0] < h));
}

template <int SHAPING>
HZ_DEVICE uint32_t label_of(const hzi_lattice_rule &r, const float (&p)[8])
{
	int32_t g[8];

#pragma unroll
	for (int i = 0; i < 8; i++)
		g[i] = integer_of(p[i]);
	return hzi_label_of(SHAPING, r.log2q, g);
}

/* e = y - p / 2; returns the squared distance: hzi_shaped_error() */
HZ_DEVICE float error_of(const float (&y)[8], const float (&p)[8], float (&e)[8])
{
	float s[8];

#pragma unroll
	for (int i = 0; i < 8; i++) {
		e[i] = hzi_ladd(y[i], hzi_lmul(-0.5f, p[i]));
		s[i] = hzi_lmul(e[i], e[i]);
	}
	return sum_of(s);
}

HZ_DEVICE void divide(const float (&v)[8], float inverse, float (&y)[8])
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		y[i] = hzi_lclamp(hzi_lmul(v[i], inverse), FLT_MAX);
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

/* max(|a|, |b|) or min() with the sign of a b, of both halves */
template <bool MAX>
HZ_DEVICE uint32_t extreme_x2(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 860
	if (MAX)
		return HZ_ASM_U32("max.xorsign.abs.f16x2 %0, %1, %2;", "r"(a), "r"(b));
	return HZ_ASM_U32("min.xorsign.abs.f16x2 %0, %1, %2;", "r"(a), "r"(b));
#else
	const uint32_t x = a & 0x7fff7fff, y = b & 0x7fff7fff;

	return (MAX ? max_x2<HZ_F16>(x, y) : min_x2<HZ_F16>(x, y)) | ((a ^ b) & 0x80008000);
#endif
}

HZ_DEVICE uint32_t both(float f)
{
	return to_f16x2(f, f);
}

/*
 * What bounds need of a block: y_i = v_i / s for the largest scale s, in both halves, magnitudes
 * unless E8; 1536 and where the cube ends; the parity of negative v_i, in bit 0 of both halves;
 * y times what limits E8 or D8STAR
 */
struct bound_input {
	uint32_t y[8], end[8], signs, reach;
};

/*
 * Lower bounds of the errors at two scales, in units of s^2 of the largest s, less `slack` and the
 * errors of f16.
 *
 * a = y - rint(y), |a| <= 1/2; the squared distance from Z^8 is S = sum a^2, from Z^8 + 1/2 it is
 * sum (1/2 - |a|)^2 = S - sum |a| + 2. If the sum of rint(y) is odd, S grows by 1 - 2 max |a|; the
 * sum of floor(y), which is odd if that of rint(y) and of negative a is, makes the other grow by
 * 2 min |a|. Unless E8, y beyond the cube is rounded to its end. u = y + 1536 is rint(y) in its low
 * bits. Points of the code have <y, w> <= q, or with D8STAR sum |y_i| <= 2 q + 4: what y exceeds
 * that by is a distance too.
 *
 * f16 rounds y and the ratio of the scales: y is off by d = 2^-10 |y| at most, and with that the
 * error by 2 d sqrt(error) <= error / 100 + 100 d^2; 100 d^2 is in `slack`. Sums are off by .0125.
 */
template <int SHAPING>
HZ_DEVICE uint32_t bounds_of(const bound_input &b, float q, uint32_t ratio, uint32_t square,
			     uint32_t &outside)
{
	const uint32_t bias = 0x66006600;	/* 1536 */
	uint32_t squares = both(-0.0125f), sizes = 0, parity = 0, most = 0, least = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t u = fma_f16x2(b.y[i], ratio, bias), a;

		if (SHAPING != HZI_SHAPING_E8)
			u = min_x2<HZ_F16>(u, b.end[i]);
		a = fma_f16x2(b.y[i], ratio, HZ_ASM_U32("sub.rn.f16x2 %0, %1, %2;", "r"(bias),
							"r"(u)));
		squares = fma_f16x2(a, a, squares);
		sizes = add_f16x2(sizes, HZ_ASM_U32("abs.f16x2 %0, %1;", "r"(a)));
		parity ^= u;
		most = i ? extreme_x2<true>(most, a) : a;
		least = i ? extreme_x2<false>(least, a) : a;
	}
	const uint32_t minus_two = 0xc000c000, one = 0x3c003c00, two = 0x40004000;
	const uint32_t odd = (parity & 0x00010001) * 0xffff;
	const uint32_t odd_half = ((parity ^ most >> 15 ^ b.signs) & 0x00010001) * 0xffff;
	uint32_t cost = HZ_ASM_U32("fma.rn.relu.f16x2 %0, %1, %2, %3;",
				   "r"(HZ_ASM_U32("abs.f16x2 %0, %1;", "r"(most))),
				   "r"(minus_two), "r"(one));
	uint32_t low = add_f16x2(squares, cost & odd), high;

	sizes = HZ_ASM_U32("sub.rn.f16x2 %0, %1, %2;", "r"(two), "r"(sizes));
	cost = add_f16x2(least, least) & 0x7fff7fff;
	high = add_f16x2(add_f16x2(squares, sizes), cost & odd_half);
	low = mul_f16x2(min_x2<HZ_F16>(low, high), square);
	outside = 0;
	if (SHAPING != HZI_SHAPING_CUBE) {
		const float root = SHAPING == HZI_SHAPING_E8 ? 0.7075f : 0.354f;
		const float limit = SHAPING == HZI_SHAPING_E8 ? q : 2 * q + 4;
		const uint32_t far = HZ_ASM_U32("fma.rn.relu.f16x2 %0, %1, %2, %3;", "r"(b.reach),
						"r"(ratio), "r"(both(-root * limit)));

		low = max_x2<HZ_F16>(low, mul_f16x2(mul_f16x2(far, square), far));
		/* Most nearest points are not in the code where this is above 0. */
		outside = SHAPING == HZI_SHAPING_E8 ? far :
			  HZ_ASM_U32("fma.rn.relu.f16x2 %0, %1, %2, %3;", "r"(b.reach), "r"(ratio),
				     "r"(both(-root * 2 * q)));
	}
	return low;
}

template <int SHAPING>
HZ_DEVICE void prepare_bounds(const float (&v)[8], float q, float inverse, bound_input &b)
{
	float sum = 0;

	b.signs = 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float y = v[i] * inverse;

		b.y[i] = both(SHAPING == HZI_SHAPING_E8 ? y : fabsf(y));
		b.end[i] = both(y < 0 ? 1536 + 0.5f * q : 1535 + 0.5f * q);
		b.signs ^= SHAPING == HZI_SHAPING_E8 ? 0 : __float_as_uint(y);
		sum += fabsf(y);
	}
	b.signs = (b.signs >> 31) * 0x00010001;
	b.reach = both(SHAPING == HZI_SHAPING_E8 ? 0.7057f * reach_of(v) * inverse :
		       0.3528f * sum);
}

/* The scale with about the least bound, in the low bits */
HZ_DEVICE uint32_t bound_key(uint32_t bounds, int pair)
{
	return (bounds & 0xfff0fff0) | (uint32_t)(pair * 0x00020002 + 0x00010000);
}

HZ_DEVICE uint32_t least_of(uint32_t key)
{
	return min_x2<HZ_F16>(key, key >> 16) & 0xffff;
}

/* ---- Points outside of the code -------------------------------------------------------------- */

/* A minimal vector of E8: coordinates other than 0, and negative ones; all eight: (+-1/2)^8 */
struct vector {
	uint32_t set, negative;
};

HZ_DEVICE void move_point(const float (&p)[8], vector w, float (&to)[8])
{
	const float size = w.set == 255 ? 1.0f : 2.0f;

#pragma unroll
	for (int i = 0; i < 8; i++)
		to[i] = p[i] + (w.set >> i & 1 ? w.negative >> i & 1 ? -size : size : 0);
}

/*
 * The minimal vector w of E8 that has the largest <error, w> above `most`, of those that lead from
 * `point` to one of the code, of equals the first in the order of hzi_shaped_step(); any: one of
 * them. If there is none, w.set is 0.
 *
 * First all products are computed, of +-w that which is positive. A bit of `marks` for each that is
 * large enough: 8 i + j of e_i + e_j and e_i - e_j, and the 64 of (+-1/2)^8 with a positive last
 * but one coordinate.
 */
template <int SHAPING>
static __device__ __noinline__ vector step(const hzi_lattice_rule &r, eight error, eight point,
					   float most, bool any)
{
	float (&e)[8] = error.v, (&p)[8] = point.v;
	const float q = (float)r.q;
	uint32_t marks[6] = {0, 0, 0, 0, 0, 0};
	float lower[16], upper[16], twice = most + most;
	int best = INT32_MAX;
	vector found = {0, 0};

	if (!(1.0001f * reach_of(e) > most))
		return found;
#pragma unroll
	for (int i = 0; i < 7; i++) {
#pragma unroll
		for (int j = i + 1; j < 8; j++) {
			const int bit = (8 * i + j) & 31, word = i >> 2;

			marks[word] |= fabsf(hzi_ladd(e[i], e[j])) > most ? 1u << bit : 0;
			marks[2 + word] |= fabsf(hzi_ladd(e[i], -e[j])) > most ? 1u << bit : 0;
		}
	}
#pragma unroll
	for (uint32_t k = 0; k < 16; k++) {
		lower[k] = hzi_shaped_four(e, k);
		upper[k] = hzi_shaped_four(&e[4], k);
	}
#pragma unroll
	for (uint32_t k = 0; k < 64; k++)
		marks[4 + k / 32] |= fabsf(hzi_ladd(lower[k & 15], upper[hzi_shaped_signs(k) >> 4])) >
				     twice ? 1u << (k & 31) : 0;
	for (;;) {
		int word = 0;

#pragma unroll
		for (int k = 5; k >= 0; k--)
			word = marks[k] ? k : word;

		uint32_t mark = 0;

#pragma unroll
		for (int k = 0; k < 6; k++) {
			if (k == word) {
				mark = marks[k];
				marks[k] &= mark - 1;
			}
		}
		if (!mark)
			break;

		const int bit = __ffs(mark) - 1 + 32 * (word & 1);
		const int i = bit >> 3, j = bit & 7;
		vector w;
		float x[8], gain;
		int order;

		if (word < 4) {
			w.set = 1u << i | 1u << j;
			w.negative = word < 2 ? 0 : 1u << j;
		} else {
			w.set = 255;
			w.negative = hzi_shaped_signs((uint32_t)bit);
		}
#pragma unroll
		for (int l = 0; l < 8; l++)
			x[l] = w.set >> l & 1 ? w.negative >> l & 1 ? -e[l] : e[l] : 0;
		gain = sum_of(x);
		if (gain < 0) {
			gain = -gain;
			w.negative ^= w.set;
		}
		if (word < 4)
			order = 4 * bit + (int)(w.negative >> i & 1) +
				2 * (int)(w.negative >> j & 1);
		else
			order = 256 + (int)(w.negative & 127);
		gain = word < 4 ? gain : hzi_lmul(0.5f, gain);
		if (!(gain > most || (gain == most && order < best && found.set)))
			continue;
		move_point(p, w, x);
		if (!inside<SHAPING>(r, q, x))
			continue;
		most = gain;
		best = order;
		found = w;
		if (any)
			break;
	}
	return found;
}

/* As hzi_shaped_clip() */
template <int SHAPING>
HZ_DEVICE float clip(const hzi_lattice_rule &r, const float (&y)[8], float (&p)[8])
{
	const float q = (float)r.q, reach = reach_of(y);
	float z[8], e[8], size = 0, error;
	int exponent, limit, j = 1;

#pragma unroll
	for (int i = 0; i < 8; i++)
		size = fmaxf(size, fabsf(y[i]));
	frexpf(size, &exponent);
	frexpf(r.reach, &limit);
	if (exponent - 1 - limit > 0)
		j = 16 * (exponent - 1 - limit);
	for (;; j++) {
		const float factor = j < HZI_LATTICE_SHRINKS ? hzi_lattice_factor(&r, j) : 0;

		/* Of points p of the code <p, w> <= q; of the nearest <z - p, w> <= 1. */
		if (SHAPING == HZI_SHAPING_E8 && !(reach * factor < q + 1.001f))
			continue;
#pragma unroll
		for (int i = 0; i < 8; i++)
			z[i] = hzi_lmul(y[i], factor);
		nearest<SHAPING>(q, z, p);
		if (inside<SHAPING>(r, q, p))
			break;
	}
	error = error_of(y, p, e);
	for (int steps = 0; steps < 64; steps++) {
		const vector w = step<SHAPING>(r, copy_of(e), copy_of(p), 1, false);

		if (!w.set)
			break;
		move_point(p, w, p);
		error = error_of(y, p, e);
	}
	return error;
}

/*
 * Whether a point of the code other than p, the nearest to y, may have an error below `least`,
 * all in units of s^2. From p it differs by minimal vectors w, or by a sum of n of them which has
 * the squared length 2 n at least, so if no <y - p, w> exceeds 1 the error is no less than with
 * n = 1.
 */
HZ_DEVICE float other_bound(const float (&y)[8], const float (&p)[8], float error)
{
	float e[8];

	error_of(y, p, e);
	return error + fmaxf(1.998f - 2 * reach_of(e), 0);
}

/* ---- Stages ---------------------------------------------------------------------------------- */

static __device__ __noinline__ bool fits_somewhere(const hzi_lattice_rule &r, eight v)
{
	return hzi_shaped_fits(&r, v.v);
}

struct chosen {
	uint32_t label;
	int t, clipped;
};

/* hzi_shaped_choose(): blocks beyond what the stages can do */
static __device__ __noinline__ chosen choose_alone(const hzi_lattice_rule &r, eight v)
{
	int32_t g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
	chosen c = {0, 0, 0};

	c.clipped = hzi_shaped_choose(&r, v.v, &c.t, g);
	c.label = hzi_label_of(r.shaping, r.log2q, g);
	return c;
}

/* The block of the lane is done: stores its code and scale; returns whether it was clipped. */
template <int SHAPING>
HZ_DEVICE uint32_t store_block(const hzi_lattice_generic &p, const block_state &b)
{
	const hzi_lattice_rule &r = p.rule;
	const int t = (int)(b.flags >> 16 & 15);
	hzi_lattice_code code = code_at(p.codes, b.at.codes, b.at.unit);
	float size = 0, sum = 0;

	if (code.pack == HZI_LATTICE_LEVEL) {
		hzi_lattice_store(&code, 0, b.label);
	} else {
		int32_t digits[HZI_LATTICE_DIMS];

		hzi_lattice_unindex(&r, b.label, digits);
		hzi_lattice_put(&code, &r, digits);
		hzi_lattice_flush(&code);
	}
	p.t[b.at.t + b.at.unit * p.t_step] = (uint8_t)t;
	if (!p.overload)
		return 0;
	if (SHAPING == HZI_SHAPING_E8 || (b.flags & KNOWN))
		return !(b.flags & FITS);

	/* Rounding and a correction move coordinates by less than 1.5: none left the cube. */
	const float safe = 0.5f * (float)r.q - 1.5f;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		size = fmaxf(size, fabsf(b.v[i]));
		sum += fabsf(b.v[i]);
	}
	if ((b.flags & FITS) && hzi_lmul(size, r.inverse[t]) <= safe)
		return 0;
	/* The sum of |p_i - h| / 2 is less than that of |y_i| + sqrt(8) + 4. */
	if (size * r.inverse[r.largest] <= safe &&
	    (SHAPING == HZI_SHAPING_CUBE ||
	     sum * r.inverse[r.largest] < 2 * (float)r.q - 6.84f))
		return 0;
	return !fits_somewhere(r, copy_of(b.v));
}

/* What a warp works on: blocks first + lane + turn step */
struct warp_place {
	int64_t first, step;
	uint32_t lane;
};

/* find_row(), mostly with 32-bit divisions */
HZ_DEVICE row_offsets find_block(const hzi_lattice_generic &p, int64_t unit)
{
	row_offsets at = {0, 0, 0, 0, unit};

	if (p.units > UINT32_MAX)
		return find_row(p, unit);
	if (p.ndim > 0) {
		uint32_t row = (uint32_t)unit / (uint32_t)p.row_units;

		at.unit = (uint32_t)unit - row * (uint32_t)p.row_units;
		for (int d = p.ndim - 1; d >= 0; d--) {
			const uint32_t next = row / (uint32_t)p.shape[d];
			const uint32_t i = row - next * (uint32_t)p.shape[d];

			row = next;
			at.v += i * p.v_stride[d];
			at.codes += i * p.codes.stride[d];
			at.t += i * p.t_stride[d];
		}
	}
	return at;
}

static __device__ __noinline__ eight load_strided(const hzi_lattice_generic &p, int64_t row,
						  int64_t block)
{
	eight x;

	for (int i = 0; i < 8; i++)
		x.v[i] = block * 8 + i < p.n ? load_any(p.v_dtype, p.v, row + (block * 8 + i) *
								       p.v_step) : 0;
	return x;
}

/* Loads values; returns flags as hzi_lattice_map(). */
HZ_DEVICE int load_values(const hzi_lattice_generic &p, bool vectors, const row_offsets &at,
			  float (&v)[8])
{
	float most = 0;
	int kind = 0;

	if (!vectors) {
		const eight x = load_strided(p, at.v, at.unit);

#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = x.v[i];
	} else if (p.v_dtype == HZ_F32) {
		const float4 *src = (const float4 *)((const float *)p.v + at.v + at.unit * 8);
		const float4 a = src[0], b = src[1];

		v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
		v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
	} else {
		const uint4 a = *(const uint4 *)((const uint16_t *)p.v + at.v + at.unit * 8);
		const uint32_t x[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = p.v_dtype == HZ_F16 ? f16_low(x[i]) : bf16_low(x[i]);
			v[2 * i + 1] = p.v_dtype == HZ_F16 ? f16_low(x[i] >> 16) : bf16_high(x[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		most = max_nan(most, fabsf(v[i]));
	if (most <= FLT_MAX)
		return 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		kind |= fabsf(v[i]) > FLT_MAX ? HZI_LATTICE_IS_INF : 0;
		kind |= v[i] != v[i] ? HZI_LATTICE_IS_NAN : 0;
		v[i] = hzi_lclamp(v[i], FLT_MAX);
	}
	return kind;
}

/* Appends the blocks of lanes that want that; returns the slot of the lane. */
HZ_DEVICE int append(queue &to, int &count, bool wants, uint32_t place, const block_state &b)
{
	const uint32_t all = __ballot_sync(~0u, wants);
	const int slot = count + __popc(all & ((1u << (threadIdx.x & 31)) - 1));

	if (wants) {
		to.place[slot] = place;
		to.label[slot] = b.label;
		to.flags[slot] = b.flags;
		to.least[slot] = b.least;
	}
	count += __popc(all);
	__syncwarp();
	return slot;
}

HZ_DEVICE int64_t place_of(const warp_place &warp, uint32_t place)
{
	return warp.first + (place & 31) + (place >> 5) * warp.step;
}

/* Loads the block in a slot; returns its place. */
HZ_DEVICE uint32_t take(const hzi_lattice_generic &p, bool vectors, const warp_place &warp,
			const queue &from, int slot, block_state &b)
{
	b.label = from.label[slot];
	b.flags = from.flags[slot];
	b.least = from.least[slot];
	b.at = find_block(p, place_of(warp, from.place[slot]));
	load_values(p, vectors, b.at, b.v);
	return from.place[slot];
}

/* Keeps p if it is nearer, at scale t; of equals the first scale. Outside: adds t to the flags. */
template <int SHAPING>
HZ_DEVICE void try_scale(const hzi_lattice_rule &r, const scale_table &table, int t, block_state &b)
{
	const float q = (float)r.q, square = hzi_lmul(table.scale[t], table.scale[t]);
	float y[8], p[8], error;

	divide(b.v, table.inverse[t], y);
	error = nearest<SHAPING>(q, y, p);
	if (SHAPING == HZI_SHAPING_CUBE || inside<SHAPING>(r, q, p)) {
		error = hzi_lmul(error, square);
		if ((b.flags & FOUND) && !(error < b.least || (error == b.least &&
						t < (int)(b.flags >> 16 & 15))))
			return;
		b.least = error;
		b.label = label_of<SHAPING>(r, p);
		b.flags = (b.flags & 0xffff) | (uint32_t)t << 16 | FOUND | FITS;
	} else if (!(b.flags & FOUND) ||
		   0.9999f * square * other_bound(y, p, error) < b.least) {
		b.flags |= 1u << t;
	}
}

/* Whether the scales of the lane may give a nearer point */
template <int SHAPING>
HZ_DEVICE bool filter_scales(const hzi_lattice_rule &r, const scale_table &table, block_state &b)
{
	const float q = (float)r.q;
	uint32_t near = 0;

	if (!(b.flags & FOUND))
		return true;
	for (uint32_t left = b.flags & 0xffff; left; left &= left - 1) {
		const int t = __ffs(left) - 1;
		const float square = hzi_lmul(table.scale[t], table.scale[t]);
		const float least = b.least / square;
		float y[8], p[8], e[8], error, far;

		divide(b.v, table.inverse[t], y);
		nearest<SHAPING>(q, y, p);
		error = error_of(y, p, e);
		if (!(0.9999f * error < least))
			continue;
		/* Points that differ from p by a longer vector than the minimal ones */
		far = 1.99f - sqrtf(error);
		if (!(far > 0 && least < far * far) ||
		    step<SHAPING>(r, copy_of(e), copy_of(p), 0.999f + 0.5f * (error - least),
				  true).set)
			near |= 1u << t;
	}
	b.flags = (b.flags & ~0xffffu) | near;
	return near != 0;
}

/* The second half of hzi_shaped_choose() */
template <int SHAPING>
HZ_DEVICE void clip_scales(const hzi_lattice_rule &r, const scale_table &table, block_state &b)
{
	const float q = (float)r.q;
	uint32_t left = b.flags & 0xffff;

	while (left) {
		const int t = 31 - __clz(left);
		const float square = hzi_lmul(table.scale[t], table.scale[t]);
		float y[8], p[8], error;

		left ^= 1u << t;
		divide(b.v, table.inverse[t], y);
		error = nearest<SHAPING>(q, y, p);
		if (SHAPING == HZI_SHAPING_E8)
			error = fmaxf(error, beyond_of(q, y));
		if ((b.flags & FOUND) && !(hzi_lmul(error, square) < b.least))
			continue;
		error = hzi_lmul(clip<SHAPING>(r, y, p), square);
		if ((b.flags & FOUND) && !(error < b.least))
			continue;
		b.least = error;
		b.label = label_of<SHAPING>(r, p);
		b.flags = (uint32_t)t << 16 | FOUND |
			  (SHAPING == HZI_SHAPING_E8 ? b.flags & FITS : 0);
	}
}

/* Bounds of b.least in their units; see bounds_of() */
HZ_DEVICE float slack_of(const float (&v)[8], float inverse)
{
	float sum = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum = fmaf(v[i] * inverse, v[i] * inverse, sum);
	return 1.06e-4f * sum + 2e-7f;
}

HZ_DEVICE float limit_of(const block_state &b, float inverse, float slack)
{
	return 1.00001f * (b.least * inverse * inverse) + slack;
}

/*
 * Loads a block, computes its bounds, and the nearest point at the scale that has the least one.
 * Returns whether it must wait for other scales.
 */
template <int SHAPING>
HZ_DEVICE bool first_scale(const hzi_lattice_generic &p, const scale_table &table,
			   uint32_t (*bounds)[32], bool vectors, int pairs, bool active,
			   uint32_t &nonfinite, block_state &b)
{
	const hzi_lattice_rule &r = p.rule;
	const float q = (float)r.q, inverse = r.inverse[r.largest];
	const uint32_t lane = threadIdx.x % 32;
	const int kind = active ? load_values(p, vectors, b.at, b.v) : 0;
	uint32_t key = 0x7c007c00, most = 0x7c007c00;
	bound_input input;
	float size = 0;

	nonfinite += kind != 0;
	b.least = INFINITY;
	if (kind & HZI_LATTICE_IS_NAN) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			b.v[i] = 0;
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		size = fmaxf(size, fabsf(b.v[i]));
	const float largest = hzi_lmul(size, inverse);

	prepare_bounds<SHAPING>(b.v, q, inverse, input);
	for (int k = 0; k < pairs; k++) {
		uint32_t outside, low = bounds_of<SHAPING>(input, q, table.ratio[k],
							   table.square[k], outside);

		bounds[k][lane] = low;
		if (SHAPING != HZI_SHAPING_CUBE)
			low = add_f16x2(low, HZ_ASM_U32("fma.rn.sat.f16x2 %0, %1, %2, %3;",
							"r"(outside), "r"(0x50005000), "r"(0)));
		key = min_x2<HZ_F16>(key, bound_key(low, k));
	}
	int t = (int)(least_of(key) & 15);

	if (size == 0)
		t = 0;
	if (active && (largest > 4 * q || !table.usable)) {
		const chosen c = choose_alone(r, copy_of(b.v));

		b.label = c.label;
		b.flags = (uint32_t)c.t << 16 | FOUND | KNOWN | (c.clipped ? 0 : FITS);
		return false;
	}
	if (size == 0 || !(largest <= q)) {
		/* Of 0 the first scale is right; bounds are not made for what is so large. */
		for (int k = 0; k < 2 * pairs; k++)
			((uint16_t *)&bounds[k >> 1][lane])[k & 1] =
				size == 0 || k >= r.scales ? 0x7c00 : 0;
		if (size != 0)
			return active;
	}
	((uint16_t *)&bounds[t >> 1][lane])[t & 1] = 0x7c00;
	if (active)
		try_scale<SHAPING>(r, table, t, b);
	for (int k = 0; k < pairs; k++)
		most = min_x2<HZ_F16>(most, bounds[k][lane]);
	return active && (!(b.flags & FOUND) || f16_low(min_x2<HZ_F16>(most, most >> 16)) <
						limit_of(b, inverse, slack_of(b.v, inverse)));
}

/* Tries scales in the order of their bounds; returns whether nearest points were outside. */
template <int SHAPING>
HZ_DEVICE bool try_scales(const hzi_lattice_rule &r, const scale_table &table,
			  uint32_t (*bounds)[SLOTS], int pairs, int slot, block_state &b)
{
	const float inverse = r.inverse[r.largest], slack = slack_of(b.v, inverse);
	const uint16_t infinite = 0x7c00;

	for (;;) {
		const float limit = limit_of(b, inverse, slack);
		uint32_t key = 0x7c007c00;

		for (int k = 0; k < pairs; k++)
			key = min_x2<HZ_F16>(key, bound_key(bounds[k][slot], k));
		key = least_of(key);

		const int t = (int)(key & 15);
		uint16_t *const own = (uint16_t *)&bounds[t >> 1][slot] + (t & 1);
		const float bound = f16_low(*own);

		if (!(f16_low(key & 0xfff0) < limit) || *own == infinite)
			break;
		*own = infinite;
		if (bound < limit)
			try_scale<SHAPING>(r, table, t, b);
	}
	return b.flags & 0xffff;
}

template <int SHAPING>
HZ_DEVICE void encode_warp(const hzi_lattice_generic &p, const scale_table &table, warp_memory &m,
			   bool vectors)
{
	const hzi_lattice_rule &r = p.rule;
	const int pairs = (r.scales + 1) / 2;
	const warp_place warp = {
		(int64_t)blockIdx.x * blockDim.x + threadIdx.x - threadIdx.x % 32,
		(int64_t)gridDim.x * blockDim.x, threadIdx.x % 32
	};
	uint32_t overloaded = 0, nonfinite = 0, turn = 0;
	int count[QUEUES] = {0, 0, 0};
	bool last = warp.first >= p.units;

	for (;;) {
		const int stage = count[CLIP] >= 32 ? CLIP : count[FILTER] >= 32 ? FILTER :
				  count[TRIES] >= 32 ? TRIES : !last ? QUEUES :
				  count[TRIES] ? TRIES : count[FILTER] ? FILTER : CLIP;
		block_state b = {};
		uint32_t place = 0;
		int slot = 0, waits = QUEUES;
		bool active;

		if (stage < QUEUES) {
			const int all = stage == TRIES ? count[TRIES] : stage == FILTER ?
					count[FILTER] : count[CLIP];
			const int begin = all > 32 ? all - 32 : 0;

			if (!all)
				break;
			slot = begin + (int)warp.lane;
			active = slot < all;
			if (stage == TRIES)
				count[TRIES] = begin;
			else if (stage == FILTER)
				count[FILTER] = begin;
			else
				count[CLIP] = begin;
			if (active)
				place = take(p, vectors, warp, m.queues[stage], slot, b);
		} else {
			active = warp.first + warp.lane + turn * warp.step < p.units;
			place = turn++ << 5 | warp.lane;
			last = warp.first + turn * warp.step >= p.units;
			if (active)
				b.at = find_block(p, place_of(warp, place));
			if (first_scale<SHAPING>(p, table, m.bounds, vectors, pairs, active,
						 nonfinite, b))
				waits = TRIES;
		}
		if constexpr (SHAPING != HZI_SHAPING_CUBE) {
			if (stage == CLIP && active)
				clip_scales<SHAPING>(r, table, b);
			if (stage == FILTER && active && filter_scales<SHAPING>(r, table, b))
				waits = CLIP;
		}
		if (stage == TRIES && active && try_scales<SHAPING>(r, table, m.waiting, pairs,
								    slot, b))
			waits = FILTER;
		__syncwarp();
		if (stage == QUEUES) {
			slot = append(m.queues[TRIES], count[TRIES], waits == TRIES, place, b);
			for (int k = 0; k < pairs && waits == TRIES; k++)
				m.waiting[k][slot] = m.bounds[k][warp.lane];
		} else if (stage == TRIES) {
			append(m.queues[FILTER], count[FILTER], waits == FILTER, place, b);
		} else if (stage == FILTER) {
			append(m.queues[CLIP], count[CLIP], waits == CLIP, place, b);
		}
		__syncwarp();
		if (active && waits == QUEUES)
			overloaded += store_block<SHAPING>(p, b);
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

/* Whether the values of each block are 16 or 32 aligned bytes */
HZ_DEVICE bool has_vectors(const hzi_lattice_generic &p)
{
	const int bytes = p.v_dtype == HZ_F32 ? 4 : 2;
	bool good = p.v_step == 1 && p.n % 8 == 0 && (uintptr_t)p.v % 16 == 0 &&
		    (p.v_dtype == HZ_F32 || p.v_dtype == HZ_F16 || p.v_dtype == HZ_BF16);

	for (int d = 0; d < p.ndim; d++)
		good = good && p.v_stride[d] * bytes % 16 == 0;
	return good;
}

/* Bounds need scales whose squares f32 holds, and ratios that f16 does. */
HZ_DEVICE void make_table(const hzi_lattice_rule &r, scale_table &table)
{
	const int k = threadIdx.x;

	if (k < HZ_LATTICE_MAXBANKS) {
		const float s = k < r.scales ? r.scale[k] : 1;
		const float ratio = s / r.scale[r.largest];

		table.scale[k] = s;
		table.inverse[k] = k < r.scales ? r.inverse[k] : 1;
		((uint16_t *)table.ratio)[k] = (uint16_t)both(1 / ratio);
		((uint16_t *)table.square)[k] =
			(uint16_t)(k < r.scales ? both(0.979f * ratio * ratio) : 0x7fff);
	}
	if (k == 0) {
		bool usable = r.scale[r.largest] < 1e15f;

		for (int i = 0; i < r.scales; i++)
			usable = usable && r.scale[i] > 1e-15f &&
				 r.scale[r.largest] < 1000 * r.scale[i];
		table.usable = usable;
	}
	__syncthreads();
}

#define ENCODE(name, shaping, blocks) \
	extern "C" __global__ void \
		__launch_bounds__(HZI_LATTICE_THREADS, HZ_BLOCKS(HZI_LATTICE_THREADS, blocks)) \
		lattice_encode_##name(const __grid_constant__ hzi_lattice_generic p) \
	{ \
		__shared__ warp_memory memory[WARPS]; \
		__shared__ scale_table table; \
 \
		make_table(p.rule, table); \
		encode_warp<shaping>(p, table, memory[threadIdx.x / 32], has_vectors(p)); \
	}

/* In the order of enum HZI_SHAPING_*; blocks an SM: see gpu/lattice/generic.c */
ENCODE(cube, HZI_SHAPING_CUBE, 5)
ENCODE(d8star, HZI_SHAPING_D8STAR, 5)
ENCODE(e8_label, HZI_SHAPING_E8, 5)
