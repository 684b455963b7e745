/*
 * run_coef.c - hurwitz run of coefficients of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/mhc/run.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

static const struct key accumulate_keys[] = {
	{"accumulate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: dx and gradients of weights are added to what their files hold"},
	END,
};

static const struct format {
	int codes, per_byte, scales, group;	/* group 0: a scale for each token */
} formats[] = {
	{HZ_S8, 1, HZ_F32, 0}, {HZ_E4M3, 1, HZ_F32, 0}, {HZ_E4M3, 1, HZ_E8M0, 32},
	{HZ_E2M1X2, 2, HZ_E4M3, 16},
};

static const struct word format_words[] = {
	{"s8", 0}, {"e4m3", 1}, {"mxfp8", 2}, {"nvfp4", 3}, {NULL, 0},
};

static const struct key codes_keys[] = {
	{"u_format", KEY_WORD, format_words, 0, 0, "s8|e4m3|mxfp8|nvfp4",
	 "of u_codes=, default s8: a scale for each token, of s8 and e4m3, or for each\n"
	 "group of channels"},
	END,
};

static const struct key *const forward_keys[] = {mhc_sinkhorn_keys, mhc_weights_keys, NULL};
static const struct key *const codes_forward_keys[] = {
	mhc_sinkhorn_keys, mhc_weights_keys, codes_keys, NULL,
};
static const struct key *const backward_keys[] = {
	mhc_sinkhorn_keys, mhc_weights_keys, accumulate_keys, NULL,
};

static hz_mhc_opts opts_of(struct job *job)
{
	hz_mhc_opts o = mhc_opts(job);

	o.gain = view_of(job, "gain");
	o.norm = view_of(job, "norm");
	o.saved = view_of(job, "saved");
	o.alpha_q = view_of(job, "alpha_q");
	o.alpha_a = view_of(job, "alpha_a");
	o.p_in = view_of(job, "p_in");
	o.dgain = view_of(job, "dgain");
	o.dalpha_q = view_of(job, "dalpha_q");
	o.dalpha_a = view_of(job, "dalpha_a");
	o.dp_in = view_of(job, "dp_in");
	o.dnorm = view_of(job, "dnorm");
	return o;
}

/* The same with hz_quantize() of u, if u_codes= is there, of options q */
static hz_mhc_opts coded_opts_of(struct job *job, hz_quantize_opts *q)
{
	hz_mhc_opts o = opts_of(job);

	*q = (hz_quantize_opts){
		.group = formats[value_or(job, "u_format", 0)].group,
		.new_scales = view_of(job, "u_scales"),
		.new_tensor_scale = view_of(job, "u_tensor_scale"),
	};
	o.u_codes = view_of(job, "u_codes");
	o.u_quantize = o.u_codes || q->new_scales ? q : NULL;
	return o;
}

/* ---- Operands -------------------------------------------------------------------------------- */

#define WEIGHTS \
	{"phi", NULL, OPTIONAL, TYPES, "[m, n C]; absent: y = 0"}, \
	{"alpha", NULL, OPTIONAL, "f32", "[3] with phi, [2] without a"}, \
	{"alpha_q", NULL, OPTIONAL, "f32", "[1]: alpha is [1], of p"}, \
	{"alpha_a", NULL, OPTIONAL, "f32", "[1]"}, \
	{"bias", NULL, 0, "f32", "[m], m = 2 n + n^2 mostly"}, \
	{"gain", NULL, OPTIONAL, "f32", "[n C], of x before phi"}

#define SAVED_OUT {"saved", NULL, WANTED, "f32", "[..., m + 1], for gradients"}
#define SAVED_IN {"saved", NULL, OPTIONAL, "f32", "[..., m + 1], of the forward call"}

#define ALPHA_GRADIENTS \
	{"dalpha_q", NULL, WANTED, "f32", "as alpha_q"}, \
	{"dalpha_a", NULL, WANTED, "f32", "as alpha_a"}

