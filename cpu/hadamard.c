/*
 * hadamard.c - Walsh-Hadamard transforms on the CPU: layouts, cache blocking and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/cpu.h"
#include "lib/hadamard.h"
#include "lib/qgemm.h"

/*
 * Floats of a column tile, 256 KiB: a quarter of a 1 MiB L2, so that a tile, the lines it came from
 * and the prefetcher's guesses find room. Its rows are padded by one cache line, because rows a
 * multiple of 4 KiB apart meet in one set of L1.
 */
#define TILE_FLOATS (64 << 10)
#define TILE_PAD 16
/* Columns of a tile at most: 2 KiB of a row, half a page, for the prefetcher and the TLB */
#define TILE_COLUMNS 512
/* Floats that are passed over several times before the next ones: 16 KiB, half of an L1 */
#define L1_FLOATS 4096
/*
 * How far ahead 16-bit rows are fetched that go through registers alone. Longer ones are used a
 * block of L1_FLOATS at a time, with pauses that end the processor's own guesses: the next block.
 */
#define STREAM_AHEAD 1024
/* A transform beyond 2^BIG_BITS is made of sub-blocks of 2^SUB_BITS, which stay in L2. */
#define BIG_BITS 17
#define SUB_BITS 15
/*
 * Columns of f32 beyond 2^SPLIT_BITS are read and written twice, by groups of neighbouring rows and
 * then across the groups, since a tile of so many rows would be few lines wide. Zen 4, 4096 x 4096,
 * blocks of 1024, 2048, 4096: 13.8, 20.7, 28.1 ms in one step; 9.2, 9.8, 11.9 in two.
 */
#define SPLIT_BITS 9
/* Columns of transforms up to 2^COLUMN_BITS are made in tiles, longer ones one by one. */
#define COLUMN_BITS 18

static int64_t min_i64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t dtype_bytes(int dtype)
{
	return dtype == HZ_F32 ? 4 : 2;
}

