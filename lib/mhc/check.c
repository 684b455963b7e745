/*
 * check.c - argument checks of hyper-connections: operands, overlap, options
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "lib/mhc/check.h"

#define OUT HZI_MHC_OUTPUT
#define NEED HZI_MHC_NEEDED

static const int stream_dtypes[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int f32_only[] = {HZ_F32, 0};

/* ---- Operands -------------------------------------------------------------------------------- */

/* Number of trailing dimensions, after those of tokens or of sets of coefficients */
static int trailing_dims(enum hzi_mhc_kind kind)
{
	return kind == HZI_MHC_X || kind == HZI_MHC_A ? 2 : 1;
}

static bool is_values(enum hzi_mhc_kind kind)
{
	return kind == HZI_MHC_X || kind == HZI_MHC_U;
}

static bool is_coef(enum hzi_mhc_kind kind)
{
	return kind == HZI_MHC_P || kind == HZI_MHC_A;
}

/* Whether an operand has leading dimensions (any number of them) */
static bool has_leading(enum hzi_mhc_kind kind)
{
	return kind <= HZI_MHC_SAVED;
}

/* Size d must equal the known one; the first operand makes it known. */
static int agree(struct hz_context *ctx, const char *op, const struct hzi_mhc_operand *o, int d,
		 int64_t *known, const char **known_of)
{
	const int64_t size = o->t->shape[d];

	if (*known < 0) {
		*known = size;
		*known_of = o->name;
	}
	if (size != *known)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld, as %s", op,
				o->name, d, (long long)size, (long long)*known, *known_of);
	return HZ_OK;
}

/* The same for tokens or sets of coefficients: the product of the leading sizes */
static int agree_leading(struct hz_context *ctx, const char *op, const struct hzi_mhc_operand *o,
			 const char *what, int64_t *known, const char **known_of)
{
	const int lead = o->t->ndim - trailing_dims(o->kind);
	int64_t count = 1;

	for (int d = 0; d < lead; d++)
		count *= o->t->shape[d];
	if (*known < 0) {
		*known = count;
		*known_of = o->name;
	}
	if (count != *known)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is of %lld %s, must be of %lld, as %s", op,
				o->name, (long long)count, what, (long long)*known, *known_of);
	return HZ_OK;
}

/* The stride of the leading dimensions, which must be mergeable into one dimension */
static int merge_leading(struct hz_context *ctx, const char *op, const struct hzi_mhc_operand *o,
			 int64_t *step)
{
	const hz_tensor *t = o->t;
	int last = -1;

	*step = 0;
	if (hz_tensor_count(t) == 0)
		return HZ_OK;
	for (int d = t->ndim - trailing_dims(o->kind) - 1; d >= 0; d--) {
		if (t->shape[d] == 1)
			continue;
		if (last < 0)
			*step = t->stride[d];
		else if (!hzi_continues(t->stride[d], t->stride[last], t->shape[last]))
			return hzi_fail(ctx, HZ_ESTRIDE,
					"%s: %s.stride[%d] is %lld, must be %lld: the first %d "
					"dimensions step as one",
					op, o->name, d, (long long)t->stride[d],
					(long long)(t->stride[last] * t->shape[last]),
					t->ndim - trailing_dims(o->kind));
		last = d;
	}
	return HZ_OK;
}

static int check_leading(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
			const struct hzi_mhc_operand *o)
{
	const int same[] = {d->dtype, 0};
	const hz_tensor *t = o->t;

	HZ_CHECK(hzi_check(ctx, op, o->name, t,
			   !is_values(o->kind) ? f32_only : d->dtype ? same : stream_dtypes,
			   o->flags & OUT));
	if (t->ndim < trailing_dims(o->kind))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d to %d", op, o->name,
				t->ndim, trailing_dims(o->kind), HZ_MAXDIM);
	if (is_values(o->kind)) {
		d->dtype = t->dtype;
		HZ_CHECK(agree(ctx, op, o, t->ndim - 1, &d->channels, &d->channels_of));
	}
	if (o->kind != HZI_MHC_U && o->kind != HZI_MHC_SAVED) {
		const int first = t->ndim - trailing_dims(o->kind);

		if (t->shape[first] < 1 || t->shape[first] > HZI_MHC_STREAMS)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be 1 to %d streams", op,
					o->name, first, (long long)t->shape[first],
					HZI_MHC_STREAMS);
		HZ_CHECK(agree(ctx, op, o, first, &d->n, &d->n_of));
		if (o->kind == HZI_MHC_A)
			HZ_CHECK(agree(ctx, op, o, first + 1, &d->n, &d->n_of));
	}
	return is_values(o->kind) ?
	       agree_leading(ctx, op, o, "tokens", &d->tokens, &d->tokens_of) :
	       agree_leading(ctx, op, o, "sets of coefficients", &d->groups, &d->groups_of);
}

