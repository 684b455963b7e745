/*
 * coef_splitk.c - launchers of coefficients and branch inputs of four 16-bit streams, two launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_splitk.h"
#include "gpu/mhc/launch.h"

const char *hzi_cuda_mhc_coef_splitk_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;
	const struct hzi_mhc_array *x = hzi_cuda_mhc_coef_x(a);
	const char *const why = hzi_cuda_mhc_common_pre_unsupported(
		ctx, a, HZI_MHC_SPLITK_BYTES);

	if (why)
		return why;
	if (a->s.channels >= INT32_MAX / 16)
		return "offsets of channels exceed 32 bits";
	if ((uintptr_t)a->phi % 16 != 0 || (uintptr_t)a->gain % 16 != 0)
		return "phi or gain is not 16-byte aligned";
	return hzi_cuda_mhc_is_aligned(x, a->s.dtype) &&
			       hzi_cuda_mhc_is_aligned(&a->u, a->s.dtype) ? NULL :
	       "rows of x or u are not contiguous and 16-byte aligned";
}

/* So many that the blocks make one wave, of at least four chunks */
static int splits_of(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t tiles = ceil_div(s->tokens, HZI_MHC_SPLITK_TOKENS);
	const int64_t chunks = 4 * ceil_div(s->channels, HZI_MHC_SPLITK_CHUNK);
	const int64_t most = ceil_div(chunks, 4);
	const int64_t splits = min_of(hzi_cuda_device(ctx)->sms / tiles, most);

	return splits < 1 ? 1 : (int)splits;
}

/* Floats of p, which another launch may need, and of the sums */
static size_t take(const struct hz_context *ctx, const struct hzi_mhc_shape *s, float **sums)
{
	size_t used = 0;

	hzi_cuda_mhc_take(ctx, &used, 4 * s->tokens);
	*sums = hzi_cuda_mhc_take(ctx, &used, splits_of(ctx, s) * s->tokens * HZI_MHC_SPLITK_ROW);
	return used;
}

static int launch(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const bool is_f16 = a->s.dtype == HZ_F16;
	struct hzi_mhc_splitk p = {
		.x = a->x, .u = a->u, .p = a->p, .q = a->q, .a = a->a, .p_in = a->p_in,
		.phi = a->phi, .gain = a->gain,
		.alpha = {a->alpha[0], a->alpha[1], a->alpha[2]}, .bias = a->bias,
		.saved = a->saved, .rule = a->rule, .tokens = a->s.tokens,
		.channels = a->s.channels, .splits = splits_of(ctx, &a->s), .dtype = a->s.dtype,
		.finished = 1,
	};

	take(ctx, &a->s, &p.sums);
	HZ_CHECK(hzi_cuda_mhc_launch(ctx, "mhc_pre",
				     is_f16 ? HZI_KERNEL_mhc_coef_splitk_project_f16 :
					      HZI_KERNEL_mhc_coef_splitk_project_bf16,
				     ceil_div(p.tokens, HZI_MHC_SPLITK_TOKENS), p.splits,
				     HZI_MHC_SPLITK_THREADS, HZI_MHC_SPLITK_BYTES, &p, sizeof(p)));
	/* Two blocks an SM */
	while (p.finished < HZI_MHC_SPLITK_FINISHED &&
	       ceil_div(p.tokens, p.finished) > 2 * hzi_cuda_device(ctx)->sms)
		p.finished *= 2;
	return hzi_cuda_mhc_launch(ctx, "mhc_pre",
				   is_f16 ? HZI_KERNEL_mhc_coef_splitk_finish_f16 :
					    HZI_KERNEL_mhc_coef_splitk_finish_bf16,
				   ceil_div(p.tokens, p.finished), 1, HZI_MHC_SPLITK_THREADS, 0,
				   &p, sizeof(p));
}

size_t hzi_cuda_mhc_coef_splitk_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;
	float *sums;

	return take(ctx, &a->s, &sums);
}

int hzi_cuda_mhc_coef_splitk(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_in_one_launch(ctx, args, false, true, launch);
}
