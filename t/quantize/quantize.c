/*
 * quantize.c - hz_quantize(), hz_dequantize() and hz_choose_qparams()
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <fenv.h>

#include "t/quantize/quantize.h"

/* Quantizes and dequantizes with random parameters on every context. */
static int run_codes(const struct tcase *c)
{
	struct operands m;
	int64_t n = 1, i;
	int good = 1, d;

	for (d = 0; d < c->ndim; d++)
		n *= c->shape[d];
	operands_new(&m, c, 0);
	for (i = 0; i < n; i++) {
		int64_t at, q_at, y_at, p;
		float s, v;
		int z, code;

		element(c, i, m.x.stride, m.q.stride, &at, &q_at, &p);
		element(c, i, m.y.stride, m.q.stride, &y_at, &q_at, &p);
		s = params_of(&m, c, p, &z);
		/* often on a tie */
		v = rnd_below(&rnd, 3) ? (float)random_value(c)
				       : s * ((float)rnd_below(&rnd, 600) - 300) / 2;
		ref_put(c->x_dtype, origin(&m.x, m.x.image), at, v);
		v = (float)ref_get(c->x_dtype, origin(&m.x, m.x.image), at);
		code = ref_quantize_one(v, s, z, c->q_dtype);
		((unsigned char *)origin(&m.q, m.q.want))[q_at] = (unsigned char)code;
		ref_put(c->x_dtype, origin(&m.y, m.y.want), y_at, ref_dequantize_one(code, s, z));
	}
	for (d = 0; d < ndevs && good; d++) {
		struct dev *dev = &devs[d];
		unsigned char *got = malloc(m.q.total > m.y.total ? m.q.total : m.y.total);
		struct placed t;
		int st;

		place(&t, dev, c, &m);
		st = hz_quantize(dev->ctx, &t.x, &t.q, &t.o);
		area_read(&t.qa, got);
		good = !st && same_bits(got, m.q.want, m.q.total, 1);
		if (!good)
			diag("quantize, %s: %s: %s", dev->name, describe(c),
			     st ? hz_errmsg(dev->ctx) : "wrong");
		if (good) {
			st = hz_dequantize(dev->ctx, &t.q, &t.y, &t.o);
			area_read(&t.ya, got);
			good = !st && same_side(&m.y, got);
			if (!good)
				diag("dequantize, %s: %s: %s", dev->name, describe(c),
				     st ? hz_errmsg(dev->ctx) : "wrong");
		}
		free(got);
		unplace(&t);
	}
	operands_free(&m);
	return good;
}

static int run_params(const struct tcase *c)
{
	struct side x;
	int64_t n = 1, params = 1, i, p;
	int64_t *begin;			/* where each parameter's elements begin in values */
	double *values;
	float *scales;
	unsigned char *zeros;
	int good = 1, finite = 1, d;

	for (d = 0; d < c->ndim; d++)
		n *= c->shape[d];
	for (d = 0; d < c->p_ndim; d++)
		params *= c->own[d];
	side_new(&x, c->x_dtype, c->ndim, c->shape);
	scales = calloc((size_t)params, sizeof(*scales));
	zeros = calloc((size_t)params, 1);
	values = calloc((size_t)(n + 1), sizeof(*values));
	begin = calloc((size_t)params + 2, sizeof(*begin));
	for (i = 0; i < n; i++) {
		int64_t at, none;

		element(c, i, x.stride, x.stride, &at, &none, &p);
		ref_put(c->x_dtype, origin(&x, x.image), at,
			c->scalar ? ldexp(random_value(c), -130) : random_value(c));
		begin[p + 2]++;
	}
	for (p = 2; p < params + 2; p++)
		begin[p] += begin[p - 1];
	/* begin[p + 1] advances from the beginning of p to its end. */
	for (i = 0; i < n; i++) {
		int64_t at, none;

		element(c, i, x.stride, x.stride, &at, &none, &p);
		values[begin[p + 1]++] = ref_get(c->x_dtype, origin(&x, x.image), at);
	}
	for (p = 0; p < params; p++) {
		int z;

		if (!ref_params(values + begin[p], begin[p + 1] - begin[p], c->q_dtype,
				c->flags, &scales[p], &z)) {
			finite = 0;
			scales[p] = INFINITY;
			z = c->q_dtype == HZ_S8 ? 0 :
			    c->flags & HZ_QPARAMS_REDUCE_RANGE ? 64 : 128;
		}
		zeros[p] = (unsigned char)z;
	}
	for (d = 0; d < ndevs && good; d++) {
		struct dev *dev = &devs[d];
		struct area xa = area_new(dev, x.bytes, 0),
			    sa = area_new(dev, (size_t)params * 4, 0);
		struct area za = area_new(dev, (size_t)params, 0);
		unsigned char *got = malloc(2 * GUARD + (size_t)params * 4), *before;
		const uint32_t flags = c->flags;
		hz_tensor xt, st, zt;
		size_t bytes = 0;
		void *data;
		int status;

		area_write(&xa, x.image);
		before = image_new((size_t)params * 4, 0, &data);
		area_write(&sa, before);
		area_write(&za, before);
		xt = side_view(&x, &xa, c->ndim, c->shape);
		st = hz_tensor_nd(sa.data, HZ_F32, dev->device, c->p_ndim, c->own);
		zt = hz_tensor_nd(za.data, c->q_dtype, dev->device, c->p_ndim, c->own);
		status = RECORD(dev->ctx, hz_choose_qparams(dev->ctx, &xt, &st, &zt, flags),
				&bytes);
		if (!status)
			status = hz_reserve(dev->ctx, bytes);
		if (!status)
			status = hz_choose_qparams(dev->ctx, &xt, &st, &zt, flags);
		area_read(&sa, got);
		if (!finite && dev->device == HZ_CPU) {
			good = status == HZ_EINVAL &&
			       same_bits(got, before, 2 * GUARD + (size_t)params * 4, 1);
		} else {
			good = !status && same_bits(got, before, GUARD, 1) &&
			       same_bits(got + GUARD, scales, (size_t)params, 4) &&
			       same_bits(got + GUARD + params * 4, before, GUARD, 1);
			area_read(&za, got);
			good = good && same_bits(got, before, GUARD, 1) &&
			       same_bits(got + GUARD, zeros, (size_t)params, 1) &&
			       same_bits(got + GUARD + params, before, GUARD, 1);
		}
		if (!good)
			diag("choose_qparams, %s: %s: %s", dev->name, describe(c),
			     status ? hz_errmsg(dev->ctx) : "wrong");
		free(got);
		free(before);
		area_free(&xa);
		area_free(&sa);
		area_free(&za);
	}
	side_free(&x);
	free(scales);
	free(zeros);
	free(values);
	free(begin);
	return good;
}

