/*
 * calls.c - lattice quantizers: bases, transforms, packings, special values
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <float.h>

#include "t/lattice/pair.h"

/* ---- Bases ----------------------------------------------------------------------------------- */

/* The columns of a named lattice, from its to_lattice and R: G = Q R */
static void named_basis(int kind, int dim, double *g)
{
	hz_lattice_opts o = {.kind = kind, .dim = dim, .q = 2, .levels = 1};
	hz_lattice *l = lattice_new(devs[0].ctx, &o);
	hz_lattice_info info;

	hz_lattice_get_info(l, &info);
	memcpy(g, info.basis, (size_t)(info.dim * info.dim) * sizeof(*g));
	hz_lattice_close(l);
}

/* Another basis of the same lattice: random columns added to each other */
static void scramble(uint64_t *rnd, int d, double *g)
{
	int n, i, j, k;
	double f;

	for (n = 0; n < 3 * d; n++) {
		j = (int)rnd_below(rnd, d);
		k = (int)rnd_below(rnd, d);
		f = (double)(rnd_below(rnd, 5) - 2);
		for (i = 0; i < d && j != k; i++)
			g[i * d + j] += f * g[i * d + k];
	}
}

static double det(int d, const double *a)
{
	double m[24 * 24], product = 1, t;
	int i, j, k, best;

	memcpy(m, a, (size_t)(d * d) * sizeof(*m));
	for (k = 0; k < d; k++) {
		best = k;
		for (i = k; i < d; i++)
			best = fabs(m[i * d + k]) > fabs(m[best * d + k]) ? i : best;
		for (j = 0; j < d && best != k; j++) {
			t = m[k * d + j];
			m[k * d + j] = m[best * d + j];
			m[best * d + j] = -t;
		}
		product *= m[k * d + k];
		for (i = k + 1; i < d; i++) {
			t = m[i * d + k] / m[k * d + k];
			for (j = k; j < d; j++)
				m[i * d + j] -= t * m[k * d + j];
		}
	}
	return product;
}

/* R is upper triangular, to_lattice and from_lattice are inverses, and to_lattice G = R / beta. */
static int factors_hold(const hz_lattice_info *f, double beta)
{
	double e = 0, identity, r, s;
	int i, j, k, d = f->dim;

	for (i = 0; i < d; i++) {
		for (j = 0; j < d; j++) {
			identity = r = 0;
			for (k = 0; k < d; k++) {
				identity += f->to_lattice[i * d + k] * f->from_lattice[k * d + j];
				r += f->to_lattice[i * d + k] * f->basis[k * d + j];
			}
			s = j >= i ? f->reduced[i * d + j] : 0;
			e = fmax(e, fabs(identity - (i == j)));
			e = fmax(e, fabs(r * beta - s));
			e = fmax(e, j < i ? fabs(f->reduced[i * d + j]) : 0);
		}
		if (!(f->reduced[i * d + i] > 0))
			return 0;
	}
	return e < 1e-9;
}

/* Checks the squared distance of each block to its decoded value against `limit`; adds it to
 * *total. */
static int within(const float *x, const float *y, int64_t n, int d, double limit, double *total)
{
	int64_t b;
	int i, good = 1;

	*total = 0;
	for (b = 0; b < n / d; b++) {
		double e = 0;

		for (i = 0; i < d; i++)
			e += ((double)x[b * d + i] - (double)y[b * d + i]) *
			     ((double)x[b * d + i] - (double)y[b * d + i]);
		*total += e;
		good &= e <= limit;
	}
	return good;
}

/* The same values through the named lattice and through a scrambled basis of it. The sphere decoder
 * finds points equally near; nearest plane loses at most the known factors. */
