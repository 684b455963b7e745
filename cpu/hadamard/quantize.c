/*
 * quantize.c - Walsh-Hadamard transforms on the CPU, fused with quantization or dequantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/hadamard/hadamard.h"
#include "cpu/quantize/kern.h"
#include "lib/qgemm/qgemm.h"

/*
 * The quantized operand. given: scales and zero points are operands, one for param_group elements
 * each, and group only divides the work; otherwise each group's scale is computed from its values.
 */
struct codes {
	char *q, *scale;
	int32_t q_dtype, scale_dtype, round_to;
	bool dequantize;			/* dequantize: codes to values */
	int64_t group;
	const int64_t *q_stride, *scale_stride;
	/* given */
	bool given, stream;
	const struct hzi_quantize_kern *kern;
	const float *scales;
	const char *zeros;
	int64_t q_step, param_group;
	bool bf16;		/* transforms are rounded to bfloat16 and held as such */
	/* any format: calls->part() converts, with the rows' numbers in C order by r_stride */
	const struct hzi_format_work *format;
	const struct hzi_format_calls *calls;
	const int64_t *r_stride;
};

/* A call */
struct code_job {
	struct job j;
	struct codes codes;
	bool fetch;			/* prefetch lines of codes and values */
	bool transposed;		/* rows may become codes as code_transposed() does it */
	/* the row that all threads share */
	struct rows run;
	float *values;
	int64_t item;
};

/* ---- hadamard_quantize(), dequantize_hadamard() ---------------------------------------------- */

/*
 * Values held between the transform and quantization: 32 KiB, or one row; half of that for
 * dequantization, whose results are in L1, too. All threads share each row above LONG_FLOATS, 1
 * MiB.
 */
#define TOGETHER_FLOATS (8 << 10)
#define LONG_FLOATS (256 << 10)

static int64_t row_length(const struct hzi_hadamard_args *a)
{
	return a->blocks * a->plan.n;
}

static bool is_long(const struct hzi_hadamard_args *a)
{
	return row_length(a) > LONG_FLOATS;
}

static int64_t rows_together(const struct hzi_hadamard_args *a)
{
	return max_i64(1, TOGETHER_FLOATS / row_length(a));
}

/* Elements converted between prefetches */
#define PIECE 1024

/* Groups of a row */
static int64_t pieces(const struct code_job *job)
{
	return (row_length(job->j.a) + job->codes.group - 1) / job->codes.group;
}

static size_t values_bytes(const struct hzi_hadamard_args *a)
{
	return round_to_lines(rows_together(a) * row_length(a) * 4);
}

/* Scratch for the codes of a row if they are not contiguous */
static size_t aside_bytes(const struct hzi_hadamard_args *a, const struct codes *c)
{
	return c->given && c->q_step != 1 ? round_to_lines(row_length(a)) : 0;
}

/* How many rows from item on, at most count, have equally spaced blocks and equal diagonals */
static int64_t run_length(const struct hzi_hadamard_args *a, const int64_t *stride, int64_t ld,
			  int64_t item, int64_t count)
{
	int64_t last;

	if (a->ndim == 0)
		return 1;
	if (a->blocks > 1 && (stride[a->ndim - 1] != a->blocks * ld || a->pre.block_step ||
			      a->post.block_step))
		return 1;
	last = a->shape[a->ndim - 1];
	return min_i64(count, last - item % last);
}

static int values_dtype(const struct codes *c)
{
	return c->bf16 ? HZ_BF16 : HZ_F32;
}

/* The rows from item on, with contiguous values at `values` */
static struct rows rows_run(const struct code_job *job, int64_t item, float *values)
{
	const struct hzi_hadamard_args *a = job->j.a;
	struct rows r = hzi_rows_of(&job->j);

	if (job->codes.dequantize) {
		r.x = (const char *)values;
		r.x_dtype = HZ_F32;
		r.x_ld = a->plan.n;
		r.x_step = 1;
		r.x_in_memory = false;
		r.y += item_offset(a->ndim, a->shape, a->y_stride, item) * dtype_bytes(a->y_dtype);
		if (a->blocks == 1 && a->ndim > 0)
			r.y_ld = a->y_stride[a->ndim - 1];
	} else {
		r.y = (char *)values;
		r.y_dtype = values_dtype(&job->codes);
		r.y_ld = a->plan.n;
		r.y_step = 1;
		r.y_in_memory = false;
		r.x += item_offset(a->ndim, a->shape, a->x_stride, item) * dtype_bytes(a->x_dtype);
		if (a->blocks == 1 && a->ndim > 0)
			r.x_ld = a->x_stride[a->ndim - 1];
	}
	if (a->blocks == 1)
		r.pre_ld = r.post_ld = 0;
	return r;
}

