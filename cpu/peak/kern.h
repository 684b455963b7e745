/*
 * kern.h - the micro-kernels of `hurwitz bench`: how fast this CPU multiplies, reads and writes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_PEAK_KERN_H
#define HZI_PEAK_KERN_H

#include "cpu/core/kern.h"

struct hzi_peak_kern {
	/* So many multiply-adds of f32 in registers */
	void (*fma)(int64_t fmas);
	/* So many multiply-adds of 8-bit integers in registers, or NULL */
	void (*dot)(int64_t macs);
	/* y = a + 3 b, for whole vectors, aligned if streamed */
	void (*triad)(const float *a, const float *b, float *y, int64_t n, bool stream);
	/* A sum over n floats in eight streams, whole vectors in each */
	float (*read)(const float *p, int64_t n);
};

HZI_KERN(peak)

#endif
