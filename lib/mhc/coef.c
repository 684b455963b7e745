/*
 * coef.c - coefficients of hyper-connections and the branch input: argument checks
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "lib/mhc/check.h"

#define OUT HZI_MHC_OUTPUT
#define NEED HZI_MHC_NEEDED

/* ---- Shared by all calls --------------------------------------------------------------------- */

/* Rows of phi: those of p, q and a; those of p only; or either, decided by the size of bias */
enum rows { ROWS_ALL, ROWS_P, ROWS_EITHER };

struct call {
	const char *op;
	const hz_tensor *phi, *alpha, *bias;
	const hz_mhc_opts *opts;	/* never NULL */
	enum rows rows;
	bool layer;			/* weights, options and saved are those of a layer */
	int head;			/* one of enum hz_mhc_heads; 0: no head */
};

/* The name of an operand: for a call of a layer, the second */
static const char *named(const struct call *c, const char *name, const char *in_layer)
{
	return c->layer ? in_layer : name;
}

#define WEIGHT(c, field) named(c, #field, "layer->" #field)
#define OPTION(c, field) named(c, "opts->" #field, "layer->" #field)
#define GRADIENT(c, field) named(c, "g->" #field, #field)
#define LAYER_GRADIENT(c, field) named(c, "g->" #field, "layer->" #field)

static struct call call_of(const char *op, const hz_tensor *phi, const hz_tensor *alpha,
			   const hz_tensor *bias, const hz_mhc_opts *opts)
{
	static const hz_mhc_opts defaults;

	return (struct call){.op = op, .phi = phi, .alpha = alpha, .bias = bias,
			     .opts = opts ? opts : &defaults};
}

/*
 * Sets the number of sets of coefficients as opts->coefficients says, and refuses operands with
 * another one. x is the streams, or NULL.
 */
static int check_sets(struct hz_context *ctx, const struct call *c, const hz_tensor *x,
		      struct hzi_mhc_dims *d)
{
	const int mode = c->opts->coefficients;
	const bool counted = mode == HZ_MHC_PER_SEQUENCE && x && x->ndim > 3;
	const int64_t sets = mode == HZ_MHC_STATIC ? 1 : counted ? x->shape[0] :
			     mode == HZ_MHC_PER_TOKEN ? d->tokens : -1;
	const char *const name = hzi_mhc_coefficients_name(mode);

	if (mode == HZ_MHC_STATIC && c->phi)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: %s is given, and %sopts->coefficients is %s: those of bias "
				"alone, without phi",
				c->op, WEIGHT(c, phi), named(c, "", "layer->"), name);
	if (sets < 0 && d->groups < 0 && mode == HZ_MHC_PER_SEQUENCE)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: the number of sequences is unknown, and opts->coefficients is "
				"%s: streams must be [S, ..., n, C] of 4 dimensions or more, or an "
				"operand have S sets of coefficients",
				c->op, name);
	if (sets >= 0 && d->groups >= 0 && d->groups != sets)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: the number of sets of coefficients of %s is %lld, must be "
				"%lld%s: opts->coefficients is %s",
				c->op, d->groups_of, (long long)d->groups, (long long)sets,
				counted ? ", the first dimension of streams" :
				mode == HZ_MHC_PER_TOKEN ? ", one for each token" : "", name);
	if (d->groups < 0) {
		d->groups = sets;
		d->groups_of = "opts->coefficients";
	}
	return HZ_OK;
}

/* alpha has the factor of p alone where those of q and a are operands of their own. */
static enum hzi_mhc_kind alpha_kind(const hz_mhc_opts *o)
{
	return o->alpha_q || o->alpha_a ? HZI_MHC_ALPHA_OF_ONE : HZI_MHC_ALPHA;
}

/* Whether alpha_q and alpha_a are there where the rows of phi are */
static int check_alphas(struct hz_context *ctx, const struct call *c,
			const struct hzi_mhc_rule *rule)
{
	const hz_mhc_opts *const o = c->opts;
	const bool has_q = rule->m > rule->n, is_q = !o->alpha_q != !has_q;
	const bool has = is_q ? has_q : rule->m > 2 * rule->n;
	const hz_tensor *const alpha = is_q ? o->alpha_q : o->alpha_a;

	if (alpha_kind(o) == HZI_MHC_ALPHA || !alpha == !has)
		return HZ_OK;
	return hzi_fail(ctx, HZ_EINVAL, "%s: opts->alpha_%s is %s, and phi has %srows of it",
			c->op, is_q ? "q" : "a", alpha ? "given" : "NULL", has ? "" : "no ");
}

/* A head without weights */
static bool is_unweighted(const struct call *c)
{
	return c->head > HZ_MHC_HEAD_WEIGHTS;
}

