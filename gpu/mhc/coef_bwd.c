/*
 * coef_bwd.c - gradients of coefficients of hyper-connections, and of the operands of these
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A first pass over x, du and dy (mhc_streams_bwd) makes the gradients of the coefficients. From
 * these one kernel makes the gradients of the sums (projections). Then dx and dphi follow, in one
 * pass over x or in a pass each.
 */
#include <config.h>

#include "gpu/mhc/coef_bwd_wgmma.h"
#include "gpu/mhc/launch.h"

#define OP "mhc_pre_bwd"

/* Products on tensor cores */
enum { MMA_PROJECT = 1, MMA_DX = 2, MMA_SHARED_DX = 4, MMA_DPHI = 8 };

/* The results that a call needs */
struct needs {
	bool gradients;			/* of sums */
	bool coefs;			/* p and a, for dx */
	bool norm;			/* u was normalized */
	bool means, projects;
	bool shared_dx;			/* dx through sums: that of a copy of x */
	bool dphi;
};

static struct needs needs_of(const struct hzi_mhc_pre_bwd_args *a)
{
	const bool weights = a->dalpha[0] || a->dalpha[1] || a->dalpha[2] || a->dbias || a->dphi ||
			     a->dgain || (a->dp_in.data && a->du.data);
	const bool in_groups = a->phi && hzi_cuda_mhc_copies_x(&a->s, &a->rule);
	struct needs n = {
		.gradients = weights || (a->phi && a->dx.data),
		.coefs = a->dx.data && (a->du.data || a->dy.data),
		.norm = a->norm && a->du.data,
		.shared_dx = in_groups && a->dx.data,
		.dphi = a->phi && (a->dphi || a->dgain),
	};

	n.projects = a->phi && !a->saved && (n.gradients || n.coefs || n.norm);
	n.means = in_groups && (n.projects || n.gradients);
	return n;
}

/* The products that coef_mma.c supports. Means and results in the workspace are contiguous. */
static int mma_products(const struct hzi_mhc_pre_bwd_args *a, const struct needs *n)
{
	const int dtype = a->s.dtype;
	int products = 0;

	if (a->s.channels == 0 || a->s.channels % 4 != 0)
		return 0;
	if (n->projects && !hzi_cuda_mhc_mma_project_unsupported(&a->s, n->means ? NULL : &a->x,
								 a->phi, a->gain))
		products |= MMA_PROJECT;
	if (n->shared_dx)
		products |= MMA_SHARED_DX;
	if (a->dx.data && hzi_cuda_mhc_mma_dx_is_aligned(&a->dx, dtype) &&
	    hzi_cuda_mhc_mma_dx_is_aligned(&a->dy, dtype) &&
	    (n->norm || hzi_cuda_mhc_mma_dx_is_aligned(&a->du, dtype)) &&
	    (!a->phi || n->shared_dx || hzi_cuda_mhc_mma_dx_is_aligned(&a->x, dtype)))
		products |= MMA_DX;
	if (n->dphi && a->s.channels % 8 == 0 &&
	    (n->means || hzi_cuda_mhc_is_aligned(&a->x, dtype)))
		products |= MMA_DPHI;
	return products;
}

/* ---- Workspace ------------------------------------------------------------------------------- */