static void test_bases(struct dev *dev, uint64_t *rnd)
{
	static const struct {
		int kind, dim, q, levels;
		double loss;		/* of nearest plane, in dB */
	} rows[] = {
		{HZ_LATTICE_Z, 3, 5, 3, 0.01}, {HZ_LATTICE_A2, 2, 4, 4, 0.4},
		{HZ_LATTICE_D, 4, 4, 4, 0.9},  {HZ_LATTICE_D, 8, 3, 4, 1.5},
		{HZ_LATTICE_E8, 8, 4, 3, 2.2},
	};
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const int64_t n = 24 * (tap_quick() ? 20 : 200);
		double g[64], exact, plane, sphere, limit = 1e9;
		float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
		int64_t over[2], k;
		hz_lattice_opts o = {.kind = rows[i].kind, .dim = rows[i].dim, .q = rows[i].q,
				     .levels = rows[i].levels, .beta = 0.5};
		hz_lattice *l = lattice_new(dev->ctx, &o);
		struct pair p = pair_new(dev, l, HZ_LATTICE_LEVEL, 1, n);
		int d = p.info.dim, good, reduced, seconds;

		for (k = 0; k < n; k++)
			x[k] = (float)rnd_normal(rnd);
		encode(&p, x, over);
		good = over[0] == 0;
		decode(&p, y);
		within(x, y, n, d, limit, &exact);
		pair_free(&p);
		hz_lattice_close(l);
		named_basis(rows[i].kind, rows[i].dim, g);
		scramble(rnd, d, g);
		o.kind = HZ_LATTICE_BASIS;
		o.dim = d;
		o.basis = g;
		for (seconds = 0; seconds < 2; seconds++) {
			o.flags = seconds ? HZ_LATTICE_SPHERE : 0;
			l = lattice_new(dev->ctx, &o);
			p = pair_new(dev, l, HZ_LATTICE_LIMBS, 1, n);
			reduced = factors_hold(&p.info, 0.5) &&
				  fabs(fabs(det(d, p.info.basis) / det(d, g)) - 1) < 1e-9;
			encode(&p, x, over);
			good &= over[0] == 0;
			decode(&p, y);
			within(x, y, n, d, limit, seconds ? &sphere : &plane);
			pair_free(&p);
			hz_lattice_close(l);
			ok(reduced,
			   "%s: basis of kind %d, %d: a basis of the same lattice, Q R = G",
			   dev->name, rows[i].kind, d);
		}
		ok(good, "%s: basis of kind %d, %d: no overload", dev->name, rows[i].kind, d);
		ok(sphere <= exact * 1.00001 && sphere >= exact * 0.99999,
		   "%s: basis of kind %d, %d: the sphere decoder finds the nearest points",
		   dev->name, rows[i].kind, d);
		ok(plane >= exact * 0.99999 && 10 * log10(plane / exact) < rows[i].loss,
		   "%s: basis of kind %d, %d: nearest plane loses %.2f dB", dev->name, rows[i].kind,
		   d, 10 * log10(plane / exact));
		free(x);
		free(y);
	}
}

/* An offset is in coordinates of the caller's basis, although codes use a reduced one: a basis of
 * Z^2 and the unit vectors give the same points if their offsets are the same point. */
static void test_offset_of_basis(uint64_t *rnd)
{
	static const double unit[4] = {1, 0, 0, 1}, skew[4] = {1, 2, 0, 1};
	static const int64_t by_unit[2] = {3, 2}, by_skew[2] = {-1, 2};	/* the same point in both
									 * bases */
	float x[256], y[2][256];
	int64_t over[2][2];
	int good = 1;

	for (int k = 0; k < ndevs; k++) {
		for (int i = 0; i < 256; i++)
			x[i] = (float)(4 * rnd_normal(rnd));
		for (int s = 0; s < 2; s++) {
			const hz_lattice_opts o = {.kind = HZ_LATTICE_BASIS,
						   .dim = 2,
						   .q = 4,
						   .levels = 2,
						   .basis = s ? skew : unit,
						   .offset = s ? by_skew : by_unit,
						   .policy = HZ_LATTICE_CLIP};
			hz_lattice *l = lattice_new(devs[k].ctx, &o);
			struct pair p = pair_new(&devs[k], l, HZ_LATTICE_LIMBS, 1, 256);

			encode(&p, x, over[s]);
			decode(&p, y[s]);
			pair_free(&p);
			hz_lattice_close(l);
		}
		good &= memcmp(y[0], y[1], sizeof(x)) == 0 && over[0][0] == over[1][0];
	}
	ok(good, "an offset in a basis that is reduced");
}

