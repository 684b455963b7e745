/*
 * group.c - linear layers with group-wise quantized weights on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * W is packed, by this call unless the caller has done so. Rows of x become padded codes with sums
 * and scales, or f32. Then each thread has blocks of rows for panels of 16 columns of W.
 */
#include <config.h>

#include <string.h>

#include "cpu/qgemm/qgemm.h"
#include "cpu/quantize/kern.h"

#define ROWS 64			/* of x at a time: a chunk of their codes stays in L1 */
#define CHUNK HZI_GROUP_CHUNK

/* ---- Packing --------------------------------------------------------------------------------- */

struct pack {
	const struct hzi_group_layout *l;
	const struct hzi_group_weights *w;
	char *data;
};

static void pack_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pack *p = data;
	const struct hzi_group_layout *l = p->l;
	const int words = hzi_group_is_4_bit(l->kind) ? 4 : 8;

	(void)thread;
	for (int64_t panel = begin; panel < end; panel++) {
		const int64_t first = panel * HZI_GROUP_COLUMNS;
		const int64_t at = panel * l->groups * HZI_GROUP_COLUMNS;
		char *to = p->data + panel * l->panel_bytes;
		float *scale = (float *)(void *)(p->data + l->scale_at) + at;
		int32_t *zero = (int32_t *)(void *)(p->data + l->zero_at) + at;

		for (int64_t step = 0; to < p->data + (panel + 1) * l->panel_bytes; step++) {
			for (int i = 0; i < words * HZI_GROUP_COLUMNS; i++, to += 4) {
				const uint32_t word =
					hzi_group_word(p->w, l, step, first + i % HZI_GROUP_COLUMNS,
						       i / HZI_GROUP_COLUMNS);

				memcpy(to, &word, 4);
			}
		}
		for (int64_t i = 0; i < l->groups * HZI_GROUP_COLUMNS; i++) {
			const int64_t group = i / HZI_GROUP_COLUMNS, j = first + i % HZI_GROUP_COLUMNS;
			const bool inside = group < p->w->groups && j < l->n;

			scale[i] = inside ? hzi_group_packed_scale(p->w, group, j) : 0;
			if (l->zero_at)
				zero[i] = inside ? hzi_group_packed_zero(p->w, l->zero, group, j) : 0;
		}
	}
}

static void pack(struct hz_context *ctx, const struct hzi_group_layout *l,
		 const struct hzi_group_weights *w, void *data)
{
	struct pack p = {.l = l, .w = w, .data = data};

	hzi_parallel(ctx, hzi_threads(ctx, 8 * l->bytes), pack_panels, &p, l->panels);
}

HZI_NO_WORKSPACE(cpu, qlinear_group_pack)

int hzi_cpu_qlinear_group_pack(struct hz_context *ctx, const struct hzi_qlinear_group_pack_args *a)
{
	pack(ctx, &a->l, &a->w, a->data);
	return HZ_OK;
}

/* ---- x --------------------------------------------------------------------------------------- */

struct layer {
	const struct hzi_qlinear_group_args *a;
	const struct hzi_qgemm_kern *kern;
	const struct hzi_quantize_kern *quantize;
	const char *packed;
	char *x;			/* codes, or f32 */
	float *x_scale;
	int32_t *x_sum;
	int64_t padded;			/* rows: one, or whole HZI_GROUP_ROWS */
	int64_t k, x_bytes;		/* of a row, in whole steps */
	int64_t unit, units, x_scales;	/* of k; of a row */
};

/* Fills *l and returns the bytes of the workspace, which begins there. */
static size_t layer_of(const struct hzi_qlinear_group_args *a, char *workspace, struct layer *l)
{
	char *end = workspace;

	*l = (struct layer){
		.a = a, .padded = a->rows == 1 ? 1 : hzi_round_up(a->rows, HZI_GROUP_ROWS),
		.k = a->l.steps * HZI_GROUP_STEP, .unit = hzi_group_unit(a->l.group, a->by_32),
		.x_scales = a->by_32 ? a->l.steps : 1,
	};
	l->x_bytes = a->integer ? l->k : 4 * l->k;
	l->units = ceil_div(l->k, l->unit);
	l->packed = a->packed ? a->packed : take(&end, a->l.bytes);
	l->x = take(&end, l->padded * l->x_bytes);
	l->x_scale = take(&end, a->integer ? 4 * l->padded * l->x_scales : 0);
	l->x_sum = take(&end, a->integer ? 4 * l->padded * l->units : 0);
	return (size_t)(end - workspace);
}

/* Elements i .. i + n - 1 of a row of x: in place if they are contiguous, else copied to buffer */
static const char *part_of(const struct hzi_qlinear_group_args *a, const char *row, int64_t i,
			   int64_t n, void *buffer)
{
	const int64_t size = dtype_bytes(a->x_dtype);

	if (a->x_k == 1)
		return row + i * size;
	copy_strided(buffer, 1, row + i * a->x_k * size, a->x_k, n, size);
	return buffer;
}

