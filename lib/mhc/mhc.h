/*
 * mhc.h - arguments of the implementations of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Two operations and their gradients process all the data: mhc_streams (u = sum_i p_i X[i], Y[i] =
 * sum_j A_ij X[j] + q_i (f + bias)), of which mix, add, post and expand are special cases, and
 * mhc_pre, which computes coefficients of the streams and u in the same call. The C compiler and
 * nvcc both read these structs: fixed-width types only.
 *
 * lib/mhc has checked all arguments: n is 1 .. 8; groups divides tokens, and token t belongs to
 * group t / (tokens / groups); weights are contiguous; dimensions of size 1 and empty views have
 * the strides of a contiguous array. tokens and channels may be 0 if an output remains: an empty
 * sum or mean square is 0.
 */
#ifndef HZI_MHC_H
#define HZI_MHC_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

#include "hurwitz.h"

#define HZI_MHC_STREAMS 8
#define HZI_MHC_ROWS (2 * HZI_MHC_STREAMS + HZI_MHC_STREAMS * HZI_MHC_STREAMS)
#define HZI_MHC_LAYERS 64

/* Streams or branch values: (t, i, c) at data + t token + i stream + c channel, in elements */
struct hzi_mhc_array {
	void *data;			/* NULL: none */
	int64_t token, stream, channel;	/* in elements; stream is 0 for branch values */
};

/* Coefficients of group s: p, q (s, i) at data + s group + i row; a (s, i, j) at + j column more */
struct hzi_mhc_coef {
	float *data;			/* NULL: none; a: the identity */
	int64_t group, row, column;
};

/* How coefficients are computed: hz_mhc_opts in f32, with defaults filled in */
struct hzi_mhc_rule {
	int32_t n, m;			/* streams; rows of phi */
	int32_t residual, map, order, iterations;
	int32_t eps_rule, rms_eps_rule, rms;	/* rms_eps of FLOOR: over sqrt(numbers) */
	uint32_t flags;			/* HZ_MHC_OLD_NEW | NORMALIZE */
	float eps, p_eps, q_scale, q_eps, rms_eps, norm_eps;
	float z_min, z_max;		/* -Inf, Inf: no bound */
};

#define HZI_MHC_HEAD 0x80000000u	/* a flag of a rule: p is p_eps, of heads without weights */

/* Whether a rule has only the conventions that every kernel knows */
static inline bool hzi_mhc_is_common(const struct hzi_mhc_rule *r)
{
	return r->eps_rule == HZ_MHC_EPS_ADD && r->rms_eps_rule == HZ_MHC_RMS_EPS_INSIDE &&
	       r->rms == HZ_MHC_RMS_ALL && r->q_eps == 0 && r->z_min < -FLT_MAX &&
	       r->z_max > FLT_MAX;
}

struct hzi_mhc_shape {
	int64_t tokens, groups, channels;	/* T, S, C */
	int32_t n, dtype;			/* streams; dtype of streams and branch values */
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
 * 0; a.data NULL: A = I; f.data NULL: no branch term; q.data NULL: q = 1.
 */
struct hzi_mhc_streams_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array x, f, u, y;
	struct hzi_mhc_coef p, q, a;
	const float *bias;		/* [C], contiguous */
};

/*
 * dX[j] = p_j du + sum_i A_ij dY[i] (a.data NULL: dY[j]); df = sum_i q_i dY[i] (q.data NULL: q =
 * 1); dp_j = <du, X[j]>, dq_i = <dY[i], f + bias>, dA_ij = <dY[i], X[j]>, summed over C and the
 * tokens of a group; dbias = the sum over all tokens of df before rounding. A wanted output has
 * data, and so has each input that it needs; du.data or dy.data NULL: 0. accumulate: dX and dbias
 * are added to the previous values.
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
 * hz_mhc_pre(): coefficients of x, and u. If post.y.data is set (hz_mhc_post_pre()), x is no
 * operand: mhc_streams first makes post.y from `post`, with the same shape and groups = tokens, and
 * post.y replaces x. phi NULL: y = 0, and x is used for u only. rule.m is n (only p, one alpha) or
 * the number of rows that the residual needs. alpha: of p, q and a, NULL where there are none.
 * HZI_MHC_HEAD: p is p_eps, bias NULL. Wanted ones of p, q, a, u and saved have data. groups <
 * tokens: the coefficients of a group are those of the mean of its tokens.
 */
struct hzi_mhc_pre_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p, q, a, p_in;	/* p_in.data NULL: u by p */
	const float *phi, *alpha[3], *bias, *gain, *norm;
	float *saved;			/* [S, m + 1], contiguous; NULL: not wanted */
	struct hzi_mhc_streams_args post;
};

/*
 * hz_mhc_pre_bwd(): given gradients and wanted outputs have data. phi, x and rule.m are those of
 * the forward call. dy: sum_i A_ij dY[i] is added to dX[j], and <dY[i], X[j]> to the gradient of
 * A_ij, where A is what the forward call computed.
 */
struct hzi_mhc_pre_bwd_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_array x, du, dy, dx;
	struct hzi_mhc_coef dp, dq, da;	/* gradients that are given */
	struct hzi_mhc_coef p_in, dp_in;	/* dp_in is contiguous */
	const float *phi, *alpha[3], *bias, *gain, *norm;
	const float *saved;		/* NULL: recomputed */
	float *dphi, *dalpha[3], *dbias, *dgain, *dnorm;
	int32_t accumulate;
};

