/*
 * quantize.c - quantization: argument checks, and maps from elements to parameters
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/qgemm/qgemm.h"

static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int code_types[] = {HZ_U8, HZ_S8, 0};
static const int format_types[] = {HZ_U8, HZ_S8, HZ_U16, HZ_S16, HZ_E4M3, HZ_E5M2, HZ_E2M1X2,
				   HZ_U4X2, HZ_S4X2, HZ_U2X4, HZ_S2X4, 0};
static const int scale_types[] = {HZ_F32, HZ_E8M0, HZ_E4M3, 0};
static const int f32_type[] = {HZ_F32, 0};

/* Dimensions, with strides of x, of q and of the parameters; the last one is the row. */
struct dims {
	int n;
	int64_t size[HZ_MAXDIM], x[HZ_MAXDIM], q[HZ_MAXDIM], p[HZ_MAXDIM];
};

/* Moves dimension d to the end. */
static void make_last(struct dims *t, int d)
{
	int64_t *const lists[] = {t->size, t->x, t->q, t->p};

	for (int l = 0; l < 4; l++) {
		const int64_t v = lists[l][d];

		for (int i = d; i < t->n - 1; i++)
			lists[l][i] = lists[l][i + 1];
		lists[l][t->n - 1] = v;
	}
}

static void drop(struct dims *t, int d)
{
	make_last(t, d);
	t->n--;
}

/*
 * Fills the map, which is zeroed, of x, q (NULL: none) and parameters of the shape of p (NULL:
 * none). A dimension whose neighbours have the same or successive parameters may be the row: the
 * last one if it is cut into groups, else the one with the smallest stride of x.
 */
static void make_map(const hz_tensor *x, const hz_tensor *q, const hz_tensor *p,
		     struct hzi_quantize_map *map)
{
	const int64_t params = p ? hz_tensor_count(p) : 0;
	const hz_tensor *shaped = params > 1 ? p : NULL;
	struct dims t = {0};
	int64_t step = 1, group = 0;
	int row = -1;

	for (int d = x->ndim - 1; d >= 0; d--) {
		const int64_t size = x->shape[d], own = shaped ? shaped->shape[d] : 1;

		if (own > 1 && own < size)
			group = size / own;
		/* from the last dimension on; reversed below */
		if (size > 1) {
			t.size[t.n] = size;
			t.x[t.n] = x->stride[d];
			t.q[t.n] = q ? q->stride[d] : 0;
			t.p[t.n] = own > 1 ? step : 0;
			t.n++;
		}
		step *= own;
	}
	for (int i = 0, j = t.n - 1; i < j; i++, j--) {
		int64_t *const lists[] = {t.size, t.x, t.q, t.p};

		for (int l = 0; l < 4; l++) {
			const int64_t v = lists[l][i];

			lists[l][i] = lists[l][j];
			lists[l][j] = v;
		}
	}
	if (t.n == 0)
		t = (struct dims){.n = 1, .size = {1}, .x = {1}, .q = {1}};
	for (int d = 0; d < t.n && !group; d++) {
		if (t.p[d] <= 1 && (row < 0 || llabs(t.x[d]) <= llabs(t.x[row])))
			row = d;
	}
	if (row >= 0)
		make_last(&t, row);
	map->params = params;
	map->n = t.size[t.n - 1];
	map->x_step = t.x[t.n - 1];
	map->q_step = t.q[t.n - 1];
	map->group = group ? group : t.p[t.n - 1] ? 1 : map->n;
	t.n--;
	/* Merges outer dimensions that continue the row, in the parameters too, into it. */
	for (int d = t.n - 1; d >= 0; d--) {
		const bool same = t.p[d] == 0 && map->group == map->n;

		if (!hzi_continues(t.x[d], map->x_step, map->n) ||
		    !hzi_continues(t.q[d], map->q_step, map->n) ||
		    (!same && t.p[d] != map->n / map->group))
			continue;
		map->n *= t.size[d];
		if (same)
			map->group = map->n;
		drop(&t, d);
		d = t.n;
	}
	for (int d = t.n - 2; d >= 0; d--) {
		if (!hzi_continues(t.x[d], t.x[d + 1], t.size[d + 1]) ||
		    !hzi_continues(t.q[d], t.q[d + 1], t.size[d + 1]) ||
		    !hzi_continues(t.p[d], t.p[d + 1], t.size[d + 1]))
			continue;
		t.size[d + 1] *= t.size[d];
		drop(&t, d);
	}
	map->ndim = t.n;
	memcpy(map->shape, t.size, sizeof(map->shape));
	memcpy(map->x_stride, t.x, sizeof(map->x_stride));
	memcpy(map->q_stride, t.q, sizeof(map->q_stride));
	memcpy(map->p_stride, t.p, sizeof(map->p_stride));
}

