/*
 * base.c - base Hadamard matrices of orders that are no powers of two
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "lib/hadamard/hadamard.h"

/*
 * Every table is S_(m/c) (x) core: a core matrix of order c, doubled by Sylvester's construction.
 * With chi the quadratic character of GF(q) and Q_ij = chi(a_j - a_i), where the elements of
 * GF(p^e) are numbered by their coefficients, a = sum of digit_l p^l:
 *
 *   PALEY1      c = q + 1, q = 3 mod 4        [ 1  -1'   ]
 *                                             [ 1  I - Q ]            H + H' = 2 I
 *   PALEY2      c = 2 (q + 1), q = 1 mod 4    [ C + I   C - I ]
 *                                             [ C - I  -C - I ],  C = [ 0  1' ]
 *                                                                     [ 1  Q  ]
 *   WILLIAMSON  c = 4 h, symmetric circulants [  A   B   C   D ]
 *               of order h                    [ -B   A  -D   C ]
 *                                             [ -C   D   A  -B ]
 *                                             [ -D  -C   B   A ]
 *
 * In this form they equal the tables of QuIP#, fast-hadamard-transform and MLX entry for entry,
 * except for order 12 of DAO, whose rows and columns alternate between the two halves. The forward
 * transforms of those libraries compute y = B x (hadK @ x in QuIP#, out[i] = sum_j of B_ij x[j] in
 * fast-hadamard-transform and MLX).
 */
struct recipe {
	int core;		/* HZ_BASE_PALEY1, PALEY2 or WILLIAMSON */
	int c;			/* the order of the core */
	int p, q;		/* PALEY: the field GF(q) of characteristic p */
	bool interleave;	/* PALEY2: index 2 i + s is s c / 2 + i */
	const uint32_t *rows;	/* WILLIAMSON: first rows of A B C D */
	int8_t chi[HZI_BASE_MAX];
};

/* First rows of A, B, C, D: bits j and h - j are set if entries j and h - j are -1. */
static const struct {
	int m;
	uint32_t rows[4];
} williamson[] = {
	{ 20, { 0x6, 0x6, 0x4, 0x2 } },
	{ 28, { 0xe, 0xc, 0xa, 0x6 } },
	{ 52, { 0x1a, 0xe, 0x34, 0x5e } },
	{ 92, { 0x5dc, 0x192, 0x538, 0xe88 } },
	{ 116, { 0x116c, 0xe90, 0xb3a, 0x6b38 } },
	{ 124, { 0x7b46, 0x7b46, 0x6a3e, 0x95c0 } },
	{ 156, { 0xcdf58, 0xaf370, 0xdae98, 0x47d4e } },
	{ 172, { 0x2450ce, 0x135e04, 0x342b28, 0x3cda1c } },
};

/* The names of tables in other libraries */
static const struct {
	int id, m, core;
} peers[] = {
	{ HZ_BASE_DAO, 12, HZ_BASE_PALEY2 },
	{ HZ_BASE_DAO, 20, HZ_BASE_WILLIAMSON },
	{ HZ_BASE_DAO, 28, HZ_BASE_WILLIAMSON },
	{ HZ_BASE_DAO, 40, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 12, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 20, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 28, HZ_BASE_PALEY2 },
	{ HZ_BASE_QUIP, 36, HZ_BASE_PALEY2 },
	{ HZ_BASE_QUIP, 40, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 44, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 52, HZ_BASE_WILLIAMSON },
	{ HZ_BASE_QUIP, 60, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 108, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 116, HZ_BASE_WILLIAMSON },
	{ HZ_BASE_QUIP, 124, HZ_BASE_WILLIAMSON },
	{ HZ_BASE_QUIP, 140, HZ_BASE_PALEY1 },
	{ HZ_BASE_QUIP, 156, HZ_BASE_WILLIAMSON },
	{ HZ_BASE_QUIP, 172, HZ_BASE_WILLIAMSON },
};

static const char *const names[] = { "auto", "paley1", "paley2", "williamson", "dao", "quip" };

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* The prime whose power q is; 0 if q is no prime power */
static int characteristic(int q)
{
	int p = 2;

	if (q < 2)
		return 0;
	while (p * p <= q && q % p)
		p++;
	if (q % p)
		return q;
	while (q % p == 0)
		q /= p;
	return q == 1 ? p : 0;
}