static void test_random(void)
{
	const int n = quick ? 100 : 1000;
	int i, bad = 0;

	for (i = 0; i < n && bad < 5; i++) {
		struct tcase c = random_case(4);

		bad += !run_codes(&c);
	}
	ok(!bad, "quantize and dequantize, %d cases", n);
	for (i = 0; i < n && bad < 5; i++) {
		struct tcase c = random_case(3);

		bad += !run_params(&c);
	}
	ok(!bad, "choose_qparams, %d cases", n);
}

/* Enough elements to be split between threads and segments; one scale, or one per row, column or
 * group */
static void test_large(void)
{
	static const int64_t shapes[][4] = {
		{1, 300000, 1, 1},    {700, 1000, 1, 1}, {700, 1000, 700, 1}, {700, 1000, 1, 1000},
		{3, 262144, 3, 4096}, {2, 400000, 2, 4}, {2, 400000, 1, 2},
	};
	size_t i;
	int bad = 0;

	for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		struct tcase c = { .ndim = 2, .p_ndim = 2, .q_dtype = code_dtypes[i % 2] };

		c.shape[0] = shapes[i][0];
		c.shape[1] = shapes[i][1];
		c.own[0] = shapes[i][2];
		c.own[1] = shapes[i][3];
		c.x_dtype = floats[i % 3];
		bad += !run_codes(&c);
		bad += !run_params(&c);
	}
	ok(!bad, "sizes that threads share");
}

/*
 * One element more or less than a GPU tile in each direction, in the layouts of each kind of tile
 */
static void test_tiles(void)
{
	static const int64_t shapes[][5] = {
		{200, 300, 0, 1, 300},	{130, 260, 0, 130, 1},	{130, 264, 0, 130, 33},
		{70, 1288, 0, 1, 1288},	{1100, 7, 0, 1100, 1},	{70, 65, 0, 1, 1},
		{3, 9001, 0, 3, 1},	{1, 9001, 0, 1, 9001},	{1, 9000, 0, 1, 45},
		{20, 4112, 0, 20, 257},	{300, 128, 0, 300, 4},	{9, 40, 130, 1, 40},
		{40, 9, 136, 40, 1},
	};
	const int rounds = quick ? 3 : 20;
	size_t i;
	int bad = 0, round;

	for (round = 0; round < rounds && bad < 5; round++) {
		for (i = 0; i < sizeof(shapes) / sizeof(*shapes) && bad < 5; i++) {
			struct tcase c = { .q_dtype = code_dtypes[rnd_below(&rnd, 2)] };
			const int more = shapes[i][2] > 0;

			c.ndim = c.p_ndim = 2 + more;
			c.shape[0] = shapes[i][0];
			c.shape[1] = shapes[i][1];
			c.shape[2] = shapes[i][2];
			c.own[0] = shapes[i][3];
			c.own[1] = shapes[i][4];
			c.own[2] = 1;
			c.x_dtype = floats[rnd_below(&rnd, 3)];
			bad += !run_codes(&c);
			bad += !run_params(&c);
		}
	}
	ok(!bad, "tiles of any layout, %d times", rounds);
}

/* Ranges over few and many columns, and few and many rows, contiguous and in random layouts */
static void test_columns(void)
{
	static const int64_t shapes[][3] = {
		{5000, 136, 0}, {9000, 7, 0},	{333, 2056, 0},	{17, 4096, 0},	 {2100, 264, 0},
		{1, 777, 0},	{70, 11008, 0}, {3, 500, 72},	{40, 130, 33},	 {20000, 16, 0},
		{700, 1040, 0}, {65, 1024, 0},	{2, 70, 1288},	{300, 2, 320},
	};
	const int rounds = quick ? 1 : 4;
	size_t i;
	int bad = 0, round;

	for (round = 0; round < rounds * 6 && bad < 5; round++) {
		for (i = 0; i < sizeof(shapes) / sizeof(*shapes) && bad < 5; i++) {
			struct tcase c = { .q_dtype = code_dtypes[rnd_below(&rnd, 2)],
					   .x_dtype = floats[round % 3],
					   .wild = (int)rnd_below(&rnd, 3),
					   .flags = random_flags() };
			const int more = shapes[i][2] > 0;

			contiguous_sides = round / 3 % 2;
			c.ndim = c.p_ndim = 2 + more;
			memcpy(c.shape, shapes[i], sizeof(shapes[i]));
			c.own[0] = more && rnd_below(&rnd, 2) ? c.shape[0] : 1;
			c.own[1] = more && c.own[0] > 1 ? 1 : c.shape[1];
			c.own[2] = more ? c.shape[2] : 0;
			bad += !run_params(&c);
		}
	}
	contiguous_sides = 0;
	ok(!bad, "ranges of columns, %d times", rounds * 6);
}

