/*
 * cuda.c - what the launchers of products with lattice codes hand to the driver, seen by a
 * stand-in
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Nothing is computed here: which kernels are taken, and that the driver would take them. That they
 * do what they should is for t/vlut/vlut with HZ_TEST_DEVICE=cuda.
 */
#include <config.h>

#include "t/core/cuda_calls.h"
#include "t/lattice/open.h"
#include "gpu/vlut/vlut.h"
#include "lib/vlut/vlut.h"

#if HZ_HAVE_CUDA

#define OPERAND_BYTES ((size_t)1 << 26)

static hz_context *ctx;
static char *codes, *scales, *x, *y;
#define FAR ((int64_t)1 << 40)	/* from all of these */

/* A view [columns, rows] whose columns are contiguous */
static hz_tensor by_columns(void *data, int dtype, int64_t rows, int64_t columns)
{
	const hz_tensor t = hz_tensor_2d(data, dtype, HZ_CUDA, rows, columns);

	return hz_view_transpose(&t, 0, 1);
}

/* ---- One-sided ------------------------------------------------------------------------------- */

static const int64_t far[] = {70000};
static const double basis[] = {1.0, 0.4, 0.1, 1.2};

/* step: what rows of codes begin apart, beyond their length */
static const struct row {
	const char *name;
	hz_lattice_opts lattice;
	int route, x_dtype;
	int64_t rows, k, batch, step;
	const char *kernels;
	unsigned grid, cluster;		/* of the last one */
} table[] = {
	{"one vector", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F16, 4096, 4096, 1, 0,
	 "vlut_table_f16_skinny_d4_1", 128, 0},
	{"one vector in f32", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F32, 4096, 4096, 1,
	 0,
	 "vlut_table_s8_skinny_d4_l2", 132, 0},
	{"few rows: k is split", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_BF16, 64, 4096,
	 2, 0,
	 "vlut_table_s8_skinny_d4_l2", 8, 2},
	{"groups",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP, .group = 32},
	 0, HZ_F32, 4096, 4096, 1, 0, "vlut_table_s8_skinny_d4_l2_scaled", 132, 0},
	{"groups of 16",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP, .group = 16},
	 0, HZ_F32, 640, 4096, 1, 0,
	 "lattice_decode_d4_f16 vlut_table_wgmma_x_absmax vlut_table_wgmma_x_pack "
	 "vlut_table_wgmma_f16_16", 24, 8},
	{"groups of 16 by a vector of f16",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP, .group = 16},
	 0, HZ_F16, 4096, 4096, 1, 0, "vlut_table_f16_skinny_d4_block_scaled_1", 128, 0},
	{"groups of 24",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP, .group = 24},
	 0, HZ_F16, 640, 3072, 1, 0,
	 "lattice_decode_d4 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 18, 6},
	{"a scale for each block", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
	  .policy = HZ_LATTICE_T}, 0, HZ_F16, 8192, 8192, 1, 0,
	  "vlut_table_f16_skinny_d4_block_scaled_1", 132, 0},
	{"skinny GEMM", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
	  .policy = HZ_LATTICE_T}, 0, HZ_F16, 40, 8192, 1, 0,
	  "vlut_table_f16_skinny_d4_block_scaled_1", 2, 0},
	{"by 8 vectors", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4, .policy = HZ_LATTICE_T}, 0,
	 HZ_F16, 8192, 8192, 8, 0, "vlut_table_f16_skinny_d8_block_scaled_8", 132, 0},
	{"scales too far apart", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .alpha = 0.5,
	  .policy = HZ_LATTICE_T}, 0, HZ_F16, 640, 1024, 1, 0,
	 "lattice_decode_d4_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 6, 2},
	{"a thousand leaders and more", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2}, 0, HZ_F16,
	 8192, 8192, 1, 0, "vlut_table_f16_skinny_d4_u16_1", 132, 0},
	{"with scales", {.kind = HZ_LATTICE_D, .q = 6, .levels = 2, .policy = HZ_LATTICE_GROUP,
	  .group = 128}, 0, HZ_F16, 640, 1024, 3, 0,
	  "vlut_table_f16_skinny_d4_u16_block_scaled_8", 20, 0},
	{"of E8", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2, .policy = HZ_LATTICE_T}, 0, HZ_F16,
	 640, 1024, 1, 0, "vlut_table_f16_skinny_d8_u16_block_scaled_1", 20, 0},
	{"by the rules", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .policy = HZ_LATTICE_T}, 0,
	 HZ_F16, 640, 1024, 8, 0, "vlut_closest_point_skinny_e8_block_scaled_8", 20, 0},
	{"D4 by them", {.kind = HZ_LATTICE_D, .q = 12, .levels = 1}, 0, HZ_F16, 640, 1024, 1, 0,
	 "vlut_closest_point_skinny_d4_1", 20, 0},
	{"D8, which has none", {.kind = HZ_LATTICE_D, .dim = 8, .q = 5, .levels = 1}, 0, HZ_F16,
	 640, 1024, 1, 0,
	 "lattice_decode_d8 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 6, 2},
	{"A2", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
	  .group = 64}, 0, HZ_F16, 640, 1024, 1, 0, "vlut_table_f16_skinny_d2_l2_scaled_1", 20, 0},
	{"Z", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1}, 0, HZ_F16, 640, 1024, 8, 0,
	 "vlut_table_f16_skinny_d1_l1_8", 20, 0},
	{"Z of points beyond f16", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .offset = far}, 0,
	 HZ_F16, 640, 1024, 1, 0,
	 "lattice_decode_z1 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 6, 2},
	{"codes of 16 bits with scales", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2,
	  .policy = HZ_LATTICE_T}, 0, HZ_F16, 8192, 8192, 1, 0,
	  "vlut_table_f16_skinny_e8q4_block_scaled", 132, 0},
	{"E8", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4}, 0, HZ_F16, 4096, 4096, 1, 0,
	 "vlut_table_f16_skinny_d8_1", 128, 0},
	{"vectors of s8", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_S8, 4096, 4096, 8, 0,
	 "vlut_table_s8_skinny_d4_l2", 132, 0},
	{"a long vector of s8", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_S8, 16, 131040,
	 1, 0, "vlut_table_s8_skinny_d4_l2", 8, 8},
	{"one whose sum may leave 32 bits", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_S8,
	 16, 131072, 1, 0,
	 "lattice_decode_d4_f16 vlut_table_wgmma_x_absmax vlut_table_wgmma_x_pack "
	 "vlut_table_wgmma_f16_16", 8, 8},
	{"8 vectors", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F16, 4096, 4096, 8, 0,
	 "vlut_table_f16_skinny_d4_8", 128, 0},
	{"8 long vectors", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F16, 512, 16384, 8, 0,
	 "vlut_table_wgmma_x_pack vlut_table_wgmma_d4_16", 16, 8},
	{"groups by 8 vectors",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
	  .group = 32}, 0, HZ_F16, 4096, 4096, 8, 0, "vlut_table_f16_skinny_d4_scaled_8", 128, 0},
	{"a batch", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F16, 4096, 4096, 16, 0,
	 "vlut_table_wgmma_x_pack vlut_table_wgmma_d4_16", 80, 5},
	{"a batch in f32", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F32, 4096, 4096, 32,
	 0,
	 "vlut_table_wgmma_x_absmax vlut_table_wgmma_x_pack vlut_table_wgmma_d4_64", 80, 5},
	{"a batch by groups of E8", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4,
	  .policy = HZ_LATTICE_GROUP, .group = 64}, 0, HZ_F16, 8192, 1024, 256, 0,
	 "vlut_table_wgmma_x_pack vlut_table_wgmma_d8_scaled_128", 64, 2},
	{"two bits", {.kind = HZ_LATTICE_D, .q = 4, .levels = 1}, 0, HZ_F16, 4096, 4096, 16, 0,
	 "vlut_table_s8_skinny_d4_l1_8 vlut_table_s8_skinny_d4_l1_8", 132, 0},
	{"rows that are not aligned", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 0, HZ_F16, 640,
	 1024, 1, 8, "lattice_decode_d4 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 6, 2},
	{"codes of 16 bits", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}, 0, HZ_F16, 640, 1024, 1,
	 0,
	 "vlut_table_s8_skinny_e8q4", 40, 0},
	{"codes of 16 bits, not all of them", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2}, 0,
	 HZ_F16, 640, 1024, 1, 0, "vlut_table_f16_skinny_d8_u16_1", 20, 0},
	{"more vectors than go with large tables", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}, 0,
	 HZ_F16, 640, 1024, 40, 0,
	 "lattice_decode_e8q4_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_64", 6, 2},
	{"rows that are decoded in slabs", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}, 0, HZ_F16,
	 8192, 16384, 8, 0,
	 "lattice_decode_e8q4_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16 "
	 "lattice_decode_e8q4_f16 vlut_table_wgmma_f16_16", 80, 5},
	{"a basis", {.kind = HZ_LATTICE_BASIS, .dim = 2, .q = 4, .levels = 2, .basis = basis}, 0,
	 HZ_F16, 640, 1024, 1, 0,
	 "lattice_decode_generic_basis vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 6, 2},
	{"tables", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, HZ_VLUT_TABLE, HZ_F16, 640, 1024, 1,
	 0,
	 "vlut_table_build_f32 vlut_table_lookup_f32", 80, 0},
	{"tables in slices", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}, HZ_VLUT_TABLE, HZ_F16,
	 640, 4096, 1,
	 0,
	 "vlut_table_build_f32 vlut_table_lookup_f32 vlut_table_build_f32 "
	 "vlut_table_lookup_f32", 80, 0},
};

