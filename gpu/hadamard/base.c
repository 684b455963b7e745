/*
 * base.c - launches of contiguous rows of m 2^k elements, m = 12, 20, 28 or 36 to 60
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/hadamard/contiguous.h"
#include "gpu/hadamard/launch.h"
#include "gpu/hadamard/quantize.h"

#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_MAX 12
#define ORDERS 3		/* m = 12, 20, 28 */
#define ORDERS_F32 4		/* and 40 */

/* Geometry of a kernel that loads its next tile while it computes */
struct geometry {
	int16_t kernel, threads;	/* threads 0: there is no kernel */
	int16_t rows;			/* rows of a tile; of shorter rows as many more as fit */
	int8_t tiles_per_block;		/* most tiles of a block */
	int32_t shared_bytes;
	int8_t blocks[3];		/* per SM; mma: by enum mma_kind */
};

enum mma_kind {TO_16BIT, TO_CODES, FROM_CODES};

/* Bytes of shared memory, by the function of the kernel. n: elements of a row */
#define WARP_ROWS_BYTES(m, columns) (3 * 4 * (m) * (columns) * 2)	/* two tiles, and results */
#define WARP_COLUMNS_BYTES(n) (2 * (n) * 2 + (n) * 4)		/* two rows, an exchange */
#define GROUP_ROWS_BYTES(n) (2 * (n) * 2)			/* two rows, exchange in place */
#define GROUP_ROWS_APART_BYTES(n, groups, warps) ((n) * 2 + (groups) * 16 * (warps) * 256)
#define REGISTER_COLUMNS_BYTES(n) ((n) * 2 + 2 * 16 * 512 * 4)	/* a row, exchanges of 16 twice */
#define TWO_ROWS_BYTES(n) (2 * (n) * 4)
#define PADDED_COLUMNS_BYTES(rows, columns, buffers) \
	((rows) * (columns) * 2 + (buffers) * 16 * 4 * (columns) + (rows) * 16)
#define RING_BYTES (28 * 8192)
#define ROW_AND_BASE_BYTES(m, k) (((m) << (k)) * 4 + (m) * (m) * 4)

#define MMA(name) HZI_KERNEL_hadamard_base_mma_f16_##name
#define ANY(name) HZI_KERNEL_hadamard_base_mma_any_f16_##name
#define F32(name) HZI_KERNEL_hadamard_base_f32_##name

static const struct geometry mma[ORDERS][LOG2_MAX - 6 + 1] = {
	{{MMA(m12_6), 96, 4, 2, WARP_ROWS_BYTES(12, 64), {10, 8, 8}},
	 {MMA(m12_7), 64, 1, 2, WARP_COLUMNS_BYTES(12 << 7), {14, 10, 14}},
	 {MMA(m12_8), 96, 1, 2, WARP_ROWS_BYTES(12, 64), {10, 8, 8}},
	 {MMA(m12_9), 96, 1, 2, WARP_ROWS_BYTES(12, 128), {6, 5, 5}},
	 {MMA(m12_10), 192, 1, 2, GROUP_ROWS_BYTES(12 << 10), {3, 3, 2}},
	 {MMA(m12_11), 384, 1, 12, REGISTER_COLUMNS_BYTES(12 << 11), {1, 1, 1}},
	 {MMA(m12_12), 512, 1, 3, GROUP_ROWS_APART_BYTES(12 << 12, 2, 8), {1, 1, 1}}},
	{{MMA(m20_6), 160, 4, 3, WARP_ROWS_BYTES(20, 64), {6, 5, 4}},
	 {MMA(m20_7), 64, 1, 3, WARP_COLUMNS_BYTES(20 << 7), {8, 8, 8}},
	 {MMA(m20_8), 128, 1, 3, WARP_COLUMNS_BYTES(20 << 8), {5, 5, 4}},
	 {MMA(m20_9), 160, 1, 4, WARP_ROWS_BYTES(20, 128), {3, 3, 3}},
	 {MMA(m20_10), 320, 1, 8, GROUP_ROWS_BYTES(20 << 10), {2, 2, 2}},
	 {MMA(m20_11), 384, 1, 12, REGISTER_COLUMNS_BYTES(20 << 11), {1, 1, 1}}},
	{{MMA(m28_6), 224, 4, 4, WARP_ROWS_BYTES(28, 64), {4, 4, 4}},
	 {MMA(m28_7), 64, 1, 3, WARP_COLUMNS_BYTES(28 << 7), {7, 7, 7}},
	 {MMA(m28_8), 128, 1, 2, WARP_COLUMNS_BYTES(28 << 8), {4, 4, 4}},
	 {MMA(m28_9), 256, 1, 3, WARP_COLUMNS_BYTES(28 << 9), {2, 2, 2}},
	 {MMA(m28_10), 448, 1, 12, GROUP_ROWS_BYTES(28 << 10), {1, 1, 1}},
	 {MMA(m28_11), 384, 1, 12, REGISTER_COLUMNS_BYTES(28 << 11), {1, 1, 1}}},
};

