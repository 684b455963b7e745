/*
 * qgemm.c - quantized matrix multiplication: argument checks, multipliers, calls through the table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/qgemm/qgemm.h"

static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int code_types[] = {HZ_U8, HZ_S8, 0};
static const int c_types[] = {HZ_U8, HZ_S8, HZ_S32, HZ_F32, HZ_F16, HZ_BF16, 0};
static const int f32_type[] = {HZ_F32, 0};
static const int s32_type[] = {HZ_S32, 0};

static bool is_float(int dtype)
{
	return dtype == HZ_F32 || dtype == HZ_F16 || dtype == HZ_BF16;
}

/* Whether y is computed in floating point: a column has a sigma, no multiplier and shift. */
static bool in_floats(int requant)
{
	return requant == HZ_REQUANT_FLOAT || requant == HZ_REQUANT_LITERT_REF;
}

/* ---- Multipliers ----------------------------------------------------------------------------- */

int hz_qgemm_multiplier(double sigma, int32_t *multiplier, int32_t *shift)
{
	HZI_FP_NEAREST(fp);
	int exponent;
	double u;

	if (!multiplier || !shift || !(sigma > 0) || !isfinite(sigma))
		return HZ_EINVAL;
	u = rint(ldexp(frexp(sigma, &exponent), 31));
	if (u == 0x1p31) {
		u = 0x1p30;
		exponent++;
	}
	*multiplier = exponent < -31 ? 0 : (int32_t)u;
	*shift = exponent < -31 ? 1 : 31 - exponent;
	return HZ_OK;
}

/* ---- Packed B -------------------------------------------------------------------------------- */

static int layout_of(const struct hz_context *ctx)
{
	return ctx->device == HZ_CPU ? HZI_QGEMM_LAYOUT_CPU : HZI_QGEMM_LAYOUT_CUDA;
}

static int check_k(struct hz_context *ctx, const char *op, int64_t k)
{
	if (k > HZI_QGEMM_K_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: k is %lld, at most %lld is supported", op,
				(long long)k, (long long)HZI_QGEMM_K_MAX);
	return HZ_OK;
}

/*
 * Strides of B's two dimensions. The stride of a dimension of one element may have any value and is
 * not read; neither are the strides of an empty matrix.
 */
static void b_strides(const hz_tensor *b, int64_t *b_k, int64_t *b_n)
{
	const int64_t k = b->shape[b->ndim - 2], n = b->shape[b->ndim - 1];

	*b_k = k > 1 ? b->stride[b->ndim - 2] : n;
	*b_n = n > 1 && k > 0 ? b->stride[b->ndim - 1] : 1;
}

static int pack_args(struct hz_context *ctx, const char *op, const hz_tensor *b,
		     struct hzi_qgemm_pack_args *a, size_t *bytes)
{
	int64_t n, k, each, all, count;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_check(ctx, op, "b", b, code_types, false));
	if (b->ndim < 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: b.ndim is %d, must be 2 to %d", op, b->ndim,
				HZ_MAXDIM);
	k = b->shape[b->ndim - 2];
	n = b->shape[b->ndim - 1];
	HZ_CHECK(check_k(ctx, op, k));
	memset(a, 0, sizeof(*a));
	*a = (struct hzi_qgemm_pack_args){
		.b = hzi_data(ctx, b), .b_dtype = b->dtype, .layout = layout_of(ctx), .k = k, .n = n,
		.ndim = b->ndim - 2,
	};
	b_strides(b, &a->b_k, &a->b_n);
	count = 1;
	for (int d = 0; d < a->ndim; d++) {
		a->shape[d] = b->shape[d];
		a->b_stride[d] = k > 0 ? b->stride[d] : 0;
		if (!hzi_mul(count, b->shape[d], &count))
			return hzi_fail(ctx, HZ_ESHAPE, "%s: b is too large: its size overflows",
					op);
	}
	/* 4 bytes per column and a byte per element of the padded matrix must fit int64_t. */
	if (n > INT64_MAX / 8 - 256 ||
	    !hzi_mul(hzi_round_up(k, 128) + 4, hzi_round_up(n, 256), &each) ||
	    !hzi_mul(each, count, &all))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: b is too large: its packed size overflows",
				op);
	*bytes = n == 0 ? 0 : (size_t)(hzi_qgemm_packed_bytes(a->layout, k, n) * count);
	return HZ_OK;
}

