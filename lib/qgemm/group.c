/*
 * group.c - linear layers with group-wise quantized weights: argument checks
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "lib/qgemm/qgemm.h"

#define PACK_OP "qlinear_group_pack"

static const int x_types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_S8, 0};
static const int w_types[] = {HZ_U8, HZ_S8, HZ_E4M3, HZ_U4X2, HZ_S4X2, HZ_E2M1X2, 0};
static const int scale_types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_E8M0, HZ_E4M3, 0};
static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int f32_type[] = {HZ_F32, 0};

/* ---- W --------------------------------------------------------------------------------------- */

/* Packed layouts of CPU and CUDA are the same but for SHORT; that of a hz_packed has its group. */
#define LAYOUT_GROUP 0x100u
#define LAYOUT_ZEROS 0x200u
#define LAYOUT_SHORT 0x400u		/* scales as bf16, too */
#define LAYOUT_SHIFT 16		/* of group / 16, 0: one scale a column */

static void fill_layout(struct hzi_group_layout *l, int64_t k, int64_t n, int64_t group,
			int w_dtype, bool zeros, bool shorts)
{
	const bool four_bit = hzi_format_bits(w_dtype) == 4;

	*l = (struct hzi_group_layout){
		.k = k, .n = n,
		.group = group ? group : hzi_round_up(k, HZI_GROUP_UNIT) + HZI_GROUP_CHUNK,
		.steps = hzi_round_up(k, HZI_GROUP_STEP) / HZI_GROUP_STEP,
		.panels = hzi_round_up(n, HZI_GROUP_COLUMNS) / HZI_GROUP_COLUMNS,
		.kind = w_dtype == HZ_E4M3 ? HZI_GROUP_E4M3 : w_dtype == HZ_E2M1X2 ? HZI_GROUP_E2M1
			: four_bit ? HZI_GROUP_U4 : HZI_GROUP_U8,
		.zero = w_dtype == HZ_S4X2 ? 8 : w_dtype == HZ_S8 ? 128 :
			w_dtype == HZ_E2M1X2 ? 12 : 0,
	};
	l->groups = group ? hzi_round_up(l->steps * HZI_GROUP_STEP, group) / group : 1;
	l->panel_bytes = hzi_round_up(k, HZI_GROUP_UNIT) * HZI_GROUP_COLUMNS / (four_bit ? 2 : 1);
	l->scale_at = l->panels * l->panel_bytes;
	l->bytes = l->scale_at + l->panels * l->groups * HZI_GROUP_COLUMNS * 4;
	if (zeros) {
		l->zero_at = l->bytes;
		l->bytes += l->panels * l->groups * HZI_GROUP_COLUMNS * 4;
	}
	l->bytes = hzi_round_up(l->bytes, 64);
	if (shorts) {
		l->short_at = l->bytes;
		l->bytes += l->panels * (hzi_round_up(k, HZI_GROUP_UNIT) / HZI_GROUP_UNIT) *
			    HZI_GROUP_SHORT_BYTES(group);
	}
}

/* Checks the shape of scales or zeros: [groups, n]. */
static int check_groups(struct hz_context *ctx, const char *op, const char *name,
			const hz_tensor *t, int64_t groups, int64_t n)
{
	if (t->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 2: [k / group, n]", op,
				name, t->ndim);
	if (groups >= 0 && t->shape[0] != groups)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[0] is %lld, must be %lld", op, name,
				(long long)t->shape[0], (long long)groups);
	if (t->shape[1] != n)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[1] is %lld, must be %lld, as w", op,
				name, (long long)t->shape[1], (long long)n);
	return HZ_OK;
}

