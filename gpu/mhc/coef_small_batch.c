/*
 * coef_small_batch.c - launcher of coefficients and branch inputs of few tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_small_batch.h"
#include "gpu/mhc/coef_launch.h"

#define SM_HOPPER 90
#define APART 3				/* tiles of tokens, of which two clusters each run at a time */

bool hzi_pre_few_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct hzi_mhc_array *x = a->post.y.data ? &a->post.y : &a->x;

	return HZ_CUDA_90A && hzi_cuda_device(ctx)->sm == SM_HOPPER && a->s.n == 4 && a->phi &&
	       a->rule.m <= HZI_PRE_FEW_ROWS && a->s.tokens > 0 &&
	       a->s.tokens <= HZI_PRE_FEW_TOKENS && a->s.groups == a->s.tokens &&
	       a->s.channels > 0 && a->s.channels % 8 == 0 &&
	       a->s.channels <= HZI_PRE_FEW_CHANNELS && (uintptr_t)a->phi % 16 == 0 &&
	       (uintptr_t)a->gain % 16 == 0 && hzi_pre_quick(x, a->s.dtype) &&
	       hzi_pre_near(x, a->s.tokens) && (!a->u.data || hzi_pre_quick(&a->u, a->s.dtype));
}

int hzi_pre_few(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const int kernel = a->s.dtype == HZ_F32 ? HZI_KERNEL_mhc_pre_few_f32 :
			   a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_pre_few_f16 :
						  HZI_KERNEL_mhc_pre_few_bf16;
	const int64_t tiles = ceil_div(a->s.tokens, HZI_PRE_FEW_BLOCKS);
	const bool apart = a->a.data && a->rule.m > 8 && tiles <= APART;
	const struct hzi_mhc_few p = {
		.x = a->x, .u = a->u, .p = a->p, .q = a->q, .a = a->a, .phi = a->phi,
		.gain = a->gain, .alpha = a->alpha, .bias = a->bias, .saved = a->saved,
		.rule = a->rule, .tokens = a->s.tokens, .channels = a->s.channels,
		.width = (int32_t)(ceil_div(ceil_div(a->s.channels, HZI_PRE_FEW_BLOCKS), 8) * 8),
		.matrices = apart ? (int32_t)tiles : 0,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)((apart ? 2 : 1) * tiles * HZI_PRE_FEW_BLOCKS)},
		.block = {HZI_PRE_FEW_THREADS}, .cluster = HZI_PRE_FEW_BLOCKS, .early = true,
	};

	return hzi_cuda_launch(ctx, "mhc_pre", kernel, &launch, &p, sizeof(p));
}
