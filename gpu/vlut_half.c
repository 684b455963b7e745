/*
 * vlut_half.c - launchers of products of lattice codes and few vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cuda.h"
#include "gpu/vlut_half.h"
#include "gpu/vlut_launch.h"

#define COLUMNS 8

/* How a call is done */
struct plan {
	int kernel, columns, round;
	int64_t chunks, shares, shared;
	struct hzi_vlut_scales scales;
};

static bool plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		    const struct hzi_coded *w, struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	const int levels = l->rule.levels - w->first;
	const bool scaled = hzi_lattice_has_t(l);
	struct hzi_vlut_bytes bytes = {0};
	int64_t tiles, room, tile_bytes;

	if (a->vlut->route == HZ_VLUT_TABLE || a->x_dtype != HZ_F16 || a->y_dtype == HZ_S32 ||
	    a->batch > COLUMNS || levels * 2 != l->rule.d || !hzi_cuda_vlut_rows(l, w) ||
	    !hzi_cuda_vlut_bytes(l, levels, &bytes) || bytes.wide ||
	    !hzi_cuda_vlut_scales(l, w, &p->scales))
		return false;
	p->columns = a->batch == 1 ? 1 : COLUMNS;
	p->kernel = (l->rule.d == 4 ? HZI_KERNEL_vlut_half_d4_1 : HZI_KERNEL_vlut_half_d8_1) +
		    (scaled ? 2 : 0) + (a->batch == 1 ? 0 : 1);
	p->chunks = ceil_div(w->k, HZI_VHALF_CHUNK);
	tiles = ceil_div(w->rows, HZI_VHALF_ROWS);
	/* Few rows of many values: a split of k is better. */
	if (g->sm >= 90 && tiles * 4 < g->multiprocessors && p->chunks >= 32)
		return false;
	p->shares = tiles < g->multiprocessors ? tiles : g->multiprocessors;
	tile_bytes = (int64_t)HZI_VMMA_THREADS * p->columns * 4;	/* 16 warps, 32 rows */
	p->shared = 1024 + HZI_VMMA_TABLE_BYTES + (scaled ? HZI_VMMA_SCALES_BYTES : 0) +
		    p->chunks * HZI_VHALF_CHUNK * 2 * p->columns;
	room = (g->shared_block_bytes - p->shared) / tile_bytes;
	if (room < 1)
		return false;
	p->round = (int)ceil_div(tiles, p->shares);
	p->round = p->round < room ? p->round : (int)room;
	p->shared += p->round * tile_bytes;
	return true;
}

bool hzi_cuda_vlut_half_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(a->vlut->w, &a->w);
	struct plan p;

	return plan_of(ctx, a, &w, &p);
}

int hzi_cuda_vlut_half(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(l, &a->w);
	struct hzi_vlut_bytes bytes = {0};
	struct plan plan = {0};

	plan_of(ctx, a, &w, &plan);
	hzi_cuda_vlut_bytes(l, l->rule.levels - w.first, &bytes);

	struct hzi_vlut_half p = {
		.codes = w.codes, .t = w.t, .row_scale = w.row_scale, .x = a->x, .y = a->y,
		.row = w.row, .t_row = w.t_row, .row_scale_step = w.row_scale_step, .x_k = a->x_k,
		.x_b = a->x_b, .y_i = a->y_i, .y_b = a->y_b, .rows = (int32_t)w.rows,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w), .k = (int32_t)w.k,
		.chunks = (int32_t)plan.chunks, .batch = (int32_t)a->batch, .y_dtype = a->y_dtype,
		.q = l->rule.q, .group_shift = plan.scales.shift, .round = plan.round,
		.scales = l->rule.scales, .scale = plan.scales.factor,
		.rows_of_x = a->batch == COLUMNS && a->x_b == 1 && a->x_k % 8 == 0 &&
			     (uintptr_t)a->x % 16 == 0,
		.first = {bytes.first[0], bytes.first[1]},
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)plan.shares}, .block = {HZI_VMMA_THREADS},
		.shared_bytes = (unsigned)plan.shared, .early = true,
	};

	for (int i = 0; i < HZI_VMMA_ENTRIES * bytes.words; i++)
		p.leaders[i] = bytes.leaders[i];
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		p.scale_of[i] = plan.scales.of[i];
	return hzi_cuda_launch(ctx, "vlut_gemm", HZI_FAMILY_VLUT_HALF, plan.kernel, &launch, &p,
			       sizeof(p));
}
