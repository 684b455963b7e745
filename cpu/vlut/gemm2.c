/*
 * gemm2.c - products of lattice codes and lattice codes on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * S8: the points of both operands as s8, exact sums times one scale per row
 * VIA_F32: x is decoded to f32, then as vlut_gemm in f32: where blocks have scales of their own
 *          or values are not points times a scale
 * TABLE: T[I][J] = <c(I), c(J)>, entry by entry: the reference
 * EXACT: points of any size, in 64-bit sums
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

/*
 * Number of integers of a row that count. A2 has three for two values, so all of its last block
 * count.
 */
static int64_t integers(const struct hzi_vlut_gemm2_job *j)
{
	return j->w.embed == j->w.rule->d ? j->a->w.k : j->w.blocks * j->w.embed;
}

/* The factor of a sum of products of integers, without the scale of w's row */
static double factor_of(const struct hzi_vlut_gemm2_job *j, int64_t x_row)
{
	const struct hzi_coded *x = j->x.w;

	return (double)j->w.rule->scale[0] * j->x.rule->scale[0] / j->a->vlut->unit *
	       (x->row_scale ? x->row_scale[x_row * x->row_scale_step] : 1);
}

/* ---- x as s8 and as values ------------------------------------------------------------------- */

static void bytes_of_x(void *data, int thread, int64_t begin, int64_t end)
{
	struct hzi_vlut_gemm2_job *j = data;
	const struct hzi_vlut_side *x = &j->x;
	const int64_t k = x->blocks * x->embed, b_panel = 32 * hzi_round_up(k, 64);
	uint8_t *b = (uint8_t *)j->scratch + thread * j->scratch_each;
	uint8_t *codes = b + 2 * b_panel;

	for (int64_t panel = begin; panel < end; panel++) {
		const int64_t row = panel * HZI_VLUT_ROWS;
		const int64_t rows = hzi_vlut_min(HZI_VLUT_ROWS, x->w->rows - row);
		const struct hzi_vlut_view v =
			hzi_vlut_view(j->ctx, x, panel, 0, x->blocks, codes);

		hzi_vlut_bytes(j->ctx, x, &v, j->table, x->blocks, b, b_panel);
		for (int64_t i = 0; i < rows; i++) {
			const uint8_t *from = b + i / 32 * b_panel + i / 16 % 2 * 1024 + i % 16 * 4;
			int8_t *to = hzi_vlut_s8_row(&j->s8, row + i);

			for (int64_t l = 0; l < k; l += 4)
				memcpy(to + l, from + l / 64 * 2048 + l % 64 / 4 * 64,
				       (size_t)hzi_vlut_min(4, k - l));
			memset(to + integers(j), 0, (size_t)(k - integers(j)));
			j->s8.factor[row + i] = factor_of(j, row + i);
			j->s8.shift[row + i] = 0;
		}
	}
}

static void values_of_x(void *data, int thread, int64_t begin, int64_t end)
{
	struct hzi_vlut_gemm2_job *j = data;
	const struct hzi_vlut_side *x = &j->x;
	const int64_t k = j->a->w.k, d = x->rule->d;

	HZI_LATTICE_KNOWN(x->rule);
	for (int64_t panel = begin; panel < end; panel++) {
		const int64_t row = panel * HZI_VLUT_ROWS;
		const int64_t rows = hzi_vlut_min(HZI_VLUT_ROWS, x->w->rows - row);
		const struct hzi_vlut_view v =
			hzi_vlut_view(j->ctx, x, panel, 0, x->blocks,
				      (uint8_t *)j->scratch + thread * j->scratch_each);

		for (int i = 0; i < rows; i++) {
			const float scale = x->w->row_scale ?
					    x->w->row_scale[(row + i) * x->w->row_scale_step] : 1;

			for (int64_t b = 0; b < x->blocks; b++) {
				const int t = v.t ? v.t[b / x->group * 64 + hzi_vlut_row_at(i)] : 0;
				int32_t p[HZI_LATTICE_DIMS];
				float value[HZI_LATTICE_DIMS];

				hzi_vlut_point(x, &v, i, b, p);
				hzi_lattice_value(x->rule, x->matrices, p, x->w->sub, t, value);
				for (int e = 0; e < x->rule->d && b * d + e < k; e++)
					j->values[(row + i) * k + b * d + e] = value[e] * scale;
			}
		}
	}
}

