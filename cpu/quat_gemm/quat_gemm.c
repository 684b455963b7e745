/*
 * quat_gemm.c - quaternion matrix products on a CPU: packing, blocking, threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * One file of a thousand lines, because all of it works on struct plan and struct part.
 */
#include <config.h>

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/core/sizes.h"
#include "cpu/quat_gemm/kern.h"
#include "cpu/quat_gemm/quat_gemm.h"
#include "lib/quat_gemm/quat_gemm.h"

static const struct hzi_quat_gemm_typed *kern_of(const struct hz_context *ctx, int dtype)
{
	return &hzi_quat_gemm_kern[ctx->level].type[dtype == HZ_F64];
}

/*
 * C is a sum of real products of a component plane of V by one of S. V is A or B, whichever suits
 * vectors better; vectors run along its rows. Loops: parts of S of some columns, blocks of k,
 * panels of V. A plane of a panel of V, 64 x 128 floats or 32 KiB, stays in L1, while panels of a
 * plane of S, 6 x 128, stream from L2. Accumulators of a tile of C stay in L2; those of all tiles
 * are kept until the last block of k.
 */
#define K_BLOCK HZI_QUAT_K_BLOCK
#define S_COLS 264		/* of S, packed at once: 8 planes, 1056 KiB */
#define TILE_COLS 66		/* four planes of accumulators: 66 KiB */
#define CHUNK_COLS 48		/* of S, unpacked at once: 32 of k, four planes, 24 KiB */
#define CHUNK_K 32
#define CHUNK_V 16		/* of k of a panel of V: 32 KiB with its transform */
#define BF16_TILE 512		/* elements of a 16 x 32 tile of bf16 */
#define BF16_COLS 256		/* as S_COLS */
#define BF16_TILE_COLS 64
#define AHEAD_BYTES HZI_QUAT_AHEAD
#define GEMV_BLOCK 8192		/* of k; 128 KiB per column */
#define GEMV_ROW_MAJOR_BLOCK 2048	/* of columns that are not contiguous: 32 KiB each */
#define GEMV_PACKED_K 32768	/* most k: 64 bytes of scratch for each, per column */
/* Of k of a panel, for all columns: longer ones wait for memory, shorter ones for sums. */
#define GEMV_PACKED_BLOCK(cols, size) (((cols) > 1 ? 64 : 32) / (size))
#define GEMV_CHUNK 256
#define GEMV_COLS 32		/* in groups of HZI_QUAT_GEMV_COLS: panels take longer */
#define GEMV_PLANE 16		/* columns in memory of a chunk of several */
/* Bytes that a thread moves from memory in the time of one quaternion product, roughly */
#define BYTES_PER_PRODUCT 2

static int64_t round_up(int64_t a, int64_t b)
{
	return ceil_div(a, b) * b;
}

/* ---- Packed matrices ------------------------------------------------------------------------- */

/* Offset of block l0 / 128 of panel i0 / 64 in a packed matrix of k columns, in elements */
static int64_t packed_at(int64_t i0, int64_t l0, int64_t k)
{
	return (i0 / HZI_QUAT_PANEL * k + l0 / K_BLOCK * K_BLOCK) * 4 * HZI_QUAT_PANEL;
}

struct pack_job {
	const struct hzi_quat_gemm_typed *kern;
	const struct hzi_quat_gemm_pack_args *a;
	int64_t panels;
};

/* Packs rows and columns from `from` on into the four planes of a block. */
static void pack_block(const struct pack_job *j, const char *from, char *to, int64_t rows,
		       int64_t count)
{
	const struct hzi_quat_gemm_pack_args *a = j->a;
	const int64_t size = dtype_bytes(a->dtype), plane = HZI_QUAT_PANEL * count;

	if (rows < HZI_QUAT_PANEL)
		memset(to, 0, (size_t)(4 * plane * size));
	if (size != 2) {
		struct hzi_quat_block b = {
			.x = (char *)(uintptr_t)from, .y = to, .rows = rows, .count = count,
			.x_i = a->a.row, .x_l = a->a.col, .y_l = HZI_QUAT_PANEL, .y_plane = plane,
			.dtype = a->dtype,
		};

		memcpy(b.comp, a->a.comp, sizeof(b.comp));
		j->kern->load(&b);
		return;
	}
	for (int c = 0; c < 4; c++) {
		const uint16_t *x = (const uint16_t *)(const void *)from + a->a.comp[c];
		uint16_t *y = (uint16_t *)(void *)to + c * plane;

		for (int64_t l = 0; l < count; l++) {
			for (int64_t i = 0; i < rows; i++)
				y[l * HZI_QUAT_PANEL + i] = x[i * a->a.row + l * a->a.col];
		}
	}
}

static void pack_panels(void *job, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *j = job;
	const struct hzi_quat_gemm_pack_args *a = j->a;
	const int64_t size = dtype_bytes(a->dtype);
	const int64_t each = hzi_quat_pack_bytes(a->layout, a->dtype, a->m, a->k);

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t item = u / j->panels, i0 = u % j->panels * HZI_QUAT_PANEL;
		const int64_t rows = min_i64(HZI_QUAT_PANEL, a->m - i0);
		const char *from = (const char *)a->a.data + size * i0 * a->a.row +
				   size * item_offset(a->ndim, a->shape, a->a_stride, item);

		for (int64_t l = 0; l < a->k; l += K_BLOCK) {
			char *to = (char *)a->data + item * each + packed_at(i0, l, a->k) * size;

			pack_block(j, from + l * a->a.col * size, to, rows,
				   min_i64(K_BLOCK, a->k - l));
		}
	}
}

int hzi_cpu_quat_gemm_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a)
{
	const int64_t panels = ceil_div(a->m, HZI_QUAT_PANEL);
	const int64_t items = item_count(a->ndim, a->shape);
	struct pack_job job = {.kern = kern_of(ctx, a->dtype), .a = a, .panels = panels};

	hzi_parallel(ctx,
		     hzi_threads(ctx, items * hzi_quat_pack_bytes(a->layout, a->dtype, a->m, a->k)),
		     pack_panels, &job, items * panels);
	return HZ_OK;
}

HZI_NO_WORKSPACE(cpu, quat_gemm_pack)

/* ---- Plans ----------------------------------------------------------------------------------- */

/*
 * A plane of V by a plane of S, added to plane p of the sums, or for p >= 4 to component p - 4 of C
 */
struct step {
	int v, s, p, mode;
};

/* The last four products of the fast method: 2ae, 2dg, 2bh, 2cf */
static const int fast_left[4] = {0, 3, 1, 2}, fast_right[4] = {0, 2, 3, 1};

/* A factor: element (i, l) at i * row + l * col, where l is summed over */
struct operand {
	struct hzi_quat_view view;
	bool conj, packed, packed_t;
	int64_t packed_k;		/* columns of the packed matrix */
};

/*
 * Code paths: panels of V by panels of S; GEMV, where S has few columns and V is read once, in
 * place, or packed; AMX tiles of bf16
 */
