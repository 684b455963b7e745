/*
 * coef_generic.c - launchers of coefficients of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_launch.h"

#define SPLITS 32			/* of columns, at most: a thread sums them */
#define MEAN_SPLITS 64

bool hzi_pre_quick(const struct hzi_mhc_array *x, int dtype)
{
	const int64_t size = (int64_t)hz_dtype_size(dtype);

	return x->channel == 1 && (uintptr_t)x->data % 16 == 0 && x->token * size % 16 == 0 &&
	       x->stream * size % 16 == 0;
}

static bool is_small(int64_t n)
{
	return n > -(INT32_MAX / 16) && n < INT32_MAX / 16;
}

bool hzi_pre_near(const struct hzi_mhc_array *x, int64_t tokens)
{
	return !x->data || (hzi_pre_quick(x, HZ_F16) && is_small(x->token) && is_small(x->stream) &&
			    is_small(tokens));
}

bool hzi_pre_mapped(const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, int streams)
{
	return !x->data || (hzi_pre_near(x, s->tokens) && x->token >= s->channels &&
			    (streams == 1 || x->stream >= s->channels));
}

int hzi_pre_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
		const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, int streams,
		int tokens, int at_a_time)
{
	if (!x->data)
		return HZ_OK;
	return hzi_cuda_tensor_map_planes(ctx, op, map, x->data, 2 * s->channels, s->tokens,
					  2 * x->token, streams,
					  2 * (streams > 1 ? x->stream : x->token), 128,
					  tokens, at_a_time);
}

bool hzi_pre_norm_near(const struct hzi_mhc_array *x, const struct hzi_mhc_array *u,
		       const struct hzi_mhc_shape *s)
{
	return s->channels % 8 == 0 && s->channels <= HZI_NORM_CHANNELS &&
	       hzi_pre_quick(x, s->dtype) && hzi_pre_quick(u, s->dtype);
}

/* Splits of `most` pieces so that so many blocks each make all multiprocessors busy */
static int splits_for(const struct hz_context *ctx, int64_t blocks, int64_t most, int64_t limit)
{
	const int64_t wanted = 4 * hzi_cuda_device(ctx)->multiprocessors;
	const int64_t splits = min_of(min_of(ceil_div(wanted, blocks ? blocks : 1), most), limit);

	return splits < 1 ? 1 : (int)splits;
}

struct hzi_pre_room hzi_pre_room(const struct hz_context *ctx, const struct hzi_mhc_shape *s, int m,
				 const struct hzi_mhc_array *x, const float *phi, const float *gain,
				 bool projects, size_t *used)
{
	const int64_t columns = s->n * s->channels;
	struct hzi_pre_room room = {.splits = 1, .mean_splits = 1};

	if (s->groups != s->tokens) {
		const int64_t strips = ceil_div(s->n * ceil_div(s->channels, 8), HZI_PRE_THREADS);

		room.mean_splits = splits_for(ctx, strips * s->groups,
					      ceil_div(s->tokens / s->groups, 8), MEAN_SPLITS);
		room.means = hzi_pre_take(ctx, used, s->groups * columns);
		room.mean_sums = hzi_pre_take(ctx, used, room.mean_splits * s->groups * columns);
	}
	if (projects) {
		/* Means are f32, back to back. */
		room.wide = hzi_pre_wide_takes(s->groups != s->tokens ? NULL : x, s, phi, gain);
		if (room.wide) {
			room.splits = hzi_pre_wide_project_splits(ctx, s);
			if (room.splits > 1)
				room.parts = hzi_pre_take(ctx, used,
							  room.splits * s->groups * (m + 1));
		} else {
			const int64_t chunks = s->n * ceil_div(s->channels, HZI_PRE_CHUNK);

			room.splits = splits_for(ctx, ceil_div(s->groups, HZI_PRE_TOKENS), chunks,
						 SPLITS);
		}
		room.sums = hzi_pre_take(ctx, used, (room.parts ? 1 : room.splits) * s->groups *
						    (m + 1));
	}
	return room;
}

