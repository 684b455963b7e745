/*
 * quantize.c - launches of contiguous rows of 2^k elements to codes, and from codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/hadamard/launch.h"
#include "gpu/hadamard/quantize.h"
#include "gpu/hadamard/quantize_static.h"

#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_SHORT 10		/* to there a warp has whole rows */
#define LOG2_GROUPS 13		/* the longest with several groups */
#define LOG2_MAX 14
#define GROUP_MAX 7		/* log2 of the largest of several groups in a longer row */
#define THREAD_LOG2(k) ((k) > LOG2_SHORT ? 8 : 7)	/* elements that a thread has chunks of */
#define WARPS_SHORT 4		/* of a block of short rows, 1024 elements each */
#define WORD_BYTES 4		/* of shared memory for the largest of a warp */
#define AHEAD_SM 16384		/* elements: half of what a multiprocessor has under way */
#define FACTOR_LOG2 40		/* how far from 1 a factor may be */

/*
 * NULL if the rows of floats, codes and scales are contiguous, else the reason. Strides are those
 * of the one outer dimension.
 */
static const char *not_contiguous(const struct hzi_hadamard_args *t, int64_t step, int64_t block,
				  int64_t stride, int64_t q_stride, int q_dtype,
				  int64_t scale_stride, int64_t group)
{
	const int64_t row = t->blocks * t->plan.n;

	if (t->plan.nseg != 1 || t->plan.seg[0].m != 1)
		return "a row is not of transforms of one length 2^k";
	return step == 1 && block == t->plan.n &&
			       (t->ndim == 0 ||
				(t->ndim == 1 && stride == row && scale_stride == row / group &&
				 q_stride == (q_dtype == HZ_S4X2 ? row / 2 : row)))
		       ? NULL : "rows, codes or scales are not contiguous";
}

/* Whether the kernels support signs: none, or the same whole words for every transform */
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

/* log2 of a group that the kernels support, or -1 */
static int group_log2(int64_t group)
{
	const int log2 = 63 - __builtin_clzll((unsigned long long)group);

	return group == (int64_t)1 << log2 && log2 >= LOG2_MIN ? log2 : -1;
}

static int64_t total_of(const struct hzi_hadamard_args *t)
{
	return (t->ndim ? t->shape[0] : 1) * t->blocks * t->plan.n;
}

static struct hzi_hadamard_contiguous rows_of(const struct hzi_hadamard_args *t, const void *x,
					      void *y)
{
	const struct hzi_segment *seg = &t->plan.seg[0];

	return (struct hzi_hadamard_contiguous){
		.x = x, .y = y, .pre = t->pre.data, .post = t->post.data,
		.total = total_of(t), .mask = seg->length - 1, .k = seg->k, .factor = seg->scale};
}

static int64_t tile_of(int k)
{
	return k > LOG2_SHORT ? (int64_t)1 << k : WARPS_SHORT * 1024;
}

static int64_t blocks_of(const struct hzi_hadamard_args *t)
{
	return ceil_div(total_of(t), tile_of(t->plan.seg[0].k));
}

/* Blocks from one to the next that starts when it ends */
static uint32_t ahead_of(const struct hz_context *ctx, int k)
{
	return (uint32_t)(hzi_cuda_device(ctx)->multiprocessors * (AHEAD_SM / tile_of(k)));
}

/* Shared memory of a block; of a longer row warp_bytes of a warp are beside its values. */
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
		  const struct hzi_hadamard_args *t, int warp_bytes, const void *params,
		  size_t bytes)
{
	const int k = t->plan.seg[0].k;
	const struct hzi_launch l = {
		.grid = {(unsigned)blocks_of(t)},
		.block = {k > LOG2_SHORT ? 32u << (k - LOG2_SHORT) : 32 * WARPS_SHORT},
		.shared_bytes = (unsigned)shared_bytes(k, warp_bytes)};

	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

/* ---- Scales of the groups' largest values ---------------------------------------------------- */

static float most_of(int q_dtype)
{
	return q_dtype == HZ_S8 ? 127 : q_dtype == HZ_S4X2 ? 7 : q_dtype == HZ_E4M3 ? 448 : 57344;
}

/* Whether a row of more than one warp's values is one group */
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
	why = not_contiguous(t, t->x_step, t->x_block, t->x_stride[0], a->q_stride[0], a->q_dtype,
			     a->scale_stride[0], a->group);
	if (!why)
		why = bad_length_or_signs(t);
	if (why)
		return why;
	if (group < 0 || (k > LOG2_SHORT ? !row && (group > GROUP_MAX || k > LOG2_GROUPS)
					 : group > LOG2_SHORT))
		return "there are no kernels for the group at this length";
	if ((uintptr_t)t->x % 16 || (uintptr_t)a->q % 8)
		return "x is not 16-byte aligned, or q not 8-byte";
	if (!within(t->plan.seg[0].scale, FACTOR_LOG2))
		return "the scale is beyond 2^-40 to 2^40";
	return too_large(ctx, t, row ? WORD_BYTES : 0);
}

