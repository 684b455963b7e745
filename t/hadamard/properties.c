/*
 * properties.c - algebraic properties of every transform; rows 2^32 elements apart
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <sys/mman.h>

#include "t/core/dev.h"

static uint64_t rnd;
static int quick;

/* Sets y to the transform of rows of n elements on one context; both arrays are on the host. */
static int apply(struct dev *dev, int x_dtype, int y_dtype, int64_t rows, int64_t n, const void *x,
		 void *y, const hz_hadamard_opts *opts)
{
	size_t x_bytes = (size_t)(rows * n) * hz_dtype_size(x_dtype);
	size_t y_bytes = (size_t)(rows * n) * hz_dtype_size(y_dtype);
	struct area ax = area_new(dev, x_bytes, 0), ay = area_new(dev, y_bytes, 0), apre, apost;
	unsigned char *x_image, *y_image;
	hz_hadamard_opts o = { 0 };
	void *x_data, *y_data;
	hz_tensor tx, ty, pre, post;
	int status;

	x_image = image_new(x_bytes, 0, &x_data);
	y_image = image_new(y_bytes, 0, &y_data);
	memcpy(x_data, x, x_bytes);
	area_write(&ax, x_image);
	area_write(&ay, y_image);
	tx = hz_tensor_2d(ax.data, x_dtype, dev->device, rows, n);
	ty = hz_tensor_2d(ay.data, y_dtype, dev->device, rows, n);
	if (opts)
		o = *opts;
	apre.dev = apost.dev = NULL;
	if (o.pre) {
		pre = to_device(dev, o.pre, &apre);
		o.pre = &pre;
	}
	if (o.post) {
		post = to_device(dev, o.post, &apost);
		o.post = &post;
	}
	status = hz_hadamard(dev->ctx, &tx, &ty, opts ? &o : NULL);
	if (status == HZ_OK)
		status = hz_sync(dev->ctx);
	if (status != HZ_OK)
		diag("%s: status %d: %s", dev->name, status, hz_errmsg(dev->ctx));
	area_read(&ay, y_image);
	memcpy(y, y_data, y_bytes);
	free(x_image);
	free(y_image);
	area_free(&ax);
	area_free(&ay);
	if (apre.dev)
		area_free(&apre);
	if (apost.dev)
		area_free(&apost);
	return status == HZ_OK;
}

#define F32_ROWS(dev, rows, n, x, y, opts) apply(dev, HZ_F32, HZ_F32, rows, n, x, y, opts)

#define N 4096

static float xs[4 * N], ys[4 * N], zs[4 * N], ws[4 * N];
static uint16_t hx[4 * N], hy[4 * N];

static void fill(float *x, int64_t n)
{
	int64_t i;

	for (i = 0; i < n; i++)
		x[i] = (float)rnd_normal(&rnd);
}