int hz_qgemm_pack_bytes(hz_context *ctx, const hz_tensor *b, size_t *bytes)
{
	struct hzi_qgemm_pack_args a;
	size_t need = 0;

	HZ_CHECK(pack_args(ctx, "qgemm_pack", b, &a, &need));
	if (!bytes)
		return hzi_fail(ctx, HZ_EINVAL, "qgemm_pack_bytes: bytes is NULL");
	*bytes = need;
	return HZ_OK;
}

int hz_qgemm_pack(hz_context *ctx, const hz_tensor *b, void *data, size_t bytes, hz_packed *packed)
{
	static const char op[] = "qgemm_pack";
	struct hzi_qgemm_pack_args a;
	hz_tensor blob;
	hz_packed p;
	size_t need;

	HZ_CHECK(pack_args(ctx, op, b, &a, &need));
	if (!packed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: packed is NULL, must be a struct to fill", op);
	if (bytes < need)
		return hzi_fail(ctx, HZ_EINVAL, "%s: bytes is %zu, must be at least %zu", op, bytes,
				need);
	HZ_CHECK(hzi_check_packed_data(ctx, op, "data", data, need));
	blob = hz_tensor_1d(data, HZ_U8, ctx->device, (int64_t)need);
	HZ_CHECK(hzi_check_apart(ctx, op, "b", b, "data", &blob));
	a.data = data;
	if (need)
		HZ_CHECK(HZI_RUN(ctx, op, qgemm, qgemm_pack, &a));
	p = (hz_packed){
		.data = data,
		.bytes = need,
		.device = ctx->device,
		.dtype = b->dtype,
		.ndim = b->ndim,
		.layout = (uint32_t)a.layout,
	};
	memcpy(p.shape, b->shape, (size_t)b->ndim * sizeof(*p.shape));
	p.check = hzi_packed_check(ctx, &p);
	*packed = p;
	return HZ_OK;
}

static int check_packed(struct hz_context *ctx, const char *op, const hz_packed *p)
{
	HZ_CHECK(hzi_check_packed(ctx, op, "opts->packed", "hz_qgemm_pack", 2, p));
	if (p->layout != (uint32_t)layout_of(ctx))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->packed is not as hz_qgemm_pack() filled it", op);
	return HZ_OK;
}

/* ---- qgemm ----------------------------------------------------------------------------------- */

/* Operands of a multiplication, and their names in messages: for qlinear A is x and C is y. */
struct call {
	const char *op, *a_name, *c_name;
	const hz_tensor *a, *b, *c;
	const hz_qgemm_opts *o;
	bool linear;
};

static int check_batch(struct hz_context *ctx, const struct call *q, const char *name, int ndim,
		       const int64_t *shape)
{
	const hz_tensor *c = q->c;

	if (ndim < 2 || ndim > c->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 2 to %d, as %s", q->op,
				name, ndim, c->ndim, q->c_name);
	for (int d = 0; d < c->ndim - 2; d++) {
		const int64_t size = hzi_batch_size(ndim, shape, c->ndim, d);

		if (size != 1 && size != c->shape[d])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, as %s, or 1",
					q->op, name, d - (c->ndim - ndim), (long long)size,
					(long long)c->shape[d], q->c_name);
	}
	return HZ_OK;
}

