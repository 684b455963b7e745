/*
 * routes.c - the routes of operations of hyper-connections on CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "lib/core/route.h"

/*
 * Costs of mhc_pre are ranks: those of coef_mma and coef_generic are their indices, 6 and 7. Of
 * equal ranks the earlier row wins.
 */

#define SMALL_BATCH 112			/* tokens: 7 clusters of 16 run at a time on an H200 */

static bool input_fused_makes_all(const struct hzi_mhc_pre_args *a)
{
	return (a->u.data && !a->norm) || hzi_cuda_mhc_coef_input_fused_makes_y(a);
}

/*
 * The most tokens for which coef_splitk is faster than coef_input_fused, of which x may be in L2 or
 * not: us on an H200, cold, of 256 tokens 11.7 and 14.4, of 512 16.7 and 16.7, warm 14.7 and 16.7,
 * of 640 cold 22.9 and 18.1; with post, of 120 13.7 and 13.6, of 512 26.5 and 23.9. Or, where
 * that is not the alternative, than the routes behind it.
 */
static int64_t splitk_tokens(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	if (ctx->sm_90a && input_fused_makes_all(a) &&
	    !hzi_cuda_mhc_coef_input_fused_unsupported(ctx, a))
		return hzi_cuda_mhc_coef_input_fused_makes_y(a) ? 128 : 512;
	return a->post.y.data ? 512 : 1024;
}

/*
 * Tokens from which on coef_persistent is the fastest route, since each cluster of two blocks reads
 * all of phi. Measured: 90 us, coef_input_fused 99, for 8192 tokens of 4096 channels; 78 and 58 for
 * 4096 tokens. Where coef_input_fused is unsupported, coef_mma is the alternative: 135 us, coef_mma
 * 215, for 2048 tokens of 7168 channels; 135 and 121 for 512 tokens.
 */
#define MANY 8192
#define MANY_BESIDE_MMA 1024

HZI_RANK(small_batch, struct hzi_mhc_pre_args, a->s.tokens <= SMALL_BATCH, 0, 8)
HZI_RANK(splitk, struct hzi_mhc_pre_args, a->s.tokens <= splitk_tokens(ctx, a), 1, 8)
HZI_RANK(input_fused, struct hzi_mhc_pre_args, input_fused_makes_all(a), 2, 6)

/*
 * The most groups of tokens for which coef_gemv is faster than the routes behind it: us on an H200,
 * 8 streams of 4096 channels, 1 token 14.2, coef_wgmma 25.4, coef_mma 47.7; 16 tokens 30.4, 26.3 and
 * 40.3; 24 of f16 39.2 and 48.6, 32 48.4 and 48.9. Of 2 streams and 14336 channels, 1 token 7.9 and
 * 12.2; more than 4 were not measured.
 */
static int64_t gemv_groups(const struct hzi_mhc_pre_args *a)
{
	return a->rule.m <= 32 ? 4 : a->s.dtype == HZ_BF16 ? 12 : 24;
}

HZI_RANK(gemv, struct hzi_mhc_pre_args, a->s.groups <= gemv_groups(a), 4, 8)

/* coef_wgmma computes 80 rows in any case. */
HZI_RANK(wgmma, struct hzi_mhc_pre_args, a->rule.m > 32, 5, 8)

/*
 * Tokens from which on gated_wgmma is the faster route: us on an H200 of 192 44.4, gated_cluster
 * 37.7, of 256 45.9 and 50.9. gated_gemv: one token, of 4096 channels 9.9 and 9.4, of 7168 13.8 and
 * 16.2, of 1024 5.5 and 6.1.
 */
#define GATED_WGMMA 193

HZI_RANK(gated_gemv, struct hzi_mhc_gated_args, a->s.tokens == 1, 0, 2)
HZI_RANK(gated_wgmma, struct hzi_mhc_gated_args, a->s.tokens >= GATED_WGMMA, 0, 3)

static int64_t persistent_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;

	(void)ctx;
	return a->s.tokens >= MANY ? 3 : a->s.tokens >= MANY_BESIDE_MMA ? 6 : 8;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

#define FUNCTIONS(path) \
	.unsupported = hzi_cuda_mhc_##path##_unsupported, .run = hzi_cuda_mhc_##path
#define WORKSPACE(path) .workspace = hzi_cuda_mhc_##path##_workspace

