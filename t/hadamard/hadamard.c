/*
 * hadamard.c - hz_hadamard() by every implementation, against its definition
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <fenv.h>

#include "cpu/hadamard/kern.h"
#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/core/dev.h"

static uint64_t rnd;
static int quick;
static long cases;

/* ---- A case: shapes, strides and options, the same for every context ------------------------- */

enum values { RANDOM, INTEGERS, SPARSE_NAN, TINY, LARGE, OVERFLOWS };

struct tcase {
	int ndim, x_dtype, y_dtype;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	int skew;			/* elements from a 64-byte boundary to the first one */
	int in_place;
	enum values values;
	int64_t calm;			/* elements at the beginning with smaller values */
	int below;			/* OVERFLOWS: the smaller, the earlier sums overflow */
	hz_hadamard_opts o;		/* pre and post on the host */
};

/* The dimension that opts->axis means: HZ_AXIS(i), or 0, the last */
static int axis_of(const struct tcase *c)
{
	const int axis = c->o.axis;

	return axis > 0 ? axis - 1 : c->ndim + (axis ? axis : -1);
}

/* Steps at[] to the next item of all dimensions but axis; 0 at the end. */
static int next_item(const struct tcase *c, int axis, int64_t *at)
{
	int d;

	for (d = c->ndim - 1; d >= 0; d--) {
		if (d == axis)
			continue;
		if (++at[d] < c->shape[d])
			return 1;
		at[d] = 0;
	}
	return 0;
}

static int64_t offset_of(const struct tcase *c, const int64_t *stride, const int64_t *at)
{
	int64_t offset = 0;
	int d;

	for (d = 0; d < c->ndim; d++)
		offset += stride[d] * at[d];
	return offset;
}

static hz_tensor view_of(const struct tcase *c, void *data, int dtype, int device,
			 const int64_t *stride)
{
	hz_tensor t = hz_tensor_nd(data, dtype, device, c->ndim, c->shape);

	memcpy(t.stride, stride, sizeof(t.stride));
	return t;
}

/*
 * TINY and LARGE are near the smallest and the largest normal number of the dtypes of x and y. With
 * OVERFLOWS intermediate sums are beyond f32, and so is a part of the results.
 */
static double value_of(const struct tcase *c)
{
	int f16 = c->x_dtype == HZ_F16 || c->y_dtype == HZ_F16;
	enum values kind = c->values;

	if (kind == INTEGERS)
		return (double)(rnd_below(&rnd, 17) - 8);
	if (kind == SPARSE_NAN && rnd_below(&rnd, 100) == 0)
		return rnd_below(&rnd, 2) ? NAN : INFINITY;
	if (kind == TINY)
		return ldexp(rnd_normal(&rnd), f16 ? -15 : -127);
	if (kind == OVERFLOWS)
		return fmin(fmax(ldexp(rnd_normal(&rnd), 126 - c->below), -0x1p127), 0x1p127);
	if (kind == LARGE)
		return ldexp(rnd_normal(&rnd), f16 ? 14 : 120);
	return rnd_normal(&rnd);
}

static void describe(const struct tcase *c, const struct dev *dev)
{
	char text[512];
	size_t n;
	int d;

	n = (size_t)snprintf(text, sizeof(text), "%s: %s to %s, skew %d%s, shape", dev->name,
			     hz_dtype_name(c->x_dtype), hz_dtype_name(c->y_dtype), c->skew,
			     c->in_place ? ", in place" : "");
	for (d = 0; d < c->ndim; d++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, " %lld (%lld %lld)",
				      (long long)c->shape[d], (long long)c->x_stride[d],
				      (long long)c->y_stride[d]);
	diag("%s", text);
	describe_opts(&c->o);
}

/* Whether a GPU must give the CPU's bits: in f32 Sylvester transforms. Others are held to the
 * bound, and may be NaN where the CPU has Inf. */
static int is_exact(const struct dev *dev, const struct tcase *c, const struct ref_op *op)
{
	return dev->device == HZ_CPU || (c->x_dtype == HZ_F32 && c->y_dtype == HZ_F32 && !op->base);
}

