/*
 * ops.c - the operation tables of linear: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_LINEAR 1
#include "lib/core/ops.inc"