/* ---- Pairs of rows: tables, and integers of any size ----------------------------------------- */

struct pair {
	const struct hzi_vlut_view *wv, *xv;
	int w_row, x_row;
};

/* p - o of the rows of a view, blocks * embed each */
static void points_of(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int64_t rows,
		      int32_t *to)
{
	for (int i = 0; i < rows; i++) {
		for (int64_t b = 0; b < s->blocks; b++, to += s->embed) {
			int32_t p[HZI_LATTICE_DIMS];

			hzi_vlut_point(s, v, i, b, p);
			for (int e = 0; e < s->embed; e++)
				to[e] = p[e] - s->rule->offset[e];
		}
	}
}

/* <p, p'> of integers, from the table */
static int64_t dot_points(const struct hzi_vlut_gemm2_job *j, const struct pair *r, int64_t b)
{
	const struct hz_vlut *o = j->a->vlut;
	const int64_t cols = (int64_t)j->x.rule->level_size;
	int64_t sum = 0, wm = 1;

	for (int m = 0; m < j->w.rule->levels; m++, wm *= j->w.rule->q) {
		int64_t xm = wm;

		for (int n = 0; n < j->x.rule->levels; n++, xm *= j->x.rule->q) {
			int64_t at;

			if (m < j->w.first || n < j->x.first)
				continue;
			at = hzi_vlut_code(&j->w, r->wv, r->w_row, b, m - j->w.first) * cols +
			     hzi_vlut_code(&j->x, r->xv, r->x_row, b, n - j->x.first);
			sum += xm * (o->table_dtype == HZ_S8 ? ((const int8_t *)o->table)[at]
							     : ((const int16_t *)o->table)[at]);
		}
	}
	return sum;
}

static bool any_offset(const struct hzi_vlut_side *s)
{
	return s->offset_max != 0;
}

/* <p - o, p' - o'> */
static int64_t dot_block(const struct hzi_vlut_gemm2_job *j, const struct pair *r, int64_t b)
{
	int64_t sum = dot_points(j, r, b);
	int32_t p[HZI_LATTICE_DIMS];

	if (any_offset(&j->x)) {
		hzi_vlut_point(&j->w, r->wv, r->w_row, b, p);
		for (int e = 0; e < j->w.embed; e++)
			sum -= (int64_t)(p[e] - j->w.rule->offset[e]) * j->x.rule->offset[e];
	}
	if (any_offset(&j->w)) {
		hzi_vlut_point(&j->x, r->xv, r->x_row, b, p);
		for (int e = 0; e < j->w.embed; e++)
			sum -= (int64_t)p[e] * j->w.rule->offset[e];
	}
	return sum;
}

/* Coordinates of p - o; unscaled */
static void coordinates(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int row,
			int64_t b, double *u)
{
	int32_t p[HZI_LATTICE_DIMS];

	hzi_vlut_point(s, v, row, b, p);
	for (int e = 0; e < s->embed; e++)
		p[e] -= s->rule->offset[e];
	for (int i = 0; i < s->rule->d; i++)
		u[i] = s->rule->kind == HZ_LATTICE_E8 ? 0.5 * p[i] : p[i];
	if (s->rule->kind == HZ_LATTICE_A2) {
		u[0] = 0.5 * (p[0] - p[2]);
		u[1] = -0.86602540378443864676 * p[1];
	}
}

/* <p - o - sub, p' - o' - sub'> */
static double dot_real(const struct hzi_vlut_gemm2_job *j, const struct pair *r, int64_t b)
{
	double sum = (double)dot_block(j, r, b) / j->a->vlut->unit;
	double u[HZI_LATTICE_DIMS], v[HZI_LATTICE_DIMS];

	if (!j->w.sub && !j->x.sub)
		return sum;
	assert(j->w.rule->d == j->x.rule->d);
	coordinates(&j->w, r->wv, r->w_row, b, u);
	coordinates(&j->x, r->xv, r->x_row, b, v);
	for (int i = 0; i < j->w.rule->d; i++)
		sum -= u[i] * j->x.w->sub[i] + j->w.w->sub[i] * (v[i] - j->x.w->sub[i]);
	return sum;
}

