/*
 * oom.c - allocations and driver calls that fail, one at a time, in every function
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each row of calls.def runs in a context whose k-th allocation or k-th driver call fails, once or
 * from then on, for k = 1, 2, ... until nothing fails any more. A call that fails must say so and,
 * unless the driver failed, must leave memory untouched. Afterwards the same call must work, or
 * every call must fail because the device is lost. Closing everything must leave nothing behind.
 */
#include <config.h>

#include "t/core/calls.h"
#include "t/core/fakecuda.h"
#include "t/core/meter.h"
#include "t/core/tap.h"

#define POINTS 40	/* limit of failures tried per call */

static const struct fakecuda *fake;

/* ---- An allocator that fails ----------------------------------------------------------------- */

static struct meter meter;

static void meter_fail(long k, bool ever)
{
	meter.fail_at = k ? meter.calls + k : 0;
	meter.ever = ever;
	meter.failed = false;
}

/* ---- One call with a failure ----------------------------------------------------------------- */

enum what { HOST_MEMORY, DRIVER };

/* What fails, and how */
struct fault {
	enum what what;
	int code;	/* the driver's error code */
	bool ever;
	long k;
};

static struct {
	unsigned char *image, *want;
	long cases, refused, bad;
} now;

static void complain(const struct call *c, const struct fault *f, const char *what, int status,
		     const char *message)
{
	if (now.bad++ < 20)
		diag("%s: %s %ld fails %s (code %d, %s): %s: %d \"%s\"", c->name,
		     f->what == DRIVER ? "driver call" : "allocation", f->k,
		     f->ever ? "for ever" : "once", f->code, fake ? fake->failed() : "", what,
		     status, message);
}

static void open_scene(struct scene *s, int device)
{
	static const hz_allocator allocator = {.alloc = meter_alloc, .free = meter_free, .user = &meter};
	const hz_options o = {.device = device, .threads = 1, .flags = HZ_NO_TOPOLOGY,
			      .allocator = &allocator};

	scene_open(s, &o);
}

static int run(struct scene *s, const struct call *c)
{
	hz_tensor t[CALL_OPERANDS];
	size_t used;

	scene_views(s, c, t, &used);
	memcpy(s->arena, now.image, used);
	return scene_call(s, c);
}

/* Whether the error is sticky: every later call in the context fails. */
static bool deadly(const struct fault *f)
{
	return f->what == DRIVER && f->code == CUDA_ERROR_LAUNCH_FAILED;
}

static void check_after(struct scene *s, const struct call *c, const struct fault *f, int status)
{
	const char *const message = hz_errmsg(s->ctx);
	hz_tensor t[CALL_OPERANDS];
	size_t used;

	scene_views(s, c, t, &used);
	if (status != HZ_OK) {
		now.refused++;
		if (status != HZ_ENOMEM && (f->what != DRIVER || status != HZ_ECUDA))
			complain(c, f, "wrong status", status, message);
		if (!strstr(message, f->what == DRIVER ? ": " : "memory"))
			complain(c, f, "no message", status, message);
		/* The driver may fail between two kernels of a call. */
		if (f->what != DRIVER && memcmp(s->arena, now.image, used) != 0)
			complain(c, f, "memory was touched", status, message);
	}
	/* A call with a fallback may succeed, but not if its own work never reached the stream. */
	if (status == HZ_OK && f->what == DRIVER && !f->ever &&
	    (strncmp(fake->failed(), "cuLaunch", 8) == 0 ||
	     strncmp(fake->failed(), "cuMem", 5) == 0) &&
	    strcmp(fake->failed(), "cuMemFree") != 0)
		complain(c, f, "a failure that went unnoticed", status, "");
	if (deadly(f)) {
		/* If the context could not even be made current, the device may be intact. */
		if (status != HZ_OK && strcmp(fake->failed(), "cuCtxPushCurrent") != 0 &&
		    run(s, c) == HZ_OK && hz_sync(s->ctx) == HZ_OK)
			complain(c, f, "goes on on a device that failed", status, message);
		return;
	}
	status = run(s, c);
	if (status != HZ_OK)
		complain(c, f, "does not work afterwards", status, hz_errmsg(s->ctx));
	else if (memcmp(s->arena, now.want, used) != 0)
		complain(c, f, "other results afterwards", status, "");
}

