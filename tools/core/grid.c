/*
 * grid.c - the grid of hurwitz bench --grid: its cells, the order of measuring, cliffs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>

#include "tools/core/grid.h"

const int grid_batches[GRID_BATCHES] = {
	1, 2, 3, 4, 5, 8, 12, 16, 24, 31, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096,
};
const int grid_widths[GRID_WIDTHS] = {
	384, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 14336,
};

#define STEP 1.4		/* of times over rooflines */
#define STEP_US 2.0
#define SLOWER 1.05

/* Batches 1, 4, 16, 64, 256 and 2048 of every line, so that widths can be compared */
static const int everywhere[] = {0, 3, 7, 12, 16, 19};

int grid_count(int ops)
{
	return ops * GRID_DTYPES * 4 * GRID_WIDTHS * GRID_BATCHES;
}

int grid_index(const struct grid_at *at)
{
	const int line = ((at->op * GRID_DTYPES + at->dtype) * 2 + at->packed) * 2 + at->strided;

	return (line * GRID_WIDTHS + at->width) * GRID_BATCHES + at->batch;
}

struct grid_at grid_at(int index)
{
	const int line = index / (GRID_WIDTHS * GRID_BATCHES);

	return (struct grid_at){
		.op = line / (4 * GRID_DTYPES), .dtype = line / 4 % GRID_DTYPES,
		.packed = line / 2 % 2, .strided = line % 2,
		.width = index / GRID_BATCHES % GRID_WIDTHS, .batch = index % GRID_BATCHES,
	};
}

static uint32_t hash(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352d;
	x = (x ^ x >> 15) * 0x846ca68b;
	return x ^ x >> 16;
}

void grid_order(int ops, int *order)
{
	for (int op = 0; op < ops; op++) {
		int widths[GRID_WIDTHS];

		for (int w = 0; w < GRID_WIDTHS; w++) {
			const int at = (int)(hash((uint32_t)(op * GRID_WIDTHS + w)) %
					     (uint32_t)(w + 1));

			widths[w] = widths[at];
			widths[at] = w;
		}
		for (int w = 0; w < GRID_WIDTHS; w++)
			order[w * ops + op] = op * GRID_WIDTHS + widths[w];
	}
}

/* Time over the roofline of b over that of a */
static double step(const struct grid_cell *a, const struct grid_cell *b)
{
	return b->us / a->us * (a->roofline / b->roofline);
}

/* Whether the larger batch b takes too long beside a, or the smaller one does */
static bool differ(const struct grid_cell *a, const struct grid_cell *b)
{
	return step(a, b) > STEP || a->us > SLOWER * b->us;
}

/* The unmeasured batch nearest to the middle between two */
static int middle(const struct grid_cell *line, int low, int high)
{
	const int mid = (low + high) / 2;

	for (int d = 0; mid - d > low || mid + d < high; d++) {
		if (mid - d > low && line[mid - d].us == 0)
			return mid - d;
		if (mid + d < high && line[mid + d].us == 0)
			return mid + d;
	}
	return -1;
}

int grid_next(const struct grid_cell *line, int seed, bool all)
{
	const int count = sizeof(everywhere) / sizeof(*everywhere);
	int last = -1;

	for (int i = 0; i < count + 2; i++) {
		const int b = i < count ? everywhere[i] :
			      (int)(hash((uint32_t)(2 * seed + i)) % GRID_BATCHES);

		if (line[b].us == 0)
			return b;
	}
	for (int b = 0; b < GRID_BATCHES; b++) {
		if (line[b].us <= 0)
			continue;
		if (last >= 0 && differ(&line[last], &line[b])) {
			const int mid = middle(line, last, b);

			if (mid >= 0)
				return mid;
		}
		last = b;
	}
	for (int b = 0; b < GRID_BATCHES && all; b++) {
		if (line[b].us == 0)
			return b;
	}
	return -1;
}

double grid_predict(const struct grid_cell *line, int batch, double roofline, double usual)
{
	double ratio = 0;

	for (int way = -1; way <= 1; way += 2) {
		int b = batch + way;

		while (b >= 0 && b < GRID_BATCHES && line[b].us <= 0)
			b += way;
		if (b >= 0 && b < GRID_BATCHES && line[b].us / line[b].roofline > ratio)
			ratio = line[b].us / line[b].roofline;
	}
	return roofline * (ratio > 0 ? ratio : usual);
}

