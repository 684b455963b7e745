/*
 * quat_gemm.c - quaternion matrix products: argument checks and packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "lib/quat_gemm/quat_gemm.h"

static const int types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_F64, 0};
static const char op_name[] = "quat_gemm", pack_name[] = "quat_gemm_pack";

/* The operands of a product; the last three dimensions of a tensor are a matrix. */
struct call {
	const hz_tensor *a, *b, *c;
	const hz_quat_gemm_opts *o;
};

static bool transposes(int op)
{
	return op == HZ_QUAT_T || op == HZ_QUAT_H;
}

static bool conjugates(int op)
{
	return op == HZ_QUAT_C || op == HZ_QUAT_H;
}

/* ---- Options --------------------------------------------------------------------------------- */

static int check_range(struct hz_context *ctx, const char *op, const char *name, int32_t value,
		       int32_t last)
{
	if (value < 0 || value > last)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %d, must be 0 to %d", op, name,
				value, last);
	return HZ_OK;
}

static int check_opts(struct hz_context *ctx, const char *op, const hz_quat_gemm_opts *o)
{
	static const struct hzi_flag flags[] = {
		HZI_FLAG(HZ_QUAT_XYZW), HZI_FLAG(HZ_QUAT_REVERSED),
		HZI_FLAG(HZ_QUAT_BIAS_COLUMNS), {0, NULL},
	};
	static const struct hzi_flag given[] = {HZI_FLAG(HZ_QUAT_GEMM_GIVEN_ALPHA), {0, NULL}};

	HZ_CHECK(check_range(ctx, op, "op_a", o->op_a, HZ_QUAT_H));
	HZ_CHECK(check_range(ctx, op, "op_b", o->op_b, HZ_QUAT_H));
	HZ_CHECK(check_range(ctx, op, "method", o->method, HZ_QUAT_FAST));
	HZ_CHECK(check_range(ctx, op, "precision", o->precision, HZ_PRECISION_HALF));
	HZ_CHECK(check_range(ctx, op, "activation", o->activation, HZ_ACT_NORMCLIP));
	HZ_CHECK(hzi_quat_check_slope(ctx, op, o->activation, o->slope));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->flags", o->flags, HZ_QUAT_XYZW | HZ_QUAT_REVERSED |
				 HZ_QUAT_BIAS_COLUMNS, flags));
	HZ_CHECK(hzi_check_flags(ctx, op, "opts->given", o->given, HZ_QUAT_GEMM_GIVEN_ALPHA,
				 given));
	for (int i = 0; i < 4; i++) {
		if (!(o->given & HZ_QUAT_GEMM_GIVEN_ALPHA) && o->alpha[i] != 0)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: opts->alpha[%d] is %g, but opts->given lacks "
					"HZ_QUAT_GEMM_GIVEN_ALPHA: set it, or alpha to 0", op, i,
					o->alpha[i]);
	}
	if (o->reserved32)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->reserved32 is %d, must be 0", op,
				o->reserved32);
	return hzi_check_reserved(ctx, op, o->reserved, 4);
}

/* HZ_QUAT_AUTO resolved */
static int method_of(const struct hz_context *ctx, const hz_quat_gemm_opts *o)
{
	const int method = o->method ? o->method : ctx->quat_method;

	return method ? method : HZ_QUAT_DIRECT;
}

static bool on_gpu(const struct hz_context *ctx)
{
	return ctx->device != HZ_CPU;
}

/* ---- Matrices -------------------------------------------------------------------------------- */

/* Offsets of components */
static void set_comp(int64_t *comp, int64_t stride, uint32_t flags)
{
	for (int c = 0; c < 4; c++)
		comp[c] = stride * (flags & HZ_QUAT_XYZW ? (c + 3) % 4 : c);
}

