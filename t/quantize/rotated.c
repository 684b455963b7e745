/*
 * rotated.c - quantization with a transform
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/quantize/quantize.h"

/* A transform of the last dimension: plan from random_block(), block length, diagonals */
struct rotation {
	hz_hadamard_opts o;
	hz_tensor pre, post;
	void *memory[2];
	int64_t block;
};

static void random_rotation(struct rotation *r, struct tcase *c, int64_t block)
{
	const int blocks = 1 + (int)rnd_below(&rnd, 3);
	const int64_t n = (block ? block : random_block(&rnd, &r->o)) * blocks;

	r->block = n / blocks;
	r->o.block = blocks > 1 ? r->block : 0;
	if (rnd_below(&rnd, 3) == 0)
		r->o.flags |= HZ_HADAMARD_TRANSPOSE;
	if (rnd_below(&rnd, 6) == 0)
		r->o.flags |= HZ_HADAMARD_RAW;
	if (rnd_below(&rnd, 2))
		r->pre = random_diag(&rnd, n, r->block, &r->memory[0]);
	if (rnd_below(&rnd, 4) == 0)
		r->post = random_diag(&rnd, n, r->block, &r->memory[1]);
	c->shape[c->ndim - 1] = n;
	if (c->own[c->ndim - 1] > 1)
		c->own[c->ndim - 1] = rnd_below(&rnd, 2) ? n : n % 32 == 0 ? n / 32 : blocks;
	if (c->p_ndim != c->ndim)
		c->own[0] = 1;
}

/* Options for a context; the diagonals are copied to areas. */
static hz_hadamard_opts rotation_opts(const struct rotation *r, struct dev *dev, hz_tensor *there,
				      struct area *areas)
{
	hz_hadamard_opts o = r->o;

	if (r->memory[0]) {
		there[0] = to_device(dev, &r->pre, &areas[0]);
		o.pre = &there[0];
	}
	if (r->memory[1]) {
		there[1] = to_device(dev, &r->post, &areas[1]);
		o.post = &there[1];
	}
	return o;
}

/* hz_hadamard() of rows of n floats in plain C, which t/hadamard tests */
static void rotate(const float *x, int dtype, void *y, int64_t rows, int64_t n,
		   const struct rotation *r, int back)
{
	const hz_options options = { .device = HZ_CPU, .isa = HZ_ISA_C, .threads = 1 };
	const hz_tensor tx = hz_tensor_2d((void *)(uintptr_t)x, HZ_F32, HZ_CPU, rows, n);
	hz_tensor ty = hz_tensor_2d(y, dtype, HZ_CPU, rows, n);
	hz_hadamard_opts o = r->o;
	hz_context *ctx;

	o.pre = r->memory[0] ? &r->pre : NULL;
	o.post = r->memory[1] ? &r->post : NULL;
	if (back)
		o.flags ^= HZ_HADAMARD_TRANSPOSE;
	if (hz_open(&ctx, &options) != HZ_OK || hz_hadamard(ctx, &tx, &ty, &o) != HZ_OK)
		bail("hadamard: %s", hz_errmsg(ctx));
	hz_close(ctx);
}

/* The largest error of an element that the bound of 16-bit transforms on a GPU allows */
static double allowed(const float *row, int64_t n, const struct rotation *r)
{
	double sum = 0, scale = r->o.flags & HZ_HADAMARD_RAW ? sqrt((double)r->block) : 1;
	int64_t i;

	for (i = 0; i < n; i++)
		sum += (double)row[i] * row[i];
	/* Diagonal factors are at most 1.5 each. */
	return 2 * (log2((double)r->block) + 260 * (r->o.plan == HZ_PLAN_TRUE) + 3) * 0x1p-24 *
	       sqrt(sum) * scale * 2.25;
}

/* Quantizes and dequantizes with a transform on every context. Results are exact, except in 16 bits
 * on a GPU, where a code may be that of any value within the bound. */