/* The group of k: what opts says, else the shape of the scales; 0: one scale a column */
static int find_group(struct hz_context *ctx, const char *op, const hz_qlinear_group_opts *o,
		      const hz_tensor *scales, int64_t k, int64_t *group)
{
	const int64_t groups = scales->shape[0];

	*group = o->group ? o->group : groups > 1 && k % groups == 0 ? k / groups : 0;
	if (o->group == 0 && groups != 1 && *group == 0 && k > 0)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: scales.shape[0] is %lld, which does not divide "
				"k, %lld: set opts->group", op, (long long)groups, (long long)k);
	if (*group != 0 && *group != 16 && *group != 32 && *group != 64 && *group != 128)
		return hzi_fail(ctx, o->group ? HZ_EINVAL : HZ_ESHAPE, "%s: %s is %lld, must be 16, "
				"32, 64 or 128, or scales [1, n]", op,
				o->group ? "opts->group" : "k / scales.shape[0]",
				(long long)*group);
	if (*group && groups != (k + *group - 1) / *group)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: scales.shape[0] is %lld, must be %lld for "
				"groups of %lld of k, %lld", op, (long long)groups,
				(long long)((k + *group - 1) / *group), (long long)*group,
				(long long)k);
	return HZ_OK;
}

/* Checks w, scales, zeros and tensor_scale and fills *l and *w. */
static int check_weights(struct hz_context *ctx, const char *op, const hz_tensor *w,
			 const hz_tensor *scales, const hz_qlinear_group_opts *o,
			 struct hzi_group_layout *l, struct hzi_group_weights *to)
{
	int64_t k, n, group, all;
	int zero_types[] = {0, 0};

	HZ_CHECK(hzi_check(ctx, op, "w", w, w_types, false));
	HZ_CHECK(hzi_check(ctx, op, "scales", scales, scale_types, false));
	if (w->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w.ndim is %d, must be 2", op, w->ndim);
	n = w->shape[1];
	if (w->shape[0] > HZI_QGEMM_K_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: w.shape[0] is %lld, at most %lld is supported",
				op, (long long)w->shape[0], (long long)HZI_QGEMM_K_MAX);
	k = w->shape[0] * hzi_format_pack(w->dtype);
	HZ_CHECK(check_groups(ctx, op, "scales", scales, -1, n));
	HZ_CHECK(find_group(ctx, op, o, scales, k, &group));
	if (!hzi_mul(hzi_round_up(k, 128) * 2 + 128, n > INT64_MAX / 2 ? -1 : n + 16, &all))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w is too large: its packed size overflows", op);
	if (o->zeros) {
		if (hzi_format_is_float(w->dtype))
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->zeros is for integers, and w is "
					"%s: leave it NULL", op, hz_dtype_name(w->dtype));
		zero_types[0] = hzi_format_is_signed(w->dtype) ? HZ_S8 : HZ_U8;
		if (o->zeros->dtype != zero_types[0])
			return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->zeros.dtype is %s, must be %s, as w "
					"is %s", op, hz_dtype_name(o->zeros->dtype),
					hz_dtype_name(zero_types[0]), hz_dtype_name(w->dtype));
		HZ_CHECK(hzi_check(ctx, op, "opts->zeros", o->zeros, zero_types, false));
		HZ_CHECK(check_groups(ctx, op, "opts->zeros", o->zeros, scales->shape[0], n));
	}
	if (o->tensor_scale) {
		HZ_CHECK(hzi_check(ctx, op, "opts->tensor_scale", o->tensor_scale, f32_type, false));
		if (hz_tensor_count(o->tensor_scale) != 1)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: opts->tensor_scale has %lld elements, must have 1", op,
					(long long)hz_tensor_count(o->tensor_scale));
	}
	fill_layout(l, k, n, group, w->dtype, o->zeros != NULL,
		    ctx->gpu && w->dtype == HZ_S4X2 && !o->zeros && !o->tensor_scale &&
			    (group == 32 || group == 128) &&
			    (scales->dtype == HZ_BF16 || scales->dtype == HZ_E8M0));
	*to = (struct hzi_group_weights){
		.w = hzi_data(ctx, w), .scales = hzi_data(ctx, scales),
		.zeros = o->zeros ? hzi_data(ctx, o->zeros) : NULL,
		.tensor_scale = o->tensor_scale ? hzi_data(ctx, o->tensor_scale) : NULL,
		.w_k = w->stride[0], .w_n = w->stride[1],
		.s_k = scales->shape[0] > 1 ? scales->stride[0] : 0, .s_n = scales->stride[1],
		.z_k = o->zeros && scales->shape[0] > 1 ? o->zeros->stride[0] : 0,
		.z_n = o->zeros ? o->zeros->stride[1] : 0, .groups = scales->shape[0],
		.w_dtype = w->dtype, .scale_dtype = scales->dtype,
		.zero_dtype = o->zeros ? o->zeros->dtype : 0,
	};
	if (n == 1)
		to->w_n = to->s_n = to->z_n = 0;
	return HZ_OK;
}