static void test_gemm(const struct row *r)
{
	const hz_vlut_opts o = {.route = r->route};
	hz_lattice *l;
	hz_lattice_info info;
	hz_vlut *v;
	hz_coded w = {.k = r->k};
	hz_tensor xt, yt, t;
	int64_t blocks;

	if (open_lattice(ctx, &l, &r->lattice) || hz_vlut_open(ctx, &v, l, NULL, &o))
		bail("%s: %s", r->name, hz_errmsg(ctx));
	hz_lattice_get_info(l, &info);
	blocks = r->k / info.dim;
	w.codes = hz_tensor_3d(codes, info.level_dtype, HZ_CUDA, r->rows, blocks, info.levels);
	w.codes.stride[0] += r->step;
	t = hz_tensor_2d(scales, HZ_U8, HZ_CUDA, r->rows, info.group ? r->k / info.group : blocks);
	w.t = info.scales ? &t : NULL;
	xt = by_columns(x, r->x_dtype, r->k, r->batch);
	yt = by_columns(y, HZ_F32, r->rows, r->batch);
	is_int(hz_vlut_gemm(ctx, v, &w, &xt, &yt), HZ_OK, "%s: %s", r->name, hz_errmsg(ctx));
	is_str(taken(), r->kernels, "%s: kernels", r->name);
	is_int(last()->grid[0], r->grid, "%s: blocks", r->name);
	is_int(last()->cluster, r->cluster, "%s: of a cluster", r->name);
	hz_vlut_close(v);
	hz_lattice_close(l);
}

