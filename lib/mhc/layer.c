/*
 * layer.c - layers of hyper-connections, chains of them, initial weights, diagnostics
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/mhc/check.h"

#define OUT HZI_MHC_OUTPUT
#define NEED HZI_MHC_NEEDED

/* ---- Chains of layers ------------------------------------------------------------------------ */

#define BLOCK_OPERANDS 7
#define CHAIN_OPERANDS (1 + HZI_MHC_LAYERS * BLOCK_OPERANDS)

/*
 * Scratch of one call. The context owns it, since it is too large for the stacks of some threads.
 */
struct hzi_mhc_chain {
	struct hzi_mhc_recompute_args args;
	struct hzi_mhc_operand list[CHAIN_OPERANDS];
	char name[CHAIN_OPERANDS][24];
	int count;
};

static void free_chain(struct hz_context *ctx)
{
	hzi_mfree(ctx, ctx->chain, sizeof(*ctx->chain));
}

/* Adds operand `field` of block l; a view with elements but no data counts as not given. */
static void add_operand(struct hzi_mhc_chain *c, int l, const char *field, const hz_tensor *t,
			enum hzi_mhc_kind kind, unsigned flags, void *at)
{
	char *const name = c->name[c->count];
	const bool given = t->data || (t->dtype && hz_tensor_count(t) == 0);

	snprintf(name, sizeof(c->name[0]), "block[%d].%s", l, field);
	c->list[c->count++] = (struct hzi_mhc_operand){.name = name, .t = given ? t : NULL,
						       .kind = kind, .flags = flags, .at = at};
}

int hz_mhc_recompute(hz_context *ctx, const hz_tensor *x, int layers, const hz_mhc_block *block)
{
	static const char op[] = "mhc_recompute";
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	struct hzi_mhc_recompute_args *g;
	struct hzi_mhc_chain *c;

	HZI_ENTER(ctx, op);
	if (layers < 1 || layers > HZI_MHC_LAYERS)
		return hzi_fail(ctx, HZ_EINVAL, "%s: layers is %d, must be 1 to %d", op, layers,
				HZI_MHC_LAYERS);
	if (!block)
		return hzi_fail(ctx, HZ_EINVAL, "%s: block is NULL", op);
	if (!ctx->chain && !(ctx->chain = hzi_malloc(ctx, sizeof(*c), 64)))
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, sizeof(*c));
	ctx->free_chain = free_chain;
	c = ctx->chain;
	g = &c->args;
	memset(g, 0, sizeof(*g));
	g->layers = layers;
	c->count = 1;
	c->list[0] = (struct hzi_mhc_operand){"x", x, HZI_MHC_X, NEED, &g->x, NULL};
	for (int l = 0; l < layers; l++) {
		for (int i = 0; i < 4; i++) {
			if (block[l].reserved[i])
				return hzi_fail(ctx, HZ_EINVAL,
						"%s: block[%d].reserved[%d] is %lld, must be 0", op,
						l, i, (long long)block[l].reserved[i]);
		}
	}
	for (int l = 0; l < layers; l++) {
		const hz_mhc_block *const b = &block[l];
		struct hzi_mhc_layer_args *const to = &g->layer[l];
		const unsigned goes_on = l < layers - 1 || b->y.data ? NEED : 0;

		add_operand(c, l, "p", &b->p, HZI_MHC_P, b->u.data ? NEED : 0, &to->p);
		add_operand(c, l, "q", &b->q, HZI_MHC_P, goes_on, &to->q);
		add_operand(c, l, "a", &b->a, HZI_MHC_A, 0, &to->a);
		add_operand(c, l, "f", &b->f, HZI_MHC_U, goes_on, &to->f);
		add_operand(c, l, "branch_bias", &b->branch_bias, HZI_MHC_CHANNELS, 0, &to->bias);
		add_operand(c, l, "u", &b->u, HZI_MHC_U, OUT, &to->u);
		add_operand(c, l, "y", &b->y, HZI_MHC_X, OUT, &to->y);
	}
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, c->list, c->count, &g->s));
	if (g->s.tokens == 0 || g->s.channels == 0)
		return HZ_OK;
	return HZI_RUN(ctx, op, mhc, mhc_recompute, g);
}

