/*
 * ref.h - quantized matrix products by definition: cases, operands in any layout, a runner
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZ_T_QGEMM_REF_H
#define HZ_T_QGEMM_REF_H

#include "t/qgemm/qgemm.h"

static int quick;
static long cases;

typedef __int128 wide;

/* ---- The definition -------------------------------------------------------------------------- */

static wide floor_div(wide a, wide b)
{
	wide q = a / b;

	return q * b > a ? q - 1 : q;
}

/* floor(acc * sigma + 1/2) with sigma = u / 2^shift; shift may be negative */
static wide ref_exact(int64_t acc, int64_t u, int shift)
{
	if (shift <= 0)
		return (wide)acc * u * ((wide)1 << -shift);
	if (shift > 100)
		return u ? floor_div((wide)acc * u * 2, (wide)1 << 100) < 0 ? 0 : 0 : 0;
	return floor_div((wide)acc * u * 2 + ((wide)1 << shift), (wide)2 << shift);
}

/* As in gemmlowp's fixedpoint.h */
static int32_t ref_doubling_high_mul(int32_t a, int32_t b)
{
	const int64_t ab = (int64_t)a * b;
	const int32_t nudge = ab >= 0 ? 1 << 30 : 1 - (1 << 30);

	if (a == b && a == INT32_MIN)
		return INT32_MAX;
	return (int32_t)((ab + nudge) / (1ll << 31));
}

static int32_t ref_divide_by_pot(int32_t x, int exponent)
{
	const int32_t mask = (int32_t)((1ll << exponent) - 1), remainder = x & mask;

	return (int32_t)(((int64_t)x >> exponent) + (remainder > (mask >> 1) + (x < 0)));
}

/* Rounded twice, ties up, by floors */
static wide ref_ruy(int32_t acc, int32_t u, int shift)
{
	wide x = acc;

	if (shift < 31)
		x *= (wide)1 << (31 - shift > 60 ? 60 : 31 - shift);
	x = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x;
	x = floor_div(x * u * 2 + ((wide)1 << 31), (wide)1 << 32);
	return shift > 31 ? floor_div(x * 2 + ((wide)1 << (shift - 31)), (wide)2 << (shift - 31)) :
			    x;
}

/* The nearest integer to t, or one that saturates s32; NaN: 0 */
static wide to_integer(double t, double (*nearest)(double))
{
	return isnan(t) ? 0 : (wide)nearest(fmin(fmax(t, -0x1p40), 0x1p40));
}

/* as, bs: the scales; sigma: instead of them, or 0; bias: over the scales, or 0 */
static wide ref_float(int32_t acc, float as, float bs, float cs, double sigma, float bias)
{
	volatile float product = as * bs;
	volatile float s = product / cs, t = (float)acc;

	if (sigma != 0)
		s = (float)sigma;
	if (!(s > 0) || isinf(s))
		return 0;
	bias = bias / product;
	t = t + bias;
	t = t * s;
	return to_integer(t, nearbyint);
}

static wide ref_litert(int32_t acc, float as, float bs, float cs, double sigma)
{
	const double s = sigma != 0 ? sigma : (double)as * bs / cs;

	return s > 0 && isfinite(s) ? to_integer(acc * s, round) : 0;
}

static wide ref_gemmlowp(int32_t acc, int32_t u, int shift)
{
	wide x = acc;

	if (shift < 31)
		x *= (wide)1 << (31 - shift > 60 ? 60 : 31 - shift);
	x = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x;
	return ref_divide_by_pot(ref_doubling_high_mul((int32_t)x, u), shift > 31 ? shift - 31 : 0);
}

/* A positive finite double as u / 2^shift: exactly if possible, otherwise u has 31 bits, rounded to
 * nearest even. The same as in hurwitz.h, by ldexp and nearbyint. */
