/*
 * recurrent.h - parameters of the kernels that make a whole step of a recurrent layer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_RECURRENT_H
#define HZI_GPU_QUAT_RECURRENT_H

#include "gpu/quat_gemm/gemv.h"
#include "gpu/quat_layer/quat_layer.h"

/* C is not stored. Each 32 rows of A are those of 32 / K neurons, gate by gate. */
struct hzi_quat_fused_step {
	struct hzi_quat_gemv product;
	struct hzi_quat_cell_step cell;
};

static_assert(HZI_QUAT_CELL_ROWS == HZI_GEMV_MMA_ROWS, "rows of a block");
static_assert(sizeof(struct hzi_quat_fused_step) == 1048, "the same layout for C and CUDA");

#endif
