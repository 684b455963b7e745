/*
 * quat.c - elementwise quaternion operations on a CPU: rows, sums and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/core/sizes.h"
#include "cpu/quat/kern.h"
#include "lib/quat/quat.h"

#define OPERANDS 5			/* of a row: three inputs, two outputs */

static void *offset(const void *p, int64_t elements, int64_t size)
{
	return (char *)(uintptr_t)p + elements * size;
}

/* ---- Indices --------------------------------------------------------------------------------- */

/* An index over some dimensions, the last one fastest, and each operand's offset at it */
struct walk {
	int ndim, operands;
	int64_t shape[HZ_MAXDIM], index[HZ_MAXDIM], stride[OPERANDS][HZ_MAXDIM];
	int64_t at[OPERANDS];
};

static void add_dim(struct walk *w, int64_t size, const struct hzi_quat_at *const *operand, int d)
{
	w->shape[w->ndim] = size;
	for (int i = 0; i < w->operands; i++)
		w->stride[i][w->ndim] = operand[i]->stride[d];
	w->ndim++;
}

static int64_t walk_count(const struct walk *w)
{
	int64_t count = 1;

	for (int d = 0; d < w->ndim; d++)
		count *= w->shape[d];
	return count;
}

static void walk_to(struct walk *w, int64_t flat)
{
	memset(w->at, 0, sizeof(w->at));
	for (int d = w->ndim - 1; d >= 0; d--) {
		w->index[d] = flat % w->shape[d];
		flat /= w->shape[d];
		for (int i = 0; i < w->operands; i++)
			w->at[i] += w->index[d] * w->stride[i][d];
	}
}

static void walk_on(struct walk *w)
{
	for (int d = w->ndim - 1; d >= 0; d--) {
		const bool wrap = ++w->index[d] == w->shape[d];

		for (int i = 0; i < w->operands; i++)
			w->at[i] += wrap ? -(w->shape[d] - 1) * w->stride[i][d] : w->stride[i][d];
		if (!wrap)
			return;
		w->index[d] = 0;
	}
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/*
 * Rows are cut into pieces of this many quaternions, so that all threads have work. Where the row
 * is not the fastest dimension, neighbouring rows find the cache lines of the piece in L2.
 */
#define PIECE 4096
#define ROW_LEAST 16			/* row length below which a longer dimension is the row */

struct row_job {
	const struct hzi_quat_kern *kern;
	struct hzi_quat_row row;	/* its lists point to element 0 */
	struct walk outer;		/* operands: in[0 .. 2], out[0 .. 1] */
	int64_t rows, n, size;
};

static struct hzi_quat_list *list_of(struct hzi_quat_row *row, int i)
{
	return i < 3 ? &row->in[i] : &row->out[i - 3];
}

static void row_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct row_job *job = data;
	struct walk walk = job->outer;

	(void)thread;
	if (begin < end)
		walk_to(&walk, begin % job->rows);
	/* Unit u is piece u / rows of row u % rows. */
	for (int64_t u = begin; u < end; u++) {
		const int64_t first = u / job->rows * PIECE;
		struct hzi_quat_row row = job->row;

		for (int i = 0; i < OPERANDS; i++) {
			struct hzi_quat_list *const l = list_of(&row, i);

			if (l->p)
				l->p = offset(l->p, walk.at[i] + first * l->step, job->size);
		}
		row.count = min_i64(PIECE, job->n - first);
		job->kern->row(&row);
		walk_on(&walk);
	}
}

/* Picks the dimension that is the row. */
static int row_dim(const struct hzi_quat_dims *dims)
{
	int row = dims->ndim ? dims->ndim - 1 : 0;

	for (int d = dims->ndim - 2; d >= 0 && dims->shape[dims->ndim - 1] < ROW_LEAST; d--) {
		if (dims->shape[d] > dims->shape[row])
			row = d;
	}
	return row;
}

/* Whether results exceed the caches and overwrite no input: then stores are non-temporal. */
static bool may_stream(const struct hz_context *ctx, const struct hzi_quat_row *row, int64_t bytes)
{
	if (bytes <= hzi_cache_share(ctx) / 4 * 3 || row->accumulate)
		return false;
	for (int i = 0; i < 3; i++) {
		if (row->in[i].p == row->out[0].p)
			return false;
	}
	return true;
}

/*
 * Runs row->work on all elements of dims. operand: three inputs, two outputs, in the order of the
 * work; NULL: absent.
 */
