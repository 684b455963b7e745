/*
 * quantize.c - quantization on the CPU: quantization, dequantization and ranges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/qgemm/qgemm.h"
#include "cpu/quantize/kern.h"
#include "cpu/quantize/quantize.h"

/* Elements of a unit of work: 256 KiB of f32. Strided elements are gathered, GATHER at a time. */
#define SEGMENT 65536
/*
 * Calls that move more bytes use non-temporal stores, whatever the size of the last-level cache,
 * which other processes may share: 30 MB at 17 to 25 instead of 11 to 14 GB/s beside busy
 * neighbours, 26 instead of 30 without.
 */
#define STREAM_BYTES ((int64_t)32 << 20)

/* A map is cut into segments: of whole groups, or within a group if groups are longer. */
struct segments {
	const struct hzi_quantize_map *map;
	int64_t per_group, length, per_row, count;
};

/* Cuts a map into segments of at most that many elements. */
static struct segments make_segments(const struct hzi_quantize_map *map, int64_t most)
{
	struct segments s = {.map = map, .per_group = 1};

	if (map->group > most) {
		s.per_group = ceil_div(map->group, most);
		s.length = most;
		s.per_row = map->n / map->group * s.per_group;
	} else {
		s.length = most / map->group * map->group;
		s.per_row = ceil_div(map->n, s.length);
	}
	s.count = s.per_row * item_count(map->ndim, map->shape);
	return s;
}

/* Returns the length of segment u; sets the index of its first element and parameter. */
static int64_t segment_at(const struct segments *s, int64_t u, int64_t *x, int64_t *q, int64_t *p)
{
	const struct hzi_quantize_map *map = s->map;
	const int64_t row = u / s->per_row, i = u % s->per_row;
	int64_t first = i * s->length, length = min_i64(s->length, map->n - first);

	if (s->per_group > 1) {
		first = i % s->per_group * s->length;
		length = min_i64(s->length, map->group - first);
		first += i / s->per_group * map->group;
	}
	*x = item_offset(map->ndim, map->shape, map->x_stride, row) + first * map->x_step;
	*q = item_offset(map->ndim, map->shape, map->q_stride, row) + first * map->q_step;
	*p = item_offset(map->ndim, map->shape, map->p_stride, row) + first / map->group;
	return length;
}

struct codes_job {
	const struct hzi_quantize_kern *kern;
	struct segments s;
	char *x, *q;
	int32_t x_dtype, q_dtype;
	const float *scales;
	const void *zeros;
	bool to_codes, stream;
	int64_t bytes;			/* that the call reads and writes */
};

static void codes_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct codes_job *job = data;
	const struct hzi_quantize_map *map = job->s.map;
	const int64_t size = dtype_bytes(job->x_dtype);
	float x_buffer[GATHER];
	char q_buffer[GATHER];

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		int64_t x, q, p;
		const int64_t n = segment_at(&job->s, u, &x, &q, &p);
		char *x_at = job->x + x * size, *q_at = job->q + q;
		const struct hzi_quantize_codes codes = {
			.x = map->x_step == 1 ? (void *)x_at : x_buffer,
			.q = map->q_step == 1 ? q_at : q_buffer,
			.scales = job->scales + p,
			.zeros = job->zeros ? (const char *)job->zeros + p : NULL,
			.count = n,
			.group = map->group,
			.x_dtype = job->x_dtype,
			.q_dtype = job->q_dtype,
			.stream = job->stream,
		};

		if (job->to_codes) {
			if (map->x_step != 1)
				copy_strided(x_buffer, 1, x_at, map->x_step, n, size);
			job->kern->quantize(&codes);
			if (map->q_step != 1)
				copy_strided(q_at, map->q_step, q_buffer, 1, n, 1);
		} else {
			if (map->q_step != 1)
				copy_strided(q_buffer, 1, q_at, map->q_step, n, 1);
			job->kern->dequantize(&codes);
			if (map->x_step != 1)
				copy_strided(x_at, map->x_step, x_buffer, 1, n, size);
		}
	}
}

