/*
 * launch.h - what launchers of products with lattice codes share: formats, queries, routes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Files call down this list: routes.c, then the routes, common.c, pack.c, the two packed formats.
 */
#ifndef HZI_GPU_VLUT_LAUNCH_H
#define HZI_GPU_VLUT_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/vlut.h"
#include "lib/vlut/vlut.h"

HZI_LINK_IMAGES(vlut);

/* ---- Packed formats -------------------------------------------------------------------------- */

/*
 * d4_bitfield.c: packed D4 with q = 4, two levels, one scale and |o| <= 64. not_d4_bitfield(): why
 * w is not packed so, with all levels and nothing to subtract; NULL: it is. d4_f16_unsupported():
 * why the call is not a product of such codes and f16, or asks for tables. points(): p - o as s8,
 * rows `line` bytes apart.
 */
bool hzi_cuda_vlut_packs_as_d4_bitfield(const hz_lattice *l);
const char *hzi_cuda_vlut_not_d4_bitfield(const hz_lattice *l, const struct hzi_coded *w);
const char *hzi_cuda_vlut_d4_f16_unsupported(const struct hzi_vlut_gemm_args *a);
size_t hzi_cuda_vlut_d4_bitfield_bytes(const struct hzi_coded *w);
int64_t hzi_cuda_vlut_d4_bitfield_chunks(const struct hzi_coded *w);	/* of a row */
int hzi_cuda_vlut_d4_bitfield_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
int hzi_cuda_vlut_d4_bitfield_points(struct hz_context *ctx, const hz_lattice *l,
				     const struct hzi_coded *w, void *to, int64_t line);

/*
 * e8_bitplane.c: packed E8 with q = 4, two levels and one scale, with rows of up to 40960 values.
 * points(): p - o as s8, or values as f16, rows `line` elements apart.
 */
bool hzi_cuda_vlut_packs_as_e8_bitplane(const hz_lattice *l, const struct hzi_coded *w);
size_t hzi_cuda_vlut_e8_bitplane_bytes(const struct hzi_coded *w);
int64_t hzi_cuda_vlut_e8_bitplane_units(const struct hzi_coded *w);	/* of a row */
int hzi_cuda_vlut_e8_bitplane_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
int hzi_cuda_vlut_e8_bitplane_points(struct hz_context *ctx, const hz_lattice *l,
				     const struct hzi_coded *w, void *to, int64_t line, int dtype);

/* pack.c: whether w is packed in one of these two formats */
bool hzi_cuda_vlut_is_bit_packed(const hz_lattice *l, const struct hzi_coded *w);

/* pack.c: w itself, or if it is packed as rows of codes a view of its codes and T */
struct hzi_coded hzi_cuda_vlut_code_view(const hz_lattice *l, const struct hzi_coded *w);

/* ---- Queries (common.c) ---------------------------------------------------------------------- */

/* Clusters of `size` blocks, one block an SM, that run at a time: no more than the driver says */
int64_t hzi_cuda_vlut_clusters(const struct hzi_cuda_device *g, int size);

/* Bytes of a row of codes; rows of a packed matrix are padded to 16. */
int64_t hzi_cuda_vlut_row_bytes(const hz_lattice *l, const struct hzi_coded *w);

/* NULL: rows of codes are contiguous and 16-byte aligned, values are s(T) (p - o). Else why not */
const char *hzi_cuda_vlut_rows_unsupported(const hz_lattice *l, const struct hzi_coded *w);

/* Points of lattices of dimension 4 and 8 as sums of bytes, see struct hzi_vlut_mma */
struct hzi_vlut_s8 {
	uint32_t first[2];
	int words;		/* of a leader */
	bool wide;		/* E8 with q = 4: leaders are in hz_vlut's words */
	bool large;		/* more than 256 leaders, also there */
};

