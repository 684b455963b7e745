/*
 * pack_planar.c - launchers that pack quaternion matrices as f16 planes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_gemm/launch.h"
#include "gpu/quat_gemm/wgmma.h"

HZI_LINK_IMAGES(quat_gemm);

bool hzi_quat_uses_planar_f16(const struct hz_context *ctx, int dtype, int precision, int *split)
{
	*split = precision == HZ_PRECISION_SPLIT ||
		 (precision == HZ_PRECISION_AUTO && dtype == HZ_F32);
	return ctx->sm_90a && precision != HZ_PRECISION_F32;
}

struct hzi_quat_planar hzi_quat_planar_of(int64_t lines, int64_t k, int count, int split)
{
	return (struct hzi_quat_planar){
		.lines = lines, .k = k, .count = count, .split = split,
		.all_lines = round_up(lines, HZI_QUAT_WGMMA_TILE_K),
		.all_k = round_up(k, HZI_QUAT_WGMMA_TILE_K),
	};
}

static int64_t planes_bytes(const struct hzi_quat_planar *p)
{
	return 2 * p->count * (1 + p->split) * p->all_lines * p->all_k;
}

size_t hzi_quat_planar_bytes(const struct hzi_quat_planar *p)
{
	return padded(planes_bytes(p)) + padded(4 * p->all_lines);
}

void hzi_quat_planar_set(struct hzi_quat_planar *p, void *data)
{
	p->data = data;
	p->scales = (float *)(void *)((char *)data + padded(planes_bytes(p)));
}

/* Whether lines, not k, are the contiguous dimension */
static bool lines_are_contiguous(const struct hzi_quat_matrix *x)
{
	const int64_t line = x->row < 0 ? -x->row : x->row, k = x->col < 0 ? -x->col : x->col;

	return line < k;
}

/* Whether kernels may load a line by 16-byte vectors */
static bool is_vectorized(const struct hzi_quat_matrix *x, int64_t lines)
{
	const int64_t size = (int64_t)hz_dtype_size(x->dtype), first = x->comp[0];

	if (first != 0 && first != 3)
		return false;
	for (int c = 0; c < 4; c++) {
		if (x->comp[c] != (c + first) % 4)
			return false;
	}
	return x->col == 4 && (uintptr_t)x->data % 16 == 0 &&
	       (lines == 1 || x->row * size % 16 == 0);
}

int hzi_quat_planar_pack(struct hz_context *ctx, const char *op, const struct hzi_quat_planar *y,
			 const struct hzi_quat_matrix *x, bool left, const float *k_scales)
{
	struct hzi_quat_planar_f16 p = {
		.x = *x, .y = y->data, .scales = y->scales, .k_scales = k_scales,
		.copy = y->copy, .copy_line = hzi_quat_copy_line(y->k),
		.lines = y->lines, .k = y->k, .y_lines = y->all_lines, .y_k = y->all_k,
		.planes = y->count, .split = y->split, .parts = 1,
		.f0 = left ? 0.25f : 1, .f1 = left ? 2 : 1,
	};
	struct hzi_launch launch = {.block = {256}, .early = true};
	const int type = x->dtype == HZ_F32 ? 1 : x->dtype == HZ_F16 ? 2 : 3;

	if (lines_are_contiguous(x)) {
		while (p.parts < HZI_PACK_PLANAR_PARTS && p.parts * HZI_PACK_PLANAR_TILE < y->k)
			p.parts *= 2;
		launch.cluster = (unsigned)p.parts;
		launch.grid[0] = (unsigned)(ceil_div(y->all_lines, HZI_PACK_PLANAR_LINES) *
					    p.parts);
		return hzi_cuda_launch(ctx, op,
				       HZI_KERNEL_quat_planar_f16_transposed_strided +
					       (x->whole ? type : 0),
				       &launch, &p, sizeof(p));
	}
	launch.grid[0] = (unsigned)y->all_lines;
	launch.block[0] = (unsigned)min_of(256, round_up(y->all_k / 8, 32));
	return hzi_cuda_launch(ctx, op,
			       HZI_KERNEL_quat_planar_f16_strided +
				       (is_vectorized(x, y->lines) ? type : 0),
			       &launch, &p, sizeof(p));
}

int hzi_quat_planar_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			const struct hzi_quat_planar *p, int box_bytes, int box_rows)
{
	return hzi_cuda_tensor_map_2d(ctx, op, map, p->data, 2 * p->all_k,
				      p->count * (1 + p->split) * p->all_lines, 2 * p->all_k,
				      box_bytes, box_rows);
}
