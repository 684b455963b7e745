/*
 * tiles.c - Walsh-Hadamard transforms on the CPU: cache blocking of columns and of rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "cpu/hadamard/hadamard.h"

/*
 * Floats of a column tile: 256 KiB, a quarter of a 1 MiB L2, which also holds the lines of x and
 * what is prefetched. Rows are padded by one cache line, because rows at a multiple of 4 KiB share
 * a set of L1.
 */
#define TILE_FLOATS (64 << 10)
#define TILE_PAD 16
/* Most columns of a tile: 2 KiB of a row, half a page, for the prefetcher and the TLB */
#define TILE_COLUMNS 512
/* Floats that several passes process before the next ones: 16 KiB, half of an L1 */
#define L1_FLOATS 4096
/*
 * Prefetch distance, in elements, for 16-bit rows that need one pass. Longer rows are read a block
 * of L1_FLOATS at a time, with pauses that stop the hardware prefetcher; for these the distance is
 * the next block.
 */
#define STREAM_AHEAD 1024
/*
 * Larger operands, in bytes (a quarter of a 1 MiB L2), count as in memory and are prefetched,
 * 16-bit y in long rows by Y_AHEAD elements. One core of an AMD EPYC (Zen 5), rows of 4096: f32 6.2
 * -> 5.2 ms, f16 11.1 -> 6.2.
 */
#define FAR_BYTES (256 << 10)
#define Y_AHEAD 512
/* A transform above 2^BIG_BITS is made of sub-blocks of 2^SUB_BITS, which stay in L2. */
#define BIG_BITS 17
#define SUB_BITS 15
/*
 * f32 columns of more than 2^SPLIT_BITS rows are transformed in two steps, within groups of
 * neighbouring rows, then across groups, since a tile of all rows would be few cache lines wide.
 * Zen 4, 4096 x 4096, blocks of 1024, 2048, 4096: 13.8, 20.7, 28.1 ms in one step; 9.2, 9.8, 11.9
 * in two.
 */
#define SPLIT_BITS 9

/* ---- Tiles of columns ------------------------------------------------------------------------ */

/* Whether a tile goes from x to y in one pass through registers */
static bool one_pass(const struct hzi_hadamard_kern *kern, int m, int k)
{
	return m == 1 && k <= kern->pass_bits;
}

static int64_t tile_width(int64_t length, int64_t columns)
{
	const int64_t fit = TILE_FLOATS / length / 16 * 16;

	return min_i64(max_i64(fit, 16), min_i64(TILE_COLUMNS, columns));
}

static size_t tile_bytes(const struct hzi_hadamard_kern *kern, int m, int k, int64_t columns)
{
	const int64_t length = (int64_t)m << k;

	if (one_pass(kern, m, k))
		return 0;
	return round_to_lines(length * (tile_width(length, columns) + TILE_PAD) * 4);
}

/*
 * Returns how many columns it transformed. y is as it was in the others: those from the first
 * overflow on with a->in_place, or all, if values of x are larger than a->most_exponent allows.
 */
static int64_t column_tile(const struct columns *a, int64_t c, float *scratch)
{
	const int64_t width = min_i64(a->width, a->columns - c), ld = a->width + TILE_PAD;
	const int64_t x_size = dtype_bytes(a->x_dtype);
	const int64_t y_size = dtype_bytes(a->y_dtype);
	struct hzi_pass p = {
		.width = width,
		.groups = 1,
		.post_by_column = a->post_by_column,
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
		p.guard = a->in_place && from_x && to_y ? HZI_GUARD_FLAG : 0;
		if (a->in_place && to_y && !from_x && hzi_fp_overflowed())
			return 0;
		for (int64_t j = 0; j < rows; j += step << bits) {
			for (int64_t l = j; l < j + step; l++) {
				p.x = from_x ? a->x + (l * a->x_ld + c) * x_size :
					       (const char *)(scratch + l * ld);
				p.y = to_y ? a->y + (l * a->y_ld + c) * y_size :
					     (char *)(scratch + l * ld);
				p.pre = from_x && a->pre ? a->pre + l : NULL;
				p.post = to_y && a->post ? a->post + l * a->post_ld +
								   (a->post_by_column ? c : 0)
							 : NULL;
				/*
				 * Prefetch the next group of rows, or the first one of the next
				 * tile.
				 */
				p.ahead = !from_x ? 0 : j + (step << bits) < rows ?
					  a->x_ld * ((int64_t)1 << bits) : width - j * a->x_ld;
				if (from_x && a->most_exponent &&
				    a->kern->exponent(p.x, p.x_dtype, (int64_t)1 << bits, a->x_ld,
						      width) > *a->most_exponent)
					return 0;

				const int64_t made = a->kern->pass(&p);

				if (made < width)
					return made;
			}
		}
		done += bits;
	}
	if (a->m > 1) {
		if (a->in_place && hzi_fp_overflowed())
			return 0;

		struct hzi_base_mul b = {
			.sign = a->sign,
			.x_ld = ld * ((int64_t)1 << a->k),
			.y_ld = a->y_ld * ((int64_t)1 << a->k),
			.width = width,
			.y_dtype = a->y_dtype,
			.m = a->m,
			.last = a->last,
			.post_by_column = a->post_by_column,
			.scale = a->scale,
			.post_ld = a->post_ld * ((int64_t)1 << a->k),
		};

		for (int64_t l = 0; l < (int64_t)1 << a->k; l++) {
			b.x = scratch + l * ld;
			b.y = a->y + (l * a->y_ld + c) * y_size;
			b.post = NULL;
			if (a->post)
				b.post = a->post + l * a->post_ld + (a->post_by_column ? c : 0);
			a->kern->base_mul(&b);
		}
	}
	return width;
}

