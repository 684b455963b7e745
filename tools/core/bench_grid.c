/*
 * bench_grid.c - hurwitz bench --grid: time over the roofline of many sizes, and cliffs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The roofline of a cell is the longer of its bytes at the rate of a copy and its multiply-adds at
 * the rate of bare instructions, both measured first. On a CPU, bytes are read or copied at the rate
 * of their working set, measured in the caches and beyond. Weights are copies used in turn, so that
 * a call finds none of them in the caches unless it is small.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/peak/kern.h"
#include "lib/core/internal.h"
#include "tools/core/bench_grid.h"
#include "tools/core/peak.h"

#define OPS_MOST 32
#define GAP 64			/* elements between strided rows */
#define SECONDS_MOST 1.0	/* of a cell that is measured */
#define CELL_SECONDS 0.015	/* repetitions of a cell */
#define USUAL 8.0		/* time over the roofline expected of an op's first cell */
#define MAKING 1e-9		/* seconds a byte of weights, expected of an op's first case */
#define COPIES_MOST 256
#define GPU_COLD_BYTES ((int64_t)320 << 20)
#define CPU_COLD_BYTES ((int64_t)128 << 20)	/* at most; 2 L3 caches */
#define CPU_WEIGHT_BYTES ((double)((int64_t)1 << 30))	/* larger weights are left out */
#define CLIFFS_SHOWN 100
#define SET_FIRST 14		/* log2 of bytes: the smallest working set measured */
#define SETS 13			/* 16 KiB to 64 MiB */

struct grid_run {
	struct bench *b;
	const struct grid_op *ops[OPS_MOST];
	int sizes[OPS_MOST][GRID_DTYPES];
	struct grid g;
	double read_per_us[SETS], copy_per_us[SETS];	/* bytes moved; working sets double */
	double macs_per_us[3];		/* of F32, 16 bits, 8 bits */
	double usual[OPS_MOST];		/* largest time over the roofline so far */
	double making[OPS_MOST];	/* seconds a byte of weights, most so far */
	double end, until;		/* of the budget; of the share of the current weights */
	int x_dtype;			/* what b->x is filled with, for */
	int64_t x_row;			/* numbers of its rows */
	int measured, resumed, slow, large, refused;
};

/* ---- Weights --------------------------------------------------------------------------------- */

int64_t grid_copies(const struct bench *b, size_t bytes)
{
	const int64_t l3 = 2 * b->info.l3_bytes;
	const int64_t cold = b->gpu ? GPU_COLD_BYTES : l3 < CPU_COLD_BYTES ? l3 : CPU_COLD_BYTES;
	const int64_t copies = 1 + cold / (int64_t)bytes;

	return copies < COPIES_MOST ? copies : COPIES_MOST;
}

/* Memory for the weights of one case at a time, which later cases use again: pages cost time. */
static int reserve_weights(struct bench *b, size_t bytes)
{
	const int device = hz_device(b->ctx);
	int status;

	if (bytes <= b->weights_bytes)
		return HZ_OK;
	if (b->weights)
		hz_free(b->ctx, b->weights, device);
	b->weights_bytes = 0;
	status = hz_alloc(b->ctx, &b->weights, bytes, device);
	if (!status)
		b->weights_bytes = bytes;
	return status;
}

int grid_weights(struct bench *b, struct grid_case *g, size_t stored, size_t packed)
{
	size_t copies;
	int status;

	g->each = ((g->packed ? packed : stored) + 255) & ~(size_t)255;
	g->copies = grid_copies(b, g->each);
	copies = (size_t)g->copies * g->each;
	status = reserve_weights(b, copies + (g->packed ? stored : 0));
	if (status)
		return status;
	g->weights = b->weights;
	g->source = g->packed ? g->weights + copies : g->weights;
	return HZ_OK;
}

/* Makes the weights, and all copies of them. */
static int make_weights(struct bench *b, struct grid_case *g)
{
	const int device = hz_device(b->ctx);
	int status = g->op->make ? g->op->make(b, g) : HZ_OK;

	for (int64_t i = 1; i < g->copies && !status; i++) {
		const hz_tensor from = hz_tensor_1d(g->weights, HZ_U8, device, (int64_t)g->each);
		hz_tensor to = hz_tensor_1d(g->weights + i * (int64_t)g->each, HZ_U8, device,
						  (int64_t)g->each);

		status = hz_copy(b->ctx, &from, &to);
	}
	return status ? status : hz_sync(b->ctx);
}

