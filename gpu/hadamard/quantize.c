/*
 * quantize.c - launches between contiguous rows of 2^k elements and codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/hadamard/launch.h"
#include "gpu/hadamard/quantize.h"

#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_SHORT 10		/* up to here a warp has whole rows, above it a block has one */
#define LOG2_GROUPS 13		/* the longest row with several groups, dynamic scales */
#define LOG2_MAX 14
#define LOG2_UNITS 7		/* up to here kernels of microscaling exchange no values of lanes */
#define GROUP_MAX 7		/* log2 of the largest of several groups in a row from 2^11 */
#define THREAD_LOG2(k) ((k) > LOG2_SHORT ? 8 : 7)	/* of the elements that a thread's are in */
#define WARPS_SHORT 4		/* per block of short rows, 1024 elements each */
#define MAXIMUM_BYTES 4		/* of shared memory for the largest magnitude of a warp */
#define PREFETCH_SM 16384	/* elements: half of what an SM has in flight */
#define FACTOR_LOG2 40		/* factors are within 2^-40 to 2^40 */

/* Whether diag is absent, or packed signs in whole words, the same for every transform */
static bool supports_signs(const struct hzi_hadamard_args *t, const struct hzi_diag *diag)
{
	return !diag->kind || (diag->kind == HZ_U8 && (diag->block_step == 0 || t->blocks == 1) &&
			       t->plan.seg[0].count == 1 && (uintptr_t)diag->data % 4 == 0);
}

static const char *bad_length_or_signs(const struct hzi_hadamard_args *t)
{
	const int k = t->plan.seg[0].k;

	if (t->plan.seg[0].m != 1 || k < LOG2_MIN || k > LOG2_MAX)
		return "transforms are not of 2^5 to 2^14 elements";
	return supports_signs(t, &t->pre) && supports_signs(t, &t->post)
		       ? NULL : "factors are not packed signs, the same whole words for every row";
}

/*
 * NULL if rows, codes and scales are contiguous and lengths and signs supported, else the reason.
 * The strides are of the one outer dimension.
 */
static const char *bad_rows(const struct hzi_hadamard_args *t, int64_t step, int64_t block,
			    int64_t stride, int64_t q_stride, int q_dtype, int64_t scale_stride,
			    int64_t group)
{
	const int64_t row = t->blocks * t->plan.n;

	if (t->plan.nseg != 1 || t->plan.seg[0].m != 1)
		return "a row is not of transforms of one length 2^k";
	if (step != 1 || block != t->plan.n ||
	    (t->ndim != 0 && (t->ndim != 1 || stride != row || scale_stride != row / group ||
			      q_stride != (q_dtype == HZ_S4X2 ? row / 2 : row))))
		return "rows, codes or scales are not contiguous";
	return bad_length_or_signs(t);
}

/* log2 of a group, or -1 if it is no power of two from 32 on */
static int group_log2(int64_t group)
{
	const int log2 = 63 - __builtin_clzll((unsigned long long)group);

	return group == (int64_t)1 << log2 && log2 >= LOG2_MIN ? log2 : -1;
}

static int64_t total_of(const struct hzi_hadamard_args *t)
{
	return (t->ndim ? t->shape[0] : 1) * t->blocks * t->plan.n;
}

static int64_t tile_of(int k)
{
	return k > LOG2_SHORT ? (int64_t)1 << k : WARPS_SHORT * 1024;
}

static int64_t blocks_of(const struct hzi_hadamard_args *t)
{
	return ceil_div(total_of(t), tile_of(t->plan.seg[0].k));
}

/* The parameters that all kernels have, for transforms between x and y */
static struct hzi_hadamard_quantize params_of(const struct hz_context *ctx,
					      const struct hzi_hadamard_args *t, const void *x,
					      void *y)
{
	const struct hzi_segment *seg = &t->plan.seg[0];

	return (struct hzi_hadamard_quantize){
		.f = {.x = x, .y = y, .pre = t->pre.data, .post = t->post.data,
		      .total = total_of(t), .mask = seg->length - 1, .k = seg->k,
		      .factor = seg->scale},
		.has_pre = t->pre.kind != 0,
		.prefetch_distance = (uint32_t)(hzi_cuda_device(ctx)->sms *
						(PREFETCH_SM / tile_of(seg->k)))};
}

/*
 * Shared memory of a block: warp_bytes for each warp, and in rows from 2^11 the values of each
 * warp besides
 */
static int64_t shared_bytes(int k, int warp_bytes)
{
	return k > LOG2_SHORT ? (int64_t)(HZI_WARP_BYTES + warp_bytes) << (k - LOG2_SHORT)
			      : warp_bytes * WARPS_SHORT;
}

