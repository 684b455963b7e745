/*
 * strided.c - launches of the fallback: segments of any order, length and strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "gpu/hadamard/segments.h"

#define SM_CLUSTERS 90		/* the first compute capability with clusters */
#define TILE_ELEMENTS 8192	/* of several vectors in shared memory */
#define QUANTIZE_FLOATS 160	/* of shared memory for reductions and spilled elements */
#define CLUSTER_LOG2_MAX 3

/* Bytes of shared memory for the elements, with one word of padding per 32 */
static int64_t shared_bytes(int64_t elements)
{
	return 4 * (elements + elements / 32 + 1);
}

/*
 * log2 of the blocks of a cluster such that a block's part of a vector and `extra` elements fit, or
 * -1
 */
static int cluster_log2(const struct hzi_hadamard_call *c, const struct hzi_segment *seg,
			int64_t extra)
{
	int log2 = 0;

	while (shared_bytes(extra + (seg->length >> log2)) > c->device->shared_block_bytes) {
		log2++;
		if (log2 > CLUSTER_LOG2_MAX || log2 > seg->k || c->device->sm < SM_CLUSTERS)
			return -1;
	}
	return log2;
}

static int fail_too_long(struct hz_context *ctx, const struct hzi_hadamard_call *c)
{
	return hzi_fail(ctx, HZ_ENOTSUP,
			"%s: a block of %lld is too long for the shared memory of this GPU, "
			"%d bytes; opts->max_block limits blocks",
			c->op, (long long)c->t->plan.seg[0].length, c->device->shared_block_bytes);
}

int hzi_hadamard_check_lengths(struct hz_context *ctx, const struct hzi_hadamard_call *c)
{
	for (int s = 0; s < c->t->plan.nseg; s++) {
		if (cluster_log2(c, &c->t->plan.seg[s], 0) < 0)
			return fail_too_long(ctx, c);
	}
	return HZ_OK;
}

/* Launches the kernel with a and the base matrix of the segments, if any, as parameters. */
static int launch_kernel(struct hz_context *ctx, const struct hzi_hadamard_call *c,
			 const struct hzi_hadamard_strided *a, const struct hzi_base *base,
			 const struct hzi_launch *launch)
{
	const int64_t words = base ? (int64_t)base->m * base->words : 0;
	int kernel;

	if (words > HZI_STRIDED_WORDS) {
		struct hzi_hadamard_strided_big p = {.a = *a};

		kernel = c->quantize ? HZI_KERNEL_hadamard_strided_quantize_big
				     : HZI_KERNEL_hadamard_strided_big;
		memcpy(p.bits, base->bits, (size_t)words * sizeof(*p.bits));
		return hzi_cuda_launch(ctx, c->op, kernel, launch, &p, sizeof(p));
	}
	struct hzi_hadamard_strided_small p = {.a = *a};

	kernel = c->quantize ? HZI_KERNEL_hadamard_strided_quantize : HZI_KERNEL_hadamard_strided;
	if (words)
		memcpy(p.bits, base->bits, (size_t)words * sizeof(*p.bits));
	return hzi_cuda_launch(ctx, c->op, kernel, launch, &p, sizeof(p));
}

int hzi_hadamard_launch_strided(struct hz_context *ctx, const struct hzi_hadamard_call *c,
				const struct hzi_segment *seg)
{
	const struct hzi_hadamard_dims dims = hzi_hadamard_make_dims(c, seg);
	struct hzi_hadamard_strided a = {.job = hzi_hadamard_make_job(c, seg, &dims),
					 .ndim = dims.n, .transpose = c->t->transpose};
	struct hzi_launch launch = {0};
	int64_t tile, blocks;

	a.cluster_log2 = cluster_log2(c, seg, 0);
	if (a.cluster_log2 < 0)
		return fail_too_long(ctx, c);
	memcpy(a.dim, dims.d, sizeof(a.dim));
	a.words = seg->base ? seg->base->words : 0;
	tile = TILE_ELEMENTS / seg->length;
	if (dims.n && llabs(dims.d[dims.n - 1].x) < llabs(a.job.x_step)) {
		/*
		 * Adjacent elements are of other vectors: enough vectors for whole 128-byte lines
		 */
		a.across_vectors = 1;
		tile = tile < 32 ? 32 : tile;
		while (tile > 1 &&
		       shared_bytes(tile * seg->length) > c->device->shared_block_bytes / 2)
			tile /= 2;
	}
	a.tile = (int32_t)(tile < 1 ? 1 : min_of(tile, a.job.vectors));
	blocks = ceil_div(a.job.vectors, a.tile);
	launch.block[0] = a.tile * seg->length > TILE_ELEMENTS ? 512 : 256;
	launch.shared_bytes = (unsigned)shared_bytes(a.tile * (seg->length >> a.cluster_log2));
	launch.cluster = 1u << a.cluster_log2;
	launch.grid[0] = (unsigned)min_of(blocks, 16 * (int64_t)c->device->sms)
			 << a.cluster_log2;
	return launch_kernel(ctx, c, &a, seg->base, &launch);
}

