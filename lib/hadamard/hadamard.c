/*
 * hadamard.c - Walsh-Hadamard transforms: plans, argument checks, calls through the operation table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hadamard/hadamard.h"

#define CPU_LENGTH_MAX ((int64_t)1 << 24)
#define CUDA_LENGTH_MAX ((int64_t)65536)	/* what the shared memory of a cluster holds */

static const hz_hadamard_opts default_opts;

static bool is_power_of_two(int64_t n)
{
	return n > 0 && (n & (n - 1)) == 0;
}

static int log2_of(int64_t power)
{
	return 63 - __builtin_clzll((unsigned long long)power);
}

/* The largest power of two <= n, n > 0. */
static int64_t floor_power(int64_t n)
{
	return (int64_t)1 << log2_of(n);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Why options or a plan failed: a message without the name of the call */
struct why {
	char text[160];
};

static void push(struct hzi_plan *plan, int64_t length, int32_t m, int64_t count)
{
	struct hzi_segment *last = plan->nseg ? &plan->seg[plan->nseg - 1] : NULL;

	if (last && last->length == length) {
		last->count += count;
	} else {
		plan->seg[plan->nseg++] = (struct hzi_segment){
			.offset = plan->n, .count = count, .length = length, .m = m,
			.k = log2_of(length / m)};
	}
	plan->n += length * count;
}

static int plan_greedy(int64_t n, const hz_hadamard_opts *o, struct hzi_plan *plan, struct why *why)
{
	int64_t left = n;

	while (left > 0) {
		const int64_t block =
			floor_power(o->max_block && o->max_block < left ? o->max_block : left);

		if (block < o->min_block) {
			snprintf(why->text, sizeof(why->text),
				 "which the greedy plan cannot make: it needs a block of %lld, "
				 "less than opts->min_block %lld",
				 (long long)block, (long long)o->min_block);
			return HZ_ESHAPE;
		}
		push(plan, block, 1, left / block);
		left %= block;
	}
	return HZ_OK;
}

static void plan_uniform(int64_t n, const hz_hadamard_opts *o, struct hzi_plan *plan)
{
	int64_t block = n & -n;

	if (o->max_block && block > o->max_block)
		block = floor_power(o->max_block);
	push(plan, block, 1, n / block);
}

static int plan_true(int64_t n, const hz_hadamard_opts *o, struct hzi_plan *plan, struct why *why)
{
	const int64_t odd = n / (n & -n);
	/* If m is larger than any table, a check below fails; 4 * odd could overflow. */
	const int64_t m = o->order ? o->order : odd == 1 || odd > HZI_BASE_MAX ? odd : 4 * odd;

	if (m > HZI_BASE_MAX) {
		snprintf(why->text, sizeof(why->text),
			 "which the true plan cannot make: it takes a base matrix of order %lld, and "
			 "these have up to %d; the greedy plan makes any length", (long long)m,
			 HZI_BASE_MAX);
		return HZ_ESHAPE;
	}
	if (n % m || !is_power_of_two(n / m)) {
		snprintf(why->text, sizeof(why->text),
			 "which the true plan cannot make: must be %lld times a power of two; the "
			 "greedy plan makes any length", (long long)m);
		return HZ_ESHAPE;
	}
	if (m == 1 && o->base == HZ_BASE_AUTO) {
		push(plan, n, 1, 1);
		return HZ_OK;
	}
	if (hz_hadamard_base(o->base, (int)m, NULL) < 0) {
		const bool none = hzi_base_auto((int)m) == 0;

		snprintf(why->text, sizeof(why->text),
			 "which the true plan cannot make: %s has no base matrix of order %lld; "
			 "the greedy plan makes any length", none ? "the library" : "opts->base",
			 (long long)m);
		return none ? HZ_ESHAPE : HZ_ENOTSUP;
	}
	push(plan, n, (int32_t)m, 1);
	return HZ_OK;
}

/*
 * Plans the segments of one block of n > 0 elements, without base matrices and scales. *why
 * continues "x is n, ".
 */
static int make_plan(int64_t n, const hz_hadamard_opts *o, struct hzi_plan *plan, struct why *why)
{
	int kind = o->plan;

	plan->n = 0;
	plan->nseg = 0;
	/* GREEDY refuses a power of two below min_block. */
	if (kind == HZ_PLAN_AUTO)
		kind = is_power_of_two(n) && !(o->max_block && o->max_block < n) &&
		       n >= o->min_block ? HZ_PLAN_SYLVESTER : HZ_PLAN_GREEDY;
	switch (kind) {
	case HZ_PLAN_SYLVESTER:
		if (!is_power_of_two(n)) {
			snprintf(why->text, sizeof(why->text),
				 "which the sylvester plan cannot make: must be a power of two; "
				 "the greedy plan makes any length");
			return HZ_ESHAPE;
		}
		push(plan, n, 1, 1);
		return HZ_OK;
	case HZ_PLAN_GREEDY:
		return plan_greedy(n, o, plan, why);
	case HZ_PLAN_UNIFORM:
		plan_uniform(n, o, plan);
		return HZ_OK;
	default:
		return plan_true(n, o, plan, why);
	}
}

struct range {
	const char *name;
	size_t offset, bytes;
	int64_t low, high;
};

static __attribute__((cold)) int fail_range(const struct range *r, int64_t value, struct why *why)
{
	if (r->high == INT64_MAX)
		snprintf(why->text, sizeof(why->text), "opts->%s is %lld, must not be negative",
			 r->name, (long long)value);
	else if (r->low == r->high)
		snprintf(why->text, sizeof(why->text), "opts->%s is %lld, must be %lld", r->name,
			 (long long)value, (long long)r->low);
	else
		snprintf(why->text, sizeof(why->text), "opts->%s is %lld, must be %lld to %lld",
			 r->name, (long long)value, (long long)r->low, (long long)r->high);
	return HZ_EINVAL;
}

/* Checks the range of each option; *why describes the first that fails. */
static int check_opts(const hz_hadamard_opts *o, struct why *why)
{
#define OPTION(name) #name, offsetof(hz_hadamard_opts, name), sizeof(o->name)
	static const struct range range[] = {
		{OPTION(plan), HZ_PLAN_AUTO, HZ_PLAN_TRUE},
		{OPTION(block), 0, INT64_MAX},
		{OPTION(max_block), 0, INT64_MAX},
		{OPTION(min_block), 0, INT64_MAX},
		{OPTION(base), HZ_BASE_AUTO, HZ_BASE_QUIP},
		{OPTION(order), 0, HZI_BASE_MAX},
		{OPTION(reserved[0]), 0, 0},
		{OPTION(reserved[1]), 0, 0},
		{OPTION(reserved[2]), 0, 0},
		{OPTION(reserved[3]), 0, 0},
	};
#undef OPTION

	/* Unrolled, each row becomes a load and a comparison with constants. */
#pragma GCC unroll 16
	for (size_t i = 0; i < sizeof(range) / sizeof(*range); i++) {
		const char *at = (const char *)o + range[i].offset;
		const int64_t value = range[i].bytes == sizeof(int64_t) ? *(const int64_t *)at
									: *(const int32_t *)at;

		if (value < range[i].low || value > range[i].high)
			return fail_range(&range[i], value, why);
	}
	if ((o->base || o->order) && o->plan != HZ_PLAN_TRUE) {
		snprintf(why->text, sizeof(why->text),
			 "opts->%s is %d, must be 0 unless opts->plan is HZ_PLAN_TRUE",
			 o->base ? "base" : "order", o->base ? o->base : o->order);
		return HZ_EINVAL;
	}
	if (o->min_block && o->plan != HZ_PLAN_AUTO && o->plan != HZ_PLAN_GREEDY) {
		snprintf(why->text, sizeof(why->text),
			 "opts->min_block is %lld, must be 0 unless opts->plan is HZ_PLAN_AUTO or "
			 "HZ_PLAN_GREEDY", (long long)o->min_block);
		return HZ_EINVAL;
	}
	if (o->max_block && (o->plan == HZ_PLAN_SYLVESTER || o->plan == HZ_PLAN_TRUE)) {
		snprintf(why->text, sizeof(why->text),
			 "opts->max_block is %lld, must be 0 unless opts->plan is HZ_PLAN_AUTO, "
			 "HZ_PLAN_GREEDY or HZ_PLAN_UNIFORM", (long long)o->max_block);
		return HZ_EINVAL;
	}
	if (o->flags & ~(HZ_HADAMARD_TRANSPOSE | HZ_HADAMARD_RAW)) {
		snprintf(why->text, sizeof(why->text),
			 "opts->flags has unknown bits %#x (valid: HZ_HADAMARD_TRANSPOSE, "
			 "HZ_HADAMARD_RAW)", o->flags & ~(HZ_HADAMARD_TRANSPOSE | HZ_HADAMARD_RAW));
		return HZ_EINVAL;
	}
	if (o->round_to && o->round_to != HZ_F16 && o->round_to != HZ_BF16) {
		snprintf(why->text, sizeof(why->text),
			 "opts->round_to is %s, must be f16, bf16 or 0",
			 hz_dtype_name(o->round_to));
		return HZ_EINVAL;
	}
	if (!isfinite((float)o->factor)) {
		snprintf(why->text, sizeof(why->text), "opts->factor is %g, must be finite in f32",
			 o->factor);
		return HZ_EINVAL;
	}
	return HZ_OK;
}

int64_t hz_hadamard_plan(int64_t n, const hz_hadamard_opts *opts, int64_t *blocks, int64_t max)
{
	struct hzi_plan plan;
	struct why why;
	int64_t written = 0, length, repeat = 1;
	int status;

	if (!opts)
		opts = &default_opts;
	if (n < 0 || (!blocks && max > 0))
		return HZ_EINVAL;
	status = check_opts(opts, &why);
	if (status || n == 0)
		return status;
	length = n;
	if (opts->block) {
		if (n % opts->block)
			return HZ_ESHAPE;
		length = opts->block;
		repeat = n / length;
	}
	status = make_plan(length, opts, &plan, &why);
	if (status)
		return status;
	for (int64_t r = 0; r < repeat; r++) {
		for (int s = 0; s < plan.nseg; s++) {
			for (int64_t c = 0; c < plan.seg[s].count && written < max; c++)
				blocks[written++] = plan.seg[s].length;
		}
		if (written >= max)
			break;
	}
	written = 0;
	for (int s = 0; s < plan.nseg; s++)
		written += plan.seg[s].count * repeat;
	return written;
}

static int64_t length_max(const struct hz_context *ctx)
{
	return ctx->device == HZ_CPU ? CPU_LENGTH_MAX : CUDA_LENGTH_MAX;
}

static float segment_scale(const hz_hadamard_opts *o, int64_t length)
{
	const double factor = o->factor != 0 ? o->factor : 1;

	return (float)(o->flags & HZ_HADAMARD_RAW ? factor : factor / sqrt((double)length));
}

static int check_lengths(const struct hz_context *ctx, const struct hzi_plan *plan, struct why *why)
{
	for (int s = 0; s < plan->nseg; s++) {
		if (plan->seg[s].length <= length_max(ctx))
			continue;
		snprintf(why->text, sizeof(why->text),
			 "which takes a block of %lld: must be up to %lld on the %s%s",
			 (long long)plan->seg[s].length, (long long)length_max(ctx),
			 ctx->device == HZ_CPU ? "CPU" : "GPU", plan->seg[s].m > 1 ? "" :
			 "; opts->max_block limits blocks");
		return HZ_ENOTSUP;
	}
	return HZ_OK;
}

/* Adds base matrices and scales to a plan. */
static int finish_plan(struct hz_context *ctx, const char *op, const hz_hadamard_opts *o,
		       struct hzi_plan *plan)
{
	for (int s = 0; s < plan->nseg; s++) {
		struct hzi_segment *seg = &plan->seg[s];

		if (seg->m > 1)
			HZ_CHECK(hzi_base_get(ctx, op, o->base, seg->m, &seg->base));
		seg->scale = segment_scale(o, seg->length);
	}
	return HZ_OK;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int code_types[] = {HZ_S8, HZ_S4X2, HZ_E4M3, HZ_E5M2, 0};
static const int scale_types[] = {HZ_F32, HZ_E8M0, 0};
static const int diag_types[] = {HZ_U8, HZ_F32, HZ_F16, HZ_BF16, 0};

/* For a view that passed hzi_check() */
static bool is_empty(const hz_tensor *t)
{
	for (int i = 0; i < t->ndim; i++) {
		if (t->shape[i] == 0)
			return true;
	}
	return false;
}

/* Checks signs or factors for a row of n_row elements in blocks of n, and fills *diag. */
static int make_diag(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		     int64_t n_row, int64_t n, struct hzi_diag *diag)
{
	int64_t for_row = n_row, for_block = n;

	HZ_CHECK(hzi_check(ctx, op, name, t, diag_types, false));
	if (t->ndim != 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 1", op, name, t->ndim);
	if (t->dtype == HZ_U8) {
		for_row = (n_row + 7) / 8;
		for_block = (n + 7) / 8;
	}
	if (t->shape[0] != for_row && t->shape[0] != for_block)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[0] is %lld, must be %lld%s", op, name,
				(long long)t->shape[0], (long long)for_row,
				for_block == for_row ? "" :
						       ", or for one block as opts->block says");
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s.stride[0] is %lld, must be 1", op, name,
				(long long)t->stride[0]);
	diag->kind = t->dtype;
	diag->data = hzi_data(ctx, t);
	diag->block_step = t->shape[0] == for_row && n_row != n ? n : 0;
	return HZ_OK;
}

/* Outer dimensions of two or three operands of the same shape */
struct outer {
	int ndim, operands;
	int64_t shape[HZ_MAXDIM], stride[4][HZ_MAXDIM];
};

static void outer_remove(struct outer *o, int d)
{
	o->ndim--;
	for (int i = d; i < o->ndim; i++) {
		o->shape[i] = o->shape[i + 1];
		for (int p = 0; p < o->operands; p++)
			o->stride[p][i] = o->stride[p][i + 1];
	}
}

/* Whether, in every operand, the stride of dimension d is size times step[] */
static bool outer_continues(const struct outer *o, int d, int64_t size, const int64_t *step)
{
	for (int p = 0; p < o->operands; p++) {
		int64_t whole;

		if (__builtin_mul_overflow(size, step[p], &whole) || o->stride[p][d] != whole)
			return false;
	}
	return true;
}

/*
 * Collects all dimensions but axis and those of size 1, sorted by the strides of operand key, and
 * merges them where they are contiguous.
 */
static void outer_make(struct outer *o, const hz_tensor *const *t, int operands, int axis, int key)
{
	o->ndim = 0;
	o->operands = operands;
	for (int i = 0; i < t[0]->ndim; i++) {
		int j = o->ndim;

		if (i == axis || t[0]->shape[i] == 1)
			continue;
		for (; j > 0 && llabs(o->stride[key][j - 1]) < llabs(t[key]->stride[i]); j--) {
			o->shape[j] = o->shape[j - 1];
			for (int p = 0; p < operands; p++)
				o->stride[p][j] = o->stride[p][j - 1];
		}
		o->shape[j] = t[0]->shape[i];
		for (int p = 0; p < operands; p++)
			o->stride[p][j] = t[p]->stride[i];
		o->ndim++;
	}
	for (int d = o->ndim - 2; d >= 0; d--) {
		int64_t step[4] = {0};

		for (int p = 0; p < operands; p++)
			step[p] = o->stride[p][d + 1];
		if (!outer_continues(o, d, o->shape[d + 1], step))
			continue;
		o->shape[d] *= o->shape[d + 1];
		for (int p = 0; p < operands; p++)
			o->stride[p][d] = step[p];
		outer_remove(o, d + 1);
	}
}

/*
 * Merges outer dimensions into the blocks: those that continue the blocks, and, if an item is one
 * contiguous block, the innermost one with any stride.
 */
static void merge_blocks(struct outer *o, struct hzi_hadamard_args *a)
{
	if (a->blocks == 1 && a->x_step == 1 && a->y_step == 1 && o->ndim > 0) {
		const int d = o->ndim - 1;

		a->blocks = o->shape[d];
		a->x_block = o->stride[0][d];
		a->y_block = o->stride[1][d];
		outer_remove(o, d);
	}
	for (int d = o->ndim - 1; d >= 0; d--) {
		if (outer_continues(o, d, a->blocks, (int64_t[4]){a->x_block, a->y_block})) {
			a->blocks *= o->shape[d];
			outer_remove(o, d);
			d = o->ndim;
		}
	}
}

/*
 * Fills what all calls share, from the options and from the axis of the floating-point operand v,
 * called v_name: plan, blocks, diagonals (in the order of application) and transpose.
 */
static int make_common(struct hz_context *ctx, const char *op, const char *v_name,
		       const hz_tensor *v, int axis, const hz_hadamard_opts *o, bool inverse,
		       struct hzi_hadamard_args *a)
{
	const int64_t n_row = v->shape[axis];
	const bool transpose = (o->flags & HZ_HADAMARD_TRANSPOSE) != 0;
	int64_t n = o->block ? o->block : n_row;
	struct why why;
	int status;

	/* Scratch has a row in f32, more than once. */
	if (n_row > INT64_MAX >> 8)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be at most %lld", op,
				v_name, axis, (long long)n_row, (long long)(INT64_MAX >> 8));
	if (n_row % n)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: opts->block is %lld, must divide %lld, the length of axis %d",
				op, (long long)n, (long long)n_row, axis);
	status = make_plan(n, o, &a->plan, &why);
	if (status == HZ_OK)
		status = check_lengths(ctx, &a->plan, &why);
	if (status && o->block)
		return hzi_fail(ctx, status, "%s: opts->block is %lld, %s", op, (long long)n,
				why.text);
	if (status)
		return hzi_fail(ctx, status, "%s: %s.shape[%d] is %lld, %s", op, v_name, axis,
				(long long)n, why.text);
	HZ_CHECK(finish_plan(ctx, op, o, &a->plan));
	a->blocks = n_row / n;
	a->pre = a->post = (struct hzi_diag){0};
	if (o->pre)
		HZ_CHECK(make_diag(ctx, op, "opts->pre", o->pre, n_row, n, &a->pre));
	if (o->post)
		HZ_CHECK(make_diag(ctx, op, "opts->post", o->post, n_row, n, &a->post));
	a->transpose = transpose != inverse;
	if (a->transpose) {
		const struct hzi_diag pre = a->pre;

		a->pre = a->post;
		a->post = pre;
	}
	return HZ_OK;
}

