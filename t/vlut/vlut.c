/*
 * vlut.c - products with lattice codes against sums in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * One file, because one runner tests the whole family of calls through all routes.
 */
#include <config.h>

#include "t/vlut/vlut.h"

static long cases;

/* ---- One coded operand ----------------------------------------------------------------------- */

struct one_sided {
	int lattice, route, table, sum, compensated, how, x_dtype, y_dtype, by_cols, gemv;
	int64_t rows, k, batch;
	double size;			/* magnitude of x; 0: 1 */
	int pad;			/* elements between rows of x and of y; 0: 3 */
	int step;			/* only each step-th row is checked; 0: 1 */
};

static void describe(const struct dev *dev, const struct one_sided *o)
{
	diag("%s: %s rows %lld k %lld batch %lld route %d table %s sum %d how %d x %s y %s "
	     "by_cols %d gemv %d",
	     dev->name, lattices[o->lattice].name, (long long)o->rows, (long long)o->k,
	     (long long)o->batch, o->route, o->table ? hz_dtype_name(o->table) : "0", o->sum,
	     o->how, hz_dtype_name(o->x_dtype), hz_dtype_name(o->y_dtype), o->by_cols, o->gemv);
}

static hz_vlut *open_vlut(struct dev *dev, const hz_lattice *w, const hz_lattice *x, int route,
			  int table, int sum, int compensated)
{
	const hz_vlut_opts opts = {.route = route, .table_dtype = table, .sum = sum,
				   .flags = compensated ? HZ_VLUT_COMPENSATED : 0};
	hz_vlut *v;

	if (hz_vlut_open(dev->ctx, &v, w, x, &opts) != HZ_OK)
		bail("hz_vlut_open: %s", hz_errmsg(dev->ctx));
	return v;
}

/* Whether y, [rows][batch] with `pad` more elements between rows or columns, is as expected */
static int same(const struct dev *dev, const struct one_sided *o, const unsigned char *image,
		size_t bytes, const double *want, const double *bound, const int64_t *stride)
{
	const unsigned char *y = image + GUARD;
	const int64_t size = (int64_t)hz_dtype_size(o->y_dtype);
	unsigned char *seen = calloc(bytes + 1, 1);
	const int step = o->step ? o->step : 1;
	int good = 1;

	for (int64_t i = 0; i < o->rows && good; i++) {
		for (int64_t j = 0; j < o->batch && good; j++) {
			const int64_t at = i * stride[0] + j * stride[1];
			const double w = want[i * o->batch + j];
			const double got = o->y_dtype == HZ_S32 ?
						   ((const int32_t *)(const void *)y)[at] :
						   ref_get(o->y_dtype, y, at);
			const double error = bound[i * o->batch + j];

			memset(seen + at * size, 1, (size_t)size);
			if (i % step)
				continue;
			/* Inf times 0 is NaN, and a coordinate may be a difference: either is
			 * accepted. */
			if (o->y_dtype == HZ_F16 && fabs(w) + error > 65400 && fabs(got) > 65400)
				continue;
			if (!isfinite(w) ? !isfinite(got) : got == w || fabs(got - w) <= error)
				continue;
			describe(dev, o);
			diag("element %lld, %lld is %.9g, must be %.9g within %.3g", (long long)i,
			     (long long)j, got, w, error);
			good = 0;
		}
	}
	for (size_t b = 0; b < GUARD + bytes + GUARD && good; b++) {
		if ((b < GUARD || b >= GUARD + bytes || !seen[b - GUARD]) &&
		    image[b] != GUARD_BYTE) {
			describe(dev, o);
			diag("byte %lld of y was written", (long long)b - GUARD);
			good = 0;
		}
	}
	free(seen);
	return good;
}

static int product(hz_context *ctx, const hz_vlut *v, const hz_coded *w, const hz_tensor *x,
		   hz_tensor *y)
{
	return x->ndim == 1 ? hz_vlut_gemv(ctx, v, w, x, y) : hz_vlut_gemm(ctx, v, w, x, y);
}

/* special: an Inf and a NaN in x */
static int run_one(struct dev *dev, const struct one_sided *o, int special)
{
	hz_lattice *l = lattice_of(dev, o->lattice);
	hz_vlut *v = open_vlut(dev, l, NULL, o->route, o->table, o->sum, o->compensated);
	struct coded w = coded_new(dev, l, v, o->rows, o->k, o->how);
	const struct bound bound = bound_of(dev, o->table);
	const int64_t pad = o->pad ? o->pad : 3, n = o->batch;
	const int64_t x_stride[2] = {o->by_cols ? 1 : n + pad, o->by_cols ? o->k + pad : 1};
	const int64_t y_stride[2] = {o->by_cols ? 1 : n + pad, o->by_cols ? o->rows + pad : 1};
	const size_t x_bytes = (size_t)((o->by_cols ? n : o->k) * (pad + (o->by_cols ? o->k : n))) *
			       hz_dtype_size(o->x_dtype);
	const size_t y_bytes =
		(size_t)((o->by_cols ? n : o->rows) * (pad + (o->by_cols ? o->rows : n))) *
		hz_dtype_size(o->y_dtype);
	unsigned char *x = calloc(x_bytes + 1, 1), *image = malloc(y_bytes + 2 * GUARD);
	double *want = calloc((size_t)(o->rows * n) + 1, 8),
	       *bounds = calloc((size_t)(o->rows * n) + 1, 8),
	       *column = calloc((size_t)o->k + 1, 8);
	const int step = o->step ? o->step : 1;
	struct area xa, ya = area_new(dev, y_bytes, 0);
	hz_tensor xt, yt;
	int status, good;

	for (int64_t i = 0; i < o->k; i++) {
		for (int64_t j = 0; j < n; j++) {
			const int64_t at = i * x_stride[0] + j * x_stride[1];

			if (o->x_dtype == HZ_S8)
				x[at] = (unsigned char)(rnd_below(&rnd, 256) - 128);
			else
				ref_put(o->x_dtype, x, at,
					rnd_normal(&rnd) * (o->size ? o->size : 1));
		}
	}
	if (special && n > 1) {
		ref_put(o->x_dtype, x, (o->k / 2) * x_stride[0], INFINITY);
		ref_put(o->x_dtype, x, (o->k / 3) * x_stride[0] + (n - 1) * x_stride[1], NAN);
	}
	for (int64_t j = 0; j < n; j++) {
		double most = 0;

		for (int64_t l2 = 0; l2 < o->k; l2++) {
			const int64_t at = l2 * x_stride[0] + j * x_stride[1];
			const double f =
				o->x_dtype == HZ_S8 ? (int8_t)x[at] : ref_get(o->x_dtype, x, at);

			column[l2] = f;
			most = fabs(f) > most ? fabs(f) : most;
		}
		for (int64_t i = 0; i < o->rows; i += step) {
			const int d = l->rule.d, embed = l->rule.embed;
			double sum = 0, size = 0, weight = 0;
			int64_t integer_sum = 0;

			for (int64_t e = 0; e < o->k; e++) {
				const double f = column[e];

				sum += w.values[i * o->k + e] * f;
				size += fabs(w.values[i * o->k + e] * f);
				weight += fabs(w.values[i * o->k + e]);
				if (o->y_dtype == HZ_S32)
					integer_sum += (int64_t)f *
						w.points[(i * w.blocks + e / d) * embed + e % d];
			}
			want[i * n + j] = sum;
			if (o->y_dtype == HZ_S32) {
				want[i * n + j] = (double)(int32_t)(uint32_t)integer_sum;
				continue;
			}
			bounds[i * n + j] = bound.part * size + bound.unit * most * weight;
			/* Tables are scaled by their largest entry, which few values of W may lack. */
			if (dev->device == HZ_CPU || o->table || o->route == HZ_VLUT_TABLE)
				bounds[i * n + j] += (bound.part + bound.unit) * most * w.reach /
						     (o->k < d ? 1 : 2);
			bounds[i * n + j] +=
				2 * ref_half_ulp(o->y_dtype, fabs(sum) + bounds[i * n + j]);
		}
	}
	area_put(dev, &xa, x, x_bytes);
	xt = o->gemv ? hz_tensor_1d(xa.data, o->x_dtype, dev->device, o->k)
		     : hz_tensor_2d(xa.data, o->x_dtype, dev->device, n, o->k);
	yt = o->gemv ? hz_tensor_1d(ya.data, o->y_dtype, dev->device, o->rows)
		     : hz_tensor_2d(ya.data, o->y_dtype, dev->device, n, o->rows);
	for (int i = 0; i < xt.ndim; i++) {
		xt.stride[i] = x_stride[xt.ndim - 1 - i];
		yt.stride[i] = y_stride[xt.ndim - 1 - i];
	}
	status = product(dev->ctx, v, coded_view(&w, o->how), &xt, &yt);
	if (status == HZ_EWORKSPACE) {
		size_t bytes;

		if (RECORD(dev->ctx, product(dev->ctx, v, &w.c, &xt, &yt), &bytes) != HZ_OK ||
		    hz_reserve(dev->ctx, bytes) != HZ_OK)
			bail("hz_reserve: %s", hz_errmsg(dev->ctx));
		status = product(dev->ctx, v, &w.c, &xt, &yt);
	}
	good = status == HZ_OK;
	if (!good) {
		describe(dev, o);
		diag("%s", hz_errmsg(dev->ctx));
	} else {
		area_read(&ya, image);
		good = same(dev, o, image, y_bytes, want, bounds, y_stride);
	}
	cases++;
	area_free(&xa);
	area_free(&ya);
	free(x);
	free(image);
	free(want);
	free(bounds);
	free(column);
	coded_free(&w);
	hz_vlut_close(v);
	return good;
}