/* 16-bit rows of m 2^k elements, m = 36 to 60, k = 7 to 10: from k = 10 on 2 m rows of X, else m */
static const struct any_geometry {
	int8_t k;
	int16_t rows;			/* at most */
	struct geometry g;
} mma_any[] = {
	{7, 48, {ANY(48_7), 64, 1, 3, PADDED_COLUMNS_BYTES(48, 128, 2), {7}}},
	{8, 48, {ANY(48_8), 128, 1, 3, PADDED_COLUMNS_BYTES(48, 256, 2), {3}}},
	{9, 48, {ANY(48_9), 256, 1, 4, PADDED_COLUMNS_BYTES(48, 512, 1), {2}}},
	{7, 64, {ANY(64_7), 64, 1, 3, PADDED_COLUMNS_BYTES(64, 128, 2), {6}}},
	{8, 64, {ANY(64_8), 128, 1, 3, PADDED_COLUMNS_BYTES(64, 256, 2), {3}}},
	{9, 64, {ANY(64_9), 256, 1, 4, PADDED_COLUMNS_BYTES(64, 512, 1), {2}}},
	{10, 80, {ANY(80_10), 256, 1, 24, PADDED_COLUMNS_BYTES(80, 512, 2), {1}}},
	{10, 112, {ANY(112_10), 256, 1, 24, PADDED_COLUMNS_BYTES(112, 512, 2), {1}}},
	{10, 128, {ANY(128_10), 256, 1, 24, PADDED_COLUMNS_BYTES(128, 512, 2), {1}}},
};

/* f32 rows by Paley's second matrices, and by others but for those of the next table */
static const struct geometry f32[ORDERS][LOG2_MAX - 8 + 1] = {
	{{F32(m12_8), 256, 1, 2, TWO_ROWS_BYTES(12 << 8), {4}},
	 {F32(m12_9), 512, 1, 3, TWO_ROWS_BYTES(12 << 9), {2}},
	 {F32(m12_10), 1024, 1, 4, TWO_ROWS_BYTES(12 << 10), {1}},
	 {F32(m12_11), 1024, 1, 4, TWO_ROWS_BYTES(12 << 11), {1}}},
	{{F32(m20_8), 256, 1, 2, TWO_ROWS_BYTES(20 << 8), {4}},
	 {F32(m20_9), 512, 1, 2, TWO_ROWS_BYTES(20 << 9), {2}},
	 {F32(m20_10), 1024, 1, 4, TWO_ROWS_BYTES(20 << 10), {1}},
	 {F32(m20_11), 1024, 1, 2, RING_BYTES, {1}}},
	{{F32(m28_8), 256, 1, 2, TWO_ROWS_BYTES(28 << 8), {4}},
	 {F32(m28_9), 512, 1, 3, TWO_ROWS_BYTES(28 << 9), {2}},
	 {F32(m28_10), 1024, 1, 4, TWO_ROWS_BYTES(28 << 10), {1}}},
};