static void free_weights(struct bench *b, struct grid_case *g)
{
	hz_sync(b->ctx);
	if (g->own)
		g->op->release(b, g);
	hz_vlut_close(g->vlut);
	hz_lattice_close(g->lattice);
}

/* ---- Rooflines ------------------------------------------------------------------------------- */

static int call_read(struct bench *b, struct bench_case *c)
{
	return bench_read(b, b->x, (int64_t)c->moved_bytes / (int64_t)sizeof(float));
}

static int call_macs(struct bench *b, struct bench_case *c)
{
	const struct hzi_peak_kern *kern = hzi_peak_kern + b->ctx->level;

	if (b->gpu)
		return tool_peak(b->ctx, c->mac_dtype, (int64_t)c->macs);
	/* One thread: rates are scaled by their number. */
	(c->mac_dtype == HZ_S8 && kern->dot ? kern->dot : kern->fma)((int64_t)c->macs);
	return HZ_OK;
}

/* Rates of reads and copies by working set; a GPU has one rate, that of a large copy. */
static int measure_bytes(struct grid_run *r)
{
	struct bench *b = r->b;
	double seconds;
	int status = HZ_OK;

	for (int i = SETS - 1; i >= 0 && !status; i--) {
		struct bench_case c = {.call = bench_copy, .large = true};

		if (b->gpu && i < SETS - 1) {
			r->copy_per_us[i] = r->read_per_us[i] = r->copy_per_us[i + 1];
			continue;
		}
		c.moved_bytes = b->gpu ? 8 * (double)b->elements :
					 (double)((int64_t)1 << (SET_FIRST + i));
		bench_copy_of(b, &c);
		status = bench_time(b, &c, b->gpu ? 0.2 : 0.01, &seconds);
		r->copy_per_us[i] = r->read_per_us[i] = c.moved_bytes / seconds * 1e-6;
		if (b->gpu || status)
			continue;
		c.call = call_read;
		status = bench_time(b, &c, 0.01, &seconds);
		r->read_per_us[i] = c.moved_bytes / seconds * 1e-6;
		/* What starting threads costs is none of the caches' rate. */
		if (i < SETS - 1) {
			r->copy_per_us[i] = fmax(r->copy_per_us[i], r->copy_per_us[i + 1]);
			r->read_per_us[i] = fmax(r->read_per_us[i], r->read_per_us[i + 1]);
		}
	}
	return status;
}

static int measure_rates(struct grid_run *r)
{
	static const int dtypes[] = {HZ_F32, HZ_F16, HZ_S8};
	struct bench *b = r->b;
	struct bench_case c = {.call = call_macs, .large = true};
	double seconds;
	int status = measure_bytes(r);

	for (int i = 0; i < 3 && !status; i++) {
		c.mac_dtype = dtypes[i];
		c.macs = b->gpu ? 1e11 : 1e8;
		status = bench_time(b, &c, 0.1, &seconds);
		r->macs_per_us[i] = c.macs / seconds * 1e-6 *
				    (b->gpu ? 1 : b->info.threads);
	}
	return status;
}

/* Interpolates a rate for a working set, linearly in the logarithm of its bytes. */
static double rate_at(const double *rates, double bytes)
{
	const double at = fmin(fmax(log2(fmax(bytes, 1)) - SET_FIRST, 0), SETS - 1);
	const int i = (int)fmin(at, SETS - 2);

	return rates[i] + (at - i) * (rates[i + 1] - rates[i]);
}

/* In us: x is read and y written, both found in the caches that hold `set` bytes. */
static double rows_us(const struct grid_run *r, double x, double y, double set)
{
	const double both = fmin(x, y), rest = fmax(x, y) - both;

	return 2 * both / rate_at(r->copy_per_us, set) +
	       rest / rate_at(x > y ? r->read_per_us : r->copy_per_us, set);
}

static double weight_bytes(const struct grid_op *op, int dtype, double width)
{
	const double bits = op->weight_bits > 0 ? op->weight_bits :
						  8 * (double)hz_dtype_size(dtype);

	return op->weights * bits / 8 * width * width + 4 * op->vectors * width;
}

/* Of all copies of the weights */
static double copies_bytes(const struct grid_run *r, const struct grid_op *op, int dtype,
			   double width)
{
	const double each = weight_bytes(op, dtype, width);

	return each > 0 ? each * (double)grid_copies(r->b, (size_t)each) : 0;
}

