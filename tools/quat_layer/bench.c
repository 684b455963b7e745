/*
 * bench.c - hurwitz bench of quaternion layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Linear layers and convolutions are measured against the quaternion matrix products that they
 * consist of, for a convolution with its patches already in place, and recurrent layers against the
 * products of their steps. Other layers are measured against a copy of the bytes that they move.
 * Operations are those of 16 real products per quaternion product.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench_grid.h"
#include "lib/core/internal.h"

enum kind {
	LINEAR, TRAINING, CONV, CONV_TRAINING, NORM, WHITEN, NORM_TRAINING, POOLING,
	POOLING3,			/* windows of 3 x 3, stride 1 */
	AVERAGE_TRAINING,
	DEPTHWISE,				/* depthwise convolution */
	ROTATING,				/* weights rotate vectors; the ceiling is a copy */
	LSTM, LSTM_TRAINING		/* all steps of one direction */
};

enum { QUICK = 1, GPU = 2, CPU = 4 };

static const struct row {
	enum kind kind;
	int flags, dtype;
	int64_t m, n, batch;		/* linear layers; LSTMs: neurons, steps, sequences;
					   others: images, side, channels */
} rows[] = {
	{LINEAR, GPU, HZ_F32, 4096, 4096, 8192},
	{LINEAR, GPU | QUICK, HZ_BF16, 4096, 4096, 8192},
	{TRAINING, GPU, HZ_F32, 4096, 4096, 8192},
	{TRAINING, GPU | QUICK, HZ_BF16, 4096, 4096, 8192},
	{CONV, GPU, HZ_F32, 32, 56, 64},
	{CONV, GPU | QUICK, HZ_BF16, 32, 56, 64},
	{CONV_TRAINING, GPU, HZ_F32, 32, 56, 64},
	{CONV_TRAINING, GPU | QUICK, HZ_BF16, 32, 56, 64},
	{NORM, GPU, HZ_F32, 32, 56, 64},
	{WHITEN, GPU | QUICK, HZ_F32, 32, 56, 64},
	{WHITEN, GPU, HZ_BF16, 32, 56, 64},
	{CONV, GPU, HZ_BF16, 32, 56, 30},
	{CONV, GPU, HZ_F32, 32, 56, 30},
	{NORM_TRAINING, GPU | QUICK, HZ_F32, 32, 56, 64},
	{NORM_TRAINING, GPU, HZ_BF16, 32, 56, 64},
	{POOLING, GPU | QUICK, HZ_F32, 32, 56, 64},
	{AVERAGE_TRAINING, GPU, HZ_F32, 32, 56, 64},
	{AVERAGE_TRAINING, GPU, HZ_BF16, 32, 56, 64},
	{POOLING3, GPU, HZ_F32, 32, 56, 64},
	{DEPTHWISE, GPU | QUICK, HZ_F32, 32, 56, 64},
	{DEPTHWISE, GPU, HZ_BF16, 32, 56, 64},
	{ROTATING, GPU | QUICK, HZ_F32, 32, 56, 64},
	{LSTM, GPU | QUICK, HZ_BF16, 1024, 512, 1},
	{LSTM, GPU | QUICK, HZ_BF16, 1024, 512, 32},
	{LSTM_TRAINING, GPU, HZ_BF16, 1024, 512, 32},
	{LINEAR, CPU | QUICK, HZ_F32, 512, 512, 256},
	{TRAINING, CPU | QUICK, HZ_F32, 512, 512, 256},
	{CONV, CPU | QUICK, HZ_F32, 2, 28, 32},
	{CONV_TRAINING, CPU | QUICK, HZ_F32, 2, 28, 32},
	{NORM, CPU | QUICK, HZ_F32, 8, 28, 32},
	{WHITEN, CPU, HZ_F32, 8, 28, 32},
	{NORM, CPU, HZ_BF16, 8, 28, 32},
	{NORM_TRAINING, CPU | QUICK, HZ_F32, 8, 28, 32},
	{NORM_TRAINING, CPU, HZ_BF16, 8, 28, 32},
	{POOLING, CPU | QUICK, HZ_F32, 8, 28, 32},
	{POOLING, CPU, HZ_BF16, 8, 28, 32},
	{AVERAGE_TRAINING, CPU, HZ_F32, 8, 28, 32},
	{POOLING3, CPU, HZ_F32, 8, 28, 32},
	{POOLING3, CPU, HZ_BF16, 8, 28, 32},
	{DEPTHWISE, CPU | QUICK, HZ_F32, 8, 28, 32},
	{DEPTHWISE, CPU, HZ_BF16, 8, 28, 32},
	{ROTATING, CPU, HZ_F32, 4, 28, 32},
	{LSTM, CPU | QUICK, HZ_F32, 256, 16, 1},
	{LSTM, CPU | QUICK, HZ_F32, 256, 16, 32},
	{LSTM, CPU, HZ_BF16, 256, 16, 32},
	{LSTM_TRAINING, CPU, HZ_F32, 256, 16, 32},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const struct {
	const char *op, *name;
} kinds[] = {
	[LINEAR] = {"quat_linear", ""}, [TRAINING] = {"quat_linear_bwd", " fwd+bwd"},
	[CONV] = {"quat_conv", ""}, [CONV_TRAINING] = {"quat_conv_bwd", " fwd+bwd"},
	[NORM] = {"quat_batchnorm", ""}, [WHITEN] = {"quat_batchnorm", " whitening"},
	[NORM_TRAINING] = {"quat_batchnorm_bwd", ""}, [POOLING] = {"quat_pool", ""},
	[POOLING3] = {"quat_pool", " 3x3"}, [AVERAGE_TRAINING] = {"quat_pool_bwd", " average 3x3"},
	[DEPTHWISE] = {"quat_conv", " 3x3 depthwise"},
	[ROTATING] = {"quat_conv", " 3x3 rotation"}, [LSTM] = {"quat_recurrent", " lstm"},
	[LSTM_TRAINING] = {"quat_recurrent_bwd", " lstm fwd+bwd"},
};

/* arrays of a case; PATCHES: for the ceiling of a convolution, of an LSTM a product */
enum { X, W, Y, DX, DW, DY, SAVED, PATCHES, ARRAYS };

struct layer {
	struct bench_case c;
	const struct row *row;
	hz_tensor t[ARRAYS];
	hz_quat_linear_opts linear;
	hz_quat_conv_opts conv;
	hz_quat_batchnorm_opts norm;
	hz_quat_pool_opts pool;
	hz_quat_recurrent_opts lstm;
};

static int call_layer(struct bench *b, struct bench_case *c)
{
	struct layer *l = (struct layer *)c;
	hz_tensor *t = l->t;
	hz_context *ctx = b->ctx;
	int status = HZ_OK;

	switch (l->row->kind) {
	case TRAINING:
	case LINEAR:
		status = hz_quat_linear(ctx, &t[X], &t[W], NULL, &t[Y], &l->linear);
		if (status || l->row->kind == LINEAR)
			return status;
		return hz_quat_linear_bwd(ctx, &t[X], &t[W], NULL, &t[DY], &t[DX], &t[DW], NULL,
					  &l->linear);
	case CONV_TRAINING:
	case CONV:
		status = hz_quat_conv(ctx, &t[X], &t[W], NULL, &t[Y], &l->conv);
		if (status || l->row->kind == CONV)
			return status;
		return hz_quat_conv_bwd(ctx, &t[X], &t[W], NULL, &t[DY], &t[DX], &t[DW], NULL,
					&l->conv);
	case LSTM_TRAINING:
	case LSTM:
		status = hz_quat_recurrent(ctx, &t[X], &t[W], NULL, NULL, &t[Y], NULL, NULL, &l->lstm);
		if (status || l->row->kind == LSTM)
			return status;
		return hz_quat_recurrent_bwd(ctx, &t[W], NULL, NULL, &t[DY], NULL, NULL, &t[DX],
					     &t[DW], NULL, NULL, &l->lstm);
	case NORM_TRAINING:
		return hz_quat_batchnorm_bwd(ctx, &t[X], NULL, &t[DY], &t[DX], NULL, NULL,
					     &l->norm);
	case DEPTHWISE:
	case ROTATING:
		return hz_quat_conv(ctx, &t[X], &t[W], NULL, &t[Y], &l->conv);
	case POOLING3:
	case POOLING:
		return hz_quat_pool(ctx, &t[X], &t[Y], NULL, &l->pool);
	case AVERAGE_TRAINING:
		return hz_quat_pool_bwd(ctx, NULL, &t[DY], &t[DX], &l->pool);
	default:
		return hz_quat_batchnorm(ctx, &t[X], NULL, NULL, &t[Y], &l->norm);
	}
}

/* Swaps the last two dimensions before the components. */
static hz_tensor transposed(hz_tensor t)
{
	const int64_t size = t.shape[0], stride = t.stride[0];

	t.shape[0] = t.shape[1];
	t.stride[0] = t.stride[1];
	t.shape[1] = size;
	t.stride[1] = stride;
	return t;
}

/* On the CPU: the product that the layer consists of, y = w x with columns as pixels or patches */
static void matrices(const struct layer *l, hz_tensor *x, hz_tensor *w, hz_tensor *y)
{
	const int device = l->t[X].device, dtype = l->row->dtype;
	const struct row *r = l->row;
	const bool conv = r->kind == CONV || r->kind == CONV_TRAINING;
	const int64_t pixels = conv ? r->m * r->n * r->n : r->batch;
	const int64_t in = conv ? 9 * r->batch : r->m, out = conv ? r->batch : r->n;

	*x = transposed(hz_tensor_3d(conv ? l->t[PATCHES].data : l->t[X].data, dtype, device,
				     pixels, in, 4));
	*w = hz_tensor_3d(l->t[W].data, dtype, device, out, in, 4);
	*y = transposed(hz_tensor_3d(l->t[Y].data, dtype, device, pixels, out, 4));
}

static int call_products(struct bench *b, struct bench_case *made)
{
	struct layer *l = (struct layer *)made;
	hz_quat_gemm_opts o = {.method = HZ_QUAT_FAST};
	hz_tensor x, w, y, a[3], m[3], c[3];
	const int n = l->row->kind == TRAINING || l->row->kind == CONV_TRAINING ? 3 : 1;
	int status = HZ_OK;

	matrices(l, &x, &w, &y);
	a[0] = a[1] = w;
	m[0] = x;
	c[0] = y;
	m[1] = a[2] = y;
	c[1] = m[2] = x;
	c[2] = w;
	c[2].data = l->t[DW].data;
	if (l->row->kind == TRAINING)
		c[1].data = l->t[DX].data;
	for (int i = 0; i < n && !status; i++) {
		o.op_a = i == 1 ? HZ_QUAT_H : HZ_QUAT_N;
		o.op_b = i == 2 ? HZ_QUAT_H : HZ_QUAT_N;
		status = hz_quat_gemm(b->ctx, &a[i], &m[i], &c[i], &o);
	}
	return status;
}

/* The products of all steps of an LSTM; of the gradients as many again, and that of the weights */
static int call_steps(struct bench *b, struct bench_case *made)
{
	const struct layer *l = (const struct layer *)made;
	const struct row *r = l->row;
	const int device = l->t[X].device, dtype = r->dtype;
	const hz_tensor u = hz_tensor_3d(l->t[W].data, dtype, device, 4 * r->m, r->m, 4);
	const hz_tensor h = transposed(hz_tensor_3d(l->t[Y].data, dtype, device, r->batch, r->m, 4));
	const hz_tensor all = hz_tensor_3d(l->t[DX].data, dtype, device, r->n * r->batch, 4 * r->m, 4);
	const hz_tensor hs = hz_tensor_3d(l->t[Y].data, dtype, device, r->n * r->batch, r->m, 4);
	const hz_tensor z = transposed(hz_view_slice(&all, 0, 0, r->batch));
	hz_tensor pre = transposed(hz_tensor_3d(l->t[PATCHES].data, HZ_F32, device, r->batch,
						4 * r->m, 4));
	hz_tensor dh = transposed(hz_tensor_3d(l->t[PATCHES].data, HZ_F32, device, r->batch, r->m,
					       4));
	hz_tensor du = hz_tensor_3d(l->t[DW].data, dtype, device, 4 * r->m, r->m, 4);
	const hz_quat_gemm_opts back = {.op_a = HZ_QUAT_H}, sum = {.op_a = HZ_QUAT_T,
								   .op_b = HZ_QUAT_C};
	int status = HZ_OK;

	for (int64_t i = 0; i < r->n && !status; i++)
		status = hz_quat_gemm(b->ctx, &u, &h, &pre, NULL);
	if (r->kind == LSTM)
		return status;
	for (int64_t i = 0; i < r->n && !status; i++)
		status = hz_quat_gemm(b->ctx, &u, &z, &dh, &back);
	return status ? status : hz_quat_gemm(b->ctx, &all, &hs, &du, &sum);
}

/* Reserves the workspace of all calls of a case. */
static int reserve(struct bench *b, struct layer *l)
{
	hz_tensor *t = l->t;
	size_t bytes = 0;
	int status = hz_record_begin(b->ctx);

	if (status)
		return status;
	if (l->row->kind <= CONV_TRAINING && !b->gpu)
		status = call_products(b, &l->c);
	if (l->row->kind >= LSTM)
		status = call_steps(b, &l->c);
	if (!status && l->row->kind == NORM_TRAINING)
		status = hz_quat_batchnorm(b->ctx, &t[X], NULL, NULL, &t[Y], &l->norm);
	if (!status)
		status = call_layer(b, &l->c);
	hz_record_end(b->ctx, &bytes);
	return status ? status : hz_reserve(b->ctx, bytes);
}

/* The arrays of an LSTM, and its operations: those of products, thrice for the gradients */
static void make_lstm(struct layer *l, int device)
{
	const struct row *r = l->row;
	const int64_t zs[] = {r->n, r->batch, 1, 4 * r->m, 4}, ys[] = {r->n, r->batch, 1, r->m, 4};
	const int64_t saved[] = {r->n, r->batch, 1, 5, r->m, 4};
	const bool train = r->kind == LSTM_TRAINING;
	hz_tensor *t = l->t;

	t[X] = hz_tensor_nd(NULL, r->dtype, device, 5, zs);
	t[Y] = hz_tensor_nd(NULL, r->dtype, device, 5, ys);
	t[W] = hz_tensor_4d(NULL, r->dtype, device, 1, 4 * r->m, r->m, 4);
	t[SAVED] = hz_tensor_nd(NULL, HZ_F32, device, 6, saved);
	t[PATCHES] = hz_tensor_1d(NULL, HZ_F32, device, r->batch * 16 * r->m);
	l->lstm.cell = HZ_QUAT_CELL_LSTM;
	l->lstm.saved = train ? &t[SAVED] : NULL;
	l->c.operations = (train ? 3 : 1) * 128.0 * (double)(r->m * r->m) *
			  (double)(r->n * r->batch);
	l->c.moved_bytes = (double)hz_tensor_bytes(&t[W]) * (double)r->n;
	l->c.ceiling = call_steps;
	l->c.against = "bare products";
}

static int make_case(struct bench *b, struct layer *l)
{
	const struct row *r = l->row;
	const bool linear = r->kind <= TRAINING, conv = r->kind == CONV || r->kind == CONV_TRAINING;
	const int device = hz_device(b->ctx), dtype = r->dtype;
	const int64_t side = r->kind == POOLING ? r->n / 2 : r->n;
	const int64_t xs[] = {r->m, r->n, r->n, r->batch, 4},
		      ys[] = {r->m, side, side, r->batch, 4};
	const int64_t ws[] = {r->batch, 3, 3, r->kind == DEPTHWISE ? 1 : r->batch, 4};
	const double passes = r->kind == NORM_TRAINING ? 5 : 4;	/* reads and writes of x or dy */
	hz_tensor *t = l->t;
	int status = HZ_OK;

	t[X] = linear ? hz_tensor_3d(NULL, dtype, device, r->batch, r->m, 4) :
			hz_tensor_nd(NULL, dtype, device, 5, xs);
	t[Y] = linear ? hz_tensor_3d(NULL, dtype, device, r->batch, r->n, 4) :
			hz_tensor_nd(NULL, dtype, device, 5, ys);
	t[W] = linear ? hz_tensor_3d(NULL, dtype, device, r->n, r->m, 4) :
			hz_tensor_nd(NULL, dtype, device, 5, ws);
	if (r->kind >= LSTM)
		make_lstm(l, device);
	t[DX] = t[X];
	t[DW] = t[W];
	t[DY] = t[Y];
	if (r->kind < LSTM) {
		t[SAVED] = hz_tensor_2d(NULL, HZ_F32, device, r->batch, 14);
		t[PATCHES] = hz_tensor_1d(NULL, dtype, device,
					  conv && !b->gpu ? 9 * hz_tensor_count(&t[X]) : 1);
	}
	for (int i = 0; i < ARRAYS && !status; i++) {
		status = hz_alloc(b->ctx, &t[i].data, (size_t)hz_tensor_bytes(&t[i]), device);
		if (!status && i != SAVED)
			status = bench_fill(b, t[i].dtype, hz_tensor_count(&t[i]), t[i]);
	}
	l->conv.pad[0] = l->conv.pad[1] = 1;
	l->norm.saved = &t[SAVED];
	l->norm.flags = r->kind == WHITEN ? HZ_QUAT_WHITEN : 0;
	for (int d = 0; d < 2; d++) {
		l->pool.window[d] = r->kind == POOLING ? 2 : 3;
		l->pool.stride[d] = r->kind == POOLING ? 2 : 1;
		l->pool.pad[d] = r->kind == POOLING ? 0 : 1;
	}
	l->pool.kind = r->kind == AVERAGE_TRAINING ? HZ_POOL_AVERAGE : HZ_POOL_MAX;
	l->conv.groups = r->kind == DEPTHWISE ? (int32_t)r->batch : 1;
	l->conv.flags = r->kind == ROTATING ? HZ_QUAT_ROTATION : 0;
	l->c.op = kinds[r->kind].op;
	l->c.call = call_layer;
	l->c.large = true;
	snprintf(l->c.name, sizeof(l->c.name),
		 linear || r->kind >= LSTM ? "%lldx%lldx%lld%s" : conv ? "%lldx%lld^2 3x3 c=%lld%s" :
		 "%lldx%lld^2 c=%lld%s", (long long)r->m, (long long)r->n, (long long)r->batch,
		 kinds[r->kind].name);
	snprintf(l->c.dtype, sizeof(l->c.dtype), "%s", hz_dtype_name(dtype));
	if (r->kind < LSTM)
		l->c.operations = 32.0 * (linear ? (double)(r->m * r->n * r->batch) : conv ?
					  9.0 * (double)(r->m * r->n * r->n * r->batch * r->batch) :
					  0);
	if (r->kind == TRAINING || r->kind == CONV_TRAINING)
		l->c.operations *= 3;
	if (r->kind < LSTM && l->c.operations > 0) {
		l->c.ceiling = call_products;
		l->c.against = "bare products";
		l->c.moved_bytes = (double)hz_tensor_bytes(&t[X]) + (double)hz_tensor_bytes(&t[W]) +
				   (double)hz_tensor_bytes(&t[Y]);
		if (b->gpu)	/* on a GPU convolutions of many channels make no patches */
			bench_quat_products_of(b, &l->c, dtype, HZ_PRECISION_AUTO,
					       linear ? HZ_QUAT_FAST : HZ_QUAT_DIRECT);
	} else if (r->kind < LSTM) {
		l->c.ceiling = bench_copy;
		l->c.against = b->gpu ? "device copy" : "memcpy";
		l->c.moved_bytes = r->kind >= POOLING ? (double)hz_tensor_bytes(&t[X]) +
							(double)hz_tensor_bytes(&t[Y])
						      : (double)hz_tensor_bytes(&t[X]) * passes;
		l->c.operations = (double)hz_tensor_count(&t[X]);
	}
	bench_copy_of(b, &l->c);
	return status ? status : reserve(b, l);
}

static int run_case(struct bench *b, const struct row *r)
{
	struct layer l = {.row = r};
	int status;

	progress("bench: %s", kinds[r->kind].op);
	status = make_case(b, &l);
	if (!status && r->kind == NORM_TRAINING)
		status = hz_quat_batchnorm(b->ctx, &l.t[X], NULL, NULL, &l.t[Y], &l.norm);
	status = bench_made(b, &l.c, status);
	for (int i = 0; i < ARRAYS; i++)
		hz_free(b->ctx, l.t[i].data, hz_device(b->ctx));
	return status;
}

int bench_quat_layer(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];

		if (!bench_wanted(b->set, kinds[r->kind].op) ||
		    (b->set->quick && !(r->flags & QUICK)) || !(r->flags & (b->gpu ? GPU : CPU)))
			continue;
		head(b);
		status = run_case(b, r);
	}
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

