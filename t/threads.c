/*
 * threads.c - every call in 8 threads, in a parallel region, in a child, in a library loaded again
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The threads begin at different rows and have contexts of 1 to 3 threads of every level; results
 * must have the bits of one thread alone, whatever else runs beside it. This is the program for a
 * thread sanitizer. With HZ_TEST_DEVICE=cuda the contexts are on all GPUs in turn, which have to be
 * of one kind; what they make must have the bits of the first.
 */
#include <config.h>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "calls.h"
#include "tap.h"

#define THREADS 8

/* What each row makes of its image, in a context of one thread */
static struct {
	unsigned char *image, *want;
	size_t used;
} row[128];

static int gpus;	/* that the driver shows; 0: the CPU is what is tested */

/* Of the number-th context of several */
static hz_options options_of(int number, int isa, int threads)
{
	return (hz_options){.device = gpus ? HZ_CUDA + number % gpus : HZ_CPU, .isa = isa,
			    .threads = threads};
}

/* Makes a call with the row's image; on a GPU it may then still be under way. */
static int begin(struct scene *s, int i)
{
	const hz_tensor *operand[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];
	size_t used;
	const int n = scene_views(s, &calls[i], t, &used);

	for (int k = 0; k < n; k++)
		operand[k] = &t[k];
	scene_write(s, row[i].image, used);
	return calls[i].run(s, operand) == HZ_OK;
}

/* Whether memory is then as wanted */
static int end(struct scene *s, int i, unsigned char *got)
{
	scene_read(s, got, row[i].used);
	return !row[i].want || memcmp(got, row[i].want, row[i].used) == 0;
}

static int run(struct scene *s, int i, unsigned char *got)
{
	return begin(s, i) && end(s, i, got);
}

struct worker {
	pthread_t thread;
	int number, isa, failed;
};

static void *work(void *arg)
{
	struct worker *const w = arg;
	const hz_options o = options_of(w->number, w->isa, 1 + w->number % 3);
	struct scene s;
	unsigned char *got;

	scene_open(&s, &o);
	got = malloc(s.arena_bytes);
	w->failed = !got;
	for (int i = 0; i < calls_count && got; i++)
		w->failed += !run(&s, (i + w->number * calls_count / THREADS) % calls_count, got);
	free(got);
	scene_close(&s);
	return NULL;
}

static void references(int isa)
{
	const hz_options o = options_of(0, isa, 1);
	unsigned char *got;
	struct scene s;

	scene_open(&s, &o);
	got = malloc(s.arena_bytes);
	for (int i = 0; i < calls_count; i++) {
		hz_tensor t[CALL_OPERANDS];

		scene_views(&s, &calls[i], t, &row[i].used);
		row[i].image = malloc(row[i].used);
		row[i].want = NULL;
		if (!row[i].image || !got)
			bail("no memory");
		scene_image(&s, &calls[i], tap_seed(), row[i].image);
		if (!run(&s, i, got))
			bail("%s: %s", calls[i].name, hz_errmsg(s.ctx));
		row[i].want = malloc(row[i].used);
		if (!row[i].want)
			bail("no memory");
		memcpy(row[i].want, got, row[i].used);
	}
	free(got);
	scene_close(&s);
}

static void forget_references(void)
{
	for (int i = 0; i < calls_count; i++) {
		free(row[i].image);
		free(row[i].want);
	}
}

static void level(int isa)
{
	struct worker worker[THREADS];
	int failed = 0;

	references(isa);
	for (int i = 0; i < THREADS; i++) {
		worker[i] = (struct worker){.number = i, .isa = isa};
		if (pthread_create(&worker[i].thread, NULL, work, &worker[i]))
			bail("no thread");
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(worker[i].thread, NULL);
		failed += worker[i].failed;
	}
	is_int(failed, 0, "%s: %d calls by each of %d threads", hz_isa_name(isa), calls_count,
	       THREADS);
	forget_references();
}

/* One thread, the same call on every GPU at a time */
static void every_gpu(void)
{
	struct scene s[THREADS];
	const int n = gpus < THREADS ? gpus : THREADS;
	unsigned char *got;
	int failed = 0;

	if (n < 2) {
		skip(1, "one GPU");
		return;
	}
	references(HZ_ISA_AUTO);
	for (int g = 0; g < n; g++) {
		const hz_options o = options_of(g, HZ_ISA_AUTO, 1);

		scene_open(&s[g], &o);
	}
	got = malloc(s[0].arena_bytes);
	if (!got)
		bail("no memory");
	for (int i = 0; i < calls_count; i++) {
		int good = 1;

		for (int g = 0; g < n; g++)
			good &= begin(&s[g], i);
		for (int g = n - 1; g >= 0; g--)
			good &= end(&s[g], i, got);
		if (!good)
			diag("%s", calls[i].name);
		failed += !good;
	}
	is_int(failed, 0, "%d calls on %d GPUs by one thread", calls_count, n);
	free(got);
	for (int g = 0; g < n; g++)
		scene_close(&s[g]);
	forget_references();
}

/* ---- Larger calls, which do start threads ---------------------------------------------------- */

#define LINES 4096
#define LENGTH 256

static float *numbers(float size)
{
	float *const x = malloc(sizeof(float) * LINES * LENGTH);
	uint64_t rnd = tap_seed();

	if (!x)
		bail("no memory");
	for (int64_t i = 0; i < LINES * LENGTH; i++)
		x[i] = (float)rnd_uniform(&rnd) * size;
	return x;
}

