/*
 * quantize.c - hz_hadamard_quantize() and hz_dequantize_hadamard()
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/core/dev.h"

static uint64_t rnd;
static int quick;
static long cases;

static const int codes[] = { HZ_S8, HZ_S4X2, HZ_E4M3, HZ_E5M2 };
static const int scales[] = { HZ_F32, HZ_E8M0 };

enum values { RANDOM, ZEROS, SPARSE_NAN, TINY, HUGE_VALUES, LARGEST, OUTLIERS, EDGES, INTEGERS,
	      CONSTANT };

/* v is x of quantization, or y of dequantization; q and scale have its outer dimensions. */
struct tcase {
	int ndim, v_dtype, q_dtype, scale_dtype;
	int64_t shape[HZ_MAXDIM], group;
	int64_t v_stride[HZ_MAXDIM], q_stride[HZ_MAXDIM], scale_stride[HZ_MAXDIM];
	enum values values;
	int exact;			/* sums are exact in any order, and so is r in s = 1 / r */
	hz_hadamard_opts o;		/* pre and post on the host */
};

/* An operand of a case: its image before a call, the expected image, and the view in it */
struct operand {
	int dtype, ndim;
	int64_t shape[HZ_MAXDIM], stride[HZ_MAXDIM], low;
	size_t bytes, total;
	unsigned char *before, *want;
};

static void operand_init(struct operand *p, const struct tcase *c, int dtype, int64_t last,
			 const int64_t *stride)
{
	size_t size = hz_dtype_size(dtype);
	int64_t high;
	void *data;

	p->dtype = dtype;
	p->ndim = c->ndim;
	memcpy(p->shape, c->shape, sizeof(p->shape));
	memcpy(p->stride, stride, sizeof(p->stride));
	p->shape[p->ndim - 1] = last;
	reach(p->ndim, p->shape, p->stride, &p->low, &high);
	p->bytes = (size_t)(high - p->low) * size;
	p->total = GUARD + p->bytes + GUARD;
	p->before = image_new(p->bytes, 0, &data);
	p->want = image_new(p->bytes, 0, &data);
}

static void operand_free(struct operand *p)
{
	free(p->before);
	free(p->want);
}

/* The address of element 0 in an image */
static unsigned char *origin(const struct operand *p, const unsigned char *image)
{
	return (unsigned char *)(uintptr_t)image + GUARD -
	       p->low * (int64_t)hz_dtype_size(p->dtype);
}

static hz_tensor operand_view(const struct operand *p, const struct area *a)
{
	hz_tensor t = hz_tensor_nd((char *)a->data - p->low * (int64_t)hz_dtype_size(p->dtype),
				   p->dtype, a->dev->device, p->ndim, p->shape);

	memcpy(t.stride, p->stride, sizeof(t.stride));
	return t;
}

/* The offset of item i of the outer dimensions */
static int64_t item_offset(const struct operand *p, int64_t i)
{
	int64_t offset = 0;
	int d;

	for (d = p->ndim - 2; d >= 0; d--) {
		offset += i % p->shape[d] * p->stride[d];
		i /= p->shape[d];
	}
	return offset;
}

static int64_t items_of(const struct tcase *c)
{
	int64_t items = 1;
	int d;

	for (d = 0; d < c->ndim - 1; d++)
		items *= c->shape[d];
	return items;
}

static double value_of(const struct tcase *c, int64_t i)
{
	static const double special[] = { NAN, INFINITY, -INFINITY };
	double v = rnd_normal(&rnd);

	switch (c->values) {
	case ZEROS:
		return i / 32 % 2 == 0 ? v : rnd_below(&rnd, 2) ? -0.0 : 0.0;
	case SPARSE_NAN:
		return rnd_below(&rnd, 300) ? v : special[rnd_below(&rnd, 3)];
	case TINY:
		return ldexp(v, -140 - (int)rnd_below(&rnd, 9));
	case HUGE_VALUES:
		return ldexp(v, 120);
	case LARGEST:
		return FLT_MAX * (double)(1 - ldexpf(1, -(int)rnd_below(&rnd, 30))) *
		       (rnd_below(&rnd, 2) ? 1 : -1);
	case EDGES:	/* amax equal to and next to qmax times a power of two */
		if (i % 32)
			return v / 100;
		v = ldexp(ref_qmax(c->q_dtype), (int)rnd_below(&rnd, 20) - 10);
		if (rnd_below(&rnd, 3))
			v = (double)nextafterf((float)v, rnd_below(&rnd, 2) ? 1e9f : 0);
		return v;
	case OUTLIERS:
		return rnd_below(&rnd, 200) ? v : 100 * v;
	case INTEGERS:
		return (double)(rnd_below(&rnd, 17) - 8);
	case CONSTANT:
		return 60000;
	default:
		return v;
	}
}