/* Whether columns are split into groups of 2^(k / 2) rows */
static bool is_split(int m, int k, int y_dtype)
{
	return m == 1 && k > SPLIT_BITS && y_dtype == HZ_F32;
}

/*
 * column_tile() in two steps; y holds the values between them. In place the first step looks at
 * exponents. If it returns 0, it has made *done rows.
 */
static int64_t split_tile(const struct columns *a, int64_t c, float *scratch, int64_t *done)
{
	const int64_t width = min_i64(a->width, a->columns - c);
	const int64_t group = (int64_t)1 << (a->k / 2), groups = (int64_t)1 << (a->k - a->k / 2);
	const int most = 127 - a->k - (a->in_place && a->pre ?
			 a->kern->exponent(a->pre, HZ_F32, 1, 0, groups * group) : 0);
	struct columns s = *a;

	s.in_place = false;
	s.most_exponent = a->in_place ? &most : NULL;
	s.k = a->k / 2;
	s.last = false;
	s.post = NULL;
	for (int64_t i = 0; i < groups; i++) {
		s.x = a->x + i * group * a->x_ld * dtype_bytes(a->x_dtype);
		s.y = a->y + i * group * a->y_ld * 4;
		s.pre = a->pre ? a->pre + i * group : NULL;
		if (column_tile(&s, c, scratch) < width) {
			*done = i * group;
			return 0;
		}
	}
	s = *a;
	s.in_place = false;
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
	return width;
}

int64_t hzi_columns_width(const struct hzi_hadamard_kern *kern, const struct hzi_hadamard_args *a,
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
	*bytes = length > 1 ? round_to_lines(length * (width + TILE_PAD) * 4) : 0;
	return width;
}

int64_t hzi_run_columns(const struct columns *a, int64_t c, float *scratch, int64_t *done)
{
	*done = 0;
	return is_split(a->m, a->k, a->y_dtype) ? split_tile(a, c, scratch, done) :
						  column_tile(a, c, scratch);
}

void hzi_scale_columns(const struct columns *a, int64_t c, const float *scratch)
{
	const int64_t width = min_i64(a->width, a->columns - c), ld = a->width + TILE_PAD;
	const int passes = (a->k + a->kern->pass_bits - 1) / a->kern->pass_bits;
	const int k = a->m == 1 && passes ? a->k / passes : 0;
	const int64_t step = (int64_t)1 << (a->k - k);

	/* Others overflow in the conversion of results only, or not at all. */
	if (one_pass(a->kern, a->m, a->k) || is_split(a->m, a->k, a->y_dtype))
		return;
	for (int64_t l = 0; l < step; l++) {
		for (int64_t i = 0; i < width; i++)
			hzi_hadamard_scaled(&(struct hzi_scaled){
				.kern = a->kern,
				.x = (const char *)(scratch + l * ld + i),
				.y = a->y + (l * a->y_ld + c + i) * dtype_bytes(a->y_dtype),
				.x_dtype = HZ_F32,
				.y_dtype = a->y_dtype,
				.m = a->m,
				.k = k,
				.x_step = ld * step,
				.y_step = a->y_ld * step,
				.post_step = a->post_ld * step,
				.scale = a->scale,
				.sign = a->sign,
				.post = a->post ? a->post + l * a->post_ld : NULL,
			});
	}
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/*
 * A base matrix times fewer columns than a vector has lanes: BATCH transforms are interleaved as
 * columns to fill vectors; fewer transforms if they are long, to stay in L2.
 */
#define BATCH 64
#define BATCH_LONG 16

static int64_t batch_columns(const struct hzi_segment *seg)
{
	return seg->length <= 512 ? BATCH : BATCH_LONG;
}

static bool is_batched(const struct hzi_hadamard_kern *kern, const struct hzi_segment *seg)
{
	return seg->m > 1 && seg->count == 1 && (int64_t)1 << seg->k < kern->lanes;
}

static size_t batch_bytes(const struct hzi_segment *seg)
{
	return round_to_lines(2 * seg->length * (batch_columns(seg) + TILE_PAD) * 4);
}

/* Log2 of the sub-block of a transform of 2^k that is finished before the others begin */
static int sub_bits(const struct hzi_hadamard_kern *kern, int k, int threads)
{
	if (threads > 1 && k > kern->head_bits)
		return (int)min_i64(SUB_BITS, max_i64(k - 3, kern->head_bits));
	return k > BIG_BITS ? SUB_BITS : k;
}

/*
 * Whether f32 rows of that length in place have values between passes in scratch, with one look for
 * overflows before the last pass. With 16 lanes a look before each block is stored takes less time,
 * and so does HZI_GUARD_RANGE.
 */
static bool is_copied(const struct hzi_hadamard_kern *kern, int64_t length)
{
	return kern->guard == HZI_GUARD_FLAG && kern->lanes < 16 && length < L1_FLOATS;
}

/* Whether values between passes are in scratch, and not in y */
static bool needs_values(const struct hzi_hadamard_kern *kern, const struct hzi_segment *seg,
			 int y_dtype, bool in_place)
{
	return seg->m > 1 || (seg->k > kern->head_bits &&
			      (y_dtype != HZ_F32 || (in_place && is_copied(kern, seg->length))));
}

struct areas hzi_row_areas(const struct hzi_hadamard_kern *kern, const struct hzi_plan *plan,
			   int x_dtype, int y_dtype, int64_t x_step, int64_t y_step, int threads,
			   bool in_place)
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
		if (needs_values(kern, seg, y_dtype, in_place)) {
			const size_t values = is_batched(kern, seg) ? batch_bytes(seg) :
					      round_to_lines(max_i64(seg->length, L1_FLOATS) * 4);

			s.values = values > s.values ? values : s.values;
		}
	}
	if (x_step != 1)
		s.gather = round_to_lines(plan->n * dtype_bytes(x_dtype));
	if (y_step != 1)
		s.scatter = round_to_lines(plan->n * dtype_bytes(y_dtype));
	return s;
}

