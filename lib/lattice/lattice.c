/*
 * lattice.c - the lattice quantizer: opens one from its options
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/lattice/lattice.h"

#define DIMS HZI_LATTICE_DIMS

static const char op[] = "lattice_open";

_Static_assert(HZI_LATTICE_DIMS == HZ_LATTICE_MAXDIM, "room for all dimensions");
_Static_assert((int)HZI_LATTICE_BASIS == (int)HZ_LATTICE_BASIS &&
		       (int)HZI_LATTICE_E8 == (int)HZ_LATTICE_E8 &&
		       (int)HZI_LATTICE_D == (int)HZ_LATTICE_D &&
		       (int)HZI_LATTICE_A2 == (int)HZ_LATTICE_A2 &&
		       (int)HZI_LATTICE_Z == (int)HZ_LATTICE_Z,
	       "the same kinds for C and CUDA");
_Static_assert((int)HZI_LATTICE_GROUP == (int)HZ_LATTICE_GROUP &&
	       (int)HZI_LATTICE_BANK == (int)HZ_LATTICE_BANK &&
	       (int)HZI_LATTICE_CLIP == (int)HZ_LATTICE_CLIP &&
	       (int)HZI_LATTICE_T == (int)HZ_LATTICE_T, "the same policies");
_Static_assert((int)HZI_SHAPING_NESTED == (int)HZ_LATTICE_SHAPING_NESTED &&
	       (int)HZI_SHAPING_CUBE == (int)HZ_LATTICE_SHAPING_CUBE &&
	       (int)HZI_SHAPING_D8STAR == (int)HZ_LATTICE_SHAPING_D8STAR &&
	       (int)HZI_SHAPING_E8 == (int)HZ_LATTICE_SHAPING_E8, "the same shapings");

/* ---- Options --------------------------------------------------------------------------------- */

static int check_int(struct hz_context *ctx, const char *name, int64_t value, int64_t least,
		     int64_t most)
{
	if (value < least || value > most)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %lld, must be %lld to %lld", op,
				name, (long long)value, (long long)least, (long long)most);
	return HZ_OK;
}

static int check_positive(struct hz_context *ctx, const char *name, double value)
{
	if (!(value > 0) || !isfinite(value))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %g, must be positive and finite",
				op, name, value);
	return HZ_OK;
}

static int check_finite(struct hz_context *ctx, const char *name, const double *v, int count)
{
	for (int i = 0; v && i < count; i++) {
		if (!isfinite(v[i]))
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s[%d] is %g, must be finite",
					op, name, i, v[i]);
	}
	return HZ_OK;
}

/* The dimension that the options select; 0 if that kind does not support it */
static int dimension(const hz_lattice_opts *o)
{
	switch (o->kind) {
	case HZ_LATTICE_A2:
		return o->dim == 0 || o->dim == 2 ? 2 : 0;
	case HZ_LATTICE_E8:
		return o->dim == 0 || o->dim == 8 ? 8 : 0;
	case HZ_LATTICE_D:
		return o->dim == 0 ? 4 : o->dim >= 2 ? o->dim : 0;
	case HZ_LATTICE_Z:
		return o->dim == 0 ? 1 : o->dim;
	default:
		return o->dim;
	}
}

