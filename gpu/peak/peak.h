/*
 * peak.h - multiplications alone, which hurwitz bench measures products against
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What launcher and kernels share.
 */
#ifndef HZI_PEAK_H
#define HZI_PEAK_H

#include <stdint.h>

#define HZI_PEAK_THREADS 256
#define HZI_PEAK_CHAINS 16	/* sums of a thread, or tiles of a warp, of a step */
#define HZI_PEAK_TILES 8

struct hzi_peak {
	int64_t steps;
	float *never;		/* where sums would go if there were fewer than no steps */
};

/* The kernels by index */
enum hzi_peak_kernel {
#define HZ_KERNEL(name) HZI_KERNEL_##name,
#include "gpu/peak/peak.kernels.def"
#undef HZ_KERNEL
	HZI_PEAK_KERNELS
};

#endif