/*
 * Checks the shape of parameters for the data v, and sets *wide to a view of v's ndim: leading
 * dimensions that p lacks are 1, as in NumPy. One dimension stands for all of the last one of v: as
 * groups [m] could be meant for rows. group: elements of the last dimension that share a parameter;
 * 0: as the shape of p says.
 */
static int check_params(struct hz_context *ctx, const char *op, const char *v_name,
			const hz_tensor *v, const char *p_name, const hz_tensor *p, int64_t group,
			hz_tensor *wide)
{
	const int more = v->ndim - p->ndim;
	int64_t shape[HZ_MAXDIM];

	*wide = *p;
	if (!hz_tensor_contiguous(p))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s must be contiguous", op, p_name);
	if (hz_tensor_count(p) == 1)
		return HZ_OK;
	if (more < 0 || more == v->ndim)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s.ndim is %d, must be 1 to %d, as %s, unless it has one "
				"element", op, p_name, p->ndim, v->ndim, v_name);
	for (int d = 0; d < v->ndim; d++) {
		const bool counted = d == v->ndim - 1 && group > 0;
		const int64_t size = counted ? v->shape[d] / group + (v->shape[d] % group != 0)
					     : v->shape[d];
		const int64_t own = d < more ? 1 : p->shape[d - more];
		const bool groups = d == v->ndim - 1 && (p->ndim > 1 || v->ndim == 1) && !counted;

		shape[d] = own;
		if (own == 1 || own == size || (groups && own > 0 && size % own == 0))
			continue;
		if (counted)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, groups of %lld in "
					"%lld elements", op, p_name, d - more, (long long)own,
					(long long)size, (long long)group, (long long)v->shape[d]);
		if (p->ndim == 1 && v->ndim > 1)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[0] is %lld, must be %lld, as %s.shape[%d]: "
					"scales of rows have the shape [rows, 1]", op, p_name,
					(long long)own, (long long)size, v_name, d);
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s.shape[%d] is %lld, must be %lld, as %s, or 1%s", op, p_name,
				d - more, (long long)own, (long long)size, v_name,
				groups ? ", or divide it" : "");
	}
	*wide = hz_tensor_nd(p->data, p->dtype, p->device, v->ndim, shape);
	return HZ_OK;
}

/* Whether two views that check_params() made have the same shape */
static int check_alike(struct hz_context *ctx, const char *op, const char *a_name,
		       const hz_tensor *a, const char *b_name, const hz_tensor *b)
{
	if (hz_tensor_count(a) == 1 && hz_tensor_count(b) == 1)
		return HZ_OK;
	return hzi_check_same_shape(ctx, op, a_name, a, b_name, b);
}

/* The type of zero points: that of q, or the byte of its signedness */
static int zero_type(int q_dtype)
{
	if (hzi_format_bits(q_dtype) >= 8)
		return q_dtype;
	return hzi_format_is_signed(q_dtype) ? HZ_S8 : HZ_U8;
}

/* Checks the shapes of x and q, whose last dimension may count packed codes. */
static int check_code_shape(struct hz_context *ctx, const char *op, const char *x_name,
			    const hz_tensor *x, const hz_tensor *q, bool to_codes)
{
	const int last = x->ndim - 1, pack = hzi_format_pack(q->dtype);
	hz_tensor one_each = *q;

	if (pack > 1 && q->ndim > 0 && x->ndim == q->ndim) {
		if (x->shape[last] % pack)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be a multiple of %d for %s",
					op, x_name, last, (long long)x->shape[last], pack,
					hz_dtype_name(q->dtype));
		if (q->shape[last] != x->shape[last] / pack)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: q.shape[%d] is %lld, must be %lld",
					op, last, (long long)q->shape[last],
					(long long)(x->shape[last] / pack));
		if (q->shape[last] > 1 && q->stride[last] != 1)
			return hzi_fail(ctx, HZ_ESTRIDE, "%s: q.stride[%d] is %lld, must be 1", op,
					last, (long long)q->stride[last]);
		one_each.shape[last] = x->shape[last];
	} else if (pack > 1 && q->ndim == 0) {
		return hzi_fail(ctx, HZ_ESHAPE, "%s: q.ndim is 0, must be 1 to %d for %s", op,
				HZ_MAXDIM, hz_dtype_name(q->dtype));
	}
	return to_codes ? hzi_check_same_shape(ctx, op, x_name, x, "q", &one_each)
			: hzi_check_same_shape(ctx, op, "q", &one_each, x_name, x);
}

