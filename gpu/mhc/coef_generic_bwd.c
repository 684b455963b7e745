/*
 * coef_generic_bwd.c - launchers of gradients of coefficients of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A pass over x, du and dy first (mhc_streams_bwd) for the gradients of coefficients; these give
 * those of sums; then a pass for dx, and one for dphi.
 */
#include <config.h>

#include <assert.h>

#include "gpu/mhc/coef_launch.h"
#include "lib/mhc/mhc_math.h"

#define OP "mhc_pre_bwd"
#define DPHI_SPLITS 64

/* What a call needs, and where in the workspace it is */
struct plan {
	bool gradients;			/* those of sums are wanted */
	bool coefs;			/* p and a are */
	bool norm;			/* u was divided by its root mean square */
	bool means, projects;
	bool joint;			/* dx and dphi in one pass */
	bool wide;			/* dphi by mhc_wide_dphi */
	struct hzi_pre_room room;
	float *p, *a, *dp, *dp_tokens, *da, *draw, *own, *small, *shared, *partial, *dnorm;
	uint32_t *records;
	float *du;
	int64_t blocks, norm_blocks;	/* of kernels that leave sums of blocks */
	int splits;
	size_t streams_at, bytes;	/* the workspace of mhc_streams_bwd */
	struct hzi_mhc_streams_bwd_args streams;
};

/* Splits of tokens so that blocks make all multiprocessors busy */
static int dphi_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t wanted = 4 * hzi_cuda_device(ctx)->multiprocessors;
	const int64_t blocks = ceil_div(s->n * s->channels, HZI_PRE_THREADS);
	const int64_t most = min_of(ceil_div(s->groups, 64), DPHI_SPLITS);
	const int64_t splits = min_of(ceil_div(wanted, blocks ? blocks : 1), most);

	return splits < 1 ? 1 : (int)splits;
}

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	const int64_t T = a->s.tokens, S = a->s.groups, n = a->s.n, m = a->rule.m;
	const int64_t columns = n * a->s.channels;
	const bool weights = a->dalpha || a->dbias || a->dphi || a->dgain;
	struct plan p = {.bytes = 0};

	p.gradients = weights || (a->phi && a->dx.data);
	p.norm = a->norm && a->du.data;
	p.coefs = a->dx.data && (a->du.data || a->dy.data);
	p.joint = hzi_pre_joint_takes(ctx, a);
	p.projects = a->phi && !a->saved && (p.gradients || p.coefs || p.norm);
	p.means = a->phi && S != T && (p.projects || p.gradients);
	p.room = hzi_pre_room(ctx, &(struct hzi_mhc_shape){
		.tokens = p.means ? T : S, .groups = S, .channels = a->s.channels, .n = a->s.n,
	}, (int)m, &a->x, a->phi, a->gain, p.projects, &p.bytes);
	if ((p.coefs && !p.joint) || p.norm)
		p.p = hzi_pre_take(ctx, &p.bytes, S * n);
	if (p.coefs && !p.joint)
		p.a = hzi_pre_take(ctx, &p.bytes, S * n * n);
	if (p.norm) {
		p.norm_blocks = min_of(T, 2 * hzi_cuda_device(ctx)->multiprocessors);
		p.du = hzi_pre_take(ctx, &p.bytes, T * a->s.channels);
		if (a->dnorm)
			p.dnorm = hzi_pre_take(ctx, &p.bytes, p.norm_blocks * a->s.channels);
	}
	if (p.gradients) {
		p.blocks = ceil_div(S, HZI_PRE_GROUPS);
		if (a->du.data)
			p.dp = hzi_pre_take(ctx, &p.bytes, S * n);
		if (p.norm)
			p.dp_tokens = S < T ? hzi_pre_take(ctx, &p.bytes, T * n) : p.dp;
		if (a->dy.data)
			p.da = hzi_pre_take(ctx, &p.bytes, S * n * n);
		if (a->phi && !p.joint) {
			p.draw = hzi_pre_take(ctx, &p.bytes, S * m);
			p.own = hzi_pre_take(ctx, &p.bytes, S);
		}
		p.small = hzi_pre_take(ctx, &p.bytes, p.blocks * (m + 3));
	}
	if (a->phi && S < T && a->dx.data)
		p.shared = hzi_pre_take(ctx, &p.bytes, S * columns);
	if (a->phi && (a->dphi || a->dgain)) {
		/* Means are f32, back to back. */
		p.wide = !p.joint && (p.means ? a->s.channels > 0 && a->s.channels % 8 == 0 :
				      hzi_pre_wide_takes_dphi(&a->x, a->s.channels, a->s.dtype));
		p.splits = p.joint ? hzi_pre_joint_splits(ctx, &a->s) :
			   p.wide ? hzi_pre_wide_splits(ctx, &a->s) : dphi_splits(ctx, &a->s);
		p.partial = hzi_pre_take(ctx, &p.bytes, p.splits * m * columns);
	}
	if (p.joint)
		p.records = (uint32_t *)(void *)hzi_pre_take(ctx, &p.bytes,
							     hzi_pre_joint_records(&a->s));
	p.streams = (struct hzi_mhc_streams_bwd_args){
		.s = a->s, .x = a->x, .dy = a->dy, .da = {p.da, n * n, n, 1},
	};
	/* norm's kernel gives dp itself. */
	if (!p.norm) {
		p.streams.du = a->du;
		p.streams.dp = hzi_pre_coef(p.dp, n, 1);
	}
	p.streams_at = p.bytes;
	if (p.gradients)
		p.bytes += hzi_cuda_mhc_streams_bwd_workspace(ctx, &p.streams);
	return p;
}

