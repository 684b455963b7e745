/*
 * quat_layer.h - layers of quaternion networks: the steps of a device, and their arguments
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A layer is a plan of quaternion matrix products and of steps around them. Plans are the same for
 * all devices: lib/quat_layer/linear.c and batchnorm.c, lib/quat_conv/plan.c. A device provides the
 * steps.
 *
 * The C compiler and nvcc both read these structs: fixed-width types only. What a step does to one
 * element is in lib/quat_layer/step_math.h, for both.
 */
#ifndef HZI_QUAT_LAYER_H
#define HZI_QUAT_LAYER_H

#include <stdint.h>

#include "hurwitz.h"

#define HZI_QUAT_LAYER_DIMS 6

/* The arithmetic of steps: f64 on the CPU for every dtype, f32 on a GPU */
#ifdef __CUDACC__
typedef float hzi_quat_real;
#else
typedef double hzi_quat_real;
#endif

/*
 * An array of quaternions: component c (0 w, 1 x, 2 y, 3 z) of element i is at data + the sum of
 * i[d] * stride[d] + comp[c], in elements. Its shape is stored elsewhere.
 */
struct hzi_quat_array {
	void *data;			/* NULL: none */
	int64_t stride[HZI_QUAT_LAYER_DIMS];
	int64_t comp[4];
	int32_t dtype;
	int32_t whole;			/* contiguous, aligned components: one load */
};

enum hzi_quat_map_step_kind {
	HZI_QUAT_MAP_COPY,		/* out = a */
	HZI_QUAT_MAP_ACT,		/* pre = a + b, out = act(pre); b, pre: optional */
	HZI_QUAT_MAP_ACT_BWD,		/* out = the gradient at a, from b, that at act(a) */
	HZI_QUAT_MAP_DROPOUT,		/* out = a * scale, or 0 */
	HZI_QUAT_MAP_INIT,		/* out = random */
	HZI_QUAT_MAP_AFFINE,		/* out = coef[c] of a: struct hzi_quat_affine */
	HZI_QUAT_MAP_AFFINE_BWD,	/* out = coef[c] of a and b: struct hzi_quat_affine_bwd */
};

/* out[i] = f(a[i], b[i]) for all i of a shape whose last dimension is channels */
struct hzi_quat_map_step {
	struct hzi_quat_array a, b, out, pre;
	int64_t total;			/* elements: quaternions */
	int64_t shape[HZI_QUAT_LAYER_DIMS];
	int32_t ndim, kind;
	int32_t accumulate;		/* add to out; COPY and ACT_BWD */
	int32_t pure;			/* 1: the real part of a is 0; 2: that of out is kept */
	int32_t activation, init;
	double slope, scale, drop;
	uint64_t seed, offset;
	const void *coef;
};

/* y = m (x - mean) + shift; dx = m dy + n (x - mean) + shift. Matrices are row-major. */
struct hzi_quat_affine {
	hzi_quat_real m[16], mean[4], shift[4];
};

struct hzi_quat_affine_bwd {
	hzi_quat_real m[16], n[16], mean[4], shift[4];
};

/*
 * Patches of x (im2col): out[r][g][t][c] = x[image][step * u + each * t + base][g * channels + c]
 * with u, t and the pixel in three dimensions, or 0 outside x. r + first counts image and u in
 * index order, t the taps. x.stride: image, three dimensions, channel. out is contiguous.
 */
struct hzi_quat_patch_step {
	struct hzi_quat_array x;
	void *out;
	int64_t first, rows, groups, channels;	/* channels: of a group */
	int64_t size[3], count[3], taps[3];	/* of x; of u; of t */
	int64_t step[3], each[3], base[3];
};

