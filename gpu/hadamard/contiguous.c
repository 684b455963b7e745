/*
 * contiguous.c - launches of contiguous rows of 2^k elements of one dtype
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/hadamard/contiguous.h"
#include "gpu/hadamard/launch.h"

#define SM_CLUSTERS 90		/* the first compute capability with clusters */
#define GRID_MAX 0x7fffffff
#define LOG2_MIN 5
#define LOG2_MAX 16

/*
 * A kernel's geometry; elements and shared memory are of a block, cluster is the blocks of a row.
 */
struct shape {
	int threads, elements, shared_bytes, cluster;
	int rows_per_block;		/* of a block, if there are more than two per SM */
	bool persistent;		/* one block per SM */
};

#define WARPS(n) \
	.threads = 32 * (n), .elements = 1024 * (n), .shared_bytes = HZI_WARP_BYTES * (n)

/* 16-bit rows up to 2^10, then of 2^11 to 2^16; f32 rows up to 2^7, then of 2^8 to 2^16 */
static const struct shape shapes_16bit[] = {
	{.threads = 32, .elements = 1024},
	{WARPS(2)},
	{WARPS(4)},
	{WARPS(8)},
	{.threads = 256, .elements = 1 << 14, .shared_bytes = 4 << 14,
	 .rows_per_block = HZI_BLOCK_ROWS},
	{.threads = 512, .elements = 1 << 15, .shared_bytes = 4 << 15, .persistent = true},
	/* raw data, and values of a quarter of the row */
	{.threads = 512, .elements = 1 << 16, .shared_bytes = (2 << 16) + (4 << 14),
	 .persistent = true},
}, shapes_f32[] = {
	{.threads = 128, .elements = 512},
	{.threads = 64, .elements = 512},
	{.threads = 32, .elements = 512},
	{WARPS(1)},
	{WARPS(2)},
	{WARPS(4)},
	{WARPS(8)},
	{WARPS(16)},
	{WARPS(32)},
	{WARPS(8), .cluster = 8},
};

/* Whether diag is absent, or packed signs in whole words, the same for every row */
static bool supports_signs(const struct hzi_diag *diag, bool one_row)
{
	return !diag->kind || (diag->kind == HZ_U8 && diag->block_step == 0 && one_row &&
			       (uintptr_t)diag->data % 4 == 0);
}

/* The index of the geometry for a length */
static int shape_of(const struct hzi_hadamard_args *a)
{
	const int k = a->plan.seg[0].k, least = a->x_dtype == HZ_F32 ? 7 : 10;

	return k > least ? k - least : 0;
}

static int64_t blocks_of(const struct hzi_hadamard_call *c, const struct shape *s)
{
	const int64_t sms = c->device->sms;
	int64_t blocks = ceil_div(c->t->blocks * c->t->plan.n, s->elements);

	if (s->rows_per_block && blocks > 2 * sms)
		blocks = ceil_div(blocks, s->rows_per_block);
	return s->persistent ? min_of(blocks, sms) : blocks;
}

const char *hzi_cuda_hadamard_contiguous_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_args *a = c->t;
	const struct hzi_segment *seg = &a->plan.seg[0];
	const char *why = hzi_hadamard_not_contiguous(a);
	const struct shape *s;

	(void)ctx;
	if (why)
		return why;
	if (seg->m > 1)
		return "the order has a base matrix";
	if (seg->k < LOG2_MIN || seg->k > LOG2_MAX)
		return "rows are not of 2^5 to 2^16 elements";
	if (!supports_signs(&a->pre, seg->count == 1) || !supports_signs(&a->post, seg->count == 1))
		return "factors are not packed signs, the same whole words for every row";
	s = (a->x_dtype == HZ_F32 ? shapes_f32 : shapes_16bit) + shape_of(a);
	if (s->shared_bytes > c->device->shared_block_bytes)
		return "rows exceed the shared memory of a block";
	if (s->cluster && c->device->sm < SM_CLUSTERS)
		return "f32 rows of 2^16 need clusters: compute capability 9.0";
	return blocks_of(c, s) > GRID_MAX ? "there are too many rows" : NULL;
}