static void describe(const struct tcase *c, const struct dev *dev)
{
	char text[512];
	size_t n;
	int d;

	n = (size_t)snprintf(text, sizeof(text), "%s: %s, %s, %s, group %lld, values %d, shape",
			     dev->name,
			     hz_dtype_name(c->v_dtype), hz_dtype_name(c->q_dtype),
			     hz_dtype_name(c->scale_dtype), (long long)c->group, c->values);
	for (d = 0; d < c->ndim; d++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, " %lld (%lld %lld %lld)",
				      (long long)c->shape[d], (long long)c->v_stride[d],
				      (long long)c->q_stride[d], (long long)c->scale_stride[d]);
	diag("%s", text);
	describe_opts(&c->o);
}

/* Replaces NaNs in got, whose sign and payload are arbitrary, by those expected. */
static void excuse_nans(const struct operand *p, unsigned char *got, int64_t items)
{
	unsigned char *g = origin(p, got), *w = origin(p, p->want);
	size_t size = hz_dtype_size(p->dtype);
	int64_t i, j, at;

	if (p->dtype == HZ_S8 || p->dtype == HZ_S4X2 || p->dtype == HZ_E8M0)
		return;
	for (i = 0; i < items; i++) {
		for (j = 0; j < p->shape[p->ndim - 1]; j++) {
			at = item_offset(p, i) + j * p->stride[p->ndim - 1];
			if (isnan(ref_get(p->dtype, g, at)) && isnan(ref_get(p->dtype, w, at)))
				memcpy(g + at * (int64_t)size, w + at * (int64_t)size, size);
		}
	}
}

static int same_operand(const struct operand *p, const struct area *a, const char *name,
			int64_t items)
{
	unsigned char *got = malloc(p->total);
	size_t first = 0;
	int good;

	area_read(a, got);
	if (memcmp(got, p->want, p->total) != 0)
		excuse_nans(p, got, items);
	good = same_bits(got, p->want, p->total, 1);
	if (!good) {
		while (got[first] == p->want[first])
			first++;
		diag("%s: byte %zu, %lld elements from the first", name, first,
		     ((long long)first - (origin(p, got) - got)) /
			     (long long)hz_dtype_size(p->dtype));
	}
	free(got);
	return good;
}

/*
 * A GPU has the CPU's bits only in f32 Sylvester transforms. For other f32 transforms its codes are
 * checked against the quantization of its own transform; for 16-bit x, against values within a
 * bound of the transform.
 */
static int is_exact(const struct dev *dev, const struct tcase *c, const struct ref_op *op)
{
	return dev->device == HZ_CPU || (c->v_dtype == HZ_F32 && !op->base);
}

static int takes_near(const struct dev *dev, const struct tcase *c)
{
	return dev->device != HZ_CPU && c->v_dtype != HZ_F32;
}

static void device_opts(struct dev *dev, hz_hadamard_opts *o, hz_tensor *diags, struct area *areas)
{
	memset(areas, 0, 2 * sizeof(*areas));
	if (o->pre) {
		diags[0] = to_device(dev, o->pre, &areas[0]);
		o->pre = &diags[0];
	}
	if (o->post) {
		diags[1] = to_device(dev, o->post, &areas[1]);
		o->post = &diags[1];
	}
}

/* Sets rows[] to the f32 transform that the context computes. */
static void own_transform(struct dev *dev, const struct operand *v, const hz_hadamard_opts *o,
			  float *rows)
{
	struct area ax = area_new(dev, v->bytes, 0), ay;
	int64_t n = hz_tensor_count(&(hz_tensor){ .ndim = (int16_t)v->ndim, .shape = {
		v->shape[0], v->shape[1], v->shape[2], v->shape[3], v->shape[4], v->shape[5] } });
	unsigned char *image;
	hz_tensor x, y;
	void *data;

	ay = area_new(dev, (size_t)n * 4, 0);
	area_write(&ax, v->before);
	x = operand_view(v, &ax);
	y = hz_tensor_nd(ay.data, HZ_F32, dev->device, v->ndim, v->shape);
	if (hz_hadamard(dev->ctx, &x, &y, o) != HZ_OK)
		diag("hadamard: %s", hz_errmsg(dev->ctx));
	image = image_new((size_t)n * 4, 0, &data);
	area_read(&ay, image);
	memcpy(rows, data, (size_t)n * 4);
	free(image);
	area_free(&ax);
	area_free(&ay);
}