enum hzi_quat_sum_step_kind {
	HZI_QUAT_SUM_PLAIN,		/* 4: sums of a */
	HZI_QUAT_SUM_CROSS,		/* 20: of b, then of b z^T with z = m (a - mean) */
	HZI_QUAT_SUM_MOMENTS,		/* 14: of a - p and (a - p) (a - p)^T; mean gets p, row 0 */
	/* 10: of (a - mean) (a - mean)^T, upper triangle by rows; not on a GPU */
	HZI_QUAT_SUM_SQUARES,
};

/* Number of sums per channel of a kind */
#define HZI_QUAT_SUM_VALUES(kind) \
	((kind) == HZI_QUAT_SUM_PLAIN ? 4 : (kind) == HZI_QUAT_SUM_SQUARES ? 10 : \
	 (kind) == HZI_QUAT_SUM_MOMENTS ? 14 : 20)
#define HZI_QUAT_SUM_CHUNKS 256

/*
 * Sums over rows, per channel, in chunks of `chunk` rows: chunk i, channel c gives part[(i *
 * channels + c) * values ...]. The chunks depend on the shape only, so that the result has the same
 * bits for any number of threads. mean: [channels][4], or saved [channels][14]: the mean and the
 * lower triangle of m, row-major.
 */
struct hzi_quat_sum_step {
	struct hzi_quat_array a, b;
	int64_t rows, channels, chunk, chunks;
	int64_t shape[HZI_QUAT_LAYER_DIMS];	/* without channels */
	int32_t ndim, kind;
	void *mean;			/* f32; f64 on the CPU if a is */
	int32_t mean_step, mean_dtype;	/* mean_step: stride of channels */
	double *part;
};

/* Finishing a sum over chunks; kinds in their order of use */
enum hzi_quat_finish_step_kind {
	HZI_QUAT_FINISH_BIAS,		/* out = the sum, or += */
	HZI_QUAT_FINISH_MEAN,		/* saved gets the mean; not on a GPU */
	HZI_QUAT_FINISH_NORM,		/* saved gets m; running values; struct hzi_quat_affine */
	HZI_QUAT_FINISH_MOMENTS,	/* MEAN and NORM; saved holds p of HZI_QUAT_SUM_MOMENTS */
	HZI_QUAT_FINISH_NORM_BWD,	/* dgamma, dbeta; coef: struct hzi_quat_affine_bwd */
};

struct hzi_quat_finish_step {
	const double *part;
	int64_t chunks, rows, channels;	/* chunks 0: use running values */
	int32_t kind, accumulate;
	struct hzi_quat_array out;		/* BIAS; stride[0] is the stride of channels */
	int32_t whiten, eval, dtype, pad_;	/* dtype of all below: f32, or f64 on the CPU */
	const void *gamma, *beta;	/* NULL: 1 and 0 */
	void *running_mean, *running_var, *dgamma, *dbeta;	/* NULL: none */
	void *saved;			/* [channels][14] */
	void *coef;
	int32_t order[4];		/* position of component c of means, beta, dbeta */
	double eps, momentum;
};

/* Pooling over three dimensions, shapes as in struct hzi_quat_patch_step */
struct hzi_quat_pool_step {
	struct hzi_quat_array x, y;		/* the gradients in the backward pass */
	int32_t *index;			/* NULL: none */
	int64_t index_stride[HZI_QUAT_LAYER_DIMS];
	int64_t images, channels;
	int64_t size[3], count[3], window[3], step[3], pad[3];
	int32_t max, accumulate;
};

/*
 * Rotations: number 3 m + j of row 3 n + i of r = element i, j of the 3 x 3 matrix of q[n][m],
 * times scale[n][m]; or (bwd) dq and dscale from the gradient of r. The matrix is 1 + D(q) / d^2,
 * where D is what is quadratic in q, and d^2 = |q|^2 + eps, or with eps_norm d = |q| + eps; 0 where
 * d is 0.
 */
