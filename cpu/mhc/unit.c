/*
 * unit.c - the micro-kernels of hyper-connections, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/mhc/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/transpose.inc"
#include "cpu/mhc/mhc.inc"

void HZI_FILL(mhc)(void *table)
{
	struct hzi_mhc_kern *const kern = table;

	kern->lanes = LANES;
	kern->row = mhc_row;
	kern->row_bwd = mhc_row_bwd;
	kern->scale = mhc_scale;
	kern->widen = mhc_widen;
	kern->fold = mhc_fold;
	kern->project = mhc_project;
	kern->spread = mhc_spread;
	kern->outer = mhc_outer;
	kern->coefs = mhc_coefs;
	kern->coefs_bwd = mhc_coefs_bwd;
	kern->sinkhorn = mhc_sinkhorn;
	kern->sinkhorn_bwd = mhc_sinkhorn_bwd;
	kern->transpose = transpose;
}