/* rows: the order of the base matrix */
static const struct any_geometry f32_any[] = {
	{9, 20, {F32(any_m20_9), 128, 1, 4, ROW_AND_BASE_BYTES(20, 9), {4}}},
	{8, 28, {F32(any_m28_8), 64, 1, 4, ROW_AND_BASE_BYTES(28, 8), {6}}},
	{9, 28, {F32(any_m28_9), 128, 1, 4, ROW_AND_BASE_BYTES(28, 9), {3}}},
	{10, 28, {F32(any_m28_10), 256, 1, 12, ROW_AND_BASE_BYTES(28, 10), {1}}},
	{7, 40, {F32(any_m40_7), 32, 1, 12, ROW_AND_BASE_BYTES(40, 7), {8}}},
	{8, 40, {F32(any_m40_8), 64, 1, 12, ROW_AND_BASE_BYTES(40, 8), {4}}},
	{9, 40, {F32(any_m40_9), 128, 1, 12, ROW_AND_BASE_BYTES(40, 9), {2}}},
	{10, 40, {F32(any_m40_10), 256, 1, 12, ROW_AND_BASE_BYTES(40, 10), {1}}},
};

/* The index of an order in these tables; -1: it has no kernels */
static int order_index(int m)
{
	return m == 12 ? 0 : m == 20 ? 1 : m == 28 ? 2 : m == 40 ? 3 : -1;
}

/* NULL if there may be kernels for the order and length of a call, else the reason */
static const char *bad_order(const struct hzi_hadamard_args *a, int orders)
{
	const struct hzi_segment *seg = &a->plan.seg[0];

	if (order_index(seg->m) < 0 || order_index(seg->m) >= orders)
		return orders == ORDERS ? "the order of the base matrix is not 12, 20 or 28" :
					  "the order of the base matrix is not 12, 20, 28 or 40";
	if (a->pre.kind || a->post.kind)
		return "there are factors";
	return seg->k < LOG2_MIN || seg->k > LOG2_MAX ? "rows are not of m 2^5 to m 2^12 elements"
						       : NULL;
}

static bool can_start(const struct hzi_cuda_device *device, const struct geometry *g, int64_t tiles)
{
	return g->threads && g->shared_bytes <= device->shared_block_bytes && tiles <= GRID_MAX;
}

/* Distributes tiles over blocks: fills s, returns the launch. */
static struct hzi_launch schedule(const struct hzi_cuda_device *device, const struct geometry *g,
				  int blocks, int64_t tiles, struct hzi_hadamard_schedule *s)
{
	const int64_t at_once = (int64_t)blocks * device->sms;
	const int64_t more = tiles > at_once ? tiles - at_once : 0;
	/* As few waves of long blocks as necessary, and these are full */
	const int64_t waves = ceil_div(more, at_once * g->tiles_per_block);
	const int64_t tiles_per_block = waves ? ceil_div(more, at_once * waves) : 1;
	const int64_t long_blocks = more / tiles_per_block;

	*s = (struct hzi_hadamard_schedule){.tiles_per_block = (int32_t)tiles_per_block,
					   .long_blocks = (int32_t)long_blocks};
	return (struct hzi_launch){
		.grid = {(unsigned)(tiles - long_blocks * (tiles_per_block - 1))},
		.block = {(unsigned)g->threads},
		.shared_bytes = (unsigned)g->shared_bytes};
}

/* Sign of entry (i, j) of the base matrix of a call: 1 is -1 */
static uint32_t sign_of(const struct hzi_hadamard_args *a, int i, int j)
{
	const struct hzi_base *base = a->plan.seg[0].base;

	if (a->transpose) {
		const int swap = i;

		i = j;
		j = swap;
	}
	return base->bits[i * base->words + j / 32] >> j % 32 & 1;
}

/* ---- Rows of 16 bits ------------------------------------------------------------------------- */

static const struct geometry *mma_geometry(const struct hzi_segment *seg)
{
	return &mma[order_index(seg->m)][seg->k < 6 ? 0 : seg->k - 6];
}

