/*
 * coef_wgmma.c - launchers of the projection of bf16 streams by phi with many rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_wgmma.h"
#include "gpu/mhc/launch.h"

#define SPLITS 64

static int64_t chunks_of(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->channels, HZI_MHC_WGMMA_CHUNK);
}

const char *hzi_cuda_mhc_coef_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;
	const struct hzi_mhc_array *x = hzi_cuda_mhc_coef_x(a);
	const char *const why = hzi_cuda_mhc_coef_mma_unsupported(ctx, args);

	if (why)
		return why;
	if (hzi_cuda_device(ctx)->shared_block_bytes < HZI_MHC_WGMMA_BYTES)
		return "too little shared memory";
	if (a->s.dtype != HZ_BF16 || hzi_cuda_mhc_copies_x(&a->s, &a->rule))
		return "what phi multiplies is not bf16";
	if (a->rule.m > HZI_MHC_WGMMA_ROWS)
		return "phi has more than 80 rows";
	if (a->s.tokens == 0 || a->s.channels >= INT32_MAX / 16)
		return "there are no tokens, or offsets of channels exceed 32 bits";
	return hzi_cuda_mhc_has_tensor_map(x, &a->s, a->s.n) ? NULL :
	       "x has no tensor map: rows overlap, are unaligned or too far apart";
}

int64_t hzi_cuda_mhc_wgmma_phi_floats(const struct hzi_mhc_shape *s)
{
	return s->n * s->channels * HZI_MHC_WGMMA_ROWS;
}

int hzi_cuda_mhc_wgmma_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t blocks = ceil_div(s->groups, HZI_MHC_WGMMA_TOKENS);
	const int64_t even = blocks > 1 ? blocks + blocks % 2 : 1;
	const int64_t most = min_of(s->n * chunks_of(s), SPLITS);
	const int64_t splits = min_of(hzi_cuda_device(ctx)->sms / even, most);

	return splits < 1 ? 1 : (int)splits;
}

int hzi_cuda_mhc_wgmma_project(struct hz_context *ctx, const char *op,
			       const struct hzi_mhc_project *of, float *phi)
{
	const struct hzi_mhc_shape s = {
		.tokens = of->groups, .groups = of->groups, .channels = of->channels, .n = of->n,
		.dtype = of->dtype,
	};
	const int64_t columns = of->n * of->channels;
	const int64_t tiles = ceil_div(of->groups, HZI_MHC_WGMMA_TOKENS);
	const struct hzi_mhc_split_phi split = {
		.phi = of->phi, .gain = of->gain, .to = (uint16_t *)phi, .columns = columns,
		.m = of->m,
	};
	struct hzi_mhc_project_wgmma p = {
		.sums = of->sums, .tokens = of->groups, .n = of->n, .m = of->m,
		.splits = of->splits, .chunks = (int32_t)chunks_of(&s),
		.blocks = tiles > 1 ? HZI_MHC_WGMMA_BLOCKS : 1,
	};
	const struct hzi_launch how = {
		.grid = {(unsigned)(ceil_div(tiles, p.blocks) * p.blocks), (unsigned)p.splits},
		.block = {HZI_MHC_WGMMA_THREADS}, .shared_bytes = HZI_MHC_WGMMA_BYTES,
		.cluster = (unsigned)p.blocks, .early = true, .aligned = true,
	};

	HZ_CHECK(hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_coef_split_phi,
				     ceil_div(columns / 8 * HZI_MHC_WGMMA_ROWS, 256), 1, 256, 0,
				     &split, sizeof(split)));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, op, &p.x, &of->x, &s, of->n,
					      HZI_MHC_WGMMA_TOKENS, 1));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, op, &p.phi, phi, 2 * of->channels,
					2 * HZI_MHC_WGMMA_ROWS, 2 * columns, of->n,
					2 * of->channels, 128, 2 * HZI_MHC_WGMMA_ROWS / p.blocks,
					1));
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_mhc_coef_wgmma_project, &how, &p, sizeof(p));
}

size_t hzi_cuda_mhc_coef_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches_workspace(ctx, args, HZI_MHC_WGMMA);
}

int hzi_cuda_mhc_coef_wgmma(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_mhc_coef_by_launches(ctx, args, HZI_MHC_WGMMA);
}