struct plan {
	struct needs needs;
	bool fused;			/* dx and dphi in one pass, by coef_bwd_fused.c */
	bool wgmma;			/* dx and dphi by coef_bwd_wgmma.c */
	bool direct;			/* dphi itself instead of partial sums */
	int mma;			/* products on tensor cores */
	struct hzi_mhc_projection projection;
	float *p, *a, *dp, *dp_tokens, *da, *draw, *own, *scalars, *shared, *partial, *dnorm;
	uint32_t *records;
	float *tokens;			/* of coef_bwd_wgmma.c, and terms: coefficients, draw */
	uint16_t *terms;
	struct hzi_mhc_phi_strips strips;
	float *du;
	int64_t blocks, norm_blocks;	/* of kernels that leave sums per block */
	int splits;
	size_t streams_at, bytes;	/* offset of the workspace of mhc_streams_bwd */
	struct hzi_mhc_streams_bwd_args streams;
};

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			   bool fused, enum hzi_mhc_products by)
{
	const int64_t T = a->s.tokens, S = a->s.groups, n = a->s.n, m = a->rule.m;
	const int64_t columns = n * a->s.channels;
	struct plan p = {.needs = needs_of(a), .fused = fused, .wgmma = by == HZI_MHC_WGMMA};
	const struct needs *const needs = &p.needs;
	const bool apart = !fused && !p.wgmma;

	p.mma = by != HZI_MHC_GENERIC ? mma_products(a, needs) : 0;
	p.projection = hzi_cuda_mhc_plan_projection(ctx, &(struct hzi_mhc_shape){
		.tokens = needs->means ? T : S, .groups = S, .channels = a->s.channels, .n = a->s.n,
	}, &a->rule, p.mma & MMA_PROJECT ? by : HZI_MHC_GENERIC, needs->projects, &p.bytes);
	if ((needs->coefs && apart) || needs->norm)
		p.p = hzi_cuda_mhc_take(ctx, &p.bytes, S * n);
	if (needs->coefs && apart)
		p.a = hzi_cuda_mhc_take(ctx, &p.bytes, S * n * n);
	if (needs->norm) {
		p.norm_blocks = min_of(T, 2 * hzi_cuda_device(ctx)->sms);
		p.du = hzi_cuda_mhc_take(ctx, &p.bytes, T * a->s.channels);
		if (a->dnorm)
			p.dnorm = hzi_cuda_mhc_take(ctx, &p.bytes, p.norm_blocks * a->s.channels);
	}
	if (needs->gradients) {
		p.blocks = hzi_cuda_mhc_gradient_blocks(&a->s);
		if (a->p_in.data)
			p.dp = a->dp_in.data;
		else if (a->du.data)
			p.dp = hzi_cuda_mhc_take(ctx, &p.bytes, S * n);
		if (needs->norm && p.dp)
			p.dp_tokens = S < T ? hzi_cuda_mhc_take(ctx, &p.bytes, T * n) : p.dp;
		if (a->dy.data)
			p.da = hzi_cuda_mhc_take(ctx, &p.bytes, S * n * n);
		if (a->phi && apart) {
			p.draw = hzi_cuda_mhc_take(ctx, &p.bytes, S * m);
			p.own = hzi_cuda_mhc_take(ctx, &p.bytes, 2 * S);
		}
		p.scalars = hzi_cuda_mhc_take(ctx, &p.bytes, p.blocks * (m + 3));
	}
	if (p.wgmma) {
		p.terms = (void *)hzi_cuda_mhc_take(ctx, &p.bytes,
						    T * HZI_MHC_BWD_WGMMA_TERMS / 2);
		if (a->dx.data) {
			p.tokens = hzi_cuda_mhc_take(ctx, &p.bytes, T * HZI_MHC_BWD_WGMMA_RECORD);
			p.strips = (struct hzi_mhc_phi_strips){
				.phi = a->phi, .gain = a->gain, .channels = a->s.channels,
				.strips = hzi_cuda_mhc_bwd_wgmma_strips(&a->s), .n = a->s.n, .m = m,
			};
			p.strips.to = (void *)hzi_cuda_mhc_take(
				ctx, &p.bytes, p.strips.strips * (HZI_MHC_STREAMS / 2) *
				HZI_MHC_BWD_WGMMA_TERMS * 64 / 2);
		}
	}
	if (needs->shared_dx)
		p.shared = hzi_cuda_mhc_take(ctx, &p.bytes, S * columns);
	if (needs->dphi) {
		p.splits = fused ? hzi_cuda_mhc_bwd_fused_splits(ctx, &a->s) :
			   p.wgmma ? hzi_cuda_mhc_bwd_wgmma_splits(ctx, &a->s) :
			   p.mma & MMA_DPHI ? hzi_cuda_mhc_mma_dphi_splits(ctx, &a->s) :
					      hzi_cuda_mhc_generic_dphi_splits(ctx, &a->s);
		p.direct = p.wgmma && p.splits == 1 && !a->gain && !a->dgain && !a->accumulate;
		if (!p.direct)
			p.partial = hzi_cuda_mhc_take(ctx, &p.bytes, p.splits * m * columns);
	}
	if (fused)
		p.records = (void *)hzi_cuda_mhc_take(ctx, &p.bytes,
						      hzi_cuda_mhc_bwd_fused_records(&a->s));
	p.streams = (struct hzi_mhc_streams_bwd_args){
		.s = a->s, .x = a->x, .dy = a->dy, .da = {p.da, n * n, n, 1},
	};
	/* The kernel of norm computes dp itself. */
	if (!needs->norm) {
		p.streams.du = a->du;
		p.streams.dp = hzi_cuda_mhc_coef(p.dp, n, 1);
	}
	p.streams_at = p.bytes;
	if (needs->gradients)
		p.bytes += hzi_cuda_mhc_mix_bwd_workspace(ctx, &p.streams);
	return p;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* Gradients of coefficients from du and dy, into dp and da */
static int coefficient_pass(struct hz_context *ctx, const struct plan *plan)
{
	void *const workspace = ctx->workspace;
	const size_t bytes = ctx->workspace_bytes;
	int status;

	if (!plan->needs.gradients || (!plan->streams.du.data && !plan->streams.dy.data))
		return HZ_OK;
	ctx->workspace = (char *)workspace + plan->streams_at;
	ctx->workspace_bytes = bytes - plan->streams_at;
	status = hzi_cuda_mhc_mix_bwd(ctx, &plan->streams);
	ctx->workspace = workspace;
	ctx->workspace_bytes = bytes;
	return status;
}

/* du of the branch input before normalization, and dnorm */
static int norm_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		     const struct plan *plan, const struct hzi_mhc_finish *finish)
{
	const struct hzi_mhc_norm_bwd p = {
		.of = {
			.x = a->x, .u = a->du, .p = a->p_in.data ? a->p_in : finish->p,
			.norm = a->norm,
			.tokens = a->s.tokens, .groups = a->s.groups, .channels = a->s.channels,
			.n = a->s.n, .dtype = a->s.dtype, .eps = a->rule.norm_eps,
			.aligned = hzi_cuda_mhc_norm_is_aligned(&a->x, &a->du, &a->s),
		},
		.du = plan->du, .dp = plan->dp_tokens, .dnorm = plan->dnorm,
	};
	const struct hzi_mhc_sum_rows dnorm = {
		.in = plan->dnorm, .out = a->dnorm, .rows = plan->norm_blocks,
		.width = a->s.channels, .stride = a->s.channels, .scale = 1,
		.accumulate = a->accumulate,
	};

	/* Without du, dnorm is a sum of no rows. */
	if (!plan->needs.norm)
		return a->dnorm ? hzi_cuda_mhc_sum_rows(ctx, OP, 1, &dnorm) : HZ_OK;
	HZ_CHECK(hzi_cuda_mhc_finish_coefs(ctx, OP, finish));
	HZ_CHECK(hzi_cuda_mhc_norm_bwd(ctx, &p, plan->norm_blocks));
	if (plan->dp_tokens && a->s.groups < a->s.tokens)
		HZ_CHECK(hzi_cuda_mhc_sum_rows(ctx, OP, a->s.groups, &(struct hzi_mhc_sum_rows){
			.in = plan->dp_tokens, .out = plan->dp,
			.rows = a->s.tokens / a->s.groups, .width = a->s.n, .stride = a->s.n,
			.scale = 1,
		}));
	return a->dnorm ? hzi_cuda_mhc_sum_rows(ctx, OP, 1, &dnorm) : HZ_OK;
}

