/*
 * kern.h - the micro-kernels of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_MHC_KERN_H
#define HZI_CPU_MHC_KERN_H

#include "cpu/core/kern.h"

#define HZI_MHC_BATCH 16	/* tokens of a batch; a multiple of LANES at every ISA level */
#define HZI_MHC_TILE 256	/* channels of rows that row_bwd() converts to f32 at a time */

/*
 * mhc_streams for `count` channels of a token: stream i of x is at x + i * x_stream; p, q [n] and a
 * [n][n] are contiguous, NULL as in struct hzi_mhc_streams_args. u_floats: u in f32, instead of u.
 * ahead, f_ahead: x and f of the next call, to be prefetched, or NULL. stream_u, stream_y:
 * non-temporal stores, for which u and y are aligned; end: the last call with non-temporal stores.
 */
struct hzi_mhc_row {
	const void *x, *f, *ahead, *f_ahead;
	void *u, *y;
	float *u_floats;
	int64_t x_stream, y_stream, count;
	const float *p, *q, *a, *bias;
	int32_t n, dtype;
	bool stream_u, stream_y, end;
};

/*
 * mhc_streams_bwd for `count` channels of a token. Adds to the partial sums of dp [n], dq [n] and
 * dA [n][n], `lanes` floats each, and to dbias [count]; NULL: not wanted. du_floats: du in f32,
 * instead of du. add: f32 that is added to dx, stream i at add + i * add_stream, together with
 * factor * x.
 */
struct hzi_mhc_row_bwd {
	const void *x, *f, *du, *dy;
	const float *du_floats, *add;
	void *dx, *df;
	int64_t x_stream, dy_stream, dx_stream, add_stream, count;
	float factor;
	const float *p, *q, *a, *bias;
	float *dp, *dq, *da, *dbias;
	const void *x_ahead, *dy_ahead;
	int32_t n, dtype;
	bool accumulate, stream_dx, stream_df, end;
};

/* u[c] = u_floats[c] * factor * norm[c] */
struct hzi_mhc_scale {
	const float *u_floats, *norm;
	void *u;
	float factor;
	int64_t count;
	int32_t dtype;
};

/*
 * Coefficients of a batch of tokens; value e of token t is at e * HZI_MHC_BATCH + t.
 *
 *   coefs         y [m] to p, q [n], a [n n]
 *   coefs_bwd     y, dp, dq, da to dz, dy [m], dalpha [3]
 *   sinkhorn      y [n n] to a
 *   sinkhorn_bwd  y, da to dz
 *
 * all: q and a too, not only p. Callers silence floating-point exceptions: hzi_fp_silence_begin().
 */
struct hzi_mhc_batch {
	const struct hzi_mhc_rule *rule;
	const float *const *alpha;
	const float *bias, *y, *dp, *dq, *da;
	float *p, *q, *a, *dz, *dy, *dalpha;
	int32_t count;			/* tokens */
	bool all;
};

/*
 * Products of x [tokens][count] and phi [m][count], f32, with leading dimensions x_ld and phi_ld.
 *
 *   project    sums[(t m + k) lanes] += <x_t, phi_k>, as `lanes` partial sums
 *   dx_gemm    y_t = sum_k d[t m + k] phi_k, leading dimension y_ld
 *   dphi_gemm  phi_k += sum_t d[t m + k] x_t
 *
 * count is a multiple of 2 * lanes.
 */
struct hzi_mhc_product {
	const float *x, *d;
	float *phi, *sums, *y;
	int64_t x_ld, phi_ld, y_ld, count;
	int32_t tokens, m;
};

/*
 * Rows for AMX tiles: high = v in bf16, and for f16 and f32 low = v - high in bf16. Both together
 * have at least 16 significant bits. Columns from count up to a multiple of 32 are 0.
 *
 *   split_bf16       row x; adds its squares to `lanes` partial sums
 *   interleave_bf16  rows x and y (NULL: 0) as [c / 32][even, odd c][16 pairs of rows][16][2], one
 *                    of the 16 pairs
 */
struct hzi_mhc_bf16_rows {
	const void *x, *y;
	uint16_t *high, *low;
	float *squares;
	int64_t count;
	int32_t dtype;
};

/* Rows that are read next, to be prefetched during a product; x NULL: none */
struct hzi_mhc_ahead {
	const char *x;
	int64_t row_bytes, step_bytes;	/* from row to row; of 32 columns */
};

#define HZI_MHC_AMX_TILE 512	/* bf16 elements of an AMX tile: 16 rows of 32 */
#define HZI_MHC_AMX_ROWS 32	/* most rows of phi that amx_dx and amx_dphi support */

/*
 * y [16][16 panels] += x [16][32 steps] times phi, x being high and low (NULL: none) terms in bf16
 * with leading dimension x_ld; phi as [steps][panels][16 pairs][16][2]. squares (NULL: not wanted):
 * the squares of each row of x are added to `lanes` partial sums.
 */
