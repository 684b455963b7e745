/*
 * coef.h - parameters of coef_generic*.cu and coef_mma.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_H
#define HZI_GPU_MHC_COEF_H

#include "lib/mhc/mhc.h"

#define HZI_MHC_COEF_TOKENS 64		/* per block of mhc_coef_generic_project */
#define HZI_MHC_COEF_CHUNK 64		/* channels at a time */
#define HZI_MHC_COEF_LANES 8		/* tokens per thread of mhc_coef_generic_dx */
#define HZI_MHC_COEF_THREADS 128
#define HZI_MHC_COEF_SUM_COLUMNS 32	/* per block of mhc_coef_sum_rows, mhc_coef_sum_weights */
#define HZI_MHC_FOUR_ROWS 24		/* of phi of four streams, at most; LITE has more */
#define HZI_MHC_NORM_THREADS 256
#define HZI_MHC_NORM_CHANNELS 8192	/* at most, for a token in registers */
#define HZI_MHC_COEF_GEMV_THREADS 256	/* per block of mhc_coef_gemv_project_* */
#define HZI_MHC_COEF_GEMV_CHANNELS 256	/* of a stream, at a time */
#define HZI_MHC_COEF_GEMV_TOKENS 4		/* per block, at most */
#define HZI_MHC_COEF_GEMV_ROWS 80		/* of phi, at most */
#define HZI_MHC_MMA_THREADS 256		/* per block of mhc_coef_mma_* */
#define HZI_MHC_MMA_TOKENS 256		/* per block of mhc_coef_mma_project */
#define HZI_MHC_MMA_CHUNK 64		/* channels at a time */
#define HZI_MHC_MMA_PART 64		/* tokens at a time in mhc_coef_mma_dphi */
#define HZI_MHC_COEF_GROUPS 64		/* per block of coefficient kernels, one per thread */
#define HZI_MHC_COEF_ROW_GROUPS 8	/* per block of mhc_coef_*_8, one per warp */

/* Shared memory of mhc_coef_gradients_4: sums of groups and a history of `iterations` */
#define HZI_MHC_COEF_GRADIENTS_BYTES(iterations) (HZI_MHC_COEF_GROUPS * (33 + 8 * (iterations)) * 4)

/*
 * sums[(split groups + s) (m + 1) + k] = sum_j phi_kj gain_j x_j over the columns j of a split, and
 * for k = m the sum of squares of x; x [groups][n][C]. vectorized: rows of x are aligned.
 */
struct hzi_mhc_project {
	struct hzi_mhc_array x;
	const float *phi, *gain;
	float *sums;
	int64_t groups, channels;
	int32_t n, m, dtype, vectorized, splits;
	int32_t pad;
};

/* sums [splits][groups][n][C]: x summed over a split of the tokens of a group */
struct hzi_mhc_means {
	struct hzi_mhc_array x;
	float *sums;
	int64_t tokens, groups, channels;
	int32_t n, dtype, vectorized, splits;
};

/* out[s width + j] (+)= scale sum_r in[(s rows + r) stride + j] for j < width and each part s */
struct hzi_mhc_sum_rows {
	const float *in;
	float *out;
	int64_t rows, width, stride;
	float scale;
	int32_t accumulate;
};

/*
 * Sums as above; saved: m sums and a mean square of each group. data NULL: y = 0. x: what was
 * projected, from which a mean square that leaves f32 or is below least is computed again
 */
struct hzi_mhc_sums {
	const float *data;
	int64_t groups;
	struct hzi_mhc_array x;
	int64_t channels;
	int32_t splits, saved;
	float columns;			/* n C */
	int32_t dtype;
	float least;
	int32_t pad;
};

struct hzi_mhc_finish {
	struct hzi_mhc_sums sums;
	struct hzi_mhc_rule rule;
	const float *alpha[3], *bias;
	struct hzi_mhc_coef p, q, a;
	float *saved;
};

