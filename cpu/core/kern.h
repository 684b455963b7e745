/*
 * kern.h - the micro-kernels that an instruction-set level provides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thousand lines in one file: all that a new level has to provide stands here, and nothing else.
 */
#ifndef HZI_KERN_H
#define HZI_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "hurwitz.h"
#include "lib/quat_layer/quat_layer.h"

/*
 * All kernels: no alignment beyond the element; strides count elements; dtypes are HZ_F32, HZ_F16
 * or HZ_BF16; x == y with equal strides and dtypes is allowed unless said otherwise.
 */

/*
 * Butterflies of strides 1, 2, .. 2^(bits - 1) on rows of count contiguous elements, count a
 * multiple of 2^bits. pre: element i of row r is first multiplied by pre[r * pre_ld + i]. last: the
 * results are multiplied by scale, then by post; else y is f32 and gets them as they are. With 0
 * bits it converts. If ahead is not 0, what lies so many elements behind those that are read is
 * fetched, of f32 FLOATS_AHEAD, unless rows are finished here; fetch_y: of y of f32, too. It need
 * not be there. Neighbours here are not neighbours in struct
 * hzi_hadamard_args: compilers would copy them in pairs, and a load of two values just stored apart
 * waits for both stores (4 ns).
 */
struct hzi_head {
	const void *x;
	int64_t x_ld;
	void *y;
	int64_t y_ld, rows, count;
	int32_t x_dtype, bits, y_dtype;
	bool last, fetch_y;
	float scale;
	const float *pre, *post;
	int64_t pre_ld, post_ld, ahead;
};

/*
 * Butterflies between 2^bits rows of width elements, row strides 1, 2, .. 2^(bits - 1) times ld.
 * pre: row j is first multiplied by pre[j * pre_ld]. last: scale, then post: row j by
 * post[j * post_ld], or element c of row j by post[j * post_ld + c] if post_wide. That for groups
 * groups of rows, x_group, y_group, pre_group and post_group apart. What lies ahead elements behind
 * each vector of x is brought into L2, if ahead is not 0; it need not be there. The same of y_ahead
 * and y of 16 bits, whose lines have to be there when they are stored to.
 */
struct hzi_pass {
	const void *x;
	void *y;
	int64_t x_ld, y_ld, width;
	int64_t groups, x_group, y_group, pre_group, post_group, ahead, y_ahead;
	int32_t x_dtype, y_dtype, bits;
	bool last, post_wide;
	float scale;
	const float *pre, *post;
	int64_t pre_ld, post_ld;
};

/*
 * Row i of y = the sum over j, in ascending order, of sign(i, j) * row j of x; then scale and post.
 * x is f32 and apart from y. sign holds +-1.0 as [rows / 4][m][4], rows padded.
 */
struct hzi_base_mul {
	const float *x;
	void *y;
	const float *sign;
	int64_t x_ld, y_ld, width;
	int32_t y_dtype, m;
	bool last, post_wide;
	float scale;
	const float *post;
	int64_t post_ld;
};

/*
 * Quantizes count elements in groups of group, which divides count; t is overwritten. Divisions
 * leave the memory idle: ahead_step bytes for each element, from ahead on, are brought into L2.
 */
struct hzi_quant {
	float *t;
	void *q, *scale;
	const char *ahead;
	int64_t ahead_step;
	int64_t count, group;
	int32_t q_dtype, scale_dtype, round_to;
};

/* y = q * scale, likewise. */
struct hzi_dequant {
	const void *q, *scale;
	float *y;
	int64_t count, group;
	int32_t q_dtype, scale_dtype;
};

