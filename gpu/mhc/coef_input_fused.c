/*
 * coef_input_fused.c - launchers of coefficients and branch inputs of four streams in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_input_fused.h"
#include "gpu/mhc/launch.h"

const char *hzi_cuda_mhc_coef_input_fused_unsupported(const struct hz_context *ctx,
						      const void *args)
{
	const struct hzi_mhc_pre_args *a = args;
	const char *const why = hzi_cuda_mhc_common_pre_unsupported(
		ctx, a, HZI_MHC_INPUT_FUSED_BYTES);

	if (why)
		return why;
	if (a->s.channels > HZI_MHC_INPUT_FUSED_CHANNELS * HZI_MHC_INPUT_FUSED_BLOCKS)
		return "more than 4096 channels";
	if (!hzi_cuda_mhc_has_tensor_map(hzi_cuda_mhc_coef_x(a), &a->s, 4))
		return "x has no tensor map: rows overlap, are unaligned or too far apart";
	if (!hzi_cuda_mhc_is_aligned(&a->u, a->s.dtype) ||
	    !hzi_cuda_mhc_fits_int32(&a->u, a->s.tokens))
		return "rows of u are not contiguous and 16-byte aligned, or too far apart";
	return NULL;
}

/* True if coefficients are contiguous and 16-byte aligned. */
static bool is_contiguous(const struct hzi_mhc_coef *c, int64_t group, int64_t row)
{
	return c->data && (uintptr_t)c->data % 16 == 0 && c->group == group && c->row == row;
}

bool hzi_cuda_mhc_coef_input_fused_makes_y(const struct hzi_mhc_pre_args *a)
{
	const struct hzi_mhc_streams_args *post = &a->post;

	return post->y.data && post->x.data && post->f.data && !post->u.data &&
	       is_contiguous(&post->a, 16, 4) && post->a.column == 1 &&
	       is_contiguous(&post->q, 4, 1) && hzi_cuda_mhc_has_tensor_map(&post->x, &a->s, 4) &&
	       hzi_cuda_mhc_has_tensor_map(&post->f, &a->s, 1);
}

static int launch(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct hzi_mhc_streams_args *post = &a->post;
	const bool posts = post->y.data != NULL, is_f16 = a->s.dtype == HZ_F16;
	const int kernel = posts ? (is_f16 ? HZI_KERNEL_mhc_post_coef_input_fused_f16 :
				    HZI_KERNEL_mhc_post_coef_input_fused_bf16) :
				   (is_f16 ? HZI_KERNEL_mhc_coef_input_fused_f16 :
				    HZI_KERNEL_mhc_coef_input_fused_bf16);
	const int64_t tiles = ceil_div(a->s.tokens, HZI_MHC_INPUT_FUSED_TILE);
	struct hzi_mhc_input_fused p = {
		.x = a->x, .y = post->y, .u = a->u, .p = a->p, .q = a->q, .a = a->a,
		.p_in = a->p_in,
		.post_a = post->a.data, .post_q = post->q.data, .post_bias = post->bias,
		.phi = a->phi, .gain = a->gain,
		.alpha = {a->alpha[0], a->alpha[1], a->alpha[2]}, .bias = a->bias,
		.saved = a->saved, .rule = a->rule, .tokens = a->s.tokens,
		.channels = a->s.channels, .ranks = 2,	/* st.async needs a cluster */
		.dtype = a->s.dtype, .phi_by_tma = (uintptr_t)a->phi % 16 == 0,
	};
	const struct hzi_mhc_array *x = posts ? &post->x : &a->x;
	struct hzi_launch how = {
		.block = {HZI_MHC_INPUT_FUSED_THREADS}, .shared_bytes = HZI_MHC_INPUT_FUSED_BYTES,
		.early = true, .aligned = true,
	};
	int clusters;

	while (p.ranks * HZI_MHC_INPUT_FUSED_CHANNELS < a->s.channels)
		p.ranks *= 2;
	p.width = (int32_t)(ceil_div(ceil_div(a->s.channels, p.ranks), HZI_MHC_INPUT_FUSED_BOX) *
			    HZI_MHC_INPUT_FUSED_BOX);
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, "mhc_pre", &p.x_map, x, &a->s, 4,
					      HZI_MHC_INPUT_FUSED_TILE, 4));
	if (p.phi_by_tma)
		HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, "mhc_pre", &p.phi_map, a->phi,
						4 * p.channels, a->rule.m, 16 * p.channels, 4,
						4 * p.channels, 128, HZI_MHC_FOUR_ROWS, 4));
	if (posts) {
		p.x.data = NULL;
		HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, "mhc_pre", &p.f_map, &post->f, &a->s, 1,
						      HZI_MHC_INPUT_FUSED_TILE, 1));
	}
	how.cluster = (unsigned)p.ranks;
	HZ_CHECK(hzi_cuda_clusters(ctx, "mhc_pre", kernel, &how, &clusters));
	how.grid[0] = (unsigned)(min_of(clusters, tiles) * p.ranks);
	return hzi_cuda_launch(ctx, "mhc_pre", kernel, &how, &p, sizeof(p));
}

size_t hzi_cuda_mhc_coef_input_fused_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch_workspace(ctx, args, true);
}

int hzi_cuda_mhc_coef_input_fused(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch(ctx, args,
					       hzi_cuda_mhc_coef_input_fused_makes_y(args),
					       true, launch);
}