/* A random basis and transform: decoded values encode to the same codes, and all devices agree. */
static void test_random_basis(uint64_t *rnd)
{
	int n, i, k, good = 1;

	for (n = 0; n < (tap_quick() ? 4 : 24); n++) {
		const int d = 1 + (int)rnd_below(rnd, n < 4 ? 3 : 24);
		double g[24 * 24], t[24 * 24], bank[3] = {1, 1.5, 2.2};
		const int64_t count = d * 37 - 1;
		float *x = malloc((size_t)count * 4), *y = malloc((size_t)count * 4),
		      *first = malloc((size_t)count * 4);
		uint32_t *codes = NULL, *other = NULL;
		int64_t over[2], other_over[2];
		hz_lattice_opts o = {.kind = HZ_LATTICE_BASIS,
				     .dim = d,
				     .q = 2 + (int)rnd_below(rnd, 4),
				     .levels = 1 + (int)rnd_below(rnd, 3),
				     .basis = g,
				     .beta = 0.3,
				     .policy = (int)rnd_below(rnd, 4),
				     .bank = bank,
				     .flags = (rnd_below(rnd, 2) && d < 9 ? HZ_LATTICE_SPHERE : 0) |
					      (rnd_below(rnd, 2) ? HZ_LATTICE_CENTER : 0)};

		o.banks = o.policy == HZ_LATTICE_BANK ? 3 : 0;
		for (i = 0; i < d * d; i++) {
			g[i] = rnd_normal(rnd) + (i % (d + 1) ? 0 : 2);
			t[i] = 0.2 * rnd_normal(rnd) / d + (i % (d + 1) ? 0 : 1);
		}
		o.transform = n % 2 ? t : NULL;
		for (i = 0; i < count; i++)
			x[i] = (float)(rnd_normal(rnd) * (rnd_below(rnd, 20) ? 1 : 30));
		for (k = 0; k < ndevs; k++) {
			hz_lattice *l = lattice_new(devs[k].ctx, &o);
			struct pair p = pair_new(&devs[k], l, HZ_LATTICE_LIMBS, 1, count);

			codes = k ? codes : malloc(p.codes.bytes);
			other = k ? other : malloc(p.codes.bytes);
			encode(&p, x, k ? other_over : over);
			get(&p.codes, k ? other : codes);
			good &= !k || !memcmp(codes, other, p.codes.bytes);
			good &= !k || !memcmp(over, other_over, sizeof(over));
			decode(&p, k ? y : first);
			good &= !k || !memcmp(first, y, (size_t)count * 4);
			if (o.policy == HZ_LATTICE_NONE || o.policy == HZ_LATTICE_CLIP) {
				/* not the last block, which is partial */
				encode(&p, first, other_over);
				get(&p.codes, other);
				good &= !memcmp(codes, other,
						(size_t)((count / d) * p.info.limbs) * 4);
			}
			pair_free(&p);
			hz_lattice_close(l);
			if (!good) {
				diag("%s: dim %d q %d M %d policy %d flags %u", devs[k].name, d,
				     o.q, o.levels, o.policy, o.flags);
				break;
			}
		}
		free(x);
		free(y);
		free(first);
		free(codes);
		free(other);
		if (!good)
			break;
	}
	ok(good, "random bases and transforms: the same on every device, and stable");
}

/* T x as in hz_lattice_encode(): Inf counts as the largest number, before and after. */
static void transformed(int d, const double *t, const float *x, float *v)
{
	int i, j;

	for (i = 0; i < d; i++) {
		volatile float sum = 0, one;

		for (j = 0; j < d; j++) {
			one = (float)t[i * d + j] * fmaxf(fminf(x[j], FLT_MAX), -FLT_MAX);
			sum = j ? sum + one : one;
			sum = isnan(x[j]) ? NAN : sum;
		}
		v[i] = isnan(sum) ? NAN : fmaxf(fminf(sum, FLT_MAX), -FLT_MAX);
	}
}

/* A named lattice with a transform gives the codes that transformed values have without it;
 * decoding transforms back. */
