/*
 * group.c - hz_qlinear_group() against its definition
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stddef.h>

#include "t/qgemm/qgemm.h"

static const int w_dtypes[] = { HZ_U4X2, HZ_S4X2, HZ_E2M1X2, HZ_U8, HZ_S8, HZ_E4M3 };
static const int scale_dtypes[] = { HZ_F32, HZ_F16, HZ_BF16, HZ_E8M0, HZ_E4M3 };

enum { X_FLOAT, X_ROWS, X_BY_32, X_CODES, X_CODES_BY_32, X_MODES };

struct shape {
	int x_dtype, w_dtype, s_dtype, y_dtype, mode;
	int64_t group;			/* 0: one scale a column */
	int64_t batch, m, n, k;
	bool zeros, tensor_scale, transposed, packed, bias, bounds, extreme, tiny;
	int spread;			/* powers of two between magnitudes of floats x */
	int64_t gap;			/* elements between rows of x and y */
	bool columns;			/* x and y have their columns contiguous */
};

/* A case: its operands on the host, and what the definition makes of them */
struct scene {
	struct shape s;
	struct vec x, w, scales, zeros, x_scales, bias, tensor;
	hz_tensor wt, st, zt;		/* [k, n] and [groups, n] */
	int64_t rows, groups;
	float *y, *bound;		/* in f32; integers: bound is 0 */
};

static bool is_nibbles(int dtype)
{
	return dtype == HZ_U4X2 || dtype == HZ_S4X2 || dtype == HZ_E2M1X2;
}

static bool is_integer(const struct shape *s)
{
	return s->mode != X_FLOAT;
}

/* Element (i, j) of a matrix stored as [rows, cols] or transposed */
static int64_t at(const struct scene *c, int64_t i, int64_t j, int64_t rows, int64_t cols)
{
	return c->s.transposed ? j * rows + i : i * cols + j;
}

static double weight(const struct scene *c, int64_t l, int64_t j)
{
	static const double e2m1[] = { 0, .5, 1, 1.5, 2, 3, 4, 6 };
	const int dtype = c->s.w_dtype;
	const int64_t rows = is_nibbles(dtype) ? c->s.k / 2 : c->s.k;
	const int64_t i = at(c, is_nibbles(dtype) ? l / 2 : l, j, rows, c->s.n);
	const unsigned byte = ((const uint8_t *)c->w.host)[i], code = byte >> l % 2 * 4 & 15;

	switch (dtype) {
	case HZ_U4X2:
		return code;
	case HZ_S4X2:
		return (int)(code ^ 8) - 8;
	case HZ_E2M1X2:
		return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
	case HZ_U8:
		return byte;
	default:
		return ref_get(dtype, c->w.host, i);
	}
}

static double zero(const struct scene *c, int64_t g, int64_t j)
{
	return c->s.zeros ? code(c->zeros.host, c->zeros.t.dtype, at(c, g, j, c->groups, c->s.n))
			  : 0;
}

static float scale(const struct scene *c, int64_t g, int64_t j)
{
	const float s = (float)ref_get(c->s.s_dtype, c->scales.host,
				       at(c, g, j, c->groups, c->s.n));

	return c->s.tensor_scale ? s * *(const float *)c->tensor.host : s;
}

static double x_value(const struct scene *c, int64_t r, int64_t l)
{
	const int64_t pitch = c->s.columns ? c->s.batch * c->s.m + c->s.gap : c->s.k + c->s.gap;

	return ref_get(c->s.x_dtype, c->x.host, c->s.columns ? l * pitch + r : r * pitch + l);
}

/* Codes of a row of x and the scales of their groups, as the contract says */
static void quantize(const struct scene *c, int64_t r, int *codes, float *scales)
{
	const bool by_32 = c->s.mode == X_BY_32 || c->s.mode == X_CODES_BY_32;
	const int64_t group = by_32 ? 32 : c->s.k, groups = (c->s.k + group - 1) / group;

	for (int64_t g = 0; g < groups; g++) {
		const int64_t end = (g + 1) * group < c->s.k ? (g + 1) * group : c->s.k;
		double most = 0;

		for (int64_t l = g * group; l < end; l++)
			most = fmax(most, fabs(x_value(c, r, l)));
		scales[g] = most == 0 ? 1 : fmaxf((float)(most / 127), FLT_MIN);
		if (c->s.mode >= X_CODES)
			scales[g] = ((const float *)c->x_scales.host)[r * groups + g];
		for (int64_t l = g * group; l < end; l++)
			codes[l] = c->s.mode >= X_CODES
					   ? (int)x_value(c, r, l)
					   : (int)nearbyintf((float)x_value(c, r, l) / scales[g]);
	}
}

static float integer_sum(const struct scene *c, int64_t j, const int *codes, const float *scales)
{
	const bool by_32 = c->s.mode == X_BY_32 || c->s.mode == X_CODES_BY_32;
	const int64_t group = c->s.group ? c->s.group : c->s.k;
	int64_t unit = c->s.group && c->s.group < 128 ? c->s.group : 128;
	float y = 0;

	if (by_32 && unit > 32)
		unit = 32;
	for (int64_t chunk = 0; chunk < c->s.k; chunk += 512) {
		float sum = 0;

		for (int64_t u = chunk; u < chunk + 512 && u < c->s.k; u += unit) {
			const int64_t g = u / group;
			const float s = scale(c, g, j) * scales[by_32 ? u / 32 : 0];
			double exact = 0;

			for (int64_t l = u; l < u + unit && l < c->s.k; l++)
				exact += codes[l] * (weight(c, l, j) - zero(c, g, j));
			sum += (float)exact * s;
		}
		y += sum;
	}
	return y;
}

