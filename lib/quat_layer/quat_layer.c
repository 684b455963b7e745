/*
 * quat_layer.c - linear layers and convolutions of quaternions: checks, calls into the table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "lib/quat_gemm/quat_gemm.h"
#include "lib/quat_layer/quat_layer.h"

/* ---- What all layers check ------------------------------------------------------------------- */

/* A view as quaternions: its last dimension is that of components. */
static struct hzi_qtensor quaternions_of(const hz_tensor *from, uint32_t flags)
{
	const hz_tensor tame = hzi_tame(from), *const t = &tame;
	struct hzi_qtensor q = {.a = {.data = t->data, .dtype = t->dtype}, .ndim = t->ndim - 1};
	const int64_t step = t->stride[t->ndim - 1];
	const uintptr_t size = 4 * hz_dtype_size(t->dtype);

	for (int c = 0; c < 4; c++)
		q.a.comp[c] = step * (flags & HZ_QUAT_XYZW ? (c + 3) % 4 : c);
	q.a.whole = step == 1 && !(flags & HZ_QUAT_XYZW) && (uintptr_t)t->data % size == 0;
	for (int d = 0; d < q.ndim; d++) {
		q.shape[d] = t->shape[d];
		q.a.stride[d] = t->stride[d];
		q.a.whole = q.a.whole && (t->shape[d] == 1 || t->stride[d] % 4 == 0);
	}
	return q;
}

int hzi_quat_check_size(struct hz_context *ctx, const char *op, const char *name, int d,
			int64_t size, int64_t wanted, const char *as)
{
	if (size != wanted)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld%s", op,
				name, d, (long long)size, (long long)wanted, as);
	return HZ_OK;
}

int hzi_quat_check(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		   int dtype, int min_ndim, int max_ndim, bool output, uint32_t flags,
		   struct hzi_qtensor *q)
{
	static const int any[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_F64, 0};
	const int one[] = {dtype, 0};
	int64_t count = 1;

	HZ_CHECK(hzi_check(ctx, op, name, t, dtype ? one : any, output));
	if (t->dtype == HZ_F64 && ctx->device != HZ_CPU)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %s.dtype is f64, which only the CPU takes",
				op, name);
	if (t->ndim < min_ndim || t->ndim > max_ndim) {
		if (min_ndim == max_ndim)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", op, name,
					t->ndim, min_ndim);
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d to %d", op, name,
				t->ndim, min_ndim, max_ndim);
	}
	HZ_CHECK(hzi_quat_check_size(ctx, op, name, t->ndim - 1, t->shape[t->ndim - 1], 4, ""));
	/*
	 * With strides of 0 there may be more elements than memory has bytes for copies of them;
	 * and of an empty tensor the other sizes may be as large.
	 */
	for (int d = 0; d < t->ndim; d++) {
		if (t->shape[d] &&
		    (!hzi_mul(count, t->shape[d], &count) || count > INT64_MAX >> 12))
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: its size overflows",
					op, name);
	}
	*q = quaternions_of(t, flags);
	return HZ_OK;
}

int hzi_quat_check_apart(struct hz_context *ctx, const char *op, const struct hzi_qoperand *list,
			 int n, const char *in, const char *place)
{
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < i; k++) {
			const struct hzi_qoperand *a = &list[k], *b = &list[i];
			const bool same = in && strcmp(a->name, in) == 0 &&
					  strcmp(b->name, place) == 0;

			if (!a->t || !b->t || !(a->output || b->output))
				continue;
			HZ_CHECK(same ? hzi_check_apart_or_same(ctx, op, a->name, a->t, b->name,
								b->t) :
					hzi_check_apart(ctx, op, a->name, a->t, b->name, b->t));
		}
	}
	return HZ_OK;
}

int hzi_quat_check_range(struct hz_context *ctx, const char *op, const char *name, int64_t value,
			 int64_t low, int64_t high)
{
	if (value < low || value > high)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %lld, must be %lld to %lld", op,
				name, (long long)value, (long long)low, (long long)high);
	return HZ_OK;
}

int hzi_quat_check_flags(struct hz_context *ctx, const char *op, uint32_t flags, uint32_t known)
{
	if (flags & ~known)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->flags is %#x, must be made of %#x", op,
				flags, known);
	return HZ_OK;
}

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

