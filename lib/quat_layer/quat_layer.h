/*
 * quat_layer.h - what the layers of quaternion networks hand to their implementations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Layers are made of products of quaternion matrices and of a few steps around them. The plans are
 * the same for all devices: lib/quat_layer/linear.c and batchnorm.c, lib/quat_conv/plan.c. A device
 * gives the steps.
 * Structs are read by the C compiler and by nvcc: fixed-width types only. What a step does to one
 * element is in lib/quat_layer/step_math.h, for both.
 */
#ifndef HZI_QUAT_LAYER_H
#define HZI_QUAT_LAYER_H

#include <stdint.h>

#include "hurwitz.h"

#define HZI_QDIM 6

/* What steps compute in: f64 on the CPU, whatever the dtype, and f32 on a GPU */
#ifdef __CUDACC__
typedef float hzi_qreal;
#else
typedef double hzi_qreal;
#endif

/*
 * An array of quaternions: component c (0 w, 1 x, 2 y, 3 z) of element i is at data + the sum of
 * i[d] * stride[d] + comp[c], in elements. The shape is told elsewhere.
 */
struct hzi_qarray {
	void *data;			/* NULL: none */
	int64_t stride[HZI_QDIM];
	int64_t comp[4];
	int32_t dtype;
	int32_t whole;			/* components 0 1 2 3, aligned: one load takes all */
};

enum hzi_qmap_kind {
	HZI_QMAP_COPY,			/* out = a */
	HZI_QMAP_ACT,			/* pre = a + b, out = act(pre); b, pre: if they are there */
	HZI_QMAP_ACT_BWD,		/* out = the gradient of act at a; b: of its result */
	HZI_QMAP_DROPOUT,		/* out = a * scale, or 0 */
	HZI_QMAP_INIT,			/* out = random */
	HZI_QMAP_AFFINE,		/* out = coef[c] of a: struct hzi_qaffine */
	HZI_QMAP_AFFINE_BWD,		/* out = coef[c] of a and b: struct hzi_qaffine_bwd */
};

/* out[i] = f(a[i], b[i]) for all i of a shape; the last dimension is that of channels. */
struct hzi_qmap_args {
	struct hzi_qarray a, b, out, pre;
	int64_t total;			/* elements: quaternions */
	int64_t shape[HZI_QDIM];
	int32_t ndim, kind;
	int32_t accumulate;		/* out is added to; COPY and ACT_BWD */
	int32_t pure;			/* 1: the real part of a is 0; 2: that of out is left */
	int32_t activation, init;
	double slope, scale, drop;
	uint64_t seed, offset;
	const void *coef;
};

/* y = m (x - mean) + shift; dx = m dy + n (x - mean) + shift, matrices by rows */
struct hzi_qaffine {
	hzi_qreal m[16], mean[4], shift[4];
};

struct hzi_qaffine_bwd {
	hzi_qreal m[16], n[16], mean[4], shift[4];
};

/*
 * Patches of x: out[r][g][t][c] = x[image][s u + e t + base][g channels + c], in each of three
 * dimensions, 0 where that is outside of x; r + first counts image and u in index order, t taps.
 * x.stride is that of the image, of three dimensions and of channels. out is back to back.
 */
struct hzi_qpatch_args {
	struct hzi_qarray x;
	void *out;
	int64_t first, rows, groups, channels;	/* channels: of a group */
	int64_t size[3], count[3], taps[3];	/* of x; of u; of t */
	int64_t step[3], each[3], base[3];	/* s, e and base */
};

enum hzi_qsum_kind {
	HZI_QSUM_PLAIN,			/* 4: sums of a */
	HZI_QSUM_SQUARES,		/* 10: of (a - mean) (a - mean)^T, upper triangle by rows */
	HZI_QSUM_CROSS,			/* 20: of b, then of b z^T with z = m (a - mean) */
	HZI_QSUM_MOMENTS,		/* 14: of a - p and (a - p) (a - p)^T; mean gets p, row 0 */
};

/* Values of one channel that a kind sums */
#define HZI_QSUM_VALUES(kind) \
	((kind) == HZI_QSUM_PLAIN ? 4 : (kind) == HZI_QSUM_SQUARES ? 10 : \
	 (kind) == HZI_QSUM_MOMENTS ? 14 : 20)