/* ---- Diagnostics ----------------------------------------------------------------------------- */

int hz_mhc_diagnose(hz_context *ctx, const hz_tensor *a, hz_tensor *out)
{
	static const char op[] = "mhc_diagnose";
	static const int f32_only[] = {HZ_F32, 0};
	struct hzi_mhc_diagnose_args g = {0};
	hz_tensor t, o;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_check(ctx, op, "a", a, f32_only, false));
	HZ_CHECK(hzi_check(ctx, op, "out", out, f32_only, true));
	if (a->ndim < 2 || a->ndim > 4)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: a.ndim is %d, must be 2 to 4", op, a->ndim);
	for (int i = 1; i <= 2; i++) {
		const int64_t n = a->shape[a->ndim - i];

		if (n < 1 || n > HZI_MHC_STREAMS)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: a.shape[%d] is %lld, must be 1 to %d",
					op, a->ndim - i, (long long)n, HZI_MHC_STREAMS);
		if (n != a->shape[a->ndim - 1])
			return hzi_fail(ctx, HZ_ESHAPE, "%s: a.shape[%d] is %lld, must be %lld, as "
					"a.shape[%d]: matrices are square", op, a->ndim - i,
					(long long)n, (long long)a->shape[a->ndim - 1], a->ndim - 1);
	}
	g.n = (int32_t)a->shape[a->ndim - 1];
	g.groups = a->ndim > 2 ? a->shape[a->ndim - 3] : 1;
	g.layers = a->ndim > 3 ? a->shape[0] : 1;
	if (out->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: out.ndim is %d, must be 2", op, out->ndim);
	for (int i = 0; i < 2; i++) {
		const int64_t size = i ? 4 : g.groups;

		if (out->shape[i] != size)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: out.shape[%d] is %lld, must be %lld%s",
					op, i, (long long)out->shape[i], (long long)size,
					i ? "" : ", as a");
	}
	HZ_CHECK(hzi_check_apart(ctx, op, "a", a, "out", out));
	if (g.groups == 0)
		return HZ_OK;
	t = hzi_canonical_strides(a);
	o = hzi_canonical_strides(out);
	g.a.data = hzi_data(ctx, &t);
	g.a.column = t.stride[a->ndim - 1];
	g.a.row = t.stride[a->ndim - 2];
	g.a.group = a->ndim > 2 ? t.stride[a->ndim - 3] : 0;
	g.layer = a->ndim > 3 ? t.stride[0] : 0;
	g.out = hzi_data(ctx, &o);
	g.out_row = o.stride[0];
	g.out_column = o.stride[1];
	return HZI_RUN(ctx, op, mhc, mhc_diagnose, &g);
}

/* ---- Initial weights ------------------------------------------------------------------------- */

/* The z with sigma(z) = s, at most 8 */
static double logit(double s)
{
	return s < 1 ? fmin(log(s / (1 - s)), 8) : 8;
}

static int factorial(int n)
{
	return n < 2 ? 1 : n * factorial(n - 1);
}

#define KEPT 0.9	/* weight of a stream in itself, of HZ_MHC_INIT_IDENTITY */