static void test_transformed(struct dev *dev, uint64_t *rnd)
{
	static const struct {
		int kind, dim, q, levels;
	} rows[] = {{HZ_LATTICE_Z, 1, 16, 1}, {HZ_LATTICE_Z, 3, 5, 2}, {HZ_LATTICE_A2, 2, 4, 2},
		    {HZ_LATTICE_D, 4, 4, 2}, {HZ_LATTICE_D, 6, 3, 2}, {HZ_LATTICE_E8, 8, 4, 2},
		    {HZ_LATTICE_E8, 8, 14, 1}};
	double bank[3] = {1, 1.5, 2.2}, t[8 * 8];
	size_t r, c;
	int i, policy, good = 1;

	for (r = 0; r < sizeof(rows) / sizeof(*rows) && good; r++) {
		for (policy = 0; policy < 5 && good; policy++) {
			const int d = rows[r].dim;
			const int64_t count = (int64_t)d * (1 + rnd_below(rnd, 300));
			float *x = malloc((size_t)count * 4), *v = malloc((size_t)count * 4);
			hz_lattice_opts o = {.kind = rows[r].kind, .dim = d, .q = rows[r].q,
					     .levels = rows[r].levels, .beta = 0.3,
					     .policy = policy, .bank = bank};
			int64_t over[2][2];
			hz_lattice *l[2];
			struct pair p[2];
			unsigned char *codes[2], *ts[2];

			o.banks = policy == HZ_LATTICE_BANK ? 3 : 0;
			o.group = policy == HZ_LATTICE_GROUP ? 24 : 0;
			for (i = 0; i < d * d; i++)
				t[i] = (double)(float)(0.3 * rnd_normal(rnd) +
						       (i % (d + 1) ? 0 : 1));
			for (i = 0; i < count; i++) {
				x[i] = (float)(rnd_normal(rnd) * (rnd_below(rnd, 20) ? 1 : 30));
				if (rnd_below(rnd, 200) == 0)
					x[i] = rnd_below(rnd, 2) ? NAN : INFINITY;
			}
			for (i = 0; i < count; i += d)
				transformed(d, t, x + i, v + i);
			for (i = 0; i < 2; i++) {
				o.transform = i ? NULL : t;
				l[i] = lattice_new(dev->ctx, &o);
				p[i] = pair_new(dev, l[i], HZ_LATTICE_LIMBS, 1, count);
				encode(&p[i], i ? v : x, over[i]);
				codes[i] = malloc(p[i].codes.bytes);
				ts[i] = malloc(p[i].t.bytes);
				get(&p[i].codes, codes[i]);
				get(&p[i].t, ts[i]);
			}
			good &= !memcmp(codes[0], codes[1], p[0].codes.bytes);
			good &= !p[0].info.scales || !memcmp(ts[0], ts[1], p[0].t.bytes);
			good &= over[0][0] == over[1][0];
			for (i = 0; i < 2; i++)
				decode(&p[i], i ? v : x);
			for (c = 0; c < (size_t)count && good; c++) {
				const size_t first = c / (size_t)d * (size_t)d;
				double sum = 0, size = 0;

				/* T y is what the lattice without the transform decodes to. */
				for (i = 0; i < d; i++) {
					sum += t[(c - first) * (size_t)d + (size_t)i] *
					       x[first + (size_t)i];
					size += fabs(x[first + (size_t)i]);
				}
				good &= fabs(sum - v[c]) <= 1e-4 * (size + fabs(v[c]));
			}
			if (!good)
				diag("%s: kind %d, dim %d, q %d, policy %d", dev->name, o.kind, d,
				     o.q, policy);
			for (i = 0; i < 2; i++) {
				pair_free(&p[i]);
				hz_lattice_close(l[i]);
				free(codes[i]);
				free(ts[i]);
			}
			free(x);
			free(v);
		}
	}
	ok(good, "%s: named lattices with transforms", dev->name);
}

/* ---- Transforms, packings -------------------------------------------------------------------- */

