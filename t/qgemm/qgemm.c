/*
 * qgemm.c - hz_qgemm() and hz_qgemm_pack()
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/qgemm/ref.h"

static const int c_dtypes[] = { HZ_U8, HZ_S8, HZ_S32, HZ_F32, HZ_F16, HZ_BF16 };

static int random_c_zero(int c_dtype)
{
	static const int far[] = { INT32_MIN, INT32_MAX, 0, 5, -77 };

	if (is_float(c_dtype))
		return 0;
	return c_dtype == HZ_S32 ? far[rnd_below(&rnd, 5)] : random_zero(c_dtype);
}

/* A random form of sigma; accumulators are about 2^13 sqrt(k). */
static void random_how(struct tcase *c)
{
	c->how = is_float(c->c_dtype) ? (rnd_below(&rnd, 2) ? SCALES : COLUMN_SCALES) :
					(enum how)rnd_below(&rnd, 5);
	c->o.a_scale = c->o.b_scale = c->o.c_scale = 0;
	switch (c->how) {
	case SCALES:
	case COLUMN_SCALES:
		c->o.a_scale = rnd_below(&rnd, 3) ? random_scale() : 0;
		c->o.b_scale = rnd_below(&rnd, 3) ? random_scale() : 0;
		if (!is_float(c->c_dtype))
			c->o.c_scale = rnd_below(&rnd, 3) ? random_scale() : 0;
		if (is_float(c->c_dtype))
			c->row_scales = (int)rnd_below(&rnd, 3);
		break;
	case SIGMA:
		c->o.sigma = rnd_below(&rnd, 2) ? fabs(rnd_uniform(&rnd)) * 0.01 + 1e-9
						: ldexp(1 + fabs(rnd_uniform(&rnd)),
							(int)rnd_below(&rnd, 70) - 36);
		break;
	case PAIR:
		c->o.multiplier = 1 + (int32_t)(rnd_u64(&rnd) >> 34);
		c->o.shift = 1 + (int)rnd_below(&rnd, 62);
		break;
	default:
		break;
	}
	if (!is_float(c->c_dtype) && rnd_below(&rnd, 2)) {
		const int pair = c->how == PAIR || c->how == PAIRS;

		c->o.requant = pair ? HZ_REQUANT_RUY + (int)rnd_below(&rnd, 2) :
				      1 + (int)rnd_below(&rnd, 4);
	}
}

static struct tcase random_case(void)
{
	struct tcase c = { 0 };
	int d;

	c.m = 1 + rnd_below(&rnd, rnd_below(&rnd, 2) ? 6 : 70);
	c.n = 1 + rnd_below(&rnd, rnd_below(&rnd, 3) ? 70 : 9);
	c.k = rnd_below(&rnd, 4) ? rnd_below(&rnd, 140) : rnd_below(&rnd, 700);
	c.batch_ndim = rnd_below(&rnd, 3) ? 0 : 1 + (int)rnd_below(&rnd, 2);
	for (d = 0; d < c.batch_ndim; d++)
		c.batch[d] = 1 + rnd_below(&rnd, 4);
	if (c.batch_ndim) {
		c.m = 1 + rnd_below(&rnd, 10);
		c.k = rnd_below(&rnd, 100);
	}
	c.a_batch = rnd_below(&rnd, 3) ? 1 : (int)rnd_below(&rnd, 3);
	c.b_batch = (int)rnd_below(&rnd, 3);
	c.a_dtype = code_dtypes[rnd_below(&rnd, 2)];
	c.b_dtype = code_dtypes[rnd_below(&rnd, 2)];
	c.c_dtype = c_dtypes[rnd_below(&rnd, 6)];
	c.a_trans = rnd_below(&rnd, 4) == 0;
	c.b_trans = rnd_below(&rnd, 3) == 0;
	c.c_trans = rnd_below(&rnd, 6) == 0;
	c.pad = rnd_below(&rnd, 2) ? 0 : (int)rnd_below(&rnd, 9);
	c.skew = rnd_below(&rnd, 2) ? 0 : (int)rnd_below(&rnd, 16);
	c.c_skew = (int)hz_dtype_size(c.c_dtype) * (int)rnd_below(&rnd, 4);
	c.packed = (int)rnd_below(&rnd, 2);
	c.a_rows = rnd_below(&rnd, 3) ? 0 : 1 + (int)rnd_below(&rnd, 2);
	c.b_cols = rnd_below(&rnd, 3) == 0;
	c.big_bias = rnd_below(&rnd, 5) == 0;
	c.o.a_zero = rnd_below(&rnd, 3) ? random_zero(c.a_dtype) : 0;
	c.o.b_zero = rnd_below(&rnd, 3) ? random_zero(c.b_dtype) : 0;
	c.o.c_zero = random_c_zero(c.c_dtype);
	c.values = rnd_below(&rnd, 2) ? RANDOM : (enum values)(1 + rnd_below(&rnd, 4));
	random_how(&c);
	c.bias = (int[]){ 0, HZ_S32, is_float(c.c_dtype) || c.o.requant == HZ_REQUANT_FLOAT ?
			  HZ_F32 : HZ_S32 }[rnd_below(&rnd, 3)];
	if (rnd_below(&rnd, 4) == 0) {
		c.o.given = HZ_QGEMM_GIVEN_MIN | HZ_QGEMM_GIVEN_MAX;
		c.o.min = c.c_dtype == HZ_U8 ? 17.5 : -33;
		c.o.max = rnd_below(&rnd, 4) ? 90.75 : c.c_dtype == HZ_U8 ? 18 : -33;
	}
	if (rnd_below(&rnd, 4) == 0 && !c.o.given)
		c.o.flags |= HZ_QGEMM_RELU;
	return c;
}

