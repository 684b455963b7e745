/*
 * hadamard.c - tests of hz_hadamard() on every implementation
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <sys/mman.h>

#include "hurwitz.h"
#include "tap.h"
#include "dev.h"

static uint64_t rnd;
static int quick;
static long cases;

/* ---- A case: shapes, strides, options; the same for every context ---------------------------- */

enum values { RANDOM, INTEGERS, SPARSE_NAN, TINY, LARGE };

struct tcase {
	int ndim, x_dtype, y_dtype;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	int skew;			/* elements that the first lies off a 64-byte boundary */
	int in_place;
	enum values values;
	hz_hadamard_opts o;		/* pre and post on the host */
};

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

/* TINY and LARGE: around the smallest and the largest normal number that y, or x, can hold. */
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

/*
 * A result that a GPU may round otherwise: f32 Sylvester transforms have the bits of the CPU,
 * others keep the bound, and may be NaN where the CPU has Inf.
 */
static int is_exact(const struct dev *dev, const struct tcase *c, const struct ref_op *op)
{
	return dev->device == HZ_CPU || (c->x_dtype == HZ_F32 && c->y_dtype == HZ_F32 && !op->base);
}

/* One context: runs the case from the images, compares with the image that is wanted. */
static int run_case(struct dev *dev, const struct tcase *c, const struct ref_op *op, size_t x_bytes,
		    size_t y_bytes, size_t x_skew, size_t y_skew, int64_t x_low, int64_t y_low,
		    const unsigned char *x_image, const unsigned char *y_before,
		    const unsigned char *y_want, const float *y_f32)
{
	struct area ax = { 0 }, ay, apre = { 0 }, apost = { 0 };
	size_t x_size = hz_dtype_size(c->x_dtype), y_size = hz_dtype_size(c->y_dtype);
	int axis = c->ndim - 1 - c->o.axis, good = 1, status;
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
		/* NaNs may have any sign and payload; what need not be exact is put to its bound */
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
 * The case on the contexts first .. last - 1, against the ordered f32 definition; that one, where
 * rows are short enough, against the dense matrix in double and the bound of the contract.
 */
static int check_case_on(const struct tcase *c, int first, int last)
{
	size_t x_size = hz_dtype_size(c->x_dtype), y_size = hz_dtype_size(c->y_dtype);
	size_t x_skew = (size_t)c->skew * x_size, y_skew = (size_t)c->skew * y_size;
	size_t x_bytes, y_bytes;
	int64_t x_low, x_high, y_low, y_high, at[HZ_MAXDIM] = { 0 }, i, items = 1, item = 0, n;
	unsigned char *x_image, *y_before, *y_want, *x_data, *y_data;
	int axis = c->ndim - 1 - c->o.axis, d, good = 1;
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
				value_of(c));
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
			row[i] = (float)dense[i];
		}
		ref_ordered(&op, row, y_f32 + item * n);
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
	for (d = first; d < last; d++)
		good &= run_case(&devs[d], c, &op, x_bytes, y_bytes, x_skew, y_skew, x_low, y_low,
				 x_image, y_before, y_want, y_f32);
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

/* n signs on the host; *memory is the caller's to free. */
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

/* Long rows, more of them than a GPU does at a time, with signs too. */
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
				c.o.axis = 1;
				c.o.block = lengths[k];
				c.in_place = i % 2 == 0;
				good &= check_case(&c);
				if (i % 3)
					continue;
				c.in_place = 0;		/* rows apart */
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

/* Permutes dimensions, leaves gaps, turns dimensions round; the result is still one to one. */
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

