/*
 * hadamard.h - arguments of the implementations of the Hadamard calls
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_HADAMARD_H
#define HZI_HADAMARD_H

#include "lib/core/internal.h"

/*
 * A base matrix B of order m, B B^T = m I, as sign bits: entry (i, j) is -1 if bit j % 32 of
 * bits[i * words + j / 32] is set, else +1. Rows are padded with zero bits to whole words.
 */
struct hzi_base {
	int32_t id;		/* enum hz_base, never HZ_BASE_AUTO */
	int32_t m;
	int32_t words;		/* (m + 31) / 32 */
	int32_t symmetric;
	uint32_t bits[];
};

#define HZI_BASE_MAX 256	/* the largest order of any table */

/*
 * Sets *base to the base matrix with that id and order, which the context makes on first use and
 * keeps. Fails with HZ_ENOTSUP if there is no such table (op begins the message), or HZ_ENOMEM.
 */
int hzi_base_get(struct hz_context *ctx, const char *op, int id, int m,
		 const struct hzi_base **base);

/* The id that HZ_BASE_AUTO stands for at order m; 0 if there is no table. */
int hzi_base_auto(int m);

/*
 * `count` contiguous transforms of length m * 2^k in a block, the first at element offset. scale is
 * the caller's factor times 1/sqrt(length).
 */
struct hzi_segment {
	int64_t offset, count, length;
	int32_t m, k;			/* m = 1: Sylvester alone */
	const struct hzi_base *base;	/* NULL if m is 1 */
	float scale;
};

#define HZI_SEGMENTS 64		/* a greedy plan has at most one segment per power of two */

struct hzi_plan {
	int64_t n;		/* the sum of the segments */
	int32_t nseg;
	struct hzi_segment seg[HZI_SEGMENTS];
};

/* A diagonal matrix. kind: 0 (none), HZ_U8 (packed signs), or HZ_F32, HZ_F16, HZ_BF16 (factors) */
struct hzi_diag {
	int32_t kind;
	const void *data;
	int64_t block_step;	/* element i of block b has factor b * block_step + i; n or 0 */
};

/*
 * y = post o T(pre o x) for each item of the outer dimensions and each block. Element i of block b
 * of an item is at the item's offset + b * x_block + i * x_step.
 *
 * Outer dimensions are merged where strides allow it, and sorted so that the last one has the
 * smallest y_stride; ndim may be 0 (one item). Where no diagonal depends on the block and strides
 * allow it, outer dimensions are merged into the blocks: a contiguous matrix has ndim 0. Rows have
 * x_step = y_step = 1; columns have x_step > 1 and x_stride[ndim - 1] = 1. No size is 0. x and y
 * may be the same memory; then dtypes and strides are equal.
 *
 * transpose asks for the transposed base matrices and nothing else: pre and post are in the order
 * of application. Segment s has the f32 factor plan.seg[s].scale; with a post of factors the result
 * is fl(fl(t * scale) * post), with a post of signs the sign is flipped.
 */
struct hzi_hadamard_args {
	const void *x;
	void *y;
	int32_t x_dtype, y_dtype;
	int64_t blocks, x_block, y_block;
	int64_t x_step, y_step;
	int32_t ndim;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	struct hzi_diag pre, post;
	int32_t transpose;
	struct hzi_plan plan;
};

/* Checks a transform as hz_hadamard() does, and sets *bytes to the workspace that it needs. */
int hzi_hadamard_workspace(struct hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
			   const hz_hadamard_opts *opts, size_t *bytes);

/*
 * A transform with quantization. t.y is NULL, t.y_dtype HZ_F32; t.y_block, t.y_step and t.y_stride
 * are 0. Outer dimensions are merged for x, q and scale alike and never merged into blocks, so an
 * item is a row of t.blocks * t.plan.n elements. q and scale are contiguous within a row; strides
 * count elements of q (s4x2: bytes) and of scale. group divides the row.
 */
struct hzi_hadamard_quantize_args {
	struct hzi_hadamard_args t;
	void *q, *scale;
	int32_t q_dtype, scale_dtype;	/* HZ_S8 HZ_S4X2 HZ_E4M3 HZ_E5M2; HZ_F32 HZ_E8M0 */
	int32_t round_to;		/* 0, HZ_F16, HZ_BF16 */
	int64_t group;
	int64_t q_stride[HZ_MAXDIM], scale_stride[HZ_MAXDIM];
};

/*
 * Dequantization with a transform. t.x is NULL, t.x_dtype HZ_F32, its steps 0; otherwise as above.
 */
struct hzi_dequantize_hadamard_args {
	struct hzi_hadamard_args t;
	const void *q, *scale;
	int32_t q_dtype, scale_dtype;
	int64_t group;
	int64_t q_stride[HZ_MAXDIM], scale_stride[HZ_MAXDIM];
};

/*
 * A transform between floats and codes with scales and zero points that the caller gives. t is as
 * above, with x or y NULL. Element j of a row has parameter (the sum of index * p_stride) + j /
 * group; group divides the row. With one parameter for all elements, p_stride is 0 and group the
 * row length.
 */
struct hzi_rotated {
	struct hzi_hadamard_args t;
	int64_t q_step, group;
	int64_t q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM];
	int64_t r_stride[HZ_MAXDIM];	/* of the elements' numbers in C order, for any format */
};

/*
 * Fills *r from floats v, codes q and parameters p (NULL: one for all), whose shapes agree, but that
 * with group > 0 the last dimension of p counts groups of `group` elements and that of q packed
 * codes; then r_stride is filled, too. dequantize: from codes to floats. op begins error messages.
 */
int hzi_rotated_args(struct hz_context *ctx, const char *op, const char *v_name,
		     const hz_tensor *v, const char *q_name, const hz_tensor *q,
		     const hz_tensor *p, int64_t group, const hz_hadamard_opts *opts,
		     bool dequantize, struct hzi_rotated *r);

#endif
