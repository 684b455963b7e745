/*
 * gated.c - gated branch inputs: argument checks, and the operations that they consist of
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

/*
 * Arrays of f32 in the workspace: divided [T][n C], down and hidden [T][r], inject [T][n], up [T][n
 * C], roots [T][n][2]; dx [T][n C] and dhidden [T][r] of gradients. The workspace of products
 * follows.
 */
struct scratch {
	float *divided, *down, *hidden, *inject, *up, *roots, *dx, *dhidden;
	size_t bytes;
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
				"%s: %s is of %lld sets of coefficients, must be of %lld, one of "
				"each token",
				c->op, d.groups_of, (long long)d.groups, (long long)d.tokens);
	d.groups = d.tokens;
	c->columns = d.n * d.channels;
	if (c->w_down->ndim != 2 || c->w_down->shape[0] < 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w_down must be [r, n C], r at least 1", c->op);
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
	HZ_CHECK(hzi_mhc_check_weights(ctx, c->op, &d, list, count));
	HZ_CHECK(hzi_mhc_check_apart(ctx, c->op, list, count));
	HZ_CHECK(hzi_mhc_fill(ctx, c->op, &d, list, count, &c->s));
	c->order = d.cn ? (struct hzi_mhc_order){1, c->s.n} :
			  (struct hzi_mhc_order){c->s.channels, 1};
	return HZ_OK;
}

/* Takes `count` floats of the workspace, whose address is not used while bytes are counted. */
static float *take(const struct hz_context *ctx, struct scratch *w, int64_t count)
{
	const uintptr_t base = ctx->workspace ? (uintptr_t)ctx->workspace : 256;
	float *const at = (float *)(base + w->bytes);

	w->bytes += ((size_t)count * sizeof(float) + 255) / 256 * 256;
	return at;
}

static struct scratch scratch_of(const struct hz_context *ctx, const struct gated *c, bool backward)
{
	const int64_t T = c->s.tokens, K = c->columns, n = c->s.n;
	struct scratch w = {.bytes = 0};