/*
 * Quantized multiplication of m rows of A, packed as the level wants it, by n columns of B in
 * HZI_QLAYOUT_CPU (lib/qgemm/qgemm.h): panels of 32 columns b_panel bytes apart, ceil(k / 64) * 2048
 * bytes of each being read. m, n and k need not fill panels; nothing beyond them is written. Sums
 * are mod 2^32.
 *
 * raw: c is s32 and gets the sums of products of a (as packed) and b, without zeros.
 * c of u8 or s8 gets clamp(c_zero + y, min, max) of
 *   acc = sum + col[j] - (row ? b_zero[j] * row[i] : 0)	(mod 2^32; the true value fits)
 *   y = floor((acc * u[j] + 2^(shift[j] - 1)) / 2^shift[j]), 33 <= shift[j] <= 62
 * where col, b_zero, u and shift have values for whole panels of columns. c_ld counts elements.
 * At levels with q_floats a_zero[i] * b_sum[j], of whole panels, comes off acc; c of s32 gets acc,
 * from min to max; floats what hzi_qout tells of, b_scale for whole panels, a bias of f32 or none.
 *
 * src: A is not packed yet, which levels with q_lazy can do on the way: rows of k codes, back to
 * back, src_ld apart. a and row are room for what qpack_a() would have made. With a_zero it is the
 * sum less k a_zero[i] that row[i] has: with src that becomes so here.
 */
struct hzi_qmul {
	void *a;
	const void *src;
	const uint8_t *b;
	void *c;
	int64_t m, n, k, b_panel, c_ld, src_ld;
	int32_t a_dtype, b_dtype, c_dtype;
	bool raw;
	const int32_t *col, *b_zero, *u, *shift;
	int32_t *row;
	int32_t c_zero, min, max;
	const int32_t *a_zero, *b_sum;
	const float *a_scale, *b_scale, *bias;
	int64_t a_step;			/* 0: a_scale is one for all */
	float fmin, fmax;
	void *sums;			/* hz_kern.q_sums bytes, or NULL, which is slower */
};

/*
 * Rows of A into the order of qmul(), from element (i, j) at a + i * a_m + j * a_k. Rows of k codes
 * are padded with what contributes nothing. row[i]: the sum of the codes as packed, mod 2^32; NULL:
 * not wanted.
 */
struct hzi_qpack_a {
	const void *a;
	void *packed;
	int32_t *row;
	int64_t m, k, a_m, a_k;
	int32_t a_dtype, b_dtype;
};

/*
 * Panels of 32 columns of B in HZI_QLAYOUT_CPU, from element (i, j) at b + i * b_k + j * b_n, n of
 * them, and the sums of columns, for whole panels.
 */
struct hzi_qpack_b {
	const void *b;
	uint8_t *packed;
	int32_t *sum;
	int64_t k, n, b_k, b_n;
	int32_t b_dtype;
};

/*
 * Sums to C by any of the ways that lib/qgemm/qgemm.h tells of, for rows x cols elements: of row i and
 * column j acc = clamp_s32(S + bias[j]), S = sum[i * sum_ld + j] + col[j] - b_zero[j] * row[i] -
 * a_zero[i] * b_sum[j] mod 2^32. NULL contributes nothing; b_zero goes with row, b_sum with a_zero.
 * Float c: a_scale[i], or a_scale[0] with a_step 0. u and shift are NULL with identity.
 */
struct hzi_qout {
	const int32_t *sum;
	void *c;
	int64_t sum_ld, rows, cols, c_m, c_n, a_step;
	const int32_t *col, *b_zero, *row, *a_zero, *b_sum;
	const void *bias;		/* of bias_dtype HZ_S32 or HZ_F32 */
	const int32_t *u, *shift;
	const float *b_scale, *a_scale;
	int32_t bias_dtype, c_dtype, rounding, identity, c_zero, min, max;
	float fmin, fmax;
};

/*
 * count elements between floats (x, of HZ_F32, HZ_F16 or HZ_BF16) and codes (q, of HZ_U8 or HZ_S8),
 * back to back; element i with scales[i / group] and zeros[i / group], which is of q's dtype.
 * stream: the results are too many to stay in the caches.
 */
struct hzi_qcodes {
	void *x, *q;
	const float *scales;
	const void *zeros;
	int64_t count, group;
	int32_t x_dtype, q_dtype;
	bool stream;
};

/* The range of count floats, back to back, NaN left out: lo[i / group] and hi[i / group] widened */
struct hzi_range {
	const void *x;
	float *lo, *hi;
	int64_t count, group;
	int32_t x_dtype;
};

/* hzi_qparams() for count ranges */
struct hzi_params {
	const float *lo, *hi;
	float *scale;
	uint8_t *zero;			/* the codes of either type */
	int64_t count;
	int32_t q_dtype, symmetric;
};

