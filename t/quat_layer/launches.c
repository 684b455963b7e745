/*
 * launches.c - quaternion linear layers, normalization and pooling for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

struct layer_row {
	int dtype;
	int64_t rows, in, out;
	int side, method, precision, activation;
	uint32_t flags;
	bool planar_dy;
};

static int run_linear(const void *row)
{
	const struct layer_row *const r = row;
	const hz_tensor x = V(r->dtype, r->rows, r->in, 4), w = V(r->dtype, r->out, r->in, 4);
	hz_tensor b = V(HZ_F32, r->out, 4), y = V(r->dtype, r->rows, r->out, 4);
	const hz_quat_linear_opts o = {.side = r->side, .method = r->method, .flags = r->flags,
				       .precision = r->precision, .activation = r->activation};

	note(" side %d method %d precision %d activation %d flags %u", r->side, r->method,
	     r->precision, r->activation, r->flags);
	RECORD(ctx, hz_quat_linear(ctx, &x, &w, &b, &y, &o), &workspace);
	return hz_quat_linear(ctx, &x, &w, &b, &y, &o);
}

static int run_linear_bwd(const void *row)
{
	const struct layer_row *const r = row;
	const hz_tensor x = V(r->dtype, r->rows, r->in, 4), w = V(r->dtype, r->out, r->in, 4);
	const hz_tensor b = V(HZ_F32, r->out, 4);
	hz_tensor y = V(r->dtype, r->rows, r->out, 4);
	hz_tensor dx = V(r->dtype, r->rows, r->in, 4), dw = V(r->dtype, r->out, r->in, 4);
	hz_tensor db = V(HZ_F32, r->out, 4);
	hz_tensor pre = r->activation ? V(r->dtype, r->rows, r->out, 4) : y;
	const hz_quat_linear_opts o = {.side = r->side, .method = r->method, .flags = r->flags,
				       .precision = r->precision, .activation = r->activation,
				       .pre = r->activation ? &pre : NULL};

	if (r->planar_dy) {
		y.stride[1] = 1;
		y.stride[2] = r->out;
		note(" planes");
	}
	note(" side %d method %d precision %d activation %d flags %u", r->side, r->method,
	     r->precision, r->activation, r->flags);
	RECORD(ctx, hz_quat_linear_bwd(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o), &workspace);
	return hz_quat_linear_bwd(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o);
}

void trace_quat_linear(void)
{
	static const int64_t sizes[][3] = {
		{8192, 4096, 4096}, {4200, 4, 16}, {256, 512, 512}, {1, 512, 512}, {33, 7, 5},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			for (int side = 0; side < 2; side++) {
				struct layer_row r = {floats[d], sizes[i][0], sizes[i][1],
						      sizes[i][2], side, 0, 0,
						      side ? HZ_ACT_GELU : 0, 0, false};

				trace("quat_linear", run_linear, &r);
				trace("quat_linear_bwd", run_linear_bwd, &r);
				r.planar_dy = true;
				r.activation = 0;
				trace("quat_linear_bwd", run_linear_bwd, &r);
				r.planar_dy = false;
				r.flags = HZ_QUAT_ROTATION;
				trace("quat_linear", run_linear, &r);
				trace("quat_linear_bwd", run_linear_bwd, &r);
			}
		}
	}
}

/* Normalization, pooling */
struct norm_row {
	int dtype, skew;
	int64_t images, side, channels;
	uint32_t flags;
	bool planar, bwd;
	/* Pooling */
	int kind, window, stride, pad;
};

static hz_tensor image(const struct norm_row *r, int64_t side)
{
	hz_tensor t = view_at(r->dtype, SHAPE(r->images, side, side, r->channels, 4), r->skew);

	if (r->planar) {
		t.stride[3] = 1;
		t.stride[4] = r->channels;
	}
	return t;
}

static int run_norm(const void *row)
{
	const struct norm_row *const r = row;
	hz_tensor x = image(r, r->side), y = image(r, r->side);
	const int whiten = (r->flags & HZ_QUAT_WHITEN) != 0;
	const hz_tensor gamma = whiten ? V(HZ_F32, r->channels, 10) : V(HZ_F32, r->channels);
	hz_tensor beta = V(HZ_F32, r->channels, 4), mean = V(HZ_F32, r->channels, 4);
	hz_tensor var = whiten ? V(HZ_F32, r->channels, 10) : V(HZ_F32, r->channels);
	hz_tensor saved = V(HZ_F32, r->channels, 14);
	hz_quat_batchnorm_opts o = {.flags = r->flags, .running_mean = &mean, .running_var = &var,
				    .saved = &saved};

	note("%s flags %u", r->planar ? " planes" : "", r->flags);
	if (!r->bwd) {
		RECORD(ctx, hz_quat_batchnorm(ctx, &x, &gamma, &beta, &y, &o), &workspace);
		return hz_quat_batchnorm(ctx, &x, &gamma, &beta, &y, &o);
	}
	o.running_mean = o.running_var = NULL;
	hz_tensor dx = image(r, r->side), dbeta = V(HZ_F32, r->channels, 4);
	hz_tensor dgamma = whiten ? V(HZ_F32, r->channels, 10) : V(HZ_F32, r->channels);

	RECORD(ctx, hz_quat_batchnorm_bwd(ctx, &x, &gamma, &y, &dx, &dgamma, &dbeta, &o),
	       &workspace);
	return hz_quat_batchnorm_bwd(ctx, &x, &gamma, &y, &dx, &dgamma, &dbeta, &o);
}