/* The view of op(from), and its sizes */
static struct hzi_quat_view view_of(struct hz_context *ctx, const hz_tensor *from, int op,
				    uint32_t flags, int64_t *rows, int64_t *cols)
{
	hz_tensor copy;
	const hz_tensor *const t = hzi_canonical_view(from, &copy);
	const int row = t->ndim - 3 + transposes(op), col = t->ndim - 2 - transposes(op);
	struct hzi_quat_view v = {.data = hzi_data(ctx, t), .row = t->stride[row],
				  .col = t->stride[col]};

	*rows = t->shape[row];
	*cols = t->shape[col];
	set_comp(v.comp, t->stride[t->ndim - 1], flags);
	return v;
}

static int check_quaternions(struct hz_context *ctx, const char *op, const char *name,
			     const hz_tensor *t, const int *dtypes, bool output)
{
	HZ_CHECK(hzi_check(ctx, op, name, t, dtypes, output));
	if (t->ndim < 3)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 3 to %d", op, name,
				t->ndim, HZ_MAXDIM);
	if (t->shape[t->ndim - 1] != 4)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be 4", op, name,
				t->ndim - 1, (long long)t->shape[t->ndim - 1]);
	return HZ_OK;
}

static int check_device(struct hz_context *ctx, const char *op, const char *name, int dtype)
{
	if (dtype == HZ_F64 && on_gpu(ctx))
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %s.dtype is f64, which only the CPU takes",
				op, name);
	return HZ_OK;
}

/*
 * Implementations may round sizes up to 256 and keep 16 numbers of 8 bytes for each quaternion.
 * With strides of 0 that may overflow where the view does not.
 */
static int check_size(struct hz_context *ctx, const char *op, const char *name, int64_t rows,
		      int64_t cols, int64_t count)
{
	int64_t bytes;

	if (rows > INT64_MAX / 2 || cols > INT64_MAX / 2 || count > INT64_MAX / 256 ||
	    !hzi_mul((rows | 255) + 1, (cols | 255) + 1, &bytes) ||
	    !hzi_mul(bytes, (count + 1) * 128, &bytes))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: its size overflows", op,
				name);
	return HZ_OK;
}

static int64_t batch_count(const hz_tensor *t)
{
	int64_t count = 1;

	for (int d = 0; d < t->ndim - 3; d++)
		count *= t->shape[d];
	return count;
}

/* ---- Packing --------------------------------------------------------------------------------- */

/*
 * *bytes: of the packed matrices. *scratch: on a GPU, whose calls do not allocate, bytes of
 * workspace behind them; 0 on a CPU, which has a workspace of its own.
 */
static int pack_args(struct hz_context *ctx, const hz_tensor *a, const hz_quat_gemm_opts *o,
		     struct hzi_quat_gemm_pack_args *p, size_t *bytes, size_t *scratch)
{
	int64_t count, all;

	HZI_ENTER(ctx, pack_name);
	HZ_CHECK(check_opts(ctx, pack_name, o));
	HZ_CHECK(check_quaternions(ctx, pack_name, "a", a, types, false));
	HZ_CHECK(check_device(ctx, pack_name, "a", a->dtype));
	if (conjugates(o->op_a))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->op_a is %d, must be HZ_QUAT_N or HZ_QUAT_T: the product "
				"can conjugate what is packed", pack_name, o->op_a);
	memset(p, 0, sizeof(*p));
	p->a = view_of(ctx, a, o->op_a, o->flags, &p->m, &p->k);
	p->dtype = a->dtype;
	p->method = method_of(ctx, o);
	p->precision = o->precision;
	p->layout = hzi_quat_layout(on_gpu(ctx), p->method, p->precision);
	p->ndim = a->ndim - 3;
	memcpy(p->shape, a->shape, (size_t)p->ndim * sizeof(*p->shape));
	memcpy(p->a_stride, hzi_canonical_strides(a).stride,
	       (size_t)p->ndim * sizeof(*p->a_stride));
	count = batch_count(a);
	HZ_CHECK(check_size(ctx, pack_name, "a", p->m, p->k, count));
	*bytes = *scratch = 0;
	if (count == 0 || p->m == 0 || p->k == 0)
		return HZ_OK;
	if (!hzi_mul(hzi_quat_pack_bytes(p->layout, p->dtype, p->m, p->k), count, &all) || !all)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: a is too large: its packed size overflows",
				pack_name);
	*bytes = (size_t)all;
	if (on_gpu(ctx))
		*scratch = HZI_WORKSPACE(ctx, quat_gemm, quat_gemm_pack, p);
	return HZ_OK;
}