/* What the codes of lib/lattice/label.h have */
static int check_shaping(struct hz_context *ctx, const hz_lattice_opts *o)
{
	const char *given = o->flags & HZ_LATTICE_CENTER ? "HZ_LATTICE_CENTER is set" :
			    o->flags & HZ_LATTICE_FIRST_FIT ? "HZ_LATTICE_FIRST_FIT is set" :
			    o->transform ? "opts->transform is given" :
			    o->dither ? "opts->dither is given" :
			    o->offset ? "opts->offset is given" : NULL;

	if (o->shaping == HZ_LATTICE_SHAPING_NESTED)
		return HZ_OK;
	if (o->kind != HZ_LATTICE_E8 || o->levels != 1 || (o->q != 4 && o->q != 8 && o->q != 16))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->shaping is %d, which needs kind HZ_LATTICE_E8, levels 1 "
				"and q 4, 8 or 16: kind is %d, levels %d, q %d", op, o->shaping,
				o->kind, o->levels, o->q);
	if (o->policy != HZ_LATTICE_BANK)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->policy is %d, must be HZ_LATTICE_BANK with shaping %d",
				op, o->policy, o->shaping);
	if (o->group != 0 && o->group != 8)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->group is %d, must be 0 or 8 with shaping %d", op,
				o->group, o->shaping);
	return given ? hzi_fail(ctx, HZ_EINVAL,
				"%s: %s, which shaping %d does not have", op, given, o->shaping) :
		       HZ_OK;
}

int hzi_lattice_check_policy(struct hz_context *ctx, const char *of, const char *name,
			     const hz_lattice_opts *o)
{
	if (o->alpha != 0 && o->policy != HZ_LATTICE_T && o->policy != HZ_LATTICE_GROUP)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: %s->alpha is %g, must be 0 unless %s->policy is "
				"HZ_LATTICE_T or HZ_LATTICE_GROUP", of, name, o->alpha, name);
	if ((o->flags & HZ_LATTICE_FIRST_FIT) && o->policy != HZ_LATTICE_BANK &&
	    o->policy != HZ_LATTICE_GROUP)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_LATTICE_FIRST_FIT is set, but %s->policy is not "
				"HZ_LATTICE_BANK or HZ_LATTICE_GROUP", of, name);
	return HZ_OK;
}

