/*
 * cuda.c - contexts on a GPU, on the stand-in driver or with HZ_TEST_DEVICE=cuda on a real GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "t/core/fakecuda.h"
#include "gpu/runtime/cuda.h"
#include "t/core/tap.h"
#include "tools/core/peak.h"

HZI_LINK_IMAGES(hadamard);

#if !HZ_HAVE_CUDA

int main(void)
{
	skip_all("this build has no device code");
}

#else

#define N 4096

static const struct fakecuda *fake;	/* NULL on a real GPU */

static void no_complaints(const char *when)
{
	char first[256] = "";

	if (!fake)
		return;
	is_int(fake->complaints(first, sizeof(first)), 0, "%s: nothing misused", when);
	if (*first)
		diag("%s", first);
}

static hz_context *open_cuda(int ordinal)
{
	const hz_options o = {.device = HZ_CUDA + ordinal, .threads = 1};
	hz_context *ctx;

	if (hz_open(&ctx, &o) != HZ_OK)
		bail("%s", hz_open_errmsg());
	return ctx;
}

/* ---- On the stand-in and on a GPU ------------------------------------------------------------ */

static void memory(hz_context *ctx)
{
	const int gpu = hz_device(ctx);
	static float from[N], to[N];
	hz_tensor host = hz_tensor_1d(from, HZ_F32, HZ_CPU, N),
		  back = hz_tensor_1d(to, HZ_F32, HZ_CPU, N);
	hz_tensor a, b, odd;
	void *p = NULL, *q = NULL, *none = &p;

	for (int i = 0; i < N; i++)
		from[i] = (float)i - 7.5f;
	is_int(hz_alloc(ctx, &p, sizeof(from), gpu), HZ_OK, "alloc on the GPU");
	is_int(hz_alloc(ctx, &q, sizeof(from), gpu), HZ_OK, "alloc again");
	ok((uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0, "aligned");
	a = hz_tensor_1d(p, HZ_F32, gpu, N);
	b = hz_tensor_1d(q, HZ_F32, gpu, N);
	is_int(hz_copy(ctx, &host, &a), HZ_OK, "copy to the GPU: %s", hz_errmsg(ctx));
	is_int(hz_copy(ctx, &a, &b), HZ_OK, "copy within the GPU");
	is_int(hz_copy(ctx, &b, &back), HZ_OK, "copy to the host");
	is_int(hz_sync(ctx), HZ_OK, "sync");
	is_bits(to, from, N, 4, "round trip");

	is_int(hzi_cuda_fill(ctx, q, 0x3c, N * 4), HZ_OK, "fill");
	is_int(hz_copy(ctx, &b, &back), HZ_OK, "copy to the host");
	is_int(hz_sync(ctx), HZ_OK, "sync");
	ok(tap_load(to, 0, 4) == 0x3c3c3c3c && tap_load(to, N - 1, 4) == 0x3c3c3c3c, "filled");

	/* A row of a matrix: its address is not aligned. */
	odd = hz_tensor_1d((float *)p + 3, HZ_F32, gpu, 5);
	back = hz_tensor_1d(to + 1, HZ_F32, HZ_CPU, 5);
	is_int(hz_copy(ctx, &odd, &back), HZ_OK, "copy of a part");
	is_int(hz_sync(ctx), HZ_OK, "sync");
	is_bits(to + 1, from + 3, 5, 4, "the part");

	odd.stride[0] = 2;
	is_int(hz_copy(ctx, &odd, &back), HZ_ESTRIDE, "strides to the GPU are refused");
	has_str(hz_errmsg(ctx), "copy: src is not contiguous", "and say which");
	back = hz_tensor_1d(to, HZ_F32, HZ_CPU, N - 1);
	is_int(hz_copy(ctx, &a, &back), HZ_ESHAPE, "another shape is refused");
	back = hz_tensor_1d(to, HZ_S32, HZ_CPU, N);
	is_int(hz_copy(ctx, &a, &back), HZ_EDTYPE, "another dtype is refused");
	is_int(hz_copy(ctx, &a, &a), HZ_EALIAS, "the same view is refused");
	odd = a;
	odd.device = gpu + 1;
	is_int(hz_copy(ctx, &odd, &b), HZ_EDEVICE, "another GPU is refused");
	is_int(hz_copy(ctx, NULL, &b), HZ_EINVAL, "NULL is refused");
	a = hz_tensor_1d(NULL, HZ_F32, gpu, 0);
	is_int(hz_copy(ctx, &a, &a), HZ_OK, "nothing to copy");

	is_int(hz_free(ctx, p, gpu), HZ_OK, "free");
	is_int(hz_free(ctx, q, gpu), HZ_OK, "free");
	is_int(hz_free(ctx, NULL, gpu), HZ_OK, "free of NULL");
	is_int(hz_free(ctx, (char *)p + 4, gpu), HZ_EINVAL, "free of an odd pointer");
	is_int(hz_alloc(ctx, &p, 0, gpu), HZ_OK, "alloc of nothing");
	ok(p != NULL, "gives a pointer");
	is_int(hz_free(ctx, p, gpu), HZ_OK, "that can be freed");
	is_int(hz_alloc(ctx, &none, (size_t)1 << 46, gpu), HZ_ENOMEM, "alloc of too much");
	ok(none == &p, "leaves the pointer as it was");
	has_str(hz_errmsg(ctx), "alloc: no memory for 70368744177664 bytes on the GPU",
		"and says how much");
	is_int(hz_alloc(ctx, &none, SIZE_MAX, gpu), HZ_ENOMEM, "alloc of SIZE_MAX");
	is_int(hz_alloc(ctx, &p, 4, gpu + 1), HZ_EDEVICE, "alloc on another GPU");
	is_int(hz_alloc(ctx, &p, 64, HZ_CPU), HZ_OK, "alloc on the host");
	is_int(hz_free(ctx, p, HZ_CPU), HZ_OK, "free on the host");
}

static void information(hz_context *ctx)
{
	const struct hzi_cuda_device *d = hzi_cuda_device(ctx);
	hz_info info;

	is_int(hz_device_info(ctx, &info), HZ_OK, "device_info");
	is_int(info.device, hz_device(ctx), "device");
	ok(info.sm >= 80 && info.sm == d->sm, "sm is %d", info.sm);
	ok(info.sm_count > 0 && info.memory_bytes > 1 << 20,
	   "%d SMs, %lld bytes", info.sm_count, (long long)info.memory_bytes);
	ok(info.cuda_driver >= 12000 && info.cuda_devices >= 1, "driver %d shows %d",
	   info.cuda_driver, info.cuda_devices);
	ok(*info.gpu_name && !*info.gpu_reason, "name is %s", info.gpu_name);
	ok(d->shared_block_bytes > 49152 && d->shared_sm_bytes >= d->shared_block_bytes &&
	   d->l2_bytes > 0, "shared %d of %d, L2 %lld", d->shared_block_bytes, d->shared_sm_bytes,
	   (long long)d->l2_bytes);
	ok(info.threads >= 1 && *info.isa_name, "the CPU's fields as well");
}

static void workspace(hz_context *ctx)
{
	void *p, *lent;

	is_int(hzi_workspace(ctx, "op", 1000), HZ_EWORKSPACE, "a call does not allocate");
	is_str(hz_errmsg(ctx),
	       "op: the workspace has 0 bytes, must have 1000: call hz_reserve() first",
	       "and says what to do");
	is_int(hz_reserve(ctx, 1000), HZ_OK, "reserve");
	is_int(hzi_workspace(ctx, "op", 1000), HZ_OK, "then it is there");
	p = ctx->workspace;
	is_int(hz_reserve(ctx, 500), HZ_OK, "reserve less");
	ok(ctx->workspace == p && ctx->workspace_bytes == 1000, "keeps it");
	is_int(hz_reserve(ctx, 100000), HZ_OK, "reserve more");
	is_int((long long)ctx->workspace_bytes, 100000, "grows it");
	is_int(hz_reserve(ctx, (size_t)1 << 46), HZ_ENOMEM, "reserve too much");
	is_int((long long)ctx->workspace_bytes, 100000, "leaves it");
	p = ctx->workspace;
	hz_alloc(ctx, &lent, 256, hz_device(ctx));
	is_int(hz_set_workspace(ctx, lent, 256), HZ_OK, "lend");
	ok(ctx->workspace == lent && ctx->workspace_bytes == 256, "the lent one is used");
	is_int(hzi_workspace(ctx, "op", 300), HZ_EWORKSPACE, "a small one is refused");
	has_str(hz_errmsg(ctx), "lent by hz_set_workspace() has 256 bytes, must have 300",
		"and says so");
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "give back");
	ok(ctx->workspace == p && ctx->workspace_bytes == 100000, "the own one is used again");
	is_int(hz_set_workspace(ctx, (char *)lent + 8, 100), HZ_EINVAL,
	       "an odd pointer is refused");
	hz_free(ctx, lent, hz_device(ctx));
}