static double norm(const float *x, int64_t n)
{
	double sum = 0;
	int64_t i;

	for (i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sqrt(sum);
}

static double distance(const float *x, const float *y, int64_t n)
{
	double sum = 0;
	int64_t i;

	for (i = 0; i < n; i++)
		sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
	return sqrt(sum);
}

static double dot(const float *x, const float *y, int64_t n)
{
	double sum = 0;
	int64_t i;

	for (i = 0; i < n; i++)
		sum += (double)x[i] * (double)y[i];
	return sum;
}

static int parity(int64_t v)
{
	return __builtin_popcountll((unsigned long long)v) & 1;
}

/* P1: e_j gives exactly column j, and 0 outside its block. */
static int impulses(struct dev *dev)
{
	static const hz_hadamard_opts greedy = { .plan = HZ_PLAN_GREEDY };
	int64_t n, j, i, block, at;
	int good = 1;

	for (n = 64; n <= 4096; n *= 8) {
		float one = (float)(1 / sqrt((double)n));

		for (j = 0; j < n; j += n / 64) {
			memset(xs, 0, (size_t)n * 4);
			xs[j] = 1;
			good &= F32_ROWS(dev, 1, n, xs, ys, NULL);
			for (i = 0; i < n; i++)
				zs[i] = parity(i & j) ? -one : one;
			good &= same_bits(ys, zs, (size_t)n, 4);
		}
	}
	for (j = 0; j < 96; j++) {
		memset(xs, 0, 96 * 4);
		xs[j] = 1;
		good &= F32_ROWS(dev, 1, 96, xs, ys, &greedy);
		block = j < 64 ? 64 : 32;
		at = j < 64 ? 0 : 64;
		for (i = 0; i < 96; i++)
			zs[i] = i < at || i >= at + block ? 0
				: (parity((i - at) & (j - at)) ? -1 : 1) *
					(float)(1 / sqrt((double)block));
		for (i = 0; i < 96; i++)
			good &= ys[i] == zs[i];
	}
	return good;
}

/* P2: a block of ones gives sqrt(b) in its first element, else 0. */
static int constants(struct dev *dev)
{
	int64_t n, i;
	int good = 1;

	for (n = 2; n <= 4096; n *= 2) {
		for (i = 0; i < n; i++)
			xs[i] = 1;
		good &= F32_ROWS(dev, 1, n, xs, ys, NULL);
		good &= ulp_distance(ys[0], sqrt((double)n)) <= 1;
		for (i = 1; i < n; i++)
			good &= ys[i] == 0;
	}
	return good;
}

/* P3, P4, P5: H H^T = I, norms are kept, <Hx, y> = <x, H^T y>; a symmetric H is its own inverse. */
static int inverses(struct dev *dev)
{
	static const struct {
		int64_t n;
		hz_hadamard_opts o;
		int symmetric;
	} all[] = {
		{ 64, { 0 }, 1 }, { 2048, { 0 }, 1 }, { 96, { .plan = HZ_PLAN_GREEDY }, 1 },
		{ 96, { .plan = HZ_PLAN_TRUE }, 1 }, { 320, { .plan = HZ_PLAN_TRUE }, 1 },
		{ 96, { .plan = HZ_PLAN_TRUE, .base = HZ_BASE_PALEY1 }, 0 },
		{ 80, { .plan = HZ_PLAN_TRUE, .base = HZ_BASE_DAO }, 0 },
		{ 448, { .plan = HZ_PLAN_TRUE, .base = HZ_BASE_DAO }, 0 },
		{ 160, { .plan = HZ_PLAN_TRUE, .base = HZ_BASE_DAO, .order = 40 }, 0 },
		{ 688, { .plan = HZ_PLAN_TRUE }, 0 },
	};
	int i, good = 1;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		hz_hadamard_opts t = all[i].o;
		int64_t n = all[i].n;
		double u = (log2((double)n) + 180) * 0x1p-24, size;

		t.flags |= HZ_HADAMARD_TRANSPOSE;
		fill(xs, n);
		size = norm(xs, n);
		good &= F32_ROWS(dev, 1, n, xs, ys, &all[i].o);
		good &= fabs(norm(ys, n) / size - 1) <= u;
		good &= F32_ROWS(dev, 1, n, ys, zs, &t);
		good &= distance(xs, zs, n) <= 2 * u * size;
		good &= F32_ROWS(dev, 1, n, ys, zs, &all[i].o);
		good &= all[i].symmetric ? distance(xs, zs, n) <= 2 * u * size
					 : distance(xs, zs, n) > 0.1 * size;
		fill(ws, n);
		good &= F32_ROWS(dev, 1, n, ws, zs, &t);
		good &= fabs(dot(ys, ws, n) - dot(xs, zs, n)) <= 2 * u * size * norm(ws, n);
		if (!good) {
			diag("%s: n = %lld, case %d", dev->name, (long long)n, i);
			break;
		}
	}
	return good;
}