/* One transform: from x to t, f32, which may be y, then to y */
struct transform {
	const struct rows *r;
	const struct hzi_segment *seg;
	const char *x;
	char *y;
	float *t;
	const float *pre, *post;
	const float *sign;
	int64_t count;			/* contiguous transforms, 1 unless they are short */
	int64_t base;			/* the one that do_base() multiplies */
	int sub;
	int64_t width;			/* columns of a tile */
	size_t tile_bytes;		/* from one worker's tile to the next one's */
	bool *overflow;			/* set by threads that share the transform */
	bool watched;			/* no last pass begins after an overflow */
	bool stopped;			/* it did not */
	bool guard;			/* passes stop at overflows: see resume() */
	bool ranged;			/* no value is large: see HZI_GUARD_RANGE */
	uint64_t scaled;		/* bit i: transform i is divided by 2^scaled_by() */
	struct hzi_fp_watch *w;		/* in place, around several transforms */
};

/* Whether HZI_GUARD_RANGE serves for rows */
static bool is_ranged(const struct hzi_hadamard_kern *kern, float scale, const float *post)
{
	return kern->guard == HZI_GUARD_RANGE && !post && fabsf(scale) <= 1;
}

/* The guard of head() in rows in place */
static uint8_t head_guard(const struct hzi_hadamard_kern *kern, float scale, const float *post)
{
	return HZI_RANGE_IN_HEAD(kern->lanes) && is_ranged(kern, scale, post) ? HZI_GUARD_RANGE :
										HZI_GUARD_FLAG;
}

/* Around the work of one of several threads: see overflow.c. */
static void begin_share(const struct transform *a, struct hzi_fp_watch *w)
{
	if (a->overflow)
		hzi_fp_watch_begin(w);
}

static void end_share(const struct transform *a, const struct hzi_fp_watch *w)
{
	if (a->overflow && hzi_fp_watch_end(w))
		__atomic_store_n(a->overflow, true, __ATOMIC_RELAXED);
}

/* Stages of the last pass of a transform of 2^k elements, which does not fit registers */
static int last_pass_bits(const struct hzi_hadamard_kern *kern, int k)
{
	const int left = k - kern->head_bits;
	const int passes = (left + kern->pass_bits - 1) / kern->pass_bits;
	/* Lines at a multiple of 4 KiB share a set of L1, which may have only 8 ways. */
	const int most = left > kern->pass_bits ? 3 : kern->pass_bits;

	return (int)min_i64(most, (left + passes - 1) / passes);
}

/* Multiplies f32 values by 2^e. */
static void multiply(const struct hzi_hadamard_kern *kern, float *v, int64_t count, int e)
{
	kern->head(&(struct hzi_head){
		.x = v,
		.y = v,
		.rows = 1,
		.count = count,
		.x_dtype = HZ_F32,
		.y_dtype = HZ_F32,
		.last = true,
		.scale = ldexpf(1, e),
	});
}

/* The exponent of a power of two divided by which sums of transform i do not overflow */
static int scaled_by(const struct transform *a, int64_t i)
{
	const struct hzi_segment *seg = a->seg;
	int e = hzi_hadamard_growth(seg->m, seg->k) + 1;

	if (a->pre)
		e += max_i64(0, a->r->kern->exponent(a->pre + i * seg->length, HZ_F32, 1, 0,
						     seg->length));
	if (seg->scale > 1)
		e += ilogbf(seg->scale) + 1;
	return min_i64(e, 126);
}

/*
 * After a pass in place stopped at an element, before which nothing was lost: the flag decides if
 * large values may have stopped it in vain; otherwise the transform is divided, whose values are
 * x still or have some of the stages behind them. If its results overflow then, they are Inf.
 */
static void resume(struct transform *a, int64_t element, uint8_t *guard)
{
	const int64_t length = a->seg->length, i = element / length;

	hzi_fp_watch_end(a->w);
	a->ranged = false;
	if (*guard == HZI_GUARD_RANGE) {
		*guard = HZI_GUARD_FLAG;
	} else if (a->scaled >> i & 1) {
		*guard = 0;
	} else {
		multiply(a->r->kern, a->t + i * length, length, -scaled_by(a, i));
		a->scaled |= (uint64_t)1 << i;
	}
	hzi_fp_watch_begin(a->w);
}

