/*
 * base.c - the base Hadamard matrices
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/hadamard/hadamard.h"
#include "t/core/tap.h"

#define M 256

static int8_t e[M * M], f[M * M];

/* Every order of each kind up to 256; 0 ends a list. */
static const struct {
	int id;
	const char *name;
	int orders[64];
} tables[] = {
	{ HZ_BASE_AUTO, "auto",
	  { 12, 20, 24, 28, 36, 40, 44, 48, 52, 56, 60, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104,
	    108, 112, 116, 120, 124, 132, 136, 140, 144, 148, 152, 156, 160, 164, 168, 172, 176,
	    180, 184, 192, 196, 200, 204, 208, 212, 216, 220, 224, 228, 232, 240, 244, 248, 252 } },
	{ HZ_BASE_PALEY1, "paley1",
	  { 12, 20, 24, 28, 40, 44, 48, 56, 60, 68, 72, 80, 84, 88, 96, 104, 108, 112, 120, 132,
	    136, 140, 144, 152, 160, 164, 168, 176, 180, 192, 200, 208, 212, 216, 224, 228, 240,
	    244, 252 } },
	{ HZ_BASE_PALEY2, "paley2",
	  { 12, 20, 24, 28, 36, 40, 48, 52, 56, 60, 72, 76, 80, 84, 96, 100, 104, 108, 112, 120,
	    124, 144, 148, 152, 160, 164, 168, 180, 192, 196, 200, 204, 208, 216, 220, 224, 228,
	    240, 244, 248, 252 } },
	{ HZ_BASE_WILLIAMSON, "williamson",
	  { 20, 28, 40, 52, 56, 80, 92, 104, 112, 116, 124, 156, 160, 172, 184, 208, 224, 232,
	    248 } },
	{ HZ_BASE_DAO, "dao", { 12, 20, 28, 40 } },
	{ HZ_BASE_QUIP, "quip",
	  { 12, 20, 28, 36, 40, 44, 52, 60, 108, 116, 124, 140, 156, 172 } },
};

#define TABLES (int)(sizeof(tables) / sizeof(*tables))

/*
 * Tables of other libraries as FNV-1a hashes of one byte per entry, row by row: 1 for -1, 0 for +1.
 * From fast-hadamard-transform e7706fa (csrc/fast_hadamard_transform_special.h; MLX's 12, 20 and 28
 * are the same), QuIP# 1d8f873 (lib/utils/matmul_had.py; QuaRot 5008669 and SpinQuant 8f47aa3 have
 * the same), for 40 QuaRot and SpinQuant, for 44 SpinQuant (utils/hadamard_utils.py).
 */
static const struct {
	int id, m;
	uint64_t hash;
} peers[] = {
	{ HZ_BASE_DAO, 12, 0x518487a298e5e695 },   { HZ_BASE_DAO, 20, 0xe3c47fc611776069 },
	{ HZ_BASE_DAO, 28, 0xc4d5fd2188299009 },   { HZ_BASE_DAO, 40, 0x70c8487499bd07ad },
	{ HZ_BASE_QUIP, 12, 0x472d1adc7b0d1269 },  { HZ_BASE_QUIP, 20, 0xd22c29e2fedaef21 },
	{ HZ_BASE_QUIP, 28, 0xb4f557fd89659049 },  { HZ_BASE_QUIP, 36, 0x103063bb626f2e09 },
	{ HZ_BASE_QUIP, 40, 0x70c8487499bd07ad },  { HZ_BASE_QUIP, 44, 0x35f9521da92e0259 },
	{ HZ_BASE_QUIP, 52, 0xe167e549d5b98009 },  { HZ_BASE_QUIP, 60, 0xb13875768b41ac29 },
	{ HZ_BASE_QUIP, 108, 0xd56aff721ef31549 }, { HZ_BASE_QUIP, 116, 0xb65b5bbbe61b1c19 },
	{ HZ_BASE_QUIP, 124, 0xc11a82a06ecaaf99 }, { HZ_BASE_QUIP, 140, 0x951e1965629c5549 },
	{ HZ_BASE_QUIP, 156, 0x54c7629c9bee46a9 }, { HZ_BASE_QUIP, 172, 0x5adfcf034effaca9 },
};

/* The first row of fast-hadamard-transform's table of order 12, in a readable form */
static const char dao_12[] = "+-++++++++++"
			     "--+-+-+-+-+-"
			     "+++-++----++";

static uint64_t hash(const int8_t *entries, int m)
{
	uint64_t h = 0xcbf29ce484222325;
	int i;

	for (i = 0; i < m * m; i++)
		h = (h ^ (entries[i] < 0)) * 0x100000001b3;
	return h;
}