/* Checks the operands, the first of which is the streams; fills what their `at` points to, the rule
 * and the shape. */
static int check_all(struct hz_context *ctx, const struct call *c,
		     const struct hzi_mhc_operand *list, int count, struct hzi_mhc_rule *rule,
		     struct hzi_mhc_shape *s)
{
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;

	d.cn = hzi_mhc_is_cn(c->opts);
	HZI_ENTER(ctx, c->op);
	if (!c->bias && !is_unweighted(c))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: %s is NULL: give the weights phi, alpha and bias, or bias "
				"alone for static coefficients",
				c->op, WEIGHT(c, bias));
	if (c->phi && !c->alpha)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: %s is NULL, and phi is given: give alpha, the scales of p, q "
				"and a in phi's products",
				c->op, WEIGHT(c, alpha));
	HZ_CHECK(hzi_mhc_check(ctx, c->op, &d, list, count));
	if (d.n < 0)
		return hzi_fail(ctx, HZ_EINVAL, "%s: neither streams nor coefficients are given",
				c->op);
	HZ_CHECK(hzi_mhc_rule_of(ctx, c->op, d.n, c->opts, rule));
	if (c->rows == ROWS_P || (c->rows == ROWS_EITHER && c->bias->ndim == 1 &&
				  c->bias->shape[0] == d.n))
		rule->m = rule->n;
	d.m = rule->m;
	HZ_CHECK(check_alphas(ctx, c, rule));
	HZ_CHECK(hzi_mhc_check_weights(ctx, c->op, &d, list, count));
	HZ_CHECK(check_sets(ctx, c, list[0].t, &d));
	HZ_CHECK(hzi_mhc_check_apart(ctx, c->op, list, count));
	HZ_CHECK(hzi_mhc_fill(ctx, c->op, &d, list, count, s));
	hzi_mhc_rule_for(rule, s->channels);
	if (is_unweighted(c)) {
		rule->flags |= HZI_MHC_HEAD;
		rule->p_eps = c->head == HZ_MHC_HEAD_SUM ? 1 : 1.0f / (float)s->n;
	}
	return HZ_OK;
}

/* HZ_MHC_HEAD_MEAN and HZ_MHC_HEAD_SUM have no weights. */
static int check_head(struct hz_context *ctx, const struct call *c)
{
	HZI_ENTER(ctx, c->op);
	if (is_unweighted(c) && (c->phi || c->alpha || c->bias))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: %s is given, and opts->head is HZ_MHC_HEAD_%s, set or of "
				"the preset: it must be NULL",
				c->op, c->phi ? "phi" : c->alpha ? "alpha" : "bias",
				c->head == HZ_MHC_HEAD_MEAN ? "MEAN" : "SUM");
	return HZ_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/*
 * Copies of weights in front of the workspace of an operation, which takes them instead: phi of 16
 * bits in f32, and with HZ_MHC_STREAMS_CN weights and their gradients in the order of streams nc
 */
struct copies {
	struct {
		const hz_tensor *t;
		float **at;		/* the operation's operand */
		bool in, out;		/* copied before, after the operation */
		int64_t outer, inner;	/* of the operand, see struct hzi_mhc_widen_args */
	} list[4];
	int count;
	size_t bytes;
};

static size_t copy_bytes(const hz_tensor *t)
{
	return ((size_t)hz_tensor_count(t) * sizeof(float) + 255) / 256 * 256;
}

static void add_copy(struct copies *k, const struct call *c, const struct hzi_mhc_shape *s,
		     const hz_tensor *t, const void *at, bool in, bool out)
{
	float **const to = (float **)(uintptr_t)at;
	const bool cn = hzi_mhc_is_cn(c->opts) && s->n > 1 && s->channels > 1;

	if (!*to || (t->dtype == HZ_F32 && !cn))
		return;
	*to = (float *)(uintptr_t)256;	/* not read; aligned as it will be */
	k->bytes += copy_bytes(t);
	k->list[k->count].t = t;
	k->list[k->count].at = to;
	k->list[k->count].in = in;
	k->list[k->count].out = out;
	k->list[k->count].outer = cn ? s->channels : 1;
	k->list[k->count++].inner = cn ? s->n : hz_tensor_count(t);
}

/* The operation's workspace is what follows the copies, until end_copies(). */
static int begin_copies(struct hz_context *ctx, const struct copies *k)
{
	for (int i = 0; i < k->count; i++) {
		struct hzi_mhc_widen_args widen = {
			.from = hzi_data(ctx, k->list[i].t), .to = ctx->workspace,
			.count = hz_tensor_count(k->list[i].t), .outer = k->list[i].outer,
			.inner = k->list[i].inner, .dtype = k->list[i].t->dtype,
		};
		const size_t bytes = copy_bytes(k->list[i].t);

		*k->list[i].at = widen.to;
		hzi_mhc_move_workspace(ctx, (int64_t)bytes);
		if (k->list[i].in)
			HZ_CHECK(HZI_CALL(ctx, mhc, mhc_widen, &widen));
	}
	return HZ_OK;
}

