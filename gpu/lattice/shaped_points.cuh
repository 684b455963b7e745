/*
 * shaped_points.cuh - points of codes with a shaping other than NESTED: the nearest one, labels,
 * bounds of the error, moves by minimal vectors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The results are those of lib/lattice/shaped.h, bit for bit. Points p are twice the coordinates, as
 * integers in f32.
 */
#ifndef HZI_GPU_LATTICE_SHAPED_POINTS_CUH
#define HZI_GPU_LATTICE_SHAPED_POINTS_CUH

#include "gpu/device/dtype.cuh"
#include "lib/lattice/shaped.h"

#define ROUND_BIAS 12582912.0f	/* 1.5 2^23: adding it to y leaves rint(y) in the low bits. */

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

/*
 * Fields of a point's label before they are reduced, n_i + 64, as bytes. Even numbers q / 2 and
 * more that are added change neither fields nor whether turns are odd.
 */
struct packed_fields {
	uint32_t word[2], h;
};

HZ_DEVICE packed_fields pack_fields(float q, const float (&p)[8])
{
	packed_fields f;

	f.h = (uint32_t)integer_of(p[0]) & 1;

	const float offset = 128.5f * (q - (float)f.h) + 64 * 257;

#pragma unroll
	for (int k = 0; k < 2; k++) {
		uint32_t half[2];

#pragma unroll
		for (int j = 0; j < 2; j++) {
			const float low = p[4 * k + 2 * j], high = p[4 * k + 2 * j + 1];

			half[j] = __float_as_uint(fmaf(0.5f, low, fmaf(128, high, offset)) +
						  ROUND_BIAS);
		}
		f.word[k] = __byte_perm(half[0], half[1], 0x5410);
	}
	return f;
}

/*
 * As hzi_label_of(): fields n_i, whose tops are flipped if that of n_0 is set; of E8 also the
 * parity of the turns by q in all coordinates, and that of the tops
 */
struct label_fields {
	uint32_t n[2], turns, tops;
};

HZ_DEVICE label_fields reduce_fields(int log2q, const packed_fields &f)
{
	const uint32_t q = 1u << log2q;
	const uint32_t flip = f.word[0] & q / 2;
	uint32_t all = f.word[0] ^ f.word[1];
	label_fields l;

#pragma unroll
	for (int k = 0; k < 2; k++)
		l.n[k] = (f.word[k] & (q - 1) * 0x01010101) ^ flip * 0x01010101;
	all ^= all >> 16;
	all ^= all >> 8;
	l.tops = all >> (log2q - 1) & 1;
	l.turns = (all >> log2q & 1) ^ (flip ? l.tops : 0);
	return l;
}

/* hzi_label_has() for E8, points with |p_i| <= 2 q + 2 */
HZ_DEVICE bool has_label(int log2q, const float (&p)[8])
{
	const uint32_t q = 1u << log2q;
	const packed_fields f = pack_fields((float)q, p);
	const label_fields l = reduce_fields(log2q, f);
	const uint32_t other = l.turns ^ l.tops;
	uint32_t w[2], keys[4], sum = 0, differ[2];	/* w: the point of CUBE, plus q */

#pragma unroll
	for (int k = 0; k < 2; k++) {
		w[k] = 2 * l.n[k] + f.h * 0x01010101;

		const uint32_t size = __vabsdiffu4(w[k], q * 0x01010101);
		const uint32_t key = size * 8 + (k ? 0x00010203 : 0x04050607);

		sum += __vsadu4(w[k], q * 0x01010101);
		keys[2 * k] = key & 0x00ff00ff;
		keys[2 * k + 1] = key >> 8 & 0x00ff00ff;
	}
	uint32_t most = max_x2<HZ_F16>(max_x2<HZ_F16>(keys[0], keys[1]),
				       max_x2<HZ_F16>(keys[2], keys[3]));
	uint32_t least = min_x2<HZ_F16>(min_x2<HZ_F16>(keys[0], keys[1]),
					min_x2<HZ_F16>(keys[2], keys[3]));

	most = max(most & 0xffff, most >> 16);
	least = min(least & 0xffff, least >> 16);

	const bool flipped = sum + l.turns * (2 * q - 2 * (most >> 3)) >
			     4 * q + 2 * other * (least >> 3);
	const uint32_t moved = flipped ? least : most, at = 7 - (moved & 7);

#pragma unroll
	for (int k = 0; k < 2; k++) {
		w[k] ^= flipped ? q * 0x01010101 : 0;
		differ[k] = (2 * f.word[k] + f.h * 0x01010101) ^ 0x80808080 ^ w[k];
	}
	if (flipped ? other : l.turns) {
		const uint32_t own = __byte_perm(w[0], w[1], at) & 255;
		const uint32_t to = (own + (own >= q ? 0 - 2 * q : 2 * q)) & 255;

		differ[0] ^= at < 4 ? (own ^ to) << 8 * at : 0;
		differ[1] ^= at < 4 ? 0 : (own ^ to) << 8 * (at & 3);
	}
	return !(differ[0] | differ[1]);
}

