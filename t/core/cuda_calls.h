/*
 * cuda_calls.h - a context on the stand-in driver, its operands, and the kernels that calls have
 * launched
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef CUDA_CALLS_H
#define CUDA_CALLS_H

#include <stdbool.h>

#include <sys/wait.h>
#include <unistd.h>

#include "t/core/fakecuda.h"
#include "hurwitz.h"
#include "t/core/tap.h"

/* Without device code this is the whole program; the test is behind #if HZ_HAVE_CUDA. */
#if !HZ_HAVE_CUDA
int main(void)
{
	skip_all("this build has no device code");
}
#endif

#ifndef HZ_CUDA_90A
#define HZ_CUDA_90A 0
#endif

static const struct fakecuda *fake;

static inline const struct fakecuda_launch *last(void)
{
	return fake->launch(fake->launches() - 1);
}

/* Names of the kernels launched since the last call of this function, separated by spaces */
static inline const char *taken(void)
{
	static long seen;
	static char names[1024];
	size_t at = 0;

	names[0] = '\0';
	if (fake->launches() < seen)
		seen = 0;
	for (; seen < fake->launches() && at < sizeof(names); seen++)
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", at ? " " : "",
				       fake->launch(seen)->kernel);
	return names;
}

/* Loads the stand-in with a GPU of compute capability 9.0 and, with `two`, another of 8.0. */
static inline void stand_in_load(bool two)
{
	setenv("FAKECUDA_SM", "90,80", 1);
	setenv("FAKECUDA_DEVICES", two ? "2" : "1", 1);
	fake = fakecuda_load();
	if (!fake)
		skip_all("no stand-in driver");
}

/* A context with `count` device arrays of `bytes` each, and a workspace */
static inline hz_context *stand_in_open(int device, char **const *arrays, int count, size_t bytes,
					size_t workspace)
{
	const hz_options o = {.device = device};
	hz_context *ctx;

	fake->reset();
	if (hz_open(&ctx, &o) != HZ_OK)
		bail("a context: %s", hz_open_errmsg());
	for (int i = 0; i < count; i++) {
		if (hz_alloc(ctx, (void **)arrays[i], bytes, device) != HZ_OK)
			bail("an array: %s", hz_errmsg(ctx));
	}
	if (hz_reserve(ctx, workspace) != HZ_OK)
		bail("a workspace: %s", hz_errmsg(ctx));
	return ctx;
}

/* Frees all that, and checks that the stand-in has seen no misuse. */
static inline void stand_in_close(hz_context *ctx, int device, char **const *arrays, int count)
{
	char first[256] = "";

	for (int i = 0; i < count; i++)
		hz_free(ctx, *arrays[i], device);
	hz_close(ctx);
	is_int(fake->complaints(first, sizeof(first)), 0,
	       "the driver has no complaint on GPU %d", device - HZ_CUDA);
	if (*first)
		diag("%s", first);
}

/* Runs a program's calls on GPUs with sms SMs, each in a process of its own: call it before
 * anything else uses the stand-in. Launches differ there and are not compared. */
static inline void stand_in_few(void (*all)(void))
{
	static const char *const sms[] = {"1", "8", "16"};

	for (size_t i = 0; i < sizeof(sms) / sizeof(*sms); i++) {
		int status = -1;
		pid_t child;

		fflush(stdout);
		child = fork();
		if (child == 0) {
			setenv("FAKECUDA_SMS", sms[i], 1);
			if (!freopen("/dev/null", "w", stdout) ||
			    !freopen("/dev/null", "w", stderr))
				_exit(1);
			all();
			_exit(0);
		}
		waitpid(child, &status, 0);
		ok(child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0,
		   "with %s of the SMs", sms[i]);
	}
}

#endif
