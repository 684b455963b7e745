/*
 * label.c - tests of products with labels of E8 (shaping), and D4 with a bank, against a definition
 *	in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/vlut/vlut.h"

static const double r16[] = {20, 23, 25, 27, 30, 31, 32, 34, 35, 37, 40, 42, 46, 50, 54, 62};
static const double r8[] = {20, 25, 28, 31, 34, 37, 42, 50}, r4[] = {3, 25, 30, 255};
static const double no_integers[] = {0.5, 1, 1.3}, too_large[] = {1, 256};

#define SHAPED(shaping_, q_, bank_) \
	{.kind = HZ_LATTICE_E8, .q = q_, .levels = 1, .beta = 0.0078125 * 0.9, \
	 .policy = HZ_LATTICE_BANK, .shaping = HZ_LATTICE_SHAPING_##shaping_, \
	 .banks = (int)(sizeof(bank_) / sizeof(*bank_)), .bank = bank_}

static const struct {
	const char *name;
	hz_lattice_opts o;
	bool label;			/* code path `label` supports it */
} codes[] = {
	{"cube 16, 16 scales", SHAPED(CUBE, 16, r16), true},
	{"cube 16, 4 scales", SHAPED(CUBE, 16, r4), true},
	{"d8star 16, 8 scales", SHAPED(D8STAR, 16, r8), true},
	{"e8 16, 16 scales", SHAPED(E8, 16, r16), true},
	{"e8 16, 4 scales", SHAPED(E8, 16, r4), true},
	{"cube 8, 4 scales", SHAPED(CUBE, 8, r4), true},
	{"d8star 8, 8 scales", SHAPED(D8STAR, 8, r8), true},
	{"e8 8, 8 scales", SHAPED(E8, 8, r8), true},
	{"cube 4, 16 scales", SHAPED(CUBE, 4, r16), true},
	{"d8star 4, 8 scales", SHAPED(D8STAR, 4, r8), true},
	{"e8 4, 4 scales", SHAPED(E8, 4, r4), true},
	{"d8star 16, 16 scales", SHAPED(D8STAR, 16, r16), true},
	{"d4, 16 scales, centred", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.01,
	  .policy = HZ_LATTICE_BANK, .group = 8, .banks = 16, .bank = r16,
	  .flags = HZ_LATTICE_CENTER}, true},
	{"d4, 4 scales", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.01,
	  .policy = HZ_LATTICE_BANK, .group = 8, .banks = 4, .bank = r4}, true},
	{"cube 16, no integers", SHAPED(CUBE, 16, no_integers), false},
	{"e8 8, too large", SHAPED(E8, 8, too_large), false},
};

#define CODES ((int)(sizeof(codes) / sizeof(*codes)))

struct job {
	int code, how, x_dtype, y_dtype, x_format, special;
	int64_t rows, k, batch;
	int64_t pad;			/* elements between rows of x */
};

/* x rounded to 8 bits with a scale for 32 values, as the contract of x_format says */
static void quantize(const double *x, int64_t k, double *to)
{
	for (int64_t i = 0; i < k; i += 32) {
		const int64_t n = k - i < 32 ? k - i : 32;
		float most = 0;

		for (int64_t l = i; l < i + n; l++)
			most = fmaxf(most, fabsf((float)x[l]));
		for (int64_t l = i; l < i + n; l++)
			to[l] = most > 0 ? rint((float)x[l] * (127 / most)) * most / 127 : 0;
	}
}

/* Of the codes that are tested, for each context */
static struct open {
	hz_lattice *lattice;
	hz_vlut *vlut[2];		/* x exact; x_format s8 */
} opened_codes[DEV_MAX];

