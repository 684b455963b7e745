/*
 * gated_gemv.c - launchers of gated branch inputs of up to 8 tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/gated_gemv.h"
#include "gpu/mhc/launch.h"

#define OP "mhc_gated"

const char *hzi_cuda_mhc_gated_gemv_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;

	if (a->s.tokens > HZI_MHC_GEMV_TOKENS)
		return "more than 8 tokens";
	if (a->s.n > HZI_MHC_GEMV_STREAMS)
		return "more than 4 streams";
	if (a->s.dtype != HZ_BF16 || a->down_dtype != HZ_BF16 || a->up_dtype != HZ_BF16)
		return "streams or weights are not bf16";
	if (a->q.data && a->q_dtype != HZ_BF16)
		return "w_q is not bf16";
	if (a->rank > HZI_MHC_GEMV_RANK)
		return "r is more than 128";
	if (a->s.channels > INT32_MAX / 8)
		return "too many channels";
	return hzi_cuda_mhc_gated_fused_unsupported(ctx, args);
}

static size_t plan_of(const struct hz_context *ctx, const struct hzi_mhc_gated_args *a,
		      struct hzi_mhc_gated_gemv *p)
{
	const int64_t n = a->s.n, T = a->s.tokens;
	size_t used = 0;

	*p = (struct hzi_mhc_gated_gemv){.a = *a};
	p->slice = (int)(ceil_div(a->s.channels, HZI_MHC_GEMV_CLUSTER * HZI_MHC_GEMV_SLICE) *
			 HZI_MHC_GEMV_SLICE);
	p->rows = (int)(a->rank + (a->q.data ? n : 0));
	p->row_tiles = (int)ceil_div(p->rows, HZI_MHC_GEMV_ROWS);
	p->pitch = p->row_tiles * HZI_MHC_GEMV_ROWS;
	p->partial = hzi_cuda_mhc_take(ctx, &used, n * T * p->pitch);
	p->squares = hzi_cuda_mhc_take(ctx, &used, n * T);
	return used;
}

size_t hzi_cuda_mhc_gated_gemv_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_mhc_gated_gemv p;

	return plan_of(ctx, args, &p);
}

int hzi_cuda_mhc_gated_gemv(struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;
	struct hzi_mhc_gated_gemv p;
	struct hzi_launch how = {
		.block = {HZI_MHC_GEMV_DOWN_THREADS}, .cluster = HZI_MHC_GEMV_CLUSTER,
		.early = true,
	};

	plan_of(ctx, a, &p);
	how.grid[0] = (unsigned)(HZI_MHC_GEMV_CLUSTER * p.row_tiles * a->s.n);
	how.grid[1] = 1;
	HZ_CHECK(hzi_cuda_launch(ctx, OP, HZI_KERNEL_mhc_gated_gemv_down, &how, &p,
				 sizeof(p)));
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_gated_gemv_up,
				   ceil_div(a->s.channels, HZI_MHC_GEMV_CHANNELS), 1,
				   HZI_MHC_GEMV_UP_THREADS, 0, &p, sizeof(p));
}