/* Scratch bytes, in whole cache lines so that threads share none */
static size_t line(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

/* ---- Tiles of columns ------------------------------------------------------------------------ */

/*
 * m 2^k rows of columns elements: butterflies between rows, then the base matrix. One tile is width
 * columns wide; scratch holds m 2^k of its rows, width + TILE_PAD apart.
 */
struct columns {
	const struct hz_kern *kern;
	const char *x;
	char *y;
	int32_t x_dtype, y_dtype, m, k;
	int64_t x_ld, y_ld, columns, width;
	const float *pre, *post;	/* of row j: pre[j], post[j], or post[j * post_ld + c] */
	int64_t post_ld;
	bool post_wide, last;
	float scale;
	const float *sign;
};

/* Whether a tile goes from x to y in one pass through registers */
static bool one_pass(const struct hz_kern *kern, int m, int k)
{
	return m == 1 && k <= kern->pass_bits;
}

static int64_t tile_width(int64_t length, int64_t columns)
{
	const int64_t fit = TILE_FLOATS / length / 16 * 16;

	return min_i64(max_i64(fit, 16), min_i64(TILE_COLUMNS, columns));
}

static size_t tile_bytes(const struct hz_kern *kern, int m, int k, int64_t columns)
{
	const int64_t length = (int64_t)m << k;

	if (one_pass(kern, m, k))
		return 0;
	return line((size_t)(length * (tile_width(length, columns) + TILE_PAD)) * 4);
}

static void column_tile(const struct columns *a, int64_t c, float *scratch)
{
	const int64_t width = min_i64(a->width, a->columns - c), ld = a->width + TILE_PAD;
	const int64_t x_size = dtype_bytes(a->x_dtype);
	const int64_t y_size = dtype_bytes(a->y_dtype);
	struct hzi_pass p = {
		.width = width,
		.groups = 1,
		.post_wide = a->post_wide,
		.scale = a->scale,
		.pre_ld = 1,
	};
	const int passes = (a->k + a->kern->pass_bits - 1) / a->kern->pass_bits;
	int done = 0;

	for (int i = 0; i < passes || i == 0; i++) {
		const bool from_x = i == 0;
		const bool to_y = i + 1 >= passes && a->m == 1;
		const int bits = passes ? (a->k - done + passes - i - 1) / (passes - i) : 0;
		const int64_t step = (int64_t)1 << done, rows = (int64_t)a->m << a->k;

		p.bits = bits;
		p.x_dtype = from_x ? a->x_dtype : HZ_F32;
		p.y_dtype = to_y ? a->y_dtype : HZ_F32;
		p.x_ld = (from_x ? a->x_ld : ld) * step;
		p.y_ld = (to_y ? a->y_ld : ld) * step;
		p.last = to_y && a->last;
		p.post_ld = a->post_ld * step;
		p.y_ahead = to_y && a->y != a->x ? width : 0;
		for (int64_t j = 0; j < rows; j += step << bits) {
			for (int64_t l = j; l < j + step; l++) {
				p.x = from_x ? a->x + (l * a->x_ld + c) * x_size :
					       (const char *)(scratch + l * ld);
				p.y = to_y ? a->y + (l * a->y_ld + c) * y_size :
					     (char *)(scratch + l * ld);
				p.pre = from_x && a->pre ? a->pre + l : NULL;
				p.post = to_y && a->post ?
					 a->post + l * a->post_ld + (a->post_wide ? c : 0) : NULL;
				/* The next group of rows, or the first one of the next tile */
				p.ahead = !from_x ? 0 : j + (step << bits) < rows ?
					  a->x_ld * ((int64_t)1 << bits) : width - j * a->x_ld;
				a->kern->pass(&p);
			}
		}
		done += bits;
	}
	if (a->m > 1) {
		struct hzi_base_mul b = {
			.sign = a->sign,
			.x_ld = ld * ((int64_t)1 << a->k),
			.y_ld = a->y_ld * ((int64_t)1 << a->k),
			.width = width,
			.y_dtype = a->y_dtype,
			.m = a->m,
			.last = a->last,
			.post_wide = a->post_wide,
			.scale = a->scale,
			.post_ld = a->post_ld * ((int64_t)1 << a->k),
		};

		for (int64_t l = 0; l < (int64_t)1 << a->k; l++) {
			b.x = scratch + l * ld;
			b.y = a->y + (l * a->y_ld + c) * y_size;
			b.post = NULL;
			if (a->post)
				b.post = a->post + l * a->post_ld + (a->post_wide ? c : 0);
			a->kern->base_mul(&b);
		}
	}
}

/* Whether columns are split, in groups of 2^(k / 2) rows */
static bool is_split(int m, int k, int y_dtype)
{
	return m == 1 && k > SPLIT_BITS && y_dtype == HZ_F32;
}

/* column_tile() in two steps, the values between them in y */
static void split_tile(const struct columns *a, int64_t c, float *scratch)
{
	const int64_t group = (int64_t)1 << (a->k / 2), groups = (int64_t)1 << (a->k - a->k / 2);
	struct columns s = *a;

	s.k = a->k / 2;
	s.last = false;
	s.post = NULL;
	for (int64_t i = 0; i < groups; i++) {
		s.x = a->x + i * group * a->x_ld * dtype_bytes(a->x_dtype);
		s.y = a->y + i * group * a->y_ld * 4;
		s.pre = a->pre ? a->pre + i * group : NULL;
		column_tile(&s, c, scratch);
	}
	s = *a;
	s.k = a->k - a->k / 2;
	s.x_dtype = HZ_F32;
	s.x_ld = a->y_ld * group;
	s.y_ld = a->y_ld * group;
	s.pre = NULL;
	s.post_ld = a->post_ld * group;
	for (int64_t i = 0; i < group; i++) {
		s.x = a->y + i * a->y_ld * 4;
		s.y = a->y + i * a->y_ld * 4;
		s.post = a->post ? a->post + i * a->post_ld : NULL;
		column_tile(&s, c, scratch);
	}
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/*
 * A run of blocks of a plan, block b at x + b * x_ld; all elements of a block are contiguous unless
 * a step is not 1. scratch: see struct areas.
 */
struct rows {
	const struct hz_kern *kern;
	const struct hzi_plan *plan;
	const char *x;
	char *y;
	int32_t x_dtype, y_dtype;
	int64_t x_ld, y_ld, x_step, y_step;
	const float *pre, *post;
	int64_t pre_ld, post_ld;	/* per block */
	const float *const *sign;	/* per segment */
	int threads;			/* for each transform */
	char *scratch;			/* of the worker that runs the blocks */
};

/*
 * Bytes of scratch of one worker, in this order: a column tile; the f32 values of one transform
 * between its passes, where y cannot hold them; a block gathered from x; one to be scattered to y.
 * If threads work on one transform, as many tiles as threads come first.
 */
struct areas {
	size_t tile, values, gather, scatter;
};

/*
 * Base matrices times less than a vector of columns: BATCH transforms at a time are put side by
 * side, as columns, so that vectors are full. Long ones make up fewer, to stay in L2.
 */
#define BATCH 64
#define BATCH_LONG 16

static int64_t batch_columns(const struct hzi_segment *seg)
{
	return seg->length <= 512 ? BATCH : BATCH_LONG;
}

static bool is_batched(const struct hz_kern *kern, const struct hzi_segment *seg)
{
	return seg->m > 1 && seg->count == 1 && (int64_t)1 << seg->k < kern->lanes;
}

static size_t batch_bytes(const struct hzi_segment *seg)
{
	return line((size_t)(2 * seg->length * (batch_columns(seg) + TILE_PAD)) * 4);
}

/* Log2 of the sub-block of a transform of 2^k that is finished before the rest begins */
static int sub_bits(const struct hz_kern *kern, int k, int threads)
{
	if (threads > 1 && k > kern->head_bits)
		return (int)min_i64(SUB_BITS, max_i64(k - 3, kern->head_bits));
	return k > BIG_BITS ? SUB_BITS : k;
}

static struct areas row_areas(const struct hz_kern *kern, const struct hzi_plan *plan,
			      int x_dtype, int y_dtype, int64_t x_step, int64_t y_step,
			      int threads)
{
	struct areas s = {0};

	for (int i = 0; i < plan->nseg; i++) {
		const struct hzi_segment *seg = &plan->seg[i];
		const int sub[2] = {sub_bits(kern, seg->k, 1), sub_bits(kern, seg->k, threads)};

		for (int j = 0; j < 2; j++) {
			if (sub[j] < seg->k) {
				const size_t tile = tile_bytes(kern, 1, seg->k - sub[j],
							       (int64_t)1 << sub[j]);

				s.tile = tile > s.tile ? tile : s.tile;
			}
		}
		if (seg->m > 1 || (seg->k > kern->head_bits && y_dtype != HZ_F32)) {
			const size_t values = is_batched(kern, seg) ? batch_bytes(seg) :
					      line((size_t)max_i64(seg->length, L1_FLOATS) * 4);

			s.values = values > s.values ? values : s.values;
		}
	}
	if (x_step != 1)
		s.gather = line((size_t)(plan->n * dtype_bytes(x_dtype)));
	if (y_step != 1)
		s.scatter = line((size_t)(plan->n * dtype_bytes(y_dtype)));
	return s;
}

static size_t areas_bytes(const struct areas *s)
{
	return s->tile + s->values + s->gather + s->scatter;
}

/* One transform: x to y by way of t, f32, which may be y. */
struct transform {
	const struct rows *r;
	const struct hzi_segment *seg;
	const char *x;
	char *y;
	float *t;
	const float *pre, *post;
	const float *sign;
	int64_t count;			/* transforms back to back, 1 unless they are short */
	int sub;
	int64_t width;			/* columns of a tile */
	size_t tile_bytes;		/* from one worker's tile to the next one's */
};

/* Butterflies of 2^k elements at offset: to y with scale and post if last, else to t. */
static void sylvester(const struct transform *a, int64_t offset, int64_t count, int k, bool last)
{
	const struct rows *r = a->r;
	const struct hz_kern *kern = r->kern;

	if (k <= kern->head_bits) {
		const struct hzi_head h = {
			.x = a->x + offset * dtype_bytes(r->x_dtype),
			.y = last ? a->y + offset * dtype_bytes(r->y_dtype) :
				    (char *)(a->t + offset),
			.rows = 1,
			.count = count,
			.x_dtype = r->x_dtype,
			.y_dtype = last ? r->y_dtype : HZ_F32,
			.bits = k,
			.last = last,
			.scale = a->seg->scale,
			.pre = a->pre ? a->pre + offset : NULL,
			.post = a->post ? a->post + offset : NULL,
			.ahead = L1_FLOATS,
		};

		kern->head(&h);
	} else {
		const int left = k - kern->head_bits;
		const int passes = (left + kern->pass_bits - 1) / kern->pass_bits;
		/* Lines a multiple of 4 KiB apart share a set of L1, which has as few as 8 ways. */
		const int most = left > kern->pass_bits ? 3 : kern->pass_bits;
		const int bits = (int)min_i64(most, (left + passes - 1) / passes);
		const int64_t step = (int64_t)1 << (k - bits);
		struct hzi_pass p = {
			.x_ld = step,
			.y_ld = step,
			.width = step,
			.x_group = step << bits,
			.y_group = step << bits,
			.post_group = step << bits,
			.x_dtype = HZ_F32,
			.y_dtype = last ? r->y_dtype : HZ_F32,
			.bits = bits,
			.last = last,
			.post_wide = true,
			.scale = a->seg->scale,
			.post_ld = step,
		};

		/* As many transforms at a time as stay in L1, or one */
		for (int64_t i = offset, n; i < offset + count; i += n) {
			n = min_i64(max_i64(step << bits, L1_FLOATS), offset + count - i);
			if (k - bits <= kern->head_bits) {
				sylvester(a, i, n, k - bits, false);
			} else {
				for (int64_t j = i; j < i + n; j += step)
					sylvester(a, j, step, k - bits, false);
			}
			p.groups = n >> k;
			p.x = a->t + i;
			p.y = last ? a->y + i * dtype_bytes(r->y_dtype) :
				     (char *)(a->t + i);
			p.post = a->post ? a->post + i : NULL;
			kern->pass(&p);
		}
	}
}

/* Unit i: sub-block i of the transform */
static void do_sub_blocks(void *job, int thread, int64_t begin, int64_t end)
{
	const struct transform *a = job;
	const struct hzi_segment *seg = a->seg;
	const int64_t step = (int64_t)1 << a->sub;
	const bool last = seg->m == 1 && a->sub == seg->k;

	(void)thread;
	sylvester(a, begin * step, (end - begin) * step, a->sub, last);
}

/* Unit i: a tile of columns of the matrix whose rows are the sub-blocks of part i / tiles */
static void do_columns(void *job, int thread, int64_t begin, int64_t end)
{
	const struct transform *a = job;
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int64_t step = (int64_t)1 << a->sub, tiles = (step + a->width - 1) / a->width;
	struct columns c = {
		.kern = r->kern,
		.x_dtype = HZ_F32,
		.y_dtype = seg->m == 1 ? r->y_dtype : HZ_F32,
		.m = 1,
		.k = seg->k - a->sub,
		.x_ld = step,
		.y_ld = step,
		.columns = step,
		.width = a->width,
		.post_ld = step,
		.post_wide = true,
		.last = seg->m == 1,
		.scale = seg->scale,
	};

	for (int64_t i = begin; i < end; i++) {
		const int64_t offset = i / tiles << seg->k;

		c.x = (const char *)(a->t + offset);
		c.y = seg->m == 1 ? a->y : (char *)(a->t + offset);
		c.post = seg->m == 1 ? a->post : NULL;
		column_tile(&c, i % tiles * a->width,
			    (float *)(r->scratch + (size_t)thread * a->tile_bytes));
	}
}

/* Unit i: columns 16 i and on of the product with the base matrix */
static void do_base(void *job, int thread, int64_t begin, int64_t end)
{
	const struct transform *a = job;
	const struct rows *r = a->r;
	const int64_t step = (int64_t)1 << a->seg->k, c = begin * 16;
	const struct hzi_base_mul b = {
		.x = a->t + c,
		.y = a->y + c * dtype_bytes(r->y_dtype),
		.sign = a->sign,
		.x_ld = step,
		.y_ld = step,
		.width = min_i64(end * 16, step) - c,
		.y_dtype = r->y_dtype,
		.m = a->seg->m,
		.last = true,
		.post_wide = true,
		.scale = a->seg->scale,
		.post = a->post ? a->post + c : NULL,
		.post_ld = step,
	};

	(void)thread;
	r->kern->base_mul(&b);
}

static void one_transform(struct transform *a)
{
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int64_t step = (int64_t)1 << seg->k;

	a->sub = sub_bits(r->kern, seg->k, r->threads);
	hzi_parallel(r->threads, do_sub_blocks, a, a->count * seg->length >> a->sub);
	if (a->sub < seg->k) {
		const int64_t rows = (int64_t)1 << (seg->k - a->sub);
		const int64_t columns = (int64_t)1 << a->sub;

		a->width = tile_width(rows, columns);
		hzi_parallel(r->threads, do_columns, a,
			     seg->m * ((columns + a->width - 1) / a->width));
	}
	if (seg->m > 1)
		hzi_parallel(r->threads, do_base, a, (step + 15) / 16);
}

/* The transforms of a segment in n blocks, n at most batch_columns(), that of the first given. */
static void batch(const struct transform *a, int64_t n)
{
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int64_t length = seg->length, ld = batch_columns(seg) + TILE_PAD;
	float *p = a->t, *q = a->t + length * ld;
	struct hzi_base_mul b = {
		.sign = a->sign,
		.x_ld = ld << seg->k,
		.y_ld = ld << seg->k,
		.width = (n + TILE_PAD - 1) / TILE_PAD * TILE_PAD,
		.y_dtype = HZ_F32,
		.m = seg->m,
	};

	r->kern->head(&(struct hzi_head){
		.x = a->x,
		.y = p,
		.x_ld = r->x_ld,
		.y_ld = length,
		.rows = n,
		.count = length,
		.x_dtype = r->x_dtype,
		.y_dtype = HZ_F32,
		.bits = seg->k,
		.pre = a->pre,
		.pre_ld = r->pre_ld,
	});
	r->kern->transpose(p, length, q, ld, n, length);
	for (int64_t i = 0; i < length && n < b.width; i++)
		memset(q + i * ld + n, 0, (size_t)(b.width - n) * 4);
	for (int64_t i = 0; i < (int64_t)1 << seg->k; i++) {
		b.x = q + i * ld;
		b.y = p + i * ld;
		r->kern->base_mul(&b);
	}
	r->kern->transpose(p, ld, q, length, length, n);
	r->kern->head(&(struct hzi_head){
		.x = q,
		.y = a->y,
		.x_ld = length,
		.y_ld = r->y_ld,
		.rows = n,
		.count = length,
		.x_dtype = HZ_F32,
		.y_dtype = r->y_dtype,
		.last = true,
		.scale = seg->scale,
		.post = a->post,
		.post_ld = r->post_ld,
	});
}

/* Blocks begin .. end - 1 of rows whose elements are contiguous in x and y */
static void run_contiguous(const struct rows *r, const struct areas *areas, int64_t begin,
			   int64_t end)
{
	const struct hzi_plan *plan = r->plan;
	const int64_t x_size = dtype_bytes(r->x_dtype);
	const int64_t y_size = dtype_bytes(r->y_dtype);
	const int64_t n = plan->n;
	/* Whether blocks lie back to back, and diagonals likewise */
	const bool flat = plan->nseg == 1 && r->x_ld == n && r->y_ld == n &&
			  (!r->pre || r->pre_ld == n) && (!r->post || r->post_ld == n);
	int64_t together = end - begin;

	/* Rows of more than one segment pass through L1 a few at a time. */
	if (plan->nseg > 1)
		together = max_i64(1, min_i64(together, L1_FLOATS / n));
	for (int64_t b = begin; b < end; b += together) {
		const int64_t blocks = min_i64(together, end - b);

		for (int s = 0; s < plan->nseg; s++) {
			const struct hzi_segment *seg = &plan->seg[s];

			if (seg->m == 1 && seg->k <= r->kern->head_bits) {
				struct hzi_head h = {
					.x = r->x + (b * r->x_ld + seg->offset) * x_size,
					.y = r->y + (b * r->y_ld + seg->offset) * y_size,
					.x_ld = r->x_ld,
					.y_ld = r->y_ld,
					.rows = blocks,
					.count = seg->count * seg->length,
					.x_dtype = r->x_dtype,
					.y_dtype = r->y_dtype,
					.bits = seg->k,
					.last = true,
					.scale = seg->scale,
					.pre = r->pre ? r->pre + b * r->pre_ld + seg->offset : NULL,
					.post = r->post ? r->post + b * r->post_ld + seg->offset :
							  NULL,
					.pre_ld = r->pre_ld,
					.post_ld = r->post_ld,
					.ahead = STREAM_AHEAD,
				};

				if (flat) {
					h.count *= blocks;
					h.rows = 1;
				}
				r->kern->head(&h);
				continue;
			}
			for (int64_t i = 0, step; i < blocks * seg->count; i += step) {
				const int64_t left = flat ? blocks * seg->count - i :
							    seg->count - i % seg->count;
				const int64_t block = b + i / seg->count;
				const int64_t e = seg->offset + i % seg->count * seg->length;
				struct transform a = {
					.r = r,
					.seg = seg,
					.x = r->x + (block * r->x_ld + e) * x_size,
					.y = r->y + (block * r->y_ld + e) * y_size,
					.pre = r->pre ? r->pre + block * r->pre_ld + e : NULL,
					.post = r->post ? r->post + block * r->post_ld + e : NULL,
					.sign = r->sign[s],
					.count = 1,
					.tile_bytes = areas->tile,
				};

				a.t = (float *)(r->scratch + (size_t)r->threads * areas->tile);
				if (seg->m == 1 && r->y_dtype == HZ_F32)
					a.t = (float *)a.y;
				/* Not worth it for fewer columns than each has by itself */
				if (is_batched(r->kern, seg) && blocks - i > (int64_t)1 << seg->k) {
					step = min_i64(blocks - i, batch_columns(seg));
					batch(&a, step);
					continue;
				}
				if (seg->m == 1 && r->threads == 1)
					a.count = max_i64(1, min_i64(left,
								     L1_FLOATS / seg->length));
				step = a.count;
				one_transform(&a);
			}
		}
	}
}

static void copy_strided(char *y, int64_t y_step, const char *x, int64_t x_step, int64_t n,
			 int64_t size)
{
	if (size == 4) {
		for (int64_t i = 0; i < n; i++)
			memcpy(y + 4 * i * y_step, x + 4 * i * x_step, 4);
	} else if (size == 2) {
		for (int64_t i = 0; i < n; i++)
			memcpy(y + 2 * i * y_step, x + 2 * i * x_step, 2);
	} else {
		for (int64_t i = 0; i < n; i++)
			y[i * y_step] = x[i * x_step];
	}
}

static void run_rows(const struct rows *r, const struct areas *s, int64_t begin, int64_t end)
{
	char *gather = r->scratch + (size_t)r->threads * s->tile + s->values;
	char *scatter = gather + s->gather;
	struct rows c;

	if (r->x_step == 1 && r->y_step == 1) {
		run_contiguous(r, s, begin, end);
		return;
	}
	c = *r;
	for (int64_t b = begin; b < end; b++) {
		c.x = r->x + b * r->x_ld * dtype_bytes(r->x_dtype);
		c.y = r->y + b * r->y_ld * dtype_bytes(r->y_dtype);
		c.pre = r->pre ? r->pre + b * r->pre_ld : NULL;
		c.post = r->post ? r->post + b * r->post_ld : NULL;
		if (r->x_step != 1) {
			copy_strided(gather, 1, c.x, r->x_step, r->plan->n,
				     dtype_bytes(r->x_dtype));
			c.x = gather;
		}
		if (r->y_step != 1)
			c.y = scatter;
		run_contiguous(&c, s, 0, 1);
		if (r->y_step != 1)
			copy_strided(r->y + b * r->y_ld * dtype_bytes(r->y_dtype),
				     r->y_step, scatter, 1, r->plan->n, dtype_bytes(r->y_dtype));
	}
}

/* ---- What all calls share -------------------------------------------------------------------- */

/*
 * The codes that a row becomes or comes from. given: scales and zeros are operands, of group
 * elements each, and group is what divides the work.
 */
struct codes {
	char *q, *scale;
	int32_t q_dtype, scale_dtype, round_to;
	bool back;			/* codes to values */
	int64_t group;
	const int64_t *q_stride, *scale_stride;
	/* given */
	bool given;
	const float *scales;
	const char *zeros;
	int64_t q_step, param_group;
};

/* A call: its diagonals and base matrices as f32, its scratch */
struct job {
	const struct hzi_hadamard_args *a;
	const struct hz_kern *kern;
	const float *pre, *post;
	const float *sign[HZI_SEGMENTS];
	struct areas areas;
	size_t area_bytes;	/* from one worker's areas to the next one's */
	char *scratch;		/* of worker 0 */
	int64_t items;		/* the product of the outer dimensions */
	int share;		/* threads that work on one transform */
	int64_t width, tiles;	/* of columns */
	/* the calls with codes */
	struct codes codes;
	struct rows run;
	float *values;
	int64_t item;
};

static size_t diag_bytes(const struct hzi_hadamard_args *a, const struct hzi_diag *d)
{
	if (!d->kind || d->kind == HZ_F32)
		return 0;
	return line((size_t)(a->plan.n * (d->block_step ? a->blocks : 1)) * 4);
}

static size_t sign_bytes(const struct hzi_segment *seg)
{
	return seg->m > 1 ? line((size_t)(seg->m + 3) / 4 * 4 * (size_t)seg->m * 4) : 0;
}

/* Bytes of the diagonals and base matrices, which come first in the workspace */
static size_t constants_bytes(const struct hzi_hadamard_args *a)
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

/* The entries of a base matrix as [rows / 4][m][4] floats, transposed if asked for */
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

static int64_t count_items(const struct hzi_hadamard_args *a)
{
	int64_t items = 1;

	for (int i = 0; i < a->ndim; i++)
		items *= a->shape[i];
	return items;
}

/* Fills job but for the scratch areas; the workspace holds constants_bytes() and then the areas. */
static void begin_job(struct job *job, struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	char *workspace = ctx->workspace;

	job->a = a;
	job->kern = ctx->kern;
	job->items = count_items(a);
	job->pre = make_diag(job, &a->pre, &workspace);
	job->post = make_diag(job, &a->post, &workspace);
	for (int i = 0; i < a->plan.nseg; i++)
		job->sign[i] = make_sign(&a->plan.seg[i], a->transpose, &workspace);
	/* No workspace: every area is empty, and offsets of 0 need an object to start from. */
	job->scratch = workspace ? workspace : (char *)job;
}

/* The offset of an item of the outer dimensions, the last fastest */
static int64_t item_offset(const struct hzi_hadamard_args *a, int ndim, const int64_t *stride,
			   int64_t item)
{
	int64_t offset = 0;

	for (int i = ndim - 1; i >= 0; i--) {
		offset += item % a->shape[i] * stride[i];
		item /= a->shape[i];
	}
	return offset;
}

/* Scratch of each worker that is too much to have for every one */
#define LARGE_AREA ((size_t)8 << 20)
/* The shortest block, 128 KiB, of which several threads make one transform */
#define SHARED_LENGTH (32 << 10)

/*
 * Whether threads share each transform instead of taking transforms each: there are fewer of them
 * and they are long, or their scratch is large.
 */
static bool shared(const struct areas *s, const struct hzi_plan *plan, int64_t units, int threads)
{
	return threads > 1 && ((units < threads && plan->n >= SHARED_LENGTH) ||
			       areas_bytes(s) > LARGE_AREA);
}

/*
 * Scratch for units that threads share out: every worker has its areas, or, if they share a unit,
 * they have one set of areas and a tile each.
 */
static size_t scratch_bytes(const struct areas *s, int64_t units, int threads)
{
	const size_t each = areas_bytes(s);
	const size_t apart = each * (size_t)(each > LARGE_AREA ? 1 : min_i64(units, threads));
	const size_t together = each + s->tile * (size_t)threads;

	return apart > together ? apart : together;
}

static struct rows rows_of(const struct job *job)
{
	const struct hzi_hadamard_args *a = job->a;

	return (struct rows){
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
		.threads = 1,
		.scratch = job->scratch,
	};
}

/* ---- hadamard() ------------------------------------------------------------------------------ */

/* Columns lie side by side in x and y, and their elements do not. */
static bool is_columns(const struct hzi_hadamard_args *a)
{
	if (a->ndim == 0 || a->x_step == 1 || a->y_step == 1 || a->x_stride[a->ndim - 1] != 1 ||
	    a->y_stride[a->ndim - 1] != 1)
		return false;
	for (int i = 0; i < a->plan.nseg; i++) {
		if (a->plan.seg[i].length > (int64_t)1 << COLUMN_BITS)
			return false;
	}
	return true;
}

/* The width of column tiles for all segments, and the scratch of one */
static int64_t columns_width(const struct hz_kern *kern, const struct hzi_hadamard_args *a,
			     size_t *bytes)
{
	const int64_t columns = a->shape[a->ndim - 1];
	int64_t length = 1, width;

	for (int i = 0; i < a->plan.nseg; i++) {
		const struct hzi_segment *seg = &a->plan.seg[i];

		if (is_split(seg->m, seg->k, a->y_dtype))
			length = max_i64(length, (int64_t)1 << (seg->k - seg->k / 2));
		else if (!one_pass(kern, seg->m, seg->k))
			length = max_i64(length, seg->length);
	}
	width = tile_width(length, columns);
	*bytes = length > 1 ? line((size_t)(length * (width + TILE_PAD)) * 4) : 0;
	return width;
}

/* Unit: a tile of columns of a block of an item of the outer dimensions but the last */
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
	};

	for (int64_t u = begin; u < end; u++) {
		const int64_t tile = u % job->tiles, block = u / job->tiles % a->blocks;
		const int64_t item = u / job->tiles / a->blocks;
		const int64_t x = block * a->x_block +
				  item_offset(a, a->ndim - 1, a->x_stride, item);
		const int64_t y = block * a->y_block +
				  item_offset(a, a->ndim - 1, a->y_stride, item);

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
				(is_split(c.m, c.k, c.y_dtype) ? split_tile : column_tile)(
					&c, tile * job->width,
					(float *)(job->scratch + (size_t)thread * job->area_bytes));
			}
		}
	}
}

