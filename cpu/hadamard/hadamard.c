/*
 * hadamard.c - Walsh-Hadamard transforms on the CPU: layouts, constants and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/hadamard/hadamard.h"

/*
 * Transforms along columns of up to 2^COLUMN_BITS rows are made in tiles, longer ones one by one.
 */
#define COLUMN_BITS 18

static size_t diag_bytes(const struct hzi_hadamard_args *a, const struct hzi_diag *d)
{
	if (!d->kind || d->kind == HZ_F32)
		return 0;
	return round_to_lines(a->plan.n * (d->block_step ? a->blocks : 1) * 4);
}

static size_t sign_bytes(const struct hzi_segment *seg)
{
	return seg->m > 1 ? round_to_lines((int64_t)(seg->m + 3) / 4 * 4 * seg->m * 4) : 0;
}

size_t hzi_constants_bytes(const struct hzi_hadamard_args *a)
{
	size_t bytes = diag_bytes(a, &a->pre) + diag_bytes(a, &a->post);

	for (int i = 0; i < a->plan.nseg; i++)
		bytes += sign_bytes(&a->plan.seg[i]);
	return bytes;
}

static const float *make_diag(const struct job *job, const struct hzi_diag *d, char **workspace)
{
	const struct hzi_hadamard_args *a = job->a;
	const int64_t n = a->plan.n * (d->block_step ? a->blocks : 1);
	float *out = (float *)*workspace;

	if (!d->kind || d->kind == HZ_F32)
		return d->data;
	*workspace += diag_bytes(a, d);
	if (d->kind == HZ_U8) {
		const uint8_t *bits = d->data;

		for (int64_t i = 0; i < n; i++)
			out[i] = bits[i / 8] >> i % 8 & 1 ? -1.0f : 1.0f;
	} else {
		const struct hzi_head h = {
			.x = d->data,
			.y = out,
			.rows = 1,
			.count = n,
			.x_dtype = d->kind,
			.y_dtype = HZ_F32,
		};

		job->kern->head(&h);
	}
	return out;
}

/* The entries of a base matrix, or of its transpose, as floats [rows / 4][m][4] */
static const float *make_sign(const struct hzi_segment *seg, bool transpose, char **workspace)
{
	const struct hzi_base *base = seg->base;
	float *out = (float *)*workspace;

	if (seg->m == 1)
		return NULL;
	*workspace += sign_bytes(seg);
	for (int i = 0; i < (seg->m + 3) / 4 * 4; i++) {
		for (int j = 0; j < seg->m; j++) {
			const int row = transpose ? j : i, col = transpose ? i : j;
			const bool minus = i < seg->m &&
				base->bits[row * base->words + col / 32] >> col % 32 & 1;

			out[(i / 4 * seg->m + j) * 4 + i % 4] = minus ? -1.0f : 1.0f;
		}
	}
	return out;
}

void hzi_begin_job(struct job *job, struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	char *workspace = ctx->workspace;

	job->a = a;
	job->ctx = ctx;
	job->kern = hzi_hadamard_kern + ctx->level;
	job->items = item_count(a->ndim, a->shape);
	job->pre = make_diag(job, &a->pre, &workspace);
	job->post = make_diag(job, &a->post, &workspace);
	for (int i = 0; i < a->plan.nseg; i++)
		job->sign[i] = make_sign(&a->plan.seg[i], a->transpose, &workspace);
	/*
	 * Without a workspace all areas are empty, and any object will do as the base of offsets of
	 * 0.
	 */
	job->scratch = workspace ? workspace : (char *)job;
}

/* Bytes of scratch above which workers share one set of areas */
#define LARGE_AREA ((size_t)8 << 20)
/* Elements of the shortest block that threads share: 128 KiB */
#define SHARED_LENGTH (32 << 10)

bool hzi_is_shared(const struct areas *s, const struct hzi_plan *plan, int64_t units, int threads)
{
	return threads > 1 && ((units < threads && plan->n >= SHARED_LENGTH) ||
			       areas_bytes(s) > LARGE_AREA);
}

size_t hzi_scratch_bytes(const struct areas *s, int64_t units, int threads)
{
	const size_t each = areas_bytes(s);
	const size_t apart = each * (size_t)(each > LARGE_AREA ? 1 : min_i64(units, threads));
	const size_t together = each + s->tile * (size_t)threads;

	return apart > together ? apart : together;
}