#define HZI_QSUM_CHUNKS 256

/*
 * Sums over rows, for each channel: rows are cut into chunks of so many, whose sums are put at
 * part[(chunk * channels + channel) * values]. The last dimension of the shape is the channel.
 * mean: [channels][4], or saved [channels][14]: the mean and the lower triangle of m by rows.
 * Which chunks there are depends on the shape alone.
 */
struct hzi_qsum_args {
	struct hzi_qarray a, b;
	int64_t rows, channels, chunk, chunks;
	int64_t shape[HZI_QDIM];	/* without channels */
	int32_t ndim, kind;
	void *mean;			/* f32; f64 on the CPU if a is */
	int32_t mean_step, mean_dtype;	/* from channel to channel */
	double *part;
};

/* What comes of sums: the order of the enumerators is that of use. */
enum hzi_qfinish_kind {
	HZI_QFINISH_BIAS,		/* out = the sum, or += */
	HZI_QFINISH_MEAN,		/* saved gets the mean */
	HZI_QFINISH_NORM,		/* and m; running values; coef: struct hzi_qaffine */
	HZI_QFINISH_MOMENTS,		/* both; saved has p of HZI_QSUM_MOMENTS */
	HZI_QFINISH_NORM_BWD,		/* dgamma, dbeta; coef: struct hzi_qaffine_bwd */
};

struct hzi_qfinish_args {
	const double *part;
	int64_t chunks, rows, channels;	/* chunks 0: running values are used instead */
	int32_t kind, accumulate;
	struct hzi_qarray out;		/* BIAS; stride[0] is that of channels */
	int32_t whiten, eval, dtype, pad_;	/* dtype of all below: f32, or f64 on the CPU */
	const void *gamma, *beta;	/* NULL: 1 and 0 */
	void *running_mean, *running_var, *dgamma, *dbeta;	/* NULL: none */
	void *saved;			/* [channels][14] */
	void *coef;
	int32_t order[4];		/* component c of means, beta, dbeta is at order[c] */
	double eps, momentum;
};

/* Pooling over three dimensions; shapes as of patches. */
struct hzi_qpool_args {
	struct hzi_qarray x, y;		/* the gradients in the backward pass */
	int32_t *index;			/* NULL: none */
	int64_t index_stride[HZI_QDIM];
	int64_t images, channels;
	int64_t size[3], count[3], window[3], step[3], pad[3];
	int32_t max, accumulate;
};

/*
 * Rotations: r[3 n + i][ld (3 m + j)] = the 3 x 3 matrix of q[n][m], times scale[n][m] / |q|^2; or
 * (bwd) dq and dscale from its gradient r.
 */
struct hzi_qrotation_args {
	struct hzi_qarray q, dq;
	const void *scale;		/* of the dtype of q; NULL: 1 */
	void *dscale;
	void *r;			/* f32, f64 if q is; rows of ld */
	int64_t n, m, ld, scale_row, scale_col, dscale_row, dscale_col;
	int32_t r_dtype, scale_dtype, inverse, accumulate;
};

#ifndef __CUDACC__

#include "lib/quat_gemm/quat_gemm.h"

/* What a device does around products; each is of this context's kind and in its stream's order. */
struct hzi_quat_steps {
	int (*map)(struct hz_context *ctx, const char *op, const struct hzi_qmap_args *a);
	int (*sum)(struct hz_context *ctx, const char *op, const struct hzi_qsum_args *a);
	int (*finish)(struct hz_context *ctx, const char *op, const struct hzi_qfinish_args *a);
	int (*rotation)(struct hz_context *ctx, const char *op, const struct hzi_qrotation_args *a,
			bool backward);
	int (*zero)(struct hz_context *ctx, const char *op, void *p, size_t bytes);
	bool moments;			/* sum() has HZI_QSUM_MOMENTS, which pays */
	int64_t tiles;			/* of 64 x 64 that the device wants in a product; 0: any */
	int64_t most;			/* rows, columns and terms that products may have; 0: any */
};

extern const struct hzi_quat_steps hzi_cpu_quat_steps, hzi_cuda_quat_steps;

/* An array with its shape, in quaternions */
struct hzi_qtensor {
	struct hzi_qarray a;
	int64_t shape[HZI_QDIM];
	int32_t ndim;
};

