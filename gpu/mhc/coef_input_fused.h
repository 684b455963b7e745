/*
 * coef_input_fused.h - parameters of coefficients and branch inputs of four streams in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_FUSED_H
#define HZI_GPU_MHC_PRE_FUSED_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_FUSED_CHANNELS 256		/* of a stream that a block has, at most */
#define HZI_FUSED_BOX 64		/* of a copy; a block has whole boxes */
#define HZI_FUSED_BLOCKS 16		/* of a cluster, at most: a power of two */
#define HZI_FUSED_TILE 8		/* tokens */
#define HZI_FUSED_ROWS 24		/* of phi, at most */
#define HZI_FUSED_THREADS 512
#define HZI_FUSED_BYTES (227 * 1024)

/*
 * Channel strides are 1, all else is aligned to 16 bytes. u.data may be NULL. y.data: x are streams
 * before the branch, y those after it, of which all else is: sum_j a_ij x[j] + q_i (f + bias), with
 * post_a [T, 4, 4] and post_q [T, 4]; post_bias may be NULL.
 */
struct hzi_mhc_fused {
	struct hzi_tensor_map x_map, f_map;	/* boxes of channels, TILE tokens, streams */
	struct hzi_mhc_array y, u;
	struct hzi_mhc_coef p, q, a;
	const float *post_a, *post_q, *post_bias;
	const float *phi, *gain, *alpha, *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t width;				/* channels of a block */
	int32_t ranks;				/* blocks of a cluster */
};

#endif
