/*
 * coef_input_fused.c - launchers of coefficients and branch inputs of four streams in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_input_fused.h"
#include "gpu/mhc/coef_launch.h"

#define SM_HOPPER 90

bool hzi_pre_fused_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const struct hzi_mhc_array *x = a->post.y.data ? &a->post.y : &a->x;

	return HZ_CUDA_90A && g->sm == SM_HOPPER && g->shared_block_bytes >= HZI_FUSED_BYTES &&
	       a->s.n == 4 && a->s.dtype != HZ_F32 && a->phi && a->rule.m <= HZI_FUSED_ROWS &&
	       a->s.tokens > 0 && a->s.groups == a->s.tokens && a->s.channels > 0 &&
	       a->s.channels % 8 == 0 && a->s.channels <= HZI_FUSED_CHANNELS * HZI_FUSED_BLOCKS &&
	       (uintptr_t)a->phi % 8 == 0 && (uintptr_t)a->gain % 8 == 0 &&
	       hzi_pre_mapped(x, &a->s, 4) && hzi_pre_near(&a->u, a->s.tokens);
}

/* Whether coefficients of n numbers a token lie back to back, in 16-byte vectors */
static bool is_whole(const struct hzi_mhc_coef *c, int64_t group, int64_t row)
{
	return c->data && (uintptr_t)c->data % 16 == 0 && c->group == group && c->row == row;
}

bool hzi_pre_fused_posts(const struct hzi_mhc_pre_args *a)
{
	const struct hzi_mhc_streams_args *post = &a->post;

	return post->y.data && post->x.data && post->f.data && !post->u.data &&
	       is_whole(&post->a, 16, 4) && post->a.column == 1 && is_whole(&post->q, 4, 1) &&
	       hzi_pre_mapped(&post->x, &a->s, 4) && hzi_pre_mapped(&post->f, &a->s, 1);
}

int hzi_pre_fused(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct hzi_mhc_streams_args *post = &a->post;
	const bool posts = post->y.data != NULL, is_f16 = a->s.dtype == HZ_F16;
	const int kernel = posts ? (is_f16 ? HZI_KERNEL_mhc_post_pre_fused_f16 :
					     HZI_KERNEL_mhc_post_pre_fused_bf16) :
				   (is_f16 ? HZI_KERNEL_mhc_pre_fused_f16 :
					     HZI_KERNEL_mhc_pre_fused_bf16);
	const int64_t tiles = ceil_div(a->s.tokens, HZI_FUSED_TILE);
	struct hzi_mhc_fused p = {
		.y = post->y, .u = a->u, .p = a->p, .q = a->q, .a = a->a,
		.post_a = post->a.data, .post_q = post->q.data, .post_bias = post->bias,
		.phi = a->phi, .gain = a->gain, .alpha = a->alpha, .bias = a->bias,
		.saved = a->saved, .rule = a->rule, .tokens = a->s.tokens,
		.channels = a->s.channels, .ranks = 2,	/* st.async wants a cluster */
	};
	const struct hzi_mhc_array *x = posts ? &post->x : &a->x;
	struct hzi_launch launch = {
		.block = {HZI_FUSED_THREADS}, .shared_bytes = HZI_FUSED_BYTES, .early = true,
		.aligned = true,
	};
	int clusters;

	while (p.ranks * HZI_FUSED_CHANNELS < a->s.channels)
		p.ranks *= 2;
	p.width = (int32_t)(ceil_div(ceil_div(a->s.channels, p.ranks), HZI_FUSED_BOX) *
			    HZI_FUSED_BOX);
	HZ_CHECK(hzi_pre_map(ctx, "mhc_pre", &p.x_map, x, &a->s, 4, HZI_FUSED_TILE, 4));
	if (posts)
		HZ_CHECK(hzi_pre_map(ctx, "mhc_pre", &p.f_map, &post->f, &a->s, 1, HZI_FUSED_TILE,
				     1));
	launch.cluster = (unsigned)p.ranks;
	HZ_CHECK(hzi_cuda_clusters(ctx, "mhc_pre", kernel, &launch, &clusters));
	launch.grid[0] = (unsigned)(min_of(clusters, tiles) * p.ranks);
	return hzi_cuda_launch(ctx, "mhc_pre", kernel, &launch, &p, sizeof(p));
}
