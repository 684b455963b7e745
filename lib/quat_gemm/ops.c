/*
 * ops.c - the operation tables of quat_gemm: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUAT_GEMM 1
#include "lib/core/ops.inc"
