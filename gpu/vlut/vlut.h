/*
 * vlut.h - parameters of the generic products with lattice codes, and of packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_H
#define HZI_GPU_VLUT_H

#include "hurwitz.h"
#include "lib/lattice/lattice_math.h"

#ifdef __cplusplus
#define HZI_VLUT_ASSERT static_assert
#else
#define HZI_VLUT_ASSERT _Static_assert
#endif

#define HZI_VLUT_TILE 64	/* rows and columns of a block of vlut_any */
#define HZI_VLUT_STEP 32	/* of k, at most: whole lattice blocks */
#define HZI_VLUT_THREADS 256
#define HZI_VLUT_WARPS (HZI_VLUT_THREADS / 32)	/* rows of a block of vlut_lookup */

/*
 * A coded matrix: level m >= first of block b of row i at i * row + b * block + (m - first) *
 * level. Or with bits > 0 packed bits: D4 as in d4_bitfield.h, E8 as in e8_bitplane.h.
 */
struct hzi_vlut_coded {
	struct hzi_lattice_rule rule;
	const void *codes;
	const uint8_t *t;		/* at i * t_row + b / rule.group * t_step; or NULL */
	const float *row_scale;		/* or NULL */
	int64_t rows, blocks;
	int64_t row, block, level, t_row, t_step, row_scale_step;
	float sub[HZI_LATTICE_DIMS];
	int32_t code_bytes, first;
	int64_t bits;			/* chunks or units of a row of packed bits; or 0 */
};

/* Dense x, f32 f16 bf16 s8 [k, columns], or the values of a coded matrix's rows; and y. */
struct hzi_vlut_dense {
	const void *x;
	void *y;
	int64_t x_k, x_b, y_i, y_b;
	int64_t k, columns;
	int32_t x_dtype, y_dtype;
};

/* vlut_any: W x. A grid of tiles of rows and of columns. */
struct hzi_vlut_any {
	struct hzi_vlut_coded w;
	struct hzi_vlut_dense d;
};

struct hzi_vlut_any_mapped {
	struct hzi_vlut_any any;
	struct hzi_lattice_matrices w;
};

/* vlut_any2: W X^T, both coded. */
struct hzi_vlut_any2 {
	struct hzi_vlut_coded w, x;
	struct hzi_vlut_dense d;
};

struct hzi_vlut_any2_mapped {
	struct hzi_vlut_any2 any;
	struct hzi_lattice_matrices w, x;
};

/*
 * vlut_table, vlut_lookup: one-sided, in slices of lattice blocks. table: [column][block of the
 * slice][q^d] of table_dtype, <c, x>. bias: [column][block], <-o - sub, x>. factor: with a
 * table_dtype of u8 or u16 two numbers (factor, least) a block. sums, rest: [column][row] of the
 * slices before, and their compensation.
 */
struct hzi_vlut_table {
	struct hzi_vlut_any any;
	void *table;
	float *bias, *factor, *sums, *rest;
	int64_t entries;		/* q^d */
	int64_t begin, count;		/* the slice */
	int32_t table_dtype, compensated, last, pad_;
};

struct hzi_vlut_table_mapped {
	struct hzi_vlut_table table;
	struct hzi_lattice_matrices w;
};

/*
 * vlut_pairs, vlut_lookup2: two-sided by table [q^d of w][q^d of x], s8 or s16. whole and part:
 * [q^d] of <c, o> as integers and <c, sub> of the other side's.
 */
struct hzi_vlut_table2 {
	struct hzi_vlut_any2 any;
	const void *table;
	int64_t *w_whole, *x_whole;
	float *w_part, *x_part;
	int64_t w_entries, x_entries;
	int64_t first;			/* of the rows of x that are looked up */
	float unit;			/* of integers' products: 1, 1/2 or 1/4 */
	int32_t table_dtype;
};

/*
 * vlut_sums: y_ij = row_scale_i (sum_ij factor column_scale_j) from s32 accumulators, in place if y
 * is f32. The number in brackets is rounded once, to f32.
 */
#define HZI_VLUT_SUMS 32	/* rows and columns of a block */
struct hzi_vlut_sums {
	const int32_t *sums;		/* at i * sums_i + j * sums_j */
	void *y;
	const float *row_scale, *column_scale;	/* or NULL */
	int64_t rows, columns;
	int64_t sums_i, sums_j, y_i, y_j, row_scale_step, column_scale_step;
	double factor;
	int32_t y_dtype, across;	/* grid x counts tiles of columns, not of rows */
};

/* vlut_pack: codes to rows of `row_bytes`, then T to rows of `t_bytes`. */
struct hzi_vlut_pack {
	const void *codes;
	const uint8_t *t;
	uint8_t *packed, *packed_t;
	int64_t rows, blocks, groups;
	int64_t row, block, level, t_row, t_step, row_bytes, t_bytes;
	int32_t code_bytes, levels, first, pad_;
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_coded) == 1032, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_table2) == 2208, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_sums) == 112, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_any2_mapped) == 20952, "the same layout for C and CUDA");

#endif
