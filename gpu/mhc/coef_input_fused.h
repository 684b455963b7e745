/*
 * coef_input_fused.h - parameters of coef_input_fused.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_INPUT_FUSED_H
#define HZI_GPU_MHC_COEF_INPUT_FUSED_H

#include "gpu/runtime/tensor_map.h"
#include "lib/mhc/mhc.h"

#define HZI_MHC_INPUT_FUSED_CHANNELS 256	/* per block and stream, at most */
#define HZI_MHC_INPUT_FUSED_BOX 64	/* channels of a TMA box; a block has whole boxes */
#define HZI_MHC_INPUT_FUSED_BLOCKS 16	/* per cluster, at most: a power of two */
#define HZI_MHC_INPUT_FUSED_TILE 8	/* tokens */
#define HZI_MHC_INPUT_FUSED_THREADS 512
#define HZI_MHC_INPUT_FUSED_BYTES (227 * 1024)

/*
 * Channel strides are 1, other strides multiples of 16 bytes. u.data may be NULL. With y.data the
 * kernel makes y[i] = sum_j a_ij x[j] + q_i (f + bias) of post_a [T][4][4], post_q [T][4] and
 * post_bias (or NULL), and the coefficients are those of y.
 */
struct hzi_mhc_input_fused {
	struct hzi_tensor_map x_map, f_map;	/* boxes of channels, TILE tokens, streams */
	struct hzi_tensor_map phi_map;		/* boxes of 32 channels, rows, streams */
	struct hzi_mhc_array x, y, u;		/* x.data NULL with y.data */
	struct hzi_mhc_coef p, q, a, p_in;
	const float *post_a, *post_q, *post_bias;
	const float *phi, *gain, *alpha[3], *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t width;				/* channels of a block */
	int32_t ranks;				/* blocks of a cluster */
	int32_t dtype, phi_by_tma;		/* phi is 16-byte aligned */
};

#endif