/* Unit: a block of an item */
static void do_blocks(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct job *job = work_job;
	const struct hzi_hadamard_args *a = job->a;
	struct rows r = rows_of(job);

	r.threads = job->share;
	r.scratch = job->scratch + (size_t)thread * job->area_bytes;
	while (begin < end) {
		const int64_t item = begin / a->blocks, block = begin % a->blocks;
		const int64_t count = min_i64(a->blocks - block, end - begin);

		r.x = (const char *)a->x + item_offset(a, a->ndim, a->x_stride, item) *
		      dtype_bytes(a->x_dtype);
		r.y = (char *)a->y + item_offset(a, a->ndim, a->y_stride, item) *
		      dtype_bytes(a->y_dtype);
		run_rows(&r, &job->areas, block, block + count);
		begin += count;
	}
}

static bool is_float_or_none(const struct hzi_diag *d)
{
	return !d->kind || d->kind == HZ_F32;
}

/*
 * Whether it takes no scratch, no constants and no more than sylvester(): rows of one transform
 * that fits in registers, or of f32 ones back to back. Of few rows the way there counts.
 */
static bool is_simple(const struct hz_kern *kern, const struct hzi_hadamard_args *a)
{
	const struct hzi_segment *seg = &a->plan.seg[0];

	if (a->ndim != 0 || a->plan.nseg != 1 || seg->m != 1 || a->x_step != 1 || a->y_step != 1 ||
	    !is_float_or_none(&a->pre) || !is_float_or_none(&a->post))
		return false;
	return seg->k <= kern->head_bits ||
	       (seg->k <= BIG_BITS && a->y_dtype == HZ_F32 && a->x_block == a->plan.n &&
		a->y_block == a->plan.n && !a->pre.kind && !a->post.kind);
}

