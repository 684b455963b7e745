/*
 * pool.c - threads that cannot be started, their signals, busy cores, many contexts, allocations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The program has a pthread_create() of its own, which the library and OpenMP's runtime call, too.
 */
#include <config.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <pthread.h>
#ifdef HAVE_SCHED_GETAFFINITY
#include <sched.h>
#endif
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/core/pool.h"
#include "t/core/calls.h"
#include "t/core/tap.h"

#define LINES 2048
#define LENGTH 256

#ifdef _OPENMP
enum { BACKENDS = 2 };
#else
enum { BACKENDS = 1 };
#endif
static const int backends[] = {HZ_THREADING_POOL, HZ_THREADING_OPENMP};
static const char *const backend_names[] = {"pool", "openmp"};

/* ---- Threads that cannot be started ---------------------------------------------------------- */

static atomic_int live, most = 1 << 20;	/* threads at the same time, and how many there may be */

struct start {
	void *(*run)(void *arg);
	void *arg;
};

static void *run_and_count(void *arg)
{
	const struct start s = *(struct start *)arg;
	void *result;

	free(arg);
	result = s.run(s.arg);
	atomic_fetch_sub(&live, 1);
	return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	void *const symbol = dlsym(RTLD_NEXT, "pthread_create");
	struct start *const s = malloc(sizeof(*s));
	int status = EAGAIN;

	memcpy(&real, &symbol, sizeof(real));
	if (s && atomic_fetch_add(&live, 1) < atomic_load(&most)) {
		*s = (struct start){run, arg};
		status = real(thread, attr, run_and_count, s);
	}
	if (status) {
		atomic_fetch_sub(&live, 1);
		free(s);
	}
	return status;
}

static float *numbers(void)
{
	float *const x = malloc(sizeof(float) * LINES * LENGTH);

	if (!x)
		bail("no memory");
	for (int i = 0; i < LINES * LENGTH; i++)
		x[i] = (float)(i % 1013 - 500);
	return x;
}

static hz_context *open_with(int threads, int threading)
{
	const hz_options o = {.device = HZ_CPU, .threads = threads, .threading = threading};
	hz_context *ctx;

	if (hz_open(&ctx, &o) != HZ_OK)
		bail("%s", hz_open_errmsg());
	return ctx;
}

static int transform(hz_context *ctx, float *x)
{
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, LINES, LENGTH);

	return hz_hadamard(ctx, &t, &t, NULL) == HZ_OK;
}

/* Whether a context of 4 threads computes what one thread does */
static int works(int threading, const float *want)
{
	float *const x = numbers();
	hz_context *const ctx = open_with(4, threading);
	int good = transform(ctx, x) && memcmp(x, want, sizeof(float) * LINES * LENGTH) == 0;

	hz_close(ctx);
	free(x);
	return good;
}

/* In a process of its own, since OpenMP keeps the threads that it once has */
static int with_few(int b, int allowed)
{
	float *const want = numbers();
	hz_context *const ctx = open_with(1, HZ_THREADING_POOL);
	int good = transform(ctx, want);

	hz_close(ctx);
	alarm(60);
	atomic_store(&most, allowed);
	good = good && works(backends[b], want) && works(backends[b], want);
	free(want);
	return !good;
}

static void refused(const char *program)
{
	for (int b = 0; b < BACKENDS; b++) {
		for (int allowed = 0; allowed < 4; allowed++) {
			int status = -1;
			pid_t pid;

			fflush(NULL);
			pid = fork();
			if (pid == 0) {
				char text[2][12];

				snprintf(text[0], sizeof(text[0]), "%d", b);
				snprintf(text[1], sizeof(text[1]), "%d", allowed);
				execl(program, program, text[0], text[1], (char *)NULL);
				_exit(99);
			}
			waitpid(pid, &status, 0);
			is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0,
			       "%s: %d threads can be started, 3 are wanted", backend_names[b],
			       allowed);
		}
	}
}

/* ---- What threads there are ------------------------------------------------------------------ */

/* Threads of this process; and of those other than the first, how many could get SIGUSR1 or 2 */
static int tasks(int *open_to_signals)
{
	DIR *const d = opendir("/proc/self/task");
	int n = 0, open = 0;

	for (struct dirent *e; d && (e = readdir(d));) {
		char path[300], line[200];
		unsigned long long mask = 0;
		FILE *in;

		if (e->d_name[0] == '.')
			continue;
		n++;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
		in = fopen(path, "r");
		while (in && fgets(line, sizeof(line), in)) {
			if (sscanf(line, "SigBlk: %llx", &mask) == 1)
				open += atoi(e->d_name) != getpid() &&
					(~mask & (1ull << (SIGUSR1 - 1) | 1ull << (SIGUSR2 - 1)));
		}
		if (in)
			fclose(in);
	}
	if (d)
		closedir(d);
	if (open_to_signals)
		*open_to_signals = open;
	return n;
}