static const char *too_large(const struct hz_context *ctx, const struct hzi_hadamard_args *t,
			     int warp_bytes)
{
	if (blocks_of(t) > GRID_MAX)
		return "there are too many rows";
	return shared_bytes(t->plan.seg[0].k, warp_bytes) > hzi_cuda_device(ctx)->shared_block_bytes
		       ? "rows exceed the shared memory of a block" : NULL;
}

static int launch(struct hz_context *ctx, const char *op, int kernel,
		  const struct hzi_hadamard_args *t, int warp_bytes,
		  const struct hzi_hadamard_quantize *p)
{
	const int k = t->plan.seg[0].k;
	const struct hzi_launch l = {
		.grid = {(unsigned)blocks_of(t)},
		.block = {k > LOG2_SHORT ? 32u << (k - LOG2_SHORT) : 32 * WARPS_SHORT},
		.shared_bytes = (unsigned)shared_bytes(k, warp_bytes),
		.early = hzi_hadamard_is_short(ctx, total_of(t))};

	return hzi_cuda_launch(ctx, op, kernel, &l, p, sizeof(*p));
}

/* ---- Dynamic scales -------------------------------------------------------------------------- */

static float q_max_of(int q_dtype)
{
	return q_dtype == HZ_S8 ? 127 : q_dtype == HZ_S4X2 ? 7 : q_dtype == HZ_E4M3 ? 448 : 57344;
}

/* Whether the call has rows from 2^11 with one scale each */
static bool is_row_group(const struct hzi_hadamard_quantize_args *a)
{
	const struct hzi_hadamard_args *t = &a->t;

	return t->plan.seg[0].k > LOG2_SHORT && t->plan.seg[0].length == a->group &&
	       t->blocks * t->plan.n == a->group;
}

static bool within(float factor, int log2)
{
	return fabsf(factor) >= ldexpf(1, -log2) && fabsf(factor) <= ldexpf(1, log2);
}

const char *hzi_cuda_hadamard_quantize_contiguous_unsupported(const struct hz_context *ctx,
							      const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_quantize_args *a = c->quantize;
	const struct hzi_hadamard_args *t = &a->t;
	const int k = t->plan.seg[0].k, group = group_log2(a->group);
	const bool row = is_row_group(a);
	const char *why;

	if (t->x_dtype == HZ_F32)
		return "x is f32";
	why = bad_rows(t, t->x_step, t->x_block, t->x_stride[0], a->q_stride[0], a->q_dtype,
		       a->scale_stride[0], a->group);
	if (why)
		return why;
	if (group < 0 || (k > LOG2_SHORT ? !row && (group > GROUP_MAX || k > LOG2_GROUPS)
					 : group > LOG2_SHORT))
		return "there are no kernels for the group at this length";
	if ((uintptr_t)t->x % 16 || (uintptr_t)a->q % 8)
		return "x is not 16-byte aligned, or q not 8-byte";
	if (!within(t->plan.seg[0].scale, FACTOR_LOG2))
		return "the scale is beyond 2^-40 to 2^40";
	return too_large(ctx, t, row ? MAXIMUM_BYTES : 0);
}

int hzi_cuda_hadamard_quantize_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_quantize_args *a = c->quantize;
	const struct hzi_hadamard_args *t = &a->t;
	const int k = t->plan.seg[0].k;
	const bool row = is_row_group(a);
	const int first = t->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_quantize_f16_5
					       : HZI_KERNEL_hadamard_quantize_bf16_5;
	struct hzi_hadamard_quantize p = params_of(ctx, t, t->x, a->q);

	p.scales = a->scale;
	p.q_dtype = a->q_dtype;
	p.scale_dtype = a->scale_dtype;
	p.round_to = a->round_to;
	p.group_log2 = group_log2(a->group);
	p.q_max = q_max_of(a->q_dtype);
	p.inverse_q_max = 1 / p.q_max;
	p.post_or_round = t->post.kind || a->round_to;
	return launch(ctx, "hadamard_quantize",
		      first + k - LOG2_MIN +
			      (k > LOG2_SHORT && !row ? LOG2_MAX - LOG2_SHORT : 0),
		      t, row ? MAXIMUM_BYTES : 0, &p);
}

