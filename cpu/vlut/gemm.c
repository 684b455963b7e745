/*
 * gemm.c - vlut_gemm on the CPU: transforms x for the code paths, and runs one of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * With E the map from the integers of a point to its coordinates, and F = T^-1, a block adds
 *   s <F (E (p - o) - sub), x> = s (<p - o, x'> - <sub, F^T x>), x' = E^T F^T x.
 */
#include <config.h>

#include <string.h>

#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

/*
 * Range of the largest |x'| of a column, as bits: 2^-50 to 2^50, whose squares and inverses are
 * normal numbers
 */
#define LEAST ((127 - 50) << 23)
#define MOST ((127 + 50) << 23)
#define PAD 16		/* between columns, to spread them over the sets of a cache */

/* ---- Vectors --------------------------------------------------------------------------------- */

/* Writes x' of one block to `to` and returns <sub, F^T x>. */
static float map_block(const struct hzi_vlut_side *w, const float *x, float *to)
{
	const int d = w->rule->d;
	float u[HZI_LATTICE_DIMS], s = 0;

	HZI_LATTICE_KNOWN(w->rule);
	for (int i = 0; i < d; i++) {
		u[i] = x[i];
		if (w->matrices) {
			u[i] = 0;
			for (int l = 0; l < d; l++)
				u[i] += w->matrices->from[l * d + i] * x[l];
		}
		s += w->w->sub[i] * u[i];
	}
	if (w->rule->kind == HZ_LATTICE_A2) {
		/* Coordinates (t0 - t2) / 2 and -t1 sqrt(3) / 2 */
		to[0] = 0.5f * u[0];
		to[1] = -0.86602540378443864676f * u[1];
		to[2] = -0.5f * u[0];
		return s;
	}
	for (int i = 0; i < d; i++)
		to[i] = w->rule->kind == HZ_LATTICE_E8 ? 0.5f * u[i] : u[i];
	return s;
}

/*
 * Computes x' of column c, whose padded values are at x. most: bits of the largest |x'|; NaN is
 * above all.
 */
static void map_column(const struct hzi_vlut_gemm_job *j, int64_t c, const float *x)
{
	const struct hzi_vlut_side *w = &j->w;
	float *to = j->v.x + c * j->v.k;

	if (w->matrices || w->sub || w->rule->kind == HZ_LATTICE_A2) {
		for (int64_t b = 0; b < w->blocks; b++) {
			const float s = map_block(w, x + b * w->rule->d, to + b * w->embed);

			if (j->v.sub)
				j->v.sub[c * w->blocks + b] = -s;
		}
	} else {
		hzi_vlut_kern[j->ctx->level].convert(&(struct hzi_convert){
			.x = x, .y = to, .rows = 1, .count = j->v.k, .x_dtype = HZ_F32,
			.y_dtype = HZ_F32, .scale = w->rule->kind == HZ_LATTICE_E8 ? 0.5f : 1,
		});
	}
	j->most[c] = hzi_vlut_kern[j->ctx->level].abs_max(to, j->v.k);
}

/* Transforms groups of columns, in place those of f32 that are contiguous and fill blocks. */
static void map_columns(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_gemm_job *j = data;
	const struct hzi_vlut_gemm_args *a = j->a;
	const int64_t padded = j->w.blocks * j->w.rule->d, ld = padded + PAD;
	const bool in_place = a->x_dtype == HZ_F32 && a->x_k == 1 && a->w.k == padded;
	float *x = (float *)(void *)(j->scratch + thread * j->scratch_each);
	uint16_t *some = (uint16_t *)(void *)(x + HZI_VLUT_COLUMNS * ld);

	for (int64_t g = begin; g < end; g++) {
		const int64_t cols =
			hzi_vlut_min(HZI_VLUT_COLUMNS, a->batch - g * HZI_VLUT_COLUMNS);

		for (int64_t c = 0; c < cols && in_place; c++)
			map_column(j, g * HZI_VLUT_COLUMNS + c,
				   (const float *)a->x + (g * HZI_VLUT_COLUMNS + c) * a->x_b);
		if (in_place)
			continue;
		hzi_vlut_load(j->ctx, a->x, a->x_dtype, a->w.k, a->x_k,
			      g * HZI_VLUT_COLUMNS * a->x_b, cols, a->x_b, some, x, ld);
		for (int64_t c = 0; c < cols; c++) {
			memset(x + c * ld + a->w.k, 0, (size_t)(padded - a->w.k) * 4);
			map_column(j, g * HZI_VLUT_COLUMNS + c, x + c * ld);
		}
	}
}