/* Rows of true orders, repeated until blocks of a GPU process several of them */
static void test_base_rows(void)
{
	enum { FEW = 9 };
	int m, k, t, d, i, alike = 1;

	for (m = 12; m <= 28; m += 8) {
		for (k = 5; m << k <= 57344 && k <= (quick ? 8 : 12); k++) {
			const int64_t n = (int64_t)m << k, many = quick ? 100 : (1 << 23) / n;
			const hz_hadamard_opts o = { .plan = HZ_PLAN_TRUE, .order = m };

			for (d = 0; d < ndevs; d++) {
				const int64_t rows = devs[d].device == HZ_CPU ? 2 * FEW + 1 : many;

				for (t = 0; t < 3; t++) {
					const size_t bytes = (size_t)n * hz_dtype_size(floats[t]);
					char *x = malloc((size_t)rows * bytes);
					char *y = malloc((size_t)rows * bytes);

					for (i = 0; i < FEW * n; i++)
						ref_put(floats[t], x, i, rnd_normal(&rnd));
					for (i = FEW; i < rows; i++)
						memcpy(x + (size_t)i * bytes, x + i % FEW * bytes,
						       bytes);
					alike &= apply(&devs[d], floats[t], floats[t], rows, n, x,
						       y, &o);
					for (i = FEW; i < rows; i++)
						alike &= !memcmp(y + (size_t)i * bytes,
								 y + i % FEW * bytes, bytes);
					free(x);
					free(y);
				}
			}
		}
	}
	ok(alike, "12 2^k, 20 2^k, 28 2^k: the same bits for a row wherever it is");
}

/* P6: without the scale factor integers are exact, in 16 bits too; with n = 4^k also with it. */
static int integers(struct dev *dev)
{
	static const hz_hadamard_opts raw = { .flags = HZ_HADAMARD_RAW };
	static const hz_hadamard_opts raw_true = { .plan = HZ_PLAN_TRUE, .flags = HZ_HADAMARD_RAW };
	int64_t n, i, j, h, exact[N];
	int good = 1, t, b;
	int8_t base[144];

	for (n = 4; n <= N; n *= 4) {
		for (i = 0; i < n; i++) {
			xs[i] = (float)(rnd_below(&rnd, 401) - 200);
			exact[i] = (int64_t)xs[i];
		}
		for (h = 1; h < n; h *= 2)
			for (i = 0; i < n; i++)
				if (!(i & h)) {
					int64_t u = exact[i], v = exact[i + h];

					exact[i] = u + v;
					exact[i + h] = u - v;
				}
		for (t = 0; t < 3; t++) {
			for (i = 0; i < n; i++)
				ref_put(floats[t], t ? (void *)hx : ws, i, (double)xs[i]);
			good &= apply(dev, floats[t], HZ_F32, 1, n, t ? (void *)hx : ws, ys, &raw);
			for (i = 0; i < n; i++)
				good &= ys[i] == (float)exact[i];
			good &= apply(dev, floats[t], HZ_F32, 1, n, t ? (void *)hx : ws, ys, NULL);
			for (i = 0; i < n; i++)
				good &= (double)ys[i] == (double)exact[i] / sqrt((double)n);
		}
	}
	hz_hadamard_base(HZ_BASE_AUTO, 12, base);
	for (b = 1; b <= 64; b *= 4) {
		n = 12 * b;
		for (i = 0; i < n; i++)
			xs[i] = (float)(rnd_below(&rnd, 401) - 200);
		good &= F32_ROWS(dev, 1, n, xs, ys, &raw_true);
		for (i = 0; i < n; i++) {
			exact[i] = 0;
			for (j = 0; j < n; j++)
				exact[i] += (int64_t)xs[j] * base[i / b * 12 + j / b] *
					    (parity(i % b & j % b) ? -1 : 1);
			good &= ys[i] == (float)exact[i];
		}
	}
	return good;
}

