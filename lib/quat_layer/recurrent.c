/*
 * recurrent.c - recurrent layers of quaternions: argument checks, plans
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A step of time is a product U h of all directions and the cell's functions of the gates. States
 * are in the workspace, in f32 and in the order in which gates are contiguous; what the product
 * reads is in the dtype of z.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "lib/quat_layer/plan.h"

/* ---- Plans ----------------------------------------------------------------------------------- */

/* The states of all directions and sequences, or their gates, in the order of cell steps */
static struct hzi_quat_tensor cell_order(const struct hzi_quat_cell_step *s, void *data,
					 int64_t channels)
{
	const int64_t shape[3] = {s->directions, s->batch, channels};
	struct hzi_quat_tensor t = hzi_quat_contiguous(data, HZ_F32, 3, shape);

	if (s->planar) {
		t.a.whole = 0;
		t.a.stride[2] = 1;
		for (int c = 0; c < 4; c++)
			t.a.comp[c] = c * channels;
	}
	return t;
}

/* *p = f32 memory for a state that begins as `from`, 0 without data */
static int begin_state(struct hzi_quat_plan *r, const struct hzi_quat_cell_step *s,
		       const struct hzi_quat_tensor *from, float **p)
{
	const int64_t count = s->directions * s->batch * s->hidden * 4;
	struct hzi_quat_tensor to;

	*p = hzi_quat_plan_take(r, count, HZ_F32);
	if (!from->a.data)
		return count ? hzi_quat_plan_clear(r, *p, count, HZ_F32) : HZ_OK;
	to = cell_order(s, *p, s->hidden);
	return hzi_quat_plan_copy(r, &from->a, &to, false);
}

static int end_state(struct hzi_quat_plan *r, const struct hzi_quat_cell_step *s, float *p,
		     const struct hzi_quat_tensor *to)
{
	const struct hzi_quat_tensor from = cell_order(s, p, s->hidden);

	return to->a.data ? hzi_quat_plan_copy(r, &from.a, to, false) : HZ_OK;
}

static size_t pack_workspace(const struct hz_context *ctx, const void *args)
{
	return HZI_OPS(ctx, quat_gemm)->quat_gemm_pack_workspace(ctx, args);
}

static int pack_run(struct hz_context *ctx, const void *args)
{
	return HZI_OPS(ctx, quat_gemm)->quat_gemm_pack(ctx, args);
}

/* Sets A of the product of a fused step: a copy of u in the order of HZI_QUAT_CELL_ROWS. */
static int begin_fused_weights(struct hzi_quat_plan *r, const struct hzi_quat_recurrent_args *a,
			       struct hzi_quat_gemm_args *g)
{
	const int64_t gates = HZI_QUAT_CELL_GATES(a->step.cell), each = HZI_QUAT_CELL_ROWS / gates;
	const struct hzi_quat_array *u = &a->l.w.a;
	const int64_t matrices = u->stride[0] && a->step.directions > 1 ? 2 : 1;
	const int64_t shape[5] = {matrices, a->step.hidden / each, gates, each, g->k};
	const struct hzi_quat_tensor copy = hzi_quat_plan_tensor(r, u->dtype, 5, shape);
	struct hzi_quat_array from = *u;

	from.stride[1] = each * u->stride[1];
	from.stride[2] = a->step.hidden * u->stride[1];
	from.stride[3] = u->stride[1];
	from.stride[4] = u->stride[2];
	g->a = hzi_quat_array_matrix(&copy.a, 0, copy.a.stride[3], 4);
	g->a_stride[0] = matrices > 1 ? copy.a.stride[0] : 0;
	return hzi_quat_plan_copy(r, &from, &copy, false);
}

/*
 * Sets A of the product of a step: u of all directions, transposed if backward. All steps read it
 * again, so it is copied once if it is not in the layout that products of this size read fastest.
 */
