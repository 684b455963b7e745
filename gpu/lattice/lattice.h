/*
 * lattice.h - parameters of the generic kernels of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_LATTICE_H
#define HZI_GPU_LATTICE_H

#include <assert.h>

#include "hurwitz.h"
#include "lib/lattice/lattice_math.h"
#include "lib/lattice/rows.h"

#define HZI_LATTICE_THREADS 128
#define HZI_LATTICE_CUBE_THREADS 384	/* of lattice_encode_cube, and thread blocks an SM */
#define HZI_LATTICE_CUBE_BLOCKS 2

/* Codes in memory, see struct hzi_lattice_map */
struct hzi_lattice_codes {
	void *codes;
	int64_t stride[HZ_MAXDIM], block, level;
	int32_t bytes, pack;
};

/* Encoding, decoding or repacking; see struct hzi_lattice_map. units: number of groups of blocks */
struct hzi_lattice_generic {
	struct hzi_lattice_rule rule;
	struct hzi_lattice_codes codes, to;
	void *v;			/* values, points or digits */
	uint8_t *t;
	uint64_t *overload;
	int64_t units, row_units, n, blocks;
	int64_t shape[HZ_MAXDIM], v_stride[HZ_MAXDIM], t_stride[HZ_MAXDIM];
	int64_t v_step, v_block, v_level, t_step;
	int32_t ndim, v_dtype, what, first;
	float sub[HZI_LATTICE_DIMS];
};

static_assert(sizeof(struct hzi_lattice_generic) <= 4088, "what any driver takes");

/* More than 4 KB of kernel parameters, which needs a driver of CUDA 12.1 */
struct hzi_lattice_generic_basis {
	struct hzi_lattice_generic generic;
	struct hzi_lattice_matrices matrices;
};

#endif
