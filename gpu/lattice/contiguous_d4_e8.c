/*
 * contiguous_d4_e8.c - launchers of the kernels for contiguous blocks of D4 and E8
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "gpu/lattice/contiguous_d4_e8.h"
#include "gpu/lattice/launch.h"

#define THREADS 256

/* Whether rows are contiguous, `row` elements apart */
static bool rows_follow(const struct hzi_lattice_map *map, const int64_t *stride, int64_t row)
{
	for (int i = map->ndim - 1; i >= 0; i--) {
		if (stride[i] != row)
			return false;
		row *= map->shape[i];
	}
	return true;
}

static bool is_aligned(const void *p, size_t bytes)
{
	return (uintptr_t)p % bytes == 0;
}

/*
 * Whether all rows form one row of whole blocks, with values of `size` bytes: vectors of values are
 * aligned, and the codes of a block if they are one number.
 */
static bool is_contiguous(const struct hzi_lattice_map *map, const struct hzi_lattice_rule *r,
			  const void *v, size_t size, const void *codes, size_t code_bytes,
			  int levels, bool has_t)
{
	const size_t vector = size * (size_t)r->d < 16 ? size * (size_t)r->d : 16;
	const int64_t row_t = map->blocks / r->group;

	return map->n == map->blocks * r->d && map->v_step == 1 &&
	       rows_follow(map, map->v_stride, map->n) && is_aligned(v, vector) &&
	       map->code_block >= 0 && map->code_block <= UINT32_MAX &&
	       rows_follow(map, map->code_stride, map->blocks * map->code_block) &&
	       (map->code_block != levels || is_aligned(codes, code_bytes * (size_t)levels)) &&
	       (!has_t || (map->t_step == 1 && map->blocks % r->group == 0 &&
			   rows_follow(map, map->t_stride, row_t))) &&
	       map->blocks * hzi_cuda_lattice_rows(map) <= INT32_MAX;
}

/* ---- Encoding ------------------------------------------------------------------------------ */

/* Lattices whose points the kernels of contiguous_d4_e8.cu hold in bytes */
static const struct byte_lattice {
	int kind, d, q, max_levels, kernel, threads, sm_blocks;
	int max_coordinate;	/* largest |coordinate| of a point */
} byte_lattices[] = {
	{HZ_LATTICE_D, 4, 4, 3, HZI_KERNEL_lattice_encode_d4q4, THREADS, 4, 127},
	{HZ_LATTICE_D, 4, 2, 4, HZI_KERNEL_lattice_encode_d4q2, THREADS, 4, 62},
	{HZ_LATTICE_E8, 8, 4, 2, HZI_KERNEL_lattice_encode_e8q4, 768, 1, 118},
	{HZ_LATTICE_E8, 8, 2, 4, HZI_KERNEL_lattice_encode_e8q2, THREADS, 3, 123},
};

/* The row that holds the points of a lattice, or NULL */
static const struct byte_lattice *find_bytes(const struct hzi_lattice_rule *r)
{
	const int unit = r->kind == HZ_LATTICE_E8 ? 2 : 1;
	double max_coordinate = (ceil((double)r->reach) + 1) * unit;

	for (int i = 0; i < r->d; i++)
		max_coordinate = fmax(max_coordinate,
				      (ceil((double)r->reach) + 1) * unit + abs(r->offset[i]));
	for (size_t i = 0; i < sizeof(byte_lattices) / sizeof(byte_lattices[0]) && !r->shaping; i++) {
		const struct byte_lattice *b = &byte_lattices[i];

		if (r->kind == b->kind && r->d == b->d && r->q == b->q &&
		    r->levels <= b->max_levels && max_coordinate <= b->max_coordinate)
			return b;
	}
	return NULL;
}

bool hzi_cuda_lattice_bytes(const struct hzi_lattice_rule *r)
{
	return r->q == 4 && !(r->flags & HZI_LATTICE_MAPPED) && find_bytes(r);
}