/*
 * Where x or q is contiguous along a dimension other than the row, SQUARE_ROWS rows by
 * SQUARE_LENGTH elements at a time are transposed at the load or at the store. While a square
 * becomes codes, lines of the next are prefetched: 4096 x 4096 of f32, ms without and with,
 *
 * 	rows of a square	Xeon with AMX		EPYC (Zen 5)
 * 	64			23.5, 22.4		23.0, 20.2
 * 	128			22.7, 21.3		20.6, 13.4
 */
#define SQUARE_ROWS 128
#define SQUARE_LENGTH 128

struct transpose_job {
	struct codes_job c;
	struct hzi_quantize_map map;		/* without that dimension */
	bool transpose_x;			/* else q */
	int64_t rows, x_row, q_row, p_row;	/* of that dimension */
};

/* The dimension along which the operand to be transposed is contiguous, or map->ndim */
static int neighbour_dim(const struct hzi_quantize_map *map)
{
	int d = 0;

	while (d < map->ndim && (map->x_step != 1 ? map->x_stride[d] : map->q_stride[d]) != 1)
		d++;
	return d;
}

const char *hzi_cpu_codes_transposed_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_quantize_map *map = &a->map;
	int d;

	(void)ctx;
	if (a->rotated)
		return "there is a transform";
	if (a->format)
		return "not u8 or s8 by given scales";
	if ((map->x_step != 1) == (map->q_step != 1))
		return "rows are contiguous in both operands, or in none";
	d = neighbour_dim(map);
	return d == map->ndim || map->shape[d] < 8 || map->n < 8
		       ? "no dimension of 8 or more is contiguous where rows are not" : NULL;
}

static struct transpose_job make_transpose(const struct codes_job *c)
{
	const struct hzi_quantize_map *map = c->s.map;
	int d = neighbour_dim(map);
	struct transpose_job t = {
		.c = *c, .map = *map, .transpose_x = map->x_step != 1, .rows = map->shape[d],
		.x_row = map->x_stride[d], .q_row = map->q_stride[d], .p_row = map->p_stride[d],
	};

	t.map.ndim--;
	for (; d < t.map.ndim; d++) {
		t.map.shape[d] = map->shape[d + 1];
		t.map.x_stride[d] = map->x_stride[d + 1];
		t.map.q_stride[d] = map->q_stride[d + 1];
		t.map.p_stride[d] = map->p_stride[d + 1];
	}
	t.c.stream = false;
	return t;
}

/* Prefetches a share (part of parts) of n pieces of `bytes` bytes each, step bytes apart. */
static void fetch_pieces(const char *from, int64_t step, int64_t bytes, int64_t n, int64_t part,
			 int64_t parts)
{
	const int64_t each = ceil_div(n, parts);

	for (int64_t i = part * each; i < min_i64(n, (part + 1) * each); i++) {
		for (int64_t l = 0; l < bytes; l += 64)
			__builtin_prefetch(from + i * step + l);
	}
}

