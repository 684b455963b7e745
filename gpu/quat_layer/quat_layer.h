/*
 * quat_layer.h - what launchers and kernels of the steps of quaternion layers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Kernels take the structs of lib/quat_layer/quat_layer.h as parameters.
 */
#ifndef HZI_GPU_QUAT_LAYER_H
#define HZI_GPU_QUAT_LAYER_H

#include <assert.h>

#include "lib/quat_layer/quat_layer.h"

#define HZI_QUAT_STEP_THREADS 256
#define HZI_QUAT_SUM_LANES 32		/* most channels of a block; other threads share rows */

static_assert(sizeof(struct hzi_quat_map_step) == 512, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_sum_step) == 304, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_finish_step) == 248, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_pool_step) == 392, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_rotation_step) == 312, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_cell_step) == 504, "the same layout for C and CUDA");

#endif
