/*
 * table_s8_skinny.c - launcher of rows of codes by few vectors, as s8 on tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/table_s8_skinny.h"

#define MOST_K (INT32_MAX / (128 * 128))	/* accumulators of s8 products fit s32 */

/* ---- Which calls ----------------------------------------------------------------------------- */

/*
 * Kernels of one lattice dimension and number of levels, codes of one or two bytes: for few
 * vectors, for 8; with scales or -1
 */
struct kernels {
	int d, levels, bytes, plain, scaled;
};

static const struct kernels kernels[] = {
	{4, 1, 1, HZI_KERNEL_vlut_mma_d4_1, -1},
	{4, 2, 1, HZI_KERNEL_vlut_mma_d4_2, HZI_KERNEL_vlut_mma_d4_2_scaled},
	{4, 4, 1, HZI_KERNEL_vlut_mma_d4_4, -1},
	{8, 1, 1, HZI_KERNEL_vlut_mma_d8_1, -1},
	{8, 2, 1, HZI_KERNEL_vlut_mma_d8_2, -1},
	{8, 2, 2, HZI_KERNEL_vlut_mma_wide_2, HZI_KERNEL_vlut_mma_wide_2_scaled},
	{8, 4, 1, HZI_KERNEL_vlut_mma_d8_4, HZI_KERNEL_vlut_mma_d8_4_scaled},
};

/* log2 of the values that share T, of groups that the kernels know; else -1 */
static int group_of(const hz_lattice *l, const struct hzi_coded *w)
{
	const int values = l->rule.group * l->rule.d;
	const int aligned = values == 32 ? 4 : values == 64 ? 2 : 1;

	if ((values != 32 && values != 64 && values != 128) || w->k % 128 || w->t_step != 1 ||
	    (uintptr_t)w->t % (unsigned)aligned || w->t_row % aligned)
		return -1;
	return values == 32 ? 5 : values == 64 ? 6 : 7;
}

static int64_t code_bytes(const struct hzi_coded *w)
{
	return (int64_t)hz_dtype_size(w->code_dtype);
}

static bool is_wide(const hz_lattice *l)
{
	return l->rule.kind == HZI_LATTICE_E8 && l->rule.q == 4;
}

int hzi_cuda_vlut_table_s8_skinny_columns(const struct hzi_vlut_gemm_args *a)
{
	/* The large tables of E8 with q = 4 leave room for two columns of 24 bits. */
	const int most = is_wide(a->vlut->w) && a->x_dtype != HZ_S8 ? 2 : HZI_VMMA_BATCH;

	return (int)min_of(a->batch, most);
}

/* How a call is done */
struct plan {
	int kernel;
	int step;			/* columns a launch */
	int split, shares, round, chunk;
	int64_t chunks, shared;
	bool scaled;
};

