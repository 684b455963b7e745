/*
 * kern.c - the micro-kernel tables of quaternion matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_gemm/kern.h"

HZI_KERN_TABLES(quat_gemm, HZI_FILL_AMX(quat_gemm))