/* ---- Packing --------------------------------------------------------------------------------- */

static int pack_args(struct hz_context *ctx, const hz_tensor *w, const hz_tensor *scales,
		     const hz_qlinear_group_opts **opts, struct hzi_qlinear_group_pack_args *a)
{
	static const hz_qlinear_group_opts defaults;
	const hz_qlinear_group_opts *o = *opts = *opts ? *opts : &defaults;

	HZI_ENTER(ctx, PACK_OP);
	if (o->packed || o->x_scales || o->bias || o->x_dtype || o->x_group || o->flags ||
	    o->given || o->min != 0 || o->max != 0)
		return hzi_fail(ctx, HZ_EINVAL, PACK_OP ": only opts->group, zeros and tensor_scale "
				"may be set");
	HZ_CHECK(hzi_check_reserved(ctx, PACK_OP, o->reserved, 4));
	memset(a, 0, sizeof(*a));
	return check_weights(ctx, PACK_OP, w, scales, o, &a->l, &a->w);
}

int hz_qlinear_group_pack_bytes(hz_context *ctx, const hz_tensor *w, const hz_tensor *scales,
				const hz_qlinear_group_opts *opts, size_t *bytes)
{
	struct hzi_qlinear_group_pack_args a;

	HZ_CHECK(pack_args(ctx, w, scales, &opts, &a));
	if (!bytes)
		return hzi_fail(ctx, HZ_EINVAL, PACK_OP "_bytes: bytes is NULL");
	*bytes = (size_t)a.l.bytes;
	return HZ_OK;
}

int hz_qlinear_group_pack(hz_context *ctx, const hz_tensor *w, const hz_tensor *scales,
			  const hz_qlinear_group_opts *opts, void *data, size_t bytes,
			  hz_packed *packed)
{
	struct hzi_qlinear_group_pack_args a;
	hz_tensor blob;
	hz_packed p;

	HZ_CHECK(pack_args(ctx, w, scales, &opts, &a));
	if (!packed)
		return hzi_fail(ctx, HZ_EINVAL, PACK_OP ": packed is NULL, must be a struct to fill");
	if (bytes < (size_t)a.l.bytes)
		return hzi_fail(ctx, HZ_EINVAL, PACK_OP ": bytes is %zu, must be at least %zu", bytes,
				(size_t)a.l.bytes);
	HZ_CHECK(hzi_check_packed_data(ctx, PACK_OP, "data", data, (size_t)a.l.bytes));
	blob = hz_tensor_1d(data, HZ_U8, ctx->device, a.l.bytes);
	HZ_CHECK(hzi_check_apart(ctx, PACK_OP, "w", w, "data", &blob));
	HZ_CHECK(hzi_check_apart(ctx, PACK_OP, "scales", scales, "data", &blob));
	if (opts->zeros)
		HZ_CHECK(hzi_check_apart(ctx, PACK_OP, "opts->zeros", opts->zeros, "data", &blob));
	if (opts->tensor_scale)
		HZ_CHECK(hzi_check_apart(ctx, PACK_OP, "opts->tensor_scale", opts->tensor_scale,
					 "data", &blob));
	a.data = data;
	if (a.l.bytes)
		HZ_CHECK(HZI_RUN(ctx, PACK_OP, qgemm, qlinear_group_pack, &a));
	p = (hz_packed){
		.data = data, .bytes = (size_t)a.l.bytes, .device = ctx->device, .dtype = w->dtype,
		.ndim = 2, .shape = {a.l.k, a.l.n},
		.layout = LAYOUT_GROUP | (a.w.zero_dtype ? LAYOUT_ZEROS : 0) |
			  (a.l.short_at ? LAYOUT_SHORT : 0) |
			  (a.l.groups == 1 && a.l.group > HZI_GROUP_UNIT
				   ? 0 : (uint32_t)(a.l.group / 16) << LAYOUT_SHIFT),
	};
	p.check = hzi_packed_check(ctx, &p);
	*packed = p;
	return HZ_OK;
}

