/*
 * wgmma.c - launchers of quaternion matrix products by wgmma on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both operands are f16 planes, made in the workspace, or for A when it was packed. Items of a
 * batch run one after the other in the same workspace.
 *
 * Packed planes are never conjugated. For a conjugated A, conj(w) x = conj(conj(x) w): A becomes
 * the right factor and the conjugate of C is stored. For a transposed A, its lines are the k of the
 * product, so the other operand is multiplied by their scales.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "gpu/quat_gemm/gemv.h"
#include "gpu/quat_gemm/launch.h"
#include "gpu/quat_gemm/wgmma.h"

HZI_LINK_IMAGES(quat_gemm);

#define LINES_MAX ((int64_t)1 << 26)	/* lines of all planes are counted in 32 bits */
#define COLUMNS_STEP ((int64_t)1 << 22)	/* columns of B per launch beyond LINES_MAX */
#define K_MAX ((int64_t)1 << 22)	/* blocks of 64, along a grid */
#define SMALL 32
#define FEW_COLUMNS 8	/* for which others win; fewer than SMALL: also with a small A */
#define SMALL_A ((int64_t)1 << 14)	/* m k */
#define ITEMS 4 /* of a batch from which other routes win, unless each item is large */
#define ITEM_LARGE ((int64_t)1 << 26)	/* m n k */

/* ---- Packing --------------------------------------------------------------------------------- */

struct hzi_quat_planar hzi_quat_packed_planes(int64_t m, int64_t k, int method, int split)
{
	return hzi_quat_planar_of(m, k, method == HZ_QUAT_FAST ? 8 : 4, split);
}

/* A copy fits into the bytes of packed matrices, which are those of f32 planes. */
static bool has_copy(int dtype, int split)
{
	return dtype != HZ_F32 && !split;
}

static uint16_t *copy_of(const struct hzi_quat_planar *p, const void *data)
{
	return (uint16_t *)(void *)((char *)(uintptr_t)data + hzi_quat_planar_bytes(p));
}

bool hzi_cuda_quat_gemm_packs_f16(const struct hz_context *ctx, int dtype, int precision, int64_t m,
				  int64_t k)
{
	int split;

	/* Both sizes are lines: of the matrix, and of its transpose. */
	return hzi_quat_uses_planar_f16(ctx, dtype, precision, &split) && m <= K_MAX && k <= K_MAX;
}

static struct hzi_quat_matrix item_of(const struct hzi_quat_view *v, int dtype, int conj,
				      int64_t offset)
{
	struct hzi_quat_view at = *v;

	if (v->data)
		at.data = (char *)v->data + offset * (int64_t)hz_dtype_size(dtype);
	return hzi_quat_matrix_of(&at, dtype, conj, NULL, 0);
}

int hzi_cuda_quat_gemm_wgmma_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a)
{
	const int64_t bytes = hzi_quat_pack_bytes(a->layout, a->dtype, a->m, a->k);
	int64_t index[HZ_MAXDIM] = {0};
	char *data = a->data;
	struct hzi_quat_planar p;
	int split;

	hzi_quat_uses_planar_f16(ctx, a->dtype, a->precision, &split);
	p = hzi_quat_packed_planes(a->m, a->k, a->method, split);
	do {
		const struct hzi_quat_matrix x =
			item_of(&a->a, a->dtype, 0, offset_of(index, a->a_stride, a->ndim));

		hzi_quat_planar_set(&p, data);
		if (has_copy(a->dtype, split))
			p.copy = copy_of(&p, data);
		HZ_CHECK(hzi_quat_planar_pack(ctx, "quat_gemm_pack", &p, &x, true, NULL));
		data += bytes;
	} while (next_index(index, a->shape, a->ndim));
	return HZ_OK;
}

bool hzi_cuda_quat_gemm_uses_copy(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
				  struct hzi_quat_gemm_args *to)
{
	const int64_t m = a->packed_t ? a->k : a->m, k = a->packed_t ? a->m : a->k;
	const int64_t bytes = hzi_quat_pack_bytes(a->layout, a->dtype, m, k);
	struct hzi_quat_planar p;
	int split;