/* hzi_shaped_inside() */
template <int SHAPING>
HZ_DEVICE bool inside(const hzi_lattice_rule &r, float q, const float (&p)[8])
{
	if constexpr (SHAPING == HZI_SHAPING_E8) {
		const float reach = reach_of(p);

		return reach < 2 * q || (reach == 2 * q && has_label(r.log2q, p));
	} else {
		const float h = (float)(integer_of(p[0]) & 1);
		float most = 0, sum = 0;

#pragma unroll
		for (int i = 0; i < 8; i++) {
			most = fmaxf(most, fabsf(p[i] + 0.5f));	/* -q <= p_i < q */
			sum += fabsf(p[i] - h);
		}
		return most < q && (SHAPING == HZI_SHAPING_CUBE || sum < 4 * q ||
				    (sum == 4 * q && p[0] < h));
	}
}

/* hzi_label_of() of a point of the code */
template <int SHAPING>
HZ_DEVICE uint32_t label_of(const hzi_lattice_rule &r, const float (&p)[8])
{
	const int b = r.log2q;
	const packed_fields f = pack_fields((float)r.q, p);
	const label_fields l = reduce_fields(b, f);
	uint32_t label = 0;

#pragma unroll
	for (int k = 0; k < 2; k++) {
		uint32_t x = l.n[k];

		x = (x | x >> (8 - b)) & ((1u << 2 * b) - 1) * 0x10001;
		x = (x | x >> (16 - 2 * b)) & ((1u << 4 * b) - 1);
		label |= x << 4 * b * k;
	}
	label = (label & ~(1u << 7 * b)) | f.h << 7 * b;
	return SHAPING == HZI_SHAPING_E8 ? label | l.turns << (b - 1) : label;
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
		y[i] = hzi_lmul(v[i], inverse);
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

HZ_DEVICE uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
	return HZ_ASM_U32("sub.rn.f16x2 %0, %1, %2;", "r"(a), "r"(b));
}

HZ_DEVICE uint32_t abs_f16x2(uint32_t a)
{
	return HZ_ASM_U32("abs.f16x2 %0, %1;", "r"(a));
}

