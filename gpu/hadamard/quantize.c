/*
 * quantize.c - launchers of the kernels from 16-bit rows back to back to codes, and back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/runtime/cuda.h"
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
 * Whether transforms, codes and scales lie back to back: strides are those of the one outer
 * dimension of the 16-bit side, of codes and of scales.
 */
static bool back_to_back(const struct hzi_hadamard_args *t, int64_t step, int64_t block,
			 int64_t stride, int64_t q_stride, int q_dtype, int64_t scale_stride,
			 int64_t group)
{
	const int64_t row = t->blocks * t->plan.n;

	return t->plan.nseg == 1 && t->plan.seg[0].m == 1 && step == 1 && block == t->plan.n &&
	       (t->ndim == 0 || (t->ndim == 1 && stride == row && scale_stride == row / group &&
				 q_stride == (q_dtype == HZ_S4X2 ? row / 2 : row)));
}

/* Whether the kernels can take these signs: none, or the same whole words for every transform */
static bool takes_signs(const struct hzi_hadamard_args *t, const struct hzi_diag *diag)
{
	return !diag->kind || (diag->kind == HZ_U8 && (diag->block_step == 0 || t->blocks == 1) &&
			       t->plan.seg[0].count == 1 && (uintptr_t)diag->data % 4 == 0);
}

/* What both ways ask of the transform; log2 of the group, or -1 if they cannot do it */
static int group_log2(const struct hzi_hadamard_args *t, int64_t group)
{
	const int log2 = 63 - __builtin_clzll((unsigned long long)group);
	const int k = t->plan.seg[0].k;

	return k >= LOG2_MIN && k <= LOG2_MAX && takes_signs(t, &t->pre) &&
			       takes_signs(t, &t->post) &&
			       group == (int64_t)1 << log2 && log2 >= LOG2_MIN
		       ? log2
		       : -1;
}

static struct hzi_hadamard_fast rows_of(const struct hzi_hadamard_args *t, const void *x, void *y)
{
	const struct hzi_segment *seg = &t->plan.seg[0];

	return (struct hzi_hadamard_fast){
		.x = x, .y = y, .pre = t->pre.data, .post = t->post.data,
		.total = (t->ndim ? t->shape[0] : 1) * t->blocks * t->plan.n,
		.mask = seg->length - 1, .k = seg->k, .factor = seg->scale};
}

static int64_t tile_of(int k)
{
	return k > LOG2_SHORT ? (int64_t)1 << k : WARPS_SHORT * 1024;
}

/* Blocks to one that starts when the first ends */
static uint32_t ahead_of(const struct hz_context *ctx, int k)
{
	return (uint32_t)(hzi_cuda_device(ctx)->multiprocessors * (AHEAD_SM / tile_of(k)));
}

/* Launches the kernel with so much shared memory for a warp, of a longer row beside its values; or
 * not. */
