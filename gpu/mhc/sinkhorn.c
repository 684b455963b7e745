/*
 * sinkhorn.c - launchers of Sinkhorn's iteration, of diagnostics and of initial weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "gpu/mhc/mhc.h"
#include "lib/mhc/mhc_math.h"

#define WARPS HZI_MHC_COEF_ROW_GROUPS

/* Whether there are kernels for exactly this number of streams, which take common rules only */
static bool has_own_kernel(const struct hzi_mhc_rule *r)
{
	return (r->n == 4 || r->n == 8) && hzi_mhc_is_common(r);
}

/* Whether a warp has a matrix, not a thread */
static bool uses_warps(const struct hzi_mhc_rule *r)
{
	return r->n > 4 && !has_own_kernel(r);
}

HZI_NO_WORKSPACE(cuda, mhc_sinkhorn)

int hzi_cuda_mhc_sinkhorn(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_args *a)
{
	if (a->count == 0)
		return HZ_OK;
	if (uses_warps(&a->rule))
		return hzi_cuda_mhc_launch(ctx, "mhc_sinkhorn", HZI_KERNEL_mhc_sinkhorn_warp,
					   ceil_div(a->count, WARPS), 1, WARPS * 32, 0, a,
					   sizeof(*a));
	return hzi_cuda_mhc_launch(ctx, "mhc_sinkhorn",
				   !has_own_kernel(&a->rule) ? HZI_KERNEL_mhc_sinkhorn_generic :
				   a->rule.n == 4 ? HZI_KERNEL_mhc_sinkhorn_4 :
						    HZI_KERNEL_mhc_sinkhorn_8,
				   ceil_div(a->count, HZI_MHC_SINKHORN_THREADS), 1,
				   HZI_MHC_SINKHORN_THREADS, 0, a, sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_sinkhorn_bwd)

int hzi_cuda_mhc_sinkhorn_bwd(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_bwd_args *a)
{
	const int n = a->rule.n, threads = HZI_MHC_SINKHORN_BWD_THREADS(n);
	const int kept = a->rule.iterations < HZI_MHC_HISTORY ? a->rule.iterations :
								HZI_MHC_HISTORY;
	const bool own = has_own_kernel(&a->rule);
	const int staged = own && n == 4 ? 0 : HZI_MHC_SINKHORN_PITCH(n);

	if (a->count == 0)
		return HZ_OK;
	if (uses_warps(&a->rule))
		return hzi_cuda_mhc_launch(ctx, "mhc_sinkhorn_bwd",
					   HZI_KERNEL_mhc_sinkhorn_bwd_warp,
					   ceil_div(a->count, WARPS), 1, WARPS * 32,
					   sizeof(float) * (size_t)(2 * HZI_MHC_STREAMS * kept *
								    WARPS), a, sizeof(*a));
	return hzi_cuda_mhc_launch(ctx, "mhc_sinkhorn_bwd",
				   !own ? HZI_KERNEL_mhc_sinkhorn_bwd_generic :
				   n == 4 ? HZI_KERNEL_mhc_sinkhorn_bwd_4 :
					    HZI_KERNEL_mhc_sinkhorn_bwd_8,
				   ceil_div(a->count, threads), 1, threads,
				   sizeof(float) * (size_t)((2 * n * kept + staged) * threads), a,
				   sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_diagnose)

int hzi_cuda_mhc_diagnose(struct hz_context *ctx, const struct hzi_mhc_diagnose_args *a)
{
	if (a->groups == 0)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, "mhc_diagnose", HZI_KERNEL_mhc_diagnose,
				   ceil_div(a->groups, HZI_MHC_SINKHORN_THREADS), 1,
				   HZI_MHC_SINKHORN_THREADS, 0, a, sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_widen)

int hzi_cuda_mhc_widen(struct hz_context *ctx, const struct hzi_mhc_widen_args *a)
{
	const int64_t blocks = ceil_div(a->count, HZI_MHC_WIDEN * HZI_MHC_THREADS);

	return hzi_cuda_mhc_launch(ctx, "mhc_widen", a->outer == 1 ? HZI_KERNEL_mhc_widen :
						     HZI_KERNEL_mhc_reorder, blocks, 1,
				   HZI_MHC_THREADS, 0, a, sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_init)

int hzi_cuda_mhc_init(struct hz_context *ctx, const struct hzi_mhc_init_args *a)
{
	const int64_t blocks = ceil_div(a->phi ? a->count : 0, 4 * HZI_MHC_SINKHORN_THREADS);
	const int64_t least = ceil_div(HZI_MHC_ROWS, HZI_MHC_SINKHORN_THREADS);	/* for the bias */

	return hzi_cuda_mhc_launch(ctx, "mhc_init", HZI_KERNEL_mhc_init,
				   blocks < least ? least : blocks < 4096 ? blocks : 4096, 1,
				   HZI_MHC_SINKHORN_THREADS, 0, a, sizeof(*a));
}
