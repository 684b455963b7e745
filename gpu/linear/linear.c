/*
 * linear.c - linear layers with quantized weights on a GPU: launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/linear/linear.h"
#include "gpu/runtime/cuda.h"
#include "lib/linear/linear.h"

HZI_LINK_IMAGES(linear);

#define GRID_Y_MAX 65535

static int launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
		  const void *params, size_t bytes)
{
	const struct hzi_launch l = {
		.grid = {(unsigned)x, (unsigned)min_of(y, GRID_Y_MAX)},
		.block = {HZI_LINEAR_THREADS},
		.early = kernel == HZI_KERNEL_linear_epilogue ||
			 kernel == HZI_KERNEL_linear_epilogue_rows,
	};

	if (x > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %lld blocks, at most %d are supported", op,
				(long long)x, INT32_MAX);
	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

/* Whether all rows are aligned to four elements, at one distance, and from f32 */
static bool in_fours(const struct hzi_linear_forward_args *a)
{
	return a->from_dtype == HZ_F32 && a->ndim <= 1 && a->from_step == 1 && a->y_step == 1 &&
	       a->n % 4 == 0 && (uintptr_t)a->from % 16 == 0 &&
	       (uintptr_t)a->y % (4 * hz_dtype_size(a->y_dtype)) == 0 &&
	       (a->ndim == 0 || (a->from_stride[0] % 4 == 0 && a->y_stride[0] % 4 == 0));
}

int hzi_cuda_linear_forward(struct hz_context *ctx, const struct hzi_linear_forward_args *a)
{
	struct hzi_linear_epilogue p = {
		.from = a->from, .y = a->y, .bias = a->bias, .rows = a->rows, .n = a->n,
		.from_step = a->from_step, .y_step = a->y_step, .ndim = a->ndim,
		.from_dtype = a->from_dtype, .y_dtype = a->y_dtype, .activation = a->activation,
		.gated = a->gated,
	};

	memcpy(p.shape, a->shape, sizeof(p.shape));
	memcpy(p.from_stride, a->from_stride, sizeof(p.from_stride));
	memcpy(p.y_stride, a->y_stride, sizeof(p.y_stride));
	if (in_fours(a))
		return launch(ctx, "linear_forward", HZI_KERNEL_linear_epilogue_rows,
			      ceil_div(a->n, 4 * HZI_LINEAR_THREADS), a->rows, &p, sizeof(p));
	return launch(ctx, "linear_forward", HZI_KERNEL_linear_epilogue,
		      ceil_div(a->n, HZI_LINEAR_THREADS), a->rows, &p, sizeof(p));
}

HZI_NO_WORKSPACE(cuda, linear_forward)

int hzi_cuda_linear_dequantize(struct hz_context *ctx, const struct hzi_linear_dequantize_args *a)
{
	const struct hzi_linear_decode p = {
		.codes = a->codes, .scales = a->scales, .w = a->w, .first = a->first,
		.rows = a->rows, .ld = a->ld, .layout = *a->layout,
	};

	return launch(ctx, "linear_dequantize", HZI_KERNEL_linear_decode,
		      ceil_div(a->rows, HZI_LINEAR_THREADS), ceil_div(a->layout->in, 8), &p,
		      sizeof(p));
}

HZI_NO_WORKSPACE(cuda, linear_dequantize)

int hzi_cuda_linear_bwd(struct hz_context *ctx, const struct hzi_linear_bwd_args *a)
{
	const int64_t tiles = ceil_div(a->in, HZI_LINEAR_TILE);
	const int64_t part = (int64_t)GRID_Y_MAX * HZI_LINEAR_TILE;

	for (int64_t row = 0; row < a->rows; row += part) {
		const struct hzi_linear_product p = {
			.dy = a->dy + row * a->dy_ld, .w = a->w, .dx = a->dx + row * a->dx_ld,
			.rows = min_of(part, a->rows - row), .out = a->out, .in = a->in,
			.dy_ld = a->dy_ld, .dx_ld = a->dx_ld, .add = a->add,
		};

		HZ_CHECK(launch(ctx, "linear_bwd", HZI_KERNEL_linear_product, tiles,
				ceil_div(p.rows, HZI_LINEAR_TILE), &p, sizeof(p)));
	}
	return HZ_OK;
}

HZI_NO_WORKSPACE(cuda, linear_bwd)
