/*
 * matrices.c - packing, alignment and epilogue parameters of each matrix of a batch
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Every kernel reads packed B, and A as rows of bytes aligned to 16. Operands in another layout are
 * copied to the workspace first.
 */
#include <config.h>

#include <math.h>

#include "gpu/qgemm/launch.h"

static bool is_code(int dtype)
{
	return dtype == HZ_U8 || dtype == HZ_S8;
}

int hzi_qgemm_epilogue_kind(const struct hzi_qgemm_args *t)
{
	/* There is one multiplier, whose shift the 32-bit epilogue does not support. */
	const bool bad_shift = !t->multipliers && !t->b_scales && t->mult.u &&
			 (t->mult.shift < 33 || t->mult.shift > 53);

	if (t->sum64)
		return 0;
	if (is_code(t->c_dtype))
		return t->requant == HZ_REQUANT_EXACT && !bad_shift ? HZI_EPILOGUE_CODES : 0;
	return t->c_dtype != HZ_S32 || t->identity ? HZI_EPILOGUE_VALUES : 0;
}

struct hzi_qgemm_out hzi_qgemm_make_out(const struct hzi_qgemm_args *t, const uint8_t *b)
{
	const int32_t least = t->c_dtype == HZ_S8 ? -128 : 0;
	const int32_t *b_sums = (const int32_t *)(const void *)(
		b + hzi_qgemm_packed_codes(HZI_QGEMM_LAYOUT_CUDA, t->k, t->n));
	struct hzi_qgemm_out o = {
		.c = t->c, .b_sums = b_sums, .bias = t->bias,
		.a_zeros = t->a_zeros, .b_zeros = t->b_zeros,
		.multipliers = t->multipliers, .shifts = t->shifts,
		.a_scales = t->a_scales, .b_scales = t->b_scales,
		.c_m = t->c_m, .c_n = t->c_n,
		.zero_step = (int32_t)t->zero_step, .scale_step = (int32_t)t->scale_step,
		.b_scale_step = (int32_t)t->b_scale_step,
		.m = (int32_t)t->m, .n = (int32_t)t->n, .k = (int32_t)t->k,
		.c_dtype = t->c_dtype, .bias_dtype = t->bias ? t->bias_dtype : 0,
		.a_signed = t->a_dtype == HZ_S8, .b_signed = t->b_dtype == HZ_S8,
		.a_zero = t->a_zero, .b_zero = t->b_zero + (t->b_dtype == HZ_S8 ? 128 : 0),
		.c_zero = t->c_zero, .u = t->mult.u, .shift = t->mult.shift,
		.requant = t->requant, .identity = t->identity,
		.min = t->min, .max = t->max, .fmin = t->fmin, .fmax = t->fmax,
		.a_scale = t->a_scale, .b_scale = t->b_scale, .c_scale = t->c_scale,
	};
	const int64_t size = (int64_t)hz_dtype_size(t->c_dtype);
	const bool aligned = (uintptr_t)t->c % 16 == 0 && t->c_n == 1 &&
			     (t->c_m * size % 16 == 0 || t->m == 1);

	o.a_sums = o.b_zeros || o.b_zero;
	if (aligned && !(is_code(t->c_dtype) && t->a_zeros))
		o.fast_path = hzi_qgemm_epilogue_kind(t);
	o.bounded = is_code(t->c_dtype) ? t->min > least || t->max < least + 255
					: t->fmin > -INFINITY || t->fmax < INFINITY;
	o.bias_max = t->sum64 ? 0 : (int32_t)(INT32_MAX - t->reach);
	return o;
}

/* Whether kernels can read A in place */
static bool aligned(const struct hzi_qgemm_args *t)
{
	return t->k == 0 || ((t->a_k == 1 || t->k == 1) && (uintptr_t)t->a % 16 == 0 &&
			     (t->m == 1 || (t->a_m >= t->k && t->a_m % 16 == 0)));
}

bool hzi_qgemm_all_aligned(const struct hzi_qgemm_args *t)
{
	for (int d = 0; d < t->ndim; d++) {
		if (t->a_stride[d] % 16)
			return false;
	}
	return aligned(t);
}

static int64_t aligned_bytes(const struct hzi_qgemm_args *t)
{
	return hzi_round_up(t->k, 16) * t->m;
}

struct hzi_qgemm_pack_rows hzi_qgemm_align(const struct hzi_qgemm_args *t, void *y)
{
	return (struct hzi_qgemm_pack_rows){
		.x = t->a, .y = y, .x_row = t->a_m, .x_k = t->a_k,
		.y_row = hzi_round_up(t->k, 16), .rows = t->m, .k = t->k,
		.blocks = (int32_t)hzi_qgemm_blocks(t), .y_item = aligned_bytes(t),
	};
}

