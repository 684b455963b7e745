/*
 * vlut.c - launchers of products with lattice codes: which kernels take a call, tables, packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/vlut.h"
#include "gpu/vlut/d4_bitfield.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/e8_bitplane.h"

#define GRID_MAX 65535			/* along y */
#define SLICE_BYTES ((int64_t)64 << 20)	/* of one-sided tables, about */
#define ENTRY_BYTES 4

static const char gemm_name[] = "vlut_gemm", gemm2_name[] = "vlut_gemm2", pack_name[] = "vlut_pack";

static int launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
		  const void *params, size_t bytes)
{
	const struct hzi_launch l = {.grid = {(unsigned)x, (unsigned)y},
				     .block = {HZI_VLUT_THREADS}};

	return hzi_cuda_launch(ctx, op, kernel, &l, params, bytes);
}

/* ---- Packing: rows of codes, 16 bytes aligned, all levels; then rows of T; or bits ----------- */

static int64_t packed_row(const hz_lattice *l, int64_t blocks, int code_bytes)
{
	return round_up(blocks * l->rule.levels * code_bytes, 16);
}

static int64_t packed_t_row(const hz_lattice *l, int64_t blocks)
{
	return hzi_lattice_has_t(l) ? round_up(ceil_div(blocks, l->rule.group), 16) : 0;
}

static int level_bytes(const hz_lattice *l)
{
	return l->rule.level_size <= 256 ? 1 : l->rule.level_size <= 65536 ? 2 : 4;
}

bool hzi_cuda_vlut_bits(const hz_lattice *l, const struct hzi_coded *c)
{
	return c->packed && (hzi_cuda_vlut_fields(l) || hzi_cuda_vlut_octets(l, c));
}

struct hzi_coded hzi_cuda_vlut_unpacked(const hz_lattice *l, const struct hzi_coded *c)
{
	struct hzi_coded out = *c;
	const int bytes = level_bytes(l);
	const int64_t row = packed_row(l, c->blocks, bytes);

	if (!c->packed || hzi_cuda_vlut_bits(l, c))
		return out;
	out.codes = (const char *)c->packed + (int64_t)c->first * bytes;
	out.code_dtype = bytes == 1 ? HZ_U8 : bytes == 2 ? HZ_U16 : HZ_U32;
	out.row = row / bytes;
	out.block = l->rule.levels;
	out.level = 1;
	if (hzi_lattice_has_t(l)) {
		out.t = (const uint8_t *)c->packed + c->rows * row;
		out.t_row = packed_t_row(l, c->blocks);
		out.t_step = 1;
	}
	return out;
}

size_t hzi_cuda_vlut_pack_workspace(const struct hz_context *ctx,
				    const struct hzi_vlut_pack_args *a)
{
	const hz_lattice *l = a->vlut->w;

	(void)ctx;
	if (hzi_cuda_vlut_fields(l))
		return hzi_cuda_vlut_fields_bytes(&a->w);
	if (hzi_cuda_vlut_octets(l, &a->w))
		return hzi_cuda_vlut_octets_bytes(&a->w);
	return (size_t)(a->w.rows * (packed_row(l, a->w.blocks, level_bytes(l)) +
				     packed_t_row(l, a->w.blocks)));
}

int hzi_cuda_vlut_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const int bytes = level_bytes(l);
	struct hzi_vlut_pack p = {
		.codes = a->w.codes, .t = a->w.t, .packed = a->packed, .rows = a->w.rows,
		.blocks = a->w.blocks, .groups = ceil_div(a->w.blocks, l->rule.group),
		.row = a->w.row,
		.block = a->w.block, .level = a->w.level, .t_row = a->w.t_row,
		.t_step = a->w.t_step, .row_bytes = packed_row(l, a->w.blocks, bytes),
		.t_bytes = packed_t_row(l, a->w.blocks), .code_bytes = bytes,
		.levels = l->rule.levels, .first = a->w.first,
	};
	const int64_t blocks = ceil_div(p.rows * p.row_bytes / bytes, HZI_VLUT_THREADS);

	if (hzi_cuda_vlut_fields(l))
		return hzi_cuda_vlut_fields_pack(ctx, a);
	if (hzi_cuda_vlut_octets(l, &a->w))
		return hzi_cuda_vlut_octets_pack(ctx, a);
	p.packed_t = p.packed + p.rows * p.row_bytes;
	return launch(ctx, pack_name, HZI_KERNEL_vlut_pack, blocks < 4096 ? blocks : 4096, 1, &p,
		      sizeof(p));
}

