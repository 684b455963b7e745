/*
 * lattice.h - the lattice quantizer: the object and the arguments of implementations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LATTICE_H
#define HZI_LATTICE_H

#include "lib/core/internal.h"
#include "lib/lattice/lattice_math.h"
#include "lib/lattice/rows.h"

/* Replaces fields that are 0 by those of opts->preset. */
void hzi_lattice_apply_preset(hz_lattice_opts *o);

/* Refuses alpha and HZ_LATTICE_FIRST_FIT with a policy that does not read them. */
int hzi_lattice_check_policy(struct hz_context *ctx, const char *op, const char *name,
			     const hz_lattice_opts *o);

#define HZI_LATTICE_LEADERS 65536	/* most leaders that a table holds */

/* A quantizer: `rule`, which kernels take by value, and members for the host */
struct hz_lattice {
	struct hzi_lattice_rule rule;
	struct hzi_lattice_matrices matrices;	/* used with HZI_LATTICE_MAPPED */
	hz_allocator allocator;
	int32_t group;			/* GROUP, BANK: values that share T; otherwise 0 */
	double beta, alpha;
	double mean[HZI_LATTICE_DIMS];	/* of the leaders as real points, see hzi_lattice_value() */
	double dither[HZI_LATTICE_DIMS];	/* likewise */
	double to_lattice[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS];
	double from_lattice[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS];
	double reduced[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS];
	double basis[HZI_LATTICE_DIMS * HZI_LATTICE_DIMS];
	int32_t leader_max, point_max;	/* bounds of |c_i| and |p_i| */
	/* With leaders: leader_low <= c_i <= leader_high; 0 is in that range. */
	int32_t leader_low, leader_high;
	int32_t *leaders;		/* [q^d][embed] if q^d <= HZI_LATTICE_LEADERS, else NULL */
};

/* The matrices that hzi_lattice_*() take, or NULL for a named lattice without a transform */
static inline const struct hzi_lattice_matrices *hzi_lattice_matrices_of(const hz_lattice *l)
{
	return l->rule.flags & HZI_LATTICE_MAPPED ? &l->matrices : NULL;
}

/* Whether codes come with T */
static inline bool hzi_lattice_has_t(const hz_lattice *l)
{
	return l->rule.policy == HZI_LATTICE_T || l->rule.policy == HZI_LATTICE_BANK ||
	       l->rule.policy == HZI_LATTICE_GROUP;
}

/* ---- Bases (lib/lattice/basis.c): d x d, row-major, columns are the basis vectors ------------ */

/* Columns of a named lattice, as defined in hurwitz.h */
void hzi_basis_named(int kind, int d, double *g);

/* LLL: g becomes a reduced basis of the same lattice. False if columns are (nearly) dependent. */
bool hzi_basis_reduce(int d, double *g);

/* g = q r, q orthogonal, r upper triangular with a positive diagonal */
void hzi_basis_qr(int d, const double *g, double *q, double *r);

/* False if a is (nearly) singular */
bool hzi_matrix_invert(int d, const double *a, double *inverse);

void hzi_matrix_multiply(int d, const double *a, const double *b, double *c);

/* ---- Arguments of implementations ------------------------------------------------------------ */

/* sub of hzi_lattice_value() for codes of levels `first` and later */
void hzi_lattice_sub(const hz_lattice *l, int first, float *sub);

/*
 * Rows: all dimensions but the last (codes and points: the last two or three), merged where strides
 * allow it; ndim may be 0: one row. No size is 0. In a row, element i of values is at i * v_step;
 * for points and digits, element i of block k, level m is at k * v_block + m * v_level + i *
 * v_step. Level or limb m of block k of codes is at k * code_block + m * code_level, its T at k /
 * rule.group * t_step. Strides count elements; those of inputs may be negative or 0.
 */
struct hzi_lattice_map {
	int64_t n, blocks;		/* values and blocks of a row: blocks = ceil(n / d) */
	int32_t ndim;
	int64_t shape[HZ_MAXDIM];
	int64_t v_stride[HZ_MAXDIM], code_stride[HZ_MAXDIM], t_stride[HZ_MAXDIM];
	int64_t v_step, v_block, v_level;
	int64_t code_block, code_level;
	int64_t t_step;
};

/*
 * Values beyond n count as 0. t is not NULL if hzi_lattice_has_t(). With rows.scale, rows.f are the
 * values x, which are divided first.
 */
struct hzi_lattice_encode_args {
	const struct hz_lattice *lattice;
	const struct hzi_lattice_matrices *matrices;	/* NULL: none needed */
	struct hzi_lattice_map map;
	struct hzi_lattice_rows rows;
	const void *x;
	void *codes;
	uint8_t *t;
	int64_t *overload;		/* blocks wrapped or clipped; with NaN or Inf; NULL */
	int32_t x_dtype, code_dtype, pack;
};

/*
 * LEVEL codes hold levels first .. M - 1, and code_level counts from level first; other packings
 * hold all levels. to: enum hz_lattice_to; POINTS are sums of the levels used; DIGITS are of the
 * levels first .. M - 1, v_level counts from first. T beyond the last scale counts as the last.
 * With rows.scale, rows.f are the values y, which are multiplied last.
 */
struct hzi_lattice_decode_args {
	const struct hz_lattice *lattice;
	const struct hzi_lattice_matrices *matrices;
	struct hzi_lattice_map map;
	struct hzi_lattice_rows rows;
	const void *codes;
	const uint8_t *t;
	void *y;
	int32_t y_dtype, code_dtype, pack;
	int32_t to, first;
	float sub[HZI_LATTICE_DIMS];
};

/* from.v_*: unused in both; rows are the same. */
struct hzi_lattice_repack_args {
	const struct hz_lattice *lattice;
	struct hzi_lattice_map from, to;
	const void *from_codes;
	void *to_codes;
	int32_t from_dtype, to_dtype, from_pack, to_pack;
};

#endif