static void define(struct scene *c)
{
	const int64_t group = c->s.group ? c->s.group : c->s.k;
	int *codes = calloc((size_t)c->s.k + 1, sizeof(*codes));
	float *scales = calloc((size_t)c->s.k + 1, sizeof(*scales));

	for (int64_t r = 0; r < c->rows; r++) {
		if (is_integer(&c->s))
			quantize(c, r, codes, scales);
		for (int64_t j = 0; j < c->s.n; j++) {
			double y = 0, size = 0;
			float result;

			for (int64_t l = 0; l < c->s.k && !is_integer(&c->s); l++) {
				const int64_t g = l / group;
				const double t = x_value(c, r, l) * (double)scale(c, g, j) *
						 (weight(c, l, j) - zero(c, g, j));

				y += t;
				size += fabs(t);
			}
			result = is_integer(&c->s) ? integer_sum(c, j, codes, scales) : (float)y;
			if (c->s.bias)
				result += ((const float *)c->bias.host)[j];
			if (c->s.bounds)
				result = fminf(fmaxf(result, -2), 3);
			c->y[r * c->s.n + j] = result;
			c->bound[r * c->s.n + j] =
				is_integer(&c->s) ? 0 : (float)((c->s.k + 9) * 0x1p-22 * size +
								fabs(y) * 0x1p-23);
		}
	}
	free(codes);
	free(scales);
}

static void random_values(struct scene *c)
{
	const struct shape *s = &c->s;
	uint8_t *bytes = c->w.host;
	int64_t i;

	for (i = 0; i < hz_tensor_count(&c->w.t); i++) {
		bytes[i] = (uint8_t)(s->extreme ? -rnd_below(&rnd, 2) : rnd_below(&rnd, 256));
		if (s->w_dtype == HZ_E4M3 && (bytes[i] & 0x7f) == 0x7f)
			bytes[i]--;
	}
	for (i = 0; i < hz_tensor_count(&c->x.t); i++) {
		if (s->x_dtype == HZ_S8)
			put_code(c->x.host, i, random_code(HZ_S8, s->extreme ? ENDS : RANDOM));
		else
			ref_put(s->x_dtype, c->x.host, i, ldexp(rnd_normal(&rnd), s->spread ?
				(int)rnd_below(&rnd, s->spread) - s->spread / 2 : 0));
	}
	for (i = 0; i < hz_tensor_count(&c->scales.t); i++) {
		if (s->s_dtype == HZ_E8M0)
			((uint8_t *)c->scales.host)[i] = (uint8_t)(118 + rnd_below(&rnd, 10));
		else
			ref_put(s->s_dtype, c->scales.host, i, rnd_normal(&rnd) *
				(s->tiny && rnd_below(&rnd, 2) ? 0x1p-125 : 0.05));
	}
	for (i = 0; i < hz_tensor_count(&c->zeros.t); i++)
		put_code(c->zeros.host, i, random_code(c->zeros.t.dtype, RANDOM));
	for (i = 0; i < hz_tensor_count(&c->x_scales.t); i++)
		((float *)c->x_scales.host)[i] = (float)fabs(rnd_normal(&rnd));
	for (i = 0; i < s->n; i++)
		((float *)c->bias.host)[i] = (float)rnd_normal(&rnd);
	*(float *)c->tensor.host = 0.37f;
}

static void scene_new(struct scene *c, const struct shape *s)
{
	const int64_t rows = s->batch * s->m, steps = s->mode == X_CODES_BY_32 ? (s->k + 31) / 32 : 1;
	const int64_t w_rows = is_nibbles(s->w_dtype) ? s->k / 2 : s->k, one = 1;
	const int64_t xs[] = { s->columns ? s->k : rows, (s->columns ? rows : s->k) + s->gap };
	const int64_t ps[] = { s->batch, s->m, steps };
	const bool is_signed = s->w_dtype == HZ_S8 || s->w_dtype == HZ_S4X2;
	int64_t ws[2], gs[2];

	memset(c, 0, sizeof(*c));
	c->s = *s;
	c->rows = rows;
	c->groups = s->group ? (s->k + s->group - 1) / s->group : 1;
	ws[s->transposed] = w_rows;
	ws[!s->transposed] = s->n;
	gs[s->transposed] = c->groups;
	gs[!s->transposed] = s->n;
	vec_new(&c->x, s->x_dtype, 2, xs);
	vec_new(&c->w, s->w_dtype, 2, ws);
	vec_new(&c->scales, s->s_dtype, 2, gs);
	vec_new(&c->zeros, is_signed ? HZ_S8 : HZ_U8, 2, gs);
	vec_new(&c->x_scales, HZ_F32, 3, ps);
	vec_new(&c->bias, HZ_F32, 1, &s->n);
	vec_new(&c->tensor, HZ_F32, 1, &one);
	c->y = calloc((size_t)(rows * s->n) + 1, 4);
	c->bound = calloc((size_t)(rows * s->n) + 1, 4);
	random_values(c);
	define(c);
}

static void scene_free(struct scene *c)
{
	struct vec *const all[] = { &c->x, &c->w, &c->scales, &c->zeros, &c->x_scales, &c->bias,
				    &c->tensor };

	for (int i = 0; i < 7; i++)
		free(all[i]->host);
	free(c->y);
	free(c->bound);
}

