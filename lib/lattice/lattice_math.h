/*
 * lattice_math.h - the arithmetic of the lattice quantizer, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Points are stored as integers, `embed` of them: Z^d and D_d: the coordinates; E8: twice the
 * coordinates; A2: t = (z0 + z1, -z1, -z0), whose sum is 0; a basis: coordinates z in it.
 *
 * Every implementation yields the codes of these functions, bit for bit. So operations written with
 * hzi_lmul() and hzi_ladd() round after each of them, in this order, on every device. All of it is
 * one file, of more than 900 lines, so that there is one place that defines what a code means.
 */
#ifndef HZI_LATTICE_RULE_H
#define HZI_LATTICE_RULE_H

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "lib/lattice/label.h"

/*
 * For functions with many callers: a kernel whose speed does not matter may define this as
 * noinline.
 */
#ifndef HZI_LATTICE_OFTEN
#define HZI_LATTICE_OFTEN HZI_LATTICE_FN
#endif

#define HZI_LATTICE_DIMS 24		/* HZ_LATTICE_MAXDIM */
#define HZI_LATTICE_SCALES 64		/* T is less */
#define HZI_LATTICE_LAST_T 31		/* of the policy T */
#define HZI_LATTICE_SHRINKS 2384	/* j of 2^(-j/16) is less: down to 2^-149 of f32 */

/*
 * Limit to which y is clamped, in steps of the lattice: no block beyond it fits. Integers stay far
 * from the limits of s32, and the three coordinates of A2, sums in f32, stay within a step of a
 * point.
 */
#define HZI_LATTICE_RANGE 1048576.0f

/* As the enumerators of hurwitz.h */
enum {
	HZI_LATTICE_Z = 1, HZI_LATTICE_A2 = 2, HZI_LATTICE_D = 3, HZI_LATTICE_E8 = 4,
	HZI_LATTICE_BASIS = 5
};
enum {
	HZI_LATTICE_NONE = 0, HZI_LATTICE_T = 1, HZI_LATTICE_CLIP = 2, HZI_LATTICE_BANK = 3,
	HZI_LATTICE_GROUP = 4
};
enum { HZI_LATTICE_LEVEL = 0, HZI_LATTICE_FULL64 = 1, HZI_LATTICE_LIMBS = 2 };

#define HZI_LATTICE_MAPPED 1u		/* blocks are transformed by hzi_lattice_matrices */
#define HZI_LATTICE_DITHERED 2u		/* dither is not all 0 */
#define HZI_LATTICE_SPHERE 4u		/* level 0 of a basis by the sphere decoder */
#define HZI_LATTICE_FIRST_FIT 8u

/* All parameters that a kernel of a named lattice needs, by value */
struct hzi_lattice_rule {
	int32_t kind, d, embed, q;
	int32_t log2q;			/* -1: q is no power of two */
	int32_t levels, policy, scales;	/* scales: at least 1 */
	int32_t group;			/* blocks that share T: 1, or with GROUP or BANK more */
	uint32_t flags;
	int32_t limb_digits;		/* most digits that 32 bits hold */
	int32_t largest;		/* BANK: the first of the largest scales; GROUP: the last */
	uint64_t level_size;		/* q^d; 0 if above 2^32 */
	float reach;			/* no fit if a |v 1/s| of hzi_lattice_map() is larger */
	float shrink[16];		/* 2^(-j/16) */
	float scale[HZI_LATTICE_SCALES];	/* s */
	float inverse[HZI_LATTICE_SCALES];	/* 1/s of the f32 s, rounded to f32 */
	int32_t offset[HZI_LATTICE_DIMS];	/* o */
	float dither[HZI_LATTICE_DIMS];	/* z, for a basis in its coordinates */
	int32_t shaping;		/* HZI_SHAPING_* of label.h; if not NESTED, E8 of one level */
};

/* More parameters, with MAPPED; d x d, row-major, contiguous */
struct hzi_lattice_matrices {
	float to[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS];		/* T, for a basis G^-1 T */
	float from[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS];	/* its inverse */
	/* From the QR decomposition of a basis: R_ij / R_ii, j > i, and R_ii > 0 */
	double mu[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS], diagonal[HZI_LATTICE_DIMS];
};

/*
 * Properties that hz_lattice_open() has checked, for static analysers, which look at one function
 * at a time
 */
#ifdef __CUDACC__
#define HZI_LATTICE_KNOWN(r) ((void)0)
#else
#define HZI_LATTICE_KNOWN(r) \
	assert((r)->d > 0 && (r)->d <= HZI_LATTICE_DIMS && \
	       (r)->embed == (r)->d + ((r)->kind == HZI_LATTICE_A2) && \
	       ((r)->kind != HZI_LATTICE_A2 || (r)->d == 2) && \
	       ((r)->kind != HZI_LATTICE_D || (r)->d >= 2) && \
	       ((r)->kind != HZI_LATTICE_E8 || (r)->d == 8))
#endif

/* ---- Arithmetic without contraction (fused multiply-add) ------------------------------------- */

HZI_LATTICE_FN float hzi_lmul(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fmul_rn(a, b);
#else
	return a * b;
#endif
}