/* W from opts->packed */
static int check_group_packed(struct hz_context *ctx, const char *op, const hz_tensor *w,
			      const hz_tensor *scales, const hz_qlinear_group_opts *o,
			      struct hzi_qlinear_group_args *a)
{
	const hz_packed *p = o->packed;

	if (w || scales || o->zeros || o->tensor_scale || o->group)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s must be unset with opts->packed", op,
				w ? "w" : scales ? "scales" : o->zeros ? "opts->zeros" :
				o->tensor_scale ? "opts->tensor_scale" : "opts->group");
	HZ_CHECK(hzi_check_packed(ctx, op, "opts->packed", "hz_qlinear_group_pack", 2, p));
	if (!(p->layout & LAYOUT_GROUP))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->packed is not as hz_qlinear_group_pack() filled it", op);
	fill_layout(&a->l, p->shape[0], p->shape[1], (int64_t)(p->layout >> LAYOUT_SHIFT) * 16,
		    p->dtype, p->layout & LAYOUT_ZEROS, p->layout & LAYOUT_SHORT);
	a->w.w_dtype = p->dtype;
	a->packed = hzi_packed_data(ctx, p);
	return HZ_OK;
}

/* ---- The layer ------------------------------------------------------------------------------- */

static int check_x(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *y,
		   const hz_qlinear_group_opts *o, struct hzi_qlinear_group_args *a)
{
	const int last = x->ndim - 1;

	if (y->ndim < 2 || x->ndim != y->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.ndim is %d and y.ndim %d, must be the same, "
				"2 to %d", op, x->ndim, y->ndim, HZ_MAXDIM);
	for (int d = 0; d < last; d++) {
		if (x->shape[d] != y->shape[d])
			return hzi_fail(ctx, HZ_ESHAPE, "%s: y.shape[%d] is %lld, must be %lld, as "
					"x", op, d, (long long)y->shape[d], (long long)x->shape[d]);
	}
	if (x->shape[last] != a->l.k)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.shape[%d] is %lld, must be %lld, as w", op,
				last, (long long)x->shape[last], (long long)a->l.k);
	if (y->shape[last] != a->l.n)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: y.shape[%d] is %lld, must be %lld, as w", op,
				last, (long long)y->shape[last], (long long)a->l.n);
	a->integer = x->dtype == HZ_S8 || o->x_dtype;
	a->by_32 = o->x_group != 0;
	if (o->x_dtype && o->x_dtype != HZ_S8)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->x_dtype is %s, must be s8 or 0", op,
				hz_dtype_name(o->x_dtype));
	if (o->x_dtype && x->dtype == HZ_S8)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->x_dtype is for floats x, and x is s8: leave it 0", op);
	if (o->x_group && (o->x_group != 32 || !o->x_dtype))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->x_group is %d, must be 0, or 32 with "
				"opts->x_dtype", op, o->x_group);
	if (a->integer && a->w.w_dtype == HZ_E4M3)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: w is e4m3, which is not supported with codes x", op);
	return HZ_OK;
}

