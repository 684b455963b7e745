/*
 * plan.c - quaternion convolutions, by routes of the device or as GEMM with patches (im2col)
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * "big" and "small" are the input and the output of the convolution, or if it is transposed the
 * output and the input. The gradient of a strided convolution is a sum over phases: pixels of big
 * with equal coordinates modulo the strides. Each phase is a convolution of stride 1 with the taps
 * that reach it, so that every pixel is written once, by one sum.
 */
#include <config.h>

#include <string.h>

#include "lib/quat_conv/quat_conv.h"
#include "lib/quat_layer/plan.h"

/* Weights, one matrix per group: rows are output channels, columns taps and input channels */
struct weights {
	struct hzi_quat_array a;
	int64_t group, row, col;	/* strides */
	int64_t taps[3], out, in;	/* channels of a group */
	bool conj;
};

/*
 * The window: output u and tap t read input step * u + each * t + base; see struct
 * hzi_quat_patch_step.
 */
struct window {
	int64_t step[3], each[3], base[3];
};

static int64_t product3(const int64_t *v)
{
	return v[0] * v[1] * v[2];
}

/*
 * Pixels of an array as the rows or columns of a matrix: patches (im2col) in scratch memory, or the
 * array itself where one tap reads each pixel
 */
struct pixels {
	const struct hzi_quat_tensor *t;
	int64_t groups, channels;	/* channels of a group */
	int64_t count[3], taps[3];
	struct window window;
	bool direct;			/* the array itself, without patches */
	int64_t pixel;			/* direct: the stride of pixels */
	void *scratch;
};

static struct pixels pixels_of(const struct hzi_quat_tensor *t, int64_t groups,
			       const int64_t *count, const int64_t *taps,
			       const struct window *window)
{
	struct pixels p = {.t = t, .groups = groups, .channels = t->shape[4] / groups,
			   .window = *window};
	const struct hzi_quat_merged j = hzi_quat_merge(4, t->shape, &t->a, NULL, NULL);

	memcpy(p.count, count, sizeof(p.count));
	memcpy(p.taps, taps, sizeof(p.taps));
	p.direct = j.n == 1;
	p.pixel = j.stride[0][0];
	for (int d = 0; d < 3; d++)
		p.direct &= taps[d] == 1 && window->base[d] == 0 && count[d] == t->shape[1 + d] &&
			    (count[d] == 1 || window->step[d] == 1);
	return p;
}

static int64_t pixels_columns(const struct pixels *p)
{
	return product3(p->taps) * p->channels;
}

static void describe_patches(const struct pixels *p, struct hzi_quat_patch_step *a)
{
	memcpy(a->size, p->t->shape + 1, sizeof(a->size));
	memcpy(a->count, p->count, sizeof(a->count));
	memcpy(a->taps, p->taps, sizeof(a->taps));
	memcpy(a->step, p->window.step, sizeof(a->step));
	memcpy(a->each, p->window.each, sizeof(a->each));
	memcpy(a->base, p->window.base, sizeof(a->base));
}

/*
 * The matrix of `rows` pixels from `first` on. *view is that of group 0, with pixels as its columns
 * if `columns`, else as its rows; *group is the stride of groups.
 */