/* The load averages of this program: libgomp asks for them if OMP_DYNAMIC is true. */
int getloadavg(double *load, int n)
{
	for (int i = 0; i < n; i++)
		load[i] = 1e6;
	return n;
}

static void signals(int b)
{
	float *const x = numbers();
	hz_context *const ctx = open_with(3, backends[b]);
	sigset_t mask;
	int n, open;

#ifdef _OPENMP
	omp_set_dynamic(1);
	transform(ctx, x);	/* by a team of one, where OpenMP looks at the load */
	omp_set_dynamic(0);
#endif
	transform(ctx, x);
	n = tasks(&open);
	if (n == 0) {
		skip(2, "no /proc");
	} else {
		ok(n > 1, "%s: %d threads after a call", backend_names[b], n);
		is_int(open, 0, "%s: all but the first block signals", backend_names[b]);
	}
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	ok(!sigismember(&mask, SIGUSR1), "%s: the caller does not", backend_names[b]);
	hz_close(ctx);
	free(x);
}

static void many_contexts(void)
{
	enum { CONTEXTS = 1000 };
	static hz_context *ctx[CONTEXTS];
	float *const x = numbers();
	const int before = tasks(NULL);
	int bad = 0;

	for (int i = 0; i < CONTEXTS; i++) {
		ctx[i] = open_with(3, HZ_THREADING_POOL);
		if (i % 10 == 0)
			bad += !transform(ctx[i], x);
	}
	is_int(bad, 0, "%d contexts, calls on 100", CONTEXTS);
	ok(tasks(NULL) <= before + 2, "2 threads serve them: %d, then %d", before, tasks(NULL));
	for (int i = 0; i < CONTEXTS; i++)
		hz_close(ctx[i]);
	is_int(tasks(NULL), before, "which the last close ends");
	free(x);
}

/* Threads of this process that may run on that CPU alone */
static int tasks_on(int cpu)
{
	DIR *const d = opendir("/proc/self/task");
	int n = 0;

	for (struct dirent *e; d && (e = readdir(d));) {
		char path[300], line[2000], list[1000];
		FILE *in;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
		in = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (in && fgets(line, sizeof(line), in)) {
			if (sscanf(line, "Cpus_allowed_list: %999s", list) == 1)
				n += !strpbrk(list, ",-") && atoi(list) == cpu;
		}
		if (in)
			fclose(in);
	}
	if (d)
		closedir(d);
	return n;
}

/* A worker moves when it begins to run. */
static int tasks_settle(int cpu, int want)
{
	for (int i = 0; i < 10000 && tasks_on(cpu) != want; i++)
		usleep(1000);
	return tasks_on(cpu);
}

/* Workers run where the thread that opened the context may, whoever starts them. */
static void pinned(void)
{
#ifdef HAVE_SCHED_GETAFFINITY
	float *const x = numbers();
	hz_context *here, *anywhere;
	cpu_set_t all, one;
	int cpu = 0, bad;

	if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < 2) {
		skip(3, "one CPU");
		free(x);
		return;
	}
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	anywhere = open_with(2, HZ_THREADING_POOL);
	sched_setaffinity(0, sizeof(one), &one);
	here = open_with(2, HZ_THREADING_POOL);
	bad = !transform(anywhere, x);
	sched_setaffinity(0, sizeof(all), &all);
	is_int(tasks_settle(cpu, 0), 0, "a context opened on all CPUs has a worker on all");
	bad += !transform(here, x);
	is_int(tasks_settle(cpu, 1), 1, "one that was opened on one CPU has a worker there");
	is_int(bad, 0, "both compute");
	hz_close(here);
	hz_close(anywhere);
	free(x);
#else
	skip(3, "no affinity");
#endif
}

/* ---- Busy cores ------------------------------------------------------------------------------ */

/*
 * Calls on a made-up clock: one thread takes `one` us for each, workers make it `gain` us less, but
 * every stride-th call waits `stall` us for a worker. Returns the time of all in us; *alone: calls
 * without workers.
 */
static int64_t made_up(int calls, int64_t one, int64_t gain, int stride, int64_t stall, int *alone)
{
	int64_t now = 0, until = 0, credit = 0;

	*alone = 0;
	for (int i = 0; i < calls; i++) {
		const int64_t took = one - gain + (i % stride == stride - 1 ? stall : 0);

		if (now < until) {
			now += one * 1000;
			++*alone;
			continue;
		}
		now += took * 1000;
		until = now + hzi_pool_account(&credit, .5, one * 500, took * 1000);
	}
	return now / 1000;
}