/* Compares y, in an image of the host, with the definition. */
static bool compare(const struct scene *c, const void *image, int64_t pitch)
{
	const struct shape *s = &c->s;

	for (int64_t r = 0; r < c->rows; r++) {
		for (int64_t j = 0; j < s->n; j++) {
			const double want = (double)c->y[r * s->n + j];
			const double bound = (double)c->bound[r * s->n + j];
			const double got = ref_get(s->y_dtype, image,
						   s->columns ? j * pitch + r : r * pitch + j);
			uint8_t rounded[4] = { 0 };
			double last;

			ref_put(s->y_dtype, rounded, 0, want);
			last = ref_get(s->y_dtype, rounded, 0);
			if (got == last || (isnan(got) && isnan(last)))
				continue;
			/* y's rounding; of f32 that of the sum with the bias */
			if (bound > 0 && fabs(got - want) <= bound +
			    (s->y_dtype == HZ_F32 ? (s->bias ? fabs(want) * 0x1p-23 : 0) :
			     s->y_dtype == HZ_F16 ? fabs(want) * 0x1p-10 + 0x1p-24 :
						    fabs(want) * 0x1p-7))
				continue;
			diag("row %lld column %lld: %.9g, not %.9g; bound %g", (long long)r,
			     (long long)j, got, last, bound);
			return false;
		}
	}
	return true;
}

static bool group_case(struct dev *dev, struct scene *c)
{
	const struct shape *s = &c->s;
	const int64_t pitch = (s->columns ? c->rows : s->n) + s->gap;
	const int64_t ys[] = { s->columns ? s->n : c->rows, pitch };
	const int64_t xm[] = { s->batch, s->m, s->k }, ym[] = { s->batch, s->m, s->n };
	hz_qlinear_group_opts o = { 0 }, p = { 0 };
	struct area ya, blob = { 0 };
	hz_tensor x, y, w, scales, zeros;
	hz_packed packed;
	unsigned char *image;
	size_t bytes;
	void *data;
	int status;
	bool good;

	y = hz_tensor_nd(NULL, s->y_dtype, dev->device, 2, ys);
	ya = area_new(dev, (size_t)hz_tensor_bytes(&y), 0);
	image = image_new(ya.bytes, 0, &data);
	area_write(&ya, image);
	x = *vec_there(&c->x, dev);
	x = hz_tensor_nd(x.data, s->x_dtype, dev->device, 3, xm);
	y = hz_tensor_nd(ya.data, s->y_dtype, dev->device, 3, ym);
	for (int i = 0; i < 2; i++) {
		hz_tensor *const t = i ? &y : &x;
		const int64_t ld = i ? pitch : c->x.t.shape[1];

		t->stride[2] = s->columns ? ld : 1;
		t->stride[1] = s->columns ? 1 : ld;
		t->stride[0] = s->m * t->stride[1];
	}
	w = *vec_there(&c->w, dev);
	scales = *vec_there(&c->scales, dev);
	zeros = *vec_there(&c->zeros, dev);
	if (s->transposed) {
		w = hz_view_transpose(&w, 0, 1);
		scales = hz_view_transpose(&scales, 0, 1);
		zeros = hz_view_transpose(&zeros, 0, 1);
	}
	p.zeros = s->zeros ? &zeros : NULL;
	p.tensor_scale = vec_there(&c->tensor, dev);
	if (!s->tensor_scale)
		p.tensor_scale = NULL;
	if (s->group && (s->k % s->group || c->groups == 1))
		p.group = s->group;
	o = p;
	o.bias = vec_there(&c->bias, dev);
	if (!s->bias)
		o.bias = NULL;
	o.x_scales = vec_there(&c->x_scales, dev);
	if (s->mode < X_CODES)
		o.x_scales = NULL;
	o.x_dtype = s->mode == X_ROWS || s->mode == X_BY_32 ? HZ_S8 : 0;
	o.x_group = s->mode == X_BY_32 ? 32 : 0;
	if (s->bounds) {
		o.given = HZ_QLINEAR_GROUP_GIVEN_MIN | HZ_QLINEAR_GROUP_GIVEN_MAX;
		o.min = -2;
		o.max = 3;
	}
	status = HZ_OK;
	if (s->packed) {
		status = hz_qlinear_group_pack_bytes(dev->ctx, &w, &scales, &p, &bytes);
		blob = area_new(dev, bytes, 0);
		status |= hz_qlinear_group_pack(dev->ctx, &w, &scales, &p, blob.data, bytes,
						&packed);
		o.packed = &packed;
		o.zeros = o.tensor_scale = NULL;
		o.group = 0;
	}
	status |= RECORD(dev->ctx, hz_qlinear_group(dev->ctx, &x, s->packed ? NULL : &w,
						    s->packed ? NULL : &scales, &y, &o), &bytes);
	status |= hz_reserve(dev->ctx, bytes);
	status |= hz_qlinear_group(dev->ctx, &x, s->packed ? NULL : &w, s->packed ? NULL : &scales,
				   &y, &o);
	area_read(&ya, image);
	good = !status && compare(c, data, pitch);
	/* Gaps and guards keep their bytes. */
	for (size_t i = 0; i < GUARD && good; i++)
		good = image[i] == GUARD_BYTE && image[ya.total - 1 - i] == GUARD_BYTE;
	for (int64_t r = 0; r < ys[0] && good; r++) {
		const size_t size = hz_dtype_size(s->y_dtype);

		for (size_t i = size * (size_t)(pitch - s->gap); i < size * (size_t)pitch; i++)
			good &= ((uint8_t *)data)[(size_t)(r * pitch) * size + i] == GUARD_BYTE;
	}
	if (!good)
		diag("%s: x %s w %s scales %s y %s mode %d group %lld, %lld x %lld x %lld x %lld, "
		     "zeros %d tensor %d transposed %d packed %d bias %d bounds %d gap %lld "
		     "columns %d: %s", dev->name, hz_dtype_name(s->x_dtype),
		     hz_dtype_name(s->w_dtype), hz_dtype_name(s->s_dtype), hz_dtype_name(s->y_dtype),
		     s->mode, (long long)s->group, (long long)s->batch, (long long)s->m,
		     (long long)s->n, (long long)s->k, s->zeros, s->tensor_scale, s->transposed,
		     s->packed, s->bias, s->bounds, (long long)s->gap, s->columns,
		     status ? hz_errmsg(dev->ctx) : "differs");
	free(image);
	area_free(&ya);
	if (s->packed)
		area_free(&blob);
	vec_drop(&c->x);
	vec_drop(&c->w);
	vec_drop(&c->scales);
	vec_drop(&c->zeros);
	vec_drop(&c->tensor);
	vec_drop(&c->bias);
	vec_drop(&c->x_scales);
	return good;
}

