/*
 * d4_f16_wgmma.c - launcher of packed D4 by many vectors of f16 with wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/d4_f16_wgmma.h"
#include "gpu/vlut/launch.h"

/* Lines of codes of a tile, in memory and of a chunk */
#define LINES (HZI_FIELDS_BYTES / 128)
#define CHUNK_LINES (HZI_BATCH_CHUNK / HZI_FIELDS_CHUNK * LINES)

static const char name[] = "vlut_gemm";

static const struct kernel {
	int index, columns, rows, threads, slot, slots;
	int sums;			/* bytes */
} kernels[] = {
#define ROW(index, columns, turns, beside, slices, slots, registers) \
	{index, columns, HZI_BATCH_ROWS(turns, beside), \
	 HZI_BATCH_THREADS(beside, slices, registers), HZI_BATCH_SLOT(columns, turns, beside), \
	 slots, (slices) * HZI_BATCH_SUMS(columns, turns, beside)}
#define KERNEL(index, ...) ROW(index, __VA_ARGS__)
	KERNEL(HZI_KERNEL_vlut_batch_16_1, HZI_BATCH_16_1),
	KERNEL(HZI_KERNEL_vlut_batch_16_2, HZI_BATCH_16_2),
	KERNEL(HZI_KERNEL_vlut_batch_16_3, HZI_BATCH_16_3),
	KERNEL(HZI_KERNEL_vlut_batch_32_1, HZI_BATCH_32_1),
	KERNEL(HZI_KERNEL_vlut_batch_32_2, HZI_BATCH_32_2),
	KERNEL(HZI_KERNEL_vlut_batch_32_3, HZI_BATCH_32_3),
	KERNEL(HZI_KERNEL_vlut_batch_64_1, HZI_BATCH_64_1),
	KERNEL(HZI_KERNEL_vlut_batch_64_2, HZI_BATCH_64_2),
	KERNEL(HZI_KERNEL_vlut_batch_64_3, HZI_BATCH_64_3),
	KERNEL(HZI_KERNEL_vlut_batch_128_1, HZI_BATCH_128_1),
	KERNEL(HZI_KERNEL_vlut_batch_128_2, HZI_BATCH_128_2),
	KERNEL(HZI_KERNEL_vlut_batch_128_3, HZI_BATCH_128_3),
	KERNEL(HZI_KERNEL_vlut_batch_256, HZI_BATCH_256),
};

#define KERNELS (int)(sizeof(kernels) / sizeof(kernels[0]))

struct plan {
	const struct kernel *kernel;
	int split;
	int64_t tiles, across;		/* of rows, of columns */
};

/*
 * Nanoseconds that TMA takes for x of a chunk, measured on an H200: twice as long for lines that
 * reach beyond the last column, and longer for those that do not begin at a multiple of 32 bytes.
 */
static int64_t x_time(const struct hzi_vlut_gemm_args *a, const struct kernel *k)
{
	const int line = k->columns < 64 ? k->columns : 64;

	return (a->batch % line ? 450 : 230) + (a->x_k % 16 ? 150 : 0);
}

/*
 * The kernel and the split of the least time, in nanoseconds measured on an H200: `decoding` for
 * the rows of a tile by a chunk, `wave` for a wave of blocks
 */
static struct plan plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const int64_t chunks = ceil_div(a->w.k, HZI_BATCH_CHUNK);
	struct plan best = {0};
	int64_t least = INT64_MAX;

	for (int i = 0; i < KERNELS; i++) {
		const struct kernel *k = &kernels[i];
		const int64_t tiles = ceil_div(a->w.rows, k->rows),
			      across = ceil_div(a->batch, k->columns);

		for (int split = 1; split <= HZI_BATCH_SPLIT && split <= chunks; split++) {
			const int64_t at_once = hzi_cuda_vlut_clusters(g, split);
			const int64_t waves = ceil_div(tiles * across, at_once);
			const int64_t decoding = k->rows / 64 * (165 + 29 * k->columns / 20);
			const int64_t chunk = max_of(decoding, x_time(a, k));
			const int64_t wave = ceil_div(chunks, split) * chunk + 4300 +
					     16 * k->columns + 250 * split;
			const int64_t cost = waves * wave;

			if (cost < least) {
				least = cost;
				best = (struct plan){k, split, tiles, across};
			}
		}
	}
	return best;
}

const char *hzi_cuda_vlut_d4_f16_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const char *const why = hzi_cuda_vlut_d4_f16_unsupported(a);

	(void)ctx;
	if (why)
		return why;
	if ((uintptr_t)a->x % 16 || a->x_b != 1 || a->x_k % 8 || a->x_k < a->batch ||
	    a->x_k >= INT32_MAX)
		return "the rows of x are not contiguous and 16-byte aligned";
	return a->w.k % 8 ? "k is not a multiple of 8" :
	       a->batch > 1 << 20 ? "more than 2^20 columns" : NULL;
}

int hzi_cuda_vlut_d4_f16_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const struct plan plan = plan_of(ctx, a);
	const struct kernel *k = plan.kernel;
	const int64_t chunks = ceil_div(a->w.k, HZI_BATCH_CHUNK);
	const int64_t fields = hzi_cuda_vlut_d4_bitfield_chunks(&a->w);
	const int room = k->slots * (k->slot + 16);
	struct hzi_vlut_batch p = {
		.row_scale = a->w.row_scale, .y = a->y, .row_scale_step = a->w.row_scale_step,
		.y_i = a->y_i, .y_b = a->y_b, .rows = (int32_t)a->w.rows, .chunks = (int32_t)chunks,
		.batch = (int32_t)a->batch, .y_dtype = a->y_dtype, .split = plan.split,
		.scale = l->rule.scale[0],
		.y_fours = a->y_b == 1 && a->y_i % 4 == 0 && (uintptr_t)a->y % 8 == 0,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.tiles * plan.split), (unsigned)plan.across},
		.block = {(unsigned)k->threads}, .cluster = (unsigned)plan.split, .early = true,
		.aligned = true,
		.shared_bytes = (unsigned)(1024 + (room > k->sums ? room : k->sums)),
	};

	for (int i = 0; i < 8; i++) {
		const int32_t o = l->rule.offset[i / 2] * (i % 2 ? 16 : 17);

		/* f16 below 2^-13: sign and absolute value */
		p.minus[i] = (uint32_t)(o > 0 ? 0x8000 | o : -o) * 0x10001u;
		p.centred |= o != 0;
	}
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, name, &p.x, a->x, 2 * a->batch, a->w.k / 8,
					16 * a->x_k, 8, 2 * a->x_k,
					k->columns < 64 ? 2 * k->columns : 128,
					HZI_BATCH_CHUNK / 8, 8));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, name, &p.codes, a->w.packed, 128, fields * LINES,
					128, (int)ceil_div(a->w.rows, HZI_FIELDS_ROWS),
					fields * HZI_FIELDS_BYTES, 128, CHUNK_LINES,
					k->rows / HZI_FIELDS_ROWS));
	return hzi_cuda_launch(ctx, name, k->index, &launch, &p, sizeof(p));
}
