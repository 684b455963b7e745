/*
 * regtable.c - products with lattice codes: tables of inner products in vector registers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each block and column has a table of <c, x'>, which all levels share. u16 entries (low bytes,
 * then high bytes) have a unit of 1 / 32767 of the largest entry of a group of blocks; u8 entries
 * quantize the range from the least to the largest entry of the block. A group has one unit, so its
 * sum is exact. Blocks with u8 entries are sorted by their range, so that the blocks of a group
 * need about the same unit. Where codes have T, the groups are those of T.
 *
 * Errors for D4 with q = 4, M = 2 and normal x and W: 16 bits 2e-5 of |y|, 8 bits 0.6 %; the
 * quantization itself has 6.4 %.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

#define TABLES ((int64_t)1 << 20)	/* bytes of tables at a time, which stay in L2 */
#define COLUMNS 4			/* at a time */
#define PIECE 64			/* blocks whose tables a thread computes at a time */
#define GROUP 32			/* blocks of a group with 16-bit tables, which stay in L1 */
#define GROUP_8 16
#define UNIT 32766.0f

static int64_t padded_entries(const struct hzi_vlut_regtable *j)
{
	return j->w->size < 64 ? 64 : j->w->size;
}

void hzi_vlut_regtable_init(struct hzi_vlut_regtable *j, char *base, size_t *used)
{
	const struct hzi_vlut_side *w = j->w;
	int64_t groups;

	j->cols = hzi_vlut_min(COLUMNS, j->v.cols);
	j->group = w->has_t ? w->group : j->entry_bytes > 1 ? GROUP : GROUP_8;
	j->chunk = TABLES / (j->cols * j->entry_bytes * w->size) / j->group * j->group;
	j->chunk = hzi_vlut_min(j->chunk < j->group ? j->group : j->chunk, w->blocks);
	groups = (j->chunk + j->group - 1) / j->group;
	j->padded = w->panels * HZI_VLUT_ROWS;
	j->threads = hzi_threads(j->ctx, 2 * w->panels * HZI_VLUT_ROWS * w->blocks * w->levels);
	j->leaders = hzi_vlut_workspace_take(base, used, 4 * w->embed * padded_entries(j));
	j->low = hzi_vlut_workspace_take(base, used, 4 * j->cols * j->chunk);
	j->high = hzi_vlut_workspace_take(base, used, 4 * j->cols * j->chunk);
	j->ordered = hzi_vlut_workspace_take(base, used, 4 * j->cols * j->chunk);
	j->inverse = hzi_vlut_workspace_take(base, used, 4 * j->cols * j->chunk);
	j->order = hzi_vlut_workspace_take(base, used, 4 * j->cols * j->chunk);
	j->weight = hzi_vlut_workspace_take(base, used, 4 * j->cols * groups);
	j->base = hzi_vlut_workspace_take(base, used, 4 * j->cols * groups);
	j->sum = hzi_vlut_workspace_take(base, used, 4 * j->cols * j->padded);
	j->table =
		hzi_vlut_workspace_take(base, used, j->cols * j->chunk * j->entry_bytes * w->size);
	j->scratch_each = hzi_round_up(hzi_vlut_view_bytes(w, j->chunk), 64);
	j->scratch = hzi_vlut_workspace_take(base, used, j->threads * j->scratch_each);
}

/* Entries beyond q^d are 0, like that of code 0. */
static void fill_leaders(const struct hzi_vlut_regtable *j)
{
	const struct hzi_vlut_side *w = j->w;
	const int64_t n = (int64_t)w->rule->level_size;

	memset(j->leaders, 0, (size_t)(w->embed * padded_entries(j)) * 4);
	for (int e = 0; e < w->embed; e++) {
		for (int64_t i = 0; i < n; i++)
			j->leaders[e * padded_entries(j) + i] =
				(float)w->lattice->leaders[i * w->embed + e];
	}
}

/* Piece p of column c: the inputs of its tables */
static struct hzi_vlut_table piece(const struct hzi_vlut_regtable *j, int64_t u)
{
	const int64_t pieces = (j->blocks + PIECE - 1) / PIECE, c = u / pieces,
		      p = u % pieces * PIECE;
	const struct hzi_vlut_side *w = j->w;
	const int64_t at = c * j->chunk + p;