/* ---- Parameters ------------------------------------------------------------------------------ */

static void fill_coded(struct hzi_vlut_coded *out, const hz_lattice *l, const struct hzi_coded *c)
{
	const struct hzi_coded u = hzi_cuda_vlut_unpacked(l, c);

	*out = (struct hzi_vlut_coded){
		.rule = l->rule, .codes = u.codes, .t = u.t, .row_scale = u.row_scale,
		.rows = u.rows,
		.blocks = u.blocks, .row = u.row, .block = u.block, .level = u.level,
		.t_row = u.t_row, .t_step = u.t_step, .row_scale_step = u.row_scale_step,
		.code_bytes = (int32_t)hz_dtype_size(u.code_dtype), .first = u.first,
	};
	for (int i = 0; i < HZI_LATTICE_DIMS; i++)
		out->sub[i] = u.sub[i];
	if (hzi_cuda_vlut_bits(l, c)) {
		out->codes = c->packed;
		out->bits = hzi_cuda_vlut_fields(l) ? hzi_cuda_vlut_fields_chunks(c) :
			    hzi_cuda_vlut_octets_units(c);
	}
}

static void fill_any(struct hzi_vlut_any *p, const struct hzi_vlut_gemm_args *a)
{
	fill_coded(&p->w, a->vlut->w, &a->w);
	p->d = (struct hzi_vlut_dense){
		.x = a->x, .y = a->y, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i, .y_b = a->y_b,
		.k = a->w.k, .columns = a->batch, .x_dtype = a->x_dtype, .y_dtype = a->y_dtype,
	};
}

