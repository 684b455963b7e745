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
 * Fills the map, which is zeroed, of x, q (NULL: none) and parameters of the shape of p (NULL: none). A dimension
 * whose neighbours have the same or successive parameters may be the row: the last one if it is cut
 * into groups, else the one with the smallest stride of x.
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
 * groups [m] could be meant for rows.
 */
static int check_params(struct hz_context *ctx, const char *op, const char *v_name,
			const hz_tensor *v, const char *p_name, const hz_tensor *p, hz_tensor *wide)
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
				"%s: %s.ndim is %d, must be 1 to %d, as %s, or it have one element",
				op, p_name, p->ndim, v->ndim, v_name);
	for (int d = 0; d < v->ndim; d++) {
		const int64_t size = v->shape[d], own = d < more ? 1 : p->shape[d - more];
		const bool groups = d == v->ndim - 1 && (p->ndim > 1 || v->ndim == 1);

		shape[d] = own;
		if (own == 1 || own == size || (groups && own > 0 && size % own == 0))
			continue;
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

/* Checks for hz_quantize() and hz_dequantize(): x floats, q codes, one of them the output */
static int check_codes(struct hz_context *ctx, const char *op, const hz_tensor *x,
		       const char *x_name, const hz_tensor *q, bool to_codes,
		       const hz_quantize_opts *o, float *scale, hz_tensor *scales)
{
	hz_tensor zeros;
	const hz_tensor *in = to_codes ? x : q, *out = to_codes ? q : x;
	const char *in_name = to_codes ? "x" : "q", *out_name = to_codes ? "q" : "y";

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_check(ctx, op, in_name, in, to_codes ? float_types : code_types, false));
	HZ_CHECK(hzi_check(ctx, op, out_name, out, to_codes ? code_types : float_types, true));
	HZ_CHECK(hzi_check_same_shape(ctx, op, in_name, in, out_name, out));
	HZ_CHECK(hzi_check_scale(ctx, op, "scale", o->scale, scale));
	HZ_CHECK(hzi_check_zero(ctx, op, "zero", o->zero, q->dtype));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o->flags, 0, NULL));
	HZ_CHECK(hzi_check_reserved(ctx, op, o->reserved, 3));
	HZ_CHECK(hzi_check_apart(ctx, op, in_name, in, out_name, out));
	if (!o->scales) {
		if (o->zeros)
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->zeros needs opts->scales", op);
		if (o->scale == 0)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->scale is 0 and opts->scales NULL: give scale, "
					"scales, or choose_qparams() first", op);
		return HZ_OK;
	}
	if (o->scale != 0 || o->zero != 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->scales excludes opts->scale and opts->zero", op);
	HZ_CHECK(hzi_check(ctx, op, "scales", o->scales, f32_type, false));
	HZ_CHECK(check_params(ctx, op, x_name, x, "scales", o->scales, scales));
	HZ_CHECK(hzi_check_apart(ctx, op, "scales", o->scales, out_name, out));
	if (!o->zeros)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, op, "zeros", o->zeros, code_types, false));
	if (o->zeros->dtype != q->dtype)
		return hzi_fail(ctx, HZ_EDTYPE, "%s: zeros.dtype is %s, must be %s, as q", op,
				hz_dtype_name(o->zeros->dtype), hz_dtype_name(q->dtype));
	HZ_CHECK(check_params(ctx, op, x_name, x, "zeros", o->zeros, &zeros));
	HZ_CHECK(check_alike(ctx, op, "scales", scales, "zeros", &zeros));
	return hzi_check_apart(ctx, op, "zeros", o->zeros, out_name, out);
}

/*
 * Fills *a, and *rotated if there is a transform. dequantize: from codes q to floats x. empty: there
 * is nothing to do.
 */
static int codes_args(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
		      const hz_quantize_opts *opts, bool dequantize, struct hzi_rotated *rotated,
		      struct hzi_codes_args *a, bool *empty)
{
	static const hz_quantize_opts defaults;
	const hz_quantize_opts *o = opts ? opts : &defaults;
	const char *op = dequantize ? "dequantize" : "quantize", *x_name = dequantize ? "y" : "x";
	hz_tensor scales;
	float scale;

	HZ_CHECK(check_codes(ctx, op, x, x_name, q, !dequantize, o, &scale, &scales));
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
	if (o->hadamard) {
		a->rotated = rotated;
		return hzi_rotated_args(ctx,
					dequantize ? "dequantize: hadamard" : "quantize: hadamard",
					x_name, x, "q", q, o->scales ? &scales : NULL, o->hadamard,
					dequantize, rotated);
	}
	if (!*empty)
		make_map(x, q, o->scales ? &scales : NULL, &a->map);
	return HZ_OK;
}

int hz_quantize(hz_context *ctx, const hz_tensor *x, hz_tensor *q,
		const hz_quantize_opts *opts)
{
	struct hzi_rotated rotated;
	struct hzi_quantize_args a;
	bool empty;

	HZ_CHECK(codes_args(ctx, x, q, opts, false, &rotated, &a.codes, &empty));
	if (empty)
		return HZ_OK;
	return HZI_RUN(ctx, "quantize", quantize, quantize, &a);
}

int hz_dequantize(hz_context *ctx, const hz_tensor *q, hz_tensor *y,
		  const hz_quantize_opts *opts)
{
	struct hzi_rotated rotated;
	struct hzi_dequantize_args a;
	bool empty;

	HZ_CHECK(codes_args(ctx, y, q, opts, true, &rotated, &a.codes, &empty));
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
	HZ_CHECK(check_params(ctx, op, "x", x, "scale", scale, &wide));
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "scale", scale));
	if (zero) {
		HZ_CHECK(check_params(ctx, op, "x", x, "zero", zero, &wide_zero));
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