static int run_rows(struct hz_context *ctx, const struct hzi_quat_dims *dims,
		    struct hzi_quat_row *row, const struct hzi_quat_at *const *operand)
{
	static const struct hzi_quat_at none;
	const int along = row_dim(dims);
	const int64_t size = dtype_bytes(row->dtype);
	const struct hzi_quat_at *at[OPERANDS];
	int64_t bytes = 0, elements = 1;
	struct row_job job;

	for (int i = 0; i < OPERANDS; i++) {
		struct hzi_quat_list *const l = list_of(row, i);

		at[i] = operand[i] ? operand[i] : &none;
		l->p = at[i]->data;
		l->step = dims->ndim ? at[i]->stride[along] : 0;
		memcpy(l->comp, at[i]->comp, sizeof(l->comp));
		bytes += l->p ? 4 * size : 0;
	}
	for (int d = 0; d < dims->ndim; d++)
		elements *= dims->shape[d];
	bytes *= elements;
	row->stream = may_stream(ctx, row, bytes);
	row->count = elements;
	if (dims->ndim <= 1 && elements <= PIECE) {
		/* One row: no threads, no walk. */
		hzi_quat_kern[ctx->level].row(row);
		return HZ_OK;
	}
	job.kern = hzi_quat_kern + ctx->level;
	job.row = *row;
	job.size = size;
	job.n = dims->shape[along];
	job.outer.ndim = 0;
	job.outer.operands = OPERANDS;
	for (int d = 0; d < dims->ndim; d++) {
		if (d != along)
			add_dim(&job.outer, dims->shape[d], at, d);
	}
	job.rows = walk_count(&job.outer);
	hzi_parallel(ctx, hzi_threads(ctx, bytes), row_units, &job,
		     job.rows * ceil_div(job.n, PIECE));
	return HZ_OK;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * A unit is a tile of results, WIDTH neighbours or one, by a block of terms; it does not depend on
 * the number of threads. Sums of blocks are f64 and are added in order.
 */
#define WIDTH 64
#define COLUMN_BLOCK 2048
#define ROW_BLOCK 16384
#define TERMS 1024			/* most terms that one kernel call adds in f32 */

struct sum_job {
	const struct hzi_quat_kern *kern;
	struct hzi_quat_total sum;	/* its lists point to element 0 */
	struct hzi_quat_put put;
	struct walk kept, terms;	/* operands: in[0 .. 2], out */
	bool columns;
	int64_t n, pieces; /* results along dimension kept - 1, tiles of these; if columns */
	int64_t inner, inner_step[3];	/* the fastest dimension of terms, which `terms` lacks */
	int64_t count, block, blocks, tiles, size;
	double *part;			/* [tiles][blocks][WIDTH or 1][4] if blocks > 1 */
};

static int64_t tile_width(const struct sum_job *job)
{
	return job->columns ? WIDTH : 1;
}

/* Moves kept to a tile. *first: its first result in the fastest dimension. Returns its results. */
static int64_t begin_tile(const struct sum_job *job, struct walk *kept, int64_t tile,
			  int64_t *first)
{
	walk_to(kept, tile / job->pieces);
	*first = tile % job->pieces * WIDTH;
	return job->columns ? min_i64(WIDTH, job->n - *first) : 1;
}

/* Adds terms begin .. end - 1 of a tile to sum. */
static void add_terms(const struct sum_job *job, int64_t tile, int64_t begin, int64_t end,
		      double *sum)
{
	struct walk kept = job->kept, terms = job->terms;
	struct hzi_quat_total call = job->sum;
	int64_t first, at;
	const int64_t width = begin_tile(job, &kept, tile, &first);

	call.sum = sum;
	if (begin < end)
		walk_to(&terms, begin / job->inner);
	at = begin < end ? begin % job->inner : 0;
	while (begin < end) {
		const int64_t n = min_i64(min_i64(job->inner - at, end - begin), TERMS);

		for (int i = 0; i < 3; i++) {
			struct hzi_quat_list *const l = &call.row.in[i];
			const int64_t elements =
				kept.at[i] + terms.at[i] + at * job->inner_step[i] +
						 (job->columns ? first * l->step : 0);

			l->p = job->sum.row.in[i].p
				       ? offset(job->sum.row.in[i].p, elements, job->size)
				       : NULL;
		}
		call.row.count = job->columns ? width : n;
		call.terms = job->columns ? n : 1;
		job->kern->total(&call);
		begin += n;
		at += n;
		if (at == job->inner) {
			at = 0;
			walk_on(&terms);
		}
	}
}

static void store_tile(const struct sum_job *job, int64_t tile, const double *sum)
{
	struct walk kept = job->kept;
	struct hzi_quat_put put = job->put;
	int64_t first;

	put.count = begin_tile(job, &kept, tile, &first);
	put.out.p = offset(put.out.p, kept.at[3] + first * put.out.step, job->size);
	put.sum = sum;
	job->kern->put(&put);
}

static void sum_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct sum_job *job = data;
	const int64_t width = tile_width(job);

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t tile = u / job->blocks, block = u % job->blocks;
		const int64_t from = block * job->block;
		const int64_t to = min_i64(from + job->block, job->count);
		double own[4 * WIDTH], *const sum = job->part ? job->part + 4 * width * u : own;