/* Stores the codes and scales of the rows t, by definition, in the expected images. */
static void want_codes(const struct tcase *c, const float *t, struct operand *q,
		       struct operand *scale)
{
	int64_t n = c->shape[c->ndim - 1], items = items_of(c), i, j, g;
	int64_t per_byte = c->q_dtype == HZ_S4X2 ? 2 : 1;
	double *code = malloc((size_t)c->group * sizeof(*code));
	float *group = malloc((size_t)c->group * sizeof(*group)), s;

	for (i = 0; i < items; i++) {
		for (g = 0; g < n / c->group; g++) {
			for (j = 0; j < c->group; j++) {
				group[j] = t[i * n + g * c->group + j];
				if (c->o.round_to)
					group[j] = (float)ref_small_decode(
						c->o.round_to,
						ref_small_encode(c->o.round_to, (double)group[j]));
			}
			s = ref_quantize(group, c->group, c->q_dtype, c->scale_dtype, code);
			ref_put(c->scale_dtype, origin(scale, scale->want),
				item_offset(scale, i) + g,
				(double)s);
			for (j = 0; j < c->group; j++) {
				if (isfinite(s) && !isfinite((float)code[j] * s))
					bail("a code of %g dequantizes to Inf", (double)s);
				ref_put(c->q_dtype, origin(q, q->want),
					item_offset(q, i) * per_byte + g * c->group + j, code[j]);
			}
		}
	}
	free(code);
	free(group);
}

static float rounded(const struct tcase *c, double t)
{
	if (!c->o.round_to)
		return (float)t;
	return (float)ref_small_decode(c->o.round_to,
				       ref_small_encode(c->o.round_to, (double)(float)t));
}

