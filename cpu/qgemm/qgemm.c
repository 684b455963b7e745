/*
 * qgemm.c - quantized matrix multiplication on the CPU: blocking, threads, edges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/qgemm/qgemm.h"

/*
 * Bytes of packed rows of A that are kept at once: a step is that many items, or rows of one item.
 */
#define A_BYTES ((int64_t)32 << 20)
/* An unpacked B is packed in pieces of that many bytes, which stay in L2. */
#define B_BYTES ((int64_t)256 << 10)
/* The tile of accumulators between mul() and epilogue(): 256 KiB */
#define TILE_ROWS 128
#define TILE_COLS 512
/* With that many rows for each thread, items are cut by rows only. */
#define INLINE_ROWS 256
/*
 * Packing A as differences from the mean of its rows takes longer; products by at least this many
 * columns and this much of k make up for it.
 */
#define SPLIT_COLS 64
#define SPLIT_K 64
/* Tiles with 64-bit accumulators: enough columns to make packing A, chunk by chunk, cheap */
#define SUM64_ROWS 64
#define SUM64_COLS 1024
/* ---- Packing of B ---------------------------------------------------------------------------- */

struct pack_job {
	const struct hzi_qgemm_kern *kern;
	const struct hzi_qgemm_pack_args *a;
	int64_t panels;			/* of one matrix */
};

static void pack_panels(void *job, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *j = job;
	const struct hzi_qgemm_pack_args *a = j->a;
	const int64_t codes = hzi_qgemm_packed_codes(a->layout, a->k, a->n);
	const int64_t bytes = hzi_qgemm_packed_bytes(a->layout, a->k, a->n);

	(void)thread;
	for (int64_t u = begin, count; u < end; u += count) {
		const int64_t item = u / j->panels, first = u % j->panels;
		char *to = (char *)a->data + item * bytes;
		struct hzi_qgemm_pack_b p = {
			.b = bytes_at(a->b, first * PANEL * a->b_n + item_offset(a->ndim, a->shape,
				      a->b_stride, item)),
			.packed = (uint8_t *)to + first * PANEL * hzi_round_up(a->k, 64),
			.sum = (int32_t *)(to + codes) + first * PANEL,
			.k = a->k, .b_k = a->b_k, .b_n = a->b_n, .b_dtype = a->b_dtype,
		};

		count = min_i64(end - u, j->panels - first);
		p.n = min_i64(count * PANEL, a->n - first * PANEL);
		j->kern->pack_b(&p);
	}
}

int hzi_cpu_qgemm_pack(struct hz_context *ctx, const struct hzi_qgemm_pack_args *a)
{
	struct pack_job job = {
		.kern = hzi_qgemm_kern + ctx->level, .a = a, .panels = ceil_div(a->n, PANEL),
	};
	int64_t items = 1;

	for (int d = 0; d < a->ndim; d++)
		items *= a->shape[d];
	hzi_parallel(ctx, hzi_threads(ctx, 2 * items * a->n * a->k), pack_panels, &job,
		     items * job.panels);
	return HZ_OK;
}

HZI_NO_WORKSPACE(cpu, qgemm_pack)

/* ---- Multiplication: shared by all units ----------------------------------------------------- */

/*
 * A step multiplies rows first .. first + rows - 1 of items item .. item + items - 1, whose packed
 * A is in the workspace. It is cut into units: an item, some of its rows and some of its columns.
 */
struct job {
	const struct hzi_qgemm_kern *kern;
	const struct hzi_qgemm_args *a;
	int threads;
	int32_t offset;			/* what packing subtracts from the codes of A */
	bool sum64;			/* 64-bit accumulators, of chunks of k */
	bool rows_wanted;		/* row sums are needed: B has a zero point */
	bool pack_inline;		/* mul() packs A */

	int64_t items;			/* of the whole batch */
	int64_t step_items, step_rows;	/* of a step at most */
	int64_t unit_rows, unit_cols;
	int64_t panel_cols;		/* columns of an unpacked B that are packed at once */

	int64_t item, count, first, rows;	/* the step */
	int64_t a_bytes;		/* of step_rows packed rows */
	char *packed_a;			/* [step_items] of a_bytes */
	int32_t *row, *a_zero; /* [step_items][step_rows]; a_zero NULL: rows have no zero points */
	char *scratch;
	size_t scratch_each;
};

/* ceil(n / each), n > 0. A small call has one part of everything, and divisions take time. */
static int64_t parts_of(int64_t n, int64_t each)
{
	return n <= each ? 1 : ceil_div(n, each);
}

static int64_t columns_bytes(int64_t n)
{
	return (int64_t)round_to_lines(4 * hzi_round_up(n, PANEL));
}

size_t hzi_cpu_qgemm_columns_bytes(int64_t n)
{
	return 5 * (size_t)columns_bytes(n);
}