size_t hzi_qgemm_workspace(const struct hzi_qgemm_args *t, bool batched, size_t *a_offset)
{
	const struct hzi_qgemm_items packs =
		hzi_qgemm_items_of(t->ndim, t->shape, t->b_stride, false);
	const struct hzi_qgemm_items items =
		hzi_qgemm_items_of(t->ndim, t->shape, t->b_stride, true);
	const int64_t pack_bytes = hzi_qgemm_packed_bytes(HZI_QGEMM_LAYOUT_CUDA, t->k, t->n);
	size_t bytes = 0;

	if (!t->packed)
		bytes += hzi_qgemm_padded((size_t)(pack_bytes * (batched ? packs.count : 1)));
	*a_offset = bytes;
	if (!hzi_qgemm_all_aligned(t))
		bytes += hzi_qgemm_padded((size_t)(aligned_bytes(t) * (batched ? items.count : 1)));
	return bytes;
}

size_t hzi_cuda_qgemm_for_each_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_call *c = args;
	size_t a_offset;

	(void)ctx;
	return hzi_qgemm_workspace(&c->t, false, &a_offset);
}

static const struct hzi_qgemm_items one_item = {.count = 1};

/* Multiplies one matrix by packed B; copies A to y if it must be aligned. */
static int multiply(struct hz_context *ctx, struct hzi_qgemm_args *t, const uint8_t *b, void *y,
		    bool early, hzi_qgemm_launch *launch)
{
	struct hzi_qgemm_out out;

	if (!aligned(t)) {
		const struct hzi_qgemm_pack_rows p = hzi_qgemm_align(t, y);

		HZ_CHECK(hzi_qgemm_launch_pack(ctx, "qgemm", p, &one_item,
					       hzi_round_up(t->m, HZI_QGEMM_N_GROUP)));
		t->a = y;
		t->a_m = p.y_row;
		t->a_k = 1;
		early = false;
	}
	if (t->m == 1)
		t->a_m = hzi_round_up(t->k, 16);
	out = hzi_qgemm_make_out(t, b);
	for (int64_t row = 0; row < t->m; row += HZI_QGEMM_ROWS_MAX) {
		struct hzi_qgemm_args part = *t;

		part.m = min_of(HZI_QGEMM_ROWS_MAX, t->m - row);
		part.a = (const char *)t->a + row * t->a_m;
		part.row_stride[HZ_MAXDIM - 1] += row;
		out.m = (int32_t)part.m;
		out.c = (char *)t->c + row * t->c_m * (int64_t)hz_dtype_size(t->c_dtype);
		out.zero_row = out.scale_row = t->row_stride[HZ_MAXDIM - 1] + row;
		out.zero_row *= t->zero_step;
		out.scale_row *= t->scale_step;
		HZ_CHECK(launch(ctx, &part, b, &out, early));
	}
	return HZ_OK;
}

int hzi_qgemm_for_each(struct hz_context *ctx, const struct hzi_qgemm_call *c,
		       hzi_qgemm_launch *launch)
{
	const struct hzi_qgemm_args *t = &c->t;
	const int64_t c_size = (int64_t)hz_dtype_size(t->c_dtype);
	const int64_t pack_bytes = hzi_qgemm_packed_bytes(HZI_QGEMM_LAYOUT_CUDA, t->k, t->n);
	int64_t index[HZ_MAXDIM] = {0}, packed = -1;
	char *const workspace = c->workspace;
	size_t a_offset;

	hzi_qgemm_workspace(t, false, &a_offset);
	do {
		const int64_t b = offset_of(index, t->b_stride, t->ndim);
		struct hzi_qgemm_args item = *t;
		const char *data = workspace;

		item.a = (const char *)t->a + offset_of(index, t->a_stride, t->ndim);
		item.c = (char *)t->c + offset_of(index, t->c_stride, t->ndim) * c_size;
		/*
		 * A batch has at most 4 dimensions, so the last entry is free for the row offset of
		 * the item.
		 */
		item.row_stride[HZ_MAXDIM - 1] = offset_of(index, t->row_stride, t->ndim);
		if (t->packed)
			data = (const char *)t->packed + b * pack_bytes;
		else if (packed != b)
			HZ_CHECK(hzi_qgemm_pack_b(ctx, "qgemm", t, (const char *)t->b + b,
						  &one_item, workspace));
		packed = b;
		HZ_CHECK(multiply(ctx, &item, (const uint8_t *)data, workspace + a_offset,
				  t->packed != NULL, launch));
	} while (next_index(index, t->shape, t->ndim));
	return HZ_OK;
}