static int check_shapes(struct hz_context *ctx, const struct call *q, struct hzi_qgemm_args *g)
{
	const hz_packed *p = q->o->packed;
	const int nb = p ? p->ndim : q->b->ndim;
	const int64_t *const b_shape = p ? p->shape : q->b->shape;
	const hz_tensor *a = q->a, *c = q->c;

	if (c->ndim < 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 2 to %d", q->op,
				q->c_name, c->ndim, HZ_MAXDIM);
	HZ_CHECK(check_batch(ctx, q, q->a_name, a->ndim, a->shape));
	HZ_CHECK(check_batch(ctx, q, "b", nb, b_shape));
	g->m = c->shape[c->ndim - 2];
	g->n = c->shape[c->ndim - 1];
	g->k = a->shape[a->ndim - 1];
	if (a->shape[a->ndim - 2] != g->m)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld, as %s",
				q->op, q->c_name, c->ndim - 2, (long long)g->m,
				(long long)a->shape[a->ndim - 2], q->a_name);
	if (b_shape[nb - 2] != g->k)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: b.shape[%d] is %lld, must be %lld, as %s",
				q->op, nb - 2, (long long)b_shape[nb - 2], (long long)g->k,
				q->a_name);
	if (b_shape[nb - 1] != g->n)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld, as b",
				q->op, q->c_name, c->ndim - 1, (long long)g->n,
				(long long)b_shape[nb - 1]);
	return check_k(ctx, q->op, g->k);
}

/* Fills the strides of the matrices and of the batch, whose dimensions are merged. */
static void make_strides(const struct call *q, struct hzi_qgemm_args *g)
{
	const hz_packed *p = q->o->packed;
	const hz_tensor *a = q->a, *c = q->c;
	const int na = a->ndim, nb = p ? p->ndim : q->b->ndim, nc = c->ndim;
	int64_t matrices = 1, rows = g->m;
	int n = 0;

	g->a_m = g->k > 0 ? a->stride[na - 2] : 0;
	g->a_k = g->k > 1 ? a->stride[na - 1] : 1;
	g->c_m = c->stride[nc - 2];
	g->c_n = g->n > 1 ? c->stride[nc - 1] : 1;
	if (!p)
		b_strides(q->b, &g->b_k, &g->b_n);
	/*
	 * From the innermost dimension out; a dimension that continues the previous one is merged
	 * into it.
	 */
	for (int d = nc - 3; d >= 0; d--) {
		const int64_t size = c->shape[d];
		const int64_t b_size = hzi_batch_size(nb, p ? p->shape : q->b->shape, nc, d);
		int64_t as = 0, bs = 0;
		const int64_t cs = c->stride[d];

		if (g->k > 0 && hzi_batch_size(na, a->shape, nc, d) > 1)
			as = a->stride[d - (nc - na)];
		if (b_size > 1 && p)
			bs = matrices;
		else if (b_size > 1 && g->k > 0)
			bs = q->b->stride[d - (nc - nb)];
		matrices *= b_size;
		if (size == 1)
			continue;
		if (n == 0 && bs == 0 && g->m == 1) {
			g->m = size;
			g->a_m = as;
			g->c_m = cs;
		} else if (n == 0 && bs == 0 && hzi_continues(as, g->a_m, g->m) &&
			   hzi_continues(cs, g->c_m, g->m)) {
			g->m *= size;
		} else if (n > 0 && hzi_continues(as, g->a_stride[n - 1], g->shape[n - 1]) &&
			   hzi_continues(bs, g->b_stride[n - 1], g->shape[n - 1]) &&
			   hzi_continues(cs, g->c_stride[n - 1], g->shape[n - 1])) {
			g->shape[n - 1] *= size;
		} else {
			g->shape[n] = size;
			g->a_stride[n] = as;
			g->b_stride[n] = bs;
			g->c_stride[n] = cs;
			g->row_stride[n] = rows;
			n++;
		}
		rows *= size;
	}
	g->ndim = n;
	g->rows = rows;
	for (int i = 0, j = n - 1; i < j; i++, j--) {
		int64_t *const lists[] = {g->shape, g->a_stride, g->b_stride, g->c_stride,
					  g->row_stride};

		for (int l = 0; l < 5; l++) {
			const int64_t v = lists[l][i];

			lists[l][i] = lists[l][j];
			lists[l][j] = v;
		}
	}
	if (g->m == 1) {
		g->a_m = g->k;
		g->c_m = g->n;
	}
}

