/*
 * skinny.c - quantized products of few rows or columns, which read the other matrix in place
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/qgemm/qgemm.h"

/*
 * C = A B with few columns, W = A and X = B transposed, or with few rows, W = B transposed and X =
 * A. Rows of W or its columns are contiguous. A unit is some rows of W of an item of the batch. A
 * few rows of X are multiplied by W as it is stored, more of them by panels: W is packed as other
 * products pack B, piece by piece, and multiplied by X packed as their A.
 */
#define VECTORS 8
#define VECTORS_BY_ROWS 12	/* of an A whose rows are contiguous */
#define VECTORS_VNNI 6		/* where columns of W are contiguous, up to IN_L2 codes */
#define IN_L2 ((int64_t)2 << 20)
#define VECTORS_OF_PANELS PANEL
#define PANELS_W ((int64_t)512 << 10)	/* codes of W at least */
#define PIECE_BYTES ((int64_t)256 << 10)	/* of packed W, which stay in L2 */
#define SMALL_W ((int64_t)128 << 10)	/* codes */
/* Rows of a unit: where columns of W are contiguous, long enough to read DRAM in order */
#define UNIT_BY_ROWS 512
#define UNIT_BY_COLUMNS 2048

struct job {
	const struct hzi_qgemm_kern *kern;
	const struct hzi_qgemm_args *a;
	bool w_is_a, by_rows, by_panels;
	int64_t piece;			/* rows of W that are packed at once */
	bool total;			/* sums of W are needed: X has a zero point */
	bool x_sums;			/* sums of X are needed: W has a zero point */
	int64_t rows, w_r, w_k;		/* of W */
	int64_t unit, units;		/* rows of a unit; units of an item */
	int64_t x_ld;
	int32_t v, offset;		/* vectors; what packing subtracts from codes of X */
	char *scratch;
	size_t scratch_each;
};

static bool w_is_a(const struct hzi_qgemm_args *a)
{
	const bool a_fits = a->n <= VECTORS_OF_PANELS && (a->a_k == 1 || a->a_m == 1);
	const bool b_fits = a->m <= VECTORS && !a->packed && (a->b_k == 1 || a->b_n == 1);

	return a_fits && (!b_fits || a->m >= a->n);
}

const char *hzi_cpu_qgemm_skinny_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_args *a = ((const struct hzi_cpu_qgemm_call *)args)->a;

	(void)ctx;
	if (a->sum64 || a->k == 0)
		return "k is 0, or sums do not fit 32 bits";
	if (w_is_a(a))
		return NULL;
	if (a->m > VECTORS || a->packed)
		return "C has more than 32 columns, and more than 8 rows or a packed B";
	return a->b_k == 1 || a->b_n == 1 ? NULL : "neither rows nor columns of B are contiguous";
}

/* Whether rows of W are contiguous */
static bool is_by_rows(const struct hzi_qgemm_args *a, bool is_a)
{
	const int64_t w_r = is_a ? a->a_m : a->b_n, w_k = is_a ? a->a_k : a->b_k;

	return w_k == 1 && (w_r != 1 || a->k > 1);
}

/*
 * Whether X is multiplied by panels. 1024 x 1024 in L2 by 8 and 12 columns, A transposed, in place
 * and by panels, us: AVX2 352 and 530, 380 and 439; VNNI 117 and 180, 92 and 108; A not transposed,
 * AVX2 231 and 350, 320 and 388; VNNI 60 and 88, 80 and 90. With AMX (packs_a) neither was measured
 * beyond 8 columns, so that other routes take these.
 */
static bool by_panels(const struct hzi_qgemm_kern *kern, const struct hzi_qgemm_args *a, bool is_a)
{
	const int64_t v = is_a ? a->n : a->m, rows = is_a ? a->m : a->n;
	const bool vnni = kern->flips_x && !kern->packs_a;

	if (is_by_rows(a, is_a))
		return v > (is_a ? VECTORS_BY_ROWS : VECTORS);
	return v > (vnni && rows * a->k <= IN_L2 ? VECTORS_VNNI : VECTORS);
}

/*
 * With VNNI or AMX a small W is packed in less time than it is multiplied by more than 2 vectors:
 * 128 x 128 by 8 takes 2.9 us packed and 4.5 in place, 1024 x 1024 by 8 274 and 102. A B of 384 x
 * 384 or 512 x 512 with contiguous columns, by 8 rows of A: 9.6 and 15.1, 16.1 and 22.1.
 */