static void accounts(void)
{
	static const struct {
		const char *what;
		int calls;
		int64_t one, gain;
		int stride;
		int64_t stall;
		int alone;		/* -1: most calls; else how many at most */
	} rows[] = {
		{"idle cores", 10000, 20, 9, 1 << 30, 0, 0},
		{"an interruption now and then", 10000, 20, 9, 1000, 8000, 0},
		{"a stall in each tenth call", 100000, 20, 9, 10, 4000, -1},
		{"a stall in each hundredth call", 100000, 20, 9, 100, 4000, -1},
		{"a stall in each call", 100000, 20, 9, 1, 4000, -1},
		{"long stalls", 100000, 20, 9, 200, 80000, -1},
		{"calls of 200 us", 10000, 200, 90, 10, 4000, -1},
		{"workers that only cost", 10000, 20, -5, 1 << 30, 0, -1},
		{"calls of 2 ms", 1000, 2000, 900, 1, 4000, 0},
	};
	int64_t credit = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		int alone;
		const int64_t all = made_up(rows[i].calls, rows[i].one, rows[i].gain,
					    rows[i].stride, rows[i].stall, &alone);
		const int64_t most = rows[i].calls * rows[i].one * 21 / 20 + 10000 + rows[i].stall;

		if (rows[i].alone < 0)
			ok(all <= most && alone > rows[i].calls / 2,
			   "%s: %lld us, at most %lld; %d calls alone", rows[i].what,
			   (long long)all, (long long)most, alone);
		else
			is_int(alone, rows[i].alone, "%s: calls alone", rows[i].what);
	}
	is_int(hzi_pool_account(&credit, .5, 1000, INT64_C(3600000000000)), 2000000000,
	       "stopped for an hour in a call: alone for two seconds");
	is_int(hzi_pool_account(&credit, .5, INT64_C(3600000000000), INT64_C(3600000000000)), 0,
	       "or in its own share: not at all");
	is_int(credit, 10000000, "nor is there more than 10 ms of credit");
	is_int(hzi_pool_account(&credit, 1, 1000, 3000), 0, "which pays for a loss");
	is_int(credit, 9998000, "of 2 us");
}

static atomic_int shares, units, slow;	/* that ran; ms that a worker's next share takes */

static void count_share(void *first_ms, int thread, int64_t begin, int64_t end)
{
	const int ms = thread > 0 ? atomic_exchange(&slow, 0) : *(const int *)first_ms;

	atomic_fetch_add(&shares, 1);
	atomic_fetch_add(&units, (int)(end - begin));
	if (ms)
		usleep((useconds_t)ms * 1000);
}

/* Shares of a call by four threads, whose first takes so long; 0 if they are not all units */
static int shares_of_call(hz_context *ctx, int first_ms)
{
	atomic_store(&shares, 0);
	atomic_store(&units, 0);
	hzi_parallel(ctx, 4, count_share, &first_ms, 10);
	return atomic_load(&units) == 10 ? atomic_load(&shares) : 0;
}

/* Makes calls until a worker has run a share of 100 ms; otherwise the caller takes it back. */
static void stall(hz_context *ctx)
{
	const int grain_bits = ctx->grain_bits;

	ctx->grain_bits = 0;
	atomic_store(&slow, 100);
	for (int i = 0; i < 10000 && atomic_load(&slow); i++) {
		usleep(1000);
		shares_of_call(ctx, 0);
	}
	ctx->grain_bits = grain_bits;
}

/* After a share that took much longer than its caller's, short calls do without workers. */
static void stalled(void)
{
	hz_context *const ctx = open_with(4, HZ_THREADING_POOL);
	const int grain_bits = ctx->grain_bits;
	int status = -1, tries = 0;
	pid_t pid;

	/* A call whose caller is interrupted counts as long. */
	do {
		if (tries % 10 == 0)
			stall(ctx);
	} while (shares_of_call(ctx, 0) != 2 && ++tries < 1000);
	ok(tries < 1000, "a short call after a stall: one of 4 shares, then the rest as one");
	is_int(shares_of_call(ctx, 5), 4, "a long one: 4 shares");
	ctx->grain_bits = 0;
	is_int(shares_of_call(ctx, 0), 4, "one that is to use workers in any case: 4 shares");
	ctx->grain_bits = grain_bits;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		_exit(shares_of_call(ctx, 0));
	}
	waitpid(pid, &status, 0);
	is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 4, "4 in a child of fork()");
	hz_close(ctx);
}

