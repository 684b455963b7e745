/*
 * app.c - an application that embeds the library: its own memory, its own log, its own threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The library allocates by the application's functions, reports to its log, uses as many threads as
 * it is told and the device that HURWITZ_DEVICE names, or the best there is. Makefile finds it by
 * pkg-config, CMakeLists.txt by the library's own hurwitzConfig.cmake.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>

#define ROWS 100
#define N 96

struct app {
	size_t held, most;	/* bytes that the library has of us */
};

static void *app_alloc(void *user, size_t bytes, size_t align)
{
	struct app *app = user;
	void *p = aligned_alloc(align, (bytes + align - 1) / align * align);

	if (p) {
		app->held += bytes;
		app->most = app->held > app->most ? app->held : app->most;
	}
	return p;
}

static void app_free(void *user, void *p, size_t bytes)
{
	struct app *app = user;

	app->held -= bytes;
	free(p);
}

static void app_log(void *user, int level, const char *message)
{
	(void)user;
	fprintf(stderr, "app: the library says (level %d): %s\n", level, message);
}

/* ||x - back|| / ||x|| after a transform of rows there and back on the context's device */
static int there_and_back(hz_context *ctx, const float *host, double *error)
{
	const hz_hadamard_opts there = {.plan = HZ_PLAN_TRUE};
	const hz_hadamard_opts back = {.plan = HZ_PLAN_TRUE, .flags = HZ_HADAMARD_TRANSPOSE};
	static float result[ROWS * N];
	const hz_tensor from = hz_tensor_2d((void *)(uintptr_t)host, HZ_F32, HZ_CPU, ROWS, N);
	hz_tensor to = hz_tensor_2d(result, HZ_F32, HZ_CPU, ROWS, N);
	hz_tensor x = from;
	double e = 0, all = 0;
	int status;

	x.device = hz_device(ctx);
	status = hz_alloc(ctx, &x.data, (size_t)hz_tensor_bytes(&from), x.device);
	if (status)
		return status;
	if (!(status = hz_copy(ctx, &from, &x)) && !(status = hz_hadamard(ctx, &x, &x, &there)) &&
	    !(status = hz_hadamard(ctx, &x, &x, &back)) && !(status = hz_copy(ctx, &x, &to)))
		status = hz_sync(ctx);
	for (int i = 0; i < ROWS * N; i++) {
		e += ((double)result[i] - host[i]) * ((double)result[i] - host[i]);
		all += (double)host[i] * host[i];
	}
	*error = sqrt(e / all);
	hz_free(ctx, x.data, x.device);
	return status;
}

int main(void)
{
	static float x[ROWS * N];
	struct app app = {0, 0};
	const hz_allocator allocator = {app_alloc, app_free, &app};
	hz_options options = {0};
	hz_context *ctx;
	hz_info info;
	double error;

	options.threads = 2;
	options.allocator = &allocator;
	options.log = app_log;
	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "app: %s\n", hz_open_errmsg());
		return 1;
	}
	hz_device_info(ctx, &info);
	for (int i = 0; i < ROWS * N; i++)
		x[i] = (float)((i * 37 + i / N) % 101 - 50);
	if (there_and_back(ctx, x, &error) != HZ_OK) {
		fprintf(stderr, "app: %s\n", hz_errmsg(ctx));
		return 1;
	}
	printf("hurwitz %s on %s: there and back within %.0e\n", hz_version(),
	       info.device == HZ_CPU ? info.isa_name : info.gpu_name, error);
	hz_close(ctx);
	printf("%zu bytes at most, %zu at the end\n", app.most, app.held);
	return error < 1e-6 && app.held == 0 ? 0 : 1;
}
