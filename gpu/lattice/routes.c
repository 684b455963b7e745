/*
 * routes.c - routes of the lattice quantizer on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/lattice/launch.h"
#include "lib/core/route.h"

#define ROUTE(path) \
	.unsupported = hzi_cuda_lattice_##path##_unsupported, .run = hzi_cuda_lattice_##path

static const struct hzi_route encode_routes[] = {
	{"contiguous_d4_e8", "D4, E8 with q = 2 or 4, contiguous blocks",
	 ROUTE(encode_contiguous_d4_e8)},
	{"closest_point", "Z, A2, D and E8 of any strides and packing",
	 ROUTE(encode_closest_point)},
	{"generic", "any call", .run = hzi_cuda_lattice_encode_generic},
};

static const struct hzi_route decode_routes[] = {
	{"contiguous_d4_e8", "D4, E8 to values, contiguous blocks, from tables of leaders",
	 ROUTE(decode_contiguous_d4_e8)},
	{"closest_point", "Z, A2, D and E8 to values, any strides and packing",
	 ROUTE(decode_closest_point)},
	{"generic", "any call", .run = hzi_cuda_lattice_decode_generic},
};

static const struct hzi_route repack_routes[] = {
	{"u32_levels", "codes of a level that fit 32 bits", ROUTE(repack_u32_levels)},
	{"generic", "any call", .run = hzi_cuda_lattice_repack_generic},
};

const struct hzi_op_routes hzi_cuda_lattice_routes[] = {
	HZI_ROUTES(lattice_encode, encode_routes),
	HZI_ROUTES(lattice_decode, decode_routes),
	HZI_ROUTES(lattice_repack, repack_routes),
	{0},
};

int hzi_cuda_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_args *a)
{
	if (a->rows.scale)
		HZ_CHECK(hzi_cuda_lattice_scale_rows(ctx, "lattice_encode", &a->rows, false));
	return hzi_route_run(ctx, &hzi_cuda_lattice_routes[0], a);
}

/*
 * If the digits of a level take 8, 16 or 32 bits in all, other packings store levels as LEVEL does,
 * apart from gaps. Then changes the arguments to LEVEL, from the first level on, and returns true.
 */
static bool as_level_packing(struct hzi_lattice_decode_args *a)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int bits = r->log2q * r->d, bytes = bits / 8;
	const int element = a->pack == HZ_LATTICE_FULL64 ? 8 : 4;

	if (a->pack == HZ_LATTICE_LEVEL || (bits != 8 && bits != 16 && bits != 32) ||
	    (a->pack == HZ_LATTICE_LIMBS && (32 % r->log2q || a->map.code_level != 1)))
		return false;
	a->codes = (const char *)a->codes + a->first * bytes;
	a->map.code_block *= element / bytes;
	a->map.code_level = 1;
	for (int i = 0; i < a->map.ndim; i++)
		a->map.code_stride[i] *= element / bytes;
	a->pack = HZ_LATTICE_LEVEL;
	a->code_dtype = bytes == 1 ? HZ_U8 : bytes == 2 ? HZ_U16 : HZ_U32;
	return true;
}

int hzi_cuda_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_args *call)
{
	struct hzi_lattice_decode_args levels = *call;

	HZ_CHECK(hzi_route_run(ctx, &hzi_cuda_lattice_routes[1],
			       as_level_packing(&levels) ? &levels : call));
	return call->rows.scale ? hzi_cuda_lattice_scale_rows(ctx, "lattice_decode", &call->rows,
							      true) : HZ_OK;
}

int hzi_cuda_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_lattice_routes[2], a);
}

/* ---- No route has a workspace ---------------------------------------------------------------- */

HZI_NO_WORKSPACE(cuda, lattice_encode)

HZI_NO_WORKSPACE(cuda, lattice_decode)

HZI_NO_WORKSPACE(cuda, lattice_repack)