/* A matrix of the lattice of w, without T, packed to data */
static hz_coded packed_as(const hz_vlut *v, int64_t rows, int64_t k, void *data, hz_packed *p)
{
	const struct hzi_lattice_rule *r = &v->w->rule;
	const int dtype = r->level_size <= 256 ? HZ_U8 : r->shaping ? HZ_U32 : HZ_U16;
	const int64_t blocks = (k + r->d - 1) / r->d;
	const hz_tensor t = hz_tensor_2d(codes + 2 * FAR, HZ_U8, HZ_CUDA, rows, blocks);
	const hz_coded w = {
		.k = k, .t = r->shaping ? &t : NULL,
		.codes = hz_tensor_3d(codes + FAR, dtype, HZ_CUDA, rows, blocks, r->levels),
	};

	if (hz_vlut_pack(ctx, v, &w, data, SIZE_MAX, p))
		bail("%s", hz_errmsg(ctx));
	taken();
	return (hz_coded){.packed = p};
}

/* x [batch, k] and y [batch, rows], both contiguous */
static void test_contiguous(void)
{
	static const struct {
		int x_dtype;
		int64_t batch;
		bool packed;
		const char *kernels;
	} rows[] = {
		{HZ_F16, 1, false, "vlut_table_f16_skinny_d4_1"},
		{HZ_F16, 8, false, "vlut_table_f16_skinny_d4_8"},
		{HZ_F32, 2, false, "vlut_table_s8_skinny_d4_l2"},
		{HZ_F16, 32, false, "vlut_table_wgmma_x_pack vlut_table_wgmma_d4_32"},
		{HZ_F16, 1, true, "vlut_d4_bitfield_2"},
		{HZ_F16, 8, true, "vlut_d4_f16_skinny_column_major_2"},
		{HZ_S8, 8, true, "vlut_d4_bitfield_2"},
		{HZ_F16, 32, true, "vlut_d4_wgmma_f16_64x32"},
	};
	const hz_lattice_opts o = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2};
	const hz_coded w = {.codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 4096, 1024, 2)};
	hz_coded packed;
	hz_packed p;
	hz_lattice *l;
	hz_vlut *v;

	if (open_lattice(ctx, &l, &o) || hz_vlut_open(ctx, &v, l, NULL, NULL))
		bail("%s", hz_errmsg(ctx));
	packed = packed_as(v, 4096, 4096, scales, &p);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const hz_tensor xt = hz_tensor_2d(x, rows[i].x_dtype, HZ_CUDA, rows[i].batch, 4096);
		hz_tensor yt = hz_tensor_2d(y, HZ_F32, HZ_CUDA, rows[i].batch, 4096);

		is_int(hz_vlut_gemm(ctx, v, rows[i].packed ? &packed : &w, &xt, &yt), HZ_OK,
		       "contiguous, batch of %d%s: %s", (int)rows[i].batch,
		       rows[i].packed ? ", packed" : "", hz_errmsg(ctx));
		is_str(taken(), rows[i].kernels, "its kernels");
	}
	hz_vlut_close(v);
	hz_lattice_close(l);
}

/* Coarser levels: o is not multiplied by what these are. */
static void test_coarser(void)
{
	static const int64_t offset[] = {3, -2, 1, 2};
	hz_lattice_opts o = {.kind = HZ_LATTICE_D, .q = 3, .levels = 3};

	for (int i = 0; i < 2; i++, o.offset = offset) {
		hz_tensor xt = by_columns(x, HZ_F16, 1024, 1);
		hz_tensor yt = by_columns(y, HZ_F32, 640, 1);
		hz_lattice *l;
		hz_vlut *v;
		hz_coded w = {.k = 1024, .use_levels = 2};

		w.codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 640, 256, 2);
		if (open_lattice(ctx, &l, &o) || hz_vlut_open(ctx, &v, l, NULL, NULL))
			bail("%s", hz_errmsg(ctx));
		is_int(hz_vlut_gemm(ctx, v, &w, &xt, &yt), HZ_OK, "coarser levels%s",
		       i ? " of points beside 0" : "");
		is_str(taken(), i ?
		       "lattice_decode_d4_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16" :
		       "vlut_table_f16_skinny_d4_1", "by kernels that know them");
		hz_vlut_close(v);
		hz_lattice_close(l);
	}
}

/* ---- Packed and two-sided -------------------------------------------------------------------- */

/* Products with packed codes; levels: 0 for all */
struct packed_row {
	const char *name;
	int levels, x_dtype, y_dtype;
	int64_t rows, batch;
	const char *kernels;
	unsigned grid, cluster;
	int64_t k;
};

