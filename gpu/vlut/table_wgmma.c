/*
 * table_wgmma.c - launcher of GEMM of codes, or of decoded f16 values, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/table_wgmma.h"

#define ABSMAX_BYTES 512		/* largest |x| per block, and two factors */

static const char name[] = "vlut_gemm";

/* columns: of a tile */
struct plan {
	int columns, kernel, terms, split;
	int64_t chunks, tiles, x_bytes;
	struct hzi_vlut_scales scales;
	struct hzi_vlut_s8 s8;
	bool scaled, values;
};

/*
 * Checks and plans what only codes need, not values of f16. Returns NULL, or why the call is not
 * supported.
 */
static const char *plan_codes(const struct hzi_vlut_gemm_args *a, const struct hzi_coded *w,
			      struct plan *p)
{
	const hz_lattice *l = a->vlut->w;
	const int levels = l->rule.levels - w->first;
	const char *why;

	if (w->packed && hzi_cuda_vlut_packs_as_label(l))
		return "the codes are packed labels of E8";
	if (!hzi_cuda_vlut_not_d4_bitfield(l, w))
		return "the codes are packed D4 with q = 4";
	why = hzi_cuda_vlut_scales_unsupported(l, w, &p->scales);
	p->scaled = hzi_lattice_has_t(l);
	if (a->x_dtype == HZ_S8)
		return "x is s8";
	if (levels * 2 != l->rule.d)
		return "the levels are not half of the dimension";
	if (why)
		return why;
	if (p->scales.shift < 0)
		return "T is for groups of less than 32 values";
	if ((why = hzi_cuda_vlut_rows_unsupported(l, w)) ||
	    (why = hzi_cuda_vlut_s8_unsupported(l, levels, &p->s8)))
		return why;
	return p->s8.e8q4 || p->s8.many_codes ? "the lattice has too many codes a level" : NULL;
}

/* Plans a call. Returns NULL, or why it is not supported. */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   const struct hzi_coded *w, bool values, struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const char *why;
	int64_t blocks;
	int size = 0;

	*p = (struct plan){.columns = 16, .split = 1, .terms = a->x_dtype == HZ_F32 ? 2 : 1,
			   .values = values};
	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (a->y_dtype == HZ_S32)
		return "y is s32";
	if (!values && (why = plan_codes(a, w, p)))
		return why;
	if (a->batch > INT32_MAX / 4 ||
	    (values && (w->rows > INT32_MAX - HZI_VLUT_WGMMA_ROWS || w->k > INT32_MAX / 4)))
		return "the sizes do not fit 32 bits";
	while (p->columns < (values ? 64 : 128) && p->columns < a->batch * p->terms) {
		p->columns *= 2;
		size++;
	}
	p->kernel = (values ? HZI_KERNEL_vlut_table_wgmma_f16_16 :
		     a->vlut->w->rule.d == 4 ? HZI_KERNEL_vlut_table_wgmma_d4_16 :
					       HZI_KERNEL_vlut_table_wgmma_d8_16) +
		    (p->scaled ? 4 : 0) + size;
	p->chunks = ceil_div(w->k, HZI_VLUT_WGMMA_CHUNK);
	p->tiles = ceil_div(a->batch * p->terms, p->columns);
	p->x_bytes = p->tiles * p->chunks * p->columns * HZI_VLUT_WGMMA_CHUNK * 2;
	blocks = ceil_div(w->rows, HZI_VLUT_WGMMA_ROWS) * p->tiles;
	if (p->tiles > 65535 || blocks > INT32_MAX / 8)
		return "too many tiles for a grid";
	/* Each part has several chunks. */
	for (int split = 2; split <= 8 && p->chunks >= 4 * split; split++) {
		if (blocks <= hzi_cuda_vlut_clusters(g, split))
			p->split = split;
	}
	return NULL;
}

const char *hzi_cuda_vlut_wgmma_unsupported(const struct hz_context *ctx,
					    const struct hzi_vlut_gemm_args *a, bool values)
{
	const struct hzi_coded w = hzi_cuda_vlut_code_view(a->vlut->w, &a->w);
	struct plan p;

	return plan_of(ctx, a, &w, values, &p);
}

size_t hzi_cuda_vlut_wgmma_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *a, bool values)
{
	const struct hzi_coded w = hzi_cuda_vlut_code_view(a->vlut->w, &a->w);
	struct plan p;

	plan_of(ctx, a, &w, values, &p);
	return (size_t)(p.x_bytes + ABSMAX_BYTES);
}