/* What the options of linear layers and convolutions have in common */
static int check_common(struct hz_context *ctx, const char *op, int32_t side, int32_t method,
			int32_t precision, int32_t activation, const int64_t *reserved,
			struct hzi_qlayer *l)
{
	HZ_CHECK(hzi_quat_check_range(ctx, op, "side", side, HZ_QUAT_LEFT, HZ_QUAT_RIGHT));
	HZ_CHECK(hzi_quat_check_range(ctx, op, "method", method, 0, HZ_QUAT_FAST));
	HZ_CHECK(hzi_quat_check_range(ctx, op, "precision", precision, 0, HZ_PRECISION_HALF));
	HZ_CHECK(hzi_quat_check_range(ctx, op, "activation", activation, 0, HZ_ACT_NORMCLIP));
	HZ_CHECK(hzi_check_reserved(ctx, op, reserved, 4));
	l->method = method;
	l->precision = precision;
	l->activation = activation;
	l->reversed = side == HZ_QUAT_RIGHT;
	return HZ_OK;
}

static int check_bias(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *b,
		      int dtype, int64_t channels, const char *as, bool output, uint32_t flags,
		      struct hzi_qtensor *q)
{
	if (!b)
		return HZ_OK;
	HZ_CHECK(hzi_quat_check(ctx, op, name, b, b->dtype == HZ_F32 ? HZ_F32 : dtype, 2, 2, output,
				flags, q));
	return hzi_quat_check_size(ctx, op, name, 0, b->shape[0], channels, as);
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* Operands of a call; y is dy and the others are outputs in the backward pass. */
struct call {
	const char *op;
	const hz_tensor *x, *w, *b, *y, *dx, *dw, *db;
	bool backward;
};

static int check_weights(struct hz_context *ctx, const struct call *q, const hz_packed *p,
			 struct hzi_qlayer *l, uint32_t flags, int dtype)
{
	if (!p)
		return hzi_quat_check(ctx, q->op, "w", q->w, dtype, 3, 3, false, flags, &l->w);
	if (q->w)
		return hzi_fail(ctx, HZ_EINVAL, "%s: w and opts->packed are both given", q->op);
	HZ_CHECK(hzi_check_packed(ctx, q->op, "hz_quat_gemm_pack", 3, p));
	l->layout = (int32_t)p->layout;
	if (l->layout != hzi_quat_layout(ctx->device != HZ_CPU, hzi_quat_layout_method(l->layout),
					 hzi_quat_layout_precision(l->layout)) ||
	    hzi_quat_layout_method(l->layout) == 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->packed is not as hz_quat_gemm_pack() filled it", q->op);
	if (p->dtype != dtype)
		return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->packed->dtype is %s, must be %s, as %s",
				q->op, hz_dtype_name(p->dtype), hz_dtype_name(dtype),
				q->backward ? "dy" : "x");
	if (p->ndim != 3)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->packed->ndim is %d, must be 3", q->op,
				p->ndim);
	if ((l->method && l->method != hzi_quat_layout_method(l->layout)) ||
	    (l->precision && l->precision != hzi_quat_layout_precision(l->layout)))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->method and precision must be those of opts->packed, or "
				"0", q->op);
	l->packed = p->data;
	l->w.ndim = 2;
	l->w.shape[0] = p->shape[0];
	l->w.shape[1] = p->shape[1];
	return HZ_OK;
}

/* The method and precision that products without packed weights are to have, too */
static void settle(struct hzi_qlayer *l)
{
	if (!l->packed)
		return;
	l->method = hzi_quat_layout_method(l->layout);
	l->precision = hzi_quat_layout_precision(l->layout);
}

static int check_factors(struct hz_context *ctx, const struct call *q, const char *name,
			 const hz_tensor *t, bool output, const struct hzi_qlayer *l,
			 int64_t *stride)
{
	HZ_CHECK(hzi_check(ctx, q->op, name, t, (const int[]){l->w.a.dtype, 0}, output));
	if (t->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 2", q->op, name,
				t->ndim);
	for (int d = 0; d < 2; d++) {
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, d, t->shape[d], l->w.shape[d],
					     ", as w"));
		stride[d] = t->stride[d];
	}
	return HZ_OK;
}