struct hzi_quat_rotation_step {
	struct hzi_quat_array q, dq;
	const void *scale;		/* of the dtype of q; NULL: 1 */
	void *dscale;
	void *r;			/* f32, f64 if q is; rows of ld, numbers r_step apart */
	int64_t n, m, ld, r_step, scale_row, scale_col, dscale_row, dscale_col;
	double eps;
	int32_t r_dtype, scale_dtype, inverse, accumulate, eps_norm, pad_;
};

/*
 * One step of time of a recurrent layer, of all sequences and directions. Direction 0 is at the
 * time `step`, direction 1 at steps - 1 - step. A state has 4 hidden numbers of each sequence and
 * direction, the K gates and `pre` have 4 K hidden: in the order w, x, y, z of the first quaternion,
 * of the next, or if `planar` all w, all x, all y, all z. Gate k is the numbers from 4 k hidden on.
 */
struct hzi_quat_cell_step {
	struct hzi_quat_array z, y;	/* time, batch, direction, channel; backward: dz, dy */
	/*
	 * Direction, batch, channel; whole: h of the dtype of y, operand of the next product.
	 * Backward: dz.
	 */
	struct hzi_quat_array operand;
	struct hzi_quat_array before;	/* backward: as y, h before each step; NULL: none */
	const float *pre;		/* [directions][batch]: U h; not backward */
	float *h, *c;			/* [directions][batch]: states; backward: dh, dc */
	const float *h0, *c0;		/* backward: the states before the first step */
	float *saved;			/* [steps][batch][directions][values]: of gates, c, h */
	const int32_t *lengths;		/* [batch]; NULL: steps */
	int64_t length_stride;
	int64_t steps, step, batch, directions, hidden;
	int32_t cell, activation, planar;
	float slope;
};

/* Rows of u that a block of a fused step reads: 32 / K neurons of the first gate, the next, ... */
#define HZI_QUAT_CELL_ROWS 32

/* Gates of a cell; numbers of `saved` for each of a state */
#define HZI_QUAT_CELL_GATES(cell) \
	((cell) == HZ_QUAT_CELL_LSTM ? 4 : (cell) == HZ_QUAT_CELL_LIGRU ? 2 : 1)
#define HZI_QUAT_CELL_SAVED(cell) \
	((cell) == HZ_QUAT_CELL_RNN ? 1 : HZI_QUAT_CELL_GATES(cell) + 1)

#ifndef __CUDACC__

#include "lib/quat_gemm/quat_gemm.h"

/*
 * All forward steps. Even ones read the states of the cell's operand and write those of `other`,
 * odd ones the other way: neurons of `columns` sequences each.
 */
struct hzi_quat_all_steps {
	struct hzi_quat_array u;	/* direction, row, column: rows of contiguous quaternions */
	struct hzi_quat_cell_step cell;
	void *other;
	uint32_t *done;			/* 0; one for each neuron of a state of 8 sequences */
	int64_t columns;
};

/* The steps of a device, which run in the order of the context's stream */
struct hzi_quat_steps {
	int (*map)(struct hz_context *ctx, const char *op, const struct hzi_quat_map_step *a);
	int (*sum)(struct hz_context *ctx, const char *op, const struct hzi_quat_sum_step *a);
	int (*finish)(struct hz_context *ctx, const char *op, const struct hzi_quat_finish_step *a);
	int (*rotation)(struct hz_context *ctx, const char *op,
			const struct hzi_quat_rotation_step *a, bool backward);
	int (*zero)(struct hz_context *ctx, const char *op, void *p, size_t bytes);
	int (*cell)(struct hz_context *ctx, const char *op, const struct hzi_quat_cell_step *a,
		    bool backward);
	/*
	 * Whether fused_cell() makes forward steps of that layer: the product g, whose A has rows
	 * of HZI_QUAT_CELL_ROWS and whose C is not stored, and the cell, whose operand is another
	 * buffer than the product's B. NULL: of none
	 */
	bool (*fuses)(const struct hz_context *ctx, const struct hzi_quat_cell_step *a);
	int (*fused_cell)(struct hz_context *ctx, const char *op,
			  const struct hzi_quat_gemm_args *g, const struct hzi_quat_cell_step *a);
	/*
	 * all_steps() makes all forward steps of a layer in one kernel. persists(): the sequences
	 * of its states, slices of a block padded; 0: unsupported. NULL: always 0
	 */
	int64_t (*persists)(const struct hz_context *ctx, const struct hzi_quat_cell_step *a);
	int (*all_steps)(struct hz_context *ctx, const char *op,
			 const struct hzi_quat_all_steps *a);
	bool moments;			/* sum() supports HZI_QUAT_SUM_MOMENTS: one pass, not two */
	int64_t tiles;			/* 64 x 64 tiles that fill the device; 0: any */
	int64_t most;			/* limit of rows, columns and terms; 0: none */
	int64_t gemv;			/* most columns of a product that reads A best in place */
};