/* Checks an operand of one f32. */
static int check_one(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		     bool output)
{
	HZ_CHECK(hzi_check(ctx, op, name, t, f32_type, output));
	if (hz_tensor_count(t) != 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s has %lld elements, must have 1", op, name,
				(long long)hz_tensor_count(t));
	return HZ_OK;
}

/* Checks the bounds of codes and sets them; without them those of the format. */
static int check_bounds(struct hz_context *ctx, const char *op, const hz_quantize_opts *o,
			int dtype, int32_t *low, int32_t *high)
{
	const struct {
		const char *name;
		int32_t value, *bound;
		struct hzi_flag bit;
	} bound[] = {{"min", o->min, low, HZI_FLAG(HZ_QUANTIZE_GIVEN_MIN)},
		     {"max", o->max, high, HZI_FLAG(HZ_QUANTIZE_GIVEN_MAX)}};

	*low = hzi_format_low(dtype);
	*high = hzi_format_high(dtype);
	for (int i = 0; i < 2; i++) {
		if (!(o->given & bound[i].bit.bit)) {
			if (bound[i].value)
				return hzi_fail(ctx, HZ_EINVAL,
						"%s: opts->%s is %d, but opts->given lacks %s: set "
						"it, or %s to 0", op, bound[i].name, bound[i].value,
						bound[i].bit.name, bound[i].name);
			continue;
		}
		if (hzi_format_is_float(dtype))
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is for integers, q is %s", op,
					bound[i].name, hz_dtype_name(dtype));
		if (bound[i].value < hzi_format_low(dtype) ||
		    bound[i].value > hzi_format_high(dtype))
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->%s is %d, must be %d to %d for %s", op,
					bound[i].name, bound[i].value, hzi_format_low(dtype),
					hzi_format_high(dtype), hz_dtype_name(dtype));
		*bound[i].bound = bound[i].value;
	}
	if (*low > *high)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->min is %d, above opts->max, %d", op, *low,
				*high);
	return HZ_OK;
}

/* The rule of scales that opts asks for; fails where the dtypes of q and scales do not fit it. */
static int check_rule(struct hz_context *ctx, const char *op, const hz_quantize_opts *o,
		      int q_dtype, int32_t *rule)
{
	static const char *const names[] = {
		[HZ_SCALE_AMAX] = "AMAX", [HZ_SCALE_FLOOR] = "FLOOR", [HZ_SCALE_CEIL] = "CEIL",
		[HZ_SCALE_EVEN] = "EVEN", [HZ_SCALE_RCEIL] = "RCEIL", [HZ_SCALE_NV_TE] = "NV_TE",
		[HZ_SCALE_NV_TORCHAO] = "NV_TORCHAO", [HZ_SCALE_NV46] = "NV46",
	};
	const int s_dtype = o->new_scales->dtype;
	int want = HZ_E8M0;

	*rule = o->scale_rule;
	if (*rule == HZ_SCALE_AUTO)
		*rule = s_dtype == HZ_F32 ? HZ_SCALE_AMAX : s_dtype == HZ_E8M0 ? HZ_SCALE_RCEIL
									       : HZ_SCALE_NV_TE;
	if (*rule == HZ_SCALE_AMAX)
		want = HZ_F32;
	else if (*rule >= HZ_SCALE_NV_TE)
		want = HZ_E4M3;
	if (s_dtype != want)
		return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->new_scales.dtype is %s, must be %s "
				"for HZ_SCALE_%s", op, hz_dtype_name(s_dtype), hz_dtype_name(want),
				names[*rule]);
	if (!hzi_format_is_signed(q_dtype))
		return hzi_fail(ctx, HZ_EDTYPE, "%s: q.dtype is %s, must be signed or a float with "
				"opts->new_scales; choose_qparams() gives scales and zeros", op,
				hz_dtype_name(q_dtype));
	if (want == HZ_E4M3 && q_dtype != HZ_E2M1X2)
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: q.dtype is %s, must be e2m1x2 for scales of e4m3", op, hz_dtype_name(q_dtype));
	if (want == HZ_E8M0 && *rule != HZ_SCALE_RCEIL && !hzi_format_is_float(q_dtype))
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: q.dtype is %s, must be e2m1x2, e4m3 or e5m2 for HZ_SCALE_%s",
				op, hz_dtype_name(q_dtype), names[*rule]);
	return HZ_OK;
}