static struct shape random_shape(int i)
{
	static const int64_t groups[] = { 16, 32, 64, 128, 0 };
	static const int64_t lengths[] = { 512, 544, 1024, 1030, 130 };
	struct shape s = {
		.w_dtype = w_dtypes[i % 6], .s_dtype = scale_dtypes[rnd_below(&rnd, 5)],
		.y_dtype = floats[rnd_below(&rnd, 3)], .mode = i / 6 % X_MODES,
		.group = groups[rnd_below(&rnd, 5)], .batch = 1 + rnd_below(&rnd, 2),
		.m = 1 + rnd_below(&rnd, i % 7 == 0 ? 70 : 9), .n = 1 + rnd_below(&rnd, 70),
		.k = rnd_below(&rnd, 2) ? 32 * (1 + rnd_below(&rnd, 9)) :
					  2 * (1 + rnd_below(&rnd, 150)),
	};

	if (rnd_below(&rnd, 4) == 0) {
		s.k = lengths[rnd_below(&rnd, 5)];
		s.batch = 1;
		s.m = 1 + rnd_below(&rnd, 5);
	}
	s.x_dtype = s.mode >= X_CODES ? HZ_S8 : floats[rnd_below(&rnd, 3)];
	if (s.w_dtype == HZ_E4M3) {
		s.mode = X_FLOAT;
		s.x_dtype = floats[rnd_below(&rnd, 3)];
	}
	s.zeros = s.w_dtype != HZ_E4M3 && s.w_dtype != HZ_E2M1X2 && rnd_below(&rnd, 2);
	s.tensor_scale = rnd_below(&rnd, 2);
	s.transposed = rnd_below(&rnd, 2);
	s.packed = rnd_below(&rnd, 2);
	s.bias = rnd_below(&rnd, 2);
	s.bounds = rnd_below(&rnd, 3) == 0;
	s.extreme = rnd_below(&rnd, 4) == 0;
	s.gap = rnd_below(&rnd, 2) * 3;
	s.columns = rnd_below(&rnd, 4) == 0;
	return s;
}

/* On how many devices a layer of that shape is not as its definition */
static int failures(const struct shape *s)
{
	struct scene c;
	int bad = 0;

	scene_new(&c, s);
	for (int d = 0; d < ndevs; d++)
		bad += !group_case(&devs[d], &c);
	scene_free(&c);
	return bad;
}

static void test_definition(void)
{
	const int count = tap_quick() ? 60 : 300;
	int bad = 0;

	for (int i = 0; i < count && bad < 5; i++) {
		const struct shape s = random_shape(i);

		bad += failures(&s);
	}
	ok(!bad, "layers are as their definition, and integers have its bits");
}

/* k of more pieces than pipelines have stages, with every tile of rows */
static void test_long(void)
{
	static const struct shape shapes[] = {
		{ .x_dtype = HZ_BF16, .w_dtype = HZ_S4X2, .group = 128, .m = 70 },
		{ .x_dtype = HZ_F16, .w_dtype = HZ_U4X2, .m = 40, .zeros = true },
		{ .x_dtype = HZ_BF16, .w_dtype = HZ_E2M1X2, .group = 32, .m = 9 },
		{ .x_dtype = HZ_F32, .w_dtype = HZ_S4X2, .group = 128, .m = 20, .mode = X_BY_32 },
		{ .x_dtype = HZ_BF16, .w_dtype = HZ_S8, .group = 128, .m = 20, .mode = X_ROWS },
	};
	int bad = 0;

	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		struct shape s = shapes[i];

		s.s_dtype = s.y_dtype = HZ_F32;
		s.batch = 1;
		s.n = 17;
		s.k = 10250;
		s.packed = i % 2;
		bad += failures(&s);
	}
	ok(!bad, "k of 10250");
}

/*
 * Few rows of aligned 16-bit floats by groups; more panels of W than a GPU has blocks, or than 16
 * for each; magnitudes of bf16 that are in f16 all, or not
 */