int hzi_hadamard_microscaling(struct hz_context *ctx, const struct hzi_codes_args *a,
			      uint32_t *most, bool measure)
{
	const struct hzi_format_args *f = a->format;
	const struct hzi_hadamard_args *t = &a->rotated->t;
	struct hzi_hadamard_quantize p = params_of(ctx, t, a->x, a->q);

	p.scales = f->scales;
	p.q_dtype = f->q_dtype;
	p.scale_dtype = f->scale_dtype;
	p.rule = f->rule;
	p.round_to = f->round_to;
	p.group_log2 = a->rotated->group == 16 ? 4 : 5;
	p.tensor_scale = f->tensor_scale;
	p.new_tensor_scale = f->new_tensor_scale;
	p.most = most;
	p.measure = measure;
	if (t->plan.seg[0].m > 1)
		return hzi_hadamard_base_mma_microscaling(ctx, t, &p);
	return launch(ctx, "quantize",
		      (a->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_quantize_microscaling_f16_11
					    : HZI_KERNEL_hadamard_quantize_microscaling_bf16_11) +
			      t->plan.seg[0].k - LOG2_SHORT - 1,
		      t, 0, &p);
}

/* ---- Dequantization with scales of groups ---------------------------------------------------- */

/* The kernel from codes to rows of 2^k elements, in groups of 2^group */
static int dequantize_kernel(int k, int group)
{
	return HZI_KERNEL_hadamard_dequantize_5 + 2 * (k - LOG2_MIN) + (group < THREAD_LOG2(k));
}

const char *hzi_cuda_dequantize_hadamard_contiguous_unsupported(const struct hz_context *ctx,
								const void *args)
{
	const struct hzi_dequantize_hadamard_args *a =
		((const struct hzi_hadamard_call *)args)->dequantize;
	const struct hzi_hadamard_args *t = &a->t;
	const char *why;

	if (t->y_dtype == HZ_F32)
		return "y is f32";
	why = bad_rows(t, t->y_step, t->y_block, t->y_stride[0], a->q_stride[0], a->q_dtype,
		       a->scale_stride[0], a->group);
	if (why)
		return why;
	if (group_log2(a->group) < 0)
		return "the group is not a power of two from 32 on";
	if ((uintptr_t)t->y % 16 || (uintptr_t)a->q % 8)
		return "y is not 16-byte aligned, or q not 8-byte";
	/* The product with a scale must not leave the range of the scale. */
	if (!(fabsf(t->plan.seg[0].scale) <= 1))
		return "the scale is above 1";
	return too_large(ctx, t, 0);
}

int hzi_cuda_dequantize_hadamard_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_dequantize_hadamard_args *a =
		((const struct hzi_hadamard_call *)args)->dequantize;
	const struct hzi_hadamard_args *t = &a->t;
	const int k = t->plan.seg[0].k, group = group_log2(a->group);
	struct hzi_hadamard_quantize p = params_of(ctx, t, a->q, t->y);

	p.scales = (void *)(uintptr_t)a->scale;
	p.q_dtype = a->q_dtype;
	p.scale_dtype = a->scale_dtype;
	p.round_to = t->y_dtype;
	p.group_log2 = group;
	p.flip = HZI_S8_FLIP;
	p.base = HZI_CODE_BASE(true, 0);
	return launch(ctx, "dequantize_hadamard", dequantize_kernel(k, group), t, 0, &p);
}

/* ---- Static scales and zero points ----------------------------------------------------------- */

/* NULL if there is a transform and floats have 16 bits, else the reason */
static const char *not_16bit(const struct hzi_codes_args *a)
{
	if (!a->rotated)
		return "there is no transform";
	if (a->format)
		return "not u8 or s8 by given scales";
	if (a->dequantize)
		return a->rotated->t.y_dtype == HZ_F32 ? "y is f32" : NULL;
	return a->rotated->t.x_dtype == HZ_F32 ? "x is f32" : NULL;
}

/* NULL if rows and codes are contiguous and transforms have one length, else the reason */
static const char *not_contiguous_rotated(const struct hzi_codes_args *a)
{
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const int64_t step = a->dequantize ? t->y_step : t->x_step;
	const int64_t block = a->dequantize ? t->y_block : t->x_block;
	const int64_t stride = a->dequantize ? t->y_stride[0] : t->x_stride[0];
	const int64_t row = t->blocks * t->plan.n;

	if (t->plan.nseg != 1)
		return "a row has transforms of several lengths";
	if (step != 1 || block != t->plan.n || r->q_step != 1 ||
	    (t->ndim != 0 && (t->ndim != 1 || stride != row ||
			      r->q_stride[0] != row / hzi_format_pack(a->q_dtype))))
		return "rows or codes are not contiguous";
	return (uintptr_t)a->x % 16 || (uintptr_t)a->q % 8
		       ? "floats are not 16-byte aligned, or codes not 8-byte" : NULL;
}