/*
 * convert() with given scales and zero points. Codes that are not contiguous pass through aside,
 * scratch for one row of them.
 */
static void convert_given(const struct code_job *job, int64_t item, float *values, int64_t begin,
			  int64_t end, char *aside)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const int64_t i = begin * c->group, count = min_i64(end * c->group, row_length(a)) - i;
	const int64_t p = item_offset(a->ndim, a->shape, c->scale_stride, item) +
			  i / c->param_group;
	char *q = c->q + item_offset(a->ndim, a->shape, c->q_stride, item) + i * c->q_step;
	const struct hzi_quantize_codes codes = {
		.x = values + i,
		.q = c->q_step == 1 ? q : aside + i,
		.scales = c->scales + p,
		.zeros = c->zeros ? c->zeros + p : NULL,
		.count = count,
		.group = c->param_group,
		.x_dtype = HZ_F32,
		.q_dtype = c->q_dtype,
		.stream = c->stream,
	};

	if (c->dequantize) {
		if (c->q_step != 1)
			copy_strided(aside + i, 1, q, c->q_step, count, 1);
		c->kern->dequantize(&codes);
	} else {
		c->kern->quantize(&codes);
		if (c->q_step != 1)
			copy_strided(q, c->q_step, aside + i, 1, count, 1);
	}
}

/* convert() to or from any format */
static void convert_format(const struct code_job *job, int64_t item, float *values, int64_t begin,
			   int64_t end)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const int64_t i = begin * c->group, count = min_i64(end * c->group, row_length(a)) - i;
	const struct hzi_format_row row = {
		.x = (char *)values, .x_dtype = values_dtype(c), .x_step = 1, .cached = true,
		.q = c->q + item_offset(a->ndim, a->shape, c->q_stride, item) *
				    (int64_t)hz_dtype_size(c->q_dtype),
		.p = item_offset(a->ndim, a->shape, c->scale_stride, item),
		.r = item_offset(a->ndim, a->shape, c->r_stride, item),
	};
	struct hzi_format_work w = *c->format;
	uint32_t most = 0;

	if (w.most)
		w.most = &most;
	c->calls->part(&w, &row, i, count);
	if (w.most)
		hzi_cpu_format_most(c->format->most, most);
}

/*
 * Quantizes or dequantizes groups begin .. end - 1 of a row. ahead: address to prefetch, or NULL;
 * aside: see convert_given().
 */
static void convert(const struct code_job *job, int64_t item, float *values, int64_t begin,
		    int64_t end, const char *ahead, char *aside)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const int64_t i = begin * c->group, count = (end - begin) * c->group;
	char *q, *scale;

	if (c->format) {
		convert_format(job, item, values, begin, end);
		return;
	}
	if (c->given) {
		convert_given(job, item, values, begin, end, aside);
		return;
	}
	q = c->q + item_offset(a->ndim, a->shape, c->q_stride, item) +
	    (c->q_dtype == HZ_S4X2 ? i / 2 : i);
	scale = c->scale + (item_offset(a->ndim, a->shape, c->scale_stride, item) + begin) *
			   (c->scale_dtype == HZ_F32 ? 4 : 1);
	if (c->dequantize)
		job->j.kern->dequant(&(struct hzi_dequant){
			.q = q,
			.scale = scale,
			.y = values + i,
			.count = count,
			.group = c->group,
			.q_dtype = c->q_dtype,
			.scale_dtype = c->scale_dtype,
		});
	else
		job->j.kern->quant(&(struct hzi_quant){
			.t = values + i,
			.ahead = ahead ? ahead : (const char *)values,
			.ahead_step = ahead ? dtype_bytes(a->x_dtype) : 0,
			.q = q,
			.scale = scale,
			.count = count,
			.group = c->group,
			.q_dtype = c->q_dtype,
			.scale_dtype = c->scale_dtype,
			.round_to = c->round_to,
		});
}

/* Row lengths for which lines are prefetched, in calls of more bytes than FETCH_BYTES */
enum { FETCH_FROM = 512, FETCH_TO = 8192, FETCH_BYTES = 2 << 20 };