static int check_x_scales(struct hz_context *ctx, const char *op, const hz_tensor *x,
			  const hz_tensor *s, struct hzi_qlinear_group_args *a)
{
	const int last = x->ndim - 1;
	const int64_t groups = a->l.steps;

	HZ_CHECK(hzi_check(ctx, op, "opts->x_scales", s, f32_type, false));
	if (x->dtype != HZ_S8)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->x_scales is for x of s8, and x is %s: leave it NULL", op,
				hz_dtype_name(x->dtype));
	if (!hz_tensor_contiguous(s))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: opts->x_scales must be contiguous", op);
	if (s->ndim != x->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->x_scales.ndim is %d, must be %d, as x",
				op, s->ndim, x->ndim);
	for (int d = 0; d < last; d++) {
		if (s->shape[d] != x->shape[d])
			return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->x_scales.shape[%d] is %lld, must "
					"be %lld, as x", op, d, (long long)s->shape[d],
					(long long)x->shape[d]);
	}
	if (s->shape[last] != 1 && s->shape[last] != groups)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->x_scales.shape[%d] is %lld, must be 1 or "
				"%lld, k / 32", op, last, (long long)s->shape[last],
				(long long)groups);
	a->by_32 = s->shape[last] != 1;
	a->x_scale = hzi_data(ctx, s);
	return HZ_OK;
}

static int make_bounds(struct hz_context *ctx, const char *op, const hz_qlinear_group_opts *o,
		       struct hzi_qlinear_group_args *a)
{
	static const struct hzi_flag flags[] = {HZI_FLAG(HZ_QGEMM_RELU), {0, NULL}};
	static const struct hzi_flag given[] = {
		HZI_FLAG(HZ_QLINEAR_GROUP_GIVEN_MIN), HZI_FLAG(HZ_QLINEAR_GROUP_GIVEN_MAX),
		{0, NULL},
	};
	const bool min = o->given & HZ_QLINEAR_GROUP_GIVEN_MIN;
	const bool max = o->given & HZ_QLINEAR_GROUP_GIVEN_MAX;

	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o->flags, HZ_QGEMM_RELU, flags));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->given", o->given,
				 HZ_QLINEAR_GROUP_GIVEN_MIN | HZ_QLINEAR_GROUP_GIVEN_MAX, given));
	if (isnan(o->min) || isnan(o->max))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->min or opts->max is NaN", op);
	if ((!min && o->min != 0) || (!max && o->max != 0))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is set, but opts->given lacks "
				"HZ_QLINEAR_GROUP_GIVEN_%s", op, !min && o->min != 0 ? "min" : "max",
				!min && o->min != 0 ? "MIN" : "MAX");
	a->low = min ? (float)o->min : -HUGE_VALF;
	a->high = max ? (float)o->max : HUGE_VALF;
	if (o->flags & HZ_QGEMM_RELU && a->low < 0)
		a->low = 0;
	if (a->low > a->high)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: the bounds of y are %g to %g, which leaves nothing", op,
				(double)a->low, (double)a->high);
	return HZ_OK;
}

/* Fills the outer dimensions, merging those that continue each other. */
static void make_rows(const hz_tensor *x, const hz_tensor *y, struct hzi_qlinear_group_args *a)
{
	const int last = x->ndim - 1;

	a->x_k = x->shape[last] > 1 ? x->stride[last] : 1;
	a->y_n = y->shape[last] > 1 ? y->stride[last] : 1;
	a->rows = 1;
	for (int d = 0; d < last; d++) {
		const int i = a->ndim - 1;

		a->rows *= x->shape[d];
		if (i >= 0 && hzi_continues(a->x_stride[i], x->stride[d], x->shape[d]) &&
		    hzi_continues(a->y_stride[i], y->stride[d], x->shape[d])) {
			a->shape[i] *= x->shape[d];
			a->x_stride[i] = x->stride[d];
			a->y_stride[i] = y->stride[d];
			continue;
		}
		a->shape[a->ndim] = x->shape[d];
		a->x_stride[a->ndim] = x->stride[d];
		a->y_stride[a->ndim++] = y->stride[d];
	}
	for (int d = 0; d < a->ndim && a->l.k == 0; d++)
		a->x_stride[d] = 0;
}