bool hzi_cpu_qgemm_skinny_wins(const struct hz_context *ctx, const struct hzi_cpu_qgemm_call *c)
{
	const struct hzi_qgemm_args *a = c->a;
	const struct hzi_qgemm_kern *const kern = hzi_qgemm_kern + ctx->level;
	const bool is_a = w_is_a(a);
	const int64_t v = is_a ? a->n : a->m, rows = is_a ? a->m : a->n;

	if (v > VECTORS) {
		/* Four rows of A by 16 columns, of AVX2, are slower only if A is out of cache. */
		const int64_t least = !by_panels(kern, a, is_a) ? SMALL_W :
				      kern->rows > 4 ? PANELS_W : 8 * PANELS_W;

		return !kern->packs_a && rows >= 4 * v && rows * a->k > least;
	}
	return !kern->flips_x || v <= 2 ||
	       rows * a->k > (is_a || v <= VECTORS_VNNI ? SMALL_W : 4 * SMALL_W);
}

/* Bytes of an operand of the epilogue for the rows of a unit */
static size_t unit_bytes(const struct job *job)
{
	return round_to_lines(4 * hzi_round_up(job->unit, 64));
}

/* Fills all but scratch; returns the threads. */
static int make_job(const struct hz_context *ctx, const struct hzi_qgemm_args *a, struct job *job)
{
	const int64_t items = item_count(a->ndim, a->shape);
	const bool b_zero = a->b_zeros || a->b_zero != 0, a_zero = a->a_zeros || a->a_zero != 0;
	const double work = (double)items * (double)a->m * (double)a->n * (double)a->k;
	const int threads = hzi_threads(ctx, (int64_t)fmin(0x1p60, work));
	int x_dtype, w_dtype;

	*job = (struct job){
		.kern = hzi_qgemm_kern + ctx->level, .a = a, .w_is_a = w_is_a(a),
		.x_ld = 2 * hzi_round_up(a->k, 64) + 64,
	};
	job->rows = job->w_is_a ? a->m : a->n;
	job->v = (int32_t)(job->w_is_a ? a->n : a->m);
	job->w_r = job->w_is_a ? a->a_m : a->b_n;
	job->w_k = job->w_is_a ? a->a_k : a->b_k;
	job->by_rows = is_by_rows(a, job->w_is_a);
	job->by_panels = by_panels(job->kern, a, job->w_is_a);
	x_dtype = job->w_is_a ? a->b_dtype : a->a_dtype;
	w_dtype = job->w_is_a ? a->a_dtype : a->b_dtype;
	if (job->by_panels)
		job->offset = job->kern->pack_a_offset(x_dtype, w_dtype);
	else if (job->kern->flips_x && a->a_dtype == a->b_dtype)
		job->offset = x_dtype == HZ_U8 ? 128 : -128;
	job->total = job->offset || (job->w_is_a ? b_zero : a_zero);
	job->x_sums = job->w_is_a ? a_zero : b_zero;
	job->unit = min_i64(job->by_rows ? UNIT_BY_ROWS : UNIT_BY_COLUMNS,
			    hzi_round_up(ceil_div(job->rows * items, threads), 64));
	job->units = ceil_div(job->rows, job->unit);
	job->scratch_each = (size_t)(job->v + 1) * unit_bytes(job);
	if (job->by_panels) {
		const int64_t k_padded = hzi_round_up(a->k, 64);

		job->piece = min_i64(hzi_round_up(job->unit, PANEL),
				     max_i64(PIECE_BYTES / k_padded / PANEL, 1) * PANEL);
		job->scratch_each += round_to_lines(job->v * k_padded) +
				     round_to_lines(job->kern->pack_a_bytes(job->v, a->k)) +
				     round_to_lines(job->piece * k_padded) +
				     round_to_lines(job->kern->sums);
	} else {
		job->scratch_each += round_to_lines((job->v + 1) * job->x_ld) +
				     round_to_lines(hzi_round_up(a->k, 64)) +
				     (job->by_rows ? 0 : (size_t)(job->v + 1) * unit_bytes(job));
	}
	if (job->w_is_a)
		job->scratch_each += hzi_cpu_qgemm_columns_bytes(job->v) +
				     (size_t)(job->v + 4) * unit_bytes(job);
	else
		job->scratch_each += hzi_cpu_qgemm_columns_bytes(job->unit);
	return threads;
}

