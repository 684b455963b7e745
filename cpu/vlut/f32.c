/*
 * f32.c - products with lattice codes: points as f32, by the f32 micro-kernel of quat_gemm
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A chunk of a panel's blocks is decoded to s (p - o) in f32 and multiplied by panels of six
 * columns. Where <sub, x> is not 0, a block has one more number: s itself.
 */
#include <config.h>

#include <string.h>

#include "cpu/quat_gemm/kern.h"
#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

#define NUMBERS 256		/* of a row at a time, about: 64 KiB of a panel */
#define COLUMNS 96		/* at a time; a multiple of HZI_QUAT_COLS */

void hzi_vlut_f32_init(struct hzi_vlut_f32 *j, char *base, size_t *used)
{
	const struct hzi_vlut_side *w = j->w;
	const int64_t cols = hzi_vlut_min(COLUMNS, j->v.cols);
	int64_t padded;

	j->each = w->embed + (j->v.sub ? 1 : 0);
	j->length = w->blocks * j->each;
	j->chunk = NUMBERS / j->each / w->group * w->group;
	j->chunk = hzi_vlut_min(j->chunk < w->group ? w->group : j->chunk, w->blocks);
	padded = hzi_round_up(j->chunk * w->embed, 64);
	j->threads =
		hzi_threads(j->ctx, w->panels * HZI_VLUT_ROWS * j->length * (1 + j->v.cols / 4));
	j->panels =
		hzi_vlut_workspace_take(base, used, 4 * hzi_round_up(j->v.cols, HZI_QUAT_COLS) *
							  j->length);
	j->table = hzi_vlut_workspace_take(base, used, hzi_vlut_byte_table_bytes(w));
	/* A view, points, scales, scaled points, sums */
	j->scratch_each =
		hzi_round_up(hzi_vlut_view_bytes(w, j->chunk), 64) +
		HZI_VLUT_ROWS * (padded + 4 * j->chunk + 4 * j->chunk * j->each + 4 * cols);
	j->scratch = hzi_vlut_workspace_take(base, used, j->threads * j->scratch_each);
}

static void fill_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_f32 *j = data;

	(void)thread;
	for (int64_t col = begin * HZI_QUAT_COLS; col < end * HZI_QUAT_COLS; col++) {
		float *to = j->panels + col / HZI_QUAT_COLS * j->length * HZI_QUAT_COLS +
			    col % HZI_QUAT_COLS;

		for (int64_t b = 0; b < j->w->blocks; b++) {
			for (int64_t e = 0; e < j->each; e++, to += HZI_QUAT_COLS) {
				if (col >= j->v.cols)
					*to = 0;
				else if (e < j->w->embed)
					*to = j->v.x[col * j->v.k + b * j->w->embed + e];
				else
					*to = j->v.sub[col * j->w->blocks + b];
			}
		}
	}
}

struct panel_scratch {
	uint8_t *codes, *bytes;
	float *scale, *scaled, *sum;
};