static int64_t element(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

/* ---- One-sided: tables ----------------------------------------------------------------------- */

/* How a call goes through tables: columns at a time, and lattice blocks of a slice. */
struct slices {
	int64_t columns, blocks, table_bytes, bytes;
	int dtype;
};

static struct slices slices_of(const struct hzi_vlut_gemm_args *a)
{
	const int64_t entries = (int64_t)a->vlut->w->rule.level_size;
	struct slices s = {
		.dtype = a->y_dtype == HZ_S32 || !a->vlut->table_dtype ? HZ_F32 :
		a->vlut->table_dtype,
		.columns = SLICE_BYTES / (entries * ENTRY_BYTES * a->w.blocks),
	};

	s.columns = s.columns < 1 ? 1 : s.columns > GRID_MAX ? GRID_MAX : s.columns;
	s.columns = s.columns < a->batch ? s.columns : a->batch;
	s.blocks = SLICE_BYTES / (entries * ENTRY_BYTES * s.columns);
	s.blocks = s.blocks < 1 ? 1 : s.blocks < a->w.blocks ? s.blocks : a->w.blocks;
	s.table_bytes = round_up(s.columns * s.blocks * entries * ENTRY_BYTES, 64);
	s.bytes = s.table_bytes + round_up(s.columns * s.blocks * 12, 64) +
		  s.columns * a->w.rows * 8;
	return s;
}

static bool by_table(const struct hzi_vlut_gemm_args *a)
{
	return a->vlut->route == HZ_VLUT_TABLE && a->w.blocks > 0;
}

static int gemm_table(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const struct slices s = slices_of(a);
	const bool mapped = l->rule.flags & HZI_LATTICE_MAPPED, whole = a->y_dtype == HZ_S32;
	struct hzi_vlut_table_mapped p = {
		.table = {.entries = (int64_t)l->rule.level_size, .table_dtype = s.dtype,
			  .compensated = a->vlut->compensated, .table = ctx->workspace},
	};
	struct hzi_vlut_table *t = &p.table;

	if (mapped)
		p.w = l->matrices;
	fill_any(&t->any, a);
	t->bias = (float *)((char *)ctx->workspace + s.table_bytes);
	t->factor = t->bias + s.columns * s.blocks;
	t->sums = (float *)((char *)t->bias + round_up(s.columns * s.blocks * 12, 64));
	t->rest = t->sums + s.columns * a->w.rows;
	for (int64_t c = 0; c < a->batch; c += s.columns) {
		const int64_t columns = a->batch - c < s.columns ? a->batch - c : s.columns;

		t->any.d.x = (const char *)a->x + c * a->x_b * element(a->x_dtype);
		t->any.d.y = (char *)a->y + c * a->y_b * element(a->y_dtype);
		t->any.d.columns = columns;
		for (t->begin = 0; t->begin < a->w.blocks; t->begin += s.blocks) {
			t->count = a->w.blocks - t->begin < s.blocks ? a->w.blocks - t->begin :
				   s.blocks;
			t->last = t->begin + t->count == a->w.blocks;
			HZ_CHECK(launch(ctx, gemm_name, mapped ? HZI_KERNEL_vlut_table_mapped_f32 :
					whole ? HZI_KERNEL_vlut_table_s32 :
						HZI_KERNEL_vlut_table_f32,
					t->count, columns, &p, mapped ? sizeof(p) :
					sizeof(p.table)));
			HZ_CHECK(launch(ctx, gemm_name, whole ? HZI_KERNEL_vlut_lookup_s32 :
					HZI_KERNEL_vlut_lookup_f32,
					ceil_div(a->w.rows, HZI_VLUT_WARPS), columns, t,
					sizeof(*t)));
		}
	}
	return HZ_OK;
}

/* ---- One-sided: decoding --------------------------------------------------------------------- */

static int gemm_any(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const bool mapped = l->rule.flags & HZI_LATTICE_MAPPED;
	const int64_t step = (int64_t)GRID_MAX * HZI_VLUT_TILE;
	struct hzi_vlut_any_mapped p = {0};
	struct hzi_vlut_any *any = &p.any;

	if (mapped)
		p.w = l->matrices;
	fill_any(any, a);
	for (int64_t c = 0; c < a->batch; c += step) {
		any->d.columns = a->batch - c < step ? a->batch - c : step;
		HZ_CHECK(launch(ctx, gemm_name, mapped ? HZI_KERNEL_vlut_any_mapped_f32 :
				a->y_dtype == HZ_S32 ? HZI_KERNEL_vlut_any_s32 :
					HZI_KERNEL_vlut_any_f32,
				ceil_div(a->w.rows, HZI_VLUT_TILE),
				ceil_div(any->d.columns, HZI_VLUT_TILE), &p,
				mapped ? sizeof(p) : sizeof(*any)));
		any->d.x = (const char *)any->d.x + step * a->x_b * element(a->x_dtype);
		any->d.y = (char *)any->d.y + step * a->y_b * element(a->y_dtype);
	}
	return HZ_OK;
}

/*
 * Multiprocessors come in groups of 16 or 18, one of which may have few: an H200 has not room for
 * 32 clusters of four.
 */
int64_t hzi_cuda_vlut_clusters(const struct hzi_cuda_device *g, int size)
{
	const int64_t n = size == 1 ? g->multiprocessors : size == 2 ? g->multiprocessors / 2 :
			  (g->multiprocessors - 12) / 16 * (16 / size);

	return max_of(n, 1);
}

/* The ways that a call can go, in the order of preference */
enum way { PLANES, OCTETS, STREAM, BATCH, FIELDS, HALF, WGMMA, MMA, WHOLE, DECODED, ANY };

/*
 * Turns of vlut_mma before decoding to memory is faster: of 8 vectors, or 2 by the large tables of
 * E8 with q = 4. On an H200, 8192 x 8192 of these: 67 us a turn, 120 decoded, for up to 32 vectors.
 */
#define MOST_TURNS(step) ((step) == 2 ? 1 : 4)

#define MOST_WHOLE 16	/* vectors of s8, before points as bytes are faster */
#define MOST_OCTETS 6	/* vectors, before points as bytes or f16 are faster */

static enum way way_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const bool wgmma = a->batch > 2 && hzi_cuda_vlut_wgmma_takes(ctx, a, false);
	const bool octets = hzi_cuda_vlut_octets_step(ctx, a) > 0;
	int step;

	if (hzi_cuda_vlut_planes_takes(ctx, a))
		return PLANES;
	if (octets && a->batch <= MOST_OCTETS)
		return OCTETS;
	if (hzi_cuda_vlut_stream_takes(ctx, a))
		return STREAM;
	if (hzi_cuda_vlut_batch_takes(ctx, a))
		return BATCH;
	if ((octets || a->batch > MOST_WHOLE) && hzi_cuda_vlut_whole_takes(a))
		return WHOLE;
	if ((a->batch <= HZI_FIELDS_BATCH || !wgmma) && hzi_cuda_vlut_fields_takes(ctx, a))
		return FIELDS;
	if (hzi_cuda_vlut_half_takes(ctx, a))
		return HALF;
	if (wgmma)
		return WGMMA;
	step = hzi_cuda_vlut_mma_step(ctx, a);
	if (step > 0 && a->batch <= step * MOST_TURNS(step))
		return MMA;
	return hzi_cuda_vlut_values_takes(ctx, a) ? DECODED : octets ? OCTETS : step > 0 ? MMA :
	       hzi_cuda_vlut_whole_takes(a) ? WHOLE : ANY;
}