/* Runs the case on one context from the images and compares with the expected image. */
static int run_case(struct dev *dev, const struct tcase *c, const struct ref_op *op, size_t x_bytes,
		    size_t y_bytes, size_t x_skew, size_t y_skew, int64_t x_low, int64_t y_low,
		    const unsigned char *x_image, const unsigned char *y_before,
		    const unsigned char *y_want, const float *y_f32)
{
	struct area ax = { 0 }, ay, apre = { 0 }, apost = { 0 };
	size_t x_size = hz_dtype_size(c->x_dtype), y_size = hz_dtype_size(c->y_dtype);
	int axis = axis_of(c), good = 1, status;
	unsigned char *got, *got_data, *want_data;
	int64_t at[HZ_MAXDIM] = { 0 }, i, item = 0, y0;
	hz_hadamard_opts o = c->o;
	hz_tensor x, y, pre, post;

	ay = area_new(dev, y_bytes, y_skew);
	area_write(&ay, c->in_place ? x_image : y_before);
	y = view_of(c, (char *)ay.data - y_low * (int64_t)y_size, c->y_dtype, dev->device,
		    c->y_stride);
	if (c->in_place) {
		x = y;
	} else {
		ax = area_new(dev, x_bytes, x_skew);
		area_write(&ax, x_image);
		x = view_of(c, (char *)ax.data - x_low * (int64_t)x_size, c->x_dtype, dev->device,
			    c->x_stride);
	}
	if (o.pre) {
		pre = to_device(dev, o.pre, &apre);
		o.pre = &pre;
	}
	if (o.post) {
		post = to_device(dev, o.post, &apost);
		o.post = &post;
	}
	status = hz_hadamard(dev->ctx, &x, &y, &o);
	if (status == HZ_OK)
		status = hz_sync(dev->ctx);
	if (status != HZ_OK) {
		diag("status %d: %s", status, hz_errmsg(dev->ctx));
		good = 0;
		goto out;
	}

	got = malloc(ay.total);
	area_read(&ay, got);
	if (memcmp(got, y_want, ay.total) != 0) {
		/* NaNs may have any sign and payload. Values that need not be exact are only held
		 * to the bound. */
		got_data = got + GUARD + y_skew - y_low * (int64_t)y_size;
		want_data = (unsigned char *)(uintptr_t)y_want + (got_data - got);
		do {
			double error = 0, worst = 0;
			double *x_row = malloc((size_t)op->n * 2 * sizeof(double));

			at[axis] = 0;
			y0 = offset_of(c, c->y_stride, at);
			for (i = 0; i < op->n; i++) {
				int64_t yi = y0 + i * c->y_stride[axis];
				double g = ref_get(c->y_dtype, got_data, yi);
				double w = ref_get(c->y_dtype, want_data, yi);
				int64_t xi = offset_of(c, c->x_stride, at) + i * c->x_stride[axis];

				x_row[i] = ref_get(c->x_dtype, x_image + GUARD + x_skew -
						   x_low * (int64_t)x_size, xi);
				x_row[op->n + i] = (double)y_f32[item * op->n + i];
				if ((isnan(g) && isnan(w)) || g == w ||
				    (!is_exact(dev, c, op) && !isfinite(g) == !isfinite(w))) {
					if (isfinite(g))
						error += (g - x_row[op->n + i]) *
							 (g - x_row[op->n + i]);
					memcpy(got_data + yi * (int64_t)y_size,
					       want_data + yi * (int64_t)y_size, y_size);
				}
			}
			if (!is_exact(dev, c, op)) {
				worst = ref_bound(op, x_row, x_row + op->n, c->y_dtype) +
					ref_bound(op, x_row, x_row + op->n, HZ_F32);
				if (sqrt(error) > worst && tap_describe()) {
					diag("item %lld: error %g, allowed %g", (long long)item,
					     sqrt(error), worst);
					good = 0;
				}
			}
			free(x_row);
			item++;
		} while (next_item(c, axis, at));
		good &= same_bits(got, y_want, ay.total, 1);
		if (!good) {
			size_t first = 0;

			while (first < ay.total && got[first] == y_want[first])
				first++;
			diag("byte %zu of %zu, %lld elements from the first", first, ay.total,
			     ((long long)first - (got_data - got)) / (long long)y_size);
		}
	}
	free(got);
	if (!c->in_place) {
		got = malloc(ax.total);
		area_read(&ax, got);
		if (!same_bits(got, x_image, ax.total, 1)) {
			diag("x was written to");
			good = 0;
		}
		free(got);
	}
out:
	area_free(&ay);
	if (ax.dev)
		area_free(&ax);
	if (apre.dev)
		area_free(&apre);
	if (apost.dev)
		area_free(&apost);
	if (!good)
		describe(c, dev);
	return good;
}

/*
 * Checks the case on contexts first .. last - 1 against the definition in f32 with fixed order. If
 * rows are short enough, also checks that definition against the dense matrix in double, with the
 * contract's bound.
 */