static struct hzi_hadamard_contiguous parameters_of(const struct hzi_hadamard_args *a)
{
	const struct hzi_segment *seg = &a->plan.seg[0];

	return (struct hzi_hadamard_contiguous){
		.x = a->x, .y = a->y, .pre = a->pre.data, .post = a->post.data,
		.total = a->blocks * a->plan.n, .mask = seg->length - 1, .k = seg->k,
		.factor = seg->scale};
}

int hzi_cuda_hadamard_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_args *a = c->t;
	const struct hzi_hadamard_contiguous p = parameters_of(a);
	const int index = shape_of(a);
	const struct shape *s = (a->x_dtype == HZ_F32 ? shapes_f32 : shapes_16bit) + index;
	/* The kernel for signs, which can be launched early, serves short calls without, too. */
	const bool early = p.pre || p.post || hzi_hadamard_is_short(ctx, p.total);
	const int first = a->x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_contiguous_f16_10
			  : a->x_dtype == HZ_BF16 ? HZI_KERNEL_hadamard_contiguous_bf16_10
						  : HZI_KERNEL_hadamard_contiguous_f32_7;
	const struct hzi_launch launch = {.grid = {(unsigned)blocks_of(c, s)},
					  .block = {(unsigned)s->threads},
					  .shared_bytes = (unsigned)s->shared_bytes,
					  .cluster = (unsigned)s->cluster,
					  .early = early};

	return hzi_cuda_launch(ctx, c->op, first + 2 * index + early, &launch, &p, sizeof(p));
}

/* ---- Short calls ----------------------------------------------------------------------------- */

#define IN_REGISTERS_MAX 9
/*
 * Elements an SM up to which these are faster. On an H200, us: 512 x 1024 rows 1.68 and 1.74, 256 x
 * 1024 1.28 and 1.53, 256 x 4096 2.82 and 2.35.
 */
#define IN_REGISTERS_SHORT 4096

/* Rows of up to 2^7, of 2^8 and of 2^9 elements: a thread has 4 of each 128 */
static const struct shape shapes_in_registers[] = {
	{.threads = 128, .elements = 512},
	{.threads = 64, .elements = 512},
	{.threads = 32, .elements = 512},
};

const char *hzi_cuda_hadamard_in_registers_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const char *const why = hzi_cuda_hadamard_contiguous_unsupported(ctx, args);

	return why ? why : c->t->x_dtype == HZ_F32 || c->t->plan.seg[0].k > IN_REGISTERS_MAX ?
	       "rows are not of up to 2^9 16-bit elements" : NULL;
}

int64_t hzi_cuda_hadamard_in_registers_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_args *a = ((const struct hzi_hadamard_call *)args)->t;
	const int64_t most = (int64_t)IN_REGISTERS_SHORT * hzi_cuda_device(ctx)->sms;

	return a->blocks * a->plan.n <= most ? 1 : HZI_HADAMARD_LAST;
}

int hzi_cuda_hadamard_in_registers(struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_hadamard_contiguous p = parameters_of(c->t);
	const int index = p.k > 7 ? p.k - 7 : 0;
	const struct shape *s = &shapes_in_registers[index];
	const struct hzi_launch launch = {.grid = {(unsigned)blocks_of(c, s)},
					  .block = {(unsigned)s->threads}, .early = true};

	return hzi_cuda_launch(ctx, c->op, index + (c->t->x_dtype == HZ_F16 ?
			       HZI_KERNEL_hadamard_contiguous_short_f16_7 :
			       HZI_KERNEL_hadamard_contiguous_short_bf16_7), &launch, &p, sizeof(p));
}