/* NaN if either operand is */
HZ_DEVICE uint32_t max_nan_x2(uint32_t a, uint32_t b)
{
	return HZ_ASM_U32("max.NaN.f16x2 %0, %1, %2;", "r"(a), "r"(b));
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
 * errors of f16. halves: ones where the half-integers are nearer.
 *
 * a = y - rint(y), |a| <= 1/2; the squared distance from Z^8 is S = sum a^2, from Z^8 + 1/2 it is
 * sum (1/2 - |a|)^2 = S - sum |a| + 2. If the sum of rint(y) is odd, S grows by 1 - 2 max |a|; the
 * sum of floor(y), which is odd if that of rint(y) and of negative a is, makes the other grow by
 * 2 min |a|. Unless E8, y beyond the cube is rounded to its end. u = y + 1536 is rint(y) in its low
 * bits. Points of the code have <y, w> <= q, or with D8STAR sum |y_i| <= 2 q + 4: what y exceeds
 * that by is a distance too.
 *
 * f16 rounds y and the ratio of the scales: y is off by d = 2^-10 |y| at most, and with that the
 * error by 2 d sqrt(error) <= error / 64 + 64 d^2; 64 d^2 is in `slack`. Sums are off by .0115.
 */
#define SLACK 6.3e-5f	/* times the sum of y^2 */

template <int SHAPING>
HZ_DEVICE uint32_t bounds_of(const bound_input &b, float q, uint32_t ratio, uint32_t square,
			     uint32_t &outside, uint32_t &halves)
{
	const uint32_t bias = 0x66006600;	/* 1536 */
	const uint32_t minus_two = 0xc000c000, one = 0x3c003c00, two = 0x40004000;
	/* difference: the half-integers' sum less that of the integers */
	uint32_t squares = both(-0.0115f), difference = two, parity = 0, most = 0, least = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t u = fma_f16x2(b.y[i], ratio, bias), a;

		if (SHAPING != HZI_SHAPING_E8)
			u = min_x2<HZ_F16>(u, b.end[i]);
		a = fma_f16x2(b.y[i], ratio, sub_f16x2(bias, u));
		squares = fma_f16x2(a, a, squares);
		difference = sub_f16x2(difference, abs_f16x2(a));
		parity ^= u;
		most = i ? extreme_x2<true>(most, a) : a;
		least = i ? extreme_x2<false>(least, a) : a;
	}
	/* 1 and 2 where the sums are odd */
	const uint32_t odd = (parity & 0x00010001) * 0x3c00;
	const uint32_t odd_half = ((parity ^ most >> 15 ^ b.signs) & 0x00010001) * 0x4000;
	const uint32_t cost = HZ_ASM_U32("fma.rn.relu.f16x2 %0, %1, %2, %3;",
					 "r"(abs_f16x2(most)), "r"(minus_two), "r"(one));
	const uint32_t whole = fma_f16x2(cost, odd, squares);
	const uint32_t half = fma_f16x2(abs_f16x2(least), odd_half,
					add_f16x2(squares, difference));
	uint32_t low = mul_f16x2(min_x2<HZ_F16>(whole, half), square);

	halves = HZ_ASM_U32("set.lt.u32.f16x2 %0, %1, %2;", "r"(half), "r"(whole));
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
	const uint32_t end = both(1535 + 0.5f * q);
	float sum = 0;

	b.signs = 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float y = v[i] * inverse;

		b.y[i] = both(SHAPING == HZI_SHAPING_E8 ? y : fabsf(y));
		/* One more for those below 0, in the last bit */
		b.end[i] = end + (__float_as_uint(y) >> 31) * 0x00010001;
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

/*
 * A set of minimal vectors, of each pair +-w one with its own bit: of words 0 and 1, bit 8 i + j is
 * e_i + e_j, i < j; of words 2 and 3 e_i - e_j; of words 4 and 5, bit k is that with the signs
 * hzi_shaped_signs(k)
 */
#define WORDS 6

struct vector_set {
	uint32_t word[WORDS];
};

/* The vectors whose product with vector `bit` is above 0; below 0 */
struct vector_products {
	uint32_t word[2][WORDS];
};

constexpr int make_sign(uint32_t bit, int i)
{
	if (bit < 128) {
		const int a = (int)(bit & 63) >> 3, b = (int)bit & 7;

		return i == a ? 2 : i == b ? bit < 64 ? 2 : -2 : 0;
	}
	const uint32_t k = bit - 128, x = k ^ k >> 4, y = x ^ x >> 2;
	const uint32_t signs = k | ((y ^ y >> 1) & 1) << 7;

	return signs >> i & 1 ? -1 : 1;
}

constexpr bool is_vector(uint32_t bit)
{
	return bit >= 128 || ((bit & 63) >> 3) < (bit & 7);
}

struct product_table {
	vector_products of[32 * WORDS];
};

constexpr product_table make_products()
{
	product_table t = {};

	for (uint32_t a = 0; a < 32 * WORDS; a++) {
		for (uint32_t b = 0; b < 32 * WORDS && is_vector(a); b++) {
			int sum = 0;

			for (int i = 0; i < 8 && is_vector(b); i++)
				sum += make_sign(a, i) * make_sign(b, i);
			t.of[a].word[0][b / 32] |= sum > 0 ? 1u << b % 32 : 0;
			t.of[a].word[1][b / 32] |= sum < 0 ? 1u << b % 32 : 0;
		}
	}
	return t;
}

static __device__ const product_table products = make_products();

HZ_DEVICE vector vector_of(int bit)
{
	const uint32_t i = 1u << (bit >> 3 & 7), j = 1u << (bit & 7);
	vector w = {i | j, bit < 64 ? 0 : j};

	if (bit >= 128)
		w = {255, hzi_shaped_signs((uint32_t)bit - 128)};
	return w;
}

/* <x, w>, rounded as in hzi_shaped_step() */
HZ_DEVICE float product(const float (&x)[8], vector w)
{
	float s[8];

#pragma unroll
	for (int i = 0; i < 8; i++)
		s[i] = w.set >> i & 1 ? w.negative >> i & 1 ? -x[i] : x[i] : 0;
	return w.set == 255 ? hzi_lmul(0.5f, sum_of(s)) : sum_of(s);
}

HZ_DEVICE void move_point(const float (&p)[8], vector w, float (&to)[8])
{
	const float size = w.set == 255 ? 1.0f : 2.0f;

#pragma unroll
	for (int i = 0; i < 8; i++)
		to[i] = p[i] + (w.set >> i & 1 ? w.negative >> i & 1 ? -size : size : 0);
}

/*
 * For each vector w: f(word, <x, w>), but twice that of (+-1/2)^8; from the last bit of a word to
 * the first one. skip(word, n) stands for n bits without a vector.
 */
template <class F, class S>
HZ_DEVICE void for_products(const float (&x)[8], F f, S skip)
{
	float lower[16], upper[16];

#pragma unroll
	for (int i = 6; i >= 0; i--) {
#pragma unroll
		for (int j = 7; j > i; j--) {
			f(i >> 2, hzi_ladd(x[i], x[j]));
			f(2 + (i >> 2), hzi_ladd(x[i], -x[j]));
		}
		skip(i >> 2, i + 1);
		skip(2 + (i >> 2), i + 1);
	}
#pragma unroll
	for (uint32_t k = 0; k < 16; k++) {
		lower[k] = hzi_shaped_four(x, k);
		upper[k] = hzi_shaped_four(&x[4], k);
	}
#pragma unroll
	for (int k = 63; k >= 0; k--)
		f(4 + k / 32,
		  hzi_ladd(lower[k & 15], upper[hzi_shaped_signs((uint32_t)k) >> 4]));
}

/* Appends the sign of x to a word of a set, below what it has. */
HZ_DEVICE void append_sign(uint32_t &word, float x)
{
	word = __funnelshift_l(__float_as_uint(x), word, 1);
}

/* The first vector of a set, which is removed; -1: none is left. */
HZ_DEVICE int next_vector(vector_set &s)
{
	int word = 0;
	uint32_t mark = 0;

#pragma unroll
	for (int k = WORDS - 1; k >= 0; k--)
		word = s.word[k] ? k : word;
#pragma unroll
	for (int k = 0; k < WORDS; k++) {
		if (k == word) {
			mark = s.word[k];
			s.word[k] &= mark - 1;
		}
	}
	return mark ? 32 * word + __ffs(mark) - 1 : -1;
}

HZ_DEVICE bool is_empty(const vector_set &s)
{
	return !(s.word[0] | s.word[1] | s.word[2] | s.word[3] | s.word[4] | s.word[5]);
}

HZ_DEVICE int contains(const vector_set &s, int bit)
{
	uint32_t word = 0;

#pragma unroll
	for (int k = 0; k < WORDS; k++)
		word = bit >> 5 == k ? s.word[k] : word;
	return (int)(word >> (bit & 31) & 1);
}

HZ_DEVICE int size_of(const vector_set &s)
{
	int n = 0;

#pragma unroll
	for (int k = 0; k < WORDS; k++)
		n += __popc(s.word[k]);
	return n;
}

/*
 * E8: leaves those of moves +-w from p / 2 (minus: in the set `minus`) after which <p, f> <= 2 q
 * for all minimal vectors f. Before, <p, f> is 2 q + 2 k; as <w, f> is -2 to 2, and 2 for f alone,
 * the limit holds for k < -1.
 */
HZ_DEVICE void keep_inside(float q, const float (&p)[8], bool outside, const vector_set &minus,
			   vector_set &moves)
{
	const float limit = 2 * q;
	vector_set below = {}, facets = {}, negative = {};

	if (reach_of(p) < limit - 2)
		return;
	for_products(p, [&](int word, float x) {
		const float scale = word < 4 ? 1.0f : 0.5f;

		append_sign(below.word[word], fmaf(-scale, fabsf(x), limit - 3));
		append_sign(facets.word[word], fmaf(-scale, fabsf(x), limit - 1));
		append_sign(negative.word[word], x);
	}, [&](int word, int n) {
		below.word[word] <<= n;
		facets.word[word] <<= n;
		negative.word[word] <<= n;
	});
#pragma unroll
	for (int k = 0; k < WORDS; k++)
		moves.word[k] &= ~(below.word[k] & ~facets.word[k] &
				   ~(negative.word[k] ^ minus.word[k]));
	/* The caller looks at what is left: few moves are sooner tested there. */
	if (2 * size_of(moves) <= size_of(facets))
		return;
	for (int bit; !is_empty(moves) && (bit = next_vector(facets)) >= 0;) {
		const vector_products &t = products.of[bit];
		const int up = contains(negative, bit);
		float over = 0;

		if (outside)
			over = fabsf(product(p, vector_of(bit))) - limit;
#pragma unroll
		for (int k = 0; k < WORDS; k++) {
			const uint32_t above = (t.word[up][k] & ~minus.word[k]) |
					       (t.word[!up][k] & minus.word[k]);
			const uint32_t under = (t.word[!up][k] & ~minus.word[k]) |
					       (t.word[up][k] & minus.word[k]);
			const uint32_t own = bit >> 5 == k ? 1u << (bit & 31) : 0;

			moves.word[k] &= over == 0 ? ~above : over == 2 ? under : over == 4 ?
					 own & (up ? ~minus.word[k] : minus.word[k]) : 0;
		}
	}
}

/* Bits 8 i .. 8 i + 7 where bit i of 4 is set; bits 8 i + j where bit j of 8 is */
HZ_DEVICE uint32_t rows_of(uint32_t x)
{
	return (x & 1 | (x & 2) << 7 | (x & 4) << 14 | (x & 8) << 21) * 255;
}

HZ_DEVICE uint32_t columns_of(uint32_t x)
{
	return x * 0x01010101;
}

/* Bits of a + b + c: the sum; the carry */
HZ_DEVICE uint32_t add_bits(uint32_t a, uint32_t b, uint32_t c, uint32_t &carry)
{
	carry = (a & b) | (a & c) | (b & c);
	return a ^ b ^ c;
}

/*
 * D8STAR: leaves out moves +-w from p / 2 (minus: in the set `minus`) that leave the code, but
 * for points on its border. A coordinate p_i changes by 2, so |p_i - h| does, and
 * their sum by 4, 0 or -4. (+-1/2)^8 changes |p_i - h| by 2 or 0: for h = 0 where it moves down, by
 * -2 if p_i > 0; for h = 1 where it moves up, by -2 if p_i < 1.
 */
HZ_DEVICE void keep_in_d8star(float q, const float (&p)[8], const vector_set &minus,
			      vector_set &moves)
{
	const uint32_t pattern[5] = {0xaaaaaaaa, 0xcccccccc, 0xf0f0f0f0, 0xff00ff00, 0xffff0000};
	const bool odd = integer_of(p[0]) & 1;
	const float h = odd;
	uint32_t can[2] = {0, 0}, grows[2] = {0, 0};	/* up and down, bit i */
	uint32_t turned[2][8];	/* of words 4 and 5: what adds 2 to the sum, less 2 `inwards` */
	float room = 4 * q, inwards = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float d = p[i] - h;
		const bool in = odd ? d < 0 : d > 0;
		const uint32_t negative = i < 5 ? pattern[i] : i < 7 ? 0 : 0x96696996;

		room -= fabsf(d);
		inwards += in ? 1 : 0;
		can[0] |= p[i] < q - 2 ? 1u << i : 0;
		can[1] |= p[i] >= 2 - q ? 1u << i : 0;
		grows[0] |= d >= 0 ? 1u << i : 0;
		grows[1] |= d <= 0 ? 1u << i : 0;
#pragma unroll
		for (int k = 4; k < 6; k++) {
			const bool other = k == 5 && (i == 5 || i == 7);
			const uint32_t down = (other ? ~negative : negative) ^ minus.word[k];

			if (p[i] >= q - 1)
				moves.word[k] &= down;
			if (p[i] < 1 - q)
				moves.word[k] &= ~down;
			turned[k - 4][i] = down ^ (odd != in ? ~0u : 0);
		}
	}
	/* Of the sum of the bits, 0 to 8, what is above `limit` leaves the code. */
	const int limit = (int)fminf(inwards + 0.5f * room, 8);

#pragma unroll
	for (int k = 4; k < 6; k++) {
		const uint32_t (&x)[8] = turned[k - 4];
		uint32_t c[7], bits[4], above = 0, equal = ~0u;
		const uint32_t a = add_bits(x[0], x[1], x[2], c[0]);
		const uint32_t b = add_bits(x[3], x[4], x[5], c[1]);
		const uint32_t d = add_bits(a, b, x[6], c[2]);

		bits[0] = add_bits(d, x[7], 0, c[3]);

		const uint32_t e = add_bits(c[0], c[1], c[2], c[4]);

		bits[1] = add_bits(e, c[3], 0, c[5]);
		bits[2] = add_bits(c[4], c[5], 0, bits[3]);
#pragma unroll
		for (int i = 3; i >= 0; i--) {
			const uint32_t own = limit >> i & 1 ? ~0u : 0;

			above |= equal & bits[i] & ~own;
			equal &= ~(bits[i] ^ own);
		}
		moves.word[k] &= limit < 0 ? 0 : ~above;
	}
#pragma unroll
	for (int k = 0; k < 4; k++) {
		uint32_t keep = 0;

#pragma unroll
		for (int down = 0; down < 2; down++) {
			const int other = down ^ k >> 1;
			const uint32_t i = grows[down] >> 4 * (k & 1), j = grows[other];
			const uint32_t both_can = rows_of(can[down] >> 4 * (k & 1)) &
						  columns_of(can[other]);
			const uint32_t fits = room >= 4 ? ~0u :
					      room >= 0 ? ~(rows_of(i) & columns_of(j)) :
					      room >= -4 ? ~(rows_of(i) | columns_of(j)) : 0;

			keep |= both_can & fits & (down ? minus.word[k] : ~minus.word[k]);
		}
		moves.word[k] &= keep;
	}
}