/* Checks scales that the call is to choose, and sets *scales to a view of them. */
static int check_new_scales(struct hz_context *ctx, const char *op, const hz_tensor *x,
			    const hz_tensor *q, const hz_quantize_opts *o, hz_tensor *scales)
{
	const hz_tensor *s = o->new_scales;
	const int pack = hzi_format_pack(q->dtype);
	int64_t n, group;
	int32_t rule;

	HZ_CHECK(hzi_check(ctx, op, "opts->new_scales", s, scale_types, true));
	if (o->scales || o->zeros || o->scale != 0 || o->zero != 0)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->new_scales excludes opts->scale, scales, "
				"zero and zeros", op);
	HZ_CHECK(check_rule(ctx, op, o, q->dtype, &rule));
	HZ_CHECK(check_params(ctx, op, "x", x, "opts->new_scales", s, o->group, scales));
	if (scales->ndim != x->ndim)
		*scales = hz_tensor_nd(s->data, s->dtype, s->device, x->ndim,
				       (const int64_t[HZ_MAXDIM]){1, 1, 1, 1, 1, 1});
	for (int d = 0; d < x->ndim - 1; d++) {
		if (scales->shape[d] != x->shape[d])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: opts->new_scales is shared along dimension %d of x, must "
					"have its size, %lld", op, d,
					(long long)x->shape[d]);
	}
	n = x->ndim ? x->shape[x->ndim - 1] : 1;
	group = o->group ? o->group : n / (x->ndim && n ? scales->shape[x->ndim - 1] : 1);
	if (n > group && hz_tensor_count(s) == 1 && hz_tensor_count(x) > 0)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: opts->new_scales has 1 element, must have %lld, groups of %lld "
				"in %lld elements", op,
				(long long)(n / group + (n % group != 0)), (long long)group,
				(long long)n);
	if (group < n && group % pack)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: groups of %lld, must be a multiple of %d for %s", op,
				(long long)group, pack, hz_dtype_name(q->dtype));
	if (rule == HZ_SCALE_NV46 && group != 16 && n > 16)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: groups of %lld, must be 16 for HZ_SCALE_NV46",
				op, (long long)group);
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "opts->new_scales", s));
	HZ_CHECK(hzi_check_apart(ctx, op, "q", q, "opts->new_scales", s));
	if (!o->new_tensor_scale)
		return HZ_OK;
	HZ_CHECK(check_one(ctx, op, "opts->new_tensor_scale", o->new_tensor_scale, true));
	if (o->tensor_scale)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->new_tensor_scale excludes "
				"opts->tensor_scale", op);
	if (s->dtype != HZ_E4M3)
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: opts->new_tensor_scale needs new_scales of e4m3, which are %s",
				op, hz_dtype_name(s->dtype));
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "opts->new_tensor_scale", o->new_tensor_scale));
	HZ_CHECK(hzi_check_apart(ctx, op, "q", q, "opts->new_tensor_scale", o->new_tensor_scale));
	return hzi_check_apart(ctx, op, "opts->new_scales", s, "opts->new_tensor_scale",
			       o->new_tensor_scale);
}

/* Checks what quantization has beyond u8 and s8 by given scales. */
static int check_format(struct hz_context *ctx, const char *op, bool to_codes,
			const hz_tensor *q, const hz_tensor *out, const char *out_name,
			const hz_quantize_opts *o)
{
	static const struct hzi_flag list[] = {HZI_FLAG(HZ_QUANTIZE_GIVEN_MIN),
					       HZI_FLAG(HZ_QUANTIZE_GIVEN_MAX),
					       HZI_FLAG(HZ_QUANTIZE_GIVEN_STOCHASTIC), {0, NULL}};
	const char *extra = o->given || o->min || o->max || o->stochastic ?
				    "given, min, max and stochastic" :
			    o->new_scales ? "new_scales" :
			    o->new_tensor_scale ? "new_tensor_scale" :
			    o->scale_rule ? "scale_rule" : NULL;

	HZ_CHECK(hzi_check_flags(ctx, op, "opts->given", o->given, 7, list));
	if (!to_codes && extra)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s must not be set: quantize() alone has "
				"them", op, extra);
	if (o->scale_rule < 0 || o->scale_rule > HZ_SCALE_NV46)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->scale_rule is %d, must be 0 to %d", op,
				o->scale_rule, HZ_SCALE_NV46);
	if (!o->new_scales && (o->scale_rule || o->new_tensor_scale))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s needs opts->new_scales", op,
				o->scale_rule ? "scale_rule" : "new_tensor_scale");
	if (o->stochastic && !(o->given & HZ_QUANTIZE_GIVEN_STOCHASTIC))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->stochastic is %llu, but opts->given "
				"lacks HZ_QUANTIZE_GIVEN_STOCHASTIC: set it, or stochastic to 0",
				op, (unsigned long long)o->stochastic);
	if (o->group < 0)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->group is %lld, must not be negative", op,
				(long long)o->group);
	if (o->group && !o->scales && !o->new_scales)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->group needs opts->scales or new_scales",
				op);
	if (hzi_format_is_float(q->dtype) && (o->zero != 0 || o->zeros))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s must not be set: the zero of %s is 0",
				op, o->zeros ? "zeros" : "zero", hz_dtype_name(q->dtype));
	if (!o->tensor_scale)
		return HZ_OK;
	HZ_CHECK(check_one(ctx, op, "opts->tensor_scale", o->tensor_scale, false));
	if (o->new_scales) {
		HZ_CHECK(hzi_check_apart(ctx, op, "opts->tensor_scale", o->tensor_scale,
					 "opts->new_scales", o->new_scales));
		if (o->new_scales->dtype != HZ_E4M3)
			return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->tensor_scale needs new_scales of "
					"e4m3, which are %s", op,
					hz_dtype_name(o->new_scales->dtype));
	}
	return hzi_check_apart(ctx, op, "opts->tensor_scale", o->tensor_scale, out_name, out);
}