static int end_copies(struct hz_context *ctx, const struct copies *k, int status)
{
	hzi_mhc_move_workspace(ctx, -(int64_t)k->bytes);
	for (int i = 0; i < k->count && status == HZ_OK; i++) {
		struct hzi_mhc_widen_args widen = {
			.from = *k->list[i].at, .to = hzi_data(ctx, k->list[i].t),
			.count = hz_tensor_count(k->list[i].t), .outer = k->list[i].inner,
			.inner = k->list[i].outer, .dtype = HZ_F32,
		};

		if (k->list[i].out)
			status = HZI_CALL(ctx, mhc, mhc_widen, &widen);
	}
	return status;
}

/* The branch input of a call, and what hz_quantize() makes of it */
struct coded {
	const hz_tensor *u;		/* the caller's, or &own in the workspace; NULL: none */
	hz_tensor own;
	size_t own_bytes;		/* of that */
	size_t need;			/* the workspace of hz_quantize() */
};

static int quantize(struct hz_context *ctx, const struct call *c, const struct coded *k)
{
	const hz_mhc_opts *const o = c->opts;
	char message[sizeof(ctx->errmsg)];
	const int status = hz_quantize(ctx, k->u, o->u_codes, o->u_quantize);

	if (status == HZ_OK)
		return HZ_OK;
	memcpy(message, ctx->errmsg, sizeof(message));
	return hzi_fail(ctx, status, "%s: opts->u_codes, opts->u_quantize: %s", c->op, message);
}

/* Whether the operands of hz_quantize() have data, which a call that is recorded need not have */
static int check_codes_data(struct hz_context *ctx, const struct call *c)
{
	static const char *const names[] = {
		"u_codes", "u_quantize->scales", "u_quantize->zeros", "u_quantize->tensor_scale",
		"u_quantize->new_scales", "u_quantize->new_tensor_scale",
		"u_quantize->hadamard->pre", "u_quantize->hadamard->post",
	};
	const hz_quantize_opts *const q = c->opts->u_quantize;
	const hz_tensor *const list[] = {
		c->opts->u_codes, q->scales, q->zeros, q->tensor_scale, q->new_scales,
		q->new_tensor_scale, q->hadamard ? q->hadamard->pre : NULL,
		q->hadamard ? q->hadamard->post : NULL,
	};

	for (int i = 0; i < LISTED(list) && !ctx->recording; i++) {
		if (list[i] && !list[i]->data && hz_tensor_count(list[i]) > 0)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->%s.data is NULL, must hold %lld elements", c->op,
					names[i], (long long)hz_tensor_count(list[i]));
	}
	return HZ_OK;
}

/* The same without effect: whether operands are right, and the workspace */
static int try_quantize(struct hz_context *ctx, const struct call *c, struct coded *k)
{
	const bool recording = ctx->recording;
	const size_t recorded = ctx->recorded_bytes;
	int status;

	ctx->recording = true;
	ctx->recorded_bytes = 0;
	status = quantize(ctx, c, k);
	k->need = ctx->recorded_bytes;
	ctx->recorded_bytes = recorded;
	ctx->recording = recording;
	return status;
}

/*
 * u, or where that is NULL and codes are wanted a view of the workspace, whose address is not used
 * before the call runs. Wrong streams are left to the checks of operands.
 */
static int check_codes(struct hz_context *ctx, const struct call *c, const hz_tensor *x,
		       const hz_tensor *u, struct coded *k)
{
	const hz_mhc_opts *const o = c->opts;
	int64_t shape[HZ_MAXDIM];

	*k = (struct coded){.u = u};
	if (!o->u_codes && !o->u_quantize)
		return HZ_OK;
	HZI_ENTER(ctx, c->op);
	if (!o->u_codes || !o->u_quantize)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->u_%s is NULL, and u_%s is given: set "
				"both", c->op, o->u_codes ? "quantize" : "codes",
				o->u_codes ? "codes" : "quantize");
	if (!x || x->ndim < 2 || x->ndim > HZ_MAXDIM)
		return HZ_OK;
	if (!u) {
		memcpy(shape, x->shape, sizeof(shape));
		if (!hzi_mhc_is_cn(o))
			shape[x->ndim - 2] = shape[x->ndim - 1];
		k->own = hz_tensor_nd((void *)(uintptr_t)256, x->dtype, x->device, x->ndim - 1,
				      shape);
		k->own_bytes = ((size_t)hz_tensor_count(&k->own) * hz_dtype_size(x->dtype) + 255) /
			       256 * 256;
		k->u = &k->own;
	}
	HZ_CHECK(check_codes_data(ctx, c));
	return try_quantize(ctx, c, k);
}