HZI_LATTICE_FN float hzi_ladd(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fadd_rn(a, b);
#else
	return a + b;
#endif
}

/* a + b c, rounded twice */
HZI_LATTICE_FN double hzi_lmul_add(double a, double b, double c)
{
#ifdef __CUDA_ARCH__
	return __dadd_rn(a, __dmul_rn(b, c));
#else
	return a + b * c;
#endif
}

/* Clamps x to -limit .. limit; x is not NaN. */
HZI_LATTICE_FN float hzi_lclamp(float x, float limit)
{
	return x > limit ? limit : x < -limit ? -limit : x;
}

/* floor(a / b), b > 0 */
HZI_LATTICE_FN int32_t hzi_lfloor(int32_t a, int32_t b)
{
	return a / b - (a % b < 0);
}

/* ---- Nearest points of rationals: levels from 1 on, and the decoder -------------------------- */

/*
 * Q(g / q) maps integers that represent points to integers that represent points, and
 * Q(y + lam) = Q(y) + lam for every point lam: halves are rounded up, and ties between
 * coordinates go to the first.
 */

/* g becomes Q(g / q) in D_d: halves up; an odd sum rounds the largest error the other way. */
HZI_LATTICE_FN void hzi_lattice_nearest_d(int d, int32_t q, int32_t *g)
{
	int32_t sum = 0, most = -1, step = 1;
	int k = 0;

	for (int i = 0; i < d; i++) {
		const int32_t f = hzi_lfloor(2 * g[i] + q, 2 * q), r = g[i] - q * f;

		if ((r < 0 ? -r : r) > most) {
			most = r < 0 ? -r : r;
			k = i;
			step = r >= 0 ? 1 : -1;
		}
		sum += f;
		g[i] = f;
	}
	if (sum & 1)
		g[k] += step;
}

/*
 * The same in E8, with doubled coordinates. a is the nearest integer point, f + 1/2 or f - 1/2 with
 * the sign of r the nearest half-integer point; |r| becomes q - |r| (in units of 1 / 2q), so that
 * the difference of squared distances b - a is a sum of |r|, in units of 1 / 2q. Ties go to the
 * point with the smaller first coordinate.
 */
HZI_LATTICE_FN void hzi_lattice_nearest_e8(int32_t q, int32_t *g)
{
	int32_t f[8], sum = 0, halves = 0, total = 0, most = -1, least = INT32_MAX, margin;
	int up = 0, down = 0, step = 1, step_half = 1, half;

	for (int i = 0; i < 8; i++) {
		const int32_t u = hzi_lfloor(g[i] + q, 2 * q), r = g[i] - 2 * q * u;
		const int32_t size = r < 0 ? -r : r;

		if (size > most) {
			most = size;
			up = i;
			step = r >= 0 ? 1 : -1;
		}
		if (size < least) {
			least = size;
			down = i;
			step_half = r < 0 ? 1 : -1;
		}
		f[i] = u;
		g[i] = r < 0;
		sum += u;
		halves += u - (r < 0);
		total += size;
	}
	margin = 4 * q - total + (halves & 1 ? 2 * least : 0) - (sum & 1 ? 2 * q - 2 * most : 0);
	if (sum & 1)
		f[up] += step;
	half = margin < 0;
	if (margin == 0) {
		int32_t a = f[0], b = f[0] - g[0];

		if ((sum & 1) && up == 0)
			b -= step;
		if ((halves & 1) && down == 0)
			b += step_half;
		half = 2 * b + 1 < 2 * a;
	}
	if (half) {
		if (sum & 1)
			f[up] -= step;
		if (halves & 1)
			f[down] += step_half;
	}
	for (int i = 0; i < 8; i++)
		g[i] = 2 * (f[i] - (half ? g[i] : 0)) + half;
}

/*
 * The same in A2: three numbers are rounded; if their sum is not 0, the one with the largest error
 * is corrected.
 */
HZI_LATTICE_FN void hzi_lattice_nearest_a2(int32_t q, int32_t *g)
{
	int32_t r[3], sum = 0;
	int k = 0;

	for (int i = 0; i < 3; i++) {
		const int32_t f = hzi_lfloor(2 * g[i] + q, 2 * q);

		r[i] = g[i] - q * f;
		sum += f;
		g[i] = f;
	}
	for (int i = 1; i < 3; i++) {
		if (sum > 0 ? r[i] < r[k] : r[i] > r[k])
			k = i;
	}
	g[k] -= sum;
}

/* ---- A basis: nearest plane and sphere decoder ----------------------------------------------- */

/* The centre of coordinate i, given the later coordinates n, from row i of R */
HZI_LATTICE_FN double hzi_lattice_center(int d, const struct hzi_lattice_matrices *m, int i,
				      const double *w, const int32_t *n)
{
	double c = w[i];

	for (int j = i + 1; j < d; j++)
		c = hzi_lmul_add(c, m->mu[i * d + j], w[j] - n[j]);
	return c;
}

/* Babai's nearest plane: the point n near coordinates w */
HZI_LATTICE_FN void hzi_lattice_plane(int d, const struct hzi_lattice_matrices *m, const double *w,
				   int32_t *n)
{
	for (int i = d - 1; i >= 0; i--)
		n[i] = (int32_t)rint(hzi_lattice_center(d, m, i, w, n));
}