/* Whether there is one scale for all rows */
static bool is_single(const struct hzi_rotated *r)
{
	return r->group == r->t.blocks * r->t.plan.n && (r->t.ndim == 0 || r->p_stride[0] == 0);
}

/* Whether the scales of successive groups are contiguous */
static bool is_flat(const struct hzi_rotated *r)
{
	return r->t.ndim == 0 || r->p_stride[0] == r->t.blocks * r->t.plan.n / r->group;
}

/*
 * NULL if one division of a piece's index gives that of its scale, as in struct
 * hzi_hadamard_quantize; else the reason
 */
static const char *bad_params(const struct hzi_rotated *r)
{
	if (is_single(r))
		return NULL;
	if (!is_flat(r) || r->group % 8)
		return "groups are not of multiples of 8 elements with successive parameters";
	return total_of(&r->t) / 8 > INT32_MAX ? "there are too many elements" : NULL;
}

/* Parameters with static scales, for transforms between x and y */
static struct hzi_hadamard_quantize static_params(const struct hz_context *ctx,
						  const struct hzi_codes_args *a, const void *x,
						  void *y)
{
	const struct hzi_rotated *r = a->rotated;
	struct hzi_hadamard_quantize p = params_of(ctx, &r->t, x, y);

	p.scales = (void *)(uintptr_t)a->scales;
	p.zero_points = a->zeros;
	p.is_signed = a->q_dtype == HZ_S8;
	p.scale = a->scale;
	p.zero_point = a->zero;
	if (!is_single(r))
		p.group = hzi_make_fastdiv(r->group / 8);
	return p;
}

/* NULL if groups are of whole transforms or all have one scale, else the reason */
static const char *bad_base_params(const struct hzi_rotated *r)
{
	const char *why = bad_params(r);

	if (why)
		return why;
	return !is_single(r) && r->group % r->t.plan.n ? "groups are not of whole transforms"
						       : NULL;
}

/* NULL if the base_mma kernels support the operands, else the reason */
static const char *bad_base_mma_operands(const struct hzi_codes_args *a)
{
	const char *why = not_16bit(a);

	if (!why)
		why = not_contiguous_rotated(a);
	return why ? why : bad_base_params(a->rotated);
}

static const char *cannot_start_base_mma(const struct hz_context *ctx,
					 const struct hzi_codes_args *a)
{
	return hzi_hadamard_no_base_mma(ctx, &a->rotated->t, total_of(&a->rotated->t));
}

/*
 * Whether results can be multiplied by the product of factor and scale. With an array of scales,
 * the product must not be larger than the scale; with one scale, it must be within 2^-100 to 2^100.
 */
static bool supports_scale(const struct hzi_codes_args *a)
{
	const float factor = a->rotated->t.plan.seg[0].scale;

	return a->scales ? fabsf(factor) <= 1 : within(factor * a->scale, 100);
}

static int static_warp_bytes(int dtype, int k)
{
	return k > LOG2_SHORT ? HZI_STATIC_WARP_BYTES : dtype == HZ_F32 ? HZI_WARP_BYTES : 0;
}

const char *hzi_cuda_quantize_hadamard_contiguous_unsupported(const struct hz_context *ctx,
							      const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_args *t;
	const char *why;

	if (!a->rotated)
		return "there is no transform";
	if (a->format)
		return "not u8 or s8 by given scales";
	t = &a->rotated->t;
	why = not_contiguous_rotated(a);
	if (!why)
		why = bad_params(a->rotated);
	if (!why)
		why = bad_length_or_signs(t);
	if (why)
		return why;
	if (!within(t->plan.seg[0].scale, FACTOR_LOG2))
		return "the transform's scale is beyond 2^-40 to 2^40";
	return too_large(ctx, t, static_warp_bytes(t->x_dtype, t->plan.seg[0].k));
}

int hzi_cuda_quantize_hadamard_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_args *t = &a->rotated->t;
	const int k = t->plan.seg[0].k;
	const struct hzi_hadamard_quantize p = static_params(ctx, a, a->x, a->q);
	int kernel;

	if (t->x_dtype == HZ_F32)
		kernel = HZI_KERNEL_hadamard_quantize_static_f32_10 +
			 (k > LOG2_SHORT ? k - LOG2_SHORT : 0);
	else if (t->x_dtype == HZ_F16)
		kernel = HZI_KERNEL_hadamard_quantize_static_f16_5 + k - LOG2_MIN;
	else
		kernel = HZI_KERNEL_hadamard_quantize_static_bf16_5 + k - LOG2_MIN;
	return launch(ctx, "quantize", kernel, t, static_warp_bytes(t->x_dtype, k), &p);
}