/*
 * The minimal vector w of E8 that has the largest <e, w> above `most`, of those that lead from p / 2
 * to a point of the code, of equals the first in the order of hzi_shaped_step(); any: one of them.
 * If there is none, w.set is 0.
 */
template <int SHAPING>
HZ_DEVICE vector best_move(const hzi_lattice_rule &r, const float (&e)[8], const float (&p)[8],
			   float most, bool any)
{
	const float q = (float)r.q, twice = most + most;
	vector_set moves = {}, minus = {};
	int best = INT32_MAX;
	vector found = {0, 0};

	if (!(1.0001f * reach_of(e) > most))
		return found;
	for_products(e, [&](int word, float x) {
		append_sign(moves.word[word], hzi_ladd(word < 4 ? most : twice, -fabsf(x)));
		append_sign(minus.word[word], x);
	}, [&](int word, int n) {
		moves.word[word] <<= n;
		minus.word[word] <<= n;
	});
	/* A few moves are sooner tested below. */
	if (size_of(moves) > (any ? 6 : 2)) {
		if constexpr (SHAPING == HZI_SHAPING_E8)
			keep_inside(q, p, any, minus, moves);
		else
			keep_in_d8star(q, p, minus, moves);
	}
	for (int bit; (bit = next_vector(moves)) >= 0;) {
		vector w = vector_of(bit);
		float x[8], gain = most;
		int order = 0;

		if (contains(minus, bit))
			w.negative ^= w.set;
		if (!any) {
			gain = product(e, w);
			if (bit < 128)
				order = 4 * (bit & 63) + (int)(w.negative >> (bit >> 3 & 7) & 1) +
					2 * (int)(w.negative >> (bit & 7) & 1);
			else
				order = 256 + (int)(w.negative & 127);
			if (!(gain > most || (gain == most && order < best && found.set)))
				continue;
		}
		move_point(p, w, x);
		if (SHAPING == HZI_SHAPING_E8 ? !has_label(r.log2q, x) : !inside<SHAPING>(r, q, x))
			continue;
		most = gain;
		best = order;
		found = w;
		if (any)
			break;
	}
	return found;
}