/* ---- Contexts in concurrent threads ---------------------------------------------------------- */

#define CALLERS 6

static const float *wanted;

static void *caller(void *arg)
{
	int *const bad = arg;

	for (int i = 0; i < 20; i++)
		*bad += !works(HZ_THREADING_POOL, wanted);
	return NULL;
}

static void concurrent(void)
{
	float *const want = numbers();
	hz_context *const ctx = open_with(1, HZ_THREADING_POOL);
	pthread_t thread[CALLERS];
	int bad[CALLERS] = {0}, all = 0;

	transform(ctx, want);
	hz_close(ctx);
	wanted = want;
	for (int i = 0; i < CALLERS; i++) {
		if (pthread_create(&thread[i], NULL, caller, &bad[i]))
			bail("no thread");
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(thread[i], NULL);
		all += bad[i];
	}
	is_int(all, 0, "%d threads open, call and close", CALLERS);
	free(want);
}

/* ---- Allocations ----------------------------------------------------------------------------- */

static atomic_long allocations;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
	(void)user;
	atomic_fetch_add(&allocations, 1);
	return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void count_free(void *user, void *p, size_t bytes)
{
	(void)user;
	(void)bytes;
	free(p);
}

/* Of t/core/malloc.so, where the program runs with it: counts those of the C library, too. */
static long (*malloc_count)(void);

static long allocated(void)
{
	return atomic_load(&allocations) + (malloc_count ? malloc_count() : 0);
}

/* Number of calls of calls.def that fail, or allocate when they are made again */
static int second_calls(void)
{
	static const hz_allocator allocator = {.alloc = count_alloc, .free = count_free};
	const hz_options o = {.device = HZ_CPU, .threads = 3, .threading = HZ_THREADING_POOL,
			      .allocator = &allocator};
	unsigned char *image;
	struct scene s;
	int bad = 0;

	scene_open(&s, &o);
	s.ctx->grain_bits = 0;
	image = malloc(s.arena_bytes);
	if (!image)
		bail("no memory");
	for (int i = 0; i < calls_count; i++) {
		const char *const name = calls[i].name;
		long before, more;

		/* What they make is memory. */
		if (strcmp(name, "alloc") == 0 || strcmp(name, "lattice_design") == 0 ||
		    strcmp(name, "lattice_open") == 0 || strcmp(name, "vlut_open") == 0 ||
		    strcmp(name, "linear_open") == 0 || strcmp(name, "linear_load") == 0)
			continue;

		scene_fill(&s, &calls[i], image);
		bad += scene_call(&s, &calls[i]) != HZ_OK;
		scene_fill(&s, &calls[i], image);
		before = allocated();
		bad += scene_call(&s, &calls[i]) != HZ_OK;
		more = allocated() - before;
		if (more)
			diag("%s makes %ld allocations", name, more);
		bad += more != 0;
	}
	free(image);
	scene_close(&s);
	return bad;
}

/* As a program of its own with malloc() counted; 1 if it cannot be */
static int second_calls_counted(void)
{
	void *const symbol = dlsym(RTLD_DEFAULT, "malloc_count");

	if (!symbol)
		return 1;
	memcpy(&malloc_count, &symbol, sizeof(malloc_count));
	return second_calls() ? 2 : 0;
}

static void mallocs(const char *program)
{
	char path[4096];
	const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 16);
	char *slash;
	int status = -1;
	pid_t pid;

	path[n < 0 ? 0 : n] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash ? slash : path, "/malloc.so");
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		setenv("LD_PRELOAD", path, 1);
		execl(program, program, "counted", (char *)NULL);
		_exit(1);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
		skip(1, "calls of malloc() cannot be counted here");
	else
		is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0,
		       "nor does it call malloc()");
}

int main(int argc, char **argv)
{
	unsetenv("HURWITZ_DEVICE");
	unsetenv("HURWITZ_THREADS");
	if (argc == 3)
		return with_few(atoi(argv[1]), atoi(argv[2]));
	if (argc == 2)
		return second_calls_counted();
	if (!dlsym(RTLD_NEXT, "pthread_create"))
		skip_all("a static program has no pthread_create() but this one");
	refused(argv[0]);
	signals(0);
	many_contexts();
	pinned();
	accounts();
	stalled();
	concurrent();
	is_int(second_calls(), 0, "the second of two equal calls allocates nothing");
	mallocs(argv[0]);
	for (int b = 1; b < BACKENDS; b++)
		signals(b);
	return done_testing();
}
