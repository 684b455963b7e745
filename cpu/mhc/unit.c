/*
 * unit.c - the micro-kernels of hyper-connections, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/mhc/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/transpose.inc"
#include "cpu/mhc/pairs.inc"
#include "cpu/mhc/mhc.inc"
#include "cpu/mhc/project.inc"
#include "cpu/mhc/bwd.inc"
#include "cpu/mhc/coef.inc"

void HZI_FILL(mhc)(void *table)
{
	struct hzi_mhc_kern *const kern = table;

	kern->lanes = LANES;
	kern->row = mhc_row;
	kern->scale = mhc_scale;
	kern->widen = mhc_widen;
	kern->sum_lanes = mhc_sum_lanes;
	kern->project = mhc_project;
	kern->dx_gemm = mhc_dx_gemm;
	kern->dphi_gemm = mhc_dphi_gemm;
	kern->transpose = transpose;
	kern->streams[0].row_bwd = mhc_row_bwd;
	kern->streams[0].coefs = mhc_coefs;
	kern->streams[0].coefs_bwd = mhc_coefs_bwd;
	kern->streams[0].sinkhorn = mhc_sinkhorn;
	kern->streams[0].sinkhorn_bwd = mhc_sinkhorn_bwd;
	HZI_FILL(mhc_general)(&kern->streams[1]);
}
