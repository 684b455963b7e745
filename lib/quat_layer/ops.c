/*
 * ops.c - the operation tables of quat_layer: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUAT_LAYER 1
#include "lib/core/ops.inc"
