/*
 * bias_act.c - bias and activation of products on a GPU: launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/vlut/bias_act.h"
#include "gpu/vlut/launch.h"

#define GRID_Y_MAX 65535

/* Whether all rows are aligned to four elements, at one distance, and from f32 */
static bool in_fours(const struct hzi_vlut_bias_act *a)
{
	return a->from_dtype == HZ_F32 && a->ndim <= 1 && a->from_step == 1 && a->y_step == 1 &&
	       a->n % 4 == 0 && (uintptr_t)a->from % 16 == 0 &&
	       (uintptr_t)a->y % (4 * hz_dtype_size(a->y_dtype)) == 0 &&
	       (a->ndim == 0 || (a->from_stride[0] % 4 == 0 && a->y_stride[0] % 4 == 0));
}

int hzi_cuda_vlut_bias_act(struct hz_context *ctx, const char *op,
			   const struct hzi_vlut_bias_act *a)
{
	struct hzi_vlut_bias_act_rows p = {
		.from = a->from, .y = a->y, .bias = a->bias, .rows = a->rows, .n = a->n,
		.from_step = a->from_step, .y_step = a->y_step, .ndim = a->ndim,
		.from_dtype = a->from_dtype, .y_dtype = a->y_dtype, .activation = a->activation,
		.gated = a->gated,
	};
	const bool fours = in_fours(a);
	const int64_t blocks = ceil_div(a->n, (fours ? 4 : 1) * HZI_VLUT_THREADS);
	const struct hzi_launch l = {
		.grid = {(unsigned)blocks, (unsigned)min_of(a->rows, GRID_Y_MAX)},
		.block = {HZI_VLUT_THREADS}, .early = true,
	};

	if (blocks > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %lld blocks, at most %d are supported", op,
				(long long)blocks, INT32_MAX);
	memcpy(p.shape, a->shape, sizeof(p.shape));
	memcpy(p.from_stride, a->from_stride, sizeof(p.from_stride));
	memcpy(p.y_stride, a->y_stride, sizeof(p.y_stride));
	return hzi_cuda_launch(ctx, op, fours ? HZI_KERNEL_vlut_bias_act_rows_f32 :
						HZI_KERNEL_vlut_bias_act, &l, &p, sizeof(p));
}