static int same_number(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

/* Whether s and the codes of a group are right for some values within e of t */
static int near_group(const struct tcase *c, const float *t, double e, float s, const double *got)
{
	double most = 0, none, *code;
	float low, high, least, greatest, *group = malloc((size_t)c->group * sizeof(*group));
	int good = 1, finite = 1;
	int64_t j;

	for (j = 0; j < c->group; j++) {
		group[j] = rounded(c, (double)t[j]);
		finite &= isfinite(group[j]) != 0;
		most = fabs((double)t[j]) > most ? fabs((double)t[j]) : most;
	}
	if (!finite) {
		code = malloc((size_t)c->group * sizeof(*code));
		good = same_number((double)s, (double)ref_quantize(group, c->group, c->q_dtype,
								   c->scale_dtype, code));
		for (j = 0; j < c->group; j++)
			good &= same_number(got[j], code[j]);
		free(code);
	}
	free(group);
	if (!finite)
		return good;
	low = rounded(c, most > e ? most - e : 0);
	high = rounded(c, most + e);
	if (!isfinite(high))
		return 1;
	least = ref_quantize(&low, 1, c->q_dtype, c->scale_dtype, &none);
	greatest = ref_quantize(&high, 1, c->q_dtype, c->scale_dtype, &none);
	good = low == 0 ? s == 1 || (s > 0 && s <= greatest) : s >= least && s <= greatest;
	for (j = 0; j < c->group; j++)
		good &= got[j] >= ref_code(rounded(c, (double)t[j] - e), s, c->q_dtype) &&
			got[j] <= ref_code(rounded(c, (double)t[j] + e), s, c->q_dtype);
	return good;
}

/* Whether codes and scales on the device are right for values within the bound of the transform t;
 * if so, they become the expected ones. */
static int near_codes(const struct tcase *c, const struct ref_op *op, const struct operand *v,
		      const float *t, struct operand *q, struct operand *scale,
		      const struct area *aq, const struct area *as)
{
	int64_t n = c->shape[c->ndim - 1], items = items_of(c), i, j, g;
	int64_t per_byte = c->q_dtype == HZ_S4X2 ? 2 : 1;
	unsigned char *got_q = malloc(q->total), *got_s = malloc(scale->total);
	double *x = malloc((size_t)n * sizeof(*x)), *code = malloc((size_t)n * sizeof(*code)), e;
	size_t size = hz_dtype_size(c->scale_dtype);
	int good = 1;

	area_read(aq, got_q);
	area_read(as, got_s);
	for (i = 0; i < items; i++) {
		int64_t at = item_offset(q, i), s_at = item_offset(scale, i);

		for (j = 0; j < n; j++) {
			x[j] = ref_get(c->v_dtype, origin(v, v->before),
				       item_offset(v, i) + j * v->stride[c->ndim - 1]);
			x[j] = isfinite(x[j]) ? x[j] : 0;
			code[j] = ref_get(c->q_dtype, origin(q, got_q), at * per_byte + j);
		}
		e = c->exact ? 0 : 2 * ref_bound(op, x, x, HZ_F32);
		for (g = 0; g < n / c->group; g++) {
			if (!near_group(c, t + i * n + g * c->group, e,
					(float)ref_get(c->scale_dtype, origin(scale, got_s),
						       s_at + g),
					code + g * c->group)) {
				diag("item %lld, group %lld: not within %g", (long long)i,
				     (long long)g, e);
				good = 0;
			}
		}
		memcpy(origin(q, q->want) + at, origin(q, got_q) + at, (size_t)(n / per_byte));
		memcpy(origin(scale, scale->want) + s_at * (int64_t)size,
		       origin(scale, got_s) + s_at * (int64_t)size, (size_t)(n / c->group) * size);
	}
	free(got_q);
	free(got_s);
	free(x);
	free(code);
	return good;
}

/* Element j of item i: a code times its scale */
static float value_at(const struct tcase *c, const struct operand *q, const struct operand *scale,
		      int64_t i, int64_t j)
{
	int64_t per_byte = c->q_dtype == HZ_S4X2 ? 2 : 1;

	return (float)ref_get(c->q_dtype, origin(q, q->want), item_offset(q, i) * per_byte + j) *
	       (float)ref_get(c->scale_dtype, origin(scale, scale->want),
			      item_offset(scale, i) + j / c->group);
}

/* Quantizes on one context, then dequantizes the expected codes and scales. */
static int run_case(struct dev *dev, const struct tcase *c, const struct ref_op *op,
		    struct operand *v, struct operand *q, struct operand *scale, const float *t)
{
	struct area av = area_new(dev, v->bytes, 0), aq = area_new(dev, q->bytes, 0);
	struct area as = area_new(dev, scale->bytes, 0), diag_areas[2];
	int64_t n = c->shape[c->ndim - 1], items = items_of(c), i, j;
	hz_tensor tv, tq, ts, diags[2];
	hz_hadamard_opts o = c->o;
	struct operand y = *v;
	struct ref_op back = *op;
	float *row, *out, *own = NULL;
	double *dx, *dy;
	int good = 1, status;

	device_opts(dev, &o, diags, diag_areas);
	tv = operand_view(v, &av);
	tq = operand_view(q, &aq);
	ts = operand_view(scale, &as);
	if (!is_exact(dev, c, op)) {
		own = malloc((size_t)(items * n) * sizeof(*own));
		own_transform(dev, v, &o, own);
		want_codes(c, own, q, scale);
	} else {
		want_codes(c, t, q, scale);
	}

	area_write(&av, v->before);
	area_write(&aq, q->before);
	area_write(&as, scale->before);
	status = hz_hadamard_quantize(dev->ctx, &tv, &tq, &ts, &o);
	if (status == HZ_OK)
		status = hz_sync(dev->ctx);
	if (status != HZ_OK) {
		diag("status %d: %s", status, hz_errmsg(dev->ctx));
		good = 0;
	}
	if (takes_near(dev, c))
		good &= near_codes(c, op, v, own, q, scale, &aq, &as);
	good &= same_operand(q, &aq, "q", items);
	good &= same_operand(scale, &as, "scale", items);
	memcpy(v->want, v->before, v->total);
	good &= same_operand(v, &av, "x", 0);

	/* dequantization of the expected codes, into guard bytes */
	area_write(&aq, q->want);
	area_write(&as, scale->want);
	memset(v->want, GUARD_BYTE, v->total);
	area_write(&av, v->want);
	ref_op_invert(&back);
	row = malloc((size_t)n * sizeof(*row));
	out = malloc((size_t)(n * items) * sizeof(*out));
	dx = malloc((size_t)n * sizeof(*dx));
	dy = malloc((size_t)n * sizeof(*dy));
	for (i = 0; i < items; i++) {
		for (j = 0; j < n; j++)
			row[j] = value_at(c, q, scale, i, j);
		ref_ordered(&back, row, out + i * n);
		for (j = 0; j < n; j++)
			ref_put(c->v_dtype, origin(v, v->want),
				item_offset(v, i) + j * v->stride[c->ndim - 1],
				(double)out[i * n + j]);
	}
	status = hz_dequantize_hadamard(dev->ctx, &tq, &ts, &tv, &o);
	if (status == HZ_OK)
		status = hz_sync(dev->ctx);
	if (status != HZ_OK) {
		diag("status %d: %s", status, hz_errmsg(dev->ctx));
		good = 0;
	}
	if (dev->device != HZ_CPU && (c->v_dtype != HZ_F32 || op->base)) {
		/* checks the bound, then takes over the values, to compare the rest of the image */
		unsigned char *got = malloc(v->total);

		area_read(&av, got);
		for (i = 0; i < items; i++) {
			double e = 0, bound;
			int finite = 1;

			for (j = 0; j < n; j++) {
				int64_t at = item_offset(v, i) + j * v->stride[c->ndim - 1];
				double w = (double)out[i * n + j];

				dx[j] = (double)value_at(c, q, scale, i, j);
				dy[j] = ref_get(c->v_dtype, origin(v, got), at);
				finite &= isfinite(dy[j]) && isfinite(w);
				e += (dy[j] - w) * (dy[j] - w);
				ref_put(c->v_dtype, origin(v, v->want), at, dy[j]);
			}
			bound = ref_bound(&back, dx, dy, c->v_dtype) +
				ref_bound(&back, dx, dy, HZ_F32);
			if (finite && sqrt(e) > bound) {
				diag("item %lld: error %g, allowed %g", (long long)i, sqrt(e),
				     bound);
				good = 0;
			}
		}
		free(got);
	}
	good &= same_operand(&y, &av, "y", items);
	memcpy(q->before, q->want, q->total);
	good &= same_operand(q, &aq, "q", 0);
	good &= same_operand(scale, &as, "scale", 0);
	memset(q->before, GUARD_BYTE, q->total);
	free(row);
	free(out);
	free(own);
	free(dx);
	free(dy);
	area_free(&av);
	area_free(&aq);
	area_free(&as);
	for (i = 0; i < 2; i++)
		if (diag_areas[i].dev)
			area_free(&diag_areas[i]);
	if (!good)
		describe(c, dev);
	return good;
}

static int check_case_on(const struct tcase *c, int first, int last)
{
	int64_t n = c->shape[c->ndim - 1], items = items_of(c), i, j;
	struct operand v, q, scale;
	struct ref_op op;
	float *row, *t;
	int d, good = 1;

	cases++;
	if (ref_op_init(&op, n, &c->o))
		bail("a case that no plan makes: n %lld plan %d", (long long)n, c->o.plan);
	operand_init(&v, c, c->v_dtype, n, c->v_stride);
	operand_init(&q, c, c->q_dtype, c->q_dtype == HZ_S4X2 ? n / 2 : n, c->q_stride);
	operand_init(&scale, c, c->scale_dtype, n / c->group, c->scale_stride);
	row = malloc((size_t)n * sizeof(*row));
	t = malloc((size_t)(n * items) * sizeof(*t));
	for (i = 0; i < items; i++) {
		for (j = 0; j < n; j++) {
			int64_t at = item_offset(&v, i) + j * v.stride[c->ndim - 1];

			ref_put(c->v_dtype, origin(&v, v.before), at, value_of(c, j));
			row[j] = (float)ref_get(c->v_dtype, origin(&v, v.before), at);
		}
		ref_ordered(&op, row, t + i * n);
	}
	for (d = first; d < last; d++)
		good &= run_case(&devs[d], c, &op, &v, &q, &scale, t);
	free(row);
	free(t);
	operand_free(&v);
	operand_free(&q);
	operand_free(&scale);
	ref_op_free(&op);
	return good;
}

static int check_case(const struct tcase *c)
{
	return check_case_on(c, 0, ndevs);
}

/* Strides of contiguous operands, or with `pad` elements after each row */
static void lay_out_case(struct tcase *c, int64_t pad)
{
	int64_t shape[HZ_MAXDIM];

	memcpy(shape, c->shape, sizeof(shape));
	lay_out(c->ndim, shape, pad, c->v_stride);
	shape[c->ndim - 1] = c->shape[c->ndim - 1] / (c->q_dtype == HZ_S4X2 ? 2 : 1);
	lay_out(c->ndim, shape, pad, c->q_stride);
	shape[c->ndim - 1] = c->shape[c->ndim - 1] / c->group;
	lay_out(c->ndim, shape, pad, c->scale_stride);
}

static struct tcase rows_case(int64_t rows, int64_t n, int v_dtype, int q_dtype, int scale_dtype,
			      int64_t group)
{
	struct tcase c = { .ndim = 2, .v_dtype = v_dtype, .q_dtype = q_dtype,
			   .scale_dtype = scale_dtype, .shape = { rows, n }, .group = group };

	lay_out_case(&c, 0);
	return c;
}

/* ---- Groups of cases ------------------------------------------------------------------------- */

/* In quick runs a third of the cases, numbered by the sum of their parameters */
static int runs(int number)
{
	return !quick || number % 3 == 0;
}

static void test_formats(void)
{
	static const int64_t groups[] = { 0, 32, 64, 128 };
	int f, s, g, v, k, good;

	for (f = 0; f < 4; f++) {
		for (s = 0; s < 2; s++) {
			good = 1;
			for (g = 0; g < 4; g++) {
				for (k = 1; k <= 11; k += k < 6 ? 1 : 2) {
					const int64_t n = 1 << k;

					if (groups[g] && n % groups[g])
						continue;
					for (v = 0; v < 3; v++) {
						struct tcase c = rows_case(
							3, n, floats[v], codes[f], scales[s],
							groups[g] ? groups[g] : n);

						if (!runs(f + s + g + k + v))
							continue;
						c.values = v == 1 ? OUTLIERS : RANDOM;
						good &= check_case(&c);
						lay_out_case(&c, 3);
						good &= check_case(&c);
					}
				}
			}
			ok(good, "%s with %s scales, all groups and dtypes",
			   hz_dtype_name(codes[f]),
			   hz_dtype_name(scales[s]));
		}
	}
}

static void test_values(void)
{
	static const struct {
		enum values values;
		const char *what;
	} all[] = {
		{ ZEROS, "groups of zeros" }, { SPARSE_NAN, "NaN and Inf" },
		{ TINY, "denormals, and scales that underflow" }, { HUGE_VALUES, "2^120" },
		{ LARGEST, "up to the largest float" },
		{ EDGES, "an amax on and beside a power of two times qmax" },
	};
	int i, f, s, g, v, good;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		good = 1;
		for (f = 0; f < 4; f++) {
			for (s = 0; s < 2; s++) {
				for (g = 0; g < 4; g++) {
					for (v = 0; v < 6; v++) {
						struct tcase c = rows_case(5, 256, floats[v % 3],
									   codes[f], scales[s],
									   32 << g);

						if (!runs(i + f + s + g + v / 3 + v))
							continue;
						/* blocks of length 1 leave values unchanged */
						c.o.block = v < 3 && all[i].values != LARGEST ?
							    32 : 1;
						c.values = all[i].values;
						good &= check_case(&c);
					}
				}
			}
		}
		ok(good, "%s in every format", all[i].what);
	}
}

