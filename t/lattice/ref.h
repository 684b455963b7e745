/*
 * ref.h - the lattice quantizer by its definition, in integers and in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The operations that the contract fixes in f32 (y = v (1/s) factor + z, and values) are computed
 * in f32 here too, one at a time. Nearest points, digits and fits are exact.
 */
#ifndef LATTICE_REF_H
#define LATTICE_REF_H

#include "t/core/ref.h"

#define REF_D HZ_LATTICE_MAXDIM
#define REF_M HZ_LATTICE_MAXLEVELS

struct ref_lattice {
	int kind, d, embed, q, m, policy, group, scales, first_fit;
	float scale[64], inverse[64], z[REF_D];
	int64_t o[REF_D];
	int64_t bound;			/* y is clamped to it */
};

static inline int64_t ref_floor(int64_t a, int64_t b)
{
	return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline void ref_lattice_init(struct ref_lattice *r, const hz_lattice_opts *o)
{
	int i;

	memset(r, 0, sizeof(*r));
	r->kind = o->kind;
	r->d = o->kind == HZ_LATTICE_A2 ? 2 : o->kind == HZ_LATTICE_E8 ? 8 : o->dim ? o->dim :
	       o->kind == HZ_LATTICE_D ? 4 : 1;
	r->embed = o->kind == HZ_LATTICE_A2 ? 3 : r->d;
	r->q = o->q;
	r->m = o->levels;
	r->policy = o->policy;
	r->group = o->group ? o->group / r->d : 1;
	r->first_fit = (o->flags & HZ_LATTICE_FIRST_FIT) != 0;
	r->scales = o->policy == HZ_LATTICE_T ? 32 : o->policy == HZ_LATTICE_GROUP ? 64 :
		    o->policy == HZ_LATTICE_BANK ? o->banks : 1;
	for (i = 0; i < r->scales; i++) {
		double alpha = o->alpha != 0		     ? o->alpha :
			       o->policy == HZ_LATTICE_GROUP ? 1.0 / 8 :
							       1.0 / 3;
		double beta = o->beta != 0 ? o->beta : 1;

		r->scale[i] = (float)(beta * (o->policy == HZ_LATTICE_BANK ? o->bank[i] :
					      exp2(alpha * i)));
		r->inverse[i] = (float)(1 / (double)r->scale[i]);
	}
	for (i = 0; o->dither && i < r->d; i++)
		r->z[i] = (float)o->dither[i];
	r->bound = 1 << 20;
}

/* ---- Nearest points: exact rationals g / q, halves up, the first of equals ------------------- */

static inline void ref_nearest_d(int d, const int64_t *g, int64_t q, int64_t *f)
{
	int64_t sum = 0, most = -1;
	int i, k = 0;

	for (i = 0; i < d; i++) {
		f[i] = ref_floor(2 * g[i] + q, 2 * q);
		sum += f[i];
		if (llabs(g[i] - q * f[i]) > most) {
			most = llabs(g[i] - q * f[i]);
			k = i;
		}
	}
	if (sum & 1)
		f[k] += g[k] - q * f[k] >= 0 ? 1 : -1;
}

static inline void ref_nearest(const struct ref_lattice *r, const int64_t *g, int64_t q, int64_t *f)
{
	int64_t a[8], b[8], shifted[8], da = 0, db = 0, sum = 0, remainder[3];
	int i, k = 0;

	switch (r->kind) {
	case HZ_LATTICE_D:
		ref_nearest_d(r->d, g, q, f);
		return;
	case HZ_LATTICE_E8:			/* doubled: E / 2q, and the same less 1/2 */
		for (i = 0; i < 8; i++)
			shifted[i] = g[i] - q;
		ref_nearest_d(8, g, 2 * q, a);
		ref_nearest_d(8, shifted, 2 * q, b);
		for (i = 0; i < 8; i++) {
			da += (g[i] - 2 * q * a[i]) * (g[i] - 2 * q * a[i]);
			db += (shifted[i] - 2 * q * b[i]) * (shifted[i] - 2 * q * b[i]);
		}
		k = db < da || (db == da && 2 * b[0] + 1 < 2 * a[0]);
		for (i = 0; i < 8; i++)
			f[i] = k ? 2 * b[i] + 1 : 2 * a[i];
		return;
	case HZ_LATTICE_A2:
		for (i = 0; i < 3; i++) {
			f[i] = ref_floor(2 * g[i] + q, 2 * q);
			remainder[i] = g[i] - q * f[i];
			sum += f[i];
		}
		for (i = 1; i < 3; i++) {
			if (sum > 0 ? remainder[i] < remainder[k] : remainder[i] > remainder[k])
				k = i;
		}
		f[k] -= sum;
		return;
	default:
		for (i = 0; i < r->d; i++)
			f[i] = ref_floor(2 * g[i] + q, 2 * q);
	}
}

/* z = G^-1 p, and p = G z, with the columns of hurwitz.h */
static inline void ref_coordinates(const struct ref_lattice *r, const int64_t *p, int64_t *z)
{
	int i, d = r->d;

	if (r->kind == HZ_LATTICE_A2) {
		z[0] = -p[2];
		z[1] = -p[1];
	} else if (r->kind == HZ_LATTICE_D) {
		for (i = d - 1; i >= 2; i--)
			z[i] = -p[i] + (i + 1 < d ? z[i + 1] : 0);
		z[0] = -(p[0] + p[1] - (d > 2 ? z[2] : 0)) / 2;
		z[1] = p[0] + z[0];
	} else if (r->kind == HZ_LATTICE_E8) {
		z[7] = p[7];
		for (i = 6; i >= 1; i--)
			z[i] = (p[i] - p[7]) / 2 + (i < 6 ? z[i + 1] : 0);
		z[0] = ((p[0] - p[7]) / 2 + z[1]) / 2;
	} else {
		memcpy(z, p, (size_t)d * sizeof(*z));
	}
}

static inline void ref_point(const struct ref_lattice *r, const int64_t *z, int64_t *p)
{
	int i, j, d = r->d;

	memset(p, 0, (size_t)r->embed * sizeof(*p));
	if (r->kind == HZ_LATTICE_A2) {
		p[0] = z[0] + z[1];
		p[1] = -z[1];
		p[2] = -z[0];
		return;
	}
	for (j = 0; j < d; j++) {
		if (r->kind == HZ_LATTICE_Z) {
			p[j] += z[j];
		} else if (r->kind == HZ_LATTICE_D) {
			p[j] -= z[j];
			if (j > 0)
				p[j - 1] += z[j];
			else
				p[1] -= z[j];
		} else if (j == 7) {
			for (i = 0; i < 8; i++)
				p[i] += z[j];
		} else {
			p[j] += j == 0 ? 4 * z[j] : 2 * z[j];
			if (j > 0)
				p[j - 1] -= 2 * z[j];
		}
	}
}

/* Digits of the M levels of a point; returns whether nothing is left of it. */
static inline int ref_digits(const struct ref_lattice *r, const int64_t *point,
			     int64_t b[REF_M][REF_D])
{
	int64_t g[REF_D], z[REF_D], next[REF_D];
	int i, m, any = 0;

	memcpy(g, point, (size_t)r->embed * sizeof(*g));
	for (m = 0; m < r->m; m++) {
		ref_coordinates(r, g, z);
		for (i = 0; i < r->d; i++)
			b[m][i] = z[i] - r->q * ref_floor(z[i], r->q);
		ref_nearest(r, g, r->q, next);
		memcpy(g, next, sizeof(g));
	}
	for (i = 0; i < r->embed; i++)
		any |= g[i] != 0;
	return !any;
}

static inline void ref_leader(const struct ref_lattice *r, const int64_t *b, int64_t *c)
{
	int64_t f[REF_D];
	int i;

	ref_point(r, b, c);
	ref_nearest(r, c, r->q, f);
	for (i = 0; i < r->embed; i++)
		c[i] -= r->q * f[i];
}

/* sum_{m >= first} q^m c(b_m) */
static inline void ref_sum(const struct ref_lattice *r, int64_t b[REF_M][REF_D], int first,
			   int64_t *p)
{
	int64_t c[REF_D], weight = 1;
	int i, m;

	memset(p, 0, (size_t)r->embed * sizeof(*p));
	for (m = 0; m < r->m; m++, weight *= r->q) {
		if (m < first)
			continue;
		ref_leader(r, b[m], c);
		for (i = 0; i < r->embed; i++)
			p[i] += weight * c[i];
	}
}

/* ---- Level 0 --------------------------------------------------------------------------------- */

static inline double ref_real(const struct ref_lattice *r, const int64_t *p, int i)
{
	if (r->kind == HZ_LATTICE_A2)
		return i == 0 ? 0.5 * (double)(p[0] - p[2]) :
				-0.86602540378443864676 * (double)p[1];
	return r->kind == HZ_LATTICE_E8 ? 0.5 * (double)p[i] : (double)p[i];
}

static inline double ref_distance(const struct ref_lattice *r, const double *y, const int64_t *p)
{
	double sum = 0;
	int i;

	for (i = 0; i < r->d; i++)
		sum += (y[i] - ref_real(r, p, i)) * (y[i] - ref_real(r, p, i));
	return sum;
}

static inline void ref_round_d(int d, const double *y, int64_t *f, int even)
{
	double most = -1;
	int64_t sum = 0;
	int i, k = 0;

	for (i = 0; i < d; i++) {
		f[i] = (int64_t)nearbyint(y[i]);
		sum += f[i];
		if (fabs(y[i] - (double)f[i]) > most) {
			most = fabs(y[i] - (double)f[i]);
			k = i;
		}
	}
	if (even && (sum & 1))
		f[k] += y[k] - (double)f[k] >= 0 ? 1 : -1;
}

/* h of the nearest h + 1/2: the integer below y; of an integer y the even one of two */
static inline int64_t ref_half(double y)
{
	const int64_t below = (int64_t)floor(y);

	return (double)below < y ? below : below - (below & 1);
}

/* The same with an even sum; the error y - h - 1/2 is largest where y is closest to an integer. */
static inline void ref_halves(const double *y, int64_t *h)
{
	double least = 1;
	int64_t sum = 0;
	int i, k = 0;

	for (i = 0; i < 8; i++) {
		h[i] = ref_half(y[i]);
		sum += h[i];
		if (fabs(y[i] - nearbyint(y[i])) < least) {
			least = fabs(y[i] - nearbyint(y[i]));
			k = i;
		}
	}
	if (sum & 1)
		h[k] += y[k] >= (double)h[k] + 0.5 ? 1 : -1;
}

/*
 * Where the two candidates of E8 are equally far except for rounding, f32 decides: 1 - 2 max |r| if
 * the rounded coordinates had an odd sum, against 2 - sum |r|, plus 2 min |r| if the halves had
 * one.
 */
static inline float ref_whole_cost(const double *y, const int64_t *a)
{
	float most = 0;
	int i, moved = 0;

	for (i = 0; i < 8; i++) {
		moved ^= a[i] / 2 != (int64_t)nearbyint(y[i]);
		most = fmaxf(most, fabsf((float)(y[i] - nearbyint(y[i]))));
	}
	return moved ? 1 - (most + most) : 0;
}

static inline float ref_halves_cost(const double *y, const int64_t *b)
{
	float s[8], least = 1;
	int i, moved = 0;

	for (i = 0; i < 8; i++) {
		s[i] = fabsf((float)(y[i] - nearbyint(y[i])));
		least = fminf(least, s[i]);
		moved ^= (b[i] - 1) / 2 != ref_half(y[i]);
	}
	return 2 - (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))) +
	       (moved ? least + least : 0);
}