/* The two largest numbers and the least one */
struct extremes {
	float most, second, least;
};

HZ_DEVICE extremes extremes_of(const float (&a)[8])
{
	extremes x = {-FLT_MAX, -FLT_MAX, FLT_MAX};

#pragma unroll
	for (int i = 0; i < 8; i++) {
		x.second = fmaxf(fminf(a[i], x.most), x.second);
		x.most = fmaxf(a[i], x.most);
		x.least = fminf(a[i], x.least);
	}
	return x;
}

/*
 * An upper bound of the <e, w> of minimal vectors w after which p / 2, a point outside of q E8's
 * code, can be in it. f: the minimal vector with the largest <p / 2, f>, which is q + over / 2;
 * <w, f>, which is -2 to 2, is at most -over / 2. It is -2 for w = -f alone. a_i: what coordinate i
 * gains when it moves against f. If f is (+-1/2)^8, <w, f> is -1 for two coordinates that both do,
 * and for (+-1/2)^8 of which six do; if f has two coordinates, for one of them with any other
 * coordinate, and for (+-1/2)^8 of which both do.
 */
HZ_DEVICE float gain_in_e8(float q, const float (&e)[8], const float (&p)[8])
{
	float size[8], a[8], sum = 0;
	uint32_t sign = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		size[i] = fabsf(p[i]);
		a[i] = p[i] < 0 ? e[i] : -e[i];
		sum += size[i];
		sign ^= __float_as_uint(p[i] + 0.0f);
	}
	const extremes x = extremes_of(size);
	bool todo = sign >> 31, more = true;
	const float half = 0.5f * (todo ? sum - 2 * x.least : sum), two = x.most + x.second;
	const float over = fmaxf(half, two) - 2 * q;

	if (over <= 0)	/* Points on the border have many moves. */
		return reach_of(e);
	if (half >= two) {
		float all = 0, below = FLT_MAX;

#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (todo && size[i] == x.least) {
				a[i] = -a[i];
				todo = false;
			}
			all += 0.5f * a[i];
		}
		const extremes b = extremes_of(a);
		bool first = true;

