/*
 * mhc_pre_joint.h - parameters of the gradients of four streams and of phi in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_JOINT_H
#define HZI_GPU_MHC_PRE_JOINT_H

#include "lib/mhc.h"

#define HZI_JOINT_TILE 16		/* tokens */
#define HZI_JOINT_CHANNELS 64		/* of a block, in all four streams */
#define HZI_JOINT_ROWS 24		/* of phi, at most */
#define HZI_JOINT_THREADS 256
#define HZI_JOINT_BLOCKS 2		/* of a multiprocessor */
#define HZI_JOINT_STAGES 4
#define HZI_JOINT_COEFS 24		/* of a token: a [4, 4], p [4], own, padding */
#define HZI_JOINT_WORDS (24 * 32)	/* draw of a tile, as matrix units take it */
#define HZI_JOINT_RECORD (HZI_JOINT_TILE * HZI_JOINT_COEFS + HZI_JOINT_WORDS)
#define HZI_JOINT_BYTES (97 * 1024)

/* Records of tiles, of what struct hzi_mhc_gradients says; p and a may be NULL: 0. */
struct hzi_mhc_records {
	const float *draw, *own, *p, *a;
	uint32_t *records;
	int64_t tokens;
	int32_t m, pad;
};

/*
 * dx as of struct hzi_mhc_dx, partial as of struct hzi_mhc_dphi, splits of the tiles in turns.
 * Channel strides are 1, all else is aligned to 16 bytes. du, dy and dx may have no data, partial
 * may be NULL.
 */
struct hzi_mhc_joint {
	struct hzi_mhc_array x, du, dy, dx;
	const float *phi, *gain;
	const uint32_t *records;
	float *partial;
	int64_t tokens, channels;
	int32_t m, splits, accumulate;
	int32_t pad;
};

/* The kernels by index */
enum hzi_mhc_pre_joint_kernel {
#define HZ_KERNEL(name) HZI_KERNEL_##name,
#include "mhc_pre_joint.kernels.def"
#undef HZ_KERNEL
	HZI_MHC_PRE_JOINT_KERNELS
};

#endif