static int begin_weights(struct hzi_quat_plan *r, const struct hzi_quat_recurrent_args *a,
			 bool backward, struct hzi_quat_gemm_args *g)
{
	static const struct hzi_route route = {.workspace = pack_workspace, .run = pack_run};
	const struct hzi_quat_array *u = &a->l.w.a;
	const int row = backward ? 2 : 1, col = 3 - row;
	const int64_t matrices = u->stride[0] && a->l.w.shape[0] > 1 ? a->l.w.shape[0] : 1;
	const int64_t shape[3] = {matrices, g->m, g->k};
	const bool in_place = u->whole && u->stride[col] == 4;
	struct hzi_quat_tensor copy;
	struct hzi_quat_gemm_pack_args pack = {
		.dtype = u->dtype, .m = g->m, .k = g->k, .ndim = matrices > 1,
		.shape = {matrices}, .a_stride = {u->stride[0]},
	};

	g->a = hzi_quat_array_matrix(u, 0, u->stride[row], u->stride[col]);
	g->a_stride[0] = matrices > 1 ? u->stride[0] : 0;
	if (a->step.steps < 2 || (g->n <= r->steps->gemv && in_place) || !g->m || !g->k || !g->n)
		return HZ_OK;
	if (g->n <= r->steps->gemv) {
		struct hzi_quat_array from = *u;

		from.stride[1] = u->stride[row];
		from.stride[2] = u->stride[col];
		copy = hzi_quat_plan_tensor(r, u->dtype, 3, shape);
		g->a = hzi_quat_array_matrix(&copy.a, 0, copy.a.stride[1], 4);
		g->a_stride[0] = matrices > 1 ? copy.a.stride[0] : 0;
		return hzi_quat_plan_copy(r, &from, &copy, false);
	}
	hzi_quat_plan_options(r, g, false);
	pack.a = g->a;
	pack.method = g->method;
	pack.precision = g->precision;
	pack.layout = hzi_quat_layout(r->ctx->device != HZ_CPU, g->method, g->precision);
	g->layout = pack.layout;
	g->packed = pack.data = hzi_quat_plan_take(r, matrices * hzi_quat_pack_bytes(
		pack.layout, u->dtype, g->m, g->k), HZ_U8);
	g->packed_stride[0] = matrices > 1;
	g->a = (struct hzi_quat_view){.data = NULL};
	return hzi_quat_plan_call(r, &route, &pack);
}

/* All forward steps in one kernel: a copy of u unless it can be read in place, two buffers. */
static int all_steps(struct hzi_quat_plan *r, const struct hzi_quat_recurrent_args *a,
		     const struct hzi_quat_cell_step *s, int64_t columns)
{
	struct hzi_quat_all_steps all = {.u = a->l.w.a, .cell = *s, .columns = columns};
	const int64_t shape[3] = {all.u.stride[0] ? a->l.w.shape[0] : 1, a->l.w.shape[1],
				  s->hidden};
	const int64_t numbers = 4 * s->directions * s->hidden * columns;
	const int64_t flags = s->directions * s->hidden * (columns / 8);
	struct hzi_quat_tensor states = a->h0;

	if (!all.u.whole || all.u.stride[2] != 4) {
		const struct hzi_quat_tensor copy =
			hzi_quat_plan_tensor(r, all.u.dtype, 3, shape);

		HZ_CHECK(hzi_quat_plan_copy(r, &a->l.w.a, &copy, false));
		all.u = copy.a;
	}
	if (shape[0] == 1)
		all.u.stride[0] = 0;
	states.a = (struct hzi_quat_array){
		.data = hzi_quat_plan_take(r, 2 * numbers, all.u.dtype), .dtype = all.u.dtype,
		.whole = 1, .comp = {0, 1, 2, 3},
		.stride = {numbers / s->directions, 4, 4 * columns},
	};
	all.cell.operand = states.a;
	all.other = (uint16_t *)states.a.data + numbers;
	all.done = hzi_quat_plan_take(r, flags, HZ_S32);
	HZ_CHECK(hzi_quat_plan_clear(r, states.a.data, 2 * numbers, all.u.dtype));
	HZ_CHECK(hzi_quat_plan_clear(r, all.done, flags, HZ_S32));
	if (a->h0.a.data)
		HZ_CHECK(hzi_quat_plan_copy(r, &a->h0.a, &states, false));
	return r->dry ? HZ_OK : r->steps->all_steps(r->ctx, r->op, &all);
}

