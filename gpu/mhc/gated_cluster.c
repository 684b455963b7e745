/*
 * gated_cluster.c - launchers of gated branch inputs of up to some hundred tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/gated_cluster.h"
#include "gpu/mhc/launch.h"

#define OP "mhc_gated"
#define CLUSTER_CHANNELS (HZI_MHC_CLUSTER * HZI_MHC_CLUSTER_SLICE)

const char *hzi_cuda_mhc_gated_cluster_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;

	if (a->s.tokens > HZI_MHC_CLUSTER_MOST)
		return "more than 512 tokens";
	if (a->s.n > HZI_MHC_CLUSTER_STREAMS)
		return "more than 4 streams";
	if (a->s.dtype != HZ_BF16 || a->down_dtype != HZ_BF16 || a->up_dtype != HZ_BF16)
		return "streams or weights are not bf16";
	if (a->q.data && a->q_dtype != HZ_BF16)
		return "w_q is not bf16";
	if (a->rank > HZI_MHC_CLUSTER_RANK)
		return "r is more than 128";
	if (a->s.n * ceil_div(a->s.channels, CLUSTER_CHANNELS) > HZI_MHC_CLUSTER_SLICES)
		return "too many channels";
	return hzi_cuda_mhc_gated_fused_unsupported(ctx, args);
}

static size_t plan_of(const struct hz_context *ctx, const struct hzi_mhc_gated_args *a,
		      struct hzi_mhc_gated_job *j)
{
	const int64_t T = a->s.tokens;
	size_t used = 0;

	*j = (struct hzi_mhc_gated_job){.a = *a};
	j->stream_slices = (int)ceil_div(a->s.channels, CLUSTER_CHANNELS);
	j->slices = (int)a->s.n * j->stream_slices;
	j->slice = ceil_div(a->s.channels, HZI_MHC_CLUSTER * j->stream_slices * 32) * 32;
	j->row_tiles = (int)ceil_div(a->rank, HZI_MHC_CLUSTER_ROWS);
	j->pitch = (int)a->rank + j->row_tiles * HZI_MHC_CLUSTER_STREAMS;
	j->partial = hzi_cuda_mhc_take(ctx, &used, j->slices * T * j->pitch);
	j->squares = hzi_cuda_mhc_take(ctx, &used, j->slices * T);
	return used;
}

size_t hzi_cuda_mhc_gated_cluster_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_mhc_gated_job j;

	return plan_of(ctx, args, &j);
}

static int launch(struct hz_context *ctx, int kernel, int64_t clusters, unsigned bytes,
		  const struct hzi_mhc_gated_job *j)
{
	const struct hzi_launch how = {
		.grid = {(unsigned)(clusters * HZI_MHC_CLUSTER),
			 (unsigned)ceil_div(j->a.s.tokens, HZI_MHC_CLUSTER_TOKENS)},
		.block = {HZI_MHC_CLUSTER_THREADS}, .shared_bytes = bytes,
		.cluster = HZI_MHC_CLUSTER, .early = true,
	};

	return hzi_cuda_launch(ctx, OP, kernel, &how, j, sizeof(*j));
}

int hzi_cuda_mhc_gated_cluster(struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_gated_args *const a = args;
	struct hzi_mhc_gated_job j;

	plan_of(ctx, a, &j);
	HZ_CHECK(launch(ctx, HZI_KERNEL_mhc_gated_cluster_down, j.slices * j.row_tiles,
			HZI_MHC_CLUSTER_DOWN_BYTES, &j));
	return launch(ctx, HZI_KERNEL_mhc_gated_cluster_up,
		      ceil_div(a->s.channels, HZI_MHC_CLUSTER * HZI_MHC_CLUSTER_CHANNELS),
		      HZI_MHC_CLUSTER_UP_BYTES, &j);
}