/* Whether t has the shape [..., m] of the rows of c, or [..., m, 1], or [all rows] */
static bool is_of_rows(const hz_tensor *t, const hz_tensor *c)
{
	const int ndim = t->ndim == c->ndim && t->shape[t->ndim - 1] == 1 ? t->ndim - 1 : t->ndim;

	if (t->ndim == 1)
		return true;
	for (int d = 0; ndim == c->ndim - 1 && d < ndim; d++) {
		if (t->shape[d] != c->shape[d])
			return false;
	}
	return ndim == c->ndim - 1;
}

/* Whether t has the shape [n] or [1, n], possibly with more leading dimensions of 1 */
static bool is_of_columns(const hz_tensor *t)
{
	for (int d = 0; d < t->ndim - 1; d++) {
		if (t->shape[d] != 1)
			return false;
	}
	return true;
}

/*
 * Checks an operand in the options: an element for each row of c, or else for each of its columns
 * (one_too: or one for all); contiguous, no overlap with c.
 */
static int check_vector(struct hz_context *ctx, const struct call *q, const char *name,
			const hz_tensor *t, const int *dtypes, bool rows, int64_t count,
			bool one_too)
{
	HZ_CHECK(hzi_check(ctx, q->op, name, t, dtypes, false));
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s must be contiguous", q->op, name);
	if (hz_tensor_count(t) != count && !(one_too && hz_tensor_count(t) == 1))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s has %lld elements, must have %lld%s", q->op,
				name, (long long)hz_tensor_count(t), (long long)count,
				one_too ? " or 1" : "");
	if (count > 1 && hz_tensor_count(t) == count &&
	    !(rows ? is_of_rows(t, q->c) : is_of_columns(t)))
		return hzi_fail(ctx, HZ_ESHAPE,
				rows ? "%s: the shape of %s must be [m] or [m, 1] of the m rows of "
				       "%s, after the batch" :
				       "%s: the shape of %s must be [n] or [1, n] of the n columns "
				       "of %s", q->op, name, q->c_name);
	return hzi_check_apart(ctx, q->op, name, t, q->c_name, q->c);
}

static int check_zeros(struct hz_context *ctx, const struct call *q, const char *name,
		       const hz_tensor *t, int dtype, bool rows, int64_t count, bool one_too)
{
	const int types[] = {dtype, 0};

	return check_vector(ctx, q, name, t, types, rows, count, one_too);
}

/* The largest |code - zero point|; unknown: for every zero point */
static int64_t reach(int dtype, int32_t zero, bool unknown)
{
	const int64_t below = zero - hzi_quant_min(dtype), above = hzi_quant_max(dtype) - zero;

	return unknown ? 255 : below > above ? below : above;
}