static int launch(struct hz_context *ctx, const char *op, int kernel,
		  const struct hzi_hadamard_fast *f, int warp_bytes, const void *params,
		  size_t bytes, bool *done)
{
	const int above = f->k > LOG2_SHORT ? f->k - LOG2_SHORT : 0;
	const int64_t tile = tile_of(f->k), blocks = f->total / tile + (f->total % tile != 0);
	struct hzi_launch l = {.block = {above ? 32u << above : 32 * WARPS_SHORT}};

	l.shared_bytes = above ? (unsigned)(HZI_FAST_WARP_BYTES + warp_bytes) << above
			       : (unsigned)(warp_bytes * WARPS_SHORT);
	if (blocks > GRID_MAX || (int64_t)l.shared_bytes > hzi_cuda_device(ctx)->shared_block_bytes)
		return HZ_OK;
	l.grid[0] = (unsigned)blocks;
	*done = true;
	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

static float most_of(int q_dtype)
{
	return q_dtype == HZ_S8 ? 127 : q_dtype == HZ_S4X2 ? 7 : q_dtype == HZ_E4M3 ? 448 : 57344;
}

int hzi_hadamard_quantize_fast(struct hz_context *ctx, const struct hzi_hadamard_quantize_args *a,
			       bool *done)
{
	const struct hzi_hadamard_args *t = &a->t;
	const int k = t->plan.seg[0].k, group = group_log2(t, a->group);
	const bool row = k > LOG2_SHORT && group == k && t->blocks * t->plan.n == a->group;
	const float factor = fabsf(t->plan.seg[0].scale);
	const struct hzi_hadamard_quantize p = {
		.f = rows_of(t, t->x, a->q), .scale = a->scale, .q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype, .round_to = a->round_to, .group_log2 = group,
		.most = most_of(a->q_dtype), .inverse = 1 / most_of(a->q_dtype),
		.signs = t->pre.kind != 0, .finish = t->post.kind || a->round_to,
		.ahead = ahead_of(ctx, k)};

	*done = false;
	if (t->x_dtype == HZ_F32 || group < 0 ||
	    !back_to_back(t, t->x_step, t->x_block, t->x_stride[0], a->q_stride[0], a->q_dtype,
			  a->scale_stride[0], a->group) ||
	    (uintptr_t)t->x % 16 || (uintptr_t)a->q % 8)
		return HZ_OK;
	if (!(factor >= ldexpf(1, -FACTOR_LOG2) && factor <= ldexpf(1, FACTOR_LOG2)))
		return HZ_OK;
	if (k > LOG2_SHORT ? !row && (group > GROUP_MAX || k > LOG2_GROUPS) : group > LOG2_SHORT)
		return HZ_OK;
	return launch(ctx, "hadamard_quantize",
		      (t->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_codes_f16_5
					    : HZI_KERNEL_hadamard_codes_bf16_5) +
			      k - LOG2_MIN + (k > LOG2_SHORT && !row ? LOG2_MAX - LOG2_SHORT : 0),
		      &p.f, row ? WORD_BYTES : 0, &p, sizeof(p), done);
}

#define FLIP_S8 0x80808080u

/* -1024 less the zero, of codes that were made unsigned, twice as f16 */
static uint32_t base_of(int q_dtype, int32_t zero)
{
	const uint32_t base = 0xe400u + (uint32_t)(q_dtype == HZ_S8 ? zero + 128 : zero);

	return base | base << 16;
}

int hzi_dequantize_hadamard_fast(struct hz_context *ctx,
				 const struct hzi_dequantize_hadamard_args *a, bool *done)
{
	const struct hzi_hadamard_args *t = &a->t;
	const int k = t->plan.seg[0].k, group = group_log2(t, a->group);
	const struct hzi_hadamard_values p = {
		.f = rows_of(t, a->q, t->y), .scale = a->scale, .q_dtype = a->q_dtype,
		.scale_dtype = a->scale_dtype, .y_dtype = t->y_dtype, .group_log2 = group,
		.signs = t->pre.kind != 0, .ahead = ahead_of(ctx, k), .flip = FLIP_S8,
		.base = base_of(HZ_S8, 0)};

	*done = false;
	if (t->y_dtype == HZ_F32 || group < 0 ||
	    !back_to_back(t, t->y_step, t->y_block, t->y_stride[0], a->q_stride[0], a->q_dtype,
			  a->scale_stride[0], a->group) ||
	    (uintptr_t)t->y % 16 || (uintptr_t)a->q % 8)
		return HZ_OK;
	/* The product with a scale must not leave the range that the scale is in. */
	if (!(fabsf(t->plan.seg[0].scale) <= 1))
		return HZ_OK;
	return launch(ctx, "dequantize_hadamard",
		      HZI_KERNEL_hadamard_values_5 + 2 * (k - LOG2_MIN) + (group < THREAD_LOG2(k)),
		      &p.f, 0, &p, sizeof(p), done);
}

/* ---- Scales and zeros that are given --------------------------------------------------------- */

/* Rows back to back on both sides, of one kind of transforms each */
static bool lies_rotated(const struct hzi_rotated *r, int64_t step, int64_t block, int64_t stride)
{
	const struct hzi_hadamard_args *t = &r->t;
	const int64_t row = t->blocks * t->plan.n;

	return t->plan.nseg == 1 && step == 1 && block == t->plan.n && r->q_step == 1 &&
	       (t->ndim == 0 || (t->ndim == 1 && stride == row && r->q_stride[0] == row));
}

/* Whether the kernels of 2^k have the length and take the signs */
static bool takes_rotated(const struct hzi_hadamard_args *t)
{
	const int k = t->plan.seg[0].k;

	return t->plan.seg[0].m == 1 && k >= LOG2_MIN && k <= LOG2_MAX &&
	       takes_signs(t, &t->pre) && takes_signs(t, &t->post);
}

static bool within(float factor, int log2)
{
	return fabsf(factor) >= ldexpf(1, -log2) && fabsf(factor) <= ldexpf(1, log2);
}

/* One parameter for all, each group of a row having none of its own */
static bool is_single(const struct hzi_rotated *r)
{
	return r->group == r->t.blocks * r->t.plan.n && (r->t.ndim == 0 || r->p_stride[0] == 0);
}

/* Parameters of groups follow each other in the order of the rows. */
static bool is_flat(const struct hzi_rotated *r)
{
	return r->t.ndim == 0 || r->p_stride[0] == r->t.blocks * r->t.plan.n / r->group;
}

/* How kernels find the parameters of r; or not */
static bool group_params(const struct hzi_rotated *r, struct hzi_hadamard_static *p)
{
	if (is_single(r))
		return true;
	if (!is_flat(r) || r->group % 8 || p->f.total / 8 > INT32_MAX)
		return false;
	p->group = hzi_make_quotient(r->group / 8);
	return true;
}

static struct hzi_hadamard_static static_of(const struct hzi_codes_args *a)
{
	return (struct hzi_hadamard_static){
		.scales = a->scales, .zeros = a->zeros, .is_signed = a->q_dtype == HZ_S8,
		.scale = a->scale, .zero = a->zero, .signs = a->rotated->t.pre.kind != 0};
}

/*
 * Whether factor times a scale can be what sums are multiplied with: the product must not leave the
 * range that scales of an array are in; with one scale it has to be a usual number.
 */
static bool takes_scale(const struct hzi_codes_args *a, float factor)
{
	return a->scales ? fabsf(factor) <= 1 : within(factor * a->scale, 100);
}

int hzi_hadamard_static_fast(struct hz_context *ctx, const struct hzi_codes_args *a, bool *done)
{
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const int k = t->plan.seg[0].k;
	const bool f32 = t->x_dtype == HZ_F32;
	struct hzi_hadamard_static p = static_of(a);

	*done = false;
	if (!lies_rotated(r, t->x_step, t->x_block, t->x_stride[0]) ||
	    !within(t->plan.seg[0].scale, FACTOR_LOG2) || (uintptr_t)a->x % 16 ||
	    (uintptr_t)a->q % 8)
		return HZ_OK;
	p.f = rows_of(t, a->x, a->q);
	if (!group_params(r, &p))
		return HZ_OK;
	if (t->plan.seg[0].m > 1)
		return f32 || (p.group.divisor && r->group % t->plan.n)
			       ? HZ_OK
			       : hzi_hadamard_base_codes(ctx, t, &p, done);
	if (!takes_rotated(t))
		return HZ_OK;
	p.ahead = ahead_of(ctx, k);
	if (f32)
		return launch(ctx, "quantize",
			      HZI_KERNEL_hadamard_static_f32_10 +
				      (k > LOG2_SHORT ? k - LOG2_SHORT : 0),
			      &p.f,
			      k > LOG2_SHORT ? HZI_STATIC_WARP_BYTES : HZI_FAST_WARP_BYTES,
			      &p, sizeof(p), done);
	return launch(ctx, "quantize",
		      (t->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_static_f16_5
					    : HZI_KERNEL_hadamard_static_bf16_5) +
			      k - LOG2_MIN,
		      &p.f, k > LOG2_SHORT ? HZI_STATIC_WARP_BYTES : 0, &p, sizeof(p), done);
}

/* With base matrices: codes less their zero are transformed, and sums get their scale. */
static int dequantize_base(struct hz_context *ctx, const struct hzi_codes_args *a, bool *done)
{
	const struct hzi_rotated *r = a->rotated;
	const float factor = r->t.plan.seg[0].scale;
	struct hzi_hadamard_static p = static_of(a);

	p.f = rows_of(&r->t, a->q, a->x);
	if (!group_params(r, &p) || (p.group.divisor && r->group % r->t.plan.n) ||
	    !takes_scale(a, factor))
		return HZ_OK;
	return hzi_hadamard_base_values(ctx, &r->t, &p, done);
}

int hzi_dequantize_static_fast(struct hz_context *ctx, const struct hzi_codes_args *a, bool *done)
{
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const int k = t->plan.seg[0].k;
	const int32_t zero = a->scales ? 0 : a->zero;
	struct hzi_hadamard_values p = {
		.scale = a->scales, .q_dtype = HZ_S8, .scale_dtype = HZ_F32,
		.y_dtype = t->y_dtype, .group_log2 = 62, .signs = t->pre.kind != 0,
		.flip = a->q_dtype == HZ_S8 ? FLIP_S8 : 0, .base = base_of(a->q_dtype, zero)};

	*done = false;
	if (t->y_dtype == HZ_F32 ||
	    !lies_rotated(r, t->y_step, t->y_block, t->y_stride[0]) || (uintptr_t)a->x % 16 ||
	    (uintptr_t)a->q % 8)
		return HZ_OK;
	if (t->plan.seg[0].m > 1)
		return dequantize_base(ctx, a, done);
	if (a->zeros || !takes_rotated(t))
		return HZ_OK;
	p.f = rows_of(t, a->q, a->x);
	p.ahead = ahead_of(ctx, k);
	if (!is_single(r)) {
		p.group_log2 = group_log2(t, r->group);
		if (!is_flat(r) || p.group_log2 < 0)
			return HZ_OK;
	}
	if (!takes_scale(a, p.f.factor))
		return HZ_OK;
	if (!a->scales)
		p.f.factor *= a->scale;
	return launch(ctx, "dequantize",
		      HZI_KERNEL_hadamard_values_5 + 2 * (k - LOG2_MIN) +
			      (p.group_log2 < THREAD_LOG2(k)),
		      &p.f, 0, &p, sizeof(p), done);
}