size_t hzi_cuda_mhc_pre_bwd_workspace(const struct hz_context *ctx,
				      const struct hzi_mhc_pre_bwd_args *a)
{
	return plan_of(ctx, a).bytes;
}

/* The gradients of coefficients that du and dy give, in dp and da */
static int coefficient_pass(struct hz_context *ctx, const struct plan *plan)
{
	void *const workspace = ctx->workspace;
	const size_t bytes = ctx->workspace_bytes;
	int status;

	if (!plan->gradients || (!plan->streams.du.data && !plan->streams.dy.data))
		return HZ_OK;
	ctx->workspace = (char *)workspace + plan->streams_at;
	ctx->workspace_bytes = bytes - plan->streams_at;
	status = hzi_cuda_mhc_streams_bwd(ctx, &plan->streams);
	ctx->workspace = workspace;
	ctx->workspace_bytes = bytes;
	return status;
}

/* du of u before it was divided, and dnorm */
static int norm_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		     const struct plan *plan, const struct hzi_mhc_finish *finish)
{
	const struct hzi_mhc_norm_bwd p = {
		.of = {
			.x = a->x, .u = a->du, .p = finish->p, .norm = a->norm,
			.tokens = a->s.tokens, .groups = a->s.groups, .channels = a->s.channels,
			.n = a->s.n, .dtype = a->s.dtype, .eps = a->rule.norm_eps,
			.near = hzi_pre_norm_near(&a->x, &a->du, &a->s),
		},
		.du = plan->du, .dp = plan->dp_tokens, .dnorm = plan->dnorm,
	};
	const struct hzi_mhc_sum_rows dnorm = {
		.in = plan->dnorm, .out = a->dnorm, .rows = plan->norm_blocks,
		.width = a->s.channels, .stride = a->s.channels, .scale = 1,
		.accumulate = a->accumulate,
	};

	/* Without du, dnorm is a sum of no rows. */
	if (!plan->norm)
		return a->dnorm ? hzi_pre_sum_rows(ctx, OP, 1, &dnorm) : HZ_OK;
	HZ_CHECK(hzi_pre_coefs(ctx, OP, finish));
	HZ_CHECK(hzi_mhc_launch(ctx, OP, HZI_KERNEL_mhc_pre_norm_bwd, plan->norm_blocks, 1,
				HZI_NORM_THREADS, 0, &p, sizeof(p)));
	if (plan->dp_tokens && a->s.groups < a->s.tokens)
		HZ_CHECK(hzi_pre_sum_rows(ctx, OP, a->s.groups, &(struct hzi_mhc_sum_rows){
			.in = plan->dp_tokens, .out = plan->dp,
			.rows = a->s.tokens / a->s.groups, .width = a->s.n, .stride = a->s.n,
			.scale = 1,
		}));
	return a->dnorm ? hzi_pre_sum_rows(ctx, OP, 1, &dnorm) : HZ_OK;
}