/* The default plan makes any length: tail blocks down to 1; groups extend over several blocks. */
static void test_any_length(void)
{
	static const int64_t lengths[] = { 1, 3, 12, 20, 214, 387, 1000, 31, 32 * 33, 128 * 7 };
	int i, v, f, good = 1;

	for (i = 0; i < (int)(sizeof(lengths) / sizeof(*lengths)); i++) {
		for (v = 0; v < 3; v++) {
			for (f = 0; f < 4; f++) {
				const int64_t n = lengths[i];
				struct tcase c = rows_case(3, n, floats[v], codes[f], scales[v % 2],
							   n % 128 ? n % 32 ? n : 32 : 128);

				if (codes[f] != HZ_S4X2 || n % 2 == 0)
					good &= check_case(&c);
			}
		}
	}
	ok(good, "rows of 1 to 1056 by the default plan");
}

/* Rows of 2^k whose sums are exact in any order, so that there is one right result */
static int exact_case(int k, int v_dtype, int q_dtype, int64_t group)
{
	struct tcase c = rows_case(3, 1 << k, v_dtype, q_dtype, HZ_E8M0, group ? group : 1 << k);
	uint8_t signs[2][1 << 12];
	hz_tensor pre = hz_tensor_1d(signs[0], HZ_U8, HZ_CPU, (1 << k) / 8);
	hz_tensor post = hz_tensor_1d(signs[1], HZ_U8, HZ_CPU, (1 << k) / 8);
	int good;

	c.values = INTEGERS;
	c.exact = 1;
	c.o.flags = HZ_HADAMARD_RAW;
	good = check_case(&c);
	c.o.factor = -0.25;
	hz_hadamard_signs(signs[0], 1 << k, rnd_u64(&rnd));
	hz_hadamard_signs(signs[1], 1 << k, rnd_u64(&rnd));
	c.o.pre = &pre;
	c.o.post = &post;
	good &= check_case(&c);
	c.values = CONSTANT;
	c.o.pre = c.o.post = NULL;
	c.o.factor = 0;
	c.scale_dtype = HZ_F32;
	return good & check_case(&c);
}

