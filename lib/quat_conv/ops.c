/*
 * ops.c - the operation tables of quat_conv: CPU and CUDA; plans that run the steps of either
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUAT_CONV 1
#include "lib/core/ops.inc"
#include "lib/quat_conv/quat_conv.h"

#define SLOT(name) hzi_cpu_##name
#define STEPS hzi_cpu_quat_conv_steps
#include "lib/quat_conv/slots.inc"

#define SLOT(name) hzi_cuda_##name
#define STEPS hzi_cuda_quat_conv_steps
#include "lib/quat_conv/slots.inc"
