/*
 * grid.h - the grid of hurwitz bench --grid: its cells, the order of measuring, cliffs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A cell is one call: a product or layer with a dtype of x, weights as stored or packed, contiguous
 * or strided rows, a width (k and n) and a batch. A line is the cells that differ in the batch alone.
 */
#ifndef GRID_H
#define GRID_H

#include <stdbool.h>
#include <stdint.h>

enum { GRID_BATCHES = 21, GRID_WIDTHS = 13, GRID_DTYPES = 3 };
extern const int grid_batches[GRID_BATCHES], grid_widths[GRID_WIDTHS];

/* Indices of a cell; packed and strided are 0 or 1 */
struct grid_at {
	int op, dtype, packed, strided, width, batch;
};

struct grid_cell {
	double us;		/* 0: not measured; negative: not to be measured */
	double roofline;	/* us; > 0 if measured */
};

struct grid {
	int ops;
	const int (*sizes)[GRID_DTYPES];	/* [op]: bytes of each dtype; 0: none */
	struct grid_cell *cells;		/* grid_count(ops) */
};

int grid_count(int ops);
int grid_index(const struct grid_at *at);
struct grid_at grid_at(int index);

/* The order in which op and width are measured: fills ops * GRID_WIDTHS indices op * GRID_WIDTHS +
 * width. Ops alternate; each has its widths in a random order that is always the same. */
void grid_order(int ops, int *order);

/*
 * The batch of a line to measure next, or -1. First a sample: some batches of every line, two of
 * this op and width. Then the middle between measured neighbours that differ: times by more than
 * 1.4 times the ratio of their rooflines, or the smaller batch takes longer. Last, with `all`, the
 * rest.
 */
int grid_next(const struct grid_cell *line, int seed, bool all);

/*
 * The expected time in us of a cell of a line by the times over the roofline of the next measured
 * batches on both sides; usual: that ratio without any.
 */
double grid_predict(const struct grid_cell *line, int batch, double roofline, double usual);

enum grid_kind {
	GRID_STEP,		/* time over the roofline: > 1.4 of a neighbour's, and > 2 us */
	GRID_BATCH, GRID_PACKED, GRID_NARROWER	/* slower by > 5 % than the opposite */
};

struct grid_cliff {
	enum grid_kind kind;
	int slow, fast;			/* cells */
	double factor;			/* how much slower than it should be */
};

/* Finds the cliffs, largest factor first, and returns their number; NULL: no memory. */
struct grid_cliff *grid_cliffs(const struct grid *g, int *count);

#endif