/* Checks for hz_quantize() and hz_dequantize(): x floats, q codes, one of them the output */
static int check_codes(struct hz_context *ctx, const char *op, const hz_tensor *x,
		       const char *x_name, const hz_tensor *q, bool to_codes,
		       const hz_quantize_opts *o, float *scale, hz_tensor *scales)
{
	hz_tensor zeros;
	const hz_tensor *in = to_codes ? x : q, *out = to_codes ? q : x;
	const char *in_name = to_codes ? "x" : "q", *out_name = to_codes ? "q" : "y";

	HZ_CHECK(hzi_check(ctx, op, in_name, in, to_codes ? float_types : format_types, false));
	HZ_CHECK(hzi_check(ctx, op, out_name, out, to_codes ? format_types : float_types, true));
	HZ_CHECK(check_code_shape(ctx, op, x_name, x, q, to_codes));
	HZ_CHECK(hzi_check_scale(ctx, op, "scale", o->scale, scale));
	if (!hzi_format_is_float(q->dtype))
		HZ_CHECK(hzi_check_zero(ctx, op, "zero", o->zero, q->dtype));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o->flags, 0, NULL));
	HZ_CHECK(hzi_check_reserved(ctx, op, o->reserved, 4));
	HZ_CHECK(hzi_check_apart(ctx, op, in_name, in, out_name, out));
	HZ_CHECK(check_format(ctx, op, to_codes, q, out, out_name, o));
	if (o->new_scales)
		return check_new_scales(ctx, op, x, q, o, scales);
	if (!o->scales) {
		if (o->zeros)
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->zeros needs opts->scales", op);
		if (o->scale == 0)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->scale is 0 and opts->scales NULL: give %s", op,
					to_codes ? "scale, scales or new_scales" :
						   "the scale or scales of q");
		return HZ_OK;
	}
	if (o->scale != 0 || o->zero != 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->scales excludes opts->scale and opts->zero", op);
	HZ_CHECK(hzi_check(ctx, op, "opts->scales", o->scales, scale_types, false));
	HZ_CHECK(check_params(ctx, op, x_name, x, "opts->scales", o->scales, o->group, scales));
	HZ_CHECK(hzi_check_apart(ctx, op, "opts->scales", o->scales, out_name, out));
	if (!o->zeros)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, op, "opts->zeros", o->zeros, format_types, false));
	if (o->zeros->dtype != zero_type(q->dtype))
		return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->zeros.dtype is %s, must be %s%s", op,
				hz_dtype_name(o->zeros->dtype), hz_dtype_name(zero_type(q->dtype)),
				zero_type(q->dtype) == q->dtype ? ", as q" : "");
	HZ_CHECK(check_params(ctx, op, x_name, x, "opts->zeros", o->zeros, o->group, &zeros));
	HZ_CHECK(check_alike(ctx, op, "opts->scales", scales, "opts->zeros", &zeros));
	return hzi_check_apart(ctx, op, "opts->zeros", o->zeros, out_name, out);
}

/* Signs and factors of a transform are read while chosen scales are written. */
static int check_signs_apart(struct hz_context *ctx, const char *op, const hz_quantize_opts *o)
{
	const hz_tensor *const in[] = {o->hadamard->pre, o->hadamard->post};
	const hz_tensor *const out[] = {o->new_scales, o->new_tensor_scale};

	for (int i = 0; i < 4; i++) {
		if (in[i / 2] && out[i % 2])
			HZ_CHECK(hzi_check_apart(ctx, op, i / 2 ? "post" : "pre", in[i / 2],
						 i % 2 ? "opts->new_tensor_scale" : "opts->new_scales",
						 out[i % 2]));
	}
	return HZ_OK;
}

/* Whether the call is more than u8 or s8 by given scales of f32 */
static bool has_format(const hz_tensor *q, const hz_quantize_opts *o)
{
	return (q->dtype != HZ_U8 && q->dtype != HZ_S8) || o->given || o->min || o->max ||
	       o->group || o->new_scales || o->tensor_scale || (o->scales && o->scales->dtype != HZ_F32);
}