static int check_opts(struct hz_context *ctx, const hz_lattice_opts *o, int d)
{
	static const struct hzi_flag flags[] = {
		HZI_FLAG(HZ_LATTICE_CENTER), HZI_FLAG(HZ_LATTICE_SPHERE),
		HZI_FLAG(HZ_LATTICE_FIRST_FIT), HZI_FLAG(HZ_LATTICE_WIDE), {0, NULL},
	};

	HZ_CHECK(check_int(ctx, "kind", o->kind, HZ_LATTICE_Z, HZ_LATTICE_BASIS));
	if (d < 1 || d > HZ_LATTICE_MAXDIM)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->dim is %d, which this lattice does not have: must be %s",
				op, o->dim, o->kind == HZ_LATTICE_A2 ? "0 or 2" :
				o->kind == HZ_LATTICE_E8 ? "0 or 8" :
				o->kind == HZ_LATTICE_D ? "0 or 2 to 24" :
				o->kind == HZ_LATTICE_Z ? "0 to 24" : "1 to 24");
	HZ_CHECK(check_int(ctx, "q", o->q, 2, 1 << 20));
	HZ_CHECK(check_int(ctx, "levels", o->levels, 1, HZ_LATTICE_MAXLEVELS));
	HZ_CHECK(check_int(ctx, "policy", o->policy, HZ_LATTICE_NONE, HZ_LATTICE_GROUP));
	HZ_CHECK(check_int(ctx, "shaping", o->shaping, HZ_LATTICE_SHAPING_NESTED,
			   HZ_LATTICE_SHAPING_E8));
	if (o->beta == 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->beta is 0: give the scale, for example that of "
				"lattice_design() for the data", op);
	HZ_CHECK(check_positive(ctx, "beta", o->beta));
	if (o->alpha != 0)
		HZ_CHECK(check_positive(ctx, "alpha", o->alpha));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o->flags,
				 HZ_LATTICE_CENTER | HZ_LATTICE_SPHERE | HZ_LATTICE_FIRST_FIT |
				 HZ_LATTICE_WIDE, flags));
	if ((o->flags & HZ_LATTICE_WIDE) && !o->preset)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_LATTICE_WIDE is set, but opts->preset is 0: it selects the "
				"bank of a preset", op);
	HZ_CHECK(hzi_lattice_check_policy(ctx, op, "opts", o));
	HZ_CHECK(check_shaping(ctx, o));
	if (o->policy == HZ_LATTICE_GROUP || (o->policy == HZ_LATTICE_BANK && o->group)) {
		HZ_CHECK(check_int(ctx, "group", o->group, 8, 128));
		if (o->group % d)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->group is %d, must be a multiple of %d", op,
					o->group, d);
	} else if (o->group) {
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->group is %d, must be 0 unless opts->policy is "
				"HZ_LATTICE_GROUP or HZ_LATTICE_BANK", op, o->group);
	}
	if (o->policy == HZ_LATTICE_BANK) {
		HZ_CHECK(check_int(ctx, "banks", o->banks, 1, HZ_LATTICE_MAXBANKS));
		if (!o->bank)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->bank is NULL, must hold %d scales", op,
					o->banks);
		for (int i = 0; i < o->banks; i++) {
			char name[24];

			snprintf(name, sizeof(name), "bank[%d]", i);
			HZ_CHECK(check_positive(ctx, name, o->bank[i]));
		}
	} else if (o->banks) {
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->banks is %d, must be 0 unless opts->policy is "
				"HZ_LATTICE_BANK", op, o->banks);
	}
	if ((o->kind == HZ_LATTICE_BASIS) != (o->basis != NULL))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->basis %s", op, o->basis ?
				"is given, but opts->kind is not HZ_LATTICE_BASIS" :
				"is NULL, must hold the basis");
	if ((o->flags & HZ_LATTICE_SPHERE) && !o->basis)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_LATTICE_SPHERE is for a basis: named lattices are exact",
				op);
	if ((o->flags & HZ_LATTICE_CENTER) && o->offset)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->offset is given, and HZ_LATTICE_CENTER set", op);
	HZ_CHECK(check_finite(ctx, "basis", o->basis, d * d));
	HZ_CHECK(check_finite(ctx, "transform", o->transform, d * d));
	HZ_CHECK(check_finite(ctx, "dither", o->dither, d));
	return hzi_check_reserved(ctx, op, o->reserved, 4);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static unsigned __int128 power(uint64_t q, int n, unsigned __int128 limit)
{
	unsigned __int128 p = 1;

	while (n-- > 0 && p <= limit)
		p *= q;
	return p;
}

/* Whether q^n <= 2^bits */
static bool fits_bits(int q, int64_t n, int bits)
{
	const unsigned __int128 limit = (unsigned __int128)1 << bits;

	return n <= 64 && power((uint64_t)q, (int)n, limit) <= limit;
}

static void set_sizes(struct hzi_lattice_rule *r)
{
	r->log2q = r->q & (r->q - 1) ? -1 : __builtin_ctz((unsigned)r->q);
	r->level_size = fits_bits(r->q, r->d, 32) ? (uint64_t)power((uint64_t)r->q, r->d,
								    (uint64_t)1 << 32) : 0;
	for (r->limb_digits = 1; fits_bits(r->q, r->limb_digits + 1, 32);)
		r->limb_digits++;
}

/* ---- Coset leaders --------------------------------------------------------------------------- */

/* The real point of p, before offset, scale and transform, as in hzi_lattice_value() */
static void real_of(const struct hzi_lattice_rule *r, const int32_t *p, double *x)
{
	if (r->kind == HZ_LATTICE_A2) {
		x[0] = 0.5 * (p[0] - p[2]);
		x[1] = -0.86602540378443864676 * p[1];
		return;
	}
	for (int i = 0; i < r->d; i++)
		x[i] = r->kind == HZ_LATTICE_E8 ? 0.5 * p[i] : p[i];
}

/*
 * Bound of |c_i|: rounding errors are at most 1/2, and 1 where a coordinate was corrected; for a
 * basis, nearest plane leaves |z_i + sum_{j>i} mu_ij z_j| <= 1/2; all times q.
 */