struct rows hzi_rows_of(const struct job *job)
{
	const struct hzi_hadamard_args *a = job->a;

	return (struct rows){
		.ctx = job->ctx,
		.kern = job->kern,
		.plan = &a->plan,
		.x = a->x,
		.y = a->y,
		.x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype,
		.x_ld = a->x_block,
		.y_ld = a->y_block,
		.x_step = a->x_step,
		.y_step = a->y_step,
		.pre = job->pre,
		.post = job->post,
		.pre_ld = a->pre.block_step,
		.post_ld = a->post.block_step,
		.sign = job->sign,
		.x_in_memory = hzi_exceeds_cache(a),
		.y_in_memory = hzi_exceeds_cache(a),
		.threads = 1,
		.scratch = job->scratch,
	};
}

int hzi_cpu_hadamard_threads(const struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	const int64_t elements = item_count(a->ndim, a->shape) * a->blocks * a->plan.n;

	return hzi_threads(ctx, elements * (dtype_bytes(a->x_dtype) + dtype_bytes(a->y_dtype)));
}

/* ---- Contiguous columns ---------------------------------------------------------------------- */

const char *hzi_cpu_hadamard_columns_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;

	(void)ctx;
	if (a->ndim == 0 || a->x_step == 1 || a->y_step == 1 || a->x_stride[a->ndim - 1] != 1 ||
	    a->y_stride[a->ndim - 1] != 1)
		return "neighbours in x and y are not of different transforms";
	for (int i = 0; i < a->plan.nseg; i++) {
		if (a->plan.seg[i].length > (int64_t)1 << COLUMN_BITS)
			return "transforms are longer than 2^18 elements";
	}
	return NULL;
}

/* Transforms columns begin .. end - 1 one by one: see hzi_hadamard_scaled(). */
static void scaled_columns(const struct columns *c, int64_t begin, int64_t end, float *scratch,
			   bool fresh, int64_t done)
{
	for (int64_t i = begin; i < end; i++)
		hzi_hadamard_scaled(&(struct hzi_scaled){
			.kern = c->kern,
			.x = c->x + i * dtype_bytes(c->x_dtype),
			.y = c->y + i * dtype_bytes(c->y_dtype),
			.x_dtype = c->x_dtype,
			.y_dtype = c->y_dtype,
			.m = c->m,
			.k = c->k,
			.x_step = c->x_ld,
			.y_step = c->y_ld,
			.post_step = c->post_ld,
			.scale = c->scale,
			.sign = c->sign,
			.pre = c->pre,
			.post = c->post,
			.scratch = scratch,
			.fresh = fresh,
			.done = done,
			.done_bits = c->k / 2,
		});
}

/* Transforms the tile from column i on. */
static void watched_columns(const struct columns *c, int64_t i, float *scratch)
{
	const int64_t end = min_i64(i + c->width, c->columns);
	struct hzi_fp_watch w;
	int64_t made, done;
	bool overflow;

	if (!hzi_may_overflow(c->x_dtype, c->pre)) {
		hzi_run_columns(c, i, scratch, &done);
		return;
	}
	hzi_fp_watch_begin(&w);
	made = i + hzi_run_columns(c, i, scratch, &done);
	overflow = hzi_fp_watch_end(&w);
	if (made < end)
		scaled_columns(c, made, end, scratch, true, done);
	else if (overflow && c->in_place)
		hzi_scale_columns(c, i, scratch);
	else if (overflow)
		scaled_columns(c, i, end, scratch, false, 0);
}