	w.divided = take(ctx, &w, T * K);
	w.up = take(ctx, &w, T * K);
	w.down = take(ctx, &w, T * c->rank);
	w.hidden = take(ctx, &w, T * c->rank);
	w.inject = c->w_q ? take(ctx, &w, T * n) : NULL;
	if (!backward)
		return w;
	w.roots = take(ctx, &w, T * n * 2);
	w.dx = take(ctx, &w, T * K);
	w.dhidden = take(ctx, &w, T * c->rank);
	return w;
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * The products of a call: c [m][n] (+)= a b^T. Transposed operands have their strides exchanged.
 * While most is not NULL, products are not run: *most gets the largest workspace.
 */
struct products {
	struct hz_context *ctx;
	size_t *most;
};

/* A matrix [rows][columns], contiguous, or its transpose */
struct matrix {
	const void *data;
	int64_t rows, columns;
	int dtype;
	bool transposed;
};

static struct matrix floats(const float *data, int64_t rows, int64_t columns)
{
	return (struct matrix){data, rows, columns, HZ_F32, false};
}

static struct matrix weights(struct hz_context *ctx, const hz_tensor *t)
{
	return (struct matrix){hzi_data(ctx, t), t->shape[0], t->shape[1], t->dtype, false};
}

static struct matrix transpose(struct matrix m)
{
	m.transposed = !m.transposed;
	return m;
}

static int multiply(const struct products *p, struct matrix a, struct matrix b, float *c,
		    bool accumulate)
{
	const struct hzi_mhc_product_args g = {
		.a = a.data, .b = b.data, .c = c, .m = a.transposed ? a.columns : a.rows,
		.n = b.transposed ? b.columns : b.rows, .k = a.transposed ? a.rows : a.columns,
		.a_row = a.transposed ? 1 : a.columns, .a_step = a.transposed ? a.columns : 1,
		.b_row = b.transposed ? 1 : b.columns, .b_step = b.transposed ? b.columns : 1,
		.b_dtype = b.dtype, .accumulate = accumulate,
	};
	size_t bytes;

	if (!p->most)
		return g.m && g.n ? HZI_CALL(p->ctx, mhc, mhc_product, &g) : HZ_OK;
	bytes = HZI_WORKSPACE(p->ctx, mhc, mhc_product, &g);
	*p->most = bytes > *p->most ? bytes : *p->most;
	return HZ_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static struct hzi_mhc_divide_args divide_of(const struct gated *c, const struct scratch *w,
					    struct hzi_mhc_array x, const float *gain)
{
	return (struct hzi_mhc_divide_args){
		.s = c->s, .rule = c->rule, .order = c->order, .x = x, .gain = gain,
		.to = w->divided, .roots = w->roots,
	};
}

/* divided, down, hidden, inject and up from x */
static int forward(const struct products *p, const struct gated *c, const struct scratch *w,
		   struct hzi_mhc_array x, const float *gain, const struct hzi_mhc_coef *q)
{
	const struct hzi_mhc_divide_args divide = divide_of(c, w, x, gain);
	const struct hzi_mhc_hidden_args hidden = {
		.rule = c->rule, .tokens = c->s.tokens, .rank = c->rank, .down = w->down,
		.hidden = w->hidden, .inject = q->data ? w->inject : NULL, .q = *q,
	};
	const struct matrix divided = floats(w->divided, c->s.tokens, c->columns);

	if (!p->most)
		HZ_CHECK(HZI_CALL(p->ctx, mhc, mhc_divide, &divide));
	HZ_CHECK(multiply(p, divided, weights(p->ctx, c->w_down), w->down, false));
	if (w->inject)
		HZ_CHECK(multiply(p, divided, weights(p->ctx, c->w_q), w->inject, false));
	if (!p->most)
		HZ_CHECK(HZI_CALL(p->ctx, mhc, mhc_hidden, &hidden));
	return multiply(p, floats(w->hidden, c->s.tokens, c->rank), weights(p->ctx, c->w_up), w->up,
			false);
}

static int run_forward(struct hz_context *ctx, const struct gated *c, struct hzi_mhc_array x,
		       const float *gain, const struct hzi_mhc_coef *q, struct hzi_mhc_array u)
{
	size_t most = 0;
	struct products p = {ctx, &most};
	struct scratch w = scratch_of(ctx, c, false);
	struct hzi_mhc_gate_args gate = {.s = c->s, .order = c->order, .u = u};
	int status;

	HZ_CHECK(forward(&p, c, &w, x, gain, q));
	HZ_CHECK(hzi_workspace(ctx, c->op, w.bytes + most));
	if (ctx->recording)
		return HZ_OK;
	w = scratch_of(ctx, c, false);
	p.most = NULL;
	gate.x = w.divided;
	gate.up = w.up;
	hzi_mhc_move_workspace(ctx, (int64_t)w.bytes);
	status = forward(&p, c, &w, x, gain, q);
	if (status == HZ_OK && u.data)
		status = HZI_CALL(ctx, mhc, mhc_gate, &gate);
	hzi_mhc_move_workspace(ctx, -(int64_t)w.bytes);
	return status;
}

static struct gated gated_of(const char *op, const hz_tensor *w_down, const hz_tensor *w_up,
			     const hz_tensor *w_q, const hz_mhc_opts *opts)
{
	static const hz_mhc_opts defaults;

	return (struct gated){.op = op, .w_down = w_down, .w_up = w_up, .w_q = w_q,
			      .opts = opts ? opts : &defaults};
}

int hz_mhc_gated_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *w_down,
		     const hz_tensor *w_up, const hz_tensor *w_q, hz_tensor *q, hz_tensor *u,
		     const hz_mhc_opts *opts)
{
	struct gated c = gated_of("mhc_gated_pre", w_down, w_up, w_q, opts);
	struct hzi_mhc_array xs = {.data = NULL}, us = xs;
	struct hzi_mhc_coef qs = {.data = NULL};
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
	return run_forward(ctx, &c, xs, gain, &qs, us);
}

/* ---- Backward -------------------------------------------------------------------------------- */

struct gradients {
	struct hzi_mhc_array x, du, dy, dx;
	struct hzi_mhc_coef dq;
	float *gain, *dgain, *dw_down, *dw_up, *dw_q;
	bool accumulate;
};

/*
 * The products of gradients, in the order in which arrays are reused: up becomes its gradient, then
 * down and inject theirs, then dx that of x^
 */
static int backward(const struct products *p, const struct gated *c, const struct scratch *w,
		    const struct gradients *g)
{
	const int64_t T = c->s.tokens;
	const struct hzi_mhc_gate_args gate = {
		.s = c->s, .order = c->order, .x = w->divided, .up = w->up, .dx = w->dx,
		.u = g->du, .backward = true,
	};
	const struct hzi_mhc_hidden_args hidden = {
		.rule = c->rule, .tokens = T, .rank = c->rank, .down = w->down,
		.hidden = w->dhidden, .inject = w->inject, .dq = g->dq, .backward = true,
	};
	const struct matrix divided = floats(w->divided, T, c->columns);
	const struct matrix dup = floats(w->up, T, c->columns);
	const struct matrix ddown = floats(w->down, T, c->rank);
	const struct matrix dinject = floats(w->inject, T, c->s.n);
	const bool run = !p->most, adds = g->accumulate;

	if (run)
		HZ_CHECK(HZI_CALL(p->ctx, mhc, mhc_gate, &gate));
	HZ_CHECK(multiply(p, dup, transpose(weights(p->ctx, c->w_up)), w->dhidden, false));
	if (g->dw_up)
		HZ_CHECK(multiply(p, transpose(dup),
				  transpose(floats(w->hidden, T, c->rank)), g->dw_up, adds));
	if (run)
		HZ_CHECK(HZI_CALL(p->ctx, mhc, mhc_hidden, &hidden));
	if (g->dw_down)
		HZ_CHECK(multiply(p, transpose(ddown), transpose(divided), g->dw_down, adds));
	if (g->dw_q)
		HZ_CHECK(multiply(p, transpose(dinject), transpose(divided), g->dw_q, adds));
	HZ_CHECK(multiply(p, ddown, transpose(weights(p->ctx, c->w_down)), w->dx, true));
	if (w->inject)
		HZ_CHECK(multiply(p, dinject, transpose(weights(p->ctx, c->w_q)), w->dx, true));
	return HZ_OK;
}

static int end_backward(struct hz_context *ctx, const struct gated *c, const struct scratch *w,
			const struct gradients *g)
{
	const struct hzi_mhc_divide_args divide = divide_of(c, w, g->x, NULL);
	const struct hzi_mhc_divide_bwd_args back = {
		.s = c->s, .order = c->order, .x = w->divided, .roots = w->roots, .gain = g->gain,
		.d = w->dx, .dgain = g->dgain, .dy = g->dy, .dx = g->dx,
		.accumulate = g->accumulate,
	};

	/* Without gain the streams over their roots are there already. */
	if (g->gain)
		HZ_CHECK(HZI_CALL(ctx, mhc, mhc_divide, &divide));
	return HZI_CALL(ctx, mhc, mhc_divide_bwd, &back);
}

static int run_backward(struct hz_context *ctx, const struct gated *c, const struct gradients *g)
{
	static const struct hzi_mhc_coef no_q;
	size_t most = 0;
	struct products p = {ctx, &most};
	struct scratch w = scratch_of(ctx, c, true);
	int status;

	HZ_CHECK(forward(&p, c, &w, g->x, g->gain, &no_q));
	HZ_CHECK(backward(&p, c, &w, g));
	HZ_CHECK(hzi_workspace(ctx, c->op, w.bytes + most));
	if (ctx->recording)
		return HZ_OK;
	w = scratch_of(ctx, c, true);
	p.most = NULL;
	hzi_mhc_move_workspace(ctx, (int64_t)w.bytes);
	status = forward(&p, c, &w, g->x, g->gain, &no_q);
	if (status == HZ_OK)
		status = backward(&p, c, &w, g);
	if (status == HZ_OK)
		status = end_backward(ctx, c, &w, g);
	hzi_mhc_move_workspace(ctx, -(int64_t)w.bytes);
	return status;
}

int hz_mhc_gated_pre_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w_down,
			 const hz_tensor *w_up, const hz_tensor *w_q, const hz_mhc_gated_grads *g,
			 const hz_mhc_opts *opts)
{
	static const hz_mhc_gated_grads none;
	struct gated c = gated_of("mhc_gated_pre_bwd", w_down, w_up, w_q, opts);
	const hz_mhc_gated_grads *const o = g ? g : &none;
	struct gradients a = {.gain = NULL};
	float *unused;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, NEED, &a.x, NULL},
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
		{"opts->gain", c.opts->gain, HZI_MHC_GAIN, 0, &a.gain, NULL},
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
	return run_backward(ctx, &c, &a);
}