/* by_rows: x is [batch, k] and y [batch, rows]; else vectors are adjacent */
static void test_packed_rows(hz_vlut *v, const struct packed_row *r, size_t count, bool by_rows)
{
	for (; count > 0; r++, count--) {
		hz_packed p;
		hz_coded w = packed_as(v, r->rows, r->k, scales, &p);
		const hz_tensor xt = by_rows ?
				     hz_tensor_2d(x, r->x_dtype, HZ_CUDA, r->batch, r->k) :
				     by_columns(x, r->x_dtype, r->k, r->batch);
		hz_tensor yt = by_rows ?
			       hz_tensor_2d(y, r->y_dtype, HZ_CUDA, r->batch, r->rows) :
			       by_columns(y, r->y_dtype, r->rows, r->batch);

		w.use_levels = r->levels;
		is_int(hz_vlut_gemm(ctx, v, &w, &xt, &yt), HZ_OK, "%s: %s", r->name,
		       hz_errmsg(ctx));
		is_str(taken(), r->kernels, "%s: kernels", r->name);
		is_int(last()->grid[0], r->grid, "%s: blocks", r->name);
		is_int(last()->cluster, r->cluster, "%s: of a cluster", r->name);
	}
}

/* Packing w takes `bytes` bytes, with rows and values padded, and launches `kernel`. */
static void test_packing(const char *name, const hz_lattice_opts *o, const hz_coded *w,
			 int64_t bytes, const char *kernel, const struct packed_row *rows,
			 size_t count, bool by_rows)
{
	hz_lattice *l;
	hz_vlut *v;
	size_t room;
	hz_packed p;

	if (open_lattice(ctx, &l, o) || hz_vlut_open(ctx, &v, l, NULL, NULL))
		bail("%s", hz_errmsg(ctx));
	is_int(hz_vlut_pack_bytes(ctx, v, w, &room), HZ_OK, "%s: room for packed codes", name);
	is_int((int64_t)room, bytes, "%s: bytes", name);
	is_int(hz_vlut_pack(ctx, v, w, scales, room, &p), HZ_OK, "%s: codes are packed", name);
	is_str(taken(), kernel, "%s: by a kernel", name);
	test_packed_rows(v, rows, count, by_rows);
	hz_vlut_close(v);
	hz_lattice_close(l);
}

static const struct packed_row packed_table[] = {	/* D4 */
	{"a vector", 0, HZ_F16, HZ_F32, 64, 1, "vlut_d4_bitfield_2", 8, 2, 1008},
	{"a vector by many rows", 0, HZ_F16, HZ_F32, 8192, 1, "vlut_d4_bitfield_2", 132, 0, 1008},
	{"a vector of f32 by many rows", 0, HZ_F32, HZ_F32, 8192, 1,
	 "vlut_d4_bitfield_2", 132, 0, 1008},
	{"a vector by more rows", 0, HZ_F16, HZ_F32, 20000, 1, "vlut_d4_bitfield_2", 132, 0, 1008},
	{"two vectors", 0, HZ_F32, HZ_F32, 64, 2, "vlut_d4_bitfield_2", 8, 2, 1008},
	{"8 vectors", 0, HZ_BF16, HZ_F32, 64, 8, "vlut_label_x vlut_d4_wgmma_bf16_64x16", 4, 4,
	 1008},
	{"8 vectors of f16 by many rows", 0, HZ_F16, HZ_F16, 2000, 8,
	 "vlut_d4_f16_skinny_row_major_2", 125, 0,
	 1008},
	{"by more rows", 0, HZ_F16, HZ_F32, 8192, 8,
	 "vlut_d4_f16_skinny_row_major_4", 132, 0, 1008},
	{"by so many that they are taken in turns", 0, HZ_F16, HZ_F32, 20000, 8,
	 "vlut_d4_f16_skinny_row_major_6", 132, 0, 1008},
	{"7 vectors of f16 by many rows", 0, HZ_F16, HZ_F16, 2000, 7, "vlut_d4_bitfield_8", 125, 0,
	 1008},
	{"vectors of s8", 0, HZ_S8, HZ_S32, 64, 16,
	 "vlut_d4_bitfield_2 vlut_d4_bitfield_2", 8, 2, 1008},
	{"more vectors of s8", 0, HZ_S8, HZ_S32, 64, 20,
	 "vlut_d4_bitfield_points_s8 qgemm_pack_rows qgemm_skinny_64_s8", 8, 8, 1008},
	{"a batch", 0, HZ_F16, HZ_F32, 4096, 32, "vlut_d4_f16_wgmma_64x32", 128, 2, 1008},
	{"by more rows", 0, HZ_F16, HZ_F16, 11008, 32, "vlut_d4_f16_wgmma_192x32", 116, 2, 1008},
	{"16 vectors", 0, HZ_F16, HZ_F16, 11008, 16, "vlut_d4_f16_wgmma_192x16", 116, 2, 1008},
	{"by many rows", 0, HZ_F16, HZ_F16, 16384, 32, "vlut_d4_f16_wgmma_128x32", 128, 0, 1008},
	{"a larger batch", 0, HZ_F16, HZ_BF16, 4096, 64, "vlut_d4_f16_wgmma_64x64", 128, 2, 1008},
	{"by more rows", 0, HZ_F16, HZ_F16, 16384, 64, "vlut_d4_f16_wgmma_128x64", 128, 0, 1008},
	{"128 vectors", 0, HZ_F16, HZ_F16, 2048, 128, "vlut_d4_f16_wgmma_64x64", 64, 2, 1008},
	{"by more rows", 0, HZ_F16, HZ_F16, 16384, 128, "vlut_d4_f16_wgmma_128x128", 128, 0, 1008},
	{"256 vectors", 0, HZ_F16, HZ_F16, 4096, 256, "vlut_d4_f16_wgmma_64x128", 64, 0, 1008},
	{"by more rows", 0, HZ_F16, HZ_F16, 11008, 256, "vlut_d4_f16_wgmma_192x128", 58, 0, 1008},
	{"tiles of 128, k is split", 0, HZ_F16, HZ_F16, 4352, 256,
	 "vlut_d4_f16_wgmma_192x128", 46, 2, 1288},
	{"tiles of 256, k is split", 0, HZ_F16, HZ_F16, 4249, 200,
	 "vlut_d4_f16_wgmma_128x256", 102, 3, 2600},
	{"lines beyond the last vector", 0, HZ_F16, HZ_F16, 8192, 24,
	 "vlut_d4_f16_wgmma_128x32", 128, 2,
	 2048},
	{"a batch in bf16", 0, HZ_BF16, HZ_F32, 4096, 32,
	 "vlut_label_x vlut_d4_wgmma_bf16_64x32", 128, 2, 1008},
	{"a batch whose rows are not aligned", 0, HZ_F16, HZ_F32, 4096, 33,
	 "vlut_label_x vlut_d4_wgmma_f16_64x64", 128, 2, 1008},
	{"the coarser level", 1, HZ_F16, HZ_F32, 64, 1, "vlut_generic_f32", 1, 0, 1008},
};

