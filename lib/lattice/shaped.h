/*
 * shaped.h - encoding to the codes of label.h, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LATTICE_SHAPED_H
#define HZI_LATTICE_SHAPED_H

#include "lib/lattice/lattice_math.h"

/*
 * g = the point of E8 nearest to y, twice its coordinates, of those whose n_i = (g_i - h + q) / 2
 * are low .. high; h = g_i mod 2 is 0 or 1, of equally near points 0. Returns the squared distance.
 *
 * With r_i = u_i - n_i, moving n_i by one towards r_i adds 1 - 2 |r_i| to the squared distance;
 * where the range forbids that, moving it back adds 1 + 2 |r_i|. An odd sum of n_i moves the first
 * that costs least.
 */
HZI_LATTICE_FN float hzi_shaped_nearest(int32_t q, float low, float high, const float *y,
					int32_t *g)
{
	float least = 0;

	for (int h = 0; h < 2; h++) {
		const float offset = (float)(q - h) * 0.5f;
		float n[8], s[8], most = -FLT_MAX, error, step = 0;
		int32_t sum = 0;
		int where = 0;

		for (int i = 0; i < 8; i++) {
			const float u = hzi_ladd(y[i], offset), f = rintf(u);
			float r, gain;

			n[i] = f < low ? low : f > high ? high : f;
			r = hzi_ladd(u, -n[i]);
			s[i] = hzi_lmul(r, r);
			gain = (r >= 0 ? n[i] >= high : n[i] <= low) ? -fabsf(r) : fabsf(r);
			if (gain > most) {
				most = gain;
				where = i;
				step = (r >= 0) == (gain == fabsf(r)) ? 1 : -1;
			}
			sum += (int32_t)n[i];
		}
		error = hzi_ladd(hzi_ladd(hzi_ladd(s[0], s[1]), hzi_ladd(s[2], s[3])),
				 hzi_ladd(hzi_ladd(s[4], s[5]), hzi_ladd(s[6], s[7])));
		if (sum & 1) {
			error = hzi_ladd(error, hzi_ladd(1.0f, -hzi_ladd(most, most)));
			n[where] += step;
		}
		if (h && !(error < least))
			break;
		least = error;
		for (int i = 0; i < 8; i++)
			g[i] = 2 * (int32_t)n[i] + h - q;
	}
	return least;
}

/* The sum of (y_i - g_i / 2)^2; e: the differences */
HZI_LATTICE_FN float hzi_shaped_error(const float *y, const int32_t *g, float *e)
{
	float s[8];

	for (int i = 0; i < 8; i++) {
		e[i] = hzi_ladd(y[i], hzi_lmul(-0.5f, (float)g[i]));
		s[i] = hzi_lmul(e[i], e[i]);
	}
	return hzi_ladd(hzi_ladd(hzi_ladd(s[0], s[1]), hzi_ladd(s[2], s[3])),
			hzi_ladd(hzi_ladd(s[4], s[5]), hzi_ladd(s[6], s[7])));
}

/*
 * A lower bound of the squared distance of y from the points of q E8's code, which satisfy
 * <p, w> <= q for each of the 240 minimal vectors w of E8, of the length sqrt 2: the largest
 * <y, w> is the sum of the two largest |y_i|, or half the sum of all, with the sign of the least
 * |y_i| turned if the number of negative y_i is odd.
 */
HZI_LATTICE_FN float hzi_shaped_beyond(int32_t q, const float *y)
{
	float most = 0, second = 0, least = FLT_MAX, sum = 0, far;
	int negative = 0;

	for (int i = 0; i < 8; i++) {
		const float a = fabsf(y[i]), lower = a < most ? a : most;

		sum = hzi_ladd(sum, a);
		negative ^= y[i] < 0;
		second = lower > second ? lower : second;
		most = a > most ? a : most;
		least = a < least ? a : least;
	}
	sum = hzi_lmul(0.5f, negative ? hzi_ladd(sum, hzi_lmul(-2.0f, least)) : sum);
	far = hzi_ladd(most, second);
	far = hzi_ladd(sum > far ? sum : far, (float)-q);
	return far > 0 ? hzi_lmul(0.5f, hzi_lmul(far, far)) : 0;
}

