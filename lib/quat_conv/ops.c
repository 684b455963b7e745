/*
 * ops.c - the operation tables of quat_conv: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUAT_CONV 1
#include "lib/core/ops.inc"