/*
 * Butterflies of 2^k elements at offset. last: to y with scale and post, otherwise to t. Sets
 * a->stopped instead of the last pass if a->watched and there was an overflow. Initializers name
 * all members: GCC clears a struct first otherwise, by rep stos, which is slow to start.
 */
static void sylvester(struct transform *a, int64_t offset, int64_t count, int k, bool last)
{
	const struct rows *r = a->r;
	const struct hzi_hadamard_kern *kern = r->kern;

	if (k <= kern->head_bits) {
		struct hzi_head h = {
			.x = a->x + offset * dtype_bytes(r->x_dtype),
			.y = last ? a->y + offset * dtype_bytes(r->y_dtype) :
				    (char *)(a->t + offset),
			.x_ld = 0,
			.y_ld = 0,
			.rows = 1,
			.count = count,
			.x_dtype = r->x_dtype,
			.y_dtype = last ? r->y_dtype : HZ_F32,
			.bits = k,
			.last = last,
			.scale = a->seg->scale,
			.pre = a->pre ? a->pre + offset : NULL,
			.post = a->post ? a->post + offset : NULL,
			.ahead = r->x_in_memory ? L1_FLOATS : 0,
			.fetch_y = r->y_in_memory && !last && a->t == (float *)a->y && a->y != a->x,
			.guard = !a->guard ? 0 : a->ranged && HZI_RANGE_IN_HEAD(kern->lanes) ?
				 HZI_GUARD_RANGE : HZI_GUARD_FLAG,
			.pre_ld = 0,
			.post_ld = 0,
			.first = 0,
		};

		while ((h.first = kern->head(&h)) < count)
			resume(a, offset + h.first, &h.guard);
	} else {
		const int bits = last_pass_bits(kern, k);
		const int64_t step = (int64_t)1 << (k - bits);
		struct hzi_pass p = {
			.x = NULL,
			.y = NULL,
			.x_ld = step,
			.y_ld = step,
			.width = step,
			.groups = 0,
			.x_group = step << bits,
			.y_group = step << bits,
			.pre_group = 0,
			.post_group = step << bits,
			.ahead = 0,
			.y_ahead = 0,
			.x_dtype = HZ_F32,
			.y_dtype = last ? r->y_dtype : HZ_F32,
			.bits = bits,
			.last = last,
			.post_by_column = true,
			.guard = 0,
			.scale = a->seg->scale,
			.pre = NULL,
			.post = NULL,
			.pre_ld = 0,
			.post_ld = step,
			.first = 0,
		};

		if (last && r->y_in_memory && a->y != a->x)
			p.y_ahead = step << bits <= L1_FLOATS ? L1_FLOATS : Y_AHEAD;
		/* As many transforms at a time as fit in L1, at least one */
		for (int64_t i = offset, n; i < offset + count; i += n) {
			n = min_i64(max_i64(step << bits, L1_FLOATS), offset + count - i);
			sylvester(a, i, n, k - bits, false);
			p.groups = n >> k;
			p.x = a->t + i;
			p.y = last ? a->y + i * dtype_bytes(r->y_dtype) :
				     (char *)(a->t + i);
			p.post = a->post ? a->post + i : NULL;
			if (last && a->watched && hzi_fp_overflowed()) {
				a->stopped = true;
				return;
			}
			p.ahead = r->x_in_memory && a->t == (const float *)a->x &&
				  k - bits <= kern->head_bits ? n : 0;
			p.guard = !a->guard ? 0 : !a->ranged ? HZI_GUARD_FLAG :
				  k - bits <= kern->head_bits && !HZI_RANGE_IN_HEAD(kern->lanes) ?
				  HZI_GUARD_RANGE : 0;
			p.first = 0;
			while ((p.first = kern->pass(&p)) < p.groups * step)
				resume(a, i + p.first / step * (step << bits), &p.guard);
		}
	}
}

/* Makes transform i of segment s of block b, scaled. */
static void scale_one(const struct rows *r, const struct areas *areas, int64_t b, int s, int64_t i,
		      bool fresh)
{
	const struct hzi_segment *seg = &r->plan->seg[s];
	const int64_t e = seg->offset + i * seg->length;

	hzi_hadamard_scaled(&(struct hzi_scaled){
		.kern = r->kern,
		.x = r->x + (b * r->x_ld + e) * dtype_bytes(r->x_dtype),
		.y = r->y + (b * r->y_ld + e) * dtype_bytes(r->y_dtype),
		.x_dtype = r->x_dtype,
		.y_dtype = r->y_dtype,
		.m = seg->m,
		.k = seg->k,
		.x_step = 1,
		.y_step = 1,
		.post_step = 1,
		.scale = seg->scale,
		.sign = r->sign ? r->sign[s] : NULL,
		.pre = r->pre ? r->pre + b * r->pre_ld + e : NULL,
		.post = r->post ? r->post + b * r->post_ld + e : NULL,
		.scratch = (float *)(r->scratch + (size_t)r->threads * areas->tile),
		.fresh = fresh,
	});
}