/* q transposed relative to x: whole tiles and edges */
static void test_transposed(void)
{
	static const int64_t shapes[][2] = {
		{8, 8}, {9, 130}, {63, 127}, {64, 129}, {65, 128}, {130, 70}, {200, 16}, {7, 300},
	};
	size_t i;
	int bad = 0, n;

	for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		for (n = 0; n < (quick ? 8 : 24); n++) {
			struct tcase c = { .ndim = 3, .p_ndim = 3, .wild = n % 3,
					   .q_dtype = code_dtypes[n % 2] };
			int d;

			c.x_dtype = floats[(n + (int)i) % 3];
			c.shape[0] = 2;
			c.shape[1] = shapes[i][0];
			c.shape[2] = shapes[i][1];
			for (d = 0; d < 3; d++)
				c.own[d] = rnd_below(&rnd, 2) ? c.shape[d] : 1;
			if (n % 4 == 3 && c.shape[2] % 10 == 0)
				c.own[2] = c.shape[2] / 10;
			bad += !run_codes(&c);
		}
	}
	ok(!bad, "interleaved rows");
}

/* Quotients next to ties, in groups with a scale each */
static void test_division_groups(void)
{
	enum { N = 2400 };
	static const int groups[] = { 1, 2, 3, 8, 15, 16, 32, 40, 100 };
	static float x[N], scales[N];
	static unsigned char zeros[N], want[N];
	const int rounds = quick ? 20 : 200;
	int round, d, i;
	long bad = 0;

	for (round = 0; round < rounds; round++) {
		const int group = groups[round % 9], dtype = code_dtypes[round / 9 % 2];
		/* ties everywhere, or one in a hundred */
		const int often = round / 18 % 2;

		for (i = 0; i < N / group; i++) {
			scales[i] = (float)ldexp(1 + fabs(rnd_uniform(&rnd)),
						 (int)rnd_below(&rnd, 20) - 10);
			if (rnd_below(&rnd, 200) == 0)
				scales[i] = random_scale(2);
			zeros[i] = (unsigned char)rnd_u64(&rnd);
		}
		for (i = 0; i < N; i++) {
			const float s = scales[i / group];
			const int z = dtype == HZ_U8 ? zeros[i / group] :
						       (signed char)zeros[i / group];
			float v = (float)(s * ((double)rnd_below(&rnd, 600) - 300 + 0.5));
			int ulps = (int)rnd_below(&rnd, 7) - 3;

			for (; ulps > 0; ulps--)
				v = nextafterf(v, INFINITY);
			for (; ulps < 0; ulps++)
				v = nextafterf(v, -INFINITY);
			if (!often && rnd_below(&rnd, 100))
				v = (float)rnd_normal(&rnd) * s * 100;
			if (rnd_below(&rnd, 400) == 0)
				v = (float[]){ NAN, INFINITY, -1e30f, 3e9f * s }[i % 4];
			x[i] = v;
			want[i] = (unsigned char)ref_quantize_one(v, s, z, dtype);
		}
		for (d = 0; d < ndevs; d++) {
			hz_tensor xt = hz_tensor_1d(x, HZ_F32, HZ_CPU, N), qt;
			hz_tensor st = hz_tensor_1d(scales, HZ_F32, HZ_CPU, N / group);
			hz_tensor zt = hz_tensor_1d(zeros, dtype, HZ_CPU, N / group);
			struct area xa, sa, za, qa = area_new(&devs[d], N, 0);
			unsigned char image[GUARD + N + GUARD];
			hz_quantize_opts o = { .scales = &st, .zeros = &zt };

			xt = to_device(&devs[d], &xt, &xa);
			st = to_device(&devs[d], &st, &sa);
			zt = to_device(&devs[d], &zt, &za);
			qt = hz_tensor_1d(qa.data, dtype, devs[d].device, N);
			bad += hz_quantize(devs[d].ctx, &xt, &qt, &o) != HZ_OK;
			area_read(&qa, image);
			bad += memcmp(image + GUARD, want, N) != 0;
			area_free(&xa);
			area_free(&sa);
			area_free(&za);
			area_free(&qa);
		}
	}
	ok(!bad, "quotients beside ties in groups, %d rounds", rounds);
}

