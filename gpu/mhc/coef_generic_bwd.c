/*
 * coef_generic_bwd.c - launchers of the kernels of coef_generic_bwd.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>

#include "gpu/mhc/coef_bwd_wgmma.h"
#include "gpu/mhc/launch.h"
#include "lib/mhc/mhc_math.h"

#define OP "mhc_pre_bwd"
#define DPHI_SPLITS 64

int hzi_cuda_mhc_norm_bwd(struct hz_context *ctx, const struct hzi_mhc_norm_bwd *p, int64_t blocks)
{
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_coef_norm_bwd, blocks, 1,
				   HZI_MHC_NORM_THREADS, 0, p, sizeof(*p));
}

int64_t hzi_cuda_mhc_gradient_blocks(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->groups, s->n > 4 ? HZI_MHC_COEF_ROW_GROUPS : HZI_MHC_COEF_GROUPS);
}

int hzi_cuda_mhc_gradients(struct hz_context *ctx, const struct hzi_mhc_gradients *of)
{
	const size_t history = (size_t)min_of(of->rule.iterations, HZI_MHC_HISTORY);
	const int n = of->rule.n;
	const struct hzi_mhc_shape s = {.groups = of->sums.groups, .n = n};
	struct hzi_mhc_gradients p = *of;

	p.kept = history ? (int32_t)history : 1;
	if (n <= 4)
		return hzi_cuda_mhc_launch(ctx, OP, n == 4 ? HZI_KERNEL_mhc_coef_gradients_4 :
							     HZI_KERNEL_mhc_coef_gradients_3,
					   hzi_cuda_mhc_gradient_blocks(&s), 1, HZI_MHC_COEF_GROUPS,
					   n == 4 ? HZI_MHC_COEF_GRADIENTS_BYTES(history) : 0,
					   &p, sizeof(p));
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_coef_gradients_8,
				   hzi_cuda_mhc_gradient_blocks(&s) +
				   ceil_div(of->strips.strips * (4 * HZI_MHC_STREAMS *
								 HZI_MHC_BWD_WGMMA_TERMS / 2),
					    HZI_MHC_COEF_ROW_GROUPS * 32), 1,
				   HZI_MHC_COEF_ROW_GROUPS * 32,
				   (size_t)p.kept * HZI_MHC_COEF_ROW_GROUPS * 2 * HZI_MHC_STREAMS *
					   sizeof(float), &p, sizeof(p));
}

int hzi_cuda_mhc_token_products(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	const struct hzi_mhc_token_products p = {
		.x = a->x, .dy = a->dy, .du = a->du, .dp = a->dp, .da = a->da,
		.channels = a->s.channels, .n = a->s.n,
	};

	return hzi_cuda_mhc_launch(ctx, "mhc_streams_bwd",
				   a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_token_products_f16 :
							  HZI_KERNEL_mhc_token_products_bf16,
				   a->s.tokens, 1, HZI_MHC_COEF_THREADS, 0, &p, sizeof(p));
}

int hzi_cuda_mhc_generic_dx(struct hz_context *ctx, const struct hzi_mhc_dx *p)
{
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_coef_generic_dx,
				   ceil_div(p->channels, HZI_MHC_COEF_THREADS) *
				   ceil_div(p->tokens, HZI_MHC_COEF_LANES),
				   1, HZI_MHC_COEF_THREADS, 0, p, sizeof(*p));
}

bool hzi_cuda_mhc_has_group_dx(const struct hzi_mhc_dx *p)
{
	return p->n == 4 && p->dtype != HZ_F32 && p->du_dtype == p->dtype && p->channels > 0 &&
	       p->channels % 8 == 0 && p->tokens > p->groups && p->groups > 0 &&
	       hzi_cuda_mhc_is_aligned(&p->du, p->dtype) &&
		hzi_cuda_mhc_is_aligned(&p->dy, p->dtype) &&
	       hzi_cuda_mhc_is_aligned(&p->dx, p->dtype);
}

int hzi_cuda_mhc_group_dx(struct hz_context *ctx, const struct hzi_mhc_dx *p)
{
	const int64_t blocks = ceil_div(p->channels / 8, HZI_MHC_COEF_THREADS) * p->groups;
	const int64_t wanted = 16 * hzi_cuda_device(ctx)->sms;
	const int kernel = p->dtype == HZ_F16 ? HZI_KERNEL_mhc_coef_dx_groups_f16 :
						HZI_KERNEL_mhc_coef_dx_groups_bf16;
	int64_t splits;

	assert(blocks > 0);
	splits = min_of(ceil_div(wanted, blocks), ceil_div(p->tokens / p->groups, 8));
	return hzi_cuda_mhc_launch(ctx, OP, kernel, blocks, splits, HZI_MHC_COEF_THREADS, 0, p,
				   sizeof(*p));
}

/* Number of splits of the tokens that keeps all SMs busy */
int hzi_cuda_mhc_generic_dphi_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t wanted = 4 * hzi_cuda_device(ctx)->sms;
	const int64_t blocks = ceil_div(s->n * s->channels, HZI_MHC_COEF_THREADS);
	const int64_t most = min_of(ceil_div(s->groups, 64), DPHI_SPLITS);
	const int64_t splits = min_of(ceil_div(wanted, blocks ? blocks : 1), most);

	return splits < 1 ? 1 : (int)splits;
}

int hzi_cuda_mhc_generic_dphi(struct hz_context *ctx, const struct hzi_mhc_dphi *p)
{
	const int kernel = p->m <= 8  ? HZI_KERNEL_mhc_coef_generic_dphi_8 :
			   p->m <= 24 ? HZI_KERNEL_mhc_coef_generic_dphi_24 :
					HZI_KERNEL_mhc_coef_generic_dphi_80;

	return hzi_cuda_mhc_launch(ctx, OP, kernel,
				   ceil_div(p->n * p->channels, HZI_MHC_COEF_THREADS),
				   p->splits, HZI_MHC_COEF_THREADS, 0, p, sizeof(*p));
}

int hzi_cuda_mhc_sum_weights(struct hz_context *ctx, const struct hzi_mhc_sum_weights *p)
{
	const bool scalars = p->dalpha[0] || p->dalpha[1] || p->dalpha[2] || p->dbias;
	const int64_t blocks = ceil_div(p->columns, HZI_MHC_COEF_SUM_COLUMNS) +
			       (scalars ? ceil_div(p->m + 3, HZI_MHC_COEF_SUM_COLUMNS) : 0);

	if (blocks == 0)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_coef_sum_weights, blocks, 1, 256, 0, p,
				   sizeof(*p));
}
