/*
 * steps.c - launchers of the steps of quaternion layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_layer/launch.h"
#include "gpu/quat_layer/quat_layer.h"

HZI_LINK_IMAGES(quat_layer);

int hzi_cuda_quat_step(struct hz_context *ctx, const char *op, int kernel, int64_t total,
		       const void *params, size_t bytes)
{
	const int64_t blocks = (total + HZI_QUAT_STEP_THREADS - 1) / HZI_QUAT_STEP_THREADS;
	const struct hzi_launch l = {
		.grid = {(unsigned)(blocks < 1 << 30 ? blocks : 1 << 30)},
		.block = {HZI_QUAT_STEP_THREADS},
		.early = kernel == HZI_KERNEL_quat_layer_finish,
	};

	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

/* The kernel for a dtype; first: the one for f32 */
static int kernel_of(int first, int dtype)
{
	return first + (dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2);
}

/* The kernel of batchnorm_contiguous.cu for a map; -1: it does not support the map. */
static int contiguous_kernel(const struct hzi_quat_map_step *a)
{
	if (!a->a.whole || !a->out.whole || a->accumulate || a->pure)
		return -1;
	if (a->kind == HZI_QUAT_MAP_DROPOUT && a->ndim == 1)
		return kernel_of(HZI_KERNEL_quat_layer_dropout_f32, a->out.dtype);
	if (a->kind == HZI_QUAT_MAP_AFFINE && a->ndim <= 2)
		return kernel_of(HZI_KERNEL_quat_layer_affine_f32, a->out.dtype);
	if (a->kind == HZI_QUAT_MAP_AFFINE_BWD && a->ndim <= 2 && a->b.whole)
		return kernel_of(HZI_KERNEL_quat_layer_affine_bwd_f32, a->out.dtype);
	return -1;
}

/*
 * A block has up to 32 channels; its other threads share rows. The contiguous kernels get one wave
 * of blocks, so that each thread loads coefficients once.
 */
static int launch_affine(struct hz_context *ctx, const char *op, const struct hzi_quat_map_step *a)
{
	const int64_t channels = a->shape[a->ndim - 1], rows = a->total / channels;
	const int contiguous = contiguous_kernel(a), f32 = a->out.dtype == HZ_F32;
	const int each = contiguous < 0 ? 16 : !f32 ? 3 : a->kind == HZI_QUAT_MAP_AFFINE ? 4 : 2;
	const int64_t most = each * (int64_t)hzi_cuda_device(ctx)->sms;
	int64_t lanes = HZI_QUAT_SUM_LANES, columns, row_blocks;
	struct hzi_launch l = {.block = {HZI_QUAT_STEP_THREADS}};

	while (lanes / 2 >= channels)
		lanes /= 2;
	columns = (channels + lanes - 1) / lanes;
	columns = columns < 1 << 15 ? columns : 1 << 15;
	row_blocks = (rows * lanes + HZI_QUAT_STEP_THREADS - 1) / HZI_QUAT_STEP_THREADS;
	l.grid[0] = (unsigned)(row_blocks * columns > most && most / columns > 0 ? most / columns :
			       row_blocks < most ? row_blocks : most);
	l.grid[1] = (unsigned)columns;
	if (contiguous >= 0 && columns == ceil_div(channels, lanes)) {
		l.early = true;
		return hzi_cuda_launch(ctx, op, contiguous, &l, a, sizeof(*a));
	}
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_layer_copy_strided + a->kind, &l, a,
			       sizeof(*a));
}

static int map(struct hz_context *ctx, const char *op, const struct hzi_quat_map_step *a)
{
	if (a->kind == HZI_QUAT_MAP_AFFINE || a->kind == HZI_QUAT_MAP_AFFINE_BWD)
		return launch_affine(ctx, op, a);
	if (contiguous_kernel(a) >= 0) {
		const int64_t blocks = ceil_div(a->total, 4 * HZI_QUAT_STEP_THREADS);
		const struct hzi_launch l = {
			.grid = {(unsigned)(blocks < 1 << 30 ? blocks : 1 << 30)},
			.block = {HZI_QUAT_STEP_THREADS},
		};

		return hzi_cuda_launch(ctx, op, contiguous_kernel(a), &l, a, sizeof(*a));
	}
	return hzi_cuda_quat_step(ctx, op, HZI_KERNEL_quat_layer_copy_strided + a->kind, a->total,
				  a, sizeof(*a));
}

static int sum(struct hz_context *ctx, const char *op, const struct hzi_quat_sum_step *a)
{
	const int64_t lanes = (a->channels + HZI_QUAT_SUM_LANES - 1) / HZI_QUAT_SUM_LANES;
	const struct hzi_launch l = {
		.grid = {(unsigned)(lanes < 1 << 30 ? lanes : 1 << 30), (unsigned)a->chunks},
		.block = {HZI_QUAT_STEP_THREADS}, .early = true,
	};

	if (a->a.whole && (a->kind != HZI_QUAT_SUM_CROSS || a->b.whole))
		return hzi_cuda_launch(ctx, op,
				       kernel_of(HZI_KERNEL_quat_layer_sum_f32 + 3 * a->kind,
						 a->a.dtype),
				       &l, a, sizeof(*a));
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_layer_sum_strided + a->kind, &l, a,
			       sizeof(*a));
}

static int finish(struct hz_context *ctx, const char *op, const struct hzi_quat_finish_step *a)
{
	return hzi_cuda_quat_step(ctx, op, HZI_KERNEL_quat_layer_finish,
				  a->channels * HZI_QUAT_STEP_THREADS, a, sizeof(*a));
}

static int rotation(struct hz_context *ctx, const char *op, const struct hzi_quat_rotation_step *a,
		    bool backward)
{
	return hzi_cuda_quat_step(ctx, op,
				  backward ? HZI_KERNEL_quat_layer_rotation_bwd :
					     HZI_KERNEL_quat_layer_rotation,
				  a->n * a->m, a, sizeof(*a));
}

static int zero(struct hz_context *ctx, const char *op, void *p, size_t bytes)
{
	(void)op;
	return bytes ? hzi_cuda_fill(ctx, p, 0, bytes) : HZ_OK;
}

const struct hzi_quat_steps hzi_cuda_quat_steps = {
	.map = map, .sum = sum, .finish = finish, .rotation = rotation, .zero = zero,
	.cell = hzi_cuda_quat_cell, .fuses = hzi_cuda_quat_cell_fuses,
	.fused_cell = hzi_cuda_quat_cell_fused, .persists = hzi_cuda_quat_cell_persists,
	.all_steps = hzi_cuda_quat_cell_all_steps, .tiles = 256, .most = INT32_MAX, .moments = true,
	.gemv = 64,
};
