/*
 * quat_conv.c - quaternion convolutions: argument checks, calls through the operation table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "lib/quat_conv/quat_conv.h"

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

/* Operands of a call; in the backward pass y is dy and the others are outputs. */
struct call {
	const char *op;
	const hz_tensor *x, *w, *b, *y, *dx, *dw, *db;
	bool backward;
};

/* Prepends missing spatial dimensions, of size 1. */
static void widen(struct hzi_quat_tensor *t)
{
	const int missing = 5 - t->ndim;

	for (int d = 4; d >= 1; d--) {
		const int from = d - missing;

		t->shape[d] = from < 1 ? 1 : t->shape[from];
		t->a.stride[d] = from < 1 ? 0 : t->a.stride[from];
	}
	t->ndim = 5;
}

/* A factor, or its gradient, of each weight: the shape of w without components, contiguous */
static int check_scale(struct hz_context *ctx, const struct call *q, const char *name,
		       const hz_tensor *t, bool backward, uint32_t flags)
{
	int64_t step = 1;

	if (!t)
		return HZ_OK;
	if (!(flags & HZ_QUAT_ROTATION))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s needs HZ_QUAT_ROTATION", q->op, name);
	if (backward && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is for the backward call", q->op,
				name);
	HZ_CHECK(hzi_check(ctx, q->op, name, t, (const int[]){q->w->dtype, 0}, backward));
	if (t->ndim != q->w->ndim - 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", q->op, name,
				t->ndim, q->w->ndim - 1);
	for (int d = 0; d < t->ndim; d++)
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, d, t->shape[d], q->w->shape[d],
					     ", as w"));
	for (int d = t->ndim - 1; d >= 0; step *= t->shape[d--]) {
		if (t->shape[d] > 1 && t->stride[d] != step && hz_tensor_count(t))
			return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s.stride[%d] is %lld, must be %lld: "
					"contiguous", q->op, name, d, (long long)t->stride[d],
					(long long)step);
	}
	return HZ_OK;
}

static int conv_args(struct hz_context *ctx, const struct call *q, const hz_quat_conv_opts *o,
		     struct hzi_quat_conv_args *a)
{
	const char *y_name = q->backward ? "dy" : "y";
	const bool transposed = o->flags & HZ_QUAT_TRANSPOSED;
	struct hzi_quat_layer *l = &a->l;
	const struct hzi_quat_layer_view list[] = {
		{"x", q->x, false}, {"w", q->w, false}, {"b", q->b, false},
		{y_name, q->y, !q->backward}, {"pre", o->pre, !q->backward}, {"dx", q->dx, true},
		{"dw", q->dw, true}, {"db", q->db, true}, {"scale", o->scale, false},
		{"dscale", o->dscale, true},
	};
	const hz_tensor *big, *small;
	int64_t channels;
	int n, dtype;

