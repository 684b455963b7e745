/*
 * gated_fused.c - launchers of gated branch inputs in three launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/gated_fused.h"
#include "gpu/mhc/launch.h"
#include "lib/mhc/gated.h"

#define FEW 16				/* tokens of a tile of the kernels _few */
#define SOME 128			/* tokens up to which those of _some are faster than _many */

/* sums: of how many warps. many: with weights that mhc_gated_weights made; kernels by dtype */
struct down {
	int kernel, tokens, rows, threads, sums, piece;
	bool many;
};

#define DOWN_ROW(name, MT, NT, WM, WN, WK, KT) \
	{HZI_KERNEL_mhc_gated_down_##name, 16 * (MT) * (WM), 8 * (NT) * (WN), \
	 32 * (WM) * (WN) * (WK), WK, KT, false},
#define MANY_ROW(name, rows) \
	{HZI_KERNEL_mhc_gated_down_##name##_f16, HZI_MHC_MANY_TOKENS, rows, HZI_MHC_MANY_THREADS, 1, \
	 HZI_MHC_MANY_PIECE, true}
static const struct down downs[] = {
	HZI_MHC_DOWN_TILES(DOWN_ROW)
	MANY_ROW(narrow, HZI_MHC_NARROW_ROWS), MANY_ROW(many, HZI_MHC_MANY_ROWS),
};

struct up {
	int kernel, tokens, channels, threads, stages;
};

#define UP_ROW(name, MT, NT, WM, WN, STAGES, BLOCKS) \
	{HZI_KERNEL_mhc_gated_up_##name##_f32, 16 * (MT) * (WM), 8 * (NT) * (WN), 32 * (WM) * (WN), \
	 STAGES},
static const struct up ups[] = {HZI_MHC_UP_TILES(UP_ROW)};

enum { TILES_FEW, TILES_SOME, TILES_NARROW, TILES_MANY, UP_MANY = 2 };

struct plan {
	const struct down *down;
	const struct up *up;
	struct hzi_mhc_gated_job job;
	size_t down_bytes, up_bytes;	/* of shared memory */
	int64_t token_tiles, up_tiles;
};

static size_t up_bytes(const struct up *up, const struct hzi_mhc_gated_args *a)
{
	const int rank = (int)a->rank;
	const int w_pitch = a->up_dtype == HZ_F32 ? HZI_MHC_PITCH_F32(rank) : HZI_MHC_PITCH(rank);

	return 4 * (size_t)(2 * up->tokens * HZI_MHC_PITCH(rank) +
			    up->stages * up->channels * w_pitch);
}

/* Rows of weights and slices of channels that make about a block for each SM */
static void plan_down(const struct hzi_cuda_device *gpu, struct plan *p, int index)
{
	const struct down *const d = &downs[index];
	struct hzi_mhc_gated_job *const j = &p->job;
	const struct hzi_mhc_gated_args *const a = &j->a;
	const int tiles = (int)ceil_div(j->rows, 8);
	const int64_t pieces = ceil_div(a->s.channels, d->piece), n = a->s.n;
	const int64_t token_tiles = ceil_div(a->s.tokens, d->tokens);
	int64_t blocks, row_tiles = ceil_div(tiles, d->rows / 8), splits;

	if (row_tiles < ceil_div(gpu->sms, token_tiles * n * pieces))
		row_tiles = ceil_div(gpu->sms, token_tiles * n * pieces);
	row_tiles = row_tiles < tiles ? row_tiles : tiles;
	j->tile_rows = (int)ceil_div(tiles, row_tiles) * 8;
	j->row_tiles = (int)ceil_div(tiles * 8, j->tile_rows);
	blocks = token_tiles * n * j->row_tiles;
	splits = blocks < gpu->sms ? (gpu->sms + blocks / 2) / blocks : 1;
	splits = splits < HZI_MHC_GATED_SLICES / n ? splits : HZI_MHC_GATED_SLICES / n;
	splits = splits < pieces ? splits : pieces;
	j->slice = ceil_div(pieces, splits) * d->piece;
	/* Two stages of few tokens may not fit: rather a slice of one piece than the other kernel */
	if (index == TILES_FEW && n * pieces <= HZI_MHC_GATED_AHEAD &&
	    8 * HZI_MHC_PITCH(d->piece) * (j->x_terms * d->tokens + j->w_terms * d->rows) >
		    gpu->shared_block_bytes - 4096)
		j->slice = d->piece;
	j->stream_slices = (int)ceil_div(a->s.channels, j->slice);
	j->slices = (int)n * j->stream_slices;
	p->down = d;
	p->token_tiles = token_tiles;
	p->down_bytes = 4 * (size_t)HZI_MHC_PITCH(d->piece);
	if (d->many)
		p->down_bytes *= (size_t)(HZI_MHC_MANY_STAGES * (d->tokens + 2 * d->rows));
	else
		p->down_bytes *= (size_t)((j->slice > d->piece ? 2 : 1) *
					  (j->x_terms * d->tokens + j->w_terms * d->rows));
	if (d->sums > 1 && p->down_bytes < 4 * (size_t)(d->sums * d->tokens * d->rows))
		p->down_bytes = 4 * (size_t)(d->sums * d->tokens * d->rows);
}