/* The gradients of sums, and sums of blocks of dalpha and dbias; p and a */
static int gradient_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			 const struct plan *plan, const struct hzi_mhc_sums *sums)
{
	const struct hzi_mhc_gradients p = {
		.sums = *sums, .rule = a->rule, .alpha = a->alpha, .bias = a->bias, .dp = a->dp,
		.dq = a->dq, .da = a->da, .dp_own = plan->dp, .da_own = plan->da,
		.draw = plan->draw, .own = plan->own, .p = plan->coefs ? plan->p : NULL,
		.a = plan->a, .small = plan->small, .records = plan->records, .coefs = plan->coefs,
	};
	const int64_t history = min_of(a->rule.iterations, HZI_MHC_HISTORY);
	const size_t shared = a->rule.n == 4 ? HZI_PRE_GRADIENTS_BYTES((size_t)history) : 0;
	const int kernel = a->rule.n == 4 ? HZI_KERNEL_mhc_pre_gradients_4 :
					    HZI_KERNEL_mhc_pre_gradients_any;

	if ((!plan->gradients && !plan->coefs) || sums->groups == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, OP, kernel, ceil_div(sums->groups, HZI_PRE_GROUPS), 1,
			      HZI_PRE_GROUPS, shared, &p, sizeof(p));
}

static int launch_dx(struct hz_context *ctx, const struct hzi_mhc_dx *p)
{
	const int64_t strips = ceil_div(p->channels, HZI_PRE_THREADS);

	if (p->channels == 0 || p->tokens == 0)
		return HZ_OK;
	if (hzi_pre_wide_takes_dx(ctx, p))
		return hzi_pre_wide_dx(ctx, p);
	return hzi_mhc_launch(ctx, OP, HZI_KERNEL_mhc_pre_dx,
			      strips * ceil_div(p->tokens, HZI_PRE_LANES), 1, HZI_PRE_THREADS, 0, p,
			      sizeof(*p));
}

/* dx of four streams whose tokens share coefficients */
static int launch_groups(struct hz_context *ctx, const struct hzi_mhc_dx *p)
{
	const int64_t blocks = ceil_div(p->channels / 8, HZI_PRE_THREADS) * p->groups;
	const int64_t wanted = 16 * hzi_cuda_device(ctx)->multiprocessors;
	const int kernel = p->dtype == HZ_F16 ? HZI_KERNEL_mhc_pre_dx_groups_f16 :
						HZI_KERNEL_mhc_pre_dx_groups_bf16;
	int64_t splits;

	assert(blocks > 0);
	splits = min_of(ceil_div(wanted, blocks), ceil_div(p->tokens / p->groups, 8));
	return hzi_mhc_launch(ctx, OP, kernel, blocks, splits, HZI_PRE_THREADS, 0, p, sizeof(*p));
}

static bool groups_quick(const struct hzi_mhc_dx *p)
{
	const struct hzi_mhc_array *all[] = {&p->du, &p->dy, &p->dx};

	for (int i = 0; i < 3; i++) {
		if (all[i]->data && !hzi_pre_quick(all[i], p->dtype))
			return false;
	}
	return p->n == 4 && p->dtype != HZ_F32 && p->du_dtype == p->dtype && p->channels > 0 &&
	       p->channels % 8 == 0 && p->tokens > p->groups && p->groups > 0;
}

/* from: what was projected, of dtype from_dtype */
static int dx_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		   const struct plan *plan, const struct hzi_mhc_array *from, int from_dtype)
{
	struct hzi_mhc_dx weights = {
		.x = *from, .phi = a->phi, .gain = a->gain, .draw = plan->draw, .own = plan->own,
		.tokens = a->s.groups, .groups = a->s.groups, .channels = a->s.channels,
		.n = a->s.n, .m = a->rule.m, .dtype = from_dtype,
	};
	struct hzi_mhc_dx mix = weights;
	const int64_t length = a->s.groups ? a->s.tokens / a->s.groups : 0;

	if (!a->dx.data)
		return HZ_OK;
	mix.tokens = a->s.tokens;
	mix.dtype = mix.dx_dtype = a->s.dtype;
	mix.du_dtype = plan->norm ? HZ_F32 : a->s.dtype;
	mix.du = plan->norm ? hzi_pre_array(plan->du, 1, a->s.channels) : a->du;
	mix.dy = a->dy;
	mix.dx = a->dx;
	mix.p = plan->p;
	mix.a = plan->a;
	mix.scale = 1;
	mix.accumulate = a->accumulate;
	if (plan->shared) {
		weights.dx = hzi_pre_array(plan->shared, a->s.n, a->s.channels);
		weights.dx_dtype = HZ_F32;
		weights.scale = 1.0f / (float)length;
		HZ_CHECK(launch_dx(ctx, &weights));
		mix.shared = plan->shared;
		mix.draw = mix.own = NULL;
	}
	return groups_quick(&mix) ? launch_groups(ctx, &mix) : launch_dx(ctx, &mix);
}