static int run_rotated(const struct tcase *c, const struct rotation *r)
{
	const int64_t n = c->shape[c->ndim - 1], size = (int64_t)hz_dtype_size(c->x_dtype);
	struct operands m;
	int64_t total = 1, i;
	float *values, *rotated, *back;
	unsigned char *result;
	int good = 1, d;

	for (d = 0; d < c->ndim; d++)
		total *= c->shape[d];
	operands_new(&m, c, 0.01f);
	values = calloc((size_t)total, sizeof(*values));
	rotated = calloc((size_t)total, sizeof(*rotated));
	back = calloc((size_t)total, sizeof(*back));
	result = calloc((size_t)total, sizeof(float));
	for (i = 0; i < total; i++) {
		int64_t at, none, p;

		element(c, i, m.x.stride, m.x.stride, &at, &none, &p);
		ref_put(c->x_dtype, origin(&m.x, m.x.image), at, c->wild == 2 && i % 997 == 5 ?
			random_value(c) : rnd_normal(&rnd));
		values[i] = (float)ref_get(c->x_dtype, origin(&m.x, m.x.image), at);
	}
	rotate(values, HZ_F32, rotated, total / n, n, r, 0);
	for (i = 0; i < total; i++) {
		int64_t at, q_at, p;
		float s;
		int z, code;

		element(c, i, m.x.stride, m.q.stride, &at, &q_at, &p);
		s = params_of(&m, c, p, &z);
		code = ref_quantize_one(rotated[i], s, z, c->q_dtype);
		((unsigned char *)origin(&m.q, m.q.want))[q_at] = (unsigned char)code;
		back[i] = ref_dequantize_one(code, s, z);
	}
	rotate(back, c->x_dtype, result, total / n, n, r, 1);
	for (i = 0; i < total; i++) {
		int64_t at, none, p;

		element(c, i, m.y.stride, m.y.stride, &at, &none, &p);
		memcpy((unsigned char *)origin(&m.y, m.y.want) + at * size, result + i * size,
		       (size_t)size);
	}
	for (d = 0; d < ndevs && good; d++) {
		struct dev *dev = &devs[d];
		const int exact = dev->device == HZ_CPU || c->x_dtype == HZ_F32;
		unsigned char *got = malloc(m.q.total > m.y.total ? m.q.total : m.y.total);
		struct area diag_areas[2];
		hz_tensor diags[2];
		struct placed t;
		hz_hadamard_opts h = rotation_opts(r, dev, diags, diag_areas);
		size_t bytes = 0;
		double e = 0;
		int st;

		place(&t, dev, c, &m);
		t.o.hadamard = &h;
		st = RECORD(dev->ctx, hz_quantize(dev->ctx, &t.x, &t.q, &t.o), &bytes);
		if (!st)
			st = hz_reserve(dev->ctx, bytes);
		if (!st)
			st = hz_quantize(dev->ctx, &t.x, &t.q, &t.o);
		area_read(&t.qa, got);
		for (i = 0; !st && !exact && i < total; i++) {
			int64_t at, q_at, p;
			float s;
			int z, code;

			if (i % n == 0)
				e = allowed(values + i, n, r);
			element(c, i, m.x.stride, m.q.stride, &at, &q_at, &p);
			s = params_of(&m, c, p, &z);
			code = c->q_dtype == HZ_U8 ? ((uint8_t *)origin(&m.q, got))[q_at]
						   : ((int8_t *)origin(&m.q, got))[q_at];
			if (ref_quantize_one((float)(rotated[i] - e), s, z, c->q_dtype) <= code &&
			    code <= ref_quantize_one((float)(rotated[i] + e), s, z, c->q_dtype))
				((unsigned char *)origin(&m.q, got))[q_at] =
					((unsigned char *)origin(&m.q, m.q.want))[q_at];
		}
		good = !st && same_bits(got, m.q.want, m.q.total, 1);
		if (!good)
			diag("quantize, %s: %s plan %d block %lld: %s", dev->name, describe(c),
			     r->o.plan, (long long)r->block, st ? hz_errmsg(dev->ctx) : "wrong");
		area_write(&t.qa, m.q.want);
		if (good) {
			st = RECORD(dev->ctx, hz_dequantize(dev->ctx, &t.q, &t.y, &t.o), &bytes);
			if (!st)
				st = hz_reserve(dev->ctx, bytes);
			if (!st)
				st = hz_dequantize(dev->ctx, &t.q, &t.y, &t.o);
			area_read(&t.ya, got);
			for (i = 0; !st && !exact && i < total; i++) {
				int64_t at, none, p;
				double g, w;

				if (i % n == 0)
					e = allowed(back + i, n, r);
				element(c, i, m.y.stride, m.y.stride, &at, &none, &p);
				g = ref_get(c->x_dtype, origin(&m.y, got), at);
				w = ref_get(c->x_dtype, origin(&m.y, m.y.want), at);
				if (fabs(g - w) <=
				    e + ldexp(fabs(w), c->x_dtype == HZ_F16 ? -10 : -7))
					ref_put(c->x_dtype, origin(&m.y, got), at, w);
			}
			good = !st && same_side(&m.y, got);
			if (!good)
				diag("dequantize, %s: %s plan %d block %lld: %s", dev->name,
				     describe(c), r->o.plan, (long long)r->block,
				     st ? hz_errmsg(dev->ctx) : "wrong");
		}
		free(got);
		unplace(&t);
		for (i = 0; i < 2; i++) {
			if (r->memory[i])
				area_free(&diag_areas[i]);
		}
	}
	operands_free(&m);
	free(values);
	free(rotated);
	free(back);
	free(result);
	return good;
}