#define P_IN {"p_in", NULL, OPTIONAL, "f32", "[..., n]: u is mixed by it, instead of p"}
#define DP_IN {"dp_in", NULL, WANTED, "f32", "as p_in"}

#define WEIGHT_GRADIENTS \
	{"dphi", NULL, WANTED, "f32", "as phi"}, \
	{"dalpha", NULL, WANTED, "f32", "as alpha"}, \
	{"dbias", NULL, WANTED, "f32", "as bias"}, \
	{"dgain", NULL, WANTED, "f32", "as gain"}

#define COEFS(p, q, a) \
	{p, NULL, WANTED, "f32", "[..., n], of each token"}, \
	{q, NULL, WANTED, "f32", "[..., n]"}, \
	{a, NULL, WANTED, "f32", "[..., n, n], a[new, old]"}

#define COEF_GRADIENTS(p, q, a) \
	{p, NULL, OPTIONAL, "f32", "[..., n], a gradient"}, \
	{q, NULL, OPTIONAL, "f32", "[..., n], a gradient"}, \
	{a, NULL, OPTIONAL, "f32", "[..., n, n], a gradient"}

#define NORM {"norm", NULL, OPTIONAL, "f32", "[C]: u is normalised, times it"}

#define CODES(u) \
	{"u_codes", NULL, WANTED, "s8 e4m3 e2m1x2", u " quantized, by u_format="}, \
	{"u_scales", NULL, WANTED, "f32 e8m0 e4m3", "[..., 1] or [..., groups], for u_codes="}, \
	{"u_tensor_scale", NULL, WANTED, "f32", "[1], for u_format=nvfp4"}

#define HEAD_IN \
	{"x", NULL, 0, TYPES, STREAMS}, \
	{"phi", NULL, OPTIONAL, TYPES, "[n, n C]; absent with head=mean, as are"}, \
	{"alpha", NULL, OPTIONAL, "f32", "[1]"}, \
	{"bias", NULL, OPTIONAL, "f32", "[n]"}, \
	{"gain", NULL, OPTIONAL, "f32", "[n C]"}

static const struct operand weights_operands[] = {
	{"x", NULL, OPTIONAL, TYPES, STREAMS "; absent without phi"},
	WEIGHTS, COEFS("p", "q", "a"), SAVED_OUT, LAST,
};

static const struct operand pre_operands[] = {
	{"x", NULL, 0, TYPES, STREAMS},
	WEIGHTS, NORM, P_IN, COEFS("p", "q", "a"),
	{"u", NULL, WANTED, TYPES, BRANCH ", sum of p_i x[i]"},
	SAVED_OUT, CODES("u"), LAST,
};

static const struct operand pre_bwd_operands[] = {
	{"x", NULL, OPTIONAL, TYPES, STREAMS},
	WEIGHTS, NORM, P_IN, SAVED_IN,
	{"du", NULL, OPTIONAL, TYPES, BRANCH ", the gradient of u"},
	{"dy", NULL, OPTIONAL, TYPES, "as x, that of y of mhc_post with x and a"},
	COEF_GRADIENTS("dp", "dq", "da"),
	{"dx", NULL, WANTED, TYPES, "as x"},
	WEIGHT_GRADIENTS, ALPHA_GRADIENTS, DP_IN,
	{"dnorm", NULL, WANTED, "f32", "as norm"},
	LAST,
};

static const struct operand head_operands[] = {
	HEAD_IN, NORM, P_IN,
	{"p", NULL, WANTED, "f32", "[..., n]"},
	{"h", NULL, WANTED, TYPES, BRANCH ", sum of p_i x[i]"},
	{"saved", NULL, WANTED, "f32", "[..., n + 1], for gradients"},
	CODES("h"), LAST,
};

