/*
 * group.h - kernel parameters of linear layers with group-wise quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc.
 */
#ifndef HZI_GPU_QGEMM_GROUP_H
#define HZI_GPU_QGEMM_GROUP_H

#include "gpu/qgemm/qgemm.h"
#include "lib/qgemm/group.h"

#define HZI_GROUP_THREADS 256
#define HZI_GROUP_WARPS (HZI_GROUP_THREADS / 32)
#define HZI_GROUP_SKINNY_ROWS 8	/* rows of x of a block */
#define HZI_GROUP_TILED_ROWS 64
#define HZI_GROUP_TERMS 3		/* of bf16 that an f32 is the sum of */

struct hzi_group_pack {
	struct hzi_group_layout l;
	struct hzi_group_weights w;
	uint8_t *data;
};
static_assert(sizeof(struct hzi_group_pack) == 200, "the same layout for C and CUDA");

/*
 * x and its copy: codes with their scales and the sums of units, or 16-bit floats, of f32 three
 * terms, `plane` bytes apart. Rows of the copy have l.steps steps; y has values of y_dtype.
 */
struct hzi_group_gemm {
	struct hzi_group_layout l;
	const uint8_t *packed;
	const void *x;
	uint8_t *copy;
	const float *x_given, *bias;	/* x_given: scales of codes x */
	float *x_scale;
	int32_t *x_sum;
	void *y;
	int64_t rows, x_k, y_n, plane;
	int64_t unit, units, x_scales;	/* of k; of a row */
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	int32_t ndim, x_dtype, y_dtype, integer, by_32, terms;
	float low, high;
};
static_assert(sizeof(struct hzi_group_gemm) == 384, "the same layout for C and CUDA");

#endif
