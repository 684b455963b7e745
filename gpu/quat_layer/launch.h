/*
 * launch.h - launchers of quaternion layers that other files use
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_LAYER_LAUNCH_H
#define HZI_GPU_QUAT_LAYER_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "lib/quat_layer/quat_layer.h"

/* ---- steps.c --------------------------------------------------------------------------------- */

/* Launches a kernel with a thread for each of `total` elements, or fewer threads that loop. */
int hzi_cuda_quat_step(struct hz_context *ctx, const char *op, int kernel, int64_t total,
		       const void *params, size_t bytes);

/* ---- Recurrent layers (recurrent.c): struct hzi_quat_steps ----------------------------------- */

int hzi_cuda_quat_cell(struct hz_context *ctx, const char *op, const struct hzi_quat_cell_step *a,
		       bool backward);
bool hzi_cuda_quat_cell_fuses(const struct hz_context *ctx, const struct hzi_quat_cell_step *a);
int64_t hzi_cuda_quat_cell_persists(const struct hz_context *ctx,
				    const struct hzi_quat_cell_step *a);
int hzi_cuda_quat_cell_all_steps(struct hz_context *ctx, const char *op,
				 const struct hzi_quat_all_steps *a);
int hzi_cuda_quat_cell_fused(struct hz_context *ctx, const char *op,
			     const struct hzi_quat_gemm_args *g,
			     const struct hzi_quat_cell_step *a);

/* ---- Pooling (pool.c): struct hzi_quat_pool_step --------------------------------------------- */

const char *hzi_cuda_quat_pool_window_2d_unsupported(const struct hzi_quat_pool_step *a,
						     bool backward);
int hzi_cuda_quat_pool_window_2d(struct hz_context *ctx, const struct hzi_quat_pool_step *a,
				 bool backward);

/* The gradient where every element of x is in exactly one window */
const char *hzi_cuda_quat_pool_bwd_tiled_unsupported(const struct hz_context *ctx,
						     const void *args);
int hzi_cuda_quat_pool_bwd_tiled(struct hz_context *ctx, const void *args);

int hzi_cuda_quat_pool_generic(struct hz_context *ctx, const struct hzi_quat_pool_step *a,
			       bool backward);

#endif