/* p = 1/n, q = 1, the diagonal of a = KEPT */
static void identity_values(const struct hzi_mhc_rule *r, float *bias)
{
	const int n = r->n, more = r->m - 2 * n;
	const bool tanh_of = r->residual == HZ_MHC_TANH, direct = tanh_of || r->map == HZ_MHC_ABS;
	const double other = n > 1 ? (1 - KEPT) / (n - 1) : 0;

	for (int i = 0; i < n; i++)
		bias[i] = (float)(tanh_of ? 1.0 / n : logit(1.0 / n));
	for (int i = n; i < r->m && i < 2 * n; i++)
		bias[i] = (float)(tanh_of ? 1 : logit(1.0 / (double)r->q_scale));
	if (r->residual == HZ_MHC_LITE && n > 1 && more > 0) {
		/*
		 * All permutations but the identity have the same weight; a share c of them fixes a
		 * stream.
		 */
		const double c = (double)(factorial(n - 1) - 1) / (factorial(n) - 1);
		const double first = (KEPT - c) / (1 - c);

		bias[2 * n] = (float)log(first / (1 - first) * (factorial(n) - 1));
		return;
	}
	for (int i = 0; i < more && n > 1 && r->residual != HZ_MHC_LITE; i++) {
		const bool diagonal = i % (n + 1) == 0;

		bias[2 * n + i] = (float)(direct ? (diagonal ? KEPT : other) :
					  diagonal ? log(KEPT / other) : 0);
	}
	if (n == 1 && more > 0)
		bias[2] = direct ? 1 : 0;
}

/* p one-hot, q = 1, a = I; lite: logits of these */
static void one_hot_values(const struct hzi_mhc_rule *r, bool lite, int layer, float *bias)
{
	const int n = r->n;

	for (int i = 0; i < r->m; i++) {
		const int k = i - 2 * n;

		if (i < n)
			bias[i] = i == layer % n ? 1 : lite ? -1 : 0;
		else if (k < 0)
			bias[i] = !lite || i - n == layer % n ? 1 : -1;
		else if (r->residual == HZ_MHC_LITE)
			bias[i] = k == 0 ? 0 : -8;
		else
			bias[i] = k % (n + 1) == 0 ? 1 : 0;
	}
}

/* The only number of streams that has m rows; -1: none */
static int streams_of(int64_t m, bool alone, const hz_mhc_opts *opts)
{
	for (int n = 1; n <= HZI_MHC_STREAMS; n++) {
		if (m == (alone ? n : hz_mhc_rows(n, opts)))
			return n;
	}
	return -1;
}

static int check_init(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		      int ndim)
{
	static const int f32_only[] = {HZ_F32, 0};

	HZ_CHECK(hzi_check(ctx, op, name, t, f32_only, true));
	if (t->ndim != ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", op, name, t->ndim,
				ndim);
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE,
				"%s: %s has steps between elements, must be contiguous", op, name);
	return HZ_OK;
}

