/*
 * label.h - labels of E8 codes of one level that decode without a nearest-point search
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A code of 8 fields n_i of b = log2 q bits, field i at bit i b of a word, names the point
 *
 *   v_i = 2 n_i + h - q                        (twice the coordinates of a point of E8)
 *
 * h is the low bit of field 7, and the low bit of n_7 is the parity of the other n_i, so that their
 * sum is even. The shaping lattice S, of which points are coset representatives, says the rest:
 *
 *   CUBE    q Z^8: that is all. Every word is a code of its own.
 *   D8STAR  q D8*: the top bit of n_0 is 0. If sum |2 n_i - q| > 4 q all top bits are flipped.
 *           The top bit of field 0 is free: it is left out.
 *   E8      q E8: the top bit of n_0 is 0, that of field 0 is P. Let w be the point of CUBE, max
 *           and min the largest and the least |w_i|: of equals max is that of the lowest i, min
 *           that of the highest, so that |w_i| 8 + 7 - i is a key for both. Let P' be P xor the
 *           parity of the top bits of all n_i. Candidate A is w, and if P the coordinate of max
 *           moves by 2 q towards the other side of 0. Candidate B has all top bits flipped, and if
 *           P' the coordinate of min moves likewise. B, which is nearer to 0, is the point if
 *           sum |w_i| + P (2 q - 2 max) > 4 q + 2 P' min.
 *
 * q is 4, 8 or 16.
 */
#ifndef HZI_LATTICE_LABEL_H
#define HZI_LATTICE_LABEL_H

#include <stdint.h>

#ifdef __CUDACC__
#define HZI_LATTICE_FN static __host__ __device__ inline
#else
#define HZI_LATTICE_FN static inline
#endif

/* As the enumerators of hurwitz.h */
enum {
	HZI_SHAPING_NESTED = 0, HZI_SHAPING_CUBE = 1, HZI_SHAPING_D8STAR = 2,
	HZI_SHAPING_E8 = 3
};

HZI_LATTICE_FN int32_t hzi_label_abs(int32_t a)
{
	return a < 0 ? -a : a;
}

/* v = the point of a label; q = 2^b */
HZI_LATTICE_FN void hzi_label_point(int shaping, int b, uint32_t label, int32_t v[8])
{
	const int32_t q = 1 << b, top = q >> 1;
	const int32_t h = (int32_t)(label >> 7 * b & 1);
	int32_t n[8], free_bit = 0, parity = 0, tops = 0, sum = 0;

	for (int i = 0; i < 8; i++)
		n[i] = (int32_t)(label >> i * b) & (q - 1);
	if (shaping != HZI_SHAPING_CUBE) {
		free_bit = n[0] / top;
		n[0] &= top - 1;
	}
	n[7] &= ~1;
	for (int i = 0; i < 8; i++) {
		parity ^= n[i];
		tops ^= n[i] / top;
	}
	n[7] |= parity & 1;
	for (int i = 0; i < 8; i++)
		v[i] = 2 * n[i] + h - q;
	if (shaping == HZI_SHAPING_D8STAR) {
		for (int i = 0; i < 8; i++)
			sum += hzi_label_abs(2 * n[i] - q);
		if (sum > 4 * q)
			for (int i = 0; i < 8; i++)
				v[i] = 2 * (n[i] ^ top) + h - q;
	}
	if (shaping == HZI_SHAPING_E8) {
		const int32_t p = free_bit, p2 = free_bit ^ tops;
		int most = 0, least = 0, moved;

		for (int i = 0; i < 8; i++) {
			sum += hzi_label_abs(v[i]);
			if (hzi_label_abs(v[i]) > hzi_label_abs(v[most]))
				most = i;
			if (hzi_label_abs(v[i]) <= hzi_label_abs(v[least]))
				least = i;
		}
		if (sum + p * (2 * q - 2 * hzi_label_abs(v[most])) >
		    4 * q + 2 * p2 * hzi_label_abs(v[least])) {
			for (int i = 0; i < 8; i++)
				v[i] = 2 * (n[i] ^ top) + h - q;
			moved = p2 ? least : -1;
		} else {
			moved = p ? most : -1;
		}
		if (moved >= 0)
			v[moved] += v[moved] >= 0 ? -2 * q : 2 * q;
	}
}

/*
 * The label of the coset of a point v: hzi_label_point() of it is v if and only if v is a point of
 * the code.
 */
HZI_LATTICE_FN uint32_t hzi_label_of(int shaping, int b, const int32_t v[8])
{
	const int32_t q = 1 << b, top = q >> 1, h = v[0] & 1;
	int32_t flip = 0, turns = 0;
	uint32_t label = 0;

	for (int i = 0; i < 8; i++) {
		const int32_t m = (v[i] - h + q) >> 1;
		int32_t n = m & (q - 1);

		if (i == 0 && shaping != HZI_SHAPING_CUBE && n >= top)
			flip = top;
		n ^= flip;
		/* v = (point of n) + flip + 2 q turns in this coordinate */
		turns ^= (m - n - flip) >> b;
		if (i == 7)
			n = (n & ~1) | h;
		label |= (uint32_t)n << i * b;
	}
	if (shaping == HZI_SHAPING_E8 && (turns & 1))
		label |= (uint32_t)top;
	return label;
}

/* Whether a point of E8, twice its coordinates, is a point of the code */
HZI_LATTICE_FN int hzi_label_has(int shaping, int b, const int32_t v[8])
{
	int32_t p[8], differ = 0;

	hzi_label_point(shaping, b, hzi_label_of(shaping, b, v), p);
	for (int i = 0; i < 8; i++)
		differ |= p[i] ^ v[i];
	return differ == 0;
}

#endif
