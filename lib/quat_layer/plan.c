/*
 * plan.c - plans of linear layers and convolutions: scratch memory, products, sums, array geometry
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "lib/quat_layer/plan.h"

/* ---- One call -------------------------------------------------------------------------------- */

int64_t hzi_quat_plan_next(const struct hzi_quat_plan *r, int64_t i, int64_t size, int64_t end)
{
	const int64_t last = (end - 1) / size * size;

	return r->dry && i / size >= HZI_QUAT_DRY_STEPS && i < last ? last : i + size;
}

struct hzi_quat_plan hzi_quat_plan_begin(struct hz_context *ctx, const struct hzi_quat_steps *steps,
					 const struct hzi_quat_layer *l, const char *op, bool dry)
{
	/* A dry run has no workspace; a placeholder address makes views look the same. */
	return (struct hzi_quat_plan){
		.ctx = ctx, .steps = steps, .l = l, .op = op, .dry = dry,
		.base = dry ? (char *)(uintptr_t)4096 : ctx->workspace,
	};
}

bool hzi_quat_plan_may_refuse(const struct hzi_quat_steps *steps, const struct hzi_quat_layer *l)
{
	const struct hzi_quat_tensor *const arrays[] = {&l->x, &l->w, &l->y};
	bool large = false;

	/* A product is at most as large as an array, for rotations three times that and padding. */
	for (int i = 0; i < 3; i++)
		large |= hzi_quat_count(arrays[i]->ndim, arrays[i]->shape) > steps->most / 4;
	return steps->most && large;
}

void *hzi_quat_plan_take(struct hzi_quat_plan *r, int64_t elements, int dtype)
{
	void *p = r->base + r->used;

	r->used += ((size_t)elements * hz_dtype_size(dtype) + 63) & ~(size_t)63;
	if (r->used > r->peak)
		r->peak = r->used;
	return p;
}

int hzi_quat_plan_map(struct hzi_quat_plan *r, struct hzi_quat_map_step *m)
{
	return r->dry || m->total == 0 ? HZ_OK : r->steps->map(r->ctx, r->op, m);
}

/* Rows, columns and terms from which 8 real products with more additions beat 16 */
#define FAST_LEAST 32

void hzi_quat_plan_options(const struct hzi_quat_plan *r, struct hzi_quat_gemm_args *g,
			   bool reversed)
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

int hzi_quat_plan_call(struct hzi_quat_plan *r, const struct hzi_route *route, const void *args)
{
	void *const workspace = r->ctx->workspace;
	const size_t bytes = r->ctx->workspace_bytes;
	int status;

	if (r->dry) {
		const size_t need = route->workspace ? route->workspace(r->ctx, args) : 0;

		if (r->used + need > r->peak)
			r->peak = r->used + need;
		return HZ_OK;
	}
	/* The dry run counted enough. */
	assert(!route->workspace || r->used + route->workspace(r->ctx, args) <= bytes);
	r->ctx->workspace = r->base + r->used;
	r->ctx->workspace_bytes = bytes - r->used;
	status = route->run(r->ctx, args);
	if (route->name)
		r->ctx->route = route->name;	/* not that of a call inside */
	r->ctx->workspace = workspace;
	r->ctx->workspace_bytes = bytes;
	return status;
}

static size_t product_workspace(const struct hz_context *ctx, const void *args)
{
	return HZI_OPS(ctx, quat_gemm)->quat_gemm_workspace(ctx, args);
}

static int product_run(struct hz_context *ctx, const void *args)
{
	return HZI_OPS(ctx, quat_gemm)->quat_gemm(ctx, args);
}

int hzi_quat_plan_multiply(struct hzi_quat_plan *r, struct hzi_quat_gemm_args *g, bool reversed)
{
	static const struct hzi_route product = {
		.workspace = product_workspace, .run = product_run,
	};
	const int64_t most = r->steps->most;

	if (g->m == 0 || g->n == 0)
		return HZ_OK;
	hzi_quat_plan_options(r, g, reversed);
	if (r->dry && most && (g->m > most || g->n > most || g->k > most))
		return hzi_fail(r->ctx, HZ_ENOTSUP, "%s: a product has m, n, k %lld, %lld, %lld, "
				"must be below 2^31 on a GPU", r->op, (long long)g->m,
				(long long)g->n, (long long)g->k);
	return hzi_quat_plan_call(r, &product, g);
}

#define SPLIT_TERMS 512		/* fewest terms of a part of a product */
#define SPLITS_MAX 64

int64_t hzi_quat_plan_splits(const struct hzi_quat_plan *r, int64_t m, int64_t n, int64_t k)
{
	const int64_t tiles = ((m + 63) / 64) * ((n + 63) / 64);
	int64_t splits = tiles > 0 ? r->steps->tiles / tiles : 0;

	if (splits > k / SPLIT_TERMS)
		splits = k / SPLIT_TERMS;
	return splits < 2 ? 1 : splits < SPLITS_MAX ? splits : SPLITS_MAX;
}