static void test_random(void)
{
	const int n = quick ? 150 : 1500;
	int i, bad = 0;

	for (i = 0; i < n && bad < 5; i++) {
		struct tcase c = random_case();

		bad += !run_case(&c);
	}
	ok(!bad, "%d random cases", n);
}

/* ---- All pairs of codes, all small sizes, long k --------------------------------------------- */

static void test_pairs(void)
{
	int mix, bad = 0;

	for (mix = 0; mix < 4; mix++) {
		struct tcase c = { .m = 256, .n = 256, .k = 1, .a_dtype = code_dtypes[mix & 1],
				   .b_dtype = code_dtypes[mix >> 1], .c_dtype = HZ_S32 };
		struct matrix a, b, want;
		struct extras e;
		int i, d;

		matrix_new(&a, c.a_dtype, 0, NULL, 256, 1, 0, 0, 0);
		matrix_new(&b, c.b_dtype, 0, NULL, 1, 256, 0, 0, 0);
		matrix_new(&want, HZ_S32, 0, NULL, 256, 256, 0, 0, 0);
		for (i = 0; i < 256; i++)
			a.data[i] = b.data[i] = (unsigned char)i;
		c.o.a_zero = random_zero(c.a_dtype);
		c.o.b_zero = random_zero(c.b_dtype);
		make_extras(&c, &e);
		ref_qgemm(&c, &a, &b, &want, &e);
		for (d = 0; d < ndevs; d++)
			bad += !run_one(&devs[d], &c, &a, &b, &want, &e);
		free(a.image);
		free(b.image);
		free(want.image);
	}
	ok(!bad, "all 65536 pairs of codes, four mixes of types");
}

static void test_sizes(void)
{
	const int step = quick ? 13 : 1;
	int i, bad = 0;

	for (i = 1; i <= 70 && bad < 5; i += step) {
		struct tcase c = random_case();

		c.batch_ndim = 0;
		c.m = i;
		c.n = 1 + rnd_below(&rnd, 70);
		c.k = 60 + rnd_below(&rnd, 10);
		bad += !run_case(&c);
		c = random_case();
		c.batch_ndim = 0;
		c.m = 1 + rnd_below(&rnd, 70);
		c.n = i;
		c.k = 1 + rnd_below(&rnd, 70);
		bad += !run_case(&c);
		c = random_case();
		c.batch_ndim = 0;
		c.m = 1 + rnd_below(&rnd, 5);
		c.n = 1 + rnd_below(&rnd, 40);
		c.k = i * 2;
		bad += !run_case(&c);
	}
	ok(!bad, "m and n to 70, k to 140");
}

/* Sizes that are split into blocks and between threads */
static void test_large(void)
{
	static const int64_t sizes[][3] = {
		{1, 1024, 512}, {16, 700, 300}, {130, 20, 2200}, {130, 520, 70},
		{300, 33, 257}, {257, 300, 65}, {1000, 65, 33},	 {65, 1100, 129},
	};
	size_t i;
	int bad = 0;

	for (i = 0; i < sizeof(sizes) / sizeof(*sizes) && !(quick && i > 2); i++) {
		int kind;

		for (kind = 0; kind < 4; kind++) {
			struct tcase c = random_case();

			c.batch_ndim = 0;
			c.m = sizes[i][0];
			c.n = sizes[i][1];
			c.k = sizes[i][2];
			c.packed = kind & 1;
			c.b_trans = kind >> 1;
			bad += !run_case(&c);
		}
	}
	ok(!bad, "sizes beyond blocks, with a packed B and without");
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes) && !(quick && i > 3); i++) {
		int kind;

		for (kind = 0; kind < 6; kind++) {
			struct tcase c = random_case();

			c.batch_ndim = 0;
			c.m = sizes[i][0];
			c.n = sizes[i][1];
			c.k = sizes[i][2];
			c.a_trans = kind % 3 != 1;
			c.c_trans = kind % 3 != 2;
			c.packed = kind & 1;
			bad += !run_case(&c);
		}
	}
	ok(!bad, "the same of A and C that are transposed");
}

/* Integer results of packed B and contiguous rows: epilogues that overlap with multiplication, for
 * even and odd bands of rows, groups of columns and splits of k */
static void test_bands(void)
{
	static const int64_t sizes[][3] = {
		{ 96, 1024, 1088 }, { 300, 1056, 256 }, { 161, 520, 1500 }, { 75, 300, 2112 },
		{ 600, 1056, 64 }, { 352, 1100, 1024 },
	};
	size_t i;
	int bad = 0;

	for (i = 0; i < sizeof(sizes) / sizeof(*sizes) && !(quick && i > 1); i++) {
		int kind;

		for (kind = 0; kind < 4; kind++) {
			struct tcase c = { .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2] };

			c.packed = 1;
			c.a_dtype = code_dtypes[kind & 1];
			c.b_dtype = code_dtypes[kind >> 1];
			c.c_dtype = code_dtypes[rnd_below(&rnd, 2)];
			c.skew = kind == 3 ? 3 : 0;
			c.b_cols = kind == 2;
			c.o.a_zero = random_zero(c.a_dtype);
			c.o.b_zero = random_zero(c.b_dtype);
			c.o.c_zero = random_c_zero(c.c_dtype);
			c.o.a_scale = 1e-5f;
			bad += !run_case(&c);
		}
	}
	ok(!bad, "bands of rows, groups of columns and parts of k");
}

/*
 * Sizes for the larger tiles of a GPU, and for clusters of two blocks that split k; t/qgemm/cuda.c
 * names the kernels.
 */
