/*
 * avx512.c - the micro-kernels for AVX-512 F, BW, DQ, VL and CD
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define HZ_VEC HZ_VEC_AVX512
#include "cpu/core/kern.inc"

void hzi_kern_avx512(struct hz_kern *kern)
{
	fill(kern);
}