static struct hzi_multiplier multiplier_of(const struct hzi_qgemm_args *a, int64_t j)
{
	const bool f32_bias = a->requant == HZ_REQUANT_FLOAT && a->bias_dtype == HZ_F32;
	const float b_scale = a->b_scales ? a->b_scales[j * a->b_scale_step] : a->b_scale;
	struct hzi_multiplier m = a->mult;

	if (a->requant == HZ_REQUANT_FLOAT || a->requant == HZ_REQUANT_LITERT_REF)
		return hzi_requant_words(a->requant, m, a->b_scales != NULL, a->a_scale, b_scale,
					 a->c_scale, f32_bias ? ((const float *)a->bias)[j] : 0);
	if (a->multipliers) {
		m = (struct hzi_multiplier){a->multipliers[j], a->shifts[j]};
		if (m.u <= 0 || m.shift < 1 || m.shift > 62)
			m = (struct hzi_multiplier){0, 1};
	} else if (a->b_scales) {
		m = hzi_multiplier_f32(
			hzi_sigma(a->a_scale, b_scale, a->c_scale),
			a->c_dtype == HZ_S32, a->requant == HZ_REQUANT_EXACT);
	}
	/* y is 0 with any shift. */
	if (m.u == 0)
		m.shift = 33;
	return m;
}

/* Sets n elements, a multiple of PANEL. */
void hzi_cpu_qgemm_fill(int32_t *to, int32_t v, int64_t n)
{
	int32_t panel[PANEL];

	for (int l = 0; l < PANEL; l++)
		panel[l] = v;
	for (int64_t l = 0; l < n; l += PANEL)
		memcpy(to + l, panel, sizeof(panel));
}

/* Fills multipliers and shifts; returns whether mul() supports all of them. */
static bool make_multipliers(const struct hzi_qgemm_args *a, int64_t j, int64_t n,
			     struct hzi_cpu_qgemm_columns *c)
{
	const bool same = !a->multipliers && !(a->b_scales && a->b_scale_step) &&
			  !(a->requant == HZ_REQUANT_FLOAT && a->bias_dtype == HZ_F32);
	const int64_t padded = hzi_round_up(n, PANEL);
	bool fast = true;

	for (int64_t l = 0; l < (same ? 1 : padded); l++) {
		struct hzi_multiplier m = {0, 33};

		if (l < n)
			m = multiplier_of(a, j + l);
		c->u[l] = m.u;
		c->shift[l] = m.shift;
		fast &= m.shift >= 33;
	}
	if (same) {
		hzi_cpu_qgemm_fill(c->u, c->u[0], padded);
		hzi_cpu_qgemm_fill(c->shift, c->shift[0], padded);
	}
	return fast && a->requant == HZ_REQUANT_EXACT && !a->identity;
}

/*
 * sum: column sums of B. Fills all terms of acc = sum' - bz row' - az' b_sum + k az' bz + bias but
 * the products; a prime means that offset is subtracted from the codes and zero points of A.
 */
void hzi_cpu_qgemm_make_columns(const struct hzi_qgemm_kern *kern, const struct hzi_qgemm_args *a,
				int32_t offset, int64_t j, int64_t n, const int32_t *sum,
				char **scratch, struct hzi_cpu_qgemm_columns *c)
{
	const int64_t padded = hzi_round_up(n, PANEL), bytes = columns_bytes(n);
	const uint32_t zero = (uint32_t)(a->a_zero - offset), k = (uint32_t)a->k;
	const int32_t *bias = a->bias && a->bias_dtype == HZ_S32 ?
			      (const int32_t *)a->bias + j : NULL;
	int64_t most = 0;

	c->sum = sum;
	c->bias = a->bias;
	c->col = take(scratch, bytes);
	c->b_zero = take(scratch, bytes);
	c->u = take(scratch, bytes);
	c->shift = take(scratch, bytes);
	c->b_scale = take(scratch, bytes);
	for (int64_t l = 0; bias && l < n; l++)
		most = max_i64(most, bias[l] < 0 ? -(int64_t)bias[l] : bias[l]);
	c->folded = bias && a->reach + most <= INT32_MAX;
	if (a->bias)
		c->bias = (const char *)a->bias + 4 * j;
	hzi_cpu_qgemm_fill(c->b_zero, a->b_zero, padded);
	for (int64_t l = 0; a->b_zeros && l < n; l++)
		c->b_zero[l] = code_at(a->b_zeros, a->b_dtype, j + l);
	if (a->a_zeros)
		memset(c->col, 0, (size_t)padded * 4);
	/* Arrays of known length that alias nothing become vector code. */
	for (int64_t l = 0; !a->a_zeros && l < padded; l += PANEL) {
		uint32_t col[PANEL];

		for (int i = 0; i < PANEL; i++)
			col[i] = zero * (k * (uint32_t)c->b_zero[l + i] - (uint32_t)sum[l + i]);
		memcpy(c->col + l, col, sizeof(col));
	}
	for (int64_t l = 0; c->folded && l < n; l++)
		c->col[l] = (int32_t)((uint32_t)c->col[l] + (uint32_t)bias[l]);
	if (is_float(a->c_dtype)) {
		int32_t scale = 0;

		if (!a->b_scales)
			memcpy(&scale, &a->b_scale, sizeof(scale));
		hzi_cpu_qgemm_fill((int32_t *)(void *)c->b_scale, scale, padded);
		for (int64_t l = 0; a->b_scales && l < n; l++)
			c->b_scale[l] = a->b_scales[(j + l) * a->b_scale_step];
		c->fast = kern->float_epilogue;
	} else if (a->identity) {
		c->fast = kern->float_epilogue && a->c_dtype == HZ_S32;
	} else {
		c->fast = make_multipliers(a, j, n, c) && a->c_dtype != HZ_S32 &&
			 (!a->a_zeros || kern->float_epilogue);
	}
	c->fast &= !bias || c->folded;
}