/* Rejects combinations of options that exclude each other. */
static int check_combination(struct hz_context *ctx, const struct call *q)
{
	const hz_qgemm_opts *o = q->o;
	const bool floating = is_float(q->c->dtype);
	const bool pair = o->multiplier || o->shift, pairs = o->multipliers || o->shifts;
	const bool a_scale = o->a_scale != 0 || o->a_scales,
		   b_scale = o->b_scale != 0 || o->b_scales;
	const bool scales = a_scale || b_scale || o->c_scale != 0;
	static const char *const what[] = {
		"opts->a_zeros excludes opts->a_zero",
		"opts->b_zeros excludes opts->b_zero",
		"opts->a_scales excludes opts->a_scale",
		"opts->b_scales excludes opts->b_scale",
		"opts->sigma excludes scales",
		"opts->multiplier excludes scales and opts->sigma",
		"opts->multipliers excludes scales, opts->sigma and opts->multiplier",
		"opts->multipliers and opts->shifts need each other",
		"opts->multiplier and multipliers exclude HZ_REQUANT_FLOAT and _LITERT_REF",
		"opts->a_zeros and opts->a_scales are not for x, which is quantized here",
		"opts->a_zero needs opts->a_scale",
		"HZ_QLINEAR_SYMMETRIC excludes opts->a_scale",
		"opts->x_dtype is for qlinear alone",
	};
	const uint32_t wrong =
		(uint32_t)(o->a_zero && o->a_zeros) |
		(uint32_t)(o->b_zero && o->b_zeros) << 1 |
		(uint32_t)(o->a_scale != 0 && o->a_scales) << 2 |
		(uint32_t)(o->b_scale != 0 && o->b_scales) << 3 |
		(uint32_t)(o->sigma != 0 && scales) << 4 |
		(uint32_t)(pair && (scales || o->sigma != 0)) << 5 |
		(uint32_t)(pairs && (scales || pair || o->sigma != 0)) << 6 |
		(uint32_t)(pairs && !(o->multipliers && o->shifts)) << 7 |
		(uint32_t)(in_floats(o->requant) && (pair || pairs)) << 8 |
		(uint32_t)(q->linear && (o->a_zeros || o->a_scales)) << 9 |
		(uint32_t)(q->linear && o->a_scale == 0 && o->a_zero) << 10 |
		(uint32_t)(q->linear && o->a_scale != 0 &&
			   o->flags & HZ_QLINEAR_SYMMETRIC) << 11 |
		(uint32_t)(!q->linear && o->x_dtype) << 12;
	/* What the type of the result excludes */
	static const char *const what_of_c[] = {
		"opts->sigma, multiplier and multipliers are for integer results: leave them unset",
		"opts->c_scale and opts->c_zero are for integer results: leave them unset",
		"opts->requant is for integer results: leave it unset",
		"opts->a_scales is for floating-point results: leave it unset",
	};
	const uint32_t of_c = (uint32_t)(floating && (pair || pairs || o->sigma != 0)) |
			      (uint32_t)(floating && (o->c_scale != 0 || o->c_zero)) << 1 |
			      (uint32_t)(floating && o->requant) << 2 |
			      (uint32_t)(!floating && o->a_scales) << 3;

	if (wrong)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s", q->op, what[__builtin_ctz(wrong)]);
	if (of_c)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is %s, and %s", q->op, q->c_name,
				hz_dtype_name(q->c->dtype), what_of_c[__builtin_ctz(of_c)]);
	return HZ_OK;
}

/* A number without its bit in opts->given must be 0: else it would be ignored silently. */
static int check_given(struct hz_context *ctx, const struct call *q, const char *name, double value,
		       const char *bit, uint32_t given)
{
	if (!given && !(value == 0))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->%s is %g, but opts->given lacks %s: set it, or %s to 0",
				q->op, name, value, bit, name);
	return HZ_OK;
}

static int check_opts(struct hz_context *ctx, const struct call *q)
{
	const hz_qgemm_opts *o = q->o;
	static const struct hzi_flag flags[] = {
		HZI_FLAG(HZ_QGEMM_RELU), HZI_FLAG(HZ_QLINEAR_SYMMETRIC), {0, NULL},
	};
	static const struct hzi_flag given[] = {
		HZI_FLAG(HZ_QGEMM_GIVEN_MIN), HZI_FLAG(HZ_QGEMM_GIVEN_MAX), {0, NULL},
	};
	const uint32_t valid = HZ_QGEMM_RELU | (q->linear ? HZ_QLINEAR_SYMMETRIC : 0);

	HZ_CHECK(hzi_check_flags(ctx, q->op, "opts->flags", o->flags, valid, flags));
	HZ_CHECK(hzi_check_flags(ctx, q->op, "opts->given", o->given,
				 HZ_QGEMM_GIVEN_MIN | HZ_QGEMM_GIVEN_MAX, given));
	HZ_CHECK(check_given(ctx, q, "min", o->min, "HZ_QGEMM_GIVEN_MIN",
			     o->given & HZ_QGEMM_GIVEN_MIN));
	HZ_CHECK(check_given(ctx, q, "max", o->max, "HZ_QGEMM_GIVEN_MAX",
			     o->given & HZ_QGEMM_GIVEN_MAX));
	if (o->requant < HZ_REQUANT_EXACT || o->requant > HZ_REQUANT_LITERT_REF)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->requant is %d, must be 0 to 4", q->op,
				o->requant);
	if (o->x_dtype && o->x_dtype != HZ_U8 && o->x_dtype != HZ_S8)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->x_dtype is %s, must be u8, s8 or 0",
				q->op, hz_dtype_name(o->x_dtype));
	HZ_CHECK(hzi_check_reserved(ctx, q->op, o->reserved, 4));
	return check_combination(ctx, q);
}