/* ---- Products of quaternion matrices --------------------------------------------------------- */

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

struct hzi_quat_kern {
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

/*
 * Quaternions, or vectors of three components, or real numbers, in a row: component c of element i
 * at p + i * step + comp[c], real numbers at comp[0], vectors at comp[1 .. 3]. p NULL: not wanted.
 */
struct hzi_quat_list {
	void *p;
	int64_t step, comp[4];
};

enum hzi_quat_work {		/* in: out */
	HZI_QUAT_WORK_MUL,		/* a, b: ca(a) cb(b) */
	HZI_QUAT_WORK_MUL_BWD,		/* dy, a, b: da, db */
	HZI_QUAT_WORK_AXPY,		/* x: alpha x, or x alpha if reversed */
	HZI_QUAT_WORK_CONJ,		/* x: these as enum hzi_quat_map */
	HZI_QUAT_WORK_NORM,
	HZI_QUAT_WORK_NORM2,
	HZI_QUAT_WORK_NORMALIZE,
	HZI_QUAT_WORK_INVERSE,
	HZI_QUAT_WORK_NORM_BWD,		/* dy, x: these in the same order */
	HZI_QUAT_WORK_NORM2_BWD,
	HZI_QUAT_WORK_NORMALIZE_BWD,
	HZI_QUAT_WORK_INVERSE_BWD,
	HZI_QUAT_WORK_ROTATE,		/* v, q: y */
	HZI_QUAT_WORK_ROTATE_BWD	/* dy, q, v: dq, dv */
};

/*
 * count elements of what lib/quat/quat.h tells of; accumulate adds to out. real: an output that is a
 * vector has a real part, which becomes 0 or stays. stream: results are too many for the caches.
 */
struct hzi_quat_row {
	struct hzi_quat_list in[3], out[2];
	int64_t count;
	int32_t work, dtype;
	bool conj_a, conj_b, reversed, inverse, normalize, accumulate, real, stream;
	double alpha[4], eps;
};

/*
 * The first output of row->work, MUL or ROTATE_BWD (of its outputs the one wanted), summed: over
 * the row, sum[0 .. 3] += the components; or columns: over terms rows, in[i].p being term_step[i]
 * further in each, sum[4 j + c] += component c of element j. At most 1024 terms of each sum.
 */
struct hzi_quat_total {
	struct hzi_quat_row row;
	int64_t terms, term_step[3];
	bool columns;
	double *sum;
};

/* Components first .. last of element i = sum[4 i + c], conjugated if conj; added if accumulate */
struct hzi_quat_put {
	struct hzi_quat_list out;
	const double *sum;
	int64_t count;
	int32_t dtype, first, last;
	bool conj, accumulate;
};

/* ---- Products with lattice codes ------------------------------------------------------------- */

#define HZI_VLUT_ROWS 64	/* of a panel of codes */
#define HZI_VLUT_ROOM 256	/* the most entries of a table that kernels look into */

/*
 * A panel of 64 rows has, for each block and level, 64 bytes: the code of row i is at
 * hzi_vlut_place(i). In parts of 16 bytes rows lie so that four bytes of each, side by side, come
 * out in order.
 */
static inline int hzi_vlut_place(int row)
{
	return row / 4 % 4 * 16 + row / 16 * 4 + row % 4;
}

/*
 * y[i] += sum over groups g of scale[T of row i and g] * (weight[g] * sum_l q^l s_l + base[g]),
 * where s_l sums over group blocks (the last group may have less) the entries of the codes of level
 * l, each less 32768 if planes is 2. Table j is of block order[j], or j; its entries are bytes, or
 * with planes 2 the low bytes of 16 bits and then, size on, the high ones. Level l of block b is at
 * codes + b * step + l * 64; T of group g at t + g * 64 in the order of codes. t NULL: scale is not
 * used.
 */
struct hzi_vlut_sum {
	const uint8_t *codes, *table, *t;
	const int32_t *order;
	const float *weight, *base, *scale;
	float *y;			/* 64 */
	int64_t blocks, step;
	int32_t group, levels, planes, size;
	float q;
};

/*
 * Tables of the products of leaders, [embed][size, but at least 64] of f32, with embed numbers x of
 * each block, for blocks order[i], or i: entry e is round((<c_e, x> - low[i]) * inverse[i]), with
 * planes 2 plus 32768, which 16 bits hold. range: the least and the largest of them.
 */
struct hzi_vlut_table {
	const float *x, *leaders;
	const int32_t *order;
	uint8_t *table;
	float *low, *high;		/* high: of range */
	const float *inverse;
	int64_t blocks;
	int32_t embed, planes, size;
};

/*
 * D4 with q = 4 and two levels, packed: a coordinate of a leader is three bits, s h l, -4 s + 2 h +
 * l, whose remainder modulo 4 in -2 .. 1 has s = h; where the nearest point of 4 D4 is not that of
 * 4 Z^4, s of one coordinate is turned, the first of the largest. That, h and l of all, the l
 * having an even sum, are the 256 leaders. So a coordinate is a field of two bits: l, or of the
 * last one whether a sign is turned, and h above.
 *
 * codes: of 32 rows, steps of 16 lattice blocks, 1 KiB: [4][4 coordinates][16 rows][4 blocks] of
 * bytes, whose lower nibbles are rows 0 .. 15, level 0 below level 1, the upper ones 16 .. 31.
 *
 * sums[i][32] = the sums of points times row i of x, mod 2^32; rows are x_ld apart, in the order of
 * vlut_fields_order(), and have `steps` times 64 numbers. Up to 2^15 of these: 16 times a sum fits.
 */
struct hzi_vlut_fields {
	const uint8_t *codes;
	const int8_t *x;
	int32_t *sums;
	int64_t x_ld, steps;
	int32_t count;
};

/* Coordinates of masked codes, less offset, to rows of packed B, k in that order, too */
struct hzi_vlut_fields_points {
	const uint8_t *codes;
	uint8_t *b;
	int64_t chunks;			/* of four blocks */
	uint32_t mask;
	int8_t offset[4];
};

/*
 * To codes of a panel of 64 rows, whose second half is so many bytes behind. table: of the fields
 * of all coordinates, the first one lowest, the code.
 */
struct hzi_vlut_fields_codes {
	const uint8_t *codes, *table;
	uint8_t *to;
	int64_t half, chunks;
};

/*
 * Points of a panel less offset, bytes, to two panels of packed B (lib/qgemm/qgemm.h), b_panel bytes
 * apart: number e of block b is k = b * embed + e. table is [levels][embed][size] of bytes: the
 * leaders times q^l. Sums are mod 256. What is beyond k up to a multiple of 4 becomes 0.
 */
struct hzi_vlut_points {
	const uint8_t *codes, *table;
	uint8_t *b;
	int64_t blocks, step, b_panel;
	int32_t embed, levels, size;
	int8_t offset[24];
};

/*
 * Points of a panel less offset to such bytes, count of k from k on, multiples of 4: of 64 rows, as
 * p [count][64]; or bytes [count / embed][64][embed], embed 4 or 8.
 */
struct hzi_vlut_quads {
	const int16_t *p;
	const int8_t *bytes;
	uint8_t *b;
	int64_t k, count, b_panel;
	int32_t embed;
};

/*
 * Such bytes of k .. k + count - 1, count a multiple of embed and k of 4, to floats: number e of
 * row i times scale[i], scale being 64 floats for each group blocks, in panels of `rows` rows,
 * panel elements apart, [count][rows]; extra: after each block a row of the scales themselves.
 */
struct hzi_vlut_widen {
	const uint8_t *b;
	const float *scale;
	float *to;
	int64_t k, blocks, b_panel, panel;
	int32_t embed, group, rows;
	bool extra;
};

/* ---- Lattices -------------------------------------------------------------------------------- */

#define HZI_LATTICE_RUN 1024	/* blocks at most that lattice_points() takes */

/* Division by n of x, with bias a multiple of 2 n: (x + bias) * mul >> 16, if n is not 2^k */
struct hzi_lane_divisor {
	int32_t n, bias, mul;
};

/*
 * A rule for lanes: q is 2^shift times an odd number, whose inverse mod 2^16 is inverse. q2 is 2 q;
 * digit divides coordinates in the basis. Points are of 16 bits, with byte_points of 8; bytes:
 * those that fit can be of 8 bits when decoded, and then no coordinate less o is beyond largest.
 * The index of a level is in `planes` numbers of 16 bits, of `digits` digits each, the lowest
 * first; bytes, and byte_points, have but one.
 */
struct hzi_lane_rule {
	struct hzi_lane_divisor q, q2, digit;
	int32_t shift, inverse;
	bool pow2, bytes, byte_points;
	int32_t largest;
	int32_t digits, planes;
};

#define HZI_LATTICE_PLANES 24	/* of all levels that lanes hold */

/*
 * Points of count blocks x, back to back, and their indices: plane n of level m of block i at
 * index[(m * planes + n) * HZI_LATTICE_RUN + i]. The scale is inverse, or inverses[i], times
 * factors[i] if not NULL. miss[i]: 0, HZI_LATTICE_MISS if the block does not fit, and
 * HZI_LATTICE_FAR beside it where indices mean nothing: y is not a number, or rounds to more than
 * far. error[i], if wanted, is that of hzi_lattice_error(). Arrays have HZI_LATTICE_RUN elements.
 * matrices: NULL, or of a named lattice with a transform.
 */
#define HZI_LATTICE_MISS 1
#define HZI_LATTICE_FAR 2

struct hzi_lattice_rule;
struct hzi_lattice_matrices;

struct hzi_lattice_points {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	const struct hzi_lane_rule *lanes;
	const void *x;
	int64_t count;
	int32_t x_dtype, far;
	float inverse;
	const float *inverses, *factors;
	uint16_t *index, *miss;
	float *error;
};

/* Indices as above of count blocks to LEVEL codes of bytes bytes, back to back */
struct hzi_lattice_codes {
	const uint16_t *index;
	void *codes;
	int64_t count;
	int32_t levels, bytes;
};

/*
 * Values of count blocks from LEVEL codes, back to back, levels of each of bytes bytes, the finest
 * of weight q^first: (p - o) unit - sub[j], times scale, or scales[i] for block i. D_4 and E8 with
 * lanes of 8 bits. scales has room for LANES more; sub is NULL for all 0. stream: as of
 * stream_f32(), whose end a count of 0 is. y of HZ_S8 gets p - o itself, count being a multiple of
 * 64.
 */
struct hzi_lattice_values {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lane_rule *lanes;
	const void *codes;
	void *y;
	int64_t count;
	int32_t levels, bytes, first, y_dtype;
	float scale;
	const float *scales, *sub;
	bool stream;
};

/*
 * LEVEL codes of count blocks to indices, in planes `step` apart; blocks and levels are code_block
 * and code_level apart. size: q^d, weight: q^digits.
 */
struct hzi_lattice_index {
	const struct hzi_lane_rule *lanes;
	const void *codes;
	uint16_t *index;
	int64_t count, step, code_block, code_level;
	int32_t levels, bytes;
	uint64_t size;
	uint32_t weight;
};

/*
 * Points less o of count blocks: q^first times the sum of levels, whose indices lie in planes
 * `step` apart, to coordinates that do. Whole vectors, at most of 64, are read and written.
 */
struct hzi_lattice_leaders {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lane_rule *lanes;
	const uint16_t *index;
	int16_t *p;
	int64_t count, step;
	int32_t levels, first;
};

/*
 * Values of such points, as hzi_lattice_value(), back to back; scales[i] is that of block i, or
 * NULL: scale. sub and matrices are NULL where there is nothing to be done. y of HZ_S8, HZ_S16 or
 * HZ_S32: the lower bytes of rule->embed planes, of which nothing else counts.
 */
struct hzi_lattice_scale {
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	const int16_t *p;
	void *y;
	int64_t count, step;
	int32_t y_dtype;
	float scale;
	const float *scales, *sub;
};

/*
 * Of count blocks x, back to back, times the matrix unless NULL: sums of squares, and the largest
 * of sizes; norm and most have room for LANES more.
 */
struct hzi_lattice_norms {
	const struct hzi_lattice_matrices *matrices;
	const void *x;
	float *norm, *most;
	int64_t count;
	int32_t d, x_dtype;
};

/* scale[t] of count T, those beyond last being last */
struct hzi_lattice_scales {
	const uint8_t *t;
	const float *scale;
	float *to;
	int64_t count;
	int32_t last;
};

/* ---- Hyper-connections ----------------------------------------------------------------------- */

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

struct hz_kern {
	int32_t lanes;		/* f32 elements of a vector */
	int32_t head_bits;	/* most bits that head() takes */
	int32_t pass_bits;	/* most bits that pass() takes */
	void (*head)(const struct hzi_head *a);
	void (*pass)(const struct hzi_pass *a);
	void (*base_mul)(const struct hzi_base_mul *a);
	/* y[j * y_ld + i] = x[i * x_ld + j], i < rows, j < cols; x and y apart */
	void (*transpose)(const float *x, int64_t x_ld, float *y, int64_t y_ld, int64_t rows,
			  int64_t cols);
	void (*quant)(const struct hzi_quant *a);
	void (*dequant)(const struct hzi_dequant *a);

