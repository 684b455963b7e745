/*
 * launch.h - what launchers of the lattice quantizer share, and their routes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_LAUNCH_H
#define HZI_GPU_LATTICE_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "gpu/lattice/lattice.h"
#include "lib/lattice/lattice.h"

HZI_LINK_IMAGES(lattice);

/* A grid for `threads` threads, per_block per block, with at most blocks_per_sm blocks per SM */
unsigned hzi_cuda_lattice_grid(const struct hz_context *ctx, int64_t threads, int per_block,
			       int blocks_per_sm);

/* The number of rows of a map */
int64_t hzi_cuda_lattice_rows(const struct hzi_lattice_map *map);

struct hzi_lattice_codes hzi_cuda_lattice_codes(const struct hzi_lattice_map *map,
						const void *codes, int dtype, int pack);

/* Whether the rule is D4 or E8 with q = 4, with points that fit gpu/lattice/points_s8.cuh */
bool hzi_cuda_lattice_bytes(const struct hzi_lattice_rule *r);

/* The scales of rows, before encoding or after decoding */
int hzi_cuda_lattice_scale_rows(struct hz_context *ctx, const char *op,
				const struct hzi_lattice_rows *rows, bool decode);

/* Clears the counts by a kernel rather than a memset, so that the next kernel may use PDL. */
int hzi_cuda_lattice_clear(struct hz_context *ctx, int64_t *overload);

/*
 * Decodes packing LEVEL to points p - o as s8, in whole blocks: y_dtype is HZ_S8, v_stride
 * multiples of 16.
 */
const char *hzi_cuda_lattice_points_s8_unsupported(const struct hz_lattice *l);
int hzi_cuda_lattice_points_s8(struct hz_context *ctx, const struct hzi_lattice_decode_args *a);

/* ---- Routes: args is struct hzi_lattice_encode_args, _decode_args or _repack_args ------------ */

#define HZI_LATTICE_ROUTE(name) \
	const char *hzi_cuda_lattice_##name##_unsupported(const struct hz_context *ctx, \
							  const void *args); \
	int hzi_cuda_lattice_##name(struct hz_context *ctx, const void *args)

HZI_LATTICE_ROUTE(encode_contiguous_d4_e8);
HZI_LATTICE_ROUTE(encode_closest_point);
HZI_LATTICE_ROUTE(encode_generic);
HZI_LATTICE_ROUTE(decode_contiguous_d4_e8);
HZI_LATTICE_ROUTE(decode_closest_point);
HZI_LATTICE_ROUTE(decode_generic);
HZI_LATTICE_ROUTE(repack_u32_levels);
HZI_LATTICE_ROUTE(repack_generic);

#endif
