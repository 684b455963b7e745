/*
 * coef_mma.c - launchers of products of streams and phi on tensor cores, and their gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"

#define OP "mhc_pre_bwd"
#define WARPS (HZI_MHC_MMA_THREADS / 32)
#define SPLITS 64			/* at most: one thread adds them up */

const char *hzi_cuda_mhc_mma_project_unsupported(const struct hzi_mhc_shape *s,
						 const struct hzi_mhc_array *x, const float *phi,
						 const float *gain)
{
	if (s->channels == 0 || s->channels % 8 != 0)
		return "channels are not a multiple of 8";
	if (x && !hzi_cuda_mhc_is_aligned(x, s->dtype))
		return "rows of x are not contiguous and 16-byte aligned";
	if ((uintptr_t)phi % 16 != 0 || (uintptr_t)gain % 16 != 0)
		return "phi or gain is not 16-byte aligned";
	return NULL;
}

int hzi_cuda_mhc_mma_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t wanted = 2 * hzi_cuda_device(ctx)->sms;
	const int64_t blocks = ceil_div(s->groups, HZI_MHC_MMA_TOKENS);
	const int64_t most = min_of(s->n * ceil_div(s->channels, HZI_MHC_MMA_CHUNK), SPLITS);
	const int64_t splits = min_of(wanted / (blocks ? blocks : 1), most);

	return splits < 1 ? 1 : (int)splits;
}

int hzi_cuda_mhc_mma_project(struct hz_context *ctx, const char *op,
			     const struct hzi_mhc_project *p)
{
	const int kernel = p->m <= 8 ? HZI_KERNEL_mhc_coef_mma_project_f32_8 :
			   p->m <= 24 ? HZI_KERNEL_mhc_coef_mma_project_f32_24 :
			   p->m <= 32 ? HZI_KERNEL_mhc_coef_mma_project_f32_32 :
			   p->m <= 48 ? HZI_KERNEL_mhc_coef_mma_project_f32_48 :
					HZI_KERNEL_mhc_coef_mma_project_f32_80;

	return hzi_cuda_mhc_launch(ctx, op, kernel + hzi_cuda_mhc_type_index(p->dtype),
				   ceil_div(p->groups, HZI_MHC_MMA_TOKENS), p->splits,
				   HZI_MHC_MMA_THREADS, 0, p, sizeof(*p));
}

static size_t phi_bytes(const struct hzi_mhc_dx *p, int channel_groups)
{
	return p->draw ? (size_t)channel_groups * (size_t)p->n * 2 * (size_t)ceil_div(p->m, 16) *
				 512 :
			 0;
}

bool hzi_cuda_mhc_mma_dx_is_aligned(const struct hzi_mhc_array *x, int dtype)
{
	const int64_t size = (int64_t)hz_dtype_size(dtype);

	return !x->data || (x->channel == 1 && (uintptr_t)x->data % (uintptr_t)(4 * size) == 0 &&
			    x->token % 4 == 0 && x->stream % 4 == 0);
}

int hzi_cuda_mhc_mma_dx(struct hz_context *ctx, const struct hzi_mhc_dx *of)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const int64_t wanted = (of->n > 4 ? 2 : 4) * g->sms;
	struct hzi_mhc_dx p = *of;
	int64_t slices, splits;
	int kernel;

	/*
	 * Blocks read 128 or 256 contiguous bytes of a row, if it is that long and the slice of phi
	 * fits shared memory.
	 */
	for (p.channel_groups = 4; p.channel_groups > 1; p.channel_groups /= 2)
		if (phi_bytes(&p, p.channel_groups) <= (size_t)g->shared_block_bytes &&
		    p.channels > p.channel_groups / 2 * 16)
			break;
	slices = ceil_div(p.channels, p.channel_groups * 16);
	splits = min_of(wanted / slices, ceil_div(p.tokens, WARPS / p.channel_groups * 16));
	kernel = (p.n > 4 ? HZI_KERNEL_mhc_coef_mma_dx_f32_8 : HZI_KERNEL_mhc_coef_mma_dx_f32_4) +
		 hzi_cuda_mhc_type_index(p.dtype);
	return hzi_cuda_mhc_launch(ctx, OP, kernel, slices, splits < 1 ? 1 : splits,
				   HZI_MHC_MMA_THREADS, phi_bytes(&p, p.channel_groups), &p,
				   sizeof(p));
}

static int64_t dphi_blocks(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->channels, HZI_MHC_MMA_THREADS) * s->n;
}

int hzi_cuda_mhc_mma_dphi_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t wanted = 4 * hzi_cuda_device(ctx)->sms;
	const int64_t most = min_of(ceil_div(s->groups, HZI_MHC_MMA_PART), SPLITS);
	const int64_t splits = min_of(wanted / dphi_blocks(s), most);

	return splits < 1 ? 1 : (int)splits;
}

int hzi_cuda_mhc_mma_dphi(struct hz_context *ctx, const struct hzi_mhc_dphi *p)
{
	const struct hzi_mhc_shape s = {.channels = p->channels, .n = p->n};
	const int kernel = (p->m > 32 ? HZI_KERNEL_mhc_coef_mma_dphi_f32_80 :
			    HZI_KERNEL_mhc_coef_mma_dphi_f32_32) +
			   hzi_cuda_mhc_type_index(p->dtype);

	return hzi_cuda_mhc_launch(ctx, OP, kernel, dphi_blocks(&s), p->splits, HZI_MHC_MMA_THREADS,
				   0, p, sizeof(*p));
}