/*
 * Leading dimensions: one batch, also of a slice or with dimensions exchanged, or products that
 * repeat, give what rows one by one give.
 */
static void test_leading(struct dev *dev)
{
	enum { ROWS = 37, K = 64, A = 3, B = 4, C = 2, ALL = A * B * C };
	hz_lattice *l = lattice_of(dev, 1);
	hz_vlut *v = open_vlut(dev, l, NULL, HZ_VLUT_DECODE, 0, HZ_F32, 0);
	struct coded w = coded_new(dev, l, v, ROWS, K, 0);
	const size_t y_bytes = ALL * ROWS * 4;
	struct area xa, ya = area_new(dev, y_bytes, 0), za = area_new(dev, y_bytes, 0);
	unsigned char *y_image = malloc(ya.total), *z_image = malloc(za.total);
	float x[ALL * K];
	hz_tensor xt, yt;
	size_t bytes;
	int good = 1;

	for (int i = 0; i < ALL * K; i++)
		x[i] = (float)rnd_normal(&rnd);
	area_put(dev, &xa, x, sizeof(x));
	xt = hz_tensor_nd(xa.data, HZ_F32, dev->device, 4, (int64_t[]){A, B, C, K});
	yt = hz_tensor_nd(ya.data, HZ_F32, dev->device, 4, (int64_t[]){A, B, C, ROWS});
	for (int n = 0; n < 6; n++) {
		hz_tensor xn = xt, yn = yt;

		if (n & 1) {	/* y has rows of x in another order: A innermost, not outermost */
			yn = hz_tensor_nd(ya.data, HZ_F32, dev->device, 4,
					  (int64_t[]){C, B, A, ROWS});
			yn = hz_view_transpose(&yn, 0, 2);
		}
		if (n / 2 == 1) {
			xn = hz_view_slice(&xn, 1, 1, 3);
			yn = hz_view_slice(&yn, 1, 1, 3);
		} else if (n / 2 == 2) {
			xn = hz_view_transpose(&xn, 0, 1);
			yn = hz_view_transpose(&yn, 0, 1);
		}
		if (RECORD(dev->ctx, product(dev->ctx, v, coded_view(&w, 0), &xn, &yn), &bytes) !=
			    HZ_OK ||
		    hz_reserve(dev->ctx, bytes) != HZ_OK ||
		    hz_vlut_gemm(dev->ctx, v, coded_view(&w, 0), &xn, &yn) != HZ_OK)
			bail("leading dimensions: %s", hz_errmsg(dev->ctx));
		area_read(&ya, y_image);
		for (int i = 0; i < ALL; i++) {
			const int64_t index[] = {i / (B * C), i / C % B, i % C};
			const int64_t at = n & 1 ? (index[2] * B + index[1]) * A + index[0] : i;
			hz_tensor xi = hz_tensor_1d((float *)xa.data + i * K, HZ_F32, dev->device,
						    K);
			hz_tensor zi = hz_tensor_1d((float *)za.data + at * ROWS, HZ_F32,
						    dev->device, ROWS);

			if (n / 2 == 1 && (index[1] < 1 || index[1] > 2))
				continue;
			if (product(dev->ctx, v, &w.c, &xi, &zi) != HZ_OK)
				bail("one row: %s", hz_errmsg(dev->ctx));
			area_read(&za, z_image);
			for (int r = 0; r < ROWS; r++) {
				const float *const y = (const float *)(void *)(y_image + GUARD);
				const float *const z = (const float *)(void *)(z_image + GUARD);

				good &= fabsf(y[at * ROWS + r] - z[at * ROWS + r]) <=
					2e-3 * w.reach;
			}
		}
	}
	ok(good, "%s: leading dimensions", dev->name);
	area_free(&xa);
	area_free(&ya);
	area_free(&za);
	free(y_image);
	free(z_image);
	coded_free(&w);
	hz_vlut_close(v);
}

/* Whether a context forces a route */
static int is_routed(const struct dev *dev)
{
	return strstr(dev->name, ", route ") != NULL;
}

/* Every lattice by each route and table that it has; some of them with more threads */
static void test_routes(struct dev *dev)
{
	static const int tables[] = {0, HZ_F32, HZ_F16, HZ_BF16, HZ_U8, HZ_U16};

	for (int i = 0; i < LATTICES; i++) {
		hz_lattice *l = lattice_of(dev, i);
		const int leaders = l->leaders != NULL,
			  small = leaders && l->rule.level_size <= 256;
		int good = 1;

		for (int route = HZ_VLUT_AUTO; route <= HZ_VLUT_DECODE; route++) {
			for (int t = 0; t < 6; t++) {
				struct one_sided o = {
					.lattice = i, .route = route, .table = tables[t],
					.how = (int)rnd_below(&rnd, 32),
					.rows = 1 + rnd_below(&rnd, 150),
					.k = 1 + rnd_below(&rnd, l->rule.level_size > 4096 ? 50 :
											     200),
					.batch = 1 + rnd_below(&rnd, 9),
					.x_dtype = floats[rnd_below(&rnd, 3)],
					.y_dtype = floats[rnd_below(&rnd, 3)],
					.by_cols = rnd_below(&rnd, 2),
				};

				if (dev->again && rnd_below(&rnd, 3))
					continue;
				if ((route == HZ_VLUT_DECODE && o.table) ||
				    ((o.table || route == HZ_VLUT_TABLE) && !leaders) ||
				    ((o.table == HZ_U8 || o.table == HZ_U16) && !small))
					continue;
				if (route == HZ_VLUT_TABLE && (o.table == 0 || o.table == HZ_F32))
					o.compensated = rnd_below(&rnd, 2);
				if (!o.compensated && !o.table && route != HZ_VLUT_TABLE &&
				    rnd_below(&rnd, 2))
					o.sum = HZ_F32;
				good &= run_one(dev, &o, 0);
			}
		}
		ok(good, "%s: %s by all routes", dev->name, lattices[i].name);
	}
}