static void fetch(const char *from, int64_t bytes)
{
	for (int64_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(from + i, 0, 2);
}

/*
 * Dequantizes a row whose transform goes to y; next: the following codes. Lines of y and next are
 * prefetched meanwhile: a row is too short for the hardware prefetcher, and stores to y would wait.
 * To bf16, rows of 1024 to 4096 are 1.4 times as fast; rows of 256 and 16384: 0.95 times.
 */
static void dequantize_row(const struct code_job *job, int64_t item, float *values, const char *y,
			   const char *next, char *aside)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const int64_t length = row_length(a), groups = pieces(job), size = dtype_bytes(a->y_dtype);
	const int64_t step = job->fetch ? max_i64(1, PIECE / c->group) : groups;

	for (int64_t g = 0; g < groups; g += step) {
		const int64_t end = min_i64(g + step, groups), i = g * c->group;
		const int64_t count = min_i64(end * c->group, length) - i;

		if (job->fetch && y)
			fetch(y + i * size, count * size);
		if (job->fetch && next)
			fetch(next + i, count);
		convert(job, item, values, g, end, NULL, aside);
	}
}

/* Whether the factors before the transform are those of one block */
static bool repeats(const struct hzi_hadamard_args *a)
{
	return a->blocks > 1 && !a->pre.block_step;
}

/*
 * Whether code_transposed() may support rows: transforms of up to TOGETHER_FLOATS contiguous
 * bfloat16 numbers, to a format of blocks, or to find the largest of all.
 */
static bool supports_transposed(const struct code_job *job)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const struct hzi_segment *seg = a->plan.seg;

	if (!job->j.kern->transposed || !c->format || c->dequantize || !c->format->a->chosen ||
	    c->format->a->round_to)
		return false;
	if (!c->format->most && !hzi_format_in_blocks(c->format, true))
		return false;
	if (a->plan.nseg != 1 || seg->m != 1 || seg->k < 4 || seg->length > TOGETHER_FLOATS ||
	    a->post.data || a->x_dtype != HZ_BF16 || a->x_step != 1 ||
	    (a->blocks > 1 && a->x_block != a->plan.n))
		return false;
	/* A NaN of f32 may have bits that rounding turns into a number. */
	if (a->pre.data && a->pre.kind == HZ_F32)
		return false;
	/* Factors of a block that repeat are found by a mask. */
	if (a->pre.data && repeats(a) && (a->plan.n & (a->plan.n - 1)))
		return false;
	return row_length(a) % seg->length == 0 && row_length(a) % 32 == 0;
}

/* Numbers between transform and codes, or one transform */
#define TRANSPOSED_FLOATS 2048

/*
 * How many of these rows are one for code_transposed(): all or 1. Short ones would leave most lanes
 * without a number. x_ld: elements between rows
 */
static int64_t rows_as_one(const struct code_job *job, int64_t x_ld, int64_t rows)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const int64_t length = row_length(a), period = repeats(a) ? a->plan.n : length;
	const int last = a->ndim - 1;

	if (rows == 1 || x_ld != length || (a->pre.data && (period & (period - 1))))
		return 1;
	if (c->format->most)
		return rows;
	return c->q_stride[last] * (int64_t)hz_dtype_size(c->q_dtype) * 8 ==
			       length * hzi_format_bits(c->q_dtype) &&
	       c->scale_stride[last] * c->format->a->group == length ? rows : 1;
}

/*
 * Transforms contiguous rows and quantizes them, or finds their largest magnitude; returns false,
 * with some of the codes written, if sums overflow or a group is unsupported.
 */
