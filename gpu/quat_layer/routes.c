/*
 * routes.c - layers of quaternions on a GPU: the routes of pooling
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_layer/launch.h"
#include "lib/core/route.h"

/* Forward and backward are the same functions with a flag. */
#define DIRECTION(name, bwd) \
	static const char *name##_window_2d_unsupported(const struct hz_context *ctx, \
							const void *args) \
	{ \
		(void)ctx; \
		return hzi_cuda_quat_pool_window_2d_unsupported(args, bwd); \
	} \
	static int name##_window_2d(struct hz_context *ctx, const void *args) \
	{ \
		return hzi_cuda_quat_pool_window_2d(ctx, args, bwd); \
	} \
	static int name##_generic(struct hz_context *ctx, const void *args) \
	{ \
		return hzi_cuda_quat_pool_generic(ctx, args, bwd); \
	}

DIRECTION(pool, false)
DIRECTION(pool_bwd, true)

#define WINDOW_2D(name) \
	{"window_2d", "contiguous quaternions, windows of 2 or 3 in two dimensions", \
	 .unsupported = name##_window_2d_unsupported, .run = name##_window_2d}
#define GENERIC(name) {"generic", "any layout and windows", .run = name##_generic}

static const struct hzi_route pool[] = {WINDOW_2D(pool), GENERIC(pool)};

static const struct hzi_route pool_bwd[] = {
	WINDOW_2D(pool_bwd),
	{"tiled", "windows that tile x",
	 .unsupported = hzi_cuda_quat_pool_bwd_tiled_unsupported,
	 .run = hzi_cuda_quat_pool_bwd_tiled},
	GENERIC(pool_bwd),
};

const struct hzi_op_routes hzi_cuda_quat_layer_routes[] = {
	HZI_ROUTES(quat_pool, pool), HZI_ROUTES(quat_pool_bwd, pool_bwd), {0},
};

HZI_NO_WORKSPACE(cuda, quat_pool)

int hzi_cuda_quat_pool(struct hz_context *ctx, const struct hzi_quat_pool_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_quat_layer_routes[0], &a->p);
}

HZI_NO_WORKSPACE(cuda, quat_pool_bwd)

int hzi_cuda_quat_pool_bwd(struct hz_context *ctx, const struct hzi_quat_pool_bwd_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_quat_layer_routes[1], &a->p);
}