static void test_rotation(struct dev *dev, uint64_t *rnd)
{
	const int64_t rows = 5, n = 256;
	hz_lattice_opts o = {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.23,
			     .policy = HZ_LATTICE_T};
	hz_lattice *l = lattice_new(dev->ctx, &o);
	struct pair p = pair_new(dev, l, HZ_LATTICE_LEVEL, rows, n);
	hz_hadamard_opts h = {.plan = HZ_PLAN_AUTO}, back = {.flags = HZ_HADAMARD_TRANSPOSE};
	float *x = malloc((size_t)(rows * n) * 4), *y = malloc((size_t)(rows * n) * 4),
	      *want = malloc((size_t)(rows * n) * 4);
	uint16_t *codes = malloc(p.codes.bytes), *plain = malloc(p.codes.bytes);
	uint8_t *t = malloc(p.t.bytes), *t_plain = malloc(p.t.bytes);
	struct area middle = area_new(dev, (size_t)(rows * n) * 4, 0);
	hz_tensor mt = hz_tensor_2d(middle.data, HZ_F32, dev->device, rows, n);
	int64_t over[2], i;

	for (i = 0; i < rows * n; i++)
		x[i] = (float)(rnd_normal(rnd) * (i % 17 ? 1 : 5));
	p.o.hadamard = &h;
	encode(&p, x, over);
	get(&p.codes, codes);
	get(&p.t, t);
	decode(&p, y);
	p.o.hadamard = NULL;
	if (hz_hadamard(dev->ctx, &p.xt, &mt, &h) != HZ_OK)
		bail("hadamard: %s", hz_errmsg(dev->ctx));
	get(&middle, want);
	encode(&p, want, over);
	get(&p.codes, plain);
	get(&p.t, t_plain);
	ok(!memcmp(codes, plain, p.codes.bytes) && !memcmp(t, t_plain, p.t.bytes),
	   "%s: encoding with a rotation is the rotation, then encoding", dev->name);
	decode(&p, want);
	put(&middle, want);
	if (hz_hadamard(dev->ctx, &mt, &mt, &back) != HZ_OK)
		bail("hadamard: %s", hz_errmsg(dev->ctx));
	get(&middle, want);
	ok(!memcmp(y, want, (size_t)(rows * n) * 4),
	   "%s: decoding with a rotation is decoding, then its transpose", dev->name);
	free(x);
	free(y);
	free(want);
	free(codes);
	free(plain);
	free(t);
	free(t_plain);
	area_free(&middle);
	pair_free(&p);
	hz_lattice_close(l);
}

/*
 * Each packing converted to each other one and back; codes of one packing against those of another
 */
static void test_repack(struct dev *dev, uint64_t *rnd)
{
	static const struct {
		int kind, dim, q, levels;
	} rows[] = {
		{HZ_LATTICE_D, 4, 4, 2}, {HZ_LATTICE_E8, 8, 3, 2}, {HZ_LATTICE_E8, 8, 16, 2},
		{HZ_LATTICE_A2, 2, 5, 3}, {HZ_LATTICE_Z, 1, 3, 7}, {HZ_LATTICE_E8, 8, 3, 6},
		{HZ_LATTICE_D, 24, 4, 2}, {HZ_LATTICE_D, 24, 2, 2}, {HZ_LATTICE_E8, 8, 4, 2},
		{HZ_LATTICE_BASIS, 2, 300, 2},
	};
	static const double basis[4] = {1, 0.5, 0, 0.8};
	size_t i;
	int a, b, good = 1;

	for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		/* More blocks than one pass processes, unless that takes too long */
		const int64_t n = rows[i].dim * (i ? 301 : 1100);
		hz_lattice_opts o = {.kind = rows[i].kind,
				     .dim = rows[i].dim,
				     .basis = rows[i].kind == HZ_LATTICE_BASIS ? basis : NULL,
				     .q = rows[i].q,
				     .levels = rows[i].levels,
				     .beta = 0.2,
				     .policy = HZ_LATTICE_CLIP};
		hz_lattice *l = lattice_new(dev->ctx, &o);
		float *x = malloc((size_t)n * 3 * 4);
		int64_t over[2], k;
		hz_lattice_info info;

		hz_lattice_get_info(l, &info);
		for (k = 0; k < n * 3; k++)
			x[k] = (float)rnd_normal(rnd);
		for (a = 0; a < 3; a++) {
			for (b = 0; b < 3; b++) {
				struct pair from, to;
				void *want, *got;

				if ((!info.level_dtype && (a == 0 || b == 0)) ||
				    (!info.full64 && (a == 1 || b == 1)))
					continue;
				from = pair_new(dev, l, a, 3, n);
				to = pair_new(dev, l, b, 3, n);
				want = malloc(to.codes.bytes);
				got = malloc(to.codes.bytes);
				encode(&to, x, over);
				get(&to.codes, want);
				encode(&from, x, over);
				memset(got, 0x5a, to.codes.bytes);
				put(&to.codes, got);
				if (hz_lattice_repack(dev->ctx, l, &from.ct, &to.ct, a, b) != HZ_OK)
					bail("repack: %s", hz_errmsg(dev->ctx));
				get(&to.codes, got);
				good &= same_bits(got, want, to.codes.bytes, 1);
				if (!good)
					diag("kind %d q %d M %d: from %d to %d", rows[i].kind,
					     rows[i].q, rows[i].levels, a, b);
				free(want);
				free(got);
				pair_free(&from);
				pair_free(&to);
			}
		}
		free(x);
		hz_lattice_close(l);
	}
	ok(good, "%s: repacking gives what encoding to that packing gives", dev->name);
}

