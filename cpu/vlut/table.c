/*
 * table.c - products with lattice codes: tables of inner products in memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The definition: one-sided t_k[I] = <c(I), x_k>, two-sided T[I][J] = <c(I), c(J)>. It is the
 * reference for the faster paths, and the path for lattices whose leaders are not small integers.
 */
#include <config.h>

#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

#define ENTRIES 65536		/* of tables at a time: 256 KiB */

/* ---- One-sided ------------------------------------------------------------------------------- */

void hzi_vlut_table_f32_init(struct hzi_vlut_table_f32 *j, char *base, size_t *used)
{
	const struct hzi_vlut_side *w = j->w;
	const int64_t entries = (int64_t)w->rule->level_size;

	j->chunk = ENTRIES / entries / w->group * w->group;
	j->chunk = hzi_vlut_min(j->chunk < w->group ? w->group : j->chunk, w->blocks);
	j->threads = hzi_threads(j->ctx, 16 * w->panels * HZI_VLUT_ROWS * w->blocks);
	j->table = hzi_vlut_workspace_take(base, used, 4 * j->chunk * entries);
	j->base = hzi_vlut_workspace_take(base, used, 4 * j->chunk);
	j->sum = hzi_vlut_workspace_take(base, used, 8 * w->panels * HZI_VLUT_ROWS);
	j->scratch_each = hzi_round_up(hzi_vlut_view_bytes(w, j->chunk), 64);
	j->scratch = hzi_vlut_workspace_take(base, used, j->threads * j->scratch_each);
}

/* Rounds to f16 or bf16 and back, by the conversion kernel. */
static void round_table(const struct hz_context *ctx, int dtype, float *table, int64_t n)
{
	uint16_t half[256];

	for (int64_t i = 0; dtype != HZ_F32 && i < n; i += 256) {
		struct hzi_convert h = {
			.x = table + i, .y = half, .rows = 1, .count = hzi_vlut_min(256, n - i),
			.x_dtype = HZ_F32, .y_dtype = dtype, .scale = 1,
		};

		hzi_vlut_kern[ctx->level].convert(&h);
		h.x = half;
		h.x_dtype = dtype;
		h.y = table + i;
		h.y_dtype = HZ_F32;
		hzi_vlut_kern[ctx->level].convert(&h);
	}
}

static void fill_tables(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_table_f32 *j = data;
	const struct hzi_vlut_side *w = j->w;
	const int64_t entries = (int64_t)w->rule->level_size;

	(void)thread;
	for (int64_t b = begin; b < end; b++) {
		const float *x = j->v.x + j->col * j->v.k + (j->first + b) * w->embed;
		float *table = j->table + b * entries;
		double base = j->v.sub ? j->v.sub[j->col * w->blocks + j->first + b] : 0;

		for (int e = 0; e < w->embed; e++)
			base -= (double)w->rule->offset[e] * x[e];
		j->base[b] = (float)base;
		for (int64_t i = 0; i < entries; i++) {
			const int32_t *c = w->lattice->leaders + i * w->embed;
			double t = 0;

			for (int e = 0; e < w->embed; e++)
				t += (double)c[e] * x[e];
			table[i] = (float)t;
		}
		round_table(j->ctx, j->dtype, table, entries);
	}
}

/* sum[0] += v; the rounding error goes to sum[1] (Kahan-Babuska). */
static void add(float *sum, float v, bool compensated)
{
	const float s = sum[0], t = s + v;

	if (compensated)
		sum[1] += (s < 0 ? -s : s) >= (v < 0 ? -v : v) ? s - t + v : v - t + s;
	sum[0] = t;
}

static void look_up(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_table_f32 *j = data;
	const struct hzi_vlut_side *w = j->w;
	const int64_t entries = (int64_t)w->rule->level_size;

	for (int64_t panel = begin; panel < end; panel++) {
		const struct hzi_vlut_view v =
			hzi_vlut_view(j->ctx, w, panel, j->first, j->blocks,
				      (uint8_t *)j->scratch + thread * j->scratch_each);

		for (int row = 0; row < HZI_VLUT_ROWS; row++) {
			float *sum = j->sum + 2 * (panel * HZI_VLUT_ROWS + row);

			for (int64_t b = 0; b < j->blocks; b++) {
				float weight = 1, s = j->base[b];

				for (int m = 0; m < w->rule->levels;
				     m++, weight *= (float)w->rule->q) {
					if (m >= w->first)
						s += weight * j->table[b * entries +
								       hzi_vlut_code(w, &v, row, b,
										     m - w->first)];
				}
				add(sum, s * hzi_vlut_scale(w, &v, row, b), j->compensated);
			}
		}
	}
}

static void finish(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_table_f32 *j = data;

	(void)thread;
	for (int64_t panel = begin; panel < end; panel++) {
		float y[HZI_VLUT_ROWS];

		for (int i = 0; i < HZI_VLUT_ROWS; i++) {
			const float *sum = j->sum + 2 * (panel * HZI_VLUT_ROWS + i);

			/* The error of Inf is NaN. */
			y[i] = sum[0] - sum[0] == 0 ? sum[0] + sum[1] : sum[0];
		}
		hzi_vlut_store(j->ctx, j->w, &j->y, panel, j->col, y);
	}
}

void hzi_vlut_table_f32_run(struct hzi_vlut_table_f32 *j)
{
	for (j->col = 0; j->col < j->v.cols; j->col++) {
		memset(j->sum, 0, (size_t)(8 * j->w->panels * HZI_VLUT_ROWS));
		for (j->first = 0; j->first < j->w->blocks; j->first += j->chunk) {
			j->blocks = hzi_vlut_min(j->chunk, j->w->blocks - j->first);
			hzi_parallel(j->ctx, j->threads, fill_tables, j, j->blocks);
			hzi_parallel(j->ctx, j->threads, look_up, j, j->w->panels);
		}
		hzi_parallel(j->ctx, j->threads, finish, j, j->w->panels);
	}
}