	memset(a, 0, sizeof(*a));
	HZ_CHECK(hzi_quat_check_options(ctx, q->op, o->side, o->method, o->precision,
					o->activation, o->reserved, l));
	HZ_CHECK(hzi_quat_check_flags(ctx, q->op, "opts->flags", o->flags, HZ_QUAT_XYZW |
				      HZ_QUAT_ACCUMULATE | HZ_QUAT_TRANSPOSED | HZ_QUAT_NOCONJ |
				      HZ_QUAT_ROTATION));
	HZ_CHECK(hzi_quat_check_eps(ctx, q->op, o->flags & HZ_QUAT_ROTATION, o->eps, o->eps_rule,
				    &a->rotation));
	HZ_CHECK(hzi_quat_check_range(ctx, q->op, "pad_mode", o->pad_mode, 0, HZ_PAD_REFLECT));
	HZ_CHECK(hzi_quat_check_slope(ctx, q->op, o->activation, o->slope));
	l->slope = o->slope;
	l->accumulate = (o->flags & HZ_QUAT_ACCUMULATE) != 0;
	if (l->accumulate && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_QUAT_ACCUMULATE is for the backward call", q->op);
	if (o->flags & HZ_QUAT_NOCONJ && !transposed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: HZ_QUAT_NOCONJ needs HZ_QUAT_TRANSPOSED",
				q->op);
	if (o->pad_mode == HZ_PAD_REFLECT && transposed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->pad_mode HZ_PAD_REFLECT does not go with "
				"HZ_QUAT_TRANSPOSED", q->op);
	HZ_CHECK(hzi_quat_check(ctx, q->op, "x", q->x, 0, 4, HZ_MAXDIM, false, o->flags, &l->x));
	dtype = q->x->dtype;
	n = q->x->ndim - 3;
	HZ_CHECK(hzi_quat_check(ctx, q->op, "w", q->w, dtype, q->x->ndim, q->x->ndim, false,
				o->flags, &l->w));
	HZ_CHECK(hzi_quat_check(ctx, q->op, y_name, q->y, dtype, q->x->ndim, q->x->ndim,
				!q->backward, o->flags, &l->y));
	HZ_CHECK(hzi_quat_check_spatial(ctx, q->op, "stride", o->stride, n, 1, 1, a->stride));
	HZ_CHECK(hzi_quat_check_spatial(ctx, q->op, "dilation", o->dilation, n, 1, 1, a->dilation));
	HZ_CHECK(hzi_quat_check_spatial(ctx, q->op, "pad", o->pad, n, 0, 0, a->pad));
	a->groups = o->groups ? o->groups : 1;
	HZ_CHECK(hzi_quat_check_range(ctx, q->op, "groups", a->groups, 1, INT32_MAX));
	a->reflect = o->pad_mode == HZ_PAD_REFLECT;
	a->transposed = transposed;
	a->conj = !(o->flags & HZ_QUAT_NOCONJ);
	big = transposed ? q->y : q->x;
	small = transposed ? q->x : q->y;

	if (q->w->shape[0] % a->groups)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: w.shape[0] is %lld, must be a multiple of opts->groups", q->op,
				(long long)q->w->shape[0]);
	if (!hzi_mul(q->w->shape[n + 1], a->groups, &channels))
		channels = -1;
	HZ_CHECK(hzi_quat_check_size(ctx, q->op, transposed ? y_name : "x", n + 1,
				     big->shape[n + 1], channels,
				     ", w's last channels times groups"));
	HZ_CHECK(hzi_quat_check_size(ctx, q->op, transposed ? "x" : y_name, n + 1,
				     small->shape[n + 1], q->w->shape[0], ", as w.shape[0]"));
	HZ_CHECK(hzi_quat_check_size(ctx, q->op, y_name, 0, q->y->shape[0], q->x->shape[0],
				     ", as x"));
	for (int d = 0; d < n; d++) {
		const int in = 3 - n + d;
		int64_t span, padded, size;

		if (q->w->shape[1 + d] < 1)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: w.shape[%d] is 0, must be at least 1",
					q->op, 1 + d);
		if (!hzi_mul(q->w->shape[1 + d] - 1, a->dilation[in], &span) ||
		    __builtin_add_overflow(big->shape[1 + d],
					   (2 - (o->pad_mode == HZ_PAD_CAUSAL)) * a->pad[in],
					   &padded) ||
		    span > INT64_MAX / 4 || padded > INT64_MAX / 4)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] overflows with pad and "
					"dilation", q->op, transposed ? y_name : "x", 1 + d);
		if (a->reflect && a->pad[in] > 0 && a->pad[in] >= big->shape[1 + d])
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->pad[%d] is %lld, must be below "
					"x.shape[%d] = %lld for HZ_PAD_REFLECT", q->op, d,
					(long long)a->pad[in], 1 + d,
					(long long)big->shape[1 + d]);
		size = padded - span - 1 < 0 ? 0 : (padded - span - 1) / a->stride[in] + 1;
		if (small->shape[1 + d] != size)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, what the "
					"convolution makes of %s.shape[%d] = %lld", q->op,
					transposed ? "x" : y_name, 1 + d,
					(long long)small->shape[1 + d], (long long)size,
					transposed ? y_name : "x", 1 + d,
					(long long)big->shape[1 + d]);
	}
	HZ_CHECK(check_scale(ctx, q, "scale", o->scale, false, o->flags));
	HZ_CHECK(check_scale(ctx, q, "dscale", o->dscale, true, o->flags));
	a->rotation.scale = o->scale ? hzi_data(ctx, o->scale) : NULL;
	a->rotation.dscale = o->dscale ? hzi_data(ctx, o->dscale) : NULL;
	a->rotation.scale_row = a->rotation.dscale_row = q->w->shape[0] ?
		hz_tensor_count(q->w) / 4 / q->w->shape[0] : 0;
	a->rotation.scale_col = a->rotation.dscale_col = 1;
	HZ_CHECK(hzi_quat_check_bias(ctx, q->op, "b", q->b, dtype, q->y->shape[n + 1],
				     ", as the channels of y", false, o->flags, &l->b));
	if (o->pre) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "pre", o->pre, dtype, q->y->ndim, q->y->ndim,
					!q->backward, o->flags, &l->pre));
		HZ_CHECK(hzi_check_same_shape(ctx, q->op, y_name, q->y, "pre", o->pre));
		widen(&l->pre);
	}
	if (q->dx) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "dx", q->dx, dtype, q->x->ndim, q->x->ndim,
					true, o->flags, &l->dx));
		HZ_CHECK(hzi_check_same_shape(ctx, q->op, "x", q->x, "dx", q->dx));
		widen(&l->dx);
	}
	if (q->dw) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "dw", q->dw, dtype, q->w->ndim, q->w->ndim,
					true, o->flags, &l->dw));
		HZ_CHECK(hzi_check_same_shape(ctx, q->op, "w", q->w, "dw", q->dw));
		widen(&l->dw);
	}
	HZ_CHECK(hzi_quat_check_bias(ctx, q->op, "db", q->db, dtype, q->y->shape[n + 1],
				     ", as the channels of dy", true, o->flags, &l->db));
	widen(&l->x);
	widen(&l->w);
	widen(&l->y);
	return hzi_quat_check_apart(ctx, q->op, list, LISTED(list), NULL, NULL);
}