	if (!a->packed || !hzi_cuda_quat_gemm_packs_f16(ctx, a->dtype, a->precision, m, k))
		return false;
	hzi_quat_uses_planar_f16(ctx, a->dtype, a->precision, &split);
	if (!has_copy(a->dtype, split))
		return false;
	p = hzi_quat_packed_planes(m, k, a->method, split);
	*to = *a;
	to->packed = NULL;
	to->packed_t = 0;
	to->a = (struct hzi_quat_view){.data = copy_of(&p, a->packed), .row = hzi_quat_copy_line(k),
				       .col = 4, .comp = {0, 1, 2, 3}};
	for (int d = 0; d < a->ndim; d++)
		to->a_stride[d] = a->packed_stride[d] * (bytes / 2);
	if (a->packed_t) {
		to->a.row = 4;
		to->a.col = hzi_quat_copy_line(k);
		return a->n <= HZI_GEMV_COLUMNS &&
		       !hzi_cuda_quat_gemm_gemv_transposed_unsupported(ctx, to);
	}
	if (a->n <= HZI_GEMV_WIDE_COLUMNS_MOST &&
	    !hzi_cuda_quat_gemm_gemv_mma_unsupported(ctx, to))
		return true;
	return !hzi_cuda_quat_gemm_wgmma_in_place_unsupported(ctx, to) &&
	       !hzi_cuda_quat_gemm_wgmma_in_place_is_slower(to, true);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Planes w, x, y, z behind the four of H4 q: by component of C, of the left and the right factor */
static const uint8_t left_wxyz[4] = {4, 7, 5, 6}, right_wxyz[4] = {4, 6, 7, 5};

/* Products of component c: left, right, and whether the product is subtracted */
static const uint8_t direct_products[4][4][3] = {
	{{0, 0, 0}, {1, 1, 1}, {2, 2, 1}, {3, 3, 1}},
	{{0, 1, 0}, {1, 0, 0}, {2, 3, 0}, {3, 2, 1}},
	{{0, 2, 0}, {1, 3, 1}, {2, 0, 0}, {3, 1, 0}},
	{{0, 3, 0}, {1, 2, 0}, {2, 1, 1}, {3, 0, 0}},
};

/*
 * The planes of product e of component c in a phase. Split planes: low times high, high times low,
 * high times high, the smallest first.
 */
static void product_of(int method, int phase, int c, int e, const struct hzi_quat_planar *left,
		       const struct hzi_quat_planar *right, int *l, int *r)
{
	const int parts = left->split ? 3 : 1;

	if (method == HZ_QUAT_FAST) {
		*l = phase ? left_wxyz[c] : c;
		*r = phase ? right_wxyz[c] : c;
	} else {
		const uint8_t *d = direct_products[c][e / parts];

		*l = d[0];
		*r = d[1];
		if (d[2])
			*(left->count == 7 ? l : r) += 3;
	}
	if (parts == 3 && e % 3 == 0)
		*l += left->count;
	if (parts == 3 && e % 3 == 1)
		*r += right->count;
}

/* A call */
struct plan {
	struct hzi_quat_planar a, b;
	bool a_left;	/* A is the left factor; otherwise conj(C) = B' A' */
	bool a_rows;	/* A is the rows of tiles, not their columns */
};

static int64_t absolute(int64_t x)
{
	return x < 0 ? -x : x;
}

static struct plan plan_of(const struct hzi_quat_gemm_args *a, int split)
{
	struct plan p;

	if (a->packed && a->packed_t)
		p.a = hzi_quat_packed_planes(a->k, a->m, a->method, split);
	else
		p.a = hzi_quat_packed_planes(a->m, a->k, a->method, split);
	p.b = hzi_quat_planar_of(a->n, a->k, a->method == HZ_QUAT_FAST ? 8 : 7, split);
	p.a_left = !a->packed || !a->conj_a;
	/* Tiles have the contiguous dimension of C as columns where possible. */
	p.a_rows = absolute(a->c.col) <= absolute(a->c.row) && !(a->packed && a->packed_t);
	return p;
}

const char *hzi_cuda_quat_gemm_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	int split;

	if (a->k == 0)
		return "k is 0";
	if (!hzi_quat_uses_planar_f16(ctx, a->dtype, a->precision, &split))
		return "the precision is f32";
	/* Packed A exists for sizes up to K_MAX; columns of B go in several launches. */
	if (a->k > K_MAX || a->m > (a->packed ? K_MAX : LINES_MAX) ||
	    (!a->packed && a->n > LINES_MAX))
		return "m, n or k is too large";
	return NULL;
}

