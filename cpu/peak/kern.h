/*
 * kern.h - the micro-kernels of `hurwitz bench`: how fast this CPU multiplies, reads and writes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_PEAK_KERN_H
#define HZI_PEAK_KERN_H

#include "cpu/core/kern.h"

struct hzi_peak_kern {
	/* Executes that many f32 multiply-adds in registers. */
	void (*fma)(int64_t fmas);
	/* The same for 8-bit integers; NULL: no instruction for them */
	void (*dot)(int64_t macs);
	/* y = a + 3 b for whole vectors; stream: non-temporal stores to aligned y */
	void (*triad)(const float *a, const float *b, float *y, int64_t n, bool stream);
	/* Sums n floats as eight concurrent streams of whole vectors. */
	float (*read)(const float *p, int64_t n);
};

HZI_KERN(peak)

#endif