int hzi_cuda_hadamard_quantize_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_quantize_args *a = c->quantize;
	const struct hzi_hadamard_args *t = &a->t;
	const int k = t->plan.seg[0].k;
	const bool row = is_row_group(a);
	const struct hzi_hadamard_quantize p = {
		.f = rows_of(t, t->x, a->q), .scale = a->scale, .q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype, .round_to = a->round_to,
		.group_log2 = group_log2(a->group),
		.most = most_of(a->q_dtype), .inverse = 1 / most_of(a->q_dtype),
		.signs = t->pre.kind != 0, .finish = t->post.kind || a->round_to,
		.ahead = ahead_of(ctx, k)};
	const int first = t->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_quantize_f16_5
					       : HZI_KERNEL_hadamard_quantize_bf16_5;

	return launch(ctx, "hadamard_quantize",
		      first + k - LOG2_MIN +
			      (k > LOG2_SHORT && !row ? LOG2_MAX - LOG2_SHORT : 0),
		      t, row ? WORD_BYTES : 0, &p, sizeof(p));
}

#define FLIP_S8 0x80808080u

/* -1024 less the zero point, of codes that were made unsigned, twice as f16 */
static uint32_t base_of(int q_dtype, int32_t zero)
{
	const uint32_t base = 0xe400u + (uint32_t)(q_dtype == HZ_S8 ? zero + 128 : zero);

	return base | base << 16;
}

/* The kernel from codes to rows of 2^k, by groups of 2^group elements */
static int values_kernel(int k, int group)
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
	why = not_contiguous(t, t->y_step, t->y_block, t->y_stride[0], a->q_stride[0], a->q_dtype,
			     a->scale_stride[0], a->group);
	if (!why)
		why = bad_length_or_signs(t);
	if (why)
		return why;
	if (group_log2(a->group) < 0)
		return "the group is not a power of two from 32 on";
	if ((uintptr_t)t->y % 16 || (uintptr_t)a->q % 8)
		return "y is not 16-byte aligned, or q not 8-byte";
	/* The product with a scale must not leave the range that the scale is in. */
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
	const struct hzi_hadamard_dequantize p = {
		.f = rows_of(t, a->q, t->y), .scale = a->scale, .q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype, .y_dtype = t->y_dtype, .group_log2 = group,
		.signs = t->pre.kind != 0, .ahead = ahead_of(ctx, k), .flip = FLIP_S8,
		.base = base_of(HZ_S8, 0)};

	return launch(ctx, "dequantize_hadamard", values_kernel(k, group), t, 0, &p, sizeof(p));
}

/* ---- Scales and zero points of the caller ---------------------------------------------------- */

/* NULL if rows of floats and codes are contiguous, of transforms of one length; else the reason */
static const char *not_contiguous_rotated(const struct hzi_codes_args *a)
{
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const int64_t step = a->back ? t->y_step : t->x_step;
	const int64_t block = a->back ? t->y_block : t->x_block;
	const int64_t stride = a->back ? t->y_stride[0] : t->x_stride[0];
	const int64_t row = t->blocks * t->plan.n;

	if (t->plan.nseg != 1)
		return "a row has transforms of several lengths";
	if (step != 1 || block != t->plan.n || r->q_step != 1 ||
	    (t->ndim != 0 && (t->ndim != 1 || stride != row || r->q_stride[0] != row)))
		return "rows or codes are not contiguous";
	return (uintptr_t)a->x % 16 || (uintptr_t)a->q % 8
		       ? "floats are not 16-byte aligned, or codes not 8-byte" : NULL;
}

/* Whether one parameter is for all, each group of a row having none of its own */
static bool is_single(const struct hzi_rotated *r)
{
	return r->group == r->t.blocks * r->t.plan.n && (r->t.ndim == 0 || r->p_stride[0] == 0);
}

/* Whether the parameters of groups follow each other in the order of the rows */
static bool is_flat(const struct hzi_rotated *r)
{
	return r->t.ndim == 0 || r->p_stride[0] == r->t.blocks * r->t.plan.n / r->group;
}

/* NULL if kernels find the parameters by one division of the piece's index, else the reason */
static const char *bad_params(const struct hzi_rotated *r)
{
	if (is_single(r))
		return NULL;
	if (!is_flat(r) || r->group % 8)
		return "groups are not of multiples of 8 elements with successive parameters";
	return total_of(&r->t) / 8 > INT32_MAX ? "there are too many elements"
								: NULL;
}

/* The operands of kernels with scales of the caller, of transforms between x and y */
static struct hzi_hadamard_static static_of(const struct hzi_codes_args *a, const void *x, void *y)
{
	const struct hzi_rotated *r = a->rotated;
	struct hzi_hadamard_static p = {
		.f = rows_of(&r->t, x, y), .scales = a->scales, .zeros = a->zeros,
		.is_signed = a->q_dtype == HZ_S8, .scale = a->scale, .zero = a->zero,
		.signs = r->t.pre.kind != 0};