static void plan_up(const struct hzi_cuda_device *gpu, struct plan *p, int index)
{
	struct hzi_mhc_gated_job *const j = &p->job;
	const struct up *const up = &ups[index];
	const int64_t chunks = ceil_div(j->a.s.channels, up->channels);
	const int64_t tiles = ceil_div(j->a.s.tokens, up->tokens);
	int64_t splits = chunks;

	if (index == UP_MANY) {
		splits = 2 * gpu->sms / tiles;
		splits = splits < 1 ? 1 : splits < chunks ? splits : chunks;
	}
	j->chunks = (int)ceil_div(chunks, splits);
	j->splits = (int)ceil_div(chunks, j->chunks);
	p->up = up;
	p->up_tiles = tiles;
	p->up_bytes = up_bytes(up, &j->a);
}

static bool plan_of(const struct hz_context *ctx, const struct hzi_mhc_gated_args *a,
		    struct plan *p)
{
	const struct hzi_cuda_device *const gpu = hzi_cuda_device(ctx);
	const size_t limit = (size_t)gpu->shared_block_bytes - 4096;	/* of static memory */
	const int64_t T = a->s.tokens;
	struct hzi_mhc_gated_job *const j = &p->job;
	int up;

	*p = (struct plan){.job.a = *a};
	j->rows = (int)(a->rank + (a->q.data ? a->s.n : 0));
	j->pitch = (int)ceil_div(j->rows, 8) * 8;
	j->gain_on_x = a->gain && T <= FEW;
	j->x_terms = a->s.dtype == HZ_BF16 && !j->gain_on_x ? 1 : 2;
	j->w_terms = a->down_dtype == HZ_BF16 && (!a->gain || j->gain_on_x) &&
			     (a->q_dtype == HZ_BF16 || !a->q.data) ? 1 : 2;
	up = T <= FEW ? TILES_FEW : T <= SOME ? TILES_SOME : UP_MANY;
	if (T <= SOME || a->s.dtype == HZ_F32)
		plan_down(gpu, p, T <= FEW ? TILES_FEW : TILES_SOME);
	else
		plan_down(gpu, p, j->rows <= HZI_MHC_NARROW_ROWS ? TILES_NARROW : TILES_MANY);
	if (p->down_bytes > limit)
		plan_down(gpu, p, TILES_SOME);
	plan_up(gpu, p, up);
	if (p->up_bytes > limit)
		plan_up(gpu, p, TILES_SOME);
	if (p->up_bytes > limit)
		plan_up(gpu, p, TILES_FEW);
	return p->down_bytes <= limit && p->up_bytes <= limit;
}