/* u = v norm / rms(v) with v = sum_i p_i X[i] */
struct hzi_mhc_norm {
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p;
	const float *norm;
	int64_t tokens, groups, channels;
	int32_t n, dtype;
	float eps;
	int32_t aligned;			/* rows are, and fit registers */
};

/* du [T][C], the gradient of v; dp [T][n]; dnorm [blocks][C]: one partial sum per block */
struct hzi_mhc_norm_bwd {
	struct hzi_mhc_norm of;		/* of.u: the gradient of u */
	float *du;
	float *dp, *dnorm;		/* NULL: not wanted */
};

/*
 * to [strips][4][160][64]: phi times gain in two terms of bf16, rows m to 79 of each 0. Column 32
 * (i % 2) + 8 g + 2 q + e of part i / 2 is channel 8 q + 2 g + e of the strip, of stream i; streams
 * from n on and channels beyond the last are 0.
 */
struct hzi_mhc_phi_strips {
	const float *phi, *gain;
	uint16_t *to;
	int64_t channels, strips;
	int32_t n, m;
};

/*
 * For each group: draw [S][m], the gradients of its sums, and own [S][2], with which dx = sum_k
 * draw_k phi_k + own_0 (own_1 x), own_1 a power of two, 1 unless the mean square of x is extreme;
 * and the coefficients p [S][n], a [S][n][n]. dp_own and da_own are added to the
 * given gradients. scalars [blocks][3 + m]: dalpha and dbias summed over the groups of a block.
 * records: see gpu/mhc/coef_bwd_fused.h; p and a are in them only if coefs. tokens and terms, of
 * more than 4 streams: what gpu/mhc/coef_bwd_wgmma.h calls records, and draw; strips: phi, made by
 * blocks of their own. NULL: not wanted.
 */
struct hzi_mhc_gradients {
	struct hzi_mhc_sums sums;
	struct hzi_mhc_rule rule;
	const float *alpha[3], *bias;
	struct hzi_mhc_coef dp, dq, da, p_in;
	const float *dp_own, *da_own;
	float *draw, *own, *p, *a, *scalars;
	uint32_t *records;
	float *tokens;
	uint16_t *terms;
	struct hzi_mhc_phi_strips strips;
	int32_t coefs, common;		/* common: see hzi_mhc_is_common() */
	int32_t kept, pad;		/* more than 4 streams: iterations in the history */
};

/*
 * dx[t][j] (+)= scale (p_j du + sum_i A_ij dy[i] + sum_k draw_k phi_kj gain_j + own x + shared),
 * own being own_0 own_1 as above.
 * Coefficients and shared [S][n][C] are of groups, draw and own of tokens.
 */
struct hzi_mhc_dx {
	struct hzi_mhc_array x, du, dy, dx;
	const float *phi, *gain, *draw, *own, *p, *a, *shared;
	int64_t tokens, groups, channels;
	int32_t n, m, dtype, du_dtype, dx_dtype, accumulate;
	int32_t channel_groups;			/* mhc_coef_mma_dx: 16-channel groups of a block */
	float scale;};

/* da_ij = <dy[i], x[j]> and dp_j = <du, x[j]> of each token; 16 bits, du or dp may be missing */
struct hzi_mhc_token_products {
	struct hzi_mhc_array x, dy, du;
	struct hzi_mhc_coef dp, da;
	int64_t channels;
	int32_t n, pad;
};

/* partial[(split m + k) n C + j] = sum of draw_k x_j over a split of the tokens */
struct hzi_mhc_dphi {
	struct hzi_mhc_array x;
	const float *draw;
	float *partial;
	int64_t tokens, channels;
	int32_t n, m, dtype, splits;
};

/*
 * dphi_kj = gain_j s_kj and dgain_j = sum_k phi_kj s_kj, where s is the sum of partial over splits;
 * columns 0: neither. dalpha and dbias [m] from scalars of struct hzi_mhc_gradients.
 */
struct hzi_mhc_sum_weights {
	const float *partial, *phi, *gain, *scalars;
	float *dphi, *dgain, *dalpha[3], *dbias;
	int64_t columns, blocks;
	int32_t m, splits, accumulate, pad;
};

#endif