/* The product of a step: pre = U h, or backward dh += U^H dz */
static int begin_product(struct hzi_quat_plan *r, const struct hzi_quat_recurrent_args *a,
			 const struct hzi_quat_cell_step *s, bool backward, bool fused,
			 struct hzi_quat_gemm_args *g)
{
	const int64_t gates = a->l.w.shape[1];
	const struct hzi_quat_tensor to = cell_order(s, s->pre ? (void *)(uintptr_t)s->pre : s->h,
						     backward ? s->hidden : gates);

	*g = (struct hzi_quat_gemm_args){
		.m = backward ? s->hidden : gates, .k = backward ? gates : s->hidden,
		.n = s->batch, .dtype = s->operand.dtype, .c_dtype = HZ_F32, .conj_a = backward,
		.beta = backward, .ndim = s->directions > 1, .shape = {s->directions},
		.b = hzi_quat_array_matrix(&s->operand, 0, 4, s->operand.stride[1]),
		.c = hzi_quat_array_matrix(&to.a, 0, to.a.stride[2], to.a.stride[1]),
		.b_stride = {s->operand.stride[0]}, .c_stride = {to.a.stride[0]},
	};
	return fused ? begin_fused_weights(r, a, g) : begin_weights(r, a, backward, g);
}

/* Exchanges steps and sequences. */
static void swap_time(struct hzi_quat_tensor *t)
{
	const int64_t size = t->shape[0], stride = t->a.stride[0];

	t->shape[0] = t->shape[1];
	t->a.stride[0] = t->a.stride[1];
	t->shape[1] = size;
	t->a.stride[1] = stride;
}

/* Whether the sequences of dz are outside its steps, which products then walk in that order */
static bool is_batch_first(const struct hzi_quat_recurrent_args *a)
{
	return a->dz.a.stride[0] < a->dz.a.stride[1];
}

/* The states before all steps, in the order of dz: both are factors of one product. */
static struct hzi_quat_tensor states_before(struct hzi_quat_plan *r,
					    const struct hzi_quat_recurrent_args *a)
{
	struct hzi_quat_tensor t = a->y;

	if (is_batch_first(a))
		swap_time(&t);
	t = hzi_quat_plan_tensor(r, a->l.w.a.dtype, 4, t.shape);
	if (is_batch_first(a))
		swap_time(&t);
	return t;
}

/* du of each direction = the sum over steps and sequences of dz_t h_(t-1)^H */
static int weights_gradient(struct hzi_quat_plan *r, const struct hzi_quat_recurrent_args *a,
			    const struct hzi_quat_tensor *before)
{
	struct hzi_quat_layer l = a->l;
	int status = HZ_OK;

	r->l = &l;
	for (int64_t d = 0; d < a->l.w.shape[0] && status == HZ_OK; d++) {
		const struct hzi_quat_tensor *const from[3] = {&a->dz, before, &a->l.dw};
		struct hzi_quat_tensor one[3];

		for (int i = 0; i < 3; i++) {
			const int at = i == 2 ? 0 : 2;

			one[i] = *from[i];
			if (i < 2 && is_batch_first(a))
				swap_time(&one[i]);
			one[i].a.data = (char *)from[i]->a.data + d * from[i]->a.stride[at] *
					(int64_t)hz_dtype_size(from[i]->a.dtype);
			one[i].ndim--;
			for (int k = at; k < one[i].ndim; k++) {
				one[i].shape[k] = from[i]->shape[k + 1];
				one[i].a.stride[k] = from[i]->a.stride[k + 1];
			}
		}
		l.x = one[1];
		l.dw = one[2];
		status = hzi_quat_plan_weight_gradient(r, &one[0]);
	}
	r->l = &a->l;
	return status;
}

