/*
 * kern.c - the tables of micro-kernels of products of quaternion matrices
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_gemm/kern.h"

HZI_KERN_TABLES(quat_gemm, HZI_FILL_AMX(quat_gemm))