static int make_multiplier(struct hz_context *ctx, const struct call *q, struct hzi_qgemm_args *g)
{
	const hz_qgemm_opts *o = q->o;
	const bool is_s32 = q->c->dtype == HZ_S32, exact = o->requant == HZ_REQUANT_EXACT;
	const float scales = hzi_sigma(g->a_scale, g->b_scale, g->c_scale);
	const float sigma = o->sigma != 0 ? (float)o->sigma : scales;

	if (o->multiplier || o->shift) {
		if (o->multiplier <= 0)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->multiplier is %d, must be positive", q->op,
					o->multiplier);
		if (o->shift < 1 || o->shift > 62)
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->shift is %d, must be 1 to 62",
					q->op, o->shift);
		g->mult = (struct hzi_multiplier){o->multiplier, o->shift};
	} else if (o->sigma != 0) {
		if (hz_qgemm_multiplier(o->sigma, &g->mult.u, &g->mult.shift) != HZ_OK)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->sigma is %g, must be positive and finite", q->op,
					o->sigma);
		g->mult = hzi_limit(g->mult, is_s32, exact);
	} else {
		g->mult = hzi_multiplier_f32(sigma, is_s32, exact);
	}
	if (!isfinite(scales) || (o->requant == HZ_REQUANT_FLOAT && !isfinite(sigma)))
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is %g, must be finite in f32", q->op,
				o->sigma != 0 ? "opts->sigma" : "a_scale * b_scale / c_scale",
				o->sigma != 0 ? o->sigma : (double)scales);
	if (o->requant == HZ_REQUANT_FLOAT)
		g->mult = hzi_requant_float_column(sigma, 1, 0);
	else if (o->requant == HZ_REQUANT_LITERT_REF)
		g->mult = hzi_requant_double_column(
			o->sigma != 0 ? o->sigma :
					(double)g->a_scale * g->b_scale / g->c_scale);
	return HZ_OK;
}

static int make_bounds(struct hz_context *ctx, const struct call *q, struct hzi_qgemm_args *g)
{
	const hz_qgemm_opts *o = q->o;
	const bool floating = is_float(q->c->dtype);
	/* HUGE_VAL, not INFINITY, makes these expressions double: floats cannot hold INT32_MAX. */
	double low = floating ? -HUGE_VAL : hzi_quant_min(q->c->dtype);
	double high = floating ? HUGE_VAL : hzi_quant_max(q->c->dtype);

	if (isnan(o->min) || isnan(o->max))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->min or opts->max is NaN", q->op);
	if (o->given & HZ_QGEMM_GIVEN_MIN && o->min > low)
		low = floating ? (double)(float)o->min : ceil(o->min);
	if (o->flags & HZ_QGEMM_RELU && g->c_zero > low)
		low = g->c_zero;
	if (o->given & HZ_QGEMM_GIVEN_MAX && o->max < high)
		high = floating ? (double)(float)o->max : floor(o->max);
	if (low > high)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: the bounds of %s are %g to %g, which leaves nothing", q->op,
				q->c_name, low, high);
	g->fmin = (float)low;
	g->fmax = (float)high;
	if (!floating) {
		g->min = (int32_t)low;
		g->max = (int32_t)high;
	}
	return HZ_OK;
}

