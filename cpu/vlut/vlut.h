/*
 * vlut.h - shared by the files of products with lattice codes on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_VLUT_H
#define HZI_CPU_VLUT_H

#include "cpu/core/cpu.h"
#include "cpu/lattice/kern.h"
#include "cpu/vlut/kern.h"
#include "lib/vlut/vlut.h"

/* A coded matrix, and properties derived from its lattice */
struct hzi_vlut_side {
	const struct hz_lattice *lattice;
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	const struct hzi_coded *w;
	const uint64_t *words;		/* [M][q^d]: bytes of leaders times q^m; NULL: none */
	struct hzi_lattice_simd lanes;	/* if has_simd */
	int64_t row0;			/* of packing: the row that row 0 of w becomes */
	int64_t blocks, panels, panel_bytes, half_bytes;
	int64_t group, groups;		/* blocks that share T; T of a row, 0 without T */
	int64_t reach, offset_max;	/* |p_i - o_i| <= reach, if that is below 2^31; |o_i| */
	int32_t bytes, embed, first, levels;	/* of a code; of a point; levels used */
	int32_t size;			/* of byte tables: 16, 64, 128 or 256, if small */
	bool has_t, small, sub;		/* q^d <= 256; w->sub is not 0 */
	bool has_simd;
	bool bitfield;			/* packed as struct hzi_vlut_bitfield */
	const struct hzi_vlut_label_layout *label;	/* packed as these planes; or NULL */
	int64_t units, unit_bytes;	/* of a panel of labels: 32 values of all rows */
	int32_t unit_blocks;		/* 4, of D4 8 */
	const uint8_t *bitfield_code_table;	/* [256]: the code for each value of the fields */
};

/*
 * Codes of some blocks of a panel: level l of block b at codes + b * step + l * 64 codes; or packed
 * labels of block first + b of the panel at units
 */
struct hzi_vlut_view {
	const uint8_t *codes, *t, *units;
	int64_t first;
	int64_t step;			/* bytes */
};

/* lattice: of w or x of the vlut */
void hzi_vlut_side(struct hzi_vlut_side *s, const struct hz_vlut *vlut,
		   const struct hz_lattice *lattice, const struct hzi_coded *w);

/*
 * View of blocks from `first` on of a panel, first a multiple of group; and the scratch that it
 * needs
 */
int64_t hzi_vlut_view_bytes(const struct hzi_vlut_side *s, int64_t blocks);
struct hzi_vlut_view hzi_vlut_view(const struct hz_context *ctx, const struct hzi_vlut_side *s,
				   int64_t panel, int64_t first, int64_t blocks, uint8_t *scratch);

/* A code, below q^d, of a row of a panel; the point of all levels */
uint32_t hzi_vlut_code(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int row,
		       int64_t block, int level);
void hzi_vlut_point(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v, int row,
		    int64_t block, int32_t *p);

/* The table for hzi_vlut_bytes(), for small lattices */
int64_t hzi_vlut_byte_table_bytes(const struct hzi_vlut_side *s);
void hzi_vlut_byte_table(const struct hzi_vlut_side *s, uint8_t *table);

/*
 * Decodes a view with reach <= 127 to p - o as s8, in two panels of packed B (lib/qgemm/qgemm.h)
 * b_panel bytes apart, k padded with 0 to a multiple of 64.
 */
#define HZI_VLUT_BYTE_REACH 127
void hzi_vlut_bytes(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		    const struct hzi_vlut_view *v, const uint8_t *table, int64_t blocks, uint8_t *b,
		    int64_t b_panel);

/*
 * The same from D4 bit-fields, k in the order of bitfield_order(), whole steps of 64 values; first
 * is a multiple of 16.
 */
void hzi_vlut_bitfield_bytes(const struct hz_context *ctx, const struct hzi_vlut_side *s,
			     int64_t panel, int64_t first, int64_t blocks, uint8_t *b,
			     int64_t b_panel);

/* Scale of T of a row in a view */
static inline float hzi_vlut_scale(const struct hzi_vlut_side *s, const struct hzi_vlut_view *v,
				   int row, int64_t block)
{
	return s->rule->scale[v->t ? v->t[block / s->group * 64 + hzi_vlut_row_at(row)] : 0];
}

/*
 * Converts cols <= HZI_VLUT_COLUMNS columns to f32: column c is n elements from x + first + c *
 * x_ld on, step apart. some: scratch for n of the 16-bit elements of each.
 */
#define HZI_VLUT_COLUMNS 16
void hzi_vlut_load(const struct hz_context *ctx, const void *x, int dtype, int64_t n, int64_t step,
		   int64_t first, int64_t cols, int64_t x_ld, uint16_t *some, float *to,
		   int64_t to_ld);

/* Takes whole cache lines of a workspace; with base NULL only counts them. */
static inline void *hzi_vlut_workspace_take(char *base, size_t *used, int64_t bytes)
{
	void *p = base ? base + *used : NULL;

	*used += ((size_t)bytes + 63) & ~(size_t)63;
	return p;
}