/* The steps one by one: a product and a cell, or both in one kernel */
static int each_step(struct hzi_quat_plan *r, const struct hzi_quat_recurrent_args *a,
		     struct hzi_quat_cell_step *s, bool backward, struct hzi_quat_tensor *before)
{
	const struct hzi_quat_steps *steps = r->steps;
	const bool fused = !backward && steps->fuses && steps->fuses(r->ctx, &a->step);
	const int64_t gates = a->l.w.shape[1];
	const int64_t state[3] = {s->directions, s->batch, backward ? gates : s->hidden};
	struct hzi_quat_tensor operand = hzi_quat_plan_tensor(r, a->l.w.a.dtype, 3, state);
	struct hzi_quat_tensor other = {.a = {.data = NULL}};
	float *h0 = NULL, *c0 = NULL;
	struct hzi_quat_gemm_args g;

	s->operand = operand.a;
	if (backward) {
		HZ_CHECK(begin_state(r, s, &a->h0, &h0));
		if (s->cell == HZ_QUAT_CELL_LSTM)
			HZ_CHECK(begin_state(r, s, &a->c0, &c0));
		s->h0 = h0;
		s->c0 = c0;
		if (a->l.dw.a.data) {
			*before = states_before(r, a);
			s->before = before->a;
		}
	} else {
		if (fused)
			other = hzi_quat_plan_tensor(r, a->l.w.a.dtype, 3, state);
		else
			s->pre = hzi_quat_plan_take(r, s->directions * s->batch * gates * 4,
						    HZ_F32);
		if (a->h0.a.data)
			HZ_CHECK(hzi_quat_plan_copy(r, &a->h0.a, &operand, false));
		else if (hzi_quat_count(3, state))
			HZ_CHECK(hzi_quat_plan_clear(r, operand.a.data,
						     4 * hzi_quat_count(3, state), a->l.w.a.dtype));
	}
	HZ_CHECK(begin_product(r, a, s, backward, fused, &g));
	/* All steps are alike to a dry run. */
	for (int64_t i = 0; i < (r->dry && s->steps > 1 ? 1 : s->steps); i++) {
		struct hzi_quat_gemm_args product = g;

		s->step = backward ? s->steps - 1 - i : i;
		if (fused) {
			product.b.data = i % 2 ? other.a.data : operand.a.data;
			s->operand.data = i % 2 ? operand.a.data : other.a.data;
			if (!r->dry)
				HZ_CHECK(steps->fused_cell(r->ctx, r->op, &product, s));
			continue;
		}
		if (!backward)
			HZ_CHECK(hzi_quat_plan_multiply(r, &product, false));
		if (!r->dry && s->batch && s->hidden)
			HZ_CHECK(steps->cell(r->ctx, r->op, s, backward));
		if (backward)
			HZ_CHECK(hzi_quat_plan_multiply(r, &product, false));
	}
	return HZ_OK;
}

int hzi_quat_recurrent_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			  const struct hzi_quat_recurrent_args *a, bool backward, size_t *bytes)
{
	const char *const op = backward ? "quat_recurrent_bwd" : "quat_recurrent";
	const bool lstm = a->step.cell == HZ_QUAT_CELL_LSTM;
	const int64_t columns = backward || !steps->persists ? 0 : steps->persists(ctx, &a->step);
	struct hzi_quat_plan r = hzi_quat_plan_begin(ctx, steps, &a->l, op, bytes != NULL);
	struct hzi_quat_cell_step s = a->step;
	struct hzi_quat_tensor before = {.a = {.data = NULL}};
	size_t unused;

	if (bytes)
		*bytes = 0;	/* if a product is unsupported, which the call then says */
	/* A dry run finds out whether a product is unsupported, before anything is written. */
	if (!bytes && steps->most)
		HZ_CHECK(hzi_quat_recurrent_do(ctx, steps, a, backward, &unused));
	HZ_CHECK(begin_state(&r, &s, backward ? &a->hn : &a->h0, &s.h));
	if (lstm)
		HZ_CHECK(begin_state(&r, &s, backward ? &a->cn : &a->c0, &s.c));
	HZ_CHECK(columns ? all_steps(&r, a, &s, columns) : each_step(&r, a, &s, backward, &before));
	HZ_CHECK(end_state(&r, &s, s.h, backward ? &a->dh0 : &a->hn));
	if (lstm)
		HZ_CHECK(end_state(&r, &s, s.c, backward ? &a->dc0 : &a->cn));
	if (a->l.dw.a.data)
		HZ_CHECK(weights_gradient(&r, a, &before));
	if (bytes)
		*bytes = r.peak;
	return HZ_OK;
}

