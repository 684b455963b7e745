/*
 * unit.c - micro-kernels of elementwise quaternion operations, compiled once per ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/quat/quat.inc"
#include "cpu/quat/convert.inc"

void HZI_FILL(quat)(void *table)
{
	struct hzi_quat_kern *const kern = table;

	kern->row = quat_row;
	kern->put = quat_put;
	/* The others have no use for what VNNI adds to AVX-512. */
	if (HZI_IN_VNNI)
		return;
	kern->total = quat_total;
	kern->convert = quat_convert;
}