/* Codes of vector j, contiguous; also from a packed panel, whose halves have 16 columns */
static void gather(const struct job *job, int64_t item, int64_t j, uint8_t *to)
{
	const struct hzi_qgemm_args *a = job->a;
	const int64_t *const stride = job->w_is_a ? a->b_stride : a->a_stride;
	const int64_t at = item_offset(a->ndim, a->shape, stride, item);

	if (job->w_is_a && a->packed) {
		const char *b = (const char *)a->packed +
				at * hzi_qgemm_packed_bytes(a->layout, a->k, a->n) +
				j / 16 * 1024 + j % 16 * 4;

		for (int64_t l = 0; l < a->k; l += 4)
			memcpy(to + l, b + l / 64 * 64 * PANEL + l % 64 * 16, 4);
	} else if (job->w_is_a) {
		copy_strided(to, 1, (const char *)a->b + at + j * a->b_n, a->b_k, a->k, 1);
	} else {
		copy_strided(to, 1, (const char *)a->a + at + j * a->a_m, a->a_k, a->k, 1);
	}
}

/* Codes of vector j, contiguous; returns their sum, if it is wanted. */
static int32_t gather_and_add(const struct job *job, int64_t item, int64_t j, uint8_t *to)
{
	const int x_dtype = job->w_is_a ? job->a->b_dtype : job->a->a_dtype;
	uint32_t sum = 0;

	gather(job, item, j, to);
	for (int64_t l = 0; job->x_sums && l < job->a->k; l++)
		sum += (uint32_t)code_at(to, x_dtype, l);
	return (int32_t)sum;
}

/* Packs the vectors of an item, and one of 1 for the sums of W; returns the sums of the codes. */
static void pack_vectors(const struct job *job, int64_t item, uint8_t *codes, char *packed,
			 int32_t *sums)
{
	const struct hzi_qgemm_args *a = job->a;
	struct hzi_qgemm_skinny_pack p = {
		.x = codes, .packed = packed, .k = a->k, .by_rows = job->by_rows,
		.x_dtype = job->w_is_a ? a->b_dtype : a->a_dtype,
		.w_dtype = job->w_is_a ? a->a_dtype : a->b_dtype,
	};

	for (int32_t j = 0; j < job->v; j++, p.packed = (char *)p.packed + job->x_ld) {
		sums[j] = gather_and_add(job, item, j, codes);
		job->kern->skinny_pack(&p);
	}
	if (job->total) {
		memset(codes, 1, (size_t)a->k);
		/* Of the other dtype: these are not offset. */
		p.x_dtype = p.w_dtype == HZ_U8 ? HZ_S8 : HZ_U8;
		job->kern->skinny_pack(&p);
	}
}

/* Packs the vectors of an item as A of products by panels. */
static void pack_vectors_as_a(const struct job *job, int64_t item, uint8_t *codes, char *packed,
			      int32_t *sums)
{
	const struct hzi_qgemm_args *a = job->a;
	const struct hzi_qgemm_pack_a p = {
		.a = codes, .packed = packed, .m = job->v, .k = a->k,
		.a_m = hzi_round_up(a->k, 64), .a_k = 1,
		.a_dtype = job->w_is_a ? a->b_dtype : a->a_dtype,
		.b_dtype = job->w_is_a ? a->a_dtype : a->b_dtype,
	};

	for (int32_t j = 0; j < job->v; j++)
		sums[j] = gather_and_add(job, item, j, codes + j * p.a_m);
	job->kern->pack_a(&p);
}

/* As kern->skinny(), with the sums of W behind the others */
static void multiply_by_panels(const struct job *job, const struct hzi_qgemm_skinny *s,
			       char *scratch)
{
	const int64_t k_padded = hzi_round_up(s->k, 64);
	struct hzi_qgemm_pack_b pack = {
		.packed = take(&scratch, job->piece * k_padded), .k = s->k, .b_k = s->w_k,
		.b_n = s->w_r, .b_dtype = s->w_dtype,
	};
	struct hzi_qgemm_mul mul = {
		.a = (void *)(uintptr_t)s->x, .b = pack.packed, .m = job->v, .k = s->k,
		.b_panel = k_padded * PANEL, .c_ld = s->sum_ld,
		.a_dtype = job->w_is_a ? job->a->b_dtype : job->a->a_dtype,
		.b_dtype = s->w_dtype, .c_dtype = HZ_S32, .raw = true,
		.sums = take(&scratch, job->kern->sums),
	};

	for (int64_t i = 0; i < s->rows; i += job->piece) {
		pack.b = (const char *)s->w + i * s->w_r;
		pack.n = mul.n = min_i64(job->piece, s->rows - i);
		pack.sum = s->sum + job->v * s->sum_ld + i;
		mul.c = s->sum + i;
		job->kern->pack_b(&pack);
		job->kern->mul(&mul);
	}
}