/* Whether codes and their scales overlap no operand */
static int check_codes_apart(struct hz_context *ctx, const struct call *c,
			     const struct hzi_mhc_operand *list, int count)
{
	const hz_quantize_opts *const q = c->opts->u_quantize;
	const struct {
		const char *name;
		const hz_tensor *t;
	} made[] = {
		{"opts->u_codes", c->opts->u_codes},
		{"opts->u_quantize->new_scales", q ? q->new_scales : NULL},
		{"opts->u_quantize->new_tensor_scale", q ? q->new_tensor_scale : NULL},
	};

	for (int i = 0; i < count; i++) {
		for (int k = 0; k < LISTED(made); k++) {
			if (list[i].t && made[k].t)
				HZ_CHECK(hzi_check_apart(ctx, c->op, list[i].name, list[i].t,
							 made[k].name, made[k].t));
		}
	}
	return HZ_OK;
}

/* wanted: false if a has no outputs */
static int run_pre(struct hz_context *ctx, const struct call *c, struct hzi_mhc_pre_args *a,
		   bool wanted, struct coded *coded)
{
	struct copies k = {.count = 0};
	size_t need = coded->need, more;
	int status = HZ_OK;

	if (wanted) {
		add_copy(&k, c, &a->s, c->phi, &a->phi, true, false);
		add_copy(&k, c, &a->s, c->opts->gain, &a->gain, true, false);
		more = k.bytes + HZI_WORKSPACE(ctx, mhc, mhc_pre, a);
		need = more > need ? more : need;
	}
	HZ_CHECK(hzi_workspace(ctx, c->op, coded->own_bytes + need));
	if (ctx->recording)
		return wanted ? HZI_CALL(ctx, mhc, mhc_pre, a) : HZ_OK;
	if (coded->u == &coded->own) {
		coded->own.data = ctx->workspace;
		a->u.data = a->u.data ? ctx->workspace : NULL;
	}
	hzi_mhc_move_workspace(ctx, (int64_t)coded->own_bytes);
	if (wanted) {
		status = begin_copies(ctx, &k);
		status = end_copies(ctx, &k,
				    status == HZ_OK ? HZI_CALL(ctx, mhc, mhc_pre, a) : status);
	}
	if (status == HZ_OK && c->opts->u_codes)
		status = quantize(ctx, c, coded);
	hzi_mhc_move_workspace(ctx, -(int64_t)coded->own_bytes);
	return status;
}

/* Treats an empty u as not wanted. Returns whether any output is wanted. */
static bool pre_wanted(struct hzi_mhc_pre_args *a)
{
	if (a->s.tokens == 0 || a->s.channels == 0)
		a->u.data = NULL;
	return a->p.data || a->q.data || a->a.data || a->u.data || a->saved;
}

static int pre(struct hz_context *ctx, struct call c, const hz_tensor *x, const hz_tensor *p,
	       const hz_tensor *q, const hz_tensor *a, const hz_tensor *u, const char *u_name)
{
	const hz_mhc_opts *const o = c.opts;
	struct hzi_mhc_pre_args g = {0};
	struct coded coded;

	HZ_CHECK(check_codes(ctx, &c, x, u, &coded));
	u = coded.u;

	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, c.phi || u || o->u_codes ? NEED : 0, &g.x, NULL},
		{WEIGHT(&c, p), p, HZI_MHC_P, OUT, &g.p, NULL},
		{WEIGHT(&c, q), q, HZI_MHC_P, OUT, &g.q, NULL},
		{WEIGHT(&c, a), a, HZI_MHC_A, OUT, &g.a, NULL},
		{u_name, u, HZI_MHC_U, OUT, &g.u, NULL},
		{OPTION(&c, saved), c.phi ? o->saved : NULL, HZI_MHC_SAVED, OUT, &g.saved, NULL},
		{WEIGHT(&c, phi), c.phi, HZI_MHC_PHI, 0, &g.phi, NULL},
		{WEIGHT(&c, alpha), c.alpha, alpha_kind(o), c.phi ? NEED : 0, &g.alpha, NULL},
		{OPTION(&c, alpha_q), o->alpha_q, HZI_MHC_ALPHA_OF_ONE, 0, &g.alpha[1], NULL},
		{OPTION(&c, alpha_a), o->alpha_a, HZI_MHC_ALPHA_OF_ONE, 0, &g.alpha[2], NULL},
		{WEIGHT(&c, bias), c.bias, HZI_MHC_BIAS, is_unweighted(&c) ? 0 : NEED,
		 &g.bias, NULL},
		{OPTION(&c, gain), c.phi ? o->gain : NULL, HZI_MHC_GAIN, 0, &g.gain, NULL},
		{OPTION(&c, norm), u ? o->norm : NULL, HZI_MHC_CHANNELS, 0, &g.norm, NULL},
		{OPTION(&c, p_in), u ? o->p_in : NULL, HZI_MHC_P, 0, &g.p_in, NULL},
	};

	HZ_CHECK(check_head(ctx, &c));
	HZ_CHECK(check_all(ctx, &c, list, LISTED(list), &g.rule, &g.s));
	HZ_CHECK(check_codes_apart(ctx, &c, list, LISTED(list)));
	return run_pre(ctx, &c, &g, pre_wanted(&g), &coded);
}

