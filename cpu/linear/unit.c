/*
 * unit.c - the micro-kernels of linear layers with quantized weights, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/linear/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/linear/bwd.inc"

void HZI_FILL(linear)(void *table)
{
	struct hzi_linear_kern *const kern = table;

	kern->strip = linear_strip;
}
