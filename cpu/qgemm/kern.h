/*
 * kern.h - the micro-kernels of quantized multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QGEMM_KERN_H
#define HZI_QGEMM_KERN_H

#include "cpu/core/kern.h"
#include "lib/qgemm/group.h"

/*
 * m rows of packed A by n columns of B in HZI_QGEMM_LAYOUT_CPU (lib/qgemm/qgemm.h): panels of 32
 * columns, b_panel bytes apart; ceil(k / 64) * 2048 bytes of each are read. m, n and k
 * need not fill panels; nothing beyond them is written. Accumulation is mod 2^32. c_ld counts
 * elements.
 *
 * raw: c is s32 and gets the sums of products of a (as packed) and b, without zero points; its rows
 * have space for whole panels, which may be written.
 * Otherwise c of u8 or s8 gets clamp(c_zero + y, min, max) with
 *   acc = sum + col[j] - (row ? b_zero[j] * row[i] : 0)	(mod 2^32; the true value fits)
 *   y = floor((acc * u[j] + 2^(shift[j] - 1)) / 2^shift[j]), 33 <= shift[j] <= 62
 * where col, b_zero, u and shift have values for whole panels of columns. With float_epilogue,
 * a_zero[i] * b_sum[j] is subtracted from acc; c of s32 gets acc clamped to min .. max; c of floats
 * is as in hzi_qgemm_epilogue, with b_scale for whole panels and a bias of f32 or none.
 *
 * b_sum: also for raw, where A is packed as `split`.
 *
 * src (levels with packs_a): A is not packed yet, but rows of k contiguous codes, src_ld apart. a
 * and row are the buffers to pack it to, as by pack_a(). With a_zero, row[i] is the sum of the row
 * minus k a_zero[i]; with src that is subtracted here.
 */
struct hzi_qgemm_mul {
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
	int64_t a_step;			/* 0: one a_scale for all rows */
	float fmin, fmax;
	void *sums;			/* hzi_qgemm_kern.sums bytes, or NULL, which is slower */
};

/*
 * Packs m rows of k codes of A, element (i, j) at a + i * a_m + j * a_k, for mul(); padding adds
 * nothing to sums. row[i] becomes the sum of the codes as packed, mod 2^32; NULL: not wanted.
 * split: mul() gets b_sum, and the first of these rows is a multiple of hzi_qgemm_kern.rows.
 */
struct hzi_qgemm_pack_a {
	const void *a;
	void *packed;
	int32_t *row;
	int64_t m, k, a_m, a_k;
	int32_t a_dtype, b_dtype;
	bool split;
};

/*
 * Packs k x n codes of B, element (i, j) at b + i * b_k + j * b_n, to panels of 32 columns in
 * HZI_QGEMM_LAYOUT_CPU, and sums the columns, for whole panels.
 */
struct hzi_qgemm_pack_b {
	const void *b;
	uint8_t *packed;
	int32_t *sum;
	int64_t k, n, b_k, b_n;
	int32_t b_dtype;
};

/*
 * Epilogue of rows x cols accumulators, by any formula of lib/qgemm/qgemm.h. acc of row i and
 * column j is clamp_s32(S + bias[j]), S = sum[i * sum_ld + j] + col[j] - b_zero[j] * row[i] -
 * a_zero[i] * b_sum[j] mod 2^32. NULL operands contribute nothing; b_zero goes with row, b_sum with
 * a_zero. C of floats: a_scale[i * a_step]. identity: u and shift are not read. HZ_REQUANT_FLOAT
 * and LITERT_REF: they hold the words of hzi_requant_words().
 */
struct hzi_qgemm_epilogue {
	const int32_t *sum;
	void *c;
	int64_t sum_ld, rows, cols, c_m, c_n, a_step;
	const int32_t *col, *b_zero, *row, *a_zero, *b_sum;
	const void *bias;		/* bias_dtype: HZ_S32 or HZ_F32 */
	const int32_t *u, *shift;
	const float *b_scale, *a_scale;
	int32_t bias_dtype, c_dtype, requant, identity, c_zero, min, max;
	float fmin, fmax;
	bool a_scale_first;		/* C of floats: acc * a_scale * b_scale */
};

/*
 * A matrix W in place by a few vectors X: sum[j * sum_ld + i] = the sum over l < k of W(i, l) X(j,
 * l), mod 2^32, for v vectors and `rows` rows. W(i, l) is at w + i * w_r + l * w_k; by_rows: w_k is
 * 1, else w_r is 1. X(j, l) is as skinny_pack() wrote it to x + j * x_ld. sum_ld is at least rows,
 * rounded up to 64; part has as many elements as sum, for accumulators.
 */
