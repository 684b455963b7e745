/*
 * generic.c - launchers of products with codes of any lattice: by decoding, and by tables
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/vlut/launch.h"

#define GRID_MAX 65535			/* along y */
#define SLICE_BYTES ((int64_t)64 << 20)	/* of the tables of a slice, about */
#define ENTRY_BYTES 4

static const char gemm_name[] = "vlut_gemm", gemm2_name[] = "vlut_gemm2";

static int launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
		  const void *params, size_t bytes)
{
	const struct hzi_launch l = {.grid = {(unsigned)x, (unsigned)y},
				     .block = {HZI_VLUT_THREADS}};

	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

static void fill_coded(struct hzi_vlut_coded *out, const hz_lattice *l, const struct hzi_coded *c)
{
	const struct hzi_coded u = hzi_cuda_vlut_code_view(l, c);

	*out = (struct hzi_vlut_coded){
		.rule = l->rule, .codes = u.codes, .t = u.t, .row_scale = u.row_scale,
		.rows = u.rows,
		.blocks = u.blocks, .row = u.row, .block = u.block, .level = u.level,
		.t_row = u.t_row, .t_step = u.t_step, .row_scale_step = u.row_scale_step,
		.code_bytes = (int32_t)hz_dtype_size(u.code_dtype), .first = u.first,
	};
	for (int i = 0; i < HZI_LATTICE_DIMS; i++)
		out->sub[i] = u.sub[i];
	if (hzi_cuda_vlut_is_bit_packed(l, c)) {
		out->codes = c->packed;
		out->bits = hzi_cuda_vlut_packs_as_label(l) ? hzi_cuda_vlut_label_chunks(c) :
			    hzi_cuda_vlut_packs_as_d4_bitfield(l) ?
			    hzi_cuda_vlut_d4_bitfield_chunks(c) :
			    hzi_cuda_vlut_e8_bitplane_units(c);
	}
}

static void fill_generic(struct hzi_vlut_generic *p, const struct hzi_vlut_gemm_args *a)
{
	fill_coded(&p->w, a->vlut->w, &a->w);
	p->d = (struct hzi_vlut_dense){
		.x = a->x, .y = a->y, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i, .y_b = a->y_b,
		.k = a->w.k, .columns = a->batch, .x_dtype = a->x_dtype, .y_dtype = a->y_dtype,
	};
}

static int64_t element(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

/* ---- One-sided: tables ----------------------------------------------------------------------- */

/* Columns and lattice blocks per slice of the tables */
struct slices {
	int64_t columns, blocks, table_bytes, bytes;
	int dtype;
};

static struct slices slices_of(const struct hzi_vlut_gemm_args *a)
{
	const int64_t entries = (int64_t)a->vlut->w->rule.level_size;
	struct slices s = {
		.dtype = a->y_dtype == HZ_S32 || !a->vlut->table_dtype ? HZ_F32 :
		a->vlut->table_dtype,
		.columns = SLICE_BYTES / (entries * ENTRY_BYTES * a->w.blocks),
	};

	s.columns = min_of(min_of(max_of(s.columns, 1), GRID_MAX), a->batch);
	s.blocks = SLICE_BYTES / (entries * ENTRY_BYTES * s.columns);
	s.blocks = min_of(max_of(s.blocks, 1), a->w.blocks);
	s.table_bytes = round_up(s.columns * s.blocks * entries * ENTRY_BYTES, 64);
	s.bytes = s.table_bytes + round_up(s.columns * s.blocks * 12, 64) +
		  s.columns * a->w.rows * 8;
	return s;
}

const char *hzi_cuda_vlut_table_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;

	(void)ctx;
	return a->vlut->route != HZ_VLUT_TABLE ? "HZ_VLUT_TABLE is not asked for" :
	       a->w.blocks == 0 ? "k is 0" : NULL;
}

size_t hzi_cuda_vlut_table_workspace(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return (size_t)slices_of(args).bytes;
}

int hzi_cuda_vlut_table(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const struct slices s = slices_of(a);
	const bool mapped = l->rule.flags & HZI_LATTICE_MAPPED, is_s32 = a->y_dtype == HZ_S32;
	struct hzi_vlut_table_mapped p = {
		.table = {.entries = (int64_t)l->rule.level_size, .table_dtype = s.dtype,
			  .compensated = a->vlut->compensated, .table = ctx->workspace},
	};
	struct hzi_vlut_table *t = &p.table;

	if (mapped)
		p.w = l->matrices;
	fill_generic(&t->generic, a);
	t->bias = (float *)((char *)ctx->workspace + s.table_bytes);
	t->factor = t->bias + s.columns * s.blocks;
	t->sums = (float *)((char *)t->bias + round_up(s.columns * s.blocks * 12, 64));
	t->compensation = t->sums + s.columns * a->w.rows;
	for (int64_t c = 0; c < a->batch; c += s.columns) {
		const int64_t columns = min_of(a->batch - c, s.columns);

		t->generic.d.x = (const char *)a->x + c * a->x_b * element(a->x_dtype);
		t->generic.d.y = (char *)a->y + c * a->y_b * element(a->y_dtype);
		t->generic.d.columns = columns;
		for (t->begin = 0; t->begin < a->w.blocks; t->begin += s.blocks) {
			t->count = min_of(a->w.blocks - t->begin, s.blocks);
			t->last = t->begin + t->count == a->w.blocks;
			HZ_CHECK(launch(ctx, gemm_name,
					mapped ? HZI_KERNEL_vlut_table_build_mapped_f32 :
					is_s32 ? HZI_KERNEL_vlut_table_build_s32 :
						 HZI_KERNEL_vlut_table_build_f32,
					t->count, columns, &p,
					mapped ? sizeof(p) : sizeof(p.table)));
			HZ_CHECK(launch(ctx, gemm_name, is_s32 ? HZI_KERNEL_vlut_table_lookup_s32 :
					HZI_KERNEL_vlut_table_lookup_f32,
					ceil_div(a->w.rows, HZI_VLUT_WARPS), columns, t,
					sizeof(*t)));
		}
	}
	return HZ_OK;
}

/* ---- One-sided: decoding --------------------------------------------------------------------- */

static int launch_generic(struct hz_context *ctx, const char *op, bool mapped,
			  const struct hzi_vlut_generic2_mapped *p)
{
	const struct hzi_vlut_generic2 *const g = &p->generic;

	return launch(ctx, op,
		      mapped ? HZI_KERNEL_vlut_generic_mapped_f32 :
		      g->d.y_dtype == HZ_S32 ? HZI_KERNEL_vlut_generic_s32 :
					       HZI_KERNEL_vlut_generic_f32,
		      ceil_div(g->w.rows, HZI_VLUT_TILE), ceil_div(g->d.columns, HZI_VLUT_TILE), p,
		      mapped ? sizeof(*p) : sizeof(*g));
}

int hzi_cuda_vlut_generic(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const bool mapped = l->rule.flags & HZI_LATTICE_MAPPED;
	const int64_t step = (int64_t)GRID_MAX * HZI_VLUT_TILE;
	struct hzi_vlut_generic2_mapped p = {0};
	struct hzi_vlut_dense *const d = &p.generic.d;
	struct hzi_vlut_generic one;

	if (mapped)
		p.w = l->matrices;
	fill_generic(&one, a);
	p.generic.w = one.w;
	*d = one.d;
	for (int64_t c = 0; c < a->batch; c += step) {
		d->columns = min_of(a->batch - c, step);
		HZ_CHECK(launch_generic(ctx, gemm_name, mapped, &p));
		d->x = (const char *)d->x + step * a->x_b * element(a->x_dtype);
		d->y = (char *)d->y + step * a->y_b * element(a->y_dtype);
	}
	return HZ_OK;
}

/* ---- Two-sided ------------------------------------------------------------------------------- */

/* A table has products of whole blocks. */
const char *hzi_cuda_vlut2_table_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;

	(void)ctx;
	return a->vlut->route != HZ_VLUT_TABLE || !a->vlut->table ?
		       "HZ_VLUT_TABLE is not asked for" :
	       a->w.k % a->vlut->w->rule.d ? "k is not a multiple of the dimension" : NULL;
}