static double leader_bound(const hz_lattice *l)
{
	const struct hzi_lattice_rule *r = &l->rule;
	double most = 0, bound[DIMS];

	if (r->shaping)
		return r->shaping == HZ_LATTICE_SHAPING_E8 ? 2 * r->q : r->q;
	if (r->kind != HZ_LATTICE_BASIS)
		return r->q * (r->kind == HZ_LATTICE_Z ? 0.5 : r->kind == HZ_LATTICE_E8 ? 2 : 1);
	for (int i = r->d - 1; i >= 0; i--) {
		bound[i] = 0.5;
		for (int j = i + 1; j < r->d; j++)
			bound[i] += fabs(l->matrices.mu[i * r->d + j]) * bound[j];
		most = fmax(most, bound[i]);
	}
	return most * r->q;
}

static void add_leader(hz_lattice *l, const int32_t *b, int32_t *c, double *sum)
{
	double x[DIMS];

	hzi_lattice_leader(&l->rule, &l->matrices, b, c);
	real_of(&l->rule, c, x);
	for (int i = 0; i < l->rule.d; i++)
		sum[i] += x[i];
}

/*
 * Makes the table of leaders, if it is small enough, and their mean. For larger q^d the mean is
 * that of 2^16 pairs of random digits b and -b, whose leaders cancel but for ties: the estimate is
 * nearly exact.
 */
static void make_leaders(hz_lattice *l)
{
	const struct hzi_lattice_rule *r = &l->rule;
	int32_t b[DIMS], c[DIMS];
	uint64_t state = 1;
	int64_t count = 0;
	double sum[DIMS] = {0};

	/* One level: nothing is left out whose mean matters. */
	if (r->shaping && !l->leaders)
		return;
	if (l->leaders) {
		for (; count < (int64_t)r->level_size; count++) {
			int32_t *leader = l->leaders + count * r->embed;

			hzi_lattice_unindex(r, (uint32_t)count, b);
			add_leader(l, b, leader, sum);
			for (int i = 0; i < r->embed; i++) {
				if (leader[i] < l->leader_low)
					l->leader_low = leader[i];
				if (leader[i] > l->leader_high)
					l->leader_high = leader[i];
			}
		}
		l->leader_max = l->leader_high > -l->leader_low ? l->leader_high : -l->leader_low;
	} else {
		for (; count < 1 << 17; count += 2) {
			for (int i = 0; i < r->d; i++) {
				state = state * 6364136223846793005u + 1442695040888963407u;
				b[i] = (int32_t)((state >> 33) % (uint64_t)r->q);
			}
			add_leader(l, b, c, sum);
			for (int i = 0; i < r->d; i++)
				b[i] = b[i] ? r->q - b[i] : 0;
			add_leader(l, b, c, sum);
		}
	}
	for (int i = 0; i < r->d; i++)
		l->mean[i] = sum[i] / (double)count;
	/* Coordinates of Z are -q/2 .. q/2 - 1, or symmetric. */
	for (int i = 0; i < r->d && r->kind == HZ_LATTICE_Z; i++)
		l->mean[i] = r->q % 2 ? 0 : -0.5;
}

/* sum_{m < levels} q^m */
static double weight_sum(const struct hzi_lattice_rule *r, int levels)
{
	return (pow(r->q, levels) - 1) / (r->q - 1);
}

void hzi_lattice_sub(const hz_lattice *l, int first, float *sub)
{
	const double weight = weight_sum(&l->rule, first);

	for (int i = 0; i < l->rule.d; i++)
		sub[i] = first > 0 ? (float)(l->dither[i] - weight * l->mean[i]) :
				     l->rule.dither[i];
}

/* ---- Members of a quantizer ------------------------------------------------------------------ */

/* Intermediate matrices: 27 KiB, too large for the stack */
struct factors {
	double q[DIMS * DIMS], qt[DIMS * DIMS], t[DIMS * DIMS], t_inverse[DIMS * DIMS];
	double to[DIMS * DIMS], from[DIMS * DIMS];
};

