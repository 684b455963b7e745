/*
 * neon.c - the micro-kernels for armv8-a Advanced SIMD
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define HZ_VEC HZ_VEC_NEON
#include "cpu/core/kern.inc"

void hzi_kern_neon(struct hz_kern *kern)
{
	fill(kern);
}