int hz_qlinear_group(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
		     const hz_tensor *scales, hz_tensor *y, const hz_qlinear_group_opts *opts)
{
	static const char op[] = "qlinear_group";
	static const hz_qlinear_group_opts defaults;
	const hz_qlinear_group_opts *o = opts ? opts : &defaults;
	struct hzi_qlinear_group_args a;
	int64_t all;

	HZI_ENTER(ctx, op);
	memset(&a, 0, sizeof(a));
	HZ_CHECK(hzi_check(ctx, op, "x", x, x_types, false));
	HZ_CHECK(hzi_check(ctx, op, "y", y, float_types, true));
	if (o->packed)
		HZ_CHECK(check_group_packed(ctx, op, w, scales, o, &a));
	else
		HZ_CHECK(check_weights(ctx, op, w, scales, o, &a.l, &a.w));
	HZ_CHECK(check_x(ctx, op, x, y, o, &a));
	if (o->x_scales)
		HZ_CHECK(check_x_scales(ctx, op, x, o->x_scales, &a));
	HZ_CHECK(make_bounds(ctx, op, o, &a));
	HZ_CHECK(hzi_check_reserved(ctx, op, o->reserved, 4));
	if (o->bias) {
		HZ_CHECK(hzi_check(ctx, op, "opts->bias", o->bias, f32_type, false));
		if (!hz_tensor_contiguous(o->bias))
			return hzi_fail(ctx, HZ_ESTRIDE, "%s: opts->bias must be contiguous", op);
		if (o->bias->ndim != 1)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->bias.ndim is %d, must be 1", op,
					o->bias->ndim);
		if (o->bias->shape[0] != a.l.n)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->bias.shape[0] is %lld, must be "
					"%lld, n of w", op, (long long)o->bias->shape[0],
					(long long)a.l.n);
		a.bias = hzi_data(ctx, o->bias);
	}
	{
		const hz_tensor blob = hz_tensor_1d(o->packed ? o->packed->data : NULL, HZ_U8,
						    ctx->device,
						    o->packed ? (int64_t)o->packed->bytes : 0);
		const struct { const char *name; const hz_tensor *t; } inputs[] = {
			{"x", x}, {"w", w}, {"scales", scales}, {"opts->zeros", o->zeros},
			{"opts->tensor_scale", o->tensor_scale}, {"opts->x_scales", o->x_scales},
			{"opts->bias", o->bias}, {"opts->packed", o->packed ? &blob : NULL},
		};

		for (size_t i = 0; i < sizeof(inputs) / sizeof(*inputs); i++) {
			if (inputs[i].t)
				HZ_CHECK(hzi_check_apart(ctx, op, inputs[i].name, inputs[i].t, "y",
							 y));
		}
	}
	make_rows(x, y, &a);
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	/*
	 * Padded rows of floats or codes, with a scale and a sum for each 16 values; and the number
	 * of products
	 */
	if (!hzi_mul(a.rows + 8, hzi_round_up(a.l.k, 128) * 8 + 256, &all) ||
	    !hzi_mul(all, a.l.n + 16, &all))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x is too large: the size of its copy or the "
				"number of products overflows", op);
	a.x = hzi_data(ctx, x);
	a.y = hzi_data(ctx, y);
	a.x_dtype = x->dtype;
	a.y_dtype = y->dtype;
	return HZI_RUN(ctx, "qlinear_group", qgemm, qlinear_group, &a);
}
