/*
 * routes.c - routes of quantized matrix multiplication on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Accumulators are exact, so every route gives the same bits.
 */
#include <config.h>

#include "gpu/qgemm/launch.h"
#include "lib/core/route.h"

/* The cost of a route is its rank. */
enum {BATCH, SKINNY, WGMMA, MMA_SYNC, LAST};

HZI_RANK(batch, void, hzi_cuda_qgemm_batch_wins(ctx, a), BATCH, LAST)
HZI_RANK(skinny, void, hzi_cuda_qgemm_skinny_splitk_wins(ctx, a), SKINNY, LAST)

static const struct hzi_route qgemm[] = {
	[BATCH] = {.name = "batch", .what = "a batch in one launch, mma.sync",
		   .unsupported = hzi_cuda_qgemm_batch_unsupported, .cost = batch_cost,
		   .workspace = hzi_cuda_qgemm_batch_workspace, .run = hzi_cuda_qgemm_batch},
	[SKINNY] = {.name = "skinny_splitk", .what = "few rows, clusters share k, wgmma",
		    .arch = HZI_SM_90A, .unsupported = hzi_cuda_qgemm_skinny_splitk_unsupported,
		    .cost = skinny_cost, .workspace = hzi_cuda_qgemm_for_each_workspace,
		    .run = hzi_cuda_qgemm_skinny_splitk},
	[WGMMA] = {.name = "wgmma", .what = "tiles of 128 rows, wgmma and TMA", .arch = HZI_SM_90A,
		   .unsupported = hzi_cuda_qgemm_wgmma_unsupported,
		   .workspace = hzi_cuda_qgemm_for_each_workspace, .run = hzi_cuda_qgemm_wgmma},
	[MMA_SYNC] = {.name = "mma_sync", .what = "tiles of 128 rows, mma.sync on any GPU",
		      .workspace = hzi_cuda_qgemm_for_each_workspace,
		      .run = hzi_cuda_qgemm_mma_sync},
};

enum {GEMV, TWO_STEPS, QLINEAR_LAST};

HZI_RANK(gemv, void, hzi_cuda_qlinear_gemv_wins(ctx, a), GEMV, QLINEAR_LAST)

static size_t two_steps_workspace(const struct hz_context *ctx, const void *args)
{
	size_t qgemm_offset;
	const struct hzi_qgemm_args g =
		hzi_qlinear_product(((const struct hzi_qlinear_call *)args)->a, NULL,
				    &qgemm_offset);

	return qgemm_offset + hzi_cuda_qgemm_workspace(ctx, &g);
}

static int multiply(struct hz_context *ctx, const struct hzi_qgemm_args *a, void *workspace);

static int two_steps(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_args *a = ((const struct hzi_qlinear_call *)args)->a;
	char *workspace = ctx->workspace;
	size_t qgemm_offset;
	const struct hzi_qgemm_args g = hzi_qlinear_product(a, workspace, &qgemm_offset);

	HZ_CHECK(hzi_qlinear_quantize(ctx, a, &g, workspace));
	return multiply(ctx, &g, workspace + qgemm_offset);
}

static const struct hzi_route qlinear[] = {
	[GEMV] = {.name = "gemv", .what = "up to 4 rows in one launch",
		  .unsupported = hzi_cuda_qlinear_gemv_unsupported, .cost = gemv_cost,
		  .run = hzi_cuda_qlinear_gemv},
	[TWO_STEPS] = {.name = "quantize_gemm", .what = "quantization, then a route of qgemm",
		       .workspace = two_steps_workspace, .run = two_steps},
};

enum {
	GROUP_ONE_ROW, GROUP_GEMV, GROUP_SKINNY, GROUP_CODES, GROUP_FLOATS, GROUP_WGMMA, GROUP_TILED,
	GROUP_LAST
};

HZI_RANK(group_skinny, struct hzi_qlinear_group_args, hzi_cuda_qlinear_group_skinny_wins(ctx, a),
	 GROUP_SKINNY, GROUP_LAST)
HZI_RANK(group_floats, struct hzi_qlinear_group_args, hzi_cuda_qlinear_group_floats_wins(ctx, a),
	 GROUP_FLOATS, GROUP_LAST)