/* ---- 8-bit digits ---------------------------------------------------------------------------- */

/* The largest integer of `parts` digits of -127 .. 127; below 2^22 all ISA levels round alike. */
static double reach_of(int parts)
{
	return parts == 2 ? 127 * 257 - 1 : 4194000;
}

/*
 * Splits columns: x' = unit * sum_p 256^p digit_p, rounded to nearest, into the rows of the path.
 */
static void split_columns(void *data, int thread, int64_t begin, int64_t end)
{
	struct hzi_vlut_gemm_job *j = data;
	const struct hzi_vlut_d4_bitfield *f = &j->d4_bitfield;
	const struct hzi_vlut_label_path *l = &j->label;
	const struct hzi_vlut_s8 *ints = &j->s8;
	const int parts = f->x ? f->parts : l->x ? l->parts : ints->parts;
	double *const factor = f->x ? f->factor : l->x ? l->factor : ints->factor;
	double *const shift = f->x ? f->shift : l->x ? l->shift : ints->shift;
	const double scale = l->x ? 1 : j->w.rule->scale[0];

	(void)thread;
	for (int64_t c = begin; c < end; c++) {
		const float *x = j->v.x + c * j->v.k;
		double unit = 1, sub = 0;
		float most;

		for (int64_t b = 0; j->v.sub && b < j->w.blocks; b++)
			sub += j->v.sub[c * j->w.blocks + b];
		memcpy(&most, &j->most[c], 4);
		if (j->integer_x)
			unit = j->w.rule->kind == HZ_LATTICE_E8 ? 0.5 : 1;
		else if (most > 0)
			unit = most / reach_of(parts);
		/* The product rounds once more, by less than half a unit. */
		hzi_vlut_kern[j->ctx->level].split_digits(x, j->v.k, (float)(1 / unit), parts,
						 f->x ? hzi_vlut_d4_bitfield_row(f, c) :
						 l->x ? hzi_vlut_label_row(l, c) :
							hzi_vlut_s8_row(ints, c),
						 f->x ? f->k : l->x ? 32 * l->units : ints->k);
		unit = 1 / (double)(float)(1 / unit);
		factor[c] = unit * scale;
		shift[c] = sub * scale;
	}
}

/* ---- Exact sums in s32 ----------------------------------------------------------------------- */

/* y of s32 where points do not fit bytes: sums mod 2^32 */
static void exact_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_gemm_job *j = data;
	const struct hzi_vlut_side *w = &j->w;
	const struct hzi_vlut_gemm_args *a = j->a;
	const int8_t *x = a->x;
	uint8_t *codes = (uint8_t *)j->scratch + thread * j->scratch_each;

	for (int64_t panel = begin; panel < end; panel++) {
		const int64_t row = panel * HZI_VLUT_ROWS;
		const int64_t rows = hzi_vlut_min(HZI_VLUT_ROWS, a->w.rows - row);
		const struct hzi_vlut_view v =
			hzi_vlut_view(j->ctx, w, panel, 0, w->blocks, codes);

		for (int64_t i = 0; i < rows; i++) {
			for (int64_t c = 0; c < a->batch; c++) {
				uint32_t sum = 0;

				for (int64_t b = 0; b < w->blocks; b++) {
					int32_t p[HZI_LATTICE_DIMS];

					hzi_vlut_point(w, &v, (int)i, b, p);
					for (int e = 0; e < w->embed; e++) {
						const int64_t k = b * w->embed + e;

						if (k >= a->w.k)
							break;
						sum += (uint32_t)(p[e] - w->rule->offset[e]) *
						       (uint32_t)x[k * a->x_k + c * a->x_b];
					}
				}
				((int32_t *)a->y)[(row + i) * a->y_i + c * a->y_b] = (int32_t)sum;
			}
		}
	}
}