static void test_wide(void)
{
	static const int64_t sizes[][3] = {
		{ 100, 9008, 129 }, { 90, 12000, 100 }, { 300, 4200, 130 }, { 140, 12000, 200 },
		{ 130, 16496, 70 }, { 61, 4112, 300 }, { 27, 2320, 130 },
	};
	int bad = 0;

	for (size_t i = 0; tap_cuda() && i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (int kind = 0; kind < (quick ? 2 : 4); kind++) {
			struct tcase c = { .a_dtype = code_dtypes[kind & 1], .b_dtype = HZ_U8 };

			if (kind > 2)
				c = random_case();
			c.batch_ndim = 0;
			c.m = sizes[i][0];
			c.n = sizes[i][1];
			c.k = sizes[i][2];
			c.packed = 1;
			if (kind < 3) {
				c.c_dtype = kind == 1 ? HZ_BF16 : code_dtypes[kind / 2];
				c.o.a_zero = random_zero(c.a_dtype);
				c.o.b_zero = random_zero(c.b_dtype);
				c.o.a_scale = 1e-4f;
			}
			bad += !run_case(&c);
		}
	}
	ok(!bad, "tiles of every width");
}

/* More tiles than a GPU runs concurrently; see t/qgemm/cuda.c. */
static void test_waves(void)
{
	int bad = 0;

	for (int kind = 0; tap_cuda() && !quick && kind < 2; kind++) {
		struct tcase c = {.m = 2700, .n = 3000, .k = kind ? 260 : 130, .packed = 1,
				  .a_dtype = code_dtypes[kind & 1], .b_dtype = HZ_U8};

		c.c_dtype = HZ_U8;
		c.o.a_zero = random_zero(c.a_dtype);
		c.o.b_zero = random_zero(c.b_dtype);
		c.o.a_scale = 1e-4f;
		bad += !run_case(&c);
	}
	ok(!bad, "tiles one after the other");
}

static void test_long_k(void)
{
	static const int64_t lengths[] = {
		1,     3,     4,     63,    64,	   65,	  127,	 1023,	 32767,
		32768, 32769, 33024, 33025, 33026, 65793, 65794, 131071, 131072,
	};
	static const int zeros[] = { 0, 1, 127, 128, 255 };
	size_t l;
	int za, zb, bad = 0;

	for (l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
		if (quick && lengths[l] > 33026)
			break;
		for (za = 0; za < 5; za++) {
			for (zb = 0; zb < 5 && bad < 5; zb++) {
				struct tcase c = { .m = 2, .n = 3, .k = lengths[l] };

				if (lengths[l] > 2000 && (za + zb + (int)l) % 3)
					continue;
				c.a_dtype = code_dtypes[rnd_below(&rnd, 2)];
				c.b_dtype = code_dtypes[rnd_below(&rnd, 2)];
				c.c_dtype = c_dtypes[rnd_below(&rnd, 4)];
				c.o.a_zero = code_min(c.a_dtype) + zeros[za];
				c.o.b_zero = code_min(c.b_dtype) + zeros[zb];
				c.values = (enum values)(1 + rnd_below(&rnd, 4));
				c.packed = (int)rnd_below(&rnd, 2);
				c.b_trans = (int)rnd_below(&rnd, 2);
				c.bias = rnd_below(&rnd, 2) ? HZ_S32 : 0;
				c.big_bias = (int)rnd_below(&rnd, 2);
				c.b_cols = rnd_below(&rnd, 4) == 0;
				c.a_rows = rnd_below(&rnd, 4) == 0;
				c.o.a_scale = 3e-8f;
				bad += !run_case(&c);
			}
		}
	}
	ok(!bad, "long k: the limits of s32, and beyond");
}

/* ---- Requantization -------------------------------------------------------------------------- */

/* An accumulator per row, set by the bias, because products of codes do not reach all values */
static void test_requantization(void)
{
	static const int32_t accs[] = {
		0, 1, -1, 2, 3, -3, 5, -5, 7, -7, 10, -10, 127, 128, -128, -129, 255, 256, 1000,
		-1000, 65535, 65536, -65536, 1 << 20, (1 << 20) + 1, -(1 << 20) - 1, 1 << 30,
		-(1 << 30),
		INT32_MAX, INT32_MAX - 1, INT32_MIN, INT32_MIN + 1, 33024 * 3, 98765432, -98765432,
		3 << 28, -(3 << 28), 1 << 29, 1 << 24,
	};
	const int64_t n = sizeof(accs) / sizeof(*accs);
	int exponent, side, requant = 1, bad = 0;

	for (exponent = -150; exponent <= 128 && bad < 5;
	     exponent += exponent < -42 || exponent > 34 ? 23 : 1) {
		for (side = 0; side < 5; side++) {
			float p = ldexpf(1, exponent), sigma;
			int out;

			if (exponent == 128)
				p = 3.4028234664e38f;
			sigma = side == 0   ? p
				: side == 1 ? nextafterf(p, 0)
				: side == 2 ? nextafterf(p, INFINITY)
				: side == 3 ? p * 0.3f
					    : p * 1.75f;
			if (sigma == 0 || !isfinite(sigma))
				continue;
			for (out = 0; out < 3; out++) {
				struct tcase c = {.m = 1,
						  .n = n,
						  .k = 1,
						  .a_dtype = HZ_U8,
						  .b_dtype = HZ_U8,
						  .c_dtype = c_dtypes[out],
						  .bias = HZ_S32};
				struct matrix a, b, want;
				struct extras e;
				int d;

				c.o.a_scale = sigma;
				c.o.c_zero = random_c_zero(c.c_dtype);
				c.o.requant = side < 3 ? HZ_REQUANT_EXACT : requant;
				requant = requant % 4 + 1;
				matrix_new(&a, HZ_U8, 0, NULL, 1, 1, 0, 0, 0);
				matrix_new(&b, HZ_U8, 0, NULL, 1, n, 0, 0, 0);
				matrix_new(&want, c.c_dtype, 0, NULL, 1, n, 0, 0, 0);
				memset(a.data, 0, 1);
				memset(b.data, 0, (size_t)n);
				make_extras(&c, &e);
				memcpy(e.bias.host, accs, sizeof(accs));
				ref_qgemm(&c, &a, &b, &want, &e);
				for (d = 0; d < ndevs; d++)
					bad += !run_one(&devs[d], &c, &a, &b, &want, &e);
				free_extras(&e);
				free(a.image);
				free(b.image);
				free(want.image);
			}
		}
	}
	ok(!bad, "sigma from 2^-150 to FLT_MAX, beside powers of two, and every acc of a list");
}