/* Quantizes a row to codes; as hz_choose_qparams() and hz_quantize() do it. */
static void quantize_row(const struct layer *l, const char *row, int8_t *codes, float *scale)
{
	const struct hzi_qlinear_group_args *a = l->a;
	const int64_t group = a->by_32 ? HZI_GROUP_STEP : CHUNK + 1;
	float lo[CHUNK / HZI_GROUP_STEP], hi[CHUNK / HZI_GROUP_STEP], buffer[CHUNK];
	uint8_t zeros[CHUNK / HZI_GROUP_STEP];

	*scale = 1;
	for (int pass = 0; pass < 2; pass++) {
		memset(lo, 0, sizeof(lo));
		memset(hi, 0, sizeof(hi));
		for (int64_t i = 0; i < a->l.k; i += CHUNK) {
			const int64_t n = min_i64(CHUNK, a->l.k - i);
			const char *x = part_of(a, row, i, n, buffer);
			const struct hzi_range range = {
				.x = x, .lo = lo, .hi = hi, .count = n, .group = group,
				.x_dtype = a->x_dtype,
			};
			const struct hzi_params params = {
				.lo = lo, .hi = hi, .zero = zeros, .q_dtype = HZ_S8,
				.scale = scale + (a->by_32 ? i / HZI_GROUP_STEP : 0),
				.count = a->by_32 ? ceil_div(n, HZI_GROUP_STEP) : 1,
				.flags = HZ_QPARAMS_SYMMETRIC,
			};
			const struct hzi_quantize_codes q = {
				.x = (void *)(uintptr_t)x, .q = codes + i, .scales = params.scale,
				.zeros = zeros, .count = n, .group = group,
				.x_dtype = a->x_dtype, .q_dtype = HZ_S8,
			};

			if (pass == 0 || a->by_32)
				l->quantize->range(&range);
			if (a->by_32 || (pass == 0 && i + n == a->l.k))
				l->quantize->params(&params);
			if (pass == 1 || a->by_32)
				l->quantize->quantize(&q);
			if (a->by_32) {
				memset(lo, 0, sizeof(lo));
				memset(hi, 0, sizeof(hi));
			}
		}
		if (a->by_32)
			break;
	}
}

static void prepare_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct layer *l = data;
	const struct hzi_qlinear_group_args *a = l->a;
	const int32_t times = a->l.zero_at ? 1 : a->l.zero;

	(void)thread;
	for (int64_t r = begin; r < end; r++) {
		char *to = l->x + r * l->x_bytes;
		int8_t *codes = (int8_t *)to;
		float *scale = l->x_scale + r * l->x_scales;
		int32_t *sum = l->x_sum + r * l->units;
		const bool inside = r < a->rows;
		const int64_t used = inside ? a->l.k * (a->integer ? 1 : 4) : 0;
		const char *row = inside ? bytes_at(a->x, item_offset(a->ndim, a->shape, a->x_stride,
								      r) * dtype_bytes(a->x_dtype))
					 : NULL;

		memset(to + used, 0, (size_t)(l->x_bytes - used));
		for (int64_t i = 0; inside && !a->integer && i < a->l.k; i += CHUNK) {
			const int64_t n = min_i64(CHUNK, a->l.k - i);
			float buffer[CHUNK];
			uint32_t most = 0;
			const struct hzi_format_load load = {
				.x = part_of(a, row, i, n, buffer), .amax = &most,
				.t = (float *)(void *)to + i, .count = n, .group = CHUNK + 1,
				.x_dtype = a->x_dtype,
			};

			l->quantize->load(&load);
		}
		if (!a->integer)
			continue;
		if (!inside) {
			memset(scale, 0, 4 * (size_t)l->x_scales);
		} else if (a->x_dtype == HZ_S8) {
			copy_strided(codes, 1, row, a->x_k, a->l.k, 1);
			for (int64_t i = 0; i < l->x_scales; i++)
				scale[i] = a->x_scale ? a->x_scale[r * l->x_scales + i] : 1;
		} else {
			quantize_row(l, row, codes, scale);
		}
		for (int64_t u = 0; u < l->units; u++) {
			int32_t s = 0;

			for (int64_t i = u * l->unit; i < min_i64((u + 1) * l->unit, l->k); i++)
				s += codes[i];
			sum[u] = s * times;
		}
	}
}

/* ---- Multiplication -------------------------------------------------------------------------- */