/* Unit i is sub-block i of the transform. */
static void do_sub_blocks(void *job, int thread, int64_t begin, int64_t end)
{
	struct transform *a = job;
	const struct hzi_segment *seg = a->seg;
	const int64_t step = (int64_t)1 << a->sub;
	const bool last = seg->m == 1 && a->sub == seg->k;
	struct hzi_fp_watch w = {0};

	(void)thread;
	begin_share(a, &w);
	sylvester(a, begin * step, (end - begin) * step, a->sub, last);
	end_share(a, &w);
}

/* Unit i is a tile of columns of the matrix whose rows are the sub-blocks of part i / tiles. */
static void do_columns(void *job, int thread, int64_t begin, int64_t end)
{
	struct transform *a = job;
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int most = 127 - (seg->k - a->sub);
	const int64_t step = (int64_t)1 << a->sub, tiles = (step + a->width - 1) / a->width;
	const bool in_registers = one_pass(r->kern, 1, seg->k - a->sub);
	struct columns c = {
		.kern = r->kern,
		.x_dtype = HZ_F32,
		.y_dtype = seg->m == 1 ? r->y_dtype : HZ_F32,
		.m = 1,
		.k = seg->k - a->sub,
		.x_ld = step,
		.y_ld = step,
		.width = a->width,
		.post_ld = step,
		.post_by_column = true,
		.last = seg->m == 1,
		.in_place = a->guard && !a->ranged && in_registers,
		.scale = seg->scale,
		.most_exponent = a->guard && !a->ranged && !in_registers ? &most : NULL,
	};
	struct hzi_fp_watch w = {0};

	begin_share(a, &w);
	for (int64_t i = begin; i < end; i++) {
		const int64_t offset = i / tiles << seg->k;
		int64_t column = i % tiles * a->width;

		c.x = (const char *)(a->t + offset);
		c.y = seg->m == 1 ? a->y : (char *)(a->t + offset);
		c.post = seg->m == 1 ? a->post : NULL;
		c.columns = min_i64(step, column + a->width);
		while ((column += column_tile(&c, column,
					      (float *)(r->scratch +
							(size_t)thread * a->tile_bytes))) <
		       c.columns) {
			resume(a, offset, &(uint8_t){HZI_GUARD_FLAG});
			c.in_place = false;
			c.most_exponent = NULL;
		}
	}
	end_share(a, &w);
}

/* Unit i is 16 columns, from 16 i on, of the product with the base matrix. */
static void do_base(void *job, int thread, int64_t begin, int64_t end)
{
	const struct transform *a = job;
	const struct rows *r = a->r;
	const int64_t step = (int64_t)1 << a->seg->k, c = begin * 16;
	const int64_t at = a->base * a->seg->length + c;
	const struct hzi_base_mul b = {
		.x = a->t + at,
		.y = a->y + at * dtype_bytes(r->y_dtype),
		.sign = a->sign,
		.x_ld = step,
		.y_ld = step,
		.width = min_i64(end * 16, step) - c,
		.y_dtype = r->y_dtype,
		.m = a->seg->m,
		.last = true,
		.post_by_column = true,
		.scale = a->seg->scale,
		.post = a->post ? a->post + at : NULL,
		.post_ld = step,
	};
	struct hzi_fp_watch w = {0};

	(void)thread;
	begin_share(a, &w);
	r->kern->base_mul(&b);
	end_share(a, &w);
}

/* Returns false instead of the last pass if a->watched and there was an overflow. */
static bool one_transform(struct transform *a)
{
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int64_t step = (int64_t)1 << seg->k;

	a->sub = sub_bits(r->kern, seg->k, r->threads);
	a->stopped = false;
	if (r->threads == 1 && seg->m == 1 && a->sub == seg->k) {
		sylvester(a, 0, a->count * seg->length, seg->k, true);
		return !a->stopped;
	}
	hzi_parallel(r->ctx, r->threads, do_sub_blocks, a, a->count * seg->length >> a->sub);
	if (a->stopped)
		return false;
	if (a->sub < seg->k) {
		if (a->watched && seg->m == 1 && hzi_fp_overflowed())
			return false;

		const int64_t rows = (int64_t)1 << (seg->k - a->sub);
		const int64_t columns = (int64_t)1 << a->sub;

		a->width = tile_width(rows, columns);
		hzi_parallel(r->ctx, r->threads, do_columns, a,
			     seg->m * ((columns + a->width - 1) / a->width));
	}
	if (seg->m > 1 && a->watched && hzi_fp_overflowed())
		return false;
	for (a->base = 0; seg->m > 1 && a->base < a->count; a->base++)
		hzi_parallel(r->ctx, r->threads, do_base, a, (step + 15) / 16);
	return true;
}

/*
 * Runs the transforms of a segment in n <= batch_columns() blocks; t is that of the first. Returns
 * false, and y is as it was, if sums overflow and a->watched.
 */
static bool batch(const struct transform *a, int64_t n)
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
	if (a->watched && hzi_fp_overflowed())
		return false;
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
	return true;
}

/* Makes the last pass of a->count transforms again, where results are not finite, from t. */
static void scale_last_pass(const struct transform *a)
{
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int k = seg->m > 1 ? 0 : a->sub < seg->k ? seg->k - a->sub :
		      last_pass_bits(r->kern, seg->k);
	const int64_t step = (int64_t)1 << (seg->k - k);

	for (int64_t i = 0; i < a->count * seg->length; i++) {
		if (i % seg->length < step)
			hzi_hadamard_scaled(&(struct hzi_scaled){
				.kern = r->kern,
				.x = (const char *)(a->t + i),
				.y = a->y + i * dtype_bytes(r->y_dtype),
				.x_dtype = HZ_F32,
				.y_dtype = r->y_dtype,
				.m = seg->m,
				.k = k,
				.x_step = step,
				.y_step = step,
				.post_step = step,
				.scale = seg->scale,
				.sign = a->sign,
				.post = a->post ? a->post + i : NULL,
				.scratch = (float *)r->scratch,
			});
	}
}

