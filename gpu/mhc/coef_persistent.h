/*
 * coef_persistent.h - parameters of coefficients of four 16-bit streams of many tokens
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_WEIGHTS_H
#define HZI_GPU_MHC_WEIGHTS_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_WEIGHTS_SLAB 256		/* channels of a stream that a block has at a time */
#define HZI_WEIGHTS_PART 32		/* tokens of them that are loaded at a time */
#define HZI_WEIGHTS_TILE 256		/* tokens whose sums a block keeps, at most: whole parts */
#define HZI_WEIGHTS_ROWS 24		/* of phi, at most */
#define HZI_WEIGHTS_BLOCKS 2		/* of a cluster, which get phi at once */
#define HZI_WEIGHTS_THREADS 384
#define HZI_WEIGHTS_BYTES (227 * 1024)

struct hzi_mhc_weights {
	struct hzi_tensor_map x_map;	/* boxes of 64 channels, PART tokens, of a stream */
	struct hzi_mhc_coef p, q, a;
	const float *phi, *gain, *alpha, *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t tile;			/* tokens */
	int32_t pad;
};

#endif
