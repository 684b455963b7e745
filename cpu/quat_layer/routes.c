/*
 * routes.c - layers of quaternions on the CPU: the routes of pooling
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/cpu.h"
#include "cpu/quat_layer/quat_layer.h"
#include "lib/core/route.h"
#include "lib/quat_layer/sums_math.h"

/* begin and end count pixels, with all their channels. */
static void pool_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_pool_step *a = job;

	(void)thread;
	for (int64_t i = begin; i < end; i++) {
		struct hzi_quat_position to = hzi_quat_position(i, a->count, 1);

		for (to.c = 0; to.c < a->channels; to.c++)
			hzi_quat_pool_one(a, to);
	}
}

static void pool_bwd_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_pool_step *a = job;

	(void)thread;
	for (int64_t i = begin; i < end; i++) {
		struct hzi_quat_position to = hzi_quat_position(i, a->size, 1);

		for (to.c = 0; to.c < a->channels; to.c++)
			hzi_quat_pool_bwd_one(a, to);
	}
}

static void pool_kernel_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_job *j = job;

	(void)thread;
	j->kern->pool(j->args, begin, end);
}

static void pool_bwd_kernel_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_job *j = job;

	(void)thread;
	j->kern->pool_bwd(j->args, begin, end);
}

/* A window may exceed x. */
static int threads_of(const struct hz_context *ctx, const struct hzi_quat_pool_step *a,
		      bool backward, int64_t pixels)
{
	int64_t reads = 1;

	for (int d = 0; d < 3; d++)
		reads *= a->window[d] < a->size[d] ? a->window[d] : a->size[d];
	return hzi_threads(ctx, pixels * a->channels * 16 * (backward ? 2 : reads + 1));
}

static int64_t pixels_of(const struct hzi_quat_pool_step *a, const int64_t *size)
{
	return a->images * size[0] * size[1] * size[2];
}

static const char *simd_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_pool_step *a = args;

	(void)ctx;
	return a->x.dtype == HZ_F64 || a->y.dtype == HZ_F64 ? "f64" : NULL;
}

static int simd(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_pool_step *a = args;
	const int64_t pixels = pixels_of(a, a->count);
	struct hzi_quat_job job = {hzi_quat_layer_kern + ctx->level, a};

	hzi_parallel(ctx, threads_of(ctx, a, false, pixels), pool_kernel_work, &job, pixels);
	return HZ_OK;
}

static int scalar(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_pool_step *a = args;
	const int64_t pixels = pixels_of(a, a->count);

	hzi_parallel(ctx, threads_of(ctx, a, false, pixels), pool_work, (void *)(uintptr_t)a,
		     pixels);
	return HZ_OK;
}

static int bwd_simd(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_pool_step *a = args;
	const int64_t pixels = pixels_of(a, a->size);
	struct hzi_quat_job job = {hzi_quat_layer_kern + ctx->level, a};

	hzi_parallel(ctx, threads_of(ctx, a, true, pixels), pool_bwd_kernel_work, &job, pixels);
	return HZ_OK;
}

static int bwd_scalar(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_pool_step *a = args;
	const int64_t pixels = pixels_of(a, a->size);

	hzi_parallel(ctx, threads_of(ctx, a, true, pixels), pool_bwd_work, (void *)(uintptr_t)a,
		     pixels);
	return HZ_OK;
}

static const struct hzi_route pool[] = {
	{.name = "simd", .what = "all but f64, by micro-kernels", .unsupported = simd_unsupported,
	 .run = simd},
	{.name = "scalar", .what = "any dtype, one quaternion at a time", .run = scalar},
};

static const struct hzi_route pool_bwd[] = {
	{.name = "simd", .what = "all but f64, by micro-kernels", .unsupported = simd_unsupported,
	 .run = bwd_simd},
	{.name = "scalar", .what = "any dtype, one quaternion at a time", .run = bwd_scalar},
};

const struct hzi_op_routes hzi_cpu_quat_layer_routes[] = {
	HZI_ROUTES(quat_pool, pool), HZI_ROUTES(quat_pool_bwd, pool_bwd), {0},
};

HZI_NO_WORKSPACE(cpu, quat_pool)

int hzi_cpu_quat_pool(struct hz_context *ctx, const struct hzi_quat_pool_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_quat_layer_routes[0], &a->p);
}

HZI_NO_WORKSPACE(cpu, quat_pool_bwd)

int hzi_cpu_quat_pool_bwd(struct hz_context *ctx, const struct hzi_quat_pool_bwd_args *a)
{
	return hzi_route_run(ctx, &hzi_cpu_quat_layer_routes[1], &a->p);
}
