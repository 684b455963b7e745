/*
 * launches.c - quaternion convolutions for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

struct conv_row {
	const char *what;
	int64_t images, side, in, taps, out, groups, stride, pad, dilation;
	int dims;			/* spatial dimensions: 1, 2 or 3 */
	uint32_t flags;
	int precision, method, activation;
	/* Set by the loop */
	int dtype, skew;
};

static hz_tensor pixels(const struct conv_row *r, int64_t side, int64_t channels, int skew)
{
	int64_t shape[6] = {r->images};

	for (int d = 0; d < r->dims; d++)
		shape[1 + d] = side;
	shape[1 + r->dims] = channels;
	shape[2 + r->dims] = 4;
	return view_at(r->dtype, r->dims + 3, shape, skew);
}

static int run_conv(const void *row, bool bwd)
{
	const struct conv_row *const r = row;
	const int64_t dilation = r->dilation ? r->dilation : 1, stride = r->stride ? r->stride : 1;
	const int64_t extent = dilation * (r->taps - 1) + 1, groups = r->groups ? r->groups : 1;
	const int64_t y_side = (r->side + 2 * r->pad - extent) / stride + 1;
	const int64_t transposed_side = (r->side - 1) * stride + extent - 2 * r->pad;
	const bool transposed = r->flags & HZ_QUAT_TRANSPOSED;
	const hz_tensor x = pixels(r, r->side, r->in, r->skew);
	hz_tensor y = pixels(r, transposed ? transposed_side : y_side, r->out, 0);
	hz_quat_conv_opts o = {.flags = r->flags, .groups = (int32_t)groups, .method = r->method,
			       .precision = r->precision, .activation = bwd ? 0 : r->activation};
	int64_t shape[6] = {transposed ? r->in : r->out};
	hz_tensor w, b, dx, dw, db;

	for (int d = 0; d < r->dims; d++) {
		shape[1 + d] = r->taps;
		o.stride[d] = stride;
		o.pad[d] = r->pad;
		o.dilation[d] = dilation;
	}
	shape[1 + r->dims] = (transposed ? r->out : r->in) / groups;
	shape[2 + r->dims] = 4;
	w = view_at(r->dtype, r->dims + 3, shape, 0);
	b = V(HZ_F32, r->out, 4);
	note(" groups %" PRId64 " stride %" PRId64 " pad %" PRId64 " dilation %" PRId64
	     " flags %u precision %d method %d activation %d",
	     groups, stride, r->pad, dilation, r->flags, r->precision, r->method, o.activation);
	if (!bwd) {
		RECORD(ctx, hz_quat_conv(ctx, &x, &w, &b, &y, &o), &workspace);
		return hz_quat_conv(ctx, &x, &w, &b, &y, &o);
	}
	dx = pixels(r, r->side, r->in, r->skew);
	dw = view_at(r->dtype, r->dims + 3, shape, 0);
	db = V(HZ_F32, r->out, 4);
	RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o), &workspace);
	return hz_quat_conv_bwd(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o);
}

static int run_conv_fwd(const void *row)
{
	return run_conv(row, false);
}

static int run_conv_bwd(const void *row)
{
	return run_conv(row, true);
}

