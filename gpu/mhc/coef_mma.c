/*
 * coef_mma.c - launchers of products of streams and phi, and their gradients, in aligned rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_launch.h"

#define OP "mhc_pre_bwd"
#define WARPS (HZI_WIDE_THREADS / 32)
#define SPLITS 64			/* at most: a thread sums them */

static int type_of(int dtype)
{
	return dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2;
}

/* Whether 4 channels that begin at a multiple of 4 are aligned, to 16 bytes or, of 16 bits, to 8 */
static bool in_fours(const struct hzi_mhc_array *x, int dtype)
{
	const int64_t size = (int64_t)hz_dtype_size(dtype);

	return !x->data || (x->channel == 1 && (uintptr_t)x->data % (uintptr_t)(4 * size) == 0 &&
			    x->token % 4 == 0 && x->stream % 4 == 0);
}

bool hzi_pre_wide_takes(const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s,
			const float *phi, const float *gain)
{
	return s->channels > 0 && s->channels % 8 == 0 && (!x || hzi_pre_quick(x, s->dtype)) &&
	       (uintptr_t)phi % 16 == 0 && (uintptr_t)gain % 16 == 0;
}

int hzi_pre_wide_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t wanted = 2 * hzi_cuda_device(ctx)->multiprocessors;
	const int64_t blocks = ceil_div(s->groups, HZI_WIDE_TOKENS);
	const int64_t most = min_of(s->n * ceil_div(s->channels, HZI_WIDE_CHUNK), SPLITS);
	const int64_t splits = min_of(wanted / (blocks ? blocks : 1), most);

	return splits < 1 ? 1 : (int)splits;
}

int hzi_pre_wide_project(struct hz_context *ctx, const char *op, const struct hzi_mhc_project *p)
{
	const int kernel = p->m <= 8 ? HZI_KERNEL_mhc_wide_project_f32_8 :
			   p->m <= 24 ? HZI_KERNEL_mhc_wide_project_f32_24 :
			   p->m <= 32 ? HZI_KERNEL_mhc_wide_project_f32_32 :
			   p->m <= 48 ? HZI_KERNEL_mhc_wide_project_f32_48 :
					HZI_KERNEL_mhc_wide_project_f32_80;

	return hzi_mhc_launch(ctx, op, kernel + type_of(p->dtype),
			      ceil_div(p->groups, HZI_WIDE_TOKENS), p->splits, HZI_WIDE_THREADS, 0,
			      p, sizeof(*p));
}

static size_t phi_bytes(const struct hzi_mhc_dx *p, int wide)
{
	return p->draw ? (size_t)wide * (size_t)p->n * 2 * (size_t)ceil_div(p->m, 16) * 512 : 0;
}

bool hzi_pre_wide_takes_dx(const struct hz_context *ctx, const struct hzi_mhc_dx *p)
{
	return p->channels > 0 && p->channels % 4 == 0 && p->tokens > 0 &&
	       p->dx_dtype == p->dtype && in_fours(&p->dx, p->dtype) &&
	       (!p->own || in_fours(&p->x, p->dtype)) && in_fours(&p->dy, p->dtype) &&
	       in_fours(&p->du, p->du_dtype) &&
	       phi_bytes(p, 1) <= (size_t)hzi_cuda_device(ctx)->shared_block_bytes;
}

int hzi_pre_wide_dx(struct hz_context *ctx, const struct hzi_mhc_dx *of)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const int64_t wanted = (of->n > 4 ? 2 : 4) * g->multiprocessors;
	struct hzi_mhc_dx p = *of;
	int64_t slices, splits;

	/* 128 or 256 bytes of a row, if there are so many and phi of them has room */
	for (p.wide = 4; p.wide > 1; p.wide /= 2)
		if (phi_bytes(&p, p.wide) <= (size_t)g->shared_block_bytes &&
		    p.channels > p.wide / 2 * 16)
			break;
	slices = ceil_div(p.channels, p.wide * 16);
	splits = min_of(wanted / slices, ceil_div(p.tokens, WARPS / p.wide * 16));
	return hzi_mhc_launch(ctx, OP,
			      (p.n > 4 ? HZI_KERNEL_mhc_wide_dx_f32_8 :
					 HZI_KERNEL_mhc_wide_dx_f32_4) + type_of(p.dtype),
			      slices, splits < 1 ? 1 : splits, HZI_WIDE_THREADS,
			      phi_bytes(&p, p.wide), &p, sizeof(p));
}

bool hzi_pre_wide_takes_dphi(const struct hzi_mhc_array *x, int64_t channels, int dtype)
{
	return channels > 0 && channels % 8 == 0 && hzi_pre_quick(x, dtype);
}

static int64_t dphi_blocks(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->channels, HZI_WIDE_THREADS) * s->n;
}

int hzi_pre_wide_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t wanted = 4 * hzi_cuda_device(ctx)->multiprocessors;
	const int64_t most = min_of(ceil_div(s->groups, HZI_WIDE_PART), SPLITS);
	const int64_t splits = min_of(wanted / dphi_blocks(s), most);

	return splits < 1 ? 1 : (int)splits;
}

int hzi_pre_wide_dphi(struct hz_context *ctx, const struct hzi_mhc_dphi *p)
{
	const struct hzi_mhc_shape s = {.channels = p->channels, .n = p->n};

	return hzi_mhc_launch(ctx, OP,
			      (p->m > 32 ? HZI_KERNEL_mhc_wide_dphi_f32_80 :
					   HZI_KERNEL_mhc_wide_dphi_f32_32) + type_of(p->dtype),
			      dphi_blocks(&s), p->splits, HZI_WIDE_THREADS, 0, p, sizeof(*p));
}