/* Fills *b. NULL: p - o fits s8, else why not */
const char *hzi_cuda_vlut_s8_unsupported(const hz_lattice *l, int levels, struct hzi_vlut_s8 *b);

/* The table of up to 256 leaders, b->words each, into zeros; none if wide or large */
void hzi_cuda_vlut_s8_leaders(const hz_lattice *l, const struct hzi_vlut_s8 *b, uint32_t *leaders);

/* f16 bits of 0 or +-2^-14 .. 2^15, round to nearest even */
uint32_t hzi_cuda_vlut_f16(float f);

/*
 * Scales of groups of 32 2^shift values, shift >= -3, as pairs of f16; y is `factor` times the
 * accumulators. Without T only the factor.
 */
struct hzi_vlut_scales {
	uint32_t of[HZI_LATTICE_SCALES];
	float factor;
	int shift;
};

/* Fills *s. NULL: f16 holds the scales and T is for such groups, else why not */
const char *hzi_cuda_vlut_scales_unsupported(const hz_lattice *l, const struct hzi_coded *w,
					     struct hzi_vlut_scales *s);

/* ---- Routes ---------------------------------------------------------------------------------- */

/* What every route of vlut_gemm but table and generic says to HZ_VLUT_TABLE */
#define HZI_VLUT_ASKS_FOR_TABLE "HZ_VLUT_TABLE asks for tables"

#define HZI_VLUT_ROUTE(name) \
	const char *hzi_cuda_##name##_unsupported(const struct hz_context *ctx, const void *args); \
	size_t hzi_cuda_##name##_workspace(const struct hz_context *ctx, const void *args); \
	int hzi_cuda_##name(struct hz_context *ctx, const void *args)

/* Of vlut_gemm: args is struct hzi_vlut_gemm_args. */
HZI_VLUT_ROUTE(vlut_table);
HZI_VLUT_ROUTE(vlut_d4_bitfield);
HZI_VLUT_ROUTE(vlut_d4_f16_skinny);
HZI_VLUT_ROUTE(vlut_d4_f16_wgmma);
HZI_VLUT_ROUTE(vlut_e8_bitplane);
HZI_VLUT_ROUTE(vlut_table_f16_skinny);
HZI_VLUT_ROUTE(vlut_table_s8_skinny);
HZI_VLUT_ROUTE(vlut_table_wgmma);
HZI_VLUT_ROUTE(vlut_via_f16);
HZI_VLUT_ROUTE(vlut_via_qgemm);
HZI_VLUT_ROUTE(vlut_generic);

/* Of vlut_gemm2: args is struct hzi_vlut_gemm2_args. */
HZI_VLUT_ROUTE(vlut2_table);
HZI_VLUT_ROUTE(vlut2_via_f16);
HZI_VLUT_ROUTE(vlut2_via_qgemm);
HZI_VLUT_ROUTE(vlut2_generic);

/* table_f16_skinny.c: too few rows for all SMs, and table_s8_skinny.c can split a long k */
bool hzi_cuda_vlut_split_k_pays(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* table_s8_skinny.c: columns a launch */
int hzi_cuda_vlut_table_s8_skinny_columns(const struct hzi_vlut_gemm_args *a);

/*
 * table_wgmma.c for via_f16.c: the product with W decoded to f16, [rows][k rounded up to
 * HZI_VWG_CHUNK], or with its codes if values is NULL. factor: of all results; column_scale: of
 * columns, or NULL.
 */
struct hzi_vlut_product {
	const void *values;
	float factor;
	const float *column_scale;
	int64_t column_scale_step;
	char *workspace;
	bool x_is_packed;	/* x is in the workspace, from a product before */
};

const char *hzi_cuda_vlut_wgmma_unsupported(const struct hz_context *ctx,
					    const struct hzi_vlut_gemm_args *a, bool values);
size_t hzi_cuda_vlut_wgmma_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *a, bool values);
int hzi_cuda_vlut_wgmma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_vlut_product *o);

#endif