static void test_gemv(void)
{
	static const int64_t ns[] = { 1, 16, 40, 2140, 4300, 33900 };
	static const int64_t ks[] = { 8, 128, 200, 1152, 1280, 3336 }, groups[] = { 128, 32, 64 };
	static const int spreads[] = { 0, 16, 24, 60, 120 };
	const int count = tap_quick() ? 16 : 120;
	int bad = 0;

	for (int i = 0; i < count && bad < 5; i++) {
		const int64_t n = ns[rnd_below(&rnd, tap_quick() ? 4 : 6)];
		const int spread = spreads[rnd_below(&rnd, i % 2 ? 2 : 5)];
		const struct shape s = {
			.x_dtype = i % 2 ? HZ_F16 : HZ_BF16, .w_dtype = i % 3 ? HZ_S4X2 : HZ_U4X2,
			.s_dtype = scale_dtypes[rnd_below(&rnd, 4)],
			.y_dtype = spread ? HZ_F32 : floats[rnd_below(&rnd, 3)],
			.group = groups[rnd_below(&rnd, 3)], .batch = 1,
			.m = i % 4 < 2 ? 1 : 2 + rnd_below(&rnd, 7), .n = n,
			.k = ks[rnd_below(&rnd, n > 5000 ? 3 : 6)],
			.spread = spread,
			.zeros = rnd_below(&rnd, 3) == 0, .packed = rnd_below(&rnd, 2),
			.bias = rnd_below(&rnd, 2), .bounds = rnd_below(&rnd, 4) == 0,
			.extreme = rnd_below(&rnd, 4) == 0, .gap = rnd_below(&rnd, 2) * 8,
		};

		bad += failures(&s);
	}
	ok(!bad, "up to 8 rows by groups");
}

/* Codes of more rows and columns than tiles have; the least scales, so that products underflow */
static void test_many_codes(void)
{
	static const int64_t groups[] = { 32, 64, 128, 0 };
	static const int kinds[] = { HZ_S4X2, HZ_U4X2, HZ_S8 };
	const int count = tap_quick() ? 6 : 12;
	int bad = 0;

	for (int i = 0; i < count && bad < 5; i++) {
		const int aligned = i % 4 < 3 ? 16 : 2;	/* sizes and gaps: rows are aligned or not */
		const struct shape s = {
			.w_dtype = kinds[i % 3], .x_dtype = i % 8 < 4 ? HZ_S8 : floats[i / 8 % 3],
			.mode = i % 8 < 4 ? X_CODES : X_ROWS, .s_dtype = scale_dtypes[i / 3 % 5],
			.y_dtype = floats[i / 2 % 3], .group = groups[(i + i / 4) % 4],
			.batch = 1 + rnd_below(&rnd, 2), .m = 57 + rnd_below(&rnd, 60),
			.n = 96 + rnd_below(&rnd, (i % 5 ? 64 : 200) / aligned) * aligned,
			.k = i % 6 ? 96 + rnd_below(&rnd, 300 / aligned) * aligned : 1712,
			.zeros = kinds[i % 3] != HZ_S8 && i / 3 % 2, .packed = rnd_below(&rnd, 2),
			.bias = rnd_below(&rnd, 2), .bounds = rnd_below(&rnd, 4) == 0,
			.extreme = rnd_below(&rnd, 4) == 0, .tiny = i / 3 % 5 == 0,
			.transposed = rnd_below(&rnd, 2), .gap = rnd_below(&rnd, 2) * aligned,
			.columns = i % 8 == 7,
		};

		bad += failures(&s);
	}
	ok(!bad, "tiles of codes");
}

/*
 * 16-bit floats of more rows and columns than tiles have, of which tiles are split along k if k has
 * enough groups; the last one has more tiles than a GPU has blocks
 */
static void test_many_floats(void)
{
	static const int64_t ks[] = { 130, 1290, 640, 1152 };
	const int count = tap_quick() ? 5 : 12;
	int bad = 0;

	for (int i = 0; i < count && bad < 5; i++) {
		const int aligned = i % 4 < 3 ? 8 : 2;	/* sizes and gaps: rows are aligned or not */
		const bool last = i == count - 1;
		const struct shape s = {
			.w_dtype = i % 3 ? HZ_S4X2 : HZ_U4X2, .x_dtype = i % 2 ? HZ_F16 : HZ_BF16,
			.s_dtype = scale_dtypes[i % 3], .y_dtype = floats[i / 2 % 3],
			.group = i % 5 == 4 ? 0 : 128, .batch = 1 + rnd_below(&rnd, 2),
			.m = last ? 3 : 65 + rnd_below(&rnd, 80),
			.n = last ? 17200 : 56 + rnd_below(&rnd, 240 / aligned) * aligned,
			.k = ks[i % 4], .zeros = i % 3 == 0, .packed = rnd_below(&rnd, 2),
			.bias = rnd_below(&rnd, 2), .bounds = rnd_below(&rnd, 4) == 0,
			.extreme = rnd_below(&rnd, 4) == 0, .tiny = i % 4 == 1,
			.transposed = rnd_below(&rnd, 2),
			.gap = rnd_below(&rnd, 2) * aligned,
		};

		bad += failures(&s);
	}
	ok(!bad, "tiles of floats");
}

/* ---- Special values, no elements, refusals --------------------------------------------------- */

/* One call on host data of a CPU context, or copies of them on a GPU */
struct small {
	float x[3][64], scales[2][5], y[3][5], bias[5];
	uint8_t w[5][32], zeros[2][5];
	struct area area;
	hz_tensor tx, tw, ts, ty, tz, tb;
};

static void small_new(struct dev *dev, struct small *s, int w_dtype)
{
	const hz_tensor all = hz_tensor_1d(s, HZ_U8, HZ_CPU, offsetof(struct small, area));
	char *p;

	p = to_device(dev, &all, &s->area).data;
	s->tx = hz_tensor_2d(p + offsetof(struct small, x), HZ_F32, dev->device, 3, 64);
	s->tw = hz_tensor_2d(p + offsetof(struct small, w), w_dtype, dev->device, 5, 32);
	s->tw = hz_view_transpose(&s->tw, 0, 1);
	s->ts = hz_tensor_2d(p + offsetof(struct small, scales), HZ_F32, dev->device, 2, 5);
	s->tz = hz_tensor_2d(p + offsetof(struct small, zeros), HZ_U8, dev->device, 2, 5);
	s->ty = hz_tensor_2d(p + offsetof(struct small, y), HZ_F32, dev->device, 3, 5);
	s->tb = hz_tensor_1d(p + offsetof(struct small, bias), HZ_F32, dev->device, 5);
}