static int64_t entries_of(const struct hz_vlut *v)
{
	return (int64_t)(v->w->rule.level_size + v->x->rule.level_size);
}

size_t hzi_cuda_vlut2_table_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;

	(void)ctx;
	return (size_t)entries_of(a->vlut) * (sizeof(int64_t) + sizeof(float));
}

static void fill_generic2(struct hzi_vlut_generic2 *p, const struct hzi_vlut_gemm2_args *a)
{
	fill_coded(&p->w, a->vlut->w, &a->w);
	fill_coded(&p->x, a->vlut->x, &a->x);
	p->d = (struct hzi_vlut_dense){
		.y = a->y, .y_i = a->y_i, .y_b = a->y_j, .k = a->w.k, .columns = a->x.rows,
		.y_dtype = a->y_dtype,
	};
}

int hzi_cuda_vlut2_table(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const struct hz_vlut *v = a->vlut;
	struct hzi_vlut_table2 p = {
		.table = v->table, .w_entries = (int64_t)v->w->rule.level_size,
		.x_entries = (int64_t)v->x->rule.level_size, .unit = 1.0f / (float)v->unit,
		.table_dtype = v->table_dtype, .w_dot_offset = ctx->workspace,
	};

	fill_generic2(&p.generic, a);
	p.x_dot_offset = p.w_dot_offset + p.w_entries;
	p.w_dot_sub = (float *)(p.x_dot_offset + p.x_entries);
	p.x_dot_sub = p.w_dot_sub + p.w_entries;
	HZ_CHECK(launch(ctx, gemm2_name, HZI_KERNEL_vlut_table2_dots,
			ceil_div(entries_of(v), HZI_VLUT_THREADS), 1, &p, sizeof(p)));
	for (; p.first < a->x.rows; p.first += GRID_MAX)
		HZ_CHECK(launch(ctx, gemm2_name,
				a->y_dtype == HZ_S32 ? HZI_KERNEL_vlut_table2_lookup_s32 :
				HZI_KERNEL_vlut_table2_lookup_f32,
				ceil_div(a->w.rows, HZI_VLUT_WARPS),
				min_of(a->x.rows - p.first, GRID_MAX), &p, sizeof(p)));
	return HZ_OK;
}

int hzi_cuda_vlut2_generic(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm2_args *const a = args;
	const struct hz_vlut *v = a->vlut;
	const bool mapped = (v->w->rule.flags | v->x->rule.flags) & HZI_LATTICE_MAPPED;
	struct hzi_vlut_generic2_mapped p = {0};

	if (mapped) {
		p.w = v->w->matrices;
		p.x = v->x->matrices;
	}
	fill_generic2(&p.generic, a);
	if (ceil_div(a->x.rows, HZI_VLUT_TILE) > GRID_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: x has %lld rows, more than a GPU takes",
				gemm2_name, (long long)a->x.rows);
	return launch_generic(ctx, gemm2_name, mapped, &p);
}
