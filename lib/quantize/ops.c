/*
 * ops.c - the operation tables of quantize: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_QUANTIZE 1
#include "lib/core/ops.inc"