/*
 * Checks options (NULL: the defaults) and sets the axis of v, whose shape counts; only_last: it
 * must be the last dimension.
 */
static int check_begin(struct hz_context *ctx, const char *op, const hz_hadamard_opts **opts,
		       const hz_tensor *v, bool only_last, int *axis)
{
	struct why why;
	int said;

	if (!*opts)
		*opts = &default_opts;
	if (check_opts(*opts, &why) != HZ_OK)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s", op, why.text);
	if (v->ndim < 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is 0, must be 1 to %d", op,
				strcmp(op, "dequantize_hadamard") ? "x" : "y", HZ_MAXDIM);
	said = hzi_axis_said((*opts)->axis);
	*axis = hzi_axis((*opts)->axis, v->ndim);
	if (*axis < 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->axis is HZ_AXIS(%d), must be HZ_AXIS(%d) to "
				"HZ_AXIS(%d), or 0: the last dimension", op, said, -v->ndim, v->ndim - 1);
	if (only_last && *axis != v->ndim - 1)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: opts->axis is HZ_AXIS(%d), must be HZ_AXIS(-1) or 0, the last "
				"dimension; hz_hadamard() takes every axis", op, said);
	return HZ_OK;
}

/* Diagonals are read while an output is written, so they must not overlap it. */
static int check_diags_apart(struct hz_context *ctx, const char *op, const hz_hadamard_opts *o,
			     const char *name, const hz_tensor *out)
{
	if (o->pre)
		HZ_CHECK(hzi_check_apart(ctx, op, "opts->pre", o->pre, name, out));
	if (o->post)
		HZ_CHECK(hzi_check_apart(ctx, op, "opts->post", o->post, name, out));
	return HZ_OK;
}

