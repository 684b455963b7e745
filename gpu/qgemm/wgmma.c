/*
 * wgmma.c - launcher of the wgmma kernels with TMA, for many rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/qgemm/launch.h"

/*
 * A tile has 128 rows and `columns` columns. A cluster has cluster_m blocks along m by cluster_n
 * along n. Expected H200 cycles: waves * (blocks of k * k_block + tile) + launch_cycles
 */
struct kernel {
	int columns, kernel, kernel_signed, stages, cluster_m, cluster_n;
	int k_block, tile, launch_cycles;
};

#define KERNELS(tile) HZI_KERNEL_qgemm_wgmma_##tile##_u8, HZI_KERNEL_qgemm_wgmma_##tile##_s8

static const struct kernel kernels[] = {
	{256, KERNELS(128x256), 4, 2, 1, 1060, 3700, 3000},
	{192, KERNELS(128x192), 5, 2, 1, 810, 2900, 3000},
	{128, KERNELS(128x128), 6, 2, 1, 535, 2200, 3000},
	{128, KERNELS(128x128_c1), 6, 1, 1, 740, 2200, 2700},
	{96, KERNELS(128x96), 7, 1, 4, 520, 1700, 3000},
	{64, KERNELS(128x64), 7, 1, 1, 440, 1300, 2700},
};

/*
 * Clusters resident at a time. A cluster of 4 lies within one GPC of about 16 SMs: on an H200, 30
 * of 33 fit.
 */
static int64_t clusters(int64_t sms, int blocks)
{
	return max_of(blocks < 4 ? sms / blocks : sms * 10 / 11 / blocks, 1);
}

static const struct kernel *best_kernel(const struct hz_context *ctx,
					const struct hzi_qgemm_args *t, int64_t *cycles)
{
	const int64_t sms = hzi_cuda_device(ctx)->sms, blocks = hzi_qgemm_blocks(t);
	const struct kernel *f = NULL;

	*cycles = INT64_MAX;
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
		const struct kernel *g = &kernels[i];
		const int64_t tiles = ceil_div(t->m, HZI_WGMMA_ROWS * g->cluster_m) *
				      ceil_div(t->n, g->columns * g->cluster_n);
		const int64_t all = ceil_div(tiles, clusters(sms, g->cluster_m * g->cluster_n)) *
				    (blocks * g->k_block + g->tile) + g->launch_cycles;

		if (all < *cycles) {
			*cycles = all;
			f = g;
		}
	}
	return f;
}

const char *hzi_cuda_qgemm_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_args *t = &((const struct hzi_qgemm_call *)args)->t;

	(void)ctx;
	return t->k == 0 ? "k is 0" : t->sum64 ? "sums do not fit 32 bits" : NULL;
}

int64_t hzi_qgemm_wgmma_cycles(const struct hz_context *ctx, const struct hzi_qgemm_args *t)
{
	int64_t cycles;

	best_kernel(ctx, t, &cycles);
	return cycles;
}

#define BAND_ROWS 2048	/* rows of A; a wave of tiles covers about as many columns */

static int launch_matrix(struct hz_context *ctx, const struct hzi_qgemm_args *t, const uint8_t *b,
			 const struct hzi_qgemm_out *out, bool early)
{
	const int64_t sms = hzi_cuda_device(ctx)->sms;
	struct hzi_qgemm_wgmma p = {
		.b = b, .out = *out,
		.row_sums = t->a_sums ? t->a_sums + t->row_stride[HZ_MAXDIM - 1] : NULL,
		.width = hzi_qgemm_width(t),
		.blocks = (int32_t)hzi_qgemm_blocks(t),
	};
	struct hzi_launch launch = {.block = {HZI_WGMMA_THREADS}, .early = early, .aligned = true};
	const struct kernel *f;
	int64_t cycles;

	f = best_kernel(ctx, t, &cycles);
	p.tiles_m = (int32_t)ceil_div(t->m, HZI_WGMMA_ROWS * f->cluster_m);
	p.tiles_n = (int32_t)ceil_div(t->n, f->columns * f->cluster_n);
	p.band = BAND_ROWS / (HZI_WGMMA_ROWS * f->cluster_m);
	launch.cluster = (unsigned)(f->cluster_m * f->cluster_n);
	launch.grid[0] = (unsigned)min_of((int64_t)p.tiles_m * p.tiles_n,
					  clusters(sms, (int)launch.cluster)) * launch.cluster;
	launch.shared_bytes =
		HZI_QGEMM_SHARED_ALIGN + (unsigned)HZI_WGMMA_BYTES(f->columns, f->stages);
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, "qgemm", &p.a, t->a, t->k, t->m, t->a_m, 128,
					HZI_WGMMA_ROWS / f->cluster_n));
	return hzi_cuda_launch(ctx, "qgemm", t->a_dtype == HZ_S8 ? f->kernel_signed : f->kernel,
			       &launch, &p, sizeof(p));
}

int hzi_cuda_qgemm_wgmma(struct hz_context *ctx, const void *args)
{
	return hzi_qgemm_for_each(ctx, args, launch_matrix);
}