/*
 * The nearest point, by the search of Schnorr and Euchner: at each row, coordinates are tried in
 * the order of their distance from the centre; the search backtracks where the sum exceeds the best
 * so far.
 */
HZI_LATTICE_FN void hzi_lattice_sphere(int d, const struct hzi_lattice_matrices *m, const double *w,
				    int32_t *best)
{
	double center[HZI_LATTICE_DIMS], sum[HZI_LATTICE_DIMS + 1], least = DBL_MAX;
	int32_t n[HZI_LATTICE_DIMS], step[HZI_LATTICE_DIMS];
	int k = d - 1, enter = 1;

	sum[d] = 0;
	while (k < d) {
		double e, s;

		if (enter) {
			center[k] = hzi_lattice_center(d, m, k, w, n);
			n[k] = (int32_t)rint(center[k]);
			step[k] = center[k] >= n[k] ? 1 : -1;
		} else {
			n[k] += step[k];
			step[k] = -step[k] - (step[k] > 0 ? 1 : -1);
		}
		e = m->diagonal[k] * (center[k] - n[k]);
		s = hzi_lmul_add(sum[k + 1], e, e);
		enter = 0;
		if (s >= least) {
			k++;
		} else if (k > 0) {
			sum[k] = s;
			k--;
			enter = 1;
		} else {
			least = s;
			for (int i = 0; i < d; i++)
				best[i] = n[i];
			k++;
		}
	}
}

/* ---- Points and digits ----------------------------------------------------------------------- */

/* i mod q, 0 .. q - 1 */
HZI_LATTICE_FN int32_t hzi_lattice_mod(const struct hzi_lattice_rule *r, int32_t i)
{
	return r->log2q >= 0 ? i & (r->q - 1) : i - r->q * hzi_lfloor(i, r->q);
}

/* Coordinates of a point in the basis of its lattice: z = G^-1 p */
HZI_LATTICE_FN void hzi_lattice_coordinates(const struct hzi_lattice_rule *r, const int32_t *p,
					 int32_t *z)
{
	const int d = r->d;

	HZI_LATTICE_KNOWN(r);
	switch (r->kind) {
	case HZI_LATTICE_A2:
		z[0] = -p[2];
		z[1] = -p[1];
		return;
	case HZI_LATTICE_D:
		for (int i = d - 1; i >= 2; i--)
			z[i] = (i + 1 < d ? z[i + 1] : 0) - p[i];
		z[0] = -(p[0] + p[1] - (d > 2 ? z[2] : 0)) / 2;
		z[1] = p[0] + z[0];
		return;
	case HZI_LATTICE_E8:
		z[7] = p[7];
		z[6] = (p[6] - p[7]) / 2;
		for (int i = 5; i >= 1; i--)
			z[i] = (p[i] - p[7]) / 2 + z[i + 1];
		z[0] = ((p[0] - p[7]) / 2 + z[1]) / 2;
		return;
	default:
		for (int i = 0; i < d; i++)
			z[i] = p[i];
	}
}

/* The inverse: p = G z */
HZI_LATTICE_FN void hzi_lattice_combine(const struct hzi_lattice_rule *r, const int32_t *z,
					int32_t *p)
{
	const int d = r->d;

	HZI_LATTICE_KNOWN(r);
	switch (r->kind) {
	case HZI_LATTICE_A2:
		p[0] = z[0] + z[1];
		p[1] = -z[1];
		p[2] = -z[0];
		return;
	case HZI_LATTICE_D:
		p[0] = z[1] - z[0];
		p[1] = (d > 2 ? z[2] : 0) - z[0] - z[1];
		for (int i = 2; i < d; i++)
			p[i] = (i + 1 < d ? z[i + 1] : 0) - z[i];
		return;
	case HZI_LATTICE_E8:
		p[0] = 4 * z[0] - 2 * z[1] + z[7];
		for (int i = 1; i < 6; i++)
			p[i] = 2 * z[i] - 2 * z[i + 1] + z[7];
		p[6] = 2 * z[6] + z[7];
		p[7] = z[7];
		return;
	default:
		for (int i = 0; i < d; i++)
			p[i] = z[i];
	}
}

/* The digits of a point: b = (G^-1 g) mod q */
HZI_LATTICE_FN void hzi_lattice_digits(const struct hzi_lattice_rule *r, const int32_t *g,
				       int32_t *b)
{
	hzi_lattice_coordinates(r, g, b);
	for (int i = 0; i < r->d; i++)
		b[i] = hzi_lattice_mod(r, b[i]);
}