static void run_simple(const struct hz_kern *kern, const struct hzi_hadamard_args *a)
{
	const int64_t n = a->plan.n;
	struct hzi_head h = {
		.x = a->x,
		.y = a->y,
		.x_ld = a->x_block,
		.y_ld = a->y_block,
		.rows = a->blocks,
		.count = n,
		.x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype,
		.bits = a->plan.seg[0].k,
		.last = true,
		.scale = a->plan.seg[0].scale,
		.pre = a->pre.data,
		.post = a->post.data,
		.pre_ld = a->pre.block_step,
		.post_ld = a->post.block_step,
		.ahead = STREAM_AHEAD,
	};

	if (h.bits > kern->head_bits) {
		const struct rows r = {
			.kern = kern,
			.x_dtype = a->x_dtype,
			.y_dtype = HZ_F32,
		};
		const struct transform t = {
			.r = &r,
			.seg = &a->plan.seg[0],
			.x = a->x,
			.y = a->y,
			.t = a->y,
		};

		sylvester(&t, 0, a->blocks * n, h.bits, true);
		return;
	}
	if (h.x_ld == n && h.y_ld == n && (!h.pre || h.pre_ld == n) &&
	    (!h.post || h.post_ld == n)) {
		h.count *= h.rows;
		h.rows = 1;
	}
	kern->head(&h);
}