/* ---- Cliffs ---------------------------------------------------------------------------------- */

struct found {
	const struct grid *g;
	struct grid_cliff *cliff;
	int count, capacity;
};

static bool add(struct found *f, enum grid_kind kind, int slow, int fast, double factor)
{
	if (f->count == f->capacity) {
		const int capacity = f->capacity ? 2 * f->capacity : 256;
		struct grid_cliff *more = realloc(f->cliff, (size_t)capacity * sizeof(*more));

		if (!more)
			return false;
		f->cliff = more;
		f->capacity = capacity;
	}
	f->cliff[f->count++] = (struct grid_cliff){kind, slow, fast, factor};
	return true;
}

/* A step up from cell a to b, if both are measured */
static bool add_step(struct found *f, int a, int b)
{
	const struct grid_cell *x = &f->g->cells[a], *y = &f->g->cells[b];
	double factor;

	if (x->us <= 0 || y->us <= 0)
		return true;
	factor = step(x, y);
	if (factor <= STEP || y->us - y->us / factor <= STEP_US)
		return true;
	return add(f, GRID_STEP, b, a, factor);
}

/* Cell a should be no slower than b. */
static bool add_slower(struct found *f, enum grid_kind kind, int a, int b)
{
	const struct grid_cell *x = &f->g->cells[a], *y = &f->g->cells[b];

	if (x->us <= 0 || y->us <= 0 || x->us <= SLOWER * y->us)
		return true;
	return add(f, kind, a, b, x->us / y->us);
}

/* The next measured cell along an axis, of which a step is `stride` cells; `rest`: steps there are */
static int measured_after(const struct grid *g, int i, int stride, int rest)
{
	while (rest-- > 0) {
		i += stride;
		if (g->cells[i].us > 0)
			return i;
	}
	return -1;
}

static bool find_of(struct found *f, int i)
{
	const struct grid_at at = grid_at(i);
	const int *sizes = f->g->sizes[at.op];
	const int wider = measured_after(f->g, i, GRID_BATCHES, GRID_WIDTHS - 1 - at.width);
	const int larger = measured_after(f->g, i, 1, GRID_BATCHES - 1 - at.batch);
	struct grid_at other = at;
	bool good = true;

	if (wider >= 0)
		good = add_step(f, i, wider);
	if (at.batch + 1 < GRID_BATCHES)
		good = good && add_step(f, i, i + 1);
	if (larger >= 0)
		good = good && add_slower(f, GRID_BATCH, i, larger);
	other.strided ^= 1;
	good = good && add_step(f, i, grid_index(&other));
	other = at;
	other.packed = 0;
	if (at.packed)
		good = good && add_slower(f, GRID_PACKED, i, grid_index(&other));
	other = at;
	for (int d = 0; d < GRID_DTYPES && good; d++) {
		other.dtype = d;
		if (sizes[d] > sizes[at.dtype])
			good = add_slower(f, GRID_NARROWER, i, grid_index(&other));
		else if (sizes[d] == sizes[at.dtype] && d != at.dtype)
			good = add_step(f, i, grid_index(&other));
	}
	return good;
}

static int compare_cliffs(const void *a, const void *b)
{
	const struct grid_cliff *x = a, *y = b;

	if (x->factor != y->factor)
		return x->factor < y->factor ? 1 : -1;
	return x->slow != y->slow ? x->slow - y->slow : x->fast - y->fast;
}

struct grid_cliff *grid_cliffs(const struct grid *g, int *count)
{
	struct found f = {.g = g, .cliff = malloc(256 * sizeof(*f.cliff)), .capacity = 256};
	bool good = f.cliff != NULL;

	for (int i = 0; i < grid_count(g->ops) && good; i++) {
		if (g->cells[i].us > 0)
			good = find_of(&f, i);
	}
	if (!good) {
		free(f.cliff);
		return NULL;
	}
	qsort(f.cliff, (size_t)f.count, sizeof(*f.cliff), compare_cliffs);
	*count = f.count;
	return f.cliff;
}