/*
 * Basis, factors and maps. With T the transform, G = Q R: T_to_lat = Q^T T / beta, T_from_lat is
 * its inverse; kernels map by T, or for a basis by G^-1 T to coordinates in it.
 */
static int make_matrices(struct hz_context *ctx, hz_lattice *l, const hz_lattice_opts *o,
			 struct factors *f)
{
	const int d = l->rule.d;
	double *const q = f->q, *const qt = f->qt, *const t = f->t, *const t_inverse = f->t_inverse;
	double *const to = f->to, *const from = f->from;

	hzi_basis_named(HZ_LATTICE_Z, d, t);
	if (o->transform)
		memcpy(t, o->transform, (size_t)(d * d) * sizeof(*t));
	if (!hzi_matrix_invert(d, t, t_inverse))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->transform is singular", op);
	hzi_basis_named(o->kind, d, l->basis);
	if (o->basis) {
		memcpy(l->basis, o->basis, (size_t)(d * d) * sizeof(*t));
		if (!hzi_basis_reduce(d, l->basis))
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->basis is singular, or too nearly so", op);
	}
	hzi_basis_qr(d, l->basis, q, l->reduced);
	for (int i = 0; i < d; i++) {
		l->matrices.diagonal[i] = l->reduced[i * d + i];
		for (int j = 0; j < d; j++) {
			l->matrices.mu[i * d + j] = l->reduced[i * d + j] / l->reduced[i * d + i];
			qt[i * d + j] = q[j * d + i];
		}
	}
	hzi_matrix_multiply(d, qt, t, l->to_lattice);
	hzi_matrix_multiply(d, t_inverse, q, l->from_lattice);
	for (int i = 0; i < d * d; i++) {
		l->to_lattice[i] /= l->beta;
		l->from_lattice[i] *= l->beta;
	}
	if (o->basis || o->transform)
		l->rule.flags |= HZI_LATTICE_MAPPED;
	memcpy(to, t, sizeof(f->t));
	memcpy(from, t_inverse, sizeof(f->t));
	if (o->basis) {
		if (!hzi_matrix_invert(d, l->basis, q))
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->basis is singular", op);
		hzi_matrix_multiply(d, q, t, to);
		hzi_matrix_multiply(d, t_inverse, l->basis, from);
	}
	for (int i = 0; i < d * d; i++) {
		l->matrices.to[i] = (float)to[i];
		l->matrices.from[i] = (float)from[i];
	}
	/* The dither, too, in coordinates of the basis */
	for (int i = 0; i < d && o->dither; i++) {
		double z = o->basis ? 0 : o->dither[i];

		for (int j = 0; j < d && o->basis; j++)
			z += q[i * d + j] * o->dither[j];
		l->dither[i] = z;
		l->rule.dither[i] = (float)z;
		if (l->rule.dither[i] != 0)
			l->rule.flags |= HZI_LATTICE_DITHERED;
	}
	return HZ_OK;
}

/* Kernels store these values in f32. */
static int check_f32(struct hz_context *ctx, const char *what, const float *v, int count)
{
	for (int i = 0; i < count; i++) {
		if (!isfinite(v[i]))
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->%s has numbers that f32 does not hold", op,
					what);
	}
	return HZ_OK;
}

static int set_matrices(struct hz_context *ctx, hz_lattice *l, const hz_lattice_opts *o)
{
	struct factors *const f = hzi_malloc(ctx, sizeof(*f), 64);
	int status;

	if (!f)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, sizeof(*f));
	status = make_matrices(ctx, l, o, f);
	if (status == HZ_OK)
		status = check_f32(ctx, "dither", l->rule.dither, l->rule.d);
	for (int i = 0; i < 2 && status == HZ_OK; i++)
		status = check_f32(ctx, o->transform ? "transform, or its inverse," :
						       "basis, or its inverse,",
				   i ? l->matrices.from : l->matrices.to, l->rule.d * l->rule.d);
	hzi_mfree(ctx, f, sizeof(*f));
	return status;
}

