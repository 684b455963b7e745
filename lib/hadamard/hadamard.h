/*
 * hadamard.h - what the Hadamard calls hand to their implementations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_HADAMARD_H
#define HZI_HADAMARD_H

#include "lib/core/internal.h"

/*
 * A base matrix, B B^T = m I, as sign bits: entry (i, j) is -1 if bit j % 32 of
 * bits[i * words + j / 32] is set, else +1. Rows are padded with zero bits to whole words.
 */
struct hzi_base {
	int32_t id;		/* enum hz_base, never HZ_BASE_AUTO */
	int32_t m;
	int32_t words;		/* (m + 31) / 32 */
	int32_t symmetric;
	uint32_t bits[];
};

#define HZI_BASE_MAX 256	/* the largest order that any table may have */

/*
 * The base matrix with that id and order, made on first use and kept by the context; NULL in *base
 * and HZ_OK is never returned. HZ_ENOTSUP (no such table; op goes into the sentence), HZ_ENOMEM.
 */
int hzi_base_get(struct hz_context *ctx, const char *op, int id, int m,
		 const struct hzi_base **base);

/* The id that HZ_BASE_AUTO means for an order, or 0 if there is no table. */
int hzi_base_auto(int m);

/*
 * A run of equal transforms inside one block: count of them, back to back, the first at offset,
 * each of length m * 2^k. scale has the caller's factor and the 1/sqrt(length) in it.
 */
struct hzi_segment {
	int64_t offset, count, length;
	int32_t m, k;			/* m = 1: Sylvester alone */
	const struct hzi_base *base;	/* NULL if m = 1 */
	float scale;
};

#define HZI_SEGMENTS 64		/* a greedy plan has at most one segment per power of two */

struct hzi_plan {
	int64_t n;		/* the sum of the segments */
	int32_t nseg;
	struct hzi_segment seg[HZI_SEGMENTS];
};

/* A diagonal factor: kind 0 (none), HZ_U8 (packed signs), HZ_F32, HZ_F16 or HZ_BF16 (factors). */
struct hzi_diag {
	int32_t kind;
	const void *data;
	int64_t block_step;	/* element i of block b has index b * block_step + i: n or 0 */
};

/*
 * y = post o T(pre o x) for each item of the outer dimensions and each of the blocks. Element i of
 * block b of an item lies at the item's offset + b * x_block + i * x_step.
 *
 * The outer dimensions are collapsed as far as strides allow and sorted so that the last has the
 * smallest y_stride; ndim may be 0 (one item). Where no diagonal steps with the block, and strides
 * allow it, outer dimensions are folded into blocks: a contiguous matrix of whole rows has ndim 0.
 * So rows are x_step = y_step = 1; columns are x_step > 1 with x_stride[ndim - 1] = 1.
 * No size is 0. x and y may be the same memory, then dtypes and strides are equal.
 *
 * transpose asks for the transposed base matrices alone: pre, post and the order of everything else
 * are already as they are to be applied. The f32 factor of segment s is plan.seg[s].scale; with a
 * post of factors the result is fl(fl(t * scale) * post); post signs flip the sign.
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

/*
 * The same with quantization: t.y is NULL, t.y_dtype HZ_F32 and t.y_block, t.y_step, t.y_stride are
 * 0; outer dimensions are collapsed for x, q and scale alike and never folded into blocks, so an
 * item is a row of t.blocks * t.plan.n elements. q and scale are contiguous within a row; strides
 * count elements of q and of scale (for s4x2 bytes). group divides the row.
 */
struct hzi_hadamard_quantize_args {
	struct hzi_hadamard_args t;
	void *q, *scale;
	int32_t q_dtype, scale_dtype;	/* HZ_S8 HZ_S4X2 HZ_E4M3 HZ_E5M2; HZ_F32 HZ_E8M0 */
	int32_t round_to;		/* 0, HZ_F16, HZ_BF16 */
	int64_t group;
	int64_t q_stride[HZ_MAXDIM], scale_stride[HZ_MAXDIM];
};

/* The way back: t.x is NULL, t.x_dtype HZ_F32, t.x_block, t.x_step, t.x_stride 0; else likewise. */
struct hzi_dequantize_hadamard_args {
	struct hzi_hadamard_args t;
	const void *q, *scale;
	int32_t q_dtype, scale_dtype;
	int64_t group;
	int64_t q_stride[HZ_MAXDIM], scale_stride[HZ_MAXDIM];
};

/*
 * Codes with scales and zeros that are given, on one side of a transform: t as above, of which x or
 * y is NULL; element j of a row has parameter (the sum of index * p_stride) + j / group, and group
 * divides the row. One for all: p_stride is 0 and group the row.
 */
struct hzi_rotated {
	struct hzi_hadamard_args t;
	int64_t q_step, group;
	int64_t q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM];
};

/*
 * Fills it from floats v, codes q and parameters p (NULL: one for all), which fit each other; back:
 * codes to floats. op begins the sentence of an error.
 */
int hzi_rotated_args(struct hz_context *ctx, const char *op, const char *v_name,
		     const hz_tensor *v, const char *q_name, const hz_tensor *q,
		     const hz_tensor *p, const hz_hadamard_opts *opts, bool back,
		     struct hzi_rotated *r);

#endif
