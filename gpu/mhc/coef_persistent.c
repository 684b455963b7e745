/*
 * coef_persistent.c - launcher of coefficients of four 16-bit streams of many tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_launch.h"
#include "gpu/mhc/coef_persistent.h"

#define SM_HOPPER 90

/*
 * Tokens from which on it is the fastest, since all of phi goes to any pair of blocks: 90 us beside
 * 99 of mhc_pre_fused for 8192 tokens of 4096 channels, 78 beside 58 for 4096. What that does not
 * take goes by mhc_pre_project else: 135 us beside 215 for 2048 tokens of 7168 channels, and beside
 * 121 for 512.
 */
#define LEAST 8192
#define LEAST_OF_MANY_CHANNELS 1024

bool hzi_weights_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const struct hzi_mhc_array *x = a->post.y.data ? &a->post.y : &a->x;
	const int64_t least = hzi_pre_fused_takes(ctx, a) ? LEAST : LEAST_OF_MANY_CHANNELS;

	return HZ_CUDA_90A && g->sm == SM_HOPPER && g->shared_block_bytes >= HZI_WEIGHTS_BYTES &&
	       a->s.n == 4 && a->s.dtype != HZ_F32 && a->phi && a->rule.m <= HZI_WEIGHTS_ROWS &&
	       a->s.tokens >= least && a->s.groups == a->s.tokens && a->s.channels > 0 &&
	       a->s.channels % 8 == 0 && a->s.channels < INT32_MAX / 16 &&
	       (uintptr_t)a->phi % 16 == 0 && (uintptr_t)a->gain % 16 == 0 &&
	       hzi_pre_mapped(x, &a->s, 4);
}

/* Tokens of a block: the fewest that need no more turns than the most would */
static int64_t tile_of(int64_t tokens, int64_t blocks)
{
	const int64_t turns = ceil_div(tokens, blocks * HZI_WEIGHTS_TILE);

	return ceil_div(ceil_div(tokens, blocks * turns), HZI_WEIGHTS_PART) * HZI_WEIGHTS_PART;
}

int hzi_weights(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const int kernel = a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_weights_f16 :
						  HZI_KERNEL_mhc_weights_bf16;
	struct hzi_mhc_weights p = {
		.p = a->p, .q = a->q, .a = a->a, .phi = a->phi, .gain = a->gain, .alpha = a->alpha,
		.bias = a->bias, .saved = a->saved, .rule = a->rule, .tokens = a->s.tokens,
		.channels = a->s.channels,
	};
	struct hzi_launch launch = {
		.block = {HZI_WEIGHTS_THREADS}, .shared_bytes = HZI_WEIGHTS_BYTES, .early = true,
		.aligned = true, .cluster = HZI_WEIGHTS_BLOCKS,
	};
	int64_t groups;
	int clusters;

	HZ_CHECK(hzi_pre_map(ctx, "mhc_pre", &p.x_map, &a->x, &a->s, 4, HZI_WEIGHTS_PART, 1));
	HZ_CHECK(hzi_cuda_clusters(ctx, "mhc_pre", kernel, &launch, &clusters));
	p.tile = (int32_t)tile_of(p.tokens, clusters * HZI_WEIGHTS_BLOCKS);
	groups = ceil_div(ceil_div(p.tokens, p.tile), HZI_WEIGHTS_BLOCKS);
	launch.grid[0] = (unsigned)(min_of(clusters, groups) * HZI_WEIGHTS_BLOCKS);
	return hzi_cuda_launch(ctx, "mhc_pre", kernel, &launch, &p, sizeof(p));
}