static void open_codes(int code)
{
	for (int d = 0; d < ndevs; d++) {
		struct open *o = &opened_codes[d];

		for (int f = 0; f < 2; f++) {
			const hz_vlut_opts opts = {.x_format = f ? HZ_S8 : 0};

			if ((!f && hz_lattice_open(devs[d].ctx, &o->lattice, &codes[code].o)) ||
			    hz_vlut_open(devs[d].ctx, &o->vlut[f], o->lattice, NULL, &opts))
				bail("%s: %s", codes[code].name, hz_errmsg(devs[d].ctx));
		}
	}
}

static void close_codes(void)
{
	for (int d = 0; d < ndevs; d++) {
		for (int f = 0; f < 2; f++)
			hz_vlut_close(opened_codes[d].vlut[f]);
		hz_lattice_close(opened_codes[d].lattice);
	}
}

/* What the first context found, and what it should have */
static struct {
	unsigned char y[1 << 21];
	double sum[1 << 19], error[1 << 19];
} first;

/* x is [batch][k]; y is [batch][rows], with guards of 3 elements between rows. */
static bool run(const struct job *j, struct dev *dev, uint64_t seed)
{
	struct open *const o = &opened_codes[dev - devs];
	hz_vlut *const v = o->vlut[j->x_format != 0];
	const int64_t x_ld = j->k + j->pad, y_ld = j->rows + 3;
	const size_t x_bytes = (size_t)(j->batch * x_ld) * hz_dtype_size(j->x_dtype);
	const size_t size_y = hz_dtype_size(j->y_dtype);
	const size_t y_bytes = (size_t)(j->batch * y_ld) * size_y;
	struct bound bound = bound_of(dev, 0);
	double *x = calloc((size_t)(j->batch * x_ld), 8), *q = calloc((size_t)j->k + 1, 8);
	unsigned char *stored = calloc(x_bytes, 1), *y;
	struct area xa, ya = area_new(dev, y_bytes, 0);
	struct coded w;
	hz_tensor xt, yt;
	const int64_t per_row = (j->k + o->lattice->rule.d - 1) / o->lattice->rule.d *
				o->lattice->rule.d;
	size_t bytes;
	bool good = true, label, by_32;
	double largest = 0;		/* |weight| */

	rnd = seed;
	w = coded_new(dev, o->lattice, v, j->rows, j->k, j->how);
	for (int64_t i = 0; i < j->batch * x_ld; i++) {
		if (j->x_dtype == HZ_S8)
			stored[i] = (unsigned char)rnd_below(&rnd, 256);
		else
			ref_put(j->x_dtype, stored, i, i % 67 < 33 ? rnd_normal(&rnd) : 0);
		x[i] = j->x_dtype == HZ_S8 ? (int8_t)stored[i] : ref_get(j->x_dtype, stored, i);
	}
	if (j->special)
		ref_put(j->x_dtype, stored, j->k / 2, j->special == 1 ? NAN : INFINITY);
	area_put(dev, &xa, stored, x_bytes);
	xt = hz_tensor_2d(xa.data, j->x_dtype, dev->device, j->batch, j->k);
	yt = hz_tensor_2d(ya.data, j->y_dtype, dev->device, j->batch, j->rows);
	xt.stride[0] = x_ld;
	yt.stride[0] = y_ld;
	if (RECORD(dev->ctx, hz_vlut_gemm(dev->ctx, v, coded_view(&w, j->how), &xt, &yt), &bytes) ||
	    hz_reserve(dev->ctx, bytes) ||
	    hz_vlut_gemm(dev->ctx, v, coded_view(&w, j->how), &xt, &yt))
		bail("%s: %s", codes[j->code].name, hz_errmsg(dev->ctx));
	y = malloc(ya.total);
	area_read(&ya, y);
	label = codes[j->code].label && (j->how & PACKED) && !j->special && j->y_dtype != HZ_S32 &&
		(w.c.use_levels == 0 || w.c.use_levels == o->lattice->rule.levels);
	/* Values are rounded to bf16, too. */
	if (dev->device != HZ_CPU && label && j->x_dtype == HZ_BF16 && j->batch > 2)
		bound.part = 0x1p-8;
	/* On a GPU x is exact whatever the format. */
	by_32 = dev->device == HZ_CPU && label && j->x_format && j->x_dtype != HZ_S8;
	for (int64_t i = 0; i < j->rows * j->k; i++)
		largest = fmax(largest, fabs(w.values[i]));
	for (int64_t b = 0; b < j->batch && good; b++) {
		const double *row = x + b * x_ld;
		double most = 0, reach = 0;

		for (int64_t i = 0; i < j->k; i++)
			most = fmax(most, fabs(row[i])), reach += largest * fabs(row[i]);
		if (by_32) {
			quantize(row, j->k, q);
			row = q;
		}
		for (int64_t i = 0; i < j->rows && good; i++) {
			const int64_t at = b * j->rows + i;
			double sum = 0, size = 0, weight = 0, error, got;
			int64_t exact = 0;

			for (int64_t e = 0; e < j->k && dev == devs; e++) {
				const double value = w.values[i * j->k + e];

				sum += value * row[e];
				size += fabs(value * row[e]);
				weight += fabs(value);
				exact += (int64_t)w.points[i * per_row + e] * (int64_t)row[e];
			}
			error = (dev->device == HZ_CPU ? 0x1p-19 : bound.part) * size +
				(by_32 ? 0 : bound.unit * most * weight);
			/* Half a unit of what a group reaches for each of its blocks */
			if (dev->device == HZ_CPU && !label)
				error += 0x1p-16 * reach *
					 fmin(32, (double)per_row / o->lattice->rule.d);
			if (j->y_dtype == HZ_S32)
				sum = (double)exact;
			else
				error += 2 * ref_half_ulp(j->y_dtype, fabs(sum) + error);
			if (dev == devs) {
				first.sum[at] = sum;
				first.error[at] = error;
			}
			sum = first.sum[at];
			error = first.error[at];
			got = j->y_dtype == HZ_S32 ?
				((int32_t *)(void *)(y + GUARD))[b * y_ld + i] :
				ref_get(j->y_dtype, y + GUARD, b * y_ld + i);
			good = j->special && b == 0 ? !isfinite(got) :
			       j->y_dtype == HZ_S32 ? got == sum : fabs(got - sum) <= error;
			if (!good)
				diag("%s, %s: %lld x %lld x %lld x %s y %s how %d x_format %d: "
				     "element %lld, %lld is %.9g, must be %.9g within %.3g",
				     dev->name, codes[j->code].name, (long long)j->rows,
				     (long long)j->batch, (long long)j->k,
				     hz_dtype_name(j->x_dtype), hz_dtype_name(j->y_dtype), j->how,
				     j->x_format, (long long)b, (long long)i, got, sum, error);
		}
		for (size_t i = 0; i < 3 * size_y && good && b + 1 < j->batch; i++)
			good = y[GUARD + (size_t)(b * y_ld + j->rows) * size_y + i] == GUARD_BYTE;
	}
	/* Sums of integers have the same bits at every level and thread count. */
	if (dev == devs)
		memcpy(first.y, y + GUARD, y_bytes);
	else if (good && (by_32 || (label && j->batch <= 8)))
		good = !memcmp(first.y, y + GUARD, y_bytes);
	free(x);
	free(q);
	free(stored);
	free(y);
	area_free(&xa);
	area_free(&ya);
	coded_free(&w);
	return good;
}