enum path { PANELS, GEMV, GEMV_PACKED, BF16_TILES };

/* A call. rows: of V, m or n; cols: columns of S, the other one */
struct plan {
	const struct hzi_quat_gemm_args *a;
	const struct hzi_quat_gemm_typed *kern;
	enum path path;
	bool swap;			/* V is B */
	bool fast;
	int64_t rows, cols, k, size, items;
	int64_t grid_v, grid_s;		/* parts of an item, for threads */
	int64_t gemv_block;		/* of k, of a GEMV */
	int64_t part_cols, nc;		/* most columns of a part; of S packed at once */
	int64_t tile_cols, unit;	/* of a tile; accumulators are padded to this */
	int threads;
	/* Scratch of a thread, bytes */
	int64_t s_bytes, v_bytes, p_bytes, t_bytes, chunk_bytes, acc_bytes, each;
	bool negative[4];		/* components that are accumulated with the opposite sign */
	/* Of panels only, by plan_steps(): */
	int step_count;
	int add_mode[4];		/* modes of direct steps 0 .. 3 after the first block of k */
	struct step steps[16];
};

/*
 * Steps are ordered by plane of V, which then stays in L1.
 *
 * Fast: four products give the sums P; then r - G0, -i - G1, -j - G2, -k - G3 with G = H4 P; the
 * other four are added to these. Direct: an accumulator is negated before a product of the other
 * sign is added.
 */
static void plan_steps(struct plan *p)
{
	p->step_count = p->fast ? 8 : 16;
	for (int t = 0; p->fast && t < 4; t++) {
		const int left = fast_left[t], right = fast_right[t];

		p->steps[t] = (struct step){4 + t, 4 + t, t, HZI_QUAT_ZERO};
		p->steps[4 + t] = (struct step){p->swap ? right : left, p->swap ? left : right,
						4 + t, HZI_QUAT_ADD};
		p->negative[t] = t > 0;
	}
	for (int t = 0; !p->fast && t < 16; t++) {
		const int v = t / 4, c = t % 4, s = v ^ c;
		const bool negative = p->swap ? product_sign[s][v] < 0 : product_sign[v][s] < 0;
		int mode = HZI_QUAT_ZERO;

		if (v > 0)
			mode = negative == p->negative[c] ? HZI_QUAT_ADD : HZI_QUAT_SUBTRACT;
		p->negative[c] = negative;
		p->steps[t] = (struct step){v, s, 4 + c, mode};
	}
	for (int c = 0; !p->fast && c < 4; c++) {
		const bool first = p->swap ? product_sign[c][0] < 0 : product_sign[0][c] < 0;

		p->add_mode[c] = first == p->negative[c] ? HZI_QUAT_ADD : HZI_QUAT_SUBTRACT;
	}
}

/* Whether a row of V, of stride `along`, is contiguous quads */
static bool is_quads(const struct hzi_quat_view *v, int64_t along)
{
	int seen = 0;

	for (int c = 0; c < 4; c++)
		seen |= v->comp[c] >= 0 && v->comp[c] < 4 ? 1 << v->comp[c] : 0;
	return along == 4 && seen == 15;
}

/*
 * V is the operand along the contiguous dimension of C, since results are stored as vectors. It is
 * the other one if that has less than two vectors, or less than a quarter of the other's size,
 * since packing S takes longer.
 */
static bool should_swap(const struct hzi_quat_gemm_args *a, int64_t lanes)
{
	const int64_t row = a->c.row < 0 ? -a->c.row : a->c.row;
	const int64_t col = a->c.col < 0 ? -a->c.col : a->c.col;
	const bool swap = col < row;
	const int64_t v = swap ? a->n : a->m, s = swap ? a->m : a->n;

	if (a->packed)
		return false;
	return (v < 2 * lanes || v < s / 4) && v < s ? !swap : swap;
}

/*
 * Cuts an item into parts for threads, so that the largest part has least to multiply and to pack.
 */
static void plan_grid(struct plan *p, int64_t parts)
{
	const int64_t panels = ceil_div(p->rows, p->kern->rows);
	double best = 0;

	p->grid_v = p->grid_s = 1;
	if (parts <= 1)
		return;
	for (int64_t v = 1; v <= min_i64(parts, panels); v++) {
		const int64_t s = max_i64(1, min_i64(parts / v, ceil_div(p->cols, HZI_QUAT_COLS)));
		const double rows = (double)(ceil_div(panels, v) * p->kern->rows);
		const double cols = (double)ceil_div(p->cols, s);
		const double cost = rows * cols + 8 * rows + 24 * cols;

		if (best == 0 || cost < best) {
			best = cost;
			p->grid_v = v;
			p->grid_s = s;
		}
	}
}

/* Elements of kb rows of the columns as quads, padded to whole vectors */
static int64_t gemv_ld(const struct plan *p, int64_t kb)
{
	return p->cols > p->kern->column_major ? kb * round_up(4 * p->cols, p->kern->lanes)
					       : p->cols * round_up(kb, p->kern->lanes) * 4;
}

/* Bytes of a tile with `cols` columns; a bias of columns fits, too, as rows are whole vectors */
static int64_t tile_bytes(const struct plan *p, int64_t cols)
{
	return 4 * p->kern->rows * cols * p->size;
}

/* Scratch of a GEMV: S as quads; accumulators of all rows if there are several blocks of k */
static void plan_gemv(struct plan *p, int64_t parts)
{
	const int64_t panels = ceil_div(p->rows, p->kern->rows);
	int64_t part_rows;

	p->grid_v = min_i64(parts, panels);
	p->grid_s = 1;
	part_rows = ceil_div(panels, p->grid_v) * p->kern->rows;
	p->nc = p->cols;
	p->gemv_block = p->cols > p->kern->column_major ? GEMV_ROW_MAJOR_BLOCK : GEMV_BLOCK;
	p->s_bytes = gemv_ld(p, min_i64(p->k, p->gemv_block)) * p->size;
	if (p->path == GEMV_PACKED)
		p->s_bytes = 16 * p->k * p->cols * p->size;
	p->chunk_bytes = 4 * GEMV_CHUNK * p->size + 64 * p->kern->lanes;
	if (p->path == GEMV && p->cols > p->kern->column_major)
		p->chunk_bytes = 4 * min_i64(GEMV_CHUNK / 2, round_up(p->k, p->kern->lanes)) *
				 GEMV_PLANE * p->size + 64 * p->kern->lanes;
	/* Pieces are smaller than a panel, so their accumulators need up to a third more. */
	p->acc_bytes = (p->k > p->gemv_block ? part_rows * 4 / 3 + p->kern->rows : p->kern->rows) *
		       p->cols * 16 * p->size;
	/* The tiles of a packed panel */
	if (p->path == GEMV_PACKED)
		p->acc_bytes = 4 * HZI_QUAT_PANEL * p->cols * p->size;
	p->t_bytes = tile_bytes(p, p->cols);
	p->each = round_up(p->s_bytes, 64) + 3 * round_up(p->t_bytes, 64) +
		  round_up(p->chunk_bytes, 64) + round_up(p->acc_bytes, 64);
}

