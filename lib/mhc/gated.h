/*
 * gated.h - gated branch inputs as a chain of other operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * That is what a CPU does, and a GPU where operands are not aligned, and for gradients where streams
 * or w_up are not bf16 either.
 */
#ifndef HZI_MHC_GATED_H
#define HZI_MHC_GATED_H

#include "lib/core/internal.h"
#include "lib/mhc/mhc.h"

size_t hzi_mhc_gated_chain_workspace(const struct hz_context *ctx,
				     const struct hzi_mhc_gated_args *a);
int hzi_mhc_gated_chain(struct hz_context *ctx, const struct hzi_mhc_gated_args *a);
size_t hzi_mhc_gated_bwd_chain_workspace(const struct hz_context *ctx,
					 const struct hzi_mhc_gated_bwd_args *a);
int hzi_mhc_gated_bwd_chain(struct hz_context *ctx, const struct hzi_mhc_gated_bwd_args *a);

#endif