/* x by rows: copied for the kernels of columns where there are many products */
static const struct packed_row row_table[] = {
	{"32 rows", 0, HZ_F16, HZ_F16, 4096, 32, "vlut_d4_wgmma_f16_64x32", 128, 2, 4096},
	{"64 rows by more", 0, HZ_F16, HZ_F16, 11008, 64, "vlut_d4_x vlut_d4_f16_wgmma_192x64", 116, 2,
	 4096},
	{"9 rows by more", 0, HZ_F16, HZ_F32, 8192, 9, "vlut_d4_x vlut_d4_f16_wgmma_128x16", 128,
	 2, 4096},
	{"200 rows by more", 0, HZ_F16, HZ_F16, 11008, 200, "vlut_d4_wgmma_f16_128x256", 86, 0, 4096},
};

static void test_packed(void)
{
	const hz_lattice_opts o = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2};
	hz_coded w = {.k = 1008, .codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 60, 252, 2)};

	w.codes.stride[0] = 2;
	w.codes.stride[1] = 2 * 60;
	test_packing("D4 by columns", &o, &w, 64 * 512, "vlut_d4_bitfield_pack", packed_table,
		     sizeof(packed_table) / sizeof(*packed_table), false);
	test_packing("D4 by columns", &o, &w, 64 * 512, "vlut_d4_bitfield_pack", row_table,
		     sizeof(row_table) / sizeof(*row_table), true);
}

/* Of points too far from 0 for bit fields: rows of codes */
static const struct packed_row far_table[] = {
	{"far from 0, a vector", 0, HZ_F16, HZ_F32, 2000, 1,
	 "lattice_decode_d4 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 16, 2, 1008},
	{"far from 0, a batch", 0, HZ_BF16, HZ_F32, 4096, 32,
	 "lattice_decode_d4 vlut_table_wgmma_x_absmax vlut_table_wgmma_x_pack "
	 "vlut_table_wgmma_f16_32", 32, 2, 1008},
	{"far from 0, vectors of s8", 0, HZ_S8, HZ_S32, 64, 20, "vlut_generic_s32", 1, 0, 1008},
};

static void test_far(void)
{
	static const int64_t offset[] = {1500, -700, 1100, 300};
	const hz_lattice_opts o = {
		.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .offset = offset,
	};
	const hz_coded w = {.k = 1008, .codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 60, 252, 2)};

	test_packing("far from 0", &o, &w, 60 * 512, "vlut_pack", far_table,
		     sizeof(far_table) / sizeof(*far_table), false);
}

static const struct packed_row e8_table[] = {
	{"E8, a vector", 0, HZ_F16, HZ_F32, 4096, 1, "vlut_e8_bitplane_1", 132, 0, 4096},
	{"E8, a vector of few rows", 0, HZ_F32, HZ_F16, 60, 1, "vlut_e8_bitplane_1", 4, 0, 1000},
	{"E8, a vector by a great many rows", 0, HZ_BF16, HZ_F16, 140000, 1, "vlut_e8_bitplane_1",
	 137, 0, 64},
	{"E8, two vectors", 0, HZ_F16, HZ_F32, 4096, 2, "vlut_e8_bitplane_2", 132, 0, 8192},
	{"E8, two vectors of which one fits", 0, HZ_F16, HZ_F32, 4096, 2,
	 "vlut_e8_bitplane_1 vlut_e8_bitplane_1", 132, 0, 24576},
	{"E8, three vectors", 0, HZ_S8, HZ_S32, 640, 3,
	 "vlut_e8_bitplane_2 vlut_e8_bitplane_1", 40, 0, 1024},
	{"E8, vectors of s8", 0, HZ_S8, HZ_S32, 640, 9,
	 "vlut_e8_bitplane_points_s8 qgemm_pack_rows qgemm_skinny_64_s8", 8, 8, 1024},
	{"E8, a batch", 0, HZ_F16, HZ_F32, 640, 40,
	 "vlut_e8_bitplane_values_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_64", 6, 2, 1024},
	{"E8, the coarser level", 1, HZ_F16, HZ_F32, 640, 1,
	 "vlut_e8_bitplane_values_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16", 6, 2, 1024},
	{"E8, rows that are decoded in slabs", 0, HZ_F16, HZ_F32, 8192, 9,
	 "vlut_e8_bitplane_values_f16 vlut_table_wgmma_x_pack vlut_table_wgmma_f16_16 "
	 "vlut_e8_bitplane_values_f16 vlut_table_wgmma_f16_16",
	 80, 5, 16384},
	{"E8, rows too long for planes of bits", 0, HZ_F16, HZ_F32, 640, 1,
	 "vlut_table_s8_skinny_e8q4", 128, 8, 40968},
};