static int dphi_pass(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		     const struct plan *plan, const struct hzi_mhc_array *from, int from_dtype)
{
	const int64_t columns = a->s.n * a->s.channels;
	const struct hzi_mhc_dphi p = {
		.x = *from, .draw = plan->draw, .partial = plan->partial, .tokens = a->s.groups,
		.channels = a->s.channels, .n = a->s.n, .m = a->rule.m, .dtype = from_dtype,
		.splits = plan->splits,
	};
	const int kernel = p.m <= 8 ? HZI_KERNEL_mhc_pre_dphi_8 :
			   p.m <= 24 ? HZI_KERNEL_mhc_pre_dphi_24 : HZI_KERNEL_mhc_pre_dphi_80;

	if (!plan->partial)
		return HZ_OK;
	if (plan->wide)
		return hzi_pre_wide_dphi(ctx, &p);
	return hzi_mhc_launch(ctx, OP, kernel, ceil_div(columns, HZI_PRE_THREADS), plan->splits,
			      HZI_PRE_THREADS, 0, &p, sizeof(p));
}

/* dphi and dgain from sums of splits, dalpha and dbias from those of blocks */
static int sum_weights(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		       const struct plan *plan)
{
	const struct hzi_mhc_sum_weights p = {
		.partial = plan->partial, .phi = a->phi, .gain = a->gain, .small = plan->small,
		.dphi = a->dphi, .dgain = a->dgain, .dalpha = a->dalpha, .dbias = a->dbias,
		.columns = plan->partial ? a->s.n * a->s.channels : 0, .blocks = plan->blocks,
		.m = a->rule.m, .splits = plan->splits, .alphas = a->rule.m == a->rule.n ? 1 : 3,
		.accumulate = a->accumulate,
	};
	const int64_t blocks = ceil_div(p.columns, HZI_PRE_SUM_COLUMNS) + (a->dalpha || a->dbias);

	if (blocks == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, OP, HZI_KERNEL_mhc_pre_sum_weights, blocks, 1, 256, 0, &p,
			      sizeof(p));
}

int hzi_cuda_mhc_pre_bwd(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	const struct plan plan = plan_of(ctx, a);
	struct hzi_mhc_finish finish = {
		.sums = {.groups = a->s.groups, .splits = 1,
			 .columns = (float)(a->s.n * a->s.channels)},
		.rule = a->rule, .alpha = a->alpha, .bias = a->bias,
		.p = hzi_pre_coef(plan.p, a->s.n, 1),
	};
	struct hzi_mhc_array from = a->x;
	int from_dtype = a->s.dtype;

	if (plan.means)
		HZ_CHECK(hzi_pre_means(ctx, OP, &a->s, &a->x, &plan.room, &from, &from_dtype));
	if (plan.projects) {
		HZ_CHECK(hzi_pre_project(ctx, OP, &a->s, a->rule.m, &from, from_dtype, a->phi,
					 a->gain, &plan.room));
		finish.sums.data = plan.room.sums;
		finish.sums.splits = plan.room.parts ? 1 : plan.room.splits;
	} else if (a->phi) {
		finish.sums.data = a->saved;
		finish.sums.saved = 1;
	}
	HZ_CHECK(norm_pass(ctx, a, &plan, &finish));
	HZ_CHECK(coefficient_pass(ctx, &plan));
	HZ_CHECK(gradient_pass(ctx, a, &plan, &finish.sums));
	if (plan.joint) {
		HZ_CHECK(hzi_pre_joint(ctx, a, plan.records, plan.partial));
	} else {
		HZ_CHECK(dx_pass(ctx, a, &plan, &from, from_dtype));
		HZ_CHECK(dphi_pass(ctx, a, &plan, &from, from_dtype));
	}
	return sum_weights(ctx, a, &plan);
}