static const struct hzi_route qlinear_group[] = {
	[GROUP_ONE_ROW] = {.name = "one_row", .what = "one row of 16-bit floats by s4",
			  .unsupported = hzi_cuda_qlinear_group_one_row_unsupported,
			  .workspace = hzi_cuda_qlinear_group_skinny_workspace,
			  .run = hzi_cuda_qlinear_group_one_row},
	[GROUP_GEMV] = {.name = "gemv", .what = "8 rows of 16-bit floats, 4 bits in groups of 128",
			.unsupported = hzi_cuda_qlinear_group_gemv_unsupported,
			.workspace = hzi_cuda_qlinear_group_skinny_workspace,
			.run = hzi_cuda_qlinear_group_gemv},
	[GROUP_SKINNY] = {.name = "skinny", .what = "8 rows; warps share k, mma.sync",
			  .unsupported = hzi_cuda_qlinear_group_skinny_unsupported,
			  .cost = group_skinny_cost,
			  .workspace = hzi_cuda_qlinear_group_skinny_workspace,
			  .run = hzi_cuda_qlinear_group_skinny},
	[GROUP_CODES] = {.name = "wgmma_codes",
			 .what = "codes x with a scale a row, tiles of 112 rows, wgmma",
			 .arch = HZI_SM_90A,
			 .unsupported = hzi_cuda_qlinear_group_codes_unsupported,
			 .workspace = hzi_cuda_qlinear_group_codes_workspace,
			 .run = hzi_cuda_qlinear_group_codes},
	[GROUP_FLOATS] = {.name = "wgmma_floats",
			  .what = "bf16, 4 bits in groups of 128, tiles of 256 rows, wgmma",
			  .arch = HZI_SM_90A,
			  .unsupported = hzi_cuda_qlinear_group_floats_unsupported,
			  .cost = group_floats_cost,
			  .workspace = hzi_cuda_qlinear_group_floats_workspace,
			  .run = hzi_cuda_qlinear_group_floats},
	[GROUP_WGMMA] = {.name = "wgmma", .what = "16-bit floats or codes x, wgmma and TMA",
			 .arch = HZI_SM_90A,
			 .unsupported = hzi_cuda_qlinear_group_wgmma_unsupported,
			 .workspace = hzi_cuda_qlinear_group_wgmma_workspace,
			 .run = hzi_cuda_qlinear_group_wgmma},
	[GROUP_TILED] = {.name = "tiled", .what = "tiles of 64 rows, mma.sync",
			 .workspace = hzi_cuda_qlinear_group_tiled_workspace,
			 .run = hzi_cuda_qlinear_group_tiled},
};

enum {QGEMM, QLINEAR, QLINEAR_GROUP};

const struct hzi_op_routes hzi_cuda_qgemm_routes[] = {
	[QGEMM] = HZI_RANKED_ROUTES(qgemm, qgemm),
	[QLINEAR] = HZI_RANKED_ROUTES(qlinear, qlinear),
	[QLINEAR_GROUP] = HZI_RANKED_ROUTES(qlinear_group, qlinear_group),
	{0},
};

/* Merges the innermost batch dimensions whose items are rows of one matrix. */
static struct hzi_qgemm_args join_rows(const struct hzi_qgemm_args *a)
{
	struct hzi_qgemm_args t = *a;

	while (t.ndim > 0) {
		const int d = t.ndim - 1;
		int64_t m;

		if (t.shape[d] > 1 && (t.b_stride[d] || t.a_stride[d] != t.m * t.a_m ||
				       t.c_stride[d] != t.m * t.c_m || t.row_stride[d] != t.m))
			break;
		if (!hzi_mul(t.m, t.shape[d], &m))
			break;
		t.m = m;
		t.ndim--;
	}
	return t;
}

static int multiply(struct hz_context *ctx, const struct hzi_qgemm_args *a, void *workspace)
{
	const struct hzi_qgemm_call c = {join_rows(a), workspace};

	if (hzi_qgemm_packed_width(HZI_QGEMM_LAYOUT_CUDA, a->n) > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"qgemm: n is %lld, must be at most 2^31 - 256 on a GPU",
				(long long)a->n);
	return hzi_route_run(ctx, &hzi_cuda_qgemm_routes[QGEMM], &c);
}

size_t hzi_cuda_qgemm_workspace(const struct hz_context *ctx, const struct hzi_qgemm_args *a)
{
	const struct hzi_qgemm_call c = {join_rows(a), NULL};

	return hzi_route_workspace(ctx, &hzi_cuda_qgemm_routes[QGEMM], &c);
}

int hzi_cuda_qgemm(struct hz_context *ctx, const struct hzi_qgemm_args *a)
{
	return multiply(ctx, a, ctx->workspace);
}

size_t hzi_cuda_qlinear_workspace(const struct hz_context *ctx, const struct hzi_qlinear_args *a)
{
	const struct hzi_qlinear_call c = {a, join_rows(&a->g)};

	return hzi_route_workspace(ctx, &hzi_cuda_qgemm_routes[QLINEAR], &c);
}

int hzi_cuda_qlinear(struct hz_context *ctx, const struct hzi_qlinear_args *a)
{
	const struct hzi_qlinear_call c = {a, join_rows(&a->g)};

	return hzi_route_run(ctx, &hzi_cuda_qgemm_routes[QLINEAR], &c);
}

size_t hzi_cuda_qlinear_group_workspace(const struct hz_context *ctx,
					const struct hzi_qlinear_group_args *a)
{
	return hzi_route_workspace(ctx, &hzi_cuda_qgemm_routes[QLINEAR_GROUP], a);
}

int hzi_cuda_qlinear_group(struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	return hzi_route_run(ctx, &hzi_cuda_qgemm_routes[QLINEAR_GROUP], a);
}