/* Batches, rows and k around every tile edge, small and large */
static void test_sizes(struct dev *dev)
{
	static const int which[] = {0, 1, 2, 3, 12, 14, 16, 17};
	static const int64_t batches[] = {0,  1,  2,  3,  4,  5,  6,  7,  11,  12,
					  13, 16, 31, 32, 33, 95, 96, 97, 128, 300};
	static const int64_t rows[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 200};
	static const int64_t ks[] = {0,	 1,  3,	 4,   5,   8,	15,  16,  17,
				     63, 64, 65, 127, 128, 129, 255, 257, 520};

	for (int i = 0; i < (int)(sizeof(which) / sizeof(*which)); i++) {
		int good = 1;

		for (int b = 0; b < (int)(sizeof(batches) / sizeof(*batches)); b++) {
			struct one_sided o = {
				.lattice = which[i], .how = (int)rnd_below(&rnd, 32),
				.batch = batches[b],
				.rows = rows[rnd_below(&rnd, 10)], .k = ks[rnd_below(&rnd, 18)],
				.x_dtype = floats[rnd_below(&rnd, 3)],
				.y_dtype = floats[rnd_below(&rnd, 3)],
				.by_cols = rnd_below(&rnd, 2),
			};

			if (quick && b % 3)
				continue;
			good &= run_one(dev, &o, 0);
		}
		for (int b = 0; b < 18 + 10; b++) {
			struct one_sided o = {
				.lattice = which[i], .how = (int)rnd_below(&rnd, 32), .batch = 1,
				.gemv = 1,
				.rows = b < 18 ? 70 : rows[b - 18], .k = b < 18 ? ks[b] : 100,
				.x_dtype = floats[rnd_below(&rnd, 3)],
				.y_dtype = floats[rnd_below(&rnd, 3)],
			};

			if (quick && b % 4)
				continue;
			good &= run_one(dev, &o, 0);
		}
		ok(good, "%s: %s, sizes", dev->name, lattices[which[i]].name);
	}
}

/* Long rows: several chunks of tables, of bytes */
static void test_long(struct dev *dev)
{
	static const int which[] = {0, 1, 2, 14, 16};
	int good = 1;

	for (int i = 0; i < 5; i++) {
		struct one_sided o = {
			.lattice = which[i], .how = (int)rnd_below(&rnd, 32),
			.batch = 1 + rnd_below(&rnd, 6),
			.rows = 3 + rnd_below(&rnd, 80), .k = 20000 + rnd_below(&rnd, 300),
			.x_dtype = HZ_F32, .y_dtype = HZ_F32,
		};

		if (quick)
			o.k /= 8;
		good &= run_one(dev, &o, 0);
		if (i != 4) {
			o.table = HZ_U8;
			good &= run_one(dev, &o, 0);
		}
	}
	ok(good, "%s: long rows", dev->name);
}

/* x of s8: exact in s32 */
static void test_bytes(struct dev *dev)
{
	int good = 1;

	for (int i = 0; i < LATTICES; i++) {
		hz_lattice *l = lattice_of(dev, i);
		struct one_sided o = {
			.lattice = i, .how = (int)rnd_below(&rnd, 32),
			.batch = 1 + rnd_below(&rnd, 40),
			.rows = 1 + rnd_below(&rnd, 130), .k = 1 + rnd_below(&rnd, 300),
			.x_dtype = HZ_S8,
			.y_dtype = HZ_F32, .by_cols = rnd_below(&rnd, 2),
		};

		good &= run_one(dev, &o, 0);
		o.y_dtype = HZ_S32;
		if (!(l->rule.flags & HZI_LATTICE_MAPPED) && l->rule.kind != HZ_LATTICE_A2)
			good &= run_one(dev, &o, 0);
	}
	ok(good, "%s: x of s8, y of s32", dev->name);
}

/* Packed bit fields: batches around the limit of byte tables, and an x with an outlier */
static void test_d4_bitfield(struct dev *dev)
{
	static const int which[] = {0, 5, LATTICES - 1};
	enum { ROWS = 70, K = 2048 };
	struct one_sided o = {.rows = ROWS, .k = 33000, .batch = 1, .how = PACKED,
			      .x_dtype = HZ_F32, .y_dtype = HZ_F32};
	int good = 1;

	for (int i = 0; i < 3 * 18; i++) {
		struct one_sided some = {
			.lattice = which[i % 3], .batch = i / 3,
			.how = PACKED | (int)rnd_below(&rnd, 32), .rows = 1 + rnd_below(&rnd, 150),
			.k = 1 + rnd_below(&rnd, 300), .by_cols = rnd_below(&rnd, 2),
			.x_dtype = i % 4 ? floats[rnd_below(&rnd, 3)] : HZ_S8,
			.y_dtype = i % 8 || which[i % 3] == 5 ? floats[rnd_below(&rnd, 3)] : HZ_S32,
		};

		if (!quick || i % 3 == 0)
			good &= run_one(dev, &some, 0);
	}
	good &= run_one(dev, &o, 0);
	ok(good, "%s: packed fields", dev->name);
	if (dev->device == HZ_CPU && !is_routed(dev)) {
		hz_lattice *l = lattice_of(dev, 0);
		hz_vlut *v = open_vlut(dev, l, NULL, 0, 0, 0, 0);
		struct coded w = coded_new(dev, l, v, ROWS, K, PACKED);
		double want[ROWS] = {0}, got[ROWS];
		float x[K], y[ROWS];
		const hz_tensor xt = hz_tensor_1d(x, HZ_F32, HZ_CPU, K);
		hz_tensor yt = hz_tensor_1d(y, HZ_F32, HZ_CPU, ROWS);

		for (int i = 0; i < K; i++)
			x[i] = (float)rnd_normal(&rnd);
		x[77] = 100;
		for (int i = 0; i < ROWS; i++) {
			for (int e = 0; e < K; e++)
				want[i] += w.values[i * K + e] * x[e];
		}
		if (hz_vlut_gemv(dev->ctx, v, coded_view(&w, PACKED), &xt, &yt) != HZ_OK)
			bail("hz_vlut_gemv: %s", hz_errmsg(dev->ctx));
		for (int i = 0; i < ROWS; i++)
			got[i] = y[i];
		ok(norm_error(got, want, ROWS) <= 2e-5, "%s: x with a number that stands out",
		   dev->name);
		coded_free(&w);
		hz_vlut_close(v);
	}
}

/* Many rows of packed bit fields by few f16 vectors that are aligned, together or one at a time:
 * blocks of a GPU process one tile, several, and more than they keep in flight. */
static void test_aligned(struct dev *dev)
{
	static const int64_t rows[] = {1070, 4240, 8460, 17000};
	int good = 1;

	for (int i = 0; i < 16; i++) {
		struct one_sided o = {
			.lattice = i / 4 % 2 ? LATTICES - 2 : 0, .rows = rows[i % 4],
			.how = PACKED | (int)rnd_below(&rnd, 32), .k = 1 + rnd_below(&rnd, 200),
			.batch = 8, .by_cols = i / 8, .pad = 8, .x_dtype = HZ_F16,
			.y_dtype = floats[rnd_below(&rnd, 3)],
		};

		if (quick && i % 5)
			continue;
		if (i % 4 == 0)
			o.k += 1500;
		if (o.by_cols) {
			o.batch = 3 + rnd_below(&rnd, 6);
			o.pad += (int)(-o.k & 7);
		}
		good &= run_one(dev, &o, i % 8 == 5);
	}
	for (int i = 0; i < 8; i++) {
		struct one_sided o = {
			.lattice = i / 4 ? LATTICES - 2 : 0, .rows = rows[i % 4],
			.how = PACKED | (int)rnd_below(&rnd, 32),
			.k = 16 * (1 + rnd_below(&rnd, 20)), .batch = 1, .by_cols = 1,
			.x_dtype = HZ_F16, .y_dtype = floats[rnd_below(&rnd, 3)],
		};

		if (quick && i % 3)
			continue;
		if (i % 4 == 0)
			o.k += i == 0 ? 4400 : 1600;
		good &= run_one(dev, &o, i == 2 || i == 6);
	}
	ok(good, "%s: packed fields by aligned vectors", dev->name);
}

/*
 * Up to 8 f16 vectors: codes whose blocks or small groups have scales, codes of 16 bits or without
 * byte tables, coarser levels. Rows and k are around tiles and chunks, with as many tiles as a
 * block of a GPU has accumulators for, and more.
 */