int hzi_pre_sum_rows(struct hz_context *ctx, const char *op, int64_t parts,
		     const struct hzi_mhc_sum_rows *p)
{
	if (p->width == 0 || parts == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, op, HZI_KERNEL_mhc_pre_sum_rows,
			      ceil_div(p->width, HZI_PRE_SUM_COLUMNS) * parts, 1, 256, 0, p,
			      sizeof(*p));
}

int hzi_pre_means(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
		  const struct hzi_mhc_array *x, const struct hzi_pre_room *room,
		  struct hzi_mhc_array *from, int *dtype)
{
	const int64_t columns = s->n * s->channels, length = s->groups ? s->tokens / s->groups : 0;
	const struct hzi_mhc_means p = {
		.x = *x, .sums = room->mean_sums, .tokens = s->tokens, .groups = s->groups,
		.channels = s->channels, .n = s->n, .dtype = s->dtype,
		.quick = hzi_pre_quick(x, s->dtype), .splits = room->mean_splits,
	};
	const int64_t strips = ceil_div(s->n * ceil_div(s->channels, 8), HZI_PRE_THREADS);

	*from = *x;
	*dtype = s->dtype;
	if (s->groups == s->tokens)
		return HZ_OK;
	*from = hzi_pre_array(room->means, s->n, s->channels);
	*dtype = HZ_F32;
	if (columns == 0)
		return HZ_OK;
	HZ_CHECK(hzi_mhc_launch(ctx, op, HZI_KERNEL_mhc_pre_means, strips * s->groups,
				room->mean_splits, HZI_PRE_THREADS, 0, &p, sizeof(p)));
	return hzi_pre_sum_rows(ctx, op, 1, &(struct hzi_mhc_sum_rows){
		.in = room->mean_sums, .out = room->means, .rows = room->mean_splits,
		.width = s->groups * columns, .stride = s->groups * columns,
		.scale = length > 0 ? 1.0f / (float)length : 0,
	});
}

int hzi_pre_project(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s, int m,
		    const struct hzi_mhc_array *x, int dtype, const float *phi, const float *gain,
		    const struct hzi_pre_room *room)
{
	const struct hzi_mhc_project p = {
		.x = *x, .phi = phi, .gain = gain,
		.sums = room->parts ? room->parts : room->sums, .groups = s->groups,
		.channels = s->channels, .n = s->n, .m = m, .dtype = dtype,
		.quick = hzi_pre_quick(x, dtype), .splits = room->splits,
	};
	const int kernel = m <= 8 ? HZI_KERNEL_mhc_pre_project_8 :
			   m <= 24 ? HZI_KERNEL_mhc_pre_project_24 :
				     HZI_KERNEL_mhc_pre_project_80;

	if (s->groups == 0)
		return HZ_OK;
	if (room->wide) {
		HZ_CHECK(hzi_pre_wide_project(ctx, op, &p));
		return !room->parts ? HZ_OK : hzi_pre_sum_rows(ctx, op, 1,
			&(struct hzi_mhc_sum_rows){
				.in = room->parts, .out = room->sums, .rows = room->splits,
				.width = s->groups * (m + 1), .stride = s->groups * (m + 1),
				.scale = 1,
			});
	}
	return hzi_mhc_launch(ctx, op, kernel, ceil_div(s->groups, HZI_PRE_TOKENS), room->splits,
			      HZI_PRE_THREADS, 0, &p, sizeof(p));
}

int hzi_pre_coefs(struct hz_context *ctx, const char *op, const struct hzi_mhc_finish *p)
{
	const int kernel = p->rule.n == 4 ? HZI_KERNEL_mhc_pre_coefs_4 :
					    HZI_KERNEL_mhc_pre_coefs_any;

	if (p->sums.groups == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, op, kernel, ceil_div(p->sums.groups, HZI_PRE_GROUPS), 1,
			      HZI_PRE_GROUPS, 0, p, sizeof(*p));
}

/* ---- The call -------------------------------------------------------------------------------- */

