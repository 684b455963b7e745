/*
 * unit_general.c - micro-kernels for more than four streams, n a variable, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define GENERAL_STREAMS
#include "cpu/mhc/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/mhc/pairs.inc"
#include "cpu/mhc/bwd.inc"
#include "cpu/mhc/coef.inc"

void HZI_FILL(mhc_general)(void *table)
{
	struct hzi_mhc_streams_kern *const kern = table;

	kern->row_bwd = mhc_row_bwd;
	kern->coefs = mhc_coefs;
	kern->coefs_bwd = mhc_coefs_bwd;
	kern->sinkhorn = mhc_sinkhorn;
	kern->sinkhorn_bwd = mhc_sinkhorn_bwd;
}