/* Gradients of the sums, partial sums of dalpha and dbias; p and a for dx */
static int gradient_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			 const struct plan *plan, const struct hzi_mhc_sums *sums)
{
	const bool coefs = plan->needs.coefs;

	if ((!plan->needs.gradients && !coefs) || sums->groups == 0)
		return HZ_OK;
	return hzi_cuda_mhc_gradients(ctx, &(struct hzi_mhc_gradients){
		.sums = *sums, .rule = hzi_cuda_mhc_rule_of_copy(a->rule),
		.alpha = {a->alpha[0], a->alpha[1], a->alpha[2]},
		.bias = a->bias, .dp = a->dp, .dq = a->dq, .da = a->da, .p_in = a->p_in,
		.dp_own = a->p_in.data ? NULL : plan->dp, .da_own = plan->da,
		.draw = plan->draw, .own = plan->own, .p = coefs ? plan->p : NULL, .a = plan->a,
		.scalars = plan->scalars, .records = plan->records, .tokens = plan->tokens,
		.terms = plan->terms, .strips = plan->strips, .coefs = coefs,
		.common = hzi_mhc_is_common(&a->rule),
	});
}

static int dx_by(struct hz_context *ctx, const struct hzi_mhc_dx *p, int mma)
{
	if (p->channels == 0 || p->tokens == 0)
		return HZ_OK;
	if (mma && hzi_cuda_mhc_has_group_dx(p))
		return hzi_cuda_mhc_group_dx(ctx, p);
	return mma ? hzi_cuda_mhc_mma_dx(ctx, p) : hzi_cuda_mhc_generic_dx(ctx, p);
}

