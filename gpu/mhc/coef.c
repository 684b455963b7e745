/*
 * coef.c - coefficients of hyper-connections: means, projection, coefficients, branch inputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Routes coef_gemv, coef_wgmma, coef_mma and coef_generic launch a kernel for each step; they differ
 * in the projection.
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "lib/mhc/mhc_math.h"

#define OP "mhc_pre"
#define FEW_SPLITS 16		/* that the kernels of coefficients of more than 4 streams add up */

/* ---- Means and projection -------------------------------------------------------------------- */

struct hzi_mhc_projection hzi_cuda_mhc_plan_projection(const struct hz_context *ctx,
						  const struct hzi_mhc_shape *s,
						       const struct hzi_mhc_rule *rule,
						       enum hzi_mhc_products by, bool projects,
						       size_t *used)
{
	const int64_t columns = s->n * s->channels;
	const int m = rule->m;
	struct hzi_mhc_projection to = {.splits = 1, .mean_splits = 1, .by = by};

	if (hzi_cuda_mhc_copies_x(s, rule))
		to.means = hzi_cuda_mhc_take(ctx, used, s->groups * columns);
	if (s->groups != s->tokens) {
		to.mean_splits = hzi_cuda_mhc_mean_splits(ctx, s);
		to.mean_sums = hzi_cuda_mhc_take(ctx, used, to.mean_splits * s->groups * columns);
	}
	if (rule->rms == HZ_MHC_RMS_STREAM)
		to.roots = hzi_cuda_mhc_take(ctx, used, s->groups * s->n * 2);
	if (!projects)
		return to;
	if (by == HZI_MHC_WGMMA)
		to.phi = hzi_cuda_mhc_take(ctx, used, hzi_cuda_mhc_wgmma_phi_floats(s));
	to.splits = by == HZI_MHC_WGMMA ? hzi_cuda_mhc_wgmma_project_splits(ctx, s) :
		    by == HZI_MHC_MMA ? hzi_cuda_mhc_mma_project_splits(ctx, s) :
		    by == HZI_MHC_GEMV ? hzi_cuda_mhc_gemv_project_splits(ctx, s) :
					hzi_cuda_mhc_generic_project_splits(ctx, s);
	if (by != HZI_MHC_GENERIC && to.splits > (s->n > 4 && by != HZI_MHC_GEMV ? FEW_SPLITS : 1))
		to.parts = hzi_cuda_mhc_take(ctx, used, to.splits * s->groups * (m + 1));
	to.sums = hzi_cuda_mhc_take(ctx, used, (to.parts ? 1 : to.splits) * s->groups * (m + 1));
	return to;
}

/* Means of groups of several tokens */
static int group_means(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
		       const struct hzi_mhc_array *x, const struct hzi_mhc_projection *to)
{
	const int64_t width = s->groups * s->n * s->channels;
	const int64_t length = hzi_cuda_mhc_tokens_per_group(s);

	HZ_CHECK(hzi_cuda_mhc_mean_sums(ctx, op, &(struct hzi_mhc_means){
		.x = *x, .sums = to->mean_sums, .tokens = s->tokens, .groups = s->groups,
		.channels = s->channels, .n = s->n, .dtype = s->dtype,
		.vectorized = hzi_cuda_mhc_is_aligned(x, s->dtype), .splits = to->mean_splits,
	}));
	return hzi_cuda_mhc_sum_rows(ctx, op, 1, &(struct hzi_mhc_sum_rows){
		.in = to->mean_sums, .out = to->means, .rows = to->mean_splits, .width = width,
		.stride = width, .scale = length > 0 ? 1.0f / (float)length : 0,
	});
}

int hzi_cuda_mhc_means(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
		       const struct hzi_mhc_rule *rule,
		       const struct hzi_mhc_array *x, const struct hzi_mhc_projection *to,
		       struct hzi_mhc_array *input, int *dtype)
{
	const int64_t columns = s->n * s->channels;
	struct hzi_mhc_divide_args divide = {
		.s = *s, .rule = *rule, .order = {s->channels, 1}, .x = *x, .to = to->means,
		.roots = to->roots,
	};