static void put_outer(const struct outer *o, struct hzi_hadamard_args *a)
{
	a->ndim = o->ndim;
	for (int i = 0; i < o->ndim; i++)
		a->shape[i] = o->shape[i];
}

static void put_strides(const struct outer *o, int operand, int64_t *stride)
{
	for (int i = 0; i < o->ndim; i++)
		stride[i] = o->stride[operand][i];
}

/* ---- hadamard -------------------------------------------------------------------------------- */

/* Whether all options but the factor have their defaults */
static bool is_default(const hz_hadamard_opts *o)
{
	return !(o->plan | o->axis | o->base | o->order | o->round_to) && !o->flags &&
	       !(o->block | o->max_block | o->min_block) && !o->pre && !o->post &&
	       !(o->reserved[0] | o->reserved[1] | o->reserved[2] | o->reserved[3]);
}

/* Whether contiguous operands of count elements overlap */
static bool overlap(const hz_tensor *x, const hz_tensor *y, int64_t count)
{
	const uintptr_t x_begin = (uintptr_t)x->data, y_begin = (uintptr_t)y->data;
	const uintptr_t n = (uintptr_t)count;

	return x_begin < y_begin + n * hz_dtype_size(y->dtype) &&
	       y_begin < x_begin + n * hz_dtype_size(x->dtype);
}