/* B B^T = m I in integers, entries +-1, and the symmetry that the call reports */
static int is_hadamard(const int8_t *b, int m, int told_symmetric)
{
	int i, j, l, sum, symmetric = 1;

	for (i = 0; i < m; i++) {
		for (j = 0; j < m; j++) {
			if (b[i * m + j] != 1 && b[i * m + j] != -1)
				return 0;
			symmetric &= b[i * m + j] == b[j * m + i];
			for (sum = l = 0; l < m; l++)
				sum += b[i * m + l] * b[j * m + l];
			if (sum != (i == j ? m : 0))
				return 0;
		}
	}
	return symmetric == told_symmetric;
}

/* The bits of hzi_base_get() are the entries of hz_hadamard_base(). */
static int same_base(const struct hzi_base *b, const int8_t *entries, int m, int symmetric)
{
	int i, j, good = b->m == m && b->words == (m + 31) / 32 && b->symmetric == symmetric;

	for (i = 0; i < m; i++)
		for (j = 0; j < b->words * 32; j++)
			good &= (int)(b->bits[i * b->words + j / 32] >> j % 32 & 1) ==
				(j < m && entries[i * m + j] < 0);
	return good;
}

/* An allocator that counts, and fails on request */
static int live, refuse;

static void *counting_alloc(void *user, size_t bytes, size_t align)
{
	void *p = NULL;

	(void)user;
	if (refuse || posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes))
		return NULL;
	live++;
	return p;
}

static void counting_free(void *user, void *p, size_t bytes)
{
	(void)user;
	(void)bytes;
	live -= p != NULL;
	free(p);
}

static void test_tables(void)
{
	int t, i, m, got, good, orders;

	for (t = 0; t < TABLES; t++) {
		good = 1;
		orders = 0;
		for (m = -8, i = 0; m <= M + 8; m++) {
			memset(e, 7, sizeof(e));
			got = hz_hadamard_base(tables[t].id, m, e);
			if (m != tables[t].orders[i] || !m) {
				if (got != HZ_ENOTSUP || e[0] != 7) {
					diag("order %d: got %d", m, got);
					good = 0;
				}
				continue;
			}
			orders++;
			i++;
			if (got < 0 || !is_hadamard(e, m, got) ||
			    e[m * m % (M * M)] != (m == M ? e[0] : 7)) {
				diag("order %d: got %d", m, got);
				good = 0;
			}
			if (hz_hadamard_base(tables[t].id, m, NULL) != got)
				good = 0;
		}
		ok(good && !tables[t].orders[i], "%s: %d orders, B B' = m I, no other order",
		   tables[t].name, orders);
	}
}

/* e of order 2 h is S_2 (x) f of order h. */
static int is_double(int h)
{
	int i, j, good = 1;

	for (i = 0; i < h; i++) {
		for (j = 0; j < h; j++) {
			good &= e[i * 2 * h + j] == f[i * h + j];
			good &= e[i * 2 * h + h + j] == f[i * h + j];
			good &= e[(h + i) * 2 * h + j] == f[i * h + j];
			good &= e[(h + i) * 2 * h + h + j] == -f[i * h + j];
		}
	}
	return good;
}

static void test_kinds(void)
{
	static const int symmetric[] = { 12, 20, 24, 28, 36, 40, 52, 56, 60, 76, 84, 100, 108, 124,
					 148, 0 };
	static const int skew[] = { 12, 20, 24, 28, 44, 48, 60, 68, 72, 80, 84, 104, 108, 132, 140,
				    244, 252, 0 };
	static const struct {
		int id, m;
	} doubles[] = {
		{ HZ_BASE_PALEY1, 40 }, { HZ_BASE_PALEY1, 56 }, { HZ_BASE_PALEY1, 88 },
		{ HZ_BASE_PALEY1, 176 }, { HZ_BASE_PALEY2, 24 }, { HZ_BASE_PALEY2, 40 },
		{ HZ_BASE_PALEY2, 48 }, { HZ_BASE_PALEY2, 240 }, { HZ_BASE_WILLIAMSON, 40 },
		{ HZ_BASE_WILLIAMSON, 184 }, { HZ_BASE_WILLIAMSON, 232 },
	};
	int i, j, k, m, good = 1;

	for (k = 0; symmetric[k]; k++)
		good &= hz_hadamard_base(HZ_BASE_AUTO, symmetric[k], NULL) == 1;
	ok(good, "auto is symmetric wherever paley2 is there");

	good = 1;
	for (k = 0; (m = tables[2].orders[k]); k++)
		good &= hz_hadamard_base(HZ_BASE_PALEY2, m, NULL) == 1;
	ok(good, "every paley2 is symmetric");

	good = 1;
	for (k = 0; (m = skew[k]); k++) {
		hz_hadamard_base(HZ_BASE_PALEY1, m, e);
		for (i = 0; i < m; i++)
			for (j = 0; j < m; j++)
				good &= e[i * m + j] + e[j * m + i] == (i == j ? 2 : 0);
	}
	ok(good, "paley1 is skew: B + B' = 2 I");

	good = 1;
	for (k = 0; k < (int)(sizeof(doubles) / sizeof(*doubles)); k++) {
		hz_hadamard_base(doubles[k].id, doubles[k].m, e);
		hz_hadamard_base(doubles[k].id, doubles[k].m / 2, f);
		good &= is_double(doubles[k].m / 2);
	}
	ok(good, "orders without a matrix of their own are S_2 (x) B");
}