static int small_call(struct dev *dev, struct small *s, const hz_qlinear_group_opts *o)
{
	size_t bytes;

	return RECORD(dev->ctx, hz_qlinear_group(dev->ctx, &s->tx, &s->tw, &s->ts, &s->ty, o),
		      &bytes) || hz_reserve(dev->ctx, bytes) ||
	       hz_qlinear_group(dev->ctx, &s->tx, &s->tw, &s->ts, &s->ty, o);
}

static void test_special(struct dev *dev)
{
	const hz_qlinear_group_opts opts[] = { { 0 }, { .x_dtype = HZ_S8 },
					       { .x_dtype = HZ_S8, .x_group = 32 } };
	bool good = true;

	for (int mode = 0; mode < 3; mode++) {
		struct small s = { 0 };
		hz_tensor host;

		for (int i = 0; i < 3 * 64; i++)
			s.x[i / 64][i % 64] = i / 64 == 2 ? 127 : 1;
		memset(s.w, 0x11, sizeof(s.w));
		for (int i = 0; i < 10; i++)
			s.scales[i / 5][i % 5] = i == 3 ? INFINITY : 2;
		s.x[0][40] = NAN;
		s.x[1][63] = INFINITY;
		small_new(dev, &s, HZ_S4X2);
		good &= small_call(dev, &s, &opts[mode]) == HZ_OK;
		host = hz_tensor_2d(s.y, HZ_F32, HZ_CPU, 3, 5);
		good &= hz_copy(dev->ctx, &s.ty, &host) == HZ_OK && hz_sync(dev->ctx) == HZ_OK;
		for (int j = 0; j < 5; j++) {
			/* A NaN is a code 0 among others; a row of an Inf has the scale Inf. */
			good &= mode ? j == 3 || fabsf(s.y[0][j] - 126) < 1e-3f : isnan(s.y[0][j]);
			good &= mode ? isnan(s.y[1][j]) : isinf(s.y[1][j]);
			good &= j == 3 ? isinf(s.y[2][j]) : s.y[2][j] == 127 * 128;
		}
		area_free(&s.area);
	}
	ok(good, "%s: NaN and Inf in x and in scales", dev->name);
}

/* A row of bf16 with NaN or Inf, or with a weight of 0 for the only large value */
static void test_special_row(struct dev *dev)
{
	static const float special[] = { NAN, INFINITY, 0x1p-60f };
	bool good = true;

	for (int i = 0; i < 3; i++) {
		struct small s = { 0 };
		uint16_t x[64], *const scales = (uint16_t *)s.scales;
		hz_tensor host;

		for (int l = 0; l < 64; l++)
			ref_put(HZ_BF16, x, l, i < 2);
		ref_put(HZ_BF16, x, 40, (double)special[i]);
		memset(s.w, 0x11, sizeof(s.w));
		for (int j = 0; j < 5 && i == 2; j++)
			s.w[j][0] = 0x10;
		if (i == 2)
			ref_put(HZ_BF16, x, 0, 0x1p60);
		memcpy(s.x, x, sizeof(x));
		for (int j = 0; j < 10; j++)
			ref_put(HZ_BF16, scales, j, 2);
		small_new(dev, &s, HZ_S4X2);
		s.tx = hz_tensor_2d(s.tx.data, HZ_BF16, dev->device, 1, 64);
		s.ts = hz_tensor_2d(s.ts.data, HZ_BF16, dev->device, 2, 5);
		s.ty.shape[0] = 1;
		good &= small_call(dev, &s, NULL) == HZ_OK;
		host = hz_tensor_2d(s.y, HZ_F32, HZ_CPU, 1, 5);
		good &= hz_copy(dev->ctx, &s.ty, &host) == HZ_OK && hz_sync(dev->ctx) == HZ_OK;
		for (int j = 0; j < 5; j++)
			good &= i == 0 ? isnan(s.y[0][j]) : i == 1 ? isinf(s.y[0][j]) :
				s.y[0][j] == 0x1p-59f;
		area_free(&s.area);
	}
	ok(good, "%s: special values in a row of bf16", dev->name);
}