/* P7, P8, P9: the effect of shifts, signs, powers of two and sums in x */
static int metamorphic(struct dev *dev)
{
	static const hz_hadamard_opts twice = { .factor = 2 }, minus = { .factor = -1 };
	int64_t n, i, s;
	int good = 1;

	for (n = 16; n <= N; n *= 4) {
		fill(xs, n);
		good &= F32_ROWS(dev, 1, n, xs, ys, NULL);
		for (s = 1; s < n; s = s * 3 + 1) {
			for (i = 0; i < n; i++)
				ws[i] = xs[i ^ s];
			good &= F32_ROWS(dev, 1, n, ws, zs, NULL);
			for (i = 0; i < n; i++)
				good &= zs[i] == (parity(i & s) ? -ys[i] : ys[i]);
		}
		good &= F32_ROWS(dev, 1, n, xs, zs, &twice);
		for (i = 0; i < n; i++)
			good &= zs[i] == 2 * ys[i];
		good &= F32_ROWS(dev, 1, n, xs, zs, &minus);
		for (i = 0; i < n; i++)
			good &= zs[i] == -ys[i];
		for (i = 0; i < n; i++)
			ws[i] = ldexpf(-xs[i], 20);
		good &= F32_ROWS(dev, 1, n, ws, zs, NULL);
		for (i = 0; i < n; i++)
			good &= zs[i] == ldexpf(-ys[i], 20);

		fill(ws, n);
		good &= F32_ROWS(dev, 1, n, ws, zs, NULL);
		for (i = 0; i < n; i++) {
			zs[i] += ys[i];
			ws[i] += xs[i];
		}
		good &= F32_ROWS(dev, 1, n, ws, ys, NULL);
		good &= distance(ys, zs, n) <= 4 * (log2((double)n) + 2) * 0x1p-24 * norm(ys, n);
		if (!good) {
			diag("%s: n = %lld", dev->name, (long long)n);
			break;
		}
	}
	return good;
}

/* P10: NaN and Inf spread through their block as in IEEE arithmetic, and no further. */
static int containment(struct dev *dev)
{
	static const struct {
		int64_t n, first, last;		/* the block that index 70 is in */
		hz_hadamard_opts o;
	} all[] = {
		{ 128, 64, 96, { .block = 32 } }, { 160, 0, 128, { .plan = HZ_PLAN_GREEDY } },
		{ 96, 64, 96, { .plan = HZ_PLAN_GREEDY } }, { 256, 64, 128, { .block = 64 } },
		{ 96, 48, 96, { .plan = HZ_PLAN_TRUE, .block = 48 } },
	};
	static const float poison[] = { NAN, INFINITY, -INFINITY };
	int i, p, t, good = 1;
	int64_t j, row;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		int64_t n = all[i].n;

		for (p = 0; p < 3; p++) {
			for (t = 0; t < 3; t++) {
				fill(xs, 4 * n);
				for (j = 0; j < 4 * n; j++)
					ref_put(floats[t], t ? (void *)hx : ws, j, (double)xs[j]);
				good &= apply(dev, floats[t], HZ_F32, 4, n, t ? (void *)hx : ws, ys,
					      &all[i].o);
				ref_put(floats[t], t ? (void *)hx : ws, 2 * n + 70,
					(double)poison[p]);
				good &= apply(dev, floats[t], HZ_F32, 4, n, t ? (void *)hx : ws, zs,
					      &all[i].o);
				for (j = 0; j < 4 * n; j++) {
					row = j / n;
					if (row == 2 && j % n >= all[i].first &&
					    j % n < all[i].last)
						/* tensor cores may turn Inf into NaN */
						good &= p == 0 ? isnan(zs[j])
							: dev->device == HZ_CPU ? isinf(zs[j]) != 0
										: !isfinite(zs[j]);
					else
						good &= memcmp(&ys[j], &zs[j], 4) == 0;
				}
			}
		}
		if (!good) {
			diag("%s: case %d", dev->name, i);
			break;
		}
	}
	return good;
}