/* What linear layers and convolutions have in common */
struct hzi_qlayer {
	struct hzi_qtensor x, w, b, y, pre;	/* y: dy in backward passes; pre, b: maybe none */
	struct hzi_qtensor dx, dw, db;		/* outputs of backward passes; maybe none */
	const void *packed;			/* instead of w */
	int32_t layout;
	int32_t method, precision, activation, reversed, accumulate;
	double slope;
};

struct hzi_quat_linear_args {
	struct hzi_qlayer l;
	int32_t rotate;
	const void *scale;
	void *dscale;
	int64_t scale_row, scale_col, dscale_row, dscale_col;
};

struct hzi_quat_batchnorm_args {
	struct hzi_qtensor x, y, dx;		/* y: dy in the backward pass */
	struct hzi_qfinish_args f;		/* but sums and coefficients */
};

struct hzi_quat_linear_bwd_args {
	struct hzi_quat_linear_args f;
};

struct hzi_quat_batchnorm_bwd_args {
	struct hzi_quat_batchnorm_args f;
};

struct hzi_quat_pool_args {
	struct hzi_qpool_args p;
};

struct hzi_quat_pool_bwd_args {
	struct hzi_qpool_args p;
};

struct hzi_quat_dropout_args {
	struct hzi_qmap_args m;
};

struct hzi_quat_init_args {
	struct hzi_qmap_args m;
};

/* ---- lib/quat_layer/check.c ------------------------------------------------------------------ */

/* One operand of a call. A view of NULL is one that is left out, if it may be. */
struct hzi_qoperand {
	const char *name;
	const hz_tensor *t;
	bool output;
};

/*
 * HZ_OK if t is quaternions of that dtype (0: any that the device has) and number of dimensions,
 * that of components counted; then *q is what it is.
 */
int hzi_quat_check(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		   int dtype, int min_ndim, int max_ndim, bool output, uint32_t flags,
		   struct hzi_qtensor *q);

/* HZ_OK if size d of a tensor is what it must be, as the text says */
int hzi_quat_check_size(struct hz_context *ctx, const char *op, const char *name, int d,
			int64_t size, int64_t wanted, const char *as);

/* HZ_OK if no output overlaps another operand; in place: the two of these names may be one view. */
int hzi_quat_check_apart(struct hz_context *ctx, const char *op, const struct hzi_qoperand *list,
			 int n, const char *in, const char *place);

int hzi_quat_check_range(struct hz_context *ctx, const char *op, const char *name, int64_t value,
			 int64_t low, int64_t high);
int hzi_quat_check_flags(struct hz_context *ctx, const char *op, uint32_t flags, uint32_t known);

/* The options that linear layers and convolutions have in common; they go into *l. */
int hzi_quat_check_options(struct hz_context *ctx, const char *op, int32_t side, int32_t method,
			   int32_t precision, int32_t activation, const int64_t *reserved,
			   struct hzi_qlayer *l);

/* A bias, or its gradient, of so many channels; b may be NULL. */
int hzi_quat_check_bias(struct hz_context *ctx, const char *op, const char *name,
			const hz_tensor *b, int dtype, int64_t channels, const char *as,
			bool output, uint32_t flags, struct hzi_qtensor *q);

/* ---- Plans: lib/quat_layer/plan.c, linear.c, batchnorm.c ------------------------------------- */

/*
 * A map over the shape of out; a, b and pre of its shape, or NULL. Dimensions that step together
 * become one, but for that of channels if it is said.
 */
struct hzi_qmap_args hzi_quat_map_args(int kind, const struct hzi_qtensor *out,
				       const struct hzi_qarray *a, const struct hzi_qarray *b,
				       const struct hzi_qarray *pre, bool channels);

/* The arrays and the shape of sums over all dimensions but the last; b may be NULL. */
void hzi_quat_sum_shape(struct hzi_qsum_args *s, const struct hzi_qtensor *a,
			const struct hzi_qtensor *b);

/*
 * The layers by a device's steps. bytes != NULL: nothing is done, *bytes becomes the workspace that
 * doing it takes.
 */
int hzi_quat_linear_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
		       const struct hzi_quat_linear_args *a, bool backward, size_t *bytes);
int hzi_quat_batchnorm_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			  const struct hzi_quat_batchnorm_args *a, bool backward, size_t *bytes);

#endif
#endif
