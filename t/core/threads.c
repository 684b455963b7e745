/*
 * threads.c - every call in 8 threads, in a parallel region, in a child process, on a small stack,
 * in a reloaded library
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The threads start at different rows and have contexts of 1 to 3 threads, by each backend, and of
 * every ISA level; every call is worth threads. Results must have the bits of one thread alone,
 * whatever runs concurrently. Thread sanitizers run
 * this program. With HZ_TEST_DEVICE=cuda the contexts alternate between all GPUs, which must be of
 * one model; results must have the bits of the first.
 */
#include <config.h>

#include <dirent.h>
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "lib/core/internal.h"
#include "t/core/calls.h"
#include "t/core/isa.h"
#include "t/core/record.h"
#include "t/core/tap.h"

#define THREADS 8

/* Each row's expected result, computed in a context of one thread */
static struct {
	unsigned char *image, *want;
	size_t used;
} row[192];

static int gpus;	/* number of GPUs under test; 0: the CPU */

#ifdef _OPENMP
enum { BACKENDS = 3 };
#else
enum { BACKENDS = 2 };
#endif
static const char *const backend_names[] = {"pool", "callback", "openmp"};

/* An application's own: every second body on another thread, the last first */
struct own_share {
	void (*body)(void *arg, int i);
	void *arg;
	int n, first;
};

static void *own_bodies(void *arg)
{
	const struct own_share *const s = arg;

	for (int i = s->n - 1; i >= 0; i--) {
		if (i % 2 == s->first)
			s->body(s->arg, i);
	}
	return NULL;
}

static void own_parallel_for(void *user, int n, void (*body)(void *arg, int i), void *arg)
{
	struct own_share here = {body, arg, n, 0}, there = {body, arg, n, 1};
	pthread_t thread;

	if (user != backend_names || pthread_create(&thread, NULL, own_bodies, &there))
		bail("parallel_for has another user, or no thread");
	own_bodies(&here);
	pthread_join(thread, NULL);
}

static void use_backend(hz_options *o, int backend)
{
	if (backend == 1) {
		o->parallel_for = own_parallel_for;
		o->parallel_user = (void *)(uintptr_t)backend_names;
	} else {
		o->threading = backend == 0 ? HZ_THREADING_POOL : HZ_THREADING_OPENMP;
	}
}

/* Options of the number-th context */
static hz_options options_of(int number, int isa, int threads)
{
	hz_options o = {.device = gpus ? HZ_CUDA + number % gpus : HZ_CPU, .isa = isa,
			.threads = threads};

	use_backend(&o, number / 3 % BACKENDS);
	return o;
}

/* Makes the call with the row's image; on a GPU it may still be in flight afterwards. */
static int begin(struct scene *s, int i)
{
	hz_tensor *operand[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];
	size_t used;
	const int n = scene_views(s, &calls[i], t, &used);

	for (int k = 0; k < n; k++)
		operand[k] = &t[k];
	scene_write(s, row[i].image, used);
	return calls[i].run(s, operand) == HZ_OK;
}

/* Waits; returns whether memory is as expected. */
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
	s.ctx->grain_bits = 0;
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

/* One thread makes the same call on all GPUs at the same time. */
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

/* ---- Calls that are large enough to start threads -------------------------------------------- */

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

/* A transform in place with that many threads by a backend; 0 on an error */
static int transform_by(float *x, int threads, int backend)
{
	hz_options o = {.device = HZ_CPU, .threads = threads};
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
	hz_context *ctx;
	int good;

	use_backend(&o, backend);
	if (hz_open(&ctx, &o) != HZ_OK)
		return 0;
	good = hz_hadamard(ctx, &t, &t, NULL) == HZ_OK;
	hz_close(ctx);
	return good;
}

static int transform(float *x, int threads)
{
	return transform_by(x, threads, 0);
}