/* y of a row and a panel from its sums */
static void finish(const struct layer *l, int64_t r, int64_t first, float *sum)
{
	const struct hzi_qlinear_group_args *a = l->a;
	const int64_t n = min_i64(HZI_GROUP_COLUMNS, a->l.n - first);
	const int64_t size = dtype_bytes(a->y_dtype);
	char *y = (char *)a->y + (item_offset(a->ndim, a->shape, a->y_stride, r) + first * a->y_n) *
				 size;
	float converted[HZI_GROUP_COLUMNS];

	for (int64_t j = 0; j < n; j++) {
		float v = sum[j];

		if (a->bias)
			v += a->bias[first + j];
		sum[j] = v < a->low ? a->low : v > a->high ? a->high : v;
	}
	if (a->y_n == 1) {
		l->quantize->store(sum, y, n, a->y_dtype);
	} else {
		l->quantize->store(sum, converted, n, a->y_dtype);
		copy_strided(y, a->y_n, converted, 1, n, size);
	}
}

static int shift_of(int64_t size, int64_t step)
{
	int shift = 0;

	while (step << shift < size)
		shift++;
	return shift;
}

/* Blocks of rows times panels, the panels of a block of rows first */
static void multiply(void *data, int thread, int64_t begin, int64_t end)
{
	const struct layer *l = data;
	const struct hzi_qlinear_group_args *a = l->a;
	const struct hzi_group_layout *w = &a->l;
	const bool by_16 = !a->integer || l->unit == 16;
	const int64_t step = by_16 ? 16 : HZI_GROUP_STEP;
	const bool columns = w->groups == 1;
	struct hzi_group_mul m = {
		.unit = l->unit / step, .x_ld = l->k, .x_scale_ld = l->x_scales,
		.x_sum_ld = l->units, .rows = l->padded == 1 ? 1 : HZI_GROUP_ROWS, .kind = w->kind,
		.zero_all = w->zero, .floats = !a->integer, .by_16 = by_16,
		.group_shift = columns ? 62 : shift_of(w->group, step),
		.x_scale_shift = a->by_32 ? shift_of(HZI_GROUP_STEP, l->unit) : 62,
	};
	float sum[ROWS][HZI_GROUP_COLUMNS] __attribute__((aligned(64)));

	(void)thread;
	for (int64_t item = begin; item < end; item++) {
		const int64_t first = item / w->panels * ROWS, panel = item % w->panels;
		const int64_t rows = min_i64(ROWS, l->padded - first);
		const char *codes = l->packed + panel * w->panel_bytes;

		memset(sum, 0, sizeof(sum));
		for (int64_t k = 0; k < w->k; k += CHUNK) {
			const int64_t at = (panel * w->groups + (columns ? 0 : k / w->group)) *
					   HZI_GROUP_COLUMNS;

			m.steps = ceil_div(min_i64(CHUNK, w->k - k), step);
			m.codes = (const uint8_t *)codes + k * HZI_GROUP_COLUMNS /
						   (hzi_group_is_4_bit(w->kind) ? 2 : 1);
			m.scale = (const float *)(const void *)(l->packed + w->scale_at) + at;
			m.zero = w->zero_at ? (const int32_t *)(const void *)
						      (l->packed + w->zero_at) + at : NULL;
			for (int64_t r = 0; r < rows; r += m.rows) {
				m.x = l->x + (first + r) * l->x_bytes + k * l->x_bytes / l->k;
				m.x_scale = l->x_scale + (first + r) * l->x_scales +
					    (a->by_32 ? k / HZI_GROUP_STEP : 0);
				m.x_sum = l->x_sum + (first + r) * l->units + k / l->unit;
				m.y = sum[r];
				l->kern->group(&m);
			}
		}
		for (int64_t r = 0; r < rows && first + r < a->rows; r++)
			finish(l, first + r, panel * HZI_GROUP_COLUMNS, sum[r]);
	}
}

size_t hzi_cpu_qlinear_group_workspace(const struct hz_context *ctx,
				       const struct hzi_qlinear_group_args *a)
{
	struct layer l;

	(void)ctx;
	return layer_of(a, (char *)&l, &l);
}

int hzi_cpu_qlinear_group(struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	const int64_t blocks = ceil_div(a->rows, ROWS);
	struct layer l;

	layer_of(a, ctx->workspace, &l);
	l.kern = hzi_qgemm_kern + ctx->level;
	l.quantize = hzi_quantize_kern + ctx->level;
	if (!a->packed)
		pack(ctx, &a->l, &a->w, (char *)(uintptr_t)l.packed);
	hzi_parallel(ctx, hzi_threads(ctx, l.padded * l.k * 8), prepare_rows, &l, l.padded);
	hzi_parallel(ctx, hzi_threads(ctx, a->l.bytes + a->rows * l.k * a->l.n / MACS_PER_BYTE),
		     multiply, &l, a->l.panels * blocks);
	return HZ_OK;
}