int hz_mhc_weights(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
		   const hz_tensor *alpha, const hz_tensor *bias, hz_tensor *p, hz_tensor *q,
		   hz_tensor *a, const hz_mhc_opts *opts)
{
	struct call c = call_of("mhc_weights", phi, alpha, bias, opts);

	c.rows = q || a ? ROWS_ALL : ROWS_EITHER;
	return pre(ctx, c, x, p, q, a, NULL, "u");
}

int hz_mhc_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi, const hz_tensor *alpha,
	       const hz_tensor *bias, hz_tensor *p, hz_tensor *q, hz_tensor *a, hz_tensor *u,
	       const hz_mhc_opts *opts)
{
	struct call c = call_of("mhc_pre", phi, alpha, bias, opts);

	c.rows = q || a ? ROWS_ALL : ROWS_EITHER;
	return pre(ctx, c, x, p, q, a, u, "u");
}

int hzi_mhc_layer_pre(struct hz_context *ctx, const char *op, const hz_tensor *x,
		      const hz_mhc_layer *l, const hz_tensor *u, const hz_mhc_opts *opts)
{
	struct call c = call_of(op, l->phi.data ? &l->phi : NULL, l->alpha.data ? &l->alpha : NULL,
				&l->bias, opts);

	c.rows = ROWS_ALL;
	c.layer = true;
	return pre(ctx, c, x, &l->p, &l->q, &l->a, u, "u");
}

static struct call head_call(const char *op, const hz_tensor *phi, const hz_tensor *alpha,
			     const hz_tensor *bias, const hz_mhc_opts *opts)
{
	struct call c = call_of(op, phi, alpha, bias, opts);

	c.rows = ROWS_P;
	c.head = hzi_mhc_head_of(c.opts);
	return c;
}

int hz_mhc_head(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi, const hz_tensor *alpha,
		const hz_tensor *bias, hz_tensor *p, hz_tensor *h, const hz_mhc_opts *opts)
{
	return pre(ctx, head_call("mhc_head", phi, alpha, bias, opts), x, p, NULL, NULL, h,
		   "h");
}

/* ---- The boundary between two layers --------------------------------------------------------- */

/* Operands of hz_mhc_post_pre() besides its weights */
struct boundary {
	const hz_tensor *x, *f, *q, *a, *branch_bias, *y, *p_next, *q_next, *a_next, *u;
};

/* At a boundary each token has its own coefficients. */
static int check_boundary(struct hz_context *ctx, const struct call *c)
{
	HZI_ENTER(ctx, c->op);
	if (c->opts->coefficients > HZ_MHC_PER_TOKEN && c->opts->coefficients <= HZ_MHC_STATIC)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->coefficients is %s, must be HZ_MHC_PER_TOKEN: call "
				"hz_mhc_post() and hz_mhc_pre() for others, or their gradients",
				c->op, hzi_mhc_coefficients_name(c->opts->coefficients));
	return HZ_OK;
}

