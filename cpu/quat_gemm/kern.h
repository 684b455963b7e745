/*
 * kern.h - micro-kernels of quaternion matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A product consists of real products of component planes: V, whose rows run along vectors in
 * panels of R rows, by S, whose columns are in panels of 6.
 */
#ifndef HZI_QUAT_GEMM_KERN_H
#define HZI_QUAT_GEMM_KERN_H

#include "cpu/core/kern.h"

#define HZI_QUAT_COLS 6		/* columns of a panel of S */
#define HZI_QUAT_AHEAD 2048

/* Initial value of accumulators: 0, the values at p, or their negatives */
enum hzi_quat_mode {
	HZI_QUAT_ZERO,
	HZI_QUAT_ADD,
	HZI_QUAT_SUBTRACT
};

/*
 * p[j * R + i] = init + sum_{l < k} v[l * R + i] s[j / 6 * s_panel + l * 6 + j % 6], added in
 * ascending order of l, for j < cols and i < rows rounded up to a vector. For each panel of S the
 * kernel prefetches HZI_QUAT_AHEAD bytes (fewer if k < 128) at `ahead` into L2, which then advances
 * by ahead_step. These addresses need not be mapped.
 */
struct hzi_quat_mul {
	const void *v, *s;
	void *p;
	int64_t rows, cols, k, s_panel;
	int32_t mode;
	const char *ahead;
	int64_t ahead_step;
};

/* t = t - H4 p, without add t = -H4 p; t and p: four component planes, each as p of hzi_quat_mul */
struct hzi_quat_sub_h4 {
	const void *p;
	void *t;
	int64_t rows, cols, plane;
	bool add;
};

/*
 * t = alpha t + beta c + bias, after components with flip are negated. c has the layout of t;
 * bias_rows is four planes of R, bias_cols four of bias_plane numbers; NULL: no such term.
 */
struct hzi_quat_epilogue {
	void *t;
	const void *c, *bias_rows, *bias_cols;
	int64_t rows, cols, plane, bias_plane;
	bool flip[4], alpha_real;
	double alpha[4], beta;
};

/*
 * Conversion between a strided view, component c of element (i, l) at x + i * x_i + l * x_l +
 * comp[c] in dtype, and component planes, at y + c * y_plane + l * y_l + i in f32 or f64; i < rows,
 * l < count. load: x to y, writing rows up to a whole vector. store: y to x, reading whole vectors.
 * Components with flip are negated.
 */
struct hzi_quat_block {
	void *x, *y;
	int64_t rows, count, x_i, x_l, comp[4], y_l, y_plane;
	int32_t dtype;
	bool flip[4];
};

/* t = activation(t), enum hz_activation */
struct hzi_quat_act {
	void *t;
	int64_t rows, cols, plane;
	int32_t activation;
	double slope;
};

/*
 * Packs four component planes, element (l, j) at l * ld + j, into panels of S at intervals of
 * `panel` elements. fast: planes 0 to 3 are multiplied by 2, planes 4 to 7 are H4 / 2 times them.
 * Whole vectors are read and written, so HZI_QUAT_PANEL_PAD elements behind each panel are scratch;
 * panels must be filled in ascending order.
 */
#define HZI_QUAT_PANEL_PAD 16

struct hzi_quat_pack_panels {
	const void *from;
	void *to;
	int64_t cols, count, ld, panel, from_plane, to_plane;
	bool fast;
};

#define HZI_QUAT_GEMV_COLS 8	/* most columns of gemv() and gemv_packed() */

/*
 * GEMV and skinny GEMM: rows of quads in dtype, stride x_i, by a few columns of f32 quads at e. Up
 * to column_major columns: each is contiguous, stride e_ld; more: each row of them is
 * contiguous, stride e_ld. Both are padded with 0 to whole vectors.
 *
 *   sums[(i * cols + j) * 16 + 4 d + c] (+)= sum_{l < count} x[i, l][c] e[l, j][d]
 *
 * or, of more than column_major columns, at 4 c + d. add: adds to sums.
 */
struct hzi_quat_gemv {
	const void *x;
	const float *e;
	float *sums;
	int64_t rows, cols, count, x_i, e_ld;
	int32_t dtype;
	bool add;
};