/* Q(y): halves to even; of equal points of E8 the one with the smaller first coordinate */
static inline void ref_level0(const struct ref_lattice *r, const double *y, int64_t *p)
{
	int64_t a[8], b[8];
	double t[3], da, db;
	int64_t sum;
	float shear;
	int i, k = 0;

	switch (r->kind) {
	case HZ_LATTICE_A2:		/* three f32 numbers, as in the contract */
		shear = (float)y[1] * 0.57735026918962576451f;
		t[0] = (double)((float)y[0] + shear);
		t[1] = (double)(-2 * shear);
		t[2] = (double)(shear - (float)y[0]);
		ref_round_d(3, t, p, 0);
		sum = p[0] + p[1] + p[2];
		for (i = 1; i < 3; i++) {
			double ri = t[i] - (double)p[i], rk = t[k] - (double)p[k];

			if (sum > 0 ? ri < rk : ri > rk)
				k = i;
		}
		p[k] -= sum;
		return;
	case HZ_LATTICE_E8:
		ref_round_d(8, y, a, 1);
		ref_halves(y, b);
		for (i = 0; i < 8; i++) {
			a[i] *= 2;
			b[i] = 2 * b[i] + 1;
		}
		da = ref_distance(r, y, a);
		db = ref_distance(r, y, b);
		k = fabs(da - db) > 1e-5 ? db < da : ref_halves_cost(y, b) < ref_whole_cost(y, a) ||
		    (ref_halves_cost(y, b) == ref_whole_cost(y, a) && b[0] < a[0]);
		memcpy(p, k ? b : a, sizeof(a));
		return;
	default:
		ref_round_d(r->d, y, p, r->kind == HZ_LATTICE_D);
	}
}

