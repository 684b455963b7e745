/*
 * coef_small_batch.h - parameters of coefficients and branch inputs of few tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_FEW_H
#define HZI_GPU_MHC_PRE_FEW_H

#include "lib/mhc/mhc.h"

#define HZI_PRE_FEW_BLOCKS 16		/* of a cluster, which has as many tokens */
#define HZI_PRE_FEW_ROWS 24		/* of phi, at most */
#define HZI_PRE_FEW_THREADS 512
#define HZI_PRE_FEW_CHANNELS (1 << 20)	/* at most: places in phi are counted in 32 bits */
#define HZI_PRE_FEW_TOKENS 112		/* 7 such clusters run at a time on an H200 */

/* Channel strides are 1, all else is aligned to 16 bytes. u.data may be NULL. */
struct hzi_mhc_few {
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p, q, a;
	const float *phi, *gain, *alpha, *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t width;			/* channels of a block: a multiple of 8 */
	int32_t matrices;		/* clusters that make nothing else: half, or 0 */
};

#endif
