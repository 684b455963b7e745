/*
 * quat_launch.h - the launchers of products of quaternion matrices, for each other
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_LAUNCH_H
#define HZI_GPU_QUAT_LAUNCH_H

#include "cuda.h"
#include "gpu/quat_gemm.h"
#include "lib/quat_gemm.h"

/* ---- What all of them want (quat_gemm.c) ----------------------------------------------------- */

/* A view, and its strides in a batch of ndim dimensions, as kernels take them. */
struct hzi_quat_matrix hzi_quat_matrix_of(const struct hzi_quat_view *v, int dtype, int conj,
					  const int64_t *stride, int ndim);

/* The shape of a batch, of which there are so many items. */
int64_t hzi_quat_batch_of(int64_t *shape3, const int64_t *shape, int ndim);

struct hzi_quat_out hzi_quat_out_of(const struct hzi_quat_gemm_args *a);

/* ---- The ways -------------------------------------------------------------------------------- */

/*
 * Each: whether it takes a call, the workspace of one that it takes, and the call. The last takes
 * all.
 */
bool hzi_cuda_quat_gemv_takes(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a);
size_t hzi_cuda_quat_gemv_workspace(const struct hz_context *ctx,
				    const struct hzi_quat_gemm_args *a);
int hzi_cuda_quat_gemv(struct hz_context *ctx, const struct hzi_quat_gemm_args *a);

bool hzi_cuda_quat_tma_takes(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a);
size_t hzi_cuda_quat_tma_workspace(const struct hz_context *ctx,
				   const struct hzi_quat_gemm_args *a);
int hzi_cuda_quat_tma(struct hz_context *ctx, const struct hzi_quat_gemm_args *a);
bool hzi_cuda_quat_tma_packs(const struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a);
int hzi_cuda_quat_tma_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a);

size_t hzi_cuda_quat_simt_workspace(const struct hz_context *ctx,
				    const struct hzi_quat_gemm_args *a);
int hzi_cuda_quat_simt(struct hz_context *ctx, const struct hzi_quat_gemm_args *a);
int hzi_cuda_quat_simt_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a);

#endif
