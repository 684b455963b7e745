/*
 * common.c - grids, rows and codes for the launchers of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/lattice/contiguous_d4_e8.h"
#include "gpu/lattice/launch.h"

unsigned hzi_cuda_lattice_grid(const struct hz_context *ctx, int64_t threads, int per_block,
			       int blocks_per_sm)
{
	const int64_t blocks = ceil_div(threads, per_block);
	const int64_t most = (int64_t)hzi_cuda_device(ctx)->sms * blocks_per_sm;

	return (unsigned)(blocks < most ? blocks : most);
}

int64_t hzi_cuda_lattice_rows(const struct hzi_lattice_map *map)
{
	int64_t rows = 1;

	for (int i = 0; i < map->ndim; i++)
		rows *= map->shape[i];
	return rows;
}

struct hzi_lattice_codes hzi_cuda_lattice_codes(const struct hzi_lattice_map *map,
						const void *codes, int dtype, int pack)
{
	struct hzi_lattice_codes c = {
		.codes = (void *)(uintptr_t)codes, .block = map->code_block,
		.level = map->code_level, .bytes = (int32_t)hz_dtype_size(dtype), .pack = pack,
	};

	memcpy(c.stride, map->code_stride, sizeof(c.stride));
	return c;
}

int hzi_cuda_lattice_clear(struct hz_context *ctx, int64_t *overload)
{
	const struct hzi_lattice_clear_counts clear = {.overload = (uint64_t *)overload};
	const struct hzi_launch one = {.block = {32}, .early = true};

	return hzi_cuda_launch(ctx, "lattice_encode", HZI_KERNEL_lattice_clear_counts, &one, &clear,
			       sizeof(clear));
}