		memset(sum, 0, (size_t)width * 4 * sizeof(*sum));
		add_terms(job, tile, from, to, sum);
		if (!job->part)
			store_tile(job, tile, sum);
	}
}

static void store_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct sum_job *job = data;
	const int64_t n = 4 * tile_width(job);

	(void)thread;
	for (int64_t t = begin; t < end; t++) {
		double *const sum = job->part + n * job->blocks * t;

		for (int64_t b = 1; b < job->blocks; b++) {
			for (int64_t i = 0; i < n; i++)
				sum[i] += sum[b * n + i];
		}
		store_tile(job, t, sum);
	}
}

/* Largest input stride along d */
static uint64_t step_of(const struct hzi_quat_at *const *at, int d)
{
	uint64_t step = 0;

	for (int i = 0; i < 3; i++) {
		const uint64_t own = hzi_quat_step(at[i]->stride[d]);

		step = own > step ? own : step;
	}
	return step;
}

/* operand: three inputs or NULL, then the output */
static void make_sum(const struct hz_context *ctx, const struct hzi_quat_dims *dims,
		     const struct hzi_quat_row *row, const struct hzi_quat_at *const *operand,
		     struct sum_job *job)
{
	static const struct hzi_quat_at none;
	const struct hzi_quat_at *at[4];
	const int k = dims->kept - 1, r = dims->ndim - 1;
	const bool sums = dims->ndim > dims->kept;

	memset(job, 0, sizeof(*job));
	for (int i = 0; i < 4; i++)
		at[i] = operand[i] ? operand[i] : &none;
	job->kern = hzi_quat_kern + ctx->level;
	job->sum.row = *row;
	job->size = dtype_bytes(row->dtype);
	job->columns = k >= 0 && (!sums || step_of(at, k) < step_of(at, r));
	job->sum.columns = job->columns;
	job->kept.operands = job->terms.operands = 4;
	for (int d = 0; d < dims->kept - job->columns; d++)
		add_dim(&job->kept, dims->shape[d], at, d);
	for (int d = dims->kept; d < r; d++)
		add_dim(&job->terms, dims->shape[d], at, d);
	job->n = job->columns ? dims->shape[k] : 1;
	job->pieces = ceil_div(job->n, WIDTH);
	job->tiles = walk_count(&job->kept) * job->pieces;
	job->inner = sums ? dims->shape[r] : 1;
	job->count = walk_count(&job->terms) * job->inner;
	job->block = job->columns ? COLUMN_BLOCK : ROW_BLOCK;
	job->blocks = job->count ? ceil_div(job->count, job->block) : 1;
	for (int i = 0; i < 3; i++) {
		struct hzi_quat_list *const l = &job->sum.row.in[i];

		job->inner_step[i] = sums ? at[i]->stride[r] : 0;
		job->sum.term_step[i] = job->inner_step[i];
		l->p = at[i]->data;
		l->step = job->columns ? at[i]->stride[k] : job->inner_step[i];
		memcpy(l->comp, at[i]->comp, sizeof(l->comp));
	}
	job->put = (struct hzi_quat_put){
		.out = {.p = at[3]->data, .step = job->columns ? at[3]->stride[k] : 0},
		.dtype = row->dtype,
		.last = 3,
		.accumulate = row->accumulate,
	};
	memcpy(job->put.out.comp, at[3]->comp, sizeof(at[3]->comp));
}

static size_t sum_bytes(const struct sum_job *job)
{
	return job->blocks == 1 ? 0
				: (size_t)(job->tiles * job->blocks * tile_width(job)) * 4 *
					  sizeof(double);
}

static int run_sum(struct hz_context *ctx, struct sum_job *job)
{
	const int64_t bytes = job->tiles * tile_width(job) * job->count * 8 * job->size;
	const int threads = hzi_threads(ctx, bytes);

	job->part = job->blocks > 1 ? ctx->workspace : NULL;
	hzi_parallel(ctx, threads, sum_units, job, job->tiles * job->blocks);
	if (job->part)
		hzi_parallel(ctx, threads, store_units, job, job->tiles);
	return HZ_OK;
}