static const struct operand head_bwd_operands[] = {
	HEAD_IN, NORM, P_IN,
	{"saved", NULL, OPTIONAL, "f32", "[..., n + 1], of the forward call"},
	{"dh", "du", OPTIONAL, TYPES, BRANCH ", the gradient of h"},
	{"dp", NULL, OPTIONAL, "f32", "[..., n], that of p"},
	{"dx", NULL, WANTED, TYPES, "as x"},
	WEIGHT_GRADIENTS, DP_IN,
	{"dnorm", NULL, WANTED, "f32", "as norm"},
	LAST,
};

static const struct operand post_pre_operands[] = {
	{"x", NULL, 0, TYPES, STREAMS},
	{"f", NULL, 0, TYPES, BRANCH},
	{"q", NULL, 0, "f32", "[..., n], of each token"},
	{"a", NULL, OPTIONAL, "f32", MATRIX "; absent: the identity"},
	{"branch_bias", NULL, OPTIONAL, "f32", "[C], added to f"},
	WEIGHTS, NORM, P_IN,
	{"y", NULL, OUTPUT, TYPES, "as x: mhc_post of x, f, q, a"},
	COEFS("p_next", "q_next", "a_next"),
	{"u", NULL, WANTED, TYPES, BRANCH ": mhc_pre of y"},
	SAVED_OUT, CODES("u"), LAST,
};

static const struct operand post_pre_bwd_operands[] = {
	{"y", NULL, 0, TYPES, STREAMS ", of the forward call"},
	WEIGHTS, NORM, P_IN, SAVED_IN,
	{"f", NULL, OPTIONAL, TYPES, BRANCH "; for dq"},
	{"q", NULL, OPTIONAL, "f32", "[..., n]; for df"},
	{"branch_bias", NULL, OPTIONAL, "f32", "[C]"},
	{"du", NULL, OPTIONAL, TYPES, BRANCH ", the gradient of u"},
	{"dy_next", NULL, OPTIONAL, TYPES, "as y, that of y of the next layer"},
	COEF_GRADIENTS("dp_next", "dq_next", "da_next"),
	{"dy", NULL, OUTPUT, TYPES, "as y: the gradient of y"},
	{"df", NULL, WANTED, TYPES, BRANCH},
	{"dq", NULL, WANTED, "f32", "as q"},
	{"dbranch_bias", NULL, WANTED, "f32", "[C]"},
	WEIGHT_GRADIENTS, ALPHA_GRADIENTS, DP_IN,
	{"dnorm", NULL, WANTED, "f32", "as norm"},
	LAST,
};

#define GATED_WEIGHTS \
	{"x", NULL, 0, TYPES, STREAMS}, \
	{"w_down", NULL, 0, TYPES, "[r, n C]"}, \
	{"w_up", NULL, 0, TYPES, "[n C, r]"}, \
	{"w_q", NULL, OPTIONAL, TYPES, "[n, n C]; for q"}, \
	{"gain", NULL, OPTIONAL, "f32", "[n C], of streams over their roots"}

static const struct operand gated_pre_operands[] = {
	GATED_WEIGHTS,
	{"q", NULL, WANTED, "f32", "[..., n], of each token"},
	{"u", NULL, WANTED, TYPES, BRANCH ", mean of gated streams"},
	LAST,
};

static const struct operand gated_pre_bwd_operands[] = {
	GATED_WEIGHTS,
	{"du", NULL, OPTIONAL, TYPES, BRANCH ", the gradient of u"},
	{"dq", NULL, OPTIONAL, "f32", "[..., n], that of q"},
	{"dy", NULL, OPTIONAL, TYPES, "as x, that of y of mhc_post with x, without a"},
	{"dx", NULL, WANTED, TYPES, "as x"},
	{"dw_down", NULL, WANTED, "f32", "as w_down"},
	{"dw_up", NULL, WANTED, "f32", "as w_up"},
	{"dw_q", NULL, WANTED, "f32", "as w_q"},
	{"dgain", NULL, WANTED, "f32", "as gain"},
	LAST,
};

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* The number of streams for which bias has `rows` rows; 0: none */
static int streams_of(int64_t rows, const hz_mhc_opts *o)
{
	for (int n = 1; n <= 8; n++) {
		if (hz_mhc_rows(n, o) == rows)
			return n;
	}
	return 0;
}