static void test_e8_bitplane(void)
{
	const hz_lattice_opts o = {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2};
	const hz_coded w = {.k = 1009, .codes = hz_tensor_3d(codes, HZ_U16, HZ_CUDA, 60, 127, 2)};

	test_packing("E8", &o, &w, 64 * 512, "vlut_e8_bitplane_pack", e8_table,
		     sizeof(e8_table) / sizeof(*e8_table), false);
}

static const struct packed_row label_table[] = {
	{"labels, a vector", 0, HZ_BF16, HZ_F16, 4096, 1, "vlut_label_skinny_cube_16bit_1", 132, 0,
	 4096},
	{"labels, 4 vectors of f32", 0, HZ_F32, HZ_F32, 4096, 4, "vlut_label_skinny_cube_any_8",
	 132, 0, 4096},
	{"labels, 5 vectors of f32", 0, HZ_F32, HZ_F32, 4096, 5,
	 "vlut_label_x vlut_label_wgmma_cube_f16_64x16", 128, 2, 4096},
	{"labels, a batch", 0, HZ_F16, HZ_F16, 768, 32,
	 "vlut_label_x vlut_label_wgmma_cube_f16_64x16", 36, 3, 768},
};

static const struct packed_row label_row_table[] = {
	{"labels, a batch of rows", 0, HZ_F16, HZ_F16, 4096, 32,
	 "vlut_label_wgmma_cube_f16_64x32", 128, 2, 4096},
	{"labels, a batch of rows that are not aligned", 0, HZ_F16, HZ_F16, 4096, 32,
	 "vlut_label_x vlut_label_wgmma_cube_f16_64x32", 128, 2, 4092},
	{"labels, 64 rows", 0, HZ_BF16, HZ_BF16, 4096, 64,
	 "vlut_label_wgmma_cube_bf16_64x64", 128, 2, 4096},
	{"labels, 16 rows by more than an SM's 64", 0, HZ_F16, HZ_F16, 8449, 16,
	 "vlut_label_wgmma_cube_f16_128x32", 67, 0, 4096},
	{"labels, 64 rows by more than an SM's 64", 0, HZ_BF16, HZ_F16, 11008, 64,
	 "vlut_label_wgmma_cube_bf16_128x64", 86, 0, 4096},
	{"labels, 256 rows", 0, HZ_BF16, HZ_F32, 4096, 256,
	 "vlut_label_wgmma_cube_bf16_64x128", 64, 0, 4096},
	{"labels, 128 rows by more", 0, HZ_F16, HZ_F32, 11008, 128,
	 "vlut_label_wgmma_cube_f16_128x128", 86, 0, 4096},
	{"labels, 1024 rows", 0, HZ_BF16, HZ_BF16, 4096, 1024,
	 "vlut_label_wgmma_cube_bf16_128x256", 32, 0, 4096},
};

static void test_label(void)
{
	const hz_lattice_opts o = {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST};
	const hz_tensor t = hz_tensor_2d(x, HZ_U8, HZ_CUDA, 60, 512);
	const hz_coded w = {
		.k = 4096, .codes = hz_tensor_3d(codes, HZ_U32, HZ_CUDA, 60, 512, 1), .t = &t,
	};

	test_packing("labels", &o, &w, 64 * 4096 * 9 / 16, "vlut_label_pack", label_table,
		     sizeof(label_table) / sizeof(*label_table), false);
	test_packing("labels", &o, &w, 64 * 4096 * 9 / 16, "vlut_label_pack", label_row_table,
		     sizeof(label_row_table) / sizeof(*label_row_table), true);
}