static int same_by(const float *want, float size, int threads, int backend)
{
	float *const x = numbers(size);
	const int good = transform_by(x, threads, backend) &&
			 memcmp(x, want, sizeof(float) * LINES * LENGTH) == 0;

	free(x);
	return good;
}

static int same_as(const float *want, float size, int threads)
{
	return same_by(want, size, threads, 0);
}

static void many_threads(void)
{
	float *const want = numbers(1);
	int bad = 0;

	transform(want, 1);
	for (int b = 0; b < BACKENDS; b++) {
		static const int counts[] = {2, 3, 7, 64};

		for (int i = 0; i < 4; i++)
			ok(same_by(want, 1, counts[i], b), "%d threads by %s", counts[i],
			   backend_names[b]);
	}
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

/* Bytes of workspace of a transform of columns; each thread has a part. */
static size_t workspace_of(hz_context *ctx, float *x)
{
	const hz_hadamard_opts columns = {.axis = HZ_AXIS(0)};
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
	size_t bytes = 0;

	if (RECORD(ctx, hz_hadamard(ctx, &t, &t, &columns), &bytes) != HZ_OK)
		bail("%s", hz_errmsg(ctx));
	return bytes;
}

/* One context whose number of threads changes between calls, by a workspace of just that size */
static void changed_threads(int backend)
{
	static const int counts[] = {1, 3, 64, 2, 7, 1, 0};
	const hz_hadamard_opts columns = {.axis = HZ_AXIS(0)};
	float *const want = numbers(1), *const x = numbers(1);
	hz_tensor tw = hz_tensor_2d(want, HZ_F32, HZ_CPU, LINES, LENGTH);
	hz_tensor tx = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
	hz_options o = {.device = HZ_CPU, .threads = 1};
	hz_context *one, *ctx;
	size_t least, bytes;
	int bad = 0;

	use_backend(&o, backend);
	if (hz_open(&one, &o) != HZ_OK || hz_open(&ctx, &o) != HZ_OK ||
	    hz_hadamard(one, &tw, &tw, &columns) != HZ_OK)
		bail("%s", hz_open_errmsg());
	least = workspace_of(one, x);
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		float *const start = numbers(1);
		void *lent;
		hz_info info;

		memcpy(x, start, sizeof(float) * LINES * LENGTH);
		free(start);
		bad += hz_set_threads(ctx, counts[i]) != HZ_OK;
		hz_device_info(ctx, &info);
		bytes = workspace_of(ctx, x);
		bad += counts[i] && info.threads != counts[i];
		bad += info.threads > 1 ? bytes <= least : bytes != least;
		lent = aligned_alloc(64, (bytes + 63) / 64 * 64);
		bad += hz_set_workspace(ctx, lent, bytes) != HZ_OK ||
		       hz_hadamard(ctx, &tx, &tx, &columns) != HZ_OK;
		hz_set_workspace(ctx, NULL, 0);
		free(lent);
		bad += memcmp(x, want, sizeof(float) * LINES * LENGTH) != 0;
	}
	is_int(bad, 0, "%s: the number of threads changes between calls", backend_names[backend]);
	hz_close(ctx);
	hz_close(one);
	free(want);
	free(x);
}