struct hzi_qgemm_epilogue hzi_cpu_qgemm_make_out(const struct hzi_qgemm_args *a,
						 const struct hzi_cpu_qgemm_columns *c)
{
	return (struct hzi_qgemm_epilogue){
		.c_m = a->c_m, .c_n = a->c_n, .a_step = a->a_scales ? a->scale_step : 0,
		.bias = c->bias, .bias_dtype = c->folded ? 0 : a->bias_dtype,
		.u = c->u, .shift = c->shift, .b_scale = c->b_scale, .a_scale = &a->a_scale,
		.c_dtype = a->c_dtype, .requant = a->requant, .identity = a->identity,
		.c_zero = a->c_zero, .min = a->min, .max = a->max, .fmin = a->fmin, .fmax = a->fmax,
	};
}

/* Advances the operands of columns by j columns. */
static void advance_columns(struct hzi_qgemm_epilogue *o, int64_t j)
{
	if (o->col)
		o->col += j;
	if (o->b_zero)
		o->b_zero += j;
	if (o->b_sum)
		o->b_sum += j;
	if (o->bias)
		o->bias = (const char *)o->bias + 4 * j;
	o->u += j;
	o->shift += j;
	o->b_scale += j;
	o->c = (char *)o->c + j * o->c_n * dtype_bytes(o->c_dtype);
}

/* ---- Multiplication: A packed, accumulation mod 2^32 ----------------------------------------- */

/* Whether columns of A are contiguous: blocks are transposed before they are packed */
static bool is_transposed(const struct hzi_qgemm_args *a)
{
	return a->a_k != 1 && a->a_m == 1 && a->m >= 8;
}

/* Bytes between rows of a transposed block: not a power of 2, so that they share no cache sets */
static int64_t transposed_ld(int64_t k)
{
	return hzi_round_up(k, 128) + 64;
}

/*
 * Rows of a transposed block: a cache line of each column, or as many as the scratch of tiles holds
 */
static int64_t transposed_rows(int64_t q_rows, int64_t k)
{
	const int64_t most = min_i64(64, 4 * TILE_ROWS * TILE_COLS / max_i64(k, 1));

	return max_i64(most / q_rows, 1) * q_rows;
}

static void pack_transposed(const struct job *job, struct hzi_qgemm_pack_a p, char *scratch)
{
	const int64_t most = transposed_rows(job->kern->rows, p.k), m = p.m, ld = transposed_ld(p.k);
	const char *from = p.a;
	char *to = p.packed;

	for (int64_t i = 0; i < m; i += p.m) {
		p.m = min_i64(most, m - i);
		hzi_cpu_transpose(scratch, ld, from + i, p.a_k, p.k, p.m, 1);
		job->kern->pack_a(&(struct hzi_qgemm_pack_a){
			.a = scratch, .packed = to + job->kern->pack_a_bytes(i, p.k),
			.row = p.row ? p.row + i : NULL, .m = p.m, .k = p.k, .a_m = ld, .a_k = 1,
			.a_dtype = p.a_dtype, .b_dtype = p.b_dtype, .split = p.split,
		});
	}
}

static void pack_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;
	const struct hzi_qgemm_args *a = job->a;
	const int64_t q_rows = job->kern->rows, per_item = parts_of(job->rows, q_rows);

	for (int64_t u = begin, blocks; u < end; u += blocks) {
		const int64_t slot = u < per_item ? 0 : u / per_item;
		const int64_t block = u - slot * per_item, i = block * q_rows;
		const int64_t item = job->item + slot;
		int32_t *row = job->row ? job->row + slot * job->step_rows + i : NULL;
		struct hzi_qgemm_pack_a p = {
			.a = bytes_at(a->a, item_offset(a->ndim, a->shape, a->a_stride, item) +
				      (job->first + i) * a->a_m),
			.packed = job->packed_a + slot * job->a_bytes +
				  job->kern->pack_a_bytes(i, a->k),
			.row = job->rows_wanted ? row : NULL,
			.k = a->k,
			.a_m = a->a_m,
			.a_k = a->a_k,
			.a_dtype = a->a_dtype,
			.b_dtype = a->b_dtype,
			.split = a->n >= SPLIT_COLS && a->k >= SPLIT_K,
		};

		blocks = min_i64(end - u, per_item - block);
		p.m = min_i64(blocks * q_rows, job->rows - i);
		if (is_transposed(a))
			pack_transposed(job, p, job->scratch + (size_t)thread * job->scratch_each);
		else
			job->kern->pack_a(&p);
		for (int64_t l = 0; a->a_zeros && l < p.m; l++) {
			const int32_t zero = row_zero(a, item, job->first + i + l) - job->offset;

			job->a_zero[slot * job->step_rows + i + l] = zero;
			if (p.row)
				p.row[l] = (int32_t)((uint32_t)p.row[l] -
						     (uint32_t)a->k * (uint32_t)zero);
		}
	}
}