struct hzi_qgemm_skinny {
	const void *w, *x;
	int32_t *sum, *part;
	int64_t rows, k, w_r, w_k, x_ld, sum_ld;
	int32_t v, w_dtype;
	bool by_rows;
};

/*
 * Packs k codes of X for skinny(). Up to a multiple of 64 they are readable, and twice as many
 * bytes are writable. With flips_x, codes of the dtype of W become those of the other dtype, offset
 * by 128.
 */
struct hzi_qgemm_skinny_pack {
	const void *x;
	void *packed;
	int64_t k;
	int32_t x_dtype, w_dtype;
	bool by_rows;
};

/*
 * c[i][j] = the sum over l < k of (A(i, l) - a_zero) (B(l, j) - b_zero), mod 2^32; A(i, l) is at a +
 * i * a_m + l * a_k, B(l, j) at b + l * b_k + j with b_k >= 0, or b is packed. 0 < k <=
 * HZI_QGEMM_SMALL_K. codes is scratch for m rows of k numbers, rounded up to 8.
 */
#define HZI_QGEMM_SMALL_K 256

struct hzi_qgemm_small {
	const void *a, *b;
	int32_t *c;
	int16_t *codes;
	int64_t m, n, k, a_m, a_k, b_k, c_ld;
	int32_t a_zero, b_zero, a_dtype, b_dtype;
	bool packed;
};

/*
 * y[r][16] += the sum of a chunk for a panel of group-wise quantized weights and row r of x, by the
 * formula of hz_qlinear_group(); rows is 1 or HZI_GROUP_ROWS. codes and x begin at the chunk,
 * scale and zero at its first group; they are as lib/qgemm/group.h has them, zero NULL where all of u
 * have zero_all. A step is 32 of k, or 16 with by_16, which floats always have; a unit is `unit`
 * steps. The group of a step is step >> group_shift; the scale of x of a unit is x_scale[unit >>
 * x_scale_shift]. x: floats, or s8 with sums of units, times zero_all if zero is NULL.
 */
#define HZI_GROUP_ROWS 4

struct hzi_group_mul {
	const uint8_t *codes;
	const float *scale, *x_scale;
	const int32_t *zero, *x_sum;
	const void *x;
	float *y;
	int64_t steps, unit, x_ld, x_scale_ld, x_sum_ld;
	int32_t rows, kind, zero_all, group_shift, x_scale_shift;
	bool floats, by_16;
};

/*
 * The codes of a panel from contiguous rows of W, w_n bytes apart: 16 bytes of each column become
 * four rows of the layout, `to` then advances by 256 bytes. Columns that are missing become 0.
 * flip: bits of the codes that are flipped.
 */
struct hzi_group_pack {
	const uint8_t *w;
	void *to;
	int64_t w_n, blocks;
	int32_t columns;
	uint32_t flip;
};

struct hzi_qgemm_kern {
	/*
	 * Row i of packed A, i a multiple of `rows`, begins at byte pack_a_bytes(i, k). Packing
	 * subtracts pack_a_offset() from each code: a level whose instructions lack a mix of
	 * signedness uses another mix.
	 */
	int32_t rows;
	int32_t sums;			/* bytes of scratch of mul() for accumulators */
	bool packs_a;			/* mul() also takes A before it is packed */
	bool float_epilogue;		/* mul() makes C of floats or s32, too */
	int64_t (*pack_a_bytes)(int64_t m, int64_t k);
	int32_t (*pack_a_offset)(int32_t a_dtype, int32_t b_dtype);
	void (*pack_a)(const struct hzi_qgemm_pack_a *a);
	void (*pack_b)(const struct hzi_qgemm_pack_b *a);
	void (*mul)(const struct hzi_qgemm_mul *a);
	void (*epilogue)(const struct hzi_qgemm_epilogue *a);
	bool flips_x;
	void (*skinny_pack)(const struct hzi_qgemm_skinny_pack *a);
	void (*skinny)(const struct hzi_qgemm_skinny *a);
	void (*group)(const struct hzi_group_mul *a);
	void (*group_pack)(const struct hzi_group_pack *a);
	void (*small)(const struct hzi_qgemm_small *a);
};

HZI_KERN(qgemm)

#endif