/* A unit is a square: SQUARE_ROWS rows of a segment. */
static void transpose_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct transpose_job *t = data;
	const struct codes_job *job = &t->c;
	const struct segments s = make_segments(&t->map, SQUARE_LENGTH);
	const int64_t size = dtype_bytes(job->x_dtype), down = ceil_div(t->rows, SQUARE_ROWS);
	const int64_t step = t->transpose_x ? t->map.x_step : t->map.q_step;
	const int64_t bytes = t->transpose_x ? size : 1;
	uint32_t square[SQUARE_ROWS * SQUARE_LENGTH];

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		int64_t x, q, p, next_p;
		const int64_t n = segment_at(&s, u / down, &x, &q, &p);
		const int64_t first = u % down * SQUARE_ROWS;
		const int64_t rows = min_i64(SQUARE_ROWS, t->rows - first);
		char *x_at = job->x + (x + first * t->x_row) * size;
		char *q_at = job->q + q + first * t->q_row;
		char *far = t->transpose_x ? x_at : q_at;
		const bool in = t->transpose_x == job->to_codes;
		const char *next = NULL;
		int64_t next_n = 0;

		if (in && t->transpose_x && u + 1 < end) {
			next_n = segment_at(&s, (u + 1) / down, &x, &q, &next_p);
			next = job->x + (x + (u + 1) % down * SQUARE_ROWS * t->x_row) * size;
		}
		if (in)
			hzi_cpu_transpose(square, SQUARE_LENGTH, far, step, n, rows, bytes);
		for (int64_t r = 0; r < rows; r++) {
			char *here = (char *)square + r * SQUARE_LENGTH * bytes;
			const int64_t own = p + (first + r) * t->p_row;
			const struct hzi_quantize_codes codes = {
				.x = t->transpose_x ? here : x_at + r * t->x_row * size,
				.q = t->transpose_x ? q_at + r * t->q_row : here,
				.scales = job->scales + own,
				.zeros = job->zeros ? (const char *)job->zeros + own : NULL,
				.count = n,
				.group = t->map.group,
				.x_dtype = job->x_dtype,
				.q_dtype = job->q_dtype,
			};

			if (next)
				fetch_pieces(next, step * size, SQUARE_ROWS * size, next_n, r,
					     rows);
			if (job->to_codes)
				job->kern->quantize(&codes);
			else
				job->kern->dequantize(&codes);
		}
		if (!in)
			hzi_cpu_transpose(far, step, square, SQUARE_LENGTH, rows, n, bytes);
	}
}

static int64_t elements(const struct hzi_quantize_map *map)
{
	return map->n * item_count(map->ndim, map->shape);
}

/* zero: memory for the one zero point; its low byte is the code of either signedness. */
static struct codes_job make_job(const struct hz_context *ctx, const struct hzi_codes_args *a,
				 uint8_t *zero)
{
	const struct hzi_quantize_map *map = &a->map;
	const int64_t bytes = elements(map) * (1 + dtype_bytes(a->x_dtype));

	*zero = (uint8_t)a->zero;
	return (struct codes_job){
		.kern = hzi_quantize_kern + ctx->level,
		.s = make_segments(map, map->x_step != 1 || map->q_step != 1 ? GATHER : SEGMENT),
		.x = a->x,
		.q = a->q,
		.x_dtype = a->x_dtype,
		.q_dtype = a->q_dtype,
		.scales = a->scales ? a->scales : &a->scale,
		.zeros = a->scales ? a->zeros : zero,
		.to_codes = !a->dequantize,
		.stream = bytes > STREAM_BYTES && map->x_step == 1 && map->q_step == 1,
		.bytes = bytes,
	};
}

int hzi_cpu_codes_transposed(struct hz_context *ctx, const void *args)
{
	uint8_t zero;
	const struct codes_job job = make_job(ctx, args, &zero);
	struct transpose_job squares = make_transpose(&job);

	hzi_parallel(ctx, hzi_threads(ctx, job.bytes), transpose_units, &squares,
		     make_segments(&squares.map, SQUARE_LENGTH).count *
			     ceil_div(squares.rows, SQUARE_ROWS));
	return HZ_OK;
}

const char *hzi_cpu_codes_rows_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	if (a->format)
		return "not u8 or s8 by given scales";
	return a->rotated ? "there is a transform" : NULL;
}