/* Component i of minimal vector k of E8, 0 <= k < 240, times 2 */
HZI_LATTICE_FN int32_t hzi_shaped_minimal(int k, int i)
{
	int a = 0;

	if (k >= 112) {
		/* All +-1/2: the sign of i = 0 makes their product positive. */
		const uint32_t signs = (uint32_t)(k - 112);

		a = (int)(i ? signs >> (i - 1) :
			  signs ^ signs >> 1 ^ signs >> 2 ^ signs >> 3 ^ signs >> 4 ^ signs >> 5 ^
			  signs >> 6) & 1;
		return a ? -1 : 1;
	}
	/* Pairs in the order (0, 1), (0, 2), .. (6, 7), with four signs each */
	for (int left = k >> 2; left >= 7 - a; a++)
		left -= 7 - a, k -= 4 * (7 - a);
	return i == a ? (k & 1 ? -2 : 2) : i == a + 1 + (k >> 2) ? (k & 2 ? -2 : 2) : 0;
}

/*
 * g = a point of the code near to y, which is not nearest to one: that of y times the first
 * 2^(-j/16), then moved by that minimal vector which takes most from the distance, of those that
 * stay within the code, until none does. Returns the squared distance.
 */
HZI_LATTICE_OFTEN float hzi_shaped_clip(const struct hzi_lattice_rule *r, const float *y,
					int32_t *g)
{
	const float low = r->shaping == HZI_SHAPING_E8 ? -HZI_LATTICE_RANGE : 0;
	const float high = r->shaping == HZI_SHAPING_E8 ? HZI_LATTICE_RANGE : (float)(r->q - 1);
	float z[8], e[8], error;
	int exponent, limit, j = 1, moved = 1;

	frexpf(hzi_lattice_size(r, y), &exponent);
	frexpf(r->reach, &limit);
	if (exponent - 1 - limit > 0)
		j = 16 * (exponent - 1 - limit);
	do {
		const float factor = j < HZI_LATTICE_SHRINKS ? hzi_lattice_factor(r, j) : 0;

		for (int i = 0; i < 8; i++)
			z[i] = hzi_lmul(y[i], factor);
		hzi_shaped_nearest(r->q, low, high, z, g);
		j++;
	} while (!hzi_label_has(r->shaping, r->log2q, g));
	error = hzi_shaped_error(y, g, e);
	/* The limit matters to numbers beyond 2^20 alone, whose distances are rounded. */
	for (int steps = 0; moved && steps < 64; steps++) {
		float most = 1;
		int32_t p[8], best[8];

		moved = 0;
		for (int k = 0; k < 240; k++) {
			float gain = 0;

			for (int i = 0; i < 8; i++) {
				p[i] = hzi_shaped_minimal(k, i);
				gain = hzi_ladd(gain, hzi_lmul(0.5f * (float)p[i], e[i]));
				p[i] += g[i];
			}
			if (!(gain > most) || !hzi_label_has(r->shaping, r->log2q, p))
				continue;
			most = gain;
			moved = 1;
			for (int i = 0; i < 8; i++)
				best[i] = p[i];
		}
		for (int i = 0; i < 8 && moved; i++)
			g[i] = best[i];
		error = hzi_shaped_error(y, g, e);
	}
	return error;
}

/* y = v / s; g, the nearest point of the lattice, for CUBE and D8STAR of CUBE; its distance */
HZI_LATTICE_FN float hzi_shaped_at(const struct hzi_lattice_rule *r, const float *v, int t,
				   float *y, int32_t *g)
{
	const int unbounded = r->shaping == HZI_SHAPING_E8;

	for (int i = 0; i < 8; i++)
		y[i] = hzi_lclamp(hzi_lmul(v[i], r->inverse[t]), FLT_MAX);
	return hzi_shaped_nearest(r->q, unbounded ? -HZI_LATTICE_RANGE : 0,
				  unbounded ? HZI_LATTICE_RANGE : (float)(r->q - 1), y, g);
}