/* Packs, with the workspace behind the packed matrices. */
static int pack_on_gpu(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *p,
		       size_t bytes, size_t scratch)
{
	void *const workspace = ctx->workspace;
	const size_t workspace_bytes = ctx->workspace_bytes;
	int status;

	ctx->workspace = (char *)p->data + bytes;
	ctx->workspace_bytes = scratch;
	status = HZI_CALL(ctx, quat_gemm, quat_gemm_pack, p);
	ctx->workspace = workspace;
	ctx->workspace_bytes = workspace_bytes;
	return status;
}

static const hz_quat_gemm_opts defaults;

int hz_quat_gemm_pack_bytes(hz_context *ctx, const hz_tensor *a, const hz_quat_gemm_opts *opts,
			    size_t *bytes)
{
	struct hzi_quat_gemm_pack_args p;
	size_t need, scratch;

	HZ_CHECK(pack_args(ctx, a, opts ? opts : &defaults, &p, &need, &scratch));
	if (!bytes)
		return hzi_fail(ctx, HZ_EINVAL, "quat_gemm_pack_bytes: bytes is NULL");
	*bytes = need + scratch;
	return HZ_OK;
}

int hz_quat_gemm_pack(hz_context *ctx, const hz_tensor *a, void *data, size_t bytes,
		      hz_packed *packed, const hz_quat_gemm_opts *opts)
{
	struct hzi_quat_gemm_pack_args p;
	hz_tensor blob;
	size_t matrices, scratch, need;

	HZ_CHECK(pack_args(ctx, a, opts ? opts : &defaults, &p, &matrices, &scratch));
	need = matrices + scratch;
	if (!packed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: packed is NULL, must be a struct to fill",
				pack_name);
	if (bytes < need)
		return hzi_fail(ctx, HZ_EINVAL, "%s: bytes is %zu, must be at least %zu",
				pack_name, bytes, need);
	HZ_CHECK(hzi_check_packed_data(ctx, pack_name, "data", data, need));
	blob = hz_tensor_1d(data, HZ_U8, ctx->device, (int64_t)need);
	HZ_CHECK(hzi_check_apart(ctx, pack_name, "a", a, "data", &blob));
	p.data = data;
	if (need && on_gpu(ctx)) {
		HZ_CHECK(pack_on_gpu(ctx, &p, matrices, scratch));
	} else if (need) {
		const size_t workspace = HZI_WORKSPACE(ctx, quat_gemm, quat_gemm_pack, &p);

		HZ_CHECK(hzi_workspace(ctx, pack_name, workspace));
		HZ_CHECK(HZI_CALL(ctx, quat_gemm, quat_gemm_pack, &p));
	}
	memset(packed, 0, sizeof(*packed));
	packed->data = data;
	packed->bytes = need;
	packed->device = ctx->device;
	packed->dtype = a->dtype;
	packed->ndim = a->ndim;
	packed->layout = (uint32_t)p.layout;
	memcpy(packed->shape, p.shape, (size_t)p.ndim * sizeof(*p.shape));
	packed->shape[p.ndim] = p.m;
	packed->shape[p.ndim + 1] = p.k;
	packed->shape[p.ndim + 2] = 4;
	packed->check = hzi_packed_check(ctx, packed);
	return HZ_OK;
}

/* Checks opts->packed. Its method and precision replace AUTO. */
static int check_packed(struct hz_context *ctx, const struct call *q, int *method, int *precision)
{
	const hz_packed *p = q->o->packed;
	const int32_t layout = (int32_t)p->layout;

	if (q->a)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: a and opts->packed are both given, must be one of them",
				op_name);
	HZ_CHECK(hzi_check_packed(ctx, op_name, "opts->packed", "hz_quat_gemm_pack", 3, p));
	*method = hzi_quat_layout_method(layout);
	*precision = hzi_quat_layout_precision(layout);
	if (layout != hzi_quat_layout(on_gpu(ctx), *method, *precision) || *method == 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->packed is not as hz_quat_gemm_pack() filled it",
				op_name);
	if (q->o->method && q->o->method != *method)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->method is %d, must be %d, as of opts->packed, or 0",
				op_name, q->o->method, *method);
	if (q->o->precision && q->o->precision != *precision)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->precision is %d, must be %d, as of opts->packed, or 0",
				op_name, q->o->precision, *precision);
	return HZ_OK;
}