	return (struct hzi_vlut_table){
		.x = j->v.x + (j->col + c) * j->v.k + j->first * w->embed, .leaders = j->leaders,
		.order = j->order + at, .table = j->table + at * j->entry_bytes * w->size,
		.low = j->low + at,
		.high = j->high + at, .inverse = j->inverse + at,
		.blocks = hzi_vlut_min(PIECE, j->blocks - p), .embed = w->embed,
		.entry_bytes = j->entry_bytes,
		.size = w->size,
	};
}

static void ranges(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_regtable *j = data;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		struct hzi_vlut_table t = piece(j, u);

		t.x += u % ((j->blocks + PIECE - 1) / PIECE) * PIECE * j->w->embed;
		hzi_vlut_kern[j->ctx->level].range(&t);
	}
}

static void tables(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_regtable *j = data;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		struct hzi_vlut_table t = piece(j, u);

		t.low = j->ordered + (t.low - j->low);
		hzi_vlut_kern[j->ctx->level].table(&t);
	}
}

/* Sorts blocks by their ranges, roughly: by 256 steps of the largest. */
static void sort_blocks(const struct hzi_vlut_regtable *j, const float *low, const float *high,
			int32_t *order)
{
	int32_t count[257] = {0};
	float most = 0;

	for (int64_t i = 0; i < j->blocks; i++)
		most = high[i] - low[i] > most ? high[i] - low[i] : most;
	for (int pass = 0; pass < 2; pass++) {
		for (int64_t i = 0; i < j->blocks; i++) {
			const float part = most > 0 ? (high[i] - low[i]) / most * 255 : 0;

			if (pass == 0)
				count[(int)part + 1]++;
			else
				order[count[(int)part]++] = (int32_t)i;
		}
		for (int b = 0; pass == 0 && b < 256; b++)
			count[b + 1] += count[b];
	}
}

/* x|^2 of a block. The largest entry of a group, squared, is at most the maximum of |x|^2 |c|^2. */
static float square(const struct hzi_vlut_regtable *j, const float *x)
{
	float s = 0;

	for (int e = 0; e < j->w->embed; e++)
		s += x[e] * x[e];
	return s;
}

static float largest_leader(const struct hzi_vlut_side *w)
{
	int64_t most = 0;

	for (uint64_t i = 0; i < w->rule->level_size; i++) {
		int64_t s = 0;

		for (int e = 0; e < w->embed; e++) {
			const int64_t c = w->lattice->leaders[i * (uint64_t)w->embed + (uint64_t)e];

			s += c * c;
		}
		most = s > most ? s : most;
	}
	return sqrtf((float)most);
}

/* Sets the order of blocks, the units, and the terms added to sums, of a column of the chunk. */
static void plan_column(const struct hzi_vlut_regtable *j, int64_t c, float leader)
{
	const struct hzi_vlut_side *w = j->w;
	const int64_t at = c * j->chunk, groups = (j->chunk + j->group - 1) / j->group;
	const float *x = j->v.x + (j->col + c) * j->v.k + j->first * w->embed;
	const float *sub = j->v.sub ? j->v.sub + (j->col + c) * w->blocks + j->first : NULL;
	int32_t *order = j->order + at;
	float q_sum = 0, weight = 1;

	for (int l = 0; l < w->levels; l++, weight *= (float)w->rule->q)
		q_sum += weight;
	for (int m = 0; m < w->first; m++)
		q_sum *= (float)w->rule->q;
	if (j->entry_bytes == 1 && !w->has_t) {
		sort_blocks(j, j->low + at, j->high + at, order);
	} else {
		for (int64_t i = 0; i < j->blocks; i++)
			order[i] = (int32_t)i;
	}
	for (int64_t g = 0, i = 0; i < j->blocks; g++) {
		const int64_t end = hzi_vlut_min(i + j->group, j->blocks);
		float most = 0, inverse, less = 0;
		double quotient = 0;

		for (int64_t l = i; l < end; l++) {
			const int32_t block = order[l];
			const float *xs = x + block * w->embed;
			const float range = j->entry_bytes == 1 ?
						    j->high[at + block] - j->low[at + block] :
						    square(j, xs);

			most = range > most ? range : most;
			j->ordered[at + l] = j->entry_bytes == 1 ? j->low[at + block] : 0;
			less += j->ordered[at + l] * q_sum + (sub ? sub[block] : 0);
			for (int e = 0; w->offset_max && e < w->embed; e++)
				less -= xs[e] * (float)w->rule->offset[e];
		}
		if (!(most <= 0))
			quotient = j->entry_bytes == 1 ? 255.0 / (double)most :
				   (double)UNIT / (double)(sqrtf(most) * leader);
		/* For numbers so small that this exceeds f32, the result is 0 either way. */
		inverse = quotient <= 1e38 ? (float)quotient : 0;
		for (; i < end; i++)
			j->inverse[at + i] = inverse;
		j->weight[c * groups + g] = inverse > 0 ? 1 / inverse : 0;
		j->base[c * groups + g] = less;
	}
	for (int m = 0; m < w->first; m++) {
		for (int64_t g = 0; g < groups; g++)
			j->weight[c * groups + g] *= (float)w->rule->q;
	}
}