int hzi_quat_plan_multiply_split(struct hzi_quat_plan *r, const struct hzi_quat_gemm_args *g,
				 int64_t splits, int64_t part, bool reversed)
{
	const int64_t each = ((g->k + splits - 1) / splits + 63) / 64 * 64, whole = g->k / each;
	const int64_t size = (int64_t)hz_dtype_size(g->dtype), d = g->ndim;
	struct hzi_quat_gemm_args all = *g, last = *g;

	all.k = each;
	all.shape[d] = whole;
	all.a_stride[d] = each * g->a.col;
	all.b_stride[d] = each * g->b.row;
	all.c_stride[d] = part;
	all.ndim++;
	if (whole > 0)
		HZ_CHECK(hzi_quat_plan_multiply(r, &all, reversed));
	last.k = g->k - whole * each;
	last.a.data = (char *)g->a.data + whole * all.a_stride[d] * size;
	last.b.data = (char *)g->b.data + whole * all.b_stride[d] * size;
	last.c.data = (char *)g->c.data + whole * part * (int64_t)hz_dtype_size(g->c_dtype);
	return last.k > 0 ? hzi_quat_plan_multiply(r, &last, reversed) : HZ_OK;
}

void hzi_quat_gemm_bias(struct hzi_quat_gemm_args *g, const struct hzi_quat_array *b, int64_t first)
{
	if (!b->data)
		return;
	g->bias = (const char *)b->data + first * b->stride[0] * (int64_t)hz_dtype_size(b->dtype);
	g->bias_dtype = b->dtype;
	g->bias_row = b->stride[0];
	memcpy(g->bias_comp, b->comp, sizeof(b->comp));
}

