/*
 * base_f32.c - launcher of the kernels for rows of m 2^k back to back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/hadamard/contiguous.h"
#include "gpu/hadamard/launch.h"
#include "gpu/hadamard/quantize_static.h"

#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_MAX 12
#define ORDERS 3		/* m = 12, 20, 28 */

/* How a kernel is started that has the next tile under way. */
struct geometry {
	int16_t kernel, threads;	/* threads 0: there is none */
	int16_t rows;			/* of a tile; of shorter rows as many as take its places */
	int8_t blocks, stretch;		/* blocks of a multiprocessor; tiles of one, at most */
	int32_t shared_bytes;
};

/* Bytes of shared memory: see the kernels. n: elements of a row */
#define SIDE_BY_SIDE(m, places) (3 * 4 * (m) * (places) * 2)	/* two tiles and results */
#define WIDE(n) (2 * (n) * 2 + (n) * 4)				/* two rows and their sums */
#define LONG(n) (2 * (n) * 2)					/* two rows, sums in their place */
#define LONG_APART(n, groups, warps) ((n) * 2 + (groups) * 16 * (warps) * 256)
#define HELD(n) ((n) * 2 + 2 * 16 * 512 * 4)			/* a row, sums of two times 16 */
#define TWO_F32(n) (2 * (n) * 4)
#define RING (28 * 8192)

#define MMA(name) HZI_KERNEL_hadamard_base_mma_f16_##name
#define F32(name) HZI_KERNEL_hadamard_base_f32_##name

static const struct geometry mma[ORDERS][LOG2_MAX - 6 + 1] = {
	{{MMA(m12_6), 96, 4, 10, 2, SIDE_BY_SIDE(12, 64)},
	 {MMA(m12_7), 64, 1, 14, 2, WIDE(12 << 7)},
	 {MMA(m12_8), 96, 1, 10, 2, SIDE_BY_SIDE(12, 64)},
	 {MMA(m12_9), 96, 1, 6, 2, SIDE_BY_SIDE(12, 128)},
	 {MMA(m12_10), 192, 1, 3, 2, LONG(12 << 10)},
	 {MMA(m12_11), 384, 1, 1, 12, HELD(12 << 11)},
	 {MMA(m12_12), 512, 1, 1, 3, LONG_APART(12 << 12, 2, 8)}},
	{{MMA(m20_6), 160, 4, 6, 3, SIDE_BY_SIDE(20, 64)},
	 {MMA(m20_7), 64, 1, 8, 3, WIDE(20 << 7)},
	 {MMA(m20_8), 128, 1, 5, 3, WIDE(20 << 8)},
	 {MMA(m20_9), 160, 1, 3, 4, SIDE_BY_SIDE(20, 128)},
	 {MMA(m20_10), 320, 1, 2, 8, LONG(20 << 10)},
	 {MMA(m20_11), 384, 1, 1, 12, HELD(20 << 11)}},
	{{MMA(m28_6), 224, 4, 4, 4, SIDE_BY_SIDE(28, 64)},
	 {MMA(m28_7), 64, 1, 7, 3, WIDE(28 << 7)},
	 {MMA(m28_8), 128, 1, 4, 2, WIDE(28 << 8)},
	 {MMA(m28_9), 256, 1, 2, 3, WIDE(28 << 9)},
	 {MMA(m28_10), 448, 1, 1, 12, LONG(28 << 10)},
	 {MMA(m28_11), 384, 1, 1, 12, HELD(28 << 11)}},
};

/* Blocks of a multiprocessor of those to and from codes, which take more registers or as many */
typedef int8_t block_counts[ORDERS][LOG2_MAX - 6 + 1];

static const block_counts code_blocks = {
	{8, 10, 8, 5, 3, 1, 1}, {5, 8, 5, 3, 2, 1}, {4, 7, 4, 2, 1, 1},
};
static const block_counts value_blocks = {
	{8, 14, 8, 5, 2, 1, 1}, {4, 8, 4, 3, 2, 1}, {4, 7, 4, 2, 1, 1},
};