/* Stores a sum of products of integers, of blocks that have no scale of their own. */
static void store_sum(const struct hzi_vlut_gemm2_job *j, int64_t row, int64_t x_row, int64_t sum)
{
	const struct hzi_vlut_gemm2_args *a = j->a;
	const struct hzi_vlut_result y = {a->y, a->y_dtype, a->y_i, a->y_j, NULL, 0};

	if (a->y_dtype == HZ_S32) {
		((int32_t *)a->y)[row * a->y_i + x_row * a->y_j] = (int32_t)(uint32_t)sum;
		return;
	}
	hzi_vlut_store_one(j->ctx, &j->w, &y, row, x_row,
			 (float)((double)sum * factor_of(j, x_row)));
}

static void store_pair(const struct hzi_vlut_gemm2_job *j, const struct pair *r, int64_t row,
		       int64_t x_row)
{
	const struct hzi_vlut_gemm2_args *a = j->a;
	const struct hzi_vlut_result y = {a->y, a->y_dtype, a->y_i, a->y_j, NULL, 0};
	int64_t whole = 0;
	double sum = 0;

	for (int64_t b = 0; b < j->w.blocks; b++) {
		if (a->y_dtype == HZ_S32)
			whole += dot_block(j, r, b);
		else
			sum += (double)hzi_vlut_scale(&j->w, r->wv, r->w_row, b) *
			       hzi_vlut_scale(&j->x, r->xv, r->x_row, b) * dot_real(j, r, b);
	}
	if (a->y_dtype == HZ_S32) {
		store_sum(j, row, x_row, whole);
		return;
	}
	if (j->x.w->row_scale)
		sum *= j->x.w->row_scale[x_row * j->x.w->row_scale_step];
	hzi_vlut_store_one(j->ctx, &j->w, &y, row, x_row, (float)sum);
}

/* Scratch of a thread: views of both operands, and their points */
static int64_t pairs_bytes(const struct hzi_vlut_gemm2_job *j, int64_t *x_codes, int64_t *points)
{
	*x_codes = hzi_round_up(hzi_vlut_view_bytes(&j->w, j->w.blocks) + 1, 64);
	*points = *x_codes + hzi_round_up(hzi_vlut_view_bytes(&j->x, j->x.blocks), 64);
	return *points + (j->exact ? 8 * HZI_VLUT_ROWS * j->w.blocks * j->w.embed : 0);
}

static void pairs(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_gemm2_job *j = data;
	const struct hz_context *ctx = j->ctx;
	const bool exact = j->exact;
	const int64_t k = j->w.blocks * j->w.embed, counted = integers(j);
	uint8_t *scratch = (uint8_t *)j->scratch + thread * j->scratch_each;
	int64_t x_codes, points;
	int32_t *wp, *xp;

	pairs_bytes(j, &x_codes, &points);
	wp = (int32_t *)(void *)(scratch + points);
	xp = wp + HZI_VLUT_ROWS * k;
	for (int64_t panel = begin; panel < end; panel++) {
		const int64_t row = panel * HZI_VLUT_ROWS;
		const int64_t rows = hzi_vlut_min(HZI_VLUT_ROWS, j->w.w->rows - row);
		const struct hzi_vlut_view wv =
			hzi_vlut_view(ctx, &j->w, panel, 0, j->w.blocks, scratch);

		if (exact)
			points_of(&j->w, &wv, rows, wp);
		for (int64_t col = 0; col < j->x.w->rows; col += HZI_VLUT_ROWS) {
			const int64_t cols = hzi_vlut_min(HZI_VLUT_ROWS, j->x.w->rows - col);
			const struct hzi_vlut_view xv =
				hzi_vlut_view(ctx, &j->x, col / HZI_VLUT_ROWS, 0, j->x.blocks,
					      scratch + x_codes);

			if (exact)
				points_of(&j->x, &xv, cols, xp);
			for (int i = 0; i < rows; i++) {
				for (int c = 0; c < cols; c++) {
					const struct pair r = {&wv, &xv, i, c};
					int64_t sum = 0;

					if (!exact) {
						store_pair(j, &r, row + i, col + c);
						continue;
					}
					for (int64_t l = 0; l < counted; l++)
						sum += (int64_t)wp[i * k + l] * xp[c * k + l];
					store_sum(j, row + i, col + c, sum);
				}
			}
		}
	}
}