/* Returns whether the fault was reached: if not, the call has no k-th allocation or driver call. */
static bool one_fault(int device, const struct call *c, const struct fault *f)
{
	struct scene s;
	char first[256];
	bool failed;
	int status;

	open_scene(&s, device);
	if (fake)
		fake->reset();
	if (f->what == DRIVER)
		fake->fail_at(f->k, f->code, f->ever);
	else
		meter_fail(f->k, f->ever);
	status = run(&s, c);
	failed = f->what == DRIVER ? *fake->failed() != '\0' : meter.failed;
	meter_fail(0, false);
	if (fake)
		fake->fail_at(0, 0, 0);
	if (failed) {
		now.cases++;
		check_after(&s, c, f, status);
	} else if (status != HZ_OK) {
		complain(c, f, "refused without a fault", status, hz_errmsg(s.ctx));
	}
	scene_close(&s);
	if (fake && fake->complaints(first, sizeof(first)))
		complain(c, f, first, 0, "");
	if (meter.live || meter.bytes)
		complain(c, f, "host memory is left over", (int)meter.live, "");
	if (meter.bad)
		complain(c, f, "a request that an allocator need not take", (int)meter.bad, "");
	if (device != HZ_CPU && fakecuda_leaked(fake))
		complain(c, f, "something is left over on the GPU", fakecuda_leaked(fake), "");
	meter.live = 0;
	meter.bytes = 0;
	meter.bad = 0;
	return failed;
}

/*
 * Makes the call without a fault; stores its result, and returns its allocations or driver calls.
 */
static long reference(int device, const struct call *c, enum what what)
{
	hz_tensor t[CALL_OPERANDS];
	struct scene s;
	size_t used;
	long allocations, places;
	int status;

	open_scene(&s, device);
	allocations = meter.calls;
	scene_views(&s, c, t, &used);
	scene_image(&s, c, tap_seed(), now.image);
	if (fake)
		fake->reset();
	status = run(&s, c);
	places = what == DRIVER ? fake->calls() : meter.calls - allocations;
	if (status != HZ_OK)
		bail("%s: %s", c->name, hz_errmsg(s.ctx));
	memcpy(now.want, s.arena, used);
	scene_close(&s);
	return places;
}

static void row(int device, const struct call *c, enum what what)
{
	static const int codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
				    CUDA_ERROR_LAUNCH_FAILED};
	const int count = what != DRIVER ? 1 : tap_quick() ? 1 : 3;
	const long places = reference(device, c, what), step = places / POINTS + 1;

	for (int code = 0; code < count; code++) {
		for (int ever = 0; ever < 2; ever++) {
			struct fault f = {.what = what, .code = what == DRIVER ? codes[code] : 0,
					  .ever = ever, .k = 1};

			while (one_fault(device, c, &f))
				f.k += step;
		}
	}
}

static void rows(int device, enum what what, const char *name)
{
	now.cases = now.refused = now.bad = 0;
	for (int i = 0; i < calls_count; i++)
		row(device, &calls[i], what);
	ok(now.bad == 0 && now.cases > 0, "%s: %ld faults in %d calls, %ld refused", name,
	   now.cases, calls_count, now.refused);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void opening(int device, const char *name)
{
	static const hz_allocator allocator = {.alloc = meter_alloc, .free = meter_free, .user = &meter};
	const hz_options o = {.device = device, .threads = 1, .flags = HZ_NO_TOPOLOGY,
			      .allocator = &allocator};
	hz_context *ctx;
	long k = 0, bad = 0;
	int status;

	do {
		meter_fail(++k, true);
		ctx = (hz_context *)&meter;
		status = hz_open(&ctx, &o);
		if (status != HZ_OK)
			bad += status != HZ_ENOMEM || ctx || meter.live ||
			       !strstr(hz_open_errmsg(), "memory");
		else
			hz_close(ctx);
		bad += meter.live != 0 || meter.bad != 0;
	} while (meter.failed);
	meter_fail(0, false);
	is_int(bad, 0, "%s: opening, with each of %ld allocations failing", name, k - 1);
}

int main(void)
{
	unsetenv("HURWITZ_DEVICE");
	fake = scene_driver("fakecuda.so");
	now.image = malloc((size_t)1 << 20);
	now.want = malloc((size_t)1 << 20);
	if (!now.image || !now.want)
		bail("no memory");
	opening(HZ_CPU, "CPU");
	rows(HZ_CPU, HOST_MEMORY, "CPU, allocations");
#if HZ_HAVE_CUDA
	opening(HZ_CUDA, "stand-in for a GPU");
	rows(HZ_CUDA, HOST_MEMORY, "stand-in for a GPU, allocations");
	rows(HZ_CUDA, DRIVER, "stand-in for a GPU, driver calls");
#endif
	free(now.image);
	free(now.want);
	return done_testing();
}
