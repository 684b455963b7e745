/*
 * grid.c - the cells of hurwitz bench --grid: sample, cliffs, prediction
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/tap.h"
#include "tools/core/grid.h"

static const int sizes[][GRID_DTYPES] = {{4, 2, 2}, {1, 0, 0}};

static void indices(void)
{
	const int count = grid_count(2);
	int order[2 * GRID_WIDTHS], good = 1, seen[2 * GRID_WIDTHS] = {0};

	for (int i = 0; i < count; i++) {
		const struct grid_at at = grid_at(i);

		good &= grid_index(&at) == i && at.op >= 0 && at.op < 2 && at.dtype < GRID_DTYPES;
	}
	ok(good, "an index and its cell");
	grid_order(2, order);
	good = 1;
	for (int i = 0; i < 2 * GRID_WIDTHS; i++) {
		good &= order[i] / GRID_WIDTHS == i % 2;
		seen[order[i]]++;
	}
	ok(good, "ops alternate");
	good = 1;
	for (int i = 0; i < 2 * GRID_WIDTHS; i++)
		good &= seen[i] == 1;
	ok(good, "each width once");
}

/* Made-up times: the roofline, from batch `jump` on three times that */
static int measure(struct grid_cell *line, int jump, int seed, bool all, int *batches)
{
	int count = 0, b;

	memset(line, 0, GRID_BATCHES * sizeof(*line));
	while ((b = grid_next(line, seed, all)) >= 0 && count < GRID_BATCHES) {
		const double roofline = 10 + grid_batches[b];

		line[b] = (struct grid_cell){roofline * (b >= jump ? 3 : 1), roofline};
		batches[count++] = b;
	}
	return b < 0 ? count : -1;
}

static void sample(void)
{
	struct grid_cell line[GRID_BATCHES], other[GRID_BATCHES];
	int batches[GRID_BATCHES], again[GRID_BATCHES], good = 1;
	const int smooth = measure(line, GRID_BATCHES, 5, false, batches);

	ok(smooth >= 6 && smooth <= 8, "a smooth line has its sample: %d batches", smooth);
	is_int(measure(other, GRID_BATCHES, 5, false, again), smooth, "the same number again");
	is_bits(again, batches, (size_t)smooth, sizeof(*again), "and the same batches");
	for (int jump = 1; jump < GRID_BATCHES - 1; jump++) {
		const int count = measure(line, jump, 7 * jump, false, batches);

		good &= count > 0 && count < 16 && line[jump].us > 0 && line[jump - 1].us > 0;
	}
	ok(good, "both sides of a step are measured, wherever it is");
	is_int(measure(line, 4, 1, true, batches), GRID_BATCHES, "all: every batch");
	memset(line, 0, sizeof(line));
	for (int b = 0; b < GRID_BATCHES; b++)
		line[b].us = -1;
	is_int(grid_next(line, 1, true), -1, "cells left out are not asked for again");
}

static void prediction(void)
{
	struct grid_cell line[GRID_BATCHES] = {[2] = {30, 10}, [9] = {50, 10}, [4] = {-1, 1}};

	ok(grid_predict(line, 5, 7, 2) == 35, "prediction: the slower neighbour's ratio");
	ok(grid_predict(line, 0, 7, 2) == 21, "prediction: one neighbour");
	line[2].us = line[9].us = 0;
	ok(grid_predict(line, 0, 7, 2) == 14, "prediction: the usual ratio");
}

static struct grid_cliff *cliffs_of(struct grid_cell *cells, int *count)
{
	const struct grid g = {2, sizes, cells};

	return grid_cliffs(&g, count);
}

static int cell(int dtype, int packed, int strided, int width, int batch)
{
	return grid_index(&(struct grid_at){0, dtype, packed, strided, width, batch});
}

static void cliffs(void)
{
	struct grid_cell *cells = calloc((size_t)grid_count(2), sizeof(*cells));
	struct grid_cliff *found;
	int count;

	if (!cells)
		bail("no memory");
	for (int i = 0; i < grid_count(1); i++)
		cells[i] = (struct grid_cell){100, 100};
	found = cliffs_of(cells, &count);
	is_int(count, 0, "no cliff where all is alike");
	free(found);

	cells[cell(1, 1, 0, 12, 20)].us = 130;
	found = cliffs_of(cells, &count);
	is_int(count, 2, "the last batch and width of packed f16 slower by 30 %%");
	is_int(found[0].slow, cell(1, 1, 0, 12, 20), "which cell");
	ok((found[0].kind == GRID_PACKED) != (found[1].kind == GRID_PACKED) &&
	   (found[0].kind == GRID_NARROWER) != (found[1].kind == GRID_NARROWER),
	   "than stored weights, and than f32");
	free(found);

	cells[cell(1, 1, 0, 12, 20)].us = 100;
	for (int line = 0; line < 4 * GRID_DTYPES; line++)
		cells[cell(line / 4, line / 2 % 2, line % 2, 0, 20)].us = 96;
	cells[cell(0, 0, 0, 0, 3)].us = 120;
	found = cliffs_of(cells, &count);
	is_int(count, 1, "a smaller batch slower than a larger one");
	ok(found[0].kind == GRID_BATCH && found[0].fast == cell(0, 0, 0, 0, 4) &&
	   found[0].factor == 1.2, "by how much");
	free(found);

	for (int i = 0; i < grid_count(1); i++)
		cells[i].us = 0;
	cells[cell(0, 0, 0, 3, 5)] = (struct grid_cell){10, 5};
	cells[cell(0, 0, 0, 3, 6)] = (struct grid_cell){16, 5};
	cells[cell(0, 0, 0, 8, 6)] = (struct grid_cell){40, 5};
	cells[cell(1, 0, 0, 3, 5)] = (struct grid_cell){2, 1};
	cells[cell(1, 0, 0, 3, 6)] = (struct grid_cell){3.5, 1};
	cells[cell(1, 0, 1, 3, 5)] = (struct grid_cell){7, 1};
	cells[cell(2, 0, 0, 3, 6)] = (struct grid_cell){-1, 1};
	found = cliffs_of(cells, &count);
	is_int(count, 3, "steps of > 1.4 and > 2 us");
	ok(found[0].slow == cell(1, 0, 1, 3, 5) && found[0].factor == 3.5, "strided rows");
	ok(found[1].slow == cell(0, 0, 0, 8, 6) && found[1].fast == cell(0, 0, 0, 3, 6) &&
	   found[1].factor == 2.5, "the next width measured");
	ok(found[2].slow == cell(0, 0, 0, 3, 6) && found[2].factor == 1.6, "the next batch");
	free(found);
	free(cells);
}

int main(void)
{
	indices();
	sample();
	prediction();
	cliffs();
	return done_testing();
}