extern const struct hzi_quat_steps hzi_cpu_quat_steps, hzi_cuda_quat_steps;

/* An array with its shape, in quaternions */
struct hzi_quat_tensor {
	struct hzi_quat_array a;
	int64_t shape[HZI_QUAT_LAYER_DIMS];
	int32_t ndim;
};

/* The operands and options that linear layers and convolutions share */
struct hzi_quat_layer {
	struct hzi_quat_tensor x, w, b, y, pre;	/* y: dy if backward; pre, b are optional */
	struct hzi_quat_tensor dx, dw, db;	/* backward; optional */
	const void *packed;			/* instead of w */
	int32_t layout;
	int32_t method, precision, activation, reversed, accumulate;
	double slope;
};

/* Weights that rotate vectors: the options of struct hzi_quat_rotation_step */
struct hzi_quat_rotation_opts {
	const void *scale;
	void *dscale;
	int64_t scale_row, scale_col, dscale_row, dscale_col;
	double eps;
	int32_t rotate, eps_norm;
};

struct hzi_quat_linear_args {
	struct hzi_quat_layer l;
	struct hzi_quat_rotation_opts rotation;
};

struct hzi_quat_batchnorm_args {
	struct hzi_quat_tensor x, y, dx;		/* y: dy in the backward pass */
	struct hzi_quat_finish_step f;		/* without part and coef */
	/*
	 * 0, or statistics per step: channels of f are those of `steps` steps, which share gamma
	 * and beta
	 */
	int64_t steps;
};

struct hzi_quat_linear_bwd_args {
	struct hzi_quat_linear_args f;
};

struct hzi_quat_batchnorm_bwd_args {
	struct hzi_quat_batchnorm_args f;
};

/* Backward: y is dy, hn and cn are dhn and dcn. z, h0, hn, ...: optional ones have no data. */
struct hzi_quat_recurrent_args {
	struct hzi_quat_layer l;		/* w, dw: u, du, of all directions */
	struct hzi_quat_tensor z, h0, c0, y, hn, cn;
	struct hzi_quat_tensor dz, dh0, dc0;
	struct hzi_quat_cell_step step;		/* of step 0; without what is in the workspace */
};

struct hzi_quat_recurrent_bwd_args {
	struct hzi_quat_recurrent_args f;
};

struct hzi_quat_pool_args {
	struct hzi_quat_pool_step p;
};

struct hzi_quat_pool_bwd_args {
	struct hzi_quat_pool_step p;
};

struct hzi_quat_dropout_args {
	struct hzi_quat_map_step m;
};

struct hzi_quat_init_args {
	struct hzi_quat_map_step m;
};

/* ---- lib/quat_layer/check.c ------------------------------------------------------------------ */

/* One operand of a call; t is NULL if an optional one is absent. */
struct hzi_quat_layer_view {
	const char *name;
	const hz_tensor *t;
	bool output;
};

