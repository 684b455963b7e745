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

/* The dimension of channels of streams or branch values, and that of n of streams */
static int channel_dim(const struct hzi_mhc_dims *d, const struct hzi_mhc_operand *o)
{
	return o->t->ndim - 1 - (d->cn && o->kind == HZI_MHC_X);
}

static int stream_dim(const struct hzi_mhc_dims *d, const struct hzi_mhc_operand *o)
{
	return o->t->ndim - trailing_dims(o->kind) + (d->cn && o->kind == HZI_MHC_X);
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
	if (size != *known && strcmp(*known_of, o->name) == 0)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld: its "
				"matrices are square", op, o->name, d, (long long)size,
				(long long)*known);
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
		HZ_CHECK(agree(ctx, op, o, channel_dim(d, o), &d->channels, &d->channels_of));
	}
	if (o->kind != HZI_MHC_U && o->kind != HZI_MHC_SAVED) {
		const int first = stream_dim(d, o);

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

static int64_t or_zero(int64_t size)
{
	return size < 0 ? 0 : size;
}

int hzi_mhc_check_scratch(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
			  int64_t each)
{
	const int64_t tokens = or_zero(d->tokens > d->groups ? d->tokens : d->groups);
	int64_t row, all;

	if (hzi_mul(or_zero(d->n) + 1, or_zero(d->channels), &row) && row < INT64_MAX / 2 &&
	    each < INT64_MAX / 4 && hzi_mul(tokens + 1, row + each + 1024, &all) &&
	    all <= INT64_MAX >> 8)
		return HZ_OK;
	return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: the size of the workspace overflows",
			op, d->tokens_of ? d->tokens_of : d->groups_of ? d->groups_of : "n");
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
	return hzi_mhc_check_scratch(ctx, op, d, 0);
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
	const bool is_phi = o->kind == HZI_MHC_PHI || o->kind == HZI_MHC_DPHI;

	if (o->kind >= HZI_MHC_DOWN)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, op, o->name, o->t,
			   o->kind == HZI_MHC_PHI ? stream_dtypes : f32_only, o->flags & OUT));
	if (!hz_tensor_contiguous(o->t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s has steps between elements, must be "
				"contiguous", op, o->name);
	if (o->kind == HZI_MHC_SAVED)
		return check_size(ctx, op, o, o->t->ndim - 1, m + 1, "rows of phi and 1");
	HZ_CHECK(check_ndim(ctx, op, o, is_phi ? 2 : 1));
	switch (o->kind) {
	case HZI_MHC_PHI:
	case HZI_MHC_DPHI:
		HZ_CHECK(check_size(ctx, op, o, 0, m, "hz_mhc_rows()"));
		return check_size(ctx, op, o, 1, n * channels, "streams times channels");
	case HZI_MHC_ALPHA_OF_ONE:
		return check_size(ctx, op, o, 0, 1, "of p, q or a alone");
	case HZI_MHC_ALPHA:
		if (m == 2 * n && m > n && o->t->shape[0] == 2)
			return HZ_OK;
		return check_size(ctx, op, o, 0, m == n ? 1 : 3, m == n ? "p alone" : "p, q and a");
	case HZI_MHC_BIAS:
		return check_size(ctx, op, o, 0, m, "hz_mhc_rows()");
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
	const int64_t *const stride = o->t->stride;
	struct hzi_mhc_array *a = o->at;
	const int64_t n = streams ? d->n : 1;

	HZ_CHECK(merge_leading(ctx, op, o, &a->token));
	a->data = hzi_data(ctx, o->t);
	a->channel = empty || d->channels == 1 ? 1 : stride[channel_dim(d, o)];
	a->stream = !streams ? 0 : empty || n == 1 ? d->channels * a->channel :
		    stride[stream_dim(d, o)];
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
				"%s: the number of sets of coefficients of %s is %lld, which does "
				"not divide the %lld tokens of %s",
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
		if (o->kind == HZI_MHC_ALPHA) {
			float **const of = o->at;

			for (int64_t k = 1; k < 3; k++)
				of[k] = k < o->t->shape[0] ? of[0] + k : NULL;
		}
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

static const struct preset {
	int32_t residual, map, order, iterations;
	uint32_t flags;
	double eps, p_eps, q_scale, rms_eps, norm_eps;
	int32_t eps_rule, rms_eps_rule, head;	/* 0: ADD, INSIDE, WEIGHTS */
	int32_t rms, streams;		/* 0: ALL, NC */
	double q_eps, z_most;		/* z_most: z from -z_most to z_most; 0: unbounded */
} presets[] = {
#define SINKHORN(map_, order_, iterations_, flags_) \
	.residual = HZ_MHC_SINKHORN, .map = map_, .order = order_, .iterations = iterations_, \
	.flags = flags_
#define DEEPSEEK(iterations_, flags_) \
	SINKHORN(HZ_MHC_SOFTMAX, HZ_MHC_ROWS, iterations_, flags_), .eps = 1e-6
#define OTHER(residual_) \
	.residual = residual_, .map = HZ_MHC_EXP, .order = HZ_MHC_COLS, .iterations = 20
	[HZ_MHC_PRESET_DEEPSEEK_V4] = {
		DEEPSEEK(20, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-6,
		.norm_eps = 1e-6,
	},
	[HZ_MHC_PRESET_PAPER] = {SINKHORN(HZ_MHC_EXP, HZ_MHC_COLS, 20, 0), .q_scale = 2},
	[HZ_MHC_PRESET_TRITON] = {
		SINKHORN(HZ_MHC_ABS, HZ_MHC_ROWS, 20, HZ_MHC_NORMALIZE), .eps = 1e-6,
		.p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-6,
	},
	[HZ_MHC_PRESET_TRITON_STATIC] = {
		SINKHORN(HZ_MHC_ABS, HZ_MHC_ROWS, 20, HZ_MHC_NORMALIZE), .eps = 1e-8,
		.p_eps = 1e-6, .q_scale = 1, .rms_eps = 1e-6,
	},
	[HZ_MHC_PRESET_HC] = {OTHER(HZ_MHC_TANH), .q_scale = 2, .rms_eps = 1e-6},
	[HZ_MHC_PRESET_LITE] = {OTHER(HZ_MHC_LITE), .q_scale = 2, .rms_eps = 1e-6},
	[HZ_MHC_PRESET_DEEPSEEK_V41] = {
		DEEPSEEK(20, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-20,
		.norm_eps = 1e-6,
	},
	[HZ_MHC_PRESET_GLM5_NEXT] = {
		DEEPSEEK(20, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-5,
		.norm_eps = 1e-5, .head = HZ_MHC_HEAD_MEAN,
	},
	[HZ_MHC_PRESET_XING4] = {
		SINKHORN(HZ_MHC_EXP, HZ_MHC_ROWS, 20, 0), .eps = 1e-6, .q_scale = 2,
		.rms_eps = 1e-6, .head = HZ_MHC_HEAD_MEAN, .z_most = 30,
	},
	[HZ_MHC_PRESET_HY_V4] = {
		OTHER(HZ_MHC_IDENTITY), .p_eps = 1e-6, .q_scale = 2, .rms_eps = 1e-5,
		.norm_eps = 1e-5, .q_eps = 1e-6,
	},
	[HZ_MHC_PRESET_MEGATRON] = {
		SINKHORN(HZ_MHC_EXP, HZ_MHC_ROWS, 20, 0), .eps = 1e-6, .q_scale = 2,
		.rms_eps = 1e-6, .eps_rule = HZ_MHC_EPS_FLOOR,
		.rms_eps_rule = HZ_MHC_RMS_EPS_ROOT, .head = HZ_MHC_HEAD_MEAN,
	},
	[HZ_MHC_PRESET_TILEKERNELS] = {
		DEEPSEEK(10, HZ_MHC_OLD_NEW), .p_eps = 1e-6, .q_scale = 1, .rms_eps = 1e-6,
		.norm_eps = 1e-6,
	},
	[HZ_MHC_PRESET_LIGER] = {
		DEEPSEEK(20, 0), .q_scale = 2, .rms_eps = 1e-6, .norm_eps = 1e-6,
	},
	[HZ_MHC_PRESET_TRANSFORMER_ENGINE] = {
		SINKHORN(HZ_MHC_EXP, HZ_MHC_ROWS, 20, HZ_MHC_OLD_NEW), .q_scale = 2,
		.rms_eps = 0x1p-23, .streams = HZ_MHC_STREAMS_CN,
	},
	[HZ_MHC_PRESET_LUCIDRAINS] = {
		SINKHORN(HZ_MHC_EXP, HZ_MHC_COLS, 20, HZ_MHC_OLD_NEW), .eps = 1e-12, .q_scale = 2,
		.rms_eps = 1e-12, .eps_rule = HZ_MHC_EPS_FLOOR, .rms = HZ_MHC_RMS_STREAM,
		.rms_eps_rule = HZ_MHC_RMS_EPS_FLOOR, .head = HZ_MHC_HEAD_SUM,
	},
	[HZ_MHC_PRESET_QWEN4_EXP] = {
		OTHER(HZ_MHC_IDENTITY), .q_scale = 2, .rms_eps = 1e-6, .norm_eps = 1e-6,
		.rms = HZ_MHC_RMS_STREAM,
	},
#undef SINKHORN
#undef DEEPSEEK
#undef OTHER
};

/* The preset of options (NULL: the default); NULL if there is none of that number */
static const struct preset *preset_of(const hz_mhc_opts *o)
{
	const int32_t k = o && o->preset ? o->preset : HZ_MHC_PRESET_DEEPSEEK_V4;

	return k >= 1 && k < LISTED(presets) ? &presets[k] : NULL;
}

int hzi_mhc_head_of(const hz_mhc_opts *opts)
{
	const struct preset *const p = preset_of(opts);
	const int32_t head = opts->head ? opts->head : p ? p->head : 0;

	return head ? head : HZ_MHC_HEAD_WEIGHTS;
}

bool hzi_mhc_is_cn(const hz_mhc_opts *opts)
{
	const struct preset *const p = preset_of(opts);

	return (opts && opts->streams ? opts->streams : p ? p->streams : 0) == HZ_MHC_STREAMS_CN;
}

int hzi_mhc_residual(const hz_mhc_opts *opts)
{
	const struct preset *const p = preset_of(opts);

	return opts && opts->residual ? opts->residual : p ? p->residual : -1;
}

const char *hzi_mhc_coefficients_name(int coefficients)
{
	static const char *const names[] = {
		[HZ_MHC_PER_TOKEN] = "HZ_MHC_PER_TOKEN",
		[HZ_MHC_PER_SEQUENCE] = "HZ_MHC_PER_SEQUENCE",
		[HZ_MHC_STATIC] = "HZ_MHC_STATIC",
	};

	return coefficients >= 0 && coefficients < LISTED(names) ? names[coefficients] : "unknown";
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

/* A number of the options: name, bit of `given`, where it is in options, presets and rules */
struct number {
	const char *name;
	struct hzi_flag given;
	uint16_t from, preset, to;
	bool any_sign;
};

#define NUMBER(name, bit, any_sign, own) \
	{#name, {bit, #bit}, offsetof(hz_mhc_opts, name), offsetof(struct preset, own), \
	 offsetof(struct hzi_mhc_rule, name), any_sign}

static const struct number numbers[] = {
	NUMBER(eps, HZ_MHC_GIVEN_EPS, false, eps),
	NUMBER(p_eps, HZ_MHC_GIVEN_P_EPS, false, p_eps),
	NUMBER(q_scale, HZ_MHC_GIVEN_Q_SCALE, false, q_scale),
	NUMBER(rms_eps, HZ_MHC_GIVEN_RMS_EPS, false, rms_eps),
	NUMBER(norm_eps, HZ_MHC_GIVEN_NORM_EPS, false, norm_eps),
	NUMBER(q_eps, HZ_MHC_GIVEN_Q_EPS, false, q_eps),
	NUMBER(z_min, HZ_MHC_GIVEN_Z_MIN, true, z_most),
	NUMBER(z_max, HZ_MHC_GIVEN_Z_MAX, true, z_most),
};

static int take_number(struct hz_context *ctx, const char *op, const struct number *n,
		       const hz_mhc_opts *o, const struct preset *p, struct hzi_mhc_rule *rule)
{
	const double value = *(const double *)(const void *)((const char *)o + n->from);
	float *const to = (float *)(void *)((char *)rule + n->to);

	if (!(o->given & n->given.bit)) {
		*to = (float)*(const double *)(const void *)((const char *)p + n->preset);
		return value == 0 ? HZ_OK :
		       hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->%s is %g, but opts->given lacks %s: set it, or %s to 0",
				op, n->name, value, n->given.name, n->name);
	}
	*to = (float)value;
	if (!((n->any_sign || *to >= 0) && isfinite(*to)))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %g, must be finite in f32%s", op,
				n->name, value, n->any_sign ? "" : " and not negative");
	return HZ_OK;
}

static int32_t or_preset(int32_t value, int32_t preset)
{
	return value ? value : preset;
}

int hzi_mhc_rule_of(struct hz_context *ctx, const char *op, int64_t n, const hz_mhc_opts *opts,
		    struct hzi_mhc_rule *rule)
{
	static const struct hzi_flag flags[] = {
		HZI_FLAG(HZ_MHC_OLD_NEW), HZI_FLAG(HZ_MHC_NORMALIZE), HZI_FLAG(HZ_MHC_ACCUMULATE),
		{0, NULL},
	};
	static const struct hzi_flag given[] = {
		HZI_FLAG(HZ_MHC_GIVEN_EPS), HZI_FLAG(HZ_MHC_GIVEN_P_EPS),
		HZI_FLAG(HZ_MHC_GIVEN_Q_SCALE), HZI_FLAG(HZ_MHC_GIVEN_RMS_EPS),
		HZI_FLAG(HZ_MHC_GIVEN_NORM_EPS), HZI_FLAG(HZ_MHC_GIVEN_OLD_NEW),
		HZI_FLAG(HZ_MHC_GIVEN_NORMALIZE), HZI_FLAG(HZ_MHC_GIVEN_Q_EPS),
		HZI_FLAG(HZ_MHC_GIVEN_Z_MIN), HZI_FLAG(HZ_MHC_GIVEN_Z_MAX), {0, NULL},
	};
	static const hz_mhc_opts defaults;
	const hz_mhc_opts *const o = opts ? opts : &defaults;
	const struct preset *const p = preset_of(o);
	uint32_t kept = HZ_MHC_OLD_NEW | HZ_MHC_NORMALIZE;	/* flags of the preset */

	HZ_CHECK(check_enum(ctx, op, "preset", o->preset, LISTED(presets) - 1));
	HZ_CHECK(check_enum(ctx, op, "coefficients", o->coefficients, HZ_MHC_STATIC));
	HZ_CHECK(check_enum(ctx, op, "residual", o->residual, HZ_MHC_TANH));
	HZ_CHECK(check_enum(ctx, op, "map", o->map, HZ_MHC_ABS));
	HZ_CHECK(check_enum(ctx, op, "order", o->order, HZ_MHC_ROWS));
	HZ_CHECK(check_enum(ctx, op, "eps_rule", o->eps_rule, HZ_MHC_EPS_FLOOR));
	HZ_CHECK(check_enum(ctx, op, "rms", o->rms, HZ_MHC_RMS_STREAM));
	HZ_CHECK(check_enum(ctx, op, "rms_eps_rule", o->rms_eps_rule, HZ_MHC_RMS_EPS_FLOOR));
	HZ_CHECK(check_enum(ctx, op, "head", o->head, HZ_MHC_HEAD_SUM));
	HZ_CHECK(check_enum(ctx, op, "streams", o->streams, HZ_MHC_STREAMS_CN));
	HZ_CHECK(check_enum(ctx, op, "iterations", o->iterations, 1000));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o->flags,
				 HZ_MHC_OLD_NEW | HZ_MHC_NORMALIZE | HZ_MHC_ACCUMULATE, flags));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->given", o->given, 1023, given));
	for (int i = 0; i < LISTED(numbers); i++)
		HZ_CHECK(take_number(ctx, op, &numbers[i], o, p, rule));
	if (!(o->given & HZ_MHC_GIVEN_Z_MIN))
		rule->z_min = p->z_most > 0 ? -rule->z_min : -INFINITY;
	if (!(o->given & HZ_MHC_GIVEN_Z_MAX) && !(p->z_most > 0))
		rule->z_max = INFINITY;
	if (rule->z_min > rule->z_max)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->z_min is %g and z_max %g, must not be less than z_min",
				op, (double)rule->z_min, (double)rule->z_max);
	HZ_CHECK(hzi_check_reserved(ctx, op, o->reserved, 4));
	rule->residual = or_preset(o->residual, p->residual);
	if (residual_rows(n, rule->residual) < 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->residual is HZ_MHC_LITE, which is for 4 streams at "
				"most: there are %lld",
				op, (long long)n);
	if (o->given & HZ_MHC_GIVEN_OLD_NEW)
		kept &= ~HZ_MHC_OLD_NEW;
	if (o->given & HZ_MHC_GIVEN_NORMALIZE)
		kept &= ~HZ_MHC_NORMALIZE;
	rule->n = (int32_t)n;
	rule->m = (int32_t)(2 * n + residual_rows(n, rule->residual));
	rule->map = or_preset(o->map, p->map);
	rule->order = or_preset(o->order, p->order);
	rule->iterations = or_preset(o->iterations, p->iterations);
	rule->eps_rule = or_preset(o->eps_rule, or_preset(p->eps_rule, HZ_MHC_EPS_ADD));
	rule->rms = or_preset(o->rms, or_preset(p->rms, HZ_MHC_RMS_ALL));
	rule->rms_eps_rule = or_preset(o->rms_eps_rule,
				       or_preset(p->rms_eps_rule, HZ_MHC_RMS_EPS_INSIDE));
	rule->flags = (o->flags & (HZ_MHC_OLD_NEW | HZ_MHC_NORMALIZE)) | (p->flags & kept);
	return HZ_OK;
}

void hzi_mhc_rule_for(struct hzi_mhc_rule *rule, int64_t channels)
{
	const int64_t count = (rule->rms == HZ_MHC_RMS_STREAM ? 1 : rule->n) * channels;

	if (rule->rms_eps_rule == HZ_MHC_RMS_EPS_FLOOR && count > 0)
		rule->rms_eps = (float)((double)rule->rms_eps / sqrt((double)count));
}

int hz_mhc_rows(int n, const hz_mhc_opts *opts)
{
	const int residual = hzi_mhc_residual(opts);
	int64_t rows;

	if (n < 1 || n > HZI_MHC_STREAMS || residual < 1 || residual > HZ_MHC_TANH ||
	    !preset_of(opts))
		return -1;
	rows = residual_rows(n, residual);
	return rows < 0 ? -1 : 2 * n + (int)rows;
}