/* LEVEL codes of p, repacked through all packings and back, equal those at want. */
static int same_repacked(struct pair *p, const void *want)
{
	static const int by[] = {HZ_LATTICE_LIMBS, HZ_LATTICE_FULL64, HZ_LATTICE_LEVEL};
	void *got = malloc(p->codes.bytes);
	struct pair from = *p;
	int good;

	for (int i = 0; i < 3; i++) {
		struct pair to = pair_new(p->dev, p->l, by[i], p->rows, p->n);

		if (hz_lattice_repack(p->dev->ctx, p->l, &from.ct, &to.ct, from.o.pack, by[i]) !=
		    HZ_OK)
			bail("repack: %s", hz_errmsg(p->dev->ctx));
		if (i)
			pair_free(&from);
		from = to;
	}
	get(&from.codes, got);
	good = same_bits(got, want, p->codes.bytes, 1);
	pair_free(&from);
	free(got);
	return good;
}

/* Bytes that are not valid codes decode as their value modulo q^d, to values and points, and
 * repacking normalizes them so. */
static void test_any_codes(struct dev *dev, uint64_t *rnd)
{
	static const struct {
		int kind, dim, q, levels;
	} rows[] = {
		{HZ_LATTICE_D, 4, 2, 2}, {HZ_LATTICE_D, 4, 3, 2}, {HZ_LATTICE_D, 4, 3, 1},
		{HZ_LATTICE_Z, 4, 2, 3}, {HZ_LATTICE_E8, 8, 3, 2}, {HZ_LATTICE_Z, 1, 5, 2},
	};
	enum { BLOCKS = 300 };
	int good = 1;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		hz_lattice_opts o = {.kind = rows[i].kind,
				     .dim = rows[i].dim,
				     .q = rows[i].q,
				     .levels = rows[i].levels,
				     .beta = 0.5};
		hz_lattice *l = lattice_new(dev->ctx, &o);
		struct pair p = pair_new(dev, l, HZ_LATTICE_LEVEL, 2, rows[i].dim * BLOCKS);
		const size_t bytes = p.codes.bytes, size = hz_dtype_size(p.info.level_dtype);
		unsigned char *codes = malloc(bytes), *any = malloc(bytes);
		float *y[2] = {malloc(p.y.bytes), malloc(p.y.bytes)};

		for (size_t k = 0; k < bytes; k++)
			codes[k] = (unsigned char)rnd_u64(rnd);
		memcpy(any, codes, bytes);
		put(&p.codes, codes);
		decode(&p, y[0]);
		for (size_t k = 0; k < bytes; k += size) {
			uint16_t code = codes[k];

			if (size == 2)
				memcpy(&code, codes + k, 2);
			put_int(codes, size, (int64_t)(k / size),
				(uint64_t)(code % (p.info.level_max + 1)));
		}
		put(&p.codes, codes);
		decode(&p, y[1]);
		if (!same_bits(y[0], y[1], p.y.bytes / 4, 4)) {
			diag("kind %d d %d q %d", rows[i].kind, rows[i].dim, rows[i].q);
			good = 0;
		}
		put(&p.codes, any);
		if (!same_repacked(&p, codes)) {
			diag("repacked, kind %d d %d q %d", rows[i].kind, rows[i].dim, rows[i].q);
			good = 0;
		}
		free(any);
		free(codes);
		free(y[0]);
		free(y[1]);
		pair_free(&p);
		hz_lattice_close(l);
	}
	ok(good, "%s: codes beyond q^d count modulo it", dev->name);
}