static void ref_multiplier(double sigma, int64_t *u, int *shift)
{
	int e;
	double m = nearbyint(ldexp(frexp(sigma, &e), 31));

	if (m == 2147483648.0) {
		m /= 2;
		e++;
	}
	*u = (int64_t)m;
	*shift = 31 - e;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

enum how { SCALES, SIGMA, PAIR, PAIRS, COLUMN_SCALES };

struct tcase {
	int batch_ndim;			/* dimensions of c's batch */
	int64_t batch[2], m, n, k;
	int a_batch, b_batch;		/* 0: no batch, 1: that of c, 2: size 1 */
	int a_dtype, b_dtype, c_dtype;
	int a_trans, b_trans, c_trans, pad;
	int skew, c_skew;		/* bytes after an aligned address; of c whole elements */
	int packed;
	int a_rows, b_cols;		/* zero points per row of A, per column of B */
	int bias;			/* 0, HZ_S32, HZ_F32 */
	int big_bias;
	int row_scales;			/* float c: 0, 1: [m], 2: one element */
	enum how how;
	enum values values;
	hz_qgemm_opts o;
};

static int random_zero(int dtype)
{
	static const int some[] = { 0, 1, 127, 128, 255 };

	return code_min(dtype) +
	       (rnd_below(&rnd, 2) ? some[rnd_below(&rnd, 5)] : (int)rnd_below(&rnd, 256));
}

static int is_float(int dtype)
{
	return dtype == HZ_F32 || dtype == HZ_F16 || dtype == HZ_BF16;
}

static double random_scale(void)
{
	switch (rnd_below(&rnd, 8)) {
	case 0:
		return ldexp(1, (int)rnd_below(&rnd, 40) - 30);
	case 1:
		return (float)ldexp(fabs(rnd_uniform(&rnd)) + 1e-3, (int)rnd_below(&rnd, 30) - 15);
	default:
		return (float)(fabs(rnd_uniform(&rnd)) * 0.02 + 1e-4);
	}
}

/* Strides in C order, or with the last two dimensions swapped, and padded */
static void lay_out_matrix(int ndim, const int64_t *shape, int trans, int pad, int64_t *stride)
{
	int64_t swapped[HZ_MAXDIM], t;

	memcpy(swapped, shape, sizeof(swapped));
	if (trans) {
		swapped[ndim - 1] = shape[ndim - 2];
		swapped[ndim - 2] = shape[ndim - 1];
	}
	lay_out(ndim, swapped, pad, stride);
	if (trans) {
		t = stride[ndim - 1];
		stride[ndim - 1] = stride[ndim - 2];
		stride[ndim - 2] = t;
	}
}

struct matrix {
	int ndim, dtype;
	int64_t shape[HZ_MAXDIM], stride[HZ_MAXDIM];
	size_t bytes;
	unsigned char *image, *data;
};

static void matrix_new(struct matrix *x, int dtype, int batch_ndim, const int64_t *batch,
		       int64_t rows, int64_t cols, int trans, int pad, int skew)
{
	int64_t low, high;
	void *data;
	int d;

	x->dtype = dtype;
	x->ndim = batch_ndim + 2;
	for (d = 0; d < batch_ndim; d++)
		x->shape[d] = batch[d];
	x->shape[batch_ndim] = rows;
	x->shape[batch_ndim + 1] = cols;
	lay_out_matrix(x->ndim, x->shape, trans, pad, x->stride);
	reach(x->ndim, x->shape, x->stride, &low, &high);
	for (d = 0; d < x->ndim; d++) {
		if (x->shape[d] == 0)
			high = 0;
	}
	x->bytes = (size_t)high * hz_dtype_size(dtype);
	x->image = image_new(x->bytes, (size_t)skew, &data);
	x->data = data;
}

static hz_tensor matrix_view(const struct matrix *x, void *data, int device)
{
	hz_tensor t = hz_tensor_nd(data, x->dtype, device, x->ndim, x->shape);

	memcpy(t.stride, x->stride, sizeof(t.stride));
	return t;
}

/* The offset of batch item `item` of c in an operand whose batch may lack dimensions */
static int64_t batch_offset(const struct matrix *x, const struct tcase *c, int64_t item)
{
	int64_t offset = 0;
	int d;

	for (d = c->batch_ndim - 1; d >= 0; d--) {
		const int own = d - (c->batch_ndim + 2 - x->ndim);

		if (own >= 0 && x->shape[own] > 1)
			offset += item % c->batch[d] * x->stride[own];
		item /= c->batch[d];
	}
	return offset;
}

/* Operands besides a and b; pointers to host data may be NULL. */
struct extras {
	struct vec a_zeros, b_zeros, a_scales, b_scales, multipliers, shifts, bias;
};

/* An element of c by definition, from the exact accumulator */
static void ref_element(const struct tcase *c, const struct extras *e, int64_t row, int64_t j,
			wide sum, int row_zero_known, void *out, int64_t at)
{
	const hz_qgemm_opts *o = &c->o;
	const int64_t low = c->c_dtype == HZ_S32 ? INT32_MIN : code_min(c->c_dtype);
	const int64_t high = c->c_dtype == HZ_S32 ? INT32_MAX : low + 255;
	const float as = o->a_scale != 0 ? (float)o->a_scale : 1;
	float bs = o->b_scale != 0 ? (float)o->b_scale : 1;
	const float cs = o->c_scale != 0 ? (float)o->c_scale : 1;
	int64_t u, min = low, max = high;
	int32_t acc;
	int shift;
	wide y;

	(void)row_zero_known;
	if (c->bias == HZ_S32)
		sum += ((const int32_t *)e->bias.host)[j];
	acc = (int32_t)(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
	if (e->b_scales.host)
		bs = ((const float *)e->b_scales.host)[hz_tensor_count(&e->b_scales.t) == 1 ? 0 :
						       j];
	if (is_float(c->c_dtype)) {
		const float rs = !c->row_scales ? as :
				 ((const float *)e->a_scales.host)[c->row_scales == 2 ? 0 : row];
		float t = (float)acc, fmin = -INFINITY, fmax = INFINITY;
		volatile float v = t * bs;

		v = v * rs;
		if (c->bias == HZ_F32)
			v = v + ((const float *)e->bias.host)[j];
		if (o->given & HZ_QGEMM_GIVEN_MIN)
			fmin = (float)o->min;
		if (o->flags & HZ_QGEMM_RELU && fmin < 0)
			fmin = 0;
		if (o->given & HZ_QGEMM_GIVEN_MAX)
			fmax = (float)o->max;
		t = v < fmin ? fmin : v > fmax ? fmax : v;
		ref_put(c->c_dtype, out, at, t);
		return;
	}
	if (c->how == PAIRS) {
		u = ((const int32_t *)e->multipliers.host)[j];
		shift = ((const int32_t *)e->shifts.host)[j];
		if (u <= 0 || shift < 1 || shift > 62) {
			u = 0;
			shift = 1;
		}
	} else if (c->how == PAIR) {
		u = o->multiplier;
		shift = o->shift;
	} else if (c->how == SIGMA) {
		ref_multiplier(o->sigma, &u, &shift);
	} else {
		volatile float product = as * bs;
		volatile float sigma = product / cs;

		if (sigma > 0 && isfinite(sigma)) {
			ref_multiplier(sigma, &u, &shift);
		} else {
			u = 0;
			shift = 1;
		}
	}
	if (shift < -60)
		shift = -60;		/* any accumulator but 0 saturates */
	if (shift > 62) {
		u = 0;
		shift = 1;
	}
	switch (o->requant) {
	case HZ_REQUANT_EXACT:
		y = ref_exact(acc, u, shift);
		break;
	case HZ_REQUANT_FLOAT:
		y = ref_float(acc, as, bs, cs, o->sigma,
			      c->bias == HZ_F32 ? ((const float *)e->bias.host)[j] : 0);
		break;
	case HZ_REQUANT_RUY:
		y = ref_ruy(acc, (int32_t)u, shift);
		break;
	case HZ_REQUANT_GEMMLOWP:
		y = ref_gemmlowp(acc, (int32_t)u, shift);
		break;
	default:
		y = ref_litert(acc, as, bs, cs, o->sigma);
	}
	y += o->c_zero;
	if (o->given & HZ_QGEMM_GIVEN_MIN && o->min > (double)min)
		min = (int64_t)ceil(o->min);
	if (o->flags & HZ_QGEMM_RELU && o->c_zero > min)
		min = o->c_zero;
	if (o->given & HZ_QGEMM_GIVEN_MAX && o->max < (double)max)
		max = (int64_t)floor(o->max);
	y = y < min ? min : y > max ? max : y;
	if (c->c_dtype == HZ_S32)
		((int32_t *)out)[at] = (int32_t)y;
	else
		put_code(out, at, (int)y);
}

static int64_t items_of(const struct tcase *c)
{
	int64_t items = 1;
	int d;

	for (d = 0; d < c->batch_ndim; d++)
		items *= c->batch[d];
	return items;
}

static void ref_qgemm(const struct tcase *c, const struct matrix *a, const struct matrix *b,
		      const struct matrix *out, const struct extras *e)
{
	int64_t item, i, j, l;

	for (item = 0; item < items_of(c); item++) {
		const unsigned char *pa = a->data + batch_offset(a, c, item);
		const unsigned char *pb = b->data + batch_offset(b, c, item);
		const int64_t oc = batch_offset(out, c, item);
		const int as = a->ndim - 2, bs = b->ndim - 2, cs = out->ndim - 2;

		for (i = 0; i < c->m; i++) {
			const int64_t row = item * c->m + i;
			const int32_t az =
				!e->a_zeros.host
					? c->o.a_zero
					: code(e->a_zeros.host, c->a_dtype,
					       hz_tensor_count(&e->a_zeros.t) == 1 ? 0 : row);

			for (j = 0; j < c->n; j++) {
				const int32_t bz = e->b_zeros.host
							   ? code(e->b_zeros.host, c->b_dtype, j)
							   : c->o.b_zero;
				int64_t sum = 0;

				for (l = 0; l < c->k; l++)
					sum += (int64_t)(code(pa, c->a_dtype,
							      i * a->stride[as] +
								      l * a->stride[as + 1]) -
							 az) *
					       (code(pb, c->b_dtype,
						     l * b->stride[bs] + j * b->stride[bs + 1]) -
						bz);
				ref_element(c, e, row, j, sum, 0, out->data,
					    oc + i * out->stride[cs] + j * out->stride[cs + 1]);
			}
		}
	}
}

static void fill_codes(struct matrix *x, enum values values)
{
	size_t i;

	for (i = 0; i < x->bytes; i++)
		put_code(x->data, (int64_t)i, random_code(x->dtype, values));
}

/* A vector for the columns: [n] or [1, n] */
static void columns_new(struct vec *v, int dtype, int64_t n)
{
	const int ndim = 1 + (int)rnd_below(&rnd, 2);

	vec_new(v, dtype, ndim, ndim == 1 ? (int64_t[]){ n } : (int64_t[]){ 1, n });
}

/* Makes the vectors that a case needs. */
static void make_extras(struct tcase *c, struct extras *e)
{
	int64_t shape[HZ_MAXDIM + 1], rows = items_of(c) * c->m, i;
	int d, row_ndim = c->batch_ndim + 1 + (int)rnd_below(&rnd, 2);

	memset(e, 0, sizeof(*e));
	for (d = 0; d < c->batch_ndim; d++)
		shape[d] = c->batch[d];
	shape[c->batch_ndim] = c->m;	/* [..., m] or [..., m, 1] */
	shape[c->batch_ndim + 1] = 1;
	if (c->a_rows) {
		if (c->a_rows == 1)
			vec_new(&e->a_zeros, c->a_dtype, row_ndim, shape);
		else
			vec_new(&e->a_zeros, c->a_dtype, 1, (int64_t[]){ 1 });
		for (i = 0; i < hz_tensor_count(&e->a_zeros.t); i++)
			put_code(e->a_zeros.host, i, random_zero(c->a_dtype));
		c->o.a_zero = 0;
	}
	if (c->b_cols) {
		columns_new(&e->b_zeros, c->b_dtype, c->n);
		for (i = 0; i < c->n; i++)
			put_code(e->b_zeros.host, i, random_zero(c->b_dtype));
		c->o.b_zero = 0;
	}
	if (c->row_scales) {
		const int64_t count = c->row_scales == 2 ? 1 : rows;

		vec_new(&e->a_scales, HZ_F32, c->row_scales == 2 ? 1 : row_ndim,
			c->row_scales == 2 ? &count : shape);
		for (i = 0; i < count; i++)
			((float *)e->a_scales.host)[i] = (float)random_scale();
		c->o.a_scale = 0;
	}
	if (c->how == COLUMN_SCALES) {
		const int64_t count = rnd_below(&rnd, 4) ? c->n : 1;

		columns_new(&e->b_scales, HZ_F32, count);
		for (i = 0; i < count; i++)
			((float *)e->b_scales.host)[i] = (float)random_scale();
		if (rnd_below(&rnd, 3) == 0 && !is_float(c->c_dtype) && count > 0) {
			static const float odd[] = { 0, -1, NAN, INFINITY, 1e-45f, 3e38f, 1e-20f };

			((float *)e->b_scales.host)[rnd_below(&rnd, count)] =
				odd[rnd_below(&rnd, 7)];
		}
		c->o.b_scale = 0;
	}
	if (c->how == PAIRS) {
		columns_new(&e->multipliers, HZ_S32, c->n);
		columns_new(&e->shifts, HZ_S32, c->n);
		for (i = 0; i < c->n; i++) {
			((int32_t *)e->multipliers.host)[i] = (int32_t)(rnd_u64(&rnd) >>
									(33 + rnd_below(&rnd, 3)));
			((int32_t *)e->shifts.host)[i] = 30 + (int)rnd_below(&rnd, 20);
		}
		if (c->n > 2 && rnd_below(&rnd, 2)) {
			((int32_t *)e->multipliers.host)[0] = -5;
			((int32_t *)e->shifts.host)[1] = 63;
			((int32_t *)e->shifts.host)[2] = 0;
		}
	}
	if (c->bias) {
		columns_new(&e->bias, c->bias, c->n);
		for (i = 0; i < c->n; i++) {
			if (c->bias == HZ_F32)
				((float *)e->bias.host)[i] = (float)rnd_normal(&rnd);
			else if (c->big_bias)
				((int32_t *)e->bias.host)[i] =
					rnd_below(&rnd, 2) ? INT32_MAX - (int)rnd_below(&rnd, 999)
							   : INT32_MIN + (int)rnd_below(&rnd, 999);
			else
				((int32_t *)e->bias.host)[i] = (int)rnd_below(&rnd, 200001) -
							       100000;
		}
	}
}

static void free_extras(struct extras *e)
{
	struct vec *const all[] = { &e->a_zeros, &e->b_zeros, &e->a_scales, &e->b_scales,
				    &e->multipliers, &e->shifts, &e->bias };
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(*all); i++)
		free(all[i]->host);
}

/* The options of a case, with its vectors on a device */
static hz_qgemm_opts opts_there(const struct tcase *c, struct extras *e, struct dev *dev)
{
	hz_qgemm_opts o = c->o;

	o.a_zeros = vec_there(&e->a_zeros, dev);
	o.b_zeros = vec_there(&e->b_zeros, dev);
	o.a_scales = vec_there(&e->a_scales, dev);
	o.b_scales = vec_there(&e->b_scales, dev);
	o.multipliers = vec_there(&e->multipliers, dev);
	o.shifts = vec_there(&e->shifts, dev);
	o.bias = vec_there(&e->bias, dev);
	return o;
}

static void drop_extras(struct extras *e)
{
	vec_drop(&e->a_zeros);
	vec_drop(&e->b_zeros);
	vec_drop(&e->a_scales);
	vec_drop(&e->b_scales);
	vec_drop(&e->multipliers);
	vec_drop(&e->shifts);
	vec_drop(&e->bias);
}

static const char *describe(const struct tcase *c)
{
	static char text[400];

	snprintf(
		text, sizeof(text),
		"batch %d m %lld n %lld k %lld %s x %s -> %s, trans %d%d%d pad %d, packed %d, "
		"a_rows %d b_cols %d zeros %d %d %d, bias %d%s, how %d, requant %d, flags %u, "
		"values %d",
		c->batch_ndim, (long long)c->m, (long long)c->n, (long long)c->k,
		hz_dtype_name(c->a_dtype), hz_dtype_name(c->b_dtype), hz_dtype_name(c->c_dtype),
		c->a_trans, c->b_trans, c->c_trans, c->pad, c->packed, c->a_rows, c->b_cols,
		c->o.a_zero, c->o.b_zero, c->o.c_zero, c->bias, c->big_bias ? " big" : "", c->how,
		c->o.requant, c->o.flags, c->values);
	return text;
}

static int run_one(struct dev *dev, const struct tcase *c, const struct matrix *a,
		   const struct matrix *b, const struct matrix *want, struct extras *e)
{
	const size_t skew = (size_t)c->skew, c_skew = (size_t)c->c_skew;
	const size_t c_total = GUARD + c_skew + want->bytes + GUARD;
	struct area aa = area_new(dev, a->bytes, skew), ba = area_new(dev, b->bytes, skew);
	struct area ca = area_new(dev, want->bytes, c_skew), blob = { 0 };
	hz_qgemm_opts o = opts_there(c, e, dev);
	hz_tensor at, bt, ct;
	unsigned char *image;
	hz_packed packed;
	void *data;
	int status = HZ_OK, good;

	area_write(&aa, a->image);
	area_write(&ba, b->image);
	image = image_new(want->bytes, c_skew, &data);
	area_write(&ca, image);
	at = matrix_view(a, aa.data, dev->device);
	bt = matrix_view(b, ba.data, dev->device);
	ct = matrix_view(want, ca.data, dev->device);
	if (c->packed) {
		size_t bytes = 0;

		status = hz_qgemm_pack_bytes(dev->ctx, &bt, &bytes);
		blob = area_new(dev, bytes, 0);
		if (!status)
			status = hz_qgemm_pack(dev->ctx, &bt, blob.data, bytes, &packed);
		o.packed = &packed;
	}
	if (!status)
		status = reserve(dev, &at, c->packed ? NULL : &bt, &ct, &o);
	if (!status)
		status = hz_qgemm(dev->ctx, &at, c->packed ? NULL : &bt, &ct, &o);
	area_read(&ca, image);
	good = !status && same_bits(image, want->image, c_total, 1);
	if (!good)
		diag("%s: %s: %s", dev->name, describe(c), status ? hz_errmsg(dev->ctx) : "wrong");
	free(image);
	area_free(&aa);
	area_free(&ba);
	area_free(&ca);
	if (c->packed)
		area_free(&blob);
	drop_extras(e);
	cases++;
	return good;
}

static int run_case(struct tcase *c)
{
	struct matrix a, b, want;
	int64_t ones[2] = { 1, 1 };
	struct extras e;
	int good = 1, d;

	matrix_new(&a, c->a_dtype, c->a_batch ? c->batch_ndim : 0,
		   c->a_batch == 2 ? ones : c->batch, c->m, c->k, c->a_trans, c->pad, c->skew);
	matrix_new(&b, c->b_dtype, c->b_batch ? c->batch_ndim : 0,
		   c->b_batch == 2 ? ones : c->batch, c->k, c->n, c->b_trans, c->pad, c->skew);
	matrix_new(&want, c->c_dtype, c->batch_ndim, c->batch, c->m, c->n, c->c_trans, c->pad,
		   c->c_skew);
	fill_codes(&a, c->values);
	fill_codes(&b, c->values == MIDDLE ? ENDS : c->values);	/* the largest sums of products */
	make_extras(c, &e);
	ref_qgemm(c, &a, &b, &want, &e);
	for (d = 0; d < ndevs && good; d++)
		good = run_one(&devs[d], c, &a, &b, &want, &e);
	free_extras(&e);
	free(a.image);
	free(b.image);
	free(want.image);
	return good;
}

#endif