static int64_t mma_tiles(const struct hzi_segment *seg, int64_t total)
{
	const int short_log2 = seg->k < 6 ? 6 - seg->k : 0;

	return ceil_div(total / seg->length, (int64_t)mma_geometry(seg)->rows << short_log2);
}

const char *hzi_hadamard_no_base_mma(const struct hz_context *ctx,
				     const struct hzi_hadamard_args *a, int64_t total)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const char *why = bad_order(a, ORDERS);

	if (why)
		return why;
	return can_start(hzi_cuda_device(ctx), mma_geometry(seg), mma_tiles(seg, total))
		       ? NULL : "rows exceed what a block holds, or are too many";
}

/*
 * Fills p for rows of total elements, and the launch. Returns the kernel's index in its image, the
 * same in all images.
 */
static int make_mma(struct hz_context *ctx, const struct hzi_hadamard_args *a, int64_t total,
		    int dtype, enum mma_kind kind, struct hzi_hadamard_base_mma *p,
		    struct hzi_launch *launch)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const struct geometry *g = mma_geometry(seg);

	p->rows = total / seg->length;
	p->k = seg->k;
	p->factor = seg->scale;
	*launch = schedule(hzi_cuda_device(ctx), g, g->blocks[kind], mma_tiles(seg, total), &p->s);
	for (int i = 0; i < seg->m; i++) {
		for (int j = 0; j < seg->m; j++)
			p->sign[i] |= sign_of(a, i, j) << (j / 2 + j % 2 * 16);
	}
	return g->kernel - MMA(m12_6) +
	       (dtype == HZ_BF16 ? HZI_KERNEL_hadamard_base_mma_bf16_m12_6 - MMA(m12_6) : 0);
}

/* The kernel of an order from 36 on, or NULL */
static const struct geometry *any_geometry(const struct hzi_segment *seg)
{
	const int rows = seg->k < 10 ? seg->m : 2 * seg->m;

	if (seg->m <= 28 || seg->m % 4 != 0)
		return NULL;
	for (size_t i = 0; i < sizeof(mma_any) / sizeof(*mma_any); i++) {
		if (mma_any[i].k == seg->k && rows <= mma_any[i].rows)
			return &mma_any[i].g;
	}
	return NULL;
}

#define ANY_BF16 (HZI_KERNEL_hadamard_base_mma_any_bf16_48_7 - ANY(48_7))

static int run_any(struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const struct geometry *g = any_geometry(seg);
	struct hzi_hadamard_base_mma_any p = {
		.x = a->x, .y = a->y, .m = seg->m, .factor = seg->scale,
	};
	struct hzi_launch launch =
		schedule(hzi_cuda_device(ctx), g, g->blocks[0],
			 a->blocks * a->plan.n / seg->length, &p.s);

	launch.early = hzi_hadamard_is_short(ctx, a->blocks * a->plan.n);
	for (int i = 0; i < seg->m; i++) {
		for (int j = 0; j < seg->m; j++) {
			const uint32_t sign = sign_of(a, i, j);

			if (seg->k < 10)
				p.sign[i][j / 32] |= sign << (j % 32 / 2 + j % 2 * 16);
			else
				p.sign[i][j / 16] |= (sign | sign << 16) << j % 16;
		}
	}
	return hzi_cuda_launch(ctx, "hadamard",
			       g->kernel + (a->x_dtype == HZ_BF16 ? ANY_BF16 : 0), &launch, &p,
			       sizeof(p));
}

const char *hzi_cuda_hadamard_base_mma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_segment *seg = &c->t->plan.seg[0];
	const int64_t total = c->t->blocks * c->t->plan.n;
	const char *why = hzi_hadamard_not_contiguous(c->t);
	const struct geometry *g;

	if (why)
		return why;
	if (c->t->x_dtype == HZ_F32)
		return "x is f32";
	if (order_index(seg->m) >= 0 && order_index(seg->m) < ORDERS)
		return hzi_hadamard_no_base_mma(ctx, c->t, total);
	if (c->t->pre.kind || c->t->post.kind)
		return "there are factors";
	g = any_geometry(seg);
	if (!g)
		return "the order of the base matrix is not 12, 20, 28 or 36 to 60, or rows of the "
		       "latter are not of m 2^7 to m 2^10 elements";
	return can_start(c->device, g, total / seg->length)
		       ? NULL : "rows exceed what a block holds, or are too many";
}