/* Everything at once. */
static void test_random(int count)
{
	static const double scales[] = { 0, 1, -1, 0.5, 3.1415926, 1e-3 };
	int i, d, good = 1;

	for (i = 0; i < count; i++) {
		struct tcase c = { .ndim = 1 + (int)rnd_below(&rnd, HZ_MAXDIM) };
		void *pre_memory = NULL, *post_memory = NULL;
		int64_t block, n, room = quick ? 2000 : 6000;
		hz_tensor pre, post;
		int axis;

		c.o.axis = (int)rnd_below(&rnd, c.ndim);
		axis = c.ndim - 1 - c.o.axis;
		block = random_block(&rnd, &c.o);
		n = block * (1 + (rnd_below(&rnd, 2) ? rnd_below(&rnd, 4) : 0));
		if (n != block || rnd_below(&rnd, 2))
			c.o.block = block;
		room /= n;
		for (d = 0; d < c.ndim; d++) {
			if (d == axis) {
				c.shape[d] = n;
				continue;
			}
			c.shape[d] = 1 + rnd_below(&rnd, room < 1 ? 1 : room > 40 ? 40 : room);
			room /= c.shape[d];
		}
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
		/* a GPU may round the last finite number the other way */
		if (rnd_below(&rnd, 10) == 0 && !tap_cuda())
			c.values = LARGE;
		c.o.scale = scales[rnd_below(&rnd, 6)];
		c.o.flags = (uint32_t)rnd_below(&rnd, 4);
		if (rnd_below(&rnd, 3) == 0) {
			pre = random_diag(&rnd, n, block, &pre_memory);
			c.o.pre = &pre;
		}
		if (rnd_below(&rnd, 3) == 0) {
			post = random_diag(&rnd, n, block, &post_memory);
			c.o.post = &post;
		}
		if (!check_case(&c)) {
			diag("random case %d", i);
			good = 0;
		}
		free(pre_memory);
		free(post_memory);
	}
	ok(good, "%d random cases: dimensions, strides, plans, diagonals, flags", count);
}

/* True orders: all that a kind has, one small and one larger power. */
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
				c.o.axis = 1;
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

/* Work for several threads, and rows beyond the caches. */
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
	c.o.axis = 1;
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

/* ---- Properties, on plain rows in f32 or 16 bits --------------------------------------------- */

/* y = the transform of rows of n on one context; arrays on the host, of the dtypes told. */
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

/* P1: e_j gives column j, exactly; nothing outside its block. */
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

/* P2: a constant block gives sqrt(b) in front, and 0. */
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

/* P3, P4, P5: H H^T = I, norms stay, <Hx, y> = <x, H^T y>; H alone undoes itself if symmetric. */
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

/*
 * True orders of 12, 20, 28 in rows back to back, all powers: a few rows by the definition, with
 * every kind of base matrix; then the same rows again and again, so many that blocks of a GPU take
 * several.
 */
