/*
 * launch.h - declarations shared by the launchers of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Calls go down this list: routes.c, the routes, common.c, append.c, pack.c, the three packed
 * formats.
 */
#ifndef HZI_GPU_VLUT_LAUNCH_H
#define HZI_GPU_VLUT_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/vlut.h"
#include "lib/vlut/vlut.h"

HZI_LINK_IMAGES(vlut);

/* ---- Packed formats -------------------------------------------------------------------------- */

/*
 * d4_bitfield.c: packed D4 with q = 4, two levels, one scale and |o| <= 64. not_d4_bitfield() says
 * why w is not packed in this format, with all levels and sub = 0; NULL: it is.
 * d4_f16_unsupported() says why the call is not a product of this w and x of f16 to floats,
 * without tables; NULL: it is. points() decodes p - o to s8, rows `pitch` bytes apart.
 */
bool hzi_cuda_vlut_packs_as_d4_bitfield(const hz_lattice *l);
const char *hzi_cuda_vlut_not_d4_bitfield(const hz_lattice *l, const struct hzi_coded *w);
const char *hzi_cuda_vlut_d4_f16_unsupported(const struct hzi_vlut_gemm_args *a);
size_t hzi_cuda_vlut_d4_bitfield_bytes(const struct hzi_coded *w);
int64_t hzi_cuda_vlut_d4_bitfield_chunks(const struct hzi_coded *w);	/* of a row */
int hzi_cuda_vlut_d4_bitfield_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
int hzi_cuda_vlut_d4_bitfield_points(struct hz_context *ctx, const hz_lattice *l,
				     const struct hzi_coded *w, void *dst, int64_t pitch);

/*
 * e8_bitplane.c: packed E8 with q = 4, two levels and one scale, in rows of up to 40960 values.
 * points() decodes p - o to s8, or values to f16, rows `pitch` elements apart.
 */
bool hzi_cuda_vlut_packs_as_e8_bitplane(const hz_lattice *l, const struct hzi_coded *w);
size_t hzi_cuda_vlut_e8_bitplane_bytes(const struct hzi_coded *w);
int64_t hzi_cuda_vlut_e8_bitplane_units(const struct hzi_coded *w);	/* of a row */
int hzi_cuda_vlut_e8_bitplane_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
int hzi_cuda_vlut_e8_bitplane_points(struct hz_context *ctx, const hz_lattice *l,
				     const struct hzi_coded *w, void *dst, int64_t pitch,
				     int dtype);

/*
 * label.c: packed E8 of labels with q = 16 and integer scales. values() decodes to f16, rows
 * `pitch` elements apart, and multiplies *factor by the value of 1.
 */
bool hzi_cuda_vlut_packs_as_label(const hz_lattice *l);
size_t hzi_cuda_vlut_label_bytes(const hz_lattice *l, const struct hzi_coded *w);
int64_t hzi_cuda_vlut_label_chunks(const struct hzi_coded *w);	/* of a row */
int hzi_cuda_vlut_label_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
float hzi_cuda_vlut_label_r(const hz_lattice *l, uint32_t r[4]);	/* returns the value of 1 */
int hzi_cuda_vlut_label_wgmma_kernel(const hz_lattice *l);	/* the first for x of f16 */
int hzi_cuda_vlut_label_values(struct hz_context *ctx, const hz_lattice *l,
			       const struct hzi_coded *w, void *dst, int64_t pitch, float *factor);

/* pack.c: true if w is packed in one of these three formats. */
bool hzi_cuda_vlut_is_bit_packed(const hz_lattice *l, const struct hzi_coded *w);

/* pack.c: bytes of w packed so, or of the first w->rows of its rows, a multiple of 16 */
size_t hzi_cuda_vlut_bit_packed_bytes(const hz_lattice *l, const struct hzi_coded *w);

/* pack.c: w itself; if w is packed as rows of codes, a view of these codes and T. */
struct hzi_coded hzi_cuda_vlut_code_view(const hz_lattice *l, const struct hzi_coded *w);

/* pack.c: rows of codes to rows from number `row` on of a->packed, which has a->w.capacity rows */
int hzi_cuda_vlut_pack_rows(struct hz_context *ctx, const struct hzi_vlut_pack_args *a,
			    int64_t row);

/* ---- Queries (common.c) ---------------------------------------------------------------------- */

/* How many clusters of `size` blocks, one block per SM, run at the same time; an underestimate. */
int64_t hzi_cuda_vlut_clusters(const struct hzi_cuda_device *g, int size);

/* Bytes of a row of codes; rows of a packed matrix are padded to 16. */
int64_t hzi_cuda_vlut_row_bytes(const hz_lattice *l, const struct hzi_coded *w);

/* NULL if rows of codes are contiguous and 16-byte aligned, values s(T) (p - o); else why not. */
const char *hzi_cuda_vlut_rows_unsupported(const hz_lattice *l, const struct hzi_coded *w);

/* Parameters of packing codes as bits */
struct hzi_vlut_bit_pack hzi_cuda_vlut_bit_pack(const struct hzi_vlut_pack_args *a, int64_t tiles,
						int64_t chunks);

/* Initialises HZI_VLUT_PRODUCT_MEMBERS; *a: struct hzi_vlut_gemm_args */
#define HZI_VLUT_PRODUCT_OF(a) \
	.packed = (a)->w.packed, .row_scale = (a)->w.row_scale, .x = (a)->x, .y = (a)->y, \
	.row_scale_step = (a)->w.row_scale_step, .x_k = (a)->x_k, .x_b = (a)->x_b, \
	.y_i = (a)->y_i, .y_b = (a)->y_b, .rows = (int32_t)(a)->w.rows, .k = (int32_t)(a)->w.k