/* Plans a call, but for the steps of panels. */
static void make_plan(struct plan *p, const struct hz_context *ctx,
		      const struct hzi_quat_gemm_args *a, enum path path)
{
	const int64_t items = item_count(a->ndim, a->shape);
	const double products = (double)a->m * (double)a->n * (double)items * (double)(a->k + 1);
	const bool half = path == BF16_TILES;
	int64_t part_rows, planes;

	memset(p, 0, offsetof(struct plan, step_count));
	p->a = a;
	p->kern = kern_of(ctx, a->dtype);
	p->path = path;
	p->k = a->k;
	p->size = a->dtype == HZ_F64 ? 8 : 4;
	/* bf16 products are exact and take a third of the time of the fast method. */
	p->fast = path == PANELS && a->method == HZ_QUAT_FAST;
	p->items = items;
	p->swap = path == GEMV ? a->m < a->n : should_swap(a, p->kern->lanes);
	p->rows = p->swap ? a->n : a->m;
	p->cols = p->swap ? a->m : a->n;
	p->tile_cols = half ? BF16_TILE_COLS : TILE_COLS;
	p->unit = half ? 16 : 1;
	planes = p->fast ? 8 : 4;
	p->threads = hzi_threads(ctx, products > 1e15 ? INT64_MAX / 4 :
				(int64_t)(BYTES_PER_PRODUCT * products));
	if (path == GEMV || path == GEMV_PACKED) {
		plan_gemv(p, ceil_div(p->threads, p->items));
		return;
	}
	plan_grid(p, ceil_div(p->threads, p->items));
	p->part_cols = ceil_div(p->cols, p->grid_s);
	p->nc = ceil_div(p->part_cols, ceil_div(p->part_cols, half ? BF16_COLS : S_COLS));
	part_rows = ceil_div(ceil_div(p->rows, p->kern->rows), p->grid_v) * p->kern->rows;
	p->s_bytes = planes * ceil_div(p->nc, HZI_QUAT_COLS) *
		    (min_i64(a->k, K_BLOCK) * HZI_QUAT_COLS + HZI_QUAT_PANEL_PAD) * p->size;
	p->v_bytes = planes * p->kern->rows * min_i64(a->k, K_BLOCK) * p->size;
	if (!half)
		p->tile_cols = min_i64(TILE_COLS, round_up(p->nc, HZI_QUAT_COLS));
	p->p_bytes = p->fast ? 4 * p->kern->rows * p->tile_cols * p->size : 0;
	p->t_bytes = tile_bytes(p, p->tile_cols);
	/* The last whole vector may be read beyond the end. */
	p->chunk_bytes = 4 * min_i64(a->k, CHUNK_K) * CHUNK_COLS * p->size + 64;
	p->acc_bytes = a->k > K_BLOCK ? 4 * part_rows * round_up(p->nc, p->unit) * p->size : 0;
	if (half) {
		const int64_t steps = ceil_div(min_i64(a->k, K_BLOCK), 32);

		p->s_bytes = 8 * round_up(p->nc, 16) * steps * 64;
		p->v_bytes = 4 * p->kern->rows * steps * 64;
		p->chunk_bytes = 4 * 32 * max_i64(p->kern->rows, CHUNK_COLS) * p->size;
	}
	p->each = round_up(p->s_bytes, 64) + round_up(p->v_bytes, 64) + round_up(p->p_bytes, 64) +
		 3 * round_up(p->t_bytes, 64) + round_up(p->chunk_bytes, 64) +
		 round_up(p->acc_bytes, 64);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* What to prefetch: `left` pieces of AHEAD_BYTES, `step` bytes apart */
struct ahead {
	const char *p;
	int64_t step, left;
};

/* State of a thread that works on a part of an item */
struct part {
	const struct plan *p;
	struct operand v, s;
	struct hzi_quat_view c, pre;	/* element (row of V, column of S) */
	char *s_planes, *v_planes, *sums, *tile, *c_tile, *bias, *chunk, *acc;
	int64_t s_plane, s_panel, v_plane;	/* in elements */
	const char *v_raw;		/* four planes of V: in the packed matrix, or v_planes */
	struct ahead ahead[3];		/* of the next panel of V; of C; of accumulators */
};

static struct hzi_quat_view transposed_if(struct hzi_quat_view v, bool swap)
{
	const int64_t row = v.row;

	if (swap) {
		v.row = v.col;
		v.col = row;
	}
	return v;
}

static void move_view(struct hzi_quat_view *v, int dtype, int64_t offset)
{
	if (v->data)
		v->data = (char *)v->data + offset * dtype_bytes(dtype);
}

/* Sets the operands of an item. */
static void begin_item(struct part *t, int64_t item)
{
	const struct hzi_quat_gemm_args *a = t->p->a;
	struct operand left = {.view = a->a, .conj = a->conj_a};
	struct operand right = {.view = transposed_if(a->b, true), .conj = a->conj_b};

	if (a->packed) {
		const int64_t m = a->packed_t ? a->k : a->m, k = a->packed_t ? a->m : a->k;
		const int64_t bytes = hzi_quat_pack_bytes(a->layout, a->dtype, m, k);

		left.packed = true;
		left.packed_t = a->packed_t;
		left.packed_k = k;
		left.view.data = (char *)(uintptr_t)a->packed +
				 bytes * item_offset(a->ndim, a->shape, a->packed_stride, item);
	} else {
		move_view(&left.view, a->dtype, item_offset(a->ndim, a->shape, a->a_stride, item));
	}
	move_view(&right.view, a->dtype, item_offset(a->ndim, a->shape, a->b_stride, item));
	t->v = t->p->swap ? right : left;
	t->s = t->p->swap ? left : right;
	t->c = transposed_if(a->c, t->p->swap);
	t->pre = transposed_if(a->pre, t->p->swap);
	move_view(&t->c, a->c_dtype, item_offset(a->ndim, a->shape, a->c_stride, item));
	move_view(&t->pre, a->c_dtype, item_offset(a->ndim, a->shape, a->pre_stride, item));
}

static struct hzi_quat_block block_of(const struct hzi_quat_view *v, int dtype, int64_t i,
				      int64_t l)
{
	struct hzi_quat_block b = {
		.x = (char *)v->data + (i * v->row + l * v->col) * dtype_bytes(dtype),
		.x_i = v->row,
		.x_l = v->col,
		.dtype = dtype,
	};

	memcpy(b.comp, v->comp, sizeof(b.comp));
	return b;
}

/*
 * Loads elements (i .. , l ..) of an operand as component planes. Of a packed operand, rows are
 * within one panel of a micro-kernel, which divides a packed panel, and columns within one block of
 * k.
 */
static void load(const struct part *t, const struct operand *o, struct hzi_quat_block *b, int64_t i,
		 int64_t l)
{
	const struct plan *p = t->p;
	const int dtype = p->a->dtype;
	const int64_t size = dtype_bytes(dtype), count = b->count;
	struct hzi_quat_block part;
	int64_t done = 0;

	while (done < count) {
		struct hzi_quat_view v = o->view;
		int64_t at_i = i, at_l = l + done;

		part = *b;
		part.count = count - done;
		if (o->packed) {
			/* In the packed matrix: row, column */
			const int64_t r = o->packed_t ? at_l : at_i, c = o->packed_t ? at_i : at_l;
			const int64_t width = min_i64(K_BLOCK, o->packed_k - c / K_BLOCK * K_BLOCK);

			v.data = (char *)v.data + packed_at(r, c, o->packed_k) * size;
			v.row = o->packed_t ? HZI_QUAT_PANEL : 1;
			v.col = o->packed_t ? 1 : HZI_QUAT_PANEL;
			for (int q = 0; q < 4; q++)
				v.comp[q] = q * HZI_QUAT_PANEL * width;
			at_i = o->packed_t ? c % K_BLOCK : r % HZI_QUAT_PANEL;
			at_l = o->packed_t ? r % HZI_QUAT_PANEL : c % K_BLOCK;
			if (o->packed_t)
				part.count = min_i64(part.count, HZI_QUAT_PANEL - at_l);
		}
		part.x = (char *)v.data + (at_i * v.row + at_l * v.col) * size;
		part.x_i = v.row;
		part.x_l = v.col;
		memcpy(part.comp, v.comp, sizeof(part.comp));
		part.dtype = dtype;
		for (int q = 1; q < 4; q++)
			part.flip[q] = o->conj;
		part.y = (char *)b->y + done * b->y_l * p->size;
		p->kern->load(&part);
		done += part.count;
	}
}

/* Packs columns j .. j + cols - 1, rows l .. l + kb - 1 of S into panels. */
static void pack_s(struct part *t, int64_t j, int64_t cols, int64_t l, int64_t kb)
{
	const struct plan *p = t->p;

	t->s_panel = kb * HZI_QUAT_COLS + HZI_QUAT_PANEL_PAD;
	t->s_plane = ceil_div(cols, HZI_QUAT_COLS) * t->s_panel;
	for (int64_t j0 = 0; j0 < cols; j0 += CHUNK_COLS) {
		for (int64_t l0 = 0; l0 < kb; l0 += CHUNK_K) {
			struct hzi_quat_block b = {
				.y = t->chunk, .rows = min_i64(CHUNK_COLS, cols - j0),
				.count = min_i64(CHUNK_K, kb - l0), .y_l = CHUNK_COLS,
				.y_plane = min_i64(kb, CHUNK_K) * CHUNK_COLS,
			};
			const struct hzi_quat_pack_panels q = {
				.from = t->chunk,
				.to = t->s_planes + (j0 / HZI_QUAT_COLS * t->s_panel +
						     l0 * HZI_QUAT_COLS) * p->size,
				.cols = b.rows, .count = b.count, .ld = CHUNK_COLS,
				.panel = t->s_panel, .from_plane = b.y_plane,
				.to_plane = t->s_plane, .fast = p->fast,
			};

			load(t, &t->s, &b, j + j0, l + l0);
			p->kern->pack_panels(&q);
		}
	}
}

/* Whether micro-kernels read packed planes of V in place */
static bool is_read_in_place(const struct plan *p, const struct operand *o)
{
	return o->packed && !o->packed_t && !o->conj && p->kern->rows == HZI_QUAT_PANEL &&
	       p->a->dtype == HZ_F32;
}

/* Planes 4 to 7 of V: H4 / 2 times planes 0 to 3, `count` columns from offset `at` on */
static void transform_v(const struct part *t, int64_t at, int64_t rows, int64_t count)
{
	const struct plan *p = t->p;
	const int64_t ld = p->kern->rows, plane = t->v_plane;
	const int64_t written = round_up(rows, p->kern->lanes), each = written < ld ? 1 : count;

	for (int64_t l = 0; l < count; l += each, at += ld * p->size)
		p->kern->h4_half(t->v_raw + at, t->v_planes + 4 * plane * p->size + at, plane,
				 plane, each * written);
}

/* Packs a panel of V: rows i .., columns l .. l + kb - 1. */
static void pack_v(struct part *t, int64_t i, int64_t rows, int64_t l, int64_t kb)
{
	const struct plan *p = t->p;
	const int64_t ld = p->kern->rows, plane = ld * kb;
	const bool ready = is_read_in_place(p, &t->v);

	t->v_plane = plane;
	t->v_raw = t->v_planes;
	if (ready)
		t->v_raw = (const char *)t->v.view.data + packed_at(i, l, t->v.packed_k) * p->size;
	for (int64_t l0 = 0; l0 < kb; l0 += CHUNK_V) {
		const int64_t at = l0 * ld * p->size;
		struct hzi_quat_block b = {
			.y = t->v_planes + at, .rows = rows, .count = min_i64(CHUNK_V, kb - l0),
			.y_l = ld, .y_plane = plane,
		};

		if (!ready)
			load(t, &t->v, &b, i, l + l0);
		if (p->fast)
			transform_v(t, at, rows, b.count);
	}
}

/* What to prefetch of the next panel of V, if it is packed or its rows are contiguous */
static struct ahead ahead_v(const struct part *t, int64_t i, int64_t l)
{
	const struct plan *p = t->p;
	const struct operand *o = &t->v;
	const int64_t size = dtype_bytes(p->a->dtype), kb = min_i64(K_BLOCK, p->k - l);
	struct ahead a = {0};

	if (i >= p->rows || kb <= 0)
		return a;
	if (o->packed && !o->packed_t) {
		a.p = (const char *)o->view.data + packed_at(i, l, o->packed_k) * size;
		a.step = AHEAD_BYTES;
		a.left = 4 * HZI_QUAT_PANEL * kb * size / AHEAD_BYTES;
	} else if (!o->packed && o->view.col == 4) {
		/* at least the bytes of a row of a block of k */
		a.p = (const char *)o->view.data + (i * o->view.row + l * 4) * size;
		a.step = o->view.row * size;
		a.left = min_i64(p->kern->rows, p->rows - i);
	}
	return a;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Loads the bias of rows i .. of V, or columns j .. of S, as planes of ld numbers. */
static void load_bias(const struct part *t, int64_t step, int64_t at, int64_t count, int64_t ld)
{
	const struct hzi_quat_gemm_args *a = t->p->a;
	struct hzi_quat_block b = {
		.x = (char *)(uintptr_t)a->bias + at * step * dtype_bytes(a->bias_dtype),
		.y = t->bias, .rows = count, .count = 1, .x_i = step, .y_plane = ld,
		.dtype = a->bias_dtype,
	};

	memcpy(b.comp, a->bias_comp, sizeof(b.comp));
	if (a->dtype == HZ_F64 && a->bias_dtype == HZ_F32) {
		/* f64 kernels load only f64. Whole vectors are read. */
		memset(t->bias, 0, (size_t)(4 * ld) * 8);
		for (int64_t i = 0; i < 4 * count; i++)
			((double *)(void *)t->bias)[i % 4 * ld + i / 4] =
				(double)((const float *)b.x)[i / 4 * step + b.comp[i % 4]];
		return;
	}
	t->p->kern->load(&b);
}

/* Epilogue of a tile of C, rows i .., columns j ..: bias, alpha, beta, pre, activation, store */
static void finish(struct part *t, char *tile, int64_t plane, int64_t i, int64_t rows, int64_t j,
		   int64_t cols)
{
	const struct plan *p = t->p;
	const struct hzi_quat_gemm_args *a = p->a;
	const int64_t bias_row = p->swap ? a->bias_col : a->bias_row;
	const int64_t bias_col = p->swap ? a->bias_row : a->bias_col;
	struct hzi_quat_block b = block_of(&t->c, a->c_dtype, i, j);
	struct hzi_quat_epilogue e = {
		.t = tile, .rows = rows, .cols = cols, .plane = plane,
		.alpha_real = a->alpha_real, .beta = a->beta,
	};

	b.rows = rows;
	b.count = cols;
	b.y_l = p->kern->rows;
	b.y_plane = plane;
	memcpy(e.alpha, a->alpha, sizeof(e.alpha));
	if (a->beta != 0) {
		b.y = t->c_tile;
		p->kern->load(&b);
		e.c = t->c_tile;
	}
	if (a->bias && bias_row) {
		load_bias(t, bias_row, i, rows, p->kern->rows);
		e.bias_rows = t->bias;
	} else if (a->bias) {
		e.bias_plane = round_up(cols, p->kern->lanes);
		load_bias(t, bias_col, j, cols, e.bias_plane);
		e.bias_cols = t->bias;
	}
	b.y = tile;
	for (int c = 0; c < 4; c++)
		b.flip[c] = p->negative[c] != (c > 0 && a->conj_c);
	if (e.c || a->bias || !a->alpha_real || a->alpha[0] != 1 || t->pre.data || a->activation) {
		memcpy(e.flip, b.flip, sizeof(e.flip));
		memset(b.flip, 0, sizeof(b.flip));
		p->kern->epilogue(&e);
	}
	if (t->pre.data) {
		struct hzi_quat_block pre = block_of(&t->pre, a->c_dtype, i, j);

		pre.rows = rows;
		pre.count = cols;
		pre.y = tile;
		pre.y_l = b.y_l;
		pre.y_plane = plane;
		p->kern->store(&pre);
	}
	if (a->activation) {
		const struct hzi_quat_act act = {
			.t = tile, .rows = rows, .cols = cols, .plane = plane,
			.activation = a->activation, .slope = a->slope,
		};

		p->kern->act(&act);
	}
	p->kern->store(&b);
}

/* What to prefetch now: accumulators first, then C, then the next panel of V */
static struct ahead *next_ahead(struct part *t)
{
	return &t->ahead[t->ahead[2].left > 0 ? 2 : t->ahead[1].left > 0];
}

/* All products of a panel of V by columns j .. of packed S, to the accumulators at acc */
static void multiply(struct part *t, char *acc, bool first, int64_t rows, int64_t j, int64_t cols,
		     int64_t kb)
{
	const struct plan *p = t->p;
	const int64_t panels = ceil_div(cols, HZI_QUAT_COLS), plane = p->kern->rows * cols;
	const int64_t first_panel = j / HZI_QUAT_COLS * t->s_panel;

	for (int i = 0; i < p->step_count; i++) {
		const struct step *s = &p->steps[i];
		const char *v = s->v < 4 ? t->v_raw : t->v_planes;
		struct ahead *ahead = next_ahead(t);
		struct hzi_quat_mul m = {
			.v = v + s->v * t->v_plane * p->size,
			.s = t->s_planes + (s->s * t->s_plane + first_panel) * p->size,
			.p = (s->p < 4 ? t->sums : acc) + s->p % 4 * plane * p->size,
			.rows = rows, .cols = cols, .k = kb, .s_panel = t->s_panel,
			.mode = s->mode, .ahead = ahead->p, .ahead_step = ahead->step,
		};

		if (i == 4 && p->fast) {
			const struct hzi_quat_sub_h4 sum = {
				.p = t->sums, .t = acc, .rows = rows, .cols = cols, .plane = plane,
				.add = !first,
			};

			p->kern->sub_h4(&sum);
		}
		if (i < 4 && !p->fast && !first)
			m.mode = p->add_mode[i];
		if (ahead->left <= 0) {
			m.ahead = m.p;
			m.ahead_step = 0;
		}
		p->kern->mul(&m);
		if (ahead->left > 0) {
			ahead->p += panels * ahead->step;
			ahead->left -= panels;
		}
	}
}

/* ---- Tiles of bf16 --------------------------------------------------------------------------- */

/* pack_s() as bf16: planes 0 .. 3, and negated 4 .. 7 */
static void pack_s_bf16(struct part *t, int64_t j, int64_t cols, int64_t l, int64_t kb)
{
	const struct plan *p = t->p;
	const int64_t steps = ceil_div(kb, 32), plane = 32 * CHUNK_COLS;
	float *chunk = (float *)t->chunk;

	t->s_plane = round_up(cols, 16) * steps * 32;
	for (int64_t j0 = 0; j0 < cols; j0 += 16) {
		for (int64_t step = 0; step < steps; step++) {
			uint16_t *to = (uint16_t *)t->s_planes +
				       (j0 / 16 * steps + step) * BF16_TILE;
			struct hzi_quat_block b = block_of(&t->s.view, HZ_BF16, j + j0,
							   l + 32 * step);

			/* Rows are l here. */
			b.x_i = t->s.view.col;
			b.x_l = t->s.view.row;
			b.rows = min_i64(32, kb - 32 * step);
			b.count = min_i64(16, cols - j0);
			b.y = chunk;
			b.y_l = 32;
			b.y_plane = plane;
			for (int c = 1; c < 4; c++)
				b.flip[c] = t->s.conj;
			if (b.rows < 32 || b.count < 16)
				memset(chunk, 0, (size_t)(4 * plane) * 4);
			p->kern->load(&b);
			for (int64_t c = 0; c < 4; c++)
				p->kern->bf16_pack_s(chunk + c * plane, 16, to + c * t->s_plane,
						to + (4 + c) * t->s_plane);
		}
	}
}

static void pack_v_bf16(struct part *t, int64_t i, int64_t rows, int64_t l, int64_t kb)
{
	const struct plan *p = t->p;
	const int64_t ld = p->kern->rows, steps = ceil_div(kb, 32), plane = 32 * ld;

	t->v_plane = ld * steps * 32;
	for (int64_t step = 0; step < steps; step++) {
		struct hzi_quat_block b = {
			.y = t->chunk, .rows = rows, .count = min_i64(32, kb - 32 * step),
			.y_l = ld, .y_plane = plane,
		};

		if (b.count < 32)
			memset(t->chunk, 0, (size_t)(4 * plane) * 4);
		load(t, &t->v, &b, i, l + 32 * step);
		for (int64_t c = 0; c < 4; c++)
			p->kern->bf16_pack_v((const float *)t->chunk + c * plane, rows,
					(uint16_t *)t->v_planes + c * t->v_plane + step * BF16_TILE,
					steps * BF16_TILE);
	}
}

static void multiply_bf16(struct part *t, char *acc, bool first, int64_t rows, int64_t j,
			  int64_t cols, int64_t kb)
{
	const struct plan *p = t->p;
	const int64_t steps = ceil_div(kb, 32);
	struct hzi_quat_bf16_mul m = {
		.v = (const uint16_t *)t->v_planes, .p = (float *)acc, .rows = rows, .cols = cols,
		.steps = steps, .v_plane = t->v_plane,
		.p_plane = p->kern->rows * round_up(cols, p->unit), .add = !first,
	};

	for (int v = 0; v < 4; v++) {
		for (int c = 0; c < 4; c++) {
			const int s = v ^ c;
			const int sign = p->swap ? product_sign[s][v] : product_sign[v][s];

			m.s[v][c] = (const uint16_t *)t->s_planes +
				    (sign < 0 ? 4 + s : s) * t->s_plane + j * steps * 32;
		}
	}
	p->kern->bf16_mul(&m);
}

/* ---- Parts of C ------------------------------------------------------------------------------ */

/* Rows i_begin .. i_end of V by columns j .. of S, packed at once */
static void columns(struct part *t, int64_t i_begin, int64_t i_end, int64_t j, int64_t cols)
{
	const struct plan *p = t->p;
	const int64_t ld = p->kern->rows;

	for (int64_t l = 0; l < p->k || l == 0; l += K_BLOCK) {
		const int64_t kb = min_i64(K_BLOCK, p->k - l);
		const bool first = l == 0, last = l + kb >= p->k;
		char *acc = t->acc;

		if (p->path == BF16_TILES)
			pack_s_bf16(t, j, cols, l, kb);
		else
			pack_s(t, j, cols, l, kb);
		for (int64_t i = i_begin; i < i_end; i += ld) {
			const int64_t rows = min_i64(ld, i_end - i);

			if (p->path == BF16_TILES)
				pack_v_bf16(t, i, rows, l, kb);
			else
				pack_v(t, i, rows, l, kb);
			t->ahead[0].left = 0;
			for (int64_t j0 = 0; j0 < cols; j0 += p->tile_cols) {
				const int64_t n = min_i64(p->tile_cols, cols - j0);
				const int64_t plane = ld * round_up(n, p->unit);
				const int64_t bytes = 4 * plane * p->size;
				char *sums = first && last ? t->tile : acc;

				/* Prefetch V while the last columns are multiplied. */
				if (j0 + n == cols)
					t->ahead[0] = i + ld < i_end ? ahead_v(t, i + ld, l) :
						      ahead_v(t, i_begin, last ? 0 : l + kb);
				t->ahead[1] = (struct ahead){
					block_of(&t->c, p->a->c_dtype, i, j + j0).x,
					t->c.col * dtype_bytes(p->a->c_dtype),
					last && t->c.row == 4 ? n : 0,
				};
				t->ahead[2] = (struct ahead){
					sums, AHEAD_BYTES, first ? 0 : bytes / AHEAD_BYTES,
				};
				if (p->path == BF16_TILES)
					multiply_bf16(t, sums, first, rows, j0, n, kb);
				else
					multiply(t, sums, first, rows, j0, n, kb);
				if (last)
					finish(t, sums, plane, i, rows, j + j0, n);
				acc += bytes;
			}
		}
	}
}

/* ---- GEMV ------------------------------------------------------------------------------------ */

/* Packs rows l .. l + kb - 1 of S as f32 quads, padded with 0 to whole vectors. */
static void pack_quads(struct part *t, int64_t l, int64_t kb)
{
	const struct plan *p = t->p;
	const bool row_major = p->cols > p->kern->column_major;
	const int64_t column = gemv_ld(p, kb) / p->cols;
	/* Rows are l here, or with row_major columns. */
	const int64_t chunk = row_major ? GEMV_CHUNK / 2 : GEMV_CHUNK,
		      ld = row_major ? GEMV_PLANE : GEMV_CHUNK;

	memset(t->s_planes, 0, (size_t)p->s_bytes);
	for (int64_t j = 0; j < (row_major ? 1 : p->cols); j++) {
		for (int64_t l0 = 0; l0 < kb; l0 += chunk) {
			const int64_t n = min_i64(chunk, kb - l0);
			struct hzi_quat_block b = block_of(&t->s.view, p->a->dtype, j, l + l0);

			b.x_i = row_major ? t->s.view.row : t->s.view.col;
			b.x_l = row_major ? t->s.view.col : t->s.view.row;
			b.rows = row_major ? p->cols : n;
			b.count = row_major ? n : 1;
			b.y = t->chunk;
			b.y_l = ld;
			b.y_plane = b.count * ld;
			for (int c = 1; c < 4; c++)
				b.flip[c] = t->s.conj;
			p->kern->load(&b);
			b.x_l = gemv_ld(p, 1);
			b.x = (float *)t->s_planes + (row_major ? l0 * b.x_l : j * column + l0 * 4);
			b.x_i = 4;
			b.dtype = HZ_F32;
			for (int c = 0; c < 4; c++) {
				b.comp[c] = c;
				b.flip[c] = false;
			}
			p->kern->store(&b);
		}
	}
}

typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_bits __attribute__((vector_size(16)));

#ifdef __clang__
#define SHUFFLE_QUADS(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_QUADS(a, b, ...) __builtin_shuffle(a, b, (quad_bits){__VA_ARGS__})
#endif

/* column[v]: the products of component v of V by the four of S, from columns of these */
static void transpose_products(const float *from, const int64_t *comp, quad *column)
{
	quad row[4], half[4], whole[4];

	memcpy(row, from, sizeof(row));
	for (int i = 0; i < 2; i++) {
		half[i] = SHUFFLE_QUADS(row[2 * i], row[2 * i + 1], 0, 4, 1, 5);
		half[2 + i] = SHUFFLE_QUADS(row[2 * i], row[2 * i + 1], 2, 6, 3, 7);
	}
	for (int i = 0; i < 2; i++) {
		whole[2 * i] = SHUFFLE_QUADS(half[2 * i], half[2 * i + 1], 0, 1, 4, 5);
		whole[2 * i + 1] = SHUFFLE_QUADS(half[2 * i], half[2 * i + 1], 2, 3, 6, 7);
	}
	for (int v = 0; v < 4; v++)
		column[v] = whole[comp[v]];
}

/*
 * Adds the 16 products of components of V and S up to a quaternion, with their signs: component v
 * of V by s of S to component v ^ s.
 */
static void add_signs(const struct part *t, const float *sums, int64_t rows)
{
	const struct plan *p = t->p;
	const int64_t ld = p->kern->rows, plane = ld * p->cols;
	float *const tile = (float *)t->tile;
	quad_bits flip[4];

	for (int v = 0; v < 4; v++) {
		for (int c = 0; c < 4; c++) {
			const int s = v ^ c, sign = p->swap ? product_sign[s][v] :
							      product_sign[v][s];

			flip[v][c] = (sign < 0) != (t->v.conj && v > 0) ? INT32_MIN : 0;
		}
	}
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < p->cols; j++) {
			const float *from = sums + (i * p->cols + j) * 16;
			quad x[4], y = {0};

			if (p->cols > p->kern->column_major) {
				for (int v = 0; v < 4; v++)
					memcpy(&x[v], from + 4 * t->v.view.comp[v], sizeof(x[v]));
			} else {
				transpose_products(from, t->v.view.comp, x);
			}
			x[1] = SHUFFLE_QUADS(x[1], x[1], 1, 0, 3, 2);
			x[2] = SHUFFLE_QUADS(x[2], x[2], 2, 3, 0, 1);
			x[3] = SHUFFLE_QUADS(x[3], x[3], 3, 2, 1, 0);
			for (int v = 0; v < 4; v++)
				y += (quad)((quad_bits)x[v] ^ flip[v]);
			for (int c = 0; c < 4; c++)
				tile[c * plane + j * ld + i] = y[c];
		}
	}
}