static void test_tables(struct dev *dev)
{
	static const int64_t rows[] = {1, 31, 33, 200, 1070, 4240, 8460};
	static const int64_t ks[] = {8, 64, 72, 120, 128, 136, 520, 2048, 9000};
	static const int some[] = {1, 2, 6, 9, 10, 12, 14, 15, 17, 19};
	const int first = lattice_named("D4 q 4 M 2 bank"), count = LATTICES - 6 - first;

	for (int i = 0; i < (int)(sizeof(some) / sizeof(*some)) + count; i++) {
		const int which = i < count ? first + i : some[i - count];
		int good = 1;

		for (int n = 0; n < (quick ? 4 : 14); n++) {
			struct one_sided o = {
				.lattice = which, .rows = rows[rnd_below(&rnd, n % 2 ? 7 : 4)],
				.how = (n % 4 == 0 ? 0 : n % 4 == 2 ? FEWER : PACKED) |
				       (rnd_below(&rnd, 2) ? SCALED : 0),
				.batch = 1 + (n % 3 ? 0 : rnd_below(&rnd, 8)),
				.by_cols = rnd_below(&rnd, 2), .pad = 1 + rnd_below(&rnd, 8),
				.x_dtype = HZ_F16, .y_dtype = floats[rnd_below(&rnd, 3)],
			};

			o.k = ks[rnd_below(&rnd, o.rows > 1070 ? 6 : 9)];
			if (n == 1) {
				o.batch = 8;
				o.by_cols = 0;
				o.pad = 8;
			}
			good &= run_one(dev, &o, n == 3);
		}
		ok(good, "%s: %s, few vectors of f16", dev->name, lattices[which].name);
	}
}

/* Packed E8 with q = 4: batches around the limit of a launch and of the route that materializes
 * points; enough rows that blocks process several tiles; rows of several units, and too long */
static void test_e8_bitplane(struct dev *dev)
{
	static const struct {
		int64_t rows, k, batch;
	} sizes[] = {{2150, 520, 1}, {4300, 130, 2}, {17000, 24, 1}, {136000, 8, 2}, {20, 40960, 1},
		     {17, 40965, 2}, {40, 9000, 2}, {12, 21000, 3}, {600, 1030, 40}};
	const int plain = LATTICES - 4, centred = LATTICES - 3;
	int good = 1;

	for (int i = 0; i < 3 * 14; i++) {
		struct one_sided o = {
			.lattice = i % 3 == 2 ? 16 : i % 3 ? centred : plain, .batch = i / 3,
			.how = PACKED | (i % 2 ? (int)rnd_below(&rnd, 32) : 0),
			.rows = 1 + rnd_below(&rnd, 150),
			.k = 1 + rnd_below(&rnd, i % 4 ? 300 : 2500),
			.by_cols = rnd_below(&rnd, 2),
			.x_dtype = i % 5 ? floats[rnd_below(&rnd, 3)] : HZ_S8,
			.y_dtype = i % 10 ? floats[rnd_below(&rnd, 3)] : HZ_S32,
		};

		if (i == 30)
			o.batch = 20;
		if (!quick || i % 4 < 2)
			good &= run_one(dev, &o, o.x_dtype != HZ_S8 && i % 7 == 4);
	}
	ok(good, "%s: packed E8", dev->name);
	good = 1;
	for (int i = 0; i < (int)(sizeof(sizes) / sizeof(*sizes)); i++) {
		const struct one_sided o = {
			.lattice = i % 2 ? centred : plain, .how = PACKED, .rows = sizes[i].rows,
			.k = sizes[i].k, .batch = sizes[i].batch, .by_cols = rnd_below(&rnd, 2),
			.x_dtype = i % 4 == 3 ? HZ_S8 : floats[rnd_below(&rnd, 3)],
			.y_dtype = i % 4 == 3 ? HZ_S32 : floats[rnd_below(&rnd, 3)],
		};

		if (quick && dev->device == HZ_CPU && i % 3)
			continue;
		good &= run_one(dev, &o, 0);
	}
	ok(good, "%s: packed E8, many rows and long ones", dev->name);
}

/*
 * Packed bit fields by larger batches of f16 whose rows are aligned: tiles of 32 to 256 columns and
 * of 64 to 192 rows, one and several of both; full and partial chunks of 128 along k, split or not
 */
static void test_batches(struct dev *dev)
{
	static const struct {
		int64_t rows, batch, k;
	} sizes[] = {
		{100, 300, 200}, {1070, 32, 1608}, {4240, 9, 328}, {4240, 33, 136},
		{8460, 12, 128}, {700, 130, 904}, {1070, 256, 264}, {17000, 20, 64},
		{70, 65, 3080}, {4300, 64, 248}, {300, 256, 2000}, {2150, 129, 8},
		{64, 16, 4104}, {1, 17, 512}, {520, 513, 72}, {11000, 100, 40},
		{2040, 130, 520},
	};
	int good = 1;

	for (int i = 0; i < (int)(sizeof(sizes) / sizeof(*sizes)); i++) {
		const struct one_sided o = {
			.lattice = i % 3 == 1 ? LATTICES - 2 : 0, .rows = sizes[i].rows,
			.how = PACKED | ((int)rnd_below(&rnd, 32) & ~FEWER), .k = sizes[i].k,
			.batch = sizes[i].batch, .pad = 8 + (int)(-sizes[i].batch & 7),
			.x_dtype = HZ_F16, .y_dtype = i % 2 ? HZ_F16 : floats[rnd_below(&rnd, 3)],
		};

		if (quick && i % 3 == 2)
			continue;
		good &= run_one(dev, &o, i % 5 == 3);
	}
	ok(good, "%s: packed fields by many aligned vectors", dev->name);
}

/*
 * Larger batches, with tiles of 128 and 256 columns, and so few tiles that k is split: f16, with
 * tiles of 64, 128 and 192 rows, and f32 and bf16, which are reordered first. Some rows of each
 * share that the reduction of the splits handles are checked.
 */
static void test_splits(struct dev *dev)
{
	static const struct {
		int64_t rows, batch, k;
		int x_dtype;
	} sizes[] = {
		{4249, 200, 2600, HZ_F16}, {1030, 256, 1032, HZ_F16}, {4249, 70, 1288, HZ_F16},
		{4249, 200, 648, HZ_F16}, {2190, 128, 1288, HZ_F16}, {1000, 100, 1100, HZ_F32},
		{1000, 100, 1100, HZ_BF16}, {2190, 200, 1160, HZ_BF16},
	};
	int good = 1;

	for (int i = 0; i < (int)(sizeof(sizes) / sizeof(*sizes)); i++) {
		const struct one_sided o = {
			.lattice = i % 2 ? LATTICES - 2 : 0, .rows = sizes[i].rows,
			.how = PACKED | ((int)rnd_below(&rnd, 32) & ~FEWER), .k = sizes[i].k,
			.batch = sizes[i].batch, .pad = 8 + (int)(-sizes[i].batch & 7),
			.x_dtype = sizes[i].x_dtype, .y_dtype = floats[(i + 1) % 3], .step = 7,
		};

		good &= run_one(dev, &o, 0);
	}
	ok(good, "%s: packed fields by many vectors, k is split", dev->name);
}

/* Packed codes of D4 so far from 0 that p - o does not fit bytes or f16: a batch for each route
 * that codes near 0 have */
static void test_far(struct dev *dev)
{
	static const struct {
		int64_t rows, batch, k;
		int x_dtype, y_dtype;
	} sizes[] = {
		{1070, 1, 1008, HZ_F16, HZ_F32}, {1070, 8, 130, HZ_F16, HZ_F16},
		{200, 40, 260, HZ_F16, HZ_F32}, {200, 40, 260, HZ_BF16, HZ_F32},
		{70, 5, 300, HZ_F32, HZ_F32}, {70, 20, 300, HZ_S8, HZ_S32},
		{70, 20, 300, HZ_S8, HZ_F32}, {70, 3, 300, HZ_S8, HZ_S32},
	};
	int good = 1;

	for (int i = 0; i < (int)(sizeof(sizes) / sizeof(*sizes)); i++) {
		const struct one_sided o = {
			.lattice = LATTICES - 6, .rows = sizes[i].rows, .how = PACKED,
			.k = sizes[i].k, .batch = sizes[i].batch, .pad = 8,
			.x_dtype = sizes[i].x_dtype, .y_dtype = sizes[i].y_dtype,
		};

		good &= run_one(dev, &o, 0);
	}
	ok(good, "%s: packed codes far from 0", dev->name);
}

