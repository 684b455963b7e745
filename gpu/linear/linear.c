/*
 * linear.c - linear layers with quantized weights on a GPU: launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

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
	};

	if (x > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %lld blocks, at most %d are supported", op,
				(long long)x, INT32_MAX);
	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

int hzi_cuda_linear_forward(struct hz_context *ctx, const struct hzi_linear_forward_args *a)
{
	return hzi_cuda_vlut_bias_act(ctx, "linear_forward", &a->e);
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