/* Likewise the factors that batch() multiplies by last: transforms of one element each */
static void scale_batch(const struct transform *a, int64_t n)
{
	const struct rows *r = a->r;
	const int64_t length = a->seg->length;
	const float *q = a->t + length * (batch_columns(a->seg) + TILE_PAD);

	for (int64_t i = 0; i < n; i++) {
		for (int64_t j = 0; j < length; j++)
			hzi_hadamard_scaled(&(struct hzi_scaled){
				.kern = r->kern,
				.x = (const char *)(q + i * length + j),
				.y = a->y + (i * r->y_ld + j) * dtype_bytes(r->y_dtype),
				.x_dtype = HZ_F32,
				.y_dtype = r->y_dtype,
				.m = 1,
				.scale = a->seg->scale,
				.post = a->post ? a->post + i * r->post_ld + j : NULL,
			});
	}
}

/* batch() of blocks from b on, segment s */
static void make_batch(struct transform *a, const struct areas *areas, int64_t b, int s, int64_t n)
{
	struct hzi_fp_watch w;

	a->watched = a->r->in_place;
	if (!a->watched) {
		batch(a, n);
		return;
	}
	hzi_fp_watch_begin(&w);
	const bool made = batch(a, n), overflow = hzi_fp_watch_end(&w);

	if (made && !overflow)
		return;
	hzi_fp_watch_end(a->w);
	if (made)
		scale_batch(a, n);
	for (int64_t i = 0; !made && i < n; i++)
		scale_one(a->r, areas, b + i, s, 0, true);
	hzi_fp_watch_begin(a->w);
}

/* Makes a->count transforms, from i on, of segment s of block b. */
static void make_transforms(struct transform *a, const struct areas *areas, int64_t b, int s,
			    int64_t i)
{
	const struct rows *r = a->r;
	const struct hzi_segment *seg = a->seg;
	const int64_t end = i + a->count;
	struct hzi_fp_watch w = {0};
	bool made, overflow;

	if (!r->in_place) {
		one_transform(a);
		return;
	}
	if (r->threads > 1) {
		int most = 127 - hzi_hadamard_growth(seg->m, seg->k);

		if (a->pre)
			most -= r->kern->exponent(a->pre, HZ_F32, 1, 0, seg->length);
		if (r->kern->exponent(a->x, r->x_dtype, 1, 0, seg->length) <= most) {
			one_transform(a);
			return;
		}
		hzi_fp_watch_end(a->w);
		scale_one(r, areas, b, s, i, true);
		hzi_fp_watch_begin(a->w);
		return;
	}
	a->watched = a->t != (float *)a->y;
	a->guard = !a->watched;
	a->ranged = is_ranged(r->kern, seg->scale, a->post);
	a->scaled = 0;
	if (a->watched)
		hzi_fp_watch_begin(&w);
	made = one_transform(a);
	overflow = a->watched && hzi_fp_watch_end(&w);
	if (made && !overflow && !a->scaled)
		return;
	hzi_fp_watch_end(a->w);
	if (made && overflow)
		scale_last_pass(a);
	for (; !made && i < end; i++)
		scale_one(r, areas, b, s, i, true);
	for (i = 0; a->scaled; i++, a->scaled >>= 1) {
		if (a->scaled & 1)
			multiply(r->kern, a->t + i * seg->length, seg->length, scaled_by(a, i));
	}
	hzi_fp_watch_begin(a->w);
}

/* Transforms that fit registers; those that overflow in place are made again from a copy. */
static void run_head(const struct hzi_hadamard_kern *kern, struct hzi_head *h)
{
	const int64_t size = dtype_bytes(h->x_dtype), all = h->rows * h->count;
	float copy[HZI_HEAD_MOST];
	struct hzi_fp_watch w;

	while (h->guard) {
		hzi_fp_watch_begin(&w);
		h->first = kern->head(h);
		hzi_fp_watch_end(&w);
		if (h->first == all)
			return;
		if (h->guard == HZI_GUARD_RANGE) {
			h->guard = HZI_GUARD_FLAG;
			continue;
		}

		const int64_t row = h->first / h->count, i = h->first % h->count;
		const int64_t count = min_i64((int64_t)1 << kern->head_bits, h->count - i);
		struct hzi_head part = *h;

		part.x = memcpy(copy, (const char *)h->x + (row * h->x_ld + i) * size,
				(size_t)(count * size));
		part.y = (char *)h->y + (row * h->y_ld + i) * size;
		part.rows = 1;
		part.count = count;
		part.pre = h->pre ? h->pre + row * h->pre_ld + i : NULL;
		part.post = h->post ? h->post + row * h->post_ld + i : NULL;
		part.guard = 0;
		part.first = 0;
		hzi_fp_watch_begin(&w);
		kern->head(&part);
		hzi_fp_watch_end(&w);
		for (int64_t j = 0; j < count; j += (int64_t)1 << h->bits)
			hzi_hadamard_scaled(&(struct hzi_scaled){
				.kern = kern,
				.x = (const char *)copy + j * size,
				.y = (char *)part.y + j * size,
				.x_dtype = h->x_dtype,
				.y_dtype = h->y_dtype,
				.m = 1,
				.k = h->bits,
				.x_step = 1,
				.y_step = 1,
				.post_step = 1,
				.scale = h->scale,
				.pre = part.pre ? part.pre + j : NULL,
				.post = part.post ? part.post + j : NULL,
			});
		h->first += count;
		h->guard = HZI_GUARD_FLAG;
	}
	kern->head(h);
}

