/*
 * linear.c - quaternion linear layers, also those that rotate vectors: argument checks, plans
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "lib/quat_layer/plan.h"

/* out = act(w in + bias), or with the adjoint w^H */
static int apply_weights(struct hzi_quat_plan *r, const struct hzi_quat_tensor *in,
			 const struct hzi_quat_tensor *out, bool adjoint, bool bias, int activation,
			 const struct hzi_quat_array *pre)
{
	const struct hzi_quat_layer *l = r->l;
	const int last = out->ndim - 1;
	const struct hzi_quat_merged j = hzi_quat_merge(last, out->shape, &in->a, &out->a,
							pre && pre->data ? pre : NULL);
	struct hzi_quat_gemm_args g = {
		.m = out->shape[last], .k = in->shape[last], .n = j.size[j.n - 1],
		.dtype = in->a.dtype, .c_dtype = out->a.dtype, .conj_a = adjoint,
		.activation = activation, .slope = l->slope,
	};

	if (l->packed) {
		g.packed = l->packed;
		g.layout = l->layout;
		g.packed_t = adjoint;
	} else {
		g.a = hzi_quat_array_matrix(&l->w.a, 0, l->w.a.stride[adjoint],
					    l->w.a.stride[!adjoint]);
	}
	g.b = hzi_quat_array_matrix(&in->a, 0, in->a.stride[last], j.stride[0][j.n - 1]);
	g.c = hzi_quat_array_matrix(&out->a, 0, out->a.stride[last], j.stride[1][j.n - 1]);
	if (pre && pre->data)
		g.pre = hzi_quat_array_matrix(pre, 0, pre->stride[last], j.stride[2][j.n - 1]);
	if (bias)
		hzi_quat_gemm_bias(&g, &l->b.a, 0);
	assert(j.n <= HZ_MAXDIM);	/* the last dimension of a tensor is the components */
	for (g.ndim = 0; g.ndim < j.n - 1; g.ndim++) {
		g.shape[g.ndim] = j.size[g.ndim];
		g.b_stride[g.ndim] = j.stride[0][g.ndim];
		g.c_stride[g.ndim] = j.stride[1][g.ndim];
		g.pre_stride[g.ndim] = j.stride[2][g.ndim];
	}
	return hzi_quat_plan_multiply(r, &g, l->reversed);
}

int hzi_quat_plan_weight_gradient(struct hzi_quat_plan *r, const struct hzi_quat_tensor *z)
{
	const struct hzi_quat_layer *l = r->l;
	const int last = z->ndim - 1;
	const struct hzi_quat_merged j = hzi_quat_merge(last, z->shape, &z->a, &l->x.a, NULL);
	const int64_t items = hzi_quat_count(j.n - 1, j.size), k = j.size[j.n - 1];
	const int64_t part = hzi_quat_count(2, l->dw.shape) * 4;
	const int64_t splits =
		items == 1 ? hzi_quat_plan_splits(r, l->dw.shape[0], l->dw.shape[1], k) : 1;
	const size_t used = r->used;
	struct hzi_quat_tensor sum = l->dw;
	struct hzi_quat_merged walked = j;
	void *parts = NULL;
	int64_t steps = 1;		/* without items one empty product writes zeros */
	int status = HZ_OK;

	for (int d = 0; d < j.n - 1 && r->dry; d++)
		walked.size[d] = j.size[d] < HZI_QUAT_DRY_STEPS ? j.size[d] : HZI_QUAT_DRY_STEPS;
	if (items)
		steps = hzi_quat_count(j.n - 1, walked.size);
	if (splits > 1) {
		parts = hzi_quat_plan_take(r, splits * part, hzi_quat_sum_dtype(z->a.dtype));
		status = hzi_quat_plan_clear(r, parts, splits * part,
					     hzi_quat_sum_dtype(z->a.dtype));
	}
	if (items != 1 || parts)
		sum = hzi_quat_plan_tensor(r, hzi_quat_sum_dtype(z->a.dtype), 2, l->dw.shape);
	for (int64_t i = 0; i < steps && status == HZ_OK; i++) {
		int64_t left = i, z_at = 0, x_at = 0;
		struct hzi_quat_gemm_args g = {
			.m = l->dw.shape[0], .n = l->dw.shape[1],
			.k = items ? k : 0, .dtype = z->a.dtype,
			.c_dtype = sum.a.dtype, .conj_b = 1,
			.beta = items == 1 ? l->accumulate : i > 0,
			.c = hzi_quat_array_matrix(&sum.a, 0, sum.a.stride[0], sum.a.stride[1]),
		};

		for (int d = j.n - 2; d >= 0; d--) {
			z_at += left % walked.size[d] * j.stride[0][d];
			x_at += left % walked.size[d] * j.stride[1][d];
			left /= walked.size[d];
		}
		g.a = hzi_quat_array_matrix(&z->a, z_at, z->a.stride[last], j.stride[0][j.n - 1]);
		g.b = hzi_quat_array_matrix(&l->x.a, x_at, j.stride[1][j.n - 1],
					    l->x.a.stride[last]);
		if (parts) {
			g.beta = 1;
			g.c.data = parts;
			status = hzi_quat_plan_multiply_split(r, &g, splits, part, l->reversed);
			if (status == HZ_OK)
				status = hzi_quat_plan_sum_parts(r, parts, splits, &sum);
		} else {
			status = hzi_quat_plan_multiply(r, &g, l->reversed);
		}
	}
	if (status == HZ_OK && (items != 1 || parts))
		status = hzi_quat_plan_copy(r, &sum.a, &l->dw, l->accumulate);
	r->used = used;
	return status;
}