/* All threads use the caller's setting for denormals, and round to nearest. */
static void modes(void)
{
	static const int rounding[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
	float *const nearest = numbers(1);

	transform(nearest, 1);
	for (int b = 0; b < BACKENDS; b++) {
		int bad = 0;

		for (int i = 0; i < 3; i++) {
			float *const x = numbers(1);

			fesetround(rounding[i]);
			bad += !transform_by(x, 3, b) || fegetround() != rounding[i];
			fesetround(FE_TONEAREST);
			bad += memcmp(x, nearest, sizeof(float) * LINES * LENGTH) != 0;
			bad += !same_by(nearest, 1, 3, b);
			free(x);
		}
		is_int(bad, 0, "%s: rounding modes of the caller", backend_names[b]);
	}
	free(nearest);
#ifdef __SSE2__
	float *const want = numbers(1e-39f), *const flushed = numbers(1e-39f);
	const unsigned mode = _mm_getcsr();

	transform(want, 1);
	_mm_setcsr(mode | 0x8040);
	transform(flushed, 1);
	for (int b = 0; b < BACKENDS; b++)
		ok(same_by(flushed, 1e-39f, 3, b),
		   "%s: denormals flushed by the caller are in all threads", backend_names[b]);
	_mm_setcsr(mode);
	for (int b = 0; b < BACKENDS; b++)
		ok(same_by(want, 1e-39f, 3, b), "%s: and kept in all of them if not",
		   backend_names[b]);
	free(want);
	free(flushed);
#else
	skip(2 * BACKENDS, "no MXCSR");
#endif
}

/* Threads of this process; 0 if the system does not say */
static int tasks(void)
{
	DIR *const d = opendir("/proc/self/task");
	int n = 0;

	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

/* In a child: 0 if a context of the parent computes what it should, on several threads */
static int call_in_child(hz_context *ctx, const float *want)
{
	float *const x = numbers(1);
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);

	alarm(60);
	if (hz_hadamard(ctx, &t, &t, NULL) != HZ_OK ||
	    memcmp(x, want, sizeof(float) * LINES * LENGTH) != 0)
		return 1;
	if (tasks() == 1)
		return 2;
	hz_close(ctx);
	return same_as(want, 1, 3) ? 0 : 3;
}

/* A process whose threads have run forks, twice over. */
static void warm_child(int backend)
{
	hz_options o = {.device = HZ_CPU, .threads = 3};
	float *const want = numbers(1), *const x = numbers(1);
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
	hz_context *ctx;
	int status = -1;
	pid_t pid;

	transform(want, 1);
	use_backend(&o, backend);
	if (hz_open(&ctx, &o) != HZ_OK || hz_hadamard(ctx, &t, &t, NULL) != HZ_OK)
		bail("%s", hz_open_errmsg());
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		memcpy(x, want, sizeof(float) * LINES * LENGTH);
		alarm(60);
		if (hz_hadamard(ctx, &t, &t, NULL) != HZ_OK)
			_exit(1);
		pid = fork();
		if (pid == 0)
			_exit(call_in_child(ctx, want));
		waitpid(pid, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
	}
	waitpid(pid, &status, 0);
	is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0,
	       "%s: a child's child of a process with threads has threads", backend_names[backend]);
	hz_close(ctx);
	free(want);
	free(x);
}

#ifdef _OPENMP
/* Whether the system has flags of processes, as Linux has and its emulators may not */
static bool has_flags(void)
{
	FILE *const in = fopen("/proc/self/stat", "r");
	unsigned flags = 0;

	if (in && fscanf(in, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %u", &flags) != 1)
		flags = 0;
	if (in)
		fclose(in);
	return flags != 0;
}

/*
 * A process with threads of OpenMP forks before it calls the library, as one that loads it in the
 * child does: 0 if the child computes what it should.
 */
static int first_call_in_child(void)
{
	int threads = 0, status = -1;
	pid_t pid;

#pragma omp parallel num_threads(3) reduction(+ : threads)
	threads++;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		float *const want = numbers(1), *const x = numbers(1);
		hz_options o = {.device = HZ_CPU, .threads = 3, .threading = HZ_THREADING_OPENMP};
		hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
		hz_context *ctx;
		hz_info info;

		transform(want, 1);
		if (hz_open(&ctx, &o) != HZ_OK)
			_exit(1);
		hz_device_info(ctx, &info);
		_exit(hz_hadamard(ctx, &t, &t, NULL) != HZ_OK ||
		      memcmp(x, want, sizeof(float) * LINES * LENGTH) != 0 ||
		      info.threading != HZ_THREADING_POOL);
	}
	/* It may wait with all signals blocked. */
	for (int i = 0; i < 600 && waitpid(pid, &status, WNOHANG) == 0; i++)
		usleep(100000);
	kill(pid, SIGKILL);
	return threads < 2 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
#endif

/* In a process of its own, which has not called the library */
static void loaded_in_child(const char *program)
{
#ifdef _OPENMP
	int status = -1;
	pid_t pid;

	if (!has_flags()) {
		skip(1, "the system does not say which processes fork() made");
		return;
	}
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		execl(program, program, "forks", (char *)NULL);
		_exit(99);
	}
	waitpid(pid, &status, 0);
	is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0,
	       "a child whose parent has threads of OpenMP calls the library first");
#else
	(void)program;
	skip(1, "no OpenMP");
#endif
}

