/*
 * unit_transposed.c - micro-kernels of transposed rows, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/hadamard/kern.h"
#include "cpu/quantize/kern.h"
#include "cpu/core/elements.inc"
#if LANES > 4
#include "cpu/core/formats.inc"
#include "cpu/core/vec_i16.h"
#include "cpu/hadamard/stages.inc"
#include "cpu/hadamard/transposed.inc"
#include "cpu/quantize/codes.inc"
#include "cpu/quantize/transposed.inc"
#endif

void HZI_FILL(hadamard_transposed)(void *table)
{
#if LANES > 4
	struct hzi_hadamard_kern *const kern = table;

	kern->encode_transposed = encode_transposed;
	/* This one has no use for what VNNI adds to AVX-512. */
	if (!HZI_IN_VNNI)
		kern->transposed = transposed;
#else
	(void)table;
#endif
}