/* Scales of a column that are 0, Inf or NaN, or far from each other; all codes are 1 */
static void test_scales(struct dev *dev)
{
	static const float columns[][3] = {
		{ 1, 2, 3 }, { 0, 2, 3 }, { 2, 0, 3 }, { 2, 3, 0 }, { 0, 0, 0 }, { INFINITY, 1, 1 },
		{ 1, -INFINITY, 0 }, { 1, NAN, 1 }, { 0x1p-140f, 1, 0x1p-140f }, { 1, 0x1p100f, 1 },
		{ 0x1p100f, 0x1p-100f, 1 }, { -1, 2, -3 }, { 0x1p-120f, 0x1p-121f, 0x1p-120f },
		{ 0x1p-140f, 0x1p-141f, 0 }, { 0, INFINITY, 0 }, { 0x1p118f, 0x1p117f, 1 },
	};
	struct {
		uint16_t x[2][384];
		uint8_t w[16][192];
		float scales[3][16], y[2][16];
		struct area area;
	} s = { 0 };
	const hz_qlinear_group_opts o = { .group = 128 };
	const hz_tensor all = hz_tensor_1d(&s, HZ_U8, HZ_CPU, (char *)&s.area - (char *)&s);
	hz_tensor x, w, scales, y, host = hz_tensor_2d(s.y, HZ_F32, HZ_CPU, 2, 16);
	size_t bytes;
	bool good;
	char *data;

	for (int i = 0; i < 2 * 384; i++)
		s.x[i / 384][i % 384] = i < 384 ? 0x3f80 : 0xc000;	/* 1 and -2 */
	memset(s.w, 0x11, sizeof(s.w));
	for (int i = 0; i < 3 * 16; i++)
		s.scales[i / 16][i % 16] = columns[i % 16][i / 16];
	data = to_device(dev, &all, &s.area).data;
	x = hz_tensor_2d(data, HZ_BF16, dev->device, 2, 384);
	w = hz_tensor_2d(data + ((char *)s.w - (char *)&s), HZ_S4X2, dev->device, 16, 192);
	w = hz_view_transpose(&w, 0, 1);
	scales = hz_tensor_2d(data + ((char *)s.scales - (char *)&s), HZ_F32, dev->device, 3, 16);
	y = hz_tensor_2d(data + ((char *)s.y - (char *)&s), HZ_F32, dev->device, 2, 16);
	good = RECORD(dev->ctx, hz_qlinear_group(dev->ctx, &x, &w, &scales, &y, &o), &bytes) == 0 &&
	       hz_reserve(dev->ctx, bytes) == HZ_OK &&
	       hz_qlinear_group(dev->ctx, &x, &w, &scales, &y, &o) == HZ_OK &&
	       hz_copy(dev->ctx, &y, &host) == HZ_OK && hz_sync(dev->ctx) == HZ_OK;
	for (int i = 0; i < 2 * 16; i++) {
		const float *const c = columns[i % 16];
		const double factor = i < 16 ? 128 : -256, got = s.y[i / 16][i % 16];
		const double want = factor * ((double)c[0] + c[1] + c[2]);
		const double sum = fabs(factor) * (fabs(c[0]) + fabs(c[1]) + fabs(c[2]));

		if (isfinite(want))
			good &= fabs(got - want) <= 1e-5 * sum + 0x1p-149;
		else
			good &= isnan(want) ? isnan(got) : got == want;
	}
	ok(good, "%s: scales far from each other", dev->name);
	area_free(&s.area);
}

/*
 * More tiles of bf16 than a GPU has blocks, with k long enough that the last ones are split. Codes
 * are sign(l) (1 + j % 7), so that the definition is cheap.
 */
static void test_many_tiles(struct dev *dev)
{
	enum { M = 130, N = 17200, K = 1152, GROUPS = K / 128 };
	uint16_t *const x = calloc(M * K, 2);
	uint8_t *const w = calloc(N, K / 2);
	float *const scales = calloc(N * GROUPS, 4), *const got = calloc(M * N, 4);
	int sums[M][GROUPS] = { 0 }, sizes[M][GROUPS] = { 0 };
	int8_t sign[K];
	const hz_tensor from[] = {
		hz_tensor_2d(x, HZ_BF16, HZ_CPU, M, K), hz_tensor_2d(w, HZ_S4X2, HZ_CPU, N, K / 2),
		hz_tensor_2d(scales, HZ_F32, HZ_CPU, N, GROUPS),
	};
	hz_tensor host = hz_tensor_2d(got, HZ_F32, HZ_CPU, M, N), wt, st;
	hz_tensor t[] = { from[0], from[1], from[2], host };
	const hz_qlinear_group_opts o = { .group = 128 };
	void *data[4] = { 0 };
	size_t bytes;
	bool good = x && w && scales && got;
	int bad = 0;

	for (int l = 0; l < K; l++)
		sign[l] = (int8_t)(rnd_below(&rnd, 2) ? 1 : -1);
	for (int i = 0; i < M * K && good; i++) {
		const int v = (int)rnd_below(&rnd, 7) - 3, g = i % K / 128;

		ref_put(HZ_BF16, x, i, v);
		sums[i / K][g] += v * sign[i % K];
		sizes[i / K][g] += abs(v);
	}
	for (int i = 0; i < N * (K / 2) && good; i++) {
		const int l = i % (K / 2) * 2, code = 1 + i / (K / 2) % 7;

		w[i] = (uint8_t)((sign[l] * code & 15) | (sign[l + 1] * code & 15) << 4);
	}
	for (int i = 0; i < N * GROUPS && good; i++)
		scales[i] = (float)(1 + rnd_below(&rnd, 5));
	for (int i = 0; i < 4 && good; i++) {
		good = hz_alloc(dev->ctx, &data[i], (size_t)hz_tensor_bytes(&t[i]),
				dev->device) == HZ_OK;
		t[i].data = data[i];
		t[i].device = dev->device;
		good = good && (i == 3 || hz_copy(dev->ctx, &from[i], &t[i]) == HZ_OK);
	}
	wt = hz_view_transpose(&t[1], 0, 1);
	st = hz_view_transpose(&t[2], 0, 1);
	good = good &&
	       RECORD(dev->ctx, hz_qlinear_group(dev->ctx, &t[0], &wt, &st, &t[3], &o),
		      &bytes) == 0 && hz_reserve(dev->ctx, bytes) == HZ_OK &&
	       hz_qlinear_group(dev->ctx, &t[0], &wt, &st, &t[3], &o) == HZ_OK &&
	       hz_copy(dev->ctx, &t[3], &host) == HZ_OK && hz_sync(dev->ctx) == HZ_OK;
	for (int i = 0; i < M * N && good; i++) {
		const int r = i / N, j = i % N;
		double y = 0, size = 0;

		for (int g = 0; g < GROUPS; g++) {
			const double s = (double)scales[j * GROUPS + g] * (1 + j % 7);

			y += s * sums[r][g];
			size += s * sizes[r][g];
		}
		bad += !(fabs(got[i] - y) <= size * K * 0x1p-22);
	}
	ok(good && !bad, "%s: more tiles than blocks", dev->name);
	for (int i = 0; i < 4; i++)
		hz_free(dev->ctx, data[i], dev->device);
	free(x);
	free(w);
	free(scales);
	free(got);
}

