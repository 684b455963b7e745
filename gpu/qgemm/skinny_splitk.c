/*
 * skinny_splitk.c - launcher for a small m: the blocks of a cluster split k
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/qgemm/launch.h"

/* Kernels by their largest number of rows; bytes of shared memory */
struct kernel {
	int rows, kernel, kernel_signed, bytes;
};

static const struct kernel kernels[] = {
	{8, HZI_KERNEL_qgemm_skinny_8_u8, HZI_KERNEL_qgemm_skinny_8_s8,
	 HZI_SKINNY_BYTES(8, HZI_SKINNY_STAGES_8)},
	{16, HZI_KERNEL_qgemm_skinny_16_u8, HZI_KERNEL_qgemm_skinny_16_s8,
	 HZI_SKINNY_BYTES(16, HZI_SKINNY_STAGES_16)},
	{32, HZI_KERNEL_qgemm_skinny_32_u8, HZI_KERNEL_qgemm_skinny_32_s8,
	 HZI_SKINNY_BYTES(32, HZI_SKINNY_STAGES_32)},
	{64, HZI_KERNEL_qgemm_skinny_64_u8, HZI_KERNEL_qgemm_skinny_64_s8,
	 HZI_SKINNY_BYTES(64, HZI_SKINNY_STAGES_64)},
};

#define BLOCK_CYCLES 265	/* per block of k (128) and 64 rows, on an H200 */
#define SUM32_BLOCKS 256	/* of k: the sum of 32768 products of at most 255^2 fits 32 bits */

/*
 * The number of blocks per cluster, among which k is split, with the fewest steps. The fixed cost
 * of a block equals 12 blocks of k. If sums over all k may need 64 bits, those of a share must fit
 * 32. Returns 0 if there is no such number.
 */
static unsigned best_shares(const struct hz_context *ctx, const struct hzi_qgemm_args *t,
			    int64_t *cycles)
{
	const int64_t tiles = ceil_div(t->n, HZI_SKINNY_COLUMNS) *
			      ceil_div(min_of(t->m, HZI_QGEMM_ROWS_MAX), HZI_SKINNY_ROWS);
	const int64_t sms = hzi_cuda_device(ctx)->sms, blocks = hzi_qgemm_blocks(t);
	int64_t least = INT64_MAX;
	unsigned best = 0;

	for (unsigned i = 1; i <= HZI_SKINNY_BLOCKS && i <= blocks; i *= 2) {
		const int64_t steps = ceil_div(tiles * i, sms) * (ceil_div(blocks, i) + 12);

		if (steps < least && !(t->sum64 && ceil_div(blocks, i) > SUM32_BLOCKS)) {
			least = steps;
			best = i;
		}
	}
	*cycles = least * BLOCK_CYCLES;
	return best;
}

const char *hzi_cuda_qgemm_skinny_splitk_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_args *t = &((const struct hzi_qgemm_call *)args)->t;

	(void)ctx;
	if (t->k == 0)
		return "k is 0";
	return t->sum64 && ceil_div(hzi_qgemm_blocks(t), 8) > SUM32_BLOCKS
		       ? "sums of an eighth of k do not fit 32 bits" : NULL;
}

/*
 * With more than 64 rows several blocks of rows each read all of B. That is faster than wgmma.c
 * only if each SM gets at most one block.
 */
bool hzi_cuda_qgemm_skinny_splitk_wins(const struct hz_context *ctx, const struct hzi_qgemm_call *c)
{
	const struct hzi_qgemm_args *t = &c->t;
	const int64_t tiles = ceil_div(t->n, HZI_SKINNY_COLUMNS) * ceil_div(t->m, HZI_SKINNY_ROWS);
	const int64_t sms = hzi_cuda_device(ctx)->sms;
	int64_t cycles;
	unsigned shares;

	if (t->m <= HZI_SKINNY_ROWS)
		return true;
	if (t->sum64 || tiles > sms)
		return false;
	shares = best_shares(ctx, t, &cycles);
	return tiles * shares <= sms && cycles < hzi_qgemm_wgmma_cycles(ctx, t) / 10 * 9;
}

static int launch_matrix(struct hz_context *ctx, const struct hzi_qgemm_args *t, const uint8_t *b,
			 const struct hzi_qgemm_out *out, bool early)
{
	const struct kernel *f = kernels;
	struct hzi_qgemm_skinny p = {
		.b = b, .out = *out, .width = hzi_qgemm_width(t),
		.blocks = (int32_t)hzi_qgemm_blocks(t), .sum64 = t->sum64,
	};
	struct hzi_launch launch = {.block = {HZI_SKINNY_THREADS}, .early = early, .aligned = true};
	int64_t cycles;

	while (f->rows < t->m && f->rows < HZI_SKINNY_ROWS)
		f++;
	if (!p.out.fast_path || t->n % 16) {
		p.any_strides = true;
		p.out.fast_path = hzi_qgemm_epilogue_kind(t);
		if (t->a_zeros)
			p.out.a_zero = 0;
	}
	launch.cluster = best_shares(ctx, t, &cycles);
	launch.grid[0] = (unsigned)ceil_div(t->n, HZI_SKINNY_COLUMNS) * launch.cluster;
	launch.grid[1] = (unsigned)ceil_div(t->m, f->rows);
	launch.shared_bytes = (unsigned)(HZI_QGEMM_SHARED_ALIGN + f->bytes);
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, "qgemm", &p.a, t->a, t->k, t->m, t->a_m, 128,
					f->rows));
	return hzi_cuda_launch(ctx, "qgemm", t->a_dtype == HZ_S8 ? f->kernel_signed : f->kernel,
			       &launch, &p, sizeof(p));
}

int hzi_cuda_qgemm_skinny_splitk(struct hz_context *ctx, const void *args)
{
	return hzi_qgemm_for_each(ctx, args, launch_matrix);
}
