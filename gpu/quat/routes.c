/*
 * routes.c - the code paths of elementwise quaternion operations on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat/launch.h"
#include "gpu/quat/planar.h"
#include "lib/core/route.h"

/* ---- Costs ----------------------------------------------------------------------------------- */

/* Ranks, at least a row's index in each table that has it; a row without a cost has its index. */
enum { FUSED_SUM, CONTIGUOUS, PLANAR, LAST = 100 };

/* The arguments of every operation begin with its dimensions. */
HZI_RANK(contiguous, void, hzi_cuda_quat_has_short_rows(a), LAST, CONTIGUOUS)
HZI_RANK(fused_sum, void, hzi_cuda_quat_is_short_sum(a), LAST, FUSED_SUM)
HZI_RANK(mul_planar, struct hzi_quat_mul_args,
	 hzi_cuda_quat_has_small_tiles(&a->dims, a->dtype, HZI_QUAT_TILE_MUL), LAST, PLANAR)
HZI_RANK(mul_bwd_planar, struct hzi_quat_mul_bwd_args,
	 hzi_cuda_quat_has_small_tiles(&a->dims, a->dtype, a->da.data && a->db.data ?
				       HZI_QUAT_TILE_MUL_BWD : HZI_QUAT_TILE_MUL),
	 LAST, PLANAR)

/* ---- A gradient that is a sum, behind the other one ------------------------------------------ */

/* ctx->route stays that of the first call. */
static int mul_sum(struct hz_context *ctx, const struct hzi_quat_mul_bwd_args *a)
{
	const char *const route = ctx->route;

	HZ_CHECK(a->sum ? hzi_cuda_quat_dot(ctx, a->sum) : HZ_OK);
	ctx->route = route;
	return HZ_OK;
}

static size_t mul_bwd_sum_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_mul_bwd_args *a = args;

	(void)ctx;
	return a->sum ? hzi_cuda_quat_dot_sum_bytes(a->sum) : 0;
}

static int mul_bwd_contiguous(struct hz_context *ctx, const void *args)
{
	HZ_CHECK(hzi_cuda_quat_mul_bwd_contiguous(ctx, args));
	return mul_sum(ctx, args);
}

static int mul_bwd_planar(struct hz_context *ctx, const void *args)
{
	HZ_CHECK(hzi_cuda_quat_mul_bwd_planar(ctx, args));
	return mul_sum(ctx, args);
}

static int mul_bwd_strided(struct hz_context *ctx, const void *args)
{
	HZ_CHECK(hzi_cuda_quat_mul_bwd_strided(ctx, args));
	return mul_sum(ctx, args);
}

static bool is_sum(const struct hzi_quat_rotate_bwd_args *a)
{
	return a->dims.kept < a->dims.ndim;
}

static const char *rotate_bwd_contiguous_unsupported(const struct hz_context *ctx, const void *args)
{
	return is_sum(args) ? "the gradient is a sum"
			    : hzi_cuda_quat_rotate_bwd_contiguous_unsupported(ctx, args);
}

static size_t rotate_bwd_sum_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_rotate_bwd_args *a = args;

	(void)ctx;
	if (is_sum(a))
		return hzi_cuda_quat_rotate_sum_bytes(a);
	return a->sum ? hzi_cuda_quat_rotate_sum_bytes(a->sum) : 0;
}

static int rotate_bwd_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_rotate_bwd_args *a = args;

	HZ_CHECK(hzi_cuda_quat_rotate_bwd_contiguous(ctx, a));
	return a->sum ? hzi_cuda_quat_rotate_sum(ctx, a->sum) : HZ_OK;
}