size_t hzi_cuda_vlut_gemm_workspace(const struct hz_context *ctx,
				    const struct hzi_vlut_gemm_args *a)
{
	if (by_table(a))
		return (size_t)slices_of(a).bytes;
	switch (way_of(ctx, a)) {
	case WGMMA:
		return hzi_cuda_vlut_wgmma_workspace(ctx, a, false);
	case WHOLE:
		return hzi_cuda_vlut_whole_workspace(ctx, a);
	case DECODED:
		return hzi_cuda_vlut_values_workspace(ctx, a);
	default:
		return 0;
	}
}

int hzi_cuda_vlut_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_vlut_product codes = {.factor = 1, .room = ctx->workspace};

	if (by_table(a))
		return gemm_table(ctx, a);
	switch (way_of(ctx, a)) {
	case PLANES:
		return hzi_cuda_vlut_planes(ctx, a);
	case OCTETS:
		return hzi_cuda_vlut_octets_gemm(ctx, a);
	case STREAM:
		return hzi_cuda_vlut_stream(ctx, a);
	case BATCH:
		return hzi_cuda_vlut_batch(ctx, a);
	case FIELDS:
		return hzi_cuda_vlut_fields_gemm(ctx, a);
	case HALF:
		return hzi_cuda_vlut_half(ctx, a);
	case WGMMA:
		return hzi_cuda_vlut_wgmma(ctx, a, &codes);
	case MMA:
		return hzi_cuda_vlut_mma(ctx, a);
	case WHOLE:
		return hzi_cuda_vlut_whole(ctx, a);
	case DECODED:
		return hzi_cuda_vlut_values(ctx, a);
	default:
		return gemm_any(ctx, a);
	}
}

/* ---- Two-sided ------------------------------------------------------------------------------- */

int hzi_cuda_vlut_sums(struct hz_context *ctx, const struct hzi_vlut_sums *p)
{
	const int64_t width = p->across ? p->columns : p->rows;
	const int64_t down = ceil_div(p->across ? p->rows : p->columns, HZI_VLUT_SUMS);

	return launch(ctx, gemm2_name, HZI_KERNEL_vlut_sums, ceil_div(width, HZI_VLUT_SUMS),
		      min_of(down, GRID_MAX), p, sizeof(*p));
}

/* A table knows whole blocks alone. */
static bool by_table2(const struct hzi_vlut_gemm2_args *a)
{
	return a->vlut->table && a->vlut->route == HZ_VLUT_TABLE &&
	       a->w.k % a->vlut->w->rule.d == 0;
}

