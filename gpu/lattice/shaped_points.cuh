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

/* hzi_label_has() for E8, without arrays that are indexed at run time */
HZ_DEVICE bool on_border(int log2q, const float (&p)[8])
{
	const int32_t q = 1 << log2q, h = integer_of(p[0]) & 1;
	int32_t n[8], key[8], most = 0, least = INT32_MAX, sum = 0, tops = 0, turns = 0, flip = 0;
	int32_t differ = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int32_t m = (integer_of(p[i]) - h + q) >> 1;

		n[i] = m & (q - 1);
		flip = i == 0 ? n[i] & q / 2 : flip;
		n[i] ^= flip;
		turns ^= (m - n[i] - flip) >> log2q;
		key[i] = abs(2 * n[i] + h - q) * 8 + 7 - i;
		most = max(most, key[i]);
		least = min(least, key[i]);
		sum += key[i] >> 3;
		tops ^= n[i];
	}
	const int32_t free_bit = turns & 1, other = (turns ^ tops >> (log2q - 1)) & 1;
	const bool flipped = sum + free_bit * (2 * q - 2 * (most >> 3)) >
			     4 * q + 2 * other * (least >> 3);
	const int32_t moved = flipped ? other ? least : -1 : free_bit ? most : -1;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		int32_t w = 2 * (n[i] ^ (flipped ? q / 2 : 0)) + h - q;

		if (key[i] == moved)
			w += w >= 0 ? -2 * q : 2 * q;
		differ |= w ^ integer_of(p[i]);
	}
	return differ == 0;
}

/* hzi_shaped_inside() */
template <int SHAPING>
HZ_DEVICE bool inside(const hzi_lattice_rule &r, float q, const float (&p)[8])
{
	if constexpr (SHAPING == HZI_SHAPING_E8) {
		const float reach = reach_of(p);

		return reach < 2 * q || (reach == 2 * q && on_border(r.log2q, p));
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

/* For each vector w: f(word, bit, <x, w>), but twice that of (+-1/2)^8 */
template <class F>
HZ_DEVICE void for_products(const float (&x)[8], F f)
{
	float lower[16], upper[16];

#pragma unroll
	for (int i = 0; i < 7; i++) {
#pragma unroll
		for (int j = i + 1; j < 8; j++) {
			f(i >> 2, 1u << ((8 * i + j) & 31), hzi_ladd(x[i], x[j]));
			f(2 + (i >> 2), 1u << ((8 * i + j) & 31), hzi_ladd(x[i], -x[j]));
		}
	}
#pragma unroll
	for (uint32_t k = 0; k < 16; k++) {
		lower[k] = hzi_shaped_four(x, k);
		upper[k] = hzi_shaped_four(&x[4], k);
	}
#pragma unroll
	for (uint32_t k = 0; k < 64; k++)
		f(4 + (int)k / 32, 1u << (k & 31),
		  hzi_ladd(lower[k & 15], upper[hzi_shaped_signs(k) >> 4]));
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
	for_products(p, [&](int word, uint32_t bit, float x) {
		const float size = fabsf(word < 4 ? x : 0.5f * x);

		below.word[word] |= size == limit - 2 ? bit : 0;
		facets.word[word] |= size >= limit ? bit : 0;
		negative.word[word] |= x < 0 ? bit : 0;
	});
#pragma unroll
	for (int k = 0; k < WORDS; k++)
		moves.word[k] &= ~(below.word[k] & ~(negative.word[k] ^ minus.word[k]));
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

/*
 * D8STAR: leaves out moves +-w from p / 2 (minus: in the set `minus`) that leave the cube, and of
 * those with two coordinates all that leave the code, but for points on its border. A coordinate
 * p_i changes by 2, so |p_i - h| does, and their sum by 4, 0 or -4.
 */
HZ_DEVICE void keep_in_d8star(float q, const float (&p)[8], const vector_set &minus,
			      vector_set &moves)
{
	const uint32_t pattern[5] = {0xaaaaaaaa, 0xcccccccc, 0xf0f0f0f0, 0xff00ff00, 0xffff0000};
	const float h = (float)(integer_of(p[0]) & 1);
	uint32_t can[2] = {0, 0}, grows[2] = {0, 0};	/* up and down, bit i */
	float room = 4 * q;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float d = p[i] - h;
		const uint32_t negative = i < 5 ? pattern[i] : i < 7 ? 0 : 0x96696996;

		room -= fabsf(d);
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
		}
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
	for_products(e, [&](int word, uint32_t bit, float x) {
		moves.word[word] |= fabsf(x) > (word < 4 ? most : twice) ? bit : 0;
		minus.word[word] |= x < 0 ? bit : 0;
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

/*
 * A lower bound of the squared distance of y from points other than p / 2, the nearest one. These
 * differ from it by minimal vectors w, or by a sum of n of them of the squared length 2 n, so if no
 * <y - p / 2, w> exceeds 1 the distance is no less than with n = 1.
 */
HZ_DEVICE float other_bound(const float (&y)[8], const float (&p)[8], float error)
{
	float e[8];

	error_of(y, p, e);
	return error + fmaxf(1.998f - 2 * reach_of(e), 0);
}

#endif