/* Scales in f32, and their inverses, the same on every device */
static int set_scales(struct hz_context *ctx, hz_lattice *l, const hz_lattice_opts *o)
{
	struct hzi_lattice_rule *r = &l->rule;

	r->scales = r->policy == HZ_LATTICE_T ? HZI_LATTICE_LAST_T + 1 :
		    r->policy == HZ_LATTICE_GROUP ? HZI_LATTICE_SCALES :
		    r->policy == HZ_LATTICE_BANK ? o->banks : 1;
	for (int t = 0; t < r->scales; t++) {
		const double s = l->beta * (r->policy == HZ_LATTICE_BANK ? o->bank[t] :
					    exp2(l->alpha * t));

		r->scale[t] = (float)s;
		r->inverse[t] = (float)(1 / (double)r->scale[t]);
		if (!isnormal(r->scale[t]) || !isnormal(r->inverse[t]))
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: the scale of t = %d is %g, which f32 or its inverse "
					"does not hold",
					op, t, s);
		if (r->scale[t] > r->scale[r->largest])
			r->largest = t;
	}
	if (r->policy == HZ_LATTICE_GROUP)
		r->largest = r->scales - 1;
	for (int j = 0; j < 16; j++)
		r->shrink[j] = (float)exp2(-j / 16.0);
	return HZ_OK;
}

/*
 * Sets leader_max, an upper bound if leaders are not in a table; returns the largest integer of a
 * point.
 */
static double point_bound(hz_lattice *l)
{
	double bound = l->leader_max;

	if (!l->leaders) {
		bound = leader_bound(l);
		l->leader_max = (int32_t)fmin(bound, INT32_MAX);
	}
	return bound * weight_sum(&l->rule, l->rule.levels);
}

/* Integers must be exact in f32. */
static int check_size(struct hz_context *ctx, double size)
{
	if (!(size <= 1 << 24))
		return hzi_fail(
			ctx, HZ_ENOTSUP,
			"%s: points have coordinates up to %g, must be up to 2^24: fewer levels",
			op, size);
	return HZ_OK;
}

/* The offset that the options select: the point nearest to the centroid, or given coordinates */
static int set_offset(struct hz_context *ctx, hz_lattice *l, const hz_lattice_opts *o)
{
	struct hzi_lattice_rule *r = &l->rule;
	const int d = r->d;
	int32_t z[DIMS];

	if (o->flags & HZ_LATTICE_CENTER) {
		float y[DIMS];

		for (int i = 0; i < d; i++)
			y[i] = (float)(l->mean[i] * weight_sum(r, r->levels));
		hzi_lattice_level0(r, &l->matrices, y, r->offset);
		return HZ_OK;
	}
	if (!o->offset)
		return HZ_OK;
	for (int i = 0; i < d; i++) {
		if (o->offset[i] < -(1 << 20) || o->offset[i] > 1 << 20)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->offset[%d] is %lld, must be -2^20 to 2^20", op,
					i, (long long)o->offset[i]);
		z[i] = (int32_t)o->offset[i];
	}
	if (o->basis) {
		/* Coordinates refer to the caller's basis. */
		double inverse[DIMS * DIMS], point[DIMS] = {0};

		if (!hzi_matrix_invert(d, l->basis, inverse))
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->basis is singular", op);
		for (int i = 0; i < d; i++) {
			for (int j = 0; j < d; j++)
				point[i] += o->basis[i * d + j] * z[j];
		}
		for (int i = 0; i < d; i++) {
			double s = 0;

			for (int j = 0; j < d; j++)
				s += inverse[i * d + j] * point[j];
			if (!(fabs(s) <= 1 << 20))
				return hzi_fail(
					ctx, HZ_EINVAL,
					"%s: opts->offset is too far from 0 in the reduced basis",
					op);
			r->offset[i] = (int32_t)rint(s);
		}
		return HZ_OK;
	}
	hzi_lattice_combine(r, z, r->offset);
	return HZ_OK;
}

