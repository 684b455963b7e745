/*
 * vlut.h - parameters of the generic products with lattice codes, and of packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_H
#define HZI_GPU_VLUT_H

#include <assert.h>

#include "hurwitz.h"
#include "lib/lattice/lattice_math.h"

#define HZI_VLUT_TILE 64	/* rows and columns of a block of vlut_generic */
#define HZI_VLUT_STEP 32	/* values of k per step at most: whole lattice blocks */
#define HZI_VLUT_THREADS 256
#define HZI_VLUT_WARPS (HZI_VLUT_THREADS / 32)	/* rows of a block of vlut_table_lookup */

/*
 * A coded matrix. The code of nesting level m >= first of lattice block b of row i is element i *
 * row + b * block + (m - first) * level of `codes`. If bits > 0, `codes` is packed bits instead: D4
 * as in d4_bitfield.h, E8 as in e8_bitplane.h.
 */
struct hzi_vlut_coded {
	struct hzi_lattice_rule rule;
	const void *codes;
	const uint8_t *t;		/* at i * t_row + b / rule.group * t_step; NULL: none */
	const float *row_scale;		/* or NULL */
	int64_t rows, blocks;
	int64_t row, block, level, t_row, t_step, row_scale_step;
	float sub[HZI_LATTICE_DIMS];
	int32_t code_bytes, first;
	int64_t bits;			/* packed bits: chunks (D4) or units (E8) per row; else 0 */
};

/* Dense x [k, columns] of f32, f16, bf16 or s8; and y. */
struct hzi_vlut_dense {
	const void *x;
	void *y;
	int64_t x_k, x_b, y_i, y_b;
	int64_t k, columns;
	int32_t x_dtype, y_dtype;
};

/* Codes to pack as bits; addresses as in struct hzi_vlut_coded; chunks of a row, units for E8 */
struct hzi_vlut_bit_pack {
	const void *codes;
	void *packed;
	int64_t rows, blocks, row, block, level;
	int64_t tiles, chunks;
	int32_t first, pad_;
};

/* The first members of the parameters of y = W x, W packed as bits */
#define HZI_VLUT_PRODUCT_MEMBERS \
	const uint8_t *packed; \
	const float *row_scale; \
	const void *x; \
	void *y; \
	int64_t row_scale_step, x_k, x_b, y_i, y_b; \
	int32_t rows, k;

/* y = W x */
struct hzi_vlut_generic {
	struct hzi_vlut_coded w;
	struct hzi_vlut_dense d;
};

/*
 * vlut_generic: y = W X^T, both coded, or with no rows of x: y = W x. Grid: tiles of rows, tiles of
 * columns.
 */
struct hzi_vlut_generic2 {
	struct hzi_vlut_coded w, x;
	struct hzi_vlut_dense d;
};

struct hzi_vlut_generic2_mapped {
	struct hzi_vlut_generic2 generic;
	struct hzi_lattice_matrices w, x;
};

/*
 * vlut_table_build, vlut_table_lookup: W coded, x dense; k is processed in slices of lattice
 * blocks. table [column][block of the slice][q^d] of table_dtype: <c, x> of each leader c. bias
 * [column][block]: <-o - sub, x>. factor: for u8 and u16 tables, two numbers (factor, minimum) per
 * block. sums [column][row]: the sums of the slices before this one; compensation: their Neumaier
 * compensation.
 */
struct hzi_vlut_table {
	struct hzi_vlut_generic generic;
	void *table;
	float *bias, *factor, *sums, *compensation;
	int64_t entries;		/* q^d */
	int64_t begin, count;		/* blocks of the slice */
	int32_t table_dtype, compensated, last, pad_;
};

struct hzi_vlut_table_mapped {
	struct hzi_vlut_table table;
	struct hzi_lattice_matrices w;
};

/*
 * vlut_table2_dots, vlut_table2_lookup: both sides coded; table [q^d of w][q^d of x] of s8 or s16.
 * dot_offset and dot_sub [q^d]: <c, o> as integers and <c, sub>, with o and sub of the other side.
 */
struct hzi_vlut_table2 {
	struct hzi_vlut_generic2 generic;
	const void *table;
	int64_t *w_dot_offset, *x_dot_offset;
	float *w_dot_sub, *x_dot_sub;
	int64_t w_entries, x_entries;
	int64_t first;			/* first row of x of this launch */
	float unit;			/* value of 1 in the table: 1, 1/2 or 1/4 */
	int32_t table_dtype;
};

/*
 * vlut_epilogue_s32: y_ij = row_scale_i (sum_ij factor column_scale_j) from s32 accumulators. If y
 * is f32, it may overlay the accumulators. The product in parentheses is rounded once, to f32.
 */
#define HZI_VLUT_EPILOGUE_TILE 32	/* rows and columns of a block's tile */
struct hzi_vlut_epilogue {
	const int32_t *sums;		/* element i * sums_i + j */
	void *y;
	const float *row_scale, *column_scale;	/* or NULL */
	int64_t rows, columns;
	int64_t sums_i, y_i, y_j, row_scale_step, column_scale_step;
	double factor;
	int32_t y_dtype, columns_fastest;	/* of y; grid x: tiles of columns, y: of rows */
};

/* vlut_pack: copies codes to rows of row_bytes, then T to rows of t_bytes. */
struct hzi_vlut_pack {
	const void *codes;
	const uint8_t *t;
	uint8_t *packed, *packed_t;
	int64_t rows, blocks, groups;
	int64_t row, block, level, t_row, t_step, row_bytes, t_bytes;
	int32_t code_bytes, levels, first, pad_;
};

static_assert(sizeof(struct hzi_vlut_coded) == 1032, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_table2) == 2208, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_epilogue) == 104, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_generic2_mapped) == 20952, "the same layout for C and CUDA");

#endif
