/*
 * mhc_pre_fused.h - parameters of coefficients and branch inputs of four streams in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_FUSED_H
#define HZI_GPU_MHC_PRE_FUSED_H

#include "lib/mhc.h"

#define HZI_FUSED_CHANNELS 256		/* of a stream that a block has, at most */
#define HZI_FUSED_BLOCKS 16		/* of a cluster, at most: a power of two */
#define HZI_FUSED_TILE 16		/* tokens */
#define HZI_FUSED_ROWS 24		/* of phi, at most */
#define HZI_FUSED_THREADS 576
#define HZI_FUSED_STAGES 5
#define HZI_FUSED_BYTES (212 * 1024)

/* Channel strides are 1, all else is aligned to 16 bytes. u.data may be NULL. */
struct hzi_mhc_fused {
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p, q, a;
	const float *phi, *gain, *alpha, *bias;
	float *saved;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t width;				/* channels of a block: a multiple of 8 */
	int32_t ranks;				/* blocks of a cluster */
};

/* The kernels by index */
enum hzi_mhc_pre_fused_kernel {
#define HZ_KERNEL(name) HZI_KERNEL_##name,
#include "mhc_pre_fused.kernels.def"
#undef HZ_KERNEL
	HZI_MHC_PRE_FUSED_KERNELS
};

#endif
