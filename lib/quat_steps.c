/*
 * quat_steps.c - what linear layers and convolutions of quaternions are made of
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All work that grows with the third power is products of quaternion matrices, by the device's
 * quat_gemm. The gradient of a convolution with strides is as many convolutions without as there
 * are residues of a pixel's place, each with the taps that reach it, so that nothing is scattered.
 */
#include <config.h>

#include <string.h>

#include "quat_gemm.h"
#include "quat_layer.h"

/* ---- One call -------------------------------------------------------------------------------- */

struct run {
	struct hz_context *ctx;
	const struct hzi_quat_steps *steps;
	const struct hzi_qlayer *l;
	const char *op;
	char *base;			/* of the workspace */
	size_t used, peak;
	bool dry;			/* nothing is done but counting the workspace */
};

static size_t dtype_bytes(int dtype)
{
	return hz_dtype_size(dtype);
}

static int sum_dtype(int dtype)
{
	return dtype == HZ_F64 ? HZ_F64 : HZ_F32;
}

/*
 * Steps of a dry run, which counts the bytes of sizes for which there may be no memory: where steps
 * are a stride of whole elements apart, the ninth is where the first is, modulo 16 bytes.
 */
#define DRY_STEPS 8

/* Where the step after that at i begins, of steps of a size; in a dry run the last one by then. */
static int64_t next_step(const struct run *r, int64_t i, int64_t size, int64_t end)
{
	const int64_t last = (end - 1) / size * size;

	return r->dry && i / size >= DRY_STEPS && i < last ? last : i + size;
}

static struct run run_begin(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			    const struct hzi_qlayer *l, const char *op, bool dry)
{
	/* Some address stands for the workspace when there is none, so that views look the same. */
	return (struct run){.ctx = ctx, .steps = steps, .l = l, .op = op, .dry = dry,
			    .base = dry ? (char *)(uintptr_t)4096 : ctx->workspace};
}

/* Scratch memory, released by setting used back */
static void *take(struct run *r, int64_t elements, int dtype)
{
	void *p = r->base + r->used;

	r->used += ((size_t)elements * dtype_bytes(dtype) + 63) & ~(size_t)63;
	if (r->used > r->peak)
		r->peak = r->used;
	return p;
}

static int map(struct run *r, struct hzi_qmap_args *m)
{
	return r->dry || m->total == 0 ? HZ_OK : r->steps->map(r->ctx, r->op, m);
}

/* From how many rows, columns and terms on fewer products pay for the sums around them */
#define FAST_LEAST 32

static void settle(const struct run *r, struct hzi_quat_gemm_args *g, bool reversed)
{
	g->conj_a ^= reversed;
	g->conj_b ^= reversed;
	g->conj_c ^= reversed;
	g->precision = r->l->precision;
	g->method = r->l->method ? r->l->method : r->ctx->quat_method;
	if (!g->method)
		g->method = g->m >= FAST_LEAST && g->n >= FAST_LEAST && g->k >= FAST_LEAST ?
				    HZ_QUAT_FAST : HZ_QUAT_DIRECT;
	g->alpha[0] = 1;
	g->alpha_real = 1;
}

/* A product, or a step of a convolution that the device takes, with what is left of the workspace */
static int call_device(struct run *r, const struct hzi_quat_gemm_args *g,
		       const struct hzi_qconv_args *conv,
		       const struct hzi_qconv_weights_args *weights, size_t need)
{
	void *const workspace = r->ctx->workspace;
	const size_t bytes = r->ctx->workspace_bytes;
	int status;

	if (r->dry) {
		if (r->used + need > r->peak)
			r->peak = r->used + need;
		return HZ_OK;
	}
	r->ctx->workspace = r->base + r->used;
	r->ctx->workspace_bytes = bytes - r->used;
	status = conv ? r->steps->conv(r->ctx, r->op, conv) :
		 weights ? r->steps->weights(r->ctx, r->op, weights) :
			   r->ctx->ops->quat_gemm(r->ctx, g);
	r->ctx->workspace = workspace;
	r->ctx->workspace_bytes = bytes;
	return status;
}

static int multiply(struct run *r, struct hzi_quat_gemm_args *g, bool reversed)
{
	if (g->m == 0 || g->n == 0)
		return HZ_OK;
	settle(r, g, reversed);
	return call_device(r, g, NULL, NULL,
			   r->dry ? r->ctx->ops->quat_gemm_workspace(r->ctx, g) : 0);
}

#define SPLIT_TERMS 512		/* terms that a part of a product has at least */
#define SPLITS_MAX 64

/*
 * Parts into which a product of few rows and columns, but many terms, is cut along these: as many as
 * give the device enough to do at once. Sizes alone say how many.
 */
static int64_t splits_of(const struct run *r, int64_t m, int64_t n, int64_t k)
{
	const int64_t tiles = ((m + 63) / 64) * ((n + 63) / 64);
	int64_t splits = tiles > 0 ? r->steps->tiles / tiles : 0;

	if (splits > k / SPLIT_TERMS)
		splits = k / SPLIT_TERMS;
	return splits < 2 ? 1 : splits < SPLITS_MAX ? splits : SPLITS_MAX;
}

/* Adds a product's parts to as many results, which are part elements apart. */
static int multiply_split(struct run *r, const struct hzi_quat_gemm_args *g, int64_t splits,
			  int64_t part, bool reversed)
{
	const int64_t each = ((g->k + splits - 1) / splits + 63) / 64 * 64, whole = g->k / each;
	const int64_t size = (int64_t)dtype_bytes(g->dtype), d = g->ndim;
	struct hzi_quat_gemm_args all = *g, rest = *g;

	all.k = each;
	all.shape[d] = whole;
	all.a_stride[d] = each * g->a.col;
	all.b_stride[d] = each * g->b.row;
	all.c_stride[d] = part;
	all.ndim++;
	if (whole > 0)
		HZ_CHECK(multiply(r, &all, reversed));
	rest.k = g->k - whole * each;
	rest.a.data = (char *)g->a.data + whole * all.a_stride[d] * size;
	rest.b.data = (char *)g->b.data + whole * all.b_stride[d] * size;
	rest.c.data = (char *)g->c.data + whole * part * (int64_t)dtype_bytes(g->c_dtype);
	return rest.k > 0 ? multiply(r, &rest, reversed) : HZ_OK;
}