/* input: what was projected, x or means, of dtype input_dtype */
static int dx_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		   const struct plan *plan, const struct hzi_mhc_array *input, int input_dtype)
{
	struct hzi_mhc_dx weights = {
		.x = *input, .phi = a->phi, .gain = a->gain, .draw = plan->draw, .own = plan->own,
		.tokens = a->s.groups, .groups = a->s.groups, .channels = a->s.channels,
		.n = a->s.n, .m = a->rule.m, .dtype = input_dtype,
	};
	struct hzi_mhc_dx mix = weights;
	const int64_t length = hzi_cuda_mhc_tokens_per_group(&a->s);

	if (!a->dx.data)
		return HZ_OK;
	mix.tokens = a->s.tokens;
	mix.dtype = mix.dx_dtype = a->s.dtype;
	mix.du_dtype = plan->needs.norm ? HZ_F32 : a->s.dtype;
	mix.du = plan->needs.norm ? hzi_cuda_mhc_contiguous(plan->du, 1, a->s.channels) : a->du;
	mix.dy = a->dy;
	mix.dx = a->dx;
	mix.p = plan->p;
	mix.a = plan->a;
	mix.scale = 1;
	mix.accumulate = a->accumulate;
	if (plan->shared) {
		weights.dx = hzi_cuda_mhc_contiguous(plan->shared, a->s.n, a->s.channels);
		weights.dx_dtype = HZ_F32;
		weights.scale = 1.0f / (float)length;
		HZ_CHECK(dx_by(ctx, &weights, plan->mma & MMA_SHARED_DX));
		if (plan->projection.roots)
			HZ_CHECK(hzi_cuda_mhc_divide_bwd(ctx, &(struct hzi_mhc_divide_bwd_args){
				.s = {.tokens = a->s.groups, .channels = a->s.channels,
				      .n = a->s.n, .dtype = HZ_F32},
				.order = {a->s.channels, 1}, .x = input->data,
				.roots = plan->projection.roots, .d = plan->shared,
				.dx = weights.dx,
			}));
		mix.shared = plan->shared;
		mix.draw = mix.own = NULL;
	}
	return dx_by(ctx, &mix, plan->mma & MMA_DX);
}

static int dphi_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		     const struct plan *plan, const struct hzi_mhc_array *input, int input_dtype)
{
	const struct hzi_mhc_dphi p = {
		.x = *input, .draw = plan->draw, .partial = plan->partial, .tokens = a->s.groups,
		.channels = a->s.channels, .n = a->s.n, .m = a->rule.m, .dtype = input_dtype,
		.splits = plan->splits,
	};

	if (!plan->partial)
		return HZ_OK;
	return plan->mma & MMA_DPHI ? hzi_cuda_mhc_mma_dphi(ctx, &p) :
				      hzi_cuda_mhc_generic_dphi(ctx, &p);
}

static int run(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a, bool fused,
	       enum hzi_mhc_products by)
{
	const struct plan plan = plan_of(ctx, a, fused, by);
	struct hzi_mhc_finish finish = {
		.sums = {.groups = a->s.groups, .splits = 1,
			 .columns = (float)(a->s.n * a->s.channels)},
		.rule = hzi_cuda_mhc_rule_of_copy(a->rule),
		.alpha = {a->alpha[0], a->alpha[1], a->alpha[2]},
		.bias = a->bias, .p = hzi_cuda_mhc_coef(plan.p, a->s.n, 1),
	};
	struct hzi_mhc_array input = a->x;
	int input_dtype = a->s.dtype;

