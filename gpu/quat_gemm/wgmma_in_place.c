/*
 * wgmma_in_place.c - launchers of quaternion matrix products by wgmma with A as it is stored
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/quat_gemm/gemv.h"
#include "gpu/quat_gemm/launch.h"
#include "gpu/quat_gemm/wgmma_in_place.h"

HZI_LINK_IMAGES(quat_gemm);

#define LENGTH_MAX ((int64_t)1 << 28)
#define COLUMNS_MAX ((int64_t)1 << 20)	/* tiles along a grid's y */
#define LEAST_COLUMNS 4
#define SMALL ((int64_t)1 << 18)		/* m k, for which GEMV is slower */
#define LONG_NS 1e5	/* beyond this time the clock falls, and a quarter more is needed */

/*
 * Measured on an H200, ns: a block without steps; a step; adding up two shares of k. The clusters
 * of a launch depend on these alone.
 */
struct tile {
	int rows, columns, kernel, block_ns, step_ns, share_ns;
};

static const struct tile tiles[] = {
	{64, 32, HZI_KERNEL_quat_gemm_in_place_64x32_f16, 1950, 234, 1100},
	{96, 32, HZI_KERNEL_quat_gemm_in_place_96x32_f16, 2430, 280, 1230},
	{128, 32, HZI_KERNEL_quat_gemm_in_place_128x32_f16, 2000, 344, 2060},
	{96, 64, HZI_KERNEL_quat_gemm_in_place_96x64_f16, 3910, 535, 810},
	{128, 64, HZI_KERNEL_quat_gemm_in_place_128x64_f16, 2980, 657, 2110},
	{96, 96, HZI_KERNEL_quat_gemm_in_place_96x96_f16, 2810, 749, 1980},
};

/* Shares of k, the blocks of a cluster: SMs that they use, percent of share_ns */
static const struct {
	int count, sms, percent;
} shares[] = {{1, 132, 0}, {2, 132, 100}, {4, 120, 138}, {8, 112, 160}};

struct plan {
	const struct tile *tile;
	int64_t shares;
	double ns;
};

/* The tile and shares of k of least time */
static struct plan plan_of(int64_t m, int64_t n, int64_t k)
{
	const int64_t steps = ceil_div(k, HZI_IN_PLACE_STEP);
	struct plan best = {.ns = HUGE_VAL};

	for (size_t i = 0; i < sizeof(tiles) / sizeof(*tiles); i++) {
		const struct tile *t = &tiles[i];
		const int64_t all = ceil_div(m, t->rows) * ceil_div(n, t->columns);

		for (size_t s = 0; s < sizeof(shares) / sizeof(*shares); s++) {
			const int count = shares[s].count;
			const int64_t ns = t->block_ns + t->share_ns * shares[s].percent / 100 +
					   ceil_div(steps, count) * t->step_ns;
			const double all_ns = (double)ns *
					      (double)ceil_div(all * count, shares[s].sms);

			if (count <= steps && all_ns < best.ns)
				best = (struct plan){t, count, all_ns};
		}
	}
	return best;
}

/* Whether TMA supports rows of contiguous quaternions, `row` numbers apart */
static bool rows_fit(const void *data, int64_t row, int64_t rows)
{
	return (uintptr_t)data % 16 == 0 && (rows == 1 || (row % 8 == 0 && row > 0 &&
							    row < (int64_t)1 << 36));
}

const char *hzi_cuda_quat_gemm_wgmma_in_place_unsupported(const struct hz_context *ctx,
							   const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	(void)ctx;
	if (a->packed)
		return "a is packed";
	if (a->dtype == HZ_F32)
		return "a is f32";
	if (a->ndim && hzi_quat_batch_of((int64_t[HZI_QUAT_BATCH]){0}, a->shape, a->ndim) > 1)
		return "more than one product";
	if (a->k == 0)
		return "k is 0";
	if (a->a.col != 4 || a->b.row != 4)
		return "rows of a or columns of b are not contiguous";
	if (!hzi_quat_matrix_of(&a->a, a->dtype, 0, a->a_stride, 0).whole ||
	    !hzi_quat_matrix_of(&a->b, a->dtype, 0, a->b_stride, 0).whole ||
	    !rows_fit(a->a.data, a->a.row, a->m) || !rows_fit(a->b.data, a->b.col, a->n))
		return "rows of a or columns of b are not aligned to 16 bytes";
	if (a->m > LENGTH_MAX || a->n > COLUMNS_MAX || a->k > LENGTH_MAX)
		return "m, n or k is too large";
	return NULL;
}

