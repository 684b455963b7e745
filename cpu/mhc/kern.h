/*
 * kern.h - the micro-kernels of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_MHC_KERN_H
#define HZI_MHC_KERN_H

#include "cpu/core/kern.h"

#define HZI_MHC_BATCH 16	/* tokens made coefficients of at once; a multiple of all LANES */
#define HZI_MHC_TILE 256	/* channels of which mhc_row_bwd() widens rows at a time */

/*
 * count channels of a token as of hzi_mhc_streams_args: stream i of x at x + i * x_stream; p, q [n]
 * and a [n][n] back to back, NULL as there. u_floats instead of u: f32. ahead: x of what comes
 * next, f_ahead f, to be fetched; NULL: nothing. stream_u, stream_y: these are aligned, and go past
 * the caches; end: of what does, this is the last.
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
 * count channels of a token as of hzi_mhc_streams_bwd_args: sums, lanes
 * floats each, of dp [n], dq [n], dA [n][n] get their products added, NULL: not wanted; dbias
 * [count] likewise. du_floats instead of du: f32. dx is added to if accumulate, and with add gets
 * what is there, stream i at i * add_stream, and factor x.
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

/* u = u_floats factor norm[c], the first count of them */
struct hzi_mhc_scale {
	const float *u_floats, *norm;
	void *u;
	float factor;
	int64_t count;
	int32_t dtype;
};

/*
 * Coefficients of a batch of tokens: number e of token t at e * HZI_MHC_BATCH + t.
 * coefs: y [m] to p, q [n], a [n n]; coefs_bwd: y, dp, dq, da to dz, dy [m], dalpha [3]; sinkhorn:
 * y [n n] to a; sinkhorn_bwd: y and da to dz. all: as of hzi_mhc_coefs()
 */
struct hzi_mhc_batch {
	const struct hzi_mhc_rule *rule;
	const float *alpha, *bias, *y, *dp, *dq, *da;
	float *p, *q, *a, *dz, *dy, *dalpha;
	int32_t count;			/* of tokens */
	bool all;
};

/*
 * Products of rows of f32, count columns each: rows of x x_ld apart, of phi phi_ld.
 *
 *   project  sums[(t m + k) lanes] += x_t phi_k, lanes floats each
 *   spread   y_t = sum_k d[t m + k] phi_k, y_ld apart
 *   outer    phi_k += sum_t d[t m + k] x_t
 *
 * count is a multiple of 2 lanes; rows have that much room.
 */
struct hzi_mhc_product {
	const float *x, *d;
	float *phi, *sums, *y;
	int64_t x_ld, phi_ld, y_ld, count;
	int32_t tokens, m;
};

/*
 * The first count numbers of rows as bf16, and of f16 and f32 in low the rest, for matrix units:
 * both together have 16 bits or more.
 *
 *   split  of x, side by side, 0 up to a multiple of 32; its squares are added to squares, lanes
 *   weave  of x and y (either NULL: 0) as [c / 32][even, odd c][16 such pairs of rows][16][2], 0 up
 *          to one of 32
 */
struct hzi_mhc_parts {
	const void *x, *y;
	uint16_t *high, *low;
	float *squares;
	int64_t count;
	int32_t dtype;
};

/* Rows of what is read next, to be fetched while tiles are multiplied; x NULL: nothing */
struct hzi_mhc_ahead {
	const char *x;
	int64_t row_bytes, step_bytes;	/* of 32 columns */
};

#define HZI_MHC_HALVES 512	/* numbers of 16 bits of a tile of matrix units */
#define HZI_MHC_HALF_ROWS 32	/* the most rows of phi that gradients by matrix units take */

/*
 * y[t][j] += the sum over 32 steps numbers x_t phi_j of 16 rows x, and low (NULL: none), of bf16,
 * x_ld apart, y being 16 panels wide; phi of bf16 as [steps][panels][16 pairs][16][2]. squares, if
 * there are any: lanes of each row get the squares of x added.
 */
struct hzi_mhc_half {
	const uint16_t *x, *low, *phi;
	float *y, *squares;
	int64_t x_ld, steps;
	struct hzi_mhc_ahead ahead;	/* of 16 rows */
	int32_t panels;
};

/*
 * Columns of phi, m rows `row` apart, in two parts of bf16, low what high leaves:
 *
 *   phi_half    a step of 32, for mhc_half: high of row k is column k, low m + k, 0 beyond
 *   phi_spread  a group of 16, for mhc_half_spread
 */
struct hzi_mhc_phi {
	const float *phi;
	int64_t row;
	uint16_t *to;
	int32_t m, panels;
};

/*
 * spread of 16 tokens without x, in groups of 16 columns: d in two parts of [16][32]; phi as
 * [groups][2 parts][(m + 1) / 2 pairs of rows][16][2]
 */
struct hzi_mhc_half_spread {
	const uint16_t *d, *phi;
	float *y;
	int64_t y_ld, groups;
	int32_t m;
};

/*
 * outer of 32 steps tokens, in groups of 16 columns, the even and the odd of 32: d as [steps][2
 * parts][m][32 tokens], x and low
 * (NULL: none) as [steps][groups][16 pairs of tokens][16][2], phi as [groups][m][16]; fresh: as if
 * it had been 0
 */
struct hzi_mhc_half_outer {
	const uint16_t *d, *x, *low;
	float *phi;
	int64_t steps, groups;
	struct hzi_mhc_ahead ahead;	/* of 32 rows */
	int32_t m;
	bool fresh;
};

#define HZI_MHC_BACK 32		/* tokens of mhc_half_back() */

/*
 * outer and spread of whole tiles of x of bf16, blocks of 32 columns: dphi (NULL: none) gets what
 * outer makes, dx (NULL: none) what spread makes and factor times x. m is 17 .. 32. stream: rows of
 * dx are aligned, and go past the caches.
 */
struct hzi_mhc_half_back {
	const uint16_t *x, *d_spread, *d_outer, *phi;
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
	/* Floats of count numbers of dtype, NULL: none; sums of squares, lanes floats, added to */
	void (*widen)(const void *x, int dtype, int64_t count, float *to, float *squares,
		      const void *ahead);	/* as in struct hzi_mhc_row */
	/* to[i] = the sum of the lanes floats at sums + i * lanes */
	void (*fold)(const float *sums, int64_t count, float *to);
	void (*project)(const struct hzi_mhc_product *a);
	void (*spread)(const struct hzi_mhc_product *a);
	void (*outer)(const struct hzi_mhc_product *a);
	struct hzi_mhc_streams_kern streams[2];	/* [1]: of more than HZI_MHC_UNROLLED */
	hzi_transpose transpose;
	/* By AMX tiles: all or none */
	void (*split)(const struct hzi_mhc_parts *a);
	void (*weave)(const struct hzi_mhc_parts *a);
	void (*half)(const struct hzi_mhc_half *a);
	void (*phi_half)(const struct hzi_mhc_phi *a);
	void (*phi_spread)(const struct hzi_mhc_phi *a);
	void (*half_spread)(const struct hzi_mhc_half_spread *a);
	void (*half_outer)(const struct hzi_mhc_half_outer *a);
	void (*half_back)(const struct hzi_mhc_half_back *a);
};

HZI_KERN(mhc)
/* Of unit_general.c, for streams[1]: called by hzi_mhc_kern_<level>() */
HZI_FILLS(mhc_general)

/* The kernels for n streams */
static inline const struct hzi_mhc_streams_kern *hzi_mhc_kern_of(int level, int n)
{
	return &hzi_mhc_kern[level].streams[n > HZI_MHC_UNROLLED];
}

#endif
