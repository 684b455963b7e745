/*
 * table_f16_skinny.c - launcher of rows of codes by up to 8 vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/table_f16_skinny.h"
#include "gpu/vlut/launch.h"

#define COLUMNS 8
#define MOST_F16 2048	/* integers up to it are exact in f16 */

/* How a call is done */
struct plan {
	int kernel, columns, round, t_shift;
	bool pairs;
	bool splits;			/* table_s8_skinny.c can split k of these codes */
	int64_t chunks, tiles, shares, shared;
	struct hzi_vlut_scales scales;
};

/* The kernels for the codes of a lattice, for one vector; -1: none */
struct kind {
	int plain, scaled, blocks;
	int64_t table;			/* bytes in shared memory */
	int values;			/* of a piece of 16 bytes */
	bool scales;			/* a table of the scales of blocks follows */
	bool pairs;			/* leaders are f16, see fill_pairs() */
	bool one;			/* for one vector only */
	bool split;			/* gpu/vlut/table_s8_skinny.c can split their k */
};

/* Codes of u8 for one or two values; one level with too many codes for tables */
#define BIT(kind) (1 << HZ_LATTICE_##kind)

static const struct {
	int kinds, d, code_bytes, levels, plain, scaled, blocks;
} others[] = {
	{BIT(Z), 1, 1, 1, HZI_KERNEL_vlut_half_p1_1_1, HZI_KERNEL_vlut_half_p1_1_scaled_1, -1},
	{BIT(Z), 1, 1, 2, HZI_KERNEL_vlut_half_p1_2_1, HZI_KERNEL_vlut_half_p1_2_scaled_1, -1},
	{BIT(Z) | BIT(A2) | BIT(D), 2, 1, 1, HZI_KERNEL_vlut_half_p2_1_1,
	 HZI_KERNEL_vlut_half_p2_1_scaled_1, -1},
	{BIT(Z) | BIT(A2) | BIT(D), 2, 1, 2, HZI_KERNEL_vlut_half_p2_2_1,
	 HZI_KERNEL_vlut_half_p2_2_scaled_1, -1},
	{BIT(D), 4, 2, 1, HZI_KERNEL_vlut_rules_d4_1, -1, HZI_KERNEL_vlut_rules_d4_blocks_1},
	{BIT(E8), 8, 4, 1, HZI_KERNEL_vlut_rules_e8_1, -1, HZI_KERNEL_vlut_rules_e8_blocks_1},
};

/* Whether f16 has all that sums to points less o exactly, of A2 halves too */
static bool is_near(const hz_lattice *l, int levels)
{
	const int most = l->rule.kind == HZI_LATTICE_A2 ? MOST_F16 / 2 : MOST_F16;
	int64_t points = 0;
	int offset = 0;

	for (int m = 0; m < levels; m++) {
		points = points * l->rule.q + l->leader_max;
		if (points > most)
			return false;
	}
	for (int i = 0; i < l->rule.embed; i++)
		offset = abs(l->rule.offset[i]) > offset ? abs(l->rule.offset[i]) : offset;
	return points + offset <= most;
}

static bool other_of(const hz_lattice *l, const struct hzi_coded *w, struct kind *k)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int size = (int)hz_dtype_size(w->code_dtype), levels = r->levels - w->first;

	if ((r->flags & HZI_LATTICE_MAPPED) || !is_near(l, levels))
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		if (!(others[i].kinds & 1 << r->kind) || others[i].d != r->d ||
		    others[i].code_bytes != size || others[i].levels != levels)
			continue;
		*k = (struct kind){
			.plain = others[i].plain, .scaled = others[i].scaled,
			.blocks = others[i].blocks,
			.table = r->d <= 2 ? HZI_VMMA_TABLE_BYTES : 0,
			.values = 16 / (size * levels) * r->d, .scales = true, .pairs = r->d <= 2,
		};
		return !k->pairs || l->leaders;
	}
	return false;
}

/* NULL, or why no kernel knows the codes */
static const char *kind_of(const struct hzi_vlut_gemm_args *a, const struct hzi_coded *w,
			   struct kind *k)
{
	static const char unknown[] = "no kernel knows such codes";
	const hz_lattice *l = a->vlut->w;
	const struct hzi_lattice_rule *r = &l->rule;
	const int levels = r->levels - w->first;
	const bool eight = r->d == 8;
	const char *const why = hzi_cuda_vlut_rows_unsupported(l, w);
	struct hzi_vlut_s8 s8;