/* A transform with a known result: a row of ones gives sqrt(n) and zeros. */
static void transform_is_right(hz_context *ctx, const void *y, const char *what)
{
	static float got[N], want[N];
	hz_tensor there = hz_tensor_1d((void *)(uintptr_t)y, HZ_F32, hz_device(ctx), N);
	hz_tensor here = hz_tensor_1d(got, HZ_F32, HZ_CPU, N);

	want[0] = 64;
	is_int(hz_copy(ctx, &there, &here), HZ_OK, "copy");
	is_int(hz_sync(ctx), HZ_OK, "sync: %s", hz_errmsg(ctx));
	if (fake)
		skip(1, "the stand-in does not compute");
	else
		is_bits(got, want, N, 4, "%s", what);
}

/* The first call of a new context, captured in global mode */
static void capture(int prepare)
{
	hz_context *ctx = open_cuda(0);
	const int gpu = hz_device(ctx);
	static float ones[N];
	hz_tensor host = hz_tensor_1d(ones, HZ_F32, HZ_CPU, N), x, y;
	void *p, *q, *more = NULL, *stream = NULL, *graph = NULL, *start, *stop;
	double ms = -1;
	long before = 0;

	for (int i = 0; i < N; i++)
		ones[i] = 1;
	if (prepare)
		is_int(hz_prepare(ctx), HZ_OK, "prepare: %s", hz_errmsg(ctx));
	is_int(hzi_cuda_capture_begin(ctx), HZ_EINVAL, "the default stream cannot be captured");
	is_int(hzi_cuda_stream_new(ctx, &stream), HZ_OK, "a stream");
	is_int(hz_set_stream(ctx, stream), HZ_OK, "set_stream");
	hz_alloc(ctx, &p, sizeof(ones), gpu);
	hz_alloc(ctx, &q, sizeof(ones), gpu);
	x = hz_tensor_1d(p, HZ_F32, gpu, N);
	y = hz_tensor_1d(q, HZ_F32, gpu, N);
	is_int(hz_copy(ctx, &host, &x), HZ_OK, "copy");
	is_int(hzi_cuda_fill(ctx, q, 0xff, sizeof(ones)), HZ_OK, "poison");
	is_int(hz_sync(ctx), HZ_OK, "sync");

	is_int(hzi_cuda_capture_begin(ctx), HZ_OK, "begin: %s", hz_errmsg(ctx));
	ok(ctx->gpu->capturing(ctx), "the stream is captured");
	is_int(hz_hadamard(ctx, &x, &y, NULL), HZ_OK, "a call in a capture: %s", hz_errmsg(ctx));
	is_int(hz_sync(ctx), HZ_ECUDA, "sync in a capture is refused");
	has_str(hz_errmsg(ctx), "sync: the stream is being captured", "and says why");
	is_int(hz_reserve(ctx, 12345), HZ_EWORKSPACE, "reserve in a capture is refused");
	has_str(hz_errmsg(ctx), "must have 12345: it cannot grow while", "and says the number");
	is_int(hz_alloc(ctx, &more, 64, gpu), HZ_OK, "alloc in a capture: %s", hz_errmsg(ctx));
	is_int(hz_free(ctx, more, gpu), HZ_OK, "free in a capture: %s", hz_errmsg(ctx));
	is_int(hzi_cuda_capture_end(ctx, &graph), HZ_OK, "end: %s", hz_errmsg(ctx));
	ok(!ctx->gpu->capturing(ctx), "the stream is free again");

	if (fake) {
		before = fake->launches();
		ok(before > 0 && fake->launch(before - 1)->captured,
		   "the kernel went into the graph");
		no_complaints("capture");
	}
	is_int(hzi_cuda_event_new(ctx, &start), HZ_OK, "an event");
	is_int(hzi_cuda_event_new(ctx, &stop), HZ_OK, "another");
	is_int(hzi_cuda_event_record(ctx, start), HZ_OK, "record");
	is_int(hzi_cuda_graph_launch(ctx, graph), HZ_OK, "replay");
	is_int(hzi_cuda_graph_launch(ctx, graph), HZ_OK, "replay again");
	is_int(hzi_cuda_event_record(ctx, stop), HZ_OK, "record");
	is_int(hzi_cuda_event_ms(ctx, start, stop, &ms), HZ_OK, "read");
	ok(ms > 0 && ms < 1000, "%g ms", ms);
	transform_is_right(ctx, q, "the graph computed");
	if (fake)
		ok(fake->launches() >= before + 2 && fake->launch(before)->replayed,
		   "the kernels ran");
	is_int(hzi_cuda_event_free(ctx, start), HZ_OK, "free");
	is_int(hzi_cuda_event_free(ctx, stop), HZ_OK, "free");
	is_int(hzi_cuda_graph_free(ctx, graph), HZ_OK, "free");
	is_int(hz_set_stream(ctx, NULL), HZ_OK, "back to the default stream");
	is_int(hzi_cuda_stream_free(ctx, stream), HZ_OK, "free");
	is_int(hz_hadamard(ctx, &x, &y, NULL), HZ_OK, "a call on the default stream");
	transform_is_right(ctx, q, "which computed");
	hz_free(ctx, p, gpu);
	hz_free(ctx, q, gpu);
	hz_close(ctx);
	no_complaints(prepare ? "capture, prepared" : "capture, not prepared");
	if (fake)
		is_int(fakecuda_leaked(fake), 0, "nothing leaked");
}