static const struct geometry f32[ORDERS][LOG2_MAX - 8 + 1] = {
	{{F32(m12_8), 256, 1, 4, 2, TWO_F32(12 << 8)},
	 {F32(m12_9), 512, 1, 2, 3, TWO_F32(12 << 9)},
	 {F32(m12_10), 1024, 1, 1, 4, TWO_F32(12 << 10)},
	 {F32(m12_11), 1024, 1, 1, 4, TWO_F32(12 << 11)}},
	{{F32(m20_8), 256, 1, 4, 2, TWO_F32(20 << 8)},
	 {F32(m20_9), 512, 1, 2, 2, TWO_F32(20 << 9)},
	 {F32(m20_10), 1024, 1, 1, 4, TWO_F32(20 << 10)},
	 {F32(m20_11), 1024, 1, 1, 2, RING}},
	{{F32(m28_8), 256, 1, 4, 2, TWO_F32(28 << 8)},
	 {F32(m28_9), 512, 1, 2, 3, TWO_F32(28 << 9)},
	 {F32(m28_10), 1024, 1, 1, 4, TWO_F32(28 << 10)}},
};

/* Whether a kernel of that geometry can do so many tiles; then how it shares them among blocks. */
static bool prepare(const struct hzi_cuda_device *device, const struct geometry *g, int blocks,
		    int64_t tiles, struct hzi_hadamard_stretch *s, struct hzi_launch *launch)
{
	const int64_t at_once = (int64_t)blocks * device->multiprocessors;
	const int64_t more = tiles > at_once ? tiles - at_once : 0;
	int64_t waves, stretch, stretched;

	if (!g->threads || g->shared_bytes > device->shared_block_bytes || tiles > GRID_MAX)
		return false;
	/* As few waves of stretches as there must be, which they fill */
	waves = more / (at_once * g->stretch) + (more % (at_once * g->stretch) != 0);
	stretch = waves ? more / (at_once * waves) + (more % (at_once * waves) != 0) : 1;
	stretched = more / stretch;
	*s = (struct hzi_hadamard_stretch){.stretch = (int32_t)stretch,
					   .stretched = (int32_t)stretched};
	launch->grid[0] = (unsigned)(tiles - stretched * (stretch - 1));
	launch->block[0] = (unsigned)g->threads;
	launch->shared_bytes = (unsigned)g->shared_bytes;
	return true;
}

/*
 * For rows of total elements to 16 bits, or by kernels of so many blocks from or to codes, of which
 * p has the operands: the kernel, by the number of that of f16; or -1.
 */
static int make_mma(struct hz_context *ctx, const struct hzi_hadamard_args *a, int64_t total,
		    int dtype, const block_counts *counts, struct hzi_hadamard_base_mma *p,
		    struct hzi_launch *launch)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const struct hzi_base *base = seg->base;
	const int k = seg->k < 6 ? 6 : seg->k;
	const struct geometry *g = &mma[(seg->m - 12) / 8][k - 6];
	const int64_t rows = (int64_t)g->rows << (k - seg->k);
	const int blocks = counts ? (*counts)[(seg->m - 12) / 8][k - 6] : g->blocks;

	p->rows = total / seg->length;
	p->k = seg->k;
	p->factor = seg->scale;
	if (!prepare(hzi_cuda_device(ctx), g, blocks,
		     p->rows / rows + (p->rows % rows != 0), &p->s, launch))
		return -1;
	for (int i = 0; i < seg->m; i++) {
		for (int j = 0; j < seg->m; j++) {
			const uint32_t bit = a->transpose ? base->bits[j * base->words] >> i
							  : base->bits[i * base->words] >> j;

			p->sign[i] |= (bit & 1) << (j / 2 + j % 2 * 16);
		}
	}
	return g->kernel +
	       (dtype == HZ_BF16 ? HZI_KERNEL_hadamard_base_mma_bf16_m12_6 - MMA(m12_6) : 0);
}

static int launch_mma(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done)
{
	struct hzi_hadamard_base_mma p = {.x = a->x, .y = a->y};
	struct hzi_launch launch = {0};
	const int kernel =
		make_mma(ctx, a, a->blocks * a->plan.n, a->x_dtype, NULL, &p, &launch);

	*done = kernel >= 0;
	return kernel < 0 ? HZ_OK
			  : hzi_cuda_launch(ctx, "hadamard", kernel, &launch, &p, sizeof(p));
}

