/*
 * formats.c - launcher of quantization to any format
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quantize/formats.h"
#include "gpu/quantize/launch.h"

#define WORK 256		/* elements of an item, where scales are given */
#define WORK_MOST 4096		/* where the largest magnitude of all is looked for */

/* Whether the elements of a lane are aligned: x to `unit` bytes of an element's `bytes` */
static bool is_aligned(const void *x, int64_t step, int64_t bytes, int64_t unit,
		       const int64_t *stride, int ndim)
{
	if (step != 1 || (uintptr_t)x % (uintptr_t)unit)
		return false;
	for (int d = 0; d < ndim; d++) {
		if (stride[d] * bytes % unit)
			return false;
	}
	return true;
}

static int launch_items(struct hz_context *ctx, const struct hzi_format_args *a, int kernel,
			uint32_t *most, int64_t work)
{
	const int64_t bits = hzi_format_bits(a->q_dtype);
	struct hzi_quantize_formats p = {
		.x = a->x, .q = a->q, .scales = a->scales, .zeros = a->zeros,
		.tensor_scale = a->tensor_scale, .new_tensor_scale = a->new_tensor_scale,
		.most = most, .n = a->n, .group = a->group, .work = work,
		.row_items = ceil_div(a->n, work), .x_step = a->x_step, .q_step = a->q_step,
		.seed = a->seed, .ndim = a->ndim, .q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype, .rule = a->rule, .round_to = a->round_to,
		.chosen = a->chosen, .stochastic = a->stochastic, .zero = a->zero, .low = a->low,
		.high = a->high, .scale = a->scale,
	};
	const bool whole = p.row_items == 1 || work % HZI_FORMATS_EACH == 0;
	struct hzi_launch launch = {.block = {HZI_FORMATS_THREADS}};
	int64_t blocks;

	memcpy(p.shape, a->shape, sizeof(p.shape));
	memcpy(p.x_stride, a->x_stride, sizeof(p.x_stride));
	memcpy(p.q_stride, a->q_stride, sizeof(p.q_stride));
	memcpy(p.p_stride, a->p_stride, sizeof(p.p_stride));
	memcpy(p.r_stride, a->r_stride, sizeof(p.r_stride));
	p.items = p.row_items;
	for (int d = 0; d < a->ndim; d++)
		p.items *= a->shape[d];
	p.log_lanes = (int)min_of(5, hzi_log2_up(ceil_div(min_of(work, a->n), HZI_FORMATS_EACH)));
	p.x_vectors = whole && is_aligned(a->x, a->x_step, (int64_t)hz_dtype_size(a->x_dtype), 16,
					  a->x_stride, a->ndim);
	p.q_vectors = whole && is_aligned(a->q, a->q_step, (int64_t)hz_dtype_size(a->q_dtype),
					  bits, a->q_stride, a->ndim);
	blocks = ceil_div(p.items, HZI_FORMATS_THREADS >> p.log_lanes);
	if (blocks > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: there are too many elements for one launch",
				a->dequantize ? "dequantize" : "quantize");
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, a->dequantize ? "dequantize" : "quantize",
			       hzi_quantize_kernel(kernel, a->x_dtype), &launch, &p, sizeof(p));
}

int hzi_cuda_formats_most(struct hz_context *ctx, const struct hzi_format_args *a, uint32_t *most)
{
	return launch_items(ctx, a, HZI_KERNEL_quantize_most_f32, most, WORK_MOST);
}

int hzi_cuda_formats_codes(struct hz_context *ctx, const struct hzi_format_args *a, uint32_t *most)
{
	return launch_items(ctx, a, a->dequantize ? HZI_KERNEL_dequantize_formats_f32
						  : HZI_KERNEL_quantize_formats_f32,
			    most, a->chosen ? a->group : WORK);
}

const char *hzi_cuda_quantize_formats_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	return !a->format ? "u8 or s8 by given scales" : a->rotated ? "there is a transform" : NULL;
}

size_t hzi_cuda_quantize_formats_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	return a->format && a->format->new_tensor_scale ? HZI_FORMATS_WORKSPACE : 0;
}

int hzi_cuda_quantize_formats(struct hz_context *ctx, const void *args)
{
	const struct hzi_format_args *a = ((const struct hzi_codes_args *)args)->format;

	if (a->new_tensor_scale) {
		HZ_CHECK(hzi_cuda_fill(ctx, ctx->workspace, 0, HZI_FORMATS_WORKSPACE));
		HZ_CHECK(hzi_cuda_formats_most(ctx, a, ctx->workspace));
	}
	return hzi_cuda_formats_codes(ctx, a, ctx->workspace);
}
