/*
 * unit.c - micro-kernels of quaternion matrix products, compiled once per ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_gemm/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/vec_quat.h"
#include "cpu/quat_gemm/activation.inc"
#define QBITS 32
#include "cpu/quat_gemm/quat_gemm.inc"
#undef QBITS
#define QBITS 64
#include "cpu/quat_gemm/quat_gemm.inc"

void HZI_FILL(quat_gemm)(void *table)
{
	struct hzi_quat_gemm_kern *const kern = table;

	fill_quat_f32(&kern->type[0]);
	fill_quat_f64(&kern->type[1]);
}