static void test_special(struct dev *dev)
{
	int good = 1;

	for (int i = 0; i < 20; i++) {
		const struct one_sided o = {
			.lattice = i % LATTICES, .how = (int)rnd_below(&rnd, 32) & ~FEWER,
			.batch = 2 + rnd_below(&rnd, 5), .rows = 1 + rnd_below(&rnd, 130),
			.k = 10 + rnd_below(&rnd, 300), .x_dtype = floats[i % 3], .y_dtype = HZ_F32,
		};

		good &= run_one(dev, &o, 1);
	}
	ok(good, "%s: Inf and NaN in x", dev->name);
	good = 1;
	for (int i = 0; i < 20; i++) {
		const struct one_sided o = {
			.lattice = i % LATTICES, .how = (int)rnd_below(&rnd, 32),
			.batch = 1 + rnd_below(&rnd, 5),
			.rows = 1 + rnd_below(&rnd, 130), .k = 10 + rnd_below(&rnd, 300),
			.x_dtype = HZ_F32,
			.y_dtype = HZ_F32, .size = i % 2 ? 1e30 : 1e-30,
		};

		good &= run_one(dev, &o, 0);
	}
	ok(good, "%s: x of extreme sizes", dev->name);
}

/* ---- Two coded operands ---------------------------------------------------------------------- */

/* Whether values are p - o times the scales of lattice and row, and nothing else */
static int is_point_times_scale(const hz_lattice *l, int how)
{
	return !hzi_lattice_has_t(l) && !(how & FEWER) &&
	       !(l->rule.flags & (HZI_LATTICE_MAPPED | HZI_LATTICE_DITHERED));
}

/* The largest |p - o| of a coordinate */
static int64_t most_of(const hz_lattice *l)
{
	int64_t most = 0;

	for (int e = 0; e < l->rule.embed; e++)
		most = llabs((long long)l->rule.offset[e]) > most ?
			       llabs((long long)l->rule.offset[e]) : most;
	return most + (int64_t)l->point_max;
}

/* Whether points fit bytes on a GPU */
static int has_bytes(const hz_lattice *l)
{
	const int level = l->rule.level_size <= 256 ? 1 : l->rule.level_size <= 65536 ? 2 : 4;
	const int d = l->rule.d, without = l->rule.kind == HZ_LATTICE_D ? 2 : 3;

	return (d <= 4 || d == 8) && d != without && l->rule.q <= 16 &&
	       l->rule.levels * level <= 8 && most_of(l) <= 127;
}

static int run_two(struct dev *dev, int wi, int xi, int route, int table, int how_w, int how_x,
		   int64_t rows, int64_t cols, int64_t k, int y_dtype)
{
	hz_lattice *wl = lattice_of(dev, wi), *xl = lattice_of(dev, xi);
	hz_vlut *v = open_vlut(dev, wl, xl, route, table, 0, 0);
	hz_vlut *vx = open_vlut(dev, xl, wl, 0, 0, 0, 0);
	struct coded w = coded_new(dev, wl, v, rows, k, how_w);
	/* Packed codes of x come from a table with x as its w. */
	struct coded x = coded_new(dev, xl, vx, cols, k, how_x);
	const int by_cols = rnd_below(&rnd, 2);
	const int64_t y_stride[2] = {by_cols ? 1 : cols + 2, by_cols ? rows + 2 : 1};
	const size_t bytes = (size_t)((by_cols ? cols : rows) * (2 + (by_cols ? rows : cols))) *
			     hz_dtype_size(y_dtype);
	struct one_sided o = {.lattice = wi, .route = route, .table = table, .how = how_w,
			      .x_dtype = HZ_F32, .y_dtype = y_dtype, .rows = rows, .k = k,
			      .batch = cols};
	double *want = calloc((size_t)(rows * cols) + 1, 8),
	       *bounds = calloc((size_t)(rows * cols) + 1, 8);
	unsigned char *image = malloc(bytes + 2 * GUARD);
	struct area ya = area_new(dev, bytes, 0);
	hz_tensor y = hz_tensor_2d(ya.data, y_dtype, dev->device, cols, rows);
	/* Sums of integers are exact on a CPU, and on a GPU if points fit bytes, except packed D4
	 * with few columns. Otherwise they are f32 sums of numbers rounded to f16. */
	const int sums = is_point_times_scale(wl, how_w) && is_point_times_scale(xl, how_x);
	const int cpu = dev->device == HZ_CPU, a2 = wl->rule.kind == HZ_LATTICE_A2;
	const int d4_gemv = (how_w & PACKED) && cols < 640 && wl->rule.kind == HZ_LATTICE_D &&
			wl->rule.d == 4 && wl->rule.q == 4 && wl->rule.levels == 2;
	const int exact = sums && route != HZ_VLUT_TABLE &&
			  (cpu || (has_bytes(wl) && has_bytes(xl) && !d4_gemv && !is_routed(dev)));
	const int mapped = ((wl->rule.flags | xl->rule.flags) & HZI_LATTICE_MAPPED) != 0;
	const struct bound bound = sums && (cpu || (most_of(wl) <= 2048 && most_of(xl) <= 2048)) ?
					   (struct bound){cpu ? 0 : 0x1p-17, 0} : bound_of(dev, 0);
	const double unit = (wl->rule.kind == HZ_LATTICE_E8 ? 2 : 1) *
			    (xl->rule.kind == HZ_LATTICE_E8 ? 2 : 1) *
			    (a2 ? 2 : 1);
	const int64_t n = w.blocks * wl->rule.embed;
	size_t workspace_bytes;
	int status, good;

	y.stride[0] = y_stride[1];
	y.stride[1] = y_stride[0];
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < cols; j++) {
			double sum = 0, size = 0, most = 0, weight = 0;
			int64_t integer_sum = 0;

			for (int64_t e = 0; e < k; e++) {
				const double f = x.values[j * k + e];

				sum += w.values[i * k + e] * f;
				size += fabs(w.values[i * k + e] * f);
				weight += fabs(w.values[i * k + e]);
				most = fabs(f) > most ? fabs(f) : most;
			}
			for (int64_t e = 0; e < (n == w.blocks * wl->rule.d ? k : n); e++)
				integer_sum += (int64_t)w.points[i * n + e] * x.points[j * n + e];
			want[i * cols + j] =
				y_dtype == HZ_S32 ? (double)(int32_t)(uint32_t)integer_sum : sum;
			if (y_dtype == HZ_S32)
				continue;
			if (exact) {
				double rounded = 0;	/* storage for any dtype */
				const double f = (double)wl->rule.scale[0] * xl->rule.scale[0] /
						 unit * x.scale[j];

				ref_put(y_dtype, &rounded, 0,
					(float)((double)integer_sum * f) * w.scale[i]);
				want[i * cols + j] = ref_get(y_dtype, &rounded, 0);
				continue;
			}
			bounds[i * cols + j] = bound.part * size + bound.unit * most * weight;
			if (cpu || route == HZ_VLUT_TABLE)
				bounds[i * cols + j] += (bound.part + bound.unit) * most *
							w.reach / 2;
			/* A transform in f32 adds rounding errors of terms that cancel, also those
			 * of x. */
			if (mapped)
				bounds[i * cols + j] +=
					0x1p-20 / (double)k * (weight * x.reach + most * w.reach);
			bounds[i * cols + j] +=
				2 * ref_half_ulp(y_dtype, fabs(sum) + bounds[i * cols + j]) +
				0x1p-22 * fabs(sum) + 1e-13 * size;
		}
	}
	if (RECORD(dev->ctx, hz_vlut_gemm2(dev->ctx, v, coded_view(&w, how_w),
					   coded_view(&x, how_x), &y), &workspace_bytes) != HZ_OK ||
	    hz_reserve(dev->ctx, workspace_bytes) != HZ_OK)
		bail("workspace of hz_vlut_gemm2: %s", hz_errmsg(dev->ctx));
	status = hz_vlut_gemm2(dev->ctx, v, coded_view(&w, how_w), coded_view(&x, how_x), &y);
	good = status == HZ_OK;
	if (!good) {
		describe(dev, &o);
		diag("%s", hz_errmsg(dev->ctx));
	} else {
		area_read(&ya, image);
		good = same(dev, &o, image, bytes, want, bounds, y_stride);
		if (!good)
			diag("two-sided, x is of %s, how %d", lattices[xi].name, how_x);
	}
	cases++;
	area_free(&ya);
	free(want);
	free(bounds);
	free(image);
	coded_free(&w);
	coded_free(&x);
	hz_vlut_close(v);
	hz_vlut_close(vx);
	return good;
}