static int check_case_on(const struct tcase *c, int first, int last)
{
	size_t x_size = hz_dtype_size(c->x_dtype), y_size = hz_dtype_size(c->y_dtype);
	size_t x_skew = (size_t)c->skew * x_size, y_skew = (size_t)c->skew * y_size;
	size_t x_bytes, y_bytes;
	int64_t x_low, x_high, y_low, y_high, at[HZ_MAXDIM] = { 0 }, i, items = 1, item = 0, n;
	unsigned char *x_image, *y_before, *y_want, *x_data, *y_data;
	int axis = axis_of(c), d, good = 1, shift = c->values >= LARGE ? 60 : 0;
	struct ref_op op;
	float *y_f32, *row;
	double *dense;

	cases++;
	n = c->shape[axis];
	if (ref_op_init(&op, n, &c->o))
		bail("a case that no plan makes: n %lld plan %d", (long long)n, c->o.plan);
	reach(c->ndim, c->shape, c->x_stride, &x_low, &x_high);
	reach(c->ndim, c->shape, c->y_stride, &y_low, &y_high);
	x_bytes = (size_t)(x_high - x_low) * x_size;
	y_bytes = (size_t)(y_high - y_low) * y_size;
	x_image = image_new(x_bytes, x_skew, &x_data);
	y_before = image_new(y_bytes, y_skew, &y_data);
	x_data -= x_low * (int64_t)x_size;
	for (d = 0; d < c->ndim; d++)
		items *= d == axis ? 1 : c->shape[d];
	y_f32 = malloc((size_t)(items * n) * sizeof(*y_f32));
	row = malloc((size_t)n * sizeof(*row));
	dense = malloc((size_t)n * 3 * sizeof(*dense));
	do {
		int64_t x0;

		at[axis] = 0;
		x0 = offset_of(c, c->x_stride, at);
		for (i = 0; i < n; i++)
			ref_put(c->x_dtype, x_data, x0 + i * c->x_stride[axis],
				i < c->calm ? ldexp(rnd_normal(&rnd), 100) : value_of(c));
	} while (next_item(c, axis, at));
	y_want = malloc(GUARD + y_skew + y_bytes + GUARD);
	memcpy(y_want, c->in_place ? x_image : y_before, GUARD + y_skew + y_bytes + GUARD);
	y_data = y_want + GUARD + y_skew - y_low * (int64_t)y_size;
	do {
		int64_t x0, y0;

		at[axis] = 0;
		x0 = offset_of(c, c->x_stride, at);
		y0 = offset_of(c, c->y_stride, at);
		for (i = 0; i < n; i++) {
			dense[i] = ref_get(c->x_dtype, x_data, x0 + i * c->x_stride[axis]);
			row[i] = (float)ldexp(dense[i], -shift);
		}
		ref_ordered(&op, row, y_f32 + item * n);
		for (i = 0; i < n; i++)
			y_f32[item * n + i] = (float)ldexp((double)y_f32[item * n + i], shift);
		for (i = 0; i < n; i++)
			ref_put(c->y_dtype, y_data, y0 + i * c->y_stride[axis],
				(double)y_f32[item * n + i]);
		if (n <= 1024 && item < 2 && (c->values == RANDOM || c->values == INTEGERS)) {
			double e = 0, bound;

			ref_dense(&op, dense, dense + n);
			for (i = 0; i < n; i++) {
				double y = ref_get(c->y_dtype, y_data, y0 + i * c->y_stride[axis]);

				if (isfinite(y))
					e += (y - dense[n + i]) * (y - dense[n + i]);
			}
			bound = ref_bound(&op, dense, dense + n, c->y_dtype);
			if (sqrt(e) > bound) {
				diag("the ordered definition is %g off the dense one, allowed %g",
				     sqrt(e), bound);
				good = 0;
			}
		}
		item++;
	} while (next_item(c, axis, at));
	for (d = first; d < last; d++) {
		/* The header says where GPUs do not. */
		if (c->values == OVERFLOWS && devs[d].device != HZ_CPU)
			continue;
		good &= run_case(&devs[d], c, &op, x_bytes, y_bytes, x_skew, y_skew, x_low, y_low,
				 x_image, y_before, y_want, y_f32);
	}
	ref_op_free(&op);
	free(x_image);
	free(y_before);
	free(y_want);
	free(y_f32);
	free(row);
	free(dense);
	return good;
}

static int check_case(const struct tcase *c)
{
	return check_case_on(c, 0, ndevs);
}

static struct tcase rows_case(int64_t rows, int64_t n, int x_dtype, int y_dtype)
{
	struct tcase c = { .ndim = 2, .x_dtype = x_dtype, .y_dtype = y_dtype,
			   .shape = { rows, n } };

	lay_out(2, c.shape, 0, c.x_stride);
	lay_out(2, c.shape, 0, c.y_stride);
	return c;
}

/* ---- Groups of cases ------------------------------------------------------------------------- */

static void test_sizes(void)
{
	int64_t n;
	int i, j, good, k;

	for (n = 1; n <= (quick ? 4096 : 65536); n *= 2) {
		good = 1;
		for (k = 0; k < 9; k++) {
			struct tcase c;

			i = k / 3;
			j = k % 3;
			if (n > 4096 && i != j)
				continue;
			c = rows_case(n >= 4096 ? 2 : n >= 512 ? 3 : 7, n, floats[i], floats[j]);
			good &= check_case(&c);
			if (i != j)
				continue;
			c.in_place = 1;
			good &= check_case(&c);
			c.in_place = 0;
			c.skew = 1;
			good &= check_case(&c);
		}
		ok(good, "rows of %lld, all dtypes, in place, off alignment", (long long)n);
	}
}

/* n signs on the host; the caller frees *memory. */
static hz_tensor random_signs_of(int64_t n, void **memory)
{
	*memory = malloc((size_t)(n + 7) / 8);
	hz_hadamard_signs(*memory, n, rnd_u64(&rnd));
	return hz_tensor_1d(*memory, HZ_U8, HZ_CPU, (n + 7) / 8);
}

/* The row counts at which a kernel's last block or warp is partly empty. */
static void test_row_counts(void)
{
	static const int64_t counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
					  63, 65, 8193, 20004, 65540 };
	static const int64_t lengths[] = { 1, 2, 8, 32, 64, 128, 512 };
	int i, k, good;

	for (k = 0; k < (int)(sizeof(lengths) / sizeof(*lengths)); k++) {
		good = 1;
		for (i = 0; i < (int)(sizeof(counts) / sizeof(*counts)); i++) {
			int dtype = floats[(i + k) % 3];
			struct tcase c = rows_case(counts[i], lengths[k], dtype, dtype);

			if (counts[i] * lengths[k] > (quick ? 70000 : 5000000) && counts[i] > 100)
				continue;
			c.in_place = i % 2;
			good &= check_case(&c);
		}
		ok(good, "rows of %lld: 1 to 17, 63, 65, 8193, 20004 and 65540 of them",
		   (long long)lengths[k]);
	}
}

