/*
 * peak.h - multiply-adds without loads and stores: the ceiling of products in hurwitz bench
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZ_TOOL_PEAK_H
#define HZ_TOOL_PEAK_H

#include <stdint.h>

#define HZI_PEAK_THREADS 256
#define HZI_PEAK_CHAINS 16	/* accumulators per thread */
#define HZI_PEAK_TILES 8

struct hzi_peak {
	int64_t steps;
	float *never;		/* never written; keeps the accumulators alive */
};

struct hz_context;

/* Makes about `macs` multiply-adds on all SMs, with operands in registers or shared memory: of
 * HZ_F32, or of HZ_F16 or HZ_S8 with the tensor-core instructions that the library uses. */
int tool_peak(struct hz_context *ctx, int dtype, int64_t macs);

#endif