static void test_gemm2(void)
{
	const hz_lattice_opts o = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2};
	const hz_vlut_opts by_table = {.route = HZ_VLUT_TABLE};
	hz_lattice *l;
	hz_vlut *v;
	hz_coded w = {.k = 1024}, u = {.k = 1024};
	hz_tensor whole = by_columns(y, HZ_S32, 640, 100);
	hz_tensor real = by_columns(y, HZ_F32, 640, 100);
	const hz_tensor row_scale = hz_tensor_1d(scales, HZ_F32, HZ_CUDA, 640);
	struct hzi_vlut_table2 p;
	hz_packed packed_w, packed_u;

	w.codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 640, 256, 2);
	u.codes = hz_tensor_3d(x, HZ_U8, HZ_CUDA, 100, 256, 2);
	if (open_lattice(ctx, &l, &o) || hz_vlut_open(ctx, &v, l, l, NULL))
		bail("%s", hz_errmsg(ctx));
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &whole), HZ_OK, "both coded: %s", hz_errmsg(ctx));
	is_str(taken(), "lattice_decode_d4_s8 lattice_decode_d4_s8 qgemm_pack_rows "
	       "qgemm_skinny_64_s8", "whole numbers");
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "both coded");
	is_str(taken(), "lattice_decode_d4_s8 lattice_decode_d4_s8 qgemm_pack_rows "
	       "qgemm_skinny_64_s8 vlut_epilogue_s32", "floats");
	w = packed_as(v, 640, 1024, scales, &packed_w);
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "packed");
	is_str(taken(), "lattice_decode_d4_f16 vlut_d4_wgmma_f16_64x64",
	       "skinny GEMM: decoded in the kernel");
	is_int(last()->grid[0] * 100 + last()->grid[1], 4002, "tiles");
	for (int rows = 639; rows < 641; rows++) {
		u.codes.shape[0] = rows;
		real = by_columns(y, HZ_F32, 640, rows);
		is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "packed, by %d rows", rows);
		is_int(strstr(taken(), "vlut_epilogue_s32") != NULL, rows == 640,
		       "by bytes from 640 on");
	}
	real = hz_tensor_2d(y, HZ_BF16, HZ_CUDA, 640, 640);
	u.codes.shape[0] = 640;
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "rows of y");
	is_str(taken(), "lattice_decode_d4_s8 vlut_d4_bitfield_points_s8 qgemm_pack_rows "
	       "qgemm_skinny_64_s8", "x by W, floats by its epilogue");
	w.row_scale = &row_scale;
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "rows of y, scales of W");
	has_str(taken(), "qgemm_skinny_64_s8 vlut_epilogue_s32", "W by x");
	w = packed_as(v, 640, 1024, scales, &packed_w);
	u = packed_as(v, 100, 1024, x, &packed_u);
	real = by_columns(y, HZ_F32, 640, 100);
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "both packed");
	is_str(taken(),
	       "vlut_d4_bitfield_points_s8 vlut_d4_bitfield_points_s8 qgemm_pack_rows "
	       "qgemm_skinny_64_s8 vlut_epilogue_s32",
	       "as bytes");
	hz_vlut_close(v);
	w = u = (hz_coded){.k = 1024};
	w.codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 640, 256, 2);
	u.codes = hz_tensor_3d(x, HZ_U8, HZ_CUDA, 100, 256, 2);
	if (hz_vlut_open(ctx, &v, l, l, &by_table))
		bail("%s", hz_errmsg(ctx));
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "both coded, by the table");
	is_str(taken(), "vlut_table2_dots vlut_table2_lookup_f32", "its kernels");
	memcpy(&p, last()->params, sizeof(p));
	is_int((char *)p.x_dot_offset - (char *)p.w_dot_offset, 256 * 8,
	       "leaders times offsets, which may leave 32 bits");
	is_int((char *)p.x_dot_sub - (char *)p.w_dot_offset, 512 * 8 + 256 * 4,
	       "the parts behind them");
	u.codes = hz_tensor_3d(x, HZ_U8, HZ_CUDA, 65600, 256, 2);
	u.codes.stride[0] = 0;
	w.codes.shape[0] = 10;
	real = by_columns(y, HZ_F32, 10, 65600);
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &real), HZ_OK, "more rows than a grid has");
	is_str(taken(), "vlut_table2_dots vlut_table2_lookup_f32 vlut_table2_lookup_f32",
	       "in two launches");
	memcpy(&p, last()->params, sizeof(p));
	ok(p.first == 65535 && last()->grid[1] == 65, "the second of those that are left");
	hz_vlut_close(v);
	hz_lattice_close(l);
}

/* Of A2 floats are made of exact sums: of f32 in place, else slab by slab of W. */
static void test_a2(void)
{
	const hz_lattice_opts o = {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2},
			      with_t = {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2,
					.policy = HZ_LATTICE_T};
	hz_lattice *l, *tl;
	hz_vlut *v;
	hz_coded w = {.k = 64}, u = {.k = 64};
	hz_tensor y32 = by_columns(y, HZ_F32, 640, 100);
	hz_tensor turned = y32, y16 = by_columns(y, HZ_F16, 500, 65660);
	hz_tensor t = hz_tensor_2d(scales, HZ_U8, HZ_CUDA, 640, 32);

	if (open_lattice(ctx, &l, &o) || open_lattice(ctx, &tl, &with_t) ||
	    hz_vlut_open(ctx, &v, l, l, NULL))
		bail("%s", hz_errmsg(ctx));
	w.codes = hz_tensor_3d(codes, HZ_U8, HZ_CUDA, 640, 32, 2);
	u.codes = hz_tensor_3d(x, HZ_U8, HZ_CUDA, 100, 32, 2);
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &y32), HZ_OK, "both of A2: %s", hz_errmsg(ctx));
	is_str(taken(),
	       "lattice_decode_a2 lattice_decode_a2 qgemm_pack_rows qgemm_skinny_64_s8 "
	       "vlut_epilogue_s32",
	       "sums, and what they become");
	is_int(last()->grid[0] * 1000 + last()->grid[1], 4020, "blocks of columns and of rows");
	turned.stride[0] = 640;
	turned.stride[1] = 1;
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &turned), HZ_OK, "y by rows");
	is_str(taken(),
	       "lattice_decode_a2 lattice_decode_a2 qgemm_pack_rows qgemm_skinny_64_s8",
	       "floats by its epilogue");
	is_int(last()->grid[0], 10, "blocks of columns of y");
	w.codes.shape[0] = 500;
	u.codes.shape[0] = 65660;
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &y16), HZ_OK, "y of 16 bits: %s", hz_errmsg(ctx));
	is_str(taken(),
	       "lattice_decode_a2 lattice_decode_a2 qgemm_pack_rows qgemm_wgmma_128x256_s8 "
	       "vlut_epilogue_s32 "
	       "lattice_decode_a2 qgemm_pack_rows qgemm_wgmma_128x256_s8 vlut_epilogue_s32",
	       "in slabs");
	is_int(last()->grid[0] * 1000 + last()->grid[1], 2052008, "the last one");
	hz_vlut_close(v);
	if (hz_vlut_open(ctx, &v, tl, l, NULL))
		bail("%s", hz_errmsg(ctx));
	w.codes.shape[0] = 640;
	u.codes.shape[0] = 100;
	w.t = &t;
	is_int(hz_vlut_gemm2(ctx, v, &w, &u, &y32), HZ_OK, "with T");
	has_str(taken(), "vlut_table_wgmma_f16", "by values");
	hz_vlut_close(v);
	hz_lattice_close(tl);
	hz_lattice_close(l);
}

