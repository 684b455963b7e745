/*
 * group.c - linear layers with group-wise quantized weights on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Rows of x become padded codes with sums and scales, or f32. Then each thread has blocks of rows
 * for panels of 16 columns of W, which it packs itself, into the caches, unless the caller has done so.
 * Rows of codes that are contiguous are only transposed, by four bytes at a time: with codes of 4
 * bits x is in the order that these have then, see permute().
 */
#include <config.h>

#include <string.h>

#include "cpu/qgemm/qgemm.h"
#include "cpu/quantize/kern.h"

#define ROWS 64			/* of x at a time: a chunk of their codes stays in L1 */
#define CHUNK HZI_GROUP_CHUNK
#define SCALES 64		/* of a column that are converted at a time */

/* ---- Packing --------------------------------------------------------------------------------- */

/* W of one panel */
struct panel {
	char *codes;
	float *scale;
	int32_t *zero;			/* NULL: there are none */
};

static struct panel panel_of(const struct hzi_group_layout *l, const char *packed, int64_t panel)
{
	char *const data = (char *)(uintptr_t)packed;
	const int64_t at = panel * l->groups * HZI_GROUP_COLUMNS * 4;

	return (struct panel){
		.codes = data + panel * l->panel_bytes,
		.scale = (float *)(void *)(data + l->scale_at + at),
		.zero = l->zero_at ? (int32_t *)(void *)(data + l->zero_at + at) : NULL,
	};
}

static void pack_scales(const struct hzi_group_layout *l, const struct hzi_group_weights *w,
			int64_t first, float *to)
{
	for (int64_t i = 0; i < l->groups * HZI_GROUP_COLUMNS; i++) {
		const int64_t group = i / HZI_GROUP_COLUMNS, j = first + i % HZI_GROUP_COLUMNS;

		to[i] = group < w->groups && j < l->n ? hzi_group_packed_scale(w, group, j) : 0;
	}
}

static void pack_zeros(const struct hzi_group_layout *l, const struct hzi_group_weights *w,
		       int64_t first, int32_t *to)
{
	for (int64_t i = 0; to && i < l->groups * HZI_GROUP_COLUMNS; i++) {
		const int64_t group = i / HZI_GROUP_COLUMNS, j = first + i % HZI_GROUP_COLUMNS;

		to[i] = group < w->groups && j < l->n ?
			hzi_group_packed_zero(w, l->zero, group, j) : 0;
	}
}

static void pack_panel(const struct hzi_group_layout *l, const struct hzi_group_weights *w,
		       int64_t panel, const struct panel *to)
{
	const int words = hzi_group_is_4_bit(l->kind) ? 4 : 8;
	const int64_t first = panel * HZI_GROUP_COLUMNS;
	char *code = to->codes;

	for (int64_t step = 0; code < to->codes + l->panel_bytes; step++) {
		for (int i = 0; i < words * HZI_GROUP_COLUMNS; i++, code += 4) {
			const uint32_t word = hzi_group_word(w, l, step,
							     first + i % HZI_GROUP_COLUMNS,
							     i / HZI_GROUP_COLUMNS);

			memcpy(code, &word, 4);
		}
	}
	pack_scales(l, w, first, to->scale);
	pack_zeros(l, w, first, to->zero);
}

static void pack_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_qlinear_group_pack_args *a = data;

	(void)thread;
	for (int64_t panel = begin; panel < end; panel++) {
		const struct panel to = panel_of(&a->l, a->data, panel);

		pack_panel(&a->l, &a->w, panel, &to);
	}
}

HZI_NO_WORKSPACE(cpu, qlinear_group_pack)

int hzi_cpu_qlinear_group_pack(struct hz_context *ctx, const struct hzi_qlinear_group_pack_args *a)
{
	struct hzi_qlinear_group_pack_args job = *a;

	hzi_parallel(ctx, hzi_threads(ctx, 8 * a->l.bytes), pack_panels, &job, a->l.panels);
	return HZ_OK;
}

/* ---- x --------------------------------------------------------------------------------------- */

struct layer {
	const struct hzi_qlinear_group_args *a;
	const struct hzi_qgemm_kern *kern;
	const struct hzi_quantize_kern *quantize;
	bool contiguous;		/* W is unpacked, its rows are contiguous, of whole steps */
	char *x;			/* codes, or f32 */
	float *x_scale;
	int32_t *x_sum;
	int64_t padded;			/* rows: one, or whole HZI_GROUP_ROWS */
	int64_t k, x_bytes;		/* of a row, in whole steps */
	int64_t unit, units, x_scales;	/* of k; of a row */
	char *panels;			/* of each thread one, scratch bytes apart */
	size_t scratch;
};

static int threads_of(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	return hzi_threads(ctx, a->l.bytes + a->rows * a->l.k * a->l.n / MACS_PER_BYTE);
}

