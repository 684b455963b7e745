/*
 * quantize_rotated.c - tests of quantization with a transform
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "quantize.h"

/* A transform of the last dimension: the plan of random_block(), blocks of it, diagonals */
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

/* The options of a context, whose diagonals are copied to areas */
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

/* hz_hadamard() of rows of n floats by the level that has no vectors, which has tests of its own */
static void rotate(const float *x, int dtype, void *y, int64_t rows, int64_t n,
		   const struct rotation *r, int back)
{
	const hz_options options = { .device = HZ_CPU, .isa = HZ_ISA_C, .threads = 1 };
	const hz_tensor tx = hz_tensor_2d((void *)(uintptr_t)x, HZ_F32, HZ_CPU, rows, n);
	const hz_tensor ty = hz_tensor_2d(y, dtype, HZ_CPU, rows, n);
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

/* The largest difference that the accuracy of a GPU with 16 bits allows in each row */
static double allowed(const float *row, int64_t n, const struct rotation *r)
{
	double sum = 0, scale = r->o.flags & HZ_HADAMARD_RAW ? sqrt((double)r->block) : 1;
	int64_t i;

	for (i = 0; i < n; i++)
		sum += (double)row[i] * row[i];
	/* Factors of diagonals are at most 1.5 each. */
	return 2 * (log2((double)r->block) + 260 * (r->o.plan == HZ_PLAN_TRUE) + 3) * 0x1p-24 *
	       sqrt(sum) * scale * 2.25;
}

/*
 * Both ways with a transform, on every context: exact but for 16 bits on a GPU, where a code may be
 * that of any number within the bound.
 */
static int run_rotated(const struct tcase *c, const struct rotation *r)
{
	const int64_t n = c->shape[c->ndim - 1], size = (int64_t)hz_dtype_size(c->x_dtype);
	struct side x, q, y;
	int64_t total = 1, params = 1, i;
	float *scales, *values, *turned, *back;
	unsigned char *zeros, *result;
	const float scalar = fabsf(random_scale(0)) + 0.01f;
	int scalar_zero, good = 1, d;

	for (d = 0; d < c->ndim; d++)
		total *= c->shape[d];
	for (d = 0; d < c->p_ndim; d++)
		params *= c->own[d];
	side_new(&x, c->x_dtype, c->ndim, c->shape);
	side_new(&q, c->q_dtype, c->ndim, c->shape);
	side_new(&y, c->x_dtype, c->ndim, c->shape);
	scales = calloc((size_t)params, sizeof(*scales));
	zeros = calloc((size_t)params, 1);
	values = calloc((size_t)total, sizeof(*values));
	turned = calloc((size_t)total, sizeof(*turned));
	back = calloc((size_t)total, sizeof(*back));
	result = calloc((size_t)total, sizeof(float));
	for (i = 0; i < params; i++) {
		scales[i] = random_scale(c->wild);
		zeros[i] = c->no_zeros ? 0 : (unsigned char)rnd_u64(&rnd);
	}
	scalar_zero = qmin_of(c->q_dtype) + (int)rnd_below(&rnd, 256);
	for (i = 0; i < total; i++) {
		int64_t at, none, p;

		element(c, i, x.stride, x.stride, &at, &none, &p);
		ref_put(c->x_dtype, origin(&x, x.image), at, c->wild == 2 && i % 997 == 5 ?
			random_value(c) : rnd_normal(&rnd));
		values[i] = (float)ref_get(c->x_dtype, origin(&x, x.image), at);
	}
	rotate(values, HZ_F32, turned, total / n, n, r, 0);
	for (i = 0; i < total; i++) {
		int64_t at, q_at, p;
		const float *s = &scalar;
		int z = scalar_zero, code;

		element(c, i, x.stride, q.stride, &at, &q_at, &p);
		if (!c->whole) {
			s = &scales[p];
			z = c->q_dtype == HZ_U8 ? zeros[p] : (int8_t)zeros[p];
		}
		code = ref_quantize_one(turned[i], *s, z, c->q_dtype);
		((unsigned char *)origin(&q, q.want))[q_at] = (unsigned char)code;
		back[i] = ref_dequantize_one(code, *s, z);
	}
	rotate(back, c->x_dtype, result, total / n, n, r, 1);
	for (i = 0; i < total; i++) {
		int64_t at, none, p;

		element(c, i, y.stride, y.stride, &at, &none, &p);
		memcpy((unsigned char *)origin(&y, y.want) + at * size, result + i * size,
		       (size_t)size);
	}
	for (d = 0; d < ndevs && good; d++) {
		struct dev *dev = &devs[d];
		const int exact = dev->device == HZ_CPU || c->x_dtype == HZ_F32;
		struct area xa = area_new(dev, x.bytes, 0), qa = area_new(dev, q.bytes, 0);
		struct area ya = area_new(dev, y.bytes, 0), sa, za, diag_areas[2];
		unsigned char *got = malloc(q.total > y.total ? q.total : y.total);
		hz_tensor xt, qt, yt, ps, pz, diags[2];
		hz_quantize_opts o = { 0 };
		hz_hadamard_opts h = rotation_opts(r, dev, diags, diag_areas);
		size_t bytes = 0;
		double e = 0;
		int st;

		area_write(&xa, x.image);
		area_write(&qa, q.image);
		area_write(&ya, y.image);
		ps = hz_tensor_nd(scales, HZ_F32, HZ_CPU, c->p_ndim, c->own);
		pz = hz_tensor_nd(zeros, c->q_dtype, HZ_CPU, c->p_ndim, c->own);
		ps = to_device(dev, &ps, &sa);
		pz = to_device(dev, &pz, &za);
		if (c->whole) {
			o.scale = scalar;
			o.zero = scalar_zero;
		} else {
			o.scales = &ps;
			o.zeros = c->no_zeros ? NULL : &pz;
		}
		o.hadamard = &h;
		xt = side_view(&x, &xa, c->ndim, c->shape);
		qt = side_view(&q, &qa, c->ndim, c->shape);
		yt = side_view(&y, &ya, c->ndim, c->shape);
		st = hz_quantize_workspace(dev->ctx, &xt, &qt, &o, &bytes);
		if (!st)
			st = hz_reserve(dev->ctx, bytes);
		if (!st)
			st = hz_quantize(dev->ctx, &xt, &qt, &o);
		area_read(&qa, got);
		for (i = 0; !st && !exact && i < total; i++) {
			int64_t at, q_at, p;
			float s;
			int z, code;

			if (i % n == 0)
				e = allowed(values + i, n, r);
			element(c, i, x.stride, q.stride, &at, &q_at, &p);
			s = c->whole ? scalar : scales[p];
			z = c->whole ? scalar_zero : c->q_dtype == HZ_U8 ? zeros[p]
									 : (int8_t)zeros[p];
			code = c->q_dtype == HZ_U8 ? ((uint8_t *)origin(&q, got))[q_at]
						   : ((int8_t *)origin(&q, got))[q_at];
			if (ref_quantize_one((float)(turned[i] - e), s, z, c->q_dtype) <= code &&
			    code <= ref_quantize_one((float)(turned[i] + e), s, z, c->q_dtype))
				((unsigned char *)origin(&q, got))[q_at] =
					((unsigned char *)origin(&q, q.want))[q_at];
		}
		good = !st && same_bits(got, q.want, q.total, 1);
		if (!good)
			diag("quantize, %s: %s plan %d block %lld: %s", dev->name, describe(c),
			     r->o.plan, (long long)r->block, st ? hz_errmsg(dev->ctx) : "wrong");
		area_write(&qa, q.want);
		if (good) {
			st = hz_dequantize_workspace(dev->ctx, &qt, &yt, &o, &bytes);
			if (!st)
				st = hz_reserve(dev->ctx, bytes);
			if (!st)
				st = hz_dequantize(dev->ctx, &qt, &yt, &o);
			area_read(&ya, got);
			for (i = 0; !st && !exact && i < total; i++) {
				int64_t at, none, p;
				double g, w;

				if (i % n == 0)
					e = allowed(back + i, n, r);
				element(c, i, y.stride, y.stride, &at, &none, &p);
				g = ref_get(c->x_dtype, origin(&y, got), at);
				w = ref_get(c->x_dtype, origin(&y, y.want), at);
				if (fabs(g - w) <=
				    e + ldexp(fabs(w), c->x_dtype == HZ_F16 ? -10 : -7))
					ref_put(c->x_dtype, origin(&y, got), at, w);
			}
			good = !st && same_bits(got, y.want, GUARD, 1) &&
			       same_bits(got + GUARD + y.bytes, y.want + GUARD + y.bytes, GUARD,
					 1) &&
			       same_numbers(c->x_dtype, got + GUARD, y.want + GUARD,
					    (int64_t)(y.bytes / hz_dtype_size(c->x_dtype)));
			if (!good)
				diag("dequantize, %s: %s plan %d block %lld: %s", dev->name,
				     describe(c), r->o.plan, (long long)r->block,
				     st ? hz_errmsg(dev->ctx) : "wrong");
		}
		free(got);
		area_free(&xa);
		area_free(&qa);
		area_free(&ya);
		area_free(&sa);
		area_free(&za);
		for (i = 0; i < 2; i++) {
			if (r->memory[i])
				area_free(&diag_areas[i]);
		}
	}
	side_free(&x);
	side_free(&q);
	side_free(&y);
	free(scales);
	free(zeros);
	free(values);
	free(turned);
	free(back);
	free(result);
	return good;
}

static void test_rotated(void)
{
	const int n = quick ? 30 : 400;
	/* Long rows, many rows, a size beyond what a GPU does at once: rows, log2 of the block */
	static const int large[][2] = {{2, 16}, {300, 12}, {1000, 9}, {700, 13}, {3, 14}};
	const int cuda = devs[0].device != HZ_CPU;
	int i, j, bad = 0;

	for (i = 0; i < n && bad < 5; i++) {
		struct tcase c = random_case(4);
		struct rotation r = {0};

		/* A NaN or an Inf goes to all of its block, on a GPU not always as which. */
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
	/* Rows back to back, by every length: what a GPU does in one launch */
	plain_sides = 1;
	for (i = 0; i < (quick ? 24 : 240) && bad < 5; i++) {
		const int own = (int)rnd_below(&rnd, 4), rows = 1 + (int)rnd_below(&rnd, 9);
		struct tcase c = {.ndim = 2, .p_ndim = 2, .x_dtype = floats[i % 3],
				  .q_dtype = code_dtypes[rnd_below(&rnd, 2)], .whole = own == 0,
				  .no_zeros = (int)rnd_below(&rnd, 2), .shape = {rows, 0},
				  .own = {own > 1 ? rows : 1, own > 2 ? 2 : 1}};
		struct rotation r = {0};

		random_rotation(&r, &c, INT64_C(1) << (5 + i / 3 % 10));
		bad += !run_rotated(&c, &r);
		free(r.memory[0]);
		free(r.memory[1]);
	}
	plain_sides = 0;
	ok(!bad, "with a transform, rows back to back");
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	test_rotated();
	dev_close_all();
	return done_testing();
}
