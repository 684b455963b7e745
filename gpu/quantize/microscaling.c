/*
 * microscaling.c - launcher of MXFP4, MXFP8 and NVFP4
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/hadamard/launch.h"
#include "gpu/quantize/launch.h"
#include "gpu/quantize/microscaling.h"

#define WARPS (HZI_MICROSCALING_THREADS / 32)
#define BASE_LOG2_MIN 7		/* k of rows of m 2^k */
#define BASE_LOG2_MAX 10
#define LOG2_WARP 10		/* the longest transform of a warp; longer rows are a block's */

static int64_t total_of(const struct hzi_rotated *r)
{
	return (r->t.ndim ? r->t.shape[0] : 1) * r->t.blocks * r->t.plan.n;
}

/* NULL if the kernels transform such rows and codes and scales are contiguous; else the reason */
static const char *bad_transform(const struct hz_context *ctx, const struct hzi_codes_args *a)
{
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const struct hzi_segment *seg = &t->plan.seg[0];
	const struct hzi_diag *signs = a->dequantize ? &t->post : &t->pre;
	const struct hzi_diag *none = a->dequantize ? &t->pre : &t->post;
	const int64_t row = t->blocks * t->plan.n;
	const int64_t step = a->dequantize ? t->y_step : t->x_step;
	const int64_t block = a->dequantize ? t->y_block : t->x_block;
	const int64_t stride = a->dequantize ? t->y_stride[0] : t->x_stride[0];

	const int longest = a->dequantize ? LOG2_WARP : HZI_HADAMARD_MICROSCALING_MAX;

	if (total_of(r) / HZI_MICROSCALING_TILE >= INT32_MAX)
		return "there are too many elements";
	if (t->plan.nseg != 1)
		return "a row has transforms of several lengths";
	if (seg->m > 1 && (a->dequantize || seg->k < BASE_LOG2_MIN || seg->k > BASE_LOG2_MAX))
		return "transforms are of m 2^k elements, and codes dequantized or k not 7 to 10";
	if (seg->m == 1 && (seg->k < 4 || seg->k > longest))
		return "transforms are not of 2^4 to 2^13 elements, or 2^10 to dequantize";
	if (a->x_dtype == HZ_F32)
		return a->dequantize ? "y is f32" : "x is f32";
	if (step != 1 || block != t->plan.n || r->q_step != 1 || row % r->group ||
	    (t->ndim != 0 && (t->ndim != 1 || stride != row ||
			      r->q_stride[0] != row / hzi_format_pack(a->q_dtype) ||
			      r->p_stride[0] != row / r->group)))
		return "rows, codes or scales are not contiguous";
	if (none->kind || (signs->kind && (signs->kind != HZ_U8 || signs->block_step != 0 ||
					   seg->count != 1)))
		return "factors are not packed signs of x, the same for every transform";
	return seg->m > 1 ? hzi_hadamard_no_base_mma(ctx, t, total_of(r)) : NULL;
}

/* NULL if the kernels support the formats, and without a transform the layout; else the reason */
static const char *bad_format(const struct hzi_format_args *f, const struct hzi_rotated *r)
{
	const int64_t group = r ? r->group : f->group;
	const bool integers = f->q_dtype == HZ_S4X2 || f->q_dtype == HZ_U4X2;

	if (!f->scales)
		return "there are no scales of groups";
	if (f->dequantize && !r) {
		if (!integers && !hzi_format_is_float(f->q_dtype))
			return "codes are neither floats nor of 4 bits";
		if (group < 8 || (group & (group - 1)))
			return "groups are not of 2^k elements from 8 on";
	} else {
		if (f->scale_dtype == HZ_F32 || !hzi_format_is_float(f->q_dtype))
			return "not a float format with scales of e8m0 or e4m3";
		if (!f->dequantize &&
		    (!f->chosen || f->stochastic || f->rule == HZ_SCALE_NV46))
			return "scales are given, by four over six, or rounding is stochastic";
		if (group != 16 && group != 32)
			return "groups are not of 16 or 32 elements";
	}
	if ((uintptr_t)f->x % 16 || (uintptr_t)f->q % 16)
		return "floats or codes are not 16-byte aligned";
	if (ceil_div(f->n, HZI_MICROSCALING_TILE * WARPS) > INT32_MAX)
		return "there are too many elements";
	return !r && (f->ndim || f->x_step != 1 || f->q_step != 1 || f->n % group)
		       ? "floats, codes or scales are not contiguous" : NULL;
}