static int pixels_matrix(struct hzi_quat_plan *r, const struct pixels *p, int64_t first,
			 int64_t rows, bool columns, struct hzi_quat_view *view, int64_t *group)
{
	const int64_t k = pixels_columns(p);
	struct hzi_quat_patch_step a = {
		.x = p->t->a, .out = p->scratch, .first = first, .rows = rows,
		.groups = p->groups, .channels = p->channels,
	};
	int64_t pixel = p->pixel, channel = p->t->a.stride[4];

	if (p->direct) {
		*group = p->channels * channel;
		*view = hzi_quat_array_matrix(&p->t->a, first * pixel, columns ? channel : pixel,
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
	return r->dry || k == 0 ? HZ_OK : r->conv->patch(r->ctx, r->op, &a);
}

/* Pixels at a time, so that their patches fit patch_bytes; at least 256 */
static int64_t chunk_rows(const struct hzi_quat_plan *r, const struct pixels *p, int64_t rows)
{
	const int64_t row = p->groups * pixels_columns(p) * 4 *
			    (int64_t)hz_dtype_size(p->t->a.dtype);
	int64_t chunk = row ? (int64_t)r->conv->patch_bytes / row : rows;

	chunk = chunk < 256 ? 256 : chunk / 64 * 64;
	return p->direct || chunk > rows ? rows : chunk;
}

static void pixels_scratch(struct hzi_quat_plan *r, struct pixels *p, int64_t chunk)
{
	if (!p->direct)
		p->scratch =
			hzi_quat_plan_take(r, chunk * p->groups * pixels_columns(p) * 4,
					   p->t->a.dtype);
}

/* The array from a channel on */
static struct hzi_quat_array from_channel(const struct hzi_quat_array *a, int64_t channels)
{
	struct hzi_quat_array b = *a;

	if (a->data)
		b.data = (char *)a->data +
			 channels * a->stride[4] * (int64_t)hz_dtype_size(a->dtype);
	return b;
}

/* Rows and columns from which 8 real products beat 16 in a route; for a GEMM: FAST_LEAST */
#define ROUTE_FAST_LEAST 8

static void settle_conv(const struct hzi_quat_plan *r, struct hzi_quat_gemm_args *g, bool reversed)
{
	hzi_quat_plan_options(r, g, reversed);
	if (!r->l->method && !r->ctx->quat_method && g->m >= ROUTE_FAST_LEAST &&
	    g->n >= ROUTE_FAST_LEAST)
		g->method = HZ_QUAT_FAST;
}

/* ---- Routes of the device -------------------------------------------------------------------- */

union route_args {
	struct hzi_quat_conv_step conv;
	struct hzi_quat_wgrad_step weights;
};

/* Arguments of a route for a call, for that many groups from `first` on */
typedef void (*args_of)(const struct hzi_quat_plan *r, const void *call, int64_t first,
			int64_t groups, union route_args *a);

/*
 * Runs a call by a route of the device: one that takes all groups at once, else one for each group.
 * *left: the route that leaves the call to GEMM with patches; NULL: none, the call is done.
 */
static int run_route(struct hzi_quat_plan *r, const struct hzi_op_routes *routes, args_of args_of,
		     const void *call, int64_t groups, const struct hzi_route **left)
{
	const struct hzi_route *route;
	union route_args a;
	const char *why;

	*left = NULL;
	args_of(r, call, 0, groups, &a);
	route = hzi_route_pick(r->ctx, routes, &a, &why);
	if (route && route->run)
		return hzi_quat_plan_call(r, route, &a);
	for (int64_t i = 0; i < groups; i++) {
		if (groups > 1) {
			args_of(r, call, i, 1, &a);
			route = hzi_route_pick(r->ctx, routes, &a, &why);
		}
		if (!route)
			return hzi_route_refused(r->ctx, routes, why);
		if (!route->run) {
			*left = route;
			return HZ_OK;
		}
	}
	for (int64_t i = 0; i < groups; i++) {
		args_of(r, call, i, 1, &a);
		route = hzi_route_pick(r->ctx, routes, &a, &why);
		HZ_CHECK(hzi_quat_plan_call(r, route, &a));
	}
	return HZ_OK;
}

/* A convolution: out = w times the patches of its input, with bias and activation */
struct correlation {
	const struct pixels *p;
	const struct hzi_quat_tensor *out;
	const struct weights *w;
	const struct hzi_quat_array *pre;	/* NULL: none */
	bool bias;
	int activation;
};

static void conv_args_of(const struct hzi_quat_plan *r, const void *call, int64_t first,
			 int64_t groups, union route_args *args)
{
	const struct correlation *c = call;
	const struct pixels *p = c->p;
	const struct hzi_quat_tensor *out = c->out;
	const struct weights *w = c->w;
	const struct hzi_quat_layer *l = r->l;
	const struct hzi_quat_array none = {.data = NULL};
	struct hzi_quat_conv_step *const a = &args->conv;

	*a = (struct hzi_quat_conv_step){
		.op = r->op,
		.g = {.m = w->out, .n = hzi_quat_count(4, out->shape), .k = pixels_columns(p),
		      .dtype = p->t->a.dtype, .c_dtype = out->a.dtype, .conj_a = w->conj,
		      .activation = c->activation, .slope = l->slope,
		      .a = hzi_quat_array_matrix(&w->a, first * w->group, w->row, w->col)},
		.x = {.x = from_channel(&p->t->a, first * p->channels), .groups = groups,
		      .channels = p->channels},
		.y = from_channel(&out->a, first * w->out),
		.pre = c->pre ? from_channel(c->pre, first * w->out) : none,
		.images = out->shape[0], .a_group = w->group,
	};
	describe_patches(p, &a->x);
	if (c->bias)
		hzi_quat_gemm_bias(&a->g, &l->b.a, first * w->out);
	settle_conv(r, &a->g, l->reversed);
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* out = w times the patches of in, with bias and activation */
static int correlate(struct hzi_quat_plan *r, const struct hzi_quat_tensor *in,
		     const struct hzi_quat_tensor *out, int64_t groups, const struct weights *w,
		     const struct window *window, bool bias, int activation,
		     const struct hzi_quat_array *pre)
{
	const struct hzi_quat_layer *l = r->l;
	const size_t used = r->used;
	const int64_t rows = hzi_quat_count(4, out->shape);
	const bool has_pre = pre && pre->data;
	const bool has_bias = bias && l->b.a.data;
	const struct hzi_quat_merged j = hzi_quat_merge(4, out->shape, &out->a,
							has_pre ? pre : NULL, NULL);
	struct pixels p = pixels_of(in, groups, out->shape + 1, w->taps, window);
	const struct correlation call = {.p = &p, .out = out, .w = w, .pre = pre, .bias = bias,
					 .activation = activation};
	struct hzi_quat_tensor to = *out;
	int64_t pixel = j.stride[0][0], pre_pixel = j.stride[1][0], chunk;
	const struct hzi_route *left;
	int status;

	if (rows == 0 || out->shape[4] == 0)
		return HZ_OK;
	status = run_route(r, r->conv->conv, conv_args_of, &call, groups, &left);
	if (status != HZ_OK || !left)
		return status;
	chunk = chunk_rows(r, &p, rows);
	pixels_scratch(r, &p, chunk);
	if (j.n > 1) {
		/*
		 * Pixels of out have no common stride: the result goes to scratch memory, in f32
		 * before an activation so that it is rounded once, and is then copied.
		 */
		const int dtype = activation == HZ_ACT_NONE ? out->a.dtype :
							      hzi_quat_sum_dtype(out->a.dtype);

		to = hzi_quat_plan_tensor(r, dtype, 5, out->shape);
		pixel = to.a.stride[3];
	}
	for (int64_t first = 0; first < rows && status == HZ_OK;
	     first = hzi_quat_plan_next(r, first, chunk, rows)) {
		const int64_t n = rows - first < chunk ? rows - first : chunk;
		struct hzi_quat_gemm_args g = {
			.m = w->out, .k = pixels_columns(&p), .n = n, .dtype = in->a.dtype,
			.c_dtype = to.a.dtype, .conj_a = w->conj,
			.activation = j.n > 1 ? HZ_ACT_NONE : activation, .slope = l->slope,
		};
		int64_t b_group;

		g.a = hzi_quat_array_matrix(&w->a, 0, w->row, w->col);
		g.c = hzi_quat_array_matrix(&to.a, first * pixel, to.a.stride[4], pixel);
		if (has_pre && j.n == 1)
			g.pre = hzi_quat_array_matrix(pre, first * pre_pixel, pre->stride[4],
						      pre_pixel);
		status = pixels_matrix(r, &p, first, n, true, &g.b, &b_group);
		if (status == HZ_OK && (groups == 1 || !has_bias)) {
			g.ndim = groups > 1;
			g.shape[0] = groups;
			g.a_stride[0] = w->group;
			g.b_stride[0] = b_group;
			g.c_stride[0] = w->out * to.a.stride[4];
			g.pre_stride[0] = has_pre ? w->out * pre->stride[4] : 0;
			if (has_bias)
				hzi_quat_gemm_bias(&g, &l->b.a, 0);
			status = hzi_quat_plan_multiply(r, &g, l->reversed);
			continue;
		}
		for (int64_t i = 0; i < groups && status == HZ_OK; i++) {
			const int64_t c = i * w->out;
			const int64_t size = (int64_t)hz_dtype_size(in->a.dtype);
			struct hzi_quat_gemm_args one = g;

			one.a = hzi_quat_array_matrix(&w->a, i * w->group, w->row, w->col);
			one.b.data = (char *)g.b.data + i * b_group * size;
			one.c = hzi_quat_array_matrix(&to.a, first * pixel + c * to.a.stride[4],
						      to.a.stride[4], pixel);
			if (g.pre.data)
				one.pre = hzi_quat_array_matrix(
					pre, first * pre_pixel + c * pre->stride[4], pre->stride[4],
					pre_pixel);
			hzi_quat_gemm_bias(&one, &l->b.a, c);
			status = hzi_quat_plan_multiply(r, &one, l->reversed);
		}
	}
	if (status == HZ_OK && j.n > 1) {
		struct hzi_quat_map_step m = hzi_quat_map_args(HZI_QUAT_MAP_ACT, out, &to.a, NULL,
							       has_pre ? pre : NULL, false);

		m.activation = activation;
		m.slope = l->slope;
		status = hzi_quat_plan_map(r, &m);
	}
	r->used = used;
	if (!r->dry)
		r->ctx->route = left->name;
	return status;
}

/* small = the convolution of big */
static int conv_forward(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
			const struct hzi_quat_tensor *big, const struct hzi_quat_tensor *small,
			bool conj, bool bias, int activation, const struct hzi_quat_array *pre)
{
	const struct hzi_quat_tensor *w = &r->l->w;
	const struct hzi_quat_array steps = {.stride = {w->a.stride[1], w->a.stride[2],
							w->a.stride[3], w->a.stride[4]}};
	const struct hzi_quat_merged j = hzi_quat_merge(4, w->shape + 1, &steps, NULL, NULL);
	const size_t used = r->used;
	struct weights v = {.a = w->a, .row = w->a.stride[0], .col = j.stride[0][0],
			    .out = w->shape[0] / a->groups, .in = w->shape[4], .conj = conj};
	struct window window;
	int status = HZ_OK;

	for (int d = 0; d < 3; d++) {
		window.step[d] = a->stride[d];
		window.each[d] = a->dilation[d];
		window.base[d] = -a->pad[d];
		v.taps[d] = w->shape[1 + d];
	}
	if (j.n > 1) {
		const struct hzi_quat_tensor to =
			hzi_quat_plan_tensor(r, w->a.dtype, 5, w->shape);

		status = hzi_quat_plan_copy(r, &w->a, &to, false);
		v.a = to.a;
		v.row = to.a.stride[0];
		v.col = 4;
	}
	v.group = v.out * v.row;
	if (status == HZ_OK)
		status = correlate(r, big, small, a->groups, &v, &window, bias, activation, pre);
	r->used = used;
	return status;
}

static int64_t gcd(int64_t a, int64_t b)
{
	while (b) {
		const int64_t left = a % b;

		a = b;
		b = left;
	}
	return a;
}

/*
 * One phase along one dimension: pixels phase + stride * u of big. Taps first, first + each, ...
 * reach it: those for which stride divides phase + pad - tap * dilation.
 */
struct phase {
	int64_t count;			/* of u */
	int64_t first, each, taps;
	int64_t base, back;		/* tap number i reads pixel u + base - back * i of small */
};

static struct phase phase_of(int64_t phase, int64_t size, int64_t stride, int64_t dilation,
			     int64_t pad, int64_t taps)
{
	struct phase c = {.count = phase < size ? (size - phase + stride - 1) / stride : 0};

	c.each = stride / gcd(stride, dilation);
	c.back = c.each * dilation / stride;
	for (int64_t t = 0; t < c.each && t < taps; t++) {
		if ((phase + pad - t * dilation) % stride)
			continue;
		c.first = t;
		c.taps = (taps - 1 - t) / c.each + 1;
		c.base = (phase + pad - t * dilation) / stride;
		break;
	}
	return c;
}

/* Whether no tap reaches some pixels of big, and big is contiguous, so that one call clears it */
static bool has_empty_phases(const struct hzi_quat_conv_args *a, const struct hzi_quat_tensor *big,
			      const struct hzi_quat_tensor *w)
{
	int64_t stride = 4;
	bool empty = false;

	for (int d = 4; d >= 0; stride *= big->shape[d--]) {
		if (big->shape[d] > 1 && big->a.stride[d] != stride)
			return false;
	}
	for (int c = 0; c < 4; c++) {
		if (big->a.comp[c] < 0 || big->a.comp[c] > 3)
			return false;
	}
	for (int d = 0; d < 3; d++) {
		for (int64_t i = 0; i < a->stride[d] && i < big->shape[1 + d]; i++)
			empty |= phase_of(i, big->shape[1 + d], a->stride[d], a->dilation[d],
					  a->pad[d], w->shape[1 + d]).taps == 0;
	}
	return empty;
}

/* big = the adjoint (conj) or the transpose of the convolution, of small */
static int conv_adjoint(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
			const struct hzi_quat_tensor *small, const struct hzi_quat_tensor *big,
			bool conj, bool bias, int activation, const struct hzi_quat_array *pre)
{
	const struct hzi_quat_tensor *w = &r->l->w;
	const int64_t out = w->shape[4], in = w->shape[0] / a->groups;
	const int64_t size = (int64_t)hz_dtype_size(w->a.dtype);
	const size_t used = r->used;
	int64_t phases[3], all;
	int status = HZ_OK;
	bool empty;

	/* A stride may exceed the size. */
	for (int d = 0; d < 3; d++)
		phases[d] = a->stride[d] < big->shape[1 + d] ? a->stride[d] : big->shape[1 + d];
	all = product3(phases);
	empty = !(bias && r->l->b.a.data) && activation == HZ_ACT_NONE && !(pre && pre->data) &&
		has_empty_phases(a, big, w);
	if (empty)
		HZ_CHECK(hzi_quat_plan_clear(r, big->a.data, 4 * hzi_quat_count(5, big->shape),
					     big->a.dtype));
	for (int64_t i = 0; i < all && status == HZ_OK; i++) {
		const int64_t at[3] = {i / phases[2] / phases[1], i / phases[2] % phases[1],
				       i % phases[2]};
		struct hzi_quat_tensor part = *big, seen;
		struct hzi_quat_array part_pre = {.data = NULL}, from = w->a;
		struct weights v = {.out = out, .in = in, .conj = conj};
		struct window window;
		int64_t offset = 0, pre_offset = 0;

		if (pre)
			part_pre = *pre;
		seen = hzi_quat_contiguous(NULL, w->a.dtype, 6,
					   (int64_t[]){a->groups, out, 1, 1, 1, in});
		from.stride[0] = in * w->a.stride[0];
		from.stride[1] = w->a.stride[4];
		from.stride[5] = w->a.stride[0];
		for (int d = 0; d < 3; d++) {
			const struct phase c = phase_of(at[d], big->shape[1 + d], a->stride[d],
							a->dilation[d], a->pad[d], w->shape[1 + d]);

			offset += at[d] * big->a.stride[1 + d];
			pre_offset += at[d] * part_pre.stride[1 + d];
			part.shape[1 + d] = c.count;
			part.a.stride[1 + d] *= c.count > 1 ? a->stride[d] : 1;
			part_pre.stride[1 + d] *= c.count > 1 ? a->stride[d] : 1;
			v.taps[d] = seen.shape[2 + d] = c.taps;
			from.data = (char *)from.data + c.first * w->a.stride[1 + d] * size;
			from.stride[2 + d] = c.each * w->a.stride[1 + d];
			window.step[d] = 1;
			window.each[d] = -c.back;
			window.base[d] = c.base;
		}
		part.a.data = (char *)part.a.data + offset * (int64_t)hz_dtype_size(big->a.dtype);
		if (part_pre.data)
			part_pre.data = (char *)part_pre.data +
					pre_offset * (int64_t)hz_dtype_size(big->a.dtype);
		if (hzi_quat_count(5, part.shape) == 0 || (empty && product3(v.taps) == 0))
			continue;
		if (product3(v.taps) == 1) {
			v.a = from;
			v.group = from.stride[0];
			v.row = from.stride[1];
			v.col = from.stride[5];
		} else {
			seen = hzi_quat_plan_tensor(r, w->a.dtype, 6, seen.shape);
			status = hzi_quat_plan_copy(r, &from, &seen, false);
			v.a = seen.a;
			v.group = seen.a.stride[0];
			v.row = seen.a.stride[1];
			v.col = 4;
		}
		if (status == HZ_OK)
			status = correlate(r, small, &part, a->groups, &v, &window, bias,
					   activation, &part_pre);
		r->used = used;
	}
	return status;
}

/* ---- The gradient of w ----------------------------------------------------------------------- */

/* Sums over pixels of s, from small, times patches p of big; reversed: the factors swapped */
struct weights_call {
	const struct pixels *s, *p;
	const struct hzi_quat_tensor *sum;
	bool conj_small, reversed;
};

static void weights_args_of(const struct hzi_quat_plan *r, const void *call, int64_t first,
			    int64_t groups, union route_args *args)
{
	const struct weights_call *c = call;
	const struct pixels *s = c->s, *p = c->p;
	const int64_t images = s->t->shape[0], k = pixels_columns(p);
	const int64_t size = (int64_t)hz_dtype_size(c->sum->a.dtype);
	struct hzi_quat_wgrad_step *const a = &args->weights;

	*a = (struct hzi_quat_wgrad_step){
		.op = r->op,
		.g = {.m = s->channels, .n = k, .k = images * product3(s->count),
		      .dtype = p->t->a.dtype, .c_dtype = c->sum->a.dtype,
		      .conj_a = c->conj_small, .conj_b = !c->conj_small},
		.x = {.x = from_channel(&p->t->a, first * p->channels), .groups = groups,
		      .channels = p->channels},
		.small = from_channel(&s->t->a, first * s->channels), .images = images,
		.sum = (char *)c->sum->a.data + first * s->channels * k * 4 * size,
	};
	describe_patches(p, &a->x);
	settle_conv(r, &a->g, c->reversed);
}

/*
 * dw = the sum over pixels of small times patches of big, one of the factors conjugated. flip: the
 * factors in the other order.
 */
static int conv_weights(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
			const struct hzi_quat_tensor *big, const struct hzi_quat_tensor *small,
			bool conj_small, bool flip)
{
	const struct hzi_quat_layer *l = r->l;
	const struct hzi_quat_tensor *dw = &l->dw;
	const int dtype = hzi_quat_sum_dtype(big->a.dtype);
	const int64_t rows = hzi_quat_count(4, small->shape), ones[3] = {1, 1, 1};
	const struct window here = {.step = {1, 1, 1}};
	struct window window;
	struct pixels p, s = pixels_of(small, a->groups, small->shape + 1, ones, &here);
	struct hzi_quat_tensor sum;
	const struct weights_call call = {.s = &s, .p = &p, .sum = &sum, .conj_small = conj_small,
					  .reversed = flip != l->reversed};
	int64_t chunk, k, splits, part;
	const struct hzi_route *left;
	void *parts = NULL;

	if (hzi_quat_count(5, dw->shape) == 0)
		return HZ_OK;
	for (int d = 0; d < 3; d++) {
		window.step[d] = a->stride[d];
		window.each[d] = a->dilation[d];
		window.base[d] = -a->pad[d];
	}
	p = pixels_of(big, a->groups, small->shape + 1, dw->shape + 1, &window);
	k = pixels_columns(&p);
	chunk = chunk_rows(r, &p, rows);
	part = hzi_quat_count(5, dw->shape) * 4;
	sum = hzi_quat_plan_tensor(r, dtype, 5, dw->shape);
	HZ_CHECK(run_route(r, r->conv->weights, weights_args_of, &call, a->groups, &left));
	if (!left)
		return hzi_quat_plan_copy(r, &sum.a, dw, l->accumulate);
	splits = hzi_quat_plan_splits(r, s.channels, k * a->groups, chunk);
	if (splits > 1) {
		parts = hzi_quat_plan_take(r, splits * part, dtype);
		HZ_CHECK(hzi_quat_plan_clear(r, parts, splits * part, dtype));
	}
	pixels_scratch(r, &p, chunk);
	pixels_scratch(r, &s, chunk);
	/* Without pixels, one empty product writes zeros. */
	for (int64_t first = 0; first == 0 || first < rows;
	     first = hzi_quat_plan_next(r, first, chunk, rows)) {
		struct hzi_quat_gemm_args g = {
			.m = s.channels, .n = k, .k = rows - first < chunk ? rows - first : chunk,
			.dtype = big->a.dtype, .c_dtype = dtype, .conj_a = conj_small,
			.conj_b = !conj_small, .beta = first > 0, .ndim = a->groups > 1,
			.shape = {a->groups}, .c_stride = {s.channels * k * 4},
			.c = hzi_quat_array_matrix(&sum.a, 0, 4 * k, 4),
		};

		HZ_CHECK(pixels_matrix(r, &s, first, g.k, true, &g.a, &g.a_stride[0]));
		HZ_CHECK(pixels_matrix(r, &p, first, g.k, false, &g.b, &g.b_stride[0]));
		if (parts) {
			g.beta = 1;
			g.c.data = parts;
			HZ_CHECK(hzi_quat_plan_multiply_split(r, &g, splits, part, call.reversed));
		} else {
			HZ_CHECK(hzi_quat_plan_multiply(r, &g, call.reversed));
		}
		if (rows == 0)
			break;
	}
	if (parts)
		HZ_CHECK(hzi_quat_plan_sum_parts(r, parts, splits, &sum));
	if (!r->dry)
		r->ctx->route = left->name;
	return hzi_quat_plan_copy(r, &sum.a, dw, l->accumulate);
}

/* Most quaternions that pack_input() copies: a broadcast array may have any number */
#define PACK_MOST ((int64_t)1 << 26)

/*
 * Replaces an array by a copy with contiguous channels, if the device needs that for fast patches.
 */
static int pack_input(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
		      struct hzi_quat_tensor *t)
{
	const struct hzi_quat_array from = t->a;

	if (!r->conv->packs || (from.whole && from.stride[4] == 4) || from.dtype == HZ_F64 ||
	    hzi_quat_count(5, t->shape) > PACK_MOST ||
	    (product3(r->l->w.shape + 1) == 1 && a->groups == 1))
		return HZ_OK;
	*t = hzi_quat_plan_tensor(r, from.dtype, 5, t->shape);
	return hzi_quat_plan_copy(r, &from, t, false);
}

/* data, which a recorded call only has as a placeholder, some bytes on */
static void *moved(const void *data, int64_t bytes)
{
	return (void *)((uintptr_t)data + (uintptr_t)bytes);
}

/* ---- Reflection at the ends ------------------------------------------------------------------ */

/*
 * What reflection copies along dimension d at one end of t, which is padded there: *to = *from.
 * Dimensions before d are padded already.
 */
static void reflected(const struct hzi_quat_conv_args *a, const struct hzi_quat_tensor *t, int d,
		      bool end, struct hzi_quat_tensor *to, struct hzi_quat_tensor *from)
{
	const int64_t bytes = (int64_t)hz_dtype_size(t->a.dtype), size = t->shape[1 + d];
	int64_t at = 0;

	*to = *from = *t;
	for (int e = d; e < 3; e++) {
		to->shape[1 + e] = e == d ? a->pad[e] : t->shape[1 + e] - 2 * a->pad[e];
		from->shape[1 + e] = to->shape[1 + e];
		at += e == d ? 0 : a->pad[e] * t->a.stride[1 + e];
	}
	/* From the last inner elements outwards */
	to->a.data = moved(t->a.data, bytes * (at + t->a.stride[1 + d] *
					       (end ? size - a->pad[d] : a->pad[d] - 1)));
	from->a.data = moved(t->a.data, bytes * (at + t->a.stride[1 + d] *
						 (end ? size - a->pad[d] - 2 : a->pad[d] + 1)));
	(end ? from : to)->a.stride[1 + d] *= -1;
}

/* The elements of a padded tensor that are not padding */
static struct hzi_quat_tensor inside(const struct hzi_quat_conv_args *a,
				     const struct hzi_quat_tensor *t)
{
	struct hzi_quat_tensor in = *t;
	int64_t at = 0;

	for (int d = 0; d < 3; d++) {
		in.shape[1 + d] -= 2 * a->pad[d];
		at += a->pad[d] * t->a.stride[1 + d];
	}
	in.a.data = (char *)t->a.data + at * (int64_t)hz_dtype_size(t->a.dtype);
	return in;
}

static struct hzi_quat_tensor padded(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
				     const struct hzi_quat_tensor *t)
{
	int64_t shape[5];

	memcpy(shape, t->shape, sizeof(shape));
	for (int d = 0; d < 3; d++)
		shape[1 + d] += 2 * a->pad[d];
	return hzi_quat_plan_tensor(r, t->a.dtype, 5, shape);
}

/* Replaces t by a copy that is padded by what it reflects. */
static int reflect(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
		   struct hzi_quat_tensor *t)
{
	const struct hzi_quat_array old = t->a;
	struct hzi_quat_tensor to, from;

	*t = padded(r, a, t);
	to = inside(a, t);
	HZ_CHECK(hzi_quat_plan_copy(r, &old, &to, false));
	for (int i = 0; i < 6; i++) {
		reflected(a, t, i / 2, i % 2, &to, &from);
		HZ_CHECK(hzi_quat_plan_copy(r, &from.a, &to, false));
	}
	return HZ_OK;
}

/* dx = the gradient of x from that of the padded x, which is overwritten */
static int reflect_bwd(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
		       const struct hzi_quat_tensor *t, const struct hzi_quat_tensor *dx)
{
	struct hzi_quat_tensor to, from;

	for (int i = 5; i >= 0; i--) {
		reflected(a, t, i / 2, i % 2, &to, &from);
		HZ_CHECK(hzi_quat_plan_copy(r, &to.a, &from, true));
	}
	from = inside(a, t);
	return hzi_quat_plan_copy(r, &from.a, dx, false);
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/*
 * Weights that rotate vectors: a convolution of real channels, three for each of quaternions. The
 * real part of a weight is a number of a matrix. The components of an element are that channel of
 * images 4 i to 4 i + 3, 0 beyond the last image.
 */
struct rotated {
	struct hzi_quat_conv_args real;
	struct hzi_quat_rotation_step step;
};

static struct hzi_quat_tensor channels3(struct hzi_quat_plan *r, const struct hzi_quat_tensor *t)
{
	const int64_t shape[5] = {(t->shape[0] + 3) / 4, t->shape[1], t->shape[2], t->shape[3],
				  3 * t->shape[4]};

	return hzi_quat_plan_tensor(r, hzi_quat_sum_dtype(t->a.dtype), 5, shape);
}

/* Images c, c + 4, ... of t */
static struct hzi_quat_tensor images_from(const struct hzi_quat_tensor *t, int c)
{
	struct hzi_quat_tensor own = *t;

	own.shape[0] = (t->shape[0] - c + 3) / 4;
	own.a.data = (char *)t->a.data + c * t->a.stride[0] * (int64_t)hz_dtype_size(t->a.dtype);
	own.a.stride[0] *= 4;
	return own;
}

/* The vectors of these images in channels3(t); the real part is any element. */
static struct hzi_quat_array vectors_from(const struct hzi_quat_tensor *v, int c)
{
	struct hzi_quat_array own = v->a;

	own.stride[4] *= 3;
	own.whole = 0;
	for (int k = 0; k < 4; k++)
		own.comp[k] = c + (k ? 4 * (k - 1) : 0);
	return own;
}

static int gather_images(struct hzi_quat_plan *r, const struct hzi_quat_tensor *t,
			 struct hzi_quat_tensor *to)
{
	*to = channels3(r, t);
	if (t->shape[0] % 4)
		HZ_CHECK(hzi_quat_plan_clear(r, to->a.data, 4 * hzi_quat_count(5, to->shape),
					     to->a.dtype));
	for (int c = 0; c < 4; c++) {
		const struct hzi_quat_tensor from = images_from(t, c);
		struct hzi_quat_tensor own = from;
		struct hzi_quat_map_step m;

		own.a = vectors_from(to, c);
		m = hzi_quat_map_args(HZI_QUAT_MAP_COPY, &own, &from.a, NULL, NULL, false);
		m.pure = 2;
		HZ_CHECK(hzi_quat_plan_map(r, &m));
	}
	return HZ_OK;
}

/* y = act(the vectors of from + b), with a real part of 0 before the bias; pre gets its input. */
static int scatter_images(struct hzi_quat_plan *r, const struct hzi_quat_tensor *from,
			  const struct hzi_quat_tensor *y, const struct hzi_quat_tensor *b,
			  int activation, const struct hzi_quat_array *pre)
{
	struct hzi_quat_array bias = {.data = NULL};

	if (b && b->a.data) {
		bias = b->a;
		memset(bias.stride, 0, sizeof(bias.stride));
		bias.stride[4] = b->a.stride[0];
	}
	for (int c = 0; c < 4; c++) {
		const struct hzi_quat_tensor to = images_from(y, c);
		const struct hzi_quat_array sums = vectors_from(from, c);
		struct hzi_quat_tensor own_pre = *y;
		struct hzi_quat_map_step m;

		if (pre && pre->data) {
			own_pre.a = *pre;
			own_pre = images_from(&own_pre, c);
		}
		m = hzi_quat_map_args(HZI_QUAT_MAP_ACT, &to, &sums, &bias,
				      pre && pre->data ? &own_pre.a : NULL, false);
		m.pure = 1;
		m.activation = activation;
		m.slope = r->l->slope;
		HZ_CHECK(hzi_quat_plan_map(r, &m));
	}
	return HZ_OK;
}

/* An array of weights as rows of contiguous or evenly spaced ones; false if they are not */
static bool weight_rows(const struct hzi_quat_tensor *w, struct hzi_quat_array *rows)
{
	const struct hzi_quat_array steps = {.stride = {w->a.stride[1], w->a.stride[2],
							w->a.stride[3], w->a.stride[4]}};
	const struct hzi_quat_merged j = hzi_quat_merge(4, w->shape + 1, &steps, NULL, NULL);

	*rows = w->a;
	rows->stride[1] = j.stride[0][0];
	return j.n == 1;
}

static int rotated_begin(struct hzi_quat_plan *r, const struct hzi_quat_conv_args *a,
			 struct rotated *s)
{
	const struct hzi_quat_layer *l = r->l;
	const struct hzi_quat_tensor *w = &l->w;
	const int64_t shape[5] = {3 * w->shape[0], w->shape[1], w->shape[2], w->shape[3],
				  3 * w->shape[4]};
	const int64_t m = product3(w->shape + 1) * w->shape[4];
	struct hzi_quat_array rows;

	*s = (struct rotated){.real = *a};
	s->real.l = (struct hzi_quat_layer){.method = l->method, .precision = l->precision};
	if (!weight_rows(w, &rows)) {
		const struct hzi_quat_tensor to =
			hzi_quat_plan_tensor(r, w->a.dtype, 5, w->shape);

		HZ_CHECK(hzi_quat_plan_copy(r, &w->a, &to, false));
		weight_rows(&to, &rows);
	}
	s->real.l.w = hzi_quat_plan_tensor(r, hzi_quat_sum_dtype(w->a.dtype), 5, shape);
	HZ_CHECK(hzi_quat_plan_clear(r, s->real.l.w.a.data, 36 * w->shape[0] * m,
				     s->real.l.w.a.dtype));
	s->step = hzi_quat_plan_rotation(r, &a->rotation, w->shape[0], m, 3 * m,
					 s->real.l.w.a.data);
	s->step.q = rows;
	s->step.r_step = 4;
	/* The adjoint has transposed matrices, of the inverse rotations. */
	s->step.inverse ^= a->transposed && !a->conj;
	return r->dry || w->shape[0] * m == 0 ? HZ_OK :
	       r->steps->rotation(r->ctx, r->op, &s->step, false);
}

/* to = the convolution of from, or its adjoint, of real channels */
static int rotated_apply(struct hzi_quat_plan *r, struct rotated *s, bool adjoint,
			 const struct hzi_quat_tensor *from, const struct hzi_quat_tensor *to)
{
	const struct hzi_quat_layer *const l = r->l;
	int status;

	r->l = &s->real.l;
	status = adjoint ? conv_adjoint(r, &s->real, from, to, false, false, HZ_ACT_NONE, NULL) :
			   conv_forward(r, &s->real, from, to, false, false, HZ_ACT_NONE, NULL);
	r->l = l;
	return status;
}

static int rotated_forward(struct hzi_quat_plan *r, struct rotated *s,
			   const struct hzi_quat_tensor *y, int activation,
			   const struct hzi_quat_array *pre)
{
	const size_t used = r->used;
	struct hzi_quat_tensor x, sums;

	HZ_CHECK(gather_images(r, &r->l->x, &x));
	sums = channels3(r, y);
	HZ_CHECK(rotated_apply(r, s, s->real.transposed, &x, &sums));
	HZ_CHECK(scatter_images(r, &sums, y, &r->l->b, activation, pre));
	r->used = used;
	return HZ_OK;
}

static int rotated_backward(struct hzi_quat_plan *r, struct rotated *s,
			    const struct hzi_quat_tensor *z)
{
	const struct hzi_quat_layer *const l = r->l;
	const bool transposed = s->real.transposed;
	struct hzi_quat_tensor dz, x, dw = l->dw;
	bool copied;
	int status;

	HZ_CHECK(gather_images(r, z, &dz));
	if (l->dx.a.data) {
		const size_t used = r->used;

		x = channels3(r, &l->dx);
		HZ_CHECK(rotated_apply(r, s, !transposed, &dz, &x));
		HZ_CHECK(scatter_images(r, &x, &l->dx, NULL, HZ_ACT_NONE, NULL));
		r->used = used;
	}
	if (!dw.a.data && !s->step.dscale)
		return HZ_OK;
	HZ_CHECK(gather_images(r, &l->x, &x));
	/* The gradient of the matrices, in the memory of the matrices */
	s->real.l.dw = s->real.l.w;
	r->l = &s->real.l;
	status = transposed ? conv_weights(r, &s->real, &dz, &x, false, false) :
			      conv_weights(r, &s->real, &x, &dz, false, false);
	r->l = l;
	HZ_CHECK(status);
	copied = dw.a.data && !weight_rows(&l->dw, &s->step.dq);
	if (copied) {
		dw = hzi_quat_plan_tensor(r, dw.a.dtype, 5, dw.shape);
		weight_rows(&dw, &s->step.dq);
		if (l->accumulate)
			HZ_CHECK(hzi_quat_plan_copy(r, &l->dw.a, &dw, false));
	}
	s->step.accumulate = l->accumulate;
	if (!r->dry && s->step.n * s->step.m > 0)
		HZ_CHECK(r->steps->rotation(r->ctx, r->op, &s->step, true));
	return copied ? hzi_quat_plan_copy(r, &dw.a, &l->dw, false) : HZ_OK;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* A call; rotated: of rotations */
struct conv_call {
	const struct hzi_quat_conv_args *a;
	struct rotated *rotated;
};

static int conv_input(struct hzi_quat_plan *r, const void *args, const struct hzi_quat_tensor *y)
{
	const struct conv_call *c = args;
	const struct hzi_quat_conv_args *a = c->a;
	const struct hzi_quat_tensor *x = &r->l->x;

	if (c->rotated)
		return rotated_forward(r, c->rotated, y, HZ_ACT_NONE, NULL);
	return a->transposed ?
		conv_adjoint(r, a, x, y, a->conj, true, HZ_ACT_NONE, NULL) :
		conv_forward(r, a, x, y, false, true, HZ_ACT_NONE, NULL);
}

static int conv_backward(struct hzi_quat_plan *r, const struct conv_call *c)
{
	const struct hzi_quat_conv_args *a = c->a;
	const struct hzi_quat_layer *l = r->l;
	struct hzi_quat_tensor z;

	HZ_CHECK(hzi_quat_plan_act_gradient(r, &z, conv_input, c));
	if (l->db.a.data)
		HZ_CHECK(hzi_quat_plan_bias_gradient(r, &z, &l->db));
	if (c->rotated)
		return rotated_backward(r, c->rotated, &z);
	if (l->dx.a.data || l->dw.a.data)
		HZ_CHECK(pack_input(r, a, &z));
	if (l->dx.a.data && a->transposed)
		HZ_CHECK(conv_forward(r, a, &z, &l->dx, !a->conj, false, HZ_ACT_NONE, NULL));
	if (l->dx.a.data && !a->transposed)
		HZ_CHECK(conv_adjoint(r, a, &z, &l->dx, true, false, HZ_ACT_NONE, NULL));
	if (!l->dw.a.data)
		return HZ_OK;
	/* The gradient of y = conj(w) x is x conj(dy), that of y = w x is dy conj(x). */
	if (a->transposed)
		return conv_weights(r, a, &z, &l->x, !a->conj, !a->conj);
	return conv_weights(r, a, &l->x, &z, false, false);
}

int hzi_quat_conv_do(struct hz_context *ctx, const struct hzi_quat_conv_steps *steps,
		     const struct hzi_quat_conv_args *a, bool backward, size_t *bytes)
{
	struct hzi_quat_conv_args own = *a;
	struct hzi_quat_layer *const l = &own.l;
	struct hzi_quat_plan r = hzi_quat_plan_begin(ctx, steps->layer, l,
						     backward ? "quat_conv_bwd" : "quat_conv",
						     bytes != NULL);
	struct conv_call call = {.a = &own};
	struct rotated rotated;
	int status;
	size_t unused;

	r.conv = steps;
	/* A dry run finds out whether a product is unsupported, before anything is written. */
	if (!bytes && hzi_quat_plan_may_refuse(steps->layer, l))
		HZ_CHECK(hzi_quat_conv_do(ctx, steps, a, backward, &unused));
	if (!backward || l->dw.a.data || a->rotation.dscale ||
	    (l->activation != HZ_ACT_NONE && !l->pre.a.data))
		HZ_CHECK(a->reflect ? reflect(&r, a, &l->x) :
			 a->rotation.rotate ? HZ_OK : pack_input(&r, a, &l->x));
	if (a->reflect) {
		if (l->dx.a.data)
			l->dx = padded(&r, a, &l->dx);
		memset(own.pad, 0, sizeof(own.pad));
	}
	if (a->rotation.rotate) {
		HZ_CHECK(rotated_begin(&r, &own, &rotated));
		call.rotated = &rotated;
	}
	if (backward)
		status = conv_backward(&r, &call);
	else if (call.rotated)
		status = rotated_forward(&r, &rotated, &l->y, l->activation, &l->pre.a);
	else if (a->transposed)
		status = conv_adjoint(&r, a, &l->x, &l->y, a->conj, true, l->activation, &l->pre.a);
	else
		status = conv_forward(&r, &own, &l->x, &l->y, false, true, l->activation,
				      &l->pre.a);
	if (status == HZ_OK && a->reflect && l->dx.a.data)
		status = reflect_bwd(&r, a, &l->dx, &a->l.dx);
	if (bytes)
		*bytes = r.peak;
	return status;
}