/* Fills *l and returns the bytes of the workspace, which begins there. */
static size_t layer_of(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a,
		       char *workspace, struct layer *l)
{
	const int64_t numbers = a->l.groups * HZI_GROUP_COLUMNS * 4;
	char *end = workspace;

	*l = (struct layer){
		.a = a, .padded = a->rows == 1 ? 1 : hzi_round_up(a->rows, HZI_GROUP_ROWS),
		.k = a->l.steps * HZI_GROUP_STEP, .unit = hzi_group_unit(a->l.group, a->by_32),
		.x_scales = a->by_32 ? a->l.steps : 1,
	};
	l->x_bytes = a->integer ? l->k : 4 * l->k;
	l->units = ceil_div(l->k, l->unit);
	l->contiguous = !a->packed && a->w.w_k == 1 && a->l.k % HZI_GROUP_STEP == 0;
	l->x = take(&end, l->padded * l->x_bytes);
	l->x_scale = take(&end, a->integer ? 4 * l->padded * l->x_scales : 0);
	l->x_sum = take(&end, a->integer ? 4 * l->padded * l->units : 0);
	if (!a->packed) {
		l->scratch = round_to_lines(a->l.panel_bytes) +
			     round_to_lines(numbers) * (a->l.zero_at ? 2 : 1);
		l->panels = take(&end, threads_of(ctx, a) * (int64_t)l->scratch);
	}
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

/* Bytes 0, 2, 4, 6 */
static uint64_t even_bytes(uint64_t v)
{
	v &= 0x00ff00ff00ff00ff;
	v = (v | v >> 8) & 0x0000ffff0000ffff;
	return (v | v >> 16) & 0xffffffff;
}

/*
 * The order of each 8 elements of a row for W of 4 bits in rows as stored: a word of these has l =
 * 0, 2, 4, 6 in the low halves of its bytes, 1, 3, 5, 7 in the upper ones.
 */
static void permute(const struct layer *l, char *row)
{
	for (int64_t i = 0; i < l->k; i += 8) {
		if (l->a->integer) {
			uint64_t v;

			memcpy(&v, row + i, 8);
			v = even_bytes(v) | even_bytes(v >> 8) << 32;
			memcpy(row + i, &v, 8);
		} else {
			uint32_t v[8], to[8];

			memcpy(v, row + 4 * i, sizeof(v));
			for (int j = 0; j < 8; j++)
				to[j] = v[2 * j % 8 + j / 4];
			memcpy(row + 4 * i, to, sizeof(to));
		}
	}
}

static void prepare_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct layer *l = data;
	const struct hzi_qlinear_group_args *a = l->a;
	const int32_t times = a->l.zero_at ? 1 : a->l.zero;
	const bool permuted = l->contiguous && hzi_group_is_4_bit(a->l.kind);

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
		if (!a->integer && permuted)
			permute(l, to);
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
		if (permuted)
			permute(l, to);
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

/* Scales of 16 columns, whose groups are contiguous */
static void transpose_scales(const struct layer *l, int64_t first, float *to)
{
	const struct hzi_group_weights *w = &l->a->w;
	const int64_t size = dtype_bytes(w->scale_dtype);
	float part[HZI_GROUP_COLUMNS][SCALES];

	if (w->scale_dtype == HZ_F32 && !w->tensor_scale) {
		hzi_cpu_transpose(to, HZI_GROUP_COLUMNS,
				  (const float *)w->scales + first * w->s_n, w->s_n,
				  HZI_GROUP_COLUMNS, w->groups, 4);
		return;
	}
	for (int64_t g = 0; g < w->groups; g += SCALES) {
		const int64_t n = min_i64(SCALES, w->groups - g);

		for (int64_t j = 0; j < HZI_GROUP_COLUMNS; j++) {
			uint32_t most = 0;
			const struct hzi_format_load load = {
				.x = (const char *)w->scales + ((first + j) * w->s_n + g) * size,
				.amax = &most, .t = part[j], .count = n, .group = SCALES + 1,
				.x_dtype = w->scale_dtype,
			};

			l->quantize->load(&load);
			for (int64_t i = 0; w->tensor_scale && i < n; i++)
				part[j][i] = hzi_f32_mul(part[j][i], *w->tensor_scale);
		}
		hzi_cpu_transpose(to + g * HZI_GROUP_COLUMNS, HZI_GROUP_COLUMNS, part, SCALES,
				  HZI_GROUP_COLUMNS, n, 4);
	}
}

/* Packs a panel to the scratch of a thread, with codes in the order of permute() if contiguous */
static struct panel make_panel(const struct layer *l, int thread, int64_t panel)
{
	const struct hzi_qlinear_group_args *a = l->a;
	const struct hzi_group_weights *w = &a->w;
	const int64_t numbers = a->l.groups * HZI_GROUP_COLUMNS * 4;
	const int64_t first = panel * HZI_GROUP_COLUMNS;
	const bool is_float = w->scale_dtype == HZ_F32 || w->scale_dtype == HZ_F16 ||
			      w->scale_dtype == HZ_BF16;
	char *scratch = l->panels + (size_t)thread * l->scratch;
	struct panel to = {.codes = take(&scratch, a->l.panel_bytes)};

	to.scale = take(&scratch, numbers);
	if (a->l.zero_at)
		to.zero = take(&scratch, numbers);
	if (!l->contiguous) {
		pack_panel(&a->l, w, panel, &to);
		return to;
	}
	l->kern->group_pack(&(struct hzi_group_pack){
		.w = (const uint8_t *)w->w + first * w->w_n, .to = to.codes, .w_n = w->w_n,
		.columns = (int32_t)min_i64(HZI_GROUP_COLUMNS, a->l.n - first),
		.blocks = a->l.k / (hzi_group_is_4_bit(a->l.kind) ? 32 : 16),
		.flip = w->w_dtype == HZ_S4X2 ? 0x88888888 : w->w_dtype == HZ_S8 ? 0x80808080 : 0,
	});
	if (is_float && w->s_k == 1 && w->groups == a->l.groups &&
	    first + HZI_GROUP_COLUMNS <= a->l.n)
		transpose_scales(l, first, to.scale);
	else
		pack_scales(&a->l, w, first, to.scale);
	pack_zeros(&a->l, w, first, to.zero);
	return to;
}

/*
 * Blocks of rows times panels: the panels of a block of rows first, or the blocks of a panel that
 * is packed here
 */
static void multiply(void *data, int thread, int64_t begin, int64_t end)
{
	const struct layer *l = data;
	const struct hzi_qlinear_group_args *a = l->a;
	const struct hzi_group_layout *w = &a->l;
	const int64_t blocks = ceil_div(a->rows, ROWS);
	const bool by_16 = !a->integer || l->unit == 16;
	const int64_t step = by_16 ? 16 : HZI_GROUP_STEP;
	const bool columns = w->groups == 1;
	struct hzi_group_mul m = {
		.unit = l->unit / step, .x_ld = l->k, .x_scale_ld = l->x_scales,
		.x_sum_ld = l->units, .kind = w->kind,
		.zero_all = w->zero, .floats = !a->integer, .by_16 = by_16,
		.group_shift = columns ? 62 : shift_of(w->group, step),
		.x_scale_shift = a->by_32 ? shift_of(HZI_GROUP_STEP, l->unit) : 62,
	};
	float sum[ROWS][HZI_GROUP_COLUMNS] __attribute__((aligned(64)));
	struct panel p = {0};

	for (int64_t item = begin; item < end; item++) {
		const int64_t panel = a->packed ? item % w->panels : item / blocks;
		const int64_t first = (a->packed ? item / w->panels : item % blocks) * ROWS;
		const int64_t rows = min_i64(ROWS, a->rows - first);

		if (a->packed)
			p = panel_of(w, a->packed, panel);
		else if (item == begin || first == 0)
			p = make_panel(l, thread, panel);
		memset(sum, 0, (size_t)hzi_round_up(rows, HZI_GROUP_ROWS) * sizeof(*sum));
		for (int64_t k = 0; k < w->k; k += CHUNK) {
			const int64_t at = (columns ? 0 : k / w->group) * HZI_GROUP_COLUMNS;

			m.steps = ceil_div(min_i64(CHUNK, w->k - k), step);
			m.codes = (const uint8_t *)p.codes + k * HZI_GROUP_COLUMNS /
						   (hzi_group_is_4_bit(w->kind) ? 2 : 1);
			m.scale = p.scale + at;
			m.zero = p.zero ? p.zero + at : NULL;
			for (int64_t r = 0; r < rows; r += m.rows) {
				m.rows = rows - r > 1 ? HZI_GROUP_ROWS : 1;
				m.x = l->x + (first + r) * l->x_bytes + k * l->x_bytes / l->k;
				m.x_scale = l->x_scale + (first + r) * l->x_scales +
					    (a->by_32 ? k / HZI_GROUP_STEP : 0);
				m.x_sum = l->x_sum + (first + r) * l->units + k / l->unit;
				m.y = sum[r];
				l->kern->group(&m);
			}
		}
		for (int64_t r = 0; r < rows; r++)
			finish(l, first + r, panel * HZI_GROUP_COLUMNS, sum[r]);
	}
}

size_t hzi_cpu_qlinear_group_workspace(const struct hz_context *ctx,
				       const struct hzi_qlinear_group_args *a)
{
	struct layer l;

	return layer_of(ctx, a, (char *)&l, &l);
}

int hzi_cpu_qlinear_group(struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	const int64_t blocks = ceil_div(a->rows, ROWS);
	struct layer l;

	layer_of(ctx, a, ctx->workspace, &l);
	l.kern = hzi_qgemm_kern + ctx->level;
	l.quantize = hzi_quantize_kern + ctx->level;
	hzi_parallel(ctx, hzi_threads(ctx, l.padded * l.k * 8), prepare_rows, &l, l.padded);
	hzi_parallel(ctx, threads_of(ctx, a), multiply, &l, a->l.panels * blocks);
	return HZ_OK;
}