/* P12: columns are rows of the transposed matrix; a transform does not depend on its neighbours. */
static int layouts(struct dev *dev)
{
	int64_t rows = 48, n = 64, i, j;
	struct area a = area_new(dev, (size_t)(rows * n) * 4, 0);
	unsigned char *image;
	hz_hadamard_opts o = { .axis = HZ_AXIS(0) };
	float *data;
	hz_tensor t;
	int good = 1;

	fill(xs, rows * n);
	good &= F32_ROWS(dev, rows, n, xs, ys, NULL);
	for (i = 0; i < rows; i += 7) {
		good &= F32_ROWS(dev, 1, n, xs + i * n, zs, NULL);
		good &= same_bits(zs, ys + i * n, (size_t)n, 4);
	}
	image = image_new((size_t)(rows * n) * 4, 0, &data);
	for (i = 0; i < rows; i++)
		for (j = 0; j < n; j++)
			data[j * rows + i] = xs[i * n + j];
	area_write(&a, image);
	t = hz_tensor_2d(a.data, HZ_F32, dev->device, n, rows);
	good &= hz_hadamard(dev->ctx, &t, &t, &o) == HZ_OK;
	area_read(&a, image);
	for (i = 0; i < rows; i++)
		for (j = 0; j < n; j++)
			good &= data[j * rows + i] == ys[i * n + j];
	free(image);
	area_free(&a);
	return good;
}

/* P15: f16 accumulation does not overflow in between, and results above 65504 are Inf. */
static int half_range(struct dev *dev)
{
	static const hz_hadamard_opts raw = { .flags = HZ_HADAMARD_RAW };
	int64_t i;
	int good = 1;

	for (i = 0; i < N; i++)
		ref_put(HZ_F16, hx, i, 60000);
	good &= apply(dev, HZ_F16, HZ_F16, 1, N, hx, hy, NULL);
	good &= hy[0] == 0x7c00;
	for (i = 1; i < N; i++)
		good &= ref_get(HZ_F16, hy, i) == 0;
	good &= apply(dev, HZ_F16, HZ_F32, 1, N, hx, ys, NULL);
	good &= ys[0] == 3840000;
	for (i = 0; i < N; i++)
		ref_put(HZ_F16, hx, i, i & 1 ? -60000 : 60000);
	good &= apply(dev, HZ_F16, HZ_BF16, 1, N, hx, hy, &raw);
	good &= ref_get(HZ_BF16, hy, 0) == 0;
	good &= fabs(ref_get(HZ_BF16, hy, 1) / (60000.0 * N) - 1) < 0.004;
	/* the boundary: 65519.99 rounds to 65504, 65520 to Inf */
	xs[0] = xs[2] = 65519.996f;
	xs[1] = xs[3] = 65520;
	good &= apply(dev, HZ_F32, HZ_F16, 4, 1, xs, hy, NULL);
	good &= hy[0] == 0x7bff && hy[1] == 0x7c00 && hy[2] == 0x7bff && hy[3] == 0x7c00;
	return good;
}

/* Every f16 and bf16 value is read and written exactly; f32 is rounded to nearest even. */
static int conversions(struct dev *dev)
{
	uint16_t *in = malloc(65536 * 2), *out = malloc(65536 * 2);
	float *wide = malloc(65536 * 4);
	int64_t i;
	int t, good = 1;

	for (t = 1; t < 3; t++) {
		for (i = 0; i < 65536; i++)
			in[i] = (uint16_t)i;
		good &= apply(dev, floats[t], HZ_F32, 65536, 1, in, wide, NULL);
		good &= apply(dev, floats[t], floats[t], 65536, 1, in, out, NULL);
		for (i = 0; i < 65536; i++) {
			double v = ref_small_decode(floats[t], (unsigned)i);

			int same = isnan(v) ? isnan(wide[i]) && isnan(ref_get(floats[t], out, i))
					    : (double)wide[i] == v && out[i] == i &&
						      !signbit(wide[i]) == !signbit(v);

			if (!same && good) {
				diag("%s: %s %#x is %.9g and %#x", dev->name,
				     hz_dtype_name(floats[t]),
				     (unsigned)i, (double)wide[i], out[i]);
				good = 0;
			}
		}
		for (i = 0; i < 65536; i++) {
			/* each value, the tie above it, and both sides of the tie */
			float v = (float)ref_small_decode(floats[t], (unsigned)(i & 0xfffe));
			float next = (float)ref_small_decode(floats[t], (unsigned)(i & 0xfffe) + 1);

			wide[i] = (v + next) / 2;
			if (i & 1)
				wide[i] = nextafterf(wide[i], i & 2 ? v : next);
			if (!isfinite(wide[i]))
				wide[i] = ldexpf((float)rnd_normal(&rnd),
						 (int)rnd_below(&rnd, 280) - 150);
		}
		good &= apply(dev, HZ_F32, floats[t], 65536, 1, wide, out, NULL);
		for (i = 0; i < 65536; i++) {
			unsigned want = ref_small_encode(floats[t], (double)wide[i]);

			if (out[i] != want && good) {
				diag("%s: %.9g to %s: got %#x, want %#x", dev->name,
				     (double)wide[i],
				     hz_dtype_name(floats[t]), out[i], want);
				good = 0;
			}
		}
	}
	free(in);
	free(out);
	free(wide);
	return good;
}

