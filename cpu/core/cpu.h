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
 * Splits units over at most `threads` workers, each with one contiguous share, and waits for them:
 * by OpenMP, the pool or the application's parallel_for, as the context says. Shares do not wait for
 * each other and run in any order; no two of one `thread` run at the same time. All round to nearest
 * and have the caller's modes for denormals and exceptions. threads <= 1 calls work() alone.
 */
void hzi_parallel(const struct hz_context *ctx, int threads, hzi_work work, void *job,
		  int64_t units);

/*
 * quantize() and dequantize() with a transform (cpu/hadamard/quantize.c). The caller passes the
 * micro-kernels of quantization, so that transforms alone do not link these.
 */
struct hzi_codes_args;
struct hzi_quantize_kern;
struct hzi_format_work;
struct hzi_format_row;
typedef void (*hzi_format_part)(const struct hzi_format_work *w, const struct hzi_format_row *row,
				int64_t i, int64_t n);	/* hzi_cpu_format_part() */
int hzi_cpu_hadamard_codes(struct hz_context *ctx, const struct hzi_quantize_kern *kern,
			   hzi_format_part part, const struct hzi_codes_args *a);
size_t hzi_cpu_hadamard_codes_workspace(const struct hz_context *ctx,
					const struct hzi_codes_args *a);

#endif