const char *hzi_cuda_lattice_encode_contiguous_d4_e8_unsupported(const struct hz_context *ctx,
								 const void *args)
{
	const struct hzi_lattice_encode_args *const a = args;
	const struct hzi_lattice_rule *r = &a->lattice->rule;

	(void)ctx;
	if (a->matrices)
		return "the lattice has a basis or a transform";
	if (a->pack != HZ_LATTICE_LEVEL)
		return "the codes are not one number a level";
	if (r->policy == HZ_LATTICE_BANK || r->policy == HZ_LATTICE_GROUP)
		return "T is of a bank or of groups";
	if (!is_contiguous(&a->map, r, a->x, hz_dtype_size(a->x_dtype), a->codes,
			   hz_dtype_size(a->code_dtype), r->levels, a->t != NULL))
		return "the blocks are not contiguous and aligned";
	return find_bytes(r) ? NULL : "the points are not D4 or E8 with q = 2 or 4, or exceed s8";
}

int hzi_cuda_lattice_encode_contiguous_d4_e8(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_encode_args *const a = args;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const struct byte_lattice *b = find_bytes(r);
	struct hzi_lattice_encode_d4_e8 p = {
		.rule = *r, .x = a->x, .codes = a->codes, .t = a->t,
		.overload = (uint64_t *)a->overload, .code_level = a->map.code_level,
		.blocks = (uint32_t)(a->map.blocks * hzi_cuda_lattice_rows(&a->map)),
		.code_block = (uint32_t)a->map.code_block, .dtype = a->x_dtype,
		.f16_two_levels = a->x_dtype == HZ_F16 && r->levels == 2 &&
				  a->map.code_block == 2 && a->map.code_level == 1 &&
				  !(r->flags & HZI_LATTICE_DITHERED),
	};
	const struct hzi_launch launch = {
		.grid = {hzi_cuda_lattice_grid(ctx, p.blocks, b->threads, b->sm_blocks)},
		.block = {(unsigned)b->threads}, .early = true,
	};

	for (int i = 0; i < r->d; i++)
		p.offset[r->d == 8 ? i & 1 : 0] += (uint32_t)r->offset[i]
						   << (r->d == 8 ? 3 - i / 2 : i) * 8;
	if (a->overload)
		HZ_CHECK(hzi_cuda_lattice_clear(ctx, a->overload));
	return hzi_cuda_launch(ctx, "lattice_encode", b->kernel, &launch, &p, sizeof(p));
}

/* ---- Decoding ------------------------------------------------------------------------------ */

/*
 * The bias that makes leaders nonnegative; -1 if the weighted sum of the levels does not fit 8 bits
 */
static int table_bias(const struct hz_lattice *l, double weights)
{
	const int range = l->leader_high - l->leader_low;

	return !l->leaders || l->rule.level_size > 256 || range >= 1 << (l->rule.d == 4 ? 8 : 4) ||
	       range * weights > 255 ? -1 : -l->leader_low;
}

static int dtype_index(int dtype)
{
	return dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : dtype == HZ_BF16 ? 2 : 3;
}

/* See struct hzi_lattice_decode_d4_e8 */
struct plan {
	bool e8q4;
	int added;			/* to leaders */
	double weights, lowest;		/* 1 + q + q^2 + ...; the factor of the first level */
	double base[8];
};

