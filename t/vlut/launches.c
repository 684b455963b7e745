/*
 * launches.c - products of lattice-coded matrices for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

/* Products of one quantizer's codes on each GPU; NULL where the quantizer has no tables */
static struct {
	hz_vlut *automatic, *table;		/* with vectors of floats */
	hz_vlut *coded_automatic, *coded_table;	/* with codes */
} opened[GPUS];

static hz_vlut *vlut_of(hz_context *c, const hz_lattice *w, const hz_lattice *x, int route)
{
	const hz_vlut_opts o = {.route = route};
	hz_vlut *v = NULL;

	return hz_vlut_open(c, &v, w, x, &o) == HZ_OK ? v : NULL;
}

static void vluts_open(const struct quantizer *q)
{
	for (int g = 0; g < GPUS; g++) {
		hz_context *const c = scenes[g].ctx;
		const hz_lattice *const l = opened_quantizer(q, g)->lattice;

		opened[g].automatic = vlut_of(c, l, NULL, HZ_VLUT_AUTO);
		opened[g].table = vlut_of(c, l, NULL, HZ_VLUT_TABLE);
		opened[g].coded_automatic = vlut_of(c, l, l, HZ_VLUT_AUTO);
		/* A table of the products of all pairs of codes is small for few codes only. */
		opened[g].coded_table = opened_quantizer(q, g)->info.level_max > 256 ? NULL :
					vlut_of(c, l, l, HZ_VLUT_TABLE);
	}
}

static void vluts_close(void)
{
	for (int g = 0; g < GPUS; g++) {
		hz_vlut_close(opened[g].automatic);
		hz_vlut_close(opened[g].table);
		hz_vlut_close(opened[g].coded_automatic);
		hz_vlut_close(opened[g].coded_table);
	}
}

struct vlut_row {
	const struct quantizer *quantizer;
	int x_dtype, y_dtype, levels;
	bool table, packed, x_columns;
	int64_t rows, k, batch, step;
};

static hz_coded coded_of(const struct vlut_row *r, int64_t rows, hz_tensor *t)
{
	const hz_lattice_info *const info = &opened_quantizer(r->quantizer, gpu)->info;
	const int64_t blocks = (r->k + info->dim - 1) / info->dim;
	hz_coded w = {.k = r->k, .use_levels = r->levels};

	w.codes = V(info->level_dtype ? info->level_dtype : HZ_U32, rows, blocks,
		    r->quantizer->opts.levels);
	w.codes.stride[0] += r->step;
	if (info->scales) {
		*t = V(HZ_U8, rows, info->group ? (r->k + info->group - 1) / info->group :
						    blocks);
		w.t = t;
	}
	return w;
}

static int run_vlut(const void *row)
{
	const struct vlut_row *const r = row;
	const hz_vlut *const v = r->table ? opened[gpu].table : opened[gpu].automatic;
	hz_tensor t, x, y;
	hz_packed packed;
	hz_coded w;
	int status;

	note(" %s%s%s%s", r->quantizer->name, r->table ? " table" : "", r->packed ? " packed" : "",
	     r->levels ? " coarser" : "");
	if (r->step)
		note(" rows %" PRId64 " further", r->step);
	if (!v) {
		note_clear();
		return HZ_OK;
	}
	w = coded_of(r, r->rows, &t);
	if (r->packed) {
		w.use_levels = 0;
		status = hz_vlut_pack(ctx, v, &w, PACKED_AT, SIZE_MAX, &packed);
		if (status != HZ_OK)
			return status;
		w = (hz_coded){.use_levels = r->levels, .packed = &packed};
	}
	x = V(r->x_dtype, r->k, r->batch);
	if (r->x_columns) {
		x.stride[0] = 1;
		x.stride[1] = (r->k + 7) / 8 * 8;
		note(" by columns");
	}
	y = V(r->y_dtype ? r->y_dtype : HZ_F32, r->rows, r->batch);
	x = hz_view_transpose(&x, 0, 1);
	y = hz_view_transpose(&y, 0, 1);
	RECORD(ctx, hz_vlut_gemm(ctx, v, &w, &x, &y), &workspace);
	return hz_vlut_gemm(ctx, v, &w, &x, &y);
}