/* Sizes of leading dimensions, which x and y share, and of the last two */
static int check_rows(struct hz_context *ctx, const struct call *q, const char *name,
		      const hz_tensor *t, const char *as_name, const hz_tensor *as,
		      int64_t channels, const char *what)
{
	char text[32] = ", as ";

	strncat(text, as_name, sizeof(text) - strlen(text) - 1);
	if (t->ndim != as->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d, as %s", q->op, name,
				t->ndim, as->ndim, as_name);
	for (int d = 0; d < t->ndim - 2; d++)
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, d, t->shape[d], as->shape[d], text));
	return hzi_quat_check_size(ctx, q->op, name, t->ndim - 2, t->shape[t->ndim - 2], channels,
				   what);
}

static int linear_args(struct hz_context *ctx, const struct call *q, const hz_quat_linear_opts *o,
		       struct hzi_quat_linear_args *a)
{
	const char *y_name = q->backward ? "dy" : "y";
	const bool rotate = o->flags & HZ_QUAT_ROTATION;
	struct hzi_qlayer *l = &a->l;
	const hz_tensor blob = o->packed ? hz_tensor_1d(o->packed->data, HZ_U8, ctx->device,
							(int64_t)o->packed->bytes) :
					   (hz_tensor){.ndim = 0};
	const struct hzi_qoperand list[] = {
		{"x", q->x, false}, {"w", q->w, false}, {"b", q->b, false},
		{y_name, q->y, !q->backward}, {"packed", o->packed ? &blob : NULL, false},
		{"scale", o->scale, false}, {"pre", o->pre, !q->backward}, {"dx", q->dx, true},
		{"dw", q->dw, true}, {"db", q->db, true}, {"dscale", o->dscale, true},
	};
	const bool needs_x = !q->backward || q->dw || o->dscale ||
			     (o->activation && !o->pre);
	int64_t stride[2];
	int dtype;

	memset(a, 0, sizeof(*a));
	HZ_CHECK(check_common(ctx, q->op, o->side, o->method, o->precision, o->activation,
			      o->reserved, l));
	HZ_CHECK(hzi_quat_check_flags(ctx, q->op, o->flags, HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE |
				      HZ_QUAT_ROTATION));
	l->slope = o->slope;
	l->accumulate = (o->flags & HZ_QUAT_ACCUMULATE) != 0;
	if (l->accumulate && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_QUAT_ACCUMULATE is for the backward call", q->op);
	if (rotate && o->packed)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->packed does not go with HZ_QUAT_ROTATION", q->op);
	if ((o->scale || o->dscale) && !rotate)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s needs HZ_QUAT_ROTATION", q->op,
				o->scale ? "scale" : "dscale");
	if (o->dscale && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->dscale is for the backward call", q->op);
	if (q->x || needs_x)
		HZ_CHECK(hzi_quat_check(ctx, q->op, "x", q->x, 0, 2, HZ_MAXDIM, false, o->flags,
					&l->x));
	HZ_CHECK(hzi_quat_check(ctx, q->op, y_name, q->y, q->x ? q->x->dtype : 0, 2, HZ_MAXDIM,
				!q->backward, o->flags, &l->y));
	dtype = q->y->dtype;
	HZ_CHECK(check_weights(ctx, q, o->packed, l, o->flags, dtype));
	settle(l);
	if (q->x) {
		HZ_CHECK(check_rows(ctx, q, "x", q->x, "x", q->x, l->w.shape[1], ", as w"));
		HZ_CHECK(check_rows(ctx, q, y_name, q->y, "x", q->x, l->w.shape[0], ", as w"));
	} else {
		HZ_CHECK(check_rows(ctx, q, y_name, q->y, y_name, q->y, l->w.shape[0], ", as w"));
	}
	HZ_CHECK(check_bias(ctx, q->op, "b", q->b, dtype, l->w.shape[0], ", as w", false, o->flags,
			    &l->b));
	if (o->pre) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "pre", o->pre, dtype, 2, HZ_MAXDIM,
					!q->backward, o->flags, &l->pre));
		HZ_CHECK(hzi_check_same_shape(ctx, q->op, y_name, q->y, "pre", o->pre));
	}
	if (q->dx) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "dx", q->dx, dtype, 2, HZ_MAXDIM, true,
					o->flags, &l->dx));
		HZ_CHECK(check_rows(ctx, q, "dx", q->dx, "dy", q->y, l->w.shape[1], ", as w"));
	}
	if (q->dw) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "dw", q->dw, dtype, 3, 3, true, o->flags,
					&l->dw));
		for (int d = 0; d < 2; d++)
			HZ_CHECK(hzi_quat_check_size(ctx, q->op, "dw", d, q->dw->shape[d],
						     l->w.shape[d], ", as w"));
	}
	HZ_CHECK(check_bias(ctx, q->op, "db", q->db, dtype, l->w.shape[0], ", as w", true, o->flags,
			    &l->db));
	a->rotate = rotate;
	if (o->scale) {
		HZ_CHECK(check_factors(ctx, q, "scale", o->scale, false, l, stride));
		a->scale = o->scale->data;
		a->scale_row = stride[0];
		a->scale_col = stride[1];
	}
	if (o->dscale) {
		HZ_CHECK(check_factors(ctx, q, "dscale", o->dscale, true, l, stride));
		a->dscale = o->dscale->data;
		a->dscale_row = stride[0];
		a->dscale_col = stride[1];
	}
	return hzi_quat_check_apart(ctx, q->op, list, LISTED(list), NULL, NULL);
}

