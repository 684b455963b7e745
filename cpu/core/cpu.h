/*
 * cpu.h - work split over threads, for all CPU implementations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_H
#define HZI_CPU_H

#include "lib/core/internal.h"

/* Processes units begin .. end - 1 of a job as worker number `thread`. */
typedef void (*hzi_work)(void *job, int thread, int64_t begin, int64_t end);

/*
 * Splits units over at most `threads` workers, each with one contiguous share, and waits for them.
 * Workers run with the caller's rounding and denormal modes. threads <= 1 calls work() and enters
 * no OpenMP construct.
 */
void hzi_parallel(int threads, hzi_work work, void *job, int64_t units);

/*
 * quantize() and dequantize() with a transform (cpu/hadamard/quantize.c). The caller passes the
 * micro-kernels of quantization, so that transforms alone do not link these.
 */
struct hzi_codes_args;
struct hzi_quantize_kern;
struct hzi_rotated;
int hzi_cpu_hadamard_codes(struct hz_context *ctx, const struct hzi_quantize_kern *kern,
			  const struct hzi_codes_args *a);
size_t hzi_cpu_hadamard_codes_workspace(const struct hz_context *ctx, const struct hzi_rotated *r,
				 bool back);

#endif
