/*
 * label.c - products with packed labels of E8 or D4: codes are decoded in registers, x is s8
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * x is either quantized to s8 by 32 values, x_k = d round(x_k / d) with d = max |x| / 127, or split
 * into base-256 digits as in cpu/vlut/s8.c. Sums of 32 values times r_T are exact integers below
 * 2^24; those of digits are added as integers, the others in f32, in the order of k. So results do
 * not depend on the ISA level or the number of threads.
 */
#include <config.h>

#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

#define UNITS 128		/* at a time, so that sums of digits fit 32 bits */

static int64_t row_bytes(const struct hzi_vlut_label_path *j)
{
	return j->units * 4 * LABEL_X;
}

void hzi_vlut_label_init(struct hzi_vlut_label_path *j, char *base, size_t *used)
{
	const struct hzi_vlut_side *w = j->w;

	j->units = w->units;
	j->rows = j->cols * j->parts;
	j->padded = j->rows == 1 ? 1 : hzi_round_up(j->rows, LABEL_ROWS);
	/* One row of E8's is for numbers above -128, which digits are not. */
	j->x_pairs = j->rows > 1 || (w->rule->shaping == HZI_SHAPING_E8 && !j->by_32);
	j->threads = hzi_threads(j->ctx, w->panels * HZI_VLUT_ROWS * j->units * 2 * (j->rows + 2));
	j->factor = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->shift = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->digits = hzi_vlut_workspace_take(base, used, j->rows * j->units * 32);
	j->x = hzi_vlut_workspace_take(base, used, j->padded * row_bytes(j));
	j->x_scale = hzi_vlut_workspace_take(base, used,
					     j->by_32 ? 4 * j->padded * j->units : 0);
	j->scratch_each = hzi_round_up(HZI_VLUT_ROWS * 8 * j->cols, 64);
	j->scratch = hzi_vlut_workspace_take(base, used,
					     j->by_32 ? 0 : j->threads * j->scratch_each);
}

int8_t *hzi_vlut_label_row(const struct hzi_vlut_label_path *j, int64_t col)
{
	return j->digits + col * j->parts * j->units * 32;
}

static void order_columns(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_label_path *j = data;
	const struct hzi_vlut_kern *const kern = hzi_vlut_kern + j->ctx->level;
	const int64_t k = j->w->blocks * j->w->embed, all = 32 * j->units;

	(void)thread;
	for (int64_t c = begin; c < end; c++) {
		if (j->by_32)
			kern->label_quantize(j->v.x + c * j->v.k, k, hzi_vlut_label_row(j, c),
					     j->x_scale + c * j->units);
		for (int p = 0; p < j->parts; p++) {
			int8_t *digits = hzi_vlut_label_row(j, c) + p * all;

			memset(digits + k, 0, (size_t)(all - k));
			kern->label_order(digits, 4 * j->units, j->w->label->bias,
					  hzi_vlut_shaping(j->w), j->x_pairs,
					  j->x + (c * j->parts + p) * row_bytes(j));
		}
	}
}

/* Adds sums of digits of rows from `row` on, whose weights are 256^p. */
static void add_digits(const struct hzi_vlut_label_path *j, int64_t row, int64_t rows,
		       const float *from, int64_t *sums)
{
	for (int64_t r = row; r < row + rows; r++, from += HZI_VLUT_ROWS) {
		const int64_t weight = (int64_t)1 << 8 * (r % j->parts);
		int64_t *to = sums + r / j->parts * HZI_VLUT_ROWS;

		for (int i = 0; i < HZI_VLUT_ROWS; i++) {
			int32_t sum;

			memcpy(&sum, from + i, 4);
			to[i] += weight * sum;
		}
	}
}

static void multiply_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_label_path *j = data;
	const struct hzi_vlut_side *w = j->w;
	int64_t *sums = (int64_t *)(void *)(j->scratch + thread * j->scratch_each);
	float y[LABEL_BATCH * HZI_VLUT_ROWS] __attribute__((aligned(64)));
	struct hzi_vlut_label a = {
		.scale = w->label->scale, .y = y, .x_ld = row_bytes(j), .x_scale_ld = j->units,
		.shaping = hzi_vlut_shaping(w), .bits = w->label->bits, .t_bits = w->label->t_bits,
		.x_pairs = j->x_pairs,
	};

	for (int64_t panel = begin; panel < end; panel++) {
		const uint8_t *codes = (const uint8_t *)w->w->packed + panel * w->panel_bytes;

		if (!j->by_32)
			memset(sums, 0, (size_t)j->scratch_each);
		for (int64_t row = 0; row < j->rows; row += LABEL_BATCH) {
			const int64_t rows = hzi_vlut_min(LABEL_BATCH, j->rows - row);
			const int64_t step = j->by_32 ? j->units : UNITS;

			a.rows = rows == 1 || rows == 3 ? rows : hzi_round_up(rows, LABEL_ROWS);
			for (int64_t unit = 0; unit < j->units; unit += step) {
				a.units = hzi_vlut_min(step, j->units - unit);
				a.codes = codes + unit * w->unit_bytes;
				a.x = j->x + row * a.x_ld + unit * 4 * LABEL_X;
				a.x_scale = j->by_32 ? j->x_scale + row * j->units : NULL;
				memset(y, 0, (size_t)(a.rows * HZI_VLUT_ROWS) * sizeof(*y));
				hzi_vlut_kern[j->ctx->level].label(&a);
				if (!j->by_32)
					add_digits(j, row, rows, y, sums);
			}
			for (int64_t c = row; j->by_32 && c < row + rows; c++) {
				float *of = y + (c - row) * HZI_VLUT_ROWS;

				for (int i = 0; i < HZI_VLUT_ROWS; i++)
					of[i] *= (float)j->factor[c];
				hzi_vlut_store(j->ctx, w, &j->y, panel, c, of);
			}
		}
		for (int64_t c = 0; !j->by_32 && c < j->cols; c++) {
			for (int i = 0; i < HZI_VLUT_ROWS; i++)
				y[i] = (float)((double)sums[c * HZI_VLUT_ROWS + i] * j->factor[c]);
			hzi_vlut_store(j->ctx, w, &j->y, panel, c, y);
		}
	}
}

void hzi_vlut_label_run(struct hzi_vlut_label_path *j)
{
	/* Rows that fill up the last LABEL_ROWS */
	memset(j->x + j->rows * row_bytes(j), 0, (size_t)((j->padded - j->rows) * row_bytes(j)));
	for (int64_t c = 0; c < j->cols; c++)
		j->factor[c] = (j->by_32 ? 1 : j->factor[c]) * j->w->label->unit;
	for (int64_t i = j->rows * j->units; j->by_32 && i < j->padded * j->units; i++)
		j->x_scale[i] = 0;
	hzi_parallel(j->ctx, hzi_threads(j->ctx, 8 * j->rows * j->units * 32), order_columns, j,
		     j->cols);
	hzi_parallel(j->ctx, j->threads, multiply_panels, j, j->w->panels);
}
