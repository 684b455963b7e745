/*
 * formats.c - quantization to any format on the CPU, by given scales or by those of groups
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A part of a row passes through L1 as f32, HZI_FORMAT_BATCH elements at a time: load() finds the
 * largest magnitudes, scales() makes scales of them, encode() stores codes.
 */
#include <config.h>

#include <string.h>

#include "cpu/qgemm/qgemm.h"
#include "cpu/quantize/kern.h"
#include "cpu/quantize/quantize.h"

#define BATCH HZI_FORMAT_BATCH
#define PIECE 16384		/* elements of a unit of work, if groups are shorter */
#define STREAM_BYTES ((int64_t)32 << 20)	/* as in quantize.c */

struct batch {
	float t[BATCH + HZI_FORMAT_PAD], factor[BATCH + HZI_FORMAT_PAD];
	float random[BATCH + HZI_FORMAT_PAD], group_factor[BATCH + HZI_FORMAT_PAD];
	int32_t zero[BATCH + HZI_FORMAT_PAD];
	uint32_t amax[BATCH], bits[BATCH];
	char gather[BATCH * 4], q[BATCH * 2];
	uint16_t half[BATCH];
};

/* Gives the elements that a vector may read behind the last one values that do no harm. */
static void pad(float *factor, int32_t *zero, int64_t n)
{
	for (int64_t i = n; i < n + HZI_FORMAT_PAD; i++) {
		factor[i] = 1;
		if (zero)
			zero[i] = 0;
	}
}

/* A given scale */
static float scale_at(const struct hzi_format_args *a, int64_t p)
{
	if (!a->scales)
		return a->scale;
	if (a->scale_dtype == HZ_F32)
		return ((const float *)a->scales)[p];
	return a->scale_dtype == HZ_E8M0 ? hzi_decode_e8m0(((const uint8_t *)a->scales)[p]) :
					   hzi_decode_float(((const uint8_t *)a->scales)[p],
							    HZ_E4M3);
}

static int32_t zero_of(const struct hzi_format_args *a, int64_t p)
{
	uint16_t wide;

	if (!a->scales)
		return a->zero;
	if (hzi_format_bits(a->q_dtype) < 16)
		return hzi_format_is_signed(a->q_dtype) ? ((const int8_t *)a->zeros)[p] :
							  ((const uint8_t *)a->zeros)[p];
	memcpy(&wide, (const char *)a->zeros + 2 * p, 2);
	return hzi_decode_integer(wide, a->q_dtype);
}

/* Whether groups have an even share of the factors of a batch: the shift, or 0 */
static int group_shift(int64_t group)
{
	return group >= 16 && (group & (group - 1)) == 0 ? 63 - __builtin_clzll((uint64_t)group) : 0;
}

/* Sets b's factors and zero points for n elements from i on, from scales that are given. */
static void given_factors(const struct hzi_format_work *w, const struct hzi_format_row *row,
			  int64_t i, int64_t n, struct batch *b, struct hzi_format_codes *c)
{
	const struct hzi_format_args *a = w->a;
	const bool multiply = !a->dequantize && a->scales && a->scale_dtype == HZ_E8M0 &&
			      !a->tensor_scale;
	int64_t g = i / a->group, next = (g + 1) * a->group;
	const bool one = next >= i + n, zeros = !a->scales ? a->zero != 0 : a->zeros != NULL;
	const int shift = one ? HZI_FORMAT_ONE : group_shift(a->group);
	const int64_t step = shift == HZI_FORMAT_ONE ? n : (int64_t)1 << shift;
	int64_t k = 0;

	for (int64_t j = 0; j < n; j += step, k++) {
		float s;

		if (i + j >= next) {
			g++;
			next += a->group;
		} else if (j > 0 && shift == 0) {
			b->factor[k] = b->factor[k - 1];
			b->zero[k] = b->zero[k - 1];
			continue;
		}
		s = scale_at(a, row->p + g);
		if (multiply)
			s = hzi_inverse_e8m0(((const uint8_t *)a->scales)[row->p + g]);
		else if (!a->dequantize && a->tensor_scale)
			s *= *a->tensor_scale;
		b->factor[k] = s;
		b->zero[k] = zeros ? zero_of(a, row->p + g) : 0;
	}
	pad(b->factor, b->zero, k);
	c->shift = shift;
	c->divide = !multiply;
	c->zero = zeros ? b->zero : NULL;
	c->factor = b->factor;
	c->tensor = a->tensor_scale ? *a->tensor_scale : 1;
}

