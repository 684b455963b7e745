/*
 * kern.h - the micro-kernels of products of quaternion matrices
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_GEMM_KERN_H
#define HZI_QUAT_GEMM_KERN_H

#include "cpu/core/kern.h"

#define HZI_QUAT_COLS 6		/* columns of a panel of S */
#define HZI_QUAT_AHEAD 2048

/* What sums begin with: nothing, those that are there, or the negative of those */
enum hzi_quat_mode {
	HZI_QUAT_ZERO,
	HZI_QUAT_ADD,
	HZI_QUAT_SUBTRACT
};

/*
 * p[j * R + i] = the sum over l < k of v[l * R + i] s[j / 6 * s_panel + l * 6 + j % 6], for
 * i < rows up to a whole vector and j < cols, R being the rows of a panel, in ascending order of l;
 * before that as mode says. For each panel of S that is multiplied, HZI_QUAT_AHEAD bytes from
 * ahead on are brought into L2, or less with k below 128; for the next panel from ahead_step
 * further on. They need not be there.
 */
struct hzi_quat_mul {
	const void *v, *s;
	void *p;
	int64_t rows, cols, k, s_panel;
	int32_t mode;
	const char *ahead;
	int64_t ahead_step;
};

/* t = t - H4 p, or -H4 p without add: four planes each, as p of hzi_quat_mul */
struct hzi_quat_sum {
	const void *p;
	void *t;
	int64_t rows, cols, plane;
	bool add;
};

/*
 * t = alpha t + beta c + bias, the components of t being negated before where flip says so: c as t,
 * bias_rows four planes of R, bias_cols four of bias_plane; NULL contributes nothing.
 */
struct hzi_quat_end {
	void *t;
	const void *c, *bias_rows, *bias_cols;
	int64_t rows, cols, plane, bias_plane;
	bool flip[4], alpha_real;
	double alpha[4], beta;
};

/*
 * Component c of element (i, l), i < rows and l < count: of dtype at x + i * x_i + l * x_l +
 * comp[c], and in f32 or f64 at y + c * y_plane + l * y_l + i. load: x to y, whose rows are written
 * up to a whole vector; store: y to x, whole vectors being read. Components with flip are negated.
 */
struct hzi_quat_block {
	void *x, *y;
	int64_t rows, count, x_i, x_l, comp[4], y_l, y_plane;
	int32_t dtype;
	bool flip[4];
};

/* t = the activation (enum hz_activation) of t */
struct hzi_quat_act {
	void *t;
	int64_t rows, cols, plane;
	int32_t activation;
	double slope;
};

/*
 * Four planes, element (l, j) at l * ld + j, to panels of S, panel elements apart, in whole ones:
 * with fast twice these, and H4 / 2 times these as planes 4 to 7. Whole vectors are read, and
 * written: HZI_QUAT_ROOM elements are to be behind each panel, which is filled in ascending order.
 */
#define HZI_QUAT_ROOM 16

struct hzi_quat_panels {
	const void *from;
	void *to;
	int64_t cols, count, ld, panel, from_plane, to_plane;
	bool fast;
};

#define HZI_QUAT_FEW 8		/* columns at most that gemv() takes, */
#define HZI_QUAT_NARROW 3	/* up to which each lies by itself */
#define HZI_QUAT_FEW_PACKED 4	/* that gemv_packed() takes */

/*
 * Rows of quads, x_i apart, by few columns of quads in f32: each back to back, e_ld apart and whole
 * vectors of them, or if there are more, those of a row back to back, rows e_ld apart and whole
 * vectors. sums[(i * cols + j) * 16 + 4 * d + c] = the sum over l < count of element c of quad l of
 * row i times element d of quad l of column j, added to what is there with add.
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
 * Rows of a packed matrix, four planes [count][x_l], by few columns, for each l and column 16
 * numbers of f32: t[c * t_plane + j * R + i] = the sum over l < count and v < 4 of
 * x[v * x_plane + l * x_l + i] * s[(l * cols + j) * 16 + 4 * v + c], added to what is there with
 * add; i < rows <= R, up to a whole vector.
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
 * Products of matrices of bf16, in tiles of 16 x 32: of V [rows / 16][k / 32][16][16][2], 16 pairs
 * of k by 16 rows; of S [cols / 16][k / 32][16][32], 16 columns; one for each plane. For each
 * component c of the result, rows x cols at p + c * p_plane as of hzi_quat_mul, both rounded up to
 * 16: the sum of products of plane v of V and s[v][c], a plane of S with the sign that it needs;
 * added to what is there with add. steps: of 32 of k.
 */
struct hzi_quat_half_mul {
	const uint16_t *v, *s[4][4];
	float *p;
	int64_t rows, cols, steps, v_plane, p_plane;
	bool add;
};

struct hzi_quat_gemm_typed {
	int32_t rows, lanes;		/* of a panel of V, of a vector */
	void (*mul)(const struct hzi_quat_mul *a);
	void (*sum)(const struct hzi_quat_sum *a);
	void (*end)(const struct hzi_quat_end *a);
	void (*act)(const struct hzi_quat_act *a);
	void (*load)(const struct hzi_quat_block *a);
	void (*store)(const struct hzi_quat_block *a);
	void (*gemv)(const struct hzi_quat_gemv *a);	/* this and the next: f32 alone */
	void (*gemv_packed)(const struct hzi_quat_gemv_packed *a);
	/*
	 * Planes for these tiles, or NULL: from rows of V, 32 of k, each row_ld elements, to tiles
	 * of steps that are tile_ld apart; from count columns of S, each 32 of k; and the same
	 * negated. The numbers are of bf16.
	 */
	void (*half_v)(const float *from, int64_t rows, uint16_t *to, int64_t tile_ld);
	void (*half_s)(const float *from, int64_t count, uint16_t *to, uint16_t *negated);
	void (*half_mul)(const struct hzi_quat_half_mul *a);
	/* to = H4 from / 2, four planes each, count a multiple of lanes */
	void (*mix)(const void *from, void *to, int64_t from_plane, int64_t to_plane,
		    int64_t count);
	void (*panels)(const struct hzi_quat_panels *a);
};

struct hzi_quat_gemm_kern {
	struct hzi_quat_gemm_typed type[2];	/* f32, f64 */
};

HZI_KERN(quat_gemm)

#endif