/* A child of fork() uses its parent's contexts and its own. */
static void child(void)
{
	const hz_options o = options_of(0, HZ_ISA_AUTO, 3);
	unsigned char *got;
	struct scene s;
	int status = -1;
	float *want;
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

	/* Ends a child that waits for threads that it does not have */
	want = numbers(1);
	transform(want, 1);
	ok(same_as(want, 1, 3), "a call of several threads before fork()");
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		_exit(!same_as(want, 1, 3));
	}
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a context opened in a child");
	free(want);
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

/* Loads the library and makes a call with threads; 0 if there is no such library. */
static int load_and_use(const char *path)
{
	int (*open)(hz_context **, const hz_options *);
	int (*hadamard)(hz_context *, const hz_tensor *, hz_tensor *,
			const hz_hadamard_opts *);
	void (*close)(hz_context *);
	const hz_options o = {.device = HZ_CPU, .threads = 3};
	float *const x = numbers(1);
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);
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
	strcpy(slash ? slash : path, "/../../.libs/libhurwitz.so");
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

/* ---- Stacks ---------------------------------------------------------------------------------- */

/*
 * Every call of calls.def, and some with the largest scratch, each in a thread of its own whose
 * stack is filled with a pattern: bytes that differ afterwards have been used. Contexts have one
 * thread, whose share of the work is like any other's, and are opened elsewhere. hurwitz(7) states
 * the limit.
 */
#define STACK_BYTES ((size_t)1 << 20)
#define STACK_MOST ((size_t)96 << 10)
#define PATTERN 0xa5

static unsigned char *stack;

struct task {
	struct scene *s;
	const struct call *call;
	hz_tensor *operand[CALL_OPERANDS];
	int (*other)(hz_context *ctx);
	int status;
};

static void *on_stack(void *arg)
{
	struct task *const t = arg;

	t->status = t->other ? t->other(t->s->ctx) : scene_run(t->s, t->call, t->operand);
	return NULL;
}

/* Bytes of stack that a task used, including the thread's own */
static size_t bytes_of(struct task *t)
{
	pthread_attr_t attr;
	pthread_t thread;
	size_t left = 0;

	memset(stack, PATTERN, STACK_BYTES);
	if (pthread_attr_init(&attr) || pthread_attr_setstack(&attr, stack, STACK_BYTES) ||
	    pthread_create(&thread, &attr, on_stack, t))
		bail("no thread");
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
	while (left < STACK_BYTES && stack[left] == PATTERN)
		left++;
	return STACK_BYTES - left;
}

static int opening(hz_context *unused)
{
	hz_context *ctx;
	const int status = hz_open(&ctx, &(hz_options){.device = HZ_CPU});

	(void)unused;
	hz_close(ctx);
	return status;
}

/* Lattices of 24 dimensions, encoded one block at a time, and of 16, encoded in vector lanes; many
 * values of T, or one */
#define BLOCKS 300

