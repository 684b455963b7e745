/*
 * table_f16_skinny.c - launcher of skinny GEMM of rows of codes and up to 8 columns of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/table_f16_skinny.h"
#include "gpu/vlut/launch.h"

#define COLUMNS 8
#define MAX_F16 2048	/* integers up to it are exact in f16 */

struct plan {
	struct hzi_coded w;			/* the codes, as rows */
	int kernel, columns, pass_tiles, t_shift;
	bool pairs;
	bool can_split_k;			/* by table_s8_skinny.c */
	int64_t chunks, tiles, shares, shared;
	struct hzi_vlut_scales scales;
};

/*
 * Kernels for the codes of a lattice, those for one column: without T, with one scale per piece or
 * several pieces, with one per block; -1: none
 */
struct kernels {
	int unscaled, piece_scaled, block_scaled;
	int64_t table;			/* bytes in shared memory */
	int values;			/* values of a 16-byte piece */
	bool scales;			/* a table of scales follows the table */
	bool pairs;			/* leaders are f16, see fill_pairs() */
	bool single_column;			/* supports one column only */
	bool can_split_k;			/* by table_s8_skinny.c */
};

/* u8 codes of one or two values; then one level with too many codes for tables */
#define BIT(kind) (1 << HZ_LATTICE_##kind)

static const struct {
	int kinds, d, code_bytes, levels, unscaled, piece_scaled, block_scaled;
} other_kernels[] = {
	{BIT(Z), 1, 1, 1, HZI_KERNEL_vlut_table_f16_skinny_d1_l1_1,
	 HZI_KERNEL_vlut_table_f16_skinny_d1_l1_scaled_1, -1},
	{BIT(Z), 1, 1, 2, HZI_KERNEL_vlut_table_f16_skinny_d1_l2_1,
	 HZI_KERNEL_vlut_table_f16_skinny_d1_l2_scaled_1, -1},
	{BIT(Z) | BIT(A2) | BIT(D), 2, 1, 1, HZI_KERNEL_vlut_table_f16_skinny_d2_l1_1,
	 HZI_KERNEL_vlut_table_f16_skinny_d2_l1_scaled_1, -1},
	{BIT(Z) | BIT(A2) | BIT(D), 2, 1, 2, HZI_KERNEL_vlut_table_f16_skinny_d2_l2_1,
	 HZI_KERNEL_vlut_table_f16_skinny_d2_l2_scaled_1, -1},
	{BIT(D), 4, 2, 1, HZI_KERNEL_vlut_closest_point_skinny_d4_1, -1,
	 HZI_KERNEL_vlut_closest_point_skinny_d4_block_scaled_1},
	{BIT(E8), 8, 4, 1, HZI_KERNEL_vlut_closest_point_skinny_e8_1, -1,
	 HZI_KERNEL_vlut_closest_point_skinny_e8_block_scaled_1},
};

/* f16 holds points minus o and all partial sums exactly, for A2 also halves. */
static bool is_exact_f16(const hz_lattice *l, int levels)
{
	const int limit = l->rule.kind == HZI_LATTICE_A2 ? MAX_F16 / 2 : MAX_F16;
	int64_t points = 0;
	int offset = 0;

	for (int m = 0; m < levels; m++) {
		points = points * l->rule.q + l->leader_max;
		if (points > limit)
			return false;
	}
	for (int i = 0; i < l->rule.embed; i++)
		offset = abs(l->rule.offset[i]) > offset ? abs(l->rule.offset[i]) : offset;
	return points + offset <= limit;
}

static bool find_other(const hz_lattice *l, const struct hzi_coded *w, struct kernels *k)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int size = (int)hz_dtype_size(w->code_dtype), levels = r->levels - w->first;

	if ((r->flags & HZI_LATTICE_MAPPED) || !is_exact_f16(l, levels))
		return false;
	for (size_t i = 0; i < sizeof(other_kernels) / sizeof(*other_kernels); i++) {
		if (!(other_kernels[i].kinds & 1 << r->kind) || other_kernels[i].d != r->d ||
		    other_kernels[i].code_bytes != size || other_kernels[i].levels != levels)
			continue;
		*k = (struct kernels){
			.unscaled = other_kernels[i].unscaled,
			.piece_scaled = other_kernels[i].piece_scaled,
			.block_scaled = other_kernels[i].block_scaled,
			.table = r->d <= 2 ? HZI_VLUT_S8_TABLE_BYTES : 0,
			.values = 16 / (size * levels) * r->d, .scales = true, .pairs = r->d <= 2,
		};
		return !k->pairs || l->leaders;
	}
	return false;
}

/* Finds the kernels for the codes of w. Returns NULL, or why there are none. */
static const char *kernels_of(const struct hzi_vlut_gemm_args *a, const struct hzi_coded *w,
			      struct kernels *k)
{
	static const char unknown[] = "no kernel knows such codes";
	const hz_lattice *l = a->vlut->w;
	const struct hzi_lattice_rule *r = &l->rule;
	const int levels = r->levels - w->first;
	const bool d8 = r->d == 8;
	const char *const why = hzi_cuda_vlut_rows_unsupported(l, w);
	struct hzi_vlut_s8 s8;

