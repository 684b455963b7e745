/*
 * quat.h - parameters of the elementwise kernels of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QUAT_H
#define HZI_GPU_QUAT_H

#include <stdint.h>

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QUAT_DIMS 6
#define HZI_QUAT_OPERANDS 5
#define HZI_QUAT_THREADS 256
#define HZI_QUAT_BLOCK 1024	/* 16-byte pieces of a block of the kernels for whole quaternions */
#define HZI_QUAT_SUM_BLOCK 4096	/* the same of those that sum besides */
#define HZI_QUAT_TERMS 32	/* that a thread sums */

/* Element strides and the places of components, as struct hzi_quat_at. */
struct hzi_quat_operand {
	void *data;			/* an output's may be NULL: not wanted */
	int64_t stride[HZI_QUAT_DIMS];
	int64_t comp[4];
	int32_t whole;	/* enum hzi_quat_whole */
	int16_t width;	/* elements that make one: 4, 3 of a vector, 1 of a real number */
	int16_t dense;	/* no gaps along the last dimension; of any operands enum hzi_quat_dense */
};

/* Components that are neighbours, of quaternions that are aligned to their size, and their order. */
enum hzi_quat_whole { HZI_QUAT_APART, HZI_QUAT_WXYZ, HZI_QUAT_XYZW };

/*
 * Of any operands: four pieces of 16 bytes are of one component each, or of whole quaternions; the
 * last: of x, y, z, w.
 */
enum hzi_quat_dense { HZI_QUAT_GAPS, HZI_QUAT_PLANES, HZI_QUAT_WHOLE, HZI_QUAT_TURNED };

/* Inputs, then outputs, in the order of the structs in lib/quat/quat.h. */
struct hzi_quat_job {
	struct hzi_quat_operand at[HZI_QUAT_OPERANDS];
	int64_t shape[HZI_QUAT_DIMS];
	int64_t count;			/* quaternions; of sums: results */
	int64_t terms;			/* of a sum */
	int64_t chunk;			/* terms of a block */
	float *partial;			/* sums of chunks: [chunks][count] quaternions, or NULL */
	int32_t ndim, kept;		/* kept = ndim where nothing is summed */
	int32_t dtype, kind;
	int32_t conj_a, conj_b, conj_y, accumulate;
	int32_t real, inverse, normalize;
	int32_t lanes_log2;		/* of sums: results side by side in a block */
	int32_t row_blocks;		/* of whole operands: blocks of a row, the last dimension */
	float eps, alpha[4];
	int32_t groups;			/* of any operands: in the last dimension, 0: one each */
	int32_t turned;			/* of whole operands: all of x, y, z, w */
};

HZI_QUAT_ASSERT(sizeof(struct hzi_quat_operand) == 96, "the same layout for C and CUDA");
HZI_QUAT_ASSERT(sizeof(struct hzi_quat_job) == 640, "the same layout for C and CUDA");

/* kind of a map, as enum hzi_quat_map. */
enum hzi_quat_map_kind {
	HZI_MAP_CONJ, HZI_MAP_NORM, HZI_MAP_NORM2, HZI_MAP_NORMALIZE, HZI_MAP_INVERSE
};

#endif
