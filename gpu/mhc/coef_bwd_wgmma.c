/*
 * coef_bwd_wgmma.c - launchers of the gradients of 5 to 8 bf16 streams and of phi by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/coef_bwd_wgmma.h"
#include "gpu/mhc/launch.h"

#define OP "mhc_pre_bwd"
#define TOKENS HZI_MHC_BWD_WGMMA_TOKENS
#define TERMS HZI_MHC_BWD_WGMMA_TERMS

int64_t hzi_cuda_mhc_bwd_wgmma_strips(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->channels, HZI_MHC_BWD_WGMMA_STRIP);
}

static int64_t dphi_blocks(const struct hzi_mhc_shape *s)
{
	return s->n * ceil_div(s->channels, HZI_MHC_BWD_WGMMA_COLUMNS);
}

/* Splits of the tiles of tokens, each of `blocks` blocks: the fewest tiles for the busiest SM */
static int splits_of(const struct hz_context *ctx, const struct hzi_mhc_shape *s, int64_t blocks)
{
	const int64_t sms = hzi_cuda_device(ctx)->sms, tiles = ceil_div(s->tokens, TOKENS);
	int64_t best = INT64_MAX;
	int splits = 1;

	for (int i = 1; i <= tiles && (i == 1 || blocks * i <= 4 * sms); i++) {
		const int64_t most = ceil_div(blocks * i, sms) * ceil_div(tiles, i);

		if (most < best) {
			best = most;
			splits = i;
		}
	}
	return splits;
}

const char *hzi_cuda_mhc_coef_bwd_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_bwd_args *a = args;
	const struct hzi_mhc_shape *s = &a->s;

	if (s->n <= 4 || s->dtype != HZ_BF16)
		return "at most 4 streams, or not of bf16";
	if (!a->phi || a->rule.m > TERMS / 2 || hzi_cuda_mhc_copies_x(s, &a->rule))
		return "phi is NULL, has more than 80 rows, or does not multiply x itself";
	if (a->norm && a->du.data)
		return "u is normalized";
	if (hzi_cuda_device(ctx)->shared_block_bytes < HZI_MHC_BWD_WGMMA_BYTES)
		return "too little shared memory";
	if (s->tokens == 0 || s->channels == 0 || s->channels % 8 != 0 ||
	    s->channels >= INT32_MAX / 16)
		return "no tokens, or channels are not a multiple of 8";
	if ((uintptr_t)a->phi % 16 != 0 || (uintptr_t)a->gain % 16 != 0 ||
	    !hzi_cuda_mhc_is_aligned(&a->dx, s->dtype) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->x, s, s->n) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->dy, s, s->n) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->du, s, 1))
		return "rows of x, du, dy or dx overlap, are unaligned or too far apart, or phi is";
	return a->dx.data || a->dphi || a->dgain ? NULL : "neither dx nor dphi is wanted";
}

int hzi_cuda_mhc_bwd_wgmma_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	return splits_of(ctx, s, dphi_blocks(s));
}

static int make_map(struct hz_context *ctx, struct hzi_tensor_map *map,
		    const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, int streams)
{
	if (!x->data)
		return HZ_OK;
	return hzi_cuda_tensor_map_3d(ctx, OP, map, x->data, 2 * s->channels, s->tokens,
				      2 * x->token, streams,
				      2 * (streams > 1 ? x->stream : x->token),
				      2 * HZI_MHC_BWD_WGMMA_STRIP, TOKENS, 1);
}

/* terms [tokens][TERMS] */
static int make_draw_map(struct hz_context *ctx, struct hzi_tensor_map *map, const uint16_t *terms,
			 const struct hzi_mhc_shape *s)
{
	return hzi_cuda_tensor_map_3d(ctx, OP, map, terms, 2 * TERMS, s->tokens, 2 * TERMS, 1,
				      2 * TERMS, 128, TOKENS, 1);
}

int hzi_cuda_mhc_wgmma_dx(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			  const float *records, const uint16_t *terms, const uint16_t *phi)
{
	const struct hzi_mhc_shape *s = &a->s;
	const int64_t strips = hzi_cuda_mhc_bwd_wgmma_strips(s);
	struct hzi_mhc_dx_wgmma p = {
		.records = records, .dx = a->dx, .tokens = s->tokens, .channels = s->channels,
		.n = s->n, .splits = splits_of(ctx, s, strips),
		.dy_streams = a->dy.data ? s->n : 0, .du_streams = a->du.data != NULL,
		.accumulate = a->accumulate, .blocks = strips % 2 ? 1 : 2,
	};
	const struct hzi_launch how = {
		.grid = {(unsigned)strips, (unsigned)p.splits},
		.block = {HZI_MHC_BWD_WGMMA_THREADS}, .shared_bytes = HZI_MHC_BWD_WGMMA_BYTES,
		.cluster = (unsigned)p.blocks, .early = true, .aligned = true,
	};

	HZ_CHECK(make_map(ctx, &p.x, &a->x, s, s->n));
	HZ_CHECK(make_map(ctx, &p.dy, &a->dy, s, s->n));
	HZ_CHECK(make_map(ctx, &p.du, &a->du, s, 1));
	HZ_CHECK(make_draw_map(ctx, &p.draw, terms, s));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, OP, &p.phi, phi, 128,
					strips * (HZI_MHC_STREAMS / 2) * TERMS, 128, 1, 128, 128,
					TERMS, 1));
	return hzi_cuda_launch(ctx, OP, HZI_KERNEL_mhc_coef_wgmma_dx, &how, &p, sizeof(p));
}

int hzi_cuda_mhc_wgmma_dphi(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			    const uint16_t *terms, float *partial, int splits)
{
	const struct hzi_mhc_shape *s = &a->s;
	struct hzi_mhc_dphi_wgmma p = {
		.partial = partial, .channels = s->channels,
		.tiles = (int32_t)ceil_div(s->tokens, TOKENS), .n = s->n, .m = a->rule.m,
		.splits = splits,
	};
	const struct hzi_launch how = {
		.grid = {(unsigned)dphi_blocks(s), (unsigned)splits},
		.block = {HZI_MHC_BWD_WGMMA_THREADS}, .shared_bytes = HZI_MHC_BWD_WGMMA_BYTES,
		.early = true, .aligned = true,
	};

	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.x, &a->x, s, s->n, TOKENS, 1));
	HZ_CHECK(make_draw_map(ctx, &p.draw, terms, s));
	return hzi_cuda_launch(ctx, OP, HZI_KERNEL_mhc_coef_wgmma_dphi, &how, &p, sizeof(p));
}