/* NULL, or why the call is not supported */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   const struct hzi_coded *w, struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	const int levels = l->rule.levels - w->first;
	const int most = a->x_dtype == HZ_S8 ? HZI_VMMA_BATCH : 2;
	const int table = is_wide(l) ? HZI_VMMA_WIDE_BYTES : HZI_VMMA_TABLE_BYTES;
	const int64_t tiles = ceil_div(w->rows, HZI_VMMA_ROWS);
	int64_t room, columns, x_bytes, tile_bytes;
	struct hzi_vlut_s8 s8;
	const char *why;

	*p = (struct plan){.kernel = -1, .split = 1,
			   .scaled = hzi_lattice_has_t(l) && a->y_dtype != HZ_S32};
	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if ((why = hzi_cuda_vlut_rows_unsupported(l, w)) ||
	    (why = hzi_cuda_vlut_s8_unsupported(l, levels, &s8)))
		return why;
	if (s8.large || (s8.wide && !a->vlut->words[0]))
		return "the lattice has too many codes a level for a table in shared memory";
	if (p->scaled && group_of(l, w) < 0)
		return "T is not for groups of 32, 64 or 128 values";
	if (a->x_dtype == HZ_S8 && a->y_dtype != HZ_S32 && !p->scaled && w->k > MOST_K)
		return "the accumulators of s8 do not fit 32 bits";
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (kernels[i].d == l->rule.d && kernels[i].levels == levels &&
		    kernels[i].bytes == code_bytes(w))
			p->kernel = p->scaled ? kernels[i].scaled : kernels[i].plain;
	}
	if (p->kernel < 0)
		return "no kernel knows such codes";
	p->step = hzi_cuda_vlut_table_s8_skinny_columns(a);
	columns = p->step > most ? 24 : p->step == 1 ? 4 : 8;
	p->kernel += p->step > most;
	p->chunk = HZI_VMMA_CHUNK_BYTES * l->rule.d / levels / (int)code_bytes(w);
	p->chunks = ceil_div(w->k, p->chunk);
	tile_bytes = (int64_t)HZI_VMMA_THREADS * p->step * 4;
	room = g->shared_block_bytes - 1024 - table - 64 -
	       (p->scaled ? HZI_VMMA_SCALES_BYTES : 0) - tile_bytes;
	/* Splits of k so that x fits, and so that there is work for all */
	for (;; p->split *= 2) {
		x_bytes = ceil_div(p->chunks, p->split) * p->chunk * columns;
		if (x_bytes <= room && (tiles * p->split * 2 > g->multiprocessors ||
					p->chunks < 32 * p->split))
			break;
		if (g->sm < 90 || p->split == 8 || p->chunks < 2 * p->split) {
			if (x_bytes > room)
				return "x does not fit shared memory";
			break;
		}
	}
	p->shares = (int)min_of(max_of(g->multiprocessors / p->split, 1), tiles);
	p->round = (int)min_of(ceil_div(tiles, p->shares), 1 + (room - x_bytes) / tile_bytes);
	p->shared = 1024 + table + 64 + (p->scaled ? HZI_VMMA_SCALES_BYTES : 0) +
		    x_bytes + p->round * tile_bytes;
	return NULL;
}

const char *hzi_cuda_vlut_table_s8_skinny_unsupported(const struct hz_context *ctx,
						      const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(a->vlut->w, &a->w);
	struct plan p;

	return plan_of(ctx, a, &w, &p);
}

int hzi_cuda_vlut_table_s8_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(l, &a->w);
	struct hzi_vlut_s8 s8;
	struct plan plan;

	plan_of(ctx, a, &w, &plan);
	hzi_cuda_vlut_s8_unsupported(l, l->rule.levels - w.first, &s8);

	struct hzi_vlut_mma p = {
		.codes = w.codes, .t = w.t, .row_scale = w.row_scale, .x = a->x, .y = a->y,
		.row = w.row * code_bytes(&w), .wide = a->vlut->words[0], .t_row = w.t_row,
		.row_scale_step = w.row_scale_step, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i,
		.y_b = a->y_b, .rows = (int32_t)w.rows,
		.k = (int32_t)w.k, .chunks = (int32_t)plan.chunks, .x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype, .q = l->rule.q,
		.group_log2 = plan.scaled ? group_of(l, &w) : -1,
		.split = plan.split, .round = plan.round, .scales = l->rule.scales,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w),
		.first = {s8.first[0], s8.first[1]},
		.scale = (l->rule.kind == HZ_LATTICE_E8 ? 0.5f : 1.0f) *
			 (plan.scaled ? 1.0f : l->rule.scale[0]),
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.shares * plan.split)}, .block = {HZI_VMMA_THREADS},
		.shared_bytes = (unsigned)plan.shared, .cluster = (unsigned)plan.split,
		.early = true,
	};

	hzi_cuda_vlut_s8_leaders(l, &s8, p.leaders);
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		p.scale_of[i] = l->rule.scale[i];
	for (int i = 0; i < w.first; i++)
		p.scale *= (float)l->rule.q;
	for (int64_t b = 0; b < a->batch; b += plan.step) {
		p.batch = (int32_t)min_of(a->batch - b, plan.step);
		p.x = (const char *)a->x + b * a->x_b * (int64_t)hz_dtype_size(a->x_dtype);
		p.y = (char *)a->y + b * a->y_b * (int64_t)hz_dtype_size(a->y_dtype);
		HZ_CHECK(hzi_cuda_launch(ctx, "vlut_gemm", plan.kernel, &launch, &p, sizeof(p)));
	}
	return HZ_OK;
}
