/*
 * linear.c - linear layers of quaternions, and those that rotate vectors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "lib/quat_layer/plan.h"

/* out = w in, or the adjoint w^H in, with bias and activation unless they are left out */
static int apply_weights(struct hzi_qrun *r, const struct hzi_qtensor *in,
			 const struct hzi_qtensor *out, bool adjoint, bool bias, int activation,
			 const struct hzi_qarray *pre)
{
	const struct hzi_qlayer *l = r->l;
	const int last = out->ndim - 1;
	const struct hzi_qjoint j = hzi_qjoin(last, out->shape, &in->a, &out->a,
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
		g.a = hzi_qarray_matrix(&l->w.a, 0, l->w.a.stride[adjoint],
					l->w.a.stride[!adjoint]);
	}
	g.b = hzi_qarray_matrix(&in->a, 0, in->a.stride[last], j.stride[0][j.n - 1]);
	g.c = hzi_qarray_matrix(&out->a, 0, out->a.stride[last], j.stride[1][j.n - 1]);
	if (pre && pre->data)
		g.pre = hzi_qarray_matrix(pre, 0, pre->stride[last], j.stride[2][j.n - 1]);
	if (bias)
		hzi_quat_gemm_bias(&g, &l->b.a, 0);
	assert(j.n <= HZ_MAXDIM);	/* the last dimension of a tensor is the components */
	for (g.ndim = 0; g.ndim < j.n - 1; g.ndim++) {
		g.shape[g.ndim] = j.size[g.ndim];
		g.b_stride[g.ndim] = j.stride[0][g.ndim];
		g.c_stride[g.ndim] = j.stride[1][g.ndim];
		g.pre_stride[g.ndim] = j.stride[2][g.ndim];
	}
	return hzi_qrun_multiply(r, &g, l->reversed);
}

/* dw = z x^H: in one product if the batch has one step, else item by item into f32 */
static int weight_gradient(struct hzi_qrun *r, const struct hzi_qtensor *z)
{
	const struct hzi_qlayer *l = r->l;
	const int last = z->ndim - 1;
	const struct hzi_qjoint j = hzi_qjoin(last, z->shape, &z->a, &l->x.a, NULL);
	const int64_t items = hzi_qcount(j.n - 1, j.size), k = j.size[j.n - 1];
	const int64_t part = hzi_qcount(2, l->dw.shape) * 4;
	const int64_t splits =
		items == 1 ? hzi_qrun_splits(r, l->dw.shape[0], l->dw.shape[1], k) : 1;
	const size_t used = r->used;
	struct hzi_qtensor sum = l->dw;
	struct hzi_qjoint walked = j;
	void *parts = NULL;
	int64_t steps = 1;		/* Without items there is one product of no terms. */
	int status = HZ_OK;

	for (int d = 0; d < j.n - 1 && r->dry; d++)
		walked.size[d] = j.size[d] < HZI_QRUN_DRY ? j.size[d] : HZI_QRUN_DRY;
	if (items)
		steps = hzi_qcount(j.n - 1, walked.size);
	if (splits > 1) {
		parts = hzi_qrun_take(r, splits * part, hzi_qsum_dtype(z->a.dtype));
		status = hzi_qrun_clear(r, parts, splits * part, hzi_qsum_dtype(z->a.dtype));
	}
	if (items != 1 || parts)
		sum = hzi_qtensor_packed(hzi_qrun_take(r, hzi_qcount(2, l->dw.shape) * 4,
						       hzi_qsum_dtype(z->a.dtype)),
					 hzi_qsum_dtype(z->a.dtype), 2, l->dw.shape);
	for (int64_t i = 0; i < steps && status == HZ_OK; i++) {
		int64_t rest = i, z_at = 0, x_at = 0;
		struct hzi_quat_gemm_args g = {
			.m = l->dw.shape[0], .n = l->dw.shape[1],
			.k = items ? k : 0, .dtype = z->a.dtype,
			.c_dtype = sum.a.dtype, .conj_b = 1,
			.beta = items == 1 ? l->accumulate : i > 0,
			.c = hzi_qarray_matrix(&sum.a, 0, sum.a.stride[0], sum.a.stride[1]),
		};

		for (int d = j.n - 2; d >= 0; d--) {
			z_at += rest % walked.size[d] * j.stride[0][d];
			x_at += rest % walked.size[d] * j.stride[1][d];
			rest /= walked.size[d];
		}
		g.a = hzi_qarray_matrix(&z->a, z_at, z->a.stride[last], j.stride[0][j.n - 1]);
		g.b = hzi_qarray_matrix(&l->x.a, x_at, j.stride[1][j.n - 1], l->x.a.stride[last]);
		if (parts) {
			g.beta = 1;
			g.c.data = parts;
			status = hzi_qrun_multiply_split(r, &g, splits, part, l->reversed);
			if (status == HZ_OK)
				status = hzi_qrun_sum_parts(r, parts, splits, &sum);
		} else {
			status = hzi_qrun_multiply(r, &g, l->reversed);
		}
	}
	if (status == HZ_OK && (items != 1 || parts))
		status = hzi_qrun_copy(r, &sum.a, &l->dw, l->accumulate);
	r->used = used;
	return status;
}