/* Blocks begin .. end - 1 of rows whose elements are contiguous in x and y */
static void run_unwatched(const struct rows *r, const struct areas *areas, int64_t begin,
			  int64_t end, bool *overflow)
{
	const struct hzi_plan *plan = r->plan;
	const int64_t x_size = dtype_bytes(r->x_dtype);
	const int64_t y_size = dtype_bytes(r->y_dtype);
	const int64_t n = plan->n;
	/* Whether blocks and diagonals are contiguous */
	const bool flat = plan->nseg == 1 && r->x_ld == n && r->y_ld == n &&
			  (!r->pre || r->pre_ld == n) && (!r->post || r->post_ld == n);
	int64_t together = end - begin;
	struct hzi_fp_watch w;

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
					.guard = !r->in_place ? 0 :
						 head_guard(r->kern, seg->scale, r->post),
				};

				if (flat) {
					h.count *= blocks;
					h.rows = 1;
				}
				run_head(r->kern, &h);
				continue;
			}
			if (r->in_place)
				hzi_fp_watch_begin(&w);
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
					.t = NULL,
					.count = 1,
					.base = 0,
					.sub = 0,
					.width = 0,
					.tile_bytes = areas->tile,
					.overflow = r->threads > 1 ? overflow : NULL,
					.watched = false,
					.stopped = false,
					.guard = false,
					.ranged = false,
					.scaled = 0,
					.w = &w,
				};

				a.t = (float *)(r->scratch + (size_t)r->threads * areas->tile);
				if (!needs_values(r->kern, seg, r->y_dtype, r->in_place))
					a.t = (float *)a.y;
				/*
				 * Interleaving does not pay for fewer columns than one transform
				 * has.
				 */
				if (is_batched(r->kern, seg) && blocks - i > (int64_t)1 << seg->k) {
					step = min_i64(blocks - i, batch_columns(seg));
					make_batch(&a, areas, block, s, step);
					continue;
				}
				/* resume() takes one with factors: see scaled_by(). */
				if (r->threads == 1 &&
				    !(r->in_place && a.t == (float *)a.y && (r->pre || r->post)))
					a.count = max_i64(1, min_i64(left,
								     L1_FLOATS / seg->length));
				step = a.count;
				make_transforms(&a, areas, block, s, i % seg->count);
			}
			if (r->in_place)
				hzi_fp_watch_end(&w);
		}
	}
}

/* Makes transforms of blocks begin .. end - 1 again: see hzi_hadamard_scaled(). */
static void run_scaled(const struct rows *r, const struct areas *areas, int64_t begin, int64_t end)
{
	for (int64_t b = begin; b < end; b++) {
		for (int s = 0; s < r->plan->nseg; s++) {
			for (int64_t i = 0; i < r->plan->seg[s].count; i++)
				scale_one(r, areas, b, s, i, false);
		}
	}
}

typedef void (*run_blocks)(const struct rows *r, const struct areas *areas, int64_t begin,
			   int64_t end, bool *overflow);

/* Runs blocks begin .. end - 1 by `run`; returns whether sums overflowed. */
static bool overflows(const struct rows *r, const struct areas *areas, int64_t begin, int64_t end,
		      run_blocks run)
{
	struct hzi_fp_watch w;
	bool overflow = false;

	hzi_fp_watch_begin(&w);
	run(r, areas, begin, end, &overflow);
	return hzi_fp_watch_end(&w) || overflow;
}

/* Runs blocks begin .. end - 1 by `run`; those that overflow then are made again. */
static void run_watched(const struct rows *r, const struct areas *areas, int64_t begin, int64_t end,
			run_blocks run)
{
	bool overflow = false;

	if (!hzi_may_overflow(r->x_dtype, r->pre)) {
		run(r, areas, begin, end, &overflow);
	} else if (r->x == r->y) {
		struct rows s = *r;

		s.in_place = true;
		run(&s, areas, begin, end, &overflow);
	} else if (overflows(r, areas, begin, end, run)) {
		run_scaled(r, areas, begin, end);
	}
}

static void run_contiguous(const struct rows *r, const struct areas *areas, int64_t begin,
			   int64_t end)
{
	run_watched(r, areas, begin, end, run_unwatched);
}