bool hzi_cuda_quat_gemm_wgmma_is_slower(const struct hzi_quat_gemm_args *a)
{
	int64_t items = 1;

	if (a->packed || a->precision != HZ_PRECISION_AUTO)
		return false;
	/*
	 * Small products and large batches: planes and a launch per item cost more than they save.
	 */
	for (int d = 0; d < a->ndim; d++)
		items *= a->shape[d];
	return a->m < SMALL || a->k < SMALL || a->n <= FEW_COLUMNS ||
	       (a->n < SMALL && a->m < SMALL_A / a->k) ||
	       (items > ITEMS && a->m * a->n < ITEM_LARGE / a->k);
}

/* The columns of a launch, from `first` on; false: none left */
static bool columns_from(const struct hzi_quat_gemm_args *a, int64_t first,
			 struct hzi_quat_gemm_args *part)
{
	const int64_t size = (int64_t)hz_dtype_size(a->dtype);
	const int64_t c_size = (int64_t)hz_dtype_size(a->c_dtype);

	if (first >= a->n)
		return false;
	*part = *a;
	part->n = a->n <= LINES_MAX ? a->n : min_of(a->n - first, COLUMNS_STEP);
	part->b.data = (char *)a->b.data + first * a->b.col * size;
	part->c.data = (char *)a->c.data + first * a->c.col * c_size;
	if (a->pre.data)
		part->pre.data = (char *)a->pre.data + first * a->pre.col * c_size;
	if (a->bias)
		part->bias = (const char *)a->bias +
			     first * a->bias_col * (int64_t)hz_dtype_size(a->bias_dtype);
	return true;
}

size_t hzi_cuda_quat_gemm_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	struct hzi_quat_gemm_args part;
	struct plan p;
	int split;

	hzi_quat_uses_planar_f16(ctx, a->dtype, a->precision, &split);
	columns_from(a, 0, &part);
	p = plan_of(&part, split);
	return (a->packed ? 0 : hzi_quat_planar_bytes(&p.a)) + hzi_quat_planar_bytes(&p.b);
}

/* The epilogue of an item; rows and columns are swapped if B is the rows of tiles. */
static struct hzi_quat_out out_of(const struct hzi_quat_gemm_args *a, const struct plan *plan,
				  int64_t c_offset, int64_t pre_offset)
{
	struct hzi_quat_gemm_args t = *a;
	struct hzi_quat_out o;
	int64_t swap;

	t.ndim = 0;
	t.conj_c = 0;
	t.c.data = (char *)a->c.data + c_offset * (int64_t)hz_dtype_size(a->c_dtype);
	if (a->pre.data)
		t.pre.data = (char *)a->pre.data + pre_offset * (int64_t)hz_dtype_size(a->c_dtype);
	o = hzi_quat_out_of(&t);
	if (!plan->a_rows) {
		swap = o.c.row, o.c.row = o.c.col, o.c.col = swap;
		swap = o.pre.row, o.pre.row = o.pre.col, o.pre.col = swap;
		swap = o.bias_row, o.bias_row = o.bias_col, o.bias_col = swap;
		o.m = (int32_t)a->n;
		o.n = (int32_t)a->m;
	}
	return o;
}

/* Whether the kernels with a 16-bit epilogue support it */
static bool fits_16bit_epilogue(const struct hzi_quat_out *o)
{
	return o->c.dtype != HZ_F32 && o->c.whole && o->alpha_real && o->beta == 0 &&
	       !o->pre.data && o->activation <= HZ_ACT_LEAKY;
}

struct kernel {
	int columns, kernel, kernel_transposed;
};

static const struct kernel kernels_16bit[] = {
	{192, HZI_KERNEL_quat_gemm_wgmma_256x192, HZI_KERNEL_quat_gemm_wgmma_256x192_transposed},
	{160, HZI_KERNEL_quat_gemm_wgmma_256x160, 0},
}, kernel_one_tile = {160, HZI_KERNEL_quat_gemm_wgmma_256x160_single, 0},
kernel_exact = {128, HZI_KERNEL_quat_gemm_wgmma_256x128_exact,
		HZI_KERNEL_quat_gemm_wgmma_256x128_exact_transposed};

/*
 * Measured on an H200, where 32 clusters have a tile each: tiles, which take 30 us or more,
 * planes of B and of an A that is not packed
 */