static void test_base_rows(void)
{
	enum { FEW = 9 };
	int m, k, t, d, i, good = 1, alike = 1;

	for (m = 12; m <= 28; m += 8) {
		for (k = 5; m << k <= 57344 && k <= (quick ? 8 : 12); k++) {
			const int64_t n = (int64_t)m << k, many = quick ? 100 : (1 << 23) / n;

			for (t = 0; t < 3; t++) {
				struct tcase c = rows_case(k < 9 ? FEW : 3, n, floats[t],
							   floats[t]);

				c.o.plan = HZ_PLAN_TRUE;
				c.o.order = m;
				c.in_place = k % 2;
				good &= check_case(&c);
				c.o.base = t == 0 ? HZ_BASE_PALEY2
					 : t == 1 ? HZ_BASE_DAO : HZ_BASE_QUIP;
				c.o.flags = HZ_HADAMARD_TRANSPOSE;
				c.values = k % 3 == 0 ? SPARSE_NAN : k % 3 == 1 ? TINY : INTEGERS;
				good &= check_case(&c);
			}
			for (d = 0; d < ndevs; d++) {
				const hz_hadamard_opts o = { .plan = HZ_PLAN_TRUE, .order = m };
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
	ok(good, "12 2^k, 20 2^k, 28 2^k back to back, any base matrix");
	ok(alike, "and the same bits for a row wherever it is");
}

/* P6: integers without the factor are exact, in 16 bits too; with n = 4^k also with it. */
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

/* P7, P8, P9: what the transform does to shifts, signs, powers of two and sums. */
static int metamorphic(struct dev *dev)
{
	static const hz_hadamard_opts twice = { .scale = 2 }, minus = { .scale = -1 };
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
				ws[i] = parity(i & s) ? -ys[i] : ys[i];
			good &= same_bits(zs, ws, (size_t)n, 4);
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

/* P10: NaN and Inf fill their block as IEEE says and no other. */
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
						/* tensor cores may make a NaN of an Inf */
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

/* P12: columns are the rows of the transposed matrix; sums do not depend on what is beside. */
static int layouts(struct dev *dev)
{
	int64_t rows = 48, n = 64, i, j;
	struct area a = area_new(dev, (size_t)(rows * n) * 4, 0);
	unsigned char *image;
	hz_hadamard_opts o = { .axis = 1 };
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

/* P15: f16 sums do not overflow on the way, and results beyond 65504 are Inf. */
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
	/* the edge: 65519.99 rounds to 65504, 65520 to Inf */
	xs[0] = xs[2] = 65519.996f;
	xs[1] = xs[3] = 65520;
	good &= apply(dev, HZ_F32, HZ_F16, 4, 1, xs, hy, NULL);
	good &= hy[0] == 0x7bff && hy[1] == 0x7c00 && hy[2] == 0x7bff && hy[3] == 0x7c00;
	return good;
}

/* Every f16 and bf16 value goes in and comes out; f32 is rounded to nearest, ties to even. */
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
			/* around every value: itself, half way to the next, and beside that */
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

/* P16: random signs are undone; all plus is nothing; bits and factors are the same. */
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
		hz_hadamard_opts plain = { .min_block = 4 };
		hz_hadamard_opts forward = { .min_block = 4, .pre = &s };
		hz_hadamard_opts both = { .min_block = 4, .pre = &p, .post = &p };

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

/* P18: an outlier is spread over its block. */
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
		good &= (double)amax <= 100 / sqrt((double)b) + 5;
	}
	return good;
}

/* P19: nothing is done to nothing; one element is multiplied. */
static int nothing(struct dev *dev)
{
	static const hz_hadamard_opts scaled = { .scale = 0.75 };
	hz_tensor x = hz_tensor_2d(NULL, HZ_F32, dev->device, 0, 64);
	hz_tensor y = hz_tensor_2d(NULL, HZ_F16, dev->device, 0, 64);
	size_t bytes = 1;
	int good = 1, i;

	good &= hz_hadamard(dev->ctx, &x, &y, NULL) == HZ_OK;
	x.shape[0] = y.shape[0] = 5;
	x.shape[1] = y.shape[1] = 0;
	good &= hz_hadamard(dev->ctx, &x, &y, NULL) == HZ_OK;
	good &= hz_hadamard(dev->ctx, &x, &x, NULL) == HZ_OK;
	good &= hz_hadamard_workspace(dev->ctx, &x, &y, NULL, &bytes) == HZ_OK && bytes == 0;
	fill(xs, 100);
	good &= F32_ROWS(dev, 100, 1, xs, ys, &scaled);
	for (i = 0; i < 100; i++)
		good &= ys[i] == 0.75f * xs[i];
	return good;
}

/* Denormals are kept, in and out. */
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

/* A lent workspace of exactly the size that was said is enough, and is not left. */
static int workspaces(struct dev *dev)
{
	static const struct {
		int64_t rows, n;
		hz_hadamard_opts o;
		int dtype;
	} all[] = {
		{ 3, 64, { 0 }, HZ_F32 }, { 2, 16384, { 0 }, HZ_F16 },
		{ 4, 768, { .plan = HZ_PLAN_TRUE }, HZ_F32 }, { 256, 100, { .axis = 1 }, HZ_BF16 },
		{ 96, 33, { .axis = 1, .plan = HZ_PLAN_TRUE }, HZ_F32 },
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
		if (hz_hadamard_workspace(dev->ctx, &x, &y, &c.o, &bytes) != HZ_OK) {
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
		{ workspaces, "a workspace of the size said is enough" },
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
		static const hz_hadamard_opts columns = { .axis = 1 };

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

/* NaN and Inf somewhere: which elements are NaN or Inf is the same everywhere. */
static void test_specials(void)
{
	int i, good = 1;

	for (i = 0; i < 60; i++) {
		struct tcase c = rows_case(5, INT64_C(1) << i % 10, floats[i % 3],
					   floats[i / 3 % 3]);

		c.values = SPARSE_NAN;
		if (i % 4 == 3) {
			c.o.plan = HZ_PLAN_TRUE;
			c.shape[1] = 24;
			lay_out(2, c.shape, 0, c.x_stride);
			lay_out(2, c.shape, 0, c.y_stride);
		}
		good &= check_case(&c);
	}
	ok(good, "rows with NaN and Inf");
}

/* ---- Wrong arguments ------------------------------------------------------------------------- */

static float *wx, *wy;			/* 64 KiB each, on the device */
static unsigned char *w_image;

static void refused(struct dev *dev, const hz_tensor *x, const hz_tensor *y,
		    const hz_hadamard_opts *o, int status, const char *sentence)
{
	hz_tensor host = hz_tensor_1d(w_image, HZ_U8, HZ_CPU, 65536);
	hz_tensor there = hz_tensor_1d(wy, HZ_U8, dev->device, 65536);
	size_t bytes = 4321;
	int i, untouched = 1;

	is_int(hz_hadamard(dev->ctx, x, y, o), status, "refused: %s", sentence);
	is_str(hz_errmsg(dev->ctx), sentence, "the sentence");
	memset(w_image, 0, 65536);
	hz_copy(dev->ctx, &there, &host);
	hz_sync(dev->ctx);
	for (i = 0; i < 65536; i++)
		untouched &= w_image[i] == GUARD_BYTE;
	ok(untouched && hz_hadamard_workspace(dev->ctx, x, y, o, &bytes) == status && bytes == 4321,
	   "y is untouched, the workspace is refused likewise");
}

#define OPTS(...) (&(hz_hadamard_opts){ __VA_ARGS__ })

static void test_refusals(struct dev *dev)
{
	const char *here = dev->device == HZ_CPU ? "the CPU" : "CUDA device 0";
	int elsewhere = dev->device == HZ_CPU ? HZ_CUDA + 1 : HZ_CPU;
	char sentence[200];
	hz_tensor x, y, t, u, s;
	void *p;

	if (hz_alloc(dev->ctx, &p, 65536, dev->device) != HZ_OK)
		bail("hz_alloc: %s", hz_errmsg(dev->ctx));
	wx = p;
	if (hz_alloc(dev->ctx, &p, 65536, dev->device) != HZ_OK)
		bail("hz_alloc: %s", hz_errmsg(dev->ctx));
	wy = p;
	w_image = malloc(65536);
	memset(w_image, GUARD_BYTE, 65536);
	t = hz_tensor_1d(w_image, HZ_U8, HZ_CPU, 65536);
	u = hz_tensor_1d(wy, HZ_U8, dev->device, 65536);
	hz_copy(dev->ctx, &t, &u);
	u.data = wx;
	hz_copy(dev->ctx, &t, &u);
	hz_sync(dev->ctx);

	x = hz_tensor_2d(wx, HZ_F32, dev->device, 10, 96);
	y = hz_tensor_2d(wy, HZ_F32, dev->device, 10, 96);
	is_int(hz_hadamard(NULL, &x, &y, NULL), HZ_EINVAL, "refused: the context is NULL");
	refused(dev, NULL, &y, NULL, HZ_EINVAL, "hadamard: x is NULL, must be a view");
	refused(dev, &x, NULL, NULL, HZ_EINVAL, "hadamard: y is NULL, must be a view");
	t = x;
	t.dtype = HZ_F64;
	refused(dev, &t, &y, NULL, HZ_EDTYPE, "hadamard: x.dtype is f64, must be f32, f16 or bf16");
	t = y;
	t.dtype = HZ_S8;
	refused(dev, &x, &t, NULL, HZ_EDTYPE, "hadamard: y.dtype is s8, must be f32, f16 or bf16");
	t = x;
	t.ndim = 0;
	u = y;
	u.ndim = 0;
	refused(dev, &t, &u, NULL, HZ_ESHAPE, "hadamard: x.ndim is 0, must be 1 to 6");
	t.ndim = 7;
	refused(dev, &t, &y, NULL, HZ_ESHAPE, "hadamard: x.ndim is 7, must be 0 to 6");
	t = hz_tensor_2d(wy, HZ_F32, dev->device, 10, 80);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.shape[1] is 80, must be 96, as x");
	t = hz_tensor_1d(wy, HZ_F32, dev->device, 960);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.ndim is 1, must be 2, as x");
	t = x;
	t.shape[0] = -1;
	refused(dev, &t, &y, NULL, HZ_ESHAPE, "hadamard: x.shape[0] is -1, must not be negative");
	t = x;
	t.shape[0] = t.stride[0] = INT64_C(1) << 60;
	refused(dev, &t, &y, NULL, HZ_ESHAPE,
		"hadamard: x is too large: its size or strides overflow");
	t = y;
	t.stride[0] = 0;
	refused(dev, &x, &t, NULL, HZ_ESTRIDE,
		"hadamard: y has strides that put two elements at one address");
	t = x;
	t.data = (char *)wx + 2;
	snprintf(sentence, sizeof(sentence),
		 "hadamard: x.data is %p, must be a multiple of 4 bytes",
		 t.data);
	refused(dev, &t, &y, NULL, HZ_ESTRIDE, sentence);
	t.data = NULL;
	refused(dev, &t, &y, NULL, HZ_EINVAL, "hadamard: x.data is NULL, must hold 960 elements");
	t = y;
	t.data = wx + 1;
	refused(dev, &x, &t, NULL, HZ_EALIAS,
		"hadamard: y overlaps x, must be apart from it or the same view");
	t.data = wx;
	t.dtype = HZ_F16;
	refused(dev, &x, &t, NULL, HZ_EALIAS,
		"hadamard: y overlaps x, must be apart from it or the same view");
	t = x;
	t.device = elsewhere;
	snprintf(sentence, sizeof(sentence), "hadamard: x is on %s, the context is on %s",
		 elsewhere == HZ_CPU ? "the CPU" : "CUDA device 1", here);
	refused(dev, &t, &y, NULL, HZ_EDEVICE, sentence);
	t.device = 0;
	snprintf(sentence, sizeof(sentence),
		 "hadamard: x is on no device (0), the context is on %s",
		 here);
	refused(dev, &t, &y, NULL, HZ_EDEVICE, sentence);

	refused(dev, &x, &y, OPTS(.plan = 5), HZ_EINVAL,
		"hadamard: opts->plan is 5, must be 0 to 4");
	refused(dev, &x, &y, OPTS(.axis = 2), HZ_EINVAL,
		"hadamard: opts->axis is 2, must be 0 to 1");
	refused(dev, &x, &y, OPTS(.axis = -1), HZ_EINVAL,
		"hadamard: opts->axis is -1, must be 0 to 1");
	refused(dev, &x, &y, OPTS(.flags = 4), HZ_EINVAL,
		"hadamard: opts->flags is 4, must be 0 to 3");
	refused(dev, &x, &y, OPTS(.base = 6), HZ_EINVAL,
		"hadamard: opts->base is 6, must be 0 to 5");
	refused(dev, &x, &y, OPTS(.block = -8), HZ_EINVAL,
		"hadamard: opts->block is -8, must not be negative");
	refused(dev, &x, &y, OPTS(.reserved = { 0, 0, 7 }), HZ_EINVAL,
		"hadamard: opts->reserved[2] is 7, must be 0 to 0");
	refused(dev, &x, &y, OPTS(.scale = INFINITY), HZ_EINVAL,
		"hadamard: opts->scale is inf, must be finite in f32");
	refused(dev, &x, &y, OPTS(.round_to = HZ_F32), HZ_EINVAL,
		"hadamard: opts->round_to is f32, must be f16, bf16 or 0");
	refused(dev, &x, &y, OPTS(.block = 64), HZ_ESHAPE,
		"hadamard: opts->block is 64, must divide 96, the length of axis 1");
	refused(dev, &x, &y, OPTS(.plan = HZ_PLAN_SYLVESTER), HZ_ESHAPE,
		"hadamard: the sylvester plan cannot make 96: it is not a power of two");
	refused(dev, &x, &y, OPTS(.axis = 1), HZ_ESHAPE,
		"hadamard: the greedy plan of 10 needs a block of 8, less than min_block 16");
	refused(dev, &x, &y, OPTS(.plan = HZ_PLAN_TRUE, .order = 20), HZ_ESHAPE,
		"hadamard: the true plan cannot make 96: it is not 20 times a power of two");
	refused(dev, &x, &y, OPTS(.plan = HZ_PLAN_TRUE, .base = HZ_BASE_WILLIAMSON), HZ_ENOTSUP,
		"hadamard: the true plan cannot make 96: there is no such base matrix of order 12");

	s = hz_tensor_1d(wx + 4096, HZ_F64, dev->device, 96);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_EDTYPE,
		"hadamard: pre.dtype is f64, must be u8, f32, f16 or bf16");
	s = hz_tensor_2d(wx + 4096, HZ_F32, dev->device, 1, 96);
	refused(dev, &x, &y, OPTS(.post = &s), HZ_ESHAPE, "hadamard: post.ndim is 2, must be 1");
	s = hz_tensor_1d(wx + 4096, HZ_F32, dev->device, 95);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_ESHAPE,
		"hadamard: pre.shape[0] is 95, must be 96");
	s = hz_tensor_1d(wx + 4096, HZ_U8, dev->device, 96);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_ESHAPE,
		"hadamard: pre.shape[0] is 96, must be 12");
	s = hz_tensor_1d(wx + 4096, HZ_F32, dev->device, 96);
	s.stride[0] = 2;
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_ESTRIDE,
		"hadamard: pre.stride[0] is 2, must be 1");
	s = hz_tensor_1d(wy + 10, HZ_F32, dev->device, 96);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_EALIAS,
		"hadamard: y overlaps pre, must be apart from it");
	s = hz_tensor_1d(wx + 4096, HZ_F32, elsewhere, 96);
	snprintf(sentence, sizeof(sentence), "hadamard: post is on %s, the context is on %s",
		 elsewhere == HZ_CPU ? "the CPU" : "CUDA device 1", here);
	refused(dev, &x, &y, OPTS(.post = &s), HZ_EDEVICE, sentence);

	t = hz_tensor_1d(wx, HZ_F32, dev->device, dev->device == HZ_CPU ? 1 << 25 : 1 << 17);
	u = t;
	u.data = (char *)wx - ((int64_t)1 << 29);
	snprintf(sentence, sizeof(sentence),
		 "hadamard: a block of %lld is too long, at most %lld %s",
		 (long long)t.shape[0], dev->device == HZ_CPU ? 1LL << 24 : 65536LL,
		 dev->device == HZ_CPU ? "on the CPU" : "on the GPU");
	refused(dev, &t, &u, NULL, HZ_ENOTSUP, sentence);
	is_int(hz_hadamard_workspace(dev->ctx, &x, &y, NULL, NULL), HZ_EINVAL,
	       "refused: the workspace's bytes is NULL");
	free(w_image);
	hz_free(dev->ctx, wx, dev->device);
	hz_free(dev->ctx, wy, dev->device);
}