static int64_t parts_of(const struct hz_vlut *v)
{
	return (int64_t)(v->w->rule.level_size + v->x->rule.level_size);
}

size_t hzi_cuda_vlut_gemm2_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm2_args *a)
{
	if (by_table2(a))
		return (size_t)parts_of(a->vlut) * (sizeof(int64_t) + sizeof(float));
	if (hzi_cuda_vlut_whole2_takes(ctx, a))
		return hzi_cuda_vlut_whole2_workspace(ctx, a);
	return hzi_cuda_vlut_values2_takes(ctx, a) ? hzi_cuda_vlut_values2_workspace(ctx, a) : 0;
}

static void fill_any2(struct hzi_vlut_any2 *p, const struct hzi_vlut_gemm2_args *a)
{
	fill_coded(&p->w, a->vlut->w, &a->w);
	fill_coded(&p->x, a->vlut->x, &a->x);
	p->d = (struct hzi_vlut_dense){
		.y = a->y, .y_i = a->y_i, .y_b = a->y_j, .k = a->w.k, .columns = a->x.rows,
		.y_dtype = a->y_dtype,
	};
}

static int gemm2_table(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a)
{
	const struct hz_vlut *v = a->vlut;
	struct hzi_vlut_table2 p = {
		.table = v->table, .w_entries = (int64_t)v->w->rule.level_size,
		.x_entries = (int64_t)v->x->rule.level_size, .unit = 1.0f / (float)v->unit,
		.table_dtype = v->table_dtype, .w_whole = ctx->workspace,
	};

	fill_any2(&p.any, a);
	p.x_whole = p.w_whole + p.w_entries;
	p.w_part = (float *)(p.x_whole + p.x_entries);
	p.x_part = p.w_part + p.w_entries;
	HZ_CHECK(launch(ctx, gemm2_name, HZI_KERNEL_vlut_parts,
			ceil_div(parts_of(v), HZI_VLUT_THREADS), 1, &p, sizeof(p)));
	for (; p.first < a->x.rows; p.first += GRID_MAX) {
		const int64_t rest = a->x.rows - p.first;

		HZ_CHECK(launch(ctx, gemm2_name,
				a->y_dtype == HZ_S32 ? HZI_KERNEL_vlut_lookup2_s32 :
				HZI_KERNEL_vlut_lookup2_f32,
				ceil_div(a->w.rows, HZI_VLUT_WARPS),
				rest < GRID_MAX ? rest : GRID_MAX, &p, sizeof(p)));
	}
	return HZ_OK;
}

int hzi_cuda_vlut_gemm2(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a)
{
	const struct hz_vlut *v = a->vlut;
	const bool mapped = (v->w->rule.flags | v->x->rule.flags) & HZI_LATTICE_MAPPED;
	struct hzi_vlut_any2_mapped p = {0};

	if (by_table2(a))
		return gemm2_table(ctx, a);
	if (hzi_cuda_vlut_whole2_takes(ctx, a))
		return hzi_cuda_vlut_whole2(ctx, a);
	if (hzi_cuda_vlut_values2_takes(ctx, a))
		return hzi_cuda_vlut_values2(ctx, a);
	if (mapped) {
		p.w = v->w->matrices;
		p.x = v->x->matrices;
	}
	fill_any2(&p.any, a);
	if (ceil_div(a->x.rows, HZI_VLUT_TILE) > GRID_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: x has %lld rows, more than a GPU takes",
				gemm2_name, (long long)a->x.rows);
	return launch(ctx, gemm2_name, mapped ? HZI_KERNEL_vlut_any2_mapped_f32 :
		      a->y_dtype == HZ_S32 ? HZI_KERNEL_vlut_any2_s32 : HZI_KERNEL_vlut_any2_f32,
		      ceil_div(a->w.rows, HZI_VLUT_TILE), ceil_div(a->x.rows, HZI_VLUT_TILE), &p,
		      mapped ? sizeof(p) : sizeof(p.any));
}