	void (*codes)(const struct hzi_qcodes *a);	/* q = quantize(x) */
	void (*uncode)(const struct hzi_qcodes *a);	/* x = dequantize(q) */
	void (*range)(const struct hzi_range *a);
	void (*params)(const struct hzi_params *a);

	/*
	 * Packed rows of A begin at multiples of q_rows rows, at qpack_a_bytes() of these. Packing
	 * subtracts qpack_a_less() from each code, so that a level that lacks a mix of signs can do
	 * it with another.
	 */
	int32_t q_rows;
	int32_t q_sums;			/* bytes that qmul() wants for sums of parts of k, or 0 */
	bool q_lazy, q_floats;
	int64_t (*qpack_a_bytes)(int64_t m, int64_t k);
	int32_t (*qpack_a_less)(int32_t a_dtype, int32_t b_dtype);
	void (*qpack_a)(const struct hzi_qpack_a *a);
	void (*qpack_b)(const struct hzi_qpack_b *a);
	void (*qmul)(const struct hzi_qmul *a);
	void (*qout)(const struct hzi_qout *a);
	void (*lattice_points)(const struct hzi_lattice_points *a);
	void (*lattice_codes)(const struct hzi_lattice_codes *a);
	void (*lattice_values)(const struct hzi_lattice_values *a);
	void (*lattice_index)(const struct hzi_lattice_index *a);
	void (*lattice_leaders)(const struct hzi_lattice_leaders *a);
	void (*lattice_scale)(const struct hzi_lattice_scale *a);
	void (*lattice_scales)(const struct hzi_lattice_scales *a);
	void (*lattice_norms)(const struct hzi_lattice_norms *a);
	void (*quat_row)(const struct hzi_quat_row *a);
	void (*quat_total)(const struct hzi_quat_total *a);
	void (*quat_put)(const struct hzi_quat_put *a);
	/*
	 * Steps of lib/quat_layer/quat_layer.h, of f32, f16 or bf16: boxes of cpu/quat_layer/gather.h, chunks or pixels
	 * begin to end - 1. Affine and drop take one dtype in all arrays, whose channels lie back
	 * to back: rows begin to end - 1; count quaternions, the first of which is number from.
	 */
	void (*quat_map)(const struct hzi_qmap_args *a, int64_t begin, int64_t end);
	void (*quat_depth)(const struct hzi_qdepth_args *a, int64_t begin, int64_t end);
	void (*quat_affine)(const struct hzi_qmap_args *a, int64_t begin, int64_t end);
	void (*quat_sums)(const struct hzi_qsum_args *a, int64_t begin, int64_t end);
	void (*quat_drop)(const struct hzi_qmap_args *a, const void *x, void *y, int64_t count,
			  uint64_t from);
	void (*quat_pool)(const struct hzi_qpool_args *a, int64_t begin, int64_t end);
	void (*quat_pool_bwd)(const struct hzi_qpool_args *a, int64_t begin, int64_t end);
	/* For bench: the instructions alone of so many multiplications, or NULL */
	void (*qpeak)(int64_t macs);
	/* of so many multiply-adds of f32; y = a + 3 b, for whole vectors, aligned if streamed */
	void (*peak)(int64_t fmas);
	void (*triad)(const float *a, const float *b, float *y, int64_t n, bool stream);
	/* A sum over n floats in eight streams, whole vectors in each */
	float (*read)(const float *p, int64_t n);