static int linear_forward(struct hzi_quat_plan *r, const void *a, const struct hzi_quat_tensor *y)
{
	(void)a;
	return apply_weights(r, &r->l->x, y, false, true, HZ_ACT_NONE, NULL);
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/*
 * Rotations of vectors are a real matrix product, r (3 n x 3 m) by x, computed by quat_gemm: r is
 * the real part of the left factor, whose other components are the zeros behind it, and a
 * quaternion of the right factor holds four columns. Columns are padded to a multiple of four.
 */
struct rotations {
	int64_t n, m, batch, padded, ld;	/* ld: 3 m, padded */
	int dtype;
	void *r;				/* [2][3 n][ld] */
};

static int64_t round4(int64_t n)
{
	return (n + 3) / 4 * 4;
}

static int rotations_begin(struct hzi_quat_plan *r, const struct hzi_quat_linear_args *a,
			   struct rotations *s)
{
	const struct hzi_quat_layer *l = r->l;
	struct hzi_quat_rotation_step q;

	*s = (struct rotations){
		.n = l->w.shape[0],
		.m = l->w.shape[1],
		.batch = hzi_quat_count(l->y.ndim - 1, l->y.shape),
		.dtype = hzi_quat_sum_dtype(l->y.a.dtype),
	};
	s->padded = round4(s->batch);
	s->ld = round4(3 * s->m);
	s->r = hzi_quat_plan_take(r, 6 * s->n * s->ld, s->dtype);
	HZ_CHECK(hzi_quat_plan_clear(r, s->r, 6 * s->n * s->ld, s->dtype));
	q = hzi_quat_plan_rotation(r, &a->rotation, s->n, s->m, s->ld, s->r);
	return r->dry || s->n == 0 || s->m == 0 ? HZ_OK :
	       r->steps->rotation(r->ctx, r->op, &q, false);
}

/* Vectors in rows of ld numbers, three each, as the quaternions 0, x, y, z of a map */
static struct hzi_quat_array vectors(void *data, int dtype, int ndim, const int64_t *shape,
				     int64_t ld)
{
	struct hzi_quat_array v = {.data = data, .dtype = dtype, .comp = {0, 0, 1, 2}};
	int64_t step = ld;

	v.stride[ndim - 1] = 3;
	for (int d = ndim - 2; d >= 0; d--) {
		v.stride[d] = step;
		step *= shape[d];
	}
	return v;
}

/* Copies the vector parts of t to rows of ld numbers, zero-padded to planes x padded rows. */
static int gather_vectors(struct hzi_quat_plan *r, const struct rotations *s,
			  const struct hzi_quat_tensor *t, int64_t ld, int planes, void **data)
{
	struct hzi_quat_tensor to = *t;
	struct hzi_quat_map_step m;

	*data = hzi_quat_plan_take(r, planes * s->padded * ld, s->dtype);
	HZ_CHECK(hzi_quat_plan_clear(r, *data, planes * s->padded * ld, s->dtype));
	to.a = vectors(*data, s->dtype, t->ndim, t->shape, ld);
	m = hzi_quat_map_args(HZI_QUAT_MAP_COPY, &to, &t->a, NULL, NULL, false);
	m.pure = 2;
	return hzi_quat_plan_map(r, &m);
}

/* c[j][i] = the sum over l of a[i][l] b[j][l], for all padded rows j; a_row, a_col: strides */
static int multiply_vectors(struct hzi_quat_plan *r, const struct rotations *s, int64_t rows,
			    int64_t terms, int64_t a_row, int64_t a_col, void *b, int64_t b_ld,
			    void *c, int64_t c_ld)
{
	const int64_t zeros = 3 * s->n * s->ld;
	struct hzi_quat_gemm_args g = {
		.m = rows, .k = terms, .n = s->padded / 4, .dtype = s->dtype, .c_dtype = s->dtype,
		.a = {.data = s->r, .row = a_row, .col = a_col, .comp = {0, zeros, zeros, zeros}},
		.b = {.data = b, .row = 1, .col = 4 * b_ld, .comp = {0, b_ld, 2 * b_ld, 3 * b_ld}},
		.c = {.data = c, .row = 1, .col = 4 * c_ld, .comp = {0, c_ld, 2 * c_ld, 3 * c_ld}},
	};

	return hzi_quat_plan_multiply(r, &g, false);
}

static int rotations_forward(struct hzi_quat_plan *r, const struct rotations *s,
			     const struct hzi_quat_tensor *y, int activation,
			     const struct hzi_quat_array *pre)
{
	const struct hzi_quat_layer *l = r->l;
	const size_t used = r->used;
	const int64_t y_ld = 3 * s->n;
	struct hzi_quat_array sums, bias = {.data = NULL};
	struct hzi_quat_map_step m;
	void *x, *sum;
	int status = gather_vectors(r, s, &l->x, s->ld, 1, &x);

	sum = hzi_quat_plan_take(r, s->padded * y_ld, s->dtype);
	if (status == HZ_OK)
		status = multiply_vectors(r, s, 3 * s->n, 3 * s->m, s->ld, 1, x, s->ld, sum, y_ld);
	sums = vectors(sum, s->dtype, y->ndim, y->shape, y_ld);
	if (l->b.a.data) {
		bias = l->b.a;
		memset(bias.stride, 0, sizeof(bias.stride));
		bias.stride[y->ndim - 1] = l->b.a.stride[0];
	}
	m = hzi_quat_map_args(HZI_QUAT_MAP_ACT, y, &sums, &bias, pre, false);
	m.pure = 1;
	m.activation = activation;
	m.slope = l->slope;
	if (status == HZ_OK)
		status = hzi_quat_plan_map(r, &m);
	r->used = used;
	return status;
}

struct rotation_call {
	const struct hzi_quat_linear_args *a;
	struct rotations s;
};

static int rotations_input(struct hzi_quat_plan *r, const void *call,
			   const struct hzi_quat_tensor *y)
{
	const struct rotation_call *c = call;

	return rotations_forward(r, &c->s, y, HZ_ACT_NONE, NULL);
}

static int rotations_backward(struct hzi_quat_plan *r, const struct rotation_call *call)
{
	const struct hzi_quat_linear_args *a = call->a;
	const struct rotations *s = &call->s;
	const struct hzi_quat_layer *l = r->l;
	const int64_t z_ld = 3 * s->n, zeros = s->padded * z_ld;
	struct hzi_quat_rotation_step q =
		hzi_quat_plan_rotation(r, &a->rotation, s->n, s->m, s->ld, s->r);
	struct hzi_quat_tensor z;
	void *dz, *x, *to;

	HZ_CHECK(hzi_quat_plan_act_gradient(r, &z, rotations_input, call));
	if (l->db.a.data)
		HZ_CHECK(hzi_quat_plan_bias_gradient(r, &z, &l->db));
	HZ_CHECK(gather_vectors(r, s, &z, z_ld, 2, &dz));
	if (l->dx.a.data) {
		const size_t used = r->used;
		struct hzi_quat_array sums;
		struct hzi_quat_map_step m;

		to = hzi_quat_plan_take(r, s->padded * s->ld, s->dtype);
		HZ_CHECK(multiply_vectors(r, s, 3 * s->m, 3 * s->n, 1, s->ld, dz, z_ld, to,
					  s->ld));
		sums = vectors(to, s->dtype, l->dx.ndim, l->dx.shape, s->ld);
		m = hzi_quat_map_args(HZI_QUAT_MAP_COPY, &l->dx, &sums, NULL, NULL, false);
		m.pure = 1;
		HZ_CHECK(hzi_quat_plan_map(r, &m));
		r->used = used;
	}
	if (l->dw.a.data || a->rotation.dscale) {
		struct hzi_quat_gemm_args g = {
			.m = 3 * s->n, .k = s->padded, .n = s->ld / 4, .dtype = s->dtype,
			.c_dtype = s->dtype,
			.a = {.data = dz, .row = 1, .col = z_ld, .comp = {0, zeros, zeros, zeros}},
			.b = {.row = s->ld, .col = 4, .comp = {0, 1, 2, 3}},
			.c = {.data = s->r, .row = s->ld, .col = 4, .comp = {0, 1, 2, 3}},
		};

		HZ_CHECK(gather_vectors(r, s, &l->x, s->ld, 1, &x));
		g.b.data = x;
		HZ_CHECK(hzi_quat_plan_multiply(r, &g, false));
		q.dq = l->dw.a;
		q.accumulate = l->accumulate;
		if (!r->dry && s->n > 0 && s->m > 0)
			HZ_CHECK(r->steps->rotation(r->ctx, r->op, &q, true));
	}
	return HZ_OK;
}

int hzi_quat_linear_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
		       const struct hzi_quat_linear_args *a, bool backward, size_t *bytes)
{
	const struct hzi_quat_layer *l = &a->l;
	struct hzi_quat_plan r =
		hzi_quat_plan_begin(ctx, steps, l, backward ? "quat_linear_bwd" : "quat_linear",
				    bytes != NULL);
	int status = HZ_OK;
	size_t unused;

	/* A dry run finds out whether a product is unsupported, before anything is written. */
	if (backward && !bytes && hzi_quat_plan_may_refuse(steps, l))
		HZ_CHECK(hzi_quat_linear_do(ctx, steps, a, true, &unused));
	if (a->rotation.rotate) {
		struct rotation_call call = {.a = a};

		status = rotations_begin(&r, a, &call.s);
		if (status == HZ_OK)
			status = backward ? rotations_backward(&r, &call) :
				 rotations_forward(&r, &call.s, &l->y, l->activation, &l->pre.a);
	} else if (!backward) {
		status = apply_weights(&r, &l->x, &l->y, false, true, l->activation, &l->pre.a);
	} else {
		struct hzi_quat_tensor z;

		status = hzi_quat_plan_act_gradient(&r, &z, linear_forward, NULL);
		if (status == HZ_OK && l->db.a.data)
			status = hzi_quat_plan_bias_gradient(&r, &z, &l->db);
		if (status == HZ_OK && l->dx.a.data)
			status = apply_weights(&r, &z, &l->dx, true, false, HZ_ACT_NONE, NULL);
		if (status == HZ_OK && l->dw.a.data)
			status = hzi_quat_plan_weight_gradient(&r, &z);
	}
	if (bytes)
		*bytes = r.peak;
	return status;
}

