/*
 * group.c - launchers of linear layers with group-wise quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * W is packed to the workspace unless the caller has packed it. A launch copies rows of x, as codes
 * or 16-bit floats, and another multiplies them.
 */
#include <config.h>

#include <string.h>

#include "gpu/qgemm/group.h"
#include "gpu/qgemm/launch.h"

#define BLOCKS_MAX 65535

static int launch_pack(struct hz_context *ctx, const char *op, const struct hzi_group_layout *l,
		       const struct hzi_group_weights *w, void *data)
{
	const struct hzi_group_pack p = {.l = *l, .w = *w, .data = data};
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(ceil_div(l->bytes / 4, HZI_GROUP_THREADS), BLOCKS_MAX)},
		.block = {HZI_GROUP_THREADS},
	};

	return l->bytes ? hzi_cuda_launch(ctx, op, HZI_KERNEL_qgemm_group_pack, &launch, &p,
					  sizeof(p)) : HZ_OK;
}

HZI_NO_WORKSPACE(cuda, qlinear_group_pack)

int hzi_cuda_qlinear_group_pack(struct hz_context *ctx, const struct hzi_qlinear_group_pack_args *a)
{
	return launch_pack(ctx, "qlinear_group_pack", &a->l, &a->w, a->data);
}

/* Fills *p and returns the bytes of the workspace, which begins there. */
static size_t parameters(const struct hzi_qlinear_group_args *a, char *workspace,
			 struct hzi_group_gemm *p)
{
	const int64_t k = a->l.steps * HZI_GROUP_STEP, unit = hzi_group_unit(a->l.group, a->by_32);
	size_t at = 0;

	*p = (struct hzi_group_gemm){
		.l = a->l, .packed = a->packed, .x = a->x, .x_given = a->x_scale, .bias = a->bias,
		.y = a->y, .rows = a->rows, .x_k = a->x_k, .y_n = a->y_n, .unit = unit,
		.units = ceil_div(k, unit), .x_scales = a->by_32 ? a->l.steps : 1, .ndim = a->ndim,
		.x_dtype = a->x_dtype, .y_dtype = a->y_dtype, .integer = a->integer,
		.by_32 = a->by_32, .low = a->low, .high = a->high,
		.terms = !a->integer && a->x_dtype == HZ_F32 ? HZI_GROUP_TERMS : 1,
	};
	memcpy(p->shape, a->shape, sizeof(p->shape));
	memcpy(p->x_stride, a->x_stride, sizeof(p->x_stride));
	memcpy(p->y_stride, a->y_stride, sizeof(p->y_stride));
	if (!a->packed) {
		p->packed = (const uint8_t *)workspace;
		at += hzi_qgemm_padded((size_t)a->l.bytes);
	}
	p->plane = (int64_t)hzi_qgemm_padded((size_t)(a->rows * k) * (a->integer ? 1 : 2));
	p->copy = (uint8_t *)workspace + at;
	at += (size_t)(p->plane * p->terms);
	if (a->integer) {
		p->x_scale = (float *)(void *)(workspace + at);
		at += hzi_qgemm_padded(4 * (size_t)(a->rows * p->x_scales));
		p->x_sum = (int32_t *)(void *)(workspace + at);
		at += hzi_qgemm_padded(4 * (size_t)(a->rows * p->units));
	}
	return at;
}

size_t hzi_cuda_qlinear_group_parts_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_group_gemm p;

	(void)ctx;
	return parameters(args, (char *)&p, &p);
}

/* kernel: that of s8; those of f16 and bf16 follow it. */
static int multiply(struct hz_context *ctx, const struct hzi_qlinear_group_args *a, int kernel,
		    int64_t panels, int64_t rows)
{
	static const char op[] = "qlinear_group";
	struct hzi_launch launch = {.block = {HZI_GROUP_THREADS}};
	struct hzi_group_gemm p;

	parameters(a, ctx->workspace, &p);
	if (ceil_div(a->l.panels, panels) > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: n is %lld, must be below 2^35 on a GPU", op,
				(long long)a->l.n);
	if (!a->packed)
		HZ_CHECK(launch_pack(ctx, op, &a->l, &a->w, ctx->workspace));
	launch.grid[0] = (unsigned)min_of(a->rows, BLOCKS_MAX);
	HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_KERNEL_qgemm_group_rows, &launch, &p, sizeof(p)));
	launch.grid[0] = (unsigned)ceil_div(a->l.panels, panels);
	launch.grid[1] = (unsigned)min_of(ceil_div(a->rows, rows), BLOCKS_MAX);
	if (!a->integer)
		kernel += a->x_dtype == HZ_F16 ? 1 : 2;
	return hzi_cuda_launch(ctx, op, kernel, &launch, &p, sizeof(p));
}

int hzi_cuda_qlinear_group_skinny(struct hz_context *ctx, const void *args)
{
	return multiply(ctx, args, HZI_KERNEL_qgemm_group_skinny_s8, 1, HZI_GROUP_SKINNY_ROWS);
}

int hzi_cuda_qlinear_group_tiled(struct hz_context *ctx, const void *args)
{
	return multiply(ctx, args, HZI_KERNEL_qgemm_group_tiled_s8, HZI_GROUP_WARPS,
			HZI_GROUP_TILED_ROWS);
}

/*
 * The tiled kernel reads W once for 64 rows, not for 8, but needs 8 panels for each block: with
 * fewer blocks than SMs and little to read, more blocks win.
 */
bool hzi_cuda_qlinear_group_skinny_wins(const struct hz_context *ctx,
					const struct hzi_qlinear_group_args *a)
{
	const int64_t blocks = ceil_div(a->l.panels, HZI_GROUP_WARPS) *
			       ceil_div(a->rows, HZI_GROUP_TILED_ROWS);

	return a->rows <= HZI_GROUP_SKINNY_ROWS ||
	       (a->rows <= 4 * HZI_GROUP_SKINNY_ROWS && blocks < hzi_cuda_device(ctx)->sms);
}