	struct hzi_quat_kern quat[2];	/* f32, f64 */

	void (*vlut_sum)(const struct hzi_vlut_sum *a);
	void (*vlut_range)(const struct hzi_vlut_table *a);
	void (*vlut_table)(const struct hzi_vlut_table *a);
	void (*vlut_points)(const struct hzi_vlut_points *a);
	void (*vlut_quads)(const struct hzi_vlut_quads *a);
	bool vlut_computes;		/* leaders by lanes, where there are tables of words too */
	void (*vlut_widen)(const struct hzi_vlut_widen *a);
	/* 64 rows of bytes, count long, row i at rows + i * step, to count * 64 as in panels */
	void (*vlut_turn)(const uint8_t *rows, int64_t step, int64_t count, uint8_t *to);
	/*
	 * round(x factor), less than 2^22 in magnitude, as sums of 256^p times the signed byte at
	 * to + p * step, p < parts, of which the last may be anything that is left
	 */
	void (*vlut_cut)(const float *x, int64_t count, float factor, int parts, int8_t *to,
			 int64_t step);
	/* The largest magnitude, as bits: with NaN or Inf no less than 0x7f800000 */
	int32_t (*vlut_most)(const float *x, int64_t count);
	/* Rows of x at a time, 16 at most, and in all, up to which it beats vlut_fields_points() */
	int32_t fields_rows, fields_most;
	void (*vlut_fields)(const struct hzi_vlut_fields *a);
	void (*vlut_fields_points)(const struct hzi_vlut_fields_points *a);
	void (*vlut_fields_codes)(const struct hzi_vlut_fields_codes *a);
	/* count numbers, a multiple of 16: of each 16 number 4 j + i comes to 4 i + j. */
	void (*vlut_fields_order)(int8_t *x, int64_t count);