static bool has_shape_of(const hz_tensor *x, const hz_tensor *y)
{
	bool same = y->ndim == x->ndim;

	for (int i = 0; same && i < x->ndim; i++)
		same = x->shape[i] == y->shape[i];
	return same;
}

/* Whether y differs from x, a contiguous view, in its data alone, so that it need not be checked */
static bool is_alike(const hz_tensor *x, const hz_tensor *y)
{
	const uintptr_t size = x->dtype == HZ_F32 ? 4 : 2;
	bool same = y && y->dtype == x->dtype && y->ndim == x->ndim && y->device == x->device &&
		    y->data && (uintptr_t)y->data % size == 0;

	for (int i = 0; same && i < x->ndim; i++)
		same = x->shape[i] == y->shape[i] && x->stride[i] == y->stride[i];
	return same;
}

/*
 * Fast path of hadamard_args(): true for default options and contiguous rows of a power of two, in
 * operands that are identical or do not overlap; fills *a. For a few rows the checks take as long
 * as the transform: 13 ns here, 29 ns one by one.
 */
static bool fast_args(const struct hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
			const hz_hadamard_opts *o, struct hzi_hadamard_args *a)
{
	int64_t count, n;

	if (ctx->verbose || (o && !(is_default(o) && isfinite((float)o->factor))) ||
	    !hzi_check_contiguous(ctx, x, float_types, &count) || x->ndim < 1)
		return false;
	if (x != y) {
		if (!is_alike(x, y) && (!hzi_check_contiguous(ctx, y, float_types, &n) ||
					!has_shape_of(x, y)))
			return false;
		if (!(x->data == y->data && x->dtype == y->dtype) && overlap(x, y, count))
			return false;
	}
	n = x->shape[x->ndim - 1];
	if (!is_power_of_two(n) || n > length_max(ctx))
		return false;
	a->x = x->data;
	a->y = y->data;
	a->x_dtype = x->dtype;
	a->y_dtype = y->dtype;
	a->x_step = a->y_step = 1;
	a->x_block = a->y_block = n;
	a->blocks = count >> log2_of(n);
	a->ndim = 0;
	a->pre = a->post = (struct hzi_diag){0};
	a->transpose = false;
	a->plan.n = n;
	a->plan.nseg = 1;
	a->plan.seg[0] = (struct hzi_segment){
		.count = 1, .length = n, .m = 1, .k = log2_of(n),
		.scale = segment_scale(o ? o : &default_opts, n)};
	return true;
}