static int qgemm_args(struct hz_context *ctx, const struct call *q, struct hzi_qgemm_args *g)
{
	const hz_qgemm_opts *o = q->o;
	const hz_tensor *a = q->a, *b = q->b, *c = q->c;
	const int a_dtype = !q->linear ? a->dtype : o->x_dtype ? o->x_dtype : HZ_U8;
	const bool rows_differ = q->linear && o->a_scale == 0;
	const bool f32_bias = is_float(c->dtype) || o->requant == HZ_REQUANT_FLOAT;
	const int bias_types[] = {HZ_S32, f32_bias ? HZ_F32 : 0, 0};
	int64_t rows = 1;
	int b_dtype;

	memset(g, 0, sizeof(*g));
	HZ_CHECK(check_opts(ctx, q));
	HZ_CHECK(check_shapes(ctx, q, g));
	b_dtype = o->packed ? o->packed->dtype : b->dtype;
	for (int d = 0; d < c->ndim - 1; d++)
		rows *= c->shape[d];

	HZ_CHECK(hzi_check_zero(ctx, q->op, "a_zero", o->a_zero, a_dtype));
	HZ_CHECK(hzi_check_zero(ctx, q->op, "b_zero", o->b_zero, b_dtype));
	if (!is_float(c->dtype))
		HZ_CHECK(hzi_check_zero(ctx, q->op, "c_zero", o->c_zero, c->dtype));
	HZ_CHECK(hzi_check_scale(ctx, q->op, "a_scale", o->a_scale, &g->a_scale));
	HZ_CHECK(hzi_check_scale(ctx, q->op, "b_scale", o->b_scale, &g->b_scale));
	HZ_CHECK(hzi_check_scale(ctx, q->op, "c_scale", o->c_scale, &g->c_scale));
	HZ_CHECK(hzi_check_apart(ctx, q->op, q->a_name, a, q->c_name, c));
	if (b)
		HZ_CHECK(hzi_check_apart(ctx, q->op, "b", b, q->c_name, c));
	if (o->packed) {
		/* What the check reads: to fill the rest takes 25 ns. */
		hz_tensor blob;

		blob.data = o->packed->data;
		blob.dtype = HZ_U8;
		blob.ndim = 1;
		blob.shape[0] = (int64_t)o->packed->bytes;
		blob.stride[0] = 1;
		HZ_CHECK(hzi_check_apart(ctx, q->op, "packed", &blob, q->c_name, c));
	}
	if (o->a_zeros)
		HZ_CHECK(check_zeros(ctx, q, "opts->a_zeros", o->a_zeros, a_dtype, true, rows, true));
	if (o->b_zeros)
		HZ_CHECK(check_zeros(ctx, q, "opts->b_zeros", o->b_zeros, b_dtype, false, g->n, false));
	if (o->a_scales)
		HZ_CHECK(check_vector(ctx, q, "opts->a_scales", o->a_scales, f32_type, true, rows,
				      true));
	if (o->b_scales)
		HZ_CHECK(check_vector(ctx, q, "opts->b_scales", o->b_scales, f32_type, false, g->n,
				      true));
	if (o->multipliers) {
		HZ_CHECK(check_vector(ctx, q, "opts->multipliers", o->multipliers, s32_type, false, g->n,
				      false));
		HZ_CHECK(check_vector(ctx, q, "opts->shifts", o->shifts, s32_type, false, g->n, false));
	}
	if (o->bias)
		HZ_CHECK(check_vector(ctx, q, "opts->bias", o->bias, bias_types, false, g->n, false));

	make_strides(q, g);
	g->a = q->linear ? NULL : hzi_data(ctx, a);
	g->b = b ? hzi_data(ctx, b) : NULL;
	g->packed = o->packed ? hzi_packed_data(ctx, o->packed) : NULL;
	g->c = hzi_data(ctx, c);
	g->a_dtype = a_dtype;
	g->b_dtype = b_dtype;
	g->c_dtype = c->dtype;
	g->layout = layout_of(ctx);
	g->a_zero = o->a_zero;
	g->b_zero = o->b_zero;
	g->c_zero = o->c_zero;
	g->a_zeros = o->a_zeros ? hzi_data(ctx, o->a_zeros) : NULL;
	g->zero_step = o->a_zeros && hz_tensor_count(o->a_zeros) == rows;
	g->b_zeros = o->b_zeros ? hzi_data(ctx, o->b_zeros) : NULL;
	g->a_scales = o->a_scales ? hzi_data(ctx, o->a_scales) : NULL;
	g->scale_step = o->a_scales && hz_tensor_count(o->a_scales) == rows;
	g->b_scales = o->b_scales ? hzi_data(ctx, o->b_scales) : NULL;
	g->b_scale_step = o->b_scales && hz_tensor_count(o->b_scales) == g->n;
	g->multipliers = o->multipliers ? hzi_data(ctx, o->multipliers) : NULL;
	g->shifts = o->shifts ? hzi_data(ctx, o->shifts) : NULL;
	g->bias = o->bias ? hzi_data(ctx, o->bias) : NULL;
	g->bias_dtype = o->bias ? o->bias->dtype : 0;
	g->requant = o->requant;
	if (!is_float(c->dtype)) {
		HZ_CHECK(make_multiplier(ctx, q, g));
		g->identity = !g->b_scales && !g->multipliers && g->requant == HZ_REQUANT_EXACT &&
			      g->mult.u == 1 << 30 && g->mult.shift == 30 && g->c_zero == 0;
	}
	HZ_CHECK(make_bounds(ctx, q, g));
	g->reach = g->k * reach(a_dtype, o->a_zero, o->a_zeros || rows_differ) *
		   reach(b_dtype, o->b_zero, o->b_zeros != NULL);
	g->sum64 = g->reach > INT32_MAX;
	return HZ_OK;
}