static void test_products(void)
{
	static const int64_t sizes[][2] = {{1, 8}, {64, 32}, {65, 33}, {3, 257}, {130, 95},
					   {70, 4200}, {520, 640}};
	static const int64_t batches[] = {1, 2, 4, 5, 8, 30, 65, 12, 64, 70, 140};
	static const int dtypes[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_S8};
	const bool gpu = devs[0].device != HZ_CPU;

	for (int c = 0; c < CODES; c++) {
		open_codes(c);
		for (int how = 0; how < 4; how++) {
			bool good = true;

			for (int n = 0; n < (quick ? 4 : 40); n++) {
				const int s = (int)rnd_below(&rnd, gpu ? 7 : 6);
				const uint64_t seed = rnd_u64(&rnd);
				struct job j = {
					.code = c, .how = how & 1 ? PACKED | SCALED : 0,
					.x_format = how & 2 ? HZ_S8 : 0,
					.rows = sizes[s][0], .k = sizes[s][1],
					.batch = batches[rnd_below(&rnd, gpu ? 11 : 7)],
					/* 16-byte aligned rows, or not */
					.pad = rnd_below(&rnd, 2) ? 3 : (8 - sizes[s][1] % 8) % 8,
					.x_dtype = dtypes[rnd_below(&rnd, 4)],
					.y_dtype = dtypes[rnd_below(&rnd, 3)],
					.special = n == 3 ? 1 + how / 2 : 0,
				};

				if (n == 2 && codes[c].o.levels > 1)
					j.how |= FEWER | ALL_LEVELS;
				if (j.x_dtype == HZ_S8 && j.y_dtype == HZ_F16)
					j.y_dtype = HZ_F32;	/* sums are beyond f16 */
				if (j.x_dtype == HZ_S8 && n % 2)
					j.y_dtype = HZ_S32;
				if (s == 5)
					j.batch = 1 + j.batch % 2;
				if (j.special)
					j.x_dtype = j.y_dtype = HZ_F32;
				/* x of so many vectors exceeds the shared memory of a cluster. */
				if (gpu && n == 1 && how == 1) {
					j.rows = 40;
					j.k = 14000;
					j.batch = 40;
					j.pad = 0;
				}
				/* More than 64 rows for each SM */
				if (gpu && n == 0 && how == 1) {
					j.rows = 8460;
					j.k = 264;
					j.batch = c % 2 ? 20 : 60;
					j.pad = 0;
					j.x_dtype = c % 3 ? HZ_BF16 : HZ_F16;
				}
				/* One vector: some chunks are decoded before x is there. */
				if (gpu && (n == 2 || n == 4 || n == 5) && how == 1 &&
				    codes[c].o.shaping == HZ_LATTICE_SHAPING_D8STAR) {
					j.rows = n == 4 ? 50 : 4300;
					j.k = n == 4 ? 1536 : 4104;
					j.batch = 1;
					j.pad = 0;
					j.x_dtype = n == 5 ? HZ_BF16 : HZ_F16;
				}
				for (int d = 0; d < ndevs && good; d++)
					good = run(&j, &devs[d], seed);
				rnd = seed + 1;
			}
			ok(good, "%s%s%s", codes[c].name, how & 1 ? ", packed" : "",
			   how & 2 ? ", x by s8" : "");
		}
		close_codes();
	}
}

static void test_refused(struct dev *dev)
{
	hz_vlut_opts o = {.x_format = HZ_U8};
	hz_lattice *l;
	hz_vlut *v;

	if (hz_lattice_open(dev->ctx, &l, &codes[0].o))
		bail("%s", hz_errmsg(dev->ctx));
	is_int(hz_vlut_open(dev->ctx, &v, l, NULL, &o), HZ_EDTYPE, "x_format of u8");
	is_str(hz_errmsg(dev->ctx), "vlut_open: opts->x_format is u8, must be 0 or s8",
	       "its message");
	o = (hz_vlut_opts){.x_format = HZ_S8};
	is_int(hz_vlut_open(dev->ctx, &v, l, l, &o), HZ_EINVAL, "x_format of a coded x");
	o = (hz_vlut_opts){.reserved0 = 1};
	is_int(hz_vlut_open(dev->ctx, &v, l, NULL, &o), HZ_EINVAL, "reserved0");
	hz_lattice_close(l);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	test_products();
	test_refused(&devs[0]);
	dev_close_all();
	return done_testing();
}