static inline int64_t hzi_vlut_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Columns x', which points are multiplied by, and the term that each block adds times its scale */
struct hzi_vlut_vectors {
	int64_t cols, k;		/* k = blocks * embed */
	float *x;			/* [cols][k] */
	float *sub;			/* [cols][blocks]: -<sub, x>; NULL: 0 */
};

struct hzi_vlut_result {
	void *y;
	int32_t dtype;
	int64_t y_i, y_j;
	const float *bias;		/* of rows; NULL: none */
	int32_t activation;
};

/*
 * Stores 64 floats times their row scales, plus bias, with the activation, to column col of y, from
 * row panel * 64 on.
 */
void hzi_vlut_store(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		  const struct hzi_vlut_result *y, int64_t panel, int64_t col, const float *from);

/* Stores one element times its row scale. */
void hzi_vlut_store_one(const struct hz_context *ctx, const struct hzi_vlut_side *s,
		      const struct hzi_vlut_result *y, int64_t row, int64_t col, float value);

/*
 * Each code path has a struct. The caller fills its first members; _init() sets the others and
 * takes their workspace, or counts it; _run() does the work.
 */

/* Tables in vector registers, u8 (entry_bytes 1) or u16 (2). q^d <= 256; x is finite. */
struct hzi_vlut_regtable {
	struct hz_context *ctx;
	const struct hzi_vlut_side *w;
	struct hzi_vlut_vectors v;
	struct hzi_vlut_result y;
	int32_t entry_bytes;
	/* set by _init() */
	int64_t chunk, group, cols, padded;	/* blocks at a time, of a group; columns; rows */
	int64_t first, blocks, col, count;	/* current chunk, current columns */
	float *leaders, *low, *high, *ordered, *inverse, *weight, *base, *sum;
	int32_t *order;
	uint8_t *table;
	char *scratch;
	int64_t scratch_each;
	int threads;
};

void hzi_vlut_regtable_init(struct hzi_vlut_regtable *j, char *base, size_t *used);
void hzi_vlut_regtable_run(struct hzi_vlut_regtable *j);

/* Points as f32: any lattice */
struct hzi_vlut_f32 {
	struct hz_context *ctx;
	const struct hzi_vlut_side *w;
	struct hzi_vlut_vectors v;
	struct hzi_vlut_result y;
	/* set by _init() */
	int64_t chunk, each, length;	/* blocks at a time; numbers of a block, of a row */
	float *panels;			/* of x: [cols / 6][length][6] */
	uint8_t *table;
	char *scratch;
	int64_t scratch_each;
	int threads;
};

void hzi_vlut_f32_init(struct hzi_vlut_f32 *j, char *base, size_t *used);
void hzi_vlut_f32_run(struct hzi_vlut_f32 *j);

/* Tables of a float type in memory; q^d <= 65536 */
struct hzi_vlut_table_f32 {
	struct hz_context *ctx;
	const struct hzi_vlut_side *w;
	struct hzi_vlut_vectors v;
	struct hzi_vlut_result y;
	int32_t dtype;
	bool compensated;
	/* set by _init() */
	int64_t chunk, first, blocks, col;	/* blocks at a time; current ones */
	float *table, *base;		/* [chunk][q^d], [chunk] */
	float *sum;			/* [panels][64][2]: a sum and its rounding error */
	char *scratch;
	int64_t scratch_each;
	int threads;
};

void hzi_vlut_table_f32_init(struct hzi_vlut_table_f32 *j, char *base, size_t *used);
void hzi_vlut_table_f32_run(struct hzi_vlut_table_f32 *j);

/* p - o and x' as s8; reach <= 127, no T */
struct hzi_vlut_s8 {
	struct hz_context *ctx;
	const struct hzi_vlut_side *w;
	struct hzi_vlut_result y;
	int64_t cols;
	int32_t parts;			/* base-256 digits of a column, the lowest first */
	/* set by _init() */
	double *factor, *shift;		/* [cols]: y = row_scale_i (factor_j sum + shift_j) */
	int8_t *rows;
	int64_t k, chunk, chunks, groups;	/* blocks at a time; groups of columns */
	uint8_t *table;
	char *packed, *scratch;
	int64_t packed_each, scratch_each;
	int threads;
	bool zero;			/* multiply a row of 0, too: see group_rows() */
};

void hzi_vlut_s8_init(struct hzi_vlut_s8 *j, char *base, size_t *used);
/* Where the caller stores the digits of a column, k apart, with its factor and shift */
int8_t *hzi_vlut_s8_row(const struct hzi_vlut_s8 *j, int64_t col);
void hzi_vlut_s8_run(struct hzi_vlut_s8 *j);

/* D4 bit-fields by a few rows of s8 digits, which the caller stores at _row() */
struct hzi_vlut_d4_bitfield {
	struct hz_context *ctx;
	const struct hzi_vlut_side *w;
	struct hzi_vlut_result y;
	int64_t cols;
	int32_t parts;			/* see struct hzi_vlut_s8 */
	/* set by _init() */
	double *factor, *shift;		/* likewise */
	int64_t *offset_dot;		/* [cols]: <o, x'> */
	int64_t k, rows;		/* k: whole steps */
	int8_t *x;			/* [rows][k] */
	char *scratch;
	int64_t scratch_each;
	int threads;
};