static bool code_transposed(const struct code_job *job, const struct rows *r, const char *x,
			    int64_t item, int64_t rows, float *values)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const struct codes *c = &job->codes;
	const struct hzi_format_work *w = c->format;
	const struct hzi_format_args *f = w->a;
	const int64_t length = rows * row_length(a);
	const int64_t mask = repeats(a) ? a->plan.n - 1 : rows > 1 ? row_length(a) - 1 : -1;
	const int64_t step = max_i64(TRANSPOSED_FLOATS, a->plan.seg->length);
	const float scale = a->plan.seg->scale;
	char *q = c->q + item_offset(a->ndim, a->shape, c->q_stride, item) *
				 (int64_t)hz_dtype_size(c->q_dtype);
	uint8_t *scales = (uint8_t *)f->scales +
			  item_offset(a->ndim, a->shape, c->scale_stride, item);
	uint32_t most = 0;

	for (int64_t i = 0; i < length; i += step) {
		const int64_t count = min_i64(step, length - i);
		uint32_t amax[TOGETHER_FLOATS / 16];
		struct hzi_fp_watch watch;
		char *to = q + i * hzi_format_bits(c->q_dtype) / 8;

		hzi_fp_watch_begin(&watch);
		job->j.kern->transposed(&(struct hzi_hadamard_transposed){
			.x = (const uint16_t *)(const void *)x + i, .y = values, .amax = amax,
			.pre = r->pre, .pre_mask = mask, .count = count,
			.first = i, .bits = a->plan.seg->k});
		if (hzi_fp_watch_end(&watch))
			return false;
		for (int64_t g = 0; w->most && g < ceil_div(count, 32 * job->j.kern->lanes) *
						     2 * job->j.kern->lanes; g++)
			most = amax[g] > most ? amax[g] : most;
		if (!w->most && !job->j.kern->encode_transposed(&(struct hzi_format_transposed){
			.t_rows = values, .amax = amax, .q = to, .scales = scales + i / f->group,
			.rows = count / 32, .q_dtype = c->q_dtype, .rule = f->rule,
			.stream = w->stream && (uintptr_t)to % 64 == 0, .scale = scale, .t = w->t}))
			return false;
	}
	if (w->most)
		hzi_cpu_format_most(w->most, hzi_float_bits(hzi_bits_float(most) * scale));
	return true;
}

/* Orders codes that were stored non-temporally. */
static void end_of_codes(const struct code_job *job)
{
	const struct hzi_format_work *format = job->codes.format;

	if (format && format->stream)
		format->kern->stream_end();
}

/* A unit is a row. */
static void do_code_rows(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct code_job *job = work_job;
	const struct hzi_hadamard_args *a = job->j.a;
	const bool dequantize = job->codes.dequantize;
	const int64_t length = row_length(a), groups = pieces(job);
	char *scratch = job->j.scratch + (size_t)thread * job->j.area_bytes;
	float *values = (float *)(scratch + areas_bytes(&job->j.areas));
	char *aside = (char *)values + values_bytes(a);

	while (begin < end) {
		struct rows r = rows_run(job, begin, values);
		const int64_t most = max_i64(1, rows_together(a) / (job->fetch ? 2 : 1));
		const int64_t rows = run_length(a, dequantize ? a->y_stride : a->x_stride,
						dequantize ? a->y_block : a->x_block, begin,
						min_i64(end - begin, most));

		r.scratch = scratch;
		if (job->transposed) {
			const int64_t ld = a->blocks * r.x_ld, step = rows_as_one(job, ld, rows);
			int64_t i = 0;

			while (i < rows && code_transposed(job, &r, r.x + i * ld * 2, begin + i,
							   step, values))
				i += step;
			if (i == rows) {
				begin += rows;
				continue;
			}
		}
		for (int64_t i = 0; dequantize && i < rows; i++) {
			const int64_t at = begin + i, after = at + rows;
			const bool side = a->y_step == 1 && (a->blocks == 1 || r.y_ld == a->plan.n);
			const char *y = r.y + i * r.y_ld * dtype_bytes(a->y_dtype);
			const char *next = NULL;

			if (job->codes.q_step == 1 && after < end)
				next = job->codes.q + item_offset(a->ndim, a->shape,
								  job->codes.q_stride, after);
			dequantize_row(job, at, values + i * length, side ? y : NULL, next, aside);
		}
		hzi_run_rows(&r, &job->j.areas, 0, rows * a->blocks);
		if (!dequantize) {
			/* If rows are contiguous, the next ones follow those just read. */
			const int64_t size = dtype_bytes(r.x_dtype), row_bytes = length * size;
			const char *next = r.x + rows * a->blocks * r.x_ld * size;

			for (int64_t i = 0; i < rows; i++)
				convert(job, begin + i, values + (i * length >> job->codes.bf16), 0,
					groups, next + i * row_bytes, aside);
		}
		begin += rows;
	}
	end_of_codes(job);
}

