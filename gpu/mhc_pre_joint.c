/*
 * mhc_pre_joint.c - launchers of the gradients of four streams and of phi in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc_pre_launch.h"

#ifndef HZ_CUDA_90A
#define HZ_CUDA_90A 0
#endif

#define OP "mhc_pre_bwd"
#define SM_HOPPER 90

bool hzi_pre_joint_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);

	return HZ_CUDA_90A && g->sm == SM_HOPPER && g->shared_block_bytes >= HZI_JOINT_BYTES &&
	       a->s.n == 4 && a->s.dtype != HZ_F32 && a->phi && a->rule.m <= HZI_JOINT_ROWS &&
	       a->s.tokens > 0 && a->s.groups == a->s.tokens && a->s.channels > 0 &&
	       a->s.channels % 8 == 0 && !(a->norm && a->du.data) &&
	       (a->dx.data || a->dphi || a->dgain) && hzi_pre_near(&a->x, a->s.tokens) &&
	       hzi_pre_near(&a->du, a->s.tokens) && hzi_pre_near(&a->dy, a->s.tokens) &&
	       hzi_pre_near(&a->dx, a->s.tokens);
}

int hzi_pre_joint_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t slices = ceil_div(s->channels, HZI_JOINT_CHANNELS);
	const int64_t blocks = HZI_JOINT_BLOCKS * hzi_cuda_device(ctx)->multiprocessors;
	const int64_t splits = min_of(blocks / slices, ceil_div(s->tokens, HZI_JOINT_TILE));

	return splits < 1 ? 1 : (int)splits;
}

int64_t hzi_pre_joint_records(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->tokens, HZI_JOINT_TILE) * HZI_JOINT_RECORD;
}

int hzi_pre_joint(struct hz_context *ctx, const struct hzi_mhc_records *r,
		  const struct hzi_mhc_joint *p, int dtype)
{
	const struct hzi_launch records = {
		.grid = {(unsigned)ceil_div(p->tokens, HZI_JOINT_TILE)}, .block = {128},
		.early = true,
	}, launch = {
		.grid = {(unsigned)(ceil_div(p->channels, HZI_JOINT_CHANNELS) * p->splits)},
		.block = {HZI_JOINT_THREADS}, .shared_bytes = HZI_JOINT_BYTES, .early = true,
	};
	const int kernel = dtype == HZ_F16 ? HZI_KERNEL_mhc_pre_joint_f16 :
					     HZI_KERNEL_mhc_pre_joint_bf16;

	HZ_CHECK(hzi_cuda_launch(ctx, OP, HZI_FAMILY_MHC_PRE_JOINT, HZI_KERNEL_mhc_pre_records,
				 &records, r, sizeof(*r)));
	return hzi_cuda_launch(ctx, OP, HZI_FAMILY_MHC_PRE_JOINT, kernel, &launch, p, sizeof(*p));
}
