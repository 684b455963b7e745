/*
 * mhc.c - Sinkhorn's iteration and mixed streams: mix, add, post, expand
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/mhc/check.h"

#define OUT HZI_MHC_OUTPUT
#define NEED HZI_MHC_NEEDED

/* ---- Sinkhorn's iteration -------------------------------------------------------------------- */

int hz_mhc_sinkhorn(hz_context *ctx, const hz_tensor *m, hz_tensor *p, const hz_mhc_opts *opts)
{
	static const char op[] = "mhc_sinkhorn";
	struct hzi_mhc_sinkhorn_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	struct hzi_mhc_shape s;
	const struct hzi_mhc_operand list[] = {
		{"m", m, HZI_MHC_A, NEED, &g.m, NULL},
		{"p", p, HZI_MHC_A, NEED | OUT, &g.p, "m"},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &s));
	HZ_CHECK(hzi_mhc_rule_of(ctx, op, d.n, opts, &g.rule));
	g.count = d.groups;
	if (g.count == 0)
		return HZ_OK;
	return HZI_RUN(ctx, op, mhc, mhc_sinkhorn, &g);
}

int hz_mhc_sinkhorn_bwd(hz_context *ctx, const hz_tensor *m, const hz_tensor *dp, hz_tensor *dm,
			const hz_mhc_opts *opts)
{
	static const char op[] = "mhc_sinkhorn_bwd";
	struct hzi_mhc_sinkhorn_bwd_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	struct hzi_mhc_shape s;
	const struct hzi_mhc_operand list[] = {
		{"m", m, HZI_MHC_A, NEED, &g.m, NULL},
		{"dp", dp, HZI_MHC_A, NEED, &g.dp, NULL},
		{"dm", dm, HZI_MHC_A, NEED | OUT, &g.dm, "dp"},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &s));
	HZ_CHECK(hzi_mhc_rule_of(ctx, op, d.n, opts, &g.rule));
	g.count = d.groups;
	if (g.count == 0)
		return HZ_OK;
	return HZI_RUN(ctx, op, mhc, mhc_sinkhorn_bwd, &g);
}

/* ---- Streams --------------------------------------------------------------------------------- */

static int streams(struct hz_context *ctx, const char *op, struct hzi_mhc_streams_args *a)
{
	if (a->s.tokens == 0 || a->s.channels == 0)
		return HZ_OK;
	return HZI_RUN(ctx, op, mhc, mhc_streams, a);
}

/* Whether sums or values are wanted */
static bool streams_bwd_wanted(const struct hzi_mhc_streams_bwd_args *a)
{
	return a->dp.data || a->dq.data || a->da.data || a->dbias ||
	       ((a->dx.data || a->df.data) && a->s.tokens && a->s.channels);
}

size_t hzi_mhc_streams_bwd_bytes(struct hz_context *ctx, struct hzi_mhc_streams_bwd_args *a)
{
	return streams_bwd_wanted(a) ? HZI_WORKSPACE(ctx, mhc, mhc_streams_bwd, a) : 0;
}

int hzi_mhc_streams_bwd(struct hz_context *ctx, const char *op, struct hzi_mhc_streams_bwd_args *a)
{
	if (!streams_bwd_wanted(a))
		return HZ_OK;
	HZ_CHECK(hzi_workspace(ctx, op, hzi_mhc_streams_bwd_bytes(ctx, a)));
	return HZI_CALL(ctx, mhc, mhc_streams_bwd, a);
}

/* One of the two operands must be given. */
static int check_one_of(struct hz_context *ctx, const char *op, const char *names,
		     const hz_tensor *a, const hz_tensor *b)
{
	if (!a && !b)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s are NULL, one must be a view", op, names);
	return HZ_OK;
}

int hz_mhc_mix(hz_context *ctx, const hz_tensor *x, const hz_tensor *p, const hz_tensor *a,
	       hz_tensor *u, hz_tensor *r)
{
	static const char op[] = "mhc_mix";
	struct hzi_mhc_streams_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	struct hzi_mhc_coef unused;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, NEED, &g.x, NULL},
		{"p", p, HZI_MHC_P, u ? NEED : 0, u ? &g.p : &unused, NULL},
		{"a", a, HZI_MHC_A, r ? NEED : 0, r ? &g.a : &unused, NULL},
		{"u", u, HZI_MHC_U, OUT, &g.u, NULL},
		{"r", r, HZI_MHC_X, OUT, &g.y, "x"},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(check_one_of(ctx, op, "u and r", u, r));
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return streams(ctx, op, &g);
}

int hz_mhc_mix_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *p, const hz_tensor *a,
		   const hz_tensor *du, const hz_tensor *dr, hz_tensor *dx, hz_tensor *dp,
		   hz_tensor *da)
{
	static const char op[] = "mhc_mix_bwd";
	struct hzi_mhc_streams_bwd_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	struct hzi_mhc_coef unused;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, dp || da ? NEED : 0, &g.x, NULL},
		{"p", p, HZI_MHC_P, dx && du ? NEED : 0, du ? &g.p : &unused, NULL},
		{"a", a, HZI_MHC_A, dx && dr ? NEED : 0, dr ? &g.a : &unused, NULL},
		{"du", du, HZI_MHC_U, dp ? NEED : 0, &g.du, NULL},
		{"dr", dr, HZI_MHC_X, da ? NEED : 0, &g.dy, NULL},
		{"dx", dx, HZI_MHC_X, OUT, &g.dx, NULL},
		{"dp", dp, HZI_MHC_P, OUT, &g.dp, NULL},
		{"da", da, HZI_MHC_A, OUT, &g.da, NULL},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(check_one_of(ctx, op, "du and dr", du, dr));
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return hzi_mhc_streams_bwd(ctx, op, &g);
}