/* In a child of fork() a GPU context returns an error and does not call the driver. */
static void forked(void)
{
	hz_context *ctx = open_cuda(0), *own;
	const int gpu = hz_device(ctx);
	hz_tensor x;
	void *p;
	pid_t child;
	int status = 0;

	is_int(hz_reserve(ctx, 4096), HZ_OK, "reserve");
	hz_alloc(ctx, &p, 4 * N, gpu);
	x = hz_tensor_1d(p, HZ_F32, gpu, N);
	is_int(hz_hadamard(ctx, &x, &x, NULL), HZ_OK, "a call before fork()");
	fflush(NULL);
	child = fork();
	if (child == 0) {
		const long calls = fake ? fake->calls() : 0;
		const hz_options cuda = {.device = HZ_CUDA}, any = {.threads = 1};
		hz_info info;
		int bad = 0;
		void *q;

		bad += hz_hadamard(ctx, &x, &x, NULL) != HZ_EFORK;
		bad += !strstr(hz_errmsg(ctx), "fork()");
		bad += hz_sync(ctx) != HZ_EFORK;
		bad += hz_alloc(ctx, &q, 1, gpu) != HZ_EFORK;
		bad += hz_free(ctx, p, gpu) != HZ_EFORK;
		bad += hz_copy(ctx, &x, &x) != HZ_EFORK;
		bad += hz_prepare(ctx) != HZ_EFORK;
		bad += hz_reserve(ctx, 1 << 20) != HZ_EFORK;
		bad += hz_set_stream(ctx, NULL) != HZ_EFORK;
		bad += hz_set_workspace(ctx, NULL, 0) != HZ_EFORK;
		bad += hz_device_info(ctx, &info) != HZ_OK;
		hz_close(ctx);
		bad += hz_open(&own, &cuda) != HZ_ENODEV;
		bad += !strstr(hz_open_errmsg(), "fork()");
		bad += hz_open(&own, &any) != HZ_OK;
		bad += hz_device(own) != HZ_CPU;
		hz_close(own);
		bad += fake && fake->calls() != calls;
		_exit(bad);
	}
	waitpid(child, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "in a child: EFORK, and no driver call");
	is_int(hz_hadamard(ctx, &x, &x, NULL), HZ_OK, "the parent goes on");
	is_int(hz_sync(ctx), HZ_OK, "the parent syncs");
	hz_free(ctx, p, gpu);
	hz_close(ctx);
	no_complaints("fork");
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reports what opening and launching cost the host; does not test the numbers. */
static void costs(void)
{
	enum { CALLS = 500 };
	double start = seconds(), opened, prepared;
	hz_context *ctx = open_cuda(0);
	hz_tensor x;
	void *p;
	int bad = 0;

	opened = seconds() - start;
	start = seconds();
	is_int(hz_prepare(ctx), HZ_OK, "prepare");
	prepared = seconds() - start;
	hz_alloc(ctx, &p, 4 * N, hz_device(ctx));
	x = hz_tensor_1d(p, HZ_F32, hz_device(ctx), N);
	hz_hadamard(ctx, &x, &x, NULL);
	hz_sync(ctx);
	start = seconds();
	/* The driver's launch queue takes this many without blocking. */
	for (int i = 0; i < CALLS; i++)
		bad += hz_hadamard(ctx, &x, &x, NULL) != HZ_OK;
	diag("hz_open %.2f ms, hz_prepare %.2f ms, a call %.2f us of the host", opened * 1e3,
	     prepared * 1e3, (seconds() - start) * 1e6 / CALLS);
	is_int(bad, 0, "%d calls", CALLS);
	is_int(hz_sync(ctx), HZ_OK, "sync");
	hz_free(ctx, p, hz_device(ctx));
	hz_close(ctx);
}

/* Many threads open, use and close contexts at once. */
static void *hammer(void *arg)
{
	const int rounds = tap_quick() ? 2 : 10;
	long *bad = arg;

	for (int i = 0; i < rounds; i++) {
		hz_context *ctx = open_cuda(0);
		const int gpu = hz_device(ctx);
		float from[256], to[256];
		hz_tensor a = hz_tensor_1d(from, HZ_F32, HZ_CPU, 256),
			  b = hz_tensor_1d(to, HZ_F32, HZ_CPU, 256);
		hz_tensor t;
		void *p = NULL, *stream = NULL;

		for (int j = 0; j < 256; j++)
			from[j] = (float)(i * 256 + j);
		*bad += hzi_cuda_stream_new(ctx, &stream) != HZ_OK;
		*bad += hz_set_stream(ctx, stream) != HZ_OK;
		*bad += hz_alloc(ctx, &p, sizeof(from), gpu) != HZ_OK;
		t = hz_tensor_1d(p, HZ_F32, gpu, 256);
		*bad += hz_copy(ctx, &a, &t) != HZ_OK;
		*bad += hz_hadamard(ctx, &t, &t, NULL) != HZ_OK;
		*bad += hz_hadamard(ctx, &t, &t, NULL) != HZ_OK;
		*bad += hz_copy(ctx, &t, &b) != HZ_OK;
		*bad += hz_sync(ctx) != HZ_OK;
		for (int j = 0; j < 256; j++)
			*bad += fabsf(from[j] - to[j]) > 1e-2f;
		*bad += hz_free(ctx, p, gpu) != HZ_OK;
		*bad += hzi_cuda_stream_free(ctx, stream) != HZ_OK;
		hz_close(ctx);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[8];
	long bad[8] = {0}, sum = 0;

	for (int i = 0; i < 8; i++) {
		if (pthread_create(&thread[i], NULL, hammer, &bad[i]))
			bail("no thread");
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(thread[i], NULL);
		sum += bad[i];
	}
	is_int(sum, 0, "8 threads with contexts of their own");
	no_complaints("threads");
	if (fake)
		is_int(fakecuda_leaked(fake), 0, "nothing leaked");
}

/* The peak throughput that hurwitz bench compares products with: it runs; on the stand-in also its
 * multiply-adds */
static void peaks(void)
{
	static const struct {
		int dtype;
		const char *kernel, *hopper;
		int64_t step, hopper_step;	/* multiply-adds of a block in a step */
	} rows[] = {
		{HZ_F32, "peak_f32", "peak_f32", 256 * 16, 256 * 16},
		{HZ_F16, "peak_f16_mma_sync", "peak_f16_wgmma", 8 * 8 * 16 * 8 * 16,
		 2 * 64 * 256 * 16},
		{HZ_S8, "peak_s8_mma_sync", "peak_s8_wgmma", 8 * 8 * 16 * 8 * 32,
		 2 * 64 * 256 * 32},
	};
	const int64_t macs = 12345678901;
	hz_context *ctx = open_cuda(0);
	const bool hopper = HZ_CUDA_90A && hzi_cuda_device(ctx)->sm == 90;

	for (int i = 0; i < 3; i++) {
		const char *const name = hz_dtype_name(rows[i].dtype);
		const struct fakecuda_launch *l;
		int64_t steps, each;

		if (fake)
			fake->reset();
		is_int(tool_peak(ctx, rows[i].dtype, macs), HZ_OK, "multiplications of %s", name);
		is_int(hz_sync(ctx), HZ_OK, "and they end");
		if (!fake)
			continue;
		l = fake->launch(0);
		is_str(l->kernel, hopper ? rows[i].hopper : rows[i].kernel, "their kernel");
		memcpy(&steps, l->params, sizeof(steps));
		each = l->grid[0] * (hopper ? rows[i].hopper_step : rows[i].step);
		ok(steps * each >= macs && (steps - 1) * each < macs, "as many as wanted, by %lld",
		   (long long)each);
	}
	hz_close(ctx);
	no_complaints("peaks");
}

/* ---- On the stand-in alone ------------------------------------------------------------------- */

struct params {
	int64_t n;
	float x[4];		/* no padding, whose bytes would be compared too */
};

static int launch(hz_context *ctx, unsigned grid, unsigned block, unsigned shared, unsigned cluster)
{
	const struct hzi_launch l = {.grid = {grid}, .block = {block}, .shared_bytes = shared,
				     .cluster = cluster};
	const struct params p = {.n = grid, .x = {1, 2, 3, 4}};

	return hzi_cuda_launch(ctx, "op", HZI_KERNELS_hadamard, &l, &p, sizeof(p));
}

static void launches(void)
{
	hz_context *ctx = open_cuda(0);
	const char *name = hzi_images_hadamard.kernel[0];
	const struct params want = {.n = 12, .x = {1, 2, 3, 4}};
	const struct fakecuda_launch *l;
	void *stream;
	long calls;
	int bad = 0;

	fake->reset();
	is_int(launch(ctx, 12, 256, 0, 0), HZ_OK, "launch");
	l = fake->launch(0);
	is_int(fake->launches(), 1, "one launch");
	is_str(l->kernel, name, "of the kernel");
	ok(l->grid[0] == 12 && l->grid[1] == 1 && l->grid[2] == 1 && l->block[0] == 256 &&
	   l->block[1] == 1 && l->block[2] == 1, "with this geometry");
	ok(l->params_bytes == sizeof(want) && memcmp(l->params, &want, sizeof(want)) == 0,
	   "with these parameters");
	ok(l->shared_bytes == 0 && l->cluster == 0 && l->stream == NULL && l->device == 0,
	   "without shared memory, cluster or stream");

	calls = fake->calls();
	is_int(launch(ctx, 1, 32, 49152, 0), HZ_OK, "48 KiB of shared memory");
	is_int(fake->calls() - calls, 3, "take push, launch, pop");
	calls = fake->calls();
	is_int(launch(ctx, 1, 32, 100000, 0), HZ_OK, "more shared memory");
	is_int(fake->calls() - calls, 4, "is asked for");
	calls = fake->calls();
	is_int(launch(ctx, 1, 32, 100000, 0), HZ_OK, "again");
	is_int(fake->calls() - calls, 3, "only once");
	is_int(launch(ctx, 1, 32, 232448, 0), HZ_OK, "the most there is");
	is_int(launch(ctx, 8, 32, 0, 8), HZ_OK, "a cluster");
	is_int(fake->launch(fake->launches() - 1)->cluster, 8, "of 8");
	is_int(launch(ctx, 16, 32, 0, 16), HZ_OK, "a cluster of 16");
	calls = fake->calls();
	is_int(launch(ctx, 16, 32, 0, 16), HZ_OK, "again");
	is_int(fake->calls() - calls, 3, "is asked for once");
	no_complaints("launches");

	/* Each kernel is found and launched by its index. */
	fake->reset();
	for (int i = 0; i < hzi_images_hadamard.kernels; i++) {
		const struct hzi_launch one = {.grid = {1}, .block = {32, 2, 3}};

		bad += hzi_cuda_launch(ctx, "op", HZI_KERNELS_hadamard + i, &one, &want,
				       sizeof(want)) != HZ_OK;
		l = fake->launch(i);
		bad += !l || strcmp(l->kernel, hzi_images_hadamard.kernel[i]) != 0 ||
		       l->block[1] != 2 || l->block[2] != 3;
	}
	is_int(bad, 0, "%d kernels by index", hzi_images_hadamard.kernels);

	is_int(launch(ctx, 1, 2048, 0, 0), HZ_ECUDA, "too many threads");
	has_str(hz_errmsg(ctx), "op: launching the kernel ", "says what");
	has_str(hz_errmsg(ctx), "invalid argument (CUDA_ERROR_INVALID_VALUE)", "says why");
	has_str(hz_errmsg(ctx), name, "says which");
	is_int(launch(ctx, 1, 32, 232449, 0), HZ_ECUDA, "too much shared memory");
	has_str(hz_errmsg(ctx), "op: asking for 232449 bytes of shared memory for the kernel",
		"says what");
	is_int(launch(ctx, 9, 32, 0, 8), HZ_ECUDA, "a grid that clusters do not fill");
	is_int(launch(ctx, 9, 32, 0, 0), HZ_OK, "and it goes on");
	fake->reset();

	is_int(hzi_cuda_stream_new(ctx, &stream), HZ_OK, "a stream");
	is_int(hz_set_stream(ctx, stream), HZ_OK, "is set");
	is_int(launch(ctx, 1, 32, 0, 0), HZ_OK, "launch");
	ok(fake->launch(0)->stream == stream, "goes there");
	is_int(hz_set_stream(ctx, NULL), HZ_OK, "the default stream is set");
	is_int(launch(ctx, 1, 32, 0, 0), HZ_OK, "launch");
	ok(fake->launch(1)->stream == NULL, "goes there");
	fake->fail_late(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	is_int(launch(ctx, 1, 32, 0, 0), HZ_OK, "a launch that will fail");
	is_int(hz_sync(ctx), HZ_ECUDA, "is told by sync");
	has_str(hz_errmsg(ctx), "sync: waiting for the GPU: too many resources", "with the reason");
	is_int(hz_sync(ctx), HZ_OK, "once");
	is_int(hzi_cuda_stream_free(ctx, stream), HZ_OK, "free");
	no_complaints("streams");
	hz_close(ctx);
	is_int(fakecuda_leaked(fake), 0, "nothing leaked");
	is_int(fake->live().dropped, 0, "nothing was lost with the device's context");
}

static void prepare(void)
{
	hz_context *ctx = open_cuda(0);
	long calls;

	fake->reset();
	is_int(hz_prepare(ctx), HZ_OK, "prepare");
	calls = fake->calls();
	is_int(hz_prepare(ctx), HZ_OK, "prepare again");
	is_int(fake->calls() - calls, 2, "does nothing but push and pop");
	calls = fake->calls();
	for (int i = 0; i < hzi_images_hadamard.kernels; i++) {
		const struct hzi_launch l = {.grid = {1}, .block = {32}};

		hzi_cuda_launch(ctx, "op", HZI_KERNELS_hadamard + i, &l, &l, sizeof(l));
	}
	is_int(fake->calls() - calls, 3 * hzi_images_hadamard.kernels,
	       "no launch loads anything after it");
	hz_close(ctx);
	no_complaints("prepare");
	is_int(fakecuda_leaked(fake), 0, "nothing leaked");
}

/* Two devices, while the caller has a context of its own current */
static void two_devices(void)
{
	hz_context *a = open_cuda(0), *b = open_cuda(1);
	CUcontext mine, now;
	CUdevice device;
	hz_tensor x, y;
	void *p, *q;

	fake->reset();
	fake->cu->DeviceGet(&device, 1);
	fake->cu->DevicePrimaryCtxRetain(&mine, device);
	fake->cu->CtxPushCurrent(mine);
	is_int(hz_alloc(a, &p, 4 * N, HZ_CUDA), HZ_OK, "alloc on device 0");
	is_int(hz_alloc(b, &q, 4 * N, HZ_CUDA + 1), HZ_OK, "alloc on device 1");
	x = hz_tensor_1d(p, HZ_F32, HZ_CUDA, N);
	y = hz_tensor_1d(q, HZ_F32, HZ_CUDA + 1, N);
	is_int(launch(a, 1, 32, 0, 0), HZ_OK, "launch on device 0");
	is_int(launch(b, 1, 32, 0, 0), HZ_OK, "launch on device 1");
	ok(fake->launch(0)->device == 0 && fake->launch(1)->device == 1, "each on its own");
	is_int(hz_hadamard(a, &x, &y, NULL), HZ_EDEVICE, "an operand on the other one is refused");
	is_int(hz_free(b, p, HZ_CUDA), HZ_EDEVICE, "so is freeing through the other one");
	is_int(hz_sync(a), HZ_OK, "sync");
	is_int(hz_prepare(b), HZ_OK, "prepare");
	is_int(hz_free(a, p, HZ_CUDA), HZ_OK, "free");
	is_int(hz_free(b, q, HZ_CUDA + 1), HZ_OK, "free");
	hz_close(b);
	hz_close(a);
	fake->cu->CtxGetCurrent(&now);
	ok(now == mine, "the caller's context is current as before");
	fake->cu->CtxPopCurrent(&now);
	ok(now == mine, "and the only one");
	fake->cu->DevicePrimaryCtxRelease(device);
	no_complaints("two devices");
	is_int(fakecuda_leaked(fake), 0, "nothing leaked");
}

/* An allocator that succeeds once, for the context */
static void *alloc_once(void *user, size_t bytes, size_t align)
{
	int *calls = user;

	return (*calls)++ ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void give_back(void *user, void *p, size_t bytes)
{
	(void)user, (void)bytes;
	free(p);
}

static void no_host_memory(void)
{
	int calls = 0;
	const hz_allocator a = {.alloc = alloc_once, .free = give_back, .user = &calls};
	hz_options o = {.device = HZ_CUDA, .threads = 1, .allocator = &a};
	hz_context *ctx;
	hz_info info;

	is_int(hz_open(&ctx, &o), HZ_ENOMEM, "no host memory for the GPU half");
	has_str(hz_open_errmsg(), "open: cuda:0: no memory for the GPU half of a context, ",
		"its message");
	calls = 0;
	o.device = HZ_AUTO;
	is_int(hz_open(&ctx, &o), HZ_OK, "HZ_AUTO does without");
	is_int(hz_device_info(ctx, &info), HZ_OK, "device_info");
	is_int(info.device, HZ_CPU, "on the CPU");
	has_str(info.gpu_reason, "no memory for the GPU half", "and says why");
	hz_close(ctx);
	is_int(fakecuda_leaked(fake), 0, "nothing leaked");
}

struct heard {
	int warnings;
	char last[256];
};

static void hear(void *user, int level, const char *message)
{
	struct heard *h = user;

	h->warnings += level == HZ_LOG_WARNING;
	snprintf(h->last, sizeof(h->last), "%s", message);
}

static void lost_device(void)
{
	struct heard heard = {0};
	const hz_options o = {.device = HZ_CUDA, .threads = 1, .log = hear, .log_user = &heard};
	hz_context *ctx;
	hz_tensor x;
	long calls;
	void *p, *q;

	fake->reset();
	if (hz_open(&ctx, &o) != HZ_OK)
		bail("%s", hz_open_errmsg());
	hz_alloc(ctx, &p, 4 * N, HZ_CUDA);
	is_int(hz_reserve(ctx, 64), HZ_OK, "reserve");
	fake->fail_late(CUDA_ERROR_ILLEGAL_ADDRESS);
	is_int(launch(ctx, 1, 32, 0, 0), HZ_OK, "a launch that will fail");
	is_int(hz_sync(ctx), HZ_ECUDA, "is told by sync");
	has_str(hz_errmsg(ctx), "CUDA_ERROR_ILLEGAL_ADDRESS", "with its name");
	is_int(heard.warnings, 1, "and to the log");
	calls = fake->calls();
	is_int(launch(ctx, 1, 32, 0, 0), HZ_ECUDA, "the next launch is refused");
	has_str(hz_errmsg(ctx),
		"op: the GPU failed earlier and the context can only be closed: an illegal",
		"and says why");
	x = hz_tensor_1d(p, HZ_F32, HZ_CUDA, N);
	is_int(hz_hadamard(ctx, &x, &x, NULL), HZ_ECUDA, "so is a public call");
	is_int(hz_sync(ctx), HZ_ECUDA, "so is sync");
	is_int(hz_alloc(ctx, &q, 1, HZ_CUDA), HZ_ECUDA, "so is alloc");
	is_int(hz_free(ctx, p, HZ_CUDA), HZ_ECUDA, "so is free");
	is_int(hz_prepare(ctx), HZ_ECUDA, "so is prepare");
	is_int(hz_reserve(ctx, 1 << 20), HZ_ECUDA, "so is reserve");
	is_int(fake->calls(), calls, "without another driver call");
	is_int(heard.warnings, 1, "or another warning");
	hz_close(ctx);
	is_int(fakecuda_leaked(fake), 0, "closing releases the rest");
	no_complaints("lost device");

	/* A launch reports the error of earlier work. */
	fake->reset();
	ctx = open_cuda(0);
	is_int(launch(ctx, 1, 32, 0, 0), HZ_OK, "a launch that loads the kernel");
	fake->break_device(0, CUDA_ERROR_LAUNCH_FAILED);
	is_int(launch(ctx, 1, 32, 0, 0), HZ_ECUDA, "a launch on a broken device");
	has_str(hz_errmsg(ctx), "or earlier work: unspecified launch failure",
		"does not claim the error");
	hz_close(ctx);
	fake->reset();
}

/* Makes every call that uses the driver, and goes on after failures. Returns the number of calls
 * that failed. */
static int scenario(void)
{
	const hz_options o = {.device = HZ_CUDA, .threads = 1};
	const int gpu = HZ_CUDA;
	static float from[64], to[64];
	hz_tensor host = hz_tensor_1d(from, HZ_F32, HZ_CPU, 64),
		  back = hz_tensor_1d(to, HZ_F32, HZ_CPU, 64);
	hz_tensor there;
	void *p = NULL, *stream = NULL, *graph = NULL, *event = NULL;
	int refused = 0;
	hz_context *ctx;
	double ms;

	if (hz_open(&ctx, &o) != HZ_OK)
		return 1;
	refused += hz_alloc(ctx, &p, sizeof(from), gpu) != HZ_OK;
	refused += hz_reserve(ctx, 100) != HZ_OK;
	refused += hz_reserve(ctx, 10000) != HZ_OK;
	refused += launch(ctx, 16, 32, 100000, 16) != HZ_OK;
	refused += hzi_cuda_stream_new(ctx, &stream) != HZ_OK;
	refused += hz_set_stream(ctx, stream) != HZ_OK;
	refused += hz_prepare(ctx) != HZ_OK;
	there = hz_tensor_1d(p, HZ_F32, gpu, 64);
	if (p) {
		refused += hz_copy(ctx, &host, &there) != HZ_OK;
		refused += hzi_cuda_fill(ctx, p, 1, 256) != HZ_OK;
		refused += hz_copy(ctx, &there, &back) != HZ_OK;
	}
	if (stream && hzi_cuda_capture_begin(ctx) == HZ_OK) {
		refused += launch(ctx, 1, 32, 0, 0) != HZ_OK;
		if (hzi_cuda_capture_end(ctx, &graph) != HZ_OK) {
			refused++;
			if (ctx->gpu->capturing(ctx))
				hzi_cuda_capture_end(ctx, &graph);
		}
	} else {
		refused++;
	}
	if (graph) {
		refused += hzi_cuda_graph_launch(ctx, graph) != HZ_OK;
		if (hzi_cuda_graph_free(ctx, graph) != HZ_OK)
			refused++;
	}
	refused += hzi_cuda_event_new(ctx, &event) != HZ_OK;
	if (event) {
		if (hzi_cuda_event_record(ctx, event) != HZ_OK)
			refused++;
		else
			refused += hzi_cuda_event_ms(ctx, event, event, &ms) != HZ_OK;
		refused += hzi_cuda_event_free(ctx, event) != HZ_OK;
	}
	refused += hz_sync(ctx) != HZ_OK;
	hz_set_stream(ctx, NULL);
	if (stream)
		refused += hzi_cuda_stream_free(ctx, stream) != HZ_OK;
	refused += hz_free(ctx, p, gpu) != HZ_OK;
	if (refused && !*hz_errmsg(ctx))
		refused = -1000;
	hz_close(ctx);
	return refused;
}

static void faults(void)
{
	long bad = 0, cases = 0, quiet = 0, lost = 0, calls;

	fake->reset();
	is_int(scenario(), 0, "the scenario without a fault");
	calls = fake->calls();
	no_complaints("the scenario");
	is_int(fakecuda_leaked(fake), 0, "nothing leaked");
	is_int(fake->live().dropped, 0, "nothing lost");
	for (long k = 1; k <= calls; k++) {
		for (int mode = 0; mode < 6; mode++) {
			static const int codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
						    CUDA_ERROR_LAUNCH_FAILED};
			char first[256] = "";
			int refused, complaints, pushed;

			fake->reset();
			fake->fail_at(k, codes[mode / 2], mode & 1);
			refused = scenario();
			pushed = strcmp(fake->failed(), "cuCtxPushCurrent") == 0;
			complaints = fake->complaints(first, sizeof(first));
			fake->fail_at(0, 0, 0);
			cases++;
			quiet += refused == 0;
			lost += fake->live().dropped;
			/* A context that could not be made current keeps its memory until the
			 * device's context is destroyed. All else must have been freed. */
			if (refused < 0 || complaints || fakecuda_leaked(fake) ||
			    (fake->live().dropped && !pushed && !(mode & 1) && mode / 2 != 2)) {
				bad++;
				diag("call %ld (%s) code %d %s: %d refused, %d alive, %d dropped, "
				     "%d complaints: %s",
				     k, fake->failed(), codes[mode / 2],
				     mode & 1 ? "for ever" : "once", refused, fakecuda_leaked(fake),
				     fake->live().dropped, complaints, first);
			}
		}
	}
	fake->reset();
	ok(bad == 0,
	   "%ld faults in %ld calls: %ld went unnoticed, %ld objects lost with the device", cases,
	   calls, quiet, lost);
	is_int(scenario(), 0, "the scenario works afterwards");
	fake->reset();
}

int main(void)
{
	hz_context *ctx;

	unsetenv("HURWITZ_DEVICE");
	if (!tap_cuda()) {
		fake = fakecuda_load();
		if (!fake)
			bail("t/core/fakecuda.so beside this program is needed");
		setenv("FAKECUDA_DEVICES", "2", 1);
	}
	ctx = open_cuda(0);
	information(ctx);
	memory(ctx);
	workspace(ctx);
	hz_close(ctx);
	no_complaints("memory");
	if (fake)
		is_int(fakecuda_leaked(fake), 0, "nothing leaked");
	capture(0);
	capture(1);
	costs();
	threads();
	peaks();
	if (fake) {
		launches();
		prepare();
		two_devices();
		no_host_memory();
		lost_device();
		faults();
	}
	forked();
	return done_testing();
}

#endif