static void gemv_part(struct part *t, int64_t i_begin, int64_t i_end)
{
	const struct plan *p = t->p;
	/* Multiples of the 6 rows that gemv() processes at a time */
	const int64_t ld = p->kern->rows, step = ld / 6 * 6, sums_ld = ld * p->cols * 16;

	/* Lanes behind the rows of a tile, which add_signs() leaves alone: see run_parts(). */
	if (min_i64(step, p->rows) % p->kern->lanes)
		memset(t->tile, 0, (size_t)p->t_bytes);
	for (int64_t l = 0; l < p->k || l == 0; l += p->gemv_block) {
		const int64_t kb = min_i64(p->gemv_block, p->k - l);
		const int64_t e_ld = p->cols > p->kern->column_major ? gemv_ld(p, 1)
								     : gemv_ld(p, kb) / p->cols;
		const bool last = l + kb >= p->k;
		float *sums = (float *)t->acc;

		pack_quads(t, l, kb);
		for (int64_t i = i_begin; i < i_end; i += step) {
			const struct hzi_quat_gemv g = {
				.x = block_of(&t->v.view, p->a->dtype, i, l).x,
				.e = (const float *)t->s_planes, .sums = sums,
				.rows = min_i64(step, i_end - i), .cols = p->cols, .count = kb,
				.x_i = t->v.view.row, .e_ld = e_ld, .dtype = p->a->dtype,
				.add = l > 0,
			};

			p->kern->gemv(&g);
			if (last) {
				add_signs(t, sums, g.rows);
				finish(t, t->tile, ld * p->cols, i, g.rows, 0, p->cols);
			}
			if (p->k > p->gemv_block)
				sums += sums_ld;
		}
	}
}