/* W is B: C has few rows, its columns from j on are those of the unit. */
static void finish_rows(const struct job *job, int64_t item, int64_t j, int64_t count,
			const struct hzi_qgemm_skinny *s, const int32_t *x_sum, char *scratch)
{
	const struct hzi_qgemm_args *a = job->a;
	const int32_t *total = s->sum + job->v * s->sum_ld;
	int32_t row[VECTORS_OF_PANELS], a_zero[VECTORS_OF_PANELS];
	struct hzi_cpu_qgemm_columns c;
	struct hzi_qgemm_epilogue out;

	hzi_cpu_qgemm_make_columns(job->kern, a, job->offset, j, count, total, &scratch, &c);
	out = hzi_cpu_qgemm_make_out(a, &c);
	for (int32_t i = 0; i < job->v; i++) {
		a_zero[i] = a->a_zeros ? row_zero(a, item, i) : 0;
		row[i] = (int32_t)((uint32_t)x_sum[i] - (uint32_t)a->k * (uint32_t)
				   (a->a_zeros ? a_zero[i] : job->offset));
		a_zero[i] -= job->offset;
	}
	out.sum = s->sum;
	out.sum_ld = s->sum_ld;
	out.rows = job->v;
	out.cols = count;
	out.c = c_at(a, item, 0, j);
	out.col = c.col;
	out.b_zero = job->x_sums ? c.b_zero : NULL;
	out.row = job->x_sums ? row : NULL;
	out.a_zero = a->a_zeros ? a_zero : NULL;
	out.b_sum = a->a_zeros ? total : NULL;
	if (a->a_scales)
		out.a_scale = a->a_scales + item_row(a, item) * a->scale_step;
	job->kern->epilogue(&out);
}

/* The terms of acc but the product, for column j of C and rows of A from i on */
static void add_zero_points(const struct job *job, int64_t item, int64_t i, int64_t count,
			    const struct hzi_cpu_qgemm_columns *c, int64_t j,
			    const struct hzi_qgemm_skinny *s)
{
	const struct hzi_qgemm_args *a = job->a;
	const uint32_t *total = (const uint32_t *)s->sum + job->v * s->sum_ld;
	const uint32_t zero = (uint32_t)(c->b_zero[j] - job->offset), col = (uint32_t)c->col[j];
	const uint32_t by_zero = (uint32_t)c->sum[j] - (uint32_t)a->k * (uint32_t)c->b_zero[j];
	uint32_t *sum = (uint32_t *)s->sum + j * s->sum_ld;

	for (int64_t r = 0; r < count; r++)
		sum[r] += col;
	for (int64_t r = 0; job->total && r < count; r++)
		sum[r] -= zero * total[r];
	for (int64_t r = 0; a->a_zeros && r < count; r++)
		sum[r] -= (uint32_t)row_zero(a, item, i + r) * by_zero;
}