static int hadamard_args(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
			 const hz_hadamard_opts *o, struct hzi_hadamard_args *a, bool *empty)
{
	static const char op[] = "hadamard";
	struct outer outer;
	int axis = 0;

	HZI_ENTER(ctx, op);
	*empty = false;
	/* What is not filled here is also searched for addresses, by hzi_misalign(). */
	if (ctx->recording)
		memset(a, 0, sizeof(*a));
	if (fast_args(ctx, x, y, o, a))
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, op, "x", x, float_types, false));
	HZ_CHECK(hzi_check(ctx, op, "y", y, float_types, true));
	HZ_CHECK(hzi_check_same_shape(ctx, op, "x", x, "y", y));
	HZ_CHECK(check_begin(ctx, op, &o, x, false, &axis));
	*empty = is_empty(x);
	if (*empty)
		return HZ_OK;
	HZ_CHECK(make_common(ctx, op, "x", x, axis, o, false, a));
	HZ_CHECK(hzi_check_apart_or_same(ctx, op, "x", x, "y", y));
	HZ_CHECK(check_diags_apart(ctx, op, o, "y", y));

	a->x = hzi_data(ctx, x);
	a->y = hzi_data(ctx, y);
	a->x_dtype = x->dtype;
	a->y_dtype = y->dtype;
	a->x_step = x->shape[axis] == 1 ? 1 : x->stride[axis];
	a->y_step = x->shape[axis] == 1 ? 1 : y->stride[axis];
	a->x_block = a->plan.n * a->x_step;
	a->y_block = a->plan.n * a->y_step;
	outer_make(&outer, (const hz_tensor *[]){x, y}, 2, axis, 1);
	if (a->pre.block_step == 0 && a->post.block_step == 0)
		merge_blocks(&outer, a);
	put_outer(&outer, a);
	put_strides(&outer, 0, a->x_stride);
	put_strides(&outer, 1, a->y_stride);
	return HZ_OK;
}

