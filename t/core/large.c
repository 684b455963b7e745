/*
 * large.c - operands of more than 2^31 elements
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Runs if HZ_TEST_LARGE is set to the GB of memory that it may use: 3 GB are enough for some calls
 * on a CPU, 100 GB for all of them on a large GPU. The first dimension is lengthened until an
 * operand has more than 2^31 elements. Inputs repeat the same rows, so all rows of an output must
 * be equal.
 */
#include <config.h>

#include "t/core/calls.h"
#include "t/core/tap.h"

#define ROWS_READ 64

struct run {
	struct scene *s;
	const struct call *c;
	int64_t rows, small;		/* the size of that dimension here and in calls.def */
	int n;
	hz_tensor t[CALL_OPERANDS], first[CALL_OPERANDS];	/* first: a view of row 0 */
	void *memory[CALL_OPERANDS];
};

static bool long_one(const struct run *r, int i)
{
	const struct operand *const o = &r->c->operand[i];

	return !(o->flags & (OBJECT | RAW)) && o->ndim > 0 && o->shape[0] == r->small;
}

static int64_t row_elements(const struct run *r, int i)
{
	int64_t count = 1;

	for (int d = 1; d < r->c->operand[i].ndim; d++)
		count *= r->c->operand[i].shape[d];
	return count;
}

static void move(const struct run *r, void *to, const void *from, int64_t bytes, int to_device,
		 int from_device)
{
	const hz_tensor a = hz_tensor_1d((void *)(uintptr_t)from, HZ_U8, from_device, bytes);
	hz_tensor b = hz_tensor_1d(to, HZ_U8, to_device, bytes);

	if (hz_copy(r->s->ctx, &a, &b) != HZ_OK || hz_sync(r->s->ctx) != HZ_OK)
		bail("copy: %s", hz_errmsg(r->s->ctx));
}

/* Fills an operand with copies of its first row, doubling the filled part each time. */
static void repeat(const struct run *r, int i)
{
	const int device = r->s->device;
	const int64_t row = hz_tensor_bytes(&r->first[i]);
	char *const to = r->memory[i];
	int64_t done = row, all = row * r->rows;

	move(r, to, r->first[i].data, row, device, device);
	while (done < all) {
		const int64_t more = done < all - done ? done : all - done;

		move(r, to + done, to, more, device, device);
		done += more;
	}
}

/* Views with that many rows; false if they do not fit in most_bytes. */
static bool make(struct run *r, int64_t most_bytes)
{
	int64_t bytes = 0;

	for (int i = 0; i < r->n; i++) {
		const struct operand *const o = &r->c->operand[i];
		const bool in = !(o->flags & WRITES);

		if (!long_one(r, i))
			continue;
		r->first[i] = r->t[i];
		r->first[i].shape[0] = 1;
		r->t[i].shape[0] = r->rows;
		bytes += hz_tensor_bytes(&r->t[i]);
		if (bytes > most_bytes && in && r->s->device == HZ_CPU) {
			bytes -= hz_tensor_bytes(&r->t[i]);
			r->t[i].stride[0] = 0;
			continue;
		}
		if (bytes > most_bytes)
			return false;
		if (hz_alloc(r->s->ctx, &r->memory[i], (size_t)hz_tensor_bytes(&r->t[i]),
			     r->s->device) != HZ_OK)
			return false;
		r->t[i].data = r->memory[i];
		repeat(r, i);
	}
	return true;
}

/*
 * Compares with row 0: both ends, both sides of 2^31 and 2^32 elements and bytes, and random rows
 */