static void random_numbers(const struct hzi_format_args *a, const struct hzi_format_row *row,
			   int64_t i, int64_t n, struct batch *b)
{
	for (int64_t j = 0; j < n; j++)
		b->random[j] = hzi_uniform(a->seed, (uint64_t)(row->r + i + j));
	memset(b->random + n, 0, sizeof(*b->random) * HZI_FORMAT_PAD);
}

static void load_batch(const struct hzi_format_work *w, const struct hzi_format_row *row, int64_t i,
		       int64_t n, int64_t group, uint32_t *amax, struct batch *b)
{
	const int64_t size = dtype_bytes(row->x_dtype);
	const char *x = row->x + i * row->x_step * size;

	if (row->x_step != 1) {
		copy_strided(b->gather, 1, x, row->x_step, n, size);
		x = b->gather;
	}
	w->kern->load(&(struct hzi_format_load){
		.x = x, .t = b->t, .amax = amax, .count = n, .group = group,
		.x_dtype = row->x_dtype, .round_to = w->a->round_to});
	memset(b->t + n, 0, sizeof(*b->t) * HZI_FORMAT_PAD);
}

/* Encodes b->t, or decodes to it, with the factors in *c. */
static void run_codes(const struct hzi_format_work *w, const struct hzi_format_row *row, int64_t i,
		      int64_t n, struct batch *b, struct hzi_format_codes *c)
{
	const struct hzi_format_args *a = w->a;
	const int64_t size = (int64_t)hz_dtype_size(a->q_dtype);
	char *q = row->q + i * a->q_step * hzi_format_bits(a->q_dtype) / 8;

	c->t = b->t;
	c->q = a->q_step == 1 ? q : b->q;
	c->count = n;
	c->q_dtype = a->q_dtype;
	c->low = a->low;
	c->high = a->high;
	if (a->dequantize) {
		if (a->q_step != 1)
			copy_strided(b->q, 1, q, a->q_step, n, size);
		w->kern->decode(c);
		return;
	}
	if (a->stochastic) {
		random_numbers(a, row, i, n, b);
		c->random = b->random;
	}
	w->kern->encode(c);
	if (a->q_step != 1)
		copy_strided(q, a->q_step, b->q, 1, n, size);
}

static void dequantize_batch(const struct hzi_format_work *w, const struct hzi_format_row *row,
			     int64_t i, int64_t n, struct batch *b)
{
	const int64_t size = dtype_bytes(row->x_dtype);
	char *x = row->x + i * row->x_step * size;
	struct hzi_format_codes c = {0};

	given_factors(w, row, i, n, b, &c);
	run_codes(w, row, i, n, b, &c);
	w->kern->store(b->t, row->x_step == 1 ? x : b->gather, n, row->x_dtype);
	if (row->x_step != 1)
		copy_strided(x, row->x_step, b->gather, 1, n, size);
}

/*
 * Dequantizes MXFP4, MXFP8 or NVFP4 without a pass through f32; returns false where that cannot be
 * done, with nothing or some of it done.
 */
static bool dequantize_blocks(const struct hzi_format_work *w, const struct hzi_format_row *row,
			      int64_t i, int64_t n)
{
	const struct hzi_format_args *a = w->a;
	const bool mx = a->scale_dtype == HZ_E8M0 && a->group == 32;
	const bool nv = a->scale_dtype == HZ_E4M3 && a->group == 16 && a->q_dtype == HZ_E2M1X2;
	char *x = row->x + i * dtype_bytes(row->x_dtype);

	if (!w->kern->values || !a->scales || !(mx || nv) || !hzi_format_is_float(a->q_dtype) ||
	    row->x_step != 1 || a->q_step != 1 || n % 32)
		return false;
	return w->kern->values(&(struct hzi_format_values){
		.q = (const int8_t *)row->q + i * hzi_format_bits(a->q_dtype) / 8,
		.scales = (const uint8_t *)a->scales + row->p + i / a->group, .x = x,
		.groups = n / a->group, .q_dtype = a->q_dtype, .x_dtype = row->x_dtype,
		.tensor = a->tensor_scale ? *a->tensor_scale : 1, .nv = nv,
		.stream = w->stream && (uintptr_t)x % 64 == 0});
}

