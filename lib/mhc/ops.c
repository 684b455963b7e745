/*
 * ops.c - the operation tables of mhc: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_MHC 1
#include "lib/core/ops.inc"