/* Long rows, more of them than a GPU runs concurrently, with and without signs */
static void test_many(void)
{
	int64_t n, rows;
	int t, good;

	for (n = 8192; n <= 65536; n *= 2) {
		good = 1;
		for (t = 0; t < 3; t++) {
			void *pre_memory, *post_memory;
			struct tcase c;
			hz_tensor pre, post;

			rows = t ? 302 * 16384 / n : 3;
			if (quick)
				rows = 3;
			c = rows_case(rows, n, floats[t], floats[t]);
			c.in_place = n == 32768;
			good &= check_case(&c);
			c = rows_case(5, n, floats[t], floats[t]);
			c.in_place = n != 32768;
			pre = random_signs_of(n, &pre_memory);
			post = random_signs_of(n, &post_memory);
			c.o.pre = &pre;
			good &= check_case(&c);
			c.o.post = &post;
			good &= check_case(&c);
			c.o.pre = NULL;
			good &= check_case(&c);
			c.o.post = NULL;
			c.values = SPARSE_NAN;
			good &= check_case(&c);
			c.values = TINY;
			good &= check_case(&c);
			c.values = INTEGERS;
			c.o.flags = HZ_HADAMARD_RAW;
			good &= check_case(&c);
			free(pre_memory);
			free(post_memory);
		}
		ok(good, "many rows of %lld", (long long)n);
	}
}

static void test_columns(void)
{
	static const int64_t widths[] = { 1, 2, 3, 8, 16, 15, 17, 31, 72, 64, 33, 100, 515, 264 };
	static const int64_t lengths[] = { 1, 2, 4, 16, 32, 64, 128, 256, 512, 1024, 4096 };
	int i, k, t, good;

	for (k = 0; k < (int)(sizeof(lengths) / sizeof(*lengths)); k++) {
		good = 1;
		for (i = 0; i < (int)(sizeof(widths) / sizeof(*widths)); i++) {
			for (t = 0; t < 3; t++) {
				int64_t blocks = lengths[k] <= 256 ? 3 : 1;
				struct tcase c = rows_case(blocks * lengths[k], widths[i],
							   floats[t], floats[(t + i % 2) % 3]);

				if (lengths[k] >= 1024 && (widths[i] > 64 || quick) && t)
					continue;
				c.o.axis = HZ_AXIS(0);
				c.o.block = lengths[k];
				c.in_place = i % 2 == 0;
				good &= check_case(&c);
				if (i % 3)
					continue;
				c.in_place = 0;		/* not contiguous */
				lay_out(2, c.shape, 5, c.x_stride);
				lay_out(2, c.shape, 11, c.y_stride);
				good &= check_case(&c);
				lay_out(2, c.shape, 8, c.x_stride);
				lay_out(2, c.shape, 24, c.y_stride);
				good &= check_case(&c);
			}
		}
		ok(good, "columns in blocks of %lld, 1 to 515 wide", (long long)lengths[k]);
	}
}

/* The default plan makes any length: tail blocks down to 1. */
static void test_any_length(void)
{
	static const int64_t longer[] = { 214, 387, 1000, 1023, 4095 };
	int i, t, columns, good = 1;

	for (i = 1; i <= 64 + (int)(sizeof(longer) / sizeof(*longer)); i++) {
		const int64_t n = i <= 64 ? i : longer[i - 65];

		for (t = 0; t < 3; t++) {
			for (columns = 0; columns < 2; columns++) {
				struct tcase c = rows_case(columns ? n : 5, columns ? 5 : n,
							   floats[t], floats[(t + columns) % 3]);

				c.o.axis = columns ? HZ_AXIS(0) : 0;
				c.o.flags = i % 2 ? HZ_HADAMARD_TRANSPOSE : 0;
				good &= check_case(&c);
			}
		}
	}
	ok(good, "rows and columns of 1 to 64, 214, 387, 1000, 1023 and 4095 by default");
}

/* Permutes dimensions, adds gaps, reverses dimensions; no two elements overlap. */
static void random_strides(const struct tcase *c, int64_t *stride)
{
	int order[HZ_MAXDIM], d, other, swap;
	int64_t step = 1 + (rnd_below(&rnd, 4) == 0 ? rnd_below(&rnd, 3) : 0);

	for (d = 0; d < c->ndim; d++)
		order[d] = d;
	if (rnd_below(&rnd, 3) == 0) {
		for (d = c->ndim - 1; d > 0; d--) {
			other = (int)rnd_below(&rnd, d + 1);
			swap = order[d];
			order[d] = order[other];
			order[other] = swap;
		}
	}
	for (d = c->ndim - 1; d >= 0; d--) {
		stride[order[d]] = rnd_below(&rnd, 8) == 0 ? -step : step;
		step *= c->shape[order[d]];
		if (rnd_below(&rnd, 4) == 0)
			step += rnd_below(&rnd, 9);
	}
}