static int prepare_x(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		     const struct plan *plan, char *workspace)
{
	const struct hzi_vlut_x_pack p = {
		.x = a->x,
		.tiles = (uint8_t *)workspace,
		.absmax =
			a->x_dtype == HZ_F16 ? NULL : (float *)(void *)(workspace + plan->x_bytes),
		.x_k = a->x_k,
		.x_b = a->x_b,
		.k = (int32_t)a->w.k,
		.batch = (int32_t)a->batch,
		.chunks = (int32_t)plan->chunks,
		.columns = plan->columns,
		.terms = plan->terms,
		.x_dtype = a->x_dtype,
	};
	struct hzi_launch l = {
		.grid = {HZI_VLUT_WGMMA_ABSMAX_BLOCKS}, .block = {HZI_VLUT_THREADS}, .early = true};
	const int64_t blocks = ceil_div(plan->x_bytes / 16 / plan->terms, HZI_VLUT_THREADS);

	if (p.absmax)
		HZ_CHECK(hzi_cuda_launch(ctx, name, HZI_KERNEL_vlut_table_wgmma_x_absmax, &l, &p,
					 sizeof(p)));
	l.grid[0] = (unsigned)min_of(blocks, 1024);
	return hzi_cuda_launch(ctx, name, HZI_KERNEL_vlut_table_wgmma_x_pack, &l, &p, sizeof(p));
}

int hzi_cuda_vlut_wgmma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_vlut_wgmma_opts *o)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(l, &a->w);
	struct plan plan;

	plan_of(ctx, a, &w, o->values != NULL, &plan);

	struct hzi_vlut_table_wgmma p = {
		.codes = w.codes,
		.t = w.t,
		.tiles = (uint8_t *)o->workspace,
		.row_scale = w.row_scale,
		.power = a->x_dtype == HZ_F16 ? NULL :
			 (float *)(void *)(o->workspace + plan.x_bytes) +
				 HZI_VLUT_WGMMA_ABSMAX_BLOCKS,
		.column_scale = o->column_scale,
		.column_scale_step = o->column_scale_step,
		.y = a->y,
		.row = w.row,
		.t_row = w.t_row,
		.row_scale_step = w.row_scale_step,
		.y_i = a->y_i,
		.y_b = a->y_b,
		.rows = (int32_t)w.rows,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w),
		.chunks = (int32_t)plan.chunks,
		.batch = (int32_t)a->batch,
		.terms = plan.terms,
		.y_dtype = a->y_dtype,
		.q = l->rule.q,
		.group_shift = plan.scales.shift,
		.split = plan.split,
		.scales = l->rule.scales,
		.scale = (plan.values ? 1 : plan.scales.factor) * o->factor,
		.first = {plan.s8.first[0], plan.s8.first[1]},
	};
	const int table_bytes = (!plan.values ? HZI_VLUT_S8_TABLE_BYTES : 0) +
				(plan.scaled ? HZI_VLUT_S8_SCALES_BYTES : 0);
	const struct hzi_launch launch = {
		.grid = {(unsigned)(ceil_div(w.rows, HZI_VLUT_WGMMA_ROWS) * plan.split),
			 (unsigned)plan.tiles},
		.block = {HZI_VLUT_WGMMA_THREADS},
		.cluster = (unsigned)plan.split,
		.early = true,
		.shared_bytes =
			(unsigned)(1024 + HZI_VLUT_WGMMA_BARRIERS(table_bytes, plan.columns) +
				   HZI_VLUT_WGMMA_STAGES(plan.columns) * 16),
	};

	if (!plan.values)
		hzi_cuda_vlut_s8_leaders(l, &plan.s8, p.leaders);
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		p.scale_of[i] = plan.scales.of[i];
	if (plan.values) {
		p.codes = o->values;
		p.row_bytes = p.chunks * HZI_VLUT_WGMMA_CHUNK * 2;
		p.row = p.row_bytes;
	}
	if (!o->x_is_packed)
		HZ_CHECK(prepare_x(ctx, a, &plan, o->workspace));
	return hzi_cuda_launch(ctx, name, plan.kernel, &launch, &p, sizeof(p));
}

const char *hzi_cuda_vlut_table_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_vlut_wgmma_unsupported(ctx, args, false);
}

size_t hzi_cuda_vlut_table_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_cuda_vlut_wgmma_workspace(ctx, args, false);
}

int hzi_cuda_vlut_table_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_wgmma_opts o = {.factor = 1, .workspace = ctx->workspace};

	return hzi_cuda_vlut_wgmma(ctx, args, &o);
}