/* g becomes Q(g / q), which is (g - c(b)) / q: the point of the next level. */
HZI_LATTICE_OFTEN void hzi_lattice_parent(const struct hzi_lattice_rule *r,
				    const struct hzi_lattice_matrices *m, int32_t *g)
{
	HZI_LATTICE_KNOWN(r);
	switch (r->kind) {
	case HZI_LATTICE_A2:
		hzi_lattice_nearest_a2(r->q, g);
		return;
	case HZI_LATTICE_D:
		hzi_lattice_nearest_d(r->d, r->q, g);
		return;
	case HZI_LATTICE_E8:
		hzi_lattice_nearest_e8(r->q, g);
		return;
	case HZI_LATTICE_BASIS: {
		/* Nearest plane of the digits alone: the same for all g of a coset */
		double w[HZI_LATTICE_DIMS];
		int32_t n[HZI_LATTICE_DIMS];

		for (int i = 0; i < r->d; i++)
			w[i] = (double)hzi_lattice_mod(r, g[i]) / r->q;
		hzi_lattice_plane(r->d, m, w, n);
		for (int i = 0; i < r->d; i++)
			g[i] = hzi_lfloor(g[i], r->q) + n[i];
		return;
	}
	default:
		for (int i = 0; i < r->d; i++)
			g[i] = hzi_lfloor(2 * g[i] + r->q, 2 * r->q);
	}
}

/* Whether M levels hold g: the remainder is 0 */
HZI_LATTICE_FN int hzi_lattice_fits(const struct hzi_lattice_rule *r,
				 const struct hzi_lattice_matrices *m, const int32_t *g)
{
	int32_t left[HZI_LATTICE_DIMS], any = 0;

	HZI_LATTICE_KNOWN(r);
	for (int i = 0; i < r->embed; i++)
		left[i] = g[i];
	for (int level = 0; level < r->levels; level++)
		hzi_lattice_parent(r, m, left);
	for (int i = 0; i < r->embed; i++)
		any |= left[i];
	return any == 0;
}

/* sum_j b_j q^j; below q^d, which 32 bits hold */
HZI_LATTICE_FN uint32_t hzi_lattice_index(const struct hzi_lattice_rule *r, const int32_t *b)
{
	uint32_t index = 0;

	HZI_LATTICE_KNOWN(r);
	for (int j = r->d - 1; j >= 0; j--)
		index = index * (uint32_t)r->q + (uint32_t)b[j];
	return index;
}