/* ---- Checks, calls through the operation table ----------------------------------------------- */

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

/* Operands of a call; in the backward pass y is dy and the others are outputs. */
struct call {
	const char *op;
	const hz_tensor *x, *w, *b, *y, *dx, *dw, *db;
	bool backward;
};

static int check_weights(struct hz_context *ctx, const struct call *q, const hz_packed *p,
			 struct hzi_quat_layer *l, uint32_t flags, int dtype)
{
	if (!p)
		return hzi_quat_check(ctx, q->op, "w", q->w, dtype, 3, 3, false, flags, &l->w);
	if (q->w)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: w and opts->packed are both given, must be one of them",
				q->op);
	HZ_CHECK(hzi_check_packed(ctx, q->op, "opts->packed", "hz_quat_gemm_pack", 3, p));
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
	l->packed = hzi_packed_data(ctx, p);
	l->w.ndim = 2;
	l->w.shape[0] = p->shape[0];
	l->w.shape[1] = p->shape[1];
	return HZ_OK;
}

/* Products with unpacked operands also use the method and precision of the packed weights. */
static void settle(struct hzi_quat_layer *l)
{
	if (!l->packed)
		return;
	l->method = hzi_quat_layout_method(l->layout);
	l->precision = hzi_quat_layout_precision(l->layout);
}

