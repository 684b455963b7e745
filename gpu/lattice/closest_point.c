/*
 * closest_point.c - launchers of the kernels for Z^d, A2, D_d and E8 with any q, packing and
 * strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/lattice/launch.h"
#include "gpu/lattice/closest_point.h"

#define POINT_MOST (1 << 18)	/* largest |coordinate|, so that sums are exact in f32 */

static const struct lattice_kernels {
	int kind, d, most_q;
	int encode_blocks, decode_blocks;	/* an SM */
} lattices[] = {
	{HZ_LATTICE_Z, 1, 4096, 5, 8}, {HZ_LATTICE_Z, 2, 4096, 5, 8}, {HZ_LATTICE_Z, 4, 64, 4, 8},
	{HZ_LATTICE_Z, 8, 16, 3, 5}, {HZ_LATTICE_A2, 2, 4096, 5, 8}, {HZ_LATTICE_D, 3, 64, 4, 6},
	{HZ_LATTICE_D, 4, 64, 4, 6}, {HZ_LATTICE_D, 8, 16, 3, 4}, {HZ_LATTICE_E8, 8, 16, 3, 3},
};

/* The index of a lattice in the table, or -1 */
static int find(const struct hz_lattice *l)
{
	const struct hzi_lattice_rule *r = &l->rule;

	for (int i = 0; i < r->embed; i++) {
		if (abs(r->offset[i]) > POINT_MOST)
			return -1;
	}
	if (r->shaping || (r->flags & HZI_LATTICE_MAPPED) || r->level_size == 0 || l->point_max > POINT_MOST)
		return -1;
	for (size_t i = 0; i < sizeof(lattices) / sizeof(lattices[0]); i++) {
		if (r->kind == lattices[i].kind && r->d == lattices[i].d &&
		    r->q <= lattices[i].most_q)
			return (int)i;
	}
	return -1;
}

/*
 * Coset leaders lie in the Voronoi cell of q L, where <c, w> <= q |w|^2 / 2 for each minimal vector
 * w. A point p of all levels therefore has <p, w> <= (|w|^2 / 2) (q + q^2 + ...). The terms for
 * rounding v / s, the offset o and dither are added to that bound.
 */
static float gauge_of(const struct hz_lattice *l)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const double length = r->kind == HZ_LATTICE_D || r->kind == HZ_LATTICE_E8 ? sqrt(2) : 1;
	const double unit = r->kind == HZ_LATTICE_E8 ? 0.5 : 1;
	double sum = 0, weight = 1, offset = 0, dither = 0;

	for (int m = 0; m < r->levels; m++) {
		weight *= r->q;
		sum += weight;
	}
	for (int i = 0; i < r->embed; i++)
		offset += unit * unit * (double)r->offset[i] * r->offset[i];
	for (int i = 0; i < r->d; i++)
		dither += (double)r->dither[i] * r->dither[i];
	return (float)(1.001 * (length * length / 2 * (sum + 1) +
				length * (sqrt(offset) + sqrt(dither))) + 0.01);
}

static bool divides(size_t bytes, const void *p, const int64_t *stride, int ndim, size_t size)
{
	bool all = (uintptr_t)p % bytes == 0;

	for (int i = 0; i < ndim; i++)
		all = all && stride[i] * (int64_t)size % (int64_t)bytes == 0;
	return all;
}

static int level_bytes_of(const struct hzi_lattice_rule *r)
{
	return r->level_size <= 256 ? 1 : r->level_size <= 65536 ? 2 : 4;
}

/* NULL, or why the kernels do not support a call with units of `group` blocks */
static const char *unsupported(const struct hz_lattice *l, const struct hzi_lattice_map *map,
			       int64_t group, int pack)
{
	if (find(l) < 0)
		return "no kernel knows the lattice with such q and offset";
	if (ceil_div(map->blocks, group) * hzi_cuda_lattice_rows(map) > INT32_MAX / group)
		return "more than 2^31 blocks";
	return pack != HZ_LATTICE_FULL64 && l->rule.levels * level_bytes_of(&l->rule) > 8 ?
		       "the codes of a block do not fit 64 bits" : NULL;
}