int hzi_cpu_hadamard(struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	const int64_t elements = count_items(a) * a->blocks * a->plan.n;
	const int threads = hzi_threads(ctx, elements * (dtype_bytes(a->x_dtype) +
							 dtype_bytes(a->y_dtype)));
	struct job job;

	if (threads == 1 && is_simple(ctx->kern, a)) {
		run_simple(ctx->kern, a);
		return HZ_OK;
	}
	begin_job(&job, ctx, a);
	if (is_columns(a)) {
		job.width = columns_width(job.kern, a, &job.area_bytes);
		job.tiles = (a->shape[a->ndim - 1] + job.width - 1) / job.width;
		hzi_parallel(threads, do_column_tiles, &job,
			     job.items / a->shape[a->ndim - 1] * a->blocks * job.tiles);
		return HZ_OK;
	}
	job.areas = row_areas(job.kern, &a->plan, a->x_dtype, a->y_dtype, a->x_step, a->y_step,
			      threads);
	job.area_bytes = areas_bytes(&job.areas);
	job.share = shared(&job.areas, &a->plan, job.items * a->blocks, threads) ? threads : 1;
	hzi_parallel(job.share > 1 ? 1 : threads, do_blocks, &job, job.items * a->blocks);
	return HZ_OK;
}

size_t hzi_cpu_hadamard_workspace(const struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	struct areas areas;

	if (is_simple(ctx->kern, a))
		return 0;
	if (is_columns(a)) {
		size_t bytes;

		columns_width(ctx->kern, a, &bytes);
		return constants_bytes(a) + bytes * (size_t)ctx->threads;
	}
	areas = row_areas(ctx->kern, &a->plan, a->x_dtype, a->y_dtype, a->x_step, a->y_step,
			  ctx->threads);
	return constants_bytes(a) +
	       scratch_bytes(&areas, count_items(a) * a->blocks, ctx->threads);
}