/*
 * Ties of both signs: sigma = 2^-s, accumulators odd multiples of 2^(s-1), from products with k = 1
 */
static void test_ties(void)
{
	int s, bad = 0;

	for (s = 1; s <= 14 && bad < 5; s++) {
		struct tcase c = { .m = 40, .n = 40, .k = 4, .a_dtype = HZ_S8, .b_dtype = HZ_S8 };
		int out;

		c.o.a_scale = ldexp(1, -s);
		for (out = 0; out < 8; out++) {
			c.c_dtype = c_dtypes[out % 3];
			c.packed = out & 1;
			c.o.requant = out < 3 ? 0 : out - 3;
			bad += !run_case(&c);
		}
	}
	ok(!bad, "ties of both signs");
}

/* QLinearMatMul of ONNX Runtime 1.32: scales of columns, ties in columns 1 and 3 */
static void test_onnxruntime(void)
{
	static const uint8_t a[] = { 118, 108, 108, 113, 89, 94 };
	static const int8_t b[] = { -6, -9, -1, 1, 9, -7, 9, 4, -1, -3, 4, -1 };
	static const float scales[] = { .25f, .5f, .3f, .0625f };
	static const uint8_t want[] = { 64, 10, 83, 71, 49, 64, 50, 69 };

	for (int d = 0; d < ndevs; d++) {
		hz_tensor ta = hz_tensor_2d((void *)(uintptr_t)a, HZ_U8, HZ_CPU, 2, 3);
		hz_tensor tb = hz_tensor_2d((void *)(uintptr_t)b, HZ_S8, HZ_CPU, 3, 4);
		hz_tensor ts = hz_tensor_1d((void *)(uintptr_t)scales, HZ_F32, HZ_CPU, 4), tc;
		struct area aa, ba, sa, ca = area_new(&devs[d], 8, 0);
		unsigned char image[GUARD + 8 + GUARD];
		hz_qgemm_opts o = { .a_zero = 100, .c_zero = 70, .a_scale = .5, .c_scale = 1,
				    .b_scales = &ts, .requant = HZ_REQUANT_FLOAT };

		ta = to_device(&devs[d], &ta, &aa);
		tb = to_device(&devs[d], &tb, &ba);
		ts = to_device(&devs[d], &ts, &sa);
		tc = hz_tensor_2d(ca.data, HZ_U8, devs[d].device, 2, 4);
		reserve(&devs[d], &ta, &tb, &tc, &o);
		is_int(hz_qgemm(devs[d].ctx, &ta, &tb, &tc, &o), HZ_OK, "as ONNX Runtime, %s",
		       devs[d].name);
		area_read(&ca, image);
		is_bits(image + GUARD, want, 8, 1, "the same codes");
		area_free(&aa);
		area_free(&ba);
		area_free(&sa);
		area_free(&ca);
	}
}

static void test_golden(void)
{
	static const struct {
		double sigma;
		int32_t u, shift;
	} rows[] = {
		{0.3f, 1288490240, 32}, {0.5, 1 << 30, 31},	    {0.75, 1610612736, 31},
		{0x1p-32, 1 << 30, 62}, {2, 1 << 30, 29},	    {0x1.0624dcp-8, 1099511552, 38},
		{0x1p-33, 0, 1},	{1 - 0x1p-53, 1 << 30, 30},
	};
	static const uint8_t a[] = { 0, 10, 255, 128, 127, 3 }, b[] = { 1, 200, 2, 100, 255, 0 };
	static const uint8_t want_u8[] = { 183, 0, 0, 57 };
	static const int8_t want_s8[] = { 127, -95, -70, 57 };
	static const int32_t want_s32[] = { 43921, -25500, -19277, 12500 };
	int32_t u = 0, shift = 0;
	size_t i;
	int d;

	for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		is_int(hz_qgemm_multiplier(rows[i].sigma, &u, &shift), HZ_OK, "multiplier of %a",
		       rows[i].sigma);
		is_int(u, rows[i].u, "its u");
		is_int(shift, rows[i].shift, "its shift");
	}
	is_int(hz_qgemm_multiplier(0, &u, &shift), HZ_EINVAL, "multiplier of 0");
	is_int(hz_qgemm_multiplier(-1, &u, &shift), HZ_EINVAL, "multiplier of -1");
	is_int(hz_qgemm_multiplier(NAN, &u, &shift), HZ_EINVAL, "multiplier of NaN");
	is_int(hz_qgemm_multiplier(INFINITY, &u, &shift), HZ_EINVAL, "multiplier of Inf");
	is_int(hz_qgemm_multiplier(1, NULL, &shift), HZ_EINVAL, "multiplier to NULL");
	for (d = 0; d < ndevs; d++) {
		hz_tensor ta = hz_tensor_2d((void *)(uintptr_t)a, HZ_U8, HZ_CPU, 2, 3);
		hz_tensor tb = hz_tensor_2d((void *)(uintptr_t)b, HZ_U8, HZ_CPU, 3, 2), tc;
		struct area aa, ba, ca = area_new(&devs[d], 16, 0);
		unsigned char image[GUARD + 16 + GUARD];
		hz_qgemm_opts o = { .a_zero = 128, .b_zero = 100 };

		ta = to_device(&devs[d], &ta, &aa);
		tb = to_device(&devs[d], &tb, &ba);
		tc = hz_tensor_2d(ca.data, HZ_S32, devs[d].device, 2, 2);
		reserve(&devs[d], &ta, &tb, &tc, &o);
		is_int(hz_qgemm(devs[d].ctx, &ta, &tb, &tc, &o), HZ_OK, "golden values, %s",
		       devs[d].name);
		area_read(&ca, image);
		is_bits(image + GUARD, want_s32, 4, 4, "s32");
		o.c_zero = 7;
		o.a_scale = .02f;
		o.b_scale = .01f;
		o.c_scale = .05f;
		tc.dtype = HZ_U8;
		is_int(hz_qgemm(devs[d].ctx, &ta, &tb, &tc, &o), HZ_OK, "u8, %s", devs[d].name);
		area_read(&ca, image);
		is_bits(image + GUARD, want_u8, 4, 1, "u8");
		tc.dtype = HZ_S8;
		is_int(hz_qgemm(devs[d].ctx, &ta, &tb, &tc, &o), HZ_OK, "s8, %s", devs[d].name);
		area_read(&ca, image);
		is_bits(image + GUARD, want_s8, 4, 1, "s8");
		area_free(&aa);
		area_free(&ba);
		area_free(&ca);
	}
}