int hzi_cuda_hadamard_base_mma(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = ((const struct hzi_hadamard_call *)args)->t;
	struct hzi_hadamard_base_mma p = {.x = a->x, .y = a->y};
	struct hzi_launch launch;
	int kernel;

	if (order_index(a->plan.seg[0].m) < 0 || order_index(a->plan.seg[0].m) >= ORDERS)
		return run_any(ctx, a);
	kernel = make_mma(ctx, a, a->blocks * a->plan.n, a->x_dtype, TO_16BIT, &p, &launch);
	launch.early = hzi_hadamard_is_short(ctx, a->blocks * a->plan.n);
	return hzi_cuda_launch(ctx, "hadamard", MMA(m12_6) + kernel, &launch, &p, sizeof(p));
}

int hzi_hadamard_base_mma_codes(struct hz_context *ctx, const struct hzi_hadamard_args *a,
			    const struct hzi_hadamard_quantize *q, bool to_codes)
{
	const int first = to_codes ? HZI_KERNEL_hadamard_base_mma_quantize_f16_m12_6
				   : HZI_KERNEL_hadamard_base_mma_dequantize_f16_m12_6;
	struct hzi_hadamard_base_mma_quantize p = {.m = {.x = q->f.x, .y = q->f.y}, .q = *q};
	struct hzi_launch launch;
	const int kernel = make_mma(ctx, a, q->f.total, to_codes ? a->x_dtype : a->y_dtype,
				    to_codes ? TO_CODES : FROM_CODES, &p.m, &launch);

	return hzi_cuda_launch(ctx, to_codes ? "quantize" : "dequantize", first + kernel, &launch,
			       &p, sizeof(p));
}

int hzi_hadamard_base_mma_microscaling(struct hz_context *ctx, const struct hzi_hadamard_args *a,
				       const struct hzi_hadamard_quantize *q)
{
	const int first = a->x_dtype == HZ_BF16
				  ? HZI_KERNEL_hadamard_base_mma_microscaling_bf16_m12_7
				  : HZI_KERNEL_hadamard_base_mma_microscaling_f16_m12_7;
	const struct hzi_segment *seg = &a->plan.seg[0];
	struct hzi_hadamard_base_mma_quantize p = {.m = {.x = q->f.x, .y = q->f.y}, .q = *q};
	struct hzi_launch launch;
	/* Four kernels for each m, of k 7 to 10 */
	const int kernel = first + 4 * order_index(seg->m) + seg->k - 7;

	make_mma(ctx, a, q->f.total, HZ_F16, TO_CODES, &p.m, &launch);
	return hzi_cuda_launch(ctx, "quantize", kernel, &launch, &p, sizeof(p));
}

/* ---- Rows of f32 ----------------------------------------------------------------------------- */

static bool is_paley2(const struct hzi_segment *seg)
{
	return seg->m < 40 && seg->base->id == HZ_BASE_PALEY2;
}

/* The kernel for this length, if there is one and it can start; sets *kernel */
static const struct geometry *f32_geometry(const struct hzi_hadamard_call *c, int *kernel)
{
	const struct hzi_segment *seg = &c->t->plan.seg[0];
	const struct geometry *g = NULL;

	for (size_t i = 0; !is_paley2(seg) && i < sizeof(f32_any) / sizeof(*f32_any); i++) {
		if (f32_any[i].k == seg->k && f32_any[i].rows == seg->m)
			g = &f32_any[i].g;
	}
	*kernel = g ? g->kernel : 0;
	if (!g && seg->k >= 8 && seg->m < 40) {
		g = &f32[order_index(seg->m)][seg->k - 8];
		*kernel = g->kernel + (is_paley2(seg) ? 0 : F32(any_m12) - F32(m12));
	}
	return g && can_start(c->device, g, c->t->blocks * c->t->plan.n / seg->length) ? g : NULL;
}