int hzi_mhc_check(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		  const struct hzi_mhc_operand *list, int count)
{
	for (int i = 0; i < count; i++) {
		const struct hzi_mhc_operand *o = &list[i];

		if (o->flags & NEED && !o->t)
			return hzi_check(ctx, op, o->name, o->t, f32_only, false);
		if (o->t && has_leading(o->kind))
			HZ_CHECK(check_leading(ctx, op, d, o));
	}
	return HZ_OK;
}

static int64_t or_zero(int64_t size)
{
	return size < 0 ? 0 : size;
}

/* ---- Weights --------------------------------------------------------------------------------- */

static int check_size(struct hz_context *ctx, const char *op, const struct hzi_mhc_operand *o,
		      int d, int64_t size, const char *why)
{
	if (o->t->shape[d] != size)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld: %s", op,
				o->name, d, (long long)o->t->shape[d], (long long)size, why);
	return HZ_OK;
}

static int check_ndim(struct hz_context *ctx, const char *op, const struct hzi_mhc_operand *o,
		      int ndim)
{
	if (o->t->ndim != ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", op, o->name,
				o->t->ndim, ndim);
	return HZ_OK;
}

static int check_weight(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
			const struct hzi_mhc_operand *o)
{
	const int64_t n = or_zero(d->n), m = or_zero(d->m), channels = or_zero(d->channels);

	HZ_CHECK(hzi_check(ctx, op, o->name, o->t, f32_only, o->flags & OUT));
	if (!hz_tensor_contiguous(o->t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s has steps between elements, must be "
				"contiguous", op, o->name);
	if (o->kind == HZI_MHC_SAVED)
		return check_size(ctx, op, o, o->t->ndim - 1, m + 1, "rows of phi and 1");
	HZ_CHECK(check_ndim(ctx, op, o, o->kind == HZI_MHC_PHI ? 2 : 1));
	switch (o->kind) {
	case HZI_MHC_PHI:
		HZ_CHECK(check_size(ctx, op, o, 0, m, "rows of phi"));
		return check_size(ctx, op, o, 1, n * channels, "streams times channels");
	case HZI_MHC_ALPHA:
		return check_size(ctx, op, o, 0, m == n ? 1 : 3, m == n ? "p alone" : "p, q and a");
	case HZI_MHC_BIAS:
		return check_size(ctx, op, o, 0, m, "rows of phi");
	case HZI_MHC_GAIN:
		return check_size(ctx, op, o, 0, n * channels, "streams times channels");
	default:
		return check_size(ctx, op, o, 0, channels, "channels");
	}
}

int hzi_mhc_check_weights(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
			  const struct hzi_mhc_operand *list, int count)
{
	for (int i = 0; i < count; i++) {
		if (list[i].t && !is_values(list[i].kind) && !is_coef(list[i].kind))
			HZ_CHECK(check_weight(ctx, op, d, &list[i]));
	}
	return HZ_OK;
}

/* ---- Overlap --------------------------------------------------------------------------------- */

int hzi_mhc_check_apart(struct hz_context *ctx, const char *op,
			const struct hzi_mhc_operand *list, int count)
{
	for (int i = 0; i < count; i++) {
		const struct hzi_mhc_operand *o = &list[i];

		if (!o->t || !(o->flags & OUT))
			continue;
		for (int j = 0; j < count; j++) {
			const struct hzi_mhc_operand *other = &list[j];

			if (!other->t || j == i || (j > i && other->flags & OUT))
				continue;
			if (o->same && strcmp(o->same, other->name) == 0)
				HZ_CHECK(hzi_check_apart_or_same(ctx, op, other->name, other->t,
								 o->name, o->t));
			else
				HZ_CHECK(hzi_check_apart(ctx, op, other->name, other->t, o->name,
							 o->t));
		}
	}
	return HZ_OK;
}

/* ---- Arguments of implementations ------------------------------------------------------------ */

/* Dimensions of size 1, and empty views, get the strides of a contiguous array. */
static int fill_array(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
		      const struct hzi_mhc_operand *o)
{
	const bool streams = o->kind == HZI_MHC_X, empty = hz_tensor_count(o->t) == 0;
	const int64_t *const stride = o->t->stride + o->t->ndim - trailing_dims(o->kind);
	struct hzi_mhc_array *a = o->at;
	const int64_t n = streams ? d->n : 1;

	HZ_CHECK(merge_leading(ctx, op, o, &a->token));
	a->data = hzi_data(ctx, o->t);
	a->channel = empty || d->channels == 1 ? 1 : stride[streams];
	a->stream = !streams ? 0 : empty || n == 1 ? d->channels * a->channel : stride[0];
	if (empty || d->tokens == 1)
		a->token = streams ? n * a->stream : d->channels * a->channel;
	return HZ_OK;
}

static int fill_coef(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
		     const struct hzi_mhc_operand *o)
{
	const bool matrix = o->kind == HZI_MHC_A, empty = hz_tensor_count(o->t) == 0;
	const int64_t *const stride = o->t->stride + o->t->ndim - trailing_dims(o->kind);
	struct hzi_mhc_coef *c = o->at;

	HZ_CHECK(merge_leading(ctx, op, o, &c->group));
	c->data = empty ? NULL : hzi_data(ctx, o->t);
	c->column = !matrix ? 0 : empty || d->n == 1 ? 1 : stride[1];
	c->row = empty || d->n == 1 ? (matrix ? d->n * c->column : 1) : stride[0];
	if (empty || d->groups == 1)
		c->group = d->n * c->row;
	return HZ_OK;
}

int hzi_mhc_fill(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		 const struct hzi_mhc_operand *list, int count, struct hzi_mhc_shape *s)
{
	if (d->groups < 0) {
		d->groups = 1;
		d->groups_of = "the call";
	}
	if (d->tokens < 0) {
		d->tokens = d->groups;
		d->tokens_of = d->groups_of;
	}
	if (d->groups ? d->tokens % d->groups : d->tokens)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s is of %lld sets of coefficients, which do not divide the "
				"%lld tokens of %s",
				op, d->groups_of, (long long)d->groups, (long long)d->tokens,
				d->tokens_of);
	for (int i = 0; i < count; i++) {
		const struct hzi_mhc_operand *o = &list[i];

		if (!o->t)
			continue;
		if (is_values(o->kind))
			HZ_CHECK(fill_array(ctx, op, d, o));
		else if (is_coef(o->kind))
			HZ_CHECK(fill_coef(ctx, op, d, o));
		else
			*(float **)o->at = hz_tensor_count(o->t) ? hzi_data(ctx, o->t) : NULL;
	}
	*s = (struct hzi_mhc_shape){
		.tokens = d->tokens,
		.groups = d->groups ? d->groups : 1,
		.channels = or_zero(d->channels),
		.n = (int32_t)d->n,
		.dtype = d->dtype ? d->dtype : HZ_F32,
	};
	return HZ_OK;
}