static int grid_call(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;

	g->w.data = g->pack.data = grid_turn(g);
	return hz_quat_linear(b->ctx, &g->x, g->packed ? NULL : &g->w, NULL, &g->y, &g->quat_linear);
}

/* Images of SIDE x SIDE, 3 x 3 taps, padded */
#define SIDE 7

static int grid_view_images(struct bench *b, struct grid_case *g)
{
	hz_tensor *const both[] = {&g->x, &g->y};
	const int64_t n = g->width / 4;

	for (int i = 0; i < 2; i++) {
		const int64_t image = both[i]->stride[0];

		*both[i] = hz_tensor_nd(both[i]->data, g->dtype, hz_device(b->ctx), 5,
					(int64_t[]){g->batch, SIDE, SIDE, n, 4});
		both[i]->stride[0] = image;
	}
	g->quat_conv.pad[0] = g->quat_conv.pad[1] = 1;
	return HZ_OK;
}

static int grid_call_conv(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;

	g->w.data = grid_turn(g);
	return hz_quat_conv(b->ctx, &g->x, &g->w, NULL, &g->y, &g->quat_conv);
}

const struct grid_op grid_quat_layer[] = {
	{"quat_linear", "", 0, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true, .weights = 0.25,
	 .macs = 0.5, .macs_f32 = 1.5, .make = grid_make_quats, .view = grid_view_quats,
	 .call = grid_call},
	{"quat_conv", "3x3 of 7x7", 3, {HZ_F32, HZ_F16, HZ_BF16}, .x_width = SIDE * SIDE,
	 .y_width = SIDE * SIDE, .weights = 9 * 0.25, .macs = SIDE * SIDE * 9 * 0.5,
	 .macs_f32 = SIDE * SIDE * 9 * 1.5, .make = grid_make_quats, .view = grid_view_images,
	 .call = grid_call_conv},
	{0},
};