struct hzi_mhc_amx_project {
	const uint16_t *x, *low, *phi;
	float *y, *squares;
	int64_t x_ld, steps;
	struct hzi_mhc_ahead ahead;	/* 16 rows */
	int32_t panels;
};

/*
 * Packs columns of phi [m], leading dimension `row`, as high and low terms in bf16.
 *
 *   amx_pack_phi     32 columns, for amx_project: column k is high of row k, column m + k low
 *   amx_pack_phi_dx  16 columns, for amx_dx and amx_bwd
 */
struct hzi_mhc_amx_phi {
	const float *phi;
	int64_t row;
	uint16_t *to;
	int32_t m, panels;
};

/*
 * y [16 tokens][16 groups] = d phi: d as [2 terms][16 tokens][32], phi as [groups][2 terms][(m + 1)
 * / 2 pairs of rows][16 columns][2]
 */
struct hzi_mhc_amx_dx {
	const uint16_t *d, *phi;
	float *y;
	int64_t y_ld, groups;
	int32_t m;
};

/*
 * phi += d^T x for 32 steps tokens; a group is the even or the odd ones of 32 columns. d as
 * [steps][2 terms][m][32 tokens], x and low (NULL: none) as [steps][groups][16 pairs of
 * tokens][16][2], phi as [groups][m][16]. fresh: phi = d^T x
 */
struct hzi_mhc_amx_dphi {
	const uint16_t *d, *x, *low;
	float *phi;
	int64_t steps, groups;
	struct hzi_mhc_ahead ahead;	/* 32 rows */
	int32_t m;
	bool fresh;
};

#define HZI_MHC_AMX_TOKENS 32	/* tokens of a call of amx_bwd */

/*
 * Both gradients for 32 tokens of bf16 and blocks of 32 columns, x in place: dphi += d^T x and dx =
 * d phi + factor x, either NULL. m is 17 .. 32. stream: non-temporal stores to dx, which is
 * aligned.
 */
struct hzi_mhc_amx_bwd {
	const uint16_t *x, *d_dx, *d_dphi, *phi;
	const float *factor;
	float *dphi;
	uint16_t *dx;
	int64_t x_ld, dx_ld, blocks;
	int32_t m;
	bool fresh, stream;
};

/*
 * Kernels that loop over streams. Loops over up to HZI_MHC_UNROLLED streams are unrolled; larger
 * numbers share one kernel.
 */
#define HZI_MHC_UNROLLED 4

struct hzi_mhc_streams_kern {
	void (*row_bwd)(const struct hzi_mhc_row_bwd *a);
	void (*coefs)(const struct hzi_mhc_batch *b);
	void (*coefs_bwd)(const struct hzi_mhc_batch *b);
	void (*sinkhorn)(const struct hzi_mhc_batch *b);
	void (*sinkhorn_bwd)(const struct hzi_mhc_batch *b);
};

struct hzi_mhc_kern {
	int32_t lanes;		/* f32 elements of a vector */
	void (*row)(const struct hzi_mhc_row *a);
	void (*scale)(const struct hzi_mhc_scale *a);
	/* Converts x to f32 and adds its squares to `lanes` partial sums; NULL: not wanted. */
	void (*widen)(const void *x, int dtype, int64_t count, float *to, float *squares,
		      const void *ahead);	/* prefetched, or NULL */
	/* to[i] = the sum of the `lanes` floats at sums + i * lanes */
	void (*sum_lanes)(const float *sums, int64_t count, float *to);
	void (*project)(const struct hzi_mhc_product *a);
	void (*dx_gemm)(const struct hzi_mhc_product *a);
	void (*dphi_gemm)(const struct hzi_mhc_product *a);
	struct hzi_mhc_streams_kern streams[2];	/* [1]: for more than HZI_MHC_UNROLLED streams */
	hzi_transpose transpose;
	/* AMX tiles: all of these, or NULL */
	void (*split_bf16)(const struct hzi_mhc_bf16_rows *a);
	void (*interleave_bf16)(const struct hzi_mhc_bf16_rows *a);
	void (*amx_project)(const struct hzi_mhc_amx_project *a);
	void (*amx_pack_phi)(const struct hzi_mhc_amx_phi *a);
	void (*amx_pack_phi_dx)(const struct hzi_mhc_amx_phi *a);
	void (*amx_dx)(const struct hzi_mhc_amx_dx *a);
	void (*amx_dphi)(const struct hzi_mhc_amx_dphi *a);
	void (*amx_bwd)(const struct hzi_mhc_amx_bwd *a);
};

HZI_KERN(mhc)
/* Defined by unit_general.c, for streams[1]: called by hzi_mhc_kern_<level>() */
HZI_FILLS(mhc_general)

/* The kernels for n streams */
static inline const struct hzi_mhc_streams_kern *hzi_mhc_kern_of(int level, int n)
{
	return &hzi_mhc_kern[level].streams[n > HZI_MHC_UNROLLED];
}

#endif
