/*
 * epilogue.c - tests of bias, activation and the transform of x in products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Results are compared with the same product without them, which other tests compare with a
 * definition.
 */
#include <config.h>

#include "t/vlut/vlut.h"

#define ROWS 150
#define K_MAX 200
#define BATCH 40

static const int activations[] = {
	HZ_ACT_NONE, HZ_ACT_RELU, HZ_ACT_TANH, HZ_ACT_SIGMOID, HZ_ACT_GELU, HZ_ACT_SILU,
	HZ_ACT_GELU_TANH,
};

struct job {
	int lattice, how, x_dtype, y_dtype, activation;
	int64_t rows, k, batch, y_pad;
	bool bias, rotated, columns;	/* columns: elements of y are rows apart */
};

/* y of j: with all of it (0), of the product alone as f32 (1), of x transformed before (2) */
static double *result(struct dev *dev, const struct job *j, const hz_vlut *v, struct coded *w,
		      const hz_tensor *x, const hz_tensor *bias, const hz_hadamard_opts *rotation,
		      int which)
{
	const int dtype = which == 1 ? HZ_F32 : j->y_dtype;
	const size_t size = hz_dtype_size(dtype);
	const int64_t ld = which == 1 ? j->rows : j->rows + j->y_pad;
	struct area turned_area = area_new(dev, (size_t)(j->batch * j->k) * 4, 0), ya;
	hz_tensor turned = hz_tensor_2d(turned_area.data, HZ_F32, dev->device, j->batch, j->k), y;
	double *got = calloc((size_t)(j->batch * j->rows) + 1, sizeof(double));
	unsigned char *image;
	hz_coded c = *coded_view(w, j->how);

	ya = area_new(dev, (size_t)(j->batch * ld) * size, 0);
	y = hz_tensor_2d(ya.data, dtype, dev->device, j->batch, j->rows);
	y.stride[0] = ld;
	if (which != 1 && j->columns) {
		y.stride[0] = 1;
		y.stride[1] = j->batch;
	}
	if (which != 1) {
		c.bias = j->bias ? bias : NULL;
		c.activation = j->activation;
	}
	if (j->rotated && which) {
		CALL(hz_hadamard(dev->ctx, x, &turned, rotation));
		x = &turned;
	} else if (j->rotated) {
		c.hadamard = rotation;
	}
	CALL(hz_vlut_gemm(dev->ctx, v, &c, x, &y));
	image = malloc(ya.total);
	area_read(&ya, image);
	for (int64_t b = 0; b < j->batch; b++) {
		for (int64_t i = 0; i < j->rows; i++)
			got[b * j->rows + i] = ref_get(dtype, image + GUARD,
						       b * y.stride[0] + i * y.stride[1]);
		for (int64_t i = 0; !j->columns && which != 1 && i < j->y_pad * (int64_t)size; i++) {
			if (image[GUARD + (b * ld + j->rows) * (int64_t)size + i] != GUARD_BYTE)
				bail("y is written beyond a row");
		}
	}
	free(image);
	area_free(&ya);
	area_free(&turned_area);
	return got;
}

/* Most error of y of a dtype from the product in f32 on, as a part of the mean of |y| */
static double error_of(const struct dev *dev, int dtype)
{
	/* A y of 16 bits may have a product of fewer bits. */
	return (dev->device == HZ_CPU ? 0x1p-21 : 0x1p-19) +
	       (dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 0x1p-8 : 0x1p-6);
}