/* Whether vectors of x are contiguous, of whole aligned pieces of 16 bytes */
bool hzi_cuda_vlut_x_vectorized(const struct hzi_vlut_gemm_args *a);

/* Points of a lattice of dimension 4 or 8 as sums of bytes: struct hzi_vlut_table_s8_skinny. */
struct hzi_vlut_s8 {
	uint32_t first[2];
	int words;		/* 32-bit words of a leader */
	bool e8q4;		/* E8 with q = 4: leaders are in struct hz_vlut's words */
	bool many_codes;	/* more than 256 leaders: these are there, too */
};

/* Fills *b. Returns NULL if p - o fits s8, else why not. */
const char *hzi_cuda_vlut_s8_unsupported(const hz_lattice *l, int levels, struct hzi_vlut_s8 *b);

/*
 * Adds the table of up to 256 leaders, b->words each, to zeroed memory; nothing if b->e8q4 or
 * b->many_codes.
 */
void hzi_cuda_vlut_s8_leaders(const hz_lattice *l, const struct hzi_vlut_s8 *b, uint32_t *leaders);

/* The bits of f as f16, rounded to nearest even, for 0 and magnitudes 2^-14 to 2^15. */
uint32_t hzi_cuda_vlut_f16(float f);

/*
 * Scales as pairs of equal f16, one scale for 32 2^shift values, shift >= -3; y is `factor` times
 * the accumulators. Without T only factor is used.
 */
struct hzi_vlut_scales {
	uint32_t of[HZI_LATTICE_SCALES];
	float factor;
	int shift;
};

/*
 * Fills *s. Returns NULL if f16 holds the scales and T has one of these group sizes, else why not.
 */
const char *hzi_cuda_vlut_scales_unsupported(const hz_lattice *l, const struct hzi_coded *w,
					     struct hzi_vlut_scales *s);

/* ---- Routes ---------------------------------------------------------------------------------- */

/*
 * The reason for which all routes of vlut_gemm except table and generic do not support
 * HZ_VLUT_TABLE
 */
#define HZI_VLUT_ASKS_FOR_TABLE "HZ_VLUT_TABLE asks for tables"

#define HZI_VLUT_ROUTE(name) \
	const char *hzi_cuda_##name##_unsupported(const struct hz_context *ctx, const void *args); \
	size_t hzi_cuda_##name##_workspace(const struct hz_context *ctx, const void *args); \
	int hzi_cuda_##name(struct hz_context *ctx, const void *args)

/* Defines NAME_unsupported() where the file plans a call by plan_of(ctx, args, &plan). */
#define HZI_VLUT_PLANNED(name) \
	const char *hzi_cuda_##name##_unsupported(const struct hz_context *ctx, const void *args) \
	{ \
		struct plan plan; \
		return plan_of(ctx, args, &plan); \
	}

/* Routes of vlut_gemm; args: struct hzi_vlut_gemm_args */
HZI_VLUT_ROUTE(vlut_table);
HZI_VLUT_ROUTE(vlut_d4_bitfield);
HZI_VLUT_ROUTE(vlut_d4_f16_skinny);
HZI_VLUT_ROUTE(vlut_d4_f16_wgmma);
HZI_VLUT_ROUTE(vlut_e8_bitplane);
HZI_VLUT_ROUTE(vlut_label_skinny);
HZI_VLUT_ROUTE(vlut_decoded_wgmma);
HZI_VLUT_ROUTE(vlut_table_f16_skinny);
HZI_VLUT_ROUTE(vlut_table_s8_skinny);
HZI_VLUT_ROUTE(vlut_table_wgmma);
HZI_VLUT_ROUTE(vlut_via_f16);
HZI_VLUT_ROUTE(vlut_via_qgemm);
HZI_VLUT_ROUTE(vlut_generic);

/* d4_f16_wgmma.c: x is read without a copy. */
bool hzi_cuda_vlut_d4_f16_in_place(const struct hzi_vlut_gemm_args *a);

/* Routes of vlut_gemm2; args: struct hzi_vlut_gemm2_args */
HZI_VLUT_ROUTE(vlut2_table);
HZI_VLUT_ROUTE(vlut2_via_f16);
HZI_VLUT_ROUTE(vlut2_via_qgemm);
HZI_VLUT_ROUTE(vlut2_generic);

/*
 * table_f16_skinny.c: there are too few rows to occupy all SMs, and table_s8_skinny.c can split k.
 */
bool hzi_cuda_vlut_split_k_pays(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* table_s8_skinny.c: columns per launch */
int hzi_cuda_vlut_table_s8_skinny_columns(const struct hzi_vlut_gemm_args *a);

/*
 * table_wgmma.c, also for via_f16.c. values: W decoded to f16, [rows][k rounded up to
 * HZI_VLUT_WGMMA_CHUNK]; NULL: the codes of W are used. factor scales all results, column_scale (or
 * NULL) columns.
 */
struct hzi_vlut_wgmma_opts {
	const void *values;
	float factor;
	const float *column_scale;
	int64_t column_scale_step;
	char *workspace;
	bool x_is_packed;	/* a previous call left packed x in the workspace */
};

const char *hzi_cuda_vlut_wgmma_unsupported(const struct hz_context *ctx,
					    const struct hzi_vlut_gemm_args *a, bool values);
size_t hzi_cuda_vlut_wgmma_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *a, bool values);
int hzi_cuda_vlut_wgmma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_vlut_wgmma_opts *o);

/* decoded_wgmma.c, also for via_f16.c: with packed codes. o->values is not used. */
int hzi_cuda_vlut_decoded_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			     const struct hzi_vlut_wgmma_opts *o);

#endif