/* Removes dimension d of *a, which is none of those after it. */
static void format_remove(struct hzi_format_args *a, int d)
{
	int64_t *const lists[] = {a->shape, a->x_stride, a->q_stride, a->p_stride, a->r_stride};

	a->ndim--;
	for (int l = 0; l < 5; l++)
		memmove(lists[l] + d, lists[l] + d + 1, (size_t)(a->ndim - d) * sizeof(int64_t));
}

void hzi_format_merge(struct hzi_format_args *a)
{
	while (a->ndim > 0) {		/* into the row */
		const int d = a->ndim - 1;
		const int64_t codes = hzi_format_bits(a->q_dtype) < 8
					      ? a->n * hzi_format_bits(a->q_dtype) / 8 : a->n;
		const bool all = a->p_stride[d] == 0 && a->group == a->n && !a->chosen;

		if (!hzi_continues(a->x_stride[d], a->x_step, a->n) ||
		    !hzi_continues(a->q_stride[d], a->q_step, codes) ||
		    (a->stochastic && a->r_stride[d] != a->n) ||
		    (!all && (a->n % a->group || a->p_stride[d] != a->n / a->group)))
			break;
		a->n *= a->shape[d];
		if (all)
			a->group = a->n;
		format_remove(a, d);
	}
	for (int d = a->ndim - 2; d >= 0; d--) {
		const int64_t size = a->shape[d + 1];

		if (!hzi_continues(a->x_stride[d], a->x_stride[d + 1], size) ||
		    !hzi_continues(a->q_stride[d], a->q_stride[d + 1], size) ||
		    !hzi_continues(a->p_stride[d], a->p_stride[d + 1], size) ||
		    (a->stochastic && !hzi_continues(a->r_stride[d], a->r_stride[d + 1], size)))
			continue;
		a->shape[d + 1] *= a->shape[d];
		format_remove(a, d);
	}
}

/* Fills the dimensions of *a for parameters of the shape of p, NULL for one of all. */
static void format_dims(const hz_tensor *x, const hz_tensor *q, const hz_tensor *p,
			struct hzi_format_args *a)
{
	const int last = x->ndim - 1;
	const bool shared = !p || hz_tensor_count(p) == 1;
	int64_t row = 1;		/* of elements in C order */

	for (int d = 0; d < last; d++) {
		if (x->shape[d] == 1)
			continue;
		a->shape[a->ndim] = x->shape[d];
		a->x_stride[a->ndim] = x->stride[d];
		a->q_stride[a->ndim] = q->stride[d];
		a->p_stride[a->ndim] = !shared && p->shape[d] > 1 ? p->stride[d] : 0;
		a->ndim++;
	}
	row = a->n;
	for (int d = a->ndim - 1; d >= 0; d--) {
		a->r_stride[d] = row;
		row *= a->shape[d];
	}
	hzi_format_merge(a);
}

/* Fills *f, but its dimensions if there is a transform. p: the scales' shape, NULL for one of all */
static int format_args(struct hz_context *ctx, const char *op, const hz_tensor *x,
		       const hz_tensor *q, const hz_tensor *p, float scale,
		       const hz_quantize_opts *o, bool dequantize, struct hzi_format_args *f)
{
	const hz_tensor *s = o->new_scales ? o->new_scales : o->scales;
	const int last = x->ndim - 1;

	*f = (struct hzi_format_args){
		.dequantize = dequantize, .chosen = o->new_scales != NULL,
		.stochastic = (o->given & HZ_QUANTIZE_GIVEN_STOCHASTIC) != 0,
		.x = hzi_data(ctx, x), .q = hzi_data(ctx, q), .x_dtype = x->dtype,
		.q_dtype = q->dtype, .scale_dtype = s ? s->dtype : HZ_F32,
		.round_to = o->new_scales && o->hadamard ? o->hadamard->round_to : 0,
		.scales = s ? hzi_data(ctx, s) : NULL,
		.zeros = o->zeros ? hzi_data(ctx, o->zeros) : NULL,
		.tensor_scale = o->tensor_scale ? hzi_data(ctx, o->tensor_scale) : NULL,
		.new_tensor_scale =
			o->new_tensor_scale ? hzi_data(ctx, o->new_tensor_scale) : NULL,
		.scale = scale, .zero = o->zero, .seed = o->stochastic,
	};
	HZ_CHECK(check_bounds(ctx, op, o, q->dtype, &f->low, &f->high));
	if (f->chosen) {
		HZ_CHECK(check_rule(ctx, op, o, q->dtype, &f->rule));
		/* As hz_hadamard_quantize(): integers lie in -F .. F; max may be less than -F. */
		if (!(o->given & HZ_QUANTIZE_GIVEN_MIN) && !hzi_format_is_float(q->dtype)) {
			f->low = -hzi_format_high(q->dtype);
			f->low = f->low < f->high ? f->low : f->high;
		}
	}
	if (hz_tensor_count(x) == 0)
		return HZ_OK;
	f->n = x->ndim ? x->shape[last] : 1;
	f->x_step = f->n > 1 ? x->stride[last] : 1;
	f->q_step = f->n > 1 && hzi_format_bits(q->dtype) >= 8 ? q->stride[last] : 1;
	f->group = !p || hz_tensor_count(p) == 1 || last < 0 ? f->n :
		   p->shape[last] == 1			     ? f->n :
		   o->group			     ? o->group : f->n / p->shape[last];
	f->group = f->group < f->n ? f->group : f->n;
	if (!o->hadamard)
		format_dims(x, q, p, f);
	return HZ_OK;
}