static const hz_quat_linear_opts linear_defaults;

static int null_bytes(struct hz_context *ctx, const char *op)
{
	return hzi_fail(ctx, HZ_EINVAL, "%s_workspace: bytes is NULL", op);
}

/* Either the call, or its workspace if bytes is not NULL */
static int linear(struct hz_context *ctx, const struct call *q, const hz_quat_linear_opts *opts,
		  bool only_bytes, size_t *bytes)
{
	struct hzi_quat_linear_bwd_args a;
	size_t need;

	HZ_CHECK(hzi_enter(ctx, q->op));
	HZ_CHECK(linear_args(ctx, q, opts ? opts : &linear_defaults, &a.f));
	if (only_bytes && !bytes)
		return null_bytes(ctx, q->op);
	need = q->backward ? HZI_OPS(ctx, quat_layer)->quat_linear_bwd_workspace(ctx, &a) :
			     HZI_OPS(ctx, quat_layer)->quat_linear_workspace(ctx, &a.f);
	if (only_bytes) {
		*bytes = need;
		return HZ_OK;
	}
	if (!q->backward && hz_tensor_count(q->y) == 0)
		return HZ_OK;
	HZ_CHECK(hzi_workspace(ctx, q->op, need));
	return q->backward ? HZI_CALL(ctx, quat_layer, quat_linear_bwd, &a) :
			     HZI_CALL(ctx, quat_layer, quat_linear, &a.f);
}

int hz_quat_linear(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		   const hz_tensor *y, const hz_quat_linear_opts *opts)
{
	const struct call q = {.op = "quat_linear", .x = x, .w = w, .b = b, .y = y};

	return linear(ctx, &q, opts, false, NULL);
}

int hz_quat_linear_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
			     const hz_tensor *b, const hz_tensor *y,
			     const hz_quat_linear_opts *opts, size_t *bytes)
{
	const struct call q = {.op = "quat_linear", .x = x, .w = w, .b = b, .y = y};

	return linear(ctx, &q, opts, true, bytes);
}

int hz_quat_linear_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		       const hz_tensor *dy, const hz_tensor *dx, const hz_tensor *dw,
		       const hz_tensor *db, const hz_quat_linear_opts *opts)
{
	const struct call q = {.op = "quat_linear_bwd", .x = x, .w = w, .b = b, .y = dy, .dx = dx,
			       .dw = dw, .db = db, .backward = true};

	return linear(ctx, &q, opts, false, NULL);
}

