/*
 * generic.c - launchers of the kernels that encode, decode and repack with any lattice
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/lattice/launch.h"

/* A unit has `unit` blocks of a row. */
static struct hzi_lattice_generic make_params(const struct hz_lattice *l,
					      const struct hzi_lattice_map *map, int64_t unit,
					      const void *codes, int code_dtype, int pack)
{
	struct hzi_lattice_generic p = {
		.rule = l->rule, .codes = hzi_cuda_lattice_codes(map, codes, code_dtype, pack),
		.row_units = ceil_div(map->blocks, unit), .n = map->n,
		.blocks = map->blocks, .v_step = map->v_step, .v_block = map->v_block,
		.v_level = map->v_level, .t_step = map->t_step, .ndim = map->ndim,
	};

	p.units = p.row_units * hzi_cuda_lattice_rows(map);
	memcpy(p.shape, map->shape, sizeof(p.shape));
	memcpy(p.v_stride, map->v_stride, sizeof(p.v_stride));
	memcpy(p.t_stride, map->t_stride, sizeof(p.t_stride));
	return p;
}

/* Joins rows of whole blocks that follow each other in values, codes and scales. */
static void join_rows(struct hzi_lattice_generic *p)
{
	for (int d = p->ndim - 1; d >= 0 && p->n % 8 == 0 && p->v_stride[d] == p->n * p->v_step &&
	     p->codes.stride[d] == p->blocks * p->codes.block &&
	     p->t_stride[d] == p->row_units * p->t_step; d--) {
		p->n *= p->shape[d];
		p->blocks *= p->shape[d];
		p->row_units *= p->shape[d];
		p->ndim--;
	}
}

static int launch(struct hz_context *ctx, const char *op, int kernel, int basis_kernel,
		  const struct hzi_lattice_generic *p, const struct hzi_lattice_matrices *m)
{
	const struct hzi_launch launch = {
		.grid = {hzi_cuda_lattice_grid(ctx, p->units, HZI_LATTICE_THREADS, 16)},
		.block = {HZI_LATTICE_THREADS},
	};

	if (m) {
		const struct hzi_lattice_generic_basis with_basis = {.generic = *p, .matrices = *m};

		return hzi_cuda_launch(ctx, op, basis_kernel, &launch, &with_basis,
				       sizeof(with_basis));
	}
	return hzi_cuda_launch(ctx, op, kernel, &launch, p, sizeof(*p));
}

int hzi_cuda_lattice_scale_rows(struct hz_context *ctx, const char *op,
				const struct hzi_lattice_rows *rows, bool decode)
{
	const struct hzi_launch launch = {
		.grid = {hzi_cuda_lattice_grid(ctx, rows->rows, HZI_LATTICE_THREADS / 32, 16)},
		.block = {HZI_LATTICE_THREADS},
	};

	return hzi_cuda_launch(ctx, op, decode ? HZI_KERNEL_lattice_multiply_rows :
			       HZI_KERNEL_lattice_divide_rows, &launch, rows, sizeof(*rows));
}

int hzi_cuda_lattice_encode_generic(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_encode_args *const a = args;
	const int shaping = a->lattice->rule.shaping;
	struct hzi_lattice_generic p = make_params(a->lattice, &a->map, a->lattice->rule.group,
						   a->codes, a->code_dtype, a->pack);

	if (a->overload)
		HZ_CHECK(hzi_cuda_fill(ctx, a->overload, 0, 2 * sizeof(int64_t)));
	p.v = (void *)(uintptr_t)a->x;
	p.v_dtype = a->x_dtype;
	p.t = a->t;
	p.overload = (uint64_t *)a->overload;
	if (shaping) {
		const bool cube = shaping == HZI_SHAPING_CUBE;
		/* 4: as in gpu/lattice/shaped.cu */
		const struct hzi_launch shaped = {
			.grid = {hzi_cuda_lattice_grid(ctx, p.units, HZI_LATTICE_THREADS,
						       cube ? HZI_LATTICE_CUBE_BLOCKS : 4)},
			.block = {cube ? HZI_LATTICE_CUBE_THREADS : HZI_LATTICE_THREADS},
		};

		join_rows(&p);
		return hzi_cuda_launch(ctx, "lattice_encode", HZI_KERNEL_lattice_encode_cube +
				       shaping - HZI_SHAPING_CUBE, &shaped, &p, sizeof(p));
	}
	return launch(ctx, "lattice_encode", HZI_KERNEL_lattice_encode_generic,
		      HZI_KERNEL_lattice_encode_generic_basis, &p, a->matrices);
}

int hzi_cuda_lattice_decode_generic(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_decode_args *const a = args;
	struct hzi_lattice_generic p = make_params(a->lattice, &a->map, 1, a->codes, a->code_dtype,
						   a->pack);

	p.v = a->y;
	p.v_dtype = a->y_dtype;
	p.t = (uint8_t *)(uintptr_t)a->t;
	p.what = a->to;
	p.first = a->first;
	memcpy(p.sub, a->sub, sizeof(p.sub));
	return launch(ctx, "lattice_decode", HZI_KERNEL_lattice_decode_generic,
		      HZI_KERNEL_lattice_decode_generic_basis, &p, a->matrices);
}

int hzi_cuda_lattice_repack_generic(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_repack_args *const a = args;
	struct hzi_lattice_generic p = make_params(a->lattice, &a->from, 1, a->from_codes,
						   a->from_dtype, a->from_pack);

	p.to = hzi_cuda_lattice_codes(&a->to, a->to_codes, a->to_dtype, a->to_pack);
	return launch(ctx, "lattice_repack", HZI_KERNEL_lattice_repack_generic, 0, &p, NULL);
}
