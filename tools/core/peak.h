/*
 * peak.h - multiply-adds alone, which hurwitz bench measures products against
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZ_TOOL_PEAK_H
#define HZ_TOOL_PEAK_H

#include <stdint.h>

#define HZI_PEAK_THREADS 256
#define HZI_PEAK_CHAINS 16	/* sums of a thread, or tiles of a warp, of a step */
#define HZI_PEAK_TILES 8

struct hzi_peak {
	int64_t steps;
	float *never;		/* where sums would go if there were fewer than no steps */
};

struct hz_context;

/*
 * Does about so many multiply-adds on all SMs, with operands in registers or shared memory: of
 * HZ_F32, or on the tensor cores as this library uses them, of HZ_F16 or HZ_S8.
 */
int tool_peak(struct hz_context *ctx, int dtype, int64_t macs);

#endif