static void test_exact(void)
{
	static const int64_t groups[] = { 0, 32, 64, 128 };
	int k, v, f, g, good = 1;

	for (k = 5; k <= (tap_cuda() ? 15 : 9); k++)
		for (g = 0; g < 4; g++)
			for (v = 0; v < 3 && groups[g] <= 1 << k; v++)
				for (f = 0; f < 4; f++)
					good &= !runs(f + g + k + v) ||
						exact_case(k, floats[v], codes[f], groups[g]);
	ok(good, "exact sums and scales of rows to 2^%d", k - 1);
}

enum { TIES = 40, TIE = 128 };

static float ties[TIES * TIE];

/* Numbers on and next to the ties of a format; the largest is qmax, so that s is 1. */
static void fill_ties(float *x, int q_dtype)
{
	double qmax = ref_qmax(q_dtype), v;
	unsigned code;
	int64_t j;

	for (j = 0; j < TIE; j++) {
		if (q_dtype == HZ_S8 || q_dtype == HZ_S4X2) {
			v = (double)rnd_below(&rnd, 2 * (int64_t)qmax) - qmax + 0.5;
		} else {
			code = (unsigned)rnd_below(&rnd, q_dtype == HZ_E4M3 ? 0x7e : 0x7b);
			v = ref_small_decode(q_dtype, code) / 2 +
			    ref_small_decode(q_dtype, code + 1) / 2;
			v = rnd_below(&rnd, 2) ? v : -v;
		}
		x[j] = (float)v;
		if (rnd_below(&rnd, 3) == 0)
			x[j] = nextafterf(x[j], rnd_below(&rnd, 2) ? 1e9f : -1e9f);
		if (fabsf(x[j]) > (float)qmax)
			x[j] = (float)qmax;
	}
	x[0] = (float)qmax;
}

