/*
 * ops.c - the operation tables of quat: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUAT 1
#include "lib/core/ops.inc"