/* mul() for a C whose rows are not contiguous: through a tile */
static void multiply_via_tile(const struct job *job, const struct hzi_qgemm_mul *all, void *tile)
{
	const struct hzi_qgemm_args *a = job->a;
	const int64_t size = dtype_bytes(a->c_dtype), q_rows = job->kern->rows;
	const int64_t tile_rows = hzi_round_up(TILE_ROWS, q_rows);
	struct hzi_qgemm_mul mul = *all;

	mul.c = tile;
	mul.c_ld = TILE_COLS;
	for (int64_t j = 0; j < all->n; j += TILE_COLS) {
		mul.n = min_i64(TILE_COLS, all->n - j);
		mul.b = all->b + j / PANEL * mul.b_panel;
		mul.col = all->col + j;
		mul.b_zero = all->b_zero + j;
		mul.b_sum = all->b_sum + j;
		mul.u = all->u + j;
		mul.shift = all->shift + j;
		mul.b_scale = all->b_scale + j;
		mul.bias = all->bias ? all->bias + j : NULL;
		for (int64_t i = 0; i < all->m; i += tile_rows) {
			char *c = (char *)all->c + (i * a->c_m + j * a->c_n) * size;

			mul.m = min_i64(tile_rows, all->m - i);
			mul.a = (char *)all->a + job->kern->pack_a_bytes(i, mul.k);
			mul.row = all->row ? all->row + i : NULL;
			mul.a_zero = all->a_zero ? all->a_zero + i : NULL;
			mul.a_scale = all->a_scale + i * mul.a_step;
			job->kern->mul(&mul);
			if (a->c_m == 1) {
				hzi_cpu_transpose(c, a->c_n, tile, TILE_COLS, mul.m, mul.n, size);
				continue;
			}
			for (int64_t r = 0; r < mul.m; r++)
				copy_strided(c + r * a->c_m * size, a->c_n,
					     (char *)tile + r * TILE_COLS * size, 1, mul.n, size);
		}
	}
}

/*
 * Rows from i of the step by columns from j of an item. b and c are those of column j. tile holds
 * the accumulators where mul() does not do the epilogue.
 */