	*k = (struct kernels){.unscaled = -1, .piece_scaled = -1, .block_scaled = -1};
	if (why)
		return why;
	if (hzi_cuda_vlut_s8_unsupported(l, levels, &s8))
		return find_other(l, w, k) ? NULL : unknown;
	if (!s8.e8q4 && !s8.many_codes) {
		k->unscaled = d8 ? HZI_KERNEL_vlut_table_f16_skinny_d8_1 :
					HZI_KERNEL_vlut_table_f16_skinny_d4_1;
		k->piece_scaled = d8 ? HZI_KERNEL_vlut_table_f16_skinny_d8_scaled_1 :
				  HZI_KERNEL_vlut_table_f16_skinny_d4_scaled_1;
		k->block_scaled = d8 ? HZI_KERNEL_vlut_table_f16_skinny_d8_block_scaled_1 :
				  HZI_KERNEL_vlut_table_f16_skinny_d4_block_scaled_1;
		k->table = HZI_VLUT_S8_TABLE_BYTES;
		k->values = 32;
		k->can_split_k = true;
		return levels * 2 == r->d ? NULL : unknown;
	}
	if (levels != 2 || !a->vlut->words[0])
		return find_other(l, w, k) ? NULL : unknown;
	k->scales = true;
	if (s8.e8q4) {
		k->block_scaled = HZI_KERNEL_vlut_table_f16_skinny_e8q4_block_scaled;
		k->table = HZI_VLUT_S8_E8Q4_BYTES;
		k->values = 32;
		k->single_column = true;
		return NULL;
	}
	k->unscaled = d8 ? HZI_KERNEL_vlut_table_f16_skinny_d8_u16_1 :
				HZI_KERNEL_vlut_table_f16_skinny_d4_u16_1;
	k->block_scaled = d8 ? HZI_KERNEL_vlut_table_f16_skinny_d8_u16_block_scaled_1 :
				    HZI_KERNEL_vlut_table_f16_skinny_d4_u16_block_scaled_1;
	k->table = round_up((int64_t)r->level_size * 4, 128);
	k->values = 4 * r->d;
	return NULL;
}

/* log2 of the bytes of T per piece; negative: minus log2 of the pieces that share a byte */
static int t_shift_of(const hz_lattice *l, int values)
{
	const int group = l->rule.group * l->rule.d;
	int shift = 0;

	for (int of = group; of < values; of *= 2)
		shift++;
	for (int of = group; of > values; of /= 2)
		shift--;
	return shift;
}

/* Plans a call. Returns NULL, or why it is not supported. */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded *const w = &p->w;
	int64_t fitting_tiles, tile_bytes, scales = 0;
	const char *why;
	struct kernels k;

	p->w = hzi_cuda_vlut_code_view(l, &a->w);
	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (a->x_dtype != HZ_F16 || a->y_dtype == HZ_S32)
		return "x is not f16";
	if (a->batch > COLUMNS)
		return "more than 8 columns";
	if ((why = kernels_of(a, w, &k)) ||
	    (why = hzi_cuda_vlut_scales_unsupported(l, w, &p->scales)))
		return why;
	p->columns = a->batch == 1 ? 1 : COLUMNS;
	p->kernel = k.unscaled;
	p->pairs = k.pairs;
	p->t_shift = 0;
	if (hzi_lattice_has_t(l)) {
		p->t_shift = t_shift_of(l, k.values);
		p->kernel =
			p->t_shift <= 0 && k.piece_scaled >= 0 ? k.piece_scaled : k.block_scaled;
		/* T of a piece is one load. */
		if (p->t_shift > 0 && ((uintptr_t)w->t | (uint64_t)w->t_row) % (1u << p->t_shift))
			return "T is not aligned";
		if (p->kernel == k.piece_scaled || k.scales)
			scales = HZI_VLUT_S8_SCALES_BYTES;
	}
	if (p->kernel < 0)
		return "no kernel knows such codes with or without T";
	if (k.single_column && a->batch > 1)
		return "more than one column of E8 with q = 4";
	p->kernel += a->batch == 1 ? 0 : 1;
	p->chunks = ceil_div(w->k, 4 * k.values);
	p->tiles = ceil_div(w->rows, HZI_VLUT_TABLE_F16_ROWS);
	p->can_split_k = k.can_split_k && p->t_shift <= 0;
	p->shares = min_of(p->tiles, g->sms);
	tile_bytes = (int64_t)HZI_VLUT_S8_THREADS * p->columns * 4;	/* 16 warps, 32 rows */
	p->shared = 1024 + k.table + scales + p->chunks * 4 * k.values * 2 * p->columns;
	fitting_tiles = (g->shared_block_bytes - p->shared) / tile_bytes;
	if (fitting_tiles < 1)
		return "x does not fit shared memory";
	p->pass_tiles = (int)min_of(ceil_div(p->tiles, p->shares), fitting_tiles);
	p->shared += p->pass_tiles * tile_bytes;
	return NULL;
}