/* A transform in place by a context of so many threads; 0 if anything is refused */
static int transform(float *x, int threads)
{
	const hz_options o = {.device = HZ_CPU, .threads = threads};
	const hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
	hz_context *ctx;
	int good;

	if (hz_open(&ctx, &o) != HZ_OK)
		return 0;
	good = hz_hadamard(ctx, &t, &t, NULL) == HZ_OK;
	hz_close(ctx);
	return good;
}

static int same_as(const float *want, float size, int threads)
{
	float *const x = numbers(size);
	const int good = transform(x, threads) &&
			 memcmp(x, want, sizeof(float) * LINES * LENGTH) == 0;

	free(x);
	return good;
}

static void many_threads(void)
{
	float *const want = numbers(1);
	int bad = 0;

	transform(want, 1);
	ok(same_as(want, 1, 64), "64 threads on whatever this machine has");
#ifdef _OPENMP
#pragma omp parallel num_threads(4) reduction(+ : bad)
	bad += !same_as(want, 1, 3);
	is_int(bad, 0, "calls within a parallel region");
#else
	(void)bad;
	skip(1, "no OpenMP");
#endif
	free(want);
}

/* Denormals are what the caller has set, in all threads alike. */
static void modes(void)
{
#ifdef __SSE2__
	float *const want = numbers(1e-39f), *const flushed = numbers(1e-39f);
	const unsigned mode = _mm_getcsr();

	transform(want, 1);
	_mm_setcsr(mode | 0x8040);
	transform(flushed, 1);
	ok(same_as(flushed, 1e-39f, 3), "denormals flushed by the caller are in all threads");
	_mm_setcsr(mode);
	ok(same_as(want, 1e-39f, 3), "and kept in all of them if not");
	free(want);
	free(flushed);
#else
	skip(2, "no MXCSR");
#endif
}

/* A child of fork() goes on with the contexts of its parent. */
static void child(void)
{
	const hz_options o = options_of(0, HZ_ISA_AUTO, 3);
	unsigned char *got;
	struct scene s;
	int status = -1;
	pid_t pid;

	references(HZ_ISA_AUTO);
	scene_open(&s, &o);
	got = malloc(s.arena_bytes);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		int bad = !got;

		alarm(60);
		for (int i = 0; i < calls_count && got; i++)
			bad += !run(&s, i, got);
		_exit(bad > 255 ? 255 : bad);
	}
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d calls in a child of fork()",
	   calls_count);
	free(got);
	scene_close(&s);
	forget_references();
}

/* ---- The shared library, loaded and unloaded ------------------------------------------------- */

static long resident_pages(void)
{
	FILE *const in = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (!in || fscanf(in, "%*s %ld", &pages) != 1)
		pages = 0;
	if (in)
		fclose(in);
	return pages;
}

/* One use of it, with threads; 0 if there is no such library */
static int load_and_use(const char *path)
{
	int (*open)(hz_context **, const hz_options *);
	int (*hadamard)(hz_context *, const hz_tensor *, const hz_tensor *,
			const hz_hadamard_opts *);
	void (*close)(hz_context *);
	const hz_options o = {.device = HZ_CPU, .threads = 3};
	float *const x = numbers(1);
	const hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
	void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void *symbol[3] = {NULL};
	hz_context *ctx;
	int good = 0;

	if (library) {
		symbol[0] = dlsym(library, "hz_open");
		symbol[1] = dlsym(library, "hz_hadamard");
		symbol[2] = dlsym(library, "hz_close");
	}
	if (symbol[0] && symbol[1] && symbol[2]) {
		memcpy(&open, &symbol[0], sizeof(open));
		memcpy(&hadamard, &symbol[1], sizeof(hadamard));
		memcpy(&close, &symbol[2], sizeof(close));
		good = open(&ctx, &o) == HZ_OK && hadamard(ctx, &t, &t, NULL) == HZ_OK;
		close(ctx);
	}
	if (library)
		dlclose(library);
	free(x);
	return good;
}

static void unloading(void)
{
	char path[4096];
	const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);
	char *slash;
	long before = 0;
	int bad = 0;

	path[n < 0 ? 0 : n] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash ? slash : path, "/../.libs/libhurwitz.so");
	if (access(path, R_OK) != 0) {
		skip(2, "no shared library");
		return;
	}
	for (int i = 0; i < 200; i++) {
		bad += !load_and_use(path);
		if (i == 20)
			before = resident_pages();
	}
	is_int(bad, 0, "the shared library loaded, used and unloaded 200 times");
	ok(resident_pages() - before < 1024, "without growth: %ld pages, then %ld", before,
	   resident_pages());
}

int main(void)
{
	unsetenv("HURWITZ_DEVICE");
	unsetenv("HURWITZ_THREADS");
	if (calls_count > (int)(sizeof(row) / sizeof(*row)))
		bail("%d rows", calls_count);
	tap_seed();
	if (tap_cuda()) {
		hz_context *ctx;
		hz_info info;

		if (hz_open(&ctx, &(hz_options){.device = HZ_CUDA}) != HZ_OK)
			bail("hz_open: %s", hz_open_errmsg());
		hz_device_info(ctx, &info);
		hz_close(ctx);
		gpus = info.cuda_devices;
		level(HZ_ISA_AUTO);
		every_gpu();
		return done_testing();
	}
	for (int isa = HZ_ISA_C; isa <= HZ_ISA_DOTPROD; isa++) {
		const hz_options o = options_of(0, isa, 1);
		hz_context *ctx;
		hz_info info;

		if (hz_open(&ctx, &o) != HZ_OK)
			continue;
		hz_device_info(ctx, &info);
		hz_close(ctx);
		if (info.isa == isa)
			level(isa);
	}
	many_threads();
	modes();
	child();
	unloading();
	return done_testing();
}