int hz_mhc_init(hz_context *ctx, int kind, int layer, uint64_t seed, hz_tensor *phi,
		hz_tensor *alpha, hz_tensor *bias, const hz_mhc_opts *opts)
{
	static const char op[] = "mhc_init";
	struct hzi_mhc_init_args g = {.seed = seed};
	struct hzi_mhc_rule rule;
	bool alone;
	int n;

	HZI_ENTER(ctx, op);
	if (kind < 0 || kind > HZ_MHC_INIT_HY_V4)
		return hzi_fail(ctx, HZ_EINVAL, "%s: kind is %d, must be 0 to %d", op, kind,
				HZ_MHC_INIT_HY_V4);
	if (layer < 0)
		return hzi_fail(ctx, HZ_EINVAL, "%s: layer is %d, must not be negative", op, layer);
	HZ_CHECK(check_init(ctx, op, "bias", bias, 1));
	HZ_CHECK(check_init(ctx, op, "alpha", alpha, 1));
	alone = alpha->shape[0] == 1;
	if (alpha->shape[0] < 1 || alpha->shape[0] > 3 ||
	    (alpha->shape[0] == 2 && hzi_mhc_residual(opts) != HZ_MHC_IDENTITY))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: alpha.shape[0] is %lld, must be 3, 2 without "
				"a, or 1 for p alone", op, (long long)alpha->shape[0]);
	/* Reports options that are invalid for any n before the size of bias. */
	HZ_CHECK(hzi_mhc_rule_of(ctx, op, 1, opts, &rule));
	n = streams_of(bias->shape[0], alone, opts);
	if (n < 0)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: bias.shape[0] is %lld, which is the rows of no number of "
				"streams",
				op, (long long)bias->shape[0]);
	HZ_CHECK(hzi_mhc_rule_of(ctx, op, n, opts, &rule));
	if (alone)
		rule.m = n;
	if (phi) {
		HZ_CHECK(check_init(ctx, op, "phi", phi, 2));
		if (phi->shape[0] != rule.m || phi->shape[1] % n)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: phi is [%lld, %lld], must be [%d, a multiple of %d]",
					op, (long long)phi->shape[0], (long long)phi->shape[1],
					rule.m, n);
		HZ_CHECK(hzi_check_apart(ctx, op, "bias", bias, "phi", phi));
		HZ_CHECK(hzi_check_apart(ctx, op, "alpha", alpha, "phi", phi));
		g.phi = hzi_data(ctx, phi);
		g.count = hz_tensor_count(phi);
		if (kind == HZ_MHC_INIT_IDENTITY && phi->shape[1])
			g.scale = (float)(1 / sqrt((double)phi->shape[1]));
		else if (kind == HZ_MHC_INIT_PAPER || kind == HZ_MHC_INIT_HY_V4)
			g.scale = 0.02f;
	}
	HZ_CHECK(hzi_check_apart(ctx, op, "bias", bias, "alpha", alpha));
	g.alpha = hzi_data(ctx, alpha);
	g.bias = hzi_data(ctx, bias);
	g.rows = rule.m;
	g.alphas = (int32_t)alpha->shape[0];
	g.alpha_value = kind == HZ_MHC_INIT_TRITON ? 0.1f : 0.01f;
	if (kind == HZ_MHC_INIT_IDENTITY)
		identity_values(&rule, g.values);
	else if (kind == HZ_MHC_INIT_HY_V4)
		for (int i = 0; i < n; i++)
			g.values[i] = (float)-log(n > 1 ? n - 1 : 1);
	else if (kind != HZ_MHC_INIT_PAPER)
		one_hot_values(&rule, kind == HZ_MHC_INIT_LITE, layer, g.values);
	return HZI_RUN(ctx, op, mhc, mhc_init, &g);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* NULL for a view without data */
static hz_tensor *given(hz_tensor *t)
{
	return t->data ? t : NULL;
}

/* The layer's options, with the layer's own views */
static hz_mhc_opts layer_opts(hz_mhc_layer *l, bool backward)
{
	hz_mhc_opts o = l->opts;

	o.gain = given(&l->gain);
	o.norm = given(&l->norm);
	o.saved = given(&l->saved);
	o.alpha_q = given(&l->alpha_q);
	o.alpha_a = given(&l->alpha_a);
	o.dalpha_q = backward ? given(&l->dalpha_q) : NULL;
	o.dalpha_a = backward ? given(&l->dalpha_a) : NULL;
	o.p_in = given(&l->p_in);
	o.dp_in = backward ? given(&l->dp_in) : NULL;
	o.dgain = backward ? given(&l->dgain) : NULL;
	o.dnorm = backward ? given(&l->dnorm) : NULL;
	o.u_codes = NULL;
	o.u_quantize = NULL;
	return o;
}

static int check_layer(struct hz_context *ctx, const char *op, const hz_mhc_layer *layer)
{
	HZI_ENTER(ctx, op);
	if (!layer)
		return hzi_fail(ctx, HZ_EINVAL, "%s: layer is NULL", op);
	for (int i = 0; i < 7; i++) {
		if (layer->reserved[i])
			return hzi_fail(ctx, HZ_EINVAL, "%s: layer->reserved[%d] is %lld, must be 0",
					op, i, (long long)layer->reserved[i]);
	}
	return HZ_OK;
}