/* ---- hadamard_quantize(), dequantize_hadamard() ---------------------------------------------- */

/*
 * Values of rows that are held between transform and codes: 32 KiB, or one row. Rows beyond
 * LONG_FLOATS, 1 MiB, are done one after the other by all threads.
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

/* Pieces that codes of a row are made in */
static int64_t pieces(const struct job *job)
{
	return (row_length(job->a) + job->codes.group - 1) / job->codes.group;
}

static size_t values_bytes(const struct hzi_hadamard_args *a)
{
	return line((size_t)(rows_together(a) * row_length(a)) * 4);
}

/* Room for the codes of a row that do not lie side by side */
static size_t aside_bytes(const struct hzi_hadamard_args *a, const struct codes *c)
{
	return c->given && c->q_step != 1 ? line((size_t)row_length(a)) : 0;
}

/* Rows from item on, at most count, whose blocks are one run: side by side, with equal diagonals */
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

/* A run of rows from item on; the values lie at values, contiguous. */
static struct rows rows_run(const struct job *job, int64_t item, float *values)
{
	const struct hzi_hadamard_args *a = job->a;
	struct rows r = rows_of(job);

	if (job->codes.back) {
		r.x = (const char *)values;
		r.x_dtype = HZ_F32;
		r.x_ld = a->plan.n;
		r.x_step = 1;
		r.y += item_offset(a, a->ndim, a->y_stride, item) * dtype_bytes(a->y_dtype);
		if (a->blocks == 1 && a->ndim > 0)
			r.y_ld = a->y_stride[a->ndim - 1];
	} else {
		r.y = (char *)values;
		r.y_dtype = HZ_F32;
		r.y_ld = a->plan.n;
		r.y_step = 1;
		r.x += item_offset(a, a->ndim, a->x_stride, item) * dtype_bytes(a->x_dtype);
		if (a->blocks == 1 && a->ndim > 0)
			r.x_ld = a->x_stride[a->ndim - 1];
	}
	if (a->blocks == 1)
		r.pre_ld = r.post_ld = 0;
	return r;
}