const char *hzi_cuda_quantize_hadamard_base_mma_unsupported(const struct hz_context *ctx,
							    const void *args)
{
	const struct hzi_codes_args *a = args;
	const char *why = bad_base_mma_operands(a);

	if (!why && !within(a->rotated->t.plan.seg[0].scale, FACTOR_LOG2))
		why = "the transform's scale is beyond 2^-40 to 2^40";
	return why ? why : cannot_start_base_mma(ctx, a);
}

int hzi_cuda_quantize_hadamard_base_mma(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_quantize p = static_params(ctx, a, a->x, a->q);

	return hzi_hadamard_base_mma_codes(ctx, &a->rotated->t, &p, true);
}

/* Whether codes are e2m1x2 with a scale of e4m3 for each 16 */
static bool is_nvfp4(const struct hzi_codes_args *a)
{
	return a->format && a->q_dtype == HZ_E2M1X2 && a->format->scale_dtype == HZ_E4M3 &&
	       a->rotated->group == 16 && is_flat(a->rotated);
}

/* NULL if there is a transform of codes of floats to 16-bit floats, else the reason */
static const char *bad_scaled_format(const struct hzi_codes_args *a)
{
	const struct hzi_format_args *f = a->format;

	if (!a->rotated)
		return "there is no transform";
	if (a->rotated->t.y_dtype == HZ_F32)
		return "y is f32";
	if (!hzi_format_is_float(f->q_dtype) || !f->scales)
		return "not a float format by given scales";
	if (f->scale_dtype == HZ_E4M3 ? !is_nvfp4(a) : f->tensor_scale != NULL)
		return "a scale of the tensor, or scales of e4m3, but not NVFP4";
	return f->q_dtype == HZ_E2M1X2 && a->rotated->t.plan.seg[0].k <= LOG2_UNITS
		       ? "e2m1x2 in transforms of up to 2^7 elements" : NULL;
}

const char *hzi_cuda_dequantize_hadamard_scaled_unsupported(const struct hz_context *ctx,
							    const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_rotated *r = a->rotated;
	const char *why = a->format ? bad_scaled_format(a) : not_16bit(a);

	if (!why && a->zeros)
		why = "there are zero points";
	if (!why)
		why = not_contiguous_rotated(a);
	if (!why)
		why = bad_length_or_signs(&r->t);
	if (why)
		return why;
	if (!is_nvfp4(a) && !is_single(r) && (!is_flat(r) || group_log2(r->group) < 0))
		return "groups are not powers of two from 32 on with successive parameters";
	return (a->format ? fabsf(r->t.plan.seg[0].scale) <= 1 : supports_scale(a))
		       ? too_large(ctx, &r->t, 0) : "the product of scales is out of range";
}

int hzi_cuda_dequantize_hadamard_scaled(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const int k = t->plan.seg[0].k;
	struct hzi_hadamard_quantize p = params_of(ctx, t, a->q, a->x);

	p.scales = a->format ? a->format->scales : (void *)(uintptr_t)a->scales;
	p.q_dtype = a->format ? a->format->q_dtype : HZ_S8;
	p.scale_dtype = a->format ? a->format->scale_dtype : HZ_F32;
	p.round_to = t->y_dtype;
	p.group_log2 = is_single(r) || is_nvfp4(a) ? 62 : group_log2(r->group);
	p.tensor_scale = a->format ? a->format->tensor_scale : NULL;
	p.flip = a->q_dtype == HZ_S8 ? HZI_S8_FLIP : 0;
	p.base = HZI_CODE_BASE(a->q_dtype == HZ_S8, a->scales ? 0 : a->zero);
	if (!p.scales)
		p.f.factor *= a->scale;
	return launch(ctx, "dequantize", dequantize_kernel(k, p.group_log2), t, 0, &p);
}

/* Codes minus their zero point are transformed, and results are multiplied by their scale. */
const char *hzi_cuda_dequantize_hadamard_base_mma_unsupported(const struct hz_context *ctx,
							      const void *args)
{
	const struct hzi_codes_args *a = args;
	const char *why = bad_base_mma_operands(a);

	if (!why && !supports_scale(a))
		why = "the product of scales is out of range";
	return why ? why : cannot_start_base_mma(ctx, a);
}

int hzi_cuda_dequantize_hadamard_base_mma(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_quantize p = static_params(ctx, a, a->q, a->x);

	return hzi_hadamard_base_mma_codes(ctx, &a->rotated->t, &p, false);
}