int hz_mhc_add(hz_context *ctx, const hz_tensor *r, const hz_tensor *f, const hz_tensor *q,
	       hz_tensor *y)
{
	static const char op[] = "mhc_add";
	struct hzi_mhc_streams_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	const struct hzi_mhc_operand list[] = {
		{"r", r, HZI_MHC_X, NEED, &g.x, NULL},
		{"f", f, HZI_MHC_U, NEED, &g.f, NULL},
		{"q", q, HZI_MHC_P, NEED, &g.q, NULL},
		{"y", y, HZI_MHC_X, NEED | OUT, &g.y, "r"},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return streams(ctx, op, &g);
}

int hz_mhc_add_bwd(hz_context *ctx, const hz_tensor *f, const hz_tensor *q, const hz_tensor *dy,
		   hz_tensor *dr, hz_tensor *df, hz_tensor *dq)
{
	static const char op[] = "mhc_add_bwd";
	struct hzi_mhc_streams_bwd_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	const struct hzi_mhc_operand list[] = {
		{"f", f, HZI_MHC_U, dq ? NEED : 0, &g.f, NULL},
		{"q", q, HZI_MHC_P, df ? NEED : 0, &g.q, NULL},
		{"dy", dy, HZI_MHC_X, NEED, &g.dy, NULL},
		{"dr", dr, HZI_MHC_X, OUT, &g.dx, "dy"},
		{"df", df, HZI_MHC_U, OUT, &g.df, NULL},
		{"dq", dq, HZI_MHC_P, OUT, &g.dq, NULL},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	if (g.dx.data == g.dy.data)
		g.dx.data = NULL;
	return hzi_mhc_streams_bwd(ctx, op, &g);
}

int hzi_mhc_post(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *f,
		 const hz_tensor *q, const hz_tensor *a, const hz_tensor *branch_bias,
		 const hz_tensor *y, const char *const *names, bool cn)
{
	struct hzi_mhc_streams_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, NEED, &g.x, NULL},
		{"f", f, HZI_MHC_U, NEED, &g.f, NULL},
		{names[0], q, HZI_MHC_P, NEED, &g.q, NULL},
		{names[1], a, HZI_MHC_A, 0, &g.a, NULL},
		{names[2], branch_bias, HZI_MHC_CHANNELS, 0, &g.bias, NULL},
		{"y", y, HZI_MHC_X, NEED | OUT, &g.y, "x"},
	};

	d.cn = cn;
	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return streams(ctx, op, &g);
}

int hz_mhc_post(hz_context *ctx, const hz_tensor *x, const hz_tensor *f, const hz_tensor *q,
		const hz_tensor *a, const hz_tensor *branch_bias, hz_tensor *y)
{
	static const char *const names[] = {"q", "a", "branch_bias"};

	return hzi_mhc_post(ctx, "mhc_post", x, f, q, a, branch_bias, y, names, false);
}

int hz_mhc_post_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *f, const hz_tensor *q,
		    const hz_tensor *a, const hz_tensor *branch_bias, const hz_tensor *dy,
		    hz_tensor *dx, hz_tensor *df, hz_tensor *dq, hz_tensor *da,
		    hz_tensor *dbranch_bias)
{
	static const char op[] = "mhc_post_bwd";
	struct hzi_mhc_streams_bwd_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	const struct hzi_mhc_operand list[] = {
		{"x", x, HZI_MHC_X, da ? NEED : 0, &g.x, NULL},
		{"f", f, HZI_MHC_U, dq ? NEED : 0, &g.f, NULL},
		{"q", q, HZI_MHC_P, df || dbranch_bias ? NEED : 0, &g.q, NULL},
		{"a", a, HZI_MHC_A, 0, &g.a, NULL},
		{"branch_bias", branch_bias, HZI_MHC_CHANNELS, 0, &g.bias, NULL},
		{"dy", dy, HZI_MHC_X, NEED, &g.dy, NULL},
		{"dx", dx, HZI_MHC_X, OUT, &g.dx, NULL},
		{"df", df, HZI_MHC_U, OUT, &g.df, NULL},
		{"dq", dq, HZI_MHC_P, OUT, &g.dq, NULL},
		{"da", da, HZI_MHC_A, OUT, &g.da, NULL},
		{"dbranch_bias", dbranch_bias, HZI_MHC_CHANNELS, OUT, &g.dbias, NULL},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return hzi_mhc_streams_bwd(ctx, op, &g);
}

int hz_mhc_expand(hz_context *ctx, const hz_tensor *e, hz_tensor *x)
{
	static const char op[] = "mhc_expand";
	struct hzi_mhc_streams_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	const struct hzi_mhc_operand list[] = {
		{"e", e, HZI_MHC_U, NEED, &g.f, NULL},
		{"x", x, HZI_MHC_X, NEED | OUT, &g.y, NULL},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return streams(ctx, op, &g);
}

int hz_mhc_expand_bwd(hz_context *ctx, const hz_tensor *dx, hz_tensor *de)
{
	static const char op[] = "mhc_expand_bwd";
	struct hzi_mhc_streams_bwd_args g = {0};
	struct hzi_mhc_dims d = HZI_MHC_NO_DIMS;
	const struct hzi_mhc_operand list[] = {
		{"dx", dx, HZI_MHC_X, NEED, &g.dy, NULL},
		{"de", de, HZI_MHC_U, NEED | OUT, &g.df, NULL},
	};

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_mhc_operands(ctx, op, &d, list, LISTED(list), &g.s));
	return hzi_mhc_streams_bwd(ctx, op, &g);
}