/* Whether there is a core matrix of exactly that order. Fills all of *r but chi. */
static bool find_core(struct recipe *r, int core, int c)
{
	int i;

	r->core = core;
	r->c = c;
	r->interleave = false;
	switch (core) {
	case HZ_BASE_PALEY1:
		r->q = c - 1;
		r->p = characteristic(r->q);
		return r->p && r->q % 4 == 3;
	case HZ_BASE_PALEY2:
		r->q = c / 2 - 1;
		r->p = characteristic(r->q);
		return r->p && r->q % 4 == 1;
	default:
		for (i = 0; i < COUNT(williamson); i++) {
			if (williamson[i].m == c) {
				r->rows = williamson[i].rows;
				return true;
			}
		}
		return false;
	}
}

/* Finds the recipe for a table, without chi; false if there is none. id is not HZ_BASE_AUTO. */
static bool find(struct recipe *r, int id, int m)
{
	int i, c;

	if (m < 12 || m > HZI_BASE_MAX || m % 4 || (m & (m - 1)) == 0)
		return false;
	switch (id) {
	case HZ_BASE_PALEY1:
	case HZ_BASE_PALEY2:
	case HZ_BASE_WILLIAMSON:
		for (c = m; c % 4 == 0; c /= 2)
			if (find_core(r, id, c))
				return true;
		return false;
	default:
		for (i = 0; i < COUNT(peers); i++) {
			if (peers[i].id == id && peers[i].m == m) {
				bool found = find(r, peers[i].core, m);

				r->interleave = id == HZ_BASE_DAO && m == 12;
				return found;
			}
		}
		return false;
	}
}

/*
 * chi[a] for every element a: the powers of a primitive element alternate between squares and
 * non-squares. A primitive element x is found by trying x^e = tail, tail numbered as elements are;
 * for e = 1 it is a primitive root.
 */
static void fill_chi(struct recipe *r)
{
	int tail, a, top, l, steps, sum, place;

	for (tail = 1; tail < r->q; tail++) {
		memset(r->chi, 0, sizeof(r->chi));
		a = 1;
		for (steps = 0; a && !r->chi[a]; steps++) {
			r->chi[a] = steps % 2 ? -1 : 1;
			/*
			 * a times x: the digits move up, and the top digit is carried back as top *
			 * tail.
			 */
			top = a / (r->q / r->p);
			a = a % (r->q / r->p) * r->p;
			for (sum = 0, l = tail, place = 1; place < r->q; place *= r->p, l /= r->p)
				sum += (a / place + top * (l % r->p)) % r->p * place;
			a = sum;
		}
		if (steps == r->q - 1)
			return;
	}
}

/* Q_ij */
static int q_entry(const struct recipe *r, int i, int j)
{
	int difference = 0, place;

	for (place = 1; place < r->q; place *= r->p) {
		difference += (j % r->p - i % r->p + r->p) % r->p * place;
		i /= r->p;
		j /= r->p;
	}
	return r->chi[difference];
}

static int paley1_entry(const struct recipe *r, int i, int j)
{
	if (i == 0)
		return j == 0 ? 1 : -1;
	if (j == 0 || i == j)
		return 1;
	return -q_entry(r, i - 1, j - 1);
}

static int paley2_entry(const struct recipe *r, int i, int j)
{
	int half = r->c / 2, s, t;

	if (r->interleave) {
		i = i % 2 * half + i / 2;
		j = j % 2 * half + j / 2;
	}
	s = i / half;
	t = j / half;
	i %= half;
	j %= half;
	if (i == j)
		return s || t ? -1 : 1;
	return (s && t ? -1 : 1) * (i == 0 || j == 0 ? 1 : q_entry(r, i - 1, j - 1));
}

static int williamson_entry(const struct recipe *r, int i, int j)
{
	/* index of A B C D, and its sign */
	static const int8_t array[4][4] = {
		{ 1, 2, 3, 4 }, { -2, 1, -4, 3 }, { -3, 4, 1, -2 }, { -4, -3, 2, 1 }
	};
	int h = r->c / 4, which = array[i / h][j / h];
	int d = (j % h - i % h + h) % h;

	if (d > h / 2)
		d = h - d;
	return (which < 0) ^ (int)(r->rows[(which < 0 ? -which : which) - 1] >> d & 1) ? -1 : 1;
}