static quad flip_quad(quad x, quad_bits flip)
{
	return (quad)((quad_bits)x ^ flip);
}

/*
 * Packs S for gemv_packed(): for each element 16 signed numbers, by plane of V and component of C.
 */
static void pack_signed(struct part *t)
{
	const struct plan *p = t->p;
	quad *const to = (quad *)t->s_planes;
	quad_bits flip[4];

	for (int v = 0; v < 4; v++) {
		for (int c = 0; c < 4; c++)
			flip[v][c] = (product_sign[v][v ^ c] < 0) != (t->v.conj && v > 0) ?
				     INT32_MIN : 0;
	}
	for (int64_t j = 0; j < p->cols; j++) {
		for (int64_t l = 0; l < p->k; l += GEMV_CHUNK) {
			struct hzi_quat_block b = block_of(&t->s.view, p->a->dtype, j, l);
			const float *from = (const float *)t->chunk;
			quad *y = to + (l * p->cols + j) * 4;

			b.x_i = t->s.view.col;
			b.x_l = t->s.view.row;
			b.rows = min_i64(GEMV_CHUNK, p->k - l);
			b.count = 1;
			b.y = t->chunk;
			b.y_plane = GEMV_CHUNK;
			for (int c = 1; c < 4; c++)
				b.flip[c] = t->s.conj;
			p->kern->load(&b);
			for (int64_t i = 0; i < b.rows; i++, from++, y += 4 * p->cols) {
				const quad x = {from[0], from[GEMV_CHUNK], from[2 * GEMV_CHUNK],
						from[3 * GEMV_CHUNK]};

				y[0] = flip_quad(x, flip[0]);
				y[1] = flip_quad(SHUFFLE_QUADS(x, x, 1, 0, 3, 2), flip[1]);
				y[2] = flip_quad(SHUFFLE_QUADS(x, x, 2, 3, 0, 1), flip[2]);
				y[3] = flip_quad(SHUFFLE_QUADS(x, x, 3, 2, 1, 0), flip[3]);
			}
		}
	}
}