static int post_pre(struct hz_context *ctx, struct call c, struct boundary *b)
{
	const hz_mhc_opts *const o = c.opts;
	struct hzi_mhc_pre_args g = {0};
	struct hzi_mhc_streams_args *const post = &g.post;
	struct coded coded;

	HZ_CHECK(check_codes(ctx, &c, b->x, b->u, &coded));
	b->u = coded.u;

	const struct hzi_mhc_operand list[] = {
		{"x", b->x, HZI_MHC_X, NEED, &post->x, NULL},
		{"f", b->f, HZI_MHC_U, NEED, &post->f, NULL},
		{"q", b->q, HZI_MHC_P, NEED, &post->q, NULL},
		{"a", b->a, HZI_MHC_A, 0, &post->a, NULL},
		{"branch_bias", b->branch_bias, HZI_MHC_CHANNELS, 0, &post->bias, NULL},
		{"y", b->y, HZI_MHC_X, NEED | OUT, &post->y, "x"},
		{"p_next", b->p_next, HZI_MHC_P, OUT, &g.p, NULL},
		{"q_next", b->q_next, HZI_MHC_P, OUT, &g.q, NULL},
		{"a_next", b->a_next, HZI_MHC_A, OUT, &g.a, NULL},
		{"u", b->u, HZI_MHC_U, OUT, &g.u, NULL},
		{"opts->saved", o->saved, HZI_MHC_SAVED, OUT, &g.saved, NULL},
		{"phi", c.phi, HZI_MHC_PHI, NEED, &g.phi, NULL},
		{"alpha", c.alpha, alpha_kind(o), NEED, &g.alpha, NULL},
		{"opts->alpha_q", o->alpha_q, HZI_MHC_ALPHA_OF_ONE, 0, &g.alpha[1], NULL},
		{"opts->alpha_a", o->alpha_a, HZI_MHC_ALPHA_OF_ONE, 0, &g.alpha[2], NULL},
		{"bias", c.bias, HZI_MHC_BIAS, NEED, &g.bias, NULL},
		{"opts->gain", o->gain, HZI_MHC_GAIN, 0, &g.gain, NULL},
		{"opts->norm", b->u ? o->norm : NULL, HZI_MHC_CHANNELS, 0, &g.norm, NULL},
		{"opts->p_in", b->u ? o->p_in : NULL, HZI_MHC_P, 0, &g.p_in, NULL},
	};

	c.rows = b->q_next || b->a_next ? ROWS_ALL : ROWS_EITHER;
	HZ_CHECK(check_boundary(ctx, &c));
	HZ_CHECK(check_all(ctx, &c, list, LISTED(list), &g.rule, &g.s));
	HZ_CHECK(check_codes_apart(ctx, &c, list, LISTED(list)));
	post->s = g.s;
	pre_wanted(&g);
	return run_pre(ctx, &c, &g, g.s.tokens > 0, &coded);
}

int hz_mhc_post_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *f, const hz_tensor *q,
		    const hz_tensor *a, const hz_tensor *branch_bias, const hz_tensor *phi,
		    const hz_tensor *alpha, const hz_tensor *bias, hz_tensor *y, hz_tensor *p_next,
		    hz_tensor *q_next, hz_tensor *a_next, hz_tensor *u, const hz_mhc_opts *opts)
{
	struct boundary b = {x, f, q, a, branch_bias, y, p_next, q_next, a_next, u};

	return post_pre(ctx, call_of("mhc_post_pre", phi, alpha, bias, opts), &b);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Operands of hz_mhc_post_pre_bwd() that hz_mhc_pre_bwd() lacks */
struct post_operands {
	const hz_tensor *f, *q, *branch_bias, *df, *dq, *dbranch_bias;
};

/* Treats empty streams as not given. Returns whether any output is wanted. */
static bool pre_bwd_wanted(struct hzi_mhc_pre_bwd_args *a)
{
	if (a->s.tokens == 0 || a->s.channels == 0)
		a->dx.data = a->du.data = a->dy.data = NULL;
	return a->dx.data || a->dphi || a->dalpha[0] || a->dalpha[1] || a->dalpha[2] || a->dbias ||
	       a->dgain || a->dnorm || (a->du.data && a->dp_in.data);
}

/* Checks an operand that must not be given without another. */
static int check_with(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		      const char *other_name, const hz_tensor *other)
{
	if (t && !other)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is given, and %s is NULL", op, name,
				other_name);
	return HZ_OK;
}

static int check_grads(struct hz_context *ctx, const struct call *c, const hz_mhc_grads *g)
{
	const hz_mhc_opts *const o = c->opts;

	HZI_ENTER(ctx, c->op);
	if (!g)
		return hzi_fail(ctx, HZ_EINVAL, "%s: g is NULL", c->op);
	for (int i = 0; i < 4; i++) {
		if (g->reserved[i])
			return hzi_fail(ctx, HZ_EINVAL, "%s: g->reserved[%d] is %lld, must be 0",
					c->op, i, (long long)g->reserved[i]);
	}
	HZ_CHECK(check_with(ctx, c->op, LAYER_GRADIENT(c, dphi), g->dphi, WEIGHT(c, phi), c->phi));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dgain), o->dgain, WEIGHT(c, phi), c->phi));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dgain), o->dgain, OPTION(c, gain), o->gain));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dnorm), o->dnorm, OPTION(c, norm), o->norm));
	HZ_CHECK(check_head(ctx, c));
	HZ_CHECK(check_with(ctx, c->op, LAYER_GRADIENT(c, dbias), g->dbias, WEIGHT(c, bias),
			    c->bias));
	HZ_CHECK(check_with(ctx, c->op, LAYER_GRADIENT(c, dalpha), g->dalpha, WEIGHT(c, alpha),
			    c->alpha));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dalpha_q), o->dalpha_q, OPTION(c, alpha_q),
			    o->alpha_q));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dalpha_a), o->dalpha_a, OPTION(c, alpha_a),
			    o->alpha_a));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dp_in), o->dp_in, OPTION(c, p_in), o->p_in));
	HZ_CHECK(check_with(ctx, c->op, OPTION(c, dp_in), o->dp_in, GRADIENT(c, du), g->du));
	if (c->rows == ROWS_P && (g->dq || g->da || g->dy))
		return hzi_fail(ctx, HZ_EINVAL, "%s: g->%s is given: a head has p alone", c->op,
				g->dq ? "dq" : g->da ? "da" : "dy");
	return HZ_OK;
}

