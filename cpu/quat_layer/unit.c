/*
 * unit.c - the micro-kernels of the steps of quaternion layers, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_layer/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/quat_layer/quat_layer.inc"
#include "cpu/quat_layer/recurrent.inc"

void HZI_FILL(quat_layer)(void *table)
{
	struct hzi_quat_layer_kern *const kern = table;

	kern->affine = quat_affine;
	kern->drop = quat_drop;
	kern->cell = quat_cell;
	kern->pool = quat_pool;
	kern->pool_bwd = quat_pool_bwd;
	/* The others have no use for what VNNI adds to AVX-512. */
	if (HZI_IN_VNNI)
		return;
	kern->map = quat_map;
	kern->sums = quat_sums;
}