/* Fills *p for units of `group` blocks */
static void fill(struct hzi_lattice_closest *p, const struct hz_lattice *l,
		 const struct hzi_lattice_map *map, int64_t group, const void *v, int v_dtype,
		 const void *codes, int code_dtype, int pack, int levels)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const size_t size = hz_dtype_size(v_dtype), code_size = hz_dtype_size(code_dtype);
	const size_t vector = size * (size_t)r->d < 16 ? size * (size_t)r->d : 16;
	const int64_t row_units = ceil_div(map->blocks, group);
	const int64_t units = row_units * hzi_cuda_lattice_rows(map);
	const int level_bytes = level_bytes_of(r);
	const size_t all = code_size * (size_t)levels;

	*p = (struct hzi_lattice_closest){
		.rule = *r, .codes = hzi_cuda_lattice_codes(map, codes, code_dtype, pack),
		.v = (void *)(uintptr_t)v, .v_step = map->v_step, .t_step = map->t_step,
		.n = map->n,
		.units = (uint32_t)units, .row_units = (uint32_t)row_units,
		.blocks = (uint32_t)map->blocks,
		.magic = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)r->q), .ndim = map->ndim,
		.v_dtype = v_dtype,
		.q = (float)r->q, .inverse = 1.0f / (float)r->q, .gauge = gauge_of(l),
	};
	p->unit = r->kind == HZ_LATTICE_E8 ? 2 * p->q : p->q;
	p->unit_inverse = 1.0f / p->unit;
	memcpy(p->v_stride, map->v_stride, sizeof(p->v_stride));
	memcpy(p->t_stride, map->t_stride, sizeof(p->t_stride));
	for (int i = 0; i < map->ndim; i++)
		p->shape[i] = (uint32_t)map->shape[i];
	for (int i = 0; i < r->embed; i++)
		p->offset[i] = (float)r->offset[i];
	p->level_bits = 8 * level_bytes;
	p->weight = pack == HZ_LATTICE_FULL64 ? r->level_size : (uint64_t)1 << p->level_bits;
	p->vectors = r->d != 3 && map->v_step == 1 && map->n % r->d == 0 &&
		     divides(vector, v, map->v_stride, map->ndim, size);
	if (pack == HZ_LATTICE_FULL64)
		p->block_bytes = 8;
	else if (pack == HZ_LATTICE_LEVEL && (all & (all - 1)) == 0 && all <= 8 &&
		 (levels == 1 || map->code_level == 1) &&
		 divides(all, codes, map->code_stride, map->ndim, code_size) &&
		 map->code_block * (int64_t)code_size % (int64_t)all == 0)
		p->block_bytes = (int32_t)all;
}

const char *hzi_cuda_lattice_encode_closest_point_unsupported(const struct hz_context *ctx,
							      const void *args)
{
	const struct hzi_lattice_encode_args *const a = args;
	const int group = a->lattice->rule.group;

	(void)ctx;
	return group > 32 ? "more than 32 blocks share T" :
	       unsupported(a->lattice, &a->map, group, a->pack);
}

int hzi_cuda_lattice_encode_closest_point(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_encode_args *const a = args;
	const struct hz_lattice *l = a->lattice;
	const struct hzi_lattice_rule *r = &l->rule;
	/* See `reach` in gpu/lattice/points_s8.cuh: no |coordinate| exceeds the gauge. */
	const bool bytes = gauge_of(l) < (r->d == 8 ? 49 : 99) &&
			   r->policy != HZ_LATTICE_NONE && hzi_cuda_lattice_bytes(r) &&
			   !(r->flags & HZI_LATTICE_DITHERED);
	const int i = find(l);
	struct hzi_lattice_closest p;
	struct hzi_launch launch = {.block = {256}, .early = true};
	int kernel = i, blocks;

	fill(&p, l, &a->map, r->group, a->x, a->x_dtype, a->codes, a->code_dtype, a->pack,
	     r->levels);
	p.t = a->t;
	p.overload = (uint64_t *)a->overload;
	for (int j = 0; j < r->d; j++)
		p.offset_bytes[r->d == 8 ? j & 1 : 0] += (uint32_t)r->offset[j]
							 << (r->d == 8 ? 3 - j / 2 : j) * 8;
	kernel += HZI_KERNEL_lattice_encode_z1;
	blocks = lattices[i].encode_blocks;
	if (bytes && r->d == 4)
		kernel = HZI_KERNEL_lattice_encode_groups_d4q4;
	if (bytes && r->d == 8) {
		kernel = HZI_KERNEL_lattice_encode_groups_e8q4;
		blocks = 1;
		launch.block[0] = 768;
	}
	launch.grid[0] = hzi_cuda_lattice_grid(ctx, (int64_t)p.units * r->group,
					       (int)launch.block[0], blocks);
	if (a->overload)
		HZ_CHECK(hzi_cuda_lattice_clear(ctx, a->overload));
	return hzi_cuda_launch(ctx, "lattice_encode", kernel, &launch, &p, sizeof(p));
}

