/*
 * cuda_open.c - opening a context on stand-in drivers of all kinds, each in a process of its own
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <sys/wait.h>
#include <unistd.h>

#include "gpu/runtime/cuda.h"
#include "t/core/fakecuda.h"
#include "hurwitz.h"
#include "t/core/tap.h"

/* hz_open() tests the device with code of a family that the program links. */
HZI_LINK_IMAGES(hadamard);

#if !HZ_HAVE_CUDA

int main(void)
{
	skip_all("this build has no device code");
}

#else

static const struct fakecuda *fake;

struct outcome {
	int status, device, alive, complaints, driver, devices;
	long calls;
	char message[256], failed[64];
};

static void open_and_tell(int fd, int device)
{
	const hz_options o = {.device = device, .threads = 1};
	struct outcome out = {.status = 99};
	hz_context *ctx = (hz_context *)&out;
	hz_info info;

	out.status = hz_open(&ctx, &o);
	if (out.status == HZ_OK) {
		hz_device_info(ctx, &info);
		snprintf(out.message, sizeof(out.message), "%s", info.gpu_reason);
		out.device = hz_device(ctx);
		out.driver = info.cuda_driver;
		out.devices = info.cuda_devices;
		if (*hz_errmsg(ctx))
			out.status = 98;
	} else {
		snprintf(out.message, sizeof(out.message), "%s", hz_open_errmsg());
		if (ctx)
			out.status = 97;
	}
	hz_close(ctx);
	out.alive = fakecuda_leaked(fake);
	out.complaints = fake->complaints(NULL, 0);
	out.calls = fake->calls();
	snprintf(out.failed, sizeof(out.failed), "%s", fake->failed());
	/* exit(), not _exit(): leak checkers and gcov run at exit. */
	exit(write(fd, &out, sizeof(out)) != (ssize_t)sizeof(out));
}

/* Opens a context in a child process with a fresh driver and "NAME=VALUE NAME=VALUE" set. */
static struct outcome try_open(const char *settings, int device)
{
	struct outcome out = {.status = 96};
	int fds[2], status;
	pid_t child;

	fflush(NULL);
	if (pipe(fds) || (child = fork()) < 0)
		bail("no child process");
	if (child == 0) {
		char copy[512], *save = NULL;

		snprintf(copy, sizeof(copy), "%s", settings);
		for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
			char *value = strchr(s, '=');

			*value = '\0';
			setenv(s, value + 1, 1);
		}
		open_and_tell(fds[1], device);
	}
	close(fds[1]);
	if (read(fds[0], &out, sizeof(out)) != (ssize_t)sizeof(out))
		snprintf(out.message, sizeof(out.message), "the child died");
	close(fds[0]);
	waitpid(child, &status, 0);
	return out;
}