/* A unit is a block of the row of job->run. */
static void do_run(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct code_job *job = work_job;
	struct rows r = job->run;

	r.scratch = job->j.scratch + (size_t)thread * job->j.area_bytes;
	hzi_run_rows(&r, &job->j.areas, begin, end);
}

/* A unit is a group of the row whose values are at job->values. */
static void do_groups(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct code_job *job = work_job;

	(void)thread;
	convert(job, job->item, job->values, begin, end, NULL,
		(char *)job->values + values_bytes(job->j.a));
	end_of_codes(job);
}

/* Row by row: all threads share its blocks, or each of its blocks, and its groups. */
static void long_rows(struct code_job *job, int threads)
{
	const struct hzi_hadamard_args *a = job->j.a;
	const int64_t groups = pieces(job);
	const int share = hzi_is_shared(&job->j.areas, &a->plan, a->blocks, threads) ? threads : 1;

	job->values = (float *)job->j.scratch;
	job->j.scratch += values_bytes(a) + aside_bytes(a, &job->codes);
	for (job->item = 0; job->item < job->j.items; job->item++) {
		job->run = rows_run(job, job->item, job->values);
		job->run.threads = share;
		if (job->codes.dequantize)
			hzi_parallel(job->j.ctx, threads, do_groups, job, groups);
		hzi_parallel(job->j.ctx, share > 1 ? 1 : threads, do_run, job, a->blocks);
		if (!job->codes.dequantize)
			hzi_parallel(job->j.ctx, threads, do_groups, job, groups);
	}
}

static struct areas code_areas(const struct hzi_hadamard_kern *kern,
			       const struct hzi_hadamard_args *a, const struct codes *c,
			       int threads)
{
	if (c->dequantize)
		return hzi_row_areas(kern, &a->plan, HZ_F32, a->y_dtype, 1, a->y_step, threads,
				     false);
	return hzi_row_areas(kern, &a->plan, a->x_dtype, values_dtype(c), a->x_step, 1, threads,
			     false);
}

static int run_codes(struct hz_context *ctx, const struct hzi_hadamard_args *a,
		     const struct codes *codes)
{
	const int64_t each = dtype_bytes(codes->dequantize ? a->y_dtype : a->x_dtype) + 1;
	const int64_t bytes = item_count(a->ndim, a->shape) * row_length(a) * each;
	const int threads = hzi_threads(ctx, bytes);
	struct code_job job;

	hzi_begin_job(&job.j, ctx, a);
	job.codes = *codes;
	job.fetch = codes->dequantize && bytes > FETCH_BYTES && row_length(a) >= FETCH_FROM &&
		    row_length(a) <= FETCH_TO;
	job.j.areas = code_areas(job.j.kern, a, codes, threads);
	job.j.area_bytes = areas_bytes(&job.j.areas);
	job.transposed = supports_transposed(&job);
	if (is_long(a) || (threads > 1 && job.j.items < threads)) {
		long_rows(&job, threads);
	} else {
		job.j.area_bytes += values_bytes(a) + aside_bytes(a, codes);
		hzi_parallel(ctx, threads, do_code_rows, &job, job.j.items);
	}
	return HZ_OK;
}

static size_t codes_workspace(const struct hz_context *ctx, const struct hzi_hadamard_args *a,
			      const struct codes *c)
{
	const struct areas areas =
		code_areas(hzi_hadamard_kern + ctx->level, a, c, ctx->threads);
	const int64_t items = item_count(a->ndim, a->shape);
	const size_t values = values_bytes(a) + aside_bytes(a, c);
	const size_t apart = (areas_bytes(&areas) + values) *
			     (size_t)min_i64(items, ctx->threads);
	const size_t together = values +
				hzi_scratch_bytes(&areas, a->blocks, ctx->threads);

	if (is_long(a))
		return hzi_constants_bytes(a) + together;
	return hzi_constants_bytes(a) + (apart > together ? apart : together);
}

int hzi_cpu_hadamard_quantize(struct hz_context *ctx, const struct hzi_hadamard_quantize_args *a)
{
	const struct codes codes = {
		.q = a->q,
		.scale = a->scale,
		.q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype,
		.round_to = a->round_to,
		.group = a->group,
		.q_stride = a->q_stride,
		.scale_stride = a->scale_stride,
	};

	return run_codes(ctx, &a->t, &codes);
}

size_t hzi_cpu_hadamard_quantize_workspace(const struct hz_context *ctx,
					   const struct hzi_hadamard_quantize_args *a)
{
	return codes_workspace(ctx, &a->t, &(struct codes){0});
}