/* ---- The product ----------------------------------------------------------------------------- */

static int check_batch(struct hz_context *ctx, const struct call *q, const char *name, int ndim,
		       const int64_t *shape)
{
	const hz_tensor *c = q->c;

	if (ndim > c->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 3 to %d, as c", op_name,
				name, ndim, c->ndim);
	for (int d = 0; d < c->ndim - 3; d++) {
		const int64_t size = hzi_batch_size(ndim, shape, c->ndim, d);

		if (size != 1 && size != c->shape[d])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, as c, or 1",
					op_name, name, d - (c->ndim - ndim), (long long)size,
					(long long)c->shape[d]);
	}
	return HZ_OK;
}

static int check_equal(struct hz_context *ctx, const char *name, int dim, int64_t size,
		       int64_t wanted, const char *as)
{
	if (size != wanted)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld, as %s",
				op_name, name, dim, (long long)size, (long long)wanted, as);
	return HZ_OK;
}

/* Fills sizes and views of the three matrices. */
static int make_matrices(struct hz_context *ctx, const struct call *q,
			 struct hzi_quat_gemm_args *g)
{
	const hz_quat_gemm_opts *o = q->o;
	const hz_packed *p = o->packed;
	const hz_tensor *b = q->b, *c = q->c;
	const int a_ndim = p ? p->ndim : q->a->ndim;
	const int64_t *const a_shape = p ? p->shape : q->a->shape;
	int64_t k;

	if (p) {
		g->packed_t = transposes(o->op_a);
		g->m = a_shape[a_ndim - 3 + g->packed_t];
		g->k = a_shape[a_ndim - 2 - g->packed_t];
		g->packed = hzi_packed_data(ctx, p);
		g->layout = (int32_t)p->layout;
	} else {
		g->a = view_of(ctx, q->a, o->op_a, o->flags, &g->m, &g->k);
	}
	g->b = view_of(ctx, b, o->op_b, o->flags, &k, &g->n);
	HZ_CHECK(check_equal(ctx, "b", b->ndim - 3 + transposes(o->op_b), k, g->k, "a"));
	HZ_CHECK(check_equal(ctx, "c", c->ndim - 3, c->shape[c->ndim - 3], g->m, "a"));
	HZ_CHECK(check_equal(ctx, "c", c->ndim - 2, c->shape[c->ndim - 2], g->n, "b"));
	g->c = view_of(ctx, c, HZ_QUAT_N, o->flags, &g->m, &g->n);
	HZ_CHECK(check_batch(ctx, q, "a", a_ndim, a_shape));
	HZ_CHECK(check_batch(ctx, q, "b", b->ndim, b->shape));
	if (!p)
		HZ_CHECK(check_size(ctx, op_name, "a", g->m, g->k, batch_count(q->a)));
	HZ_CHECK(check_size(ctx, op_name, "b", g->k, g->n, batch_count(b)));
	return check_size(ctx, op_name, "c", g->m, g->n, batch_count(c));
}