static void open_sentences(void)
{
	static const struct {
		const char *settings;
		int device, status, gets;
		const char *part;
	} rows[] = {
		{"", HZ_CUDA, HZ_OK, HZ_CUDA, ""},
		{"", HZ_AUTO, HZ_OK, HZ_CUDA, ""},
		{"", HZ_CPU, HZ_OK, HZ_CPU, "the CPU was asked for"},
		{"HURWITZ_DEVICE=cpu", HZ_AUTO, HZ_OK, HZ_CPU, "the CPU was asked for"},
		{"HURWITZ_DEVICE=cpu", HZ_CUDA, HZ_OK, HZ_CUDA, ""},
		{"HURWITZ_DEVICE=cuda", HZ_AUTO, HZ_OK, HZ_CUDA, ""},
		{"HURWITZ_DEVICE=cuda:1 FAKECUDA_DEVICES=3", HZ_AUTO, HZ_OK, HZ_CUDA + 1, ""},
		{"HURWITZ_DEVICE=cuda:1", HZ_AUTO, HZ_ENODEV, 0,
		 "open: cuda:1: no such device, the NVIDIA driver shows 1"},
		{"HURWITZ_LIBCUDA=/nowhere/libcuda.so.1", HZ_CUDA, HZ_ENODEV, 0,
		 "open: cuda:0: no NVIDIA driver: /nowhere/libcuda.so.1"},
		{"HURWITZ_LIBCUDA=/nowhere/libcuda.so.1", HZ_AUTO, HZ_OK, HZ_CPU,
		 "no NVIDIA driver: "},
		{"HURWITZ_LIBCUDA=libc.so.6", HZ_CUDA, HZ_ENODEV, 0,
		 "no NVIDIA driver, or a very old one: libc.so.6 has no cuGetProcAddress_v2"},
		{"FAKECUDA_STUB=1", HZ_CUDA, HZ_ENODEV, 0, "stub"},
		{"FAKECUDA_VERSION=11080", HZ_CUDA, HZ_ENODEV, 0,
		 "too old: it has CUDA 11.8, must have 12.0 or later (no cuLibraryLoadData)"},
		{"FAKECUDA_MISSING=cuLaunchKernelEx", HZ_CUDA, HZ_ENODEV, 0,
		 "must have 12.0 or later (no cuLaunchKernelEx)"},
		{"FAKECUDA_VERSION=12000", HZ_CUDA, HZ_OK, HZ_CUDA, ""},
		{"FAKECUDA_MISSING=cuFuncLoad", HZ_CUDA, HZ_OK, HZ_CUDA, ""},
		{"FAKECUDA_INIT=999", HZ_CUDA, HZ_ENODEV, 0,
		 "does not start: unknown error (CUDA_ERROR_UNKNOWN)"},
		{"FAKECUDA_INIT=4242", HZ_CUDA, HZ_ENODEV, 0, "does not start: CUDA error 4242"},
		{"FAKECUDA_INIT=3", HZ_CUDA, HZ_ENODEV, 0, "in use before fork()"},
		{"FAKECUDA_DEVICES=0", HZ_CUDA, HZ_ENODEV, 0, "the NVIDIA driver shows no GPU"},
		{"FAKECUDA_DEVICES=0", HZ_AUTO, HZ_OK, HZ_CPU, "the NVIDIA driver shows no GPU"},
		{"FAKECUDA_DEVICES=2", HZ_CUDA + 2, HZ_ENODEV, 0,
		 "open: cuda:2: no such device, the NVIDIA driver shows 2"},
		{"FAKECUDA_SM=75", HZ_CUDA, HZ_ENODEV, 0,
		 "open: cuda:0: Stand-in 0 is SM 7.5, must be 8.0 or later"},
		{"FAKECUDA_SM=75,90 FAKECUDA_DEVICES=2", HZ_AUTO, HZ_OK, HZ_CUDA + 1, ""},
		{"FAKECUDA_SM=75,61 FAKECUDA_DEVICES=2", HZ_AUTO, HZ_OK, HZ_CPU,
		 "Stand-in 0 is SM 7.5, must be 8.0 or later"},
		{"FAKECUDA_SM=100", HZ_CUDA, HZ_OK, HZ_CUDA, ""},
		{"FAKECUDA_IMAGE=209", HZ_CUDA, HZ_ENODEV, 0,
		 " device code for SM 9.0: no kernel image"},
		{"FAKECUDA_IMAGE=209", HZ_AUTO, HZ_OK, HZ_CPU, "no kernel image is available"},
		{"FAKECUDA_IMAGE=222", HZ_CUDA, HZ_ENODEV, 0, "unsupported toolchain"},
		{"FAKECUDA_IMAGE=2", HZ_CUDA, HZ_ENOMEM, 0, "out of memory"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const struct outcome out = try_open(rows[i].settings, rows[i].device);
		const char *name = *rows[i].settings ? rows[i].settings : "no settings";
		const int good = out.status == rows[i].status && out.device == rows[i].gets &&
				 out.alive == 0 && out.complaints == 0 &&
				 (*rows[i].part ? strstr(out.message, rows[i].part) != NULL
						: out.message[0] == '\0');

		ok(good, "open %d with %s", rows[i].device, name);
		if (!good)
			diag("status %d device %d alive %d complaints %d \"%s\"", out.status,
			     out.device, out.alive, out.complaints, out.message);
	}
	is_int(try_open("FAKECUDA_VERSION=12020 FAKECUDA_DEVICES=4", HZ_CUDA).driver, 12020,
	       "the driver's version is told");
	is_int(try_open("FAKECUDA_DEVICES=4", HZ_CUDA).devices, 4, "the number of devices is told");
}

/* Each driver call during opening and closing fails, once or from then on. */
static void open_faults(void)
{
	const long calls = try_open("", HZ_CUDA).calls;
	long bad = 0, cases = 0, refused = 0;

	for (long k = 1; k <= calls; k++) {
		for (int mode = 0; mode < 8; mode++) {
			const int code =
				mode & 4 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED;
			const int device = mode & 2 ? HZ_AUTO : HZ_CUDA;
			struct outcome out;
			char settings[128];

			snprintf(settings, sizeof(settings),
				 "FAKECUDA_FAIL_AT=%ld FAKECUDA_FAIL_CODE=%d FAKECUDA_FAIL_EVER=%d",
				 k, code, mode & 1);
			out = try_open(settings, device);
			cases++;
			refused += out.status != HZ_OK;
			if (out.alive || out.complaints ||
			    (out.status != HZ_OK && (device == HZ_AUTO || !out.message[0])) ||
			    (out.status != HZ_OK && out.status != HZ_ENODEV &&
			     out.status != HZ_ECUDA && out.status != HZ_ENOMEM)) {
				bad++;
				diag("%s device %d: status %d alive %d complaints %d in %s: %s",
				     settings, device, out.status, out.alive, out.complaints,
				     out.failed, out.message);
			}
		}
	}
	ok(bad == 0 && refused > 0, "%ld faults while opening: %ld refused, all without a leak",
	   cases, refused);
}

int main(void)
{
	unsetenv("HURWITZ_DEVICE");
	if (tap_cuda())
		skip_all("on the stand-in alone");
	fake = fakecuda_load();
	if (!fake)
		bail("t/core/fakecuda.so beside this program is needed");
	open_sentences();
	open_faults();
	return done_testing();
}

#endif