/*
 * Sets reach: the distance from 0 within which blocks may fit. Rounding to a point moves a
 * coordinate by at most 1, or for a basis by the bound of its leaders.
 */
static int set_reach(struct hz_context *ctx, hz_lattice *l, double point)
{
	struct hzi_lattice_rule *r = &l->rule;
	const double unit = r->kind == HZ_LATTICE_E8 ? 0.5 : 1;
	double offset = 0, dither = 0;
	int32_t g[DIMS];
	float v[DIMS] = {0}, at[DIMS] = {0};

	/* Not fmax(): GCC 12.2 for aarch64 crashes on such loops. */
	for (int i = 0; i < r->embed; i++)
		offset = abs(r->offset[i]) > offset ? abs(r->offset[i]) : offset;
	for (int i = 0; i < r->d; i++)
		dither = fabs(l->dither[i]) > dither ? fabs(l->dither[i]) : dither;
	HZ_CHECK(check_size(ctx, point + offset));
	l->point_max = (int32_t)point;
	r->reach = HZI_LATTICE_RANGE;
	if (!(r->flags & HZI_LATTICE_SPHERE)) {
		const double round = r->kind == HZ_LATTICE_BASIS ? leader_bound(l) / r->q : 1;
		const double reach = (point + offset) * unit + round + dither + 1;

		r->reach = (float)fmin(reach, HZI_LATTICE_RANGE);
	}
	if (r->policy != HZ_LATTICE_NONE && !hzi_lattice_try(r, &l->matrices, v, 1, 1, at, g))
		return hzi_fail(
			ctx, HZ_EINVAL,
			"%s: opts->offset and opts->dither leave 0 outside of the code, which only "
			"the policy HZ_LATTICE_NONE allows",
			op);
	return HZ_OK;
}

/* ---- The calls ------------------------------------------------------------------------------- */

int hz_lattice_open(hz_context *ctx, hz_lattice **lattice, const hz_lattice_opts *opts)
{
	hz_lattice_opts given = opts ? *opts : (hz_lattice_opts){0};
	const hz_lattice_opts *const o = &given;
	int d;
	double point = 0;
	hz_lattice *l;
	int status;

	if (lattice)
		*lattice = NULL;
	HZI_ENTER(ctx, op);
	if (!lattice || !opts)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is NULL", op, lattice ? "opts" : "lattice");
	HZ_CHECK(check_int(ctx, "preset", o->preset, 0, HZ_LATTICE_PRESET_D4_4_50));
	hzi_lattice_apply_preset(&given);
	d = dimension(o);
	HZ_CHECK(check_opts(ctx, o, d));
	assert(d > 0);
	l = hzi_malloc(ctx, sizeof(*l), 64);
	if (!l)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, sizeof(*l));
	memset(l, 0, sizeof(*l));
	l->allocator = ctx->allocator;
	l->beta = o->beta;
	l->alpha = o->alpha != 0 ? o->alpha : o->policy == HZ_LATTICE_GROUP ? 1.0 / 8 : 1.0 / 3;
	l->group = o->group;
	l->rule.kind = o->kind;
	l->rule.d = d;
	l->rule.embed = o->kind == HZ_LATTICE_A2 ? 3 : d;
	l->rule.q = o->q;
	l->rule.levels = o->levels;
	l->rule.policy = o->policy;
	l->rule.shaping = o->shaping;
	l->rule.group = o->group ? o->group / d : 1;
	if (o->flags & HZ_LATTICE_SPHERE)
		l->rule.flags |= HZI_LATTICE_SPHERE;
	if (o->flags & HZ_LATTICE_FIRST_FIT)
		l->rule.flags |= HZI_LATTICE_FIRST_FIT;
	set_sizes(&l->rule);
	status = set_scales(ctx, l, o);
	if (status == HZ_OK)
		status = set_matrices(ctx, l, o);
	if (status == HZ_OK && l->rule.level_size && l->rule.level_size <= HZI_LATTICE_LEADERS) {
		const size_t bytes = l->rule.level_size * (size_t)l->rule.embed * sizeof(int32_t);

		l->leaders = hzi_malloc(ctx, bytes, 64);
		if (!l->leaders)
			status = hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, bytes);
	}
	/* Sizes are checked before an offset is searched with 32-bit numbers. */
	if (status == HZ_OK) {
		make_leaders(l);
		point = point_bound(l);
		status = check_size(ctx, point);
	}
	if (status == HZ_OK)
		status = set_offset(ctx, l, o);
	if (status == HZ_OK)
		status = set_reach(ctx, l, point);
	if (status != HZ_OK) {
		hz_lattice_close(l);
		return status;
	}
	*lattice = l;
	return HZ_OK;
}