/*
 * HZ_OK and *q if t holds quaternions of that dtype (0: any that the device supports). min_ndim and
 * max_ndim count the dimension of components.
 */
int hzi_quat_check(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		   int dtype, int min_ndim, int max_ndim, bool output, uint32_t flags,
		   struct hzi_quat_tensor *q);

/*
 * While ctx records operands without data, whose addresses say nothing, clears `whole` of all
 * arrays; true if it was set. The workspace of the call is the larger one of both.
 */
bool hzi_quat_misalign(const struct hz_context *ctx, struct hzi_quat_layer *l);

/* HZ_OK if shape[d] of a tensor is `wanted`; `as` ends the message with the reason. */
int hzi_quat_check_size(struct hz_context *ctx, const char *op, const char *name, int d,
			int64_t size, int64_t wanted, const char *as);

/*
 * HZ_OK if no output overlaps another operand, except that `in` and `same_out` may be the same view
 */
int hzi_quat_check_apart(struct hz_context *ctx, const char *op,
			 const struct hzi_quat_layer_view *list, int n, const char *in,
			 const char *same_out);

int hzi_quat_check_range(struct hz_context *ctx, const char *op, const char *name, int64_t value,
			 int64_t low, int64_t high);
int hzi_quat_check_flags(struct hz_context *ctx, const char *op, const char *name, uint32_t flags,
			 uint32_t known);

/*
 * Checks a number of each of n spatial dimensions, at least `low`, where 0 stands for `zero`, and
 * that there are no others. *to has three dimensions: missing ones are prepended, with `low`.
 */
int hzi_quat_check_spatial(struct hz_context *ctx, const char *op, const char *name,
			   const int64_t *from, int n, int64_t low, int64_t zero, int64_t *to);

/* Checks eps and eps_rule, which need `rotate`, and stores them in *r. */
int hzi_quat_check_eps(struct hz_context *ctx, const char *op, bool rotate, double eps,
		       int32_t eps_rule, struct hzi_quat_rotation_opts *r);

/* Checks the options that linear layers and convolutions share, and stores them in *l. */
int hzi_quat_check_options(struct hz_context *ctx, const char *op, int32_t side, int32_t method,
			   int32_t precision, int32_t activation, const int64_t *reserved,
			   struct hzi_quat_layer *l);

/* Checks a bias or its gradient; b may be NULL. */
int hzi_quat_check_bias(struct hz_context *ctx, const char *op, const char *name,
			const hz_tensor *b, int dtype, int64_t channels, const char *as,
			bool output, uint32_t flags, struct hzi_quat_tensor *q);

/* ---- Plans: lib/quat_layer/plan.c, linear.c, batchnorm.c, recurrent.c ------------------------ */

/*
 * A map over the shape of out; a, b and pre have that shape or are NULL. Dimensions that are
 * contiguous in all arrays are merged; with `channels` except for the last one.
 */
struct hzi_quat_map_step hzi_quat_map_args(int kind, const struct hzi_quat_tensor *out,
					   const struct hzi_quat_array *a,
					   const struct hzi_quat_array *b,
					   const struct hzi_quat_array *pre, bool channels);

/* Sets arrays, shape and chunks for sums over all dimensions but the last; b may be NULL. */
void hzi_quat_sum_shape(struct hzi_quat_sum_step *s, const struct hzi_quat_tensor *a,
			const struct hzi_quat_tensor *b);

/* Runs a layer on a device's steps; if bytes is not NULL, only sets *bytes to its workspace. */
int hzi_quat_linear_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
		       const struct hzi_quat_linear_args *a, bool backward, size_t *bytes);
int hzi_quat_batchnorm_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			  const struct hzi_quat_batchnorm_args *a, bool backward, size_t *bytes);
int hzi_quat_recurrent_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			  const struct hzi_quat_recurrent_args *a, bool backward, size_t *bytes);

#endif
#endif
