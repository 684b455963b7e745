/*
 * faults.c - each driver call of each function fails once, on a real GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * t/core/oom does this on the stand-in, with more error codes and more calls, and checks what only
 * the stand-in can see. With HZ_TEST_DEVICE=cuda this test has t/core/proxycuda between the library
 * and the driver, and compares results; without a GPU it uses the stand-in again. A call that fails
 * must say so. The same call must then compute the right result, or every later call must fail
 * because the device is lost, and nothing may leak.
 */
#include <config.h>

#if !HZ_HAVE_CUDA

#include "t/core/tap.h"

int main(void)
{
	skip_all("this build has no device code");
}

#else

#include "t/core/calls.h"
#include "t/core/fakecuda.h"
#include "t/core/tap.h"

static const struct fakecuda *driver;
static unsigned char *image, *want, *got;
static long cases, refused, bad;

struct fault {
	int code;
	bool ever;
	long k;
};

static void complain(const struct call *c, const struct fault *f, const char *what,
		     const char *message)
{
	if (bad++ < 20)
		diag("%s: driver call %ld fails %s (code %d, %s): %s \"%s\"", c->name, f->k,
		     f->ever ? "for ever" : "once", f->code, driver->failed(), what, message);
}

/* Makes the call; HZ_OK only if its work has completed, too. */
static int run(struct scene *s, const struct call *c)
{
	const int status = scene_call(s, c);

	return status == HZ_OK ? hz_sync(s->ctx) : status;
}

static void check_after(struct scene *s, const struct call *c, const struct fault *f, int status)
{
	const char *const message = hz_errmsg(s->ctx);
	size_t used;

	if (status != HZ_OK) {
		refused++;
		if (status != HZ_ENOMEM && status != HZ_ECUDA)
			complain(c, f, "wrong status", hz_strerror(status));
		if (!strstr(message, ": "))
			complain(c, f, "no message", message);
	}
	/* This error is sticky: every later call must fail, except where the context could not even
	 * be made current. */
	if (f->code == CUDA_ERROR_LAUNCH_FAILED) {
		if (status != HZ_OK && strcmp(driver->failed(), "cuCtxPushCurrent") != 0 &&
		    run(s, c) == HZ_OK)
			complain(c, f, "goes on on a device that failed", message);
		return;
	}
	/* Work in flight completes before memory is written again. */
	hz_sync(s->ctx);
	used = scene_fill(s, c, image);
	if (run(s, c) != HZ_OK) {
		complain(c, f, "does not work afterwards", hz_errmsg(s->ctx));
		return;
	}
	scene_read(s, got, used);
	if (!same_bits(got, want, used, 1))
		complain(c, f, "other results afterwards", "");
}

/* Returns whether the fault was reached: if not, the call has no k-th driver call. */
static bool one_fault(const hz_options *o, const struct call *c, const struct fault *f)
{
	const struct fakecuda_live before = driver->live();
	struct fakecuda_live after;
	struct scene s;
	bool failed, kept;
	int status;

	scene_open(&s, o);
	scene_fill(&s, c, image);
	driver->reset();
	driver->fail_at(f->k, f->code, f->ever);
	status = run(&s, c);
	failed = *driver->failed() != '\0';
	driver->fail_at(0, 0, 0);
	if (failed) {
		cases++;
		check_after(&s, c, f, status);
	} else if (status != HZ_OK) {
		complain(c, f, "refused without a fault", hz_errmsg(s.ctx));
	}
	scene_close(&s);
	after = driver->live();
	/* Nothing is freed on a lost device, or by calls that could not free. */
	kept = f->ever || f->code == CUDA_ERROR_LAUNCH_FAILED ||
	       strcmp(driver->failed(), "cuCtxPushCurrent") == 0;
	if (after.contexts != before.contexts || after.pushed != before.pushed ||
	    (!kept && memcmp(&before, &after, sizeof(before)) != 0))
		complain(c, f, "something is left over on the GPU", "");
	return failed;
}

/* Stores the expected result in want; returns the number of driver calls. */
static long reference(const hz_options *o, const struct call *c)
{
	struct scene s;
	size_t used;
	long places;

	scene_open(&s, o);
	used = scene_fill(&s, c, image);
	driver->reset();
	if (run(&s, c) != HZ_OK)
		bail("%s: %s", c->name, hz_errmsg(s.ctx));
	places = driver->calls();
	scene_read(&s, want, used);
	scene_close(&s);
	return places;
}

int main(void)
{
	static const int codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_LAUNCH_FAILED};
	const hz_options o = {.device = HZ_CUDA, .threads = 1, .flags = HZ_NO_TOPOLOGY};
	const long points = tap_cuda() && !tap_quick() ? 20 : 5;
	struct scene first;

	unsetenv("HURWITZ_DEVICE");
	if (!tap_cuda()) {
		setenv("PROXYCUDA_DRIVER", fakecuda_path("fakecuda.so"), 1);
		setenv("FAKECUDA_SM", "90", 1);
		/* Nothing is freed on a device that is lost. */
		setenv("FAKECUDA_MEMORY", "2147483647", 1);
	}
	driver = scene_driver("proxycuda.so");
	/* Keeps the device's context alive, which takes long to create. */
	scene_open(&first, &o);
	image = malloc(first.arena_bytes);
	want = malloc(first.arena_bytes);
	got = malloc(first.arena_bytes);
	if (!image || !want || !got)
		bail("no memory");
	for (int i = 0; i < calls_count; i++) {
		const struct call *c = &calls[i];
		const long step = reference(&o, c) / points + 1;

		cases = refused = bad = 0;
		for (int mode = 0; mode < 4; mode++) {
			struct fault f = {.code = codes[mode % 2], .ever = mode / 2, .k = 1};

			while (one_fault(&o, c, &f))
				f.k += step;
		}
		ok(bad == 0, "%s: %ld faults, %ld refused", c->name, cases, refused);
	}
	scene_close(&first);
	is_int(driver->live().contexts, 0, "all contexts are released");
	free(image);
	free(want);
	free(got);
	return done_testing();
}

#endif