/* ---- The product ----------------------------------------------------------------------------- */

void hzi_vlut_gemm2_begin(struct hzi_vlut_gemm2_job *j, struct hz_context *ctx,
			  const struct hzi_vlut_gemm2_args *a)
{
	*j = (struct hzi_vlut_gemm2_job){.ctx = ctx, .a = a};
	hzi_vlut_side(&j->w, a->vlut, a->vlut->w, &a->w);
	hzi_vlut_side(&j->x, a->vlut, a->vlut->x, &a->x);
}

static size_t multiply_s8(struct hzi_vlut_gemm2_job *j, char *base)
{
	const struct hzi_vlut_gemm2_args *a = j->a;
	size_t used = 0;

	j->scratch_each += HZI_VLUT_ROWS * hzi_round_up(j->x.blocks * j->x.embed, 64);
	j->table = hzi_vlut_workspace_take(base, &used, hzi_vlut_byte_table_bytes(&j->x));
	j->scratch = hzi_vlut_workspace_take(base, &used, j->threads * j->scratch_each);
	j->s8 = (struct hzi_vlut_s8){
		.ctx = j->ctx, .w = &j->w, .y = {a->y, a->y_dtype, a->y_i, a->y_j, NULL, 0},
		.cols = a->x.rows, .parts = 1,
	};
	hzi_vlut_s8_init(&j->s8, base, &used);
	if (base) {
		hzi_vlut_byte_table(&j->x, j->table);
		hzi_parallel(j->ctx, j->threads, bytes_of_x, j, j->x.panels);
		hzi_vlut_s8_run(&j->s8);
	}
	return used;
}

static size_t multiply_f32(struct hzi_vlut_gemm2_job *j, char *base)
{
	const struct hzi_vlut_gemm2_args *a = j->a;
	struct hz_vlut dense = *a->vlut;
	struct hzi_vlut_gemm_args gemm;
	struct hzi_vlut_gemm_job one;
	size_t used = 0;

	j->scratch = hzi_vlut_workspace_take(base, &used, j->threads * j->scratch_each);
	j->values = hzi_vlut_workspace_take(base, &used, 4 * a->x.rows * a->w.k);
	dense.route = HZ_VLUT_AUTO;
	dense.table_dtype = 0;
	dense.compensated = 0;
	dense.sum = HZ_F32;
	gemm = (struct hzi_vlut_gemm_args){
		.vlut = &dense, .w = a->w, .x = j->values, .y = a->y, .x_dtype = HZ_F32,
		.y_dtype = a->y_dtype, .batch = a->x.rows, .x_k = 1, .x_b = a->w.k,
		.y_i = a->y_i, .y_b = a->y_j,
	};
	if (base)
		hzi_parallel(j->ctx, j->threads, values_of_x, j, j->x.panels);
	hzi_vlut_gemm_begin(&one, j->ctx, &gemm);
	return used + hzi_vlut_gemm(&one, HZI_VLUT_F32, base ? base + used : NULL);
}

size_t hzi_vlut_gemm2(struct hzi_vlut_gemm2_job *j, int path, char *base)
{
	const struct hzi_vlut_gemm2_args *a = j->a;
	const int64_t k = a->w.k;
	int64_t x_codes, points;
	size_t used = 0;

	j->threads = hzi_threads(j->ctx, j->x.panels * HZI_VLUT_ROWS * k *
					 (path == HZI_VLUT2_VIA_F32 ? 8 : 1));
	j->scratch_each = hzi_round_up(hzi_vlut_view_bytes(&j->x, j->x.blocks), 64);
	if (path == HZI_VLUT2_S8)
		return multiply_s8(j, base);
	if (path == HZI_VLUT2_VIA_F32)
		return multiply_f32(j, base);
	j->exact = path == HZI_VLUT2_EXACT;
	j->threads = hzi_threads(j->ctx, 16 * a->w.rows * a->x.rows * k);
	j->scratch_each = hzi_round_up(pairs_bytes(j, &x_codes, &points), 64);
	j->scratch = hzi_vlut_workspace_take(base, &used, j->threads * j->scratch_each);
	if (base)
		hzi_parallel(j->ctx, j->threads, pairs, j, j->w.panels);
	return used;
}