static void test_two_sided(struct dev *dev)
{
	for (int i = 0; i < LATTICES; i++) {
		hz_lattice *l = lattice_of(dev, i);
		const int integral = !(l->rule.flags & HZI_LATTICE_MAPPED);
		/* Large tables take long to fill, and are the same for every ISA level. */
		const int table = integral && l->leaders &&
				  l->rule.level_size * l->rule.level_size <=
				  (uint64_t)1 << (dev == devs ? 26 : 20);
		const int d = l->rule.d;
		/* The last block may extend beyond k, where its points are not 0; for A2 they count
		 * in s32. */
		const int64_t beyond = l->rule.embed == d ? rnd_below(&rnd, d) : 0;
		const int64_t k = d * (1 + rnd_below(&rnd, 20)) - beyond;
		const struct hzi_route *const forced = dev->ctx->forced[HZI_OP_vlut_gemm2];
		int good = 1;

		/* Forced on small products, via_f16 rounds to f16 the points of A2, which are not
		 * integers. */
		if (l->rule.embed != d && forced && strcmp(forced->name, "via_f16") == 0)
			continue;
		for (int n = 0; n < (!quick ? 6 : dev->device >= HZ_CUDA ? 2 : 1); n++) {
			const int64_t rows = 1 + rnd_below(&rnd, 140),
				      cols = 1 + rnd_below(&rnd, 140);
			const int how = (int)rnd_below(&rnd, 32), other = (int)rnd_below(&rnd, 32);

			good &= run_two(dev, i, i, n % 2 ? HZ_VLUT_DECODE : HZ_VLUT_AUTO, 0, how,
					other, rows, cols, k, floats[rnd_below(&rnd, 3)]);
			if (integral)
				good &= run_two(dev, i, i, HZ_VLUT_AUTO, 0, how, other, rows, cols,
						k, HZ_S32);
			good &= run_two(dev, i, i, HZ_VLUT_AUTO, 0, 0, 0, rows,
					1 + rnd_below(&rnd, 4), k, HZ_F32);
		}
		if (table) {
			good &= run_two(dev, i, i, HZ_VLUT_TABLE, 0, 0, PACKED | FEWER, 9, 11, k,
					HZ_F32);
			good &= run_two(dev, i, i, HZ_VLUT_TABLE, HZ_S16, SCALED, PLANAR, 9, 70, k,
					HZ_S32);
		}
		ok(good, "%s: %s by itself", dev->name, lattices[i].name);
	}
	ok(run_two(dev, 0, 1, 0, 0, 0, PACKED, 70, 66, 64, HZ_F32) &
	   run_two(dev, 1, 2, 0, 0, SCALED, SCALED, 40, 30, 128, HZ_BF16) &
	   run_two(dev, 0, 3, HZ_VLUT_TABLE, 0, 0, 0, 7, 5, 64, HZ_S32) &
	   run_two(dev, 14, 16, 0, 0, PACKED, 0, 65, 3, 64, HZ_F32) &
	   run_two(dev, 14, 15, 0, 0, PACKED, 0, 65, 3, 64, HZ_S32) &
	   run_two(dev, 0, 7, 0, 0, PACKED, 0, 5, 130, 64, HZ_S32),
	   "%s: one lattice by another", dev->name);
	ok(run_two(dev, 0, 0, 0, 0, PACKED | SCALED, SCALED, 70, 639, 1009, HZ_F32) &
	   run_two(dev, 0, 0, 0, 0, PACKED | SCALED, SCALED, 70, 640, 1009, HZ_F32) &
	   run_two(dev, 0, 0, 0, 0, PACKED, PACKED, 30, 700, 130, HZ_F16) &
	   run_two(dev, 3, 0, 0, 0, SCALED, PACKED | SCALED, 70, 61, 332, HZ_BF16),
	   "%s: packed D4 with few and many rows", dev->name);
}

/* ---- Bits, errors ---------------------------------------------------------------------------- */

/* Any number of threads gives the same bits. */
static void test_threads(void)
{
	enum { ROWS = 300, K = 4096, BATCH = 40 };
	static float x[K * BATCH], y[2][ROWS * BATCH];
	static uint8_t codes[ROWS * K / 4 * 2];
	static const int batches[] = {1, 3, BATCH};
	static const int tables[] = {0, HZ_U8, HZ_F32};

	for (int i = 0; i < K * BATCH; i++)
		x[i] = (float)rnd_normal(&rnd);
	for (int i = 0; i < (int)sizeof(codes); i++)
		codes[i] = (uint8_t)rnd_u64(&rnd);
	for (int i = 1; i < ndevs; i++) {
		int good = 1;

		if (!devs[i].again)
			continue;
		for (int c = 0; c < 9; c++) {
			const int batch = batches[c % 3];

			for (int n = 0; n < 2; n++) {
				struct dev *dev = &devs[i - n];
				hz_lattice *l = lattice_of(dev, 0);
				hz_vlut *v = open_vlut(dev, l, NULL, 0, tables[c / 3], 0, 0);
				hz_coded w = {.codes = hz_tensor_3d(codes, HZ_U8, HZ_CPU, ROWS,
								    K / 4, 2)};
				hz_tensor xt = hz_tensor_2d(x, HZ_F32, HZ_CPU, batch, K);
				hz_tensor yt = hz_tensor_2d(y[n], HZ_F32, HZ_CPU, batch, ROWS);

				if (hz_vlut_gemm(dev->ctx, v, &w, &xt, &yt) != HZ_OK)
					bail("hz_vlut_gemm: %s", hz_errmsg(dev->ctx));
				hz_vlut_close(v);
			}
			good &= same_bits(y[0], y[1], (size_t)(ROWS * batch), 4);
		}
		ok(good, "%s and %s: the same bits", devs[i - 1].name, devs[i].name);
	}
}

/* The documented accuracy of each table dtype, on normal numbers */
static void test_accuracy(struct dev *dev)
{
	enum { ROWS = 128, K = 2048 };
	static const struct {
		int table;
		double most;
	} kinds[] = {{HZ_U8, 7e-3}, {HZ_U16, 8e-5}, {0, 1e-3}, {HZ_F16, 6e-4}, {HZ_BF16, 5e-3}};

	for (int c = 0; c < 5; c++) {
		hz_lattice *l = lattice_of(dev, 0);
		hz_vlut *v = open_vlut(dev, l, NULL, 0, kinds[c].table, 0, 0);
		struct coded w = coded_new(dev, l, v, ROWS, K, 0);
		double *want = calloc(ROWS, 8), *got = calloc(ROWS, 8);
		float *x = calloc(K, 4), *y = malloc(ROWS * 4 + 2 * GUARD);
		struct area xa, ya = area_new(dev, ROWS * 4, 0);
		hz_tensor xt, yt = hz_tensor_1d(ya.data, HZ_F32, dev->device, ROWS);
		size_t bytes;

		for (int i = 0; i < K; i++)
			x[i] = (float)rnd_normal(&rnd);
		for (int i = 0; i < ROWS; i++) {
			for (int e = 0; e < K; e++)
				want[i] += w.values[i * K + e] * x[e];
		}
		area_put(dev, &xa, x, K * 4);
		xt = hz_tensor_1d(xa.data, HZ_F32, dev->device, K);
		if (RECORD(dev->ctx, product(dev->ctx, v, coded_view(&w, 0), &xt, &yt), &bytes) !=
			    HZ_OK ||
		    hz_reserve(dev->ctx, bytes) != HZ_OK ||
		    product(dev->ctx, v, &w.c, &xt, &yt) != HZ_OK)
			bail("hz_vlut_gemv: %s", hz_errmsg(dev->ctx));
		area_read(&ya, y);
		for (int i = 0; i < ROWS; i++)
			got[i] = y[GUARD / 4 + i];
		diag("%s: table %s: error %.3g", dev->name,
		     kinds[c].table ? hz_dtype_name(kinds[c].table) : "0",
		     norm_error(got, want, ROWS));
		ok(norm_error(got, want, ROWS) <= kinds[c].most, "%s: error of tables of %s",
		   dev->name, kinds[c].table ? hz_dtype_name(kinds[c].table) : "any kind");
		area_free(&xa);
		area_free(&ya);
		free(want);
		free(got);
		free(x);
		free(y);
		coded_free(&w);
		hz_vlut_close(v);
	}
}