/* ---- Checks, calls through the operation table ----------------------------------------------- */

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

/* Operands of a call; backward, z is dz, y is dy, hn is dhn, cn is dcn. */
struct call {
	const char *op;
	const hz_tensor *z, *u, *h0, *c0, *y, *hn, *cn, *du, *dh0, *dc0;
	const hz_quat_recurrent_opts *o;
	bool backward;
};

/* Sizes of dimensions that are checked: T, B, D, H, K H */
enum { TIME, BATCH, DIRECTIONS, HIDDEN, GATES };

/* An operand whose dimensions, before the four components, are those of `sizes` */
struct view {
	const char *name;
	const hz_tensor *t;
	struct hzi_quat_tensor *to;
	int ndim, dims[4];
	bool output;
};

static int check_view(struct hz_context *ctx, const struct call *q, const struct view *v,
		      const int64_t *sizes)
{
	static const char *const as[] = {", the steps of ", ", the batch of ",
					 ", the directions of u", ", the neurons of u",
					 ", the neurons of all gates of u"};
	char text[48];

	HZ_CHECK(hzi_quat_check(ctx, q->op, v->name, v->t, q->u->dtype, v->ndim + 1, v->ndim + 1,
				v->output, q->o->flags, v->to));
	for (int d = 0; d < v->ndim; d++) {
		const int k = v->dims[d];

		strcpy(text, as[k]);
		if (k <= BATCH)
			strcat(text, q->backward ? "dy" : "z");
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, v->name, d, v->t->shape[d], sizes[k],
					     text));
	}
	return HZ_OK;
}

static int check_cell(struct hz_context *ctx, const struct call *q,
		      struct hzi_quat_recurrent_args *a)
{
	const hz_quat_recurrent_opts *o = q->o;
	const bool lstm = o->cell == HZ_QUAT_CELL_LSTM;
	struct hzi_quat_cell_step *s = &a->step;

	HZ_CHECK(hzi_quat_check_range(ctx, q->op, "cell", o->cell, 0, HZ_QUAT_CELL_LIGRU));
	HZ_CHECK(hzi_quat_check_range(ctx, q->op, "gates", o->gates, 0,
				      HZ_QUAT_GATES_COMPONENTS));
	HZ_CHECK(hzi_quat_check_range(ctx, q->op, "activation", o->activation, 0, HZ_ACT_TANH));
	HZ_CHECK(hzi_quat_check_options(ctx, q->op, 0, o->method, o->precision, 0, o->reserved,
					&a->l));
	HZ_CHECK(hzi_quat_check_flags(ctx, q->op, "opts->flags", o->flags,
				      HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE));
	if (lstm && o->activation && o->activation != HZ_ACT_TANH)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->activation is %d, must be HZ_ACT_TANH "
				"or 0 for HZ_QUAT_CELL_LSTM", q->op, o->activation);
	if (o->activation == HZ_ACT_LEAKY ? !((float)o->slope > 0) || !isfinite((float)o->slope) :
					    o->slope != 0)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->slope is %g, must be %s", q->op,
				o->slope, o->activation == HZ_ACT_LEAKY ?
				"positive and finite for HZ_ACT_LEAKY" :
				"0 unless opts->activation is HZ_ACT_LEAKY");
	if ((o->flags & HZ_QUAT_ACCUMULATE) && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_QUAT_ACCUMULATE is for the backward call", q->op);
	if (!lstm && (q->c0 || q->cn || q->dc0))
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is for HZ_QUAT_CELL_LSTM, must be NULL",
				q->op, q->c0 ? "c0" : q->dc0 ? "dc0" : q->backward ? "dcn" : "cn");
	a->l.accumulate = (o->flags & HZ_QUAT_ACCUMULATE) != 0;
	s->cell = o->cell;
	s->activation = o->activation ? o->activation :
			o->cell == HZ_QUAT_CELL_LIGRU ? HZ_ACT_RELU : HZ_ACT_TANH;
	s->slope = (float)o->slope;
	s->planar = o->gates == HZ_QUAT_GATES_COMPONENTS && o->cell != HZ_QUAT_CELL_RNN;
	return HZ_OK;
}