static bool run(struct dev *dev, const struct job *j, uint64_t seed)
{
	static float bias[ROWS];
	uint8_t bits[K_MAX / 8 + 1];
	hz_lattice *l = lattice_of(dev, j->lattice);
	struct area xa, ba, sa;
	hz_tensor xt, bt, st;
	hz_hadamard_opts rotation = {.plan = HZ_PLAN_GREEDY, .pre = &st};
	unsigned char *stored;
	double *got, *plain, *apart, size = 0;
	struct coded w;
	hz_vlut *v;
	bool good = true;

	rnd = seed;
	if (hz_vlut_open(dev->ctx, &v, l, NULL, NULL))
		bail("%s", hz_errmsg(dev->ctx));
	w = coded_new(dev, l, v, j->rows, j->k, j->how);
	stored = calloc((size_t)(j->batch * j->k) + 1, 4);
	for (int64_t i = 0; i < j->batch * j->k; i++) {
		if (j->x_dtype == HZ_S8)
			stored[i] = (unsigned char)rnd_below(&rnd, 256);
		else
			ref_put(j->x_dtype, stored, i, rnd_normal(&rnd) *
				(w.reach > 100 ? 100 / w.reach : 1));
	}
	for (int64_t i = 0; i < j->rows; i++)
		bias[i] = (float)rnd_normal(&rnd);
	hz_hadamard_signs(bits, j->k, rnd_u64(&rnd));
	area_put(dev, &xa, stored, (size_t)(j->batch * j->k) * hz_dtype_size(j->x_dtype));
	area_put(dev, &ba, bias, (size_t)j->rows * 4);
	area_put(dev, &sa, bits, (size_t)(j->k + 7) / 8);
	xt = hz_tensor_2d(xa.data, j->x_dtype, dev->device, j->batch, j->k);
	bt = hz_tensor_1d(ba.data, HZ_F32, dev->device, j->rows);
	st = hz_tensor_1d(sa.data, HZ_U8, dev->device, (j->k + 7) / 8);
	got = result(dev, j, v, &w, &xt, &bt, &rotation, 0);
	plain = result(dev, j, v, &w, &xt, &bt, &rotation, 1);
	apart = result(dev, j, v, &w, &xt, &bt, &rotation, 2);
	for (int64_t i = 0; i < j->batch * j->rows; i++)
		size += fabs(plain[i]) / (double)(j->batch * j->rows);
	for (int64_t i = 0; i < j->batch * j->rows && good; i++) {
		const float sum = (float)plain[i] + (j->bias ? bias[i % j->rows] : 0);
		const double want = ref_act(j->activation, sum);
		const bool exact = j->y_dtype == HZ_F32 && j->activation <= HZ_ACT_RELU;

		good = exact ? got[i] == want :
		       fabs(got[i] - want) <= error_of(dev, j->y_dtype) * (fabs(sum) + size) + 1e-37;
		good = good && !memcmp(&got[i], &apart[i], sizeof(double));
		if (!good)
			diag("%s, %s: %lld x %lld x %lld x %s y %s how %d act %d bias %d rotated "
			     "%d columns %d: element %lld is %.9g, must be %.9g, apart %.9g",
			     dev->name, lattices[j->lattice].name, (long long)j->rows,
			     (long long)j->batch, (long long)j->k, hz_dtype_name(j->x_dtype),
			     hz_dtype_name(j->y_dtype), j->how, j->activation, j->bias, j->rotated,
			     j->columns, (long long)i, got[i], want, apart[i]);
	}
	free(got);
	free(plain);
	free(apart);
	free(stored);
	area_free(&xa);
	area_free(&ba);
	area_free(&sa);
	coded_free(&w);
	hz_vlut_close(v);
	return good;
}

static void test_products(void)
{
	static const char *const names[] = {
		"D4 q 4 M 2", "D4 q 4 M 2 group 16 centred", "D4 q 4 M 2 bank", "E8 q 4 M 2 alone",
		"E8 q 3 M 2", "Z q 16 M 2", "A2 q 4 M 2", "D4 q 4 M 2 transformed", "D3 q 3 M 2",
		"Z^24 q 2 M 1",
	};
	static const int64_t rows[] = {1, 16, 63, 64, 65, 130, ROWS};
	static const int64_t lengths[] = {1, 8, 32, 64, 65, 128, K_MAX};
	static const int64_t batches[] = {1, 2, 3, 8, 17, BATCH};
	static const int x_dtypes[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_S8};

	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++) {
		bool good = true;

		for (int i = 0; i < (tap_quick() ? 8 : 40) && good; i++) {
			const uint64_t seed = rnd_u64(&rnd);
			struct job j = {
				.lattice = lattice_named(names[n]),
				.how = (rnd_below(&rnd, 2) ? PACKED : 0) |
				       (rnd_below(&rnd, 2) ? SCALED : 0),
				.x_dtype = x_dtypes[rnd_below(&rnd, 4)],
				.y_dtype = floats[rnd_below(&rnd, 3)],
				.activation = activations[rnd_below(&rnd, 7)],
				.rows = rows[rnd_below(&rnd, 7)], .k = lengths[rnd_below(&rnd, 7)],
				.batch = batches[rnd_below(&rnd, 6)],
				.y_pad = rnd_below(&rnd, 2) ? 0 : 1 + rnd_below(&rnd, 4),
				.bias = rnd_below(&rnd, 3) > 0, .rotated = rnd_below(&rnd, 3) == 0,
				.columns = rnd_below(&rnd, 4) == 0,
			};

			if (j.x_dtype == HZ_S8) {
				j.rotated = false;
				j.y_dtype = HZ_F32;	/* sums may be beyond f16 */
			}
			for (int d = 0; d < ndevs && good; d++)
				good = run(&devs[d], &j, seed);
			rnd = seed + 1;
		}
		ok(good, "%s: bias, activation, transform", names[n]);
	}
}

/* Without values of k y is the activation of the bias. */
static void test_empty(struct dev *dev)
{
	hz_lattice *l = lattice_of(dev, 0);
	const float bias[3] = {-1, 0, 2};
	struct area ba, ya = area_new(dev, 24, 0);
	hz_coded w = {.activation = HZ_ACT_RELU};
	unsigned char *image = malloc(ya.total);
	float got[6];
	hz_tensor x, y, b;
	hz_vlut *v;

	area_put(dev, &ba, bias, sizeof(bias));
	if (hz_vlut_open(dev->ctx, &v, l, NULL, NULL))
		bail("%s", hz_errmsg(dev->ctx));
	w.codes = hz_tensor_3d(NULL, HZ_U8, dev->device, 3, 0, 2);
	b = hz_tensor_1d(ba.data, HZ_F32, dev->device, 3);
	w.bias = &b;
	x = hz_tensor_2d(NULL, HZ_F32, dev->device, 2, 0);
	y = hz_tensor_2d(ya.data, HZ_F32, dev->device, 2, 3);
	CALL(hz_vlut_gemm(dev->ctx, v, &w, &x, &y));
	area_read(&ya, image);
	memcpy(got, image + GUARD, sizeof(got));
	ok(got[0] == 0 && got[1] == 0 && got[2] == 2 && got[3] == 0 && got[4] == 0 && got[5] == 2,
	   "no k: the activation of bias");
	hz_vlut_close(v);
	free(image);
	area_free(&ba);
	area_free(&ya);
}