/* Random cases */
static void test_random(int count)
{
	static const double scales[] = { 0, 1, -1, 0.5, 3.1415926, 1e-3 };
	int i, good = 1;

	for (i = 0; i < count; i++) {
		struct tcase c = { .ndim = 1 + (int)rnd_below(&rnd, HZ_MAXDIM) };
		struct diags diags;
		int64_t block, n;
		int axis;

		axis = (int)rnd_below(&rnd, c.ndim);
		c.o.axis = rnd_below(&rnd, 2) ? HZ_AXIS(axis) : HZ_AXIS(axis - c.ndim);
		if (axis == c.ndim - 1 && rnd_below(&rnd, 2))
			c.o.axis = 0;
		block = random_block(&rnd, &c.o);
		n = block * (1 + (rnd_below(&rnd, 2) ? rnd_below(&rnd, 4) : 0));
		if (n != block || rnd_below(&rnd, 2))
			c.o.block = block;
		random_sizes(&rnd, c.ndim, axis, n, quick ? 2000 : 6000, c.shape);
		c.x_dtype = floats[rnd_below(&rnd, 3)];
		c.y_dtype = rnd_below(&rnd, 2) ? c.x_dtype : floats[rnd_below(&rnd, 3)];
		c.skew = (int)(rnd_below(&rnd, 2) ? rnd_below(&rnd, 16) : 0);
		if (rnd_below(&rnd, 3) == 0) {
			lay_out(c.ndim, c.shape, 0, c.x_stride);
			lay_out(c.ndim, c.shape, 0, c.y_stride);
		} else {
			random_strides(&c, c.x_stride);
			random_strides(&c, c.y_stride);
		}
		if (c.x_dtype == c.y_dtype && rnd_below(&rnd, 3) == 0) {
			memcpy(c.y_stride, c.x_stride, sizeof(c.y_stride));
			c.in_place = 1;
		}
		c.values = rnd_below(&rnd, 3) ? RANDOM : rnd_below(&rnd, 2) ? INTEGERS : TINY;
		/* a GPU may round the largest finite number to Inf, or Inf to it */
		if (rnd_below(&rnd, 10) == 0 && !tap_cuda())
			c.values = LARGE;
		c.o.factor = scales[rnd_below(&rnd, 6)];
		c.o.flags = (uint32_t)rnd_below(&rnd, 4);
		random_diags(&rnd, &c.o, n, block, &diags);
		if (!check_case(&c)) {
			diag("random case %d", i);
			good = 0;
		}
		free_diags(&diags);
	}
	ok(good, "%d random cases: dimensions, strides, plans, diagonals, flags", count);
}

/* Plans with a true order: all orders of a kind, with a small and a larger power of two */
static void test_orders(void)
{
	static const int orders[] = { 12, 20, 24, 28, 36, 40, 44, 48, 52, 56, 60, 68, 76, 84, 92,
				      100,
				      108, 116, 124, 140, 148, 156, 164, 172, 180, 212, 232, 252 };
	static const int64_t models[] = { 1536, 2560, 3584, 5120, 6144, 11008, 14336, 17408 };
	int i, kind, good;

	for (kind = HZ_BASE_AUTO; kind <= HZ_BASE_QUIP; kind++) {
		good = 1;
		for (i = 0; i < (int)(sizeof(orders) / sizeof(*orders)); i++) {
			int power;

			if (hz_hadamard_base(kind, orders[i], NULL) < 0)
				continue;
			for (power = 1; power <= 16; power *= 4) {
				struct tcase c = rows_case(3, orders[i] * power, HZ_F32, HZ_F32);

				c.o.plan = HZ_PLAN_TRUE;
				c.o.base = kind;
				c.o.order = orders[i];
				good &= check_case(&c);
				c.o.flags = HZ_HADAMARD_TRANSPOSE;
				c.in_place = 1;
				c.x_dtype = c.y_dtype = floats[1 + i % 2];
				good &= check_case(&c);
				c.o.axis = HZ_AXIS(0);
				c.shape[0] = orders[i] * power;
				c.shape[1] = 19;
				lay_out(2, c.shape, 0, c.x_stride);
				lay_out(2, c.shape, 0, c.y_stride);
				if (power < 16)
					good &= check_case(&c);
			}
		}
		ok(good, "true orders of base %d, rows and columns, transposed too", kind);
	}
	good = 1;
	for (i = 0; i < (quick ? 2 : 8); i++) {
		struct tcase c = rows_case(2, models[i], floats[i % 3], floats[i % 3]);

		c.o.plan = HZ_PLAN_TRUE;
		c.in_place = i % 2;
		good &= check_case(&c);
	}
	ok(good, "widths of models: 1536 to 17408 as true orders");
}

/* Enough work for several threads, and rows that exceed the caches */
static void test_large(void)
{
	int64_t n;
	struct tcase c;
	int good;

	if (quick) {
		skip(4, "quick");
		return;
	}
	c = rows_case(700, 1000, HZ_F32, HZ_F32);
	c.o.axis = HZ_AXIS(0);
	c.shape[0] = 1024;
	lay_out(2, c.shape, 0, c.x_stride);
	lay_out(2, c.shape, 0, c.y_stride);
	good = check_case(&c);
	c.o.block = 128;
	c.in_place = 1;
	good &= check_case(&c);
	c.x_dtype = c.y_dtype = HZ_BF16;
	good &= check_case(&c);
	ok(good, "1024 x 1000 columns");

	c = rows_case(96, 12 * 1024, HZ_F32, HZ_F32);
	c.o.plan = HZ_PLAN_TRUE;
	good = check_case(&c);
	c = rows_case(400, 1040, HZ_F16, HZ_F32);
	good &= check_case(&c);
	ok(good, "large true and greedy orders");

	if (tap_cuda()) {
		skip(2, "rows of more than 65536 are for the CPU");
		return;
	}
	good = 1;
	for (n = 1 << 17; n <= 1 << 20; n *= 2) {
		c = rows_case(n == 1 << 17 ? 2 : 1, n, HZ_F32, HZ_F32);
		c.in_place = n != 1 << 18;
		good &= check_case(&c);
		c.in_place = 0;
		c.x_dtype = n == 1 << 18 ? HZ_BF16 : HZ_F16;
		c.y_dtype = n == 1 << 19 ? HZ_F32 : c.x_dtype;
		good &= check_case_on(&c, ndevs - 2, ndevs);
	}
	ok(good, "one row of 2^17 to 2^20");
	c = rows_case(1, 1 << 22, HZ_F32, HZ_F32);
	good = check_case_on(&c, ndevs - 1, ndevs);
	c = rows_case(1, 12 << 16, HZ_F32, HZ_F32);
	c.o.plan = HZ_PLAN_TRUE;
	good &= check_case_on(&c, ndevs - 2, ndevs);
	ok(good, "one row of 2^22 and of 12 x 2^16");
}

