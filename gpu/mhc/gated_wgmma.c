/*
 * gated_wgmma.c - launchers of gated branch inputs of many tokens, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/gated_wgmma.h"
#include "gpu/mhc/launch.h"

#define OP "mhc_gated"
#define LEAST_CHUNKS 4			/* of a slice */
#define MOST_SLICES 32			/* of all channels, for the size of the workspace */

const char *hzi_cuda_mhc_gated_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;
	const char *const why = hzi_cuda_mhc_gated_fused_unsupported(ctx, args);

	if (why)
		return why;
	if (hzi_cuda_device(ctx)->shared_block_bytes < HZI_MHC_GATED_BYTES)
		return "too little shared memory";
	if (a->s.dtype == HZ_F32 || a->up_dtype != HZ_BF16)
		return "streams are f32, or w_up is not bf16";
	if (a->rank > HZI_MHC_GATED_UP_RANK)
		return "r is more than 128";
	if (!hzi_cuda_mhc_has_tensor_map(&a->x, &a->s, a->s.n) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->u, &a->s, 1))
		return "x or u has no tensor map: rows overlap or are too far apart";
	return NULL;
}

/* Slices of channels that make about a block for each SM; returns the tiles of tokens. */
static int64_t plan_down(const struct hz_context *ctx, struct hzi_mhc_gated_wgmma *p)
{
	struct hzi_mhc_gated_job *const j = &p->job;
	const int64_t chunks = ceil_div(j->a.s.channels, HZI_MHC_GATED_CHUNK), n = j->a.s.n;
	const int64_t tiles = ceil_div(j->a.s.tokens, HZI_MHC_GATED_DOWN_TOKENS);
	int64_t splits = hzi_cuda_device(ctx)->sms / (tiles * n);

	p->cluster = tiles > 1 ? HZI_MHC_GATED_CLUSTER : 1;
	splits = min_of(splits, min_of(ceil_div(chunks, LEAST_CHUNKS), MOST_SLICES / n));
	j->slice = ceil_div(chunks, splits < 1 ? 1 : splits) * HZI_MHC_GATED_CHUNK;
	j->stream_slices = (int)ceil_div(j->a.s.channels, j->slice);
	j->slices = (int)n * j->stream_slices;
	return ceil_div(tiles, p->cluster) * p->cluster;
}

static int64_t plan_up(const struct hz_context *ctx, struct hzi_mhc_gated_job *j)
{
	const int64_t chunks = ceil_div(j->a.s.channels, HZI_MHC_GATED_CHUNK);
	const int64_t tiles = ceil_div(j->a.s.tokens, HZI_MHC_GATED_UP_TOKENS);
	const int64_t splits = min_of(hzi_cuda_device(ctx)->sms / tiles, chunks);

	j->chunks = (int)ceil_div(chunks, splits < 1 ? 1 : splits);
	j->splits = (int)ceil_div(chunks, j->chunks);
	return tiles * j->splits;
}

size_t hzi_cuda_mhc_gated_wgmma_plan(const struct hz_context *ctx,
				     const struct hzi_mhc_gated_args *a,
				     struct hzi_mhc_gated_wgmma *p, int64_t *down_tiles)
{
	const int64_t T = a->s.tokens, K = a->s.n * a->s.channels;
	struct hzi_mhc_gated_job *const j = &p->job;
	size_t used = 0;

	*p = (struct hzi_mhc_gated_wgmma){.job.a = *a};
	j->rows = (int)(a->rank + (a->w_q ? a->s.n : 0));
	j->pitch = (int)ceil_div(j->rows, 8) * 8;
	*down_tiles = plan_down(ctx, p);
	j->partial = hzi_cuda_mhc_take(ctx, &used, j->slices * T * j->pitch);
	j->squares = hzi_cuda_mhc_take(ctx, &used, j->slices * T);
	j->roots = hzi_cuda_mhc_take(ctx, &used, T * a->s.n);
	j->hidden = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, T * a->rank);
	j->terms = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, j->rows * K);
	j->scales = hzi_cuda_mhc_take(ctx, &used, j->rows);
	return used;
}

size_t hzi_cuda_mhc_gated_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_mhc_gated_wgmma p;
	int64_t tiles;

	return hzi_cuda_mhc_gated_wgmma_plan(ctx, args, &p, &tiles);
}

static int launch(struct hz_context *ctx, int kernel, int64_t x, int64_t y, int cluster,
		  const struct hzi_mhc_gated_wgmma *p)
{
	const struct hzi_launch how = {
		.grid = {(unsigned)x, (unsigned)y}, .block = {HZI_MHC_GATED_WGMMA_THREADS},
		.shared_bytes = HZI_MHC_GATED_BYTES, .cluster = (unsigned)cluster, .early = true,
		.aligned = true,
	};

	HZ_CHECK(hzi_cuda_mhc_check_blocks(ctx, OP, x));
	return hzi_cuda_launch(ctx, OP, kernel + (p->job.a.s.dtype == HZ_BF16), &how, p,
			       sizeof(*p));
}

int hzi_cuda_mhc_gated_wgmma_hidden(struct hz_context *ctx, struct hzi_mhc_gated_wgmma *p,
				    int64_t tiles)
{
	const struct hzi_mhc_gated_job *const j = &p->job;
	const struct hzi_mhc_gated_args *const a = &j->a;
	const int64_t C = a->s.channels;

	HZ_CHECK(hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_gated_weights, j->rows, 1,
				     HZI_MHC_WEIGHTS_THREADS, 0, j, sizeof(*j)));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p->x, &a->x, &a->s, a->s.n,
					      HZI_MHC_GATED_DOWN_TOKENS, 1));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, OP, &p->w, j->terms, 2 * C, 2 * j->rows,
					2 * C * a->s.n, a->s.n, 2 * C, 128,
					HZI_MHC_GATED_DOWN_ROWS, 1));
	HZ_CHECK(launch(ctx, HZI_KERNEL_mhc_gated_down_wgmma_f16, tiles, j->slices, p->cluster, p));
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_gated_hidden_warps,
				   ceil_div(a->s.tokens, HZI_MHC_WARPS_TOKENS), 1,
				   HZI_MHC_WARPS_TOKENS * 32, 0, j, sizeof(*j));
}

int hzi_cuda_mhc_gated_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;
	struct hzi_mhc_gated_wgmma p;
	int64_t tiles;

	hzi_cuda_mhc_gated_wgmma_plan(ctx, a, &p, &tiles);
	HZ_CHECK(hzi_cuda_mhc_gated_wgmma_hidden(ctx, &p, tiles));
	if (!a->u.data)
		return HZ_OK;
	tiles = plan_up(ctx, &p.job);
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.x, &a->x, &a->s, a->s.n,
					      HZI_MHC_GATED_UP_TOKENS, HZI_MHC_GATED_UP_STREAMS));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, OP, &p.w, a->w_up, 2 * a->rank,
					a->s.channels, 2 * a->rank, a->s.n,
					2 * a->rank * a->s.channels, 128, HZI_MHC_GATED_CHUNK,
					HZI_MHC_GATED_UP_STREAMS));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.u, &a->u, &a->s, 1,
					      HZI_MHC_GATED_UP_WARP_TOKENS, 1));
	return launch(ctx, HZI_KERNEL_mhc_gated_up_wgmma_f16, tiles, 1, 1, &p);
}