/* s (p - o) of some blocks of a panel, and s, in the layout of hzi_vlut_widen */
static void widen(const struct hzi_vlut_f32 *j, int64_t panel, int64_t first, int64_t blocks,
		  const struct panel_scratch *r)
{
	const struct hzi_vlut_side *w = j->w;
	const struct hz_context *ctx = j->ctx;
	const struct hzi_vlut_view v = hzi_vlut_view(ctx, w, panel, first, blocks, r->codes);
	const int64_t rows = hzi_quat_gemm_kern[ctx->level].type[0].rows;

	for (int64_t b = 0; b < blocks; b += w->has_t ? w->group : blocks) {
		for (int i = 0; i < HZI_VLUT_ROWS; i++)
			r->scale[b / w->group * HZI_VLUT_ROWS + i] = hzi_vlut_scale(w, &v, i, b);
	}
	if (w->reach <= HZI_VLUT_BYTE_REACH) {
		const int64_t b_panel = 32 * hzi_round_up(blocks * w->embed, 64);
		const struct hzi_vlut_widen widen = {
			.b = r->bytes, .scale = r->scale, .to = r->scaled, .blocks = blocks,
			.b_panel = b_panel, .panel = blocks * j->each * rows, .embed = w->embed,
			.group = (int32_t)(w->has_t ? w->group : blocks), .rows = (int32_t)rows,
			.extra = j->v.sub != NULL,
		};

		hzi_vlut_bytes(ctx, w, &v, j->table, blocks, r->bytes, b_panel);
		hzi_vlut_kern[ctx->level].widen(&widen);
		return;
	}
	for (int64_t b = 0; b < blocks; b++) {
		for (int i = 0; i < HZI_VLUT_ROWS; i++) {
			const float scale =
				r->scale[(w->has_t ? b / w->group : 0) * HZI_VLUT_ROWS + i];
			float *to = r->scaled + (i / rows * blocks + b) * j->each * rows + i % rows;
			int32_t p[HZI_LATTICE_DIMS];

			hzi_vlut_point(w, &v, i, b, p);
			for (int e = 0; e < w->embed; e++, to += rows)
				*to = (float)(p[e] - w->rule->offset[e]) * scale;
			if (j->v.sub)
				*to = scale;
		}
	}
}

static void multiply_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_f32 *j = data;
	const struct hzi_vlut_side *w = j->w;
	const struct hz_context *ctx = j->ctx;
	const struct hzi_quat_gemm_typed *const gemm = hzi_quat_gemm_kern[ctx->level].type;
	const int64_t rows = gemm->rows;
	char *scratch = j->scratch + thread * j->scratch_each;
	struct panel_scratch r = {.codes = (uint8_t *)scratch};

	r.bytes = r.codes + hzi_round_up(hzi_vlut_view_bytes(w, j->chunk), 64);
	r.scale =
		(float *)(void *)(r.bytes + HZI_VLUT_ROWS * hzi_round_up(j->chunk * w->embed, 64));
	r.scaled = r.scale + HZI_VLUT_ROWS * j->chunk;
	r.sum = r.scaled + HZI_VLUT_ROWS * j->chunk * j->each;
	for (int64_t panel = begin; panel < end; panel++) {
		for (int64_t col = 0; col < j->v.cols; col += COLUMNS) {
			const int64_t cols = hzi_vlut_min(COLUMNS, j->v.cols - col);

			memset(r.sum, 0, (size_t)(HZI_VLUT_ROWS * cols) * 4);
			for (int64_t first = 0; first < w->blocks; first += j->chunk) {
				const int64_t blocks = hzi_vlut_min(j->chunk, w->blocks - first);
				struct hzi_quat_mul mul = {
					.s = j->panels + (col * j->length +
							  first * j->each * HZI_QUAT_COLS),
					.rows = rows, .cols = cols, .k = blocks * j->each,
					.s_panel = j->length * HZI_QUAT_COLS, .mode = HZI_QUAT_ADD,
				};

				mul.ahead = mul.s;
				widen(j, panel, first, blocks, &r);
				for (int64_t i = 0; i < HZI_VLUT_ROWS / rows; i++) {
					mul.v = r.scaled + i * mul.k * rows;
					mul.p = r.sum + i * cols * rows;
					gemm->mul(&mul);
				}
			}
			for (int64_t c = 0; c < cols; c++) {
				float y[HZI_VLUT_ROWS];

				for (int64_t i = 0; i < HZI_VLUT_ROWS; i++)
					y[i] = r.sum[(i / rows * cols + c) * rows + i % rows];
				hzi_vlut_store(ctx, w, &j->y, panel, col + c, y);
			}
		}
	}
}

void hzi_vlut_f32_run(struct hzi_vlut_f32 *j)
{
	hzi_vlut_byte_table(j->w, j->table);
	hzi_parallel(j->ctx, j->threads, fill_panels, j,
		     (j->v.cols + HZI_QUAT_COLS - 1) / HZI_QUAT_COLS);
	hzi_parallel(j->ctx, j->threads, multiply_panels, j, j->w->panels);
}
