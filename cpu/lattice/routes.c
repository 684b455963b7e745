/*
 * routes.c - the code paths of the lattice quantizer on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All paths of an operation give the same bits.
 */
#include <config.h>

#include "cpu/lattice/lattice.h"
#include "lib/core/route.h"

static const char no_i16[] = "16-bit lanes do not hold the points or digits";

/* ---- Encoding: args is struct hzi_lattice_encode_call ---------------------------------------- */

static const char *encode_simd_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_encode_call *const c = args;

	(void)ctx;
	return c->by_simd ? NULL : no_i16;
}

static size_t encode_simd_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_lattice_encode_workspace(ctx, args);
}

static int encode_simd(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_encode(ctx, args, true);
}

static const char *encode_shaped_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_encode_call *const c = args;

	(void)ctx;
	return c->a->lattice->rule.shaping ? NULL : "the code is a nested one";
}

static size_t encode_shaped_workspace(const struct hz_context *ctx, const void *args)
{
	return hzi_lattice_encode_shaped_workspace(ctx, args);
}

static int encode_shaped(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_encode_shaped(ctx, args);
}

static int encode_generic(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_encode(ctx, args, false);
}

static const struct hzi_route encode_routes[] = {
	{"simd_i16", "many blocks at once, coordinates in 16-bit lanes",
	 .unsupported = encode_simd_unsupported, .workspace = encode_simd_workspace,
	 .run = encode_simd},
	{"shaped", "codes with a shaping other than nested: a block in each lane",
	 .unsupported = encode_shaped_unsupported, .workspace = encode_shaped_workspace,
	 .run = encode_shaped},
	{"generic", "any call: block by block", .run = encode_generic},
};

/* ---- Decoding: args is struct hzi_lattice_decode_call ---------------------------------------- */

static const char *decode_u8_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_decode_call *const c = args;

	(void)ctx;
	return c->by_u8 ? NULL : "not contiguous codes and values of D4 or E8 that fit s8";
}

static int decode_u8(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_decode(ctx, args, true, true);
}

static const char *decode_i16_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_decode_call *const c = args;

	(void)ctx;
	return c->by_i16 ? NULL : no_i16;
}

static int decode_i16(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_decode(ctx, args, true, false);
}

static int decode_generic(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_decode(ctx, args, false, false);
}

static const struct hzi_route decode_routes[] = {
	{"simd_u8", "D4, E8, contiguous: coordinates in 8-bit lanes",
	 .unsupported = decode_u8_unsupported, .run = decode_u8},
	{"soa_i16", "a plane of 16-bit lanes for each coordinate",
	 .unsupported = decode_i16_unsupported, .run = decode_i16},
	{"generic", "any call: block by block", .run = decode_generic},
};

/* ---- Repacking: args is struct hzi_lattice_repack_args --------------------------------------- */

static const char *repack_i16_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_repack_args *const a = args;
	struct hzi_lattice_simd lanes = {0};

	(void)ctx;
	return hzi_lattice_digits_of(&a->lattice->rule, &lanes) ? NULL : no_i16;
}

static int repack_i16(struct hz_context *ctx, const void *args)
{
	const struct hzi_lattice_repack_args *const a = args;
	struct hzi_lattice_simd lanes = {0};

	hzi_lattice_digits_of(&a->lattice->rule, &lanes);
	return hzi_lattice_repack(ctx, a, &lanes);
}

static int repack_generic(struct hz_context *ctx, const void *args)
{
	return hzi_lattice_repack(ctx, args, NULL);
}

static const struct hzi_route repack_routes[] = {
	{"soa_i16", "planes of 16-bit indices", .unsupported = repack_i16_unsupported,
	 .run = repack_i16},
	{"generic", "any call: digit by digit", .run = repack_generic},
};

/* ---- The tables ------------------------------------------------------------------------------ */

const struct hzi_op_routes hzi_cpu_lattice_routes[] = {
	HZI_ROUTES(lattice_encode, encode_routes),
	HZI_ROUTES(lattice_decode, decode_routes),
	HZI_ROUTES(lattice_repack, repack_routes),
	{0},
};

static struct hzi_lattice_encode_call encode_call(const struct hzi_lattice_encode_args *a)
{
	struct hzi_lattice_encode_call c = {.a = a};

	c.by_simd = hzi_lattice_simd_of(a->lattice, &c.lanes, &c.round_max);
	return c;
}

int hzi_cpu_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_args *a)
{
	const struct hzi_lattice_encode_call c = encode_call(a);

	if (a->rows.scale)
		hzi_lattice_scale_rows(ctx, &a->rows, false);
	return hzi_route_run(ctx, &hzi_cpu_lattice_routes[0], &c);
}

size_t hzi_cpu_lattice_encode_workspace(const struct hz_context *ctx,
					const struct hzi_lattice_encode_args *a)
{
	const struct hzi_lattice_encode_call c = encode_call(a);

	return hzi_route_workspace(ctx, &hzi_cpu_lattice_routes[0], &c);
}

int hzi_cpu_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	struct hzi_lattice_decode_call c;
	int status;

	hzi_lattice_decode_begin(&c, a);
	status = hzi_route_run(ctx, &hzi_cpu_lattice_routes[1], &c);
	if (status == HZ_OK && a->rows.scale)
		hzi_lattice_scale_rows(ctx, &a->rows, true);
	return status;
}

HZI_NO_WORKSPACE(cpu, lattice_decode)

int hzi_cpu_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_lattice_routes[2], a);
}

HZI_NO_WORKSPACE(cpu, lattice_repack)
