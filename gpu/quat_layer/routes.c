/*
 * routes.c - layers of quaternions on a GPU: the routes of pooling
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_layer/launch.h"
#include "lib/core/route.h"

static const char *window_2d_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return hzi_cuda_quat_pool_window_2d_unsupported(args, false);
}

static int window_2d(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_quat_pool_window_2d(ctx, args, false);
}

static int generic(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_quat_pool_generic(ctx, args, false);
}

static const char *bwd_window_2d_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return hzi_cuda_quat_pool_window_2d_unsupported(args, true);
}

static int bwd_window_2d(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_quat_pool_window_2d(ctx, args, true);
}

static int bwd_generic(struct hz_context *ctx, const void *args)
{
	return hzi_cuda_quat_pool_generic(ctx, args, true);
}

static const struct hzi_route pool[] = {
	{.name = "window_2d", .what = "contiguous quaternions, windows of 2 or 3 in two dimensions",
	 .unsupported = window_2d_unsupported, .run = window_2d},
	{.name = "generic", .what = "any layout and windows", .run = generic},
};

static const struct hzi_route pool_bwd[] = {
	{.name = "window_2d", .what = "contiguous quaternions, windows of 2 or 3 in two dimensions",
	 .unsupported = bwd_window_2d_unsupported, .run = bwd_window_2d},
	{.name = "tiled", .what = "windows that tile x",
	 .unsupported = hzi_cuda_quat_pool_bwd_tiled_unsupported,
	 .run = hzi_cuda_quat_pool_bwd_tiled},
	{.name = "generic", .what = "any layout and windows", .run = bwd_generic},
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