static double or_one(double width)
{
	return width > 0 ? width : 1;
}

/* In us */
static double roofline_of(const struct grid_run *r, const struct grid_at *at)
{
	const struct grid_op *op = r->ops[at->op];
	const int dtype = op->dtypes[at->dtype];
	const double width = grid_widths[at->width], batch = grid_batches[at->batch];
	const double x_size = (double)hz_dtype_size(dtype);
	const double y_size = op->y_dtype ? (double)hz_dtype_size(op->y_dtype) : x_size;
	const double x = batch * width * x_size * (or_one(op->x_width) + op->more_width);
	const double y = batch * width * y_size * or_one(op->y_width);
	const double weights = weight_bytes(op, dtype, width);
	const bool f32 = dtype == HZ_F32;
	const double macs = batch * width * ((f32 ? op->macs_f32 : op->macs) * width +
					     op->vector_macs);
	const bool halves = !f32 || (r->b->gpu && op->macs_f32 > 1);
	const int rate = op->mac_dtype == HZ_S8 ? 2 : halves ? 1 : 0;
	const double moving = rows_us(r, x, y, x + y + weights) +
			      weights / rate_at(r->read_per_us, copies_bytes(r, op, dtype, width));
	const double multiplying = macs / r->macs_per_us[rate];

	return moving > multiplying ? moving : multiplying;
}

/* ---- Lines of JSON --------------------------------------------------------------------------- */

static struct bench_row row_of(const struct grid_run *r, int index)
{
	const struct grid_at at = grid_at(index);
	const struct grid_op *op = r->ops[at.op];
	const struct grid_cell *cell = &r->g.cells[index];
	const int width = grid_widths[at.width];
	struct bench_row row = bench_row_begin(r->b);

	row.median_us = cell->us;
	row.ratio = cell->roofline / cell->us;
	snprintf(row.ceiling, sizeof(row.ceiling), "roofline");
	snprintf(row.op, sizeof(row.op), "%s", op->op);
	snprintf(row.name, sizeof(row.name), "%dx%dx%d%s%s%s%s", grid_batches[at.batch], width,
		 width, at.packed ? " packed" : op->packs ? " stored" : "",
		 at.strided ? " strided" : "", *op->variant ? " " : "", op->variant);
	snprintf(row.dtype, sizeof(row.dtype), "%s", hz_dtype_name(op->dtypes[at.dtype]));
	return row;
}

static bool exists(const struct grid_op *op, const struct grid_at *at)
{
	for (int d = 0; d <= at->dtype; d++) {
		if (!op->dtypes[d])
			return false;
	}
	return (!at->packed || op->packs) && (!at->strided || !op->contiguous);
}