static void multiply(const struct job *job, int64_t slot, int64_t i, int64_t rows, int64_t j,
		     int64_t cols, const uint8_t *b, const struct hzi_cpu_qgemm_columns *c,
		     int32_t *tile, void *sums)
{
	const struct hzi_qgemm_args *a = job->a;
	const int64_t item = job->item + slot,
		      tile_rows = hzi_round_up(TILE_ROWS, job->kern->rows);
	int32_t *row = job->rows_wanted ? job->row + slot * job->step_rows + i : NULL;
	int32_t *a_zero = a->a_zeros ? job->a_zero + slot * job->step_rows + i : NULL;
	struct hzi_qgemm_mul mul = {
		.a = job->packed_a + slot * job->a_bytes + job->kern->pack_a_bytes(i, a->k),
		.b = b, .c = c_at(a, item, job->first + i, j), .m = rows, .n = cols, .k = a->k,
		.b_panel = hzi_round_up(a->k, 64) * PANEL, .c_ld = a->c_m, .a_dtype = a->a_dtype,
		.b_dtype = a->b_dtype, .c_dtype = a->c_dtype, .col = c->col, .b_zero = c->b_zero,
		.u = c->u, .shift = c->shift, .row = row, .c_zero = a->c_zero, .min = a->min,
		.max = a->max, .b_sum = c->sum, .sums = sums,
	};

	if (c->fast) {
		mul.a_zero = a_zero;
		mul.a_scale = &a->a_scale;
		if (a->a_scales) {
			mul.a_step = a->scale_step;
			mul.a_scale = a->a_scales + (item_row(a, item) + job->first + i) *
						    a->scale_step;
		}
		mul.b_scale = c->b_scale;
		mul.bias = a->bias_dtype == HZ_F32 ? c->bias : NULL;
		mul.fmin = a->fmin;
		mul.fmax = a->fmax;
	}
	for (int64_t l = 0; job->pack_inline && a->a_zeros && l < rows; l++)
		a_zero[l] = row_zero(a, item, job->first + i + l) - job->offset;
	if (job->pack_inline) {
		mul.src = bytes_at(a->a, item_offset(a->ndim, a->shape, a->a_stride, item) +
				   (job->first + i) * a->a_m);
		mul.src_ld = a->a_m;
	}
	if (job->pack_inline && !c->fast) {
		const struct hzi_qgemm_pack_a p = {
			.a = mul.src,
			.packed = mul.a,
			.row = row,
			.m = rows,
			.k = a->k,
			.a_m = a->a_m,
			.a_k = 1,
			.a_dtype = a->a_dtype,
			.b_dtype = a->b_dtype,
		};

		job->kern->pack_a(&p);
		mul.src = NULL;
		for (int64_t l = 0; a->a_zeros && row && l < rows; l++)
			row[l] = (int32_t)((uint32_t)row[l] - (uint32_t)a->k * (uint32_t)a_zero[l]);
	}
	if (c->fast && a->k > 0) {
		if (a->c_n == 1)
			job->kern->mul(&mul);
		else
			multiply_via_tile(job, &mul, tile);
		return;
	}
	mul.raw = true;
	mul.c = tile;
	mul.c_dtype = HZ_S32;
	mul.c_ld = TILE_COLS;
	for (int64_t l = 0; l < cols; l += TILE_COLS) {
		struct hzi_qgemm_epilogue out = hzi_cpu_qgemm_make_out(a, c);

		out.sum = tile;
		out.sum_ld = TILE_COLS;
		out.cols = mul.n = min_i64(TILE_COLS, cols - l);
		out.c = c_at(a, item, job->first + i, j);
		out.col = c->col;
		out.b_zero = row ? c->b_zero : NULL;
		out.b_sum = a->a_zeros ? c->sum : NULL;
		advance_columns(&out, l);
		mul.b = b + l / PANEL * mul.b_panel;
		mul.b_sum = c->sum + l;
		for (int64_t r = 0; r < rows; r += tile_rows) {
			const int64_t at = i + r;

			mul.a = job->packed_a + slot * job->a_bytes +
				job->kern->pack_a_bytes(at, a->k);
			out.rows = mul.m = min_i64(tile_rows, rows - r);
			if (a->k > 0)
				job->kern->mul(&mul);
			else
				memset(tile, 0, (size_t)(mul.m * TILE_COLS) * 4);
			out.row = row ? row + r : NULL;
			out.a_zero = a->a_zeros ? job->a_zero + slot * job->step_rows + at : NULL;
			if (a->a_scales)
				out.a_scale = a->a_scales +
					      (item_row(a, item) + job->first + at) * a->scale_step;
			job->kern->epilogue(&out);
			out.c = (char *)out.c + mul.m * a->c_m * dtype_bytes(a->c_dtype);
		}
	}
}

/* The packed codes of an item from column j on, and the sums of these columns */
static const uint8_t *packed_b(const struct hzi_qgemm_args *a, int64_t item, int64_t j,
			       const int32_t **sum)
{
	const int64_t bytes = hzi_qgemm_packed_bytes(a->layout, a->k, a->n);
	const char *b = (const char *)a->packed +
			item_offset(a->ndim, a->shape, a->b_stride, item) * bytes;

	*sum = (const int32_t *)(b + hzi_qgemm_packed_codes(a->layout, a->k, a->n)) + j;
	return (const uint8_t *)b + j * hzi_round_up(a->k, 64);
}

/* Packs n columns from j on of an item's B to *scratch. */
static const uint8_t *pack_b(const struct job *job, int64_t item, int64_t j, int64_t n,
			     const int32_t **sum, char **scratch)
{
	const struct hzi_qgemm_args *a = job->a;
	const int64_t padded = hzi_round_up(n, PANEL);
	struct hzi_qgemm_pack_b p = {
		.b = bytes_at(a->b, item_offset(a->ndim, a->shape, a->b_stride, item) + j * a->b_n),
		.k = a->k,
		.n = n,
		.b_k = a->b_k,
		.b_n = a->b_n,
		.b_dtype = a->b_dtype,
	};

	p.packed = take(scratch, padded * hzi_round_up(a->k, 64));
	p.sum = take(scratch, 4 * padded);
	job->kern->pack_b(&p);
	*sum = p.sum;
	return p.packed;
}

struct unit {
	int64_t slot, i, rows, j, cols;
};

static struct unit unit_at(const struct job *job, int64_t u)
{
	const int64_t across = parts_of(job->a->n, job->unit_cols);
	const int64_t down = parts_of(job->rows, job->unit_rows);
	int64_t i, j;

	if (across * down == 1)
		return (struct unit){u, 0, job->rows, 0, job->a->n};
	i = u / across % down * job->unit_rows;
	j = u % across * job->unit_cols;
	return (struct unit){
		u / across / down, i, min_i64(job->unit_rows, job->rows - i),
		j, min_i64(job->unit_cols, job->a->n - j),
	};
}

