/*
 * bench.c - hurwitz bench of Walsh-Hadamard transforms, with and without quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/bench_grid.h"

enum kind { HADAMARD, QUANTIZE, DEQUANTIZE };

enum size {
	LARGE,		/* exceeds the caches: 2^24 elements on the CPU, 2^27 on a GPU */
	SMALL,		/* 4096 elements: 16 KiB of f32, within the L1 cache */
	ONE_ROW,	/* latency */
};

enum {
	CPU = 1,
	GPU = 2,
	QUICK = 4,		/* also with --quick: of a range the lengths 2^8, 2^12, 2^16 */
	COLUMNS = 8,
	TWO_STEPS = 16,		/* ceiling: the transform, then a copy for the quantization */
};

static const struct row {
	enum kind kind;
	enum size size;
	int flags;
	int x_dtype, y_dtype;	/* the floating-point operand and the result */
	int64_t n_low, n_high;	/* all powers of two from n_low to n_high */
	int plan;
	int64_t group;		/* of quantization, 0: a scale per row; else enum hz_base */
	int scale_dtype;
} rows[] = {
	{HADAMARD, LARGE, CPU | QUICK, HZ_F32, HZ_F32, 32, 1 << 20, 0, 0, 0},
	{HADAMARD, SMALL, CPU | QUICK, HZ_F32, HZ_F32, 32, 4096, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F16, HZ_F16, 32, 1 << 20, 0, 0, 0},
	{HADAMARD, LARGE, CPU | QUICK, HZ_BF16, HZ_BF16, 32, 1 << 20, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_BF16, HZ_F32, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_BF16, HZ_F32, 4096, 4096, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F16, 4096, 4096, 0, 0, 0},
	{HADAMARD, LARGE, CPU | COLUMNS | QUICK, HZ_F32, HZ_F32, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, CPU | COLUMNS, HZ_BF16, HZ_BF16, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, CPU | QUICK, HZ_F32, HZ_F32, 96, 96, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 160, 160, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 192, 192, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 96, 96, HZ_PLAN_UNIFORM, 0, 0},
	{HADAMARD, LARGE, CPU | QUICK, HZ_F32, HZ_F32, 96, 96, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 11008, 11008, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{QUANTIZE, LARGE, CPU | QUICK, HZ_F32, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_S4X2, 4096, 4096, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, CPU | QUICK, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_E4M3, 128, 128, 0, 32, HZ_E8M0},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_E5M2, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, CPU | TWO_STEPS, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{DEQUANTIZE, LARGE, CPU | QUICK, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{DEQUANTIZE, LARGE, CPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 128, HZ_F32},

	{HADAMARD, LARGE, GPU | QUICK, HZ_F16, HZ_F16, 64, 65536, 0, 0, 0},
	{HADAMARD, LARGE, GPU | QUICK, HZ_BF16, HZ_BF16, 64, 65536, 0, 0, 0},
	{HADAMARD, LARGE, GPU | QUICK, HZ_F32, HZ_F32, 64, 65536, 0, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 7168, 7168, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 10240, 10240, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 40960, 40960, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 7168, 7168, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 10240, 10240, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 40960, 40960, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 7168, 7168, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 10240, 10240, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 40960, 40960, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 6144, 6144, HZ_PLAN_TRUE, HZ_BASE_DAO, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 5120, 5120, HZ_PLAN_TRUE, HZ_BASE_DAO, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 14336, 14336, HZ_PLAN_TRUE, HZ_BASE_DAO, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 14336, 14336, HZ_PLAN_TRUE, HZ_BASE_PALEY1, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 40960, 40960, HZ_PLAN_TRUE, HZ_BASE_QUIP, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 40960, 40960, HZ_PLAN_TRUE, HZ_BASE_QUIP, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 96, 96, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 192, 192, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, GPU | COLUMNS, HZ_F16, HZ_F16, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, GPU | COLUMNS | QUICK, HZ_BF16, HZ_BF16, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, GPU | COLUMNS, HZ_F32, HZ_F32, 128, 128, 0, 0, 0},
	{QUANTIZE, LARGE, GPU | QUICK, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU | QUICK, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU, HZ_BF16, HZ_E4M3, 128, 128, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, GPU, HZ_BF16, HZ_S4X2, 4096, 4096, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, GPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 32, HZ_E8M0},
	{QUANTIZE, LARGE, GPU | TWO_STEPS | QUICK, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU | TWO_STEPS | QUICK, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU | TWO_STEPS, HZ_BF16, HZ_E4M3, 128, 128, 0, 128, HZ_F32},
	{DEQUANTIZE, LARGE, GPU, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{DEQUANTIZE, LARGE, GPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 128, HZ_F32},
	{HADAMARD, ONE_ROW, GPU | QUICK, HZ_BF16, HZ_BF16, 4096, 4096, 0, 0, 0},
	{HADAMARD, ONE_ROW, GPU, HZ_F32, HZ_F32, 4096, 4096, 0, 0, 0},
	{HADAMARD, ONE_ROW, GPU, HZ_BF16, HZ_BF16, 16384, 16384, 0, 0, 0},
	{QUANTIZE, ONE_ROW, GPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 0, HZ_F32},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const char *const op_names[] = {
	[HADAMARD] = "hadamard",
	[QUANTIZE] = "hadamard_quantize",
	[DEQUANTIZE] = "dequantize_hadamard",
};

/* A Hadamard case and its operands */
struct hadamard_case {
	struct bench_case c;
	const struct row *row;
	int64_t n, items, elements;
	hz_tensor x, y, scale;
	hz_hadamard_opts opts;
};

/* Additions in the transform of a row */
static double additions(int64_t n, const hz_hadamard_opts *o)
{
	int64_t length, sum = 0;
	int64_t *blocks = allocate((size_t)n * sizeof(*blocks));
	const int64_t count = blocks ? hz_hadamard_plan(n, o, blocks, n) : 0;

	for (int64_t i = 0; i < count; i++) {
		int64_t m = 1;

		length = blocks[i];
		if (o->plan == HZ_PLAN_TRUE && (length & (length - 1)))
			m = 4 * (length / (length & -length));
		sum += length * (m - 1);
		for (int64_t power = length / m; power > 1; power /= 2)
			sum += length;
	}
	free(blocks);
	return (double)sum;
}

/* Makes the call once. */
static int call(struct bench *b, struct bench_case *c)
{
	struct hadamard_case *h = (struct hadamard_case *)c;

	switch (h->row->kind) {
	case HADAMARD:
		return hz_hadamard(b->ctx, &h->x, &h->y, &h->opts);
	case QUANTIZE:
		return hz_hadamard_quantize(b->ctx, &h->x, &h->y, &h->scale, &h->opts);
	default:
		return hz_dequantize_hadamard(b->ctx, &h->y, &h->scale, &h->x, &h->opts);
	}
}

/* Ceiling of a fused call: the transform and a copy, a lower bound of two separate passes */
static int call_two_steps(struct bench *b, struct bench_case *c)
{
	struct hadamard_case *h = (struct hadamard_case *)c;
	hz_tensor t = h->x;
	int status;

	t.data = b->from;
	status = hz_hadamard(b->ctx, &h->x, &t, &h->opts);
	return status ? status : bench_copy(b, c);
}

static void name_case(struct hadamard_case *h)
{
	static const char *const plan[] = {"", "", " greedy", " uniform", " true"};
	static const char *const bases[] = {"", "paley1", "paley2", "williamson", "dao", "quip"};
	const struct row *r = h->row;
	const char *layout;
	char group[32] = "";

	if (r->kind == HADAMARD && r->group)
		snprintf(group, sizeof(group), " %s", bases[r->group]);
	if (r->kind != HADAMARD && r->group)
		snprintf(group, sizeof(group), " group=%lld", (long long)r->group);
	layout = r->flags & COLUMNS ? "cols" : r->size == ONE_ROW ? "1 row" : "rows";
	snprintf(h->c.name, sizeof(h->c.name), "%s n=%lld%s%s%s%s%s", layout, (long long)h->n,
		 plan[r->plan], group, r->scale_dtype == HZ_E8M0 ? " e8m0" : "",
		 r->size == SMALL ? " L1" : "", r->flags & TWO_STEPS ? " fused" : "");
	snprintf(h->c.dtype, sizeof(h->c.dtype), "%s",
		 hz_dtype_name(r->kind == DEQUANTIZE ? r->y_dtype : r->x_dtype));
	if (r->x_dtype != r->y_dtype) {
		const size_t used = strlen(h->c.dtype);

		snprintf(h->c.dtype + used, sizeof(h->c.dtype) - used, ":%s",
			 hz_dtype_name(r->kind == DEQUANTIZE ? r->x_dtype : r->y_dtype));
	}
}

static void make_case(struct bench *b, const struct row *r, int64_t n, struct hadamard_case *h)
{
	const int device = hz_device(b->ctx);
	const int64_t total = r->size == SMALL ? 4096 : r->size == ONE_ROW ? n : b->elements;
	const int64_t wide = b->gpu ? 8192 : 4096;	/* columns of the matrix */

	memset(h, 0, sizeof(*h));
	h->row = r;
	h->n = n;
	h->items = total / n;
	h->elements = h->items * n;
	h->opts = (hz_hadamard_opts){.plan = r->plan};
	if (r->kind == HADAMARD && r->group) {
		h->opts.base = (int32_t)r->group;
		h->opts.order = r->n_low == 40960 ? 40 : 0;	/* 20 by itself */
	}
	if (r->flags & COLUMNS) {
		h->x = hz_tensor_2d(b->x, r->x_dtype, device, total / wide, wide);
		h->opts.axis = HZ_AXIS(0);
		h->opts.block = n;
	} else {
		h->x = hz_tensor_2d(b->x, r->x_dtype, device, h->items, n);
	}
	h->y = h->x;
	h->y.dtype = (int16_t)r->y_dtype;
	h->c.moved_bytes = (double)h->elements * (double)hz_dtype_size(r->x_dtype);
	if (r->kind == HADAMARD) {
		/* In place on the CPU. On a GPU out of place, as published figures of other
		 * libraries are. */
		if (b->gpu || r->x_dtype != r->y_dtype)
			h->y.data = b->y;
	} else {
		const int64_t group = r->group ? r->group : n;

		h->y = hz_tensor_2d(b->y, r->y_dtype, device, h->items,
				    r->y_dtype == HZ_S4X2 ? n / 2 : n);
		h->scale = hz_tensor_2d(b->scale, r->scale_dtype, device, h->items, n / group);
		h->c.moved_bytes += (double)hz_tensor_bytes(&h->scale);
	}
	h->c.moved_bytes += (double)hz_tensor_bytes(&h->y);
	h->c.operations =
		(double)(h->elements / n) * additions(n, &(hz_hadamard_opts){.plan = r->plan});
	h->c.op = op_names[r->kind];
	h->c.call = call;
	h->c.ceiling = r->flags & TWO_STEPS ? call_two_steps : bench_copy;
	h->c.against = r->flags & TWO_STEPS ? "hadamard, then a copy"
		       : b->gpu		    ? "device copy"
					    : "memcpy";
	h->c.large = r->size == LARGE;
	bench_copy_of(b, &h->c);
	name_case(h);
}

/* Whether repeated calls still give finite numbers: timings with NaN would mean nothing. */
static bool is_finite(struct bench *b, const struct hadamard_case *c)
{
	const hz_tensor *const made[] = {
		[HADAMARD] = &c->y, [QUANTIZE] = &c->scale, [DEQUANTIZE] = &c->x};
	const hz_tensor *of = made[c->row->kind];
	const size_t size = hz_dtype_size(of->dtype);
	char sample[64 * 8];
	const int64_t count = hz_tensor_count(of) < 64 ? hz_tensor_count(of) : 64;
	const hz_tensor from = hz_tensor_1d(of->data, of->dtype, of->device, count);
	hz_tensor to = hz_tensor_1d(sample, of->dtype, HZ_CPU, count);

	if (size > 8 || hz_copy(b->ctx, &from, &to) != HZ_OK || hz_sync(b->ctx) != HZ_OK)
		return false;
	for (int64_t i = 0; i < count; i++) {
		if (!isfinite(load_element(sample, i, of->dtype)))
			return false;
	}
	return true;
}

static int run_case(struct bench *b, const struct row *r, int64_t n)
{
	struct hadamard_case h;
	int status;

	make_case(b, r, n, &h);
	progress("bench: %s %s %s", h.c.op, h.c.name, h.c.dtype);
	status = bench_fill(b, r->x_dtype, h.elements, h.x);
	/* Codes for dequantization come from quantization. */
	if (!status && r->kind == DEQUANTIZE)
		status = hz_hadamard_quantize(b->ctx, &h.x, &h.y, &h.scale, &h.opts);
	if (!status)
		status = h.c.call(b, &h.c);
	if (status)
		return complain(EXIT_FAILURE, "bench: %s %s: %s", h.c.op, h.c.name,
				hz_errmsg(b->ctx));
	status = bench_run(b, &h.c);
	if (!status && !is_finite(b, &h))
		return complain(EXIT_FAILURE, "bench: %s %s: the results are no finite numbers",
				h.c.op, h.c.name);
	return status;
}

static bool in_quick(const struct row *r, int64_t n)
{
	return (r->flags & QUICK) && (r->n_low == r->n_high || n == 256 || n == 4096 || n == 65536);
}

int bench_hadamard(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];

		if (!(r->flags & (b->gpu ? GPU : CPU)) ||
		    !bench_wanted(b->set, op_names[r->kind]))
			continue;
		for (int64_t n = r->n_low; n <= r->n_high && !status; n *= 2) {
			if (b->set->quick && !in_quick(r, n))
				continue;
			head(b);
			status = run_case(b, r, n);
		}
	}
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

static int grid_call(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;

	return hz_hadamard(b->ctx, &g->x, &g->y, NULL);
}

static int grid_call_quantize(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	hz_tensor scales = hz_tensor_2d(b->scale, HZ_F32, hz_device(b->ctx), g->batch, 1);

	return hz_hadamard_quantize(b->ctx, &g->x, &g->y, &scales, NULL);
}

const struct grid_op grid_hadamard[] = {
	{"hadamard", "", 0, {HZ_F32, HZ_F16, HZ_BF16}, .call = grid_call},
	{"hadamard_quantize", "s8", 0, {HZ_F32, HZ_F16, HZ_BF16}, .y_dtype = HZ_S8,
	 .call = grid_call_quantize},
	{0},
};