int hz_hadamard(hz_context *ctx, const hz_tensor *x, hz_tensor *y,
		const hz_hadamard_opts *opts)
{
	struct hzi_hadamard_args a;
	bool empty = false;

	HZ_CHECK(hadamard_args(ctx, x, y, opts, &a, &empty));
	if (empty)
		return HZ_OK;
	return HZI_RUN(ctx, "hadamard", hadamard, hadamard, &a);
}

int hzi_hadamard_workspace(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
			   const hz_hadamard_opts *opts, size_t *bytes)
{
	struct hzi_hadamard_args a;
	bool empty = false;

	HZ_CHECK(hadamard_args(ctx, x, y, opts, &a, &empty));
	*bytes = empty ? 0 : HZI_WORKSPACE(ctx, hadamard, hadamard, &a);
	return HZ_OK;
}

/* ---- hadamard_quantize and dequantize_hadamard ----------------------------------------------- */

/* Checks shapes and strides of codes and scales against the floating-point operand v. */
static int check_codes(struct hz_context *ctx, const char *op, const char *v_name,
		       const hz_tensor *v, const hz_tensor *q, const hz_tensor *scale,
		       int64_t *group)
{
	const int last = v->ndim - 1;
	const int64_t n = v->shape[last];
	const int64_t per_byte = q->dtype == HZ_S4X2 ? 2 : 1;
	const struct {
		const char *name;
		const hz_tensor *t;
	} operand[] = {{"q", q}, {"scale", scale}};

	for (int p = 0; p < 2; p++) {
		const hz_tensor *t = operand[p].t;

		if (t->ndim != v->ndim)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d, as %s", op,
					operand[p].name, t->ndim, v->ndim, v_name);
		for (int i = 0; i < last; i++) {
			if (t->shape[i] != v->shape[i])
				return hzi_fail(ctx, HZ_ESHAPE,
						"%s: %s.shape[%d] is %lld, must be %lld, as %s", op,
						operand[p].name, i, (long long)t->shape[i],
						(long long)v->shape[i], v_name);
		}
		if (t->shape[last] > 1 && t->stride[last] != 1)
			return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s.stride[%d] is %lld, must be 1", op,
					operand[p].name, last, (long long)t->stride[last]);
	}
	if (n % per_byte)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be even for s4x2",
				op, v_name, last, (long long)n);
	if (q->shape[last] != n / per_byte)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: q.shape[%d] is %lld, must be %lld", op, last,
				(long long)q->shape[last], (long long)(n / per_byte));
	if (is_empty(v))
		return HZ_OK;
	*group = scale->shape[last] > 0 && n % scale->shape[last] == 0 ? n / scale->shape[last] : 0;
	if (*group != n && n % 32)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: scale.shape[%d] is %lld, must be 1: %lld is no multiple of 32",
				op, last, (long long)scale->shape[last], (long long)n);
	if (*group != n && *group != 32 && *group != 64 && *group != 128)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: scale.shape[%d] is %lld, must be 1, or %lld divided by 32, 64 "
				"or 128", op,
				last, (long long)scale->shape[last], (long long)n);
	return HZ_OK;
}