/* Elements of a tile of the kernels for any length: whole rows, a multiple of 1024 */
static int64_t tile_of(const struct hzi_segment *seg)
{
	int64_t tile = seg->length;

	while (tile % 1024)
		tile *= 2;
	return tile;
}

/* Threads of a block whose warps transform `warps` chunks in equal numbers */
static unsigned threads_for(int64_t warps, int m)
{
	return 32u * (unsigned)ceil_div(warps, ceil_div(warps, HZI_BASE_F32_WARPS(m)));
}

const char *hzi_cuda_hadamard_base_f32_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_segment *seg = &c->t->plan.seg[0];
	const char *why = hzi_hadamard_not_contiguous(c->t);
	int64_t tile;
	int kernel;

	(void)ctx;
	if (!why)
		why = bad_order(c->t, ORDERS_F32);
	if (why)
		return why;
	if (c->t->x_dtype != HZ_F32)
		return "x is not f32";
	if (f32_geometry(c, &kernel))
		return NULL;
	tile = tile_of(seg);
	return tile * (int64_t)sizeof(float) > c->device->shared_block_bytes ||
			       ceil_div(c->t->blocks * c->t->plan.n, tile) > GRID_MAX
		       ? "rows exceed what a block holds, or are too many" : NULL;
}

/*
 * Launches a kernel with Paley's second matrix, which is symmetric, so transposed transforms are
 * the same; or, for other matrices and for order 40, one that gets it with its parameters.
 */
static int launch_f32(struct hz_context *ctx, const struct hzi_hadamard_args *a, int kernel,
		      const struct hzi_launch *launch, const struct hzi_hadamard_base_f32 *b)
{
	struct hzi_hadamard_base_f32_any p = {.b = *b};
	const int m = a->plan.seg[0].m;

	if (is_paley2(&a->plan.seg[0]))
		return hzi_cuda_launch(ctx, "hadamard", kernel, launch, b, sizeof(*b));
	for (int i = 0; i < m * m; i++)
		p.sign[i] = sign_of(a, i / m, i % m) ? -1 : 1;
	return hzi_cuda_launch(ctx, "hadamard", kernel, launch, &p,
			       sizeof(p.b) + (size_t)(m * m) * sizeof(*p.sign));
}

int hzi_cuda_hadamard_base_f32(struct hz_context *ctx, const void *args)
{
	static const int any_length[ORDERS] = {F32(m12), F32(m20), F32(m28)};
	static const int any_base[ORDERS_F32] = {F32(any_m12), F32(any_m20), F32(any_m28),
						 F32(any_m40)};
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_args *a = c->t;
	const struct hzi_segment *seg = &a->plan.seg[0];
	int kernel;
	const struct geometry *g = f32_geometry(c, &kernel);
	struct hzi_hadamard_base_f32 p = {
		.f = {.x = a->x, .y = a->y, .total = a->blocks * a->plan.n, .mask = seg->length - 1,
		      .k = seg->k, .factor = seg->scale},
		.tile = (int32_t)seg->length};
	struct hzi_launch launch;

	if (g) {
		launch = schedule(c->device, g, g->blocks[0], p.f.total / seg->length, &p.s);
		launch.early = hzi_hadamard_is_short(ctx, a->blocks * a->plan.n);
		return launch_f32(ctx, a, kernel, &launch, &p);
	}
	p.tile = (int32_t)tile_of(seg);
	launch = (struct hzi_launch){.grid = {(unsigned)ceil_div(p.f.total, p.tile)},
				     .block = {threads_for(p.tile / 1024, seg->m)},
				     .shared_bytes = (unsigned)p.tile * sizeof(float),
				     .early = hzi_hadamard_is_short(ctx, p.f.total)};
	return launch_f32(ctx, a, (is_paley2(seg) ? any_length : any_base)[order_index(seg->m)],
			  &launch, &p);
}