/* Leading dimensions of coefficients: those of x, its first one, or none */
struct sets {
	int64_t n, rows;
	const int64_t *leading;
	int ndim;
};

static int find_sets(struct job *job, const char *x_name, struct sets *s)
{
	const struct npy *x = mhc_array_of(job, x_name), *bias = mhc_array_of(job, "bias");
	const hz_mhc_opts o = mhc_opts(job);
	const bool sequences = o.coefficients == HZ_MHC_PER_SEQUENCE;
	int status = mhc_check_ndim(job, x_name, sequences ? 4 : 2);

	if (!status)
		status = mhc_check_ndim(job, "bias", 1);
	if (status)
		return status;
	*s = (struct sets){.leading = x->shape};
	s->rows = mhc_given(job, "bias") ? bias->shape[0] : mhc_streams_of(job, x);
	s->n = mhc_given(job, x_name) ? mhc_streams_of(job, x) : streams_of(s->rows, &o);
	if (s->n < 1 || s->n > 8)
		return complain(EXIT_BAD, "%s: there are %lld streams, must be 1 to 8",
				job->op->name, (long long)s->n);
	if (mhc_given(job, x_name) && o.coefficients != HZ_MHC_STATIC)
		s->ndim = sequences ? 1 : x->ndim - 2;
	return 0;
}

static void shape_sets(struct job *job, const struct sets *s, const char *p, const char *q,
		       const char *a)
{
	mhc_shape(job, p, HZ_F32, s->ndim, s->leading, s->n, -1);
	if (q)
		mhc_shape(job, q, HZ_F32, s->ndim, s->leading, s->n, -1);
	if (a)
		mhc_shape(job, a, HZ_F32, s->ndim, s->leading, s->n, s->n);
}

static int shape_codes(struct job *job, const struct npy *x)
{
	const struct format *const f = &formats[value_or(job, "u_format", 0)];
	const int64_t C = mhc_channels_of(job, x);
	const int64_t groups = f->group ? C / f->group + (C % f->group != 0) : C > 0;

	mhc_shape(job, "u_codes", f->codes, x->ndim - 2, x->shape, C / f->per_byte, -1);
	mhc_shape(job, "u_scales", f->scales, x->ndim - 2, x->shape, groups, -1);
	mhc_shape(job, "u_tensor_scale", HZ_F32, 0, NULL, 1, -1);
	if (value_of(job, "u_format")->given && !slot_of(job, "u_codes")->path)
		return complain(EXIT_BAD, "%s: u_format= needs u_codes=FILE", job->op->name);
	if (!slot_of(job, "u_codes")->path != !slot_of(job, "u_scales")->path)
		return complain(EXIT_BAD, "%s: u_codes= and u_scales= need each other", job->op->name);
	return 0;
}

static int forward_outputs(struct job *job, const char *x_name, const char *p, const char *q,
			   const char *a, const char *u)
{
	struct sets s;
	const int status = find_sets(job, x_name, &s);

	if (status)
		return status;
	shape_sets(job, &s, p, q, a);
	mhc_shape(job, "saved", HZ_F32, s.ndim, s.leading, s.rows + 1, -1);
	if (!u)
		return 0;
	mhc_shape_branch(job, u, mhc_array_of(job, x_name));
	return shape_codes(job, mhc_array_of(job, x_name));
}