double hzi_cuda_quat_gemm_wgmma_ns(const struct hzi_quat_gemm_args *a, bool packed)
{
	const int64_t tiles = ceil_div(a->m, 2 * HZI_QUAT_WGMMA_ROWS) *
			      ceil_div(a->n, kernel_one_tile.columns);
	const double k = (double)a->k, k_ns = a->method == HZ_QUAT_FAST ? 33 : 50;

	return 8000 + (double)ceil_div(tiles, 32) * fmax(k_ns * k, 30000) +
	       (double)(a->n + (packed ? 0 : a->m)) * k / 150;
}

/* The kernel of least time, if `clusters` clusters run one tile each at a time */
static const struct kernel *kernel_of(int64_t tiles_m, int64_t n, int clusters)
{
	const struct kernel *best = kernels_16bit;
	int64_t least = INT64_MAX;

	if (tiles_m * ceil_div(n, kernel_one_tile.columns) <= clusters)
		return &kernel_one_tile;
	for (size_t i = 0; i < sizeof(kernels_16bit) / sizeof(*kernels_16bit); i++) {
		const int64_t tiles = tiles_m * ceil_div(n, kernels_16bit[i].columns);
		const int64_t cost = ceil_div(tiles, clusters) * kernels_16bit[i].columns;

		if (cost < least) {
			least = cost;
			best = &kernels_16bit[i];
		}
	}
	return best;
}

/*
 * TMA fills lines beyond a plane with 0, which takes less power than the lines of the next plane.
 */
static int map_lines(struct hz_context *ctx, struct hzi_tensor_map *map,
		     const struct hzi_quat_planar *p, int box_lines)
{
	return hzi_cuda_tensor_map_3d(ctx, "quat_gemm", map, p->data, 2 * p->all_k, p->lines,
				      2 * p->all_k, p->count * (1 + p->split),
				      2 * p->all_k * p->all_lines, 128, box_lines, 1);
}

static int multiply(struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
		    const struct plan *plan, int64_t c_offset, int64_t pre_offset)
{
	const bool fast = a->method == HZ_QUAT_FAST, transposed = a->packed && a->packed_t;
	const struct hzi_quat_planar *rows = plan->a_rows ? &plan->a : &plan->b,
			    *cols = plan->a_rows ? &plan->b : &plan->a,
			    *left = plan->a_left ? &plan->a : &plan->b,
			    *right = plan->a_left ? &plan->b : &plan->a;
	const struct hzi_quat_out out = out_of(a, plan, c_offset, pre_offset), *o = &out;
	const bool exact = plan->a.split || !fits_16bit_epilogue(o);
	const struct kernel *f = exact ? &kernel_exact : kernels_16bit;
	struct hzi_quat_wgmma p = {
		.out = *o,
		.row_scales = rows->scales, .col_scales = transposed ? NULL : cols->scales,
		.col_lines = (int32_t)cols->all_lines,
		.blocks = (int32_t)(plan->b.all_k / HZI_QUAT_WGMMA_TILE_K),
		.band = HZI_QUAT_WGMMA_BAND, .phases = fast ? 2 : 1,
		.per = (fast ? 1 : 4) * (left->split ? 3 : 1),
	};
	struct hzi_launch launch = {.block = {HZI_QUAT_WGMMA_THREADS},
				    .shared_bytes = HZI_QUAT_WGMMA_SHARED_BYTES,
				    .cluster = HZI_QUAT_WGMMA_CLUSTER, .early = true,
				    .aligned = true};
	int clusters;

	for (int part = 0; part < 2; part++) {
		for (int i = 0; i < p.phases * 2 * p.per; i++) {
			const int phase = i / (2 * p.per), c = i / p.per % 2, e = i % p.per;
			/*
			 * Exact kernels compute one sum after the other, the others both
			 * alternately.
			 */
			const int at = exact ? c * p.per + e : 2 * e + c;
			int l, r;

			product_of(a->method, phase, 2 * part + c, e, left, right, &l, &r);
			p.row_plane[part][phase][at] = (uint8_t)(rows == left ? l : r);
			p.col_plane[part][phase][at] = (uint8_t)(rows == left ? r : l);
		}
	}
	/* Sums of the fast method are conjugates, and so is B' A'. */
	if (fast ^ !plan->a_left ^ a->conj_c)
		p.flip = 0x80000000;
	p.no_epilogue = !o->bias && o->activation == HZ_ACT_NONE &&
			(!exact || (!o->pre.data && o->beta == 0 && o->alpha_real &&
				    o->alpha[0] == 1));
	p.alpha = exact ? 1 : o->alpha[0];
	p.pairs = o->c.dtype != HZ_F32 && o->c.col == 4 && (uintptr_t)o->c.data % 16 == 0 &&
		  (o->c.row % 8 == 0 || o->m == 1);
	/* The same for each kernel: a block occupies an SM. */
	HZ_CHECK(hzi_cuda_clusters(ctx, "quat_gemm", f->kernel, &launch, &clusters));
	p.tiles_m = (int32_t)ceil_div(o->m, 2 * HZI_QUAT_WGMMA_ROWS);
	if (!exact && !transposed)
		f = kernel_of(p.tiles_m, o->n, clusters);
	p.tiles_n = (int32_t)ceil_div(o->n, f->columns);
	HZ_CHECK(map_lines(ctx, &p.rows, rows, HZI_QUAT_WGMMA_ROWS));
	if (transposed)
		HZ_CHECK(hzi_quat_planar_map(ctx, "quat_gemm", &p.cols, cols, 128,
					     HZI_QUAT_WGMMA_TILE_K / 2));
	else
		HZ_CHECK(map_lines(ctx, &p.cols, cols, f->columns / 2));
	launch.grid[0] = (unsigned)(HZI_QUAT_WGMMA_CLUSTER *
				    min_of(clusters, (int64_t)p.tiles_m * p.tiles_n));
	return hzi_cuda_launch(ctx, "quat_gemm", transposed ? f->kernel_transposed : f->kernel,
			       &launch, &p, sizeof(p));
}

