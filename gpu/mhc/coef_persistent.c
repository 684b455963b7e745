/*
 * coef_persistent.c - launcher of coefficients of four 16-bit streams of many tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "gpu/mhc/coef_persistent.h"

const char *hzi_cuda_mhc_coef_persistent_unsupported(const struct hz_context *ctx,
						     const void *args)
{
	const struct hzi_mhc_pre_args *a = args;
	const char *const why = hzi_cuda_mhc_common_pre_unsupported(
		ctx, a, HZI_MHC_PERSISTENT_BYTES);

	if (why)
		return why;
	if (a->s.channels >= INT32_MAX / 16)
		return "offsets of channels exceed 32 bits";
	if ((uintptr_t)a->phi % 16 != 0 || (uintptr_t)a->gain % 16 != 0)
		return "phi or gain is not 16-byte aligned";
	return hzi_cuda_mhc_has_tensor_map(hzi_cuda_mhc_coef_x(a), &a->s, 4) ? NULL :
		       "x has no tensor map: rows overlap, are unaligned or too far apart";
}

/* Tokens of a block: the smallest tile that needs no more passes than the largest tile */
static int64_t tile_of(int64_t tokens, int64_t blocks)
{
	const int64_t passes = ceil_div(tokens, blocks * HZI_MHC_PERSISTENT_TILE);

	return ceil_div(ceil_div(tokens, blocks * passes),
			HZI_MHC_PERSISTENT_PART) * HZI_MHC_PERSISTENT_PART;
}

static int launch(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const int kernel = a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_coef_persistent_f16 :
						  HZI_KERNEL_mhc_coef_persistent_bf16;
	struct hzi_mhc_persistent p = {
		.x = a->x, .p = a->p, .q = a->q, .a = a->a, .phi = a->phi, .gain = a->gain,
		.alpha = {a->alpha[0], a->alpha[1], a->alpha[2]}, .bias = a->bias,
		.saved = a->saved, .rule = a->rule, .tokens = a->s.tokens,
		.channels = a->s.channels, .dtype = a->s.dtype,
	};
	struct hzi_launch how = {
		.block = {HZI_MHC_PERSISTENT_THREADS}, .shared_bytes = HZI_MHC_PERSISTENT_BYTES,
		.early = true, .aligned = true, .cluster = HZI_MHC_PERSISTENT_BLOCKS,
	};
	int64_t groups;
	int clusters;

	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, "mhc_pre", &p.x_map, &a->x, &a->s, 4,
					      HZI_MHC_PERSISTENT_PART, 1));
	HZ_CHECK(hzi_cuda_clusters(ctx, "mhc_pre", kernel, &how, &clusters));
	p.tile = (int32_t)tile_of(p.tokens, clusters * HZI_MHC_PERSISTENT_BLOCKS);
	groups = ceil_div(ceil_div(p.tokens, p.tile), HZI_MHC_PERSISTENT_BLOCKS);
	how.grid[0] = (unsigned)(min_of(clusters, groups) * HZI_MHC_PERSISTENT_BLOCKS);
	return hzi_cuda_launch(ctx, "mhc_pre", kernel, &how, &p, sizeof(p));
}

size_t hzi_cuda_mhc_coef_persistent_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch_workspace(ctx, args, false);
}

int hzi_cuda_mhc_coef_persistent(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch(ctx, args, false, false, launch);
}