/* W is A: C has few columns, its rows from i on are those of the unit. */
static void finish_columns(const struct job *job, int64_t item, int64_t i, int64_t count,
			   const struct hzi_qgemm_skinny *s, const int32_t *x_sum, char *scratch)
{
	const struct hzi_qgemm_args *a = job->a;
	const int64_t size = dtype_bytes(a->c_dtype), padded = hzi_round_up(count, PANEL);
	const bool tiled = a->c_m != 1 && a->c_n == 1 && job->v > 1;
	const float one_scale = a->a_scales ? *a->a_scales : a->a_scale;
	int32_t *const u = take(&scratch, 4 * padded), *const shift = take(&scratch, 4 * padded);
	int32_t *const scale = take(&scratch, 4 * padded), *const bias = take(&scratch, 4 * padded);
	char *tile, *const to = c_at(a, item, i, 0);
	struct hzi_cpu_qgemm_columns c;
	struct hzi_qgemm_epilogue out;

	hzi_cpu_qgemm_make_columns(job->kern, a, 0, 0, job->v, x_sum, &scratch, &c);
	tile = scratch;
	out = hzi_cpu_qgemm_make_out(a, &c);
	/* The columns of C are the rows of the epilogue, one at a time. */
	out.rows = 1;
	out.cols = count;
	out.c_n = tiled ? 1 : a->c_m;
	out.u = u;
	out.shift = shift;
	out.bias = bias;
	out.a_step = 0;
	for (int64_t j = 0; j < job->v; j++) {
		add_zero_points(job, item, i, count, &c, j, s);
		out.sum = s->sum + j * s->sum_ld;
		out.c = tiled ? tile + j * count * size : to + j * a->c_n * size;
		if (out.bias_dtype) {
			int32_t bits;

			memcpy(&bits, (const char *)c.bias + 4 * j, 4);
			hzi_cpu_qgemm_fill(bias, bits, padded);
		}
		if (is_float(a->c_dtype) && a->scale_step) {
			out.b_scale = a->a_scales + item_row(a, item) + i;
			out.a_scale = &c.b_scale[j];
			out.a_scale_first = true;
		} else if (is_float(a->c_dtype)) {
			int32_t bits;

			memcpy(&bits, &c.b_scale[j], 4);
			hzi_cpu_qgemm_fill(scale, bits, padded);
			out.b_scale = (const float *)(const void *)scale;
			out.a_scale = &one_scale;
		} else if (!a->identity) {
			hzi_cpu_qgemm_fill(u, c.u[j], padded);
			hzi_cpu_qgemm_fill(shift, c.shift[j], padded);
		}
		job->kern->epilogue(&out);
	}
	if (tiled)
		hzi_cpu_transpose(to, a->c_m, tile, count, job->v, count, size);
}

static void multiply_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;
	const struct hzi_qgemm_args *a = job->a;
	const void *const data_w = job->w_is_a ? a->a : a->b;
	const int64_t *const stride = job->w_is_a ? a->a_stride : a->b_stride;
	char *scratch = job->scratch + (size_t)thread * job->scratch_each;
	uint8_t *codes = take(&scratch, (job->by_panels ? job->v : 1) * hzi_round_up(a->k, 64));
	char *x = take(&scratch, job->by_panels ? job->kern->pack_a_bytes(job->v, a->k) :
						  (job->v + 1) * job->x_ld);
	struct hzi_qgemm_skinny s = {
		.x = x, .k = a->k, .w_r = job->w_r, .w_k = job->w_k, .x_ld = job->x_ld,
		.sum_ld = hzi_round_up(job->unit, 64), .v = job->v + job->total,
		.w_dtype = job->w_is_a ? a->a_dtype : a->b_dtype, .by_rows = job->by_rows,
	};
	const int64_t sums = (job->v + 1) * 4 * s.sum_ld;
	int32_t x_sum[PANEL] = {0};
	int64_t packed = -1;

	s.sum = take(&scratch, sums);
	if (!job->by_rows && !job->by_panels)
		s.part = take(&scratch, sums);
	if (!job->total && !job->by_panels)
		memset(s.sum + job->v * s.sum_ld, 0, (size_t)s.sum_ld * 4);
	for (int64_t u = begin; u < end; u++) {
		const int64_t item = u / job->units, i = u % job->units * job->unit;

		if (item != packed && job->by_panels)
			pack_vectors_as_a(job, item, codes, x, x_sum);
		else if (item != packed)
			pack_vectors(job, item, codes, x, x_sum);
		packed = item;
		s.rows = min_i64(job->unit, job->rows - i);
		s.w = (const char *)data_w + item_offset(a->ndim, a->shape, stride, item) +
		      i * job->w_r;
		if (job->by_panels)
			multiply_by_panels(job, &s, scratch);
		else
			job->kern->skinny(&s);
		if (job->w_is_a)
			finish_columns(job, item, i, s.rows, &s, x_sum, scratch);
		else
			finish_rows(job, item, i, s.rows, &s, x_sum, scratch);
	}
}

size_t hzi_cpu_qgemm_skinny_workspace(const struct hz_context *ctx, const void *args)
{
	struct job job;
	const int threads = make_job(ctx, ((const struct hzi_cpu_qgemm_call *)args)->a, &job);

	return (size_t)threads * job.scratch_each;
}

int hzi_cpu_qgemm_skinny(struct hz_context *ctx, const void *args)
{
	const struct hzi_cpu_qgemm_call *c = args;
	struct job job;
	const int threads = make_job(ctx, c->a, &job);

	job.scratch = c->workspace;
	hzi_parallel(ctx, threads, multiply_units, &job,
		     item_count(c->a->ndim, c->a->shape) * job.units);
	return HZ_OK;
}