/* HZ_SCALE_NV46: replaces the scale of 6 by that of 4 if the squared error of that is less. */
static void choose_nv46(const struct hzi_format_work *w, int64_t n, int64_t group, struct batch *b)
{
	for (int64_t g = 0; g * group < n; g++) {
		const float base = hzi_bits_float(b->amax[g]) / 6.0f * w->t.s * 1.5f;
		float factor[2] = {b->group_factor[g], 0}, error[2] = {0, 0};
		uint32_t bits[2] = {b->bits[g], hzi_scale_nv(base, w->t.p, &factor[1])};

		for (int k = 0; k < 2; k++) {
			const float d = hzi_decode_float(bits[k], HZ_E4M3);

			for (int64_t j = g * group; j < min_i64(n, (g + 1) * group); j++)
				error[k] += hzi_nv46_error(
					b->t[j],
					hzi_encode_float(b->t[j] * factor[k], HZ_E2M1X2, -1), d,
					w->t.most);
		}
		if (error[1] < error[0]) {
			b->bits[g] = bits[1];
			b->group_factor[g] = factor[1];
		}
	}
}

/* Chooses and stores the scales of groups with the largest magnitudes b->amax. */
static void choose_scales(const struct hzi_format_work *w, const struct hzi_format_row *row,
			  int64_t i, int64_t n, int64_t group, struct batch *b)
{
	const struct hzi_format_args *a = w->a;
	const int64_t groups = ceil_div(n, group), p = row->p + i / a->group;

	w->kern->scales(&(struct hzi_format_scales){
		.amax = b->amax, .bits = b->bits, .factor = b->group_factor, .count = groups,
		.q_dtype = a->q_dtype, .rule = a->rule, .t = w->t});
	if (a->rule == HZ_SCALE_NV46)
		choose_nv46(w, n, group, b);
	if (a->scale_dtype == HZ_F32) {
		memcpy((float *)a->scales + p, b->bits, (size_t)groups * sizeof(*b->bits));
		return;
	}
	for (int64_t g = 0; g < groups; g++)
		((uint8_t *)a->scales)[p + g] = (uint8_t)b->bits[g];
}

static void chosen_factors(const struct hzi_format_work *w, int64_t n, int64_t group,
			   struct batch *b, struct hzi_format_codes *c)
{
	c->divide = w->a->rule == HZ_SCALE_AMAX;
	c->shift = n <= group ? HZI_FORMAT_ONE : group_shift(group);
	c->factor = b->group_factor;
	pad(b->group_factor, NULL, ceil_div(n, group));
	if (c->shift)
		return;
	for (int64_t j = 0; j < n; j++)
		b->factor[j] = b->group_factor[j / group];
	pad(b->factor, NULL, n);
	c->factor = b->factor;
}

/* Whether the elements of a row are contiguous bfloat16 numbers, which need no rounding */
static bool is_bf16(const struct hzi_format_args *a, const struct hzi_format_row *row)
{
	return row->x_dtype == HZ_BF16 && row->x_step == 1 &&
	       (a->round_to == 0 || a->round_to == HZ_BF16);
}

/* amax alone, of n such elements from i on */
static void load_amax(const struct hzi_format_work *w, const struct hzi_format_row *row, int64_t i,
		      int64_t n, int64_t group, uint32_t *amax)
{
	w->kern->load(&(struct hzi_format_load){
		.x = row->x + 2 * i, .amax = amax, .count = n, .group = group,
		.x_dtype = HZ_BF16});
}

/* Whether a batch is encoded from x itself: struct hzi_format_codes */
static bool reads_bf16(const struct hzi_format_args *a, const struct hzi_format_row *row, int64_t n)
{
	return is_bf16(a, row) && a->q_step == 1 && hzi_format_is_float(a->q_dtype) &&
	       !a->stochastic && a->rule != HZ_SCALE_AMAX && a->rule != HZ_SCALE_NV46 &&
	       group_shift(a->group) && n % a->group == 0 && n % HZI_FORMAT_STEP == 0;
}

/* Whether mx() or nv(), if they support the call, read x itself and not a batch of its numbers */
static bool in_place(const struct hzi_format_args *a, const struct hzi_format_row *row)
{
	return row->x_step == 1 && (is_bf16(a, row) || (a->scale_dtype == HZ_E4M3 &&
							row->x_dtype == HZ_F32 && !a->round_to));
}

/*
 * MXFP4, MXFP8 and NVFP4 in 16-bit lanes, from x itself if that is possible, else from a batch;
 * returns false where that cannot be done, with nothing or some of it done.
 */