/* ---- The calls ------------------------------------------------------------------------------- */

/* Rows need no workspace. */
HZI_NO_WORKSPACE(cpu, quat_mul)

size_t hzi_cpu_quat_mul_bwd_workspace(const struct hz_context *ctx,
				      const struct hzi_quat_mul_bwd_args *a)
{
	return a->sum ? hzi_cpu_quat_dot_workspace(ctx, a->sum) : 0;
}

HZI_NO_WORKSPACE(cpu, quat_axpy)

HZI_NO_WORKSPACE(cpu, quat_map)

HZI_NO_WORKSPACE(cpu, quat_map_bwd)

HZI_NO_WORKSPACE(cpu, quat_rotate)

int hzi_cpu_quat_mul(struct hz_context *ctx, const struct hzi_quat_mul_args *a)
{
	struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_MUL,
		.dtype = a->dtype,
		.conj_a = a->conj_a,
		.conj_b = a->conj_b,
		.accumulate = a->accumulate,
	};

	return run_rows(ctx, &a->dims, &row,
			(const struct hzi_quat_at *[]){&a->a, &a->b, NULL, &a->y, NULL});
}

int hzi_cpu_quat_mul_bwd(struct hz_context *ctx, const struct hzi_quat_mul_bwd_args *a)
{
	struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_MUL_BWD,
		.dtype = a->dtype,
		.conj_a = a->conj_a,
		.conj_b = a->conj_b,
		.accumulate = a->accumulate,
	};

	HZ_CHECK(run_rows(ctx, &a->dims, &row,
			  (const struct hzi_quat_at *[]){&a->dy, &a->a, &a->b, &a->da, &a->db}));
	return a->sum ? hzi_cpu_quat_dot(ctx, a->sum) : HZ_OK;
}

int hzi_cpu_quat_axpy(struct hz_context *ctx, const struct hzi_quat_axpy_args *a)
{
	struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_AXPY,
		.dtype = a->dtype,
		.reversed = a->reversed,
		.accumulate = true,
	};

	memcpy(row.alpha, a->alpha, sizeof(row.alpha));
	return run_rows(ctx, &a->dims, &row,
			(const struct hzi_quat_at *[]){&a->x, NULL, NULL, &a->y, NULL});
}

int hzi_cpu_quat_map(struct hz_context *ctx, const struct hzi_quat_map_args *a)
{
	struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_CONJ + a->kind - HZI_QUAT_CONJ,
		.dtype = a->dtype,
		.eps = a->eps,
	};

	return run_rows(ctx, &a->dims, &row,
			(const struct hzi_quat_at *[]){&a->x, NULL, NULL, &a->y, NULL});
}

int hzi_cpu_quat_map_bwd(struct hz_context *ctx, const struct hzi_quat_map_bwd_args *a)
{
	struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_NORM_BWD + a->kind - HZI_QUAT_NORM,
		.dtype = a->dtype,
		.eps = a->eps,
		.accumulate = a->accumulate,
	};

	return run_rows(ctx, &a->dims, &row,
			(const struct hzi_quat_at *[]){&a->dy, &a->x, NULL, &a->dx, NULL});
}

int hzi_cpu_quat_rotate(struct hz_context *ctx, const struct hzi_quat_rotate_args *a)
{
	struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_ROTATE,
		.dtype = a->dtype,
		.inverse = a->inverse,
		.normalize = a->normalize,
		.real = a->real,
	};

	return run_rows(ctx, &a->dims, &row,
			(const struct hzi_quat_at *[]){&a->v, &a->q, NULL, &a->y, NULL});
}

static void make_dot(const struct hz_context *ctx, const struct hzi_quat_dot_args *a,
		     struct sum_job *job)
{
	const struct hzi_quat_row row = {
		.work = HZI_QUAT_WORK_MUL,
		.dtype = a->dtype,
		.conj_a = a->conj_a,
		.conj_b = a->conj_b,
		.accumulate = a->accumulate,
	};

	make_sum(ctx, &a->dims, &row, (const struct hzi_quat_at *[]){&a->a, &a->b, NULL, &a->y},
		 job);
	job->put.conj = a->conj_y;
	job->put.last = a->real ? 0 : 3;
}

size_t hzi_cpu_quat_dot_workspace(const struct hz_context *ctx, const struct hzi_quat_dot_args *a)
{
	struct sum_job job;

	make_dot(ctx, a, &job);
	return sum_bytes(&job);
}

int hzi_cpu_quat_dot(struct hz_context *ctx, const struct hzi_quat_dot_args *a)
{
	struct sum_job job;

	make_dot(ctx, a, &job);
	return run_sum(ctx, &job);
}