int hzi_mhc_operands(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		     const struct hzi_mhc_operand *list, int count, struct hzi_mhc_shape *s)
{
	HZ_CHECK(hzi_mhc_check(ctx, op, d, list, count));
	HZ_CHECK(hzi_mhc_check_weights(ctx, op, d, list, count));
	HZ_CHECK(hzi_mhc_check_apart(ctx, op, list, count));
	return hzi_mhc_fill(ctx, op, d, list, count, s);
}

/* ---- Options --------------------------------------------------------------------------------- */

hz_mhc_opts hz_mhc_preset(int preset)
{
	switch (preset) {
	case HZ_MHC_PAPER:
		return (hz_mhc_opts){.map = HZ_MHC_EXP};
	case HZ_MHC_SEED:
		return (hz_mhc_opts){.map = HZ_MHC_ABS, .order = HZ_MHC_ROWS,
				     .flags = HZ_MHC_NORMALIZE, .eps = 1e-6, .p_eps = 1e-6,
				     .rms_eps = 1e-6};
	case HZ_MHC_SEED_STATIC:
		return (hz_mhc_opts){.map = HZ_MHC_ABS, .order = HZ_MHC_ROWS,
				     .flags = HZ_MHC_NORMALIZE, .eps = 1e-8, .p_eps = 1e-6,
				     .q_scale = 1, .rms_eps = 1e-6};
	case HZ_MHC_PLAIN:
		return (hz_mhc_opts){.residual = HZ_MHC_TANH, .rms_eps = 1e-6};
	case HZ_MHC_LITE_PRESET:
		return (hz_mhc_opts){.residual = HZ_MHC_LITE, .rms_eps = 1e-6};
	default:
		return (hz_mhc_opts){.map = HZ_MHC_SOFTMAX, .order = HZ_MHC_ROWS,
				     .flags = HZ_MHC_OLD_NEW, .eps = 1e-6, .p_eps = 1e-6,
				     .rms_eps = 1e-6, .norm_eps = 1e-6};
	}
}