static int linear_forward(struct hzi_qrun *r, const void *a, const struct hzi_qtensor *y)
{
	(void)a;
	return apply_weights(r, &r->l->x, y, false, true, HZ_ACT_NONE, NULL);
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/*
 * A product of real matrices is one of quaternions: the left ones are real, and those on the right
 * hold four columns each, columns being padded to a multiple of four. Behind each left matrix lie
 * as many zeros, which are its other components.
 */
struct rotations {
	int64_t n, m, batch, padded, ld;	/* ld: of 3 m, padded */
	int dtype;
	void *r;				/* [2][3 n][ld] */
};

static int64_t round4(int64_t n)
{
	return (n + 3) / 4 * 4;
}

static struct hzi_qrotation_args rotation_args(const struct hzi_qrun *r,
					       const struct hzi_quat_linear_args *a,
					       const struct rotations *s)
{
	return (struct hzi_qrotation_args){
		.q = r->l->w.a, .n = s->n, .m = s->m, .ld = s->ld, .r = s->r, .r_dtype = s->dtype,
		.scale = a->scale, .scale_row = a->scale_row, .scale_col = a->scale_col,
		.scale_dtype = r->l->w.a.dtype, .inverse = r->l->reversed,
	};
}

static int rotations_begin(struct hzi_qrun *r, const struct hzi_quat_linear_args *a,
			   struct rotations *s)
{
	const struct hzi_qlayer *l = r->l;
	struct hzi_qrotation_args q;

	*s = (struct rotations){
		.n = l->w.shape[0],
		.m = l->w.shape[1],
		.batch = hzi_qcount(l->y.ndim - 1, l->y.shape),
		.dtype = hzi_qsum_dtype(l->y.a.dtype),
	};
	s->padded = round4(s->batch);
	s->ld = round4(3 * s->m);
	s->r = hzi_qrun_take(r, 6 * s->n * s->ld, s->dtype);
	HZ_CHECK(hzi_qrun_clear(r, s->r, 6 * s->n * s->ld, s->dtype));
	q = rotation_args(r, a, s);
	return r->dry || s->n == 0 || s->m == 0 ? HZ_OK :
	       r->steps->rotation(r->ctx, r->op, &q, false);
}

/* The vectors of an array as a map has them: rows of ld, three numbers for each */
static struct hzi_qarray vectors(void *data, int dtype, int ndim, const int64_t *shape, int64_t ld)
{
	struct hzi_qarray v = {.data = data, .dtype = dtype, .comp = {0, 0, 1, 2}};
	int64_t step = ld;

	v.stride[ndim - 1] = 3;
	for (int d = ndim - 2; d >= 0; d--) {
		v.stride[d] = step;
		step *= shape[d];
	}
	return v;
}

/* The vector parts of t as real rows of ld, in planes x padded rows of zeros but for them */
static int gather_vectors(struct hzi_qrun *r, const struct rotations *s,
			  const struct hzi_qtensor *t, int64_t ld, int planes, void **data)
{
	struct hzi_qtensor to = *t;
	struct hzi_qmap_args m;

	*data = hzi_qrun_take(r, planes * s->padded * ld, s->dtype);
	HZ_CHECK(hzi_qrun_clear(r, *data, planes * s->padded * ld, s->dtype));
	to.a = vectors(*data, s->dtype, t->ndim, t->shape, ld);
	m = hzi_quat_map_args(HZI_QMAP_COPY, &to, &t->a, NULL, NULL, false);
	m.pure = 2;
	return hzi_qrun_map(r, &m);
}

/* c[j][i] = sum over l of a[i][l] b[j][l], j being padded rows; a by its steps */
static int multiply_vectors(struct hzi_qrun *r, const struct rotations *s, int64_t rows,
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

	return hzi_qrun_multiply(r, &g, false);
}

static int rotations_forward(struct hzi_qrun *r, const struct rotations *s,
			     const struct hzi_qtensor *y, int activation,
			     const struct hzi_qarray *pre)
{
	const struct hzi_qlayer *l = r->l;
	const size_t used = r->used;
	const int64_t y_ld = 3 * s->n;
	struct hzi_qarray sums, bias = {.data = NULL};
	struct hzi_qmap_args m;
	void *x, *sum;
	int status = gather_vectors(r, s, &l->x, s->ld, 1, &x);

	sum = hzi_qrun_take(r, s->padded * y_ld, s->dtype);
	if (status == HZ_OK)
		status = multiply_vectors(r, s, 3 * s->n, 3 * s->m, s->ld, 1, x, s->ld, sum, y_ld);
	sums = vectors(sum, s->dtype, y->ndim, y->shape, y_ld);
	if (l->b.a.data) {
		bias = l->b.a;
		memset(bias.stride, 0, sizeof(bias.stride));
		bias.stride[y->ndim - 1] = l->b.a.stride[0];
	}
	m = hzi_quat_map_args(HZI_QMAP_ACT, y, &sums, &bias, pre, false);
	m.pure = 1;
	m.activation = activation;
	m.slope = l->slope;
	if (status == HZ_OK)
		status = hzi_qrun_map(r, &m);
	r->used = used;
	return status;
}

struct rotation_call {
	const struct hzi_quat_linear_args *a;
	struct rotations s;
};

static int rotations_input(struct hzi_qrun *r, const void *call, const struct hzi_qtensor *y)
{
	const struct rotation_call *c = call;

	return rotations_forward(r, &c->s, y, HZ_ACT_NONE, NULL);
}

static int rotations_backward(struct hzi_qrun *r, const struct rotation_call *call)
{
	const struct hzi_quat_linear_args *a = call->a;
	const struct rotations *s = &call->s;
	const struct hzi_qlayer *l = r->l;
	const int64_t z_ld = 3 * s->n, zeros = s->padded * z_ld;
	struct hzi_qrotation_args q = rotation_args(r, a, s);
	struct hzi_qtensor z;
	void *dz, *x, *to;

	HZ_CHECK(hzi_qrun_act_gradient(r, &z, rotations_input, call));
	if (l->db.a.data)
		HZ_CHECK(hzi_qrun_bias_gradient(r, &z, &l->db));
	HZ_CHECK(gather_vectors(r, s, &z, z_ld, 2, &dz));
	if (l->dx.a.data) {
		const size_t used = r->used;
		struct hzi_qarray sums;
		struct hzi_qmap_args m;

		to = hzi_qrun_take(r, s->padded * s->ld, s->dtype);
		HZ_CHECK(multiply_vectors(r, s, 3 * s->m, 3 * s->n, 1, s->ld, dz, z_ld, to,
					  s->ld));
		sums = vectors(to, s->dtype, l->dx.ndim, l->dx.shape, s->ld);
		m = hzi_quat_map_args(HZI_QMAP_COPY, &l->dx, &sums, NULL, NULL, false);
		m.pure = 1;
		HZ_CHECK(hzi_qrun_map(r, &m));
		r->used = used;
	}
	if (l->dw.a.data || a->dscale) {
		struct hzi_quat_gemm_args g = {
			.m = 3 * s->n, .k = s->padded, .n = s->ld / 4, .dtype = s->dtype,
			.c_dtype = s->dtype,
			.a = {.data = dz, .row = 1, .col = z_ld, .comp = {0, zeros, zeros, zeros}},
			.b = {.row = s->ld, .col = 4, .comp = {0, 1, 2, 3}},
			.c = {.data = s->r, .row = s->ld, .col = 4, .comp = {0, 1, 2, 3}},
		};

		HZ_CHECK(gather_vectors(r, s, &l->x, s->ld, 1, &x));
		g.b.data = x;
		HZ_CHECK(hzi_qrun_multiply(r, &g, false));
		q.dq = l->dw.a;
		q.dscale = a->dscale;
		q.dscale_row = a->dscale_row;
		q.dscale_col = a->dscale_col;
		q.accumulate = l->accumulate;
		if (!r->dry && s->n > 0 && s->m > 0)
			HZ_CHECK(r->steps->rotation(r->ctx, r->op, &q, true));
	}
	return HZ_OK;
}

int hzi_quat_linear_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
		       const struct hzi_quat_linear_args *a, bool backward, size_t *bytes)
{
	const struct hzi_qlayer *l = &a->l;
	struct hzi_qrun r =
		hzi_qrun_begin(ctx, steps, l, backward ? "quat_linear_bwd" : "quat_linear",
			       bytes != NULL);
	int status = HZ_OK;
	size_t unused;

	/* Of several outputs none is written if the product for one is refused, as a dry run says. */
	if (backward && !bytes && hzi_qrun_may_refuse(steps, l))
		HZ_CHECK(hzi_quat_linear_do(ctx, steps, a, true, &unused));
	if (a->rotate) {
		struct rotation_call call = {.a = a};

		status = rotations_begin(&r, a, &call.s);
		if (status == HZ_OK)
			status = backward ? rotations_backward(&r, &call) :
				 rotations_forward(&r, &call.s, &l->y, l->activation, &l->pre.a);
	} else if (!backward) {
		status = apply_weights(&r, &l->x, &l->y, false, true, l->activation, &l->pre.a);
	} else {
		struct hzi_qtensor z;

		status = hzi_qrun_act_gradient(&r, &z, linear_forward, NULL);
		if (status == HZ_OK && l->db.a.data)
			status = hzi_qrun_bias_gradient(&r, &z, &l->db);
		if (status == HZ_OK && l->dx.a.data)
			status = apply_weights(&r, &z, &l->dx, true, false, HZ_ACT_NONE, NULL);
		if (status == HZ_OK && l->dw.a.data)
			status = weight_gradient(&r, &z);
	}
	if (bytes)
		*bytes = r.peak;
	return status;
}