static int make_bias(struct hz_context *ctx, const struct call *q, struct hzi_quat_gemm_args *g)
{
	const hz_tensor *t = q->o->bias;
	const int c_type = q->c->dtype;
	const int bias_types[] = {HZ_F32, c_type == HZ_F32 ? 0 : c_type, 0};
	const bool columns = q->o->flags & HZ_QUAT_BIAS_COLUMNS;

	if (!t) {
		if (columns)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: HZ_QUAT_BIAS_COLUMNS needs opts->bias", op_name);
		return HZ_OK;
	}
	HZ_CHECK(hzi_check(ctx, op_name, "bias", t, bias_types, false));
	if (t->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: bias.ndim is %d, must be 2", op_name, t->ndim);
	HZ_CHECK(check_equal(ctx, "bias", 0, t->shape[0], columns ? g->n : g->m,
			     columns ? "the columns of c" : "the rows of c"));
	if (t->shape[1] != 4)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: bias.shape[1] is %lld, must be 4", op_name,
				(long long)t->shape[1]);
	HZ_CHECK(hzi_check_apart(ctx, op_name, "bias", t, "c", q->c));
	g->bias = hzi_data(ctx, t);
	g->bias_dtype = t->dtype;
	*(columns ? &g->bias_col : &g->bias_row) = hzi_canonical_strides(t).stride[0];
	set_comp(g->bias_comp, hzi_canonical_strides(t).stride[1], q->o->flags);
	return HZ_OK;
}

static int make_pre(struct hz_context *ctx, const struct call *q, struct hzi_quat_gemm_args *g)
{
	const hz_tensor *t = q->o->pre;
	const int pre_types[] = {q->c->dtype, 0};
	int64_t m, n;

	if (!t)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, op_name, "opts->pre", t, pre_types, true));
	HZ_CHECK(hzi_check_same_shape(ctx, op_name, "c", q->c, "opts->pre", t));
	HZ_CHECK(hzi_check_apart(ctx, op_name, "c", q->c, "opts->pre", t));
	if (q->a)
		HZ_CHECK(hzi_check_apart(ctx, op_name, "a", q->a, "opts->pre", t));
	HZ_CHECK(hzi_check_apart(ctx, op_name, "b", q->b, "opts->pre", t));
	if (q->o->bias)
		HZ_CHECK(hzi_check_apart(ctx, op_name, "bias", q->o->bias, "opts->pre", t));
	g->pre = view_of(ctx, t, HZ_QUAT_N, q->o->flags, &m, &n);
	return HZ_OK;
}

static void reverse(int64_t *list, int n)
{
	for (int i = 0, j = n - 1; i < j; i++, j--) {
		const int64_t v = list[i];

		list[i] = list[j];
		list[j] = v;
	}
}

/*
 * Fills the batch. Dimensions that are contiguous with each other in all operands are merged. Those
 * that continue the columns of B and C, with A broadcast, become columns: a batch of small products
 * with one matrix of weights is one product.
 */
static void make_batch(const struct call *q, struct hzi_quat_gemm_args *g)
{
	const hz_packed *p = q->o->packed;
	hz_tensor copy_a, copy_b;
	const hz_tensor *const a = p ? NULL : hzi_canonical_view(q->a, &copy_a);
	const hz_tensor *const b = hzi_canonical_view(q->b, &copy_b);
	const hz_tensor *c = q->c, *pre = q->o->pre;
	const int nc = c->ndim, na = p ? p->ndim : a->ndim;
	int64_t matrices = 1;
	int n = 0;

	for (int d = nc - 4; d >= 0; d--) {
		const int64_t size = c->shape[d], cs = c->stride[d], ps = pre ? pre->stride[d] : 0;
		const int64_t a_size = hzi_batch_size(na, p ? p->shape : a->shape, nc, d);
		int64_t as = 0, bs = 0;

		if (a_size > 1)
			as = p ? matrices : a->stride[d - (nc - na)];
		if (hzi_batch_size(b->ndim, b->shape, nc, d) > 1)
			bs = b->stride[d - (nc - b->ndim)];
		matrices *= a_size;
		if (size == 1)
			continue;
		if (n == 0 && as == 0 && !g->bias_col && hzi_continues(bs, g->b.col, g->n) &&
		    hzi_continues(cs, g->c.col, g->n) &&
		    (!pre || hzi_continues(ps, g->pre.col, g->n))) {
			g->n *= size;
		} else if (n > 0 && hzi_continues(p ? 0 : as, g->a_stride[n - 1],
						  g->shape[n - 1]) &&
			   hzi_continues(p ? as : 0, g->packed_stride[n - 1], g->shape[n - 1]) &&
			   hzi_continues(bs, g->b_stride[n - 1], g->shape[n - 1]) &&
			   hzi_continues(cs, g->c_stride[n - 1], g->shape[n - 1]) &&
			   hzi_continues(ps, g->pre_stride[n - 1], g->shape[n - 1])) {
			g->shape[n - 1] *= size;
		} else {
			g->shape[n] = size;
			g->a_stride[n] = p ? 0 : as;
			g->packed_stride[n] = p ? as : 0;
			g->b_stride[n] = bs;
			g->c_stride[n] = cs;
			g->pre_stride[n] = ps;
			n++;
		}
	}
	g->ndim = n;
	reverse(g->shape, n);
	reverse(g->a_stride, n);
	reverse(g->packed_stride, n);
	reverse(g->b_stride, n);
	reverse(g->c_stride, n);
	reverse(g->pre_stride, n);
}

