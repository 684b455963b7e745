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
			int blocked;

			n[i] = f < low ? low : f > high ? high : f;
			r = hzi_ladd(u, -n[i]);
			s[i] = hzi_lmul(r, r);
			blocked = r >= 0 ? n[i] >= high : n[i] <= low;
			gain = blocked ? -fabsf(r) : fabsf(r);
			if (gain > most) {
				most = gain;
				where = i;
				step = (r >= 0) != blocked ? 1 : -1;
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

/*
 * Whether p, twice the coordinates of a point of E8, is in the code, as hzi_label_has(). D8STAR: of
 * labels with the top bits turned, whose sums of |2 n_i - q| add to 8 q, one has a sum below 4 q.
 * E8: points are in the cell of q E8 where <p, w> <= q for each minimal vector w, see
 * hzi_shaped_beyond(); on its border one of equals is.
 */
HZI_LATTICE_FN int hzi_shaped_inside(int shaping, int b, const int32_t *p)
{
	const int32_t q = 1 << b, h = p[0] & 1;
	int32_t sum = 0, most = 0, second = 0, least = INT32_MAX, negative = 0;

	if (shaping != HZI_SHAPING_E8) {
		for (int i = 0; i < 8; i++) {
			if (p[i] < -q || p[i] >= q)
				return 0;
			sum += hzi_label_abs(p[i] - h);
		}
		return shaping == HZI_SHAPING_CUBE || sum < 4 * q || (sum == 4 * q && p[0] - h < 0);
	}
	for (int i = 0; i < 8; i++) {
		const int32_t a = hzi_label_abs(p[i]), lower = a < most ? a : most;

		sum += a;
		negative ^= p[i] < 0;
		second = lower > second ? lower : second;
		most = a > most ? a : most;
		least = a < least ? a : least;
	}
	sum = (sum - (negative ? 2 * least : 0)) / 2;
	sum = sum > most + second ? sum : most + second;
	return sum < 2 * q || (sum == 2 * q && hzi_label_has(shaping, b, p));
}

/* Sign k of 8 of a minimal vector (+-1/2)^8 of E8, k < 128: their product is positive. */
HZI_LATTICE_FN uint32_t hzi_shaped_signs(uint32_t k)
{
	const uint32_t a = k ^ k >> 4, c = a ^ a >> 2;

	return k | ((c ^ c >> 1) & 1) << 7;
}

/* +-(+-a +-b) +-(+-c +-d), by four bits of signs */
HZI_LATTICE_FN float hzi_shaped_four(const float *e, uint32_t signs)
{
	return hzi_ladd(hzi_ladd(signs & 1 ? -e[0] : e[0], signs & 2 ? -e[1] : e[1]),
			hzi_ladd(signs & 4 ? -e[2] : e[2], signs & 8 ? -e[3] : e[3]));
}

/*
 * Moves g by that minimal vector w of E8 which has the largest <e, w> above 1, of those that lead
 * to a point of the code, of equals the first: +-e_i +-e_j in the order of i, j and the signs, then
 * (+-1/2)^8. Returns whether there is one. Rounding is monotonic: no <e, w> exceeds that of |e|.
 */
HZI_LATTICE_FN int hzi_shaped_step(const struct hzi_lattice_rule *r, const float *e, int32_t *g)
{
	float most = 1, size[8];
	int32_t p[8], best[8] = {0};
	int moved = 0;

	for (int i = 0; i < 8; i++) {
		size[i] = fabsf(e[i]);
		p[i] = g[i];
	}
	for (int i = 0; i < 7; i++) {
		for (int j = i + 1; j < 8; j++) {
			if (!(hzi_ladd(size[i], size[j]) > most))
				continue;
			for (int k = 0; k < 4; k++) {
				const float gain = hzi_ladd(k & 1 ? -e[i] : e[i],
							    k & 2 ? -e[j] : e[j]);

				if (!(gain > most))
					continue;
				p[i] = g[i] + (k & 1 ? -2 : 2);
				p[j] = g[j] + (k & 2 ? -2 : 2);
				if (hzi_shaped_inside(r->shaping, r->log2q, p)) {
					most = gain;
					moved = 1;
					for (int l = 0; l < 8; l++)
						best[l] = p[l];
				}
			}
			p[i] = g[i];
			p[j] = g[j];
		}
	}
	for (uint32_t k = 0; k < 128; k++) {
		const uint32_t signs = hzi_shaped_signs(k);
		float gain;

		if (k == 0 && !(hzi_lmul(0.5f, hzi_ladd(hzi_shaped_four(size, 0),
							hzi_shaped_four(size + 4, 0))) > most))
			break;
		gain = hzi_lmul(0.5f, hzi_ladd(hzi_shaped_four(e, signs & 15),
					       hzi_shaped_four(e + 4, signs >> 4)));
		if (!(gain > most))
			continue;
		for (int i = 0; i < 8; i++)
			p[i] = g[i] + (signs >> i & 1 ? -1 : 1);
		if (hzi_shaped_inside(r->shaping, r->log2q, p)) {
			most = gain;
			moved = 1;
			for (int i = 0; i < 8; i++)
				best[i] = p[i];
		}
	}
	for (int i = 0; i < 8 && moved; i++)
		g[i] = best[i];
	return moved;
}

/*
 * g = a point of the code near to y, which is not nearest to one: that of y times the first
 * 2^(-j/16) that fits, then moved by hzi_shaped_step(). Returns the squared distance.
 */
HZI_LATTICE_OFTEN float hzi_shaped_clip(const struct hzi_lattice_rule *r, const float *y,
					int32_t *g)
{
	const float low = r->shaping == HZI_SHAPING_E8 ? -HZI_LATTICE_RANGE : 0;
	const float high = r->shaping == HZI_SHAPING_E8 ? HZI_LATTICE_RANGE : (float)(r->q - 1);
	float z[8], e[8], error;
	int exponent, limit, j = 1;

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
	} while (!hzi_shaped_inside(r->shaping, r->log2q, g));
	error = hzi_shaped_error(y, g, e);
	/* The limit matters to numbers beyond 2^20 alone, whose distances are rounded. */
	for (int steps = 0; steps < 64 && hzi_shaped_step(r, e, g); steps++)
		error = hzi_shaped_error(y, g, e);
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
	int32_t g[8] = {0};

	for (int t = r->scales - 1; t >= 0; t--) {
		for (int i = 0; i < 8; i++)
			y[i] = hzi_lclamp(hzi_lmul(v[i], r->inverse[t]), HZI_LATTICE_RANGE);
		hzi_shaped_nearest(r->q, -HZI_LATTICE_RANGE, HZI_LATTICE_RANGE, y, g);
		if (hzi_shaped_inside(r->shaping, r->log2q, g))
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
	int32_t p[8] = {0};
	int found = 0, fits;

	for (int k = far ? r->largest : 0; k < (far ? r->largest + 1 : r->scales); k++) {
		const float square = hzi_lmul(r->scale[k], r->scale[k]);
		float error = hzi_shaped_at(r, v, k, y, p);

		bound[k] = -1;
		if (r->shaping != HZI_SHAPING_CUBE && !hzi_shaped_inside(r->shaping, r->log2q, p)) {
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
	for (int k = far ? r->largest : r->scales - 1;
	     r->shaping != HZI_SHAPING_CUBE && k >= (far ? r->largest : 0); k--) {
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