/* The same with scales and zeros that are given; codes that are not side by side are by way of
 * aside, which has room for a row of them. */
static void convert_given(const struct job *job, int64_t item, float *values, int64_t begin,
			  int64_t end, char *aside)
{
	const struct hzi_hadamard_args *a = job->a;
	const struct codes *c = &job->codes;
	const int64_t i = begin * c->group, count = min_i64(end * c->group, row_length(a)) - i;
	const int64_t p = item_offset(a, a->ndim, c->scale_stride, item) + i / c->param_group;
	char *q = c->q + item_offset(a, a->ndim, c->q_stride, item) + i * c->q_step;
	const struct hzi_qcodes codes = {
		.x = values + i,
		.q = c->q_step == 1 ? q : aside + i,
		.scales = c->scales + p,
		.zeros = c->zeros ? c->zeros + p : NULL,
		.count = count,
		.group = c->param_group,
		.x_dtype = HZ_F32,
		.q_dtype = c->q_dtype,
	};

	if (c->back) {
		if (c->q_step != 1)
			copy_strided(aside + i, 1, q, c->q_step, count, 1);
		job->kern->uncode(&codes);
	} else {
		job->kern->codes(&codes);
		if (c->q_step != 1)
			copy_strided(q, c->q_step, aside + i, 1, count, 1);
	}
}

/*
 * Groups begin .. end - 1 of a row's values to codes, or back; ahead: what to prefetch, or NULL;
 * aside: as above
 */