static int check_lengths(struct hz_context *ctx, const struct call *q, int64_t batch,
			 struct hzi_quat_cell_step *s)
{
	const hz_tensor *t = q->o->lengths;

	if (!t)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, q->op, "opts->lengths", t, (const int[]){HZ_S32, 0}, false));
	if (t->ndim != 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->lengths.ndim is %d, must be 1", q->op,
				t->ndim);
	HZ_CHECK(hzi_quat_check_size(ctx, q->op, "opts->lengths", 0, t->shape[0], batch,
				     q->backward ? ", the batch of dy" : ", the batch of z"));
	s->lengths = hzi_data(ctx, t);
	s->length_stride = t->stride[0];
	return HZ_OK;
}

static int check_saved(struct hz_context *ctx, const struct call *q, const int64_t *sizes,
		       struct hzi_quat_cell_step *s)
{
	const int64_t shape[6] = {sizes[TIME], sizes[BATCH], sizes[DIRECTIONS],
				  HZI_QUAT_CELL_SAVED(s->cell), sizes[HIDDEN], 4};
	const hz_tensor *t = q->o->saved;

	if (!t && q->backward)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->saved is NULL, must be what "
				"hz_quat_recurrent() wrote", q->op);
	if (!t)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, q->op, "opts->saved", t, (const int[]){HZ_F32, 0}, !q->backward));
	if (t->ndim != 6)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->saved.ndim is %d, must be 6", q->op,
				t->ndim);
	for (int d = 0; d < 6; d++)
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, "opts->saved", d, t->shape[d], shape[d],
					     ""));
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: opts->saved must be contiguous", q->op);
	s->saved = hzi_data(ctx, t);
	return HZ_OK;
}

static int recurrent_args(struct hz_context *ctx, const struct call *q,
			  struct hzi_quat_recurrent_args *a)
{
	const bool back = q->backward;
	const hz_quat_recurrent_opts *o = q->o;
	struct hzi_quat_cell_step *s = &a->step;
	const struct view views[] = {
		{back ? "dy" : "z", back ? q->y : q->z, back ? &a->y : &a->z, 4,
		 {TIME, BATCH, DIRECTIONS, back ? HIDDEN : GATES}, false},
		{back ? "dz" : "y", back ? q->z : q->y, back ? &a->dz : &a->y, 4,
		 {TIME, BATCH, DIRECTIONS, back ? GATES : HIDDEN}, true},
		{"h0", q->h0, &a->h0, 3, {DIRECTIONS, BATCH, HIDDEN}, false},
		{"c0", q->c0, &a->c0, 3, {DIRECTIONS, BATCH, HIDDEN}, false},
		{back ? "dhn" : "hn", q->hn, &a->hn, 3, {DIRECTIONS, BATCH, HIDDEN}, !back},
		{back ? "dcn" : "cn", q->cn, &a->cn, 3, {DIRECTIONS, BATCH, HIDDEN}, !back},
		{"du", q->du, &a->l.dw, 3, {DIRECTIONS, GATES, HIDDEN}, true},
		{"dh0", q->dh0, &a->dh0, 3, {DIRECTIONS, BATCH, HIDDEN}, true},
		{"dc0", q->dc0, &a->dc0, 3, {DIRECTIONS, BATCH, HIDDEN}, true},
	};
	struct hzi_quat_layer_view list[LISTED(views) + 3] = {
		{"u", q->u, false}, {"opts->lengths", o->lengths, false},
		{"opts->saved", o->saved, !back},
	};
	const hz_tensor *first = views[0].t;
	int64_t sizes[5] = {0};

