/*
 * avx2.c - the micro-kernels for AVX2, FMA and F16C
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define HZ_VEC HZ_VEC_AVX2
#include "cpu/core/kern.inc"

void hzi_kern_avx2(struct hz_kern *kern)
{
	fill(kern);
}
