/*
 * hadamard.h - shared by the files of Walsh-Hadamard transforms on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_HADAMARD_H
#define HZI_CPU_HADAMARD_H

#include "cpu/core/cpu.h"
#include "cpu/core/sizes.h"
#include "cpu/hadamard/kern.h"
#include "lib/hadamard/hadamard.h"

/* ---- tiles.c: cache blocking ----------------------------------------------------------------- */

/*
 * A matrix of m 2^k rows by `columns` columns: butterflies between rows, then the base matrix. A
 * tile has `width` columns; scratch holds its m 2^k rows, width + TILE_PAD apart.
 */
struct columns {
	const struct hzi_hadamard_kern *kern;
	const char *x;
	char *y;
	int32_t x_dtype, y_dtype, m, k;
	int64_t x_ld, y_ld, columns, width;
	const float *pre, *post;	/* row j: pre[j]; post[j] or post[j * post_ld + c] */
	int64_t post_ld;
	bool post_by_column, last;
	bool in_place;			/* y is x, and sums might overflow: see overflow.c */
	float scale;
	const float *sign;
	const int *most_exponent;	/* of values that are transformed; or NULL */
};

/*
 * Equally spaced blocks of a plan: block b is at x + b * x_ld, its elements x_step apart. scratch:
 * see struct areas.
 */
struct rows {
	const struct hz_context *ctx;
	const struct hzi_hadamard_kern *kern;
	const struct hzi_plan *plan;
	const char *x;
	char *y;
	int32_t x_dtype, y_dtype;
	int64_t x_ld, y_ld, x_step, y_step;
	const float *pre, *post;
	int64_t pre_ld, post_ld;	/* per block */
	const float *const *sign;	/* per segment */
	bool x_in_memory, y_in_memory;		/* in memory, beyond the caches */
	int threads;			/* for each transform */
	char *scratch;			/* of the worker that runs the blocks */
	bool in_place;			/* y is x, and sums might overflow: see overflow.c */
};

/*
 * Bytes of scratch of one worker, in this order: a column tile; the f32 values of one transform
 * between its passes, where y cannot hold them; a block gathered from x; a block to be scattered to
 * y. If threads share a transform, there are as many tiles as threads.
 */
struct areas {
	size_t tile, values, gather, scatter;
};

static inline size_t areas_bytes(const struct areas *s)
{
	return s->tile + s->values + s->gather + s->scatter;
}

/* The scratch of one worker for rows of a plan */
struct areas hzi_row_areas(const struct hzi_hadamard_kern *kern, const struct hzi_plan *plan,
			   int x_dtype, int y_dtype, int64_t x_step, int64_t y_step, int threads,
			   bool in_place);

/* Whether x and y exceed the caches of a core */
bool hzi_exceeds_cache(const struct hzi_hadamard_args *a);

/* Transforms blocks begin .. end - 1. */
void hzi_run_rows(const struct rows *r, const struct areas *s, int64_t begin, int64_t end);

/* The width of column tiles for all segments; *bytes: the scratch of one worker */
int64_t hzi_columns_width(const struct hzi_hadamard_kern *kern, const struct hzi_hadamard_args *a,
			  size_t *bytes);

/*
 * Transforms the tile from column c on. Returns how many columns it made; in place, fewer than the
 * tile has if sums overflow before x is lost. Then the first *done rows, which is 0 unless there are
 * two steps, have the first k / 2 stages behind them.
 */
int64_t hzi_run_columns(const struct columns *a, int64_t c, float *scratch, int64_t *done);

/* After sums of hzi_run_columns() in place overflowed: makes its last pass again from scratch. */
void hzi_scale_columns(const struct columns *a, int64_t c, const float *scratch);

/*
 * Routes of hadamard: see struct hzi_route. direct: one thread transforms rows in registers, or f32
 * rows with y as scratch, without a workspace or constants. columns: tiles of contiguous columns.
 * blocks: any call.
 */
const char *hzi_cpu_hadamard_direct_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cpu_hadamard_direct(struct hz_context *ctx, const void *args);
const char *hzi_cpu_hadamard_columns_unsupported(const struct hz_context *ctx, const void *args);
size_t hzi_cpu_hadamard_columns_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_hadamard_columns(struct hz_context *ctx, const void *args);
size_t hzi_cpu_hadamard_blocks_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_hadamard_blocks(struct hz_context *ctx, const void *args);

/* Threads worth starting for a call */
int hzi_cpu_hadamard_threads(const struct hz_context *ctx, const struct hzi_hadamard_args *a);

/* ---- overflow.c ------------------------------------------------------------------------------ */

#define HZI_HEAD_MOST 256		/* 2^head_bits, at most: no scratch needed */

/* One transform: element i is at x + i x_step and y + i y_step. */
struct hzi_scaled {
	const struct hzi_hadamard_kern *kern;
	const char *x;
	char *y;
	int32_t x_dtype, y_dtype, m, k;
	int64_t x_step, y_step, post_step;
	float scale;
	const float *sign, *pre, *post;	/* pre[i], post[i * post_step] */
	float *scratch;			/* as many floats, if y is not f32: see HZI_HEAD_MOST */
	bool fresh;			/* y has no result yet, and may be x */
	int64_t done;			/* elements that have pre and done_bits stages behind them */
	int32_t done_bits;
};

/* Transforms it, scaled if need be, if y has no result or a wrong one. */
void hzi_hadamard_scaled(const struct hzi_scaled *a);

/* Bits by which sums of a transform of m 2^k may exceed its input */
int hzi_hadamard_growth(int m, int k);

/* Whether transforms of that dtype might overflow */
static inline bool hzi_may_overflow(int x_dtype, const void *pre)
{
	return x_dtype != HZ_F16 || pre;
}

/* Whether y is x, which may be needed again */
static inline bool hzi_is_lost(const struct hzi_hadamard_args *a)
{
	return a->x == a->y && hzi_may_overflow(a->x_dtype, a->pre.data);
}

/* ---- hadamard.c: shared by all calls --------------------------------------------------------- */

/* A call: its diagonals and base matrices as f32, and its scratch */
struct job {
	const struct hz_context *ctx;
	const struct hzi_hadamard_args *a;
	const struct hzi_hadamard_kern *kern;
	const float *pre, *post;
	const float *sign[HZI_SEGMENTS];
	struct areas areas;
	size_t area_bytes;	/* distance between the areas of two workers */
	char *scratch;		/* of worker 0 */
	int64_t items;		/* the product of the outer dimensions */
	int share;		/* threads that work on one transform */
	int64_t width, tiles;	/* of columns */
};

/* Bytes of the diagonals and base matrices, which are first in the workspace */
size_t hzi_constants_bytes(const struct hzi_hadamard_args *a);

/* Fills job except for the areas, which follow hzi_constants_bytes() in the workspace. */
void hzi_begin_job(struct job *job, struct hz_context *ctx, const struct hzi_hadamard_args *a);

/*
 * Whether threads share each transform instead of each doing transforms of their own: transforms
 * are long and fewer than threads, or their scratch is large.
 */
bool hzi_is_shared(const struct areas *s, const struct hzi_plan *plan, int64_t units, int threads);

/*
 * Bytes of scratch: every worker has its own areas, or workers that share a unit have one set of
 * areas and a tile each.
 */
size_t hzi_scratch_bytes(const struct areas *s, int64_t units, int threads);

/* The blocks of a call's first item */
struct rows hzi_rows_of(const struct job *job);

#endif
