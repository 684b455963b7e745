/*
 * bench_threads.c - hurwitz bench --busy: what threads cost on cores that others keep busy
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Transforms in place of about 20 us, 200 us and 2 ms, as successive calls by one thread and by
 * several, while child processes spin. Each figure is the mean of all calls of a run, in which one
 * thread and several take turns, so that other load meets both. The ratio of all runs together is
 * reported, and that of the worst run. One thread against one thread comes first: on busy cores a
 * run of short calls meets few time slices of other processes, and its ratio is a matter of chance.
 * Runs that would take longer than RUN_SECONDS, as those of OpenMP on busy cores, have fewer calls.
 * Fan-out is the time of a job that does nothing in any of its shares.
 */
#include <config.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/core/cpu.h"
#include "tools/core/bench.h"

#define LENGTH 256		/* of a row */
#define RUNS 5
#define CALLS 2000
#define TURNS 20		/* of one thread and of several, in a run */
#define RUN_SECONDS 4
#define BUSY_MOST 64

static const double targets[] = {20e-6, 200e-6, 2e-3};

struct spinners {
	pid_t pid[BUSY_MOST];
	int count;
};

static _Noreturn void spin_as_child_of(pid_t parent)
{
	for (unsigned i = 0;; i++) {
		if (i % 65536 == 0 && getppid() != parent)
			_exit(0);
	}
}

static int spin(struct spinners *s, int count)
{
	const pid_t parent = getpid();

	for (s->count = 0; s->count < count; s->count++) {
		const pid_t pid = fork();

		if (pid < 0)
			return complain(EXIT_FAILURE, "bench: no process can be started");
		if (pid == 0)
			spin_as_child_of(parent);
		s->pid[s->count] = pid;
	}
	return 0;
}

static void stop(struct spinners *s)
{
	while (s->count > 0) {
		kill(s->pid[--s->count], SIGKILL);
		waitpid(s->pid[s->count], NULL, 0);
	}
}

/* Mean seconds of successive calls; negative on an error */
static double mean(hz_context *ctx, float *x, int64_t rows, int calls)
{
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, rows, LENGTH);
	const double begin = now();

	for (int i = 0; i < calls; i++) {
		if (hz_hadamard(ctx, &t, &t, NULL) != HZ_OK)
			return -1;
	}
	return (now() - begin) / calls;
}

static void nothing(void *job, int thread, int64_t begin, int64_t end)
{
	(void)job, (void)thread, (void)begin, (void)end;
}

static double fan_out(hz_context *ctx, int threads, int calls)
{
	const double begin = now();

	for (int i = 0; i < calls; i++)
		hzi_parallel(ctx, threads, nothing, NULL, threads);
	return (now() - begin) / calls;
}

/* At most `calls` calls, in TURNS equal parts, that take about RUN_SECONDS */
static int calls_of_run(double seconds, int calls)
{
	const double most = RUN_SECONDS / seconds;

	return most >= calls ? calls : most < TURNS ? TURNS : (int)most / TURNS * TURNS;
}

/* Sums of mean seconds of a call over runs, by one thread and by several, and the worst ratio */
struct ratio {
	double one, several, worst;
};

static int one_run(hz_context *a, hz_context *b, float *x, int64_t rows, int calls,
		   struct ratio *r)
{
	double by_one = 0, by_all = 0;

	for (int k = 0; k < TURNS; k++) {
		const double s1 = mean(a, x, rows, calls / TURNS);
		const double s2 = mean(b, x, rows, calls / TURNS);

		if (s1 < 0 || s2 < 0)
			return complain(EXIT_FAILURE, "bench: %s", hz_errmsg(s1 < 0 ? a : b));
		by_one += s1 / TURNS;
		by_all += s2 / TURNS;
	}
	r->one += by_one;
	r->several += by_all;
	if (by_all / by_one > r->worst)
		r->worst = by_all / by_one;
	return 0;
}