/* Threads of a block that goes through so many warps' worth in equal turns */
static unsigned threads_for(int64_t warps, int m)
{
	const int64_t most = HZI_FAST_BASE_WARPS(m), turns = (warps + most - 1) / most;

	return 32u * (unsigned)((warps + turns - 1) / turns);
}

/* Of Paley's second matrices, which are symmetric, the transpose is the same. */
static int launch_f32(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done)
{
	const struct hzi_segment *seg = &a->plan.seg[0];
	const struct hzi_cuda_device *device = hzi_cuda_device(ctx);
	const int order = (seg->m - 12) / 8;
	struct hzi_hadamard_fast_base p = {
		.f = {.x = a->x, .y = a->y, .total = a->blocks * a->plan.n, .mask = seg->length - 1,
		      .k = seg->k, .factor = seg->scale},
		.tile = (int32_t)seg->length};
	const struct geometry *g = &f32[order][seg->k < 8 ? 0 : seg->k - 8];
	int kernel = g->kernel;
	static const int any[ORDERS] = {F32(m12), F32(m20), F32(m28)};
	struct hzi_launch launch = {0};
	int64_t blocks;

	if (seg->base->id != HZ_BASE_PALEY2)
		return HZ_OK;
	if (seg->k < 8 || !prepare(device, g, g->blocks, p.f.total / seg->length, &p.s, &launch)) {
		while (p.tile % 1024)
			p.tile *= 2;
		launch.shared_bytes = (unsigned)p.tile * sizeof(float);
		blocks = p.f.total / p.tile + (p.f.total % p.tile != 0);
		if ((int64_t)launch.shared_bytes > device->shared_block_bytes || blocks > GRID_MAX)
			return HZ_OK;
		launch.grid[0] = (unsigned)blocks;
		launch.block[0] = threads_for(p.tile / 1024, seg->m);
		kernel = any[order];
	}
	*done = true;
	return hzi_cuda_launch(ctx, "hadamard", kernel, &launch, &p, sizeof(p));
}

static bool takes(const struct hzi_hadamard_args *a)
{
	const struct hzi_segment *seg = &a->plan.seg[0];

	return (seg->m == 12 || seg->m == 20 || seg->m == 28) && !a->pre.kind && !a->post.kind &&
	       seg->k >= LOG2_MIN && seg->k <= LOG2_MAX;
}

/* The kernels from and to codes, from `first` on, are in the order of those from 16 to 16 bits. */
static int launch_codes(struct hz_context *ctx, const char *op, const struct hzi_hadamard_args *a,
			int dtype, int first, const block_counts *counts,
			const struct hzi_hadamard_static *c, bool *done)
{
	struct hzi_hadamard_base_codes p = {.m = {.x = c->f.x, .y = c->f.y}, .c = *c};
	struct hzi_launch launch = {0};
	int kernel;

	*done = false;
	if (!takes(a))
		return HZ_OK;
	kernel = make_mma(ctx, a, c->f.total, dtype, counts, &p.m, &launch);
	*done = kernel >= 0;
	return kernel < 0 ? HZ_OK
			  : hzi_cuda_launch(ctx, op, first + kernel - MMA(m12_6), &launch, &p,
					    sizeof(p));
}

int hzi_hadamard_base_codes(struct hz_context *ctx, const struct hzi_hadamard_args *a,
			    const struct hzi_hadamard_static *c, bool *done)
{
	return launch_codes(ctx, "quantize", a, a->x_dtype,
			    HZI_KERNEL_hadamard_base_codes_f16_m12_6, &code_blocks, c, done);
}

int hzi_hadamard_base_values(struct hz_context *ctx, const struct hzi_hadamard_args *a,
			     const struct hzi_hadamard_static *c, bool *done)
{
	return launch_codes(ctx, "dequantize", a, a->y_dtype,
			    HZI_KERNEL_hadamard_base_values_f16_m12_6, &value_blocks, c, done);
}

int hzi_hadamard_base(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done)
{
	*done = false;
	if (!hzi_hadamard_back_to_back(a) || !takes(a))
		return HZ_OK;
	return a->x_dtype == HZ_F32 ? launch_f32(ctx, a, done) : launch_mma(ctx, a, done);
}
