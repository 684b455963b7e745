/*
 * vnni.c - the micro-kernels for AVX-512 with VNNI and bfloat16 conversion
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define HZ_VEC HZ_VEC_AVX512
#include "cpu/kern.inc"

void hzi_kern_vnni(struct hz_kern *kern)
{
	fill(kern);
}
