/*
 * routes.c - routes of the Hadamard calls on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Which route runs changes no bit of a transform in f32. With 16 bits or codes on either side
 * tensor cores may compute it, within the bounds of hurwitz.h.
 */
#include <config.h>

#include "gpu/hadamard/launch.h"
#include "lib/core/route.h"

#define ROW(name_, what_, function) \
	{.name = name_, .what = what_, .unsupported = hzi_cuda_##function##_unsupported, \
	 .run = hzi_cuda_##function}

/* Costs are ranks: the index of the row, or of a route that is not preferred one behind all. */
#define RANKED(name_, what_, function) \
	{.name = name_, .what = what_, .unsupported = hzi_cuda_##function##_unsupported, \
	 .cost = hzi_cuda_##function##_cost, .run = hzi_cuda_##function}

#define ROWS ROW("rows", "rows of 2^4 to 2^16 elements, any dtypes", hadamard_rows)
#define ROW_SEGMENTS \
	RANKED("row_segments", "rows of segments of several lengths 2^k, one launch", \
	       hadamard_row_segments)
#define BY_SEGMENT \
	ROW("by_segment", "segments of several lengths, each by its own route", hadamard_by_segment)
#define STRIDED \
	{.name = "strided", .what = "any order, length and strides", \
	 .run = hzi_cuda_hadamard_strided}

static const struct hzi_route hadamard[] = {
	ROW_SEGMENTS,
	RANKED("in_registers", "contiguous 16-bit rows of 2^5 to 2^9 elements, for few rows",
	       hadamard_in_registers),
	ROW("contiguous", "contiguous rows of 2^k elements of one dtype", hadamard_contiguous),
	ROW("base_mma", "contiguous 16-bit rows of m 2^k elements, tensor cores",
	    hadamard_base_mma),
	ROW("base_f32", "contiguous f32 rows of m 2^k elements", hadamard_base_f32),
	ROWS,
	ROW("base_rows", "rows of m 2^k elements, any dtypes", hadamard_base_rows),
	ROW("columns_16bit", "columns of 2^k elements of one 16-bit dtype", hadamard_columns_16bit),
	ROW("columns", "columns of 2^k elements, any dtypes", hadamard_columns),
	BY_SEGMENT,
	STRIDED,
};

static const struct hzi_route hadamard_quantize[] = {
	ROW_SEGMENTS,
	ROW("contiguous", "contiguous 16-bit rows of 2^k elements",
	    hadamard_quantize_contiguous),
	ROWS,
	STRIDED,
};

static const struct hzi_route dequantize_hadamard[] = {
	ROW("contiguous", "contiguous 16-bit rows of 2^k elements",
	    dequantize_hadamard_contiguous),
	ROWS,
	BY_SEGMENT,
	STRIDED,
};

enum {HADAMARD, QUANTIZE, DEQUANTIZE};

const struct hzi_op_routes hzi_cuda_hadamard_routes[] = {
	[HADAMARD] = HZI_RANKED_ROUTES(hadamard, hadamard),
	[QUANTIZE] = HZI_RANKED_ROUTES(hadamard_quantize, hadamard_quantize),
	[DEQUANTIZE] = HZI_ROUTES(dequantize_hadamard, dequantize_hadamard),
	{0},
};

static struct hzi_hadamard_job make_job(const struct hzi_hadamard_args *t)
{
	return (struct hzi_hadamard_job){
		.x = t->x, .y = t->y, .x_dtype = t->x_dtype, .y_dtype = t->y_dtype,
		.x_step = t->x_step, .y_step = t->y_step, .pre = t->pre.data,
		.pre_kind = t->pre.kind, .post = t->post.data, .post_kind = t->post.kind};
}

/* Strides of codes in elements; those of two in a byte are given in bytes. */
static void set_code_strides(struct hzi_hadamard_call *c, const int64_t *bytes, int dtype)
{
	for (int i = 0; i < c->t->ndim; i++)
		c->code_stride[i] = dtype == HZ_S4X2 ? 2 * bytes[i] : bytes[i];
}

int hzi_cuda_hadamard(struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	struct hzi_hadamard_launch prepared;
	const struct hzi_hadamard_call c = {
		.op = "hadamard", .prepared = &prepared, .device = hzi_cuda_device(ctx), .t = a,
		.job = make_job(a), .x_block = a->x_block, .y_block = a->y_block,
		.x_stride = a->x_stride, .y_stride = a->y_stride};

	return hzi_route_run(ctx, &hzi_cuda_hadamard_routes[HADAMARD], &c);
}

int hzi_cuda_hadamard_quantize(struct hz_context *ctx, const struct hzi_hadamard_quantize_args *a)
{
	const struct hzi_hadamard_args *t = &a->t;
	struct hzi_hadamard_launch prepared;
	struct hzi_hadamard_call c = {
		.op = "hadamard_quantize", .prepared = &prepared, .device = hzi_cuda_device(ctx),
		.t = t, .quantize = a, .job = make_job(t), .x_block = t->x_block,
		.y_block = t->plan.n, .x_stride = t->x_stride, .y_stride = c.code_stride,
		.scale_stride = a->scale_stride, .group = a->group};

	c.job.y = a->q;
	c.job.y_step = 1;
	c.job.y_dtype = a->q_dtype;
	c.job.scale = a->scale;
	c.job.scale_dtype = a->scale_dtype;
	c.job.round_to = a->round_to;
	set_code_strides(&c, a->q_stride, a->q_dtype);
	return hzi_route_run(ctx, &hzi_cuda_hadamard_routes[QUANTIZE], &c);
}

int hzi_cuda_dequantize_hadamard(struct hz_context *ctx,
				 const struct hzi_dequantize_hadamard_args *a)
{
	const struct hzi_hadamard_args *t = &a->t;
	struct hzi_hadamard_launch prepared;
	struct hzi_hadamard_call c = {
		.op = "dequantize_hadamard", .prepared = &prepared, .device = hzi_cuda_device(ctx),
		.t = t, .dequantize = a, .job = make_job(t), .x_block = t->plan.n,
		.y_block = t->y_block, .x_stride = c.code_stride, .y_stride = t->y_stride,
		.scale_stride = a->scale_stride, .group = a->group};

	c.job.x = a->q;
	c.job.x_step = 1;
	c.job.x_dtype = a->q_dtype;
	c.job.scale = (void *)(uintptr_t)a->scale;
	c.job.scale_dtype = a->scale_dtype;
	set_code_strides(&c, a->q_stride, a->q_dtype);
	return hzi_route_run(ctx, &hzi_cuda_hadamard_routes[DEQUANTIZE], &c);
}

HZI_NO_WORKSPACE(cuda, hadamard)

HZI_NO_WORKSPACE(cuda, hadamard_quantize)

HZI_NO_WORKSPACE(cuda, dequantize_hadamard)
