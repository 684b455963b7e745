/*
 * gated_bwd_wgmma.h - parameters of gated_bwd_wgmma.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_BWD_WGMMA_H
#define HZI_GPU_MHC_GATED_BWD_WGMMA_H

#include "gpu/mhc/gated_wgmma.h"

#define HZI_MHC_BWD_TOKENS 128		/* of a block of mhc_gated_gate_bwd and mhc_gated_dx */
#define HZI_MHC_BWD_STEPS 144		/* rows of W_down, then 16 of W_q, in mhc_gated_dx */
#define HZI_MHC_DW_TOKENS 32		/* of a step of mhc_gated_dw */
#define HZI_MHC_DW_CHANNELS 256		/* of a block */
#define HZI_MHC_DGAIN_TOKENS 64		/* of a partial sum of dgain */

/*
 * Tensor maps whose boxes have 64 columns, and TOKENS rows unless noted. Planes [T][64] of each
 * chunk of 64 channels of each stream, since short pieces of rows are slow: the gradient of W_up h
 * as two terms of bf16, then the roots of gates as fractions of 2^16 - 1. ddown: planes of
 * [T][pitch], two terms of the gradients of the products of W_down and W_q, times the root of each
 * stream, then as they are; plane term (n + 1) + stream.
 */
struct hzi_mhc_gated_bwd_wgmma {
	struct hzi_tensor_map x, du, hidden;
	struct hzi_tensor_map w_up;	/* 64 channels */
	struct hzi_tensor_map w_down, w_q;	/* 128 and 16 rows of a term */
	struct hzi_tensor_map planes, planes_warp, planes_step;	/* _warp: 16 rows */
	struct hzi_tensor_map x_step, hidden_step, ddown_step;	/* _step: DW_TOKENS */
	struct hzi_tensor_map dx;	/* 16 rows */
	struct hzi_mhc_gated_job job;
	struct hzi_mhc_gated_bwd_args g;
	uint16_t *ddown;
	float *dhidden;			/* [splits][T][r] */
	float *dots;			/* [splits][T][n], of x^ and its gradient by the gates */
	float *factors;			/* [T][n][2], of dx: root, and what multiplies x */
	float *dgain;			/* [T / DGAIN_TOKENS][n C]; NULL: not wanted */
	int32_t splits, steps;		/* of blocks of BWD_TOKENS: of streams and channels */
	int32_t terms;			/* of W_down and W_q without gain; 1: both are bf16 */
	int32_t first_q;		/* row of w_q's first term in its tensor map */
	int32_t first_dw;		/* 1: dw_up is not wanted */
};

static_assert(sizeof(struct hzi_mhc_gated_bwd_wgmma) % 64 == 0, "the same layout for C and CUDA");

#endif
