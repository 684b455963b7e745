/*
 * graphs.c - every call captured into a CUDA graph and replayed, and made on two streams at once
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * On the stand-in a replay must launch the same kernels with the same parameters as the call
 * itself. With HZ_TEST_DEVICE=cuda memory must have the same bits, outside outputs too.
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

#include "gpu/runtime/cuda.h"

#define REPLAYS 3

static const struct fakecuda *fake;	/* NULL on a real GPU */
static unsigned char *image, *want, *got;

static void open_scene(struct scene *s, void **stream)
{
	const hz_options o = {.device = HZ_CUDA, .threads = 1};

	scene_open(s, &o);
	if (hzi_cuda_stream_new(s->ctx, stream) != HZ_OK ||
	    hz_set_stream(s->ctx, *stream) != HZ_OK || hz_prepare(s->ctx) != HZ_OK)
		bail("a stream: %s", hz_errmsg(s->ctx));
}

static void close_scene(struct scene *s, void *stream)
{
	hz_set_stream(s->ctx, NULL);
	hzi_cuda_stream_free(s->ctx, stream);
	scene_close(s);
}

/* Stores in want what the call itself computes. */
static size_t directly(struct scene *s, const struct call *c)
{
	const size_t used = scene_fill(s, c, image);

	if (scene_call(s, c) != HZ_OK)
		bail("%s: %s", c->name, hz_errmsg(s->ctx));
	scene_read(s, want, used);
	return used;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Whether launches repeat `distance` launches later with the same parameters */
static bool same_launches(const struct call *c, long from, long count, long distance)
{
	for (long i = from; i < from + count; i++) {
		const struct fakecuda_launch *const a = fake->launch(i);
		const struct fakecuda_launch *const b = fake->launch(i + distance);

		if (!b || !b->replayed || strcmp(a->kernel, b->kernel) != 0 ||
		    memcmp(a->grid, b->grid, sizeof(a->grid)) != 0 ||
		    a->params_bytes != b->params_bytes ||
		    memcmp(a->params, b->params, a->params_bytes) != 0) {
			diag("%s: launch %ld is another one in the graph", c->name, i - from);
			return false;
		}
	}
	return true;
}

static void replay(struct scene *s, const struct call *c)
{
	long from = 0, count = 0;
	void *graph = NULL;
	size_t used;
	bool good;

	if (fake) {
		fake->reset();
		from = fake->launches();
	}
	used = directly(s, c);
	if (fake)
		count = fake->launches() - from;
	scene_fill(s, c, image);
	good = hzi_cuda_capture_begin(s->ctx) == HZ_OK;
	good = good && scene_call(s, c) == HZ_OK;
	if (!good)
		diag("%s: %s", c->name, hz_errmsg(s->ctx));
	if (hzi_cuda_capture_end(s->ctx, &graph) != HZ_OK) {
		ok(0, "%s: no graph: %s", c->name, hz_errmsg(s->ctx));
		return;
	}
	for (int i = 0; i < REPLAYS && good; i++) {
		scene_fill(s, c, image);
		good &= hzi_cuda_graph_launch(s->ctx, graph) == HZ_OK &&
			hz_sync(s->ctx) == HZ_OK;
		scene_read(s, got, used);
		good &= same_bits(got, want, used, 1);
		if (fake)
			good &= fake->launches() - from == count * (3 + i) &&
				same_launches(c, from, count, count * (2 + i));
	}
	good &= hzi_cuda_graph_free(s->ctx, graph) == HZ_OK;
	ok(good, "%s in a graph, %d times: %ld kernels", c->name, REPLAYS, count);
}

/* ---- Two streams ----------------------------------------------------------------------------- */

/* Makes the call in both contexts, so that their work is in flight at the same time. */
static bool both(struct scene *a, struct scene *b, const struct call *c)
{
	const size_t used = directly(a, c);
	bool good = true;

	for (int i = 0; i < REPLAYS; i++) {
		scene_fill(a, c, image);
		scene_fill(b, c, image);
		good &= scene_call(a, c) == HZ_OK && scene_call(b, c) == HZ_OK;
		scene_read(b, got, used);
		good &= same_bits(got, want, used, 1);
		scene_read(a, got, used);
		good &= same_bits(got, want, used, 1);
	}
	if (!good)
		diag("%s on two streams", c->name);
	return good;
}

int main(void)
{
	void *stream_a, *stream_b;
	struct scene a, b;
	char first[256] = "";
	int bad = 0;

	unsetenv("HURWITZ_DEVICE");
	if (!tap_cuda())
		fake = scene_driver("fakecuda.so");
	open_scene(&a, &stream_a);
	open_scene(&b, &stream_b);
	image = malloc(a.arena_bytes);
	want = malloc(a.arena_bytes);
	got = malloc(a.arena_bytes);
	if (!image || !want || !got)
		bail("no memory");
	for (int i = 0; i < calls_count; i++) {
		if (call_writes(&calls[i]))
			replay(&a, &calls[i]);
	}
	for (int i = 0; i < calls_count; i++)
		bad += call_writes(&calls[i]) && !both(&a, &b, &calls[i]);
	is_int(bad, 0, "every call on two streams at once");
	close_scene(&b, stream_b);
	close_scene(&a, stream_a);
	if (fake) {
		is_int(fake->complaints(first, sizeof(first)), 0, "the driver has no complaint");
		if (*first)
			diag("%s", first);
	}
	free(image);
	free(want);
	free(got);
	return done_testing();
}

#endif
