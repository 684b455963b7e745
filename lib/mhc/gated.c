/*
 * gated.c - gated branch inputs: argument checks
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/mhc/check.h"

#define OUT HZI_MHC_OUTPUT
#define NEED HZI_MHC_NEEDED

/* What both calls share */
struct gated {
	const char *op;
	const hz_tensor *w_down, *w_up, *w_q;
	const hz_mhc_opts *opts;	/* never NULL */
	struct hzi_mhc_rule rule;
	struct hzi_mhc_shape s;
	struct hzi_mhc_order order;
	int64_t rank, columns;		/* r, n C */
};

static int check_matrix(struct hz_context *ctx, const struct gated *c, const char *name,
			const hz_tensor *t, int64_t rows, int64_t columns, bool output)
{
	static const int dtypes[] = {HZ_F32, HZ_F16, HZ_BF16, 0}, f32_only[] = {HZ_F32, 0};

	HZ_CHECK(hzi_check(ctx, c->op, name, t, output ? f32_only : dtypes, output));
	if (t->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 2", c->op, name,
				t->ndim);
	if (t->shape[0] != rows || t->shape[1] != columns)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is [%lld, %lld], must be [%lld, %lld]",
				c->op, name, (long long)t->shape[0], (long long)t->shape[1],
				(long long)rows, (long long)columns);
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s has steps between elements, must be "
				"contiguous", c->op, name);
	return HZ_OK;
}

/* Checks operands; of matrices DOWN are [r, n C], UP [n C, r] and INJECT [n, n C]. */
static int check_all(struct hz_context *ctx, struct gated *c, const struct hzi_mhc_operand *list,
		     int count, bool inject)
{
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	int64_t numbers;

	d.cn = hzi_mhc_is_cn(c->opts);
	HZI_ENTER(ctx, c->op);
	HZ_CHECK(hzi_mhc_check(ctx, c->op, &d, list, count));
	HZ_CHECK(hzi_mhc_rule_of(ctx, c->op, d.n, c->opts, &c->rule));
	c->rule.rms = HZ_MHC_RMS_STREAM;
	hzi_mhc_rule_for(&c->rule, d.channels);
	if (c->opts->coefficients != HZ_MHC_PER_TOKEN)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->coefficients is %s, must be HZ_MHC_PER_TOKEN: each "
				"token has its own gates",
				c->op, hzi_mhc_coefficients_name(c->opts->coefficients));
	if (inject && !c->w_q)
		return hzi_fail(ctx, HZ_EINVAL, "%s: w_q is NULL, and q or its gradient is given",
				c->op);
	if (d.groups >= 0 && d.groups != d.tokens)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: the number of sets of coefficients of %s is %lld, must be "
				"%lld, one for each token",
				c->op, d.groups_of, (long long)d.groups, (long long)d.tokens);
	d.groups = d.tokens;
	c->columns = d.n * d.channels;
	if (c->w_down->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w_down.ndim is %d, must be 2", c->op,
				c->w_down->ndim);
	if (c->w_down->shape[0] < 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w_down.shape[0] is %lld, must be at least 1",
				c->op, (long long)c->w_down->shape[0]);
	c->rank = c->w_down->shape[0];
	for (int i = 0; i < count; i++) {
		const bool up = list[i].kind == HZI_MHC_UP;

		if (!list[i].t || (list[i].kind != HZI_MHC_DOWN && !up &&
				   list[i].kind != HZI_MHC_INJECT))
			continue;
		HZ_CHECK(check_matrix(ctx, c, list[i].name, list[i].t,
				      up ? c->columns :
				      list[i].kind == HZI_MHC_DOWN ? c->rank : d.n,
				      up ? c->rank : c->columns, list[i].flags & OUT));
	}
	HZ_CHECK(hzi_mhc_check_scratch(ctx, c->op, &d, c->rank));
	if (!hzi_mul(c->columns, c->rank, &numbers) || numbers > INT64_MAX >> 8 ||
	    !hzi_mul(d.tokens + 1, numbers, &numbers))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w_down is too large: the size of the "
				"workspace or the number of products overflows", c->op);
	HZ_CHECK(hzi_mhc_check_weights(ctx, c->op, &d, list, count));
	HZ_CHECK(hzi_mhc_check_apart(ctx, c->op, list, count));
	HZ_CHECK(hzi_mhc_fill(ctx, c->op, &d, list, count, &c->s));
	c->order = d.cn ? (struct hzi_mhc_order){1, c->s.n} :
			  (struct hzi_mhc_order){c->s.channels, 1};
	return HZ_OK;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static struct gated gated_of(const char *op, const hz_tensor *w_down, const hz_tensor *w_up,
			     const hz_tensor *w_q, const hz_mhc_opts *opts)
{
	static const hz_mhc_opts defaults;

	return (struct gated){.op = op, .w_down = w_down, .w_up = w_up, .w_q = w_q,
			      .opts = opts ? opts : &defaults};
}

