/*
 * coef_persistent.h - parameters of coef_persistent.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_PERSISTENT_H
#define HZI_GPU_MHC_COEF_PERSISTENT_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_MHC_PERSISTENT_SLAB 256	/* channels of a stream at a time */
#define HZI_MHC_PERSISTENT_PART 32	/* tokens loaded at a time */
#define HZI_MHC_PERSISTENT_TILE 256	/* tokens per block, at most: whole parts */
#define HZI_MHC_PERSISTENT_BLOCKS 2	/* per cluster: phi is multicast to them */
#define HZI_MHC_PERSISTENT_THREADS 384
#define HZI_MHC_PERSISTENT_BYTES (227 * 1024)

struct hzi_mhc_persistent {
	struct hzi_tensor_map x_map;	/* boxes of 64 channels, PART tokens, one stream */
	struct hzi_mhc_array x;
	struct hzi_mhc_coef p, q, a;
	const float *phi, *gain, *alpha[3], *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t tile;			/* tokens */
	int32_t dtype;
};

#endif