static bool same_rows(const struct run *r, int i, uint64_t *rnd)
{
	const int64_t row = hz_tensor_bytes(&r->first[i]), elements = row_elements(r, i);
	const int64_t edges[] = {
		0, r->rows - 1, (INT64_C(1) << 31) / elements, (INT64_C(1) << 31) / elements - 1,
		(INT64_C(1) << 31) / row, (INT64_C(1) << 31) / row - 1,
		(INT64_C(1) << 32) / row, (INT64_C(1) << 32) / row - 1,
		(INT64_C(1) << 32) / elements, (INT64_C(1) << 32) / elements - 1,
	};
	const int count = (int)(sizeof(edges) / sizeof(*edges));
	unsigned char *const want = malloc((size_t)row), *const got = malloc((size_t)row);
	bool good = want && got;

	for (int k = 0; good && k < ROWS_READ; k++) {
		const int64_t at = k < count ? edges[k] : rnd_below(rnd, r->rows);

		if (at < 0 || at >= r->rows)
			continue;
		move(r, k ? got : want, (char *)r->memory[i] + at * row, row, HZ_CPU,
		     r->s->device);
		if (k && memcmp(got, want, (size_t)row) != 0) {
			diag("%s: row %lld of %lld of %s is not as row 0", r->c->name,
			     (long long)at, (long long)r->rows, r->c->operand[i].name);
			good = false;
		}
	}
	free(want);
	free(got);
	return good;
}

static void large(struct scene *s, const struct call *c, int64_t small, int64_t most_bytes)
{
	struct run r = {.s = s, .c = c, .small = small};
	hz_tensor *operand[CALL_OPERANDS] = {NULL};
	uint64_t rnd = tap_seed();
	int64_t widest = 0;
	unsigned char *image;
	size_t used;
	int status = HZ_OK;
	bool good;

	r.n = scene_views(s, c, r.t, &used);
	image = malloc(used);
	if (!image)
		bail("no memory");
	scene_image(s, c, rnd, image);
	scene_write(s, image, used);
	free(image);
	for (int i = 0; i < r.n; i++) {
		if (long_one(&r, i) && row_elements(&r, i) > widest)
			widest = row_elements(&r, i);
	}
	/* Not the calls where rows have another first dimension */
	if (widest == 0)
		return;
	r.rows = (INT64_C(1) << 31) / widest + 37;
	if (!make(&r, most_bytes)) {
		skip(1, "%s of %lld rows: no memory", c->name, (long long)r.rows);
		goto out;
	}
	for (int i = 0; i < r.n; i++)
		operand[i] = &r.t[i];
	s->record = true;
	status = scene_run(s, c, operand);
	s->record = false;
	if (status == HZ_OK)
		status = hz_reserve(s->ctx, s->bytes);
	if (status == HZ_ENOMEM) {
		skip(1, "%s of %lld rows: %s", c->name, (long long)r.rows, hz_errmsg(s->ctx));
		goto out;
	}
	good = status == HZ_OK && scene_run(s, c, operand) == HZ_OK && hz_sync(s->ctx) == HZ_OK;
	if (!good)
		diag("%s: %s", c->name, hz_errmsg(s->ctx));
	for (int i = 0; i < r.n; i++) {
		if (good && r.memory[i] && c->operand[i].flags & WRITES)
			good &= same_rows(&r, i, &rnd);
	}
	ok(good, "%s of %lld rows", c->name, (long long)r.rows);
out:
	for (int i = 0; i < r.n; i++) {
		if (r.memory[i])
			hz_free(s->ctx, r.memory[i], s->device);
	}
}

int main(void)
{
	const char *const gigabytes = getenv("HZ_TEST_LARGE");
	const hz_options o = {.device = tap_cuda() ? HZ_CUDA : HZ_CPU};
	const int64_t most_bytes = gigabytes ? strtoll(gigabytes, NULL, 0) * 1000000000 : 0;
	struct scene s;

	if (most_bytes <= 0)
		skip_all("HZ_TEST_LARGE does not say how many GB there are");
	scene_open(&s, &o);
	for (int i = 0; i < calls_count; i++) {
		const int64_t rows = call_rows(&calls[i]);

		if (rows > 0)
			large(&s, &calls[i], rows, most_bytes);
	}
	scene_close(&s);
	return done_testing();
}