static struct hzi_mhc_gated_args args_of(struct hz_context *ctx, const struct gated *c,
					 struct hzi_mhc_array x, const float *gain)
{
	return (struct hzi_mhc_gated_args){
		.s = c->s, .rule = c->rule, .order = c->order, .x = x, .gain = gain,
		.rank = c->rank, .w_down = hzi_data(ctx, c->w_down),
		.w_up = hzi_data(ctx, c->w_up), .w_q = c->w_q ? hzi_data(ctx, c->w_q) : NULL,
		.down_dtype = c->w_down->dtype, .up_dtype = c->w_up->dtype,
		.q_dtype = c->w_q ? c->w_q->dtype : HZ_F32,
	};
}

int hz_mhc_gated_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *w_down,
		     const hz_tensor *w_up, const hz_tensor *w_q, hz_tensor *q, hz_tensor *u,
		     const hz_mhc_opts *opts)
{
	struct gated c = gated_of("mhc_gated_pre", w_down, w_up, w_q, opts);
	struct hzi_mhc_array xs = {.data = NULL}, us = xs;
	struct hzi_mhc_coef qs = {.data = NULL};
	struct hzi_mhc_gated_args args;
	float *gain = NULL, *unused;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, NEED, &xs, NULL},
		{"w_down", w_down, HZI_MHC_DOWN, NEED, &unused, NULL},
		{"w_up", w_up, HZI_MHC_UP, NEED, &unused, NULL},
		{"w_q", w_q, HZI_MHC_INJECT, 0, &unused, NULL},
		{"q", q, HZI_MHC_P, OUT, &qs, NULL},
		{"u", u, HZI_MHC_U, OUT, &us, NULL},
		{"opts->gain", c.opts->gain, HZI_MHC_GAIN, 0, &gain, NULL},
	};

	HZ_CHECK(check_all(ctx, &c, list, LISTED(list), q));
	if (c.s.channels == 0)
		us.data = NULL;
	if (c.s.tokens == 0 || (!qs.data && !us.data))
		return HZ_OK;
	args = args_of(ctx, &c, xs, gain);
	args.q = qs;
	args.u = us;
	return HZI_RUN(ctx, c.op, mhc, mhc_gated, &args);
}

int hz_mhc_gated_pre_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w_down,
			 const hz_tensor *w_up, const hz_tensor *w_q, const hz_mhc_gated_grads *g,
			 const hz_mhc_opts *opts)
{
	static const hz_mhc_gated_grads none;
	struct gated c = gated_of("mhc_gated_pre_bwd", w_down, w_up, w_q, opts);
	const hz_mhc_gated_grads *const o = g ? g : &none;
	struct hzi_mhc_gated_bwd_args a = {.dgain = NULL};
	struct hzi_mhc_array xs = {.data = NULL};
	float *gain = NULL, *unused;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, NEED, &xs, NULL},
		{"w_down", w_down, HZI_MHC_DOWN, NEED, &unused, NULL},
		{"w_up", w_up, HZI_MHC_UP, NEED, &unused, NULL},
		{"w_q", w_q, HZI_MHC_INJECT, 0, &unused, NULL},
		{"g->du", o->du, HZI_MHC_U, 0, &a.du, NULL},
		{"g->dq", o->dq, HZI_MHC_P, 0, &a.dq, NULL},
		{"g->dy", o->dy, HZI_MHC_X, 0, &a.dy, NULL},
		{"g->dx", o->dx, HZI_MHC_X, OUT, &a.dx, NULL},
		{"g->dw_down", o->dw_down, HZI_MHC_DOWN, OUT, &a.dw_down, NULL},
		{"g->dw_up", o->dw_up, HZI_MHC_UP, OUT, &a.dw_up, NULL},
		{"g->dw_q", o->dw_q, HZI_MHC_INJECT, OUT, &a.dw_q, NULL},
		{"opts->gain", c.opts->gain, HZI_MHC_GAIN, 0, &gain, NULL},
		{"opts->dgain", c.opts->dgain, HZI_MHC_GAIN, OUT, &a.dgain, NULL},
	};

	HZI_ENTER(ctx, c.op);
	if (!g)
		return hzi_fail(ctx, HZ_EINVAL, "%s: g is NULL", c.op);
	HZ_CHECK(hzi_check_reserved(ctx, c.op, g->reserved, 4));
	if (c.opts->dgain && !c.opts->gain)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->dgain is given, and opts->gain is NULL",
				c.op);
	HZ_CHECK(check_all(ctx, &c, list, LISTED(list), g->dq || g->dw_q));
	a.accumulate = (c.opts->flags & HZ_MHC_ACCUMULATE) != 0;
	if (c.columns == 0)
		return HZ_OK;
	a.of = args_of(ctx, &c, xs, gain);
	return HZI_RUN(ctx, c.op, mhc, mhc_gated_bwd, &a);
}