/* P16: random signs are undone; all plus changes nothing; packed signs equal factors. */
static int random_signs(struct dev *dev)
{
	static const int64_t lengths[] = { 1, 4, 8, 64, 100, 1024 };
	uint8_t bits[N / 8], plus[N / 8] = { 0 };
	int k, t, good = 1;
	int64_t i;

	for (k = 0; k < 6; k++) {
		int64_t n = lengths[k], bytes = (n + 7) / 8;
		hz_tensor s = hz_tensor_1d(bits, HZ_U8, HZ_CPU, bytes);
		hz_tensor p = hz_tensor_1d(plus, HZ_U8, HZ_CPU, bytes), v;
		hz_hadamard_opts plain = { 0 };
		hz_hadamard_opts forward = { .pre = &s };
		hz_hadamard_opts both = { .pre = &p, .post = &p };

		fill(xs, 3 * n);
		hz_hadamard_signs(bits, n, rnd_u64(&rnd));
		good &= F32_ROWS(dev, 3, n, xs, ys, &plain);
		good &= F32_ROWS(dev, 3, n, xs, zs, &both);
		good &= same_bits(zs, ys, (size_t)(3 * n), 4);
		good &= F32_ROWS(dev, 3, n, xs, ys, &forward);
		for (t = 0; t < 3; t++) {
			for (i = 0; i < n; i++)
				ref_put(floats[t], t ? (void *)hx : ws, i,
					bits[i / 8] >> i % 8 & 1 ? -1 : 1);
			v = hz_tensor_1d(t ? (void *)hx : ws, floats[t], HZ_CPU, n);
			forward.pre = &v;
			good &= F32_ROWS(dev, 3, n, xs, zs, &forward);
			good &= same_bits(zs, ys, (size_t)(3 * n), 4);
		}
		forward.pre = &s;
		forward.flags = HZ_HADAMARD_TRANSPOSE;
		good &= F32_ROWS(dev, 3, n, ys, zs, &forward);
		good &= distance(xs, zs, 3 * n) <=
			2 * (log2((double)n) + 2) * 0x1p-24 * norm(xs, 3 * n);
		if (!good) {
			diag("%s: n = %lld", dev->name, (long long)n);
			break;
		}
	}
	return good;
}

/* P18: an outlier is spread over its block; noise of deviation 1 beside it stays within 7. */
static int outlier(struct dev *dev)
{
	int64_t b, i;
	int good = 1;

	for (b = 16; b <= 1024; b *= 4) {
		float amax = 0;

		fill(xs, b);
		xs[b / 3] = 100;
		good &= F32_ROWS(dev, 1, b, xs, ys, NULL);
		for (i = 0; i < b; i++)
			amax = fabsf(ys[i]) > amax ? fabsf(ys[i]) : amax;
		good &= (double)amax <= 100 / sqrt((double)b) + 7;
	}
	return good;
}

