/*
 * c.c - the micro-kernels for the compiler's baseline
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define HZ_VEC HZ_VEC_C
#include "cpu/core/kern.inc"

void hzi_kern_c(struct hz_kern *kern)
{
	fill(kern);
}