/* y in f32 at a scale and a factor; returns whether it is within the range that is searched. */
static inline int ref_y(const struct ref_lattice *r, const float *v, int t, float factor, double *y)
{
	int i, inside = 1;

	for (i = 0; i < r->d; i++) {
		float u = v[i] * r->inverse[t];

		u = isinf(u) ? copysignf(3.40282346638528859812e38f, u) : u;
		u = u * factor;
		u = u + r->z[i];
		if (fabsf(u) > (float)r->bound) {
			inside = 0;
			u = copysignf((float)r->bound, u);
		}
		y[i] = (double)u;
	}
	return inside;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

struct ref_block {
	int t, bad, special;		/* wrapped or clipped; 1 Inf, 2 NaN */
	int64_t g[REF_D];		/* includes o */
	int64_t b[REF_M][REF_D];
	double y[REF_D];		/* g is the nearest point to it */
};

static inline int ref_try(const struct ref_lattice *r, const float *v, int t, float factor,
			  struct ref_block *k)
{
	int i, inside = ref_y(r, v, t, factor, k->y);

	ref_level0(r, k->y, k->g);
	for (i = 0; i < r->embed; i++)
		k->g[i] += r->o[i];
	return ref_digits(r, k->g, k->b) && inside;
}

/* At scale t; CLIP then tries each 2^(-j/16) in turn until the block fits. */
static inline void ref_clip(const struct ref_lattice *r, const float *v, int t, struct ref_block *k)
{
	int j;

	k->t = t;
	k->bad = !ref_try(r, v, t, 1, k);
	if (!k->bad || r->policy == HZ_LATTICE_NONE)
		return;
	for (j = 1; j < 16 * 149; j++) {
		if (ref_try(r, v, t, (float)exp2(-(j % 16) / 16.0) * (float)exp2(-(j / 16)), k))
			return;
	}
}

static inline int ref_special(const struct ref_lattice *r, float *v)
{
	int i, special = 0;

	for (i = 0; i < r->d; i++) {
		special |= isnan(v[i]) ? 2 : isinf(v[i]) ? 1 : 0;
		if (isinf(v[i]))
			v[i] = copysignf(3.40282346638528859812e38f, v[i]);
	}
	return special;
}

/* The squared error that BANK compares: in f32, coordinates in order */
static inline float ref_error(const struct ref_lattice *r, const double *y, const int64_t *p)
{
	float sum = 0, e;
	int i;

	for (i = 0; i < r->d; i++) {
		e = r->kind == HZ_LATTICE_A2 && i == 1 ? -0.86602540378443864676f * (float)p[1] :
							 (float)ref_real(r, p, i);
		e = (float)y[i] - e;
		sum = sum + e * e;
	}
	return sum;
}

/* Blocks that share T: one, or a group. v [n][d] is overwritten where it has Inf. */
static inline void ref_encode(const struct ref_lattice *r, float *v, int n, struct ref_block *k)
{
	const int tries = r->first_fit ? 1 : r->policy == HZ_LATTICE_BANK ? r->scales : 3;
	int i, j, t, largest = 0, best = -1, first = 0, all;
	int64_t p[REF_D];
	float least = 0, e;

	for (i = 0; i < n; i++) {
		memset(&k[i], 0, sizeof(k[i]));
		k[i].special = ref_special(r, v + i * r->d);
		if (k[i].special & 2) {
			memcpy(k[i].g, r->o, sizeof(k[i].g));
			ref_digits(r, k[i].g, k[i].b);
		}
	}
	for (t = 0; t < r->scales; t++)
		largest = r->scale[t] > r->scale[largest] ? t : largest;
	if (r->policy == HZ_LATTICE_GROUP || r->group > 1) {
		for (t = 0; t < r->scales && (best < 0 || t < first + tries); t++) {
			all = 1;
			e = 0;
			for (i = 0; i < n && all; i++) {
				if (k[i].special & 2)
					continue;
				all = ref_try(r, v + i * r->d, t, 1, &k[i]);
				for (j = 0; j < r->embed; j++)
					p[j] = k[i].g[j] - r->o[j];
				e = e + ref_error(r, k[i].y, p);
			}
			e = e * (r->scale[t] * r->scale[t]);
			if (!all || (best >= 0 && !(e < least)))
				continue;
			first = best < 0 ? t : first;
			least = e;
			best = t;
		}
		t = best >= 0 ? best : largest;
		for (i = 0; i < n; i++) {
			if (!(k[i].special & 2))
				ref_clip(r, v + i * r->d, t, &k[i]);
			k[i].t = t;
		}
		return;
	}
	if (k->special & 2)
		return;
	if (r->policy == HZ_LATTICE_T || (r->policy == HZ_LATTICE_BANK && r->first_fit)) {
		for (t = 0; t < r->scales && best < 0; t++)
			best = ref_try(r, v, t, 1, k) ? t : -1;
	} else if (r->policy == HZ_LATTICE_BANK) {
		for (t = 0; t < r->scales; t++) {
			if (!ref_try(r, v, t, 1, k))
				continue;
			for (i = 0; i < r->embed; i++)
				p[i] = k->g[i] - r->o[i];
			e = ref_error(r, k->y, p) * (r->scale[t] * r->scale[t]);
			if (best < 0 || e < least) {
				least = e;
				best = t;
			}
		}
	}
	if (r->policy == HZ_LATTICE_T || r->policy == HZ_LATTICE_BANK)
		ref_clip(r, v, best < 0 ? largest : best, k);
	else
		ref_clip(r, v, 0, k);
}

/* x = s (p - o - sub), each operation rounded to f32 */
static inline void ref_value(const struct ref_lattice *r, const int64_t *p, const float *sub, int t,
			     float *x)
{
	int64_t remainder[REF_D];
	int i;

	for (i = 0; i < r->embed; i++)
		remainder[i] = p[i] - r->o[i];
	for (i = 0; i < r->d; i++) {
		float u = r->kind == HZ_LATTICE_A2 && i == 1 ?
			  -0.86602540378443864676f * (float)remainder[1] :
			  (float)ref_real(r, remainder, i);

		u = u - sub[i];
		x[i] = u * r->scale[t];
	}
}

#endif