/*
 * Weights in f32, and in another order, for operations that take no others: element (r, j, i) of to
 * [rows][inner][outer] is (r, i, j) of from [rows][outer][inner], of `count` elements. Both are
 * contiguous. With outer 1 the order is the same.
 */
struct hzi_mhc_widen_args {
	const void *from;
	float *to;
	int64_t count, outer, inner;
	int32_t dtype, pad;
};

/* ---- Gated branch inputs: hz_mhc_gated_pre(), and the operations that it may consist of ------- */

/*
 * A token's numbers in f32, (i, c) at t n C + i stream + c channel: streams nc have stream C and
 * channel 1, streams cn 1 and n. gain has the same order.
 */
struct hzi_mhc_order {
	int64_t stream, channel;
};

/*
 * hz_mhc_gated_pre(): w_down [r][n C], w_up [n C][r], w_q [n][n C] (NULL: no q), each of its dtype,
 * and gain, in the given order. q.data, u.data NULL: not wanted
 */
struct hzi_mhc_gated_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_order order;
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef q;
	const void *w_down, *w_up, *w_q;
	const float *gain;
	int64_t rank;
	int32_t down_dtype, up_dtype, q_dtype, pad;
};

/* hz_mhc_gated_pre_bwd(): `of` without u and q; data NULL: no gradient, or not wanted */
struct hzi_mhc_gated_bwd_args {
	struct hzi_mhc_gated_args of;
	struct hzi_mhc_array du, dy, dx;
	struct hzi_mhc_coef dq;
	float *dw_down, *dw_up, *dw_q, *dgain;
	int32_t accumulate, pad;
};

/*
 * to = the streams of x over their roots, times gain (NULL: 1); roots [T][n][2] (NULL: not wanted):
 * rho, by which a stream is multiplied, and slope, with which the derivative of rho by x_c is
 * -rho^2 slope x_c / C
 */
struct hzi_mhc_divide_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_rule rule;
	struct hzi_mhc_order order;
	struct hzi_mhc_array x;
	const float *gain;
	float *to, *roots;
};

/*
 * Its gradients: from d, that of `to`, and x, the streams over their roots before gain: dgain =
 * sum_t d x and dx = rho g - slope x <g, x> / C + dy with g = d gain; d is overwritten. data NULL:
 * no dy; dx not wanted. accumulate: dx and dgain are added to.
 */
struct hzi_mhc_divide_bwd_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_order order;
	const float *x, *roots, *gain;
	float *d, *dgain;
	struct hzi_mhc_array dy, dx;
	int32_t accumulate, pad;
};

/*
 * c [m][n] (+)= sum_k a(i, k) b(j, k), the elements being at i a_row + k a_step and j b_row + k
 * b_step; of each pair of these strides one is 1. a and c are f32, b of b_dtype.
 */
struct hzi_mhc_product_args {
	const float *a;
	const void *b;
	float *c;
	int64_t m, n, k, a_row, a_step, b_row, b_step;
	int32_t b_dtype, accumulate;
};

/*
 * Between the products, for each token: from `down` [T][r] = W_down x^ and `inject` [T][n] (NULL:
 * none) hidden = silu(down / n), q = q_scale sigma(inject / n) + q_eps. backward: `hidden` holds
 * its gradient; down and inject are replaced by theirs, dq being given (data NULL: 0).
 */
struct hzi_mhc_hidden_args {
	struct hzi_mhc_rule rule;
	int64_t tokens, rank;
	float *down, *hidden, *inject;
	struct hzi_mhc_coef q, dq;
	int32_t backward, pad;
};

/*
 * u = sum_i sigma(up[i]) x^[i] / n. backward: from du the gradients of up, in place, and of x^, to
 * dx.
 */
struct hzi_mhc_gate_args {
	struct hzi_mhc_shape s;
	struct hzi_mhc_order order;
	const float *x;
	float *up, *dx;
	struct hzi_mhc_array u;		/* backward: du, data NULL: 0 */
	int32_t backward, pad;
};

struct hzi_mhc_layer_args {
	struct hzi_mhc_coef p, q, a;
	struct hzi_mhc_array f, u, y;
	const float *bias;
};

struct hzi_mhc_recompute_args {
	struct hzi_mhc_shape s;		/* the same groups in every layer */
	struct hzi_mhc_array x;
	int32_t layers;
	struct hzi_mhc_layer_args layer[HZI_MHC_LAYERS];
};

/* out[s] from a; element (l, s, i, j) is at a + l layer + s group + i row + j column. */
struct hzi_mhc_diagnose_args {
	struct hzi_mhc_coef a;
	int64_t layer, layers, groups;
	int32_t n;
	float *out;
	int64_t out_row, out_column;
};

/*
 * phi[i] = scale * normal(i) by a counter-based generator, or 0 if scale is 0; every alpha is
 * alpha_value; bias is values.
 */
struct hzi_mhc_init_args {
	float *phi, *alpha, *bias;	/* NULL: none */
	int64_t count;			/* elements of phi */
	int32_t rows, alphas;
	float scale;
	float alpha_value;
	float values[HZI_MHC_ROWS];
	uint64_t seed;
};

#endif