/* Contiguous rows of m 2^k: few, or so many that blocks of a GPU process several each; one scale,
 * one per row, or several per row of two transforms */
static void test_base(void)
{
	static const int orders[] = {12, 20, 28};
	static const int many[][3] = {
		{9300, 12, 5}, {1500, 20, 7}, {800, 28, 8}, {450, 12, 10}, {200, 12, 11},
		{1100, 20, 8}, {200, 28, 9}, {160, 12, 12},
	};
	const int few = quick ? 48 : 144, all = few + (quick ? 2 : 8);
	int i, bad = 0;

	for (i = 0; i < all && bad < 5; i++) {
		const int *large = many[(i + (int)rnd_below(&rnd, 8)) % 8];
		const int m = i < few ? orders[i % 3] : large[1];
		/* up to 65536, the longest supported on a GPU */
		const int k = i < few ? 5 + i / 6 % (m > 12 ? 7 : 8) : large[2];
		const int rows = i < few ? 1 + (int)rnd_below(&rnd, k < 8 ? 40 : 3) : large[0];
		const int own = (int)rnd_below(&rnd, 4);
		struct tcase c = {.ndim = 2, .p_ndim = 2, .x_dtype = floats[1 + i / 3 % 2],
				  .q_dtype = code_dtypes[rnd_below(&rnd, 2)], .scalar = own == 0,
				  .no_zeros = (int)rnd_below(&rnd, 2), .shape = {rows, 0},
				  .own = {own > 1 ? rows : 1, own > 2 ? 2 : 1}};
		struct rotation r = {.o = {.plan = HZ_PLAN_TRUE, .order = m}};

		random_rotation(&r, &c, (int64_t)m << k);
		/* mostly without diagonals, which the kernels for base matrices do not support */
		if (i % 5) {
			free(r.memory[0]);
			free(r.memory[1]);
			r.memory[0] = r.memory[1] = NULL;
		}
		bad += !run_rotated(&c, &r);
		free(r.memory[0]);
		free(r.memory[1]);
	}
	ok(!bad, "with a transform by base matrices, contiguous rows, %d cases", all);
}

