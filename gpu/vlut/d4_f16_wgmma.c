/*
 * d4_f16_wgmma.c - launcher of packed D4 times f16 with 9 and more columns, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/d4_f16_wgmma.h"
#include "gpu/vlut/launch.h"

/* 128-byte lines of codes: of a tile of a bit-field chunk, and of a chunk of this kernel */
#define LINES (HZI_VLUT_D4_BYTES / 128)
#define CHUNK_LINES (HZI_VLUT_D4_WGMMA_CHUNK / HZI_VLUT_D4_CHUNK * LINES)

static const char name[] = "vlut_gemm";

static const struct kernel {
	int index, columns, rows, threads, ring_bytes, acc_bytes;
} kernels[] = {
#define ROW(index, columns, row_groups, warpgroups, k_warpgroups, stages, registers) \
	{index, columns, HZI_VLUT_D4_WGMMA_ROWS(row_groups, warpgroups), \
	 HZI_VLUT_D4_WGMMA_THREADS(warpgroups, k_warpgroups, registers), \
	 HZI_VLUT_D4_WGMMA_RING(columns, row_groups, warpgroups, k_warpgroups, stages), \
	 (k_warpgroups) * HZI_VLUT_D4_WGMMA_ACC(columns, row_groups, warpgroups)}
#define KERNEL(index, ...) ROW(index, __VA_ARGS__)
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_64x16, HZI_VLUT_D4_WGMMA_64X16),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_128x16, HZI_VLUT_D4_WGMMA_128X16),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_192x16, HZI_VLUT_D4_WGMMA_192X16),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_64x32, HZI_VLUT_D4_WGMMA_64X32),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_128x32, HZI_VLUT_D4_WGMMA_128X32),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_192x32, HZI_VLUT_D4_WGMMA_192X32),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_64x64, HZI_VLUT_D4_WGMMA_64X64),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_128x64, HZI_VLUT_D4_WGMMA_128X64),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_192x64, HZI_VLUT_D4_WGMMA_192X64),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_64x128, HZI_VLUT_D4_WGMMA_64X128),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_128x128, HZI_VLUT_D4_WGMMA_128X128),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_192x128, HZI_VLUT_D4_WGMMA_192X128),
	KERNEL(HZI_KERNEL_vlut_d4_f16_wgmma_128x256, HZI_VLUT_D4_WGMMA_128X256),
};

#define KERNELS (int)(sizeof(kernels) / sizeof(kernels[0]))

struct plan {
	const struct kernel *kernel;
	int split;
	int64_t row_tiles, column_tiles;
};

/*
 * Nanoseconds of the TMA load of x of a chunk, measured on an H200. It takes twice as long if boxes
 * reach beyond the last column, and longer if rows do not start at multiples of 32 bytes.
 */
static int64_t x_load_ns(const struct hzi_vlut_gemm_args *a, const struct kernel *k)
{
	const int box_columns = k->columns < 64 ? k->columns : 64;

	return !hzi_cuda_vlut_d4_f16_in_place(a) ? 230 :
	       (a->batch % box_columns ? 450 : 230) + (a->x_k % 16 ? 150 : 0);
}

/*
 * Chooses the kernel and the split with the least time, in nanoseconds fitted on an H200:
 * `decoding` is the time of a tile's rows of a chunk, `wave` that of a wave of blocks.
 */
static struct plan plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const int64_t chunks = ceil_div(a->w.k, HZI_VLUT_D4_WGMMA_CHUNK);
	struct plan best = {0};
	int64_t least = INT64_MAX;

	for (int i = 0; i < KERNELS; i++) {
		const struct kernel *k = &kernels[i];
		const int64_t row_tiles = ceil_div(a->w.rows, k->rows),
			      column_tiles = ceil_div(a->batch, k->columns);

		for (int split = 1; split <= HZI_VLUT_D4_WGMMA_SPLIT && split <= chunks; split++) {
			const int64_t at_once = hzi_cuda_vlut_clusters(g, split);
			const int64_t waves = ceil_div(row_tiles * column_tiles, at_once);
			const int64_t decoding = k->rows / 64 * (165 + 29 * k->columns / 20);
			const int64_t chunk = max_of(decoding, x_load_ns(a, k));
			const int64_t wave = ceil_div(chunks, split) * chunk + 4300 +
					     16 * k->columns + 250 * split;
			const int64_t cost = waves * wave;

			if (cost < least) {
				least = cost;
				best = (struct plan){k, split, row_tiles, column_tiles};
			}
		}
	}
	return best;
}

