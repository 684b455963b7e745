/*
 * quantize.h - code paths of quantization on the CPU, with struct hzi_codes_args; see hzi_route
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QUANTIZE_H
#define HZI_CPU_QUANTIZE_H

#include "lib/qgemm/qgemm.h"

const char *hzi_cpu_codes_transposed_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cpu_codes_transposed(struct hz_context *ctx, const void *args);
const char *hzi_cpu_codes_rows_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cpu_codes_rows(struct hz_context *ctx, const void *args);
const char *hzi_cpu_formats_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cpu_formats(struct hz_context *ctx, const void *args);

#endif