static int rotate_bwd_strided(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_rotate_bwd_args *a = args;

	if (is_sum(a))
		return hzi_cuda_quat_rotate_sum(ctx, a);
	HZ_CHECK(hzi_cuda_quat_rotate_bwd_strided(ctx, a));
	return a->sum ? hzi_cuda_quat_rotate_sum(ctx, a->sum) : HZ_OK;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char contiguous_what[] = "contiguous operands of up to two dimensions";
static const char planar_what[] = "operands whose components are planar or x, y, z, w";
static const char strided_what[] = "any operands";
static const char fused_what[] = "many quaternions by one: a gradient and a sum in one pass";

#define CONTIGUOUS_ROW(op) \
	{ \
		"contiguous", contiguous_what, HZI_ANY_ARCH, \
		.unsupported = hzi_cuda_##op##_contiguous_unsupported, .cost = contiguous_cost, \
		.run = hzi_cuda_##op##_contiguous, \
	}
#define STRIDED_ROW(op) \
	{ \
		"strided", strided_what, HZI_ANY_ARCH, .run = hzi_cuda_##op##_strided, \
	}
#define FUSED_SUM_ROW(op) \
	{ \
		"fused_sum", fused_what, HZI_ANY_ARCH, \
		.unsupported = hzi_cuda_##op##_fused_sum_unsupported, .cost = fused_sum_cost, \
		.workspace = hzi_cuda_##op##_fused_sum_workspace, \
		.run = hzi_cuda_##op##_fused_sum, \
	}

static const struct hzi_route mul_routes[] = {
	CONTIGUOUS_ROW(quat_mul),
	{
		"planar", planar_what, HZI_ANY_ARCH,
		.unsupported = hzi_cuda_quat_mul_planar_unsupported, .cost = mul_planar_cost,
		.run = hzi_cuda_quat_mul_planar,
	},
	STRIDED_ROW(quat_mul),
};

static const struct hzi_route mul_bwd_routes[] = {
	FUSED_SUM_ROW(quat_mul_bwd),
	{
		"contiguous", contiguous_what, HZI_ANY_ARCH,
		.unsupported = hzi_cuda_quat_mul_bwd_contiguous_unsupported,
		.cost = contiguous_cost, .workspace = mul_bwd_sum_workspace,
		.run = mul_bwd_contiguous,
	},
	{
		"planar", planar_what, HZI_ANY_ARCH,
		.unsupported = hzi_cuda_quat_mul_bwd_planar_unsupported,
		.cost = mul_bwd_planar_cost, .workspace = mul_bwd_sum_workspace,
		.run = mul_bwd_planar,
	},
	{
		"strided", strided_what, HZI_ANY_ARCH,
		.workspace = mul_bwd_sum_workspace, .run = mul_bwd_strided,
	},
};

static const struct hzi_route dot_routes[] = {
	{
		"contiguous_16bit", "contiguous pairs of f16 or bf16 quaternions", HZI_ANY_ARCH,
		.unsupported = hzi_cuda_quat_dot_contiguous_16bit_unsupported,
		.run = hzi_cuda_quat_dot_contiguous_16bit,
	},
	{
		"contiguous", "quaternions of contiguous components", HZI_ANY_ARCH,
		.unsupported = hzi_cuda_quat_dot_contiguous_unsupported,
		.run = hzi_cuda_quat_dot_contiguous,
	},
	STRIDED_ROW(quat_dot),
};

static const struct hzi_route axpy_routes[] = {CONTIGUOUS_ROW(quat_axpy), STRIDED_ROW(quat_axpy)};
static const struct hzi_route map_routes[] = {CONTIGUOUS_ROW(quat_map), STRIDED_ROW(quat_map)};
static const struct hzi_route map_bwd_routes[] = {
	CONTIGUOUS_ROW(quat_map_bwd), STRIDED_ROW(quat_map_bwd),
};
static const struct hzi_route rotate_routes[] = {
	CONTIGUOUS_ROW(quat_rotate), STRIDED_ROW(quat_rotate),
};

static const struct hzi_route rotate_bwd_routes[] = {
	FUSED_SUM_ROW(quat_rotate_bwd),
	{
		"contiguous", contiguous_what, HZI_ANY_ARCH,
		.unsupported = rotate_bwd_contiguous_unsupported, .cost = contiguous_cost,
		.workspace = rotate_bwd_sum_workspace, .run = rotate_bwd_contiguous,
	},
	{
		"strided", strided_what, HZI_ANY_ARCH,
		.workspace = rotate_bwd_sum_workspace, .run = rotate_bwd_strided,
	},
};

enum { MUL, MUL_BWD, DOT, AXPY, MAP, MAP_BWD, ROTATE, ROTATE_BWD };

const struct hzi_op_routes hzi_cuda_quat_routes[] = {
	[MUL] = HZI_RANKED_ROUTES(quat_mul, mul_routes),
	[MUL_BWD] = HZI_RANKED_ROUTES(quat_mul_bwd, mul_bwd_routes),
	[DOT] = HZI_RANKED_ROUTES(quat_dot, dot_routes),
	[AXPY] = HZI_RANKED_ROUTES(quat_axpy, axpy_routes),
	[MAP] = HZI_RANKED_ROUTES(quat_map, map_routes),
	[MAP_BWD] = HZI_RANKED_ROUTES(quat_map_bwd, map_bwd_routes),
	[ROTATE] = HZI_RANKED_ROUTES(quat_rotate, rotate_routes),
	[ROTATE_BWD] = HZI_RANKED_ROUTES(quat_rotate_bwd, rotate_bwd_routes),
	{0},
};

/* ---- The calls ------------------------------------------------------------------------------- */

#define RUN(name, row) \
	int hzi_cuda_##name(struct hz_context *ctx, const struct hzi_##name##_args *a) \
	{ \
		return hzi_route_run(ctx, &hzi_cuda_quat_routes[row], a); \
	}
#define WORKSPACE(name, bytes) \
	size_t hzi_cuda_##name##_workspace(const struct hz_context *ctx, \
					   const struct hzi_##name##_args *a) \
	{ \
		(void)ctx, (void)a; \
		return bytes; \
	}

RUN(quat_mul, MUL)
WORKSPACE(quat_mul, 0)
RUN(quat_mul_bwd, MUL_BWD)
WORKSPACE(quat_mul_bwd, hzi_route_workspace(ctx, &hzi_cuda_quat_routes[MUL_BWD], a))
RUN(quat_dot, DOT)
WORKSPACE(quat_dot, hzi_cuda_quat_dot_sum_bytes(a))
RUN(quat_axpy, AXPY)
WORKSPACE(quat_axpy, 0)
RUN(quat_map, MAP)
WORKSPACE(quat_map, 0)
RUN(quat_map_bwd, MAP_BWD)
WORKSPACE(quat_map_bwd, 0)
RUN(quat_rotate, ROTATE)
WORKSPACE(quat_rotate, 0)
RUN(quat_rotate_bwd, ROTATE_BWD)
WORKSPACE(quat_rotate_bwd, hzi_route_workspace(ctx, &hzi_cuda_quat_routes[ROTATE_BWD], a))