static int pre_bwd(struct hz_context *ctx, struct call c, const char *x_name, const hz_tensor *x,
		   const hz_mhc_grads *g, const struct post_operands *b)
{
	const hz_mhc_opts *const o = c.opts;
	struct hzi_mhc_pre_bwd_args a = {0};
	struct hzi_mhc_streams_bwd_args post = {0}, none;
	struct copies k = {.count = 0};
	size_t need, more;
	bool wanted;
	int status;

	HZ_CHECK(check_grads(ctx, &c, g));
	if (b)
		HZ_CHECK(check_boundary(ctx, &c));
	if (c.rows != ROWS_P)
		c.rows = g->dq || g->da || g->dy ? ROWS_ALL : ROWS_EITHER;
	const bool reads_x = c.phi || g->du || g->dy;
	const struct hzi_mhc_operand list[] = {
		{x_name, x, HZI_MHC_X, reads_x ? NEED : 0, &a.x, NULL},
		{GRADIENT(&c, du), g->du, HZI_MHC_U, 0, &a.du, NULL},
		{"g->dp", g->dp, HZI_MHC_P, 0, &a.dp, NULL},
		{LAYER_GRADIENT(&c, dq), g->dq, HZI_MHC_P, 0, &a.dq, NULL},
		{"g->da", g->da, HZI_MHC_A, 0, &a.da, NULL},
		{GRADIENT(&c, dy), g->dy, HZI_MHC_X, 0, &a.dy, NULL},
		{GRADIENT(&c, dx), g->dx, HZI_MHC_X, OUT | (b ? NEED : 0), &a.dx, NULL},
		{OPTION(&c, saved), c.phi ? o->saved : NULL, HZI_MHC_SAVED, 0, &a.saved, NULL},
		{WEIGHT(&c, phi), c.phi, HZI_MHC_PHI, 0, &a.phi, NULL},
		{WEIGHT(&c, alpha), c.alpha, alpha_kind(o), c.phi ? NEED : 0, &a.alpha, NULL},
		{OPTION(&c, alpha_q), o->alpha_q, HZI_MHC_ALPHA_OF_ONE, 0, &a.alpha[1], NULL},
		{OPTION(&c, alpha_a), o->alpha_a, HZI_MHC_ALPHA_OF_ONE, 0, &a.alpha[2], NULL},
		{WEIGHT(&c, bias), c.bias, HZI_MHC_BIAS, is_unweighted(&c) ? 0 : NEED,
		 &a.bias, NULL},
		{OPTION(&c, gain), c.phi ? o->gain : NULL, HZI_MHC_GAIN, 0, &a.gain, NULL},
		{OPTION(&c, norm), g->du ? o->norm : NULL, HZI_MHC_CHANNELS, 0, &a.norm, NULL},
		{OPTION(&c, p_in), g->du ? o->p_in : NULL, HZI_MHC_P, 0, &a.p_in, NULL},
		{OPTION(&c, dp_in), o->dp_in, HZI_MHC_P, OUT, &a.dp_in, NULL},
		{LAYER_GRADIENT(&c, dphi), g->dphi, HZI_MHC_DPHI, OUT, &a.dphi, NULL},
		{LAYER_GRADIENT(&c, dalpha), g->dalpha, alpha_kind(o), OUT, &a.dalpha, NULL},
		{OPTION(&c, dalpha_q), o->dalpha_q, HZI_MHC_ALPHA_OF_ONE, OUT, &a.dalpha[1], NULL},
		{OPTION(&c, dalpha_a), o->dalpha_a, HZI_MHC_ALPHA_OF_ONE, OUT, &a.dalpha[2], NULL},
		{LAYER_GRADIENT(&c, dbias), g->dbias, HZI_MHC_BIAS, OUT, &a.dbias, NULL},
		{OPTION(&c, dgain), o->dgain, HZI_MHC_GAIN, OUT, &a.dgain, NULL},
		{OPTION(&c, dnorm), o->dnorm, HZI_MHC_CHANNELS, OUT, &a.dnorm, NULL},
		{"f", b ? b->f : NULL, HZI_MHC_U, b && b->dq ? NEED : 0, &post.f, NULL},
		{"q", b ? b->q : NULL, HZI_MHC_P, b && (b->df || b->dbranch_bias) ? NEED : 0,
		 &post.q, NULL},
		{"branch_bias", b ? b->branch_bias : NULL, HZI_MHC_CHANNELS, 0, &post.bias, NULL},
		{"df", b ? b->df : NULL, HZI_MHC_U, OUT, &post.df, NULL},
		{"dq", b ? b->dq : NULL, HZI_MHC_P, OUT, &post.dq, NULL},
		{"dbranch_bias", b ? b->dbranch_bias : NULL, HZI_MHC_CHANNELS, OUT, &post.dbias,
		 NULL},
	};

	HZ_CHECK(check_all(ctx, &c, list, LISTED(list), &a.rule, &a.s));
	a.accumulate = (o->flags & HZ_MHC_ACCUMULATE) != 0;
	post.s = a.s;
	post.dy = a.dx;
	post.accumulate = a.accumulate;
	if (o->dp_in && !hz_tensor_contiguous(o->dp_in))
		return hzi_fail(ctx, HZ_ESTRIDE,
				"%s: opts->dp_in has steps between elements, must be contiguous",
				c.op);
	wanted = pre_bwd_wanted(&a);
	none = (struct hzi_mhc_streams_bwd_args){.s = a.s, .x = a.x, .dp = a.dp_in};
	if (a.du.data)
		none.dp.data = NULL;
	if (wanted) {
		add_copy(&k, &c, &a.s, c.phi, &a.phi, true, false);
		add_copy(&k, &c, &a.s, o->gain, &a.gain, true, false);
		add_copy(&k, &c, &a.s, g->dphi, &a.dphi, a.accumulate, true);
		add_copy(&k, &c, &a.s, o->dgain, &a.dgain, a.accumulate, true);
	}
	need = k.bytes + (wanted ? HZI_WORKSPACE(ctx, mhc, mhc_pre_bwd, &a) : 0);
	more = b ? hzi_mhc_streams_bwd_bytes(ctx, &post) : 0;
	/* The workspace of all operations, before one writes */
	HZ_CHECK(hzi_workspace(ctx, c.op, need > more ? need : more));
	/* dp_in of no tokens or channels is 0. */
	HZ_CHECK(hzi_mhc_streams_bwd(ctx, c.op, &none));
	if (ctx->recording)
		k = (struct copies){.count = 0};
	status = begin_copies(ctx, &k);
	if (wanted && status == HZ_OK)
		status = HZI_CALL(ctx, mhc, mhc_pre_bwd, &a);
	HZ_CHECK(end_copies(ctx, &k, status));
	return b ? hzi_mhc_streams_bwd(ctx, c.op, &post) : HZ_OK;
}

