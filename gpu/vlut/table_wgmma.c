/*
 * table_wgmma.c - launchers of products of lattice codes and many vectors on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/d4_bitfield.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/table_wgmma.h"

#define MOST_BYTES 512		/* of the largest of x, and what follows them */

static const char name[] = "vlut_gemm";

/* How a call is done: columns of a tile, kernels from `first` on, splits of k */
struct plan {
	int columns, kernel, parts, split;
	int64_t chunks, tiles, x_bytes;
	struct hzi_vlut_scales scales;
	bool scaled, fields, values;
};

static bool plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		    const struct hzi_coded *w, bool values, struct plan *p)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	const int levels = l->rule.levels - w->first;
	struct hzi_vlut_bytes bytes = {0};
	int64_t blocks;
	int size = 0;

	*p = (struct plan){.scaled = !values && hzi_lattice_has_t(l), .columns = 16, .split = 1,
			   .parts = a->x_dtype == HZ_F32 ? 2 : 1, .values = values,
			   .fields = !values && hzi_cuda_vlut_fields_are(l, w)};
	if (g->sm != 90 || !HZ_CUDA_90A || a->vlut->route == HZ_VLUT_TABLE ||
	    a->batch > INT32_MAX / 4 || a->y_dtype == HZ_S32)
		return false;
	if (!values && (a->x_dtype == HZ_S8 || levels * 2 != l->rule.d ||
			!hzi_cuda_vlut_scales(l, w, &p->scales) || p->scales.shift < 0))
		return false;
	if (!values && !p->fields && (!hzi_cuda_vlut_rows(l, w) ||
				      !hzi_cuda_vlut_bytes(l, levels, &bytes) || bytes.wide ||
				      bytes.large))
		return false;
	if (values && (w->rows > INT32_MAX - HZI_VWG_ROWS || w->k > INT32_MAX / 4))
		return false;
	while (p->columns < (values ? 64 : 128) && p->columns < a->batch * p->parts) {
		p->columns *= 2;
		size++;
	}
	p->kernel = (values ? HZI_KERNEL_vlut_wgmma_values_16 :
		     p->fields ? HZI_KERNEL_vlut_wgmma_fields_16 :
		     l->rule.d == 4 ? HZI_KERNEL_vlut_wgmma_d4_16 : HZI_KERNEL_vlut_wgmma_d8_16) +
		    (p->scaled ? 4 : 0) + size;
	p->chunks = ceil_div(w->k, HZI_VWG_CHUNK);
	p->tiles = ceil_div(a->batch * p->parts, p->columns);
	p->x_bytes = p->tiles * p->chunks * p->columns * HZI_VWG_CHUNK * 2;
	blocks = ceil_div(w->rows, HZI_VWG_ROWS) * p->tiles;
	if (p->tiles > 65535 || blocks > INT32_MAX / 8)
		return false;
	for (int split = 2; split <= 8 && p->chunks >= 4 * split; split++) {
		if (blocks <= hzi_cuda_vlut_clusters(g, split))
			p->split = split;
	}
	return true;
}

bool hzi_cuda_vlut_wgmma_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			       bool values)
{
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(a->vlut->w, &a->w);
	struct plan p;

	return plan_of(ctx, a, &w, values, &p);
}

size_t hzi_cuda_vlut_wgmma_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *a, bool values)
{
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(a->vlut->w, &a->w);
	struct plan p;

	plan_of(ctx, a, &w, values, &p);
	return (size_t)p.x_bytes + MOST_BYTES;
}