static void sums(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_regtable *j = data;
	const struct hzi_vlut_side *w = j->w;
	const int64_t groups = (j->chunk + j->group - 1) / j->group;

	for (int64_t panel = begin; panel < end; panel++) {
		const struct hzi_vlut_view v =
			hzi_vlut_view(j->ctx, w, panel, j->first, j->blocks,
				      (uint8_t *)j->scratch + thread * j->scratch_each);

		for (int64_t c = 0; c < j->count; c++) {
			const struct hzi_vlut_sum s = {
				.codes = v.codes,
				.t = v.t,
				.table = j->table + c * j->chunk * j->entry_bytes * w->size,
				.order = j->entry_bytes == 1 && !w->has_t ?
						 j->order + c * j->chunk :
						 NULL,
				.weight = j->weight + c * groups,
				.base = j->base + c * groups,
				.scale = w->rule->scale,
				.y = j->sum + c * j->padded + panel * HZI_VLUT_ROWS,
				.blocks = j->blocks,
				.step = v.step,
				.group = (int32_t)j->group,
				.levels = w->levels,
				.entry_bytes = j->entry_bytes,
				.size = w->size,
				.q = (float)w->rule->q,
			};

			hzi_vlut_kern[j->ctx->level].sum(&s);
		}
	}
}

static void finish(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_regtable *j = data;
	const float scale = j->w->has_t ? 1 : j->w->rule->scale[0];

	(void)thread;
	for (int64_t panel = begin; panel < end; panel++) {
		for (int64_t c = 0; c < j->count; c++) {
			float *y = j->sum + c * j->padded + panel * HZI_VLUT_ROWS;

			for (int i = 0; i < HZI_VLUT_ROWS; i++)
				y[i] *= scale;
			hzi_vlut_store(j->ctx, j->w, &j->y, panel, j->col + c, y);
		}
	}
}

void hzi_vlut_regtable_run(struct hzi_vlut_regtable *j)
{
	const float leader = largest_leader(j->w);

	fill_leaders(j);
	for (j->col = 0; j->col < j->v.cols; j->col += j->cols) {
		j->count = hzi_vlut_min(j->cols, j->v.cols - j->col);
		memset(j->sum, 0, (size_t)(j->count * j->padded) * 4);
		for (j->first = 0; j->first < j->w->blocks; j->first += j->chunk) {
			int64_t pieces;

			j->blocks = hzi_vlut_min(j->chunk, j->w->blocks - j->first);
			pieces = j->count * ((j->blocks + PIECE - 1) / PIECE);
			if (j->entry_bytes == 1)
				hzi_parallel(j->ctx, j->threads, ranges, j, pieces);
			for (int64_t c = 0; c < j->count; c++)
				plan_column(j, c, leader);
			hzi_parallel(j->ctx, j->threads, tables, j, pieces);
			hzi_parallel(j->ctx, j->threads, sums, j, j->w->panels);
		}
		hzi_parallel(j->ctx, j->threads, finish, j, j->w->panels);
	}
}
