/*
 * threads.c - every call from 8 threads at once, each with a context of its own
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The threads begin at different rows and have contexts of 1 to 3 threads of every level; results
 * must have the bits of one thread alone, whatever else runs beside it. This is the program for a
 * thread sanitizer. On a GPU all contexts are on the same device.
 */
#include <config.h>

#include <pthread.h>

#include "calls.h"
#include "tap.h"

#define THREADS 8

/* What each row makes of its image, in a context of one thread */
static struct {
	unsigned char *image, *want;
	size_t used;
} row[128];

static hz_options options_of(int isa, int threads)
{
	return (hz_options){.device = tap_cuda() ? HZ_CUDA : HZ_CPU, .isa = isa,
			    .threads = threads};
}

/* Makes a call with the row's image and returns whether memory is then as wanted. */
static int run(struct scene *s, int i, unsigned char *got)
{
	const hz_tensor *operand[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];
	size_t used;
	const int n = scene_views(s, &calls[i], t, &used);

	for (int k = 0; k < n; k++)
		operand[k] = &t[k];
	scene_write(s, row[i].image, used);
	if (calls[i].run(s, operand) != HZ_OK)
		return 0;
	scene_read(s, got, used);
	return !row[i].want || memcmp(got, row[i].want, used) == 0;
}

struct worker {
	pthread_t thread;
	int number, isa, failed;
};

static void *work(void *arg)
{
	struct worker *const w = arg;
	const hz_options o = options_of(w->isa, 1 + w->number % 3);
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
	const hz_options o = options_of(isa, 1);
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
	for (int i = 0; i < calls_count; i++) {
		free(row[i].image);
		free(row[i].want);
	}
}

int main(void)
{
	unsetenv("HURWITZ_DEVICE");
	unsetenv("HURWITZ_THREADS");
	if (calls_count > (int)(sizeof(row) / sizeof(*row)))
		bail("%d rows", calls_count);
	tap_seed();
	if (tap_cuda()) {
		level(HZ_ISA_AUTO);
		return done_testing();
	}
	for (int isa = HZ_ISA_C; isa <= HZ_ISA_DOTPROD; isa++) {
		const hz_options o = options_of(isa, 1);
		hz_context *ctx;
		hz_info info;

		if (hz_open(&ctx, &o) != HZ_OK)
			continue;
		hz_device_info(ctx, &info);
		hz_close(ctx);
		if (info.isa == isa)
			level(isa);
	}
	return done_testing();
}