/* On one context: ties[] through blocks of length 1, which leave values unchanged */
static int same_ties(struct dev *dev, int q_dtype, int scale_dtype)
{
	struct area ax = area_new(dev, sizeof(ties), 0), aq = area_new(dev, TIES * TIE, 0);
	struct area as = area_new(dev, TIES * 4, 0);
	int64_t bytes = q_dtype == HZ_S4X2 ? TIE / 2 : TIE, i, j;
	hz_tensor x = hz_tensor_2d(ax.data, HZ_F32, dev->device, TIES, TIE);
	hz_tensor q = hz_tensor_2d(aq.data, q_dtype, dev->device, TIES, bytes);
	hz_tensor s = hz_tensor_2d(as.data, scale_dtype, dev->device, TIES, 1);
	hz_hadamard_opts o = { .block = 1 };
	unsigned char *x_image, *q_image, *s_image, *got_q, *got_s, want[TIE] = { 0 };
	double code[TIE];
	void *data;
	float scale;
	int good;

	x_image = image_new(sizeof(ties), 0, &data);
	memcpy(data, ties, sizeof(ties));
	area_write(&ax, x_image);
	good = hz_hadamard_quantize(dev->ctx, &x, &q, &s, &o) == HZ_OK;
	q_image = image_new(TIES * TIE, 0, &got_q);
	s_image = image_new(TIES * 4, 0, &got_s);
	area_read(&aq, q_image);
	area_read(&as, s_image);
	for (i = 0; i < TIES; i++) {
		scale = ref_quantize(ties + i * TIE, TIE, q_dtype, scale_dtype, code);
		good &= scale == ldexpf(1, (int)i - 20);
		good &= ref_get(scale_dtype, got_s, i) == (double)scale;
		for (j = 0; j < TIE; j++)
			ref_put(q_dtype, want, j, code[j]);
		good &= same_bits(got_q + i * bytes, want, (size_t)bytes, 1);
	}
	free(x_image);
	free(q_image);
	free(s_image);
	area_free(&ax);
	area_free(&aq);
	area_free(&as);
	return good;
}

static void test_ties(void)
{
	int f, s, d, good;
	int64_t i, j;

	for (f = 0; f < 4; f++) {
		good = 1;
		for (s = 0; s < 2; s++) {
			for (i = 0; i < TIES; i++) {
				fill_ties(ties + i * TIE, codes[f]);
				for (j = 0; j < TIE; j++)
					ties[i * TIE + j] = ldexpf(ties[i * TIE + j], (int)i - 20);
			}
			for (d = 0; d < ndevs; d++)
				good &= same_ties(&devs[d], codes[f], scales[s]);
		}
		ok(good, "%s: ties to even, and beside them", hz_dtype_name(codes[f]));
	}
}