#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (first && a[i] == b.least)
				first = false;
			else
				below = fminf(below, a[i]);
		}
		return over > 4 ? -FLT_MAX : over > 2 ? all :
		       fmaxf(all, fmaxf(b.most + b.second, all - b.least - below));
	}

	float one = 0, other = 0, most = 0, least = FLT_MAX, rest = 0;

	todo = true;
	sign = 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const bool is_one = todo && size[i] == x.most;
		const bool is_other = !is_one && more && size[i] == x.second;
		const float b = is_one || is_other ? 0 : fabsf(e[i]);

		todo = todo && !is_one;
		more = more && !is_other;
		one = is_one ? a[i] : one;
		other = is_other ? a[i] : other;
		rest += b;
		most = fmaxf(most, b);
		least = fminf(least, is_one || is_other ? FLT_MAX : b);
		sign ^= is_one || is_other ? ~__float_as_uint(p[i]) : __float_as_uint(e[i]);
	}
	return over > 4 ? -FLT_MAX : over > 2 ? one + other :
	       fmaxf(fmaxf(one + other, fmaxf(one, other) + most),
		     0.5f * (one + other + rest) - (sign >> 31 ? least : 0));
}

/*
 * The same for D8STAR, where the sum of |p_i - h| is too large. Two coordinates moved inwards
 * lessen it by 4; (+-1/2)^8 by 2 for each p_i > 0 that moves down (h = 0) or p_i < 1 that moves up
 * (h = 1), less 2 for each other one that does. With the signs of e that is 2 `in`; each sign that
 * is turned adds 2 at most and loses |e_i|.
 */
