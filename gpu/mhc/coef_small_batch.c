/*
 * coef_small_batch.c - launcher of coefficients and branch inputs of few tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_small_batch.h"
#include "gpu/mhc/launch.h"

/* Largest number of 16-token tiles for which two clusters per tile run at the same time */
#define MAX_SEPARATE 3

const char *hzi_cuda_mhc_coef_small_batch_unsupported(const struct hz_context *ctx,
						      const void *args)
{
	const struct hzi_mhc_pre_args *a = args;
	const struct hzi_mhc_array *x = hzi_cuda_mhc_coef_x(a);
	const char *const why = hzi_cuda_mhc_four_streams_unsupported(&a->s, a->rule.m, a->phi);

	(void)ctx;
	if (why)
		return why;
	if (!hzi_mhc_is_common(&a->rule))
		return hzi_cuda_mhc_rule_unsupported(&a->rule);
	if (a->s.channels > HZI_MHC_SMALL_BATCH_CHANNELS)
		return "more than 2^20 channels";
	if ((uintptr_t)a->phi % 16 != 0 || (uintptr_t)a->gain % 16 != 0)
		return "phi or gain is not 16-byte aligned";
	/* All strides are multiples of 8 elements, also of f32. */
	if (!hzi_cuda_mhc_is_aligned(x, HZ_F16) || !hzi_cuda_mhc_is_aligned(&a->u, a->s.dtype))
		return "rows of x or u are not contiguous and 16-byte aligned";
	return hzi_cuda_mhc_fits_int32(x, a->s.tokens) ? NULL : "offsets exceed 32 bits";
}

static int launch(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const int kernel = a->s.dtype == HZ_F32 ? HZI_KERNEL_mhc_coef_small_batch_f32 :
			   a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_coef_small_batch_f16 :
						  HZI_KERNEL_mhc_coef_small_batch_bf16;
	const int64_t tiles = ceil_div(a->s.tokens, HZI_MHC_SMALL_BATCH_BLOCKS);
	const bool separate = a->a.data && a->rule.m > 8 && tiles <= MAX_SEPARATE;
	const struct hzi_mhc_small_batch p = {
		.x = a->x, .u = a->u, .p = a->p, .q = a->q, .a = a->a, .p_in = a->p_in,
		.phi = a->phi,
		.gain = a->gain, .alpha = {a->alpha[0], a->alpha[1], a->alpha[2]},
		.bias = a->bias, .saved = a->saved,
		.rule = a->rule, .tokens = a->s.tokens, .channels = a->s.channels,
		.width = (int32_t)(ceil_div(ceil_div(a->s.channels, HZI_MHC_SMALL_BATCH_BLOCKS),
					    8) * 8),
		.matrices = separate ? (int32_t)tiles : 0,
	};
	const struct hzi_launch how = {
		.grid = {(unsigned)((separate ? 2 : 1) * tiles * HZI_MHC_SMALL_BATCH_BLOCKS)},
		.block = {HZI_MHC_SMALL_BATCH_THREADS}, .cluster = HZI_MHC_SMALL_BATCH_BLOCKS,
		.early = true,
	};

	return hzi_cuda_launch(ctx, "mhc_pre", kernel, &how, &p, sizeof(p));
}

size_t hzi_cuda_mhc_coef_small_batch_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch_workspace(ctx, args, true);
}

int hzi_cuda_mhc_coef_small_batch(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch(ctx, args, false, true, launch);
}