static struct hzi_quat_view matrix(const struct hzi_qarray *a, int64_t offset, int64_t row,
				   int64_t col)
{
	struct hzi_quat_view v = {
		.data = (char *)a->data + offset * (int64_t)dtype_bytes(a->dtype),
		.row = row, .col = col,
	};

	memcpy(v.comp, a->comp, sizeof(v.comp));
	return v;
}

static void set_bias(struct hzi_quat_gemm_args *g, const struct hzi_qarray *b, int64_t first)
{
	if (!b->data)
		return;
	g->bias = (const char *)b->data + first * b->stride[0] * (int64_t)dtype_bytes(b->dtype);
	g->bias_dtype = b->dtype;
	g->bias_row = b->stride[0];
	memcpy(g->bias_comp, b->comp, sizeof(b->comp));
}

static int clear(struct run *r, void *p, int64_t elements, int dtype)
{
	return r->dry ? HZ_OK :
	       r->steps->zero(r->ctx, r->op, p, (size_t)elements * dtype_bytes(dtype));
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* Quaternions back to back, of that shape */
static struct hzi_qtensor packed_array(void *data, int dtype, int ndim, const int64_t *shape)
{
	struct hzi_qtensor t = {.a = {.data = data, .dtype = dtype, .whole = 1,
				      .comp = {0, 1, 2, 3}}, .ndim = ndim};
	int64_t step = 4;

	for (int d = ndim - 1; d >= 0; d--) {
		t.shape[d] = shape[d];
		t.a.stride[d] = step;
		step *= shape[d];
	}
	return t;
}

static int64_t count_of(int ndim, const int64_t *shape)
{
	int64_t count = 1;

	for (int d = 0; d < ndim; d++)
		count *= shape[d];
	return count;
}

/* The first ndim dimensions, in which arrays step together, as few as they can be */
struct joint {
	int n;
	int64_t size[HZI_QDIM], stride[3][HZI_QDIM];
};

static struct joint join(int ndim, const int64_t *shape, const struct hzi_qarray *a,
			 const struct hzi_qarray *b, const struct hzi_qarray *c)
{
	const struct hzi_qarray *const arrays[3] = {a, b, c};
	struct joint j = {.n = 0};

	for (int d = 0; d < ndim; d++) {
		bool goes_on = j.n > 0;

		if (shape[d] == 1)
			continue;
		for (int k = 0; k < 3 && goes_on; k++)
			goes_on = !arrays[k] || hzi_continues(j.stride[k][j.n - 1],
							      arrays[k]->stride[d], shape[d]);
		if (!goes_on)
			j.size[j.n++] = 1;
		j.size[j.n - 1] *= shape[d];
		for (int k = 0; k < 3; k++)
			j.stride[k][j.n - 1] = arrays[k] ? arrays[k]->stride[d] : 0;
	}
	if (j.n == 0)
		j.size[j.n++] = 1;
	return j;
}

struct hzi_qmap_args hzi_quat_map_args(int kind, const struct hzi_qtensor *out,
				       const struct hzi_qarray *a, const struct hzi_qarray *b,
				       const struct hzi_qarray *pre, bool channels)
{
	struct hzi_qmap_args m = {.kind = kind, .out = out->a};
	struct hzi_qarray *const arrays[4] = {&m.out, &m.a, &m.b, &m.pre};

	if (a)
		m.a = *a;
	if (b)
		m.b = *b;
	if (pre)
		m.pre = *pre;
	m.total = count_of(out->ndim, out->shape);
	for (int d = 0; d < out->ndim; d++) {
		const bool last = channels && d == out->ndim - 1;
		bool goes_on = m.ndim > 0 && !last;
		int64_t stride[4];

		if (out->shape[d] == 1 && !last)
			continue;
		for (int k = 0; k < 4; k++) {
			/* d is at or behind ndim - 1: it is read before it is written */
			stride[k] = arrays[k]->stride[d];
			goes_on = goes_on && (!arrays[k]->data ||
					      hzi_continues(arrays[k]->stride[m.ndim - 1], stride[k],
							    out->shape[d]));
		}
		if (!goes_on)
			m.shape[m.ndim++] = 1;
		m.shape[m.ndim - 1] *= out->shape[d];
		for (int k = 0; k < 4; k++)
			arrays[k]->stride[m.ndim - 1] = stride[k];
	}
	if (m.ndim == 0)
		m.shape[m.ndim++] = 1;
	return m;
}

/* Rows in a chunk: enough for the chunk's overhead, and at most HZI_QSUM_CHUNKS chunks */
#define SUM_ROWS 64

void hzi_quat_sum_shape(struct hzi_qsum_args *s, const struct hzi_qtensor *a,
			const struct hzi_qtensor *b)
{
	const int last = a->ndim - 1;
	const struct joint j = join(last, a->shape, &a->a, b ? &b->a : NULL, NULL);
	int64_t chunk = SUM_ROWS;

	s->a = a->a;
	if (b)
		s->b = b->a;
	s->rows = count_of(last, a->shape);
	s->channels = a->shape[last];
	while ((s->rows + chunk - 1) / chunk > HZI_QSUM_CHUNKS)
		chunk *= 2;
	s->chunk = chunk;
	s->chunks = (s->rows + chunk - 1) / chunk;
	s->ndim = j.n;
	for (int d = 0; d < j.n; d++) {
		s->shape[d] = j.size[d];
		s->a.stride[d] = j.stride[0][d];
		s->b.stride[d] = j.stride[1][d];
	}
	s->a.stride[j.n] = a->a.stride[last];
	if (b)
		s->b.stride[j.n] = b->a.stride[last];
}

static int copy(struct run *r, const struct hzi_qarray *from, const struct hzi_qtensor *to,
		bool accumulate)
{
	struct hzi_qmap_args m = hzi_quat_map_args(HZI_QMAP_COPY, to, from, NULL, NULL, false);

	m.accumulate = accumulate;
	return map(r, &m);
}

/* ---- What backward passes have in common ----------------------------------------------------- */

/* The sum of z over all dimensions but the last, into db */
static int bias_gradient(struct run *r, const struct hzi_qtensor *z, const struct hzi_qtensor *db)
{
	struct hzi_qsum_args s = {.kind = HZI_QSUM_PLAIN};
	struct hzi_qfinish_args f = {.kind = HZI_QFINISH_BIAS, .out = db->a,
				     .accumulate = r->l->accumulate};
	const size_t used = r->used;
	int status = HZ_OK;

	hzi_quat_sum_shape(&s, z, NULL);
	if (s.channels == 0)
		return HZ_OK;
	s.part = take(r, s.chunks * s.channels * 4, HZ_F64);
	f.part = s.part;
	f.chunks = s.chunks;
	f.rows = s.rows;
	f.channels = s.channels;
	if (!r->dry && s.chunks > 0)
		status = r->steps->sum(r->ctx, r->op, &s);
	if (!r->dry && status == HZ_OK)
		status = r->steps->finish(r->ctx, r->op, &f);
	r->used = used;
	return status;
}

/* to = the sum of count arrays of its shape, one behind the other */
static int sum_parts(struct run *r, void *parts, int64_t count, const struct hzi_qtensor *to)
{
	const int64_t shape[2] = {count, count_of(to->ndim, to->shape)};
	const struct hzi_qtensor all = packed_array(parts, to->a.dtype, 2, shape);
	struct hzi_qsum_args s = {.kind = HZI_QSUM_PLAIN};
	struct hzi_qfinish_args f = {.kind = HZI_QFINISH_BIAS, .out = to->a};
	const size_t used = r->used;

	hzi_quat_sum_shape(&s, &all, NULL);
	f.out.stride[0] = 4;
	f.part = s.part = take(r, s.chunks * s.channels * 4, HZ_F64);
	f.chunks = s.chunks;
	f.rows = s.rows;
	f.channels = s.channels;
	r->used = used;
	if (r->dry || s.channels == 0)
		return HZ_OK;
	HZ_CHECK(r->steps->sum(r->ctx, r->op, &s));
	return r->steps->finish(r->ctx, r->op, &f);
}

/* *z = dy, or with an activation its gradient, in scratch memory; forward() makes its input. */
static int activation_gradient(struct run *r, struct hzi_qtensor *z,
			       int (*forward)(struct run *r, const void *a,
					      const struct hzi_qtensor *y), const void *a)
{
	const struct hzi_qlayer *l = r->l;
	const struct hzi_qarray *pre = &l->pre.a;
	struct hzi_qmap_args m;

	*z = l->y;
	if (l->activation == HZ_ACT_NONE)
		return HZ_OK;
	*z = packed_array(take(r, count_of(l->y.ndim, l->y.shape) * 4, l->y.a.dtype),
			  l->y.a.dtype, l->y.ndim, l->y.shape);
	if (!pre->data) {
		HZ_CHECK(forward(r, a, z));
		pre = &z->a;
	}
	m = hzi_quat_map_args(HZI_QMAP_ACT_BWD, z, pre, &l->y.a, NULL, false);
	m.activation = l->activation;
	m.slope = l->slope;
	return map(r, &m);
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* out = w in, or the adjoint w^H in, with bias and activation unless they are left out */
static int apply_weights(struct run *r, const struct hzi_qtensor *in, const struct hzi_qtensor *out,
			 bool adjoint, bool bias, int activation, const struct hzi_qarray *pre)
{
	const struct hzi_qlayer *l = r->l;
	const int last = out->ndim - 1;
	const struct joint j = join(last, out->shape, &in->a, &out->a,
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
		g.a = matrix(&l->w.a, 0, l->w.a.stride[adjoint], l->w.a.stride[!adjoint]);
	}
	g.b = matrix(&in->a, 0, in->a.stride[last], j.stride[0][j.n - 1]);
	g.c = matrix(&out->a, 0, out->a.stride[last], j.stride[1][j.n - 1]);
	if (pre && pre->data)
		g.pre = matrix(pre, 0, pre->stride[last], j.stride[2][j.n - 1]);
	if (bias)
		set_bias(&g, &l->b.a, 0);
	for (g.ndim = 0; g.ndim < j.n - 1; g.ndim++) {
		g.shape[g.ndim] = j.size[g.ndim];
		g.b_stride[g.ndim] = j.stride[0][g.ndim];
		g.c_stride[g.ndim] = j.stride[1][g.ndim];
		g.pre_stride[g.ndim] = j.stride[2][g.ndim];
	}
	return multiply(r, &g, l->reversed);
}

/* dw = z x^H: in one product if the batch has one step, else item by item into f32 */
static int weight_gradient(struct run *r, const struct hzi_qtensor *z)
{
	const struct hzi_qlayer *l = r->l;
	const int last = z->ndim - 1;
	const struct joint j = join(last, z->shape, &z->a, &l->x.a, NULL);
	const int64_t items = count_of(j.n - 1, j.size), k = j.size[j.n - 1];
	const int64_t part = count_of(2, l->dw.shape) * 4;
	const int64_t splits = items == 1 ? splits_of(r, l->dw.shape[0], l->dw.shape[1], k) : 1;
	const size_t used = r->used;
	struct hzi_qtensor sum = l->dw;
	struct joint walked = j;
	void *parts = NULL;
	int64_t steps = 1;		/* Without items there is one product of no terms. */
	int status = HZ_OK;

	for (int d = 0; d < j.n - 1 && r->dry; d++)
		walked.size[d] = j.size[d] < DRY_STEPS ? j.size[d] : DRY_STEPS;
	if (items)
		steps = count_of(j.n - 1, walked.size);
	if (splits > 1) {
		parts = take(r, splits * part, sum_dtype(z->a.dtype));
		status = clear(r, parts, splits * part, sum_dtype(z->a.dtype));
	}
	if (items != 1 || parts)
		sum = packed_array(take(r, count_of(2, l->dw.shape) * 4, sum_dtype(z->a.dtype)),
				   sum_dtype(z->a.dtype), 2, l->dw.shape);
	for (int64_t i = 0; i < steps && status == HZ_OK; i++) {
		int64_t rest = i, z_at = 0, x_at = 0;
		struct hzi_quat_gemm_args g = {
			.m = l->dw.shape[0], .n = l->dw.shape[1],
			.k = items ? k : 0, .dtype = z->a.dtype,
			.c_dtype = sum.a.dtype, .conj_b = 1,
			.beta = items == 1 ? l->accumulate : i > 0,
			.c = matrix(&sum.a, 0, sum.a.stride[0], sum.a.stride[1]),
		};

		for (int d = j.n - 2; d >= 0; d--) {
			z_at += rest % walked.size[d] * j.stride[0][d];
			x_at += rest % walked.size[d] * j.stride[1][d];
			rest /= walked.size[d];
		}
		g.a = matrix(&z->a, z_at, z->a.stride[last], j.stride[0][j.n - 1]);
		g.b = matrix(&l->x.a, x_at, j.stride[1][j.n - 1], l->x.a.stride[last]);
		if (parts) {
			g.beta = 1;
			g.c.data = parts;
			status = multiply_split(r, &g, splits, part, l->reversed);
			if (status == HZ_OK)
				status = sum_parts(r, parts, splits, &sum);
		} else {
			status = multiply(r, &g, l->reversed);
		}
	}
	if (status == HZ_OK && (items != 1 || parts))
		status = copy(r, &sum.a, &l->dw, l->accumulate);
	r->used = used;
	return status;
}

static int linear_forward(struct run *r, const void *a, const struct hzi_qtensor *y)
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

static struct hzi_qrotation_args rotation_args(const struct run *r,
					       const struct hzi_quat_linear_args *a,
					       const struct rotations *s)
{
	return (struct hzi_qrotation_args){
		.q = r->l->w.a, .n = s->n, .m = s->m, .ld = s->ld, .r = s->r, .r_dtype = s->dtype,
		.scale = a->scale, .scale_row = a->scale_row, .scale_col = a->scale_col,
		.scale_dtype = r->l->w.a.dtype, .inverse = r->l->reversed,
	};
}

static int rotations_begin(struct run *r, const struct hzi_quat_linear_args *a,
			   struct rotations *s)
{
	const struct hzi_qlayer *l = r->l;
	struct hzi_qrotation_args q;

	*s = (struct rotations){
		.n = l->w.shape[0], .m = l->w.shape[1],
		.batch = count_of(l->y.ndim - 1, l->y.shape), .dtype = sum_dtype(l->y.a.dtype),
	};
	s->padded = round4(s->batch);
	s->ld = round4(3 * s->m);
	s->r = take(r, 6 * s->n * s->ld, s->dtype);
	HZ_CHECK(clear(r, s->r, 6 * s->n * s->ld, s->dtype));
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
static int gather_vectors(struct run *r, const struct rotations *s, const struct hzi_qtensor *t,
			  int64_t ld, int planes, void **data)
{
	struct hzi_qtensor to = *t;
	struct hzi_qmap_args m;

	*data = take(r, planes * s->padded * ld, s->dtype);
	HZ_CHECK(clear(r, *data, planes * s->padded * ld, s->dtype));
	to.a = vectors(*data, s->dtype, t->ndim, t->shape, ld);
	m = hzi_quat_map_args(HZI_QMAP_COPY, &to, &t->a, NULL, NULL, false);
	m.pure = 2;
	return map(r, &m);
}

/* c[j][i] = sum over l of a[i][l] b[j][l], j being padded rows; a by its steps */
static int multiply_vectors(struct run *r, const struct rotations *s, int64_t rows, int64_t terms,
			    int64_t a_row, int64_t a_col, void *b, int64_t b_ld, void *c,
			    int64_t c_ld)
{
	const int64_t zeros = 3 * s->n * s->ld;
	struct hzi_quat_gemm_args g = {
		.m = rows, .k = terms, .n = s->padded / 4, .dtype = s->dtype, .c_dtype = s->dtype,
		.a = {.data = s->r, .row = a_row, .col = a_col, .comp = {0, zeros, zeros, zeros}},
		.b = {.data = b, .row = 1, .col = 4 * b_ld, .comp = {0, b_ld, 2 * b_ld, 3 * b_ld}},
		.c = {.data = c, .row = 1, .col = 4 * c_ld, .comp = {0, c_ld, 2 * c_ld, 3 * c_ld}},
	};

	return multiply(r, &g, false);
}

static int rotations_forward(struct run *r, const struct rotations *s, const struct hzi_qtensor *y,
			     int activation, const struct hzi_qarray *pre)
{
	const struct hzi_qlayer *l = r->l;
	const size_t used = r->used;
	const int64_t y_ld = 3 * s->n;
	struct hzi_qarray sums, bias = {.data = NULL};
	struct hzi_qmap_args m;
	void *x, *sum;
	int status = gather_vectors(r, s, &l->x, s->ld, 1, &x);

	sum = take(r, s->padded * y_ld, s->dtype);
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
		status = map(r, &m);
	r->used = used;
	return status;
}

struct rotation_call {
	const struct hzi_quat_linear_args *a;
	struct rotations s;
};

static int rotations_input(struct run *r, const void *call, const struct hzi_qtensor *y)
{
	const struct rotation_call *c = call;

	return rotations_forward(r, &c->s, y, HZ_ACT_NONE, NULL);
}

static int rotations_backward(struct run *r, const struct rotation_call *call)
{
	const struct hzi_quat_linear_args *a = call->a;
	const struct rotations *s = &call->s;
	const struct hzi_qlayer *l = r->l;
	const int64_t z_ld = 3 * s->n, zeros = s->padded * z_ld;
	struct hzi_qrotation_args q = rotation_args(r, a, s);
	struct hzi_qtensor z;
	void *dz, *x, *to;

	HZ_CHECK(activation_gradient(r, &z, rotations_input, call));
	if (l->db.a.data)
		HZ_CHECK(bias_gradient(r, &z, &l->db));
	HZ_CHECK(gather_vectors(r, s, &z, z_ld, 2, &dz));
	if (l->dx.a.data) {
		const size_t used = r->used;
		struct hzi_qarray sums;
		struct hzi_qmap_args m;

		to = take(r, s->padded * s->ld, s->dtype);
		HZ_CHECK(multiply_vectors(r, s, 3 * s->m, 3 * s->n, 1, s->ld, dz, z_ld, to,
					  s->ld));
		sums = vectors(to, s->dtype, l->dx.ndim, l->dx.shape, s->ld);
		m = hzi_quat_map_args(HZI_QMAP_COPY, &l->dx, &sums, NULL, NULL, false);
		m.pure = 1;
		HZ_CHECK(map(r, &m));
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
		HZ_CHECK(multiply(r, &g, false));
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
	struct run r = run_begin(ctx, steps, l, backward ? "quat_linear_bwd" : "quat_linear",
				 bytes != NULL);
	int status = HZ_OK;

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

		status = activation_gradient(&r, &z, linear_forward, NULL);
		if (status == HZ_OK && l->db.a.data)
			status = bias_gradient(&r, &z, &l->db);
		if (status == HZ_OK && l->dx.a.data)
			status = apply_weights(&r, &z, &l->dx, true, false, HZ_ACT_NONE, NULL);
		if (status == HZ_OK && l->dw.a.data)
			status = weight_gradient(&r, &z);
	}
	if (bytes)
		*bytes = r.peak;
	return status;
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* Weights as a matrix for each group: out channels by taps and in channels */
struct weights {
	struct hzi_qarray a;
	int64_t group, row, col;	/* strides */
	int64_t taps[3], out, in;	/* channels of a group */
	bool conj;
};

/* Which places of an array are seen from where: hzi_qpatch_args */
struct sight {
	int64_t step[3], each[3], base[3];
};

static int64_t product3(const int64_t *v)
{
	return v[0] * v[1] * v[2];
}

/* Patches of rows pixels from first on as a matrix; the array itself where it is one */
struct pixels {
	const struct hzi_qtensor *t;
	int64_t groups, channels;	/* of a group */
	int64_t count[3], taps[3];
	struct sight sight;
	bool direct;
	int64_t pixel;			/* direct: the stride of pixels */
	void *scratch;
};

static struct pixels pixels_of(const struct hzi_qtensor *t, int64_t groups, const int64_t *count,
			       const int64_t *taps, const struct sight *sight)
{
	struct pixels p = {.t = t, .groups = groups, .channels = t->shape[4] / groups,
			   .sight = *sight};
	const struct joint j = join(4, t->shape, &t->a, NULL, NULL);

	memcpy(p.count, count, sizeof(p.count));
	memcpy(p.taps, taps, sizeof(p.taps));
	p.direct = j.n == 1;
	p.pixel = j.stride[0][0];
	for (int d = 0; d < 3; d++)
		p.direct &= taps[d] == 1 && sight->base[d] == 0 && count[d] == t->shape[1 + d] &&
			    (count[d] == 1 || sight->step[d] == 1);
	return p;
}

static int64_t pixels_columns(const struct pixels *p)
{
	return product3(p->taps) * p->channels;
}

static void describe_patches(const struct pixels *p, struct hzi_qpatch_args *a)
{
	memcpy(a->size, p->t->shape + 1, sizeof(a->size));
	memcpy(a->count, p->count, sizeof(a->count));
	memcpy(a->taps, p->taps, sizeof(a->taps));
	memcpy(a->step, p->sight.step, sizeof(a->step));
	memcpy(a->each, p->sight.each, sizeof(a->each));
	memcpy(a->base, p->sight.base, sizeof(a->base));
}

/*
 * The matrix of pixels from first on: *view of group 0 has pixels as its columns if columns, else
 * as its rows; *group is the step from group to group.
 */
static int pixels_matrix(struct run *r, const struct pixels *p, int64_t first, int64_t rows,
			 bool columns, struct hzi_quat_view *view, int64_t *group)
{
	const int64_t k = pixels_columns(p);
	struct hzi_qpatch_args a = {
		.x = p->t->a, .out = p->scratch, .first = first, .rows = rows,
		.groups = p->groups, .channels = p->channels,
	};
	int64_t pixel = p->pixel, channel = p->t->a.stride[4];

	if (p->direct) {
		*group = p->channels * channel;
		*view = matrix(&p->t->a, first * pixel, columns ? channel : pixel,
			       columns ? pixel : channel);
		return HZ_OK;
	}
	pixel = 4 * p->groups * k;
	channel = 4;
	*group = 4 * k;
	*view = (struct hzi_quat_view){
		.data = p->scratch, .row = columns ? channel : pixel,
		.col = columns ? pixel : channel, .comp = {0, 1, 2, 3},
	};
	describe_patches(p, &a);
	return r->dry || k == 0 ? HZ_OK : r->steps->patch(r->ctx, r->op, &a);
}

/* Pixels that are done at a time, so that their patches fit into patch_bytes; at least 256 */
static int64_t chunk_rows(const struct run *r, const struct pixels *p, int64_t rows)
{
	const int64_t row = p->groups * pixels_columns(p) * 4 *
			    (int64_t)dtype_bytes(p->t->a.dtype);
	int64_t chunk = row ? (int64_t)r->steps->patch_bytes / row : rows;

	chunk = chunk < 256 ? 256 : chunk / 64 * 64;
	return p->direct || chunk > rows ? rows : chunk;
}

static void pixels_scratch(struct run *r, struct pixels *p, int64_t chunk)
{
	if (!p->direct)
		p->scratch = take(r, chunk * p->groups * pixels_columns(p) * 4, p->t->a.dtype);
}

static struct hzi_qarray moved(const struct hzi_qarray *a, int64_t channels)
{
	struct hzi_qarray b = *a;

	if (a->data)
		b.data = (char *)a->data + channels * a->stride[4] * (int64_t)dtype_bytes(a->dtype);
	return b;
}

/* The same as correlate() does, if the device does it in one step: then *done. */
static int correlate_at_once(struct run *r, const struct pixels *p, const struct hzi_qtensor *out,
			     const struct weights *w, bool bias, int activation,
			     const struct hzi_qarray *pre, bool *done)
{
	const struct hzi_qlayer *l = r->l;
	const struct hzi_qarray none = {.data = NULL};

	*done = false;
	if (!r->steps->conv_workspace || p->direct)
		return HZ_OK;
	for (int64_t i = 0; i < p->groups; i++) {
		struct hzi_qconv_args a = {
			.g = {.m = w->out, .n = count_of(4, out->shape), .k = pixels_columns(p),
			      .dtype = p->t->a.dtype, .c_dtype = out->a.dtype, .conj_a = w->conj,
			      .activation = activation, .slope = l->slope,
			      .a = matrix(&w->a, i * w->group, w->row, w->col)},
			.x = {.x = moved(&p->t->a, i * p->channels), .groups = 1,
			      .channels = p->channels},
			.y = moved(&out->a, i * w->out),
			.pre = pre ? moved(pre, i * w->out) : none, .images = out->shape[0],
		};
		size_t need;

		describe_patches(p, &a.x);
		if (bias)
			set_bias(&a.g, &l->b.a, i * w->out);
		settle(r, &a.g, l->reversed);
		need = r->steps->conv_workspace(r->ctx, &a);
		if (!need)
			return HZ_OK;
		*done = true;
		HZ_CHECK(call_device(r, NULL, &a, NULL, need));
	}
	return HZ_OK;
}

/* out = weights times the pixels of in that are seen from its own, with bias and activation */
static int correlate(struct run *r, const struct hzi_qtensor *in, const struct hzi_qtensor *out,
		     int64_t groups, const struct weights *w, const struct sight *sight, bool bias,
		     int activation, const struct hzi_qarray *pre)
{
	const struct hzi_qlayer *l = r->l;
	const size_t used = r->used;
	const int64_t rows = count_of(4, out->shape);
	const bool has_pre = pre && pre->data;
	const bool has_bias = bias && l->b.a.data;
	const struct joint j = join(4, out->shape, &out->a, has_pre ? pre : NULL, NULL);
	struct pixels p = pixels_of(in, groups, out->shape + 1, w->taps, sight);
	struct hzi_qtensor to = *out;
	int64_t pixel = j.stride[0][0], pre_pixel = j.stride[1][0], chunk;
	int status;
	bool done;

	if (rows == 0 || out->shape[4] == 0)
		return HZ_OK;
	status = correlate_at_once(r, &p, out, w, bias, activation, pre, &done);
	if (status != HZ_OK || done)
		return status;
	chunk = chunk_rows(r, &p, rows);
	pixels_scratch(r, &p, chunk);
	if (j.n > 1) {
		/* Pixels have no common step: the result is made elsewhere, and put in place. */
		to = packed_array(take(r, rows * out->shape[4] * 4, out->a.dtype), out->a.dtype, 5,
				  out->shape);
		pixel = to.a.stride[3];
	}
	for (int64_t first = 0; first < rows && status == HZ_OK;
	     first = next_step(r, first, chunk, rows)) {
		const int64_t n = rows - first < chunk ? rows - first : chunk;
		struct hzi_quat_gemm_args g = {
			.m = w->out, .k = pixels_columns(&p), .n = n, .dtype = in->a.dtype,
			.c_dtype = to.a.dtype, .conj_a = w->conj,
			.activation = j.n > 1 ? HZ_ACT_NONE : activation, .slope = l->slope,
		};
		int64_t b_group;

		g.a = matrix(&w->a, 0, w->row, w->col);
		g.c = matrix(&to.a, first * pixel, to.a.stride[4], pixel);
		if (has_pre && j.n == 1)
			g.pre = matrix(pre, first * pre_pixel, pre->stride[4], pre_pixel);
		status = pixels_matrix(r, &p, first, n, true, &g.b, &b_group);
		if (status == HZ_OK && (groups == 1 || !has_bias)) {
			g.ndim = groups > 1;
			g.shape[0] = groups;
			g.a_stride[0] = w->group;
			g.b_stride[0] = b_group;
			g.c_stride[0] = w->out * to.a.stride[4];
			g.pre_stride[0] = has_pre ? w->out * pre->stride[4] : 0;
			if (has_bias)
				set_bias(&g, &l->b.a, 0);
			status = multiply(r, &g, l->reversed);
			continue;
		}
		for (int64_t i = 0; i < groups && status == HZ_OK; i++) {
			const int64_t c = i * w->out;
			const int64_t size = (int64_t)dtype_bytes(in->a.dtype);
			struct hzi_quat_gemm_args one = g;

			one.a = matrix(&w->a, i * w->group, w->row, w->col);
			one.b.data = (char *)g.b.data + i * b_group * size;
			one.c = matrix(&to.a, first * pixel + c * to.a.stride[4], to.a.stride[4],
				       pixel);
			if (g.pre.data)
				one.pre = matrix(pre, first * pre_pixel + c * pre->stride[4],
						 pre->stride[4], pre_pixel);
			set_bias(&one, &l->b.a, c);
			status = multiply(r, &one, l->reversed);
		}
	}
	if (status == HZ_OK && j.n > 1) {
		struct hzi_qmap_args m = hzi_quat_map_args(HZI_QMAP_ACT, out, &to.a, NULL,
						  has_pre ? pre : NULL, false);

		m.activation = activation;
		m.slope = l->slope;
		status = map(r, &m);
	}
	r->used = used;
	return status;
}

/* What hzi_quat_conv_args say, of the convolution: big is its input, small its output. */
static int conv_forward(struct run *r, const struct hzi_quat_conv_args *a,
			const struct hzi_qtensor *big, const struct hzi_qtensor *small, bool conj,
			bool bias, int activation, const struct hzi_qarray *pre)
{
	const struct hzi_qtensor *w = &r->l->w;
	const struct joint j = join(4, w->shape + 1,
				    &(struct hzi_qarray){.stride = {w->a.stride[1], w->a.stride[2],
								    w->a.stride[3],
								    w->a.stride[4]}},
				    NULL, NULL);
	const size_t used = r->used;
	struct weights v = {.a = w->a, .row = w->a.stride[0], .col = j.stride[0][0],
			    .out = w->shape[0] / a->groups, .in = w->shape[4], .conj = conj};
	struct sight sight;
	int status = HZ_OK;

	for (int d = 0; d < 3; d++) {
		sight.step[d] = a->stride[d];
		sight.each[d] = a->dilation[d];
		sight.base[d] = -a->pad[d];
		v.taps[d] = w->shape[1 + d];
	}
	if (j.n > 1) {
		const struct hzi_qtensor to = packed_array(
			take(r, count_of(5, w->shape) * 4, w->a.dtype), w->a.dtype, 5, w->shape);

		status = copy(r, &w->a, &to, false);
		v.a = to.a;
		v.row = to.a.stride[0];
		v.col = 4;
	}
	v.group = v.out * v.row;
	if (status == HZ_OK)
		status = correlate(r, big, small, a->groups, &v, &sight, bias, activation, pre);
	r->used = used;
	return status;
}

static int64_t gcd(int64_t a, int64_t b)
{
	while (b) {
		const int64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/*
 * Along one dimension, what is seen by pixels residue + stride u of the big array: the taps first,
 * first + each, ... for which (residue + pad - tap dilation) divides by stride.
 */
struct class {
	int64_t count;			/* of u */
	int64_t first, each, taps;
	int64_t base, back;		/* in the small array: u + base - back * (number of tap) */
};

static struct class class_of(int64_t residue, int64_t size, int64_t stride, int64_t dilation,
			     int64_t pad, int64_t taps)
{
	struct class c = {.count = residue < size ? (size - residue + stride - 1) / stride : 0};

	c.each = stride / gcd(stride, dilation);
	c.back = c.each * dilation / stride;
	for (int64_t t = 0; t < c.each && t < taps; t++) {
		if ((residue + pad - t * dilation) % stride)
			continue;
		c.first = t;
		c.taps = (taps - 1 - t) / c.each + 1;
		c.base = (residue + pad - t * dilation) / stride;
		break;
	}
	return c;
}

/* The adjoint (conj), or the transpose: big from small */
static int conv_adjoint(struct run *r, const struct hzi_quat_conv_args *a,
			const struct hzi_qtensor *small, const struct hzi_qtensor *big, bool conj,
			bool bias, int activation, const struct hzi_qarray *pre)
{
	const struct hzi_qtensor *w = &r->l->w;
	const int64_t out = w->shape[4], in = w->shape[0] / a->groups;
	const int64_t size = (int64_t)dtype_bytes(w->a.dtype);
	const size_t used = r->used;
	int64_t residues[3], classes;
	int status = HZ_OK;

	/* Strides may be far larger than what they step through. */
	for (int d = 0; d < 3; d++)
		residues[d] = a->stride[d] < big->shape[1 + d] ? a->stride[d] : big->shape[1 + d];
	classes = product3(residues);
	for (int64_t i = 0; i < classes && status == HZ_OK; i++) {
		const int64_t residue[3] = {i / residues[2] / residues[1],
					    i / residues[2] % residues[1], i % residues[2]};
		struct hzi_qtensor part = *big, seen;
		struct hzi_qarray part_pre = {.data = NULL}, from = w->a;
		struct weights v = {.out = out, .in = in, .conj = conj};
		struct sight sight;
		int64_t offset = 0, pre_offset = 0;

		if (pre)
			part_pre = *pre;
		seen = packed_array(NULL, w->a.dtype, 6,
				    (int64_t[]){a->groups, out, 1, 1, 1, in});
		from.stride[0] = in * w->a.stride[0];
		from.stride[1] = w->a.stride[4];
		from.stride[5] = w->a.stride[0];
		for (int d = 0; d < 3; d++) {
			const struct class c = class_of(residue[d], big->shape[1 + d], a->stride[d],
							a->dilation[d], a->pad[d], w->shape[1 + d]);

			offset += residue[d] * big->a.stride[1 + d];
			pre_offset += residue[d] * part_pre.stride[1 + d];
			part.shape[1 + d] = c.count;
			part.a.stride[1 + d] *= c.count > 1 ? a->stride[d] : 1;
			part_pre.stride[1 + d] *= c.count > 1 ? a->stride[d] : 1;
			v.taps[d] = seen.shape[2 + d] = c.taps;
			from.data = (char *)from.data + c.first * w->a.stride[1 + d] * size;
			from.stride[2 + d] = c.each * w->a.stride[1 + d];
			sight.step[d] = 1;
			sight.each[d] = -c.back;
			sight.base[d] = c.base;
		}
		part.a.data = (char *)part.a.data + offset * (int64_t)dtype_bytes(big->a.dtype);
		if (part_pre.data)
			part_pre.data = (char *)part_pre.data +
					pre_offset * (int64_t)dtype_bytes(big->a.dtype);
		if (count_of(5, part.shape) == 0)
			continue;
		if (product3(v.taps) == 1) {
			v.a = from;
			v.group = from.stride[0];
			v.row = from.stride[1];
			v.col = from.stride[5];
		} else {
			seen = packed_array(take(r, count_of(6, seen.shape) * 4, w->a.dtype),
					    w->a.dtype, 6, seen.shape);
			status = copy(r, &from, &seen, false);
			v.a = seen.a;
			v.group = seen.a.stride[0];
			v.row = seen.a.stride[1];
			v.col = 4;
		}
		if (status == HZ_OK)
			status = correlate(r, small, &part, a->groups, &v, &sight, bias, activation,
					   &part_pre);
		r->used = used;
	}
	return status;
}

/* What conv_weights() puts into sum, if the device does it in a step for each group: then *done. */
static int weights_at_once(struct run *r, const struct pixels *s, const struct pixels *p,
			   const struct hzi_qtensor *sum, bool conj_small, bool reversed, bool *done)
{
	const int64_t images = s->t->shape[0], k = pixels_columns(p);

	*done = false;
	if (!r->steps->weights_workspace || p->direct)
		return HZ_OK;
	for (int64_t i = 0; i < p->groups; i++) {
		struct hzi_qconv_weights_args a = {
			.g = {.m = s->channels, .n = k, .k = images * product3(s->count),
			      .dtype = p->t->a.dtype, .c_dtype = sum->a.dtype,
			      .conj_a = conj_small, .conj_b = !conj_small},
			.x = {.x = moved(&p->t->a, i * p->channels), .groups = 1,
			      .channels = p->channels},
			.small = moved(&s->t->a, i * s->channels), .images = images,
			.sum = (char *)sum->a.data +
			       i * s->channels * k * 4 * (int64_t)dtype_bytes(sum->a.dtype),
		};
		size_t need;

		describe_patches(p, &a.x);
		settle(r, &a.g, reversed);
		need = r->steps->weights_workspace(r->ctx, &a);
		if (!need)
			return HZ_OK;
		*done = true;
		HZ_CHECK(call_device(r, NULL, NULL, &a, need));
	}
	return HZ_OK;
}

/*
 * dw: sums over the pixels of small of its channels times patches of big, one of them conjugated;
 * flip: the factors in the other order.
 */
static int conv_weights(struct run *r, const struct hzi_quat_conv_args *a,
			const struct hzi_qtensor *big, const struct hzi_qtensor *small,
			bool conj_small, bool flip)
{
	const struct hzi_qlayer *l = r->l;
	const struct hzi_qtensor *dw = &l->dw;
	const int dtype = sum_dtype(big->a.dtype);
	const int64_t rows = count_of(4, small->shape), ones[3] = {1, 1, 1};
	const struct sight here = {.step = {1, 1, 1}};
	struct sight sight;
	struct pixels p, s = pixels_of(small, a->groups, small->shape + 1, ones, &here);
	struct hzi_qtensor sum;
	int64_t chunk, k, splits, part;
	void *parts = NULL;
	bool done;

	if (count_of(5, dw->shape) == 0)
		return HZ_OK;
	for (int d = 0; d < 3; d++) {
		sight.step[d] = a->stride[d];
		sight.each[d] = a->dilation[d];
		sight.base[d] = -a->pad[d];
	}
	p = pixels_of(big, a->groups, small->shape + 1, dw->shape + 1, &sight);
	k = pixels_columns(&p);
	chunk = chunk_rows(r, &p, rows);
	part = count_of(5, dw->shape) * 4;
	sum = packed_array(take(r, part, dtype), dtype, 5, dw->shape);
	HZ_CHECK(weights_at_once(r, &s, &p, &sum, conj_small, flip != l->reversed, &done));
	if (done)
		return copy(r, &sum.a, dw, l->accumulate);
	splits = splits_of(r, s.channels, k * a->groups, chunk);
	if (splits > 1) {
		parts = take(r, splits * part, dtype);
		HZ_CHECK(clear(r, parts, splits * part, dtype));
	}
	pixels_scratch(r, &p, chunk);
	pixels_scratch(r, &s, chunk);
	/* Without pixels there is one product of no terms. */
	for (int64_t first = 0; first == 0 || first < rows;
	     first = next_step(r, first, chunk, rows)) {
		struct hzi_quat_gemm_args g = {
			.m = s.channels, .n = k, .k = rows - first < chunk ? rows - first : chunk,
			.dtype = big->a.dtype, .c_dtype = dtype, .conj_a = conj_small,
			.conj_b = !conj_small, .beta = first > 0, .ndim = a->groups > 1,
			.shape = {a->groups}, .c_stride = {s.channels * k * 4},
			.c = matrix(&sum.a, 0, 4 * k, 4),
		};

		HZ_CHECK(pixels_matrix(r, &s, first, g.k, true, &g.a, &g.a_stride[0]));
		HZ_CHECK(pixels_matrix(r, &p, first, g.k, false, &g.b, &g.b_stride[0]));
		if (parts) {
			g.beta = 1;
			g.c.data = parts;
			HZ_CHECK(multiply_split(r, &g, splits, part, flip != l->reversed));
		} else {
			HZ_CHECK(multiply(r, &g, flip != l->reversed));
		}
		if (rows == 0)
			break;
	}
	if (parts)
		HZ_CHECK(sum_parts(r, parts, splits, &sum));
	return copy(r, &sum.a, dw, l->accumulate);
}

static int conv_input(struct run *r, const void *args, const struct hzi_qtensor *y)
{
	const struct hzi_quat_conv_args *a = args;
	const struct hzi_qtensor *x = &r->l->x;

	return a->transposed ?
		conv_adjoint(r, a, x, y, a->conj, true, HZ_ACT_NONE, NULL) :
		conv_forward(r, a, x, y, false, true, HZ_ACT_NONE, NULL);
}

static int conv_backward(struct run *r, const struct hzi_quat_conv_args *a)
{
	const struct hzi_qlayer *l = r->l;
	struct hzi_qtensor z;

	HZ_CHECK(activation_gradient(r, &z, conv_input, a));
	if (l->db.a.data)
		HZ_CHECK(bias_gradient(r, &z, &l->db));
	if (l->dx.a.data && a->transposed)
		HZ_CHECK(conv_forward(r, a, &z, &l->dx, !a->conj, false, HZ_ACT_NONE, NULL));
	if (l->dx.a.data && !a->transposed)
		HZ_CHECK(conv_adjoint(r, a, &z, &l->dx, true, false, HZ_ACT_NONE, NULL));
	if (!l->dw.a.data)
		return HZ_OK;
	/* Of y = conj(w) x the gradient is x conj(dy), of y = w x it is dy conj(x). */
	if (a->transposed)
		return conv_weights(r, a, &z, &l->x, !a->conj, !a->conj);
	return conv_weights(r, a, &l->x, &z, false, false);
}

int hzi_quat_conv_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
		     const struct hzi_quat_conv_args *a, bool backward, size_t *bytes)
{
	const struct hzi_qlayer *l = &a->l;
	struct run r = run_begin(ctx, steps, l, backward ? "quat_conv_bwd" : "quat_conv",
				 bytes != NULL);
	int status;

	if (backward)
		status = conv_backward(&r, a);
	else if (a->transposed)
		status = conv_adjoint(&r, a, &l->x, &l->y, a->conj, true, l->activation, &l->pre.a);
	else
		status = conv_forward(&r, a, &l->x, &l->y, false, true, l->activation, &l->pre.a);
	if (bytes)
		*bytes = r.peak;
	return status;
}