/* Contiguous rows of m 2^k, m = 12, 20, 28, 36 to 60, all k, with every kind of base matrix */
static void test_base_rows(void)
{
	static const int bases[] = {HZ_BASE_DAO, HZ_BASE_QUIP, HZ_BASE_PALEY1, HZ_BASE_WILLIAMSON};
	static const int orders[] = {12, 20, 28, 40, 36, 44, 48, 52, 60};
	int k, t, good = 1;

	for (int i = 0; i < (int)(sizeof(orders) / sizeof(*orders)); i++) {
		const int m = orders[i];
		/* Those above 28 have kernels for 16 bits from m 2^7 on, 40 also for f32. */
		const int least = m <= 40 ? 5 : 7;

		for (k = least; m << k <= 65536 && k <= (quick ? 8 : m > 28 ? 10 : 12); k++) {
			for (t = 0; t < 3; t++) {
				if (m > 28 && (k < 7 || quick) && t && m != 40)
					continue;
				if (m > 28 && m != 40 && floats[t] == HZ_F32)
					continue;

				struct tcase c = rows_case(k < 9 ? 9 : 3, (int64_t)m << k,
							   floats[t], floats[t]);

				c.o.plan = HZ_PLAN_TRUE;
				c.o.order = m;
				c.in_place = k % 2;
				good &= check_case(&c);
				c.o.base = t == 0 ? HZ_BASE_PALEY2
					 : t == 1 ? HZ_BASE_DAO : HZ_BASE_QUIP;
				if (hz_hadamard_base(c.o.base, m, NULL) < 0)
					c.o.base = HZ_BASE_AUTO;
				c.o.flags = HZ_HADAMARD_TRANSPOSE;
				c.values = k % 3 == 0 ? SPARSE_NAN : k % 3 == 1 ? TINY : INTEGERS;
				good &= check_case(&c);
				if (t || hz_hadamard_base(bases[(k + i) % 4], m, NULL) < 0)
					continue;
				/* f32 has kernels for Paley's second matrices and for others. */
				c.o.base = bases[(k + i) % 4];
				good &= check_case(&c);
				c.o.flags = 0;
				good &= check_case(&c);
			}
		}
	}
	ok(good, "12 2^k, 20 2^k, 28 2^k, 36 2^k to 60 2^k contiguous, any base matrix");
}

/* Few and many rows of m 2^k with signs on both sides, of orders with and without kernels */
static void test_base_signs(void)
{
	static const struct {
		int m, k;
		int64_t rows;
	} t[] = {
		{12, 6, 1}, {12, 5, 7}, {12, 7, 70}, {28, 5, 5}, {36, 3, 150}, {36, 4, 3},
		{172, 3, 2}, {172, 6, 1}, {28, 9, 2}, {20, 8, 66}, {12, 2, 4},
	};
	int good = 1;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		const int64_t n = (int64_t)t[i].m << t[i].k;
		struct tcase c = rows_case(t[i].rows, n, floats[i % 3], floats[(i + i / 3) % 3]);
		void *pre_memory, *post_memory;
		hz_tensor pre = random_signs_of(n, &pre_memory);
		hz_tensor post = random_signs_of(n, &post_memory);

		c.o = (hz_hadamard_opts){.plan = HZ_PLAN_TRUE, .order = t[i].m, .pre = &pre};
		good &= check_case(&c);
		c.o.post = &post;
		c.o.flags = HZ_HADAMARD_TRANSPOSE;
		c.in_place = c.x_dtype == c.y_dtype;
		good &= check_case(&c);
		free(pre_memory);
		free(post_memory);
	}
	ok(good, "rows of m 2^k with signs before and behind");
}

/* A workspace of exactly the size reported is enough; nothing outside it changes. */
static int workspaces(struct dev *dev)
{
	static const struct {
		int64_t rows, n;
		hz_hadamard_opts o;
		int dtype;
	} all[] = {
		{ 3, 64, { 0 }, HZ_F32 }, { 2, 16384, { 0 }, HZ_F16 },
		{ 4, 768, { .plan = HZ_PLAN_TRUE }, HZ_F32 },
		{ 256, 100, { .axis = HZ_AXIS(0) }, HZ_BF16 },
		{ 96, 33, { .axis = HZ_AXIS(0), .plan = HZ_PLAN_TRUE }, HZ_F32 },
	};
	struct area ax = area_new(dev, 1 << 17, 0), ay = area_new(dev, 1 << 17, 0);
	int i, good = 1;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		struct tcase c = rows_case(all[i].rows, all[i].n, all[i].dtype, all[i].dtype);
		hz_tensor x = view_of(&c, ax.data, all[i].dtype, dev->device, c.x_stride);
		hz_tensor y = view_of(&c, ay.data, all[i].dtype, dev->device, c.y_stride);
		size_t bytes = 12345;
		struct area lent;
		unsigned char *image, *before;
		void *data;

		c.o = all[i].o;
		if (RECORD(dev->ctx, hz_hadamard(dev->ctx, &x, &y, &c.o), &bytes) != HZ_OK) {
			diag("%s", hz_errmsg(dev->ctx));
			return 0;
		}
		if (bytes == 0)
			continue;
		lent = area_new(dev, (bytes + 63) / 64 * 64, 0);
		image = image_new(lent.bytes, 0, &data);
		before = image_new(lent.bytes, 0, &data);
		area_write(&lent, image);
		if (hz_set_workspace(dev->ctx, lent.data, bytes) != HZ_OK)
			bail("hz_set_workspace: %s", hz_errmsg(dev->ctx));
		good &= check_case_on(&c, (int)(dev - devs), (int)(dev - devs) + 1);
		area_read(&lent, image);
		good &= same_bits(image, before, GUARD, 1);
		good &= same_bits(image + GUARD + bytes, before + GUARD + bytes,
				  lent.total - GUARD - bytes, 1);
		hz_set_workspace(dev->ctx, lent.data, bytes - 1);
		good &= hz_hadamard(dev->ctx, &x, &y, &c.o) == HZ_EWORKSPACE;
		hz_set_workspace(dev->ctx, NULL, 0);
		free(image);
		free(before);
		area_free(&lent);
	}
	area_free(&ax);
	area_free(&ay);
	return good;
}