/* A packed panel is read some of k at a time; rows of each panel of micro-kernels have a tile. */
static void gemv_packed_part(struct part *t, int64_t i_begin, int64_t i_end)
{
	const struct plan *p = t->p;
	const int64_t ld = p->kern->rows, size = dtype_bytes(p->a->dtype);
	const int64_t some = GEMV_PACKED_BLOCK(p->cols, size);

	pack_signed(t);
	for (int64_t i0 = i_begin, next; i0 < i_end; i0 = next) {
		const int64_t tile_bytes = 4 * ld * p->cols * p->size;
		char *tile = t->acc;

		next = min_i64(i_end, (i0 / HZI_QUAT_PANEL + 1) * HZI_QUAT_PANEL);
		for (int64_t l = 0; l < p->k || l == 0; l += some) {
			const int64_t block = l / K_BLOCK * K_BLOCK;
			struct hzi_quat_gemv_packed g = {
				.t = (float *)t->acc, .cols = p->cols, .x_l = HZI_QUAT_PANEL,
				.t_plane = ld * p->cols, .dtype = p->a->dtype, .add = l > 0,
				.s = (const float *)t->s_planes + l * p->cols * 16,
				.count = min_i64(some, p->k - l),
				.x_plane = HZI_QUAT_PANEL * min_i64(K_BLOCK, p->k - block),
				.x = (const char *)t->v.view.data +
				     (packed_at(i0, block, t->v.packed_k) + i0 % HZI_QUAT_PANEL +
				      (l - block) * HZI_QUAT_PANEL) * size,
				.rows = next - i0,
			};

			p->kern->gemv_packed(&g);
		}
		for (int64_t i = i0; i < next; i += ld, tile += tile_bytes)
			finish(t, tile, ld * p->cols, i, min_i64(ld, next - i), 0, p->cols);
	}
}