const char *hzi_cuda_lattice_decode_closest_point_unsupported(const struct hz_context *ctx,
							      const void *args)
{
	const struct hzi_lattice_decode_args *const a = args;

	(void)ctx;
	return a->to != HZ_LATTICE_VALUES ? "points or digits are asked for" :
	       unsupported(a->lattice, &a->map, 1, a->pack);
}

int hzi_cuda_lattice_decode_closest_point(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_decode_args *const a = args;
	const struct hz_lattice *l = a->lattice;
	const int first = a->pack == HZ_LATTICE_LEVEL ? a->first : 0, i = find(l);
	struct hzi_lattice_closest p;
	struct hzi_launch launch = {.block = {256}, .early = true};

	fill(&p, l, &a->map, 1, a->y, a->y_dtype, a->codes, a->code_dtype, a->pack,
	     l->rule.levels - first);
	p.t = (uint8_t *)(uintptr_t)a->t;
	p.first = a->first;
	memcpy(p.sub, a->sub, sizeof(p.sub));
	launch.grid[0] = hzi_cuda_lattice_grid(ctx, p.units, 256, lattices[i].decode_blocks);
	return hzi_cuda_launch(ctx, "lattice_decode", HZI_KERNEL_lattice_decode_z1 + i, &launch, &p,
			       sizeof(p));
}

const char *hzi_cuda_lattice_points_s8_unsupported(const struct hz_lattice *l)
{
	const struct hzi_lattice_rule *r = &l->rule;
	int most = 0;

	for (int i = 0; i < r->embed; i++)
		most = abs(r->offset[i]) > most ? abs(r->offset[i]) : most;
	return find(l) < 0 ? "no kernel knows the lattice with such q and offset" :
	       l->point_max + most > INT8_MAX ? "the points do not fit s8" :
	       r->levels * level_bytes_of(r) > 8 ? "the codes of a block do not fit 64 bits" : NULL;
}

int hzi_cuda_lattice_points_s8(struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	return a->first == 0 && !hzi_cuda_lattice_decode_contiguous_d4_e8_unsupported(ctx, a) ?
	       hzi_cuda_lattice_decode_contiguous_d4_e8(ctx, a) :
	       hzi_cuda_lattice_decode_closest_point(ctx, a);
}

/* ---- Repacking ----------------------------------------------------------------------------- */

const char *hzi_cuda_lattice_repack_u32_levels_unsupported(const struct hz_context *ctx,
							   const void *args)
{
	const struct hzi_lattice_repack_args *const a = args;
	const struct hzi_lattice_rule *r = &a->lattice->rule;

	(void)ctx;
	/* Excludes shifts by 64 bits, which are undefined. */
	return r->level_size == 0 || (r->log2q >= 0 && r->log2q * r->d > 32) ?
		       "the codes of a level do not fit 32 bits" :
	       a->from.blocks * hzi_cuda_lattice_rows(&a->from) > INT32_MAX ?
		       "more than 2^31 blocks" : NULL;
}

int hzi_cuda_lattice_repack_u32_levels(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_repack_args *const a = args;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int64_t units = a->from.blocks * hzi_cuda_lattice_rows(&a->from);
	struct hzi_lattice_repack p = {
		.src = hzi_cuda_lattice_codes(&a->from, a->from_codes, a->from_dtype,
					      a->from_pack),
		.dst = hzi_cuda_lattice_codes(&a->to, a->to_codes, a->to_dtype, a->to_pack),
		.level_size = r->level_size, .units = (uint32_t)units,
		.row_units = (uint32_t)a->from.blocks,
		.magic = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)r->q), .ndim = a->from.ndim,
		.q = r->q, .log2q = r->log2q, .d = r->d, .levels = r->levels,
		.limb_digits = r->limb_digits,
	};
	const struct hzi_launch launch = {
		.grid = {hzi_cuda_lattice_grid(ctx, units, 256, 8)}, .block = {256}, .early = true,
	};

	for (int i = 0; i < p.ndim; i++)
		p.shape[i] = (uint32_t)a->from.shape[i];
	return hzi_cuda_launch(ctx, "lattice_repack", HZI_KERNEL_lattice_repack_u32_levels, &launch,
			       &p, sizeof(p));
}