/* ---- The product ----------------------------------------------------------------------------- */

/*
 * Whether two digits of each column, 16 bits, leave an error of at most 4e-5 of y. The error of x'
 * is sqrt(1 / 12) units, the largest |x'| over reach_of(2); so the error is small enough if the
 * largest is at most 4.5 times the root mean square. Four accumulators hide the latency of the
 * additions.
 */
static bool two_digits_suffice(const struct hzi_vlut_gemm_job *j)
{
	for (int64_t c = 0; c < j->v.cols; c++) {
		const float *x = j->v.x + c * j->v.k;
		float s[4] = {0}, most, inverse;

		memcpy(&most, &j->most[c], 4);
		inverse = most > 0 ? 1 / most : 0;
		for (int64_t i = 0; i < j->v.k; i += 4) {
			for (int l = 0; l < 4; l++)
				s[l] += (x[i + l] * inverse) * (x[i + l] * inverse);
		}
		if (most > 0 && (s[0] + s[1] + s[2] + s[3]) * (4.5f * 4.5f) < (float)j->v.k)
			return false;
	}
	return true;
}

void hzi_vlut_gemm_begin(struct hzi_vlut_gemm_job *j, struct hz_context *ctx,
			 const struct hzi_vlut_gemm_args *a)
{
	*j = (struct hzi_vlut_gemm_job){.ctx = ctx, .a = a};
	hzi_vlut_side(&j->w, a->vlut, a->vlut->w, &a->w);
	j->v.cols = a->batch;
	j->v.k = j->w.blocks * j->w.embed;
	j->threads = hzi_threads(ctx, 8 * j->v.cols * j->v.k);
	j->integer_x = a->x_dtype == HZ_S8 && !j->w.matrices && j->w.rule->kind != HZ_LATTICE_A2;
	/* The error of x' must be below that of f32 accumulators, or of a 16-bit y. */
	j->parts = j->integer_x ? 1 : a->y_dtype == HZ_F32 ? 3 : 2;
}

bool hzi_vlut_label_by_32(const struct hzi_vlut_gemm_job *j)
{
	return j->a->vlut->x_by_32 && !j->integer_x;
}

/* Sets the parameters of a path, and takes its workspace. */
static void init_path(struct hzi_vlut_gemm_job *j, int path, char *base, size_t *used)
{
	const struct hzi_vlut_gemm_args *a = j->a;
	const struct hzi_vlut_result y = {
		.y = a->y, .dtype = a->y_dtype, .y_i = a->y_i, .y_j = a->y_b, .bias = a->bias,
		.activation = a->activation,
	};

	switch (path) {
	case HZI_VLUT_REGTABLE:
		j->regtable = (struct hzi_vlut_regtable){
			.ctx = j->ctx, .w = &j->w, .v = j->v, .y = y,
			.entry_bytes = a->vlut->table_dtype == HZ_U8 ? 1 : 2,
		};
		hzi_vlut_regtable_init(&j->regtable, base, used);
		break;
	case HZI_VLUT_D4_BITFIELD:
		j->d4_bitfield = (struct hzi_vlut_d4_bitfield){
			.ctx = j->ctx, .w = &j->w, .y = y, .cols = a->batch, .parts = j->parts,
		};
		hzi_vlut_d4_bitfield_init(&j->d4_bitfield, base, used);
		break;
	case HZI_VLUT_LABEL:
		j->label = (struct hzi_vlut_label_path){
			.ctx = j->ctx, .w = &j->w, .v = j->v, .y = y, .cols = a->batch,
			.parts = hzi_vlut_label_by_32(j) ? 1 : j->parts,
			.by_32 = hzi_vlut_label_by_32(j),
		};
		hzi_vlut_label_init(&j->label, base, used);
		break;
	case HZI_VLUT_S8:
		j->s8 = (struct hzi_vlut_s8){
			.ctx = j->ctx, .w = &j->w, .y = y, .cols = a->batch, .parts = j->parts,
		};
		hzi_vlut_s8_init(&j->s8, base, used);
		break;
	case HZI_VLUT_TABLE_F32:
		j->table_f32 = (struct hzi_vlut_table_f32){
			.ctx = j->ctx, .w = &j->w, .v = j->v, .y = y,
			.dtype = a->vlut->table_dtype ? a->vlut->table_dtype : HZ_F32,
			.compensated = a->vlut->compensated,
		};
		hzi_vlut_table_f32_init(&j->table_f32, base, used);
		break;
	case HZI_VLUT_F32:
		j->f32 = (struct hzi_vlut_f32){.ctx = j->ctx, .w = &j->w, .v = j->v, .y = y};
		hzi_vlut_f32_init(&j->f32, base, used);
		break;
	}
}

