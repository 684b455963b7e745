/*
 * ops.c - the operation tables of quat_layer: CPU and CUDA; plans that run the steps of either
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUAT_LAYER 1
#include "lib/core/ops.inc"
#include "lib/quat_layer/quat_layer.h"

#define SLOT(name) hzi_cpu_##name
#define STEPS hzi_cpu_quat_steps
#include "lib/quat_layer/slots.inc"

#define SLOT(name) hzi_cuda_##name
#define STEPS hzi_cuda_quat_steps
#include "lib/quat_layer/slots.inc"
