/*
 * quat.h - parameters of the elementwise quaternion kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_H
#define HZI_GPU_QUAT_H

#include <stdint.h>

#include "gpu/quat_gemm/quat_gemm.h"

#define HZI_QUAT_DIMS 6
#define HZI_QUAT_OPERANDS 5
#define HZI_QUAT_THREADS 256
#define HZI_QUAT_BLOCK 1024	/* contiguous kernels: 16-byte pieces per block */
#define HZI_QUAT_SUM_BLOCK 4096	/* fused_sum kernels: the same */
#define HZI_QUAT_TERMS 32	/* terms of a sum per thread */

/* struct hzi_quat_at, and how kernels may read it */
struct hzi_quat_operand {
	void *data;			/* NULL: an output that is not wanted */
	int64_t stride[HZI_QUAT_DIMS];
	int64_t comp[4];
	int32_t whole;	/* enum hzi_quat_whole */
	int16_t width;	/* elements of a value: 4; a vector 3, a real number 1 */
	/* enum hzi_quat_layout; contiguous kernels: 1, or 0 for a single quaternion */
	int16_t dense;
};

/* Whether components are contiguous, and quaternions aligned to their size, and in which order */
enum hzi_quat_whole { HZI_QUAT_SEPARATE, HZI_QUAT_WXYZ, HZI_QUAT_XYZW };

/*
 * The layout of the last dimension, for strided and planar kernels: arbitrary strides; each
 * component contiguous and 16-byte aligned; contiguous quaternions w, x, y, z; or x, y, z, w
 */
enum hzi_quat_layout { HZI_QUAT_STRIDED, HZI_QUAT_PLANAR, HZI_QUAT_INTERLEAVED,
		      HZI_QUAT_INTERLEAVED_XYZW };

/* Operands: inputs, then outputs, in the order of the structs in lib/quat/quat.h */
struct hzi_quat_job {
	struct hzi_quat_operand at[HZI_QUAT_OPERANDS];
	int64_t shape[HZI_QUAT_DIMS];
	int64_t count;			/* quaternions or groups of them; of sums: results */
	int64_t terms;			/* of a sum */
	int64_t chunk;			/* of a block */
	float *partial; /* [chunks][count] quaternions: sums of chunks of terms; NULL: one chunk */
	int32_t ndim, kept;		/* kept = ndim: no sum */
	int32_t dtype, kind;
	int32_t conj_a, conj_b, conj_y, accumulate;
	int32_t real, inverse, normalize;
	int32_t lanes_log2;		/* of sums: log2 of the results of a block */
	int32_t row_blocks; /* contiguous kernels: blocks of a row, the last dimension */
	float eps, alpha[4];
	int32_t groups; /* strided: 16-byte groups of the last dimension, 0: none; planar: tiles */
	int32_t xyzw;			/* contiguous kernels: the order is x, y, z, w */
};

static_assert(sizeof(struct hzi_quat_operand) == 96, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_job) == 640, "the same layout for C and CUDA");

/* enum hzi_quat_map for kernels */
enum hzi_quat_map_kind {
	HZI_MAP_CONJ, HZI_MAP_NORM, HZI_MAP_NORM2, HZI_MAP_NORMALIZE, HZI_MAP_INVERSE
};

#endif
