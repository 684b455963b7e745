/*
 * ops.c - the operation tables of hadamard: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_HADAMARD 1
#include "lib/core/ops.inc"