/* Quotients on and next to ties, for scales whose division is a multiplication by the reciprocal */
static void test_division(void)
{
	enum { N = 4096 };
	static float x[N];
	static unsigned char want[N], got[N];
	const int rounds = quick ? 40 : 400;
	int round, d, i;
	long bad = 0;

	for (round = 0; round < rounds; round++) {
		const float s = (float)ldexp(1 + fabs(rnd_uniform(&rnd)),
					     (int)rnd_below(&rnd, 160) - 80);
		const int z = (int)rnd_below(&rnd, 256);
		hz_quantize_opts o = { .scale = s, .zero = z };

		for (i = 0; i < N; i++) {
			const double tie = (double)s * ((double)rnd_below(&rnd, 600) - 300 + 0.5);
			float v = (float)tie;
			int ulps = (int)rnd_below(&rnd, 7) - 3;

			for (; ulps > 0; ulps--)
				v = nextafterf(v, INFINITY);
			for (; ulps < 0; ulps++)
				v = nextafterf(v, -INFINITY);
			x[i] = v;
			want[i] = (unsigned char)ref_quantize_one(v, s, z, HZ_U8);
		}
		for (d = 0; d < ndevs; d++) {
			hz_tensor xt = hz_tensor_1d(x, HZ_F32, HZ_CPU, N), qt;
			struct area xa, qa = area_new(&devs[d], N, 0);
			unsigned char image[GUARD + N + GUARD];

			xt = to_device(&devs[d], &xt, &xa);
			qt = hz_tensor_1d(qa.data, HZ_U8, devs[d].device, N);
			bad += hz_quantize(devs[d].ctx, &xt, &qt, &o) != HZ_OK;
			area_read(&qa, image);
			memcpy(got, image + GUARD, N);
			bad += memcmp(got, want, N) != 0;
			area_free(&xa);
			area_free(&qa);
		}
	}
	ok(!bad, "quotients beside ties, %d scales", rounds);
}

/* Every 16-bit float */
static void test_every(void)
{
	static uint16_t x[65536];
	static unsigned char want[65536];
	static unsigned char image[GUARD + 65536 + GUARD];
	int dtype, d, i, bad = 0;

	for (i = 0; i < 65536; i++)
		x[i] = (uint16_t)i;
	for (dtype = 1; dtype < 3; dtype++) {
		hz_quantize_opts o = { .scale = 0.1f, .zero = -3 };

		for (i = 0; i < 65536; i++)
			want[i] = (unsigned char)ref_quantize_one(
				(float)ref_get(floats[dtype], x, i), 0.1f, -3, HZ_S8);
		for (d = 0; d < ndevs; d++) {
			hz_tensor xt = hz_tensor_1d(x, floats[dtype], HZ_CPU, 65536), qt;
			struct area xa, qa = area_new(&devs[d], 65536, 0);

			xt = to_device(&devs[d], &xt, &xa);
			qt = hz_tensor_1d(qa.data, HZ_S8, devs[d].device, 65536);
			bad += hz_quantize(devs[d].ctx, &xt, &qt, &o) != HZ_OK;
			area_read(&qa, image);
			bad += memcmp(image + GUARD, want, 65536) != 0;
			area_free(&xa);
			area_free(&qa);
		}
	}
	ok(!bad, "every f16 and bf16");
}