/* One block per row, whose dimension may have any stride */
static void test_one_block(struct dev *dev)
{
	enum { ROWS = 5 };
	const hz_lattice_opts o = {.kind = HZ_LATTICE_Z, .q = 5, .levels = 1};
	hz_lattice *l = lattice_new(dev->ctx, &o);
	struct pair p = pair_new(dev, l, HZ_LATTICE_LEVEL, ROWS, 1);
	const hz_lattice_code_opts points = {.to = HZ_LATTICE_POINTS};
	hz_tensor y = hz_tensor_3d(p.y.data, HZ_S32, dev->device, ROWS, 1, 1);
	static const unsigned char codes[ROWS] = {0, 1, 2, 3, 4};
	static const int32_t want[ROWS] = {0, 1, 2, -2, -1};
	int32_t got[ROWS];

	y.stride[1] = 0;
	put(&p.codes, codes);
	if (hz_lattice_decode(dev->ctx, l, &p.ct, NULL, &y, &points) != HZ_OK)
		bail("decode: %s", hz_errmsg(dev->ctx));
	get(&p.y, got);
	ok(same_bits(got, want, ROWS, 4), "%s: points of rows of one block", dev->name);
	pair_free(&p);
	hz_lattice_close(l);
}

/* ---- Inf, NaN and large values --------------------------------------------------------------- */

static void test_specials(struct dev *dev)
{
	static const float x[] = {NAN,	 1, 1,	     0,	       INFINITY, 0,	    0,
				  0,	 1, 1,	     0,	       0,	 -INFINITY, INFINITY,
				  1,	 2, FLT_MAX, -FLT_MAX, 1e30f,	 0,	    1e-45f,
				  -0.0f, 0, 0,	     100,      3,	 -2,	    1};
	int policy, good = 1, i;

	for (policy = HZ_LATTICE_NONE; policy <= HZ_LATTICE_GROUP; policy++) {
		double bank[2] = {1, 2};
		hz_lattice_opts o = {.kind = HZ_LATTICE_D,
				     .q = 4,
				     .levels = 2,
				     .policy = policy,
				     .bank = bank,
				     .banks = policy == HZ_LATTICE_BANK ? 2 : 0,
				     .group = policy == HZ_LATTICE_GROUP ? 8 : 0,
				     .flags = HZ_LATTICE_CENTER};
		hz_lattice *l = lattice_new(dev->ctx, &o);
		struct pair p = pair_new(dev, l, HZ_LATTICE_LEVEL, 1, 28);
		float y[28];
		uint8_t t[7];
		int64_t over[2];

		encode(&p, x, over);
		decode(&p, y);
		get(&p.t, t);
		good &= over[1] == 3;
		for (i = 0; i < 28; i++)
			good &= isfinite(y[i]);
		for (i = 0; i < 4; i++)
			good &= y[i] == 0 && y[20 + i] == 0;
		good &= over[0] == (policy == HZ_LATTICE_T     ? 3 :
				    policy == HZ_LATTICE_GROUP ? over[0] :
								 4);
		if (policy == HZ_LATTICE_T)
			good &= t[0] == 0 && t[1] == 31 && t[2] == 0 && t[3] == 31 && t[4] == 31 &&
				t[5] == 0;
		if (policy == HZ_LATTICE_T || policy == HZ_LATTICE_CLIP)
			good &= y[4] > 7 && y[12] < -3 && y[13] > 3 && y[16] > 3 && y[17] < -3;
		if (!good)
			diag("policy %d: overload %lld %lld", policy, (long long)over[0],
			     (long long)over[1]);
		pair_free(&p);
		hz_lattice_close(l);
	}
	ok(good, "%s: NaN is 0, Inf is cut off, both are counted", dev->name);
}

