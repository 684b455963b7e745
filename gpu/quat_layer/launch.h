/*
 * launch.h - layers of quaternions: what their launchers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_LAYER_LAUNCH_H
#define HZI_GPU_QUAT_LAYER_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "lib/quat_layer/quat_layer.h"

/* ---- Maps (quat_layer.c) --------------------------------------------------------------------- */

int hzi_cuda_quat_map_step(struct hz_context *ctx, const char *op,
			   const struct hzi_qmap_args *a);

/* ---- Pooling (quat_pool.c) ------------------------------------------------------------------- */

bool hzi_cuda_quat_pool_takes(const struct hzi_qpool_args *a, bool backward);
int hzi_cuda_quat_pool_2d(struct hz_context *ctx, const char *op, const struct hzi_qpool_args *a,
			  bool backward);

#endif