/* P19: an empty x is valid; a single element is scaled. */
static int nothing(struct dev *dev)
{
	static const hz_hadamard_opts scaled = { .factor = 0.75 };
	hz_tensor x = hz_tensor_2d(NULL, HZ_F32, dev->device, 0, 64);
	hz_tensor y = hz_tensor_2d(NULL, HZ_F16, dev->device, 0, 64);
	size_t bytes = 1;
	int good = 1, i;

	good &= hz_hadamard(dev->ctx, &x, &y, NULL) == HZ_OK;
	x.shape[0] = y.shape[0] = 5;
	x.shape[1] = y.shape[1] = 0;
	good &= hz_hadamard(dev->ctx, &x, &y, NULL) == HZ_OK;
	good &= hz_hadamard(dev->ctx, &x, &x, NULL) == HZ_OK;
	good &= RECORD(dev->ctx, hz_hadamard(dev->ctx, &x, &y, NULL), &bytes) == HZ_OK &&
		bytes == 0;
	fill(xs, 100);
	good &= F32_ROWS(dev, 100, 1, xs, ys, &scaled);
	for (i = 0; i < 100; i++)
		good &= ys[i] == 0.75f * xs[i];
	return good;
}

/* Subnormals are read and written. */
static int denormals(struct dev *dev)
{
	int64_t i;
	int t, good = 1;

	for (i = 0; i < 64; i++)
		xs[i] = (float)(1 + rnd_below(&rnd, 1000)) * 0x1p-149f;
	good &= F32_ROWS(dev, 1, 64, xs, ys, NULL);
	good &= ys[0] > 0 && ys[0] < 0x1p-126f;
	for (t = 1; t < 3; t++) {
		for (i = 0; i < 64; i++)
			hx[i] = (uint16_t)(1 + rnd_below(&rnd, 100));
		good &= apply(dev, floats[t], floats[t], 64, 1, hx, hy, NULL);
		good &= same_bits(hy, hx, 64, 2);
	}
	return good;
}

static void test_properties(void)
{
	static const struct {
		int (*check)(struct dev *dev);
		const char *what;
	} all[] = {
		{ impulses, "an impulse gives a column, exactly" },
		{ constants, "a constant gives sqrt(b) and zeros" },
		{ inverses, "inverse, norm and adjoint" },
		{ integers, "integers are exact" },
		{ metamorphic, "shifts, signs, powers of two, sums" },
		{ containment, "NaN and Inf stay in their block" },
		{ layouts, "columns are rows of the transpose, rows do not mix" },
		{ half_range, "f16 does not overflow on the way" },
		{ conversions, "every f16 and bf16 value, and roundings to them" },
		{ random_signs, "random signs as bits and factors, and undone" },
		{ outlier, "an outlier is spread" },
		{ nothing, "empty and single elements" },
		{ denormals, "denormals are kept" },
	};
	int i, d, good;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		good = 1;
		for (d = 0; d < ndevs; d++) {
			if (!all[i].check(&devs[d])) {
				diag("fails on %s", devs[d].name);
				good = 0;
			}
		}
		ok(good, "%s", all[i].what);
	}
}

/* Rows 2^32 elements apart: offsets are 64-bit numbers, in elements and in bytes. */
static void test_far_apart(void)
{
	const int64_t stride = INT64_C(1) << 32, n = 96;
	size_t bytes = (size_t)(stride + n) * 4;
	float *memory = MAP_FAILED;
	int d, good = 1, row;
	hz_tensor x;

	if (!tap_cuda() && sizeof(size_t) > 4)
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) {
		skip(1, "no 16 GiB of addresses");
		return;
	}
	for (d = 0; d < ndevs; d++) {
		static const hz_hadamard_opts columns = { .axis = HZ_AXIS(0) };

		fill(xs, 2 * n);
		good &= F32_ROWS(&devs[d], 2, n, xs, ys, NULL);
		x = hz_tensor_2d(memory, HZ_F32, HZ_CPU, 2, n);
		x.stride[0] = stride;
		for (row = 0; row < 2; row++)
			memcpy(memory + row * stride, xs + row * n, (size_t)n * 4);
		good &= hz_hadamard(devs[d].ctx, &x, &x, NULL) == HZ_OK;
		for (row = 0; row < 2; row++)
			good &= same_bits(memory + row * stride, ys + row * n, (size_t)n, 4);
		good &= hz_hadamard(devs[d].ctx, &x, &x, &columns) == HZ_OK;
		for (row = 0; row < n; row++) {
			zs[row] = (ys[row] + ys[n + row]) * (float)sqrt(0.5);
			zs[n + row] = (ys[row] - ys[n + row]) * (float)sqrt(0.5);
		}
		for (row = 0; row < 2; row++)
			good &= same_bits(memory + row * stride, zs + row * n, (size_t)n, 4);
	}
	munmap(memory, bytes);
	ok(good, "rows 2^32 elements apart");
}

