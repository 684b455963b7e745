/*
 * coef_small_batch.h - parameters of coef_small_batch.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_SMALL_BATCH_H
#define HZI_GPU_MHC_COEF_SMALL_BATCH_H

#include "lib/mhc/mhc.h"

#define HZI_MHC_SMALL_BATCH_BLOCKS 16	/* per cluster, which has as many tokens */
#define HZI_MHC_SMALL_BATCH_THREADS 512
#define HZI_MHC_SMALL_BATCH_CHANNELS (1 << 20)	/* at most: offsets in phi are 32-bit */

/* Channel strides are 1, other strides multiples of 16 bytes. u.data may be NULL. */
struct hzi_mhc_small_batch {
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p, q, a, p_in;
	const float *phi, *gain, *alpha[3], *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t width;			/* channels of a block: a multiple of 8 */
	int32_t matrices;		/* clusters that only make matrices: half of all, or 0 */
};

#endif