/*
 * Zeros an argument struct of that many bytes, which begins with t, except for the plan: it is by
 * far the largest member, and only the used part of it is filled. While the context records, the
 * plan too.
 */
static void clear_codes_args(const struct hz_context *ctx, struct hzi_hadamard_args *t, size_t bytes)
{
	const size_t plan_end = offsetof(struct hzi_hadamard_args, plan) + sizeof(t->plan);

	if (ctx->recording)
		memset(&t->plan, 0, sizeof(t->plan));
	memset(t, 0, offsetof(struct hzi_hadamard_args, plan));
	memset((char *)t + plan_end, 0, bytes - plan_end);
}

static int quantize_args(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
			 const hz_tensor *scale, const hz_hadamard_opts *o,
			 struct hzi_hadamard_quantize_args *a, bool *empty)
{
	static const char op[] = "hadamard_quantize";
	struct outer outer;
	int axis = 0;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_check(ctx, op, "x", x, float_types, false));
	HZ_CHECK(hzi_check(ctx, op, "q", q, code_types, true));
	HZ_CHECK(hzi_check(ctx, op, "scale", scale, scale_types, true));
	HZ_CHECK(check_begin(ctx, op, &o, x, true, &axis));
	clear_codes_args(ctx, &a->t, sizeof(*a));
	HZ_CHECK(check_codes(ctx, op, "x", x, q, scale, &a->group));
	*empty = is_empty(x);
	if (*empty)
		return HZ_OK;
	HZ_CHECK(make_common(ctx, op, "x", x, axis, o, false, &a->t));
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "q", q));
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "scale", scale));
	HZ_CHECK(hzi_check_apart(ctx, op, "q", q, "scale", scale));
	HZ_CHECK(check_diags_apart(ctx, op, o, "q", q));
	HZ_CHECK(check_diags_apart(ctx, op, o, "scale", scale));

	a->t.x = hzi_data(ctx, x);
	a->t.x_dtype = x->dtype;
	a->t.y_dtype = HZ_F32;
	a->t.x_step = x->shape[axis] == 1 ? 1 : x->stride[axis];
	a->t.x_block = a->t.plan.n * a->t.x_step;
	a->q = hzi_data(ctx, q);
	a->scale = hzi_data(ctx, scale);
	a->q_dtype = q->dtype;
	a->scale_dtype = scale->dtype;
	a->round_to = o->round_to;
	outer_make(&outer, (const hz_tensor *[]){x, q, scale}, 3, axis, 1);
	put_outer(&outer, &a->t);
	put_strides(&outer, 0, a->t.x_stride);
	put_strides(&outer, 1, a->q_stride);
	put_strides(&outer, 2, a->scale_stride);
	return HZ_OK;
}

int hz_hadamard_quantize(hz_context *ctx, const hz_tensor *x, hz_tensor *q,
			 hz_tensor *scale, const hz_hadamard_opts *opts)
{
	struct hzi_hadamard_quantize_args a;
	bool empty = false;

	HZ_CHECK(quantize_args(ctx, x, q, scale, opts, &a, &empty));
	if (empty)
		return HZ_OK;
	return HZI_RUN(ctx, "hadamard_quantize", hadamard, hadamard_quantize, &a);
}

static int dequantize_args(struct hz_context *ctx, const hz_tensor *q, const hz_tensor *scale,
			   const hz_tensor *y, const hz_hadamard_opts *o,
			   struct hzi_dequantize_hadamard_args *a, bool *empty)
{
	static const char op[] = "dequantize_hadamard";
	struct outer outer;
	int axis = 0;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_check(ctx, op, "q", q, code_types, false));
	HZ_CHECK(hzi_check(ctx, op, "scale", scale, scale_types, false));
	HZ_CHECK(hzi_check(ctx, op, "y", y, float_types, true));
	HZ_CHECK(check_begin(ctx, op, &o, y, true, &axis));
	clear_codes_args(ctx, &a->t, sizeof(*a));
	HZ_CHECK(check_codes(ctx, op, "y", y, q, scale, &a->group));
	*empty = is_empty(y);
	if (*empty)
		return HZ_OK;
	HZ_CHECK(make_common(ctx, op, "y", y, axis, o, true, &a->t));
	HZ_CHECK(hzi_check_apart(ctx, op, "q", q, "y", y));
	HZ_CHECK(hzi_check_apart(ctx, op, "scale", scale, "y", y));
	HZ_CHECK(check_diags_apart(ctx, op, o, "y", y));

	a->t.y = hzi_data(ctx, y);
	a->t.y_dtype = y->dtype;
	a->t.x_dtype = HZ_F32;
	a->t.y_step = y->shape[axis] == 1 ? 1 : y->stride[axis];
	a->t.y_block = a->t.plan.n * a->t.y_step;
	a->q = hzi_data(ctx, q);
	a->scale = hzi_data(ctx, scale);
	a->q_dtype = q->dtype;
	a->scale_dtype = scale->dtype;
	outer_make(&outer, (const hz_tensor *[]){y, q, scale}, 3, axis, 0);
	put_outer(&outer, &a->t);
	put_strides(&outer, 0, a->t.y_stride);
	put_strides(&outer, 1, a->q_stride);
	put_strides(&outer, 2, a->scale_stride);
	return HZ_OK;
}