/* Takes over the cells that --json wrote before; a cell's name says which it is. */
static void resume(struct grid_run *r, struct bench_rows *rows)
{
	bench_rows_sort(rows);
	for (int i = 0; i < grid_count(r->g.ops); i++) {
		struct grid_cell *cell = &r->g.cells[i];
		const struct grid_at at = grid_at(i);
		const struct bench_row *old;
		struct bench_row key;

		if (!exists(r->ops[at.op], &at))
			continue;
		*cell = (struct grid_cell){1, 1};
		key = row_of(r, i);
		*cell = (struct grid_cell){0, 0};
		old = bench_rows_find(rows, &key);
		if (!old)
			continue;
		*cell = (struct grid_cell){old->median_us, old->median_us * old->ratio};
		r->resumed++;
	}
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static int fill_x(struct grid_run *r, int dtype, int64_t row)
{
	struct bench *b = r->b;
	const int64_t all = grid_batches[GRID_BATCHES - 1] * (row + GAP);
	const int64_t most = b->elements * (int64_t)sizeof(float) / (int64_t)hz_dtype_size(dtype);

	if (dtype == r->x_dtype && row <= r->x_row)
		return HZ_OK;
	r->x_dtype = dtype;
	r->x_row = row;
	return bench_fill(b, dtype, all < most ? all : most,
			  hz_tensor_1d(b->x, dtype, hz_device(b->ctx), most));
}

static bool fits(const struct bench *b, const hz_tensor *t)
{
	return t->shape[0] * t->stride[0] * (int64_t)hz_dtype_size(t->dtype) <= b->elements * 4;
}

/* Makes x and y of a cell, unless they are larger than the memory for them, and the first call. */
static int make_cell(struct bench *b, struct grid_case *g, bool strided, bool *large)
{
	const struct grid_op *op = g->op;
	const int y_dtype = op->y_dtype ? op->y_dtype : g->dtype;
	const int64_t x_row = (int64_t)(or_one(op->x_width) * (double)g->width);
	const int64_t y_row = (int64_t)(or_one(op->y_width) * (double)g->width);
	int status;

	g->x = hz_tensor_2d(b->x, g->dtype, hz_device(b->ctx), g->batch, x_row);
	g->y = hz_tensor_2d(b->y, y_dtype, hz_device(b->ctx), g->batch, y_row);
	g->x.stride[0] = x_row + (strided ? GAP : 0);
	g->y.stride[0] = y_row + (strided ? GAP : 0);
	*large = !fits(b, &g->x) || !fits(b, &g->y);
	if (*large)
		return HZ_OK;
	status = op->view ? op->view(b, g) : HZ_OK;
	return status ? status : RESERVE_FOR(b->ctx, op->call(b, &g->c));
}

/* One cell, whose weights are made: sets its time, or why it has none. Returns an exit status. */
static int measure_cell(struct grid_run *r, struct grid_case *g, int index)
{
	struct bench *b = r->b;
	const struct grid_at at = grid_at(index);
	const struct grid_op *op = g->op;
	const double roofline = roofline_of(r, &at);
	struct grid_cell *line = &r->g.cells[index - at.batch], *cell = &line[at.batch];
	const double us = grid_predict(line, at.batch, roofline, r->usual[at.op]);
	struct bench_row row;
	double seconds = 0;
	bool large;
	int status;

	*cell = (struct grid_cell){-1, roofline};
	if (us > SECONDS_MOST * 1e6) {
		r->slow++;
		return 0;
	}
	g->batch = grid_batches[at.batch];
	g->c.large = us > 100;
	status = make_cell(b, g, at.strided, &large);
	if (!status && large) {
		r->large++;
		return 0;
	}
	if (!status)
		status = bench_time(b, &g->c, CELL_SECONDS, &seconds);
	if (status == HZ_ENOTSUP) {
		r->refused++;
		return 0;
	}
	cell->us = seconds > 1e-9 ? seconds * 1e6 : 1e-3;	/* the clock may not resolve it */
	row = row_of(r, index);
	if (status)
		return complain(EXIT_FAILURE, "bench: %s %s: %s", row.op, row.name,
				hz_errmsg(b->ctx));
	if (cell->us / roofline > r->usual[at.op] || r->usual[at.op] == USUAL)
		r->usual[at.op] = cell->us / roofline;
	r->measured++;
	g->c.operations = 2.0 * (double)g->batch * (double)g->width *
			  ((op->macs > 0 ? (double)g->width : 0) + op->vector_macs);
	g->c.moved_bytes = (double)hz_tensor_bytes(&g->x) + (double)hz_tensor_bytes(&g->y) +
			   weight_bytes(op, g->dtype, (double)g->width);
	return bench_row_write(b, &g->c, &row, row.median_us);
}

/* Whether a cell is likely to end before the budget does; it is called a few times at least. */
static bool has_time(const struct grid_run *r, const struct grid_at *at)
{
	const int index = grid_index(at);
	const double us = grid_predict(&r->g.cells[index - at->batch], at->batch,
				       roofline_of(r, at), r->usual[at->op]);

	return us > SECONDS_MOST * 1e6 || now() + 4e-6 * us < r->end;
}

/* Makes the weights of a case, unless the time left is too short: *made is false then. */
static int begin_case(struct grid_run *r, struct grid_case *g, int op, bool *made)
{
	const double bytes = copies_bytes(r, g->op, g->dtype, (double)g->width);
	const double begin = now();
	int status;

	if (begin + r->making[op] * bytes > r->end)
		return HZ_OK;
	*made = true;
	progress("bench: %s %s width %d", g->op->op, g->op->variant, (int)g->width);
	status = fill_x(r, g->dtype, (int64_t)(or_one(g->op->x_width) * (double)g->width));
	if (!status)
		status = make_weights(r->b, g);
	if (bytes > 0 && ((now() - begin) / bytes > r->making[op] || r->making[op] == MAKING))
		r->making[op] = (now() - begin) / bytes;
	return status;
}

/* The lines of an op, dtype and width with one kind of weights */
static int measure_weights(struct grid_run *r, struct grid_at at, bool all)
{
	struct bench *b = r->b;
	const struct grid_op *op = r->ops[at.op];
	const int seed = at.op * GRID_WIDTHS + at.width;
	struct grid_case g = {
		.c = {.op = op->op, .call = op->call}, .op = op, .dtype = op->dtypes[at.dtype],
		.packed = at.packed, .width = grid_widths[at.width],
	};
	bool made = false;
	int status = 0;

	for (at.strided = 0; at.strided < 2 && !status; at.strided++) {
		const double until = at.strided ? r->until : (now() + r->until) / 2;
		struct grid_cell *line;

		if (!exists(op, &at))
			break;
		at.batch = 0;
		line = &r->g.cells[grid_index(&at)];
		while (!status && (!made || now() < until) &&
		       (at.batch = grid_next(line, seed, all)) >= 0 && has_time(r, &at)) {
			if (!b->gpu &&
			    weight_bytes(op, g.dtype, (double)g.width) > CPU_WEIGHT_BYTES) {
				line[at.batch].us = -1;
				r->large++;
				continue;
			}
			status = made ? HZ_OK : begin_case(r, &g, at.op, &made);
			if (status)
				status = complain(EXIT_FAILURE, "bench: %s %s width %d: %s", op->op,
						  op->variant, (int)g.width, hz_errmsg(b->ctx));
			else if (made)
				status = measure_cell(r, &g, grid_index(&at));
			else
				break;
		}
	}
	free_weights(b, &g);
	return status;
}

/* The next kind of weights to measure, from i on: *at is it; returns its number or `count`. */
static int next_weights(const struct grid_run *r, const int *order, int i, int count,
			struct grid_at *at)
{
	for (; i < count; i++) {
		const int unit = order[i / (2 * GRID_DTYPES)];

		*at = (struct grid_at){
			.op = unit / GRID_WIDTHS, .width = unit % GRID_WIDTHS,
			.dtype = i / 2 % GRID_DTYPES, .packed = i % 2,
		};
		if (exists(r->ops[at->op], at))
			break;
	}
	return i;
}

/* One round over all weights, each with its share of the time that is left */
static int measure_round(struct grid_run *r, const int *order, bool all)
{
	const int count = r->g.ops * GRID_WIDTHS * 2 * GRID_DTYPES;
	struct grid_at at;
	int status = 0, rest = 0;

	for (int i = 0; (i = next_weights(r, order, i, count, &at)) < count; i++)
		rest++;
	for (int i = 0; (i = next_weights(r, order, i, count, &at)) < count && !status; i++) {
		const double left = r->end - now();

		if (left <= 0)
			break;
		r->until = now() + left / rest--;
		status = measure_weights(r, at, all);
	}
	return status;
}

/* The sample first, then all cells, until the time is over or there are no more */
static int measure_all(struct grid_run *r)
{
	int order[OPS_MOST * GRID_WIDTHS], status, before;

	grid_order(r->g.ops, order);
	status = measure_round(r, order, false);
	do {
		before = r->measured;
		if (!status)
			status = measure_round(r, order, true);
	} while (!status && r->measured > before);
	progress_clear();
	return status;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void print_line(const struct grid_run *r, int first)
{
	static const int ends[] = {1, 8, 32, 128, 512, 4096};
	struct grid_at at = grid_at(first);
	const struct grid_op *op = r->ops[at.op];
	char name[64];
	bool any = false;

	for (int i = 0; i < GRID_WIDTHS * GRID_BATCHES; i++)
		any |= r->g.cells[first + i].us > 0;
	if (!any)
		return;
	snprintf(name, sizeof(name), "%s %s", op->op, op->variant);
	printf("%-28s%-6s%-9s%-9s", name, hz_dtype_name(op->dtypes[at.dtype]),
	       at.packed ? "packed" : op->packs ? "stored" : "", at.strided ? "strided" : "");
	for (int e = 0, begin = 0; e < (int)(sizeof(ends) / sizeof(*ends)); e++) {
		double ratios[GRID_WIDTHS * GRID_BATCHES];
		int count = 0;

		for (int b = begin; b < GRID_BATCHES && grid_batches[b] <= ends[e]; b++, begin++) {
			for (int w = 0; w < GRID_WIDTHS; w++) {
				const struct grid_cell *c =
					&r->g.cells[first + w * GRID_BATCHES + b];

				if (c->us > 0)
					ratios[count++] = c->us / c->roofline;
			}
		}
		if (count)
			printf("%9.2f", median(ratios, count));
		else
			printf("%9s", "-");
	}
	printf("\n");
}

static void print_tables(const struct grid_run *r)
{
	printf("\nmedian of time over the roofline, by batch; 1 is best\n%-28s%-6s%-9s%-9s%9s%9s%9s"
	       "%9s%9s%9s\n", "", "dtype", "weights", "rows", "1", "2..8", "12..32", "48..128",
	       "192..512", "1024..");
	for (int i = 0; i < grid_count(r->g.ops); i += GRID_WIDTHS * GRID_BATCHES)
		print_line(r, i);
}

static int print_cliffs(const struct grid_run *r)
{
	static const char *const what[] = {
		[GRID_STEP] = "step", [GRID_BATCH] = "smaller batch", [GRID_PACKED] = "packed",
		[GRID_NARROWER] = "narrower",
	};
	int count;
	struct grid_cliff *cliffs = grid_cliffs(&r->g, &count);

	if (!cliffs)
		return complain(EXIT_FAILURE, "bench: no memory");
	printf("\n%d cliffs; step: time over the roofline > 1.4 times that of a neighbour, and > 2 us; "
	       "others: slower\nby > 5 %% than with a larger batch, stored weights, a wider dtype\n",
	       count);
	for (int i = 0; i < count && i < CLIFFS_SHOWN; i++) {
		const struct bench_row slow = row_of(r, cliffs[i].slow);
		const struct bench_row fast = row_of(r, cliffs[i].fast);

		printf("%7.2f  %-14s%-12s %-5s%-40s%10.2f us, %-5s%-40s%10.2f us\n",
		       cliffs[i].factor, what[cliffs[i].kind], slow.op, slow.dtype, slow.name,
		       slow.median_us, fast.dtype, fast.name, fast.median_us);
	}
	if (count > CLIFFS_SHOWN)
		printf("and %d smaller ones\n", count - CLIFFS_SHOWN);
	free(cliffs);
	return 0;
}

/* ---- The grid -------------------------------------------------------------------------------- */

int bench_grid(struct bench *b)
{
	static const struct grid_op *const tables[] = {
		grid_qgemm, grid_vlut, grid_linear, grid_quat_gemm, grid_quat_layer, grid_hadamard,
		grid_mhc,
	};
	struct grid_run r = {.b = b};
	int status;

	for (size_t t = 0; t < sizeof(tables) / sizeof(*tables); t++) {
		for (const struct grid_op *op = tables[t]; op->op; op++) {
			if (!bench_wanted(b->set, op->op) || r.g.ops == OPS_MOST)
				continue;
			for (int d = 0; op->dtypes[d]; d++)
				r.sizes[r.g.ops][d] = (int)hz_dtype_size(op->dtypes[d]);
			r.usual[r.g.ops] = USUAL;
			r.making[r.g.ops] = MAKING;
			r.ops[r.g.ops++] = op;
		}
	}
	if (r.g.ops == 0)
		return complain(EXIT_BAD, "bench: --grid: none of the primitives named is a product "
				"or layer of the grid");
	r.g.sizes = r.sizes;
	r.g.cells = calloc((size_t)grid_count(r.g.ops), sizeof(*r.g.cells));
	if (!r.g.cells)
		return complain(EXIT_FAILURE, "bench: no memory");
	if (b->set->before)
		resume(&r, b->set->before);
	status = measure_rates(&r);
	/* A small budget is over by then: some cells are measured all the same. */
	r.end = fmax(b->begin + b->set->budget, now() + 0.1 * b->set->budget);
	if (status)
		status = complain(EXIT_FAILURE, "bench: %s", hz_errmsg(b->ctx));
	else
		status = measure_all(&r);
	if (!status && b->set->table) {
		printf("%s: %d cells measured, %d taken from the file; left out: %d predicted to "
		       "take over 1 s, %d too large, %d not supported\n",
		       b->gpu ? b->info.gpu_name : *b->info.cpu_name ? b->info.cpu_name : "CPU",
		       r.measured, r.resumed, r.slow, r.large, r.refused);
		print_tables(&r);
		status = print_cliffs(&r);
	}
	free(r.g.cells);
	if (b->weights)
		hz_free(b->ctx, b->weights, hz_device(b->ctx));
	b->weights = NULL;
	return status;
}