/* Outputs that accumulate=1 adds to: reads their old values. */
static void read_accumulated(struct job *job)
{
	static const char *const names[] = {
		"dx", "dy", "dphi", "dalpha", "dalpha_q", "dalpha_a", "dbias", "dgain", "dnorm",
		"dbranch_bias", "dw_down", "dw_up", "dw_q", NULL,
	};

	for (int i = 0; names[i] && value_or(job, "accumulate", 0); i++) {
		for (int k = 0; job->op->operands[k].name; k++) {
			if (strcmp(job->op->operands[k].name, names[i]) == 0 &&
			    job->op->operands[k].flags & OUTPUT)
				job->slot[k].read = true;
		}
	}
}

static int weight_gradients(struct job *job)
{
	static const char *const pairs[][2] = {
		{"dphi", "phi"}, {"dalpha", "alpha"}, {"dbias", "bias"}, {"dgain", "gain"},
		{"dnorm", "norm"}, {"dalpha_q", "alpha_q"}, {"dalpha_a", "alpha_a"},
		{"dp_in", "p_in"}, {NULL, NULL},
	};
	int status;

	read_accumulated(job);
	status = mhc_shape_all(job, pairs);
	if (!status && mhc_given(job, "dphi"))
		slot_of(job, "dphi")->array.dtype = HZ_F32;
	return status;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static int weights_outputs(struct job *job)
{
	return forward_outputs(job, "x", "p", "q", "a", NULL);
}

static int pre_outputs(struct job *job)
{
	return forward_outputs(job, "x", "p", "q", "a", "u");
}

/* mhc_weights has no u, mhc_head no q, no a. */
static int pre_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *phi = view_of(job, "phi");
	const hz_tensor *alpha = view_of(job, "alpha"), *bias = view_of(job, "bias");
	hz_tensor *p = view_of(job, "p"), *q = view_of(job, "q"), *a = view_of(job, "a");
	hz_tensor *u = view_of(job, "u");
	const bool is_pre = job->op == &op_mhc_pre;
	hz_quantize_opts quantize;
	const hz_mhc_opts o = is_pre ? coded_opts_of(job, &quantize) : opts_of(job);

	return WITH_WORKSPACE(ctx, is_pre ? hz_mhc_pre(ctx, x, phi, alpha, bias, p, q, a, u, &o) :
					    hz_mhc_weights(ctx, x, phi, alpha, bias, p, q, a, &o));
}

static int pre_bwd_outputs(struct job *job)
{
	struct sets s;
	int status = find_sets(job, "x", &s);

	if (!status)
		status = mhc_shape_as(job, "dx", "x");
	return status ? status : weight_gradients(job);
}

static int pre_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *phi = view_of(job, "phi");
	const hz_tensor *alpha = view_of(job, "alpha"), *bias = view_of(job, "bias");
	const hz_mhc_opts o = opts_of(job);
	const hz_mhc_grads g = {
		.du = view_of(job, "du"), .dp = view_of(job, "dp"), .dq = view_of(job, "dq"),
		.da = view_of(job, "da"), .dy = view_of(job, "dy"), .dx = view_of(job, "dx"),
		.dphi = view_of(job, "dphi"), .dalpha = view_of(job, "dalpha"),
		.dbias = view_of(job, "dbias"),
	};

	return WITH_WORKSPACE(ctx, hz_mhc_pre_bwd(ctx, x, phi, alpha, bias, &g, &o));
}

static int head_outputs(struct job *job)
{
	return forward_outputs(job, "x", "p", NULL, NULL, "h");
}

static int head_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *phi = view_of(job, "phi");
	const hz_tensor *alpha = view_of(job, "alpha"), *bias = view_of(job, "bias");
	hz_tensor *p = view_of(job, "p"), *h = view_of(job, "h");
	hz_quantize_opts quantize;
	const hz_mhc_opts o = coded_opts_of(job, &quantize);

	return WITH_WORKSPACE(ctx, hz_mhc_head(ctx, x, phi, alpha, bias, p, h, &o));
}