	*k = (struct kind){.plain = -1, .scaled = -1, .blocks = -1};
	if (why)
		return why;
	if (hzi_cuda_vlut_s8_unsupported(l, levels, &s8))
		return other_of(l, w, k) ? NULL : unknown;
	if (!s8.wide && !s8.large) {
		k->plain = eight ? HZI_KERNEL_vlut_half_d8_1 : HZI_KERNEL_vlut_half_d4_1;
		k->scaled = eight ? HZI_KERNEL_vlut_half_d8_scaled_1 :
			    HZI_KERNEL_vlut_half_d4_scaled_1;
		k->blocks = eight ? HZI_KERNEL_vlut_half_d8_blocks_1 :
			    HZI_KERNEL_vlut_half_d4_blocks_1;
		k->table = HZI_VMMA_TABLE_BYTES;
		k->values = 32;
		k->split = true;
		return levels * 2 == r->d ? NULL : unknown;
	}
	if (levels != 2 || !a->vlut->words[0])
		return other_of(l, w, k) ? NULL : unknown;
	k->scales = true;
	if (s8.wide) {
		k->blocks = HZI_KERNEL_vlut_half_wide_blocks;
		k->table = HZI_VMMA_WIDE_BYTES;
		k->values = 32;
		k->one = true;
		return NULL;
	}
	k->plain = eight ? HZI_KERNEL_vlut_half_w8_1 : HZI_KERNEL_vlut_half_w4_1;
	k->blocks = eight ? HZI_KERNEL_vlut_half_w8_blocks_1 : HZI_KERNEL_vlut_half_w4_blocks_1;
	k->table = round_up((int64_t)r->level_size * 4, 128);
	k->values = 4 * r->d;
	return NULL;
}

/* log2 of the T of a piece, or minus that of the pieces that share one */
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

/* NULL, or why the call is not supported */
static const char *plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   const struct hzi_coded *w, struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	int64_t room, tile_bytes, scales = 0;
	const char *why;
	struct kind k;

	if (a->vlut->route == HZ_VLUT_TABLE)
		return HZI_VLUT_ASKS_FOR_TABLE;
	if (a->x_dtype != HZ_F16 || a->y_dtype == HZ_S32)
		return "x is not f16";
	if (a->batch > COLUMNS)
		return "more than 8 columns";
	if ((why = kind_of(a, w, &k)) || (why = hzi_cuda_vlut_scales_unsupported(l, w, &p->scales)))
		return why;
	p->columns = a->batch == 1 ? 1 : COLUMNS;
	p->kernel = k.plain;
	p->pairs = k.pairs;
	p->t_shift = 0;
	if (hzi_lattice_has_t(l)) {
		p->t_shift = t_shift_of(l, k.values);
		p->kernel = p->t_shift <= 0 && k.scaled >= 0 ? k.scaled : k.blocks;
		/* A piece's T are one load. */
		if (p->t_shift > 0 && ((uintptr_t)w->t | (uint64_t)w->t_row) % (1u << p->t_shift))
			return "T is not aligned";
		if (p->kernel == k.scaled || k.scales)
			scales = HZI_VMMA_SCALES_BYTES;
	}
	if (p->kernel < 0)
		return "no kernel knows such codes with or without T";
	if (k.one && a->batch > 1)
		return "more than one column of E8 with q = 4";
	p->kernel += a->batch == 1 ? 0 : 1;
	p->chunks = ceil_div(w->k, 4 * k.values);
	p->tiles = ceil_div(w->rows, HZI_VHALF_ROWS);
	p->splits = k.split && p->t_shift <= 0;
	p->shares = min_of(p->tiles, g->multiprocessors);
	tile_bytes = (int64_t)HZI_VMMA_THREADS * p->columns * 4;	/* 16 warps, 32 rows */
	p->shared = 1024 + k.table + scales + p->chunks * 4 * k.values * 2 * p->columns;
	room = (g->shared_block_bytes - p->shared) / tile_bytes;
	if (room < 1)
		return "x does not fit shared memory";
	p->round = (int)min_of(ceil_div(p->tiles, p->shares), room);
	p->shared += p->round * tile_bytes;
	return NULL;
}