static void test_empty(struct dev *dev)
{
	struct small s = { .bias = { 1, 2, 3, 4, 5 } };
	const hz_qlinear_group_opts o = { .bias = &s.tb, .x_dtype = HZ_S8 };
	hz_tensor host = hz_tensor_2d(s.y, HZ_F32, HZ_CPU, 3, 5), full;
	bool good = true;

	small_new(dev, &s, HZ_U4X2);
	full = s.ty;
	s.tx.shape[1] = s.tw.shape[0] = 0;
	s.ts.shape[0] = 1;
	good &= small_call(dev, &s, &o) == HZ_OK && hz_copy(dev->ctx, &full, &host) == HZ_OK &&
		hz_sync(dev->ctx) == HZ_OK;
	for (int i = 0; i < 15; i++)
		good &= s.y[i / 5][i % 5] == (float)(i % 5 + 1);
	ok(good, "%s: without k y is the bias", dev->name);
	s.tx.shape[0] = s.ty.shape[0] = 0;
	is_int(small_call(dev, &s, &o), HZ_OK, "%s: no rows", dev->name);
	area_free(&s.area);
}

static void refused(struct dev *dev, struct small *s, const hz_qlinear_group_opts *o, int status,
		    const char *message)
{
	is_int(hz_qlinear_group(dev->ctx, &s->tx, &s->tw, &s->ts, &s->ty, o), status, "%s", message);
	is_str(hz_errmsg(dev->ctx), message, "its message");
}

static void test_refusals(struct dev *dev)
{
	struct small s = { 0 }, t;
	const hz_qlinear_group_opts ok_codes = { .x_dtype = HZ_S8 };

	small_new(dev, &s, HZ_S4X2);
	t = s;
	t.ts.shape[0] = 3;
	refused(dev, &t, NULL, HZ_ESHAPE, "qlinear_group: scales.shape[0] is 3, which does not "
		"divide k, 64: set opts->group");
	t = s;
	t.ts.shape[1] = 4;
	refused(dev, &t, NULL, HZ_ESHAPE,
		"qlinear_group: scales.shape[1] is 4, must be 5, as w");
	refused(dev, &s, &(hz_qlinear_group_opts){ .group = 48 }, HZ_EINVAL,
		"qlinear_group: opts->group is 48, must be 16, 32, 64 or 128, or scales [1, n]");
	refused(dev, &s, &(hz_qlinear_group_opts){ .x_group = 32 }, HZ_EINVAL,
		"qlinear_group: opts->x_group is 32, must be 0, or 32 with opts->x_dtype");
	refused(dev, &s, &(hz_qlinear_group_opts){ .x_dtype = HZ_U8 }, HZ_EINVAL,
		"qlinear_group: opts->x_dtype is u8, must be s8 or 0");
	refused(dev, &s, &(hz_qlinear_group_opts){ .min = 1 }, HZ_EINVAL,
		"qlinear_group: opts->min is set, but opts->given lacks HZ_QLINEAR_GROUP_GIVEN_MIN");
	refused(dev, &s, &(hz_qlinear_group_opts){ .zeros = &s.tz }, HZ_EDTYPE,
		"qlinear_group: opts->zeros.dtype is u8, must be s8, as w is s4x2");
	t = s;
	t.tx.shape[1] = 63;
	refused(dev, &t, NULL, HZ_ESHAPE, "qlinear_group: x.shape[1] is 63, must be 64, as w");
	t = s;
	t.tw.dtype = HZ_E4M3;
	t.tx.shape[1] = 32;
	refused(dev, &t, &ok_codes, HZ_ENOTSUP,
		"qlinear_group: w is e4m3, which is not supported with codes x");
	area_free(&s.area);
}

/* More products than 63 bits count, in a recording, which needs no memory */
static void test_overflow(struct dev *dev)
{
	const int64_t m = 1 << 30, k = 1 << 20, n = 1 << 20;
	const hz_tensor x = hz_tensor_2d(NULL, HZ_F32, dev->device, m, k);
	const hz_tensor w = hz_tensor_2d(NULL, HZ_U8, dev->device, k, n);
	const hz_tensor s = hz_tensor_2d(NULL, HZ_F32, dev->device, 1, n);
	hz_tensor y = hz_tensor_2d(NULL, HZ_F32, dev->device, m, n);
	size_t bytes;

	is_int(hz_record_begin(dev->ctx), HZ_OK, "recording");
	is_int(hz_qlinear_group(dev->ctx, &x, &w, &s, &y, NULL), HZ_ESHAPE, "too many products");
	is_str(hz_errmsg(dev->ctx), "qlinear_group: x is too large: the size of its copy or the "
	       "number of products overflows", "its message");
	is_int(hz_record_end(dev->ctx, &bytes), HZ_OK, "recorded");
}

int main(void)
{
	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_qlinear_group);
	test_definition();
	test_long();
	test_gemv();
	test_many_codes();
	test_many_floats();
	for (int d = 0; d < ndevs; d++) {
		test_special(&devs[d]);
		test_special_row(&devs[d]);
		test_scales(&devs[d]);
		if (devs[d].device != HZ_CPU)
			test_many_tiles(&devs[d]);
		test_empty(&devs[d]);
	}
	test_refusals(&devs[0]);
	test_overflow(&devs[0]);
	dev_close_all();
	return done_testing();
}