/* NULL, or why the call is not supported */
static const char *plan_of(const struct hzi_lattice_decode_args *a, struct plan *p)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const float unit = r->kind == HZ_LATTICE_E8 ? 0.5f : 1.0f;
	const int levels = r->levels - a->first;
	double weight = 1;

	*p = (struct plan){.e8q4 = r->kind == HZ_LATTICE_E8 && r->q == 4, .added = 8, .lowest = 1};
	if (a->to != HZ_LATTICE_VALUES)
		return "points or digits are asked for";
	if (a->pack != HZ_LATTICE_LEVEL)
		return "the codes are not one number a level";
	if (a->matrices || r->shaping || (r->d != 4 && r->d != 8))
		return "the lattice is not a named one of dimension 4 or 8";
	if (levels > (p->e8q4 ? 2 : 4) || (r->group & (r->group - 1)))
		return "too many levels, or groups of blocks that are no power of two";
	/* Two blocks of 4 are read as one number. */
	if (!is_aligned(a->y, 16) ||
	    !is_contiguous(&a->map, r, a->y, hz_dtype_size(a->y_dtype), a->codes,
			   hz_dtype_size(a->code_dtype), levels, a->t != NULL) ||
	    (r->d == 4 && a->map.code_block == levels && !is_aligned(a->codes, 2 * (size_t)levels)))
		return "the blocks are not contiguous and aligned";
	for (int m = 0; m < levels; m++) {
		p->weights += weight;
		weight *= r->q;
	}
	for (int m = 0; m < a->first; m++)
		p->lowest *= r->q;
	if (!p->e8q4 && (p->added = table_bias(a->lattice, p->weights)) < 0)
		return "the leaders do not fit a table of bytes";
	for (int i = 0; i < r->d; i++) {
		p->base[i] = unit * ((32768 + p->added * p->weights) * p->lowest + r->offset[i]);
		/* Then n unit - base is exact, as the coordinates are. */
		if ((float)p->base[i] != p->base[i])
			return "the offset is too large for f32";
	}
	return NULL;
}

const char *hzi_cuda_lattice_decode_contiguous_d4_e8_unsupported(const struct hz_context *ctx,
								 const void *args)
{
	struct plan p;

	(void)ctx;
	return plan_of(args, &p);
}

int hzi_cuda_lattice_decode_contiguous_d4_e8(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_decode_args *const a = args;
	const struct hz_lattice *l = a->lattice;
	const struct hzi_lattice_rule *r = &l->rule;
	const int dtype = dtype_index(a->y_dtype);
	struct hzi_launch launch = {.block = {THREADS}, .early = true};
	int sm_blocks = 8, kernel = r->d == 4 ? HZI_KERNEL_lattice_decode_d4_f32 :
				    HZI_KERNEL_lattice_decode_d8_f32;
	struct plan plan;

	plan_of(a, &plan);

	struct hzi_lattice_decode_d4_e8 p = {
		.codes = a->codes, .t = a->t, .y = a->y, .code_level = a->map.code_level,
		.blocks = (uint32_t)(a->map.blocks * hzi_cuda_lattice_rows(&a->map)),
		.code_block = (uint32_t)a->map.code_block, .levels = r->levels - a->first,
		.q = r->q,
		.unit = (float)((r->kind == HZ_LATTICE_E8 ? 0.5f : 1.0f) * plan.lowest),
	};

	while (1 << p.group_shift < r->group)
		p.group_shift++;
	/* Codes >= q^d are taken modulo q^d. */
	for (int i = 0; i < 256 && !plan.e8q4; i++) {
		const int32_t *leader = l->leaders + i % (int)r->level_size * r->d;

		for (int j = 0; j < r->d; j++)
			p.table[i] |= (uint32_t)(leader[j] - l->leader_low)
				      << (r->d == 4 ? 8 : 4) * j;
	}
	for (int i = 0; i < r->d; i++) {
		const uint32_t minus =
			(uint32_t)(plan.added * (int)plan.weights + r->offset[i]) & 0xff;

		p.minus[r->d == 8 ? i & 1 : 0] |= minus << (r->d == 8 ? i / 2 : i) * 8;
		p.base[i] = (float)plan.base[i];
		p.sub[i] = a->sub[i];
	}
	for (int t = 0; t < HZI_LATTICE_SCALES; t++)
		p.scale[t] = r->scale[t < r->scales ? t : r->scales - 1];
	/* Larger blocks amortize larger tables. */
	if (plan.e8q4) {
		kernel = HZI_KERNEL_lattice_decode_e8q4_f32;
		launch.block[0] = dtype ? 1024 : 512;
		sm_blocks = dtype ? 2 : 3;
	}
	launch.grid[0] = hzi_cuda_lattice_grid(ctx, p.blocks, (int)launch.block[0], sm_blocks);
	return hzi_cuda_launch(ctx, "lattice_decode", kernel + dtype, &launch, &p, sizeof(p));
}