/*
 * Fast path of codes_args(): true for contiguous u8 or s8 by one scale; fills *a. For a few elements
 * the checks take as long as the codes. What is refused here is refused again, with the message.
 */
static bool fast_args(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *q,
		      const hz_quantize_opts *o, bool dequantize, struct hzi_codes_args *a)
{
	const float scale = (float)o->scale;
	int64_t n;

	if (ctx->verbose || !(scale > 0) || !isfinite(scale) || o->scales || o->zeros ||
	    o->hadamard || o->tensor_scale || o->new_scales || o->new_tensor_scale ||
	    (o->group | o->min | o->max | o->scale_rule) || (o->flags | o->given) ||
	    o->stochastic || (o->reserved[0] | o->reserved[1] | o->reserved[2] | o->reserved[3]))
		return false;
	if (!hzi_check_contiguous(ctx, q, code_types, &n) ||
	    !hzi_check_contiguous(ctx, x, float_types, &n) ||
	    hzi_check_zero(ctx, op, "zero", o->zero, q->dtype) != HZ_OK ||
	    hzi_check_same_shape(ctx, op, "q", q, "x", x) != HZ_OK ||
	    hzi_check_apart(ctx, op, "q", q, "x", x) != HZ_OK)
		return false;
	*a = (struct hzi_codes_args){
		.map = {.n = n, .group = n, .x_step = 1, .q_step = 1}, .dequantize = dequantize,
		.x = x->data, .q = q->data, .x_dtype = x->dtype, .q_dtype = q->dtype,
		.scale = scale, .zero = o->zero,
	};
	return true;
}

/*
 * Fills *a, and *rotated and *format where they are needed. dequantize: from codes q to floats x.
 * empty: there is nothing to do.
 */
static int codes_args(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
		      const hz_quantize_opts *opts, bool dequantize, struct hzi_rotated *rotated,
		      struct hzi_format_args *format, struct hzi_codes_args *a,
		      bool *empty)
{
	static const hz_quantize_opts defaults;
	const hz_quantize_opts *o = opts ? opts : &defaults;
	const char *op = dequantize ? "dequantize" : "quantize", *x_name = dequantize ? "y" : "x";
	const hz_tensor *p;
	hz_tensor scales;
	float scale;

	HZI_ENTER(ctx, op);
	*empty = false;
	if (fast_args(ctx, op, x, q, o, dequantize, a))
		return HZ_OK;
	HZ_CHECK(check_codes(ctx, op, x, x_name, q, !dequantize, o, &scale, &scales));
	p = o->scales || o->new_scales ? &scales : NULL;
	*a = (struct hzi_codes_args){
		.dequantize = dequantize,
		.x = hzi_data(ctx, x),
		.q = hzi_data(ctx, q),
		.x_dtype = x->dtype,
		.q_dtype = q->dtype,
		.scales = o->scales ? hzi_data(ctx, o->scales) : NULL,
		.zeros = o->zeros ? hzi_data(ctx, o->zeros) : NULL,
		.scale = scale,
		.zero = o->zero,
	};
	*empty = hz_tensor_count(x) == 0;
	if (has_format(q, o)) {
		HZ_CHECK(format_args(ctx, op, x, q, p, scale, o, dequantize, format));
		a->format = format;
	}
	if (o->hadamard) {
		a->rotated = rotated;
		HZ_CHECK(hzi_rotated_args(ctx, dequantize ? "dequantize: hadamard"
							  : "quantize: hadamard",
					  x_name, x, "q", q, p, a->format ? format->group : 0,
					  o->hadamard, dequantize, rotated));
		return check_signs_apart(ctx, op, o);
	}
	if (!*empty && !a->format)
		make_map(x, q, p, &a->map);
	return HZ_OK;
}