static void test_errors(struct dev *dev)
{
	hz_context *ctx = dev->ctx;
	hz_lattice *l = lattice_of(dev, 0), *tl = lattice_of(dev, 1), *e8 = lattice_of(dev, 16),
		   *none = lattice_of(dev, 21), *a2 = lattice_of(dev, 12);
	hz_vlut *v = open_vlut(dev, l, NULL, 0, 0, 0, 0), *two = open_vlut(dev, l, l, 0, 0, 0, 0),
		*tv = open_vlut(dev, tl, NULL, 0, 0, 0, 0),
		*av = open_vlut(dev, a2, NULL, 0, 0, 0, 0), *got;
	struct area area = area_new(dev, 1 << 16, 0);
	char *p = area.data;
	hz_tensor t = hz_tensor_2d(p + 4096, HZ_U8, dev->device, 8, 16);
	hz_tensor x = hz_tensor_1d(p + 8192, HZ_F32, dev->device, 64);
	hz_tensor y = hz_tensor_1d(p + 16384, HZ_F32, dev->device, 8), bad;
	hz_tensor x2 = hz_tensor_2d(p + 8192, HZ_F32, dev->device, 3, 64);
	hz_tensor y2 = hz_tensor_2d(p + 16384, HZ_F32, dev->device, 8, 8);
	hz_coded w = {.codes = hz_tensor_3d(p, HZ_U8, dev->device, 8, 16, 2)}, c;
	hz_tensor over = hz_tensor_1d(p + 16384 + 64, HZ_F32, dev->device, 8);
	hz_vlut_opts o = {0};
	hz_packed packed;
	size_t bytes;

	REFUSED(HZ_EINVAL, "w is NULL", hz_vlut_open(ctx, &got, NULL, NULL, NULL));
	o.route = 3;
	REFUSED(HZ_EINVAL, "opts->route is 3", hz_vlut_open(ctx, &got, l, NULL, &o));
	o = (hz_vlut_opts){.table_dtype = HZ_S8};
	REFUSED(HZ_EDTYPE, "opts->table_dtype is s8", hz_vlut_open(ctx, &got, l, NULL, &o));
	o = (hz_vlut_opts){.table_dtype = HZ_F32};
	REFUSED(HZ_EDTYPE, "opts->table_dtype is f32", hz_vlut_open(ctx, &got, l, l, &o));
	REFUSED(HZ_ENOTSUP, "q^d <= 65536", hz_vlut_open(ctx, &got, none, NULL, &o));
	o = (hz_vlut_opts){.table_dtype = HZ_U8};
	REFUSED(HZ_ENOTSUP, "q^d <= 256", hz_vlut_open(ctx, &got, e8, NULL, &o));
	o = (hz_vlut_opts){.sum = HZ_F16};
	REFUSED(HZ_EDTYPE, "opts->sum is f16", hz_vlut_open(ctx, &got, l, NULL, &o));
	o = (hz_vlut_opts){.flags = 2};
	REFUSED(HZ_EINVAL, "opts->flags has unknown bits 0x2 (valid: HZ_VLUT_COMPENSATED)",
		 hz_vlut_open(ctx, &got, l, NULL, &o));
	o = (hz_vlut_opts){.flags = HZ_VLUT_COMPENSATED, .table_dtype = HZ_U8};
	REFUSED(HZ_EINVAL, "HZ_VLUT_COMPENSATED", hz_vlut_open(ctx, &got, l, NULL, &o));
	o = (hz_vlut_opts){.reserved = {1}};
	REFUSED(HZ_EINVAL, "reserved", hz_vlut_open(ctx, &got, l, NULL, &o));
	o = (hz_vlut_opts){.route = HZ_VLUT_TABLE};
	REFUSED(HZ_ENOTSUP, "no table of products", hz_vlut_open(ctx, &got, e8, e8, &o));
	REFUSED(HZ_EINVAL, "blocks of 8", hz_vlut_open(ctx, &got, l, e8, NULL));

	REFUSED(HZ_EINVAL, "vlut is NULL", hz_vlut_gemv(ctx, NULL, &w, &x, &y));
	REFUSED(HZ_EINVAL, "w is NULL", hz_vlut_gemv(ctx, v, NULL, &x, &y));
	REFUSED(HZ_EINVAL, "with a lattice of x: open one without it, or call hz_vlut_gemm2()",
		hz_vlut_gemv(ctx, two, &w, &x, &y));
	REFUSED(HZ_EINVAL, "without a lattice of x: open one with it, or call hz_vlut_gemm()",
		hz_vlut_gemm2(ctx, v, &w, &w, &y2));
	REFUSED(HZ_ESHAPE, "y.ndim is 2, must be 1, as x: y is [rows]",
		hz_vlut_gemv(ctx, v, &w, &x, &y2));
	REFUSED(HZ_ESHAPE, "x.ndim is 2, must be 1: x is [k]", hz_vlut_gemv(ctx, v, &w, &x2, &y2));
	REFUSED(HZ_ESHAPE, "y.ndim is 2, must be 1, as x: y is [.., batch, rows]",
		hz_vlut_gemm(ctx, v, &w, &x, &y2));
	bad = hz_tensor_nd(p + 8192, HZ_F32, dev->device, 0, NULL);
	REFUSED(HZ_ESHAPE, "x.ndim is 0, must be 1 or more: x is [.., batch, k]",
		hz_vlut_gemm(ctx, v, &w, &bad, &y2));
	REFUSED(HZ_ESHAPE, "y.shape[0] is 8, must be 3, as x: y is [.., batch, rows]",
		hz_vlut_gemm(ctx, v, &w, &x2, &y2));
	bad = hz_tensor_2d(p + 16384, HZ_F32, dev->device, 3, 9);
	REFUSED(HZ_ESHAPE, "y.shape[1] is 9, must be 8, the rows of w: y is [.., batch, rows]",
		hz_vlut_gemm(ctx, v, &w, &x2, &bad));
	bad = hz_tensor_1d(p + 16384, HZ_F32, dev->device, 9);
	REFUSED(HZ_ESHAPE, "y.shape[0] is 9", hz_vlut_gemv(ctx, v, &w, &x, &bad));
	bad = hz_tensor_1d(p + 8192, HZ_F32, dev->device, 60);
	REFUSED(HZ_ESHAPE, "vlut_gemv: x.shape[0] is 60, must be 61 to 64, what the 16 blocks of w "
		"hold: x is [k]", hz_vlut_gemv(ctx, v, &w, &bad, &y));
	bad = hz_tensor_2d(p + 8192, HZ_F32, dev->device, 64, 3);
	REFUSED(HZ_ESHAPE, "vlut_gemm: x.shape[1] is 3, must be 61 to 64, what the 16 blocks of w "
		"hold: x is [.., batch, k]", hz_vlut_gemm(ctx, v, &w, &bad, &y2));
	c = w;
	c.k = 63;
	REFUSED(HZ_ESHAPE, "x.shape[0] is 64, must be 63, the values of a row of w: x is [k]",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.k = INT64_MAX;
	REFUSED(HZ_ESHAPE, "must have 2305843009213693952 for 9223372036854775807 values",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	bad = hz_tensor_1d(p + 8192, HZ_F64, dev->device, 64);
	REFUSED(HZ_EDTYPE, "x.dtype is f64", hz_vlut_gemv(ctx, v, &w, &bad, &y));
	bad = hz_tensor_1d(p + 16384, HZ_S32, dev->device, 8);
	REFUSED(HZ_EDTYPE, "y.dtype is s32", hz_vlut_gemv(ctx, v, &w, &x, &bad));
	bad = hz_tensor_1d(p + 100, HZ_F32, dev->device, 8);
	REFUSED(HZ_EALIAS, "w", hz_vlut_gemv(ctx, v, &w, &x, &bad));
	bad = hz_tensor_1d(p + 8192, HZ_F32, dev->device, 8);
	REFUSED(HZ_EALIAS, "x", hz_vlut_gemv(ctx, v, &w, &x, &bad));
	c = w;
	c.codes.dtype = HZ_U16;
	REFUSED(HZ_EDTYPE, "w->codes.dtype is u16", hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.codes.shape[2] = 1;
	REFUSED(HZ_ESHAPE, "w->codes.shape[2] is 1", hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.use_levels = 3;
	REFUSED(HZ_EINVAL, "w->use_levels is 3", hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.t = &t;
	REFUSED(HZ_EINVAL, "w->t is given", hz_vlut_gemv(ctx, v, &c, &x, &y));
	REFUSED(HZ_EINVAL, "w->t is NULL", hz_vlut_gemv(ctx, tv, &w, &x, &y));
	bad = hz_tensor_2d(p + 4096, HZ_U8, dev->device, 8, 15);
	c.t = &bad;
	REFUSED(HZ_ESHAPE, "w->t.shape[1] is 15, must be 16, the blocks of a row of codes",
		hz_vlut_gemv(ctx, tv, &c, &x, &y));
	c = w;
	bad = hz_tensor_1d(p + 4096, HZ_F32, dev->device, 7);
	c.row_scale = &bad;
	REFUSED(HZ_ESHAPE, "w->row_scale.shape[0] is 7, must be 8, the rows of the matrix",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.reserved[1] = 1;
	REFUSED(HZ_EINVAL, "reserved", hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.activation = HZ_ACT_LEAKY;
	REFUSED(HZ_EINVAL, "w->activation is 2, must be 0", hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = w;
	c.codes = hz_tensor_2d(p, HZ_U64, dev->device, 8, 16);
	REFUSED(HZ_EDTYPE, "w->codes.dtype is u64, must be u8, the levels: hz_lattice_repack() makes "
		"them", hz_vlut_gemv(ctx, v, &c, &x, &y));
	if (hz_vlut_pack_bytes(ctx, v, &w, &bytes) || bytes > 8192)
		bail("hz_vlut_pack_bytes: %zu", bytes);
	REFUSED(HZ_EINVAL, "bytes is NULL", hz_vlut_pack_bytes(ctx, v, &w, NULL));
	REFUSED(HZ_EINVAL, "data is NULL", hz_vlut_pack(ctx, v, &w, NULL, bytes, &packed));
	REFUSED(HZ_EINVAL, "multiple of 64 bytes",
		hz_vlut_pack(ctx, v, &w, p + 16385, bytes, &packed));
	REFUSED(HZ_EINVAL, "packed is NULL", hz_vlut_pack(ctx, v, &w, p + 16384, bytes, NULL));
	REFUSED(HZ_EINVAL, "must be at least",
		hz_vlut_pack(ctx, v, &w, p + 16384, bytes - 1, &packed));
	REFUSED(HZ_EALIAS, "data", hz_vlut_pack(ctx, v, &w, p, bytes, &packed));
	if (hz_vlut_pack(ctx, v, &w, p + 16384, bytes, &packed))
		bail("hz_vlut_pack: %s", hz_errmsg(ctx));
	c = (hz_coded){.packed = &packed, .rows = 8, .k = 60};
	REFUSED(HZ_ESHAPE, "w->k is 60, must be 0 or 64, as packed",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = (hz_coded){.packed = &packed, .rows = 9};
	REFUSED(HZ_ESHAPE, "w->rows is 9, must be 0 to 8, the rows packed",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = (hz_coded){.packed = &packed};
	REFUSED(HZ_EINVAL, "w->packed is of another lattice", hz_vlut_gemv(ctx, tv, &c, &x, &y));
	REFUSED(HZ_EALIAS, "w", hz_vlut_gemv(ctx, v, &c, &x, &over));
	REFUSED(HZ_EINVAL, "w->packed is given", hz_vlut_pack_bytes(ctx, v, &c, &bytes));
	c.codes = w.codes;
	REFUSED(HZ_EINVAL, "must be one of them", hz_vlut_gemv(ctx, v, &c, &x, &y));
	c = (hz_coded){.packed = &packed};
	packed.shape[0] = 9;
	REFUSED(HZ_EINVAL, "w->packed is not as hz_vlut_pack() filled it",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	packed = (hz_packed){0};
	REFUSED(HZ_EINVAL, "w->packed is not as hz_vlut_pack() filled it",
		hz_vlut_gemv(ctx, v, &c, &x, &y));
	y2.shape[0] = 7;
	REFUSED(HZ_ESHAPE, "y.shape[0] is 7, must be 8, the rows of x",
		hz_vlut_gemm2(ctx, two, &w, &w, &y2));
	c = w;
	c.k = 60;
	REFUSED(HZ_ESHAPE, "w has 16 blocks, must have 15 for 60 values",
		hz_vlut_gemm2(ctx, two, &c, &w, &y2));
	REFUSED(HZ_ESHAPE, "x has 16 blocks, must have 15 for 60 values",
		hz_vlut_gemm2(ctx, two, &w, &c, &y2));
	c = w;
	c.codes.shape[1] = 15;
	REFUSED(HZ_ESHAPE, "x has rows of 60 values, must be 64, as w",
		hz_vlut_gemm2(ctx, two, &w, &c, &y2));
	c.codes.shape[1] = INT64_C(1) << 62;
	c.codes.stride[1] = 0;
	REFUSED(HZ_ESHAPE, "too large", hz_vlut_pack_bytes(ctx, v, &c, &bytes));
	/* More products than 63 bits count, in a recording, which needs no memory */
	c = (hz_coded){.codes = hz_tensor_3d(NULL, HZ_U8, dev->device, 1 << 20, 1 << 20, 2)};
	bad = hz_tensor_2d(NULL, HZ_F32, dev->device, 1 << 30, 1 << 22);
	over = hz_tensor_2d(NULL, HZ_F32, dev->device, 1 << 30, 1 << 20);
	is_int(hz_record_begin(ctx), HZ_OK, "recording");
	REFUSED(HZ_ESHAPE, "vlut_gemm: x is too large: the number of products overflows",
		hz_vlut_gemm(ctx, v, &c, &bad, &over));
	over.shape[0] = 1 << 20;
	REFUSED(HZ_ESHAPE, "vlut_gemm2: x is too large: the number of products overflows",
		hz_vlut_gemm2(ctx, two, &c, &c, &over));
	is_int(hz_record_end(ctx, &bytes), HZ_OK, "recorded");
	c = (hz_coded){.codes = hz_tensor_3d(p, HZ_U8, dev->device, 8, 32, 2)};
	bad = hz_tensor_1d(p + 16384, HZ_S32, dev->device, 8);
	x.dtype = HZ_S8;
	REFUSED(HZ_EDTYPE, "y.dtype is s32", hz_vlut_gemv(ctx, av, &c, &x, &bad));
	area_free(&area);
	hz_vlut_close(v);
	hz_vlut_close(two);
	hz_vlut_close(tv);
	hz_vlut_close(av);
	hz_vlut_close(NULL);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_vlut_gemm);
	dev_open_routes(HZI_OP_vlut_gemm2);
	for (int i = 0; i < ndevs; i++) {
		quick = tap_quick() || is_routed(&devs[i]);
		test_routes(&devs[i]);
		test_long(&devs[i]);
		if (devs[i].again)
			continue;
		test_sizes(&devs[i]);
		if (!tap_quick() || devs[i].device >= HZ_CUDA || !is_routed(&devs[i])) {
			test_bytes(&devs[i]);
			test_d4_bitfield(&devs[i]);
			test_e8_bitplane(&devs[i]);
		}
		test_far(&devs[i]);
		if (devs[i].device >= HZ_CUDA) {
			test_tables(&devs[i]);
			test_batches(&devs[i]);
			test_splits(&devs[i]);
			test_aligned(&devs[i]);
		}
		test_special(&devs[i]);
		if (!is_routed(&devs[i]))
			test_leading(&devs[i]);
		test_two_sided(&devs[i]);
		test_accuracy(&devs[i]);
	}
	test_errors(&devs[0]);
	test_threads();
	diag("%ld cases", cases);
	close_lattices();
	dev_close_all();
	return done_testing();
}
