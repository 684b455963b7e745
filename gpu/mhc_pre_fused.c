/*
 * mhc_pre_fused.c - launchers of coefficients and branch inputs of four streams in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc_pre_fused.h"
#include "gpu/mhc_pre_launch.h"

#ifndef HZ_CUDA_90A
#define HZ_CUDA_90A 0
#endif

#define SM_HOPPER 90

bool hzi_pre_fused_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const struct hzi_mhc_array *x = a->post.y.data ? &a->post.y : &a->x;

	return HZ_CUDA_90A && g->sm == SM_HOPPER && g->shared_block_bytes >= HZI_FUSED_BYTES &&
	       a->s.n == 4 && a->s.dtype != HZ_F32 && a->phi && a->rule.m <= HZI_FUSED_ROWS &&
	       a->s.tokens > 0 && a->s.groups == a->s.tokens && a->s.channels > 0 &&
	       a->s.channels % 8 == 0 &&
	       a->s.channels <= HZI_FUSED_CHANNELS * HZI_FUSED_BLOCKS &&
	       (uintptr_t)a->phi % 8 == 0 && (uintptr_t)a->gain % 8 == 0 &&
	       hzi_pre_near(x, a->s.tokens) && hzi_pre_near(&a->u, a->s.tokens);
}

int hzi_pre_fused(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const int kernel = a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_pre_fused_f16 :
						  HZI_KERNEL_mhc_pre_fused_bf16;
	const int64_t tiles = ceil_div(a->s.tokens, HZI_FUSED_TILE);
	struct hzi_mhc_fused p = {
		.x = a->x, .u = a->u, .p = a->p, .q = a->q, .a = a->a, .phi = a->phi,
		.gain = a->gain, .alpha = a->alpha, .bias = a->bias,
		.saved = a->saved, .rule = a->rule, .tokens = a->s.tokens,
		.channels = a->s.channels, .ranks = 2,	/* st.async wants a cluster */
	};
	struct hzi_launch launch = {
		.block = {HZI_FUSED_THREADS}, .shared_bytes = HZI_FUSED_BYTES, .early = true,
	};
	int clusters;

	/* norm is of a whole token: another kernel's. */
	if (a->norm)
		p.u.data = NULL;
	while (p.ranks * HZI_FUSED_CHANNELS < a->s.channels)
		p.ranks *= 2;
	p.width = (int32_t)(ceil_div(ceil_div(a->s.channels, p.ranks), 8) * 8);
	launch.cluster = (unsigned)p.ranks;
	HZ_CHECK(hzi_cuda_clusters(ctx, "mhc_pre", HZI_FAMILY_MHC_PRE_FUSED, kernel, &launch,
				   &clusters));
	launch.grid[0] = (unsigned)(min_of(clusters, tiles) * p.ranks);
	return hzi_cuda_launch(ctx, "mhc_pre", HZI_FAMILY_MHC_PRE_FUSED, kernel, &launch, &p,
			       sizeof(p));
}