static const struct conv_row convs[] = {
	{.what = "3 x 3", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1},
	{.what = "many channels", .images = 4, .side = 28, .in = 256, .taps = 3, .out = 256,
	 .pad = 1},
	{.what = "more images", .images = 32, .side = 56, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .activation = HZ_ACT_RELU},
	{.what = "32 channels", .images = 4, .side = 28, .in = 32, .taps = 3, .out = 32, .pad = 1,
	 .activation = HZ_ACT_RELU},
	{.what = "tanh", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .activation = HZ_ACT_TANH},
	{.what = "30 channels", .images = 32, .side = 56, .in = 30, .taps = 3, .out = 30, .pad = 1},
	{.what = "17 channels a group", .images = 32, .side = 56, .in = 34, .taps = 1, .out = 34,
	 .groups = 2},
	{.what = "1 x 1", .images = 4, .side = 56, .in = 128, .taps = 1, .out = 256,
	 .precision = HZ_PRECISION_HALF},
	{.what = "1 x 1", .images = 4, .side = 56, .in = 128, .taps = 1, .out = 256},
	{.what = "first layer", .images = 4, .side = 28, .in = 3, .taps = 7, .out = 64, .stride = 2,
	 .pad = 3},
	{.what = "strided", .images = 4, .side = 56, .in = 64, .taps = 3, .out = 128, .stride = 2,
	 .pad = 1},
	{.what = "dilated", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 2,
	 .dilation = 2},
	{.what = "12 groups", .images = 4, .side = 14, .in = 96, .taps = 3, .out = 96, .groups = 12,
	 .pad = 1},
	{.what = "6 groups", .images = 4, .side = 14, .in = 96, .taps = 3, .out = 96, .groups = 6,
	 .pad = 1},
	{.what = "6 groups, one tap", .images = 4, .side = 14, .in = 96, .taps = 1, .out = 96,
	 .groups = 6},
	{.what = "6 groups, 2 x 2", .images = 4, .side = 14, .in = 96, .taps = 2, .out = 24,
	 .groups = 6},
	{.what = "4 groups", .images = 4, .side = 14, .in = 96, .taps = 3, .out = 96, .groups = 4,
	 .pad = 1},
	{.what = "8 to 8", .images = 4, .side = 28, .in = 8, .taps = 3, .out = 8, .pad = 1},
	{.what = "2 channels a group", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64,
	 .groups = 32, .pad = 1},
	{.what = "depthwise", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .groups = 64,
	 .pad = 1},
	{.what = "depthwise 5", .images = 4, .side = 28, .in = 64, .taps = 5, .out = 64,
	 .groups = 64, .pad = 2},
	{.what = "depthwise 7", .images = 4, .side = 28, .in = 64, .taps = 7, .out = 64,
	 .groups = 64, .pad = 3},
	{.what = "depthwise, stride 2", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64,
	 .groups = 64, .pad = 1, .stride = 2},
	{.what = "3 outputs", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 3, .pad = 1},
	{.what = "2 to 2", .images = 4, .side = 28, .in = 2, .taps = 3, .out = 2, .pad = 1},
	{.what = "12 x 12 taps", .images = 2, .side = 40, .in = 128, .taps = 12, .out = 128},
	{.what = "65 channels", .images = 8, .side = 40, .in = 130, .taps = 12, .out = 32,
	 .groups = 2},
	{.what = "transposed", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .flags = HZ_QUAT_TRANSPOSED},
	{.what = "transposed, stride 2", .images = 4, .side = 14, .in = 64, .taps = 4, .out = 32,
	 .stride = 2, .pad = 1, .flags = HZ_QUAT_TRANSPOSED},
	{.what = "16 products", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .method = HZ_QUAT_DIRECT},
	{.what = "8 products", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .method = HZ_QUAT_FAST},
	{.what = "f32", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .precision = HZ_PRECISION_F32},
	{.what = "split", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .precision = HZ_PRECISION_SPLIT},
	{.what = "split, large", .images = 32, .side = 28, .in = 256, .taps = 3, .out = 256,
	 .pad = 1, .precision = HZ_PRECISION_SPLIT},
	{.what = "tf32", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .precision = HZ_PRECISION_TF32},
	{.what = "1-D", .images = 2, .side = 1000, .in = 32, .taps = 5, .out = 40, .pad = 2,
	 .dims = 1},
	{.what = "1-D, 8 products", .images = 2, .side = 1000, .in = 32, .taps = 5, .out = 40,
	 .pad = 2, .dims = 1, .method = HZ_QUAT_FAST},
	{.what = "3-D", .images = 2, .side = 12, .in = 32, .taps = 3, .out = 32, .pad = 1,
	 .dims = 3},
	{.what = "one image", .images = 1, .side = 7, .in = 512, .taps = 3, .out = 512, .pad = 1},
	{.what = "7 x 7 pixels", .images = 1, .side = 7, .in = 512, .taps = 1, .out = 2048},
	{.what = "1 x 1, 32 to 32", .images = 16, .side = 28, .in = 32, .taps = 1, .out = 32},
};

void trace_quat_conv(void)
{
	EACH(d, floats) {
		EACH(i, convs) {
			struct conv_row r = convs[i];

			r.dtype = floats[d];
			if (!r.dims)
				r.dims = 2;
			trace("quat_conv", run_conv_fwd, &r);
			trace("quat_conv_bwd", run_conv_bwd, &r);
			r.skew = (int)hz_dtype_size(r.dtype);
			trace("quat_conv", run_conv_fwd, &r);
			trace("quat_conv_bwd", run_conv_bwd, &r);
		}
	}
}
