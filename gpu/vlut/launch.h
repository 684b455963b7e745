/*
 * launch.h - the launchers of products with lattice codes, for each other
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_LAUNCH_H
#define HZI_GPU_VLUT_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "lib/vlut/vlut.h"

HZI_LINK_IMAGES(vlut);

/*
 * Clusters of a size that surely run at a time, a block on a multiprocessor, as plans are made
 * before there is a kernel to ask the driver about (vlut.c)
 */
int64_t hzi_cuda_vlut_clusters(const struct hzi_cuda_device *g, int size);

/* Whether a matrix is packed as fields or planes of bits, not as rows of codes (vlut.c) */
bool hzi_cuda_vlut_bits(const hz_lattice *l, const struct hzi_coded *c);

/* A matrix that is not packed as it is, a packed one as its codes and T unless these are bits. */
struct hzi_coded hzi_cuda_vlut_unpacked(const hz_lattice *l, const struct hzi_coded *c);

/*
 * The points of a lattice whose codes are bytes as sums of bytes, see struct hzi_vlut_mma; zero it
 * first. False if they do not fit, or blocks are not of 4 or 8 values (vlut_mma.c).
 */
struct hzi_vlut_bytes {
	uint32_t first[2], leaders[512];
	int words;
	bool wide;		/* E8 with q = 4: leaders are in hz_vlut's words */
	bool large;		/* of more than 256 others, which are there too */
};

bool hzi_cuda_vlut_bytes(const hz_lattice *l, int levels, struct hzi_vlut_bytes *b);

/* Whether codes are rows of 16-byte pieces, and values are nothing but points times scales */
bool hzi_cuda_vlut_rows(const hz_lattice *l, const struct hzi_coded *w);

/* Bytes of such a row: packed ones are filled up. */
int64_t hzi_cuda_vlut_row_bytes(const hz_lattice *l, const struct hzi_coded *w);

/*
 * Scales of groups of 32 2^shift values as f16, twice, and the factor of all sums; without T the
 * factor alone. False if f16 does not take them, or T is not for groups of 4 to 128 values: shift
 * may be negative.
 */
struct hzi_vlut_scales {
	uint32_t of[HZI_LATTICE_SCALES];
	float factor;
	int shift;
};

/* f16 of 0 or of +-2^-14 .. 2^15, rounded to nearest, halves to even (vlut_mma.c) */
uint32_t hzi_cuda_vlut_f16(float f);

bool hzi_cuda_vlut_scales(const hz_lattice *l, const struct hzi_coded *w,
			  struct hzi_vlut_scales *s);

/*
 * Packed D4 of q = 4 with two levels, one scale and o near 0 (vlut_fields.c): whether a lattice is
 * packed so; whether a matrix is, with all levels and nothing to subtract; bytes, chunks of a row,
 * packing; and products by few vectors, or as many as there are in turns.
 */
bool hzi_cuda_vlut_fields(const hz_lattice *l);
bool hzi_cuda_vlut_fields_are(const hz_lattice *l, const struct hzi_coded *w);
size_t hzi_cuda_vlut_fields_bytes(const struct hzi_coded *w);
int64_t hzi_cuda_vlut_fields_chunks(const struct hzi_coded *w);
int hzi_cuda_vlut_fields_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
bool hzi_cuda_vlut_fields_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_fields_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* Their points less o as bytes, rows `line` apart */
int hzi_cuda_vlut_fields_bytes_of(struct hz_context *ctx, const hz_lattice *l,
				  const struct hzi_coded *w, void *to, int64_t line);

/* The same codes, by one vector of f16, back to back. No workspace. */
bool hzi_cuda_vlut_planes_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_planes(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* The same codes, by 3 to 8 vectors of f16. No workspace. */
bool hzi_cuda_vlut_stream_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_stream(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* The same codes, by many vectors of f16, on Hopper. No workspace. */
bool hzi_cuda_vlut_batch_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_batch(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/*
 * Packed E8 of q = 4 with two levels and one scale, of rows that are not too long (vlut_octets.c):
 * whether it is packed so; units of a row, bytes, packing; the points less o as bytes or the values
 * as f16, rows `line` apart; so many vectors at a time, 0: not taken; products, without workspace.
 */
bool hzi_cuda_vlut_octets(const hz_lattice *l, const struct hzi_coded *w);
int64_t hzi_cuda_vlut_octets_units(const struct hzi_coded *w);
size_t hzi_cuda_vlut_octets_bytes(const struct hzi_coded *w);
int hzi_cuda_vlut_octets_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a);
int hzi_cuda_vlut_octets_points(struct hz_context *ctx, const hz_lattice *l,
				const struct hzi_coded *w, void *to, int64_t line, int dtype);
int hzi_cuda_vlut_octets_step(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_octets_gemm(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* Up to 8 vectors of f16. No workspace. */
bool hzi_cuda_vlut_half_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_half(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/* So many vectors at a time; 0: it does not take them. No workspace. */
int hzi_cuda_vlut_mma_step(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_mma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);

/*
 * More of them, on Hopper; by codes, or by values of W that are there as f16. values: [rows][k
 * rounded up to HZI_VWG_CHUNK], or NULL; factor: of all results; column_scale: of columns, or NULL.
 */
struct hzi_vlut_product {
	const void *values;
	float factor;
	const float *column_scale;
	int64_t column_scale_step;
	char *room;		/* the workspace */
	bool again;		/* x is in order there already */
};

bool hzi_cuda_vlut_wgmma_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			       bool values);
size_t hzi_cuda_vlut_wgmma_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *a, bool values);
int hzi_cuda_vlut_wgmma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			const struct hzi_vlut_product *o);

/*
 * Anything that decodes to f16 first: W, where nothing above takes its codes, and coded x
 * (vlut_values.c). On Hopper
 */
bool hzi_cuda_vlut_values_takes(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
size_t hzi_cuda_vlut_values_workspace(const struct hz_context *ctx,
				      const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_values(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
bool hzi_cuda_vlut_values2_takes(const struct hz_context *ctx,
				 const struct hzi_vlut_gemm2_args *a);
size_t hzi_cuda_vlut_values2_workspace(const struct hz_context *ctx,
				       const struct hzi_vlut_gemm2_args *a);
int hzi_cuda_vlut_values2(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a);

/* Exact sums to results (vlut.c) */
struct hzi_vlut_sums;
int hzi_cuda_vlut_sums(struct hz_context *ctx, const struct hzi_vlut_sums *p);

/*
 * Products of points as integers: decoded to bytes, by quantized multiplication. Of x of s8, or of
 * two coded matrices, where values are nothing but points, or y is of s32 (vlut_whole.c).
 */
bool hzi_cuda_vlut_whole_takes(const struct hzi_vlut_gemm_args *a);
size_t hzi_cuda_vlut_whole_workspace(const struct hz_context *ctx,
				     const struct hzi_vlut_gemm_args *a);
int hzi_cuda_vlut_whole(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a);
bool hzi_cuda_vlut_whole2_takes(const struct hz_context *ctx,
				const struct hzi_vlut_gemm2_args *a);
size_t hzi_cuda_vlut_whole2_workspace(const struct hz_context *ctx,
				      const struct hzi_vlut_gemm2_args *a);
int hzi_cuda_vlut_whole2(struct hz_context *ctx, const struct hzi_vlut_gemm2_args *a);

#endif