struct job {
	const struct plan *p;
	char *scratch;
};

static void run_parts(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;
	const struct plan *p = job->p;
	const int64_t panels = ceil_div(p->rows, p->kern->rows), parts = p->grid_v * p->grid_s;
	char *scratch = job->scratch + thread * p->each;
	struct part t = {.p = p};

	t.s_planes = take(&scratch, p->s_bytes);
	t.v_planes = take(&scratch, p->v_bytes);
	t.sums = take(&scratch, p->p_bytes);
	t.tile = take(&scratch, p->t_bytes);
	t.c_tile = take(&scratch, p->t_bytes);
	t.bias = take(&scratch, p->t_bytes);
	t.chunk = take(&scratch, p->chunk_bytes);
	t.acc = take(&scratch, p->acc_bytes);
	/*
	 * pack_panels() reads more columns of a chunk than it has. It computes on zeros there, later
	 * on old values: whatever the memory holds might raise floating-point exceptions.
	 */
	if (p->fast)
		memset(t.chunk, 0, (size_t)p->chunk_bytes);
	for (int64_t u = begin; u < end; u++) {
		const int64_t v = u % parts / p->grid_s, s = u % parts % p->grid_s;
		const int64_t i0 = panels * v / p->grid_v * p->kern->rows;
		const int64_t i1 = min_i64(p->rows, panels * (v + 1) / p->grid_v * p->kern->rows);
		const int64_t j1 = p->cols * (s + 1) / p->grid_s;

		begin_item(&t, u / parts);
		if (p->path == GEMV)
			gemv_part(&t, i0, i1);
		else if (p->path == GEMV_PACKED)
			gemv_packed_part(&t, i0, i1);
		else
			for (int64_t j = p->cols * s / p->grid_s; j < j1; j += p->nc)
				columns(&t, i0, i1, j, min_i64(p->nc, j1 - j));
	}
}