/* Checks all arguments and fills *g. */
static int gemm_args(struct hz_context *ctx, struct call *q, struct hzi_quat_gemm_args *g)
{
	const hz_quat_gemm_opts *o = q->o ? q->o : &defaults;
	const bool reversed = o->flags & HZ_QUAT_REVERSED;
	int method, precision, dtype;

	q->o = o;
	HZI_ENTER(ctx, op_name);
	HZ_CHECK(check_opts(ctx, op_name, o));
	method = method_of(ctx, o);
	precision = o->precision;
	if (o->packed) {
		HZ_CHECK(check_packed(ctx, q, &method, &precision));
		dtype = o->packed->dtype;
	} else {
		HZ_CHECK(check_quaternions(ctx, op_name, "a", q->a, types, false));
		dtype = q->a->dtype;
	}
	HZ_CHECK(check_device(ctx, op_name, "a", dtype));
	HZ_CHECK(check_quaternions(ctx, op_name, "b", q->b, (const int[]){dtype, 0}, false));
	/* f64 operands need an f64 result; f32 would discard the precision. */
	HZ_CHECK(check_quaternions(ctx, op_name, "c", q->c,
				   (const int[]){dtype, hz_dtype_size(dtype) == 2 ? HZ_F32 : 0, 0},
				   true));

	memset(g, 0, sizeof(*g));
	HZ_CHECK(make_matrices(ctx, q, g));
	if (q->a)
		HZ_CHECK(hzi_check_apart(ctx, op_name, "a", q->a, "c", q->c));
	HZ_CHECK(hzi_check_apart(ctx, op_name, "b", q->b, "c", q->c));
	if (o->packed) {
		const hz_tensor blob = hz_tensor_1d(o->packed->data, HZ_U8, o->packed->device,
						    (int64_t)o->packed->bytes);

		HZ_CHECK(hzi_check_apart(ctx, op_name, "packed", &blob, "c", q->c));
		if (o->pre)
			HZ_CHECK(hzi_check_apart(ctx, op_name, "packed", &blob, "opts->pre",
						 o->pre));
	}
	HZ_CHECK(make_bias(ctx, q, g));
	HZ_CHECK(make_pre(ctx, q, g));
	make_batch(q, g);
	g->dtype = dtype;
	g->c_dtype = q->c->dtype;
	g->conj_a = conjugates(o->op_a) != reversed;
	g->conj_b = conjugates(o->op_b) != reversed;
	g->conj_c = reversed;
	g->method = method;
	g->precision = precision;
	g->activation = o->activation;
	g->beta = o->beta;
	g->slope = o->slope;
	g->alpha[0] = 1;
	if (o->given & HZ_QUAT_GEMM_GIVEN_ALPHA)
		memcpy(g->alpha, o->alpha, sizeof(g->alpha));
	g->alpha_real = g->alpha[1] == 0 && g->alpha[2] == 0 && g->alpha[3] == 0;
	return HZ_OK;
}

int hz_quat_gemm(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *c,
		 const hz_quat_gemm_opts *opts)
{
	struct call q = {.a = a, .b = b, .c = c, .o = opts};
	struct hzi_quat_gemm_args g;

	HZ_CHECK(gemm_args(ctx, &q, &g));
	if (hz_tensor_count(c) == 0)
		return HZ_OK;
	return HZI_RUN(ctx, op_name, quat_gemm, quat_gemm, &g);
}