size_t hzi_vlut_gemm_exact(struct hzi_vlut_gemm_job *j, char *base)
{
	const struct hzi_vlut_gemm_args *a = j->a;
	size_t used = 0;

	j->threads = hzi_threads(j->ctx, 16 * a->w.rows * j->v.k * a->batch);
	j->scratch_each = hzi_round_up(hzi_vlut_view_bytes(&j->w, j->w.blocks) + 1, 64);
	j->scratch = hzi_vlut_workspace_take(base, &used, j->threads * j->scratch_each);
	if (base)
		hzi_parallel(j->ctx, j->threads, exact_panels, j, j->w.panels);
	return used;
}

size_t hzi_vlut_gemm(struct hzi_vlut_gemm_job *j, int path, char *base)
{
	const struct hzi_vlut_gemm_args *a = j->a;
	size_t used = 0, first, other;
	bool moderate = true;

	j->v.x = hzi_vlut_workspace_take(base, &used, 4 * j->v.cols * j->v.k);
	if (j->w.sub && a->y_dtype != HZ_S32) {
		j->v.sub = hzi_vlut_workspace_take(base, &used, 4 * j->v.cols * j->w.blocks);
		/* Also when only bytes are counted: the sizes depend on it. */
		if (!base)
			j->v.sub = (float *)1;
	}
	j->most = hzi_vlut_workspace_take(base, &used, 4 * j->v.cols);
	j->scratch_each =
		hzi_round_up((4 * HZI_VLUT_COLUMNS + 2) * (j->w.blocks * j->w.rule->d + PAD), 64);
	j->scratch = hzi_vlut_workspace_take(base, &used, j->threads * j->scratch_each);
	if (base) {
		hzi_parallel(j->ctx, j->threads, map_columns, j,
			     (j->v.cols + HZI_VLUT_COLUMNS - 1) / HZI_VLUT_COLUMNS);
		for (int64_t c = 0; c < j->v.cols; c++)
			moderate &= j->most[c] == 0 || (j->most[c] >= LEAST && j->most[c] <= MOST);
		if (!moderate && path != HZI_VLUT_TABLE_F32 && a->y_dtype != HZ_S32)
			path = HZI_VLUT_F32;
		if (path == HZI_VLUT_D4_BITFIELD && j->parts == 3 &&
		    a->vlut->route == HZ_VLUT_AUTO && two_digits_suffice(j))
			j->parts = 2;
	}
	first = other = used;
	init_path(j, path, base, &first);
	if (!base) {
		/* The workspace that extreme values in x need */
		init_path(j, HZI_VLUT_F32, NULL, &other);
		return first > other ? first : other;
	}
	switch (path) {
	case HZI_VLUT_REGTABLE:
		hzi_vlut_regtable_run(&j->regtable);
		break;
	case HZI_VLUT_D4_BITFIELD:
		hzi_parallel(j->ctx, j->threads, split_columns, j, j->v.cols);
		hzi_vlut_d4_bitfield_run(&j->d4_bitfield);
		break;
	case HZI_VLUT_LABEL:
		if (!j->label.by_32)
			hzi_parallel(j->ctx, j->threads, split_columns, j, j->v.cols);
		hzi_vlut_label_run(&j->label);
		break;
	case HZI_VLUT_S8:
		hzi_parallel(j->ctx, j->threads, split_columns, j, j->v.cols);
		hzi_vlut_s8_run(&j->s8);
		break;
	case HZI_VLUT_TABLE_F32:
		hzi_vlut_table_f32_run(&j->table_f32);
		break;
	default:
		hzi_vlut_f32_run(&j->f32);
		break;
	}
	return first;
}
