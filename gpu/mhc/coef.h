/*
 * coef.h - parameters of the kernels of coefficients of hyper-connections and of their gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_H
#define HZI_GPU_MHC_PRE_H

#include "lib/mhc/mhc.h"

#define HZI_PRE_TOKENS 64		/* of a block of mhc_pre_project */
#define HZI_PRE_CHUNK 64		/* channels that it takes at a time */
#define HZI_PRE_LANES 8			/* tokens that a thread of mhc_pre_dx has */
#define HZI_PRE_THREADS 128
#define HZI_PRE_SUM_COLUMNS 32		/* of a block of mhc_pre_sum_rows and mhc_pre_sum_weights */
#define HZI_NORM_THREADS 256
#define HZI_NORM_CHANNELS 8192		/* that these have in registers */
#define HZI_WIDE_THREADS 256		/* of blocks of mhc_wide_... */
#define HZI_WIDE_TOKENS 256		/* of a block of mhc_wide_project */
#define HZI_WIDE_CHUNK 64		/* channels that it takes at a time */
#define HZI_WIDE_PART 64		/* tokens that mhc_wide_dphi takes at a time */
#define HZI_PRE_GROUPS 64		/* of a block of kernels of coefficients, a thread each */

/* Shared memory of mhc_pre_gradients_4: sums of groups, and a history of so many iterations */
#define HZI_PRE_GRADIENTS_BYTES(iterations) (HZI_PRE_GROUPS * (33 + 8 * (iterations)) * 4)

/*
 * sums[(split groups + s) (m + 1) + k] of x, the streams of so many groups: sum_j phi_kj g_j x_j
 * over the columns of a split, and with k = m the sum of squares. quick: 8 channels are aligned
 * pieces.
 */
struct hzi_mhc_project {
	struct hzi_mhc_array x;
	const float *phi, *gain;
	float *sums;
	int64_t groups, channels;
	int32_t n, m, dtype, quick, splits;
	int32_t pad;
};

/* sums [splits, groups, n, C] of x over a split of the tokens of a group */
struct hzi_mhc_means {
	struct hzi_mhc_array x;
	float *sums;
	int64_t tokens, groups, channels;
	int32_t n, dtype, quick, splits;
};

/* out[s width + j] (+)= scale sum_r in[(s rows + r) stride + j], j < width, blocks of parts s */
struct hzi_mhc_sum_rows {
	const float *in;
	float *out;
	int64_t rows, width, stride;
	float scale;
	int32_t accumulate;
};

/* What coefficients are made of: sums as above, or (saved) sums and a mean square; NULL: y = 0 */
struct hzi_mhc_sums {
	const float *data;
	int64_t groups;
	int32_t splits, saved;
	float columns;			/* n C */
	int32_t pad;
};

struct hzi_mhc_finish {
	struct hzi_mhc_sums sums;
	struct hzi_mhc_rule rule;
	const float *alpha, *bias;
	struct hzi_mhc_coef p, q, a;
	float *saved;
};

/* u = sum_i p_i X[i], divided by its root mean square and times norm */
struct hzi_mhc_norm {
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p;
	const float *norm;
	int64_t tokens, groups, channels;
	int32_t n, dtype;
	float eps;
	int32_t near;			/* all rows are aligned, and not long */
};

/* du of u before it was divided [T, C], dp [T, n]; sums of dnorm of blocks' tokens [blocks, C] */
struct hzi_mhc_norm_bwd {
	struct hzi_mhc_norm of;		/* u: its gradient */
	float *du;
	float *dp, *dnorm;		/* NULL: not wanted */
};

/*
 * Of each group: draw [S, m], the gradients of sums, and x's own factor of dx, own [S]; p [S, n]
 * and a [S, n, n]. dp_own and da_own [S, ...] are added to the gradients that come in. small: sums
 * of dalpha and dbias of a block's groups [blocks, 3 + m]. records: as gpu/mhc/coef_bwd_fused.h
 * says, p and a in them only with coefs. What is wanted is not NULL.
 */
struct hzi_mhc_gradients {
	struct hzi_mhc_sums sums;
	struct hzi_mhc_rule rule;
	const float *alpha, *bias;
	struct hzi_mhc_coef dp, dq, da;
	const float *dp_own, *da_own;
	float *draw, *own, *p, *a, *small;
	uint32_t *records;
	int32_t coefs, pad;
};

/*
 * dx[t, j] (+)= p_j du + sum_i A_ij dy[i] + sum_k draw_k phi_kj g_j + own x + shared. Coefficients
 * and shared [S, n, C] are of groups, draw and own of tokens.
 */
struct hzi_mhc_dx {
	struct hzi_mhc_array x, du, dy, dx;
	const float *phi, *gain, *draw, *own, *p, *a, *shared;
	int64_t tokens, groups, channels;
	int32_t n, m, dtype, du_dtype, dx_dtype, accumulate;
	int32_t wide;			/* of mhc_wide_dx: 16 channels that a block has, so often */
	float scale;			/* of all of it */
};

/* partial[(split m + k) n C + j] = sum over a split of tokens of draw_k x_j */
struct hzi_mhc_dphi {
	struct hzi_mhc_array x;
	const float *draw;
	float *partial;
	int64_t tokens, channels;
	int32_t n, m, dtype, splits;
};

/*
 * dphi = g_j sum of partials, dgain_j = sum_k phi_kj of these; columns 0: not wanted. dalpha, so
 * many, and dbias from the sums of blocks that struct hzi_mhc_gradients leaves.
 */
struct hzi_mhc_sum_weights {
	const float *partial, *phi, *gain, *small;
	float *dphi, *dgain, *dalpha, *dbias;
	int64_t columns, blocks;
	int32_t m, splits, alphas, accumulate;
};

#endif