static void test_errors(void)
{
	hz_context *ctx = devs[0].ctx;
	const int device = devs[0].device;
	hz_tensor x, q, s, z;
	hz_quantize_opts o;
	hz_hadamard_opts h;
	void *px, *pq, *ps, *pz;

	hz_alloc(ctx, &px, 4096, device);
	hz_alloc(ctx, &pq, 4096, device);
	hz_alloc(ctx, &ps, 4096, device);
	hz_alloc(ctx, &pz, 4096, device);
#define WRONG(set, call, status, message) \
	do { \
		int st_; \
		x = hz_tensor_2d(px, HZ_F32, device, 4, 12); \
		q = hz_tensor_2d(pq, HZ_U8, device, 4, 12); \
		s = hz_tensor_2d(ps, HZ_F32, device, 4, 1); \
		z = hz_tensor_2d(pz, HZ_U8, device, 4, 1); \
		memset(&o, 0, sizeof(o)); \
		memset(&h, 0, sizeof(h)); \
		set; \
		st_ = call; \
		ok(st_ == (status) && !strcmp(hz_errmsg(ctx), message), "%s: %s", #call, #set); \
		if (st_ != (status) || strcmp(hz_errmsg(ctx), message)) \
			diag("%d \"%s\"", st_, hz_errmsg(ctx)); \
	} while (0)
#define QUANTIZE hz_quantize(ctx, &x, &q, &o)
#define DEQUANTIZE hz_dequantize(ctx, &q, &x, &o)
#define CHOOSE hz_choose_qparams(ctx, &x, &s, &z, 0)
	WRONG(x.dtype = HZ_S8, QUANTIZE, HZ_EDTYPE,
	      "quantize: x.dtype is s8, must be f32, f16 or bf16");
	WRONG(q.dtype = HZ_S32, QUANTIZE, HZ_EDTYPE,
	      "quantize: q.dtype is s32, must be u8, s8, u16, s16, e4m3, e5m2, "
	      "e2m1x2, u4x2, s4x2, u2x4 or s2x4");
	WRONG(q.shape[1] = 11, QUANTIZE, HZ_ESHAPE, "quantize: q.shape[1] is 11, must be 12, as x");
	WRONG(o.scale = -1, QUANTIZE, HZ_EINVAL,
	      "quantize: opts->scale is -1, must be positive and finite in f32");
	WRONG((void)0, QUANTIZE, HZ_EINVAL,
	      "quantize: opts->scale is 0 and opts->scales NULL: give scale, scales or "
	      "new_scales");
	WRONG((void)0, DEQUANTIZE, HZ_EINVAL,
	      "dequantize: opts->scale is 0 and opts->scales NULL: give the scale or scales of "
	      "q");
	WRONG((void)0, hz_quantize(ctx, &x, &q, NULL), HZ_EINVAL,
	      "quantize: opts->scale is 0 and opts->scales NULL: give scale, scales or "
	      "new_scales");
	WRONG(x.shape[0] = q.shape[0] = 0, QUANTIZE, HZ_EINVAL,
	      "quantize: opts->scale is 0 and opts->scales NULL: give scale, scales or "
	      "new_scales");
	WRONG(o.scale = 1e-60, QUANTIZE, HZ_EINVAL,
	      "quantize: opts->scale is 1e-60, must be positive and finite in f32");
	WRONG(o.zero = 256, QUANTIZE, HZ_EINVAL,
	      "quantize: opts->zero is 256, must be 0 to 255 for u8");
	WRONG(o.flags = 1, QUANTIZE, HZ_EINVAL, "quantize: opts->flags is 0x1, must be 0");
	WRONG((o.scale = 1, o.hadamard = &h, h.axis = HZ_AXIS(0)), QUANTIZE, HZ_ENOTSUP,
	      "quantize: hadamard: opts->axis is HZ_AXIS(0), must be HZ_AXIS(-1) or 0, the "
	      "last dimension; hz_hadamard() takes every axis");
	WRONG((o.scale = 1, o.hadamard = &h, h.block = 5), QUANTIZE, HZ_ESHAPE,
	      "quantize: hadamard: opts->block is 5, must divide 12, the length of axis 1");
	WRONG((o.scale = 1, o.hadamard = &h, h.min_block = 16), DEQUANTIZE, HZ_ESHAPE,
	      "dequantize: hadamard: y.shape[1] is 12, which the greedy plan cannot make: it needs "
	      "a block of 8, less than opts->min_block 16");
	WRONG((o.scale = 1, o.hadamard = &h, h.plan = HZ_PLAN_TRUE, x.shape[1] = q.shape[1] = 10),
	      QUANTIZE, HZ_ESHAPE,
	      "quantize: hadamard: x.shape[1] is 10, which the true plan cannot make: must be 20 "
	      "times a power of two; the greedy plan makes any length");
	WRONG((o.scale = 1, o.hadamard = &h, h.block = 4, h.pre = &s, s.data = q.data), QUANTIZE,
	      HZ_ESHAPE, "quantize: hadamard: opts->pre.ndim is 2, must be 1");
	WRONG((o.scale = 1, o.hadamard = &h, h.block = 4, s = hz_tensor_1d(pq, HZ_F32, device, 4),
	       h.pre = &s), QUANTIZE, HZ_EALIAS,
	      "quantize: hadamard: q overlaps opts->pre, must be apart from it");
	WRONG((o.scale = 1, o.hadamard = &h, x.ndim = q.ndim = 0), QUANTIZE, HZ_ESHAPE,
	      "quantize: hadamard: x.ndim is 0, must be 1 to 6");
	WRONG(o.reserved[0] = 1, QUANTIZE, HZ_EINVAL,
	      "quantize: opts->reserved[0] is 1, must be 0");
	WRONG(o.zeros = &z, QUANTIZE, HZ_EINVAL, "quantize: opts->zeros needs opts->scales");
	WRONG((o.scales = &s, o.scale = 1), QUANTIZE, HZ_EINVAL,
	      "quantize: opts->scales excludes opts->scale and opts->zero");
	WRONG((o.scales = &s, s.shape[0] = 3), QUANTIZE, HZ_ESHAPE,
	      "quantize: opts->scales.shape[0] is 3, must be 4, as x, or 1");
	WRONG((o.scales = &s, s.shape[1] = 5, s.stride[0] = 5), QUANTIZE, HZ_ESHAPE,
	      "quantize: opts->scales.shape[1] is 5, must be 12, as x, or 1, or divide it");
	WRONG((o.scales = &s, s.ndim = 1), QUANTIZE, HZ_ESHAPE,
	      "quantize: opts->scales.shape[0] is 4, must be 12, as x.shape[1]: scales of rows have "
	      "the shape [rows, 1]");
	WRONG((o.scales = &s, s = hz_tensor_3d(ps, HZ_F32, device, 1, 4, 1)), QUANTIZE, HZ_ESHAPE,
	      "quantize: opts->scales.ndim is 3, must be 1 to 2, as x, unless it has one element");
	WRONG((o.scales = &s, s.stride[0] = 2), QUANTIZE, HZ_ESTRIDE,
	      "quantize: opts->scales must be contiguous");
	WRONG((o.scales = &s, o.zeros = &z, z.dtype = HZ_S8), QUANTIZE, HZ_EDTYPE,
	      "quantize: opts->zeros.dtype is s8, must be u8, as q");
	WRONG((o.scales = &s, o.zeros = &z, z.shape[0] = 1), QUANTIZE, HZ_ESHAPE,
	      "quantize: opts->zeros.shape[0] is 1, must be 4, as opts->scales");
	WRONG(q.data = x.data, QUANTIZE, HZ_EALIAS,
	      "quantize: q overlaps x, must be apart from it");
	WRONG(x.data = q.data, DEQUANTIZE, HZ_EALIAS,
	      "dequantize: y overlaps q, must be apart from it");
	WRONG(q.dtype = HZ_F32, DEQUANTIZE, HZ_EDTYPE,
	      "dequantize: q.dtype is f32, must be u8, s8, u16, s16, e4m3, e5m2, "
	      "e2m1x2, u4x2, s4x2, u2x4 or s2x4");
	WRONG(z.shape[0] = 1, CHOOSE, HZ_ESHAPE,
	      "choose_qparams: zero.shape[0] is 1, must be 4, as scale");
	WRONG(s.dtype = HZ_F16, CHOOSE, HZ_EDTYPE,
	      "choose_qparams: scale.dtype is f16, must be f32");
	WRONG(s.data = x.data, CHOOSE, HZ_EALIAS,
	      "choose_qparams: scale overlaps x, must be apart from it");
	WRONG((void)0, hz_choose_qparams(ctx, &x, &s, &z, 16), HZ_EINVAL,
	      "choose_qparams: flags has unknown bits 0x10 (valid: HZ_QPARAMS_SYMMETRIC, "
	      "HZ_QPARAMS_SYMMETRIC_127_5, HZ_QPARAMS_F32, HZ_QPARAMS_REDUCE_RANGE)");
	WRONG((void)0, hz_choose_qparams(ctx, &x, &s, &z, 3), HZ_EINVAL,
	      "choose_qparams: flags has HZ_QPARAMS_SYMMETRIC and _SYMMETRIC_127_5: one of them");
	WRONG((void)0, hz_choose_qparams(ctx, &x, &s, NULL, 0), HZ_EINVAL,
	      "choose_qparams: zero is NULL, must be a view: only s8 with HZ_QPARAMS_SYMMETRIC "
	      "or _SYMMETRIC_127_5 needs none");
	WRONG((x.shape[0] = INT64_MAX / 12, x.stride[0] = x.stride[1] = 0), CHOOSE, HZ_ESHAPE,
	      "choose_qparams: x is too large: its size overflows");
	x.shape[0] = 0;
	q.shape[0] = 0;
	o = (hz_quantize_opts){.scale = 1};
	is_int(QUANTIZE, HZ_OK, "an empty tensor");
	hz_free(ctx, px, device);
	hz_free(ctx, pq, device);
	hz_free(ctx, ps, device);
	hz_free(ctx, pz, device);
}

/* Scales for a [2, 3, 8] of that shape, and its codes, which it appends to the scales */
static int by_shape(struct dev *dev, const hz_tensor *x, int ndim, const int64_t *shape, bool s8,
		    bool zero_points, unsigned char *result)
{
	struct area sa = area_new(dev, 96, 0), za = area_new(dev, 24, 0), qa = area_new(dev, 48, 0);
	hz_tensor s = hz_tensor_nd(sa.data, HZ_F32, dev->device, ndim, shape);
	hz_tensor z = hz_tensor_nd(za.data, s8 ? HZ_S8 : HZ_U8, dev->device, ndim, shape);
	hz_tensor q = hz_tensor_3d(qa.data, z.dtype, dev->device, 2, 3, 8);
	hz_tensor *const zero = zero_points ? &z : NULL;
	const hz_quantize_opts o = {.scales = &s, .zeros = zero};
	const uint32_t flags = s8 ? HZ_QPARAMS_SYMMETRIC : 0;
	unsigned char image[2 * GUARD + 96] = {0};
	size_t bytes = 0;
	int status;

	memset(result, 0, 144);
	area_write(&sa, image);
	status = RECORD(dev->ctx, hz_choose_qparams(dev->ctx, x, &s, zero, flags), &bytes);
	status = status ? status : hz_reserve(dev->ctx, bytes);
	status = status ? status : hz_choose_qparams(dev->ctx, x, &s, zero, flags);
	status = status ? status : hz_quantize(dev->ctx, x, &q, &o);
	area_read(&sa, image);
	memcpy(result, image + GUARD, 96);
	area_read(&qa, image);
	memcpy(result + 96, image + GUARD, 48);
	area_free(&sa);
	area_free(&za);
	area_free(&qa);
	return status;
}

/* Leading dimensions are 1, as in NumPy; symmetric s8 needs no zero points. */
static void test_shapes(void)
{
	static const struct {
		int ndim;
		int64_t shape[2], wide[3];
	} t[] = {{1, {8}, {1, 1, 8}}, {1, {1}, {1, 1, 1}}, {2, {3, 1}, {1, 3, 1}},
		 {2, {3, 4}, {1, 3, 4}}, {2, {1, 8}, {1, 1, 8}}};
	unsigned char got[144], want[144];
	float values[48];

	for (int i = 0; i < 48; i++)
		values[i] = (float)rnd_normal(&rnd);
	for (int d = 0; d < ndevs; d++) {
		const hz_tensor host = hz_tensor_3d(values, HZ_F32, HZ_CPU, 2, 3, 8);
		struct area xa;
		const hz_tensor x = to_device(&devs[d], &host, &xa);
		int bad = 0;

		for (int i = 0; i < (int)(sizeof(t) / sizeof(*t)); i++) {
			for (int s8 = 0; s8 < 2; s8++) {
				bad += by_shape(&devs[d], &x, 3, t[i].wide, s8, true, want);
				bad += by_shape(&devs[d], &x, t[i].ndim, t[i].shape, s8, true, got);
				bad += memcmp(got, want, sizeof(got)) != 0;
			}
			bad += by_shape(&devs[d], &x, 3, t[i].wide, true, false, got);
			bad += memcmp(got, want, sizeof(got)) != 0;
		}
		ok(bad == 0, "shapes of scales, and no zero points, %s", devs[d].name);
		area_free(&xa);
	}
}

/* No elements: the scale is 1, the zero point the middle of the code range. */
static void test_empty(void)
{
	int d;

	for (d = 0; d < ndevs; d++) {
		struct area sa = area_new(&devs[d], 12, 0), za = area_new(&devs[d], 3, 0);
		hz_tensor x = hz_tensor_2d(NULL, HZ_F32, devs[d].device, 3, 0);
		hz_tensor s = hz_tensor_2d(sa.data, HZ_F32, devs[d].device, 3, 1);
		hz_tensor z = hz_tensor_2d(za.data, HZ_U8, devs[d].device, 3, 1);
		static const float ones[] = { 1, 1, 1 };
		static const unsigned char zeros[] = { 0, 0, 0 };
		unsigned char image[2 * GUARD + 12];
		size_t bytes = 0;

		RECORD(devs[d].ctx, hz_choose_qparams(devs[d].ctx, &x, &s, &z, 0), &bytes);
		hz_reserve(devs[d].ctx, bytes);
		is_int(hz_choose_qparams(devs[d].ctx, &x, &s, &z, 0), HZ_OK, "no elements, %s",
		       devs[d].name);
		area_read(&sa, image);
		is_bits(image + GUARD, ones, 3, 4, "scales");
		area_read(&za, image);
		is_bits(image + GUARD, zeros, 3, 1, "zeros");
		area_free(&sa);
		area_free(&za);
	}
}

/* Whether every code of a parameter is finite, and x comes back within a step */
static int comes_back(const float *x, int n, int dtype, float s, int z)
{
	const int qmin = qmin_of(dtype);

	for (int q = qmin; q <= qmin + 255; q++) {
		if (!isfinite(ref_dequantize_one(q, s, z)))
			return 0;
	}
	for (int i = 0; i < n; i++) {
		const float y = ref_dequantize_one(ref_quantize_one(x[i], s, z, dtype), s, z);

		if (!(fabs((double)y - x[i]) <= 1.0001 * s))
			return 0;
	}
	return 1;
}

/* Ranges near the largest and the smallest floats, as many as fill vectors and a tail */
static void test_extreme_ranges(void)
{
	static const float pairs[][2] = {
		{-FLT_MAX, FLT_MAX}, {-3.4e38f, 3.4e38f}, {0, FLT_MAX}, {-FLT_MAX, 0},
		{-FLT_MAX, 3.4e37f}, {-1e38f, FLT_MAX}, {-0x1p126f, 0x1p126f}, {-FLT_MAX, 1},
		{-FLT_MAX / 2, FLT_MAX}, {-1, FLT_MAX}, {FLT_MAX, FLT_MAX}, {-FLT_MAX, -FLT_MAX},
		{-1, 2}, {-1e-40f, 1e-40f}, {0, 1e-45f}, {-FLT_MIN, FLT_MIN}, {0, 254 * FLT_MIN},
		{0, 256 * FLT_MIN}, {0, 0},
	};
	enum { N = sizeof(pairs) / sizeof(*pairs) };

	for (int d = 0; d < ndevs; d++) {
		struct area xa = area_new(&devs[d], sizeof(pairs), 0);
		struct area sa = area_new(&devs[d], N * 4, 0), za = area_new(&devs[d], N, 0);
		hz_tensor x = hz_tensor_2d(xa.data, HZ_F32, devs[d].device, N, 2);
		hz_tensor s = hz_tensor_2d(sa.data, HZ_F32, devs[d].device, N, 1);
		unsigned char image[2 * GUARD + sizeof(pairs)] = {0}, zeros[2 * GUARD + N];
		int bad = 0;

		memcpy(image + GUARD, pairs, sizeof(pairs));
		area_write(&xa, image);
		for (int k = 0; k < 24; k++) {
			const int dtype = k % 2 ? HZ_S8 : HZ_U8;
			const uint32_t flags = (uint32_t)(k / 2 % 3 | k / 6 << 2);
			hz_tensor z = hz_tensor_2d(za.data, dtype, devs[d].device, N, 1);
			float scales[N];
			size_t bytes = 0;

			RECORD(devs[d].ctx, hz_choose_qparams(devs[d].ctx, &x, &s, &z, 0), &bytes);
			hz_reserve(devs[d].ctx, bytes);
			bad += hz_choose_qparams(devs[d].ctx, &x, &s, &z, flags) != HZ_OK;
			area_read(&sa, image);
			memcpy(scales, image + GUARD, sizeof(scales));
			area_read(&za, zeros);
			for (int i = 0; i < N; i++) {
				const double both[] = {pairs[i][0], pairs[i][1]};
				const int got = dtype == HZ_U8 ? zeros[GUARD + i]
							       : (int8_t)zeros[GUARD + i];
				float want_s = 0;
				int want_z = 0;

				ref_params(both, 2, dtype, flags, &want_s, &want_z);
				if (scales[i] == want_s && got == want_z && want_s >= FLT_MIN &&
				    (flags > HZ_QPARAMS_SYMMETRIC ||
				     comes_back(pairs[i], 2, dtype, scales[i], got)))
					continue;
				bad++;
				diag("%g .. %g: scale %a zero %d, want %a, %d", pairs[i][0],
				     pairs[i][1], scales[i], got, want_s, want_z);
			}
		}
		ok(!bad, "ranges near the largest and smallest floats, %s", devs[d].name);
		area_free(&xa);
		area_free(&sa);
		area_free(&za);
	}
}

/*
 * Quotients far beyond all codes, as many as fill vectors and a tail: they saturate and raise no
 * exception, of which the caller's own stay.
 */
static void test_saturation(void)
{
	static const float values[] = {
		FLT_MAX, -FLT_MAX, 1e30f, -1e30f, 0x1p31f, -0x1p31f, 0x1p40f, -0x1p40f, 300, -300,
		1, 0,
	};
	static const float scales[] = {1, 0x1p-20f, 1e-18f, FLT_MIN, 1e-42f, 1e30f};
	enum { N = 299, VALUES = sizeof(values) / sizeof(*values), ALL = FE_ALL_EXCEPT };
	const int errors = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
	float x[N], each[N];
	int8_t q[N], zeros[N];

	for (int d = 0; d < ndevs; d++) {
		int bad = 0;

		if (devs[d].device != HZ_CPU)
			continue;
		for (int k = 0; k < 24; k++) {
			const float s = scales[k / 2 % 6];
			const int dtype = k % 2 ? HZ_S8 : HZ_U8, own = k % 3 ? 0 : FE_INVALID;
			const int zero = dtype == HZ_U8 ? 100 : -100;
			const bool by_element = k >= 12;
			hz_tensor st = hz_tensor_1d(each, HZ_F32, HZ_CPU, by_element ? N : 1);
			hz_tensor zt = hz_tensor_1d(zeros, dtype, HZ_CPU, by_element ? N : 1);
			const hz_quantize_opts o = {.scales = &st, .zeros = &zt};
			hz_tensor xt = hz_tensor_1d(x, HZ_F32, HZ_CPU, N);
			hz_tensor qt = hz_tensor_1d(q, dtype, HZ_CPU, N);
			int raised;

			for (int i = 0; i < N; i++) {
				/* One kind of value for each vector, or all in one */
				x[i] = values[(k % 4 < 2 ? i / 16 : i) % VALUES];
				each[i] = by_element && i % 3 ? 0x1p-8f : s;
				zeros[i] = (int8_t)zero;
			}
			feclearexcept(ALL);
			feraiseexcept(own);
			bad += hz_quantize(devs[d].ctx, &xt, &qt, &o) != HZ_OK;
			raised = fetestexcept(errors);
			feclearexcept(ALL);
			if (raised != own) {
				bad++;
				diag("exceptions 0x%x, not 0x%x, scale %g", raised, own, s);
			}
			for (int i = 0; i < N; i++) {
				const int got = dtype == HZ_U8 ? (uint8_t)q[i] : q[i];
				const int want = ref_quantize_one(x[i], by_element ? each[i] : s,
								  zero, dtype);

				bad += got != want;
				if (got != want && bad < 4)
					diag("%g by %g: %d, not %d", x[i], each[i], got, want);
			}
		}
		ok(!bad, "quotients beyond all codes, %s", devs[d].name);
	}
	feclearexcept(ALL);
}

/* DynamicQuantizeLinear of ONNX Runtime 1.32, where f64 gives another scale */
static void test_onnxruntime(void)
{
	static const float rows[][6] = {
		{.756f, -2.091f, -1.652f, -9.766f, 7.199f, 4.577f},
		{-2.607f, -.699f, 6.655f, 2.637f, -6.566f, -.021f},
	};
	static const float want[] = {0x1.108126p-4f, 0x1.a8bb2cp-5f};
	static const uint8_t want_zeros[] = {147, 127};

	for (int d = 0; d < ndevs; d++) {
		hz_context *ctx = devs[d].ctx;
		hz_tensor x = hz_tensor_2d((void *)(uintptr_t)rows, HZ_F32, HZ_CPU, 2, 6);
		struct area xa, sa = area_new(&devs[d], 8, 0), za = area_new(&devs[d], 2, 0);
		hz_tensor s = hz_tensor_2d(sa.data, HZ_F32, devs[d].device, 2, 1);
		hz_tensor z = hz_tensor_2d(za.data, HZ_U8, devs[d].device, 2, 1);
		unsigned char image[2 * GUARD + 8];
		size_t bytes = 0;

		x = to_device(&devs[d], &x, &xa);
		RECORD(ctx, hz_choose_qparams(ctx, &x, &s, &z, HZ_QPARAMS_F32), &bytes);
		hz_reserve(ctx, bytes);
		is_int(hz_choose_qparams(ctx, &x, &s, &z, HZ_QPARAMS_F32), HZ_OK,
		       "as ONNX Runtime, %s", devs[d].name);
		area_read(&sa, image);
		is_bits(image + GUARD, want, 2, 4, "the same scales");
		area_read(&za, image);
		is_bits(image + GUARD, want_zeros, 2, 1, "the same zero points");
		area_free(&xa);
		area_free(&sa);
		area_free(&za);
	}
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_quantize);
	dev_open_routes(HZI_OP_dequantize);
	dev_open_routes(HZI_OP_choose_qparams);
	test_random();
	test_large();
	test_tiles();
	test_columns();
	test_transposed();
	test_division_groups();
	test_division();
	test_every();
	test_empty();
	test_shapes();
	test_extreme_ranges();
	test_saturation();
	test_onnxruntime();
	test_errors();
	dev_close_all();
	return done_testing();
}