static const hz_quat_conv_opts conv_defaults;

static int conv(struct hz_context *ctx, const struct call *q, const hz_quat_conv_opts *opts)
{
	struct hzi_quat_conv_bwd_args a;

	HZI_ENTER(ctx, q->op);
	HZ_CHECK(conv_args(ctx, q, opts ? opts : &conv_defaults, &a.f));
	if (!q->backward && hz_tensor_count(q->y) == 0)
		return HZ_OK;
	do {
		HZ_CHECK(hzi_workspace(ctx, q->op, q->backward ?
				       HZI_WORKSPACE(ctx, quat_conv, quat_conv_bwd, &a) :
				       HZI_WORKSPACE(ctx, quat_conv, quat_conv, &a.f)));
	} while (hzi_quat_misalign(ctx, &a.f.l));
	if (ctx->recording)
		return HZ_OK;
	return q->backward ? HZI_CALL_PICKED(ctx, quat_conv, quat_conv_bwd, &a) :
			     HZI_CALL_PICKED(ctx, quat_conv, quat_conv, &a.f);
}

int hz_quat_conv(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		 hz_tensor *y, const hz_quat_conv_opts *opts)
{
	const struct call q = {.op = "quat_conv", .x = x, .w = w, .b = b, .y = y};

	return conv(ctx, &q, opts);
}

int hz_quat_conv_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		     const hz_tensor *dy, hz_tensor *dx, hz_tensor *dw, hz_tensor *db,
		     const hz_quat_conv_opts *opts)
{
	const struct call q = {.op = "quat_conv_bwd", .x = x, .w = w, .b = b, .y = dy, .dx = dx,
			       .dw = dw, .db = db, .backward = true};

	return conv(ctx, &q, opts);
}