/* The coset leader of digits: c(b) = G b - q Q(G b / q), or the point of a label by its fields */
HZI_LATTICE_FN void hzi_lattice_leader(const struct hzi_lattice_rule *r,
				    const struct hzi_lattice_matrices *m, const int32_t *b,
				    int32_t *c)
{
	int32_t f[HZI_LATTICE_DIMS];

	HZI_LATTICE_KNOWN(r);
	if (r->shaping) {
		hzi_label_point(r->shaping, r->log2q, hzi_lattice_index(r, b), c);
		return;
	}
	hzi_lattice_combine(r, b, c);
	for (int i = 0; i < r->embed; i++)
		f[i] = c[i];
	hzi_lattice_parent(r, m, f);
	for (int i = 0; i < r->embed; i++)
		c[i] -= r->q * f[i];
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* The inverse; an index beyond q^d counts modulo q^d. */
HZI_LATTICE_FN void hzi_lattice_unindex(const struct hzi_lattice_rule *r, uint32_t index,
					int32_t *b)
{
	HZI_LATTICE_KNOWN(r);
	for (int j = 0; j < r->d; j++) {
		b[j] = (int32_t)(index % (uint32_t)r->q);
		index /= (uint32_t)r->q;
	}
}

/* The codes of one block in memory: level or limb i is at i * step elements of `bytes` bytes. */
struct hzi_lattice_code {
	void *codes;
	int64_t step;
	int32_t bytes, pack;
	int32_t filled, next;		/* digits in word; elements done */
	uint64_t word, weight;
};

HZI_LATTICE_FN struct hzi_lattice_code hzi_lattice_code_at(void *codes, int64_t step, int bytes,
							int pack)
{
	struct hzi_lattice_code c;

	c.codes = codes;
	c.step = step;
	c.bytes = bytes;
	c.pack = pack;
	c.filled = c.next = 0;
	c.word = 0;
	c.weight = 1;
	return c;
}

HZI_LATTICE_FN uint64_t hzi_lattice_load(const struct hzi_lattice_code *c, int64_t i)
{
	const char *p = (const char *)c->codes + i * c->step * c->bytes;

	return c->bytes == 1 ? *(const uint8_t *)p : c->bytes == 2 ? *(const uint16_t *)p :
	       c->bytes == 4 ? *(const uint32_t *)p : *(const uint64_t *)p;
}

HZI_LATTICE_FN void hzi_lattice_store(const struct hzi_lattice_code *c, int64_t i, uint64_t v)
{
	char *p = (char *)c->codes + i * c->step * c->bytes;

	if (c->bytes == 1)
		*(uint8_t *)p = (uint8_t)v;
	else if (c->bytes == 2)
		*(uint16_t *)p = (uint16_t)v;
	else if (c->bytes == 4)
		*(uint32_t *)p = (uint32_t)v;
	else
		*(uint64_t *)p = v;
}

/*
 * Appends the digits of the next level, the finest first. hzi_lattice_flush() follows the last
 * level.
 */
HZI_LATTICE_FN void hzi_lattice_put(struct hzi_lattice_code *c, const struct hzi_lattice_rule *r,
				 const int32_t *b)
{
	if (c->pack == HZI_LATTICE_LEVEL) {
		hzi_lattice_store(c, c->next++, hzi_lattice_index(r, b));
		return;
	}
	for (int j = 0; j < r->d; j++) {
		c->word += (uint64_t)(uint32_t)b[j] * c->weight;
		c->weight *= (uint64_t)(uint32_t)r->q;
		if (c->pack == HZI_LATTICE_LIMBS && ++c->filled == r->limb_digits) {
			hzi_lattice_store(c, c->next++, c->word);
			c->word = 0;
			c->weight = 1;
			c->filled = 0;
		}
	}
}

HZI_LATTICE_FN void hzi_lattice_flush(const struct hzi_lattice_code *c)
{
	if (c->pack == HZI_LATTICE_FULL64 || c->filled)
		hzi_lattice_store(c, c->next, c->word);
}

HZI_LATTICE_FN void hzi_lattice_get(struct hzi_lattice_code *c, const struct hzi_lattice_rule *r,
				 int32_t *b)
{
	if (c->pack == HZI_LATTICE_LEVEL) {
		hzi_lattice_unindex(r, (uint32_t)hzi_lattice_load(c, c->next++), b);
		return;
	}
	for (int j = 0; j < r->d; j++) {
		if (c->filled == 0) {
			c->word = hzi_lattice_load(c, c->next++);
			c->filled = c->pack == HZI_LATTICE_LIMBS ? r->limb_digits : INT32_MAX;
		}
		b[j] = (int32_t)(c->word % (uint64_t)(uint32_t)r->q);
		c->word /= (uint64_t)(uint32_t)r->q;
		c->filled--;
	}
}

/* Writes the codes of a point. */
HZI_LATTICE_FN void hzi_lattice_write(const struct hzi_lattice_rule *r,
				   const struct hzi_lattice_matrices *m, const int32_t *point,
				   struct hzi_lattice_code c)
{
	int32_t g[HZI_LATTICE_DIMS], b[HZI_LATTICE_DIMS];

	for (int i = 0; i < r->embed; i++)
		g[i] = point[i];
	for (int level = 0; level < r->levels; level++) {
		hzi_lattice_digits(r, g, b);
		hzi_lattice_put(&c, r, b);
		hzi_lattice_parent(r, m, g);
	}
	hzi_lattice_flush(&c);
}

/*
 * Reads a point from codes that hold the levels first .. M - 1: sum_m q^m c(b_m). Packings other
 * than LEVEL hold all levels, of which those below first are ignored.
 */
HZI_LATTICE_FN void hzi_lattice_read(const struct hzi_lattice_rule *r,
				  const struct hzi_lattice_matrices *m, struct hzi_lattice_code c,
				  int first, int32_t *p)
{
	int32_t b[HZI_LATTICE_DIMS], leader[HZI_LATTICE_DIMS], weight = 1;

	for (int i = 0; i < r->embed; i++)
		p[i] = 0;
	for (int level = 0; level < r->levels; level++) {
		if (level >= first || c.pack != HZI_LATTICE_LEVEL)
			hzi_lattice_get(&c, r, b);
		if (level >= first) {
			hzi_lattice_leader(r, m, b, leader);
			for (int i = 0; i < r->embed; i++)
				p[i] += weight * leader[i];
		}
		weight = (int32_t)((uint32_t)weight * (uint32_t)r->q);
	}
}

/* ---- Encoding: level 0 ----------------------------------------------------------------------- */

/* Rounds y to integers, halves to even, and finds the first largest error. */
HZI_LATTICE_FN float hzi_lattice_round(int d, const float *y, int32_t *f, int *where, int32_t *step,
				    int32_t *sum, float *size)
{
	float most = -1;

	*where = *step = *sum = 0;
	for (int i = 0; i < d; i++) {
		const float rounded = rintf(y[i]), r = hzi_ladd(y[i], -rounded);

		f[i] = (int32_t)rounded;
		*sum += f[i];
		size[i] = fabsf(r);
		if (size[i] > most) {
			most = size[i];
			*where = i;
			*step = r >= 0 ? 1 : -1;
		}
	}
	return most;
}

/*
 * E8: the nearest integer point rounds y to f, the nearest half-integer point h + 1/2 rounds y -
 * 1/2 to h, both halves to even: so h = f - 1 where the error r = y - f is below 0, or is 0 and f
 * odd, and otherwise h = f. The errors of the latter have the magnitudes 1/2 - |r|, so that the
 * squared distances before corrections differ by 2 - sum |r|; a correction costs 1 - 2 max |r| and
 * 2 min
 * r|, the half-integer point corrects the first smallest |r|. Ties go to the point with the smaller
 * first coordinate.
 */
HZI_LATTICE_FN void hzi_lattice_level0_e8(const float *y, int32_t *g)
{
	int32_t h[8], step, step_half = 1, sum, sum_half = 0;
	float s[8], most, least = 1, total, cost, cost_half;
	int where, where_half = 0, half;

	most = hzi_lattice_round(8, y, g, &where, &step, &sum, s);
	for (int i = 0; i < 8; i++) {
		const int below = y[i] < (float)g[i] || (s[i] == 0 && (g[i] & 1));

		h[i] = g[i] - below;
		sum_half += h[i];
		if (s[i] < least) {
			least = s[i];
			where_half = i;
			step_half = below || s[i] == 0.5f ? 1 : -1;
		}
	}
	total = hzi_ladd(hzi_ladd(hzi_ladd(s[0], s[1]), hzi_ladd(s[2], s[3])),
			 hzi_ladd(hzi_ladd(s[4], s[5]), hzi_ladd(s[6], s[7])));
	cost = sum & 1 ? hzi_ladd(1.0f, -hzi_ladd(most, most)) : 0;
	cost_half = hzi_ladd(hzi_ladd(2.0f, -total), sum_half & 1 ? hzi_ladd(least, least) : 0);
	if (sum & 1)
		g[where] += step;
	if (sum_half & 1)
		h[where_half] += step_half;
	half = cost_half < cost || (cost_half == cost && h[0] < g[0]);
	for (int i = 0; i < 8; i++)
		g[i] = half ? 2 * h[i] + 1 : 2 * g[i];
}

/* A2: y as three numbers of sum 0, (y0 + y1 / sqrt 3, -2 y1 / sqrt 3, y1 / sqrt 3 - y0) */
HZI_LATTICE_FN void hzi_lattice_level0_a2(const float *y, int32_t *g)
{
	const float a = hzi_lmul(y[1], 0.57735026918962576451f);
	float t[3], r[3];
	int32_t sum = 0;
	int k = 0;

	t[0] = hzi_ladd(y[0], a);
	t[1] = hzi_lmul(-2.0f, a);
	t[2] = hzi_ladd(a, -y[0]);
	for (int i = 0; i < 3; i++) {
		const float f = rintf(t[i]);

		r[i] = hzi_ladd(t[i], -f);
		g[i] = (int32_t)f;
		sum += g[i];
	}
	for (int i = 1; i < 3; i++) {
		if (sum > 0 ? r[i] < r[k] : r[i] > r[k])
			k = i;
	}
	g[k] -= sum;
}

/* Q(y), with every |y_i| at most HZI_LATTICE_RANGE */
HZI_LATTICE_FN void hzi_lattice_level0(const struct hzi_lattice_rule *r,
				    const struct hzi_lattice_matrices *m, const float *y,
				    int32_t *g)
{
	float size[HZI_LATTICE_DIMS];
	double w[HZI_LATTICE_DIMS];
	int32_t step, sum;
	int where;

	HZI_LATTICE_KNOWN(r);
	switch (r->kind) {
	case HZI_LATTICE_A2:
		hzi_lattice_level0_a2(y, g);
		return;
	case HZI_LATTICE_E8:
		hzi_lattice_level0_e8(y, g);
		return;
	case HZI_LATTICE_BASIS:
		for (int i = 0; i < r->d; i++)
			w[i] = y[i];
		if (r->flags & HZI_LATTICE_SPHERE)
			hzi_lattice_sphere(r->d, m, w, g);
		else
			hzi_lattice_plane(r->d, m, w, g);
		return;
	default:
		hzi_lattice_round(r->d, y, g, &where, &step, &sum, size);
		if (r->kind == HZI_LATTICE_D && (sum & 1))
			g[where] += step;
	}
}

/* ---- Encoding: the choice of a point and a scale --------------------------------------------- */

#define HZI_LATTICE_IS_INF 1
#define HZI_LATTICE_IS_NAN 2

/*
 * v = T x, or G^-1 T x for a basis: the input of the scales. Inf counts as +-FLT_MAX. Returns flags
 * for Inf and NaN; with NaN (or products that overflow both ways) v must not be used.
 */
HZI_LATTICE_FN int hzi_lattice_map(const struct hzi_lattice_rule *r,
				const struct hzi_lattice_matrices *m, const float *x, float *v)
{
	float finite[HZI_LATTICE_DIMS];
	int met = 0;

	HZI_LATTICE_KNOWN(r);
	for (int i = 0; i < r->d; i++) {
		met |= fabsf(x[i]) > FLT_MAX ? HZI_LATTICE_IS_INF : 0;
		finite[i] = hzi_lclamp(x[i], FLT_MAX);
	}
	for (int i = 0; i < r->d; i++) {
		float s = finite[i];

		if (r->flags & HZI_LATTICE_MAPPED) {
			s = hzi_lmul(m->to[i * r->d], finite[0]);
			for (int j = 1; j < r->d; j++)
				s = hzi_ladd(s, hzi_lmul(m->to[i * r->d + j], finite[j]));
		}
		met |= s != s ? HZI_LATTICE_IS_NAN : 0;
		v[i] = hzi_lclamp(s, FLT_MAX);
	}
	return met;
}

/* 2^(-j/16), 0 <= j < HZI_LATTICE_SHRINKS; the power of two is exact. */
HZI_LATTICE_FN float hzi_lattice_factor(const struct hzi_lattice_rule *r, int j)
{
	return hzi_lmul(r->shrink[j & 15], ldexpf(1.0f, -(j >> 4)));
}

/*
 * g = Q(y) + o for y = v (1/s) factor + z, each product and the sum rounded; y is clamped first,
 * also for the error. Returns whether the block fits.
 */
HZI_LATTICE_OFTEN int hzi_lattice_try(const struct hzi_lattice_rule *r,
				const struct hzi_lattice_matrices *m, const float *v,
				float inverse, float factor, float *y, int32_t *g)
{
	int inside = 1;

	HZI_LATTICE_KNOWN(r);
	for (int i = 0; i < r->d; i++) {
		float u = hzi_lmul(hzi_lclamp(hzi_lmul(v[i], inverse), FLT_MAX), factor);

		if (r->flags & HZI_LATTICE_DITHERED)
			u = hzi_ladd(u, r->dither[i]);
		y[i] = hzi_lclamp(u, HZI_LATTICE_RANGE);
		inside &= y[i] == u;
	}
	hzi_lattice_level0(r, m, y, g);
	for (int i = 0; i < r->embed; i++)
		g[i] += r->offset[i];
	return inside && hzi_lattice_fits(r, m, g);
}

/* The largest |v_i| */
HZI_LATTICE_FN float hzi_lattice_size(const struct hzi_lattice_rule *r, const float *v)
{
	float most = 0;

	for (int i = 0; i < r->d; i++)
		most = fabsf(v[i]) > most ? fabsf(v[i]) : most;
	return most;
}

/*
 * The first 2^(-j/16) that fits, from j = 1 on: j = 0 is known not to fit. Powers of two tell the
 * first j that can. If none does, which only a dither on an edge can cause, 0.
 */
HZI_LATTICE_FN void hzi_lattice_clip(const struct hzi_lattice_rule *r,
				  const struct hzi_lattice_matrices *m, const float *v, int t,
				  int32_t *g)
{
	const float size = hzi_lclamp(hzi_lmul(hzi_lattice_size(r, v), r->inverse[t]), FLT_MAX);
	float y[HZI_LATTICE_DIMS];
	int high, low, j = 1;

	frexpf(size, &high);
	frexpf(r->reach, &low);
	/* size >= 2^(high - 1), reach < 2^low: no fit below 16 (high - 1 - low) */
	if (high - 1 - low > 0)
		j = 16 * (high - 1 - low);
	for (; j < HZI_LATTICE_SHRINKS; j++) {
		if (hzi_lattice_try(r, m, v, r->inverse[t], hzi_lattice_factor(r, j), y, g))
			return;
	}
	hzi_lattice_try(r, m, v, r->inverse[t], 0.0f, y, g);
}

/*
 * The squared error of a point without o, in units of the squared scale; coordinates are added in
 * order. For a basis, that of y - p with R in f32.
 */
HZI_LATTICE_FN float hzi_lattice_error(const struct hzi_lattice_rule *r,
				    const struct hzi_lattice_matrices *m, const float *y,
				    const int32_t *g)
{
	float e[HZI_LATTICE_DIMS], sum = 0;

	HZI_LATTICE_KNOWN(r);
	for (int i = 0; i < r->embed; i++)
		e[i] = (float)(g[i] - r->offset[i]);
	if (r->kind == HZI_LATTICE_A2) {
		const float middle = e[1];

		e[0] = hzi_lmul(0.5f, hzi_ladd(e[0], -e[2]));
		e[1] = hzi_lmul(-0.86602540378443864676f, middle);
	}
	for (int i = 0; i < r->d; i++)
		e[i] = hzi_ladd(y[i], r->kind == HZI_LATTICE_E8 ? hzi_lmul(-0.5f, e[i]) : -e[i]);
	if (r->kind == HZI_LATTICE_BASIS) {
		for (int i = 0; i < r->d; i++) {
			for (int j = i + 1; j < r->d; j++)
				e[i] = hzi_ladd(e[i], hzi_lmul((float)m->mu[i * r->d + j], e[j]));
			e[i] = hzi_lmul((float)m->diagonal[i], e[i]);
		}
	}
	for (int i = 0; i < r->d; i++)
		sum = hzi_ladd(sum, hzi_lmul(e[i], e[i]));
	return sum;
}

/* The point of v at a given scale; by CLIP, with the return value 1, if it does not fit. */
HZI_LATTICE_FN int hzi_lattice_at(const struct hzi_lattice_rule *r,
			       const struct hzi_lattice_matrices *m, const float *v, int t,
			       int32_t *g)
{
	float y[HZI_LATTICE_DIMS];

	if (hzi_lattice_try(r, m, v, r->inverse[t], 1.0f, y, g))
		return 0;
	if (r->policy != HZI_LATTICE_NONE)
		hzi_lattice_clip(r, m, v, t, g);
	return 1;
}

/* The first scale from t on at which v fits, or `scales` */
HZI_LATTICE_FN int hzi_lattice_first_fit(const struct hzi_lattice_rule *r,
				      const struct hzi_lattice_matrices *m, const float *v, int t,
				      int32_t *g)
{
	const float size = hzi_lattice_size(r, v);
	float y[HZI_LATTICE_DIMS];

	for (; t < r->scales; t++) {
		if (hzi_lmul(size, r->inverse[t]) <= r->reach &&
		    hzi_lattice_try(r, m, v, r->inverse[t], 1.0f, y, g))
			break;
	}
	return t;
}

/* Among the scales at which v fits, the one with the least error s^2 |y - p|^2, or `scales` */
HZI_LATTICE_FN int hzi_lattice_best_fit(const struct hzi_lattice_rule *r,
				     const struct hzi_lattice_matrices *m, const float *v,
				     int32_t *g)
{
	float y[HZI_LATTICE_DIMS], least = 0;
	int32_t p[HZI_LATTICE_DIMS];
	int best = r->scales;

	for (int t = 0; t < r->scales; t++) {
		float e;

		if (!hzi_lattice_try(r, m, v, r->inverse[t], 1.0f, y, p))
			continue;
		e = hzi_lmul(hzi_lattice_error(r, m, y, p), hzi_lmul(r->scale[t], r->scale[t]));
		if (best < r->scales && !(e < least))
			continue;
		least = e;
		best = t;
		for (int i = 0; i < r->embed; i++)
			g[i] = p[i];
	}
	return best;
}

#define HZI_LATTICE_TRIES 3

/* Whether hzi_lattice_group() chooses t */
HZI_LATTICE_FN int hzi_lattice_grouped(const struct hzi_lattice_rule *r)
{
	return r->policy == HZI_LATTICE_GROUP || r->group > 1;
}

/*
 * The scale that blocks v [n][d] share; blocks with skip[i] hold NaN and are ignored: among the
 * first t at which all fit and the next two, with BANK all others, where all fit, the one with the
 * least error s^2 sum |y - p|^2, summed block by block; with FIRST_FIT that first t. If there is
 * none, the largest; if all blocks are ignored, 0.
 */
HZI_LATTICE_FN int hzi_lattice_group(const struct hzi_lattice_rule *r,
				  const struct hzi_lattice_matrices *m, int n, const float *v,
				  const uint8_t *skip)
{
	const int tries = r->flags & HZI_LATTICE_FIRST_FIT ? 1 :
			  r->policy == HZI_LATTICE_BANK ? r->scales : HZI_LATTICE_TRIES;
	int best = r->scales, end = r->scales;
	float least = 0;

	for (int t = 0; t < end; t++) {
		float y[HZI_LATTICE_DIMS], sum = 0;
		int32_t g[HZI_LATTICE_DIMS];
		int fits = 1;

		for (int b = 0; b < n && fits; b++) {
			if (skip[b])
				continue;
			fits = hzi_lattice_try(r, m, v + b * r->d, r->inverse[t], 1.0f, y, g);
			sum = hzi_ladd(sum, hzi_lattice_error(r, m, y, g));
		}
		if (!fits)
			continue;
		sum = hzi_lmul(sum, hzi_lmul(r->scale[t], r->scale[t]));
		if (best == r->scales)
			end = t + tries < end ? t + tries : end;
		if (best == r->scales || sum < least) {
			least = sum;
			best = t;
		}
	}
	return best < r->scales ? best : r->largest;
}

/*
 * The point g and the scale t of a block whose t is not that of hzi_lattice_group(). Returns 1 if
 * the block was wrapped or clipped.
 */
HZI_LATTICE_FN int hzi_lattice_choose(const struct hzi_lattice_rule *r,
				   const struct hzi_lattice_matrices *m, const float *v, int *t,
				   int32_t *g)
{
	*t = 0;
	if (r->policy == HZI_LATTICE_T || r->policy == HZI_LATTICE_BANK) {
		*t = r->policy == HZI_LATTICE_BANK && !(r->flags & HZI_LATTICE_FIRST_FIT) ?
		     hzi_lattice_best_fit(r, m, v, g) : hzi_lattice_first_fit(r, m, v, 0, g);
		if (*t < r->scales)
			return 0;
		*t = r->largest;
	}
	return hzi_lattice_at(r, m, v, *t, g);
}

/* ---- Decoding to values ---------------------------------------------------------------------- */

/*
 * x = T^-1 (s (p - o - sub)), each operation rounded: sub is z, less the mean of levels that were
 * left out. Coordinates of A2 and products with T^-1 or a basis are rounded too, one by one.
 */
HZI_LATTICE_FN void hzi_lattice_value(const struct hzi_lattice_rule *r,
				   const struct hzi_lattice_matrices *m, const int32_t *p,
				   const float *sub, int t, float *x)
{
	float u[HZI_LATTICE_DIMS];

	HZI_LATTICE_KNOWN(r);
	if (r->kind == HZI_LATTICE_A2) {
		u[0] = hzi_lmul(0.5f, (float)(p[0] - r->offset[0] - p[2] + r->offset[2]));
		u[1] = hzi_lmul(-0.86602540378443864676f, (float)(p[1] - r->offset[1]));
	} else {
		const float unit = r->kind == HZI_LATTICE_E8 ? 0.5f : 1.0f;

		for (int i = 0; i < r->d; i++)
			u[i] = hzi_lmul(unit, (float)(p[i] - r->offset[i]));
	}
	for (int i = 0; i < r->d; i++)
		u[i] = hzi_lmul(hzi_ladd(u[i], -sub[i]), r->scale[t]);
	for (int i = 0; i < r->d; i++) {
		float s = u[i];

		if (r->flags & HZI_LATTICE_MAPPED) {
			s = hzi_lmul(m->from[i * r->d], u[0]);
			for (int j = 1; j < r->d; j++)
				s = hzi_ladd(s, hzi_lmul(m->from[i * r->d + j], u[j]));
		}
		x[i] = s;
	}
}

#endif