	memset(a, 0, sizeof(*a));
	HZ_CHECK(check_cell(ctx, q, a));
	HZ_CHECK(hzi_check(ctx, q->op, "u", q->u, (const int[]){HZ_F32, HZ_F16, HZ_BF16, 0},
			   false));
	HZ_CHECK(hzi_quat_check(ctx, q->op, "u", q->u, 0, 4, 4, false, o->flags, &a->l.w));
	if (q->u->shape[0] != 1 && q->u->shape[0] != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: u.shape[0] is %lld, must be 1 or 2 directions",
				q->op, (long long)q->u->shape[0]);
	HZ_CHECK(hzi_quat_check_size(ctx, q->op, "u", 1, q->u->shape[1], q->u->shape[2] *
				     HZI_QUAT_CELL_GATES(o->cell), ", u.shape[2] times the gates"));
	if (first && first->ndim == 5) {
		sizes[TIME] = first->shape[0];
		sizes[BATCH] = first->shape[1];
	}
	sizes[DIRECTIONS] = q->u->shape[0];
	sizes[HIDDEN] = q->u->shape[2];
	sizes[GATES] = q->u->shape[1];
	for (int i = 0; i < LISTED(views); i++) {
		if (views[i].t || i < 2)	/* the others may be missing */
			HZ_CHECK(check_view(ctx, q, &views[i], sizes));
		list[3 + i] = (struct hzi_quat_layer_view){views[i].name, views[i].t,
							   views[i].output};
	}
	HZ_CHECK(check_lengths(ctx, q, sizes[BATCH], s));
	HZ_CHECK(check_saved(ctx, q, sizes, s));
	s->z = back ? a->dz.a : a->z.a;
	s->y = a->y.a;
	s->steps = sizes[TIME];
	s->batch = sizes[BATCH];
	s->directions = sizes[DIRECTIONS];
	s->hidden = sizes[HIDDEN];
	return hzi_quat_check_apart(ctx, q->op, list, LISTED(list), NULL, NULL);
}

static const hz_quat_recurrent_opts defaults;

static int recurrent(struct hz_context *ctx, struct call q, const hz_quat_recurrent_opts *opts)
{
	struct hzi_quat_recurrent_bwd_args a;

	HZI_ENTER(ctx, q.op);
	q.o = opts ? opts : &defaults;
	HZ_CHECK(recurrent_args(ctx, &q, &a.f));
	do {
		HZ_CHECK(hzi_workspace(ctx, q.op, q.backward ?
				       HZI_WORKSPACE(ctx, quat_layer, quat_recurrent_bwd, &a) :
				       HZI_WORKSPACE(ctx, quat_layer, quat_recurrent, &a.f)));
	} while (hzi_quat_misalign(ctx, &a.f.l));
	return q.backward ? HZI_CALL(ctx, quat_layer, quat_recurrent_bwd, &a) :
			    HZI_CALL(ctx, quat_layer, quat_recurrent, &a.f);
}

int hz_quat_recurrent(hz_context *ctx, const hz_tensor *z, const hz_tensor *u, const hz_tensor *h0,
		      const hz_tensor *c0, hz_tensor *y, hz_tensor *hn, hz_tensor *cn,
		      const hz_quat_recurrent_opts *opts)
{
	return recurrent(ctx, (struct call){.op = "quat_recurrent", .z = z, .u = u, .h0 = h0,
					    .c0 = c0, .y = y, .hn = hn, .cn = cn}, opts);
}

int hz_quat_recurrent_bwd(hz_context *ctx, const hz_tensor *u, const hz_tensor *h0,
			  const hz_tensor *c0, const hz_tensor *dy, const hz_tensor *dhn,
			  const hz_tensor *dcn, hz_tensor *dz, hz_tensor *du, hz_tensor *dh0,
			  hz_tensor *dc0, const hz_quat_recurrent_opts *opts)
{
	return recurrent(ctx, (struct call){.op = "quat_recurrent_bwd", .z = dz, .u = u, .h0 = h0,
					    .c0 = c0, .y = dy, .hn = dhn, .cn = dcn, .du = du,
					    .dh0 = dh0, .dc0 = dc0, .backward = true}, opts);
}