/* ---- Packed B -------------------------------------------------------------------------------- */

/* Every CPU context multiplies by a B that any other one packed. */
static void test_shared_pack(void)
{
	struct tcase c = {
		.m = 5, .n = 45, .k = 130, .a_dtype = HZ_U8, .b_dtype = HZ_U8, .c_dtype = HZ_U8};
	struct matrix a, b, want;
	struct extras e;
	int from, to, bad = 0;

	c.o.a_zero = 3;
	c.o.b_zero = 250;
	c.o.c_zero = 99;
	c.o.a_scale = 0.003;
	matrix_new(&a, HZ_U8, 0, NULL, c.m, c.k, 0, 0, 0);
	matrix_new(&b, HZ_U8, 0, NULL, c.k, c.n, 0, 0, 0);
	matrix_new(&want, HZ_U8, 0, NULL, c.m, c.n, 0, 0, 0);
	fill_codes(&a, RANDOM);
	fill_codes(&b, RANDOM);
	memset(&e, 0, sizeof(e));
	ref_qgemm(&c, &a, &b, &want, &e);
	for (from = 0; from < ndevs && devs[0].device == HZ_CPU; from++) {
		hz_tensor bt = matrix_view(&b, b.data, HZ_CPU),
			  at = matrix_view(&a, a.data, HZ_CPU);
		hz_packed packed;
		size_t bytes = 0;
		void *blob;

		hz_qgemm_pack_bytes(devs[from].ctx, &bt, &bytes);
		hz_alloc(devs[from].ctx, &blob, bytes, HZ_CPU);
		bad += hz_qgemm_pack(devs[from].ctx, &bt, blob, bytes, &packed) != HZ_OK;
		c.o.packed = &packed;
		for (to = 0; to < ndevs; to++) {
			unsigned char got[5 * 45];
			hz_tensor ct = matrix_view(&want, got, HZ_CPU);

			bad += hz_qgemm(devs[to].ctx, &at, NULL, &ct, &c.o) != HZ_OK;
			bad += !same_bits(got, want.data, sizeof(got), 1);
		}
		hz_free(devs[from].ctx, blob, HZ_CPU);
	}
	c.o.packed = NULL;
	ok(!bad, "a B that one context packed serves all");
	free(a.image);
	free(b.image);
	free(want.image);
}

/* With k = 0 the accumulator is 0, whatever the zero points and the workspace contain. */
static void test_no_k(void)
{
	enum { M = 5, N = 45 };
	int d;

	for (d = 0; d < ndevs; d++) {
		hz_context *ctx = devs[d].ctx;
		struct area c = area_new(&devs[d], M * N, 0), work, blob;
		hz_tensor at = hz_tensor_2d(NULL, HZ_U8, devs[d].device, M, 0);
		hz_tensor bt = hz_tensor_2d(NULL, HZ_U8, devs[d].device, 0, N);
		hz_tensor ct = hz_tensor_2d(c.data, HZ_U8, devs[d].device, M, N);
		hz_qgemm_opts o = {.a_zero = 3, .b_zero = 7, .c_zero = 5, .sigma = 0.001};
		unsigned char image[2 * GUARD + M * N], want[M * N];
		hz_packed packed;
		size_t bytes = 0;

		memset(want, 5, sizeof(want));
		hz_qgemm_pack_bytes(ctx, &bt, &bytes);
		blob = area_new(&devs[d], bytes, 0);
		is_int(hz_qgemm_pack(ctx, &bt, blob.data, bytes, &packed), HZ_OK, "packs no rows");
		o.packed = &packed;
		RECORD(ctx, hz_qgemm(ctx, &at, NULL, &ct, &o), &bytes);
		work = area_new(&devs[d], bytes + 1, 0);
		hz_set_workspace(ctx, work.data, bytes + 1);
		is_int(hz_qgemm(ctx, &at, NULL, &ct, &o), HZ_OK, "k = 0, %s", devs[d].name);
		area_read(&c, image);
		is_bits(image + GUARD, want, M * N, 1, "c_zero everywhere");
		hz_set_workspace(ctx, NULL, 0);
		area_free(&work);
		area_free(&blob);
		area_free(&c);
	}
}