static void multiply_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;
	const struct hzi_qgemm_args *a = job->a;

	for (int64_t n = begin; n < end; n++) {
		const struct unit u = unit_at(job, n);
		const int64_t step = a->packed ? u.cols : job->panel_cols;

		for (int64_t j = 0; j < u.cols; j += step) {
			const int64_t cols = min_i64(step, u.cols - j), item = job->item + u.slot;
			char *scratch = job->scratch + (size_t)thread * job->scratch_each;
			int32_t *tile = take(&scratch,
					     4 * hzi_round_up(TILE_ROWS, job->kern->rows) *
						     TILE_COLS);
			void *const sums = take(&scratch, job->kern->sums);
			const int32_t *sum;
			const uint8_t *b;
			struct hzi_cpu_qgemm_columns c;

			b = a->packed ? packed_b(a, item, u.j + j, &sum) :
					pack_b(job, item, u.j + j, cols, &sum, &scratch);
			hzi_cpu_qgemm_make_columns(job->kern, a, job->offset, u.j + j, cols, sum,
						   &scratch, &c);
			multiply(job, u.slot, u.i, u.rows, u.j + j, cols, b, &c, tile,
				 sums);
		}
	}
}

/* ---- Multiplication: 64-bit accumulators ----------------------------------------------------- */

/*
 * A unit of rows and columns. The raw sums of each chunk of k are exact in s32 and added in 64
 * bits; then zero points and bias are applied, and the clamped sums go through epilogue().
 */
static void multiply_sum64(const struct job *job, const struct unit *u, char *scratch)
{
	const struct hzi_qgemm_args *a = job->a;
	const int64_t item = job->item + u->slot, first = job->first + u->i;
	const int64_t chunk = min_i64(HZI_QGEMM_K_CHUNK, a->k);
	int32_t *tile = take(&scratch, 4 * SUM64_ROWS * SUM64_COLS);
	int64_t *total = take(&scratch, 8 * SUM64_ROWS * SUM64_COLS);
	char *packed_a = take(&scratch, job->kern->pack_a_bytes(SUM64_ROWS, chunk));
	void *const sums = take(&scratch, job->kern->sums);
	int32_t row[SUM64_ROWS];
	int64_t rows_sum[SUM64_ROWS] = {0};
	const int32_t *bias = a->bias_dtype == HZ_S32 ? a->bias : NULL, *sum;
	const uint8_t *b;
	struct hzi_cpu_qgemm_columns c;
	struct hzi_qgemm_epilogue out;

	b = a->packed ? packed_b(a, item, u->j, &sum) :
			pack_b(job, item, u->j, u->cols, &sum, &scratch);
	hzi_cpu_qgemm_make_columns(job->kern, a, job->offset, u->j, u->cols, sum, &scratch, &c);
	memset(total, 0, (size_t)(u->rows * SUM64_COLS) * 8);
	for (int64_t k = 0; k < a->k; k += HZI_QGEMM_K_CHUNK) {
		const int64_t length = min_i64(HZI_QGEMM_K_CHUNK, a->k - k);
		const struct hzi_qgemm_pack_a pack = {
			.a = (const char *)a->a +
			     item_offset(a->ndim, a->shape, a->a_stride, item) + first * a->a_m +
			     k * a->a_k,
			.packed = packed_a,
			.row = row,
			.m = u->rows,
			.k = length,
			.a_m = a->a_m,
			.a_k = a->a_k,
			.a_dtype = a->a_dtype,
			.b_dtype = a->b_dtype,
		};
		const struct hzi_qgemm_mul mul = {
			.a = packed_a,
			.b = b + k * PANEL,
			.c = tile,
			.m = u->rows,
			.n = u->cols,
			.k = length,
			.b_panel = hzi_round_up(a->k, 64) * PANEL,
			.c_ld = SUM64_COLS,
			.a_dtype = a->a_dtype,
			.b_dtype = a->b_dtype,
			.c_dtype = HZ_S32,
			.raw = true,
			.sums = sums,
		};

		job->kern->pack_a(&pack);
		job->kern->mul(&mul);
		for (int64_t i = 0; i < u->rows; i++) {
			rows_sum[i] += row[i];
			for (int64_t j = 0; j < u->cols; j++)
				total[i * SUM64_COLS + j] += tile[i * SUM64_COLS + j];
		}
	}
	for (int64_t i = 0; i < u->rows; i++) {
		const int64_t zero =
			(a->a_zeros ? code_at(a->a_zeros, a->a_dtype,
					      (item_row(a, item) + first + i) * a->zero_step)
				    : a->a_zero) -
			job->offset;

		for (int64_t j = 0; j < u->cols; j++) {
			int64_t s = total[i * SUM64_COLS + j] - c.b_zero[j] * rows_sum[i] -
				    zero * (sum[j] - a->k * c.b_zero[j]);

			if (bias)
				s += bias[u->j + j];
			tile[i * SUM64_COLS + j] = (int32_t)(s > INT32_MAX   ? INT32_MAX
							    : s < INT32_MIN ? INT32_MIN
									    : s);
		}
	}
	out = hzi_cpu_qgemm_make_out(a, &c);
	out.sum = tile;
	out.sum_ld = SUM64_COLS;
	out.rows = u->rows;
	out.cols = u->cols;
	out.c = c_at(a, item, first, u->j);
	if (bias)
		out.bias_dtype = 0;
	if (a->a_scales)
		out.a_scale = a->a_scales + (item_row(a, item) + first) * a->scale_step;
	job->kern->epilogue(&out);
}