static int codes_of(hz_context *ctx, int dim, int policy, int64_t step)
{
	static float x[2 * BLOCKS * 24], y[2 * BLOCKS * 24];
	static uint32_t codes[4 * BLOCKS];
	static uint8_t ts[BLOCKS];
	const hz_lattice_opts o = {
		.kind = HZ_LATTICE_Z, .dim = dim, .q = 2, .levels = 2, .beta = 1, .policy = policy,
		.group = policy == HZ_LATTICE_GROUP ? 128 / dim * dim : 0,
	};
	const hz_lattice_code_opts pack = {.pack = HZ_LATTICE_LIMBS};
	hz_tensor tx = hz_tensor_1d(x, HZ_F32, HZ_CPU, BLOCKS * dim);
	hz_tensor ty = hz_tensor_1d(y, HZ_F32, HZ_CPU, BLOCKS * dim);
	hz_tensor tc, tt = hz_tensor_1d(ts, HZ_U8, HZ_CPU, BLOCKS);
	hz_lattice_info info;
	hz_lattice *l;
	int status = hz_lattice_open(ctx, &l, &o);

	if (status != HZ_OK)
		return status;
	hz_lattice_get_info(l, &info);
	tc = hz_tensor_2d(codes, HZ_U32, HZ_CPU, BLOCKS, info.limbs);
	if (o.group)
		tt.shape[0] = (BLOCKS * dim + o.group - 1) / o.group;
	tx.stride[0] = ty.stride[0] = step;
	for (int i = 0; i < 2 * BLOCKS * 24; i++)
		x[i] = (float)(i % 17 - 8);
	status = hz_lattice_encode(ctx, l, &tx, &tc, info.scales ? &tt : NULL, NULL, &pack);
	if (status == HZ_OK)
		status = hz_lattice_decode(ctx, l, &tc, info.scales ? &tt : NULL, &ty, &pack);
	hz_lattice_close(l);
	return status;
}

static int rule_group(hz_context *ctx)
{
	return codes_of(ctx, 24, HZ_LATTICE_GROUP, 2);
}

static int lanes_group(hz_context *ctx)
{
	return codes_of(ctx, 16, HZ_LATTICE_GROUP, 2);
}

static int lanes_t(hz_context *ctx)
{
	return codes_of(ctx, 16, HZ_LATTICE_T, 1);
}

/* Eight streams with channels that are not contiguous, and a chain of 64 such layers */
#define TOKENS 6
#define CHANNELS 600
#define STREAMS 8

static float x[TOKENS * STREAMS * CHANNELS * 2], y[TOKENS * STREAMS * CHANNELS * 2];
static float dx[TOKENS * STREAMS * CHANNELS * 2], f[TOKENS * CHANNELS * 2];
static float df[TOKENS * CHANNELS * 2];
static float p[TOKENS * STREAMS], dp[TOKENS * STREAMS];
static float a[TOKENS * STREAMS * STREAMS], da[TOKENS * STREAMS * STREAMS];

static hz_tensor streams_view(float *data)
{
	hz_tensor t = hz_tensor_3d(data, HZ_F32, HZ_CPU, TOKENS, STREAMS, CHANNELS);

	for (int i = 0; i < 3; i++)
		t.stride[i] *= 2;
	return t;
}

static hz_tensor branch_view(float *data)
{
	hz_tensor t = hz_tensor_2d(data, HZ_F32, HZ_CPU, TOKENS, CHANNELS);

	for (int i = 0; i < 2; i++)
		t.stride[i] *= 2;
	return t;
}

static int streams(hz_context *ctx)
{
	const hz_tensor tx = streams_view(x), tf = branch_view(f);
	hz_tensor ty = streams_view(y), tdx = streams_view(dx), tdf = branch_view(df);
	const hz_tensor tp = hz_tensor_2d(p, HZ_F32, HZ_CPU, TOKENS, STREAMS);
	hz_tensor tdp = hz_tensor_2d(dp, HZ_F32, HZ_CPU, TOKENS, STREAMS);
	const hz_tensor ta = hz_tensor_3d(a, HZ_F32, HZ_CPU, TOKENS, STREAMS, STREAMS);
	hz_tensor tda = hz_tensor_3d(da, HZ_F32, HZ_CPU, TOKENS, STREAMS, STREAMS);
	const int status = hz_mhc_post(ctx, &tx, &tf, &tp, &ta, NULL, &ty);

	return status ? status : hz_mhc_post_bwd(ctx, &tx, &tf, &tp, &ta, NULL, &ty, &tdx, &tdf,
						 &tdp, &tda, NULL);
}

