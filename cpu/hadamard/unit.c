/*
 * unit.c - the micro-kernels of Walsh-Hadamard transforms, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "cpu/hadamard/kern.h"
#include "cpu/quantize/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/formats.inc"
#include "cpu/core/transpose.inc"
#include "cpu/core/vec_i16.h"
#include "lib/core/fp.h"
#include "cpu/hadamard/stages.inc"
#include "cpu/hadamard/hadamard.inc"
#include "cpu/hadamard/quantize.inc"

void HZI_FILL(hadamard)(void *table)
{
	struct hzi_hadamard_kern *const kern = table;

#ifdef HZ_VNNI
	kern->head = head_bf16;
#else
	kern->head = head_swapping;
#endif
#if !defined(HZ_VNNI) && (HZ_VEC == HZ_VEC_AVX512 || HZ_VEC == HZ_VEC_AVX2)
	if (!hzi_cpu_is_amd())
		kern->head = head_duplicating;
#endif
	kern->pass = pass;
	kern->base_mul = base_mul;
	HZI_FILL(hadamard_transposed)(table);
	/* The others have no use for what VNNI adds to AVX-512. */
	if (HZI_IN_VNNI)
		return;
	kern->lanes = LANES;
	kern->head_bits = HEAD_BITS;
	kern->pass_bits = REG_BITS;
	kern->guard = hzi_cpu_is_amd() ? HZI_GUARD_RANGE : HZI_GUARD_FLAG;
	kern->exponent = exponent;
	kern->transpose = transpose;
	kern->quant = quant;
	kern->dequant = dequant;
}