static void sum64_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;

	for (int64_t n = begin; n < end; n++) {
		const struct unit u = unit_at(job, n);

		multiply_sum64(job, &u, job->scratch + (size_t)thread * job->scratch_each);
	}
}

/* ---- Multiplication: the plan ---------------------------------------------------------------- */

/*
 * Sets steps and threads where A is packed as a whole; returns the parts that an item is cut into.
 */
static int64_t make_steps(const struct hz_context *ctx, const struct hzi_qgemm_args *a,
			  struct job *job)
{
	const int64_t q_rows = hzi_qgemm_kern[ctx->level].rows;
	const int64_t k_padded = hzi_round_up(max_i64(a->k, 1), 64);
	double bytes;

	job->items = 1;
	for (int d = 0; d < a->ndim; d++)
		job->items *= a->shape[d];
	bytes = (double)job->items * ((double)a->m * (double)a->n * (double)a->k / MACS_PER_BYTE +
				      (double)a->n * (double)a->k);
	job->threads = hzi_threads(ctx, (int64_t)(bytes < 0x1p60 ? bytes : 0x1p60));
	job->step_rows = a->m;
	if (a->m > A_BYTES || a->m * k_padded > A_BYTES)
		job->step_rows = min_i64(a->m, hzi_round_up(max_i64(A_BYTES / k_padded, 1),
							    q_rows));
	job->step_items = 1;
	if (job->items > 1)
		job->step_items = min_i64(job->items, max_i64(
			A_BYTES / (k_padded * hzi_round_up(job->step_rows, q_rows)), 1));
	return parts_of(job->threads, job->step_items);
}

enum how {
	PACK_FIRST,		/* A is packed, then multiplied */
	PACK_INLINE,		/* the thread that multiplies rows packs them */
	SUM64			/* 64-bit accumulators */
};

/* Fills all but the pointers into the workspace and the step; returns the bytes of workspace. */
static size_t make_job(const struct hz_context *ctx, const struct hzi_qgemm_args *a, enum how how,
		       struct job *job)
{
	const struct hzi_qgemm_kern *const kern = hzi_qgemm_kern + ctx->level;
	const int64_t q_rows = kern->rows, padded = hzi_round_up(a->n, PANEL);
	const int64_t k_padded = hzi_round_up(max_i64(a->k, 1), 64);
	/* Parts of an item: columns are cut first, since reading B takes the time */
	int64_t parts, across;
	size_t bytes;

	job->kern = kern;
	job->a = a;
	job->offset = kern->pack_a_offset(a->a_dtype, a->b_dtype);
	job->sum64 = how == SUM64;
	job->pack_inline = how == PACK_INLINE;
	job->rows_wanted = a->b_zeros || a->b_zero != 0;
	parts = make_steps(ctx, a, job);
	if (job->sum64) {
		job->step_items = job->items;
		job->step_rows = a->m;
		job->unit_rows = SUM64_ROWS;
		job->unit_cols = SUM64_COLS;
		/* A unit's part of an unpacked B is no larger than A may be. */
		if (!a->packed)
			job->unit_cols = min_i64(SUM64_COLS,
						 max_i64(A_BYTES / k_padded / PANEL, 1) * PANEL);
		job->panel_cols = job->unit_cols;
		bytes = round_to_lines(4 * SUM64_ROWS * SUM64_COLS) +
			round_to_lines(8 * SUM64_ROWS * SUM64_COLS) +
			round_to_lines(
				kern->pack_a_bytes(SUM64_ROWS, min_i64(HZI_QGEMM_K_CHUNK, a->k)));
	} else {
		across = job->pack_inline ? 1 : min_i64(parts, padded / PANEL);
		job->unit_cols = padded;
		job->unit_rows = job->step_rows;
		if (parts > 1) {
			job->unit_cols = hzi_round_up(ceil_div(a->n, across), PANEL);
			job->unit_rows = hzi_round_up(
				ceil_div(job->step_rows, ceil_div(parts, across)), q_rows);
		}
		job->panel_cols = job->unit_cols;
		if (job->unit_cols > B_BYTES || job->unit_cols * k_padded > B_BYTES)
			job->panel_cols = min_i64(job->unit_cols, max_i64(
				B_BYTES / k_padded / PANEL, 1) * PANEL);
		bytes = round_to_lines(4 * hzi_round_up(TILE_ROWS, q_rows) * TILE_COLS);
	}
	if (is_transposed(a)) {
		const int64_t transposed = transposed_rows(q_rows, a->k) * transposed_ld(a->k);

		bytes = bytes < round_to_lines(transposed) ? round_to_lines(transposed) : bytes;
	}
	bytes += round_to_lines(kern->sums);
	if (a->packed)
		bytes += hzi_cpu_qgemm_columns_bytes(min_i64(job->unit_cols, padded));
	else
		bytes += hzi_cpu_qgemm_columns_bytes(job->panel_cols) +
			 round_to_lines(job->panel_cols * k_padded) +
			 round_to_lines(4 * job->panel_cols);
	job->scratch_each = bytes;
	bytes *= (size_t)job->threads;
	job->a_bytes = 0;
	job->packed_a = NULL;
	job->row = job->a_zero = NULL;
	if (!job->sum64) {
		job->a_bytes = (int64_t)round_to_lines(kern->pack_a_bytes(job->step_rows, a->k));
		bytes += (size_t)(job->a_bytes * job->step_items) +
			 2 * round_to_lines(4 * job->step_items * job->step_rows);
	}
	return bytes;
}