static int run_pool(const void *row)
{
	const struct norm_row *const r = row;
	const int64_t stride = r->stride ? r->stride : r->window;
	const int64_t y_side = (r->side + 2 * r->pad - r->window) / stride + 1;
	const hz_quat_pool_opts o = {.kind = r->kind, .window = {r->window, r->window},
				     .stride = {stride, stride}, .pad = {r->pad, r->pad}};
	hz_tensor x = image(r, r->side), y = image(r, y_side);
	hz_tensor index = V(HZ_S32, r->images, y_side, y_side, r->channels);
	hz_tensor *const i = r->kind == HZ_POOL_MAX ? &index : NULL;

	note(" kind %d window %d stride %d pad %d", r->kind, r->window, (int)stride, r->pad);
	return r->bwd ? hz_quat_pool_bwd(ctx, i, &y, &x, &o) : hz_quat_pool(ctx, &x, &y, i, &o);
}

struct recurrent_row {
	int dtype, cell;
	int64_t batch;
};

/* Four steps of 64 neurons, and their gradients */
static int run_recurrent(const void *row)
{
	const struct recurrent_row *const r = row;
	static const int gates[] = {1, 4, 2}, values[] = {1, 5, 3};
	const int rows = 64 * gates[r->cell], kept = values[r->cell];
	hz_tensor z = V(r->dtype, 4, r->batch, 1, rows, 4), u = V(r->dtype, 1, rows, 64, 4);
	hz_tensor y = V(r->dtype, 4, r->batch, 1, 64, 4), du = V(r->dtype, 1, rows, 64, 4);
	hz_tensor saved = V(HZ_F32, 4, r->batch, 1, kept, 64, 4);
	const hz_quat_recurrent_opts o = {.cell = r->cell, .saved = &saved};
	int status;

	note(" cell %d", r->cell);
	RECORD(ctx, hz_quat_recurrent(ctx, &z, &u, NULL, NULL, &y, NULL, NULL, &o), &workspace);
	status = hz_quat_recurrent(ctx, &z, &u, NULL, NULL, &y, NULL, NULL, &o);
	if (status)
		return status;
	RECORD(ctx, hz_quat_recurrent_bwd(ctx, &u, NULL, NULL, &y, NULL, NULL, &z, &du, NULL, NULL,
					  &o), &workspace);
	return hz_quat_recurrent_bwd(ctx, &u, NULL, NULL, &y, NULL, NULL, &z, &du, NULL, NULL, &o);
}

void trace_quat_layer(void)
{
	static const int windows[][3] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {3, 3, 0}, {4, 4, 0}};
	static const int batches[] = {1, 12, 20, 100};

	EACH(d, floats) {
		for (int i = 0; i < 12; i++) {
			const struct recurrent_row r = {.dtype = floats[d], .cell = i / 4,
							.batch = batches[i % 4]};

			trace("quat_recurrent", run_recurrent, &r);
		}
	}
	EACH(d, floats) {
		for (int bwd = 0; bwd < 2; bwd++) {
			for (int i = 0; i < 8; i++) {
				struct norm_row r = {.dtype = floats[d], .images = 32, .side = 28,
						     .channels = i & 4 ? 5 : 48, .bwd = bwd,
						     .planar = i & 2,
						     .flags = i & 1 ? HZ_QUAT_WHITEN : 0};

				trace(bwd ? "quat_batchnorm_bwd" : "quat_batchnorm", run_norm, &r);
				r.images = 1;
				r.side = 2;
				trace(bwd ? "quat_batchnorm_bwd" : "quat_batchnorm", run_norm, &r);
			}
			EACH(w, windows) {
				for (int i = 0; i < 4; i++) {
					struct norm_row r = {
						.dtype = floats[d], .images = 2, .side = 28,
						.channels = 16, .bwd = bwd, .window = windows[w][0],
						.stride = windows[w][1], .pad = windows[w][2],
						.kind = i & 1 ? HZ_POOL_AVERAGE : HZ_POOL_MAX,
						.skew = i & 2 ? (int)hz_dtype_size(floats[d]) : 0};

					trace(bwd ? "quat_pool_bwd" : "quat_pool", run_pool, &r);
				}
			}
		}
	}
}