static int multiply_all(struct hz_context *ctx, const struct hzi_quat_gemm_args *a)
{
	const int64_t pack_bytes =
		a->packed ? hzi_quat_pack_bytes(a->layout, a->dtype, a->packed_t ? a->k : a->m,
						a->packed_t ? a->m : a->k) : 0;
	int64_t index[HZ_MAXDIM] = {0}, a_last = -1, b_last = -1;
	bool first = true;
	struct plan p;
	char *workspace = ctx->workspace;
	int split;

	hzi_quat_uses_planar_f16(ctx, a->dtype, a->precision, &split);
	p = plan_of(a, split);
	if (!a->packed) {
		hzi_quat_planar_set(&p.a, workspace);
		workspace += hzi_quat_planar_bytes(&p.a);
	}
	hzi_quat_planar_set(&p.b, workspace);
	do {
		const int64_t b_offset = offset_of(index, a->b_stride, a->ndim);
		int64_t a_offset;

		if (a->packed) {
			a_offset = offset_of(index, a->packed_stride, a->ndim);
			hzi_quat_planar_set(&p.a, (char *)(uintptr_t)a->packed +
					 a_offset * pack_bytes);
		} else {
			const struct hzi_quat_matrix x = item_of(
				&a->a, a->dtype, a->conj_a,
				a_offset = offset_of(index, a->a_stride, a->ndim));

			if (first || a_offset != a_last)
				HZ_CHECK(hzi_quat_planar_pack(ctx, "quat_gemm", &p.a, &x, true,
							      NULL));
		}
		if (first || b_offset != b_last || (a->packed_t && a_offset != a_last)) {
			/* B as the left factor is conjugated once more, for conj(C). */
			struct hzi_quat_matrix x = item_of(&a->b, a->dtype,
							   a->conj_b ^ !p.a_left, b_offset);
			const int64_t swap = x.row;

			x.row = x.col;
			x.col = swap;
			HZ_CHECK(hzi_quat_planar_pack(ctx, "quat_gemm", &p.b, &x, false,
						      a->packed_t ? p.a.scales : NULL));
		}
		HZ_CHECK(multiply(ctx, a, &p, offset_of(index, a->c_stride, a->ndim),
				  offset_of(index, a->pre_stride, a->ndim)));
		a_last = a_offset;
		b_last = b_offset;
		first = false;
	} while (next_index(index, a->shape, a->ndim));
	return HZ_OK;
}

int hzi_cuda_quat_gemm_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	struct hzi_quat_gemm_args part;

	for (int64_t first = 0; columns_from(a, first, &part); first += part.n)
		HZ_CHECK(multiply_all(ctx, &part));
	return HZ_OK;
}
