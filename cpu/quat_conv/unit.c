/*
 * unit.c - the micro-kernel of convolutions of quaternions, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_conv/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/quat_conv/depthwise.inc"

void HZI_FILL(quat_conv)(void *table)
{
	struct hzi_quat_conv_kern *const kern = table;

	kern->depthwise = depthwise;
}