static bool choose_blocks(const struct hzi_format_work *w, const struct hzi_format_row *row,
			  int64_t i, int64_t n, struct batch *b)
{
	const struct hzi_format_args *a = w->a;
	const bool bf16 = is_bf16(a, row);
	const bool f32 = a->scale_dtype == HZ_E4M3 && !bf16 && a->round_to != HZ_BF16;
	const void *x = row->x + i * dtype_bytes(row->x_dtype);
	struct hzi_format_blocks blocks = {
		.q = row->q + i * hzi_format_bits(a->q_dtype) / 8,
		.scales = (uint8_t *)a->scales + row->p + i / a->group, .groups = n / a->group,
		.q_dtype = a->q_dtype, .rule = a->rule, .f32 = f32,
		.fetch = in_place(a, row) && !row->cached, .t = w->t, .cells = w->cells};

	if (!hzi_format_in_blocks(w, bf16 || f32) || n % 32 || row->x_step != 1)
		return false;
	if (f32 && !in_place(a, row)) {
		load_batch(w, row, i, n, BATCH, NULL, b);
		x = b->t;
	} else if (!in_place(a, row)) {
		w->kern->to_bf16(&(struct hzi_format_load){
			.x = x, .count = n, .x_dtype = row->x_dtype, .round_to = a->round_to,
			.fetch = !row->cached}, b->half);
		x = b->half;
	}
	blocks.x = x;
	blocks.stream = w->stream && (uintptr_t)blocks.q % 64 == 0;
	return a->scale_dtype == HZ_E8M0 ? w->kern->mx(&blocks) : w->kern->nv(&blocks);
}

/* Groups that a batch holds; see hzi_cpu_format_part(). */
static void choose_batch(const struct hzi_format_work *w, const struct hzi_format_row *row,
			 int64_t i, int64_t n, struct batch *b)
{
	struct hzi_format_codes c = {0};

	if (choose_blocks(w, row, i, n, b))
		return;
	memset(b->amax, 0, sizeof(*b->amax) * (size_t)ceil_div(n, w->a->group));
	if (reads_bf16(w->a, row, n)) {
		c.x = (const uint16_t *)(const void *)row->x + i;
		load_amax(w, row, i, n, w->a->group, b->amax);
	} else {
		load_batch(w, row, i, n, w->a->group, b->amax, b);
	}
	choose_scales(w, row, i, n, w->a->group, b);
	chosen_factors(w, n, w->a->group, b, &c);
	run_codes(w, row, i, n, b, &c);
}

/* A longer group is read twice. */
static void choose_long(const struct hzi_format_work *w, const struct hzi_format_row *row,
			int64_t i, int64_t n, struct batch *b)
{
	b->amax[0] = 0;
	for (int64_t j = 0; j < n; j += BATCH)
		load_batch(w, row, i + j, min_i64(BATCH, n - j), BATCH, b->amax, b);
	choose_scales(w, row, i, n, n, b);
	for (int64_t j = 0; j < n; j += BATCH) {
		const int64_t count = min_i64(BATCH, n - j);
		struct hzi_format_codes c = {0};

		load_batch(w, row, i + j, count, BATCH, NULL, b);
		chosen_factors(w, count, n, b, &c);
		run_codes(w, row, i + j, count, b, &c);
	}
}

void hzi_cpu_format_part(const struct hzi_format_work *w, const struct hzi_format_row *row,
			 int64_t i, int64_t n)
{
	const struct hzi_format_args *a = w->a;
	const int64_t batch = !a->chosen || w->most ? BATCH :
			      a->group > BATCH ? a->group : BATCH / a->group * a->group;
	struct batch b;

	if (a->dequantize && dequantize_blocks(w, row, i, n))
		return;
	if (a->chosen && !w->most && in_place(a, row) && choose_blocks(w, row, i, n, &b))
		return;
	for (int64_t j = 0; j < n; j += batch) {
		const int64_t count = min_i64(batch, n - j);

		if (w->most && is_bf16(a, row) && count % 16 == 0)
			load_amax(w, row, i + j, count, count, w->most);
		else if (w->most)
			load_batch(w, row, i + j, count, BATCH, w->most, &b);
		else if (a->dequantize)
			dequantize_batch(w, row, i + j, count, &b);
		else if (a->chosen && count <= BATCH)
			choose_batch(w, row, i + j, count, &b);
		else if (a->chosen)
			choose_long(w, row, i + j, count, &b);
		else {
			struct hzi_format_codes c = {0};

			load_batch(w, row, i + j, count, BATCH, NULL, &b);
			given_factors(w, row, i + j, count, &b, &c);
			run_codes(w, row, i + j, count, &b, &c);
		}
	}
}

/*
 * The bits of the largest bfloat16 number whose product with the factor rounds to a code below that
 * one, 1 .. 7
 */