/* ---- With quantization ----------------------------------------------------------------------- */

#define WIDE 1024

static float wide[16 * WIDE], again[16 * WIDE];

/*
 * Quantizes and dequantizes `wide` with one scale per row, into `again`; true if both calls work.
 */
static int there_and_back(struct dev *dev, int q_dtype, int64_t rows, const hz_hadamard_opts *o)
{
	struct area ax = area_new(dev, sizeof(wide), 0), aq = area_new(dev, 16 * WIDE, 0);
	struct area as = area_new(dev, 16 * 4, 0);
	hz_tensor x = hz_tensor_2d(ax.data, HZ_F32, dev->device, rows, WIDE);
	hz_tensor q = hz_tensor_2d(aq.data, q_dtype, dev->device, rows,
				   q_dtype == HZ_S4X2 ? WIDE / 2 : WIDE);
	hz_tensor s = hz_tensor_2d(as.data, HZ_F32, dev->device, rows, 1);
	unsigned char *image;
	void *data;
	int good;

	image = image_new(sizeof(wide), 0, &data);
	memcpy(data, wide, sizeof(wide));
	area_write(&ax, image);
	good = hz_hadamard_quantize(dev->ctx, &x, &q, &s, o) == HZ_OK;
	good &= hz_dequantize_hadamard(dev->ctx, &q, &s, &x, o) == HZ_OK;
	area_read(&ax, image);
	memcpy(again, data, sizeof(wide));
	free(image);
	area_free(&ax);
	area_free(&aq);
	area_free(&as);
	return good;
}

static double relative_error(int64_t n)
{
	double e = 0, w = 0;
	int64_t i;

	for (i = 0; i < n; i++) {
		e += ((double)wide[i] - (double)again[i]) * ((double)wide[i] - (double)again[i]);
		w += (double)wide[i] * (double)wide[i];
	}
	return sqrt(e / w);
}

/* Rotation reduces the quantization error of rows with an outlier. */
static void test_quality(void)
{
	static const int codes[] = { HZ_S8, HZ_S4X2, HZ_E4M3, HZ_E5M2 };
	static const hz_hadamard_opts plain = { .block = 1 }, rotated = { 0 };
	static const hz_hadamard_opts truly = { .block = 256, .plan = HZ_PLAN_TRUE };
	static const double worst[] = { 0.0115, 0.2, 0.03, 0.06 };
	double before, after;
	int64_t i;
	int d, f, good;

	for (f = 0; f < 4; f++) {
		good = 1;
		for (d = 0; d < ndevs; d++) {
			for (i = 0; i < 16 * WIDE; i++)
				wide[i] = (float)(rnd_normal(&rnd) * (i % WIDE == 77 ? 100 : 1));
			good &= there_and_back(&devs[d], codes[f], 16, &plain);
			before = relative_error(16 * WIDE);
			good &= there_and_back(&devs[d], codes[f], 16, &truly);
			good &= there_and_back(&devs[d], codes[f], 16, &rotated);
			after = relative_error(16 * WIDE);
			good &= after < worst[f];
			if (codes[f] == HZ_S8 || codes[f] == HZ_S4X2)
				good &= after < 0.5 * before;
			if (d == 0)
				diag("%s: relative error %.4f, rotated %.4f",
				     hz_dtype_name(codes[f]), before,
				     after);
		}
		ok(good, "%s round trip", hz_dtype_name(codes[f]));
	}
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_hadamard);
	test_properties();
	test_base_rows();
	test_far_apart();
	test_quality();
	dev_close_all();
	return done_testing();
}