size_t hzi_cuda_quat_gemm_wgmma_in_place_workspace(const struct hz_context *ctx, const void *args)
{
	(void)ctx, (void)args;
	return 0;
}

static int map_rows(struct hz_context *ctx, struct hzi_tensor_map *map, const void *data,
		    int64_t rows, int64_t row, int64_t k, int box)
{
	return hzi_cuda_tensor_map_2d(ctx, "quat_gemm", map, data, 8 * k, rows,
				      rows > 1 ? 2 * row : round_up(8 * k, 16), 128, box);
}

/* Flips the signs of factors from B where component c of A or the component of B is negated. */
static void set_signs(uint32_t (*sign)[2], bool conj_a, bool conj_b)
{
	/* Products that are subtracted, by components of C and of A */
	static const bool minus[4][4] = {{0, 1, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 0}, {0, 0, 1, 0}};

	for (int o = 0; o < 4; o++) {
		for (int c = 0; c < 4; c++) {
			const bool flip = minus[o][c] ^ (conj_a && c) ^ (conj_b && (c ^ o));

			sign[o][c / 2] |= (uint32_t)flip << (c % 2 * 16 + 15);
		}
	}
}

int hzi_cuda_quat_gemm_wgmma_in_place(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	const struct plan plan = plan_of(a->m, a->n, a->k);
	const struct tile *t = plan.tile;
	struct hzi_quat_in_place p = {
		.out = hzi_quat_out_of(a), .steps = (int32_t)ceil_div(a->k, HZI_IN_PLACE_STEP),
	};
	const struct hzi_launch l = {
		.grid = {(unsigned)(ceil_div(a->m, t->rows) * plan.shares),
			 (unsigned)ceil_div(a->n, t->columns)},
		.block = {(unsigned)HZI_IN_PLACE_THREADS(t->rows, t->columns)},
		.shared_bytes = (unsigned)HZI_IN_PLACE_SHARED_BYTES(t->rows, t->columns),
		.cluster = (unsigned)plan.shares, .early = true, .aligned = true,
	};

	p.no_epilogue = p.out.c.whole && p.out.c.dtype == a->dtype && !p.out.c.conj &&
			p.out.alpha_real && p.out.alpha[0] == 1 && p.out.beta == 0 &&
			!p.out.bias && !p.out.pre.data && p.out.activation == HZ_ACT_NONE;
	p.quads = a->c.row == 4 && a->c.col % 8 == 0 && (uintptr_t)a->c.data % 16 == 0;
	p.halves = p.no_epilogue && p.quads && a->m % 2 == 0 && plan.shares == 1;
	p.share = (int32_t)ceil_div(p.steps, plan.shares);
	set_signs(p.sign, a->conj_a, a->conj_b);
	HZ_CHECK(map_rows(ctx, &p.rows, a->a.data, a->m, a->a.row, a->k, t->rows));
	HZ_CHECK(map_rows(ctx, &p.columns, a->b.data, a->n, a->b.col, a->k, t->columns));
	return hzi_cuda_launch(ctx, "quat_gemm", t->kernel + (a->dtype == HZ_BF16), &l, &p,
			       sizeof(p));
}

/* For few columns mma.sync is faster, for large products the 8 products of planes of A. */
bool hzi_cuda_quat_gemm_wgmma_in_place_is_slower(const struct hzi_quat_gemm_args *a, bool packed)
{
	const double ns = plan_of(a->m, a->n, a->k).ns;

	if (a->n < LEAST_COLUMNS || (a->n <= HZI_GEMV_WIDE_COLUMNS && a->m * a->k > SMALL))
		return true;
	return ns + fmax(ns - LONG_NS, 0) / 4 > hzi_cuda_quat_gemm_wgmma_ns(a, packed);
}