static int run_vlut2(const void *row)
{
	const struct vlut_row *const r = row;
	const hz_vlut *const v = r->table ? opened[gpu].coded_table : opened[gpu].coded_automatic;
	hz_tensor t, u, y;
	hz_packed packed;
	hz_coded w, x;
	int status;

	note(" %s%s%s", r->quantizer->name, r->table ? " table" : "", r->packed ? " packed" : "");
	if (!v) {
		note_clear();
		return HZ_OK;
	}
	w = coded_of(r, r->rows, &t);
	x = coded_of(r, r->batch, &u);
	if (r->packed) {
		status = hz_vlut_pack(ctx, v, &w, PACKED_AT, SIZE_MAX, &packed);
		if (status != HZ_OK)
			return status;
		w = (hz_coded){.packed = &packed};
	}
	y = V(r->y_dtype ? r->y_dtype : HZ_F32, r->rows, r->batch);
	y = hz_view_transpose(&y, 0, 1);
	RECORD(ctx, hz_vlut_gemm2(ctx, v, &w, &x, &y), &workspace);
	return hz_vlut_gemm2(ctx, v, &w, &x, &y);
}

static const int x_dtypes[] = {HZ_F16, HZ_F32, HZ_BF16, HZ_S8};

static void trace_packed(const struct quantizer *q)
{
	static const int64_t sizes[][3] = {
		{64, 1008, 1}, {8192, 1008, 1}, {20000, 1008, 1}, {2000, 1008, 8}, {8192, 1008, 8},
		{20000, 1008, 8}, {4096, 1008, 32}, {11008, 1008, 32}, {11008, 1008, 16},
		{16384, 1008, 32}, {4096, 1008, 64}, {16384, 1008, 64}, {11008, 1008, 64},
		{2048, 1008, 128}, {16384, 1008, 128}, {4096, 1008, 256}, {11008, 1008, 256},
		{4352, 1288, 256}, {4249, 2600, 200}, {8192, 2048, 24}, {4096, 1008, 33},
		{4096, 8192, 2}, {640, 40968, 1}, {64, 1008, 20}, {4096, 4096, 16},
		{16384, 1008, 16}, {8192, 8192, 16}, {640, 1024, 5}, {640, 1024, 9},
		{8192, 16384, 9},
	};

	EACH(s, sizes) {
		EACH(d, x_dtypes) {
			struct vlut_row r = {
				.quantizer = q, .x_dtype = x_dtypes[d], .packed = true,
				.y_dtype = x_dtypes[d] == HZ_S8 ? HZ_S32 : HZ_F32,
				.rows = sizes[s][0], .k = sizes[s][1], .batch = sizes[s][2]};

			trace("vlut_gemm", run_vlut, &r);
			r.x_columns = true;
			if (d == 0 && r.batch < 9)
				trace("vlut_gemm", run_vlut, &r);
		}
	}
}

void trace_vlut(void)
{
	static const int64_t sizes[][3] = {	/* rows, k, batch */
		{4096, 3840, 1}, {4096, 3840, 8}, {640, 960, 3}, {4096, 3840, 32}, {60, 960, 1},
		{640, 960, 16}, {640, 1920, 200}, {16384, 960, 64}, {20000, 960, 2},
	};

	for (size_t i = 0; i < quantizers_count; i++) {
		const struct quantizer *const q = &quantizers[i];

		vluts_open(q);
		EACH(s, sizes) {
			EACH(d, x_dtypes) {
				struct vlut_row r = {
					.quantizer = q, .x_dtype = x_dtypes[d],
					.y_dtype = x_dtypes[d] == HZ_S8 ? HZ_S32 : HZ_F32,
					.rows = sizes[s][0], .k = sizes[s][1],
					.batch = sizes[s][2]};

				/* dtypes beside f16: some of the sizes */
				if (d > 0 && s != 0 && s != 2 && s != 5)
					continue;
				trace("vlut_gemm", run_vlut, &r);
				r.table = true;
				if (s == 2 && d != 2)
					trace("vlut_gemm", run_vlut, &r);
				r.table = false;
				r.step = 8;
				if (s == 2 && d == 0)
					trace("vlut_gemm", run_vlut, &r);
				r.step = 0;
				r.levels = 1;
				if (s == 2 && d == 0)
					trace("vlut_gemm", run_vlut, &r);
				r.levels = 0;
				r.packed = true;
				if (s == 2)
					trace("vlut_gemm", run_vlut, &r);
			}
		}
		for (int n = 0; n < 6; n++) {
			const struct vlut_row r = {.quantizer = q, .rows = 640, .k = 1920,
						   .batch = n % 2 ? 600 : 100, .packed = n / 2 == 1,
						   .table = n / 2 == 2,
						   .y_dtype = n % 2 ? HZ_F32 : HZ_S32};

			trace("vlut_gemm2", run_vlut2, &r);
		}
		/* The two with kernels of their own for packed codes */
		if (strcmp(q->name, "D4 q=4 M=2") == 0 || strcmp(q->name, "E8 q=4 M=2") == 0)
			trace_packed(q);
		vluts_close();
	}
}