/* A unit is a tile of columns of a block of an item of the outer dimensions but the last. */
static void do_column_tiles(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct job *job = work_job;
	const struct hzi_hadamard_args *a = job->a;
	const int64_t x_size = dtype_bytes(a->x_dtype);
	const int64_t y_size = dtype_bytes(a->y_dtype);
	struct columns c = {
		.kern = job->kern,
		.x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype,
		.x_ld = a->x_step,
		.y_ld = a->y_step,
		.columns = a->shape[a->ndim - 1],
		.width = job->width,
		.post_ld = 1,
		.last = true,
		.in_place = hzi_is_lost(a),
	};
	float *scratch = (float *)(job->scratch + (size_t)thread * job->area_bytes);

	for (int64_t u = begin; u < end; u++) {
		const int64_t tile = u % job->tiles, block = u / job->tiles % a->blocks;
		const int64_t item = u / job->tiles / a->blocks;
		const int64_t x = block * a->x_block +
				  item_offset(a->ndim - 1, a->shape, a->x_stride, item);
		const int64_t y = block * a->y_block +
				  item_offset(a->ndim - 1, a->shape, a->y_stride, item);

		for (int s = 0; s < a->plan.nseg; s++) {
			const struct hzi_segment *seg = &a->plan.seg[s];

			c.m = seg->m;
			c.k = seg->k;
			c.scale = seg->scale;
			c.sign = job->sign[s];
			for (int64_t i = 0; i < seg->count; i++) {
				const int64_t e = seg->offset + i * seg->length;

				c.x = (const char *)a->x + (x + e * a->x_step) * x_size;
				c.y = (char *)a->y + (y + e * a->y_step) * y_size;
				c.pre = c.post = NULL;
				if (job->pre)
					c.pre = job->pre + block * a->pre.block_step + e;
				if (job->post)
					c.post = job->post + block * a->post.block_step + e;
				watched_columns(&c, tile * job->width, scratch);
			}
		}
	}
}

size_t hzi_cpu_hadamard_columns_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;
	size_t bytes;

	hzi_columns_width(hzi_hadamard_kern + ctx->level, a, &bytes);
	return hzi_constants_bytes(a) + bytes * (size_t)ctx->threads;
}

int hzi_cpu_hadamard_columns(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;
	struct job job;

	hzi_begin_job(&job, ctx, a);
	job.width = hzi_columns_width(job.kern, a, &job.area_bytes);
	job.tiles = ceil_div(a->shape[a->ndim - 1], job.width);
	hzi_parallel(ctx, hzi_cpu_hadamard_threads(ctx, a), do_column_tiles, &job,
		     job.items / a->shape[a->ndim - 1] * a->blocks * job.tiles);
	return HZ_OK;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* A unit is a block of an item. */
static void do_blocks(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct job *job = work_job;
	const struct hzi_hadamard_args *a = job->a;
	struct rows r = hzi_rows_of(job);

	r.threads = job->share;
	r.scratch = job->scratch + (size_t)thread * job->area_bytes;
	while (begin < end) {
		const int64_t item = begin / a->blocks, block = begin % a->blocks;
		const int64_t count = min_i64(a->blocks - block, end - begin);

		r.x = (const char *)a->x + item_offset(a->ndim, a->shape, a->x_stride, item) *
		      dtype_bytes(a->x_dtype);
		r.y = (char *)a->y + item_offset(a->ndim, a->shape, a->y_stride, item) *
		      dtype_bytes(a->y_dtype);
		hzi_run_rows(&r, &job->areas, block, block + count);
		begin += count;
	}
}

size_t hzi_cpu_hadamard_blocks_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;
	const struct areas areas = hzi_row_areas(hzi_hadamard_kern + ctx->level, &a->plan,
						 a->x_dtype, a->y_dtype, a->x_step, a->y_step,
						 ctx->threads, hzi_is_lost(a));

	return hzi_constants_bytes(a) +
	       hzi_scratch_bytes(&areas, item_count(a->ndim, a->shape) * a->blocks, ctx->threads);
}

int hzi_cpu_hadamard_blocks(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;
	const int threads = hzi_cpu_hadamard_threads(ctx, a);
	struct job job;
	int64_t blocks;

	hzi_begin_job(&job, ctx, a);
	job.areas = hzi_row_areas(job.kern, &a->plan, a->x_dtype, a->y_dtype, a->x_step, a->y_step,
				  threads, hzi_is_lost(a));
	job.area_bytes = areas_bytes(&job.areas);
	blocks = job.items * a->blocks;
	job.share = hzi_is_shared(&job.areas, &a->plan, blocks, threads) ? threads : 1;
	hzi_parallel(ctx, job.share > 1 ? 1 : threads, do_blocks, &job, blocks);
	return HZ_OK;
}
