/*
 * gated_bwd_wgmma.c - launchers of gradients of gated branch inputs by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/gated.h"
#include "gpu/mhc/gated_bwd_wgmma.h"
#include "gpu/mhc/launch.h"

#define OP "mhc_gated_bwd"
#define WARP_TOKENS 16

const char *hzi_cuda_mhc_gated_bwd_wgmma_unsupported(const struct hz_context *ctx,
						     const void *args)
{
	const struct hzi_mhc_gated_bwd_args *const g = args;
	const struct hzi_mhc_gated_args *const a = &g->of;
	const char *why;

	if (a->s.tokens == 0 || !g->du.data)
		return "there are no tokens, or u has no gradient";
	why = hzi_cuda_mhc_gated_wgmma_unsupported(ctx, a);
	if (why)
		return why;
	if (a->s.dtype != HZ_BF16)
		return "streams are not bf16";
	if (a->w_q && a->q_dtype != HZ_F32 && a->q_dtype != a->down_dtype)
		return "w_q is neither f32 nor of the dtype of w_down";
	if (!hzi_cuda_mhc_has_tensor_map(&g->du, &a->s, 1) ||
	    !hzi_cuda_mhc_has_tensor_map(&g->dx, &a->s, a->s.n))
		return "du or dx has no tensor map: rows overlap or are too far apart";
	if (!hzi_cuda_mhc_is_aligned(&g->dy, HZ_BF16))
		return "rows of dy are not contiguous and 16-byte aligned";
	if ((uintptr_t)g->dw_up % 8 != 0)
		return "dw_up is not 8-byte aligned";
	return NULL;
}

/* What a call uses of the workspace */
struct plan {
	struct hzi_mhc_gated_wgmma forward;
	struct hzi_mhc_gated_bwd_wgmma p;
	uint16_t *planes, *terms;	/* terms: of W_down and W_q without gain */
	int64_t down_tiles, tiles;
};

static size_t plan_of(const struct hz_context *ctx, const struct hzi_mhc_gated_bwd_args *g,
		      struct plan *w)
{
	const struct hzi_mhc_gated_args *const a = &g->of;
	const int64_t T = a->s.tokens, C = a->s.channels, n = a->s.n, K = n * C;
	const int64_t steps = n * ceil_div(C, HZI_MHC_GATED_CHUNK);
	struct hzi_mhc_gated_bwd_wgmma *const p = &w->p;
	size_t used = hzi_cuda_mhc_gated_wgmma_plan(ctx, a, &w->forward, &w->down_tiles);
	const int pitch = w->forward.job.pitch, rows = w->forward.job.rows;
	int64_t splits;

	*p = (struct hzi_mhc_gated_bwd_wgmma){.job = w->forward.job, .g = *g};
	w->tiles = ceil_div(T, HZI_MHC_BWD_TOKENS);
	splits = min_of(hzi_cuda_device(ctx)->sms / w->tiles, steps);
	p->steps = (int)ceil_div(steps, splits < 1 ? 1 : splits);
	p->splits = (int)ceil_div(steps, p->steps);
	p->terms = a->down_dtype == HZ_BF16 && (!a->w_q || a->q_dtype == HZ_BF16) ? 1 : 2;
	p->first_dw = !g->dw_up;
	w->planes = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, 3 * steps * T *
							       HZI_MHC_GATED_CHUNK / 2);
	w->terms = p->job.terms;
	if (a->gain && p->terms == 2)
		w->terms = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, rows * K);
	p->ddown = (uint16_t *)hzi_cuda_mhc_take(ctx, &used, (n + 1) * T * pitch);
	p->dhidden = hzi_cuda_mhc_take(ctx, &used, p->splits * T * a->rank);
	p->dots = hzi_cuda_mhc_take(ctx, &used, p->splits * T * n);
	p->factors = hzi_cuda_mhc_take(ctx, &used, 2 * T * n);
	if (g->dgain)
		p->dgain = hzi_cuda_mhc_take(ctx, &used, w->tiles * HZI_MHC_BWD_TOKENS /
							     HZI_MHC_DGAIN_TOKENS * K);
	return used;
}

size_t hzi_cuda_mhc_gated_bwd_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	struct plan w;

	return plan_of(ctx, args, &w);
}

/* 64 columns by `box` rows of an array [planes][rows][columns] of 16-bit numbers, contiguous */
static int make_map(struct hz_context *ctx, struct hzi_tensor_map *map, const void *data,
		    int64_t columns, int64_t rows, int planes, int box)
{
	return hzi_cuda_tensor_map_3d(ctx, OP, map, data, 2 * columns, rows, 2 * columns, planes,
				      2 * columns * rows, 128, box, 1);
}

/* Of W_down and W_q, or of their terms. Without W_q its rows are those after W_down: 0 */
static int make_weights_maps(struct hz_context *ctx, struct plan *w)
{
	struct hzi_mhc_gated_bwd_wgmma *const p = &w->p;
	const struct hzi_mhc_gated_args *const a = &p->job.a;
	const int64_t C = a->s.channels, n = a->s.n;
	const bool plain = p->terms == 1;
	const void *const down = plain ? a->w_down : w->terms;
	const int64_t rows = plain ? a->rank : 2 * p->job.rows;

	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, OP, &p->w_down, down, 2 * C, rows, 2 * C * n, (int)n,
					2 * C, 128, HZI_MHC_GATED_UP_RANK, 1));
	p->first_q = plain && a->w_q ? 0 : (int)a->rank;
	return hzi_cuda_tensor_map_3d(ctx, OP, &p->w_q, plain && a->w_q ? a->w_q : down, 2 * C,
				      plain && a->w_q ? n : rows, 2 * C * n, (int)n, 2 * C, 128,
				      HZI_MHC_BWD_STEPS - HZI_MHC_GATED_UP_RANK, 1);
}