/*
 * Rows of a packed matrix, four component planes [count][x_l] in dtype, by a few columns, given as
 * 16 signed f32 numbers for each l:
 *
 *   t[(i / R * 4 + c) * t_plane + j * R + i % R] (+)=
 * 	sum_{l < count, v < 4} x[v * x_plane + l * x_l + i] s[(l * cols + j) * 16 + 4 v + c]
 *
 * for i < rows, rounded up to a vector. add: adds to t.
 */
struct hzi_quat_gemv_packed {
	const void *x;
	const float *s;
	float *t;
	int64_t rows, cols, count, x_l, x_plane, t_plane;
	int32_t dtype;
	bool add;
};

/*
 * bf16 products in tiles of 16 x 32, one component plane after the other: V [rows / 16][k /
 * 32][16][16][2], 16 pairs of k by 16 rows; S [cols / 16][k / 32][16][32], 16 columns. Component c
 * of the result, at p + c * p_plane in the layout of hzi_quat_mul, is the sum over v of plane v of
 * V times s[v][c], a plane of S or its negative; added to p with add. rows and cols are rounded up
 * to 16. steps: k / 32.
 */
struct hzi_quat_bf16_mul {
	const uint16_t *v, *s[4][4];
	float *p;
	int64_t rows, cols, steps, v_plane, p_plane;
	bool add;
};

/*
 * Operands in place, as quads: rows of S, each component of which is broadcast, by vectors of the
 * quads of V, columns of C. Element (i, l) of S is at i * s_row + l * s_col, (l, j) of V at l *
 * v_row + j * v_col, (i, j) of C and of a bias likewise; the order of components of V, C and bias
 * is the same:
 *
 *   c[i, j][p] = bias[i, j][p] +
 * 	sum_{e < 4} sign[e][p] sum_{l < k} s[i, l][s_comp[e]] v[l, j][p ^ e]
 *
 * dtypes are 16 bits or that of sign. S of 16 bits: s_comp is in 0 .. 3, k at most
 * HZI_QUAT_SMALL_K.
 */
#define HZI_QUAT_SMALL_K 64

struct hzi_quat_small {
	const void *s, *v, *bias;	/* bias NULL: none */
	void *c;
	const void *sign;		/* [4][4], 1 or -1, in f32 or f64 */
	int64_t rows, cols, k;
	int64_t s_row, s_col, s_comp[4], v_row, v_col, c_row, c_col, bias_row, bias_col;
	int32_t s_dtype, v_dtype, c_dtype, bias_dtype;
};

struct hzi_quat_gemm_typed {
	int32_t rows, lanes;		/* of a panel of V (R); of a vector */
	int32_t column_major;		/* most columns of gemv(), each of which is contiguous */
	void (*mul)(const struct hzi_quat_mul *a);
	void (*sub_h4)(const struct hzi_quat_sub_h4 *a);
	void (*epilogue)(const struct hzi_quat_epilogue *a);
	void (*act)(const struct hzi_quat_act *a);
	void (*load)(const struct hzi_quat_block *a);
	void (*store)(const struct hzi_quat_block *a);
	void (*gemv)(const struct hzi_quat_gemv *a);	/* gemv and gemv_packed: f32 only */
	void (*gemv_packed)(const struct hzi_quat_gemv_packed *a);
	/*
	 * Packs f32 planes of bf16 values for hzi_quat_bf16_mul; NULL at levels without tiles. V:
	 * rows of R elements, 32 of k, to tiles tile_ld apart. S: count columns of 32 of k, and the
	 * same negated.
	 */
	void (*bf16_pack_v)(const float *from, int64_t rows, uint16_t *to, int64_t tile_ld);
	void (*bf16_pack_s)(const float *from, int64_t count, uint16_t *to, uint16_t *negated);
	void (*bf16_mul)(const struct hzi_quat_bf16_mul *a);
	/* to = H4 from / 2, four planes each; count: a multiple of a vector */
	void (*h4_half)(const void *from, void *to, int64_t from_plane, int64_t to_plane,
		    int64_t count);
	void (*pack_panels)(const struct hzi_quat_pack_panels *a);
	void (*small)(const struct hzi_quat_small *a);	/* NULL: a quad is more than a vector */
};

struct hzi_quat_gemm_kern {
	struct hzi_quat_gemm_typed type[2];	/* f32, f64 */
};

HZI_KERN(quat_gemm)

#endif
