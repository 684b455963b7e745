/*
 * pool.c - launchers of pooling
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_layer/launch.h"
#include "gpu/quat_layer/pool.h"

HZI_LINK_IMAGES(quat_layer);

#define ROWS_MAX 65535			/* gridDim.y */
#define LANES_LEAST 32

/* The f32 kernel for this window and stride; -1: there is none. */
static int kernel_of(const struct hzi_quat_pool_step *a, bool backward)
{
	const int64_t window = a->window[1], step = a->step[1];

	if (a->window[0] != 1 || a->size[0] != 1 || a->count[0] != 1 || a->window[2] != window)
		return -1;
	if (!backward && window == 3 && step == 1 && a->step[2] == 1)
		return a->max ? HZI_KERNEL_quat_pool_max_3x3_stride1_f32 :
				HZI_KERNEL_quat_pool_average_3x3_stride1_f32;
	if (!backward)
		return window == 2 ? HZI_KERNEL_quat_pool_2x2_f32 :
		       window == 3 ? HZI_KERNEL_quat_pool_3x3_f32 : -1;
	if (a->step[2] != step)
		return -1;
	if (window == 2 && step == 2)
		return HZI_KERNEL_quat_pool_bwd_2x2_stride2_f32;
	if (window == 3 && step == 2)
		return HZI_KERNEL_quat_pool_bwd_3x3_stride2_f32;
	if (window == 3 && step == 1)
		return a->max ? HZI_KERNEL_quat_pool_max_bwd_3x3_stride1_f32 :
				HZI_KERNEL_quat_pool_average_bwd_3x3_stride1_f32;
	return -1;
}

/* Cells of `step` elements along dimension d; they also cover elements outside all windows. */
static int64_t cells_of(const struct hzi_quat_pool_step *a, int d)
{
	return ceil_div(a->size[d] + a->pad[d], a->step[d]);
}

const char *hzi_cuda_quat_pool_window_2d_unsupported(const struct hzi_quat_pool_step *a,
						     bool backward)
{
	if (kernel_of(a, backward) < 0)
		return "no kernel has this window and step";
	if (!a->x.whole || !a->y.whole)
		return "quaternions are not contiguous and aligned";
	/* The kernel counts in 32 bits, rows up to a stride beyond the last. */
	if ((double)a->images * (double)(a->size[1] + 4) >= INT32_MAX / 2 ||
	    (double)a->channels * (double)(a->size[2] + 4) >= INT32_MAX ||
	    (double)a->size[1] * (double)a->size[2] >= INT32_MAX ||
	    a->step[1] * a->count[1] >= INT32_MAX || a->step[2] * a->count[2] >= INT32_MAX)
		return "sizes exceed 32 bits";
	return NULL;
}

static void strides(int64_t *to, const int64_t *from)
{
	to[0] = from[0];
	for (int d = 1; d < 4; d++)
		to[d] = from[d + 1];
}

static const char *op_of(bool backward)
{
	return backward ? "quat_pool_bwd" : "quat_pool";
}

int hzi_cuda_quat_pool_window_2d(struct hz_context *ctx, const struct hzi_quat_pool_step *a,
				 bool backward)
{
	struct hzi_quat_pool_job p = {
		.x = a->x.data, .y = a->y.data, .index = a->index, .images = (int32_t)a->images,
		.channels = (int32_t)a->channels, .max = a->max, .accumulate = a->accumulate,
	};
	const int kernel = kernel_of(a, backward);
	const int dtype = a->x.dtype == HZ_F32 ? 0 : a->x.dtype == HZ_F16 ? 1 : 2;
	struct hzi_launch l = {.grid = {0}};
	int64_t lanes = HZI_QUAT_POOL_THREADS, columns, rows, row_blocks;

	strides(p.x_stride, a->x.stride);
	strides(p.y_stride, a->y.stride);
	strides(p.index_stride, a->index_stride);
	for (int d = 0; d < 2; d++) {
		p.size[d] = (int32_t)a->size[1 + d];
		p.count[d] = (int32_t)a->count[1 + d];
		p.step[d] = (int32_t)a->step[1 + d];
		p.pad[d] = (int32_t)a->pad[1 + d];
		p.cells[d] = (int32_t)cells_of(a, 1 + d);
	}
	columns = (backward ? p.cells[1] : p.count[1]) * a->channels;
	rows = (backward ? p.cells[0] : p.count[0]) * a->images;
	if (a->window[1] == 3 && a->step[1] == 1 && a->step[2] == 1) {
		const int32_t *size = backward ? p.size : p.count;

		p.strips = ceil_div(size[0], HZI_QUAT_POOL_STRIP);
		columns = size[1] * a->channels;
		rows = p.strips * a->images;
	}
	while (lanes > LANES_LEAST && lanes / 2 >= columns)
		lanes /= 2;
	l.block[0] = (unsigned)lanes;
	l.block[1] = (unsigned)(HZI_QUAT_POOL_THREADS / lanes);
	row_blocks = ceil_div(rows, l.block[1]);
	l.grid[0] = (unsigned)ceil_div(columns, lanes);
	l.grid[1] = (unsigned)(row_blocks < ROWS_MAX ? row_blocks : ROWS_MAX);
	return hzi_cuda_launch(ctx, op_of(backward), kernel + dtype, &l, &p, sizeof(p));
}

const char *hzi_cuda_quat_pool_bwd_tiled_unsupported(const struct hz_context *ctx,
						     const void *args)
{
	const struct hzi_quat_pool_step *a = args;

	(void)ctx;
	for (int d = 0; d < 3; d++) {
		if (a->pad[d] != 0 || a->step[d] != a->window[d] ||
		    a->size[d] != a->count[d] * a->window[d])
			return "windows do not tile x";
	}
	return NULL;
}

int hzi_cuda_quat_pool_bwd_tiled(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_pool_step *a = args;

	return hzi_cuda_quat_step(ctx, op_of(true), HZI_KERNEL_quat_pool_bwd_tiled,
				  a->images * a->count[0] * a->count[1] * a->count[2] *
					  a->channels, a, sizeof(*a));
}

int hzi_cuda_quat_pool_generic(struct hz_context *ctx, const struct hzi_quat_pool_step *a,
			       bool backward)
{
	const int64_t *size = backward ? a->size : a->count;

	return hzi_cuda_quat_step(ctx, op_of(backward),
				  backward ? HZI_KERNEL_quat_pool_bwd_generic :
				  HZI_KERNEL_quat_pool_generic,
				  a->images * size[0] * size[1] * size[2] * a->channels, a,
				  sizeof(*a));
}