struct plan {
	bool few, fused;		/* in one launch, but for post and what norm does */
	bool weights;			/* coefficients in one launch, without u and post */
	bool posts;			/* that launch makes post's streams too */
	struct hzi_pre_room room;
	float *p;			/* where the caller wants none */
	size_t bytes;
};

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	struct plan plan = {.bytes = 0};

	plan.few = hzi_pre_few_takes(ctx, a);
	plan.fused = !plan.few && hzi_pre_fused_takes(ctx, a);
	plan.posts = plan.fused && hzi_pre_fused_posts(a);
	plan.weights = !plan.few && !plan.posts && (!plan.fused || !a->u.data || a->norm) &&
		       hzi_weights_takes(ctx, a);
	plan.fused = plan.fused && !plan.weights;
	if (a->phi && !plan.few && !plan.fused && !plan.weights)
		plan.room = hzi_pre_room(ctx, &a->s, a->rule.m,
					 a->post.y.data ? &a->post.y : &a->x, a->phi, a->gain,
					 true, &plan.bytes);
	if (a->u.data && !a->p.data && (!(plan.few || plan.fused) || a->norm))
		plan.p = hzi_pre_take(ctx, &plan.bytes, a->s.groups * a->s.n);
	return plan;
}

size_t hzi_cuda_mhc_pre_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	return plan_of(ctx, a).bytes;
}

static int branch_input(struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
			const struct hzi_mhc_array *x, const struct hzi_mhc_coef *p)
{
	if (!a->u.data || a->s.tokens == 0 || a->s.channels == 0)
		return HZ_OK;
	if (!a->norm)
		return hzi_cuda_mhc_streams(ctx, &(struct hzi_mhc_streams_args){
			.s = a->s, .x = *x, .u = a->u, .p = *p,
		});
	return hzi_mhc_launch(ctx, "mhc_pre", HZI_KERNEL_mhc_pre_norm,
			      a->s.tokens, 1, HZI_NORM_THREADS, 0, &(struct hzi_mhc_norm){
				      .x = *x, .u = a->u, .p = *p, .norm = a->norm,
				      .tokens = a->s.tokens, .groups = a->s.groups,
				      .channels = a->s.channels, .n = a->s.n, .dtype = a->s.dtype,
				      .eps = a->rule.norm_eps,
				      .near = hzi_pre_norm_near(x, &a->u, &a->s),
			      }, sizeof(struct hzi_mhc_norm));
}

int hzi_cuda_mhc_pre(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct plan plan = plan_of(ctx, a);
	const struct hzi_mhc_array x = a->post.y.data ? a->post.y : a->x;
	struct hzi_mhc_finish finish = {
		.sums = {.groups = a->s.groups, .splits = 1,
			 .columns = (float)(a->s.n * a->s.channels)},
		.rule = a->rule, .alpha = a->alpha, .bias = a->bias, .p = a->p, .q = a->q,
		.a = a->a, .saved = a->saved,
	};

	if (plan.p)
		finish.p = hzi_pre_coef(plan.p, a->s.n, 1);
	if (a->post.y.data && !plan.posts && a->s.tokens > 0 && a->s.channels > 0)
		HZ_CHECK(hzi_cuda_mhc_streams(ctx, &a->post));
	if (plan.few || plan.fused || plan.weights) {
		struct hzi_mhc_pre_args one = *a;

		one.x = x;
		one.p = finish.p;
		if (!plan.posts)
			one.post = (struct hzi_mhc_streams_args){.s = a->s};
		if (a->norm)
			one.u.data = NULL;	/* of a whole token: another kernel's */
		HZ_CHECK(plan.few ? hzi_pre_few(ctx, &one) :
			 plan.fused ? hzi_pre_fused(ctx, &one) : hzi_weights(ctx, &one));
		return a->norm || plan.weights ? branch_input(ctx, a, &x, &finish.p) : HZ_OK;
	}
	if (a->phi) {
		struct hzi_mhc_array from;
		int dtype;

		HZ_CHECK(hzi_pre_means(ctx, "mhc_pre", &a->s, &x, &plan.room, &from, &dtype));
		HZ_CHECK(hzi_pre_project(ctx, "mhc_pre", &a->s, a->rule.m, &from, dtype, a->phi,
					 a->gain, &plan.room));
		finish.sums.data = plan.room.sums;
		finish.sums.splits = plan.room.parts ? 1 : plan.room.splits;
	}
	HZ_CHECK(hzi_pre_coefs(ctx, "mhc_pre", &finish));
	return branch_input(ctx, a, &x, &finish.p);
}
