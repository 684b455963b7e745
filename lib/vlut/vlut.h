/*
 * vlut.h - products with lattice codes: the arguments of implementations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_VLUT_H
#define HZI_VLUT_H

#include "lib/lattice/lattice.h"

/*
 * One coded matrix: rows of k values, blocks = ceil(k / d) blocks each; values beyond k do not
 * count. Either codes (and t, if the policy has T) or packed, which holds both. Level m >= first of
 * block b of row i is at i * row + b * block + (m - first) * level; T at i * t_row + b / group *
 * t_step.
 */
struct hzi_coded {
	const void *codes, *packed;
	const uint8_t *t;
	const float *row_scale;		/* NULL: none */
	int32_t code_dtype, first;	/* the level dtype of the lattice; levels first .. M - 1 */
	int64_t rows, k, blocks;
	int64_t capacity;		/* rows that packed has; of codes: rows */
	int64_t row, block, level;
	int64_t t_row, t_step, row_scale_step;
	float sub[HZI_LATTICE_DIMS];	/* see hzi_lattice_value() */
};

/*
 * table: two-sided, [q^d of w][q^d of x] of <c, c'> in embedded integers, s8 or s16 (table_dtype),
 * on the context's device; only with HZ_VLUT_TABLE, else NULL. It has at most HZI_VLUT_TABLE
 * entries.
 */
#define HZI_VLUT_TABLE ((int64_t)1 << 26)
#define HZI_VLUT_WORDS 16384

/*
 * Packed labels of E8 (lib/lattice/label.h), or pairs of blocks of D4 with q = 4 and two levels, on
 * the CPU, where all scales are unit r_T with integers r_T of 8 bits. bits: of a value, 0: w is not
 * packed so; t_bits: stored for a T, 2 or 4. bias: what decoding (cpu/vlut/label.inc) adds to
 * p - o. paired: numbers that products add are neighbours, see struct hzi_vlut_label.
 */
struct hzi_vlut_label_layout {
	int32_t bits, t_bits;
	double unit;
	uint8_t scale[16];		/* r_T */
	int8_t bias[8];
	bool paired;
};

struct hz_vlut {
	hz_context *ctx;
	const struct hz_lattice *w, *x;	/* x NULL: dense */
	int32_t route, table_dtype, sum, compensated;
	int32_t unit;			/* two-sided: integer <p, p'> by the real one: 1 2 4 */
	void *table;
	/*
	 * Leaders of w and x. On the CPU [M][q^d] of c q^m as bytes mod 256, the first coordinate
	 * lowest in memory. On a GPU E8 with q = 4 as in fill_e8(); other lattices of up to
	 * HZI_VLUT_WORDS leaders as c plus the largest |c| in 32 bits: 4 bytes, or coordinates i
	 * and i + 4 as the halves of byte i. NULL: q^d <= 256, or no such table.
	 */
	void *words[2];
	/*
	 * On the CPU: w is packed as D4 bit-fields (cpu/vlut/kern.h); the code for each value of
	 * the four fields, also if `label` packs D4
	 */
	bool bitfield;
	uint8_t bitfield_code_table[256];
	struct hzi_vlut_label_layout label;
	bool x_by_32;			/* x may be quantized: opts->x_format */
	uint32_t layout[2];		/* hz_packed.layout of packed w and x */
};

/*
 * y[i, j] = act(row_scale_i sum_k s(T_ik) <p_ik - o - sub, x_jk> + bias_i), y f32 f16 bf16; no size
 * is 0
 */
struct hzi_vlut_gemm_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w;
	const void *x;
	void *y;
	const float *bias;		/* NULL: none */
	int32_t x_dtype, y_dtype, activation;
	int64_t batch, x_k, x_b, y_i, y_b;
};

static inline bool hzi_vlut_has_epilogue(const struct hzi_vlut_gemm_args *a)
{
	return a->bias || a->activation;
}

/*
 * The epilogue as a pass of its own, or a conversion: y = act(from + bias), with gated
 * act(from + bias) of column j times (from + bias) of column n + j. rows: `shape`, dimensions in
 * any order; y may be `from` if it is not gated. No size is 0.
 */
struct hzi_vlut_bias_act {
	const void *from;
	void *y;
	const float *bias;		/* NULL: none */
	int64_t rows, n, from_step, y_step;
	int64_t shape[HZ_MAXDIM], from_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	int32_t ndim, from_dtype, y_dtype, activation, gated;
};

/* HZ_OK if `a` is an activation of these, else HZ_EINVAL; name: what the message calls it */
int hzi_vlut_check_activation(struct hz_context *ctx, const char *op, const char *name, int32_t a);

/* Without workspace. op: what messages call it */
int hzi_cpu_vlut_bias_act(struct hz_context *ctx, const struct hzi_vlut_bias_act *a);
int hzi_cuda_vlut_bias_act(struct hz_context *ctx, const char *op,
			   const struct hzi_vlut_bias_act *a);

/*
 * y[i, j] = the same with both operands coded; s32: sum_k <p_ik - o, p'_jk - o'> of embedded
 * integers, without scales
 */
struct hzi_vlut_gemm2_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w, x;
	void *y;
	int32_t y_dtype;
	int64_t y_i, y_j;
};

/*
 * w.packed is NULL; without codes all bytes of `packed` become 0, which are codes 0. The op's
 * _workspace returns the bytes of `packed`; it needs no workspace.
 */
struct hzi_vlut_pack_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w;
	void *packed;
};

/*
 * Rows of w become rows `row` and so on of `packed`, whose other rows keep their bits. Codes and T
 * are contiguous and of all levels, k those of `packed`; HZI_VLUT_LEAD rows before them may be
 * written.
 */
#define HZI_VLUT_LEAD 15
struct hzi_vlut_append_args {
	const struct hz_vlut *vlut;
	struct hzi_coded w;		/* capacity: of `packed` */
	void *packed;
	int64_t row;
};

/* Packs without pairs, as layers are stored. */
void hzi_vlut_use_planes(hz_vlut *v);

#endif