int hzi_cpu_dequantize_hadamard(struct hz_context *ctx,
				const struct hzi_dequantize_hadamard_args *a)
{
	const struct codes codes = {
		.q = (char *)(uintptr_t)a->q,
		.scale = (char *)(uintptr_t)a->scale,
		.q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype,
		.dequantize = true,
		.group = a->group,
		.q_stride = a->q_stride,
		.scale_stride = a->scale_stride,
	};

	return run_codes(ctx, &a->t, &codes);
}

size_t hzi_cpu_dequantize_hadamard_workspace(const struct hz_context *ctx,
					     const struct hzi_dequantize_hadamard_args *a)
{
	return codes_workspace(ctx, &a->t, &(struct codes){.dequantize = true});
}

/* ---- quantize(), dequantize() with a transform ----------------------------------------------- */

/*
 * Calls of more bytes use non-temporal stores for codes, if rows are so long that the fence after
 * each of them, 0.15 us, pays.
 */
#define STREAM_BYTES ((int64_t)32 << 20)
#define STREAM_ROW 4096

static int format_codes(struct hz_context *ctx, const struct hzi_quantize_kern *kern,
			const struct hzi_format_calls *calls, const struct hzi_codes_args *a)
{
	const struct hzi_format_args *f = a->format;
	const struct hzi_rotated *r = a->rotated;
	const int64_t bytes = item_count(r->t.ndim, r->t.shape) * row_length(&r->t) *
			      (1 + dtype_bytes(r->t.x_dtype));
	struct hzi_format_work w = {.kern = kern, .a = f,
				    .stream = !f->dequantize && bytes > STREAM_BYTES};
	const struct codes codes = {
		.q = f->q,
		.q_dtype = f->q_dtype,
		.dequantize = f->dequantize,
		.group = !f->chosen ? HZI_FORMAT_BATCH :
			 f->group < HZI_FORMAT_BATCH ? HZI_FORMAT_BATCH / f->group * f->group :
						       f->group,
		.q_stride = r->q_stride,
		.scale_stride = r->p_stride,
		.q_step = r->q_step,
		.bf16 = f->round_to == HZ_BF16,
		.format = &w,
		.calls = calls,
		.r_stride = r->r_stride,
	};
	struct hzi_nv_cells cells;
	uint32_t most = 0;

	if (f->new_tensor_scale) {
		w.most = &most;
		HZ_CHECK(run_codes(ctx, &r->t, &codes));
		w.most = NULL;
	}
	calls->tensor(&w, most, &cells);
	return run_codes(ctx, &r->t, &codes);
}

int hzi_cpu_hadamard_codes(struct hz_context *ctx, const struct hzi_quantize_kern *kern,
			   const struct hzi_format_calls *calls, const struct hzi_codes_args *a)
{
	const struct hzi_rotated *r = a->rotated;
	const int64_t bytes = item_count(r->t.ndim, r->t.shape) * row_length(&r->t) *
			      (1 + dtype_bytes(r->t.x_dtype));
	/* The zero point as a code of either signedness: its low byte */
	const uint8_t zero = (uint8_t)a->zero;
	const struct codes codes = {
		.q = a->q,
		.q_dtype = a->q_dtype,
		.dequantize = a->dequantize,
		.group = r->group < row_length(&r->t) ? r->group : PIECE,
		.q_stride = r->q_stride,
		.scale_stride = r->p_stride,
		.given = true,
		.kern = kern,
		.scales = a->scales ? a->scales : &a->scale,
		.zeros = a->scales ? a->zeros : (const void *)&zero,
		.q_step = r->q_step,
		.param_group = r->group,
		.stream = !a->dequantize && r->q_step == 1 && row_length(&r->t) >= STREAM_ROW &&
			  bytes > STREAM_BYTES,
	};

	if (a->format)
		return format_codes(ctx, kern, calls, a);
	return run_codes(ctx, &r->t, &codes);
}

size_t hzi_cpu_hadamard_codes_workspace(const struct hz_context *ctx,
					const struct hzi_codes_args *a)
{
	return codes_workspace(ctx, &a->rotated->t, &(struct codes){
		.dequantize = a->dequantize, .given = true, .q_step = a->rotated->q_step,
		.bf16 = a->format && a->format->round_to == HZ_BF16});
}