int hzi_quat_plan_clear(struct hzi_quat_plan *r, void *p, int64_t elements, int dtype)
{
	return r->dry ? HZ_OK :
	       r->steps->zero(r->ctx, r->op, p, (size_t)elements * hz_dtype_size(dtype));
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

struct hzi_quat_tensor hzi_quat_contiguous(void *data, int dtype, int ndim, const int64_t *shape)
{
	struct hzi_quat_tensor t = {.a = {.data = data, .dtype = dtype, .whole = 1,
					  .comp = {0, 1, 2, 3}}, .ndim = ndim};
	int64_t step = 4;

	for (int d = ndim - 1; d >= 0; d--) {
		t.shape[d] = shape[d];
		t.a.stride[d] = step;
		step *= shape[d];
	}
	return t;
}

struct hzi_quat_tensor hzi_quat_plan_tensor(struct hzi_quat_plan *r, int dtype, int ndim,
					    const int64_t *shape)
{
	return hzi_quat_contiguous(hzi_quat_plan_take(r, 4 * hzi_quat_count(ndim, shape), dtype),
				   dtype, ndim, shape);
}

int64_t hzi_quat_count(int ndim, const int64_t *shape)
{
	int64_t count = 1;

	for (int d = 0; d < ndim; d++)
		count *= shape[d];
	return count;
}

struct hzi_quat_merged hzi_quat_merge(int ndim, const int64_t *shape,
				      const struct hzi_quat_array *a,
				      const struct hzi_quat_array *b,
				      const struct hzi_quat_array *c)
{
	const struct hzi_quat_array *const arrays[3] = {a, b, c};
	struct hzi_quat_merged j = {.n = 0};

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

struct hzi_quat_map_step hzi_quat_map_args(int kind, const struct hzi_quat_tensor *out,
					   const struct hzi_quat_array *a,
					   const struct hzi_quat_array *b,
					   const struct hzi_quat_array *pre, bool channels)
{
	struct hzi_quat_map_step m = {.kind = kind, .out = out->a};
	struct hzi_quat_array *const arrays[4] = {&m.out, &m.a, &m.b, &m.pre};

	if (a)
		m.a = *a;
	if (b)
		m.b = *b;
	if (pre)
		m.pre = *pre;
	m.total = hzi_quat_count(out->ndim, out->shape);
	for (int d = 0; d < out->ndim; d++) {
		const bool last = channels && d == out->ndim - 1;
		bool goes_on = m.ndim > 0 && !last;
		int64_t stride[4];

		if (out->shape[d] == 1 && !last)
			continue;
		for (int k = 0; k < 4; k++) {
			/* m.ndim - 1 <= d: strides are read before they are overwritten. */
			stride[k] = arrays[k]->stride[d];
			goes_on = goes_on &&
				  (!arrays[k]->data || hzi_continues(arrays[k]->stride[m.ndim - 1],
								     stride[k], out->shape[d]));
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

/* Fewest rows of a chunk; more if needed to have at most HZI_QUAT_SUM_CHUNKS chunks */
#define SUM_ROWS 64

void hzi_quat_sum_shape(struct hzi_quat_sum_step *s, const struct hzi_quat_tensor *a,
			const struct hzi_quat_tensor *b)
{
	const int last = a->ndim - 1;
	const struct hzi_quat_merged j = hzi_quat_merge(last, a->shape, &a->a, b ? &b->a : NULL,
							NULL);
	int64_t chunk = SUM_ROWS;

	s->a = a->a;
	if (b)
		s->b = b->a;
	s->rows = hzi_quat_count(last, a->shape);
	s->channels = a->shape[last];
	while ((s->rows + chunk - 1) / chunk > HZI_QUAT_SUM_CHUNKS)
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

int hzi_quat_plan_copy(struct hzi_quat_plan *r, const struct hzi_quat_array *from,
		       const struct hzi_quat_tensor *to, bool accumulate)
{
	struct hzi_quat_map_step m = hzi_quat_map_args(HZI_QUAT_MAP_COPY, to, from, NULL, NULL,
						       false);

	m.accumulate = accumulate;
	return hzi_quat_plan_map(r, &m);
}

struct hzi_quat_rotation_step
hzi_quat_plan_rotation(const struct hzi_quat_plan *r, const struct hzi_quat_rotation_opts *o,
		       int64_t n, int64_t m, int64_t ld, void *data)
{
	const struct hzi_quat_layer *l = r->l;

	return (struct hzi_quat_rotation_step){
		.q = l->w.a, .n = n, .m = m, .ld = ld, .r = data, .r_step = 1,
		.r_dtype = hzi_quat_sum_dtype(l->w.a.dtype), .scale = o->scale,
		.scale_row = o->scale_row, .scale_col = o->scale_col, .dscale = o->dscale,
		.dscale_row = o->dscale_row, .dscale_col = o->dscale_col,
		.scale_dtype = l->w.a.dtype, .inverse = l->reversed, .eps = o->eps,
		.eps_norm = o->eps_norm,
	};
}

/* ---- Backward passes ------------------------------------------------------------------------- */

int hzi_quat_plan_bias_gradient(struct hzi_quat_plan *r, const struct hzi_quat_tensor *z,
				const struct hzi_quat_tensor *db)
{
	struct hzi_quat_sum_step s = {.kind = HZI_QUAT_SUM_PLAIN};
	struct hzi_quat_finish_step f = {.kind = HZI_QUAT_FINISH_BIAS, .out = db->a,
					 .accumulate = r->l->accumulate};
	const size_t used = r->used;
	int status = HZ_OK;

	hzi_quat_sum_shape(&s, z, NULL);
	if (s.channels == 0)
		return HZ_OK;
	s.part = hzi_quat_plan_take(r, s.chunks * s.channels * 4, HZ_F64);
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

int hzi_quat_plan_sum_parts(struct hzi_quat_plan *r, void *parts, int64_t count,
			    const struct hzi_quat_tensor *to)
{
	const int64_t shape[2] = {count, hzi_quat_count(to->ndim, to->shape)};
	const struct hzi_quat_tensor all = hzi_quat_contiguous(parts, to->a.dtype, 2, shape);
	struct hzi_quat_sum_step s = {.kind = HZI_QUAT_SUM_PLAIN};
	struct hzi_quat_finish_step f = {.kind = HZI_QUAT_FINISH_BIAS, .out = to->a};
	const size_t used = r->used;

	hzi_quat_sum_shape(&s, &all, NULL);
	f.out.stride[0] = 4;
	f.part = s.part = hzi_quat_plan_take(r, s.chunks * s.channels * 4, HZ_F64);
	f.chunks = s.chunks;
	f.rows = s.rows;
	f.channels = s.channels;
	r->used = used;
	if (r->dry || s.channels == 0)
		return HZ_OK;
	HZ_CHECK(r->steps->sum(r->ctx, r->op, &s));
	return r->steps->finish(r->ctx, r->op, &f);
}

int hzi_quat_plan_act_gradient(struct hzi_quat_plan *r, struct hzi_quat_tensor *z,
			       int (*forward)(struct hzi_quat_plan *r, const void *a,
					      const struct hzi_quat_tensor *y), const void *a)
{
	const struct hzi_quat_layer *l = r->l;
	const struct hzi_quat_array *pre = &l->pre.a;
	const int dtype = l->y.a.dtype;
	struct hzi_quat_map_step m;

	*z = l->y;
	if (l->activation == HZ_ACT_NONE)
		return HZ_OK;
	*z = hzi_quat_plan_tensor(r, dtype, l->y.ndim, l->y.shape);
	if (!pre->data) {
		HZ_CHECK(forward(r, a, z));
		pre = &z->a;
	}
	m = hzi_quat_map_args(HZI_QUAT_MAP_ACT_BWD, z, pre, &l->y.a, NULL, false);
	m.activation = l->activation;
	m.slope = l->slope;
	return hzi_quat_plan_map(r, &m);
}