/* Quantization: one launch for all transforms of a row */
static int launch_quantize(struct hz_context *ctx, const struct hzi_hadamard_call *c)
{
	const struct hzi_hadamard_args *t = c->t;
	const struct hzi_hadamard_dims dims = hzi_hadamard_make_dims(c, NULL);
	struct hzi_hadamard_strided a = {
		.job = c->job, .ndim = dims.n, .nseg = t->plan.nseg, .n = t->plan.n,
		.blocks = t->blocks, .x_block = c->x_block, .pre_block = t->pre.block_step,
		.post_block = t->post.block_step, .transpose = t->transpose};
	const bool row_group = c->group == t->blocks * t->plan.n;
	int64_t elements = 0;
	struct hzi_launch launch = {0};

	/* An incomplete group waits for the next transform, but not in a cluster. */
	for (int s = 0; s < t->plan.nseg; s++) {
		const struct hzi_segment *seg = &t->plan.seg[s];
		const int log2 = cluster_log2(c, seg, QUANTIZE_FLOATS + 128);

		if (log2 < 0)
			return fail_too_long(ctx, c);
		if (log2 > a.cluster_log2)
			a.cluster_log2 = log2;
		a.seg[s] = (struct hzi_hadamard_segment){.offset = seg->offset,
							 .count = seg->count,
							 .m = seg->m,
							 .k = seg->k,
							 .factor = seg->scale};
	}
	for (int s = 0; s < t->plan.nseg; s++) {
		const struct hzi_segment *seg = &t->plan.seg[s];

		if (a.cluster_log2 &&
		    ((1ll << seg->k >> a.cluster_log2) < (row_group ? 32 : c->group) ||
		     (!row_group && t->plan.n % c->group)))
			return hzi_fail(ctx, HZ_ENOTSUP,
					"%s: blocks of %lld and %lld with groups of %lld are "
					"not supported together on the GPU; opts->max_block limits "
					"blocks",
					c->op, (long long)t->plan.seg[0].length,
					(long long)seg->length, (long long)c->group);
		if (seg->length >> a.cluster_log2 > elements)
			elements = seg->length >> a.cluster_log2;
	}
	a.job.vectors = hzi_hadamard_vectors(&dims);
	a.job.group_log2 = row_group ? HZI_GROUP_IS_ROW : hzi_log2(c->group);
	memcpy(a.dim, dims.d, sizeof(a.dim));
	a.words = t->plan.seg[0].base ? t->plan.seg[0].base->words : 0;
	launch.block[0] = elements > TILE_ELEMENTS ? 512 : elements > 1024 ? 256 : 128;
	launch.shared_bytes = (unsigned)shared_bytes(elements + QUANTIZE_FLOATS + 128);
	launch.cluster = 1u << a.cluster_log2;
	launch.grid[0] = (unsigned)min_of(a.job.vectors, 16 * (int64_t)c->device->sms)
			 << a.cluster_log2;
	return launch_kernel(ctx, c, &a, t->plan.seg[0].base, &launch);
}


int hzi_cuda_hadamard_strided(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;

	if (c->quantize)
		return launch_quantize(ctx, c);
	HZ_CHECK(hzi_hadamard_check_lengths(ctx, c));
	for (int s = 0; s < c->t->plan.nseg; s++)
		HZ_CHECK(hzi_hadamard_launch_strided(ctx, c, &c->t->plan.seg[s]));
	return HZ_OK;
}