static void test_workspaces(void)
{
	int d, good = 1;

	for (d = 0; d < ndevs; d++)
		good &= workspaces(&devs[d]);
	ok(good, "a workspace of the size said is enough");
}

/* Calls on CPUs look for overflows by that guard from now on, or by the faster one if it is 0. */
static void force_guard(int guard)
{
	static uint8_t faster[HZI_LEVELS];
	int l;

	for (l = 0; l < HZI_LEVELS; l++) {
		if (!faster[l])
			faster[l] = hzi_hadamard_kern[l].guard;
		hzi_hadamard_kern[l].guard = (uint8_t)(guard ? guard : faster[l]);
	}
}

/* With NaN and Inf in x, the same elements of y are NaN or Inf on every context. */
static void test_specials(void)
{
	int i, good = 1;

	for (i = 0; i < 60; i++) {
		struct tcase c = rows_case(5, INT64_C(1) << i % 10, floats[i % 3],
					   floats[i / 3 % 3]);

		c.values = SPARSE_NAN;
		c.in_place = c.x_dtype == c.y_dtype && i % 2;
		force_guard(i % 5 ? HZI_GUARD_RANGE : HZI_GUARD_FLAG);
		if (i % 4 == 3) {
			c.o.plan = HZ_PLAN_TRUE;
			c.shape[1] = 24;
			lay_out(2, c.shape, 0, c.x_stride);
			lay_out(2, c.shape, 0, c.y_stride);
		}
		good &= check_case(&c);
	}
	ok(good, "rows with NaN and Inf");
	force_guard(0);
}

/*
 * In place, one element that is not 0: all sums are plus or minus it, and finite. That it is large
 * does not change results or flags.
 */
static void test_guards(void)
{
	static float x[2 << 14];
	const float large = 0x1.8p127f;
	int guard, d, k, good = 1;

	for (guard = HZI_GUARD_FLAG; guard <= HZI_GUARD_RANGE; guard++) {
		force_guard(guard);
		for (k = 0; k <= 14; k++) {
			const int64_t n = INT64_C(1) << k, rows = k < 8 ? 5 : 2;
			int64_t i;

			for (d = 0; d < ndevs; d++) {
				hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, rows, n);
				int raised;

				if (devs[d].device != HZ_CPU)
					continue;
				for (i = 0; i < rows * n; i++)
					x[i] = i % n == 8 % n ? large : 0;
				feclearexcept(FE_ALL_EXCEPT);
				if (hz_hadamard(devs[d].ctx, &t, &t, NULL) != HZ_OK) {
					good &= d > 0;	/* a route that does not support it */
					continue;
				}
				raised = fetestexcept(FE_INVALID | FE_OVERFLOW);
				good &= !raised;
				for (i = 0; i < rows * n; i++)
					good &= fabs(fabs((double)x[i]) * sqrt((double)n) / large -
						     1) < 0x1p-22;
			}
		}
	}
	force_guard(0);
	ok(good, "sums that are large, in place");
}

/* Fills n elements with normal numbers and `large` or, if all, numbers up to that magnitude. */
static void fill_near(float *x, int64_t n, float large, int all)
{
	int64_t i;

	for (i = 0; i < n; i++)
		x[i] = (float)rnd_normal(&rnd);
	for (i = 0; all && i < n; i++)
		x[i] = large * (1 - ldexpf((float)rnd_below(&rnd, 1 << 10), -11));
	x[rnd_below(&rnd, n)] = large;
}

static int same_numbers(const float *a, const float *b, int64_t n)
{
	int64_t i;

	for (i = 0; i < n; i++) {
		if (isnan(a[i]) ? !isnan(b[i]) : memcmp(a + i, b + i, 4) != 0)
			return 0;
	}
	return 1;
}

/*
 * Numbers around those from which on guards stop, and around those whose sums overflow: in place,
 * by each guard, results are those of a call out of place.
 */