static int head_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *phi = view_of(job, "phi");
	const hz_tensor *alpha = view_of(job, "alpha"), *bias = view_of(job, "bias");
	const hz_mhc_opts o = opts_of(job);
	const hz_mhc_grads g = {
		.du = view_of(job, "dh"), .dp = view_of(job, "dp"), .dx = view_of(job, "dx"),
		.dphi = view_of(job, "dphi"), .dalpha = view_of(job, "dalpha"),
		.dbias = view_of(job, "dbias"),
	};

	return WITH_WORKSPACE(ctx, hz_mhc_head_bwd(ctx, x, phi, alpha, bias, &g, &o));
}

static int post_pre_outputs(struct job *job)
{
	const int status = forward_outputs(job, "x", "p_next", "q_next", "a_next", "u");

	return status ? status : mhc_shape_as(job, "y", "x");
}

static int post_pre_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *f = view_of(job, "f"), *q = view_of(job, "q");
	const hz_tensor *a = view_of(job, "a"), *more = view_of(job, "branch_bias");
	const hz_tensor *phi = view_of(job, "phi");
	const hz_tensor *alpha = view_of(job, "alpha"), *bias = view_of(job, "bias");
	hz_tensor *y = view_of(job, "y"), *p2 = view_of(job, "p_next");
	hz_tensor *q2 = view_of(job, "q_next"), *a2 = view_of(job, "a_next");
	hz_tensor *u = view_of(job, "u");
	hz_quantize_opts quantize;
	const hz_mhc_opts o = coded_opts_of(job, &quantize);

	return WITH_WORKSPACE(ctx, hz_mhc_post_pre(ctx, x, f, q, a, more, phi, alpha, bias, y, p2,
						   q2, a2, u, &o));
}

static int post_pre_bwd_outputs(struct job *job)
{
	struct sets s;
	int status = find_sets(job, "y", &s);

	if (!status)
		status = mhc_shape_as(job, "dy", "y");
	if (!status)
		status = mhc_shape_as(job, "dq", "q");
	if (status)
		return status;
	mhc_shape_branch(job, "df", mhc_array_of(job, "y"));
	mhc_shape(job, "dbranch_bias", HZ_F32, 0, NULL,
		  mhc_channels_of(job, mhc_array_of(job, "y")), -1);
	return weight_gradients(job);
}

static int post_pre_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *y = view_of(job, "y"), *phi = view_of(job, "phi");
	const hz_tensor *alpha = view_of(job, "alpha"), *bias = view_of(job, "bias");
	const hz_tensor *f = view_of(job, "f"), *q = view_of(job, "q");
	const hz_tensor *more = view_of(job, "branch_bias");
	hz_tensor *df = view_of(job, "df"), *dq = view_of(job, "dq");
	hz_tensor *dmore = view_of(job, "dbranch_bias");
	const hz_mhc_opts o = opts_of(job);
	const hz_mhc_grads g = {
		.du = view_of(job, "du"), .dp = view_of(job, "dp_next"),
		.dq = view_of(job, "dq_next"), .da = view_of(job, "da_next"),
		.dy = view_of(job, "dy_next"), .dx = view_of(job, "dy"),
		.dphi = view_of(job, "dphi"), .dalpha = view_of(job, "dalpha"),
		.dbias = view_of(job, "dbias"),
	};

	return WITH_WORKSPACE(ctx, hz_mhc_post_pre_bwd(ctx, y, phi, alpha, bias, f, q, more, &g,
						       df, dq, dmore, &o));
}

static int gated_pre_outputs(struct job *job)
{
	const struct npy *x = mhc_array_of(job, "x");
	const int status = mhc_check_ndim(job, "x", 2);

	if (status)
		return status;
	mhc_shape(job, "q", HZ_F32, x->ndim - 2, x->shape, mhc_streams_of(job, x), -1);
	mhc_shape_branch(job, "u", x);
	return 0;
}

static int gated_pre_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *down = view_of(job, "w_down");
	const hz_tensor *up = view_of(job, "w_up"), *w_q = view_of(job, "w_q");
	hz_tensor *q = view_of(job, "q"), *u = view_of(job, "u");
	hz_mhc_opts o = mhc_opts(job);

	o.gain = view_of(job, "gain");
	return WITH_WORKSPACE(ctx, hz_mhc_gated_pre(ctx, x, down, up, w_q, q, u, &o));
}