static int64_t residual_rows(int64_t n, int residual)
{
	static const int factorial[] = {1, 1, 2, 6, 24};

	switch (residual) {
	case HZ_MHC_LITE:
		return n <= 4 ? factorial[n] : -1;
	case HZ_MHC_IDENTITY:
		return 0;
	default:
		return n * n;
	}
}

static int check_enum(struct hz_context *ctx, const char *op, const char *name, int64_t value,
		      int64_t most)
{
	if (value < 0 || value > most)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %lld, must be 0 to %lld", op, name,
				(long long)value, (long long)most);
	return HZ_OK;
}

static int check_not_negative(struct hz_context *ctx, const char *op, const char *name,
			      double value)
{
	if (!(value >= 0) || !isfinite((float)value))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->%s is %g, must be finite in f32 and not negative", op,
				name, value);
	return HZ_OK;
}

int hzi_mhc_rule_of(struct hz_context *ctx, const char *op, int64_t n, const hz_mhc_opts *opts,
		    struct hzi_mhc_rule *rule)
{
	const hz_mhc_opts o = opts ? *opts : hz_mhc_preset(HZ_MHC_DEEPSEEK);
	static const struct hzi_flag flags[] = {
		HZI_FLAG(HZ_MHC_OLD_NEW), HZI_FLAG(HZ_MHC_NORMALIZE), HZI_FLAG(HZ_MHC_ACCUMULATE),
		{0, NULL},
	};

	HZ_CHECK(check_enum(ctx, op, "residual", o.residual, HZ_MHC_TANH));
	HZ_CHECK(check_enum(ctx, op, "map", o.map, HZ_MHC_ABS));
	HZ_CHECK(check_enum(ctx, op, "order", o.order, HZ_MHC_ROWS));
	HZ_CHECK(check_enum(ctx, op, "iterations", o.iterations, 1000));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o.flags,
				 HZ_MHC_OLD_NEW | HZ_MHC_NORMALIZE | HZ_MHC_ACCUMULATE, flags));
	HZ_CHECK(check_enum(ctx, op, "pad", o.pad, 0));
	HZ_CHECK(check_not_negative(ctx, op, "eps", o.eps));
	HZ_CHECK(check_not_negative(ctx, op, "p_eps", o.p_eps));
	HZ_CHECK(check_not_negative(ctx, op, "q_scale", o.q_scale));
	HZ_CHECK(check_not_negative(ctx, op, "rms_eps", o.rms_eps));
	HZ_CHECK(check_not_negative(ctx, op, "norm_eps", o.norm_eps));
	HZ_CHECK(hzi_check_reserved(ctx, op, o.reserved, 4));
	if (residual_rows(n, o.residual) < 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->residual is HZ_MHC_LITE, which is for 4 streams at "
				"most: there are %lld",
				op, (long long)n);
	*rule = (struct hzi_mhc_rule){
		.n = (int32_t)n,
		.m = (int32_t)(2 * n + residual_rows(n, o.residual)),
		.residual = o.residual,
		.map = o.map,
		.order = o.order,
		.iterations = o.iterations ? o.iterations : 20,
		.flags = o.flags & (HZ_MHC_OLD_NEW | HZ_MHC_NORMALIZE),
		.eps = (float)o.eps,
		.p_eps = (float)o.p_eps,
		.q_scale = o.q_scale ? (float)o.q_scale : 2,
		.rms_eps = (float)o.rms_eps,
		.norm_eps = (float)o.norm_eps,
	};
	return HZ_OK;
}

int hz_mhc_rows(int n, const hz_mhc_opts *opts)
{
	const int residual = opts ? opts->residual : HZ_MHC_SINKHORN;
	int64_t rows;

	if (n < 1 || n > HZI_MHC_STREAMS || residual < 0 || residual > HZ_MHC_TANH)
		return -1;
	rows = residual_rows(n, residual);
	return rows < 0 ? -1 : 2 * n + (int)rows;
}