int hzi_mhc_layer_pre_bwd(struct hz_context *ctx, const char *op, const hz_tensor *x,
			  const hz_mhc_layer *l, const hz_mhc_grads *g, const hz_mhc_opts *opts)
{
	struct call c = call_of(op, l->phi.data ? &l->phi : NULL, l->alpha.data ? &l->alpha : NULL,
				&l->bias, opts);

	c.layer = true;
	return pre_bwd(ctx, c, "x", x, g, NULL);
}

int hz_mhc_pre_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
		   const hz_tensor *alpha, const hz_tensor *bias, const hz_mhc_grads *g,
		   const hz_mhc_opts *opts)
{
	return pre_bwd(ctx, call_of("mhc_pre_bwd", phi, alpha, bias, opts), "x", x, g, NULL);
}

int hz_mhc_head_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
		    const hz_tensor *alpha, const hz_tensor *bias, const hz_mhc_grads *g,
		    const hz_mhc_opts *opts)
{
	return pre_bwd(ctx, head_call("mhc_head_bwd", phi, alpha, bias, opts), "x", x, g,
		       NULL);
}

int hz_mhc_post_pre_bwd(hz_context *ctx, const hz_tensor *y, const hz_tensor *phi,
			const hz_tensor *alpha, const hz_tensor *bias, const hz_tensor *f,
			const hz_tensor *q, const hz_tensor *branch_bias, const hz_mhc_grads *g,
			hz_tensor *df, hz_tensor *dq, hz_tensor *dbranch_bias,
			const hz_mhc_opts *opts)
{
	const struct post_operands b = {f, q, branch_bias, df, dq, dbranch_bias};

	return pre_bwd(ctx, call_of("mhc_post_pre_bwd", phi, alpha, bias, opts), "y", y, g, &b);
}