/* Prints a row: the means of all runs and their ratio. */
static int one_row(hz_context *a, hz_context *b, const char *name, float *x, int64_t rows, bool quick)
{
	const int most = quick ? CALLS / 10 : CALLS, runs = quick ? 2 : RUNS, few = most / 100;
	const double s1 = mean(a, x, rows, few), s2 = mean(b, x, rows, few);
	const int calls = s1 < 0 || s2 < 0 ? most : calls_of_run(s1 + s2, most);
	struct ratio r = {0};

	for (int k = 0; k < runs; k++)
		HZ_CHECK(one_run(a, b, x, rows, calls, &r));
	printf("  %-8s %6lld x %d %8d %10.1f us %10.1f us %8.2f %8.2f\n", name, (long long)rows,
	       LENGTH, calls * runs, r.one / runs * 1e6, r.several / runs * 1e6, r.several / r.one,
	       r.worst);
	fflush(stdout);
	return 0;
}

static int one_backend(const struct settings *set, int threads, int threading, float *x,
		       const int64_t *rows)
{
	const int calls = set->quick ? CALLS / 10 : CALLS;
	const hz_options one = {.device = HZ_CPU, .threads = 1};
	const hz_options several = {.device = HZ_CPU, .threads = threads, .threading = threading};
	hz_context *a = NULL, *b = NULL;
	const char *name = "1 thread";
	hz_info info;
	int status = hz_open(&a, &one);

	if (!status)
		status = hz_open(&b, &several);
	if (status) {
		hz_close(a);
		return complain(exit_status(status), "%s", hz_open_errmsg());
	}
	hz_device_info(b, &info);
	if (threads > 1)
		name = info.threading_name;
	for (size_t i = 0; i < sizeof(targets) / sizeof(*targets) && !status; i++)
		status = one_row(a, b, name, x, rows[i], set->quick);
	b->grain_bits = 0;		/* with the workers in any case */
	if (!status && threads > 1)
		printf("  %-8s fan-out %37.2f us\n", name,
		       fan_out(b, threads, calls_of_run(fan_out(b, threads, calls / 100), calls)) *
		       1e6);
	hz_close(a);
	hz_close(b);
	return status;
}

/* The rows with which one thread takes about the target, but so many that several threads run. */
static int calibrate(float **x, int64_t *rows)
{
	const int64_t sample = 1024, least = 256;
	const size_t count = sizeof(targets) / sizeof(*targets);
	hz_context *ctx;
	double seconds = 1;
	int status = open_context(&ctx, HZ_CPU, 1, HZ_ISA_AUTO);

	if (status)
		return status;
	*x = calloc((size_t)sample * LENGTH, sizeof(**x));
	for (int i = 0; i < 20 && *x; i++) {
		const double t = mean(ctx, *x, sample, 1);

		seconds = t > 0 && t < seconds ? t : seconds;
	}
	hz_close(ctx);
	for (size_t i = 0; i < count; i++) {
		rows[i] = (int64_t)(targets[i] / seconds * (double)sample);
		rows[i] = rows[i] < least ? least : rows[i];
	}
	free(*x);
	*x = calloc((size_t)rows[count - 1] * LENGTH, sizeof(**x));
	return *x ? 0 : complain(EXIT_FAILURE, "bench: no memory");
}

int bench_busy(const struct settings *set, int busy)
{
	struct spinners s = {.count = 0};
	int64_t rows[sizeof(targets) / sizeof(*targets)];
	float *x = NULL;
	int status = calibrate(&x, rows);

	if (!status)
		status = spin(&s, busy);
	if (!status)
		printf("Transforms of rows, %d busy process%s: mean time of a call\n"
		       "  %-8s %15s %8s %13s %10d thr. %8s %8s\n", busy, busy == 1 ? "" : "es",
		       "threads", "shape", "calls", "1 thread", set->threads, "ratio", "worst");
	if (!status)
		status = one_backend(set, 1, HZ_THREADING_POOL, x, rows);
	if (!status)
		status = one_backend(set, set->threads, HZ_THREADING_POOL, x, rows);
#ifdef _OPENMP
	if (!status)
		status = one_backend(set, set->threads, HZ_THREADING_OPENMP, x, rows);
#endif
	stop(&s);
	free(x);
	return status;
}
