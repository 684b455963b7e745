/*
 * coef_generic.c - launchers of the kernels of coef_generic.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"

#define PROJECT_SPLITS 32		/* of columns, at most: one thread adds them up */
#define MEAN_SPLITS 64

/*
 * Number of splits, at most `most` and `limit`, so that `blocks` blocks per split keep all SMs busy
 */
static int splits_for(const struct hz_context *ctx, int64_t blocks, int64_t most, int64_t limit)
{
	const int64_t wanted = 4 * hzi_cuda_device(ctx)->sms;
	const int64_t splits = min_of(min_of(ceil_div(wanted, blocks ? blocks : 1), most), limit);

	return splits < 1 ? 1 : (int)splits;
}

/* Blocks for the channels of all streams, with 8 channels per thread */
static int64_t mean_blocks(int n, int64_t channels)
{
	return ceil_div(n * ceil_div(channels, 8), HZI_MHC_COEF_THREADS);
}

int hzi_cuda_mhc_mean_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	return splits_for(ctx, mean_blocks(s->n, s->channels) * s->groups,
			  ceil_div(s->tokens / s->groups, 8), MEAN_SPLITS);
}

int hzi_cuda_mhc_mean_sums(struct hz_context *ctx, const char *op, const struct hzi_mhc_means *p)
{
	return hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_coef_means,
				   mean_blocks(p->n, p->channels) * p->groups, p->splits,
				   HZI_MHC_COEF_THREADS, 0, p, sizeof(*p));
}

int hzi_cuda_mhc_sum_rows(struct hz_context *ctx, const char *op, int64_t parts,
			  const struct hzi_mhc_sum_rows *p)
{
	if (p->width == 0 || parts == 0)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_coef_sum_rows,
				   ceil_div(p->width, HZI_MHC_COEF_SUM_COLUMNS) * parts, 1, 256, 0,
				   p, sizeof(*p));
}

int hzi_cuda_mhc_generic_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	return splits_for(ctx, ceil_div(s->groups, HZI_MHC_COEF_TOKENS),
			  s->n * ceil_div(s->channels, HZI_MHC_COEF_CHUNK), PROJECT_SPLITS);
}

int hzi_cuda_mhc_generic_project(struct hz_context *ctx, const char *op,
				 const struct hzi_mhc_project *p)
{
	const int kernel = p->m <= 8 ? HZI_KERNEL_mhc_coef_generic_project_8 :
			   p->m <= 24 ? HZI_KERNEL_mhc_coef_generic_project_24 :
					HZI_KERNEL_mhc_coef_generic_project_80;

	return hzi_cuda_mhc_launch(ctx, op, kernel, ceil_div(p->groups, HZI_MHC_COEF_TOKENS),
				   p->splits, HZI_MHC_COEF_THREADS, 0, p, sizeof(*p));
}

int hzi_cuda_mhc_finish_coefs(struct hz_context *ctx, const char *op,
			      const struct hzi_mhc_finish *p)
{
	const int kernel = p->rule.n == 4 ? HZI_KERNEL_mhc_coef_finish_4 :
			   p->rule.n < 4 ? HZI_KERNEL_mhc_coef_finish_3 :
					   HZI_KERNEL_mhc_coef_finish_8;
	const bool warps = p->rule.n > 4;
	const int groups = warps ? HZI_MHC_COEF_ROW_GROUPS : HZI_MHC_COEF_GROUPS;

	if (p->sums.groups == 0)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, op, kernel, ceil_div(p->sums.groups, groups), 1,
				   warps ? groups * 32 : groups, 0, p, sizeof(*p));
}

bool hzi_cuda_mhc_norm_is_aligned(const struct hzi_mhc_array *x, const struct hzi_mhc_array *u,
				  const struct hzi_mhc_shape *s)
{
	return (s->n <= 4 || s->n == 8) && s->channels % 8 == 0 &&
	       s->channels <= HZI_MHC_NORM_CHANNELS && hzi_cuda_mhc_is_aligned(x, s->dtype) &&
	       hzi_cuda_mhc_is_aligned(u, s->dtype);
}

int hzi_cuda_mhc_norm(struct hz_context *ctx, const struct hzi_mhc_norm *p)
{
	return hzi_cuda_mhc_launch(ctx, "mhc_pre", HZI_KERNEL_mhc_coef_norm, p->tokens, 1,
				   HZI_MHC_NORM_THREADS, 0, p, sizeof(*p));
}