static int entry(const struct recipe *r, int i, int j)
{
	int sign = __builtin_popcount((unsigned)(i / r->c & j / r->c)) % 2 ? -1 : 1;

	i %= r->c;
	j %= r->c;
	switch (r->core) {
	case HZ_BASE_PALEY1:
		return sign * paley1_entry(r, i, j);
	case HZ_BASE_PALEY2:
		return sign * paley2_entry(r, i, j);
	default:
		return sign * williamson_entry(r, i, j);
	}
}

static bool make(struct recipe *r, int id, int m)
{
	if (!find(r, id, m))
		return false;
	if (r->core != HZ_BASE_WILLIAMSON)
		fill_chi(r);
	return true;
}

static int symmetric(const struct recipe *r, int m)
{
	int i, j;

	for (i = 0; i < m; i++)
		for (j = 0; j < i; j++)
			if (entry(r, i, j) != entry(r, j, i))
				return 0;
	return 1;
}

int hzi_base_auto(int m)
{
	static const int order[] = { HZ_BASE_PALEY2, HZ_BASE_PALEY1, HZ_BASE_WILLIAMSON };
	struct recipe r;
	int i;

	for (i = 0; i < COUNT(order); i++)
		if (find(&r, order[i], m))
			return order[i];
	return 0;
}

/* HZ_ENOTSUP for a missing table; the message lists the names that have a table of that order. */
static int no_base(struct hz_context *ctx, const char *op, int id, int m)
{
	char known[64] = "";
	struct recipe r;
	size_t used = 0;
	int i;

	for (i = 1; i < COUNT(names); i++)
		if (find(&r, i, m))
			used += (size_t)snprintf(known + used, sizeof(known) - used, " %s",
						 names[i]);
	if (!used)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: no base matrix of order %d is known", op, m);
	return hzi_fail(ctx, HZ_ENOTSUP, "%s: no base matrix %s of order %d, there is:%s", op,
			id >= 0 && id < COUNT(names) ? names[id] : "of that kind", m, known);
}

static size_t base_bytes(int m)
{
	return sizeof(struct hzi_base) + (size_t)m * (size_t)((m + 31) / 32) * sizeof(uint32_t);
}

static void free_base(struct hz_context *ctx)
{
	int i;

	for (i = 0; i < HZI_BASES && ctx->base[i]; i++) {
		hzi_mfree(ctx, ctx->base[i], base_bytes(ctx->base[i]->m));
		ctx->base[i] = NULL;
	}
}

int hzi_base_get(struct hz_context *ctx, const char *op, int id, int m,
		 const struct hzi_base **base)
{
	struct recipe r;
	struct hzi_base *b;
	int slot, i, j;

	if (id == HZ_BASE_AUTO)
		id = hzi_base_auto(m);
	for (slot = 0; slot < HZI_BASES && ctx->base[slot]; slot++) {
		if (ctx->base[slot]->id == id && ctx->base[slot]->m == m) {
			*base = ctx->base[slot];
			return HZ_OK;
		}
	}
	if (!make(&r, id, m))
		return no_base(ctx, op, id, m);
	if (slot == HZI_BASES)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: a context holds %d base matrices at most", op,
				HZI_BASES);
	b = hzi_malloc(ctx, base_bytes(m), 64);
	if (!b)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for the base matrix of order %d", op,
				m);
	memset(b, 0, base_bytes(m));
	b->id = id;
	b->m = m;
	b->words = (m + 31) / 32;
	b->symmetric = symmetric(&r, m);
	for (i = 0; i < m; i++)
		for (j = 0; j < m; j++)
			if (entry(&r, i, j) < 0)
				b->bits[i * b->words + j / 32] |= UINT32_C(1) << j % 32;
	ctx->base[slot] = b;
	ctx->free_base = free_base;
	*base = b;
	return HZ_OK;
}

int hz_hadamard_base(int base, int order, int8_t *entries)
{
	struct recipe r;
	int i, j;

	if (!make(&r, base == HZ_BASE_AUTO ? hzi_base_auto(order) : base, order))
		return HZ_ENOTSUP;
	for (i = 0; entries && i < order; i++)
		for (j = 0; j < order; j++)
			entries[(size_t)i * (size_t)order + (size_t)j] = (int8_t)entry(&r, i, j);
	return symmetric(&r, order);
}