static int nv_limit(float factor, int code)
{
	static const float bound[] = {0, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
	int m = (int)(hzi_float_bits(bound[code] / factor) >> 16) + 1;

	/* A tie is rounded to the even code. */
	for (;; m--) {
		const float t = hzi_bits_float((uint32_t)m << 16) * factor;

		if (code % 2 ? t <= bound[code] : t < bound[code])
			return m;
	}
}

/* Returns false if there are none: factors or numbers might be subnormal or Inf. */
static bool nv_cells(int32_t rule, float p, struct hzi_nv_cells *c)
{
	static const int cell_of_code[] = {0, 0, 3, 4, 5, 6, 7, 8};
	int base[8];

	if (!(p >= 0x1p-100f && p <= 0x1p100f))
		return false;
	memset(c->limit, 63, sizeof(c->limit));
	for (int r = 0; r < 8; r++) {
		const float d = 1 + (float)r / 8;
		const float factor = rule == HZ_SCALE_NV_TORCHAO ? 1 / p / d : 1 / (d * p);

		base[r] = nv_limit(factor, 3) - 308;
		for (int code = 1; code < 8; code++)
			c->limit[16 * r + cell_of_code[code]] =
				(uint8_t)((nv_limit(factor, code) - base[r]) % 64);
	}
	c->base[0] = 0x7fff7fff;	/* No number of such a group is beyond it but has code 0. */
	c->row[0] = 0;
	for (uint32_t s = 1; s < 128; s++) {
		const uint32_t bits = hzi_float_bits(hzi_decode_float(s, HZ_E4M3));

		c->row[s] = bits >> 16 & 0x70;
		c->base[s] = (uint32_t)(base[c->row[s] / 16] + ((int)(bits >> 23) - 127) * 128) *
			     0x10001;
	}
	return true;
}

void hzi_cpu_format_tensor(struct hzi_format_work *w, uint32_t most, struct hzi_nv_cells *cells)
{
	const struct hzi_format_args *a = w->a;

	w->t = hzi_format_tensor(a->tensor_scale, a->new_tensor_scale != NULL, a->rule, most);
	if (a->new_tensor_scale)
		*a->new_tensor_scale = w->t.p;
	w->cells = a->scale_dtype == HZ_E4M3 && nv_cells(a->rule, w->t.p, cells) ? cells : NULL;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

struct job {
	struct hzi_format_work w;
	int64_t piece, per_row;
};

static void units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;
	const struct hzi_format_args *a = job->w.a;
	struct hzi_format_work w = job->w;
	uint32_t most = 0;

	(void)thread;
	if (w.most)
		w.most = &most;
	for (int64_t u = begin; u < end; u++) {
		const int64_t item = u / job->per_row, i = u % job->per_row * job->piece;
		const struct hzi_format_row row = {
			.x = (char *)a->x + item_offset(a->ndim, a->shape, a->x_stride, item) *
						    dtype_bytes(a->x_dtype),
			.q = (char *)a->q + item_offset(a->ndim, a->shape, a->q_stride, item) *
						    (int64_t)hz_dtype_size(a->q_dtype),
			.x_dtype = a->x_dtype, .x_step = a->x_step,
			.p = item_offset(a->ndim, a->shape, a->p_stride, item),
			.r = item_offset(a->ndim, a->shape, a->r_stride, item),
		};

		hzi_cpu_format_part(&w, &row, i, min_i64(job->piece, a->n - i));
	}
	if (w.most)
		hzi_cpu_format_most(job->w.most, most);
	if (w.stream)
		w.kern->stream_end();
}

const char *hzi_cpu_formats_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	return !a->format ? "u8 or s8 by given scales" : a->rotated ? "there is a transform" : NULL;
}

int hzi_cpu_formats(struct hz_context *ctx, const void *args)
{
	const struct hzi_format_args *a = ((const struct hzi_codes_args *)args)->format;
	const int64_t rows = item_count(a->ndim, a->shape);
	const int64_t bytes = rows * a->n * (1 + dtype_bytes(a->x_dtype));
	const int threads = hzi_threads(ctx, bytes);
	struct job job = {
		.w = {.kern = hzi_quantize_kern + ctx->level, .a = a,
		      .stream = bytes > STREAM_BYTES},
		.piece = !a->chosen ? PIECE :
			 a->group > PIECE ? a->group : PIECE / a->group * a->group,
	};
	struct hzi_nv_cells cells;
	uint32_t most = 0;

	if (a->new_tensor_scale) {
		job.w.most = &most;
		job.per_row = ceil_div(a->n, job.piece);
		hzi_parallel(ctx, threads, units, &job, rows * job.per_row);
		job.w.most = NULL;
	}
	hzi_cpu_format_tensor(&job.w, most, &cells);
	job.per_row = ceil_div(a->n, job.piece);
	hzi_parallel(ctx, threads, units, &job, rows * job.per_row);
	return HZ_OK;
}