	void (*mhc_row)(const struct hzi_mhc_row *a);
	void (*mhc_row_bwd)(const struct hzi_mhc_row_bwd *a);
	void (*mhc_scale)(const struct hzi_mhc_scale *a);
	/* Floats of count numbers of dtype, NULL: none; sums of squares, lanes floats, added to */
	void (*mhc_widen)(const void *x, int dtype, int64_t count, float *to, float *squares,
			  const void *ahead);	/* as in struct hzi_mhc_row */
	/* to[i] = the sum of the lanes floats at sums + i * lanes */
	void (*mhc_fold)(const float *sums, int64_t count, float *to);
	void (*mhc_project)(const struct hzi_mhc_product *a);
	/* Of matrix units: all or none */
	void (*mhc_split)(const struct hzi_mhc_parts *a);
	void (*mhc_weave)(const struct hzi_mhc_parts *a);
	void (*mhc_half)(const struct hzi_mhc_half *a);
	void (*mhc_half_spread)(const struct hzi_mhc_half_spread *a);
	void (*mhc_half_outer)(const struct hzi_mhc_half_outer *a);
	void (*mhc_half_back)(const struct hzi_mhc_half_back *a);
	void (*mhc_spread)(const struct hzi_mhc_product *a);
	void (*mhc_outer)(const struct hzi_mhc_product *a);
	void (*mhc_coefs)(const struct hzi_mhc_batch *b);
	void (*mhc_coefs_bwd)(const struct hzi_mhc_batch *b);
	void (*mhc_sinkhorn)(const struct hzi_mhc_batch *b);
	void (*mhc_sinkhorn_bwd)(const struct hzi_mhc_batch *b);
	void (*mhc_phi_half)(const struct hzi_mhc_phi *a);
	void (*mhc_phi_spread)(const struct hzi_mhc_phi *a);
};

/* Each puts its level's kernels into the table, over those of lower levels. */
void hzi_kern_c(struct hz_kern *kern);
void hzi_kern_avx2(struct hz_kern *kern);
void hzi_kern_avx512(struct hz_kern *kern);
void hzi_kern_vnni(struct hz_kern *kern);
void hzi_kern_amx(struct hz_kern *kern);
void hzi_kern_neon(struct hz_kern *kern);

#endif
