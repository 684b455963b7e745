/*
 * coef_gemv.c - launcher of the projection of few tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"

const char *hzi_cuda_mhc_coef_gemv_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;

	return a->rule.m > HZI_MHC_COEF_GEMV_ROWS ? "phi has more than 80 rows" :
					       hzi_cuda_mhc_coef_mma_unsupported(ctx, args);
}

int hzi_cuda_mhc_gemv_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t chunks = s->n * ceil_div(s->channels, HZI_MHC_COEF_GEMV_CHANNELS);

	return (int)max_of(1, min_of(hzi_cuda_device(ctx)->sms, chunks));
}

int hzi_cuda_mhc_gemv_project(struct hz_context *ctx, const char *op,
			      const struct hzi_mhc_project *p)
{
	const bool one = p->groups == 1;
	const int64_t tiles = one ? 1 : ceil_div(p->groups, HZI_MHC_COEF_GEMV_TOKENS);

	return hzi_cuda_mhc_launch(ctx, op, one ? HZI_KERNEL_mhc_coef_gemv_project_1 :
						  HZI_KERNEL_mhc_coef_gemv_project_4,
				   p->splits, tiles, HZI_MHC_COEF_GEMV_THREADS,
				   0, p, sizeof(*p));
}

size_t hzi_cuda_mhc_coef_gemv_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches_workspace(ctx, args, HZI_MHC_GEMV);
}

int hzi_cuda_mhc_coef_gemv(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches(ctx, args, HZI_MHC_GEMV);
}