/* One thing wrong at a time with calls that the library takes without looking closer */
static void test_refusals_plain(struct dev *dev)
{
	static const char overlap[] =
		"hadamard: y overlaps x, must be apart from it or the same view";
	const int elsewhere = dev->device == HZ_CPU ? HZ_CUDA + 1 : HZ_CPU;
	hz_tensor x, y, t;
	char sentence[200];
	void *p;
	int i;

	if (hz_alloc(dev->ctx, &p, 65536, dev->device) != HZ_OK)
		bail("hz_alloc: %s", hz_errmsg(dev->ctx));
	wx = wy = p;
	w_image = malloc(65536);
	memset(w_image, GUARD_BYTE, 65536);
	t = hz_tensor_1d(w_image, HZ_U8, HZ_CPU, 65536);
	x = hz_tensor_1d(wx, HZ_U8, dev->device, 65536);
	hz_copy(dev->ctx, &t, &x);
	hz_sync(dev->ctx);

	x = hz_tensor_2d(wx + 4096, HZ_F32, dev->device, 16, 64);
	y = hz_tensor_2d(wx, HZ_F32, dev->device, 16, 64);
	refused(dev, NULL, &y, NULL, HZ_EINVAL, "hadamard: x is NULL, must be a view");
	refused(dev, &x, NULL, NULL, HZ_EINVAL, "hadamard: y is NULL, must be a view");
	for (i = -1023; i < 1024; i += 341) {
		t = x;
		t.data = wx + 4096 + (i ? i : 1);
		refused(dev, &x, &t, NULL, HZ_EALIAS, overlap);
	}
	t = x;
	t.dtype = HZ_BF16;
	refused(dev, &x, &t, NULL, HZ_EALIAS, overlap);
	refused(dev, &t, &x, NULL, HZ_EALIAS, overlap);
	t.data = (char *)(wx + 4096) - 2046;
	refused(dev, &x, &t, NULL, HZ_EALIAS, overlap);
	t.dtype = HZ_U8;
	refused(dev, &x, &t, NULL, HZ_EDTYPE, "hadamard: y.dtype is u8, must be f32, f16 or bf16");
	t = hz_tensor_2d(wx, HZ_F32, dev->device, 15, 64);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.shape[0] is 15, must be 16, as x");
	t = hz_tensor_3d(wx, HZ_F32, dev->device, 1, 16, 64);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.ndim is 3, must be 2, as x");
	t = y;
	t.stride[0] = 63;
	refused(dev, &x, &t, NULL, HZ_ESTRIDE,
		"hadamard: y has strides that put two elements at one address");
	t = y;
	t.data = (char *)wx + 1;
	snprintf(sentence, sizeof(sentence),
		 "hadamard: y.data is %p, must be a multiple of 4 bytes", t.data);
	refused(dev, &x, &t, NULL, HZ_ESTRIDE, sentence);
	t.data = NULL;
	refused(dev, &x, &t, NULL, HZ_EINVAL, "hadamard: y.data is NULL, must hold 1024 elements");
	t = y;
	t.device = elsewhere;
	snprintf(sentence, sizeof(sentence), "hadamard: y is on %s, the context is on %s",
		 elsewhere == HZ_CPU ? "the CPU" : "CUDA device 1",
		 elsewhere == HZ_CPU ? "CUDA device 0" : "the CPU");
	refused(dev, &x, &t, NULL, HZ_EDEVICE, sentence);
	t = hz_tensor_2d(wx, HZ_F32, dev->device, INT64_C(1) << 40, INT64_C(1) << 20);
	refused(dev, &t, &t, NULL, HZ_ESHAPE,
		"hadamard: x is too large: its size or strides overflow");
	refused(dev, &x, &y, OPTS(.scale = 1e39), HZ_EINVAL,
		"hadamard: opts->scale is 1e+39, must be finite in f32");
	refused(dev, &x, &y, OPTS(.round_to = HZ_F32), HZ_EINVAL,
		"hadamard: opts->round_to is f32, must be f16, bf16 or 0");
	refused(dev, &x, &y, OPTS(.reserved = { 0, 0, 0, 1 }), HZ_EINVAL,
		"hadamard: opts->reserved[3] is 1, must be 0 to 0");
	for (i = -1; i < 2; i += 2) {
		t = x;
		t.data = wx + 4096 + i * 1024;
		is_int(hz_hadamard(dev->ctx, &x, &t, NULL), HZ_OK, "side by side is apart");
	}
	hz_sync(dev->ctx);
	free(w_image);
	hz_free(dev->ctx, wx, dev->device);
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	test_sizes();
	test_row_counts();
	test_many();
	test_columns();
	test_random(quick ? 100 : 1500);
	test_orders();
	test_specials();
	test_properties();
	test_large();
	test_base_rows();
	test_far_apart();
	test_refusals(&devs[0]);
	test_refusals_plain(&devs[0]);
	diag("%ld cases on %d contexts", cases, ndevs);
	dev_close_all();
	return done_testing();
}