static int prepare_x(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
		     const struct plan *plan, char *room)
{
	const struct hzi_vlut_x p = {
		.x = a->x, .tiles = (uint8_t *)room,
		.most = a->x_dtype == HZ_F16 ? NULL : (float *)(void *)(room + plan->x_bytes),
		.x_k = a->x_k, .x_b = a->x_b, .k = (int32_t)a->w.k, .batch = (int32_t)a->batch,
		.chunks = (int32_t)plan->chunks, .columns = plan->columns, .parts = plan->parts,
		.x_dtype = a->x_dtype, .fields = plan->fields,
	};
	struct hzi_launch l = {.grid = {HZI_VWG_MOST}, .block = {HZI_VLUT_THREADS}, .early = true};
	const int64_t blocks = ceil_div(plan->x_bytes / 16 / plan->parts, HZI_VLUT_THREADS);

	if (p.most)
		HZ_CHECK(hzi_cuda_launch(ctx, name, HZI_KERNEL_vlut_x_most, &l, &p, sizeof(p)));
	l.grid[0] = (unsigned)(blocks < 1024 ? blocks : 1024);
	return hzi_cuda_launch(ctx, name, HZI_KERNEL_vlut_x_tiles, &l, &p, sizeof(p));
}

int hzi_cuda_vlut_wgmma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_vlut_product *o)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(l, &a->w);
	const int levels = l->rule.levels - w.first;
	struct hzi_vlut_bytes bytes = {0};
	struct plan plan;

	plan_of(ctx, a, &w, o->values != NULL, &plan);
	if (!plan.fields && !plan.values)
		hzi_cuda_vlut_bytes(l, levels, &bytes);

	struct hzi_vlut_wgmma p = {
		.codes = w.codes, .t = w.t, .tiles = (uint8_t *)o->room, .row_scale = w.row_scale,
		.power = a->x_dtype == HZ_F16 ? NULL :
			 (float *)(void *)(o->room + plan.x_bytes) + HZI_VWG_MOST,
		.column_scale = o->column_scale, .column_scale_step = o->column_scale_step,
		.y = a->y, .row = w.row, .t_row = w.t_row, .row_scale_step = w.row_scale_step,
		.y_i = a->y_i, .y_b = a->y_b, .rows = (int32_t)w.rows,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w),
		.chunks = (int32_t)plan.chunks,
		.batch = (int32_t)a->batch, .parts = plan.parts, .y_dtype = a->y_dtype,
		.q = l->rule.q, .group_shift = plan.scales.shift, .split = plan.split,
		.scales = l->rule.scales, .scale = (plan.values ? 1 : plan.scales.factor) *
		o->factor, .first = {bytes.first[0], bytes.first[1]},
	};
	const int before = (plan.fields || plan.values ? 0 : HZI_VMMA_TABLE_BYTES) +
			   (plan.scaled ? HZI_VMMA_SCALES_BYTES : 0);
	const struct hzi_launch launch = {
		.grid = {(unsigned)(ceil_div(w.rows, HZI_VWG_ROWS) * plan.split),
			 (unsigned)plan.tiles},
		.block = {HZI_VWG_THREADS}, .cluster = (unsigned)plan.split, .early = true,
		.shared_bytes = (unsigned)(1024 + HZI_VWG_BARRIERS(before, plan.columns) +
					   HZI_VWG_STAGES(plan.columns) * 16),
	};

	for (int i = 0; i < HZI_VMMA_ENTRIES * bytes.words; i++)
		p.leaders[i] = bytes.leaders[i];
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		p.scale_of[i] = plan.scales.of[i];
	if (plan.fields) {
		p.codes = w.packed;
		p.fields = (int32_t)hzi_cuda_vlut_fields_chunks(&w);
		p.scale *= 0x1p24f;
		for (int i = 0; i < 8; i++) {
			const int32_t o = l->rule.offset[i / 2] * (i % 2 ? 16 : 1);

			/* f16 below 2^-14: sign and absolute value */
			p.minus[i] = (uint32_t)(o > 0 ? 0x8000 | o : -o) * 0x10001u;
			p.centred |= o != 0;
		}
	}
	if (plan.values) {
		p.codes = o->values;
		p.row_bytes = p.chunks * HZI_VWG_CHUNK * 2;
		p.row = p.row_bytes;
	}
	if (!o->again)
		HZ_CHECK(prepare_x(ctx, a, &plan, o->room));
	return hzi_cuda_launch(ctx, name, plan.kernel, &launch, &p, sizeof(p));
}