static int gated_pre_bwd_outputs(struct job *job)
{
	static const char *const pairs[][2] = {
		{"dx", "x"}, {"dw_down", "w_down"}, {"dw_up", "w_up"}, {"dw_q", "w_q"},
		{"dgain", "gain"}, {NULL, NULL},
	};
	int status = mhc_check_ndim(job, "x", 2);

	read_accumulated(job);
	if (!status)
		status = mhc_shape_all(job, pairs);
	for (int i = 1; i < 4 && !status; i++)
		slot_of(job, pairs[i][0])->array.dtype = HZ_F32;
	return status;
}

static int gated_pre_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x"), *down = view_of(job, "w_down");
	const hz_tensor *up = view_of(job, "w_up"), *w_q = view_of(job, "w_q");
	const hz_mhc_gated_grads g = {
		.du = view_of(job, "du"), .dq = view_of(job, "dq"), .dy = view_of(job, "dy"),
		.dx = view_of(job, "dx"), .dw_down = view_of(job, "dw_down"),
		.dw_up = view_of(job, "dw_up"), .dw_q = view_of(job, "dw_q"),
	};
	hz_mhc_opts o = mhc_opts(job);

	o.gain = view_of(job, "gain");
	o.dgain = view_of(job, "dgain");
	return WITH_WORKSPACE(ctx, hz_mhc_gated_pre_bwd(ctx, x, down, up, w_q, &g, &o));
}

/* ---- Primitives ------------------------------------------------------------------------------ */

const struct op op_mhc_weights = {
	"mhc_weights", "coefficients of hyper-connections from streams", weights_operands,
	forward_keys, weights_outputs, pre_call,
};

const struct op op_mhc_weights_bwd = {
	"mhc_weights_bwd", "gradients of mhc_weights: those whose files are given",
	pre_bwd_operands, backward_keys, pre_bwd_outputs, pre_bwd_call,
};

const struct op op_mhc_pre = {
	"mhc_pre", "coefficients from streams, and the branch input", pre_operands,
	codes_forward_keys, pre_outputs, pre_call,
};

const struct op op_mhc_pre_bwd = {
	"mhc_pre_bwd", "gradients of mhc_pre: those whose files are given",
	pre_bwd_operands, backward_keys, pre_bwd_outputs, pre_bwd_call,
};

const struct op op_mhc_head = {
	"mhc_head", "streams to one at the end of a network", head_operands,
	codes_forward_keys, head_outputs, head_call,
};

const struct op op_mhc_head_bwd = {
	"mhc_head_bwd", "gradients of mhc_head: those whose files are given",
	head_bwd_operands, backward_keys, pre_bwd_outputs, head_bwd_call,
};

const struct op op_mhc_post_pre = {
	"mhc_post_pre", "mhc_post of a layer and mhc_pre of the next in one pass",
	post_pre_operands, codes_forward_keys, post_pre_outputs, post_pre_call,
};

const struct op op_mhc_post_pre_bwd = {
	"mhc_post_pre_bwd", "gradients of mhc_post_pre: those whose files are given",
	post_pre_bwd_operands, backward_keys, post_pre_bwd_outputs, post_pre_bwd_call,
};

const struct op op_mhc_gated_pre = {
	"mhc_gated_pre", "branch inputs with a gate for each element, as in Qwen4-Exp",
	gated_pre_operands, forward_keys, gated_pre_outputs, gated_pre_call,
};

const struct op op_mhc_gated_pre_bwd = {
	"mhc_gated_pre_bwd", "gradients of mhc_gated_pre: those whose files are given",
	gated_pre_bwd_operands, backward_keys, gated_pre_bwd_outputs, gated_pre_bwd_call,
};