const char *hzi_cuda_quantize_microscaling_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_codes_args *a = args;
	const char *why;

	if (!a->format)
		return "u8 or s8 by given scales";
	why = bad_format(a->format, a->rotated);
	return why || !a->rotated ? why : bad_transform(ctx, a);
}

size_t hzi_cuda_quantize_microscaling_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	return a->rotated ? hzi_cuda_quantize_hadamard_chunked_workspace(ctx, args)
			  : hzi_cuda_quantize_formats_workspace(ctx, args);
}

/* One launch; measure: it only finds the largest magnitude of all. r: NULL, or with a transform */
static int launch_microscaling(struct hz_context *ctx, const struct hzi_format_args *f,
			       const struct hzi_rotated *r, uint32_t *most, bool measure)
{
	struct hzi_quantize_microscaling p = {
		.x = f->x, .q = f->q, .scales = f->scales, .zeros = f->zeros,
		.tensor_scale = f->tensor_scale, .new_tensor_scale = f->new_tensor_scale,
		.most = most, .total = f->n, .q_dtype = f->q_dtype,
		.scale_dtype = f->scale_dtype, .rule = f->rule, .round_to = f->round_to,
		.group = (int32_t)(r ? r->group : f->group), .measure = measure,
	};
	/* There are kernels with a transform of f16 and bf16. */
	int kernel = f->dequantize ? r ? HZI_KERNEL_dequantize_microscaling_rotated_f16 - 1
				       : HZI_KERNEL_dequantize_groups_f32
		     : r ? HZI_KERNEL_quantize_microscaling_rotated_f16 - 1
			 : HZI_KERNEL_quantize_microscaling_f32;
	const int64_t at_once = (r ? HZI_MICROSCALING_ROTATED_BLOCKS : HZI_MICROSCALING_BLOCKS) *
				(int64_t)hzi_cuda_device(ctx)->sms;
	struct hzi_launch launch = {.block = {HZI_MICROSCALING_THREADS}};
	int64_t blocks;

	if (r) {
		const struct hzi_segment *seg = &r->t.plan.seg[0];

		p.total = total_of(r);
		p.log2 = seg->k;
		p.signs = f->dequantize ? r->t.post.data : r->t.pre.data;
		p.sign_mask = (int32_t)(seg->length / 8 - 1);
		p.factor = seg->scale;
	} else if (f->dequantize) {
		p.log2 = 63 - __builtin_clzll((unsigned long long)f->group);
	}
	blocks = ceil_div(p.total, HZI_MICROSCALING_TILE * WARPS);
	/* Loops are faster where arithmetic takes as long as memory, or nothing is stored. */
	if (!f->dequantize && (measure || r || f->q_dtype == HZ_E2M1X2))
		blocks = blocks < at_once ? blocks : at_once;
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, f->dequantize ? "dequantize" : "quantize",
			       hzi_quantize_kernel(kernel, f->x_dtype), &launch, &p, sizeof(p));
}

static int launch_rotated(struct hz_context *ctx, const struct hzi_codes_args *a, bool measure)
{
	const struct hzi_rotated *r = a->rotated;

	return r && (r->t.plan.seg[0].m > 1 || r->t.plan.seg[0].k > LOG2_WARP)
		       ? hzi_hadamard_microscaling(ctx, a, ctx->workspace, measure)
		       : launch_microscaling(ctx, a->format, r, ctx->workspace, measure);
}

int hzi_cuda_quantize_microscaling(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	if (a->format->new_tensor_scale) {
		HZ_CHECK(hzi_cuda_fill(ctx, ctx->workspace, 0, HZI_FORMATS_WORKSPACE));
		HZ_CHECK(launch_rotated(ctx, a, true));
	}
	return launch_rotated(ctx, a, false);
}

int hzi_cuda_formats_chunk(struct hz_context *ctx, const struct hzi_format_args *f, uint32_t *most,
			   bool measure)
{
	if (!f->round_to && !bad_format(f, NULL))
		return launch_microscaling(ctx, f, NULL, most, measure);
	return measure ? hzi_cuda_formats_most(ctx, f, most) : hzi_cuda_formats_codes(ctx, f, most);
}