static int make_maps(struct hz_context *ctx, struct plan *w)
{
	struct hzi_mhc_gated_bwd_wgmma *const p = &w->p;
	const struct hzi_mhc_gated_args *const a = &p->job.a;
	const struct hzi_mhc_shape *const s = &a->s;
	const int64_t T = s->tokens, C = s->channels;
	const int n = s->n, tokens = HZI_MHC_BWD_TOKENS, step = HZI_MHC_DW_TOKENS;
	const int chunk = HZI_MHC_GATED_CHUNK, planes = 3 * n * (int)ceil_div(C, chunk);

	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p->x, &a->x, s, n, tokens, 1));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p->x_step, &a->x, s, n, step, 1));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p->du, &p->g.du, s, 1, tokens, 1));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p->dx, &p->g.dx, s, n, WARP_TOKENS, 1));
	HZ_CHECK(make_map(ctx, &p->w_up, a->w_up, a->rank, C, n, HZI_MHC_GATED_CHUNK));
	HZ_CHECK(make_weights_maps(ctx, w));
	HZ_CHECK(make_map(ctx, &p->planes, w->planes, chunk, T, planes, tokens));
	HZ_CHECK(make_map(ctx, &p->planes_warp, w->planes, chunk, T, planes, WARP_TOKENS));
	HZ_CHECK(make_map(ctx, &p->planes_step, w->planes, chunk, T, planes, step));
	HZ_CHECK(make_map(ctx, &p->hidden, p->job.hidden, a->rank, T, 2, tokens));
	HZ_CHECK(make_map(ctx, &p->hidden_step, p->job.hidden, a->rank, T, 2, step));
	return make_map(ctx, &p->ddown_step, p->ddown, p->job.pitch, T, 2 * (n + 1), step);
}

static int launch(struct hz_context *ctx, int kernel, int64_t x, int y, int threads,
		  unsigned bytes, const struct plan *w)
{
	const struct hzi_launch how = {
		.grid = {(unsigned)x, (unsigned)y}, .block = {(unsigned)threads},
		.shared_bytes = bytes, .early = true, .aligned = true,
	};

	HZ_CHECK(hzi_cuda_mhc_check_blocks(ctx, OP, x));
	return hzi_cuda_launch(ctx, OP, kernel, &how, &w->p, sizeof(w->p));
}

int hzi_cuda_mhc_gated_bwd_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_bwd_args *const g = args;
	const struct hzi_mhc_gated_args *const a = &g->of;
	const int64_t K = a->s.n * a->s.channels;
	const int threads = HZI_MHC_GATED_WGMMA_THREADS;
	const unsigned bytes = HZI_MHC_GATED_BYTES;
	struct plan w;
	struct hzi_mhc_gated_job plain;
	struct hzi_mhc_product_job sum;
	int which;

	plan_of(ctx, g, &w);
	HZ_CHECK(hzi_cuda_mhc_gated_wgmma_hidden(ctx, &w.forward, w.down_tiles));
	if (a->gain && w.p.terms == 2) {
		plain = w.p.job;
		plain.a.gain = NULL;
		plain.terms = w.terms;
		HZ_CHECK(hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_gated_weights, plain.rows, 1,
					     HZI_MHC_WEIGHTS_THREADS, 0, &plain, sizeof(plain)));
	}
	HZ_CHECK(make_maps(ctx, &w));
	HZ_CHECK(launch(ctx, HZI_KERNEL_mhc_gated_gate_bwd, w.tiles * w.p.splits, 1, threads, bytes,
			&w));
	HZ_CHECK(launch(ctx, HZI_KERNEL_mhc_gated_hidden_bwd,
			ceil_div(a->s.tokens, HZI_MHC_WARPS_TOKENS), 1, HZI_MHC_WARPS_TOKENS * 32,
			0, &w));
	which = (g->dw_up != NULL) + (g->dw_down || g->dw_q);
	if (which)
		HZ_CHECK(launch(ctx, HZI_KERNEL_mhc_gated_dw,
				a->s.n * ceil_div(a->s.channels, HZI_MHC_DW_CHANNELS), which,
				threads, bytes, &w));
	if (!g->dx.data && !g->dgain)
		return HZ_OK;
	HZ_CHECK(launch(ctx, HZI_KERNEL_mhc_gated_dx, w.tiles * w.p.splits, 1, threads, bytes, &w));
	if (!g->dgain)
		return HZ_OK;
	sum = (struct hzi_mhc_product_job){
		.g = {.c = g->dgain, .m = 1, .n = K, .accumulate = g->accumulate},
		.partial = w.p.dgain,
		.splits = (int32_t)(w.tiles * HZI_MHC_BWD_TOKENS / HZI_MHC_DGAIN_TOKENS),
	};
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_product_sum,
				   ceil_div(K, HZI_MHC_GATED_THREADS), 1, HZI_MHC_GATED_THREADS, 0,
				   &sum, sizeof(sum));
}