HZI_VLUT_PLANNED(vlut_table_f16_skinny)

bool hzi_cuda_vlut_split_k_pays(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	struct plan p;

	return ctx->sm >= 90 &&
	       ceil_div(a->w.rows, HZI_VLUT_TABLE_F16_ROWS) * 4 < hzi_cuda_device(ctx)->sms &&
	       !plan_of(ctx, a, &p) && p.can_split_k && p.chunks >= 32;
}

/* The values of a point as f16; the upper half is 0 for a lattice of dimension 1. */
static uint32_t pair_of(const hz_lattice *l, const int32_t *c, float root)
{
	const bool a2 = l->rule.kind == HZI_LATTICE_A2;
	const float first = a2 ? 0.5f * (float)(c[0] - c[2]) : (float)c[0];
	const float second = l->rule.d == 1 ? 0 : a2 ? -root * (float)c[1] : (float)c[1];

	return hzi_cuda_vlut_f16(first) | hzi_cuda_vlut_f16(second) << 16;
}

/*
 * Fills the table with leaders as pairs of f16. With one level they are leaders minus o, for A2
 * times the root and rounded once. With two levels the kernel multiplies by the root only after it
 * summed the levels and subtracted o, which is exact: rounded numbers must not cancel.
 */
static void fill_pairs(struct hzi_vlut_table_f16_skinny *p, const hz_lattice *l, int levels)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const float root = r->kind == HZI_LATTICE_A2 ? 0.86602540378443864676f : 1;

	for (int i = 0; i < HZI_VLUT_S8_ENTRIES; i++) {
		const int32_t *leader = l->leaders + i % (int)r->level_size * r->embed;
		int32_t c[3] = {0};

		for (int e = 0; e < r->embed; e++)
			c[e] = leader[e] - (levels == 1 ? r->offset[e] : 0);
		p->leaders[i] = pair_of(l, c, levels == 1 ? root : 1);
	}
	p->minus_offset = pair_of(l, r->offset, 1) ^ 0x80008000;
	if (r->d == 1)
		p->minus_offset = (p->minus_offset & 0xffff) * 0x10001u;
	p->unit = hzi_cuda_vlut_f16(1) | hzi_cuda_vlut_f16(root) << 16;
	p->q16 = hzi_cuda_vlut_f16((float)r->q) * 0x10001u;
}

int hzi_cuda_vlut_table_f16_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	struct hzi_vlut_s8 s8;
	struct plan plan = {0};

	plan_of(ctx, a, &plan);

	const struct hzi_coded w = plan.w;
	const char *const no_s8 = hzi_cuda_vlut_s8_unsupported(l, l->rule.levels - w.first, &s8);
	const float q = (float)l->rule.q, unit = l->rule.kind == HZ_LATTICE_E8 ? 2 : 1;
	struct hzi_vlut_table_f16_skinny p = {
		.codes = w.codes, .t = w.t, .words = a->vlut->words[0],
		.row_scale = w.row_scale, .x = a->x, .y = a->y,
		.row = w.row * (int64_t)hz_dtype_size(w.code_dtype), .t_row = w.t_row,
		.row_scale_step = w.row_scale_step, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i,
		.y_b = a->y_b, .rows = (int32_t)w.rows,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w), .k = (int32_t)w.k,
		.chunks = (int32_t)plan.chunks, .batch = (int32_t)a->batch, .y_dtype = a->y_dtype,
		.q = l->rule.q, .t_shift = plan.t_shift, .pass_tiles = plan.pass_tiles,
		.entries = (int32_t)l->rule.level_size,
		.per_entry = (uint32_t)(UINT32_MAX / l->rule.level_size + 1),
		.per_q = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)l->rule.q),
		.log2q = l->rule.log2q,
		.radix = {q, 1 / q, unit * q, 1 / (unit * q)},
		.scales = l->rule.scales, .scale = plan.scales.factor,
		.x_row_major = a->batch == COLUMNS && a->x_b == 1 && a->x_k % 8 == 0 &&
			       (uintptr_t)a->x % 16 == 0,
		.first = {s8.first[0], s8.first[1]},
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)plan.shares}, .block = {HZI_VLUT_S8_THREADS},
		.shared_bytes = (unsigned)plan.shared, .early = true,
	};

	if (!no_s8)
		hzi_cuda_vlut_s8_leaders(l, &s8, p.leaders);
	if (plan.pairs)
		fill_pairs(&p, l, l->rule.levels - w.first);
	for (int i = 0; i < l->rule.embed && i < 8; i++)
		p.offset[i] = (float)l->rule.offset[i];
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		p.scale_of[i] = plan.scales.of[i];
	return hzi_cuda_launch(ctx, "vlut_gemm", plan.kernel, &launch, &p, sizeof(p));
}
