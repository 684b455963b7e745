/*
 * quat_gemm.h - parameters that kernels of quaternion matrix products share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_GEMM_H
#define HZI_GPU_QUAT_GEMM_H

#include <assert.h>
#include <stdint.h>

#define HZI_QUAT_BATCH 3	/* dimensions of a batch */

/* struct hzi_quat_view with dtype and strides of the batch, in elements */
struct hzi_quat_matrix {
	void *data;
	int64_t row, col;
	int64_t comp[4];
	int64_t batch[HZI_QUAT_BATCH];
	int32_t dtype;
	int32_t conj;
	int32_t whole;	/* quaternions are contiguous, w first, and aligned to their size */
	int32_t pad_;
};

/* The epilogue of a sum t at (i, j), as of struct hzi_quat_gemm_args */
struct hzi_quat_out {
	struct hzi_quat_matrix c, pre;	/* c.conj: conjugate t first; pre.data NULL: none */
	const void *bias;
	int64_t bias_row, bias_col, bias_comp[4];
	int64_t shape[HZI_QUAT_BATCH];	/* of the batch, padded with 1 in front */
	int32_t m, n;
	float alpha[4], beta, slope;
	int32_t alpha_real;
	int32_t bias_dtype, activation, pad_;
};

static_assert(sizeof(struct hzi_quat_matrix) == 96, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_out) == 320, "the same layout for C and CUDA");

#endif