int hzi_cpu_codes_rows(struct hz_context *ctx, const void *args)
{
	uint8_t zero;
	struct codes_job job = make_job(ctx, args, &zero);

	hzi_parallel(ctx, hzi_threads(ctx, job.bytes), codes_units, &job, job.s.count);
	return HZ_OK;
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

struct range_job {
	const struct hzi_quantize_kern *kern;
	const struct hzi_choose_qparams_args *a;
	struct segments s;
	int threads;
	bool shared;			/* segments share parameters: each thread has ranges */
	float *lo, *hi;			/* [threads or 1][params] */
};

/* Fills *job without lo and hi; returns the bytes of workspace. */
static size_t make_ranges(const struct hz_context *ctx, const struct hzi_choose_qparams_args *a,
			  struct range_job *job)
{
	memset(job, 0, sizeof(*job));
	job->kern = hzi_quantize_kern + ctx->level;
	job->a = a;
	job->threads = 1;
	if (a->map.n > 0) {
		job->s = make_segments(&a->map, a->map.x_step != 1 ? GATHER : SEGMENT);
		job->threads = hzi_threads(ctx, elements(&a->map) * dtype_bytes(a->x_dtype));
		job->shared = job->s.per_group > 1;
		for (int d = 0; d < a->map.ndim; d++)
			job->shared |= a->map.p_stride[d] == 0;
	}
	return 2 * round_to_lines(4 * a->map.params * (job->shared ? job->threads : 1));
}

size_t hzi_cpu_choose_qparams_workspace(const struct hz_context *ctx,
					const struct hzi_choose_qparams_args *a)
{
	struct range_job job;

	return make_ranges(ctx, a, &job);
}

static void range_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct range_job *job = data;
	const struct hzi_choose_qparams_args *a = job->a;
	const int64_t size = dtype_bytes(a->x_dtype),
		      own = job->shared ? thread * a->map.params : 0;
	float buffer[GATHER];

	for (int64_t u = begin; u < end; u++) {
		int64_t x, q, p;
		const int64_t n = segment_at(&job->s, u, &x, &q, &p);
		const char *x_at = (const char *)a->x + x * size;
		const struct hzi_range range = {
			.x = a->map.x_step == 1 ? (const void *)x_at : buffer,
			.lo = job->lo + own + p, .hi = job->hi + own + p,
			.count = n, .group = a->map.group, .x_dtype = a->x_dtype,
		};

		if (a->map.x_step != 1)
			copy_strided(buffer, 1, x_at, a->map.x_step, n, size);
		job->kern->range(&range);
	}
}

static void params_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct range_job *job = data;
	const struct hzi_choose_qparams_args *a = job->a;

	const struct hzi_params params = {
		.lo = job->lo + begin, .hi = job->hi + begin, .scale = a->scale + begin,
		.zero = (uint8_t *)a->zero + begin, .count = end - begin, .q_dtype = a->q_dtype,
		.flags = a->flags,
	};

	(void)thread;
	job->kern->params(&params);
}

int hzi_cpu_choose_qparams(struct hz_context *ctx, const struct hzi_choose_qparams_args *a)
{
	const int64_t params = a->map.params;
	struct range_job job;
	const size_t bytes = make_ranges(ctx, a, &job);
	bool inf = false;

	assert(ctx->workspace_bytes >= bytes);
	job.lo = ctx->workspace;
	job.hi = (float *)((char *)ctx->workspace + bytes / 2);
	memset(ctx->workspace, 0, bytes);
	if (a->map.n > 0)
		hzi_parallel(ctx, job.threads, range_units, &job, job.s.count);
	for (int t = 1; job.shared && t < job.threads; t++) {
		for (int64_t p = 0; p < params; p++) {
			job.lo[p] = fminf(job.lo[p], job.lo[t * params + p]);
			job.hi[p] = fmaxf(job.hi[p], job.hi[t * params + p]);
		}
	}
	for (int64_t p = 0; p < params; p++)
		inf |= job.lo[p] < -FLT_MAX || job.hi[p] > FLT_MAX;
	if (inf)
		return hzi_fail(ctx, HZ_EINVAL,
				"choose_qparams: x has an Inf, which no scale can hold");
	hzi_parallel(ctx, hzi_threads(ctx, params * 64), params_units, &job, params);
	return HZ_OK;
}
