/*
 * d4_bitfield.c - products with packed D4, q = 4: codes are decoded by logic, x is s8 digits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * x is split into base-256 digits as in cpu/vlut/s8.c. Codes are decoded in registers (struct
 * hzi_vlut_bitfield); no points are written to memory. The accumulators are exact, so results do
 * not depend on the ISA level or the number of threads.
 */
#include <config.h>

#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

#define CHUNK 32768		/* of k, so that intermediate sums fit 32 bits */
#define MOST 16			/* rows of x at a time */

void hzi_vlut_d4_bitfield_init(struct hzi_vlut_d4_bitfield *j, char *base, size_t *used)
{
	const struct hzi_vlut_side *w = j->w;

	j->k = hzi_round_up(4 * w->blocks, 64);
	j->rows = j->cols * j->parts;
	j->threads = hzi_threads(j->ctx, w->panels * HZI_VLUT_ROWS * j->k * (j->rows + 4) / 16);
	j->factor = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->shift = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->offset_dot = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->x = hzi_vlut_workspace_take(base, used, j->rows * j->k);
	/* Sums of a panel, of all chunks */
	j->scratch_each = hzi_round_up(HZI_VLUT_ROWS * 8 * j->cols, 64);
	j->scratch = hzi_vlut_workspace_take(base, used, j->threads * j->scratch_each);
}

int8_t *hzi_vlut_d4_bitfield_row(const struct hzi_vlut_d4_bitfield *j, int64_t col)
{
	return j->x + col * j->parts * j->k;
}

/* Computes <o, x'> of columns, then reorders their rows for the kernels. */
static void order_columns(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_d4_bitfield *j = data;
	const struct hzi_vlut_side *w = j->w;
	const int64_t k = 4 * w->blocks;

	(void)thread;
	for (int64_t c = begin; c < end; c++) {
		j->offset_dot[c] = 0;
		for (int p = 0; p < j->parts; p++) {
			int8_t *row = hzi_vlut_d4_bitfield_row(j, c) + p * j->k;
			int64_t sum = 0;

			for (int64_t i = 0; w->offset_max && i < k; i++)
				sum += row[i] * w->rule->offset[i % 4];
			j->offset_dot[c] += sum * ((int64_t)1 << 8 * p);
			memset(row + k, 0, (size_t)(j->k - k));
			hzi_vlut_kern[j->ctx->level].bitfield_order(row, j->k);
		}
	}
}

static void store_column(const struct hzi_vlut_d4_bitfield *j, int64_t panel, int64_t col,
			 const int64_t *sums)
{
	float y[HZI_VLUT_ROWS];

	if (j->y.dtype == HZ_S32) {
		const int64_t row = panel * HZI_VLUT_ROWS;
		int32_t *to = (int32_t *)j->y.y + row * j->y.y_i + col * j->y.y_j;

		for (int64_t i = 0; i < hzi_vlut_min(HZI_VLUT_ROWS, j->w->w->rows - row); i++)
			to[i * j->y.y_i] = (int32_t)(uint32_t)sums[i];
		return;
	}
	for (int i = 0; i < HZI_VLUT_ROWS; i++)
		y[i] = (float)((double)sums[i] * j->factor[col] + j->shift[col]);
	hzi_vlut_store(j->ctx, j->w, &j->y, panel, col, y);
}

static void add_sums(const struct hzi_vlut_d4_bitfield *j, int64_t row, int64_t rows, int half,
		     const int32_t *from, int64_t *sums)
{
	for (int64_t i = row; i < row + rows; i++, from += 32) {
		const int64_t weight = (int64_t)1 << 8 * (i % j->parts);
		int64_t *to = sums + i / j->parts * HZI_VLUT_ROWS + half * 32;

		for (int r = 0; r < 32; r++)
			to[r] += weight * from[r];
	}
}

static void multiply_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_d4_bitfield *j = data;
	const struct hzi_vlut_kern *const kern = hzi_vlut_kern + j->ctx->level;
	int64_t *sums = (int64_t *)(void *)(j->scratch + thread * j->scratch_each);
	int32_t some[MOST * 32] __attribute__((aligned(64)));

	for (int64_t panel = begin; panel < end; panel++) {
		const uint8_t *codes = (const uint8_t *)j->w->w->packed + panel * j->w->panel_bytes;

		for (int64_t c = 0; c < j->cols; c++) {
			for (int i = 0; i < HZI_VLUT_ROWS; i++)
				sums[c * HZI_VLUT_ROWS + i] = -j->offset_dot[c];
		}
		for (int64_t k = 0; k < j->k; k += CHUNK) {
			for (int64_t row = 0; row < j->rows; row += kern->bitfield_rows) {
				struct hzi_vlut_bitfield a = {
					.x = j->x + row * j->k + k,
					.sums = some,
					.x_ld = j->k,
					.steps = hzi_vlut_min(CHUNK, j->k - k) / 64,
					.count = (int32_t)hzi_vlut_min(kern->bitfield_rows,
								       j->rows - row),
				};

				for (int half = 0; half < 2; half++) {
					a.codes = codes + half * j->w->half_bytes + k * 16;
					kern->bitfield(&a);
					add_sums(j, row, a.count, half, some, sums);
				}
			}
		}
		for (int64_t c = 0; c < j->cols; c++)
			store_column(j, panel, c, sums + c * HZI_VLUT_ROWS);
	}
}

void hzi_vlut_d4_bitfield_run(struct hzi_vlut_d4_bitfield *j)
{
	hzi_parallel(j->ctx, hzi_threads(j->ctx, 2 * j->rows * j->k), order_columns, j, j->cols);
	hzi_parallel(j->ctx, j->threads, multiply_panels, j, j->w->panels);
}