void hz_lattice_close(hz_lattice *l)
{
	struct hz_context seed = {.device = HZ_CPU};

	if (!l)
		return;
	seed.allocator = l->allocator;
	if (l->leaders)
		hzi_mfree(&seed, l->leaders,
			  l->rule.level_size * (size_t)l->rule.embed * sizeof(int32_t));
	hzi_mfree(&seed, l, sizeof(*l));
}

#define ROW 4096			/* values of the row that `bits` is that of */

/*
 * Bits of a value: the digits, where q is no power of two in the smaller of LEVEL and LIMBS; t, a
 * byte or the bits that a bank needs; with a bank the f32 scale of a row. D8STAR leaves out a bit.
 */
static double stored_bits(const hz_lattice *l, const hz_lattice_info *info)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int level = info->level_dtype == HZ_U8 ? 8 : info->level_dtype == HZ_U16 ? 16 : 32;
	double bits = 32 * info->limbs, t = 0, row = 0;

	if (info->level_dtype)
		bits = fmin(bits, level * r->levels);
	if (r->log2q >= 0)
		bits = r->log2q * r->d * r->levels - (r->shaping == HZ_LATTICE_SHAPING_D8STAR);
	if (r->policy == HZ_LATTICE_BANK) {
		while (1 << (int)t < r->scales)
			t++;
		row = 32;
	} else if (info->scales) {
		t = 8;
	}
	return bits / r->d + t / (r->d * r->group) + row / ROW;
}

int hz_lattice_get_info(const hz_lattice *l, hz_lattice_info *info)
{
	const struct hzi_lattice_rule *r;

	if (!l || !info)
		return HZ_EINVAL;
	r = &l->rule;
	*info = (hz_lattice_info){
		.kind = r->kind, .dim = r->d, .q = r->q, .levels = r->levels, .policy = r->policy,
		.shaping = r->shaping,
		.group = l->group,
		.embed = r->embed,
		.embed_scale = r->kind == HZ_LATTICE_E8 ? 2 : 1,
		.level_max = r->level_size ? (int64_t)r->level_size - 1 : -1,
		.level_dtype = r->level_size == 0 ? 0 : r->level_size <= 1 << 8 ? HZ_U8 :
			       r->level_size <= 1 << 16 ? HZ_U16 : HZ_U32,
		.full64 = fits_bits(r->q, (int64_t)r->d * r->levels, 64),
		.limbs = (r->d * r->levels + r->limb_digits - 1) / r->limb_digits,
		.scales = hzi_lattice_has_t(l) ? r->scales : 0,
		.point_max = l->point_max,
		.to_lattice = l->to_lattice, .from_lattice = l->from_lattice,
		.reduced = l->reduced, .basis = l->basis,
		.scale_table = r->scale,
		.offset = r->offset,
		.leaders = l->leaders,
	};
	info->bits = stored_bits(l, info);
	return HZ_OK;
}