/* The number of streams of x */
static int64_t streams_of_view(const hz_mhc_layer *l, const hz_tensor *x, int *dim)
{
	*dim = x->ndim - (hzi_mhc_is_cn(&l->opts) ? 1 : 2);
	return x->shape[*dim];
}

/* The number of tokens of streams; -1 if they are not valid, which the call says */
static int64_t tokens_of(const hz_tensor *x)
{
	int64_t tokens = 1;

	if (!x || x->ndim < 2 || x->ndim > HZ_MAXDIM || x->shape[x->ndim - 2] < 0)
		return -1;
	for (int i = 0; i < x->ndim - 2; i++) {
		if (!hzi_mul(tokens, x->shape[i], &tokens))
			return -1;
	}
	return tokens;
}

/* A checksum of all that options say of a layer's coefficients, whatever the number of streams */
static uint32_t rule_check(struct hzi_mhc_rule rule)
{
	uint32_t word[sizeof(rule) / 4], h = 2166136261u;

	_Static_assert(sizeof(rule) % 4 == 0, "no bytes are left over");
	rule.n = rule.m = 0;
	memcpy(word, &rule, sizeof(word));
	for (size_t i = 0; i < sizeof(word) / sizeof(*word); i++)
		h = (h ^ word[i]) * 16777619u;
	return h;
}

/* Whether streams x with this number of tokens have the sets of coefficients of the bound layer */
static int check_sets(struct hz_context *ctx, const char *op, const hz_mhc_layer *l,
		      const char *name, const hz_tensor *x, int64_t tokens)
{
	const int64_t sets = l->bound_sets;

	if (l->bound_coefficients == HZ_MHC_PER_TOKEN && tokens != sets)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s is of %lld tokens, layer is bound for %lld: "
				"hz_mhc_layer_bind() it again",
				op, name, (long long)tokens, (long long)sets);
	if (l->bound_coefficients != HZ_MHC_PER_SEQUENCE)
		return HZ_OK;
	if (x->ndim > 3 && x->shape[0] != sets)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s.shape[0] is %lld sequences, layer is bound for %lld: "
				"hz_mhc_layer_bind() it again",
				op, name, (long long)x->shape[0], (long long)sets);
	if (x->ndim <= 3 && (sets ? tokens % sets != 0 : tokens != 0))
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s is of %lld tokens, which the %lld sequences that layer is "
				"bound for do not divide: hz_mhc_layer_bind() it again",
				op, name, (long long)tokens, (long long)sets);
	return HZ_OK;
}

/* Copies a layer, whose views are outputs of some calls, if it is bound for the streams x. */
static int take_layer(struct hz_context *ctx, const char *op, const hz_mhc_layer *layer,
		      const char *name, const hz_tensor *x, hz_mhc_layer *l)
{
	const int64_t tokens = tokens_of(x);
	struct hzi_mhc_rule rule = {0};
	int64_t n;
	int dim;

	HZ_CHECK(check_layer(ctx, op, layer));
	*l = *layer;
	if (!l->bound_n)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: layer is not bound: hz_mhc_layer_bind() gives it p, q, a, "
				"saved and dq",
				op);
	if (l->opts.coefficients != l->bound_coefficients)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: layer->opts.coefficients is %s, layer is bound for %s: "
				"hz_mhc_layer_bind() it again",
				op, hzi_mhc_coefficients_name(l->opts.coefficients),
				hzi_mhc_coefficients_name(l->bound_coefficients));
	HZ_CHECK(hzi_mhc_rule_of(ctx, op, 1, &l->opts, &rule));
	if (l->bound_rule != rule_check(rule))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: layer->opts has changed since hz_mhc_layer_bind(): bind the "
				"layer again",
				op);
	if (tokens < 0)
		return HZ_OK;
	n = streams_of_view(l, x, &dim);
	if (n != l->bound_n)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s.shape[%d] is %lld, layer is bound for %d streams: "
				"hz_mhc_layer_bind() it again",
				op, name, dim, (long long)n, l->bound_n);
	return check_sets(ctx, op, l, name, x, tokens);
}