int hz_quat_linear_bwd_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
				 const hz_tensor *b, const hz_tensor *dy, const hz_tensor *dx,
				 const hz_tensor *dw, const hz_tensor *db,
				 const hz_quat_linear_opts *opts, size_t *bytes)
{
	const struct call q = {.op = "quat_linear_bwd", .x = x, .w = w, .b = b, .y = dy, .dx = dx,
			       .dw = dw, .db = db, .backward = true};

	return linear(ctx, &q, opts, true, bytes);
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* Arrays of one or two spatial dimensions get the missing ones, of size 1, in front of them. */
static void widen(struct hzi_qtensor *t)
{
	const int missing = 5 - t->ndim;

	for (int d = 4; d >= 1; d--) {
		const int from = d - missing;

		t->shape[d] = from < 1 ? 1 : t->shape[from];
		t->a.stride[d] = from < 1 ? 0 : t->a.stride[from];
	}
	t->ndim = 5;
}

/* One of stride, pad and dilation for three dimensions, of which the first may be missing */
static int spread(struct hz_context *ctx, const char *op, const char *name, const int64_t *from,
		  int n, int64_t absent, int64_t low, int64_t *to)
{
	char text[32];

	for (int d = 0; d < 3; d++) {
		const int own = d - (3 - n);
		const int64_t v = own < 0 ? absent : from[own] ? from[own] : absent;

		strcpy(text, name);
		text[strlen(name) - 2] = (char)('0' + (own < 0 ? 0 : own));
		HZ_CHECK(hzi_quat_check_range(ctx, op, text, v, low, INT32_MAX));
		to[d] = v;
	}
	for (int d = n; d < 3; d++) {
		strcpy(text, name);
		text[strlen(name) - 2] = (char)('0' + d);
		HZ_CHECK(hzi_quat_check_range(ctx, op, text, from[d], 0, 0));
	}
	return HZ_OK;
}

static int conv_args(struct hz_context *ctx, const struct call *q, const hz_quat_conv_opts *o,
		     struct hzi_quat_conv_args *a)
{
	const char *y_name = q->backward ? "dy" : "y";
	const bool transposed = o->flags & HZ_QUAT_TRANSPOSED;
	struct hzi_qlayer *l = &a->l;
	const struct hzi_qoperand list[] = {
		{"x", q->x, false}, {"w", q->w, false}, {"b", q->b, false},
		{y_name, q->y, !q->backward}, {"pre", o->pre, !q->backward}, {"dx", q->dx, true},
		{"dw", q->dw, true}, {"db", q->db, true},
	};
	const hz_tensor *big, *small;
	int64_t channels;
	int n, dtype;

	memset(a, 0, sizeof(*a));
	HZ_CHECK(check_common(ctx, q->op, o->side, o->method, o->precision, o->activation,
			      o->reserved, l));
	HZ_CHECK(hzi_quat_check_flags(ctx, q->op, o->flags, HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE |
				      HZ_QUAT_TRANSPOSED | HZ_QUAT_NOCONJ));
	l->slope = o->slope;
	l->accumulate = (o->flags & HZ_QUAT_ACCUMULATE) != 0;
	if (l->accumulate && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_QUAT_ACCUMULATE is for the backward call", q->op);
	if (o->flags & HZ_QUAT_NOCONJ && !transposed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: HZ_QUAT_NOCONJ needs HZ_QUAT_TRANSPOSED",
				q->op);
	HZ_CHECK(hzi_quat_check(ctx, q->op, "x", q->x, 0, 4, HZ_MAXDIM, false, o->flags, &l->x));
	dtype = q->x->dtype;
	n = q->x->ndim - 3;
	HZ_CHECK(hzi_quat_check(ctx, q->op, "w", q->w, dtype, q->x->ndim, q->x->ndim, false,
				o->flags, &l->w));
	HZ_CHECK(hzi_quat_check(ctx, q->op, y_name, q->y, dtype, q->x->ndim, q->x->ndim,
				!q->backward, o->flags, &l->y));
	HZ_CHECK(spread(ctx, q->op, "stride[0]", o->stride, n, 1, 1, a->stride));
	HZ_CHECK(spread(ctx, q->op, "dilation[0]", o->dilation, n, 1, 1, a->dilation));
	HZ_CHECK(spread(ctx, q->op, "pad[0]", o->pad, n, 0, 0, a->pad));
	a->groups = o->groups ? o->groups : 1;
	HZ_CHECK(hzi_quat_check_range(ctx, q->op, "groups", a->groups, 1, INT32_MAX));
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
		int64_t span, room, size;

		if (q->w->shape[1 + d] < 1)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: w.shape[%d] is 0, must be at least 1",
					q->op, 1 + d);
		if (!hzi_mul(q->w->shape[1 + d] - 1, a->dilation[in], &span) ||
		    __builtin_add_overflow(big->shape[1 + d], 2 * a->pad[in], &room) ||
		    span > INT64_MAX / 4 || room > INT64_MAX / 4)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] overflows with pad and "
					"dilation", q->op, transposed ? y_name : "x", 1 + d);
		size = room - span - 1 < 0 ? 0 : (room - span - 1) / a->stride[in] + 1;
		if (small->shape[1 + d] != size)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, what the "
					"convolution makes of %s.shape[%d] = %lld", q->op,
					transposed ? "x" : y_name, 1 + d,
					(long long)small->shape[1 + d], (long long)size,
					transposed ? y_name : "x", 1 + d,
					(long long)big->shape[1 + d]);
	}
	HZ_CHECK(check_bias(ctx, q->op, "b", q->b, dtype, q->y->shape[n + 1],
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
	HZ_CHECK(check_bias(ctx, q->op, "db", q->db, dtype, q->y->shape[n + 1],
			    ", as the channels of dy", true, o->flags, &l->db));
	widen(&l->x);
	widen(&l->w);
	widen(&l->y);
	return hzi_quat_check_apart(ctx, q->op, list, LISTED(list), NULL, NULL);
}

static const hz_quat_conv_opts conv_defaults;

static int conv(struct hz_context *ctx, const struct call *q, const hz_quat_conv_opts *opts,
		bool only_bytes, size_t *bytes)
{
	struct hzi_quat_conv_bwd_args a;
	size_t need;

	HZ_CHECK(hzi_enter(ctx, q->op));
	HZ_CHECK(conv_args(ctx, q, opts ? opts : &conv_defaults, &a.f));
	if (only_bytes && !bytes)
		return null_bytes(ctx, q->op);
	need = q->backward ? HZI_OPS(ctx, quat_conv)->quat_conv_bwd_workspace(ctx, &a) :
			     HZI_OPS(ctx, quat_conv)->quat_conv_workspace(ctx, &a.f);
	if (only_bytes) {
		*bytes = need;
		return HZ_OK;
	}
	if (!q->backward && hz_tensor_count(q->y) == 0)
		return HZ_OK;
	HZ_CHECK(hzi_workspace(ctx, q->op, need));
	return q->backward ? HZI_CALL(ctx, quat_conv, quat_conv_bwd, &a) :
			     HZI_CALL(ctx, quat_conv, quat_conv, &a.f);
}

int hz_quat_conv(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		 const hz_tensor *y, const hz_quat_conv_opts *opts)
{
	const struct call q = {.op = "quat_conv", .x = x, .w = w, .b = b, .y = y};

	return conv(ctx, &q, opts, false, NULL);
}

int hz_quat_conv_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
			   const hz_tensor *b, const hz_tensor *y, const hz_quat_conv_opts *opts,
			   size_t *bytes)
{
	const struct call q = {.op = "quat_conv", .x = x, .w = w, .b = b, .y = y};

	return conv(ctx, &q, opts, true, bytes);
}

int hz_quat_conv_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		     const hz_tensor *dy, const hz_tensor *dx, const hz_tensor *dw,
		     const hz_tensor *db, const hz_quat_conv_opts *opts)
{
	const struct call q = {.op = "quat_conv_bwd", .x = x, .w = w, .b = b, .y = dy, .dx = dx,
			       .dw = dw, .db = db, .backward = true};

	return conv(ctx, &q, opts, false, NULL);
}

int hz_quat_conv_bwd_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
			       const hz_tensor *b, const hz_tensor *dy, const hz_tensor *dx,
			       const hz_tensor *dw, const hz_tensor *db,
			       const hz_quat_conv_opts *opts, size_t *bytes)
{
	const struct call q = {.op = "quat_conv_bwd", .x = x, .w = w, .b = b, .y = dy, .dx = dx,
			       .dw = dw, .db = db, .backward = true};

	return conv(ctx, &q, opts, true, bytes);
}