/* The stride of a dimension of size 1 may be anything. */
static void test_wild_strides(void)
{
	static const int64_t wild[] = {INT64_MAX, INT64_MIN, 0, -1, (int64_t)1 << 62};
	static const unsigned char codes[] = {1, 2, 3};
	int d;
	size_t w;

	for (d = 0; d < ndevs; d++) {
		hz_context *ctx = devs[d].ctx;
		struct area a = area_new(&devs[d], 3, 0), b = area_new(&devs[d], 3, 0),
			    c = area_new(&devs[d], 4 * 9, 0);
		unsigned char image[2 * GUARD + 4 * 9];
		int bad = 0;

		memset(image, GUARD_BYTE, sizeof(image));
		memcpy(image + GUARD, codes, sizeof(codes));
		area_write(&a, image);
		area_write(&b, image);
		for (w = 0; w < sizeof(wild) / sizeof(*wild); w++) {
			static const int32_t outer[] = {1, 2, 3, 2, 4, 6, 3, 6, 9}, inner = 14;
			hz_tensor at = hz_tensor_2d(a.data, HZ_U8, devs[d].device, 3, 1);
			hz_tensor bt = hz_tensor_2d(b.data, HZ_U8, devs[d].device, 1, 3);
			hz_tensor ct = hz_tensor_2d(c.data, HZ_S32, devs[d].device, 3, 3);

			at.stride[1] = bt.stride[0] = wild[w];
			reserve(&devs[d], &at, &bt, &ct, NULL);
			bad += hz_qgemm(ctx, &at, &bt, &ct, NULL) != HZ_OK;
			area_read(&c, image);
			bad += !same_bits(image + GUARD, outer, 9, 4);
			at = hz_tensor_2d(a.data, HZ_U8, devs[d].device, 1, 3);
			bt = hz_tensor_2d(b.data, HZ_U8, devs[d].device, 3, 1);
			ct = hz_tensor_2d(c.data, HZ_S32, devs[d].device, 1, 1);
			at.stride[0] = bt.stride[1] = ct.stride[0] = ct.stride[1] = wild[w];
			reserve(&devs[d], &at, &bt, &ct, NULL);
			bad += hz_qgemm(ctx, &at, &bt, &ct, NULL) != HZ_OK;
			area_read(&c, image);
			bad += !same_bits(image + GUARD, &inner, 1, 4);
		}
		ok(!bad, "any strides where a size is 1, %s", devs[d].name);
		area_free(&a);
		area_free(&b);
		area_free(&c);
	}
}

/* ---- Invalid arguments ----------------------------------------------------------------------- */

static hz_tensor A, B, C;
static hz_qgemm_opts O;

static void expect(int status, const char *message, const char *what)
{
	unsigned char *image = malloc(4096), *after = malloc(4096);
	int got;

	memset(image, 7, 4096);
	if (devs[0].device == HZ_CPU && C.data)
		memcpy(C.data, image, 64);
	got = hz_qgemm(devs[0].ctx, &A, O.packed ? NULL : &B, &C, &O);
	ok(got == status && strcmp(hz_errmsg(devs[0].ctx), message) == 0, "%s", what);
	if (got != status || strcmp(hz_errmsg(devs[0].ctx), message))
		diag("status %d, \"%s\", expected %d, \"%s\"", got, hz_errmsg(devs[0].ctx), status,
		     message);
	if (devs[0].device == HZ_CPU && C.data)
		ok(memcmp(C.data, image, 64) == 0, "c untouched");
	free(image);
	free(after);
}

static void reset(void *a, void *b, void *c)
{
	const int device = devs[0].device;

	A = hz_tensor_2d(a, HZ_U8, device, 4, 8);
	B = hz_tensor_2d(b, HZ_U8, device, 8, 6);
	C = hz_tensor_2d(c, HZ_U8, device, 4, 6);
	memset(&O, 0, sizeof(O));
}

