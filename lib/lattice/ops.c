/*
 * ops.c - the operation tables of lattice: CPU and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define HZI_LATTICE 1
#include "lib/core/ops.inc"
