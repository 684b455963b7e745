/*
 * lattice.h - what implementations of the lattice quantizer get
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LATTICE_H
#define HZI_LATTICE_H

#include <stdint.h>

#include "lib/lattice_rule.h"

/* A quantizer: the numbers that kernels take by value, and what the host has beside them. */
struct hz_lattice {
	struct hzi_lattice_rule rule;	/* lattice_rule.h */
	hz_allocator allocator;
	int32_t policy, banks, first_fit;
	double to_lattice[HZ_LATTICE_MAXDIM * HZ_LATTICE_MAXDIM];
	double from_lattice[HZ_LATTICE_MAXDIM * HZ_LATTICE_MAXDIM];
	double basis[HZ_LATTICE_MAXDIM * HZ_LATTICE_MAXDIM];
	int32_t *leaders;		/* [q^d][embed] if q^d <= 65536 */
	int32_t *level_sums;		/* NULL or further tables of the CPU: cb says */
};

/*
 * Rows: the outer dimensions, collapsed as far as strides allow, no size 0. Element i of a row of x
 * is at i * x_step, code m of block k at k * code_block + m * code_level, T of block or group k at
 * k * t_step; strides count elements and those of x may be negative or 0.
 */
struct hzi_lattice_map {
	int64_t n, blocks;
	int32_t ndim;
	int64_t shape[HZ_MAXDIM], v_stride[HZ_MAXDIM], code_stride[HZ_MAXDIM], t_stride[HZ_MAXDIM];
	int64_t v_step, code_block, code_level, t_step;
	int64_t v_block, v_level;	/* POINTS and DIGITS: v is [..., blocks, (M,) embed or d] */
};

/* rotated: x is transformed by it before; NULL: no transform. */
struct hzi_lattice_encode_args {
	const struct hz_lattice *lattice;
	struct hzi_lattice_map map;
	const void *rotated;
	const void *x;
	void *codes;
	uint8_t *t;			/* or NULL */
	int64_t *overload;		/* or NULL: two counts */
	int32_t x_dtype, code_dtype, pack;
};

struct hzi_lattice_decode_args {
	const struct hz_lattice *lattice;
	struct hzi_lattice_map map;
	const void *rotated;
	const void *codes;
	const uint8_t *t;
	void *y;
	int32_t y_dtype, code_dtype, pack;
	int32_t to, first;		/* levels first .. M - 1 are used; code_level counts from first */
};

struct hzi_lattice_repack_args {
	const struct hz_lattice *lattice;
	struct hzi_lattice_map from, to;
	const void *from_codes;
	void *to_codes;
	int32_t from_dtype, to_dtype, from_pack, to_pack;
};

/* One coded matrix of a product. */
struct hzi_coded {
	const void *codes, *packed;
	const uint8_t *t;
	const float *row_scale;
	int32_t code_dtype, first;	/* levels first .. M - 1 */
	int64_t rows, k, blocks;
	int64_t row, block, level;	/* strides of codes */
	int64_t t_row, t_step, row_scale_step;
};

struct hz_vlut {
	hz_context *ctx;
	const struct hz_lattice *w, *x;	/* x NULL: dense */
	int32_t route, table_dtype, sum, compensated;
	void *table;			/* two-sided, on ctx's device, [q^d of w][q^d of x]; or NULL */
	int64_t table_bytes;
};

/* y[i, j] = row_scale_i sum_k s(T_ik) <p_ik - o - z, x_jk>, y f32 f16 bf16; or s32 */
struct hzi_vlut_gemm_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w;
	const void *x;
	void *y;
	int32_t x_dtype, y_dtype;
	int64_t batch, x_k, x_b, y_i, y_b;
};

struct hzi_vlut_gemm2_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w, x;
	void *y;
	int32_t y_dtype;
	int64_t y_i, y_j;
};

struct hzi_vlut_pack_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w;
	void *packed;
};

#endif