static void test_errors(void)
{
	hz_context *ctx = devs[0].ctx;
	const int device = devs[0].device;
	static uint8_t codes[4096];
	const hz_tensor from = hz_tensor_1d(codes, HZ_U8, HZ_CPU, sizeof(codes));
	hz_tensor v, w;
	hz_packed packed;
	void *a, *b, *c, *p;
	size_t bytes = 0;

	hz_alloc(ctx, &a, 4096, device);
	hz_alloc(ctx, &b, 4096, device);
	hz_alloc(ctx, &c, 4096, device);
	hz_alloc(ctx, &p, 65536, device);
	/* Some of the calls are valid and read them. */
	v = hz_tensor_1d(a, HZ_U8, device, sizeof(codes));
	w = hz_tensor_1d(b, HZ_U8, device, sizeof(codes));
	hz_copy(ctx, &from, &v);
	hz_copy(ctx, &from, &w);
#define WRONG(set, status, message) \
	do { \
		reset(a, b, c); \
		set; \
		expect(status, message, #set); \
	} while (0)
	WRONG(A.dtype = HZ_F32, HZ_EDTYPE, "qgemm: a.dtype is f32, must be u8 or s8");
	WRONG(B.dtype = HZ_S32, HZ_EDTYPE, "qgemm: b.dtype is s32, must be u8 or s8");
	WRONG(C.dtype = HZ_S16, HZ_EDTYPE,
	      "qgemm: c.dtype is s16, must be u8, s8, s32, f32, f16 or bf16");
	WRONG(A.ndim = 1, HZ_ESHAPE, "qgemm: a.ndim is 1, must be 2 to 2, as c");
	WRONG(C.ndim = 1, HZ_ESHAPE, "qgemm: c.ndim is 1, must be 2 to 6");
	WRONG(A.shape[1] = 7, HZ_ESHAPE, "qgemm: b.shape[0] is 8, must be 7, as a");
	WRONG(C.shape[0] = 3, HZ_ESHAPE, "qgemm: c.shape[0] is 3, must be 4, as a");
	WRONG(C.shape[1] = 5, HZ_ESHAPE, "qgemm: c.shape[1] is 5, must be 6, as b");
	WRONG(C.data = A.data, HZ_EALIAS, "qgemm: c overlaps a, must be apart from it");
	WRONG(C.data = B.data, HZ_EALIAS, "qgemm: c overlaps b, must be apart from it");
	WRONG(C.stride[0] = 0, HZ_ESTRIDE,
	      "qgemm: c has strides that put two elements at one address");
	WRONG(O.a_zero = 256, HZ_EINVAL, "qgemm: opts->a_zero is 256, must be 0 to 255 for u8");
	WRONG((B.dtype = HZ_S8, O.b_zero = -129), HZ_EINVAL,
	      "qgemm: opts->b_zero is -129, must be -128 to 127 for s8");
	WRONG(O.c_zero = -1, HZ_EINVAL, "qgemm: opts->c_zero is -1, must be 0 to 255 for u8");
	WRONG(O.a_scale = -1, HZ_EINVAL,
	      "qgemm: opts->a_scale is -1, must be positive and finite in f32");
	WRONG(O.b_scale = NAN, HZ_EINVAL,
	      "qgemm: opts->b_scale is nan, must be positive and finite in f32");
	WRONG(O.c_scale = 1e-60, HZ_EINVAL,
	      "qgemm: opts->c_scale is 1e-60, must be positive and finite in f32");
	WRONG((O.a_scale = 1e30, O.b_scale = 1e30), HZ_EINVAL,
	      "qgemm: a_scale * b_scale / c_scale is inf, must be finite in f32");
	WRONG(O.sigma = -2, HZ_EINVAL, "qgemm: opts->sigma is -2, must be positive and finite");
	WRONG((O.sigma = 2, O.a_scale = 1), HZ_EINVAL, "qgemm: opts->sigma excludes scales");
	WRONG(O.shift = 5, HZ_EINVAL, "qgemm: opts->multiplier is 0, must be positive");
	WRONG((O.multiplier = 5, O.shift = 63), HZ_EINVAL,
	      "qgemm: opts->shift is 63, must be 1 to 62");
	WRONG((O.multiplier = 5, O.shift = 4, O.c_scale = 2), HZ_EINVAL,
	      "qgemm: opts->multiplier excludes scales and opts->sigma");
	WRONG(O.requant = 5, HZ_EINVAL, "qgemm: opts->requant is 5, must be 0 to 4");
	WRONG((O.requant = HZ_REQUANT_FLOAT, O.multiplier = 5, O.shift = 9), HZ_EINVAL,
	      "qgemm: opts->multiplier and multipliers exclude HZ_REQUANT_FLOAT and _LITERT_REF");
	WRONG((O.requant = HZ_REQUANT_FLOAT, O.sigma = 1e300), HZ_EINVAL,
	      "qgemm: opts->sigma is 1e+300, must be finite in f32");
	WRONG(O.flags = 9, HZ_EINVAL, "qgemm: opts->flags has unknown bits 0x8 (valid: "
	      "HZ_QGEMM_RELU)");
	WRONG(O.reserved[2] = 1, HZ_EINVAL, "qgemm: opts->reserved[2] is 1, must be 0");
	WRONG(O.x_dtype = HZ_S8, HZ_EINVAL, "qgemm: opts->x_dtype is for qlinear alone");
	WRONG((O.given = HZ_QGEMM_GIVEN_MIN | HZ_QGEMM_GIVEN_MAX, O.min = 3, O.max = 2), HZ_EINVAL,
	      "qgemm: the bounds of c are 3 to 2, which leaves nothing");
	WRONG((O.given = HZ_QGEMM_GIVEN_MIN, O.min = 256), HZ_EINVAL,
	      "qgemm: the bounds of c are 256 to 255, which leaves nothing");
	WRONG(O.max = 6, HZ_EINVAL,
	      "qgemm: opts->max is 6, but opts->given lacks HZ_QGEMM_GIVEN_MAX: set it, or max to "
	      "0");
	WRONG((O.given = HZ_QGEMM_GIVEN_MAX, O.min = -1), HZ_EINVAL,
	      "qgemm: opts->min is -1, but opts->given lacks HZ_QGEMM_GIVEN_MIN: set it, or min to "
	      "0");
	WRONG(O.given = 4, HZ_EINVAL,
	      "qgemm: opts->given has unknown bits 0x4 (valid: HZ_QGEMM_GIVEN_MIN, "
	      "HZ_QGEMM_GIVEN_MAX)");
	WRONG((O.given = HZ_QGEMM_GIVEN_MIN, O.min = NAN), HZ_EINVAL,
	      "qgemm: opts->min or opts->max is NaN");
	WRONG((C.dtype = HZ_F32, O.c_zero = 1), HZ_EINVAL,
	      "qgemm: c is f32, and opts->c_scale and opts->c_zero are for integer results: "
	      "leave them unset");
	WRONG((C.dtype = HZ_F32, O.sigma = 1), HZ_EINVAL,
	      "qgemm: c is f32, and opts->sigma, multiplier and multipliers are for integer "
	      "results: leave them unset");
	v = hz_tensor_1d(p, HZ_S32, device, 5);
	w = hz_tensor_1d(p, HZ_F32, device, 4);
	WRONG(O.bias = &v, HZ_ESHAPE, "qgemm: opts->bias has 5 elements, must have 6");
	WRONG(O.bias = &w, HZ_EDTYPE, "qgemm: opts->bias.dtype is f32, must be s32");
	WRONG(O.a_scales = &w, HZ_EINVAL,
	      "qgemm: c is u8, and opts->a_scales is for floating-point results: leave it unset");
	WRONG((O.b_scales = &w, O.b_scale = 1), HZ_EINVAL,
	      "qgemm: opts->b_scales excludes opts->b_scale");
	WRONG(O.b_scales = &w, HZ_ESHAPE, "qgemm: opts->b_scales has 4 elements, must have 6 or 1");
	w = hz_tensor_2d(p, HZ_F32, device, 6, 1);
	WRONG(O.b_scales = &w, HZ_ESHAPE,
	      "qgemm: the shape of opts->b_scales must be [n] or [1, n] of the n columns of c");
	w = hz_tensor_2d(p, HZ_F32, device, 1, 4);
	WRONG((C.dtype = HZ_F32, O.a_scales = &w), HZ_ESHAPE,
	      "qgemm: the shape of opts->a_scales must be [m] or [m, 1] of the m rows of c, after "
	      "the batch");
	WRONG(O.multipliers = &v, HZ_EINVAL,
	      "qgemm: opts->multipliers and opts->shifts need each other");
	WRONG(O.b_zeros = &v, HZ_EDTYPE, "qgemm: opts->b_zeros.dtype is s32, must be u8");
	WRONG((O.b_zeros = &v, O.b_zero = 1), HZ_EINVAL,
	      "qgemm: opts->b_zeros excludes opts->b_zero");
	reset(a, b, c);
	is_int(hz_qgemm_pack_bytes(ctx, &B, &bytes), HZ_OK, "pack_bytes");
	is_int(hz_qgemm_pack(ctx, &B, p, bytes - 1, &packed), HZ_EINVAL,
	       "a blob that is too small");
	is_int(hz_qgemm_pack(ctx, &B, (char *)p + 1, bytes, &packed), HZ_EINVAL, "not aligned");
	is_int(hz_qgemm_pack(ctx, &B, p, bytes, NULL), HZ_EINVAL, "no struct to fill");
	is_int(hz_qgemm_pack(ctx, &B, p, bytes, &packed), HZ_OK, "packs");
	WRONG((O.packed = &packed, packed.shape[1] = 7), HZ_EINVAL,
	      "qgemm: opts->packed is not as hz_qgemm_pack() filled it");
	packed.shape[1] = 6;
	WRONG((O.packed = &packed, A.shape[1] = 4), HZ_ESHAPE,
	      "qgemm: b.shape[0] is 8, must be 4, as a");
	WRONG((O.packed = &packed, packed.device++), HZ_EDEVICE,
	      "qgemm: opts->packed is on another device than the context");
	packed.device--;
	reset(a, b, c);
	O.packed = &packed;
	for (int i = 0; i < 2; i++) {
		packed.data = i ? NULL : (char *)p + 1;
		is_int(hz_qgemm(ctx, &A, NULL, &C, &O), HZ_EINVAL, "packed data at %p",
		       packed.data);
		has_str(hz_errmsg(ctx), i ? "packed->data is NULL" : ", must be a multiple of 64 bytes",
			"its message");
	}
	packed.data = p;
	is_int(hz_qgemm(ctx, &A, &B, &C, &O), HZ_EINVAL, "b and a packed one");
	O.packed = NULL;
	is_int(hz_qgemm(ctx, &A, NULL, &C, &O), HZ_EINVAL, "no b at all");
	is_int(hz_qgemm(ctx, NULL, &B, &C, &O), HZ_EINVAL, "no a");
	is_int(hz_qgemm(NULL, &A, &B, &C, &O), HZ_EINVAL, "no context");
	A.shape[0] = C.shape[0] = 0;
	is_int(hz_qgemm(ctx, &A, &B, &C, &O), HZ_OK, "m = 0");
	reset(a, b, c);
	B.shape[1] = C.shape[1] = 0;
	is_int(hz_qgemm(ctx, &A, &B, &C, &O), HZ_OK, "n = 0");
	reset(a, b, c);
	A.stride[1] = B.stride[0] = 0;
	A.shape[1] = B.shape[0] = (1 << 23) + 1;
	is_int(hz_qgemm(ctx, &A, &B, &C, &O), HZ_ENOTSUP, "k that is too long");
	reset(a, b, c);
	A = hz_tensor_3d(a, HZ_F32, device, 1, 1, 8);
	C = hz_tensor_3d((void *)((uintptr_t)1 << 60), HZ_F32, device, (int64_t)1 << 56, 1, 6);
	is_int(RECORD(ctx, hz_qlinear(ctx, &A, &B, &C, &O), &bytes), HZ_ESHAPE,
	       "too many rows");
	is_str(hz_errmsg(ctx), "qlinear: y is too large: the codes of x overflow", "its message");
	hz_free(ctx, a, device);
	hz_free(ctx, b, device);
	hz_free(ctx, c, device);
	hz_free(ctx, p, device);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_qgemm);
	test_golden();
	test_onnxruntime();
	test_errors();
	test_pairs();
	test_sizes();
	test_random();
	test_large();
	test_bands();
	test_wide();
	test_waves();
	test_long_k();
	test_requantization();
	test_ties();
	test_shared_pack();
	test_no_k();
	test_wild_strides();
	diag("%ld cases", cases);
	dev_close_all();
	return done_testing();
}