void hzi_run_rows(const struct rows *r, const struct areas *s, int64_t begin, int64_t end)
{
	char *gather, *scatter;
	struct rows c;

	if (r->x_step == 1 && r->y_step == 1) {
		run_contiguous(r, s, begin, end);
		return;
	}
	c = *r;
	gather = r->scratch + (size_t)r->threads * s->tile + s->values;
	scatter = gather + s->gather;
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

bool hzi_exceeds_cache(const struct hzi_hadamard_args *a)
{
	return item_count(a->ndim, a->shape) * a->blocks * a->plan.n *
	       (dtype_bytes(a->x_dtype) + dtype_bytes(a->y_dtype)) > FAR_BYTES;
}

/* ---- Rows without scratch -------------------------------------------------------------------- */

static bool is_float_or_none(const struct hzi_diag *d)
{
	return !d->kind || d->kind == HZ_F32;
}

const char *hzi_cpu_hadamard_direct_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;
	const struct hzi_segment *seg = &a->plan.seg[0];

	if (a->ndim != 0 || a->plan.nseg != 1 || seg->m != 1 || a->x_step != 1 || a->y_step != 1)
		return "rows are not of transforms of one length 2^k, of contiguous elements";
	if (!is_float_or_none(&a->pre) || !is_float_or_none(&a->post))
		return "factors are not f32";
	if (seg->k <= hzi_hadamard_kern[ctx->level].head_bits)
		return NULL;
	return seg->k <= BIG_BITS && a->y_dtype == HZ_F32 && a->x_block == a->plan.n &&
			       a->y_block == a->plan.n && !a->pre.kind && !a->post.kind
		       ? NULL : "a transform does not fit registers, nor does y hold its values";
}

/* Transforms that do not fit registers, by passes over y; areas and overflow are not needed. */
static void run_passes(const struct rows *r, const struct areas *areas, int64_t begin, int64_t end,
		       bool *overflow)
{
	const struct hzi_segment *const seg = &r->plan->seg[0];
	char *const y = r->y + begin * r->y_ld * dtype_bytes(r->y_dtype);
	struct transform t = {
		.r = r,
		.seg = seg,
		.x = r->x + begin * r->x_ld * dtype_bytes(r->x_dtype),
		.y = y,
		.t = (float *)y,
	};
	struct hzi_fp_watch w;

	(void)overflow;
	if (!r->in_place) {
		sylvester(&t, 0, (end - begin) * r->plan->n, seg->k, true);
		return;
	}
	t.w = &w;
	hzi_fp_watch_begin(&w);
	for (int64_t i = 0, count = (end - begin) * seg->count; i < count; i += t.count) {
		t.t = (float *)(is_copied(r->kern, seg->length) ? r->scratch : t.y);
		t.count = min_i64(max_i64(1, L1_FLOATS / seg->length), count - i);
		make_transforms(&t, areas, begin, 0, i);
		t.x += t.count * seg->length * 4;
		t.y += t.count * seg->length * 4;
	}
	hzi_fp_watch_end(&w);
}

static struct rows direct_rows(const struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	const bool exceeds = hzi_exceeds_cache(a);

	return (struct rows){
		.ctx = ctx,
		.kern = hzi_hadamard_kern + ctx->level,
		.plan = &a->plan,
		.x = a->x,
		.y = a->y,
		.x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype,
		.x_ld = a->x_block,
		.y_ld = a->y_block,
		.pre = a->pre.data,
		.post = a->post.data,
		.pre_ld = a->pre.block_step,
		.post_ld = a->post.block_step,
		.x_in_memory = exceeds,
		.y_in_memory = exceeds,
		.threads = 1,
		.scratch = (char *)(uintptr_t)ctx,	/* unused */
	};
}

static __attribute__((noinline)) void direct_in_place(const struct hz_context *ctx,
						      const struct hzi_hadamard_args *a)
{
	float values[L1_FLOATS] __attribute__((aligned(64)));
	struct rows r = direct_rows(ctx, a);

	r.in_place = true;
	r.scratch = (char *)values;
	run_passes(&r, &(struct areas){0}, 0, a->blocks, NULL);
}

static void direct_head(const struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	const struct hzi_hadamard_kern *const kern = hzi_hadamard_kern + ctx->level;
	const int64_t n = a->plan.n;
	const bool flat = a->x_block == n && a->y_block == n &&
			  (!a->pre.kind || a->pre.block_step == n) &&
			  (!a->post.kind || a->post.block_step == n);
	struct hzi_head h = {
		.x = a->x,
		.y = a->y,
		.x_ld = a->x_block,
		.y_ld = a->y_block,
		.rows = flat ? 1 : a->blocks,
		.count = flat ? a->blocks * n : n,
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
		.guard = 0,
	};
	struct hzi_fp_watch w;

	if (hzi_is_lost(a))
		h.guard = head_guard(kern, h.scale, h.post);
	if (h.guard || !hzi_may_overflow(a->x_dtype, h.pre)) {
		run_head(kern, &h);
		return;
	}
	hzi_fp_watch_begin(&w);
	kern->head(&h);
	if (hzi_fp_watch_end(&w)) {
		const struct rows r = direct_rows(ctx, a);

		run_scaled(&r, &(struct areas){0}, 0, a->blocks);
	}
}

int hzi_cpu_hadamard_direct(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = args;

	if (a->plan.seg[0].k <= hzi_hadamard_kern[ctx->level].head_bits) {
		direct_head(ctx, a);
	} else if (hzi_is_lost(a)) {
		direct_in_place(ctx, a);
	} else {
		const struct rows r = direct_rows(ctx, a);

		run_watched(&r, &(struct areas){0}, 0, a->blocks, run_passes);
	}
	return HZ_OK;
}