/* ---- Appending, and what follows a product --------------------------------------------------- */

static void test_append(void)
{
	static const struct {
		const char *name;
		hz_lattice_opts o;
		int64_t row, rows;
		const char *kernels;
	} cases[] = {
		{"a row of bits", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}, 5, 1,
		 "lattice_encode_d4q4 vlut_d4_bitfield_pack vlut_append_merge"},
		{"whole tiles of bits", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}, 16, 48,
		 "lattice_encode_e8q4 vlut_e8_bitplane_pack"},
		{"parts of three tiles", {.preset = HZ_LATTICE_PRESET_E8_4_25}, 15, 18,
		 "lattice_encode_d8star vlut_label_pack vlut_append_merge vlut_label_pack "
		 "vlut_label_pack vlut_append_merge"},
		{"rows of codes", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
		  .policy = HZ_LATTICE_T}, 3, 20, "lattice_encode_d4q4 vlut_pack"},
		{"no rows", {.preset = HZ_LATTICE_PRESET_E8_4_25}, 64, 0, ""},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const hz_coded empty = {.rows = 64, .k = 256};
		const hz_tensor xt = hz_tensor_2d(x, HZ_F16, HZ_CUDA, cases[i].rows, 256);
		hz_lattice *l;
		hz_packed p;
		hz_vlut *v;

		if (open_lattice(ctx, &l, &cases[i].o) || hz_vlut_open(ctx, &v, l, NULL, NULL))
			bail("%s", hz_errmsg(ctx));
		taken();
		is_int(hz_vlut_pack(ctx, v, &empty, scales, OPERAND_BYTES, &p), HZ_OK,
		       "%s: an empty matrix: %s", cases[i].name, hz_errmsg(ctx));
		is_str(taken(), "", "which no kernel makes");
		is_int(hz_vlut_append(ctx, v, &xt, cases[i].row, &p, NULL), HZ_OK, "%s: %s",
		       cases[i].name, hz_errmsg(ctx));
		is_str(taken(), cases[i].kernels, "%s: kernels", cases[i].name);
		hz_vlut_close(v);
		hz_lattice_close(l);
	}
}

/* Bias and activation: in y of f32, from sums in the workspace to y of 16 bits */
static void test_epilogue(void)
{
	static const struct {
		int y_dtype;
		int64_t rows;
		bool rotated;
		const char *kernels;
	} cases[] = {
		{HZ_F32, 4096, false, "vlut_d4_bitfield_2 vlut_bias_act_rows_f32"},
		{HZ_F16, 4096, false, "vlut_d4_bitfield_2 vlut_bias_act_rows_f32"},
		{HZ_BF16, 4095, false, "vlut_d4_bitfield_2 vlut_bias_act"},
		{HZ_F16, 4096, true, "hadamard_rows_12 vlut_d4_bitfield_2 vlut_bias_act_rows_f32"},
	};
	const hz_lattice_opts o = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2};
	const hz_hadamard_opts h = {.plan = HZ_PLAN_GREEDY};
	hz_lattice *l;
	hz_vlut *v;

	if (open_lattice(ctx, &l, &o) || hz_vlut_open(ctx, &v, l, NULL, NULL))
		bail("%s", hz_errmsg(ctx));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const int64_t rows = cases[i].rows;
		const hz_tensor xt = hz_tensor_2d(x, HZ_F16, HZ_CUDA, 2, 4096);
		const hz_tensor bias = hz_tensor_1d(x + FAR, HZ_F32, HZ_CUDA, rows);
		hz_tensor yt = hz_tensor_2d(y, cases[i].y_dtype, HZ_CUDA, 2, rows);
		hz_packed p;
		hz_coded w = packed_as(v, rows, 4096, scales, &p);

		w.bias = &bias;
		w.activation = HZ_ACT_GELU;
		w.hadamard = cases[i].rotated ? &h : NULL;
		is_int(hz_vlut_gemm(ctx, v, &w, &xt, &yt), HZ_OK, "bias, y of %s: %s",
		       hz_dtype_name(cases[i].y_dtype), hz_errmsg(ctx));
		is_str(taken(), cases[i].kernels, "its kernels");
	}
	hz_vlut_close(v);
	hz_lattice_close(l);
}

static void test_all(void)
{
	char **const arrays[] = {&codes, &scales, &x, &y};

	stand_in_load(false);
	ctx = stand_in_open(HZ_CUDA, arrays, 4, OPERAND_BYTES, 3 * OPERAND_BYTES);
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		test_gemm(&table[i]);
	test_contiguous();
	test_packed();
	test_coarser();
	test_far();
	test_e8_bitplane();
	test_label();
	test_gemm2();
	test_a2();
	test_append();
	test_epilogue();
	stand_in_close(ctx, HZ_CUDA, arrays, 4);
}

int main(void)
{
	stand_in_few(test_all);
	test_all();
	return done_testing();
}

#endif