static void test_guard_limits(void)
{
	static float x[3 << 18], y[3 << 18], want[3 << 18];
	int d, k, e, guard, good = 1;

	for (k = 0; k <= 18; k += quick ? 2 : 1) {
		const int64_t n = INT64_C(1) << k, rows = k < 9 ? 37 : 3;
		const float large[] = {
			0x1p63f, 0x1.fffffep63f, 0x1p64f, 0x1p65f, -0x1.fffffep63f, -0x1p64f,
			ldexpf(1, 126 - k), ldexpf(1, 127 - k), ldexpf(-1, k ? 128 - k : 127),
			ldexpf(1.5f, k > 1 ? 129 - k : 127), FLT_MAX, INFINITY, NAN,
		};

		for (e = 0; e < 2 * (int)(sizeof(large) / sizeof(large[0])); e++) {
			const hz_hadamard_opts opts = {
				.factor = e % 3 == 2 ? 2 : 0,
				.flags = e % 3 ? HZ_HADAMARD_RAW : 0,
			};
			hz_tensor from = hz_tensor_2d(x, HZ_F32, HZ_CPU, rows, n), to = from;

			fill_near(x, rows * n, 1, 1);
			fill_near(x + rnd_below(&rnd, rows) * n, n, large[e / 2], e % 2);
			for (d = 0; d < ndevs; d++) {
				if (devs[d].device != HZ_CPU)
					continue;
				to.data = want;
				if (hz_hadamard(devs[d].ctx, &from, &to, &opts) != HZ_OK) {
					good &= d > 0;	/* a route that does not support it */
					continue;
				}
				to.data = y;
				for (guard = HZI_GUARD_FLAG; guard <= HZI_GUARD_RANGE; guard++) {
					force_guard(guard);
					memcpy(y, x, (size_t)(rows * n) * 4);
					good &= hz_hadamard(devs[d].ctx, &to, &to, &opts) == HZ_OK;
					good &= same_numbers(y, want, rows * n);
				}
				force_guard(0);
			}
		}
	}
	ok(good, "numbers around the limits of guards, in place as apart");
}

static void test_overflow(void)
{
	int i, good = 1;

	for (i = 0; i < (quick ? 42 : 600); i++) {
		static const int dtypes[] = { HZ_F32, HZ_BF16 };
		struct tcase c = rows_case(3, INT64_C(1) << i % 14, dtypes[i / 14 % 2],
					   floats[i / 28 % 3]);
		struct diags diags;

		c.values = OVERFLOWS;
		if (i % 3 == 1) {
			c.o.plan = HZ_PLAN_TRUE;
			c.shape[1] = (i % 2 ? 12 : 20) << i % 7;
		} else if (i % 3 == 2) {
			c.o.plan = HZ_PLAN_GREEDY;
			c.shape[1] = 1 + rnd_below(&rnd, 3000);
		}
		c.o.axis = i / 3 % 2;
		if (c.o.axis) {
			c.shape[0] = c.shape[1];
			c.shape[1] = 1 + rnd_below(&rnd, 40);
			if (i % 2)
				c.calm = rnd_below(&rnd, c.shape[0]) * c.shape[1];
		}
		if (rnd_below(&rnd, 2)) {
			c.in_place = 1;
			c.y_dtype = c.x_dtype;
		}
		lay_out(2, c.shape, i % 5 == 0, c.x_stride);
		lay_out(2, c.shape, i % 5 == 0, c.y_stride);
		if (c.in_place)
			memcpy(c.x_stride, c.y_stride, sizeof(c.x_stride));
		else if (i % 7 == 6)
			random_strides(&c, c.x_stride);
		random_diags(&rnd, &c.o, c.shape[1 - c.o.axis], c.shape[1 - c.o.axis],
			     &diags);
		c.below = rnd_below(&rnd, 3 + ilogb((double)c.shape[1 - c.o.axis]) / 2);
		force_guard(i % 2 ? HZI_GUARD_RANGE : HZI_GUARD_FLAG);
		good &= check_case(&c);
		free_diags(&diags);
	}
	ok(good, "finite results of intermediate sums that overflow");

	good = 1;
	for (i = 0; i < 18; i++) {
		static const int64_t lengths[] = { 1 << 13, 1 << 15, 1 << 18, 12 << 10 };
		struct tcase c = rows_case(2, i < 12 ? lengths[i % 4] : 4097 +
					   rnd_below(&rnd, i % 2 ? 60000 : 8000),
					   i / 4 == 1 ? HZ_BF16 : HZ_F32,
					   i / 4 == 1 ? HZ_BF16 : HZ_F32);

		c.values = OVERFLOWS;
		c.in_place = 1;
		c.below = rnd_below(&rnd, 3 + ilogb((double)c.shape[1]) / 2);
		if (i % 3)
			c.calm = rnd_below(&rnd, c.shape[1]);
		c.o.plan = i % 4 == 3 && i < 12 ? HZ_PLAN_TRUE : 0;
		if (i == 0)
			c.o.max_block = 64;
		if (i / 4 == 2) {
			c.o.axis = 1;
			c.shape[0] = lengths[i % 4];
			c.shape[1] = 3;
			lay_out(2, c.shape, 0, c.y_stride);
			lay_out(2, c.shape, 0, c.x_stride);
		}
		force_guard(HZI_GUARD_RANGE);
		good &= check_case_on(&c, i % 4 == 2 ? ndevs - 2 : 0, ndevs);
		force_guard(HZI_GUARD_FLAG);
		good &= check_case_on(&c, i % 4 == 2 ? ndevs - 2 : 0, ndevs);
	}
	force_guard(0);
	ok(good, "likewise in place, in long rows and columns");
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_hadamard);
	test_sizes();
	test_row_counts();
	test_many();
	test_columns();
	test_any_length();
	test_random(quick ? 100 : 1500);
	test_orders();
	test_specials();
	test_guards();
	test_guard_limits();
	test_overflow();
	test_large();
	test_base_rows();
	test_base_signs();
	test_workspaces();
	diag("%ld cases on %d contexts", cases, ndevs);
	dev_close_all();
	return done_testing();
}