/* Checks the context and each operand by itself, before shapes are compared. */
static int check_operands(struct hz_context *ctx, struct call *q)
{
	static const hz_qgemm_opts defaults;

	if (!q->o)
		q->o = &defaults;
	HZI_ENTER(ctx, q->op);
	HZ_CHECK(hzi_check(ctx, q->op, q->a_name, q->a, q->linear ? float_types : code_types,
			   false));
	if (q->o->packed) {
		if (q->b)
			return hzi_fail(ctx, HZ_EINVAL, "%s: b must be NULL with opts->packed",
					q->op);
		HZ_CHECK(check_packed(ctx, q->op, q->o->packed));
	} else {
		HZ_CHECK(hzi_check(ctx, q->op, "b", q->b, code_types, false));
	}
	return hzi_check(ctx, q->op, q->c_name, q->c, q->linear ? float_types : c_types, true);
}

int hz_qgemm(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *c,
	     const hz_qgemm_opts *opts)
{
	struct call q = {
		.op = "qgemm", .a_name = "a", .c_name = "c", .a = a, .b = b, .c = c, .o = opts};
	struct hzi_qgemm_args g;

	HZ_CHECK(check_operands(ctx, &q));
	HZ_CHECK(qgemm_args(ctx, &q, &g));
	if (hz_tensor_count(c) == 0)
		return HZ_OK;
	return HZI_RUN(ctx, "qgemm", qgemm, qgemm, &g);
}

static int qlinear_args(struct hz_context *ctx, struct call *q, struct hzi_qlinear_args *l)
{
	int64_t codes;

	HZ_CHECK(check_operands(ctx, q));
	HZ_CHECK(qgemm_args(ctx, q, &l->g));
	/* x may be broadcast to y; each row of y has codes, a zero point and a scale. */
	if (hz_tensor_count(q->c) > 0 &&
	    !hzi_mul(l->g.rows, hzi_round_up(l->g.k, 128) + 256, &codes))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: y is too large: the codes of x overflow",
				q->op);
	l->x = hzi_data(ctx, q->a);
	l->x_dtype = q->a->dtype;
	l->fixed = q->o->a_scale != 0;
	l->symmetric = (q->o->flags & HZ_QLINEAR_SYMMETRIC) != 0;
	return HZ_OK;
}

int hz_qlinear(hz_context *ctx, const hz_tensor *x, const hz_tensor *b, hz_tensor *y,
	       const hz_qgemm_opts *opts)
{
	struct call q = {.op = "qlinear", .a_name = "x", .c_name = "y", .a = x, .b = b, .c = y,
			 .o = opts, .linear = true};
	struct hzi_qlinear_args l;

	HZ_CHECK(qlinear_args(ctx, &q, &l));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	return HZI_RUN(ctx, "qlinear", qgemm, qlinear, &l);
}