/* Whether at some scale the point of E8 nearest to v is in the code */
HZI_LATTICE_OFTEN int hzi_shaped_fits(const struct hzi_lattice_rule *r, const float *v)
{
	float y[8];
	int32_t g[8];

	for (int t = 0; t < r->scales; t++) {
		for (int i = 0; i < 8; i++)
			y[i] = hzi_lclamp(hzi_lmul(v[i], r->inverse[t]), HZI_LATTICE_RANGE);
		hzi_shaped_nearest(r->q, -HZI_LATTICE_RANGE, HZI_LATTICE_RANGE, y, g);
		if (hzi_label_has(r->shaping, r->log2q, g))
			return 1;
	}
	return 0;
}

/*
 * The point g and the scale t of v with the least error s^2 |y - g / 2|^2, of equals the first,
 * among scales at which the nearest point is in the code; then, from the last t on, at the others
 * whose bound is less. Where even the largest scale leaves a |y_i| above 4 q, that scale. Returns
 * 1 if the nearest point is in the code at no scale.
 */
HZI_LATTICE_FN int hzi_shaped_choose(const struct hzi_lattice_rule *r, const float *v, int *t,
				     int32_t *g)
{
	const float size = hzi_lmul(hzi_lattice_size(r, v), r->inverse[r->largest]);
	const int far = size > (float)(4 * r->q);
	float bound[HZI_LATTICE_SCALES], y[8], least = 0;
	int32_t p[8];
	int found = 0, fits;

	for (int k = far ? r->largest : 0; k < (far ? r->largest + 1 : r->scales); k++) {
		const float square = hzi_lmul(r->scale[k], r->scale[k]);
		float error = hzi_shaped_at(r, v, k, y, p);

		bound[k] = -1;
		if (r->shaping != HZI_SHAPING_CUBE && !hzi_label_has(r->shaping, r->log2q, p)) {
			const float beyond = r->shaping == HZI_SHAPING_E8 ?
					     hzi_shaped_beyond(r->q, y) : 0;

			bound[k] = hzi_lmul(beyond > error ? beyond : error, square);
			continue;
		}
		error = hzi_lmul(error, square);
		if (found && !(error < least))
			continue;
		found = 1;
		least = error;
		*t = k;
		for (int i = 0; i < 8; i++)
			g[i] = p[i];
	}
	fits = found;
	for (int k = far ? r->largest : r->scales - 1; k >= (far ? r->largest : 0); k--) {
		float error;

		if (bound[k] < 0 || (found && !(bound[k] < least)))
			continue;
		hzi_shaped_at(r, v, k, y, p);
		error = hzi_lmul(hzi_shaped_clip(r, y, p), hzi_lmul(r->scale[k], r->scale[k]));
		if (found && !(error < least))
			continue;
		found = 1;
		fits = r->shaping == HZI_SHAPING_E8 && fits;
		least = error;
		*t = k;
		for (int i = 0; i < 8; i++)
			g[i] = p[i];
	}
	/* Rounding and a correction move coordinates by less than 1.5: none left the cube. */
	if (fits && (r->shaping == HZI_SHAPING_E8 ||
		     hzi_lmul(hzi_lattice_size(r, v), r->inverse[*t]) <= 0.5f * (float)r->q - 1.5f))
		return 0;
	return !hzi_shaped_fits(r, v);
}

/* hzi_lattice_choose() for any shaping */
HZI_LATTICE_FN int hzi_lattice_choose_any(const struct hzi_lattice_rule *r,
					  const struct hzi_lattice_matrices *m, const float *v,
					  int *t, int32_t *g)
{
	return r->shaping ? hzi_shaped_choose(r, v, t, g) : hzi_lattice_choose(r, m, v, t, g);
}

/* Writes the code of a point. */
HZI_LATTICE_FN void hzi_shaped_write(const struct hzi_lattice_rule *r, const int32_t *g,
				     struct hzi_lattice_code c)
{
	int32_t b[HZI_LATTICE_DIMS];

	hzi_lattice_unindex(r, hzi_label_of(r->shaping, r->log2q, g), b);
	hzi_lattice_put(&c, r, b);
	hzi_lattice_flush(&c);
}

#endif