int hz_dequantize_hadamard(hz_context *ctx, const hz_tensor *q, const hz_tensor *scale,
			   hz_tensor *y, const hz_hadamard_opts *opts)
{
	struct hzi_dequantize_hadamard_args a;
	bool empty = false;

	HZ_CHECK(dequantize_args(ctx, q, scale, y, opts, &a, &empty));
	if (empty)
		return HZ_OK;
	return HZI_RUN(ctx, "dequantize_hadamard", hadamard, dequantize_hadamard, &a);
}

/* ---- quantize and dequantize with a transform ------------------------------------------------ */

int hzi_rotated_args(struct hz_context *ctx, const char *op, const char *v_name,
		     const hz_tensor *v, const char *q_name, const hz_tensor *q,
		     const hz_tensor *p, int64_t group, const hz_hadamard_opts *o,
		     bool dequantize, struct hzi_rotated *r)
{
	const hz_tensor *out = dequantize ? v : q;
	const int64_t params = p ? hz_tensor_count(p) : 1;
	struct hzi_hadamard_args *t = &r->t;
	hz_tensor shared = *v, order = hz_tensor_nd(NULL, HZ_U8, HZ_CPU, v->ndim, v->shape);
	struct outer outer;
	int axis = 0;

	if (v->ndim < 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is 0, must be 1 to %d", op, v_name,
				HZ_MAXDIM);
	HZ_CHECK(check_begin(ctx, op, &o, v, true, &axis));
	if (hz_tensor_count(v) == 0)
		return HZ_OK;
	clear_codes_args(ctx, t, sizeof(*r));
	HZ_CHECK(make_common(ctx, op, v_name, v, axis, o, dequantize, t));
	HZ_CHECK(check_diags_apart(ctx, op, o, dequantize ? v_name : q_name, out));

	/* Parameters as a view of v's shape, with a stride of 0 where elements share a parameter */
	for (int d = 0; d < v->ndim; d++)
		shared.stride[d] = params > 1 && p->shape[d] > 1 ? p->stride[d] : 0;
	r->group = group ? group : v->shape[axis] / (params > 1 ? p->shape[axis] : 1);
	if (dequantize) {
		t->y = hzi_data(ctx, v);
		t->y_dtype = v->dtype;
		t->x_dtype = HZ_F32;
		t->y_step = v->shape[axis] == 1 ? 1 : v->stride[axis];
		t->y_block = t->plan.n * t->y_step;
	} else {
		t->x = hzi_data(ctx, v);
		t->x_dtype = v->dtype;
		t->y_dtype = HZ_F32;
		t->x_step = v->shape[axis] == 1 ? 1 : v->stride[axis];
		t->x_block = t->plan.n * t->x_step;
	}
	r->q_step = v->shape[axis] == 1 ? 1 : q->stride[axis];
	outer_make(&outer, (const hz_tensor *[]){v, q, &shared, &order}, group ? 4 : 3,
		   axis, dequantize ? 0 : 1);
	put_outer(&outer, t);
	put_strides(&outer, 0, dequantize ? t->y_stride : t->x_stride);
	put_strides(&outer, 1, r->q_stride);
	put_strides(&outer, 2, r->p_stride);
	if (group)
		put_strides(&outer, 3, r->r_stride);
	return HZ_OK;
}

/* ---- Random signs ---------------------------------------------------------------------------- */

/* The first output of splitmix64 (Steele, Lea, Flood 2014) from that state */
static uint64_t splitmix64(uint64_t state)
{
	uint64_t z = state + 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

int hz_hadamard_signs(uint8_t *bits, int64_t n, uint64_t seed)
{
	if (n < 0 || (n > 0 && !bits))
		return HZ_EINVAL;
	for (int64_t byte = 0; byte < (n + 7) / 8; byte++)
		bits[byte] = (uint8_t)(splitmix64(seed + (uint64_t)byte / 8) >> (byte % 8 * 8));
	if (n % 8)
		bits[n / 8] &= (uint8_t)((1u << n % 8) - 1);
	return HZ_OK;
}
