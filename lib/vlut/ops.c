/*
 * ops.c - the operation tables of vlut: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_VLUT 1
#include "lib/core/ops.inc"
