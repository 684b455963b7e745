/*
 * soak.c - all calls in random order on several threads or streams, for as long as is asked for
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each thread has a context of its own; on GPUs they are used in turn, and every context has a stream.
 * A case is a call of calls.def with the sizes there, or with that many times the rows. All memory
 * that the case can reach must have the bits of the first time that any thread ran it. Without
 * HZ_TEST_SOAK, the number of seconds, each thread runs every case once.
 */
#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "t/core/calls.h"
#include "t/core/tap.h"

#if HZ_HAVE_CUDA
#include "gpu/runtime/cuda.h"
#endif

#define THREADS 3
#define ARENA_BYTES ((size_t)16 << 20)
#define REPEATS 8	/* of a call on a GPU before memory is read */

static const int64_t times[] = {1, 16, 250};
enum { TIMES = sizeof(times) / sizeof(*times), CASES_MAX = 600 };

/* One call with one number of rows */
static struct test_case {
	const struct call *call;
	int64_t times;
	size_t bytes;		/* of the arena */
	unsigned char *image;
	_Atomic uint64_t want;	/* hash of the memory afterwards; 0: not known yet */
} cases[CASES_MAX];
static int cases_count;

static int gpus;	/* number of GPUs; 0: the CPU */
static double seconds;
static atomic_int failed;

struct worker {
	pthread_t thread;
	int number;
	long runs;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A hash of bytes, whose number is a multiple of 8; never 0 */
static uint64_t hash(const unsigned char *p, size_t bytes)
{
	uint64_t h = 0x9e3779b97f4a7c15;

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word;

		memcpy(&word, p + i, 8);
		h = (h ^ word) * 0xff51afd7ed558ccd;
		h ^= h >> 32;
	}
	return h ? h : 1;
}

static void make_cases(struct scene *s)
{
	for (int i = 0; i < calls_count; i++) {
		for (int k = 0; k < TIMES && (k == 0 || call_rows(&calls[i]) > 0); k++) {
			struct test_case *const c = &cases[cases_count];

			s->times = times[k];
			c->bytes = scene_bytes(s, &calls[i]);
			if (!call_writes(&calls[i]) || c->bytes > ARENA_BYTES)
				continue;
			if (cases_count == CASES_MAX)
				bail("more than %d cases", CASES_MAX);
			c->call = &calls[i];
			c->times = times[k];
			c->image = malloc(c->bytes);
			if (!c->image)
				bail("no memory");
			scene_image(s, c->call, tap_seed() + (uint64_t)cases_count, c->image);
			cases_count++;
		}
	}
	s->times = 0;
}

/* The workspace of all cases; calls on a GPU do not allocate. */
static void reserve(struct scene *s)
{
	size_t most = 0;

	s->record = true;
	for (int i = 0; i < cases_count; i++) {
		s->times = cases[i].times;
		if (scene_call(s, cases[i].call) != HZ_OK)
			bail("%s: %s", cases[i].call->name, hz_errmsg(s->ctx));
		most = s->bytes > most ? s->bytes : most;
	}
	s->record = false;
	if (hz_reserve(s->ctx, most) != HZ_OK)
		bail("reserve: %s", hz_errmsg(s->ctx));
}

static void run(struct scene *s, struct test_case *c, unsigned char *got)
{
	uint64_t want = 0, h;

	s->times = c->times;
	for (int i = 0; i < (gpus ? REPEATS : 1); i++) {
		scene_write(s, c->image, c->bytes);
		if (scene_call(s, c->call) != HZ_OK)
			bail("%s: %s", c->call->name, hz_errmsg(s->ctx));
	}
	scene_read(s, got, c->bytes);
	h = hash(got, c->bytes);
	if (!atomic_compare_exchange_strong(&c->want, &want, h) && want != h &&
	    atomic_fetch_add(&failed, 1) < 10)
		diag("%s of %lld times the rows: other bits than the first time", c->call->name,
		     (long long)c->times);
}

/* Runs all cases in a random order again and again. */
static void *work(void *arg)
{
	struct worker *const w = arg;
	const hz_options o = {.device = gpus ? HZ_CUDA + w->number % gpus : HZ_CPU,
			      .threads = 1 + w->number % 2};
	const double end = now() + seconds;
	uint64_t seed = tap_seed() + 1000 + (uint64_t)w->number;
	unsigned char *const got = malloc(ARENA_BYTES);
	int order[CASES_MAX];
	struct scene s;

	if (!got)
		bail("no memory");
	scene_open_sized(&s, &o, ARENA_BYTES);
#if HZ_HAVE_CUDA
	void *stream = NULL;

	if (gpus && (hzi_cuda_stream_new(s.ctx, &stream) != HZ_OK ||
		     hz_set_stream(s.ctx, stream) != HZ_OK))
		bail("a stream: %s", hz_errmsg(s.ctx));
#endif
	reserve(&s);
	for (int i = 0; i < cases_count; i++)
		order[i] = i;
	do {
		for (int i = cases_count - 1; i >= 0; i--) {
			const int j = (int)rnd_below(&seed, i + 1), k = order[j];

			order[j] = order[i];
			order[i] = k;
			if (w->runs >= cases_count && now() >= end)
				break;
			run(&s, &cases[k], got);
			w->runs++;
		}
	} while (now() < end);
#if HZ_HAVE_CUDA
	if (gpus) {
		hz_set_stream(s.ctx, NULL);
		hzi_cuda_stream_free(s.ctx, stream);
	}
#endif
	scene_close(&s);
	free(got);
	return NULL;
}

int main(void)
{
	const char *const asked = getenv("HZ_TEST_SOAK");
	const hz_options o = {.device = tap_cuda() ? HZ_CUDA : HZ_CPU};
	struct worker workers[THREADS] = {{0}};
	struct scene s;
	hz_info info;
	long runs = 0;

	unsetenv("HURWITZ_DEVICE");
	unsetenv("HURWITZ_THREADS");
	seconds = asked ? atof(asked) : 0;
	scene_open_sized(&s, &o, ARENA_BYTES);
	hz_device_info(s.ctx, &info);
	gpus = tap_cuda() ? info.cuda_devices : 0;
	make_cases(&s);
	scene_close(&s);
	for (int i = 0; i < THREADS; i++) {
		workers[i].number = i;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			bail("no thread");
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		runs += workers[i].runs;
	}
	is_int(failed, 0, "%d cases, %ld runs on %d threads, %d GPUs", cases_count, runs, THREADS,
	       gpus);
	for (int i = 0; i < cases_count; i++)
		free(cases[i].image);
	return done_testing();
}