static void test_random(int count)
{
	static const double factors[] = { 0, 1, -1, 0.5, 3.1415926, 100 };
	static const int rounds[] = { 0, 0, HZ_F16, HZ_BF16 };
	static const int64_t groups[] = { 32, 64, 128 };
	int i, d, good = 1;

	for (i = 0; i < count; i++) {
		struct tcase c = { .ndim = 1 + (int)rnd_below(&rnd, HZ_MAXDIM) };
		struct diags diags;
		int64_t block, n, step;
		int last = c.ndim - 1;

		block = random_block(&rnd, &c.o);
		n = block * (1 + (rnd_below(&rnd, 2) ? rnd_below(&rnd, 5) : 0));
		if (n != block || rnd_below(&rnd, 2))
			c.o.block = block;
		random_sizes(&rnd, c.ndim, last, n, quick ? 2000 : 5000, c.shape);
		c.v_dtype = floats[rnd_below(&rnd, 3)];
		c.q_dtype = codes[rnd_below(&rnd, 4)];
		if (n % 2 && c.q_dtype == HZ_S4X2)
			c.q_dtype = HZ_S8;
		c.scale_dtype = scales[rnd_below(&rnd, 2)];
		c.group = groups[rnd_below(&rnd, 3)];
		if (n % c.group || rnd_below(&rnd, 4) == 0)
			c.group = n;
		c.o.round_to = rounds[rnd_below(&rnd, 4)];
		lay_out_case(&c, rnd_below(&rnd, 2) ? rnd_below(&rnd, 20) : 0);
		if (rnd_below(&rnd, 3) == 0) {		/* x and y with random strides */
			step = 1 + rnd_below(&rnd, 2);
			for (d = 0; d <= last; d++) {
				c.v_stride[d] = rnd_below(&rnd, 4) ? step : -step;
				step *= c.shape[d];
			}
		}
		c.values = rnd_below(&rnd, 4) ? RANDOM : OUTLIERS;
		c.o.factor = factors[rnd_below(&rnd, 6)];
		c.o.flags = (uint32_t)rnd_below(&rnd, 4);
		random_diags(&rnd, &c.o, n, block, &diags);
		if (!check_case(&c)) {
			diag("random case %d", i);
			good = 0;
		}
		free_diags(&diags);
	}
	ok(good, "%d random cases: dimensions, strides, plans, diagonals, flags, rounding", count);
}

static void test_sizes(void)
{
	static const int64_t counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 63, 65, 8193,
					  20004, 65540 };
	int i, good = 1;
	struct tcase c;

	for (i = 0; i < (int)(sizeof(counts) / sizeof(*counts)); i++) {
		c = rows_case(counts[i], 128, floats[i % 3], codes[i % 4], scales[i / 2 % 2],
			      i % 2 ? 128 : 32);
		if (quick && counts[i] > 100)
			continue;
		good &= check_case_on(&c, counts[i] > 100 && !tap_cuda() ? ndevs - 3 : 0, ndevs);
	}
	ok(good, "1 to 65540 rows");
	if (quick) {
		skip(2, "quick");
		return;
	}
	c = rows_case(40, 14336, HZ_BF16, HZ_S8, HZ_F32, 14336);
	c.o.plan = HZ_PLAN_TRUE;
	good = check_case(&c);
	c = rows_case(40, 14336, HZ_F16, HZ_E4M3, HZ_E8M0, 32);
	good &= check_case(&c);
	ok(good, "rows of 14336");
	c = rows_case(2, 65536, HZ_F32, HZ_S8, HZ_F32, 65536);
	good = check_case(&c);
	c = rows_case(2, 65536, HZ_F16, HZ_S4X2, HZ_E8M0, 128);
	good &= check_case(&c);
	ok(good, "rows of 65536");
}

static void test_nothing(void)
{
	int d, good = 1;

	for (d = 0; d < ndevs; d++) {
		hz_tensor x = hz_tensor_2d(NULL, HZ_F32, devs[d].device, 0, 64);
		hz_tensor q = hz_tensor_2d(NULL, HZ_S8, devs[d].device, 0, 64);
		hz_tensor s = hz_tensor_2d(NULL, HZ_F32, devs[d].device, 0, 1);
		size_t bytes = 77;

		good &= hz_hadamard_quantize(devs[d].ctx, &x, &q, &s, NULL) == HZ_OK;
		good &= hz_dequantize_hadamard(devs[d].ctx, &q, &s, &x, NULL) == HZ_OK;
		good &= RECORD(devs[d].ctx, hz_hadamard_quantize(devs[d].ctx, &x, &q, &s, NULL),
			       &bytes) == HZ_OK && bytes == 0;
		bytes = 77;
		good &= RECORD(devs[d].ctx, hz_dequantize_hadamard(devs[d].ctx, &q, &s, &x, NULL),
			       &bytes) == HZ_OK && bytes == 0;
	}
	ok(good, "no rows");
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_hadamard_quantize);
	dev_open_routes(HZI_OP_dequantize_hadamard);
	test_formats();
	test_values();
	test_any_length();
	test_exact();
	test_ties();
	test_random(quick ? 60 : 800);
	test_sizes();
	test_nothing();
	diag("%ld cases on %d contexts", cases, ndevs);
	dev_close_all();
	return done_testing();
}
