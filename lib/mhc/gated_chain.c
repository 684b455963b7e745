/*
 * gated_chain.c - gated branch inputs as a chain of other operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/mhc/check.h"
#include "lib/mhc/gated.h"

/*
 * Arrays of f32 in the workspace: divided [T][n C], down and hidden [T][r], inject [T][n], up [T][n
 * C], roots [T][n][2]; dx [T][n C] and dhidden [T][r] of gradients. The workspace of products
 * follows.
 */
struct scratch {
	float *divided, *down, *hidden, *inject, *up, *roots, *dx, *dhidden;
	size_t bytes;
};

static int64_t columns(const struct hzi_mhc_gated_args *a)
{
	return a->s.n * a->s.channels;
}

/* Takes `count` floats of the workspace, whose address is not used while bytes are counted. */
static float *take(const struct hz_context *ctx, struct scratch *w, int64_t count)
{
	const uintptr_t base = ctx->workspace ? (uintptr_t)ctx->workspace : 256;
	float *const at = (float *)(base + w->bytes);

	w->bytes += ((size_t)count * sizeof(float) + 255) / 256 * 256;
	return at;
}

static struct scratch scratch_of(const struct hz_context *ctx, const struct hzi_mhc_gated_args *a,
				 bool backward)
{
	const int64_t T = a->s.tokens, K = columns(a), n = a->s.n;
	struct scratch w = {.bytes = 0};

	w.divided = take(ctx, &w, T * K);
	w.up = take(ctx, &w, T * K);
	w.down = take(ctx, &w, T * a->rank);
	w.hidden = take(ctx, &w, T * a->rank);
	w.inject = a->w_q ? take(ctx, &w, T * n) : NULL;
	if (!backward)
		return w;
	w.roots = take(ctx, &w, T * n * 2);
	w.dx = take(ctx, &w, T * K);
	w.dhidden = take(ctx, &w, T * a->rank);
	return w;
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * The products of a call: c [m][n] (+)= a b^T. Transposed operands have their strides exchanged.
 * run NULL: nothing is run, and `most` gets the largest workspace of a product.
 */
struct products {
	const struct hz_context *ctx;
	struct hz_context *run;
	size_t most;
};

/* A matrix [rows][columns], contiguous, or its transpose */
struct matrix {
	const void *data;
	int64_t rows, columns;
	int dtype;
	bool transposed;
};

static struct matrix matrix(const void *data, int dtype, int64_t rows, int64_t columns)
{
	return (struct matrix){data, rows, columns, dtype, false};
}

static struct matrix floats(const float *data, int64_t rows, int64_t columns)
{
	return matrix(data, HZ_F32, rows, columns);
}

static struct matrix transpose(struct matrix m)
{
	m.transposed = !m.transposed;
	return m;
}

static int multiply(struct products *p, struct matrix a, struct matrix b, float *c, bool accumulate)
{
	const struct hzi_mhc_product_args g = {
		.a = a.data, .b = b.data, .c = c, .m = a.transposed ? a.columns : a.rows,
		.n = b.transposed ? b.columns : b.rows, .k = a.transposed ? a.rows : a.columns,
		.a_row = a.transposed ? 1 : a.columns, .a_step = a.transposed ? a.columns : 1,
		.b_row = b.transposed ? 1 : b.columns, .b_step = b.transposed ? b.columns : 1,
		.b_dtype = b.dtype, .accumulate = accumulate,
	};
	size_t bytes;

	if (p->run)
		return g.m && g.n ? HZI_OPS(p->run, mhc)->mhc_product(p->run, &g) : HZ_OK;
	bytes = HZI_OPS(p->ctx, mhc)->mhc_product_workspace(p->ctx, &g);
	p->most = bytes > p->most ? bytes : p->most;
	return HZ_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static struct hzi_mhc_divide_args divide_of(const struct hzi_mhc_gated_args *a,
					    const struct scratch *w, const float *gain)
{
	return (struct hzi_mhc_divide_args){
		.s = a->s, .rule = a->rule, .order = a->order, .x = a->x, .gain = gain,
		.to = w->divided, .roots = w->roots,
	};
}

/* divided, down, hidden, inject and up from x */
static int forward(struct products *p, const struct hzi_mhc_gated_args *a, const struct scratch *w)
{
	const int64_t T = a->s.tokens, K = columns(a), r = a->rank;
	const struct hzi_mhc_divide_args divide = divide_of(a, w, a->gain);
	const struct hzi_mhc_hidden_args hidden = {
		.rule = a->rule, .tokens = T, .rank = r, .down = w->down, .hidden = w->hidden,
		.inject = a->q.data ? w->inject : NULL, .q = a->q,
	};
	const struct matrix divided = floats(w->divided, T, K);

	if (p->run)
		HZ_CHECK(HZI_OPS(p->run, mhc)->mhc_divide(p->run, &divide));
	HZ_CHECK(multiply(p, divided, matrix(a->w_down, a->down_dtype, r, K), w->down, false));
	if (w->inject)
		HZ_CHECK(multiply(p, divided, matrix(a->w_q, a->q_dtype, a->s.n, K), w->inject,
				  false));
	if (p->run)
		HZ_CHECK(HZI_OPS(p->run, mhc)->mhc_hidden(p->run, &hidden));
	return multiply(p, floats(w->hidden, T, r), matrix(a->w_up, a->up_dtype, K, r), w->up,
			false);
}

size_t hzi_mhc_gated_chain_workspace(const struct hz_context *ctx,
				     const struct hzi_mhc_gated_args *a)
{
	const struct scratch w = scratch_of(ctx, a, false);
	struct products p = {ctx, NULL, 0};

	forward(&p, a, &w);
	return w.bytes + p.most;
}

int hzi_mhc_gated_chain(struct hz_context *ctx, const struct hzi_mhc_gated_args *a)
{
	const struct scratch w = scratch_of(ctx, a, false);
	const struct hzi_mhc_gate_args gate = {
		.s = a->s, .order = a->order, .x = w.divided, .up = w.up, .u = a->u,
	};
	struct products p = {ctx, ctx, 0};
	int status;

	hzi_mhc_move_workspace(ctx, (int64_t)w.bytes);
	status = forward(&p, a, &w);
	if (status == HZ_OK && a->u.data)
		status = HZI_OPS(ctx, mhc)->mhc_gate(ctx, &gate);
	hzi_mhc_move_workspace(ctx, -(int64_t)w.bytes);
	return status;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/*
 * The products of gradients, in the order in which arrays are reused: up becomes its gradient, then
 * down and inject theirs, then dx that of x^
 */
static int backward(struct products *p, const struct hzi_mhc_gated_bwd_args *g,
		    const struct scratch *w)
{
	const struct hzi_mhc_gated_args *const a = &g->of;
	const int64_t T = a->s.tokens, K = columns(a), r = a->rank, n = a->s.n;
	const struct hzi_mhc_gate_args gate = {
		.s = a->s, .order = a->order, .x = w->divided, .up = w->up, .dx = w->dx,
		.u = g->du, .backward = true,
	};
	const struct hzi_mhc_hidden_args hidden = {
		.rule = a->rule, .tokens = T, .rank = r, .down = w->down, .hidden = w->dhidden,
		.inject = w->inject, .dq = g->dq, .backward = true,
	};
	const struct matrix divided = floats(w->divided, T, K), dup = floats(w->up, T, K);
	const struct matrix ddown = floats(w->down, T, r), dinject = floats(w->inject, T, n);

	if (p->run)
		HZ_CHECK(HZI_OPS(p->run, mhc)->mhc_gate(p->run, &gate));
	HZ_CHECK(multiply(p, dup, transpose(matrix(a->w_up, a->up_dtype, K, r)), w->dhidden,
			  false));
	if (g->dw_up)
		HZ_CHECK(multiply(p, transpose(dup), transpose(floats(w->hidden, T, r)), g->dw_up,
				  g->accumulate));
	if (p->run)
		HZ_CHECK(HZI_OPS(p->run, mhc)->mhc_hidden(p->run, &hidden));
	if (g->dw_down)
		HZ_CHECK(multiply(p, transpose(ddown), transpose(divided), g->dw_down,
				  g->accumulate));
	if (g->dw_q)
		HZ_CHECK(multiply(p, transpose(dinject), transpose(divided), g->dw_q,
				  g->accumulate));
	HZ_CHECK(multiply(p, ddown, transpose(matrix(a->w_down, a->down_dtype, r, K)), w->dx,
			  true));
	if (w->inject)
		HZ_CHECK(multiply(p, dinject, transpose(matrix(a->w_q, a->q_dtype, n, K)), w->dx,
				  true));
	return HZ_OK;
}

static int end_backward(struct hz_context *ctx, const struct hzi_mhc_gated_bwd_args *g,
			const struct scratch *w)
{
	const struct hzi_mhc_gated_args *const a = &g->of;
	const struct hzi_mhc_divide_args divide = divide_of(a, w, NULL);
	const struct hzi_mhc_divide_bwd_args back = {
		.s = a->s, .order = a->order, .x = w->divided, .roots = w->roots, .gain = a->gain,
		.d = w->dx, .dgain = g->dgain, .dy = g->dy, .dx = g->dx,
		.accumulate = g->accumulate,
	};

	/* Without gain the streams over their roots are there already. */
	if (a->gain)
		HZ_CHECK(HZI_OPS(ctx, mhc)->mhc_divide(ctx, &divide));
	return HZI_OPS(ctx, mhc)->mhc_divide_bwd(ctx, &back);
}

size_t hzi_mhc_gated_bwd_chain_workspace(const struct hz_context *ctx,
					 const struct hzi_mhc_gated_bwd_args *g)
{
	const struct scratch w = scratch_of(ctx, &g->of, true);
	struct products p = {ctx, NULL, 0};

	forward(&p, &g->of, &w);
	backward(&p, g, &w);
	return w.bytes + p.most;
}

int hzi_mhc_gated_bwd_chain(struct hz_context *ctx, const struct hzi_mhc_gated_bwd_args *g)
{
	const struct scratch w = scratch_of(ctx, &g->of, true);
	struct products p = {ctx, ctx, 0};
	int status;

	hzi_mhc_move_workspace(ctx, (int64_t)w.bytes);
	status = forward(&p, &g->of, &w);
	if (status == HZ_OK)
		status = backward(&p, g, &w);
	if (status == HZ_OK)
		status = end_backward(ctx, g, &w);
	hzi_mhc_move_workspace(ctx, -(int64_t)w.bytes);
	return status;
}