static void test_peers(void)
{
	int i, same = 1;

	for (i = 0; i < (int)(sizeof(peers) / sizeof(*peers)); i++) {
		hz_hadamard_base(peers[i].id, peers[i].m, e);
		ok(hash(e, peers[i].m) == peers[i].hash,
		   "%s of order %d is the library's own table",
		   peers[i].id == HZ_BASE_DAO ? "dao" : "quip", peers[i].m);
	}
	hz_hadamard_base(HZ_BASE_DAO, 12, e);
	for (i = 0; dao_12[i]; i++)
		same &= (e[i] > 0) == (dao_12[i] == '+');
	ok(same, "rows 0 to 2 of dao 12 as they are printed there");
}

static void test_cache(void)
{
	hz_allocator allocator = { .alloc = counting_alloc, .free = counting_free };
	hz_options options = { .device = HZ_CPU, .threads = 1, .allocator = &allocator };
	const struct hzi_base *b, *again;
	struct hz_context *ctx;
	int t, i, m, symmetric, good = 1, count = 0;

	if (hz_open(&ctx, &options) != HZ_OK)
		bail("hz_open: %s", hz_open_errmsg());
	for (t = 0; t < TABLES; t++) {
		for (i = 0; (m = tables[t].orders[i]); i++) {
			symmetric = hz_hadamard_base(tables[t].id, m, e);
			if (hzi_base_get(ctx, "t", tables[t].id, m, &b) != HZ_OK ||
			    !same_base(b, e, m, symmetric)) {
				diag("%s %d", tables[t].name, m);
				good = 0;
				continue;
			}
			good &= b->id == (t ? tables[t].id : hzi_base_auto(m));
			good &= (uintptr_t)b % 64 == 0;
			again = NULL;
			good &= hzi_base_get(ctx, "t", tables[t].id, m, &again) == HZ_OK;
			good &= again == b;
			count += t > 0;
		}
	}
	ok(good, "a context holds all %d tables at once, each made once", count);

	is_int(hzi_base_get(ctx, "t", HZ_BASE_PALEY2, 44, &b), HZ_ENOTSUP, "no paley2 of order 44");
	is_str(hz_errmsg(ctx), "t: no base matrix paley2 of order 44, there is: paley1 quip",
	       "says what there is");
	is_int(hzi_base_get(ctx, "t", HZ_BASE_AUTO, 188, &b), HZ_ENOTSUP, "nothing of order 188");
	is_str(hz_errmsg(ctx), "t: no base matrix of order 188 is known", "its message");
	is_int(hzi_base_get(ctx, "t", 99, 20, &b), HZ_ENOTSUP, "no such kind");
	is_int(hz_hadamard_base(99, 20, NULL), HZ_ENOTSUP, "nor from outside");
	is_int(hz_hadamard_base(-1, 20, NULL), HZ_ENOTSUP, "nor a negative one");
	is_int(hzi_base_auto(12), HZ_BASE_PALEY2, "auto 12 is paley2");
	is_int(hzi_base_auto(44), HZ_BASE_PALEY1, "auto 44 is paley1");
	is_int(hzi_base_auto(172), HZ_BASE_WILLIAMSON, "auto 172 is williamson");
	is_int(hzi_base_auto(64), 0, "auto has no powers of two");
	hz_close(ctx);
	is_int(live, 0, "all freed");

	if (hz_open(&ctx, &options) != HZ_OK)
		bail("hz_open: %s", hz_open_errmsg());
	refuse = 1;
	is_int(hzi_base_get(ctx, "t", HZ_BASE_AUTO, 20, &b), HZ_ENOMEM, "no memory");
	is_str(hz_errmsg(ctx), "t: no memory for the base matrix of order 20", "its message");
	refuse = 0;
	is_int(hzi_base_get(ctx, "t", HZ_BASE_AUTO, 20, &b), HZ_OK, "works when there is");
	hz_close(ctx);
	is_int(live, 0, "all freed");
}

int main(void)
{
	test_tables();
	test_kinds();
	test_peers();
	test_cache();
	return done_testing();
}