static void test_refused(struct dev *dev)
{
	hz_context *const ctx = dev->ctx;
	hz_lattice *l = lattice_of(dev, 0);
	struct area area = area_new(dev, 4096, 0);
	char *const at = area.data;
	const hz_tensor codes = hz_tensor_3d(at, HZ_U8, dev->device, 8, 4, 2);
	hz_tensor x = hz_tensor_1d(at + 1024, HZ_F32, dev->device, 16);
	hz_tensor y = hz_tensor_1d(at + 2048, HZ_F32, dev->device, 8);
	hz_tensor bias = hz_tensor_1d(at + 3072, HZ_F32, dev->device, 8), bad;
	hz_hadamard_opts h = {.axis = HZ_AXIS(-2)};
	hz_coded w = {.codes = codes, .activation = HZ_ACT_NORMCLIP};
	unsigned char *image = malloc(area.total);
	bool clean = true;
	hz_vlut *v, *two;

	if (hz_vlut_open(ctx, &v, l, NULL, NULL) || hz_vlut_open(ctx, &two, l, l, NULL))
		bail("%s", hz_errmsg(ctx));
	REFUSED(HZ_EINVAL, "w->activation is 8, must be 0, 1, 3 to 6 or 9",
		hz_vlut_gemv(ctx, v, &w, &x, &y));
	w.activation = -1;
	REFUSED(HZ_EINVAL, "w->activation is -1", hz_vlut_gemv(ctx, v, &w, &x, &y));
	w.activation = 0;
	w.bias = &bad;
	bad = hz_tensor_1d(at + 3072, HZ_F32, dev->device, 7);
	REFUSED(HZ_ESHAPE, "w->bias.shape[0] is 7, must be 8, the rows of the matrix",
		hz_vlut_gemv(ctx, v, &w, &x, &y));
	bad = hz_tensor_1d(at + 3072, HZ_F16, dev->device, 8);
	REFUSED(HZ_EDTYPE, "w->bias.dtype is f16", hz_vlut_gemv(ctx, v, &w, &x, &y));
	bad = bias;
	bad.stride[0] = 2;
	REFUSED(HZ_ESTRIDE, "w->bias must be contiguous", hz_vlut_gemv(ctx, v, &w, &x, &y));
	bad = y;
	REFUSED(HZ_EALIAS, "w->bias", hz_vlut_gemv(ctx, v, &w, &x, &y));
	w.bias = NULL;
	w.hadamard = &h;
	REFUSED(HZ_ENOTSUP, "w->hadamard->axis is HZ_AXIS(-2), must be HZ_AXIS(-1) or 0, the last "
		"dimension",
		hz_vlut_gemv(ctx, v, &w, &x, &y));
	h.axis = 0;
	bad = hz_tensor_1d(at + 2048, HZ_F32, dev->device, 16);
	h.pre = &bad;
	REFUSED(HZ_EALIAS, "y overlaps w->hadamard->pre", hz_vlut_gemv(ctx, v, &w, &x, &y));
	bad = hz_tensor_1d(at + 3072, HZ_F32, dev->device, 15);
	REFUSED(HZ_ESHAPE, "pre", hz_vlut_gemv(ctx, v, &w, &x, &y));
	h.pre = NULL;
	x.dtype = HZ_S8;
	REFUSED(HZ_EDTYPE, "x.dtype is s8", hz_vlut_gemv(ctx, v, &w, &x, &y));
	w.hadamard = NULL;
	w.bias = &bias;
	y.dtype = HZ_S32;
	REFUSED(HZ_EDTYPE, "y.dtype is s32, must be of floats with w->bias",
		hz_vlut_gemv(ctx, v, &w, &x, &y));
	y = hz_tensor_2d(at + 2048, HZ_F32, dev->device, 8, 8);
	REFUSED(HZ_EINVAL, "vlut_gemm2: w->bias is given, must be 0: hz_vlut_gemm() takes it",
		hz_vlut_gemm2(ctx, two, &w, &(hz_coded){.codes = codes}, &y));
	area_read(&area, image);
	for (size_t i = 0; i < area.total; i++)
		clean &= image[i] == GUARD_BYTE;
	ok(clean, "what was refused wrote nothing");
	free(image);
	hz_vlut_close(v);
	hz_vlut_close(two);
	area_free(&area);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_vlut_gemm);
	test_products();
	test_empty(&devs[0]);
	test_refused(&devs[0]);
	close_lattices();
	dev_close_all();
	return done_testing();
}
