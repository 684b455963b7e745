/*
 * cpu.h - what families on the CPU call of one another
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_H
#define HZI_CPU_H

#include "lib/core/internal.h"

/*
 * quantize() and dequantize() with a transform (cpu/hadamard/quantize.c). The caller passes the
 * micro-kernels of quantization and what it shares, so that transforms alone do not link these.
 */
struct hzi_codes_args;
struct hzi_quantize_kern;
struct hzi_format_work;
struct hzi_format_row;
struct hzi_nv_cells;
struct hzi_format_calls {
	/* hzi_cpu_format_part(), hzi_cpu_format_tensor() */
	void (*part)(const struct hzi_format_work *w, const struct hzi_format_row *row, int64_t i,
		     int64_t n);
	void (*tensor)(struct hzi_format_work *w, uint32_t most, struct hzi_nv_cells *cells);
};
int hzi_cpu_hadamard_codes(struct hz_context *ctx, const struct hzi_quantize_kern *kern,
			   const struct hzi_format_calls *calls, const struct hzi_codes_args *a);
size_t hzi_cpu_hadamard_codes_workspace(const struct hz_context *ctx,
					const struct hzi_codes_args *a);

#endif