HZ_DEVICE float gain_in_d8star(float q, const float (&e)[8], const float (&p)[8])
{
	const bool odd = integer_of(p[0]) & 1;
	float a[8], sum = -4 * q, sizes = 0, least = FLT_MAX, turned = FLT_MAX, in = 0;
	uint32_t sign = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		/* From the side to which (+-1/2)^8 changes the sum */
		const float d = odd ? 1 - p[i] : p[i], gain = odd ? e[i] : -e[i];
		const float b = fabsf(e[i]);

		sum += fabsf(d);
		a[i] = d > 0 ? gain : d < 0 ? -gain : -4;
		sizes += b;
		least = fminf(least, b);
		in += gain > 0 ? d > 0 ? 1.0f : -1.0f : 0;
		turned = fminf(turned, gain > 0 && d > 0 ? 8 : b);
		sign ^= __float_as_uint(e[i]);
	}
	if (sum <= 0)	/* Points on the border have many moves. */
		return reach_of(e);

	const extremes x = extremes_of(a);
	const float turns = fmaxf(0.5f * sum - in, 0);
	const bool again = (sign >> 31 ^ (uint32_t)integer_of(turns)) & 1;
	const float half = 0.5f * sizes - turns * turned - (again ? least : 0);

	return sum > 4 ? half : fmaxf(x.most + x.second, half);
}

/*
 * A lower bound of the squared distance of y from points of the code, if p / 2, the nearest one of
 * the lattice, is not one: these differ from it by minimal vectors w or by longer ones, of at least
 * the length 2.
 */
template <int SHAPING>
HZ_DEVICE float inside_bound(float q, const float (&y)[8], const float (&p)[8], float error)
{
	float e[8];

	error_of(y, p, e);

	const float gain = SHAPING == HZI_SHAPING_E8 ? gain_in_e8(q, e, p) :
						       gain_in_d8star(q, e, p);
	const float far = fmaxf(1.999f - sqrtf(error), 0);

	return fmaxf(error, fminf(error + fmaxf(1.998f - 2 * gain, 0), far * far));
}

#endif
