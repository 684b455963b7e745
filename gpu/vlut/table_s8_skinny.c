/*
 * table_s8_skinny.c - launcher of skinny GEMM of rows of codes, as s8 on tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/table_s8_skinny.h"

#define MAX_K (INT32_MAX / (128 * 128))	/* accumulators of s8 products fit s32 */

/* ---- Which calls ----------------------------------------------------------------------------- */

/*
 * Kernels of a lattice dimension, number of levels and bytes per code. Each is followed by its
 * variant for 8 columns. -1: no kernel with scales.
 */
struct kernels {
	int d, levels, bytes, unscaled, scaled;
};

static const struct kernels kernels[] = {
	{4, 1, 1, HZI_KERNEL_vlut_table_s8_skinny_d4_l1, -1},
	{4, 2, 1, HZI_KERNEL_vlut_table_s8_skinny_d4_l2,
	 HZI_KERNEL_vlut_table_s8_skinny_d4_l2_scaled},
	{4, 4, 1, HZI_KERNEL_vlut_table_s8_skinny_d4_l4, -1},
	{8, 1, 1, HZI_KERNEL_vlut_table_s8_skinny_d8_l1, -1},
	{8, 2, 1, HZI_KERNEL_vlut_table_s8_skinny_d8_l2, -1},
	{8, 2, 2, HZI_KERNEL_vlut_table_s8_skinny_e8q4,
	 HZI_KERNEL_vlut_table_s8_skinny_e8q4_scaled},
	{8, 4, 1, HZI_KERNEL_vlut_table_s8_skinny_d8_l4,
	 HZI_KERNEL_vlut_table_s8_skinny_d8_l4_scaled},
};

/* log2 of the values that share T if the kernels support that group size, else -1 */
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

static bool is_e8q4(const hz_lattice *l)
{
	return l->rule.kind == HZI_LATTICE_E8 && l->rule.q == 4;
}

int hzi_cuda_vlut_table_s8_skinny_columns(const struct hzi_vlut_gemm_args *a)
{
	/* The large tables of E8 with q = 4 leave shared memory for two columns of 24 bits. */
	const int max_columns =
		is_e8q4(a->vlut->w) && a->x_dtype != HZ_S8 ? 2 : HZI_VLUT_S8_COLUMNS;

	return (int)min_of(a->batch, max_columns);
}

struct plan {
	struct hzi_coded w;		/* the codes, as rows */
	int kernel;
	int step;			/* columns per launch */
	int split, shares, pass_tiles, chunk;
	int64_t chunks, shared;
	bool scaled;
};

/* Plans a call. Returns NULL, or why it is not supported. */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded view = hzi_cuda_vlut_code_view(l, &a->w), *const w = &p->w;
	const int levels = l->rule.levels - view.first;
	const int max_columns = a->x_dtype == HZ_S8 ? HZI_VLUT_S8_COLUMNS : 2;
	const int table = is_e8q4(l) ? HZI_VLUT_S8_E8Q4_BYTES : HZI_VLUT_S8_TABLE_BYTES;
	const int64_t tiles = ceil_div(view.rows, HZI_VLUT_S8_ROWS);
	int64_t free_bytes, columns, x_bytes, tile_bytes;
	struct hzi_vlut_s8 s8;
	const char *why;

	*p = (struct plan){.w = view, .kernel = -1, .split = 1,
			   .scaled = hzi_lattice_has_t(l) && a->y_dtype != HZ_S32};
	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if ((why = hzi_cuda_vlut_rows_unsupported(l, w)) ||
	    (why = hzi_cuda_vlut_s8_unsupported(l, levels, &s8)))
		return why;
	if (s8.many_codes || (s8.e8q4 && !a->vlut->words[0]))
		return "the lattice has too many codes a level for a table in shared memory";
	if (p->scaled && group_of(l, w) < 0)
		return "T is not for groups of 32, 64 or 128 values";
	if (a->x_dtype == HZ_S8 && a->y_dtype != HZ_S32 && !p->scaled && w->k > MAX_K)
		return "the accumulators of s8 do not fit 32 bits";
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (kernels[i].d == l->rule.d && kernels[i].levels == levels &&
		    kernels[i].bytes == code_bytes(w))
			p->kernel = p->scaled ? kernels[i].scaled : kernels[i].unscaled;
	}
	if (p->kernel < 0)
		return "no kernel knows such codes";
	p->step = hzi_cuda_vlut_table_s8_skinny_columns(a);
	columns = p->step > max_columns ? 24 : p->step == 1 ? 4 : 8;
	p->kernel += p->step > max_columns;
	p->chunk = HZI_VLUT_S8_CHUNK_BYTES * l->rule.d / levels / (int)code_bytes(w);
	p->chunks = ceil_div(w->k, p->chunk);
	tile_bytes = (int64_t)HZI_VLUT_S8_THREADS * p->step * 4;
	free_bytes = g->shared_block_bytes - 1024 - table - 64 -
		     (p->scaled ? HZI_VLUT_S8_SCALES_BYTES : 0) - tile_bytes;
	/* Splits k until x fits and all SMs have work. */
	for (;; p->split *= 2) {
		x_bytes = ceil_div(p->chunks, p->split) * p->chunk * columns;
		if (x_bytes <= free_bytes && (tiles * p->split * 2 > g->sms ||
					      p->chunks < 32 * p->split))
			break;
		if (g->sm < 90 || p->split == 8 || p->chunks < 2 * p->split) {
			if (x_bytes > free_bytes)
				return "x does not fit shared memory";
			break;
		}
	}
	p->shares = (int)min_of(max_of(g->sms / p->split, 1), tiles);
	p->pass_tiles =
		(int)min_of(ceil_div(tiles, p->shares), 1 + (free_bytes - x_bytes) / tile_bytes);
	p->shared = 1024 + table + 64 + (p->scaled ? HZI_VLUT_S8_SCALES_BYTES : 0) +
		    x_bytes + p->pass_tiles * tile_bytes;
	return NULL;
}

HZI_VLUT_PLANNED(vlut_table_s8_skinny)

int hzi_cuda_vlut_table_s8_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	struct hzi_vlut_s8 s8;
	struct plan plan;

	plan_of(ctx, a, &plan);

	const struct hzi_coded w = plan.w;

	hzi_cuda_vlut_s8_unsupported(l, l->rule.levels - w.first, &s8);

	struct hzi_vlut_table_s8_skinny p = {
		.codes = w.codes, .t = w.t, .row_scale = w.row_scale, .x = a->x, .y = a->y,
		.row = w.row * code_bytes(&w), .e8q4 = a->vlut->words[0], .t_row = w.t_row,
		.row_scale_step = w.row_scale_step, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i,
		.y_b = a->y_b, .rows = (int32_t)w.rows,
		.k = (int32_t)w.k, .chunks = (int32_t)plan.chunks, .x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype, .q = l->rule.q,
		.group_log2 = plan.scaled ? group_of(l, &w) : -1,
		.split = plan.split, .pass_tiles = plan.pass_tiles, .scales = l->rule.scales,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w),
		.first = {s8.first[0], s8.first[1]},
		.scale = (l->rule.kind == HZ_LATTICE_E8 ? 0.5f : 1.0f) *
			 (plan.scaled ? 1.0f : l->rule.scale[0]),
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.shares * plan.split)}, .block = {HZI_VLUT_S8_THREADS},
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