/*
 * Whether the weights that are set are those of n streams and m rows; for a layer that is bound,
 * not only counted, whether those that it needs are set
 */
static int check_bound_weights(struct hz_context *ctx, const char *op, const hz_mhc_layer *l,
			       const struct hzi_mhc_rule *rule, bool bound)
{
	const hz_tensor *const phi = &l->phi, *const bias = &l->bias;

	if (bound && !bias->data && !ctx->recording)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: layer->bias has no data: set phi, alpha and bias, or bias "
				"alone for static coefficients, before the layer is bound",
				op);
	if (bound && phi->data && !l->alpha.data)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: layer->phi is given, and layer->alpha has no data: set both",
				op);
	if (phi->data && l->opts.coefficients == HZ_MHC_STATIC)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: layer->phi is given, and layer->opts.coefficients is "
				"HZ_MHC_STATIC: those of bias alone, without phi",
				op);
	if (phi->data && (phi->ndim != 2 || phi->shape[0] != rule->m || phi->shape[1] % rule->n))
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: layer->phi is [%lld, %lld], must be [%d, a multiple of %d] "
				"for %d streams",
				op, (long long)phi->shape[0], (long long)phi->shape[1], rule->m,
				rule->n, rule->n);
	if (bias->data && (bias->ndim != 1 || bias->shape[0] != rule->m))
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: layer->bias.shape[0] is %lld, must be %d for %d streams", op,
				(long long)bias->shape[0], rule->m, rule->n);
	return HZ_OK;
}

int hz_mhc_layer_bind(hz_context *ctx, hz_mhc_layer *layer, int n, int64_t sets, void *data,
		      size_t *bytes)
{
	static const char op[] = "mhc_layer_bind";
	struct hzi_mhc_rule rule = {0};
	int64_t columns[5], at = 0;

	HZ_CHECK(check_layer(ctx, op, layer));
	if (n < 1 || n > HZI_MHC_STREAMS)
		return hzi_fail(ctx, HZ_EINVAL, "%s: n is %d, must be 1 to %d streams", op, n,
				HZI_MHC_STREAMS);
	HZ_CHECK(hzi_mhc_rule_of(ctx, op, n, &layer->opts, &rule));
	if (sets < 0 || sets > INT64_MAX / 4096)
		return hzi_fail(ctx, HZ_EINVAL, "%s: sets is %lld, must be 0 to %lld", op,
				(long long)sets, (long long)(INT64_MAX / 4096));
	if (layer->opts.coefficients == HZ_MHC_STATIC && sets != 1)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: sets is %lld, must be 1: layer->opts.coefficients is "
				"HZ_MHC_STATIC",
				op, (long long)sets);
	HZ_CHECK(check_bound_weights(ctx, op, layer, &rule, data != NULL));
	if ((uintptr_t)data % 64)
		return hzi_fail(ctx, HZ_EINVAL, "%s: data is %p, must be a multiple of 64 bytes",
				op, data);

	hz_tensor *const view[5] = {&layer->p, &layer->q, &layer->a, &layer->saved, &layer->dq};

	columns[0] = columns[1] = columns[4] = n;
	columns[2] = (int64_t)n * n;
	columns[3] = layer->phi.data ? rule.m + 1 : 0;
	for (int i = 0; i < 5; i++) {
		if (data && columns[i])
			*view[i] = hz_tensor_2d((float *)data + at, HZ_F32, ctx->device, sets,
						columns[i]);
		else if (data)
			*view[i] = (hz_tensor){0};
		at += (sets * columns[i] + 15) / 16 * 16;
	}
	if (data) {
		layer->a = hz_tensor_3d(layer->a.data, HZ_F32, ctx->device, sets, n, n);
		layer->bound_n = n;
		layer->bound_sets = sets;
		layer->bound_coefficients = layer->opts.coefficients;
		layer->bound_rule = rule_check(rule);
	}
	if (bytes)
		*bytes = (size_t)at * sizeof(float);
	return HZ_OK;
}