static size_t workspace_of(const struct hz_context *ctx, const void *args, enum how how)
{
	struct job job;

	return make_job(ctx, ((const struct hzi_cpu_qgemm_call *)args)->a, how, &job);
}

static int multiply_all(struct hz_context *ctx, const void *args, enum how how)
{
	const struct hzi_cpu_qgemm_call *c = args;
	const struct hzi_qgemm_args *a = c->a;
	char *workspace = c->workspace;
	struct job job;

	make_job(ctx, a, how, &job);
	job.scratch = workspace;
	workspace += (size_t)job.threads * job.scratch_each;
	if (!job.sum64) {
		job.packed_a = take(&workspace, job.a_bytes * job.step_items);
		job.row = take(&workspace, 4 * job.step_items * job.step_rows);
		job.a_zero = take(&workspace, 4 * job.step_items * job.step_rows);
	}
	for (job.item = 0; job.item < job.items; job.item += job.count) {
		job.count = min_i64(job.step_items, job.items - job.item);
		for (job.first = 0; job.first < a->m; job.first += job.rows) {
			int64_t units;

			job.rows = min_i64(job.step_rows, a->m - job.first);
			if (!job.sum64 && !job.pack_inline)
				hzi_parallel(ctx, job.threads, pack_rows, &job,
					     job.count * parts_of(job.rows, job.kern->rows));
			units = job.count * parts_of(job.rows, job.unit_rows) *
				parts_of(a->n, job.unit_cols);
			hzi_parallel(ctx, job.threads, job.sum64 ? sum64_units : multiply_units,
				     &job, units);
		}
	}
	return HZ_OK;
}

/* ---- Routes ---------------------------------------------------------------------------------- */

const char *hzi_cpu_qgemm_pack_inline_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_args *a = ((const struct hzi_cpu_qgemm_call *)args)->a;

	if (!hzi_qgemm_kern[ctx->level].packs_a)
		return "the micro-kernels of the ISA level do not pack A";
	if (a->sum64 || a->k == 0)
		return "k is 0, or sums do not fit 32 bits";
	if (!a->packed || a->a_k != 1 || a->c_n != 1)
		return "B is not packed, or rows of A or C are not contiguous";
	return a->c_dtype == HZ_S32 && !a->identity ? "C is s32 with a scale" : NULL;
}

/* Each thread has its own rows and reads all of B, which needs enough rows to pay. */
bool hzi_cpu_qgemm_pack_inline_wins(const struct hz_context *ctx,
				    const struct hzi_cpu_qgemm_call *c)
{
	struct job job;
	const int64_t parts = make_steps(ctx, c->a, &job);

	return parts == 1 || job.step_rows >= parts * INLINE_ROWS;
}

size_t hzi_cpu_qgemm_pack_inline_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace_of(ctx, args, PACK_INLINE);
}

int hzi_cpu_qgemm_pack_inline(struct hz_context *ctx, const void *args)
{
	return multiply_all(ctx, args, PACK_INLINE);
}

const char *hzi_cpu_qgemm_pack_first_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_cpu_qgemm_call *c = args;

	(void)ctx;
	return c->a->sum64 ? "sums do not fit 32 bits" : NULL;
}

size_t hzi_cpu_qgemm_pack_first_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace_of(ctx, args, PACK_FIRST);
}

int hzi_cpu_qgemm_pack_first(struct hz_context *ctx, const void *args)
{
	return multiply_all(ctx, args, PACK_FIRST);
}

size_t hzi_cpu_qgemm_sum64_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace_of(ctx, args, SUM64);
}

int hzi_cpu_qgemm_sum64(struct hz_context *ctx, const void *args)
{
	return multiply_all(ctx, args, SUM64);
}
