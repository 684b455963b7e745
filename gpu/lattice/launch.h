/*
 * launch.h - launchers of the lattice quantizer, for each other
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_LAUNCH_H
#define HZI_GPU_LATTICE_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "gpu/lattice/lattice.h"
#include "lib/lattice/lattice.h"

HZI_LINK_IMAGES(lattice);

/* Blocks of `per_block` threads for so many of these, at most blocks_per_sm a multiprocessor */
unsigned hzi_cuda_lattice_grid(const struct hz_context *ctx, int64_t threads, int per_block,
			       int blocks_per_sm);

/* Rows of a map in all */
int64_t hzi_cuda_lattice_rows(const struct hzi_lattice_map *map);

struct hzi_lattice_codes hzi_cuda_lattice_codes(const struct hzi_lattice_map *map,
						const void *codes, int dtype, int pack);

/* Whether gpu/lattice/points_s8.cuh holds the points of D4 or E8 with q = 4 and such levels */
bool hzi_cuda_lattice_bytes(const struct hzi_lattice_rule *r);

/* Sets the counts of a call to 0, so that the kernel behind may start early. */
int hzi_cuda_lattice_clear(struct hz_context *ctx, int64_t *overload);

/* Of gpu/lattice/closest_point.cu; they return 1 where they do not take a call (lattice_near.c). */
int hzi_cuda_lattice_near_encode(struct hz_context *ctx, const struct hzi_lattice_encode_args *a);
int hzi_cuda_lattice_near_decode(struct hz_context *ctx, const struct hzi_lattice_decode_args *a);
int hzi_cuda_lattice_near_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a);

/*
 * Points without o as bytes, whole blocks of them, from codes LEVEL: y_dtype is HZ_S8, v_stride are
 * multiples of 16. Whether bytes hold them.
 */
bool hzi_cuda_lattice_near_has_bytes(const struct hz_lattice *l);
int hzi_cuda_lattice_near_bytes(struct hz_context *ctx, const struct hzi_lattice_decode_args *a);
int hzi_cuda_lattice_bytes_of(struct hz_context *ctx, const struct hzi_lattice_decode_args *a);

#endif