static void convert(const struct job *job, int64_t item, float *values, int64_t begin, int64_t end,
		    const char *ahead, char *aside)
{
	const struct hzi_hadamard_args *a = job->a;
	const struct codes *c = &job->codes;
	const int64_t i = begin * c->group, count = (end - begin) * c->group;
	char *q, *scale;

	if (c->given) {
		convert_given(job, item, values, begin, end, aside);
		return;
	}
	q = c->q + item_offset(a, a->ndim, c->q_stride, item) +
	    (c->q_dtype == HZ_S4X2 ? i / 2 : i);
	scale = c->scale + (item_offset(a, a->ndim, c->scale_stride, item) + begin) *
			   (c->scale_dtype == HZ_F32 ? 4 : 1);
	if (c->back)
		job->kern->dequant(&(struct hzi_dequant){
			.q = q,
			.scale = scale,
			.y = values + i,
			.count = count,
			.group = c->group,
			.q_dtype = c->q_dtype,
			.scale_dtype = c->scale_dtype,
		});
	else
		job->kern->quant(&(struct hzi_quant){
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

/* Unit: a row */
static void do_code_rows(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct job *job = work_job;
	const struct hzi_hadamard_args *a = job->a;
	const bool back = job->codes.back;
	const int64_t length = row_length(a), groups = pieces(job);
	char *scratch = job->scratch + (size_t)thread * job->area_bytes;
	float *values = (float *)(scratch + areas_bytes(&job->areas));
	char *aside = (char *)values + values_bytes(a);

	while (begin < end) {
		struct rows r = rows_run(job, begin, values);
		const int64_t rows = run_length(a, back ? a->y_stride : a->x_stride,
						back ? a->y_block : a->x_block, begin,
						min_i64(end - begin, rows_together(a)));

		r.scratch = scratch;
		if (back) {
			for (int64_t i = 0; i < rows; i++)
				convert(job, begin + i, values + i * length, 0, groups, NULL,
					aside);
		}
		run_rows(&r, &job->areas, 0, rows * a->blocks);
		if (!back) {
			/* If rows lie back to back, those to come follow those just read. */
			const int64_t size = dtype_bytes(r.x_dtype), row_bytes = length * size;
			const char *next = r.x + rows * a->blocks * r.x_ld * size;

			for (int64_t i = 0; i < rows; i++)
				convert(job, begin + i, values + i * length, 0, groups,
					next + i * row_bytes, aside);
		}
		begin += rows;
	}
}

/* Unit: a block of the row that job->run describes */
static void do_run(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct job *job = work_job;
	struct rows r = job->run;

	r.scratch = job->scratch + (size_t)thread * job->area_bytes;
	run_rows(&r, &job->areas, begin, end);
}

/* Unit: a group of the row whose values are at job->values */
static void do_groups(void *work_job, int thread, int64_t begin, int64_t end)
{
	const struct job *job = work_job;

	(void)thread;
	convert(job, job->item, job->values, begin, end, NULL,
		(char *)job->values + values_bytes(job->a));
}

/* One row after the other, each by all threads: its blocks or the insides of a block, its groups */
static void long_rows(struct job *job, int threads)
{
	const struct hzi_hadamard_args *a = job->a;
	const int64_t groups = pieces(job);
	const int share = shared(&job->areas, &a->plan, a->blocks, threads) ? threads : 1;

	job->values = (float *)job->scratch;
	job->scratch += values_bytes(a) + aside_bytes(a, &job->codes);
	for (job->item = 0; job->item < job->items; job->item++) {
		job->run = rows_run(job, job->item, job->values);
		job->run.threads = share;
		if (job->codes.back)
			hzi_parallel(threads, do_groups, job, groups);
		hzi_parallel(share > 1 ? 1 : threads, do_run, job, a->blocks);
		if (!job->codes.back)
			hzi_parallel(threads, do_groups, job, groups);
	}
}

static struct areas code_areas(const struct hz_kern *kern, const struct hzi_hadamard_args *a,
			       bool back, int threads)
{
	return row_areas(kern, &a->plan, back ? HZ_F32 : a->x_dtype, back ? a->y_dtype : HZ_F32,
			 back ? 1 : a->x_step, back ? a->y_step : 1, threads);
}

static int run_codes(struct hz_context *ctx, const struct hzi_hadamard_args *a,
		     const struct codes *codes)
{
	const int64_t each = dtype_bytes(codes->back ? a->y_dtype : a->x_dtype) + 1;
	const int threads = hzi_threads(ctx, count_items(a) * row_length(a) * each);
	struct job job;

	begin_job(&job, ctx, a);
	job.codes = *codes;
	job.areas = code_areas(job.kern, a, codes->back, threads);
	job.area_bytes = areas_bytes(&job.areas);
	if (is_long(a) || (threads > 1 && job.items < threads)) {
		long_rows(&job, threads);
	} else {
		job.area_bytes += values_bytes(a) + aside_bytes(a, codes);
		hzi_parallel(threads, do_code_rows, &job, job.items);
	}
	return HZ_OK;
}

static size_t codes_workspace(const struct hz_context *ctx, const struct hzi_hadamard_args *a,
			      const struct codes *c)
{
	const struct areas areas = code_areas(ctx->kern, a, c->back, ctx->threads);
	const int64_t items = count_items(a);
	const size_t values = values_bytes(a) + aside_bytes(a, c);
	const size_t apart = (areas_bytes(&areas) + values) *
			     (size_t)min_i64(items, ctx->threads);
	const size_t together = values +
				scratch_bytes(&areas, a->blocks, ctx->threads);

	if (is_long(a))
		return constants_bytes(a) + together;
	return constants_bytes(a) + (apart > together ? apart : together);
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
		.back = true,
		.group = a->group,
		.q_stride = a->q_stride,
		.scale_stride = a->scale_stride,
	};

	return run_codes(ctx, &a->t, &codes);
}

size_t hzi_cpu_dequantize_hadamard_workspace(const struct hz_context *ctx,
					     const struct hzi_dequantize_hadamard_args *a)
{
	return codes_workspace(ctx, &a->t, &(struct codes){.back = true});
}

/* ---- quantize(), dequantize() with a transform ----------------------------------------------- */

/* Elements of a row with one scale that are converted at once, where threads share the row */
#define PIECE 1024

int hzi_cpu_rotated_codes(struct hz_context *ctx, const struct hzi_codes_args *a)
{
	const struct hzi_rotated *r = a->rotated;
	/* One code of either type: what is in range has its low byte. */
	const uint8_t zero = (uint8_t)a->zero;
	const struct codes codes = {
		.q = a->q,
		.q_dtype = a->q_dtype,
		.back = a->back,
		.group = r->group < row_length(&r->t) ? r->group : PIECE,
		.q_stride = r->q_stride,
		.scale_stride = r->p_stride,
		.given = true,
		.scales = a->scales ? a->scales : &a->scale,
		.zeros = a->scales ? a->zeros : (const void *)&zero,
		.q_step = r->q_step,
		.param_group = r->group,
	};

	return run_codes(ctx, &r->t, &codes);
}

size_t hzi_cpu_rotated_workspace(const struct hz_context *ctx, const struct hzi_rotated *r,
				 bool back)
{
	return codes_workspace(ctx, &r->t, &(struct codes){
		.back = back, .given = true, .q_step = r->q_step});
}