static void test_rotated(void)
{
	const int n = quick ? 30 : 400;
	/* rows, log2 of the block length: long rows, many rows, more than one chunk on a GPU */
	static const int large[][2] = {{2, 16}, {300, 12}, {1000, 9}, {700, 13}, {3, 14}};
	const int cuda = devs[0].device != HZ_CPU;
	int i, j, bad = 0;

	for (i = 0; i < n && bad < 5; i++) {
		struct tcase c = random_case(4);
		struct rotation r = {0};

		/* NaN and Inf fill their block; on a GPU Inf may become NaN. */
		if (c.wild == 2 && cuda)
			c.wild = 1;
		if (c.ndim == 0)
			continue;
		if (c.shape[0] > 20)
			c.shape[0] %= 20;
		c.shape[0] += c.shape[0] == 0;
		for (j = 0; j < c.ndim; j++)
			c.own[j] = c.own[j] > 1 ? c.shape[j] : 1;
		random_rotation(&r, &c, 0);
		bad += !run_rotated(&c, &r);
		free(r.memory[0]);
		free(r.memory[1]);
	}
	ok(!bad, "with a transform, %d cases", n);
	for (i = 0; i < (quick ? 1 : 5) && bad < 5; i++) {
		struct tcase c = {.ndim = 2, .p_ndim = 2, .x_dtype = floats[i % 3],
				  .q_dtype = code_dtypes[i % 2], .shape = {large[i][0], 0},
				  .own = {i % 2 ? large[i][0] : 1, i > 2 ? 2 : 1}};
		struct rotation r = {0};

		random_rotation(&r, &c, INT64_C(1) << large[i][1]);
		bad += !run_rotated(&c, &r);
		free(r.memory[0]);
		free(r.memory[1]);
	}
	ok(!bad, "with a transform, sizes that threads share");
	/* contiguous rows of every length, which a GPU quantizes in one launch */
	contiguous_sides = 1;
	for (i = 0; i < (quick ? 24 : 240) && bad < 5; i++) {
		const int own = (int)rnd_below(&rnd, 4), rows = 1 + (int)rnd_below(&rnd, 9);
		struct tcase c = {.ndim = 2, .p_ndim = 2, .x_dtype = floats[i % 3],
				  .q_dtype = code_dtypes[rnd_below(&rnd, 2)], .scalar = own == 0,
				  .no_zeros = (int)rnd_below(&rnd, 2), .shape = {rows, 0},
				  .own = {own > 1 ? rows : 1, own > 2 ? 2 : 1}};
		struct rotation r = {0};

		random_rotation(&r, &c, INT64_C(1) << (5 + i / 3 % 10));
		bad += !run_rotated(&c, &r);
		free(r.memory[0]);
		free(r.memory[1]);
	}
	ok(!bad, "with a transform, contiguous rows");
	test_base();
	contiguous_sides = 0;
}

/* Codes that exceed the caches, at an odd address, equal those of calls with fewer rows. */
static void test_large_calls(void)
{
	enum { ROWS = 1700, N = 4096, AT_ONCE = 100 };
	float *x = malloc(4 * (size_t)ROWS * N);
	signed char *q = malloc((size_t)ROWS * N + 1), *w = malloc((size_t)AT_ONCE * N);
	int i, bad = 0;

	for (i = 0; i < ROWS * N; i++)
		x[i] = (float)((int)rnd_below(&rnd, 255) - 127) / 64;
	for (i = 0; i < ndevs; i++) {
		hz_context *const ctx = devs[i].ctx;
		hz_hadamard_opts rotation = {0};
		hz_quantize_opts o = {.scale = 0.02f, .hadamard = &rotation};
		hz_tensor tx = hz_tensor_2d(x, HZ_F32, HZ_CPU, ROWS, N), part = tx,
			  tq = hz_tensor_2d(q + 1, HZ_S8, HZ_CPU, ROWS, N),
			  tw = hz_tensor_2d(w, HZ_S8, HZ_CPU, AT_ONCE, N);
		size_t bytes;
		int r, st;

		if (devs[i].device != HZ_CPU)
			continue;
		memset(q, 0, (size_t)ROWS * N + 1);
		st = RECORD(ctx, hz_quantize(ctx, &tx, &tq, &o), &bytes);
		st = st ? st : hz_reserve(ctx, bytes);
		st = st ? st : hz_quantize(ctx, &tx, &tq, &o);
		for (r = 0; !st && r < ROWS; r += AT_ONCE) {
			part.data = x + (size_t)r * N;
			part.shape[0] = AT_ONCE;
			st = hz_quantize(ctx, &part, &tw, &o);
			bad += memcmp(w, q + 1 + (size_t)r * N, (size_t)AT_ONCE * N) != 0;
		}
		bad += st != 0;
	}
	ok(!bad, "with a transform, more bytes than caches hold");
	free(x);
	free(q);
	free(w);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_quantize);
	dev_open_routes(HZI_OP_dequantize);
	test_rotated();
	test_large_calls();
	dev_close_all();
	return done_testing();
}