static struct hzi_quat_row rotate_bwd_row(const struct hzi_quat_rotate_bwd_args *a)
{
	return (struct hzi_quat_row){
		.work = HZI_QUAT_WORK_ROTATE_BWD,
		.dtype = a->dtype,
		.inverse = a->inverse,
		.normalize = a->normalize,
		.accumulate = a->accumulate,
		.real = a->real,
	};
}

static void make_rotate_sum(const struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a,
			    struct sum_job *job)
{
	struct hzi_quat_row row = rotate_bwd_row(a);

	row.out[0].p = a->dq.data;
	row.out[1].p = a->dv.data;
	make_sum(ctx, &a->dims, &row,
		 (const struct hzi_quat_at *[]){&a->dy, &a->q, &a->v, a->dq.data ? &a->dq : &a->dv},
		 job);
	job->put.first = a->dq.data || a->real ? 0 : 1;
}

size_t hzi_cpu_quat_rotate_bwd_workspace(const struct hz_context *ctx,
					 const struct hzi_quat_rotate_bwd_args *a)
{
	struct sum_job job;

	if (a->dims.kept == a->dims.ndim)
		return a->sum ? hzi_cpu_quat_rotate_bwd_workspace(ctx, a->sum) : 0;
	make_rotate_sum(ctx, a, &job);
	return sum_bytes(&job);
}

int hzi_cpu_quat_rotate_bwd(struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a)
{
	struct hzi_quat_row row = rotate_bwd_row(a);
	struct sum_job job;

	if (a->dims.kept == a->dims.ndim) {
		HZ_CHECK(run_rows(ctx, &a->dims, &row,
				  (const struct hzi_quat_at *[]){&a->dy, &a->q, &a->v, &a->dq,
								 &a->dv}));
		return a->sum ? hzi_cpu_quat_rotate_bwd(ctx, a->sum) : HZ_OK;
	}
	make_rotate_sum(ctx, a, &job);
	return run_sum(ctx, &job);
}

/* ---- Conversions ----------------------------------------------------------------------------- */

#define CONVERT_PIECE 1024		/* elements of a row at a time */

struct convert_job {
	const struct hzi_quat_kern *kern;
	struct hzi_quat_convert call;	/* its lists point to element 0 */
	struct walk outer;
	int64_t rows, n, size;
};

static void convert_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct convert_job *job = data;
	struct walk walk = job->outer;

	(void)thread;
	if (begin < end)
		walk_to(&walk, begin % job->rows);
	for (int64_t u = begin; u < end; u++) {
		const int64_t first = u / job->rows * CONVERT_PIECE;
		struct hzi_quat_convert call = job->call;

		for (int i = 0; i <= call.inputs; i++)
			call.at[i].p = offset(call.at[i].p, walk.at[i] + first * call.at[i].step,
					      job->size);
		call.count = min_i64(CONVERT_PIECE, job->n - first);
		job->kern->convert(&call);
		walk_on(&walk);
	}
}

HZI_NO_WORKSPACE(cpu, quat_convert)

int hzi_cpu_quat_convert(struct hz_context *ctx, const struct hzi_quat_convert_args *a)
{
	const int along = row_dim(&a->dims), dims = a->dims.ndim;
	const struct hzi_quat_at *at[HZI_QUAT_CONVERT_INPUTS + 1];
	struct convert_job job = {
		.kern = hzi_quat_kern + ctx->level,
		.call = {.kind = a->kind, .dtype = a->dtype, .inputs = a->inputs,
			 .accumulate = a->accumulate, .keep = a->keep},
		.outer = {.operands = a->inputs + 1},
		.n = dims ? a->dims.shape[along] : 1,
		.size = dtype_bytes(a->dtype),
	};
	int64_t units;

	for (int i = 0; i <= a->inputs; i++) {
		at[i] = &a->at[i];
		job.call.at[i] = (struct hzi_quat_convert_list){
			.p = at[i]->data, .step = dims ? at[i]->stride[along] : 0,
			.comp = a->comp[i], .parts = a->parts[i],
		};
	}
	for (int d = 0; d < dims; d++) {
		if (d != along)
			add_dim(&job.outer, a->dims.shape[d], at, d);
	}
	job.rows = walk_count(&job.outer);
	units = job.rows * ceil_div(job.n, CONVERT_PIECE);
	/* About as long as 32 bytes per number from memory */
	hzi_parallel(ctx, hzi_threads(ctx, job.rows * job.n * 13 * 32), convert_units, &job, units);
	return HZ_OK;
}