int hz_quantize(hz_context *ctx, const hz_tensor *x, hz_tensor *q,
		const hz_quantize_opts *opts)
{
	struct hzi_rotated rotated;
	struct hzi_format_args format;
	struct hzi_quantize_args a;
	bool empty;

	HZ_CHECK(codes_args(ctx, x, q, opts, false, &rotated, &format, &a.codes, &empty));
	if (empty)
		return HZ_OK;
	return HZI_RUN(ctx, "quantize", quantize, quantize, &a);
}

int hz_dequantize(hz_context *ctx, const hz_tensor *q, hz_tensor *y,
		  const hz_quantize_opts *opts)
{
	struct hzi_rotated rotated;
	struct hzi_format_args format;
	struct hzi_dequantize_args a;
	bool empty;

	HZ_CHECK(codes_args(ctx, y, q, opts, true, &rotated, &format, &a.codes, &empty));
	if (empty)
		return HZ_OK;
	return HZI_RUN(ctx, "dequantize", quantize, dequantize, &a);
}

static int choose_args(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *scale,
		       const hz_tensor *zero, uint32_t flags, struct hzi_choose_qparams_args *a)
{
	static const struct hzi_flag list[] = {
		HZI_FLAG(HZ_QPARAMS_SYMMETRIC), HZI_FLAG(HZ_QPARAMS_SYMMETRIC_127_5),
		HZI_FLAG(HZ_QPARAMS_F32), HZI_FLAG(HZ_QPARAMS_REDUCE_RANGE), {0, NULL},
	};
	const uint32_t symmetric = HZ_QPARAMS_SYMMETRIC | HZ_QPARAMS_SYMMETRIC_127_5;
	static const char op[] = "choose_qparams";
	hz_tensor wide, wide_zero;
	int64_t bytes;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_check(ctx, op, "x", x, float_types, false));
	HZ_CHECK(hzi_check(ctx, op, "scale", scale, f32_type, true));
	HZ_CHECK(hzi_check_flags(ctx, op, "flags", flags,
				 symmetric | HZ_QPARAMS_F32 | HZ_QPARAMS_REDUCE_RANGE, list));
	if ((flags & symmetric) == symmetric)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: flags has HZ_QPARAMS_SYMMETRIC and _SYMMETRIC_127_5: one of "
				"them", op);
	if (!zero && !(flags & symmetric))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: zero is NULL, must be a view: only s8 with "
				"HZ_QPARAMS_SYMMETRIC or _SYMMETRIC_127_5 needs none", op);
	if (zero)
		HZ_CHECK(hzi_check(ctx, op, "zero", zero, code_types, true));
	/* With strides of 0 there may be more elements than memory has bytes. */
	if (!hzi_mul(hz_tensor_count(x), 8, &bytes))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x is too large: its size overflows", op);
	HZ_CHECK(check_params(ctx, op, "x", x, "scale", scale, 0, &wide));
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "scale", scale));
	if (zero) {
		HZ_CHECK(check_params(ctx, op, "x", x, "zero", zero, 0, &wide_zero));
		HZ_CHECK(check_alike(ctx, op, "scale", &wide, "zero", &wide_zero));
		HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "zero", zero));
		HZ_CHECK(hzi_check_apart(ctx, op, "scale", scale, "zero", zero));
	}
	*a = (struct hzi_choose_qparams_args){
		.x = hzi_data(ctx, x), .scale = hzi_data(ctx, scale),
		.zero = zero ? hzi_data(ctx, zero) : NULL, .x_dtype = x->dtype,
		.q_dtype = zero ? zero->dtype : HZ_S8,
		.flags = (int32_t)flags,
	};
	if (hz_tensor_count(x) > 0)
		make_map(x, NULL, &wide, &a->map);
	else
		a->map.params = hz_tensor_count(scale);
	return HZ_OK;
}

int hz_choose_qparams(hz_context *ctx, const hz_tensor *x, hz_tensor *scale,
		      hz_tensor *zero, uint32_t flags)
{
	struct hzi_choose_qparams_args a;
	size_t bytes, begin = 0;

	HZ_CHECK(choose_args(ctx, x, scale, zero, flags, &a));
	if (a.map.params == 0)
		return HZ_OK;
	bytes = HZI_WORKSPACE(ctx, quantize, choose_qparams, &a);
	/* Zero points that the caller does not want are written behind the workspace. */
	if (!zero) {
		begin = (bytes + 63) & ~(size_t)63;
		bytes = begin + (size_t)a.map.params;
	}
	HZ_CHECK(hzi_workspace(ctx, "choose_qparams", bytes));
	if (!zero && !ctx->recording)
		a.zero = (char *)ctx->workspace + begin;
	return HZI_CALL(ctx, quantize, choose_qparams, &a);
}