static int chain(hz_context *ctx)
{
	static hz_mhc_block block[64];
	const hz_tensor tx = streams_view(x);

	for (int l = 0; l < 64; l++) {
		block[l].p = block[l].q = hz_tensor_2d(p, HZ_F32, HZ_CPU, TOKENS, STREAMS);
		block[l].a = hz_tensor_3d(a, HZ_F32, HZ_CPU, TOKENS, STREAMS, STREAMS);
		block[l].f = branch_view(f);
	}
	block[63].u = branch_view(df);
	block[63].y = streams_view(y);
	return hz_mhc_recompute(ctx, &tx, 64, block);
}

static const struct {
	const char *name;
	int (*run)(hz_context *ctx);
} largest[] = {
	{"open", opening}, {"groups by the rule", rule_group}, {"groups in lanes", lanes_group},
	{"T in lanes", lanes_t}, {"strided streams", streams}, {"a chain of them", chain},
};

/* Clang's name for it */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

static void stacks(int isa)
{
	const hz_options o = {.device = HZ_CPU, .isa = isa, .threads = 1};
	const char *preload = getenv("LD_PRELOAD"), *name = "";
	size_t most = 0;
	struct scene s;
	int failed = 0;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
	skip(2, "stacks are those of an optimized build");
	return;
#endif
	/* Under valgrind memory that was a thread's stack counts as undefined afterwards. */
	if (preload && strstr(preload, "vgpreload")) {
		skip(2, "valgrind lets nobody read a stack that is done with");
		return;
	}
	stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED)
		bail("no memory");
	scene_open(&s, &o);
	for (int i = 0; i < calls_count + (int)(sizeof(largest) / sizeof(*largest)); i++) {
		struct task task = {.s = &s};
		hz_tensor t[CALL_OPERANDS];
		size_t used = 0;

		if (i < calls_count) {
			unsigned char *image;
			const int n = scene_views(&s, &calls[i], t, &used);

			task.call = &calls[i];
			for (int k = 0; k < n; k++)
				task.operand[k] = &t[k];
			image = malloc(used + 1);
			if (!image)
				bail("no memory");
			scene_image(&s, &calls[i], tap_seed(), image);
			scene_write(&s, image, used);
			free(image);
		} else {
			task.other = largest[i - calls_count].run;
		}
		used = bytes_of(&task);
		if (task.status != HZ_OK)
			diag("%s", hz_errmsg(s.ctx));
		failed += task.status != HZ_OK;
		if (used > STACK_MOST)
			diag("%s: %zu bytes", task.call ? task.call->name :
			     largest[i - calls_count].name, used);
		if (used > most) {
			most = used;
			name = task.call ? task.call->name : largest[i - calls_count].name;
		}
	}
	is_int(failed, 0, "%s: all calls", hz_isa_name(isa));
	ok(most <= STACK_MOST, "%s: %zu bytes of stack at most, by %s", hz_isa_name(isa), most,
	   name);
	scene_close(&s);
	munmap(stack, STACK_BYTES);
}

int main(int argc, char **argv)
{
	unsetenv("HURWITZ_DEVICE");
	unsetenv("HURWITZ_THREADS");
#ifdef _OPENMP
	if (argc > 1)
		return first_call_in_child();
#endif
	(void)argc;
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
	for (int isa = HZ_ISA_AUTO; (isa = isa_above(isa)) != HZ_ISA_AUTO;) {
		level(isa);
		stacks(isa);
	}
	many_threads();
	for (int b = 0; b < BACKENDS; b++)
		changed_threads(b);
	modes();
	for (int b = 0; b < BACKENDS; b += 2)
		warm_child(b);
	loaded_in_child(argv[0]);
	child();
	unloading();
	return done_testing();
}