/* ---- Code paths ------------------------------------------------------------------------------ */

static size_t workspace(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
			enum path path)
{
	struct plan p;

	make_plan(&p, ctx, a, path);
	return (size_t)(p.threads * p.each);
}

static int run(struct hz_context *ctx, const struct hzi_quat_gemm_args *a, enum path path)
{
	struct plan p;
	struct job job = {.p = &p, .scratch = ctx->workspace};

	make_plan(&p, ctx, a, path);
	if (path == PANELS)
		plan_steps(&p);
	assert(ctx->workspace_bytes >= (size_t)(p.threads * p.each));
	hzi_parallel(ctx, p.threads, run_parts, &job, p.items * p.grid_v * p.grid_s);
	return HZ_OK;
}

const char *hzi_cpu_quat_gemm_gemv_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	if (min_i64(a->m, a->n) > GEMV_COLS)
		return "more than 32 rows and columns";
	if (a->packed)
		return "a is packed";
	if (!kern_of(ctx, a->dtype)->gemv)
		return "operands are f64";
	return (a->m < a->n ? is_quads(&a->b, a->b.row) : is_quads(&a->a, a->a.col))
		       ? NULL : "rows of a, or columns of b, are not contiguous";
}

static void advance(struct hzi_quat_view *v, int64_t elements, int dtype)
{
	if (v->data)
		v->data = (char *)v->data + elements * dtype_bytes(dtype);
}

/* Rows of C from i on, or its columns, whichever are fewer */
static struct hzi_quat_gemm_args few_of(const struct hzi_quat_gemm_args *all, int64_t i,
					int64_t count)
{
	struct hzi_quat_gemm_args a = *all;
	const bool rows = a.m < a.n;
	const int64_t bias = i * (rows ? a.bias_row : a.bias_col) * dtype_bytes(a.bias_dtype);

	if (rows) {
		a.m = count;
		advance(&a.a, i * a.a.row, a.dtype);
	} else {
		a.n = count;
		advance(&a.b, i * a.b.col, a.dtype);
	}
	advance(&a.c, i * (rows ? a.c.row : a.c.col), a.c_dtype);
	advance(&a.pre, i * (rows ? a.pre.row : a.pre.col), a.c_dtype);
	if (a.bias)
		a.bias = (const char *)a.bias + bias;
	return a;
}

size_t hzi_cpu_quat_gemm_gemv_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *const all = args;
	const int64_t cols = min_i64(all->m, all->n);
	size_t most = 0;

	if (cols <= HZI_QUAT_GEMV_COLS)
		return workspace(ctx, all, GEMV);
	/* The plan depends on the number of columns, of which the last ones may be fewer. */
	for (int64_t count = HZI_QUAT_GEMV_COLS; count > 0; count--) {
		const struct hzi_quat_gemm_args a = few_of(all, 0, count);
		const size_t bytes = workspace(ctx, &a, GEMV);

		most = bytes > most ? bytes : most;
	}
	return most;
}

int hzi_cpu_quat_gemm_gemv(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *const all = args;
	const int64_t cols = min_i64(all->m, all->n);

	if (cols <= HZI_QUAT_GEMV_COLS)
		return run(ctx, all, GEMV);
	for (int64_t i = 0; i < cols; i += HZI_QUAT_GEMV_COLS) {
		const struct hzi_quat_gemm_args a =
			few_of(all, i, min_i64(HZI_QUAT_GEMV_COLS, cols - i));

		run(ctx, &a, GEMV);
	}
	return HZ_OK;
}

const char *hzi_cpu_quat_gemm_gemv_packed_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	if (!a->packed || a->packed_t)
		return "a is not packed as it is used";
	if (a->n > HZI_QUAT_GEMV_COLS)
		return "more than 8 columns";
	if (a->k > GEMV_PACKED_K)
		return "k is above 32768";
	return kern_of(ctx, a->dtype)->gemv_packed ? NULL : "operands are f64";
}

/*
 * Panels multiply 6 or 12 columns. With 32 registers they do so 1.5 times as fast: 256 x 256 by 6
 * and 8 columns take 99 and 133 us there, 109 and 139 here (AVX2: 237 and 316, 214 and 276). They
 * read packed f32 in place, but 16 bits through a copy: f16 by 6 and 8 columns 102 and 122, 93 and
 * 119.
 */
bool hzi_cpu_quat_gemm_gemv_packed_wins(const struct hz_context *ctx,
					const struct hzi_quat_gemm_args *a)
{
	return a->n <= 4 || kern_of(ctx, a->dtype)->lanes < 16 || a->dtype != HZ_F32 ||
	       (a->n > HZI_QUAT_COLS && a->method != HZ_QUAT_FAST);
}

size_t hzi_cpu_quat_gemm_gemv_packed_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, GEMV_PACKED);
}

int hzi_cpu_quat_gemm_gemv_packed(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, GEMV_PACKED);
}

const char *hzi_cpu_quat_gemm_bf16_tiles_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	if (a->dtype != HZ_BF16 || !kern_of(ctx, a->dtype)->bf16_mul)
		return "operands are not bf16";
	if (a->precision != HZ_PRECISION_AUTO && a->precision != HZ_PRECISION_HALF)
		return "the precision is neither AUTO nor HALF";
	return a->k ? NULL : "k is 0";
}

size_t hzi_cpu_quat_gemm_bf16_tiles_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, BF16_TILES);
}

int hzi_cpu_quat_gemm_bf16_tiles(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, BF16_TILES);
}

size_t hzi_cpu_quat_gemm_panels_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, PANELS);
}

int hzi_cpu_quat_gemm_panels(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, PANELS);
}
