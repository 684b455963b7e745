/*
 * ops.c - the operation tables of qgemm: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QGEMM 1
#include "lib/core/ops.inc"