	*input = *x;
	*dtype = s->dtype;
	if (!hzi_cuda_mhc_copies_x(s, rule))
		return HZ_OK;
	*input = hzi_cuda_mhc_contiguous(to->means, s->n, s->channels);
	*dtype = HZ_F32;
	if (columns == 0 || s->groups == 0)
		return HZ_OK;
	if (s->groups != s->tokens)
		HZ_CHECK(group_means(ctx, op, s, x, to));
	if (rule->rms != HZ_MHC_RMS_STREAM)
		return HZ_OK;
	divide.s.tokens = s->groups;
	if (s->groups != s->tokens) {
		divide.x = *input;
		divide.s.dtype = HZ_F32;
	}
	return hzi_cuda_mhc_divide(ctx, &divide);
}

int hzi_cuda_mhc_project(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
			 int m, const struct hzi_mhc_array *input, int dtype, const float *phi,
			 const float *gain, const struct hzi_mhc_projection *to)
{
	const struct hzi_mhc_project p = {
		.x = *input, .phi = phi, .gain = gain, .sums = to->parts ? to->parts : to->sums,
		.groups = s->groups, .channels = s->channels, .n = s->n, .m = m, .dtype = dtype,
		.vectorized = hzi_cuda_mhc_is_aligned(input, dtype), .splits = to->splits,
	};

	if (s->groups == 0)
		return HZ_OK;
	HZ_CHECK(to->by == HZI_MHC_WGMMA ? hzi_cuda_mhc_wgmma_project(ctx, op, &p, to->phi) :
		 to->by == HZI_MHC_MMA ? hzi_cuda_mhc_mma_project(ctx, op, &p) :
		 to->by == HZI_MHC_GEMV ? hzi_cuda_mhc_gemv_project(ctx, op, &p) :
					 hzi_cuda_mhc_generic_project(ctx, op, &p));
	if (!to->parts)
		return HZ_OK;
	return hzi_cuda_mhc_sum_rows(ctx, op, 1, &(struct hzi_mhc_sum_rows){
		.in = to->parts, .out = to->sums, .rows = to->splits,
		.width = s->groups * (m + 1), .stride = s->groups * (m + 1), .scale = 1,
	});
}

void hzi_cuda_mhc_set_sums(struct hzi_mhc_sums *sums, const struct hzi_mhc_projection *of,
			   const struct hzi_mhc_rule *rule, const struct hzi_mhc_shape *s,
			   const struct hzi_mhc_array *input, int dtype)
{
	sums->data = of->sums;
	sums->splits = of->parts ? 1 : of->splits;
	sums->x = *input;
	sums->dtype = dtype;
	sums->channels = s->channels;
	sums->least = hzi_mhc_least_square(rule);
}

/* ---- What all routes share ------------------------------------------------------------------- */

static int branch_input(struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
			const struct hzi_mhc_coef *p)
{
	const struct hzi_mhc_array *x = hzi_cuda_mhc_coef_x(a);

	if (a->p_in.data)
		p = &a->p_in;
	if (!a->u.data || a->s.tokens == 0 || a->s.channels == 0)
		return HZ_OK;
	if (!a->norm)
		return hzi_cuda_mhc_mix(ctx, &(struct hzi_mhc_streams_args){
			.s = a->s, .x = *x, .u = a->u, .p = *p,
		});
	return hzi_cuda_mhc_norm(ctx, &(struct hzi_mhc_norm){
		.x = *x, .u = a->u, .p = *p, .norm = a->norm, .tokens = a->s.tokens,
		.groups = a->s.groups, .channels = a->s.channels, .n = a->s.n,
		.dtype = a->s.dtype, .eps = a->rule.norm_eps,
		.aligned = hzi_cuda_mhc_norm_is_aligned(x, &a->u, &a->s),
	});
}

/* Workspace for p if u needs it in another launch and the caller does not want it; else NULL. */
static float *take_p(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a, bool makes_u,
		     size_t *used)
{
	if (!a->u.data || a->p.data || a->p_in.data || (makes_u && !a->norm))
		return NULL;
	return hzi_cuda_mhc_take(ctx, used, a->s.groups * a->s.n);
}

size_t hzi_cuda_mhc_coef_in_one_launch_workspace(const struct hz_context *ctx,
						 const struct hzi_mhc_pre_args *a, bool makes_u)
{
	size_t used = 0;

	take_p(ctx, a, makes_u, &used);
	return used;
}