#define VECTORIZED(path) \
	"vectorized", "16-byte vectors of channels where rows are aligned", \
	FUNCTIONS(path##_vectorized)
#define STRIDED(path) "strided", "any strides", .run = hzi_cuda_mhc_##path##_strided

static const struct hzi_route streams[] = {{VECTORIZED(mix)}, {STRIDED(mix)}};
static const struct hzi_route streams_bwd[] = {
	{VECTORIZED(mix_bwd), WORKSPACE(mix_bwd)}, {STRIDED(mix_bwd), WORKSPACE(mix_bwd)},
};
static const struct hzi_route recompute[] = {{VECTORIZED(recompute)}, {STRIDED(recompute)}};

static const struct hzi_route pre[] = {
	{"coef_small_batch", "4 streams, one launch, for few tokens", HZI_SM_90A,
	 FUNCTIONS(coef_small_batch), WORKSPACE(coef_small_batch), .cost = small_batch_cost},
	{"coef_splitk", "4 streams of 16 bits, two launches, for some hundred tokens", HZI_SM_80,
	 FUNCTIONS(coef_splitk), WORKSPACE(coef_splitk), .cost = splitk_cost},
	{"coef_input_fused",
	 "4 streams of 16 bits, one pass over x for coefficients and branch input", HZI_SM_90A,
	 FUNCTIONS(coef_input_fused), WORKSPACE(coef_input_fused), .cost = input_fused_cost},
	{"coef_persistent", "4 streams of 16 bits, coefficients of many tokens", HZI_SM_90A,
	 FUNCTIONS(coef_persistent), WORKSPACE(coef_persistent), .cost = persistent_cost},
	{"coef_gemv", "projection of few tokens by products of f32, aligned rows", HZI_ANY_ARCH,
	 FUNCTIONS(coef_gemv), WORKSPACE(coef_gemv), .cost = gemv_cost},
	{"coef_wgmma", "bf16 streams, phi of more than 32 rows: projection by wgmma",
	 HZI_SM_90A, FUNCTIONS(coef_wgmma), WORKSPACE(coef_wgmma), .cost = wgmma_cost},
	{"coef_mma", "projection on tensor cores, aligned rows", HZI_SM_80, FUNCTIONS(coef_mma),
	 WORKSPACE(coef_mma)},
	{"coef_generic", "any strides, no phi", HZI_ANY_ARCH, WORKSPACE(coef_generic),
	 .run = hzi_cuda_mhc_coef_generic},
};

static const struct hzi_route pre_bwd[] = {
	{"coef_bwd_fused", "4 streams of 16 bits, one pass for dx and dphi", HZI_SM_90A,
	 FUNCTIONS(coef_bwd_fused), WORKSPACE(coef_bwd_fused)},
	{"coef_wgmma", "5 to 8 bf16 streams, dx and dphi by wgmma", HZI_SM_90A,
	 FUNCTIONS(coef_bwd_wgmma), WORKSPACE(coef_bwd_wgmma)},
	{"coef_mma", "products on tensor cores where rows are aligned", HZI_SM_80,
	 FUNCTIONS(coef_bwd_mma), WORKSPACE(coef_bwd_mma)},
	{"coef_generic", "any strides", HZI_ANY_ARCH, WORKSPACE(coef_bwd_generic),
	 .run = hzi_cuda_mhc_coef_bwd_generic},
};

static const struct hzi_route gated[] = {
	{"gated_gemv", "bf16, two launches, up to 8 tokens", HZI_SM_90A, FUNCTIONS(gated_gemv),
	 WORKSPACE(gated_gemv), .cost = gated_gemv_cost},
	{"gated_cluster", "bf16, two launches, up to some hundred tokens", HZI_SM_90A,
	 FUNCTIONS(gated_cluster), WORKSPACE(gated_cluster)},
	{"gated_wgmma", "16-bit streams, bf16 w_up: products by wgmma, for many tokens", HZI_SM_90A,
	 FUNCTIONS(gated_wgmma), WORKSPACE(gated_wgmma), .cost = gated_wgmma_cost},
	{"gated_fused", "three launches, products of streams on tensor cores, aligned rows", HZI_SM_80,
	 FUNCTIONS(gated_fused), WORKSPACE(gated_fused)},
	{"gated_chain", "any strides, streams over their roots in memory", HZI_ANY_ARCH,
	 WORKSPACE(gated_chain), .run = hzi_cuda_mhc_gated_chain},
};

static const struct hzi_route gated_bwd[] = {
	{"gated_bwd_wgmma", "bf16 streams and w_up: products by wgmma, gates beside them",
	 HZI_SM_90A, FUNCTIONS(gated_bwd_wgmma), WORKSPACE(gated_bwd_wgmma)},
	{"gated_bwd_chain", "any strides, streams over their roots in memory", HZI_ANY_ARCH,
	 WORKSPACE(gated_bwd_chain), .run = hzi_cuda_mhc_gated_bwd_chain},
};

enum { STREAMS, STREAMS_BWD, RECOMPUTE, PRE, PRE_BWD, GATED, GATED_BWD, END };

const struct hzi_op_routes hzi_cuda_mhc_routes[] = {
	[STREAMS] = HZI_ROUTES(mhc_streams, streams),
	[STREAMS_BWD] = HZI_ROUTES(mhc_streams_bwd, streams_bwd),
	[RECOMPUTE] = HZI_ROUTES(mhc_recompute, recompute),
	[PRE] = HZI_RANKED_ROUTES(mhc_pre, pre),
	[PRE_BWD] = HZI_ROUTES(mhc_pre_bwd, pre_bwd),
	[GATED] = HZI_RANKED_ROUTES(mhc_gated, gated),
	[GATED_BWD] = HZI_ROUTES(mhc_gated_bwd, gated_bwd),
	[END] = {0},
};

#define ROUTED(op, index) \
	int hzi_cuda_##op(struct hz_context *ctx, const struct hzi_##op##_args *a) \
	{ return hzi_route_run(ctx, &hzi_cuda_mhc_routes[index], a); } \
	size_t hzi_cuda_##op##_workspace(const struct hz_context *ctx, \
					 const struct hzi_##op##_args *a) \
	{ return hzi_route_workspace(ctx, &hzi_cuda_mhc_routes[index], a); }

ROUTED(mhc_streams, STREAMS)
ROUTED(mhc_streams_bwd, STREAMS_BWD)
ROUTED(mhc_recompute, RECOMPUTE)
ROUTED(mhc_pre, PRE)
ROUTED(mhc_pre_bwd, PRE_BWD)
ROUTED(mhc_gated, GATED)
ROUTED(mhc_gated_bwd, GATED_BWD)
