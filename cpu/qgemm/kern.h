/*
 * kern.h - the micro-kernels of quantized multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QGEMM_KERN_H
#define HZI_QGEMM_KERN_H

#include "cpu/core/kern.h"

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
	void *sums;			/* hzi_qgemm_kern.sums bytes, or NULL, which is slower */
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

struct hzi_qgemm_kern {
	/*
	 * Packed rows of A begin at multiples of `rows` rows, at pack_a_bytes() of these. Packing
	 * subtracts pack_a_less() from each code, so that a level that lacks a mix of signs can do
	 * it with another.
	 */
	int32_t rows;
	int32_t sums;			/* bytes that mul() wants for sums of parts of k, or 0 */
	bool lazy, floats;
	int64_t (*pack_a_bytes)(int64_t m, int64_t k);
	int32_t (*pack_a_less)(int32_t a_dtype, int32_t b_dtype);
	void (*pack_a)(const struct hzi_qpack_a *a);
	void (*pack_b)(const struct hzi_qpack_b *a);
	void (*mul)(const struct hzi_qmul *a);
	void (*out)(const struct hzi_qout *a);
};

HZI_KERN(qgemm)

#endif