	if (plan.needs.means)
		HZ_CHECK(hzi_cuda_mhc_means(ctx, OP, &a->s, &a->rule, &a->x, &plan.projection,
					    &input, &input_dtype));
	if (plan.needs.projects) {
		HZ_CHECK(hzi_cuda_mhc_project(ctx, OP, &a->s, a->rule.m, &input, input_dtype,
					      a->phi, a->gain, &plan.projection));
		hzi_cuda_mhc_set_sums(&finish.sums, &plan.projection, &finish.rule, &a->s, &input,
				      input_dtype);
	} else if (a->phi) {
		finish.sums.data = a->saved;
		finish.sums.saved = 1;
	}
	HZ_CHECK(norm_pass(ctx, a, &plan, &finish));
	HZ_CHECK(coefficient_pass(ctx, &plan));
	HZ_CHECK(gradient_pass(ctx, a, &plan, &finish.sums));
	if (fused) {
		HZ_CHECK(hzi_cuda_mhc_bwd_fused(ctx, a, plan.records, plan.partial));
	} else if (plan.wgmma) {
		if (a->dx.data)
			HZ_CHECK(hzi_cuda_mhc_wgmma_dx(ctx, a, plan.tokens, plan.terms,
						       plan.strips.to));
		if (plan.needs.dphi)
			HZ_CHECK(hzi_cuda_mhc_wgmma_dphi(ctx, a, plan.terms, plan.direct ? a->dphi :
							 plan.partial, plan.splits));
	} else {
		HZ_CHECK(dx_pass(ctx, a, &plan, &input, input_dtype));
		HZ_CHECK(dphi_pass(ctx, a, &plan, &input, input_dtype));
	}
	/* Finishes dphi and dgain from the splits' sums, dalpha and dbias from the blocks' sums. */
	return hzi_cuda_mhc_sum_weights(ctx, &(struct hzi_mhc_sum_weights){
		.partial = plan.partial, .phi = a->phi, .gain = a->gain, .scalars = plan.scalars,
		.dphi = a->dphi, .dgain = a->dgain, .dbias = a->dbias,
		.dalpha = {a->dalpha[0], a->dalpha[1], a->dalpha[2]},
		.columns = plan.partial ? a->s.n * a->s.channels : 0, .blocks = plan.blocks,
		.m = a->rule.m, .splits = plan.splits, .accumulate = a->accumulate,
	});
}

/* ---- Routes ---------------------------------------------------------------------------------- */

size_t hzi_cuda_mhc_coef_bwd_fused_workspace(const struct hz_context *ctx, const void *args)
{
	return plan_of(ctx, args, true, HZI_MHC_MMA).bytes;
}

int hzi_cuda_mhc_coef_bwd_fused(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, true, HZI_MHC_MMA);
}

size_t hzi_cuda_mhc_coef_bwd_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	return plan_of(ctx, args, false, HZI_MHC_WGMMA).bytes;
}

int hzi_cuda_mhc_coef_bwd_wgmma(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, false, HZI_MHC_WGMMA);
}

/* Products that coef_mma.c does not support run on the kernels of coef_generic_bwd.cu. */
const char *hzi_cuda_mhc_coef_bwd_mma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct needs needs = needs_of(args);

	(void)ctx;
	return mma_products(args, &needs) ? NULL :
	       "no product has aligned rows of a multiple of 4 or 8 channels";
}

size_t hzi_cuda_mhc_coef_bwd_mma_workspace(const struct hz_context *ctx, const void *args)
{
	return plan_of(ctx, args, false, HZI_MHC_MMA).bytes;
}

int hzi_cuda_mhc_coef_bwd_mma(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, false, HZI_MHC_MMA);
}

size_t hzi_cuda_mhc_coef_bwd_generic_workspace(const struct hz_context *ctx, const void *args)
{
	return plan_of(ctx, args, false, HZI_MHC_GENERIC).bytes;
}

int hzi_cuda_mhc_coef_bwd_generic(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, false, HZI_MHC_GENERIC);
}