static void test_empty(struct dev *dev)
{
	hz_lattice_opts o = {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2};
	hz_lattice *l = lattice_new(dev->ctx, &o);
	struct area over = area_new(dev, 16, 0);
	hz_tensor x = hz_tensor_2d(NULL, HZ_F16, dev->device, 0, 16), y = x;
	hz_tensor codes = hz_tensor_3d(NULL, HZ_U16, dev->device, 0, 2, 2);
	hz_tensor ot = hz_tensor_1d(over.data, HZ_S64, dev->device, 2);
	hz_tensor none = hz_tensor_2d(NULL, HZ_F32, dev->device, 3, 0);
	hz_tensor no_codes = hz_tensor_3d(NULL, HZ_U16, dev->device, 3, 0, 2);
	int64_t counts[2] = {1, 1};

	ok(hz_lattice_encode(dev->ctx, l, &x, &codes, NULL, &ot, NULL) == HZ_OK &&
	   hz_lattice_decode(dev->ctx, l, &codes, NULL, &y, NULL) == HZ_OK &&
	   hz_lattice_encode(dev->ctx, l, &none, &no_codes, NULL, NULL, NULL) == HZ_OK &&
	   hz_lattice_decode(dev->ctx, l, &no_codes, NULL, &none, NULL) == HZ_OK,
	   "%s: empty tensors", dev->name);
	hz_sync(dev->ctx);
	get(&over, counts);
	ok(counts[0] == 0 && counts[1] == 0, "%s: counts of nothing are 0", dev->name);
	area_free(&over);
	hz_lattice_close(l);
}

/* ---- Batches: results do not depend on the shape --------------------------------------------- */

static void test_batches(struct dev *dev, uint64_t *rnd)
{
	const int64_t n = 8 * 60;
	hz_lattice_opts o = {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2, .beta = 0.4,
			     .policy = HZ_LATTICE_T};
	hz_lattice *l = lattice_new(dev->ctx, &o);
	float *x = malloc((size_t)n * 4);
	uint16_t *want = NULL, *got = NULL;
	int64_t over[2], i, rows;
	int good = 1;

	for (i = 0; i < n; i++)
		x[i] = (float)rnd_normal(rnd);
	for (rows = 1; rows <= 60; rows++) {
		struct pair p;

		if (60 % rows)
			continue;
		p = pair_new(dev, l, HZ_LATTICE_LEVEL, rows, n / rows);
		want = rows == 1 ? malloc(p.codes.bytes) : want;
		got = rows == 1 ? malloc(p.codes.bytes) : got;
		encode(&p, x, over);
		get(&p.codes, rows == 1 ? want : got);
		good &= rows == 1 || same_bits(got, want, p.codes.bytes / 2, 2);
		pair_free(&p);
	}
	ok(good, "%s: one row or sixty, the same codes", dev->name);
	free(x);
	free(want);
	free(got);
	hz_lattice_close(l);
}

int main(void)
{
	uint64_t rnd = tap_seed();
	int i;

	dev_open_all();
	dev_open_routes(HZI_OP_lattice_encode);
	dev_open_routes(HZI_OP_lattice_decode);
	dev_open_routes(HZI_OP_lattice_repack);
	for (i = 0; i < ndevs; i++) {
		if (devs[i].again)
			continue;
		test_bases(&devs[i], &rnd);
		test_transformed(&devs[i], &rnd);
		test_rotation(&devs[i], &rnd);
		test_repack(&devs[i], &rnd);
		test_any_codes(&devs[i], &rnd);
		test_one_block(&devs[i]);
		test_specials(&devs[i]);
		test_empty(&devs[i]);
		test_batches(&devs[i], &rnd);
	}
	test_offset_of_basis(&rnd);
	test_random_basis(&rnd);
	dev_close_all();
	return done_testing();
}