	if (!is_single(r))
		p.group = hzi_make_fastdiv(r->group / 8);
	return p;
}

/* NULL if transforms with base matrices have whole groups or one parameter for all */
static const char *bad_base_params(const struct hzi_rotated *r)
{
	const char *why = bad_params(r);

	if (why)
		return why;
	return !is_single(r) && r->group % r->t.plan.n ? "groups are not of whole transforms"
						       : NULL;
}

/*
 * Whether sums can be multiplied with factor times a scale: the product must not leave the range
 * that scales of an array are in; with one scale it has to be an ordinary number.
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
	struct hzi_hadamard_static p = static_of(a, a->x, a->q);
	int kernel;

	if (t->x_dtype == HZ_F32)
		kernel = HZI_KERNEL_hadamard_quantize_static_f32_10 +
			 (k > LOG2_SHORT ? k - LOG2_SHORT : 0);
	else if (t->x_dtype == HZ_F16)
		kernel = HZI_KERNEL_hadamard_quantize_static_f16_5 + k - LOG2_MIN;
	else
		kernel = HZI_KERNEL_hadamard_quantize_static_bf16_5 + k - LOG2_MIN;
	p.ahead = ahead_of(ctx, k);
	return launch(ctx, "quantize", kernel, t, static_warp_bytes(t->x_dtype, k), &p, sizeof(p));
}

const char *hzi_cuda_quantize_hadamard_base_mma_unsupported(const struct hz_context *ctx,
							    const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_args *t;
	const char *why;

	if (!a->rotated)
		return "there is no transform";
	t = &a->rotated->t;
	if (t->x_dtype == HZ_F32)
		return "x is f32";
	why = not_contiguous_rotated(a);
	if (!why)
		why = bad_base_params(a->rotated);
	if (why)
		return why;
	if (!within(t->plan.seg[0].scale, FACTOR_LOG2))
		return "the transform's scale is beyond 2^-40 to 2^40";
	return hzi_hadamard_no_base_mma(ctx, t, total_of(t));
}

int hzi_cuda_quantize_hadamard_base_mma(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_static p = static_of(a, a->x, a->q);

	return hzi_hadamard_base_mma_codes(ctx, &a->rotated->t, &p, true);
}

const char *hzi_cuda_dequantize_hadamard_scaled_unsupported(const struct hz_context *ctx,
							    const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_args *t;
	const char *why;

	if (!a->rotated)
		return "there is no transform";
	t = &a->rotated->t;
	if (t->y_dtype == HZ_F32)
		return "y is f32";
	if (a->zeros)
		return "there are zero points";
	why = not_contiguous_rotated(a);
	if (!why)
		why = bad_length_or_signs(t);
	if (why)
		return why;
	if (!is_single(a->rotated) && (!is_flat(a->rotated) || group_log2(a->rotated->group) < 0))
		return "groups are not powers of two from 32 on with successive parameters";
	return supports_scale(a) ? too_large(ctx, t, 0) : "the product of scales is out of range";
}

int hzi_cuda_dequantize_hadamard_scaled(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const int k = t->plan.seg[0].k;
	struct hzi_hadamard_dequantize p = {
		.f = rows_of(t, a->q, a->x), .scale = a->scales, .q_dtype = HZ_S8,
		.scale_dtype = HZ_F32, .y_dtype = t->y_dtype,
		.group_log2 = is_single(r) ? 62 : group_log2(r->group),
		.signs = t->pre.kind != 0, .ahead = ahead_of(ctx, k),
		.flip = a->q_dtype == HZ_S8 ? FLIP_S8 : 0,
		.base = base_of(a->q_dtype, a->scales ? 0 : a->zero)};

	if (!a->scales)
		p.f.factor *= a->scale;
	return launch(ctx, "dequantize", values_kernel(k, p.group_log2), t, 0, &p, sizeof(p));
}

/* With a base matrix: codes less their zero point are transformed, and sums get their scale. */
const char *hzi_cuda_dequantize_hadamard_base_mma_unsupported(const struct hz_context *ctx,
							      const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_args *t;
	const char *why;

	if (!a->rotated)
		return "there is no transform";
	t = &a->rotated->t;
	if (t->y_dtype == HZ_F32)
		return "y is f32";
	why = not_contiguous_rotated(a);
	if (!why)
		why = bad_base_params(a->rotated);
	if (why)
		return why;
	return supports_scale(a) ? hzi_hadamard_no_base_mma(ctx, t, total_of(t))
				 : "the product of scales is out of range";
}

int hzi_cuda_dequantize_hadamard_base_mma(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_hadamard_static p = static_of(a, a->q, a->x);

	return hzi_hadamard_base_mma_codes(ctx, &a->rotated->t, &p, false);
}