int hz_mhc_layer_begin(hz_context *ctx, const hz_mhc_layer *layer, const hz_tensor *x,
		       hz_tensor *u)
{
	static const char op[] = "mhc_layer_begin";
	hz_mhc_layer l;
	hz_mhc_opts o;

	HZ_CHECK(take_layer(ctx, op, layer, "x", x, &l));
	o = layer_opts(&l, false);
	return hzi_mhc_layer_pre(ctx, op, x, &l, u, &o);
}

/* NULL stands for the identity, which is not read. */
static const hz_tensor *mixing(const hz_mhc_layer *l)
{
	return hzi_mhc_residual(&l->opts) == HZ_MHC_IDENTITY ? NULL : &l->a;
}

int hz_mhc_layer_end(hz_context *ctx, const hz_mhc_layer *layer, const hz_tensor *x,
		     const hz_tensor *f, hz_tensor *y)
{
	static const char op[] = "mhc_layer_end";
	static const char *const names[] = {"layer->q", "layer->a", "layer->branch_bias"};
	hz_mhc_layer l;

	HZ_CHECK(take_layer(ctx, op, layer, "x", x, &l));
	return hzi_mhc_post(ctx, op, x, f, &l.q, mixing(&l), given(&l.branch_bias), y, names,
			    hzi_mhc_is_cn(&l.opts));
}

int hz_mhc_layer_end_bwd(hz_context *ctx, const hz_mhc_layer *layer, const hz_tensor *f,
			 const hz_tensor *dy, hz_tensor *df)
{
	static const char op[] = "mhc_layer_end_bwd";
	struct hzi_mhc_streams_bwd_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	hz_mhc_layer l;

	HZ_CHECK(take_layer(ctx, op, layer, "dy", dy, &l));

	const struct hzi_mhc_operand list[] = {
		{"f", f, HZI_MHC_U, NEED, &g.f, NULL},
		{"dy", dy, HZI_MHC_X, NEED, &g.dy, NULL},
		{"layer->q", &l.q, HZI_MHC_P, NEED, &g.q, NULL},
		{"layer->branch_bias", given(&l.branch_bias), HZI_MHC_CHANNELS, 0, &g.bias, NULL},
		{"df", df, HZI_MHC_U, OUT, &g.df, NULL},
		{"layer->dq", &l.dq, HZI_MHC_P, NEED | OUT, &g.dq, NULL},
		{"layer->dbranch_bias", given(&l.dbranch_bias), HZI_MHC_CHANNELS, OUT, &g.dbias,
		 NULL},
	};

	d.cn = hzi_mhc_is_cn(&l.opts);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	g.accumulate = (l.opts.flags & HZ_MHC_ACCUMULATE) != 0;
	return hzi_mhc_streams_bwd(ctx, op, &g);
}

int hz_mhc_layer_begin_bwd(hz_context *ctx, const hz_mhc_layer *layer, const hz_tensor *x,
			   const hz_tensor *dy, const hz_tensor *du, hz_tensor *dx)
{
	static const char op[] = "mhc_layer_begin_bwd";
	hz_mhc_layer l;
	hz_mhc_grads g;
	hz_mhc_opts o;

	HZ_CHECK(take_layer(ctx, op, layer, "x", x, &l));
	g = (hz_mhc_grads){
		.du = du, .dp = given(&l.dp), .dq = &l.dq, .dy = dy, .dx = dx,
		.dphi = given(&l.dphi),
		.dalpha = given(&l.dalpha), .dbias = given(&l.dbias),
	};
	o = layer_opts(&l, true);
	return hzi_mhc_layer_pre_bwd(ctx, op, x, &l, &g, &o);
}