static int check_factors(struct hz_context *ctx, const struct call *q, const char *name,
			 const hz_tensor *t, bool output, const struct hzi_quat_layer *l,
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

/* Checks t.shape against `as` except for the last two dimensions, and the number of channels. */
static int check_rows(struct hz_context *ctx, const struct call *q, const char *name,
		      const hz_tensor *t, const char *as_name, const hz_tensor *as,
		      int64_t channels, const char *what)
{
	if (t->ndim != as->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d, as %s", q->op, name,
				t->ndim, as->ndim, as_name);
	for (int d = 0; d < t->ndim - 2; d++) {
		char text[32];

		if (t->shape[d] == as->shape[d])
			continue;
		snprintf(text, sizeof(text), ", as %s", as_name);
		return hzi_quat_check_size(ctx, q->op, name, d, t->shape[d], as->shape[d], text);
	}
	return hzi_quat_check_size(ctx, q->op, name, t->ndim - 2, t->shape[t->ndim - 2], channels,
				   what);
}

static int linear_args(struct hz_context *ctx, const struct call *q, const hz_quat_linear_opts *o,
		       struct hzi_quat_linear_args *a)
{
	const char *y_name = q->backward ? "dy" : "y";
	const bool rotate = o->flags & HZ_QUAT_ROTATION;
	struct hzi_quat_layer *l = &a->l;
	const hz_tensor blob = o->packed ? hz_tensor_1d(o->packed->data, HZ_U8, ctx->device,
							(int64_t)o->packed->bytes) :
					   (hz_tensor){.ndim = 0};
	const struct hzi_quat_layer_view list[] = {
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
	HZ_CHECK(hzi_quat_check_options(ctx, q->op, o->side, o->method, o->precision,
					o->activation, o->reserved, l));
	HZ_CHECK(hzi_quat_check_flags(ctx, q->op, "opts->flags", o->flags, HZ_QUAT_XYZW |
				      HZ_QUAT_ACCUMULATE | HZ_QUAT_ROTATION));
	HZ_CHECK(hzi_quat_check_slope(ctx, q->op, o->activation, o->slope));
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
	HZ_CHECK(hzi_quat_check_bias(ctx, q->op, "b", q->b, dtype, l->w.shape[0], ", as w", false,
				     o->flags, &l->b));
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
	HZ_CHECK(hzi_quat_check_bias(ctx, q->op, "db", q->db, dtype, l->w.shape[0], ", as w", true,
				     o->flags, &l->db));
	HZ_CHECK(hzi_quat_check_eps(ctx, q->op, rotate, o->eps, o->eps_rule, &a->rotation));
	if (o->reserved32)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->reserved32 is %d, must be 0", q->op,
				o->reserved32);
	if (o->scale) {
		HZ_CHECK(check_factors(ctx, q, "scale", o->scale, false, l, stride));
		a->rotation.scale = hzi_data(ctx, o->scale);
		a->rotation.scale_row = stride[0];
		a->rotation.scale_col = stride[1];
	}
	if (o->dscale) {
		HZ_CHECK(check_factors(ctx, q, "dscale", o->dscale, true, l, stride));
		a->rotation.dscale = hzi_data(ctx, o->dscale);
		a->rotation.dscale_row = stride[0];
		a->rotation.dscale_col = stride[1];
	}
	return hzi_quat_check_apart(ctx, q->op, list, LISTED(list), NULL, NULL);
}

static const hz_quat_linear_opts linear_defaults;

static int linear(struct hz_context *ctx, const struct call *q, const hz_quat_linear_opts *opts)
{
	struct hzi_quat_linear_bwd_args a;

	HZI_ENTER(ctx, q->op);
	HZ_CHECK(linear_args(ctx, q, opts ? opts : &linear_defaults, &a.f));
	if (!q->backward && hz_tensor_count(q->y) == 0)
		return HZ_OK;
	do {
		HZ_CHECK(hzi_workspace(ctx, q->op, q->backward ?
				       HZI_WORKSPACE(ctx, quat_layer, quat_linear_bwd, &a) :
				       HZI_WORKSPACE(ctx, quat_layer, quat_linear, &a.f)));
	} while (hzi_quat_misalign(ctx, &a.f.l));
	return q->backward ? HZI_CALL(ctx, quat_layer, quat_linear_bwd, &a) :
			     HZI_CALL(ctx, quat_layer, quat_linear, &a.f);
}

int hz_quat_linear(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		   hz_tensor *y, const hz_quat_linear_opts *opts)
{
	const struct call q = {.op = "quat_linear", .x = x, .w = w, .b = b, .y = y};

	return linear(ctx, &q, opts);
}

int hz_quat_linear_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w, const hz_tensor *b,
		       const hz_tensor *dy, hz_tensor *dx, hz_tensor *dw, hz_tensor *db,
		       const hz_quat_linear_opts *opts)
{
	const struct call q = {.op = "quat_linear_bwd", .x = x, .w = w, .b = b, .y = dy, .dx = dx,
			       .dw = dw, .db = db, .backward = true};

	return linear(ctx, &q, opts);
}