const char *hzi_cuda_vlut_table_f16_skinny_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(a->vlut->w, &a->w);
	struct plan p;

	return plan_of(ctx, a, &w, &p);
}

bool hzi_cuda_vlut_split_k_pays(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_coded w = hzi_cuda_vlut_code_view(a->vlut->w, &a->w);
	struct plan p;

	return ctx->sm >= 90 &&
	       ceil_div(w.rows, HZI_VHALF_ROWS) * 4 < hzi_cuda_device(ctx)->multiprocessors &&
	       !plan_of(ctx, a, &w, &p) && p.splits && p.chunks >= 32;
}

/* The values of a point as f16, of a single one with 0 in the upper half */
static uint32_t pair_of(const hz_lattice *l, const int32_t *c, float root)
{
	const bool a2 = l->rule.kind == HZI_LATTICE_A2;
	const float first = a2 ? 0.5f * (float)(c[0] - c[2]) : (float)c[0];
	const float second = l->rule.d == 1 ? 0 : a2 ? -root * (float)c[1] : (float)c[1];

	return hzi_cuda_vlut_f16(first) | hzi_cuda_vlut_f16(second) << 16;
}

/*
 * Leaders as pairs of f16: of one level less o, rounded once where A2 has a root. Of two levels the
 * root is a factor of their sum less o, which is exact: rounded numbers are not to cancel.
 */
static void fill_pairs(struct hzi_vlut_half *p, const hz_lattice *l, int levels)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const float root = r->kind == HZI_LATTICE_A2 ? 0.86602540378443864676f : 1;

	for (int i = 0; i < HZI_VMMA_ENTRIES; i++) {
		const int32_t *leader = l->leaders + i % (int)r->level_size * r->embed;
		int32_t c[3] = {0};

		for (int e = 0; e < r->embed; e++)
			c[e] = leader[e] - (levels == 1 ? r->offset[e] : 0);
		p->leaders[i] = pair_of(l, c, levels == 1 ? root : 1);
	}
	p->minus = pair_of(l, r->offset, 1) ^ 0x80008000;
	if (r->d == 1)
		p->minus = (p->minus & 0xffff) * 0x10001u;
	p->unit = hzi_cuda_vlut_f16(1) | hzi_cuda_vlut_f16(root) << 16;
	p->q16 = hzi_cuda_vlut_f16((float)r->q) * 0x10001u;
}

int hzi_cuda_vlut_table_f16_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_code_view(l, &a->w);
	struct hzi_vlut_s8 s8;
	struct plan plan = {0};
	const char *const no_s8 = hzi_cuda_vlut_s8_unsupported(l, l->rule.levels - w.first, &s8);

	plan_of(ctx, a, &w, &plan);

	const float q = (float)l->rule.q, unit = l->rule.kind == HZ_LATTICE_E8 ? 2 : 1;
	struct hzi_vlut_half p = {
		.codes = w.codes, .t = w.t, .words = a->vlut->words[0],
		.row_scale = w.row_scale, .x = a->x, .y = a->y,
		.row = w.row * (int64_t)hz_dtype_size(w.code_dtype), .t_row = w.t_row,
		.row_scale_step = w.row_scale_step, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i,
		.y_b = a->y_b, .rows = (int32_t)w.rows,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w), .k = (int32_t)w.k,
		.chunks = (int32_t)plan.chunks, .batch = (int32_t)a->batch, .y_dtype = a->y_dtype,
		.q = l->rule.q, .t_shift = plan.t_shift, .round = plan.round,
		.entries = (int32_t)l->rule.level_size,
		.per_entry = (uint32_t)(UINT32_MAX / l->rule.level_size + 1),
		.per_q = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)l->rule.q),
		.log2q = l->rule.log2q,
		.radix = {q, 1 / q, unit * q, 1 / (unit * q)},
		.scales = l->rule.scales, .scale = plan.scales.factor,
		.rows_of_x = a->batch == COLUMNS && a->x_b == 1 && a->x_k % 8 == 0 &&
			     (uintptr_t)a->x % 16 == 0,
		.first = {s8.first[0], s8.first[1]},
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)plan.shares}, .block = {HZI_VMMA_THREADS},
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