bool hzi_cuda_vlut_d4_f16_in_place(const struct hzi_vlut_gemm_args *a)
{
	return (uintptr_t)a->x % 16 == 0 && a->x_b == 1 && a->x_k % 8 == 0 &&
	       a->x_k >= a->batch && a->x_k < INT32_MAX;
}

/* Columns of a row of copied x: whole boxes */
static int64_t pitch_of(const struct hzi_vlut_gemm_args *a)
{
	return round_up(a->batch, a->batch <= 16 ? 16 : a->batch <= 32 ? 32 : 64);
}

size_t hzi_cuda_vlut_d4_f16_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;

	(void)ctx;
	return hzi_cuda_vlut_d4_f16_in_place(a) ? 0 : (size_t)(a->w.k * pitch_of(a)) * 2;
}

/* Copies x to the workspace. */
static int copy_x(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_vlut_d4_x p = {
		.x = a->x, .rows = ctx->workspace, .x_k = a->x_k, .x_b = a->x_b,
		.pitch = pitch_of(a), .k = (int32_t)a->w.k, .batch = (int32_t)a->batch,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(a->w.k, HZI_VLUT_D4_X_TILE),
			 (unsigned)ceil_div(p.pitch, HZI_VLUT_D4_X_TILE)},
		.block = {HZI_VLUT_D4_X_THREADS}, .early = true,
	};

	return hzi_cuda_launch(ctx, name, HZI_KERNEL_vlut_d4_x, &launch, &p, sizeof(p));
}

const char *hzi_cuda_vlut_d4_f16_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const char *const why = hzi_cuda_vlut_d4_f16_unsupported(a);

	(void)ctx;
	if (why)
		return why;
	return a->w.k % 8 ? "k is not a multiple of 8" :
	       a->batch > 1 << 20 ? "more than 2^20 columns" : NULL;
}

int hzi_cuda_vlut_d4_f16_wgmma(struct hz_context *ctx, const void *args)
{
	const struct hzi_vlut_gemm_args *const a = args;
	const hz_lattice *l = a->vlut->w;
	const struct plan plan = plan_of(ctx, a);
	const struct kernel *k = plan.kernel;
	const int64_t chunks = ceil_div(a->w.k, HZI_VLUT_D4_WGMMA_CHUNK);
	const int64_t bitfield_chunks = hzi_cuda_vlut_d4_bitfield_chunks(&a->w);
	const bool in_place = hzi_cuda_vlut_d4_f16_in_place(a);
	const int64_t x_k = in_place ? a->x_k : pitch_of(a);
	struct hzi_vlut_d4_f16_wgmma p = {
		.row_scale = a->w.row_scale, .y = a->y, .row_scale_step = a->w.row_scale_step,
		.y_i = a->y_i, .y_b = a->y_b, .rows = (int32_t)a->w.rows, .chunks = (int32_t)chunks,
		.batch = (int32_t)a->batch, .y_dtype = a->y_dtype, .split = plan.split,
		.scale = l->rule.scale[0],
		.y_vectorized = a->y_b == 1 && a->y_i % 4 == 0 && (uintptr_t)a->y % 8 == 0,
		.rows_first = a->y_b != 1,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.row_tiles * plan.split), (unsigned)plan.column_tiles},
		.block = {(unsigned)k->threads}, .cluster = (unsigned)plan.split, .early = true,
		.aligned = true,
		.shared_bytes = (unsigned)(1024 + max_of(k->ring_bytes, k->acc_bytes)),
	};

	for (int i = 0; i < 8; i++) {
		const int32_t o = l->rule.offset[i / 2] * (i % 2 ? 16 : 17);

		/* f16 bits below 2^-13 are sign and integer magnitude. */
		p.minus_offset[i] = (uint32_t)(o > 0 ? 0x8000 | o : -o) * 0x10001u;
		p.has_offset |= o != 0;
	}
	if (!in_place)
		HZ_CHECK(copy_x(ctx, a));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, name, &p.x, in_place ? a->x : ctx->workspace,
					2 * (in_place ? a->batch : x_k), a->w.k / 8,
					16 * x_k, 8, 2 * x_k,
					k->columns < 64 ? 2 * k->columns : 128,
					HZI_VLUT_D4_WGMMA_CHUNK / 8, 8));
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, name, &p.codes, a->w.packed, 128,
					bitfield_chunks * LINES,
					128, (int)ceil_div(a->w.rows, HZI_VLUT_D4_ROWS),
					bitfield_chunks * HZI_VLUT_D4_BYTES, 128, CHUNK_LINES,
					k->rows / HZI_VLUT_D4_ROWS));
	return hzi_cuda_launch(ctx, name, k->index, &launch, &p, sizeof(p));
}