int hzi_cuda_mhc_coef_in_one_launch(struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
				    bool makes_y, bool makes_u,
				    int (*launch)(struct hz_context *ctx,
						  const struct hzi_mhc_pre_args *a))
{
	struct hzi_mhc_pre_args one = *a;
	size_t used = 0;
	float *const p = take_p(ctx, a, makes_u, &used);

	if (p)
		one.p = hzi_cuda_mhc_coef(p, a->s.n, 1);
	one.x = *hzi_cuda_mhc_coef_x(a);
	if (!makes_y) {
		if (a->post.y.data)
			HZ_CHECK(hzi_cuda_mhc_mix(ctx, &a->post));
		one.post = (struct hzi_mhc_streams_args){.s = a->s};
	}
	if (a->norm)
		one.u.data = NULL;	/* The norm kernel makes u. */
	HZ_CHECK(launch(ctx, &one));
	return makes_u && !a->norm ? HZ_OK : branch_input(ctx, a, &one.p);
}

/* ---- A launch for each step ------------------------------------------------------------------ */

struct plan {
	struct hzi_mhc_projection to;
	float *p;			/* workspace, if the caller does not want p */
	size_t bytes;
};

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
			   enum hzi_mhc_products by)
{
	struct plan plan = {.bytes = 0};

	if (a->phi)
		plan.to = hzi_cuda_mhc_plan_projection(ctx, &a->s, &a->rule, by, true,
						       &plan.bytes);
	plan.p = take_p(ctx, a, false, &plan.bytes);
	return plan;
}

int hzi_cuda_mhc_coef_by_launches(struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
				  enum hzi_mhc_products by)
{
	const struct plan plan = plan_of(ctx, a, by);
	struct hzi_mhc_finish finish = {
		.sums = {.groups = a->s.groups, .splits = 1,
			 .columns = (float)(a->s.n * a->s.channels)},
		.rule = hzi_cuda_mhc_rule_of_copy(a->rule),
		.alpha = {a->alpha[0], a->alpha[1], a->alpha[2]}, .bias = a->bias,
		.p = a->p, .q = a->q,
		.a = a->a, .saved = a->saved,
	};

	if (plan.p)
		finish.p = hzi_cuda_mhc_coef(plan.p, a->s.n, 1);
	if (a->post.y.data)
		HZ_CHECK(hzi_cuda_mhc_mix(ctx, &a->post));
	if (a->phi) {
		struct hzi_mhc_array input;
		int dtype;

		HZ_CHECK(hzi_cuda_mhc_means(ctx, OP, &a->s, &a->rule, hzi_cuda_mhc_coef_x(a),
					    &plan.to, &input, &dtype));
		HZ_CHECK(hzi_cuda_mhc_project(ctx, OP, &a->s, a->rule.m, &input, dtype, a->phi,
					      a->gain, &plan.to));
		hzi_cuda_mhc_set_sums(&finish.sums, &plan.to, &finish.rule, &a->s, &input, dtype);
	}
	HZ_CHECK(hzi_cuda_mhc_finish_coefs(ctx, OP, &finish));
	return branch_input(ctx, a, &finish.p);
}

size_t hzi_cuda_mhc_coef_by_launches_workspace(const struct hz_context *ctx,
					       const struct hzi_mhc_pre_args *a,
					       enum hzi_mhc_products by)
{
	return plan_of(ctx, a, by).bytes;
}

const char *hzi_cuda_mhc_coef_mma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;

	(void)ctx;
	if (!a->phi)
		return "phi is NULL";
	/* Means are contiguous. */
	return hzi_cuda_mhc_mma_project_unsupported(
		&a->s, hzi_cuda_mhc_copies_x(&a->s, &a->rule) ? NULL : hzi_cuda_mhc_coef_x(a),
		a->phi, a->gain);
}

size_t hzi_cuda_mhc_coef_mma_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches_workspace(ctx, args, HZI_MHC_MMA);
}

int hzi_cuda_mhc_coef_mma(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches(ctx, args, HZI_MHC_MMA);
}

size_t hzi_cuda_mhc_coef_generic_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches_workspace(ctx, args, HZI_MHC_GENERIC);
}

int hzi_cuda_mhc_coef_generic(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches(ctx, args, HZI_MHC_GENERIC);
}