/* Parts of the workspace */
static size_t take_all(const struct hz_context *ctx, struct plan *p)
{
	struct hzi_mhc_gated_job *const j = &p->job;
	const int64_t T = j->a.s.tokens, K = j->a.s.n * j->a.s.channels;
	size_t used = 0;

	j->partial = hzi_cuda_mhc_take(ctx, &used, j->slices * T * j->pitch);
	j->squares = hzi_cuda_mhc_take(ctx, &used, j->slices * T);
	j->roots = hzi_cuda_mhc_take(ctx, &used, T * j->a.s.n);
	j->hidden = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, T * j->a.rank);
	j->terms = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, p->down->many ? j->rows * K : 0);
	j->scales = hzi_cuda_mhc_take(ctx, &used, p->down->many ? j->rows : 0);
	return used;
}

static bool is_vector(const void *p)
{
	return (uintptr_t)p % 16 == 0;
}

const char *hzi_cuda_mhc_gated_fused_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;
	struct plan p;

	if (a->order.channel != 1)
		return "the streams of a channel are contiguous (HZ_MHC_STREAMS_CN)";
	if (a->rank % 16 != 0 || a->rank > HZI_MHC_GATED_RANK)
		return "r is not a multiple of 16, up to 256";
	if (a->s.channels == 0 || a->s.channels % 8 != 0)
		return "channels are not a multiple of 8";
	if (!hzi_cuda_mhc_is_aligned(&a->x, a->s.dtype) ||
	    !hzi_cuda_mhc_is_aligned(&a->u, a->s.dtype))
		return "rows of x or u are not contiguous and 16-byte aligned";
	if (!is_vector(a->w_down) || !is_vector(a->w_up) || !is_vector(a->w_q) ||
	    !is_vector(a->gain))
		return "weights are not 16-byte aligned";
	if (a->q.data && a->q_dtype != HZ_F32 && a->q_dtype != a->down_dtype)
		return "w_q is neither f32 nor of the dtype of w_down";
	return plan_of(ctx, a, &p) ? NULL : "too little shared memory";
}

size_t hzi_cuda_mhc_gated_fused_workspace(const struct hz_context *ctx, const void *args)
{
	struct plan p;

	plan_of(ctx, args, &p);
	return take_all(ctx, &p);
}

int hzi_cuda_mhc_gated_fused(struct hz_context *ctx, const void *args)
{
	static const char op[] = "mhc_gated";
	const struct hzi_mhc_gated_args *const a = args;
	struct plan p;
	struct hzi_mhc_gated_job *const j = &p.job;

	plan_of(ctx, a, &p);
	take_all(ctx, &p);
	if (p.down->many)
		HZ_CHECK(hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_gated_weights, j->rows, 1,
					     HZI_MHC_WEIGHTS_THREADS, 0, j, sizeof(*j)));
	HZ_CHECK(hzi_cuda_mhc_launch(ctx, op,
				     p.down->kernel + (p.down->many && a->s.dtype == HZ_BF16),
				     p.token_tiles * j->slices * j->row_tiles, 1,
				     p.down->threads, p.down_bytes, j, sizeof(*j)));
	HZ_CHECK(hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_gated_hidden, a->s.tokens, 1,
				     (int)ceil_div(j->rows + a->s.n, 32) * 32, 0, j, sizeof(*j)));
	if (!a->u.data)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, op, p.up->kernel + hzi_cuda_mhc_type_index(a->up_dtype),
				   p.up_tiles * j->splits, 1, p.up->threads, p.up_bytes, j,
				   sizeof(*j));
}

/* ---- Other operands, gradients --------------------------------------------------------------- */

size_t hzi_cuda_mhc_gated_chain_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_mhc_gated_chain_workspace(ctx, args);
}

int hzi_cuda_mhc_gated_chain(struct hz_context *ctx, const void *args)
{
	return hzi_mhc_gated_chain(ctx, args);
}

size_t hzi_cuda_mhc_gated_bwd_chain_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_mhc_gated_bwd_chain_workspace(ctx, args);
}

int hzi_cuda_mhc_gated_bwd_chain(struct hz_context *ctx, const void *args)
{
	return hzi_mhc_gated_bwd_chain(ctx, args);
}