void hzi_vlut_d4_bitfield_init(struct hzi_vlut_d4_bitfield *j, char *base, size_t *used);
int8_t *hzi_vlut_d4_bitfield_row(const struct hzi_vlut_d4_bitfield *j, int64_t col);
void hzi_vlut_d4_bitfield_run(struct hzi_vlut_d4_bitfield *j);

/* For kernels of labels */
static inline int hzi_vlut_shaping(const struct hzi_vlut_side *s)
{
	return s->rule->shaping + (s->label->paired ? HZI_VLUT_PAIRED : 0);
}

/* Packed labels by rows of s8; the caller stores digits at _row(), or sets by_32 and v */
struct hzi_vlut_label_path {
	struct hz_context *ctx;
	const struct hzi_vlut_side *w;
	struct hzi_vlut_vectors v;
	struct hzi_vlut_result y;
	int64_t cols;
	int32_t parts;			/* see struct hzi_vlut_s8 */
	bool by_32;			/* x is quantized by 32 values; parts is 1 */
	/* set by _init() */
	bool x_pairs;			/* as of struct hzi_vlut_label */
	double *factor, *shift;		/* of digits; shift is 0 */
	int64_t units, rows, padded;	/* rows of x, and of its storage */
	int8_t *digits, *x;		/* [rows][32 units], [padded][4 units] blocks of kern.h */
	float *x_scale;			/* [padded][units] */
	char *scratch;
	int64_t scratch_each;
	int threads;
};

void hzi_vlut_label_init(struct hzi_vlut_label_path *j, char *base, size_t *used);
int8_t *hzi_vlut_label_row(const struct hzi_vlut_label_path *j, int64_t col);
void hzi_vlut_label_run(struct hzi_vlut_label_path *j);

/* ---- vlut_gemm (gemm.c): properties of a call that routes look at ---------------------------- */

enum {
	HZI_VLUT_D4_BITFIELD, HZI_VLUT_LABEL, HZI_VLUT_REGTABLE, HZI_VLUT_TABLE_F32, HZI_VLUT_S8,
	HZI_VLUT_F32
};

struct hzi_vlut_gemm_job {
	struct hz_context *ctx;
	const struct hzi_vlut_gemm_args *a;
	struct hzi_vlut_side w;
	struct hzi_vlut_vectors v;
	bool integer_x;			/* x' is s8, or halves of s8 */
	int32_t parts;			/* digits of a column, where it becomes s8 */
	int32_t *most;			/* [cols]: largest |x'|, as bits */
	char *scratch;
	int64_t scratch_each;
	int threads;
	struct hzi_vlut_regtable regtable;
	struct hzi_vlut_d4_bitfield d4_bitfield;
	struct hzi_vlut_label_path label;
	struct hzi_vlut_s8 s8;
	struct hzi_vlut_f32 f32;
	struct hzi_vlut_table_f32 table_f32;
};

/* a must have blocks. */
void hzi_vlut_gemm_begin(struct hzi_vlut_gemm_job *j, struct hz_context *ctx,
			 const struct hzi_vlut_gemm_args *a);

/* Whether x is quantized by 32 values, instead of split into digits, for HZI_VLUT_LABEL */
bool hzi_vlut_label_by_32(const struct hzi_vlut_gemm_job *j);

/*
 * Computes the product by a path of the enum, in the workspace at base; extreme values of x need
 * HZI_VLUT_F32. Base NULL: only returns the bytes.
 */
size_t hzi_vlut_gemm(struct hzi_vlut_gemm_job *j, int path, char *base);

/* The same for y of s32 where points do not fit s8: sums modulo 2^32 */
size_t hzi_vlut_gemm_exact(struct hzi_vlut_gemm_job *j, char *base);

/* ---- vlut_gemm2 (gemm2.c) -------------------------------------------------------------------- */

enum { HZI_VLUT2_TABLE, HZI_VLUT2_S8, HZI_VLUT2_EXACT, HZI_VLUT2_VIA_F32 };

struct hzi_vlut_gemm2_job {
	struct hz_context *ctx;
	const struct hzi_vlut_gemm2_args *a;
	struct hzi_vlut_side w, x;
	struct hzi_vlut_s8 s8;
	float *values;			/* [x rows][k] */
	uint8_t *table;
	char *scratch;
	int64_t scratch_each;
	int threads;
	bool exact;			/* pairs of rows are multiplied as points */
};

void hzi_vlut_gemm2_begin(struct hzi_vlut_gemm2_job *j, struct hz_context *ctx,
			  const struct hzi_vlut_gemm2_args *a);
size_t hzi_vlut_gemm2(struct hzi_vlut_gemm2_job *j, int path, char *base);

#endif
