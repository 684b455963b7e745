/*
 * mhc.h - what implementations of hyper-connections get
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All that goes through memory is two operations and their gradients: streams (u = sum p_i X[i],
 * Y[i] = sum_j A_ij X[j] + q_i (f + bias)), which mix, add, post and expand are cases of, and pre
 * (coefficients of streams, and u of the same pass). Structs are read by the C compiler and by
 * nvcc: fixed-width types only.
 *
 * Slots find all checked: n is 1 .. 8, groups divides tokens (token t is of group t / (tokens /
 * groups)), views of weights are contiguous, strides of sizes of 1 and of empty views are those of
 * a contiguous array. tokens and channels may be 0 where something is left to be written: sums
 * over nothing are 0, mean squares of nothing too.
 */
#ifndef HZI_MHC_H
#define HZI_MHC_H

#include <stdint.h>

#include "hurwitz.h"

#define HZI_MHC_STREAMS 8
#define HZI_MHC_ROWS (2 * HZI_MHC_STREAMS + HZI_MHC_STREAMS * HZI_MHC_STREAMS)
#define HZI_MHC_LAYERS 64

/* Streams or branch values: (t, i, c) at data + t token + i stream + c channel, in elements */
struct hzi_mhc_array {
	void *data;			/* NULL: none */
	int64_t token, stream, channel;	/* stream 0: branch values */
};

/* Coefficients of group s: p, q (s, i) at data + s group + i row; a (s, i, j) + j column more */
struct hzi_mhc_coef {
	float *data;			/* NULL: none; a: the identity */
	int64_t group, row, column;
};

/* How coefficients are made */
struct hzi_mhc_rule {
	int32_t n, m;			/* streams, rows of phi */
	int32_t residual, map, order, iterations;
	uint32_t flags;			/* HZ_MHC_OLD_NEW | NORMALIZE */
	float eps, p_eps, q_scale, rms_eps, norm_eps;
};

struct hzi_mhc_shape {
	int64_t tokens, groups, channels;	/* T, S, C; groups divides tokens */
	int32_t n, dtype;			/* of streams and branch values */
};

/* p = sinkhorn(m) of `count` matrices: (k, i, j) at data + k group + i row + j column */
struct hzi_mhc_sinkhorn_args {
	int64_t count;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_coef m, p;
};

struct hzi_mhc_sinkhorn_bwd_args {
	int64_t count;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_coef m, dp, dm;
};

/*
 * u = sum_i p_i X[i] if u.data; Y[i] = sum_j A_ij X[j] + q_i (f + bias) if y.data. x.data NULL: X =
 * 0; a.data NULL: Y[i] = X[i] + ...; f.data NULL: no such term; q.data NULL: q = 1.
 */
struct hzi_mhc_streams_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array x, f, u, y;
	struct hzi_mhc_coef p, q, a;
	const float *bias;		/* [C], contiguous */
};

/*
 * dX[j] = p_j du + sum_i A_ij dY[i] (a.data NULL: dY[j]); df = sum_i q_i dY[i] (q.data NULL: q =
 * 1); dp_j = <du, X[j]>, dq_i = <dY[i], f + bias>, dA_ij = <dY[i], X[j]>, sums over C and the
 * tokens of a group; dbias = the sum over all tokens of df before it is rounded. What is wanted
 * has data, and what it needs; du.data or dy.data NULL: 0. accumulate: dX and dbias are added to.
 */
struct hzi_mhc_streams_bwd_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array x, f, du, dy, dx, df;
	struct hzi_mhc_coef p, q, a, dp, dq, da;
	const float *bias;
	float *dbias;
	int32_t accumulate;
};

/*
 * Coefficients of x, u of the same pass: hz_mhc_pre(). With post.y.data x is not an operand: it is
 * post.y, which is made first of what `post` says, of the same shape, groups being tokens
 * (hz_mhc_post_pre()). phi NULL: y = 0; x.data is then NULL or only mixed. rule.m is n (p alone,
 * one alpha) or what the residual needs; of p, q, a and u what is wanted has data. groups <
 * tokens: of means.
 */
struct hzi_mhc_pre_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p, q, a;
	const float *phi, *alpha, *bias, *gain, *norm;
	float *saved;			/* [S, m + 1], contiguous; NULL: not wanted */
	struct hzi_mhc_streams_args post;
};

/*
 * hz_mhc_pre_bwd(): what comes in and what is wanted has data. phi, x and rule.m as above. dy:
 * dX[j] gets sum_i A_ij dY[i], and the gradient of a <dY[i], X[j]>, with a as the call made it.
 */
struct hzi_mhc_pre_bwd_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_array x, du, dy, dx;
	struct hzi_mhc_coef dp, dq, da;	/* gradients that come in */
	const float *phi, *alpha, *bias, *gain, *norm;
	const float *saved;		/* NULL: to be made anew */
	float *dphi, *dalpha, *dbias, *dgain, *dnorm;
	int32_t accumulate;
};

struct hzi_mhc_layer_args {
	struct hzi_mhc_coef p, q, a;
	struct hzi_mhc_array f, u, y;
	const float *bias;
};

struct hzi_mhc_recompute_args {
	struct hzi_mhc_shape s;		/* groups: of each layer the same */
	struct hzi_mhc_array x;
	int32_t layers;
	struct hzi_mhc_layer_args layer[HZI_MHC_LAYERS];
};

/* out[s] of a: (l, s, i, j) at a + l layer + s group + i row + j column */
struct hzi_mhc_diagnose_args {
	struct hzi_mhc_coef a;
	int64_t layer, layers, groups;
	int32_t n;
	float *out;
	int64_t out_row, out_column;
};

/* phi[i] = scale normal(i) (or 0), of counter-based numbers; alpha and bias from values */
struct hzi_mhc_init_args {
	float *phi, *alpha, *bias;	/* NULL: none */
	int64_t count;			/* of phi */
	int32_t rows, alphas;
	float scale;
	float alpha_value;
	float values[HZI_MHC_ROWS];	/* of bias */
	uint64_t seed;
};

#endif
